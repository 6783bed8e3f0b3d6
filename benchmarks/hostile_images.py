"""Measure the cost of hostile image files and zips: seconds and memory of `ask` and `learn`, case by case.

    python benchmarks/hostile_images.py [--only WORD] [--json docs/results/hostile-images.json]

An agent in its own process answers one ordinary image; its memory then is the base. For each case the peak above
the base is measured, plus all memory of its helper process. A case is one hostile file among ordinary images, a
zip, or a folder of a hundred hostile files.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from skillmesh.core import Core
from skillmesh.data.demo import LEARNED, write_demo_tasks
from skillmesh.data.gather import gather
from skillmesh.data.inputs import Unreadable
from skillmesh.errors import SkillmeshError
from skillmesh.evaluation.provenance import provenance

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))
import hostile_cases as cases

HUNDRED = "a folder of 100 hostile files"
MOST_MEGABYTES = {HUNDRED: 600}
"""Limits on the peak above the base; 400 for all other cases."""
MOST_SECONDS = 30
VERBS = ("ask", "learn")


@dataclass(frozen=True)
class Row:
    """The cost of one case."""

    case: str
    verb: str
    seconds: float
    megabytes: float
    """Peak above the base, helper process included."""
    outcome: str

    @property
    def takes_too_much_memory(self) -> bool:
        return self.megabytes > MOST_MEGABYTES.get(self.case, 400)

    @property
    def too_much(self) -> bool:
        return self.takes_too_much_memory or self.seconds > MOST_SECONDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only cases whose names contain this")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        for row in measured_here():
            print(json.dumps(asdict(row)), flush=True)
        return
    command = " ".join(["python", "benchmarks/hostile_images.py", *sys.argv[1:]])
    origin = provenance(command, [], 0)
    names = [name for name in (*cases.IMAGES, *cases.PLACES, *cases.ZIPS, HUNDRED) if options.only in name]
    rows = []
    for row in measured(names):
        rows.append(row)
        mark = " TOO MUCH" if row.too_much else ""
        print(
            f"{row.verb:5} {row.case:45} {row.seconds:5.1f} s {row.megabytes:5.0f} MB  {row.outcome[:90]}{mark}",
            flush=True,
        )
    facts = {
        "rows": [asdict(row) for row in rows],
        "most_megabytes": max((row.megabytes for row in rows if row.case != HUNDRED), default=0),
        "most_megabytes_folder": max((row.megabytes for row in rows if row.case == HUNDRED), default=0),
        "most_seconds": max((row.seconds for row in rows if row.case != HUNDRED), default=0),
        "most_seconds_folder": max((row.seconds for row in rows if row.case == HUNDRED), default=0),
    }
    if options.json is not None:
        options.json.write_text(json.dumps(facts | {"provenance": origin}, indent=1) + "\n")
    sys.exit(any(row.too_much for row in rows))


def measured(names: Sequence[str]) -> Iterator[Row]:
    """Measure cases; the folder separately, or its files would be in the cache from the single cases."""
    yield from _measured_together([name for name in names if name != HUNDRED])
    yield from _measured_together([name for name in names if name == HUNDRED])


def _measured_together(names: Sequence[str]) -> Iterator[Row]:
    """Measure cases in a new process, which has nothing else in memory, not even the code that wrote the files."""
    words = [sys.executable, str(Path(__file__)), "--measure"]
    pipe = subprocess.PIPE
    with TemporaryDirectory(prefix="skillmesh-bench-") as folder:
        environment = os.environ | {"SKILLMESH_CACHE": f"{folder}/cache"}
        quiet = {"PYTHONWARNINGS": "ignore"}  # Pillow's warnings about thousands of tags
        with subprocess.Popen(words, env=environment | quiet, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for number, name in enumerate(names):
                place = Path(folder, str(number))
                place.mkdir()
                process.stdin.write(f"{name}\t{write_case(name, place)}\n")
                process.stdin.flush()
                for _ in VERBS:
                    if not (line := process.stdout.readline()):
                        raise RuntimeError(f"the measuring process ended at case {name!r}")
                    yield Row(**json.loads(line))
                shutil.rmtree(place)
            process.stdin.close()


def measured_here() -> Iterator[Row]:
    """Measure the cases whose names and paths are read from standard input."""
    with TemporaryDirectory(prefix="skillmesh-bench-") as folder:
        place = Path(folder)
        tasks = list(LEARNED)[:2]
        write_demo_tasks(place / "tasks", train=6, val=2, test=2, names=tasks)
        agent = Core.open(place / "agent")
        agent.learn(place / "tasks" / tasks[0])
        agent.learn(shutil.copytree(place / "tasks" / tasks[1], place / "new task"))
        ordinary = next((place / "tasks" / tasks[0]).glob("test/*/*"))
        agent.answer(ordinary)
        meter = Meter()
        for line in sys.stdin:
            name, path = line.rstrip("\n").split("\t")
            shutil.rmtree(place / "new task", ignore_errors=True)
            shutil.copytree(place / "tasks" / tasks[1], place / "new task")
            tries = {
                "ask": partial(asked, agent, Path(path), ordinary),
                "learn": partial(learned, agent, Path(path), place / "new task"),
            }
            for verb, do in tries.items():
                row = meter.row(name, verb, do)
                yield replace(row, outcome=row.outcome.replace(f"{Path(path).parent}/", ""))


def write_case(name: str, folder: Path) -> Path:
    if name == HUNDRED:
        return cases.hundred_files(folder / "hundred")
    if name in cases.IMAGES:
        file, data = cases.IMAGES[name]()
        (folder / file).write_bytes(data)
        return folder / file
    return (cases.PLACES | cases.ZIPS)[name](folder)


def asked(agent: Core, path: Path, ordinary: Path) -> str:
    """Ask about a case between two ordinary images, as the command does; these must be answered."""
    inputs = list(gather([str(ordinary), str(path), str(ordinary)]))
    readable = [each for each in inputs if not isinstance(each, Unreadable)]
    answers = list(agent.answer_each(readable))
    if answers[0].error or answers[-1].error or len(answers) < 2:
        raise AssertionError("an ordinary image beside the case has no answer")
    errors = [each.reason for each in inputs if isinstance(each, Unreadable)]
    errors += [answer.error for answer in answers if answer.error]
    read = sum(answer.error is None for answer in answers) - 2
    return f"{read} read; {len(errors)} refused: {errors[0]}" if errors else "read"


def learned(agent: Core, path: Path, task: Path) -> str:
    """Learn a task that contains the case among its training images, or that is the case itself."""
    if path.suffix == ".zip":
        try:
            agent.learn(path, replace=True)
        except SkillmeshError as error:
            return str(error)
        return "learned"
    for file in (path, *path.rglob("*")):
        if file.is_file() and not file.is_symlink():
            with file.open("ab") as end:
                end.write(b"\0")  # or its descriptor would come from the cache
    target = next((task / "train").iterdir()) / path.name
    path.rename(target)
    _, report = agent.learn(task, replace=True)
    return f"learned; {len(report.unreadable)} skipped"


class Meter:
    """Measures this process, and the helper that decodes unusual images, with its children."""

    def __init__(self) -> None:
        self._base = _memory("self", "VmRSS")
        self._helper = 0.0
        self._idle = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._idle.wait(0.05):  # reading it stops the helper for a moment
            self._helper = max(self._helper, sum(map(_share, _children())))

    def row(self, case: str, verb: str, do: Callable[[], str]) -> Row:
        for process in ("self", *_children()):
            with suppress(FileNotFoundError, ProcessLookupError):  # a helper that ended has no peak to clear
                Path(f"/proc/{process}/clear_refs").write_text("5")
        self._helper = 0.0
        began = time.perf_counter()
        outcome = do()
        seconds = time.perf_counter() - began
        peak = _memory("self", "VmHWM") - self._base + self._helper
        return Row(case, verb, round(seconds, 2), round(peak, 1), outcome)


def _children(process: str = "self") -> list[str]:
    """Return all descendants of a process."""
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
    except OSError:
        return []
    children = [child for task in tasks for child in _text(task / "children").split()]
    return children + [grandchild for child in children for grandchild in _children(child)]


def _share(process: str) -> float:
    """Return a helper's memory in megabytes; memory shared with its child counts once.

    A process that is just starting still shows its parent's memory: it is not counted until it is a helper.
    """
    if "helper.serve" not in _text(Path(f"/proc/{process}/cmdline")):
        return 0.0
    lines = _text(Path(f"/proc/{process}/smaps_rollup")).splitlines()
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("Pss:")), 0.0)


def _memory(process: str, figure: str) -> float:
    """Return a figure in megabytes; 0 if the process has ended."""
    lines = _text(Path(f"/proc/{process}/status")).splitlines()
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(figure)), 0.0)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


if __name__ == "__main__":
    main()
