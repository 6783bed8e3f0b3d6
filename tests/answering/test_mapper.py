"""The mapper: its threshold and temperature, its answers, and when it is rebuilt."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kinds import FITTED

from skillmesh.anchors import KnownOdds, Scores
from skillmesh.answering import answering
from skillmesh.answering.answering import (
    UNANSWERED,
    UNKNOWN_BELOW,
    Answering,
    Mapped,
    Mapper,
    _relative,
    _threshold,
    known_odds,
)
from skillmesh.core import Core
from skillmesh.learning.head import probe_weights, read_probes
from skillmesh.module import Module

NewAgent = Callable[..., Core]


@pytest.fixture(scope="module")
def described(taught: Core, mixed: list[Path], strange: list[Path]) -> np.ndarray:
    """Return descriptors of known images, followed by those of strange ones."""
    from skillmesh.data.inputs import as_image

    raw = taught.backbone.describe([as_image(path) for path in (*mixed, *strange)]).raw
    return taught.backbone.represent(raw, "descriptor")


def mapper_of(agent: Core, modules: list[Module], unanswered: float = UNANSWERED) -> Mapper:
    return Mapper(modules, "sketch", agent.calibration.prior("descriptor", compact=False), unanswered)


def changed(module: Module, **tensors: np.ndarray) -> Module:
    return replace(module, tensors=module.tensors | {n.replace("_", "."): t for n, t in tensors.items()})


@pytest.mark.parametrize("kind", FITTED)
def test_posteriors_sum_to_one_and_images_above_the_threshold_are_not_answered(
    new_agent: NewAgent, tiny_tasks: Path, mixed, strange, kind
):
    agent = new_agent(anchor=kind, representation="sqrt-features", variance_floor=0.01)
    for name in ("dice", "latin", "greek"):
        agent.learn(tiny_tasks / name)
    answers = agent.answer([*mixed, *strange])
    assert [a.label is None for a in answers] == [a.novelty > 1 for a in answers]
    assert {a.label is None for a in answers} == {True, False}
    if kind == "sketch":
        assert [a.unknown for a in answers] == [a.novelty > 1 and a.known < UNKNOWN_BELOW for a in answers]
        assert [a.unsure for a in answers] == [a.novelty > 1 and a.known >= UNKNOWN_BELOW for a in answers]
    else:  # their novelties have no common scale, so nothing tells how likely the task is known
        assert {(a.known, a.unsure) for a in answers} == {(1.0, False)}
    modules, mapper = agent.mapper()
    x = np.concatenate([read_probes(m.tensors, m.card.dim) for m in modules])
    mapped = mapper.map(x)
    assert mapped.posterior.shape == (len(x), 3)
    assert mapped.posterior.min() >= 0
    assert np.allclose(mapped.posterior.sum(axis=1), 1, atol=1e-5)
    assert (mapped.task == mapped.posterior.argmax(axis=1)).all()


@pytest.mark.parametrize("threshold", [-5.0, 0.0, 1.2, float("inf")])
def test_novelty_of_an_answer_is_above_one_exactly_if_it_has_no_label(
    tiny_taught: Core, mixed, monkeypatch, threshold
):
    """This also holds below zero: gmmc's novelty is a log-likelihood."""
    monkeypatch.setattr(tiny_taught.mapper()[1], "threshold", threshold)
    answers = tiny_taught.answer(mixed)
    assert [a.label is None for a in answers] == [a.novelty > 1 for a in answers]
    assert [a.unknown or a.unsure for a in answers] == [a.novelty > 1 for a in answers]
    assert all(np.isfinite(a.novelty) for a in answers)


def test_threshold_and_temperature_come_from_probes_and_anchors_alone(taught: Core, described: np.ndarray):
    modules, mapper = taught.mapper()
    bare = []
    for module in modules:
        kept = {name: t for name, t in module.tensors.items() if name.startswith(("sketch", "probe"))}
        assert len(kept) == len(module.tensors) - 3  # the head's
        bare.append(replace(module, tensors=kept, card=module.card.model_copy(update={"temperature": 50.0})))
    same = mapper_of(taught, bare)
    assert (same.threshold, same.temperature) == (mapper.threshold, mapper.temperature)
    assert same.map(described).posterior.tobytes() == mapper.map(described).posterior.tobytes()


def test_distant_probes_raise_the_threshold_and_probes_of_other_tasks_the_temperature(
    taught: Core, described: np.ndarray
):
    modules, mapper = taught.mapper()
    first, second, *rest = modules
    far = changed(first, probe_scale=first.tensors["probe.scale"] * 5)
    moved = mapper_of(taught, [far, second, *rest])
    assert moved.threshold > mapper.threshold
    assert moved.map(described).novelty.tobytes() == mapper.map(described).novelty.tobytes()
    swapped = [
        changed(to, probe=of.tensors["probe"], probe_scale=of.tensors["probe.scale"])
        for to, of in ((first, second), (second, first))
    ]
    assert mapper_of(taught, [*swapped, *rest]).temperature > 2 * mapper.temperature


@pytest.mark.parametrize("kind", FITTED)
def test_a_bank_without_probes_uses_the_default_threshold(
    new_agent: NewAgent, tiny_tasks, tmp_path, mixed, strange, kind
):
    agent = new_agent(anchor=kind, representation="sqrt-features")
    for name in ("dice", "latin"):
        for cls in sorted((tiny_tasks / name / "train").iterdir()):
            (tmp_path / name / cls.name).mkdir(parents=True)
            shutil.copy(cls / "0.jpg", tmp_path / name / cls.name)
        module, _ = agent.learn(tmp_path / name)
        assert (module.card.validation_images, module.card.validation_accuracy) == (0, None)
        assert "probe" not in module.tensors
    mapper = agent.mapper()[1]
    assert (mapper.temperature, mapper.threshold) == (1.0, mapper._scorer.usual_threshold)
    answers = agent.answer([*mixed, *strange])
    assert all(np.isfinite([a.confidence, a.novelty]).all() for a in answers)
    if np.isinf(mapper.threshold):
        assert all(a.label for a in answers)
    assert all(a.label for a in agent.answer(sorted(tmp_path.glob("*/*/0.jpg"))))


def test_most_probes_are_answered_and_images_of_other_tasks_have_higher_novelty(
    taught: Core, described: np.ndarray, strange
):
    modules, mapper = taught.mapper()
    probes = np.concatenate([read_probes(m.tensors, m.card.dim) for m in modules])
    shares = np.concatenate([probe_weights(m.card.validation_images) for m in modules])
    assert np.average(mapper.map(probes).unanswered, weights=shares) <= UNANSWERED
    mapped = mapper.map(described)
    known, hidden = mapped.novelty[: -len(strange)], mapped.novelty[-len(strange) :]
    assert np.median(hidden) > np.quantile(known, 0.9)


def test_each_change_of_the_bank_rebuilds_the_mapper(new_agent: NewAgent, tiny_tasks: Path, skill_files):
    agent = new_agent()
    seen = []

    def look() -> list[str]:
        modules, mapper = agent.mapper()
        assert agent.mapper()[1] is mapper  # not built twice
        assert all(mapper is not other for other in seen)
        seen.append(mapper)
        return sorted(m.card.task for m in modules)

    agent.learn(tiny_tasks / "dice")
    assert look() == ["dice"]
    agent.import_file(skill_files["latin"])
    assert look() == ["dice", "latin"]
    agent.learn(tiny_tasks / "dice", replace=True)
    assert look() == ["dice", "latin"]
    agent.forget("dice")
    assert look() == ["latin"]


# Numbers that do not affect the best task: a wrong one changes every confidence, but no winner.


def log_odds(mapper: Mapper, x: np.ndarray) -> np.ndarray:
    """Return the log odds of each task against the last, as far as single precision allows."""
    posterior = mapper.map(x).posterior.astype(np.float64)
    return np.log(posterior[:, :-1] / posterior[:, -1:])


@pytest.mark.parametrize("temperature", [400.0, 800.0])  # tasks differ by up to 5,000 in their scores
def test_log_odds_are_differences_of_scores_over_the_temperature(
    taught: Core, described: np.ndarray, monkeypatch, temperature
):
    mapper = mapper_of(taught, taught.mapper()[0])
    scores = mapper._scorer.score(described).task
    monkeypatch.setattr(mapper, "temperature", temperature)
    expected = (scores[:, :-1] - scores[:, -1:]) / temperature
    near = np.abs(expected) < 10
    assert near.mean() > 0.5
    np.testing.assert_allclose(log_odds(mapper, described)[near], expected[near], rtol=1e-3, atol=1e-3)


def test_the_temperature_is_the_one_that_fits_the_probes_best(taught: Core):
    """The loss on the probes must not be smaller at twice or half of it."""
    modules, mapper = taught.mapper()
    owners = np.repeat(np.arange(len(modules)), [len(read_probes(m.tensors, m.card.dim)) for m in modules])
    probes = np.concatenate([read_probes(m.tensors, m.card.dim) for m in modules])

    def loss(temperature: float) -> float:
        tried = mapper_of(taught, modules)
        tried.temperature = temperature
        share = tried.map(probes).posterior[np.arange(len(owners)), owners]
        return float(-np.log(np.maximum(share, 1e-30)).sum()) + np.log(temperature) ** 2

    at_best = loss(mapper.temperature)
    assert at_best <= loss(2 * mapper.temperature)
    assert at_best <= loss(mapper.temperature / 2)


class TestThreshold:
    """By hand, for a usual spread of 0.25, and 0.75 % of the probes above the threshold for 1 % of all images."""

    @pytest.fixture(autouse=True)
    def _numbers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(answering, "OPTIMISM", 0.75)

    def threshold(self, novelty: list[float], default: float = 1.0, unanswered: float = 0.05) -> float:
        scorer = SimpleNamespace(usual_threshold=default, usual_spread=0.25)
        weights = np.full(len(novelty), 0.25)
        return _threshold(np.array(novelty, dtype=np.float32), weights, scorer, unanswered)

    def test_is_a_weighted_mean_of_the_usual_and_the_measured_one(self):
        """The middle is 1, measured is 1.1, the usual 1.25; ten probes weigh ten, the usual weighs four."""
        novelty = [0.9, *[1.0] * 8, 1.1]
        assert self.threshold(novelty) == pytest.approx((10 * 1.1 + 4 * 1.25) / 14, abs=2e-3)
        assert self.threshold([], default=7.0) == 7.0

    def test_is_moved_by_the_setting(self):
        """For a fifth of all images, 15 % of the probes are above what is measured, and the usual is nearer."""
        novelty = np.linspace(0.8, 1.2, 101).tolist()
        usual = 1 + 0.25 * np.log(0.2) / np.log(0.05)
        measured = 0.8 + 0.4 * (0.85 * 101 - 0.5) / 100
        expected = (101 * measured + 4 * usual) / 105
        assert self.threshold(novelty, unanswered=0.2) == pytest.approx(expected, abs=1e-4)
        usual = 1 + 0.25 * 3 * np.log(10) / np.log(20)
        assert self.threshold([1.0], unanswered=0.001) == pytest.approx((1 + 4 * usual) / 5)

    def test_is_not_disabled_by_one_outlying_probe(self):
        novelty = [*[1.0] * 9, 1e9]
        assert self.threshold(novelty) == pytest.approx((10 * 2.0 + 4 * 1.25) / 14, rel=1e-6)

    def test_of_negative_novelties_is_above_their_median(self):
        """gmmc's novelty is a log-likelihood and may be below zero: the spread is still added."""
        assert self.threshold([-100.0]) == pytest.approx((-100 + 4 * -75) / 5)
        assert self.threshold([*[-100.0] * 9, 1e9]) == pytest.approx((10 * 0.0 + 4 * -75) / 14, abs=1e-4)
        assert self.threshold([-1.1, *[-1.0] * 8, -0.9]) == pytest.approx((10 * -0.9 + 4 * -0.75) / 14, abs=2e-3)


class TestUnanswered:
    def test_the_setting_is_the_share_of_probes_above_the_threshold(self, taught: Core):
        modules, _ = taught.mapper()
        shares, thresholds = [], []
        for setting in (0.001, 0.05, 0.15, 0.3, 0.5):
            mapper = mapper_of(taught, modules, setting)
            shares.append(mapper.probed.unanswered.mean())
            thresholds.append(mapper.threshold)
        assert thresholds == sorted(set(thresholds), reverse=True)
        assert shares == sorted(shares)
        assert shares[0] == 0
        assert shares[-1] > shares[1] + 0.1

    def test_the_setting_of_the_agent_is_used(self, new_agent: NewAgent, tiny_tasks: Path):
        agent = new_agent(unanswered=0.4)
        for name in ("dice", "latin"):
            agent.learn(tiny_tasks / name)
        modules, mapper = agent.mapper()
        assert mapper.threshold == mapper_of(agent, modules, 0.4).threshold < mapper_of(agent, modules).threshold

    def test_images_that_may_well_be_of_a_known_task_are_not_called_unknown(self):
        unanswered, known = np.array([True, True, False, False]), np.array([0.1, 0.09, 0.05, 0.9], np.float32)
        mapped = Mapped(np.ones((4, 1), np.float32), np.zeros(4, np.float32), unanswered, known)
        assert mapped.unknown.tolist() == [False, True, False, False]
        assert replace(mapped, tells=False).unknown.tolist() == unanswered.tolist()


class TestKnown:
    """The probability that an image is of a known task."""

    def test_log_odds_fall_with_the_logarithms_of_novelty_and_of_the_number_of_tasks(self):
        measured = KnownOdds(alone=1.5, per_task=0.8, slope=19.0)
        for middle, tasks in ((1.2, 1), (1.2, 4), (0.7, 30)):
            at_one, slope = known_odds(measured, middle, tasks)
            log_odds = [at_one - slope * np.log(novelty) for novelty in (middle, 1.1 * middle)]
            assert log_odds[0] == pytest.approx(1.5 - 0.8 * np.log(tasks))
            assert log_odds[1] == pytest.approx(log_odds[0] - 19 * np.log(1.1))
        assert known_odds(None, 1.2, 4) is None

    @pytest.mark.parametrize("tasks", [1, 2, 4])
    def test_falls_with_novelty_and_is_that_of_the_bank_at_the_threshold(
        self, taught: Core, described: np.ndarray, tasks: int
    ):
        mapper = mapper_of(taught, taught.mapper()[0][:tasks])
        mapped = mapper.map(described)
        novelty = mapped.novelty.astype(np.float64)
        odds = mapper._scorer.known_odds
        at_threshold = odds.alone - odds.per_task * np.log(tasks)
        expected = 1 / (1 + (novelty / mapper.threshold) ** odds.slope * np.exp(-at_threshold))
        np.testing.assert_allclose(mapped.known, expected, rtol=2e-3, atol=1e-6)
        assert (np.diff(mapped.known[np.argsort(novelty)]) <= 0).all()
        assert mapped.known.min() < 0.1 < 0.9 < mapped.known.max()

    def test_does_not_depend_on_the_share_that_may_stay_unanswered(self, taught: Core, described: np.ndarray):
        modules, mapper = taught.mapper()
        stricter = mapper_of(taught, modules, 0.4)
        assert stricter.threshold < mapper.threshold
        assert stricter.map(described).known.tobytes() == mapper.map(described).known.tobytes()

    def test_is_finite_at_any_novelty(self, tiny_taught: Core):
        mapper = tiny_taught.mapper()[1]
        novelty = np.array([0, 1e-30, 1, 1e30], dtype=np.float32)
        known = mapper._mapped(Scores(np.zeros((4, 4), dtype=np.float32), novelty)).known
        assert known[:2].tolist() == [1, 1]
        assert known[-1] < 1e-30


@pytest.mark.parametrize(
    ("novelty", "threshold", "relative"),
    [(1.3, 1.3, 1.0), (2.6, 1.3, 2.0), (0.0, 1.3, 0.0), (-80, -100, 1.2), (-120, -100, 0.8), (5.0, np.inf, 0.0)],
)
def test_novelty_is_reported_relative_to_the_threshold(novelty: float, threshold: float, relative: float):
    """Larger means less familiar, also below zero."""
    assert _relative(novelty, threshold) == pytest.approx(relative)


def test_a_threshold_of_zero_still_separates_known_from_unknown():
    assert _relative(1e-3, 0.0) > 1 > _relative(-1e-3, 0.0)


def test_the_mapper_on_trial_is_the_same_object_if_no_task_steps_back(tiny_taught: Core):
    mapper = tiny_taught.mapper()[1]
    assert not mapper.steps_back.any()
    assert mapper.on_trial() is mapper


def test_a_small_bank_scores_all_tasks_exactly(tiny_taught: Core):
    modules, mapper = tiny_taught.mapper()
    assert mapper.shortlist_agreement(read_probes(modules[0].tensors, modules[0].card.dim)) == 1.0


def test_a_slow_build_never_replaces_a_newer_mapper(monkeypatch: pytest.MonkeyPatch):
    """A first question builds a mapper while the bank grows, and another thread builds one for the larger bank."""
    tasks = ["one"]
    began, may_end = threading.Event(), threading.Event()

    def build(modules: list[str], *_: object) -> str:
        if len(modules) == 1:
            began.set()
            may_end.wait(10)
        return f"mapper of {len(modules)}"

    monkeypatch.setattr("skillmesh.answering.answering.Mapper", build)
    config: Any = SimpleNamespace(anchor="sketch", unanswered=0.05)
    asked = Answering(lambda: list(tasks), config, lambda: None, lambda: None, lambda: None)  # type: ignore
    monkeypatch.setattr(asked, "use", lambda *used: setattr(asked, "_mapper", used) or used)
    first = threading.Thread(target=asked.mapper)
    first.start()
    assert began.wait(10)
    tasks.append("two")
    second = threading.Thread(target=asked.rebuild)
    second.start()
    may_end.set()
    first.join(10)
    second.join(10)
    assert asked._mapper == (["one", "two"], "mapper of 2")
