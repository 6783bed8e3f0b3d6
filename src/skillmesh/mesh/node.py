"""The node: an agent on the mesh. It announces what it has learned, hears of the rest, fetches it and takes it in.

Everything it does follows from three states that outlive it: the bank, the ledger and the shelf of files on their
way. A node that is killed at any point and started again goes on from there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from filelock import FileLock, Timeout

from skillmesh.agent import Agent, slot_of
from skillmesh.errors import AgentError, MeshError, SkillmeshError
from skillmesh.ledger import View
from skillmesh.mesh.adopter import Adopter, Arrival
from skillmesh.mesh.fetch import Fetcher, NobodyError
from skillmesh.mesh.library import Library
from skillmesh.mesh.membership import Membership
from skillmesh.mesh.peers import Peers
from skillmesh.mesh.protocol import DIGEST, NOTICES, PIECE, Hello
from skillmesh.mesh.settings import MeshSettings
from skillmesh.mesh.shelf import Shelf
from skillmesh.mesh.sync import Sync
from skillmesh.mesh.wants import Chooser, Wants
from skillmesh.mesh.wire import LieError, NoReplyError, Wire
from skillmesh.module.notice import Announcement, Withdrawal, announce

log = logging.getLogger(__name__)

LOCK = "node.lock"
TICK = 0.5
"""Seconds between looks at the home: other commands may have changed bank and ledger."""
FETCHERS = 8
SYNCERS = 4
BATCH = 64
"""Modules that are tried and taken in together."""
LINGER = 1.5
"""Seconds for which one that has arrived waits for others on their way."""
RETRY = 1.0
"""Seconds before a module that nobody had is looked for again."""
RETRY_DISK = 3.0
FIRST_PACE = 1.0
"""Seconds between two exchanges when there is news; without any they double up to `sync_seconds`."""
NICE = 10
"""How far work in the background steps back behind answers."""


class Node:
    """An agent that shares. One per home: the second is refused."""

    def __init__(self, agent: Agent, settings: MeshSettings) -> None:
        self.agent = agent
        self.settings = settings
        self.peers = Peers()
        self.began = time.monotonic()
        self.trouble: str | None = None
        """What keeps the node from working, in words; gone when it works again."""
        agent.ledger.open_trust = settings.trust == "open"
        agent.ledger.per_teacher = settings.modules_per_teacher
        self._when_over = contextlib.ExitStack()
        self._shelf = Shelf(agent.home, agent.ledger)
        self.library = Library(agent, self._shelf)
        self._chooser = Chooser(agent, settings, self._shelf)
        self._adopter = Adopter(agent, self._shelf)
        self.wants = Wants([], {})
        self.under_way: set[str] = set()
        self._retry_at: dict[str, float] = {}
        self._arrivals: queue.SimpleQueue[Arrival | None] = queue.SimpleQueue()
        self._announced: dict[str, deque[float]] = {}
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._next_sync = 0.0
        self._pace = FIRST_PACE
        self._view: View | None = None
        self._trusted = agent.ledger.view().trusted
        own = agent.identity.public_key
        self._told = {n.digest for n in agent.ledger.view().known.values() if n.teacher_key == own}
        self._announced_own: set[str] = set()
        self.membership = Membership(settings, agent.home, agent.identity, agent.ledger, self.peers, self._declare)
        line = self.membership.wire
        self.fetcher = Fetcher(line, self.peers, self._shelf.partial, self.blame, self._banned)
        self._sync = Sync(line, agent.ledger, self.peers, self._hello, self._wake.set)

    # Its life.

    def start(self) -> None:
        """Join the mesh; what the bank holds already answers from the first moment."""
        self._when_over.callback(self._only_one().release)
        self.agent.rebuilds_itself = False
        self._fetch_pool = self._pool("fetch", FETCHERS)
        self._sync_pool = self._pool("sync", SYNCERS)
        self._when_over.callback(self.membership.leave)
        self._arrivals.put(None)  # builds the mapper of what is there
        self._tick()
        self._thread("adopt", self._adopt_arrivals)
        self.membership.begin()
        self._thread("node", self._run)

    def _declare(self, wire: Wire) -> None:
        """Say on a new wire what this node answers and hears."""
        self.peers.all_gone()
        wire.serve(
            {
                DIGEST: self._sync.answer_digest,
                NOTICES: self._sync.answer_notices,
                PIECE: self.library.answer_piece,
            }
        )
        wire.hear(self._hear)
        wire.watch(self._peer_changed)

    def stop(self) -> None:
        """Leave the mesh. What was being fetched is kept and goes on next time."""
        self._stopping.set()
        self._wake.set()
        self._when_over.close()
        self.agent.rebuilds_itself = True

    def _pool(self, name: str, workers: int) -> ThreadPoolExecutor:
        pool = ThreadPoolExecutor(workers, f"skillmesh-{name}", initializer=_step_back)
        self._when_over.callback(pool.shutdown, wait=False, cancel_futures=True)
        return pool

    def _thread(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"skillmesh-{name}", daemon=True)
        thread.start()
        self._when_over.callback(thread.join, timeout=10)

    @contextlib.contextmanager
    def running(self) -> Iterator[Node]:
        try:
            self.start()
            yield self
        finally:
            self.stop()

    def sync_now(self) -> None:
        """Ask every peer at once."""
        self._retry_at.clear()
        for peer in self.peers.alive():
            self._exchange_soon(peer.agent)

    @property
    def settled(self) -> bool:
        """Whether all that is known and wanted is here, and every peer in reach knows the same."""
        view = self.agent.ledger.view()
        hellos = [peer.hello for peer in self.peers.alive() if peer.agent not in view.bans]
        same = all(hello is not None and hello.root == view.root for hello in hellos)
        return same and not self.wants.wanted and not self.under_way and self._arrivals.empty()

    def blame(self, agent: str, reason: str) -> None:
        """Never ask this agent for anything again: it signed something that cannot be."""
        log.warning("banned %s…: %s", agent[:12], reason)
        self.agent.ledger.ban(agent, reason)

    # What it does over and over.

    def _run(self) -> None:
        _step_back()
        while not self._stopping.is_set():
            self._wake.wait(TICK)
            self._wake.clear()
            try:
                self._tick()
            except (AgentError, OSError) as error:
                self._in_trouble(error)
                self._stopping.wait(TICK)
            except Exception:
                log.exception("the node stumbled and goes on")
                self._stopping.wait(TICK)

    def _tick(self) -> None:
        """Bring bank, ledger and mesh in step; every step may be cut short and done again."""
        if self.agent.bank.refresh():
            self._arrivals.put(None)
        self._announce_own()
        view = self.agent.ledger.view()
        if view is not self._view:
            self._tell(view)
            self._obey_withdrawals(view)
            self._shelf.tidy(view)
            self._reconsider_trust(view)
            self._pace = FIRST_PACE
            self._view = view
        self.wants = self._chooser.choose(view)
        self._fetch_wanted()
        self._sync_when_due()

    def _announce_own(self) -> None:
        """Announce what was learned since the last look, here or by a command beside the node."""
        own = self.agent.identity.public_key
        for module in self.agent.bank:
            if module.card.teacher_key == own and module.id not in self._announced_own:
                if self.agent.ledger.latest_version(slot_of(module)) < module.card.version:
                    notice = announce(module.card, module.id, self.agent.bank.file_of(module), self.agent.identity)
                    self.agent.ledger.merge([notice], own)
                self._announced_own.add(module.id)

    def _tell(self, view: View) -> None:
        """Tell everyone about this agent's notices that are new since the node began."""
        own = self.agent.identity.public_key
        for notice in view.known.values():
            if notice.teacher_key == own and notice.digest not in self._told:
                self._told.add(notice.digest)
                with contextlib.suppress(NoReplyError):  # whoever meets this node later asks for it
                    self.membership.wire().announce(notice.encode())

    def _obey_withdrawals(self, view: View) -> None:
        for module in self.agent.bank:
            notice = view.at(slot_of(module))
            if isinstance(notice, Withdrawal) and notice.version >= module.card.version:
                log.info("%s withdrew %r", notice.teacher, notice.task)
                self.agent.bank.remove(module)
                self._arrivals.put(None)

    def _reconsider_trust(self, view: View) -> None:
        if view.trusted != self._trusted:
            self._trusted = view.trusted
            self._sync.reconsider()
            self.sync_now()

    def _fetch_wanted(self) -> None:
        now = time.monotonic()
        due = [a for a in self.wants.wanted if a.id not in self.under_way and self._retry_at.get(a.id, 0) <= now]
        random.shuffle(due)  # not everybody from the same one first
        for announcement in due:
            if len(self.under_way) >= 4 * BATCH:
                break
            self.under_way.add(announcement.id)
            self._fetch_pool.submit(self._fetch, announcement)

    def _sync_when_due(self) -> None:
        """Ask one peer what it knows, rather one that is known to differ: soon after news, then less and less."""
        now = time.monotonic()
        if now < self._next_sync:
            return
        self._next_sync = now + self._pace * random.uniform(0.5, 1.5)
        self._pace = min(2 * self._pace, self.settings.sync_seconds)
        view = self.agent.ledger.view()
        others = [peer for peer in self.peers.alive() if peer.agent not in view.bans]
        differing = [peer for peer in others if peer.hello is None or peer.hello.root != view.root]
        if others:
            self._exchange_soon(random.choice(differing or others).agent)

    # What it does in other threads.

    def _fetch(self, announcement: Announcement) -> None:
        arrived = False
        try:
            self._chooser.fetching(announcement)
            self._arrivals.put(Arrival(announcement, self.fetcher.fetch(announcement)))
            arrived = True
        except NobodyError:
            self._retry_at[announcement.id] = time.monotonic() + RETRY
        except OSError as error:
            self._retry_at[announcement.id] = time.monotonic() + RETRY_DISK
            self._in_trouble(error)
        except Exception:
            self._retry_at[announcement.id] = time.monotonic() + RETRY_DISK
            log.exception("%r could not be fetched", announcement.task)
        finally:
            if not arrived:
                self.under_way.discard(announcement.id)

    def _adopt_arrivals(self) -> None:
        _step_back()
        while not self._stopping.is_set():
            try:
                arrivals = self._next_arrivals()
            except queue.Empty:
                continue
            files = [arrival for arrival in arrivals if arrival is not None]
            try:
                for module in self._adopter.adopt(files):
                    log.info("took in %r by %s", module.card.task, module.card.teacher)
                if files:
                    self.trouble = None
            except (AgentError, OSError) as error:
                self._in_trouble(error)
                self._later(files)
            except Exception:
                log.exception("modules could not be taken in")
                self._later(files)
            for arrival in files:
                self.under_way.discard(arrival.announcement.id)
            self._wake.set()

    def _next_arrivals(self) -> list[Arrival | None]:
        """Wait for one, then for more while more are on their way: trying them together costs one mapper."""
        arrivals = [self._arrivals.get(timeout=TICK)]
        deadline = time.monotonic() + LINGER
        with contextlib.suppress(queue.Empty):
            while len(arrivals) < BATCH:
                under_way = len(self.under_way) > sum(arrival is not None for arrival in arrivals)
                left = deadline - time.monotonic() if under_way else 0
                arrivals.append(self._arrivals.get(timeout=left) if left > 0 else self._arrivals.get_nowait())
        return arrivals

    def _later(self, files: list[Arrival]) -> None:
        for arrival in files:
            self._retry_at[arrival.announcement.id] = time.monotonic() + RETRY_DISK

    def _exchange_soon(self, agent: str) -> None:
        if not self._stopping.is_set():
            with contextlib.suppress(RuntimeError):  # the pool is closed
                self._sync_pool.submit(self._exchange, agent)

    def _exchange(self, agent: str) -> None:
        if agent in self._banned():
            return
        try:
            self._sync.exchange(agent)
            self.membership.remember(agent)
        except LieError as error:
            self.blame(agent, str(error))
        except NoReplyError as error:
            log.debug("%s", error)
        except SkillmeshError as error:
            self._in_trouble(error)
        except Exception:
            log.exception("an exchange with %s… failed", agent[:12])

    # What it hears and answers, in the wire's threads.

    def _peer_changed(self, agent: str, there: bool) -> None:
        if not there:
            self.peers.gone(agent)
        elif self.peers.appeared(agent):
            self._exchange_soon(agent)
            self._wake.set()

    def _hear(self, sender: str, data: bytes) -> None:
        notice = self._sync.hear(sender, data)
        if notice is not None:
            self._count_announcement(sender)

    def _count_announcement(self, sender: str) -> None:
        times = self._announced.setdefault(sender, deque())
        times.append(time.monotonic())
        while times[0] < times[-1] - 3600:
            times.popleft()
        if len(times) > self.settings.modules_per_hour:
            self.blame(sender, f"announced {len(times):,} modules within an hour, expected ≤ {len(times) - 1:,}")

    def _hello(self, view: View) -> Hello:
        return Hello(
            name=self.agent.name,
            root=view.root,
            live=len(self.agent.in_use()),
            locators=self.membership.locators[:16],
            same=False,
        )

    # What it is built on.

    def _banned(self) -> set[str]:
        return set(self.agent.ledger.view().bans)

    def _in_trouble(self, error: Exception) -> None:
        reason = str(error) if isinstance(error, SkillmeshError) else f"{type(error).__name__}: {error}"
        if reason != self.trouble:
            log.error("%s", reason)
        self.trouble = reason

    def _only_one(self) -> FileLock:
        lock = FileLock(self.agent.home / LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise MeshError(
                f"a node runs on {self.agent.home} already; stop it first, or give this one a home of its own"
            ) from None
        return lock


def _step_back() -> None:
    """Let answers go first: on Linux each thread has a niceness of its own."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
