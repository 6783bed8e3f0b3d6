"""Bytes that a task's teacher sends: the paper's appendix G, and figures in its text that follow from it."""

from __future__ import annotations

from skillmesh_challenge.paper import inputs
from skillmesh_challenge.paper.cells import Key, Ours, PaperCell, cells
from skillmesh_challenge.paper.figures import Range

HEAD = inputs.FEATURES * inputs.CLASSES_PER_TASK * inputs.FLOAT_BYTES
CLUSTERS = inputs.CLUSTERS * 2 * inputs.FEATURES * inputs.FLOAT_BYTES
IMAGES_OF_TASK = inputs.IMAGES_PER_CLASS * inputs.IMAGE_BYTES
"""Bytes of five images per task (appendix G)."""
IMAGES_OF_CLASSES = IMAGES_OF_TASK * inputs.CLASSES_PER_TASK
"""Bytes of five images per class (section 4)."""
CUT = "The paper truncates where it should round"


def biases(channels: int) -> float:
    return float(channels * inputs.FLOAT_BYTES)


STATED_BIASES = biases(inputs.STATED_BIASES)
SENT_BIASES = biases(inputs.XCEPTION_CHANNELS)


def sharing_cells() -> list[PaperCell]:
    return cells("sharing", _parts() | _sums() | _numbers())


def _cut(total: float, step: float) -> Range:
    """Return the total with all digits below `step` dropped."""
    return Range.of(total // step * step)


def _parts() -> dict[Key, Ours]:
    head2toe = inputs.STATED_BIASES * inputs.CLASSES_PER_TASK * inputs.FLOAT_BYTES
    section4 = (
        "Section 4 and table 2 count five images per class instead: "
        f"{IMAGES_OF_CLASSES / 1e6:.1f} MB, 49 times as much"
    )
    return {
        ("last layer weights", "bytes"): Ours(
            Range.of(HEAD), "2048 × c × 4", remark="without the head's biases; c is the number of classes per task"
        ),
        ("BB biases", "bytes"): Ours(Range.of(STATED_BIASES), "17,472 × 4"),
        ("GMMC clusters", "bytes"): Ours(
            Range.of(CLUSTERS), "k × (2048 + 2048) × 4", _cut(CLUSTERS, 1e3), f"{CUT}: 409,600 bytes"
        ),
        ("optional: Head2toe", "bytes"): Ours(Range.of(head2toe), "17,472 × c × 4"),
        ("optional: AR pattern", "bytes"): Ours(Range.of(inputs.IMAGE_BYTES), "299 × 299 × 3"),
        ("alternative: 5 images/task for MAHA", "bytes"): Ours(
            Range.of(IMAGES_OF_TASK), "5 × 299 × 299 × 3", remark=section4
        ),
    }


def _sums() -> dict[Key, Ours]:
    sums = {}
    for anchor, size, step in (("GMMC", CLUSTERS, 1e3), ("MAHA", IMAGES_OF_TASK, 1e4)):
        for name, extra in (("+ BB", STATED_BIASES), (", no BB", 0.0)):
            total = HEAD + size + extra
            row = f"all, {anchor} {name}" if extra else f"all, {anchor}{name}"
            formula = f"head + {'clusters' if anchor == 'GMMC' else '5 images'}{' + biases' if extra else ''}"
            sums[row, "bytes"] = Ours(Range.of(total), formula, _cut(total, step), f"{CUT}: {total:,.0f} bytes")
    most = HEAD + IMAGES_OF_CLASSES + SENT_BIASES
    sums["upper limit per task", "bytes"] = Ours(
        Range.of(most),
        "head + 5 images per class (section 4) + biases",
        Range.of(HEAD + IMAGES_OF_TASK + STATED_BIASES),
        "five images per task, as in appendix G; table 2's bytes per task are 33 times the limit",
    )
    return sums


def _numbers() -> dict[Key, Ours]:
    weights = Range.of(inputs.XCEPTION_PARAMETERS * inputs.FLOAT_BYTES)
    middle = Range.of(8 * 3 * 728)
    return {
        ("classes per task", "number"): Ours(Range.of(inputs.CLASSES_PER_TASK), "5,033 / 102"),
        ("BB biases", "number"): Ours(
            Range.of(inputs.XCEPTION_CHANNELS),
            "one for each output channel of each convolution (section 4)",
            middle,
            "only the pointwise convolutions of the middle flow: 8 blocks × 3 × 728",
            "Table 2's bytes include all 50,312 (see the notes of table 2)",
        ),
        ("neurons of Xception", "number"): Ours(
            Range.of(inputs.XCEPTION_CHANNELS),
            "output channels of all its convolutions",
            remark="23,048 belong to depthwise convolutions, 27,168 to pointwise, 96 to plain ones; none is 22k",
        ),
        ("parameters of Xception", "number"): Ours(Range.of(inputs.XCEPTION_COUNTED), "counted in the network"),
        ("Xception's weights (EWC)", "bytes"): Ours(weights, "22.9 M × 4"),
        ("SUPSUP's own task mapper, GPU memory", "bytes"): Ours(
            remark="10 GB for each of 102 tasks; the paper does not say what needs them"
        ),
    }
