"""Checks of the arguments of public functions, chosen by argument name, before any work is done."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar, cast, get_args

from skillmesh.common import choices as names
from skillmesh.common.files import LONGEST_PART, too_long
from skillmesh.errors import ArgumentError

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[str, Any], Any]
"""Function of an argument's name and value that returns the value to use, or raises an `ArgumentError`."""


def checked(**special: Check) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that checks each argument with its entry in `special`, or else in `ARGUMENTS`."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
        rest = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
        checks = ARGUMENTS | special
        unknown = [p.name for p in parameters if p.name != rest and p.name not in checks]
        assert not unknown, f"arguments.py has no check for {unknown} of {function.__qualname__}"

        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [(p.name, checks.get(p.name)) for p in signature.parameters.values() if p.kind in kinds]
        named = checks.keys() if rest else {p.name for p in parameters} & checks.keys()

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if len(args) > len(positional):
                return function(*args, **kwargs)  # raises Python's error for an argument too many
            # Not `signature.bind`, which takes several times as long as the checks.
            values = [
                value if check is None else check(name, value)
                for (name, check), value in zip(positional, args, strict=False)
            ]
            others = {
                name: checks[name](name, value) if name in named else value for name, value in kwargs.items()
            }
            return cast("Callable[..., R]", function)(*values, **others)

        return call

    return wrap


def wrong(name: str, value: Any, expected: str) -> ArgumentError:
    """Return the error that names the argument, the value found and the value expected."""
    shown = repr(value) if isinstance(value, str | int | float | None) else ""
    shown = f"{shown[:57]}…" if len(shown) > 60 else shown
    kind = type(value).__name__
    description = shown if value is None else f"{shown} ({kind})" if shown else kind
    return ArgumentError(f"{name}: found {description}; expected {expected}")


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong(name, value, "a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise wrong(name, value, "a string whose characters can be written as UTF-8") from None
    return value


def flag(name: str, value: Any) -> bool:
    if type(value).__name__ not in ("bool", "bool_"):  # NumPy has a bool of its own
        raise wrong(name, value, "True or False")
    return bool(value)


def count(name: str, value: Any) -> int:
    """Return a whole number, 1 or more, from an integer type of any library."""
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise wrong(name, value, "a whole number, 1 or more")
    return number


def views(name: str, value: Any) -> float | None:
    """Return a share below 1 or a whole number of views, from a number type of any library; `None` is kept."""
    if value is None:
        return None
    number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    if not 0 <= number <= names.MOST_VIEWS or (number > 1 and number != int(number)):
        raise wrong(
            name, value, f"a share of the training images below 1, or a whole number up to {names.MOST_VIEWS}"
        )
    return number


def anything(name: str, value: Any) -> Any:
    """Return the value unchecked: images are checked one by one where they are read."""
    return value


def path(name: str, value: Any) -> Any:
    """Return a path unchanged, or raise an error if it cannot name a file."""
    if not isinstance(value, str | os.PathLike):
        raise wrong(name, value, "a path: a string or a pathlib.Path")
    if not os.fspath(value):  # pathlib would read it as the current folder
        raise wrong(name, value, "a path, '.' for the current folder")
    if "\0" in os.fsdecode(value):
        raise wrong(name, os.fsdecode(value), "a path without a null character")
    if not isinstance(os.fspath(value), str):
        raise wrong(name, value, "a path of text, not of bytes")
    if too_long(value):
        raise wrong(name, os.fsdecode(value), f"a path whose parts have at most {LONGEST_PART} bytes each")
    return value


def task_images(name: str, value: Any) -> Any:
    """Return the source of a task's images: a path, or `TaskImages` that are already open."""
    from skillmesh.data.folder import TaskImages

    if isinstance(value, TaskImages):
        return value
    if not isinstance(value, str | os.PathLike):
        raise wrong(
            name,
            value,
            "the path of a folder or zip with class/image.jpg inside, or images with labels",
        )
    return path(name, value)


def content(name: str, value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise wrong(name, value, "the bytes of a .skill file; for its path, use import_file")
    return bytes(value)


def texts(name: str, value: Any) -> tuple[str, ...]:
    return tuple(text(f"{name}[{index}]", item) for index, item in enumerate(_several(name, value, "strings")))


def picks(name: str, value: Any) -> tuple[Any, ...]:
    """Return the classes from which a task is composed, each a string or a `Pick`."""
    from skillmesh.synergy.composition import Pick

    items = _several(name, value, "classes, each as 'task:class' or a Pick")
    for index, item in enumerate(items):
        if isinstance(item, Pick):
            text(f"{name}[{index}].task", item.task)
            text(f"{name}[{index}].label", item.label)
            optional(text)(f"{name}[{index}].name", item.name)
        else:
            text(f"{name}[{index}]", item)
    return items


def _several(name: str, value: Any, what: str) -> tuple[Any, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong(name, value, f"a list of {what}, even of one: [{value!r}]" if value else f"a list of {what}")
    try:
        return tuple(value)
    except TypeError:  # an array without an axis
        raise wrong(name, value, f"a list of {what}") from None


def one_of(literal: Any) -> Check:
    choices = get_args(literal)

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, str) or value not in choices:
            raise wrong(name, value, " or ".join(map(repr, choices)))
        return value

    return check


def optional(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def having(*methods: str) -> Check:
    """Return a check that accepts objects of any class that have these methods."""

    def check(name: str, value: Any) -> Any:
        if isinstance(value, type) or not all(callable(getattr(value, method, None)) for method in methods):
            raise wrong(
                name, value, f"an object with {' and '.join(f'{method}()' for method in methods)}, or None"
            )
        return value

    return check


def group(kind: type, fields: dict[str, Check]) -> Check:
    """Return a check for a group of options that checks every field."""

    def check_all(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise wrong(name, value, f"None or a skillmesh.{kind.__name__}, such as {kind()!r}")
        return kind(**{field: check(f"{name}.{field}", getattr(value, field)) for field, check in fields.items()})

    return check_all


ADAPTATION: dict[str, Check] = {
    "mode": one_of(names.AdaptMode),
    "kind": one_of(names.AdaptationKind),
    "layers": text,
    "epochs": optional(count),
    "mirrored": flag,
    "from_plain_head": flag,
}
WARM_START: dict[str, Check] = {"mode": one_of(names.WarmMode), "form": one_of(names.WarmForm)}
ARGUMENTS: dict[str, Check] = {
    "home": optional(path),
    "device": optional(text),
    "cache_folder": optional(path),
    "backbone": optional(having("describe", "represent")),
    "progress": optional(having("start", "advance")),
    "total": optional(count),
    "task": text,
    "tasks": texts,
    "name": optional(text),
    "more": task_images,
    "images": optional(task_images),
    "classes": picks,
    "path": path,
    "data": content,
    "replace": flag,
    "one_task": flag,
    "licence": optional(text),
    "note": optional(text),
    "reason": optional(text),
    "tags": texts,
    "epochs": optional(count),
    "adaptation": optional(group(names.Adaptation, ADAPTATION)),
    "warm_start": optional(group(names.WarmStart, WARM_START)),
    "form": one_of(names.Refining),
    "sharing": optional(one_of(names.Sharing)),
    "views": views,
}
"""Checks of the public functions' arguments, by argument name."""
