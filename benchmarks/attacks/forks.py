"""Commands as children of one process that has everything loaded: they start at once and can be killed."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from attacks import homes

HOW = ("before", "after", "halfway")
"""When a command is killed at a call; `halfway` writes half of its data first."""
TOO_LONG = 60.0
"""Seconds after which a child that should have ended counts as failed."""


@dataclass(frozen=True)
class Moment:
    """When to kill: after some seconds, or at a call that changes files if that comes first."""

    seconds: float | None = None
    call: int = 0
    how: str = "after"

    def __str__(self) -> str:
        return f"{self.how} call {self.call}" if self.call else f"after {(self.seconds or 0) * 1000:.0f} ms"


@dataclass(frozen=True)
class Outcome:
    """How a child ended."""

    killed: bool
    status: int
    printed: str
    complaint: str
    seconds: float


def load_all(network: bool) -> None:
    """Import what commands need, and load the network if it is needed, without starting a thread."""
    from skillmesh import agent
    from skillmesh.backbone.backbone import load_calibration
    from skillmesh.cli import COMMANDS
    from skillmesh.store import home

    for name in COMMANDS:
        import_module(f"skillmesh.cli.{name}")
    agent.load_calibration = home.load_calibration = cache(load_calibration)  # type: ignore[attr-defined]
    homes.make_repeatable()
    if network:
        _share_the_network()


def _share_the_network() -> None:
    """Load the network once for all children; each opens the descriptor cache itself."""
    import torch

    from skillmesh.backbone.backbone import Backbone, DescriptorCache, default_folder, load_calibration

    torch.set_num_threads(1)
    loaded = Backbone.load()

    def share(name: str, weights: Any = None, calibration: Any = None, *_: Any, **__: Any) -> Backbone:
        descriptors = DescriptorCache(default_folder(), loaded.network.fingerprint, engine=loaded.network.engine)
        return Backbone(loaded.network, load_calibration(name, calibration), descriptors)

    Backbone.from_settings = share  # type: ignore[method-assign, assignment]


def load_what_it_needs(work: Callable[[], Any]) -> None:
    """Run something in a child once, and import here what it imported; not zenoh, which starts threads."""

    def names() -> list[str]:
        before = set(sys.modules)
        work()
        return sorted(set(sys.modules) - before)

    for name in in_child(names):
        if not name.startswith(("zenoh", "__")):
            with contextlib.suppress(
                Exception
            ):  # modules that cannot be imported here are imported by the children
                import_module(name)


def in_child(work: Callable[[], Any]) -> Any:
    """Return the JSON-compatible result of a function run in a child; raise `RuntimeError` with its traceback."""
    ears, mouth = os.pipe()
    child = os.fork()
    if not child:
        _work_and_end(work, ears, mouth)
    os.close(mouth)
    with os.fdopen(ears) as stream:
        output = stream.read()
    status = os.waitpid(child, 0)[1]
    if not output:
        raise RuntimeError(f"the child ended with {status} and reported nothing")
    result = json.loads(output)
    if "error" in result:
        raise RuntimeError(result["error"])
    return result["result"]


def _work_and_end(work: Callable[[], Any], ears: int, mouth: int) -> None:
    try:
        os.close(ears)
        silent()
        try:
            result = {"result": work()}
        except BaseException:
            result = {"error": traceback.format_exc()[-3000:]}
        with os.fdopen(mouth, "w") as stream:
            json.dump(result, stream)
    finally:
        os._exit(0)


def silent(output: int | None = None, errors: Path | None = None) -> None:
    """Redirect the standard streams of this process, a child: no input, and output to nowhere or to a pipe."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere if output is None else output, 1)
    wanted = nowhere if errors is None else os.open(errors, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    os.dup2(wanted, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115


def attempt(
    words: list[str],
    work: Path,
    errors: Path,
    moment: Moment | None = None,
    log: Path | None = None,
) -> Outcome:
    """Run a command in a child and kill it at a moment; with a `log`, record its file operations under `work`."""
    ears, mouth = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if not child:
        _run_and_end(words, work, errors, moment, log, mouth)
    os.close(mouth)
    deadline = began + (moment.seconds if moment and moment.seconds is not None else TOO_LONG)
    printed = b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([ears], [], [], left)[0]:
            continue
        piece = os.read(ears, 65536)
        if not piece:
            break
        printed += piece
    else:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    while piece := os.read(ears, 65536):
        printed += piece
    os.close(ears)
    status = os.waitpid(child, 0)[1]
    complaint = errors.read_text(errors="replace")[-2000:] if errors.exists() else ""
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return Outcome(killed, status, printed.decode(errors="replace"), complaint, time.monotonic() - began)


def _run_and_end(
    words: list[str], work: Path, errors: Path, moment: Moment | None, log: Path | None, mouth: int
) -> None:
    status = 70
    try:
        record = -1 if log is None else os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_APPEND, 0o600)
        silent(mouth, errors)
        os.close(mouth)
        call, how = (0, 0) if moment is None else (moment.call, HOW.index(moment.how))
        if call or record >= 0:
            begin = ctypes.CDLL(None).write_log_begin
            begin.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_int]
            begin(os.fsencode(work), record, 1, call, how)
        status = homes.run_command(words)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
