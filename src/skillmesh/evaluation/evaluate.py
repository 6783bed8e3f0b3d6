"""Measure an agent on tasks: with the task given, the task recognised, and the right class with no task given."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skillmesh.answering.answer import Guess
from skillmesh.answering.answering import Mapped, Mapper
from skillmesh.common.choices import WarmStart
from skillmesh.data.folder import Split, TaskImages, open_task
from skillmesh.errors import AmbiguousTaskError, ArgumentError, DataError, UnknownTaskError, option
from skillmesh.evaluation.shown import Change, MeasurableAgent, Shown, show, show_sound
from skillmesh.learning.examine import Finding
from skillmesh.learning.head import class_shares
from skillmesh.learning.lesson import OTHER, Outcome
from skillmesh.module import Module
from skillmesh.module.notice import parts_of
from skillmesh.numerics.arrays import Floats
from skillmesh.numerics.process import Progress


@dataclass(frozen=True)
class TaskResult:
    """One learned task on its test images."""

    task: str
    classes: int
    test_images: int
    task_given_accuracy: float
    """Right class, the task given."""
    task_found_accuracy: float
    """Right task."""
    final_accuracy: float
    """Right task and right class, no task given, an answer forced."""
    known_unanswered: float
    """Share not answered (unknown or not sure), though the task is known."""
    known_unknown: float
    """Share answered "unknown", though the task is known."""
    strict_accuracy: float
    """As `final_accuracy`, an image that is not answered counting as wrong."""
    module_bytes: int
    anchor_bytes: int
    learn_seconds: float
    answer_seconds: float
    confusions: dict[str, int] = field(default_factory=dict)
    """The other tasks that its images were taken for, and how often."""
    left_out: int = 0
    """Number of test images that would falsify the figures, and are not among `test_images`."""


@dataclass(frozen=True)
class HiddenResult:
    """A task that the agent never learned."""

    task: str
    test_images: int
    unanswered: float
    """Share not answered: unknown or not sure."""
    unknown: float
    """Share answered "unknown"."""


@dataclass(frozen=True)
class ForcedAnswers:
    """An agent's answers to a learned task's test images when an answer is forced.

    Their confidence is that given that the image's task is known.
    """

    task: str
    labels: tuple[str, ...]
    """The right class of each image."""
    alone: tuple[Guess, ...]
    """The best guess for each image, without support from other tasks."""
    together: tuple[Guess, ...]
    """The best guess for each image if equivalent classes of several tasks support one another."""


@dataclass(frozen=True)
class TaskAnswers:
    """The answers to a learned task's test images, class by class."""

    task: str
    given: Outcome
    """The answers where the task is given."""
    final: Outcome
    """The answers where it is not, an answer forced."""

    def class_facts(self) -> list[dict[str, Any]]:
        """Return recall with and without the task given, and the wrong answers, as JSON-compatible dicts."""
        pairs = zip(self.final.class_facts(), self.given.class_facts(), strict=True)
        return [{**final, "recall_task_given": given["recall"]} for final, given in pairs]


@dataclass(repr=False)
class Evaluation:
    """Results per task, and their averages over tasks.

    Examples
    --------
    >>> result = agent.evaluate("photos/dice")
    >>> round(result.final, 2) <= round(result.task_given, 2) <= 1
    True
    """

    tasks: list[TaskResult] = field(default_factory=list)
    hidden: list[HiddenResult] = field(default_factory=list)
    novelty_known: list[Floats] = field(default_factory=list)
    novelty_hidden: list[Floats] = field(default_factory=list)
    confidence: list[tuple[Floats, NDArray[np.bool_]]] = field(default_factory=list)
    """For each learned task, confidences given that the task is known, and whether the answers are right."""
    stated: list[tuple[Floats, NDArray[np.bool_]]] = field(default_factory=list)
    """The same with the confidences that answers state."""
    stated_hidden: list[Floats] = field(default_factory=list)
    """Stated confidences of images of hidden tasks."""
    answered_hidden: list[Floats] = field(default_factory=list)
    """Those of images that were answered."""
    forced: list[ForcedAnswers] = field(default_factory=list)
    """The answers image by image; empty unless `keep_forced` was set."""
    answers: list[TaskAnswers] = field(default_factory=list)
    checks: list[tuple[str, Finding]] = field(default_factory=list)
    """Findings of the checks, each with the name of its task."""
    tested: list[TaskImages] = field(default_factory=list)
    """The tasks with the test images that were measured on, without those left out."""

    def __repr__(self) -> str:
        parts = []
        if self.tasks:
            whose = repr(self.tasks[0].task) if len(self.tasks) == 1 else f"{len(self.tasks)} tasks"
            images = sum(task.test_images for task in self.tasks)
            parts.append(
                f"{whose}, {images:,} test images; accuracy with the task given {_percent(self.task_given)}, task "
                f"found {_percent(self.task_found)}, final {_percent(self.final)}"
            )
        parts += [f"{task.task!r} is not known, {_percent(task.unknown)} unknown" for task in self.hidden]
        return f"Evaluation: {'; '.join(parts) or 'nothing'}"

    @property
    def task_given(self) -> float | None:
        """Share of images given the right class where the task is given; the mean over tasks."""
        return self._mean("task_given_accuracy")

    @property
    def task_found(self) -> float | None:
        """Share of images whose task is recognised; the mean over tasks."""
        return self._mean("task_found_accuracy")

    @property
    def final(self) -> float | None:
        """Share of images given the right class of the right task, with no task given; the mean over tasks."""
        return self._mean("final_accuracy")

    def _mean(self, figure: str) -> float | None:
        return macro_average([getattr(task, figure) for task in self.tasks]) if self.tasks else None

    def confusion_matrix(self, task: str | None = None, task_given: bool = False) -> NDArray[np.int64]:
        """Count a task's images by their class (row) and the class they were given (column).

        The last column counts images that were given a class of another task: none where the task is given.
        """
        matches = [answers for answers in self.answers if task in (None, answers.task)]
        if len(matches) != 1:
            names = ", ".join(repr(answers.task) for answers in self.answers) or "none"
            raise ArgumentError(f"task: found {task!r}; expected one of the tasks that were measured: {names}")
        return (matches[0].given if task_given else matches[0].final).matrix()

    def summary(self) -> dict[str, Any]:
        """Return the macro averages and the tasks as a JSON-compatible dict."""
        averaged = (
            "task_given_accuracy",
            "task_found_accuracy",
            "final_accuracy",
            "strict_accuracy",
            "known_unanswered",
            "known_unknown",
            "module_bytes",
            "anchor_bytes",
        )
        figures = {key: [getattr(t, key) for t in self.tasks] for key in averaged}
        summary: dict[str, Any] = {
            key: macro_average(values) if values else None for key, values in figures.items()
        }
        summary["intervals"] = {key: interval(figures[key]) for key in averaged if key.endswith("accuracy")}
        summary["learn_seconds"] = round(sum(t.learn_seconds for t in self.tasks), 3)
        summary["answer_seconds"] = round(sum(t.answer_seconds for t in self.tasks), 3)
        summary["confidence_error"] = self.confidence_error()
        if self.hidden:
            summary["hidden_unanswered"] = round(fmean(h.unanswered for h in self.hidden), 6)
            summary["hidden_unknown"] = round(fmean(h.unknown for h in self.hidden), 6)
            summary["unknown_auroc"] = self.unknown_auroc()
            summary["mixed_confidence_error"] = self.mixed_confidence_error()
            answered = np.concatenate(self.answered_hidden)
            summary["hidden_confidence"] = round(float(answered.mean()), 6) if len(answered) else None
        summary["tasks"] = [asdict(t) for t in self.tasks]
        summary["hidden"] = [asdict(h) for h in self.hidden]
        summary["checks"] = [{"task": task} | finding.as_dict() for task, finding in self.checks]
        return summary

    def unknown_auroc(self) -> float | None:
        """Return the AUROC of novelty in separating images of hidden tasks from those of known ones."""
        if not self.novelty_known or not self.novelty_hidden:
            return None
        known, hidden = np.concatenate(self.novelty_known), np.concatenate(self.novelty_hidden)
        return round(auroc(known, hidden), 6)

    def confidence_error(self) -> float | None:
        """Return the error of confidences, given that the images' tasks are known: on images of learned tasks."""
        if not self.confidence:
            return None
        sure, right = (np.concatenate(part) for part in zip(*self.confidence, strict=True))
        return round(calibration_error(sure, right, np.ones(len(sure))), 6)

    def mixed_confidence_error(self) -> float | None:
        """Return the error of the stated confidences, if half of all images are of hidden tasks.

        Every known and every hidden task has the same weight among those of its kind.
        """
        if not self.stated or not self.stated_hidden:
            return None
        sides = [[*self.stated], [(sure, np.zeros(len(sure), dtype=bool)) for sure in self.stated_hidden]]
        weights = [np.full(len(sure), 1 / (len(sure) * len(side))) for side in sides for sure, _ in side]
        sure, right = (np.concatenate(part) for part in zip(*sides[0], *sides[1], strict=True))
        return round(calibration_error(sure, right, np.concatenate(weights)), 6)


def calibration_error(
    sure: Floats, right: NDArray[np.bool_], weights: NDArray[np.float64], bins: int = 15
) -> float:
    """Return the expected calibration error: the gap of confidence and accuracy, over bins of equal width."""
    bin_of = np.minimum((sure * bins).astype(int), bins - 1)
    gaps = np.bincount(bin_of, weights=weights * (sure - right), minlength=bins)
    return float(np.abs(gaps).sum() / weights.sum())


def auroc(low: NDArray[np.floating], high: NDArray[np.floating]) -> float:
    """Return how often a value of `high` is larger than one of `low`; ties count half.

    >>> auroc(np.array([0.1, 0.2]), np.array([0.2, 0.3]))
    0.875
    """
    ordered = np.sort(low)
    below = np.searchsorted(ordered, high, "left") + np.searchsorted(ordered, high, "right")
    return float(below.mean() / (2 * len(low)))


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def macro_average(figures: Sequence[float]) -> float:
    """Return the mean over tasks, each with equal weight, rounded to six digits."""
    return round(fmean(figures), 6)


RESAMPLES = 10_000
"""Number of times that as many tasks are drawn, with repeats, for an interval."""
LEAST_TASKS = 10
"""Fewest tasks with an interval: of 10 it holds the true mean in 89 % of cases, of 40 in 94 %, of 5 in 81 %."""


def interval(figures: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the mean over tasks; None for few tasks.

    It is a bootstrap over tasks: how much the mean would vary if other tasks of the same kind had been measured.
    Of fewer than `LEAST_TASKS` it would be too narrow.
    """
    if len(figures) < LEAST_TASKS:
        return None
    drawn = np.random.default_rng(seed).integers(len(figures), size=(RESAMPLES, len(figures)))
    low, high = np.quantile(np.asarray(figures)[drawn].mean(axis=1), [0.025, 0.975])
    return round(float(low), 6), round(float(high), 6)


def evaluate(
    agent: MeasurableAgent,
    paths: Sequence[Path | TaskImages],
    *,
    learn: bool = True,
    views: float | None = None,
    hide: Sequence[str] = (),
    change: Change | None = None,
    keep_forced: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Learn the tasks at `paths` one after the other (or use the agent as it is), then test on all of them.

    Parameters
    ----------
    paths
        Paths of the tasks, or tasks that are opened already, with their test images.
    views
        Share or number of views that the tasks are learned with (`Agent.learn`); `None` is its default.
    hide
        Names of tasks that are tested on but never learned. With `learn` off, every task that the agent does not
        know is hidden.
    keep_forced
        Keep the answer to each image, which corrective evaluation needs.
    """
    folders = [open_measured(path, agent.config.seed, learn) for path in paths]
    seconds = dict.fromkeys((f.name for f in folders), 0.0)
    result = Evaluation()
    if learn:
        for folder in folders:
            if folder.name not in hide:
                started = time.perf_counter()
                # Without a warm start, so that a task's figures do not depend on the tasks learned before it.
                _, lesson = agent.learn(folder, warm_start=WarmStart("never"), views=views, progress=progress)
                seconds[folder.name] = time.perf_counter() - started
                result.checks += [(folder.name, finding) for finding in lesson.all_findings]
    mapper = agent.mapper()  # fetched once: if a node runs, modules may arrive during the measurement
    indices = [_index_of(agent, folder.name, mapper[0]) for folder in folders]
    names = _names(agent, mapper[0])
    for folder, index in zip(folders, indices, strict=True):
        if index is not None:
            if change is None:
                shown, findings = show_sound(agent, folder, learn, progress)
                result.checks += [(folder.name, finding) for finding in findings]
            else:
                shown = show(agent, folder, change, progress)
            tested = Split(tuple(shown.images), shown.labels)
            result.tested.append(replace(folder, splits=folder.splits | {"test": tested}))
            _test_known(agent, mapper, names, folder, index, shown, seconds[folder.name], result)
            if keep_forced:
                result.forced.append(_forced_answers(agent, mapper[0][index], folder, shown))
        else:
            result.tested.append(folder)
            _test_hidden(agent, mapper, names, folder, change, progress, result)
    return result


def _index_of(agent: MeasurableAgent, name: str, modules: Sequence[Module]) -> int | None:
    """Return the index of the module that a name or `name@teacher` means, own modules first; None if unknown."""
    module = agent.bank.held(name, agent.identity.public_key)
    try:
        module = module or agent.find(name)
    except AmbiguousTaskError as error:
        how = option("name=…", "the folder's name")
        raise AmbiguousTaskError(f"{error}; choose one for {name!r} with {how}") from None
    except UnknownTaskError:
        return None
    parts = {part.id for part in parts_of(module)}  # a link may have merged it with other tasks
    return next((i for i, other in enumerate(modules) if parts <= {p.id for p in parts_of(other)}), None)


def open_measured(
    path: str | Path | TaskImages, seed: int = 0, learn: bool = True, name: str | None = None
) -> TaskImages:
    """Open a task with test images: the folder's own, or images held out from it.

    If nothing is to be learned and there are none, its validation images are used, or all images without splits.
    """
    if isinstance(path, TaskImages):
        folder = path
    else:
        folder = open_task(path, name=name, hold_out=("val", "test") if learn else (), seed=seed, one_task=True)
    if not len(folder.splits["test"]) and not learn:
        rest = folder.splits["val"] if len(folder.splits["val"]) else folder.splits["train"]
        return TaskImages(folder.name, folder.classes, {"test": rest}, folder.notes)
    if not len(folder.splits["test"]):
        raise DataError(
            f"{path} leaves no test images: its classes have one or two images each; add images or a test folder"
        )
    return folder


def _test_known(
    agent: MeasurableAgent,
    mapper: tuple[list[Module], Mapper],
    names: list[str],
    folder: TaskImages,
    index: int,
    shown: Shown,
    learn_seconds: float,
    result: Evaluation,
) -> None:
    modules = mapper[0]
    module = modules[index]
    started = time.perf_counter()
    mapped = mapper[1].map(shown.x)
    seen = agent.seen_by(module, shown.x, shown.images)
    answer_seconds = shown.seconds + time.perf_counter() - started
    right_class = right_answers(agent, module, folder, shown, seen)
    marks = Marks.of(right_class, mapped, index)
    right_task = mapped.task == index
    confidence, answers = _answers(agent, shown, mapped, modules, names, own=index)
    result.novelty_known.append(mapped.novelty)
    result.confidence.append((confidence, right_task & right_class))
    result.stated.append((confidence * mapped.known, right_task & right_class))
    result.answers.append(_task_answers(agent, module, folder, shown, seen, (right_task, answers, confidence)))
    others, counts = np.unique(mapped.task[~right_task], return_counts=True)
    result.tasks.append(
        TaskResult(
            task=folder.name,
            classes=len(module.card.classes),
            test_images=len(shown),
            task_given_accuracy=marks.given,
            task_found_accuracy=marks.found,
            final_accuracy=marks.final,
            known_unanswered=marks.unanswered,
            known_unknown=marks.unknown,
            strict_accuracy=marks.strict,
            module_bytes=module.size,
            anchor_bytes=anchor_bytes(module),
            learn_seconds=round(learn_seconds, 3),
            answer_seconds=round(answer_seconds, 3),
            confusions={names[o]: int(n) for o, n in zip(others, counts, strict=True)},
            left_out=shown.left_out,
        )
    )


def _names(agent: MeasurableAgent, modules: Sequence[Module]) -> list[str]:
    """Return the names of the modules' tasks; tasks that share a name are named with their teacher."""
    count = Counter(module.card.task for module in modules)
    alike = [module for module in modules if count[module.card.task] > 1]
    selector: dict[str, str] = {}
    for task in {module.card.task for module in alike}:
        same = [module for module in alike if module.card.task == task]
        selector |= dict(zip((module.id for module in same), agent.bank.selectors(same), strict=True))
    return [selector.get(module.id, module.card.task) for module in modules]


def _task_answers(
    agent: MeasurableAgent,
    module: Module,
    folder: TaskImages,
    shown: Shown,
    seen: Floats,
    final: tuple[NDArray[np.bool_], list[str], Floats],
) -> TaskAnswers:
    """Sort the answers by class; classes of the folder that the module lacks come last, and are never given."""
    classes = tuple(dict.fromkeys((*module.card.classes, *folder.classes)))
    labels = np.array([classes.index(name) for name in folder.classes], dtype=np.int64)[shown.labels]
    logits = agent.head(module).logits(seen)
    share = class_shares(logits, module.card.temperature).max(axis=1).astype(np.float32)
    given = Outcome(classes, shown.images, labels, logits.argmax(axis=1), share)
    right_task, answers, confidence = final
    guesses = np.where(right_task, given.guesses, OTHER)
    return TaskAnswers(
        folder.name, given, Outcome(classes, shown.images, labels, guesses, confidence, tuple(answers))
    )


def _test_hidden(
    agent: MeasurableAgent,
    mapper: tuple[list[Module], Mapper],
    names: list[str],
    folder: TaskImages,
    change: Change | None,
    progress: Progress | None,
    result: Evaluation,
) -> None:
    shown = show(agent, folder, change, progress)
    mapped = mapper[1].map(shown.x)
    result.novelty_hidden.append(mapped.novelty)
    confidence, _ = _answers(agent, shown, mapped, mapper[0], names, own=OTHER)
    stated = confidence * mapped.known
    result.stated_hidden.append(stated)
    result.answered_hidden.append(stated[~mapped.unanswered])
    unanswered, unknown = float(mapped.unanswered.mean()), float(mapped.unknown.mean())
    result.hidden.append(HiddenResult(folder.name, len(shown), unanswered, unknown))


def right_answers(
    agent: MeasurableAgent, module: Module, folder: TaskImages, shown: Shown, seen: Floats
) -> NDArray[np.bool_]:
    """Return which images the task's own module classifies correctly; `seen` is the input of its head."""
    return is_right(agent.head(module).logits(seen).argmax(axis=1), module, folder, shown)


def is_right(answers: NDArray[np.int64], module: Module, folder: TaskImages, shown: Shown) -> NDArray[np.bool_]:
    """Return which of these answers, class indices of the task's own module, are correct."""
    right: NDArray[np.bool_] = answers == _in_order_of(module, folder)[shown.labels]
    return right


@dataclass(frozen=True)
class Marks:
    """Shares of a task's test images."""

    given: float
    found: float
    final: float
    strict: float
    unanswered: float
    unknown: float

    @classmethod
    def of(cls, right_class: NDArray[np.bool_], mapped: Mapped, index: int) -> Marks:
        """Compute the shares; `index` is the task's position among the mapper's tasks."""
        right_task = mapped.task == index
        final = right_task & right_class
        return cls(
            given=float(right_class.mean()),
            found=float(right_task.mean()),
            final=float(final.mean()),
            strict=float((final & ~mapped.unanswered).mean()),
            unanswered=float(mapped.unanswered.mean()),
            unknown=float(mapped.unknown.mean()),
        )


def _in_order_of(module: Module, folder: TaskImages) -> NDArray[np.int64]:
    """Translate the folder's class indices to the module's: a folder to be tested may lack classes."""
    position = {name: i for i, name in enumerate(module.card.classes)}
    return np.array([position.get(name, -1) for name in folder.classes], dtype=np.int64)


def _answers(
    agent: MeasurableAgent, shown: Shown, mapped: Mapped, modules: list[Module], names: list[str], own: int
) -> tuple[Floats, list[str]]:
    """Return the confidence of each image's answer, given that its task is known, and the class it names.

    A class of another task than the images' `own` is named with its task.
    """
    stated = np.empty(len(shown), dtype=np.float32)
    named = [""] * len(shown)
    for index in np.unique(mapped.task):
        rows = mapped.task == index
        module = modules[index]
        seen = agent.seen_by(module, shown.x[rows], [shown.images[row] for row in np.flatnonzero(rows)])
        share = class_shares(agent.head(module).logits(seen), module.card.temperature)
        stated[rows] = mapped.posterior[rows, index] * share.max(axis=1)
        prefix = "" if index == own else f"{names[index]}: "
        for row, guess in zip(np.flatnonzero(rows), share.argmax(axis=1), strict=True):
            named[row] = prefix + module.card.classes[guess]
    return stated, named


def _forced_answers(agent: MeasurableAgent, module: Module, folder: TaskImages, shown: Shown) -> ForcedAnswers:
    together = "plain" if agent.config.support == "never" else agent.config.support
    alone, supported = (
        tuple(answer.best.times(1 / answer.known) for answer in agent.answer_described(shown.x, shown.images, how))
        for how in ("never", together)
    )
    labels = tuple(folder.classes[label] for label in shown.labels)
    return ForcedAnswers(module.card.task, labels, alone, supported)


def anchor_bytes(module: Module) -> int:
    """Return the size in bytes of the module's anchor tensors."""
    kinds = module.card.anchors
    return sum(tensor.nbytes for name, tensor in module.tensors.items() if name.partition(".")[0] in kinds)
