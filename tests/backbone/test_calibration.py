"""The calibration, measured on synthetic tasks and compared with the textbook's dense computation."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from skillmesh.backbone import calibrating
from skillmesh.backbone import calibration as calibration_module
from skillmesh.backbone.backbone import Backbone, backbone_fingerprint, load_calibration
from skillmesh.backbone.calibration import Calibration, LabelledRaw, Raw, Views, calibrate, represent
from skillmesh.backbone.network import describe
from skillmesh.common.choices import Representation
from skillmesh.data.folder import open_task
from skillmesh.data.views import MEASURED, ViewedImage
from skillmesh.errors import CalibrationError
from skillmesh.numerics.arrays import Doubles, LowRank
from skillmesh.store.home import earlier_file

if TYPE_CHECKING:
    from skillmesh.backbone.torch_network import TorchNetwork

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


DIRECTION = np.concatenate([np.zeros(FEATURES), np.linspace(-0.3, 0.3, WIDTH - FEATURES)])
"""Views move raw descriptors along this, and no feature."""


def with_views(task: LabelledRaw, seed: int, noise: float = 0.0) -> LabelledRaw:
    """Return the task with two views of each third image, of which the first kind has four times the weight."""
    rng = np.random.default_rng(seed)
    images = np.tile(np.arange(0, len(task.raw), 3), 2)
    moves = rng.standard_normal((len(images), 1)) * DIRECTION + noise * rng.standard_normal((len(images), WIDTH))
    raw = np.abs(task.raw[images] + moves) if noise else task.raw[images] + moves
    weights = np.repeat([4.0, 1.0], len(images) // 2)
    return LabelledRaw(task.raw, task.labels, Views(raw.astype(np.float16), images, weights, weights == 4))


SHIFT = np.linspace(0.2, 0.6, WIDTH)
"""What hurried photos have in common."""


@dataclass(frozen=True)
class Moved(LabelledRaw):
    """A task with a hurried view of each image."""

    @property
    def pairs(self) -> tuple[Raw, Raw]:
        return self.raw, self.views.raw


def moved_along(task: LabelledRaw, shift: Doubles) -> Moved:
    images = np.arange(len(task.raw))
    raw = (task.raw + shift).astype(np.float16)
    return Moved(task.raw, task.labels, Views(raw, images, np.ones(len(images)), np.ones(len(images), dtype=bool)))


VIEWED = [with_views(TASKS[0], 10), with_views(TASKS[1], 11), TASKS[2]]


@pytest.fixture(scope="module")
def viewed() -> Calibration:
    """A calibration from three tasks, of which two have views."""
    return calibrate(NETWORK, FEATURES, VIEWED, "three synthetic tasks, two with views")


@pytest.fixture(params=["measured", "viewed"])
def either(request: pytest.FixtureRequest) -> Calibration:
    found: Calibration = request.getfixturevalue(request.param)
    return found


def textbook_nuisance(tasks: list[LabelledRaw], space: Representation, measured: Calibration) -> Doubles:
    """Weighted mean square of the differences between views and images; each task counts the same."""
    squares = []
    for task in tasks:
        if task.views is not None:
            pair = (task.views.raw, task.raw[task.views.images])
            views, images = (represent(raw, FEATURES, space, measured).astype(float) for raw in pair)
            weights = task.views.weights[:, None] / task.views.weights.sum()
            squares.append((views - images).T @ (weights * (views - images)))
    return np.mean(squares, axis=0)


@pytest.fixture
def file(measured: Calibration, tmp_path: Path) -> Path:
    path = tmp_path / "calibration.safetensors"
    measured.save(path)
    return path


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    from skillmesh.backbone.building import import_timm

    path = tmp_path_factory.mktemp("weights") / "w.pt"
    torch.save(import_timm().create_model("test_efficientnet").state_dict(), path)
    return path


@pytest.fixture(scope="module")
def network(weights: Path) -> TorchNetwork:
    from skillmesh.backbone.torch_network import TorchNetwork

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

    def test_views_change_nothing_but_nuisance_and_haste(self, measured: Calibration, viewed: Calibration):
        assert set(viewed.tensors) - set(measured.tensors) == {
            f"{space}.{part}"
            for space in calibration_module.SPACES
            for part in ("haste", "nuisance.diagonal", "nuisance.factor", "nuisance.factor.scale")
        }
        for name, tensor in measured.tensors.items():
            assert np.array_equal(tensor, viewed.tensors[name])
        assert viewed.fingerprint != measured.fingerprint

    def test_the_nuisance_of_views_that_move_along_one_direction_is_that_direction(self, viewed: Calibration):
        nuisance = viewed.prior("descriptor", compact=False).nuisance
        sizes, directions = np.linalg.eigh(dense(nuisance))
        direction = DIRECTION / viewed.std
        assert abs(directions[:, -1] @ direction) > 0.999 * np.linalg.norm(direction)
        assert sizes[-1] > 0.99 * sizes.sum()
        assert_near(dense(nuisance), textbook_nuisance(VIEWED, "descriptor", viewed), 0.02)

    def test_features_that_views_do_not_move_are_not_damped(self, viewed: Calibration):
        prior = viewed.prior("features", compact=False)
        assert prior.nuisance.variances.max() < 1e-6
        rows = np.eye(FEATURES, dtype=np.float32)
        np.testing.assert_allclose(prior.damping.apply(rows), rows, atol=1e-5)
        assert viewed.prior("descriptor", compact=False).damping.shrinkage.min() < -0.5

    @pytest.mark.parametrize("space", get_args(Representation))
    def test_the_nuisance_matches_the_textbooks(self, space: Representation):
        tasks = [with_views(task, seed, noise=0.3) for seed, task in enumerate(TASKS)]
        measured = calibrate(NETWORK, FEATURES, tasks, "")
        expected = textbook_nuisance(tasks, space, measured)
        found = measured.prior(space, compact=False).nuisance
        assert_near(found.variances, np.diag(expected), 0.02)
        assert len(found.factor) == round(0.22 * len(expected))
        sizes, directions = np.linalg.eigh(expected)
        largest = directions[:, -len(found.factor) :] * np.sqrt(sizes[-len(found.factor) :])
        assert_near(found.factor.T @ found.factor, largest @ largest.T, 0.05)

    def test_a_mapper_uses_the_first_directions_and_all_variances(
        self, viewed: Calibration, monkeypatch: pytest.MonkeyPatch
    ):
        noisy = calibrate(NETWORK, FEATURES, [with_views(task, 7, noise=0.3) for task in TASKS], "")
        whole = noisy.prior("descriptor", compact=False)
        monkeypatch.setattr(calibration_module, "NUISANCE_IN_MAPPER", 4)
        prior = Calibration._of(noisy.tensors, NETWORK, "").prior("descriptor", compact=False)
        assert prior.nuisance.factor.shape == (4, WIDTH)
        assert np.array_equal(prior.nuisance.factor, whole.nuisance.factor[:4])
        np.testing.assert_allclose(prior.nuisance.variances, whole.nuisance.variances, rtol=1e-5)
        assert prior.moves().shape == (11, WIDTH)
        rows = np.eye(WIDTH, dtype=np.float32)
        assert np.array_equal(prior.damping.apply(rows), whole.damping.apply(rows))

    def test_the_damping_is_that_of_the_directions_in_which_views_move(self, viewed: Calibration):
        prior = viewed.prior("descriptor", compact=False)
        moves = prior.moves().astype(float)
        values, turn = np.linalg.eigh(np.eye(WIDTH) + calibration_module.NUISANCE_IN_HEADS * moves.T @ moves)
        expected = (turn / np.sqrt(values)) @ turn.T
        np.testing.assert_allclose(prior.damping.apply(np.eye(WIDTH, dtype=np.float32)), expected, atol=1e-4)

    @pytest.mark.parametrize("space", calibration_module.SPACES)
    def test_hurried_photos_of_other_tasks_are_told(self, space: str):
        known = calibrate(NETWORK, FEATURES, [moved_along(task, 3 * SHIFT) for task in TASKS[:2]], "")
        described = partial(
            represent,
            features=FEATURES,
            representation="descriptor" if space == "compact" else space,
            calibration=known,
            compact=space == "compact",
        )
        haste, (usual, hurried) = known.priors[space].haste, moved_along(TASKS[2], 3 * SHIFT).pairs
        told = [haste.of(described(raw)) for raw in (usual, hurried)]
        assert 0 <= min(each.min() for each in told) <= max(each.max() for each in told) <= 1
        assert told[0].mean() < 0.3 < 0.7 < told[1].mean()

    def test_haste_is_ridge_regression(self):
        tasks = [moved_along(task, SHIFT) for task in TASKS]
        known = calibrate(NETWORK, FEATURES, tasks, "")
        pairs = [[represent(raw, FEATURES, "descriptor", known) for raw in task.pairs] for task in tasks]
        x = np.concatenate([row for side in zip(*pairs, strict=True) for row in side]).astype(float)
        y = np.repeat([0, 1], len(x) // 2)
        centred = np.vstack([x - x.mean(axis=0), np.sqrt(len(x) * x.var(axis=0).mean()) * np.eye(WIDTH)])
        weights = np.linalg.lstsq(centred, np.append(y - y.mean(), np.zeros(WIDTH)), rcond=None)[0]
        haste = known.prior("descriptor", compact=False).haste
        np.testing.assert_allclose(haste.weights, weights, atol=1e-4)
        assert float(haste.offset) == pytest.approx(0.5 - x.mean(axis=0) @ weights, abs=1e-4)

    def test_without_hurried_photos_nothing_looks_hurried(self):
        views = VIEWED[0].views
        calm = replace(VIEWED[0], views=replace(views, hurried=np.zeros(len(views.raw), dtype=bool)))
        known = calibrate(NETWORK, FEATURES, [calm, TASKS[1]], "")
        x = represent(TASKS[2].raw, FEATURES, "descriptor", known)
        assert not known.prior("descriptor", compact=False).haste.of(x).any()

    def test_without_views_there_is_no_nuisance(self, measured: Calibration):
        for prior in measured.priors.values():
            assert (prior.nuisance, prior.moves, prior.damping, prior.haste) == (None, None, None, None)

    def test_a_task_whose_views_cannot_be_read_does_not_count(self, viewed: Calibration):
        none = Views(TASKS[2].raw[:0], np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0, dtype=bool))
        unread = LabelledRaw(TASKS[2].raw, TASKS[2].labels, none)
        assert calibrate(NETWORK, FEATURES, [*VIEWED[:2], unread], "").fingerprint == viewed.fingerprint

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
    def test_is_read_back_unchanged(self, either: Calibration, tmp_path: Path):
        either.save(tmp_path / "saved.safetensors")
        loaded = Calibration.load(tmp_path / "saved.safetensors")
        assert (loaded.network, loaded.source) == (NETWORK, either.source)
        assert loaded.fingerprint == either.fingerprint
        assert loaded.features == FEATURES
        assert set(loaded.tensors) == set(either.tensors)
        for name, tensor in either.tensors.items():
            assert tensor.dtype == loaded.tensors[name].dtype
            assert np.array_equal(tensor, loaded.tensors[name])
        assert np.array_equal(loaded.basis, either.basis)
        for space in calibration_module.SPACES:
            one, other = loaded.priors[space], either.priors[space]
            assert np.array_equal(dense(one.within), dense(other.within))
            if other.nuisance is not None:
                assert np.array_equal(dense(one.nuisance), dense(other.nuisance))
                assert np.array_equal(one.moves(), other.moves())
                assert np.array_equal(one.damping.directions, other.damping.directions)

    def test_the_same_tasks_give_the_same_fingerprint(self, measured: Calibration):
        assert calibrate(NETWORK, FEATURES, TASKS, "in other words").fingerprint == measured.fingerprint

    def test_every_number_is_part_of_the_fingerprint(self, either: Calibration):
        fingerprints = {either.fingerprint}
        for name, tensor in either.tensors.items():
            changed = tensor.copy()
            changed.flat[-1] = 1 if tensor.flat[-1] != 1 else 2
            tensors = either.tensors | {name: changed}
            fingerprints.add(Calibration._of(tensors, NETWORK, "").fingerprint)
        fingerprints.add(Calibration._of(either.tensors, "cd" * 32, "").fingerprint)
        assert len(fingerprints) == len(either.tensors) + 2

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

    def test_a_missing_tensor_is_reported(self, either: Calibration, file: Path):
        metadata = {"network": NETWORK, "source": ""}
        for missing in either.tensors:
            save_file({n: t for n, t in either.tensors.items() if n != missing}, file, metadata)
            with pytest.raises(CalibrationError, match="KeyError"):
                Calibration.load(file)

    def test_a_nuisance_missing_for_one_representation_is_reported(self, viewed: Calibration, file: Path):
        for space in calibration_module.SPACES:
            kept = {n: t for n, t in viewed.tensors.items() if not n.startswith(f"{space}.nuisance")}
            save_file(kept, file, {"network": NETWORK, "source": ""})
            with pytest.raises(CalibrationError, match=f"KeyError: '{space}.nuisance"):
                Calibration.load(file)

    def test_a_tensor_of_another_shape_is_reported(self, either: Calibration, file: Path):
        metadata = {"network": NETWORK, "source": ""}
        for name, tensor in either.tensors.items():
            for damaged in (tensor[..., :-1], tensor[:-1]):
                save_file(either.tensors | {name: np.ascontiguousarray(damaged)}, file, metadata)
                with pytest.raises(CalibrationError, match="cannot be read as a calibration"):
                    Calibration.load(file)

    @pytest.mark.parametrize("space", calibration_module.SPACES)
    @pytest.mark.parametrize("part", ["within", "between", "nuisance"])
    def test_more_directions_than_numbers_are_refused(
        self, viewed: Calibration, file: Path, space: str, part: str
    ):
        """30,000 directions of one number would fill 7 GB."""
        name = f"{space}.{part}.factor"
        rows = viewed.tensors[name].shape[1] + 1
        many = {
            name: np.resize(viewed.tensors[name], (rows, rows - 1)),
            f"{name}.scale": np.ones(rows, np.float32),
        }
        save_file(viewed.tensors | many, file, {"network": NETWORK, "source": ""})
        with pytest.raises(CalibrationError, match=rf"{name}' has shape \({rows}, "):
            Calibration.load(file)

    @pytest.mark.parametrize("name", ["std", "descriptor.within.diagonal", "descriptor.nuisance.diagonal"])
    def test_a_spread_whose_inverse_is_infinite_is_refused(self, viewed: Calibration, file: Path, name: str):
        """Answers would have the confidence NaN."""
        save_file(
            viewed.tensors | {name: np.full_like(viewed.tensors[name], 1e-45)},
            file,
            {"network": NETWORK, "source": ""},
        )
        with pytest.raises(CalibrationError, match=f"{name}' holds 1.4013e-45, expected at least 1e-13"):
            Calibration.load(file)

    @pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
    def test_a_nuisance_that_is_no_variance_is_reported(self, viewed: Calibration, file: Path, value: float):
        name = "descriptor.nuisance.diagonal"
        damaged = viewed.tensors[name].copy()
        damaged[3] = value
        save_file(viewed.tensors | {name: damaged}, file, {"network": NETWORK, "source": ""})
        with pytest.raises(CalibrationError, match=name):
            Calibration.load(file)


def fitting(network: TorchNetwork, seed: int = 1) -> Calibration:
    tasks = [some_task(seed + n, 20, 2, network.width) for n in range(2)]
    return calibrate(network.fingerprint, network.features, tasks, "")


class TestBackbone:
    @pytest.mark.torch
    def test_refuses_a_calibration_made_for_another_network(self, network: TorchNetwork, measured: Calibration):
        with pytest.raises(CalibrationError) as refusal:
            Backbone(network, measured)
        for part in (NETWORK[:12], network.fingerprint[:12], "test_efficientnet", "skillmesh calibrate"):
            assert part in str(refusal.value)

    @pytest.mark.torch
    def test_accepts_its_own_calibration_and_its_fingerprint_covers_it(self, network: TorchNetwork):
        own, other = (fitting(network, seed) for seed in (1, 2))
        backbone = Backbone(network, own)
        assert backbone.name == "test_efficientnet"
        raw = some_task(1, 120, 3, network.width).raw
        assert backbone.represent(raw, "features").shape == (120, network.features)
        assert backbone.fingerprint == backbone_fingerprint(own)
        assert backbone_fingerprint(other) != backbone.fingerprint

    @pytest.mark.torch
    def test_refuses_a_calibration_that_names_the_network_but_has_other_descriptors(self, network: TorchNetwork):
        wrong = calibrate(network.fingerprint, FEATURES, TASKS, "")
        with pytest.raises(
            CalibrationError, match=f"has {WIDTH} values, {FEATURES} of them .* {network.width} and"
        ):
            Backbone(network, wrong)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
    def test_a_pipe_is_refused_without_waiting(self, tmp_path: Path):
        os.mkfifo(tmp_path / "c.safetensors")
        with pytest.raises(CalibrationError, match="no file"):
            Calibration.load(tmp_path / "c.safetensors")

    @pytest.mark.torch
    def test_loads_from_files(self, network: TorchNetwork, weights: Path, tmp_path: Path):
        path = tmp_path / "c.safetensors"
        fitting(network).save(path)
        backbone = Backbone.load("test_efficientnet", weights, path, "cpu", tmp_path / "cache")
        assert backbone.network.fingerprint == network.fingerprint
        assert backbone.cache is not None
        assert backbone.cache.path.parent == tmp_path / "cache"

    def test_the_shipped_calibration_is_the_earlier_one_with_a_nuisance(self):
        earlier, shipped = Calibration.load(earlier_file("lite0-1")), load_calibration("lite0")
        assert earlier.network == shipped.network
        assert earlier.fingerprint != shipped.fingerprint
        for space in calibration_module.SPACES:
            assert earlier.priors[space].nuisance is None
            prior = shipped.priors[space]
            assert len(prior.nuisance.factor) == 128
            assert len(prior.moves()) == round(0.22 * prior.within.dim)
            assert_near(prior.within.variances, earlier.priors[space].within.variances, 1e-3)

    @pytest.mark.torch
    def test_all_learned_views_of_some_training_images_are_described(
        self, network: TorchNetwork, tiny_tasks: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(calibrating, "VIEWED_PER_TASK", 2)
        monkeypatch.setattr(calibrating, "calibrate", lambda *arguments: arguments)
        paths = [tiny_tasks / name for name in ("dice", "latin")]
        _, _, tasks, _, seed = calibrating.calibrate_on(network, paths, seed=3)
        for path, task in zip(paths, tasks, strict=True):
            files = open_task(path).splits["train"].files
            assert len(task.raw) == len(files) == 6
            assert task.views.weights.tolist() == [weight for weight in MEASURED.values() for _ in range(2)]
            assert len(set(task.views.images[:2])) == 2
            assert task.views.images.tolist() == len(MEASURED) * task.views.images[:2].tolist()
            assert np.flatnonzero(task.views.hurried).tolist() == [10, 11]
            assert list(MEASURED)[5] == "phone"
            places = zip([view for view in MEASURED for _ in range(2)], task.views.images, strict=True)
            shown = [ViewedImage(files[row], (view,), seed) for view, row in places]
            np.testing.assert_allclose(task.views.raw, describe(network, shown).raw, atol=0.02)

    def test_a_backbone_without_a_shipped_calibration_says_how_to_make_one(self):
        with pytest.raises(CalibrationError, match=r"shipped for 'resnet18'.*--backbone resnet18 --out FILE"):
            load_calibration("resnet18")
