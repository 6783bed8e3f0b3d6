"""The head: as good as scikit-learn's, with strength and confidence fitted to validation images."""

from __future__ import annotations

import numpy as np
import pytest

from skillmesh.learning import head as head_module
from skillmesh.learning.head import (
    STRENGTHS,
    Head,
    best_temperature,
    choose_probes,
    fit_head,
    log_loss,
    probe_weights,
    softmax,
)


def blobs(seed: int, images: int, classes: int = 3, dim: int = 40, spread: float = 1.0):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(1).standard_normal((classes, dim)) * 0.6
    labels = np.concatenate([np.arange(classes), rng.integers(classes, size=images - classes)])
    return (centres[labels] + spread * rng.standard_normal((images, dim))).astype(np.float32), labels


@pytest.mark.sklearn
@pytest.mark.parametrize("images", [15, 200])
def test_path_reaches_the_optimum_that_scikit_learn_finds(images: int) -> None:
    """15 images are fitted through the Gram matrix, 200 directly."""
    from sklearn.linear_model import LogisticRegression

    x, labels = blobs(0, images)
    x /= np.sqrt(np.square(x - x.mean(axis=0)).mean())
    ours = head_module.fit_path(x, labels, 3, [0.1])[0]
    theirs = LogisticRegression(C=1 / (0.1 * images), tol=1e-8, max_iter=2000).fit(x.astype(np.float64), labels)
    np.testing.assert_allclose(softmax(ours.logits(x)), theirs.predict_proba(x), atol=0.02)


def test_fits_through_the_gram_matrix_and_directly_agree() -> None:
    x, labels = blobs(0, 30, dim=100)
    short = head_module.fit_path(x, labels, 3, [0.01])[0]
    doubled = np.concatenate([x, x, x]), np.concatenate([labels, labels, labels])
    direct = head_module.fit_path(*doubled, 3, [0.01])[0]
    np.testing.assert_allclose(short.logits(x), direct.logits(x), atol=0.1)


def test_noisy_data_gets_a_stronger_regularisation_than_clean_data() -> None:
    noisy = fit_head(*blobs(0, 60, dim=300, spread=4), *blobs(5, 200, dim=300, spread=4), 3)
    clean = fit_head(*blobs(0, 60, spread=0.05), *blobs(5, 200, spread=0.05), 3)
    assert noisy.strength > clean.strength
    assert clean.strength == STRENGTHS[-1]


def test_validation_accuracy_is_measured_before_training_on_these_images() -> None:
    """Validation labels that contradict the training labels give zero accuracy, though the last fit uses them."""
    x, labels = blobs(0, 90, spread=0.2)
    fit = fit_head(x, labels, x[:30], (labels[:30] + 1) % 3, 3)
    assert fit.accuracy == 0.0


def test_without_validation_images_there_is_a_head_and_no_accuracy() -> None:
    x, labels = blobs(0, 6)
    fit = fit_head(x, labels, x[:0], labels[:0], 3)
    assert fit.accuracy is None
    assert (fit.head.logits(x).argmax(axis=1) == labels).all()


def test_one_image_per_class_is_enough_to_tell_them_apart() -> None:
    x, labels = blobs(0, 3, spread=0.1)
    test_x, test_labels = blobs(9, 50, spread=0.1)
    fit = fit_head(x, labels, x[:0], labels[:0], 3)
    assert np.mean(fit.head.logits(test_x).argmax(axis=1) == test_labels) > 0.9


def test_int8_rows_keep_the_predicted_labels() -> None:
    x, labels = blobs(0, 300)
    head = head_module.fit_path(x, labels, 3, [0.01])[0]
    stored = Head.read(head.tensors())
    assert np.mean(stored.logits(x).argmax(axis=1) == head.logits(x).argmax(axis=1)) > 0.99


def test_repeated_images_and_constant_dimensions_give_finite_weights() -> None:
    x, labels = blobs(0, 12)
    x[:, 5] = 7.0
    twins = np.concatenate([x, x]), np.concatenate([labels, labels])
    fit = fit_head(*twins, x[:0], labels[:0], 3)
    assert np.isfinite(fit.head.weight).all()


def test_temperature_corrects_overconfidence_and_few_images_change_it_little() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=500)
    calibrated = rng.standard_normal((500, 3)) + 1.5 * np.eye(3)[labels]
    overconfident = 8 * calibrated
    t = best_temperature(overconfident, labels)
    assert log_loss(overconfident / t, labels) < log_loss(overconfident, labels)
    assert 3 < t < 20
    assert best_temperature(np.eye(3) * 5, np.arange(3)) > 0.3


def test_the_temperature_of_a_single_class_is_one() -> None:
    assert best_temperature(np.array([[3.0], [-2.0]]), np.array([0, 0])) == 1.0


def test_probes_range_from_usual_to_unusual_images() -> None:
    novelty = np.random.default_rng(0).permutation(100).astype(np.float32)
    chosen = choose_probes(novelty[:, None], novelty)
    assert chosen[:, 0].tolist() == [25, 65, 86, 96]
    assert probe_weights(100).sum() == pytest.approx(1)


def test_fewer_validation_images_than_probes_are_all_sent() -> None:
    x = np.array([[3.0], [1.0]], dtype=np.float32)
    assert choose_probes(x, x[:, 0]).tolist() == [[1.0], [3.0]]
    assert probe_weights(2).tolist() == [0.5, 0.5]
    assert probe_weights(4).tolist() == [0.25] * 4


def test_fit_large_is_as_accurate_as_fit_head():
    from skillmesh.learning.head import fit_large

    rng = np.random.default_rng(0)
    centres = rng.standard_normal((4, 10)).astype(np.float32) * 2
    labels = np.tile(np.arange(4), 300)
    x = (centres[labels] + rng.standard_normal((1200, 10))).astype(np.float32)
    parts = (x[:600], labels[:600], x[600:800], labels[600:800])
    large, strength = fit_large(*parts, classes=4)
    small = fit_head(*parts, classes=4).head
    right = [np.mean(head.logits(x[800:]).argmax(axis=1) == labels[800:]) for head in (large, small)]
    assert abs(right[0] - right[1]) < 0.02
    assert strength in (0.01, 0.001, 0.0001)
