"""The most confused pairs of tasks, with images of it where the data is still there."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skillmesh.challenge.record import Confused, Record
from skillmesh.challenge.report.collect import Comparison, Group
from skillmesh.challenge.report.heat import confused_pairs, slug
from skillmesh.challenge.report.table import Table, number, percent, rows, text
from skillmesh.errors import SkillmeshError

PAIRS = 12
SAMPLES = 3
"""Images shown of a pair, at most."""
SIDE = 84
"""Pixels of a thumbnail."""


@dataclass(frozen=True)
class Thumbnail:
    """An image that was taken for another task's."""

    label: str
    answer: str
    name: str
    source: str | None
    """A data URL; None where the image is not there any more."""


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
    """Images that are no longer where they lay."""
    table: Table


def confused_tasks(comparison: Comparison) -> list[ConfusedTasks]:
    return [_of(group) for group in comparison.shown if group.first.confusions is not None]


def _of(group: Group) -> ConfusedTasks:
    pairs = tuple(
        Pair(
            group.tasks[i], group.tasks[j], share, images, _thumbnails(group.first, group.tasks[i], group.tasks[j])
        )
        for i, j, share, images in confused_pairs(group, PAIRS)
    )
    made = [[text(p.task), text(p.taken_for), percent(p.share), number(p.images)] for p in pairs]
    title = f"Tasks that {group.label} confuses most"
    columns = ("task", "taken for", "share of its images", "images")
    missing = sum(thumbnail.source is None for pair in pairs for thumbnail in pair.thumbnails)
    return ConfusedTasks(
        group.label, pairs, missing, Table(f"confused-{slug(group.label)}", title, columns, rows(made))
    )


def _thumbnails(record: Record, task: str, taken_for: str) -> tuple[Thumbnail, ...]:
    assert record.confusions is not None
    chosen = [s for s in record.confusions.samples if (s.task, s.taken_for) == (task, taken_for)]
    path = next(Path(facts.path) for facts in record.settings.tasks if facts.name == task)
    return tuple(_thumbnail(path, sample) for sample in _varied(chosen)[:SAMPLES])


def _varied(samples: Sequence[Confused]) -> list[Confused]:
    """One of each class first: ten of the same show less."""
    seen: set[str] = set()
    first = [s for s in samples if not (s.label in seen or seen.add(s.label))]  # type: ignore[func-returns-value]
    return [*first, *(s for s in samples if s not in first)]


def _thumbnail(path: Path, sample: Confused) -> Thumbnail:
    try:
        source = _shrunk(path, sample.image)
    except (OSError, KeyError, SkillmeshError):  # moved, changed or broken since: the page says so
        source = None
    return Thumbnail(sample.label, sample.answer, sample.image, source)


def _shrunk(path: Path, name: str) -> str:
    from PIL import Image

    from skillmesh.data.images import decode
    from skillmesh.data.sources import open_source

    pixels = decode(open_source(path).read(name), SIDE)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()
