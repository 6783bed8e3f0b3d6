"""Classes that recur under other names."""

from __future__ import annotations

from typing import Any

from tables import read, source, table

NAME = "class-names"
VERDICTS = {"true": "correct", "other sight": "same word, looks different", "false": "wrong"}
"""Words for the verdicts of the judged matches."""


def paper_pairs() -> str:
    """Return which of the paper's pairs are found: those with equal plain forms as a count, the others as rows."""
    r = read(NAME)
    equal = [p for p in r["paper_pairs"] if p["ours"] == 1]
    rest = sorted((p for p in r["paper_pairs"] if p["ours"] < 1), key=lambda p: -p["score"])
    rows = [
        [
            p["learned"],
            p["target"],
            p["table"],
            f"{p['score']:.3f}",
            f"{p['ours']:.3f}",
            "yes" if p["found"] else "no",
        ]
        for p in rest
    ]
    by_threshold = "; ".join(
        f"at {least}, {n['sure']} and {n['unsure']}" for least, n in r["paper_found_by_threshold"].items()
    )
    line = (
        f"The paper scores {r['paper_sure']} pairs 0.9 or more. At the threshold of {r['threshold']}, "
        f"{r['paper_found']} of them are found ({100 * r['paper_found'] / r['paper_sure']:.1f} %), and "
        f"{r['paper_unsure_found']} of the other pairs. {len(equal)} pairs have equal plain forms and score 1. "
        "The table lists the rest:"
    )
    head = "learned class | target class | table in the paper | CLIP, in the paper | MiniLM, here | found"
    note = f"Pairs found that the paper scores 0.9 or more, and less than 0.9, by threshold: {by_threshold}."
    return f"{line}\n\n{table(head, rows)}\n\n{note}\n\n{source(NAME)}"


def matches() -> str:
    """Return all matches across the real tasks; the digits, three times ten pairs, take three rows."""
    r = read(NAME)
    merged: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for m in r["matched"]:
        digits = m["learned"].startswith("digit ")
        names = ("digit 0 … 9", "digit 0 … 9") if digits else (m["learned"], m["target"])
        merged.setdefault((m["learned_task"], m["target_task"], *names), []).append(m)
    rows = []
    for (a, b, left, right), found in merged.items():
        first = found[0]
        verdict = (str(len(found)), f"{first['score']:.3f}", VERDICTS[first["verdict"]], first["why"])
        rows.append([f"{a}: {left}", f"{b}: {right}", *verdict])
    v, n = r["verdicts"], r["classes"]
    line = (
        f"{r['matches']} matches between {n} classes of {r['tasks']} tasks: {v['true']} correct, "
        f"{v['other sight']} where the same word names the same thing but the images look different, and "
        f"{v['false']} wrong. Wrong matches affect {r['false_classes']} classes "
        f"({100 * r['false_classes'] / n:.1f} %), {r['false_or_other_sight_classes']} "
        f"({100 * r['false_or_other_sight_classes'] / n:.1f} %) with those that look different. "
        f"Without the check of distinctive words there would be {r['matches_without_telling_words']} matches."
    )
    head = "class | class of another task | pairs | score | verdict | reason"
    return f"{line}\n\n{table(head, rows)}\n\n{source(NAME)}"
