"""Composition: a head for known classes of several tasks, made without images."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from skillmesh.anchors import AnchorSettings
from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.backbone.calibration import Prior
from skillmesh.errors import SettingsMismatchError
from skillmesh.learning.head import Head, fit_head, log_loss
from skillmesh.module.card import Card, refuse_strangers, refuse_unportable
from skillmesh.numerics.arrays import LowRank
from skillmesh.synergy.composition import FORMS, ComposedSource, compose, refine

DIM = 30
PRIOR = Prior(LowRank(np.ones(DIM), np.zeros((1, DIM))), LowRank(np.zeros(DIM), np.eye(DIM)[:5]), np.zeros(DIM))


def images(task: int, seed: int, each: int = 40, classes: int = 4):
    """Return images and labels of a task, whose classes lie around a point of its own.

    The images scatter more in some directions.
    """
    rng = np.random.default_rng(task)
    means = 0.6 * rng.standard_normal(DIM) + 0.6 * rng.standard_normal((classes, DIM))
    labels = np.repeat(np.arange(classes), each)
    scatter = np.linspace(0.3, 2, DIM)
    x = means[labels] + scatter * np.random.default_rng(seed).standard_normal((len(labels), DIM))
    return x.astype(np.float32), labels


def source(task: int, chosen: tuple[int, ...], scale: float = 1.0) -> ComposedSource:
    """Return a source as read from a module; its head and its temperature are multiplied by `scale`."""
    x, labels = images(task, seed=100 + task)
    val = images(task, seed=200 + task, each=10)
    fit = fit_head(x, labels, *val, 4)
    head = Head(fit.head.weight * np.float32(scale), fit.head.bias * np.float32(scale))
    anchor = SketchAnchor.fit(x, labels, 4, AnchorSettings(rank=4))
    return ComposedSource(
        Head.read(head.tensors()), fit.temperature * scale, SketchAnchor.read(anchor.tensors()), chosen
    )


def held_out(chosen: dict[int, tuple[int, ...]]):
    """Return test images of the chosen classes, with labels as in the composed head."""
    parts, labels, first = [], [], 0
    for task, classes in chosen.items():
        x, of = images(task, seed=300 + task)
        for place, c in enumerate(classes):
            parts.append(x[of == c])
            labels += [first + place] * int((of == c).sum())
        first += len(classes)
    return np.concatenate(parts), np.array(labels)


def accuracy(head: Head, x, labels) -> float:
    return float(np.mean(head.logits(x).argmax(axis=1) == labels))


CHOSEN = {1: (2, 0), 2: (3,), 3: (0, 1, 2, 3)}


@pytest.mark.parametrize("form", ["blend", "stitch", "closed"])
def test_classes_of_three_tasks_are_distinguished_without_images(form) -> None:
    composed = compose([source(task, chosen) for task, chosen in CHOSEN.items()], PRIOR, form)
    x, labels = held_out(CHOSEN)
    assert composed.head.weight.shape == (7, DIM)
    # The composed head should be about as good as one trained on forty images of each class.
    learned = [images(task, seed=100 + task) for task in CHOSEN]
    rows = [np.isin(of, list(c)) for (_, of), c in zip(learned, CHOSEN.values(), strict=True)]
    train = np.concatenate([x[kept] for (x, _), kept in zip(learned, rows, strict=True)])
    firsts = np.cumsum([0, *(len(c) for c in CHOSEN.values())])
    new = [
        [first + chosen.index(c) for c in of[kept]]
        for (_, of), kept, chosen, first in zip(learned, rows, CHOSEN.values(), firsts, strict=False)
    ]
    trained = fit_head(train, np.concatenate(new), train[:0], np.zeros(0, np.int64), 7).head
    assert accuracy(composed.head, x, labels) > accuracy(trained, x, labels) - 0.03


def test_a_composed_head_is_better_than_concatenated_rows() -> None:
    sources = [source(task, chosen) for task, chosen in CHOSEN.items()]
    accuracies = {form: accuracy(compose(sources, PRIOR, form).head, *held_out(CHOSEN)) for form in FORMS}
    assert accuracies["blend"] > accuracies["rows"] + 0.05


@pytest.mark.parametrize("form", FORMS)
def test_the_scale_of_a_head_does_not_matter(form) -> None:
    """A head with ten times the logits and ten times the temperature gives the same probabilities."""
    plain = [source(1, (0, 1, 2, 3)), source(2, (0, 1))]
    scaled = [source(1, (0, 1, 2, 3), scale=10), source(2, (0, 1))]
    x, _ = held_out({1: (0, 1, 2, 3), 2: (0, 1)})
    one, other = (compose(sources, PRIOR, form) for sources in (plain, scaled))
    assert np.mean(one.head.logits(x).argmax(1) == other.head.logits(x).argmax(1)) > 0.99
    assert one.temperature == pytest.approx(other.temperature, rel=0.01)


def test_the_closed_form_is_the_linear_discriminant() -> None:
    """Compare with the dense inverse of the pooled scatter, up to a scale and to terms common to all classes."""
    from skillmesh.anchors.gaussians import HALF_EVIDENCE, PRIOR_TASKS, SHRINKAGE

    sources = [source(1, (0, 1, 2, 3)), source(2, (0, 1, 2, 3))]
    x, _ = held_out({1: (0, 1, 2, 3), 2: (0, 1, 2, 3)})
    weight = sources[0].anchor.freedom / (sources[0].anchor.freedom + HALF_EVIDENCE)
    pooled = PRIOR_TASKS * np.eye(DIM)
    for each in sources:
        pooled += weight * (
            np.diag(each.anchor.scatter.diagonal) + each.anchor.scatter.factor.T @ each.anchor.scatter.factor
        )
    pooled /= PRIOR_TASKS + 2 * weight
    pooled = (1 - SHRINKAGE) * pooled + SHRINKAGE * np.diag(np.diag(pooled))
    means = np.concatenate([each.anchor.means for each in sources]).astype(np.float64)
    differences = x[:, None] - means
    distances = np.einsum("ncd,de,nce->nc", differences, np.linalg.inv(pooled), differences)
    expected = -0.5 * distances
    logits = compose(sources, PRIOR, "closed").head.logits(x)
    logits, expected = (each - each.mean(axis=1, keepdims=True) for each in (logits, expected))
    scale = np.vdot(logits, expected) / np.vdot(logits, logits)
    np.testing.assert_allclose(logits * scale, expected, rtol=0.01, atol=0.2)


def test_the_closed_form_finds_the_task_that_the_mapper_finds() -> None:
    sources = [source(1, (0, 1, 2, 3)), source(2, (0, 1, 2, 3))]
    x, _ = held_out({1: (0, 1, 2, 3), 2: (0, 1, 2, 3)})
    mapped = SketchAnchor.pool([each.anchor for each in sources], PRIOR).score(x).task.argmax(axis=1)
    composed = compose(sources, PRIOR, "closed").head.logits(x).argmax(axis=1) // 4
    assert np.mean(mapped == composed) > 0.99


def test_stitching_one_whole_task_gives_its_own_answers() -> None:
    """With one source there are no tasks to distinguish."""
    alone = source(1, (0, 1, 2, 3))
    x, _ = images(1, seed=7)
    composed = compose([alone], PRIOR, "stitch").head
    assert (composed.logits(x).argmax(axis=1) == alone.head.logits(x).argmax(axis=1)).all()


def test_classes_are_in_the_order_in_which_they_were_chosen() -> None:
    one, other = (compose([source(1, chosen), source(2, (1,))], PRIOR) for chosen in ((0, 2), (2, 0)))
    np.testing.assert_allclose(one.head.weight[[1, 0, 2]], other.head.weight, rtol=1e-5, atol=1e-6)


def test_confidence_is_about_right_without_images() -> None:
    composed = compose([source(task, chosen) for task, chosen in CHOSEN.items()], PRIOR)
    x, labels = held_out(CHOSEN)
    logits = composed.head.logits(x)
    stated = log_loss(logits / composed.temperature, labels)
    best = min(log_loss(logits / t, labels) for t in np.geomspace(0.01, 100, 200))
    assert stated < best + 0.15


def pooled_images(chosen: dict[int, tuple[int, ...]], each: int, seed: int):
    """Return new images of the chosen classes, with labels as in the composed head."""
    parts, labels, first = [], [], 0
    for task, classes in chosen.items():
        x, of = images(task, seed + task, each)
        for c in classes:
            parts.append(x[of == c])
            labels += [first + classes.index(c)] * each
        first += len(classes)
    return np.concatenate(parts), np.array(labels)


def test_one_image_per_class_does_not_change_a_composed_head() -> None:
    composed = compose([source(task, chosen) for task, chosen in CHOSEN.items()], PRIOR)
    x, labels = pooled_images(CHOSEN, 1, 500)
    refined, fit = refine(composed, x, labels, x[:0], labels[:0])
    assert fit is None
    assert refined.head is composed.head


def test_images_correct_a_head_composed_of_the_wrong_classes() -> None:
    """The classes of the sources are not those that the images show."""
    composed = compose([source(1, (0, 1)), source(2, (0, 1))], PRIOR)
    x, labels = pooled_images({5: (0, 1), 6: (0, 1)}, 30, 500)
    refined, fit = refine(composed, x, labels, x[:0], labels[:0])
    test = pooled_images({5: (0, 1), 6: (0, 1)}, 30, 700)
    assert fit is not None
    assert accuracy(refined.head, *test) > accuracy(composed.head, *test) + 0.2


def card(**more: object) -> Card:
    fields = {
        "task": "cells",
        "classes": ("a", "b"),
        "backbone": "0" * 64,
        "backbone_name": "lite0",
        "representation": "descriptor",
        "dim": 2912,
        "compact": False,
        "anchors": ("sketch",),
        "counts": (1, 1),
        "validation_images": 0,
        "temperature": 1.0,
        "version": 1,
        "created": "2024-12-31T23:59:59Z",
        "teacher": "ann",
        "teacher_key": "1" * 64,
    }
    return Card(**(fields | more))


@pytest.mark.parametrize(
    ("adapted", "reason"),
    [
        ({"biases": (100, 10)}, "10 biases"),
        ({"biases": (100, 10), "toes": (4, 2, 8)}, "Head2Toe"),
        ({"pattern": 32}, "reprogramming"),
    ],
)
def test_rows_of_adapted_heads_are_refused_with_the_reason(adapted, reason) -> None:
    refuse_unportable(card())
    with pytest.raises(SettingsMismatchError, match=reason) as caught:
        refuse_strangers([card(), card(**adapted)])
    assert "'cells'" in str(caught.value)


@pytest.mark.parametrize(
    "other", [{"backbone": "2" * 64}, {"representation": "features"}, {"compact": True}, {"dim": 1280}]
)
def test_rows_on_another_representation_are_refused(other) -> None:
    refuse_strangers([card(), card(task="leaves")])
    with pytest.raises(SettingsMismatchError, match="'leaves'"):
        refuse_strangers([card(), card(task="leaves", **other)])


def test_a_head_of_zeros_does_not_break_the_composed_head() -> None:
    empty = source(2, (0, 1))
    empty = dataclasses.replace(empty, head=Head(np.zeros((4, DIM), np.float32), np.zeros(4, np.float32)))
    composed = compose([source(1, (0, 1)), empty], PRIOR)
    assert np.isfinite(composed.head.weight).all()
    assert accuracy(composed.head, *held_out({1: (0, 1), 2: (0, 1)})) > 0.8
