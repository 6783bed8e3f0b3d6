"""How the paper's list of 107 datasets becomes 102 tasks, 5,033 classes and 2,041,225 training images."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from skillmesh_challenge.paper import inputs

TRAIN_PER_TASK, TEST_PER_TASK = 54_000, 6_000
"""Appendix A: of each of c classes round(54000/c) images for training, round(6000/c) for validation and test."""
DRAWN_CLASSES = 500
DRAWN_FROM = "iNaturalist_Insecta"


@dataclass(frozen=True)
class Dataset:
    """One row of the list of datasets."""

    number: int
    name: str
    classes: int
    train: int
    val: int
    test: int

    @property
    def images(self) -> int:
        return self.train + self.val + self.test

    @property
    def keeps_the_rule(self) -> bool:
        """Whether the dataset has no more images than appendix A allows for its classes."""
        most_train = self.classes * round(TRAIN_PER_TASK / self.classes)
        most_test = self.classes * round(TEST_PER_TASK / self.classes)
        return self.train <= most_train and max(self.val, self.test) <= most_test


@cache
def listed() -> tuple[Dataset, ...]:
    """Return all 107 rows, in the list's order."""
    lines = files("skillmesh_challenge").joinpath("skill102.csv").read_text(encoding="utf-8").splitlines()
    return tuple(
        Dataset(int(number), name, *map(int, sizes)) for number, name, *sizes in list(csv.reader(lines))[1:]
    )


def skill102() -> list[Dataset]:
    """Return the paper's tasks: the first 102 rows, Insecta with the 500 classes that appendix A draws."""
    chosen = listed()[: inputs.TASKS]
    return [replace(d, classes=DRAWN_CLASSES) if d.name == DRAWN_FROM else d for d in chosen]


def sums(datasets: Sequence[Dataset]) -> dict[str, int]:
    counted = {
        key: sum(getattr(d, key) for d in datasets) for key in ("classes", "train", "val", "test", "images")
    }
    return {"tasks": len(datasets)} | counted


def account() -> dict[str, Any]:
    """Return the sums of the list beside the paper's, and the rows that are left out."""
    paper = {
        "tasks": inputs.TASKS,
        "classes": inputs.CLASSES,
        "train": inputs.TRAIN_IMAGES,
        "val": inputs.VAL_IMAGES,
        "test": inputs.TEST_IMAGES,
        "images": inputs.TRAIN_IMAGES + inputs.VAL_IMAGES + inputs.TEST_IMAGES,
    }
    return {
        "steps": [
            {"what": "all rows of the list", **sums(listed())},
            {"what": "the first 102 rows", **sums(listed()[: inputs.TASKS])},
            {"what": "the first 102 rows, Insecta with 500 classes", **sums(skill102())},
            {"what": "the paper", **paper},
        ],
        "left_out": [d.name for d in listed()[inputs.TASKS :]],
        "against_the_rule": [d.name for d in listed() if not d.keeps_the_rule],
        "against_the_rule_as_used": [d.name for d in skill102() if not d.keeps_the_rule],
        "known": KNOWN,
        "unknown": UNKNOWN,
    }


KNOWN = [
    "The 102 tasks are the first 102 rows of the list. The last five rows (four of iNaturalist, and Office-Home "
    "Real World) are left out.",
    "The list gives iNaturalist Insecta the 2,526 classes that were published. With the 500 classes that the "
    "paper drew, the classes add up to 5,033. The list's image numbers for Insecta are those of 500 classes: "
    "54,000 = 500 × 108 and 6,000 = 500 × 12; 2,526 classes would have 53,046 and 5,052.",
    "The list's 102 rows and the paper have the same number of images in total, 2,528,153.",
    "Sizes named in the paper's text agree with the list: 8,185 flowers, 15,524 scenes, and 18, 252 and 18 test "
    "images of Dragon Ball, Office-Home Art and Malacca.",
    "All rows respect appendix A's limit for a whole task, except Insecta, Aves and Plantae with all their "
    "classes. These three were cut to 500 classes, although the appendix names only Insecta. Aves and Plantae are "
    "among the five rows left out.",
    "Rows below 54,000 images seem not to be cut at all, although the rule would cut their largest classes. For "
    "example, Diabetic Retinopathy has 35,126 images, which is all that its publisher labelled; one of its "
    "classes is said to have 25,810 images (we did not check this).",
]
UNKNOWN = [
    "Six images count as training images in the paper, but as validation (3) and test (3) images in the list, "
    "which has 2,041,219, 243,467 and 243,467. We do not know in which rows.",
    "Which 500 classes of Insecta were drawn, and which images of each class: the paper gives no seed.",
    "Why the five rows were left out: the paper does not say.",
]
