"""The recipes of docs/howto/share-*.md, run as they stand: each must end with every agent holding every task.

A block's first line names its host and addresses. The test makes hosts with just these, gives each a home
directory of its own with the tasks that the recipe speaks of, and hands the block to bash. Nothing in a block is
replaced. What is not there in a test are other machines: `ssh` and `scp` are two scripts that enter the namespace,
or the home, of the host that they are told.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from meshes import Node, environment, eventually
from networks import LONG, Network, network, stopwatch

pytestmark = pytest.mark.long

PAGES = [Path(__file__).parents[2] / "docs" / "howto" / f"share-{name}.md" for name in ("lan", "sites", "tls")]
DEFAULT_HOME = Path(".local/share/skillmesh")
SSH = """#!/bin/bash
host=$1; shift
export HOME={homes}/$host
cd && exec ip netns exec {name}$host bash -c "$*"
"""
SCP = """#!/bin/bash
[ "$1" = -r ] && [ $# = 3 ] || exit 2
exec cp -r "$2" "{homes}/${{3%%:*}}/${{3#*:}}"
"""


@dataclass(frozen=True)
class Block:
    """One fenced block: where it runs, and what."""

    host: str
    addresses: tuple[str, ...]
    script: str

    @property
    def stays(self) -> bool:
        """Whether it ends in a command that goes on running."""
        return re.match(r"skillmesh (serve|gateway)\b", self.script.strip().splitlines()[-1]) is not None

    @property
    def agents(self) -> set[Path]:
        """The agents' homes that it sets up, within the home directory of the host."""
        inits = re.findall(r"^skillmesh init\b(.*)$", self.script, re.MULTILINE)
        homes = [re.search(r"--home ~/(\S+)", options) for options in inits]
        return {Path(found[1]) if found else DEFAULT_HOME for found in homes}

    @property
    def tasks(self) -> set[str]:
        return set(re.findall(r"~/tasks/(\w+)", self.script))


def recipes() -> dict[str, list[Block]]:
    """The blocks of every section that has some, by its heading."""
    found = {}
    for part in [part for page in PAGES for part in page.read_text().split("\n## ")]:
        blocks = re.findall(r"^```sh\n# (\w+)(.*?)\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
        addressed = [(host, tuple(re.findall(r"\d+(?:\.\d+){3}", rest)), script) for host, rest, script in blocks]
        assert len(blocks) == part.count("```sh\n"), "every block names its host in its first line"
        if blocks:
            found[part.splitlines()[0]] = [Block(*block) for block in addressed]
    return found


class Recipe:
    """A recipe under way: its hosts, their homes, and what goes on running there."""

    def __init__(self, blocks: list[Block], net: Network, folder: Path, tasks: Path) -> None:
        self.blocks, self.net, self.folder = blocks, net, folder
        self.running: list[subprocess.Popen[bytes]] = []
        for host in {block.host for block in blocks}:
            (folder / host).mkdir()
            shutil.copytree(tasks, folder / host / "tasks")
        self._bin = folder / ".bin"
        self._bin.mkdir()
        for name, text in {"ssh": SSH, "scp": SCP}.items():
            path = self._bin / name
            path.write_text(text.format(homes=folder, name=net.name))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run(self, block: Block) -> None:
        """Have bash run a block on its host; one that stays has started when its agent or gateway answers."""
        log = self.folder / f"{len(self.running)}-{block.host}.log"
        command = ["ip", "netns", "exec", self.net.namespace(block.host), "bash", "-e", "-c", block.script]
        with log.open("ab") as out:
            process = subprocess.Popen(
                command,
                cwd=self.folder / block.host,
                env=self._environment(block.host),
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        if not block.stays:
            assert process.wait(LONG) == 0, f"{block.script}{log.read_text()}"
            return
        self.running.append(process)

        def began() -> bool:
            assert process.poll() is None, f"{block.script}{log.read_text()}"
            return "listening" in log.read_text() or "gateway listens" in log.read_text()

        eventually(began, LONG, block.script)

    def agents(self) -> list[Node]:
        """The agents that serve; a gateway's identity does not."""
        homes = [self.folder / block.host / home for block in self.blocks for home in block.agents]
        gateways = {block.host for block in self.blocks if "skillmesh gateway" in block.script}
        return [Node(home) for home in homes if home.relative_to(self.folder).parts[0] not in gateways]

    def stop(self) -> None:
        for process in self.running:
            os.killpg(process.pid, signal.SIGKILL)  # bash, and what it started
            process.wait(30)

    def _environment(self, host: str) -> dict[str, str]:
        given = {name: value for name, value in environment().items() if not name.startswith("SKILLMESH_")}
        path = os.pathsep.join([str(self._bin), str(Path(sys.executable).parent), os.environ["PATH"]])
        return given | {"HOME": str(self.folder / host), "PATH": path, "XDG_DATA_HOME": ""}


@pytest.fixture
def started(request: pytest.FixtureRequest, tmp_path: Path, tiny_tasks: Path) -> Iterator[Recipe]:
    blocks = recipes()[request.param]
    hosts: dict[str, tuple[str, ...]] = {}
    for block in blocks:
        hosts[block.host] = hosts.get(block.host) or block.addresses
    gateways = [block.host for block in blocks if "skillmesh gateway" in block.script]
    with network("rc", hosts, gateways) as net:
        recipe = Recipe(blocks, net, tmp_path, tiny_tasks)
        try:
            for block in blocks:
                recipe.run(block)
            yield recipe
        finally:
            recipe.stop()


def test_the_recipes_are_those_that_were_promised() -> None:
    assert list(recipes()) == [
        "Agents on one machine",
        "Agents on a local network",
        "Fixed peers",
        "Sites through gateways",
        "A client behind a NAT",
        "Certify every agent",
    ]
    assert all(any(block.stays for block in blocks) for blocks in recipes().values())


def test_nobody_has_a_way_to_a_host_behind_a_nat() -> None:
    with network("na", {"gate": ("10.77.0.1",), "ann": ("10.77.0.2",), "bob": ("192.168.1.20",)}) as net:
        way = ["ip", "-n", net.namespace("ann"), "route", "get", "192.168.1.20"]
        assert subprocess.run(way, capture_output=True, check=False).returncode != 0
        way = ["ip", "-n", net.namespace("bob"), "route", "get", "10.77.0.1"]
        assert subprocess.run(way, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    "started",
    [pytest.param(name, marks=() if name == "Agents on one machine" else pytest.mark.slow) for name in recipes()],
    indirect=True,
)
def test_a_recipe_ends_with_every_agent_holding_all(started: Recipe, request: pytest.FixtureRequest) -> None:
    agents, tasks = started.agents(), set[str]().union(*(block.tasks for block in started.blocks))
    assert len(agents) >= 2
    assert len(tasks) >= 2
    with stopwatch(f"all agents of the recipe {request.node.callspec.id!r} have started"):
        eventually(lambda: all(agent.live() == tasks for agent in agents), LONG)
        eventually(lambda: len({agent.root() for agent in agents}) == 1, LONG)
    secure = any("certs issue" in block.script for block in started.blocks)
    for status in [agent.status() for agent in agents]:
        assert (status["trouble"], status["bans"]) == (None, [])
        assert all(place.startswith("tls/" if secure else "tcp/") for place in status["listening"])
