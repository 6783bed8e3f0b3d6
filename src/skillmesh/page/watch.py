"""What has changed, told to every open page as server-sent events.

A page is told which parts have changed, and fetches these again: an event that was missed while a connection was
lost costs nothing, because a page that connects again fetches everything.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from http import HTTPStatus
from typing import Any

from skillmesh.core import Core
from skillmesh.mesh.node import Node
from skillmesh.page.problems import Refused

log = logging.getLogger(__name__)

TOPICS = ("agent", "tasks", "lessons", "mesh", "trust", "quarantine")
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

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    def put(self, event: str, data: Any) -> None:
        if self.events.qsize() < WAITING:
            self.events.put_nowait((event, data))
        elif self.events.qsize() == WAITING:
            self.events.put_nowait(("changed", {"topics": TOPICS}))


class Watch:
    """Looks at the agent and its node in a thread of its own, and tells all streams what has changed."""

    def __init__(self, agent: Core, node: Node) -> None:
        self._agent, self._node = agent, node
        self._streams: set[Stream] = set()
        self._guard = threading.Lock()
        self._ended = threading.Event()
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

    async def stream(self) -> AsyncIterator[str]:
        """Yield the lines of one stream until the server ends, or the reader leaves."""
        stream = Stream()
        with self._guard:
            if len(self._streams) >= MOST_STREAMS:
                raise Refused(
                    HTTPStatus.TOO_MANY_REQUESTS, f"{MOST_STREAMS} pages follow this agent already; close some"
                )
            self._streams.add(stream)
        return self._lines(stream)

    async def _lines(self, stream: Stream) -> AsyncIterator[str]:
        try:
            yield f"retry: 1000\n{_as_event('hello', {'topics': TOPICS})}"
            while True:
                try:
                    event, data = await asyncio.wait_for(stream.events.get(), HEARTBEAT)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                if event == "end":
                    return
                yield _as_event(event, data)
        finally:
            with self._guard:
                self._streams.discard(stream)

    def _run(self) -> None:
        before: dict[str, Hashable] = {}
        while not self._ended.wait(LOOK):
            if not self._streams:
                continue
            now = {topic: self._looked_at(look) for topic, look in self._looks().items()}
            topics = [topic for topic, state in now.items() if before.get(topic) != state]
            if topics and before:
                self.tell("changed", {"topics": topics})
            before = now

    def _looks(self) -> dict[str, Callable[[], Hashable]]:
        agent, node = self._agent, self._node
        view = agent.ledger.view()

        def modules() -> Hashable:
            own = agent.identity.public_key
            shared = [agent.sharing(m.card.task) for m in agent.bank if m.card.teacher_key == own]
            return (
                tuple(m.id for m in agent.bank),
                tuple(shared),
                tuple(sorted(link.digest for link in view.links.values())),
            )

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

        return {"tasks": modules, "mesh": mesh, "quarantine": held, "trust": trusted}

    def _looked_at(self, look: Callable[[], Hashable]) -> Hashable:
        try:
            return look()
        except Exception:
            log.debug("a look at the agent failed", exc_info=True)
            return None


def _as_event(event: str, data: Mapping[str, Any]) -> str:
    return f"event: {event}\ndata: {json.dumps(data)}\n\n"
