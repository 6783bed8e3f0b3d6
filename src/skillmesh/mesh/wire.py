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
import re
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import zenoh

from skillmesh.errors import MeshError
from skillmesh.mesh.background import A_LITTLE, thread
from skillmesh.mesh.session import close_session
from skillmesh.module.identity import verify
from skillmesh.module.notice import MAX_NOTICE

if TYPE_CHECKING:
    from skillmesh.module import Identity

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
