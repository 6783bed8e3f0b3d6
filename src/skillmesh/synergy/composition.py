"""Composed tasks, made only of known classes without images: choosing classes, the head, the whole task."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors import KINDS, Anchor, AnchorSettings, TakenClasses, able_kinds
from skillmesh.anchors.gaussians import Gaussians, pooled_precision
from skillmesh.backbone.calibration import Prior
from skillmesh.errors import AgentError, AmbiguousTaskError, SettingsMismatchError, UnknownTaskError
from skillmesh.learning.head import (
    ROUNDS,
    SHARES,
    Head,
    Labels,
    calibrate,
    closed_form,
    probe_weights,
    read_probes,
)
from skillmesh.learning.warm_start import WarmFit, fit_warm
from skillmesh.module import Module, in_order
from skillmesh.module.card import refuse_strangers
from skillmesh.numerics.arrays import Damping, Floats
from skillmesh.numerics.process import one_thread
from skillmesh.store.bank import Bank

# Which classes a composed task is made of: `task:class`, `task:*`, `task:class=new name`.
#
# Names of tasks and classes may contain these signs themselves. A word is read in every way that names a task and
# a class in the bank. If more than one reading is left, nothing is guessed: the user is asked to put a backslash
# before the signs that belong to a name.

SIGNS = ":=*"
ALL = "*"


@dataclass(frozen=True)
class Pick:
    """A class chosen from Python code; `name` is its name in the new task, by default `label`."""

    task: str
    label: str
    name: str | None = None


@dataclass(frozen=True)
class Picked:
    """A class of a module in the bank, and its name in the new task."""

    module: Module
    index: int
    name: str

    @property
    def origin(self) -> str:
        """The class's origin as the new task's card records it: module id and class name."""
        return f"{self.module.id}:{self.module.card.classes[self.index]}"


def pick(bank: Bank, wanted: Sequence[str | Pick]) -> list[Picked]:
    """Return the chosen classes in the order in which they were named; raise `AgentError` for fewer than two."""
    picked = [each for choice in wanted for each in _resolved(bank, choice)]
    _refuse_duplicates(picked)
    if len(picked) < 2:
        raise AgentError(
            f"{len(picked)} class was named, expected two or more; name others as task:class or task:*"
        )
    return picked


def _resolved(bank: Bank, wanted: str | Pick) -> list[Picked]:
    if isinstance(wanted, str):
        return _parsed(bank, wanted)
    module = bank.find(wanted.task)
    if wanted.label not in module.card.classes:
        raise _no_class(module, wanted.label)
    return [_picked(module, wanted.label, wanted.name or wanted.label)]


def _picked(module: Module, label: str, name: str) -> Picked:
    return Picked(module, module.card.classes.index(label), unicodedata.normalize("NFC", name.strip()))


def _parsed(bank: Bank, word: str) -> list[Picked]:
    """Return the classes that a word names; raise an error unless exactly one reading fits the bank."""
    readings, tasks, errors = [], [], []
    for task, rest in _splits(word, ":"):
        try:
            module = bank.find(_unescaped(task))
        except UnknownTaskError as error:
            errors.append(error)
            continue
        tasks.append((module, rest))
        readings += _readings(module, rest)
    if len(readings) == 1:
        return readings[0]
    if readings:
        meanings = " or ".join(_meaning(reading) for reading in readings)
        raise AgentError(f"{word!r} can mean {meanings}; put a backslash before a ':', '=' or '*' in a name")
    if tasks:
        raise _no_class(tasks[0][0], _unescaped(tasks[0][1]))
    if not errors:
        raise AgentError(f"{word!r} names no class; expected task:class, task:* or task:class=new name")
    raise min(errors, key=lambda error: not isinstance(error, AmbiguousTaskError))


def _readings(module: Module, rest: str) -> list[list[Picked]]:
    """Return all ways to read `rest`, the text after the task, as classes of this task."""
    classes, readings = module.card.classes, []
    if rest == ALL:
        readings.append([_picked(module, label, label) for label in classes])
    if _unescaped(rest) in classes:
        readings.append([_picked(module, _unescaped(rest), _unescaped(rest))])
    for label, name in _splits(rest, "="):
        if _unescaped(label) in classes and name.strip():
            readings.append([_picked(module, _unescaped(label), _unescaped(name))])
    return readings


def _splits(word: str, sign: str) -> Iterator[tuple[str, str]]:
    """Yield the text before and after each `sign` that has no backslash before it."""
    for place, character in enumerate(word):
        if character == sign and word[place - 1 : place] != "\\":
            yield word[:place], word[place + 1 :]


def _unescaped(text: str) -> str:
    """Return the text in NFC without the backslashes that mark signs; other backslashes stay."""
    for sign in SIGNS:
        text = text.replace(f"\\{sign}", sign)
    return unicodedata.normalize("NFC", text)


def _meaning(reading: list[Picked]) -> str:
    first = reading[0]
    task, label = first.module.card.task, first.module.card.classes[first.index]
    if len(reading) > 1:
        return f"all classes of {task!r}"
    renamed = f", called {first.name!r}" if first.name != label else ""
    return f"the class {label!r} of {task!r}{renamed}"


def _no_class(module: Module, label: str) -> AgentError:
    known = ", ".join(map(repr, module.card.classes[:20]))
    more = f" and {len(module.card.classes) - 20} more" if len(module.card.classes) > 20 else ""
    return AgentError(f"the task {module.card.task!r} has no class {label!r}; its classes are {known}{more}")


def _refuse_duplicates(picked: Sequence[Picked]) -> None:
    origins: set[str] = set()
    names: dict[str, Picked] = {}
    for each in picked:
        label, task = each.module.card.classes[each.index], each.module.card.task
        if each.origin in origins:
            raise AgentError(f"the class {label!r} of {task!r} was named twice, expected once; leave one out")
        if (other := names.get(each.name)) is not None:
            raise AgentError(
                f"two classes would be called {each.name!r}, one of {other.module.card.task!r}, one of {task!r}; "
                f"expected different names; rename one: '{task}:{label}=another name'"
            )
        origins.add(each.origin)
        names[each.name] = each


# Composition: a task made only of known classes needs no image.
#
# Rows of several heads cannot simply be concatenated. Each head was trained to distinguish its own classes: its
# logits for another task's images are arbitrary, and their scale depends on its training. The tasks' anchors were
# made to be compared: their means and pooled scatter give a closed-form head over all chosen classes. It knows
# which task an image belongs to, and each head knows its own classes better; `blend` combines both:
#
#     logit of class c of task t = mean of t's closed logits + ½ (closed + κ · head), both less their mean over t,
#
# where κ brings t's head to the scale of the closed form, measured at t's own class means. All of it is linear in
# the image, so the result is a plain head.

Form = Literal["blend", "stitch", "closed", "rows"]
FORMS: tuple[Form, ...] = ("blend", "stitch", "closed", "rows")
HEADS_SHARE: dict[Form, float] = {"blend": 0.5, "stitch": 1.0, "closed": 0.0}
"""Weight of a task's head in distinguishing the task's own classes, 0 to 1, by form."""


@dataclass(frozen=True)
class ComposedSource:
    """A task from which classes are taken: its head, temperature and anchor, and the chosen classes."""

    head: Head
    temperature: float
    anchor: Gaussians
    chosen: tuple[int, ...]

    @property
    def rows(self) -> list[int]:
        return list(self.chosen)


@dataclass(frozen=True)
class Composed:
    """A head over the chosen classes, source by source in the order given."""

    head: Head
    temperature: float = 1.0
    """Divisor of the logits: 1 without images to fit it on, since they have the sources' calibrated confidence."""


def compose(sources: Sequence[ComposedSource], prior: Prior, form: Form = "blend") -> Composed:
    """Compose a head from classes of any number of tasks, without images."""
    if form == "rows":
        return compose_rows(sources)
    precision = pooled_precision([source.anchor for source in sources], prior)
    parts, scales = [], []
    for source in sources:
        closed = closed_form(source.anchor.means, precision)
        scale = _scale(source, closed)
        scales.append(scale * source.temperature)
        parts.append(_mixed(source, closed, scale, HEADS_SHARE[form]))
    return Composed(_joined(parts, np.float32(np.exp(-np.mean(np.log(scales))))))


def refine(
    composed: Composed,
    x: Floats,
    labels: Labels,
    val_x: Floats,
    val_labels: Labels,
    rounds: int = ROUNDS,
    damping: Damping | None = None,
) -> tuple[Composed, WarmFit | None]:
    """Train the composed head on images as far as they improve it: it is the centre of the new head's prior.

    The images must be new to the sources, since they judge the composed head: images that it was made from would
    favour it. The composed head stays, and the fit is `None`, where the new head is no better on the images that
    judge, and where a class has only one image, which is too few to improve on it.
    """
    judges = (val_x, val_labels) if len(val_x) else (x, labels)
    head = composed.head
    warm = fit_warm(x, labels, val_x, val_labels, head.weight, head.bias, rounds, margin=0, damping=damping)
    temperature, loss = calibrate(composed.head.logits(judges[0]), judges[1])
    if warm.loss is None or loss <= warm.loss:
        return Composed(composed.head, temperature), None
    return Composed(warm.head, warm.fit.temperature), warm


def compose_rows(sources: Sequence[ComposedSource]) -> Composed:
    """Concatenate rows and biases, each head divided by its own temperature: a simple baseline to compare with."""
    parts = [
        Head(
            source.head.weight[source.rows] / np.float32(source.temperature),
            source.head.bias[source.rows] / np.float32(source.temperature),
        )
        for source in sources
    ]
    return Composed(_joined(parts))


def _scale(source: ComposedSource, closed: Head) -> float:
    """Return κ, the factor that brings the head nearest to the closed form at the task's class means."""
    own, target = (_centred(head.logits(source.anchor.means)) for head in (source.head, closed))
    square = float(np.vdot(own, own))
    product = float(np.vdot(own, target))
    # A head that contradicts its own anchor adds nothing; a tiny positive scale keeps the temperature defined.
    return max(product / square, 1e-6) if square else 1.0


def _mixed(source: ComposedSource, closed: Head, scale: float, share: float) -> Head:
    """Return the closed form's mean over the chosen classes, plus both heads' differences between the classes."""
    rows = source.rows
    weight, bias = closed.weight[rows], closed.bias[rows]
    own_weight = scale * (source.head.weight[rows] - source.head.weight[rows].mean(axis=0))
    own_bias = scale * (source.head.bias[rows] - source.head.bias[rows].mean())
    return Head(
        np.asarray((1 - share) * weight + share * (weight.mean(axis=0) + own_weight), dtype=np.float32),
        np.asarray((1 - share) * bias + share * (bias.mean() + own_bias), dtype=np.float32),
    )


def _centred(logits: Floats) -> Floats:
    return np.asarray(logits - logits.mean(axis=1, keepdims=True))


def _joined(parts: Sequence[Head], scale: np.float32 | float = 1.0) -> Head:
    weight, bias = (np.concatenate(rows) for rows in zip(*((p.weight, p.bias) for p in parts), strict=True))
    return Head(weight * np.float32(scale), bias * np.float32(scale))


# A whole task from classes of other modules, without images: head, anchor, probes, counts and facts.
#
# The head is that of `compose`. The anchor keeps the means of the chosen classes unchanged. Scatter is known for
# whole tasks only, so the new task's scatter is the average of its sources', each weighted by its number of images
# of the chosen classes. The probes are those of the sources' probes that show a chosen class.


@dataclass(frozen=True)
class ComposedPart:
    """A module from which classes are taken, and the places of these classes in the new task."""

    module: Module
    chosen: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def images(self) -> int:
        """Number of training images of the chosen classes."""
        return sum(self.module.card.counts[index] for index in self.chosen)

    @property
    def share(self) -> float:
        """Share of the task's training images that show a chosen class, 0 to 1."""
        return self.images / sum(self.module.card.counts)


@dataclass(frozen=True)
class ComposedTask:
    """A composed task that is not signed yet."""

    composed: Composed
    anchor: Anchor
    probes: Floats
    validation_images: int
    """Number of the sources' validation images that the probes represent, estimated from the class counts."""
    facts: dict[str, Any]
    """Fields of the card that come from the sources."""


def composed_task(picked: Sequence[Picked], kind: str, prior: Prior, settings: AnchorSettings) -> ComposedTask:
    """Return a task made of the chosen classes, in the order given."""
    parts = _parts(picked)
    refuse_strangers([part.module.card for part in parts])
    if not KINDS[kind].divisible:
        raise SettingsMismatchError(
            f"this agent has {kind} anchors, which describe a whole task and not its single classes; expected "
            f"{' or '.join(able_kinds('divisible'))} anchors; compose with an agent that has these"
        )
    with one_thread():  # as in learning: the result does not depend on the number of threads
        chosen = [TakenClasses(KINDS[kind].read(p.module.tensors), p.chosen, p.share) for p in parts]
        sources = [_source(p, each.anchor.gaussians(settings)) for p, each in zip(parts, chosen, strict=True)]
        composed = compose(sources, prior)
        order = np.argsort([place for part in parts for place in part.places])
        head = Head(composed.head.weight[order], composed.head.bias[order])
        anchor = KINDS[kind].composed(chosen, order, settings)
        probes, validation_images = _probes(parts, kind, anchor, prior)
    facts = {
        "classes": tuple(each.name for each in picked),
        "counts": tuple(each.module.card.counts[each.index] for each in picked),
        "composed": tuple(each.origin for each in picked),
        "licence": _licence(parts),
    }
    return ComposedTask(Composed(head, composed.temperature), anchor, probes, validation_images, facts)


def _parts(picked: Sequence[Picked]) -> list[ComposedPart]:
    """Group classes by module in the bank's order, so that sums do not depend on the order of naming."""
    modules = in_order({each.module.id: each.module for each in picked}.values())
    places = {
        m.id: sorted((each.index, i) for i, each in enumerate(picked) if each.module.id == m.id) for m in modules
    }
    return [ComposedPart(m, tuple(c for c, _ in places[m.id]), tuple(i for _, i in places[m.id])) for m in modules]


def _source(part: ComposedPart, anchor: Gaussians) -> ComposedSource:
    return ComposedSource(Head.read(part.module.tensors), part.module.card.temperature, anchor, part.chosen)


def _probes(parts: Sequence[ComposedPart], kind: str, anchor: Anchor, prior: Prior) -> tuple[Floats, int]:
    """Choose from the sources' probes that show a chosen class, from typical to novel, as for a learned task.

    Also return the number of validation images that they represent. Each probe represents a part of its task's
    images; where there are too few probes or images for that, each represents itself only.
    """
    chosen, weights = [], []
    for part in parts:
        probes = read_probes(part.module.tensors, part.module.card.dim)
        shown = np.isin(Head.read(part.module.tensors).logits(probes).argmax(axis=1), part.chosen)
        chosen.append(probes[shown])
        weights.append(part.images * probe_weights(part.module.card.validation_images)[shown])
    x, weight = np.concatenate(chosen), np.concatenate(weights)
    represented = sum(round(part.module.card.validation_images * part.share) for part in parts)
    if len(x) < len(SHARES) or represented <= len(SHARES):
        return x[: len(SHARES)], min(len(x), len(SHARES))
    novelty = KINDS[kind].pool([anchor], prior).score(x).novelty
    return x[_layers(novelty, weight)], represented


def _layers(novelty: Floats, weights: NDArray[np.float64]) -> list[int]:
    """Return the weighted images in the middle of each layer of novelty that a probe represents, none twice."""
    order = np.argsort(novelty, kind="stable")
    quantiles = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    chosen: list[int] = []
    for middle in np.cumsum(SHARES) - np.array(SHARES) / 2:
        nearest = np.argsort(np.abs(quantiles - middle), kind="stable")
        chosen.append(next(int(i) for i in nearest if int(i) not in chosen))
    return [int(order[i]) for i in sorted(chosen)]


def _licence(parts: Sequence[ComposedPart]) -> str | None:
    """Return the licences of the sources' images: all of them if they fit in 200 characters, None if none."""
    known = " / ".join(dict.fromkeys(part.module.card.licence for part in parts if part.module.card.licence))
    if not known:
        return None
    return known if len(known) <= 200 else "several: those of the modules that it was composed of"
