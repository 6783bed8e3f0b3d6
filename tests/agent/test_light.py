"""What an agent does without PyTorch and scikit-learn, and what it says where it needs them.

The packages are hidden, so that these tests are the same whether they are installed or not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

import numpy as np
import pytest
from adapted import ANSWERS, IMAGES, SETTINGS, adapted_files
from meshes import Mesh, Node, answers, eventually
from running import PLAIN, Ran, failed

from skillmesh.anchors import KINDS
from skillmesh.anchors.gmmc import GmmcAnchor
from skillmesh.anchors.protocol import AnchorSettings, Labels
from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.numerics.arrays import Floats
from skillmesh.store.home import create_home

pytestmark = pytest.mark.light

Command = Callable[..., Ran]
HEAVY = ("torch", "torchvision", "timm", "sklearn", "onnx", "matplotlib")
INSTALL_TORCH = "needs PyTorch, which is not installed; install it with `pip install torch torchvision timm`"


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the packages that are not part of a plain installation look as if they were not installed."""
    for name in (*HEAVY, "open_clip", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def tripwires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put modules on the path of new processes that note their import; return the folder with the notes."""
    notes, modules = tmp_path / "imported", tmp_path / "modules"
    notes.mkdir()
    modules.mkdir()
    for name in HEAVY:
        note = f"import pathlib, traceback\npathlib.Path({str(notes / name)!r}).write_text(''.join("
        (modules / f"{name}.py").write_text(note + "traceback.format_stack()))\nraise ImportError(__name__)\n")
    before = [PLAIN["PYTHONPATH"]] if "PYTHONPATH" in PLAIN else []
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(modules), *before]))
    return notes


def in_a_process(*words: object) -> str:
    command = [sys.executable, "-m", "skillmesh", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout


def imported(notes: Path) -> dict[str, str]:
    return {note.name: note.read_text() for note in notes.iterdir()}


def test_the_tripwires_note_an_import(tripwires: Path):
    subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, env=os.environ)
    assert list(imported(tripwires)) == ["torch"]


@pytest.mark.parametrize("anchor", ["sketch", "maha"])
def test_learning_answering_and_measuring_import_nothing_heavy(
    tripwires: Path, tiny_tasks: Path, tmp_path: Path, anchor: str
):
    home = tmp_path / "home"
    in_a_process("init", "--home", home, "--anchor", anchor)
    in_a_process("learn", tiny_tasks / "dice", "--home", home)
    in_a_process("learn", tiny_tasks / "shapes", "--home", home, "--json")
    assert "'dice'" in in_a_process("ask", tiny_tasks / "dice/test", "--home", home, "--json").replace('"', "'")
    in_a_process("eval", tiny_tasks / "dice", tiny_tasks / "shapes", "--no-learn", "--home", home)
    in_a_process("eval", tiny_tasks / "dice", tiny_tasks / "greek", "--anchor", anchor)
    in_a_process("samples", tmp_path / "samples")
    assert imported(tripwires) == {}


def test_nodes_share_and_answer_also_with_adapted_tasks_and_import_nothing_heavy(
    tripwires: Path, tiny_tasks: Path, tmp_path: Path
):
    mesh = Mesh(tmp_path, [])
    try:
        ann, bob = (joined(mesh, name) for name in ("ann", "bob"))
        Core(ann.home).learn(tiny_tasks / "latin")
        for file in adapted_files(tmp_path):
            Core(bob.home).import_file(file)
        ann.start()
        bob.start()
        eventually(lambda: bob.live() == {"latin", "dice", "flowers", "shapes"})
        found = answers(bob, list(IMAGES.values()))
        assert [answer["label"] for answer in found] == [max(a, key=a.get) for a in ANSWERS.values()]
    finally:
        mesh.stop()
    assert imported(tripwires) == {}


def joined(mesh: Mesh, name: str) -> Node:
    home = mesh.folder / name
    create_home(home, name=name, **SETTINGS)
    MeshSettings.of({"trust": "open", "discovery_port": mesh.port, "sync_seconds": 2.0}).save(home)
    mesh.nodes.append(Node(home))
    return mesh.nodes[-1]


# Commands that need a package say so before they do anything.


@pytest.mark.parametrize(
    "words",
    [
        ("learn", "TASKS/dice", "--adapt", "auto", "--home", "NEW"),
        ("learn", "TASKS", "--each-folder", "--adapt", "always", "--adaptation", "head2toe", "--home", "NEW"),
        ("learn", "no such folder", "--adapt", "always", "--adaptation", "reprogramming", "--home", "NEW"),
        ("init", "--backbone", "resnet18", "--home", "NEW"),
        ("backbone", "resnet18"),
        ("calibrate", "no such folder", "--backbone", "resnet18", "--out", "NEW"),
        ("eval", "TASKS", "--backbone", "resnet18", "--out", "NEW"),
    ],
    ids=lambda words: " ".join(words[:4]),
)
def test_what_needs_torch_says_so_before_it_does_anything(
    hidden: None, command: Command, tiny_tasks: Path, tmp_path: Path, words: tuple[str, ...]
):
    places = {"TASKS": str(tiny_tasks), "NEW": str(tmp_path / "new")}
    typed = [word.replace("TASKS", places["TASKS"]).replace("NEW", places["NEW"]) for word in words]
    failed(command(*typed), INSTALL_TORCH)
    assert not (tmp_path / "new").exists()


def test_exporting_a_network_needs_more(hidden: None, command: Command, tmp_path: Path):
    ran = command("backbone", "lite0", "--export", tmp_path / "new")
    failed(
        ran, "exporting a network needs PyTorch and ONNX", "`pip install torch torchvision timm onnx onnxscript`"
    )
    assert not (tmp_path / "new").exists()


def test_the_encoder_clip_says_what_to_install(hidden: None, command: Command, tiny_tasks: Path):
    ran = command("classes", "match", tiny_tasks, tiny_tasks, "--by", "name", "--encoder", "clip")
    failed(ran, "the encoder 'clip' needs open_clip", "`pip install open_clip_torch`")


@pytest.mark.parametrize(
    "words", [("learn", "TASKS/dice"), ("learn", "TASKS", "--each-folder"), ("eval", "no such folder", "--anchor")]
)
def test_gmmc_says_that_learning_needs_scikit_learn(
    hidden: None, command: Command, tiny_tasks: Path, tmp_path: Path, words: tuple[str, ...]
):
    command("init", "--anchor", "gmmc", "--home", tmp_path / "home")
    typed = [word.replace("TASKS", str(tiny_tasks)) for word in words]
    more = ["gmmc"] if words[0] == "eval" else ["--home", tmp_path / "home"]
    failed(
        command(*typed, *more),
        "learning with the anchor 'gmmc' needs scikit-learn, which is not installed; ",
        "`pip install scikit-learn`",
    )
    assert Core(tmp_path / "home").tasks() == []


class OneCluster(GmmcAnchor):
    """The mixture of a single Gaussian, which needs no EM."""

    fitted_with = None

    @classmethod
    def fit(
        cls, x: Floats, labels: Labels, classes: int, settings: AnchorSettings, images: int | None = None
    ) -> Self:
        return cls(*(part.astype(np.float32) for part in (np.ones(1), x.mean(0)[None], x.var(0)[None] + 0.01)))


def test_tasks_of_gmmc_are_received_and_answer_without_scikit_learn(
    hidden: None, tiny_tasks: Path, new_agent: Callable[..., Core], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ann, bob = (new_agent(name, anchor="gmmc", representation="sqrt-features") for name in ("ann", "bob"))
    with monkeypatch.context() as patch:
        patch.setitem(KINDS, "gmmc", OneCluster)
        for name in ("dice", "shapes"):
            ann.learn(tiny_tasks / name)
    for name in ("dice", "shapes"):
        bob.import_file(ann.export(name, tmp_path / f"{name}.skill"))
    for name in ("dice", "shapes"):
        images = sorted((tiny_tasks / name).glob("train/*/*"))
        found = [(answer.task, answer.label) for answer in bob.answer(images)]
        assert found == [(name, image.parent.name) for image in images]
