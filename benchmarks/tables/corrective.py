"""Corrective evaluation, support, and matching by sight."""

from __future__ import annotations

from typing import Any

from tables import read, source, table
from tables.synergy import VERDICTS

NAME, SIGHT = "corrective", "sight"
WAYS = {"name": "name", "sight": "images", "both": "name, checked by images"}
TEACHERS = {"banks": "one", "twice": "two"}
"""Number of teachers of each task, by the part of the results."""


def percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f}"


def accuracy() -> str:
    """Return the final accuracy without and with correction, by threshold, for both kinds of bank."""
    r = read(NAME)
    rows = [_levels(kind, bank, count) for part, count in TEACHERS.items() for kind, bank in r[part].items()]
    head = (
        "anchor | teachers per task | final accuracy % | corrected at 0.95 | at 0.90 | at 0.85 | "
        "images corrected at 0.85"
    )
    return f"{table(head, rows)}\n\n{source(NAME)}"


def _levels(kind: str, bank: dict[str, Any], teachers: str) -> list[str]:
    levels = [bank["thresholds"][least] for least in ("0.95", "0.9", "0.85")]
    shares = [percent(bank["final_accuracy"]), *(percent(level["final_accuracy"]) for level in levels)]
    return [kind, teachers, *shares, str(levels[-1]["images"])]


def corrections() -> str:
    """Return all corrections between different tasks, with their verdicts."""
    r = read(NAME)
    rows = [
        [
            f"{c['task']}: {c['label']}",
            f"{c['said_task']}: {c['said']}",
            f"{c['score']:.3f}",
            ", ".join(f"{kind} {n}" for kind, n in c["images"].items()),
            VERDICTS[c["verdict"]],
            c["why"],
        ]
        for c in r["judged"]
    ]
    twice, inside = _verdicts(r["judged_twice"]), r["within_twice"]
    lines = [
        f"Where every task has two teachers, the verdicts on corrections between different tasks are: {twice} "
        "(listed in the JSON file). Between the two teachers of a task, images corrected to the same class and to "
        "another one: "
        + "; ".join(f"{kind} {n['same class']:,} and {n['another class']:,}" for kind, n in inside.items())
        + "."
    ]
    head = "class | answer | score | images by anchor | verdict | reason"
    return f"{table(head, rows)}\n\n{lines[0]}\n\n{source(NAME)}"


def _verdicts(rows: list[dict[str, Any]]) -> str:
    counts = {words: sum(row["verdict"] == verdict for row in rows) for verdict, words in VERDICTS.items()}
    return "; ".join(f"{words}, {n}" for words, n in counts.items())


def support() -> str:
    """Return accuracy and calibration without and with support between equivalent classes."""
    r = read(NAME)
    rows = []
    for part, teachers in TEACHERS.items():
        for kind, bank in r[part].items():
            for how, label in (("alone", "never"), ("together", "plain"), ("by encoder", "encoder")):
                if how not in bank["support"]:
                    continue
                s = bank["support"][how]
                figures = (percent(s["corrected_accuracy"]), percent(s["confidence_error"], 1))
                helped = f"{bank['support']['supported']:,}" if how == "together" else ""
                rows.append([kind, teachers, label, percent(s["final_accuracy"]), *figures, helped])
    head = (
        "anchor | teachers per task | support | final accuracy % | with equivalents % | calibration error | "
        "supported answers"
    )
    return f"{table(head, rows)}\n\n{source(NAME)}"


def constructed() -> str:
    """Return matches by images alone, by the number of images and the share that must agree."""
    r = read(SIGHT)["constructed"]
    rows = [
        [
            str(row["images"]),
            f"{row['share']:g}",
            str(row["found"]),
            percent(row["precision"], 1),
            percent(row["recall"], 1),
            str(row["unseen_matched"]),
        ]
        for row in r["by_share"]
        if row["images"] > 1 or row["share"] == 0.5
    ]
    head = "images per class | agreeing share, more than | matches | precision % | recall % | new classes matched"
    line = f"Of {r['known']} known classes, {r['kept']} stay matched by name when images check the names."
    return f"{table(head, rows)}\n\n{line}\n\n{source(SIGHT)}"


def wild() -> str:
    """Return what each task's classes match in a bank of all other tasks."""
    r = read(SIGHT)
    found = r["wild"]
    rows = []
    for how, label in WAYS.items():
        w = found[how]
        counts = [str(w[key]) for key in ("found", "true", "other sight", "alike", "false")]
        rows.append([label, *counts, *(percent(w[key], 1) for key in ("precision", "recall", "f1"))])
    head = (
        "matched by | matches | correct | same word, looks different | looks alike, other thing | wrong | "
        "precision % | recall % | F1 %"
    )
    line = f"{found['truths']} correct matches exist; each pair counts in both directions."
    return f"{table(head, rows)}\n\n{line}\n\n{source(SIGHT)}"


def wild_short() -> str:
    """Return the headline of `wild`."""
    found = read(SIGHT)["wild"]
    rows = [
        [label, str(found[how]["found"]), *(percent(found[how][key], 1) for key in ("precision", "recall"))]
        for how, label in WAYS.items()
    ]
    return f"{table('matched by | matches | precision % | recall %', rows)}\n\n{source(SIGHT)}"


def support_short() -> str:
    """Return the headline of `support`: two teachers per task, sketch anchors, without and with support."""
    found = read(NAME)["twice"]["sketch"]["support"]
    rows = [
        [words, percent(found[how]["corrected_accuracy"], 1), percent(found[how]["confidence_error"], 1)]
        for how, words in (("alone", "without support"), ("together", "with support"))
    ]
    return f"{table('two teachers per task | accuracy % | calibration error', rows)}\n\n{source(NAME)}"


def costs() -> str:
    """Return the cost of support for an answer, and of the matches of a large bank."""
    r = read(SIGHT)
    a, s = r["answering"], r["scale"]
    return (
        f"After the forward pass, an answer takes {a['never']:.2f} ms without support, {a['plain']:.2f} ms with "
        f"plain forms and {a['encoder']:.2f} ms with the encoder (at most 25 guesses compared). In a bank of "
        f"{s['tasks']:,} tasks × {s['classes']} classes, with all names different and already encoded, the first "
        f"request for all matches takes {s['whole_s']:.0f} s and {s['megabytes']:.0f} MB; one more task takes "
        f"{s['one_more_s']:.2f} s.\n\n{source(SIGHT)}"
    )
