"""One agent composes a task of what two others taught; all of them receive it and answer with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshes import Mesh, Node, answers, eventually

from skillmesh.core import Core
from skillmesh.data.demo import write_demo_tasks

pytestmark = pytest.mark.long


def taught_by(node: Node) -> list[str]:
    agent = Core(node.home)
    return sorted(m.card.task for m in agent.bank if m.card.teacher_key == agent.identity.public_key)


@pytest.mark.slow
def test_a_composed_task_reaches_all_agents_answers_survives_a_restart_and_is_withdrawn(
    mesh: Mesh, tmp_path: Path
) -> None:
    first, second = mesh.serve(0), mesh.serve(1)
    composer = mesh.node(name="composer").start()
    eventually(lambda: mesh.converged(tasks=4))
    ours, theirs = taught_by(first)[0], taught_by(second)[0]
    bank = Core(composer.home).bank
    label, other = bank.find(ours).card.classes[0], bank.find(theirs).card.classes[1]

    done = composer.run("compose", "mixed", f"{ours}:{label}=first of all", f"{theirs}:*")
    assert done.returncode == 0, done.stderr
    eventually(lambda: mesh.converged(tasks=5), why="all agents hold it, and none quarantines it")
    assert all("mixed" in node.live() for node in mesh.nodes)
    received = Core(first.home).bank.find("mixed")
    assert received.card.teacher == Core(composer.home).name
    assert received.card.origins[0] == (bank.find(ours).id, label)

    write_demo_tasks(tmp_path / "drawn", train=1, val=1, test=3, names=[ours, theirs])
    image = next((tmp_path / "drawn" / theirs / "test" / other).iterdir())
    told = answers(first, [image])[0]["guesses"][0]
    assert (told["task"], told["label"]) == (theirs, other), "its source answers where it is"
    assert first.run("forget", theirs).returncode == 0
    eventually(lambda: answers(first, [image])[0]["guesses"][0]["task"] == "mixed")
    said = answers(first, [image])
    assert said[0]["guesses"][0]["label"] == other

    first.kill()
    first.start()
    assert answers(first, [image]) == said

    assert composer.run("withdraw", "mixed").returncode == 0
    eventually(lambda: all("mixed" not in node.live() for node in mesh.nodes))
