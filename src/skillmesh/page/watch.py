"""What has changed, told to every open page as server-sent events.

A page is told which parts have changed, and fetches these again: an event that was missed while a connection was
lost costs nothing, because a page that connects again fetches everything.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from skillmesh.core import Core
from skillmesh.mesh.node import Node
from skillmesh.page.problems import Refused

log = logging.getLogger(__name__)

TOPICS = ("agent", "tasks", "lessons", "mesh", "trust", "quarantine")
FOR_GUESTS = ("agent", "tasks", "mesh")
"""The topics of what guests may read; they are told of nothing else."""
LOOK = 0.25
"""Seconds between two looks at what may have changed."""
MOST_STREAMS = 200
"""Largest number of open event streams."""
WAITING = 100
"""Events that wait for one slow reader; if there are more, it is told that everything has changed."""
HEARTBEAT = 15.0
"""Seconds after which a comment is sent, so that both sides notice a lost connection."""


class Stream:
    """The events that wait for one reader."""

    def __init__(self, topics: Sequence[str]) -> None:
        self.topics = topics
        self.loop = asyncio.get_running_loop()
        self.events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    def put(self, event: str, data: Any) -> None:
        if event == "lesson" and "lessons" not in self.topics:
            return
        if event == "changed":
            data = {"topics": [topic for topic in data["topics"] if topic in self.topics]}
            if not data["topics"]:
                return
        if self.events.qsize() < WAITING or event == "end":
            self.events.put_nowait((event, data))
        elif self.events.qsize() == WAITING:
            self.events.put_nowait(("changed", {"topics": self.topics}))


class Events(StreamingResponse):
    """The response that sends one reader's events."""

    def __init__(self, lines: AsyncIterator[str], at_the_end: Callable[[], None]) -> None:
        super().__init__(lines, media_type="text/event-stream")
        self._at_the_end = at_the_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # not in the generator of the lines: it never begins if the reader has left already
            self._at_the_end()


class Watch:
    """Looks at the agent and its node in a thread of its own, and tells all streams what has changed."""

    def __init__(self, agent: Core, node: Node) -> None:
        self._agent, self._node = agent, node
        self._streams: set[Stream] = set()
        self._guard = threading.Lock()
        self._ended = threading.Event()
        self._before: dict[str, Hashable] = {}
        self._before = self._looked()
        self._thread = threading.Thread(target=self._run, name="skillmesh-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self.tell("end", {})

    def tell(self, event: str, data: Mapping[str, Any]) -> None:
        """Send an event to all streams, from any thread."""
        with self._guard:
            streams = list(self._streams)
        for stream in streams:
            try:
                stream.loop.call_soon_threadsafe(stream.put, event, data)
            except RuntimeError:  # the server is ending
                continue

    async def stream(self, topics: Sequence[str] = TOPICS) -> Events:
        """Return the events about these topics as a response, until the server ends or the reader leaves."""
        stream = Stream(topics)
        with self._guard:
            if len(self._streams) >= MOST_STREAMS:
                raise Refused(
                    HTTPStatus.TOO_MANY_REQUESTS, f"{MOST_STREAMS} pages follow this agent already; close some"
                )
            self._streams.add(stream)
        return Events(self._lines(stream), lambda: self._left(stream))

    def _left(self, stream: Stream) -> None:
        with self._guard:
            self._streams.discard(stream)

    async def _lines(self, stream: Stream) -> AsyncIterator[str]:
        yield f"retry: 1000\n{_as_event('hello', {'topics': stream.topics})}"
        while True:
            try:
                event, data = await asyncio.wait_for(stream.events.get(), HEARTBEAT)
            except TimeoutError:
                yield ": still here\n\n"
                continue
            if event == "end":
                return
            yield _as_event(event, data)

    def _run(self) -> None:
        while not self._ended.wait(LOOK):
            if not self._streams:
                continue
            now = self._looked()
            topics = [topic for topic, state in now.items() if self._before.get(topic) != state]
            if topics:
                self.tell("changed", {"topics": topics})
            self._before = now

    def _looked(self) -> dict[str, Hashable]:
        """Return the state of each topic; the one before if the agent cannot be read at the moment."""
        try:
            return {topic: look() for topic, look in self._looks().items()}
        except Exception:
            log.debug("a look at the agent failed", exc_info=True)
            return self._before

    def _looks(self) -> dict[str, Callable[[], Hashable]]:
        agent, node = self._agent, self._node
        view = agent.ledger.view()

        def modules() -> Hashable:
            kept_here = tuple(sorted(agent.unshared.choices().items()))
            return tuple(m.id for m in agent.bank), kept_here, tuple(sorted(n.digest for n in view.links.values()))

        def mesh() -> Hashable:
            peers = [
                (p.agent, p.alive, p.bytes_received, p.hello.live if p.hello else None) for p in node.peers.all()
            ]
            importing, sent = node.importing, node.library.bytes_sent
            return (
                tuple(peers),
                sent,
                importing.fetcher.bytes_fetched,
                len(importing.wants.wanted),
                node.trouble,
                agent.live,
            )

        def held() -> Hashable:
            return tuple(sorted((i, c.choice, c.reason) for i, c in view.choices.items()))

        def trusted() -> Hashable:
            return tuple(sorted(view.trusted.items())), tuple(sorted(view.bans.items())), len(view.seen)

        # The agent itself: the greeting of a first visit ends with the first task.
        return {
            "agent": lambda: len(agent.bank),
            "tasks": modules,
            "mesh": mesh,
            "quarantine": held,
            "trust": trusted,
        }


def _as_event(event: str, data: Mapping[str, Any]) -> str:
    return f"event: {event}\ndata: {json.dumps(data)}\n\n"
