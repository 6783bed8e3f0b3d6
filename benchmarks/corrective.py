"""Measure corrective evaluation, and answers that support one another, on real tasks.

    python benchmarks/corrective.py ../shared/tasks

There are two kinds of bank for each mapper: the tasks as they are, which overlap little, and every task taught
twice, from halves of its images, which overlap fully. An answer from another task counts as right if the
similarity of the class names reaches a threshold. Verdicts on corrections are read from
benchmarks/corrections_judged.json; a correction that is not judged yet stops the run. If a task is in the bank
twice, its classes give the truth.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from overlap_tasks import halves, opened, taught

from skillmesh.common.config import AgentConfig
from skillmesh.core import Core
from skillmesh.data.folder import TaskImages, find_tasks
from skillmesh.evaluation.corrective import corrective
from skillmesh.evaluation.evaluate import evaluate
from skillmesh.evaluation.provenance import provenance
from skillmesh.learning.class_names.encoders import Encoder, remembering
from skillmesh.synergy.matching import ClassMatches

HERE = Path(__file__).parent
JUDGED = HERE / "corrections_judged.json"
KINDS: dict[str, dict[str, Any]] = {
    "sketch": {},
    "maha": {"anchor": "maha", "representation": "features"},
    "gmmc-floor": {"anchor": "gmmc", "representation": "sqrt-features", "variance_floor": 0.01},
    "gmmc": {"anchor": "gmmc", "representation": "features"},
}
TWICE = ("sketch", "maha", "gmmc-floor")


def measured(agent: Core, folders: list[TaskImages], encoder: Encoder) -> dict[str, Any]:
    return corrective(evaluate(agent, folders, learn=False, keep_forced=True).forced, encoder)


def banks(folders: list[TaskImages], scratch: Path, encoder: Encoder) -> dict[str, Any]:
    """Measure the tasks as they are."""
    found = {}
    for kind, settings in KINDS.items():
        found[kind] = measured(taught(scratch / kind, folders, **settings), folders, encoder)
        print(kind, found[kind]["final_accuracy"], found[kind]["support"], flush=True)
    return found


def twice_taught(folders: list[TaskImages], scratch: Path, encoder: Encoder) -> dict[str, Any]:
    """Measure every task taught twice; support by spelling and by encoder. Test images count as the first half."""
    pairs = [halves(folder) for folder in folders]
    found = {}
    for kind in TWICE:
        home = scratch / f"twice-{kind}"
        backbone = taught(home, (half for pair in pairs for half in pair), **KINDS[kind]).backbone
        asked = [first for first, _ in pairs]
        found[kind], encoded = (
            measured(Core(_set(home, support), backbone=backbone), asked, encoder)
            for support in ("plain", "encoder")
        )
        found[kind]["support"]["by encoder"] = encoded["support"]["together"]
        print("twice", kind, found[kind]["final_accuracy"], found[kind]["support"], flush=True)
    return found


def _set(home: Path, support: str) -> Path:
    AgentConfig.load(home).model_copy(update={"support": support}).save(home)
    return home


def judged(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all corrections between different tasks with verdicts, and how often each mapper made them."""
    verdicts = {_key(v): v for v in json.loads(JUDGED.read_text())} if JUDGED.exists() else {}
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for kind, bank in found.items():
        for correction in bank["corrections"]:
            base = correction | {part: _base(correction[part]) for part in ("task", "said_task")}
            if base["task"] == base["said_task"]:
                continue
            row = rows.setdefault(_key(base), {k: v for k, v in base.items() if k != "images"} | {"images": {}})
            row["images"][kind] = row["images"].get(kind, 0) + correction["images"]
    missing = [row for key, row in rows.items() if key not in verdicts]
    if missing:
        sys.exit(f"judge these and add them to {JUDGED.name}:\n" + "\n".join(map(json.dumps, missing)))
    with_verdicts = [row | {part: verdicts[key][part] for part in ("verdict", "why")} for key, row in rows.items()]
    return sorted(with_verdicts, key=lambda row: (-row["score"], _key(row)))


def within(found: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Count corrections between the two halves of a task: images of the same class, and of another class."""
    counts = {}
    for kind, bank in found.items():
        same = [c for c in bank["corrections"] if _base(c["task"]) == _base(c["said_task"])]
        right = sum(c["images"] for c in same if c["label"] == c["said"])
        counts[kind] = {"same class": right, "another class": sum(c["images"] for c in same) - right}
    return counts


def _base(task: str) -> str:
    return task.removesuffix("-a").removesuffix("-b")


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(row[part] for part in ("task", "label", "said_task", "said"))


def overlapping(folders: list[TaskImages], encoder: Encoder) -> list[str]:
    """Return the tasks that share a class, by name, with another one."""
    matches = ClassMatches(encoder)
    matches.add_all({folder.name: folder.classes for folder in folders})
    return sorted({task for match in matches for task in (match.learned_task, match.target_task)})


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the paper's figure: tasks that share a class with another, without and with correction."""
    from skillmesh_challenge.report.style import PALETTE, canvas, drawing

    tasks, kinds = report["overlapping"], list(report["banks"])
    with drawing():
        made = canvas(9.0, 1.7 * len(kinds) + 1.6)
        panels = made.subplots(len(kinds), 1, sharex=True)
        for axes, kind in zip(panels, kinds, strict=True):
            bank = report["banks"][kind]
            at = bank["thresholds"][str(bank["threshold"])]["tasks"]
            before = [100 * bank["tasks"][task] for task in tasks]
            gain = [100 * (at[task][1] - at[task][0]) if task in at else 0.0 for task in tasks]
            axes.bar(range(len(tasks)), before, 0.7, color=PALETTE[0], label="right task and class")
            axes.bar(range(len(tasks)), gain, 0.7, before, color=PALETTE[1], label="equivalent class, other task")
            for place, more in enumerate(gain):
                if more:
                    axes.text(place, before[place] + more + 2, f"+{more:.1f}", ha="center", fontsize=7)
            axes.set(title=kind, ylim=(0, 115), ylabel="final, %")
        panels[-1].set_xticks(range(len(tasks)), tasks, rotation=40, ha="right")
        panels[0].legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, fontsize=7)
        made.savefig(path, dpi=130, metadata={"Software": "skillmesh"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "corrective.json")
    parser.add_argument("--figure", type=Path, default=HERE.parent / "docs" / "images" / "corrective.png")
    parser.add_argument("--homes", type=Path, help="keep the agents in this folder and reuse those in it")
    options = parser.parse_args()
    paths, folders, encoder = find_tasks([options.tasks]), opened(options.tasks), remembering()
    with TemporaryDirectory() as scratch:
        homes = options.homes or Path(scratch)
        found, twice = banks(folders, homes, encoder), twice_taught(folders, homes, encoder)
    report = {
        "banks": found,
        "twice": {k: {n: v for n, v in bank.items() if n != "corrections"} for k, bank in twice.items()},
        "overlapping": overlapping(folders, encoder),
        "judged": judged(found),
        "judged_twice": judged(twice),
        "within_twice": within(twice),
        "provenance": provenance("python benchmarks/corrective.py ../shared/tasks", paths, seed=0),
    }
    options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    draw(report, options.figure)


if __name__ == "__main__":
    main()
