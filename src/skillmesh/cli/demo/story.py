"""The demo's steps, from drawing the first image to the last answer."""

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
    """Draw the tasks that do not exist yet; return the task folders by name, in the plan's order."""
    names = (*plan.learned, *plan.hidden)
    # Processes are spawned, not forked, because the progress bar has a thread.
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


# Asking the agents about every test image, and scoring their answers.

CHUNK = 100
"""Number of images per request, a few seconds of work."""


@dataclass(frozen=True)
class Score:
    """One agent's accuracy on the test images of one task, without a task label."""

    task: str
    images: int
    found: float
    """Share of images with the right task, 0 to 1."""
    right: float
    """Share of images with the right task and class, 0 to 1; where there is no answer, the best guess counts."""
    unanswered: float
    """Share of images not answered (unknown or not sure), 0 to 1."""


@dataclass(frozen=True)
class Sheet:
    """One agent's answers to all test images."""

    answers: dict[Path, Answer]
    scores: dict[str, Score]
    """Scores by task."""
    digest: str
    """Hash of all answers with all their figures; equal for agents whose answers are the same, bit by bit."""

    def mean(self, figure: str, tasks: Iterable[str]) -> float:
        """Return the average of a figure over tasks."""
        return fmean(getattr(self.scores[task], figure) for task in tasks)


def questions(folders: Iterable[Path]) -> list[Path]:
    """Return every test image; its path contains its task and class, which the agents do not use."""
    return [path for folder in folders for path in sorted(folder.glob("test/*/*"))]


def ask(home: Path, images: Sequence[Path], progress: Callable[[int], None]) -> Sheet:
    """Ask the node on this home; call `progress` with the number of finished images before each request."""
    replies: list[dict[str, Any]] = []
    for start in range(0, len(images), CHUNK):
        progress(start)
        names = [str(path.resolve()) for path in images[start : start + CHUNK]]
        reply = call(home, "ask", timeout=None, images=names)
        if bad := [answer for answer in reply["answers"] if "error" in answer]:
            raise AgentError(f"{home.name} cannot read {bad[0]}; delete the images and run the demo again")
        replies += reply["answers"]
    answers = dict(zip(images, map(Answer.from_dict, replies), strict=True))
    shared = [answer.shared() for answer in answers.values()]
    digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()
    return Sheet(answers, {score.task: score for score in _scores(answers)}, digest)


def truth(path: Path) -> tuple[str, str]:
    """Return an image's task and class."""
    return path.parents[2].name, path.parent.name


def _scores(answers: dict[Path, Answer]) -> list[Score]:
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
            fmean(answer.label is None for _, answer in pairs),
        )
        for task, pairs in by_task.items()
    ]


@dataclass(frozen=True)
class StoryOutcome:
    """The demo's results. All seconds are wall-clock time."""

    plan: DemoPlan
    members: Sequence[Member]
    sheets: dict[str, Sheet]
    """Answers of each agent that was running at the end, by name."""
    picture: Path
    drawing_seconds: float
    together_seconds: float
    """Seconds from the start of the teachers' processes until all remaining agents answered from all tasks."""
    killed_seconds: float
    """Seconds from the same start until one of them was killed."""
    late_seconds: tuple[float, float]
    """Seconds until the latecomer knew everything: since its process started, and since it joined the mesh."""
    asking_seconds: float
    alone_seconds: float
    """The same as `together_seconds`, for one agent that learned everything."""
    same_modules: int
    """Number of shared modules that equal, bit by bit, those that one agent alone learned."""

    @property
    def same_answers(self) -> bool:
        """True if all agents gave the same answers, bit by bit."""
        return len({sheet.digest for sheet in self.sheets.values()}) == 1


def play(out: Path, plan: DemoPlan, device: str | None) -> StoryOutcome:
    """Run the whole demo; no process is left when it ends, even after an error."""
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
    """Raise before the work if the device cannot be used; an agent would only write that to its log."""
    if device is not None:
        from skillmesh.backbone.network import load_network

        load_network(device=device)


def _crew(out: Path, plan: DemoPlan, folders: dict[str, Path]) -> Crew:
    port = free_port()
    homes = out / "agents"
    teachers = [Member(homes / name, [folders[t] for t in plan.lessons(name)], port) for name in plan.teachers]
    return Crew([*teachers, Member(homes / plan.latecomer, (), port)])


def _learn_together(crew: Crew, plan: DemoPlan, cache: Path, device: str | None, view: DemoScreen) -> float:
    """Let the teachers learn and share; one is killed on the way. Return the time of the kill."""
    teachers = [crew[name] for name in plan.teachers]
    *others, victim = teachers
    for member in teachers:
        member.start(cache, device)
    view.event(f"{_listed(plan.teachers)} start, each with its own tasks to learn")

    def taught() -> bool:
        return all(task in member.since for task in plan.lessons(victim.name) for member in others)

    crew.watch(taught, lambda news: view.news(crew.members, news))
    victim.kill()
    killed = time.monotonic()
    view.event(f"{victim.name} is killed; the others hold its tasks")
    everything = len(plan.learned)
    crew.watch(lambda: all(m.knows(everything) for m in others), lambda news: view.news(crew.members, news))
    view.event(f"{_listed([m.name for m in others])} know all {everything} tasks")
    return killed


def _join_late(
    crew: Crew, plan: DemoPlan, cache: Path, device: str | None, view: DemoScreen
) -> tuple[float, float]:
    """Start the agent that knows nothing; return the seconds until it knew everything, as `late_seconds`."""
    late = crew[plan.latecomer]
    late.start(cache, device)
    view.event(f"{late.name} starts and knows nothing")
    crew.watch(lambda: late.knows(len(plan.learned)), lambda news: view.news(crew.members, news))
    caught_up = time.monotonic()
    seconds = caught_up - late.began, caught_up - (late.joined or late.began)
    view.event(f"{late.name} knows all {len(plan.learned)} tasks, including those of {plan.victim}")
    return seconds


def _ask(member: Member, images: Sequence[Path], view: DemoScreen) -> Sheet:
    view.event(f"{member.name} is asked about {len(images):,} images, with no task label")
    return ask(member.home, images, lambda done: view.status(f"{done:,} of {len(images):,} answered"))


def _learn_alone(
    out: Path, plan: DemoPlan, folders: dict[str, Path], device: str | None, view: DemoScreen
) -> tuple[float, Member]:
    """Let one agent learn everything, also with an empty cache; return its seconds and the agent."""
    cache = _cold_cache(out / "cache" / SOLO)
    with Crew([Member(out / "agents" / SOLO, [folders[task] for task in plan.learned], free_port())]) as crew:
        solo = crew[SOLO]
        start = time.monotonic()
        solo.start(cache, device)
        view.event(f"for comparison: {SOLO} starts and learns everything alone")
        crew.watch(lambda: solo.knows(len(plan.learned)), lambda news: view.news(crew.members, news))
        view.event(f"{SOLO} knows all {len(plan.learned)} tasks")
        return time.monotonic() - start, solo


def _cold_cache(folder: Path) -> Path:
    """Return an empty descriptor cache, so that no agent profits from an earlier run or the user's own cache."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("descriptors-*"):
        file.unlink()
    return folder


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
