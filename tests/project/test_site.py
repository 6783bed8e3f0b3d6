"""The site that `make site` builds: it is complete, its links lead somewhere, and it fetches nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))


FETCHING = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch"}


class Page(HTMLParser):
    """The links, anchors and fetched files of a built page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if anchor := values.get("id"):
            self.anchors.add(anchor)
        if tag == "a" and (target := values.get("href")):
            self.links.append(target)
        if tag in ("script", "img", "iframe", "source") and (target := values.get("src")):
            self.fetched.append(target)
        if tag == "link" and set((values.get("rel") or "").split()) & FETCHING:
            self.fetched.append(values.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy of the docs."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    call = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    built = subprocess.run(call, cwd=folder, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stdout + built.stderr
    return (folder / "site").resolve()


@pytest.fixture(scope="module")
def built(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_page_of_the_docs_is_in_the_navigation():
    nav = re.findall(r'= "([\w/-]+\.md)"', (ROOT / "zensical.toml").read_text())
    assert len(nav) == len(set(nav))
    assert sorted(nav) == [str(page) for page in PAGES]


def test_every_page_is_built(built: dict[Path, Page], site: Path):
    assert {path.relative_to(site).with_suffix(".md") for path in built} == set(PAGES)


def test_links_lead_to_pages_and_anchors_that_exist(built: dict[Path, Page]):
    broken = []
    for path, page in built.items():
        for link in [*page.links, *page.fetched]:
            scheme, host, target, _, anchor = urlsplit(link)
            if scheme or host:
                continue
            file = (path.parent / unquote(target)).resolve() if target else path
            known = file in built and (not anchor or unquote(anchor) in built[file].anchors)
            if not (known or (file not in built and file.is_file())):
                broken.append(f"{path.name}: {link}")
    assert not broken


def test_pages_fetch_nothing_from_elsewhere(built: dict[Path, Page], site: Path):
    assert not [target for page in built.values() for target in page.fetched if urlsplit(target).netloc]
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.findall(r"(?:@import|url\()\s*[\"']?https?:", styles)


@pytest.mark.parametrize("word", ["unknown", "quarantine", "EWC"])
def test_the_search_index_has_the_words_that_readers_look_for(word: str, site: Path):
    items = json.loads((site / "search.json").read_text())["items"]
    pages = {item["location"].partition("#")[0] for item in items if word in item["title"] + item["text"]}
    assert len(pages) > 1
