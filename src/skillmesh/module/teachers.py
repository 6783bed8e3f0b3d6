"""Names of teachers: the name that this user gave to a key wins over the name that the key's owner claims.

A module names its teacher, and anyone can claim to be "anna". So a name is shown alone only if this user gave it
(`skillmesh trust add KEY --name anna`), or if it is the agent's own. Every other teacher is shown with the claimed
name and the beginning of its key: `anna~3f9a2c1e`.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

from skillmesh.common.text import Lookalikes, hidden, reading, safe, with_letters
from skillmesh.errors import AgentError, OddNameError
from skillmesh.module.card import Card
from skillmesh.module.format import Module
from skillmesh.module.identity import is_name, show
from skillmesh.module.notice import parts_of

MARK = "~"
"""Separator between a claimed name and the beginning of the key."""
TOGETHER = " + "
"""Separator between the names of a merged task's teachers."""
SHOWN = 8
"""Number of hex digits of a key that are shown after a claimed name."""
_LIKE_A_KEY = re.compile(r"[0-9a-fA-F]{8,}")
_LIKE_A_SELECTOR = re.compile(r".*@.*|.*~[0-9a-fA-F]{8,}|(?!\d{8,31}$|[a-fA-F]{8,15}$)[0-9a-fA-F]{8,}")
"""Names that no task may have: a selector, a claimed name, a key or its beginning. Digits alone are allowed as a
date, and a few letters alone as a word, such as `Fabaceae`."""
TASK_RULE = "a name without '@' and without invisible characters that does not look like a key"


class Signed(Protocol):
    """A card or a notice, signed by a key under a name that its owner chose."""

    @property
    def task(self) -> str: ...

    @property
    def teacher(self) -> str: ...

    @property
    def teacher_key(self) -> str: ...


class Teachers:
    """The names by which one agent calls teachers."""

    def __init__(self, given: Mapping[str, str]) -> None:
        """Take names by key: those that the user gave and the agent's own; an empty string means no name."""
        given = {key: name for key, name in given.items() if name}
        count = Counter(given.values())
        self._given = {key: name if count[name] == 1 else marked(name, key) for key, name in given.items()}
        self._lookalikes = Lookalikes(given.values())

    def name(self, signed: Signed) -> str:
        """Return this agent's name for the teacher of a card or notice."""
        return self.called(signed.teacher_key, signed.teacher)

    def called(self, key: str, claim: str | None) -> str:
        """Return the name that the user gave to a key, else the claimed name with the beginning of the key."""
        if key in self._given or claim is None:
            return self._given.get(key, key[:12])
        return marked(with_letters(claim, self.odd_letters(key, claim)), key)

    def odd_letters(self, key: str, claim: str | None) -> list[str]:
        """Return descriptions of the letters that make a claimed name look like another, or mix scripts."""
        return [] if key in self._given or claim is None else self._lookalikes.letters(claim)

    def of(self, module: Module) -> str:
        """Return the teacher's name, or for a merged task all its teachers' names."""
        return TOGETHER.join(sorted({self.name(part.card) for part in parts_of(module)}))

    def meant(self, word: str, among: Iterable[Signed]) -> set[str]:
        """Return the keys of those teachers that `word` can mean, by the most certain kind of match only.

        A whole key comes first, then a name as this agent shows it, then the beginning of a key, then the claimed
        names of teachers without a given name. A claimed name never matches if this user gave it to another key,
        or if it looks like a key.
        """
        known = {each.teacher_key: each for each in among}
        claims = {} if self.names_someone(word) or not fits(word) else known
        kinds = (
            {key for key in known if key == word},
            {key for key, each in known.items() if self.name(each) == word},
            {key for key in known if len(word) >= SHOWN and key.startswith(word)},
            {key for key, each in claims.items() if key not in self._given and each.teacher == word},
        )
        return next((keys for keys in kinds if keys), set())

    def names_someone(self, word: str) -> bool:
        """Return whether `word` is a name that the user gave, the agent's own name, or looks like a key."""
        return word in self._given.values() or _LIKE_A_KEY.fullmatch(word) is not None

    def refuse_taken(self, name: str, key: str) -> None:
        """Raise `AgentError` if `name` is not a valid name, or reads like the name of another key."""
        refuse_unfit(name)
        holders = (other for other, given in self._given.items() if _read(given) == _read(name))
        holder = next((other for other in holders if other != key), None)
        if holder is not None:
            raise AgentError(
                f"{name!r} is already the name of another key ({holder[:12]}…); give this one another name"
            )


def fits(name: str) -> bool:
    """Return whether `name` can be an agent's name and cannot be mistaken for a key, selector or claimed name."""
    separators = any(sign in name for sign in (MARK, "@", TOGETHER))
    return is_name(name) and not separators and not _LIKE_A_KEY.fullmatch(name) and hidden(name) is None


def refuse_unfit(name: str) -> None:
    if not fits(name):
        raise AgentError(
            f"{name[:80]!r} cannot be an agent's name; expected 1 to 64 visible characters, without "
            f"'@', '{MARK}' and '{TOGETHER}', that do not look like a key; choose another name"
        )


def odd_task(task: str) -> str | None:
    """Return why a task may not have this name, in words; None if it may."""
    if _LIKE_A_SELECTOR.fullmatch(task):
        return "reads like a key, or like TASK@TEACHER"
    fault = hidden(task)
    return None if fault is None else f"has {fault}"


def odd_notice(notice: Signed) -> str | None:
    """Return why a task is refused because of its name or its teacher's name; None if both are allowed."""
    if (fault := odd_task(notice.task)) is not None:
        return f"the name of the task, {show(notice.task)}, {fault}; its teacher can choose another"
    if not fits(notice.teacher):
        return f"the teacher's name, {show(notice.teacher)}, is like a key or selector, or has hidden characters"
    return None


def refuse_odd_names(card: Card) -> None:
    """Raise `OddNameError` for a module with names that could be mistaken for other names or for keys.

    Modules with such names that a bank already holds stay: they are listed and used, and `TASK@KEY` selects them.
    """
    if (fault := odd_task(card.task)) is not None:
        raise _odd("task", f"{show(card.task)}, which {fault}", TASK_RULE)
    if not fits(card.teacher):
        raise _odd("teacher", show(card.teacher), "an agent's name that looks like neither a key nor a selector")
    for name in card.classes:
        if safe(name) != name:
            raise _odd("classes", f"{show(name)} with invisible characters", "names of visible characters")


def _odd(field: str, found: str, expected: str) -> OddNameError:
    return OddNameError(f"card field '{field}': found {found}, expected {expected}", field, found, expected)


def _read(name: str) -> str:
    """Return a form in which names that read alike are equal: without case, width, marks, hidden characters."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    seen = "".join(c for c in plain if unicodedata.category(c) not in ("Mn", "Me") and hidden(c) is None)
    return reading(seen.strip())


def marked(name: str, key: str) -> str:
    """Return a name with the beginning of its key, to show that the name is only claimed or is ambiguous."""
    return f"{name.replace(TOGETHER, ' ')}{MARK}{key[:SHOWN]}"


def claimed(signed: Signed) -> str:
    """Return the claimed name of a teacher with the beginning of its key, for callers without given names."""
    return marked(signed.teacher, signed.teacher_key)
