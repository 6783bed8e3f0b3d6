"""Text of others, made safe to show; and which characters a name may have.

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
