"""Merging: the statistics of parts add up to those of the whole, and their heads to one over all classes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillmesh.anchors import AnchorSettings
from skillmesh.anchors.gaussians import Statistics, merged
from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.backbone.calibration import Prior
from skillmesh.learning.class_names.pairs import union
from skillmesh.learning.head import Head, closed_form, fit_head
from skillmesh.module import Module
from skillmesh.numerics.arrays import LowRank
from skillmesh.synergy.merging import HeadPart, combined
from skillmesh.vetting.quarantine import disagreement

pytestmark = pytest.mark.long

DIM = 12


def dense(scatter: LowRank) -> np.ndarray:
    return np.diag(scatter.diagonal) + scatter.factor.T @ scatter.factor


def whole_of(x: np.ndarray, labels: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return counts, means and the summed scatter around them, computed class by class."""
    counts = np.bincount(labels, minlength=classes)
    means, scatter = np.zeros((classes, x.shape[1])), np.zeros((x.shape[1],) * 2)
    for c in np.flatnonzero(counts):
        images = x[labels == c].astype(np.float64)
        means[c] = images.mean(axis=0)
        scatter += (images - means[c]).T @ (images - means[c])
    return counts, means, scatter


@st.composite
def splits(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int, list[np.ndarray]]:
    """Draw images, labels, a number of classes, and a division of the images into parts, which may be empty."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    classes, parts = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    count = draw(st.integers(classes, 40))
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, count - classes)])
    scale = draw(st.sampled_from([0.01, 1.0, 100.0]))
    x = (scale * (rng.standard_normal((count, DIM)) + 3 * rng.standard_normal((classes, DIM))[labels])).astype(
        "f4"
    )
    owner = rng.integers(0, parts, count)
    return x, labels, classes, [np.flatnonzero(owner == p) for p in draw(st.permutations(range(parts)))]


@given(splits())
@settings(max_examples=80, deadline=None)
def test_parts_of_any_split_in_any_order_add_up_to_the_whole(split) -> None:
    """Each part numbers its own classes, like a teacher who does not know the others."""
    x, labels, classes, parts = split
    statistics = []
    for rows in parts:
        if len(rows):
            places, own = np.unique(labels[rows], return_inverse=True)
            statistics.append((Statistics.of(x[rows], own, len(places)), places))
    whole = merged(statistics, classes)
    counts, means, scatter = whole_of(x, labels, classes)
    size = max(float(np.abs(x).max()), 1e-3)
    assert np.array_equal(whole.counts, counts)
    assert np.abs(whole.means - means).max() <= 1e-6 * size
    assert np.abs(dense(whole.scatter) - scatter).max() <= 1e-6 * size**2 * len(x)
    assert whole.freedom == len(x) - classes


def test_the_anchor_of_merged_halves_equals_that_of_the_whole() -> None:
    """With full rank no direction is cut off, so both have the same scatter."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 20)
    x = (rng.standard_normal((60, DIM)) + 2 * rng.standard_normal((3, DIM))[labels]).astype(np.float32)
    exact = AnchorSettings(rank=DIM)
    halves = [SketchAnchor.fit(x[rows], labels[rows], 3, exact) for rows in (slice(0, None, 2), slice(1, None, 2))]
    both = merged([(Statistics.of_gaussians(h, [10, 10, 10]), np.arange(3)) for h in halves], 3).gaussians()
    whole = SketchAnchor.fit(x, labels, 3, exact)
    assert both.freedom == whole.freedom == 57
    np.testing.assert_allclose(both.means, whole.means, atol=1e-6)
    np.testing.assert_allclose(dense(both.scatter), dense(whole.scatter), atol=1e-5)


def test_the_scatter_includes_the_distance_between_the_parts_means() -> None:
    """Two teachers with one image each of a class: all scatter is between the two images."""
    one, other = (Statistics.of(np.full((1, DIM), v, np.float32), np.zeros(1, np.int64), 1) for v in (0.0, 2.0))
    both = merged([(one, np.arange(1)), (other, np.arange(1))], 1)
    np.testing.assert_allclose(dense(both.scatter), np.full((DIM, DIM), 2.0))


def test_a_class_of_a_single_teacher_adds_no_row_to_the_scatter() -> None:
    """That row would be zero: it would cost storage and time without effect."""
    one, other = (Statistics.of(np.full((1, DIM), v, np.float32), np.zeros(1, np.int64), 1) for v in (0.0, 2.0))
    assert len(merged([(one, np.array([0])), (other, np.array([1]))], 2).scatter.factor) == 2
    assert len(merged([(one, np.array([0])), (other, np.array([0]))], 1).scatter.factor) == 3


# Which parts fit.


def part_of(**places: tuple[int, float]) -> Module:
    """Return a stand-in for a module, with classes by name, each at a distance along one axis."""
    means = np.zeros((len(places), DIM), dtype=np.float32)
    for mean, (axis, distance) in zip(means, places.values(), strict=True):
        mean[axis] = distance
    anchor = SketchAnchor(means, LowRank(np.ones(DIM), np.zeros((1, DIM))), 90)
    return cast(
        Module,
        SimpleNamespace(
            card=SimpleNamespace(classes=tuple(places), anchors=("sketch",)), tensors=anchor.tensors()
        ),
    )


def test_teachers_disagree_if_either_takes_a_class_for_another() -> None:
    """The first cat lies where the second has a lynx, although the second cat is nearest to the first cat."""
    scatter = LowRank(np.ones(DIM), np.zeros((1, DIM)))
    prior = Prior(scatter, scatter, np.zeros(DIM))
    one, other = part_of(cat=(0, 3), dog=(1, 3)), part_of(cat=(0, 1), dog=(1, 3), lynx=(0, 3))
    agreeing = part_of(cat=(0, 3.1), dog=(1, 2.9))
    assert disagreement([one, other], prior) == disagreement([other, one], prior) == (4, 1)
    assert disagreement([one, agreeing], prior) == (4, 0)
    assert disagreement([one, agreeing, other], prior) == (4, 1)
    assert disagreement([one, part_of(eel=(2, 3), cow=(3, 3))], prior) == (0, 0)


@pytest.mark.parametrize(
    ("parts", "classes", "places"),
    [
        ([["CAT", "dog"], ["dog", "cats"], ["cats", "dog"]], ("cats", "dog"), [[0, 1], [1, 0], [0, 1]]),
        ([["cat", "dog"], ["dog", "eel"]], ("cat", "dog", "eel"), [[0, 1], [1, 2]]),
        ([["a", "A"], ["A", "b"]], ("a", "A", "b"), [[0, 1], [1, 2]]),
    ],
)
def test_classes_with_the_same_plain_name_are_one_in_any_order(parts, classes, places) -> None:
    both = union(parts)
    assert both.classes == classes
    assert [p.tolist() for p in both.places] == places


# Heads.


def images(seed: int, each: int, chosen=(0, 1, 2, 3)) -> tuple[np.ndarray, np.ndarray]:
    means = 0.5 * np.random.default_rng(5).standard_normal((4, 30))
    labels = np.repeat(np.arange(len(chosen)), each)
    noise = np.linspace(0.4, 2, 30) * np.random.default_rng(seed).standard_normal((len(labels), 30))
    return (means[list(chosen)][labels] + noise).astype(np.float32), labels


def taught(seed: int, each: int, chosen=(0, 1, 2, 3)) -> tuple[HeadPart, Statistics]:
    x, labels = images(seed, each, chosen)
    fit = fit_head(x, labels, *images(seed + 1, 5, chosen), len(chosen))
    anchor = SketchAnchor.fit(x, labels, len(chosen), AnchorSettings())
    counts = np.full(len(chosen), float(each))
    return HeadPart(fit.head, fit.temperature, np.array(chosen), counts), Statistics.of_gaussians(anchor, counts)


def joined_head(parts: list[tuple[HeadPart, Statistics]], **more: float) -> Head:
    whole = merged([(statistics, part.places) for part, statistics in parts], 4).gaussians()
    pooled = LowRank(whole.scatter.diagonal + 0.1, whole.scatter.factor).inverse()
    return combined([part for part, _ in parts], closed_form(whole.means, pooled), whole.means, **more)[0]


def accuracy(head: Head, chosen=(0, 1, 2, 3)) -> float:
    x, labels = images(99, 200, chosen)
    return float(np.mean(head.logits(x).argmax(axis=1) == np.array(chosen)[labels]))


def test_two_combined_heads_are_better_than_each() -> None:
    parts = [taught(10, 8), taught(20, 8)]
    assert accuracy(joined_head(parts)) > max(accuracy(part.head) for part, _ in parts) + 0.02


def test_a_head_of_more_images_has_more_weight() -> None:
    (one, first), (other, second) = taught(10, 40), taught(20, 40)
    equal = joined_head([(one, first), (other, second)], share=1.0)
    heavy = HeadPart(other.head, other.temperature, other.places, np.full(4, 40 * 99.0))
    unequal = joined_head([(one, first), (heavy, second)], share=1.0)
    x, _ = images(99, 200)

    def agreement(head: Head) -> float:
        return float(np.mean(head.logits(x).argmax(axis=1) == other.head.logits(x).argmax(axis=1)))

    assert agreement(unequal) > 0.97 > agreement(equal)


def test_a_head_that_contradicts_the_anchors_is_ignored() -> None:
    good, (part, statistics) = taught(10, 40), taught(20, 40)
    permuted = Head(np.roll(part.head.weight, 1, axis=0), np.roll(part.head.bias, 1))
    false_part = HeadPart(permuted, part.temperature, part.places, part.evidence)
    assert accuracy(permuted) < 0.3
    assert accuracy(joined_head([good, (false_part, statistics)])) > accuracy(good[0].head) - 0.02


def test_classes_of_a_single_teacher_are_distinguished_from_all_others() -> None:
    """One teacher knows 0, 1 and 2, the other 2 and 3: neither has seen both 0 and 3."""
    parts = [taught(10, 40, (0, 1, 2)), taught(20, 40, (2, 3))]
    alone = fit_head(*images(30, 40), *images(40, 5), 4).head
    assert accuracy(joined_head(parts)) > accuracy(alone) - 0.05


def test_the_order_of_classes_in_a_part_does_not_matter() -> None:
    first, (part, statistics) = taught(10, 20), taught(20, 20)
    order = np.array([2, 0, 3, 1])
    reordered = HeadPart(
        Head(part.head.weight[order], part.head.bias[order]), part.temperature, order, part.evidence[order]
    )
    reordered_statistics = Statistics(statistics.counts[order], statistics.means[order], statistics.scatter)
    head = joined_head([first, (part, statistics)])
    other = joined_head([first, (reordered, reordered_statistics)])
    np.testing.assert_allclose(head.weight, other.weight, rtol=1e-4, atol=1e-5)
