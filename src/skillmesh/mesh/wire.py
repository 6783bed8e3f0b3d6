"""What agents say to each other over a zenoh session: questions with signed replies, announcements, signs of life.

    sk/v1/ann/<agent>             put: a signed notice (a hint; it may be lost)
    sk/v1/node/<agent>/<verb>     queryable: digest, notices, piece
    sk/v1/alive/<agent>           liveliness token, declared last

An agent is known by its public key. A reply is signed over the question, its nonce and the answer: whoever sends
something false has signed it and can be blamed, and nobody can be blamed for what another sent in its name.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import zenoh

from skillmesh.errors import MeshError
from skillmesh.module.identity import verify

if TYPE_CHECKING:
    from skillmesh.module import Identity

log = logging.getLogger(__name__)

ROOT = "sk/v1"
NONCE = 8
REPLIES = 8
"""So many replies to one question are looked at: one is right, more come only from those who pretend."""
WAITING_QUESTIONS = 512
WAITING_NOTICES = 4_096
_AGENT = re.compile(r"[0-9a-f]{64}")

Answerer = Callable[[bytes], bytes | None]
"""Makes the answer to a question's body; `None` leaves it unanswered."""


class NoReplyError(MeshError):
    """The agent that was asked is gone, too slow, or did not sign what came back."""


class LieError(MeshError):
    """An agent sent, under its signature, what cannot be true."""


class Pending:
    """A question under way."""

    def __init__(self, agent: str, verb: str, question: bytes, limit: int) -> None:
        self._agent, self._verb, self._question, self._limit = agent, verb, question, limit
        self._replies: deque[tuple[bytes, bytes]] = deque()
        self._count = 0
        self._changed = threading.Condition()
        self._over = False
        self.token = zenoh.CancellationToken()

    def heard(self, reply: zenoh.Reply) -> None:
        """Keep a reply for `wait`; this runs in zenoh's own thread, so it does no more than that."""
        sample = reply.ok
        if sample is None or sample.attachment is None or self._count >= REPLIES:
            return
        self._count += 1
        with self._changed:
            self._replies.append((sample.attachment.to_bytes(), sample.payload.to_bytes()))
            self._changed.notify()

    def over(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify()

    def cancel(self) -> None:
        """Ask no longer."""
        self.token.cancel()  # type: ignore[no-untyped-call]

    def wait(self) -> bytes:
        """The signed reply; zenoh's timeout ends the waiting."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._over or self._replies)
                if not self._replies:
                    raise NoReplyError(f"no reply from {self._agent[:12]}… to {self._verb}")
                signature, body = self._replies.popleft()
            if _genuine(self._agent, self._verb, self._question, body, signature):
                if len(body) > self._limit:
                    raise LieError(f"replied to {self._verb} with {len(body):,} bytes, expected ≤ {self._limit:,}")
                return body


class Wire:
    """One agent's end of the mesh."""

    def __init__(self, session: zenoh.Session, identity: Identity) -> None:
        self._session = session
        self._identity = identity
        self._declared: list[Any] = []
        self._token: zenoh.LivelinessToken | None = None
        self.agent = identity.public_key

    def serve(self, answerers: Mapping[str, Answerer]) -> None:
        """Answer questions, each verb in a thread of its own: a rush for pieces delays no digest."""
        for verb, answerer in answerers.items():
            channel: zenoh.handlers.RingChannel[zenoh.Query] = zenoh.handlers.RingChannel(WAITING_QUESTIONS)
            queryable = self._session.declare_queryable(_key(self.agent, verb), channel)
            self._declared.append(queryable)
            self._thread(f"serve-{verb}", partial(self._serve, queryable, verb, answerer))

    def hear(self, notice: Callable[[str, bytes], None]) -> None:
        """Call `notice` with sender and content of every announcement."""
        channel: zenoh.handlers.RingChannel[zenoh.Sample] = zenoh.handlers.RingChannel(WAITING_NOTICES)
        subscriber = self._session.declare_subscriber(
            f"{ROOT}/ann/*", channel, allowed_origin=zenoh.Locality.REMOTE
        )
        self._declared.append(subscriber)
        self._thread("hear", partial(self._hear, subscriber, notice))

    def watch(self, changed: Callable[[str, bool], None]) -> None:
        """Call `changed` whenever an agent appears or is gone, and for those that are there already."""

        def sample(sample: zenoh.Sample) -> None:
            agent = str(sample.key_expr).rsplit("/", 1)[-1]
            if _AGENT.fullmatch(agent) and agent != self.agent:
                changed(agent, sample.kind == zenoh.SampleKind.PUT)

        self._declared.append(
            self._session.liveliness().declare_subscriber(f"{ROOT}/alive/*", sample, history=True)
        )

    def appear(self) -> None:
        """Let others know that this agent is there; declared last, since they ask at once."""
        self._token = self._session.liveliness().declare_token(f"{ROOT}/alive/{self.agent}")

    def announce(self, notice: bytes) -> None:
        self._session.put(
            f"{ROOT}/ann/{self.agent}",
            notice,
            congestion_control=zenoh.CongestionControl.BLOCK,
            priority=zenoh.Priority.DATA_HIGH,
        )

    def ask(self, agent: str, verb: str, body: bytes, timeout: float, limit: int, bulk: bool = False) -> Pending:
        """Put a question to one agent; `wait` on what comes back gives the answer.

        All who claim to be that agent are asked, since only one of them can sign.
        """
        question = os.urandom(NONCE) + body
        pending = Pending(agent, verb, question, limit)
        try:
            self._session.get(
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
        self._session.close()  # type: ignore[no-untyped-call]

    def _serve(self, queryable: Any, verb: str, answerer: Answerer) -> None:
        for query in _until_closed(queryable):
            with query:
                question = query.payload.to_bytes() if query.payload is not None else b""
                try:
                    body = answerer(question[NONCE:]) if len(question) >= NONCE else None
                    if body is None:
                        continue
                    signature = self._identity.sign("reply", _digest(self.agent, verb, question, body))
                    query.reply(_key(self.agent, verb), body, attachment=bytes.fromhex(signature))
                except zenoh.ZError as error:
                    log.debug("a reply to %s could not be sent: %s", verb, error)
                except Exception:
                    log.exception("a question for %s could not be answered", verb)

    def _hear(self, subscriber: Any, notice: Callable[[str, bytes], None]) -> None:
        for sample in _until_closed(subscriber):
            sender = str(sample.key_expr).rsplit("/", 1)[-1]
            try:
                if _AGENT.fullmatch(sender):
                    notice(sender, sample.payload.to_bytes())
            except Exception:
                log.exception("an announcement could not be taken in")

    def _thread(self, name: str, target: Callable[[], None]) -> None:
        threading.Thread(target=target, name=f"skillmesh-{name}", daemon=True).start()


def _key(agent: str, verb: str) -> str:
    return f"{ROOT}/node/{agent}/{verb}"


def _until_closed(channel: Any) -> Any:
    while True:
        try:
            yield channel.recv()
        except zenoh.ZError:
            return


def _digest(agent: str, verb: str, question: bytes, body: bytes) -> str:
    parts = [agent.encode(), verb.encode(), question, body]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _genuine(agent: str, verb: str, question: bytes, body: bytes, signature: bytes) -> bool:
    return verify(agent, "reply", _digest(agent, verb, question, body), signature.hex())
