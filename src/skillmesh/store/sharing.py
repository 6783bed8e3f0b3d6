"""Which of an agent's own tasks are not announced to other agents: a small file for each in the agent's home.

The files are apart from the ledger. A ledger that is lost or restored from an older copy must not make a private
task public, and neither must a new version of the task: the choice is kept by its name, not by its module.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import get_args

from skillmesh.common.choices import Sharing
from skillmesh.common.files import PRIVATE, make_folder, remove, write_whole
from skillmesh.errors import AgentError

FOLDER = "unshared"


class Unshared:
    """The own tasks that stay in this home, as files named by a hash of the task's name."""

    def __init__(self, home: Path) -> None:
        self._folder = home / FOLDER

    def of(self, task: str) -> Sharing:
        """Return what was chosen for a task: "shared" if nothing was."""
        try:
            text = self._path(task).read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return "shared"
        except OSError:
            return "never"  # a file that cannot be read, or is damaged, must not make anything public
        return "later" if text == "later" else "never"

    def choices(self) -> dict[str, int]:
        """Return when each choice was made, by the name of its file: equal as long as no choice has changed."""
        try:
            with os.scandir(self._folder) as files:
                return {file.name: file.stat().st_mtime_ns for file in files}
        except OSError:  # none was ever made, or a file was removed at this moment
            return {}

    def choose(self, task: str, sharing: Sharing) -> None:
        if sharing not in get_args(Sharing):
            raise AgentError(f"sharing: found {sharing!r}; expected one of {', '.join(get_args(Sharing))}")
        if sharing == "shared":
            remove(self._path(task))
        else:
            make_folder(self._folder)
            write_whole(self._path(task), sharing.encode(), mode=PRIVATE)

    def _path(self, task: str) -> Path:
        return self._folder / hashlib.sha256(task.encode("utf-8", "surrogatepass")).hexdigest()[:32]
