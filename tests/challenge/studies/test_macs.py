"""MACs: networks against published counts and counts by hand, and learning against what its code multiplies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skillmesh.anchors.gmmc import GmmcAnchor
from skillmesh.anchors.protocol import AnchorSettings
from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.backbone.suffix import pass_costs
from skillmesh.backbone.torch_network import TorchNetwork
from skillmesh.learning.head import _gram_factor, _minimise
from skillmesh.numerics.arrays import counted, em_macs, head_macs
from skillmesh_challenge.paper import inputs
from skillmesh_challenge.studies.macs import PUBLISHED, counts, random_network

pytestmark = pytest.mark.long

LITE0 = ((1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 3, 2), (6, 5, 112, 3, 1))
LITE0 += ((6, 5, 192, 4, 2), (6, 3, 320, 1, 1))
"""Expansion, kernel, channels, repeats and stride of each stage, as EfficientNet's paper has them."""


def lite0_by_hand() -> int:
    size, before = 112, 32
    products = size**2 * 32 * 3 * 3 * 3
    for expansion, kernel, channels, repeats, stride in LITE0:
        for index in range(repeats):
            wide = before * expansion
            products += size**2 * before * wide if expansion > 1 else 0
            size //= stride if index == 0 else 1
            products += size**2 * wide * kernel**2
            products += size**2 * wide * channels
            before = channels
    return products + size**2 * before * 1280


def xception_by_hand() -> int:
    def separable(before: int, after: int, size: int) -> int:
        return size**2 * (9 * before + before * after)

    products = 149**2 * 32 * 27 + 147**2 * 64 * 9 * 32
    for before, after, size, smaller in ((64, 128, 147, 74), (128, 256, 74, 37), (256, 728, 37, 19)):
        products += separable(before, after, size) + separable(after, after, size) + smaller**2 * before * after
    products += 8 * 3 * separable(728, 728, 19)
    products += separable(728, 728, 19) + separable(728, 1024, 19) + 10**2 * 728 * 1024
    return products + separable(1024, 1536, 10) + separable(1536, 2048, 10)


BY_HAND = {"lite0": lite0_by_hand, "xception": xception_by_hand}


@pytest.fixture(scope="module")
def networks() -> dict[str, TorchNetwork]:
    return {name: random_network(name) for name in BY_HAND}


@pytest.fixture(scope="module", params=["lite0", "xception"])
def network(request: pytest.FixtureRequest, networks: dict[str, TorchNetwork]) -> tuple[str, dict[str, int]]:
    return request.param, counts(networks[request.param])


class TestNetworks:
    def test_a_pass_costs_what_a_count_by_hand_gives(self, network: tuple[str, dict[str, int]]):
        name, found = network
        assert found["ours"] == BY_HAND[name]()

    def test_it_is_within_a_percent_of_torchs_own_counter(self, network: tuple[str, dict[str, int]]):
        import torch
        from torch.utils.flop_counter import FlopCounterMode

        from skillmesh.backbone.building import import_timm
        from skillmesh.backbone.spec import spec_of

        name, found = network
        size = {"lite0": 224, "xception": 299}[name]
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            import_timm().create_model(spec_of(name).timm_name).eval()(torch.zeros(1, 3, size, size))
        assert counter.get_total_flops() == 2 * found["with classifier"]
        assert found["ours"] == pytest.approx(counter.get_total_flops() / 2, rel=0.01)

    def test_published_counts_are_met_within_a_percent_by_counting_what_they_count(
        self, network: tuple[str, dict[str, int]]
    ):
        name, found = network
        for way, (_, published) in PUBLISHED[name].items():
            assert found[way] == pytest.approx(published, rel=0.01)

    def test_products_alone_are_within_a_percent_for_xception_and_not_for_lite0(
        self, network: tuple[str, dict[str, int]]
    ):
        """lite0's layers are thin: norms and activations are five percent of what its authors count."""
        name, found = network
        off = [1 - found["ours"] / published for _, published in PUBLISHED[name].values()]
        assert max(off) < 0.01 if name == "xception" else 0.03 < min(off) < max(off) < 0.06


def test_what_the_papers_tables_take_for_xception_is_xceptions(networks: dict[str, TorchNetwork]):
    places = networks["xception"].places
    middle = tuple(f"block{number}." for number in range(4, 12))
    pointwise = [place for place in places if place.path.endswith(".pointwise")]
    assert sum(p.channels for p in pointwise if p.path.startswith(middle)) == inputs.STATED_BIASES
    assert sum(place.channels for place in places) == inputs.XCEPTION_CHANNELS
    assert pass_costs(networks["xception"]).forward == inputs.XCEPTION_PASS
    assert counts(networks["xception"])["with all"] == pytest.approx(inputs.XCEPTION_PASS_PTFLOPS, rel=1e-6)


def test_xception_has_the_parameters_that_the_paper_says():
    from skillmesh.backbone.building import import_timm

    model = import_timm().create_model("legacy_xception")
    assert sum(p.numel() for p in model.parameters()) == inputs.XCEPTION_COUNTED


class Counting(np.ndarray):
    """An array that notes what its matrix products multiply, as does everything made from it."""

    products = 0

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *given: Any, **settings: Any) -> Any:
        plain = [g.view(np.ndarray) if isinstance(g, Counting) else g for g in given]
        if out := settings.get("out"):
            settings["out"] = tuple(o.view(np.ndarray) if isinstance(o, Counting) else o for o in out)
        if ufunc is np.matmul:
            left, right = (np.atleast_2d(p) for p in plain)
            Counting.products += left.shape[0] * left.shape[1] * right.shape[1]
        made = getattr(ufunc, method)(*plain, **settings)
        return made.view(Counting) if isinstance(made, np.ndarray) else made


@pytest.fixture
def rows() -> Counting:
    Counting.products = 0
    return np.random.default_rng(0).standard_normal((300, 40)).astype(np.float32).view(Counting)


class TestLearning:
    def test_sketch_costs_what_its_code_multiplies(self, rows: Counting):
        labels = np.arange(300) % 5
        with counted() as costs:
            SketchAnchor.fit(rows, labels, 5, AnchorSettings(rank=4))
        assert costs.spent["closed form"] == pytest.approx(Counting.products, rel=0.01)
        assert costs.spent["closed form"] <= Counting.products  # turning the basis back is left out: rank² × dim

    def test_a_heads_gram_matrix_costs_what_its_code_multiplies(self, rows: Counting):
        with counted() as costs:
            _gram_factor(rows)
        assert Counting.products == 300 * 300 * 40
        assert costs.spent["head"] == 300 * 301 / 2 * 40  # BLAS forms one half of a matrix times its transpose

    def test_a_head_costs_what_its_code_multiplies(self, rows: Counting):
        with counted() as costs:
            _minimise(rows, np.arange(300) % 5, np.zeros((41, 5)), 1e-3)
        assert costs.spent["head"] == Counting.products
        assert Counting.products % head_macs(300, 40, 5, evaluations=1) == 0

    def test_a_step_of_a_head_costs_what_loops_multiply(self):
        x, weight = np.ones((6, 3)), np.ones((3, 2))
        logits, first = _product(x, weight)
        _, second = _product(x.T, logits)
        assert first + second == head_macs(6, 3, 2, evaluations=1)

    def test_em_costs_what_loops_multiply(self):
        """EM by loops comes to the same clusters as scikit-learn's, in the same number of rounds."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.mixture import GaussianMixture

        x = np.random.default_rng(1).standard_normal((20, 3)) + np.repeat([[0.0], [3.0]], 10, axis=0)
        start = x[[0, 10]]
        theirs = GaussianMixture(
            2,
            covariance_type="diag",
            reg_covar=0,
            max_iter=3,
            tol=0,
            weights_init=[0.5, 0.5],
            means_init=start,
            precisions_init=np.ones((2, 3)),
        )
        with pytest.warns(ConvergenceWarning):  # three rounds are too few, and meant to be
            theirs.fit(x)
        means, products = _em_by_loops(x, start, rounds=3)
        np.testing.assert_allclose(means, theirs.means_)
        assert products == em_macs(20, 3, 2, rounds=3)

    def test_gmmc_counts_its_own_rounds(self):
        from sklearn.mixture import GaussianMixture

        x = np.random.default_rng(2).standard_normal((50, 4)).astype(np.float32)
        settings = AnchorSettings(clusters=3, variance_floor=1e-3, seed=0)
        with counted() as costs:
            GmmcAnchor.fit(x, np.zeros(50, dtype=np.int64), 1, settings)
        same = GaussianMixture(3, covariance_type="diag", reg_covar=1e-3, random_state=0).fit(x.astype(np.float64))
        assert costs.spent["EM"] == em_macs(50, 4, 3, same.n_iter_)


def _product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, int]:
    made, products = np.zeros((a.shape[0], b.shape[1])), 0
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            for k in range(a.shape[1]):
                made[i, j] += a[i, k] * b[k, j]
                products += 1
    return made, products


def _em_by_loops(x: np.ndarray, means: np.ndarray, rounds: int) -> tuple[np.ndarray, int]:
    """Two products for the responsibilities, two for the moments, in each round; what is smaller is left out."""
    weights, variances, products = np.full(2, 0.5), np.ones((2, 3)), 0
    for _ in range(rounds):
        squares, first = _product(x**2, (1 / variances).T)
        crosses, second = _product(x, (means / variances).T)
        log = np.log(weights) - 0.5 * (
            squares - 2 * crosses + (means**2 / variances).sum(axis=1) + np.log(variances).sum(axis=1)
        )
        share = np.exp(log - log.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        sums, third = _product(share.T, x)
        moments, fourth = _product(share.T, x**2)
        counts_ = share.sum(axis=0)
        weights, means = counts_ / len(x), sums / counts_[:, None]
        variances = moments / counts_[:, None] - means**2
        products += first + second + third + fourth
    return means, products
