"""Text of others, made safe to show; which characters a name may have; names that look like others.

A file name, a note, a teacher's name or an error that quotes one can hold anything: terminal escapes, line breaks,
marks that turn a line around, characters that show nothing. `safe` writes these as Python's escapes (`\\x1b`,
`\\u202e`) and leaves everything else as it is, in every script. Nothing is shown on a terminal, in a log or on a
page that has not gone through it.

Two invisible characters belong to ordinary writing and stay where it needs them: the joiners U+200C and U+200D
(Persian, Hindi and many others; U+200D joins emoji, too), and U+FE0E/U+FE0F behind a symbol with an emoji form.
Names do not have them: two names that differ in nothing that is seen would pass for one another.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

MAX_MARKS = 4
"""Combining marks on one letter that are shown, as UTS #39 has it; more would run into the lines around."""

_IGNORABLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00016fe4\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
"""Unicode's default-ignorable characters, and the few others that show nothing at all."""
_INVISIBLE = re.compile(f"[{_IGNORABLE}]")
_PICTURE = re.compile(
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u24c2\u25a0-\u27bf\u2934\u2935\u2b00-\u2bff"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
)
"""Symbols that have an emoji form, roughly."""
_KEYCAP, _ENCLOSED = frozenset("0123456789#*"), "\u20e3"
_ARABIC = re.compile("[\u0620-\u064a\u066e-\u06d3\u0710-\u072f\u0750-\u077f\u07ca-\u07ea\u08a0-\u08c9]")
"""Letters that join, between which U+200C stands in Persian, Urdu, Syriac and others."""
_ZWNJ, _ZWJ = "\u200c", "\u200d"
_VIRAMA = 9
"""Canonical combining class of the signs behind which joiners stand in the scripts of India."""


def safe(text: str) -> str:
    """Return a text on one line in which nothing acts on a terminal, and nothing hides.

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
    """Return a text of several lines, each safe: for what is made of lines, as a traceback is."""
    return "\n".join(safe(line.expandtabs(4)) for line in text.split("\n"))


def safe_json(text: str) -> str:
    """Return JSON with all that `safe` would escape as JSON's own escapes: a reader gets exactly the same data.

    >>> safe_json('"a\\u202eb"')
    '"a\\\\u202eb"'
    """
    if text.isascii():  # json has escaped the control characters
        return text.replace("\x7f", "\\u007f")
    return "".join(
        letter if letter == "\n" or (letter.isprintable() and not _INVISIBLE.match(letter)) else _as_json(letter)
        for letter in text
    )


def safe_html(text: str) -> str:
    """Return a text for a page: safe, and nothing in it is markup."""
    return html.escape(safe(text))


def hidden(text: str) -> str | None:
    """Return what a name has that cannot be seen, or that piles up on a letter, in words; None where it is fine.

    >>> hidden("armenian"), hidden("armenian\\u3164")
    (None, 'U+3164, which does not show')
    """
    marks = 0
    for letter in text:
        if not letter.isprintable() or _INVISIBLE.match(letter):
            return f"U+{ord(letter):04X}, which does not show"
        marks = marks + 1 if unicodedata.category(letter) in ("Mn", "Me") else 0
        if marks > MAX_MARKS:
            return f"more than {MAX_MARKS} marks on one letter"
    if text and unicodedata.category(text[0]) in ("Mn", "Me"):
        return "a mark on no letter at its beginning"
    return None


def _belongs(letter: str, before: str, after: str) -> bool:
    """Whether an invisible character stands where ordinary writing needs it; `before` is what was kept."""
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
"""Number of files that a sentence names; a program gets all of them."""


def some(items: Iterable[str], shown: int = SHOWN) -> str:
    """Name the first few."""
    every = list(items)
    rest = len(every) - shown
    return ", ".join(every[:shown]) + (f" and {rest:,} more" if rest > 0 else "")


# Names that look like other names: `аrmenian` with a Cyrillic first letter beside `armenian`.
#
# Such a name is allowed, since every script has its words, but it is marked wherever it is listed: the letters
# that are not what they seem are told behind it, as in `аrmenian (cyrillic a)`. A name is marked where one word of
# it mixes Latin letters with look-alikes of another script, and where it reads like another name that is known
# here.

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
