"""What agents say to each other over a zenoh session: questions with signed replies, announcements, signs of life.

sk/v1/ann/<agent>             put: a signed notice (a hint; it may be lost)
    sk/v1/node/<agent>/<verb>     queryable: digest, notices, piece
    sk/v1/alive/<agent>           liveliness token, declared last

An agent is known by its public key. A reply is signed over the question, its nonce and the answer: whoever sends
something false has signed it and can be blamed, and nobody can be blamed for what another sent in its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import queue
import random
import re
import struct
import threading
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
"""How far work in the background steps back."""
A_LITTLE = 4
"""How far the mesh's lines do: behind answers, but not so far that a busy machine loses its peers."""


def thread(
    name: str, target: Callable[[], None], when_over: contextlib.ExitStack | None = None, nice: int = NICE
) -> None:
    """Start a thread, and wait for it at the end where there is something to wait for."""

    def run() -> None:
        _step_back(nice)
        target()

    started = threading.Thread(target=run, name=f"skillmesh-{name}", daemon=True)
    started.start()
    if when_over is not None:
        when_over.callback(started.join, timeout=10)


def pool(name: str, workers: int, when_over: contextlib.ExitStack) -> ThreadPoolExecutor:
    made = ThreadPoolExecutor(workers, f"skillmesh-{name}", initializer=_step_back, initargs=(NICE,))
    when_over.callback(made.shutdown, wait=False, cancel_futures=True)
    return made


def from_background(call: Callable[[], Result], nice: int = NICE) -> Result:
    """Call something whose own threads shall step back too: they inherit that from their maker."""
    with ThreadPoolExecutor(1, initializer=_step_back, initargs=(nice,)) as maker:
        return maker.submit(call).result()


def _step_back(nice: int) -> None:
    """Let answers go first: on Linux each thread has a niceness of its own."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


log = logging.getLogger(__name__)

ROOT = "sk/v1"
NONCE = 8
WAITING_QUESTIONS = 512
WAITING_NOTICES = 512
MAX_QUESTION = 16_384
"""Bytes; the largest asks for 512 notices by their short ids."""
_END = object()
_AGENT = re.compile(r"[0-9a-f]{64}")

Answerer = Callable[[bytes], bytes | None]
"""Makes the answer to a question's body; `None` leaves it unanswered."""


class NoReplyError(MeshError):
    """The agent that was asked is gone, too slow, or did not sign what came back."""


class LieError(MeshError):
    """An agent sent, under its signature, what cannot be true."""


class Pending:
    """A question under way.

    Anybody can answer in another's name, as often as it likes. So replies are checked as they come, and all but
    the first that is signed are dropped: those who pretend neither fill memory nor crowd out the right one.
    """

    def __init__(self, agent: str, verb: str, question: bytes, limit: int) -> None:
        self._agent, self._verb, self._question, self._limit = agent, verb, question, limit
        self._reply: bytes | None = None
        self._done = threading.Event()
        self._then: Callable[[], None] = _nothing
        self._guard = threading.Lock()
        self.token = zenoh.CancellationToken()

    def heard(self, reply: zenoh.Reply) -> None:
        """Keep the reply, if it is one; this runs in a thread of zenoh."""
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
        """Note that no more is waited for."""
        with self._guard:
            then, self._then = self._then, _nothing  # held no longer: it holds this question, and so its reply
            self._done.set()
        then()

    def then(self, call: Callable[[], None]) -> None:
        """Call this, in a thread of zenoh, when there is a reply or will be none; at once where that is so."""
        with self._guard:
            over = self._done.is_set()
            if not over:
                self._then = call
        if over:
            call()

    def cancel(self) -> None:
        """Ask no longer."""
        self.token.cancel()  # type: ignore[no-untyped-call]

    def wait(self) -> bytes:
        """The signed reply; zenoh's timeout ends the waiting."""
        self._done.wait()
        if self._reply is None:
            raise NoReplyError(f"no reply from {self._agent[:12]}… to {self._verb}")
        if len(self._reply) > self._limit:
            raise LieError(f"replied to {self._verb} with {len(self._reply):,} bytes, expected ≤ {self._limit:,}")
        return self._reply


class Wire:
    """One agent's end of the mesh."""

    def __init__(self, session: zenoh.Session, identity: Identity) -> None:
        self.session = session
        self._identity = identity
        self._declared: list[Any] = []
        self._inboxes: list[queue.Queue[Any]] = []
        self._token: zenoh.LivelinessToken | None = None
        self.agent = identity.public_key

    def serve(self, answerers: Mapping[str, Answerer]) -> None:
        """Answer questions, each verb in a thread of its own: a rush for pieces delays no digest."""
        for verb, answerer in answerers.items():
            handle = partial(self._serve, verb, answerer)
            inbox = self._inbox(f"serve-{verb}", WAITING_QUESTIONS, MAX_QUESTION, handle)
            self._declared.append(self.session.declare_queryable(_key(self.agent, verb), inbox))

    def hear(self, notice: Callable[[str, bytes], None]) -> None:
        """Call `notice` with sender and content of every announcement."""
        inbox = self._inbox("hear", WAITING_NOTICES, MAX_NOTICE, partial(self._hear, notice))
        remote = zenoh.Locality.REMOTE
        self._declared.append(self.session.declare_subscriber(f"{ROOT}/ann/*", inbox, allowed_origin=remote))

    def watch(self, changed: Callable[[str, bool], None]) -> None:
        """Call `changed` whenever an agent appears or is gone, and for those that are there already."""

        def sample(sample: zenoh.Sample) -> None:
            agent = str(sample.key_expr).rsplit("/", 1)[-1]
            if _AGENT.fullmatch(agent) and agent != self.agent:
                changed(agent, sample.kind == zenoh.SampleKind.PUT)

        direct = zenoh.handlers.Callback(sample, indirect=False)
        self._declared.append(
            self.session.liveliness().declare_subscriber(f"{ROOT}/alive/*", direct, history=True)
        )

    def appear(self) -> None:
        """Let others know that this agent is there; declared last, since they ask at once."""
        self._token = self.session.liveliness().declare_token(f"{ROOT}/alive/{self.agent}")

    def announce(self, notice: bytes) -> None:
        """Tell everyone in reach."""
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
        """Put a question to one agent; `wait` on what comes back gives the answer.

        All who claim to be that agent are asked, since only one of them can sign.
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
        """A handler for zenoh that only puts things in a queue; a thread of ours takes them out.

        What is larger than `limit`, or comes when the queue is full, is dropped: an announcement is a hint, and a
        question is asked again. No thread of ours ever waits inside zenoh, where the interpreter could not end it.
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
                    log.exception("%s: something could not be handled", name)

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


# The three questions that agents put to each other, as bytes, and what is a possible answer to each.
#
#     digest    my root hashes          → who I am and "the same", or the short ids of all notices that I know
#     notices   short ids               → these notices
#     piece     announcement, offset, length  → that part of the announced file, or "not here"
#
# What is impossible raises `LieError`: replies are signed, so it is their sender's doing.

DIGEST, NOTICES, PIECE = "digest", "notices", "piece"

SHORT = 16
"""Bytes of a notice's digest that name it in an inventory."""
MAX_DIGEST = 2_000_000
"""Bytes: 125,000 notices."""
MAX_NOTICES = 1_000_000
"""Bytes of notices in one reply; the rest is asked for again."""
NOTICES_AT_ONCE = 512
REMEMBERED = 4_096
"""Bytes of a notice up to which it is remembered as checked: some 3,000 are usual."""
MIN_PIECE, MAX_PIECE = 32_768, 524_288
_PIECE = struct.Struct(">32sQI")


class Hello(BaseModel):
    """What an agent says of itself in front of its digest."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: TeacherName
    root: Hex
    live: int = Field(ge=0, le=10**9)
    """Tasks that it can answer now."""
    locators: tuple[Annotated[Line, Field(max_length=200)], ...] = Field((), max_length=16)
    same: bool
    """Whether the asker knows the same; no inventory follows then."""


class Digest(NamedTuple):
    """An agent's reply to `digest`."""

    hello: Hello
    inventory: frozenset[bytes]


def short(notice: Notice) -> bytes:
    return bytes.fromhex(notice.digest)[:SHORT]


def write_digest(hello: Hello, notices: Iterable[Notice]) -> bytes:
    """As much as may be sent: whoever knows more sends another part each time, and is no liar for it."""
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
    """As many of the wanted notices as there are, and as fit in one reply."""
    found: list[bytes] = []
    size = 0
    for item in split_ids(wanted[: NOTICES_AT_ONCE * SHORT]):
        notice = by_short.get(item)
        if notice is None:
            continue
        encoded = notice.encode()
        size += len(encoded) + 1
        if size > MAX_NOTICES - MAX_NOTICE and found:
            break
        found.append(encoded)
    return b"\n".join(found)


def read_notices(body: bytes, wanted: Sequence[bytes]) -> list[Notice]:
    """The notices in a reply: each sound, each one that was asked for."""
    notices = []
    for encoded in body.split(b"\n") if body else ():
        try:
            notice = _decoded(encoded) if len(encoded) <= REMEMBERED else decode(encoded)
        except ModuleError as error:
            raise LieError(f"sent a notice that is none: {error}") from None
        notices.append(notice)
    strange = {short(notice) for notice in notices} - set(wanted)
    if strange or len(notices) > len(wanted):
        raise LieError(f"sent {len(notices)} notices, {len(strange)} of them not asked for")
    return notices


@lru_cache(maxsize=2_048)
def _decoded(encoded: bytes) -> Notice:
    """The notice, checked; a crowd that sends the same ones over and over has each checked once."""
    return decode(encoded)


def ask_piece(announcement: Announcement, offset: int, length: int) -> bytes:
    return _PIECE.pack(bytes.fromhex(announcement.digest), offset, length)


def asked_piece(body: bytes) -> tuple[str, int, int] | None:
    """The announcement's digest, offset and length, or None where the question makes no sense."""
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
