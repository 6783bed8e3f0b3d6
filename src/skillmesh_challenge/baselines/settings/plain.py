"""Settings, with their sources, of plain fine-tuning, joint training, replay and distillation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from skillmesh_challenge.baselines.settings import Count, Number, TrainedSettings, WholeNumber, every

Mix = Literal["union", "balanced"]

RATES = every(rate=(0.0003, 0.001, 0.003), head_rate=(0.01, 0.03))
"""Tuning grid of methods whose only settings are learning rates."""


@dataclass(frozen=True)
class Naive(TrainedSettings):
    """Fine-tuning with nothing against forgetting: the lower bound."""

    kind = "naive"
    made_by = "trainer:Trainer"
    grid = RATES


@dataclass(frozen=True)
class Joint(TrainedSettings):
    """Training from the initial weights on all data so far: the upper bound, not allowed to lifelong learners."""

    mix: ClassVar[Mix] = "union"
    kind = "joint"
    made_by = "joint:JointLearner"
    grid = RATES


@dataclass(frozen=True)
class Er(TrainedSettings):
    """Experience replay (Robins 1995): train with some images of every earlier task."""

    per_class: Count = 10  # the paper, section 5 and appendix D
    """Number of images kept of each class; the buffer grows with every task."""
    mix: Mix = "union"  # the paper: "all the data for that task, plus rehearses old tasks using the memory buffer"
    """`union` adds the buffer to the new images; `balanced` adds to each batch as many images of the buffer."""

    kind = "er"
    made_by = "er:Replay"
    grid = RATES


@dataclass(frozen=True)
class Lwf(TrainedSettings):
    """Learning without forgetting (Li & Hoiem 2017): old heads keep their answers to new images."""

    strength: Number = 1.0  # section 3: the balance of both losses is 1 in most experiments
    """Weight of the distillation loss relative to the new task's loss."""
    # section 3, after a grid search on held-out images
    temperature: Annotated[float, Field(ge=0.01, allow_inf_nan=False)] = 2.0
    warm_up: WholeNumber = 5  # section 3: the new head alone first, "to convergence"; here a fixed number
    """Number of epochs that train the new head alone, at a head's cost; 0: none."""

    kind = "lwf"
    made_by = "lwf:WithoutForgetting"
    grid = every(strength=(0.3, 1.0, 3.0), rate=(0.0003, 0.001))
