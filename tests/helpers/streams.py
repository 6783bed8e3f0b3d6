"""A small stream of tasks on which a naive learner forgets, and the initial weights of every learner."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

INPUTS, HIDDEN, CLASSES, TASKS = 10, 24, 4, 4
CLUSTERS = 4
"""Clusters per class, so that the classes are not linearly separable."""
TRAIN, TEST = 320, 400
EPOCHS, BATCH, RATE = 12, 16, 0.1


@dataclass(frozen=True)
class SmallTask:
    """Points of classes 0 to 3, shuffled."""

    x: torch.Tensor
    labels: torch.Tensor
    test_x: torch.Tensor
    test_labels: torch.Tensor


@dataclass(frozen=True)
class SmallStream:
    """Tasks in their order, and the initial weights."""

    seed: int
    tasks: tuple[SmallTask, ...]
    body: dict[str, torch.Tensor]
    heads: tuple[dict[str, torch.Tensor], ...]
    """One for each task, with `weight` and `bias`."""


@dataclass(frozen=True)
class Course:
    """The accuracy of a learner on each task."""

    right_after: tuple[float, ...]
    """Accuracy when the task had just been learned."""
    final: tuple[float, ...]
    """Accuracy after the last task."""

    @property
    def mean(self) -> float:
        return sum(self.final) / len(self.final)

    @property
    def forgotten(self) -> float:
        """Return the mean loss of accuracy on all tasks but the last."""
        lost = [before - after for before, after in zip(self.right_after, self.final, strict=True)]
        return sum(lost[:-1]) / (len(lost) - 1)


def new_body() -> nn.Sequential:
    """Return the two layers that all tasks share."""
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())


def small_stream(seed: int) -> SmallStream:
    """Return tasks of the same clusters, rotated and with other classes, so that they need different bodies."""
    chance = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(CLUSTERS * CLASSES, INPUTS, generator=chance) / INPUTS**0.25
    tasks = tuple(_task(centres, chance) for _ in range(TASKS))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = new_body().state_dict()
        heads = tuple(nn.Linear(HIDDEN, CLASSES).state_dict() for _ in range(TASKS))
    return SmallStream(seed, tasks, body, heads)


def _task(centres: torch.Tensor, chance: torch.Generator) -> SmallTask:
    rotation = torch.linalg.qr(torch.randn(INPUTS, INPUTS, generator=chance)).Q
    class_of = torch.randperm(len(centres), generator=chance) % CLASSES
    clusters = torch.randperm(TRAIN + TEST, generator=chance) % len(centres)
    noise = 0.4 * torch.randn(len(clusters), INPUTS, generator=chance)
    x, labels = (centres[clusters] + noise) @ rotation, class_of[clusters]
    return SmallTask(x[:TRAIN], labels[:TRAIN], x[TRAIN:], labels[TRAIN:])
