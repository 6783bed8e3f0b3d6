"""Tables about one agent: accuracy, unknown images, views, speed."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any

from skillmesh.data.views import MEASURED
from skillmesh.evaluation.evaluate import interval
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
        figures = (percent(r["task_given_accuracy"]), percent(r["task_found_accuracy"]), _final(r))
        rows.append([label, *figures, kilobytes(r["anchor_bytes"]), kilobytes(r["module_bytes"])])
    head = "anchor | task given, % | task found, % | final, % (95 % interval) | anchor, KB | module, KB"
    return f"{table(head, rows)}\n\n{source(*METHODS, short=True)}"


SEEDS = ("sketch", "sketch-seed-1", "sketch-seed-2")


def seeds() -> str:
    """Return the default's figures by seed: of validation images, views and other random choices."""
    results = [read(name) for name in SEEDS]
    names = ("task_given_accuracy", "task_found_accuracy", "final_accuracy", "known_unanswered")
    rows = [[str(r["settings"]["seed"]), *(percent(r[name]) for name in names)] for r in results]
    spans = [percent(max(values) - min(values)) for values in ([r[name] for r in results] for name in names)]
    head = "seed | task given, % | task found, % | final, % | known not answered, %"
    return f"{table(head, [*rows, ['largest difference', *spans]])}\n\n{source(*SEEDS)}"


def _final(r: dict[str, Any]) -> str:
    """Return the final accuracy with its interval over tasks."""
    spread = interval([t["final_accuracy"] for t in r["tasks"]])
    assert spread is not None
    low, high = map(percent, spread)
    return f"{percent(r['final_accuracy'])} ({low}–{high})"


def per_task() -> str:
    rows = []
    for t in read("sketch")["tasks"]:
        figures = map(
            percent,
            (t["task_given_accuracy"], t["task_found_accuracy"], t["final_accuracy"], t["known_unanswered"]),
        )
        taken = sorted(t["confusions"].items(), key=lambda item: -item[1])[:2]
        others = ", ".join(f"{name} ({n})" for name, n in taken) or "–"
        rows.append([t["task"], str(t["classes"]), str(t["test_images"]), *figures, others])
    head = (
        "task | classes | test images | task given, % | task found, % | final, % | not answered, % "
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


UNKNOWN = {
    "auroc": "AUROC",
    "hidden_at_5": "hidden not answered where 5 % of known are not, %",
    "known_unanswered": "known not answered, %",
    "hidden_unanswered": "hidden not answered, %",
    "known_unknown": "known that are “unknown”, %",
    "hidden_unknown": "hidden that are “unknown”, %",
    "mixed_confidence_error": "confidence error, half and half, %",
    "hidden_confidence": "confidence of hidden that are answered, %",
}


def unknown() -> str:
    """Return the figures of images of known and hidden tasks, by the number of known tasks."""
    rows = []
    for group in read("unknown")["groups"]:
        figures = [f"{group['auroc']:.3f}", *(percent(group[key]) for key in list(UNKNOWN)[1:])]
        rows.append([group["view"], str(group["tasks"]), *figures])
    return f"{table(' | '.join(['images', 'tasks known', *UNKNOWN.values()]), rows)}\n\n{source('unknown')}"


def unknown_headline() -> str:
    """Return the same of the images as they are, in fewer columns."""
    keys = ("hidden_at_5", "known_unanswered", "hidden_unanswered", "mixed_confidence_error")
    groups = [group for group in read("unknown")["groups"] if group["view"] == "original"]
    rows = [[str(g["tasks"]), f"{g['auroc']:.3f}", *(percent(g[key]) for key in keys)] for g in groups]
    head = " | ".join(["tasks known", "AUROC", *(UNKNOWN[key] for key in keys)])
    return f"{table(head, rows)}\n\n{source('unknown')}"


def lenience() -> str:
    """Return what images are not answered with other leniences towards hurried photos."""
    report, rows = read("unknown"), []
    for groups in sorted([report["groups"], *report["other_leniences"]], key=lambda groups: groups[0]["lenience"]):
        shown = [group for tasks in LARGE_BANKS for group in groups if group["tasks"] == tasks]
        figures = [percent(group[key]) for group in shown for key in ("known_unanswered", "hidden_unanswered")]
        rows.append([percent(groups[0]["lenience"]), *figures])
    columns = [
        f"{tasks} tasks, {view}: {side}"
        for tasks in LARGE_BANKS
        for view in ("original", "phone")
        for side in ("known", "hidden")
    ]
    return f"{table(' | '.join(['lenience, %', *columns]), rows)}\n\n{source('unknown')}"


LARGE_BANKS = (4, 27)


def near_misses() -> str:
    """Return what agents of one task do with images of a task that is like it, and of one that is not."""
    rows = []
    pairs = read("unknown")["pairs"]
    for near, far in zip(pairs[::2], pairs[1::2], strict=True):
        cells = [cell for pair in (near, far) for cell in (pair["asked"], *_near_miss(pair))]
        rows.append([near["known"], *cells])
    of = "not answered, % | mean confidence of others, %"
    return f"{table(f'known | asked, near | {of} | asked, far | {of}', rows)}\n\n{source('unknown')}"


def _near_miss(pair: dict[str, Any]) -> tuple[str, str]:
    answered = pair["hidden_answered"]
    confidence = percent(pair["hidden_confidence_sum"] / answered) if answered else "–"
    return percent(pair["hidden_unanswered"]), confidence


def views_xception() -> str:
    """Return an Xception agent's figures on views of its tasks, and their means over nine of these."""
    names = (
        "task_given_accuracy",
        "task_found_accuracy",
        "final_accuracy",
        "known_unanswered",
        "confidence_error",
    )
    views = read("views-xception")["views"]
    rows = [[view["view"], *(percent(view[name]) for name in names)] for view in views]
    nine = [view for view in views if view["view"] in NINE]
    rows.append(["**mean of the first nine**", *(percent(fmean(view[name] for view in nine)) for name in names)])
    head = (
        "test images (Xception) | task given, % | task found, % | final, % | not answered, % | confidence error, %"
    )
    return f"{table(head, rows)}\n\n{source('views-xception')}"


LEARNED = {
    "views-before": "before",
    "views-none": "none learned",
    "views-third": "a third learned (default)",
    "views-one": "one more each",
}
"""Results of `eval --views`: with the calibration of before, which knew no views, and with the new one."""
ON_VIEWS = (("known_unanswered", "not answered"), ("confidence_error", "confidence error"))
SHOWN = ("views-before", "views-third")
"""The results of which these figures are shown too."""
NINE = (
    *("original", "half size", "JPEG 40", "crop 90 %", "brighter 20 %", "darker 20 %", "rotated 10°"),
    *("blurred", "pale"),
)


def views() -> str:
    """Return the figures on each view of the test images, for agents that learned from views or not."""
    measured = {name: {row["view"]: row for row in read(name)["views"]} for name in LEARNED}
    every = list(measured["views-third"])
    rows = []
    for view in every:
        label = f"{view} (shown)" if view in MEASURED else view
        rows.append([label, *_on_views(measured, [view])])
    others = [view for view in every if view not in (*MEASURED, "original")]
    for label, chosen in (("never shown", others), ("nine", NINE), ("all", every)):
        rows.append([f"**mean: {label}**", *_on_views(measured, chosen)])
    finals = [f"final, %: {how}" for how in LEARNED.values()]
    others = [f"{figure}, %: {LEARNED[name]}" for _, figure in ON_VIEWS for name in SHOWN]
    head = " | ".join(["test images", *finals, *others])
    return f"{table(head, rows)}\n\n{source(*LEARNED)}"


def views_halves() -> str:
    """Return final accuracies on views, calibrated on the other half of the tasks and on all of them."""
    rows = []
    for half, other in (("A", "B"), ("B", "A")):
        for name, label in (
            (f"views-half-{half.lower()}", f"half {other}"),
            (f"views-half-{half.lower()}-shipped", "all"),
        ):
            found = {row["view"]: row["final_accuracy"] for row in read(name)["views"]}
            figures = [percent(found[view]) for view in NINE]
            rows.append([f"half {half}", label, *figures, percent(fmean(found[view] for view in NINE))])
    names = [f"views-half-{half}{which}" for half in "ab" for which in ("", "-shipped")]
    return f"{table(' | '.join(['measured', 'calibrated on', *NINE, 'mean']), rows)}\n\n{source(*names)}"


def views_tried(file: str = "views-tried") -> str:
    """Return the figures of other choices for views, nuisance, leniency and caution."""
    columns = {
        "final on originals": "original",
        "on nine": "nine",
        "on phone": "phone",
        "known not answered": "known_unanswered",
        "known on phone": "phone_unanswered",
        "hidden not answered": "hidden_unanswered",
        "largest confidence error": "confidence_error",
    }
    measured = read(file)["rows"]
    columns = {name: key for name, key in columns.items() if any(row[key] is not None for row in measured)}
    rows = [[row["choice"], *(percent(row[key]) for key in columns.values())] for row in measured]
    return f"{table(' | '.join(['choice', *(f'{name}, %' for name in columns)]), rows)}\n\n{source(file)}"


def _on_views(measured: dict[str, dict[str, dict[str, float]]], views: Iterable[str]) -> list[str]:
    chosen = list(views)

    def mean(name: str, key: str) -> str:
        rows = [measured[name][view] for view in chosen]
        return percent(fmean(row[key] if key in row else row["known_unknown"] for row in rows))  # its name before

    finals = [mean(name, "final_accuracy") for name in LEARNED]
    return [*finals, *(mean(name, key) for key, _ in ON_VIEWS for name in SHOWN)]


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


def export_onnx() -> str:
    rows = []
    for agent in read("export-onnx")["agents"]:
        name = f"{agent['tasks']} {'real' if agent['agent'] == 'learned' else 'real and grown'} tasks"
        shares = (f"{100 * agent['same_label']:.2f}", f"{100 * agent['same_task']:.2f}", percent(agent["unknown"]))
        sizes = (f"{agent['file_mb']:.1f}", f"{agent['bare_mb']:.1f}", f"{agent['modules_mb']:.1f}")
        times = (f"{agent['file_ms']:.1f}", f"{agent['bare_ms']:.1f}")
        rows.append([name, f"{agent['classes']:,}", f"{agent['images']:,}", *shares, *sizes, *times])
    head = (
        "agent | classes | images | same label, % | same task, % | unknown, % | file, MB | of it network, MB "
        "| modules, MB | answer, ms | network alone, ms"
    )
    return f"{table(head, rows)}\n\n{source('export-onnx')}"
