"""Images in the page: test images answered right and wrong, and images of the most confused pairs of tasks.

Images are read from the folders that the run used; an image that is gone is shown as missing.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from skillmesh.data.sources import Source
from skillmesh.errors import SkillmeshError
from skillmesh_challenge.entries import Confused, EntryTaskAnswers
from skillmesh_challenge.record import Record
from skillmesh_challenge.report.collect import Comparison, Group
from skillmesh_challenge.report.heat import confused_pairs, slug
from skillmesh_challenge.report.own_tasks import answer_in_words
from skillmesh_challenge.report.table import ReportTable, number, percent, rows, text

PAIRS = 12
SAMPLES = 3
"""Largest number of images shown for a pair."""
TASKS = 12
"""Largest number of tasks of a method whose test images are shown: those with the lowest accuracy."""
EACH = 6
"""Largest number of images shown for a task that were answered right, and that were answered wrong."""
SIDE = 84
"""Width and height of a thumbnail, in pixels."""


@dataclass(frozen=True)
class Thumbnail:
    """A test image, its right class and the answer to it."""

    label: str
    answer: str
    name: str
    source: str | None
    """Data URL of the image; None if the image no longer exists."""
    right: bool = False

    @property
    def words(self) -> str:
        return self.label if self.right else f"{self.label} → {self.answer}"


@dataclass(frozen=True)
class TaskSamples:
    """Some test images of one task."""

    task: str
    images: int
    right_images: int
    right: tuple[Thumbnail, ...]
    wrong: tuple[Thumbnail, ...]

    @property
    def missing(self) -> int:
        return sum(thumbnail.source is None for thumbnail in (*self.right, *self.wrong))

    @property
    def gone(self) -> bool:
        """Whether none of its images exists any more."""
        return self.missing == len(self.right) + len(self.wrong)


@dataclass(frozen=True)
class MethodSamples:
    """Test images of the tasks of one method, the lowest accuracy first."""

    label: str
    tasks: tuple[TaskSamples, ...]
    all_tasks: int
    """Number of tasks of the method; images of some may be left out."""


@dataclass(frozen=True)
class Pair:
    task: str
    taken_for: str
    share: float
    images: int
    thumbnails: tuple[Thumbnail, ...]


@dataclass(frozen=True)
class ConfusedTasks:
    """The most confused pairs of one method."""

    label: str
    pairs: tuple[Pair, ...]
    missing: int
    """Number of images that are no longer in their folder."""
    table: ReportTable


def confused_tasks(comparison: Comparison) -> list[ConfusedTasks]:
    return [_confused(group) for group in comparison.shown if group.first.confusions is not None]


def _confused(group: Group) -> ConfusedTasks:
    pairs = tuple(
        Pair(
            group.tasks[i], group.tasks[j], share, images, _thumbnails(group.first, group.tasks[i], group.tasks[j])
        )
        for i, j, share, images in confused_pairs(group, PAIRS)
    )
    cells = [[text(p.task), text(p.taken_for), percent(p.share), number(p.images)] for p in pairs]
    title = f"Tasks that {group.label} confuses most"
    columns = ("task", "taken for", "share of its images", "images")
    missing = sum(thumbnail.source is None for pair in pairs for thumbnail in pair.thumbnails)
    return ConfusedTasks(
        group.label, pairs, missing, ReportTable(f"confused-{slug(group.label)}", title, columns, rows(cells))
    )


def _thumbnails(record: Record, task: str, taken_for: str) -> tuple[Thumbnail, ...]:
    assert record.confusions is not None
    chosen = [s for s in record.confusions.samples if (s.task, s.taken_for) == (task, taken_for)]
    images = PicturesOfTask(record, task)
    return tuple(
        Thumbnail(s.label, s.answer, s.image, images.data_url(s.image)) for s in _varied(chosen)[:SAMPLES]
    )


def _varied(samples: Sequence[Confused]) -> list[Confused]:
    """Return the samples with one of each class first: ten of the same class show less."""
    seen: set[str] = set()
    first = [s for s in samples if not (s.label in seen or seen.add(s.label))]  # type: ignore[func-returns-value]
    return [*first, *(s for s in samples if s not in first)]


def sample_images(comparison: Comparison) -> list[MethodSamples]:
    """Return test images answered right and wrong, for each method whose run kept its answers."""
    return [_method_samples(group) for group in comparison.shown if group.first.answers is not None]


def _method_samples(group: Group) -> MethodSamples:
    assert group.first.answers is not None
    tasks = sorted(group.first.answers.tasks, key=_accuracy)
    return MethodSamples(group.label, tuple(_task_samples(group.first, t) for t in tasks[:TASKS]), len(tasks))


def _accuracy(task: EntryTaskAnswers) -> float:
    return sum(each.right for each in task.classes) / max(1, sum(each.images for each in task.classes))


def _task_samples(record: Record, task: EntryTaskAnswers) -> TaskSamples:
    images = PicturesOfTask(record, task.task)
    right = [
        (each.label, name) for name_at in (0, 1) for each in task.classes for name in each.samples[name_at:][:1]
    ]
    return TaskSamples(
        task.task,
        sum(each.images for each in task.classes),
        sum(each.right for each in task.classes),
        tuple(Thumbnail(label, label, name, images.data_url(name), right=True) for label, name in right[:EACH]),
        tuple(Thumbnail(*wrong, images.data_url(wrong[2])) for wrong in list(_wrong(task))[:EACH]),
    )


def _wrong(task: EntryTaskAnswers) -> Iterator[tuple[str, str, str]]:
    """Yield class, answer and image of the mistakes: one of each kind first, the most frequent kinds first."""
    mistakes = [(each.label, mistake) for each in task.classes for mistake in each.mistakes]
    mistakes.sort(key=lambda pair: -pair[1].images)
    for at in range(max((len(mistake.samples) for _, mistake in mistakes), default=0)):
        for label, mistake in mistakes:
            if at < len(mistake.samples):
                yield label, answer_in_words(task.task, mistake), mistake.samples[at]


class PicturesOfTask:
    """The images of a task in the folder that the run used, opened when the first image is requested."""

    def __init__(self, record: Record, task: str) -> None:
        self._path = next(facts.path for facts in record.settings.tasks if facts.name == task)
        self._source: Source | None = None

    def data_url(self, name: str) -> str | None:
        """Return an image as a small JPEG in a data URL; None if it has been moved, changed or damaged since."""
        from PIL import Image

        from skillmesh.data.images import decode
        from skillmesh.data.sources import open_source

        if not self._path:
            return None
        try:
            self._source = self._source or open_source(Path(self._path))
            pixels = decode(self._source.read(name), SIDE)
        except (OSError, KeyError, SkillmeshError):
            return None
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "JPEG", quality=80)
        return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()
