"""Which classes a composed task is made of: `task:class`, `task:*`, `task:class=new name`.

Names of tasks and classes may hold these signs themselves. A word is read in every way that names a task and a
class that are there; where more than one is left, the user is asked to mark the signs that belong to a name with a
backslash, and nothing is guessed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from skillmesh.errors import AgentError, AmbiguousTaskError, UnknownTaskError
from skillmesh.module import Module
from skillmesh.store.bank import Bank

SIGNS = ":=*"
ALL = "*"


@dataclass(frozen=True)
class Pick:
    """A class, as a program names it; `name` is what it is to be called in the new task."""

    task: str
    label: str
    name: str | None = None


@dataclass(frozen=True)
class Picked:
    """A class of a module in the bank, and its name in the new task."""

    module: Module
    index: int
    name: str

    @property
    def origin(self) -> str:
        """As the new task's card records it."""
        return f"{self.module.id}:{self.module.card.classes[self.index]}"


def pick(bank: Bank, wanted: Sequence[str | Pick]) -> list[Picked]:
    """Find the classes, in the order in which they were named."""
    picked = [found for each in wanted for found in _found(bank, each)]
    _refuse_twice(picked)
    if len(picked) < 2:
        raise AgentError(
            f"{len(picked)} class was named, expected two or more; name others as task:class or task:*"
        )
    return picked


def _found(bank: Bank, wanted: str | Pick) -> list[Picked]:
    if isinstance(wanted, str):
        return _read(bank, wanted)
    module = bank.find(wanted.task)
    if wanted.label not in module.card.classes:
        raise _no_class(module, wanted.label)
    return [_one(module, wanted.label, wanted.name or wanted.label)]


def _one(module: Module, label: str, name: str) -> Picked:
    return Picked(module, module.card.classes.index(label), unicodedata.normalize("NFC", name.strip()))


def _read(bank: Bank, word: str) -> list[Picked]:
    """All ways to read a word; exactly one must be left."""
    readings, tasks, errors = [], [], []
    for task, rest in _splits(word, ":"):
        try:
            module = bank.find(_plain(task))
        except UnknownTaskError as error:
            errors.append(error)
            continue
        tasks.append((module, rest))
        readings += _readings(module, rest)
    if len(readings) == 1:
        return readings[0]
    if readings:
        ways = " or ".join(_words(reading) for reading in readings)
        raise AgentError(f"{word!r} can mean {ways}; put a backslash before each ':', '=' or '*' of a name")
    if tasks:
        raise _no_class(tasks[0][0], _plain(tasks[0][1]))
    if not errors:
        raise AgentError(f"{word!r} names no class; expected task:class, task:* or task:class=new name")
    raise min(errors, key=lambda error: not isinstance(error, AmbiguousTaskError))


def _readings(module: Module, rest: str) -> list[list[Picked]]:
    classes, found = module.card.classes, []
    if rest == ALL:
        found.append([_one(module, label, label) for label in classes])
    if _plain(rest) in classes:
        found.append([_one(module, _plain(rest), _plain(rest))])
    for label, name in _splits(rest, "="):
        if _plain(label) in classes and name.strip():
            found.append([_one(module, _plain(label), _plain(name))])
    return found


def _splits(word: str, sign: str) -> Iterator[tuple[str, str]]:
    """Both sides of each such sign that has no backslash before it."""
    for place, letter in enumerate(word):
        if letter == sign and word[place - 1 : place] != "\\":
            yield word[:place], word[place + 1 :]


def _plain(text: str) -> str:
    """Without the backslashes that mark signs; any other stays."""
    for sign in SIGNS:
        text = text.replace(f"\\{sign}", sign)
    return unicodedata.normalize("NFC", text)


def _words(reading: list[Picked]) -> str:
    first = reading[0]
    task, label = first.module.card.task, first.module.card.classes[first.index]
    if len(reading) > 1:
        return f"all classes of {task!r}"
    renamed = f", called {first.name!r}" if first.name != label else ""
    return f"the class {label!r} of {task!r}{renamed}"


def _no_class(module: Module, label: str) -> AgentError:
    known = ", ".join(map(repr, module.card.classes[:20]))
    more = f" and {len(module.card.classes) - 20} more" if len(module.card.classes) > 20 else ""
    return AgentError(f"the task {module.card.task!r} has no class {label!r}; its classes are {known}{more}")


def _refuse_twice(picked: Sequence[Picked]) -> None:
    origins: set[str] = set()
    names: dict[str, Picked] = {}
    for each in picked:
        label, task = each.module.card.classes[each.index], each.module.card.task
        if each.origin in origins:
            raise AgentError(f"the class {label!r} of {task!r} was named twice, expected each once; leave one out")
        if (other := names.get(each.name)) is not None:
            raise AgentError(
                f"two classes would be called {each.name!r}, one of {other.module.card.task!r}, one of {task!r}; "
                f"expected different names; rename one: '{task}:{label}=another name'"
            )
        origins.add(each.origin)
        names[each.name] = each
