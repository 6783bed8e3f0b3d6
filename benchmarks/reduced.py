"""Measure what is lost and saved when JPEGs of 12 megapixels are decoded at a reduced size.

    python benchmarks/reduced.py --modules FOLDER [--images 20] [--json docs/results/reduced.json]

A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size. Each photo is decoded at full size and at the smallest size
that is at least 1, 2 or 4 times that of the network's input, and then resized to it. The agent knows the modules
in FOLDER (`light.py` makes them). Photos are made here: test images of `SKILLMESH_TASKS` enlarged to 12 million
pixels, with fine detail and sensor noise as cameras give them; and drawn scenes. Each is saved in several JPEG
qualities.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from skillmesh.core import Core
from skillmesh.data.demo import LEARNED, demo_task_classes, draw
from skillmesh.data.folder import find_tasks, open_task
from skillmesh.data.images import Pixels, open_rgb, shrink
from skillmesh.evaluation.provenance import provenance
from skillmesh.numerics.process import process_is_ours

WIDTH, HEIGHT = 4000, 3000
SCALES = (1, 2, 4)
QUALITIES = (60, 85, 95)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=Path, required=True, help="modules that the agent knows")
    parser.add_argument("--images", type=int, default=20, help="photos of each kind")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not (tasks := os.environ.get("SKILLMESH_TASKS")):
        parser.error("SKILLMESH_TASKS names no folder of tasks, expected one whose test images can be enlarged")
    process_is_ours()
    with TemporaryDirectory() as scratch:
        agent = Core.open(Path(scratch) / "agent", device="cpu")
        agent.backbone.cache = None
        for file in sorted(options.modules.glob("*.skill")):
            agent.import_file(file)
        paths = find_tasks([Path(tasks)])
        kinds = {
            "enlarged photos": enlarged(paths, options.images),
            "drawn scenes": drawn(options.images),
        }
        rows = [
            measured(agent, name, quality, files)
            for name, saved in _saved(kinds)
            for quality, files in saved.items()
        ]
        report: dict[str, Any] = {"rows": rows, "tasks": len(agent.bank), "images": options.images}
        command = f"python benchmarks/reduced.py --modules FOLDER --images {options.images} --json FILE"
        report["provenance"] = provenance(command, paths, seed=0)
    for row in rows:
        print(json.dumps(row))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


# Photos.


def _saved(kinds: dict[str, Iterator[Image.Image]]) -> Iterator[tuple[str, dict[int, list[bytes]]]]:
    """Yield the photos of each kind as JPEGs, by quality."""
    for name, photos in kinds.items():
        files: dict[int, list[bytes]] = {quality: [] for quality in QUALITIES}
        for photo in photos:
            for quality, saved in files.items():
                out = io.BytesIO()
                photo.save(out, "JPEG", quality=quality)
                saved.append(out.getvalue())
        yield name, files


def enlarged(paths: list[Path], count: int) -> Iterator[Image.Image]:
    """Yield the largest test images of all tasks, enlarged, one task after the other."""
    largest: list[list[Image.Image]] = []
    for path in paths:
        files = open_task(path).splits["test"].files
        images = [open_rgb(file.content()) for file in files[:: max(1, len(files) // 40)]]
        largest.append(
            sorted(images, key=lambda image: -image.width * image.height)[: -(-count // len(paths)) + 3]
        )
    largest.sort(key=lambda images: -images[0].width * images[0].height)
    in_turns = [image for rank in zip(*largest, strict=False) for image in rank]
    detail = fine_detail()
    rng = np.random.default_rng(0)
    for image in in_turns[:count]:
        pixels = np.asarray(image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS), dtype=np.float32)
        yield with_noise(pixels + np.roll(detail, rng.integers(WIDTH), axis=1)[:, :, None], rng)


def drawn(count: int) -> Iterator[Image.Image]:
    """Yield drawn scenes at full size: sharp edges and text."""
    rng = np.random.default_rng(1)
    for number in range(count):
        task = LEARNED[number % len(LEARNED)]
        classes = demo_task_classes(task)
        image = draw(task, classes[number % len(classes)], number, size=1600).resize((WIDTH, HEIGHT))
        yield with_noise(np.asarray(image, dtype=np.float32), rng)


def fine_detail() -> NDArray[np.float32]:
    """Return a texture with the spectrum of photos (amplitude 1/frequency) in what enlarging leaves empty."""
    rng = np.random.default_rng(2)
    spectrum = np.fft.rfft2(rng.standard_normal((HEIGHT, WIDTH)))
    frequency = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None])
    spectrum *= np.where(frequency > 1 / 32, 1 / np.maximum(frequency, 1 / WIDTH), 0)
    texture = np.fft.irfft2(spectrum, (HEIGHT, WIDTH))
    return (12 * texture / texture.std()).astype(np.float32)


def with_noise(pixels: NDArray[np.float32], rng: np.random.Generator) -> Image.Image:
    noisy = pixels + 5 * rng.standard_normal(pixels.shape, dtype=np.float32)
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


# Measurement.


def measured(agent: Core, kind: str, quality: int, files: list[bytes]) -> dict[str, Any]:
    """Compare reduced sizes with full size: descriptors, labels and seconds of decoding."""
    size = agent.backbone.network.size
    full, full_seconds = _described(agent, files, size, None)
    apart = median(_distances_between(full))
    labels = _labels(agent, full)
    row: dict[str, Any] = {"kind": kind, "quality": quality, "images": len(files)}
    row["full_seconds"] = full_seconds
    for scale in SCALES:
        x, seconds = _described(agent, files, size, scale)
        moved = np.linalg.norm(x - full, axis=1) / apart
        changed = sum(one != other for one, other in zip(labels, _labels(agent, x), strict=True))
        row[f"scale_{scale}"] = {
            "seconds": seconds,
            "moved": float(np.median(moved)),
            "moved_most": float(moved.max()),
            "labels_changed": changed,
        }
    return row


def _described(agent: Core, files: list[bytes], size: int, scale: int | None) -> tuple[Any, float]:
    """Return the descriptors of JPEGs decoded for a scale, and the median seconds to decode one."""
    pixels, seconds = [], []
    for data in files:
        started = time.perf_counter()
        pixels.append(decoded(data, size, scale))
        seconds.append(time.perf_counter() - started)
    raw = np.concatenate([agent.backbone.network.forward(each[None]) for each in pixels])
    return agent.represent(raw), median(seconds)


def decoded(data: bytes, size: int, scale: int | None) -> Pixels:
    """Decode as the product does, but at another scale; None stands for full size."""
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        if scale is not None:
            image.draft("RGB", (scale * size, scale * size))
        return shrink(image, size)


def _distances_between(x: Any) -> list[float]:
    return [float(np.linalg.norm(one - other)) for row, one in enumerate(x) for other in x[row + 1 :]]


def _labels(agent: Core, x: Any) -> list[str | None]:
    from skillmesh.data.inputs import BadImage

    answers = agent.answer_described(x, [BadImage(str(row), "described already") for row in range(len(x))])
    return [answer.label for answer in answers]


if __name__ == "__main__":
    main()
