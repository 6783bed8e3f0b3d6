"""Settings, with their sources, of methods that give each task its own part of the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from skillmesh_challenge.baselines.settings import Norms, Number, Share, TrainedSettings, every

Keys = Literal["binary", "complex"]
Superposed = Literal["weights", "changes"]
Telling = Literal["entropy", "one-shot"]


@dataclass(frozen=True)
class Psp(TrainedSettings):
    """Parameter superposition (Cheung et al. 2019): all tasks' weights in one sum, each read with its own key."""

    kind = "psp"
    made_by = "psp:PspLearner"
    grid = every(rate=(0.001, 0.002, 0.004), keys=get_args(Keys))
    random_start_grid = every(rate=(0.01, 0.03, 0.1), keys=get_args(Keys))

    keys: Keys = "binary"  # both are the paper's; a binary key is a bit per input
    superpose: Superposed = "changes"
    """The paper superposes the weights of a network trained from scratch. A pretrained network would be scrambled
    for all tasks but the first, which then learn nothing in a few steps; so only changes are superposed."""


@dataclass(frozen=True)
class Supsup(TrainedSettings):
    """SupSup (Wortsman et al. 2020): frozen weights and a learned mask per task."""

    kind = "supsup"
    made_by = "supsup:SupsupLearner"
    grid = every(rate=(10.0, 100.0, 1000.0), share=(0.7, 0.9))
    random_start_grid = every(rate=(0.1, 1.0, 10.0), share=(0.3, 0.5))

    rate: Number = 10.0
    """Learning rate of scores. Their gradients are as small as the weights that multiply them: with a pretrained
    start, smaller steps hardly change a mask (a small trial). Both papers train random weights long, at 0.1."""
    norms: Norms = "trained"
    """Each task has its own batch-norm statistics, because masks change them."""
    share: Share = 0.9
    """Share of a layer's weights that a mask keeps, 0 to 1. High for good weights; tuned."""
    telling: Telling = "entropy"
    """How the task is inferred if the label is withheld."""


@dataclass(frozen=True)
class ParallelSupsup(Supsup):
    """SupSup by many agents: each learns the masks of its own tasks and sends them to the others."""

    kind = "supsup-parallel"
    parallel = True
