"""What learning costs, in multiply–accumulates (MACs): counted by one counter, whatever the method.

Whoever multiplies says so with `spend`; whoever wants to know wraps the work in `counted`. A pass over images
whose descriptors lie in the cache is counted too: it was spent once.

A pass counts the products of all convolutions and linear layers; norms, activations, pooling and attention's own
products are left out. Training biases needs no gradient of a weight: backwards, each layer behind the first biased
one costs once more what it cost forwards. Closed forms and EM count the products of their matrices.

Counted by formulas, since `torch.utils.flop_counter` sees no products of numpy, which are most of what a node
spends beside its passes, and counts the backward pass of grouped convolutions far too high (20 times for all of
lite0, torch 2.13). Of forward passes both give the same; tests hold them against each other.

A node's memory is why some other things are written by hand that a library has: the tail of a binomial in
`vetting/harm.py` (scipy.stats costs 16 MB). The rest of scipy (30 MB) is imported inside of functions.
`skillmesh_challenge` runs in no node and uses scipy.stats, pydantic, Jinja2 and torch's counter as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class Costs:
    """MACs by what they were spent on."""

    spent: dict[str, float] = field(default_factory=dict)

    def add(self, what: str, macs: float) -> None:
        self.spent[what] = self.spent.get(what, 0.0) + macs

    @property
    def total(self) -> float:
        return sum(self.spent.values())


_counter: ContextVar[Costs | None] = ContextVar("counter", default=None)


def spend(what: str, macs: float) -> None:
    """Note what was just multiplied, if anyone counts."""
    if (counter := _counter.get()) is not None:
        counter.add(what, macs)


@contextmanager
def counted() -> Iterator[Costs]:
    """Count what is spent inside, in this thread; whoever counts around it counts that too."""
    costs = Costs()
    token = _counter.set(costs)
    try:
        yield costs
    finally:
        _counter.reset(token)
        for what, macs in costs.spent.items():
            spend(what, macs)


def gram_macs(rows: int, columns: int) -> float:
    """Of a matrix (rows × columns) times its own transpose: BLAS computes one half and mirrors it."""
    return rows * (rows + 1) / 2.0 * columns


def cholesky_macs(size: int) -> float:
    """Of the root of a positive definite matrix; its triangle's inverse costs the same again."""
    return size**3 / 6.0


def em_macs(images: int, dim: int, clusters: int, rounds: int) -> float:
    """Of a mixture with diagonal covariances: two products per round, responsibilities and moments."""
    return 4.0 * images * dim * clusters * rounds


def head_macs(images: int, dim: int, classes: int, evaluations: int) -> float:
    """Of a head by gradient descent or L-BFGS: logits and their gradient in each evaluation."""
    return 2.0 * images * dim * classes * evaluations
