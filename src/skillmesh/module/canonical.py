"""JSON with one byte form: what the card and the header of a `.skill` file are written in.

Python's `json` reads more than we want from a stranger: duplicate keys, NaN, integers of a million digits.
`loads` refuses these; that the text also has the canonical spacing and order is for the caller to check, by
writing again what was read.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn

from skillmesh.errors import ModuleError, NotCanonicalError

MAX_DIGITS = 18
"""Every integer of a module fits in 64 bits; longer ones are an attack."""


def dumps(value: object) -> str:
    """Write JSON without blanks, UTF-8 as it is, floats by `repr`. The order of keys is the caller's.

    >>> dumps({"b": 0.5, "a": ["é", 1]})
    '{"b":0.5,"a":["é",1]}'
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def loads(text: str, what: str, broken: type[ModuleError]) -> Any:
    """Read JSON, or raise `broken` where it is none and `NotCanonicalError` where it says a thing twice."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            twice = Counter(name for name, _ in items).most_common(1)[0][0]
            raise NotCanonicalError(f"{what} has the key {show(twice)} twice, expected each key once")
        return found

    def integer(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise NotCanonicalError(f"{what} has an integer of {len(digits)} digits, expected ≤ {MAX_DIGITS}")
        return int(digits)

    def constant(name: str) -> NoReturn:
        raise broken(f"{what} holds {name}, expected JSON, whose numbers are finite")

    def floating(digits: str) -> float:
        value = float(digits)
        if value in (float("inf"), float("-inf")):
            raise broken(f"{what} holds {digits[:40]}, expected a number that fits a double")
        return value

    try:
        return json.loads(
            text, object_pairs_hook=pairs, parse_int=integer, parse_float=floating, parse_constant=constant
        )
    except ModuleError:
        raise
    except RecursionError:
        raise broken(f"{what} is nested too deeply to be read, expected three levels") from None
    except ValueError as error:
        raise broken(f"{what} is not JSON ({error}); ask the teacher for the file again") from None


def show(value: object) -> str:
    """Quote something from a stranger's file: short, on one line, whatever it holds.

    >>> show("cat"), show([1, 2]), show("x" * 99)[-3:]
    ("'cat'", 'a list of 2', "x'…")
    """
    if isinstance(value, str):
        return repr(value[:60]) + ("…" if len(value) > 60 else "")
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
        return f"an integer of more than {MAX_DIGITS} digits"
    return "nothing" if value is None else repr(value)[:60]
