"""Links between real nodes: two teach halves of a task, a third links them, and all three answer the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from halves import dealt
from meshes import Mesh, Node, answers, eventually, same_answers

from skillmesh.core import Core
from skillmesh.data.folder import open_task

pytestmark = pytest.mark.long

NewAgent = Callable[..., Core]


def merged(node: Node) -> list[tuple[str, int]]:
    agent = Core(node.home)
    return [(joint.card.task, len(joint.parts)) for joint in agent.merged()]


def in_use(node: Node) -> int:
    return int(node.status()["in_use"])


@pytest.mark.slow
def test_two_agents_teach_a_third_links_and_all_answer_the_same(
    mesh: Mesh, new_agent: NewAgent, demo_tasks: Path, mixed: list[Path]
) -> None:
    nodes = [mesh.node(name=name) for name in ("ann", "bob", "cyd")]
    for node, half in zip(nodes, dealt(open_task(demo_tasks / "shapes"), 2), strict=False):
        Core(node.home).learn(half)
    Core(nodes[2].home).learn(demo_tasks / "dice")
    for node in nodes:
        node.start()
    eventually(lambda: mesh.converged(tasks=3))
    images = mixed[:12]
    for node in nodes:
        answers(node, images)  # from now on it has a mapper, which follows bank and links
    assert nodes[2].run("merge", "shapes@ann", "shapes@bob", "--name", "figures").returncode == 0
    eventually(lambda: all(in_use(node) == 2 for node in nodes))
    assert same_answers(nodes, images)
    assert any(len(answer["teacher"].split(" + ")) == 2 for answer in answers(nodes[2], images, named=True))
    assert all(merged(node) == [("figures", 2)] for node in nodes)

    late = mesh.node(name="late").start()  # receives the link from the agents present, not from its author
    nodes[2].stop()
    eventually(lambda: late.status()["live"] == 3)
    eventually(lambda: merged(late) == [("figures", 2)])
    assert same_answers([nodes[0], nodes[1], late], images)

    nodes[2].start()
    assert nodes[2].run("merge", "--undo", "figures").returncode == 0
    eventually(lambda: all(merged(node) == [] for node in (*nodes, late)))
    eventually(lambda: in_use(late) == 3)


@pytest.mark.slow
def test_an_extended_task_replaces_its_older_version_on_every_agent(mesh: Mesh, demo_tasks: Path) -> None:
    ann, bob = mesh.node(name="ann"), mesh.node(name="bob")
    agent = Core(ann.home)
    agent.learn(demo_tasks / "dice")
    for node in (ann, bob):
        node.start()
    eventually(lambda: mesh.converged(tasks=1))
    assert ann.run("learn", demo_tasks / "latin", "--continue", "dice").returncode == 0

    def held() -> list[tuple[int, int]]:
        return [(m.card.version, len(m.card.classes)) for m in Core(bob.home).bank]

    (module,) = Core(ann.home).bank
    eventually(lambda: held() == [(2, len(module.card.classes))])
    assert mesh.converged(tasks=1)
