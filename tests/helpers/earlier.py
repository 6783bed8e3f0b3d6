"""Files of an earlier release: a home, a module and images, with the answers that the release gave."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from skillmesh.core import Core
from skillmesh.learning import head

RELEASE = Path(__file__).parents[1] / "fixtures" / "release-0.1"
ANSWERS = json.loads((RELEASE / "answers.json").read_text())
"""The answers of the release, by the name of the image."""
CALIBRATION = Path(find_spec("skillmesh").origin).parent / "backbone/calibrations/earlier/lite0-1.safetensors"
"""The calibration that the release shipped."""


def copy_home(folder: Path) -> Path:
    """Return a copy of the home, which other users cannot read."""
    home = shutil.copytree(RELEASE / "home", folder)
    for path in (home, *home.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return home


def files_in(home: Path) -> dict[str, bytes]:
    """Return the content of the files that no command changes by reading them."""
    return {
        path.relative_to(home).as_posix(): path.read_bytes()
        for path in home.rglob("*")
        if path.is_file() and path.name not in (".lock", "node.lock") and not path.name.startswith("ledger.sqlite")
    }


@contextmanager
def without_caution() -> Iterator[None]:
    """Let heads answer at the temperature that was fitted on validation images, as in that release."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head, "CAUTION", 1.0)
        yield


def answers_as_before(agent: Core, task: str | None = None) -> None:
    """Assert that an agent answers the images as the release did."""
    for name, before in ANSWERS.items():
        if task in (None, before["task"]):
            with without_caution():
                answer = agent.answer(RELEASE / "images" / name)
            given = answer.task, answer.label, answer.unknown
            assert given == (before["task"], before["label"], before["unknown"])
            # The release stated the confidence given that the task is known. On another machine, sums may differ
            # in their last digits.
            assert answer.confidence / answer.known == pytest.approx(before["confidence"], abs=1e-3)
            assert 0.5 < answer.known <= 1
