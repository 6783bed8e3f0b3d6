"""Printed figures: each stands for all numbers that round to its digits."""

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
    """All numbers from `low` to `high`; both are equal for an exact number."""

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
        """Return whether the ranges overlap, up to rounding errors of floats."""
        slack = 1e-12 * max(abs(self.low), abs(other.low))
        return self.low <= other.high + slack and other.low <= self.high + slack


@dataclass(frozen=True)
class PaperFigure:
    """A printed figure, whose digits give its precision."""

    text: str

    @property
    def range(self) -> Range:
        """All numbers that round to these digits."""
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
        """Format another number like this one; bounds get at least one decimal, as they have too few digits."""
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
        if (match := FIGURE.search(self.text)) is None:
            raise ValueError(f"{self.text!r} contains no figure")
        return match["bound"], match["number"].replace(",", ""), int(match["power"] or 0), match["unit"]

    @staticmethod
    def _decimals(number: str) -> int:
        return len(number.partition(".")[2])
