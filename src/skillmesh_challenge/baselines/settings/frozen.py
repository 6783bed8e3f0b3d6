"""Settings, with their sources, of current methods that do not change the backbone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from skillmesh_challenge.baselines.settings import Count, Frozen, Grid, Number, Positive, Share, WholeNumber, every
from skillmesh_challenge.errors import RunError

Distance = Literal["cosine", "euclidean"]


@dataclass(frozen=True)
class NearestMean(Frozen):
    """Classification by the nearest class mean."""

    distance: Distance = "cosine"
    # Zhou et al. 2023 (SimpleCIL) and McDonnell et al. 2023 compare with cosine; Mensink et al. 2013: Euclidean.
    power: Number = 1.0
    """Exponent of Tukey's transform, which Goswami et al. 2023 add; 1 changes nothing."""

    kind = "nearest-mean"
    made_by = "nearest_mean:NearestMeanLearner"
    grid = every(distance=get_args(Distance), power=(1.0, 0.5, 0.25))


@dataclass(frozen=True)
class Slda(Frozen):
    """Streaming linear discriminant analysis: class means and one covariance."""

    shrinkage: Share = 1e-4  # Hayes & Kanan 2020, section 3
    """Weight of the identity in the covariance, 0 to 1; at 0 it may have no inverse."""

    kind = "slda"
    made_by = "slda:SldaLearner"
    grid = every(shrinkage=(1e-5, 1e-4, 1e-3, 1e-2, 0.03, 0.1))


@dataclass(frozen=True)
class RanPac(Frozen):
    """A random projection to many dimensions, followed by ridge regression."""

    width: Count = 10_000  # McDonnell et al. 2023, section 5: M = 10,000
    ridge: Positive | None = None
    """Ridge penalty; None: chosen again with each task among 10⁻⁸ … 10⁸, as in the paper's appendix."""

    kind = "ranpac"
    made_by = "ranpac:RanPacLearner"
    # The paper's figure on M goes from hundreds to 15,000; the two fixed ridges are in its range.
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
    """Mahalanobis distances with one covariance per class."""

    gamma1: Number = 1.0  # Goswami et al. 2023, section 5: (1, 1) with many images of a class …
    gamma2: Number = 1.0
    """Factors of the mean variance (gamma1) and the mean covariance (gamma2) added at each shrinking."""
    shrinks: WholeNumber = 2  # … shrunk twice; their runs on pretrained transformers: (1, 0), once
    power: Number = 0.5  # their β
    """Exponent of Tukey's transform."""

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
                f"{self.shrinks}; expected 0 ≤ gamma2 ≤ gamma1, gamma1 > 0 and shrinks ≥ 1: otherwise covariances "
                "cannot be inverted"
            )

    def settings_to_try(self) -> Grid:
        """Return the grid, plus both papers' settings with the other power: descriptors are already rooted."""
        other = {"power": 0.5 if self.power == 1 else 1.0}
        return (*self.grid, *(changes | other for changes in self.grid[:2]))
