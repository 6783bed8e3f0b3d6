"""A test bed for commands: copies of one home in memory, what each command does to it, and checks."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attacks import forks, homes, killed_nodes, write_log
from attacks.figures import Figures
from attacks.homes import COMMANDS, Command, Promises


@dataclass(frozen=True)
class Recording:
    """One complete run of a command: its file operations, and what it promised."""

    start: write_log.Disk
    ops: list[write_log.Op]
    promises: Promises
    seconds: float


class Ground:
    """A test bed; its process forks, so it starts no thread."""

    def __init__(self, kept: Path, say: Callable[[str], None]) -> None:
        self.figures = Figures(kept / "state.json")
        memory = Path("/dev/shm")  # only the order of writes matters here, not their speed
        place = tempfile.mkdtemp(prefix="skillmesh-kills-", dir=memory if memory.is_dir() else None)
        self.place = Path(place).resolve()
        self.work, self.errors, self.log = (self.place / name for name in ("work", "errors.txt", "writes.log"))
        self.files = self._prepared(kept, say)
        self._peers = killed_nodes.Peers(self.place, self.files)
        self._recordings: dict[str, Recording] = {}
        self._answered: dict[str, str] = {}
        self.reset()
        forks.load_what_it_needs(lambda: homes.facts_of(self.work, self.files, "home"))

    def _prepared(self, kept: Path, say: Callable[[str], None]) -> Path:
        """Return the files that all tries share; they are made once and kept."""
        if not (kept / "start").exists():
            say("preparing a home and modules of others")
            making = self.place / "making"
            making.mkdir()
            forks.in_child(lambda: homes.build(making))
            shutil.copytree(making, kept / "start.new", dirs_exist_ok=True)
            (kept / "start.new").rename(kept / "start")
        return Path(shutil.copytree(kept / "start", self.place / "files"))

    def reset(self) -> None:
        """Reset the home to its initial state."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.files / "start", self.work)

    def line(self, command: Command) -> list[str]:
        return command.line(self.work, self.files) + (self._peers.options() if command.meets_others else [])

    def facts(self, command: Command, afresh: bool = True) -> dict[str, str]:
        """Return the facts of the agent; unless `afresh`, one seen before in the same state is not asked again."""
        answered = None if afresh else self._answered
        found: dict[str, str] = forks.in_child(
            lambda: homes.facts_of(self.work, self.files, command.home, answered)
        )
        same, answers = found.pop("same", ""), found.pop("answers", "")
        if self._answered.setdefault(same, answers) != answers:
            found["answers"] = "other than those of an agent with the same modules, links and names"
        return found

    def check(
        self,
        command: Command,
        repeat: str,
        *,
        reported: bool,
        ended: bool = False,
        afresh: bool = True,
        heard: int = 0,
    ) -> bool:
        """Return whether the agent opens with everything that was promised; otherwise record a failure.

        Parameters
        ----------
        reported, ended
            Whether the command has printed anything, and whether it has ended.
        heard
            Number of tasks from which a node has reported to answer.
        """
        try:
            found = self.facts(command, afresh)
        except RuntimeError as error:
            self.figures.fail(command.name, f"the agent does not open: {error}", repeat)
            return False
        self.figures.add("opened")
        problems = self.recording(command).promises.broken(found, reported and command.ends, ended)
        modules = sum(fact.startswith("module ") for fact in found)
        if modules < heard:
            problems.append(f"the node reported that it answers from {heard} tasks, found {modules} modules")
        for problem in problems:
            self.figures.fail(command.name, problem, repeat)
        return not problems

    def recording(self, command: Command) -> Recording:
        """Return what a command does without a kill; it is run at the first request."""
        if not command.ends:  # it does what `sync` does, and continues
            return self.recording(next(each for each in COMMANDS if each.name == "sync"))
        if command.name not in self._recordings:
            self._recordings[command.name] = self._record(command)
        return self._recordings[command.name]

    def _record(self, command: Command) -> Recording:
        words = self.line(command)
        self.reset()
        forks.load_what_it_needs(lambda: homes.run_command(words))
        self.reset()
        start, inodes = write_log.found_on(self.work)
        done = forks.attempt(words, self.work, self.errors, log=self.log)
        if done.status:
            raise RuntimeError(f"{command.name} cannot be run: {done.printed} {done.complaint}")
        ops = write_log.read_log(self.log, self.work, inodes)
        replayed, found = write_log.after(start, ops), write_log.found_on(self.work)[0]
        if replayed.digest() != found.digest():
            raise RuntimeError(f"the record of {command.name} lacks something: {replayed.difference(found)}")
        promises = Promises(self._facts_on(start, command), self._facts_on(replayed, command))
        return Recording(start, ops, promises, done.seconds)

    def _facts_on(self, disk: write_log.Disk, command: Command) -> dict[str, str]:
        disk.write_to(self.work)
        return self.facts(command)

    def close(self) -> None:
        self._peers.close()
        shutil.rmtree(self.place, ignore_errors=True)
