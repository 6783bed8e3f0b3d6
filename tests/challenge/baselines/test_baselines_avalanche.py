"""Our baselines and avalanche-lib's, on the same small streams from the same weights."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from importlib import import_module
from typing import Any

import pytest
import torch
from oracle import STRENGTHS, avalanche_course, import_avalanche
from streams import BATCH, CLASSES, EPOCHS, INPUTS, RATE, TASKS, TEST, Course, SmallStream, new_body, small_stream

from skillmesh_challenge.baselines import methods
from skillmesh_challenge.baselines.data import BaselineExamples, BaselineTask
from skillmesh_challenge.baselines.network import TaskNetwork
from skillmesh_challenge.baselines.settings import TrainedSettings
from skillmesh_challenge.baselines.trainer import Trainer

pytestmark = pytest.mark.slow  # `make test-all` installs avalanche-lib

SEEDS = range(5)
SAME = ("naive", "ewc", "online-ewc", "si", "mas", "lwf")
"""Methods whose steps can be compared one by one."""
ALIKE = ("ewc-of-batches", "replay")
"""Methods that agree on average: with avalanche's own Fisher information, and with a memory drawn differently."""
PLAIN = {
    "epochs": EPOCHS,
    "batch": BATCH,
    "rate": RATE,
    "head_rate": RATE,
    "momentum": 0.0,
    "schedule": "constant",
}


@pytest.fixture(autouse=True, scope="module")
def _avalanche() -> None:
    """Import avalanche before any training, which would be wasted without it."""
    import_avalanche()


def ours(method: str) -> TrainedSettings:
    """Return our settings for avalanche's strength: its EWC and MAS lack our factor ½."""
    theirs = STRENGTHS[method]
    match method:
        case "naive":
            return methods.Naive("naive", **PLAIN)
        case "ewc" | "ewc-of-batches":
            theirs = STRENGTHS["ewc"]
            return methods.Ewc("ewc", strength=2 * theirs["ewc_lambda"], fisher="empirical", **PLAIN)
        case "online-ewc":
            return methods.EwcOnline(
                "online",
                strength=2 * theirs["ewc_lambda"],
                decay=theirs["decay_factor"],
                fisher="empirical",
                **PLAIN,
            )
        case "si":
            return methods.Si("si", strength=theirs["si_lambda"], damping=theirs["eps"], **PLAIN)
        case "mas":
            return methods.Mas("mas", strength=2 * theirs["lambda_reg"], **PLAIN)
        case "lwf":
            return methods.Lwf(
                "lwf", strength=theirs["alpha"], temperature=theirs["temperature"], warm_up=0, **PLAIN
            )
        case "replay":
            return methods.Er("er", per_class=theirs["per_task"] // CLASSES, mix="balanced", **PLAIN)
    raise ValueError(method)


def new_trainer(method: str, stream: SmallStream) -> Trainer:
    settings = ours(method)
    module, _, name = settings.made_by.partition(":")
    body = new_body()
    body.load_state_dict(stream.body)
    made: Any = getattr(import_module(f"skillmesh_challenge.baselines.{module}"), name)
    trainer: Trainer = made(TaskNetwork(body, torch.zeros(1, INPUTS)), settings, stream.seed)
    return trainer


def our_course(method: str, stream: SmallStream) -> Course:
    trainer = new_trainer(method, stream)
    tasks = [
        BaselineTask(
            str(position),
            CLASSES,
            BaselineExamples(task.x, task.labels),
            BaselineExamples(task.test_x, task.test_labels),
        )
        for position, task in enumerate(stream.tasks)
    ]

    def accuracy(position: int) -> float:
        test = tasks[position].test
        return float((trainer.given(test.x, position) == test.labels).double().mean())

    right_after = []
    for position, task in enumerate(tasks):
        trainer.learn(task, tasks[:position])
        right_after.append(accuracy(position))
    return Course(tuple(right_after), tuple(map(accuracy, range(TASKS))))


def their_course(method: str, stream: SmallStream) -> Course:
    """Return avalanche's course, with the heads and orders that our trainer draws."""
    trainer = new_trainer("naive", stream)
    for position in range(TASKS):
        trainer.network.add_head(CLASSES, trainer.chance(position, "head"))
    heads = tuple(head.state_dict() for head in trainer.network.heads)
    orders = [trainer.chance(position, "order") for position in range(TASKS)]
    return avalanche_course(method, dataclasses.replace(stream, heads=heads), orders)


@functools.cache
def courses(method: str) -> tuple[list[Course], list[Course]]:
    """Return our courses and avalanche's, seed by seed."""
    torch.set_num_threads(1)
    streams = [small_stream(seed) for seed in SEEDS]
    return [our_course(method, stream) for stream in streams], [their_course(method, stream) for stream in streams]


@pytest.mark.parametrize("method", SAME)
def test_the_same_batches_give_the_same_learner(method: str) -> None:
    """They agree for each seed and task, except for points that rounding moves across a decision boundary."""
    for our, their in zip(*courses(method), strict=True):
        assert our.right_after == pytest.approx(their.right_after, abs=4 / TEST)
        assert our.final == pytest.approx(their.final, abs=4 / TEST)


@pytest.mark.parametrize("method", ALIKE)
def test_accuracies_agree_within_the_spread_over_seeds(method: str) -> None:
    """Tolerance where they cannot be identical: two standard errors of the difference, and half a point for
    the test images' own variation."""
    our, their = courses(method)
    for what in ("mean", "forgotten"):
        ours_, theirs = ([getattr(course, what) for course in side] for side in (our, their))
        error = math.hypot(*(statistics.stdev(values) / math.sqrt(len(SEEDS)) for values in (ours_, theirs)))
        assert abs(statistics.mean(ours_) - statistics.mean(theirs)) < 2 * error + 0.005, what


@pytest.mark.parametrize("method", [method for method in (*SAME, *ALIKE) if method != "naive"])
def test_both_forget_less_than_naive_training(method: str) -> None:
    """On every stream; otherwise two learners that do nothing would agree."""
    for naive, side in zip(courses("naive"), courses(method), strict=True):
        for without, course in zip(naive, side, strict=True):
            assert course.forgotten < without.forgotten - 0.03
            assert course.mean > without.mean + 0.02
