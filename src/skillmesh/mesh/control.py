"""Talking to a node that runs: a socket in its home, one JSON line there and one back.

Commands beside a node need it only for what it alone knows (peers, progress) or has at hand (a loaded backbone).
Bank and ledger are files that they use directly. The socket is a file too, so only the home's owner can use it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from skillmesh.errors import AgentError, SkillmeshError

log = logging.getLogger(__name__)

FILE = "node.socket"
MAX_PATH = 100
"""Bytes of a socket's path: systems take 104 to 108."""
MAX_LINE = 64_000_000
LOOK = 0.1
"""Seconds between looks at whether to end."""

Verb = Callable[..., Any]


class NotRunningError(AgentError):
    """No node runs on this home."""


class Control:
    """Answers commands until closed."""

    def __init__(self, home: Path, verbs: Mapping[str, Verb]) -> None:
        self._path = home / FILE
        self._path.unlink(missing_ok=True)  # whoever holds the node's lock owns it; a killed node leaves it behind
        with _reachable(self._path) as address:
            self._server = _Server(address, _handler(verbs))
        self._path.chmod(0o600)
        threading.Thread(
            target=self._server.serve_forever, args=(LOOK,), name="skillmesh-control", daemon=True
        ).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._path.unlink(missing_ok=True)


def call(home: Path, verb: str, timeout: float | None = 60.0, **arguments: Any) -> Any:
    """Have the node on this home do something; `NotRunningError` where there is none."""
    try:
        with socket.socket(socket.AF_UNIX) as line, _reachable(home / FILE) as address:
            line.settimeout(timeout)
            line.connect(address)
            with line.makefile("rwb") as stream:
                stream.write(json.dumps({"verb": verb} | arguments).encode() + b"\n")
                stream.flush()
                reply = json.loads(stream.readline(MAX_LINE) or b"{}")
    except TimeoutError as error:
        raise AgentError(f"the node on {home} did not reply within {timeout:.0f} s; look at its log") from error
    except ValueError:
        reply = {}  # it ended in the middle of a line
    except (OSError, AttributeError) as error:
        raise NotRunningError(f"no node runs on {home}; start one with `skillmesh serve`") from error
    if "error" in reply:
        raise AgentError(reply["error"])
    if "result" not in reply:
        raise NotRunningError(
            f"the node on {home} stopped before it replied; start it again with `skillmesh serve`"
        )
    return reply["result"]


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 128  # beyond so many waiting, a caller would be told that no node runs


def _handler(verbs: Mapping[str, Verb]) -> type[socketserver.StreamRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):  # whoever asked has gone
                self.wfile.write(json.dumps(_answer(verbs, self.rfile.readline(MAX_LINE))).encode() + b"\n")

    return Handler


def _answer(verbs: Mapping[str, Verb], line: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(line)
        verb = asked.pop("verb")
        if verb not in verbs:
            return {"error": f"the node knows no {verb!r}, only {', '.join(verbs)}; is it of another version?"}
        return {"result": verbs[verb](**asked)}
    except SkillmeshError as error:
        return {"error": str(error)}
    except Exception as error:
        log.exception("a command could not be answered")
        return {"error": f"the node failed: {type(error).__name__}: {error}"}


@contextlib.contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """The path, or a short way to it: a socket's path may have some hundred bytes only."""
    if len(os.fsencode(path)) <= MAX_PATH or not Path("/proc/self/fd").exists():
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
