"""Lessons: tasks that are being taught through the API. Each is a folder in the agent's home, and later a job.

    lessons/ID/lesson.json      task, classes, state, report
    lessons/ID/images/NAME      images, named by class number and a number of their own

Images arrive one request at a time and stay on disk, so that a lesson survives a restart of the node and can be
started again after an error. One job runs at a time. What was described once is in the cache of descriptors.
"""

from __future__ import annotations

import logging
import queue
import re
import secrets
import shutil
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from skillmesh.common.choices import Sharing
from skillmesh.common.files import PRIVATE, make_folder, remove, write_whole
from skillmesh.core import Core
from skillmesh.data.datasets import task_of
from skillmesh.data.folder import nfc, open_task
from skillmesh.data.images import UnreadableImageError, decode_rgb
from skillmesh.data.inputs import AnyImage, EncodedImage
from skillmesh.errors import AgentError, DataError, SkillmeshError
from skillmesh.learning.lesson import Lesson as Learned
from skillmesh.mesh.wire import thread
from skillmesh.module import Module
from skillmesh.page.problems import Refused, conflict, not_found, too_large
from skillmesh.page.uploads import Upload, base_name, save
from skillmesh.store.home import LESSONS

log = logging.getLogger(__name__)

State = Literal["draft", "waiting", "learning", "done", "failed", "cancelled", "interrupted"]
BUSY: tuple[State, ...] = ("waiting", "learning")
MOST_LESSONS = 200
MOST_CLASSES = 2_000
MOST_IMAGES = 200_000
LAST = 19
"""Niceness of the thread that learns, and of those that it starts: answers come first."""
ENOUGH = 20
"""Number of images per class below which more of them are advised."""
WRONG_SHOWN = 60
"""Largest number of wrong answers in a report."""
REPORT_EVERY = 0.2
"""Seconds between two reports of a lesson's progress."""
ARCHIVE = "*.archive.zip"
INTERRUPTED = "the node stopped before the task was learned; start it again"
_IMAGE = re.compile(r"(\d+)-(\d+)\.[a-z0-9]{1,5}")
"""Name of an image's file: the number of its class, and its own."""


class Report(BaseModel):
    """How well a task was learned."""

    accuracy: float | None
    classes: list[dict[str, Any]]
    matrix: list[list[int]]
    wrong: list[dict[str, Any]]
    advice: str | None
    findings: list[str]
    seconds: float
    bytes: int


class Record(BaseModel):
    """What `lesson.json` holds."""

    task: str
    extends: bool = False
    classes: dict[int, str] = {}
    """Names by number: files are named by numbers, since names can be anything."""
    state: State = "draft"
    sharing: Sharing = "shared"
    licence: str | None = None
    note: str | None = None
    tags: tuple[str, ...] = ()
    replace: bool = False
    report: Report | None = None
    task_id: str | None = None
    error: str | None = None
    created: float = Field(default_factory=time.time)


@dataclass
class Progress:
    """How far a job is; `advance` ends a job that was cancelled."""

    changed: Callable[[], None]
    cancelled: threading.Event = field(default_factory=threading.Event)
    stage: str = "starting"
    done: int = 0
    total: int = 0
    _reported: float = 0.0

    def start(self, what: str, total: int) -> None:
        self.stage, self.done, self.total = what, 0, total
        self.changed()

    def advance(self, steps: int) -> None:
        if self.cancelled.is_set():
            raise Cancelled("the lesson was cancelled")
        self.done += steps
        if time.monotonic() - self._reported > REPORT_EVERY or self.done >= self.total:
            self._reported = time.monotonic()
            self.changed()

    def as_dict(self) -> dict[str, Any]:
        return {"stage": self.stage, "done": self.done, "total": self.total}


class Cancelled(SkillmeshError):
    """A lesson that its user ended."""


class Lesson:
    """One lesson: its folder, and its job if it has one."""

    def __init__(self, folder: Path, record: Record, changed: Callable[[Lesson], None]) -> None:
        self.folder, self.record = folder, record
        self.images = folder / "images"
        self.progress: Progress | None = None
        self.deleted = False
        self._changed = changed
        self._guard = threading.RLock()
        self._files: dict[int, list[str]] = {number: [] for number in record.classes}
        """The names of each class's images, in the order in which they came."""
        for name in sorted(path.name for path in self.images.glob("*")) if self.images.is_dir() else ():
            if (match := _IMAGE.fullmatch(name)) and int(match[1]) in self._files:
                self._files[int(match[1])].append(name)
        last = max(
            (int(m[2]) for names in self._files.values() for n in names if (m := _IMAGE.fullmatch(n))), default=0
        )
        # By the clock, since browsers keep images by name, also those that were removed before a restart.
        self._next = max(1 + last, time.time_ns() // 1_000)  # an image takes longer than a microsecond

    @property
    def id(self) -> str:
        return self.folder.name

    def save(self) -> None:
        with self._guard:
            write_whole(self.folder / "lesson.json", self.record.model_dump_json(indent=1).encode(), mode=PRIVATE)
        self._changed(self)

    @contextmanager
    def changing(self) -> Iterator[Record]:
        """Yield the record to change it, and save it; if that fails, it is as it was before."""
        with self.unused():
            before = self.record.model_copy(update={"classes": dict(self.record.classes)})
            try:
                yield self.record
                self.save()
            except BaseException:
                self.record = before
                raise

    @contextmanager
    def unused(self) -> Iterator[None]:
        """Keep other threads from changing or starting the lesson; refuse while a job reads it."""
        with self._guard:
            if self.record.state in BUSY:
                raise conflict(
                    f"the lesson {self.record.task!r} is being learned; cancel it, or wait until it ends"
                )
            if self.deleted:
                raise not_found(f"the lesson {self.id!r} was deleted")
            yield

    # Classes and images.

    def add_class(self, name: str) -> int:
        """Return the number of a class, which is added if there is none of that name."""
        name = tidy(name)
        with self.unused():
            if (known := self._number(name)) is not None:
                return known
            with self.changing() as record:
                if len(record.classes) >= MOST_CLASSES:
                    raise too_large(
                        f"the lesson has {MOST_CLASSES:,} classes, which is the most; make it two tasks"
                    )
                refuse_bad_name("a class", name)
                number = 1 + max(record.classes, default=0)
                record.classes[number] = nfc(name)
                self._files[number] = []
                return number

    def rename_class(self, name: str, new_name: str) -> None:
        new_name = tidy(new_name)
        with self.changing() as record:
            number = self._known_number(name)
            refuse_bad_name("a class", new_name)
            if self._number(new_name) not in (None, number):
                raise conflict(f"there is a class {new_name!r} already; choose another name")
            record.classes[number] = nfc(new_name)

    def remove_class(self, name: str) -> None:
        with self.unused():
            number = self._known_number(name)
            for file in self.files_of(name):  # before the class: a full disk takes no new lesson.json
                self._remove(number, file)
            with self.changing() as record:
                del record.classes[number]

    def add_images(
        self, name: str, uploads: Sequence[Upload | EncodedImage]
    ) -> tuple[list[str], list[dict[str, str]]]:
        """Store images of a class; return the names of their files, and what was refused and why."""
        with self.unused():
            try:
                return self._add_images(name, uploads)
            finally:
                self._changed(self)

    def _add_images(
        self, name: str, uploads: Sequence[Upload | EncodedImage]
    ) -> tuple[list[str], list[dict[str, str]]]:
        added, refused = [], []
        number = self.add_class(name)
        make_folder(self.images)
        for upload in uploads:
            if sum(map(len, self._files.values())) >= MOST_IMAGES:
                raise too_large(f"the lesson has {MOST_IMAGES:,} images, which is the most")
            if (reason := why_unreadable(upload)) is not None:
                refused.append({"name": upload.name, "reason": reason})
                continue
            file = f"{number:04}-{self._next}{_suffix(upload.name)}"
            save(upload, self.images / file)
            self._next += 1
            self._files[number].append(file)
            added.append(file)
        return added, refused

    def add_archive(self, archive: Upload) -> tuple[list[str], list[dict[str, str]]]:
        """Store the images of a zip of a whole task; its test images are left out, as in learning."""
        path = self.folder / ARCHIVE.replace("*", secrets.token_hex(8))
        try:
            save(archive, path)
            task = open_task(path, name=self.record.task, hold_out=(), one_task=True)
            added, refused = [], []
            with self.unused():
                for split in (task.splits["train"], task.splits["val"]):
                    for image, label in zip(split.files, split.labels, strict=True):
                        try:
                            one = [EncodedImage(base_name(image.name), image.content())]
                        except UnreadableImageError as error:
                            refused.append({"name": image.name, "reason": str(error)})
                            continue
                        new, bad = self._add_images(task.classes[int(label)], one)
                        added += new
                        refused += bad
            return added, refused
        finally:
            path.unlink(missing_ok=True)
            self._changed(self)  # once, not for each image

    def files_of(self, name: str) -> list[str]:
        return list(self._files[self._known_number(name)])

    def file(self, image: str) -> Path:
        """Return the path of an image of this lesson; only names that it has given itself are looked up."""
        if not any(image in names for names in self._files.values()):
            raise not_found(f"the lesson has no image {image!r}")
        return self.images / image

    def remove_image(self, image: str) -> None:
        with self.unused():
            self.file(image)  # refuses other names
            self._remove(next(number for number, names in self._files.items() if image in names), image)
        self._changed(self)

    def _remove(self, number: int, image: str) -> None:
        remove(self.images / image)
        self._files[number].remove(image)

    def labelled(self) -> tuple[list[Path], list[str]]:
        """Return the paths of all images, and the class of each."""
        pairs = [
            (self.images / file, name)
            for number, name in self.record.classes.items()
            for file in self._files[number]
        ]
        return [path for path, _ in pairs], [label for _, label in pairs]

    def _number(self, name: str) -> int | None:
        name = tidy(name)
        return next((number for number, known in list(self.record.classes.items()) if known == nfc(name)), None)

    def _known_number(self, name: str) -> int:
        if (number := self._number(name)) is None:
            known = ", ".join(map(repr, self.record.classes.values())) or "none"
            raise not_found(f"the lesson has no class {name!r}; its classes: {known}")
        return number

    # Its job.

    def cancel(self) -> None:
        """End the job: at once if it waits for its turn, or else soon."""
        with self._guard:
            if self.record.state not in BUSY or self.progress is None:
                raise conflict(f"the lesson {self.record.task!r} is not being learned; nothing was cancelled")
            self.progress.cancelled.set()
            if self.record.state == "waiting":
                self.record.state, self.progress = "cancelled", None
                self.save()

    def takes_turn(self, progress: Progress) -> bool:
        """Begin the job of this progress; return False if it was cancelled while it waited."""
        with self._guard:
            if self.progress is not progress:
                return False
            self.record.state = "learning"
            return True

    def end(self, state: State) -> None:
        """Leave the job in this state."""
        with self._guard:
            self.record.state, self.progress = state, None
            self.save()

    # What the API says of it.

    def counts(self) -> dict[str, int]:
        # Copied at once: other requests may be adding classes.
        return {name: len(self._files.get(number, ())) for number, name in list(self.record.classes.items())}

    def as_dict(self, known: Sequence[str] = ()) -> dict[str, Any]:
        record, counts, progress = self.record, self.counts(), self.progress
        return {
            "id": self.id,
            "task": record.task,
            "extends": record.extends,
            "state": record.state,
            "classes": [
                {"name": name, "images": images, "known": name in known} for name, images in counts.items()
            ],
            "images": sum(counts.values()),
            "progress": progress.as_dict() if progress and record.state in BUSY else None,
            "report": None if record.report is None else record.report.model_dump(),
            "task_id": record.task_id,
            "error": record.error,
            "hints": self.hints(known),
            "sharing": record.sharing,
        }

    def hints(self, known: Sequence[str] = ()) -> list[str]:
        """Return what is missing, or would help now."""
        if self.record.state in (*BUSY, "done"):
            return []
        counts = self.counts()
        taught = {name for name, images in counts.items() if images}
        if self.record.extends:
            hints = [] if taught else ["add images of a class, known or new"]
        else:
            hints = (
                [f"two classes with images are needed; there {_are(len(taught))} so far"]
                if len(taught) < 2
                else []
            )
        empty = [name for name, images in counts.items() if not images and name not in known]
        hints += [f"{name!r} has no images yet; it is left out" for name in empty[:3]]
        few = sorted(
            (images, name) for name, images in counts.items() if 0 < images < ENOUGH and name not in known
        )
        hints += [
            f"{name!r} has {images} image{'s' * (images > 1)}; {ENOUGH} or more would help"
            for images, name in few[:3]
        ]
        return hints


def _are(count: int) -> str:
    return "is one" if count == 1 else "are none"


def _suffix(name: str) -> str:
    suffix = Path(name).suffix.lower()
    return suffix if re.fullmatch(r"\.[a-z0-9]{1,5}", suffix) else ".img"


def why_unreadable(image: AnyImage) -> str | None:
    """Return why a file cannot be a lesson's image; it is decoded once, as small as possible."""
    try:
        decode_rgb(image.content(), 64)
    except UnreadableImageError as error:
        return str(error)
    return None


def tidy(name: str) -> str:
    """Return a name as it is stored: keyboards add blanks, and some systems take letters and accents apart."""
    return unicodedata.normalize("NFC", name).strip()


def refuse_bad_name(what: str, name: str) -> None:
    """Refuse a name that no folder could have: a task learned here may be written to a folder later."""
    if not name.strip() or len(name) > 200 or "\0" in name or not name.isprintable():
        raise DataError(
            f"{what} is named {name[:80]!r}; expected 1 to 200 printable characters; choose another name"
        )


class Lessons:
    """All lessons of an agent, and the thread that learns them one after the other."""

    def __init__(self, agent: Core, changed: Callable[[Lesson | None], None]) -> None:
        """Read the lessons of earlier runs; `changed` is called with a lesson that changed, or None."""
        self._agent, self._changed = agent, changed
        self.folder = agent.home / LESSONS
        self._guard = threading.Lock()
        self._lessons: dict[str, Lesson] = {}
        self._jobs: queue.SimpleQueue[tuple[Lesson, Progress] | None] = queue.SimpleQueue()
        self._closing = False
        for path in sorted(self.folder.glob("*/lesson.json")):
            try:
                self._read(path)
            except (OSError, ValidationError) as error:
                reason = str(error).partition("\n")[0]
                log.warning("a lesson cannot be used: %s: %s; delete its folder, or repair the file", path, reason)
        thread("lessons", self._work, nice=LAST)

    def close(self) -> None:
        self._closing = True
        for lesson in self.all():
            if lesson.progress is not None:
                lesson.progress.cancelled.set()
        self._jobs.put(None)

    def all(self) -> list[Lesson]:
        return sorted(self._lessons.values(), key=lambda lesson: lesson.record.created)

    def find(self, lesson_id: str) -> Lesson:
        lesson = self._lessons.get(lesson_id)
        if lesson is None:
            raise not_found(f"there is no lesson {lesson_id!r}; GET /api/v1/lessons lists them")
        return lesson

    def begin(self, task: str, classes: Sequence[str] = (), extends: bool = False) -> tuple[Lesson, bool]:
        """Return a new lesson, or the open one that extends this task already; and whether it is new."""
        task = nfc(task)
        task = tidy(task)
        refuse_bad_name("a task", task)
        if not extends:
            self._agent.refuse_to_learn(task, replace=True)  # what cannot be a task's name, even if it is new
        for name in map(tidy, classes):
            refuse_bad_name("a class", name)
        if extends:
            self._agent.own_classes(task)  # refuses a task that cannot be extended
        with self._guard:
            drafts = (each for each in self.all() if each.record.state not in (*BUSY, "done"))
            found = next(
                (each for each in drafts if extends and each.record.extends and each.record.task == task), None
            )
            if found is None:
                if len(self._lessons) >= MOST_LESSONS:
                    raise Refused(
                        HTTPStatus.TOO_MANY_REQUESTS,
                        f"there are {MOST_LESSONS} lessons, which is the most; delete some",
                    )
                folder = self.folder / secrets.token_hex(8)
                sharing = self._agent.unshared.of(task) if extends else "shared"
                lesson = Lesson(folder, Record(task=task, extends=extends, sharing=sharing), self._changed)
                try:
                    make_folder(folder)
                    lesson.save()
                except BaseException:
                    shutil.rmtree(folder, ignore_errors=True)
                    raise
                self._lessons[lesson.id] = lesson
            else:
                lesson = found
        for name in classes:
            lesson.add_class(name)
        return lesson, found is None

    def delete(self, lesson: Lesson) -> None:
        with lesson.unused():  # nothing is saved, so that a full disk can be emptied
            if lesson.images.exists():
                shutil.rmtree(lesson.images)  # first: what an error or a kill leaves is still a lesson
            shutil.rmtree(lesson.folder, ignore_errors=True)
            lesson.deleted = True
            self._lessons.pop(lesson.id, None)
        self._changed(None)

    def start(self, lesson: Lesson, **options: Any) -> None:
        """Queue a lesson to be learned; refuse one that cannot be."""
        counts = lesson.counts()
        taught = [name for name, images in counts.items() if images]
        if len(taught) < (1 if lesson.record.extends else 2):
            raise DataError(
                f"the lesson {lesson.record.task!r} cannot be learned yet: {'; '.join(lesson.hints())}"
            )
        with lesson.changing() as record:
            if record.state == "done":
                raise conflict("this lesson was learned; begin another one to extend its task")
            if not record.extends:
                facts = {name: options[name] for name in ("licence", "note", "tags")}
                self._agent.refuse_to_learn(record.task, replace=options["replace"], **facts)
            else:  # an extended task stays with those who have it
                options["sharing"] = self._agent.unshared.of(record.task)
            for name, value in (options | {"tags": tuple(options["tags"])}).items():
                setattr(record, name, value)
            record.error, record.report = None, None
            record.state = "waiting"
            progress = lesson.progress = Progress(lambda: self._changed(lesson))
        self._jobs.put((lesson, progress))  # not before it is saved: without room, it is not started

    def report_of(self, module_id: str) -> dict[str, Any] | None:
        found = next((each for each in self.all() if each.record.task_id == module_id), None)
        return None if found is None or found.record.report is None else found.record.report.model_dump()

    def _read(self, path: Path) -> None:
        record = Record.model_validate_json(path.read_bytes())
        if record.state in BUSY:
            record.state, record.error = "interrupted", INTERRUPTED
        for archive in path.parent.glob(ARCHIVE):  # the node ended while it was read
            remove(archive)
        self._lessons[path.parent.name] = Lesson(path.parent, record, self._changed)

    # The thread that learns.

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            lesson, progress = job
            if lesson.takes_turn(progress):
                self._learn(lesson, progress)

    def _learn(self, lesson: Lesson, progress: Progress) -> None:
        record = lesson.record
        state: State = "failed"
        try:
            progress.advance(0)
            lesson.save()
            began = time.perf_counter()
            module, learned = self._taught(lesson, progress)
            record.report = _report(lesson, module, learned, time.perf_counter() - began)
            record.task_id, state = module.id, "done"
            self._agent.count_own_change()
        except Cancelled:
            state = "interrupted" if self._closing else "cancelled"
            record.error = INTERRUPTED if self._closing else None
        except SkillmeshError as error:
            record.error = str(error)
        except Exception as error:
            log.exception("the lesson %r could not be learned", record.task)
            record.error = f"unexpected {type(error).__name__}: {error}"
        try:
            lesson.end(state)
        except (OSError, AgentError) as error:
            log.warning("a lesson cannot be saved: %s", error)

    def _taught(self, lesson: Lesson, progress: Progress) -> tuple[Module, Learned]:
        agent, record = self._agent, lesson.record
        paths, labels = lesson.labelled()
        facts: dict[str, Any] = {
            "licence": record.licence,
            "note": record.note,
            "tags": record.tags,
            "progress": progress,
        }
        fewest = 1 if record.extends else 2
        with task_of(paths, labels, name=record.task, seed=agent.config.seed, fewest_classes=fewest) as task:
            if record.extends:
                return agent.continue_task(record.task, task, **facts)
            return agent.learn(task, replace=record.replace, sharing=record.sharing, **facts)


def _report(lesson: Lesson, module: Module, learned: Learned, seconds: float) -> Report:
    outcome = learned.outcome if learned.outcome is not None and len(learned.outcome) else None
    wrong = [] if outcome is None else outcome.wrong()[:WRONG_SHOWN]
    return Report(
        accuracy=None
        if outcome is None
        else module.card.validation_accuracy,  # of the older version: nothing was measured now
        classes=[] if outcome is None else outcome.class_facts(),
        matrix=[] if outcome is None else outcome.matrix().tolist(),
        wrong=[
            {
                "url": f"/api/v1/lessons/{lesson.id}/images/{Path(outcome.images[row].name).name}",
                "label": outcome.classes[int(outcome.labels[row])],
                "given": outcome.answer(row),
                "confidence": round(float(outcome.confidence[row]), 4),
            }
            for row in wrong
            if outcome is not None
        ],
        advice=learned.advice,
        findings=[*learned.notes, *(finding.text for finding in learned.all_findings)],
        seconds=round(seconds, 3),
        bytes=module.size,
    )
