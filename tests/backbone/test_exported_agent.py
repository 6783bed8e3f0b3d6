"""A network that one machine exports with PyTorch is used by agents that have no PyTorch."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from running import PLAIN, Ran

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.long

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["timm"] = sys.modules["torchvision"] = None  # as if they were not installed
from skillmesh.cli import program
program()
"""


def without_torch(*words: object) -> str:
    """Run a command in a process that cannot import PyTorch; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *map(str, words)],
        capture_output=True,
        text=True,
        env=PLAIN,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_exported_resnet_learns_and_answers_without_torch(
    command: Callable[..., Ran], tiny_tasks: Path, tmp_path: Path
):
    from skillmesh.backbone.building import import_timm

    torch.manual_seed(0)
    weights, calibration, folder = tmp_path / "random.pth", tmp_path / "made.safetensors", tmp_path / "resnet"
    torch.save(import_timm().create_model("resnet18").state_dict(), weights)
    network = ("resnet18", "--weights", weights)
    assert command("calibrate", tiny_tasks, "--backbone", *network, "--out", calibration).code == 0
    exported = command("backbone", *network, "--calibration", calibration, "--export", folder)
    assert exported.code == 0, exported.err
    assert {file.name for file in folder.iterdir()} == {
        *("graph.onnx", "network.json", "weights.safetensors", "calibration.safetensors")
    }

    home = ("--home", tmp_path / "small-machine")
    without_torch("init", *home, "--backbone", folder)
    without_torch("learn", tiny_tasks / "dice", *home)
    images = sorted((tiny_tasks / "dice" / "test").glob("*/*"))
    answers = json.loads(without_torch("ask", *images, "--json", *home))["answers"]
    assert [answer["guesses"][0]["task"] for answer in answers] == ["dice"] * len(images)

    large = (
        "--home",
        tmp_path / "large-machine",
    )  # the same network, as PyTorch runs it, has the same fingerprint
    assert command("init", *large, "--backbone", *network, "--calibration", calibration).code == 0
    without_torch("export", "dice", tmp_path / "dice.skill", *home)
    assert command("import", tmp_path / "dice.skill", *large).code == 0
    theirs = command("ask", *images, "--json", *large).json["answers"]
    for ours, other in zip(answers, theirs, strict=True):
        assert ours["guesses"][0]["label"] == other["guesses"][0]["label"]
        assert ours["guesses"][0]["confidence"] == pytest.approx(other["guesses"][0]["confidence"], abs=0.01)


def test_ctrl_c_before_a_network_is_verified_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from skillmesh.backbone.exporting import export_network
    from skillmesh.backbone.network import load_torch_network
    from skillmesh.backbone.runtime import OnnxNetwork

    written = []

    def interrupted(folder: Path) -> None:
        written.extend(file.name for file in folder.iterdir())
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, before)

    monkeypatch.setattr(OnnxNetwork, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_network(load_torch_network("lite0", device="cpu"), tmp_path / "net")
    assert len(written) == 3
    assert not list((tmp_path / "net").iterdir())
