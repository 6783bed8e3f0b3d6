"""Joining: which links act in an agent's bank, and what each makes of its parts.

A link acts where its maker is trusted, two or more of its parts are in the bank, and these fit: heads and anchors
look at the same numbers, every part shares a class name with another, and classes of one name lie in one place.
That depends on the link and the parts alone: agents that hold the same join the same, bit by bit, whatever the
order in which things came. So nobody can join what does not belong together, least of all a stranger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from threadpoolctl import threadpool_limits

from skillmesh.anchors.sketch import SketchAnchor, pooled_precision
from skillmesh.backbone.calibration import Prior
from skillmesh.errors import SettingsMismatchError
from skillmesh.learning.head import Head
from skillmesh.learning.probes import read_probes
from skillmesh.lowrank import Precision
from skillmesh.module import Module
from skillmesh.module.card import MAX_CLASSES, Card
from skillmesh.module.joint import Joint
from skillmesh.module.notice import Link
from skillmesh.synergy.composition.head import closed_form
from skillmesh.synergy.merging.heads import Part, combined
from skillmesh.synergy.merging.statistics import Statistics, Union, merged, union
from skillmesh.synergy.rows.portable import refuse_strangers
from skillmesh.tensors import LOG_HIGH, LOG_LOW, Floats, Tensors, quantise_rows

MOST_EVIDENCE = 4.0
"""Counts are what teachers say they are: none has more than so many times the say of the least of them."""
ASTRAY = 0.25
"""So many shared classes may lie nearer to another class of the other part than to their own."""
COMPARED = 64
"""Of so many classes of two parts it is seen whether they agree, or all: tasks of thousands would take minutes."""


def arranged(modules: Sequence[Module], links: Iterable[Link], prior: Prior) -> list[Module]:
    """A bank's tasks in its order: the modules, those that a link joins as one.

    A module is part of one task only. Of links that want the same the one stands whose maker taught a part of it,
    then the one with more parts here, then the one of lower digest.
    """
    joints: list[Module] = []
    taken: set[str] = set()
    with threadpool_limits(1, "blas"):  # several threads may round otherwise
        for link, parts in sorted(_candidates(modules, links), key=_precedence):
            ids = {part.id for part in parts}
            if not taken & ids and misfit(parts, prior) is None:
                joints.append(joint(link, parts, prior))
                taken |= ids
    alone = [module for module in modules if module.id not in taken]
    return sorted(alone + joints, key=lambda m: (m.content_id, m.id))


def misfit(parts: Sequence[Module], prior: Prior) -> str | None:
    """Say why modules cannot be parts of one task, or nothing."""
    try:
        refuse_strangers([part.card for part in parts])
    except SettingsMismatchError as error:
        return str(error)
    if any("sketch" not in part.card.anchors for part in parts):
        return "only tasks with sketch anchors can be merged: those of other kinds do not add up"
    classes = union([part.card.classes for part in parts])
    if len(classes.classes) > MAX_CLASSES:
        return f"together they have {len(classes.classes):,} classes, expected at most {MAX_CLASSES:,}"
    if (lonely := _unconnected(classes)) is not None:
        card = parts[lonely].card
        return (
            f"{card.task!r} by {card.teacher} has no class in common with the others, expected one or more; to "
            "put different classes together, use `skillmesh compose`"
        )
    compared, astray = disagreement(parts, prior)
    if astray > ASTRAY * compared:
        return (
            f"classes of one name do not look alike: {astray} of {compared} lie nearer to another class of the "
            f"other teacher, expected at most {int(ASTRAY * compared)}"
        )
    return None


def joint(link: Link, parts: Sequence[Module], prior: Prior) -> Joint:
    """One task of parts that fit, in the order of the bank."""
    ordered = sorted(parts, key=lambda m: (m.content_id, m.id))
    classes = union([part.card.classes for part in ordered])
    anchors = [SketchAnchor.read(part.tensors) for part in ordered]
    evidence = _evidence(ordered, classes)
    statistics = [Statistics.of_anchor(anchor, seen) for anchor, seen in zip(anchors, evidence, strict=True)]
    whole = merged(zip(statistics, classes.places, strict=True), len(classes.classes))
    anchor = whole.anchor()
    closed = closed_form(anchor.means, pooled_precision([anchor], prior))
    heads = [
        Part(Head.read(part.tensors), part.card.temperature, places, seen)
        for part, places, seen in zip(ordered, classes.places, evidence, strict=True)
    ]
    head, temperature = combined(heads, closed, anchor.means)
    card = _card(link, ordered, classes, temperature)
    tensors = _unrounded(head, anchor) | _probes(ordered)
    content = _hash("joint-content", [link.task, *(part.content_id for part in ordered)])
    identity = _hash("joint", [link.digest, *(part.id for part in ordered)])
    return Joint(card, tensors, identity, content, sum(part.size for part in ordered), link, tuple(ordered))


def _card(link: Link, parts: Sequence[Module], classes: Union, temperature: float) -> Card:
    """What there is to say of the whole; what only one teacher said of its part is left out."""
    nothing = dict.fromkeys(("validation_accuracy", "trial", "composed", "warm_start", "licence", "tags", "note"))
    told: dict[str, object] = {
        "task": link.task,
        "classes": classes.classes,
        "counts": tuple(int(n) for n in _counts(parts, classes)),
        "temperature": temperature,
        "validation_images": sum(part.card.validation_images for part in parts),
        "version": link.version,
        "created": max(part.card.created for part in parts),
        "teacher": " + ".join(sorted({part.card.teacher for part in parts})),
        "teacher_key": link.teacher_key,
    }
    return parts[0].card.model_copy(update=nothing | told)


def _candidates(modules: Sequence[Module], links: Iterable[Link]) -> list[tuple[Link, list[Module]]]:
    found = [(link, [m for m in modules if m.id in link.parts]) for link in links if not link.withdrawn]
    return [(link, parts) for link, parts in found if len(parts) > 1]


def _precedence(candidate: tuple[Link, list[Module]]) -> tuple[bool, int, str]:
    link, parts = candidate
    stranger = all(part.card.teacher_key != link.teacher_key for part in parts)
    return stranger, -len(parts), link.digest


def _unconnected(classes: Union) -> int | None:
    """The index of a part that no chain of shared classes leads to from the first."""
    reached, known = {0}, set(classes.places[0].tolist())
    while True:
        near = [i for i, places in enumerate(classes.places) if i not in reached and known & set(places.tolist())]
        if not near:
            return next((i for i in range(len(classes.places)) if i not in reached), None)
        reached |= set(near)
        known |= {number for i in near for number in classes.places[i].tolist()}


def disagreement(parts: Sequence[Module], prior: Prior) -> tuple[int, int]:
    """Of all pairs of classes of one name, how many there are, and how many lie nearer to a class of another."""
    classes = union([part.card.classes for part in parts])
    anchors = [SketchAnchor.read(part.tensors) for part in parts]
    precision = pooled_precision(anchors, prior)
    compared = astray = 0
    for i, (mine, here) in enumerate(zip(anchors, classes.places, strict=True)):
        for j, (theirs, there) in enumerate(zip(anchors, classes.places, strict=True)):
            shared = np.flatnonzero(np.isin(here, there))
            if i == j or not len(shared):
                continue
            shared = shared[:: -(-len(shared) // COMPARED)]
            nearest = there[_nearest(mine.means[shared], theirs.means, precision)]
            compared += len(shared)
            astray += int(np.sum(nearest != here[shared]))
    return compared, astray


def _nearest(some: Floats, means: Floats, precision: Precision) -> np.ndarray:
    found: np.ndarray = closed_form(means, precision).logits(some).argmax(axis=1)
    return found


def _counts(parts: Sequence[Module], classes: Union) -> np.ndarray:
    """Images of each class in all parts, as their teachers say."""
    counts = np.zeros(len(classes.classes))
    for part, places in zip(parts, classes.places, strict=True):
        counts[places] += part.card.counts
    return np.minimum(counts, 2**31)


def _evidence(parts: Sequence[Module], classes: Union) -> list[np.ndarray]:
    """Images of each part's classes, as far as they are believed."""
    least = np.full(len(classes.classes), np.inf)
    for part, places in zip(parts, classes.places, strict=True):
        least[places] = np.minimum(least[places], part.card.counts)
    shared = classes.shared
    return [
        np.where(shared[places], np.minimum(part.card.counts, MOST_EVIDENCE * least[places]), part.card.counts)
        for part, places in zip(parts, classes.places, strict=True)
    ]


def _unrounded(head: Head, anchor: SketchAnchor) -> Tensors:
    """Tensors that read like a module's and are exact: rows in single precision with a scale of one."""
    rows = {"head.weight": head.weight, "sketch.mean": anchor.means, "sketch.factor": anchor.scatter.factor}
    values = {name: np.asarray(row, dtype=np.float32) for name, row in rows.items()}
    scales = {
        "head.scale": "head.weight",
        "sketch.mean.scale": "sketch.mean",
        "sketch.factor.scale": "sketch.factor",
    }
    ones = {name: np.ones(len(values[of]), dtype=np.float32) for name, of in scales.items()}
    diagonal = np.maximum(anchor.scatter.diagonal, 1e-300)
    steps = 1 + 254 * np.log(diagonal / LOG_LOW) / np.log(LOG_HIGH / LOG_LOW)
    return (
        values
        | ones
        | {
            "head.bias": head.bias.astype(np.float32),
            "sketch.diagonal": steps,
            "sketch.freedom": np.array([anchor.freedom], dtype=np.float64),
        }
    )


def _probes(parts: Sequence[Module]) -> Tensors:
    probes = np.concatenate([read_probes(part.tensors, part.card.dim) for part in parts])
    if not len(probes):
        return {}
    values, scale = quantise_rows(probes)  # they were rounded so before: nothing is lost
    return {"probe": values, "probe.scale": scale}


def _hash(kind: str, pieces: Iterable[str]) -> str:
    return hashlib.sha256("\n".join([f"skillmesh/v1/{kind}", *pieces]).encode()).hexdigest()
