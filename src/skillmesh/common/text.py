"""Text from outside made safe to show, characters that a name may have, and names that look alike.

A file name, a note, a teacher's name or an error that quotes one can hold anything: terminal escapes, line breaks,
marks that reverse the reading direction, invisible characters. `safe` writes these as Python's escapes (`\\x1b`,
`\\u202e`) and leaves everything else as it is, in every script. All text that is shown on a terminal, in a log or
on a page goes through it.

Some invisible characters belong to ordinary writing and stay where it needs them: the joiners U+200C and U+200D
(Persian, Hindi and many others; U+200D joins emoji, too), and U+FE0E/U+FE0F behind a symbol with an emoji form.
Names may not have them: two names that differ only in invisible characters could be mistaken for each other.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

MAX_MARKS = 4
"""Largest number of combining marks shown on one letter, as in UTS #39; more would overlap neighbouring lines."""

_IGNORABLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00016fe4\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
"""Unicode's default-ignorable characters, and the few others that are invisible."""
_INVISIBLE = re.compile(f"[{_IGNORABLE}]")
_PICTURE = re.compile(
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u24c2\u25a0-\u27bf\u2934\u2935\u2b00-\u2bff"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
)
"""Symbols that have an emoji form (an approximate list)."""
_KEYCAP, _ENCLOSED = frozenset("0123456789#*"), "\u20e3"
_ARABIC = re.compile("[\u0620-\u064a\u066e-\u06d3\u0710-\u072f\u0750-\u077f\u07ca-\u07ea\u08a0-\u08c9]")
"""Joining letters, between which Persian, Urdu, Syriac and others use U+200C."""
_ZWNJ, _ZWJ = "\u200c", "\u200d"
_VIRAMA = 9
"""Canonical combining class of the signs after which the scripts of India use joiners."""


def safe(text: str) -> str:
    """Return a text on one line, with characters that control a terminal or are invisible escaped.

    >>> safe("cat.png"), safe("a\\x1b[2Jb\\nc"), safe("\\u202egnp.exe")
    ('cat.png', 'a\\\\x1b[2Jb\\\\nc', '\\\\u202egnp.exe')
    """
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    before, marks = "", 0
    for index, letter in enumerate(text):
        after = text[index + 1 : index + 2]
        joins = _belongs(letter, before, after)
        is_mark = not joins and unicodedata.category(letter) in ("Mn", "Me")
        marks = marks + 1 if is_mark else 0
        if joins or (letter.isprintable() and not _INVISIBLE.match(letter) and marks <= MAX_MARKS):
            shown.append(letter)
            before = letter if not joins or letter == "\ufe0f" else ""
        else:
            shown.append(letter.encode("unicode_escape").decode("ascii"))
            before = ""
    return "".join(shown)


def safe_lines(text: str) -> str:
    """Return a text of several lines, such as a traceback, with each line made safe."""
    return "\n".join(safe(line.expandtabs(4)) for line in text.split("\n"))


def safe_json(text: str) -> str:
    """Return JSON text in which what `safe` would escape has JSON's own escapes: it parses to the same data.

    >>> safe_json('"a\\u202eb"')
    '"a\\\\u202eb"'
    """
    if text.isascii():  # `json` has already escaped the control characters
        return text.replace("\x7f", "\\u007f")
    return "".join(
        letter if letter == "\n" or (letter.isprintable() and not _INVISIBLE.match(letter)) else _as_json(letter)
        for letter in text
    )


def safe_html(text: str) -> str:
    """Return a text for an HTML page: safe, and with markup escaped."""
    import html  # here: its table of entities takes a megabyte, and only pages need it

    return html.escape(safe(text))


def hidden(text: str) -> str | None:
    """Describe the invisible characters or excessive marks in a name; return None if there are none.

    >>> hidden("armenian"), hidden("armenian\\u3164")
    (None, 'U+3164, which is invisible')
    """
    marks = 0
    for letter in text:
        if not letter.isprintable() or _INVISIBLE.match(letter):
            return f"U+{ord(letter):04X}, which is invisible"
        marks = marks + 1 if unicodedata.category(letter) in ("Mn", "Me") else 0
        if marks > MAX_MARKS:
            return f"more than {MAX_MARKS} combining marks on one letter"
    if text and unicodedata.category(text[0]) in ("Mn", "Me"):
        return "a combining mark without a letter at its beginning"
    return None


def _belongs(letter: str, before: str, after: str) -> bool:
    """Return whether an invisible character is needed in ordinary writing; `before` is the last letter kept."""
    if letter in "\ufe0e\ufe0f":
        return bool(_PICTURE.match(before)) or (before in _KEYCAP and after == _ENCLOSED)
    if letter not in (_ZWNJ, _ZWJ) or not before:
        return False
    if unicodedata.combining(before) == _VIRAMA:
        return True
    if letter == _ZWNJ:
        return bool(_ARABIC.match(before) and _ARABIC.match(after))
    return bool((before == "\ufe0f" or _PICTURE.match(before)) and _PICTURE.match(after))


def _as_json(letter: str) -> str:
    code = ord(letter)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


SHOWN = 3
"""Number of files that a message names; programs get the full list."""


def some(items: Iterable[str], shown: int = SHOWN) -> str:
    """Return the first `shown` items, separated by commas, and the number of the others."""
    every = list(items)
    rest = len(every) - shown
    return ", ".join(every[:shown]) + (f" and {rest:,} more" if rest > 0 else "")


# Names that look like other names: `аrmenian` with a Cyrillic first letter beside `armenian`.
#
# Such a name is allowed, since every script has its words, but it is marked wherever it is listed: the letters
# that are not what they seem follow it, as in `аrmenian (cyrillic a)`. A name is marked if one of its words mixes
# Latin letters with look-alikes of another script, or if it looks like another name in the same list.

MOST = 3
"""Largest number of odd letters that are listed after a name."""

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
"""Letters of other scripts and small capitals, by the Latin letter that they look like. This is not Unicode's full
list of confusables, which has 6,000 lines, but those from which whole words can be made."""
_LIKE = {
    ord(letter): latin.upper() if letter.isupper() else latin for letters, latin in _PAIRS for letter in letters
} | {ord("I"): "l"}
_WORD = re.compile(r"[^\W\d_]+")
_DROPPED = ("LETTER", "SMALL", "LIGATURE", "SIGN")


class Lookalikes:
    """A set of names, for finding those that look like others in the set."""

    def __init__(self, names: Iterable[str]) -> None:
        self._alike: dict[str, set[str]] = {}
        for name in names:
            self._alike.setdefault(reading(name), set()).add(name)

    def others(self, name: str) -> list[str]:
        """Return the other names in the set that look like this one, sorted."""
        return sorted(self._alike.get(reading(name), set()) - {name})

    def letters(self, name: str) -> list[str]:
        """Return descriptions of the letters in a name that look like others; an empty list for most names."""
        odd = dict.fromkeys(mixed(name))
        for other in self.others(name):
            if mixed(other) and not odd:
                continue  # the other is the odd one
            odd |= dict.fromkeys(letter for letter in name if letter not in other)
        return [_in_words(letter) for letter in odd]

    def marked(self, name: str) -> str:
        """Return a name for a listing, followed by its odd letters."""
        return with_letters(name, self.letters(name))


def with_letters(name: str, letters: Sequence[str]) -> str:
    """Return a name, followed by a note on letters in it that look like others, if it has any."""
    more = ["…"] if len(letters) > MOST else []
    return f"{name} ({', '.join([*letters[:MOST], *more])})" if letters else name


@lru_cache(maxsize=20_000)
def reading(name: str) -> str:
    """Return a key that is equal for names that look alike.

    >>> reading("\u0430rmenian") == reading("armenian"), reading("Armenian") == reading("armenian")
    (True, False)
    """
    plain = unicodedata.normalize("NFKD", name).translate(_LIKE)
    return plain.replace("rn", "m").replace("vv", "w")


@lru_cache(maxsize=20_000)
def mixed(name: str) -> tuple[str, ...]:
    """Return the look-alikes of Latin letters that are in one word with Latin letters."""
    lookalikes: list[str] = []
    for word in _WORD.findall(name):
        if any(map(_is_latin, word)):
            lookalikes += [letter for letter in word if not _is_usual(letter) and _passes_for_latin(letter)]
    return tuple(dict.fromkeys(lookalikes))


def _is_usual(letter: str) -> bool:
    """Return whether ordinary words mix a letter with Latin ones: Turkish writes `kadın` with a dotless i."""
    return letter.isascii() or letter == "ı"


def _is_latin(letter: str) -> bool:
    return unicodedata.name(letter, "").startswith("LATIN")


def _passes_for_latin(letter: str) -> bool:
    """Return whether a letter looks like one of a to z but is another letter, or an unusual form of it."""
    plain = unicodedata.normalize("NFKD", letter)
    return ord(letter) in _LIKE or (plain != unicodedata.normalize("NFD", letter) and plain.isascii())


def _in_words(letter: str) -> str:
    """Return a letter's short name: `cyrillic a`, `latin capital i`, `digit one`."""
    name = unicodedata.name(letter, f"U+{ord(letter):04X}")
    return " ".join(word for word in name.split() if word not in _DROPPED).lower()
