"""Matching classes by sight: images of a known class find it, others find none, and names are checked."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from skillmesh.core import Core
from skillmesh.data.demo import write_demo_tasks
from skillmesh.data.folder import survey_task
from skillmesh.errors import DataError
from skillmesh.learning.class_names.encoders import Letters
from skillmesh.module.teachers import claimed
from skillmesh.synergy.matching import FEWEST, BankView, by_both, by_sight

NewAgent = Callable[..., Core]


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """New images of dice under meaningless names."""
    folder = tmp_path_factory.mktemp("renamed")
    write_demo_tasks(folder, train=6, val=1, test=1, names=["dice"], seed=7)
    for index, cls in enumerate(sorted((folder / "dice/train").iterdir())):
        cls.rename(folder / "dice/train" / f"{'qwertz'[index]} {cls.name}")
    shutil.rmtree(folder / "dice/val")
    shutil.rmtree(folder / "dice/test")
    return folder / "dice"


@pytest.fixture(scope="module")
def view(taught: Core, renamed: Path) -> BankView:
    return BankView.of(taught, survey_task(renamed, hold_out=()))


def test_most_new_images_of_a_known_class_land_on_it(view: BankView) -> None:
    sightings = by_sight(view)
    assert all(s.learned_task == "dice" for s in sightings)
    assert sum(s.target.endswith(s.learned) for s in sightings) > len(view.classes) / 2
    assert [s.share for s in sightings] == sorted((s.share for s in sightings), reverse=True)


def test_images_that_are_not_answered_count_for_no_class(view: BankView) -> None:
    before = by_sight(view)
    strange = view.classes.index(before[0].target)
    unanswered = view.mapped.unanswered | (view.labels == strange)
    assert view.mapped.known[view.labels == strange].max() > 0.5  # so these are called unsure, and not unknown
    assert by_sight(replace(view, mapped=replace(view.mapped, unanswered=unanswered))) == before[1:]


def test_the_share_is_relative_to_all_images_and_must_be_exceeded(view: BankView) -> None:
    for s in by_sight(view, least=0.0):
        target = view.classes.index(s.target)
        rows = np.flatnonzero(view.labels == target)
        place = next(i for i, m in enumerate(view.modules) if m.card.task == s.learned_task)
        known = view.modules[place].card.classes.index(s.learned)
        hits = (view.mapped.task[rows] == place) & (view.predicted[rows] == known) & ~view.mapped.unanswered[rows]
        assert s.share == hits.mean() > 0
        assert s.images == len(rows)
    assert by_sight(view, least=1.0) == []


def test_too_few_images_give_no_match(taught: Core, renamed: Path) -> None:
    few = BankView.of(taught, survey_task(renamed, hold_out=()), FEWEST - 1)
    assert by_sight(few) == []
    with pytest.raises(DataError, match="one or more"):
        BankView.of(taught, survey_task(renamed, hold_out=()), 0)


@pytest.fixture(scope="module")
def mislabelled(renamed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dice whose names are right except for one: the images of six show one."""
    folder = tmp_path_factory.mktemp("mislabelled") / "mislabelled"
    for cls in sorted((renamed / "train").iterdir()):
        name = cls.name.partition(" ")[2]
        if name and name != "six":
            shutil.copytree(cls, folder / name)
    shutil.copytree(folder / "one", folder / "six")
    return folder


def test_a_match_by_name_stays_unless_the_images_contradict_it(taught: Core, mislabelled: Path) -> None:
    view = BankView.of(taught, survey_task(mislabelled, hold_out=()))
    sightings = by_both(view, Letters(), 1.0)
    matched = {s.target for s in sightings if s.learned_task == "dice"}
    assert "six" not in matched, "the images of six show one"
    assert matched == {name for name in view.classes if name != "six"}
    assert all(s.agreement >= s.even for s in sightings)


def test_the_name_decides_if_there_are_too_few_images(taught: Core, mislabelled: Path) -> None:
    few = BankView.of(taught, survey_task(mislabelled, hold_out=()), FEWEST - 1)
    assert "six" in {s.target for s in by_both(few, Letters(), 1.0)}


class TestTheCommand:
    def test_compares_images_by_default_if_there_are_images_and_a_bank(
        self, command, taught: Core, mislabelled: Path
    ):
        home = ("--home", taught.home, "--encoder", "letters", "--threshold", "1", "--json")
        both, names = (
            command("classes", "match", mislabelled, "dice", *more, *home).json for more in ((), ("--by", "name"))
        )
        assert (both["by"], names["by"]) == ("both", "name")
        assert {m["learned"] for m in names["matches"]} - {m["learned"] for m in both["matches"]} == {"six"}

    def test_lists_a_first_whichever_side_has_images(self, command, taught: Core, renamed: Path):
        home = ("--by", "sight", "--home", taught.home, "--json")
        one, other = (
            command("classes", "match", *sides, *home).json for sides in ((renamed, "dice"), ("dice", renamed))
        )
        assert one["share"] == 0.5
        assert one["matches"]
        assert [(m["learned"], m["target"]) for m in one["matches"]] == [
            (m["target"], m["learned"]) for m in other["matches"]
        ]

    def test_uses_the_whole_bank_if_b_is_left_out(self, command, taught: Core, renamed: Path):
        report = command("classes", "match", renamed, "--by", "sight", "--home", taught.home, "--json").json
        assert {m["target_task"] for m in report["matches"]} == {"dice"}
        shown = command("classes", "match", renamed, "--by", "sight", "--home", taught.home)
        assert shown.out.splitlines()[0].split()[-4:] == ["score", "images", "share", "agreement"]

    def test_matching_by_sight_without_images_is_refused(self, command, taught: Core):
        ran = command("classes", "match", "dice", "latin", "--by", "sight", "--home", taught.home)
        assert ran.code == 1
        assert "images on one side" in ran.err

    @pytest.mark.parametrize("threshold", ["0", "5", "nan"])
    def test_refuses_a_threshold_outside_its_range(self, command, taught: Core, mislabelled: Path, threshold: str):
        words = ("classes", "match", mislabelled, "dice", "--encoder", "letters", "--threshold", threshold)
        for by in ("both", "name"):
            ran = command(*words, "--by", by, "--home", taught.home, "--json")
            assert ran.code == 1
            assert "above 0 and at most 1" in ran.err

    def test_compares_with_one_teachers_task_if_two_share_its_name(
        self, command, new_agent: NewAgent, renamed: Path, tmp_path: Path
    ):
        student, ids = new_agent("student"), {}
        for seed in range(2):
            write_demo_tasks(tmp_path / str(seed), train=5, val=2, test=1, names=["dice"], seed=seed)
            teacher = new_agent("anna")
            module, _ = teacher.learn(tmp_path / str(seed) / "dice")
            ids[f"dice@{claimed(module.card)}"] = student.import_bytes(teacher.bank.file_of(module)).id
        home = ("--by", "sight", "--share", "0", "--home", student.home, "--json")
        matches = command("classes", "match", renamed, *home).json["matches"]
        assert matches
        assert all(ids[m["target_task"]] == m["module"] for m in matches)
        for task in ids:
            of_task = command("classes", "match", renamed, task, *home).json["matches"]
            assert of_task == [m for m in matches if m["target_task"] == task]
        student.merge([*ids], "cubes")
        for task in ("cubes", *ids):  # a part stands for the merged task
            of_task = command("classes", "match", renamed, task, *home).json["matches"]
            assert {m["target_task"] for m in of_task} == {"cubes"}


@pytest.mark.parametrize("threshold", [0.0, 5.0, float("nan")])
def test_matching_by_name_and_sight_refuses_a_threshold_outside_its_range(
    view: BankView, threshold: float
) -> None:
    with pytest.raises(DataError, match="above 0 and at most 1"):
        by_both(view, Letters(), threshold)
