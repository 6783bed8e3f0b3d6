"""The only way to the terminal. Whatever is written there has gone through `skillmesh.common.text.safe`.

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
import sys
from typing import Any, TextIO

from skillmesh.common.text import safe, safe_lines

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
