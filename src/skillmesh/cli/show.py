"""Terminal output: sentences, tables, progress and sizes."""

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
    """A console that makes all output safe: plain text as one line, laid-out output segment by segment."""

    @property
    def file(self) -> IO[str]:
        """The stream behind the guard and behind the wrapper that rich adds while a progress bar is shown."""
        stream = super().file
        while (behind := getattr(stream, "rich_proxied_file", None)) is not None:
            stream = behind
        return stream

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(safe(each) if isinstance(each, str) else each for each in objects), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(_safe_cells(segment.text), segment.style)


def _safe_cells(text: str) -> str:
    """Return a laid-out piece of output made safe; its line ends and tabs belong to the layout and stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(part if part in "\n\t" else safe(part) for part in re.split(r"([\n\t])", text))


# Names of files, classes and teachers are shown as they are: "[b]" in a name is not markup.
# If the output is not a terminal, nothing is wrapped or cut.
console = Screen(markup=False, emoji=False, highlight=False, soft_wrap=not sys.stdout.isatty())
stderr = Screen(stderr=True, markup=False, emoji=False, highlight=False)

KEY_AT_END = re.compile(r"~[0-9a-f]{8}$")
COMMAND, GLUE = re.compile(r"`skillmesh [^`]*`"), "\x1f"
"""Commands that a text suggests, and the character that keeps them on one line, so that they can be copied."""
NARROWEST, NARROWEST_SENTENCE = 6, 24
"""Least width of a column of words and of a column of sentences."""


WORTH_A_LINE = 10
"""Least number of steps for which a log line announces the work; less work is soon done."""
SECONDS_BETWEEN_LINES = 10.0
COLUMNS = 80
"""Width at which plain sentences are wrapped."""


def print_json(value: Any) -> None:
    outlet.raw(json_text(value, indent=2) + "\n")


def json_text(value: Any, indent: int = 1) -> str:
    """Return JSON that can be written as UTF-8 and is harmless on a terminal; the data stays exact."""
    return safe_json(json.dumps(value, ensure_ascii=False, indent=indent))


def kilobytes(count: float) -> str:
    """Return a number of bytes as text in KB; 1 KB is 1,000 bytes, as in the docs."""
    return f"{count / 1000:,.1f} KB"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def beside(title: str, text: str) -> None:
    """Print a title with a text beside it, wrapped to 80 columns."""
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
    """Print an error message of one or more lines."""
    for part in lines:
        for line in _lines(with_home(part), stderr, 0):
            stderr.print(line, soft_wrap=True)


def say(text: str, indent: int = 0) -> None:
    """Print a sentence: wrapped at words on a terminal, as one line elsewhere."""
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
    """Add the `--home` that the user typed, if any, to every command that a text suggests."""
    words = sys.argv[1:]
    typed = [after for word, after in pairwise(words) if word == "--home"]
    typed += [word.removeprefix("--home=") for word in words if word.startswith("--home=")]
    return text.replace("`skillmesh ", f"`skillmesh --home {shlex.quote(typed[-1])} ") if typed else text


def shorten(text: str, width: int) -> str:
    """Return text shortened to `width` terminal cells; the middle goes, since file names differ at their ends."""
    text = safe(text)
    if cell_len(text) <= width:
        return text
    key = KEY_AT_END.search(text)
    tail = min(width - 1, max((width - 1) * 2 // 3, len(key[0]) if key else 0))  # the key must stay visible
    head = width - 1 - tail
    return _fitting(text, head) + "…" + _fitting(text[::-1], tail)[::-1]


def _fitting(text: str, width: int) -> str:
    """Return the longest beginning of a text that fits; many Asian letters are two cells wide."""
    while cell_len(text) > width:
        text = text[: min(len(text) - 1, width)]
    return text


def log_to_stderr(verbose: bool) -> None:
    """Log the node's actions to stderr, one line each."""
    import logging

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(outlet.LogFormatter())
    logging.basicConfig(handlers=[handler])
    logging.getLogger("skillmesh").setLevel(logging.DEBUG if verbose else logging.INFO)


def bold(text: str) -> Text:
    return Text(safe(text), style="bold")


class Table:
    """Rows in columns: aligned on a terminal, tab-separated elsewhere."""

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
                )  # a Text would replace tabs by spaces
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
        """Return a cell's lines, padded to the column's width; only sentences may take more than one line."""
        sentences = textwrap.wrap(cell.plain, width, break_on_hyphens=False) if column.startswith("+") else []
        shown = [Text(line, style=cell.style) for line in sentences or [shorten(cell.plain, width)]]
        gaps = [Text(" " * (width - line.cell_len)) for line in shown]
        right = column.startswith(">")
        return [gap + line if right else line + gap for line, gap in zip(shown, gaps, strict=True)]

    def _fitted(self, rows: list[list[Text]], total: int) -> list[int]:
        """Return the columns' widths; if they do not fit, narrow sentences first, then words, then numbers."""
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
    """Return the kind of a column: '>' for numbers, '+' for sentences, '' for words."""
    return column[:1] if column[:1] in (">", "+") else ""


def table(title: str | None, *columns: str) -> Table:
    """Return a table; columns named '>…' hold numbers and are right-aligned, columns named '+…' hold sentences."""
    return Table(title, columns)


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Run long work that the same command can resume; if the user interrupts it, say so."""
    try:
        yield
    except KeyboardInterrupt:
        warn(f"interrupted; finished work is kept in {out}; run the same command again to resume")
        raise


class Bar:
    """A progress bar that implements `skillmesh.numerics.process.Progress`."""

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
    """Progress for a log: one line when work starts, and one every few seconds until it ends."""

    def __init__(self) -> None:
        self._what, self._done, self._total = "", 0, 0
        self._started = self._last_line = 0.0

    def start(self, what: str, total: int) -> None:
        self._what, self._done, self._total = what, 0, total
        self._started = self._last_line = time.monotonic()
        if total >= WORTH_A_LINE:
            stderr.print(f"{what}: {total:,} to do", soft_wrap=True)

    def advance(self, steps: int) -> None:
        self._done += steps
        now = time.monotonic()
        if now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            words = f"{self._what}: {self._done:,} of {self._total:,}, {now - self._started:.0f} s"
            stderr.print(words, soft_wrap=True)


class Nothing:
    """A receiver of progress reports that shows nothing."""

    def start(self, what: str, total: int) -> None:
        """Do nothing."""

    def advance(self, steps: int) -> None:
        """Do nothing."""


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Bar | Lines | Nothing]:
    """Show progress on stderr, as a bar on a terminal and else as a few lines; stdout is only for results."""
    if quiet or not stderr.is_terminal:
        yield Nothing() if quiet else Lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    name = TextColumn("{task.description:<28}", markup=False)
    columns = (name, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    dumb = stderr.is_dumb_terminal  # such a terminal cannot erase a bar
    with Progress(*columns, console=stderr, transient=True, disable=dumb) as progress:
        yield Bar(progress)


def command_line() -> str:
    """Return the typed command, with absolute paths cut to their last part to keep a machine's folders private."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return " ".join(["skillmesh", *words])
