"""Tables that compare ONNX Runtime with PyTorch."""

from __future__ import annotations

from tables import read, source, table

NAMES = {"onnx": "ONNX Runtime", "torch": "PyTorch"}


def engines(result: str = "engines") -> str:
    found = read(result)
    head = "engine | task given, % | task found, % | final, % | known images called unknown, %"
    figures = ("task_given", "task_found", "final", "known_unknown")
    rows = [
        [NAMES[name], *(f"{100 * each[figure]:.2f}" for figure in figures)]
        for name, each in found["engines"].items()
    ]
    pairs = {
        "each with its own modules": "own_modules",
        "both with the modules learned on PyTorch": "modules_of_torch",
        "both with the modules learned on ONNX Runtime": "modules_of_onnx",
    }
    same = [
        [what, f"{100 * found[pair]['same_label']:.2f}", f"{100 * found[pair]['same_answer']:.2f}"]
        for what, pair in pairs.items()
    ]
    count = f"of {found['images']:,} test images: same label, % | same answer, unknown included, %"
    return f"{table(head, rows)}\n\n{table(f'agents | {count}', same)}\n\n{source(result)}"


def xception() -> str:
    found = read("engines-xception")["engines"]
    threads = list(found["onnx"]["images_per_second"])
    head = "engine | task given, % | task found, % | final, % | " + " | ".join(
        f"images/s, {count} thread{'s' * (count != '1')}" for count in threads
    )
    rows = [
        [NAMES[name], *(f"{100 * found[name][each]:.2f}" for each in ("task_given", "task_found", "final"))]
        + [f"{found[name]['images_per_second'][count]:.1f}" for count in threads]
        for name in NAMES
    ]
    return f"{table(head, rows)}\n\n{source('engines-xception')}"
