"""Measure robustness: the same test images re-encoded, made smaller, cropped, brighter and darker.

    python benchmarks/robustness.py ../shared/tasks

Agents learn from the unchanged images; only the test images are changed, in one way at a time. This shows that
accuracy does not depend on file formats. Existing results in the file are kept, so an interrupted run can resume.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image, ImageEnhance

from skillmesh.common.choices import WarmStart
from skillmesh.core import Core
from skillmesh.data.folder import find_tasks
from skillmesh.data.images import Pixels, decode, open_rgb
from skillmesh.data.inputs import AnyImage
from skillmesh.evaluation.evaluate import evaluate
from skillmesh.evaluation.provenance import provenance
from skillmesh.store.home import create_home

HERE = Path(__file__).parent
MAPPERS: dict[str, dict[str, object]] = {
    "sketch": {},
    "maha": {"anchor": "maha", "representation": "features"},
    "gmmc": {"anchor": "gmmc", "representation": "sqrt-features", "variance_floor": 0.01},
}
FIGURES = ("task_given_accuracy", "task_found_accuracy", "final_accuracy", "known_unknown")


def _encoded(image: Image.Image, kind: str = "PNG", **options: int) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def _half(image: Image.Image) -> bytes:
    return _encoded(image.resize((max(image.width // 2, 1), max(image.height // 2, 1)), Image.Resampling.BICUBIC))


def _crop(image: Image.Image) -> bytes:
    x, y = round(image.width * 0.05), round(image.height * 0.05)
    return _encoded(image.crop((x, y, image.width - x, image.height - y)))


def _brightness(image: Image.Image, factor: float) -> bytes:
    return _encoded(ImageEnhance.Brightness(image).enhance(factor))


CHANGES: dict[str, Callable[[Image.Image], bytes] | None] = {
    "as they are": None,
    "JPEG quality 40": partial(_encoded, kind="JPEG", quality=40),
    "half the size": _half,
    "cropped to 90 %": _crop,
    "20 % brighter": partial(_brightness, factor=1.2),
    "20 % darker": partial(_brightness, factor=0.8),
}


@dataclass(frozen=True)
class ChangedImage:
    """An image that is changed when it is read, by the reading thread."""

    inner: AnyImage
    change: Callable[[Image.Image], bytes]

    @property
    def name(self) -> str:
        return self.inner.name

    def size(self) -> int:
        return self.inner.size()

    def content(self) -> bytes:
        return self.change(open_rgb(self.inner.content()))

    def pixels(self, content: bytes, size: int) -> Pixels:
        return decode(content, size)


def measure(
    name: str, paths: list[Path], known: dict[str, dict[str, float]]
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield each change that is not yet known, with its figures."""
    if set(known) == set(CHANGES):
        return
    with TemporaryDirectory() as home:
        create_home(Path(home), name="robustness", **MAPPERS[name])
        agent = Core(Path(home))
        for path in paths:
            agent.learn(path, warm_start=WarmStart("never"))
        for label, change in CHANGES.items():
            if label not in known:
                apply = None if change is None else partial(ChangedImage, change=change)
                summary = evaluate(agent, paths, learn=False, change=apply).summary()
                yield label, {figure: summary[figure] for figure in FIGURES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "robustness.json")
    options = parser.parse_args()
    paths = find_tasks([options.tasks])
    origin = provenance("python benchmarks/robustness.py ../shared/tasks", paths, seed=0)
    report = json.loads(options.out.read_text()) if options.out.exists() else {"mappers": {}}
    for name in MAPPERS:
        known = report["mappers"].setdefault(name, {})
        for label, figures in measure(name, paths, known):
            known[label] = figures
            report["provenance"] = origin
            options.out.write_text(json.dumps(report, indent=1) + "\n")
            print(f"{name:8} {label:16}", *(f"{figures[f]:.4f}" for f in FIGURES), flush=True)


if __name__ == "__main__":
    main()
