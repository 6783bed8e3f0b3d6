"""Hostile peers: random moves of the protocol, and the attackers of the tests, against real nodes.

Three nodes trust each other by their keys, a fourth one trusts all. In rounds of a minute, each with its own seed,
a player (`attacks.player`) makes random moves and two attackers of `tests/helpers/hostile.py` run, some of them
with keys that the nodes trust. Throughout:

- what one of the three teaches reaches the other two within `ARRIVES`, again and again;
- their answers stay right, and every node answers within `ANSWERS`;
- memory, descriptors, threads and disk of all four stay under `BOUNDS`, and descriptors and threads return to
  their initial numbers after a round;
- the three banks hold only modules of the three and of keys that are trusted now;
- none of the three is banned by another, and no log holds a traceback.

`python -m attacks.peers --seed S --round N --kept DIR` in `benchmarks` repeats one round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodes import Namespace, environment, namespace

from attacks.town import ENDS_WITHIN, Lines, Resident, in_order, over_and_over, started, unseen, within
from skillmesh.backbone.backbone import Backbone
from skillmesh.common.choices import WarmStart
from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.data.demo import write_demo_tasks
from skillmesh.errors import AgentError
from skillmesh.mesh.calling import call
from skillmesh.mesh.process import stop_all
from skillmesh.mesh.shelf import Shelf, distrust
from skillmesh.module import Identity, Module
from skillmesh.module.notice import announce
from skillmesh.store.bank import specs_for
from skillmesh.store.home import create_home
from skillmesh.store.ledger import Ledger

ENDS_WITH_US = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
"""Prefix of a command whose process ends when this one is killed."""
HERE = Path(__file__).parent
HOSTILE = HERE.parent.parent / "tests" / "helpers" / "hostile.py"
TASKS = {"ann": ("shapes", "dice"), "bob": ("cards", "flowers"), "cem": ()}
"""The agents that trust each other, and what each has taught."""
OPEN = "dan"
"""The agent that trusts all: it accepts what attackers teach, so only its resources and replies are checked."""
IMAGES = {"train": 6, "val": 3, "test": 2}
ROUND, PLAYED = 60.0, 44.0
"""Seconds of a round, and of attacks in it; the rest is for checking what remains."""
KINDS_AT_ONCE = 2
POUR = 5.0
"""Seconds for which attackers run that send as much as they can: others need the machine, too."""
POURING = ("flood", "flood-of-teachers", "obituaries")
UNTRUSTED = ("reserve", "tuned", "overtuned")
"""Attackers that the three never trust, besides those that forge modules: a trusted teacher may use up the quota,
and a student without images of its own cannot vet a forgery."""
PLAYERS_KEYS = 4
"""Keys of the player that the three trust: one after the other is banned for what it signs."""
TRIED_IMAGES, SURE, FAMILIAR = 48, 0.9, 0.9
"""Number of images; those count whose confidence is at least SURE and whose novelty is below FAMILIAR: a trusted
teacher that copies a task moves the threshold, 1.0, by a few hundredths."""
KNOWING = ("tuned", "overtuned")
TEACH_EVERY, ASK_EVERY, SAMPLE_EVERY, SAY_EVERY = 8.0, 1.0, 3.0, 20.0
ARRIVES = 45.0
"""Seconds: a peer that does not reply costs a timeout of 10 s, and several may be asked before an honest one."""
ANSWERS = 15.0
GOES_BACK = 25.0
"""Seconds after a round within which descriptors and threads are as few as before: zenoh's lease is 8 s."""
QUOTA = 20_000_000
"""Bytes of modules that a node accepts: about 200 modules, so that the agent that trusts all is soon full."""
BOUNDS: dict[str, float] = {"rss": 250.0, "fds": 300, "threads": 120, "disk": QUOTA + 20_000_000}
"""Maximum increase over the state before the attacks: MB, numbers, bytes. The player holds at most 40 connections
and 24 faces, attackers 40 more; a node's queues hold 512 questions of 16 KB and 512 notices of 200 KB."""
OPEN_DISK = QUOTA + 170_000_000
"""Bytes, for the agent that trusts all: it keeps 50,000 notices of about 3 KB."""
LEFT: dict[str, float] = {"fds": 24, "threads": 24}
"""Maximum increase once the attackers are gone."""
PORTS = 30_000

Say = Callable[[str], None]


def run(seconds: float, seed: int, kept: Path, say: Say) -> dict[str, Any]:
    """Run rounds for about `seconds`, after those in `kept`, and return the figures of all."""
    deadline = time.monotonic() + seconds
    kept = kept.resolve()
    lines = Lines(kept / "samples.jsonl")
    done = sum(line["kind"] == "round" for line in lines.read())
    with _town(kept, seed, lines, say) as town:
        town.prepare()
        while deadline - time.monotonic() > min(ROUND, seconds) / 2:
            town.play(done, min(ROUND, deadline - time.monotonic()))
            done += 1
    return figures(lines.read(), seed)


@contextlib.contextmanager
def _town(kept: Path, seed: int, lines: Lines, say: Say) -> Iterator[Town]:
    """A town whose nodes end with it; an exception counts as a failure."""
    with in_order(), namespace() as net:
        town = Town(kept, seed, net, lines, say)
        try:
            yield town
        except Exception:
            town.wrong(f"the run ended early: {traceback.format_exc(limit=-3)}")
        finally:
            town.stop()


@dataclass
class Attacker:
    """A process that runs one attack of `tests/helpers/hostile.py`, or the player."""

    kind: str
    process: subprocess.Popen[bytes]
    log: Path
    began: float = field(default_factory=time.monotonic)

    def end(self) -> int | None:
        """Kill the process; return its exit status if it had ended by itself."""
        ended = self.process.poll()
        self.process.kill()
        self.process.wait(30)
        return ended


class Town:
    """The nodes and their expected state."""

    def __init__(self, kept: Path, seed: int, net: Namespace, lines: Lines, say: Say) -> None:
        self._kept, self._seed, self._net, self._lines, self._say = kept, seed, net, lines, say
        self._residents: dict[str, Resident] = {}
        self._keys: dict[str, str] = {}
        self._backbone: Backbone | None = None
        self._labels: dict[Path, str] = {}
        """Answers of the three to images without an attack."""
        self._base: dict[str, dict[str, Any]] = {}
        self._trusted: set[str] = set()
        """Keys of attackers that the three trust in this round."""
        self._taught_by: dict[str, str] = {}
        """The teacher of each module that was seen in a bank."""
        self._round = -1
        self._chance = random.Random(seed)
        self._asking = random.Random(seed)
        self._attackers: list[Attacker] = []
        self._asked = 0
        self._cache = kept / "cache"
        self._variables = environment() | {"SKILLMESH_CACHE": str(self._cache)}
        self._settings = {
            "discovery_port": PORTS + os.getpid() % 10_000,
            "sync_seconds": 2.0,
            "quota_bytes": QUOTA,
        }

    @property
    def _three(self) -> list[Resident]:
        return [self._residents[name] for name in TASKS]

    # Setting up.

    def prepare(self) -> None:
        """Make missing homes, start the nodes, and record their state without an attack."""
        write_demo_tasks(self._kept / "tasks", names=[t for some in TASKS.values() for t in some], **IMAGES)
        for name in (*TASKS, OPEN):
            home = self._kept / "homes" / name
            if not (home / "done").exists():
                self._make(home)
            trust = "open" if name == OPEN else "listed"
            MeshSettings.of({"trust": trust, **self._settings}).save(home)
            self._keys[name] = Identity.load(home / "key.pem").public_key
            self._residents[name] = Resident(home, self._net, self._variables)
        for name in TASKS:
            self._trust_the_three(name)
        for resident in self._residents.values():
            resident.start()
        started(list(self._residents.values()))
        self._in_peace()

    def _make(self, home: Path) -> None:
        shutil.rmtree(home, ignore_errors=True)
        create_home(home, name=home.name)
        agent = Core(home, cache_folder=self._cache, backbone=self._backbone)
        self._backbone = agent.backbone
        for task in TASKS.get(home.name, ()):
            agent.learn(self._kept / "tasks" / task, warm_start=WarmStart("never"))
        agent.ledger.close()
        (home / "done").touch()

    def _trust_the_three(self, name: str) -> None:
        """Make one of the three trust the others, and no key of an interrupted round."""
        agent = Core(self._kept / "homes" / name)
        shelf = Shelf(agent.home, agent.ledger)
        three = {self._keys[other] for other in TASKS}
        for other in TASKS:
            agent.ledger.trust(self._keys[other], other)
        teachers = {module.card.teacher_key for module in agent.bank}
        for key in (teachers | agent.ledger.view().trusted.keys()) - three:
            distrust(agent, shelf, key)
        agent.ledger.close()

    def _in_peace(self) -> None:
        """Wait until the three hold everything; record their answers and the resources of all nodes."""
        count = sum(map(len, TASKS.values()))
        if within(ARRIVES, lambda: all(len(r.bank()) == count for r in self._three)) is None:
            self.wrong(f"without an attack, the three do not hold {count} tasks within {ARRIVES:.0f} s")
        images = sorted((self._kept / "tasks").glob("*/test/*/*"))
        images = random.Random(self._seed).sample(images, TRIED_IMAGES)
        ann, *others = (self._answers(resident, images, 120.0) for resident in self._three)
        self._answers(self._residents[OPEN], images[:1], 120.0)
        for image, first, *rest in zip(images, ann, *others, strict=True):
            sure = first["guesses"][0]["confidence"] > SURE and first["novelty"] < FAMILIAR
            if sure and all(_label(answer) == _label(first) == image.parent.name for answer in rest):
                self._labels[image] = image.parent.name
        if len(self._labels) < 10:
            self.wrong(
                f"without an attack, {len(self._labels)} of {len(images)} images are surely right, expected ≥ 10"
            )
        self._base = {resident.name: resident.measured() for resident in self._residents.values()}
        self._note(kind="peace", nodes=self._base, images=len(self._labels))

    @contextlib.contextmanager
    def _ledger(self, name: str) -> Iterator[Ledger]:
        ledger = Ledger(self._kept / "homes" / name / "ledger.sqlite", self._keys[name])
        try:
            yield ledger
        finally:
            ledger.close()

    # A round.

    def play(self, number: int, seconds: float) -> None:
        """Run one round; its findings and errors are recorded in the lines."""
        self._round, began = number, time.monotonic()
        self._chance = random.Random(f"{self._seed}/{number}")
        self._asking = random.Random(self._chance.random())
        folder = self._kept / "rounds" / f"{number:04d}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        played = PLAYED * min(1.0, seconds / ROUND)
        try:
            self._mend()
            self._attack(folder, played)
            with ExitStack() as threads:
                threads.enter_context(over_and_over("sampling", SAMPLE_EVERY, self._sample, self.wrong))
                threads.enter_context(over_and_over("asking", ASK_EVERY, self._ask, self.wrong))
                threads.enter_context(over_and_over("telling", SAY_EVERY, self._tell, self.wrong))
                self._teach_until(time.monotonic() + played)
                self._end_attacks()
                self._after(folder)
        except Exception:
            self.wrong(f"round {number}: {traceback.format_exc(limit=-3)}")
        finally:
            self._end_attacks()
        moves = Counter(move["move"] for move in Lines(folder / "moves.jsonl").read() if "did" in move)
        refused = Counter(move["move"] for move in Lines(folder / "moves.jsonl").read() if "refused" in move)
        took = round(time.monotonic() - began, 1)
        self._note(kind="round", number=number, seconds=took, moves=dict(moves), refused=dict(refused))

    def _mend(self) -> None:
        for resident in self._residents.values():
            try:
                resident.check()
            except AgentError as error:
                self.wrong(str(error))
                resident.start()
                started([resident])

    def _attack(self, folder: Path, seconds: float) -> None:
        """Start the player and two attackers, and trust some of them."""
        loot = self._steal(folder / "loot")
        deck = kinds()
        start = KINDS_AT_ONCE * self._round
        random.Random(f"{self._seed}/{start // len(deck)}").shuffle(deck)
        chosen = [deck[(start + i) % len(deck)] for i in range(KINDS_AT_ONCE)]
        players = [Identity(f"player {i}", self._chance.randbytes(32)) for i in range(PLAYERS_KEYS)]
        teachers = [Identity(f"{kind} {self._round}", self._chance.randbytes(32)) for kind in chosen]
        trustworthy = [*players, *(t for kind, t in zip(chosen, teachers, strict=True) if self._may_trust(kind))]
        self._trusted = {teacher.public_key for teacher in trustworthy}
        for name in TASKS:
            with self._ledger(name) as ledger:
                for key in self._trusted:
                    ledger.trust(key)
        plan = {
            "seed": f"{self._seed}/{self._round}",
            "seconds": seconds,
            "home": str(self._attackers_home(folder, "player", players[0])),
            "homes": [str(resident.home) for resident in self._residents.values()],
            "places": self._places(),
            "trusted": [player.secret.hex() for player in players],
            "loot": str(loot),
            "honest": list(self._keys.values()),
            "version": 1000 * (self._round + 1),
            "moves": str(folder / "moves.jsonl"),
        }
        (folder / "plan.json").write_text(json.dumps(plan, indent=1))
        self._begin(folder, "player", [str(HERE / "player.py"), str(folder / "plan.json")])
        for kind, teacher in zip(chosen, teachers, strict=True):
            home = self._attackers_home(folder, kind, teacher)
            command = [str(HOSTILE), kind, "--home", str(home), "--loot", str(loot)]
            command += ["--knows", str(self._residents["cem"].home)] if kind in KNOWING else []
            self._begin(folder, kind, command)
        self._note(kind="attack", kinds=chosen, trusted=sorted(self._trusted))

    def _may_trust(self, kind: str) -> bool:
        return kind not in (*UNTRUSTED, *kinds("forgery")) and self._chance.random() < 0.5

    def _steal(self, folder: Path) -> Path:
        """Store the current announcements and files of the three, which any agent on the mesh can get."""
        folder.mkdir()
        for name in TASKS:
            agent = Core(self._kept / "homes" / name)
            for module in agent.bank:
                if module.card.teacher_key == agent.identity.public_key:
                    data = agent.bank.file_of(module)
                    notice = announce(module.card, module.id, data, agent.identity)
                    (folder / f"{module.id}.skill").write_bytes(data)
                    (folder / f"{module.id}.notice").write_bytes(notice.encode())
            agent.ledger.close()
        return folder

    def _places(self) -> list[tuple[str, int]]:
        found = []
        for resident in self._residents.values():
            for locator in call(resident.home, "status", timeout=ANSWERS)["listening"]:
                host, _, port = locator.partition("/")[2].rpartition(":")
                found.append((host, int(port)))
        return found

    def _attackers_home(self, folder: Path, name: str, identity: Identity) -> Path:
        home = folder / name
        home.mkdir()
        identity.save(home / "key.pem")
        MeshSettings.of({"trust": "open", **self._settings}).save(home)
        return home

    def _begin(self, folder: Path, kind: str, command: list[str]) -> None:
        log = folder / f"{kind}.log"
        words = [*self._net.prefix, *ENDS_WITH_US, "nice", "-n", "5", sys.executable, *command]
        with log.open("wb") as file:
            process = subprocess.Popen(words, stdout=file, stderr=file, env=self._variables)
        self._attackers.append(Attacker(kind, process, log))

    def _teach_until(self, end: float) -> None:
        """Teach at one of the teachers repeatedly; each time it must reach the other two."""
        while (now := time.monotonic()) < end:
            for attacker in self._attackers:
                if attacker.kind in POURING and now > attacker.began + POUR:
                    attacker.process.send_signal(signal.SIGSTOP)
            self._converge()
            time.sleep(max(0.0, min(now + TEACH_EVERY, end) - time.monotonic()))

    def _converge(self) -> None:
        teacher = self._chance.choice([name for name, tasks in TASKS.items() if tasks])
        task = self._chance.choice(TASKS[teacher])
        module_id = self._teach(teacher, task)
        took = within(ARRIVES, lambda: all(module_id in resident.bank() for resident in self._three))
        if took is None:
            lack = [resident.name for resident in self._three if module_id not in resident.bank()]
            self.wrong(f"{task!r} taught by {teacher} has not reached {', '.join(lack)} within {ARRIVES:.0f} s")
        else:
            self._note(kind="arrived", seconds=round(took, 2))

    def _teach(self, teacher: str, task: str) -> str:
        """Let a teacher sign its task as a new version, as a command beside its node would."""
        agent = Core(self._kept / "homes" / teacher)
        key = agent.identity.public_key
        old = next(m for m in agent.bank if (m.card.task, m.card.teacher_key) == (task, key))
        card = old.card.model_copy(update={"version": old.card.version + 1})
        module, data = Module.create(card, old.tensors, agent.identity)
        agent.bank.add(data)
        agent.ledger.close()
        return module.id

    def _end_attacks(self) -> None:
        for attacker in self._attackers:
            ended = attacker.end()
            printed = attacker.log.read_text(errors="replace")[-1500:]
            if ended not in (None, 0):
                self.wrong(f"the attacker {attacker.kind!r} of the campaign ended with {ended}: {printed}")
        self._attackers = []

    # What must hold.

    def _after(self, folder: Path) -> None:
        """Check that the three are as before once the attackers are gone and distrusted."""
        for name in TASKS:
            with self._ledger(name) as ledger:
                for key in self._trusted:
                    ledger.distrust(key)
        shutil.rmtree(folder / "loot", ignore_errors=True)
        if within(GOES_BACK, lambda: not any(self._foreign(r, set()) for r in self._three)) is None:
            left = {resident.name: self._foreign(resident, set()) for resident in self._three}
            self.wrong(f"{GOES_BACK:.0f} s after trust was removed, the banks still hold {left}")
        if within(GOES_BACK, lambda: not self._too_many()) is None:
            self.wrong(f"{GOES_BACK:.0f} s after the attackers were stopped: {self._too_many()}")
        for name in TASKS:
            with self._ledger(name) as ledger:
                shelf = Shelf(self._residents[name].home, ledger)
                for held in shelf.held():  # quarantined when trust was removed; a user would drop them
                    shelf.drop(held)
                wrongly = ledger.view().bans.keys() & {self._keys[other] for other in TASKS}
            if wrongly:
                self.wrong(f"{name} has banned honest agents: {sorted(wrongly)}")

    def _too_many(self) -> list[str]:
        found = []
        for resident in self._three:
            now, base = resident.measured(), self._base[resident.name]
            found += [
                f"{resident.name} has {now[what]} {what}, before the play {base[what]}"
                for what, most in LEFT.items()
                if now[what] > base[what] + most
            ]
        return found

    def _foreign(self, resident: Resident, trusted: set[str]) -> list[str]:
        """Return the modules in a bank whose teachers are neither of the three nor trusted."""
        allowed = {self._keys[name] for name in TASKS} | trusted
        found = []
        for module_id in resident.bank():
            if module_id not in self._taught_by:
                with contextlib.suppress(FileNotFoundError):  # quarantined a moment ago
                    data = (resident.home / "bank" / f"{module_id}.skill").read_bytes()
                    self._taught_by[module_id] = Module.from_bytes(data, specs_for).card.teacher_key
            if self._taught_by.get(module_id, self._keys["ann"]) not in allowed:
                found.append(f"{module_id[:12]} by {self._taught_by[module_id][:12]}")
        return found

    def _sample(self) -> None:
        for resident in self._residents.values():
            for text in resident.new_trouble():
                self.wrong(f"the log of {resident.name} holds {text}")
            if resident.process is None or resident.returncode is not None:
                continue
            now = resident.measured()
            self._note(kind="sample", node=resident.name, **now)
            bounds = BOUNDS | ({"disk": OPEN_DISK} if resident.name == OPEN else {})
            for problem in over_bounds(now, self._base[resident.name], bounds):
                self.wrong(f"{resident.name}: {problem}")
        for resident in self._three:
            if foreign := self._foreign(resident, self._trusted):
                self.wrong(f"{resident.name} has imported modules of untrusted teachers: {foreign}")

    def _ask(self) -> None:
        name = self._asking.choice([*TASKS, OPEN])
        image = self._asking.choice(sorted(self._labels))
        self._asked += 1
        same = unseen(image, self._kept / "asked", 10**6 * (self._round + 1) + self._asked)
        began = time.monotonic()
        (answer,) = self._answers(self._residents[name], [same], ANSWERS)
        took = time.monotonic() - began
        right = _label(answer) == self._labels[image]
        self._note(kind="ask", node=name, ms=round(1000 * took, 1), right=right)
        if name != OPEN and not right:
            self.wrong(f"{name} answers {_label(answer)!r} for {image.parent.name}/{image.name}")

    def _answers(self, resident: Resident, images: list[Path], seconds: float) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = call(
            resident.home, "ask", timeout=seconds, images=[str(image) for image in images]
        )["answers"]
        return found

    def _tell(self) -> None:
        sizes = ", ".join(f"{r.name} {r.measured()['rss']:.0f} MB" for r in self._residents.values())
        self._say(f"peers: round {self._round}, {', '.join(a.kind for a in self._attackers) or 'quiet'}; {sizes}")

    def _note(self, **fields: Any) -> None:
        self._lines.write(time=round(time.time(), 2), round=self._round, **fields)

    def wrong(self, what: str) -> None:
        self._note(kind="failure", what=what)
        self._say(f"peers: FAILURE {what[:300]}")

    def stop(self) -> None:
        self._end_attacks()
        stop_all(list(self._residents.values()), ENDS_WITHIN)


def _label(answer: dict[str, Any]) -> str | None:
    label: str | None = answer["label"]
    return label


def kinds(family: str = "attack|forgery") -> list[str]:
    """Return the names of the attacks in the tests."""
    found = re.findall(rf"^@(?:{family})\ndef (\w+)", HOSTILE.read_text(), flags=re.MULTILINE)
    return [name.replace("_", "-") for name in found]


def over_bounds(now: dict[str, Any], base: dict[str, Any], bounds: dict[str, float] = BOUNDS) -> list[str]:
    """Return the resources of a node that have grown by more than allowed under attack."""
    return [
        f"{what} is {now[what]:,}, before the play {base[what]:,}, expected ≤ {most:,} more"
        for what, most in bounds.items()
        if now[what] > base[what] + most
    ]


def figures(lines: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """Return the figures of all rounds."""
    rounds = [line for line in lines if line["kind"] == "round"]
    moves: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for line in rounds:
        moves.update(line["moves"])
        refused.update(line["refused"])
    arrived = [line["seconds"] for line in lines if line["kind"] == "arrived"]
    asks = [line for line in lines if line["kind"] == "ask"]
    samples = [line for line in lines if line["kind"] == "sample"]
    peace = next((line["nodes"] for line in lines if line["kind"] == "peace"), {})
    failures = [line for line in lines if line["kind"] == "failure"]
    return {
        "rounds": len(rounds),
        "seconds": round(sum(line["seconds"] for line in rounds), 1),
        "moves": sum(moves.values()),
        "moves_by_name": dict(sorted(moves.items())),
        "refused": sum(refused.values()),
        "attackers": len({kind for line in lines if line["kind"] == "attack" for kind in line["kinds"]}),
        "taught_and_arrived": len(arrived),
        "arrived_seconds_median": round(statistics.median(arrived), 2) if arrived else None,
        "arrived_seconds_most": max(arrived, default=None),
        "asks": len(asks),
        "ask_ms_median": round(statistics.median(line["ms"] for line in asks), 1) if asks else None,
        "ask_ms_most": max((line["ms"] for line in asks), default=None),
        "in_peace": {name: {what: node[what] for what in BOUNDS} for name, node in peace.items()},
        "most": {
            name: {what: max(line[what] for line in samples if line["node"] == name) for what in BOUNDS}
            for name in sorted({line["node"] for line in samples})
        },
        "failures": [
            {
                "what": f"round {line['round']}: {line['what']}",
                "repeat": f"python -m attacks.peers --seed {seed} --round {line['round']} --kept DIR",
            }
            for line in failures
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Play one round of the hostile play again.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--round", type=int, required=True)
    parser.add_argument("--kept", type=Path, required=True, help="folder for homes and measurements")
    options = parser.parse_args()
    kept = options.kept.resolve()
    lines = Lines(kept / "samples.jsonl")
    with _town(kept, options.seed, lines, print) as town:
        town.prepare()
        town.play(options.round, ROUND)
    print(json.dumps(figures(lines.read(), options.seed), indent=1))


if __name__ == "__main__":
    main()
