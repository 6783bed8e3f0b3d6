"""Measure an agent on tasks: with the task given, the task recognised, and the right class with no task given."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skillmesh.agent import Agent
from skillmesh.answer import Guess
from skillmesh.data.folder import TaskFolder, open_task
from skillmesh.data.inputs import AnyImage
from skillmesh.errors import DataError
from skillmesh.learning.head import softmax
from skillmesh.mapper import Mapped
from skillmesh.module import Module
from skillmesh.progress import Progress, begin
from skillmesh.tensors import Floats

Change = Callable[[AnyImage], AnyImage]
"""Something done to every test image before it is shown to the agent."""


@dataclass(frozen=True)
class TaskResult:
    """One learned task on its test images."""

    task: str
    classes: int
    test_images: int
    oracle_accuracy: float
    """Right class, the task given."""
    task_accuracy: float
    """Right task."""
    final_accuracy: float
    """Right task and right class, no task given, an answer forced."""
    known_unknown: float
    """Share answered "unknown", though the task is known."""
    strict_accuracy: float
    """As `final_accuracy`, an image answered "unknown" counting as wrong."""
    module_bytes: int
    anchor_bytes: int
    learn_seconds: float
    answer_seconds: float
    confusions: dict[str, int] = field(default_factory=dict)
    """The other tasks that its images were taken for, and how often."""


@dataclass(frozen=True)
class HiddenResult:
    """A task that the agent never learned."""

    task: str
    test_images: int
    unknown: float
    """Share answered "unknown"."""


@dataclass(frozen=True)
class Said:
    """What an agent says of a learned task's test images when an answer is forced."""

    task: str
    labels: tuple[str, ...]
    """The right class of each image."""
    alone: tuple[Guess, ...]
    """The best guess for each, every task on its own."""
    together: tuple[Guess, ...]
    """The same where equivalent classes of several tasks support one another."""


@dataclass
class Evaluation:
    """Results per task, and what they are on average over tasks."""

    tasks: list[TaskResult] = field(default_factory=list)
    hidden: list[HiddenResult] = field(default_factory=list)
    novelty_known: list[Floats] = field(default_factory=list)
    novelty_hidden: list[Floats] = field(default_factory=list)
    confidence: list[tuple[Floats, NDArray[np.bool_]]] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    """What was said image by image; kept where it is asked for."""

    def summary(self) -> dict[str, Any]:
        """Return the macro averages and the tasks, as JSON would have it."""
        averaged = (
            "oracle_accuracy",
            "task_accuracy",
            "final_accuracy",
            "strict_accuracy",
            "known_unknown",
            "module_bytes",
            "anchor_bytes",
        )
        summary: dict[str, Any] = {
            key: macro_average([getattr(t, key) for t in self.tasks]) if self.tasks else None for key in averaged
        }
        summary["learn_seconds"] = round(sum(t.learn_seconds for t in self.tasks), 3)
        summary["answer_seconds"] = round(sum(t.answer_seconds for t in self.tasks), 3)
        summary["confidence_error"] = self.confidence_error()
        if self.hidden:
            summary["hidden_unknown"] = round(fmean(h.unknown for h in self.hidden), 6)
            summary["unknown_auroc"] = self.unknown_auroc()
        summary["tasks"] = [asdict(t) for t in self.tasks]
        summary["hidden"] = [asdict(h) for h in self.hidden]
        return summary

    def unknown_auroc(self) -> float | None:
        """How well novelty tells images of hidden tasks from images of known ones, over all images."""
        from sklearn.metrics import roc_auc_score

        if not self.novelty_known or not self.novelty_hidden:
            return None
        known, hidden = np.concatenate(self.novelty_known), np.concatenate(self.novelty_hidden)
        truth = np.concatenate([np.zeros(len(known)), np.ones(len(hidden))])
        return round(float(roc_auc_score(truth, np.concatenate([known, hidden]))), 6)

    def confidence_error(self, bins: int = 15) -> float | None:
        """Expected calibration error: how far stated confidence is from accuracy, over equal-width bins."""
        if not self.confidence:
            return None
        stated = np.concatenate([c for c, _ in self.confidence])
        right = np.concatenate([r for _, r in self.confidence])
        bin_of = np.minimum((stated * bins).astype(int), bins - 1)
        gaps = [
            abs(stated[bin_of == b].mean() - right[bin_of == b].mean()) * np.mean(bin_of == b)
            for b in np.unique(bin_of)
        ]
        return round(float(sum(gaps)), 6)


def macro_average(figures: Sequence[float]) -> float:
    """The mean over tasks, every task with one voice, to six digits."""
    return round(fmean(figures), 6)


def evaluate(
    agent: Agent,
    paths: Sequence[Path | TaskFolder],
    *,
    learn: bool = True,
    hide: Sequence[str] = (),
    change: Change | None = None,
    keep_said: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Learn the tasks at `paths` one after the other (or take the agent as it is), then test on all of them.

    Parameters
    ----------
    paths
        Where the tasks lie, or the tasks themselves where they are opened already, with their test images.
    hide
        Names of tasks that are tested on but never learned. With `learn` off, whatever the agent does not know
        is hidden.
    keep_said
        Keep what was said of each image, as corrective evaluation needs it.
    """
    folders = [open_measured(path, agent.config.seed, learn) for path in paths]
    seconds = dict.fromkeys((f.name for f in folders), 0.0)
    if learn:
        for folder in folders:
            if folder.name not in hide:
                started = time.perf_counter()
                # Cold: what is measured of a task must not depend on which were learned before it.
                agent.learn(folder, warm_start="never", progress=progress)
                seconds[folder.name] = time.perf_counter() - started
    modules, _ = agent.mapper()
    index_of = {m.card.task: i for i, m in enumerate(modules)}
    result = Evaluation()
    for folder in folders:
        if folder.name in index_of:
            shown = _test_known(
                agent, folder, index_of[folder.name], seconds[folder.name], change, progress, result
            )
            if keep_said:
                result.said.append(_said(agent, folder, shown))
        else:
            _test_hidden(agent, folder, change, progress, result)
    return result


def open_measured(path: Path | TaskFolder, seed: int, learn: bool = True) -> TaskFolder:
    """Open with test images: the folder's own, or cut from it; all of it where nothing is to be learned."""
    if isinstance(path, TaskFolder):
        return path
    folder = open_task(path, hold_out=("val", "test") if learn else (), seed=seed, one_task=True)
    if not len(folder.splits["test"]) and not learn:
        return TaskFolder(folder.name, folder.classes, {"test": folder.splits["train"]}, folder.notes)
    if not len(folder.splits["test"]):
        raise DataError(
            f"{path} leaves no test images: its classes have one or two images each; add images or a test folder"
        )
    return folder


def _test_known(
    agent: Agent,
    folder: TaskFolder,
    index: int,
    learn_seconds: float,
    change: Change | None,
    progress: Progress | None,
    result: Evaluation,
) -> Shown:
    modules, mapper = agent.mapper()
    module = modules[index]
    started = time.perf_counter()
    shown = show(agent, folder, change, progress)
    mapped = mapper.map(shown.x)
    seen = agent.seen_by(module, shown.x, shown.images)
    answer_seconds = time.perf_counter() - started
    right_class = said_right(agent, module, folder, shown, seen)
    marks = Marks.of(right_class, mapped, index)
    right_task = mapped.task == index
    result.novelty_known.append(mapped.novelty)
    result.confidence.append((_confidence(agent, shown, mapped, modules), right_task & right_class))
    others, counts = np.unique(mapped.task[~right_task], return_counts=True)
    result.tasks.append(
        TaskResult(
            task=folder.name,
            classes=len(module.card.classes),
            test_images=len(shown),
            oracle_accuracy=marks.given,
            task_accuracy=marks.found,
            final_accuracy=marks.final,
            known_unknown=marks.unknown,
            strict_accuracy=marks.strict,
            module_bytes=module.size,
            anchor_bytes=anchor_bytes(module),
            learn_seconds=round(learn_seconds, 3),
            answer_seconds=round(answer_seconds, 3),
            confusions={modules[o].card.task: int(n) for o, n in zip(others, counts, strict=True)},
        )
    )
    return shown


def _test_hidden(
    agent: Agent, folder: TaskFolder, change: Change | None, progress: Progress | None, result: Evaluation
) -> None:
    shown = show(agent, folder, change, progress)
    mapped = agent.mapper()[1].map(shown.x)
    result.novelty_hidden.append(mapped.novelty)
    result.hidden.append(HiddenResult(folder.name, len(shown), float(mapped.unknown.mean())))


@dataclass(frozen=True)
class Shown:
    """A task's test images that can be read, described."""

    x: Floats
    labels: NDArray[np.int64]
    """Indices into the folder's classes."""
    images: list[AnyImage]

    def __len__(self) -> int:
        return len(self.x)


def show(
    agent: Agent, folder: TaskFolder, change: Change | None = None, progress: Progress | None = None
) -> Shown:
    """Describe a task's test images as `Agent.answer` would."""
    split, name = folder.splits["test"], folder.name
    images: Sequence[AnyImage] = split.files if change is None else [change(image) for image in split.files]
    described = agent.backbone.describe(images, begin(progress, f"{name} (test)", len(images)))
    if not len(described.raw):
        reasons = "; ".join(f"{u.name}: {u.reason}" for u in described.unreadable[:3])
        raise DataError(f"no test image of {name!r} can be read ({reasons}); mend or remove the test folder")
    x = agent.backbone.represent(described.raw, agent.config.representation, agent.config.compact)
    readable = [images[index] for index in described.readable]
    return Shown(x, split.labels[described.readable], readable)


def said_right(agent: Agent, module: Module, folder: TaskFolder, shown: Shown, seen: Floats) -> NDArray[np.bool_]:
    """Whether the task's own module names the right class; `seen` is what its head looks at."""
    return is_right(agent.head(module).logits(seen).argmax(axis=1), module, folder, shown)


def is_right(answers: NDArray[np.int64], module: Module, folder: TaskFolder, shown: Shown) -> NDArray[np.bool_]:
    """Whether these classes of the task's own module are the right ones."""
    right: NDArray[np.bool_] = answers == _in_order_of(module, folder)[shown.labels]
    return right


@dataclass(frozen=True)
class Marks:
    """Shares of a task's test images."""

    given: float
    found: float
    final: float
    strict: float
    unknown: float

    @classmethod
    def of(cls, right_class: NDArray[np.bool_], mapped: Mapped, index: int) -> Marks:
        """`index` is the task's among those of the mapper."""
        right_task = mapped.task == index
        final = right_task & right_class
        return cls(
            given=float(right_class.mean()),
            found=float(right_task.mean()),
            final=float(final.mean()),
            strict=float((final & ~mapped.unknown).mean()),
            unknown=float(mapped.unknown.mean()),
        )


def _in_order_of(module: Module, folder: TaskFolder) -> NDArray[np.int64]:
    """Translate the folder's class indices to the module's: a folder to be tested may lack classes."""
    position = {name: i for i, name in enumerate(module.card.classes)}
    return np.array([position.get(name, -1) for name in folder.classes], dtype=np.int64)


def _confidence(agent: Agent, shown: Shown, mapped: Mapped, modules: list[Module]) -> Floats:
    """The confidence of each image's answer, as `Answer.confidence` states it."""
    stated = np.empty(len(shown), dtype=np.float32)
    for index in np.unique(mapped.task):
        rows = mapped.task == index
        module = modules[index]
        seen = agent.seen_by(module, shown.x[rows], [shown.images[row] for row in np.flatnonzero(rows)])
        share = softmax(agent.head(module).logits(seen) / module.card.temperature)
        stated[rows] = mapped.posterior[rows, index] * share.max(axis=1)
    return stated


def _said(agent: Agent, folder: TaskFolder, shown: Shown) -> Said:
    together = "plain" if agent.config.support == "never" else agent.config.support
    alone, supported = (agent.answer_described(shown.x, shown.images, how) for how in ("never", together))
    labels = tuple(folder.classes[label] for label in shown.labels)
    return Said(folder.name, labels, tuple(a.best for a in alone), tuple(a.best for a in supported))


def anchor_bytes(module: Module) -> int:
    """Bytes of the tensors that belong to anchors."""
    kinds = module.card.anchors
    return sum(tensor.nbytes for name, tensor in module.tensors.items() if name.partition(".")[0] in kinds)
