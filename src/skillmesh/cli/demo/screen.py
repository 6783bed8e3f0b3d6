"""The demo's display while it runs, and its results as tables and lines or as JSON."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from skillmesh.cli import outlet, show
from skillmesh.numerics.process import cores

if TYPE_CHECKING:
    from rich.live import Live

    from skillmesh.cli.demo.member import Member, News
    from skillmesh.cli.demo.story import Sheet, StoryOutcome

# The display while the demo runs: on a terminal a grid of agents and tasks that fills up, else lines.
#
# It goes to stderr, because stdout is only for the results.

WIDTH = 11
"""Width of an agent's column, enough for every possible text, so that the grid does not jump."""
LEARNED, RECEIVED, MISSING = Text("learned", "bold green"), Text("received", "cyan"), Text("·", "dim")


class DemoScreen:
    """Shows the agents' state, and events with the seconds since the demo began."""

    def __init__(self, tasks: Sequence[str], live: Live | None) -> None:
        self._tasks = tasks
        self._live = live
        self._began = time.monotonic()
        self._members: Sequence[Member] = ()

    def event(self, text: str) -> None:
        """Print an event with its time; the line stays on the screen."""
        show.stderr.print(f"{time.monotonic() - self._began:6.1f} s  {text}", soft_wrap=True)

    def news(self, members: Sequence[Member], news: News) -> None:
        """Update the grid; if there is none, print which tasks the agents have learned."""
        self._members = members
        self.status("")
        if self._live is None:
            for member, tasks in news.items():
                for task in filter(member.has_taught, tasks):
                    self.event(f"{member.name} has learned {task}")

    def status(self, text: str) -> None:
        """Show below the grid what is happening at the moment."""
        if self._live is not None:
            self._live.update(Group(grid(self._members, self._tasks), Text(text, "dim")), refresh=True)


@contextlib.contextmanager
def screen(tasks: Sequence[str]) -> Iterator[DemoScreen]:
    """Open the screen; when it closes, the grid disappears and the printed events stay."""
    if not show.stderr.is_terminal:
        yield DemoScreen(tasks, None)
        return
    from rich.live import Live

    with Live(console=show.stderr, auto_refresh=False, transient=True) as live:
        yield DemoScreen(tasks, live)


def grid(members: Sequence[Member], tasks: Sequence[str]) -> Table:
    """Return a table of which agent holds which task: a row per task, a column per agent."""
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


def print_outcome(outcome: StoryOutcome) -> None:
    """Print which agent holds which task, the accuracy per task and per agent, and the times."""
    show.console.print(grid(outcome.members, outcome.plan.learned))
    outlet.line()
    _print_tasks(outcome)
    outlet.line()
    _print_agents(outcome)
    outlet.line()
    _print_lines(outcome)


def as_dict(outcome: StoryOutcome) -> dict[str, Any]:
    """Return the outcome as a JSON-compatible dict."""
    plan = outcome.plan
    since_start, since_joined = outcome.late_seconds
    return {
        "drawing_seconds": round(outcome.drawing_seconds, 3),
        "together_seconds": round(outcome.together_seconds, 3),
        "alone_seconds": round(outcome.alone_seconds, 3),
        "speedup": round(outcome.alone_seconds / outcome.together_seconds, 3),
        "cores": cores(),
        "asking_seconds": round(outcome.asking_seconds, 3),
        "killed": {"agent": plan.victim, "seconds": round(outcome.killed_seconds, 3)},
        "late": {
            "agent": plan.latecomer,
            "seconds": round(since_start, 3),
            "seconds_on_the_mesh": round(since_joined, 3),
        },
        "same_answers": outcome.same_answers,
        "modules_as_learned_alone": outcome.same_modules,
        "agents": [_agent(outcome, name) for name in (*plan.teachers, plan.latecomer)],
        "tasks": [_task(outcome, task) for task in plan.learned],
        "hidden": [asdict(_first(outcome).scores[task]) for task in plan.hidden],
        "picture": str(outcome.picture),
    }


def _command() -> str:
    """Return how the user can call the command: by its name, or by the path that started this process."""
    return "skillmesh" if shutil.which("skillmesh") else sys.argv[0]


def _print_tasks(outcome: StoryOutcome) -> None:
    title = f"answers of {outcome.plan.teachers[0]} to each task's images, without a task label"
    columns = (
        "task",
        ">classes",
        "taught by",
        ">shared after",
        ">task found",
        ">final",
        ">not answered",
        ">module",
    )
    rows = show.table(title, *columns)
    for task in outcome.plan.learned:
        facts = _task(outcome, task)
        figures = [show.percent(facts[key]) for key in ("found", "right", "unanswered")]
        delay, size = f"{facts['seconds_to_all']:.1f} s", show.kilobytes(facts["module_bytes"])
        rows.add_row(task, str(facts["classes"]), facts["teacher"], delay, *figures, size)
    for task in outcome.plan.hidden:
        rows.add_row(task, "", "no agent", "", "", "", show.percent(_first(outcome).scores[task].unanswered), "")
    show.console.print(rows)


def _print_agents(outcome: StoryOutcome) -> None:
    title = "answers of every agent to all images, averaged over tasks"
    columns = (">task found", ">final", ">not answered", ">not answered, hidden tasks")
    rows = show.table(title, "agent", *columns, "hash of answers")
    for name, sheet in outcome.sheets.items():
        facts = _agent(outcome, name)
        figures = [show.percent(facts[key]) for key in ("found", "right", "unanswered", "hidden_unanswered")]
        rows.add_row(name, *figures, sheet.digest[:12])
    show.console.print(rows)


def _print_lines(outcome: StoryOutcome) -> None:
    plan = outcome.plan
    since_start, since_joined = outcome.late_seconds
    if outcome.same_answers:
        outlet.line(f"all agents gave the same {len(_first(outcome).answers):,} answers, bit by bit")
    else:
        show.warn("the agents did NOT give the same answers: their hashes differ")
    for line in (
        f"{plan.victim} was killed after {outcome.killed_seconds:.1f} s; all others know the tasks it had learned",
        f"{plan.latecomer} came late and knew all tasks {since_joined:.1f} s after it joined the mesh, "
        f"{since_start:.1f} s after its process started",
        *_wall_clock(outcome),
        f"{outcome.same_modules} of {len(plan.learned)} modules equal those of one agent alone, bit by bit",
        f"drew the images in {outcome.drawing_seconds:.0f} s, asked all agents in {outcome.asking_seconds:.0f} s",
        f"picture: {outcome.picture}",
        f"try it:  {_command()} ask IMAGE --home {outcome.members[-1].home}",
        f"or in a browser:  {_command()} page --home {outcome.members[-1].home}",
    ):
        outlet.line(line)


def _wall_clock(outcome: StoryOutcome) -> tuple[str, str]:
    """Return the measured times as a line, and a line on how to interpret them."""
    together, alone, share = outcome.together_seconds, outcome.alone_seconds, _largest_share(outcome)
    return (
        f"{len(outcome.plan.teachers)} agents learned and shared everything in {together:.1f} s, one alone in "
        f"{alone:.1f} s: {alone / together:.2f} × as fast",
        f"  on the same {cores()} cores, which one agent alone also keeps busy; the busiest of the "
        f"{len(outcome.plan.teachers)} learned {show.percent(share)} of the images",
    )


def _task(outcome: StoryOutcome, task: str) -> dict[str, Any]:
    """Return the first agent's figures for a task, its teacher, and the seconds until all agents had it."""
    teacher = next(member for member in outcome.members if member.has_taught(task))
    module = teacher.agent.bank.find(task)
    stayed = [m for m in outcome.members if not m.killed and m.name != outcome.plan.latecomer]
    return asdict(_first(outcome).scores[task]) | {
        "classes": len(module.card.classes),
        "teacher": teacher.name,
        "seconds_to_all": round(max(m.since[task] for m in stayed) - teacher.since[task], 3),
        "module_bytes": module.size,
    }


def _agent(outcome: StoryOutcome, name: str) -> dict[str, Any]:
    """Return what one agent learned, received, sent and fetched, and its accuracy if it was asked."""
    member = next(member for member in outcome.members if member.name == name)
    learned = sum(member.has_taught(task) for task in member.since)
    facts = {
        "agent": name,
        "learned": learned,
        "received": len(member.since) - learned,
        "bytes_sent": member.status["bytes_sent"],
        "bytes_fetched": member.status["bytes_fetched"],
    }
    sheet = outcome.sheets.get(name)
    if sheet is None:
        return facts
    figures = {key: sheet.mean(key, outcome.plan.learned) for key in ("found", "right", "unanswered")}
    hidden = sheet.mean("unanswered", outcome.plan.hidden)
    return facts | figures | {"hidden_unanswered": hidden, "answers_sha256": sheet.digest}


def _first(outcome: StoryOutcome) -> Sheet:
    return outcome.sheets[outcome.plan.teachers[0]]


def _largest_share(outcome: StoryOutcome) -> float:
    """Return the busiest agent's share of all training images, 0 to 1."""
    images = [
        sum(sum(m.card.counts) for m in member.agent.bank if m.card.teacher_key == member.key)
        for member in outcome.members
    ]
    return max(images) / sum(images)
