"""Results do not depend on where agents learn and how they share: processes, Dask, the mesh; and killed runs."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from running import LEARNED

from skillmesh.errors import SkillmeshError
from skillmesh_challenge.errors import RunError
from skillmesh_challenge.executors import BackboneRef, open_place, worker_backbone
from skillmesh_challenge.methods import METHODS
from skillmesh_challenge.record import Record, without_times
from skillmesh_challenge.run import Plan, run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plan(tiny_tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    paths = [tiny_tasks / name for name in LEARNED]
    out = tmp_path_factory.mktemp("runs") / "here"
    return Plan(paths, METHODS["sketch"], out, agents=2, workers=1, threads=1)


@pytest.fixture(scope="module")
def here(plan: Plan) -> Record:
    """Return the run in one process, which all others must equal."""
    return run(plan)


def learned_alike(found: Record, expected: Record) -> None:
    assert [m.content_id for m in found.learned] == [m.content_id for m in expected.learned]
    assert [(m.task, m.agent, m.macs) for m in found.learned] == [
        (m.task, m.agent, m.macs) for m in expected.learned
    ]
    assert [without_times(vars(s)) for s in found.steps] == [without_times(vars(s)) for s in expected.steps]


def test_local_processes_learn_the_same(plan: Plan, here: Record, tmp_path: Path):
    found = run(replace(plan, out=tmp_path / "cores", workers=2))
    learned_alike(found, here)
    assert without_times(found.results) == without_times(here.results)
    assert found.times["startup_seconds"] > 0


def test_every_process_has_loaded_the_backbone_before_work_begins(tmp_path: Path):
    ref = BackboneRef("lite0", cache_folder=tmp_path)
    with open_place(ref, workers=2, threads=1) as place:
        assert place.workers == 2
        seconds = [future.result() for future in [place.executor.submit(load_again, ref) for _ in range(4)]]
    assert max(seconds) < 0.1


def load_again(ref: BackboneRef) -> float:
    start = time.perf_counter()
    worker_backbone(ref)
    time.sleep(0.2)
    return time.perf_counter() - start - 0.2


@contextlib.contextmanager
def dask_cluster(workers: int) -> Iterator[str]:
    """Start a scheduler and workers as separate processes, like `dask scheduler` and `dask worker`."""
    from distributed import Client

    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(temporary_folder()))
        file = folder / "scheduler.json"
        log = stack.enter_context((folder / "log.txt").open("wb"))
        quiet = {"stdout": log, "stderr": log}
        stack.enter_context(ended([*command, "--no-dashboard", "--scheduler-file", str(file)], quiet))
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(file)]
        worker += ["--nthreads", "1", "--no-dashboard", "--local-directory", str(folder), "--no-nanny"]
        for _ in range(workers):
            stack.enter_context(ended(worker, quiet))
        deadline = time.monotonic() + 60
        while not file.exists():
            assert time.monotonic() < deadline, (folder / "log.txt").read_text()
            time.sleep(0.1)
        address = json.loads(file.read_text())["address"]
        with Client(address, timeout=60) as client:
            client.wait_for_workers(workers, timeout=60)
        yield address


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield folder


@contextlib.contextmanager
def ended(command: list[str], options: dict) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_two_dask_workers_learn_the_same(plan: Plan, here: Record, tmp_path: Path):
    with dask_cluster(2) as address:
        found = run(replace(plan, out=tmp_path / "dask", cluster=address))
    learned_alike(found, here)
    assert without_times(found.results) == without_times(here.results)
    assert "2 worker(s) on Dask" in (found.folder / "log.txt").read_text()


def test_an_unreachable_cluster_is_reported(plan: Plan, tmp_path: Path):
    with pytest.raises(RunError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1"):
        run(replace(plan, out=tmp_path / "dask", cluster="tcp://127.0.0.1:1"))


def test_sharing_over_the_mesh_gives_the_same_answers(plan: Plan, here: Record, tmp_path: Path):
    found = run(replace(plan, out=tmp_path / "mesh", mesh=True, agents=3, reuse=(here.folder,)))
    assert here.results is not None
    assert found.results is not None
    same = (
        "task_given_accuracy",
        "task_found_accuracy",
        "final_accuracy",
        "strict_accuracy",
        "known_unanswered",
        "lifelong",
    )
    assert {name: found.results[name] for name in same} == {name: here.results[name] for name in same}
    assert found.sharing is not None
    assert found.sharing.same_answers
    assert len(found.sharing.answers) == 3
    modules = {m.task: m.module_bytes for m in found.learned}
    for name, tasks in found.settings.assignment.items():
        others = sum(size for task, size in modules.items() if task not in tasks)
        assert found.sharing.received[name] >= others
    assert sum(found.sharing.sent.values()) >= sum(found.sharing.received.values())
    assert all(macs > 0 for macs in found.sharing.trial_macs.values())
    costs = found.results["costs"]
    student = costs["student_one_rebuild"]
    done = (costs["teacher_total"] + student) / (
        costs["teacher"] + costs["communication"] + student + costs["trials"]
    )
    assert costs["trials"] > 0
    assert costs["efficiency_as_done"] == pytest.approx(done / 3)


def test_a_run_killed_while_its_nodes_share_is_resumed_and_counts_every_byte(
    plan: Plan, here: Record, tmp_path: Path
):
    out = tmp_path / "killed"
    command = [*words(plan, out, 1), "--mesh", "--no-bound", "--reuse", str(here.folder)]
    for delay in (0.5, 1.5, 2.5):  # nodes take about two seconds to start
        for log in out.glob("agents/*/serve.log"):
            log.unlink()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while process.poll() is None and not list(out.glob("agents/*/serve.log")):
            time.sleep(0.01)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if delay < 1:
            assert not (out / "sharing.json").exists()
    found = run(replace(plan, out=out, mesh=True, bound=False, reuse=(here.folder,)))
    assert found.sharing is not None
    modules = {m.task: m.module_bytes for m in found.learned}
    for name, tasks in found.settings.assignment.items():
        assert found.sharing.received[name] == sum(size for task, size in modules.items() if task not in tasks)


def test_a_backbone_that_workers_cannot_load_is_reported(plan: Plan, tmp_path: Path):
    method = replace(METHODS["sketch"], weights=str(tmp_path / "nothing.safetensors"))
    with pytest.raises(SkillmeshError, match=r"nothing\.safetensors"):
        run(replace(plan, method=method, out=tmp_path / "out", workers=2))


# Killed.


def words(plan: Plan, out: Path, workers: int) -> list[str]:
    paths = [str(path) for path in plan.paths]
    command = [sys.executable, "-m", "skillmesh", "challenge", "run", *paths, "--out", str(out)]
    return [*command, "--agents", "2", "--workers", str(workers), "--threads", "1"]


def written(folder: Path) -> int:
    """Return the number of files in a run's record, which shows its progress."""
    names = ("run.json", "modules/*.skill", "learned/*.json", "sharing.json", "steps/*.json", "bounds.json")
    return sum(len(list(folder.glob(name))) for name in names)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_killed_at_random_points_and_resumed_gives_the_same_results(plan, here, tmp_path, workers):
    seed = random.randrange(1000)
    dice = random.Random(seed)
    out, whole = tmp_path / "killed", written(here.folder)
    while (stands := written(out)) < whole - 2:
        point = dice.randint(stands + 1, whole - 1)
        process = subprocess.Popen(words(plan, out, workers), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while process.poll() is None and written(out) < point:
            time.sleep(0.001)
        time.sleep(dice.choice([0, 0.003, 0.03, 0.3]))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    found = run(replace(plan, out=out, workers=workers))
    learned_alike(found, here)
    assert without_times(found.results) == without_times(here.results), seed


def at_stage(folder: Path, stage: str) -> bool:
    return (folder / stage).exists() and (stage.endswith(".json") or any((folder / stage).iterdir()))


@pytest.mark.parametrize("stage", ["run.json", "agents", "modules", "learned", "sharing.json", "steps"])
def test_a_run_killed_as_soon_as_something_is_written_is_resumed(plan, here, tmp_path, stage):
    out = tmp_path / "killed"
    process = subprocess.Popen(words(plan, out, 1), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while process.poll() is None and not at_stage(out, stage):
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    found = run(replace(plan, out=out))
    learned_alike(found, here)
    assert without_times(found.results) == without_times(here.results)


def test_a_killed_run_leaves_no_workers(plan: Plan, tmp_path: Path):
    out = tmp_path / "killed"
    process = subprocess.Popen(words(plan, out, 2), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while process.poll() is None and not at_stage(out, "learned"):
        time.sleep(0.01)
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(children) >= 2
    process.send_signal(signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in children):
        assert time.monotonic() < deadline, children
        time.sleep(0.1)


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return False
