"""Training on a frozen network: it lowers the loss, changes no weight, resumes after a kill, counts its cost."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import hashlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from models import weights_hash

from skillmesh.backbone.backbone import load_calibration
from skillmesh.backbone.calibration import Calibration, Raw, represent
from skillmesh.backbone.spec import chosen
from skillmesh.backbone.suffix import first_of, pass_costs
from skillmesh.backbone.torch_network import TorchNetwork
from skillmesh.common.choices import Adaptation, Representation
from skillmesh.data.demo import write_demo_tasks
from skillmesh.data.folder import Split, open_task
from skillmesh.learning.adaptation import NOTHING, reprogrammed, stored
from skillmesh.learning.biases import train_biases
from skillmesh.learning.head import Head, Labels, fit_head, log_loss
from skillmesh.learning.reprogramming import train_pattern
from skillmesh.learning.training import Examples, Space, Trained, TrainingSettings
from skillmesh.numerics.arrays import Costs, counted, spend

pytestmark = pytest.mark.long

SIZE = 64
QUICK = TrainingSettings(size=SIZE, batch=8, warm=True, head_rate=0.0)
"""The head stays as it is, so that any gain comes from the biases or the pattern."""
PATTERN = replace(QUICK, epochs=6, rate=4.0, judged_from=0.0)


@pytest.fixture(scope="module")
def lite0() -> TorchNetwork:
    return TorchNetwork("lite0", device="cpu")


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return load_calibration("lite0")


@pytest.fixture(scope="module")
def space(lite0: TorchNetwork, calibration: Calibration) -> Space:
    return Space(calibration, "descriptor", False, lite0.device)


class Task(NamedTuple):
    """Three classes, and a head trained on one image of each."""

    train: Examples
    val: Examples
    head: Head
    start: float
    """The head's loss on the validation images before anything is trained."""


@pytest.fixture(scope="module")
def task(lite0: TorchNetwork, calibration: Calibration, tmp_path_factory: pytest.TempPathFactory) -> Task:
    (folder,) = write_demo_tasks(tmp_path_factory.mktemp("tasks"), train=8, val=4, test=1, names=["dice"])
    train, val = (examples(open_task(folder).splits[part]) for part in ("train", "val"))
    seen = represent(lite0.forward(train.images[::8]), lite0.features, "descriptor", calibration)
    head = fit_head(seen, train.labels[::8], seen[:0], train.labels[:0], classes=3).head
    return Task(train, val, head, loss_of(head, lite0.forward(val.images), val.labels, calibration))


def examples(split: Split) -> Examples:
    kept = np.flatnonzero(split.labels < 3)
    images = [split.files[i].pixels(split.files[i].content(), SIZE) for i in kept]
    return Examples(np.stack(images), split.labels[kept])


def every(given: Examples, step: int) -> Examples:
    return Examples(given.images[::step], given.labels[::step])


def loss_of(head: Head, raw: Raw, labels: Labels, calibration: Calibration) -> float:
    """Return the loss, computed independently from raw descriptors and the head."""
    return log_loss(head.logits(represent(raw, calibration.features, "descriptor", calibration)), labels)


@pytest.fixture(scope="module", params=["all", "last-half", "blocks.5"])
def where(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def trained(lite0: TorchNetwork, space: Space, task: Task, where: str) -> Trained:
    return train_biases(lite0, space, (task.train, task.val), task.head, where, QUICK)


class TestBiases:
    def test_training_lowers_the_validation_loss(
        self, lite0: TorchNetwork, calibration: Calibration, task: Task, trained: Trained
    ):
        raw = lite0.forward(task.val.images, trained.values)
        loss = loss_of(trained.head, raw, task.val.labels, calibration)
        assert loss < 0.95 * task.start
        assert loss == pytest.approx(min(trained.losses), abs=1e-3)
        assert np.array_equal(trained.head.weight, task.head.weight)

    def test_biases_outside_the_chosen_layers_are_zero(self, lite0: TorchNetwork, where: str, trained: Trained):
        layers = chosen(where, lite0.places)
        inside = np.zeros(lite0.bias_count, dtype=bool)
        for place in layers:
            inside[place.part] = True
            assert trained.values[place.part].any()
        assert not trained.values[~inside].any()

    def test_the_counted_cost_is_that_of_the_passes_run(
        self, lite0: TorchNetwork, task: Task, where: str, trained: Trained
    ):
        costs, first = pass_costs(lite0, SIZE), first_of(chosen(where, lite0.places), lite0.places)
        cut = {"all": 0, "last-half": 24, "blocks.5": 33}[where]
        train, val = len(task.train), len(task.val)
        judged = len(trained.losses)
        assert judged == 2  # of three epochs: in the first, steps are too large for a result to keep
        assert trained.costs.spent["forward"] == costs.forward * (train + val) + costs.from_layer(cut) * (
            (QUICK.epochs - 1) * train + (judged - 1) * val
        )
        assert trained.costs.spent["backward"] == costs.backward(first) * QUICK.epochs * train


def symmetrical(given: Examples) -> Examples:
    mirrored = given.images[:, :, ::-1]
    return Examples(((given.images.astype(int) + mirrored) // 2).astype(np.uint8), given.labels)


def test_mirroring_changes_the_training_unless_images_are_symmetrical(
    lite0: TorchNetwork, space: Space, task: Task
):
    def values(train: Examples, where: str, flips: bool) -> np.ndarray:
        settings = replace(QUICK, epochs=1, flips=flips)
        return train_biases(lite0, space, (train, every(task.val, 4)), task.head, where, settings).values

    few = every(task.train, 3)
    assert not np.array_equal(values(few, "all", True), values(few, "all", False))
    even = symmetrical(few)
    assert np.array_equal(values(even, "all", True), values(even, "all", False))
    # Activations inside the network cannot be mirrored.
    assert np.array_equal(values(few, "last-half", True), values(few, "last-half", False))


def test_training_changes_no_weight(lite0: TorchNetwork, space: Space, task: Task):
    before, described = weights_hash(lite0.model), lite0.forward(task.val.images)
    train_biases(lite0, space, (task.train, task.val), task.head, "all", replace(QUICK, epochs=1))
    train_pattern(lite0, space, (task.train, task.val), task.head, replace(PATTERN, epochs=1))
    assert weights_hash(lite0.model) == before
    assert np.array_equal(lite0.forward(task.val.images), described)
    assert all(parameter.grad is None for parameter in lite0.model.parameters())


def test_a_cold_head_is_trained_too_and_does_not_depend_on_the_given_one(
    lite0: TorchNetwork, space: Space, task: Task
):
    cold = replace(QUICK, warm=False, head_rate=0.001, epochs=2)
    other = Head(task.head.weight + 1, task.head.bias)
    trained, again = (
        train_biases(lite0, space, (task.train, task.val), head, "last-half", cold) for head in (task.head, other)
    )
    assert np.array_equal(trained.head.weight, again.head.weight)
    assert np.array_equal(trained.values, again.values)
    assert trained.head.bias.all()  # it started at zero


def test_training_stops_when_it_gets_worse_and_keeps_the_best(
    lite0: TorchNetwork, space: Space, calibration: Calibration, task: Task
):
    wild = replace(QUICK, epochs=8, rate=0.3, patience=1, judged_from=0.0)
    trained = train_biases(lite0, space, (every(task.train, 2), task.val), task.head, "blocks.5", wild)
    *better, worse = trained.losses
    assert len(trained.losses) < wild.epochs
    assert worse > min(better) == better[-1]
    raw = lite0.forward(task.val.images, trained.values)
    assert loss_of(trained.head, raw, task.val.labels, calibration) == pytest.approx(better[-1], rel=1e-2)


KILLED = TrainingSettings(size=SIZE, batch=2, epochs=3, patience=9)


@pytest.mark.parametrize("train", [train_biases, train_pattern])
def test_a_killed_training_resumes_with_the_same_result(
    lite0: TorchNetwork, space: Space, task: Task, tmp_path: Path, train: Callable[..., Trained]
):
    parts, checkpoint, seen = (every(task.train, 4), every(task.val, 4)), tmp_path / "checkpoint", 0

    def run(checkpoint: Path | None, progress: Callable[[int], None]) -> Trained:
        return train(lite0, space, parts, task.head, settings=KILLED, checkpoint=checkpoint, progress=progress)

    def kill_in_the_second_epoch(images: int) -> None:
        nonlocal seen
        seen += images
        if seen > len(parts[0]) + KILLED.batch:
            raise KeyboardInterrupt

    undisturbed = run(None, lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint, kill_in_the_second_epoch)
    counted: list[int] = []
    resumed = run(checkpoint, counted.append)
    assert sum(counted) == 2 * len(parts[0])  # the first epoch was complete
    assert undisturbed.values.any()
    assert np.array_equal(resumed.values, undisturbed.values)
    assert np.array_equal(resumed.head.weight, undisturbed.head.weight)
    assert (resumed.losses, resumed.costs) == (undisturbed.losses, undisturbed.costs)
    counted.clear()
    assert np.array_equal(run(checkpoint, counted.append).values, undisturbed.values)
    assert not counted  # a finished training is not run again


class Trap:
    """An object that makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Path]]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("how", ["empty", "cut off", "one byte", "a pickle", "a pickle with its hash"])
def test_a_damaged_checkpoint_is_reported_and_training_starts_from_the_beginning(
    lite0: TorchNetwork, space: Space, task: Task, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
):
    parts, checkpoint = (every(task.train, 2), every(task.val, 2)), tmp_path / "checkpoint"

    def run() -> tuple[Trained, int]:
        counted: list[int] = []
        settings = replace(KILLED, epochs=1)
        trained = train_biases(
            lite0, space, parts, task.head, settings=settings, checkpoint=checkpoint, progress=counted.append
        )
        return trained, sum(counted)

    undisturbed, images = run()
    data = checkpoint.read_bytes()
    trap = pickle.dumps(Trap(tmp_path / "sprung"))
    middle = len(data) // 2
    checkpoint.write_bytes(
        {
            "empty": b"",
            "cut off": data[:middle],
            "one byte": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
            "a pickle": trap,
            "a pickle with its hash": hashlib.sha256(trap).digest() + trap,
        }[how]
    )
    trained, again = run()
    assert again == images
    assert np.array_equal(trained.values, undisturbed.values)
    assert not (tmp_path / "sprung").exists()
    (record,) = caplog.records
    assert f"{checkpoint} cannot be used" in record.message
    assert "\n" not in record.message
    caplog.clear()
    assert run()[1] == 0
    assert caplog.records == []


SHORT = replace(KILLED, epochs=1, warm=True)


@dataclass(frozen=True)
class Given:
    """All inputs that the result of a training of biases depends on."""

    train: Examples
    val: Examples
    head: Head
    where: str = "blocks.5"
    representation: Representation = "sqrt-features"
    settings: TrainingSettings = SHORT


def negative(given: Examples) -> Examples:
    return Examples(255 - given.images, given.labels)


CHANGES: dict[str, Callable[[Given], Given]] = {
    "images": lambda g: replace(g, train=negative(g.train)),
    "the classes": lambda g: replace(g, train=Examples(g.train.images, g.train.labels[::-1].copy())),
    "validation images": lambda g: replace(g, val=negative(g.val)),
    "the head": lambda g: replace(g, head=Head(-g.head.weight, g.head.bias)),
    "layers behind the same cut": lambda g: replace(g, where="last-10"),
    "a representation as wide": lambda g: replace(g, representation="features"),
    "the rate": lambda g: replace(g, settings=replace(g.settings, rate=0.02)),
    "the epochs": lambda g: replace(g, settings=replace(g.settings, epochs=2)),
    "the seed": lambda g: replace(g, settings=replace(g.settings, seed=1)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_checkpoint_of_another_training_is_ignored(
    lite0: TorchNetwork, calibration: Calibration, task: Task, tmp_path: Path, what: str
):
    def run(given: Given, checkpoint: Path | None) -> tuple[Trained, int]:
        space, seen = Space(calibration, given.representation, False, lite0.device), []
        parts = given.train, given.val
        trained = train_biases(
            lite0, space, parts, given.head, given.where, given.settings, checkpoint, seen.append
        )
        return trained, sum(seen)

    head = Head(task.head.weight[:, : lite0.features], task.head.bias)
    given = Given(every(task.train, 4), every(task.val, 4), head)
    other, checkpoint = CHANGES[what](given), tmp_path / "checkpoint"
    run(given, checkpoint)
    trained, seen = run(other, checkpoint)
    assert seen == other.settings.epochs * len(other.train)
    assert np.array_equal(trained.values, run(other, None)[0].values)


class TestPattern:
    def test_a_stored_pattern_is_applied_unchanged(self):
        levels = np.arange(-128, 128, dtype=np.float32).reshape(1, 16, 16)
        grey = np.full_like(levels, NOTHING, dtype=np.uint8)
        assert np.array_equal(reprogrammed(grey, stored(levels + 0.3)), levels.astype(np.int16) + NOTHING)

    def test_a_zero_pattern_changes_no_image(self):
        images = np.arange(256, dtype=np.uint8).reshape(2, 8, 8, 2)
        assert np.array_equal(stored(np.zeros((8, 8, 2))), np.full((8, 8, 2), NOTHING))
        assert np.array_equal(reprogrammed(images, stored(np.zeros((8, 8, 2)))), images)

    def test_values_out_of_range_are_clipped_and_do_not_wrap_around(self):
        assert stored(np.array([-1000.0, -128.4, 127.4, 1000.0])).tolist() == [0, 0, 255, 255]
        images = np.array([[3, 250, 3, 250]], dtype=np.uint8)
        assert reprogrammed(images, stored(np.array([-10.0, 10.0, 1000.0, -1000.0]))).tolist() == [
            [0, 255, 130, 122]
        ]

    def test_trained_and_stored_patterns_lower_the_validation_loss(
        self, lite0: TorchNetwork, space: Space, calibration: Calibration, task: Task
    ):
        trained = train_pattern(lite0, space, (task.train, task.val), task.head, PATTERN)
        assert trained.values.shape == (SIZE, SIZE, 3)
        assert np.abs(stored(trained.values) - trained.values - NOTHING).max() <= 0.5
        assert min(trained.losses) < 0.95 * task.start
        raw = lite0.forward(reprogrammed(task.val.images, stored(trained.values)))
        loss = loss_of(trained.head, raw, task.val.labels, calibration)
        assert loss == pytest.approx(min(trained.losses), rel=0.05)

    def test_the_gradient_reaches_the_pixels_and_its_cost_counts(
        self, lite0: TorchNetwork, space: Space, task: Task
    ):
        one = replace(PATTERN, epochs=1)
        trained = train_pattern(lite0, space, (every(task.train, 4), every(task.val, 4)), task.head, one)
        assert trained.values.any()
        assert trained.costs.spent["backward"] == pass_costs(lite0, SIZE).forward * len(every(task.train, 4))


class TestSpace:
    @pytest.mark.parametrize("representation", ["features", "sqrt-features", "descriptor"])
    def test_it_equals_represent(
        self, lite0: TorchNetwork, calibration: Calibration, task: Task, representation: Representation
    ):
        raw = lite0.forward(task.val.images)
        space = Space(calibration, representation, False, lite0.device)
        expected = represent(raw, lite0.features, representation, calibration)
        np.testing.assert_allclose(space(torch.tensor(raw).float()).numpy(), expected, atol=1e-3)

    def test_a_compact_space_is_projected(self, lite0: TorchNetwork, calibration: Calibration, task: Task):
        raw = lite0.forward(task.val.images)
        space = Space(calibration, "descriptor", True, lite0.device)
        expected = represent(raw, lite0.features, "descriptor", calibration, compact=True)
        assert expected.shape[1] < lite0.width
        np.testing.assert_allclose(
            space(torch.tensor(raw).float()).numpy(), expected, atol=1e-3 * np.abs(expected).max()
        )

    def test_gradients_are_finite_where_features_are_zero(self, space: Space, lite0: TorchNetwork):
        raw = torch.zeros((2, lite0.width), requires_grad=True)
        space(raw).sum().backward()
        assert raw.grad.isfinite().all()


class TestCosts:
    def test_a_pass_of_lite0_costs_as_published(self, lite0: TorchNetwork):
        assert pass_costs(lite0).forward == pytest.approx(0.384e9, rel=0.01)

    def test_a_layer_costs_its_multiplications(self, lite0: TorchNetwork):
        stem, depthwise, *_, last = pass_costs(lite0).layers
        assert stem == 112 * 112 * 32 * (3 * 3 * 3)
        assert depthwise == 112 * 112 * 32 * (3 * 3)
        assert last == 7 * 7 * 1280 * 320

    def test_a_backward_pass_costs_a_forward_pass_without_the_first_layer(self, lite0: TorchNetwork):
        costs = pass_costs(lite0)
        assert costs.backward(first_of(lite0.places, lite0.places)) == costs.forward - costs.layers[0]

    def test_fewer_layers_cost_less(self, lite0: TorchNetwork):
        costs = pass_costs(lite0)
        first = [first_of(chosen(where, lite0.places), lite0.places) for where in ("all", "last-half", "last-1")]
        assert first == [0, 24, 48]
        for spent in (costs.from_layer, costs.backward):
            whole, half, last = map(spent, first)
            assert last < half < whole
        assert costs.from_layer(0) == costs.forward
        assert costs.backward(48) == 0  # no layer follows

    def test_half_the_width_costs_a_quarter(self, lite0: TorchNetwork):
        whole, half = (pass_costs(lite0, size).forward for size in (224, 112))
        assert half / whole == pytest.approx(0.25, abs=0.05)  # 7 × 7 places become 4 × 4
        assert pass_costs(lite0, 256).forward == 4 * pass_costs(lite0, 128).forward

    def test_costs_are_summed_by_kind(self):
        costs = Costs()
        for kind, macs in (("forward", 3), ("head", 1), ("forward", 2)):
            costs.add(kind, macs)
        assert (costs.spent, costs.total) == ({"forward": 5, "head": 1}, 6)


@pytest.mark.parametrize(
    ("mapper", "settings", "kinds"),
    [
        ("sketch", {}, {"forward", "head", "closed form", "mapper"}),
        ("gmmc", {"clusters": 3}, {"forward", "head", "EM", "mapper"}),
    ],
)
def test_a_lesson_has_the_cost_of_learning(new_agent, tiny_tasks: Path, mapper: str, settings, kinds: set[str]):
    agent = new_agent(anchor=mapper, **settings)
    _, plain = agent.learn(tiny_tasks / "shapes")
    _, again = agent.learn(tiny_tasks / "shapes", replace=True)
    assert plain.costs.spent.keys() == kinds
    assert plain.costs.spent["forward"] == 8 * pass_costs(agent.backbone.torch_network).forward  # 6 images and 2
    assert again.costs.spent == plain.costs.spent  # whether or not they were in the cache
    _, biased = agent.learn(tiny_tasks / "greek", adaptation=Adaptation(mode="always"))
    assert biased.costs.spent.keys() == kinds | {"backward"}
    assert biased.costs.total > 5 * plain.costs.total


def test_an_outer_counter_includes_an_inner_one_and_counting_ends_with_the_block():
    with counted() as outer:
        spend("one", 1)
        with counted() as inner:
            spend("two", 2)
        spend("one", 3)
    spend("one", 100)
    assert (outer.spent, inner.spent) == ({"one": 4, "two": 2}, {"two": 2})
