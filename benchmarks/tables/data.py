"""The table of the image tasks that the results were measured on."""

from __future__ import annotations

from tables import read, source, table


def tasks() -> str:
    rows = [
        [
            task["title"],
            task["domain"],
            str(task["n_classes"]),
            " / ".join(str(task["counts"][split]) for split in ("train", "val", "test")),
            f"{task['source_repo']} {task['commit'][:7]}" if task["commit"] else task["source_repo"],
            task["license"],
        ]
        for task in read("data")["tasks"]
    ]
    head = "task | images show | classes | training / validation / test images | source | licence"
    return f"{table(head, rows)}\n\n{source('data')}"
