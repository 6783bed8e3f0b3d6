"""What a collection is: its datasets in order with their sizes, where it is to be had, how its files lie."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files

from skillmesh.errors import DataError


@dataclass(frozen=True)
class DatasetRow:
    """One dataset as the collection's list has it."""

    name: str
    classes: int
    train: int
    val: int
    test: int


@dataclass(frozen=True)
class Collection:
    """A benchmark made of datasets."""

    name: str
    title: str
    table: str
    """The list's file in this package."""
    count: int
    """How many rows of the list, from its top, belong to it."""
    source: str
    """Where it is to be had."""
    layout: str
    """How its files are expected to lie."""
    subsampled: bool = False
    """Whether classes and images are thinned out as the SKILL paper does."""
    val_as_test: bool = False
    """Whether its test images come without labels, so that those of `val` are tested on."""
    other_names: dict[str, str] = field(default_factory=dict)
    """Other names that a dataset's folder may have."""

    @cached_property
    def rows(self) -> tuple[DatasetRow, ...]:
        text = files("skillmesh_challenge").joinpath(self.table).read_text()
        sizes = ("num_classes", "train_size", "val_size", "test_size")
        rows = [
            DatasetRow(row["task_name"], *(int(row[size]) for size in sizes))
            for row in csv.DictReader(text.splitlines())
        ]
        return tuple(rows[: self.count])

    def folder_names(self, row: DatasetRow) -> tuple[str, ...]:
        return (row.name, self.other_names[row.name]) if row.name in self.other_names else (row.name,)


SKILL102 = Collection(
    name="skill102",
    title="SKILL-102, the paper's benchmark",
    table="skill102.csv",
    count=102,  # the list has 107; with these, and 500 classes of Insecta, there are the paper's 5,033 classes
    source="https://github.com/gyhandy/Shared-Knowledge-Lifelong-Learning",
    layout=(
        "DIR/<dataset>/{train,val,test}/<class>/… or DIR/<dataset>.zip with that inside, or the authors' "
        "collection: DIR/<dataset>/… listed by DIR/0_collection/all_images.sqlite"
    ),
    subsampled=True,
)
DECATHLON = Collection(
    name="decathlon",
    title="Visual Domain Decathlon",
    table="decathlon.csv",
    count=10,
    source="https://www.robots.ox.ac.uk/~vgg/decathlon/ (ImageNet at 72 pixels: https://image-net.org)",
    layout="DIR/<dataset>/{train,val}/<class number>/…, as its .tar files unpack; its test images have no labels",
    val_as_test=True,
    other_names={"imagenet12": "imagenet"},
)
COLLECTIONS = {made.name: made for made in (SKILL102, DECATHLON)}


def collection(name: str) -> Collection:
    if name not in COLLECTIONS:
        raise DataError(f"there is no dataset {name!r}; expected one of {', '.join(COLLECTIONS)}")
    return COLLECTIONS[name]
