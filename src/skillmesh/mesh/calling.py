"""How a command talks to the node that runs on its home: one JSON line through a socket there, one back.

Commands beside a node need it only for what it alone knows (peers, progress) or has at hand (a loaded backbone).
Bank and ledger are files that they use directly. The other end of the socket is `control`.
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
"""Bytes of a socket's path: systems take 104 to 108."""
MAX_LINE = 64_000_000
"""Bytes of an answer."""
MAX_REQUEST = 2_000_000
"""Bytes of a request; the paths of as many images as a command names at once have less."""
FIRST_WAIT, LONGEST_WAIT = 0.02, 0.5
"""Seconds before a request that a busy node refused is sent again; they double each time."""


class NotRunningError(AgentError):
    """No node runs on this home."""


class BusyError(AgentError):
    """The node has too much to do, and had it for as long as the caller would wait."""


def call(home: Path, verb: str, timeout: float | None = 60.0, **arguments: Any) -> Any:
    """Have the node on this home do something; while it is too busy to take the request, try again.

    `NotRunningError` where there is no node, `BusyError` where it is still busy after `timeout` seconds.
    """
    request = json.dumps({"verb": verb} | arguments).encode() + b"\n"
    if len(request) > MAX_REQUEST:
        raise AgentError(f"the request has {len(request):,} bytes, the node takes {MAX_REQUEST:,}; ask for less")
    until = float("inf") if timeout is None else time.monotonic() + timeout
    wait = FIRST_WAIT
    try:
        reply = _exchange(home, request, timeout)
        while reply.get("busy") and (left := until - time.monotonic() - wait) > 0:
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
            with contextlib.suppress(TimeoutError):  # it was busy, and still is
                reply = _exchange(home, request, None if timeout is None else left)
    except TimeoutError as error:
        raise AgentError(f"the node on {home} did not reply within {timeout:.0f} s; look at its log") from error
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError, AttributeError) as error:
        raise NotRunningError(f"no node runs on {home}; start one with `skillmesh serve`") from error
    except OSError as error:
        user = isinstance(error, PermissionError)
        what_to_do = "run this as the user who started it" if user else "mend that and try again"
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
    """Send the request once; return the reply, empty where the node stopped before its reply was whole."""
    with socket.socket(socket.AF_UNIX) as line, reachable(home / FILE) as address:
        line.settimeout(timeout)
        try:
            line.connect(address)
        except BlockingIOError:  # the system lets no more callers wait for the node
            return busy("has too many callers")
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may say why it listens no more
                line.sendall(request)
            with line.makefile("rb") as stream:
                reply = json.loads(stream.readline(MAX_LINE) or b"{}")
        except (ValueError, ConnectionResetError):
            return {}
    return reply if isinstance(reply, dict) else {}


def busy(why: str) -> dict[str, Any]:
    """Return the reply to somebody whose request is not taken now; `call` sends it again."""
    return {"error": f"the node {why}; try again in a moment", "busy": True}


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """The path, or a short way to it: a socket's path may have some hundred bytes only."""
    if len(os.fsencode(path)) <= MAX_PATH or not Path("/proc/self/fd").exists():
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
