"""A forward pass that asks Python for nothing once it has begun.

Run step by step, a network gives Python's lock away with each of its hundreds of operations and wants it back.
Where another thread works meanwhile (a node that takes modules in, say), it waits every time, and an answer of 20
ms may take seconds. A recorded pass wants the lock back once.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

import torch

log = logging.getLogger(__name__)

Pass = Callable[..., torch.Tensor]


def in_one_go(run: Pass, example: tuple[torch.Tensor, ...]) -> Pass:
    """Record what `run` does with inputs of the example's shape.

    Where the recorded pass does not give the same to the bit, `run` itself is what is returned.
    """
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            # torch recommends compilers in its place; they need one on the user's machine and change the numbers.
            warnings.simplefilter("ignore")
            recorded: Pass = torch.jit.trace(run, example, check_trace=False)  # type: ignore[no-untyped-call]
            twice = [recorded(*example) for _ in range(2)]  # the second run is the optimised one
            expected = run(*example)
    except Exception as error:  # whatever a network or a release of torch cannot do
        log.debug("the network runs step by step: %s", error)
        return run
    return recorded if all(torch.equal(expected, got) for got in twice) else run
