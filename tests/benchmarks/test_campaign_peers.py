"""The hostile peers of the campaign: it uses all attackers, its checks can fail, and a short round passes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile import ATTACKS

from skillmesh.core import Core

pytestmark = pytest.mark.long

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
IN_PEACE = {"rss": 500.0, "fds": 30, "threads": 60, "disk": 10**6}


@pytest.fixture(scope="module")
def peers() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("attacks.peers")


def test_all_attackers_of_the_tests_take_part(peers: Any) -> None:
    assert sorted(peers.kinds()) == sorted(ATTACKS)
    assert {"wrong-names", "huge-scatter"} <= set(peers.kinds("forgery")) < set(peers.kinds())
    assert {*peers.POURING, *peers.UNTRUSTED, *peers.KNOWING} <= set(peers.kinds())


@pytest.mark.parametrize("what", ["rss", "fds", "threads", "disk"])
def test_a_node_that_grows_too_much_under_attack_is_found(peers: Any, what: str) -> None:
    bound = peers.BOUNDS[what]
    assert peers.over_bounds(IN_PEACE | {what: IN_PEACE[what] + bound}, IN_PEACE) == []
    (problem,) = peers.over_bounds(IN_PEACE | {what: IN_PEACE[what] + bound + 1}, IN_PEACE)
    assert what in problem


def test_a_traceback_in_a_log_is_found_once(peers: Any, tmp_path: Path) -> None:
    town = importlib.import_module("attacks.town")
    home = tmp_path / "ann"
    home.mkdir()
    resident = town.Resident(home, None, {})
    resident.log.write_text("imported 'dice' by bob\n")
    assert resident.new_trouble() == []
    with resident.log.open("a") as log:
        log.write("Traceback (most recent call last):\n  File x\nKeyError: 3\nthread 'rx' panicked at y\n")
    assert len(resident.new_trouble()) == 2
    assert resident.new_trouble() == []


def test_figures_add_up_over_rounds_and_say_how_to_repeat_a_failure(peers: Any) -> None:
    lines = [
        {"kind": "attack", "round": 0, "kinds": ["silent", "flood"]},
        {"kind": "arrived", "round": 0, "seconds": 1.5},
        {"kind": "sample", "round": 0, "node": "ann", **IN_PEACE},
        {"kind": "ask", "round": 0, "node": "ann", "ms": 20.0, "right": True},
        {"kind": "round", "round": 0, "seconds": 60.0, "moves": {"ask": 3}, "refused": {}},
        {"kind": "attack", "round": 1, "kinds": ["silent", "ghosts"]},
        {"kind": "failure", "round": 1, "what": "ann ended with -9"},
        {"kind": "round", "round": 1, "seconds": 58.5, "moves": {"ask": 2, "flood": 1}, "refused": {"connect": 1}},
    ]
    found = peers.figures(lines, seed=7)
    assert (found["rounds"], found["moves"], found["refused"], found["attackers"]) == (2, 6, 1, 3)
    assert found["seconds"] == 118.5
    assert found["moves_by_name"] == {"ask": 5, "flood": 1}
    assert found["failures"] == [
        {
            "what": "round 1: ann ended with -9",
            "repeat": "python -m attacks.peers --seed 7 --round 1 --kept DIR",
        }
    ]


def test_a_module_of_a_stranger_in_a_bank_is_found(peers: Any, tmp_path: Path, tiny_taught: Core) -> None:
    """An agent's own module counts as foreign if only another key is trusted."""
    town = peers.Town(tmp_path, 0, None, peers.Lines(tmp_path / "samples.jsonl"), print)
    key = tiny_taught.identity.public_key
    resident = importlib.import_module("attacks.town").Resident(tiny_taught.home, None, {})
    town._keys = dict.fromkeys(peers.TASKS, key)
    assert town._foreign(resident, set()) == []
    town._keys = dict.fromkeys(peers.TASKS, "0" * 64)
    assert len(town._foreign(resident, set())) == len(tiny_taught.bank)
    assert town._foreign(resident, {key}) == []


@pytest.mark.slow
def test_a_short_run_finds_nothing_and_continues_with_the_next_round(peers: Any, tmp_path: Path) -> None:
    said: list[str] = []
    found = peers.run(150, 0, tmp_path, said.append)
    assert found["failures"] == []
    assert found["rounds"] >= 1
    assert found["moves"] > 20
    again = peers.run(100, 0, tmp_path, said.append)
    assert again["failures"] == []
    assert again["rounds"] > found["rounds"]
    assert again["taught_and_arrived"] > found["taught_and_arrived"]
