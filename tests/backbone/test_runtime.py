"""The network on ONNX Runtime: the same descriptors as PyTorch's, alone or in company, adapted or not."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from skillmesh.backbone.network import load_network
from skillmesh.backbone.runtime import KEPT, OnnxNetwork
from skillmesh.backbone.spec import CARD, GRAPH, WEIGHTS, choose_toes
from skillmesh.errors import BackboneError

torch = pytest.importorskip("torch")
from skillmesh.backbone.torch_network import TorchNetwork  # noqa: E402

STEP = 2**-10
"""Relative distance of neighbouring float16 numbers."""


@pytest.fixture(scope="module")
def network() -> OnnxNetwork:
    return OnnxNetwork.lite0()


@pytest.fixture(scope="module")
def torch_lite0() -> TorchNetwork:
    return TorchNetwork("lite0", device="cpu")


@pytest.fixture(scope="module")
def images(network: OnnxNetwork) -> np.ndarray:
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (6, 14, 14, 3), dtype=np.uint8)
    return np.ascontiguousarray(coarse.repeat(16, axis=1).repeat(16, axis=2))


@pytest.fixture(scope="module")
def added(network: OnnxNetwork) -> np.ndarray:
    return (0.1 * np.random.default_rng(1).standard_normal(network.bias_count)).astype(np.float32)


def steps_apart(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest difference in float16 steps; numbers near zero count as being of size 0.01."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(np.max(np.abs(a - b) / (STEP * np.maximum(0.01, np.abs(b)))))


def test_it_is_the_same_network_as_torch_has(network: OnnxNetwork, torch_lite0: TorchNetwork):
    for name in ("fingerprint", "width", "features", "channels", "places", "parameters", "forward_macs", "size"):
        assert getattr(network, name) == getattr(torch_lite0, name), name
    assert network.toe_sizes == torch_lite0.toe_sizes


def test_descriptors_differ_from_torch_by_rounding_only(network, torch_lite0, images):
    ours, theirs = network.forward(images), torch_lite0.forward(images)
    assert ours.dtype == np.float16
    assert steps_apart(ours, theirs) <= 2
    assert np.mean(ours != theirs) < 0.02


def test_adapted_descriptors_differ_from_torch_by_rounding_only(network, torch_lite0, images, added):
    assert steps_apart(network.forward(images, added), torch_lite0.forward(images, added)) <= 2
    assert not np.array_equal(network.forward(images, added), network.forward(images))


def test_head2toe_inputs_differ_from_torch_by_rounding_only(network, torch_lite0, images, added):
    toes = choose_toes(added)
    ours, theirs = (n.toe_features(images, added, toes) for n in (network, torch_lite0))
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=1e-3)


def test_a_descriptor_depends_neither_on_the_batch_nor_on_threads(network, images):
    alone = np.stack([network.describe_one(image) for image in images])
    with ThreadPoolExecutor(4) as pool:
        beside = np.stack(list(pool.map(network.describe_one, [*images, *images])))
    assert np.array_equal(network.forward(images), alone)
    assert np.array_equal(beside, np.concatenate([alone, alone]))


def test_sessions_of_the_last_tasks_are_kept_and_those_before_are_made_again(network, images, added):
    first = network.forward(images[:1], added)
    for factor in range(2, KEPT + 3):
        network.forward(images[:1], factor * added)
    assert len(network._sessions) == KEPT
    assert np.array_equal(network.forward(images[:1], added), first)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ResNet with random weights, which has batch norms that are not folded."""
    from skillmesh.backbone.building import import_timm
    from skillmesh.backbone.exporting import export_network

    folder = tmp_path_factory.mktemp("exported")
    torch.manual_seed(0)
    torch.save(import_timm().create_model("resnet18").state_dict(), folder / "random.pth")
    export_network(TorchNetwork("resnet18", folder / "random.pth", "cpu"), folder / "resnet18")
    return folder / "resnet18"


def test_an_exported_network_is_opened_without_torch_and_is_the_same(exported: Path):
    network = load_network(str(exported))
    same = TorchNetwork("resnet18", exported, "cpu")
    assert isinstance(network, OnnxNetwork)
    assert network.spec.name == "resnet18"
    assert network.fingerprint == same.fingerprint
    image = np.random.default_rng(0).integers(0, 256, (1, network.size, network.size, 3), dtype=np.uint8)
    added = (0.1 * np.random.default_rng(1).standard_normal(network.bias_count)).astype(np.float32)
    assert steps_apart(network.forward(image), same.forward(image)) <= 4
    assert steps_apart(network.forward(image, added), same.forward(image, added)) <= 4


@pytest.mark.parametrize("missing", [CARD, GRAPH, WEIGHTS])
def test_an_incomplete_folder_is_refused(missing: str, exported: Path, tmp_path: Path):
    shutil.copytree(exported, tmp_path / "net")
    (tmp_path / "net" / missing).unlink()
    with pytest.raises(BackboneError, match=r"export"):
        OnnxNetwork.open(tmp_path / "net")


def test_weights_that_do_not_fit_are_refused(exported: Path, tmp_path: Path):
    from safetensors.numpy import load_file, save_file

    shutil.copytree(exported, tmp_path / "net")
    state = load_file(exported / WEIGHTS)
    save_file(
        {name: tensor for name, tensor in state.items() if name != "conv1.weight"}, tmp_path / "net" / WEIGHTS
    )
    with pytest.raises(BackboneError, match=r"conv1\.weight"):
        OnnxNetwork.open(tmp_path / "net")


def test_changed_weights_change_the_fingerprint(exported: Path, tmp_path: Path):
    from safetensors.numpy import load_file, save_file

    shutil.copytree(exported, tmp_path / "net")
    state = dict(load_file(exported / WEIGHTS))
    state["conv1.weight"] = state["conv1.weight"] * 1.001
    save_file(state, tmp_path / "net" / WEIGHTS)
    assert OnnxNetwork.open(tmp_path / "net").fingerprint != OnnxNetwork.open(exported).fingerprint


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"spec": 1}', '{"spec": {"name": "x", "timm_name": "x"}}'])
def test_a_damaged_card_is_refused(content: str, exported: Path, tmp_path: Path):
    shutil.copytree(exported, tmp_path / "net")
    (tmp_path / "net" / CARD).write_text(content)
    with pytest.raises(BackboneError, match="does not describe a network"):
        OnnxNetwork.open(tmp_path / "net")


def test_a_damaged_graph_is_refused(exported: Path, tmp_path: Path):
    shutil.copytree(exported, tmp_path / "net")
    graph = (tmp_path / "net" / GRAPH).read_bytes()
    (tmp_path / "net" / GRAPH).write_bytes(graph[: len(graph) // 2])
    with pytest.raises(BackboneError, match="ONNX Runtime cannot run"):
        OnnxNetwork.open(tmp_path / "net")


def test_the_shipped_graph_is_what_the_script_makes():
    """Names and shapes of the card are those of timm's network of today."""
    from skillmesh.backbone.runtime import NetworkCard

    folder = Path(__file__).parents[2] / "src" / "skillmesh" / "backbone" / "networks" / "lite0"
    card = NetworkCard.read((folder / CARD).read_text(), "card")
    state = TorchNetwork("lite0", device="cpu").state
    assert card.state == tuple((name, tuple(tensor.shape)) for name, tensor in state.items())
    assert json.loads((folder / CARD).read_text())["spec"]["name"] == "lite0"
