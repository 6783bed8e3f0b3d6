"""Size in bytes of a module with 49 classes, the paper's average task."""

from __future__ import annotations

import numpy as np
import pytest

from skillmesh.anchors import AnchorSettings
from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.backbone.backbone import load_calibration
from skillmesh.learning.head import SHARES, Head, probe_tensors
from skillmesh.module import Card, Identity, Module, now

CLASSES = 49


@pytest.mark.parametrize(("compact", "limit"), [(False, 330_000), (True, 150_000)])
def test_module_of_49_classes_is_small(compact: bool, limit: int) -> None:
    calibration = load_calibration("lite0")
    dim = len(calibration.basis) if compact else len(calibration.mean)
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), 3)
    x = rng.standard_normal((len(labels), dim)).astype(np.float32)
    head = Head(rng.standard_normal((CLASSES, dim)).astype(np.float32), np.zeros(CLASSES, np.float32))
    tensors = head.tensors() | SketchAnchor.fit(x, labels, CLASSES, AnchorSettings()).tensors()
    identity = Identity.create("alice")
    card = Card(
        task="average",
        classes=tuple(f"a class with a name {c}" for c in range(CLASSES)),
        backbone="0" * 64,
        backbone_name="lite0",
        representation="descriptor",
        dim=dim,
        compact=compact,
        anchors=("sketch",),
        counts=(3,) * CLASSES,
        validation_images=10,
        temperature=1.0,
        version=1,
        created=now(),
        teacher=identity.name,
        teacher_key=identity.public_key,
    )
    module, _ = Module.create(card, tensors | probe_tensors(x[: len(SHARES)]), identity)
    assert module.size <= limit
    assert module.size > limit / 3  # it is complete
