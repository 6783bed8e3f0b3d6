"""How the source is built, and what learning from datasets takes."""

from __future__ import annotations

from tables import measured_by, read, source, table


def walks() -> str:
    r = read("walks")
    rows = [[name, str(len(r["before"][name])), str(len(files))] for name, files in r["now"].items()]
    head = f"walk | files, commit {r['before_commit']} | files now"
    return f"{table(head, rows)}\n\n{source('walks')}"


def dataset_memory() -> str:
    runs = read("dataset-memory")["runs"]
    rows = [
        [
            "read in place (`--lazy`)" if run["lazy"] else "put aside on disk",
            f"{run['images']:,}",
            f"{run['agent_mb']:.0f}",
            f"{run['learning_mb']:.0f}",
        ]
        for run in runs
    ]
    head = "dataset | images | agent before, MB | peak above it, MB"
    return f"{table(head, rows)}\n\n{measured_by([run['provenance'] for run in runs])}"
