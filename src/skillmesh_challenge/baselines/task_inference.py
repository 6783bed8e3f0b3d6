"""Infer the task of an image from the certainty of each task's network: both methods of Wortsman et al. 2020.

The plain method runs the image through every task's network. The one-shot method (section 3.3) runs it through an
even mixture of all networks, and chooses the task whose coefficient, if increased, lowers the answer's entropy
fastest: the most negative ∂H/∂α. In the paper all tasks share one output layer. Our tasks have heads of different
sizes, so the concatenated heads are the output layer, of which a task's mask keeps its own block: a head's logits
are multiplied with its coefficient. Batch norms use the average of all tasks' statistics.

The gradient is needed for every image separately. Forward-mode differentiation gives it for one coefficient and a
whole batch at a time, so "one shot" takes as many passes as there are tasks, but the memory of only two networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import nn
from torch.func import functional_call, jvp

Parts = dict[str, torch.Tensor]
"""Tensors that differ between tasks, by their names in the body."""


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return the entropy of each image's class probabilities, relative to that of a uniform guess."""
    logs = logits.log_softmax(dim=1)
    return -(logs.exp() * logs).sum(dim=1) / math.log(max(2, logits.shape[1]))


def named(body: nn.Module, buffers: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> Parts:
    """Return the values by buffer name, in the shapes of these buffers of the body."""
    names = {id(buffer): name for name, buffer in body.named_buffers()}
    pairs = zip(buffers, values, strict=True)
    return {names[id(buffer)]: value.view_as(buffer).to(buffer.dtype) for buffer, value in pairs}


def averaged(tasks: Iterable[Parts]) -> Parts:
    """Return the average over tasks, with one task in memory at a time."""
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
    """Yield for each task the derivative of each image's entropy with respect to the task's coefficient."""
    tasks = range(len(heads))
    mixture = averaged(mask_of(task) for task in tasks)
    even = torch.full((len(heads),), 1 / len(heads), device=x.device)

    def mixture_entropy(mixed: Parts, coefficients: torch.Tensor) -> torch.Tensor:
        features = functional_call(body, mixed | statistics, (x,))
        blocks = [coefficient * head(features) for coefficient, head in zip(coefficients, heads, strict=True)]
        return entropy(torch.cat(blocks, dim=1))

    with torch.no_grad():
        for task in tasks:
            only = torch.zeros_like(even)
            only[task] = 1
            yield jvp(mixture_entropy, (mixture, even), (mask_of(task), only))[1]
