"""The mapper of a large bank finds the same tasks as that of a small one, with less memory."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
from threadpoolctl import threadpool_info, threadpool_limits

from skillmesh.anchors.protocol import AnchorSettings
from skillmesh.anchors.shortlist import CLOSE, ShortlistScorer
from skillmesh.anchors.sketch import SketchAnchor, SketchScorer
from skillmesh.answering.answering import Mapper
from skillmesh.backbone.calibration import Prior
from skillmesh.core import Core
from skillmesh.numerics.arrays import LowRank

DIM, TASKS, CLASSES = 96, 30, 7


def prior(rng: np.random.Generator) -> Prior:
    within = LowRank(rng.uniform(0.5, 2, DIM), 0.3 * rng.standard_normal((12, DIM)))
    between = LowRank(rng.uniform(0.5, 2, DIM), rng.standard_normal((10, DIM)))
    return Prior(within, between, rng.standard_normal(DIM))


def anchor(rng: np.random.Generator, images: int = 6) -> SketchAnchor:
    centre = 2 * rng.standard_normal(DIM)
    labels = np.repeat(np.arange(CLASSES), images)
    x = centre + rng.standard_normal((CLASSES, DIM))[labels] + rng.standard_normal((len(labels), DIM))
    return SketchAnchor.fit(x.astype(np.float32), labels, CLASSES, AnchorSettings())


@pytest.fixture
def bank() -> tuple[list[SketchAnchor], Prior, np.ndarray]:
    rng = np.random.default_rng(0)
    anchors = [SketchAnchor.read(anchor(rng, 1 if task == 3 else 6).tensors()) for task in range(TASKS)]
    x = np.concatenate([a.means + rng.standard_normal(a.means.shape) for a in anchors]).astype(np.float32)
    return anchors, prior(rng), x


@pytest.mark.parametrize("viewed", [False, True])
def test_scoring_all_tasks_exactly_gives_the_scores_of_a_small_bank(bank, monkeypatch, viewed):
    anchors, known, x = bank
    if viewed:
        rng = np.random.default_rng(3)
        nuisance = LowRank(rng.uniform(0.5, 2, DIM), 2 * rng.standard_normal((5, DIM)))
        plain = SketchScorer(list(anchors), known).score(x).novelty
        known = replace(known, nuisance=nuisance)
        assert np.abs(SketchScorer(list(anchors), known).score(x).novelty / plain - 1).min() > 0.01
    monkeypatch.setattr("skillmesh.anchors.shortlist.CLOSE", TASKS)
    small, large = SketchScorer(list(anchors), known).score(x), ShortlistScorer(iter(anchors), known).score(x)
    np.testing.assert_allclose(large.task, small.task, rtol=1e-4, atol=2e-3)
    np.testing.assert_allclose(large.novelty, small.novelty, rtol=1e-4)


@pytest.mark.parametrize("quick", [8, 24])
def test_a_short_list_finds_the_same_tasks(bank, monkeypatch, quick):
    anchors, known, x = bank
    monkeypatch.setattr("skillmesh.anchors.shortlist.QUICK", quick)
    monkeypatch.setattr("skillmesh.anchors.shortlist.CLOSE", 6)
    small, large = SketchScorer(list(anchors), known).score(x), ShortlistScorer(iter(anchors), known).score(x)
    assert np.array_equal(large.task.argmax(axis=1), small.task.argmax(axis=1))
    np.testing.assert_allclose(large.task.max(axis=1), small.task.max(axis=1), rtol=1e-4, atol=2e-3)
    np.testing.assert_allclose(large.novelty, small.novelty, rtol=1e-4)


def test_images_get_the_same_scores_alone_and_in_a_batch(bank, monkeypatch):
    anchors, known, x = bank
    scorer = ShortlistScorer(iter(anchors), known)
    together = scorer.score(x)
    monkeypatch.setattr("skillmesh.anchors.shortlist.ROOM", 3 * TASKS * CLASSES)
    in_parts = scorer.score(x)
    np.testing.assert_allclose(in_parts.task, together.task, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(in_parts.novelty, together.novelty, rtol=1e-4)
    assert scorer.score(x[:0]).task.shape == (0, TASKS)


def test_the_number_of_classes_chooses_the_scorer_and_equal_banks_are_equal(bank, monkeypatch):
    anchors, known, x = bank
    assert isinstance(SketchAnchor.pool(iter(anchors), known), SketchScorer)
    monkeypatch.setattr("skillmesh.anchors.sketch.MANY_CLASSES", 2 * CLASSES)
    first, again = (SketchAnchor.pool(iter(anchors), known) for _ in range(2))
    assert isinstance(first, ShortlistScorer)
    assert first.score(x).task.shape == (len(x), TASKS)
    assert first.score(x).task.tobytes() == again.score(x).task.tobytes()


def test_means_are_stored_as_in_the_module_and_never_stale(bank):
    made = bank[0][0]
    tensors = made.tensors()
    assert SketchAnchor.read(tensors).packed()[0] is tensors["sketch.mean"]
    moved = replace(SketchAnchor.read(tensors), means=made.means + np.float32(1))
    values, scale = moved.packed()
    np.testing.assert_allclose(values * scale[:, None], moved.means, atol=scale.max())


def test_the_threshold_uses_a_sample_of_many_modules_and_all_can_be_probed(tiny_taught: Core, monkeypatch):
    modules, whole = tiny_taught.mapper()
    monkeypatch.setattr("skillmesh.answering.answering.ASKED_MODULES", 2)
    monkeypatch.setattr("skillmesh.answering.answering.PROBES_AT_ONCE", 4)
    some = Mapper(modules, "sketch", tiny_taught.prior)
    assert some.threshold != whole.threshold
    assert np.array_equal(some.probed.task, whole.probed.task)
    np.testing.assert_allclose(some.probed.novelty, whole.probed.novelty, rtol=1e-4)


def test_decomposition_uses_one_thread_even_if_scipy_is_loaded_late(bank, monkeypatch):
    """Several threads round differently, and agents with equal banks must have equal mappers."""
    real, seen = scipy.linalg.eigh, []

    def watched(*arguments, **options):
        seen.extend(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")
        return real(*arguments, **options)

    monkeypatch.setattr("scipy.linalg.eigh", watched)
    with threadpool_limits(2, "blas"):
        ShortlistScorer(iter(bank[0]), bank[1])
    assert set(seen) == {1}


BUILD = """
import numpy as np
import scipy.linalg
from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.numerics.process import keep_freed_memory, process_is_ours
from skillmesh.backbone.calibration import Prior
from skillmesh.numerics.arrays import LowRank

def memory(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))

def resident_bytes(): return memory("VmRSS:")
def peak_bytes(): return memory("VmHWM:")

def forget_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")

def build(dim, tasks, classes):
    rng = np.random.default_rng(0)
    def some(rank):
        return LowRank(rng.uniform(0.5, 2, dim), rng.standard_normal((rank, dim)))
    prior = Prior(some(8), some(8), np.zeros(dim))
    bank = []
    for _ in range(tasks):
        means = rng.standard_normal((classes, dim), dtype=np.float32)
        bank.append(SketchAnchor(means, some(8), 100).tensors())
    x = rng.standard_normal((1000, dim), dtype=np.float32)
    before = resident_bytes()
    forget_peak()
    scorer = SketchAnchor.pool((SketchAnchor.read(tensors) for tensors in bank), prior)
    built = peak_bytes() - before
    forget_peak()
    scorer.score(x)
    return built, peak_bytes() - before

process_is_ours()
keep_freed_memory()  # as where a network is loaded
build(64, 90, 50)  # what is loaded and set up once is there
print(*build(1600, 90, 50))
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not tell the peak")
def test_building_needs_little_more_memory_than_its_two_matrices_and_scoring_needs_less():
    ran = subprocess.run([sys.executable, "-c", BUILD], capture_output=True, text=True, check=True)
    built, scored = map(int, ran.stdout.split())
    matrices = 2 * 8 * 1600**2
    assert matrices < built < 1.4 * matrices
    assert scored < built


@pytest.fixture(scope="module")
def many() -> tuple[list[SketchAnchor], Prior, np.ndarray]:
    """More tasks than are scored exactly, with small descriptors."""
    rng = np.random.default_rng(1)
    dim, tasks = 24, 320
    within = LowRank(rng.uniform(0.5, 2, dim), 0.3 * rng.standard_normal((4, dim)))
    between = LowRank(rng.uniform(0.5, 2, dim), rng.standard_normal((4, dim)))
    anchors, labels = [], np.repeat(np.arange(2), 4)
    for _ in range(tasks):
        x = 3 * rng.standard_normal(dim) + rng.standard_normal((2, dim))[labels] + rng.standard_normal((8, dim))
        made = SketchAnchor.fit(x.astype(np.float32), labels, 2, AnchorSettings())
        anchors.append(SketchAnchor.read(made.tensors()))
    x = np.concatenate([a.means + rng.standard_normal(a.means.shape) for a in anchors]).astype(np.float32)
    return anchors, Prior(within, between, rng.standard_normal(dim)), x


def test_the_best_of_hundreds_of_tasks_is_found(many, monkeypatch):
    monkeypatch.setattr("skillmesh.anchors.shortlist.QUICK", 16)
    anchors, known, x = many
    small, large = SketchScorer(list(anchors), known).score(x), ShortlistScorer(iter(anchors), known).score(x)
    assert np.mean(large.task.argmax(axis=1) == small.task.argmax(axis=1)) > 0.99
    rows = large.task.argmax(axis=1) == small.task.argmax(axis=1)
    np.testing.assert_allclose(large.novelty[rows], small.novelty[rows], rtol=1e-3)


def test_tasks_that_were_not_scored_exactly_rank_below_those_that_were(many, monkeypatch):
    """Tasks on the list have exact scores; the others have approximate ones, none above the list's last."""
    monkeypatch.setattr("skillmesh.anchors.shortlist.QUICK", 4)
    anchors, known, x = many
    small, large = (
        SketchScorer(list(anchors), known).score(x).task,
        ShortlistScorer(iter(anchors), known).score(x).task,
    )
    exact = np.isclose(large, small, rtol=1e-4, atol=1e-2)
    assert exact.sum(axis=1).min() >= CLOSE
    listed = np.sort(large, axis=1)[:, -CLOSE:]
    best = np.take_along_axis(small, large.argsort(axis=1)[:, -CLOSE:], axis=1)
    np.testing.assert_allclose(listed[:, 1:], best[:, 1:], rtol=1e-4, atol=1e-2)  # the last may be tied
    assert (np.sort(large, axis=1)[:, :-CLOSE] <= listed[:, :1]).all()


def test_agreement_of_approximate_and_exact_scores_is_reported(many, monkeypatch):
    monkeypatch.setattr("skillmesh.anchors.shortlist.QUICK", 2)
    monkeypatch.setattr("skillmesh.anchors.shortlist.CLOSE", 4)
    anchors, known, x = many
    scorer, small = ShortlistScorer(iter(anchors), known), SketchScorer(list(anchors), known)
    same = np.mean(scorer.score(x).task.argmax(axis=1) == small.score(x).task.argmax(axis=1))
    assert 0.1 < same < 0.9
    assert scorer.agreement(x) == pytest.approx(same, abs=0.01)
    monkeypatch.setattr("skillmesh.anchors.shortlist.CLOSE", len(anchors))
    assert scorer.agreement(x) == 1.0
