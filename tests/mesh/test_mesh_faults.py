"""Real faults of nodes: killed, interrupted, out of disk space, a day ahead or behind. All recover."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from meshes import SKILLMESH, Mesh, Node, environment, eventually, files_of, namespaces, skillmesh

from skillmesh.common.config import MeshSettings
from skillmesh.core import Core, slot_of
from skillmesh.mesh.calling import FILE as SOCKET
from skillmesh.mesh.calling import call
from skillmesh.mesh.certs import create_ca, issue
from skillmesh.mesh.membership import FIRST_PIECE
from skillmesh.mesh.shelf import Partial, Shelf
from skillmesh.module.notice import LEAF, Announcement, announce

pytestmark = pytest.mark.long

NewAgent = Callable[..., Core]

OVERHEAD = 60_000
"""Network bytes besides the pieces: discovery, keep-alive messages, digests, acknowledgements."""


# Shared fixtures.


@pytest.fixture(scope="session")
def large(new_agent: NewAgent, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of an agent with one large module: five drawn tasks learned as one. Tests copy it."""
    from skillmesh.data.demo import write_demo_tasks

    drawn = tmp_path_factory.mktemp("large-tasks")
    names = ("flags", "cards", "clocks", "signs", "shapes")
    write_demo_tasks(drawn, train=2, val=1, test=0, names=list(names))
    for split in ("train", "val"):
        for name in names:
            for folder in (drawn / name / split).iterdir():
                target = drawn / "atlas" / split / f"{name}-{folder.name}"
                target.parent.mkdir(parents=True, exist_ok=True)
                folder.rename(target)
    agent = new_agent("atlas")
    module, _ = agent.learn(drawn / "atlas")
    assert module.size > 8 * LEAF
    return agent.home


@pytest.fixture(scope="session")
def library(teachers: list[Path], new_agent: NewAgent) -> Path:
    """The home of an agent that holds all sixteen modules and their announcements. Tests copy it."""
    agent = new_agent("library")
    for home in teachers:
        teacher = Core(home)
        for module in teacher.bank:
            data = teacher.bank.file_of(module)
            agent.import_bytes(data)
            notice = announce(module.card, module.id, data, teacher.identity)
            agent.ledger.merge([notice], teacher.identity.public_key)
    return agent.home


def adopt_home(mesh: Mesh, home: Path, name: str, namespace: str | None = None, **settings: Any) -> Node:
    """A node on a copy of a home."""
    target = mesh.folder / name
    shutil.copytree(home, target)
    chosen = {"trust": "open", "discovery_port": mesh.port, "sync_seconds": 2.0} | settings
    MeshSettings.of(chosen).save(target)
    node = Node(target, namespace=namespace)
    mesh.nodes.append(node)
    return node


def ask(node: Node, verb: str = "status") -> Any:
    """Return the process's own status; cheaper than `Node.status`, which opens the agent too."""
    return call(node.home, verb)


def announcement_of(home: Path, task: str) -> Announcement:
    agent = Core(home)
    agent.ledger.open_trust = True
    (found,) = [notice for slot, notice in agent.ledger.view().known.items() if slot.task == task]
    assert isinstance(found, Announcement)
    return found


def received_from(node: Node, other: Node) -> int:
    key = Core(other.home).identity.public_key
    (found,) = [peer["bytes_received"] for peer in ask(node, "peers") if peer["agent"] == key]
    return int(found)


def bytes_there(node: Node, announced: Announcement) -> int:
    """Return the bytes of a module being fetched on the receiver's disk whose leaves are as announced."""
    partial = Partial(node.home / "partial", announced)
    return announced.size - sum(min(LEAF, announced.size - leaf * LEAF) for leaf in partial._missing)


# A holder is killed in the middle of a transfer.


def test_a_transfer_continues_from_another_holder_if_one_is_killed(mesh: Mesh, large: Path) -> None:
    with namespaces(3, "skfa") as switch:
        lan = {"network": "lan", "interface": "eth0"}
        teacher = adopt_home(mesh, large, "teacher", switch.hosts[0], **lan).start()
        other = mesh.node(name="other", namespace=switch.hosts[1], **lan).start()
        eventually(lambda: mesh.converged(tasks=1))
        announced = announcement_of(other.home, "atlas")
        switch.slow(0, 400)
        switch.slow(1, 4000)
        receiver = mesh.node(name="receiver", namespace=switch.hosts[2], **lan).start()
        eventually(lambda: bytes_there(receiver, announced) >= LEAF, why="the first leaves are there")
        teacher.kill()
        on_line = switch.bytes_sent(1)
        came = bytes_there(receiver, announced)
        assert came < announced.size, "it should be killed in the middle"
        assert ask(other)["bytes_sent"] <= FIRST_PIECE, "its teacher is asked first"
        eventually(lambda: receiver.live() == {"atlas"})
        status, sent = ask(receiver), ask(other)["bytes_sent"]
        from_teacher, from_other = (received_from(receiver, node) for node in (teacher, other))
        print(f"{announced.size:,} bytes: {came:,} had come at the kill, {from_teacher:,} from the teacher in all")
        print(f"then {from_other:,} from the other, which sent {sent:,}; fetched {status['bytes_fetched']:,}")
        assert from_teacher >= came, "what had come is kept"
        assert from_other >= LEAF, "the other has gone on"
        assert from_teacher + from_other == announced.size, "not a byte is taken twice"
        assert sent <= announced.size - from_teacher + FIRST_PIECE, "nor sent, beyond a piece on its way"
        assert announced.size <= status["bytes_fetched"] <= announced.size + FIRST_PIECE
        assert switch.bytes_sent(1) - on_line < sent + OVERHEAD
        assert files_of(receiver.home) == files_of(large)
        assert status["trouble"] is None
        mesh.stop()


@pytest.mark.slow
def test_a_transfer_resumes_after_holder_and_receiver_were_killed(mesh: Mesh, large: Path) -> None:
    """No other agent has the module: the transfer resumes where it stopped, however often it is interrupted."""
    with namespaces(2, "skfb") as switch:
        lan = {"network": "lan", "interface": "eth0"}
        teacher = adopt_home(mesh, large, "teacher", switch.hosts[0], **lan).start()
        receiver = mesh.node(name="receiver", namespace=switch.hosts[1], **lan)
        switch.slow(0, 400)
        receiver.start()
        eventually(lambda: ask(receiver)["wanted"], why="it has heard of the module")
        announced = announcement_of(receiver.home, "atlas")
        eventually(lambda: bytes_there(receiver, announced) >= LEAF, why="the first leaves are there")
        teacher.kill()
        eventually(lambda: ask(receiver)["peers"] == 0 and not ask(receiver)["fetching"])
        first = bytes_there(receiver, announced)
        assert first >= LEAF, "what had come is kept"
        assert ask(receiver)["wanted"] == 1
        receiver.kill()
        assert bytes_there(receiver, announced) == first < announced.size
        receiver.start()
        assert bytes_there(receiver, announced) == first
        on_line = switch.bytes_sent(0)
        teacher.start()
        eventually(lambda: receiver.live() == {"atlas"})
        fetched = ask(receiver)["bytes_fetched"]
        print(f"size {announced.size:,}; {first:,} had come; {fetched:,} after the restart")
        assert fetched <= announced.size - first, "what had come is not fetched again"
        assert ask(teacher)["bytes_sent"] <= announced.size - first
        assert switch.bytes_sent(0) - on_line < announced.size - first + OVERHEAD
        assert files_of(receiver.home) == files_of(large)
        mesh.stop()


# The receiver is killed anywhere.


def test_a_receiver_killed_at_random_points_converges(mesh: Mesh, library: Path) -> None:
    kill_and_converge(mesh, library, times=6, kilobits=6000)


@pytest.mark.slow
def test_a_receiver_killed_fifty_times_at_random_points_converges(mesh: Mesh, library: Path) -> None:
    kill_and_converge(mesh, library, times=50, kilobits=2000)


def kill_and_converge(mesh: Mesh, library: Path, times: int, kilobits: int) -> None:
    wanted = files_of(library)
    rng = random.Random(times)
    with namespaces(2, "skfc") as switch:
        lan = {"network": "lan", "interface": "eth0"}
        adopt_home(mesh, library, "library", switch.hosts[0], **lan).start()
        switch.slow(0, kilobits)
        receiver = mesh.node(name="receiver", namespace=switch.hosts[1], **lan)
        began = time.monotonic()
        receiver.start()
        eventually(lambda: len(receiver.live()) == 16)
        longest = time.monotonic() - began
        receiver.kill()
        middle = 0
        for kill in range(times):
            if len(files_of(receiver.home)) > 12:
                take_away(receiver, rng.sample(sorted(receiver.live()), 12))
            before = on_their_way(receiver)
            receiver.start(wait=False)
            if kill % 3 == 0:  # at the latest when files are being fetched, which a random moment may miss
                eventually(partial(moves_on, receiver, before), every=0.005)
            else:
                time.sleep(rng.uniform(0, longest))
            receiver.kill()
            found = files_of(receiver.home)
            assert found.items() <= wanted.items()
            middle += len(on_their_way(receiver)) > 0
            sound(receiver.home / "ledger.sqlite")
        print(f"{times} kills within {longest:.1f} s of a start each, {middle} with files on their way")
        assert middle >= times // 6, "some kills should come in the middle of something"
        receiver.start()
        eventually(lambda: files_of(receiver.home) == wanted)
        eventually(lambda: mesh.converged(tasks=16))
        eventually(lambda: not on_their_way(receiver))
        status = receiver.status()
        assert (status["trouble"], status["held"], status["refused"], status["bans"]) == (None, [], [], [])
        mesh.stop()


def on_their_way(node: Node) -> dict[str, int]:
    """Return when the files of partly fetched modules were last written."""
    folder, found = node.home / "partial", {}
    for path in folder.iterdir() if folder.exists() else ():
        with contextlib.suppress(FileNotFoundError):  # it has just arrived
            found[path.name] = path.stat().st_mtime_ns
    return found


def moves_on(node: Node, before: dict[str, int]) -> bool:
    return on_their_way(node) not in (before, {})


def take_away(node: Node, tasks: Sequence[str]) -> None:
    """Let an agent forget and remember tasks, so that there is something to fetch."""
    agent = Core(node.home)
    for task in tasks:
        agent.ledger.remember(slot_of(agent.forget(task)))


def sound(ledger: Path) -> None:
    with sqlite3.connect(ledger) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()


# The disk is full.


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A separate file system with little space."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, leave: int) -> Path:
    """Fill the file system up to this many free bytes."""
    room = os.statvfs(folder)
    ballast = folder / "ballast"
    with ballast.open("ab") as file:
        file.write(b"\0" * max(room.f_bavail * room.f_frsize - leave, 0))
    return ballast


def test_a_full_disk_is_reported_and_fetching_resumes_when_there_is_space(mesh: Mesh, library: Path) -> None:
    with small_disk(mesh.folder / "disk", "8m") as disk:
        receiver = mesh.node(name="disk/receiver")
        receiver.start()
        ballast = fill(disk, leave=400_000)
        hub = adopt_home(mesh, library, "library").start()
        trouble = eventually(lambda: ask(receiver)["trouble"], why="the node says that the disk is full")
        assert "No space left" in trouble or "full" in trouble
        assert "\n" not in trouble
        fill(disk, leave=0)
        some = files_of(receiver.home)
        assert some.items() < files_of(library).items()
        time.sleep(5)
        assert ask(receiver)["trouble"], "it is not over yet"
        assert receiver.runs()
        beside = skillmesh("status", "--json", "--home", receiver.home)
        assert beside.returncode == 0, beside.stderr
        assert json.loads(beside.stdout)["trouble"]
        assert files_of(receiver.home).items() >= some.items()
        ballast.unlink()
        waste = ask(receiver)["bytes_fetched"]
        eventually(lambda: files_of(receiver.home) == files_of(library), why="all comes when there is room")
        eventually(lambda: ask(receiver)["trouble"] is None)
        assert receiver.status()["refused"] == receiver.status()["held"] == receiver.status()["bans"] == []
        assert ask(hub)["trouble"] is None
        whole, fetched = sum(map(len, files_of(library).values())), ask(receiver)["bytes_fetched"]
        print(f"{len(some)} of 16 at first; fetched {waste:,} bytes while full, {fetched:,} in all for {whole:,}")
        assert fetched <= whole + FIRST_PIECE, "nothing is fetched that cannot be kept"
        mesh.stop()


def test_a_notice_missed_because_of_a_full_disk_arrives_later(mesh: Mesh) -> None:
    """A withdrawal brings no file; the node recovers all the same."""
    with small_disk(mesh.folder / "disk", "8m") as disk:
        teacher = mesh.serve(0)
        receiver = mesh.node(name="disk/receiver").start()
        eventually(lambda: mesh.converged(tasks=2))
        task = min(teacher.live())
        ballast = fill(disk, leave=0)
        Core(teacher.home).withdraw(task)
        trouble = eventually(lambda: ask(receiver)["trouble"])
        assert "full" in trouble
        assert "nothing in it was changed" in trouble
        seen = [ask(receiver)["trouble"] for _ in range(10) if not time.sleep(0.5)]
        assert all(seen), "it is said until it is over"
        ballast.unlink()
        eventually(lambda: receiver.live() == teacher.live())
        eventually(lambda: ask(receiver)["trouble"] is None, why="the trouble ends")
        mesh.stop()


@pytest.mark.slow
def test_a_node_killed_while_the_disk_is_full_can_be_restarted(mesh: Mesh, library: Path) -> None:
    with small_disk(mesh.folder / "disk", "8m") as disk:
        receiver = mesh.node(name="disk/receiver").start()
        fill(disk, leave=400_000)
        adopt_home(mesh, library, "library").start()
        eventually(lambda: ask(receiver)["trouble"])
        receiver.kill()
        ballast = fill(disk, leave=0)
        receiver.start()
        assert files_of(receiver.home).items() <= files_of(library).items()
        ballast.unlink()
        eventually(lambda: files_of(receiver.home) == files_of(library))
        eventually(lambda: ask(receiver)["trouble"] is None)
        mesh.stop()


@pytest.mark.slow
def test_modules_declined_for_the_quota_arrive_when_it_is_raised(mesh: Mesh, library: Path) -> None:
    whole = sum(map(len, files_of(library).values()))
    adopt_home(mesh, library, "library").start()
    receiver = mesh.node(name="receiver", quota_bytes=whole // 3).start()
    eventually(lambda: ask(receiver)["declined"] and not ask(receiver)["wanted"])
    status = receiver.status()
    assert status["bytes"] <= whole // 3
    assert status["live"] == 5
    assert len(status["declined"]) == 11
    assert all("quota" in declined["reason"] for declined in status["declined"])
    assert status["trouble"] is None
    assert receiver.run("config", f"quota_bytes={whole}").returncode == 0
    receiver.stop()
    receiver.start()
    eventually(lambda: files_of(receiver.home) == files_of(library))
    assert receiver.status()["declined"] == []


# The clock is wrong.


def wrong_clock(shift: str) -> list[str]:
    """A command that runs others with another time of day; the monotonic clock stays right."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        pytest.skip("libfaketime is not installed (`apt-get install faketime`)")
    return ["env", f"LD_PRELOAD={found[0]}", f"FAKETIME={shift}", "FAKETIME_DONT_FAKE_MONOTONIC=1"]


@pytest.mark.slow
def test_clocks_that_are_wrong_by_a_day_do_no_harm(mesh: Mesh, tiny_tasks: Path, tmp_path: Path) -> None:
    """One node a day behind, one a day ahead, one right; with certificates, which have dates."""
    behind, ahead = wrong_clock("-1d"), wrong_clock("+1d")
    says = subprocess.run([*behind, "date", "+%s"], capture_output=True, check=True).stdout
    assert abs(float(says) - (time.time() - 86_400)) < 100
    create_ca(tmp_path / "ca")
    nodes = [mesh.node(0), mesh.node(1), mesh.node(name="right")]
    for node, clock in zip(nodes, (behind, ahead, []), strict=True):
        agent = Core(node.home)
        files = issue(tmp_path / "ca", agent.identity.public_key, agent.name, node.home / "tls")
        MeshSettings.load(node.home).with_(tls=files).save(node.home)
        node.under = clock
        node.start()
    early, late, right = nodes
    eventually(lambda: mesh.converged(tasks=4))
    assert ask(right)["listening"][0].startswith("tls/")
    # The next version is made before the one that it replaces, by the clock.
    run = [*behind, sys.executable, "-m", "skillmesh", "learn", str(tiny_tasks / "dice"), "--home"]
    task = min(m.card.task for m in Core(early.home).bank if m.card.teacher == "teacher0")
    words = [*run, str(early.home), "--name", task, "--replace", "--json"]
    learned = subprocess.run(words, capture_output=True, check=True, env=environment())
    card = json.loads(learned.stdout)
    assert card["version"] == 2
    assert datetime.fromisoformat(card["created"]) < datetime.now(UTC) - timedelta(hours=20)
    eventually(lambda: all(card["id"] in {m.id for m in Core(node.home).bank} for node in nodes))
    assert all(len(node.live()) == 4 for node in nodes)
    # A withdrawal dated tomorrow has effect today.
    gone = min({m.card.task for m in Core(late.home).bank if m.card.teacher == "teacher1"})
    words = [*ahead, sys.executable, "-m", "skillmesh", "withdraw", gone, "--home", str(late.home)]
    subprocess.run(words, check=True, capture_output=True, env=environment())
    eventually(lambda: mesh.converged(tasks=3))
    assert all(gone not in node.live() for node in nodes)
    early.kill()
    early.under = ahead  # the clock was set, by two days
    early.start()
    eventually(lambda: mesh.converged(tasks=3) and ask(early)["peers"] == 2)


# Two nodes on one home; restarts.


def test_a_second_node_on_a_home_is_refused_and_the_first_continues(mesh: Mesh) -> None:
    first = mesh.serve(0)
    words = [*SKILLMESH, "serve", "--home", str(first.home)]
    second = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=60, check=False)
    assert second.returncode == 1
    assert second.stdout == ""
    assert len(second.stderr.splitlines()) == 1
    assert f"a node runs on {first.home} already" in second.stderr
    pid = first.process and first.process.pid
    assert ask(first)["pid"] == pid
    mesh.serve(1)
    eventually(lambda: mesh.converged(tasks=4))


def test_a_killed_node_can_be_restarted_and_has_lost_nothing(mesh: Mesh) -> None:
    teachers = [mesh.serve(index) for index in range(2)]
    keys = [Core(teacher.home).identity.public_key for teacher in teachers]
    student = mesh.node(name="student", trust="listed")
    for key, name in zip(keys, ("teacher0", "teacher1"), strict=True):
        Core(student.home).ledger.trust(key, name)
    student.start()
    eventually(lambda: len(student.live()) == 4)
    agent = Core(student.home)
    forgotten, held = sorted(student.live())[:2]
    agent.forget(forgotten)
    module = agent.bank.find(held)
    Shelf(student.home, agent.ledger).hold(module.id, agent.bank.file_of(module), "a test holds it")
    agent.bank.remove(module)
    agent.ledger.ban("0" * 64, "a test bans it")
    kept = ("root", "live", "known", "held", "forgotten", "bans", "refused", "trust", "name", "key")
    eventually(lambda: ask(student)["settled"] and ask(student)["in_use"] == 2)
    before = student.status()
    student.kill()
    assert (student.home / SOCKET).exists(), "it had no time to tidy up"
    beside = student.run("status", "--json")
    assert json.loads(beside.stdout)["running"] is False
    student.start()
    eventually(lambda: ask(student)["settled"] and ask(student)["peers"] == 2)
    time.sleep(5)  # two rounds of exchanges: removed modules do not come back
    after = student.status()
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert set(Core(student.home).ledger.view().trusted) == set(keys)
    assert ask(student)["bytes_fetched"] == 0
    student.signal(signal.SIGTERM)
    assert student.process is not None
    assert student.process.wait(30) == 0, "it stops in order"
    student.process = None
    assert not (student.home / SOCKET).exists()
