"""The core of an agent: its parts, and its four roles: learn, share, import, answer.

The public API (`agent.py`), the mesh and the commands are built on it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import shlex
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from skillmesh import arguments
from skillmesh.anchors import KINDS, require_to_fit
from skillmesh.answering.answer import Answer
from skillmesh.answering.answering import Answering, Mapper, refuse_empty
from skillmesh.arguments import checked, path, task_images, text
from skillmesh.backbone.backbone import Backbone, backbone_fingerprint, default_folder
from skillmesh.common.choices import NO_ADAPTATION, Adaptation, Refining, Sharing, Support, WarmStart
from skillmesh.common.config import FILE as CONFIG_FILE
from skillmesh.common.config import AgentConfig, MeshSettings
from skillmesh.common.extras import ONNX, TORCH
from skillmesh.common.files import refuse_other_than_file, remove_abandoned, write_whole
from skillmesh.data.images import UnreadableImageError
from skillmesh.data.inputs import (
    AnyImage,
    as_image,
    as_images,
    holds_values,
    in_windows,
    is_collection,
    is_image,
)
from skillmesh.errors import (
    AgentError,
    BackboneError,
    DataError,
    ModuleError,
    SettingsMismatchError,
    TensorError,
    UnknownTaskError,
    WithdrawnError,
    option,
)
from skillmesh.learning.adaptation import Biases
from skillmesh.learning.head import Head
from skillmesh.module import Identity, Module, read_file
from skillmesh.module.notice import Link, MergedTask, Slot, Withdrawal, parts_of, withdraw
from skillmesh.module.teachers import Teachers
from skillmesh.numerics.arrays import Floats, counted
from skillmesh.numerics.process import Progress, begin
from skillmesh.store.bank import SUFFIX, Bank, Signing, fields_of_user, specs_for
from skillmesh.store.home import (
    CALIBRATION_FILE,
    KEY_FILE,
    VALIDATION,
    create_home,
    home_folder,
    is_used,
    keep_calibration,
    put_in_order,
    refuse_half_renewed,
    remove_validation,
)
from skillmesh.store.ledger import FILE as LEDGER_FILE
from skillmesh.store.ledger import Ledger, new_beside
from skillmesh.store.sharing import Unshared

if TYPE_CHECKING:
    from PIL import Image

    from skillmesh.backbone.calibration import Prior, Raw
    from skillmesh.data.folder import TaskImages
    from skillmesh.data.inputs import Unreadable
    from skillmesh.learning.lesson import Lesson
    from skillmesh.module.card import Card
    from skillmesh.synergy.composition import Pick
    from skillmesh.synergy.links import TaskMerger
    from skillmesh.synergy.matching import BankMatches, ClassMatches

log = logging.getLogger(__name__)


class Core:
    """An agent: a home folder with settings, a key, a bank of modules and a ledger.

    The backbone is loaded when it is first needed; listing, exporting and importing modules never need it.
    """

    @checked(home=path)
    def __init__(
        self,
        home: str | Path,
        device: str | None = None,
        cache_folder: str | Path | None = None,
        backbone: Backbone | None = None,
    ) -> None:
        """Open the agent at `home`. Agents in one process may share a `backbone` that is already loaded."""
        self.home = home = Path(home)
        if _has_lost_settings(home):
            raise _lost_settings(home)
        refuse_half_renewed(home)
        self.config, self.calibration = keep_calibration(home, AgentConfig.load(home))
        self.identity = Identity.load(home / KEY_FILE)
        put_in_order(home)
        bank = home / "bank"
        # Looked for before the ledger is opened, which creates one: a bank with modules must have a ledger.
        has_modules = any(bank.glob(f"*{SUFFIX}"))
        self.ledger = Ledger(
            home / LEDGER_FILE, self.identity.public_key, _trusts_everyone(home), expected=has_modules
        )
        self.bank = Bank(
            bank, backbone_fingerprint(self.calibration), self._refuse_unusable, lambda: self.teachers
        )
        self._signing = Signing(home, self.config, self.identity, self.bank, self.ledger)
        self._device = device
        self._cache_folder = Path(cache_folder) if cache_folder else default_folder()
        self._backbone = backbone
        self._teachers: tuple[object, Teachers] | None = None

    # Many commands do not need these parts, so each is imported and created on first use: answering needs neither
    # learning nor synergy.

    @cached_property
    def _matches(self) -> BankMatches:
        from skillmesh.learning.class_names.encoders import remembered_minilm
        from skillmesh.synergy.matching import BankMatches

        return BankMatches(lambda: self.bank, lambda: remembered_minilm(self._cache_folder))

    @cached_property
    def merger(self) -> TaskMerger:
        """Object that builds merged tasks from the modules that links join."""
        from skillmesh.synergy.links import TaskMerger

        key = self.identity.public_key
        return TaskMerger(self.home, key, lambda: self.prior, lambda signed: self.teachers.name(signed))

    @cached_property
    def _answering(self) -> Answering:
        return Answering(
            self.answering_tasks, self.config, lambda: self.prior, lambda: self.backbone, lambda: self.teachers
        )

    @classmethod
    @checked()
    def open(cls, home: str | Path | None = None, **options: Any) -> Core:
        """Open the agent at `home`; if there is none, create one with default settings."""
        folder = home_folder(home)
        refuse_half_renewed(folder)
        if not (folder / CONFIG_FILE).exists() and not _has_lost_settings(folder):
            create_home(folder)
        return cls(folder, **options)

    def close(self) -> None:
        """Close the ledger. The backbone and its cache stay open: other agents in this process may use them."""
        self.ledger.close()

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def teachers(self) -> Teachers:
        """Display names of teachers: the name that the user gave, or else the name they claim plus their key."""
        trusted = self.ledger.view().trusted
        if self._teachers is None or self._teachers[0] is not trusted:
            self._teachers = trusted, Teachers({**trusted, self.identity.public_key: self.name})
        return self._teachers[1]

    @property
    def backbone(self) -> Backbone:
        """The frozen network. The first use loads it, which takes some seconds."""
        if self._backbone is None:
            self._backbone = Backbone.from_settings(
                self.config.backbone,
                self.config.weights,
                self.calibration,
                device=self._device,
                cache_folder=self._cache_folder,
            )
        return self._backbone

    # 1. Learn.

    @checked(task=task_images)
    def learn(
        self,
        task: str | Path | TaskImages,
        *,
        name: str | None = None,
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
    ) -> tuple[Module, Lesson]:
        """Learn a task from a folder or zip of images, or from images already opened, and store it in the bank.

        Parameters
        ----------
        replace
            Allow a task of this name to be learned again; the new version replaces the old one.
        one_task
            Learn a folder that looks like a folder of several tasks as one task; without this it is refused.
        tags
            Words by which other agents can choose which modules to fetch.
        adaptation
            Also train an adaptation of the backbone; `None` trains none. Interrupted training resumes.
        warm_start
            How the head may start from classes that the bank knows; `None` does so where it improves the head.
        views
            Share of the training images to learn from a view instead; or, from 1, number of views of each to add.
            `None` is a third, or none with an adaptation.
        sharing
            Whether other agents get the task. `None` is what the older version had, and "shared" without one.
        """
        from skillmesh.data.folder import TaskImages, open_task
        from skillmesh.learning.lesson import study
        from skillmesh.learning.warm_start import WarmSources

        adaptation, warm_start = adaptation or NO_ADAPTATION, warm_start or WarmStart()
        self.require_packages(adaptation)
        fields = fields_of_user(licence, note, tags)
        images = task
        if not isinstance(images, TaskImages):
            images = open_task(images, name=name, seed=self.config.seed, one_task=one_task)
        if views and adaptation.mode != "none":
            raise AgentError(
                f"{option('views', '--views')} is for a head on the plain backbone, and an adaptation trains "
                f"another; leave out one of {option('views and adaptation', '--views and --adapt')}"
            )
        self._signing.refuse_to_learn(images.name, fields, replace, images.classes)
        train, val = (len(images.splits[name]) for name in ("train", "val"))
        count = train * int(1 + (views or 0)) + val  # a share adds no image
        checkpoint = self.home / f"training-{hashlib.sha256(images.name.encode()).hexdigest()[:16]}.pt"
        known = self._known(images.name) if warm_start.mode == "auto" else ()
        with counted() as costs:
            lesson = study(
                images,
                self.backbone,
                self.config,
                begin(progress, images.name, count),
                adaptation,
                checkpoint,
                lambda count: begin(progress, f"{images.name} ({adaptation.kind})", count),
                WarmSources(known, warm_start.form, self._cache_folder, self.teachers.name),
                views,
            )
        lesson = dataclasses.replace(lesson, costs=costs)
        module = self._signing.keep(lesson, fields, replace=replace, sharing=sharing)
        checkpoint.unlink(missing_ok=True)
        return module, lesson

    @checked()
    def continue_task(
        self,
        task: str,
        more: str | Path | TaskImages,
        *,
        one_task: bool = False,
        licence: str | None = None,
        note: str | None = None,
        tags: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> tuple[Module, Lesson]:
        """Add images or classes to one of the agent's own tasks. The images it was learned from are not needed.

        The new version replaces the old one, in this agent and in every agent that receives the announcement.
        """
        from skillmesh.synergy.continuing import filled_from, more_of, own_task, study_extension

        self.ledger.refuse_unchangeable()
        older = own_task(self, task)
        fields = filled_from(older, **fields_of_user(licence, note, tags))
        with counted() as costs:
            lesson = study_extension(self, older, more_of(more, task, self.config.seed, one_task), progress)
        lesson = dataclasses.replace(lesson, costs=costs)
        return self._signing.keep(lesson, fields, older=older), lesson

    @checked(name=text)
    def compose(
        self,
        name: str,
        classes: Sequence[str | Pick],
        *,
        images: str | Path | TaskImages | None = None,
        form: Refining = "prior",
        epochs: int | None = None,
        replace: bool = False,
        licence: str | None = None,
        note: str | None = None,
        tags: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> tuple[Module, Lesson]:
        """Make a task from classes that the bank knows, own or received, and store it. No image is needed.

        Parameters
        ----------
        classes
            Each as `task:class`, `task:*` for all classes of a task, or `task:class=new name`; or a `Pick`.
        images
            A folder or zip of images of these classes, under their new names, to refine the task. The teachers of
            the classes must not have trained on these images.
        form, epochs
            How to refine the head with the images, and for how many epochs. Without `epochs`, `prior` stops where
            training no longer helps; the paper's `two` and `infinity` train for 10 epochs.
        """
        from skillmesh.learning.lesson import anchor_settings
        from skillmesh.synergy.composed_lesson import Further, lesson_of, lesson_with_images
        from skillmesh.synergy.composition import composed_task, pick

        name = unicodedata.normalize("NFC", name)
        if images is None and (form != "prior" or epochs is not None):
            raise AgentError(
                "form and epochs say how to refine a task with images, and there are none; give "
                f"{option('images=…', '--images FOLDER')}, or leave form and epochs out"
            )
        self.ledger.refuse_unchangeable()
        if not replace:
            self._signing.refuse_composed(name)
        fields = {key: value for key, value in fields_of_user(licence, note, tags).items() if value is not None}
        with counted() as costs:
            picked = pick(self.bank, classes)
            task = composed_task(picked, self.config.anchor, self.prior, anchor_settings(self.config))
            lesson = lesson_of(name, task, self.config.anchor)
            self._signing.card(lesson.facts | fields, version=1)  # refuses bad names before images are read
            if images is not None:
                further = Further.opened(images, task.facts["classes"], self.config.seed, form=form, epochs=epochs)
                lesson = lesson_with_images(name, task, further, self.backbone, self.config, progress)
        lesson = dataclasses.replace(lesson, costs=costs)
        # Its card names the classes that it is made of, so it is kept as the most private of their tasks is.
        kept = {self.unshared.of(p.module.card.task) for p in picked if self.keeps(p.module)}
        sharing: Sharing | None = "never" if "never" in kept else "later" if kept else None
        return self._signing.keep(lesson, fields, replace=replace, sharing=sharing), lesson

    @checked(name=text)
    def refuse_to_learn(
        self,
        name: str,
        *,
        replace: bool = False,
        licence: str | None = None,
        note: str | None = None,
        tags: Sequence[str] = (),
        adaptation: Adaptation | None = None,
    ) -> None:
        """Raise an error if the task cannot be learned with these options, before its images are read."""
        self.require_packages(adaptation or NO_ADAPTATION)
        self._signing.refuse_to_learn(name, fields_of_user(licence, note, tags), replace)
        if adaptation is not None and adaptation.mode != "none":
            from skillmesh.learning.trial import refuse_impossible

            refuse_impossible(adaptation, self.backbone.network)

    @checked()
    def require_packages(self, adaptation: Adaptation = NO_ADAPTATION) -> None:
        """Raise an error if learning with this agent's settings needs packages that are not installed."""
        require_to_fit(self.config.anchor)
        if adaptation.mode != "none":
            TORCH.require("training an adaptation", BackboneError)

    def own_classes(self, task: str) -> tuple[str, ...]:
        """Return the classes of one of the agent's own tasks. Raise an error if the task cannot be extended."""
        from skillmesh.synergy.continuing import own_task

        self.ledger.refuse_unchangeable()
        return own_task(self, task).card.classes

    def _known(self, task: str) -> tuple[Module, ...]:
        """Return the modules that may warm-start `task`.

        Its older version, trained on its images, is left out; so are tasks that are not shared, since the new
        card would tell others their names.
        """
        older = self.bank.held(task, self.identity.public_key)
        return tuple(module for module in self.bank if module is not older and not self.keeps(module))

    def sign(self, lesson: Lesson, **fields: Any) -> tuple[Module, bytes]:
        """Return a signed module, and its bytes, for a lesson studied anywhere with this agent's settings.

        The task's validation descriptors are stored in the home; the module is not added to the bank.
        """
        return self._signing.sign(lesson, fields)

    # 2. Share.

    @property
    def unshared(self) -> Unshared:
        """What was chosen for the own tasks that are not shared."""
        return self._signing.unshared

    @checked()
    def sharing(self, task: str) -> Sharing:
        """Return whether one of the agent's own tasks is shared with other agents."""
        return self.unshared.of(self._own(task).card.task)

    def keeps(self, module: Module) -> bool:
        """Return whether a module is the agent's own and is not to reach others."""
        return self._signing.keeps(module)

    @checked()
    def choose_sharing(self, task: str, sharing: Sharing) -> Module:
        """Share one of the agent's own tasks that was kept here, or decide to keep it; return its module."""
        self.ledger.refuse_unchangeable()
        module = self._own(task)
        self._signing.share(module, sharing)
        return module

    def _own(self, task: str) -> Module:
        module = self._signing.own(task)
        if module is None:
            own = [m.card.task for m in self.bank if m.card.teacher_key == self.identity.public_key]
            raise UnknownTaskError(
                f"this agent has taught no task {task!r}, and only its teacher decides who gets it; its own are: "
                f"{', '.join(sorted(own)) or 'none'}"
            )
        return module

    @checked()
    def export(self, task: str, path: str | Path) -> Path:
        """Write a task's module to a file that any agent with this backbone can import, and return its path.

        If `path` is a folder, the file is named after the task. A symbolic link there is replaced, not followed.
        """
        module = self.bank.find(task)
        target = Path(path)
        if target.is_dir():
            target = target / f"{module.card.task}.skill"
        try:
            data = self.bank.file_of(module)
        except OSError as error:
            raise AgentError(
                f"the file of {module.card.task!r} in the bank cannot be read: {error.strerror}; import the "
                "task or learn it again"
            ) from error
        remove_abandoned(target.parent)
        write_whole(target, data)
        return target

    @checked()
    def export_onnx(self, path: str | Path) -> Path:
        """Write an ONNX file that answers like this agent and needs nothing of it; return its path.

        If `path` is a folder, the file is named after the agent. A symbolic link there is replaced, not followed.
        """
        ONNX.require("exporting an agent", AgentError)
        refuse_empty(self.bank)
        target = Path(path)
        if target.is_dir():
            target = target / f"{self.name.replace('/', '_').replace(os.sep, '_')}.onnx"
        refuse_other_than_file(target)
        content = self._answering.onnx_file(self.name)
        remove_abandoned(target.parent)
        write_whole(target, content)
        return target

    @checked()
    def withdraw(self, task: str, reason: str | None = None) -> Withdrawal:
        """Withdraw one of the agent's own tasks: agents that get the notice stop using and sharing its module."""
        self.ledger.refuse_unchangeable()
        known = {slot.task for slot in self.ledger.view().known if slot.teacher_key == self.identity.public_key}
        own = self.identity.public_key
        task = next((m.card.task for m in self.bank.taught(task) if m.card.teacher_key == own), task)
        held = self.bank.held(task, own)
        if task not in known and held is None:
            taught = known | {m.card.task for m in self.bank if m.card.teacher_key == own}
            raise UnknownTaskError(
                f"this agent has taught no task {task!r}, and only a task's teacher can withdraw it; its own are: "
                f"{', '.join(sorted(taught)) or 'none'}; to drop another's task here, use "
                f"{option('agent.forget', '`skillmesh forget TASK`')}"
            )
        if task not in known and self.unshared.of(task) != "shared":
            raise AgentError(
                f"{task!r} was never shared, and withdrawing it would tell others its name; to drop it here, use "
                f"{option('agent.forget', '`skillmesh forget TASK`')}"
            )
        version = max(
            held.card.version if held else 1, self.ledger.latest_version(Slot(self.identity.public_key, task))
        )
        notice = withdraw(task, version, self.identity, reason)
        self.ledger.merge([notice], self.identity.public_key)
        if held is not None:
            self._remove(held)
        return notice

    @checked()
    def merge(self, tasks: Sequence[str], name: str | None = None) -> Link:
        """Announce that tasks of several teachers are parts of one task. From now on they answer as one."""
        from skillmesh.synergy.links import make_link

        for part in (part for task in tasks for part in parts_of(self.find(task))):
            if self.keeps(part):
                raise AgentError(
                    f"{part.card.task!r} is not shared, and a merged task is announced to others; share it first, "
                    "or leave it out"
                )
        return make_link(self, tasks, name)

    @checked(name=text)
    def unmerge(self, name: str, reason: str | None = None) -> Link:
        """Split a merged task again: in all agents if this agent made its link, otherwise in this agent only."""
        from skillmesh.synergy.links import unmake_link

        return unmake_link(self, name, reason)

    # 3. Import.

    @checked()
    def import_file(self, path: str | Path) -> Module:
        """Check a module file and add it to the bank. Nothing is stored unless the whole file is valid."""
        return self.import_bytes(read_file(path))

    @checked()
    def import_bytes(self, data: bytes) -> Module:
        """Check a module and add it to the bank. Raise a `WithdrawnError` if its teacher has withdrawn it."""
        self.ledger.refuse_unchangeable()
        module = self.bank.check(data)
        if self.ledger.withdrawn(slot_of(module), module.card.version):
            raise WithdrawnError(
                f"{self.teachers.name(module.card)} has withdrawn version {module.card.version} of "
                f"{module.card.task!r}; ask for a newer one"
            )
        self.bank.add(data, module)
        self.ledger.remember(slot_of(module))
        return module

    @checked()
    def forget(self, task: str) -> Module:
        """Remove a task. The agent is then as if it had never held it, and does not fetch it again."""
        self.ledger.refuse_unchangeable()
        module = self.bank.find(task)
        self.ledger.forget(slot_of(module))
        self.bank.refresh()  # a node may just have stored a newer version
        self._remove(self.bank.held(module.card.task, module.card.teacher_key) or module)
        return module

    def _remove(self, module: Module) -> None:
        # The images go first: if the module went first and the process were killed, they would be left behind.
        remove_validation(self.home / VALIDATION, module.id)
        self.bank.remove(module)

    @checked()
    def find(self, task: str) -> Module:
        """Return the merged task of this name, or else the module that `Bank.find` returns.

        A `task@teacher` that names exactly one module comes first, even if a merged task has the same name.
        """
        taught = self.bank.taught(task)
        if len(taught) == 1:
            return taught[0]
        return next((merged for merged in self.merged() if merged.card.task == task), None) or self.bank.find(task)

    def merged(self) -> list[MergedTask]:
        """Return the merged tasks, sorted by name."""
        return sorted(
            (m for m in self.answering_tasks() if isinstance(m, MergedTask)), key=lambda m: (m.card.task, m.id)
        )

    def tasks(self) -> list[Module]:
        """Return the modules in the bank, sorted by task name."""
        return sorted(self.bank, key=lambda m: (m.card.task, self.teachers.name(m.card)))

    # 4. Answer.

    @overload
    def answer(self, images: str | Path | bytes | Image.Image) -> Answer: ...

    @overload
    def answer(self, images: list[Any] | tuple[Any, ...]) -> list[Answer]: ...

    @overload
    def answer(self, images: Any) -> Answer | list[Answer]: ...

    def answer(self, images: Any) -> Answer | list[Answer]:
        """Return an answer for each image, without being given the task that it belongs to.

        An image is a path, encoded bytes, a Pillow image, an array or a tensor. A list of images, or an array of
        several, may mix tasks. A single image that cannot be read raises a `DataError`; in a list it gets an
        answer whose `error` gives the reason.
        """
        inputs, single = as_images(images)
        answers = list(self.answer_each(inputs))
        if not single:
            return answers
        if answers[0].error is not None:
            image, reason = answers[0].image, answers[0].error
            raise DataError(reason if image and reason.startswith(image) else f"{image or 'the image'}: {reason}")
        return answers[0]

    @checked(images=arguments.anything)
    def answer_each(
        self, images: Iterable[Any], progress: Progress | None = None, total: int | None = None
    ) -> Iterator[Answer]:
        """Yield one answer per image, in order, reading a few images at a time.

        `progress` is used only if `total`, the number of images, is given.
        """
        if holds_values(images) or not is_collection(images):
            images, _ = as_images(images)
        advance = begin(progress, "images", total) if total is not None else None
        for window in in_windows(enumerate(images)):
            inputs = [image if is_image(image) else as_image(image, index) for index, image in window]
            refuse_empty(self.bank)
            described = self.backbone.describe(inputs, advance)
            readable = set(described.readable.tolist())
            x = self.represent(described.raw)
            answers = iter(self._answered(x, [inputs[i] for i in sorted(readable)]))
            unreadable = iter(described.unreadable)
            for index in range(len(inputs)):
                yield next(answers) if index in readable else _failed(next(unreadable))

    def _answered(self, x: Floats, images: Sequence[AnyImage]) -> list[Answer]:
        """Return answers; an image that a task with an adaptation cannot read again spoils none of the others."""
        try:
            return self.answer_described(x, images)
        except UnreadableImageError as error:
            if len(images) == 1:
                return [Answer.failed(images[0].name, str(error))]
            return [self._answered(x[row : row + 1], [image])[0] for row, image in enumerate(images)]

    def answer_described(
        self, x: Floats, images: Sequence[AnyImage], support: Support | None = None
    ) -> list[Answer]:
        """Return answers for images from their descriptors `x`. `support` defaults to the agent's setting."""
        return self._answering.answer_described(x, images, support)

    def mapper(self) -> tuple[list[Module], Mapper]:
        """Return the modules in use, in order, and their mapper, which is rebuilt when the bank has changed."""
        return self._answering.mapper()

    def answering_tasks(self) -> list[Module]:
        """Return the bank's tasks in order. Modules that a link joins count as one task."""
        modules = list(self.bank)
        if not self.ledger.view().links:
            return modules
        from skillmesh.synergy.links import acting_links

        if not (links := acting_links(self)) or not KINDS[self.config.anchor].adds_up:
            return modules
        return self.merger.tasks(modules, links)

    def rebuild(self, build: Callable[[list[Module]], Mapper] | None = None) -> None:
        """Answer from the bank as it is now. Answers in progress finish with the modules they started with.

        `build` returns the mapper of a list of modules, for callers that may already have built one.
        """
        self._answering.rebuild(build)

    def use(self, modules: list[Module], mapper: Mapper) -> tuple[list[Module], Mapper]:
        """Answer from these modules from now on. Answers in progress finish with the modules they started with."""
        return self._answering.use(modules, mapper)

    def use_nothing(self) -> None:
        """Drop the mapper for now: the bank is empty, or there are no requests and it would only use memory."""
        self._answering.use_nothing()

    @property
    def rebuilds_itself(self) -> bool:
        """Whether an answer waits for a changed bank's mapper. A node rebuilds it in the background instead."""
        return self._answering.rebuilds_itself

    @rebuilds_itself.setter
    def rebuilds_itself(self, value: bool) -> None:
        self._answering.rebuilds_itself = value

    @property
    def outdated(self) -> bool:
        """Whether answers come from modules other than those that the bank holds now."""
        return self._answering.outdated

    def count_own_change(self) -> None:
        """Make this program's own change count in its next answer, even while a node rebuilds the mapper in the
        background."""
        if not self.rebuilds_itself and self.outdated:
            self.rebuild()

    @property
    def live(self) -> int:
        """Number of tasks that the next answer chooses from; before the first answer, the number of modules,
        because links have not been applied yet."""
        return self._answering.live if self._answering.in_use() else len(self.bank)

    @property
    def was_asked(self) -> bool:
        """Whether the backbone is loaded: the agent has answered or learned something since it was opened."""
        return self._backbone is not None

    def class_matches(self) -> ClassMatches:
        """Return which classes in the bank have matching names at the moment. Tasks are named by module id."""
        return self._matches.now()

    def in_use(self) -> list[Module]:
        """Return the modules that answers come from. A bank that has just changed may hold others."""
        return self._answering.in_use()

    @property
    def prior(self) -> Prior:
        return self.calibration.prior(self.config.representation, self.config.compact)

    def represent(self, raw: Raw) -> Floats:
        """Return descriptors in the representation that this agent's heads and anchors use."""
        return self.backbone.represent(raw, self.config.representation, self.config.compact)

    def head(self, module: Module) -> Head:
        return self._answering.head(module)

    def seen_by(self, module: Module, x: Floats, images: Sequence[AnyImage]) -> Floats:
        """Return the input of a module's head: `x`, or a second pass over `images` if the module adapts them."""
        return self._answering.seen_by(module, x, images)

    def _refuse_unusable(self, module: Module) -> None:
        """Raise a `ModuleError` for a module that the mapper could not combine with the others in the bank."""
        card, config = module.card, self.config
        theirs = (card.representation, card.compact, config.anchor in card.anchors)
        if theirs != (config.representation, config.compact, True):
            raise SettingsMismatchError(
                f"the module {card.task!r} has {_settings(card.representation, card.compact)} and anchors "
                f"{', '.join(card.anchors)}; this agent works with "
                f"{_settings(config.representation, config.compact)} and {config.anchor} anchors; import it into "
                "an agent of the same settings"
            )
        width = len(self.prior.centre)
        if card.dim != width:
            raise TensorError(
                f"the module {card.task!r} has descriptors of {card.dim} numbers, expected {width}; ask its "
                "teacher for it again"
            )
        KINDS[config.anchor].read(module.tensors)  # refuses parts that contradict each other
        if card.biases is not None:
            Biases.read(module.tensors, card.biases[0])


def _failed(image: Unreadable) -> Answer:
    return Answer.failed(image.name, image.reason)


def slot_of(module: Module) -> Slot:
    return Slot(module.card.teacher_key, module.card.task)


def _trusts_everyone(home: Path) -> bool:
    """Return whether the home's settings trust every teacher. A node's own option overrides this in its ledger.

    If the settings are damaged, log a warning and trust only listed teachers: most commands do not need them.
    """
    try:
        return MeshSettings.load(home).trust == "open"
    except AgentError as error:
        log.warning("%s; until then only teachers on the trust list are trusted", error)
        return False


def _has_lost_settings(home: Path) -> bool:
    return is_used(home) and not (home / CONFIG_FILE).exists()


def _lost_settings(home: Path) -> AgentError:
    """Return the error for lost settings. It names those that can be read from the modules in the bank."""
    modules = sorted((home / "bank").glob(f"*{SUFFIX}"))
    ledger, calibration = home / LEDGER_FILE, home / CALIBRATION_FILE
    words = ["init", *_options_of_modules(home, modules)]
    if calibration.exists():
        words += ["--calibration", str(calibration)]
    program = option(f"skillmesh --home {shlex.quote(str(home))}", "skillmesh")  # a command adds its --home itself
    files = (home / KEY_FILE, ledger, new_beside(ledger), calibration)
    present = [file.name for file in files if file is not None and file.exists()]
    present.append(f"{len(modules)} module{'' if len(modules) == 1 else 's'}")
    message = (
        f"{home} has no {CONFIG_FILE}: the agent's settings are lost (found {', '.join(present)}; these are "
        f"unchanged); put {CONFIG_FILE} back from a copy, or write it again with `{program} {shlex.join(words)}` "
        "and any other options with which the agent was created"
    )
    if calibration.exists():
        message += f"; `--calibration` must name the {CALIBRATION_FILE} found there"
    message += f"; if modules are unusable then, delete {CONFIG_FILE} and run `init` again with other options"
    if KEY_FILE not in present:
        message += f"; {KEY_FILE} is missing too: put it back first, or the new key makes this another agent"
    return AgentError(message)


def _options_of_modules(home: Path, files: Iterable[Path]) -> list[str]:
    """Return the options of `init` that fit the modules in the bank, above all the agent's own."""
    cards: list[Card] = []
    for file in files:
        with suppress(ModuleError):
            cards.append(Module.load(file, specs_for).card)
    # Another teacher may have chosen the name of the backbone. A backtick would end the command in the message.
    cards = [card for card in cards if "`" not in card.backbone_name]
    with suppress(AgentError):
        own_key = Identity.load(home / KEY_FILE).public_key
        cards.sort(key=lambda card: card.teacher_key != own_key)
    if not cards:
        return []
    first = cards[0]
    kinds = set(first.anchors)
    for card in cards:
        if all(getattr(card, name) == getattr(first, name) for name in ("backbone", "representation", "compact")):
            kinds = kinds.intersection(card.anchors) or kinds
    usual = AgentConfig.model_fields["anchor"].default
    words = ["--backbone", first.backbone_name, "--representation", first.representation]
    words += ["--anchor", usual if usual in kinds else min(kinds)]
    return [*words, "--compact"] if first.compact else words


def _settings(representation: str, compact: bool) -> str:
    return f"the representation {representation}{' (compact)' if compact else ''}"
