"""Writing ONNX graphs, so that other programs can repeat what this package computes.

The package onnx is imported only when a model is made of a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skillmesh.numerics.arrays import Array, Floats

Value = str
"""Name of a value in a graph. Values that belong to one image have the shape (1, n), like a batch of one."""
OPSET = 18
PREFIX = "answer."
"""What the names of nodes and values begin with, so that they differ from those of a network's graph."""


class Graph:
    """A graph that grows node by node. Only operators of ONNX itself are used.

    Operands are values of the graph, or constants: arrays, floats (as float32) and integers (as int64).
    """

    def __init__(self) -> None:
        self.nodes: list[tuple[str, list[Value], Value, dict[str, Any]]] = []
        """Operator, inputs, output and attributes of each node."""
        self.constants: dict[Value, Array] = {}

    def __call__(self, operator: str, *operands: Value | Array | float, **attributes: Any) -> Value:
        """Add a node and return its value; of several outputs, the last, which is the one used of TopK."""
        output = f"{PREFIX}{len(self.nodes)}.{operator}"
        inputs = [each if isinstance(each, str) else self.constant(each) for each in operands]
        self.nodes.append((operator, inputs, output, attributes))
        return output

    def constant(self, content: Array | float) -> Value:
        """Add a constant and return its value. The same array, or an equal single number, is added only once."""
        kind = {int: np.int64, float: np.float32}.get(type(content))
        array = np.asarray(content, dtype=kind, order="C")
        for name, known in self.constants.items():
            if known is array or (array.size == 1 and _equal(known, array)):
                return name
        name = f"{PREFIX}constant.{len(self.constants)}"
        self.constants[name] = array
        return name

    # What several parts of an answer need.

    def product(self, x: Value, rows: Value | Array) -> Value:
        """Return x · rowsᵀ. Rows of int8 are converted; the caller applies their scales."""
        if not isinstance(rows, np.ndarray) or rows.dtype != np.float32:
            rows = self("Cast", rows, to="FLOAT")
        return self("Gemm", x, rows, transB=1)

    def squares(self, x: Value) -> Value:
        """Return the sum of squares, (1, 1)."""
        return self("ReduceSumSquare", x, np.array([1]))

    def largest(self, x: Value) -> Value:
        """Return the largest number, (1, 1)."""
        return self("ReduceMax", x, np.array([1]))

    def smallest(self, x: Value) -> Value:
        return self("ReduceMin", x, np.array([1]))

    def take(self, data: Value | Array, places: Value) -> Value:
        """Return the entries of one row or of a vector, or the rows of a matrix of constants, at these places."""
        if isinstance(data, str):
            return self("Gather", data, places, axis=1)
        return self("Gather", data, places, axis=0)

    def best_of_each(self, x: Value, owners: Value | NDArray[np.int64], count: int) -> Value:
        """Return the largest number of each owner, (1, count); −∞ for an owner that has none."""
        return self._grouped(x, owners, np.full((1, count), -np.inf, dtype=np.float32), "max")

    def sum_of_each(self, x: Value, owners: Value | NDArray[np.int64], count: int) -> Value:
        return self._grouped(x, owners, np.zeros((1, count), dtype=np.float32), "add")

    def _grouped(self, x: Value, owners: Value | NDArray[np.int64], start: Floats, how: str) -> Value:
        row = owners[None] if isinstance(owners, np.ndarray) else self("Unsqueeze", owners, np.array([0]))
        return self("ScatterElements", start, row, x, axis=1, reduction=how)

    def columns_of(self, chosen: Value, owners: NDArray[np.int64]) -> Value:
        """Return the places of the columns whose owners are chosen; `chosen` has a truth value for each owner."""
        wanted = self("Gather", chosen, owners, axis=0)
        return self("Squeeze", self("NonZero", wanted), np.array([0]))

    def size(self) -> int:
        """Number of bytes of all constants."""
        return sum(array.nbytes for array in self.constants.values())

    def add_to(self, model: Any) -> None:
        """Add all nodes and constants to an ONNX model."""
        from onnx import TensorProto, helper, numpy_helper

        for name, array in self.constants.items():
            model.graph.initializer.append(numpy_helper.from_array(array, name))
        for operator, inputs, output, attributes in self.nodes:
            if "to" in attributes:
                attributes = attributes | {"to": getattr(TensorProto, attributes["to"])}
            outputs = [f"{output}.values", output] if operator == "TopK" else [output]
            model.graph.node.append(helper.make_node(operator, inputs, outputs, name=output, **attributes))


def _equal(one: Array, other: Array) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()


def owners_of(sizes: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the owner of each column, where the owners have this many columns each."""
    return np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
