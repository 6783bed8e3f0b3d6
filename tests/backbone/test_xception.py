"""The paper's backbone from end to end, on weights that the test makes: calibrate, learn, answer."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from pathlib import Path

import numpy as np
from PIL import Image

from skillmesh.backbone.calibrating import calibrate_on
from skillmesh.backbone.torch_network import TorchNetwork
from skillmesh.common.choices import Adaptation
from skillmesh.core import Core
from skillmesh.store.home import create_home

pytestmark = pytest.mark.long

COLOURS = {
    "lights": {"red": (200, 30, 30), "blue": (30, 30, 200)},
    "papers": {"white": (240,) * 3, "black": (10,) * 3},
}


def paint(folder: Path, colours: dict[str, tuple[int, int, int]], images: int = 4) -> Path:
    """Draw a task whose classes even a network with random weights can distinguish."""
    rng = np.random.default_rng(0)
    for name, colour in colours.items():
        (folder / name).mkdir(parents=True)
        for number in range(images):
            noise = np.kron(
                rng.integers(-40, 41, (8, 8, 3)), np.ones((8, 8, 1))
            )  # plain ones would count as copies
            Image.fromarray(np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)).save(
                folder / name / f"{number}.png"
            )
    return folder


@pytest.mark.slow
def test_xception_learns_and_answers_on_random_weights(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from skillmesh.backbone.building import import_timm

    torch.manual_seed(0)
    weights, calibration = tmp_path / "xception.safetensors", tmp_path / "calibration.safetensors"
    save_file(import_timm().create_model("legacy_xception", num_classes=0).state_dict(), weights)
    tasks = [paint(tmp_path / name, colours) for name, colours in COLOURS.items()]
    network = TorchNetwork("xception", weights, device="cpu")
    assert (network.features, network.width) == (2048, 4400)
    calibrate_on(network, tasks).save(calibration)
    create_home(tmp_path / "home", name="alice", backbone="xception", weights=weights, calibration=calibration)
    agent = Core(tmp_path / "home", device="cpu", cache_folder=tmp_path / "cache")
    for task in tasks:
        agent.learn(task)
    asked = [path for task in tasks for path in sorted(task.glob("*/0.png"))]
    found = [(a.best.task, a.best.label) for a in agent.answer(list(asked))]
    assert found == [(path.parent.parent.name, path.parent.name) for path in asked]
    plain = agent.bank.find("lights").size
    module, _ = agent.learn(tasks[0], replace=True, adaptation=Adaptation(mode="always", layers="last-4"))
    assert module.card.biases is not None
    assert module.card.biases[0] == 50_312
    assert plain < module.size <= plain + 45_000
    assert [(a.best.task, a.best.label) for a in agent.answer(list(asked))] == found
