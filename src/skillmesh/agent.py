"""The public face of an agent.

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
    from skillmesh.common.choices import Adaptation, Refining, WarmStart
    from skillmesh.data.folder import TaskImages
    from skillmesh.evaluation.evaluate import Evaluation
    from skillmesh.learning.lesson import Lesson
    from skillmesh.mesh.node import Node
    from skillmesh.module import Module
    from skillmesh.module.notice import Link, Withdrawal
    from skillmesh.numerics.process import Progress
    from skillmesh.synergy.composition import Pick

Done = TypeVar("Done")


class Agent:
    """An agent that learns tasks from images, shares them, and says what any image shows.

    Parameters
    ----------
    home
        Folder of the agent. It is made, with the usual settings, where there is none; `skillmesh init` makes one
        with others. Without it: `SKILLMESH_HOME`, or the user's own agent.
    device
        Where the backbone runs, as PyTorch names it; by default a GPU if there is one.
    cache_folder
        Where descriptors of images are kept; by default `SKILLMESH_CACHE`, or the user's cache.
    backbone
        That of another agent in this process, to load it once only.

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
        """Close the agent's files. What it has learned is kept already."""
        self._core.close()

    @property
    def home(self) -> Path:
        """Folder of the agent."""
        return self._core.home

    @property
    def name(self) -> str:
        """Name that the agent signs its modules with."""
        return self._core.name

    @property
    def backbone(self) -> Backbone:
        """The frozen network; it is loaded when it is first needed."""
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
        progress: Progress | None = None,
    ) -> LearnResult:
        """Learn a task and keep it as a small signed module.

        Parameters
        ----------
        images, labels
            A folder or zip with `class/image.jpg` or `train|val|test/class/image.jpg` inside; or images (paths,
            Pillow images, arrays) with a label for each; or a dataset of torch, torchvision or Hugging Face; or
            any iterable of (image, label). Datasets are read lazily.
        name
            The task's name; a folder's own by default.
        classes
            Names of the classes where labels are integers.
        replace
            Learn a task of this name again; the new version takes the old one's place.
        one_task
            Take a folder for one task that looks like a folder of tasks, and is refused as such otherwise.
        licence, note, tags
            What the module's card says of the images; by tags other agents can choose what to take.
        adaptation
            Train what adapts the backbone to this task, too; `None`: don't.
        warm_start
            How the head may start from classes that the agent knows; `None`: where that pays.

        Examples
        --------
        >>> agent.learn("photos/shapes")
        LearnResult: 'shapes', ... classes, ... images, validation accuracy ... %, ... KB
        >>> agent.learn(["a.png", "b.png", "c.png", "d.png"], ["dark", "dark", "light", "light"], name="light")
        LearnResult: 'light', 2 classes, 4 images, ... KB
        """
        told: dict[str, Any] = {"replace": replace, "licence": licence, "note": note, "tags": tags}
        told |= {"adaptation": adaptation}
        options: dict[str, Any] = told | {"warm_start": warm_start, "progress": progress}
        if _is_folder(images, labels, classes, one_task):
            return self._learned(*self._core.learn(images, name=name, one_task=one_task, **options))
        name = _named(name)
        self._core.refuse_to_learn(name, **told)  # before a dataset is read, which may be long
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
        """Add images or classes to a task of the agent's own, without the images that it was learned from.

        The new version takes the old one's place, here and with everyone who hears of it.

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
        """Make a task of classes that the agent knows, own or received, without an image.

        Parameters
        ----------
        classes
            Each as `task:class`, `task:*` for all of a task, or `task:class=new name`.
        images
            A folder or zip of images of these classes, by their new names, to refine the task with. They must be
            new to whoever taught the classes.
        form, epochs
            How to refine it, and for how long: by its `prior` as far as it pays, or in the paper's way with rows
            of one `two` or `infinity` norm.

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
        """Say what images show, with nobody telling which task they are of.

        An image is a path, encoded bytes, a Pillow image, an array or a tensor; a list of them, or an array of
        several, may mix tasks. One image that cannot be read raises; among several it gets an answer whose `error`
        says why.

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
        """Yield an answer for every image as they come: memory stays flat, however many there are.

        `progress` wants to know how many there are in `total`.
        """
        return self._core.answer_each(images, progress, total)

    def describe(self, images: Any) -> NDArray[np.float32]:
        """Return the descriptors of images, as the agent's heads see them: one row each.

        Examples
        --------
        >>> agent.describe(["a.png", "b.png"]).shape
        (2, 2912)
        """
        inputs, _ = as_images(images)
        described = self._core.backbone.describe(inputs)
        if described.unreadable:
            first = described.unreadable[0]
            raise DataError(f"{first.name}: {first.reason}; there is no descriptor of it")
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
        """Measure the agent on images whose classes are known.

        Of a folder these are its test images, or else its validation images, or else all.

        Takes what `learn` takes. A task that the agent does not know counts as hidden: its images should be
        answered "unknown".

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
        """Share over the mesh while the context lasts: what is learned goes out, what others teach comes in.

        Settings are those of `skillmesh config` (docs/mesh.md): `network` ("machine", "lan", "fixed" or "client"),
        `listen`, `connect`, `trust` ("listed" or "open"), `interests` and so on. What is not given is as the
        agent's home has it.

        Examples
        --------
        >>> with agent.share(network="machine") as node:
        ...     node.peers.alive()
        []
        """
        from skillmesh.mesh.service import sharing

        return sharing(self._core, **settings)

    def export(self, task: str, path: str | Path) -> Path:
        """Write a task's module to a file that any agent with this backbone can import, and return its path.

        Examples
        --------
        >>> agent.export("dice", "dice.skill").name
        'dice.skill'
        """
        return self._core.export(task, path)

    def import_file(self, path: str | Path) -> Module:
        """Check a module's file and take it into the bank; nothing is stored unless all of it is sound.

        Examples
        --------
        >>> Agent("another").import_file("dice.skill").card.task
        'dice'
        """
        return self._counted(self._core.import_file(path))

    def tasks(self) -> list[Module]:
        """Return what the agent knows, by name.

        Examples
        --------
        >>> [module.card.task for module in agent.tasks()]
        ['dice', ...]
        """
        return self._core.tasks()

    def forget(self, task: str) -> Module:
        """Remove a task; the agent is then as if it had never had it, and does not fetch it again."""
        return self._counted(self._core.forget(task))

    def withdraw(self, task: str, reason: str | None = None) -> Withdrawal:
        """Take back a task of the agent's own, everywhere: who hears of it stops using its module."""
        return self._counted(self._core.withdraw(task, reason))

    def merge(self, tasks: Sequence[str], name: str | None = None) -> Link:
        """Tell everyone that tasks of several teachers are parts of one; they answer as one from now on."""
        return self._counted(self._core.merge(tasks, name))

    def unmerge(self, name: str, reason: str | None = None) -> Link:
        """Take a merged task apart again: everywhere if this agent's link made it, else here alone."""
        return self._counted(self._core.unmerge(name, reason))

    def _learned(self, module: Module, lesson: Lesson) -> LearnResult:
        return self._counted(LearnResult(module, lesson))

    def _counted(self, done: Done) -> Done:
        """Return what was done, once it counts in the next answer, also while the agent shares."""
        self._core.count_own_change()
        return done

    def _classes(self, task: str) -> tuple[str, ...]:
        """Return the classes of a task that the agent knows; none where it does not."""
        own = self._core.bank.held(task, self._core.identity.public_key)
        try:
            return (own or self._core.find(task)).card.classes
        except UnknownTaskError:
            return ()


def _is_folder(images: Any, labels: Any, classes: Any, one_task: bool = False) -> bool:
    """Whether a folder or zip was given, which says itself what is of which class."""
    if not isinstance(images, str | os.PathLike) or labels is not None:
        if one_task:
            raise ArgumentError("one_task: found True, expected False: it is for folders of folders; leave it out")
        return False
    if classes is not None:
        raise ArgumentError(
            "classes: found some for a folder or zip, expected none: its folders name them; leave classes out"
        )
    path("images", images)
    return True


def _named(name: str | None) -> str:
    if name is None:
        raise ArgumentError(
            'name: found none; expected a name for the task, which images and datasets lack: name="…"'
        )
    return name


def _refuse_numbers(task: TaskImages, classes: Any, known: Sequence[str]) -> None:
    """Refuse integers that nothing names where the agent knows the task's classes by names."""
    numbers = [name for name in task.classes if name.isdecimal()]
    if classes is None and numbers and known and not any(name.isdecimal() for name in known):
        raise ArgumentError(
            f"labels: found numbers ({', '.join(numbers[:5])}), and the task {task.name!r} has names "
            f"({', '.join(known[:5])}); say what the numbers stand for: classes=[…]"
        )
