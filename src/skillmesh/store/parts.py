"""Which tensors a module has: those of its head, anchors, probes and biases, as the card says."""

from __future__ import annotations

from skillmesh.anchors import KINDS
from skillmesh.learning.adaptation import Biases
from skillmesh.learning.head import Head
from skillmesh.learning.probes import probe_specs
from skillmesh.module.card import Card
from skillmesh.numerics.tensors import Spec


def specs_for(card: Card) -> dict[str, Spec]:
    classes = len(card.classes)
    specs = Head.specs(classes, card.head_dim, exponents=card.toes is not None)
    specs |= probe_specs(card.validation_images, card.dim)
    for kind in card.anchors:
        specs |= KINDS[kind].specs(classes, card.dim)
    if card.pattern is not None:
        specs["pattern"] = Spec("U8", (card.pattern, card.pattern, 3))
    if card.biases is not None:
        specs |= Biases.specs(*card.biases)
    return specs
