"""The public Python API of an agent.

agent = Agent("my-agent")
agent.learn("photos/mushrooms")
agent.predict("basket.jpg").label
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from skillmesh.arguments import anything, checked, path, text
from skillmesh.core import Core
from skillmesh.data.datasets import task_of
from skillmesh.data.inputs import as_images
from skillmesh.errors import ArgumentError, DataError, UnknownTaskError
from skillmesh.learning.result import LearnResult

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    from skillmesh.answering.answer import Answer
    from skillmesh.backbone.backbone import Backbone
    from skillmesh.common.choices import Adaptation, Refining, Sharing, WarmStart
    from skillmesh.data.folder import TaskImages
    from skillmesh.evaluation.evaluate import Evaluation
    from skillmesh.learning.lesson import Lesson
    from skillmesh.mesh.node import Node
    from skillmesh.module import Module
    from skillmesh.module.notice import Link, Withdrawal
    from skillmesh.numerics.process import Progress
    from skillmesh.synergy.composition import Pick

ResultT = TypeVar("ResultT")


class Agent:
    """An agent that learns tasks from images, shares them with other agents, and classifies any image.

    Parameters
    ----------
    home
        Folder of the agent. If it does not exist, it is created with default settings; `skillmesh init` creates
        one with other settings. Default: the folder that `SKILLMESH_HOME` names, or else the user's own agent.
    device
        Device that runs the backbone, as PyTorch names it ("cpu", "cuda"); by default a GPU if there is one.
    cache_folder
        Folder that caches the descriptors of images; by default `SKILLMESH_CACHE`, or else the user's cache.
    backbone
        Backbone of another agent in this process, so that it is loaded only once.

    Examples
    --------
    >>> from skillmesh import Agent
    >>> with Agent("my-agent") as agent:
    ...     result = agent.learn("photos/dice")
    ...     answer = agent.predict("basket.jpg")
    >>> answer.label, answer.task, answer.unknown
    ('five', 'dice', False)
    """

    @checked()
    def __init__(
        self,
        home: str | Path | None = None,
        *,
        device: str | None = None,
        cache_folder: str | Path | None = None,
        backbone: Backbone | None = None,
    ) -> None:
        self._core = Core.open(home, device=device, cache_folder=cache_folder, backbone=backbone)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        tasks = len(self._core.bank)
        return f"Agent({str(self.home)!r}): {self.name}, {tasks} task{'' if tasks == 1 else 's'}"

    def close(self) -> None:
        """Close the agent's files. Everything that it has learned is already saved."""
        self._core.close()

    @property
    def home(self) -> Path:
        """Folder in which the agent is stored."""
        return self._core.home

    @property
    def name(self) -> str:
        """Name under which the agent signs its modules."""
        return self._core.name

    @property
    def backbone(self) -> Backbone:
        """The frozen network, loaded when it is first needed."""
        return self._core.backbone

    # Learn.

    @checked(images=anything, labels=anything, classes=anything)
    def learn(
        self,
        images: Any,
        labels: Any = None,
        *,
        name: str | None = None,
        classes: Sequence[str] | None = None,
        replace: bool = False,
        one_task: bool = False,
        licence: str | None = None,
        note: str | None = None,
        tags: Sequence[str] = (),
        adaptation: Adaptation | None = None,
        warm_start: WarmStart | None = None,
        views: float | None = None,
        sharing: Sharing | None = None,
        progress: Progress | None = None,
    ) -> LearnResult:
        """Learn a task and store it in the bank as a small signed module.

        Parameters
        ----------
        images, labels
            A folder or zip with `class/image.jpg` or `train|val|test/class/image.jpg` inside; or images (paths,
            Pillow images, arrays) with one label each; or a dataset of torch, torchvision or Hugging Face; or
            any iterable of (image, label) pairs. Datasets are read lazily.
        name
            Name of the task. It may be left out for a folder or zip, which has a name of its own.
        classes
            Names of the classes, if the labels are integers.
        replace
            Allow a task of this name to be learned again; the new version replaces the old one.
        one_task
            Learn a folder that looks like several tasks as one; otherwise it is refused.
        licence, note, tags
            Facts for the module's card. Other agents can choose modules by tags.
        adaptation
            Also train an adaptation of the backbone to this task; `None` trains no adaptation.
        warm_start
            How the head may start from classes that the agent knows; `None` does so where it improves the head.
        views
            Learn from views too: below 1, the share of images that they replace; from 1, how many are added for
            each. `None` is a third, or none with an adaptation.
        sharing
            "shared", or "later" or "never" to keep the task here; `None` changes nothing.
        progress
            Object whose `start` and `advance` are called.

        Examples
        --------
        >>> agent.learn("photos/shapes")
        LearnResult: 'shapes', ... classes, ... images, validation accuracy ... %, ... KB
        >>> agent.learn(["a.png", "b.png", "c.png", "d.png"], ["dark", "dark", "light", "light"], name="light")
        LearnResult: 'light', 2 classes, 4 images, ... KB
        """
        fields: dict[str, Any] = {"replace": replace, "licence": licence, "note": note, "tags": tags}
        fields |= {"adaptation": adaptation}
        options: dict[str, Any] = fields | {"warm_start": warm_start, "views": views}
        options |= {"sharing": sharing, "progress": progress}
        if _is_folder(images, labels, classes, one_task):
            return self._learned(*self._core.learn(images, name=name, one_task=one_task, **options))
        name = _named(name)
        self._core.refuse_to_learn(name, **fields)  # checked first, since reading a dataset may take long
        with task_of(images, labels, name=name, classes=classes, seed=self._core.config.seed) as task:
            module, lesson = self._core.learn(task, **options)
        return self._learned(module, lesson.without_images())

    @checked(task=text, images=anything, labels=anything, classes=anything)
    def extend(
        self,
        task: str,
        images: Any,
        labels: Any = None,
        *,
        classes: Sequence[str] | None = None,
        one_task: bool = False,
        licence: str | None = None,
        note: str | None = None,
        tags: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> LearnResult:
        """Add images or classes to one of the agent's own tasks. The images it was learned from are not needed.

        Takes images and labels as `learn` does. The new version replaces the old one, in this agent and in every
        agent that receives the announcement.

        Examples
        --------
        >>> agent.extend("dice", "photos/more dice").classes
        ('five', 'four', 'one', 'six', 'three', 'two')
        """
        options: dict[str, Any] = {"licence": licence, "note": note, "tags": tags, "progress": progress}
        if _is_folder(images, labels, classes, one_task):
            return self._learned(*self._core.continue_task(task, images, one_task=one_task, **options))
        known = self._core.own_classes(task)
        seed = self._core.config.seed
        with task_of(images, labels, name=task, classes=classes, seed=seed, fewest_classes=1) as more:
            _refuse_numbers(more, classes, known)
            module, lesson = self._core.continue_task(task, more, **options)
        return self._learned(module, lesson.without_images())

    def compose(
        self,
        name: str,
        classes: Sequence[str | Pick],
        *,
        images: str | Path | None = None,
        form: Refining = "prior",
        epochs: int | None = None,
        replace: bool = False,
        licence: str | None = None,
        note: str | None = None,
        tags: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> LearnResult:
        """Make a new task from classes that the agent knows, its own or received ones. No image is needed.

        Parameters
        ----------
        classes
            Each as `task:class`, `task:*` for all classes of a task, or `task:class=new name`; or a `Pick`.
        images
            A folder or zip of images of these classes, under their new names, to refine the task. The teachers of
            the classes must not have trained on these images.
        form, epochs
            How to refine the head with the images, and for how many epochs: "prior" keeps it near the composed
            head and stops where that no longer helps; "two" and "infinity" follow the paper, with rows scaled to
            the same two or infinity norm.

        Examples
        --------
        >>> agent.compose("low", ["dice:one", "dice:two"]).classes
        ('one', 'two')
        """
        options: dict[str, Any] = {"images": images, "form": form, "epochs": epochs, "replace": replace}
        options |= {"licence": licence, "note": note, "tags": tags, "progress": progress}
        return self._learned(*self._core.compose(name, classes, **options))

    # Answer.

    @overload
    def predict(self, images: str | Path | bytes | Image.Image) -> Answer: ...

    @overload
    def predict(self, images: list[Any] | tuple[Any, ...]) -> list[Answer]: ...

    @overload
    def predict(self, images: Any) -> Answer | list[Answer]: ...

    def predict(self, images: Any) -> Answer | list[Answer]:
        """Return an answer for each image, without being given the task that it belongs to.

        An image is a path, encoded bytes, a Pillow image, an array or a tensor. A list of images, or an array of
        several, may mix tasks. A single image that cannot be read raises a `DataError`; in a list it gets an
        answer whose `error` gives the reason.

        Examples
        --------
        >>> [answer.label for answer in agent.predict(["basket.jpg", "nowhere.png"])]
        ['five', None]
        """
        answers: Answer | list[Answer] = self._core.answer(images)
        return answers

    def predict_each(
        self, images: Iterable[Any], progress: Progress | None = None, total: int | None = None
    ) -> Iterator[Answer]:
        """Yield one answer per image, reading a few at a time, so that memory does not grow with their number.

        `progress` is used only if `total`, the number of images, is given.
        """
        return self._core.answer_each(images, progress, total)

    def describe(self, images: Any) -> NDArray[np.float32]:
        """Return the descriptors of images in the agent's representation, one row per image.

        Examples
        --------
        >>> agent.describe(["a.png", "b.png"]).shape
        (2, 2912)
        """
        inputs, _ = as_images(images)
        described = self._core.backbone.describe(inputs)
        if described.unreadable:
            first = described.unreadable[0]
            raise DataError(f"{first.name}: {first.reason}; it has no descriptor; leave it out or replace it")
        return self._core.represent(described.raw)

    @checked(images=anything, labels=anything, classes=anything)
    def evaluate(
        self,
        images: Any,
        labels: Any = None,
        *,
        name: str | None = None,
        classes: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> Evaluation:
        """Measure the agent's accuracy on labelled images.

        Takes images and labels as `learn` does. Of a folder it uses the test images; if there are none, the
        validation images; if there are none either, all images. A task that the agent does not know counts as
        hidden: the right answer to its images is "unknown".

        Examples
        --------
        >>> result = agent.evaluate("photos/dice")
        >>> result
        Evaluation: 'dice', ... test images; accuracy with the task given ... %, task found ... %, final ... %
        >>> result.confusion_matrix("dice").shape
        (6, 7)
        """
        from skillmesh.evaluation.evaluate import evaluate, open_measured

        self._core.count_own_change()
        if _is_folder(images, labels, classes):
            task = open_measured(images, self._core.config.seed, learn=False, name=name)
            return evaluate(self._core, [task], learn=False, progress=progress)
        with task_of(images, labels, name=_named(name), classes=classes, hold_out=(), fewest_classes=1) as task:
            _refuse_numbers(task, classes, self._classes(task.name))
            return evaluate(self._core, [open_measured(task, learn=False)], learn=False, progress=progress)

    # Share.

    def share(self, **settings: Any) -> AbstractContextManager[Node]:
        """Run a mesh node while the context lasts: send this agent's modules, receive those of other agents.

        Settings are those of `skillmesh config` (docs/mesh.md): `network` ("machine", "lan", "fixed" or "client"),
        `listen`, `connect`, `trust` ("listed" or "open"), `interests` and so on. Settings that are not given are
        read from the agent's home.

        Examples
        --------
        >>> with agent.share(network="machine") as node:
        ...     node.peers.alive()
        []
        """
        from skillmesh.mesh.service import sharing

        return sharing(self._core, **settings)

    def export(self, task: str, path: str | Path) -> Path:
        """Write a task's module to a file that any agent with the same backbone can import; return its path.

        Examples
        --------
        >>> agent.export("dice", "dice.skill").name
        'dice.skill'
        """
        return self._core.export(task, path)

    def export_onnx(self, path: str | Path) -> Path:
        """Write the whole agent to one ONNX file, which any ONNX runtime answers with; return its path.

        It needs `pip install onnx`. Tasks that adapt the backbone are refused.
        """
        return self._core.export_onnx(path)

    def import_file(self, path: str | Path) -> Module:
        """Check a module file and import it into the bank; a file that fails any check is not stored.

        Examples
        --------
        >>> Agent("another").import_file("dice.skill").card.task
        'dice'
        """
        return self._after_change(self._core.import_file(path))

    def tasks(self) -> list[Module]:
        """Return the modules in the agent's bank, sorted by task name.

        Examples
        --------
        >>> [module.card.task for module in agent.tasks()]
        ['dice', ...]
        """
        return self._core.tasks()

    def forget(self, task: str) -> Module:
        """Remove a task from this agent. It leaves no trace in the answers, and it is not fetched again."""
        return self._after_change(self._core.forget(task))

    def withdraw(self, task: str, reason: str | None = None) -> Withdrawal:
        """Withdraw one of the agent's own tasks: every agent that receives the notice stops using its module."""
        return self._after_change(self._core.withdraw(task, reason))

    def merge(self, tasks: Sequence[str], name: str | None = None) -> Link:
        """Merge tasks of several teachers into one task, and announce that to other agents with a signed link."""
        return self._after_change(self._core.merge(tasks, name))

    def unmerge(self, name: str, reason: str | None = None) -> Link:
        """Undo a merge: in every agent if this agent published the link, otherwise in this agent only."""
        return self._after_change(self._core.unmerge(name, reason))

    def _learned(self, module: Module, lesson: Lesson) -> LearnResult:
        return self._after_change(LearnResult(module, lesson))

    def _after_change(self, result: ResultT) -> ResultT:
        """Make a change of this agent count in its next answer, also while it shares; return `result`."""
        self._core.count_own_change()
        return result

    def _classes(self, task: str) -> tuple[str, ...]:
        """Return the classes of a task, or an empty tuple if the agent does not know the task."""
        own = self._core.bank.held(task, self._core.identity.public_key)
        try:
            return (own or self._core.find(task)).card.classes
        except UnknownTaskError:
            return ()


def _is_folder(images: Any, labels: Any, classes: Any, one_task: bool = False) -> bool:
    """Return whether `images` is a folder or zip, whose own folders give the class of each image."""
    if not isinstance(images, str | os.PathLike) or labels is not None:
        if one_task:
            raise ArgumentError(
                "one_task: found True, expected False: only a folder or zip can hold several tasks; leave it out"
            )
        return False
    if classes is not None:
        raise ArgumentError(
            "classes: found names for a folder or zip, expected none: its folders name the classes; leave it out"
        )
    path("images", images)
    return True


def _named(name: str | None) -> str:
    if name is None:
        raise ArgumentError(
            'name: found none; expected a name for the task, since images and datasets have none: name="…"'
        )
    return name


def _refuse_numbers(task: TaskImages, classes: Any, known: Sequence[str]) -> None:
    """Refuse integer labels without `classes` if the agent knows the task's classes by names."""
    numbers = [name for name in task.classes if name.isdecimal()]
    if classes is None and numbers and known and not any(name.isdecimal() for name in known):
        raise ArgumentError(
            f"labels: found numbers ({', '.join(numbers[:5])}), and the task {task.name!r} has names "
            f"({', '.join(known[:5])}); say what the numbers stand for: classes=[…]"
        )
