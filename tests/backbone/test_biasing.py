"""Biases after layers: one number per channel, on top of weights that never change."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import threading

import numpy as np
import torch
from models import weights_hash
from torch import nn

from skillmesh.backbone.building import Biased, marking_uncalled, places
from skillmesh.backbone.spec import chosen
from skillmesh.backbone.torch_network import TorchNetwork
from skillmesh.errors import BackboneError

LAYERS = {
    "a convolution": nn.Conv2d(3, 8, 3, padding=1),
    "a convolution with no bias of its own": nn.Conv2d(3, 8, 3, stride=2, bias=False),
    "a depthwise convolution": nn.Conv2d(6, 6, 3, groups=6),
    "a linear layer": nn.Linear(5, 7),
    "a linear layer over tokens": nn.Linear(5, 4, bias=False),
}
INPUTS = {
    "a convolution": (2, 3, 9, 9),
    "a convolution with no bias of its own": (2, 3, 9, 9),
    "a depthwise convolution": (2, 6, 9, 9),
    "a linear layer": (4, 5),
    "a linear layer over tokens": (2, 6, 5),
}


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    ).eval()


@pytest.fixture(scope="module")
def lite0() -> TorchNetwork:
    return TorchNetwork("lite0", device="cpu")


BOTH = [
    (kind, layout)
    for kind, shape in INPUTS.items()
    for layout in (torch.contiguous_format, torch.channels_last)[: 2 if len(shape) == 4 else 1]
]


@pytest.mark.parametrize(("kind", "layout"), BOTH)
def test_a_biased_layer_adds_one_number_per_channel_to_its_output(kind: str, layout: torch.memory_format):
    layer, shape = LAYERS[kind], INPUTS[kind]
    x = torch.randn(shape).to(memory_format=layout)
    twin = Biased(nn.Sequential(layer))
    added = torch.randn(len(twin.base))
    along = added.view(1, -1, 1, 1) if isinstance(layer, nn.Conv2d) else added
    with torch.no_grad():
        torch.testing.assert_close(twin(x, twin.base + added), layer(x) + along, rtol=1e-5, atol=1e-5)
        assert torch.equal(twin(x, twin.base), layer(x))


def test_every_convolution_and_linear_layer_has_its_slice_of_the_biases():
    assert [(p.path, p.start, p.channels) for p in places(model())] == [("0", 0, 8), ("3", 8, 8), ("6", 16, 5)]


def test_gradients_are_those_of_finite_differences():
    twin = Biased(model().double())
    x = torch.randn(2, 3, 9, 9, dtype=torch.float64)
    biases = (twin.base + 0.1 * torch.randn_like(twin.base)).requires_grad_()
    assert torch.autograd.gradcheck(lambda b: twin(x, b), biases)


def test_a_hundred_steps_of_training_leave_the_network_as_it_was():
    network = model()
    before = weights_hash(network)
    twin = Biased(network.requires_grad_(False))
    added = nn.Parameter(torch.zeros_like(twin.base))
    optimiser = torch.optim.Adam([added], 0.1)
    x, labels = torch.randn(16, 3, 9, 9), torch.randint(5, (16,))
    losses = []
    for _ in range(100):
        loss = nn.functional.cross_entropy(twin(x, twin.base + added), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert weights_hash(network) == before
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_twin_shares_its_weights():
    network = model()
    twin = Biased(network)
    assert twin.model[0].weight is network[0].weight
    assert network[3].bias is not None


def test_threads_with_biases_of_different_tasks_do_not_interfere(lite0: TorchNetwork):
    """On a CPU the recorded pass takes biases as input; otherwise each thread has its own twin."""
    rng = np.random.default_rng(0)
    image = rng.integers(256, size=(lite0.size, lite0.size, 3), dtype=np.uint8)
    tasks = [0.1 * rng.standard_normal(lite0.bias_count) for _ in range(3)]
    alone = [lite0.describe_one(image, biases) for biases in tasks]
    assert not np.array_equal(alone[0], alone[1])
    wrong: list[int] = []

    def ask(index: int) -> None:
        wrong.extend(
            index for _ in range(5) if not np.array_equal(lite0.describe_one(image, tasks[index]), alone[index])
        )

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_zero_biases_change_no_bit(lite0: TorchNetwork):
    image = np.random.default_rng(1).integers(256, size=(lite0.size, lite0.size, 3), dtype=np.uint8)
    nothing = np.zeros(lite0.bias_count)
    assert np.array_equal(lite0.describe_one(image, nothing), lite0.describe_one(image))


def test_a_layer_that_is_never_called_directly_has_no_biases():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.called, self.read = nn.Linear(2, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(self.called(x), self.read.weight)

    model = Own()
    with marking_uncalled(model):
        model(torch.zeros(1, 2))
    assert [place.path for place in places(model)] == ["called"]
    assert Biased(model)(torch.ones(1, 2), torch.ones(3)).shape == (1, 3)


class TestChoosing:
    LAYERS = tuple(places(nn.Sequential(*(nn.Linear(2, 2) for _ in range(12)))))

    @pytest.mark.parametrize(("where", "count"), [("all", 12), ("last-half", 6), ("last-1", 1), ("last-12", 12)])
    def test_by_number(self, where: str, count: int):
        assert chosen(where, self.LAYERS) == self.LAYERS[12 - count :]

    def test_by_name_and_only_by_whole_names(self):
        assert [place.path for place in chosen("1,3", self.LAYERS)] == ["1", "3"]

    def test_by_being_next_to_a_norm_on_either_side(self, lite0: TorchNetwork):
        net = nn.Sequential(
            nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU(),
            nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)), nn.Linear(4, 4),
        )  # fmt: skip
        assert [place.path for place in chosen("after-norm", places(net))] == ["0", "5.1"]
        assert chosen("after-norm", lite0.places) == lite0.places, "all its norms are folded into convolutions"

    @pytest.mark.parametrize("where", ["", "after-norm", "last-0", "last-13", "last-x", "first", "1,", "99"])
    def test_unknown_layers_are_refused_with_the_valid_choices(self, where: str):
        with pytest.raises(BackboneError, match="expected all, last-half, last-1 to last-12"):
            chosen(where, self.LAYERS)
