"""Merged tasks: which modules of several teachers can be parts of one task, and how a link merges them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors import KINDS, able_kinds
from skillmesh.anchors.gaussians import Gaussians, Statistics, merged, pooled_precision
from skillmesh.backbone.calibration import Prior
from skillmesh.errors import SettingsMismatchError, option
from skillmesh.learning.class_names.pairs import Union, union
from skillmesh.learning.head import Head, closed_form, probe_tensors, read_probes
from skillmesh.module import Module, in_order
from skillmesh.module.card import MAX_CLASSES, Card, refuse_strangers
from skillmesh.module.notice import Link, MergedTask
from skillmesh.module.teachers import Signed, claimed
from skillmesh.numerics.arrays import Floats, Tensors
from skillmesh.numerics.process import one_thread
from skillmesh.vetting.quarantine import disagreement, gaussians_of, shared_kinds

# Which modules can be parts of one task.
#
# Their heads and anchors use the same representation, each part has a different teacher, and every part shares a
# class name with another. In every pair of parts, classes of the same name lie in the same place. Every pair is
# checked, so that many teachers who agree cannot outvote the one whom they contradict.

ASTRAY = 0.25
"""Largest share of shared classes that may lie nearer to another class of the other part than to their own."""


def misfit(parts: Sequence[Module], prior: Prior, name_of: Callable[[Signed], str] = claimed) -> str | None:
    """Return the reason why modules cannot be parts of one task, or None if they can."""
    try:
        refuse_strangers([part.card for part in parts])
    except SettingsMismatchError as error:
        return str(error)
    if not shared_kinds(parts):
        able = " or ".join(able_kinds("adds_up"))
        return f"they have no {able} anchors in common, and anchors of other kinds cannot be added up"
    classes = union([part.card.classes for part in parts])
    if len(classes.classes) > MAX_CLASSES:
        return f"together they have {len(classes.classes):,} classes, expected at most {MAX_CLASSES:,}"
    if (index := _unconnected(classes)) is not None:
        card = parts[index].card
        return (
            f"{card.task!r} by {name_of(card)} has no class in common with the others, expected one or more; to "
            f"combine different classes in one task, use {option('agent.compose', '`skillmesh compose`')}"
        )
    ((_, teacher), count) = Counter((p.card.teacher_key, name_of(p.card)) for p in parts).most_common(1)[0]
    if count > 1:
        return (
            f"{count} of them are by {teacher}, expected one per teacher, so that all teachers count alike; to "
            f"add images to your own task, use {option('agent.extend', '`skillmesh learn --continue`')}"
        )
    compared, astray = disagreement(parts, prior)
    if astray > ASTRAY * compared:
        return (
            f"classes of the same name do not look alike: for two teachers, {astray} of {compared} lie nearer to "
            f"a different class of the other teacher, expected at most {int(ASTRAY * compared)}"
        )
    return None


def _unconnected(classes: Union) -> int | None:
    """Return the index of a part that no chain of shared classes connects to the first part, or None."""
    reached, known = {0}, set(classes.places[0].tolist())
    while True:
        new = [i for i, places in enumerate(classes.places) if i not in reached and known & set(places.tolist())]
        if not new:
            return next((i for i in range(len(classes.places)) if i not in reached), None)
        reached |= set(new)
        known |= {number for i in new for number in classes.places[i].tolist()}


# One head from those of several teachers: all heads that know a class judge it, weighted by images.
#
# A head distinguishes its own classes, and the scale of its logits depends on its training. It has no logits for
# other classes. The merged anchor gives a closed-form head over all classes, whose logits can be compared.
# So each head is first brought to its scale and mean over the head's own classes. Then, for every class c,
#
#     logit = ½ closed + ½ Σ wₚ (κₚ · headₚ less its mean over p's classes + mean of closed over p's classes),
#
# with wₚ the part's share of the images of c. All of it is linear in the image, so the result is a plain head.
# `docs/appendix/synergy-merge.md` explains why half.

HEADS_SHARE = 0.5
"""Weight of the teachers' heads in a logit, 0 to 1; the closed form has the rest."""
IGNORED = 0.0
"""Scale of a head that contradicts the anchors of all teachers: it contributes nothing."""


@dataclass(frozen=True)
class HeadPart:
    """A teacher's head, and the number of images behind it."""

    head: Head
    temperature: float
    places: NDArray[np.int64]
    """Indices of its classes among all classes."""
    evidence: NDArray[np.float64]
    """Number of images of each of its classes."""


def combined(
    parts: Sequence[HeadPart], closed: Head, means: Floats, share: float = HEADS_SHARE
) -> tuple[Head, float]:
    """Return the head over all classes, and the temperature that makes it as confident as the heads on average."""
    images = np.zeros(len(means))
    for part in parts:
        images[part.places] += part.evidence
    weight = (1 - share) * closed.weight.astype(np.float64)
    bias = (1 - share) * closed.bias.astype(np.float64)
    log_scales = []
    for part in parts:
        rows = Head(closed.weight[part.places], closed.bias[part.places])
        scale = _scale(part, rows, means[part.places])
        part_weight = share * part.evidence / images[part.places]
        weight[part.places] += part_weight[:, None] * _rescaled(part.head.weight, rows.weight, scale)
        bias[part.places] += part_weight * _rescaled(part.head.bias, rows.bias, scale)
        log_scales += [np.log(scale * part.temperature)] if scale > IGNORED else []
    temperature = float(np.exp(np.mean(log_scales))) if log_scales else 1.0
    return Head(weight.astype(np.float32), bias.astype(np.float32)), temperature


def together(parts: Sequence[HeadPart], known: Gaussians, prior: Prior) -> Head:
    """Return the `combined` head with the closed form of `known`, already divided by its temperature."""
    closed = closed_form(known.means, pooled_precision([known], prior))
    head, temperature = combined(parts, closed, known.means)
    return Head(head.weight / np.float32(temperature), head.bias / np.float32(temperature))


def _rescaled(rows: Floats, closed: Floats, scale: float) -> NDArray[np.float64]:
    """Return a head's rows or biases with the closed form's scale and mean."""
    own, target = rows.astype(np.float64), closed.astype(np.float64)
    return np.asarray(scale * (own - own.mean(axis=0)) + target.mean(axis=0))


def _scale(part: HeadPart, closed: Head, means: Floats) -> float:
    """Return κ, the factor that brings the head nearest to the closed form at the means of its own classes."""
    own, target = (_centred(head.logits(means)) for head in (part.head, closed))
    square = float(np.vdot(own, own))
    return max(float(np.vdot(own, target)) / square, IGNORED) if square else IGNORED


def _centred(logits: Floats) -> NDArray[np.float64]:
    exact = logits.astype(np.float64)
    return np.asarray(exact - exact.mean(axis=1, keepdims=True))


# Merging: which links take effect in an agent's bank, and what each makes of its parts.
#
# A link takes effect if its maker is trusted, two or more of its parts are in the bank, and these fit.
# That depends on the link and the parts alone: agents that hold the same modules get bit-identical merged tasks,
# in whatever order things arrived. So no one, least of all a stranger, can merge what does not belong together.
# Only a merged task that harms an agent's own images (`links.py`) is left out, by that agent alone.

MOST_EVIDENCE = 4.0
"""Largest image count that is believed, as a multiple of the teachers' median: counts are not verified."""
MISFITS = 64
"""Number of links that merge nothing after which a maker is ignored: each takes some milliseconds to check."""

Remembered = dict[tuple[str, ...], MergedTask | str]
"""Results of links, by digest and ids of the parts in the bank: a merged task, or why there is none."""


def with_merged_tasks(
    modules: Sequence[Module],
    links: Iterable[Link],
    prior: Prior,
    complaint: Callable[[MergedTask], str | None] = lambda merged: None,
    remembered: Remembered | None = None,
) -> list[Module]:
    """Return a bank's tasks in the bank's order, with linked modules merged into one task.

    A module is part of one task only. If links compete for a module, the one whose maker taught a part of it wins,
    then the one with more parts in the bank, then the one with the lower digest.

    Parameters
    ----------
    complaint
        Returns why a merged task must not be used although its parts fit, or None.
    remembered
        Results of links from earlier calls; updated in place.
    """
    earlier, results = dict(remembered or {}), Remembered()
    merged_tasks: list[Module] = []
    used: set[str] = set()
    misfits: Counter[str] = Counter()
    with one_thread():  # several threads may round differently
        for link, parts in sorted(_candidates(modules, links), key=_precedence):
            ids = {part.id for part in parts}
            if used & ids or misfits[link.teacher_key] == MISFITS:
                continue
            key = (link.digest, *(part.id for part in parts))
            result = earlier.get(key)
            results[key] = result = _result(link, parts, prior, complaint) if result is None else result
            if isinstance(result, MergedTask):
                merged_tasks.append(result)
                used |= ids
            else:
                misfits[link.teacher_key] += 1
    if remembered is not None:
        remembered.clear()
        remembered.update(results)
    unmerged = [module for module in modules if module.id not in used]
    return in_order(unmerged + merged_tasks)


def _result(
    link: Link, parts: Sequence[Module], prior: Prior, complaint: Callable[[MergedTask], str | None]
) -> MergedTask | str:
    """Return the merged task of a link, or the reason why there is none."""
    reason = misfit(parts, prior)
    if reason is not None:
        return reason
    task = merged_task(link, parts, prior)
    return complaint(task) or task


def merged_task(link: Link, parts: Sequence[Module], prior: Prior) -> MergedTask:
    """Return one task made of parts that fit, taken in the bank's order."""
    ordered = in_order(parts)
    classes = union([part.card.classes for part in ordered])
    evidence = _evidence(ordered, classes)
    # All kinds that the parts share: an agent's mapper may use any of them.
    anchors = {kind: _added(ordered, kind, evidence, classes) for kind in shared_kinds(ordered)}
    heads = [
        HeadPart(Head.read(part.tensors), part.card.temperature, places, images)
        for part, places, images in zip(ordered, classes.places, evidence, strict=True)
    ]
    tensors = _unrounded(together(heads, next(iter(anchors.values())), prior)) | _probes(ordered)
    for kind, anchor in anchors.items():
        tensors |= KINDS[kind].of_gaussians(anchor).exact_tensors()
    # These two words are part of the format: tasks are ordered by the hashes, in every release alike.
    content = _hash("joint-content", [link.task, *(part.content_id for part in ordered)])
    identity = _hash("joint", [link.digest, *(part.id for part in ordered)])
    card = _card(link, ordered, classes, tuple(anchors))
    return MergedTask(card, tensors, identity, content, sum(part.size for part in ordered), link, tuple(ordered))


def _added(parts: Sequence[Module], kind: str, evidence: Sequence[np.ndarray], classes: Union) -> Gaussians:
    """Add up the statistics of the parts' anchors of one kind."""
    statistics = map(Statistics.of_gaussians, gaussians_of(parts, kind), evidence)
    return merged(list(zip(statistics, classes.places, strict=True)), len(classes.classes)).gaussians()


def _card(link: Link, parts: Sequence[Module], classes: Union, kinds: tuple[str, ...]) -> Card:
    """Return the card of the merged task, without the fields that describe a single part."""
    unset = dict.fromkeys(
        ("validation_accuracy", "trial", "composed", "views", "warm_start", "licence", "tags", "note")
    )
    fields: dict[str, object] = {
        "task": link.task,
        "classes": classes.classes,
        "anchors": kinds,
        "counts": tuple(int(n) for n in _counts(parts, classes)),
        "temperature": 1.0,
        "validation_images": sum(part.card.validation_images for part in parts),
        "version": link.version,
        "created": max(part.card.created for part in parts),
        "teacher": " + ".join(sorted({part.card.teacher for part in parts})),
        "teacher_key": link.teacher_key,
    }
    return parts[0].card.model_copy(update=unset | fields)


def _candidates(modules: Sequence[Module], links: Iterable[Link]) -> list[tuple[Link, list[Module]]]:
    """Return the links of two or more modules that are in the bank, each with these modules."""
    pairs = [(link, [m for m in modules if m.id in link.parts]) for link in links if not link.withdrawn]
    return [(link, parts) for link, parts in pairs if len(parts) > 1]


def _precedence(candidate: tuple[Link, list[Module]]) -> tuple[bool, int, str]:
    link, parts = candidate
    stranger = all(part.card.teacher_key != link.teacher_key for part in parts)
    return stranger, -len(parts), link.digest


def _counts(parts: Sequence[Module], classes: Union) -> np.ndarray:
    """Return the number of images of each class in all parts, as stated by their teachers."""
    counts = np.zeros(len(classes.classes))
    for part, places in zip(parts, classes.places, strict=True):
        counts[places] += part.card.counts
    return np.minimum(counts, 2**31)


def _evidence(parts: Sequence[Module], classes: Union) -> list[np.ndarray]:
    """Return the believed number of images of each part's classes, limited by `MOST_EVIDENCE`.

    For a shared class the limit is a multiple of its teachers' median count (of two, the lower), which neither an
    exaggerated count nor a claim of a single image can move. For a class that only this part has, it is the same
    multiple of the part's largest believed count of a shared class.
    """
    counts = [np.asarray(part.card.counts, dtype=np.float64) for part in parts]
    middle = _middle_counts(counts, classes)
    shared, believed = classes.shared, []
    for count, places in zip(counts, classes.places, strict=True):
        limited = np.minimum(count, MOST_EVIDENCE * middle[places])
        most = MOST_EVIDENCE * limited[shared[places]].max(initial=0.0)
        believed.append(np.where(shared[places], limited, np.minimum(count, most)))
    return believed


def _middle_counts(counts: Sequence[np.ndarray], classes: Union) -> np.ndarray:
    """Return the median of the teachers' counts for each class, the lower one if there are two."""
    places, stated = np.concatenate(classes.places), np.concatenate(counts)
    order = np.lexsort((stated, places))
    teachers = np.bincount(places, minlength=len(classes.classes))
    firsts = np.cumsum(teachers) - teachers
    middle: np.ndarray = stated[order][firsts + (teachers - 1) // 2]
    return middle


def _unrounded(head: Head) -> Tensors:
    """Return exact head tensors in a module's layout: rows in single precision with a scale of one."""
    return {
        "head.weight": head.weight.astype(np.float32),
        "head.scale": np.ones(len(head.weight), dtype=np.float32),
        "head.bias": head.bias.astype(np.float32),
    }


def _probes(parts: Sequence[Module]) -> Tensors:
    """Return the probes of all parts; they were rounded the same way before, so nothing is lost."""
    return probe_tensors(np.concatenate([read_probes(part.tensors, part.card.dim) for part in parts]))


def _hash(kind: str, pieces: Iterable[str]) -> str:
    return hashlib.sha256("\n".join([f"skillmesh/v1/{kind}", *pieces]).encode()).hexdigest()
