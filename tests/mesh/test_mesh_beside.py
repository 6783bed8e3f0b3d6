"""Commands beside a running node: it picks up their changes within seconds, and nothing is corrupted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from meshes import SKILLMESH, Mesh, Node, environment, eventually, files_of

from skillmesh.core import Core
from skillmesh.mesh.calling import call
from skillmesh.mesh.shelf import Shelf
from skillmesh.module import Card, Module
from skillmesh.module.notice import Slot
from skillmesh.store.bank import Bank

pytestmark = pytest.mark.long

Command = Callable[..., Any]
ROUNDS = 5.0
"""Seconds for several exchanges, which are up to two seconds apart."""


class Crew:
    """Two teachers, and a student that trusts just these two."""

    def __init__(self, mesh: Mesh) -> None:
        self.first, self.second = mesh.node(0), mesh.node(1)
        self.student = mesh.node(name="student", trust="listed")
        self.keys = [Core(node.home).identity.public_key for node in (self.first, self.second)]
        for name, key in zip(("teacher0", "teacher1"), self.keys, strict=True):
            Core(self.student.home).ledger.trust(key, name)
        self.all = (self.first, self.second, self.student)
        for node in self.all:
            node.start(wait=False)
        for node in self.all:
            eventually(node.runs)
        eventually(lambda: mesh.converged(self.all, tasks=4))

    def own_task(self, node: Node) -> str:
        """A task that this node has taught."""
        agent = Core(node.home)
        return min(m.card.task for m in agent.bank if m.card.teacher_key == agent.identity.public_key)


@pytest.fixture(scope="module")
def crew(teachers: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Started once for all tests here; each leaves them as converged as it found them."""
    mesh = Mesh(tmp_path_factory.mktemp("crew"), teachers)
    try:
        yield Crew(mesh)
    finally:
        mesh.stop()


def in_step(node: Node) -> bool:
    """Return whether the node answers with exactly the modules in its bank."""
    status = call(node.home, "status")
    return bool(status["in_use"] == len(Core(node.home).bank) and status["trouble"] is None)


# Learn, forget, remember, import, export, withdraw.


def test_a_task_learned_beside_a_node_reaches_all_agents_and_is_withdrawn_everywhere(
    crew: Crew, command: Command, tiny_tasks: Path
) -> None:
    words = ("learn", tiny_tasks / "snowflakes", "--name", "beside", "--home", crew.first.home, "--json")
    learned = command(*words).json
    began = time.monotonic()
    eventually(lambda: all("beside" in node.live() for node in crew.all))
    print(f"at everyone {time.monotonic() - began:.1f} s after it was learned")
    again = command(*words, "--replace").json
    assert (learned["version"], again["version"]) == (1, 2)
    eventually(lambda: all(Core(node.home).bank.get(again["id"]) for node in crew.all))
    assert all(Core(node.home).bank.get(learned["id"]) is None for node in crew.all)
    assert command("withdraw", "beside", "--home", crew.first.home).code == 0
    eventually(lambda: all("beside" not in node.live() for node in crew.all))
    assert command(*words).json["version"] == 3, "after a withdrawal versions count on"
    eventually(lambda: all("beside" in node.live() and in_step(node) for node in crew.all))
    command("withdraw", "beside", "--home", crew.first.home)
    eventually(lambda: all("beside" not in node.live() for node in crew.all))


def test_a_forgotten_task_is_forgotten_by_this_agent_only_until_it_is_remembered(
    crew: Crew, command: Command
) -> None:
    task = crew.own_task(crew.first)
    before = files_of(crew.student.home)
    assert command("forget", task, "--home", crew.student.home).code == 0
    time.sleep(ROUNDS)
    assert task not in crew.student.live()
    assert in_step(crew.student)
    assert task in crew.first.live() & crew.second.live()
    declined = {item["task"]: item["reason"] for item in call(crew.student.home, "status")["declined"]}
    assert declined.keys() == {task}
    assert "remember" in declined[task]
    assert command("remember", task, "--home", crew.student.home).code == 0
    eventually(lambda: files_of(crew.student.home) == before)
    eventually(lambda: in_step(crew.student))


def test_import_export_and_tasks_work_beside_a_node(
    crew: Crew, command: Command, skill_files: dict[str, Path], tmp_path: Path
) -> None:
    home = crew.student.home
    assert command("import", skill_files["dice"], "--home", home).code == 0
    eventually(lambda: in_step(crew.student))
    found = {(t["task"], t["claimed_name"]) for t in command("tasks", "--home", home, "--json").json["tasks"]}
    assert ("dice", "tina") in found
    assert call(home, "status")["in_use"] == len(found)
    assert command("export", "dice@tina", tmp_path / "dice.skill", "--home", home).code == 0
    assert (tmp_path / "dice.skill").read_bytes() == skill_files["dice"].read_bytes()
    assert command("forget", "dice@tina", "--home", home).code == 0
    eventually(lambda: in_step(crew.student))
    assert len(found) - 1 == len(crew.student.live())


def damage(path: Path, member: str) -> None:
    """Change a byte in the middle of one file inside a zip."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(member)
    data = bytearray(path.read_bytes())
    data[info.header_offset + 30 + len(member) + info.compress_size // 2] ^= 255
    path.write_bytes(data)


def resident(status: Path) -> int:
    """Return the resident memory of a process, in kilobytes."""
    return int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1])


def test_answers_through_a_node_and_beside_it_are_the_same(
    crew: Crew, command: Command, demo_tasks: Path, tmp_path: Path
) -> None:
    images = sorted((demo_tasks / "greek" / "test").glob("*/0.jpg"))
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff broken")
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.write(images[0], "inside/first.jpg")
    mixed = (tmp_path / "photos.zip", tmp_path / "broken.jpg", images[1])
    for how in ((), ("--device", "cpu")):
        said = command("ask", *mixed, "--home", crew.student.home, "--json", *how)
        assert said.code == 1
        assert [a["image"] for a in said.json["answers"]] == [f"{mixed[0]}/inside/first.jpg", str(images[1])]
        assert [bad["file"] for bad in said.json["unreadable"]] == [str(mixed[1])]
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as archive:
        for number in range(70):  # more than one request may have
            archive.write(images[number % len(images)], f"{number:02}.jpg")
    damage(tmp_path / "many.zip", "66.jpg")
    said = command("ask", tmp_path / "many.zip", "--home", crew.student.home, "--json").json
    assert len(said["answers"]) == 69
    assert [bad["file"] for bad in said["unreadable"]] == [f"{tmp_path / 'many.zip'}/66.jpg"]
    assert "cannot be unpacked" in said["unreadable"][0]["reason"]
    # Endless files and pipes without a writer are refused by the reading process.
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "endless.png").symlink_to("/dev/zero")
    with (tmp_path / "sparse.png").open("wb") as sparse:
        sparse.truncate(200 * 10**9)
    hostile = [tmp_path / name for name in ("pipe.png", "endless.png", "sparse.png")]
    status = Path(f"/proc/{crew.student.process.pid}/status")
    before = resident(status)
    said = command("ask", *hostile, images[0], "--home", crew.student.home, "--json")
    assert [bad["file"] for bad in said.json["unreadable"]] == list(map(str, hostile))
    assert len(said.json["answers"]) == 1
    assert resident(status) < before + 100_000
    through = command("ask", *images, "--home", crew.student.home, "--json")
    beside = command("ask", *images, "--home", crew.student.home, "--json", "--device", "cpu")
    assert through.code == 0
    assert through.out == beside.out
    assert len(through.json["answers"]) == len(images)
    # From now on the node has a mapper, which must follow what commands do to the bank.
    task = through.json["answers"][0]["guesses"][0]["task"]
    command("forget", task, "--home", crew.student.home)
    eventually(lambda: in_step(crew.student))
    without = command("ask", *images, "--home", crew.student.home, "--json").json["answers"]
    assert task not in {guess["task"] for answer in without for guess in answer["guesses"]}
    command("remember", task, "--home", crew.student.home)
    eventually(lambda: task in crew.student.live() and in_step(crew.student))
    assert command("ask", *images, "--home", crew.student.home, "--json").out == through.out


# Trust, quarantine, bans.


def test_an_image_given_twice_or_through_links_is_answered_each_time(
    crew: Crew, command: Command, demo_tasks: Path, tmp_path: Path
) -> None:
    image = min((demo_tasks / "greek" / "test").glob("*/0.jpg"))
    links = [tmp_path / "one.jpg", tmp_path / "two.jpg"]
    for link in links:
        link.symlink_to(image)
    given = [image, image, *links]
    answers = command("ask", *given, "--home", crew.student.home, "--json").json["answers"]
    assert [answer["image"] for answer in answers] == [str(path) for path in given]
    assert len({answer["label"] for answer in answers}) == 1


def test_trust_can_be_removed_and_restored_while_the_node_runs(crew: Crew, command: Command) -> None:
    home, key = crew.student.home, crew.keys[0]
    before = files_of(home)
    taught = {m.card.task for m in Core(home).bank if m.card.teacher_key == key}
    assert command("trust", "remove", key, "--home", home).code == 0
    assert not taught & crew.student.live()
    assert {held["task"] for held in crew.student.status()["held"]} == taught
    time.sleep(ROUNDS)
    assert not taught & crew.student.live(), "they do not come back by themselves"
    assert in_step(crew.student)
    assert {notice["task"] for notice in crew.student.status()["seen"]} == taught
    assert command("trust", "add", key, "--home", home).code == 0
    eventually(lambda: files_of(home) == before)
    eventually(lambda: in_step(crew.student) and crew.student.status()["held"] == [])
    assert crew.student.status()["root"] == crew.first.status()["root"]


def test_held_modules_can_be_released_or_dropped_while_the_node_runs(crew: Crew, command: Command) -> None:
    home = crew.student.home
    before = files_of(home)
    agent = Core(home)
    tasks = [crew.own_task(crew.first), crew.own_task(crew.second)]
    for task in tasks:
        module = agent.bank.find(task)
        Shelf(home, agent.ledger).hold(module.id, agent.bank.file_of(module), "a test holds it")
        agent.bank.remove(module)
    listed = command("quarantine", "list", "--home", home, "--json").json["held"]
    assert {held["task"] for held in listed} == set(tasks)
    assert command("quarantine", "release", tasks[0], "--home", home).code == 0
    assert command("quarantine", "drop", tasks[1], "--home", home).code == 0
    time.sleep(ROUNDS)
    assert tasks[0] in crew.student.live()
    assert tasks[1] not in crew.student.live()
    assert in_step(crew.student)
    assert "dropped by the user" in crew.student.status()["refused"][0]["reason"]
    agent = Core(home)
    for module_id, chosen in agent.ledger.view().choices.items():  # as it was before
        agent.ledger.unchoose(module_id, chosen.choice)
    eventually(lambda: files_of(home) == before)


def test_a_ban_can_be_lifted_while_the_node_runs(crew: Crew, command: Command, tiny_tasks: Path) -> None:
    home = crew.student.home
    ledger = Core(home).ledger
    for key in crew.keys:
        ledger.ban(key, "a test bans it")
    words = ("learn", tiny_tasks / "snowflakes", "--name", "banned", "--home", crew.first.home)
    assert command(*words).code == 0
    eventually(lambda: "banned" in crew.second.live())
    time.sleep(ROUNDS)
    assert "banned" not in crew.student.live()
    found = command("peers", "--home", home, "--json").json["peers"]
    assert {peer["agent"]: peer["banned"] for peer in found} == dict.fromkeys(crew.keys, "a test bans it")
    for key in crew.keys:
        assert command("peers", "--unban", key, "--home", home).code == 0
    eventually(lambda: "banned" in crew.student.live())
    command("withdraw", "banned", "--home", crew.first.home)
    eventually(lambda: all("banned" not in node.live() for node in crew.all))


# One clear owner.


def test_sync_once_works_with_and_without_a_running_node(mesh: Mesh) -> None:
    teacher, student = mesh.serve(0), mesh.node(name="student").start()
    through = student.run("sync", "--once", "--json")
    assert through.returncode == 0, through.stderr
    assert json.loads(through.stdout)["pid"] == (student.process and student.process.pid)
    assert student.live() == teacher.live()
    student.stop()
    agent = Core(student.home)
    task = min(student.live())
    agent.ledger.remember(Slot(agent.bank.find(task).card.teacher_key, agent.forget(task).card.task))
    alone = student.run("sync", "--once", "--json")
    assert alone.returncode == 0, alone.stderr
    assert json.loads(alone.stdout)["gained"] == 1
    assert files_of(student.home) == files_of(teacher.home)


def test_sync_once_does_not_wait_for_modules_that_no_agent_has(mesh: Mesh) -> None:
    """A teacher forgets a task of its own: all agents know of it, and none can send it."""
    teacher = mesh.node(0)
    gone = Core(teacher.home).forget(min(m.card.task for m in Core(teacher.home).bank)).card.task
    teacher.start()
    student = mesh.node(name="student")
    caught_up = student.run("sync", "--once", "--json")
    assert caught_up.returncode == 0, caught_up.stderr
    found = json.loads(caught_up.stdout)
    assert found["settled"]
    assert found["gained"] == 1
    assert gone not in {module.card.task for module in Core(student.home).bank}


@pytest.mark.slow
def test_a_node_that_learns_answers_from_it(
    mesh: Mesh, tiny_tasks: Path, demo_tasks: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Learning runs in the node's own process, while a mapper already in use answers."""
    monkeypatch.setenv("SKILLMESH_CACHE", str(tmp_path / "cache"))  # so that the second task takes a while
    image = str(next((demo_tasks / "shapes" / "test").glob("*/0.jpg")))
    listener = mesh.node(name="listener").start()
    node = mesh.node(2)
    node.options = ("--learn", str(tiny_tasks / "dice"), "--learn", str(demo_tasks / "shapes"))
    node.start()
    eventually(lambda: "dice" in node.live())
    early = call(node.home, "ask", timeout=None, images=[image])["answers"][0]
    assert "shapes" not in {guess["task"] for guess in early["guesses"]}, "it should not know it yet"
    eventually(lambda: {"dice", "shapes"} <= node.live() & listener.live())
    eventually(lambda: in_step(node), why="it answers from all that lies in its bank")
    late = call(node.home, "ask", timeout=None, images=[image])["answers"][0]
    assert late["guesses"][0]["task"] == "shapes"


def test_all_agents_keep_the_same_of_two_modules_with_one_version(mesh: Mesh) -> None:
    """Two commands that learn one task at once make the same version twice; all agents keep the same one."""
    teacher, student = mesh.serve(0), mesh.node(name="student").start()
    eventually(lambda: mesh.converged(tasks=2))
    agent = Core(teacher.home)
    template = next(iter(agent.bank))
    made = [twin(template.card, {"task": "twins", "note": note}, template, agent) for note in ("one", "other")]
    for _, data in sorted(made, key=lambda pair: pair[0].id):
        agent.import_bytes(data)
        eventually(lambda: student.live() >= {"twins"})
        time.sleep(ROUNDS / 2)
    last = max(module.id for module, _ in made)
    assert Core(teacher.home).bank.find("twins").id == last
    eventually(lambda: Core(student.home).bank.find("twins").id == last, why="the student has the one that stays")
    eventually(lambda: mesh.converged(tasks=3))


def twin(card: Card, changes: dict[str, Any], module: Module, agent: Core) -> tuple[Module, bytes]:
    return Module.create(card.model_copy(update=changes), module.tensors, agent.identity)


@pytest.mark.slow
def test_many_concurrent_commands_leave_the_bank_intact(
    mesh: Mesh, tiny_tasks: Path, skill_files: dict[str, Path]
) -> None:
    """Ten processes at once, beside a node that receives: each does its work or says why not."""
    mesh.serve(0)
    node = mesh.node(1).start()
    eventually(lambda: mesh.converged(tasks=4))
    received = sorted(m.card.task for m in Core(node.home).bank if m.card.teacher == "teacher0")
    commands = [
        ("learn", tiny_tasks / "snowflakes", "--name", "one"),
        ("learn", tiny_tasks / "snowflakes", "--name", "one"),
        ("learn", tiny_tasks / "snowflakes", "--name", "two"),
        ("import", skill_files["dice"]),
        ("import", skill_files["dice"], skill_files["latin"]),
        ("import", skill_files["greek"]),
        ("forget", f"{received[0]}@teacher0"),
        ("forget", f"{received[0]}@teacher0"),
        ("forget", f"{received[1]}@teacher0"),
        ("tasks", "--json"),
    ]
    running = [
        subprocess.Popen(
            [*SKILLMESH, *map(str, words), "--home", str(node.home)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for words in commands
    ]
    ended = [(*process.communicate(timeout=180), process.returncode) for process in running]
    for (_, errors, code), words in zip(ended, commands, strict=True):
        assert code in (0, 1), (words, errors)
        assert code == 0 or len(errors.strip().splitlines()) >= 1, words
        assert "Traceback" not in errors, (words, errors)
    assert [code for *_, code in ended[2:6]] == [0] * 4
    assert 0 in {ended[0][2], ended[1][2]}
    assert 0 in {ended[6][2], ended[7][2]}
    eventually(lambda: in_step(node))
    files_of(node.home)
    tina = {(m.card.task, m.card.teacher) for m in Core(node.home).bank if m.card.teacher == "tina"}
    assert tina == {("dice", "tina"), ("latin", "tina"), ("greek", "tina")}
    assert not [m for m in Core(node.home).bank if m.card.teacher == "teacher0"]
    assert {"one", "two"} <= node.live()
    other = mesh.nodes[0]
    eventually(lambda: {"one", "two"} <= other.live())
    own = {m.id for m in Core(node.home).bank if m.card.teacher == "teacher1"}
    eventually(lambda: {m.id for m in Core(other.home).bank if m.card.teacher == "teacher1"} == own)
    sound = Bank(node.home / "bank", Core(node.home).bank.backbone)
    assert sound.damaged == []
