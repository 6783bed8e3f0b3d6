"""Settings of a run: assignment of tasks and methods; and the record's files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillmesh.errors import AgentError
from skillmesh_challenge import record
from skillmesh_challenge.entries import Learned, Step, TaskAtStep
from skillmesh_challenge.errors import RunError
from skillmesh_challenge.methods import METHODS, SkillMethod, find_method, register, register_kind
from skillmesh_challenge.record import write_learned, write_steps_table
from skillmesh_challenge.stage import assign

TASKS = ["a", "b", "c", "d", "e"]

# Assignment.


def test_in_order_agents_take_blocks():
    assert list(assign(TASKS, 2).values()) == [("a", "b"), ("c", "d", "e")]


def test_round_robin_deals_tasks_in_turn():
    assert list(assign(TASKS, 2, "round-robin").values()) == [("a", "c", "e"), ("b", "d")]


@given(st.integers(1, 40), st.integers(1, 60), st.sampled_from(["order", "round-robin"]))
def test_every_task_has_one_agent_and_the_shares_are_even(tasks, agents, how):
    names = [str(i) for i in range(tasks)]
    found = assign(names, agents, how)
    assert len(found) == agents
    assert sorted(task for some in found.values() for task in some) == sorted(names)
    sizes = [len(some) for some in found.values()]
    assert max(sizes) - min(sizes) <= 1


def test_balanced_gives_the_largest_task_first_to_the_agent_with_least_work():
    assert list(assign(TASKS, 2, "balanced", [5, 1, 1, 4, 2]).values()) == [("a", "b", "c"), ("d", "e")]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.integers(1, 25))
def test_balanced_loads_differ_by_no_more_than_the_largest_task(sizes, agents):
    names = [str(i) for i in range(len(sizes))]
    found = assign(names, agents, "balanced", sizes)
    assert sorted(task for some in found.values() for task in some) == sorted(names)
    loads = [sum(sizes[int(task)] for task in some) for some in found.values()]
    assert max(loads) - min(loads) <= max(sizes)


def test_more_agents_than_tasks_leave_some_with_none():
    assert [len(some) for some in assign(["a"], 3).values()] == [1, 0, 0]


def test_a_json_file_assigns_tasks_to_agents(tmp_path):
    path = tmp_path / "who.json"
    path.write_text(json.dumps({"anna": ["c", "a"], "ben": ["b", "d", "e"]}))
    assert assign(TASKS, 3, str(path)) == {"anna": ("c", "a"), "ben": ("b", "d", "e"), "a001": ()}


def test_a_csv_file_assigns_tasks_to_agents(tmp_path):
    path = tmp_path / "who.csv"
    path.write_text("agent,task\nanna,a\nben,b\nanna,c\n\nben, d\nben,e\n")
    assert assign(TASKS, 2, str(path)) == {"anna": ("a", "c"), "ben": ("b", "d", "e")}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"anna": ["a", "b", "c", "d"]}', "leaves out: e"),
        ('{"anna": ["a", "b", "c", "d", "e", "e"]}', "assigns twice: e"),
        ('{"anna": ["a", "b", "c", "d", "e", "x"]}', "do not exist: x"),
        ('{"anna": "abcde"}', "expected an object of lists"),
        ('{"../anna": ["a", "b", "c", "d", "e"]}', "without slashes"),
        ("[", "cannot read the assignment"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_reason(tmp_path, content, complaint):
    path = tmp_path / "who.json"
    path.write_text(content)
    with pytest.raises(RunError, match=complaint):
        assign(TASKS, 2, str(path))


def test_a_file_with_more_agents_than_asked_for_is_refused(tmp_path):
    path = tmp_path / "who.json"
    path.write_text(json.dumps({name: [name] for name in TASKS}))
    with pytest.raises(RunError, match="names 5 agents, but --agents is 2"):
        assign(TASKS, 2, str(path))


# Methods.


def test_the_papers_methods_and_ours_are_registered_by_name():
    assert {"sketch", "sketch-compact", "sketch-auto", "gmmc", "gmmc-floored", "maha"} <= METHODS.keys()
    assert METHODS["gmmc-floored"].settings()["representation"] == "sqrt-features"


def test_a_file_changes_a_method(tmp_path):
    path = tmp_path / "fifty.toml"
    path.write_text('base = "gmmc"\nclusters = 50\n')
    method = find_method(str(path))
    assert method.settings() == METHODS["gmmc"].settings() | {"name": "fifty", "clusters": 50}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("clusters =", "cannot read the method"),
        ("rank = 3", 'does not say which method it changes; begin it with a line such as base = "sketch"'),
        ('base = "sketch"\ncolour = 3', "sets colour, which skill does not have; expected name, .*rank"),
        ('base = "nothing"', "base = 'nothing'"),
        ('kind = ["skill"]', r"kind = \['skill'\]; expected skill"),
        ('kind = "magic"', "kind = 'magic'; expected skill"),
        ('kind = "skill"\nhead = "deep"', "expected linear, head2toe"),
        ('kind = "skill"\nhead = "head2toe"', "needs biases"),
    ],
)
def test_a_file_that_is_no_method_is_refused(tmp_path, content, complaint):
    path = tmp_path / "mine.toml"
    path.write_text(content)
    with pytest.raises(RunError, match=complaint):
        find_method(str(path))


def test_a_missing_method_file_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"there is no file .*nothing\.toml"):
        find_method(str(tmp_path / "nothing.toml"))


def test_invalid_agent_settings_are_refused():
    with pytest.raises(AgentError, match="clusters"):
        SkillMethod("bad", clusters=0)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(RunError, match="expected sketch, "):
        find_method("skitch")


def test_a_name_is_registered_once():
    with pytest.raises(RunError, match="named 'sketch' already"):
        register(SkillMethod("sketch"))
    with pytest.raises(RunError, match="named 'skill' already"):
        register_kind("skill", SkillMethod)


# The record's files.


def test_a_learned_record_is_read_back_unchanged(tmp_path):
    learned = Learned("a b/c", 3, "anna", {"forward": 1.5}, 2.0, 10, None, 5, {"head": 3, "card": 2}, 0.5)
    write_learned(tmp_path, learned)
    (path,) = (tmp_path / "learned").iterdir()
    assert path.name == "0003-a_b_c.json"
    assert record.parse_entry(Learned, json.loads(path.read_text())) == learned


def test_steps_make_a_table(tmp_path):
    step = Step(2, (TaskAtStep("a", 4, 1.0, 1.0, 0.75), TaskAtStep("b", 2, None, None, 0.5)), {}, 0.0, 0.0)
    write_steps_table(tmp_path, [step])
    rows = (tmp_path / "steps.csv").read_text().splitlines()
    assert rows[0] == "known,task,images,given,found,final,strict,unknown"
    assert rows[1:] == ["2,a,4,1.0,1.0,0.75,,", "2,b,2,,,0.5,,"]


def test_a_steps_json_restores_tasks_and_tuples(tmp_path):
    step = Step(1, (TaskAtStep("a", 4, 1.0, 1.0, 0.75),), {"mapper": 2.0}, 0.1, 0.2)
    assert record.parse_entry(Step, json.loads(json.dumps(asdict(step)))) == step


def test_times_are_left_out_at_any_depth():
    found = {"a": 1, "b_seconds": 2, "c": [{"seconds": 3, "d": 4, "cached_images": 5}]}
    assert record.without_times(found) == {"a": 1, "c": [{"d": 4}]}


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="no run"):
        record.find_records([tmp_path])
    with pytest.raises(RunError, match="cannot read"):
        record.read_record(tmp_path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"images": "many"}, "images: input should be a valid integer"), ({"colour": 3}, "colour: unexpected")],
)
def test_a_damaged_file_says_so(changes: dict[str, Any], complaint: str):
    whole = asdict(Learned("a", 0, "anna", {}, 2.0, 10))
    with pytest.raises(RunError, match=r"Learned of a run is damaged \(position: field required\); expected task"):
        record.parse_entry(Learned, {"task": "a"})
    with pytest.raises(RunError, match=complaint):
        record.parse_entry(Learned, whole | changes)


def test_sums_of_macs_do_not_depend_on_the_order():
    macs = {str(i): float(v) for i, v in enumerate(np.geomspace(1e-3, 1e12, 20))}
    forth = Learned("t", 0, "a", macs, 0, 1)
    back = Learned("t", 0, "a", dict(reversed(macs.items())), 0, 1)
    assert forth.total_macs == back.total_macs


def test_an_opened_zip_can_be_sent_to_another_process(tmp_path: Path):
    import pickle
    import zipfile

    from skillmesh.data.folder import open_task

    with zipfile.ZipFile(tmp_path / "task.zip", "w") as file:
        for name in ("one/1.jpg", "one/2.jpg", "two/1.jpg", "two/2.jpg"):
            file.writestr(name, name.encode())
    task = open_task(tmp_path / "task.zip")
    sent = pickle.loads(pickle.dumps(task))
    assert [f.content() for f in sent.splits["train"].files] == [f.content() for f in task.splits["train"].files]
