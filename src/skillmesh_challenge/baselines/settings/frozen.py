"""Peers of today, which leave the backbone alone: their settings and where these come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from skillmesh_challenge.baselines.settings import Count, Frozen, Grid, Number, Positive, Share, WholeNumber, every
from skillmesh_challenge.errors import RunError

Distance = Literal["cosine", "euclidean"]


@dataclass(frozen=True)
class NearestMean(Frozen):
    """The class whose mean is nearest."""

    distance: Distance = "cosine"
    # Zhou et al. 2023 (SimpleCIL) and McDonnell et al. 2023 compare with it; Mensink et al. 2013: Euclidean.
    power: Number = 1.0
    """Of Tukey's transform, which Goswami et al. 2023 add; 1 leaves everything as it is."""

    kind = "nearest-mean"
    made_by = "nearest_mean:NearestMeanLearner"
    grid = every(distance=get_args(Distance), power=(1.0, 0.5, 0.25))


@dataclass(frozen=True)
class Slda(Frozen):
    """Streaming linear discriminant analysis: class means and one covariance."""

    shrinkage: Share = 1e-4  # Hayes & Kanan 2020, section 3
    """Share of the covariance that is the identity; without any it may have no inverse."""

    kind = "slda"
    made_by = "slda:SldaLearner"
    grid = every(shrinkage=(1e-5, 1e-4, 1e-3, 1e-2, 0.03, 0.1))


@dataclass(frozen=True)
class RanPac(Frozen):
    """A random projection to many dimensions, and ridge regression on that."""

    width: Count = 10_000  # McDonnell et al. 2023, section 5: M = 10,000
    ridge: Positive | None = None
    """None: chosen anew with each task among 10⁻⁸ … 10⁸, as its appendix says."""

    kind = "ranpac"
    made_by = "ranpac:RanPacLearner"
    # Its figure on M goes from hundreds to 15,000; the two fixed ridges are of its range.
    grid = (
        {"width": 1_000},
        {"width": 2_000},
        {"width": 5_000},
        {"width": 10_000},
        {"width": 10_000, "ridge": 1e4},
        {"width": 10_000, "ridge": 1e6},
    )


@dataclass(frozen=True)
class Fecam(Frozen):
    """Mahalanobis distances under a covariance of each class's own."""

    gamma1: Number = 1.0  # Goswami et al. 2023, section 5: (1, 1) with many images of a class …
    gamma2: Number = 1.0
    """How much of the mean variance and of the mean covariance is added, each time."""
    shrinks: WholeNumber = 2  # … shrunk twice; their runs on pretrained transformers: (1, 0), once
    power: Number = 0.5  # their β
    """Of Tukey's transform."""

    kind = "fecam"
    made_by = "fecam:FecamLearner"
    grid = (
        {"gamma1": 1.0, "gamma2": 1.0},
        {"gamma1": 1.0, "gamma2": 0.0, "shrinks": 1},
        {"gamma1": 10.0, "gamma2": 10.0},
        {"gamma1": 100.0, "gamma2": 100.0},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gamma2 <= self.gamma1 or self.gamma1 <= 0 or self.shrinks < 1:
            raise RunError(
                f"the method {self.name!r} has gamma1 = {self.gamma1}, gamma2 = {self.gamma2} and shrinks = "
                f"{self.shrinks}; with anything but 0 ≤ gamma2 ≤ gamma1, gamma1 > 0 and shrinks ≥ 1 covariances "
                "cannot be inverted"
            )

    def settings_to_try(self) -> Grid:
        """Both papers' settings with the other power, too: the descriptor is square-rooted already."""
        other = {"power": 0.5 if self.power == 1 else 1.0}
        return (*self.grid, *(changes | other for changes in self.grid[:2]))
