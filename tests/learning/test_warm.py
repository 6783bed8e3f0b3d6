"""Warm start: a prior around old rows is exact by both ways of fitting and harmless; and the paper's epochs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from skillmesh.learning import head as head_module
from skillmesh.learning.head import fit_head, fit_path, log_loss, softmax
from skillmesh.learning.rows import NORMS, EpochSettings, centre_of, normed, row_gradient, started_rows, train_rows
from skillmesh.learning.warm_start import best_scale, fit_warm, folds

CLASSES, DIM = 4, 60


def blobs(seed: int, images: int, spread: float = 1.0):
    """Return images of four classes, the same for every seed, so that rows of one seed are known to another."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(1).standard_normal((CLASSES, DIM)) * 0.6 + 3
    labels = np.arange(images) % CLASSES
    return (centres[labels] + spread * rng.standard_normal((images, DIM))).astype(np.float32), labels


def none_of(x, labels):
    return x[:0], labels[:0]


def known_rows(spread: float = 1.0):
    x, labels = blobs(50, 400, spread)
    return fit_head(x, labels, *none_of(x, labels), CLASSES).head.weight


def accuracy(head, x, labels):
    return float(np.mean(head.logits(x).argmax(axis=1) == labels))


@pytest.mark.parametrize("images", [12, 200])
def test_a_stronger_prior_brings_the_head_closer_to_the_centre(images: int) -> None:
    """12 images are fitted through the Gram matrix, 200 directly."""
    x, labels = blobs(0, images)
    centre = np.random.default_rng(3).standard_normal((CLASSES, DIM)).astype(np.float32)
    distances = [
        np.abs(fit_path(x, labels, CLASSES, [strength], centre)[0].weight - centre).max()
        for strength in (0.01, 1, 100, 1e6)
    ]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 1e-4


@pytest.mark.parametrize("images", [12, 200])
def test_a_centre_of_zeros_gives_the_same_head_as_no_centre_bit_for_bit(images: int) -> None:
    x, labels = blobs(0, images)
    zeros = np.zeros((CLASSES, DIM), dtype=np.float32)
    strengths = (0.1, 0.01)
    for centred, plain in zip(
        fit_path(x, labels, CLASSES, strengths, zeros), fit_path(x, labels, CLASSES, strengths), strict=True
    ):
        assert centred.weight.tobytes() == plain.weight.tobytes()
        assert centred.bias.tobytes() == plain.bias.tobytes()


@pytest.mark.parametrize("images", [12, 200])
def test_the_warm_head_minimises_the_penalised_loss(images: int) -> None:
    """The gradient of an independent implementation, in raw space and double precision, must vanish."""
    x, labels = blobs(0, images)
    centre = known_rows()
    strength = 0.3
    head = fit_path(x, labels, CLASSES, [strength], centre)[0]
    scale = np.sqrt(np.square(x - x.mean(axis=0), dtype=np.float64).mean())

    def penalised(flat: np.ndarray) -> float:
        weight, bias = flat[: CLASSES * DIM].reshape(CLASSES, DIM), flat[CLASSES * DIM :]
        distance = (weight - centre) * scale
        return log_loss(x.astype(np.float64) @ weight.T + bias, labels) + strength / 2 * np.square(distance).sum()

    solution = np.concatenate([head.weight.ravel(), head.bias]).astype(np.float64)
    direction = np.random.default_rng(5).standard_normal(len(solution)) * 0.01
    assert np.linalg.norm(approx_fprime(solution, penalised, 1e-6)) < 0.05 * np.linalg.norm(
        approx_fprime(solution + direction, penalised, 1e-6)
    )
    assert penalised(solution) < min(penalised(solution + step * direction) for step in (-1, -0.3, 0.3, 1))


def test_the_gradient_with_an_offset_is_the_numerical_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient passed to L-BFGS agrees with finite differences of the loss."""
    x, labels = blobs(0, 40)
    offset = np.random.default_rng(2).standard_normal((40, CLASSES)).astype(np.float32)
    caught = {}

    def catch(objective, start, **_):
        caught["objective"] = objective
        return type("Result", (), {"x": start, "nfev": 1})

    monkeypatch.setattr("scipy.optimize.minimize", catch)
    start = np.random.default_rng(4).standard_normal((DIM + 1, CLASSES)) * 0.1
    head_module._minimise(x - 3, labels, start, 0.1, offset=offset)
    value, gradient = caught["objective"](start.ravel())
    for index in (0, 17, DIM * CLASSES - 1, DIM * CLASSES + 1):
        step = np.zeros(start.size)
        step[index] = 1e-2
        slope = (
            caught["objective"](start.ravel() + step)[0] - caught["objective"](start.ravel() - step)[0]
        ) / 2e-2
        assert gradient[index] == pytest.approx(slope, abs=2e-3)
    without = log_loss((x - 3) @ start[:-1] + start[-1], labels)
    assert value != pytest.approx(without + 0.05 * np.square(start[:-1]).sum(), rel=1e-3)


def test_warm_fits_through_the_gram_matrix_and_directly_agree() -> None:
    x, labels = blobs(0, 20)
    centre = known_rows()
    short = fit_path(x, labels, CLASSES, [0.1], centre)[0]
    thrice = np.concatenate([x, x, x]), np.concatenate([labels, labels, labels])
    direct = fit_path(*thrice, CLASSES, [0.1], centre)[0]
    np.testing.assert_allclose(softmax(short.logits(x)), softmax(direct.logits(x)), atol=0.02)


@pytest.mark.parametrize("images", [CLASSES, 3 * CLASSES])
def test_known_classes_are_learned_better_from_few_images(images: int) -> None:
    x, labels = blobs(0, images, spread=1.5)
    test = blobs(9, 400, spread=1.5)
    cold = fit_head(x, labels, *none_of(x, labels), CLASSES).head
    warm = fit_warm(x, labels, *none_of(x, labels), known_rows(1.5))
    assert warm.pull > 0
    assert accuracy(warm.head, *test) > accuracy(cold, *test) + 0.1


def test_without_a_match_the_head_is_the_cold_one() -> None:
    x, labels = blobs(0, 40)
    warm = fit_warm(x, labels, *blobs(1, 20), np.zeros((CLASSES, DIM), dtype=np.float32))
    cold = fit_head(x, labels, *blobs(1, 20), CLASSES)
    assert warm.pull == 0
    assert warm.head.weight.tobytes() == cold.head.weight.tobytes()


@pytest.mark.parametrize("validation", [0, 40])
def test_rows_of_classes_that_share_only_the_name_are_not_used(validation: int) -> None:
    """Every class is matched with the row of another: the cold head wins on held-back images."""
    x, labels = blobs(0, 40)
    val = blobs(1, validation)
    wrong = np.roll(known_rows(), 1, axis=0)
    warm, cold = fit_warm(x, labels, *val, wrong), fit_head(x, labels, *val, CLASSES)
    assert warm.pull == 0
    assert warm.head.weight.tobytes() == cold.head.weight.tobytes()
    assert warm.fit.temperature == cold.temperature


def test_validation_images_decide_on_the_centre_and_are_then_trained_on() -> None:
    x, labels = blobs(0, 8, spread=1.5)
    val = blobs(1, 40, spread=1.5)
    warm = fit_warm(x, labels, *val, known_rows(1.5))
    assert warm.pull > 0
    assert warm.fit.accuracy == accuracy(warm.fit.before, *val)
    assert warm.head.weight.tobytes() != warm.fit.before.weight.tobytes()


def test_the_scale_is_large_for_right_rows_and_small_for_wrong_ones() -> None:
    x, labels = blobs(0, 20)
    rows = known_rows()
    assert best_scale(x, labels, rows) > 5 * best_scale(x, labels, np.roll(rows, 1, axis=0))


def test_one_matched_row_with_one_image_per_class_is_not_used() -> None:
    x, labels = blobs(0, CLASSES)
    centre = centre_of(CLASSES, DIM, {2: known_rows()[2]})
    assert (centre[[0, 1, 3]] == 0).all()
    assert fit_warm(x, labels, *none_of(x, labels), centre).pull == 0


def test_folds_hold_back_every_image_once_and_no_class_entirely() -> None:
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 2])
    parts = list(folds(labels, 5))
    assert len(parts) == 2
    assert (np.sum(parts, axis=0) == 1).all()
    assert all(set(labels[~part]) == {0, 1, 2} for part in parts)


@pytest.mark.torch
@pytest.mark.parametrize("norm", NORMS)
def test_the_gradient_of_rows_equals_that_of_torch(norm) -> None:
    import torch

    x, labels = blobs(0, 30)
    weight = np.random.default_rng(2).standard_normal((CLASSES, DIM)).astype(np.float32)
    rows = torch.from_numpy(weight).requires_grad_()
    orders = {"two": 2, "infinity": torch.inf}
    normalised = rows if norm == "plain" else rows / torch.linalg.norm(rows, orders[norm], dim=1, keepdim=True)
    logits = torch.from_numpy(x) @ normalised.T
    torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels)).backward()
    np.testing.assert_allclose(row_gradient(weight, x, labels, norm), rows.grad.numpy(), atol=1e-5)
    np.testing.assert_allclose(normed(weight, norm), normalised.detach().numpy(), rtol=1e-5)


@pytest.mark.torch
def test_adam_equals_that_of_torch() -> None:
    import torch

    x, labels = blobs(0, 32)
    start = np.random.default_rng(2).standard_normal((CLASSES, DIM)).astype(np.float32)
    ours = train_rows(x, labels, start, EpochSettings(epochs=5, batch=32, norm="plain", rate=0.01))
    rows = torch.from_numpy(start.copy()).requires_grad_()
    optimiser = torch.optim.Adam([rows], lr=0.01)
    for _ in range(5):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(torch.from_numpy(x) @ rows.T, torch.from_numpy(labels)).backward()
        optimiser.step()
    np.testing.assert_allclose(ours, rows.detach().numpy(), atol=1e-4)


@pytest.mark.parametrize("norm", NORMS)
def test_epochs_from_known_rows_start_more_accurate_than_from_random_ones(norm) -> None:
    x, labels = blobs(0, 40)
    x = x - 3
    settings = EpochSettings(epochs=20, norm=norm, rate=0.01)
    known = train_rows(*(blobs(50, 400)[0] - 3, blobs(50, 400)[1]), started_rows(CLASSES, DIM, {}, 0), settings)
    curves = {}
    for name, rows in {"warm": dict(enumerate(known)), "cold": {}}.items():
        curve = curves[name] = []
        train_rows(
            x,
            labels,
            started_rows(CLASSES, DIM, rows, 1),
            settings,
            lambda _, weight, kept=curve: kept.append(float(np.mean((x @ weight.T).argmax(axis=1) == labels))),
        )
    assert len(curves["warm"]) == settings.epochs + 1
    assert curves["warm"][0] > 0.8
    assert curves["cold"][0] < 0.6
    assert curves["cold"][-1] > 0.8
