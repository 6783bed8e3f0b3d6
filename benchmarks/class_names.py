"""Evaluate matching of class names on the paper's pairs and on all matches across real tasks, judged by hand.

    python benchmarks/class_names.py ../shared/tasks

The threshold is the encoder's own, chosen on the paper's pairs alone. Verdicts are read from
tests/fixtures/class_names_judged.json; a match that is not judged yet stops the run.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from skillmesh.data.folder import find_tasks, survey_task, task_name
from skillmesh.evaluation.provenance import provenance
from skillmesh.learning.class_names.encoders import Encoder, load_encoder
from skillmesh.learning.class_names.pairs import Encoded, similarity
from skillmesh.synergy.matching import ClassMatches

HERE = Path(__file__).parent
PAIRS = HERE.parent / "tests" / "fixtures" / "paper-class-pairs.json"
JUDGED = HERE.parent / "tests" / "fixtures" / "class_names_judged.json"
SURE = 0.9
"""Similarity from which the paper calls two classes similar."""


def paper_pairs(encoder: Encoder) -> list[dict[str, Any]]:
    """Return the paper's pairs with the encoder's score and the paper's."""
    rows = []
    for pair in json.loads(PAIRS.read_text()):
        learned, target = (Encoded.of([pair[side]], encoder) for side in ("learned", "target"))
        score = float(similarity(learned, target)[0, 0])
        rows.append(pair | {"ours": round(score, 4), "found": score >= encoder.threshold})
    return rows


def judged_matches(encoder: Encoder, tasks: dict[str, tuple[str, ...]]) -> list[dict[str, Any]]:
    """Return all matches between the tasks, each with the verdict of a human reader."""
    matches = ClassMatches(encoder)
    for task, classes in tasks.items():
        matches.add(task, classes)
    verdicts = {_key(v): v for v in json.loads(JUDGED.read_text())}
    rows: list[dict[str, Any]] = []
    for match in matches:
        row = vars(match) | {"score": round(match.score, 4)}
        verdict = verdicts.get(_key(row))
        rows.append(row | {"verdict": verdict and verdict["verdict"], "why": verdict and verdict["why"]})
    unjudged = [row for row in rows if row["verdict"] is None]
    if unjudged:
        sys.exit(f"judge these and add them to {JUDGED.name}:\n" + "\n".join(map(json.dumps, unjudged)))
    return rows


def matches_without_telling_words(encoder: Encoder, tasks: dict[str, tuple[str, ...]]) -> int:
    """Count the pairs that the encoder would match without the rules on numbers, letters, negations and sides."""
    ready = [Encoded.of(classes, encoder) for classes in tasks.values()]
    blind = [replace(task, marks=((),) * len(task.classes)) for task in ready]
    return sum(int((similarity(a, b) >= encoder.threshold).sum()) for a, b in combinations(blind, 2))


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(row[part] for part in ("learned_task", "learned", "target_task", "target"))


def classes_in(rows: list[dict[str, Any]], *verdicts: str) -> int:
    """Count the classes in matches with one of these verdicts."""
    sides = {
        (row[f"{side}_task"], row[side])
        for row in rows
        if row["verdict"] in verdicts
        for side in ("learned", "target")
    }
    return len(sides)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "class-names.json")
    options = parser.parse_args()
    paths = find_tasks([options.tasks])
    encoder = load_encoder()
    pairs = paper_pairs(encoder)
    tasks = {task_name(path): survey_task(path, hold_out=()).classes for path in paths}
    matches = judged_matches(encoder, tasks)
    sure = [pair for pair in pairs if pair["score"] >= SURE]
    report = {
        "encoder": encoder.name,
        "threshold": encoder.threshold,
        "paper_found_by_threshold": {
            str(least): {
                "sure": sum(pair["ours"] >= least for pair in sure),
                "unsure": sum(pair["ours"] >= least for pair in pairs if pair["score"] < SURE),
            }
            for least in (0.6, 0.7, 0.75, 0.8, 0.85, 0.9)
        },
        "paper_sure": len(sure),
        "paper_found": sum(pair["found"] for pair in sure),
        "paper_unsure_found": sum(pair["found"] for pair in pairs if pair["score"] < SURE),
        "tasks": len(tasks),
        "classes": sum(map(len, tasks.values())),
        "matches": len(matches),
        "matches_without_telling_words": matches_without_telling_words(encoder, tasks),
        "verdicts": {v: sum(row["verdict"] == v for row in matches) for v in ("true", "other sight", "false")},
        "false_classes": classes_in(matches, "false"),
        "false_or_other_sight_classes": classes_in(matches, "false", "other sight"),
        "paper_pairs": pairs,
        "matched": matches,
        "provenance": provenance("python benchmarks/class_names.py ../shared/tasks", paths, seed=0),
    }
    print({key: value for key, value in report.items() if not isinstance(value, list)})
    options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
