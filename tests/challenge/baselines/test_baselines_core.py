"""Baselines as methods of the challenge: forgetting of naive and joint training, kills, costs, and refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawn import SMALL, draw_tasks, small
from running import Ran
from torch import nn

from skillmesh.data.folder import open_task
from skillmesh.numerics.arrays import counted
from skillmesh_challenge.baselines import data
from skillmesh_challenge.baselines.data import BaselineExamples, BaselineTask, decoded_task
from skillmesh_challenge.baselines.joint import JointLearner as JointLearner
from skillmesh_challenge.baselines.methods import Er, Joint, Mas
from skillmesh_challenge.baselines.network import TaskNetwork
from skillmesh_challenge.baselines.trainer import Trainer
from skillmesh_challenge.entries import DIVERGED
from skillmesh_challenge.errors import RunError
from skillmesh_challenge.methods import find_method
from skillmesh_challenge.record import Record, read_record, without_times
from skillmesh_challenge.run import Plan, run
from skillmesh_challenge.stage import Stage

pytestmark = pytest.mark.long

FAST = {"epochs": 3}
"""Enough to be neither right nor wrong everywhere: a lost state shows in the accuracies."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return draw_tasks(tmp_path_factory.mktemp("drawn") / "tasks", 3)


@pytest.fixture(scope="module")
def plan(paths: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return Plan(paths, small(), tmp_path_factory.mktemp("runs") / "naive", agents=1, bound=False)


@pytest.fixture(scope="module")
def replayed(plan: Plan) -> Record:
    """A complete run of a method with additional state, which tests only read."""
    return run(replace(plan, method=small(Er, **FAST), out=plan.out.parent / "er"))


@pytest.mark.slow
def test_naive_forgets_and_joint_does_not(plan: Plan, tmp_path: Path):
    naive = run(replace(plan, method=small(rate=0.2), out=tmp_path / "naive"))
    joint = run(replace(plan, method=small(Joint, rate=0.2), out=tmp_path / "joint"))
    for record in (naive, joint):
        assert record.matrix().diagonal().min() > 0.9  # each was learned
    assert naive.results is not None
    assert joint.results is not None
    assert naive.results["lifelong"]["forgetting"] > 0.2
    assert joint.results["lifelong"]["forgetting"] < 0.05
    assert joint.results["final_accuracy"] > 0.95
    assert joint.results["costs"]["teacher_total"] > 1.9 * naive.results["costs"]["teacher_total"]


def test_a_diverging_run_ends_with_a_note(plan: Plan, tmp_path: Path):
    method = small(Mas, epochs=2, strength=1e30, rate=0.5)
    record = run(replace(plan, method=method, out=tmp_path / "diverged"))
    assert [learned.notes for learned in record.learned] == [(), (DIVERGED,), (DIVERGED,)]
    assert "task1: weights are no longer numbers" in (tmp_path / "diverged" / "log.txt").read_text()
    assert [task.final for task in record.steps[-1].tasks] == pytest.approx([1 / 3] * 3)
    for path in (tmp_path / "diverged").rglob("*.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)


def test_joint_training_starts_from_the_initial_weights_each_time():
    """Two tasks one after the other give the same weights as both together."""
    tasks = [_numbers(seed) for seed in (0, 1)]
    after_both, afresh = _joint(), _joint()
    after_both.learn(tasks[0], [])
    after_both.learn(tasks[1], tasks[:1])
    afresh.network.add_head(tasks[0].classes, torch.Generator().manual_seed(99))
    afresh.learn(tasks[1], tasks[:1])
    ours, theirs = after_both.network.state_dict(), afresh.network.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


# Kills.


class Killed(Exception):
    pass


@pytest.mark.parametrize("where", ["keep_learned", "keep_step"])
def test_a_stopped_run_resumes_with_the_same_results(
    plan: Plan, replayed: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
):
    """It is stopped between the checkpoint and its record, and between that and the test."""
    keep, calls = getattr(Stage, where), []

    def dies_at_the_second(*words):
        calls.append(words)
        if len(calls) == 2:
            raise Killed
        keep(*words)

    again = replace(plan, method=small(Er, **FAST), out=tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Stage, where, dies_at_the_second)
        with pytest.raises(Killed):
            run(again)
    assert not read_record(again.out).complete
    found = run(again)
    assert without_times(found.results) == without_times(replayed.results)
    assert np.array_equal(found.matrix(), replayed.matrix(), equal_nan=True)
    assert not list(again.out.glob("learner*"))


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from drawn import small
from skillmesh_challenge.baselines import play
from skillmesh_challenge.baselines.methods import Er
from skillmesh_challenge.run import Plan, run

def killed(learner, stage, task, before):
    if len(before) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    learn(learner, stage, task, before)

learn, play._learn = play._learn, killed
run(Plan([Path(p) for p in sys.argv[2:]], small(Er, epochs=3), Path(sys.argv[1]), agents=1, bound=False))
"""


@pytest.mark.slow
def test_a_killed_run_resumes_with_the_same_results(
    plan: Plan, replayed: Record, paths: list[Path], tmp_path: Path
):
    out = tmp_path / "run"
    code = KILLED.format(tests=str(Path(__file__).parents[2] / "helpers"))
    ended = subprocess.run([sys.executable, "-c", code, out, *paths], env=dict(os.environ), timeout=300)
    assert ended.returncode == -signal.SIGKILL
    assert len(read_record(out).learned) == 2
    found = run(replace(plan, method=small(Er, **FAST), out=out))
    assert without_times(found.results) == without_times(replayed.results)


def test_a_run_without_its_checkpoint_says_so(plan: Plan, replayed: Record, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(replayed.folder, copy)
    for name in ("results.json", "steps/0003.json", "learned/0002-task2.json"):
        (copy / name).unlink()
    with pytest.raises(RunError, match=r"learned 2 tasks but lacks learner-0002\.pt; remove the folder"):
        run(replace(plan, method=small(Er, **FAST), out=copy))


# The record.


def test_kept_bytes_add_up(replayed: Record):
    for learned in replayed.learned:
        assert sum(learned.parts.values()) == learned.module_bytes
    weights = [learned.parts["weights"] for learned in replayed.learned]
    assert weights[0] > 0
    assert weights[1:] == [0, 0]  # the network is stored once


def test_a_task_that_is_not_given_must_be_found(plan: Plan, tmp_path: Path):
    record = run(replace(plan, method=small(label="withheld", **FAST), out=tmp_path / "run"))
    last = record.steps[-1].tasks
    assert all(task.found is not None and task.given is not None for task in last)
    assert all(task.final <= min(task.found or 0, task.given or 0) for task in last)
    assert record.steps[0].tasks[0].found == 1  # of one task
    assert record.results is not None
    assert record.results["task_found_accuracy"] < 1


def test_a_given_task_is_not_searched(replayed: Record):
    assert replayed.results is not None
    assert replayed.results["task_found_accuracy"] is None
    assert replayed.results["final_accuracy"] == replayed.results["task_given_accuracy"]


# Costs.


def test_macs_of_training_match_a_count_by_hand():
    """Two linear layers 4 → 5 → 3: the first's input needs no gradient; a head of two classes."""
    trainer = _trainer(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), epochs=7, batch=10)
    with counted() as costs:
        trainer.learn(_numbers(0), [])
    images = 7 * 20
    assert costs.spent["forward"] == images * (4 * 5 + 5 * 3 + 3 * 2)
    assert costs.spent["backward"] == images * (4 * 5 + 2 * 5 * 3 + 2 * 3 * 2)


def _numbers(seed: int) -> BaselineTask:
    """Twenty examples of four numbers in two classes."""
    chance = torch.Generator().manual_seed(seed)
    labels = torch.arange(20) % 2
    examples = BaselineExamples(torch.randn(20, 4, generator=chance) + 2 * labels[:, None], labels)
    return BaselineTask(f"numbers{seed}", 2, examples, examples)


def _trainer(body: nn.Module, **changes: object) -> Trainer:
    return Trainer(TaskNetwork(body, torch.zeros(1, 4)), small(**changes), seed=0)


def _joint() -> JointLearner:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    return JointLearner(TaskNetwork(body, torch.zeros(1, 4)), small(Joint), seed=0)


# Images.


def test_images_that_cannot_be_read_are_left_out(paths: list[Path], tmp_path: Path):
    shutil.copytree(paths[0], tmp_path / "task")
    (tmp_path / "task" / "train" / "class1" / "0.png").write_bytes(b"no image")
    folders = [open_task(path, hold_out=()) for path in (paths[0], tmp_path / "task")]
    whole, lacking = (decoded_task(folder, 32, tmp_path / "cache") for folder in folders)
    assert len(lacking.train) == len(whole.train) - 1
    left = torch.ones(len(whole.train), dtype=torch.bool)
    left[10] = False  # the first ten are of class 0
    assert torch.equal(lacking.train.x, whole.train.x[left])
    assert torch.equal(lacking.train.labels, whole.train.labels[left])
    files = [file for name in ("train", "val") for file in folders[0].splits[name].files]
    sizes = torch.tensor([len(file.content()) for file in files])
    assert torch.equal(whole.train.file_bytes, sizes)
    assert torch.equal(lacking.train.file_bytes, sizes[left])


def test_the_cache_of_pixels_changes_nothing(
    plan: Plan, replayed: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SKILLMESH_CACHE", str(tmp_path / "cache"))
    cold = run(replace(plan, method=small(Er, **FAST), out=tmp_path / "cold"))
    stored = list((tmp_path / "cache" / "pixels").iterdir())
    assert len(stored) == 2 * 3
    monkeypatch.setattr(data, "_store", lambda *_: pytest.fail("decoded again"))
    warm = run(replace(plan, method=small(Er, **FAST), out=tmp_path / "warm"))
    assert without_times(cold.results) == without_times(warm.results) == without_times(replayed.results)


# Refusals.


def test_many_agents_are_refused(plan: Plan, tmp_path: Path):
    with pytest.raises(RunError, match=r"naive learns in sequence.*2 agents, expected one; give --agents 1"):
        run(replace(plan, agents=2, out=tmp_path / "run"))
    assert run(replace(plan, agents=1, out=tmp_path / "run")).complete  # so that the same folder can be used


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [({"mesh": True}, "--mesh"), ({"cluster": "tcp://nowhere"}, "--cluster"), ({"workers": 2}, "--workers")],
)
def test_settings_that_need_modules_or_workers_are_refused(
    plan: Plan, tmp_path: Path, asked: dict[str, Any], complaint: str
):
    with pytest.raises(RunError, match=rf"learns in this process.*leave out {complaint}"):
        run(replace(plan, out=tmp_path / "run", **asked))
    assert not (tmp_path / "run").exists()


def test_a_method_file_need_not_repeat_the_kind_of_its_base(tmp_path: Path):
    (tmp_path / "mine.toml").write_text('base = "ewc"\nstrength = 7')
    assert find_method(str(tmp_path / "mine.toml")).settings() == {
        **find_method("ewc").settings(),
        "name": "mine",
        "strength": 7,
    }


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ('kind = "naiv"', "kind = 'naiv'; expected skill"),
        ('kind = "naive"\nstart = "warm"', "start = 'warm'; expected pretrained, random"),
        ('kind = "er"\nmix = "half"', "mix = 'half'; expected union, balanced"),
        ('kind = "naive"\nspeed = 3', "speed.*expected name, backbone"),
        ('kind = "er"\nbase = "naive"', "base = 'naive'; expected er"),
        ('base = "naiv"', "base = 'naiv'; expected sketch, .*, naive"),
        ('base = "naive"\nepochs = 0', "epochs = 0; expected a whole number from 1 up"),
        ('base = "naive"\nbatch = 2.5', "batch = 2.5; expected a whole number from 1 up"),
        ('base = "naive"\nrate = "fast"', "rate = 'fast'; expected a number from 0 up"),
        ('base = "naive"\nrate = nan', "rate = nan; expected a number from 0 up"),
        ('base = "naive"\nsize = 0', "size = 0; expected a whole number from 8 up"),
        ('base = "naive"\nmomentum = 1.0', "momentum = 1.0; expected less than 1"),
        ('base = "ewc"\nstrength = -1', "strength = -1; expected a number from 0 up"),
        ('base = "ewc-online"\nfisher_images = 0', "fisher_images = 0; expected a whole number from 1 up"),
        ('base = "er"\nper_class = true', "per_class = True; expected a whole number from 1 up"),
        ('base = "supsup"\nbatch = 1', "batch = 1 and norms = 'trained'; expected 2 or more"),
        ('base = "ranpac"\nridge = 0', "ridge = 0; expected a number from 1e-12 up"),
        ('base = "ranpac"\nridge = "auto"', "ridge = 'auto'; expected a number from 1e-12 up"),
        ('base = "ranpac"\nwidth = 0', "width = 0; expected a whole number from 1 up"),
        ('base = "slda"\nshrinkage = 0', "shrinkage = 0; expected more than 0, up to 1"),
        ('base = "slda"\nshrinkage = 2', "shrinkage = 2; expected more than 0, up to 1"),
        ('base = "lwf"\ntemperature = 0', "temperature = 0; expected a number from 0.01 up"),
    ],
)
def test_a_method_file_with_wrong_settings_says_what_is_wrong(tmp_path: Path, lines: str, complaint: str):
    (tmp_path / "mine.toml").write_text(lines)
    with pytest.raises(RunError, match=complaint):
        find_method(str(tmp_path / "mine.toml"))


@pytest.mark.slow
def test_the_report_shows_which_methods_were_given_the_task_and_the_papers_row(
    command: Callable[..., Ran], paths: list[Path], tmp_path: Path
):
    for kind in ("naive", "er"):
        settings = "".join(f"{k} = {v!r}\n" for k, v in (SMALL | FAST).items())
        (tmp_path / f"{kind}.toml").write_text(f'kind = "{kind}"\n{settings}')
        words = ("--method", tmp_path / f"{kind}.toml", "--out", tmp_path / "runs" / kind, "--no-bound")
        ran = command("challenge", "run", *paths[:2], *words, "--seeds", "0,1", "--shuffle")
        assert ran.code == 0, ran.err
    ran = command("challenge", "report", tmp_path / "runs", "--out", tmp_path / "report", "--json")
    assert ran.code == 0, ran.err
    tables = ran.json["tables"]
    accuracy, single = (_as_dicts(tables[name]) for name in ("accuracy", "table-1"))
    replay = next(row for row in accuracy if row["run"] == "er, with task label")
    assert (replay["task label"], replay["seeds"]) == ("given", 2)
    who = [(row["of"], row["method"]) for row in single]
    assert who[who.index(("paper", "ER")) + 1] == ("ours", "er, with task label")
    labels = {name: row["task label"] for name, row in zip(who, single, strict=True)}
    assert labels["paper", "EWC"] == "given"
    assert labels["paper", "LLL, BB, MAHA"] == "none"
    assert labels["ours", "naive, with task label"] == "given"


def _as_dicts(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
