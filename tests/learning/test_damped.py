"""Heads in the damped metric: directions in which views move descriptors count less."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from skillmesh.common.choices import Adaptation, WarmStart
from skillmesh.core import Core
from skillmesh.learning import head as heads
from skillmesh.learning.head import DEFAULT_STRENGTH, Head, fit_head, fit_path
from skillmesh.learning.warm_start import fit_from, fit_warm
from skillmesh.numerics.arrays import Damping

NewAgent = Callable[..., Core]
DIM, MOVED = 40, 7
COUNTS = [18, 120]
"""Numbers of images: few are fitted through their Gram matrix, many directly."""


def damping(size: float, dimension: int = MOVED) -> Damping:
    factor = np.zeros((2, DIM))
    factor[0, dimension] = size
    return Damping.of(factor, 10)


def some_images(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return images of three classes that differ in ten dimensions and, most of all, in one that views change."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    centres = np.zeros((3, DIM))
    centres[:, 10:20] = np.random.default_rng(1).standard_normal((3, 10)) * 2
    centres[:, MOVED] = 5, 0, -5
    return (centres[labels] + rng.standard_normal((count, DIM))).astype(np.float32), labels


def moved(count: int = 300) -> tuple[np.ndarray, np.ndarray]:
    x, labels = some_images(count, seed=9)
    x[:, MOVED] = 20 * np.random.default_rng(2).standard_normal(count)
    return x, labels


def accuracy(head: Head, x: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(head.logits(x).argmax(axis=1) == labels))


def equal(one: Head, other: Head) -> bool:
    return np.array_equal(one.weight, other.weight) and np.array_equal(one.bias, other.bias)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[Damping | None]:
    """The metric of every head that is fitted."""
    used: list[Damping | None] = []
    design = heads._Design.of

    def noted(*arguments: object, **more: object) -> object:
        used.append(more.get("damping", arguments[3] if len(arguments) > 3 else None))
        return design(*arguments, **more)

    monkeypatch.setattr(heads._Design, "of", noted)
    return used


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("held", [0, 6])
def test_a_head_ignores_a_direction_of_large_nuisance(count: int, held: int):
    x, labels = some_images(count)
    kept = x.copy()
    plain, damped = (
        fit_head(x[held:], labels[held:], x[:held], labels[:held], 3, damping=how).head
        for how in (None, damping(9))
    )
    assert np.array_equal(x, kept)
    assert np.abs(damped.weight[:, MOVED]).max() < 0.05 * np.abs(plain.weight[:, MOVED]).max()
    assert accuracy(damped, *some_images(300, seed=9)) > 0.95
    assert accuracy(damped, *moved()) > 0.95 > 0.8 > accuracy(plain, *moved())


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("held", [0, 6])
def test_a_head_is_the_plain_one_where_the_nuisance_is_zero(count: int, held: int):
    x, labels = some_images(count)
    x[:, 3] = 1.5  # views move images along a dimension in which these do not differ
    parts = x[held:], labels[held:], x[:held], labels[:held]
    plain, undamped, elsewhere = (
        fit_head(*parts, 3, damping=how) for how in (None, damping(0), damping(9, dimension=3))
    )
    assert equal(undamped.head, plain.head)
    assert (undamped.strength, undamped.temperature) == (plain.strength, plain.temperature)
    np.testing.assert_allclose(elsewhere.head.logits(x), plain.head.logits(x), atol=0.01)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_damped_head_on_images_is_a_plain_head_on_damped_images(count: int, overwrite: bool):
    x, labels = some_images(count)
    how = Damping.of(np.random.default_rng(3).standard_normal((5, DIM)), 10)
    plain = fit_path(how.apply(x), labels, 3, (0.1, 0.01))
    expected = [head.logits(how.apply(x)) for head in plain]
    kept = x.copy()
    for head, logits in zip(
        fit_path(x, labels, 3, (0.1, 0.01), overwrite=overwrite, damping=how), expected, strict=True
    ):
        np.testing.assert_allclose(head.logits(kept), logits, atol=1e-3)
    assert overwrite != np.array_equal(x, kept)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_warm_centre_keeps_its_logits(count: int, with_bias: bool):
    """A prior of great strength holds the head to its centre, also along directions of nuisance."""
    x, labels = some_images(count)
    rng = np.random.default_rng(4)
    centre = rng.standard_normal((3, DIM)).astype(np.float32)
    bias = rng.standard_normal(3).astype(np.float32) if with_bias else None
    (head,) = fit_path(x, labels, 3, [1e6], centre, bias, damping=damping(9))
    np.testing.assert_allclose(head.weight, centre, atol=1e-4)
    (plain,) = fit_path(x, labels, 3, [1e6], centre, bias)
    np.testing.assert_allclose(head.logits(x), plain.logits(x), atol=0.05)


@pytest.mark.parametrize("count", COUNTS)
def test_a_nuisance_of_any_size_leaves_heads_finite(count: int):
    x, labels = some_images(count)
    huge = damping(1e9)
    assert np.isfinite(huge.undo(x)).all()
    np.testing.assert_allclose(huge.apply(huge.undo(x)), x, atol=0.01)
    centre = np.random.default_rng(4).standard_normal((3, DIM)).astype(np.float32)
    (head,) = fit_path(x, labels, 3, [0.1], centre, damping=huge)
    assert np.isfinite(head.weight).all()


def test_before_the_first_step_a_head_is_its_centre_with_its_bias(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(heads, "_minimise", lambda rows, labels, start, *_: start)
    x, labels = some_images(60)
    rng = np.random.default_rng(5)
    centre, bias = rng.standard_normal((3, DIM)).astype(np.float32), rng.standard_normal(3).astype(np.float32)
    (head,) = fit_path(x, labels, 3, [0.1], centre, bias, damping=damping(9))
    np.testing.assert_allclose(head.logits(x), x @ centre.T + bias, atol=1e-3)


@pytest.mark.parametrize("held", [0, 12])
def test_a_warm_start_is_damped_whether_it_wins_or_not(held: int):
    x, labels = some_images(30)
    parts = x[held:], labels[held:], x[:held], labels[:held]
    cold = fit_warm(*parts, np.zeros((3, DIM), dtype=np.float32), damping=damping(9))
    assert cold.pull == 0
    assert equal(cold.fit.head, fit_head(*parts, 3, damping=damping(9)).head)
    good = fit_path(*some_images(300, seed=6), 3, [DEFAULT_STRENGTH])[0].weight
    good[:, MOVED] = 0
    noisy = parts[0] + 3 * np.random.default_rng(7).standard_normal(parts[0].shape).astype(np.float32)
    noisy[:, MOVED] = parts[0][:, MOVED]
    warm, plain = (fit_warm(noisy, *parts[1:], good, margin=0, damping=how) for how in (damping(9), None))
    assert warm.pull > 0
    assert np.abs(warm.fit.head.weight[:, MOVED]).max() < 0.05 * np.abs(plain.fit.head.weight[:, MOVED]).max()
    assert equal(fit_from([], parts[:2], parts[2:], 3, damping(9))[0].fit.head, cold.fit.head)


@pytest.mark.parametrize("held", [0, 12])
def test_all_heads_that_a_warm_start_compares_are_damped(held: int, used: list[Damping | None]):
    x, labels = some_images(30)
    how = damping(9)
    centre = np.random.default_rng(8).standard_normal((3, DIM)).astype(np.float32)
    fit_warm(x[held:], labels[held:], x[:held], labels[:held], centre, damping=how)
    assert len(used) > 1
    assert {id(each) for each in used} == {id(how)}


class TestAgent:
    def test_learns_heads_that_views_move_less(
        self, new_agent: NewAgent, tiny_tasks: Path, used: list[Damping | None], monkeypatch: pytest.MonkeyPatch
    ):
        damped, plain = new_agent("damped"), new_agent("plain")
        metric, moves = damped.prior.damping, damped.prior.moves()
        shares = []
        for agent in (damped, plain):
            if agent is plain:
                monkeypatch.setattr(type(agent.prior), "damping", None)
            weight = Head.read(agent.learn(tiny_tasks / "dice")[0].tensors).weight
            shares.append(np.linalg.norm(weight @ moves.T) / np.linalg.norm(weight))
        assert metric is not None
        assert [each is metric for each in used] == [True, False]
        assert used[1] is None
        assert shares[0] < 0.7 * shares[1]

    def test_uses_one_metric_however_it_learns(
        self, new_agent: NewAgent, demo_tasks: Path, tiny_tasks: Path, used: list[Damping | None]
    ):
        agent = new_agent(compact=True)
        ways: dict[str, Callable[[], object]] = {
            "cold": lambda: agent.learn(tiny_tasks / "dice", warm_start=WarmStart("never")),
            "warm": lambda: agent.learn(tiny_tasks / "dice", name="again"),
            "extended": lambda: agent.continue_task("dice", demo_tasks / "dice"),
            "composed": lambda: agent.compose("both", ["dice:*"], images=demo_tasks / "dice"),
        }
        for way, learn in ways.items():
            learn()
            assert used, way
            assert {id(each) for each in used} == {id(agent.prior.damping)}, way
            used.clear()

    @pytest.mark.torch
    @pytest.mark.long
    def test_uses_it_on_an_adapted_backbone_too(
        self, new_agent: NewAgent, tiny_tasks: Path, used: list[Damping | None]
    ):
        agent = new_agent()
        agent.learn(tiny_tasks / "dice", adaptation=Adaptation("always", layers="last-2", epochs=1))
        assert len(used) >= 2
        assert {id(each) for each in used} == {id(agent.prior.damping)}
