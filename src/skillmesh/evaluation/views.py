"""Measure an agent on views of its test images: the same pictures, taken in another way (`data/views.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean
from typing import Any

from skillmesh.data.views import VIEWS, ViewedImage
from skillmesh.evaluation.evaluate import Evaluation, evaluate
from skillmesh.evaluation.shown import MeasurableAgent
from skillmesh.numerics.process import Progress

ORIGINAL = "original"


@dataclass(frozen=True)
class ViewFigures:
    """An agent's figures on one view of all test images: means over tasks, and the error of all confidences."""

    view: str
    task_given_accuracy: float | None
    task_found_accuracy: float | None
    final_accuracy: float | None
    strict_accuracy: float | None
    known_unanswered: float | None
    confidence_error: float | None
    hidden_unanswered: float | None
    """Share of the images of hidden tasks that were not answered; None without such tasks."""

    @classmethod
    def of(cls, view: str, result: Evaluation) -> ViewFigures:
        summary = {"hidden_unanswered": None} | result.summary()
        return cls(view, *(summary[name] for name in FIGURES))


FIGURES = tuple(name for name in ViewFigures.__dataclass_fields__ if name != "view")


def evaluate_views(
    agent: MeasurableAgent,
    original: Evaluation,
    views: Sequence[str] = tuple(VIEWS),
    progress: Progress | None = None,
) -> Iterator[ViewFigures]:
    """Yield the figures of the original images, which are measured already, and then those of each view."""
    yield ViewFigures.of(ORIGINAL, original)
    for view in views:
        change = partial(ViewedImage, views=(view,))
        yield ViewFigures.of(view, evaluate(agent, original.tested, learn=False, change=change, progress=progress))


def summary_of_views(figures: Sequence[ViewFigures]) -> dict[str, Any]:
    """Return the views' figures, and their means over the original and all views, as a JSON-compatible dict."""
    means = {}
    for name in FIGURES:
        values = [getattr(each, name) for each in figures]
        means[name] = None if None in values else round(fmean(values), 6)
    return {"views": [asdict(each) for each in figures], "views_mean": means}
