"""Helper processes that decode unusual images, with limits on memory and time that the system enforces.

Decoders allocate as much as a file states, and some can be kept busy for ever. In a process of its own, this only
causes an error for the one image. A helper forks for each image, which takes milliseconds, so nothing that a
decoder does to its process outlasts the image. There are two helpers, to use two processors; the memory of both is
added to this process's own. Formats whose decoders need more memory use both turns at once. A helper is started by
the first image that finds no other free, and ends after a while without work or when this process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from skillmesh.data.formats import jpeg_coefficients
from skillmesh.data.images import (
    A_MEGAPIXEL,
    AN_IMAGE,
    BYTES_A_PIXEL,
    FORGIVEN,
    LEAST_SHARE,
    MEGAPIXELS,
    SECONDS,
    SEVERAL_COPIES,
    SIDES,
    Room,
    UnreadableImageError,
    decode_here,
    hash_here,
    max_pixels,
    rgb_here,
)

IDLE = 60.0
"""Seconds without work after which a helper ends."""
SPARE = 56 * 2**20
"""Bytes that a helper may take in addition to the pixels: for the file itself and a decoder's own tables."""
AT_ONCE = 2
"""Number of helpers, and of images that they decode at the same time."""
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from skillmesh.data import helper; helper.serve()"
)
_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # fewer, larger pages: every image gets fresh memory
}
_FRAME = struct.Struct(">cQ")
_NO_MEMORY = ("decoder error -9", "could not create decoder object")
"""Parts of Pillow's messages when a decoder written in C gets no memory."""
_CRASHED = "its decoder crashed; save the image again with another program"
_REQUEST, _CONTENT, _DONE, _REFUSED, _TOO_LONG = b"q", b"c", b"d", b"r", b"t"


class _EndedError(Exception):
    """The helper has ended, for lack of work or because it was killed. An image can only crash a forked child."""


class Helper:
    """One helper process, started when needed, and the socket to it."""

    def __init__(self) -> None:
        self._alone = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._started_for = (0, 0)
        self._share = 1.0
        """Share of the usual time that the next image gets, 0 to 1."""
        self._late = 0.0
        """Time when an image last took too long, by the monotonic clock."""

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def run(self, verb: str, kind: str, size: int, data: bytes) -> bytes:
        """Return a decoded image or its hash; raise `UnreadableImageError` on any failure."""
        with self._alone:
            if time.monotonic() - self._late > FORGIVEN:
                self._share = 1.0
            request = json.dumps([verb, kind, size, self._share]).encode()
            for _ in range(2):
                try:
                    self._start()
                    return self._exchange(request, data)
                except _EndedError:
                    self.stop()
                except OSError as error:
                    self.stop()
                    raise UnreadableImageError(
                        f"the process that decodes such images cannot start: {error}"
                    ) from error
        raise UnreadableImageError("the process that decodes such images ended twice; try again")

    def _start(self) -> None:
        """Start the process unless it runs for this process and the current limit (a fork copies the parent's)."""
        if self._process is not None and self._started_for == (os.getpid(), max_pixels()):
            return
        self.stop()
        self._started_for = os.getpid(), max_pixels()
        self._line, theirs = socket.socketpair()
        path = json.dumps([str(Path(part).resolve()) for part in sys.path])
        with theirs, contextlib.ExitStack() as on_failure:
            on_failure.enter_context(self._line)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START, path],  # -I: nothing is imported from the current folder
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | _ENVIRONMENT,
                start_new_session=True,  # so that it can be stopped together with its forked child
            )
            on_failure.pop_all()

    def _exchange(self, request: bytes, data: bytes) -> bytes:
        deadline = time.monotonic() + SECONDS
        try:
            _send(self._line, _REQUEST, request, deadline)
            _send(self._line, _CONTENT, data, deadline)
            kind, reply = _receive(self._line, deadline)
        except TimeoutError:
            self.stop()
            kind, reply = _TOO_LONG, b""
        except OSError:
            raise _EndedError from None
        except BaseException:  # Ctrl-C: the next image must not get the reply to this one
            self.stop()
            raise
        if kind == _TOO_LONG:
            less = " (it had less time than usual, since images before it were slow)" if self._share < 1 else ""
            self._share, self._late = max(LEAST_SHARE, self._share / 2), time.monotonic()
            raise UnreadableImageError(
                f"decoding takes longer than an image of its size should{less}; try it alone, or save it again "
                "with another program"
            )
        if kind == _REFUSED:
            raise UnreadableImageError(reply.decode())
        self._share = min(1.0, 2 * self._share)
        return reply

    def leave(self) -> None:
        """Close this process's copy of the socket; the helper continues for the process that started it."""
        if self._process is not None:
            self._line.close()

    def stop(self) -> None:
        if self._process is None:
            return
        self._line.close()
        if self._started_for[0] == os.getpid():
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None


class Helpers:
    """The helpers of this process, shared by its threads: a thread that finds none free waits."""

    def __init__(self) -> None:
        self._all = [Helper() for _ in range(AT_ONCE)]
        self._free = list(self._all)
        self._turns = Room(AT_ONCE)

    @property
    def are_running(self) -> bool:
        return any(helper.is_running for helper in self._all)

    def run(self, verb: str, kind: str, size: int, data: bytes) -> bytes:
        """Return a decoded image or its hash; raise `UnreadableImageError` on any failure."""
        with self._turns.taken(AT_ONCE if kind in SEVERAL_COPIES else 1):
            helper = self._free.pop()  # the one used last; a second is started only if it has work
            try:
                return helper.run(verb, kind, size, data)
            finally:
                self._free.append(helper)

    def stop(self) -> None:
        for helper in self._all:
            helper.stop()

    def reset(self) -> None:
        """Replace the helpers after a fork: the old ones belong to the parent process."""
        for helper in self._all:
            helper.leave()
        self._all = [Helper() for _ in range(AT_ONCE)]
        self._free = list(self._all)


HELPERS = Helpers()
atexit.register(HELPERS.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: HELPERS.reset())


def _send(line: socket.socket, kind: bytes, data: bytes, deadline: float | None = None) -> None:
    if deadline is not None:
        line.settimeout(max(0.01, deadline - time.monotonic()))
    line.sendall(_FRAME.pack(kind, len(data)))
    line.sendall(data)


def _receive(line: socket.socket, deadline: float) -> tuple[bytes, bytes]:
    kind, size = _FRAME.unpack(_exactly(line, _FRAME.size, deadline))
    return kind, _exactly(line, size, deadline)


def _exactly(line: socket.socket, size: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        line.settimeout(max(0.01, deadline - time.monotonic()))
        if not (part := line.recv(min(size - len(data), 2**16))):
            raise ConnectionError("closed")
        data += part
    return bytes(data)


def serve() -> None:
    """Run as a helper: decode images that arrive on standard input, a socket, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent handles Ctrl-C, and it ends with its parent
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the process that started it may ignore this signal
    line = socket.socket(fileno=0)
    _prepare_pillow()
    with line.makefile("rb") as stream, contextlib.suppress(OSError, struct.error):  # the other process has ended
        while any(select.select([line], [], [], IDLE)):
            request = stream.read(_FRAME.unpack(stream.read(_FRAME.size))[1])
            data = stream.read(_FRAME.unpack(stream.read(_FRAME.size))[1])
            if (child := os.fork()) == 0:
                signal.alarm(int(SECONDS) + 5)  # the process that asked may have ended and cannot stop this one
                verb, kind, size, share = json.loads(request)
                _bound_memory(kind)
                answer = _answered(verb, kind, size, share, data)
                signal.setitimer(signal.ITIMER_PROF, 0)  # half an answer would be read as part of the next one
                _send(line, *answer)
                os._exit(0)
            del data
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if ended == -signal.SIGPROF:
                _send(line, _TOO_LONG, b"")
            elif ended != 0:
                _send(line, _REFUSED, _CRASHED.encode())
    os._exit(0)


def _prepare_pillow() -> None:
    """Load what all images need before the first fork; replace Pillow's own limit on pixels by ours."""
    import resource

    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    Image.init()
    with contextlib.suppress(ImportError):  # Pillow before 11.3; each thread of a decoder has its own buffers
        from PIL import AvifImagePlugin

        AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _bound_memory(kind: str) -> None:
    """Limit the memory allocated from now on to what the format may take."""
    import resource

    with contextlib.suppress(OSError, ValueError):  # not on every system
        now = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (now + _allowance(kind),) * 2)


def _allowance(kind: str) -> int:
    return SPARE + SEVERAL_COPIES.get(kind, BYTES_A_PIXEL) * max_pixels()


def _too_large_jpeg(data: bytes, kind: str) -> bool:
    """Return whether a JPEG failed for lack of memory, which its decoder reports as broken data."""
    try:
        return kind == "jpeg" and jpeg_coefficients(data) + len(data) > 0.9 * _allowance(kind)
    except (struct.error, IndexError):  # cut off within the header
        return False


def _answered(verb: str, kind: str, size: int, share: float, data: bytes) -> tuple[bytes, bytes]:
    """Decode or hash; the system ends this process if it exceeds the image's processor time."""
    each = A_MEGAPIXEL.get(kind, A_MEGAPIXEL["other"])

    def allow(pixels: int) -> None:
        signal.setitimer(signal.ITIMER_PROF, share * (AN_IMAGE + each * min(pixels, max_pixels()) / 1e6))

    allow(0)
    try:
        if verb == "hash":
            return _DONE, hash_here(data, kind, allow)
        if verb == "rgb":
            rgb = rgb_here(data, kind, size, allow)
            return _DONE, struct.pack(SIDES, *rgb.size) + rgb.tobytes()
        return _DONE, decode_here(data, kind, size, allow).tobytes()
    except UnreadableImageError as error:
        if not any(text in str(error) for text in _NO_MEMORY) and not _too_large_jpeg(data, kind):
            return _REFUSED, str(error).encode(errors="replace")
    except MemoryError:
        pass
    reason = (
        f"decoding it needs more than {_allowance(kind) / 1e6:.0f} MB of memory; shrink the image, or set "
        f"{MEGAPIXELS} to more than {max_pixels() // 10**6}"
    )
    return _REFUSED, reason.encode()
