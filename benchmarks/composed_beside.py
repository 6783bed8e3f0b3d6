"""Measure a composed task next to its sources: which answers change, and does quarantine accept it?

    python benchmarks/composed_beside.py ../shared/tasks

Twenty tasks (every second by name) are taught in turn by two teachers. A third agent composes tasks of random
classes from a random number of them, once with the classes' names and once with new ones. Measured are the answers
to all test images with and without the composed task in the bank, and the verdict of the first teacher if the
composed task arrives after, together with or before the second teacher's tasks.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from skillmesh.answering.answering import Mapper
from skillmesh.common.choices import WarmStart
from skillmesh.core import Core
from skillmesh.data.folder import find_tasks, open_task
from skillmesh.evaluation.provenance import provenance
from skillmesh.learning.head import Head
from skillmesh.module import Module, in_order
from skillmesh.numerics.arrays import Floats
from skillmesh.store.home import VALIDATION, create_home, load_validation
from skillmesh.synergy.composition import Pick
from skillmesh.vetting.quarantine import Quarantine, background_of

HERE = Path(__file__).parent


def random_picks(bank: Sequence[Module], rng: np.random.Generator, renamed: bool) -> list[Pick]:
    """Return random classes of random tasks, at least two; of two classes with one name only the first."""
    chosen: dict[str, Pick] = {}
    tasks = rng.permutation(len(bank))[: rng.integers(1, len(bank) + 1)]
    for task in tasks:
        card = bank[int(task)].card
        for c in rng.permutation(len(card.classes))[: rng.integers(2, len(card.classes) + 1)]:
            name = card.classes[int(c)]
            chosen.setdefault(name, Pick(card.task, name, f"new {name}" if renamed else None))
    return list(chosen.values())


def answers(modules: list[Module], agent: Core, x: Floats) -> list[tuple[str, str]]:
    """Return task and class of each image, as answered by an agent with these modules."""
    tasks = Mapper(modules, agent.config.anchor, agent.prior).map(x).task
    results: list[tuple[str, str]] = [("", "")] * len(x)
    for index in np.unique(tasks):
        rows = np.flatnonzero(tasks == index)
        labels = Head.read(modules[index].tensors).logits(x[rows]).argmax(axis=1)
        for row, label in zip(rows, labels, strict=True):
            results[row] = modules[index].card.task, modules[index].card.classes[label]
    return results


class World:
    """Two teachers, their modules, and test images of all tasks."""

    def __init__(self, paths: Sequence[Path], homes: Path) -> None:
        self.teachers = [self._agent(homes / name) for name in ("first", "second")]
        self.composer = self._agent(homes / "composer")
        parts, self.truth = [], list[tuple[str, str]]()
        for turn, path in enumerate(paths):
            task = open_task(path, hold_out=("val", "test"))
            agent = self.teachers[turn % 2]
            module, _ = agent.learn(task, warm_start=WarmStart("never"))
            self.composer.import_bytes(agent.bank.file_of(module))
            described = agent.backbone.describe(task.splits["test"].files)
            parts.append(agent.backbone.represent(described.raw, agent.config.representation))
            labels = task.splits["test"].labels[described.readable]
            self.truth += [(task.name, task.classes[label]) for label in labels]
            print(task.name, flush=True)
        self.x = np.concatenate(parts)
        self.taught = [in_order(list(teacher.bank)) for teacher in self.teachers]

    def _agent(self, home: Path) -> Core:
        create_home(home, name=home.name)
        return Core(home, backbone=self.teachers[0].backbone if hasattr(self, "teachers") else None)

    def held(self, live: list[Module], newcomers: list[Module]) -> list[str]:
        """Return the tasks that the first teacher quarantines, with reasons."""
        agent = self.teachers[0]
        kept = load_validation(agent.home / VALIDATION, self.taught[0])
        background = background_of(agent.calibration, agent.config.representation, agent.config.compact)
        quarantine = Quarantine(agent.prior, agent.config.anchor, background, kept)
        return [f"{h.module.card.task}: {h.reason}" for h in quarantine.judge(live, newcomers).held]

    def tried(self, module: Module) -> dict[str, list[str]]:
        own, others = self.taught
        return {
            "after": self.held(in_order(own + others), [module]),
            "together": self.held(own, [*others, module]),
            "before": self.held(own, [module]) + self.held(in_order([*own, module]), others),
        }


def measure(world: World, trials: int, seed: int) -> list[dict[str, Any]]:
    everyone = in_order(world.taught[0] + world.taught[1])
    before = answers(everyone, world.composer, world.x)
    found = []
    for trial in range(trials):
        for renamed in (False, True):
            rng = np.random.default_rng([seed, trial])
            picks = random_picks(everyone, rng, renamed)
            module, _ = world.composer.compose("composed", picks, replace=True)
            after = answers(in_order([*everyone, module]), world.composer, world.x)
            found.append(
                {
                    "renamed": renamed,
                    "classes": len(picks),
                    "sources": len({pick.task for pick in picks}),
                    "bytes": module.size,
                    "answers": len(after),
                    "by it": sum(task == "composed" for task, _ in after),
                    "changed": sum(a != b for a, b in zip(after, before, strict=True)),
                    "label right before": sum(a[1] == b[1] for a, b in zip(before, world.truth, strict=True)),
                    "label right after": sum(a[1] == b[1] for a, b in zip(after, world.truth, strict=True)),
                    "held": world.tried(module),
                }
            )
            print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path, nargs="+")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "composed-beside.json")
    options = parser.parse_args()
    paths = find_tasks(options.tasks)[::2]
    origin = provenance("python benchmarks/composed_beside.py ../shared/tasks", paths, seed=options.seed)
    with TemporaryDirectory() as homes:
        found = measure(World(paths, Path(homes)), options.trials, options.seed)
    options.out.write_text(
        json.dumps({"trials": found, "provenance": origin}, indent=1, ensure_ascii=False) + "\n"
    )


if __name__ == "__main__":
    main()
