"""A wrong argument raises a `SkillmeshError` that names it, what was found and what was expected."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skillmesh.arguments import ARGUMENTS, checked, count, flag, texts
from skillmesh.common.choices import Adaptation, WarmStart
from skillmesh.core import Core
from skillmesh.errors import ArgumentError, FolderOfTasksError, SkillmeshError
from skillmesh.synergy.composition import Pick

X, Y = np.zeros((4, 8, 8, 3)), np.zeros(4)
WRONG: dict[str, Callable[[Core], Any]] = {
    "task: found tuple; expected the path of a folder or zip": lambda a: a.learn((X, Y)),
    "task: found 5 (int); expected the path": lambda a: a.learn(5),
    "task: found None; expected the path": lambda a: a.learn(None),
    "task: found ndarray; expected the path": lambda a: a.learn(X),
    "task: found 'a\\x00b' (str); expected a path without": lambda a: a.learn("a\0b"),
    "task: found '' (str); expected a path, '.' for the current folder": lambda a: a.learn(""),
    "name: found 5 (int); expected a string": lambda a: a.learn("x", name=5),
    "name: found '\\ud800' (str); expected a string whose": lambda a: a.learn("x", name="\ud800"),
    "replace: found 'yes' (str); expected True or False": lambda a: a.learn("x", replace="yes"),
    "one_task: found 1 (int); expected True or False": lambda a: a.learn("x", one_task=1),
    "tags: found 'word' (str); expected a list of strings, even of one: ['word']": lambda a: a.learn(
        "x", tags="word"
    ),
    "tags: found None; expected a list of strings": lambda a: a.learn("x", tags=None),
    "tags[1]: found 5 (int); expected a string": lambda a: a.learn("x", tags=["a", 5]),
    "licence: found 5 (int)": lambda a: a.learn("x", licence=5),
    "note: found list": lambda a: a.learn("x", note=["a"]),
    "adaptation.mode: found 'sometimes' (str); expected 'none' or 'auto' or 'always'": lambda a: a.learn(
        "x", adaptation=Adaptation(mode="sometimes")
    ),
    "adaptation.kind: found 'magic' (str); expected 'biases' or": lambda a: a.learn(
        "x", adaptation=Adaptation(kind="magic")
    ),
    "adaptation.kind: found list; expected 'biases' or": lambda a: a.learn(
        "x", adaptation=Adaptation(kind=["biases"])
    ),
    "warm_start.mode: found True (bool); expected 'auto' or 'never'": lambda a: a.learn(
        "x", warm_start=WarmStart(True)
    ),
    "warm_start.form: found None; expected 'prior' or": lambda a: a.learn("x", warm_start=WarmStart(form=None)),
    "adaptation.layers: found 5 (int); expected a string": lambda a: a.learn("x", adaptation=Adaptation(layers=5)),
    "adaptation.epochs: found 0 (int); expected a whole number, 1 or more": lambda a: a.learn(
        "x", adaptation=Adaptation(epochs=0)
    ),
    "adaptation.epochs: found '3' (str); expected a whole number": lambda a: a.learn(
        "x", adaptation=Adaptation(epochs="3")
    ),
    "adaptation.epochs: found True (bool); expected a whole number": lambda a: a.learn(
        "x", adaptation=Adaptation(epochs=True)
    ),
    "adaptation.epochs: found 2.5 (float); expected a whole number": lambda a: a.learn(
        "x", adaptation=Adaptation(epochs=2.5)
    ),
    "adaptation: found 'always' (str); expected None or a skillmesh.Adaptation": lambda a: a.learn(
        "x", adaptation="always"
    ),
    "progress: found 'print' (str); expected an object with start() and advance()": lambda a: a.learn(
        "x", progress="print"
    ),
    "more: found 5 (int); expected the path": lambda a: a.continue_task("dice", 5),
    "task: found 5 (int); expected a string": lambda a: a.continue_task(5, "x"),
    "name: found 7 (int); expected a string": lambda a: a.compose(7, ["dice:*"]),
    "name: found None; expected a string": lambda a: a.compose(None, ["dice:*"]),
    "classes: found 'dice:*' (str); expected a list of classes": lambda a: a.compose("x", "dice:*"),
    "classes: found 7 (int); expected a list of classes": lambda a: a.compose("x", 7),
    "classes[0]: found 7 (int); expected a string": lambda a: a.compose("x", [7]),
    "classes[1].label: found 7 (int)": lambda a: a.compose("x", ["dice:*", Pick("dice", 7)]),  # type: ignore[arg-type]
    "images: found 7 (int); expected the path": lambda a: a.compose("x", ["dice:*"], images=7),
    "form: found 'odd' (str); expected 'prior' or": lambda a: a.compose("x", ["dice:*"], form="odd"),
    "tasks: found 'dice' (str); expected a list of strings": lambda a: a.merge("dice"),
    "tasks[0]: found None; expected a string": lambda a: a.merge([None]),
    "name: found bytes; expected a string": lambda a: a.merge(["dice", "latin"], name=b"x"),
    "name: found tuple": lambda a: a.unmerge(()),
    "reason: found 4 (int)": lambda a: a.unmerge("x", 4),
    "task: found dict; expected a string": lambda a: a.export({}, "x"),
    "path: found 5 (int); expected a path": lambda a: a.export("dice", 5),
    "path: found None; expected a path": lambda a: a.import_file(None),
    "data: found 'x' (str); expected the bytes": lambda a: a.import_bytes("x"),
    "task: found None; expected a string": lambda a: a.forget(None),
    "task: found 5.0 (float); expected a string": lambda a: a.find(5.0),
    "task: found list; expected a string": lambda a: a.withdraw(["dice"]),
    "reason: found list": lambda a: a.withdraw("dice", ["x"]),
    "home: found 5 (int); expected a path": lambda a: Core.open(5),  # type: ignore[arg-type]
    "home: found list; expected a path": lambda a: Core([]),  # type: ignore[arg-type]
    "home: found None; expected a path": lambda a: Core(None),  # type: ignore[arg-type]
    "device: found 5 (int); expected a string": lambda a: Core.open(a.home, device=5),
    "cache_folder: found 5 (int); expected a path": lambda a: Core.open(a.home, cache_folder=5),
    "backbone: found 'lite0' (str); expected an object with describe()": lambda a: Core.open(
        a.home, backbone="lite0"
    ),
}


@pytest.mark.parametrize("expected", WRONG)
def test_a_wrong_argument_is_named(expected: str, tiny_taught: Core):
    with pytest.raises(ArgumentError) as refusal:
        WRONG[expected](tiny_taught)
    assert str(refusal.value).startswith(expected)


def test_every_public_method_that_takes_arguments_checks_them():
    without_checks = {"answer", "answer_described", "use", "head", "seen_by", "sign", "represent", "keeps"} | {
        *("own_classes", "rebuild")
    }
    """Methods that take images, which are checked one by one, or objects that skillmesh created."""
    for name, method in inspect.getmembers(Core, inspect.isfunction):
        takes = len(inspect.signature(method).parameters) > 1 if not name.startswith("_") else name == "__init__"
        if takes and name not in without_checks:
            assert hasattr(method, "__wrapped__"), name


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=2) | st.tuples(inner) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_values_raise_a_skillmesh_error(data: st.DataObject, tiny_taught: Core):
    """No task or file has any of these names, so every call must raise a `SkillmeshError`."""
    name = data.draw(
        st.sampled_from(
            ("export", "forget", "find", "withdraw", "merge", "unmerge", "import_file", "import_bytes")
        )
    )
    method = getattr(tiny_taught, name)
    required = [p for p in inspect.signature(method).parameters.values() if p.default is p.empty]
    with pytest.raises(SkillmeshError):
        method(*(data.draw(VALUES) for _ in required))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    option=st.sampled_from(sorted(set(ARGUMENTS) & set(inspect.signature(Core.learn).parameters))), value=VALUES
)
def test_any_value_of_an_option_of_learn_raises_a_skillmesh_error(option: str, value: Any, tiny_taught: Core):
    words: dict[str, Any] = {"task": "no-such-folder"} | {option: value}
    with pytest.raises(SkillmeshError):
        tiny_taught.learn(**words)


class TestAccepted:
    def test_numbers_of_other_libraries(self):
        assert count("epochs", np.int64(3)) == 3
        assert flag("replace", np.True_) is True

    def test_any_list_of_words(self):
        for value in (["a"], ("a",), {"a"}, iter("a"), {"a": 1}.keys()):
            assert texts("tags", value) == ("a",)

    def test_homes_and_caches_as_strings(self, tiny_taught: Core, tmp_path: Path):
        agent = Core(str(tiny_taught.home), cache_folder=str(tmp_path))
        assert agent.home == tiny_taught.home
        assert [m.card.task for m in agent.tasks()] == [m.card.task for m in tiny_taught.tasks()]


class TestChecked:
    def test_missing_and_unknown_arguments_raise_pythons_own_error(self, tiny_taught: Core):
        with pytest.raises(TypeError, match=r"learn\(\) missing 1 required positional argument: 'task'"):
            tiny_taught.learn()  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'epoch'"):
            tiny_taught.learn("x", epoch=3)  # type: ignore[call-arg]

    def test_a_new_argument_must_have_a_check(self):
        with pytest.raises(AssertionError, match="has no check for \\['odd'\\]"):
            checked()(lambda odd: odd)

    def test_signature_and_docstring_are_kept(self):
        assert list(inspect.signature(Core.export).parameters) == ["self", "task", "path"]
        assert Core.export.__doc__ is not None


def test_a_folder_of_tasks_is_refused_before_the_backbone_is_loaded(tiny_tasks: Path, tmp_path: Path):
    agent = Core.open(tmp_path / "new")
    with pytest.raises(FolderOfTasksError) as refusal:
        agent.learn(tiny_tasks)
    assert "dice" in refusal.value.tasks
    assert not agent.was_asked
    assert agent.tasks() == []
