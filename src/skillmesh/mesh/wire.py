"""Messages between agents over a zenoh session: questions with signed replies, announcements, liveliness tokens.

sk/v1/ann/<agent>             put: a signed notice (a hint; it may be lost)
    sk/v1/node/<agent>/<verb>     queryable: digest, notices, piece
    sk/v1/alive/<agent>           liveliness token, declared last

An agent is identified by its public key. A reply is signed over the question, its nonce and the answer: an agent
that sends something false has signed it and can be blamed; none can be blamed for what others send in its name.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import queue
import random
import re
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import zenoh
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skillmesh.errors import MeshError, ModuleError
from skillmesh.mesh.session import close_session
from skillmesh.module.card import Hex, Line, TeacherName
from skillmesh.module.identity import verify
from skillmesh.module.notice import MAX_NOTICE, Announcement, Notice, decode

if TYPE_CHECKING:
    from skillmesh.module import Identity

Result = TypeVar("Result")

NICE = 10
"""Niceness of background threads."""
A_LITTLE = 4
"""Niceness of the mesh's connections: below answers, but not so low that a busy machine loses its peers."""


_STARTED: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _wait_for_threads() -> None:
    """Let threads end that wait in zenoh for a closed session: Python aborts if it meets them while it exits."""
    deadline = time.monotonic() + 2
    for thread in list(_STARTED):
        thread.join(max(0.0, deadline - time.monotonic()))


def thread(
    name: str, target: Callable[[], None], when_over: contextlib.ExitStack | None = None, nice: int = NICE
) -> None:
    """Start a background thread; with `when_over`, closing that waits up to 10 s for the thread."""

    def run() -> None:
        _lower_priority(nice)
        target()

    started = threading.Thread(target=run, name=f"skillmesh-{name}", daemon=True)
    _STARTED.add(started)
    started.start()
    if when_over is not None:
        when_over.callback(started.join, timeout=10)


def pool(name: str, workers: int, when_over: contextlib.ExitStack) -> ThreadPoolExecutor:
    executor = ThreadPoolExecutor(workers, f"skillmesh-{name}", initializer=_lower_priority, initargs=(NICE,))
    when_over.callback(executor.shutdown, wait=False, cancel_futures=True)
    return executor


def from_background(call: Callable[[], Result], nice: int = NICE) -> Result:
    """Call something with a lower priority; threads that it starts inherit the priority."""
    with ThreadPoolExecutor(1, initializer=_lower_priority, initargs=(nice,)) as maker:
        return maker.submit(call).result()


def _lower_priority(nice: int) -> None:
    """Lower this thread's priority so that answers go first: on Linux each thread has its own niceness."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


log = logging.getLogger(__name__)

ROOT = "sk/v1"
NONCE = 8
WAITING_QUESTIONS = 512
WAITING_NOTICES = 512
MAX_QUESTION = 16_384
"""Largest question, in bytes; the largest valid one asks for 512 notices by their short ids."""
_END = object()
_AGENT = re.compile(r"[0-9a-f]{64}")

Answerer = Callable[[bytes], bytes | None]
"""Returns the answer to a question's body; `None` leaves it unanswered."""


class NoReplyError(MeshError):
    """The agent that was asked is gone or too slow, or the reply had no valid signature."""


class LieError(MeshError):
    """An agent signed and sent something that cannot be true."""


class Pending:
    """A question that waits for its reply.

    Any agent can send replies in another's name, any number of times. So replies are checked on arrival, and all
    but the first with a valid signature are dropped: fakes neither fill memory nor displace the genuine reply.
    """

    def __init__(self, agent: str, verb: str, question: bytes, limit: int) -> None:
        self._agent, self._verb, self._question, self._limit = agent, verb, question, limit
        self._reply: bytes | None = None
        self._done = threading.Event()
        self._then: Callable[[], None] = _nothing
        self._guard = threading.Lock()
        self.token = zenoh.CancellationToken()

    def heard(self, reply: zenoh.Reply) -> None:
        """Keep the reply if its signature is valid; zenoh calls this in its own thread."""
        sample = reply.ok
        if sample is None or sample.attachment is None or self._done.is_set():
            return
        signature, body = sample.attachment.to_bytes(), sample.payload.to_bytes()
        if _genuine(self._agent, self._verb, self._question, body, signature):
            with self._guard:
                if self._reply is None and not self._done.is_set():
                    self._reply = body
            self.over()

    def over(self) -> None:
        """End the waiting, with or without a reply."""
        with self._guard:
            then, self._then = self._then, _nothing  # released: it refers to this question and its reply
            self._done.set()
        then()

    def then(self, call: Callable[[], None]) -> None:
        """Call `call`, in a thread of zenoh, once there is a reply or the waiting ends; now if it has ended."""
        with self._guard:
            over = self._done.is_set()
            if not over:
                self._then = call
        if over:
            call()

    def cancel(self) -> None:
        """Cancel the question."""
        self.token.cancel()  # type: ignore[no-untyped-call]

    def wait(self) -> bytes:
        """Wait for the signed reply and return it; raise `NoReplyError` after the timeout set in zenoh."""
        self._done.wait()
        if self._reply is None:
            raise NoReplyError(f"no reply from {self._agent[:12]}… to {self._verb}")
        if len(self._reply) > self._limit:
            raise LieError(f"replied to {self._verb} with {len(self._reply):,} bytes, expected ≤ {self._limit:,}")
        return self._reply


class Wire:
    """One agent's connection for sending and receiving messages."""

    def __init__(self, session: zenoh.Session, identity: Identity) -> None:
        self.session = session
        self._identity = identity
        self._declared: list[Any] = []
        self._inboxes: list[queue.Queue[Any]] = []
        self._token: zenoh.LivelinessToken | None = None
        self.agent = identity.public_key

    def serve(self, answerers: Mapping[str, Answerer]) -> None:
        """Answer questions, each verb in its own thread, so that many requests for pieces delay no digest."""
        for verb, answerer in answerers.items():
            handle = partial(self._serve, verb, answerer)
            inbox = self._inbox(f"serve-{verb}", WAITING_QUESTIONS, MAX_QUESTION, handle)
            self._declared.append(self.session.declare_queryable(_key(self.agent, verb), inbox))

    def hear(self, notice: Callable[[str, bytes], None]) -> None:
        """Call `notice` with the sender and content of every announcement."""
        inbox = self._inbox("hear", WAITING_NOTICES, MAX_NOTICE, partial(self._hear, notice))
        remote = zenoh.Locality.REMOTE
        self._declared.append(self.session.declare_subscriber(f"{ROOT}/ann/*", inbox, allowed_origin=remote))

    def watch(self, changed: Callable[[str, bool], None]) -> None:
        """Call `changed` whenever an agent appears or disappears, and for agents that are already present."""

        def sample(sample: zenoh.Sample) -> None:
            agent = str(sample.key_expr).rsplit("/", 1)[-1]
            if _AGENT.fullmatch(agent) and agent != self.agent:
                changed(agent, sample.kind == zenoh.SampleKind.PUT)

        direct = zenoh.handlers.Callback(sample, indirect=False)
        self._declared.append(
            self.session.liveliness().declare_subscriber(f"{ROOT}/alive/*", direct, history=True)
        )

    def appear(self) -> None:
        """Make this agent visible to others; call it last, since they ask immediately."""
        self._token = self.session.liveliness().declare_token(f"{ROOT}/alive/{self.agent}")

    def announce(self, notice: bytes) -> None:
        """Send a notice to all reachable agents."""
        try:
            self.session.put(
                f"{ROOT}/ann/{self.agent}",
                notice,
                congestion_control=zenoh.CongestionControl.BLOCK,
                priority=zenoh.Priority.DATA_HIGH,
            )
        except zenoh.ZError as error:
            raise NoReplyError(f"cannot announce: {error}") from error

    def ask(self, agent: str, verb: str, body: bytes, timeout: float, limit: int, bulk: bool = False) -> Pending:
        """Send a question to one agent; `wait` on the returned object gives the answer.

        All that claim to be that agent are asked, since only the real one can sign.
        """
        question = os.urandom(NONCE) + body
        pending = Pending(agent, verb, question, limit)
        try:
            self.session.get(
                _key(agent, verb),
                zenoh.handlers.Callback(pending.heard, pending.over, indirect=False),
                payload=question,
                timeout=timeout,
                target=zenoh.QueryTarget.ALL,
                consolidation=zenoh.ConsolidationMode.NONE,
                congestion_control=zenoh.CongestionControl.BLOCK,
                priority=zenoh.Priority.DATA_LOW if bulk else zenoh.Priority.DATA_HIGH,
                cancellation_token=pending.token,
            )
        except zenoh.ZError as error:
            raise NoReplyError(f"cannot ask {agent[:12]}…: {error}") from error
        return pending

    def close(self) -> None:
        """Leave the mesh. Tokens and queryables go with the session."""
        close_session(self.session)
        for waiting in self._inboxes:
            with contextlib.suppress(queue.Full):
                waiting.put_nowait(_END)

    def _serve(self, verb: str, answerer: Answerer, query: zenoh.Query) -> None:
        with query:
            question = query.payload.to_bytes() if query.payload is not None else b""
            body = answerer(question[NONCE:]) if len(question) >= NONCE else None
            if body is not None:
                signature = self._identity.sign("reply", _digest(self.agent, verb, question, body))
                query.reply(_key(self.agent, verb), body, attachment=bytes.fromhex(signature))

    def _hear(self, notice: Callable[[str, bytes], None], sample: zenoh.Sample) -> None:
        sender = str(sample.key_expr).rsplit("/", 1)[-1]
        if _AGENT.fullmatch(sender):
            notice(sender, sample.payload.to_bytes())

    def _inbox(
        self, name: str, size: int, limit: int, handle: Callable[[Any], None]
    ) -> zenoh.handlers.Callback[Any]:
        """Return a handler for zenoh that only puts messages in a queue; a thread of this wire handles them.

        Messages larger than `limit`, or that arrive when the queue is full, are dropped: an announcement is a
        hint, and a question is asked again. The thread never waits inside zenoh, where Python could not end it.
        """
        waiting: queue.Queue[Any] = queue.Queue(size)

        def put(item: Any) -> None:
            try:
                if item.payload is not None and len(item.payload) > limit:
                    raise queue.Full
                waiting.put_nowait(item)
            except queue.Full:
                if isinstance(item, zenoh.Query):
                    item.drop()  # type: ignore[no-untyped-call]

        def take() -> None:
            while True:
                item = waiting.get()
                if item is _END:
                    return
                try:
                    handle(item)
                except zenoh.ZError as error:
                    log.debug("%s: %s", name, error)
                except Exception:
                    log.exception("%s: a message could not be handled", name)

        thread(name, take, nice=A_LITTLE)
        self._inboxes.append(waiting)
        return zenoh.handlers.Callback(put, indirect=False)


def _nothing() -> None:
    pass


def _key(agent: str, verb: str) -> str:
    return f"{ROOT}/node/{agent}/{verb}"


def _digest(agent: str, verb: str, question: bytes, body: bytes) -> str:
    parts = [agent.encode(), verb.encode(), question, body]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _genuine(agent: str, verb: str, question: bytes, body: bytes, signature: bytes) -> bool:
    return verify(agent, "reply", _digest(agent, verb, question, body), signature.hex())


# The three questions that agents send each other, as bytes, and the valid answers to each.
#
#     digest    my root hashes          → a `Hello`, and "same" or the short ids of all notices that I know
#     notices   short ids               → these notices
#     piece     announcement, offset, length  → that part of the announced file, or "not here"
#
# An invalid answer raises `LieError`: replies are signed, so their sender is responsible.

DIGEST, NOTICES, PIECE = "digest", "notices", "piece"

SHORT = 16
"""Number of bytes of a notice's digest that form its short id."""
MAX_DIGEST = 2_000_000
"""Largest reply to `digest`, in bytes: 125,000 notices."""
MAX_NOTICES = 1_000_000
"""Most bytes of notices in one reply; the rest is requested again."""
NOTICES_AT_ONCE = 512
REMEMBERED = 4_096
"""Largest notice, in bytes, that is cached once it is checked: about 3,000 is usual."""
MIN_PIECE, MAX_PIECE = 32_768, 524_288
_PIECE = struct.Struct(">32sQI")


class Hello(BaseModel):
    """What an agent reports about itself at the start of its digest."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: TeacherName
    root: Hex
    live: int = Field(ge=0, le=10**9)
    """Number of tasks that it can answer now."""
    locators: tuple[Annotated[Line, Field(max_length=200)], ...] = Field((), max_length=16)
    same: bool
    """Whether the asking agent knows the same notices; if so, no inventory follows."""


class Digest(NamedTuple):
    """An agent's reply to `digest`."""

    hello: Hello
    inventory: frozenset[bytes]


def short(notice: Notice) -> bytes:
    return bytes.fromhex(notice.digest)[:SHORT]


def write_digest(hello: Hello, notices: Iterable[Notice]) -> bytes:
    """Return the reply to `digest`. If there are too many ids for one reply, it holds a random part of them."""
    head = hello.model_dump_json().encode() + b"\n"
    ids = [] if hello.same else sorted(short(notice) for notice in notices)
    most = (MAX_DIGEST - len(head)) // SHORT
    return head + b"".join(ids if len(ids) <= most else random.sample(ids, most))


def read_digest(body: bytes) -> Digest:
    head, _, inventory = body.partition(b"\n")
    try:
        hello = Hello.model_validate_json(head)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"])) or "it"
        raise LieError(f"its digest is malformed ({where}: {problem['msg']})") from None
    if len(inventory) % SHORT or (hello.same and inventory):
        raise LieError(f"its digest has an inventory of {len(inventory):,} bytes, expected ids of {SHORT}")
    ids = split_ids(inventory)
    distinct = frozenset(ids)
    if len(distinct) < len(ids):
        raise LieError(f"its digest lists {len(ids) - len(distinct):,} ids more than once")
    return Digest(hello, distinct)


def split_ids(joined: bytes) -> list[bytes]:
    return [joined[start : start + SHORT] for start in range(0, len(joined), SHORT)]


def write_notices(wanted: bytes, by_short: dict[bytes, Notice]) -> bytes:
    """Return the reply to `notices`: those of the wanted notices that exist, as many as fit in one reply."""
    lines: list[bytes] = []
    size = 0
    for item in split_ids(wanted[: NOTICES_AT_ONCE * SHORT]):
        notice = by_short.get(item)
        if notice is None:
            continue
        encoded = notice.encode()
        size += len(encoded) + 1
        if size > MAX_NOTICES - MAX_NOTICE and lines:
            break
        lines.append(encoded)
    return b"\n".join(lines)


def read_notices(body: bytes, wanted: Sequence[bytes]) -> list[Notice]:
    """Return the notices in a reply; raise `LieError` if one is invalid or was not asked for."""
    notices = []
    for encoded in body.split(b"\n") if body else ():
        try:
            notice = _decoded(encoded) if len(encoded) <= REMEMBERED else decode(encoded)
        except ModuleError as error:
            raise LieError(f"sent an invalid notice: {error}") from None
        notices.append(notice)
    unasked = {short(notice) for notice in notices} - set(wanted)
    if unasked or len(notices) > len(wanted):
        raise LieError(f"sent {len(notices)} notices, {len(unasked)} of them not asked for")
    return notices


@lru_cache(maxsize=2_048)
def _decoded(encoded: bytes) -> Notice:
    """Return the checked notice; if many peers send the same one, it is checked once."""
    return decode(encoded)


def ask_piece(announcement: Announcement, offset: int, length: int) -> bytes:
    return _PIECE.pack(bytes.fromhex(announcement.digest), offset, length)


def asked_piece(body: bytes) -> tuple[str, int, int] | None:
    """Return the announcement's digest, the offset and the length, or None if the question is invalid."""
    if len(body) != _PIECE.size:
        return None
    digest, offset, length = _PIECE.unpack(body)
    return (digest.hex(), offset, length) if 0 < length <= MAX_PIECE else None


def write_piece(piece: bytes | None) -> bytes:
    return b"-" if piece is None else b"+" + piece


def read_piece(body: bytes, length: int) -> bytes | None:
    if body == b"-":
        return None
    if len(body) != length + 1 or body[:1] != b"+":
        raise LieError(f"sent a piece of {max(len(body) - 1, 0):,} bytes, {length:,} were asked for")
    return body[1:]
