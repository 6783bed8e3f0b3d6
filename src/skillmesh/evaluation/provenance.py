"""The origin of a measured number, stored with every result so that anyone can reproduce it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from skillmesh.common.version import __version__
from skillmesh.data.folder import task_name
from skillmesh.data.formats import IMAGE_SUFFIXES
from skillmesh.data.sources import Source, open_source


def provenance(command: str, paths: Sequence[Path], seed: int) -> dict[str, Any]:
    return {
        "command": command,
        "version": __version__,
        "commit": _commit(),
        "seed": seed,
        "data_hash": data_hash(paths),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def data_hash(paths: Sequence[Path]) -> str:
    """Return a hash of the names and contents of all images of the tasks, in folders or zips."""
    digest = hashlib.sha256()
    for path in sorted(paths, key=task_name):
        source = open_source(path)
        digest.update(os.fsencode(task_name(path)))
        for name in source.names():
            if PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES:
                digest.update(os.fsencode(name))
                digest.update(hashlib.sha256(_content(source, name)).digest())
    return digest.hexdigest()


def _content(source: Source, name: str) -> bytes:
    try:
        return source.read(name)
    except OSError:  # reported as unreadable where it is used
        return b"unreadable"


def _commit() -> str | None:
    """Return the commit of the running source if it is a git checkout; a + marks uncommitted changes."""
    folder = Path(__file__).parents[2]  # both packages

    def git(*arguments: str) -> str:
        call = ["git", "-C", str(folder), *arguments]
        return subprocess.run(call, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
