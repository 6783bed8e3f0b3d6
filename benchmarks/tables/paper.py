"""The paper's own figures, and the studies of its appendices."""

from __future__ import annotations

from skillmesh_challenge.studies.study import as_read
from tables import read, source, table


def paper(name: str) -> str:
    """A table of the paper, each figure beside ours, and the notes that its cells refer to."""
    content = read("paper")["tables"][name]
    rows = []
    for cell in content["cells"]:
        figures = [cell[key] or "–" for key in ("printed", "ours", "reached")]
        verdict = f"{cell['verdict']} ({cell['note']})" if cell["note"] else cell["verdict"]
        rows.append([f"{cell['row']}: {cell['column']}", *figures, verdict, cell["formula"] or "–"])
    notes = "\n".join(f"{number}. {note}" for number, note in enumerate(content["notes"], start=1))
    head = "figure | paper | by its formula | by an assumption | verdict | formula"
    return f"{table(head, rows)}\n\n{notes}\n\n{source('paper')}"


def paper_datasets() -> str:
    account = read("paper")["datasets"]
    sizes = ("tasks", "classes", "train", "val", "test", "images")
    rows = [[step["what"], *(f"{step[size]:,}" for size in sizes)] for step in account["steps"]]
    parts = [table(f"rows | {' | '.join(sizes)}", rows)]
    for key in ("known", "unknown"):
        parts += [f"What is {key}:", "\n".join(f"- {line}" for line in account[key])]
    return "\n\n".join([*parts, source("paper")])


def study(name: str) -> str:
    found = read(f"study-{name}")
    rows = [[as_read(value) for value in row.values()] for row in found["rows"]]
    notes = "\n".join(f"- {note}" for note in found["notes"])
    return f"{table(' | '.join(found['rows'][0]), rows)}\n\n{notes}\n\n{source(f'study-{name}')}"
