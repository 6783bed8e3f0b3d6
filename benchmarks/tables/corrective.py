"""Corrective evaluation, support, and matching by sight."""

from __future__ import annotations

from typing import Any

from tables import read, source, table

NAME, SIGHT = "corrective", "sight"
WAYS = {"name": "by name", "sight": "by sight", "both": "by both"}


def percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f}"


def accuracy() -> str:
    """Final accuracy without correction and with it, by threshold, for both kinds of bank."""
    r = read(NAME)
    rows = [_levels(kind, bank, "once") for kind, bank in r["banks"].items()]
    rows += [_levels(kind, bank, "twice") for kind, bank in r["twice"].items()]
    head = "mapper | tasks taught | final | corrected from 0.95 | from 0.90 | from 0.85 | images from 0.85"
    return f"{table(head, rows)}\n\n{source(NAME)}"


def _levels(kind: str, bank: dict[str, Any], taught: str) -> list[str]:
    levels = [bank["thresholds"][least] for least in ("0.95", "0.9", "0.85")]
    shares = [percent(bank["final_accuracy"]), *(percent(level["final_accuracy"]) for level in levels)]
    return [kind, taught, *shares, str(levels[-1]["images"])]


def corrections() -> str:
    """Everything that was corrected between different tasks, with its verdict."""
    r = read(NAME)
    rows = [
        [
            f"{c['task']}: {c['label']}",
            f"{c['said_task']}: {c['said']}",
            f"{c['score']:.3f}",
            ", ".join(f"{kind} {n}" for kind, n in c["images"].items()),
            c["verdict"],
            c["why"],
        ]
        for c in r["judged"]
    ]
    twice, inside = _verdicts(r["judged_twice"]), r["within_twice"]
    lines = [
        f"Where every task is taught twice, corrections between different tasks are {twice} (listed in the JSON); "
        "between the two halves of a task, images of the same class and of another: "
        + "; ".join(f"{kind} {n['same class']:,} and {n['another class']:,}" for kind, n in inside.items())
        + "."
    ]
    head = "class | answered as | score | images | verdict | why"
    return f"{table(head, rows)}\n\n{lines[0]}\n\n{source(NAME)}"


def _verdicts(rows: list[dict[str, Any]]) -> str:
    counts = {v: sum(row["verdict"] == v for row in rows) for v in ("true", "other sight", "false")}
    return ", ".join(f"{n} {verdict}" for verdict, n in counts.items())


def support() -> str:
    """Every task on its own against equivalent classes together."""
    r = read(NAME)
    rows = []
    for taught, banks in (("once", r["banks"]), ("twice", r["twice"])):
        for kind, bank in banks.items():
            for how, label in (("alone", "alone"), ("together", "plain"), ("by encoder", "encoder")):
                if how not in bank["support"]:
                    continue
                s = bank["support"][how]
                figures = (percent(s["corrected_accuracy"]), percent(s["confidence_error"], 1))
                helped = f"{bank['support']['supported']:,}" if how == "together" else ""
                rows.append([kind, taught, label, percent(s["final_accuracy"]), *figures, helped])
    head = "mapper | tasks taught | support | final | with equivalents | confidence off by | supported answers"
    return f"{table(head, rows)}\n\n{source(NAME)}"


def constructed() -> str:
    """Sight by the number of images and the share that must agree."""
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
    head = "images of a class | more than | matches | precision | recall | classes never learned that match"
    line = f"{r['known']} classes are known, {r['kept']} of them stay matched where names are checked by sight."
    return f"{table(head, rows)}\n\n{line}\n\n{source(SIGHT)}"


def wild() -> str:
    """What each task's classes match in a bank of all others."""
    r = read(SIGHT)
    found = r["wild"]
    rows = []
    for how, label in WAYS.items():
        w = found[how]
        counts = [str(w[key]) for key in ("found", "true", "other sight", "alike", "false")]
        rows.append([label, *counts, *(percent(w[key], 1) for key in ("precision", "recall", "f1"))])
    head = "matched | found | true | same word, other look | same look | false | precision | recall | F1"
    line = f"{found['truths']} matches are true, each pair counted from both sides."
    return f"{table(head, rows)}\n\n{line}\n\n{source(SIGHT)}"


def costs() -> str:
    """What support costs an answer, and following a large bank."""
    r = read(SIGHT)
    a, s = r["answering"], r["scale"]
    return (
        f"An answer takes {a['never']:.2f} ms without support once the image is described, {a['plain']:.2f} ms "
        f"with plain forms, {a['encoder']:.2f} ms with the encoder, whatever the size of the bank: at most 25 "
        f"guesses are compared. Matches of {s['tasks']:,} tasks × {s['classes']} classes, all names different and "
        f"encoded, take {s['whole_s']:.0f} s when they are first asked for and {s['megabytes']:.0f} MB, one more "
        f"task {s['one_more_s']:.2f} s.\n\n{source(SIGHT)}"
    )
