"""Tables of the image tasks that the results were measured on, and of the subsets that some of them used."""

from __future__ import annotations

from tables import RESULTS, read, source, table


def tasks() -> str:
    rows = [
        [
            f"`{task['name']}`",
            task["title"],
            task["domain"],
            str(task["n_classes"]),
            " / ".join(str(task["counts"][split]) for split in ("train", "val", "test")),
            f"{task['source_repo']} {task['commit'][:7]}" if task["commit"] else task["source_repo"],
            task["license"],
        ]
        for task in read("data")["tasks"]
    ]
    head = "task | title | images show | classes | training / validation / test images | source | licence"
    return f"{table(head, rows)}\n\n{source('data')}"


def subsets() -> str:
    """Return the table of the subsets of the tasks: which tasks they have, and which results used them."""
    known = read("data")
    texts = {path.stem: path.read_text() for path in sorted(RESULTS.glob("*.json")) if path.stem != "data"}
    rows = [
        [
            digest[:12],
            str(len(names)),
            ", ".join(names),
            ", ".join(f"`{result}`" for result, text in texts.items() if digest in text),
        ]
        for digest, names in sorted(known["data_hashes"].items(), key=lambda item: len(item[1]))
        if len(names) < len(known["tasks"])
    ]
    return f"{table('data hash | number | tasks | results', rows)}\n\n{source('data')}"
