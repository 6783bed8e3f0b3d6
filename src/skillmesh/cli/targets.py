"""Files that a command writes when its work is done."""

from __future__ import annotations

import os
from pathlib import Path

from skillmesh.common.files import refuse_other_than_file
from skillmesh.errors import AgentError


def refuse_bad_target(target: Path | None) -> None:
    """Say before the work, not after, that a file cannot be written there."""
    if target is None:
        return
    if not target.parent.is_dir() or target.is_dir():
        raise AgentError(f"cannot write {target}: there is no folder {target.parent}, or {target} is one itself")
    refuse_other_than_file(target)
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise AgentError(f"cannot write {target}: no permission; name a file in a folder of yours")
