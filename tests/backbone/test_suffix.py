"""The last part of a network, run from stored activations, gives the descriptors of the whole network."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from collections.abc import Callable
from pathlib import Path

import torch
from models import random_model

from skillmesh.backbone import suffix as frozen
from skillmesh.backbone.spec import chosen
from skillmesh.backbone.suffix import Suffix
from skillmesh.backbone.torch_network import TorchNetwork

pytestmark = pytest.mark.long

CUTS = {"all": 0, "conv_stem": 0, "last-half": 24, "last-10": 33, "blocks.5": 33, "conv_head": 48}
"""Index of the first of lite0's 49 layers that runs, by choice of biased layers."""


@pytest.fixture(scope="module")
def lite0() -> TorchNetwork:
    return TorchNetwork("lite0", device="cpu")


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TorchNetwork]:
    """Networks with random weights."""
    folder, loaded = tmp_path_factory.mktemp("weights"), {}

    def load(name: str) -> TorchNetwork:
        if name not in loaded:
            path: Path = folder / f"{name}.pt"
            torch.save(random_model(name).state_dict(), path)
            loaded[name] = TorchNetwork(name, path, "cpu")
        return loaded[name]

    return load


def suffix_of(network: TorchNetwork, where: str) -> Suffix:
    return Suffix(network, chosen(where, network.places))


def images_for(network: TorchNetwork, count: int = 2, size: int | None = None) -> torch.Tensor:
    shape = (count, size or network.size, size or network.size, 3)
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def biases_from(network: TorchNetwork, layer: int) -> torch.Tensor:
    """Return the network's own biases, with random numbers added for this layer and all later ones."""
    added = 0.1 * torch.randn(network.base.shape, generator=torch.Generator().manual_seed(2))
    added[: network.places[layer].start] = 0
    return network.base + added


def compare(network: TorchNetwork, suffix: Suffix, images: torch.Tensor) -> None:
    biases = biases_from(network, suffix.first)
    with torch.no_grad():
        plain, whole = (network.exact_raw(images, vector) for vector in (network.base, biases))
        assert not torch.allclose(whole, plain, rtol=1e-2)
        start = suffix.begin(images)
        for _ in range(2):  # stored activations are used in every epoch
            torch.testing.assert_close(suffix.raw(start, biases), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("where", CUTS)
def test_the_last_part_gives_the_descriptors_of_the_whole_network(lite0: TorchNetwork, where: str):
    compare(lite0, suffix_of(lite0, where), images_for(lite0))


@pytest.mark.parametrize(("where", "first"), CUTS.items())
def test_only_stages_before_all_biased_layers_are_cut_off(lite0: TorchNetwork, where: str, first: int):
    assert suffix_of(lite0, where).first == first


@pytest.mark.parametrize("where", ["all", "last-half", "last-10", "blocks.4.2", "conv_head"])
def test_gradients_go_back_to_the_first_biased_layer_and_no_further(
    lite0: TorchNetwork, where: str, monkeypatch: pytest.MonkeyPatch
):
    """The counted MACs of the backward pass match the work done."""
    done: list[object] = []
    real = frozen.conv2d_input
    monkeypatch.setattr(frozen, "conv2d_input", lambda *args: done.append(0) or real(*args))
    biased = chosen(where, lite0.places)
    suffix, values = Suffix(lite0, biased), torch.zeros_like(lite0.base, requires_grad=True)
    suffix.raw(suffix.begin(images_for(lite0, 1)), lite0.base + values).sum().backward()
    first = lite0.places.index(biased[0])
    assert len(done) == len(lite0.places) - first - 1
    assert values.grad is not None
    behind = torch.zeros_like(values)
    for place in biased:
        behind[place.part] = 1
    assert not (values.grad * (1 - behind)).any()
    assert (values.grad * behind).any()


def test_activations_that_take_too_much_memory_are_not_kept(lite0: TorchNetwork):
    last_half = chosen("last-half", lite0.places)
    assert Suffix(lite0, last_half, images=1000).first == CUTS["last-half"]
    assert Suffix(lite0, last_half, images=10**8).first == 0


def test_images_of_another_size_agree_too(lite0: TorchNetwork):
    compare(lite0, suffix_of(lite0, "last-half"), images_for(lite0, size=96))


def test_biases_before_the_cut_do_nothing(lite0: TorchNetwork):
    suffix, images = suffix_of(lite0, "last-10"), images_for(lite0)
    biases = lite0.base.clone()
    biases[: lite0.places[suffix.first].start] += 1
    with torch.no_grad():
        start = suffix.begin(images)
        assert torch.equal(suffix.raw(start, biases), suffix.raw(start, lite0.base))


def test_gradients_are_those_of_the_whole_network(lite0: TorchNetwork):
    suffix, images = suffix_of(lite0, "last-10"), images_for(lite0)
    behind = slice(chosen("last-10", lite0.places)[0].start, None)
    gradients = []
    for raw in (lambda b: suffix.raw(suffix.begin(images), b), lambda b: lite0.exact_raw(images, b)):
        biases = biases_from(lite0, suffix.first).requires_grad_()
        raw(biases).square().sum().backward()
        gradients.append(biases.grad[behind])
    assert gradients[1].abs().max() > 0
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5 * float(gradients[1].abs().max()))


def test_activations_of_images_in_parts_equal_those_of_all_together(lite0: TorchNetwork):
    suffix, images = suffix_of(lite0, "last-half"), images_for(lite0, count=3)
    parts = [suffix.begin(part) for part in (images[:1], images[1:])]
    for together, *apart in zip(suffix.begin(images), *parts, strict=True):
        torch.testing.assert_close(torch.cat(apart), together, rtol=1e-3, atol=1e-3)


def test_a_sequential_network_of_another_layout_is_cut_too(load: Callable[[str], TorchNetwork]):
    network = load("test_mambaout")  # channels last, and pools in its head
    suffix = suffix_of(network, "last-half")
    assert suffix.first > 0
    compare(network, suffix, images_for(network))


@pytest.mark.parametrize("where", ["last-half", "blocks.4"])
@pytest.mark.parametrize("name", ["test_vit", "test_vit3"])
def test_a_network_whose_stages_are_no_plain_sequence_is_not_cut(
    load: Callable[[str], TorchNetwork], name: str, where: str
):
    """A ViT adds positions between its first layer and its blocks: cut off, it would add them again."""
    network = load(name)
    suffix = suffix_of(network, where)
    assert suffix.first == 0
    compare(network, suffix, images_for(network))
