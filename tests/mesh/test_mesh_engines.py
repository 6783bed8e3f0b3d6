"""Agents on ONNX Runtime and agents on PyTorch in one mesh: each answers with what the other has taught."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshes import SKILLMESH, Mesh, Node, answers, environment, eventually, same_answers

from skillmesh.common.config import MeshSettings
from skillmesh.store.home import create_home

pytest.importorskip("torch")
pytestmark = pytest.mark.long

ENGINES = ("onnx", "torch")
ADAPTATION = {"dice": "biases", "greek": "head2toe", "latin": "reprogramming"}


@pytest.fixture
def pair(tmp_path: Path, tiny_tasks: Path) -> Iterator[tuple[list[Node], dict[str, list[Path]]]]:
    """Yield a node of each engine, each with a plain and with adapted tasks, and each task's test images."""
    mesh, nodes = Mesh(tmp_path, []), []
    taught = {"onnx": ("shapes", "dice"), "torch": ("greek", "latin")}
    for engine in ENGINES:
        home = tmp_path / engine
        create_home(home, name=engine)
        MeshSettings.of({"trust": "open", "discovery_port": mesh.port, "sync_seconds": 2.0}).save(home)
        for task in taught[engine]:
            kind = ADAPTATION.get(task)
            words = ["--adapt", "always", "--adaptation", kind, "--epochs", "1"] if kind else []
            done = subprocess.run(
                [*SKILLMESH, "learn", str(tiny_tasks / task), *words, "--home", str(home)],
                capture_output=True,
                text=True,
                env=environment() | {"SKILLMESH_ENGINE": engine},
                check=False,
            )
            assert done.returncode == 0, done.stderr
        nodes.append(Node(home, engine=engine))
    mesh.nodes = nodes
    images = {task: sorted((tiny_tasks / task / "test").glob("*/*")) for task in ("shapes", *ADAPTATION)}
    yield nodes, images
    mesh.stop()


def test_nodes_of_both_engines_answer_what_the_other_was_taught(pair):
    nodes, images = pair
    for node in nodes:
        node.start()
    eventually(lambda: all(node.live() == set(images) for node in nodes), why="all modules arrive")
    for task, paths in images.items():
        assert same_answers(nodes, paths)
        assert any(each["guesses"][0]["task"] == task for each in answers(nodes[0], paths)), task
