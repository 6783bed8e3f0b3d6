"""How things are shown in a terminal: tables, progress, sizes."""

from __future__ import annotations

import json
import sys
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


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def kilobytes(count: float) -> str:
    """KB means 1,000 bytes, here and in the docs."""
    return f"{count / 1000:,.1f} KB"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


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
    """A progress bar that keeps to `agent.Progress`."""

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


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Bar]:
    """Show progress on stderr, so that stdout stays clean for results; where nobody watches, show none."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    name = TextColumn("{task.description:<28}", markup=False)
    columns = (name, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True, disable=quiet or not stderr.is_terminal) as progress:
        yield Bar(progress)


def command_line() -> str:
    """The command as typed; of absolute paths the last part only: a result is no place for a machine's folders."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return " ".join(["skillmesh", *words])
