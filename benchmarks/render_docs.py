"""Put the committed results into the docs: tables between `<!-- table NAME -->` and `<!-- end -->` are made here.

python benchmarks/render_docs.py            # write the tables
python benchmarks/render_docs.py --check    # fail where a document and the results differ (CI does this)
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
BLOCK = re.compile(r"<!-- table ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)

METHODS = {
    "sketch": "**sketch** on the descriptor (default)",
    "sketch-compact": "**sketch** `--compact`",
    "maha": "maha, m = 5, on features",
    "gmmc-floor": "gmmc, k = 25, variance floor 0.01, on sqrt-features",
    "gmmc": "gmmc, k = 25, scikit-learn's defaults, on features",
}


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return content


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def kilobytes(count: float) -> str:
    return f"{count / 1000:.0f}"


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    columns = [c.strip() for c in head.split("|")]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" + "---:|" * (len(columns) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def source(*names: str) -> str:
    """Where a table's rows come from; rows measured at several commits name all of these."""
    origins = [read(name)["provenance"] for name in names]
    first = origins[0]
    commits = ", ".join(sorted({origin["commit"] for origin in origins}))
    data = f"data {first['data_hash'][:12]}"
    line = f"`{first['command']}` · commit {commits} · seed {first['seed']} · {data} · {first['date']}"
    remarks = [origin["remark"] for origin in origins if "remark" in origin]
    return " · ".join([line, *remarks])


def accuracy() -> str:
    rows = []
    for name, label in METHODS.items():
        r = read(name)
        figures = (r["oracle_accuracy"], r["task_accuracy"], r["final_accuracy"])
        rows.append([label, *map(percent, figures), kilobytes(r["anchor_bytes"]), kilobytes(r["module_bytes"])])
    head = "mapper | task given, % | task found, % | final, % | anchor, KB | module, KB"
    return f"{table(head, rows)}\n\n{source(*METHODS)}"


def per_task() -> str:
    rows = []
    for t in read("sketch")["tasks"]:
        figures = map(percent, (t["oracle_accuracy"], t["task_accuracy"], t["final_accuracy"], t["known_unknown"]))
        taken = sorted(t["confusions"].items(), key=lambda item: -item[1])[:2]
        others = ", ".join(f"{name} ({n})" for name, n in taken) or "–"
        rows.append([t["task"], str(t["classes"]), str(t["test_images"]), *figures, others])
    head = "task | classes | test images | task given, % | task found, % | final, % | unknown, % | taken for"
    return table(head, rows)


def transfer() -> str:
    rows = []
    labels = {"sketch": "sketch", "maha": "maha", "gmmc-floor": "gmmc, floor 0.01", "gmmc": "gmmc, defaults"}
    labels["sketch-shipped"] = "sketch, the shipped calibration (it saw both halves)"
    labels["sketch-compact"] = "sketch `--compact`"
    for name, label in labels.items():
        halves = [read(f"half-{half}-{name}") for half in "ab"]
        cells = [percent(h[key]) for h in halves for key in ("oracle_accuracy", "task_accuracy", "final_accuracy")]
        rows.append([label, *cells])
    head = "calibration from the other half | A: given | A: task | A: final | B: given | B: task | B: final"
    return f"{table(head, rows)}\n\n{source(*(f'half-{half}-{name}' for name in labels for half in 'ab'))}"


def drawn() -> str:
    rows = []
    for name in ("sketch", "maha"):
        for key, label in ((name, "shipped"), (f"drawn-{name}", "drawn tasks alone")):
            r = read(key)
            figures = (r["oracle_accuracy"], r["task_accuracy"], r["final_accuracy"])
            rows.append([f"{name}, calibration from {label}", *map(percent, figures)])
    head = "mapper | task given, % | task found, % | final, %"
    return f"{table(head, rows)}\n\n{source('drawn-sketch', 'drawn-maha', 'sketch', 'maha')}"


def unknown() -> str:
    r = read("unknown")
    rows = []
    for split in [*r["splits"], r | {"seed": "mean"}]:
        keys = ("known_unknown", "hidden_unknown", "final_accuracy", "strict_accuracy")
        rows.append([str(split["seed"]), f"{split['unknown_auroc']:.3f}", *(percent(split[key]) for key in keys)])
    head = (
        "split | AUROC | known images called unknown, % | hidden ones called unknown, % | final, answer forced, % "
        "| final, unknown counted wrong, %"
    )
    return f"{table(head, rows)}\n\n{source('unknown')}"


def robustness() -> str:
    r = read("robustness")
    rows = []
    for change in r["mappers"]["sketch"]:
        cells = [
            f"{percent(m[change]['task_accuracy'])} / {percent(m[change]['final_accuracy'])}"
            for m in r["mappers"].values()
        ]
        rows.append([change, *cells])
    return f"{table('test images | ' + ' | '.join(r['mappers']), rows)}\n\n{source('robustness')}"


def xception() -> str:
    rows = []
    for name, label in METHODS.items():
        if name != "sketch-compact":
            r = read(f"xception-{name}")
            figures = (r["oracle_accuracy"], r["task_accuracy"], r["final_accuracy"])
            rows.append(
                [label, *map(percent, figures), kilobytes(r["anchor_bytes"]), kilobytes(r["module_bytes"])]
            )
    head = "mapper (Xception) | task given, % | task found, % | final, % | anchor, KB | module, KB"
    return (
        f"{table(head, rows)}\n\n{source(*(f'xception-{name}' for name in METHODS if name != 'sketch-compact'))}"
    )


def speed() -> str:
    r = read("speed")
    rows = [[row["what"], row["ours"], row["other"], f"{row['ratio']:.2f}", row["aim"]] for row in r["rows"]]
    return f"{table('what | ours | against | ratio | aim', rows)}\n\n{r['machine']} · {source('speed')}"


TABLES: dict[str, Callable[[], str]] = {
    "accuracy": accuracy,
    "per-task": per_task,
    "transfer": transfer,
    "drawn": drawn,
    "unknown": unknown,
    "robustness": robustness,
    "xception": xception,
    "speed": speed,
}


def rendered(text: str) -> str:
    return BLOCK.sub(lambda found: f"<!-- table {found[1]} -->\n{TABLES[found[1]]()}\n<!-- end -->", text)


def main() -> None:
    check = sys.argv[1:] == ["--check"]
    stale = []
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = document.read_text()
        if (new := rendered(text)) != text:
            stale.append(document.relative_to(ROOT))
            if not check:
                document.write_text(new)
    for document in stale:
        print(f"{document}: {'its tables are not what docs/results says; run make docs' if check else 'written'}")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
