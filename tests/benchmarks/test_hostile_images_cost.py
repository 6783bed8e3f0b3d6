"""Time and memory of `ask` and `learn` for hostile files, measured in a separate process."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import hostile_cases as cases
import pytest

pytestmark = pytest.mark.long

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("hostile_images")


FAST = (
    "png 13300² 16-bit grey",
    "png 13300² RGBA",
    "png 6300² 1 bit",
    "png 1900² RGBA turned",
    "jpeg 12000 × 9000",
    "jpeg 8160 × 6120 progressive, 3 layers",
    "webp 16383²",
    "tiff 6300² RGBA",
    "tiff with overlapping tags",
    "png with 45 MB of EXIF",
    "48 MB of nothing",
    "link to /dev/zero",
    "named pipe",
    "sparse file of 200 GB",
    "zip, bzip2, 40 MB stated as 0.1 MB",
    "zip, deflate, 2 GB stated as 0.1 MB",
    "zip with a list of a million",
)


BUSY = 6
"""Factor by which a machine may be slower while it runs other tests."""


def assert_bounded(measuring: Any, names: tuple[str, ...]) -> None:
    rows = list(measuring.measured(names))
    assert sorted(row.case for row in rows[::2]) == sorted(names)
    assert not [row for row in rows if row.takes_too_much_memory or row.seconds > BUSY * measuring.MOST_SECONDS]


def test_one_hostile_file_takes_little_time_and_memory_in_ask_and_learn(measuring: Any):
    assert_bounded(measuring, FAST)


@pytest.mark.slow
def test_every_hostile_file_and_a_folder_of_a_hundred_take_little_time_and_memory(measuring: Any):
    names = {*cases.IMAGES, *cases.PLACES, *cases.ZIPS, measuring.HUNDRED} - {*FAST}
    assert_bounded(measuring, tuple(sorted(names)))
