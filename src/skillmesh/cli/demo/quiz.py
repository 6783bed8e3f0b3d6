"""Asking the agents about every test image, and marking what they say."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from skillmesh.answering.answer import Answer
from skillmesh.errors import AgentError
from skillmesh.mesh.calling import call

CHUNK = 100
"""Images per request: a few seconds of work."""


@dataclass(frozen=True)
class Score:
    """How an agent did on the test images of one task, with nobody telling it the task."""

    task: str
    images: int
    found: float
    """Right task."""
    right: float
    """Right task and right class, an answer forced."""
    unknown: float
    """Answered "unknown"."""


@dataclass(frozen=True)
class Sheet:
    """One agent's answers to all questions."""

    answers: dict[Path, Answer]
    scores: dict[str, Score]
    """By task."""
    digest: str
    """A hash of every answer with all its figures: equal for agents that answer the same, bit by bit."""

    def mean(self, figure: str, tasks: Iterable[str]) -> float:
        """The average over tasks."""
        return fmean(getattr(self.scores[task], figure) for task in tasks)


def questions(folders: Iterable[Path]) -> list[Path]:
    """Every test image; its path tells task and class, which the agents are not asked to believe."""
    return [path for folder in folders for path in sorted(folder.glob("test/*/*"))]


def ask(home: Path, images: Sequence[Path], progress: Callable[[int], None]) -> Sheet:
    """Ask the node on this home; how many images are done is told meanwhile."""
    said: list[dict[str, Any]] = []
    for start in range(0, len(images), CHUNK):
        progress(start)
        names = [str(path.resolve()) for path in images[start : start + CHUNK]]
        reply = call(home, "ask", timeout=None, images=names)
        if bad := [answer for answer in reply["answers"] if "error" in answer]:
            raise AgentError(f"{home.name} cannot read {bad[0]}; remove the images and draw anew")
        said += reply["answers"]
    answers = dict(zip(images, map(Answer.from_dict, said), strict=True))
    shared = [answer.shared() for answer in answers.values()]
    digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()
    return Sheet(answers, {score.task: score for score in _marked(answers)}, digest)


def truth(path: Path) -> tuple[str, str]:
    """An image's task and class."""
    return path.parents[2].name, path.parent.name


def _marked(answers: dict[Path, Answer]) -> list[Score]:
    by_task: dict[str, list[tuple[str, Answer]]] = {}
    for path, answer in answers.items():
        task, label = truth(path)
        by_task.setdefault(task, []).append((label, answer))
    return [
        Score(
            task,
            len(pairs),
            fmean(answer.best.task == task for _, answer in pairs),
            fmean((answer.best.task, answer.best.label) == (task, label) for label, answer in pairs),
            fmean(answer.unknown for _, answer in pairs),
        )
        for task, pairs in by_task.items()
    ]
