"""Text in cards, notices and greetings: the one check that every field of them passes."""

from __future__ import annotations

import unicodedata

from skillmesh.module.canonical import show


def plain(text: str) -> str:
    """Check text that may have several lines: all of it prints, and each word has one spelling."""
    if not text.replace("\n", " ").replace("\t", " ").isprintable():
        raise ValueError(f"{show(text)} with characters that do not print")
    if not unicodedata.is_normalized("NFC", text):
        raise ValueError(f"{show(text)}, which is not in Unicode's NFC")
    return text


def line(text: str) -> str:
    """Check text of one line."""
    if "\n" in text or "\t" in text:
        raise ValueError(f"{show(text)} with a line break or tab")
    return plain(text)
