"""How things are shown in a terminal: tables, progress, sizes."""

from __future__ import annotations

import json
import re
import shlex
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from skillmesh.cli import outlet
from skillmesh.common.text import safe, safe_json

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class Screen(Console):
    """A console that makes everything safe: text as one line, and what is laid out segment by segment."""

    @property
    def file(self) -> IO[str]:
        """The stream behind the guard, and behind what rich puts before it while a bar is shown."""
        found = super().file
        while (behind := getattr(found, "rich_proxied_file", None)) is not None:
            found = behind
        return found

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(safe(each) if isinstance(each, str) else each for each in objects), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(_safe_cells(segment.text), segment.style)


def _safe_cells(text: str) -> str:
    """Return a laid-out piece of output, in which line ends and tabs are the layout's."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(part if part in "\n\t" else safe(part) for part in re.split(r"([\n\t])", text))


# Names of files, classes and teachers are shown as they are: "[b]" in one is no markup.
# Where a program reads, nothing is wrapped or cut.
console = Screen(markup=False, emoji=False, highlight=False, soft_wrap=not sys.stdout.isatty())
stderr = Screen(stderr=True, markup=False, emoji=False, highlight=False)

KEY_AT_END = re.compile(r"~[0-9a-f]{8}$")
COMMAND, GLUE = re.compile(r"`skillmesh [^`]*`"), "\x1f"
"""A command that a text suggests is not broken over lines, so that it can be copied whole."""
NARROWEST, NARROWEST_SENTENCE = 6, 24
"""A column of words, or of sentences, is not made narrower than this."""


WORTH_A_LINE = 10
"""Steps of work that a log is told of; fewer are over before anyone wonders."""
SECONDS_BETWEEN_LINES = 10.0
COLUMNS = 80
"""Width that plain sentences are wrapped to."""


def print_json(value: Any) -> None:
    outlet.raw(json_text(value, indent=2) + "\n")


def json_text(value: Any, indent: int = 1) -> str:
    """Return JSON that can be written as UTF-8 and does nothing to a terminal; its data is exact."""
    return safe_json(json.dumps(value, ensure_ascii=False, indent=indent))


def kilobytes(count: float) -> str:
    """KB means 1,000 bytes, here and in the docs."""
    return f"{count / 1000:,.1f} KB"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def beside(title: str, text: str) -> None:
    """Print a line of a short report: a title, and text beside it that stays within 80 columns."""
    first = f"  {title:<12}"
    margin = " " * len(first)
    for each in textwrap.wrap(
        safe(with_home(text)), COLUMNS, initial_indent=first, subsequent_indent=margin, break_on_hyphens=False
    ):
        outlet.line(each)


def warn(text: str) -> None:
    for line in _lines(with_home(text), stderr, 0):
        stderr.print(line, style="yellow", soft_wrap=True)


def complain(*lines: str) -> None:
    """Print an error, each of its lines as one."""
    for part in lines:
        for line in _lines(with_home(part), stderr, 0):
            stderr.print(line, soft_wrap=True)


def say(text: str, indent: int = 0) -> None:
    """Print a sentence: whole words on a terminal's lines, one line where a program reads."""
    for line in _lines(with_home(text), console, indent):
        console.out(line, highlight=False)


def _lines(text: str, target: Console, indent: int) -> list[str]:
    text = safe(text)
    if not target.is_terminal:
        return [" " * indent + text]
    margin = " " * indent
    whole = COMMAND.sub(lambda command: command[0].replace(" ", GLUE), text)
    lines = textwrap.wrap(
        whole,
        target.width,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(GLUE, " ") for line in lines]


def with_home(text: str) -> str:
    """Repeat `--home` in every command that a text suggests, where the user has typed it."""
    words = sys.argv[1:]
    typed = [after for word, after in pairwise(words) if word == "--home"]
    typed += [word.removeprefix("--home=") for word in words if word.startswith("--home=")]
    return text.replace("`skillmesh ", f"`skillmesh --home {shlex.quote(typed[-1])} ") if typed else text


def shorten(text: str, width: int) -> str:
    """Leave out the middle of what does not fit, by the terminal's cells: file names differ at their ends."""
    text = safe(text)
    if cell_len(text) <= width:
        return text
    key = KEY_AT_END.search(text)
    tail = min(width - 1, max((width - 1) * 2 // 3, len(key[0]) if key else 0))  # whose it is must stay
    head = width - 1 - tail
    return _fitting(text, head) + "…" + _fitting(text[::-1], tail)[::-1]


def _fitting(text: str, width: int) -> str:
    """Return as much of a text's beginning as fits; many Asian letters are two cells wide."""
    while cell_len(text) > width:
        text = text[: min(len(text) - 1, width)]
    return text


def log_to_stderr(verbose: bool) -> None:
    """Show what a node does, a line each."""
    import logging

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(outlet.LogFormatter())
    logging.basicConfig(handlers=[handler])
    logging.getLogger("skillmesh").setLevel(logging.DEBUG if verbose else logging.INFO)


def bold(text: str) -> Text:
    return Text(safe(text), style="bold")


class Table:
    """Rows in columns: one line each on a terminal, tab-separated where a program reads."""

    def __init__(self, title: str | None, columns: Sequence[str]) -> None:
        self._title, self._columns = title, columns
        self._rows: list[list[Text]] = []

    def add_row(self, *cells: str | Text | None) -> None:
        self._rows.append([cell if isinstance(cell, Text) else Text(safe(cell or "")) for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text | Segment]:
        """Lay the rows out for this console."""
        header = [Text(column.lstrip(">+"), style="dim") for column in self._columns]
        if self._title is not None:
            yield bold(self._title)
        if not console.is_terminal:
            for row in [header, *self._rows]:
                yield Segment(
                    "\t".join(safe(cell.plain) for cell in row) + "\n"
                )  # a text would have spaces for tabs
            return
        widths = self._fitted([header, *self._rows], options.max_width)
        for row in [header, *self._rows]:
            cells = [self._lines(*each) for each in zip(row, widths, self._columns, strict=True)]
            for parts in zip_longest(*cells):
                filled = [part or Text(" " * width) for part, width in zip(parts, widths, strict=True)]
                line = Text("  ").join(filled)
                line.rstrip()
                yield line

    def _lines(self, cell: Text, width: int, column: str) -> list[Text]:
        """Fill a cell's width; only sentences may take more than one line."""
        sentences = textwrap.wrap(cell.plain, width, break_on_hyphens=False) if column.startswith("+") else []
        shown = [Text(line, style=cell.style) for line in sentences or [shorten(cell.plain, width)]]
        gaps = [Text(" " * (width - line.cell_len)) for line in shown]
        right = column.startswith(">")
        return [gap + line if right else line + gap for line, gap in zip(shown, gaps, strict=True)]

    def _fitted(self, rows: list[list[Text]], total: int) -> list[int]:
        """Return the columns' widths: where they do not fit, sentences give way, then the widest words."""
        widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
        for kind, least in (("+", NARROWEST_SENTENCE), ("", NARROWEST), (">", NARROWEST)):
            flexible = [n for n, column in enumerate(self._columns) if _kind(column) == kind]
            while flexible and sum(widths) + 2 * (len(widths) - 1) > total:
                widest = max(flexible, key=lambda n: widths[n])
                if widths[widest] <= least:
                    break
                widths[widest] -= 1
        return widths


def _kind(column: str) -> str:
    """Return what a column holds: '>' numbers, '+' sentences, nothing for words."""
    return column[:1] if column[:1] in (">", "+") else ""


def table(title: str | None, *columns: str) -> Table:
    """Make a table: columns named '>…' hold numbers and are set to the right, columns named '+…' sentences."""
    return Table(title, columns)


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
        self._task = self._progress.add_task(safe(what), total=total)

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
    dumb = stderr.is_dumb_terminal  # where nothing can be wiped out again
    with Progress(*columns, console=stderr, transient=True, disable=quiet or dumb) as progress:
        yield Bar(progress)


def command_line() -> str:
    """The command as typed; of absolute paths the last part only: a result is no place for a machine's folders."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return " ".join(["skillmesh", *words])
