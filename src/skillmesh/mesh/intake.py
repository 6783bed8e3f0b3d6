"""The way in: what is wanted is fetched, many at once, and taken in by one that builds the mapper.

known → wanted → fetched → arrived → tried and stored → answering
"""

from __future__ import annotations

import contextlib
import logging
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from operator import itemgetter

from skillmesh.core import Core
from skillmesh.errors import AgentError, SkillmeshError
from skillmesh.mesh.adopter import Adopter, Arrival
from skillmesh.mesh.background import thread
from skillmesh.mesh.fetch import Fetcher, NobodyError
from skillmesh.mesh.partial import Partial
from skillmesh.mesh.wants import Chooser, Wants
from skillmesh.module.notice import Announcement
from skillmesh.store.ledger import LedgerView

log = logging.getLogger(__name__)

MOST_UNDER_WAY = 256
BATCH = 32
"""Modules that are tried and taken in together."""
LINGER = 1.5
"""Seconds for which one that has arrived waits for others on their way."""
LOOK = 0.5
RETRY, LONGEST = 1.0, 60.0
"""Seconds before a module that nobody had is looked for again, doubled each time."""
IN_VAIN = 2.0
"""Seconds before another module is looked for of a teacher whose last one nobody had."""
ENOUGH = 3
"""Times after which nobody seems to have it."""
RETRY_DISK = 3.0
TROUBLE = 20.0
"""Seconds for which trouble is shown that does not come back: longer than anything takes to be tried again."""


class Intake:
    """Brings an agent's bank up to what it knows and wants."""

    def __init__(
        self, agent: Core, chooser: Chooser, fetcher: Fetcher, adopter: Adopter, done: Callable[[], None]
    ) -> None:
        """Call `done` whenever something has been taken in, or could not be."""
        self._agent, self._chooser, self._done = agent, chooser, done
        self.fetcher, self.adopter = fetcher, adopter
        self.wants = Wants([], {})
        self.under_way: set[str] = set()
        """Modules that are being fetched, or have arrived and wait."""
        self._trouble: tuple[str, float] | None = None
        self._retry_at: dict[str, float] = {}
        self._tries: dict[str, int] = {}
        """How often a module was looked for and nobody had it."""
        self._shares: dict[str, tuple[int, float]] = {}
        """How many modules of a teacher may be under way at once, and not before when."""
        self._arrivals: queue.SimpleQueue[Arrival | None] = queue.SimpleQueue()
        self._stopping = threading.Event()

    def start(self, when_over: contextlib.ExitStack) -> None:
        """Work until `when_over` is closed; the mapper of what is there comes first."""
        self.fetcher.start(when_over)
        self.rebuild_soon()
        thread("adopt", self._adopt_arrivals, when_over)
        when_over.callback(self._stopping.set)

    @property
    def trouble(self) -> str | None:
        """What keeps the node from taking things in, in words; gone when it works again, or has not come back."""
        if self._trouble is None or self._trouble[1] < time.monotonic():
            return None
        return self._trouble[0]

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, and nothing is wanted but what nobody in reach seems to have."""
        sought = [a for a in self.wants.wanted if self._tries.get(a.digest, 0) < ENOUGH]
        return not sought and not self.under_way and self._arrivals.empty()

    def fetch_wanted(self, view: LedgerView) -> None:
        """Begin to fetch what is wanted and not under way."""
        self.wants = self._chooser.choose(view)
        now, wanted = time.monotonic(), {a.digest for a in self.wants.wanted}
        self._retry_at = {digest: at for digest, at in list(self._retry_at.items()) if digest in wanted}
        teachers = {a.teacher_key for a in self.wants.wanted}
        self._shares = {teacher: share for teacher, share in list(self._shares.items()) if teacher in teachers}
        self._tries = {digest: tries for digest, tries in list(self._tries.items()) if digest in wanted}
        due = [a for a in self.wants.wanted if a.digest not in self.under_way]
        due = [a for a in due if self._retry_at.get(a.digest, 0.0) <= now]
        for announcement in self._in_turn(due)[: MOST_UNDER_WAY - len(self.under_way)]:
            self.under_way.add(announcement.digest)
            self._chooser.fetching(announcement)
            self.fetcher.fetch(announcement, partial(self._fetched, announcement))

    def _in_turn(self, due: list[Announcement]) -> list[Announcement]:
        """Sort and choose so that every teacher gets its share.

        A teacher begins with one module at a time and gets twice as many with each that comes: whoever announces
        much that nobody has takes no more room than others.
        """
        random.shuffle(due)  # not everybody from the same one first
        due.sort(key=lambda a: self._tries.get(a.digest, 0))
        now = time.monotonic()
        under_way = Counter(a.teacher_key for a in self.wants.wanted if a.digest in self.under_way)
        chosen = []
        for announcement in due:
            teacher = announcement.teacher_key
            most, not_before = self._shares.get(teacher, (1, 0.0))
            if under_way[teacher] < most and not_before <= now:
                chosen.append((under_way[teacher], announcement))
                under_way[teacher] += 1
        return [announcement for _, announcement in sorted(chosen, key=itemgetter(0))]

    def _share(self, teacher: str, came: bool) -> None:
        """Give a teacher more or less room, as its modules come or nobody has them."""
        most, _ = self._shares.get(teacher, (1, 0.0))
        if came:
            self._shares[teacher] = min(2 * most, MOST_UNDER_WAY), 0.0
        else:
            self._shares[teacher] = max(most // 2, 1), time.monotonic() + (IN_VAIN if most == 1 else 0.0)

    def rebuild_soon(self) -> None:
        """Have the mapper built anew: the bank has changed by other hands."""
        self._arrivals.put(None)

    def try_again(self) -> None:
        """Look for everything again at once: someone has come."""
        self._retry_at, self._tries = {}, {}

    def in_trouble(self, error: Exception) -> None:
        reason = str(error) if isinstance(error, SkillmeshError) else f"{type(error).__name__}: {error}"
        if reason != self.trouble:
            log.error("%s", reason)
        self._trouble = reason, time.monotonic() + TROUBLE

    def _fetched(self, announcement: Announcement, outcome: Partial | Exception) -> None:
        self._share(announcement.teacher_key, isinstance(outcome, Partial))
        if isinstance(outcome, Partial):
            self._arrivals.put(Arrival(announcement, outcome))
            self._done()
            return
        wait = RETRY_DISK
        if isinstance(outcome, NobodyError):
            tries = self._tries[announcement.digest] = self._tries.get(announcement.digest, 0) + 1
            wait = min(RETRY * 2 ** min(tries - 1, 10), LONGEST)
        elif isinstance(outcome, OSError | AgentError):
            self.in_trouble(outcome)
        else:
            log.error("%r could not be fetched", announcement.task, exc_info=outcome)
        self._later(announcement, wait)

    def _adopt_arrivals(self) -> None:
        while not self._stopping.is_set():
            try:
                self._adopt(self._next_arrivals())
            except queue.Empty:
                pass
            except Exception as error:  # without this thread nothing would be taken in any more
                self.in_trouble(error)

    def _next_arrivals(self) -> list[Arrival]:
        """Wait for one, then for more while more are on their way: trying them together costs one mapper."""
        came = [self._arrivals.get(timeout=LOOK)]
        deadline = time.monotonic() + LINGER
        with contextlib.suppress(queue.Empty):
            while len(came) < BATCH:
                more = len(self.under_way) > sum(arrival is not None for arrival in came)
                left = deadline - time.monotonic() if more else 0
                came.append(self._arrivals.get(timeout=left) if left > 0 else self._arrivals.get_nowait())
        return [arrival for arrival in came if arrival is not None]

    def _adopt(self, arrivals: list[Arrival]) -> None:
        try:
            for module in self.adopter.adopt(arrivals):
                log.info("took in %r by %s", module.card.task, self._agent.teachers.name(module.card))
            if arrivals:
                self._trouble = None
            for arrival in arrivals:
                self.under_way.discard(arrival.announcement.digest)
        except (AgentError, OSError, MemoryError) as error:
            self._put_off(arrivals, error)
        except Exception as error:
            log.exception("modules could not be taken in")
            self._adopt_alone(arrivals, error)
        self._done()

    def _adopt_alone(self, arrivals: list[Arrival], error: Exception) -> None:
        """Find the one that the trial stumbled over: it must not keep the others out."""
        if len(arrivals) > 1:
            for arrival in arrivals:
                self._adopt([arrival])
            return
        try:
            for arrival in arrivals:
                self._agent.ledger.choose(arrival.announcement.digest, "refused", f"it cannot be tried: {error!r}")
                arrival.partial.remove()
                self.under_way.discard(arrival.announcement.digest)
        except (AgentError, OSError) as trouble:
            self._put_off(arrivals, trouble)

    def _put_off(self, arrivals: list[Arrival], error: Exception) -> None:
        self.in_trouble(error)
        for arrival in arrivals:
            self._later(arrival.announcement, RETRY_DISK)

    def _later(self, announcement: Announcement, seconds: float) -> None:
        self._retry_at[announcement.digest] = time.monotonic() + seconds
        self.under_way.discard(announcement.digest)
