"""Mutated files against everything that reads files: modules, notices, homes, calibrations, images and zips.

Worker processes make and read the files, a range of cases at a time; this process hands out ranges, counts, and
replaces workers that crash or hang. A case is identified by seed, kind and index:

    python -m attacks.files KEPT 7/module/123       (with benchmarks/ in PYTHONPATH)

makes it again, from the valid files in KEPT, and prints how it ends. `attacks/targets.py` defines what is wrong.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from random import Random
from typing import Any

from attacks.corpus import load_corpus
from attacks.forgeries import Case
from attacks.targets import KINDS, MB, Kind, Wrong, set_up
from skillmesh.data.helper import HELPERS
from skillmesh.errors import SkillmeshError

WORKERS = 3
SLOW = 1.0
"""Seconds after which a file is checked for having taken too long."""
HANGS = 90.0
"""Seconds after which a worker that has not reached its next file is stopped."""
ROOM = 600 * MB
"""Bytes that a worker may map in addition to what it always needs; beyond that it gets a `MemoryError`."""
BATCH_SECONDS = 3.0
"""Seconds per batch. After each, the decoding process is restarted: its peak is known only when it has ended."""
WARM_UP = 30
SAVE_SECONDS = 2.0
KEPT_OF_EACH = 3
"""Number of files kept of failures that look the same."""
MOST_KEPT_BYTES = 2 * MB
_WATCHED = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect"}

Range = tuple[str, int, int]
"""A kind, the first index, and the index after the last."""


@dataclass
class Tally:
    """Counts of one kind, or of one range of it."""

    files: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    """Outcomes of files: the name of the error that refused them, or how they were accepted."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    worst_seconds: float = 0.0
    peak_mb: float = 0.0
    failures: int = 0

    def add(self, other: Tally) -> None:
        self.files += other.files
        self.ends += other.ends
        self.seconds += other.seconds
        self.cpu_seconds += other.cpu_seconds
        self.worst_seconds = max(self.worst_seconds, other.worst_seconds)
        self.peak_mb = max(self.peak_mb, other.peak_mb)
        self.failures += other.failures


@dataclass(frozen=True)
class Failure:
    """A file that caused a failure."""

    kind: str
    index: int
    what: str
    alike: str
    """Equal for failures with the same cause."""
    case: Case = field(default_factory=lambda: Case(b""))


@dataclass
class Done:
    """A worker's report on a range; `end` is smaller than requested if the worker needs to be replaced."""

    end: int
    tally: Tally
    failures: list[Failure]


def run(seconds: float, seed: int, kept: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Attack for about `seconds`, resuming from `kept`; return the figures of all calls on `kept`."""
    return Campaign(seed, kept, say).run(seconds)


def make_case(kind: Kind, seed: int, index: int) -> Case:
    return kind.make(Random(f"{seed}/{kind.name}/{index}"))


# The worker's side.


def work(
    pipe: Any,
    current: Any,
    seed: int,
    corpus: Path,
    place: Path,
    crash_log: Path,
    prepare: Callable[[], None] | None,
) -> None:
    """Read ranges from `pipe` and answer each with a `Done`; `current` holds the current case."""
    with crash_log.open("w") as log, Path(os.devnull).open("w") as nowhere:
        faulthandler.enable(log)
        for stream in (1, 2):  # decoders of images print warnings there
            os.dup2(nowhere.fileno(), stream)
        logging.disable(logging.CRITICAL)
        try:
            if prepare is not None:
                prepare()
            sys.dont_write_bytecode = True
            sys.addaudithook(Watch(place))
            files, kinds = load_corpus(corpus), dict[str, Kind]()
            while (asked := pipe.recv()) is not None:
                name, start, end = asked
                if name not in kinds:
                    kinds[name] = warmed_up(set_up(name, files, place), seed)
                pipe.send(attack(kinds[name], seed, start, end, current))
        except BaseException:
            traceback.print_exc(file=log)
            raise


class Watch:
    """Raises if reading a file would start a program, call another machine or write elsewhere."""

    def __init__(self, place: Path) -> None:
        self._places = (str(place), "/dev/null", "/proc/")

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        helper = (
            event == "subprocess.Popen" and arguments[0] == sys.executable
        )  # the helper that decodes unusual images
        if event in _WATCHED and not helper:
            raise Wrong(f"it would {event} {arguments[:2]!r}")
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            path = os.fsdecode(arguments[0]) if not isinstance(arguments[0], int) else "/dev/null"
            if not path.startswith(self._places):
                raise Wrong(f"it would write {path!r}")


def warmed_up(kind: Kind, seed: int) -> Kind:
    """Read some files that are not counted, since loading libraries costs memory once."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    for index in range(WARM_UP):
        judge(kind, make_case(kind, seed, -1 - index))
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + ROOM, hard))
    return kind


def attack(kind: Kind, seed: int, start: int, end: int, current: Any) -> Done:
    tally, failures = Tally(), list[Failure]()
    base = peak_bytes(forget=True)
    began, began_cpu = time.monotonic(), time.process_time()
    for index in range(start, end):
        current.value = index
        case = make_case(kind, seed, index)
        ended, failure, lasted = judge(kind, case)
        if lasted > SLOW:  # perhaps the machine was busy
            before = meter()
            _, other, shorter = judge(kind, case)
            lasted, failure = min(lasted, fair_seconds(shorter, before, meter())), failure or other
        peak = peak_bytes() - base
        if failure is None and lasted > SLOW and lasted > kind.seconds(case):
            failure = f"slow: {lasted:.1f} s", "slow"
        if peak > kind.limit:
            failure = failure or (f"memory: {peak / MB:.0f} MB over the base", "memory")
        tally.files += 1
        tally.ends[ended] += 1
        tally.worst_seconds = max(tally.worst_seconds, lasted)
        tally.peak_mb = max(tally.peak_mb, round(peak / MB, 1))
        if failure is not None:
            tally.failures += 1
            failures.append(Failure(kind.name, index, failure[0], f"{kind.name}: {failure[1]}", case))
        if peak > kind.limit or (failure is not None and failure[1].startswith("memory")):
            end = index + 1
            break
    tally.seconds, tally.cpu_seconds = time.monotonic() - began, time.process_time() - began_cpu
    if HELPERS.are_running and end > start:
        HELPERS.stop()  # the peak of its children is known only now
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        tally.peak_mb = max(tally.peak_mb, round(most / MB, 1))
        if most > kind.limit:
            tally.failures += 1
            what = f"memory: a decoder took {most / MB:.0f} MB for one of the cases from {start} on"
            failures.append(Failure(kind.name, end - 1, what, f"{kind.name}: memory of a decoder", case))
    return Done(end, tally, failures)


def judge(kind: Kind, case: Case) -> tuple[str, tuple[str, str] | None, float]:
    """Feed one file; return how it ended, what is wrong with it (with figures and without), and the seconds."""
    began = time.monotonic()
    failure = None
    try:
        ended = kind.feed(case)
    except SkillmeshError as error:
        ended = type(error).__name__
        chain: BaseException | None = error
        while chain is not None and failure is None:
            if isinstance(chain, MemoryError | Wrong):
                failure = _failure("memory" if isinstance(chain, MemoryError) else "wrong", chain)
            chain = chain.__cause__ or chain.__context__
    except Wrong as error:
        ended, failure = "wrong", _failure("wrong", error)
    except MemoryError as error:
        ended, failure = "memory", _failure("memory", error)
    except Exception as error:
        ended, failure = "crash", _failure("crash", error)
    return ended, failure, time.monotonic() - began


def _failure(what: str, error: BaseException) -> tuple[str, str]:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "skillmesh" in f.filename] or [None]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames[-1] else "unknown place"
    if isinstance(error, Wrong):
        place = str(error).split(":")[0][:60]
    return (
        f"{what}: {type(error).__name__}: {str(error)[:200]} ({place})",
        f"{what}: {type(error).__name__} ({place})",
    )


def peak_bytes(forget: bool = False) -> int:
    """Return the peak memory of this process and its helpers; with `forget`, reset it."""
    total = 0
    for process in ("self", *_children()):
        try:
            if forget:
                Path(f"/proc/{process}/clear_refs").write_text("5")
            with open(f"/proc/{process}/status", "rb") as file:  # noqa: PTH123  (for every case: this is the quickest)
                status = file.read()
            start = status.index(b"VmHWM:") + 6
            total += int(status[start : status.index(b"kB", start)]) * 1024
        except (OSError, ValueError):  # a helper that has just ended
            continue
    return total


@dataclass(frozen=True)
class Meter:
    """Time so far, in seconds."""

    waited: float
    """Time in which this process was ready to run, and no core was free."""
    cpu: float
    helpers: float
    """CPU time of this process and of its helpers."""


def meter() -> Meter:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    helpers = ended.ru_utime + ended.ru_stime
    for child in _children():
        helpers += _scheduled(child)[0] + _of_its_children(child)
    return Meter(_scheduled("self")[1], time.process_time(), helpers)


def fair_seconds(lasted: float, before: Meter, after: Meter) -> float:
    """Return how long it would have lasted on an idle machine; a helper counts by its CPU time."""
    lasted -= after.waited - before.waited
    helpers = after.helpers - before.helpers
    return min(lasted, after.cpu - before.cpu + helpers) if helpers > 0.01 else lasted


def _scheduled(process: str) -> tuple[float, float]:
    """Return a process's CPU seconds, and those in which it waited for a core."""
    try:
        running, waiting, _ = Path(f"/proc/{process}/schedstat").read_text().split()
        return int(running) / 1e9, int(waiting) / 1e9
    except (OSError, ValueError):  # the process has just ended, or the system has no such file
        return 0.0, 0.0


def _of_its_children(process: str) -> float:
    """Return the CPU seconds of the children that a helper has waited for, one for each image."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return 0.0


def _children() -> list[str]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:  # noqa: PTH123
            return file.read().split()
    except OSError:  # not on every system
        return []


# The campaign's side.


@dataclass
class Worker:
    """A worker process and its current range."""

    process: Any
    pipe: Any
    current: Any
    place: Path
    crash_log: Path
    asked: Range | None = None
    seen: tuple[int, float] = (-1, 0.0)
    """The last case that was seen in progress, and since when."""


class Campaign:
    """One call of `run`."""

    def __init__(
        self,
        seed: int,
        kept: Path,
        say: Callable[[str], None],
        kinds: Sequence[str] = tuple(KINDS),
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """Load the state in `kept`. `prepare` is called in every worker: tests break readers with it."""
        self._seed, self._kept, self._say, self._prepare = seed, kept, say, prepare
        (kept / "failures").mkdir(parents=True, exist_ok=True)
        load_corpus(kept / "corpus")
        self._shares = {name: KINDS[name].share for name in kinds}
        self._tallies: dict[str, Tally] = defaultdict(Tally)
        self._next: Counter[str] = Counter()
        self._failures: list[dict[str, Any]] = []
        self._seconds = 0.0
        self._waiting: list[Range] = []
        self._read_state()
        self._workers: list[Worker] = []
        self._context = multiprocessing.get_context("spawn")

    def run(self, seconds: float, most: int | None = None) -> dict[str, Any]:
        """Attack for some seconds, or until `most` files of this call are done."""
        before, self._began = self._seconds, time.monotonic()
        first, saved, reported = self.files, 0.0, 0.0
        memory = Path("/dev") / "shm"
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:
            self._place = Path(place)
            self._workers = [self._start(number) for number in range(WORKERS)]
            try:
                while True:
                    now = time.monotonic()
                    self._seconds = before + now - self._began
                    over = now - self._began > seconds or (most is not None and self.files - first >= most)
                    for worker in self._workers:
                        if worker.asked is None and not over:
                            self._ask(worker)
                    if over and not any(worker.asked for worker in self._workers):
                        break
                    for number, worker in enumerate(self._workers):
                        if worker.asked is not None and self._news(worker):
                            self._workers[number] = self._start(number)
                    if now - saved > SAVE_SECONDS:
                        self._write_state()
                        saved = now
                    if now - reported > 5:
                        rate = (self.files - first) / max(now - self._began, 1e-9)
                        self._say(f"files: {self.files:,} files, {rate:,.0f}/s, {self._failed} failures")
                        reported = now
                    wait([worker.pipe for worker in self._workers], timeout=0.2)
            finally:
                for worker in self._workers:
                    self._stop(worker)
                self._seconds = before + time.monotonic() - self._began
                self._write_state()
        return self.figures()

    @property
    def files(self) -> int:
        return sum(tally.files for tally in self._tallies.values())

    @property
    def _failed(self) -> int:
        return sum(tally.failures for tally in self._tallies.values())

    def figures(self) -> dict[str, Any]:
        """Return the figures of all calls on `kept`."""
        kinds = {name: _as_figures(tally) for name, tally in self._tallies.items() if tally.files}
        by_what = Counter[str]()
        for failure in self._failures:
            by_what[failure["what"].split(":")[0]] += failure["times"]
        return {
            "files": self.files,
            "seconds": round(self._seconds, 1),
            "files_per_second": round(self.files / max(self._seconds, 1e-9), 1),
            "cpu_seconds": round(sum(tally.cpu_seconds for tally in self._tallies.values()), 1),
            "crashes": by_what["crash"] + by_what["killed"],
            "false_acceptances": by_what["wrong"],
            "over_memory": by_what["memory"],
            "over_time": by_what["slow"] + by_what["hangs"],
            "worst_seconds": max((tally.worst_seconds for tally in self._tallies.values()), default=0.0),
            "peak_mb": max((tally.peak_mb for tally in self._tallies.values()), default=0.0),
            "kinds": kinds,
            "failures": [{"what": f["what"], "repeat": f["repeat"], "times": f["times"]} for f in self._failures],
        }

    # Workers.

    def _start(self, number: int) -> Worker:
        ours, theirs = self._context.Pipe()
        current = self._context.RawValue("q", -1)
        place, crash_log = self._place / str(number), self._kept / f"worker-{number}.log"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        arguments = (theirs, current, self._seed, self._kept / "corpus", place, crash_log, self._prepare)
        process = self._context.Process(target=work, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return Worker(process, ours, current, place, crash_log)

    def _stop(self, worker: Worker) -> None:
        with contextlib.suppress(OSError):
            worker.pipe.send(None)
        worker.process.join(5)
        worker.process.kill()

    def _ask(self, worker: Worker) -> None:
        """Hand out a range left by an earlier call, or of the kind that is furthest behind its share."""
        if not self._waiting:
            name = min(self._shares, key=lambda name: self._next[name] / self._shares[name])
            tally, start = self._tallies[name], self._next[name]
            rate = tally.files / tally.seconds if tally.seconds else 0.0
            end = start + min(max(int(rate * BATCH_SECONDS), 10), 5000)
            self._next[name] = end
            self._waiting.append((name, start, end))
        worker.asked = self._waiting.pop(0)
        worker.seen = -1, time.monotonic() + 60  # a new worker has to load libraries first
        worker.pipe.send(worker.asked)

    def _news(self, worker: Worker) -> bool:
        """Process the report of a worker; return whether the worker must be replaced."""
        assert worker.asked is not None
        name, start, end = worker.asked
        try:
            if worker.pipe.poll():
                done: Done = worker.pipe.recv()
                worker.asked = None
                self._count(name, done)
                if done.end < end:
                    self._waiting.append((name, done.end, end))
                    self._stop(worker)
                return done.end < end
        except (EOFError, ConnectionResetError):
            worker.process.join(5)
        now, index = time.monotonic(), int(worker.current.value)
        if index != worker.seen[0]:
            worker.seen = index, now
        if worker.process.is_alive():
            if now - worker.seen[1] < HANGS:
                return False
            worker.process.kill()
            worker.process.join(5)
            what = f"hangs: no end after {HANGS:.0f} s"
        else:
            code = worker.process.exitcode or 0
            what = f"killed: by {signal.Signals(-code).name if code < 0 else f'exit status {code}'}"
        if not start <= index < end:
            raise RuntimeError(f"a worker did not reach its first file ({what}); see {worker.crash_log}")
        worker.asked = None
        self._lose(Failure(name, index, what, f"{name}: {what}"), worker.crash_log)
        # Its part of the range was never reported: it is done again, without the file at which it failed.
        self._waiting += [part for part in ((name, start, index), (name, index + 1, end)) if part[1] < part[2]]
        return True

    def _lose(self, failure: Failure, crash_log: Path) -> None:
        """Count the file at which a worker failed; it is made again here, since the worker could not send it."""
        with tempfile.TemporaryDirectory() as place:
            kind = set_up(failure.kind, load_corpus(self._kept / "corpus"), Path(place))
            case = make_case(kind, self._seed, failure.index)
        trace = next((line for line in crash_log.read_text().splitlines() if "skillmesh" in line), "").strip()
        alike = f"{failure.alike} {trace}"
        failure = Failure(failure.kind, failure.index, f"{failure.what} {trace}".strip(), alike, case)
        self._count(
            failure.kind, Done(0, Tally(1, Counter({failure.what.split(":")[0]: 1}), failures=1), [failure])
        )

    # What is kept.

    def _count(self, name: str, done: Done) -> None:
        self._tallies[name].add(done.tally)
        for failure in done.failures:
            repeat = f"{self._seed}/{failure.kind}/{failure.index}"
            same = [known for known in self._failures if known["alike"] == failure.alike]
            if len(same) >= KEPT_OF_EACH:
                same[-1]["times"] += 1
                continue
            self._say(f"files: FAILURE {failure.what} ({repeat})")
            self._failures.append({"what": failure.what, "repeat": repeat, "alike": failure.alike, "times": 1})
            if len(failure.case.data) <= MOST_KEPT_BYTES:
                name = "@".join(part for part in (repeat, failure.case.name) if part).replace("/", "-")
                (self._kept / "failures" / name).write_bytes(failure.case.data)

    def _read_state(self) -> None:
        path = self._kept / "state.json"
        if not path.exists():
            return
        state = json.loads(path.read_text())
        if state["seed"] != self._seed:
            raise ValueError(
                f"{self._kept} belongs to seed {state['seed']}, not to {self._seed}; name another folder"
            )
        self._next.update(state["next"])
        self._seconds, self._failures = state["seconds"], state["failures"]
        self._waiting = [tuple(part) for part in state["waiting"]]
        for name, tally in state["tallies"].items():
            self._tallies[name] = Tally(**(tally | {"ends": Counter(tally["ends"])}))

    def _write_state(self) -> None:
        """Store what is done, in progress and next."""
        under_way = [*self._waiting, *(worker.asked for worker in self._workers if worker.asked)]
        state = {
            "seed": self._seed,
            "next": self._next,
            "seconds": self._seconds,
            "failures": self._failures,
            "waiting": under_way,
            "tallies": {name: vars(tally) for name, tally in self._tallies.items()},
        }
        partial = self._kept / "state.json.partial"
        partial.write_text(json.dumps(state))
        partial.replace(self._kept / "state.json")


def _as_figures(tally: Tally) -> dict[str, Any]:
    return {
        "files": tally.files,
        "ends": dict(tally.ends.most_common()),
        "seconds": round(tally.seconds, 1),
        "files_per_cpu_second": round(tally.files / max(tally.cpu_seconds, 1e-9)),
        "worst_seconds": round(tally.worst_seconds, 3),
        "peak_mb": tally.peak_mb,
        "failures": tally.failures,
    }


def again(kept: Path, repeat: str, place: Path) -> tuple[Case, str, tuple[str, str] | None]:
    """Make and read the case of a `repeat` again in this process; return the file, how it ended, and the fault."""
    seed, name, index = repeat.split("/")
    kind = set_up(name, load_corpus(kept / "corpus"), place)
    case = make_case(kind, int(seed), int(index))
    ended, failure, _ = judge(kind, case)
    return case, ended, failure


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found, how, trouble = again(Path(sys.argv[1]), sys.argv[2], Path(folder))
        Path(sys.argv[2].replace("/", "-")).write_bytes(found.data)
        print(f"{len(found.data):,} bytes, written here; {how}; {trouble[0] if trouble else 'no failure'}")
