"""Names that look like other names: `аrmenian` with a Cyrillic first letter beside `armenian`.

Such a name is allowed, since every script has its words, but it is marked wherever it is listed: the letters that
are not what they seem are told behind it, as in `аrmenian (cyrillic a)`. A name is marked where one word of it
mixes Latin letters with look-alikes of another script, and where it reads like another name that is known here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

MOST = 3
"""Letters that a mark tells."""

_PAIRS = (
    ("аА", "a"), ("вВЬьʙβΒ", "b"), ("сСϲϹᴄⅽ", "c"), ("ԁᴅ", "d"), ("еЕҽєΕεᴇ", "e"), ("ϝꓝ", "f"), ("ɡԍցɢ", "g"),
    ("һҺнНհΗʜ", "h"), ("іІιΙıɩɪ", "i"), ("јЈϳյᴊ", "j"), ("кКκΚᴋ", "k"), ("ӏӀǀ|1լʟا", "l"), ("мМΜᴍ", "m"),
    ("пПηΝոռɴ", "n"), ("оОοΟσօՕᴏ0٥०๐סه", "o"), ("рРρΡᴘ", "p"), ("ԛԚզ", "q"), ("гяʀ", "r"), ("ѕЅՏꜱ", "s"),
    ("тТτΤᴛ", "t"), ("цυսՍᴜ", "u"), ("ѵѴνᴠ", "v"), ("ԝԜшωաᴡ", "w"), ("хХχΧ", "x"), ("уУүҮγΥʏ", "y"), ("Ζᴢ", "z"),
    ("αɑᎪΑꓮ", "a"), ("ᏴꓐᏏ", "b"), ("Ꮯꓚⲥ", "c"), ("Ꭰꓓ", "d"), ("Ꭼꓰ", "e"), ("Ꮐꓖ", "g"), ("Ꮋꓧ", "h"), ("Ꭵ", "i"),
    ("Ꭻꓙ", "j"), ("Ꮶꓗ", "k"), ("Ꮮꓡꓲ", "l"), ("Ꮇꓟ", "m"), ("ꓠ", "n"), ("ꓳⲟ", "o"), ("Ꮲꓑⲣ", "p"), ("Ꭱꓣ", "r"),
    ("ᏚꓢᏕ", "s"), ("Ꭲꓔ", "t"), ("ꓴ", "u"), ("Ꮩꓦ", "v"), ("Ꮃꓪ", "w"), ("ꓫ", "x"), ("Ꮍꓬ", "y"), ("Ꮓꓜ", "z"),
    ("‐‑‒–—−", "-"), ("’‘ʼ′`´", "'"),
)  # fmt: skip
"""Letters of other scripts and small capitals, by the Latin letter that they pass for. No full list of Unicode's
confusables, which has 6,000 lines: those that make whole words."""
_LIKE = {
    ord(letter): latin.upper() if letter.isupper() else latin for letters, latin in _PAIRS for letter in letters
} | {ord("I"): "l"}
_WORD = re.compile(r"[^\W\d_]+")
_DROPPED = ("LETTER", "SMALL", "LIGATURE", "SIGN")


class Lookalikes:
    """Tells, of the names that are known in one place, which look like others."""

    def __init__(self, names: Iterable[str]) -> None:
        self._alike: dict[str, set[str]] = {}
        for name in names:
            self._alike.setdefault(reading(name), set()).add(name)

    def others(self, name: str) -> list[str]:
        """Return the other names here that read like this one."""
        return sorted(self._alike.get(reading(name), set()) - {name})

    def letters(self, name: str) -> list[str]:
        """Return in words the letters by which a name is not what it seems; none for most names."""
        odd = dict.fromkeys(mixed(name))
        for other in self.others(name):
            if mixed(other) and not odd:
                continue  # the other is the odd one
            odd |= dict.fromkeys(letter for letter in name if letter not in other)
        return [_in_words(letter) for letter in odd]

    def marked(self, name: str) -> str:
        """Return a name as it is listed, with its odd letters behind it."""
        return with_letters(name, self.letters(name))


def with_letters(name: str, letters: Sequence[str]) -> str:
    """Return a name with its odd letters behind it, if it has any."""
    more = ["…"] if len(letters) > MOST else []
    return f"{name} ({', '.join([*letters[:MOST], *more])})" if letters else name


@lru_cache(maxsize=20_000)
def reading(name: str) -> str:
    """Return what a name is read as at a glance: two names with the same reading look alike.

    >>> reading("\u0430rmenian") == reading("armenian"), reading("Armenian") == reading("armenian")
    (True, False)
    """
    plain = unicodedata.normalize("NFKD", name).translate(_LIKE)
    return plain.replace("rn", "m").replace("vv", "w")


@lru_cache(maxsize=20_000)
def mixed(name: str) -> tuple[str, ...]:
    """Return the look-alikes that stand in one word with Latin letters."""
    found: list[str] = []
    for word in _WORD.findall(name):
        if any(map(_is_latin, word)):
            found += [letter for letter in word if not _is_usual(letter) and _passes_for_latin(letter)]
    return tuple(dict.fromkeys(found))


def _is_usual(letter: str) -> bool:
    """Whether a letter stands among Latin ones in ordinary words: Turkish has a dotless i, and writes `kadın`."""
    return letter.isascii() or letter == "ı"


def _is_latin(letter: str) -> bool:
    return unicodedata.name(letter, "").startswith("LATIN")


def _passes_for_latin(letter: str) -> bool:
    """Whether a letter is taken for one of a to z although it is another, or an unusual form of one."""
    plain = unicodedata.normalize("NFKD", letter)
    return ord(letter) in _LIKE or (plain != unicodedata.normalize("NFD", letter) and plain.isascii())


def _in_words(letter: str) -> str:
    """Return a letter's name, short: `cyrillic a`, `latin capital i`, `digit one`."""
    name = unicodedata.name(letter, f"U+{ord(letter):04X}")
    return " ".join(word for word in name.split() if word not in _DROPPED).lower()
