"""Measure how light an agent is, before (PyTorch) and after (ONNX Runtime), alternately in one run.

    python benchmarks/light.py [--before VENV] [--modules FOLDER] [--json docs/results/light.json]

`--before` names another installation (its folder, or its `skillmesh`), measured as it is. Without it, "before" is
PyTorch in this installation (`SKILLMESH_ENGINE=torch`). The tasks are those of `SKILLMESH_TASKS`, or drawn ones.
Learning them takes most of the time: `--modules` names a folder where their modules are kept for the next run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from light_probe import memory
from rich.console import Console
from rich.table import Table

from skillmesh.common.choices import WarmStart
from skillmesh.core import Core
from skillmesh.data.demo import LEARNED, write_demo_tasks
from skillmesh.data.folder import TaskImages, find_tasks, open_task
from skillmesh.evaluation.provenance import provenance
from skillmesh.numerics.process import cores

PROBE = Path(__file__).with_name("light_probe.py")
TASKS, FEW_TASKS = 40, 15
"""Number of tasks that agents know; `ask` is measured with few of them too, as a smaller script once was."""
WARM_UP = 1
"""Runs of `ask` before those that count: they bring the installation's files into the system's file cache."""


@dataclass(frozen=True)
class Installation:
    """A Python with skillmesh, and the environment that its processes get."""

    name: str
    python: Path
    environment: dict[str, str]

    def run(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        command = [str(self.python), *words]
        return subprocess.Popen(command, text=True, env=self.environment, **options)

    def probe(self, *words: str) -> dict[str, float]:
        """Run a probe of `light_probe.py` and return what it has measured."""
        with self.run(str(PROBE), *words, stdout=subprocess.PIPE) as process:
            text, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"the probe {' '.join(words)} failed in the installation {self.name} ({self.python})")
        measured: dict[str, float] = json.loads(text.splitlines()[-1])
        return measured


@dataclass(frozen=True)
class Row:
    """One quantity, before and after."""

    what: str
    unit: str
    before: float
    after: float
    most: float | None = None
    """Largest value allowed after."""
    most_ratio: float | None = None
    """Largest ratio of after to before."""
    least_ratio: float | None = None
    """Smallest ratio of after to before."""

    @property
    def ratio(self) -> float:
        return self.after / self.before

    @property
    def target(self) -> str:
        limits = [] if self.most is None else [f"≤ {self.most:g} {self.unit}".rstrip()]
        limits += [] if self.most_ratio is None else [f"≤ {self.most_ratio:g} × before"]
        limits += [] if self.least_ratio is None else [f"≥ {self.least_ratio:g} × before"]
        return ", ".join(limits) or "–"

    @property
    def met(self) -> bool:
        return (
            (self.most is None or self.after <= self.most)
            and (self.most_ratio is None or self.ratio <= self.most_ratio)
            and (self.least_ratio is None or self.ratio >= self.least_ratio)
        )


@dataclass(frozen=True)
class Scene:
    """What is measured on: homes for each installation, new images, a task to learn."""

    scratch: Path
    images: Iterator[Path]
    task: Path

    def home(self, tasks: int, where: Installation) -> Path:
        return self.scratch / where.name / f"home-{tasks}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another installation: its folder, or its skillmesh")
    parser.add_argument("--modules", type=Path, help="folder that keeps the modules of the tasks for the next run")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with TemporaryDirectory(prefix="skillmesh-light-") as folder:
        scratch = Path(folder)
        sides = [_before(options.before, scratch), _after(scratch)]
        paths = _tasks(scratch)
        modules = options.modules or scratch / "modules"
        _make_modules(paths, modules, scratch)
        scene = _scene(paths, modules, sides, scratch)
        rows, samples = measure(scene, sides, options.rounds)
        _show(rows)
        if options.json:
            name = " --before BEFORE" if options.before else ""
            kept = " --modules FOLDER" if options.modules else ""
            report = {
                "rows": [asdict(row) | {"ratio": row.ratio, "target": row.target, "met": row.met} for row in rows],
                "samples": samples,
                "before": _version(sides[0]),
                "after": _version(sides[1]),
                "machine": f"{platform.machine()}, {cores()} cores, Python {platform.python_version()}",
                "provenance": provenance(f"python benchmarks/light.py{name}{kept} --json FILE", paths, seed=0),
            }
            options.json.write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n")


# What is compared.


def _before(given: Path | None, scratch: Path) -> Installation:
    if given is None:
        return Installation("before", Path(sys.executable), _environment(scratch, "before", "torch"))
    folder = given if given.is_dir() else given.parent
    python = next((path for path in (folder / "python", folder / "bin" / "python") if path.exists()), None)
    if python is None:
        raise SystemExit(
            f"{given} is no installation; expected the folder of a virtual environment, or its skillmesh"
        )
    environment = _environment(scratch, "before")
    environment.pop("PYTHONPATH", None)  # it would name the sources of this installation
    return Installation("before", python.absolute(), environment)


def _after(scratch: Path) -> Installation:
    return Installation("after", Path(sys.executable), _environment(scratch, "after", "onnx"))


def _environment(scratch: Path, name: str, engine: str | None = None) -> dict[str, str]:
    variables = os.environ | {"SKILLMESH_CACHE": str(scratch / name / "cache")}
    variables.pop("SKILLMESH_ENGINE", None)
    return variables if engine is None else variables | {"SKILLMESH_ENGINE": engine}


def _version(side: Installation) -> dict[str, str]:
    """Return the releases of what an installation runs on."""
    code = (
        "import importlib.metadata as m, json, platform\n"
        "names = ('torch', 'timm', 'onnxruntime', 'numpy')\n"
        "have = {d.name.lower() for d in m.distributions()}\n"
        "print(json.dumps({'python': platform.python_version()} | {n: m.version(n) for n in names if n in have}))"
    )
    with side.run("-c", code, stdout=subprocess.PIPE) as process:
        found: dict[str, str] = json.loads(process.communicate()[0])
    return found | ({"engine": engine} if (engine := side.environment.get("SKILLMESH_ENGINE")) else {})


# What it is measured on.


def _tasks(scratch: Path) -> list[Path]:
    if folder := os.environ.get("SKILLMESH_TASKS"):
        found = find_tasks([Path(folder)])[:TASKS]
        if len(found) < TASKS:
            raise SystemExit(f"{folder} (SKILLMESH_TASKS) has {len(found)} tasks, expected {TASKS} or more")
        return found
    paths: list[Path] = []
    for seed in count():  # there are fewer kinds than tasks: further ones show other drawings of the same kinds
        for path in write_demo_tasks(scratch / "drawn", train=12, val=4, test=2, names=LEARNED, seed=seed):
            paths.append(path.rename(path.with_name(f"{path.name} {seed + 1}")))
            if len(paths) == TASKS:
                return paths
    raise AssertionError("there are drawn tasks without end")


def _make_modules(paths: Sequence[Path], folder: Path, scratch: Path) -> None:
    """Learn the tasks that the folder has no module of."""
    folder.mkdir(parents=True, exist_ok=True)
    agent = Core.open(scratch / "teacher", device="cpu", cache_folder=scratch / "teacher-cache")
    for path in paths:
        task = open_task(path)
        if not (target := _file_of(task, folder)).exists():
            agent.learn(task, warm_start=WarmStart("never"))
            agent.export(task.name, target)
            print(f"learned {task.name}", file=sys.stderr)
    agent.close()


def _file_of(task: TaskImages, folder: Path) -> Path:
    return folder / f"{task.name.replace('/', '_')}.skill"


def _scene(paths: Sequence[Path], modules: Path, sides: Sequence[Installation], scratch: Path) -> Scene:
    """Write the same homes for both installations, and images that no cache knows."""
    tasks = [open_task(path) for path in paths]
    for number in (FEW_TASKS, TASKS):
        home = scratch / f"home-{number}"
        agent = Core.open(home)
        for task in tasks[:number]:
            agent.import_file(_file_of(task, modules))
        agent.close()
        for side in sides:
            shutil.copytree(home, scratch / side.name / home.name)
    return Scene(scratch, _new_images(tasks[0], scratch / "images"), paths[0])


def _new_images(task: TaskImages, folder: Path) -> Iterator[Path]:
    """Yield files of a task's test images, each with another last byte, so that none has been described before."""
    folder.mkdir()
    files = (task.splits.get("test") or task.splits["val"]).files
    for number in count():
        content = files[number % len(files)].content()
        path = folder / f"{number}{Path(files[0].name).suffix}"
        path.write_bytes(content + number.to_bytes(4, "little"))
        yield path


# The measurements.


def measure(
    scene: Scene, sides: Sequence[Installation], rounds: int
) -> tuple[list[Row], dict[str, list[list[float]]]]:
    """Return the table's rows, and all single values: for each quantity, those of before and of after."""
    samples: dict[str, list[list[float]]] = {}

    def both(measured: Callable[[Installation], dict[str, float]], times: int) -> dict[str, tuple[float, float]]:
        """Measure alternately; return the median of each quantity, before and after."""
        found = [[measured(side) for side in sides] for _ in range(times)]
        for name in found[0][0]:
            samples[name] = [[pair[side][name] for pair in found] for side in range(2)]
        return {name: (median(samples[name][0]), median(samples[name][1])) for name in found[0][0]}

    values: dict[str, tuple[float, float]] = {}
    few = max(rounds // 2, 1)
    for threads in (1, 2):
        values |= both(lambda s, n=threads: _named(s.probe("passes", str(n)), f"passes_{n}"), few)
        say(f"passes with {threads} threads")
    values |= both(lambda s: _named(s.probe("load"), "load"), few)
    say("import and load")
    for number in (FEW_TASKS, TASKS):
        both(lambda s, n=number: asked(scene, s, n), WARM_UP)
        values |= both(lambda s, n=number: asked(scene, s, n), rounds)
        say(f"ask with {number} tasks")
    values |= both(lambda s: node(scene, s), few)
    say("nodes")
    answers = str(10 * rounds)
    values |= both(lambda s: _named(s.probe("answer", str(scene.home(TASKS, s)), answers), "answer"), few)
    say("answers")
    home = scene.scratch / "learner"
    values |= both(lambda s: _named(s.probe("learn", str(scene.task), f"{home}-{s.name}", str(few)), "learn"), 1)
    say("learning")
    images = int(values["learn_images"][0])
    v = values
    return [
        Row("bare passes, 1 thread", "images/s", *v["passes_1_images_per_second"], least_ratio=1.5),
        Row("bare passes, 2 threads", "images/s", *v["passes_2_images_per_second"], least_ratio=1.5),
        Row("import and load the network", "s", *v["load_seconds"]),
        Row("memory then", "MB", *v["load_memory_mb"]),
        Row(f"`ask`, 1 image, {FEW_TASKS} tasks", "s", *v[f"ask_{FEW_TASKS}_seconds"], most=0.8, most_ratio=0.2),
        Row("its peak memory", "MB", *v[f"ask_{FEW_TASKS}_peak_mb"], most=180),
        Row(f"`ask`, 1 image, {TASKS} tasks", "s", *v[f"ask_{TASKS}_seconds"]),
        Row("its peak memory", "MB", *v[f"ask_{TASKS}_peak_mb"]),
        Row(f"node that only carries {TASKS} tasks", "MB", *v["node_carries_mb"], most=110),
        Row("node that answers with them", "MB", *v["node_answers_mb"], most=220),
        Row(f"answer, {TASKS} tasks, over a bare pass", "×", *v["answer_ratio"], most=1.2),
        Row(f"learn {images:,} images, over bare passes", "×", *v["learn_ratio"], most=1.25),
    ], samples


def _named(measured: dict[str, float], prefix: str) -> dict[str, float]:
    return {f"{prefix}_{name}": value for name, value in measured.items()}


def asked(scene: Scene, side: Installation, tasks: int) -> dict[str, float]:
    """Run `skillmesh ask` on an image that was never described; return its seconds and peak memory."""
    words = ["command", "--home", str(scene.home(tasks, side)), "ask", str(next(scene.images))]
    return _named(side.probe(*words), f"ask_{tasks}")


def node(scene: Scene, side: Installation) -> dict[str, float]:
    """Return the memory of a node that only carries modules, and once it has answered questions."""
    home = scene.home(TASKS, side)
    with serving(home, side) as process:
        time.sleep(3)
        carries = memory_of_all(process.pid)
        for _ in range(4):
            words = ["-m", "skillmesh", "--home", str(home), "ask", str(next(scene.images))]
            with side.run(*words, stdout=subprocess.DEVNULL) as asking:
                asking.wait()
        time.sleep(1)
        return {"node_carries_mb": carries, "node_answers_mb": memory_of_all(process.pid)}


@contextmanager
def serving(home: Path, side: Installation) -> Iterator[subprocess.Popen[str]]:
    """Run a node on a home, alone on its network, and stop it at the end."""
    words = ["-m", "skillmesh", "--home", str(home), "serve", "--network", "fixed", "--listen", "tcp/127.0.0.1:0"]
    with side.run(*words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "trusts" in line:  # the last line of its greeting
                    break
            else:
                raise SystemExit(f"no node started in the installation {side.name} ({side.python})")
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


def memory_of_all(pid: int) -> float:
    """Return the memory in MB of a process and all that it has started, each counted whole."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has just ended
                continue
    family = [pid]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return sum(memory("VmRSS", member) for member in family)


def say(done: str) -> None:
    print(f"measured: {done}", file=sys.stderr)


def _show(rows: Sequence[Row]) -> None:
    table = Table("what", "before", "after", "after / before", "target", "met", box=None)
    for row in rows:
        met = "–" if row.target == "–" else "yes" if row.met else "no"
        values = (f"{row.before:.4g} {row.unit}", f"{row.after:.4g} {row.unit}", f"{row.ratio:.2f}")
        table.add_row(row.what, *values, row.target, met)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
