"""Probes: how they are chosen, which share each represents, and the limits of those in received modules."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from skillmesh.errors import TensorError
from skillmesh.learning.head import SHARES, choose_probes, probe_specs, probe_tensors, probe_weights, read_probes
from skillmesh.module.format import check_tensors

DIM = 5


def rows(count: int) -> np.ndarray:
    return np.repeat(np.arange(1, count + 1, dtype=np.float32)[:, None], DIM, axis=1)


def test_probes_are_the_middles_of_four_ranges_of_novelty():
    """The ranges of 100 images, from the most usual to the most unusual: 50, 30, 12 and 8 of them."""
    novelty = np.arange(100, dtype=np.float32)[::-1]  # the last image is the most usual
    assert choose_probes(rows(100), novelty)[:, 0].tolist() == [100 - 25, 100 - 65, 100 - 86, 100 - 96]


@pytest.mark.parametrize("count", [0, 1, 4])
def test_few_images_are_all_probes_most_usual_first(count: int):
    novelty = np.arange(count, dtype=np.float32)[::-1]
    assert choose_probes(rows(count), novelty)[:, 0].tolist() == list(range(count, 0, -1))


@pytest.mark.parametrize(
    ("images", "weights"),
    [(0, []), (1, [1.0]), (4, [0.25] * 4), (5, list(SHARES)), (1000, list(SHARES))],
)
def test_probe_weights_sum_to_one(images: int, weights: list[float]):
    assert probe_weights(images).tolist() == weights
    assert sum(SHARES) == pytest.approx(1)


@pytest.mark.parametrize(("images", "count"), [(0, 0), (1, 1), (4, 4), (5, 4), (1000, 4)])
def test_the_number_of_probes_follows_from_the_validation_images(images: int, count: int):
    specs = probe_specs(images, DIM)
    assert (specs["probe"].shape if specs else (0, DIM)) == (count, DIM)
    check_tensors(probe_tensors(rows(count)), specs)


def test_stored_probes_are_read_back():
    x = rows(4)
    np.testing.assert_allclose(read_probes(probe_tensors(x), DIM), x, rtol=1e-6)
    assert read_probes({}, DIM).shape == (0, DIM)


@pytest.mark.parametrize(("value", "good"), [(0.0, True), (-1e-3, False), (10.0, True), (10.001, False)])
def test_scales_out_of_bounds_are_refused(value: float, good: bool):
    tensors = probe_tensors(rows(4))
    tensors["probe.scale"][2] = value
    with (
        nullcontext()
        if good
        else pytest.raises(TensorError, match=r"probe\.scale.*holds .*expected at (least|most)")
    ):
        check_tensors(tensors, probe_specs(9, DIM))
