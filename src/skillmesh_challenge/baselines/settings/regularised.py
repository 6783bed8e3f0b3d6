"""Settings, with their sources, of methods with a regularisation penalty on important weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from skillmesh_challenge.baselines.settings import Count, Grid, Number, Positive, TrainedSettings, every

Fisher = Literal["sampled", "empirical"]
Steps = Literal["plain", "steady"]


def _plain(*strengths: float) -> Grid:
    """Return a grid of four strengths: the first three at one rate, the last three at a third of that rate.

    A third of the rate is stable up to three times the strength. SGD with momentum of 0.9 diverges where rate ·
    strength · importance is above 2 · (1 + 0.9), and importances of tasks add up. In this grid the product is at
    most 0.2 for the most important weight of a first task (`asl_alphabet`).
    """
    return every(rate=(0.003,), strength=strengths[:3]) + every(rate=(0.001,), strength=strengths[1:])


def _steady(*strengths: float) -> Grid:
    """Return a grid of two rates by three strengths, from where plain steps diverge to nearly frozen weights."""
    return every(rate=(0.003, 0.001), strength=strengths)


@dataclass(frozen=True)
class Regularised(TrainedSettings):
    """Regularised training: loss + strength / 2 · Σ importance · (weight − old weight)²."""

    strength: Number = 1.0
    steps: Steps = "plain"
    """`steady`, which is ours, takes shorter steps where the penalty is large (importance.py explains why)."""

    steady_grid: ClassVar[Grid] = ()
    """Grid for steady steps, with strengths at which plain steps diverge."""

    def settings_to_try(self) -> Grid:
        return self.steady_grid if self.steps == "steady" else super().settings_to_try()


@dataclass(frozen=True)
class Ewc(Regularised):
    """Elastic weight consolidation (Kirkpatrick et al. 2017): a Fisher information for every task."""

    strength: Number = 30.0  # its λ; the paper has the factor ½, too; tuned
    fisher: Fisher = "sampled"
    """From labels sampled from the network (the Fisher information itself), or true labels (an approximation)."""
    fisher_images: Count = 500
    """Maximal number of images, drawn by the seed; each costs a pass. Our choice: the paper gives no number."""

    kind = "ewc"
    made_by = "ewc:EwcLearner"
    grid = _plain(3.0, 10.0, 30.0, 100.0)
    steady_grid = _steady(1e3, 1e4, 1e5)


@dataclass(frozen=True)
class EwcOnline(Ewc):
    """Online EWC (Schwarz et al. 2018): one running Fisher information, around the newest weights."""

    decay: Number = 0.95  # its γ, below 1; the value is ours, untuned. The γ of its penalty is in `strength`.

    kind = "ewc-online"
    made_by = "ewc:EwcOnlineLearner"


@dataclass(frozen=True)
class Si(Regularised):
    """Synaptic intelligence (Zenke et al. 2017): each weight's share in lowering the loss."""

    strength: Number = 1.0  # twice its c (no factor ½ there; 0.1 to 1); tuned
    damping: Positive = 1e-3  # its ξ: the paper has 1e-3 (split MNIST) and 0.1 (permuted MNIST)

    kind = "si"
    made_by = "si:SiLearner"
    grid = _plain(0.3, 1.0, 3.0, 10.0)
    steady_grid = _steady(1e2, 1e3, 1e4)


@dataclass(frozen=True)
class Mas(Regularised):
    """Memory aware synapses (Aljundi et al. 2018): how much the answers depend on a weight."""

    strength: Number = 0.3  # twice its λ (no factor ½ there), which is 1 in the paper; tuned
    answer_images: Count = 500
    """Maximal number of images, as for the Fisher information; the paper uses all."""

    kind = "mas"
    made_by = "mas:MasLearner"
    grid = _plain(0.03, 0.1, 0.3, 1.0)
    steady_grid = _steady(0.1, 1.0, 1e1)
