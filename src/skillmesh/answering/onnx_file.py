"""A whole agent as one ONNX file: pixels in; label, task, confidence, novelty and unknown out.

The graph repeats what the agent computes for an image of the network's size, from the same numbers: the network,
the descriptor rounded to float16, the mapper, the heads of the likely tasks, and support between classes of equal
names. Whatever runs ONNX answers with such a file; nothing of skillmesh is needed (docs/howto/take-away.md).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skillmesh.answering.answer import LEAST, Same, equal_forms
from skillmesh.answering.answering import GUESSES, UNKNOWN_BELOW, Mapper
from skillmesh.backbone.backbone import Backbone
from skillmesh.backbone.calibration import represent_in
from skillmesh.backbone.runtime import OnnxNetwork
from skillmesh.common.config import AgentConfig
from skillmesh.common.version import __version__
from skillmesh.errors import AgentError
from skillmesh.learning.class_names.pairs import joined
from skillmesh.learning.head import CAUTION
from skillmesh.module import Module
from skillmesh.numerics.graphs import Graph, Value, owners_of

FORMAT = 2
"""Version of the outputs and of the metadata."""
KEY = "skillmesh"
"""Key of the metadata: a JSON object."""
MOST_BYTES = 2**31 - 2**20
"""Largest size of a file's numbers: Protocol Buffers allow 2 GiB for all of it."""
INPUT = (
    "pixels: uint8, 1 x {size} x {size} x 3, RGB: the whole photo, upright (EXIF orientation), transparent parts "
    "on white, resized to {size} x {size} without keeping its aspect ratio, by Pillow's bicubic filter"
)
OUTPUTS = {
    "label": "index into the classes of all tasks, one list after the other; also given if the image is unknown",
    "task": "index into tasks",
    "confidence": "probability of the label: that the image is of a known task, of this one, and of this class",
    "novelty": "how little the image fits the tasks; above 1 is not answered",
    "unknown": f"true if the image is not answered, and p(known) is below {UNKNOWN_BELOW}",
    "unsure": f"true if the image is not answered, but p(known) is at least {UNKNOWN_BELOW}",
}


@dataclass(frozen=True)
class Export:
    """What a file is made of: an agent's tasks and their mapper, settings and network."""

    agent: str
    modules: list[Module]
    mapper: Mapper
    config: AgentConfig
    backbone: Backbone
    same: Same | None
    """The comparison of class names, if classes of several tasks support one another."""

    def content(self) -> bytes:
        """Return the bytes of the file; raise `AgentError` for an agent that one file cannot hold."""
        from onnx import TensorProto, helper

        refuse_adapted(self.modules)
        network = OnnxNetwork.same_as(self.backbone.network)
        graph = Graph()
        outputs = self._answer(graph, "raw")
        needed = graph.size() + 4 * network.parameters
        if needed > MOST_BYTES:
            raise AgentError(
                f"the file would have {needed / 1e9:.1f} GB, expected at most {MOST_BYTES / 1e9:.1f}, since ONNX "
                "files have at most 2 GiB; export an agent of fewer tasks"
            )
        model = network.as_model()
        graph.add_to(model)
        kinds = dict.fromkeys(("confidence", "novelty"), TensorProto.FLOAT)
        kinds |= dict.fromkeys(("unknown", "unsure"), TensorProto.BOOL)
        del model.graph.output[:]
        for name, value in outputs.items():
            model.graph.node.append(helper.make_node("Reshape", [value, "answer.one"], [name], name=name))
            kind = kinds.get(name, TensorProto.INT32)
            model.graph.output.append(helper.make_tensor_value_info(name, kind, [1]))
        model.graph.initializer.append(helper.make_tensor("answer.one", TensorProto.INT64, [1], [1]))
        model.producer_name, model.producer_version = "skillmesh", __version__
        model.graph.name = "skillmesh"
        model.doc_string = (
            f"An agent of skillmesh. The metadata entry {KEY!r} is JSON and explains input and outputs."
        )
        helper.set_model_props(model, {KEY: json.dumps(self.metadata(), ensure_ascii=False)})
        content: bytes = model.SerializeToString(deterministic=True)
        return content

    def metadata(self) -> dict[str, Any]:
        """Return what the file says about itself, as a JSON-compatible dict."""
        threshold = None if math.isinf(self.mapper.threshold) else self.mapper.threshold
        tasks = [
            {"name": module.card.task, "teacher": module.card.teacher, "licence": module.card.licence}
            | {"classes": list(module.card.classes)}
            for module in self.modules
        ]
        return {
            "format": FORMAT,
            "agent": self.agent,
            "skillmesh": __version__,
            "backbone": self.backbone.name,
            "fingerprint": self.backbone.fingerprint,
            "anchor": self.config.anchor,
            "representation": self.config.representation,
            "compact": self.config.compact,
            "support": "never" if self.same is None else self.config.support,
            "size": self.backbone.network.size,
            "input": INPUT.format(size=self.backbone.network.size),
            "outputs": OUTPUTS,
            "thresholds": {"novelty": 1, "novelty_unscaled": threshold},
            "temperature": self.mapper.temperature,
            "tasks": tasks,
        }

    # The graph.

    def _answer(self, graph: Graph, raw: Value) -> dict[str, Value]:
        """Add the answer to a graph; return the values of its outputs."""
        config, calibration = self.config, self.backbone.calibration
        x = represent_in(graph, raw, calibration.features, config.representation, calibration, config.compact)
        posterior, novelty, known = self.mapper.map_in(graph, x)
        classes = Classes(self.modules)
        names = meanings(self.modules, self.same) if self.same is not None else None
        column, confidence = classes.answer_in(graph, x, posterior, names)
        threshold = self.mapper.threshold
        relative: Value = graph.constant(0.0)
        if not math.isinf(threshold):
            over = graph("Div", graph("Sub", novelty, threshold), max(abs(threshold), 1e-9))
            relative = graph("Add", over, 1.0)
        unanswered = graph("Greater", novelty, threshold)
        hardly_known = graph("Less", known, UNKNOWN_BELOW if self.mapper.tells else 2.0)
        return {
            "label": graph("Cast", column, to="INT32"),
            "task": graph("Cast", graph("Gather", classes.owners, column, axis=0), to="INT32"),
            "confidence": graph("Mul", confidence, known),
            "novelty": relative,
            "unknown": graph("And", unanswered, hardly_known),
            "unsure": graph("And", unanswered, graph("Not", hardly_known)),
        }


class Classes:
    """All heads of an agent as one matrix: a row for each class, task after task."""

    def __init__(self, modules: Sequence[Module]) -> None:
        self.owners = owners_of([len(module.card.classes) for module in modules])
        """Index of each class's task."""
        # As they are stored: int8 with a scale for each row, or, of a merged task, floats with a scale of one.
        self._weight = np.concatenate([module.tensors["head.weight"] for module in modules])
        self._scale = np.concatenate([module.tensors["head.scale"] for module in modules])
        self._bias = np.concatenate([module.tensors["head.bias"] for module in modules])
        temperatures = np.array([module.card.temperature for module in modules], dtype=np.float32)
        self._temperature = np.float32(CAUTION) * temperatures[self.owners]
        self._tasks = len(modules)
        teachers: dict[str, int] = {}
        keys = [teachers.setdefault(module.card.teacher_key, len(teachers)) for module in modules]
        self._teachers = np.array(keys, dtype=np.int64)[self.owners]

    def answer_in(
        self, graph: Graph, x: Value, posterior: Value, names: NDArray[np.int64] | None
    ) -> tuple[Value, Value]:
        """Return the place of the answer's class, and its confidence; `names` are equal for classes that support
        one another.

        Heads run for the most probable task, and with support for all that are probable enough to take part in it.
        """
        best = graph("ArgMax", posterior, axis=1, keepdims=0)
        of_best = graph("Equal", np.arange(self._tasks), best)
        shared = names is not None and _are_shared(names, self.owners)
        likely = of_best
        if shared:
            probable = graph("GreaterOrEqual", posterior, LEAST)
            likely = graph("Or", of_best, graph("Squeeze", probable, np.array([0])))
        columns = graph.columns_of(likely, self.owners)
        owners = graph.take(self.owners, columns)
        scaled = graph(
            "Mul", graph.product(x, graph.take(self._weight, columns)), graph.take(self._scale, columns)
        )
        logits = graph("Add", scaled, graph.take(self._bias, columns))
        logits = graph("Div", logits, graph.take(self._temperature, columns))
        share = self._softmax(graph, logits, owners)
        confidence = graph("Mul", graph.take(posterior, owners), share)
        if not shared:
            place = graph("ArgMax", share, axis=1, keepdims=0)
            return graph("Gather", columns, place, axis=0), graph("ReduceMax", confidence, keepdims=0)
        assert names is not None
        in_best = graph("Where", graph("Equal", owners, best), share, -1.0)
        first = graph("ArgMax", in_best, axis=1, keepdims=0)
        return self._supported(graph, columns, confidence, first, names)

    def _softmax(self, graph: Graph, logits: Value, owners: Value) -> Value:
        """Return the softmax over the classes of each task."""
        highest = graph.best_of_each(logits, owners, self._tasks)
        exponential = graph("Exp", graph("Sub", logits, graph.take(highest, owners)))
        return graph("Div", exponential, graph.take(graph.sum_of_each(exponential, owners, self._tasks), owners))

    def _supported(
        self, graph: Graph, columns: Value, confidence: Value, first: Value, names: NDArray[np.int64]
    ) -> tuple[Value, Value]:
        """Add what `answer.supported` computes to a graph; `first` is the place of the answer without support.

        Guesses take part with a confidence of at least `LEAST`: these are at most a hundred, since all confidences
        add up to one. Groups are a matrix with a row and a column for each guess.
        """
        columns, confidence = _sorted_guesses(graph, columns, confidence, first)
        task, name, teacher = (
            graph("Gather", ids, columns, axis=0) for ids in (self.owners, names, self._teachers)
        )
        count = graph("Shape", columns)
        place = graph("Range", 0, graph("Squeeze", count), 1)
        earlier = graph("Less", place, _column(graph, place))
        same_task, same_name, same_teacher = (
            graph("Equal", ids, _column(graph, ids)) for ids in (task, name, teacher)
        )
        # A task has at most `GUESSES` guesses. Two of one task are never in one group: the second guess of a name
        # goes to the second group of that name.
        rank = _counted(graph, graph("And", same_task, earlier))
        sure = graph("GreaterOrEqual", graph("Squeeze", confidence, np.array([0])), LEAST)
        able = graph("And", sure, graph("Less", graph("Squeeze", rank, np.array([1])), float(GUESSES)))
        both_able = graph("And", able, _column(graph, able))
        again = graph("And", graph("And", same_task, same_name), graph("And", earlier, both_able))
        turn = _counted(graph, again)
        same_turn = graph("Equal", turn, graph("Transpose", turn))
        itself = graph("Equal", place, _column(graph, place))
        group = graph("Or", graph("And", graph("And", same_name, same_turn), both_able), itself)

        # Each teacher's voice in a group is its most confident guess, the first of equals.
        rows = graph("Transpose", confidence)
        surer = graph("Greater", confidence, rows)
        as_sure = graph("And", graph("Equal", confidence, rows), earlier)
        beaten = graph("And", graph("And", group, same_teacher), graph("Or", surer, as_sure))
        voice = graph("Cast", graph("Equal", _counted(graph, beaten), 0.0), to="FLOAT")
        member = graph("Cast", group, to="FLOAT")
        total, weight = graph("MatMul", member, rows), graph("MatMul", member, graph("Mul", rows, voice))
        size, voices = _counted(graph, group), graph("MatMul", member, voice)

        def of_answer(each: Value) -> Value:
            return graph("Gather", each, np.array([0]), axis=0)

        alone = graph("And", graph("Equal", voices, 1.0), graph("Equal", of_answer(voices), 1.0))
        alone = graph("And", alone, graph("Equal", _column(graph, teacher), of_answer(teacher)))
        by_total = graph("And", graph("Greater", size, 1.0), graph("Greater", total, of_answer(total)))
        by_weight = graph("And", graph("Greater", voices, 1.0), graph("Greater", weight, of_answer(weight)))
        overrules = graph("Or", graph("And", alone, by_total), graph("And", graph("Not", alone), by_weight))
        overrules = graph("And", overrules, graph("Not", graph("Transpose", of_answer(group))))
        winner = graph("ArgMax", graph("Where", overrules, weight, -1.0), axis=0, keepdims=0)  # or else the first
        of_winner = graph("Gather", group, winner, axis=0)
        shown = graph("ArgMax", graph("Where", of_winner, confidence, -1.0), axis=1, keepdims=0)
        summed = graph("Min", graph("Gather", total, winner, axis=0), 1.0)
        return graph("Gather", columns, shown, axis=0), summed


def _sorted_guesses(graph: Graph, columns: Value, confidence: Value, first: Value) -> tuple[Value, Value]:
    """Return the columns and confidences of guesses that take part in support, most confident first, but for the
    answer without support, which comes before all others."""
    count = graph("Squeeze", graph("Shape", columns))
    is_first = graph("Equal", graph("Range", 0, count, 1), first)
    takes_part = graph("Or", graph("GreaterOrEqual", confidence, LEAST), is_first)
    taking = graph("ReduceSum", graph("Cast", takes_part, to="INT64"), keepdims=0)
    ahead = graph("Add", confidence, graph("Mul", graph("Cast", is_first, to="FLOAT"), 2.0))
    order = graph("TopK", ahead, graph("Reshape", taking, np.array([1])), axis=1)
    order = graph("Squeeze", order, np.array([0]))
    return graph("Gather", columns, order, axis=0), graph.take(confidence, order)


def _column(graph: Graph, row: Value) -> Value:
    return graph("Unsqueeze", row, np.array([1]))


def _counted(graph: Graph, marks: Value) -> Value:
    """Return the number of marks in each row, (n, 1)."""
    return graph("ReduceSum", graph("Cast", marks, to="FLOAT"), np.array([1]))


def _are_shared(names: NDArray[np.int64], owners: NDArray[np.int64]) -> bool:
    """Return whether a class of one task means the same as a class of another."""
    tasks = Counter(name for name, _ in set(zip(names.tolist(), owners.tolist(), strict=True)))
    return max(tasks.values()) > 1


def meanings(modules: Sequence[Module], same: Same) -> NDArray[np.int64]:
    """Return a number for each class, equal for classes of the same meaning.

    Plain forms are equal or not; an encoder may find b like a and c, but not a like c. Then there is no number.
    """
    labels = [label for module in modules for label in module.card.classes]
    if same is equal_forms:
        forms = [joined(label) for label in labels]
        numbers = {form: number for number, form in enumerate(forms)}
        return np.array([numbers[form] for form in forms], dtype=np.int64)
    groups: list[list[str]] = []
    for label in dict.fromkeys(labels):
        fitting = [group for group in groups if any(same(label, other) for other in group)]
        similar = list(chain.from_iterable(fitting))
        if len(fitting) > 1 or not all(same(label, other) for other in similar):
            raise AgentError(
                f"the encoder of class names finds {label!r} similar to names that are not all similar to each "
                f"other ({', '.join(similar[:5])}), which a file cannot hold; set support to plain or never in "
                "the agent's settings"
            )
        if fitting:
            fitting[0].append(label)
        else:
            groups.append([label])
    numbers = {label: number for number, group in enumerate(groups) for label in group}
    return np.array([numbers[label] for label in labels], dtype=np.int64)


def refuse_adapted(modules: Sequence[Module]) -> None:
    """Raise `AgentError` if tasks adapt the backbone: each of them would need a second pass of its own."""
    adapted = [module.card.task for module in modules if module.card.adapted]
    if adapted:
        raise AgentError(
            f"{', '.join(map(repr, adapted))} adapt{'s' * (len(adapted) == 1)} the backbone, and a file holds one "
            "pass of one network; learn the task again with `--adapt none`, or export an agent without it"
        )
