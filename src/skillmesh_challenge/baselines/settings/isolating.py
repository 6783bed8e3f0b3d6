"""Methods that give each task a part of its own: their settings and where these come from."""

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
    from_nothing = every(rate=(0.01, 0.03, 0.1), keys=get_args(Keys))

    keys: Keys = "binary"  # both are the paper's; a binary key is a bit per input
    superpose: Superposed = "changes"
    """The paper superposes weights: of a network from scratch. From a pretrained start that would scramble it for
    all tasks but the first, which then learn nothing in a few steps; so only what tasks change is superposed."""


@dataclass(frozen=True)
class Supsup(TrainedSettings):
    """SupSup (Wortsman et al. 2020): frozen weights and a learned mask per task."""

    kind = "supsup"
    made_by = "supsup:SupsupLearner"
    grid = every(rate=(10.0, 100.0, 1000.0), share=(0.7, 0.9))
    from_nothing = every(rate=(0.1, 1.0, 10.0), share=(0.3, 0.5))

    rate: Number = 10.0
    """Of scores, whose gradients are as small as the weights that they are multiplied with: from a pretrained
    start smaller steps hardly move a mask (a small trial). Both papers have 0.1, from random weights, for long."""
    norms: Norms = "trained"
    """Statistics of each task's own network; masks change them."""
    share: Share = 0.9
    """Of a layer's weights that a mask keeps. Much, where the weights are good ones: tuned."""
    telling: Telling = "entropy"
    """How tasks are told apart where the label is withheld."""


@dataclass(frozen=True)
class ParallelSupsup(Supsup):
    """The same by many agents: each learns the masks of its own tasks and sends them to the others."""

    kind = "supsup-parallel"
    parallel = True
