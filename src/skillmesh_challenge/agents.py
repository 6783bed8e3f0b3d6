"""A run of agents that share modules: they learn in parallel, share everything, and are tested task by task."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from skillmesh.backbone.backbone import Backbone
from skillmesh.common.choices import Adaptation
from skillmesh.common.config import FILE as CONFIG_FILE
from skillmesh.core import Core
from skillmesh.evaluation.shown import Shown, show
from skillmesh.learning.lesson import Lesson, study
from skillmesh.module import Module, now, read_file
from skillmesh.numerics.arrays import counted
from skillmesh.numerics.process import begin, cores
from skillmesh.store.bank import specs_for
from skillmesh.store.home import create_home_of
from skillmesh_challenge.entries import Learned, RunSettings, Sharing
from skillmesh_challenge.errors import RunError
from skillmesh_challenge.executors import BackboneRef, Workplace, open_place, worker_backbone
from skillmesh_challenge.methods import SkillMethod
from skillmesh_challenge.nodes import remove_received, share_over_mesh
from skillmesh_challenge.record import read_record
from skillmesh_challenge.stage import Stage
from skillmesh_challenge.steps import measure_steps

if TYPE_CHECKING:
    from skillmesh.common.config import AgentConfig
    from skillmesh.data.folder import TaskImages
    from skillmesh_challenge.baselines.settings import Frozen

# Agents learn: each agent its own tasks in sequence, all agents in parallel, on whatever workers there are.
#
# A worker makes the lesson; the agent signs it in this process, which has its key. A task counts as learned when
# its JSON is in the record: a run that was killed repeats everything after that.


@dataclass(frozen=True)
class Job:
    """One task to be learned, with everything that a worker needs."""

    task: TaskImages
    config: AgentConfig
    backbone: BackboneRef
    adaptation: Adaptation
    checkpoint: Path | None


class Duration(NamedTuple):
    """Seconds of wall-clock and of CPU time."""

    wall: float
    cpu: float


def learn(job: Job) -> tuple[Lesson, Duration]:
    """Return the lesson, made in the current process, and the time that it took."""
    backbone = worker_backbone(job.backbone)
    wall, cpu = time.perf_counter(), time.process_time()
    with counted() as costs:
        lesson = study(
            job.task,
            backbone,
            job.config,
            adaptation=job.adaptation,
            checkpoint=job.checkpoint,
        )
    duration = Duration(time.perf_counter() - wall, time.process_time() - cpu)
    return dataclasses.replace(lesson, costs=costs), duration


def learn_missing(method: SkillMethod, stage: Stage, homes: dict[str, Path]) -> None:
    """Let the agents learn the tasks that the record lacks."""
    from skillmesh.core import Core

    done = {learned.task for learned in stage.read().learned}
    done |= _copy_from_earlier_runs(stage, homes, done)
    queues = {
        name: deque(task for task in tasks if task not in done)
        for name, tasks in stage.settings.assignment.items()
    }
    if not any(queues.values()):
        return
    agents = {name: Core(homes[name]) for name, queue in queues.items() if queue}
    ref = backbone_ref(method, stage)
    with open_place(ref, stage.workers, stage.threads, stage.cluster) as place:
        stage.keep_times(startup_seconds=place.startup_seconds)
        stage.log(f"{place.workers} worker(s) on {place.words}, ready in {place.startup_seconds:.1f} s")
        with stage.timed("learning_seconds"):
            _learn_all(method, stage, place, agents, queues)


def _learn_all(
    method: SkillMethod, stage: Stage, place: Workplace, agents: dict[str, Core], queues: dict[str, deque[str]]
) -> None:
    """Keep every worker busy; an agent that has begun continues before another one begins."""
    ready = deque(name for name, queue in queues.items() if queue)
    under_way: dict[Future[tuple[Lesson, Duration]], tuple[str, str]] = {}
    advance = begin(stage.progress, "learning (tasks)", sum(map(len, queues.values())))
    try:
        while ready or under_way:
            while ready and len(under_way) < place.workers:
                name = ready.popleft()
                task = queues[name].popleft()
                job = _job(method, stage, place, agents[name], task)
                under_way[place.executor.submit(learn, job)] = name, task
            done = wait(under_way, return_when=FIRST_COMPLETED).done
            for future in sorted(done, key=lambda f: f.exception() is not None):  # failures last: keep the rest
                name, task = under_way.pop(future)
                _keep(stage, agents[name], task, *_result(future, task))
                if queues[name]:
                    ready.appendleft(name)
                if advance is not None:
                    advance(1)
    finally:
        for future in under_way:
            future.cancel()


def _result(future: Future[tuple[Lesson, Duration]], task: str) -> tuple[Lesson, Duration]:
    try:
        return future.result()
    except BrokenExecutor as error:
        raise RunError(
            f"the worker process that learned {task!r} was killed, perhaps for lack of memory; repeat the command "
            "with --workers 1 to resume"
        ) from error


def _job(method: SkillMethod, stage: Stage, place: Workplace, agent: Core, task: str) -> Job:
    name = f"training-{hashlib.sha256(task.encode()).hexdigest()[:16]}.pt"
    return Job(
        next(folder for folder in stage.tasks if folder.name == task),
        agent.config,
        backbone_ref(method, stage),
        Adaptation(method.adapt_mode, method.adapts, method.layers, method.epochs),
        agent.home.resolve() / name if place.shares_disk else None,
    )


def _keep(stage: Stage, agent: Core, task: str, lesson: Lesson, duration: Duration) -> None:
    module, data = agent.sign(lesson)
    learned = Learned(
        task=task,
        position=stage.settings.names.index(task),
        agent=agent.name,
        macs=dict(lesson.costs.spent),
        seconds=round(duration.wall, 3),
        images=lesson.images,
        cached_images=max(0, lesson.images - lesson.fresh),
        module_bytes=module.size,
        parts=bytes_by_part(module),
        validation_accuracy=module.card.validation_accuracy,
        cpu_seconds=round(duration.cpu, 3),
        module_id=module.id,
        content_id=module.content_id,
        notes=(*lesson.notes, *(f"{u.name}: {u.reason}" for u in lesson.unreadable)),
    )
    stage.keep_learned(learned, data)
    for checkpoint in agent.home.glob("training-*.pt"):  # the training is over
        checkpoint.unlink()
    stage.log(
        f"{agent.name} learned {task} in {duration.wall:.1f} s: {learned.total_macs:.3g} MACs, {module.size} bytes"
    )


def bytes_by_part(module: Module) -> dict[str, int]:
    """Return a module's bytes by what they hold; `card` is everything but tensors: header, names, signature."""
    parts: dict[str, int] = {}
    for name, tensor in module.tensors.items():
        first = name.partition(".")[0]
        part = (
            "anchor" if first in module.card.anchors else {"probe": "probes", "bias": "biases"}.get(first, first)
        )
        parts[part] = parts.get(part, 0) + tensor.nbytes
    return parts | {"card": module.size - sum(parts.values())}


# Reuse of tasks that another run has learned already.


def _copy_from_earlier_runs(stage: Stage, homes: dict[str, Path], done: set[str]) -> set[str]:
    """Copy equal modules from earlier runs, signed by this run's agents; return the tasks that were copied."""
    from skillmesh.core import Core

    teachers = {task: name for name, tasks in stage.settings.assignment.items() for task in tasks}
    copied: set[str] = set()
    for folder in stage.reuse:
        earlier = read_record(folder)
        if not _alike(earlier.settings, stage.settings):
            continue
        for learned in earlier.learned:
            if learned.task in done | copied:
                continue
            module = Module.load(earlier.module_file(learned.position), specs_for)
            agent = Core(homes[teachers[learned.task]])
            identity = agent.identity
            card = module.card.model_copy(
                update={"teacher": agent.name, "teacher_key": identity.public_key, "created": now()}
            )
            module, data = Module.create(card, module.tensors, identity)
            _keep_copied(stage, learned, agent.name, module, data)
            copied.add(learned.task)
    if copied:
        stage.log(f"{len(copied)} task(s) copied from an earlier run")
    return copied


def _alike(theirs: RunSettings, ours: RunSettings) -> bool:
    """Whether two runs learn a task in the same way: same method and images, by any agent."""
    return theirs.method == ours.method and theirs.same_images(ours)


def _keep_copied(stage: Stage, learned: Learned, agent: str, module: Module, data: bytes) -> None:
    copied = dataclasses.replace(
        learned,
        agent=agent,
        module_id=module.id,
        module_bytes=module.size,
        parts=bytes_by_part(module),
    )
    stage.keep_learned(copied, data)


# Agents share: every module goes to every agent, either in memory or sent over a real mesh.
#
# Then all agents have the same modules. A check shows whether their answers, each with its own mapper, are equal.

SAMPLE = 5
"""Number of test images of each task that every agent answers."""


def share(
    stage: Stage,
    homes: dict[str, Path],
    backbone: Backbone,
    modules: Sequence[Module],
    shown: Sequence[Shown],
) -> None:
    """Bring all modules to all agents, and compare the agents' answers."""
    with stage.timed("sharing_seconds") as timer:
        if stage.settings.sharing == "mesh":
            remove_received(homes.values())
        for name, home in homes.items():
            own = [p for p, module in enumerate(modules) if module.card.teacher == name]
            _import_missing(Core(home), stage, modules, own)
        if stage.settings.sharing == "mesh":
            sharing = share_over_mesh(stage, homes, len(modules))
        else:
            sharing = _share_in_memory(stage, homes, modules)
        seconds = timer.seconds
    with stage.timed("comparing_answers_seconds"):
        answers, asked = _answers(stage, homes, backbone, modules, shown)
    sharing = Sharing(**{**vars(sharing), "answers": answers, "asked": asked, "seconds": round(seconds, 3)})
    stage.keep_sharing(sharing)
    verdict = "all agents give the same answers" if sharing.same_answers else "the agents' answers DIFFER"
    stage.log(f"shared by {sharing.how} in {seconds:.1f} s; {verdict}, for {asked} images each")


def _import_missing(agent: Core, stage: Stage, modules: Sequence[Module], positions: Sequence[int]) -> None:
    held = {module.id for module in agent.bank}
    for position in positions:
        if modules[position].id not in held:
            agent.import_bytes(read_file(stage.module_file(position)))


def _share_in_memory(stage: Stage, homes: dict[str, Path], modules: Sequence[Module]) -> Sharing:
    received = {}
    advance = begin(stage.progress, "sharing (agents)", len(homes))
    for name, home in homes.items():
        _import_missing(Core(home), stage, modules, range(len(modules)))
        received[name] = sum(module.size for module in modules if module.card.teacher != name)
        if advance is not None:
            advance(1)
    return Sharing("memory", received, {}, 0, 0.0)


def _answers(
    stage: Stage, homes: dict[str, Path], backbone: Backbone, modules: Sequence[Module], shown: Sequence[Shown]
) -> tuple[dict[str, str], int]:
    """Return a hash of each agent's answers to the same images, with its own mapper, and the number of images."""
    x = np.concatenate([task.x[:SAMPLE] for task in shown])
    images = [image for task in shown for image in task.images[:SAMPLE]]
    expected = sorted(module.id for module in modules)
    hashes = {}
    advance = begin(stage.progress, "comparing answers (agents)", len(homes))
    for name, home in homes.items():
        agent = Core(home, cache_folder=stage.cache_folder, backbone=backbone)
        if sorted(module.id for module in agent.bank) != expected:
            raise RunError(
                f"{name} holds {len(agent.bank)} modules after sharing, expected the {len(expected)} that were "
                f"learned; remove {stage.folder / 'agents'} and run again"
            )
        answers = [answer.shared() for answer in agent.answer_described(x, images)]
        hashes[name] = hashlib.sha256(json.dumps(answers, sort_keys=True).encode()).hexdigest()
        if advance is not None:
            advance(1)
    return hashes, len(images)


def play(method: SkillMethod, stage: Stage) -> None:
    """Do the parts of the run that are not done yet: learn, share, test."""
    homes = _homes(method, stage)
    learn_missing(method, stage, homes)
    shown: list[Shown] | None = None
    record = stage.read()
    untested = len(record.steps) < len(stage.tasks) or record.confusions is None or record.answers is None
    if record.sharing is None or untested:
        backbone = worker_backbone(backbone_ref(method, stage))
        modules = _modules(stage)
        tester = _tester(stage, homes, backbone)
        with stage.timed("describing_tests_seconds"):
            shown = [show(tester, folder, progress=stage.progress) for folder in stage.tasks]
        if record.sharing is None:
            share(stage, homes, backbone, modules, shown)
        measure_steps(stage, tester, modules, shown)


def backbone_ref(method: SkillMethod | Frozen, stage: Stage) -> BackboneRef:
    return BackboneRef(
        method.backbone,
        None if method.weights is None else Path(method.weights).resolve(),
        None if method.calibration is None else Path(method.calibration).resolve(),
        stage.device,
        stage.cache_folder,
    )


def _homes(method: SkillMethod, stage: Stage) -> dict[str, Path]:
    """Return a home for every agent, each with its own key; create those that are missing."""
    homes = {name: stage.folder / "agents" / name for name in stage.settings.assignment}
    for name, home in homes.items():
        if not (home / CONFIG_FILE).exists():
            config = method.config(name, stage.settings.seed)
            calibration = None if method.calibration is None else Path(method.calibration)
            create_home_of(home, config.model_dump() | {"calibration": calibration})
    return homes


def _modules(stage: Stage) -> list[Module]:
    """Return the learned modules in the order of the tasks."""
    return [Module.load(stage.module_file(position), specs_for) for position in range(len(stage.tasks))]


def _tester(stage: Stage, homes: dict[str, Path], backbone: Backbone) -> Core:
    """Return any agent to test with: with the same modules, all give the same answers."""
    return Core(next(iter(homes.values())), cache_folder=stage.cache_folder, backbone=backbone)


def usual_workers(assignment: Mapping[str, Sequence[str]]) -> int:
    """Return the number of cores, but at most the number of agents that have tasks to learn."""
    return max(1, min(cores(), sum(bool(tasks) for tasks in assignment.values())))
