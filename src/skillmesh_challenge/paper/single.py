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
"""Cost of training on one image, in forward passes: each epoch has one, and a backward pass that costs two."""
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
            ours[row, column] = Ours(value, "training MACs / training MACs of the reference, both as printed")
    return cells("single", ours)


def _training(row: str, printed: Range) -> Ours:
    if row.startswith("LLL"):
        return _head_only(row) if "no BB" in row else _biases(row)
    if row == "ER":
        return _replay(printed)
    if row == "SUPSUP":
        return _supsup()
    if row == "PSP":
        each = printed.middle / inputs.TRAIN_IMAGES
        return Ours(
            remark=f"the printed figure is {each:.2E} MACs per image with ResNet-18; the number of epochs is not "
            "stated"
        )
    passes = printed.middle / PASS
    return Ours(
        remark=f"the printed figure is {passes:.1f} forward passes of Xception (8.42 GMACs) per image; the paper "
        "does not derive this number"
    )


def _head_only(row: str) -> Ours:
    solved = single_agent(row)
    each = solved / inputs.TRAIN_IMAGES / 1e9
    return Ours(
        Range.of(float(inputs.TRAIN_IMAGES * inputs.XCEPTION_PASS)),
        "2,041,225 images × one forward pass of Xception (8.355 GMACs, products only)",
        Range.of(solved),
        f"{each:.3f} GMACs per image, as table 2's efficiency implies. Xception with norms, activations and pools "
        "takes 8.42; the rest would be head and anchor, for which the paper gives no breakdown",
    )


def _biases(row: str) -> Ours:
    return Ours(
        reached=Range.of((TRAINING_PASSES + 1) * PASS),
        assumption=f"a guess: {EPOCHS} epochs, each with a forward pass (8.42 GMACs) and a backward pass of twice "
        "its cost, and one more forward pass for the anchor",
        remark=f"Table 2's efficiency implies {single_agent(row):.4E}. Training biases needs no gradients of "
        "weights, so a backward pass could cost the same as a forward pass",
    )


def _replay(printed: Range) -> Ours:
    plain = TRAINING_PASSES * PASS / inputs.TASKS
    value, finer = (total_time(share, PRINTED_PAIRS) * plain for share in (0.04, STATED_GAMMA))
    above = [f"{100 * (number / printed.middle - 1):.1f} %" for number in (value, finer)]
    return Ours(
        Range.of(value),
        f"304 / 102 (appendix D) × 2,041,225 images × {TRAINING_PASSES} passes (a guess: {EPOCHS} epochs of 3) "
        "× 8.42 GMACs",
        remark=f"{above[0]} above the printed figure; {above[1]} above it with gamma = 10/254",
    )


def _supsup() -> Ours:
    return Ours(
        reached=Range.of(120 * inputs.TRAIN_IMAGES * inputs.RESNET50_PASS_PTFLOPS),
        assumption="a guess: 40 epochs, each costing 3 forward passes of ResNet-50 (4.12 GMACs)",
    )
