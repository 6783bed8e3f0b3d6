"""Modules forged by an attacker, and the quarantine that vets them."""

from __future__ import annotations

from typing import Any

from skillmesh.core import Core
from skillmesh.module import Identity, Module
from skillmesh.numerics.arrays import Tensors
from skillmesh.store.home import VALIDATION, load_validation
from skillmesh.vetting.quarantine import Quarantine, background_of

LIAR = Identity.create("liar")


def quarantine_of(agent: Core, own: list[Module]) -> Quarantine:
    config = agent.config
    background = background_of(agent.calibration, config.representation, config.compact)
    prior = agent.calibration.prior(config.representation, config.compact)
    kept = load_validation(agent.home / VALIDATION, own)
    return Quarantine(prior, config.anchor, background, kept)


def forged(honest: Module, tensors: Tensors | None = None, **card: Any) -> Module:
    """Alter an honest module and sign it with another key."""
    card |= {"teacher": LIAR.name, "teacher_key": LIAR.public_key}
    return Module.create(honest.card.model_copy(update=card), honest.tensors | (tensors or {}), LIAR)[0]
