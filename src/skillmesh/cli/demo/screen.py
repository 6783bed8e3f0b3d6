"""What one sees while the demo runs: on a terminal a grid of agents and tasks that fills up, else lines.

It goes to stderr, so that stdout stays clean for the results.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from skillmesh.cli import show

if TYPE_CHECKING:
    from rich.live import Live

    from skillmesh.cli.demo.crew import News
    from skillmesh.cli.demo.member import Member

WIDTH = 11
"""Of an agent's column: enough for all that may come, so that the grid does not jump."""
LEARNED, RECEIVED, MISSING = Text("learned", "bold green"), Text("received", "cyan"), Text("·", "dim")


class DemoScreen:
    """Shows agents, and tells what happens with the seconds since the demo began."""

    def __init__(self, tasks: Sequence[str], live: Live | None) -> None:
        self._tasks = tasks
        self._live = live
        self._began = time.monotonic()
        self._members: Sequence[Member] = ()

    def tell(self, text: str) -> None:
        """Say something that stays to be read."""
        show.stderr.print(f"{time.monotonic() - self._began:6.1f} s  {text}", soft_wrap=True)

    def news(self, members: Sequence[Member], news: News) -> None:
        """Show how the agents stand; where nobody sees the grid, say what they have learned."""
        self._members = members
        self.status("")
        if self._live is None:
            for member, tasks in news.items():
                for task in filter(member.has_taught, tasks):
                    self.tell(f"{member.name} has learned {task}")

    def status(self, text: str) -> None:
        """Say below the grid what goes on at the moment."""
        if self._live is not None:
            self._live.update(Group(grid(self._members, self._tasks), Text(text, "dim")), refresh=True)


@contextlib.contextmanager
def screen(tasks: Sequence[str]) -> Iterator[DemoScreen]:
    """Open the screen; when it closes, the grid goes and what was told stays."""
    if not show.stderr.is_terminal:
        yield DemoScreen(tasks, None)
        return
    from rich.live import Live

    with Live(console=show.stderr, auto_refresh=False, transient=True) as live:
        yield DemoScreen(tasks, live)


def grid(members: Sequence[Member], tasks: Sequence[str]) -> Table:
    """Who holds what: a row per task, a column per agent."""
    rows = Table(box=None, pad_edge=False, header_style="dim")
    rows.add_column("")
    for member in members:
        rows.add_column(member.name, min_width=WIDTH)
    for task in tasks:
        rows.add_row(task, *(_cell(member, task) for member in members))
    rows.add_section()
    rows.add_row(Text("state", "dim"), *(_state(member) for member in members))
    rows.add_row(Text("peers", "dim"), *(_figure(member, "peers") for member in members))
    rows.add_row(Text("sent", "dim"), *(_size(member, "bytes_sent") for member in members))
    rows.add_row(Text("fetched", "dim"), *(_size(member, "bytes_fetched") for member in members))
    return rows


def _cell(member: Member, task: str) -> Text:
    if task not in member.since:
        return MISSING
    return LEARNED if member.has_taught(task) else RECEIVED


def _state(member: Member) -> Text:
    if member.killed:
        return Text("killed", "bold red")
    return Text("" if member.joined is None else "here")


def _figure(member: Member, name: str) -> str:
    return str(member.status.get(name, "")) if not member.killed else ""


def _size(member: Member, name: str) -> str:
    return show.kilobytes(member.status[name]) if name in member.status else ""
