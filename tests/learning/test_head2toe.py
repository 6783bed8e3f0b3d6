"""Head2Toe from biases: the choice of channels, their features, and the head on them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from skillmesh.backbone.spec import Toes, choose_toes
from skillmesh.backbone.toes import toe_features
from skillmesh.backbone.torch_network import TorchNetwork
from skillmesh.data.images import Pixels
from skillmesh.learning.head import Head, Labels, log_loss
from skillmesh.learning.head2toe import fit_by_adam
from skillmesh.numerics.arrays import Floats, counted

pytestmark = pytest.mark.long

CPU = torch.device("cpu")
LAYERS = ("conv_stem", "blocks.3.1.conv_dw", "blocks.5.0.conv_pwl", "conv_head")
CHANNELS = {path: [0, 5, 31] for path in LAYERS}


@pytest.fixture(scope="module")
def lite0() -> TorchNetwork:
    return TorchNetwork("lite0", device="cpu")


@pytest.fixture(scope="module")
def images(lite0: TorchNetwork) -> Pixels:
    return np.random.default_rng(0).integers(256, size=(2, lite0.size, lite0.size, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def added(lite0: TorchNetwork) -> Floats:
    return 0.1 * np.random.default_rng(1).standard_normal(lite0.bias_count).astype(np.float32)


@pytest.fixture(scope="module")
def maps(lite0: TorchNetwork, images: Pixels, added: Floats) -> dict[str, Floats]:
    """Output of each of the layers, by path."""
    outputs: dict[str, Floats] = {}

    def keep(path: str):
        return lambda _layer, _inputs, output: outputs.update({path: output.numpy().copy()})

    hooks = [lite0.twin.model.get_submodule(path).register_forward_hook(keep(path)) for path in LAYERS]
    lite0.forward(images, added, recorded=False)
    for hook in hooks:
        hook.remove()
    return outputs


def toes_in(network: TorchNetwork, channels: dict[str, list[int]], grid: int) -> Toes:
    starts = {place.path: place.start for place in network.places}
    return Toes(np.array([starts[path] + i for path, chosen in channels.items() for i in chosen]), grid)


class TestChoosing:
    @given(
        biases=st.lists(st.integers(-4, 4), min_size=1, max_size=200),
        share=st.floats(0.01, 1),
        dimensions=st.integers(200, 9000),
    )
    def test_the_channels_of_largest_biases_are_chosen_earlier_ones_if_equal(
        self, biases: list[int], share: float, dimensions: int
    ):
        toes = choose_toes(np.array(biases, dtype=np.float32), share, dimensions)
        ranked = sorted(range(len(biases)), key=lambda i: (-abs(biases[i]), i))
        count = len(toes.channels)
        assert count == max(1, round(share * len(biases)))
        assert toes.channels.tolist() == sorted(ranked[:count])

    @given(length=st.integers(1, 30000), share=st.floats(0.0001, 0.2))
    def test_the_grid_is_the_finest_that_fits(self, length: int, share: float):
        toes = choose_toes(np.ones(length), share)
        assert len(toes.channels) * toes.grid**2 <= 8192 < len(toes.channels) * (toes.grid + 1) ** 2

    def test_one_percent_of_the_channels_of_lite0_is_pooled_to_six_by_six(self, lite0: TorchNetwork):
        toes = choose_toes(np.arange(lite0.bias_count))
        assert toes.grid == 6
        assert np.array_equal(toes.channels, np.arange(lite0.bias_count)[-210:])


class TestFeatures:
    def test_the_last_layer_of_the_biased_network_comes_first(
        self, lite0: TorchNetwork, images: Pixels, added: Floats
    ):
        seen = toe_features(lite0, images, added, toes_in(lite0, CHANNELS, grid=2))
        assert seen.dtype == np.float32
        assert seen.shape == (2, lite0.features + 12 * 2**2)
        own, biased = (lite0.forward(images, b)[:, : lite0.features] for b in (None, added))
        assert np.array_equal(seen[:, : lite0.features], biased)
        assert not np.allclose(biased, own, rtol=0.1)

    def test_a_grid_of_one_cell_gives_the_mean_of_each_channel(
        self, lite0: TorchNetwork, images: Pixels, added: Floats, maps: dict[str, Floats]
    ):
        seen = toe_features(lite0, images, added, toes_in(lite0, CHANNELS, grid=1))
        means = [maps[path][:, chosen].mean(axis=(2, 3)) for path, chosen in CHANNELS.items()]
        np.testing.assert_allclose(seen[:, lite0.features :], np.hstack(means), rtol=1e-4, atol=1e-5)

    def test_a_fine_grid_keeps_positions(
        self, lite0: TorchNetwork, images: Pixels, added: Floats, maps: dict[str, Floats]
    ):
        seen = toe_features(lite0, images, added, toes_in(lite0, {"conv_head": [7, 1000]}, grid=7))
        expected = maps["conv_head"][:, [7, 1000]]
        assert expected.shape == (2, 2, 7, 7)
        np.testing.assert_allclose(seen[:, lite0.features :].reshape(expected.shape), expected, atol=1e-6)

    def test_a_single_image_gives_the_same_features(self, lite0: TorchNetwork, images: Pixels, added: Floats):
        """A recorded pass would not call the hooks."""
        toes = toes_in(lite0, CHANNELS, grid=1)
        both, alone = (toe_features(lite0, batch, added, toes) for batch in (images, images[:1]))
        np.testing.assert_allclose(alone[0], both[0], rtol=1e-2, atol=1e-2)

    def test_no_hooks_stay_on_the_network(self, lite0: TorchNetwork, images: Pixels, added: Floats):
        before = [len(module._forward_hooks) for module in lite0.twin.model.modules()]
        toe_features(lite0, images, added, toes_in(lite0, CHANNELS, grid=1))
        assert [len(module._forward_hooks) for module in lite0.twin.model.modules()] == before


def two_clouds(seed: int) -> tuple[Floats, Labels]:
    rng = np.random.default_rng(seed)
    labels = np.arange(1000) % 2
    return (rng.standard_normal((1000, 10)) + 2 * labels[:, None]).astype(np.float32), labels


EPOCH = 2 * 1000 * 10 * 2 + 1000 * 10 * 2
"""MACs of an epoch: forward and backward for training images, forward only for validation images."""


class TestHead:
    def test_it_separates_two_clouds(self):
        with counted() as costs:
            head = fit_by_adam(*two_clouds(0), *two_clouds(1), classes=2, device=CPU)
        x, labels = two_clouds(2)
        assert np.mean(head.logits(x).argmax(axis=1) == labels) > 0.99
        assert 0 < costs.total <= 100 * EPOCH

    def test_scale_and_offset_of_the_columns_do_not_matter(self):
        rng = np.random.default_rng(3)
        scale, shift = rng.uniform(0.01, 100, 10), rng.uniform(-50, 50, 10)
        (x, labels), (val_x, val_labels) = two_clouds(0), two_clouds(1)
        moved, val_moved = ((part * scale + shift).astype(np.float32) for part in (x, val_x))
        plain = fit_by_adam(x, labels, val_x, val_labels, classes=2, device=CPU)
        other = fit_by_adam(moved, labels, val_moved, val_labels, classes=2, device=CPU)
        np.testing.assert_allclose(other.logits(val_moved), plain.logits(val_x), atol=0.05)

    def test_a_stored_head_is_exact_though_columns_differ_a_millionfold(self):
        scale = np.geomspace(1e-3, 1e3, 10)
        parts = [((x * scale + 10 * scale).astype(np.float32), labels) for x, labels in map(two_clouds, (0, 1))]
        head = fit_by_adam(*parts[0], *parts[1], classes=2, device=CPU)
        x, labels = parts[1]
        np.testing.assert_allclose(Head.read(head.tensors()).logits(x), head.logits(x), atol=1e-3)
        assert np.mean(head.logits(x).argmax(axis=1) == labels) > 0.99

    def test_training_stops_by_validation_loss_and_keeps_the_best(self):
        x, labels = two_clouds(0)
        with counted() as costs:
            early = fit_by_adam(x, labels, x, 1 - labels, classes=2, device=CPU)
        assert costs.total == 11 * EPOCH  # the first, and ten without improvement
        late = fit_by_adam(x, labels, x, labels, classes=2, device=CPU)
        assert log_loss(early.logits(x), 1 - labels) < log_loss(late.logits(x), 1 - labels)

    def test_columns_constant_in_training_are_ignored(self):
        """Many of lite0's features are zero in all training images of a small task, but not in all images."""
        (x, labels), (val_x, val_labels) = two_clouds(0), two_clouds(1)
        x[:, 5:] = 0
        head = fit_by_adam(x, labels, val_x, val_labels, classes=2, device=CPU)
        assert np.mean(head.logits(val_x).argmax(axis=1) == val_labels) > 0.9

    def test_the_same_seed_gives_the_same_head(self):
        one, other = (fit_by_adam(*two_clouds(0), *two_clouds(1), classes=2, device=CPU) for _ in range(2))
        assert np.array_equal(one.weight, other.weight)
        assert np.array_equal(one.bias, other.bias)
