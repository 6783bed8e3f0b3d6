"""Every baseline by name, with its settings and their sources. Nothing here loads torch.

A class of settings is a kind of method: a file may say `kind = "ewc"` and change what it likes.
"""

from __future__ import annotations

from dataclasses import dataclass

from skillmesh.baselines.settings import Trained
from skillmesh.challenge.methods import register, register_kind


@dataclass(frozen=True)
class Naive(Trained):
    """Train on, with nothing against forgetting: the lower bound."""

    kind = "naive"
    made_by = "trainer:Trainer"


@dataclass(frozen=True)
class Joint(Trained):
    """Train anew on all data so far: the upper bound, which no lifelong learner may have."""

    kind = "joint"
    made_by = "joint:Joint"


for settings in (Naive, Joint):
    register_kind(settings.kind, settings)
    register(settings(settings.kind))
