"""Grown (synthetic) tasks, and the output of `challenge simulate`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from skillmesh.anchors.protocol import AnchorSettings
from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.backbone.calibration import Prior
from skillmesh.core import Core
from skillmesh.errors import SkillmeshError
from skillmesh.numerics.arrays import LowRank
from skillmesh_challenge import simulate as simulation
from skillmesh_challenge.growth import (
    Family,
    _distances,
    crossing,
    fit_reach,
    grow,
    grown_bank,
    recognised,
    related,
)
from skillmesh_challenge.scale import ScalePlan, measure

pytestmark = pytest.mark.long

DIM, CLASSES = 48, 5


class World:
    """A population from which any number of tasks can really be drawn."""

    def __init__(self, seed: int = 0, spread: float = 1.5) -> None:
        self.rng = np.random.default_rng(seed)
        within = LowRank(np.ones(DIM), 0.1 * self.rng.standard_normal((3, DIM)))
        between = LowRank(np.ones(DIM), self.rng.standard_normal((6, DIM)))
        self.prior = Prior(within, between, np.zeros(DIM))
        self.plane = spread * self.rng.standard_normal((4, DIM)) / np.sqrt(DIM)

    def task(self) -> tuple[SketchAnchor, np.ndarray]:
        """Return an anchor, and images that were not used for it."""
        centre = 3 * self.rng.standard_normal(4)
        means = (centre + self.rng.standard_normal((CLASSES, 4))) @ self.plane
        x, seen = (
            (means[labels] + 0.5 * self.rng.standard_normal((len(labels), DIM))).astype(np.float32)
            for labels in (np.repeat(np.arange(CLASSES), 30), np.repeat(np.arange(CLASSES), 12))
        )
        anchor = SketchAnchor.fit(x, np.repeat(np.arange(CLASSES), 30), CLASSES, AnchorSettings())
        return anchor, seen


@pytest.fixture(scope="module")
def world() -> tuple[list[SketchAnchor], list[np.ndarray], Prior]:
    made = World()
    anchors, shown = zip(*(made.task() for _ in range(24)), strict=True)
    return list(anchors), list(shown), made.prior


@pytest.fixture(scope="module")
def family(world) -> Family:
    return related(world[0], world[2])


def test_distances_are_those_of_the_pooled_scatter(family: Family):
    dense = np.diag(family.precision.diagonal) - family.precision.factor.T.astype(float) @ family.precision.factor
    step = (family.means[0] - family.means[7]).astype(float)
    found = _distances(family.means, family.precision)
    assert found[0, 7] == pytest.approx(np.sqrt(step @ dense @ step), rel=1e-3)
    assert np.isinf(family.distance[0, 0])
    nearest = family.nearest[0, 3]
    assert family.owner[nearest] == 3
    assert family.distance[0, 3] == pytest.approx(found[0, family.owner == 3].min())


def test_a_grown_class_has_the_specified_distance_to_a_real_one(family: Family, world):
    for grown in grow(family, 12, np.random.default_rng(1), reach=0.5):
        own = np.flatnonzero(family.owner == grown.donor)
        moved = _distances(np.concatenate([family.means[own], grown.anchor.means]), family.precision)
        lengths = np.diag(moved[: len(own), len(own) :])
        share = lengths / family.distance[own].min(axis=1)
        assert share.max() <= 0.5 + 1e-3
        assert np.ptp(share) < 1e-2  # a task is near as a whole
        assert grown.anchor.scatter is world[0][grown.donor].scatter


@pytest.mark.parametrize("classes", [2, CLASSES, 20])
def test_grown_tasks_have_as_many_classes_as_asked(family: Family, classes: int):
    grown = list(grow(family, 3, np.random.default_rng(0), classes=classes))
    assert [len(g.anchor.means) for g in grown] == [classes] * 3
    assert all(np.isfinite(g.anchor.means).all() for g in grown)


def test_the_nearer_grown_tasks_come_the_more_images_are_lost(world, family: Family):
    anchors, shown, prior = world
    found = []
    for reach in (4.0, 1.0, 0.1):
        more = [g.anchor for g in grow(family, 24, np.random.default_rng(0), reach)]
        found.append(np.mean(recognised([*anchors, *more], prior, shown)))
    assert found[0] > found[1] > found[2]


def test_growing_predicts_the_effect_of_tasks_drawn_later():
    """Half of a population, grown from its own tasks alone, loses as much accuracy as among the whole."""
    rows = []
    for seed in range(8):
        made = World(seed, spread=1.0)
        anchors, shown = map(list, zip(*(made.task() for _ in range(24)), strict=True))
        half, seen, prior, rng = anchors[:12], shown[:12], made.prior, np.random.default_rng(seed)
        reach, family = fit_reach(half, prior, seen, rng), related(half, prior)
        draws = [[*half, *(g.anchor for g in grow(family, 12, rng, reach))] for _ in range(3)]
        alone, measured, *grown = (np.mean(recognised(bank, prior, seen)) for bank in (half, anchors, *draws))
        rows.append((alone, measured, np.mean(grown)))
    alone, measured, grown = np.mean(rows, axis=0)
    assert measured < alone - 0.02  # there is an effect to predict
    assert abs(grown - measured) < 0.6 * abs(alone - measured)


def test_the_reach_is_where_accuracies_cross():
    assert crossing(lambda reach: reach / 3, 0.25) == pytest.approx(0.75, rel=0.05)
    assert crossing(lambda _: 0.9, 0.95) == pytest.approx(3, rel=0.1)  # always harder: the maximum distance
    assert crossing(lambda _: 0.99, 0.95) == pytest.approx(0.3, rel=0.1)  # never as hard: the minimum distance


def test_a_grown_bank_holds_whole_modules_that_an_agent_answers_from(tiny_taught: Core, mixed):
    bank = grown_bank(tiny_taught, 9, 6, 1.0, seed=0)
    real, grown = bank[:4], bank[4:]
    assert real == list(tiny_taught.bank)
    assert {len(m.card.classes) for m in grown} == {6}
    assert len({m.card.task for m in bank}) == 9
    for module in grown:
        assert module.tensors.keys() == real[0].tensors.keys()
        assert module.size > sum(tensor.nbytes for tensor in module.tensors.values())
    again = grown_bank(tiny_taught, 9, 6, 1.0, seed=0)
    assert all(
        np.array_equal(a.tensors["sketch.mean"], b.tensors["sketch.mean"])
        for a, b in zip(bank, again, strict=True)
    )


def half(gap: float) -> simulation.Half:
    return simulation.Half(0.99, 0.98, 0.97, 0.97 + gap, 0.6)


@pytest.mark.parametrize(
    ("gaps", "printed"), [((0.01, -0.019), True), ((0.01, 0.021), False), ((-0.03,), False), ((), False)]
)
def test_no_accuracy_is_given_unless_every_half_came_within_two_points(
    new_agent, demo_tasks: Path, monkeypatch, gaps, printed
):
    monkeypatch.setattr(simulation, "check_growth", lambda *_: [half(gap) for gap in gaps])
    monkeypatch.setattr(
        simulation, "measure_in_new_process", measure
    )  # in this process, where the network is already loaded
    paths = [demo_tasks / name for name in ("shapes", "dice", "latin", "greek")]
    report = simulation.simulate(new_agent(), paths, ScalePlan(8, 8, 3, rounds=1))
    assert report["proven"] is printed
    assert (report["extrapolated"] is not None) is printed
    assert not {"task_found_accuracy", "final_accuracy"} & report.keys()


@pytest.mark.slow
def test_the_command_measures_in_a_process_of_its_own_and_names_what_is_simulated(command, demo_tasks: Path):
    ran = command("challenge", "simulate", demo_tasks, "--tasks", 12, "--agents", 4, "--classes", 7, "--json")
    report = ran.json
    assert (report["real_tasks"], report["plan"]["tasks"]) == (5, 12)
    assert report["classes"] == 7 * 7 + sum(len(list((t / "train").iterdir())) for t in demo_tasks.iterdir())
    assert report["check"] == []
    assert report["extrapolated"] is None
    assert report["bytes"]["per_agent"] == pytest.approx(9 * report["bytes"]["module"])
    assert report["answer_seconds"] > 0
    assert report["memory"]["process_peak_bytes"] >= report["memory"]["process_bytes"] > 1e8
    assert "class means" in report["simulated"]
    assert str(demo_tasks) not in ran.out
    shown = command("challenge", "simulate", demo_tasks, "--tasks", 6, "--agents", 2)
    assert "no accuracy is extrapolated: too few real tasks" in shown.out


def test_a_measuring_process_that_dies_is_reported(tmp_path: Path):
    with pytest.raises(SkillmeshError, match="ended"):
        simulation.measure_in_new_process(tmp_path / "no-agent", [], ScalePlan(9, 3), 1.0)


@pytest.mark.parametrize(("tasks", "reason"), [(5, "can be grown to more"), (4, "can be grown to more")])
def test_numbers_of_tasks_that_cannot_be_simulated_are_refused(command, demo_tasks: Path, tasks: int, reason: str):
    ran = command("challenge", "simulate", demo_tasks, "--tasks", tasks)
    assert (ran.code, reason in ran.err) == (1, True)


@pytest.mark.slow
def test_real_tasks_grown_from_half_come_within_two_points_of_the_measured(command, real_tasks: Path):
    report = command(
        "challenge", "simulate", real_tasks, "--tasks", 100, "--agents", 10, "--halves", 2, "--json"
    ).json
    assert all(abs(half["gap"]) <= 0.02 for half in report["check"])
    assert report["extrapolated"]["task_found_accuracy"] <= report["check"][0]["all_real"] + 0.005
