"""Evaluate class matching by sight, by name and by both, against the known truth.

    python benchmarks/sight.py ../shared/tasks

By construction: a bank has learned every second class of every task from one half of its images, and is given a
few images of the other half, of all classes. A class that the bank knows must match itself, an unknown class must
match nothing, and names are not used. In the wild: each task in turn is new to a bank of all the others, and its
matches are judged by hand (tests/fixtures/class_names_judged.json and class_sight_judged.json, which also lists
the pairs that mean the same although their names do not match). A match that is not judged stops the run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from overlap_tasks import every_second_class, halves, opened, taught

from skillmesh.answering.answering import Mapper
from skillmesh.common.choices import Support
from skillmesh.data.folder import TaskImages, find_tasks
from skillmesh.evaluation.provenance import provenance
from skillmesh.evaluation.shown import show
from skillmesh.learning.class_names.encoders import Encoder, remembering
from skillmesh.synergy.matching import FEWEST, IMAGES, MOST, BankView, ClassMatches, Sighting, by_both, by_sight

HERE = Path(__file__).parent
JUDGED = (HERE.parent / "tests" / "fixtures" / "class_names_judged.json", HERE / "class_sight_judged.json")
FEW = (1, 3, 5, 10)
LEAST = (0.5, 0.6, 0.7, 0.8)
Pair = tuple[str, str, str, str]


def by_construction(folders: list[TaskImages], home: Path, encoder: Encoder) -> dict[str, Any]:
    """Measure precision and recall of sight by the number of images and the share of them that must agree.

    All names are right here and lose the matches that sight wrongly rejects: by both, `kept` of the known remain.
    """
    pairs = [halves(folder) for folder in folders]
    agent = taught(home, (every_second_class(first) for first, _ in pairs))
    known = {(module.card.task, name) for module in agent.bank for name in module.card.classes}
    rows = []
    for each in FEW:
        views = [(first.name, BankView.of(agent, second, each)) for first, second in pairs]
        for least in LEAST:
            found = [(task, s) for task, view in views for s in by_sight(view, least, fewest=1)]
            right = sum((s.learned_task, s.learned) == (task, s.target) for task, s in found)
            unseen = sum((task, s.target) not in known for task, s in found)
            counts = {"found": len(found), "right": right, "known": len(known), "unseen_matched": unseen}
            shares = {"precision": round(right / len(found), 4), "recall": round(right / len(known), 4)}
            rows.append({"images": each, "share": least} | counts | shares)
            print(rows[-1], flush=True)
    both = [(task, s) for task, view in views for s in by_both(view, encoder)]
    kept = sum((s.learned_task, s.learned) == (task, s.target) for task, s in both)
    return {"known": len(known), "kept": kept, "by_share": rows}


def in_the_wild(folders: list[TaskImages], home: Path, encoder: Encoder) -> dict[str, Any]:
    """Return the matches of each task's classes in a bank of all others, by three methods."""
    agent = taught(home, folders)
    agent.rebuilds_itself = False
    whole = list(agent.bank)
    found: dict[str, list[Sighting]] = {"name": [], "sight": [], "both": []}
    for folder in folders:
        others = [module for module in whole if module.card.task != folder.name]
        agent.use(others, Mapper(others, agent.config.anchor, agent.prior))
        view = BankView.of(agent, folder)
        found["name"] += by_both(_blind(view), encoder)
        found["sight"] += by_sight(view)
        found["both"] += by_both(view, encoder)
    verdicts = {_key(v): v for path in JUDGED for v in json.loads(path.read_text())}
    unjudged = [s for listed in found.values() for s in listed if _verdict(s, verdicts) is None]
    if unjudged:
        sys.exit(f"judge these and add them to {JUDGED[1].name}:\n" + "\n".join(map(_as_line, unjudged)))
    truths = 2 * sum(v["verdict"] == "true" for v in verdicts.values())
    return {"truths": truths} | {how: _marked(listed, verdicts, truths) for how, listed in found.items()}


def _blind(view: BankView) -> BankView:
    """Return the same view without sight, so that names alone decide."""
    return _Blind(**{name: getattr(view, name) for name in view.__dataclass_fields__})


class _Blind(BankView):
    def agreement(self, module: Any, target: int) -> Any:
        return np.ones(len(module.card.classes), dtype=np.float32)


def _marked(found: list[Sighting], verdicts: dict[Pair, dict[str, Any]], truths: int) -> dict[str, Any]:
    listed = [
        {
            **{k: round(v, 4) if isinstance(v, float) else v for k, v in vars(s).items() if k != "teacher"},
            **{part: (_verdict(s, verdicts) or {})[part] for part in ("verdict", "why")},
        }
        for s in found
    ]
    counts = {v: sum(row["verdict"] == v for row in listed) for v in ("true", "other sight", "alike", "false")}
    right = counts["true"]
    precision, recall = right / max(len(found), 1), right / truths
    f1 = 2 * precision * recall / max(precision + recall, 1e-9)
    figures = {"precision": round(precision, 4), "recall": round(recall, 4), "f1": round(f1, 4)}
    return {"found": len(found)} | counts | figures | {"matches": listed}


def _verdict(s: Sighting, verdicts: dict[Pair, dict[str, Any]]) -> dict[str, Any] | None:
    ends = (s.learned_task, s.learned), (s.target_task, s.target)
    return verdicts.get((*ends[0], *ends[1])) or verdicts.get((*ends[1], *ends[0]))


def _as_line(s: Sighting) -> str:
    return json.dumps({k: vars(s)[k] for k in ("learned_task", "learned", "target_task", "target", "share")})


def _key(row: dict[str, Any]) -> Pair:
    return row["learned_task"], row["learned"], row["target_task"], row["target"]


def answer_costs(folders: list[TaskImages], home: Path) -> dict[str, float]:
    """Return the milliseconds of an answer for an image already described, by the kind of support."""
    agent = taught(home, folders)
    folder = max(folders, key=lambda f: len(f.splits["test"]))
    shown = show(agent, folder)
    agent.answer_described(shown.x, shown.images, "encoder")  # warm-up
    kinds: tuple[Support, ...] = ("never", "plain", "encoder")
    return {
        how: round(
            1000
            * min(_seconds(partial(agent.answer_described, shown.x, shown.images, how)) for _ in range(3))
            / len(shown),
            4,
        )
        for how in kinds
    }


def at_scale(tasks: int = 1000, classes: int = 49) -> dict[str, Any]:
    """Return the cost of matching in a large bank with all names encoded: random rows, as wide as MiniLM's."""
    rng = np.random.default_rng(0)

    class Drawn:
        name, threshold = "drawn", 0.85

        def encode(self, texts: Any) -> Any:
            rows = rng.standard_normal((len(texts), 384)).astype(np.float32)
            return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    listed = {f"task {t}": [f"class {t} {c}" for c in range(classes)] for t in range(tasks)}
    matches = ClassMatches(Drawn())
    whole = _seconds(lambda: matches.add_all(listed))
    one = _seconds(lambda: matches.add("another", [f"other {c}" for c in range(classes)]))
    megabytes = sum(row.nbytes for row in matches._rows.values()) / 1e6
    return {
        "tasks": tasks,
        "classes": classes,
        "whole_s": whole,
        "one_more_s": one,
        "megabytes": round(megabytes, 1),
    }


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return round(time.perf_counter() - started, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "sight.json")
    parser.add_argument("--homes", type=Path, help="keep the agents in this folder and reuse those in it")
    options = parser.parse_args()
    paths, folders, encoder = find_tasks([options.tasks]), opened(options.tasks), remembering()
    with TemporaryDirectory() as scratch:
        homes = options.homes or Path(scratch)
        report = {
            "most": MOST,
            "fewest": FEWEST,
            "images": IMAGES,
            "constructed": by_construction(folders, homes / "every-second", encoder),
            "wild": in_the_wild(folders, homes / "sketch", encoder),
            "answering": answer_costs(folders, homes / "sketch"),
            "scale": at_scale(),
            "provenance": provenance("python benchmarks/sight.py ../shared/tasks", paths, seed=0),
        }
    print(
        {
            how: {k: v for k, v in report["wild"][how].items() if k != "matches"}
            for how in ("name", "sight", "both")
        }
    )
    options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
