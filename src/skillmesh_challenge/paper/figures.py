"""Figures as they are printed: each stands for all numbers that are printed like it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

UNITS = {
    "": 1.0,
    "k": 1e3,
    "KBytes": 1e3,
    "M": 1e6,
    "MBytes": 1e6,
    "TB": 1e12,
    "%": 1e-2,
    "x": 1.0,
    "million": 1e6,
}
FIGURE = re.compile(r"(?P<bound>[<>~]?)(?P<number>[\d.,]+)(?:E(?P<power>[+-]\d+))? ?(?P<unit>[A-Za-z%]*)")
EXACT = "reference"


@dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`. One that is known exactly has both the same."""

    low: float
    high: float

    @classmethod
    def of(cls, number: float) -> Range:
        return cls(number, number)

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def __mul__(self, factor: float) -> Range:
        return Range(self.low * factor, self.high * factor)

    def __truediv__(self, other: Range) -> Range:
        return Range(self.low / other.high, self.high / other.low)

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    def meets(self, other: Range) -> bool:
        """Whether some number lies in both; the last bits of a float do not count."""
        slack = 1e-12 * max(abs(self.low), abs(other.low))
        return self.low <= other.high + slack and other.low <= self.high + slack


@dataclass(frozen=True)
class PaperFigure:
    """A figure on paper: its digits say how exact it is."""

    text: str

    @property
    def range(self) -> Range:
        """Every number that would be rounded to these digits."""
        bound, number, power, unit = self._parts()
        scale = 10.0**power * UNITS[unit]
        value = float(number) * scale
        if bound == ">":
            return Range(value, math.inf)
        if bound == "<":
            return Range(0.0, value)
        half = 0.0 if EXACT in self.text else 0.5 * 10.0 ** -self._decimals(number) * scale
        return Range(value - half, value + half)

    def like(self, other: Range) -> str:
        """Write another number the way this one is printed; a bound's own digits are too few."""
        bound, number, _, unit = self._parts()
        decimals = max(self._decimals(number), 1 if bound in ("<", ">") else 0)
        if "E" in self.text:
            ends = [f"{end:.{decimals}E}" for end in (other.low, other.high)]
        else:
            ends = [f"{end / UNITS[unit]:,.{decimals}f}" for end in (other.low, other.high)]
        return " to ".join(dict.fromkeys(ends)) + self._shown_unit()

    def _shown_unit(self) -> str:
        unit = self._parts()[3]
        return f" {unit}" if unit in ("KBytes", "MBytes", "TB", "million") else unit

    def _parts(self) -> tuple[str, str, int, str]:
        if (found := FIGURE.search(self.text)) is None:
            raise ValueError(f"{self.text!r} holds no figure")
        return found["bound"], found["number"].replace(",", ""), int(found["power"] or 0), found["unit"]

    @staticmethod
    def _decimals(number: str) -> int:
        return len(number.partition(".")[2])
