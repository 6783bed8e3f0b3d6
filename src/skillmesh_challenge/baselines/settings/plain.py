"""Training on, with old images, old answers or nothing against forgetting: settings and where these come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from skillmesh_challenge.baselines.settings import Count, Number, TrainedSettings, WholeNumber, every

Mix = Literal["union", "balanced"]

RATES = every(rate=(0.0003, 0.001, 0.003), head_rate=(0.01, 0.03))
"""What tuning tries where a method has nothing else to choose."""


@dataclass(frozen=True)
class Naive(TrainedSettings):
    """Train on, with nothing against forgetting: the lower bound."""

    kind = "naive"
    made_by = "trainer:Trainer"
    grid = RATES


@dataclass(frozen=True)
class Joint(TrainedSettings):
    """Train anew on all data so far: the upper bound, which no lifelong learner may have."""

    mix: ClassVar[Mix] = "union"
    kind = "joint"
    made_by = "joint:JointLearner"
    grid = RATES


@dataclass(frozen=True)
class Er(TrainedSettings):
    """Experience replay (Robins 1995): learn on with some images of every earlier task."""

    per_class: Count = 10  # the paper, section 5 and appendix D
    """Images that are kept of each class; the buffer grows with every task."""
    mix: Mix = "union"  # the paper: "all the data for that task, plus rehearses old tasks using the memory buffer"
    """Learn the buffer as if it were more of the new images, or join every batch of these by as many from it."""

    kind = "er"
    made_by = "er:Replay"
    grid = RATES


@dataclass(frozen=True)
class Lwf(TrainedSettings):
    """Learning without forgetting (Li & Hoiem 2017): old heads go on saying of new images what they said."""

    strength: Number = 1.0  # section 3: the balance of both losses is 1 in most experiments
    """Weight of what old heads must go on saying, beside the new task's own loss."""
    # section 3, after a grid search on held-out images
    temperature: Annotated[float, Field(ge=0.01, allow_inf_nan=False)] = 2.0
    warm_up: WholeNumber = 5  # section 3: the new head alone first, "to convergence"; ours: as long as all
    """Epochs that train the new head alone, at a head's cost; 0: none."""

    kind = "lwf"
    made_by = "lwf:WithoutForgetting"
    grid = every(strength=(0.3, 1.0, 3.0), rate=(0.0003, 0.001))
