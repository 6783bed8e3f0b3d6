"""The paper's own figures, and the studies of its appendices."""

from __future__ import annotations

from collections import Counter
from typing import Any

from skillmesh_challenge.studies.study import as_read
from tables import read, source, table

VERDICTS = {
    "agrees": "agree",
    "explained": "explained by an assumption",
    "no explanation": "not explained",
    "no formula": "no formula stated",
    "measured": "measured accuracies",
}
"""Column heads of the overview, by verdict."""
MEANT = {
    "agrees": "agrees with its formula",
    "explained": "explained only by an assumption of ours",
    "no explanation": "not explained",
    "no formula": "no formula stated",
    "measured": "accuracy: needs the paper's data",
}
"""Row names of the summary, by verdict."""
MAIN = (
    ("parallel", "LLL, no BB, MAHA", "teacher MACs"),
    ("parallel", "LLL, no BB, MAHA", "efficiency"),
    ("sharing", "upper limit per task", "bytes"),
    ("replay", "time for all tasks, gamma = 0.04", "in units of one task"),
    ("replay", "increase when all images are kept", "factor"),
)
"""Table, row and column of the figures whose differences matter most."""
SIZES = {
    "tasks": "tasks",
    "classes": "classes",
    "train": "training images",
    "val": "validation images",
    "test": "test images",
    "images": "all images",
}


def paper(name: str) -> str:
    """A table of the paper, each figure beside ours, and the notes that its cells refer to."""
    content = read("paper")["tables"][name]
    rows = []
    for cell in content["cells"]:
        verdict = f"{cell['verdict']} ({cell['note']})" if cell["note"] else cell["verdict"]
        rows.append([_name(cell), *_figures(cell), verdict, cell["formula"] or "–"])
    notes = "\n".join(f"{number}. {_sentence(note)}" for number, note in enumerate(content["notes"], start=1))
    head = "figure | printed | from the formula | under our assumption | verdict (note) | formula"
    return f"{table(head, rows)}\n\n{notes}\n\n{source('paper')}"


def overview() -> str:
    """How many figures of each part of the paper agree with their formula, and how many do not."""
    rows, every = [], Counter[str]()
    for content in read("paper")["tables"].values():
        counts = Counter(cell["verdict"] for cell in content["cells"])
        rows.append([content["title"].partition(":")[0], *_counts(counts)])
        every += counts
    rows.append(["all parts", *_counts(every)])
    head = f"part of the paper | figures | {' | '.join(VERDICTS.values())}"
    return f"{table(head, rows)}\n\n{source('paper')}"


def verdicts() -> str:
    """How many figures of the whole paper have each verdict."""
    counts = read("paper")["verdicts"]
    rows = [[meaning, str(counts[verdict])] for verdict, meaning in MEANT.items()]
    return f"{table('verdict | figures', rows)}\n\n{source('paper')}"


def main_differences() -> str:
    """The figures of `MAIN`, as printed and from the paper's formula."""
    tables = read("paper")["tables"]
    cells = {(name, c["row"], c["column"]): c for name, content in tables.items() for c in content["cells"]}
    rows = [[_name(cells[key]), *_figures(cells[key])[:2]] for key in MAIN]
    return f"{table('figure | printed | from the formula', rows)}\n\n{source('paper')}"


def paper_datasets() -> str:
    account = read("paper")["datasets"]
    rows = [[step["what"], *(f"{step[size]:,}" for size in SIZES)] for step in account["steps"]]
    parts = [table(f"counted | {' | '.join(SIZES.values())}", rows)]
    for key in ("known", "unknown"):
        parts += [f"What is {key}:", "\n".join(f"- {line}" for line in account[key])]
    return "\n\n".join([*parts, source("paper")])


def study(name: str) -> str:
    found = read(f"study-{name}")
    rows = [[as_read(value) for value in row.values()] for row in found["rows"]]
    notes = "\n".join(f"- {note}" for note in found["notes"])
    return f"{table(' | '.join(found['rows'][0]), rows)}\n\n{notes}\n\n{source(f'study-{name}')}"


def _name(cell: dict[str, Any]) -> str:
    return f"{cell['row']}: {cell['column']}"


def _figures(cell: dict[str, Any]) -> list[str]:
    return [cell[key] or "–" for key in ("printed", "ours", "reached")]


def _counts(counts: Counter[str]) -> list[str]:
    return [str(number) for number in (counts.total(), *(counts[verdict] for verdict in VERDICTS))]


def _sentence(note: str) -> str:
    return f"{note[0].upper()}{note[1:]}."
