"""The node's side of its socket: answers the commands that `calling` sends.

The socket is a file in the home, so only the home's owner can use it. One thread reads and writes all connections,
so that a caller that is slow, silent or never stops sending cannot block the others; a few worker threads
carry out the requests. Nothing that one caller does ends the reading thread.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import os
import queue
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from skillmesh.errors import SkillmeshError
from skillmesh.mesh.calling import FILE, MAX_REQUEST, busy, reachable

log = logging.getLogger(__name__)

MAX_HELD = 64_000_000
"""Most bytes of requests and answers held in memory, for all callers together."""
MAX_OPEN = 256
"""Most connections at once. Further callers wait to be accepted, usually for milliseconds."""
WORKERS = 32
BACKLOG = 4096
IN_TIME = 10.0
"""Seconds within which a caller must have sent its request, and must have read its answer."""
NO_HURRY = 1.0
"""Least time, in seconds, that a caller gets to send its request, however many others wait."""
LOOK = 0.1
"""Seconds between checks for callers whose time is up."""
AT_THE_END = 1.0
"""Seconds allowed for answers that are still being sent when the node ends."""
ONE_LINE_PER = 60.0
"""Seconds between two log lines about the same kind of problem at the socket."""

Verb = Callable[..., Any]


@dataclass(eq=False)
class _Caller:
    """One connection: its request is read, then carried out, then answered."""

    line: socket.socket
    until: float
    since: float
    request: bytearray | None
    """Bytes read so far; None once the request is complete."""
    in_work: int = 0
    """Size in bytes of the complete request, which is kept until it has been answered."""
    answer: memoryview | None = None

    @property
    def held(self) -> int:
        return len(self.request or b"") + self.in_work + len(self.answer or b"")


class Control:
    """Answers commands until closed."""

    def __init__(self, home: Path, verbs: Mapping[str, Verb]) -> None:
        self._verbs = verbs
        self._path = home / FILE
        self._path.unlink(missing_ok=True)  # left by a killed node; the lock's holder owns it
        self._listener = socket.socket(socket.AF_UNIX)
        with reachable(self._path) as address:
            self._listener.bind(address)
        self._path.chmod(0o600)  # before it listens, so that no other user can connect
        self._listener.listen(BACKLOG)
        self._listener.setblocking(False)
        self._wake_up, self._waker = socket.socketpair()
        self._wake_up.setblocking(False)
        self._waker.setblocking(False)
        self._callers: set[_Caller] = set()
        self._answered: list[tuple[_Caller, bytes]] = []
        self._guard = threading.Lock()
        self._closing = threading.Event()
        self._nonsense, self._trouble = _LimitedLog(), _LimitedLog()
        self._parsing = threading.Lock()
        """Held while a request is parsed, which takes many times its size in memory."""
        self._workers = _Workers()
        self._lines = selectors.DefaultSelector()
        self._lines.register(self._wake_up, selectors.EVENT_READ)
        self._serving = threading.Thread(target=self._serve, name="skillmesh-control", daemon=True)
        self._serving.start()

    def close(self) -> None:
        self._closing.set()
        self._wake()
        self._serving.join(AT_THE_END + 5)
        self._workers.end()
        self._path.unlink(missing_ok=True)

    # The thread that reads and writes.

    def _serve(self) -> None:
        ends = float("inf")
        while time.monotonic() < ends:
            if self._closing.is_set():
                ends = min(ends, time.monotonic() + AT_THE_END)
                if all(caller.request is not None for caller in self._callers):
                    break
            for step in (self._listen, self._handle_events, self._send_answers, self._drop_late):
                with self._errors_logged():
                    step()
        for caller in list(self._callers):
            self._drop(caller)
        for line in (self._listener, self._wake_up, self._waker):
            line.close()
        self._lines.close()

    @contextlib.contextmanager
    def _errors_logged(self, caller: _Caller | None = None) -> Iterator[None]:
        """Log an unexpected error and continue; drop the caller for which it happened, if there is one."""
        try:
            yield
        except Exception:
            self._trouble.log("unexpected error at the node's socket; continuing", traceback=True)
            if caller is None:
                time.sleep(LOOK)  # the error may repeat immediately
            else:
                self._drop(caller)

    def _listen(self) -> None:
        """Accept callers while there are fewer than `MAX_OPEN`; the others wait."""
        if self._closing.is_set():
            self._stop_listening()
            self._listener.close()
        elif len(self._callers) >= MAX_OPEN:
            self._stop_listening()
        elif self._listener not in self._lines.get_map():
            self._lines.register(self._listener, selectors.EVENT_READ)

    def _stop_listening(self) -> None:
        with contextlib.suppress(KeyError, ValueError):  # not registered, or already closed
            self._lines.unregister(self._listener)

    def _handle_events(self) -> None:
        for key, _ in self._lines.select(LOOK):
            with self._errors_logged(key.data):
                self._event(key.fileobj, key.data)

    def _event(self, source: Any, caller: _Caller | None) -> None:
        if source is self._wake_up:
            with contextlib.suppress(BlockingIOError):
                self._wake_up.recv(4096)
        elif caller is None:
            self._accept()
        elif caller.answer is not None:
            self._write(caller)
        elif caller.request is not None:
            self._read(caller)

    def _accept(self) -> None:
        try:
            line, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no file descriptors left; open connections end in time
            self._trouble.log("cannot accept a connection from a command: %s", error)
            time.sleep(LOOK)
            return
        now = time.monotonic()
        caller = _Caller(line, now + IN_TIME, now, bytearray())
        try:
            line.setblocking(False)
            is_owner = _is_owner(line)
            self._lines.register(line, selectors.EVENT_READ, caller)
        except OSError as error:  # this user's limit of watched connections is reached
            self._trouble.log("cannot serve another command: %s", error)
            with contextlib.suppress(OSError):
                line.send(_as_line(busy("cannot serve another command")))
            line.close()
            return
        self._callers.add(caller)
        if not is_owner:
            self._answer(caller, {"error": "this node belongs to another user of this machine"})

    def _read(self, caller: _Caller) -> None:
        assert caller.request is not None
        try:
            data = caller.line.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            self._drop(caller)
            return
        line, newline, _ = data.partition(b"\n")
        caller.request += line
        if len(caller.request) > MAX_REQUEST:
            self._answer(
                caller, {"error": f"the request has more than {MAX_REQUEST:,} bytes; ask for less at once"}
            )
        elif self._held() > MAX_HELD:
            self._answer(caller, busy("has no memory left for another request"))
        elif not data and not caller.request:  # a caller that only checked whether a node listens
            self._answer(caller, {"error": "the node failed: the request is empty"})
        elif newline or not data:
            self._start_work(caller, caller.request)

    def _start_work(self, caller: _Caller, request: bytearray) -> None:
        try:
            self._workers.do(partial(self._work, caller, request))
        except RuntimeError as error:  # the system allows no more threads
            self._trouble.log("cannot serve a command: %s", error)
            self._answer(caller, busy("cannot serve another command"))
            return
        caller.request, caller.in_work = None, len(request)
        caller.until = float("inf")  # the work may take as long as it needs
        self._lines.unregister(caller.line)

    def _work(self, caller: _Caller, request: bytearray) -> None:
        """Carry out the request, in a worker thread."""
        answer = self._reply(request)
        with self._guard:
            self._answered.append((caller, answer))
        self._wake()

    def _send_answers(self) -> None:
        with self._guard:
            answered, self._answered = self._answered, []
        for caller, answer in answered:
            with self._errors_logged(caller):
                caller.in_work = 0
                self._begin_answer(caller, answer)
                if caller in self._callers:  # it has not read the whole answer yet
                    self._lines.register(caller.line, selectors.EVENT_WRITE, caller)
            self._make_room()  # after each answer: there may be many

    def _make_room(self) -> None:
        """Drop the callers that have left answers unread longest, until at most `MAX_HELD` bytes are held."""
        waiting = sorted((c for c in self._callers if c.answer is not None), key=lambda c: c.until)
        while len(waiting) > 1 and self._held() > MAX_HELD:
            self._drop(waiting.pop(0))

    def _answer(self, caller: _Caller, reply: dict[str, Any]) -> None:
        """Answer a caller whose request is not carried out."""
        caller.request = None
        self._begin_answer(caller, _as_line(reply))
        if caller in self._callers:
            self._lines.modify(caller.line, selectors.EVENT_WRITE, caller)

    def _begin_answer(self, caller: _Caller, answer: bytes) -> None:
        caller.answer, caller.until = memoryview(answer), time.monotonic() + IN_TIME
        self._write(caller)

    def _write(self, caller: _Caller) -> None:
        assert caller.answer is not None
        try:
            while caller.answer:
                caller.answer = caller.answer[caller.line.send(caller.answer) :]
        except BlockingIOError:
            return
        except OSError:  # the caller has disconnected
            pass
        self._drop(caller)

    def _drop_late(self) -> None:
        """End connections whose time is up; if others wait, also the oldest one that has not sent its request."""
        now = time.monotonic()
        for caller in [caller for caller in self._callers if caller.until < now]:
            with self._errors_logged(caller):
                if caller.request is not None:
                    self._answer(caller, {"error": f"no request came within {IN_TIME:.0f} s"})
                else:
                    self._drop(caller)
        undecided = [c for c in self._callers if c.request is not None and c.since < now - NO_HURRY]
        if undecided and len(self._callers) >= MAX_OPEN:
            oldest = min(undecided, key=lambda c: c.since)
            with self._errors_logged(oldest):
                self._answer(oldest, busy("has too many callers"))

    def _drop(self, caller: _Caller) -> None:
        self._callers.discard(caller)
        with contextlib.suppress(KeyError, ValueError):  # its request is being carried out, or it was dropped
            self._lines.unregister(caller.line)
        with contextlib.suppress(OSError):
            caller.line.close()

    def _held(self) -> int:
        return sum(caller.held for caller in self._callers)

    def _wake(self) -> None:
        """Make the writing thread check for answers now."""
        with contextlib.suppress(OSError):  # already woken, or ended
            self._waker.send(b"!")

    # What the workers do.

    def _reply(self, line: bytearray) -> bytes:
        try:
            with self._parsing:
                request = json.loads(line)
                line.clear()  # hold it only once
                name = request.pop("verb")
                verb = self._verbs.get(name)
                if verb is None:
                    known = ", ".join(self._verbs)
                    text = f"unknown request {name!r:.100}, expected {known}; is the node of another version?"
                    return _as_line({"error": text})
                inspect.signature(verb).bind(**request)
        except Exception as error:
            self._nonsense.log("invalid request at the node's socket: %s", _short(error))
            return _as_line({"error": f"the node failed: {_short(error)}"})
        try:
            return _as_line({"result": verb(**request)})
        except SkillmeshError as error:
            return _as_line({"error": str(error)})
        except BaseException as error:  # a panic in a native library
            log.exception("a command could not be answered")
            return _as_line({"error": f"the node failed: {_short(error)}"})


class _Workers:
    """Daemon threads, started when they are needed."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._threads = self._jobs_left = 0

    def do(self, job: Callable[[], None]) -> None:
        """Queue a job for a thread; raise `RuntimeError` if there is no thread and none can be started."""
        with self._guard:
            if self._jobs_left >= self._threads and self._threads < WORKERS:
                name = f"skillmesh-control-{self._threads + 1}"
                try:
                    threading.Thread(target=self._run, name=name, daemon=True).start()
                    self._threads += 1
                except RuntimeError:
                    if not self._threads:
                        raise
            self._jobs_left += 1
        self._jobs.put(job)

    def end(self) -> None:
        with self._guard:
            for _ in range(self._threads):
                self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                log.exception("unexpected error in a thread that answers commands; continuing")
            finally:
                del job  # free the request before waiting for the next job
                with self._guard:
                    self._jobs_left -= 1


class _LimitedLog:
    """Logs at most one line per `ONE_LINE_PER` seconds, and counts the lines left out."""

    def __init__(self) -> None:
        self._next, self._left_out = 0.0, 0
        self._guard = threading.Lock()

    def log(self, line: str, *facts: object, traceback: bool = False) -> None:
        with self._guard:
            if time.monotonic() < self._next:
                self._left_out += 1
                return
            self._next = time.monotonic() + ONE_LINE_PER
            left_out, self._left_out = self._left_out, 0
        like_it = f" ({left_out:,} like it before)" if left_out else ""
        log.warning(f"{line}%s", *facts, like_it, exc_info=traceback or None)


def _is_owner(line: socket.socket) -> bool:
    """Return whether the caller is the node's user or root; `True` if the system does not report the user."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, user, _ = struct.unpack("iII", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return user in (os.geteuid(), 0)


def _as_line(reply: dict[str, Any]) -> bytes:
    return json.dumps(reply).encode() + b"\n"


def _short(error: BaseException) -> str:
    """Return an error as one line of bounded length: it may quote what a caller sent."""
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= 300 else f"{text[:300]}…"
