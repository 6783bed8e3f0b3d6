"""Joining: which links act in an agent's bank, and what each makes of its parts.

A link acts where its maker is trusted, two or more of its parts are in the bank, and these fit (`fitting.py`).
That depends on the link and the parts alone: agents that hold the same join the same, bit by bit, whatever the
order in which things came. So nobody can join what does not belong together, least of all a stranger. Only a
joint that harms an agent's own images (`trying.py`) is left out, by that agent alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.anchors.statistics import Statistics, merged
from skillmesh.backbone.calibration import Prior
from skillmesh.learning.class_names.union import Union, union
from skillmesh.learning.head import Head
from skillmesh.learning.probes import probe_tensors, read_probes
from skillmesh.module import Module, in_order
from skillmesh.module.card import Card
from skillmesh.module.joint import MergedTask
from skillmesh.module.notice import Link
from skillmesh.numerics.tensors import Tensors, log_steps
from skillmesh.numerics.threads import one_thread
from skillmesh.synergy.merging.fitting import misfit
from skillmesh.synergy.merging.heads import HeadPart, together

MOST_EVIDENCE = 4.0
"""Counts are what teachers say they are: none has more than so many times the say of the middle one of them."""
MISFITS = 64
"""After so many links that join nothing a maker has lost its say: each costs some milliseconds to look at."""

Remembered = dict[tuple[str, ...], MergedTask | str]
"""What came of links, by their digest and the ids of their parts here: a joint, or why there is none."""


def arranged(
    modules: Sequence[Module],
    links: Iterable[Link],
    prior: Prior,
    complaint: Callable[[MergedTask], str | None] = lambda joint: None,
    remembered: Remembered | None = None,
) -> list[Module]:
    """A bank's tasks in its order: the modules, those that a link joins as one.

    A module is part of one task only. Of links that want the same the one stands whose maker taught a part of it,
    then the one with more parts here, then the one of lower digest.

    Parameters
    ----------
    complaint
        Why a joint does not act here though its parts fit, if it does not.
    remembered
        What came of links before; it is brought up to date.
    """
    before, found = dict(remembered or {}), Remembered()
    joints: list[Module] = []
    taken: set[str] = set()
    misfits: Counter[str] = Counter()
    with one_thread():  # several may round otherwise
        for link, parts in sorted(_candidates(modules, links), key=_precedence):
            ids = {part.id for part in parts}
            if taken & ids or misfits[link.teacher_key] == MISFITS:
                continue
            key = (link.digest, *(part.id for part in parts))
            known = before.get(key)
            found[key] = made = _made(link, parts, prior, complaint) if known is None else known
            if isinstance(made, MergedTask):
                joints.append(made)
                taken |= ids
            else:
                misfits[link.teacher_key] += 1
    if remembered is not None:
        remembered.clear()
        remembered.update(found)
    alone = [module for module in modules if module.id not in taken]
    return in_order(alone + joints)


def _made(
    link: Link, parts: Sequence[Module], prior: Prior, complaint: Callable[[MergedTask], str | None]
) -> MergedTask | str:
    """What a link makes of its parts, or why it makes nothing."""
    reason = misfit(parts, prior)
    if reason is not None:
        return reason
    made = joint(link, parts, prior)
    return complaint(made) or made


def joint(link: Link, parts: Sequence[Module], prior: Prior) -> MergedTask:
    """One task of parts that fit, in the order of the bank."""
    ordered = in_order(parts)
    classes = union([part.card.classes for part in ordered])
    anchors = [SketchAnchor.read(part.tensors) for part in ordered]
    evidence = _evidence(ordered, classes)
    statistics = [Statistics.of_anchor(anchor, seen) for anchor, seen in zip(anchors, evidence, strict=True)]
    whole = merged(list(zip(statistics, classes.places, strict=True)), len(classes.classes))
    anchor = whole.anchor()
    heads = [
        HeadPart(Head.read(part.tensors), part.card.temperature, places, seen)
        for part, places, seen in zip(ordered, classes.places, evidence, strict=True)
    ]
    tensors = _unrounded(together(heads, anchor, prior), anchor) | _probes(ordered)
    content = _hash("joint-content", [link.task, *(part.content_id for part in ordered)])
    identity = _hash("joint", [link.digest, *(part.id for part in ordered)])
    card = _card(link, ordered, classes)
    return MergedTask(card, tensors, identity, content, sum(part.size for part in ordered), link, tuple(ordered))


def _card(link: Link, parts: Sequence[Module], classes: Union) -> Card:
    """What there is to say of the whole; what only one teacher said of its part is left out."""
    nothing = dict.fromkeys(("validation_accuracy", "trial", "composed", "warm_start", "licence", "tags", "note"))
    told: dict[str, object] = {
        "task": link.task,
        "classes": classes.classes,
        "counts": tuple(int(n) for n in _counts(parts, classes)),
        "temperature": 1.0,
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


def _counts(parts: Sequence[Module], classes: Union) -> np.ndarray:
    """Images of each class in all parts, as their teachers say."""
    counts = np.zeros(len(classes.classes))
    for part, places in zip(parts, classes.places, strict=True):
        counts[places] += part.card.counts
    return np.minimum(counts, 2**31)


def _evidence(parts: Sequence[Module], classes: Union) -> list[np.ndarray]:
    """Images of each part's classes, as far as they are believed.

    A shared class is measured by the middle one of its teachers (of two the lesser), whom neither a boaster nor
    one who claims a single image can move. Of a class that it alone has, a part is believed to have seen not many
    more images than of those.
    """
    counts = [np.asarray(part.card.counts, dtype=np.float64) for part in parts]
    middle = _middle_counts(counts, classes)
    shared, believed = classes.shared, []
    for count, places in zip(counts, classes.places, strict=True):
        seen = np.minimum(count, MOST_EVIDENCE * middle[places])
        most = MOST_EVIDENCE * seen[shared[places]].max(initial=0.0)
        believed.append(np.where(shared[places], seen, np.minimum(count, most)))
    return believed


def _middle_counts(counts: Sequence[np.ndarray], classes: Union) -> np.ndarray:
    """For each class the median of what its teachers say, the lower one where there are two."""
    stands, said = np.concatenate(classes.places), np.concatenate(counts)
    order = np.lexsort((said, stands))
    teachers = np.bincount(stands, minlength=len(classes.classes))
    firsts = np.cumsum(teachers) - teachers
    middle: np.ndarray = said[order][firsts + (teachers - 1) // 2]
    return middle


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
    return (
        values
        | ones
        | {
            "head.bias": head.bias.astype(np.float32),
            "sketch.diagonal": log_steps(np.maximum(anchor.scatter.diagonal, 1e-300)),
            "sketch.freedom": np.array([anchor.freedom], dtype=np.float64),
        }
    )


def _probes(parts: Sequence[Module]) -> Tensors:
    """They were rounded so before: nothing is lost."""
    return probe_tensors(np.concatenate([read_probes(part.tensors, part.card.dim) for part in parts]))


def _hash(kind: str, pieces: Iterable[str]) -> str:
    return hashlib.sha256("\n".join([f"skillmesh/v1/{kind}", *pieces]).encode()).hexdigest()
