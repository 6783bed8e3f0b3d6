"""Processes killed at any time while learning or importing leave a whole bank, and the work can be repeated."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from skillmesh.core import Core
from skillmesh.store.bank import Bank

pytestmark = pytest.mark.long

NewAgent = Callable[..., Core]

# A process that starts once, then forks children one by one. Each works in a loop until it is killed: after a
# delay in seconds from when it is ready, or (if the delay is negative) from when it begins to write. A child
# reports what it is about to do and what it has done; the process prints all reports of each child in one line.
KILLER = """
import json, os, signal, sys, time
{work}
for delay in json.loads(sys.argv[1]):
    reading_end, writing_end = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading_end)
        work(lambda *words: os.write(writing_end, (" ".join(words) + "\\n").encode()))
        os._exit(3)
    os.close(writing_end)
    with os.fdopen(reading_end) as pipe:
        reports = pipe.readline()
        while delay < 0 and not reports.endswith("writing\\n") and (line := pipe.readline()):
            reports += line
        time.sleep(abs(delay))
        os.kill(child, signal.SIGKILL)
        reports += pipe.read()
    ended = os.waitpid(child, 0)[1]
    print(json.dumps([ended, reports.splitlines()]), flush=True)
    input()  # the test examines the bank, then lets the next child start
"""

IMPORT = """
from pathlib import Path
from skillmesh.core import Core
home, files = Path(sys.argv[2]), sys.argv[3:]
def work(report):
    agent = Core(home)
    report("ready")
    while True:
        for file in files:
            task = Path(file).stem
            report("begin", task)
            agent.import_file(file)
            report("in", task)
        for file in files:
            task = Path(file).stem
            report("begin", task)
            agent.forget(task)
            report("out", task)
"""

# With a warm cache the network is never run, so an object with its attributes is enough.
LEARN = """
from pathlib import Path
from types import SimpleNamespace
from skillmesh.core import Core
from skillmesh.backbone import network as describe
from skillmesh.backbone.backbone import Backbone
from skillmesh.backbone.backbone import DescriptorCache, default_folder
home, folder = Path(sys.argv[2]), sys.argv[3]
def work(report):
    agent = Core(home)
    known = agent.calibration
    sizes = {"features": known.features, "width": len(known.mean)}
    network = SimpleNamespace(fingerprint=known.network, size=224, forward_macs=0, single_threaded=True, **sizes)
    agent._backbone = Backbone(network, known, DescriptorCache(default_folder(), known.network))
    add = agent.bank.add
    agent.bank.add = lambda *given: report("writing") and add(*given)
    report("ready")
    while True:
        module, _ = agent.learn(folder, replace=True)
        report("learned", str(module.card.version))
"""


class Killer:
    """Drives the process above: each `kill` lets a child work for a while and returns its reports."""

    def __init__(self, work: str, delays: list[float], *arguments: object) -> None:
        code = KILLER.format(work=work)
        words = [sys.executable, "-c", code, json.dumps(delays), *map(str, arguments)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> Killer:
        return self

    def kill(self) -> list[str]:
        assert self._process.stdout
        ended, reports = json.loads(self._process.stdout.readline())
        assert ended == signal.SIGKILL, "the child ended by itself"
        assert reports[0] == "ready"
        return reports[1:]

    def proceed(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def delays(count: int, longest: float) -> list[float]:
    rng = random.Random(count)
    return [rng.uniform(0, longest) for _ in range(count)]


def opened(home: Path, agent: Core) -> Bank:
    """Return the bank after checking that it is whole: every file in it is listed and valid."""
    bank = Bank(home / "bank", agent.bank.backbone)
    assert bank.damaged == []
    on_disk = {path.name for path in bank.folder.iterdir()} - {".lock"}
    assert on_disk == {f"{module.id}.skill" for module in bank}
    return bank


def test_import_and_forget_killed_at_any_time_leave_a_whole_bank(new_agent, tiny_taught, skill_files, mixed):
    agent = new_agent()
    agent.import_file(skill_files["shapes"])  # an earlier module, which must never be lost
    others = [skill_files[name] for name in ("dice", "latin", "greek")]
    middle = 0
    times = delays(30, 0.06)
    with Killer(IMPORT, times, agent.home, *others) as killer:
        for _ in times:
            reports = killer.kill()
            held = {module.card.task for module in opened(agent.home, agent)}
            state = dict(line.split()[::-1] for line in reports)  # task: the last word on it
            middle += "begin" in state.values()
            assert {"shapes"} | {task for task, word in state.items() if word == "in"} <= held
            assert held.isdisjoint({task for task, word in state.items() if word == "out"})
            for path in others:  # the next child imports all of them again
                if path.stem in held:
                    Core(agent.home).forget(path.stem)
            killer.proceed()
    assert middle > 5, "most kills should come in the middle of something"
    whole = Core(agent.home)
    for path in others:
        whole.import_file(path)
    assert [a.shared() for a in whole.answer(mixed[:8])] == [a.shared() for a in tiny_taught.answer(mixed[:8])]


def test_learning_killed_at_any_time_leaves_one_whole_version(new_agent: NewAgent, tiny_tasks, skill_files, mixed):
    agent = new_agent()
    agent.import_file(skill_files["shapes"])
    agent.learn(tiny_tasks / "dice")
    version, middle = 1, 0
    times = delays(10, 0.5) + [-delay for delay in delays(16, 0.006)]
    with Killer(LEARN, times, agent.home, tiny_tasks / "dice") as killer:
        for _ in times:
            reports = killer.kill()
            bank = opened(agent.home, agent)
            assert {module.card.task for module in bank} == {"shapes", "dice"}
            version = max([version, *(int(line.split()[1]) for line in reports if line != "writing")])
            middle += reports[-1:] == ["writing"]
            # Every reported version is there; one more may be, if the kill came before its report.
            assert bank.find("dice").card.version - version in (0, 1)
            version = bank.find("dice").card.version
            killer.proceed()
    assert middle > 0, "some kills should come in the middle of writing"
    survivor = Core(agent.home)
    assert survivor.learn(tiny_tasks / "dice", replace=True)[0].card.version == version + 1
    assert all(a.best.task in ("shapes", "dice") for a in survivor.answer(mixed))


def test_a_kill_between_writing_and_removing_leaves_the_newer_version(
    new_agent: NewAgent, tiny_tasks, monkeypatch
):
    """The one moment at which two versions lie in the bank."""
    agent = new_agent()
    agent.learn(tiny_tasks / "dice")

    def die(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(agent.bank, "_drop", die)
    with pytest.raises(KeyboardInterrupt):
        agent.learn(tiny_tasks / "dice", replace=True)
    assert len(list(agent.bank.folder.glob("*.skill"))) == 2
    bank = opened(agent.home, agent)
    assert [module.card.version for module in bank] == [2]


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["learn", "import"])
def test_a_command_killed_at_any_time_can_be_run_again(
    new_agent: NewAgent, tiny_tasks, skill_files, tmp_path, verb
):
    agent = new_agent()
    agent.import_file(skill_files["shapes"])
    words = ["learn", tiny_tasks / "dice"] if verb == "learn" else ["import", *skill_files.values()]
    command = [sys.executable, "-m", "skillmesh", *map(str, words), "--home", str(tmp_path / "home")]
    environment = os.environ | {"SKILLMESH_CACHE": str(tmp_path / "cache")}
    for _ in range(2):  # the second time with a warm cache, as in all later runs
        shutil.rmtree(tmp_path / "home", ignore_errors=True)
        shutil.copytree(agent.home, tmp_path / "home")
        started = time.monotonic()
        subprocess.run(command, check=True, env=environment, capture_output=True)
        whole = time.monotonic() - started
    wanted = {module.id for module in Bank(tmp_path / "home/bank", agent.bank.backbone)}
    killed = 0
    for delay in delays(12, whole):
        shutil.rmtree(tmp_path / "home")
        shutil.copytree(agent.home, tmp_path / "home")
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay)
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        held = {module.card.task for module in opened(tmp_path / "home", agent)}
        assert "shapes" in held
        if verb == "import" or "dice" not in held:
            subprocess.run(command, check=True, env=environment, capture_output=True)
        module_ids = {module.id for module in opened(tmp_path / "home", agent)}
        assert module_ids == wanted if verb == "import" else len(module_ids) == 2
    assert killed >= 6
