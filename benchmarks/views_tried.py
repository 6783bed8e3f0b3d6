"""Measure other choices for views, nuisance, leniency and caution than those that agents make.

    python benchmarks/views_tried.py TASKS --out docs/results/views-tried.json
    python benchmarks/views_tried.py TASKS --beside --out docs/results/views-tried-beside.json

Each choice changes a few constants of the library. A new agent then learns all tasks, with a calibration measured
on them, and answers some views of their test images. Then a third of the tasks, drawn at random, is taken from
it: their images are the hidden ones. With `--beside`, a view of every image is learned beside it, and the choices
are others.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
from tables.agents import NINE
from unknown import with_bank

from skillmesh.anchors import AnchorSettings
from skillmesh.anchors.protocol import Labels
from skillmesh.anchors.sketch import SketchAnchor, class_means
from skillmesh.backbone.backbone import DescriptorCache, default_folder
from skillmesh.backbone.calibrating import calibrate_on
from skillmesh.backbone.network import Network, load_network
from skillmesh.core import Core
from skillmesh.data.folder import find_tasks, task_name
from skillmesh.data.views import MEASURED
from skillmesh.evaluation.evaluate import evaluate
from skillmesh.evaluation.provenance import provenance
from skillmesh.evaluation.views import ORIGINAL, evaluate_views
from skillmesh.numerics.arrays import Floats
from skillmesh.store.home import create_home

HERE = Path(__file__).parent
SIX = ("half size", "JPEG 40", "brighter 20 %", "darker 20 %", "blurred", "rotated 10°")
"""Views learned without hurried photos."""


def fitted(means: str, scatter: str) -> Any:
    """Return a `SketchAnchor.fit` whose means and scatter are those of `both` images and views, or of `images`."""

    def fit(
        cls: type[SketchAnchor],
        x: Floats,
        labels: Labels,
        classes: int,
        settings: AnchorSettings,
        images: int | None = None,
    ) -> SketchAnchor:
        count = images or len(x)
        parts = {"images": (x[:count], labels[:count]), "both": (x, labels)}
        scattered = FIT(cls, *parts[scatter], classes, settings)
        return cls(class_means(*parts[means], classes), scattered.scatter, count - classes)

    return classmethod(fit)


FIT = SketchAnchor.fit.__func__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Choice:
    """A way to learn and answer: changed constants by where they are, and a changed `views` of `learn`."""

    name: str
    constants: dict[str, Any] = field(default_factory=dict)
    views: float | None = None


NUISANCE = {"anchors.gaussians.NUISANCE": 0.0, "anchors.shortlist.NUISANCE": 0.0}
CHOICES = (
    Choice("**as it is**"),
    Choice("no view learned", views=0),
    Choice("brighter, darker, blurred learned instead of phone", {"learning.lesson.LEARNED": SIX}),
    Choice("these too", {"learning.lesson.LEARNED": (*SIX, "phone")}),
    Choice(
        "nuisance without phone",
        {"backbone.calibrating.MEASURED": {name: weight for name, weight in MEASURED.items() if name != "phone"}},
    ),
    Choice("all views with the same weight", {"backbone.calibrating.MEASURED": dict.fromkeys(MEASURED, 1.0)}),
    Choice("no nuisance in heads", {"backbone.calibration.NUISANCE_IN_HEADS": 0.0}),
    Choice("no nuisance in the mapper", NUISANCE),
    Choice("three times the nuisance in the mapper", dict.fromkeys(NUISANCE, 3.0)),
    Choice("no leniency", {"anchors.gaussians.LENIENCE": 0.0}),
    Choice("leniency of 10 % instead of 3.5", {"anchors.gaussians.LENIENCE": 0.1}),
    Choice("no caution", {"learning.head.CAUTION": 1.0}),
)
HALF = dict.fromkeys(NUISANCE, 0.5)
CHOICES_BESIDE = (
    Choice("**means of images and views, scatter of images**", views=1),
    Choice("means and scatter of both", {"anchors.sketch.SketchAnchor.fit": fitted("both", "both")}, 1),
    Choice("means of images, scatter of both", {"anchors.sketch.SketchAnchor.fit": fitted("images", "both")}, 1),
    Choice("means and scatter of images", {"anchors.sketch.SketchAnchor.fit": fitted("images", "images")}, 1),
    Choice("half the nuisance in heads", {"backbone.calibration.NUISANCE_IN_HEADS": 5.0}, 1),
    Choice("half the nuisance in heads and mapper", {"backbone.calibration.NUISANCE_IN_HEADS": 5.0} | HALF, 1),
)


@contextmanager
def chosen(constants: dict[str, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in constants.items():
            stack.enter_context(patch(f"skillmesh.{name}", value))
        yield


def measure(choice: Choice, network: Network, paths: Sequence[Path]) -> dict[str, Any]:
    with chosen(choice.constants), TemporaryDirectory() as scratch:
        calibration = Path(scratch) / "calibration.safetensors"
        cache = DescriptorCache(default_folder(), network.fingerprint, engine=network.engine)
        calibrate_on(network, paths, cache).save(calibration)
        create_home(Path(scratch) / "home", name="tried", calibration=calibration)
        agent = Core(Path(scratch) / "home")
        original = evaluate(agent, paths, views=choice.views)
        figures = {each.view: each for each in evaluate_views(agent, original, (*NINE[1:], "phone"))}
        hidden = np.random.default_rng(0).permutation(len(paths))[: len(paths) // 3]
        agent.rebuilds_itself = False
        with_bank(agent, [task_name(path) for i, path in enumerate(paths) if i not in hidden])
        unseen = evaluate(agent, original.tested, learn=False).summary()
    nine, phone = [figures[view] for view in NINE], figures["phone"]
    return {
        "choice": choice.name,
        "original": figures[ORIGINAL].final_accuracy,
        "nine": fmean(each.final_accuracy or 0.0 for each in nine),
        "phone": phone.final_accuracy,
        "known_unanswered": figures[ORIGINAL].known_unanswered,
        "phone_unanswered": phone.known_unanswered,
        "hidden_unanswered": unseen["hidden_unanswered"],
        "confidence_error": max(each.confidence_error or 0.0 for each in (*nine, phone)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "views-tried.json")
    parser.add_argument("--beside", action="store_true", help="learn a view of every image beside it")
    options = parser.parse_args()
    paths, network = find_tasks([options.tasks]), load_network("lite0")
    rows: list[dict[str, Any]] = []
    for choice in CHOICES_BESIDE if options.beside else CHOICES:
        rows.append(measure(choice, network, paths))
        print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
        facts = provenance(f"python benchmarks/views_tried.py TASKS{' --beside' * options.beside}", paths, 0)
        options.out.write_text(
            json.dumps({"rows": rows, "provenance": facts}, indent=1, ensure_ascii=False) + "\n"
        )


if __name__ == "__main__":
    main()
