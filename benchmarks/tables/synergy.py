"""Classes that recur under other names."""

from __future__ import annotations

from typing import Any

from tables import read, source, table

NAME = "class-names"


def paper_pairs() -> str:
    """What became of the paper's pairs; those whose plain forms are equal are counted, the others listed."""
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
    swept = ", ".join(
        f"{least}: {n['sure']} and {n['unsure']}" for least, n in r["paper_found_by_threshold"].items()
    )
    line = (
        f"Of the {r['paper_sure']} pairs that the paper scores 0.9 or more, {r['paper_found']} are found "
        f"({100 * r['paper_found'] / r['paper_sure']:.1f} %) at {r['threshold']}; of the others "
        f"{r['paper_unsure_found']}. {len(equal)} pairs have equal plain forms and score 1; the rest:"
    )
    head = "learned class | target class | table | CLIP, paper | MiniLM | found"
    note = f"Pairs found of those that the paper scores from 0.9 on and below, by threshold: {swept}."
    return f"{line}\n\n{table(head, rows)}\n\n{note}\n\n{source(NAME)}"


def matches() -> str:
    """All matches across the real tasks; the digits, of which there are three times ten, in three lines."""
    r = read(NAME)
    merged: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for m in r["matched"]:
        digits = m["learned"].startswith("digit ")
        names = ("digit 0 … 9", "digit 0 … 9") if digits else (m["learned"], m["target"])
        merged.setdefault((m["learned_task"], m["target_task"], *names), []).append(m)
    rows = []
    for (a, b, left, right), found in merged.items():
        first = found[0]
        verdict = (str(len(found)), f"{first['score']:.3f}", first["verdict"], first["why"])
        rows.append([f"{a}: {left}", f"{b}: {right}", *verdict])
    v, n = r["verdicts"], r["classes"]
    line = (
        f"{r['matches']} matches between {n} classes of {r['tasks']} tasks: {v['true']} true, {v['other sight']} "
        f"the same word for the same thing that looks another way, {v['false']} false. False ones touch "
        f"{r['false_classes']} classes ({100 * r['false_classes'] / n:.1f} %), with those that look another way "
        f"{r['false_or_other_sight_classes']} ({100 * r['false_or_other_sight_classes'] / n:.1f} %). "
        f"Without the second step above there would be {r['matches_without_telling_words']} matches."
    )
    head = "class | class | pairs | score | verdict | why"
    return f"{line}\n\n{table(head, rows)}\n\n{source(NAME)}"
