"""Commands in the docs, run as written in one shell on a terminal of 80 columns.

python tests/helpers/transcripts.py docs/tutorial.md    # run it again, and write its output into the document
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
PROMPT = "$ "
MARK = "@@ command "


@dataclass(frozen=True)
class Step:
    """A command, and what it prints."""

    command: str
    output: str
    status: int = 0


def steps_of(document: str) -> list[Step]:
    """Return the commands of all console blocks, in order, with what the document says that they print."""
    steps: list[Step] = []
    for block in BLOCK.findall(document):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            while command.endswith("\\"):
                more, _, output = output.partition("\n")
                command += "\n" + more
            steps.append(Step(command, output))
    return steps


def run(commands: Sequence[str], folder: Path, home: Path) -> list[Step]:
    """Run commands one after the other in one shell, as a user at a terminal of 80 columns would."""
    script = "\n".join(f"{command}\nprintf '\\n{MARK}%d\\n' $?" for command in commands)
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "HOME": str(home),
        "USER": "anna",
        "TERM": "dumb",
        "COLUMNS": "80",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2"),
    }
    printed = in_terminal(["bash", "-c", script], folder, environment)
    host = socket.gethostname().partition(".")[0]
    for ours, shown in ((str(home), "/home/anna"), (f"anna-{host}", "anna-laptop")):
        printed = printed.replace(ours, shown)
    steps = []
    for command in commands:
        output, _, rest = printed.partition(f"\n{MARK}")
        status, _, printed = rest.partition("\n")
        steps.append(Step(command, output, int(status)))
    return steps


def in_terminal(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Run a program whose input and output are a terminal of 80 columns, and return what it prints."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=dict(environment),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    printed = b""
    try:
        while chunk := os.read(ours, 65536):
            printed += chunk
    except OSError:  # so a terminal ends on Linux
        pass
    finally:
        os.close(ours)
        process.wait()
    return printed.decode().replace("\r\n", "\n")


def comparable(text: str) -> str:
    """Leave out what differs from run to run: figures, keys, where lines end, and the order of arrivals."""
    text = re.sub(r"[0-9a-f]{8,64}", "KEY", text)
    text = re.sub(r"[\d.,]+", "#", text)
    text = re.sub(
        r"(?:^.* imported .*\n)+", lambda found: "".join(sorted(found[0].splitlines(True))), text, flags=re.M
    )
    return " ".join(text.split())


def rewritten(document: str, steps: Sequence[Step]) -> str:
    """Put what the commands printed into the document."""
    rest = iter(steps)

    def block(found: re.Match[str]) -> str:
        count = len(re.findall(r"^\$ ", found[1], flags=re.MULTILINE))
        shown = [f"{PROMPT}{step.command}\n{step.output.strip()}".rstrip() for step in islice(rest, count)]
        return "```console\n" + "\n".join(shown) + "\n```"

    return BLOCK.sub(block, document)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("document", type=Path)
    document: Path = parser.parse_args().document
    text = document.read_text()
    with tempfile.TemporaryDirectory() as place:
        folder, home = Path(place) / "work", Path(place) / "home"
        folder.mkdir()
        home.mkdir()
        steps = run([step.command for step in steps_of(text)], folder, home)
    document.write_text(rewritten(text, steps))
    for step in steps:
        if step.status:
            print(f"status {step.status}: {step.command}")


if __name__ == "__main__":
    main()
