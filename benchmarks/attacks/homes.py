"""The home on which commands are killed, the commands, and the facts of a home that must never be lost."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLEETING = ("-wal", "-shm", ".lock", ".socket")
"""Suffixes of files that exist only while a process uses a home."""


@dataclass(frozen=True)
class Command:
    """A command line; `{home}`, `{out}` and `{files}` are replaced by folders, `{bob}` and `{carol}` by keys."""

    name: str
    words: tuple[str, ...]
    meets_others: bool = False
    """Whether it needs peers."""
    ends: bool = True
    """Whether it ends by itself."""
    repeatable: bool = True
    """Whether running it again gives the same result."""

    @property
    def home(self) -> str:
        return "out/new" if self.name == "init" else "home"

    def line(self, work: Path, files: Path) -> list[str]:
        keys = json.loads((files / "keys.json").read_text())
        places = {"home": work / "home", "out": work / "out", "files": files} | keys
        return [word.format(**places) for word in self.words]


def _command(name: str, line: str, repeatable: bool = True) -> Command:
    return Command(name, (*line.split(), "--home", "{home}"), repeatable=repeatable)


COMMANDS = (
    _command("learn", "learn {files}/tasks/latin"),
    _command("import", "import {files}/greek.skill {files}/dice.skill {files}/latin-2.skill"),
    _command("forget", "forget dice@alice"),
    _command("withdraw", "withdraw dice"),
    _command("learn again", "learn {files}/tasks/dice --replace", repeatable=False),
    _command("learn more", "learn {files}/tasks/more --continue dice", repeatable=False),
    _command("forget another's", "forget latin"),
    _command("compose", "compose mixed dice@alice:* latin:*"),
    _command("merge", "merge shapes@alice shapes@bob --name all-shapes"),
    _command("export", "export dice@alice {out}/dice.skill"),
    _command("export over", "export dice@alice {out}/older.skill"),
    _command("config", "config network=machine modules_per_hour=77"),
    _command("trust", "trust add {stranger} --name stranger"),
    _command("rename", "trust add {bob} --name robert"),
    _command("distrust", "trust remove carol"),
    _command("trust again", "trust add {dave}"),
    _command("release", "quarantine release dots"),
    _command("drop", "quarantine drop dots"),
    _command("remember", "remember snowflakes"),
    Command("init", ("init", "--home", "{out}/new", "--name", "zoe")),
    Command("sync", ("sync", "--seconds", "30", "--home", "{home}"), meets_others=True),
    Command("serve", ("serve", "--home", "{home}"), meets_others=True, ends=False),
)


def make_repeatable() -> None:
    """Fix the time and new keys, so that commands write the same bytes in every process."""
    import datetime

    from skillmesh.module import Identity, card

    class Frozen(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return datetime.datetime(2026, 1, 1, tzinfo=tz)

    card.datetime = Frozen  # type: ignore[attr-defined, misc]
    Identity.create = classmethod(lambda cls, name: cls(name, hashlib.sha256(name.encode()).digest()))  # type: ignore


def run_command(words: list[str]) -> int:
    """Run a command line in this process, as `skillmesh` would; returns its exit status."""
    import click

    from skillmesh.cli import app
    from skillmesh.errors import SkillmeshError

    try:
        app(words, standalone_mode=False)
    except SkillmeshError as error:
        print(f"skillmesh: {error}", file=sys.stderr)
        return 1
    except (click.exceptions.Exit, click.ClickException) as end:
        return int(getattr(end, "exit_code", 1))
    return 0


def build(files: Path) -> None:
    """Make the files and, in `start`, the initial home: alice, who knows bob, carol and dave."""
    import numpy as np

    from skillmesh.common.config import MeshSettings
    from skillmesh.core import Core
    from skillmesh.data.demo import write_demo_tasks
    from skillmesh.mesh.shelf import Shelf, distrust
    from skillmesh.store.home import create_home

    drawn = {"tasks": ("shapes", "dice", "latin", "greek", "snowflakes"), "other": ("shapes", "dice", "latin")}
    for seed, (folder, names) in enumerate(drawn.items()):
        write_demo_tasks(files / folder, train=3, val=1, test=1, names=list(names), seed=seed)
    (files / "other/dice").rename(files / "tasks/more")
    start = files / "start"
    for name in ("alice", "bob", "carol", "dave", "stranger"):
        create_home(start / "home" if name == "alice" else files / name, name=name)
    alice = Core(start / "home")
    others = {name: Core(files / name) for name in ("bob", "carol", "dave", "stranger")}
    keys = {name: agent.identity.public_key for name, agent in others.items()}
    (files / "keys.json").write_text(json.dumps(keys))
    taught = (
        ("bob", "latin", "tasks/latin", "latin"),
        ("bob", "shapes", "other/shapes", "shapes"),
        ("bob", "snowflakes", "tasks/snowflakes", "snowflakes"),
        ("bob", "latin-2", "other/latin", "latin"),
        ("carol", "letters", "tasks/greek", "letters"),
        ("dave", "dots", "tasks/dice", "dots"),
        ("stranger", "greek", "tasks/greek", "greek"),
        ("stranger", "dice", "tasks/dice", "dice"),
    )
    for name, file, images, task in taught:
        others[name].learn(files / images, name=task, replace=True)
        others[name].export(task, files / f"{file}.skill")
    for task in ("shapes", "dice"):
        alice.learn(files / "tasks" / task)
    for name in ("bob", "carol", "dave"):
        alice.ledger.trust(keys[name], name)
    for file in ("latin", "shapes", "snowflakes", "letters", "dots"):
        alice.import_file(files / f"{file}.skill")
    alice.forget("snowflakes")
    distrust(alice, Shelf(alice.home, alice.ledger), keys["dave"])
    MeshSettings.load(alice.home).with_(network="machine").save(alice.home)
    (start / "out").mkdir()
    alice.export("shapes@alice", start / "out/older.skill")
    images = [next((files / "tasks" / task).glob("test/*/*")) for task in ("shapes", "dice", "latin", "greek")]
    described = alice.backbone.describe([_image(path) for path in images])
    x = alice.backbone.represent(described.raw, alice.config.representation, alice.config.compact)
    np.save(files / "asked.npy", x)
    (files / "asked.json").write_text(json.dumps([str(path.relative_to(files)) for path in images]))
    alice.ledger.close()


def _image(path: Path) -> Any:
    from skillmesh.data.inputs import as_image

    return as_image(path, 0)


def facts_of(work: Path, files: Path, home: str, answered: dict[str, str] | None = None) -> dict[str, str]:
    """Open the agent and return everything that must not be lost or change by itself, each with a hash.

    Errors of opening are raised. An agent with the same facts as an earlier one is not asked about images again:
    its answers are in `answered`.
    """
    import numpy as np

    from skillmesh.core import Core
    from skillmesh.store.bank import Bank

    if not (work / home / "agent.json").exists():
        return {"agent": "none"} | _files(work, work / home, set())
    agent = Core(work / home)
    found: dict[str, str] = {"agent": agent.name}
    found |= {
        f"{file}": _hash((agent.home / file).read_bytes())
        for file in ("agent.json", "mesh.json")
        if (agent.home / file).exists()
    }
    key = agent.home / "key.pem"
    found["key.pem"] = f"{stat.S_IMODE(key.stat().st_mode):o} {agent.identity.public_key}"
    for module in agent.bank:
        found[f"module {module.card.task}@{module.card.teacher_key[:8]}"] = _hash(agent.bank.file_of(module))
    for damaged in agent.bank.damaged:
        found[f"damaged {damaged.path.name}"] = str(damaged.error)
    found |= _rows(agent.home / "ledger.sqlite")
    for folder in ("validation", "quarantine"):
        for path in sorted((agent.home / folder).glob("*.s*")):
            found[f"{folder}/{path.name}"] = _hash(path.read_bytes())
    for path in sorted((work / "out").glob("*.skill")):
        Bank.check(agent.bank, path.read_bytes())
        found[f"out/{path.name}"] = _hash(path.read_bytes())
    same = _hash(json.dumps(found, sort_keys=True).encode())
    if answered is not None and same in answered:
        found["answers"] = answered[same]
    elif len(agent.bank):
        images = [_image(files / name) for name in json.loads((files / "asked.json").read_text())]
        answers = agent.answer_described(np.load(files / "asked.npy"), images)
        found["answers"] = _hash(json.dumps([answer.as_dict() for answer in answers], sort_keys=True).encode())
    found["same"] = same
    return found | _files(work, agent.home, {module.id for module in agent.bank})


def _files(work: Path, home: Path, held: set[str]) -> dict[str, str]:
    """Return all leftover files; separately those that a killed command may leave to the next one.

    These are partly fetched modules, validation images of a module that did not get into the bank, and partly
    written files in folders that are not the agent's.
    """
    found = {}
    unborn = not (home / "agent.json").exists()  # it cannot be opened and tidied up yet
    for folder, _, names in os.walk(work):
        for path in (Path(folder) / name for name in names if not name.endswith(FLEETING)):
            orphan = path.parent == home / "validation" and path.suffix == ".safetensors" and path.stem not in held
            elsewhere = path.suffix == ".partial" and (unborn or not path.is_relative_to(home))
            left = orphan or elsewhere or path.parent == home / "partial"
            found[f"{'left' if left else 'file'} {path.relative_to(work)}"] = "there"
    return found


def _rows(ledger: Path) -> dict[str, str]:
    """Return the ledger's rows by primary key, read with SQLite alone, without the changing addresses of peers."""
    with sqlite3.connect(ledger) as database:
        if database.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            raise ValueError(f"{ledger.name} is damaged")
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {
            "tables": " ".join(sorted(tables)),
            "version": str(database.execute("PRAGMA user_version").fetchone()[0]),
        }
        for table in sorted(set(tables) - {"addresses"}):
            columns = database.execute(f"PRAGMA table_info({table})").fetchall()
            for row in database.execute(f"SELECT * FROM {table}"):
                key = " ".join(str(value)[:16] for value, column in zip(row, columns, strict=True) if column[5])
                found[f"{table} {key}"] = _hash(repr(row).encode())
    return found


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


@dataclass(frozen=True)
class Promises:
    """The facts of a home before and after a command. A command reports only when all is done."""

    before: dict[str, str]
    after: dict[str, str]

    def broken(self, found: dict[str, str], reported: bool, ended: bool) -> list[str]:
        """Return the facts that are neither as after the command nor, if it has not `reported` yet, as before it.

        Leftovers of a killed command are allowed until one has `ended`.
        """
        allowed = [self.after] if reported or ended else [self.before, self.after]
        problems = []
        for fact in sorted(found.keys() | self.before.keys() | self.after.keys()):
            values = [facts.get(fact) for facts in allowed]
            kind, _, name = fact.partition(" ")
            if found.get(fact) in values or (kind == "left" and not ended):
                continue
            if kind in ("file", "left") and fact not in self.before and fact not in self.after:
                problems.append(f"litter: {name}")
            else:
                wanted = " or ".join(sorted({str(value or "nothing") for value in values}))
                problems.append(f"{fact}: found {found.get(fact, 'nothing')}, expected {wanted}")
        return problems
