"""The campaign's mutated files: a short run finds nothing, broken readers are found, old findings stay fixed."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from skillmesh.data.helper import HELPERS

pytestmark = pytest.mark.long

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FOUND = Path(__file__).parents[1] / "fixtures" / "hostile"


@pytest.fixture(autouse=True)
def _no_helper() -> None:
    """Stop the decoding process: its memory is judged when it ends, and must not include that of another test."""
    HELPERS.stop()


@pytest.fixture(scope="module")
def files() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("attacks.files")


@pytest.fixture(scope="module")
def targets(files: ModuleType) -> ModuleType:
    return importlib.import_module("attacks.targets")


@pytest.fixture(scope="module")
def valid(files: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of valid files, which take seconds to make."""
    folder = tmp_path_factory.mktemp("files") / "corpus"
    files.load_corpus(folder)
    return folder


@pytest.fixture
def kept(files: ModuleType, valid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A campaign's folder; one worker is enough here."""
    monkeypatch.setattr(files, "WORKERS", 1)
    shutil.copytree(valid, tmp_path / "kept" / "corpus")
    return tmp_path / "kept"


# Earlier findings of the campaign.


@pytest.mark.parametrize("path", sorted(FOUND.glob("*/*.gz")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_files_found_earlier_are_refused_or_ignored(
    files: ModuleType, targets: ModuleType, valid: Path, path: Path, tmp_path: Path
) -> None:
    kind = targets.set_up(path.parent.name, files.load_corpus(valid), tmp_path)
    case = files.Case(gzip.decompress(path.read_bytes()), name=path.stem.partition("@")[2])
    ended, failure, _ = files.judge(kind, case)
    assert failure is None
    assert ended.endswith("Error") or ended in ("read", "probes stand in")


# The campaign itself.


def counted(kept: Path) -> dict[str, int]:
    """Return the number of cases done by kind; assert that each is done once, or left for the next call."""
    state = json.loads((kept / "state.json").read_text())
    done = {name: tally["files"] for name, tally in state["tallies"].items()}
    waiting = Counter[str]()
    for name, start, end in state["waiting"]:
        waiting[name] += end - start
    assert {name: done[name] + waiting[name] for name in done} == state["next"]
    return done


def test_a_short_run_finds_nothing_and_a_second_resumes(
    files: ModuleType, targets: ModuleType, kept: Path
) -> None:
    first = files.Campaign(5, kept, lambda _: None).run(seconds=600, most=500)
    assert first["failures"] == []
    assert first["files"] >= 500
    assert set(first["kinds"]) == set(targets.KINDS)
    before = counted(kept)
    second = files.Campaign(5, kept, lambda _: None, kinds=["notice", "key"]).run(seconds=600, most=300)
    assert second["failures"] == []
    assert second["files"] >= first["files"] + 300
    assert second["seconds"] > first["seconds"]
    after = counted(kept)
    assert set() < {name for name in after if after[name] > before[name]} <= {"notice", "key"}


def test_cases_interrupted_in_an_earlier_run_are_done_first(files: ModuleType, kept: Path) -> None:
    files.Campaign(5, kept, lambda _: None, kinds=["key"]).run(seconds=600, most=10)
    stopped = json.loads((kept / "state.json").read_text())
    end = stopped["next"]["key"]
    stopped["next"]["key"], stopped["waiting"] = end + 20, [["key", end, end + 20]]
    (kept / "state.json").write_text(json.dumps(stopped))
    files.Campaign(5, kept, lambda _: None, kinds=["key"]).run(seconds=600, most=5)
    assert counted(kept)["key"] == end + 20
    with pytest.raises(ValueError, match="belongs to seed 5"):
        files.Campaign(6, kept, lambda _: None)


# Readers broken on purpose in the workers; each must be found.


def no_signatures() -> None:
    from skillmesh.module import format as module_format

    module_format.verify = lambda *_: True  # type: ignore[attr-defined]


def key_error() -> None:
    from skillmesh.module.card import Card

    parse = Card.parse

    def careless(text: str) -> Card:
        return {"{": parse}[text[:1]](text)

    Card.parse = careless  # type: ignore[method-assign, assignment]


def _every_hundredth(harm: Callable[[], object]) -> None:
    from skillmesh.module.identity import Identity

    load, calls = Identity.load, iter(range(10**9))

    def worse(path: Any) -> Identity:
        if next(calls) % 100 == 99:
            harm()
        return load(path)

    Identity.load = worse  # type: ignore[method-assign, assignment]


def crashing() -> None:
    _every_hundredth(lambda: os.kill(os.getpid(), signal.SIGSEGV))


def greedy() -> None:
    _every_hundredth(lambda: b"x" * 150_000_000)


def without_bounds() -> None:
    _every_hundredth(lambda: bytearray(2 * 10**9))


def starting_programs() -> None:
    _every_hundredth(lambda: os.system("true"))  # noqa: S605, S607, RUF100


@pytest.mark.parametrize(
    ("prepare", "kind", "figure", "what"),
    [
        (no_signatures, "module", "false_acceptances", "accepted a module that its teacher did not sign"),
        (key_error, "module", "crashes", "crash: KeyError"),
        (crashing, "key", "crashes", "killed: by SIGSEGV"),
        (greedy, "key", "over_memory", "MB over the base"),
        (without_bounds, "key", "over_memory", "MemoryError"),
        (starting_programs, "key", "false_acceptances", "it would os.system"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_broken_reader_is_found_and_its_file_kept(
    files: ModuleType, kept: Path, prepare: Callable[[], None], kind: str, figure: str, what: str, tmp_path: Path
) -> None:
    figures = files.Campaign(3, kept, lambda _: None, [kind], prepare).run(seconds=600, most=80)
    assert figures[figure] >= 1
    found = [failure for failure in figures["failures"] if what in failure["what"]]
    assert found
    assert counted(kept)[kind] == figures["files"]  # though workers died and were replaced
    stored = [path.read_bytes() for path in sorted((kept / "failures").iterdir())]
    case, _, failure = files.again(kept, found[0]["repeat"], tmp_path)
    assert case.data in stored  # the same file again
    assert failure is None  # the reader in this process is not broken


def test_a_slow_reader_is_found_unless_only_the_machine_was_busy(
    files: ModuleType, targets: ModuleType, valid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = targets.set_up("key", files.load_corpus(valid), tmp_path)
    monkeypatch.setattr(files, "SLOW", 0.05)
    monkeypatch.setattr(kind, "seconds", lambda _: 0.05)
    feed = kind.feed
    monkeypatch.setattr(kind, "feed", lambda case: (time.sleep(0.2), feed(case))[1])
    current = type("Current", (), {"value": -1})()
    done = files.attack(kind, 1, 0, 2, current)
    assert [failure.what.split(":")[0] for failure in done.failures] == ["slow", "slow"]
    meters = iter([files.Meter(10.0 * number, 0.0, 0.0) for number in range(100)])
    monkeypatch.setattr(files, "meter", lambda: next(meters))  # as if it had always waited for a core
    assert files.attack(kind, 1, 0, 2, current).failures == []
