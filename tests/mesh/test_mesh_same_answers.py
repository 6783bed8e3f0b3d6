"""Agents with equal live sets give bit-identical answers, however their modules arrived."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from meshes import Mesh, Node, answers, eventually

from skillmesh.core import Core
from skillmesh.data.demo import draw

pytestmark = pytest.mark.long

NewAgent = Callable[..., Core]


@pytest.fixture(scope="session")
def all_files(teachers: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the sixteen modules of the teachers."""
    folder = tmp_path_factory.mktemp("all-files")
    for home in teachers:
        for path in (home / "bank").glob("*.skill"):
            shutil.copy(path, folder)
    return sorted(folder.iterdir())


@pytest.fixture(scope="session")
def images(teachers: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return an image of each task that a teacher knows, and two of other tasks."""
    folder = tmp_path_factory.mktemp("images")
    found = []
    for home in teachers:
        for card in (module.card for module in Core(home).bank):
            found.append(folder / f"{card.task}.png")
            draw(card.task, card.classes[0], seed=77).save(found[-1])
    return found


def told(agent: Core, images: Sequence[Path]) -> str:
    """Return an agent's exact answers: guesses with raw confidences."""
    return json.dumps([answer.shared() for answer in agent.answer(images)])


def told_by(node: Node, images: Sequence[Path]) -> str:
    return json.dumps(answers(node, images))


def test_equal_live_sets_give_equal_answers_in_any_order_of_arrival(
    mesh: Mesh,
    new_agent: NewAgent,
    all_files: list[Path],
    images: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    forwards, mixed = new_agent("forwards"), new_agent("mixed")
    for path in all_files:
        forwards.import_file(path)
    said = told(forwards, images)
    for path in random.Random(5).sample(all_files, len(all_files)):
        Core(mixed.home).import_file(path)  # as after a restart each time
    mixed = Core(mixed.home)
    assert told(mixed, images) == said
    for path in all_files[3:6]:
        mixed.forget(path_task(mixed, path))
        assert told(mixed, images) != said, "answers come from what is live"
        mixed.import_file(path)
    assert told(mixed, images) == said

    monkeypatch.setenv("SKILLMESH_CACHE", str(tmp_path / "own-cache"))  # the node describes the images itself
    teachers = [mesh.serve(index) for index in range(2)]
    receiver = mesh.node(name="receiver")
    receiver.engine = None  # that of this process: bit-identical answers hold within one engine
    receiver.start()
    eventually(receiver.live)
    receiver.kill()
    for path in all_files[:10:-1]:  # some of them may also arrive over the mesh
        Core(receiver.home).import_file(path)
    receiver.start()
    told_by(receiver, images)  # from now on it has a mapper, which follows the bank
    for path in all_files[10::-1]:
        Core(receiver.home).import_file(path)
    eventually(lambda: receiver.status()["in_use"] == 16)
    assert told_by(receiver, images) == said
    task = min(teachers[0].live())
    assert receiver.run("forget", task).returncode == 0
    eventually(lambda: receiver.status()["in_use"] == 15)
    assert told_by(receiver, images) != said
    assert receiver.run("remember", task).returncode == 0
    eventually(lambda: receiver.status()["in_use"] == 16)
    assert told_by(receiver, images) == said


def path_task(agent: Core, path: Path) -> str:
    module = agent.bank.get(path.stem)
    assert module is not None
    return f"{module.card.task}@{module.card.teacher_key}"
