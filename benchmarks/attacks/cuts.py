"""Check every prefix of what commands write, and the power cuts after it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from attacks import write_log
from attacks.ground import Ground
from attacks.homes import Command

RANDOM_CUTS = 3
"""Random choices of lost writes for each prefix, besides the systematic ones."""


class Cuts:
    """Checks the prefixes of all commands, one after the other, in rounds.

    The first round checks every prefix as a killed process leaves it; every round checks power cuts with other
    losses.
    """

    def __init__(self, ground: Ground, commands: Sequence[Command], seed: int) -> None:
        self._ground, self._seed = ground, seed
        self._commands = [command for command in commands if command.ends]
        self._values = ground.figures.values
        self._seen: set[tuple[str, bool, str]] = set()

    def next_prefix(self) -> None:
        """Check all states that a kill or a power cut after one more call could leave."""
        values, places = self._values, self._values["next_prefix"]
        command = next(each for each in self._commands if places.get(each.name) != -1)
        recording, count, first = (
            self._ground.recording(command),
            places.get(command.name, 0),
            values["rounds"] == 0,
        )
        ops = recording.ops[:count]
        where = f"{command.name}, call {count} of {len(recording.ops)} ({ops[-1] if ops else 'nothing'})"
        if first:
            self._check(command, ops, write_log.after(recording.start, ops), f"the process ends after {where}")
            torn = write_log.torn(recording.start, ops)
            if torn is not None:
                self._check(command, ops, torn, f"the process ends within {where}")
            values["prefixes_by_command"][command.name] = count + 1
        chance = random.Random(f"{self._seed}/cut/{values['rounds']}/{command.name}/{count}")
        for lost, disk in write_log.power_cuts(recording.start, ops, chance, RANDOM_CUTS):
            self._check(command, ops, disk, f"a power cut loses {lost} after {where}", "power_cut_states")
        places[command.name] = count + 1 if count < len(recording.ops) else -1
        if all(places.get(each.name) == -1 for each in self._commands):
            values["rounds"] += 1
            values["next_prefix"] = {}

    def _check(
        self,
        command: Command,
        ops: Sequence[write_log.Op],
        disk: write_log.Disk,
        what: str,
        kind: str = "prefix_states",
    ) -> None:
        self._ground.figures.add(kind)
        reported = any(op.kind == "report" for op in ops)
        state = (command.name, reported, disk.digest())
        if state in self._seen:  # the same state of the disk was checked before
            return
        self._seen.add(state)
        self._ground.figures.add("different_states")
        disk.write_to(self._ground.work)
        repeat = f"seed {self._seed}, round {self._values['rounds']}: {what}"
        self._ground.check(command, repeat, reported=reported, afresh=False)
