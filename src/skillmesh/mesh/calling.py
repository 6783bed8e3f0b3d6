"""Client side of the node's socket: a command sends one JSON line to the node on its home and reads one back.

Commands need a running node only for what it alone knows (peers, progress) or has loaded (a backbone). They use
the bank and the ledger directly, as files. `control` is the node's side of the socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from skillmesh.errors import AgentError

FILE = "node.socket"
MAX_PATH = 100
"""Longest path of a socket, in bytes: operating systems allow 104 to 108."""
MAX_LINE = 64_000_000
"""Largest answer, in bytes."""
MAX_REQUEST = 2_000_000
"""Largest request, in bytes; the paths of all images that one command may name take less."""
FIRST_WAIT, LONGEST_WAIT = 0.02, 0.5
"""First and longest wait, in seconds, before a refused request is sent again; the wait doubles each time."""


class NotRunningError(AgentError):
    """No node runs on this home."""


class BusyError(AgentError):
    """The node was too busy to accept the request for as long as the caller would wait."""


def call(home: Path, verb: str, timeout: float | None = 60.0, **arguments: Any) -> Any:
    """Send a request to the node on this home and return its result; retry while the node is too busy.

    Raise `NotRunningError` if no node runs, `BusyError` if it is still busy after `timeout` seconds.
    """
    request = json.dumps({"verb": verb} | arguments).encode() + b"\n"
    if len(request) > MAX_REQUEST:
        raise AgentError(f"the request has {len(request):,} bytes, the limit is {MAX_REQUEST:,}; ask for less")
    until = float("inf") if timeout is None else time.monotonic() + timeout
    wait = FIRST_WAIT
    try:
        reply = _exchange(home, request, timeout)
        while reply.get("busy") and (left := until - time.monotonic() - wait) > 0:
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
            with contextlib.suppress(TimeoutError):  # it is still busy: keep its last reply
                reply = _exchange(home, request, None if timeout is None else left)
    except TimeoutError as error:
        raise AgentError(f"the node on {home} did not reply within {timeout:.0f} s; check its log") from error
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError, AttributeError) as error:
        raise NotRunningError(f"no node runs on {home}; start one with `skillmesh serve`") from error
    except OSError as error:
        user = isinstance(error, PermissionError)
        what_to_do = "run this as the user who started it" if user else "fix that and try again"
        reason = error.strerror or error
        raise AgentError(f"cannot connect to the node on {home}: {reason}; {what_to_do}") from error
    if "error" in reply:
        raise (BusyError if reply.get("busy") else AgentError)(reply["error"])
    if "result" not in reply:
        raise NotRunningError(
            f"the node on {home} stopped before it replied; start it again with `skillmesh serve`"
        )
    return reply["result"]


def _exchange(home: Path, request: bytes, timeout: float | None) -> dict[str, Any]:
    """Send the request once and return the reply; it is empty if the node stopped before it ended."""
    with socket.socket(socket.AF_UNIX) as line, reachable(home / FILE) as address:
        line.settimeout(timeout)
        try:
            line.connect(address)
        except BlockingIOError:  # the socket's queue of waiting callers is full
            return busy("has too many callers")
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its reply may give the reason
                line.sendall(request)
            with line.makefile("rb") as stream:
                reply = json.loads(stream.readline(MAX_LINE) or b"{}")
        except (ValueError, ConnectionResetError):
            return {}
    return reply if isinstance(reply, dict) else {}


def busy(why: str) -> dict[str, Any]:
    """Return the reply to a request that is refused for now; `call` sends the request again."""
    return {"error": f"the node {why}; try again in a moment", "busy": True}


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """Yield the path of a socket, or a shorter path to it: systems allow about a hundred bytes only."""
    if len(os.fsencode(path)) <= MAX_PATH or not Path("/proc/self/fd").exists():
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
