"""Which task an image is of, by how sure each task's network is of it: both ways of Wortsman et al. 2020.

The plain way runs the image through every task's network. In one shot (section 3.3) it runs through a network that
is the even mixture of all, and the task is the one whose coefficient, made a little larger, lowers the entropy of
the answer fastest: the most negative ∂H/∂α. There all tasks have one output layer. Here they have heads of
different sizes, so the heads side by side are the output layer, of which a task's mask keeps its own block: a
head's logits are multiplied with its coefficient. Norms use the average of all tasks' statistics.

The gradient is wanted for every image apart. Forward differentiation gives one coefficient's for a whole batch at
once, so that "one shot" is as many passes as there are tasks, but the memory of two networks and not of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import nn
from torch.func import functional_call, jvp

Parts = dict[str, torch.Tensor]
"""What tasks differ in, by its name in the body."""


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """Of each image's classes, as a share of that of an even guess."""
    logs = logits.log_softmax(dim=1)
    return -(logs.exp() * logs).sum(dim=1) / math.log(max(2, logits.shape[1]))


def named(body: nn.Module, buffers: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> Parts:
    """Values for these buffers of the body, in their shapes."""
    names = {id(buffer): name for name, buffer in body.named_buffers()}
    pairs = zip(buffers, values, strict=True)
    return {names[id(buffer)]: value.view_as(buffer).to(buffer.dtype) for buffer, value in pairs}


def averaged(tasks: Iterable[Parts]) -> Parts:
    """Of all tasks, of which one at a time is in memory."""
    total: Parts = {}
    count = 0
    for task in tasks:
        total = {name: part + total[name] if total else part for name, part in task.items()}
        count += 1
    return {name: part / count for name, part in total.items()}


def slopes(
    body: nn.Module,
    heads: Sequence[nn.Module],
    x: torch.Tensor,
    mask_of: Callable[[int], Parts],
    statistics: Parts,
) -> Iterator[torch.Tensor]:
    """Task by task, how the entropy of each image's answer changes with the task's coefficient."""
    tasks = range(len(heads))
    mixture = averaged(mask_of(task) for task in tasks)
    even = torch.full((len(heads),), 1 / len(heads), device=x.device)

    def unsure(mixed: Parts, coefficients: torch.Tensor) -> torch.Tensor:
        features = functional_call(body, mixed | statistics, (x,))
        blocks = [coefficient * head(features) for coefficient, head in zip(coefficients, heads, strict=True)]
        return entropy(torch.cat(blocks, dim=1))

    with torch.no_grad():
        for task in tasks:
            only = torch.zeros_like(even)
            only[task] = 1
            yield jvp(unsure, (mixture, even), (mask_of(task), only))[1]
