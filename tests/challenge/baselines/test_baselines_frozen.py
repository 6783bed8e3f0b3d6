"""Methods on a frozen backbone, against scikit-learn, explicit matrices and hand calculations."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from skillmesh.errors import DataError
from skillmesh.numerics.arrays import counted
from skillmesh_challenge.baselines import methods
from skillmesh_challenge.baselines.data import BaselineExamples, BaselineTask
from skillmesh_challenge.baselines.fecam import FecamLearner
from skillmesh_challenge.baselines.frozen import FrozenLearner
from skillmesh_challenge.baselines.nearest_mean import NearestMeanLearner
from skillmesh_challenge.baselines.ranpac import RanPacLearner, chosen_ridge
from skillmesh_challenge.baselines.slda import SldaLearner
from skillmesh_challenge.errors import RunError
from skillmesh_challenge.methods import METHODS
from skillmesh_challenge.record import read_record

pytestmark = pytest.mark.long

DIM = 6
KINDS: dict[str, Callable[[], FrozenLearner]] = {
    "nearest-mean": lambda: NearestMeanLearner(methods.NearestMean("m")),
    "nearest-mean-euclidean": lambda: NearestMeanLearner(
        methods.NearestMean("m", distance="euclidean", power=0.5)
    ),
    "slda": lambda: SldaLearner(methods.Slda("m")),
    "ranpac": lambda: RanPacLearner(methods.RanPac("m", width=40, ridge=1.0)),
    "ranpac-chosen": lambda: RanPacLearner(methods.RanPac("m", width=40)),
    "fecam": lambda: FecamLearner(methods.Fecam("m")),
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def a_task(seed: int, classes: int = 3, images: int = 8) -> BaselineTask:
    """Return a task of non-negative features, with slightly overlapping classes of different sizes."""
    rng = np.random.default_rng(seed)
    centres = rng.gamma(2.0, 1.0, (classes, DIM))

    def some(count: int) -> BaselineExamples:
        labels = np.repeat(np.arange(classes), [count + c for c in range(classes)])
        x = np.abs(centres[labels] + rng.normal(0, 0.5, (len(labels), DIM)))
        return BaselineExamples(torch.tensor(x, dtype=torch.float32), torch.tensor(labels))

    return BaselineTask(f"task{seed}", classes, some(images), some(20))


def taught(make: Callable[[], FrozenLearner], tasks: Sequence[BaselineTask]) -> FrozenLearner:
    learner = make()
    for position, task in enumerate(tasks):
        learner.learn(task, tasks[:position])
    return learner


def all_scores(learner: FrozenLearner, x: torch.Tensor) -> np.ndarray:
    return learner.scores(x, slice(0, sum(learner.spans))).numpy()


def pooled(tasks: Sequence[BaselineTask]) -> tuple[np.ndarray, np.ndarray]:
    """Return all training images in double precision, with labels numbered over all tasks."""
    firsts = np.cumsum([0] + [task.classes for task in tasks])
    x = np.concatenate([task.train.x.numpy().astype(float) for task in tasks])
    labels = [task.train.labels.numpy() + first for task, first in zip(tasks, firsts[:-1], strict=True)]
    return x, np.concatenate(labels)


@pytest.fixture(scope="module")
def tasks() -> list[BaselineTask]:
    return [a_task(0), a_task(1, classes=2), a_task(2, classes=4)]


# All methods.


@every_kind
def test_classes_are_limited_to_the_task_only_if_it_is_given(make, tasks):
    learner = taught(make, tasks)
    x = tasks[1].test.x
    scores = all_scores(learner, x)
    assert learner.given(x, 1).tolist() == scores[:, 3:5].argmax(axis=1).tolist()
    best = scores.argmax(axis=1)
    answers = learner.withheld(x)
    assert answers.tasks.tolist() == [0 if b < 3 else 1 if b < 5 else 2 for b in best]
    assert answers.classes.tolist() == [b - (0, 3, 5)[t] for b, t in zip(best, answers.tasks, strict=True)]
    assert (learner.given(x, 1) == tasks[1].test.labels).double().mean() > 0.8


@every_kind
def test_a_restored_learner_continues_as_if_never_stopped(make, tasks):
    halfway, straight = taught(make, tasks[:2]), taught(make, tasks)
    written = io.BytesIO()
    torch.save(halfway.state(), written)
    written.seek(0)
    resumed = make()
    resumed.restore(torch.load(written, weights_only=True), tasks[:2])
    assert np.array_equal(all_scores(resumed, tasks[0].test.x), all_scores(halfway, tasks[0].test.x))
    resumed.learn(tasks[2], tasks[:2])
    assert np.array_equal(all_scores(resumed, tasks[1].test.x), all_scores(straight, tasks[1].test.x))
    assert resumed.kept_bytes() == straight.kept_bytes()


@pytest.mark.parametrize("kind", ["nearest-mean", "nearest-mean-euclidean", "fecam"])
def test_later_tasks_do_not_change_independent_classes(kind, tasks):
    before, after = taught(KINDS[kind], tasks[:1]), taught(KINDS[kind], tasks)
    columns, x = slice(0, 3), tasks[0].test.x
    assert torch.equal(before.scores(x, columns), after.scores(x, columns))


@every_kind
def test_a_class_without_an_image_is_refused(make):
    task = a_task(0)
    lacking = BaselineTask("gap", 4, task.train, task.test)
    with pytest.raises(DataError, match=r"1 of 4 classes of 'gap'"):
        make().learn(lacking, [])


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind != "ranpac-chosen"]
)  # which holds out the last images
def test_the_order_of_a_tasks_images_does_not_matter(kind, tasks):
    order = torch.randperm(len(tasks[0].train), generator=torch.Generator().manual_seed(1))
    shuffled = BaselineTask("shuffled", 3, tasks[0].train[order], tasks[0].test)
    one, other = (all_scores(taught(KINDS[kind], [task]), tasks[0].test.x) for task in (tasks[0], shuffled))
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_every_method_is_registered_by_name():
    for settings in methods.FROZEN:
        assert METHODS[settings.kind].representation == "features"
        assert METHODS[f"{settings.kind}-descriptor"].representation == "descriptor"


# Nearest class mean.


def test_nearest_mean_matches_a_hand_calculation():
    x = torch.tensor([[2.0, 0.0], [4.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    task = BaselineTask(
        "t", 2, BaselineExamples(x, torch.tensor([0, 0, 1, 1])), BaselineExamples(x, torch.tensor([0, 0, 1, 1]))
    )
    asked = torch.tensor([[1.0, 0.9]])
    cosine = taught(lambda: NearestMeanLearner(methods.NearestMean("m")), [task])
    length = np.sqrt(1 + 0.81)
    np.testing.assert_allclose(all_scores(cosine, asked), [[1 / length, 0.9 / length]], rtol=1e-6)
    assert cosine.given(asked, 0).tolist() == [0]
    # (3, 0) is √(4 + 0.81) away, (0, 1) only √(1 + 0.01).
    euclidean = taught(lambda: NearestMeanLearner(methods.NearestMean("m", distance="euclidean")), [task])
    assert euclidean.given(asked, 0).tolist() == [1]
    scores = all_scores(euclidean, asked)
    np.testing.assert_allclose(-2 * (scores[0, 0] - scores[0, 1]), 4.81 - 1.01, rtol=1e-6)


def test_the_power_keeps_signs():
    from skillmesh_challenge.baselines.frozen import powered

    assert powered(torch.tensor([-4.0, 0.0, 9.0]), 0.5).tolist() == [-2.0, 0.0, 3.0]


# Streaming LDA.


def test_slda_matches_scikit_learns_lda(tasks):
    """Its shrinkage is toward the mean variance, ours toward one: they agree on data scaled accordingly."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    x, labels = pooled(tasks)
    residuals = x - np.stack([x[labels == c].mean(axis=0) for c in range(9)])[labels]
    scale = np.sqrt(np.mean(residuals**2))
    scaled = [
        BaselineTask(t.name, t.classes, BaselineExamples(t.train.x / scale, t.train.labels), t.test) for t in tasks
    ]
    ours = taught(lambda: SldaLearner(methods.Slda("m", shrinkage=0.2)), scaled)
    weights = np.bincount(labels) / len(labels)  # theirs averages classes' covariances with the priors
    # Shrinkage of each class's covariance toward its own mean variance sums to that of the pooled one.
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.2, priors=weights).fit(x / scale, labels)
    asked = tasks[0].test.x.numpy() / scale
    expected = theirs.decision_function(asked) - np.log(weights)  # the paper has no priors
    np.testing.assert_allclose(all_scores(ours, torch.tensor(asked).float()), expected, rtol=2e-4, atol=2e-3)


def test_slda_is_independent_of_the_order_of_images(tasks):
    """Welford's running sums over all images of all tasks, shuffled."""
    x, labels = pooled(tasks)
    means, counts, scatter = np.zeros((9, DIM)), np.zeros(9), np.zeros((DIM, DIM))
    for i in np.random.default_rng(0).permutation(len(x)):
        c, step = labels[i], x[i] - means[labels[i]]
        counts[c] += 1
        means[c] += step / counts[c]
        scatter += np.outer(step, x[i] - means[c])
    inverse = np.linalg.inv((1 - 1e-4) * scatter / len(x) + 1e-4 * np.eye(DIM))
    learner = taught(KINDS["slda"], tasks)
    np.testing.assert_allclose(learner.kept["scatter"], scatter, rtol=1e-6, atol=1e-6 * scatter.max())
    np.testing.assert_allclose(learner.weights, means @ inverse, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(learner.biases, -0.5 * np.sum(means @ inverse * means, axis=1), rtol=1e-4)


@pytest.mark.parametrize(("kind", "name"), [("slda", "scatter"), ("ranpac", "gram")])
def test_the_order_of_tasks_does_not_matter(kind, name, tasks):
    forth, back = taught(KINDS[kind], tasks), taught(KINDS[kind], tasks[::-1])
    sums = forth.kept[name]
    np.testing.assert_allclose(sums, back.kept[name], rtol=1e-6, atol=1e-6 * float(sums.abs().max()))
    x = tasks[0].test.x
    expected = all_scores(forth, x)
    columns = [6, 7, 8, 4, 5, 0, 1, 2, 3]
    np.testing.assert_allclose(all_scores(back, x)[:, columns], expected, rtol=1e-3, atol=1e-3)


# RanPAC.


def test_ranpac_is_ridge_regression_on_the_projection(tasks):
    from sklearn.linear_model import Ridge

    learner = taught(KINDS["ranpac"], tasks)
    x, labels = pooled(tasks)
    lifted = learner.lift(torch.tensor(x, dtype=torch.float32)).numpy()
    assert lifted.shape == (len(x), 40)
    assert lifted.min() == 0  # a ReLU
    ridge = Ridge(alpha=1.0, fit_intercept=False, solver="cholesky").fit(lifted.astype(float), np.eye(9)[labels])
    np.testing.assert_allclose(learner.weights, ridge.coef_, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("width", [12, 45])  # fewer and more than images
def test_the_chosen_ridge_is_the_best_on_the_held_out_fifth(width):
    from sklearn.linear_model import Ridge

    rng = np.random.default_rng(3)
    labels = rng.integers(0, 3, 50)
    lifted = np.maximum(0, rng.normal(size=(50, width)) + 0.3 * np.eye(3)[labels] @ rng.normal(size=(3, width)))
    wanted, order = np.eye(3)[labels], rng.permutation(50)
    known, held = order[:40], order[40:]
    losses = {}
    for power in range(-8, 9):
        fit = Ridge(alpha=10.0**power, fit_intercept=False, solver="svd").fit(lifted[known], wanted[known])
        losses[10.0**power] = np.mean((fit.predict(lifted[held]) - wanted[held]) ** 2)
    best = min(losses, key=losses.get)
    assert 1e-8 < best < 1e8
    assert chosen_ridge(torch.tensor(lifted), torch.tensor(wanted), torch.tensor(order)) == best


def test_a_ridge_too_small_to_help_is_raised_until_it_does():
    task = a_task(0, images=1)  # fewer images than the projection is wide
    learner = taught(lambda: RanPacLearner(methods.RanPac("m", width=64, ridge=1e-12)), [task])
    assert torch.isfinite(learner.weights).all()


def test_the_projection_depends_on_the_seed():
    x = a_task(0).train.x
    settings = methods.RanPac("m", width=16)
    assert torch.equal(RanPacLearner(settings, 5).lift(x), RanPacLearner(settings, 5).lift(x))
    assert not torch.equal(RanPacLearner(settings, 5).lift(x), RanPacLearner(settings, 6).lift(x))


# FeCAM.


def explicit_fecam(task: BaselineTask, x: np.ndarray, settings: tuple[float, float, int, float]) -> np.ndarray:
    """Return the distances by the paper's formulas, with full matrices."""
    gamma1, gamma2, shrinks, power = settings
    columns = []
    off = 1 - np.eye(DIM)
    asked = x**power / np.linalg.norm(x**power, axis=1, keepdims=True)
    for c in range(task.classes):
        own = task.train.x.numpy()[task.train.labels.numpy() == c].astype(float) ** power
        covariance = np.cov(own.T)
        for _ in range(shrinks):
            variance, beside = np.trace(covariance) / DIM, (covariance * off).sum() / off.sum()
            covariance = covariance + gamma1 * variance * np.eye(DIM) + gamma2 * beside * off
        deviation = np.sqrt(np.diag(covariance))
        correlation = covariance / np.outer(deviation, deviation)
        mean = own.mean(axis=0)
        apart = asked - mean / np.linalg.norm(mean)
        columns.append(np.sum(apart @ np.linalg.inv(correlation) * apart, axis=1))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("images", [2, 4, 8, 30])  # fewer and more than dimensions
@pytest.mark.parametrize("settings", [(1.0, 1.0, 2, 0.5), (1.0, 0.0, 1, 1.0), (10.0, 5.0, 2, 0.25)])
def test_fecams_distances_match_explicit_inverses(images, settings):
    task = a_task(4, classes=5, images=images)
    gamma1, gamma2, shrinks, power = settings
    made = methods.Fecam("m", gamma1=gamma1, gamma2=gamma2, shrinks=shrinks, power=power)
    expected = explicit_fecam(task, task.test.x.numpy().astype(float), settings)
    learner = taught(lambda: FecamLearner(made), [task])
    np.testing.assert_allclose(-all_scores(learner, task.test.x), expected, rtol=1e-3, atol=1e-5)


def test_fecam_of_a_class_with_one_image_is_euclidean():
    x = torch.eye(DIM)[:2]
    task = BaselineTask(
        "t", 2, BaselineExamples(x, torch.tensor([0, 1])), BaselineExamples(x, torch.tensor([0, 1]))
    )
    np.testing.assert_allclose(all_scores(taught(KINDS["fecam"], [task]), x), [[0, -2], [-2, 0]], atol=1e-5)


def test_fecam_refuses_invalid_shrinkage():
    with pytest.raises(RunError, match="gamma1 = 0"):
        methods.Fecam("m", gamma1=0.0, gamma2=0.0)
    with pytest.raises(RunError, match="gamma2 = 2"):
        methods.Fecam("m", gamma1=1.0, gamma2=2.0)


# Bytes and costs by hand: a task of 8 + 9 + 10 = 27 images in 3 classes, of 6 numbers each.


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("nearest-mean", {"means": 3 * 6 * 4}),
        ("slda", {"means": 3 * 6 * 4, "scatter": 6 * 6 * 4, "images": 4}),
        ("ranpac", {"gram": 40 * 40 * 4, "sums": 3 * 40 * 4, "ridge": 8}),
        # More images than dimensions: 6 rows and the one of the ones, per class.
        ("fecam", {"means": 72, "scales": 72, "rows": 3 * 7 * 6 * 4, "signs": 84, "owners": 84}),
    ],
)
def test_kept_bytes_match_a_count_by_hand(kind, expected, tasks):
    assert taught(KINDS[kind], tasks[:1]).kept_bytes() == expected


def test_small_classes_in_fecam_keep_the_bytes_of_their_images():
    task = a_task(0, images=2)  # 2 + 3 + 4
    assert taught(KINDS["fecam"], [task]).kept_bytes()["rows"] == (9 + 3) * DIM * 4


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("nearest-mean", {"means": 27 * 6}),
        # Half of a symmetric product; then Cholesky, and three means through it and with themselves.
        ("slda", {"means": 27 * 6, "scatter": 6 * 7 / 2 * 27, "solve": 6**3 / 6 + 3 * (36 + 6)}),
        (
            "ranpac",
            {"projection": 27 * 6 * 40, "gram": 40 * 41 / 2 * 27 + 27 * 40, "solve": 40**3 / 6 + 3 * 40 * 40},
        ),
        (
            "fecam",
            {
                "means": 27 * 6,
                "transform": 27 * 6,
                # Down to 6 rows each; their products, Cholesky, half of a square times them, and the ones.
                "covariance": 21 * 27 + 3 * (21 * 6 + 6**3 / 6 + 18 * 6 + 2 * 6 * 6),
            },
        ),
    ],
)
def test_costs_match_a_count_by_hand(kind, expected, tasks):
    with counted() as costs:
        taught(KINDS[kind], tasks[:1])
    assert costs.spent == pytest.approx(expected)


def test_costs_of_choosing_the_ridge_match_a_count_by_hand(tasks):
    with counted() as costs:
        taught(KINDS["ranpac-chosen"], tasks[:1])
    products = 21 * 22 / 2 * 40 + 6 * 21 * 40  # 21 images of 27 with each other and with the other 6
    tries = 17 * (21**3 / 6 + 21 * 3 * 21 + 6 * 21 * 3)
    assert costs.spent["ridge"] == pytest.approx(products + tries)


# In a run, on the real backbone.


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slda", "fecam-descriptor"])
def test_a_run_uses_the_backbones_features_and_counts_their_cost(name, command, tiny_tasks: Path, tmp_path: Path):
    from skillmesh.backbone.backbone import Backbone

    file = tmp_path / "withheld.toml"
    file.write_text(f'kind = "{METHODS[name].kind}"\nbase = "{name}"\nlabel = "withheld"\n')
    ran = command("challenge", "run", tiny_tasks, "--method", file, "--out", tmp_path / "run", "--no-bound")
    assert ran.code == 0, ran.err
    record = read_record(tmp_path / "run")
    forward = Backbone.load("lite0").network.forward_macs
    assert [learned.macs["forward"] for learned in record.learned] == [8.0 * forward] * 5
    last = record.steps[-1].tasks
    assert all(task.found is not None and task.final <= min(task.given, task.found) for task in last)
    assert np.mean([task.given for task in last]) > 0.6
