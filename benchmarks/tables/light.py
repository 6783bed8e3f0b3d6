"""Tables about what an agent costs: its installation, time and memory before and after PyTorch, large photos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tables import measured_by, percent, read, source, table

SHORT = ("bare passes, 2 threads", "`ask`", "its peak memory", "node that answers")
"""Beginnings of the rows of the short table; of rows of the same name, the first is shown."""


def install() -> str:
    """Return what an installation takes and what was done in it, a column for each Python."""
    r = read("install")
    runs = r["rows"]
    rows = [
        ["fresh environment and `pip install`, s"]
        + [f"{run['venv_seconds']:.0f} + {run['install_seconds']:.0f}" for run in runs],
        ["environment, MB", *(str(run["environment_mb"]) for run in runs)],
        ["packages, with ours", *(str(run["packages"]) for run in runs)],
    ]
    rows += [_step(steps) for steps in zip(*(run["steps"] for run in runs), strict=True)]
    head = " | ".join(["what", *(f"Python {run['python']}" for run in runs)])
    return f"{table(head, rows)}\n\n{r['machine']} · {source('install')}"


def _step(steps: Sequence[dict[str, Any]]) -> list[str]:
    right = [f" ({step['right']} of {step['images']} right)" if step["images"] else "" for step in steps]
    return [steps[0]["what"]] + [f"{step['seconds']:.1f} s{note}" for step, note in zip(steps, right, strict=True)]


def light() -> str:
    """Return all quantities before and after, with the targets."""
    r = read("light")
    rows = [[row["what"], *_values(row), row["target"]] for row in r["rows"]]
    before, after = (_releases(r[side]) for side in ("before", "after"))
    head = "what | PyTorch | ONNX Runtime | ratio | target"
    return f"{table(head, rows)}\n\n{r['machine']}; before: {before}; after: {after} · {source('light')}"


def light_short() -> str:
    """Return the quantities that users notice."""
    rows: dict[str, list[str]] = {}
    for row in read("light")["rows"]:
        if row["what"].startswith(SHORT):
            rows.setdefault(row["what"], [row["what"], *_values(row)[:2]])
    shown = [cells for name, cells in rows.items() if not (name.startswith("`ask`") and "40" in name)]
    return f"{table('what | PyTorch | ONNX Runtime', shown)}\n\n{source('light')}"


def page() -> str:
    """Return what the page costs over the same agent in process."""
    r = read("page")
    one, together, answers = r["one_photo"], r["clients"], r["p99"]
    rows = [
        [
            "a photo of 12 megapixels",
            f"{one['in_process_ms']:.1f} ms",
            f"{one['http_ms']:.1f} ms",
            f"{one['ratio']:.2f}",
        ],
        [
            "images/s, 8 clients; one batch in process",
            f"{together['in_process_images_per_second']:.0f}",
            f"{together['http_images_per_second']:.0f}",
            f"{together['ratio']:.2f}",
        ],
        [
            "99th percentile of answers: at rest; while learning and receiving 50 modules",
            f"{answers['at_rest']['p99_ms']:.1f} ms",
            f"{answers['busy']['p99_ms']:.1f} ms",
            f"{answers['ratio']:.2f}",
        ],
    ]
    return f"{table('what | compared with | through HTTP | ratio', rows)}\n\n{source('page')}"


def _values(row: dict[str, Any]) -> list[str]:
    return [f"{row[side]:.3g} {row['unit']}" for side in ("before", "after")] + [f"{row['ratio']:.2f}"]


def _releases(side: dict[str, str]) -> str:
    engine = "torch" if side.get("engine") == "torch" or "onnxruntime" not in side else "onnxruntime"
    return ", ".join(f"{name} {side[name]}" for name in (engine, "numpy") if name in side)


def reduced() -> str:
    """Return what decoding photos of 12 megapixels at reduced sizes saves and changes."""
    r = read("reduced")
    rows = []
    for row in r["rows"]:
        cells = [row["kind"], str(row["quality"]), f"{1000 * row['full_seconds']:.0f}"]
        for scale in ("scale_1", "scale_2", "scale_4"):
            found = row[scale]
            changed = f"{found['labels_changed']} of {row['images']}"
            cells += [f"{1000 * found['seconds']:.0f} ms, {percent(found['moved'])} %, {changed}"]
        rows.append(cells)
    head = "photos | JPEG quality | full size, ms | 1 × | 2 × | 4 ×"
    return f"{table(head, rows)}\n\n{measured_by([r['provenance']])}"
