"""Thin a task out as the paper does: round(54000/c) images of each class to train on, round(6000/c) to test on."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from skillmesh.data.folder import Split, TaskImages

TOTALS = {"train": 54_000, "val": 6_000, "test": 6_000}
MAX_CLASSES = 500
"""Of the datasets with more classes (of the paper's, iNaturalist Insecta alone) this many are drawn."""

Rule = Literal["appendix", "list"]
"""Which splits are thinned out.

`appendix`: every one, as the paper's appendix A says. `list`: those alone that have more than 54,000 (6,000)
images, as the authors' published code does; the sizes in the paper's list are reached by this one only.
"""


def subsample(task: TaskImages, *, rule: Rule = "appendix", seed: int = 0) -> TaskImages:
    """Keep at most 500 classes, and at most round(total / classes) images of each in each split."""
    key = [seed, zlib.crc32(task.name.encode())]
    kept = _draw(np.arange(len(task.classes)), MAX_CLASSES, key)
    splits = {}
    for index, (split, part) in enumerate(task.splits.items()):
        limit = None if rule == "list" and len(part) <= TOTALS[split] else round(TOTALS[split] / max(len(kept), 1))
        splits[split] = _thinned(part, kept, limit, [*key, index])
    return replace(task, classes=tuple(task.classes[i] for i in kept), splits=splits)


def _thinned(part: Split, classes: NDArray[np.int64], limit: int | None, key: list[int]) -> Split:
    """Take the given classes' images, numbering the classes anew; every class is drawn from on its own."""
    files, labels = [], []
    for label, old in enumerate(classes):
        mine = _draw(np.flatnonzero(part.labels == old), limit, [*key, int(old)])
        files += [part.files[i] for i in mine]
        labels += [label] * len(mine)
    return Split(tuple(files), np.array(labels, dtype=np.int64))


def _draw(items: NDArray[np.int64], limit: int | None, key: list[int]) -> NDArray[np.int64]:
    """Draw `limit` of the items, all where there are fewer, and leave them in their order."""
    if limit is None or len(items) <= limit:
        return items
    return np.sort(np.random.default_rng(key).choice(items, limit, replace=False))
