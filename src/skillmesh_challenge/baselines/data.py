"""A task's images as tensors: decoded once for every run on this machine."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import numpy as np
import torch

from skillmesh.backbone.network import cpu_workers
from skillmesh.data.folder import Split, TaskImages
from skillmesh.data.images import Pixels, UnreadableImageError
from skillmesh.data.inputs import AnyImage
from skillmesh.errors import DataError

TEST_BATCH = 128


@dataclass(frozen=True)
class BaselineExamples:
    """Images, or what a frozen network makes of them, and their classes."""

    x: torch.Tensor
    labels: torch.Tensor
    file_bytes: torch.Tensor | None = None
    """Of each image's file; None where they came from none."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: torch.Tensor) -> BaselineExamples:
        return self._each(lambda part: part[rows])

    def to(self, device: torch.device) -> BaselineExamples:
        return self._each(lambda part: part.to(device))

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> BaselineExamples:
        files = None if self.file_bytes is None else change(self.file_bytes)
        return BaselineExamples(change(self.x), change(self.labels), files)

    @property
    def stored_bytes(self) -> int:
        """What it takes to keep them: each as its file, or as it is here where that is smaller."""
        if self.file_bytes is None or not len(self):
            return self.x.nbytes
        return int(self.file_bytes.clamp(max=self.x[0].nbytes).sum())


class Batch(NamedTuple):
    """Images of one or several tasks."""

    x: torch.Tensor
    labels: torch.Tensor
    tasks: torch.Tensor
    """The position of each image's task."""
    rows: torch.Tensor | None = None
    """Where each lies among the examples, for what a method keeps beside them."""


@dataclass(frozen=True)
class BaselineTask:
    """A task as a learner sees it."""

    name: str
    classes: int
    train: BaselineExamples
    """What may be learned from: training and validation images."""
    test: BaselineExamples


def in_equal_batches(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """The last one is filled up with copies of an image."""
    for some in torch.split(x, TEST_BATCH):
        missing = TEST_BATCH - len(some)
        yield torch.cat([some, some[:1].expand(missing, *some.shape[1:])]) if missing else some


def decoded_task(folder: TaskImages, size: int, cache_folder: Path) -> BaselineTask:
    """Decode all images of a task to (n, size, size, 3); those that cannot be read are left out."""
    return seen_task(folder, partial(_decoded, folder.name, size=size, cache_folder=cache_folder))


def seen_task(folder: TaskImages, see: Callable[[Sequence[Split]], BaselineExamples]) -> BaselineTask:
    """Let `see` look at what is learned from, and at what is tested on."""
    learned_from = [folder.splits[name] for name in ("train", "val") if len(folder.splits.get(name, ()))]
    tested_on = [folder.splits[name] for name in ("test",) if len(folder.splits.get(name, ()))]
    if not learned_from or not tested_on:
        found = ", ".join(name for name, split in folder.splits.items() if len(split))
        raise DataError(f"the task {folder.name!r} has {found or 'no'} images; expected train and test")
    return BaselineTask(folder.name, len(folder.classes), see(learned_from), see(tested_on))


def _decoded(task: str, splits: Sequence[Split], size: int, cache_folder: Path) -> BaselineExamples:
    """Read pixels from the cache, where the same images were decoded before."""
    files = [file for split in splits for file in split.files]
    labels = np.concatenate([split.labels for split in splits])
    contents = [_content(file) for file in files]
    stored = cache_folder / "pixels" / _key(contents, size)
    if not stored.exists():
        _store(files, contents, size, stored)
    rows = np.load(stored / "readable.npy")
    if not len(rows):
        raise DataError(
            f"none of {len(files)} images of {task!r} can be read, {files[0].name} first; mend the task"
        )
    # Mapped, not read: runs side by side share its memory. Nothing is written to it.
    pixels = np.load(stored / "pixels.npy", mmap_mode="c")
    file_bytes = torch.tensor([len(contents[row]) for row in rows])
    return BaselineExamples(torch.from_numpy(pixels), torch.from_numpy(labels[rows]), file_bytes)


def _content(file: AnyImage) -> bytes:
    try:
        return file.content()
    except UnreadableImageError:
        return b""


def _key(contents: Sequence[bytes], size: int) -> str:
    digest = hashlib.sha256(f"{size}".encode())
    for content in contents:
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def _store(files: Sequence[AnyImage], contents: Sequence[bytes], size: int, stored: Path) -> None:
    """Decode into a folder beside it first: others that look for it find it whole or not at all."""

    def pixels(index: int) -> Pixels | None:
        try:
            return files[index].pixels(contents[index], size)
        except UnreadableImageError:
            return None

    with ThreadPoolExecutor(cpu_workers()) as pool:
        decoded = list(pool.map(pixels, range(len(files))))
    readable = np.array([index for index, one in enumerate(decoded) if one is not None], dtype=np.int64)
    kept = [one for one in decoded if one is not None]
    partial = stored.with_name(f"{stored.name}.{uuid4().hex}")
    partial.mkdir(parents=True)
    np.save(partial / "pixels.npy", np.stack(kept) if kept else np.empty((0, size, size, 3), np.uint8))
    np.save(partial / "readable.npy", readable)
    try:
        partial.rename(stored)
    except OSError:  # another run was faster
        shutil.rmtree(partial)
