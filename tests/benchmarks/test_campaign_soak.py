"""The soak of the campaign: its definition of growth, that it finds growth, and a short run."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
GROWS = """
import threading, time
kept, files = [], []
while True:
    kept.append(bytearray(b"x" * 3_000_000))
    files.append(open("/dev/null"))
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    time.sleep(0.1)
"""
STEADY = "import time\nwhile True: bytearray(b'x' * 3_000_000); time.sleep(0.1)"


@pytest.fixture(scope="module")
def soak() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("attacks.soak")


Course = Callable[[float], float]
"""A quantity as a function of the seconds since the beginning."""


def an_hour(rss: Course = lambda t: 500.0, **others: Course) -> list[dict[str, Any]]:
    """Return the lines of an hour in which a node behaves as these functions of time."""
    steady: dict[str, Course] = {
        "anonymous": lambda t: 400.0,
        "fds": lambda t: 30,
        "threads": lambda t: 60,
        "disk": lambda t: 1e6,
        "cpu": lambda t: t / 10,
    }
    quantities = steady | {"rss": rss} | others
    lines: list[dict[str, Any]] = [{"kind": "stretch", "stretch": 1, "seed": 0}]
    for t in range(0, 3600, 5):
        fields = {name: of(float(t)) for name, of in quantities.items()}
        lines.append({"t": float(t), "stretch": 1, "kind": "sample", "node": "ann"} | fields)
        lines.append(
            {"t": float(t), "stretch": 1, "kind": "ask", "node": "ann", "ms": 20.0 + t / 360, "right": True}
        )
    return lines


def test_a_steady_hour_has_no_failure(soak: Any) -> None:
    found = soak.figures(an_hour(lambda t: 500.0 + (t % 60) / 10))
    assert found["failures"] == []
    assert abs(found["growth_percent"]) < 0.5
    assert found["cycles"] == 0
    assert found["asks"] == 720
    assert found["drift_percent"] > 30


def test_growth_while_a_node_warms_up_does_not_count(soak: Any) -> None:
    found = soak.figures(an_hour(lambda t: min(100.0 + t, 600.0)))
    assert found["failures"] == []
    assert found["growth_percent"] == 0


def test_memory_that_grows_by_more_than_five_percent_after_ten_minutes_is_a_failure(soak: Any) -> None:
    """From a mean of 575 MB in minutes 10 to 15 to one of 845 MB in the last five."""
    found = soak.figures(an_hour(lambda t: 500.0 + t / 10))
    assert found["growth_percent"] == pytest.approx(46.9, abs=0.3)
    assert found["slope_mb_per_hour"] == pytest.approx(360, abs=1)
    assert "ann: memory grew" in found["failures"][0]["what"]
    assert soak.figures(an_hour(lambda t: 500.0 + 20 * t / 3600))["failures"] == []


@pytest.mark.parametrize(("what", "leak"), [("fds", 100), ("threads", 60), ("disk", 30e6)])
def test_descriptors_threads_and_disk_that_grow_are_failures(soak: Any, what: str, leak: float) -> None:
    found = soak.figures(an_hour(**{what: lambda t: 30 + leak * t / 3600}))
    assert len(found["failures"]) == 1
    assert what in found["failures"][0]["what"]


def test_failures_and_wrong_answers_of_all_runs_are_reported(soak: Any) -> None:
    lines = an_hour()
    for line in lines:
        line["right"] = False
    lines.append({"t": 3.0, "stretch": 2, "kind": "failure", "what": "bob ended with -9"})
    found = soak.figures(lines)
    assert [failure["what"] for failure in found["failures"]] == [
        "bob ended with -9",
        "0% of 720 answers were right, expected 60%",
    ]
    assert found["stretches"] == 2
    assert found["seconds"] == 3598


def test_a_run_that_was_killed_in_the_middle_of_a_line_can_be_read(soak: Any, tmp_path: Path) -> None:
    lines = soak.Lines(tmp_path / "samples.jsonl")
    lines.write(kind="stretch", stretch=1)
    with lines.path.open("a") as file:
        file.write('{"kind": "sam')
    assert lines.read() == [{"kind": "stretch", "stretch": 1}]


@pytest.mark.parametrize(("program", "grows"), [(GROWS, True), (STEADY, False)], ids=["grows", "steady"])
def test_a_process_that_grows_is_found(soak: Any, tmp_path: Path, program: str, grows: bool) -> None:
    """Real measurements, with seconds in place of minutes."""
    town = importlib.import_module("attacks.town")
    resident = town.Resident(tmp_path, None, {})
    resident.process = subprocess.Popen([sys.executable, "-c", program])
    lines: list[dict[str, Any]] = []
    try:
        time.sleep(1.0)
        for tick in range(30):
            sample = {"kind": "sample", "stretch": 1, "node": "ann", "t": 120.0 * tick}
            lines.append(sample | resident.measured())
            time.sleep(0.1)
    finally:
        resident.stop()
    failures = [failure["what"] for failure in soak.figures(lines)["failures"]]
    assert [word for word in ("memory", "fds", "threads") if any(word in what for what in failures)] == (
        ["memory", "fds", "threads"] if grows else []
    )


@pytest.mark.slow
def test_a_short_soak_completes_its_cycles_and_can_be_continued(soak: Any, tmp_path: Path) -> None:
    said: list[str] = []
    found = soak.run(120, 0, tmp_path, said.append)
    assert found["failures"] == []
    assert found["cycles"] >= 2
    assert set(found["nodes"]) <= {"ann", "bob", "cem"}
    again = soak.run(70, 0, tmp_path, said.append)
    assert again["failures"] == []
    assert again["stretches"] == 2
    assert again["cycles"] > found["cycles"]
    assert said
