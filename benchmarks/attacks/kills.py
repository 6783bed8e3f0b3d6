"""Kills and power cuts: after either, an agent has everything that was reported as done, and nothing else changed.

Commands run in children of one process that has everything loaded (`forks.py`), on copies of one home
(`ground.py`). Some are killed with SIGKILL, at a random moment or at a random call that changes a file. What
others write is recorded (`write_log.c`), and the home is brought into every state that a kill or a power cut could
have left (`write_log.py`, `cuts.py`). Each time another child opens the agent, and what it finds is compared with
what the command promised (`homes.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attacks import forks, killed_nodes, write_log
from attacks.cuts import Cuts
from attacks.figures import Figures
from attacks.forks import Moment
from attacks.ground import Ground
from attacks.homes import COMMANDS, Command

AGAIN = 4
"""After one in this many kills the command is run again, and must complete."""
OFTEN = 2
"""How many times more often commands without peers are killed than those with peers, which take seconds."""
CUTS_LATER = 0.2
"""Share of the time for power cuts once every prefix was checked; before that it is one half."""


def run(
    seconds: float,
    seed: int,
    kept: Path,
    say: Callable[[str], None],
    *,
    only: Sequence[str] = (),
    parts: Sequence[str] = ("kills", "cuts"),
    until: str = "",
    prelude: str = "",
) -> dict[str, Any]:
    """Attack for about `seconds`, resuming from `kept`; return the figures of all calls on it so far.

    Parameters
    ----------
    only
        Names of the commands to attack, all if empty.
    until
        `round`: stop when every prefix was checked once; `failure`: stop at the first failure.
    prelude
        Code that the attacked process runs first: tests use it to break the product and check that this is found.
    """
    kept = kept.resolve()
    kept.mkdir(parents=True, exist_ok=True)
    given = [str(seconds), str(seed), str(kept), ",".join(only), ",".join(parts), until, prelude]
    environment = os.environ | {
        "LD_PRELOAD": str(write_log.shim()),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)]),
        "SKILLMESH_CACHE": str(kept / "cache"),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "attacks.kills", *given],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        last: list[str] = []
        for line in worker.stdout:
            say(line.rstrip())
            last = [*last[-30:], line]
    figures = Figures(kept / "state.json").as_dict()
    if worker.returncode:
        what = f"the attack itself failed with {worker.returncode}: {''.join(last)}"
        failure = {"what": what, "repeat": f"seed {seed}", "kind": "attack", "times": 1}
        figures["failures"] = [*figures["failures"], failure]
    return figures


class Kills:
    """Kills commands one after the other, at moments determined by the seed and the number of the try."""

    def __init__(self, ground: Ground, commands: Sequence[Command], seed: int) -> None:
        self._ground, self._seed = ground, seed
        alone = [command for command in commands if not command.meets_others]
        self._schedule = [*(OFTEN - 1) * alone, *commands]

    def kill_one(self) -> None:
        ground, figures = self._ground, self._ground.figures
        number = figures.values["tries"]
        figures.add("tries")
        chance = random.Random(f"{self._seed}/kill/{number}")
        command = self._schedule[number % len(self._schedule)]
        moment = self._moment(command, chance)
        repeat = f"seed {self._seed}, try {number}: {command.name} killed {moment}"
        words = ground.line(command)
        ground.reset()
        caller = None if command.ends else killed_nodes.Caller(ground.work / "home", ground.place / "heard")
        done = forks.attempt(words, ground.work, ground.errors, moment)
        heard = caller.heard() if caller else 0
        if done.killed:
            figures.add("kills")
            figures.add("kills_by_command", command.name)
        elif done.status:
            figures.fail(command.name, f"it failed by itself: {done.printed} {done.complaint}", repeat)
        else:
            figures.add("finished_before_the_kill")
        reported = bool(done.printed)
        if not ground.check(command, repeat, reported=reported, ended=not done.killed, heard=heard):
            figures.add("losses")
        elif command.ends and chance.randrange(AGAIN) == 0:
            self._run_again(command, words, reported, f"{repeat}, then run again")

    def _moment(self, command: Command, chance: random.Random) -> Moment:
        """Choose a moment, or more often a call: writing takes little of a command's time."""
        recording = self._ground.recording(command)
        if chance.random() < 0.4:
            return Moment(chance.uniform(0, recording.seconds))
        call, how = chance.randint(1, len(recording.ops)), chance.choice(forks.HOW)
        return Moment(None if command.ends else recording.seconds, call, how)

    def _run_again(self, command: Command, words: list[str], reported: bool, repeat: str) -> None:
        """Run a command again after a kill; it may refuse with a message what it had already done."""
        ground = self._ground
        ground.figures.add("run_again")
        again = forks.attempt(words, ground.work, ground.errors)
        if os.waitstatus_to_exitcode(again.status) not in (0, 1):
            ground.figures.fail(command.name, f"it fails: {again.printed} {again.complaint}", repeat)
        if command.repeatable:
            ground.check(command, repeat, reported=reported, ended=not again.status)
        else:
            ground.facts(command)


def attack(
    ground: Ground,
    commands: Sequence[Command],
    seed: int,
    seconds: float,
    parts: Sequence[str],
    until: str,
    say: Callable[[str], None],
) -> None:
    """Alternate kills and power cuts, so that both have their share whenever this is stopped."""
    steps = {"kills": Kills(ground, commands, seed).kill_one, "cuts": Cuts(ground, commands, seed).next_prefix}
    spent = dict.fromkeys(parts, 0.0)
    values, began = ground.figures.values, time.monotonic()
    reported, before = began, values["seconds"]
    while (now := time.monotonic()) - began < seconds:
        share = {"kills": 1.0, "cuts": CUTS_LATER if values["rounds"] else 1.0}
        part = min(parts, key=lambda part: spent[part] / share[part])
        steps[part]()
        spent[part] += time.monotonic() - now
        values["seconds"] = round(before + time.monotonic() - began, 1)
        if (until == "round" and values["rounds"]) or (until == "failure" and values["failures"]):
            break
        if time.monotonic() - reported > 3:
            reported = time.monotonic()
            ground.figures.save()
            say(str(ground.figures))
    ground.figures.save()


def main() -> None:
    """Run the attacking process; `run` starts it with the recording library loaded."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("seconds", "seed", "kept", "only", "parts", "until", "prelude"):
        parser.add_argument(name)
    given = parser.parse_args()
    only, parts = given.only.split(",") if given.only else [], given.parts.split(",")
    commands = [command for command in COMMANDS if not only or command.name in only]

    def say(line: str) -> None:
        print(line, flush=True)

    learns = any(command.name.startswith("learn") for command in commands)
    forks.load_all(network=learns or not (Path(given.kept) / "start").exists())
    exec(given.prelude, {})
    with contextlib.closing(Ground(Path(given.kept), say)) as ground:
        attack(ground, commands, int(given.seed), float(given.seconds), parts, given.until, say)


if __name__ == "__main__":
    main()
