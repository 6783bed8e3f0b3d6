"""A run of the challenge: equal to `skillmesh eval` at its end, to a real agent at every step, and resumable."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from running import LEARNED, Ran

from skillmesh.backbone import torch_network
from skillmesh.cli import show
from skillmesh.core import Core
from skillmesh.errors import SkillmeshError
from skillmesh.evaluation.evaluate import evaluate
from skillmesh.module import Module
from skillmesh.store.bank import specs_for
from skillmesh_challenge import methods
from skillmesh_challenge.baselines.methods import Naive
from skillmesh_challenge.cli.run import _print
from skillmesh_challenge.entries import Learned, Step, TaskAtStep
from skillmesh_challenge.errors import RunError
from skillmesh_challenge.methods import METHODS, SkillMethod
from skillmesh_challenge.metrics import AVERAGED
from skillmesh_challenge.record import Record, find_records, read_record, without_times
from skillmesh_challenge.run import Plan, run, sweep
from skillmesh_challenge.stage import Stage
from skillmesh_challenge.steps import joint_bound


@pytest.fixture(scope="module")
def paths(demo_tasks: Path) -> list[Path]:
    return [demo_tasks / name for name in LEARNED]


@pytest.fixture(scope="module")
def plan(one_network: None, paths: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Plan:
    out = tmp_path_factory.mktemp("runs") / "sketch"
    return Plan(paths, METHODS["sketch"], out, agents=2, workers=1, threads=2)


@pytest.fixture(scope="module")
def made(plan: Plan) -> Record:
    """A complete run in one process. Tests must not change it."""
    return run(plan)


@pytest.mark.long
@pytest.mark.parametrize("name", ["sketch", "sketch-compact", "gmmc-floored", "maha"])
def test_macro_averages_equal_those_of_eval(
    name: str, plan: Plan, made: Record, new_agent: Callable[..., Core], paths: list[Path], tmp_path: Path
):
    method = METHODS[name]
    assert isinstance(method, SkillMethod)
    found = made if name == "sketch" else run(replace(plan, method=method, out=tmp_path / name, bound=False))
    settings = method.config("eval", 0).model_dump()
    expected = evaluate(new_agent(**settings), paths).summary()
    assert found.results is not None
    for ours in (*AVERAGED.values(), "module_bytes", "anchor_bytes"):
        assert found.results[ours] == expected[ours], ours


@pytest.mark.long
def test_every_step_equals_the_answers_of_an_agent_with_these_tasks(
    made: Record, new_agent: Callable[..., Core], paths: list[Path]
):
    for step in made.steps:
        agent = new_agent("fresh")
        for position in range(step.known):
            agent.import_file(made.module_file(position))
        result = evaluate(agent, paths[: step.known], learn=False)
        by_task = {task.task: task for task in result.tasks}
        for task in step.tasks:
            asked = by_task[task.task]
            assert (task.images, task.given, task.found) == (
                asked.test_images,
                asked.task_given_accuracy,
                asked.task_found_accuracy,
            )
            assert (task.final, task.strict, task.unknown) == (
                asked.final_accuracy,
                asked.strict_accuracy,
                asked.known_unanswered,
            )


@pytest.mark.long
def test_the_accuracy_matrix_is_a_triangle_of_the_steps(made: Record):
    matrix = made.matrix("final")
    assert matrix.shape == (4, 4)
    assert np.isnan(matrix[np.triu_indices(4, 1)]).all()
    assert matrix[3].tolist() == [task.final for task in made.steps[3].tasks]
    assert made.matrix("given")[3, 0] == made.matrix("given")[0, 0]  # a head does not change


@pytest.mark.long
def test_confusions_count_every_test_image(made: Record):
    assert made.confusions is not None
    counts = np.array(made.confusions.counts)
    last = made.steps[-1]
    assert counts.sum(axis=1).tolist() == [task.images for task in last.tasks]
    right = counts.diagonal() / counts.sum(axis=1)
    assert right.tolist() == pytest.approx([task.found for task in last.tasks])
    for sample in made.confusions.samples:
        assert sample.task != sample.taken_for
        facts = next(task for task in made.settings.tasks if task.name == sample.task)
        assert (Path(facts.path) / sample.image).is_file()
        assert sample.label in facts.classes


@pytest.mark.long
def test_agents_have_keys_of_their_own_and_end_with_equal_banks(made: Record):
    homes = sorted((made.folder / "agents").iterdir())
    assert [home.name for home in homes] == ["a001", "a002"]
    agents = [Core(home) for home in homes]
    assert agents[0].identity.public_key != agents[1].identity.public_key
    assert [m.id for m in agents[0].bank] == [m.id for m in agents[1].bank]
    teachers = {module.card.task: module.card.teacher for module in agents[0].bank}
    assert teachers == {"shapes": "a001", "dice": "a001", "latin": "a002", "greek": "a002"}
    assert made.sharing is not None
    assert made.sharing.same_answers
    assert made.sharing.asked == 4 * 5


@pytest.mark.long
def test_a_record_has_the_costs_of_learning(made: Record):
    assert [learned.task for learned in made.learned] == list(LEARNED)
    for learned in made.learned:
        module = Module.load(made.module_file(learned.position), specs_for)
        assert (module.id, module.content_id, module.size) == (
            learned.module_id,
            learned.content_id,
            learned.module_bytes,
        )
        assert sum(learned.parts.values()) == module.size
        assert {"head", "anchor", "probes", "card"} == learned.parts.keys()
        assert learned.macs["forward"] == pytest.approx(learned.images * 0.385e9, rel=0.02)
        assert learned.images == made.settings.tasks[learned.position].train + len(module.card.classes) * 3


@pytest.mark.long
def test_costs_add_up(made: Record):
    assert made.results is not None
    costs = made.results["costs"]
    assert costs["teacher_total"] == pytest.approx(sum(learned.total_macs for learned in made.learned))
    assert costs["student"] == pytest.approx(sum(sum(step.student_macs.values()) for step in made.steps))
    halves = [sum(m.module_bytes for m in made.learned[:2]), sum(m.module_bytes for m in made.learned[2:])]
    assert costs["received_bytes"] == sum(halves) / 2
    assert costs["single"] == pytest.approx(costs["teacher_total"] + costs["student"])
    assert costs["parallel"] == pytest.approx(costs["teacher"] + 1000 * costs["received_bytes"] + costs["student"])
    assert 0.5 < costs["efficiency"] < 1


@pytest.mark.long
def test_bounds_are_in_every_result(made: Record):
    assert made.results is not None
    bounds = made.results["bounds"]
    assert bounds["task_given"] == made.results["task_given_accuracy"]
    assert 0.7 < bounds["all_data_together"]["final_accuracy"] <= 1
    assert bounds["all_data_together"]["task_found_accuracy"] >= bounds["all_data_together"]["final_accuracy"]


@pytest.mark.long
def test_a_complete_run_is_not_repeated(plan: Plan, made: Record):
    before = {path: path.stat().st_mtime_ns for path in made.folder.rglob("*.json")}
    assert run(plan).results == made.results
    assert {path: path.stat().st_mtime_ns for path in made.folder.rglob("*.json")} == before


@pytest.mark.long
def test_a_bound_can_be_added_to_a_run_that_has_none(plan: Plan, made: Record, tmp_path: Path):
    without = run(replace(plan, out=tmp_path / "run", bound=False, reuse=(made.folder,)))
    assert without.results is not None
    assert "all_data_together" not in without.results["bounds"]
    assert without_times(run(replace(plan, out=tmp_path / "run")).results) == without_times(made.results)


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"agents": 3}, "agents was 2, now it is 3"),
        ({"alpha": 1.0}, r"alpha was 1000\.0, now it is 1\.0"),
        ({"method": SkillMethod("sketch", rank=4)}, r"method\.rank was 8, now it is 4"),
        ({"mesh": True}, "sharing was 'memory', now it is 'mesh'"),
        ({"assign": "round-robin"}, "assign was 'order'"),
    ],
)
def test_a_run_of_other_settings_is_refused_in_the_same_folder(plan: Plan, made: Record, change, complaint):
    with pytest.raises(RunError, match=complaint):
        run(replace(plan, **change))


@pytest.mark.long
def test_another_order_of_the_same_tasks_is_refused(plan: Plan, made: Record):
    order = ", ".join(made.settings.names)
    with pytest.raises(RunError, match=f"in another order: it was {order}; give --shuffle"):
        run(replace(plan, paths=plan.paths[::-1]))


@pytest.mark.long
def test_a_run_that_cannot_start_leaves_no_files(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch_network, "best_torch_device", lambda: "cpu")
    naive = replace(plan, out=tmp_path / "run", agents=1, method=Naive("naive"), bound=False, device="cuda:99")
    refused = partial(pytest.raises, SkillmeshError, match=r"'cuda:99' cannot be used .*; expected cpu$")
    with refused():
        run(naive)
    assert not naive.out.exists()
    with monkeypatch.context() as patched, refused():  # as if another process were running it
        patched.setattr("skillmesh_challenge.run._removed_if_empty", lambda _: nullcontext())
        run(naive)
    with refused():
        run(naive)
    assert (naive.out / "run.json").exists()


@pytest.mark.long
def test_a_run_that_fails_later_keeps_what_it_learned(plan: Plan, tmp_path: Path):
    class Failing(Forgetful):
        def play(self, stage: Stage) -> None:
            super().play(stage)
            raise RunError("no more")

    with pytest.raises(RunError, match="no more"):
        run(replace(plan, out=tmp_path / "run", agents=1, method=Failing("failing"), bound=False))
    assert len(read_record(tmp_path / "run").learned) == len(plan.paths)


@pytest.mark.long
def test_a_sweeps_folder_is_refused_for_a_single_run(plan: Plan, tmp_path: Path):
    sweep(replace(plan, out=tmp_path, method=Forgetful("forgetful"), bound=False), agents=[1], seeds=[0, 1])
    with pytest.raises(RunError, match=r"holds runs of several seeds or agents \(seed-0, seed-1\); give --seeds"):
        run(replace(plan, out=tmp_path, method=Forgetful("forgetful"), agents=1, bound=False))


@pytest.mark.long
@pytest.mark.parametrize("place", ["mine.txt", "mine.txt/run"])
def test_a_file_in_the_runs_place_is_refused(plan: Plan, tmp_path: Path, place: str):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(RunError, match=r"mine\.txt is a file or a broken link, expected a folder"):
        run(replace(plan, out=tmp_path / place))
    assert (tmp_path / "mine.txt").read_text() == "precious"


@pytest.mark.long
def test_a_broken_link_is_refused_as_a_runs_folder(plan: Plan, tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(RunError, match="link is a file or a broken link"):
        run(replace(plan, out=tmp_path / "link"))


@pytest.mark.long
def test_a_folder_with_something_else_inside_is_refused(plan: Plan, tmp_path: Path):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(RunError, match="holds no run"):
        run(replace(plan, out=tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("lost", ["learned/0001-dice.json", "learned", "sharing.json", "steps", "steps/0002.json"])
def test_files_lost_in_a_kill_are_made_again_with_the_same_results(made: Record, plan: Plan, tmp_path: Path, lost):
    copy = tmp_path / "copy"
    shutil.copytree(made.folder, copy)
    for path in (copy / lost, copy / "results.json", copy / "bounds.json"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if lost.startswith("learned"):  # nothing was shared before everything was learned
        for name in ("sharing.json", "confusions.json"):
            (copy / name).unlink()
        shutil.rmtree(copy / "steps")
        for home in (copy / "agents").iterdir():
            shutil.rmtree(home / "bank")
    again = run(replace(plan, out=copy))
    assert without_times(again.results) == without_times(made.results)


@pytest.mark.long
def test_a_sweep_reuses_learned_tasks_and_accuracy_does_not_depend_on_agents(plan: Plan, tmp_path: Path):
    records = sweep(replace(plan, out=tmp_path, bound=False), agents=[1, 2, 5], seeds=[0])
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["accuracy_independent_of_agents"] is True
    assert [row["agents"] for row in summary["sweep"]] == [1, 2, 5]
    assert summary["sweep"][0]["efficiency"]["mean"] == 1
    one, *others = records
    for other in others:
        assert [m.content_id for m in other.learned] == [m.content_id for m in one.learned]
        assert [m.seconds for m in other.learned] == [m.seconds for m in one.learned]
        assert {m.agent for m in other.learned} <= other.settings.assignment.keys()
    assert find_records([tmp_path]) == [record.folder for record in records]
    empty = [name for name, tasks in records[2].settings.assignment.items() if not tasks]
    assert len(empty) == 1
    assert len(Core(records[2].folder / "agents" / empty[0]).bank) == 4


@pytest.mark.long
def test_modules_depend_neither_on_the_number_of_agents_nor_on_the_assignment(
    plan: Plan, made: Record, tmp_path: Path
):
    """Every number of agents learns all tasks itself: nothing is reused."""
    alone = run(replace(plan, out=tmp_path / "alone", agents=1, bound=False))
    each = run(replace(plan, out=tmp_path / "each", agents=4, bound=False))
    for record in (alone, each):
        assert [m.content_id for m in record.learned] == [m.content_id for m in made.learned]
        assert np.array_equal(record.matrix(), made.matrix(), equal_nan=True)


@pytest.mark.long
@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"data_hash": "00"}, {"backbone": "ff"}, {"tasks": "fewer images"}]
)
def test_data_counts_as_equal_only_if_everything_that_determines_it_is(made: Record, change: dict[str, Any]):
    ours = made.settings
    if "tasks" in change:
        first, *others = ours.tasks
        change = {"tasks": (replace(first, train=first.train - 1), *others)}
    moved = replace(ours, tasks=tuple(replace(task, path="elsewhere") for task in ours.tasks))
    assert ours.same_images(moved)
    assert not ours.same_images(replace(ours, **change))


@pytest.mark.long
def test_tasks_learned_by_another_method_are_not_reused(plan: Plan, made: Record, tmp_path: Path):
    other = replace(
        plan, method=SkillMethod("sketch", rank=4), out=tmp_path / "r4", bound=False, reuse=(made.folder,)
    )
    found = run(other)
    assert [m.content_id for m in found.learned] != [m.content_id for m in made.learned]


@pytest.mark.long
def test_seeds_draw_orders_and_give_intervals(plan: Plan, tmp_path: Path):
    records = sweep(replace(plan, out=tmp_path, bound=False, shuffle=True), agents=[2], seeds=[0, 1])
    assert [record.settings.seed for record in records] == [0, 1]
    assert records[0].settings.names != records[1].settings.names
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["sweep"][0]["final_accuracy"]["seeds"] == 2


@pytest.mark.long
def test_the_joint_bound_is_reused_from_a_run_of_the_same_data(plan: Plan, made: Record, tmp_path: Path):
    stage = Stage(tmp_path, made.settings, (), tmp_path, reuse=(made.folder,))
    method = plan.method
    assert isinstance(method, SkillMethod)
    assert joint_bound(method, stage) == made.bounds


# A method without modules.


@dataclass(frozen=True)
class Forgetful:
    """A method without modules, agents or mapper, which knows only the newest task."""

    name: str
    kind = "forgetful"

    def settings(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind}

    def refuse(self, plan: Plan) -> None:
        """Accept all settings."""

    def play(self, stage: Stage) -> None:
        done = len(stage.read().steps)
        for position, task in enumerate(stage.tasks[done:], done):
            stage.keep_learned(Learned(task.name, position, "a001", {"training": 1e9}, 0.0, 1, module_bytes=1000))
            known = stage.tasks[: position + 1]
            tasks = [TaskAtStep(t.name, 1, 1.0, None, float(t is task)) for t in known]
            stage.keep_step(Step(position + 1, tuple(tasks), {}, 0.0, 0.0))


@pytest.mark.long
def test_a_method_without_modules_writes_the_same_record(plan: Plan, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(methods.KINDS, "forgetful", Forgetful)
    path = tmp_path / "fool.toml"
    path.write_text('kind = "forgetful"\n')
    method = methods.find_method(str(path))
    found = run(replace(plan, method=method, out=tmp_path / "run", agents=1, bound=False))
    assert found.results is not None
    lifelong = found.results["lifelong"]
    assert lifelong["forgetting"] == 1
    assert lifelong["backward_transfer"] == -1
    assert lifelong["final_after_each_task"] == [1, 1 / 2, 1 / 3, 1 / 4]
    assert found.results["task_found_accuracy"] is None
    assert found.results["costs"]["teacher_total"] == 4e9
    assert read_record(tmp_path / "run").complete


# The command.


@pytest.mark.long
def test_the_table_of_a_run_fits_eighty_columns(made: Record, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(show.console, "_width", 80)
    _print([made])
    assert made.results is not None
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[0].split()) == "method agents seed task given task found final all data task label"
    assert show.percent(made.results["final_accuracy"]) in lines[1]
    assert f"{made.results['costs']['efficiency']:.4f}" in lines[-1]
    assert len(lines) == 2 + 1 + 2


def test_the_command_runs_and_prints_the_results(command: Callable[..., Ran], demo_tasks: Path, tmp_path: Path):
    out = tmp_path / "out"
    words = ["challenge", "run", demo_tasks / "dice", demo_tasks / "latin", "--out", out, "--workers", 1]
    ran = command(*words, "--agents", "2", "--no-bound")
    assert ran.code == 0, ran.err
    assert "alike" in ran.out
    assert "a001 learned dice" in (out / "log.txt").read_text()
    again = command(*words, "--agents", "2", "--no-bound", "--json")
    assert again.json[0]["results"]["sharing"]["same_answers"] is True
    refused = command(*words, "--agents", "1")
    assert refused.code == 1
    assert "agents was 2, now it is 1" in refused.err


@pytest.mark.parametrize(("words", "complaint"), [(["--agents", "0"], "--agents"), (["--seeds", "a"], "--seeds")])
def test_the_command_refuses_invalid_numbers(command, demo_tasks, tmp_path, words, complaint):
    ran = command("challenge", "run", demo_tasks / "dice", "--out", tmp_path / "out", *words)
    assert (ran.code, complaint in ran.err) == (1, True)


def test_wrong_data_is_reported_in_full_before_anything_is_learned(command: Callable[..., Ran], tmp_path: Path):
    for task, split, label in (
        ("alone", "train", "a"), ("alone", "test", "a"),
        ("untested", "train", "a"), ("untested", "train", "b"), ("untested", "val", "a"),
        ("broken", "train", "a"), ("broken", "train", "b"), ("broken", "test", "a"), ("broken", "test", "b"),
        ("more/broken", "train", "a"), ("more/broken", "train", "b"), ("more/broken", "test", "b"),
    ):  # fmt: skip
        folder = tmp_path / "tasks" / task / split / label
        folder.mkdir(parents=True)
        shade = hash((task, split, label)) % 200
        Image.new("RGB", (8, 8), (shade, len(task), len(split))).save(folder / "0.png")
    (tmp_path / "tasks" / "broken" / "test" / "a" / "1.jpg").write_bytes(b"no image")
    places = (tmp_path / "tasks", tmp_path / "tasks" / "more")
    ran = command("challenge", "run", *places, "--agents", "2", "--out", tmp_path / "run")
    assert ran.code == 1
    for words in ("one class", "no test", "1.jpg", "broken"):
        assert words in ran.err, ran.err
    assert not (tmp_path / "run").exists()


def test_methods_are_listed(command: Callable[..., Ran]):
    assert "gmmc-floored" in command("challenge", "methods").out
    assert command("challenge", "methods", "--json").json[0]["mapper"] == "sketch"
