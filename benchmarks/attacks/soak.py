"""Soak: nodes with TLS under a steady load, watched for growth of memory, descriptors, threads, disk and time.

Two teachers and a student are asked about images all the time. In every cycle a teacher learns a new task, it
arrives at the others and answers, one of them forgets it and fetches it again, another exports, forgets and
imports it, and its teacher withdraws it. So after each cycle everything is as before, and any growth is a leak.
Now and then a visitor joins, catches up and leaves, and a task is learned by a command instead of in this process.

Memory is resident memory, including blocks that the allocator has not returned. Growth is the median of the
last five minutes relative to that of minutes 10 to 15, for an hour; a shorter run uses the same shares.
"""

from __future__ import annotations

import random
import shutil
import socket
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from nodes import Namespace, environment, namespace

from attacks.town import ENDS_WITHIN, Lines, Resident, in_order, over_and_over, started, unseen, within
from skillmesh.backbone.backbone import Backbone
from skillmesh.common.choices import WarmStart
from skillmesh.common.config import MeshSettings, TlsFiles
from skillmesh.core import Core
from skillmesh.data.demo import write_demo_tasks
from skillmesh.errors import AgentError
from skillmesh.mesh.calling import call
from skillmesh.mesh.certs import CA, CERTIFICATE, KEY, create_ca, issue
from skillmesh.mesh.process import stop_all
from skillmesh.module import Module
from skillmesh.module.notice import Slot
from skillmesh.store.home import create_home

STAY = {"ann": ("shapes", "dice"), "bob": ("cards", "flowers"), "cem": ()}
"""The agents, and the permanent tasks that each has taught."""
COME_AND_GO = {"ann": ("flags", "clocks"), "bob": ("textures", "signs")}
VISITOR = "dan"
IMAGES = {"train": 6, "val": 3, "test": 3}
"""Number of images per class."""
CYCLE = 10.0
"""Minimum seconds between two cycles: a teacher may announce 1,200 modules an hour, here it announces 360."""
VISIT_EVERY, COMMAND_EVERY = 6, 10
"""Intervals, in cycles."""
ASK_EVERY, SAMPLE_EVERY, SAY_EVERY = 0.5, 5.0, 30.0
"""Intervals, in seconds."""
BOUND, LEARNED = 60.0, 240.0
"""Seconds within which a task arrives or disappears on a busy machine, and within which the first are learned."""
ASK_BOUND = 20.0
HOUR, WARM, SETTLED, LAST = 3600.0, 600.0, 900.0, 300.0
"""Seconds of an hour: nothing counts before `WARM`; growth is from `WARM`…`SETTLED` to the `LAST` seconds."""
JUDGED_FROM = 1200.0
"""Seconds from which growth in a run counts as a failure: in a shorter one memory has not settled."""
MOST_GROWTH = 5.0
"""Maximum growth of memory, in percent."""
MORE_FDS, MORE_THREADS, MORE_DISK = 12, 8, 4_000_000
"""Maximum increase of the last median over the first: the ledger's log varies by 1 MB, and threads and descriptors
of links and commands come and go."""
LEAST_RIGHT = 0.6
"""Minimum share of right answers on images of permanent tasks: drawn tasks with six images per class are easy."""

Say = Callable[[str], None]


def run(seconds: float, seed: int, kept: Path, say: Say) -> dict[str, Any]:
    """Soak for about `seconds`, including set-up, and return the figures of all runs on `kept`.

    A later run is a new stretch with its own growth: new processes have to warm up.
    """
    deadline = time.monotonic() + seconds
    kept = kept.resolve()
    lines = Lines(kept / "samples.jsonl")
    stretch = 1 + max((line["stretch"] for line in lines.read()), default=0)
    lines.write(kind="stretch", stretch=stretch, seed=seed)
    with in_order(), namespace() as net:
        soak = Soak(kept, net, lines, stretch, random.Random(f"{seed}/{stretch}"), say)
        try:
            soak.prepare(deadline)
            soak.go_on_until(deadline)
        except Exception:
            soak.wrong(f"the soak ended early: {traceback.format_exc(limit=-3)}")
        finally:
            soak.stop()
    return figures(lines.read())


class Soak:
    """One run, called a stretch."""

    def __init__(
        self, kept: Path, net: Namespace, lines: Lines, stretch: int, chance: random.Random, say: Say
    ) -> None:
        self._kept, self._net, self._lines, self._stretch = kept, net, lines, stretch
        self._chance, self._say = chance, say
        self._residents: dict[str, Resident] = {}
        self._backbone: Backbone | None = None
        self._asking = random.Random(chance.random())  # used by the asking thread
        self._stay: list[tuple[Path, str, str]] = []
        self._cycle = self._asked = 0
        self._cache = kept / "cache"
        self._variables = environment() | {"SKILLMESH_CACHE": str(self._cache)}
        self.began = time.monotonic()

    # Setting up.

    def prepare(self, deadline: float) -> None:
        """Make missing tasks and homes with certificates; then start the nodes."""
        names = [task for tasks in (*STAY.values(), *COME_AND_GO.values()) for task in tasks]
        write_demo_tasks(self._kept / "tasks", names=names, **IMAGES)
        self._stay = [image for tasks in STAY.values() for task in tasks for image in self._images(task)]
        authority = self._kept / "authority"
        if not authority.exists():
            create_ca(authority)
        ports = _free_ports(len(STAY) + 1)
        for index, name in enumerate((*STAY, VISITOR)):
            home = self._kept / "homes" / name
            if not (home / "done").exists():
                self._make(home, authority)
            first = () if index == 0 else (f"127.0.0.1:{ports[0]}",)
            MeshSettings.of(
                {
                    "network": "fixed",
                    "listen": [f"127.0.0.1:{ports[index]}"],
                    "connect": first,
                    "trust": "open",
                    "sync_seconds": 5.0,
                    "tls": TlsFiles(
                        ca=Path("tls", CA), certificate=Path("tls", CERTIFICATE), key=Path("tls", KEY)
                    ),
                }
            ).save(home)
            if name != VISITOR:
                self._residents[name] = Resident(home, self._net, self._variables)
        for name, resident in self._residents.items():
            to_learn = self._still_to_learn(name)
            resident.start(*(word for task in to_learn for word in ("--learn", str(self._kept / "tasks" / task))))
        started(list(self._residents.values()))
        stay = sum(map(len, STAY.values()))
        most = max(min(LEARNED, deadline - time.monotonic()), 1.0)
        if within(most, lambda: all(self._holds(r.name, stay) for r in self._residents.values())) is None:
            self.wrong(f"the nodes do not hold the {stay} permanent tasks after {most:.0f} s")
        for resident in self._residents.values():
            call(
                resident.home, "ask", timeout=120, images=[str(self._stay[0][0])]
            )  # the student loads its backbone
        self.began = time.monotonic()

    def _make(self, home: Path, authority: Path) -> None:
        shutil.rmtree(home, ignore_errors=True)
        create_home(home, name=home.name)
        agent = self._agent(home.name)
        issue(authority, agent.identity.public_key, agent.name, home / "tls")
        agent.ledger.close()
        (home / "done").touch()

    def _still_to_learn(self, name: str) -> list[str]:
        """Return the permanent tasks that an agent lacks; leftovers of a killed run are undone."""
        agent = self._agent(name)
        own = {m.card.task for m in agent.bank if m.card.teacher_key == agent.identity.public_key}
        for task in own.intersection(COME_AND_GO.get(name, ())):
            agent.withdraw(task)
        for slot in agent.ledger.view().forgotten:
            agent.ledger.remember(slot)
        agent.ledger.close()
        return [task for task in STAY[name] if task not in own]

    def _agent(self, name: str) -> Core:
        """Open an agent's home as a command beside its node does; the caller closes its ledger."""
        agent = Core(self._kept / "homes" / name, cache_folder=self._cache, backbone=self._backbone)
        self._backbone = agent.backbone
        return agent

    def _images(self, task: str) -> list[tuple[Path, str, str]]:
        """Return a task's test images, with the names of task and class."""
        paths = sorted((self._kept / "tasks" / task / "test").glob("*/*"))
        return [(path, task, path.parent.name) for path in paths]

    def _holds(self, name: str, count: int) -> bool:
        return len(self._residents[name].bank()) == count

    # The load.

    def go_on_until(self, deadline: float) -> None:
        with ExitStack() as threads:
            threads.enter_context(over_and_over("sampling", SAMPLE_EVERY, self._sample, self.wrong))
            threads.enter_context(over_and_over("asking", ASK_EVERY, self._ask, self.wrong))
            threads.enter_context(over_and_over("telling", SAY_EVERY, self._tell, self.wrong))
            while (left := deadline - time.monotonic()) > CYCLE / 2:
                began = time.monotonic()
                try:
                    self._mend()
                    self._one_cycle()
                except Exception:
                    self.wrong(f"cycle {self._cycle}: {traceback.format_exc(limit=-3)}")
                self._cycle += 1
                time.sleep(max(0.0, min(began + CYCLE - time.monotonic(), left)))
        self._sample()

    def _mend(self) -> None:
        """Restart a node that has ended by itself, which counts as a failure."""
        for resident in self._residents.values():
            try:
                resident.check()
            except AgentError as error:
                self.wrong(str(error))
                resident.start()
                started([resident])

    def _one_cycle(self) -> None:
        teacher = ("ann", "bob")[self._cycle % 2]
        tasks = COME_AND_GO[teacher]
        task = tasks[self._cycle // 2 % len(tasks)]
        others = [name for name in STAY if name != teacher]
        self._chance.shuffle(others)
        module_id, slot = self._learn(teacher, task)
        try:
            self._wait("arrived", others, lambda bank: module_id in bank, task)
            self._ask_about(task)
            self._forget_and_remember(others[0], slot, module_id)
            self._export_and_import(others[1], slot, module_id)
        finally:
            agent = self._agent(teacher)
            agent.withdraw(task)
            agent.ledger.close()
        self._wait("gone", list(STAY), lambda bank: module_id not in bank, task)
        if self._cycle % VISIT_EVERY == VISIT_EVERY - 1:
            self._visit()
        for resident in self._residents.values():
            for verb in ("status", "peers"):
                call(resident.home, verb, timeout=BOUND)
        self._note(kind="cycle", cycle=self._cycle)

    def _learn(self, teacher: str, task: str) -> tuple[str, Slot]:
        if self._cycle % COMMAND_EVERY == COMMAND_EVERY - 1:
            self._command("learn", self._kept / "tasks" / task, "--home", self._kept / "homes" / teacher)
        agent = self._agent(teacher)
        if self._cycle % COMMAND_EVERY != COMMAND_EVERY - 1:
            agent.learn(self._kept / "tasks" / task, replace=True, warm_start=WarmStart("never"))
        module = _own(agent, task)
        agent.ledger.close()
        return module.id, Slot(module.card.teacher_key, task)

    def _forget_and_remember(self, name: str, slot: Slot, module_id: str) -> None:
        agent = self._agent(name)
        agent.forget(f"{slot.task}@{slot.teacher_key}")
        agent.ledger.remember(slot)
        agent.ledger.close()
        self._wait("came again", [name], lambda bank: module_id in bank, slot.task)

    def _export_and_import(self, name: str, slot: Slot, module_id: str) -> None:
        agent = self._agent(name)
        file = agent.export(f"{slot.task}@{slot.teacher_key}", self._kept / f"{slot.task}.skill")
        agent.forget(f"{slot.task}@{slot.teacher_key}")
        agent.import_file(file)
        agent.ledger.close()
        self._wait("imported", [name], lambda bank: module_id in bank, slot.task)

    def _visit(self) -> None:
        self._command("sync", "--once", "--seconds", "30", "--home", self._kept / "homes" / VISITOR)

    def _command(self, *words: object) -> None:
        command = [*self._net.prefix, sys.executable, "-m", "skillmesh", *map(str, words)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=180, env=self._variables, check=False
        )
        if done.returncode:
            self.wrong(f"{' '.join(command[-6:])} ended with {done.returncode}: {done.stderr[-500:]}")

    def _wait(self, what: str, names: list[str], true_of: Callable[[set[str]], bool], task: str) -> None:
        took = within(BOUND, lambda: all(true_of(self._residents[name].bank()) for name in names))
        if took is None:
            self.wrong(f"{task!r} has not {what} at {', '.join(names)} within {BOUND:.0f} s")
        else:
            self._note(kind=what, seconds=round(took, 2))

    def _ask_about(self, task: str) -> None:
        """Ask every node about the new task, until it answers from it."""
        image, _, label = self._chance.choice(self._images(task))
        for resident in self._residents.values():
            took = within(BOUND, lambda r=resident: task in _tasks(r, image))
            if took is None:
                self.wrong(f"{resident.name} does not answer from {task!r} within {BOUND:.0f} s ({label})")

    def _ask(self) -> None:
        """Ask one node about an image of a permanent task; no descriptor of it is cached."""
        resident = self._asking.choice(list(self._residents.values()))
        image, task, label = self._asking.choice(self._stay)
        self._asked += 1
        image = unseen(image, self._kept / "asked", 10**9 * self._stretch + self._asked)
        began = time.monotonic()
        (answer,) = call(resident.home, "ask", timeout=ASK_BOUND, images=[str(image)])["answers"]
        took = time.monotonic() - began
        best = answer["guesses"][0]
        right = (best["task"], best["label"]) == (task, label)
        self._note(kind="ask", node=resident.name, ms=round(1000 * took, 1), right=right)

    # What is watched.

    def _sample(self) -> None:
        for resident in self._residents.values():
            if resident.process is not None and resident.returncode is None:
                self._note(kind="sample", node=resident.name, starts=resident.starts, **resident.measured())
            for text in resident.new_trouble():
                self.wrong(f"the log of {resident.name} holds {text}")

    def _tell(self) -> None:
        sizes = ", ".join(f"{r.name} {r.measured()['rss']:.0f} MB" for r in self._residents.values())
        self._say(f"soak: {time.monotonic() - self.began:.0f} s, {self._cycle} cycles; {sizes}")

    def _note(self, **fields: Any) -> None:
        self._lines.write(t=round(time.monotonic() - self.began, 2), stretch=self._stretch, **fields)

    def wrong(self, what: str) -> None:
        self._note(kind="failure", what=what)
        self._say(f"soak: FAILURE {what[:300]}")

    def stop(self) -> None:
        stop_all(list(self._residents.values()), ENDS_WITHIN)


def _tasks(resident: Resident, image: Path) -> list[str]:
    """Return the tasks of a node's guesses for an image."""
    (answer,) = call(resident.home, "ask", timeout=ASK_BOUND, images=[str(image)])["answers"]
    return [guess["task"] for guess in answer["guesses"]]


def _own(agent: Core, task: str) -> Module:
    return next(m for m in agent.bank if (m.card.task, m.card.teacher_key) == (task, agent.identity.public_key))


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now, on this machine or in this network namespace."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(bound.getsockname()[1]) for bound in sockets]
    for bound in sockets:
        bound.close()
    return ports


# Figures, from the lines alone, so that a killed run has them as well.


def figures(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of all stretches; growth and drift are those of the longest."""
    stretches = {number: [line for line in lines if line["stretch"] == number] for number in _numbers(lines)}
    lasted = {
        number: max((line.get("t", 0.0) for line in some), default=0.0) for number, some in stretches.items()
    }
    failures = [line["what"] for line in lines if line["kind"] == "failure"]
    longest = max(lasted, key=lambda number: lasted[number], default=None)
    found: dict[str, Any] = {"seconds": round(sum(lasted.values()), 1), "stretches": len(stretches)}
    if longest is not None:
        measured, judged = judge(stretches[longest], lasted[longest])
        found |= measured
        failures += judged
    asks = [line for line in lines if line["kind"] == "ask"]
    right = sum(line["right"] for line in asks) / len(asks) if asks else 1.0
    if right < LEAST_RIGHT:
        failures.append(f"{right:.0%} of {len(asks)} answers were right, expected {LEAST_RIGHT:.0%}")
    arrived = [line["seconds"] for line in lines if line["kind"] == "arrived"]
    return found | {
        "cycles": sum(line["kind"] == "cycle" for line in lines),
        "asks": len(asks),
        "right_percent": round(100 * right, 1),
        "arrived_seconds_median": round(statistics.median(arrived), 2) if arrived else None,
        "arrived_seconds_most": max(arrived, default=None),
        "failures": [{"what": what, "repeat": "campaign.py --only soak with the same seed"} for what in failures],
    }


def _numbers(lines: list[dict[str, Any]]) -> list[int]:
    return sorted({line["stretch"] for line in lines})


def judge(lines: list[dict[str, Any]], lasted: float) -> tuple[dict[str, Any], list[str]]:
    """Return growth and drift of one stretch, and what exceeds the limits."""
    share = min(lasted / HOUR, 1.0) if lasted < HOUR else 1.0
    early = (WARM * share, SETTLED * share)
    late = (lasted - LAST * share, lasted + 1.0)
    nodes: dict[str, Any] = {}
    failures: list[str] = []
    samples = [line for line in lines if line["kind"] == "sample"]
    for name in sorted({line["node"] for line in samples}):
        own = [line for line in samples if line["node"] == name]
        first, last = _between(own, *early), _between(own, *late)
        if not first or not last:
            continue
        rss, then = _median(last, "rss"), _median(first, "rss")
        nodes[name] = {
            "rss_mb_early": then,
            "rss_mb_late": rss,
            "growth_percent": round(100 * (rss / then - 1), 2),
            "slope_mb_per_hour": round(slope(_between(own, early[0], late[1]), "rss"), 2),
            "anonymous_growth_percent": round(
                100 * (_median(last, "anonymous") / _median(first, "anonymous") - 1), 2
            ),
            "rss_mb_most": max(line["rss"] for line in own),
            "fds": [_median(first, "fds"), _median(last, "fds")],
            "threads": [_median(first, "threads"), _median(last, "threads")],
            "disk_mb": [round(_median(first, "disk") / 1e6, 2), round(_median(last, "disk") / 1e6, 2)],
            "cores": round((own[-1]["cpu"] - own[0]["cpu"]) / max(own[-1]["t"] - own[0]["t"], 1.0), 3),
        }
        failures += [f"{name}: {problem}" for problem in _too_much(nodes[name], lasted)]
    tenth = WARM * share
    asks = [line for line in lines if line["kind"] == "ask"]
    before, after = _between(asks, 0.0, tenth), _between(asks, lasted - tenth, lasted + 1.0)
    found: dict[str, Any] = {"longest_seconds": round(lasted, 1), "nodes": nodes}
    if nodes:
        found["growth_percent"] = max(node["growth_percent"] for node in nodes.values())
        found["slope_mb_per_hour"] = max(node["slope_mb_per_hour"] for node in nodes.values())
    if before and after:
        found["ask_ms_first"], found["ask_ms_last"] = _median(before, "ms"), _median(after, "ms")
        found["ask_ms_most"] = max(line["ms"] for line in asks)
        found["drift_percent"] = round(100 * (found["ask_ms_last"] / found["ask_ms_first"] - 1), 1)
    return found, failures


def _too_much(node: dict[str, Any], lasted: float) -> list[str]:
    found = []
    if lasted >= JUDGED_FROM and node["growth_percent"] > MOST_GROWTH:
        found.append(
            f"memory grew by {node['growth_percent']} % from {node['rss_mb_early']} to {node['rss_mb_late']} MB, "
            f"expected ≤ {MOST_GROWTH} %"
        )
    for what, most in (("fds", MORE_FDS), ("threads", MORE_THREADS), ("disk_mb", MORE_DISK / 1e6)):
        first, last = node[what]
        if last > first + most:
            found.append(f"{what} grew from {first} to {last}, expected ≤ {most} more")
    return found


def _between(lines: list[dict[str, Any]], start: float, end: float) -> list[dict[str, Any]]:
    return [line for line in lines if start <= line["t"] < end]


def _median(lines: list[dict[str, Any]], what: str) -> float:
    return round(statistics.median(line[what] for line in lines), 2)


def slope(lines: list[dict[str, Any]], what: str) -> float:
    """Return the least-squares slope of a quantity, per hour."""
    if len(lines) < 2 or lines[0]["t"] == lines[-1]["t"]:
        return 0.0
    return HOUR * statistics.linear_regression([line["t"] for line in lines], [line[what] for line in lines]).slope
