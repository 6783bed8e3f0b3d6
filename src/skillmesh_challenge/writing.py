"""Write a run's record. Every file is written beside its place and renamed: a kill leaves it whole or absent."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skillmesh.common.files import write_whole
from skillmesh.errors import RunError
from skillmesh_challenge.entries import Circumstances, Learned, RunSettings, Step
from skillmesh_challenge.record import stem

FIGURES = ("given", "found", "final", "strict", "unknown")
"""What is measured of a task at a step."""


def refuse_file(folder: Path) -> None:
    """Say so before anything is made, where a folder is wanted and a file lies in its place or on the way."""
    there = next(path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())
    if not there.is_dir():
        raise RunError(
            f"{there} is a file or a link to nothing, expected a folder or nothing; name another with --out"
        )


def write_settings(folder: Path, settings: RunSettings, circumstances: Circumstances) -> None:
    write_json(folder / "run.json", {"settings": asdict(settings), "circumstances": asdict(circumstances)})


def write_learned(folder: Path, learned: Learned) -> None:
    write_json(folder / "learned" / f"{stem(learned.position, learned.task)}.json", asdict(learned))


def write_step(folder: Path, step: Step) -> None:
    write_json(folder / "steps" / f"{step.known:04d}.json", asdict(step))


def write_steps_table(folder: Path, steps: Iterable[Step]) -> None:
    """All steps as one CSV."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(["known", "task", "images", *FIGURES])
    for step in steps:
        for task in step.tasks:
            table.writerow([step.known, task.task, task.images, *(getattr(task, name) for name in FIGURES)])
    write_bytes(folder / "steps.csv", text.getvalue().encode())


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a part of a run; a power cut may cost it, and then it is made again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data, sync=False)
