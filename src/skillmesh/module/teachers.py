"""Names of teachers: the name that this user gave a key wins over what the key calls itself.

A module says who taught it, and anyone can say "anna". So a name stands alone only where this user has given it
(`skillmesh trust add KEY --name anna`), or where it is the agent's own. Every other teacher is shown as what it
calls itself and the beginning of its key: `anna~3f9a2c1e`.
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
"""Stands between a claimed name and the beginning of the key."""
TOGETHER = " + "
"""Stands between the names of a merged task's teachers."""
SHOWN = 8
"""Hex digits of a key that are shown behind a claimed name."""
_LIKE_A_KEY = re.compile(r"[0-9a-fA-F]{8,}")
_LIKE_A_SELECTOR = re.compile(r".*@.*|.*~[0-9a-fA-F]{8,}|(?!\d{8,31}$|[a-fA-F]{8,15}$)[0-9a-fA-F]{8,}")
"""What no task may be called: a selector, a claimed name, a key or its beginning. Digits alone are a date, and few
letters alone a word, such as `Fabaceae`."""
TASK_RULE = "a name without '@' that does not look like a key, whose every character can be seen"


class Signed(Protocol):
    """A card or a notice: what a key has signed under a name of its own choice."""

    @property
    def task(self) -> str: ...

    @property
    def teacher(self) -> str: ...

    @property
    def teacher_key(self) -> str: ...


class Teachers:
    """How one agent calls the teachers that it meets."""

    def __init__(self, given: Mapping[str, str]) -> None:
        """Take the names by key that the user has given and the agent's own; an empty one stands for none."""
        given = {key: name for key, name in given.items() if name}
        count = Counter(given.values())
        self._given = {key: name if count[name] == 1 else marked(name, key) for key, name in given.items()}
        self._lookalikes = Lookalikes(given.values())

    def name(self, signed: Signed) -> str:
        """Return how the teacher of this is called here."""
        return self.called(signed.teacher_key, signed.teacher)

    def called(self, key: str, claim: str | None) -> str:
        """Return the given name of a key, or else what it calls itself with the beginning of the key."""
        if key in self._given or claim is None:
            return self._given.get(key, key[:12])
        return marked(with_letters(claim, self.odd_letters(key, claim)), key)

    def odd_letters(self, key: str, claim: str | None) -> list[str]:
        """Return in words the letters by which a claimed name looks like another, or mixes scripts."""
        return [] if key in self._given or claim is None else self._lookalikes.letters(claim)

    def of(self, module: Module) -> str:
        """Return the teacher's name, or for a merged task all its teachers' names."""
        return TOGETHER.join(sorted({self.name(part.card) for part in parts_of(module)}))

    def meant(self, word: str, among: Iterable[Signed]) -> set[str]:
        """Return the keys of those teachers that `word` can mean, the surest kind of name alone.

        A whole key comes first, then a name as it is shown here, then the beginning of a key, then what teachers
        without a given name call themselves. Nobody can take a name that this user gave to another, nor a word
        that reads like a key.
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
        """Whether this is a name that the user gave, the agent's own, or a key."""
        return word in self._given.values() or _LIKE_A_KEY.fullmatch(word) is not None

    def refuse_taken(self, name: str, key: str) -> None:
        """Refuse a name for a key that is not one, reads like another kind of word, or is another key's."""
        refuse_unfit(name)
        holders = (other for other, given in self._given.items() if _read(given) == _read(name))
        holder = next((other for other in holders if other != key), None)
        if holder is not None:
            raise AgentError(
                f"{name!r} is the name of another key here ({holder[:12]}…); give this one another name"
            )


def fits(name: str) -> bool:
    """Whether this can be an agent's name that is never taken for a key, a selector or a claimed name."""
    signs = any(sign in name for sign in (MARK, "@", TOGETHER))
    return is_name(name) and not signs and not _LIKE_A_KEY.fullmatch(name) and hidden(name) is None


def refuse_unfit(name: str) -> None:
    if not fits(name):
        raise AgentError(
            f"{name[:80]!r} cannot be an agent's name; expected 1 to 64 characters that can all be seen, without "
            f"'@', '{MARK}' and '{TOGETHER}', that do not look like a key; choose another"
        )


def odd_task(task: str) -> str | None:
    """Return why nobody may call a task like this, in words; None for nearly every name."""
    if _LIKE_A_SELECTOR.fullmatch(task):
        return "reads like a key, or like TASK@TEACHER"
    fault = hidden(task)
    return None if fault is None else f"has {fault}"


def odd_notice(notice: Signed) -> str | None:
    """Return why a teacher's task is not taken because of its name or the teacher's."""
    if (fault := odd_task(notice.task)) is not None:
        return f"the name of the task, {show(notice.task)}, {fault}; its teacher can choose another"
    if not fits(notice.teacher):
        return f"the name of its teacher, {show(notice.teacher)}, is a key's or a selector's, or hides something"
    return None


def refuse_odd_names(card: Card) -> None:
    """Refuse a module whose names could pass for others, or be taken for keys.

    Those that a bank holds from before stay: they are listed and answer, and `TASK@KEY` names them.
    """
    if (fault := odd_task(card.task)) is not None:
        raise _odd("task", f"{show(card.task)}, which {fault}", TASK_RULE)
    if not fits(card.teacher):
        raise _odd("teacher", show(card.teacher), "an agent's name that is neither a key nor a selector")
    for name in card.classes:
        if safe(name) != name:
            raise _odd("classes", f"{show(name)} with characters that do not show", "names that can be seen")


def _odd(field: str, found: str, expected: str) -> OddNameError:
    return OddNameError(f"card field '{field}': found {found}, expected {expected}", field, found, expected)


def _read(name: str) -> str:
    """Return a form in which names that read alike are equal: no case, no width, no marks, nothing unseen."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    seen = "".join(c for c in plain if unicodedata.category(c) not in ("Mn", "Me") and hidden(c) is None)
    return reading(seen.strip())


def marked(name: str, key: str) -> str:
    """Return a name that nobody has confirmed, with the beginning of its key."""
    return f"{name.replace(TOGETHER, ' ')}{MARK}{key[:SHOWN]}"


def claimed(signed: Signed) -> str:
    """Return the teacher's own name for itself, with the beginning of its key: for those who know nobody."""
    return marked(signed.teacher, signed.teacher_key)
