"""What happens in the demo, from the first image to the last answer."""

from __future__ import annotations

import hashlib
import json
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from skillmesh.answering.answer import Answer
from skillmesh.cli import show
from skillmesh.cli.demo.member import Crew, Member
from skillmesh.cli.demo.plan import SOLO, DemoPlan
from skillmesh.cli.demo.screen import DemoScreen, screen
from skillmesh.cli.picture import draw_answers
from skillmesh.data.demo import write_demo_tasks
from skillmesh.errors import AgentError
from skillmesh.mesh.calling import call
from skillmesh.mesh.process import free_port
from skillmesh.numerics.process import cores


def draw_tasks(folder: Path, plan: DemoPlan) -> dict[str, Path]:
    """Draw what is not there yet; return the task folders by name, in the plan's order."""
    names = (*plan.learned, *plan.hidden)
    # Spawned, not forked: the progress bar has a thread.
    pool = ProcessPoolExecutor(cores(), get_context("spawn"), initializer=_leave_interrupts_to_the_parent)
    with show.progress_bar() as bar:
        bar.start("drawing tasks", len(names))
        try:
            drawn = {pool.submit(write_demo_tasks, folder, names=[name], **plan.images): name for name in names}
            for future in as_completed(drawn):
                future.result()
                bar.advance(1)
        finally:
            pool.shutdown(cancel_futures=True)
    return {name: folder / name for name in names}


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


# Asking the agents about every test image, and marking what they say.

CHUNK = 100
"""Images per request: a few seconds of work."""


@dataclass(frozen=True)
class Score:
    """How an agent did on the test images of one task, with nobody telling it the task."""

    task: str
    images: int
    found: float
    """Right task."""
    right: float
    """Right task and right class, an answer forced."""
    unknown: float
    """Answered "unknown"."""


@dataclass(frozen=True)
class Sheet:
    """One agent's answers to all questions."""

    answers: dict[Path, Answer]
    scores: dict[str, Score]
    """By task."""
    digest: str
    """A hash of every answer with all its figures: equal for agents that answer the same, bit by bit."""

    def mean(self, figure: str, tasks: Iterable[str]) -> float:
        """The average over tasks."""
        return fmean(getattr(self.scores[task], figure) for task in tasks)


def questions(folders: Iterable[Path]) -> list[Path]:
    """Every test image; its path tells task and class, which the agents are not asked to believe."""
    return [path for folder in folders for path in sorted(folder.glob("test/*/*"))]


def ask(home: Path, images: Sequence[Path], progress: Callable[[int], None]) -> Sheet:
    """Ask the node on this home; how many images are done is told meanwhile."""
    said: list[dict[str, Any]] = []
    for start in range(0, len(images), CHUNK):
        progress(start)
        names = [str(path.resolve()) for path in images[start : start + CHUNK]]
        reply = call(home, "ask", timeout=None, images=names)
        if bad := [answer for answer in reply["answers"] if "error" in answer]:
            raise AgentError(f"{home.name} cannot read {bad[0]}; remove the images and draw anew")
        said += reply["answers"]
    answers = dict(zip(images, map(Answer.from_dict, said), strict=True))
    shared = [answer.shared() for answer in answers.values()]
    digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()
    return Sheet(answers, {score.task: score for score in _marked(answers)}, digest)


def truth(path: Path) -> tuple[str, str]:
    """An image's task and class."""
    return path.parents[2].name, path.parent.name


def _marked(answers: dict[Path, Answer]) -> list[Score]:
    by_task: dict[str, list[tuple[str, Answer]]] = {}
    for path, answer in answers.items():
        task, label = truth(path)
        by_task.setdefault(task, []).append((label, answer))
    return [
        Score(
            task,
            len(pairs),
            fmean(answer.best.task == task for _, answer in pairs),
            fmean((answer.best.task, answer.best.label) == (task, label) for label, answer in pairs),
            fmean(answer.unknown for _, answer in pairs),
        )
        for task, pairs in by_task.items()
    ]


@dataclass(frozen=True)
class StoryOutcome:
    """What came of it. Seconds are wall-clock."""

    plan: DemoPlan
    members: Sequence[Member]
    sheets: dict[str, Sheet]
    """What each agent said that was there at the end, by name."""
    picture: Path
    drawing_seconds: float
    together_seconds: float
    """From the start of the teachers' processes until all that were left answered from all tasks."""
    killed_seconds: float
    """When one of them was killed, on the same clock."""
    late_seconds: tuple[float, float]
    """How long the latecomer took to know everything: since its process was started, since it was on the mesh."""
    asking_seconds: float
    alone_seconds: float
    """As `together_seconds`, for one agent that learned everything."""
    same_modules: int
    """How many of the tasks that agents taught each other are, bit by bit, what the one alone has learned."""

    @property
    def same_answers(self) -> bool:
        """Whether all agents gave the same answers, bit by bit."""
        return len({sheet.digest for sheet in self.sheets.values()}) == 1


def play(out: Path, plan: DemoPlan, device: str | None) -> StoryOutcome:
    """Play all of it; when it ends, whichever way, no process is left."""
    _refuse_unusable(device)
    began = time.monotonic()
    folders = draw_tasks(out / "tasks", plan)
    drawn = time.monotonic()
    images = questions(folders.values())
    with screen(plan.learned) as view:
        with _crew(out, plan, folders) as crew:
            cache = _cold_cache(out / "cache" / "mesh")
            start = time.monotonic()
            killed = _learn_together(crew, plan, cache, device, view)
            together = time.monotonic()
            late = _join_late(crew, plan, cache, device, view)
            asking = time.monotonic()
            sheets = {member.name: _ask(member, images, view) for member in crew.running}
            asked = time.monotonic()
        alone, solo = _learn_alone(out, plan, folders, device, view)
    picture = out / "answers.png"
    draw_answers(sheets[plan.teachers[0]].answers, picture)
    own = {module.content_id for module in crew[plan.teachers[0]].agent.bank}
    return StoryOutcome(
        plan=plan,
        members=crew.members,
        sheets=sheets,
        picture=picture,
        drawing_seconds=drawn - began,
        together_seconds=together - start,
        killed_seconds=killed - start,
        late_seconds=late,
        asking_seconds=asked - asking,
        alone_seconds=alone,
        same_modules=sum(module.content_id in own for module in solo.agent.bank),
    )


def _refuse_unusable(device: str | None) -> None:
    """Say it before the work, and here: an agent that cannot learn tells its log only."""
    if device is not None:
        from skillmesh.backbone.network import usable_device

        usable_device(device)


def _crew(out: Path, plan: DemoPlan, folders: dict[str, Path]) -> Crew:
    port = free_port()
    homes = out / "agents"
    teachers = [Member(homes / name, [folders[t] for t in plan.lessons(name)], port) for name in plan.teachers]
    return Crew([*teachers, Member(homes / plan.latecomer, (), port)])


def _learn_together(crew: Crew, plan: DemoPlan, cache: Path, device: str | None, view: DemoScreen) -> float:
    """Let the teachers learn and share; one is killed on the way. Returns when that was."""
    teachers = [crew[name] for name in plan.teachers]
    *others, victim = teachers
    for member in teachers:
        member.start(cache, device)
    view.tell(f"{_listed(plan.teachers)} start, each with tasks of its own to learn")

    def taught() -> bool:
        return all(task in member.since for task in plan.lessons(victim.name) for member in others)

    crew.watch(taught, lambda news: view.news(crew.members, news))
    victim.kill()
    killed = time.monotonic()
    view.tell(f"{victim.name} is killed; the others hold what it taught")
    everything = len(plan.learned)
    crew.watch(lambda: all(m.knows(everything) for m in others), lambda news: view.news(crew.members, news))
    view.tell(f"{_listed([m.name for m in others])} know all {everything} tasks")
    return killed


def _join_late(
    crew: Crew, plan: DemoPlan, cache: Path, device: str | None, view: DemoScreen
) -> tuple[float, float]:
    """Start the agent that knows nothing; returns how long it took to know everything."""
    late = crew[plan.latecomer]
    late.start(cache, device)
    view.tell(f"{late.name} starts, and knows nothing")
    crew.watch(lambda: late.knows(len(plan.learned)), lambda news: view.news(crew.members, news))
    caught_up = time.monotonic()
    seconds = caught_up - late.began, caught_up - (late.joined or late.began)
    view.tell(f"{late.name} knows all {len(plan.learned)} tasks, those that {plan.victim} taught too")
    return seconds


def _ask(member: Member, images: Sequence[Path], view: DemoScreen) -> Sheet:
    view.tell(f"{member.name} is asked about {len(images):,} images, with no task label")
    return ask(member.home, images, lambda done: view.status(f"{done:,} of {len(images):,} answered"))


def _learn_alone(
    out: Path, plan: DemoPlan, folders: dict[str, Path], device: str | None, view: DemoScreen
) -> tuple[float, Member]:
    """Let one agent learn everything, as cold as the others were; returns its seconds and itself."""
    cache = _cold_cache(out / "cache" / SOLO)
    with Crew([Member(out / "agents" / SOLO, [folders[task] for task in plan.learned], free_port())]) as crew:
        solo = crew[SOLO]
        start = time.monotonic()
        solo.start(cache, device)
        view.tell(f"for comparison: {SOLO} starts, alone, and learns everything")
        crew.watch(lambda: solo.knows(len(plan.learned)), lambda news: view.news(crew.members, news))
        view.tell(f"{SOLO} knows all {len(plan.learned)} tasks")
        return time.monotonic() - start, solo


def _cold_cache(folder: Path) -> Path:
    """A descriptor cache with nothing in it: nobody profits from an earlier run or the user's own cache."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("descriptors-*"):
        file.unlink()
    return folder


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
