"""Measure what a hostile client costs honest nodes, and which of its data they accept.

    sudo python benchmarks/hostile_client.py --json docs/results/hostile-client.json

One node holds modules of teachers that have left, and answers questions about images. A newcomer fetches all
modules, first alone, then next to a client that runs all attacks of one group below at once (the attacks are those
of `tests/helpers/hostile.py`). This is repeated with trust in listed teachers, with trust in all, with mutual TLS
(the client with a certificate of the mesh, of another authority, and with none), and through a gateway. Each runs
as its own process in a separate network namespace. The client has low CPU priority, since it stands for another
machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from mesh_answers import carrier
from nodes import Namespace, environment, namespace, runs, start, taught_homes

from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.errors import AgentError
from skillmesh.evaluation.provenance import provenance
from skillmesh.mesh.calling import call
from skillmesh.mesh.certs import create_ca, issue
from skillmesh.store.home import create_home

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests" / "helpers"
TEACHERS = 6
"""Number of teachers, with two modules each."""
GROUPS = {
    "lies in lists": [
        "endless-digest",
        "million-ids",
        "strange-name",
        "no-json",
        "false-same",
        "bad-signature",
        "forged-teacher",
        "forged-withdrawal",
        "unasked-notices",
    ],
    "lies in files": [
        "wrong-bytes",
        "oversize-pieces",
        "short-pieces",
        "contradiction",
        "other-leaves",
        "anothers-file",
        "other-backbone",
    ],
    "other names": ["replay", "impostor", "obituaries"],
    "keeping waiting": ["silent", "trickle", "withhold"],
    "ghosts": ["ghosts"],
    "ghosts with keys": ["sybils", "late-sybils", "empty-handed-sybils"],
    "lying ghosts": ["lying-sybils"],
    "teachers without modules": ["sybil-teachers"],
    "floods": [
        "flood",
        "flood-of-teachers",
        "flood-of-withdrawals",
        "flood-of-hellos",
        "flood-of-questions",
        "reserve",
    ],
    "noise": ["noise", "giant-replies", "inside-questions"],
    "harmful modules": ["swallow-everything", "swallow-head", "huge-scatter", "huge-count", "far-probes"],
}
OUTSIDE = "at the door"
"""The group of attacks without a link: failing TLS handshakes, half-open connections, junk."""
PORT = 7447
LEAD = 1.0
"""Seconds between the appearance of the client and that of the newcomer."""
LIMIT = 30.0
"""Seconds after which a newcomer counts as failed."""


@dataclass
class Setting:
    """How the nodes of one row are linked, and what the client has."""

    name: str
    trust: str = "open"
    tls: bool = False
    gateway: bool = False
    groups: list[str] = field(default_factory=lambda: list(GROUPS))
    certificate: str = "ours"
    """Authority of the client's certificate: ours, foreign, or none."""


SETTINGS = [
    Setting("plain", trust="listed"),
    Setting("open trust"),
    Setting("TLS, valid certificate", tls=True),
    Setting("TLS, certificate of another CA", tls=True, groups=[OUTSIDE], certificate="foreign"),
    Setting("TLS, no certificate", tls=True, groups=[OUTSIDE], certificate="none"),
    Setting("gateway", gateway=True),
]


class Bench:
    """One set-up: a carrier that runs through all cells, and what links the others to it."""

    def __init__(self, work: Path, homes: list[Path], setting: Setting, net: Namespace) -> None:
        self.work, self.setting, self.net = work, setting, net
        self.folder = work / "hostile" / setting.name.replace(" ", "-").replace(",", "")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.teachers = {Core(home).identity.public_key for home in homes}
        self.modules = sum(len(Core(home).bank) for home in homes)
        self.loot = self.folder / "loot"
        for authority in ("ours", "foreign") if setting.tls else ():
            create_ca(self.folder / authority)
        self.giver = self._linked(carrier(homes, self.folder / "carrier"), listens=True)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.gateway: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def running(self, image: Path) -> Iterator[Bench]:
        try:
            if self.setting.gateway:
                command = [sys.executable, "-m", "skillmesh", "gateway", "--listen", f"127.0.0.1:{PORT}"]
                self.gateway = self._run(command, self.folder / "gateway.log")
            self.node = start(self.giver, self.net).process
            self.processes.append(self.node)
            wait(lambda: runs(self.giver), "the carrier runs")
            call(self.giver, "ask", timeout=120, images=[str(image)])  # loads the backbone
            yield self
        finally:
            for process in self.processes:
                end(process)

    def cell(self, group: str | None, image: Path, seed: int) -> dict[str, Any]:
        """Start a newcomer next to the client and measure the cost; without a group, no client runs."""
        create_home(self.folder / "late", name="late")
        late = self._linked(self.folder / "late")
        attackers = self._attack(group, seed) if group else []
        watched = {"carrier": self.node} | ({"gateway": self.gateway} if self.gateway else {})
        base = {name: Usage.of(process.pid) for name, process in watched.items()}
        disk = used(self.giver)
        for process in watched.values():
            forget_peak(process.pid)
        asker = Asker(self.giver, image)
        asker.start()
        node = start(late, self.net).process
        try:
            wait(lambda: runs(late), "the newcomer runs")
            forget_peak(node.pid)
            newcomer, began = Usage.of(node.pid), time.monotonic()
            done = soon(lambda: self._has_all(late), LIMIT)
            seconds = time.monotonic() - began
            time.sleep(1.0)
            asker.enough.set()
            asker.join(30)
            watched["newcomer"], base["newcomer"] = node, newcomer
            now = {name: Usage.of(process.pid) for name, process in watched.items()}
            foreign = self._foreign(late) + self._foreign(self.giver)
        finally:
            end(node)
            for process in attackers:
                end(process)
        dead = [process.args for process in attackers if process.returncode not in (-signal.SIGKILL, None)]
        shutil.rmtree(late)
        return {
            "setting": self.setting.name,
            "group": group,
            "all_came": done,
            "seconds": round(seconds, 2),
            "ask_median_ms": asker.median_ms,
            "ask_slowest_ms": asker.slowest_ms,
            "ask_failed": asker.failed,
            "peak_over_base_mb": {name: round(now[name].peak - base[name].memory, 1) for name in now},
            "threads_over_base": {name: now[name].threads - base[name].threads for name in now},
            "descriptors_over_base": {name: now[name].descriptors - base[name].descriptors for name in now},
            "disk_mb": round((used(self.giver) - disk) / 1e6, 1),
            "adopted_wrongly": sorted(foreign),
            "attackers_ended": len(dead),
        }

    def _linked(self, home: Path, listens: bool = False, certificate: str = "ours") -> Path:
        """Write the settings with which a home finds the others."""
        place, chosen = f"127.0.0.1:{PORT}", dict[str, Any]()
        if self.setting.gateway:
            chosen = {"network": "client", "connect": [place]}
        elif self.setting.tls:
            chosen = {"network": "fixed", "listen": ["127.0.0.1:0"], "connect": [place]}
            if listens:
                chosen = {"network": "fixed", "listen": [place]}
            if certificate != "none":
                key = Core(home).identity.public_key
                chosen["tls"] = issue(self.folder / certificate, key, home.name, home / "tls").model_dump()
        MeshSettings.of({"trust": self.setting.trust, "sync_seconds": 2.0, **chosen}).save(home)
        agent = Core(home)
        if self.setting.trust == "listed":
            for key in self.teachers:
                agent.ledger.trust(key)
        agent.ledger.close()
        return home

    def _attack(self, group: str, seed: int) -> list[subprocess.Popen[bytes]]:
        """Start the client: one or two processes that run all attacks of a group."""
        kinds = ["knock", "ghosts", "noise"] if group == OUTSIDE else GROUPS[group]
        homes = []
        for kind in kinds:
            home = self.folder / "evil" / kind
            shutil.rmtree(home, ignore_errors=True)
            create_home(home, name=f"evil {kind}")
            homes.append(self._linked(home, certificate=self.setting.certificate))
        command = ["nice", "-n", "15", sys.executable, str(Path(__file__))]
        command += ["--attack", ",".join(kinds), "--seed", str(seed)]
        command += ["--homes", str(self.folder / "evil"), "--loot", str(self.loot)]
        process = self._run(command, self.folder / f"{group.replace(' ', '-')}.log")
        ready = self.folder / "evil" / "ready"
        wait(lambda: ready.exists() or process.poll() is not None, "the client runs")
        ready.unlink(missing_ok=True)
        time.sleep(LEAD)
        return [process]

    def _run(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*self.net.prefix, *command], stdout=file, stderr=file, env=environment() | {"PYTHONPATH": paths()}
            )
        self.processes.append(process)
        return process

    def _has_all(self, home: Path) -> bool:
        return sum(path.suffix == ".skill" for path in (home / "bank").iterdir()) >= self.modules and (
            sum(module.card.teacher_key in self.teachers for module in Core(home).bank) == self.modules
        )

    def _foreign(self, home: Path) -> list[str]:
        """Return the tasks in a bank that no honest teacher taught."""
        return [m.card.task for m in Core(home).bank if m.card.teacher_key not in self.teachers]


def paths() -> str:
    here = [str(HERE), str(TESTS)]
    return os.pathsep.join([*here, *filter(None, [os.environ.get("PYTHONPATH")])])


def wait(what: Callable[[], Any], why: str) -> None:
    if not soon(what, 60):
        sys.exit(f"timed out after a minute: {why}")


def soon(what: Callable[[], Any], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait(30)


def used(home: Path) -> int:
    """Return the bytes on disk of a home."""
    total = 0
    for path in home.rglob("*"):
        with contextlib.suppress(OSError):  # deleted meanwhile
            total += path.lstat().st_blocks * 512
    return total


def forget_peak(pid: int) -> None:
    """Reset the peak of a process's memory."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


@dataclass
class Usage:
    """Resources of a process: current and peak memory in MB, threads, descriptors."""

    memory: float
    peak: float
    threads: int
    descriptors: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        memory, peak = (int(lines[name].split()[0]) / 1000 for name in ("VmRSS", "VmHWM"))
        return cls(memory, peak, int(lines["Threads"]), len(list(Path(f"/proc/{pid}/fd").iterdir())))


class Asker(threading.Thread):
    """Asks about an image repeatedly and records the time of each answer."""

    def __init__(self, home: Path, image: Path) -> None:
        super().__init__(daemon=True)
        self._home, self._image = home, image
        self.seconds: list[float] = []
        self.failed = 0
        self.enough = threading.Event()

    def run(self) -> None:
        while not self.enough.wait(0.1):
            began = time.monotonic()
            try:
                call(self._home, "ask", images=[str(self._image)])
                self.seconds.append(time.monotonic() - began)
            except AgentError:
                self.failed += 1

    @property
    def median_ms(self) -> float:
        return round(1000 * median(self.seconds), 1) if self.seconds else -1.0

    @property
    def slowest_ms(self) -> float:
        return round(1000 * max(self.seconds), 1) if self.seconds else -1.0


# The client, in its own process.


def attack(kinds: list[str], homes: Path, loot: Path, seed: int) -> None:
    """Run all of these attacks at once, until killed."""
    random.seed(seed)
    for kind in kinds:
        home = homes / kind
        do = partial(knock, home) if kind == "knock" else partial(_begin, kind, home, loot)
        threading.Thread(target=do, name=kind, daemon=True).start()
        time.sleep(0.05)
    time.sleep(1.0)
    (homes / "ready").touch()
    time.sleep(10**6)


def _begin(kind: str, home: Path, loot: Path) -> None:
    from hostile import ATTACKS, Attacker

    ATTACKS[kind](Attacker(home, loot))


def knock(home: Path) -> None:
    """Connect to a TLS port: with no or a foreign certificate, with junk, and silently."""
    tls = MeshSettings.load(home).tls
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if tls is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    open_lines: list[socket.socket] = []
    while True:
        with contextlib.suppress(OSError):
            line = socket.create_connection(("127.0.0.1", PORT), timeout=1)
            open_lines.append(line)
            way = random.choice(["handshake", "junk", "half", "nothing"])
            if way == "handshake":
                secured = context.wrap_socket(line)
                open_lines.append(secured)
                secured.sendall(os.urandom(60_000))
            elif way == "junk":
                line.sendall(os.urandom(60_000))
            elif way == "half":
                line.sendall(b"\x16\x03\x01\x40\x00")
        while len(open_lines) > 200:
            with contextlib.suppress(OSError):
                open_lines.pop(0).close()
        time.sleep(0.005)


# Results.


def measure(work: Path, seed: int, only: list[str], groups: list[str]) -> Iterator[dict[str, Any]]:
    from hostile import steal

    homes = taught_homes(work, TEACHERS)
    image = next((work / "tasks").rglob("*.jpg"))
    for setting in SETTINGS:
        if only and not any(setting.name.startswith(name) for name in only):
            continue
        with namespace() as net:
            bench = Bench(work, homes, setting, net)
            for home in homes:
                steal(home, bench.loot)
            with bench.running(image):
                alone = sorted((bench.cell(None, image, seed) for _ in range(3)), key=lambda c: c["seconds"])[1]
                for group in [None, *(g for g in setting.groups if not groups or g in groups or g == OUTSIDE)]:
                    cell = alone if group is None else bench.cell(group, image, seed)
                    yield cell | {"alone_seconds": alone["seconds"], "ratio": ratio(cell, alone)}


def ratio(cell: dict[str, Any], alone: dict[str, Any]) -> float:
    return round(cell["seconds"] / max(alone["seconds"], 0.1), 2)


def line(cell: dict[str, Any]) -> str:
    peak = max(cell["peak_over_base_mb"].values())
    came = f"{cell['seconds']:6.1f} s ({cell['ratio']:5.1f} ×)" if cell["all_came"] else "    never       "
    return (
        f"{cell['setting']:<31}{cell['group'] or 'no client':<26}{came}  ask {cell['ask_median_ms']:5.0f} ms, "
        f"slowest {cell['ask_slowest_ms']:6.0f}  +{peak:4.0f} MB  "
        f"+{max(cell['threads_over_base'].values()):3d} threads  "
        f"+{max(cell['descriptors_over_base'].values()):3d} descriptors  "
        f"+{cell['disk_mb']:4.1f} MB disk  wrong: {len(cell['adopted_wrongly'])}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=None, help="write the figures to this file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="only settings whose names begin with one of these")
    parser.add_argument(
        "--groups", nargs="*", default=[], choices=list(GROUPS), help="only these groups of attacks"
    )
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "skillmesh-bench")
    for name in ("--attack", "--homes", "--loot"):
        parser.add_argument(name, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        attack(options.attack.split(","), Path(options.homes), Path(options.loot), options.seed)
        return
    sys.path.append(str(TESTS))
    began = time.monotonic()
    origin = provenance("python benchmarks/hostile_client.py", [], options.seed)
    cells = []
    for cell in measure(options.work, options.seed, options.only, options.groups):
        cells.append(cell)
        print(line(cell), flush=True)
        if options.json:
            report = {"groups": GROUPS, "modules": 2 * TEACHERS, "cells": cells, "provenance": origin}
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{time.monotonic() - began:.0f} s in all")
    wrong = [cell for cell in cells if cell["adopted_wrongly"] or not cell["all_came"]]
    sys.exit(f"{len(wrong)} cells went wrong" if wrong else 0)


if __name__ == "__main__":
    main()
