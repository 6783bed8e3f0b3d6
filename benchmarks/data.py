"""Name the data of the committed results: the manifest of the tasks, and which of them each result used.

python benchmarks/data.py TASKS    # TASKS: a folder of zips and their manifest.json

Writes docs/results/data.json, from which the line below each table and the page docs/appendix/data.md are made.
A result holds only a hash of its images. Which tasks that were is found by trying the lists of tasks in the
results, which takes some minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from skillmesh.evaluation.provenance import data_hash, provenance

RESULTS = Path(__file__).parent.parent / "docs" / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    folder: Path = parser.parse_args().tasks
    zips = {path.stem: path for path in sorted(folder.glob("*.zip"))}
    manifest = (folder / "manifest.json").read_bytes()
    results = [json.loads(path.read_text()) for path in RESULTS.glob("*.json") if path.name != "data.json"]
    used = {digest for result in results for digest in hashes(result)}
    names = tuple(zips)
    lists = {
        names,
        names[::2],
        tuple(name for i, name in enumerate(names) if i % 4),
    }  # benchmarks take all, half, three quarters
    lists |= {listed for result in results for listed in lists_of(result, zips)}
    subsets = {data_hash([zips[name] for name in listed]): sorted(listed) for listed in lists}
    content = {
        "manifest_hash": hashlib.sha256(manifest).hexdigest(),
        "tasks": [row(task) for task in json.loads(manifest)],
        "data_hashes": {digest: subsets[digest] for digest in sorted(used) if digest in subsets},
        "provenance": provenance("python benchmarks/data.py TASKS", list(zips.values()), seed=0),
    }
    (RESULTS / "data.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(content['data_hashes'])} of {len(used)} sets of images named")
    for digest in sorted(used - subsets.keys()):
        print(f"not found: {digest[:12]}")


def row(task: dict[str, Any]) -> dict[str, Any]:
    """Return what a visitor needs to find a task's images."""
    names = ("name", "title", "domain", "source_repo", "commit", "license", "n_classes", "counts")
    return {name: task[name] for name in names}


def hashes(result: Any) -> Iterator[str]:
    """Yield every hash of images in a result."""
    if isinstance(result, dict):
        if "data_hash" in result:
            yield result["data_hash"]
        for value in result.values():
            yield from hashes(value)
    elif isinstance(result, list):
        for value in result:
            yield from hashes(value)


def lists_of(result: Any, known: dict[str, Path]) -> Iterator[tuple[str, ...]]:
    """Yield every list of known tasks in a result: as a list, as the keys of a table, or as rows with a name."""
    if isinstance(result, dict):
        names = [name for name in result if name in known]
        values = list(result.values())
    elif isinstance(result, list):
        plain = [item.get("task", item.get("name")) if isinstance(item, dict) else item for item in result]
        names = [name for name in plain if isinstance(name, str) and name in known]
        values = result
    else:
        return
    if names:
        yield tuple(sorted(set(names)))
    for value in values:
        yield from lists_of(value, known)


if __name__ == "__main__":
    main()
