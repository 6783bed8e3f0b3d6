"""Numbers that do not affect the best class: confidences, weights, thresholds and bounds, compared with formulas.

A test that asks only which class wins does not notice a temperature that multiplies, or a bound that is one off.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from skillmesh.anchors import AnchorSettings
from skillmesh.anchors.gaussians import MAX_TRACE, Statistics, merged
from skillmesh.anchors.maha import MahaAnchor
from skillmesh.anchors.shortlist import ShortlistScorer
from skillmesh.anchors.sketch import SketchAnchor, SketchScorer
from skillmesh.answering import answering as mapper_module
from skillmesh.answering.answer import LEAST
from skillmesh.answering.answering import RIVAL_TASKS, Mapper, _likely_tasks, longest
from skillmesh.backbone.calibration import Prior
from skillmesh.core import Core
from skillmesh.data import helper
from skillmesh.data import images as limits
from skillmesh.data.images import Check, Pixels
from skillmesh.data.inputs import as_image
from skillmesh.learning import head as heads
from skillmesh.learning.class_names.pairs import Union, union
from skillmesh.learning.head import (
    Head,
    best_temperature,
    calibrate,
    fit_head,
    fit_large,
    fit_path,
    log_loss,
    softmax,
)
from skillmesh.module import Module
from skillmesh.module.format import check_tensors
from skillmesh.numerics.arrays import LowRank
from skillmesh.synergy.links import DISPUTED_IMAGES, DISPUTED_SHARE, _complaint
from skillmesh.synergy.merging import (
    HEADS_SHARE,
    MOST_EVIDENCE,
    HeadPart,
    _counts,
    _evidence,
    _middle_counts,
    _unconnected,
    _unrounded,
    combined,
)
from skillmesh.vetting.bank_trial import Result, _more_than_each, tolerance, worse
from skillmesh.vetting.quarantine import MAX_CERTAINTY, MAX_DISTANCE, MAX_IMAGES, Figures

RNG = np.random.default_rng(18)


# The head.


def test_softmax_and_log_loss_match_their_formulas():
    logits, labels = RNG.standard_normal((6, 4)) * 3, np.array([0, 1, 2, 3, 0, 1])
    share = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(softmax(logits), share, rtol=1e-12)
    each = -np.log(share[np.arange(6), labels])
    assert log_loss(logits.copy(), labels) == pytest.approx(each.mean())
    weights = np.arange(1.0, 7.0)
    assert log_loss(logits.copy(), labels, weights) == pytest.approx((each * weights).sum() / weights.sum())
    assert softmax(logits + 1e6).sum() == pytest.approx(6)  # nothing overflows


@pytest.mark.parametrize(("images", "scale"), [(1, 5.0), (2, 0.2), (40, 12.0), (40, 0.3)])
def test_the_temperature_minimises_the_loss_with_a_prior_around_one(images: int, scale: float):
    rng = np.random.default_rng(images)
    labels = rng.integers(3, size=images)
    logits = scale * (rng.standard_normal((images, 3)) + 1.5 * np.eye(3)[labels])

    def penalised(t: float) -> float:
        return float(log_loss(logits / t, labels) * images + np.log(t) ** 2)

    found, loss = calibrate(logits, labels)
    assert found == best_temperature(logits, labels)
    assert loss == pytest.approx(log_loss(logits / found, labels))
    assert penalised(found) <= min(penalised(t) for t in np.geomspace(0.1, 100, 121)) + 1e-9
    assert penalised(found) < penalised(1.1 * found)
    assert penalised(found) < penalised(found / 1.1)


def test_temperatures_go_from_a_tenth_to_a_hundred():
    assert (heads.TEMPERATURES[0], heads.TEMPERATURES[-1]) == pytest.approx((0.1, 100))
    hopeless = np.tile([30.0, 0.0], (500, 1))
    assert best_temperature(hopeless, np.arange(500) % 2) == pytest.approx(100)


def test_one_class_has_temperature_one_and_no_loss():
    assert calibrate(np.array([[3.0], [-2.0]]), np.array([0, 0])) == (1.0, 0.0)


def test_strengths_are_positive_and_descending():
    for strengths in (heads.STRENGTHS, heads.LARGE_STRENGTHS):
        assert list(strengths) == sorted(strengths, reverse=True)
        assert all(0 < strength < 1 for strength in strengths)
    assert heads.DEFAULT_STRENGTH in heads.STRENGTHS


def blobs(images: int, dim: int, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(images * dim)
    labels = np.arange(images) % classes
    centres = np.random.default_rng(1).standard_normal((classes, dim))
    return (centres[labels] + rng.standard_normal((images, dim)) + 5).astype(np.float32), labels


@pytest.mark.parametrize(("images", "dim"), [(60, 6), (12, 30)])
@pytest.mark.parametrize("pulled", [False, True])
def test_a_fitted_head_minimises_the_objective(images: int, dim: int, pulled: bool):
    """Mean log-loss and strength/2·‖W − centre‖², on images of unit variance; the bias has no prior."""
    x, labels = blobs(images, dim)
    centre = np.random.default_rng(2).standard_normal((3, dim)).astype(np.float32) / 3 if pulled else None
    scale = np.sqrt(np.square(x - x.mean(axis=0)).mean())
    for strength, head in zip((0.3, 0.05), fit_path(x, labels, 3, (0.3, 0.05), centre), strict=True):

        def objective(flat: np.ndarray, strength: float = strength) -> float:
            weight, bias = flat[:-3].reshape(3, dim), flat[-3:]
            middle = 0 if centre is None else centre
            pull = strength / 2 * np.square((weight - middle) * scale).sum()
            return float(log_loss(x.astype(np.float64) @ weight.T + bias, labels) + pull)

        flat = np.concatenate([head.weight.ravel(), head.bias]).astype(np.float64)
        gradient = approx_fprime(flat, objective, 1e-6)
        best = min(objective(flat - step * gradient) for step in (1e-3, 1e-2, 1e-1))
        assert objective(flat) - best < 2e-3
        assert objective(flat) < objective(0.9 * flat) + 1e-4
        assert objective(flat) < objective(1.1 * flat) + 1e-4


def test_strength_temperature_and_accuracy_come_from_validation_images():
    x, labels = blobs(40, 8)
    val_x, val_labels = blobs(31, 8)
    fit = fit_head(x, labels, val_x, val_labels, 3)
    tried = fit_path(x, labels, 3, heads.STRENGTHS)
    judged = [calibrate(head.logits(val_x), val_labels) for head in tried]
    best = int(np.argmin([loss for _, loss in judged]))
    assert fit.strength == heads.STRENGTHS[best]
    assert fit.temperature == judged[best][0]
    assert fit.accuracy == np.mean(tried[best].logits(val_x).argmax(axis=1) == val_labels)
    np.testing.assert_allclose(fit.before.weight, tried[best].weight)
    everything, all_labels = np.concatenate([x, val_x]), np.concatenate([labels, val_labels])
    (both,) = fit_path(
        everything, all_labels, 3, [fit.strength]
    )  # from zero, where `fit_head` starts from `before`
    final, from_zero, before = (log_loss(h.logits(everything), all_labels) for h in (fit.head, both, fit.before))
    assert final == pytest.approx(from_zero, rel=0.02)  # scaled by the training images alone
    assert abs(final - from_zero) < abs(before - from_zero) / 4, (final, from_zero, before)
    alone = fit_head(x, labels, x[:0], labels[:0], 3)
    assert (alone.strength, alone.temperature, alone.accuracy) == (heads.DEFAULT_STRENGTH, 1.0, None)


def test_with_few_rounds_the_fit_passes_through_the_larger_strengths_again():
    assert heads.strengths_up_to((3, 2, 1), 1, heads.ROUNDS) == [2]
    assert list(heads.strengths_up_to((3, 2, 1), 1, heads.ROUNDS - 1)) == [3, 2]


def test_a_large_fit_chooses_its_strength_by_validation_images(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(heads, "LARGE_STRENGTHS", (30.0, 0.01, 0.001))
    x, labels = blobs(90, 6)
    val_x, val_labels = blobs(30, 6)
    head, strength = fit_large(x, labels, val_x, val_labels, 3)
    assert strength in (0.01, 0.001)
    assert np.mean(head.logits(x).argmax(axis=1) == labels) > 0.6
    assert fit_large(x, labels, x[:0], labels[:0], 3)[1] == 30.0  # without validation images the first is used


@pytest.mark.parametrize(("exponents", "most"), [(False, None), (True, 20)])
def test_values_of_a_head_out_of_bounds_are_refused(exponents: bool, most: int | None):
    good = {
        "head.weight": np.zeros((2, 3), dtype=np.int8),
        "head.scale": np.array([0, 1e6], dtype=np.float32),
        "head.bias": np.array([-1e6, 1e6], dtype=np.float32),
    }
    if most is not None:
        good["head.exponent"] = np.array([-most, 0, most], dtype=np.int8)
    specs = Head.specs(2, 3, exponents)
    check_tensors(good, specs)
    bad = {"head.scale": (-1e-3, 1.001e6), "head.bias": (-1.001e6, 1.001e6)}
    bad |= {} if most is None else {"head.exponent": (-most - 1, most + 1)}
    for name, values in bad.items():
        for value in values:
            changed = good[name].copy()
            changed[0] = value
            with pytest.raises(ValueError, match=rf"{name}.*holds"):
                check_tensors(good | {name: changed}, specs)


def test_exponents_cancel_when_a_head_is_read_back():
    weight = np.array([[1.0, 1e-3, 1e3], [0.5, 2e-3, -1e3]], dtype=np.float32)
    head = Head(weight, np.zeros(2, dtype=np.float32), np.array([0, 10, -10], dtype=np.int8))
    np.testing.assert_allclose(Head.read(head.tensors()).weight, weight, rtol=0.02)


# Anchors.


def test_maha_sends_at_most_255_samples_per_class():
    x = RNG.standard_normal((300, 3)).astype(np.float32)
    anchor = MahaAnchor.fit(x, np.zeros(300, dtype=np.int64), 1, AnchorSettings(images_per_class=999))
    assert anchor.counts.tolist() == [255]
    assert len(anchor.samples) == 255


def test_an_image_near_the_prior_centre_has_the_same_novelty_in_both_scorers():
    """There the distance to the background, by which novelty is divided, is small."""
    dim = 6
    prior = Prior(LowRank(np.ones(dim), np.zeros((1, dim))), LowRank(np.ones(dim), np.eye(dim)), np.zeros(dim))
    means = np.concatenate([3 * np.eye(dim), -3 * np.eye(dim)]).astype(np.float32)
    anchors = [SketchAnchor(means, LowRank(np.ones(dim), np.zeros((1, dim))), 90)]
    x = 0.05 * RNG.standard_normal((5, dim)).astype(np.float32)
    small, large = SketchScorer(list(anchors), prior).score(x), ShortlistScorer(iter(anchors), prior).score(x)
    np.testing.assert_allclose(large.novelty, small.novelty, rtol=1e-2)
    assert small.novelty.min() > 10


def test_a_task_with_few_degrees_of_freedom_gets_less_weight():
    """A task of 16 degrees of freedom counts half; the calibration counts as half a task."""
    dim = 4
    prior = Prior(
        LowRank(np.ones(dim), np.zeros((1, dim))), LowRank(np.ones(dim), np.zeros((1, dim))), np.zeros(dim)
    )
    means = np.zeros((1, dim), dtype=np.float32)

    def variance(freedom: int) -> float:
        """Return the variance of the pooled scatter, from the weight of the only class."""
        anchor = SketchAnchor(means, LowRank(np.full(dim, 3.0), np.zeros((1, dim))), freedom)
        scores = SketchScorer([anchor], prior)
        return float(1 / scores._weights[0])

    assert variance(16) == pytest.approx((0.5 * 1 + 0.5 * 3) / 1.0, rel=1e-5)
    assert variance(10**9) == pytest.approx((0.5 * 1 + 1 * 3) / 1.5, rel=1e-5)
    assert variance(0) == pytest.approx(1, rel=1e-5)


# Answers.


def test_confidence_is_p_known_times_the_task_posterior_times_the_class_probability(
    taught: Core, mixed: list[Path]
):
    modules, mapper = taught.mapper()
    images = mixed[:12]
    raw = taught.backbone.describe([as_image(path) for path in images]).raw
    x = taught.backbone.represent(raw, "descriptor")
    assert any(abs(module.card.temperature - 1) > 0.05 for module in modules)
    tasks = {module.card.task: index for index, module in enumerate(modules)}
    for row, answer in enumerate(taught.answer(images)):
        for guess in answer.guesses:
            module = modules[tasks[guess.task]]
            share = softmax(Head.read(module.tensors).logits(x[row : row + 1]) / (1.2 * module.card.temperature))[
                0
            ]
            mapped = mapper.map(x[row : row + 1])
            posterior = mapped.posterior[0, tasks[guess.task]] * mapped.known[0]
            expected = posterior * share[module.card.classes.index(guess.label)]
            assert guess.confidence == pytest.approx(float(expected), rel=1e-3, abs=1e-6)


def test_likely_tasks_are_the_best_few_and_all_that_are_probable_enough():
    few = np.array([[0.1, 0.6, 0.3]])
    assert _likely_tasks(few) == [[1, 2, 0]]
    count = RIVAL_TASKS + 4
    posterior = np.full((2, count), LEAST / 2)
    posterior[0, -2:] = LEAST, 0.5
    posterior[1, : RIVAL_TASKS + 2] = np.linspace(0.3, LEAST, RIVAL_TASKS + 2)
    likely = np.array(_likely_tasks(posterior))
    assert likely.shape == (2, RIVAL_TASKS + 2)
    assert likely[0, :2].tolist() == [count - 1, count - 2]
    assert likely[0, -1] == -1
    assert likely[1].tolist() == list(range(RIVAL_TASKS + 2))


def test_the_longest_names_set_the_width_of_a_table(tiny_taught: Core):
    modules = list(tiny_taught.bank)
    found = longest(modules, tiny_taught.teachers)
    assert found["task"] == max(len(m.card.task) for m in modules)
    assert found["label"] == max(len(c) for m in modules for c in m.card.classes)
    assert found["teacher"] == 0
    assert longest([], tiny_taught.teachers) == {"label": 0, "task": 0, "teacher": 0}


def test_probes_come_from_evenly_spaced_modules(tiny_taught: Core, monkeypatch: pytest.MonkeyPatch):
    """Of four modules two are used, the first and the third."""
    modules, whole = tiny_taught.mapper()
    monkeypatch.setattr("skillmesh.answering.answering.ASKED_MODULES", 2)
    some = Mapper(modules, "sketch", tiny_taught.prior)
    asked = []
    voices = mapper_module._voices

    def noted(module: Module) -> np.ndarray:
        asked.append(module.id)
        return voices(module)

    monkeypatch.setattr(mapper_module, "_voices", noted)
    Mapper(modules, "sketch", tiny_taught.prior)
    assert asked == [modules[0].id, modules[2].id]
    assert some.threshold != whole.threshold


# Images.


def test_a_helper_has_half_a_second_for_an_image_and_a_tenth_for_each_million_of_its_pixels(
    monkeypatch: pytest.MonkeyPatch,
):
    """Up to the pixels that an image may have, 40 million: a header may state any number."""
    given: list[float] = []

    def opened(data: bytes, kind: str, size: int, check: Check) -> Pixels:
        check(int(data))
        return np.zeros(3, dtype=np.uint8)

    monkeypatch.delenv(limits.MEGAPIXELS, raising=False)
    monkeypatch.setattr(helper, "decode_here", opened)
    monkeypatch.setattr(helper.signal, "setitimer", lambda which, seconds: given.append(seconds))
    for pixels in (b"2000000", b"40000000", b"9999999999"):
        helper._answered("decode", "tiff", 8, 1.0, pixels)
    helper._answered("decode", "tiff", 8, 0.5, b"2000000")
    assert given == pytest.approx([0.5, 0.7, 0.5, 4.5, 0.5, 4.5, 0.25, 0.35])


def test_a_helper_has_a_quarter_of_a_second_for_each_million_pixels_of_a_heic(monkeypatch: pytest.MonkeyPatch):
    given: list[float] = []
    monkeypatch.setattr(helper, "decode_here", lambda data, kind, size, check: check(24 * 10**6))
    monkeypatch.setattr(helper.signal, "setitimer", lambda which, seconds: given.append(seconds))
    with pytest.raises(AttributeError):  # `decode_here` returns no pixels
        helper._answered("decode", "heif", 8, 1.0, b"")
    assert given == [0.5, 6.5]


def test_two_of_the_largest_images_can_be_decoded_at_once():
    assert limits.DECODING.total >= 2 * limits.HERE


# Quarantine.


@pytest.mark.parametrize(
    ("images", "rate", "excused", "allowed"),
    [
        (30, 0.01, 0, 4),
        (200, 0.01, 0, 9),
        (4, 0.05, 0, 3),
        (200, 0.01, 20, 40),
        (200, 0.01, -20, 9),
        (0, 0.01, 0, 0),
        (0, 0.01, 3, 0),
        (10, 0.5, 5, 10),
        (10, 0.5, 4.9, 10),
        (1, 0.05, 0, 1),
    ],
)
def test_number_of_images_that_a_module_may_lose(images: int, rate: float, excused: float, allowed: int):
    assert tolerance(images, rate, excused) == allowed


def test_tail_probabilities_are_those_of_the_binomial():
    from scipy.stats import binom

    for images, rate in ((1, 0.3), (7, 0.05), (40, 0.01)):
        expected = binom.sf(np.arange(images + 1), images, rate)
        np.testing.assert_allclose(_more_than_each(images, rate), expected, atol=1e-12)


def test_one_lost_image_more_than_allowed_is_a_complaint():
    before = Result(images=200, right=180, known=190, excused=0.0)
    assert worse(before, replace(before, right=171), 0.01, "x") is None
    complaint = worse(before, replace(before, right=170), 0.01, "x")
    assert complaint == "with it 170 instead of 180 of 200 answers to x are right, expected at most 9 fewer"
    assert worse(before, replace(before, right=140, excused=20.0), 0.01, "x") is None
    assert worse(before, replace(before, right=139, excused=20.0), 0.01, "x") is not None
    assert worse(replace(before, excused=20.0), replace(before, right=170, excused=20.0), 0.01, "x") is not None
    allowed = tolerance(200, 0.05)
    assert worse(before, replace(before, known=190 - allowed), 0.01, "x") is None
    assert "are known" in (worse(before, replace(before, known=189 - allowed), 0.01, "x") or "")


@pytest.mark.parametrize(
    ("field", "most", "more", "says"),
    [
        ("distance", MAX_DISTANCE, 8.01, "times as far out"),
        ("spread", MAX_TRACE, 8.01, "scatter"),
        ("images", MAX_IMAGES, 10_000_001, "training images"),
        ("freedom", 100, 101, "its scatter claims 101 images, expected at most the 100"),
        ("certainty", MAX_CERTAINTY, 50.1, "log-odds"),
        ("oddity", SketchAnchor.usual_novelty[1], 1.36, "not of its classes"),
        ("claim", SketchAnchor.most_claimed, 0.26, "26% of the background"),
    ],
)
def test_a_module_just_beyond_each_bound_is_held(field: str, most: float, more: float, says: str):
    fine = Figures("sketch", claim=0.1, distance=1, spread=1, certainty=1, oddity=1.0, images=100, freedom=90)
    assert fine.complaint is None
    assert replace(fine, **{field: most}).complaint is None
    assert says in (replace(fine, **{field: more}).complaint or "")


def test_too_low_novelty_of_probes_is_a_complaint_and_no_probes_are_not():
    fine = Figures("sketch", claim=0.1, distance=1, spread=1, certainty=1, oddity=0.5, images=100, freedom=None)
    assert fine.complaint is None
    assert replace(fine, oddity=None).complaint is None
    assert replace(fine, kind="gmmc", oddity=-1e9).complaint is None
    assert "0.49" in (replace(fine, oddity=0.49).complaint or "")
    assert replace(fine, kind="maha", claim=0.9).complaint is None
    assert replace(fine, kind="maha", claim=0.91).complaint is not None


# Merging.


def card(*counts: int) -> Any:
    return SimpleNamespace(card=SimpleNamespace(counts=counts))


def test_counts_of_parts_add_up_and_evidence_is_capped_at_four_times_the_median():
    classes = union([("a", "b", "own"), ("b", "a"), ("a",)])
    parts = [card(10, 10, 900), card(1000, 30), card(20)]
    assert _counts(parts, classes).tolist() == [60, 1010, 900]
    assert _middle_counts([np.array(p.card.counts) for p in parts], classes).tolist() == [20, 10, 900]
    first, second, third = _evidence(parts, classes)
    assert first.tolist() == [10, 10, MOST_EVIDENCE * 10]
    assert second.tolist() == [MOST_EVIDENCE * 10, 30]
    assert third.tolist() == [20]
    assert _counts([card(2**31), card(2**31)], union([("a",), ("a",)])).tolist() == [2**31]


def test_without_a_shared_class_no_part_has_evidence():
    believed = _evidence([card(10, 20), card(5)], union([("a", "b"), ("c",)]))
    assert [seen.tolist() for seen in believed] == [[0, 0], [0]]


def test_merged_tensors_are_not_rounded():
    diagonal = np.array([0.37, 1e-6, 0.0, 2.5])
    anchor = SketchAnchor(np.eye(2, 4, dtype=np.float32) / 3, LowRank(diagonal, np.full((1, 4), 0.3)), 17)
    head = Head(np.full((2, 4), 0.123456, dtype=np.float32), np.array([0.1, -0.7], dtype=np.float32))
    tensors = _unrounded(head) | anchor.exact_tensors()
    found = SketchAnchor.read(tensors)
    np.testing.assert_allclose(found.scatter.diagonal, diagonal, rtol=1e-9)
    np.testing.assert_allclose(found.scatter.factor, anchor.scatter.factor, rtol=1e-7)
    np.testing.assert_array_equal(found.means, anchor.means)
    assert found.freedom == 17
    np.testing.assert_array_equal(Head.read(tensors).weight, head.weight)
    np.testing.assert_array_equal(Head.read(tensors).bias, head.bias)


def test_a_class_without_images_uses_no_degree_of_freedom():
    some = Statistics(np.array([4.0, 0.0, 1.0]), np.zeros((3, 2)), LowRank(np.full(2, 6.0), np.zeros((1, 2))))
    assert some.freedom == 3
    assert some.gaussians().freedom == 3
    np.testing.assert_allclose(some.gaussians().scatter.diagonal, 2.0)
    none = replace(some, counts=np.zeros(3))
    assert (none.freedom, none.gaussians().freedom) == (0, 0)
    assert not none.gaussians().scatter.diagonal.any()


def test_an_anchors_scatter_counts_as_its_degrees_of_freedom():
    anchor = SketchAnchor(np.zeros((2, 3), dtype=np.float32), LowRank(np.full(3, 0.5), np.ones((1, 3))), 8)
    of = Statistics.of_gaussians(anchor, [6, 4])
    np.testing.assert_allclose(of.scatter.variances, 8 * anchor.scatter.variances)
    assert not Statistics.of_gaussians(anchor, [1, 0]).scatter.variances.any()
    whole = merged([(of, np.array([0, 1]))], 2).gaussians()
    np.testing.assert_allclose(whole.scatter.variances, anchor.scatter.variances)


def test_a_part_that_shares_no_class_with_the_others_is_found():
    def places(*parts: tuple[int, ...]) -> Union:
        return Union(tuple("abcdef"), tuple(np.array(p) for p in parts))

    assert _unconnected(places((0, 1), (1, 2), (2, 3))) is None
    assert _unconnected(places((0, 1), (4, 5), (1, 2))) == 1
    assert _unconnected(places((0,), (2, 3), (1, 2), (0, 1))) is None
    assert _unconnected(places((0,))) is None


def test_disputed_classes_may_lose_two_images_or_half_of_them():
    module: Any = SimpleNamespace(card=SimpleNamespace(task="dice"))

    def complaint(right: int, later: int) -> str | None:
        whole = Result(100, 90, 95, 0.0)
        return _complaint(module, [whole, Result(20, right, 20, 0.0)], [whole, Result(20, later, 20, 0.0)])

    assert (DISPUTED_IMAGES, DISPUTED_SHARE) == (2, 0.5)
    assert complaint(3, 1) is None
    assert "1 fewer" not in (complaint(3, 0) or "")
    assert complaint(3, 0) is not None
    assert complaint(10, 5) is None
    assert "expected at most 5 fewer" in (complaint(10, 4) or "")
    loss = _complaint(module, [Result(100, 90, 95, 0.0)] * 2, [Result(100, 60, 95, 0.0)] * 2)
    assert "60 instead of 90" in (loss or "")


def test_heads_are_combined_by_the_formula():
    """½ closed + ½ Σ wₚ(κₚ·headₚ less its mean + the mean of closed), w the part's share of a class's images."""
    rng = np.random.default_rng(4)
    means = rng.standard_normal((3, 5)).astype(np.float32) * 2
    closed = Head(means.copy(), (-0.5 * np.square(means).sum(axis=1)).astype(np.float32))
    parts = [
        HeadPart(Head(closed.weight[:2] * 3, closed.bias[:2] * 3), 2.0, np.array([0, 1]), np.array([10.0, 30.0])),
        HeadPart(Head(closed.weight[1:] * 5, closed.bias[1:] * 5), 8.0, np.array([1, 2]), np.array([10.0, 7.0])),
    ]
    head, temperature = combined(parts, closed, means)
    assert HEADS_SHARE == 0.5
    # Scaled by a third and a fifth each equals the closed form, so that only rounding differs.
    np.testing.assert_allclose(head.weight, closed.weight, atol=1e-4)
    np.testing.assert_allclose(head.bias, closed.bias, atol=1e-4)
    assert temperature == pytest.approx(np.sqrt((2.0 / 3) * (8.0 / 5)), rel=1e-5)
    against = replace(parts[0], head=Head(-closed.weight[:2], -closed.bias[:2]))
    head, temperature = combined([against, parts[1]], closed, means)
    level = closed.weight[:2].mean(axis=0)
    expected = 0.5 * closed.weight[1] + 0.5 * (0.75 * level + 0.25 * closed.weight[1])
    np.testing.assert_allclose(head.weight[1], expected, atol=1e-4)
    np.testing.assert_allclose(head.weight[0], 0.5 * closed.weight[0] + 0.5 * level, atol=1e-4)
    assert temperature == pytest.approx(8.0 / 5, rel=1e-5)
    assert combined([against], closed, means)[1] == 1.0
