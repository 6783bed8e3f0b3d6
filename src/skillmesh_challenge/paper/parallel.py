"""The paper's table 2: 102 tasks on many agents.

By its caption, each of 51 agents teaches two tasks and receives a hundred. But its figures are those of 102 agents
with one task each: this explains all but the bytes of SUPSUP. Only the efficiency differs further: it counts the
bytes of one received task instead of 101, and the student's work 101 times instead of once. Its many digits let us
solve for the cost of a single agent, of which table 1 prints three digits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from skillmesh_challenge.paper import inputs, sharing
from skillmesh_challenge.paper.cells import Key, Ours, PaperCell, cells, printed_ranges
from skillmesh_challenge.paper.figures import Range

REFERENCE = "LLL, no BB, MAHA"
RECEIVED = inputs.TASKS - inputs.TASKS // inputs.AGENTS
"""Number of tasks an agent receives by the caption: all but its own two."""
RECEIVED_OF_102 = inputs.TASKS - 1
ALONE = "102 agents with one task each, instead of 51 with two"
STUDENT = inputs.MAHA_MACS_PER_IMAGE * inputs.CLASSES * inputs.IMAGES_PER_CLASS
"""MACs of a student: appendix C's MACs for each image it receives."""
STUDENT_PRINTED = inputs.MAHA_MACS_PER_IMAGE * inputs.IMAGES_PER_TASK
"""The same for the mean number of a task's training images, which is what the paper prints."""


STUDENT_PASSES = inputs.XCEPTION_PASS * inputs.CLASSES * inputs.IMAGES_PER_CLASS
"""MACs that the paper leaves out: a student must pass the images it receives through its backbone."""


@dataclass(frozen=True)
class Way:
    """A row of the table: bytes sent per task, and a student's work."""

    stated: float
    """Bytes per task according to the caption, section 4 and appendix G."""
    sent: float
    """Bytes per task that give the printed figures."""
    student: float = 0.0
    student_printed: float = 0.0
    twin: str = ""
    """The row of table 1 with the same cost for a single agent."""
    assumption: str = ""
    """Assumption on the bytes, in addition to 102 agents."""


ALL_BIASES = "biases of all 50,312 convolution outputs (201 KB), instead of 17,472 (70 KB)"
SUPSUP = "Parallel SUPSUP"
GMMC = sharing.HEAD + sharing.CLUSTERS
MAHA = sharing.HEAD + sharing.IMAGES_OF_CLASSES
WAYS = {
    "LLL, no BB, GMMC": Way(GMMC, GMMC, twin="LLL, no BB, GMMC"),
    "LLL, BB, GMMC": Way(
        GMMC + sharing.STATED_BIASES, GMMC + sharing.SENT_BIASES, twin="LLL, BB, GMMC", assumption=ALL_BIASES
    ),
    REFERENCE: Way(MAHA, MAHA, STUDENT, STUDENT_PRINTED, twin=REFERENCE),
    "LLL, BB, MAHA": Way(
        MAHA + sharing.STATED_BIASES,
        MAHA + sharing.SENT_BIASES,
        STUDENT,
        STUDENT_PRINTED,
        "LLL, BB, MAHA",
        ALL_BIASES,
    ),
    SUPSUP: Way(inputs.RESNET50_WEIGHTS / 8, inputs.SUPSUP_MASK_BYTES, twin="SUPSUP"),
}
SOLVED_FROM = {"no BB": REFERENCE, ", BB": "LLL, BB, MAHA"}
"""Rows from whose efficiency a single agent's cost is solved: maha's has the most significant digits."""


def overhead_in_efficiency(way: Way) -> float:
    """Return the MACs that the printed efficiencies add to a teacher's."""
    return inputs.ALPHA * way.sent + RECEIVED_OF_102 * way.student_printed


def single_agent(row: str) -> float:
    """Return the MACs of one agent that learns all 102 tasks by LLL, solved from an efficiency of table 2."""
    source = _source(row)
    efficiency = printed_ranges("parallel")[source, "efficiency"].middle
    return inputs.TASKS * overhead_in_efficiency(WAYS[source]) / (1 / efficiency - 1)


def _source(row: str) -> str:
    return next(source for part, source in SOLVED_FROM.items() if part in row)


def parallel_cells() -> list[PaperCell]:
    table, alone = printed_ranges("parallel"), printed_ranges("single")
    ours: dict[Key, Ours] = {}
    for row, way in WAYS.items():
        single = alone[way.twin, "training MACs"]
        ours[row, "teacher MACs"] = _teacher(single)
        ours[row, "bytes"] = _mask_bytes(way) if row == SUPSUP else _bytes(way)
        ours[row, "student MACs"] = _student(way)
        ours[row, "total MACs"] = _total(table, row)
        ours[row, "efficiency"] = _efficiency(row, way, single, table[row, "teacher MACs"])
        ours[row, "CPU usage"] = Ours(
            table[row, "total MACs"] / table[REFERENCE, "total MACs"] if row != REFERENCE else Range.of(1.0),
            "total MACs / total MACs of the reference, both as printed",
        )
    least = ours[REFERENCE, "efficiency"]
    ours["all four LLL rows", "efficiency"] = replace(least, remark="The lowest is MAHA without biases")
    return cells("parallel", ours)


def _teacher(single: Range) -> Ours:
    return Ours(
        single * (1 / inputs.AGENTS),
        "table 1's MACs / N, with N = 51",
        single * (1 / inputs.TASKS),
        f"{ALONE}: table 1's MACs / 102",
    )


def _bytes(way: Way) -> Ours:
    assumption = f"{ALONE}: each receives 101 tasks" + (f"; {way.assumption}" if way.assumption else "")
    return Ours(
        Range.of(RECEIVED * way.stated),
        "bytes of one task × 100 received tasks",
        Range.of(RECEIVED_OF_102 * way.sent),
        assumption,
    )


def _mask_bytes(way: Way) -> Ours:
    return Ours(
        Range.of(RECEIVED * way.stated),
        "one bit for each of ResNet-50's 25.5 million weights × 100 received tasks",
        remark="the printed bytes are 101 × 3.00 MB, which is 24.0 million bits per task; ResNet-50's "
        "convolutions have 23.5 million weights",
    )


def _student(way: Way) -> Ours:
    if not way.student:
        return Ours(Range.of(0.0), "students do no extra work")
    return Ours(
        Range.of(way.student),
        "250,000 MACs (appendix C) × 5 images × 5,033 classes",
        Range.of(way.student_printed),
        "250,000 MACs × 20,012, the mean number of training images per task",
        "Neither value includes the student's forward passes over the images it receives: "
        f"{STUDENT_PASSES:.2E} MACs",
    )


def _total(table: dict[Key, Range], row: str) -> Ours:
    parts = table[row, "teacher MACs"] + table[row, "bytes"] * inputs.ALPHA + table[row, "student MACs"]
    return Ours(parts, "teacher MACs + 1,000 × bytes + student MACs, all as printed")


def _efficiency(row: str, way: Way, single: Range, teacher: Range) -> Ours:
    """Return the efficiency; rows from which the cost was solved use the teacher's three printed digits."""
    stated = single.middle / inputs.AGENTS
    total = stated + inputs.ALPHA * RECEIVED * way.stated + way.student
    own = row == SUPSUP or _source(row) == row
    likely = teacher if own else Range.of(single_agent(row) / inputs.TASKS)
    cost = "the teacher's MACs as printed" if own else f"a cost of {single_agent(row):.4E} MACs for a single agent"
    extra = overhead_in_efficiency(way)
    return Ours(
        Range.of(stated / total),
        "table 1's MACs / (N × total MACs), with N = 51",
        Range(likely.low / (likely.low + extra), likely.high / (likely.high + extra)),
        f"{ALONE}; the bytes of one received task instead of 101"
        + ("; the student's work counted 101 times" if way.student else "")
        + f"; {cost}",
        _with_passes(single.middle, way) if way.student else "",
    )


def _with_passes(single: float, way: Way) -> str:
    """Return the caption's efficiency with no cost left out, for its 51 agents and for 102."""
    efficiencies = []
    for agents in (inputs.AGENTS, inputs.TASKS):
        received = inputs.TASKS - inputs.TASKS // agents
        passes = STUDENT_PASSES * received / inputs.TASKS
        teacher = single / agents
        efficiencies.append(teacher / (teacher + inputs.ALPHA * received * way.stated + way.student + passes))
    return (
        "With the student's forward passes over the images it receives, the caption's formula gives "
        "{:.2f} ({:.2f} with 102 agents)"
    ).format(*efficiencies)
