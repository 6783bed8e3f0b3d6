"""Methods that hold weights which mattered: their settings and where these come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from skillmesh_challenge.baselines.settings import Count, Grid, Number, Positive, TrainedSettings, every

Fisher = Literal["sampled", "empirical"]
Steps = Literal["plain", "steady"]


def _plain(*strengths: float) -> Grid:
    """Four strengths: the first three at one rate, the last three at a third of it, which bears three times more.

    SGD with momentum of 0.9 flies apart where rate · strength · importance is above 2 · (1 + 0.9), and importances
    of tasks add up. For the most important weight of a first task (`asl_alphabet`) this is 0.2 at most here.
    """
    return every(rate=(0.003,), strength=strengths[:3]) + every(rate=(0.001,), strength=strengths[1:])


def _steady(*strengths: float) -> Grid:
    """Two rates by three strengths: from where plain steps fly apart to nearly frozen."""
    return every(rate=(0.003, 0.001), strength=strengths)


@dataclass(frozen=True)
class Pulled(TrainedSettings):
    """Weights that mattered are held: loss + strength / 2 · Σ importance · (weight − old weight)²."""

    strength: Number = 1.0
    steps: Steps = "plain"
    """`steady`, which is ours: where a spring is stiff, steps are shorter (importance.py says why)."""

    steady_grid: ClassVar[Grid] = ()
    """What tuning tries of steady steps, which bear strengths under which plain ones fly apart."""

    def settings_to_try(self) -> Grid:
        return self.steady_grid if self.steps == "steady" else super().settings_to_try()


@dataclass(frozen=True)
class Ewc(Pulled):
    """Elastic weight consolidation (Kirkpatrick et al. 2017): a Fisher information for every task."""

    strength: Number = 30.0  # its λ, before which the paper has the factor ½, too; in the grid
    fisher: Fisher = "sampled"
    """Of answers that the network draws (the Fisher information itself), or of the true labels (a stand-in)."""
    fisher_images: Count = 500
    """At most so many images, drawn by the seed: each costs a pass. Ours; the paper gives no number."""

    kind = "ewc"
    made_by = "ewc:EwcLearner"
    grid = _plain(3.0, 10.0, 30.0, 100.0)
    steady_grid = _steady(1e3, 1e4, 1e5)


@dataclass(frozen=True)
class EwcOnline(Ewc):
    """Online EWC (Schwarz et al. 2018): one running Fisher information, around the newest weights."""

    decay: Number = 0.95  # its γ, below 1; the value is ours, untuned. The γ before its penalty is in `strength`.

    kind = "ewc-online"
    made_by = "ewc:EwcOnlineLearner"


@dataclass(frozen=True)
class Si(Pulled):
    """Synaptic intelligence (Zenke et al. 2017): who lowered the loss, measured along the path."""

    strength: Number = 1.0  # twice its c (no factor ½ there; 0.1 to 1); in the grid
    damping: Positive = 1e-3  # its ξ: the paper has 1e-3 (split MNIST) and 0.1 (permuted MNIST)

    kind = "si"
    made_by = "si:SiLearner"
    grid = _plain(0.3, 1.0, 3.0, 10.0)
    steady_grid = _steady(1e2, 1e3, 1e4)


@dataclass(frozen=True)
class Mas(Pulled):
    """Memory aware synapses (Aljundi et al. 2018): how much the answers depend on a weight."""

    strength: Number = 0.3  # twice its λ (no factor ½ there), which is 1 in the paper; in the grid
    answer_images: Count = 500
    """At most so many images, as for a Fisher information; the paper has all."""

    kind = "mas"
    made_by = "mas:MasLearner"
    grid = _plain(0.03, 0.1, 0.3, 1.0)
    steady_grid = _steady(0.1, 1.0, 1e1)
