"""What came of the demo, as tables and lines, or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from skillmesh.cli import outlet, show
from skillmesh.cli.demo.screen import grid
from skillmesh.numerics.threads import cores

if TYPE_CHECKING:
    from skillmesh.cli.demo.quiz import Sheet
    from skillmesh.cli.demo.story import StoryOutcome


def print_outcome(outcome: StoryOutcome) -> None:
    """Show who holds what, how well every task is answered, how well every agent answers, and what it took."""
    show.console.print(grid(outcome.members, outcome.plan.learned))
    outlet.line()
    _print_tasks(outcome)
    outlet.line()
    _print_agents(outcome)
    outlet.line()
    _print_lines(outcome)


def as_dict(outcome: StoryOutcome) -> dict[str, Any]:
    """Return all of it as JSON would have it."""
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


def _print_tasks(outcome: StoryOutcome) -> None:
    title = f"what {outcome.plan.teachers[0]} says of each task's images, with nobody telling the task"
    columns = ("task", ">classes", "taught by", ">with all after", ">found", ">right", ">said unknown", ">module")
    rows = show.table(title, *columns)
    for task in outcome.plan.learned:
        facts = _task(outcome, task)
        figures = [show.percent(facts[key]) for key in ("found", "right", "unknown")]
        delay, size = f"{facts['seconds_to_all']:.1f} s", show.kilobytes(facts["module_bytes"])
        rows.add_row(task, str(facts["classes"]), facts["teacher"], delay, *figures, size)
    for task in outcome.plan.hidden:
        rows.add_row(task, "", "nobody", "", "", "", show.percent(_first(outcome).scores[task].unknown), "")
    show.console.print(rows)


def _print_agents(outcome: StoryOutcome) -> None:
    title = "every agent on all images, averages over tasks"
    rows = show.table(title, "agent", ">found", ">right", ">said unknown", ">hidden said unknown", "answers' hash")
    for name, sheet in outcome.sheets.items():
        facts = _agent(outcome, name)
        figures = [show.percent(facts[key]) for key in ("found", "right", "unknown", "hidden_unknown")]
        rows.add_row(name, *figures, sheet.digest[:12])
    show.console.print(rows)


def _print_lines(outcome: StoryOutcome) -> None:
    plan = outcome.plan
    since_start, since_joined = outcome.late_seconds
    if outcome.same_answers:
        outlet.line(f"all of them gave the same {len(_first(outcome).answers):,} answers, bit by bit")
    else:
        show.warn("they did NOT give the same answers: their hashes differ")
    for line in (
        f"{plan.victim} was killed after {outcome.killed_seconds:.1f} s; what it taught, all others know",
        f"{plan.latecomer} came late and knew everything {since_joined:.1f} s after it was on the mesh, "
        f"{since_start:.1f} s after its process was started",
        *_wall_clock(outcome),
        f"{outcome.same_modules} of {len(plan.learned)} modules are, bit by bit, what one agent alone learns",
        f"drew the images in {outcome.drawing_seconds:.0f} s, asked everyone in {outcome.asking_seconds:.0f} s",
        f"picture: {outcome.picture}",
        f"try it:  skillmesh ask IMAGE --home {outcome.members[-1].home}",
    ):
        outlet.line(line)


def _wall_clock(outcome: StoryOutcome) -> tuple[str, str]:
    """What was measured, and what one should know about it."""
    together, alone, share = outcome.together_seconds, outcome.alone_seconds, _largest_share(outcome)
    return (
        f"{len(outcome.plan.teachers)} agents learned and shared everything in {together:.1f} s, one alone in "
        f"{alone:.1f} s: {alone / together:.2f} × as fast",
        f"  on the same {cores()} cores, which one agent alone keeps busy too; the busiest of the "
        f"{len(outcome.plan.teachers)} learned {show.percent(share)} of the images",
    )


def _task(outcome: StoryOutcome, task: str) -> dict[str, Any]:
    """The first agent's figures of a task, and how the task spread."""
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
    """What one agent has, sent and fetched; and how it answers, if it was there to be asked."""
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
    figures = {key: sheet.mean(key, outcome.plan.learned) for key in ("found", "right", "unknown")}
    hidden = sheet.mean("unknown", outcome.plan.hidden)
    return facts | figures | {"hidden_unknown": hidden, "answers_sha256": sheet.digest}


def _first(outcome: StoryOutcome) -> Sheet:
    return outcome.sheets[outcome.plan.teachers[0]]


def _largest_share(outcome: StoryOutcome) -> float:
    """How much of all training images the busiest agent had."""
    images = [
        sum(sum(m.card.counts) for m in member.agent.bank if m.card.teacher_key == member.key)
        for member in outcome.members
    ]
    return max(images) / sum(images)
