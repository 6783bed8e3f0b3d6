"""What one agent does: accuracy, unknown, robustness, speed."""

from __future__ import annotations

from tables import kilobytes, percent, read, source, table

METHODS = {
    "sketch": "**sketch** on the descriptor (default)",
    "sketch-compact": "**sketch** `--compact`",
    "maha": "maha, m = 5, on features",
    "gmmc-floor": "gmmc, k = 25, variance floor 0.01, on sqrt-features",
    "gmmc": "gmmc, k = 25, scikit-learn's defaults, on features",
}


def accuracy() -> str:
    rows = []
    for name, label in METHODS.items():
        r = read(name)
        figures = (r["task_given_accuracy"], r["task_found_accuracy"], r["final_accuracy"])
        rows.append([label, *map(percent, figures), kilobytes(r["anchor_bytes"]), kilobytes(r["module_bytes"])])
    head = "mapper | task given, % | task found, % | final, % | anchor, KB | module, KB"
    return f"{table(head, rows)}\n\n{source(*METHODS)}"


def per_task() -> str:
    rows = []
    for t in read("sketch")["tasks"]:
        figures = map(
            percent, (t["task_given_accuracy"], t["task_found_accuracy"], t["final_accuracy"], t["known_unknown"])
        )
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
        cells = [
            percent(h[key])
            for h in halves
            for key in ("task_given_accuracy", "task_found_accuracy", "final_accuracy")
        ]
        rows.append([label, *cells])
    head = "calibration from the other half | A: given | A: task | A: final | B: given | B: task | B: final"
    return f"{table(head, rows)}\n\n{source(*(f'half-{half}-{name}' for name in labels for half in 'ab'))}"


def drawn() -> str:
    rows = []
    for name in ("sketch", "maha"):
        for key, label in ((name, "shipped"), (f"drawn-{name}", "drawn tasks alone")):
            r = read(key)
            figures = (r["task_given_accuracy"], r["task_found_accuracy"], r["final_accuracy"])
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
            f"{percent(m[change]['task_found_accuracy'])} / {percent(m[change]['final_accuracy'])}"
            for m in r["mappers"].values()
        ]
        rows.append([change, *cells])
    return f"{table('test images | ' + ' | '.join(r['mappers']), rows)}\n\n{source('robustness')}"


def xception() -> str:
    rows = []
    for name, label in METHODS.items():
        if name != "sketch-compact":
            r = read(f"xception-{name}")
            figures = (r["task_given_accuracy"], r["task_found_accuracy"], r["final_accuracy"])
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


def ask() -> str:
    seconds = ("first_seconds", "half_seconds", "last_seconds")
    rows = [
        [f"{run['images']:,}", *(f"{run[key]:.1f}" for key in seconds), f"{run['peak_mb']:.0f}"]
        for run in read("ask")["runs"]
    ]
    head = "images | first answer, s | half of them, s | last, s | most memory, MB"
    return f"{table(head, rows)}\n\n{source('ask')}"
