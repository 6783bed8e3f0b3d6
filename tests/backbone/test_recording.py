"""A recorded forward pass gives the same numbers, or is not used."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import itertools

import numpy as np
import torch

from skillmesh.backbone.building import record_pass
from skillmesh.backbone.torch_network import TorchNetwork

EXAMPLE = torch.arange(6.0).reshape(1, 6)


def test_a_recorded_pass_runs_no_python_and_gives_the_same():
    calls = []

    def run(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return (x * 2).relu().sum(dim=1)

    recorded = record_pass(run, (EXAMPLE,))
    before = len(calls)
    assert torch.equal(recorded(EXAMPLE - 3), ((EXAMPLE - 3) * 2).relu().sum(dim=1))
    assert len(calls) == before


def test_a_pass_whose_recording_gives_other_numbers_runs_step_by_step():
    counter = itertools.count()

    def run(x: torch.Tensor) -> torch.Tensor:
        return x + next(counter)  # a recording would keep the first number forever

    assert record_pass(run, (EXAMPLE,)) is run


def test_a_pass_that_cannot_be_recorded_runs_step_by_step():
    def run(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such thing here")

    assert record_pass(run, (EXAMPLE,)) is run


def test_a_network_on_a_cpu_is_recorded_and_describes_images_as_it_does_step_by_step():
    network = TorchNetwork("lite0", device="cpu")
    images = np.random.default_rng(0).integers(256, size=(3, network.size, network.size, 3), dtype=np.uint8)
    assert network._run is not network._raw
    for image in images:
        with torch.inference_mode():
            expected = network._raw(torch.tensor(image[None]), network.base)[0].numpy()
        assert np.array_equal(network.describe_one(image), expected)
