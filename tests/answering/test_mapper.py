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

from skillmesh.answering.answering import Answering, Mapper, _relative, _threshold
from skillmesh.core import Core
from skillmesh.learning.head import read_probes
from skillmesh.module import Module

NewAgent = Callable[..., Core]


@pytest.fixture(scope="module")
def described(taught: Core, mixed: list[Path], strange: list[Path]) -> np.ndarray:
    """Return descriptors of known images, followed by those of strange ones."""
    from skillmesh.data.inputs import as_image

    raw = taught.backbone.describe([as_image(path) for path in (*mixed, *strange)]).raw
    return taught.backbone.represent(raw, "descriptor")


def mapper_of(agent: Core, modules: list[Module]) -> Mapper:
    return Mapper(modules, "sketch", agent.calibration.prior("descriptor", compact=False))


def changed(module: Module, **tensors: np.ndarray) -> Module:
    return replace(module, tensors=module.tensors | {n.replace("_", "."): t for n, t in tensors.items()})


@pytest.mark.parametrize("kind", ["sketch", "gmmc", "maha"])
def test_posteriors_sum_to_one_and_unknown_means_novelty_above_the_threshold(
    new_agent: NewAgent, tiny_tasks: Path, mixed, strange, kind
):
    agent = new_agent(anchor=kind, representation="sqrt-features", variance_floor=0.01)
    for name in ("dice", "latin", "greek"):
        agent.learn(tiny_tasks / name)
    answers = agent.answer([*mixed, *strange])
    assert [a.unknown for a in answers] == [a.novelty > 1 for a in answers]
    assert {a.unknown for a in answers} == {True, False}
    modules, mapper = agent.mapper()
    x = np.concatenate([read_probes(m.tensors, m.card.dim) for m in modules])
    mapped = mapper.map(x)
    assert mapped.posterior.shape == (len(x), 3)
    assert mapped.posterior.min() >= 0
    assert np.allclose(mapped.posterior.sum(axis=1), 1, atol=1e-5)
    assert (mapped.task == mapped.posterior.argmax(axis=1)).all()


@pytest.mark.parametrize("threshold", [-5.0, 0.0, 1.2, float("inf")])
def test_novelty_of_an_answer_is_above_one_exactly_if_it_is_unknown(
    tiny_taught: Core, mixed, monkeypatch, threshold
):
    """This also holds below zero: gmmc's novelty is a log-likelihood."""
    monkeypatch.setattr(tiny_taught.mapper()[1], "threshold", threshold)
    answers = tiny_taught.answer(mixed)
    assert [a.unknown for a in answers] == [a.novelty > 1 for a in answers]
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


@pytest.mark.parametrize("kind", ["sketch", "gmmc", "maha"])
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
        assert not any(a.unknown for a in answers)
    assert not any(a.unknown for a in agent.answer(sorted(tmp_path.glob("*/*/0.jpg"))))


def test_most_probes_are_known_and_images_of_other_tasks_have_higher_novelty(
    taught: Core, described: np.ndarray, strange
):
    modules, mapper = taught.mapper()
    probes = np.concatenate([read_probes(m.tensors, m.card.dim) for m in modules])
    assert mapper.map(probes).unknown.mean() < 0.1
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


@pytest.mark.parametrize("temperature", [200.0, 400.0])
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


def threshold(novelty: list[float], default: float = 1.0) -> float:
    return _threshold(np.array(novelty, dtype=np.float32), np.full(len(novelty), 0.25), default)


def test_the_threshold_is_a_weighted_mean_of_the_usual_and_the_measured_one():
    """By hand: the middle is 1, measured is 1.1, the usual 1.25; ten probes weigh ten, the usual weighs four."""
    novelty = [0.9, *[1.0] * 8, 1.1]
    assert threshold(novelty) == pytest.approx((10 * 1.1 + 4 * 1.25) / 14, abs=2e-3)
    assert threshold([], default=7.0) == 7.0


def test_one_outlying_probe_does_not_disable_the_threshold():
    novelty = [*[1.0] * 9, 1e9]
    assert threshold(novelty) == pytest.approx((10 * 2.0 + 4 * 1.25) / 14, rel=1e-6)


def test_the_threshold_of_negative_novelties_is_above_their_median():
    """gmmc's novelty is a log-likelihood and may be below zero: the spread is still added."""
    assert threshold([-100.0]) == pytest.approx((-100 + 4 * -75) / 5)
    assert threshold([*[-100.0] * 9, 1e9]) == pytest.approx((10 * 0.0 + 4 * -75) / 14, abs=1e-4)
    assert threshold([-1.1, *[-1.0] * 8, -0.9]) == pytest.approx((10 * -0.9 + 4 * -0.75) / 14, abs=2e-3)


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
    config: Any = SimpleNamespace(anchor="sketch")
    answering = Answering(lambda: list(tasks), config, lambda: None, lambda: None, lambda: None)  # type: ignore
    monkeypatch.setattr(answering, "use", lambda *used: setattr(answering, "_mapper", used) or used)
    first = threading.Thread(target=answering.mapper)
    first.start()
    assert began.wait(10)
    tasks.append("two")
    second = threading.Thread(target=answering.rebuild)
    second.start()
    may_end.set()
    first.join(10)
    second.join(10)
    assert answering._mapper == (["one", "two"], "mapper of 2")
