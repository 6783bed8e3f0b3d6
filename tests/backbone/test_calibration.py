"""The calibration, measured on synthetic tasks and compared with the textbook's dense computation."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from skillmesh.backbone import calibration as calibration_module
from skillmesh.backbone.backbone import Backbone, backbone_fingerprint, load_calibration
from skillmesh.backbone.building import import_timm
from skillmesh.backbone.calibration import Calibration, LabelledRaw, Raw, calibrate, represent
from skillmesh.backbone.torch_network import TorchNetwork
from skillmesh.common.choices import Representation
from skillmesh.errors import CalibrationError
from skillmesh.numerics.arrays import Doubles, LowRank

NETWORK = "ab" * 32
FEATURES, WIDTH = 20, 50


def some_task(seed: int, images: int, classes: int, width: int = WIDTH) -> LabelledRaw:
    rng = np.random.default_rng(seed)
    labels = np.sort(np.arange(images) % classes)
    spread = np.geomspace(3, 0.1, width)
    raw = 2 + rng.standard_normal((classes, width))[labels] + spread * rng.standard_normal((images, width))
    raw[:, :FEATURES] = np.abs(raw[:, :FEATURES])
    return LabelledRaw(raw.astype(np.float16), labels)


TASKS = [some_task(1, 120, 3), some_task(2, 60, 6), some_task(3, 33, 2)]


def dense(matrix: LowRank) -> Doubles:
    return np.diag(matrix.diagonal) + matrix.factor.T @ matrix.factor


def textbook(described: list[NDArray[np.floating]], labels: list[NDArray[np.int64]]) -> tuple[Doubles, ...]:
    """Within-class covariance, between-class covariance and centre; each task counts the same."""
    within, weights, means = [], [], []
    for x, y in zip(described, labels, strict=True):
        classes = np.unique(y)
        centred = np.concatenate([x[y == c] - x[y == c].mean(axis=0, dtype=float) for c in classes])
        within.append(centred.T @ centred / (len(x) - len(classes)))
        means += [x[y == c].mean(axis=0, dtype=float) for c in classes]
        weights += [1 / len(classes) / len(described)] * len(classes)
    centre = np.average(means, axis=0, weights=weights)
    return np.mean(within, axis=0), np.cov(np.transpose(means), aweights=weights, ddof=0), centre


def assert_near(found: Doubles, expected: Doubles, tolerance: float) -> None:
    assert np.linalg.norm(found - expected) <= tolerance * np.linalg.norm(expected)


def all_raw() -> Raw:
    """Every task's images, repeated so that each task counts the same."""
    assert [1320 % len(task.raw) for task in TASKS] == [0, 0, 0]
    return np.concatenate([np.tile(task.raw, (1320 // len(task.raw), 1)) for task in TASKS])


@pytest.fixture(scope="module")
def measured() -> Calibration:
    return calibrate(NETWORK, FEATURES, TASKS, "three synthetic tasks")


@pytest.fixture
def file(measured: Calibration, tmp_path: Path) -> Path:
    path = tmp_path / "calibration.safetensors"
    measured.save(path)
    return path


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "w.pt"
    torch.save(import_timm().create_model("test_efficientnet").state_dict(), path)
    return path


@pytest.fixture(scope="module")
def network(weights: Path) -> TorchNetwork:
    return TorchNetwork("test_efficientnet", weights, "cpu")


class TestMeasuring:
    def test_standardised_training_images_have_mean_0_and_std_1(self, measured: Calibration):
        standard = represent(all_raw(), FEATURES, "descriptor", measured)
        assert np.abs(standard.mean(axis=0)).max() < 0.01
        assert np.abs(standard.std(axis=0) - 1).max() < 0.02

    def test_a_constant_dimension_gives_finite_results(self):
        tasks = [LabelledRaw(task.raw.copy(), task.labels) for task in TASKS]
        for task in tasks:
            task.raw[:, 7] = 3
        measured = calibrate(NETWORK, FEATURES, tasks, "")
        assert all(np.isfinite(t.astype(np.float64)).all() for t in measured.tensors.values())
        for prior in measured.priors.values():
            assert (prior.within.diagonal > 0).all()
            assert (prior.between.diagonal > 0).all()

    def test_the_basis_has_orthonormal_rows(self, measured: Calibration):
        assert measured.basis.shape == (WIDTH, WIDTH)
        assert np.abs(measured.basis @ measured.basis.T - np.eye(WIDTH)).max() < 0.02

    def test_the_basis_begins_with_the_direction_of_most_variance(self, measured: Calibration):
        compact = represent(all_raw(), FEATURES, "descriptor", measured, compact=True)
        scatter = np.square(compact).mean(axis=0)
        assert (np.diff(scatter) < 0.02 * scatter[0]).all()
        assert scatter[0] > 3 * scatter[-1]

    @pytest.mark.parametrize("space", calibration_module.SPACES)
    def test_priors_match_the_textbooks_covariances(self, measured: Calibration, space: str):
        compact = space == "compact"
        representation = "descriptor" if compact else space
        described = [represent(task.raw, FEATURES, representation, measured, compact) for task in TASKS]
        within, between, centre = textbook(described, [task.labels for task in TASKS])
        prior = measured.prior(representation, compact)
        tolerance = 0.03 if compact else 0.02  # measured before the basis was rounded to int8
        assert_near(dense(prior.within), within, tolerance)
        assert_near(dense(prior.between), between, tolerance)
        np.testing.assert_allclose(prior.centre, centre, atol=0.01 * np.abs(described[0]).max())

    def test_beyond_its_rank_a_prior_keeps_all_variances(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(calibration_module, "PRIOR_RANK", 6)
        measured = calibrate(NETWORK, FEATURES, TASKS, "")
        described = [represent(task.raw, FEATURES, "descriptor", measured) for task in TASKS]
        within, _, _ = textbook(described, [task.labels for task in TASKS])
        prior = measured.prior("descriptor", compact=False)
        assert prior.within.factor.shape == (6, WIDTH)
        np.testing.assert_allclose(prior.within.variances, np.diag(within), rtol=0.02)

    def test_a_compact_basis_has_as_many_directions_as_it_may(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(calibration_module, "COMPACT_DIM", 8)
        measured = calibrate(NETWORK, FEATURES, TASKS, "")
        assert represent(TASKS[0].raw, FEATURES, "descriptor", measured, compact=True).shape == (120, 8)
        assert measured.prior("descriptor", compact=True).within.dim == 8

    def test_the_background_is_a_sample_of_standardised_images(self, measured: Calibration):
        standard = np.concatenate([represent(task.raw, FEATURES, "descriptor", measured) for task in TASKS])
        assert measured.background.shape == (calibration_module.BACKGROUND_IMAGES, WIDTH)
        distances = np.abs(measured.background[:, None] - standard[None]).max(axis=2)
        assert distances.min(axis=1).max() < 6 / 127
        assert len(np.unique(distances.argmin(axis=1))) == len(measured.background)

    def test_a_large_task_counts_no_more_than_a_small_one(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(calibration_module, "IMAGES_PER_TASK", 10_000)
        once = calibrate(NETWORK, FEATURES, TASKS, "")
        copied = LabelledRaw(np.tile(TASKS[0].raw, (4, 1)), np.tile(TASKS[0].labels, 4))
        again = calibrate(NETWORK, FEATURES, [copied, *TASKS[1:]], "")
        np.testing.assert_allclose(again.mean, once.mean, atol=1e-5)
        np.testing.assert_allclose(again.std, once.std, rtol=1e-5)

    def test_the_number_of_images_per_task_is_limited(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(calibration_module, "IMAGES_PER_TASK", 10)
        measured = calibrate(NETWORK, FEATURES, TASKS, "")
        assert len(measured.background) == 30

    @pytest.mark.parametrize("count", [0, 1])
    def test_needs_two_tasks(self, count: int):
        with pytest.raises(CalibrationError, match=f"needs two tasks or more, found {count}"):
            calibrate(NETWORK, FEATURES, TASKS[:count], "")


def test_representations_match_their_definitions(measured: Calibration):
    raw = TASKS[0].raw
    features, rooted, descriptor = (represent(raw, FEATURES, r, measured) for r in get_args(Representation))
    assert np.array_equal(features, raw[:, :FEATURES].astype(np.float32))
    np.testing.assert_allclose(np.square(rooted), features, rtol=1e-5)
    expected = np.concatenate([rooted, raw[:, FEATURES:].astype(np.float32)], axis=1) - measured.mean
    np.testing.assert_allclose(descriptor, np.clip(expected / measured.std, -6, 6), rtol=1e-4, atol=1e-5)
    assert {x.dtype for x in (features, rooted, descriptor)} == {np.dtype(np.float32)}


def test_extreme_values_are_clipped(measured: Calibration):
    wild = np.full((1, WIDTH), 60_000, dtype=np.float16)
    wild[0, 0] = -60_000
    standard = represent(wild, FEATURES, "descriptor", measured)
    assert np.isfinite(standard).all()
    assert standard[0, -1] == 6
    assert np.abs(standard).max() == 6


class TestFile:
    def test_is_read_back_unchanged(self, measured: Calibration, file: Path):
        loaded = Calibration.load(file)
        assert (loaded.network, loaded.source) == (NETWORK, "three synthetic tasks")
        assert loaded.fingerprint == measured.fingerprint
        assert loaded.features == FEATURES
        assert set(loaded.tensors) == set(measured.tensors)
        for name, tensor in measured.tensors.items():
            assert tensor.dtype == loaded.tensors[name].dtype
            assert np.array_equal(tensor, loaded.tensors[name])
        assert np.array_equal(loaded.basis, measured.basis)
        assert np.array_equal(dense(loaded.priors["compact"].within), dense(measured.priors["compact"].within))

    def test_the_same_tasks_give_the_same_fingerprint(self, measured: Calibration):
        assert calibrate(NETWORK, FEATURES, TASKS, "in other words").fingerprint == measured.fingerprint

    def test_every_number_is_part_of_the_fingerprint(self, measured: Calibration):
        fingerprints = {measured.fingerprint}
        for name, tensor in measured.tensors.items():
            changed = tensor.copy()
            changed.flat[-1] = 1 if tensor.flat[-1] != 1 else 2
            tensors = measured.tensors | {name: changed}
            fingerprints.add(Calibration._of(tensors, NETWORK, "").fingerprint)
        fingerprints.add(Calibration._of(measured.tensors, "cd" * 32, "").fingerprint)
        assert len(fingerprints) == len(measured.tensors) + 2

    def test_a_missing_file_is_reported(self, tmp_path: Path):
        with pytest.raises(
            CalibrationError, match=r"nowhere cannot be read as a calibration.*skillmesh calibrate"
        ):
            Calibration.load(tmp_path / "nowhere")

    @pytest.mark.parametrize("keep", [0, 4, 100, -1])
    def test_a_truncated_file_is_reported(self, file: Path, keep: int):
        file.write_bytes(file.read_bytes()[:keep])
        with pytest.raises(CalibrationError, match="cannot be read as a calibration"):
            Calibration.load(file)

    def test_a_file_without_metadata_is_reported(self, measured: Calibration, file: Path):
        save_file(measured.tensors, file)
        with pytest.raises(CalibrationError, match="network"):
            Calibration.load(file)

    def test_a_missing_tensor_is_reported(self, measured: Calibration, file: Path):
        metadata = {"network": NETWORK, "source": ""}
        for missing in measured.tensors:
            save_file({n: t for n, t in measured.tensors.items() if n != missing}, file, metadata)
            with pytest.raises(CalibrationError, match="KeyError"):
                Calibration.load(file)

    def test_a_tensor_of_another_shape_is_reported(self, measured: Calibration, file: Path):
        metadata = {"network": NETWORK, "source": ""}
        for name, tensor in measured.tensors.items():
            save_file(measured.tensors | {name: np.ascontiguousarray(tensor[..., :-1])}, file, metadata)
            with pytest.raises(CalibrationError, match="cannot be read as a calibration"):
                Calibration.load(file)


class TestBackbone:
    def test_refuses_a_calibration_made_for_another_network(self, network: TorchNetwork, measured: Calibration):
        with pytest.raises(CalibrationError) as refusal:
            Backbone(network, measured)
        for part in (NETWORK[:12], network.fingerprint[:12], "test_efficientnet", "skillmesh calibrate"):
            assert part in str(refusal.value)

    def test_accepts_its_own_calibration_and_its_fingerprint_covers_it(self, network: TorchNetwork):
        own = calibrate(network.fingerprint, FEATURES, TASKS, "")
        backbone = Backbone(network, own)
        assert backbone.name == "test_efficientnet"
        assert backbone.represent(TASKS[0].raw, "features").shape == (120, FEATURES)
        assert backbone.fingerprint == backbone_fingerprint(own)
        other = calibrate(network.fingerprint, FEATURES, TASKS[1:], "")
        assert backbone_fingerprint(other) != backbone.fingerprint

    def test_loads_from_files(self, network: TorchNetwork, weights: Path, measured: Calibration, tmp_path: Path):
        path = tmp_path / "c.safetensors"
        dataclasses.replace(measured, network=network.fingerprint).save(path)
        backbone = Backbone.load("test_efficientnet", weights, path, "cpu", tmp_path / "cache")
        assert backbone.network.fingerprint == network.fingerprint
        assert backbone.cache is not None
        assert backbone.cache.path.parent == tmp_path / "cache"

    def test_a_backbone_without_a_shipped_calibration_says_how_to_make_one(self):
        with pytest.raises(CalibrationError, match=r"shipped for 'resnet18'.*--backbone resnet18 --out FILE"):
            load_calibration("resnet18")
