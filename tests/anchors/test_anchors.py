"""Anchors: scores agree with plain formulas and with scikit-learn, and few images are enough."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import FITTED

from skillmesh.anchors import KINDS, AnchorSettings, gaussians, sketch
from skillmesh.anchors.gmmc import GmmcAnchor, GmmcScorer
from skillmesh.anchors.shortlist import ShortlistScorer
from skillmesh.anchors.sketch import SketchAnchor, SketchScorer
from skillmesh.backbone.calibration import Haste, Prior
from skillmesh.common.choices import AnchorKind
from skillmesh.errors import TensorError
from skillmesh.module.format import check_tensors
from skillmesh.numerics.arrays import LowRank, Tensors

DIM = 24


def prior(dim: int = DIM, viewed: bool = False) -> Prior:
    rng = np.random.default_rng(99)
    within = LowRank(np.full(dim, 0.5), rng.standard_normal((4, dim)) * 0.3)
    between = LowRank(np.full(dim, 0.1), rng.standard_normal((6, dim)))
    centre = rng.standard_normal(dim) * 0.1
    nuisance = LowRank(np.full(dim, 0.2), rng.standard_normal((3, dim)) * 2) if viewed else None
    return Prior(within, between, centre, nuisance)


def task(seed: int, images: int = 40, classes: int = 4, dim: int = DIM):
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), rng.integers(classes, size=images - classes)])
    centres = rng.standard_normal((classes, dim)) * 2 + rng.standard_normal(dim) * 2
    return (centres[labels] + rng.standard_normal((images, dim))).astype(np.float32), labels


def fitted(kind: str, seeds: range, **changes: object):
    anchor_settings = AnchorSettings(clusters=3, variance_floor=1e-2, **changes)
    tasks = [task(seed) for seed in seeds]
    anchors = [KINDS[kind].fit(x, y, 4, anchor_settings) for x, y in tasks]
    # What counts is what a student reads, not what the teacher had before rounding.
    return tasks, [KINDS[kind].read(anchor.tensors()) for anchor in anchors]


@pytest.mark.parametrize("kind", FITTED)
def test_images_are_assigned_to_their_own_task(kind: str) -> None:
    tasks, anchors = fitted(kind, range(5))
    scorer = KINDS[kind].pool(anchors, prior())
    for index, (x, _) in enumerate(tasks):
        assert np.mean(scorer.score(x).task.argmax(axis=1) == index) > 0.9


@pytest.mark.parametrize("kind", FITTED)
def test_images_of_unknown_tasks_have_higher_novelty(kind: str) -> None:
    tasks, anchors = fitted(kind, range(5))
    scorer = KINDS[kind].pool(anchors, prior())
    friends = np.concatenate([scorer.score(x).novelty for x, _ in tasks])
    strangers = np.concatenate([scorer.score(task(seed)[0]).novelty for seed in range(100, 105)])
    assert np.median(strangers) > np.quantile(friends, 0.95)


@pytest.mark.parametrize("kind", FITTED)
def test_stored_tensors_match_the_specs_of_the_kind(kind: str) -> None:
    _, anchors = fitted(kind, range(1))
    check_tensors(anchors[0].tensors(), KINDS[kind].specs(4, DIM))


@pytest.mark.parametrize("kind", FITTED)
@settings(deadline=None, max_examples=15)
@given(classes=st.integers(2, 5), per_class=st.integers(1, 3), tasks=st.integers(1, 3), seed=st.integers(0, 2**16))
def test_few_images_and_few_tasks_give_finite_scores(
    kind: str, classes: int, per_class: int, tasks: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), per_class)
    anchors = []
    for _ in range(tasks):
        x = rng.standard_normal((len(labels), DIM)).astype(np.float32)
        anchors.append(KINDS[kind].read(KINDS[kind].fit(x, labels, classes, AnchorSettings(clusters=2)).tensors()))
    scores = KINDS[kind].pool(anchors, prior()).score(rng.standard_normal((7, DIM)).astype(np.float32))
    assert scores.task.shape == (7, tasks)
    assert np.isfinite(scores.task).all()
    assert np.isfinite(scores.novelty).all()


def dense(matrix: LowRank) -> np.ndarray:
    return np.diag(matrix.diagonal) + matrix.factor.T @ matrix.factor


def dense_scatter(anchors: list[SketchAnchor], known: Prior) -> np.ndarray:
    """Return the scatter of a bank: the average of tasks and calibration, plus the nuisance, shrunk."""
    voices = [a.freedom / (a.freedom + gaussians.HALF_EVIDENCE) for a in anchors]
    pooled = gaussians.PRIOR_TASKS * dense(known.within) + sum(
        v * dense(a.scatter) for v, a in zip(voices, anchors, strict=True)
    )
    pooled *= (1 - gaussians.SHRINKAGE) / (gaussians.PRIOR_TASKS + sum(voices))
    if known.nuisance is not None:
        pooled += gaussians.NUISANCE * dense(known.nuisance)
    return pooled + gaussians.SHRINKAGE / (1 - gaussians.SHRINKAGE) * np.diag(np.diag(pooled))


def test_a_sketch_takes_its_means_from_views_too_and_its_scatter_from_originals_alone() -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1], 10)
    originals = rng.standard_normal((20, DIM)).astype(np.float32)
    views = originals + 3 * rng.standard_normal((20, DIM)).astype(np.float32)
    both, twice = np.concatenate([originals, views]), np.tile(labels, 2)
    alone = SketchAnchor.fit(originals, labels, 2, AnchorSettings(rank=4))
    viewed = SketchAnchor.fit(both, twice, 2, AnchorSettings(rank=4), images=20)
    np.testing.assert_allclose(viewed.means, [both[twice == label].mean(axis=0) for label in (0, 1)], atol=1e-5)
    assert viewed.freedom == alone.freedom == 18
    np.testing.assert_array_equal(dense(viewed.scatter), dense(alone.scatter))


@pytest.mark.parametrize("viewed", [False, True])
def test_the_pooled_scatter_is_the_average_scatter_plus_the_nuisance(viewed: bool) -> None:
    _, anchors = fitted("sketch", range(3), rank=5)
    known = prior(viewed=viewed)
    room = np.empty((min(DIM, gaussians.rows_of_all(anchors, known)), DIM), dtype=np.float32)
    pooled = gaussians.pooled_scatter(anchors, known, room)
    np.testing.assert_allclose(dense(pooled), dense_scatter(anchors, known), rtol=1e-4, atol=1e-5)
    precision = gaussians.pooled_precision(anchors, known)
    rows = np.eye(DIM, dtype=np.float32)
    inverse = precision.apply(rows, precision.along(rows))
    np.testing.assert_allclose(inverse @ dense_scatter(anchors, known), np.eye(DIM), atol=1e-4)


@pytest.mark.parametrize("viewed", [False, True])
def test_sketch_scores_match_a_dense_linear_discriminant(viewed: bool) -> None:
    tasks, anchors = fitted("sketch", range(3), rank=5)
    known = prior(viewed=viewed)
    pooled = dense_scatter(anchors, known)
    inverse = np.linalg.inv(pooled)

    share = sketch.PRIOR_BACKGROUND_TASKS / (3 + sketch.PRIOR_BACKGROUND_TASKS)
    weight = (1 - share) / 3 / 4
    means = np.concatenate([a.means for a in anchors]).astype(float)
    centre = weight * means.sum(axis=0) + share * known.centre
    spread = weight * (means - centre).T @ (means - centre)
    spread += share * (known.between.factor.T @ known.between.factor)
    spread += share * np.outer(known.centre - centre, known.centre - centre)
    background_inverse = np.linalg.inv(pooled + spread)

    x = tasks[0][0].astype(float)
    distances = np.stack([np.einsum("ni,ij,nj->n", x - m, inverse, x - m) for m in means], axis=1)
    background = np.einsum("ni,ij,nj->n", x - centre, background_inverse, x - centre)
    scores = SketchAnchor.pool(list(anchors), known).score(tasks[0][0])
    best = distances.reshape(len(x), 3, 4).min(axis=2)
    np.testing.assert_allclose(-2 * (scores.task - scores.task[:, :1]), best - best[:, :1], rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(scores.novelty, distances.min(axis=1) / background, rtol=1e-3)
    large = ShortlistScorer(iter(anchors), known).score(tasks[0][0])
    np.testing.assert_allclose(large.task, scores.task, rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(large.novelty, scores.novelty, rtol=1e-3)


def test_the_nuisance_makes_images_less_novel_along_its_directions() -> None:
    """Two images at equal distance from a mean: one moved as views move images, the other not."""
    _, anchors = fitted("sketch", range(3))
    view = np.zeros(DIM)
    view[5] = 1
    nuisance = LowRank(np.full(DIM, 1e-3), 6 * view[None])
    images = anchors[0].means[:1] + np.stack([8 * view, 8 * np.roll(view, 1)]).astype(np.float32)
    for scorer in (SketchScorer, ShortlistScorer):
        plain, damped = (
            scorer(list(anchors), replace(prior(), nuisance=n)).score(images) for n in (None, nuisance)
        )
        before, after = ((scores.novelty[0] / scores.novelty[1]) for scores in (plain, damped))
        assert after < before / 2


def test_an_image_that_looks_hurried_is_judged_more_leniently() -> None:
    _, anchors = fitted("sketch", range(3))
    images = np.tile(anchors[0].means[:1] + 2, (3, 1)).astype(np.float32)
    images[:, 0] = [-9, 0.5, 9]
    haste = Haste(np.eye(DIM, dtype=np.float32)[0], np.float32(0))
    for scorer in (SketchScorer, ShortlistScorer):
        plain, lenient = (scorer(list(anchors), replace(prior(), haste=h)).score(images) for h in (None, haste))
        np.testing.assert_array_equal(lenient.task, plain.task)
        np.testing.assert_allclose(lenient.novelty / plain.novelty, [1, 0.9825, 0.965], rtol=1e-4)


def test_sketch_keeps_the_variance_of_every_dimension() -> None:
    x, labels = task(0, images=200)
    anchor = SketchAnchor.fit(x, labels, 4, AnchorSettings())
    means = np.stack([x[labels == c].mean(axis=0) for c in range(4)])
    np.testing.assert_allclose(
        anchor.scatter.variances, np.square(x - means[labels]).sum(axis=0) / (200 - 4), rtol=1e-4
    )


def test_sketch_scales_down_a_scatter_that_would_dominate_the_others() -> None:
    _, anchors = fitted("sketch", range(2))
    liar = SketchAnchor(anchors[0].means, anchors[0].scatter.scaled(1e6), anchors[0].freedom)
    room = np.empty((DIM, DIM), dtype=np.float32)
    pooled = gaussians.pooled_scatter([liar, *[anchors[1]] * DIM], prior(), room)
    assert pooled.variances.sum() <= 2 * gaussians.MAX_TRACE * prior().within.variances.sum()


@pytest.mark.sklearn
def test_gmmc_agrees_with_scikit_learn_component_by_component() -> None:
    from sklearn.mixture import GaussianMixture

    x, labels = task(3, images=300)
    other, _ = task(4, images=300)
    anchors = [GmmcAnchor.fit(part, labels, 4, AnchorSettings(clusters=5)) for part in (x, other)]
    ours = GmmcScorer(anchors).log_joint(x)
    for index, part in enumerate((x, other)):
        mixture = GaussianMixture(5, covariance_type="diag", random_state=0).fit(part.astype(np.float64))
        theirs = mixture._estimate_weighted_log_prob(x.astype(np.float64))
        np.testing.assert_allclose(ours[:, 5 * index : 5 * index + 5], theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.sklearn
def test_gmmc_agrees_with_scikit_learn_at_its_variance_floor() -> None:
    """Dimensions that never vary get the floor as variance, and terms of 1e6 that must cancel."""
    from sklearn.mixture import GaussianMixture

    x, labels = task(3, images=300)
    x[:, ::2] = 1.5
    anchor = GmmcAnchor.fit(x, labels, 4, AnchorSettings(clusters=5))
    mixture = GaussianMixture(5, covariance_type="diag", random_state=0).fit(x.astype(np.float64))
    ours = GmmcScorer([anchor]).log_joint(x)
    np.testing.assert_allclose(
        ours, mixture._estimate_weighted_log_prob(x.astype(np.float64)), rtol=1e-3, atol=0.05
    )


def test_maha_is_the_distance_under_the_covariance_of_the_samples() -> None:
    from skillmesh.anchors import maha

    tasks, anchors = fitted("maha", range(3), images_per_class=5)
    scores = KINDS["maha"].pool(anchors, prior()).score(tasks[1][0])
    residuals = np.concatenate([a.samples - np.repeat(a.means, a.counts, axis=0) for a in anchors]).astype(float)
    tied = residuals.T @ residuals + maha.PRIOR_IMAGES * dense(prior().within)
    tied /= len(residuals) + maha.PRIOR_IMAGES
    tied = (1 - maha.SHRINKAGE) * tied + maha.SHRINKAGE * np.diag(np.diag(tied))
    inverse = np.linalg.inv(tied)
    means = np.concatenate([a.means for a in anchors]).astype(float)
    x = tasks[1][0].astype(float)
    distances = np.stack([np.einsum("ni,ij,nj->n", x - m, inverse, x - m) for m in means], axis=1)
    np.testing.assert_allclose(scores.novelty, distances.min(axis=1), rtol=1e-3, atol=1e-2)
    assert (scores.task.argmax(axis=1) == distances.argmin(axis=1) // 4).all()


def test_maha_sends_up_to_five_descriptors_per_class() -> None:
    x, labels = task(0, images=13, classes=4)
    anchor = KINDS["maha"].fit(x, labels, 4, AnchorSettings())
    np.testing.assert_array_equal(anchor.counts, np.minimum(np.bincount(labels), 5))


@pytest.mark.parametrize("name", ["sketch.mean.scale", "sketch.factor.scale"])
@pytest.mark.parametrize(("value", "good"), [(0.0, True), (-1e-3, False), (10.0, True), (10.001, False)])
def test_scales_of_a_sketch_out_of_bounds_are_refused(name: str, value: float, good: bool) -> None:
    held_to_bounds("sketch", name, value, good)


@pytest.mark.parametrize(("value", "good"), [(0.0, True), (-1.0, False), (1e9, True), (1.01e9, False)])
def test_a_sketchs_degrees_of_freedom_out_of_bounds_are_refused(value: float, good: bool) -> None:
    held_to_bounds("sketch", "sketch.freedom", value, good)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("weight", (0, 1), (-1e-3, 1.001)),
        ("mean", (-1e6, 1e6), (-1.001e6, 1.001e6)),
        ("variance", (1.001e-12, 0.999e12), (0.999e-12, 1.001e12)),
    ],
)
def test_numbers_of_a_mixture_out_of_bounds_are_refused(
    name: str, good: tuple[float, ...], bad: tuple[float, ...]
) -> None:
    for value in (*good, *bad):
        held_to_bounds("gmmc", f"gmmc.{name}", value, value in good)


def mixture() -> Tensors:
    """Return a mixture of three clusters, without scikit-learn."""
    return GmmcAnchor(*(np.full(shape, 1 / 3, np.float32) for shape in ((3,), (3, DIM), (3, DIM)))).tensors()


def held_to_bounds(kind: str, name: str, value: float, good: bool) -> None:
    """Replace a tensor's first number."""
    tensors = mixture() if kind == "gmmc" else fitted(kind, range(1))[1][0].tensors()
    tensors[name] = tensors[name].copy()
    tensors[name].flat[0] = value
    with nullcontext() if good else pytest.raises(TensorError, match=f"{name}.*holds .*expected at (least|most)"):
        check_tensors(tensors, KINDS[kind].specs(4, DIM))


def test_every_kind_is_registered_by_its_name():
    assert list(KINDS) == list(get_args(AnchorKind))
    assert {name: kind.kind for name, kind in KINDS.items()} == {name: name for name in KINDS}
