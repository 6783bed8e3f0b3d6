"""Mutants found by hand that no test detected at first. They are detected now, and must stay so.

Each is a piece of a file's text and its replacement. It is an error if the piece does not occur exactly once, so
that a change of the code does not silently lose the mutant.
"""

from __future__ import annotations

from pathlib import Path

from mutation.making import Mutant, lines_of_statement

NAMED: dict[str, tuple[str, str, str]] = {
    "the mapper's temperature multiplies": (
        "answering/answering.py",
        "softmax(scores.task / self.temperature",
        "softmax(scores.task * self.temperature",
    ),
    "the shortlist takes the wrong end": (
        "anchors/shortlist.py",
        "np.argpartition(scores, -count, axis=1)[:, -count:]",
        "np.argpartition(scores, -count, axis=1)[:, :count]",
    ),
    "tasks that are not on the shortlist are raised": (
        "anchors/shortlist.py",
        "np.minimum(task, exact.min(axis=1",
        "np.maximum(task, exact.min(axis=1",
    ),
    "the trial excuses no error of a teacher": (
        "vetting/bank_trial.py",
        "account.excused += case.error * equivalent",
        "account.excused = case.error * equivalent",
    ),
    "the trial excuses one more error per teacher": (
        "vetting/bank_trial.py",
        "excused: float = 0.0\n\n\n@dataclass(frozen=True)\nclass Tried",
        "excused: float = 1.0\n\n\n@dataclass(frozen=True)\nclass Tried",
    ),
    "an unchanged bank says that it changed": (
        "store/bank.py",
        "== self._seen:\n            return False",
        "== self._seen:\n            return True",
    ),
    "a bank misses a second change in one tick": (
        "store/bank.py",
        "> TICK_NS else None",
        "> TICK_NS else changed",
    ),
    "a bank lists a damaged file that is gone": (
        "store/bank.py",
        "for damaged in self.damaged if damaged.path.stem in on_disk]",
        "for damaged in self.damaged]",
    ),
    "the threshold of negative novelties lies below the middle": (
        "answering/answering.py",
        "usual = middle + spread * abs(middle)",
        "usual = middle + spread * middle",
    ),
    "the threshold of negative novelties is capped below the middle": (
        "answering/answering.py",
        "middle + 4 * spread * abs(middle)",
        "middle + 4 * spread * middle",
    ),
    "relative novelty turns round below zero": (
        "answering/answering.py",
        "(novelty - threshold) / max(abs(threshold), 1e-9)",
        "(novelty - threshold) / max(threshold, 1e-9)",
    ),
    "pieces never grow": (
        "mesh/membership.py",
        "peer.piece = min(2 * peer.piece, MAX_PIECE)",
        "peer.piece = min(peer.piece, MAX_PIECE)",
    ),
    "claims never grow": ("mesh/shelf.py", "            count += 1\n", "            break\n"),
    "--version goes on": ("cli/__init__.py", "        raise typer.Exit\n", ""),
    "silence is counted from the wrong side": (
        "mesh/membership.py",
        "time.monotonic() - self.appeared > SILENCE",
        "time.monotonic() + self.appeared > SILENCE",
    ),
    "the time to settle is over at once": (
        "mesh/node.py",
        "time.monotonic() - began < seconds",
        "time.monotonic() + began < seconds",
    ),
    "the scales of means may be a hair larger": (
        "anchors/sketch.py",
        '"sketch.mean.scale": Spec("F32", (classes,), low=0, high=10)',
        '"sketch.mean.scale": Spec("F32", (classes,), low=0, high=11)',
    ),
    "the scales of means may be a hair below zero": (
        "anchors/sketch.py",
        '"sketch.mean.scale": Spec("F32", (classes,), low=0,',
        '"sketch.mean.scale": Spec("F32", (classes,), low=-1,',
    ),
    "the scales of factors may be a hair larger": (
        "anchors/sketch.py",
        '"sketch.factor.scale": Spec("F32", ("r",), low=0, high=10)',
        '"sketch.factor.scale": Spec("F32", ("r",), low=0, high=11)',
    ),
    "the freedom of a sketch may be below zero": (
        "anchors/sketch.py",
        'Spec("F32", (1,), low=0, high=1e9)',
        'Spec("F32", (1,), low=-1, high=1e9)',
    ),
    "the scales of probes may be a hair larger": (
        "learning/head.py",
        '"probe.scale": Spec("F32", (count,), low=0, high=10)',
        '"probe.scale": Spec("F32", (count,), low=0, high=11)',
    ),
    "the scales of probes may be a hair below zero": (
        "learning/head.py",
        '"probe.scale": Spec("F32", (count,), low=0,',
        '"probe.scale": Spec("F32", (count,), low=-1,',
    ),
}


def named(source: Path) -> list[Mutant]:
    """Return the named mutants of a package's folder."""
    return [_mutant(source, name, *change) for name, change in NAMED.items()]


def _mutant(source: Path, name: str, file: str, old: str, new: str) -> Mutant:
    text = (source / file).read_text()
    if text.count(old) != 1:
        raise ValueError(
            f"the mutant {name!r} changes {old!r}, which occurs {text.count(old)} times in {file}, expected once; "
            "update benchmarks/mutation/named.py to the changed code"
        )
    start = text.index(old)
    line = text.count("\n", 0, start) + 1
    lines, place, at_import = lines_of_statement(text, line)
    return Mutant(f"{source.name}/{file}", place, line, lines, at_import, name, start, old, new, f"named {name}")
