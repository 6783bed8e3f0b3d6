"""How things are shown in a terminal: tables, progress, sizes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

# Names of files, classes and teachers are shown as they are: "[b]" in one is no markup.
console = Console(markup=False, emoji=False, highlight=False)
stderr = Console(stderr=True, markup=False, emoji=False, highlight=False)


WORTH_A_LINE = 10
"""Steps of work that a log is told of; fewer are over before anyone wonders."""
SECONDS_BETWEEN_LINES = 10.0
COLUMNS = 80
"""Width that plain sentences are wrapped to."""


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def kilobytes(count: float) -> str:
    """KB means 1,000 bytes, here and in the docs."""
    return f"{count / 1000:,.1f} KB"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def wrapped(title: str, text: str) -> str:
    """Lay out a line of a short report: a title, and text beside it that stays within 80 columns."""
    import textwrap

    first = f"  {title:<12}"
    return textwrap.fill(
        text, COLUMNS, initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False
    )


def warn(text: str) -> None:
    stderr.print(text, style="yellow", soft_wrap=True)


def log_to_stderr(verbose: bool) -> None:
    """Show what a node does, a line each."""
    import logging

    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("skillmesh").setLevel(logging.DEBUG if verbose else logging.INFO)


def bold(text: str) -> Text:
    return Text(text, style="bold")


def table(title: str | None, *columns: str) -> Table:
    """A plain table; columns whose name begins with '>' hold numbers and are set to the right."""
    made = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim"
    )
    for column in columns:
        made.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    return made


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Around long work that the same command goes on with: whoever interrupts it is told."""
    try:
        yield
    except KeyboardInterrupt:
        warn(f"interrupted; what was done is kept in {out}, the same command goes on")
        raise


class Bar:
    """A progress bar that keeps to `progress.Progress`."""

    def __init__(self, progress: RichProgress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def start(self, what: str, total: int) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(what, total=total)

    def advance(self, steps: int) -> None:
        if self._task is not None:
            self._progress.advance(self._task, steps)


class Lines:
    """Progress for a log: a line when work starts, and one every few seconds while it goes on."""

    def __init__(self) -> None:
        self._what, self._done, self._total = "", 0, 0
        self._started = self._told = 0.0

    def start(self, what: str, total: int) -> None:
        self._what, self._done, self._total = what, 0, total
        self._started = self._told = time.monotonic()
        if total >= WORTH_A_LINE:
            stderr.print(f"{what}: {total:,} to do", soft_wrap=True)

    def advance(self, steps: int) -> None:
        self._done += steps
        now = time.monotonic()
        if now - self._told >= SECONDS_BETWEEN_LINES:
            self._told = now
            words = f"{self._what}: {self._done:,} of {self._total:,}, {now - self._started:.0f} s"
            stderr.print(words, soft_wrap=True)


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Bar | Lines]:
    """Show progress on stderr, so that stdout stays clean for results: a bar on a terminal, else a few lines."""
    if not quiet and not stderr.is_terminal:
        yield Lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    name = TextColumn("{task.description:<28}", markup=False)
    columns = (name, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True, disable=quiet) as progress:
        yield Bar(progress)


def command_line() -> str:
    """The command as typed; of absolute paths the last part only: a result is no place for a machine's folders."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return " ".join(["skillmesh", *words])
