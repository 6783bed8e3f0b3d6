"""The head, a linear classifier on frozen descriptors fitted by regularised logistic regression; and probes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from skillmesh.numerics.arrays import (
    Damping,
    Floats,
    Precision,
    Spec,
    Tensors,
    dequantise_rows,
    gram_macs,
    head_macs,
    quantise_rows,
    spend,
)
from skillmesh.numerics.process import hand_back

Labels = NDArray[np.int64]

STRENGTHS = (0.1, 0.01, 0.001)
"""Regularisation strengths (weights of ½‖W‖² beside the mean log-loss), strongest first.

Each fit starts from the solution of the one before."""
DEFAULT_STRENGTH = 0.01
"""Strength used where there are no validation images to choose by."""
MAX_EXPONENT = 20
LARGE_STRENGTHS = (0.01, 0.001, 0.0001)
"""Strengths for much data: the more images, the less regularisation is needed against overfitting."""
LARGE_ROUNDS = 40
LARGE_BYTES = 2**26
"""Size of descriptors, in bytes, above which saving memory comes before speed.

Then no copies are made, and freed blocks are returned to the operating system."""
ROUNDS = 100
"""Largest number of L-BFGS iterations; each evaluates all images about once."""
TEMPERATURES = np.geomspace(0.1, 100, 121)


@dataclass(frozen=True)
class Head:
    """A linear classifier: the logit of class c is weight[c]·x + bias[c]."""

    weight: Floats
    bias: Floats
    exponent: NDArray[np.int8] | None = None
    """Columns are stored multiplied by 2^exponent, where their inputs differ much in scale."""

    def logits(self, x: Floats) -> Floats:
        return x @ self.weight.T + self.bias

    def tensors(self) -> Tensors:
        """Return the rows as int8, each with its scale: a quarter of the bytes, with no loss in accuracy."""
        weight = self.weight if self.exponent is None else np.ldexp(self.weight, self.exponent)
        quantised, scale = quantise_rows(weight)
        tensors: Tensors = {
            "head.weight": quantised,
            "head.scale": scale,
            "head.bias": self.bias.astype(np.float32),
        }
        if self.exponent is not None:
            tensors["head.exponent"] = self.exponent
        return tensors

    @classmethod
    def read(cls, tensors: Tensors) -> Head:
        weight, exponent = dequantise_rows(tensors["head.weight"], tensors["head.scale"]), None
        if "head.exponent" in tensors:
            exponent = tensors["head.exponent"]
            weight = np.ldexp(weight, -exponent)
        return cls(weight, tensors["head.bias"], exponent)

    @staticmethod
    def specs(classes: int, dim: int, exponents: bool = False) -> dict[str, Spec]:
        specs = {
            "head.weight": Spec("I8", (classes, dim)),
            "head.scale": Spec("F32", (classes,), low=0, high=1e6),
            "head.bias": Spec("F32", (classes,), low=-1e6, high=1e6),
        }
        if exponents:
            specs["head.exponent"] = Spec("I8", (dim,), low=-MAX_EXPONENT, high=MAX_EXPONENT)
        return specs


@dataclass(frozen=True)
class Fit:
    """A fitted head and its results on the validation images."""

    head: Head
    strength: float
    temperature: float
    """Divisor of the logits that calibrates the confidence of the softmax."""
    accuracy: float | None
    """Validation accuracy of the head `before`; `None` without validation images."""
    before: Head
    """The head before the validation images were added: only this one has not been trained on them."""


def fit_head(
    x: Floats,
    labels: Labels,
    val_x: Floats,
    val_labels: Labels,
    classes: int,
    rounds: int = ROUNDS,
    damping: Damping | None = None,
) -> Fit:
    """Fit a head per strength, choose by validation log-loss, then fit once more with the validation images added.

    The choice is by log-loss because the accuracy on forty images cannot tell two heads apart. The last fit gains
    0.2 points over 40 real tasks. With `damping`, directions in which views move descriptors count less.
    """
    if not len(val_x):
        head = fit_path(x, labels, classes, [DEFAULT_STRENGTH], rounds=rounds, damping=damping)[0]
        return Fit(head, DEFAULT_STRENGTH, 1.0, None, head)
    both, both_labels = np.concatenate([x, val_x]), np.concatenate([labels, val_labels])
    design = _Design.of(both, len(x), overwrite=True, damping=damping)
    train, val = design.rows[: len(x)], design.rows[len(x) :]
    if design.triangle is not None:  # the validation images' own directions: the training images have none there
        train, val = train[:, : len(x)], val[:, : len(x)]
    solutions = _path(train, labels, classes, STRENGTHS, rounds)
    judged = [
        calibrate(val @ solution[:-1].astype(np.float32) + solution[-1], val_labels) for solution in solutions
    ]
    best = min(range(len(judged)), key=lambda i: judged[i][1])
    before = design.head(solutions[best])
    accuracy = float(np.mean(before.logits(val_x).argmax(axis=1) == val_labels))
    if x.nbytes > LARGE_BYTES:
        hand_back()  # freed blocks of another size would add to the memory of the new ones
    final = _minimise(design.rows, both_labels, design.widened(solutions[best]), STRENGTHS[best], rounds)
    return Fit(design.head(final), STRENGTHS[best], judged[best][0], accuracy, before)


def strengths_up_to(strengths: Sequence[float], best: int, rounds: int) -> Sequence[float]:
    """Return the strengths to fit in order to repeat the best fit.

    With few rounds a fit does not converge, so it has to start where it did before: from the stronger ones.
    """
    return [strengths[best]] if rounds >= ROUNDS else strengths[: best + 1]


def fit_large(x: Floats, labels: Labels, val_x: Floats, val_labels: Labels, classes: int) -> tuple[Head, float]:
    """Fit a head to much data and return it with its strength.

    As `fit_head`, with weaker strengths and fewer rounds, since each round takes seconds. It stops at the first
    strength that is no better on the validation images; these are then added, and the best solution is fitted on.
    """
    mean, design, scale = _standardised(x, len(x))
    solution = np.zeros((design.shape[1] + 1, classes))
    best = (math.inf, solution, LARGE_STRENGTHS[0])
    for strength in LARGE_STRENGTHS:
        solution = _minimise(design, labels, solution, strength, LARGE_ROUNDS)
        logits = _unscaled(solution[:-1], solution[-1], mean, scale).logits(val_x)
        loss = calibrate(logits, val_labels)[1] if len(val_x) else 0.0
        if loss >= best[0]:
            break
        best = loss, solution, strength
    del design
    both, both_labels = np.concatenate([x, val_x]), np.concatenate([labels, val_labels])
    mean, design, scale = _standardised(both, len(both))
    solution = _minimise(design, both_labels, best[1], best[2], LARGE_ROUNDS)
    return _unscaled(solution[:-1], solution[-1], mean, scale), best[2]


def softmax(logits: NDArray[np.floating]) -> NDArray[np.floating]:
    exponential = np.exp(logits - logits.max(axis=1, keepdims=True))
    share: NDArray[np.floating] = exponential / exponential.sum(axis=1, keepdims=True)
    return share


def log_loss(logits: NDArray[np.floating], labels: Labels, weights: NDArray[np.floating] | None = None) -> float:
    """Return the mean of −log p(label)."""
    return float(np.average(losses(logits, labels), weights=weights))


def losses(logits: NDArray[np.floating], labels: Labels) -> NDArray[np.floating]:
    """Return −log p(label) of each image."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    of_label = shifted[np.arange(len(labels)), labels]
    # In place: 2,000 probes and 1,000 tasks take 16 MB.
    per_image: NDArray[np.floating] = np.log(np.exp(shifted, out=shifted).sum(axis=1)) - of_label
    return per_image


def best_temperature(
    logits: NDArray[np.floating], labels: Labels, weights: NDArray[np.floating] | None = None
) -> float:
    """Return the temperature of least log-loss, with a prior around 1 that dominates where images are few."""
    return calibrate(logits, labels, weights)[0]


def calibrate(
    logits: NDArray[np.floating], labels: Labels, weights: NDArray[np.floating] | None = None
) -> tuple[float, float]:
    """Return the best temperature (see `best_temperature`) and the log-loss at it."""
    if logits.shape[1] == 1:  # one class: the confidence is always 1
        return 1.0, 0.0
    means = [log_loss(logits / t, labels, weights) for t in TEMPERATURES]
    penalised = [mean * len(labels) + np.log(t) ** 2 for mean, t in zip(means, TEMPERATURES, strict=True)]
    best = int(np.argmin(penalised))
    return float(TEMPERATURES[best]), means[best]


def fit_path(
    x: Floats,
    labels: Labels,
    classes: int,
    strengths: Sequence[float],
    centre: Floats | None = None,
    bias: Floats | None = None,
    rounds: int = ROUNDS,
    overwrite: bool = False,
    damping: Damping | None = None,
) -> list[Head]:
    """Fit one head per strength by L-BFGS, each from the solution of the one before.

    `centre` holds a row per class towards which the weights are regularised, instead of towards zero. The fit then
    solves for the difference from the centre, for which the above still holds; the centre's own logits are added
    as an offset. The bias is not regularised: `bias` is only its initial value.

    `overwrite` allows `x` to be overwritten, which saves a copy of all descriptors.
    """
    design = _Design.of(x, len(x), overwrite, damping)
    if centre is not None and damping is not None:
        centre = damping.undo(centre.astype(np.float32))  # so that its logits stay the same
    middle = None if centre is None else centre.T.astype(np.float64) * design.scale
    offset = None if middle is None else (design.centred @ middle).astype(np.float32)
    start = None
    if centre is not None and bias is not None:
        start = np.zeros((design.rows.shape[1] + 1, classes))
        start[-1] = bias + centre @ design.mean
    solutions = _path(design.rows, labels, classes, strengths, rounds, start, offset)
    return [design.head(solution, middle) for solution in solutions]


def _path(
    rows: Floats,
    labels: Labels,
    classes: int,
    strengths: Sequence[float],
    rounds: int,
    start: NDArray[np.float64] | None = None,
    offset: Floats | None = None,
) -> list[NDArray[np.float64]]:
    """Return the solution for each strength, found from that of the one before; the first from `start` or zero."""
    solution = np.zeros((rows.shape[1] + 1, classes)) if start is None else start
    solutions = []
    for strength in strengths:
        solution = _minimise(rows, labels, solution, strength, rounds, offset)
        solutions.append(solution)
    return solutions


@dataclass(frozen=True)
class _Design:
    """Images in the form that heads are fitted on.

    Few images in many dimensions span a small subspace, and the optimum lies in it: the images are then replaced
    by the Cholesky factor of their Gram matrix (n × n), which has the same inner products. Its first m rows are
    zero beyond their first m columns, so a head can be fitted on the first m images alone with the same factor.
    """

    centred: Floats
    """The images, centred and scaled."""
    mean: Floats
    scale: np.float32
    triangle: NDArray[np.float64] | None
    """The factor, where images are few."""
    rows: Floats
    """What takes the place of the images: the factor, or the images themselves."""
    damping: Damping | None
    """What the images were multiplied by."""

    @classmethod
    def of(cls, x: Floats, measured: int, overwrite: bool = False, damping: Damping | None = None) -> _Design:
        """Return the design of images, damped, then centred and scaled by the first `measured` of them."""
        if damping is not None:
            x, overwrite = damping.apply(x, out=x if overwrite else None), True
        mean, centred, scale = _standardised(x, measured, overwrite)
        if 2 * len(x) > x.shape[1]:
            return cls(centred, mean, scale, None, centred, damping)
        triangle = _gram_factor(centred)
        return cls(centred, mean, scale, triangle, triangle.astype(np.float32), damping)

    def widened(self, solution: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a solution on the first images as a solution on all."""
        wide = np.zeros((self.rows.shape[1] + 1, solution.shape[1]))
        wide[: len(solution) - 1], wide[-1] = solution[:-1], solution[-1]
        return wide

    def head(self, solution: NDArray[np.float64], middle: NDArray[np.floating] | None = None) -> Head:
        """Return the head of a solution on the first images or all; `middle` is added to its weights."""
        from scipy.linalg import solve_triangular  # here: agents that only pass modules on do without its 30 MB

        inner: NDArray[np.floating] = solution[:-1]
        if self.triangle is not None:
            size = len(inner)
            inner = solve_triangular(self.triangle[:size, :size], inner, lower=True, trans="T")
            inner = self.centred[:size].T @ inner
        if middle is not None:
            inner = inner + middle
        head = _unscaled(inner, solution[-1], self.mean, self.scale)
        # The damping is symmetric, so rows that are multiplied by it too work on images as they are.
        return head if self.damping is None else replace(head, weight=self.damping.apply(head.weight))


def _standardised(x: Floats, measured: int, overwrite: bool = False) -> tuple[Floats, Floats, np.float32]:
    """Return the mean of the first `measured` images, all images centred and scaled by these, and the scale.

    With unit variance on average, a strength means the same for every task. With `overwrite`, the result takes the
    place of `x`.
    """
    mean = x[:measured].mean(axis=0, dtype=np.float64).astype(np.float32)
    centred = np.subtract(x, mean, out=x if overwrite else None)
    first = centred[:measured]
    if x.nbytes > LARGE_BYTES:
        square = sum(float(np.square(first[i : i + 1024]).sum(dtype=np.float64)) for i in range(0, measured, 1024))
        scale = np.float32(np.sqrt(square / first.size) or 1.0)
    else:
        scale = np.float32(np.sqrt(np.square(first).mean(dtype=np.float64)) or 1.0)
    centred /= scale
    return mean, centred, scale


def _unscaled(inner: NDArray[np.floating], bias: NDArray[np.floating], mean: Floats, scale: np.float32) -> Head:
    """Convert a solution on standardised images to a head on raw ones."""
    weight = inner / scale
    bias = bias - mean @ weight
    return Head(np.ascontiguousarray(weight.T, dtype=np.float32), bias.astype(np.float32))


def _gram_factor(centred: Floats) -> NDArray[np.float64]:
    exact: NDArray[np.float64] = centred.astype(np.float64)
    gram = exact @ exact.T
    spend("head", gram_macs(*centred.shape))
    # Centring lowers the rank by one, and equal images lower it further: a tiny ridge keeps the matrix definite.
    gram[np.diag_indices_from(gram)] += 1e-7 * np.trace(gram) / len(gram) + 1e-12
    return np.asarray(np.linalg.cholesky(gram))


def _minimise(
    design: Floats,
    labels: Labels,
    start: NDArray[np.float64],
    strength: float,
    rounds: int = ROUNDS,
    offset: Floats | None = None,
) -> NDArray[np.float64]:
    """Minimise the mean log-loss + strength/2·‖W‖² over (W; bias), from `start`; logits get `offset` added."""
    from scipy.optimize import minimize

    rows = np.arange(len(labels))
    transposed = design.T if design.nbytes > LARGE_BYTES else np.ascontiguousarray(design.T)

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weight, bias = flat.reshape(start.shape)[:-1].astype(np.float32), flat.reshape(start.shape)[-1]
        logits = design @ weight + bias.astype(np.float32)
        if offset is not None:
            logits += offset
        logits -= logits.max(axis=1, keepdims=True)
        share = np.exp(logits)
        norm = share.sum(axis=1)
        loss = float(np.mean(np.log(norm) - logits[rows, labels], dtype=np.float64))
        share /= norm[:, None]
        share[rows, labels] -= 1
        share /= len(labels)
        gradient = np.empty(start.shape)
        gradient[:-1] = transposed @ share + strength * weight
        gradient[-1] = share.sum(axis=0)
        return loss + strength / 2 * float(np.vdot(weight, weight)), gradient.ravel()

    options = {"maxiter": rounds, "ftol": 1e-5, "gtol": 1e-6}
    result = minimize(objective, start.ravel(), jac=True, method="L-BFGS-B", options=options)
    spend("head", head_macs(len(design), design.shape[1], start.shape[1], result.nfev))
    solution: NDArray[np.float64] = result.x.reshape(start.shape)
    return solution


CAUTION = 1.2
"""Factor of a head's temperature where it answers: the validation images that the temperature was chosen on were
taken by the same hands as the training images, and others are not."""


def class_shares(logits: NDArray[np.floating], temperature: float) -> NDArray[np.floating]:
    """Return how probable each class of a task is, given that the image shows one of them."""
    return softmax(logits / (CAUTION * temperature))


# A head in closed form, from class means and their common scatter.


def closed_form(means: Floats, precision: Precision) -> Head:
    """Return the linear discriminant of classes with these means and one common scatter: μᵀPx − ½μᵀPμ."""
    rows = precision.apply(means, precision.along(means)).astype(np.float32)
    return Head(rows, np.asarray(-0.5 * np.einsum("ij,ij->i", rows, means), dtype=np.float32))


# Probes: a few validation descriptors that travel with a module.
#
# A module must not depend on the bank in which it was made, so it cannot carry a threshold for "unknown" or a
# scale for confidence. With the probes, every agent that holds the module computes both for its own bank.

SHARES = (0.5, 0.3, 0.12, 0.08)
"""Share of the validation images that each probe represents, from the most usual to the most unusual.

Four random images would say little about the most unusual 5 %, where "unknown" begins. The probes are the middle
images of four ranges of novelty, so that all validation images count; statistics weight each probe by its share.
"""


def choose_probes(x: Floats, novelty: Floats) -> Floats:
    """Choose probes by their novelty to the task's own anchor alone, which does not depend on the bank."""
    order = np.argsort(novelty, kind="stable")
    if len(order) <= len(SHARES):
        return x[order]
    middles = np.cumsum(SHARES) - np.array(SHARES) / 2
    return x[order[(middles * len(order)).astype(np.int64)]]


def probe_weights(validation_images: int) -> NDArray[np.float64]:
    """Return the share of the validation images that each probe represents."""
    if validation_images > len(SHARES):
        return np.array(SHARES)
    return np.full(validation_images, 1 / max(validation_images, 1))


def probe_tensors(probes: Floats) -> Tensors:
    if not len(probes):
        return {}
    values, scale = quantise_rows(probes)
    return {"probe": values, "probe.scale": scale}


def probe_specs(validation_images: int, dim: int) -> dict[str, Spec]:
    """Return the expected probe tensors; a module without validation images has none."""
    count = min(validation_images, len(SHARES))
    if not count:
        return {}
    return {"probe": Spec("I8", (count, dim)), "probe.scale": Spec("F32", (count,), low=0, high=10)}


def read_probes(tensors: Tensors, dim: int) -> Floats:
    if "probe" not in tensors:
        return np.empty((0, dim), dtype=np.float32)
    return dequantise_rows(tensors["probe"], tensors["probe.scale"])
