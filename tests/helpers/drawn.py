"""Small tasks for baselines: each class is a pattern under noise, learned in seconds from a random start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from skillmesh_challenge.baselines.methods import Naive
from skillmesh_challenge.baselines.settings import TrainedSettings

SIZE = 32
SMALL = {
    "backbone": "test_efficientnet",
    "start": "random",
    "size": SIZE,
    "norms": "trained",
    "epochs": 6,
    "rate": 0.05,
    "head_rate": 0.1,
    "batch": 16,
}
"""Settings of a method that trains a tiny network from a random start."""


def small(kind: type[TrainedSettings] = Naive, **changes: object) -> TrainedSettings:
    return kind(kind.kind, **(SMALL | changes))  # type: ignore[arg-type]


def draw_tasks(folder: Path, count: int, classes: int = 3, noise: float = 40.0) -> list[Path]:
    """Write tasks of patterns; equal calls write equal images."""
    for task in range(count):
        chance = np.random.default_rng(task)
        patterns = chance.uniform(0, 255, (classes, 4, 4, 3)).repeat(SIZE // 4, 1).repeat(SIZE // 4, 2)
        for split, images in {"train": 10, "val": 4, "test": 6}.items():
            for label, pattern in enumerate(patterns):
                place = folder / f"task{task}" / split / f"class{label}"
                place.mkdir(parents=True)
                for index in range(images):
                    pixels = (pattern + chance.normal(0, noise, pattern.shape)).clip(0, 255).astype(np.uint8)
                    Image.fromarray(pixels).save(place / f"{index}.png")
    return sorted(folder.iterdir())
