"""What commands say, and the only way to the terminal: all has gone through `skillmesh.common.text.safe`.

Three layers, so that a forgotten place does no harm:

- commands print by `line` here and by `say`, `warn`, `complain`, `table` and `print_json` in `show`, which take
  text as one line each: a line break in a name forges no line;
- `guard` stands before the process's own stdout and stderr, for all that others print (tracebacks, warnings,
  complaints about options);
- log records are made safe by `LogFormatter`.

A lint rule and tests/cli/test_outlet.py keep it so: nothing else in the package writes to a terminal.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from skillmesh.common.files import refuse_other_than_file
from skillmesh.common.text import Lookalikes, safe, safe_lines
from skillmesh.errors import AgentError

if TYPE_CHECKING:
    from skillmesh.core import Core
    from skillmesh.learning.lesson import Lesson
    from skillmesh.module import Module
    from skillmesh.module.notice import MergedTask

TRACE = "    | "
"""Stands before each line of a traceback: none of them can pass for a line of the log."""


def line(text: str = "", err: bool = False) -> None:
    """Print one line, whatever the text holds."""
    stream = sys.stderr if err else sys.stdout
    stream.write(safe(text) + "\n")
    stream.flush()


def raw(text: str) -> None:
    """Print text that is safe already, as JSON and tab-separated cells are."""
    stream = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    stream.write(text)
    stream.flush()


class Guarded:
    """A text stream that neutralises everything but ends of lines.

    Rich, which has to send escapes of its own, finds the stream behind it by the name `rich_proxied_file`; what it
    is given to print is neutralised by `show.Screen`.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() needs text, not {type(text).__name__}")
        self.rich_proxied_file.write(safe_lines(text.replace("\r\n", "\n").replace("\r", "\n")))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for text in lines:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def guard() -> None:
    """Put a guard before stdout and stderr of this process, and have its warnings formatted by us."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, Guarded):
            setattr(sys, name, Guarded(stream))
    if logging.lastResort is not None:  # what shows warnings where no log was asked for
        logging.lastResort.setFormatter(LogFormatter("%(message)s"))


class LogFormatter(logging.Formatter):
    """One line for each record, and a traceback set off from it."""

    def __init__(self, form: str = "%(asctime)s %(message)s") -> None:
        super().__init__(form, datefmt="%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return safe(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return _set_off(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _set_off(stack_info)


def _set_off(trace: str) -> str:
    return "\n".join(TRACE + each for each in safe_lines(trace).split("\n"))


# What commands say of modules, merged tasks and lessons, as JSON would have it.

MOST_LINES = 6
"""Number of lines about a task's images that a command prints."""


def called(agent: Core, key: str) -> str:
    """Return how an agent calls a key; where no name was given, what it was heard to call itself counts."""
    claims = {notice.teacher_key: notice.teacher for notice in agent.ledger.view().heard}
    claims |= {module.card.teacher_key: module.card.teacher for module in agent.bank}
    return agent.teachers.called(key, claims.get(key))


def facts_of(module: Module, agent: Core, names: Lookalikes | None = None) -> dict[str, Any]:
    """Return what a module's card says, under the teacher's name as this agent has it."""
    named = {"teacher": agent.teachers.name(module.card), "claimed_name": module.card.teacher}
    odd = {
        "task": (names or task_names(agent)).letters(module.card.task),
        "teacher": agent.teachers.odd_letters(module.card.teacher_key, module.card.teacher),
    }
    return module.card.model_dump() | named | {"id": module.id, "bytes": module.size, "odd_letters": odd}


def task_names(agent: Core, others: Iterable[str] = ()) -> Lookalikes:
    """Return what tells which tasks look like others by their names, those here and `others`."""
    here = (module.card.task for module in (*agent.bank, *agent.merged()))
    return Lookalikes((*here, *others))


def merged_facts(merged: MergedTask, agent: Core) -> dict[str, Any]:
    """Return what there is to say of a merged task."""
    card, teachers = merged.card, agent.teachers
    return {
        "task": card.task,
        "classes": list(card.classes),
        "counts": list(card.counts),
        "teachers": sorted({teachers.name(part.card) for part in merged.parts}),
        "parts": {f"{p.card.task}@{teachers.name(p.card)}": p.id for p in merged.parts},
        "linked_by": teachers.name(merged.link),
        "link_version": merged.link.version,
        "bytes": merged.size,
        "odd_letters": {"task": task_names(agent).letters(card.task)},
    }


def lesson_facts(lesson: Lesson, seconds: float) -> dict[str, Any]:
    """What there is to say of learning, beside what the card says."""
    confusions = [] if lesson.outcome is None else lesson.outcome.confusions()
    return {
        "seconds": round(seconds, 3),
        "macs": lesson.costs.spent,
        "notes": list(lesson.notes),
        "unreadable": [{"file": bad.name, "reason": bad.reason} for bad in lesson.unreadable],
        "checks": [finding.as_dict() for finding in lesson.all_findings],
        "training_accuracy": lesson.training_accuracy,
        "confusions": [{"class": c.label, "given": c.given, "images": c.images, "of": c.of} for c in confusions],
        "advice": lesson.advice,
    }


def warn_of(lesson: Lesson) -> None:
    """Say in a few lines what was noticed about the images."""
    lines = [f"check: {finding.text}" for finding in lesson.all_findings]
    warn_of_findings([*lines, *(f"note: {text}" for text in lesson.notes)])


def warn_of_findings(lines: Sequence[str]) -> None:
    """Print the first few lines and say how many more there are."""
    from skillmesh.cli import show

    for line in lines[:MOST_LINES]:
        show.warn(line)
    if len(lines) > MOST_LINES:
        show.warn(f"and {len(lines) - MOST_LINES:,} more such lines; --json has all")


# Files that a command writes when its work is done.


def refuse_bad_target(target: Path | None) -> None:
    """Say before the work, not after, that a file cannot be written there."""
    if target is None:
        return
    if not target.parent.is_dir() or target.is_dir():
        raise AgentError(f"cannot write {target}: there is no folder {target.parent}, or {target} is one itself")
    refuse_other_than_file(target)
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise AgentError(f"cannot write {target}: no permission; name a file in a folder of yours")
