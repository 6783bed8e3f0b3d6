"""Measure merged tasks and extended tasks: real agents with half of the images each, against one with all.

    python benchmarks/merge.py ../shared/tasks

The bank is every fourth task by name. Each task's training and validation images are cut in two, class by class.
Ann learns one half, Bob the other; a student imports both and links them. An agent that extends a task learns one
half of the images, or of the classes, and then the other without the first. Every agent answers the test images of
all tasks without a task label: an answer counts if task and class are right. The way to merge heads was chosen on
tasks that are not in the bank (`merge_choice.py`). With `--every 2` the bank also holds ten of those thirty tasks.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from overlap_tasks import half_of
from threadpoolctl import threadpool_limits

from skillmesh.anchors.gaussians import Statistics, merged
from skillmesh.common.choices import WarmStart
from skillmesh.core import Core
from skillmesh.data.folder import Split, TaskImages, find_tasks, open_task
from skillmesh.evaluation.provenance import provenance
from skillmesh.module import Module
from skillmesh.numerics.arrays import Floats
from skillmesh.store.home import VALIDATION, create_home, load_validation
from skillmesh.synergy.merging import misfit
from skillmesh.vetting.quarantine import Quarantine, background_of

HERE = Path(__file__).parent
EVERY = 4
LEAST_CLASSES = 3
"""A task with fewer classes cannot be split by classes: a task needs two to begin with."""


@dataclass(frozen=True)
class Asked:
    """A task's test images, described."""

    folder: TaskImages
    x: Floats
    labels: np.ndarray
    images: Sequence[Any]


def cut(split: Split, seed: int) -> tuple[Split, Split]:
    """Split every class's images into two random halves."""
    mine = half_of(split.labels, np.random.default_rng(seed))
    return _rows(split, mine), _rows(split, ~mine)


def by_images(task: TaskImages, seed: int) -> tuple[TaskImages, TaskImages]:
    train, val = cut(task.splits["train"], seed), cut(task.splits["val"], seed)
    first, second = (
        replace(task, splits=task.splits | {"train": t, "val": v}) for t, v in zip(train, val, strict=True)
    )
    return first, second


def by_classes(task: TaskImages) -> tuple[TaskImages, TaskImages]:
    middle = max(2, len(task.classes) // 2)
    halves = []
    for kept in (range(middle), range(middle, len(task.classes))):
        splits = {}
        for name, split in task.splits.items():
            chosen = _rows(split, np.isin(split.labels, list(kept)))
            splits[name] = Split(chosen.files, chosen.labels - kept[0])
        halves.append(replace(task, classes=tuple(task.classes[c] for c in kept), splits=splits))
    return halves[0], halves[1]


def _rows(split: Split, kept: np.ndarray) -> Split:
    return Split(tuple(f for f, k in zip(split.files, kept, strict=True) if k), split.labels[kept])


class Crew:
    """Agents in fresh homes that share one backbone."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._backbone = folder, None

    def agent(self, name: str) -> Core:
        create_home(self._folder / name, name=name)
        agent = Core(self._folder / name, backbone=self._backbone)
        self._backbone = agent.backbone
        return agent

    def taught(self, name: str, tasks: Sequence[TaskImages]) -> Core:
        agent = self.agent(name)
        for task in tasks:
            agent.learn(task, warm_start=WarmStart("never"))
        print(f"{name} has learned {len(tasks)} tasks", flush=True)
        return agent

    def student(self, name: str, files: Sequence[bytes], maker: Core | None = None) -> Core:
        agent = self.agent(name)
        if maker is not None:
            agent.ledger.trust(maker.identity.public_key, maker.name)
            agent.ledger.merge(maker.ledger.view().links.values(), maker.identity.public_key)
        for data in files:
            agent.import_bytes(data)
        return agent


def files_of(*agents: Core) -> list[bytes]:
    return [agent.bank.file_of(module) for agent in agents for module in agent.bank]


def asked(agent: Core, task: TaskImages) -> Asked:
    split = task.splits["test"]
    described = agent.backbone.describe(split.files)
    x = agent.backbone.represent(described.raw, agent.config.representation, agent.config.compact)
    return Asked(task, x, split.labels[described.readable], [split.files[i] for i in described.readable])


def final(agent: Core, exams: Sequence[Asked]) -> dict[str, float]:
    """Return the percentage of images with the right task and class, for each task."""
    found = {}
    for exam in exams:
        answers = agent.answer_described(exam.x, exam.images)
        right = [
            (a.best.task, a.best.label) == (exam.folder.name, exam.folder.classes[label])
            for a, label in zip(answers, exam.labels, strict=True)
        ]
        found[exam.folder.name] = 100 * float(np.mean(right))
    return found


# 1. Exactness of the statistics.


def exactness(agent: Core, tasks: Sequence[TaskImages], seed: int) -> dict[str, float]:
    """Return the difference between merged statistics of two halves and those of the whole, unquantised, relative
    to the largest number."""
    worst = {"mean": 0.0, "scatter": 0.0}
    for task in tasks:
        parts = [_statistics(agent, half) for half in by_images(task, seed)]
        whole, places = _statistics(agent, task), np.arange(len(task.classes))
        both = merged([(part, places) for part in parts], len(places))
        assert np.array_equal(both.counts, whole.counts)
        ours, theirs = (each.scatter.factor.T @ each.scatter.factor for each in (both, whole))
        apart = np.abs(both.means - whole.means).max() / np.abs(whole.means).max()
        worst["mean"] = max(worst["mean"], float(apart))
        worst["scatter"] = max(worst["scatter"], float(np.abs(ours - theirs).max() / np.abs(theirs).max()))
    return worst


def _statistics(agent: Core, task: TaskImages) -> Statistics:
    described = agent.backbone.describe(task.splits["train"].files)
    x = agent.backbone.represent(described.raw, agent.config.representation, agent.config.compact)
    return Statistics.of(x, task.splits["train"].labels[described.readable], len(task.classes))


# 2. Merged tasks.


def linked(agent: Core) -> Core:
    for task in sorted({module.card.task for module in agent.bank}):
        agent.merge([f"{task}@ann", f"{task}@bob"])
    return agent


def any_order(crew: Crew, maker: Core, files: list[bytes], exams: Sequence[Asked], seed: int) -> dict[str, Any]:
    """Return whether three more agents that import the same modules in other orders give the same bits."""
    rng, same = np.random.default_rng(seed), []
    expected = [_bits(maker, exam) for exam in exams]
    for number in range(3):
        shuffled = [files[i] for i in rng.permutation(len(files))]
        agent = crew.student(f"order{number}", shuffled, maker)
        same.append([_bits(agent, exam) for exam in exams] == expected)
    return {"agents": len(same), "bit_identical": sum(same), "images": sum(len(e.x) for e in exams)}


def _bits(agent: Core, exam: Asked) -> bytes:
    """Return the scores of the mapper and answers with raw confidences, as bytes."""
    scores = agent.mapper()[1].map(exam.x)
    answers = agent.answer_described(exam.x, exam.images)
    return scores.posterior.tobytes() + scores.novelty.tobytes() + repr(answers).encode()


# 3. Vetting of second teachers.


def second_teachers(first: Core, second: Core) -> dict[str, Any]:
    """Let the first teacher, who knows all tasks, vet each second one; then again with shifted class names."""
    config = first.config
    background = background_of(first.calibration, config.representation, config.compact)
    own = load_validation(first.home / VALIDATION, list(first.bank))
    found: dict[str, Any] = {
        "tried": 0,
        "honest_held": [],
        "swapped_held": 0,
        "honest_links": 0,
        "swapped_links": 0,
    }
    for newcomer in second.bank:
        quarantine = Quarantine(first.prior, config.anchor, background, own)
        mine = first.bank.held(newcomer.card.task, first.identity.public_key)
        assert mine is not None
        liar = _swapped(newcomer, second)
        found["tried"] += 1
        for held in quarantine.judge(list(first.bank), [newcomer]).held:
            found["honest_held"].append(f"{newcomer.card.task}: {held.reason}")
        found["swapped_held"] += len(quarantine.judge(list(first.bank), [liar]).held)
        found["honest_links"] += misfit([mine, newcomer], first.prior) is None
        found["swapped_links"] += misfit([mine, liar], first.prior) is None
    return found


def _swapped(module: Module, teacher: Core) -> Module:
    """Return the module as if every class had been taught under the name of the next."""
    classes = (*module.card.classes[1:], module.card.classes[0])
    return Module.create(module.card.model_copy(update={"classes": classes}), module.tensors, teacher.identity)[0]


# 4. Extended tasks.


def gone_on(
    crew: Crew,
    name: str,
    tasks: Sequence[TaskImages],
    halves: Callable[[TaskImages], tuple[TaskImages, TaskImages]],
) -> Core:
    agent = crew.agent(name)
    for task in tasks:
        first, second = halves(task)
        agent.learn(first, warm_start=WarmStart("never"))
        agent.continue_task(task.name, second)
    print(f"{name} has extended {len(tasks)} tasks", flush=True)
    return agent


def measured(tasks: list[TaskImages], scratch: Path, seed: int) -> dict[str, Any]:
    crew = Crew(scratch)
    whole = crew.taught("whole", tasks)
    exams = [asked(whole, task) for task in tasks]
    halves = [by_images(task, seed) for task in tasks]
    ann, bob = (crew.taught(name, [h[i] for h in halves]) for i, name in enumerate(("ann", "bob")))
    files = files_of(ann, bob)
    apart, joint = crew.student("apart", files), linked(crew.student("joint", files))
    divisible = [task for task in tasks if len(task.classes) >= LEAST_CLASSES]
    more_images = gone_on(crew, "more-images", tasks, lambda task: by_images(task, seed))
    more_classes = gone_on(crew, "more-classes", divisible, by_classes)
    for data in (whole.bank.file_of(m) for m in whole.bank if m.card.task not in {t.name for t in divisible}):
        more_classes.import_bytes(data)
    agents = {
        "whole": whole,
        "half": ann,
        "other half": bob,
        "both, not linked": apart,
        "merged": joint,
        "half the images, then the others": more_images,
        "half the classes, then the others": more_classes,
    }
    finals = {name: final(agent, exams) for name, agent in agents.items()}
    return {
        "tasks": [
            {"task": t.name, "classes": len(t.classes), "images": len(t.splits["train"])}
            | {name: found[t.name] for name, found in finals.items()}
            for t in tasks
        ],
        "final": {name: _against(found, finals["whole"]) for name, found in finals.items()},
        "classes_cut": [task.name for task in divisible],
        "exactness": exactness(whole, tasks, seed),
        "any_order": any_order(crew, joint, files, exams, seed),
        "second_teachers": [second_teachers(ann, bob), second_teachers(bob, ann)],
        "joint_rows": {j.card.task: len(j.tensors["sketch.factor"]) for j in joint.merged()},
    }


def _against(found: dict[str, float], whole: dict[str, float]) -> dict[str, float]:
    apart = [found[name] - whole[name] for name in whole]
    return {"mean": fmean(found.values()), "difference": fmean(apart), "worst": min(apart), "best": max(apart)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=EVERY, help="one in this many tasks is in the bank")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "merge.json")
    options = parser.parse_args()
    paths = find_tasks([options.tasks])
    bank = paths[:: options.every]
    wanted = "" if options.every == EVERY else f" --every {options.every}"
    origin = provenance(f"python benchmarks/merge.py ../shared/tasks{wanted}", bank, seed=options.seed)
    tasks = [open_task(path, hold_out=("val", "test"), seed=options.seed) for path in bank]
    with TemporaryDirectory() as scratch, threadpool_limits(1, "blas"):
        report = measured(tasks, Path(scratch), options.seed)
    report["provenance"] = origin
    options.out.write_text(json.dumps(rounded(report), indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(rounded(report["final"]), indent=1))


def rounded(value: Any) -> Any:
    """Return the value with numbers rounded to four digits."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
