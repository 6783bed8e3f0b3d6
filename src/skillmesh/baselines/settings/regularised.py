"""Methods that hold weights which mattered: their settings and where these come from."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from skillmesh.baselines.settings import Trained
from skillmesh.errors import RunError

Fisher = Literal["sampled", "empirical"]


def _pulls(*strengths: float) -> tuple[dict[str, Any], ...]:
    """Two rates by three strengths: from hardly felt to nearly frozen, by the sizes of importances."""
    return tuple({"rate": rate, "strength": strength} for rate, strength in product((0.003, 0.01), strengths))


@dataclass(frozen=True)
class Pulled(Trained):
    """Weights that mattered are held: loss + strength / 2 · Σ importance · (weight − old weight)²."""

    strength: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strength >= 0:
            raise RunError(f"the method {self.name!r} has strength = {self.strength}; expected 0 or more")


@dataclass(frozen=True)
class Ewc(Pulled):
    """Elastic weight consolidation (Kirkpatrick et al. 2017): a Fisher information for every task."""

    strength: float = 1e4  # its λ (equation 3), which has the factor ½, too; tuned: the paper gives none
    fisher: Fisher = "sampled"
    """Of answers that the network draws (the Fisher information itself), or of the true labels (a stand-in)."""
    fisher_images: int = 500
    """At most so many images, drawn by the seed: each costs a pass. Ours; the paper gives no number."""

    kind = "ewc"
    made_by = "ewc:Ewc"
    grid = _pulls(1e2, 1e4, 1e6)

    def _choices(self) -> dict[str, Any]:
        return super()._choices() | {"fisher": Fisher}


@dataclass(frozen=True)
class EwcOnline(Ewc):
    """Online EWC (Schwarz et al. 2018): one running Fisher information, around the newest weights."""

    decay: float = 0.95  # its γ (section 3): tuned there, below 1. The γ before its penalty is in `strength`.

    kind = "ewc-online"
    made_by = "ewc:EwcOnline"


@dataclass(frozen=True)
class Si(Pulled):
    """Synaptic intelligence (Zenke et al. 2017): who lowered the loss, measured along the path."""

    strength: float = (
        1e3  # twice its c (equation 4), which has no factor ½ and is 0.1 to 1 from random weights; tuned
    )
    damping: float = 1e-3  # its ξ (equation 5): the paper has 1e-3 (split MNIST) and 0.1 (permuted MNIST)

    kind = "si"
    made_by = "si:Si"
    grid = _pulls(1e1, 1e3, 1e5)


@dataclass(frozen=True)
class Mas(Pulled):
    """Memory aware synapses (Aljundi et al. 2018): how much the answers depend on a weight."""

    strength: float = 1e1  # twice its λ (equation 4: no factor ½), which is 1 in the paper; tuned
    answer_images: int = 500
    """At most so many images, as for a Fisher information; the paper has all."""

    kind = "mas"
    made_by = "mas:Mas"
    grid = _pulls(1.0, 1e1, 1e2)
