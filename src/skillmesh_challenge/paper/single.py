"""The paper's table 1: one agent learns all 102 tasks. The paper gives no formula for its MACs, and no epochs."""

from __future__ import annotations

from skillmesh_challenge.paper import inputs
from skillmesh_challenge.paper.cells import Key, Ours, PaperCell, cells, printed_ranges
from skillmesh_challenge.paper.figures import Range
from skillmesh_challenge.paper.parallel import REFERENCE, single_agent
from skillmesh_challenge.paper.replay import PRINTED_PAIRS, STATED_GAMMA, total_time

EPOCHS = 30
"""A guess: the only number of epochs for training from scratch in the text (section 6.2)."""
TRAINING_PASSES = 3 * EPOCHS
"""One forward pass and twice its cost backward, for gradients of weights, in every epoch."""
PASS = inputs.TRAIN_IMAGES * inputs.XCEPTION_PASS_PTFLOPS


def single_cells() -> list[PaperCell]:
    table = printed_ranges("single")
    ours: dict[Key, Ours] = {}
    for row, column in table:
        if column == "training MACs":
            ours[row, column] = _training(row, table[row, column])
        elif column == "CPU usage":
            usage = table[row, "training MACs"] / table[REFERENCE, "training MACs"]
            value = Range.of(1.0) if row == REFERENCE else usage
            ours[row, column] = Ours(value, "training MACs / those of the reference, as printed")
    return cells("single", ours)


def _training(row: str, printed: Range) -> Ours:
    if row.startswith("LLL"):
        return _head_only(row) if "no BB" in row else _biases(row)
    if row == "ER":
        return _replay(printed)
    if row == "SUPSUP":
        return _supsup()
    if row == "PSP":
        return Ours(remark=f"{printed.middle / inputs.TRAIN_IMAGES:.2E} per image of ResNet-18; epochs not stated")
    passes = printed.middle / PASS
    return Ours(remark=f"{passes:.1f} passes of Xception (8.42 GMACs) per image; how they come about is not said")


def _head_only(row: str) -> Ours:
    solved = single_agent(row)
    each = solved / inputs.TRAIN_IMAGES / 1e9
    return Ours(
        Range.of(float(inputs.TRAIN_IMAGES * inputs.XCEPTION_PASS)),
        "2,041,225 images × one pass of Xception (8.355 GMACs, products only)",
        Range.of(solved),
        f"{each:.3f} GMACs per image, as table 2's efficiency needs; Xception with norms, activations and pools "
        "is 8.42, the rest is head and anchor, which nothing breaks down",
    )


def _biases(row: str) -> Ours:
    return Ours(
        reached=Range.of((TRAINING_PASSES + 1) * PASS),
        assumption=f"a guess: {EPOCHS} epochs of one pass forward and twice that backward, and one pass for the "
        "anchor, at 8.42 GMACs",
        remark=f"Table 2's efficiency needs {single_agent(row):.4E}; no weight's gradient is needed, so once "
        "backward would do",
    )


def _replay(printed: Range) -> Ours:
    plain = TRAINING_PASSES * PASS / inputs.TASKS
    value, finer = (total_time(share, PRINTED_PAIRS) * plain for share in (0.04, STATED_GAMMA))
    above = [f"{100 * (number / printed.middle - 1):.1f} %" for number in (value, finer)]
    return Ours(
        Range.of(value),
        f"304 / 102 (appendix D) × {TRAINING_PASSES} passes (a guess: {EPOCHS} epochs) × 8.42 GMACs",
        remark=f"{above[0]} above the printed one; with gamma = 10/254 {above[1]}",
    )


def _supsup() -> Ours:
    return Ours(
        reached=Range.of(120 * inputs.TRAIN_IMAGES * inputs.RESNET50_PASS_PTFLOPS),
        assumption="a guess: 40 epochs × 3 passes of ResNet-50 (4.12 GMACs)",
    )
