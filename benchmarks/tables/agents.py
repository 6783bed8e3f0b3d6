"""Tables about one agent: accuracy, unknown images, robustness, speed."""

from __future__ import annotations

from typing import Any

from tables import kilobytes, percent, read, source, table

METHODS = {
    "sketch": "**sketch**, descriptor (default)",
    "sketch-compact": "**sketch**, `--compact`",
    "maha": "maha, features",
    "gmmc-floor": "gmmc, variance floor 0.01, square-rooted features",
    "gmmc": "gmmc, scikit-learn's floor, features",
}


def accuracy() -> str:
    rows = []
    for name, label in METHODS.items():
        r = read(name)
        figures = (r["task_given_accuracy"], r["task_found_accuracy"], r["final_accuracy"])
        rows.append([label, *map(percent, figures), kilobytes(r["anchor_bytes"]), kilobytes(r["module_bytes"])])
    head = "anchor | task given, % | task found, % | final, % | anchor, KB | module, KB"
    return f"{table(head, rows)}\n\n{source(*METHODS, short=True)}"


def per_task() -> str:
    rows = []
    for t in read("sketch")["tasks"]:
        figures = map(
            percent, (t["task_given_accuracy"], t["task_found_accuracy"], t["final_accuracy"], t["known_unknown"])
        )
        taken = sorted(t["confusions"].items(), key=lambda item: -item[1])[:2]
        others = ", ".join(f"{name} ({n})" for name, n in taken) or "–"
        rows.append([t["task"], str(t["classes"]), str(t["test_images"]), *figures, others])
    head = (
        "task | classes | test images | task given, % | task found, % | final, % | called unknown, % "
        "| taken for (images)"
    )
    return f"{table(head, rows)}\n\n{source('sketch')}"


def transfer() -> str:
    rows = []
    labels = {
        "sketch": "sketch",
        "maha": "maha",
        "gmmc-floor": "gmmc, variance floor 0.01",
        "gmmc": "gmmc, scikit-learn's variance floor",
        "sketch-shipped": "sketch, shipped calibration (made from both halves)",
        "sketch-compact": "sketch, `--compact`",
    }
    for name, label in labels.items():
        halves = [read(f"half-{half}-{name}") for half in "ab"]
        cells = [
            percent(h[key])
            for h in halves
            for key in ("task_given_accuracy", "task_found_accuracy", "final_accuracy")
        ]
        rows.append([label, *cells])
    columns = [f"half {half}: {name}, %" for half in "AB" for name in ("task given", "task found", "final")]
    head = " | ".join(["anchor, calibration from the other half", *columns])
    return f"{table(head, rows)}\n\n{source(*(f'half-{half}-{name}' for name in labels for half in 'ab'))}"


def drawn() -> str:
    rows = []
    for name in ("sketch", "maha"):
        for key, label in ((name, "shipped calibration"), (f"drawn-{name}", "calibration from drawn tasks only")):
            r = read(key)
            figures = (r["task_given_accuracy"], r["task_found_accuracy"], r["final_accuracy"])
            rows.append([f"{name}, {label}", *map(percent, figures)])
    head = "anchor | task given, % | task found, % | final, %"
    return f"{table(head, rows)}\n\n{source('drawn-sketch', 'drawn-maha', 'sketch', 'maha')}"


def unknown() -> str:
    r = read("unknown")
    rows = []
    for split in [*r["splits"], r | {"seed": "mean"}]:
        keys = ("known_unknown", "hidden_unknown", "final_accuracy", "strict_accuracy")
        rows.append([str(split["seed"]), f"{split['unknown_auroc']:.3f}", *(percent(split[key]) for key in keys)])
    head = (
        "split | AUROC | known images called unknown, % | hidden images called unknown, % "
        "| final, best guess counted, % | final, unknown counted as wrong, %"
    )
    return f"{table(head, rows)}\n\n{source('unknown')}"


def robustness() -> str:
    r = read("robustness")
    rows = []
    for change in r["mappers"]["sketch"]:
        cells = [
            f"{percent(m[change]['task_found_accuracy'])} / {percent(m[change]['final_accuracy'])}"
            for m in r["mappers"].values()
        ]
        rows.append([change.replace("as they are", "unchanged"), *cells])
    head = " | ".join(["test images", *(f"{kind}: task found / final, %" for kind in r["mappers"])])
    return f"{table(head, rows)}\n\n{source('robustness')}"


def xception() -> str:
    rows = []
    for name, label in METHODS.items():
        if name != "sketch-compact":
            r = read(f"xception-{name}")
            figures = (r["task_given_accuracy"], r["task_found_accuracy"], r["final_accuracy"])
            rows.append(
                [label, *map(percent, figures), kilobytes(r["anchor_bytes"]), kilobytes(r["module_bytes"])]
            )
    head = "anchor (Xception) | task given, % | task found, % | final, % | anchor, KB | module, KB"
    return (
        f"{table(head, rows)}\n\n{source(*(f'xception-{name}' for name in METHODS if name != 'sketch-compact'))}"
    )


def speed() -> str:
    """Return the speed table in short words."""
    work = {
        "make": "make an anchor",
        "score 1 ": "score 1 image",
        "score 1,000": "score 1,000 images",
        "answer": "answer 1 image",
        "learn": "learn a task",
    }
    rows = []
    for row in read("speed")["rows"]:
        short = next(label for start, label in work.items() if row["what"].startswith(start))
        other = "scikit-learn" if "scikit-learn" in row["other"] else row["other"].partition(",")[0]
        result, target = _result(row)
        rows.append([short, other, result, target.partition(" ×")[0]])
    return f"{table('work | compared with | result | target', rows)}\n\n{source('speed')}"


def speed_details() -> str:
    """Return the speed table with what exactly was measured."""
    r = read("speed")
    rows = [[row["what"].replace("(s)", ""), row["ours"], row["other"], *_result(row)] for row in r["rows"]]
    head = "work | skillmesh | compared with | result | target"
    return f"{table(head, rows)}\n\n{r['machine']} · {source('speed')}"


def _result(row: dict[str, Any]) -> tuple[str, str]:
    """Return a ratio with its unit, and the target in the same words."""
    unit = "× faster" if "faster" in row["aim"] else "× the time"
    return f"{row['ratio']:.2f} {unit}", row["aim"].replace("the floor", "the time")


def ask() -> str:
    seconds = ("first_seconds", "half_seconds", "last_seconds")
    rows = [
        [f"{run['images']:,}", *(f"{run[key]:.1f}" for key in seconds), f"{run['peak_mb']:.0f}"]
        for run in read("ask")["runs"]
    ]
    head = "images | first answer, s | half of the answers, s | last answer, s | peak memory, MB"
    return f"{table(head, rows)}\n\n{source('ask')}"
