"""A small module, card and file to write and read."""

from __future__ import annotations

from typing import Any

import numpy as np

from skillmesh.module import Card, Identity, write
from skillmesh.numerics.arrays import Spec, Tensors

ADA = Identity("Ada", bytes(range(32)))
EVE = Identity("Eve", bytes(32))

FIELDS: dict[str, Any] = {
    "format": 1,
    "task": "Fünf Vögel",
    "classes": ("Amsel", "blue tit"),
    "backbone": "ab" * 32,
    "backbone_name": "lite0",
    "representation": "descriptor",
    "dim": 3,
    "compact": False,
    "anchors": ("gmmc", "sketch"),
    "counts": (5, 7),
    "validation_images": 4,
    "validation_accuracy": 0.75,
    "temperature": 1.5,
    "version": 1,
    "created": "2024-12-31T23:59:59Z",
    "teacher": ADA.name,
    "teacher_key": ADA.public_key,
    "licence": "CC0-1.0",
    "tags": None,
    "note": "two lines\nof text",
}


def make_card(**changes: Any) -> Card:
    return Card(**{**FIELDS, **changes})


def make_tensors() -> Tensors:
    return {
        "head.weight": np.array([[1, -2, 3], [4, 5, -127]], np.int8),
        "head.scale": np.array([0.5, 0.25], np.float32),
        "mean.phi": np.array([0.25, 0.75], np.float16),
        "mean.order": np.array([0, 255], np.uint8),
    }


def specs_for(card: Card) -> dict[str, Spec]:
    classes = len(card.classes)
    return {
        "head.weight": Spec("I8", (classes, card.dim), low=-127),
        "head.scale": Spec("F32", (classes,), low=0),
        "mean.phi": Spec("F16", ("k",), low=0, high=1),
        "mean.order": Spec("U8", ("k",)),
    }


def make_file() -> bytes:
    return write(make_card(), make_tensors(), ADA)
