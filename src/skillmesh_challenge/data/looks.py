"""Open every image once: what its bytes and its pixels hash to, or why it cannot be read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from skillmesh.common.progress import Progress, begin
from skillmesh.data.folder import ImageFile, TaskImages
from skillmesh.data.images import UnreadableImageError, pixel_hash
from skillmesh.data.limits import CONTENTS

WINDOW = 256
"""Images under way at once: bounds memory."""


@dataclass(frozen=True, slots=True)
class Look:
    """One image, looked at."""

    task: int
    """Which of the tasks: names may be given twice."""
    split: str
    label: str
    file: str
    content: bytes = b""
    pixels: bytes = b""
    reason: str = ""
    """Why it cannot be read."""


def look_at(tasks: Sequence[TaskImages], progress: Progress | None = None) -> list[Look]:
    """Read and decode every image of every split, several at once."""
    images = [
        (index, split, task.classes[label], file)
        for index, task in enumerate(tasks)
        for split, part in task.splits.items()
        for file, label in zip(part.files, part.labels, strict=True)
    ]
    advance = begin(progress, "looking at images", len(images))
    looks: list[Look] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(images), WINDOW):
            window = images[start : start + WINDOW]
            looks += pool.map(lambda image: _look(*image), window)
            if advance is not None:
                advance(len(window))
    return looks


def _look(task: int, split: str, label: str, file: ImageFile) -> Look:
    try:
        with CONTENTS.taken(file.size()):
            content = file.content()
            pixels = pixel_hash(content)
            key = hashlib.blake2b(content, digest_size=16).digest()
            del content
    except UnreadableImageError as error:
        return Look(task, split, label, file.name, reason=str(error))
    return Look(task, split, label, file.name, key, pixels)
