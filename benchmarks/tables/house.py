"""Tables about the source tree, and about the memory that learning from datasets takes."""

from __future__ import annotations

from tables import measured_by, read, source, table


def walks() -> str:
    r = read("walks")
    names = {
        "learn": "`skillmesh learn`",
        "ask": "`skillmesh ask`",
        "arrival": "arrival of a module",
        "challenge run": "`skillmesh challenge run`",
    }
    rows = [[names[walk], str(len(r["before"][walk])), str(len(files))] for walk, files in r["now"].items()]
    head = f"command | files at commit {r['before_commit']} | files now"
    return f"{table(head, rows)}\n\n{source('walks')}"


def dataset_memory() -> str:
    runs = read("dataset-memory")["runs"]
    rows = [
        [
            "read in place" if run["lazy"] else "stored in a temporary file",
            f"{run['images']:,}",
            f"{run['agent_mb']:.0f}",
            f"{run['learning_mb']:.0f}",
        ]
        for run in runs
    ]
    head = "images are | number | agent before, MB | peak above it while learning, MB"
    return f"{table(head, rows)}\n\n{measured_by([run['provenance'] for run in runs])}"
