"""Measure an agent with a grown bank in one process: its times, memory and accuracy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from skillmesh.answering.answering import Mapper
from skillmesh.core import Core
from skillmesh.data.folder import open_task
from skillmesh.evaluation.evaluate import anchor_bytes
from skillmesh.module import Module
from skillmesh.numerics.arrays import Floats
from skillmesh.numerics.process import hand_back
from skillmesh_challenge.bare import BareNetwork
from skillmesh_challenge.growth import grown_bank
from skillmesh_challenge.resident import forget_peak, peak_bytes, resident_bytes

AGREEMENT_IMAGES = 100


@dataclass(frozen=True)
class ScalePlan:
    """Size of the simulation."""

    tasks: int
    agents: int
    classes: int | None = 49
    """Number of classes of each grown task; `None`: as many as the real task that it lies next to."""
    rounds: int = 30
    seed: int = 0


def measure(home: Path, paths: Sequence[str], plan: ScalePlan, reach: float) -> dict[str, Any]:
    """Grow the bank of the agent at `home`, build its mapper, answer images; return what was measured."""
    agent = Core(home, device="cpu")
    _ = agent.backbone.network  # load the network before memory is measured
    with threadpool_limits(1, "blas"):
        modules = grown_bank(agent, plan.tasks, plan.classes, reach, plan.seed)
    hand_back()
    before = resident_bytes()
    forget_peak()
    started = time.perf_counter()
    mapper = Mapper(modules, agent.config.anchor, agent.prior)
    built = time.perf_counter() - started
    peak = peak_bytes()
    hand_back()
    memory = _memory(before, peak, resident_bytes())
    agent.rebuilds_itself = False
    agent.use(modules, mapper)
    times = _times(agent, mapper, plan.rounds)
    return {
        "classes": sum(len(m.card.classes) for m in modules),
        "build_seconds": built,
        **times,
        "memory": memory | {"module_bytes_held": sum(_held(m) for m in modules)},
        "bytes": _bytes(modules, plan),
        **_accuracy(agent, paths, plan.seed),
    }


def _memory(before: int | None, peak: int | None, after: int | None) -> dict[str, int | None]:
    """Return the bytes of the mapper and the process; None if the system does not report them."""
    if before is None or peak is None or after is None:
        return {"mapper_bytes": None, "mapper_peak_bytes": None, "process_bytes": None, "process_peak_bytes": None}
    return {
        "mapper_bytes": after - before,
        "mapper_peak_bytes": peak - before,
        "process_bytes": after,
        "process_peak_bytes": peak,
    }


def _times(agent: Core, mapper: Mapper, rounds: int) -> dict[str, float]:
    """Return median times; the three take turns, so a busy machine slows all equally. The cache is not used."""
    cache, agent.backbone.cache = agent.backbone.cache, None
    rng = np.random.default_rng(0)
    size = agent.backbone.network.size
    image = rng.integers(0, 256, (size, size, 3), dtype=np.uint8)
    probe = rng.standard_normal((1, len(agent.prior.centre))).astype(np.float32)
    bare = BareNetwork(agent.backbone.network)
    work: tuple[Callable[[], object], ...] = (
        lambda: agent.answer(image),
        lambda: bare.run([image]),
        lambda: mapper.map(probe),
    )
    seconds = [[_timed(call) for call in work] for _ in range(rounds + 2)][2:]
    agent.backbone.cache = cache
    answer, floor, mapping = (median(column) for column in zip(*seconds, strict=True))
    ratio = median(row[0] / row[1] for row in seconds)
    return {"answer_seconds": answer, "bare_seconds": floor, "mapper_seconds": mapping, "answer_ratio": ratio}


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _held(module: Module) -> int:
    return sum(tensor.nbytes for tensor in module.tensors.values())


def _bytes(modules: Sequence[Module], plan: ScalePlan) -> dict[str, float]:
    """Return the bytes sent: every agent teaches its share of the tasks and receives all others."""
    module, anchor = fmean(m.size for m in modules), fmean(anchor_bytes(m) for m in modules)
    received = plan.tasks * (1 - 1 / plan.agents) * module
    return {"module": module, "anchor": anchor, "per_agent": received, "all_agents": received * plan.agents}


def _accuracy(agent: Core, paths: Sequence[str], seed: int) -> dict[str, float]:
    """Return accuracies on the real tasks' test images, with no task given, in the grown bank."""
    modules, mapper = agent.mapper()
    index_of = {m.card.task: index for index, m in enumerate(modules)}
    rows, samples = [], []
    for path in paths:
        folder = open_task(path, hold_out=("val", "test"), seed=seed, one_task=True)
        split, index = folder.splits["test"], index_of[folder.name]
        described = agent.backbone.describe(split.files)
        x = agent.backbone.represent(described.raw, agent.config.representation, agent.config.compact)
        mapped = mapper.map(x)
        right_class = agent.head(modules[index]).logits(x).argmax(axis=1) == split.labels[described.readable]
        right_task = mapped.task == index
        rows.append((right_task.mean(), (right_task & right_class).mean(), mapped.unanswered.mean()))
        samples.append(x[:: max(1, len(x) * len(paths) // AGREEMENT_IMAGES)])
    task, final, unknown = (fmean(map(float, column)) for column in zip(*rows, strict=True))
    shown: Floats = np.concatenate(samples)
    shares = {"task_found_accuracy": task, "final_accuracy": final, "known_unanswered": unknown}
    return shares | {"shortlist_agreement": mapper.shortlist_agreement(shown)}
