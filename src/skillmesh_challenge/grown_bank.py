"""A bank of real and grown modules, as an agent would hold it in memory."""

from __future__ import annotations

import numpy as np

from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.core import Core
from skillmesh.learning.probes import probe_tensors, read_probes
from skillmesh.module import Card, Module
from skillmesh.numerics.tensors import Floats, Tensors
from skillmesh_challenge.growth import Grown, grow, related


def grown_bank(agent: Core, tasks: int, classes: int | None, reach: float, seed: int) -> list[Module]:
    """The agent's own modules, then grown ones up to so many tasks.

    Grown modules have every part of a real one, in memory of its own. The first is really signed and written, for
    its size in bytes; the others differ from it in numbers only and are neither signed nor checked.
    """
    real = list(agent.bank)
    anchors = [SketchAnchor.read(module.tensors) for module in real]
    family = related(anchors, agent.prior)
    rng = np.random.default_rng(seed)
    bank, sizes = list(real), dict[int, int]()
    for number, grown in enumerate(grow(family, tasks - len(real), rng, reach, classes)):
        donor = real[grown.donor]
        card, tensors = _card(donor, grown, number), _tensors(donor, anchors[grown.donor], grown)
        count = len(card.classes)
        if count not in sizes:
            sizes[count] = Module.create(_signable(card, agent), tensors, agent.identity)[0].size
        bank.append(Module(card, tensors, f"grown-{number}", f"grown-{number}", sizes[count]))
    return bank


def _card(donor: Module, grown: Grown, number: int) -> Card:
    classes = len(grown.anchor.means)
    changes = {
        "task": f"grown-{number:05}",
        "classes": tuple(f"class {index:03}" for index in range(classes)),
        "counts": tuple(donor.card.counts[index % len(donor.card.counts)] for index in range(classes)),
    }
    return donor.card.model_copy(update=changes)


def _signable(card: Card, agent: Core) -> Card:
    return card.model_copy(update={"teacher_key": agent.identity.public_key, "teacher": agent.name})


def _tensors(donor: Module, anchor: SketchAnchor, grown: Grown) -> Tensors:
    tensors = grown.anchor.tensors()
    probes = read_probes(donor.tensors, donor.card.dim)
    if len(probes):
        tensors |= probe_tensors(_moved(probes, anchor, grown))
    rows = np.arange(len(grown.anchor.means)) % len(anchor.means)
    return tensors | {name: donor.tensors[name][rows] for name in ("head.weight", "head.scale", "head.bias")}


def _moved(probes: Floats, anchor: SketchAnchor, grown: Grown) -> Floats:
    """The donor's probes, each moved as its nearest class was."""
    square = np.square(anchor.means).sum(axis=1)
    nearest = (2 * probes @ anchor.means.T - square).argmax(axis=1)
    moved: Floats = probes + grown.moved[nearest]
    return moved
