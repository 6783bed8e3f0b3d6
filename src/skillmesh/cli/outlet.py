"""The only way to the terminal for all commands: every text passes through `skillmesh.common.text.safe`.

There are three layers, so that one forgotten place does no harm:

- commands print with `line` in this file and with `say`, `warn`, `complain`, `table` and `print_json` in `show`,
  which print each text as one line: a line break in a name cannot forge a line;
- `guard` wraps the process's stdout and stderr, for everything that other code prints (tracebacks, warnings,
  errors about options);
- `LogFormatter` makes log records safe.

A lint rule and tests/cli/test_outlet.py check that nothing else in the package writes to a terminal.
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
"""Prefix of each line of a traceback, so that none of them can pass for a line of the log."""


def line(text: str = "", err: bool = False) -> None:
    """Print text as exactly one line, even if it contains line breaks or control characters."""
    stream = sys.stderr if err else sys.stdout
    stream.write(safe(text) + "\n")
    stream.flush()


def raw(text: str) -> None:
    """Print text that is already safe, such as JSON and tab-separated cells."""
    stream: TextIO = sys.stdout
    while hasattr(stream, "rich_proxied_file"):  # a progress bar puts its own stream before `Guarded`
        stream = stream.rich_proxied_file
    stream.write(text)
    stream.flush()


class Guarded:
    """A text stream that neutralises all control characters except line ends.

    Rich has to send escape codes, so it finds the stream behind this one by the name `rich_proxied_file`;
    `show.Screen` neutralises the text that rich prints.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() needs a str, not {type(text).__name__}")
        self.rich_proxied_file.write(safe_lines(text.replace("\r\n", "\n").replace("\r", "\n")))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for text in lines:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def guard() -> None:
    """Wrap this process's stdout and stderr in a guard, and format log warnings with `LogFormatter`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, Guarded):
            setattr(sys, name, Guarded(stream))
    if logging.lastResort is not None:  # the handler for warnings where logging was not set up
        logging.lastResort.setFormatter(LogFormatter("%(message)s"))


class LogFormatter(logging.Formatter):
    """Formats each record as one line, and its traceback as prefixed lines below."""

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


# Facts about modules, merged tasks and lessons, as JSON-compatible dicts.

MOST_LINES = 6
"""Largest number of lines about a task's images that a command prints."""


def called(agent: Core, key: str) -> str:
    """Return the name under which an agent knows a key: one given by the user, else the name its owner claims."""
    claims = {notice.teacher_key: notice.teacher for notice in agent.ledger.view().heard}
    claims |= {module.card.teacher_key: module.card.teacher for module in agent.bank}
    return agent.teachers.called(key, claims.get(key))


def facts_of(module: Module, agent: Core, names: Lookalikes | None = None) -> dict[str, Any]:
    """Return a module's card as a dict, with the name under which this agent knows the teacher."""
    named = {"teacher": agent.teachers.name(module.card), "claimed_name": module.card.teacher}
    odd = {
        "task": (names or task_names(agent)).letters(module.card.task),
        "teacher": agent.teachers.odd_letters(module.card.teacher_key, module.card.teacher),
    }
    return module.card.model_dump() | named | {"id": module.id, "bytes": module.size, "odd_letters": odd}


def task_names(agent: Core, others: Iterable[str] = ()) -> Lookalikes:
    """Return a detector of look-alike task names among the bank's tasks and `others`."""
    in_bank = (module.card.task for module in (*agent.bank, *agent.merged()))
    return Lookalikes((*in_bank, *others))


def merged_facts(merged: MergedTask, agent: Core) -> dict[str, Any]:
    """Return a merged task's facts as a dict."""
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
    """Return the facts about learning that are not in the card."""
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
    """Print in a few lines what the checks found about the images."""
    lines = [f"check: {finding.text}" for finding in lesson.all_findings]
    warn_of_findings([*lines, *(f"note: {text}" for text in lesson.notes)])


def warn_of_findings(lines: Sequence[str]) -> None:
    """Print the first few lines and the number of further ones."""
    from skillmesh.cli import show

    for line in lines[:MOST_LINES]:
        show.warn(line)
    if len(lines) > MOST_LINES:
        show.warn(f"and {len(lines) - MOST_LINES:,} more such lines; use --json to see all")


# Checks on files that a command writes at the end of its work.


def refuse_bad_target(target: Path | None) -> None:
    """Raise AgentError if a file cannot be written to `target`; called before the work, not after it."""
    if target is None:
        return
    if not target.parent.is_dir() or target.is_dir():
        raise AgentError(f"cannot write {target}: no folder {target.parent}, or {target} is a folder itself")
    refuse_other_than_file(target)
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise AgentError(f"cannot write {target}: no permission; choose a file in a folder you can write to")
