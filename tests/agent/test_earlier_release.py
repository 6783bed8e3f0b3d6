"""Files of an earlier release still open, import and answer the same.

`tests/fixtures/release-0.1` was made by commit cd30a09, the last one before the packages were rearranged; make.txt
beside it is the program that made it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from skillmesh.core import Core

pytestmark = pytest.mark.long

RELEASE = Path(__file__).parents[1] / "fixtures" / "release-0.1"
ANSWERS = json.loads((RELEASE / "answers.json").read_text())


@pytest.fixture
def old(tmp_path: Path, one_network: None) -> Core:
    home = shutil.copytree(RELEASE / "home", tmp_path / "home")
    return Core(home)


def answers_as_before(agent: Core, task: str | None = None) -> None:
    for name, before in ANSWERS.items():
        if task in (None, before["task"]):
            answer = agent.answer(RELEASE / "images" / name)
            assert (answer.task, answer.label, answer.unknown) == (
                before["task"],
                before["label"],
                before["unknown"],
            )
            # On another machine, sums may differ in their last digits.
            assert answer.confidence == pytest.approx(before["confidence"], abs=1e-3)


def test_a_home_of_an_earlier_release_answers_as_it_did(old: Core) -> None:
    assert {module.card.task for module in old.bank} == {"shapes", "dice"}
    assert old.bank.find("dice").card.note == "from the release before"
    answers_as_before(old)


def test_a_home_of_an_earlier_release_can_learn_more(old: Core, tiny_tasks: Path) -> None:
    old.learn(tiny_tasks / "latin")
    assert {module.card.task for module in old.tasks()} == {"shapes", "dice", "latin"}
    assert old.forget("shapes").card.task == "shapes"


def test_a_module_of_an_earlier_release_is_imported_and_answers(new_agent: Callable[..., Core]) -> None:
    agent = new_agent("bob")
    assert agent.import_file(RELEASE / "dice.skill").card.teacher == "home"
    answers_as_before(agent, "dice")
