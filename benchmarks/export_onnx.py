"""Compare an exported agent (`skillmesh export --onnx`) with the agent itself, on all test images of real tasks.

    python benchmarks/export_onnx.py TASKS --home DIR --json docs/results/export-onnx.json

The agent in DIR learns the tasks that it does not know yet. The file answers in a process that cannot import
skillmesh: examples/ask_onnx.py decodes the image files and runs the file. A second agent has 5,007 classes:
further tasks of 50 are grown from the real ones as in benchmarks/scale.py. Of the images it is shown every fourth.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from skillmesh.answering.answering import Mapper
from skillmesh.core import Core
from skillmesh.data.folder import find_tasks
from skillmesh.evaluation.evaluate import open_measured
from skillmesh.evaluation.provenance import provenance
from skillmesh.module import Module
from skillmesh_challenge.growth import grown_bank

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "ask_onnx.py"
GROWN_TASKS, GROWN_CLASSES = 128, 50
"""Together with the real tasks more than 5,000 classes."""
AT_ONCE = 500
TIMED = 60
"""Number of images of a timing; the models take turns, and the fastest pass counts: other work delays some."""

# What runs without skillmesh: `-I` ignores PYTHONPATH and the current folder, and the name is blocked.
ALONE = [sys.executable, "-I", "-c"]
BLOCKED = "import sys; sys.modules['skillmesh'] = None\n"
RUN_SCRIPT = BLOCKED + "import runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
TIME = (
    BLOCKED
    + """
import json, time
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
sessions = [onnxruntime.InferenceSession(path, options) for path in sys.argv[1:3]]
size = sessions[0].get_inputs()[0].shape[1]
images = np.random.default_rng(0).integers(0, 256, (int(sys.argv[3]), 1, size, size, 3), dtype=np.uint8)
seconds = [[], []]
for image in images:
    for session, spent in zip(sessions, seconds):
        started = time.perf_counter()
        session.run(None, {"pixels": image})
        spent.append(time.perf_counter() - started)
print(json.dumps([1000 * min(spent) for spent in seconds]))
"""
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    paths = find_tasks([options.tasks])
    agent = Core.open(options.home)
    known = {module.card.task for module in agent.tasks()}
    for path in paths:
        if path.stem not in known:
            agent.learn(path)
    origin = provenance("python benchmarks/export_onnx.py TASKS --home DIR --json FILE", paths, agent.config.seed)
    with TemporaryDirectory(prefix="skillmesh-bench-") as place:
        images = list(written(paths, agent.config.seed, Path(place)))
        rows = [compared("learned", agent, images, Path(place))]
        reach = json.loads((ROOT / "docs" / "results" / "simulate.json").read_text())["runs"][0]["reach"]
        modules = grown_bank(agent, GROWN_TASKS, GROWN_CLASSES, reach, agent.config.seed)
        real = len(agent.bank)
        modules[real:] = [with_own_head(module, number) for number, module in enumerate(modules[real:])]
        agent.rebuilds_itself = False
        agent.use(modules, Mapper(modules, agent.config.anchor, agent.prior))
        rows.append(compared("grown", agent, images[::4], Path(place)))
    options.json.write_text(json.dumps({"agents": rows, "provenance": origin}, indent=1) + "\n")
    for row in rows:
        print(row)


def with_own_head(module: Module, number: int) -> Module:
    """Return the module with noise in its head: a grown task repeats rows, so that classes would be equal."""
    weight = module.tensors["head.weight"]
    noise = np.random.default_rng(number).integers(-3, 4, weight.shape)
    noisy = np.clip(weight + noise, -127, 127).astype(np.int8)
    return replace(module, tensors=module.tensors | {"head.weight": noisy})


def written(paths: Sequence[Path], seed: int, place: Path) -> list[Path]:
    """Write all test images to files and return their paths."""
    files = []
    for path in paths:
        for image in open_measured(path, seed, learn=False).splits["test"].files:
            file = place / f"{len(files):06}{Path(image.name).suffix.lower()}"
            file.write_bytes(image.content())
            files.append(file)
    return files


def compared(name: str, agent: Core, images: list[Path], place: Path) -> dict[str, Any]:
    """Return how often the file's answers are the agent's, the file's size, and its time."""
    file = agent.export_onnx(place / f"{name}.onnx")
    modules, _ = agent.mapper()
    ours = [
        (
            answer.label or ("not sure" if answer.unsure else "unknown"),
            answer.best.task,
            answer.confidence,
            answer.novelty,
        )
        for answer in agent.answer_each(images)
    ]
    theirs = asked(file, images)
    pairs = list(zip(ours, theirs, strict=True))
    bare = place / "bare.onnx"
    bare.write_bytes(agent.backbone.network.as_model().SerializeToString())  # type: ignore[attr-defined]
    timed = subprocess.run(
        [*ALONE, TIME, str(bare), str(file), str(TIMED)], capture_output=True, text=True, check=True
    )
    bare_ms, file_ms = json.loads(timed.stdout)
    return {
        "agent": name,
        "tasks": len(modules),
        "classes": sum(len(module.card.classes) for module in modules),
        "images": len(images),
        "same_label": sum(our[0] == their[0] for our, their in pairs) / len(pairs),
        "same_task": sum(our[1] == their[1] for our, their in pairs) / len(pairs),
        "unknown": sum(our[0] == "unknown" for our in ours) / len(pairs),
        "unsure": sum(our[0] == "not sure" for our in ours) / len(pairs),
        "largest_confidence_difference": max(abs(our[2] - their[2]) for our, their in pairs),
        "largest_novelty_difference": max(abs(our[3] - their[3]) for our, their in pairs),
        "file_mb": file.stat().st_size / 1e6,
        "bare_mb": bare.stat().st_size / 1e6,
        "modules_mb": sum(module.size for module in modules) / 1e6,
        "bare_ms": bare_ms,
        "file_ms": file_ms,
        "differences": [[*our, *their] for our, their in pairs if our[:2] != their[:2]],
    }


def asked(file: Path, images: list[Path]) -> list[tuple[str, str, float, float]]:
    """Return the answers of examples/ask_onnx.py, in a process that cannot import skillmesh."""
    answers = []
    for start in range(0, len(images), AT_ONCE):
        batch = images[start : start + AT_ONCE]
        words = [*ALONE, RUN_SCRIPT, str(SCRIPT), str(file), *map(str, batch)]
        ran = subprocess.run(words, capture_output=True, text=True, check=True)
        for image, line in zip(batch, ran.stdout.splitlines(), strict=True):
            name, label, task, sure, novelty = line.split("\t")
            assert name == str(image)
            answers.append((label, task, float(sure), float(novelty)))
    return answers


if __name__ == "__main__":
    main()
