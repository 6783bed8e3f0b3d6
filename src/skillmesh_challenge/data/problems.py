"""What a check of data found: the tasks, their faults, and images that lie there more than once."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from skillmesh.data.checks import Finding
from skillmesh_challenge.data.twins import Twins

Kind = Literal[
    "nothing-there",
    "missing",
    "other-classes",
    "other-size",
    "unreadable-task",
    "left-out",
    "duplicate-name",
    "bad-name",
    "no-classes",
    "one-class",
    "no-train-folder",
    "no-test-images",
    "no-validation-images",
    "class-untested",
    "class-unreadable",
    "unreadable",
    "note",
    "twins-in-split",
    "twins-across-splits",
    "twins-across-classes",
    "twins-across-tasks",
    "same-name",
    "merged-names",
    "twins-not-searched",
    "unbalanced",
]


@dataclass(frozen=True)
class Problem:
    """One fault of one task, or of the whole."""

    kind: Kind
    text: str
    task: str = ""
    fatal: bool = False
    """Whether it keeps a run from being started."""
    files: tuple[str, ...] = ()
    """All the files that it is about."""

    @classmethod
    def of(cls, finding: Finding, task: str) -> Problem:
        """Make a warning of what a check shared with `learn` has found."""
        return cls(finding.kind, finding.text, task, files=finding.files)

    def __str__(self) -> str:
        return f"{self.task}: {self.text}" if self.task else self.text


@dataclass(frozen=True)
class DataTaskFacts:
    """A task as a run would see it."""

    name: str
    place: str
    classes: int
    images: dict[str, int]
    """How many images each split has, the unreadable ones among them."""
    unreadable: int = 0
    twins_in_splits: int = 0
    """Images that lie in their own split already."""
    twins_across_splits: dict[str, int] = field(default_factory=dict)
    """Of which split's images how many lie in which earlier split too: "test in train"."""
    twins_in_other_tasks: int = 0
    """Images that another task has too."""


@dataclass(frozen=True)
class DataReport:
    """All that was found; `ok` says whether a run may start."""

    tasks: list[DataTaskFacts]
    problems: list[Problem]
    twins: list[Twins]

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.fatal]

    @property
    def warnings(self) -> list[Problem]:
        return [problem for problem in self.problems if not problem.fatal]

    @property
    def ok(self) -> bool:
        return not self.errors

    def as_dict(self) -> dict[str, Any]:
        """As JSON would have it."""
        return {
            "ok": self.ok,
            "errors": [asdict(problem) for problem in self.errors],
            "warnings": [asdict(problem) for problem in self.warnings],
            "tasks": [asdict(task) for task in self.tasks],
            "twins": [group.as_dict([task.name for task in self.tasks]) for group in self.twins],
        }

    def words(self) -> str:
        """All that keeps a run from being started, a line each."""
        errors = self.errors
        lines = [f"  {problem}" for problem in errors]
        return "\n".join([f"the data has {len(errors)} fault(s) that keep a run from being started:", *lines])
