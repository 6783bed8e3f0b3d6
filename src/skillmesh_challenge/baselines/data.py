"""Images of a task as tensors. Decoded images are cached and shared by all runs on this machine."""

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
    """Images, or their features from a frozen network, with class labels."""

    x: torch.Tensor
    labels: torch.Tensor
    file_bytes: torch.Tensor | None = None
    """Size in bytes of each image's file; None if the examples do not come from files."""

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
        """Bytes needed to store the examples: each as its file or as its tensor, whichever is smaller."""
        if self.file_bytes is None or not len(self):
            return self.x.nbytes
        return int(self.file_bytes.clamp(max=self.x[0].nbytes).sum())


class Batch(NamedTuple):
    """Training images of one or several tasks."""

    x: torch.Tensor
    labels: torch.Tensor
    tasks: torch.Tensor
    """Position of each image's task in the sequence of tasks."""
    rows: torch.Tensor | None = None
    """Index of each image among the examples, to find values that a method stores per example."""


@dataclass(frozen=True)
class BaselineTask:
    """The data of one task that a learner receives."""

    name: str
    classes: int
    train: BaselineExamples
    """Training and validation images."""
    test: BaselineExamples


def equal_batches(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield batches of `TEST_BATCH` rows; the last one is padded with copies of its first row."""
    for batch in torch.split(x, TEST_BATCH):
        missing = TEST_BATCH - len(batch)
        yield torch.cat([batch, batch[:1].expand(missing, *batch.shape[1:])]) if missing else batch


def decoded_task(folder: TaskImages, size: int, cache_folder: Path) -> BaselineTask:
    """Return a task with all images decoded to (n, size, size, 3); unreadable images are left out."""
    return read_task(folder, partial(_decoded, folder.name, size=size, cache_folder=cache_folder))


def read_task(folder: TaskImages, read: Callable[[Sequence[Split]], BaselineExamples]) -> BaselineTask:
    """Apply `read` to the splits for learning (train, val) and to those for testing; both must have images."""
    learned_from = [folder.splits[name] for name in ("train", "val") if len(folder.splits.get(name, ()))]
    tested_on = [folder.splits[name] for name in ("test",) if len(folder.splits.get(name, ()))]
    if not learned_from or not tested_on:
        filled = ", ".join(name for name, split in folder.splits.items() if len(split))
        raise DataError(f"the task {folder.name!r} has {filled or 'no'} images; expected train and test")
    return BaselineTask(folder.name, len(folder.classes), read(learned_from), read(tested_on))


def _decoded(task: str, splits: Sequence[Split], size: int, cache_folder: Path) -> BaselineExamples:
    """Return decoded images, from the cache if the same images were decoded before."""
    files = [file for split in splits for file in split.files]
    labels = np.concatenate([split.labels for split in splits])
    contents = [_content(file) for file in files]
    stored = cache_folder / "pixels" / _key(contents, size)
    if not stored.exists():
        _store(files, contents, size, stored)
    rows = np.load(stored / "readable.npy")
    if not len(rows):
        raise DataError(
            f"none of {len(files)} images of {task!r} can be read (first: {files[0].name}); repair its files"
        )
    # The file is memory-mapped, so that parallel runs share its memory. Nothing is written to it.
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
    """Decode into a temporary folder and rename it, so that other runs never see an incomplete one."""

    def pixels(index: int) -> Pixels | None:
        try:
            return files[index].pixels(contents[index], size)
        except UnreadableImageError:
            return None

    with ThreadPoolExecutor(cpu_workers()) as pool:
        decoded = list(pool.map(pixels, range(len(files))))
    readable = np.array([index for index, image in enumerate(decoded) if image is not None], dtype=np.int64)
    kept = [image for image in decoded if image is not None]
    partial = stored.with_name(f"{stored.name}.{uuid4().hex}")
    partial.mkdir(parents=True)
    np.save(partial / "pixels.npy", np.stack(kept) if kept else np.empty((0, size, size, 3), np.uint8))
    np.save(partial / "readable.npy", readable)
    try:
        partial.rename(stored)
    except OSError:  # another run stored it first
        shutil.rmtree(partial)
