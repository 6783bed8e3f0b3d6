"""Exchanges under way. None holds a thread while it waits: the silent, however many, keep nobody waiting."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial

from skillmesh.mesh.background import pool
from skillmesh.mesh.sync import Exchange
from skillmesh.mesh.wire import LieError, NoReplyError, Pending

WORKERS = 4


class Exchanges:
    """At most one exchange with each peer.

    Parameters
    ----------
    begun
        Makes the exchange with an agent.
    ended
        Called with an agent, and with what went wrong if something did.
    """

    def __init__(self, begun: Callable[[str], Exchange], ended: Callable[[str, Exception | None], None]) -> None:
        self._begun, self._ended = begun, ended
        self._with: set[str] = set()
        self._guard = threading.Lock()

    def start(self, when_over: contextlib.ExitStack) -> None:
        self._workers = pool("sync", WORKERS, when_over)

    def begin(self, agent: str) -> None:
        """Ask a peer what it knows, unless it is being asked."""
        with self._guard:
            if agent in self._with:
                return
            self._with.add(agent)
        self._go_on(agent, self._begun(agent))

    def _go_on(self, agent: str, exchange: Exchange, asked: Pending | None = None) -> None:
        """Go one step, up to the next question."""
        try:
            question = _answered(exchange, asked) if asked else next(exchange)
        except StopIteration:
            self._over(agent)
        except Exception as error:
            self._over(agent, error)
        except BaseException:
            self._with.discard(agent)
            raise
        else:
            question.then(partial(self._go_on_soon, agent, exchange, question))

    def _go_on_soon(self, agent: str, exchange: Exchange, asked: Pending) -> None:
        """Called in a thread of zenoh, which is not to be kept."""
        with contextlib.suppress(RuntimeError):  # the pool has just been closed
            self._workers.submit(self._go_on, agent, exchange, asked)

    def _over(self, agent: str, error: Exception | None = None) -> None:
        self._with.discard(agent)
        self._ended(agent, error)


def _answered(exchange: Exchange, asked: Pending) -> Pending:
    """Tell an exchange what came of its question; returns the next one."""
    try:
        reply = asked.wait()
    except (NoReplyError, LieError) as error:
        return exchange.throw(error)
    return exchange.send(reply)
