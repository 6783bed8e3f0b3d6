"""The paper's appendices C and D: cost of replay, cost of the covariance, and where fitted lines reach zero."""

from __future__ import annotations

from itertools import accumulate

from skillmesh_challenge.paper import inputs
from skillmesh_challenge.paper.cells import Key, Ours, PaperCell, cells
from skillmesh_challenge.paper.datasets import skill102
from skillmesh_challenge.paper.figures import PaperFigure, Range

PAIRS = inputs.TASKS * (inputs.TASKS - 1) // 2
"""1 + 2 + … + (N − 1): each task is rehearsed once with every later one."""
PRINTED_PAIRS = (inputs.TASKS - 1) * (inputs.TASKS - 2) // 2
SLIP = "(N − 1)(N − 2)/2, which leaves out the last term: the sum ends at N − 1, not N − 2"
GAMMA = inputs.REPLAYED_PER_CLASS * inputs.CLASSES / inputs.TRAIN_IMAGES
"""Share of images kept with ten images of each class, 0 to 1."""
STATED_GAMMA = inputs.REPLAYED_PER_CLASS / inputs.STATED_IMAGES_PER_CLASS


def total_time(share: float, pairs: int = PAIRS, tasks: int = inputs.TASKS) -> float:
    """Return the time to learn all tasks, in units of one task, if this share of each task is rehearsed."""
    return tasks + share * pairs


def exact_time(kept_per_class: int | None) -> float:
    """Return the same time from the datasets' sizes and order; None keeps all images of each class."""
    datasets = skill102()
    kept = [d.train if kept_per_class is None else min(d.train, kept_per_class * d.classes) for d in datasets]
    rehearsed = sum(accumulate(kept[:-1]))
    trained = sum(d.train for d in datasets)
    return (trained + rehearsed) / (trained / len(datasets))


def tasks_until(images: int, per_class: int = inputs.IMAGES_PER_CLASS) -> int:
    """Return the number of tasks of the list after which `images` images have arrived, `per_class` per class."""
    totals = accumulate(per_class * d.classes for d in skill102())
    return next(number for number, total in enumerate(totals, start=1) if total >= images)


def replay_cells() -> list[PaperCell]:
    return cells("replay", _replay_inputs() | _replay_times())


def _replay_inputs() -> dict[Key, Ours]:
    return {
        ("sum of 1 to N-1 for N = 102", "number"): Ours(
            Range.of(PAIRS), "N(N − 1)/2", Range.of(PRINTED_PAIRS), SLIP
        ),
        ("images per task (S)", "number"): Ours(
            Range.of(inputs.IMAGES_PER_TASK),
            "2,041,225 / 102",
            remark="the printed number is an eighth of the mean. S cancels out, so no other figure depends on it",
        ),
        ("images per class", "number"): Ours(
            Range.of(inputs.TRAIN_IMAGES / inputs.CLASSES),
            "2,041,225 / 5,033",
            remark="254 is neither the mean nor the median over tasks, with 500 or all classes of Insecta",
        ),
        ("share of images rehearsed (gamma)", "number"): Ours(
            Range.of(GAMMA),
            "10 × 5,033 / 2,041,225",
            Range.of(STATED_GAMMA),
            "10 / 254, the paper's images per class",
        ),
        ("MACs per packet of 1500 bytes", "MACs"): Ours(Range.of(1500.0 * inputs.ALPHA), "1,500 × 1,000"),
    }


def _replay_times() -> dict[Key, Ours]:
    stated = "the paper's own gamma of 0.04 and its sum of 5,050"
    return {
        ("time for rehearsal", "in units of one task"): Ours(
            Range.of(GAMMA * PAIRS), "gamma × N(N − 1)/2", Range.of(0.04 * PRINTED_PAIRS), stated
        ),
        ("time for all tasks, gamma = 0.04", "in units of one task"): Ours(
            Range.of(total_time(GAMMA)),
            "N + gamma × N(N − 1)/2",
            Range.of(total_time(0.04, PRINTED_PAIRS)),
            stated,
            f"It is {exact_time(inputs.REPLAYED_PER_CLASS):.0f} with the sizes and the order of the paper's list "
            "of datasets, where tasks with many classes come early",
        ),
        ("time for all tasks, all images kept", "in units of one task"): Ours(
            Range.of(total_time(1.0)),
            "N + N(N − 1)/2",
            Range.of(total_time(1.0, PRINTED_PAIRS)),
            SLIP,
            f"It is {exact_time(None):,.0f} with the sizes and the order of the paper's list of datasets",
        ),
        ("increase when all images are kept", "factor"): Ours(
            Range.of(total_time(1.0) / inputs.TASKS),
            "(N + N(N − 1)/2) / N: compared with learning the same tasks without rehearsal",
            Range.of(total_time(1.0)),
            "compared with one task, learned by one of 102 parallel agents",
        ),
    }


def mapper_cells() -> list[PaperCell]:
    covariance = inputs.FEATURES * (inputs.FEATURES + 1) // 2
    line = PaperFigure("0.952").range / PaperFigure("0.0012").range
    return cells(
        "mapper",
        {
            ("tasks before the slope changes", "number"): Ours(
                Range.of(tasks_until(4000)),
                "tasks of the list until 5 images per class add up to 4,000",
                remark="after 12 tasks, 1,695 classes have sent 8,475 images, twice as many",
            ),
            ("images at which maha's slope changes", "number"): Ours(
                remark="read off a plot that is not in the text we have"
            ),
            ("maha MACs per image", "MACs"): Ours(
                Range.of(covariance),
                "2048 × 2049 / 2, the outer product of one image's features",
                remark="the text says that a counter measured it; it is an eighth of the products needed",
            ),
            ("tasks at which GMMC's line meets zero", "number"): Ours(line, "0.952 / 0.0012, as printed"),
            ("tasks at which MAHA's line meets zero", "number"): Ours(
                remark="the equation of this line is not printed"
            ),
        },
    )
