"""The node: an agent on the mesh. It announces what it has learned, hears of the rest, fetches it and takes it in.

Everything it does follows from three states that outlive it: the bank, the ledger and the shelf of files on their
way. A node that is killed at any point and started again goes on from there.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping

from filelock import FileLock, Timeout

from skillmesh.common.config import MeshSettings
from skillmesh.common.files import PRIVATE
from skillmesh.core import Core, slot_of
from skillmesh.errors import AgentError, MeshError, SkillmeshError
from skillmesh.mesh.fetch import Fetcher, Library
from skillmesh.mesh.importing import Importer, Importing
from skillmesh.mesh.membership import Membership, Peers
from skillmesh.mesh.shelf import AN_HOUR, Chooser, Shelf, put_away
from skillmesh.mesh.sync import Exchanges, Sync
from skillmesh.mesh.wire import DIGEST, NOTICES, PIECE, Hello, LieError, NoReplyError, Wire, thread
from skillmesh.module.notice import Withdrawal, announce
from skillmesh.store.ledger import LedgerView

log = logging.getLogger(__name__)

LOCK = "node.lock"
TICK = 0.5
"""Seconds between looks at the home: other commands may have changed bank and ledger."""
LOOK = 0.1
"""Seconds between looks at whether it has caught up."""
QUIET = 1.5
"""Seconds for which nothing must have happened: others take a moment to ask for what they have just heard of."""
MEETING = 3.0
"""Seconds for which `sync` waits for somebody to be there at all."""
BREATH = 0.05
"""Seconds between two looks at least: in a flood of news, answers and commands want the ledger too."""
FIRST_PACE = 1.0
"""Seconds between two exchanges when there is news; without any they double up to `sync_seconds`."""
MAX_HEARD = 1_000
"""Teachers whose announcements are counted: where everyone is trusted, keys without end may announce something."""


class Node:
    """An agent that shares. One per home: the second is refused.

    Examples
    --------
    >>> with agent.share(network="machine", trust="open") as node:
    ...     node.sync(seconds=4)  # whether all is here that others have: nobody is there
    False
    """

    def __init__(self, agent: Core, settings: MeshSettings) -> None:
        self.agent, self.settings = agent, settings
        self.began = time.monotonic()
        self.peers = Peers()
        self.membership = Membership(settings, agent.home, agent.identity, agent.ledger, self.peers, self._declare)
        self._shelf = Shelf(agent.home, agent.ledger)
        self.library = Library(agent, self._shelf)
        line = self.membership.wire
        self._sync = Sync(line, agent.ledger, self.peers, self._hello, self._look_soon)
        self._exchanges = Exchanges(self._sync.exchange, self._exchanged)
        fetcher = Fetcher(line, self.peers, self._shelf.partial, self.blame, self._banned)
        chooser = Chooser(agent, settings, self._shelf)
        self.importing = Importing(
            agent, chooser, fetcher, Importer(agent, self._shelf, self.blame), self._look_soon
        )
        self._own = agent.identity.public_key
        self._view: LedgerView | None = None
        """The ledger when it was last looked at."""
        self._trusted: Mapping[str, str] = {}
        self._told: set[str] = set()
        self._announced: set[str] = set()
        self._heard: dict[str, dict[str, float]] = {}
        """For each teacher, what it has announced in the last hour, and when."""
        self._to_greet: deque[str] = deque()
        self._next_sync, self._pace = 0.0, FIRST_PACE
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._when_over = contextlib.ExitStack()

    # Its life.

    def start(self) -> None:
        """Join the mesh; what the bank holds already answers from the first moment."""
        self.agent.ledger.refuse_unchangeable()
        self._when_over.callback(self._only_one().release)
        self._when_over.enter_context(self._settings_in_force())
        before = self.agent.ledger.view()
        self._trusted = before.trusted
        self._told = {notice.digest for notice in before.believed if notice.teacher_key == self._own}
        self.agent.ledger.reconsider_formats()
        self._exchanges.start(self._when_over)
        self._when_over.callback(self.membership.leave)
        self.importing.start(self._when_over)
        self._look()
        self.membership.begin()
        thread("node", self._run, self._when_over)

    def stop(self) -> None:
        """Leave the mesh. What was being fetched is kept and goes on next time."""
        self._stopping.set()
        self._wake.set()
        self._when_over.close()

    @contextlib.contextmanager
    def _settings_in_force(self) -> Iterator[None]:
        """Have the agent work as this node's settings say; afterwards, and where it cannot start, as before."""
        agent, ledger = self.agent, self.agent.ledger
        before = ledger.open_trust, ledger.per_teacher, agent.rebuilds_itself
        ledger.open_trust = self.settings.trust == "open"
        ledger.per_teacher = self.settings.modules_per_teacher
        agent.rebuilds_itself = False
        try:
            yield
        finally:
            ledger.open_trust, ledger.per_teacher, agent.rebuilds_itself = before

    @contextlib.contextmanager
    def running(self) -> Iterator[Node]:
        try:
            self.start()
            yield self
        finally:
            self.stop()

    def sync_now(self) -> None:
        """Ask every peer at once, and look again for what nobody seemed to have."""
        self.importing.try_again()
        self.ask_everyone()

    def sync(self, seconds: float = 30.0, stop: threading.Event | None = None) -> bool:
        """Wait until all is here that others in reach have, and they have stopped fetching from this node.

        Returns whether that came about: not where `seconds` were too few, nobody is in reach, or `stop` was set.
        """
        stop = stop or self._stopping
        self.sync_now()
        began = asked_again = time.monotonic()
        settled_since, sent = None, 0
        while not stop.wait(LOOK) and time.monotonic() - began < seconds:
            now, met = time.monotonic(), bool(self.peers.alive())
            if not met and now - began > max(MEETING, seconds / 4):
                return False
            gives, sent = self.library.bytes_sent != sent, self.library.bytes_sent
            settled_since = (settled_since or now) if met and self.settled and not gives else None
            if settled_since is not None and now - settled_since > QUIET:
                return True
            if now - asked_again > 1.0:  # peers that fetch from us change their root: ask how far they are
                self.ask_everyone()
                asked_again = now
        return False

    def ask_everyone(self) -> None:
        """Ask every peer how far it is."""
        for peer in self.peers.alive():
            self._exchange_soon(peer.agent)

    @property
    def settled(self) -> bool:
        """Whether all is here that is wanted and that anyone in reach has, as far as they have said so."""
        view = self.agent.ledger.view()
        peers = [peer for peer in self.peers.alive() if peer.agent not in view.bans and not peer.silent]
        level = all(peer.level or (peer.hello and peer.hello.root == view.root) for peer in peers)
        return level and view is self._view and self.importing.idle

    @property
    def trouble(self) -> str | None:
        return self.importing.trouble or self.membership.trouble

    def blame(self, agent: str, reason: str) -> None:
        """Never ask this agent for anything again: it signed something that cannot be."""
        log.warning("banned %s…: %s", agent[:12], reason)
        self.agent.ledger.ban(agent, reason)

    # What it does over and over.

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(TICK)
            self._stopping.wait(BREATH)
            self._wake.clear()
            try:
                self._look()
            except (AgentError, OSError) as error:
                self.importing.in_trouble(error)
                self._stopping.wait(TICK)
            except Exception:
                log.exception("unexpected error in the node loop; continuing")
                self._stopping.wait(TICK)

    def _look(self) -> None:
        """Bring bank, ledger and mesh in step; every step may be cut short and done again."""
        while self._to_greet:
            self._exchange_soon(self._to_greet.popleft())
        for peer in self.peers.whose_turn():
            self._exchange_soon(peer.agent)
        if self.agent.bank.refresh() or self.agent.outdated:
            self.importing.rebuild_soon()
        self._announce_own()
        self._take_heard()
        view = self.agent.ledger.view()
        if view is not self._view:
            self._tell(view)
            self._obey_withdrawals(view)
            self._shelf.tidy(view)
            self._reconsider_trust(view)
            self._pace = FIRST_PACE
        self.importing.fetch_wanted(view)
        self._view = view
        self._sync_when_due(view)

    def _announce_own(self) -> None:
        """Announce what was learned since the last look, here or by a command beside the node."""
        for module in self.agent.bank:
            if module.card.teacher_key != self._own or module.id in self._announced:
                continue
            standing = self.agent.ledger.view().at(slot_of(module))
            if standing is None or standing.rank[:3] < (module.card.version, False, module.id):
                notice = announce(module.card, module.id, self.agent.bank.file_of(module), self.agent.identity)
                self.agent.ledger.merge([notice], self._own)
            self._announced.add(module.id)

    def _tell(self, view: LedgerView) -> None:
        """Tell everyone about this agent's notices that are new since the node began."""
        for notice in view.believed:
            if notice.teacher_key == self._own and notice.digest not in self._told:
                self._told.add(notice.digest)
                with contextlib.suppress(NoReplyError):  # whoever meets this node later asks for it
                    self.membership.wire().announce(notice.encode())

    def _obey_withdrawals(self, view: LedgerView) -> None:
        for module in self.agent.bank:
            notice = view.at(slot_of(module))
            if isinstance(notice, Withdrawal) and notice.version >= module.card.version:
                log.info("%s withdrew %r", self.agent.teachers.name(notice), notice.task)
                self.agent.bank.remove(module)
                self.importing.rebuild_soon()

    def _reconsider_trust(self, view: LedgerView) -> None:
        if view.trusted == self._trusted:
            return
        if not self.agent.ledger.open_trust:  # what came in while trust was taken away
            for key in self._trusted.keys() - view.trusted.keys():
                put_away(self.agent, self._shelf, key)
        self._trusted = view.trusted
        self._sync.reconsider()
        self.sync_now()

    def _sync_when_due(self, view: LedgerView) -> None:
        """Ask one peer what it knows, rather one that is known to differ: soon after news, then less and less."""
        now = time.monotonic()
        if now < self._next_sync:
            return
        self._next_sync = now + self._pace * random.uniform(0.5, 1.5)
        self._pace = min(2 * self._pace, self.settings.sync_seconds)
        others = [peer for peer in self.peers.rested() if peer.agent not in view.bans]
        differing = [p for p in others if not p.level or p.hello is None or p.hello.root != view.root]
        useful = [peer for peer in others if peer.bytes_received]
        if others:
            # Not always one that differs: some differ for good, and the others have news too. Nor anyone: most of
            # them may only pretend to be there.
            self._exchange_soon(random.choice(random.choice([differing, useful, others]) or others).agent)

    def _look_soon(self) -> None:
        self._wake.set()

    # Exchanges: one with a slow peer delays no other.

    def _exchange_soon(self, agent: str) -> None:
        if not self._stopping.is_set() and agent not in self._banned():
            self._exchanges.begin(agent)

    def _exchanged(self, agent: str, error: Exception | None) -> None:
        if self.peers.newly_greeted(agent):  # from now on it can be asked for pieces
            self.importing.try_again()
            self._look_soon()
        try:
            if error is not None:
                raise error
            self.membership.remember(agent)
        except LieError as lie:
            self.blame(agent, str(lie))
        except NoReplyError as silence:
            log.debug("%s", silence)
        except SkillmeshError as trouble:
            self.importing.in_trouble(trouble)
        except Exception:
            log.exception("an exchange with %s… failed", agent[:12])

    # What it says and hears on the wire.

    def _declare(self, wire: Wire) -> None:
        """Say on a new wire what this node answers and hears."""
        self.peers.all_gone()
        answerers = {
            DIGEST: self._sync.answer_digest,
            NOTICES: self._sync.answer_notices,
            PIECE: self.library.answer_piece,
        }
        wire.serve(answerers)
        wire.hear(self._sync.hear)
        wire.watch(self._peer_changed)

    def _hello(self, view: LedgerView) -> Hello:
        return Hello(
            name=self.agent.name,
            root=view.root,
            live=self.agent.live,
            locators=self.membership.locators[:16],
            same=False,
        )

    def _peer_changed(self, agent: str, there: bool) -> None:
        if not there:
            self.peers.gone(agent)
        elif self.peers.appeared(agent):
            self._to_greet.append(agent)  # by the node's own thread: this one is zenoh's
            self._pace, self._next_sync = FIRST_PACE, 0.0
            self._look_soon()

    def _take_heard(self) -> None:
        """Take in announcements; whoever makes more of them than anyone can learn is banned."""
        most = self.settings.modules_per_hour
        now = time.monotonic()
        for notice in self._sync.take_heard():
            heard = self._heard.setdefault(notice.teacher_key, {})
            heard.setdefault(notice.digest, now)
            if len(heard) > most:
                heard = {digest: at for digest, at in heard.items() if at > now - AN_HOUR}
                self._heard[notice.teacher_key] = heard
            flooded = len(heard) > most and notice.teacher_key != self._own
            if flooded and notice.teacher_key not in self._banned():
                self.blame(notice.teacher_key, f"announced more than {most:,} modules within an hour")
            if len(self._heard) > MAX_HEARD:
                del self._heard[next(iter(self._heard))]

    # What it is built on.

    def _banned(self) -> set[str]:
        return set(self.agent.ledger.view().bans)

    def _only_one(self) -> FileLock:
        lock = FileLock(self.agent.home / LOCK, timeout=0, mode=PRIVATE)
        try:
            lock.acquire()
        except Timeout:
            raise MeshError(
                f"a node runs on {self.agent.home} already; stop it first, or give this one a home of its own"
            ) from None
        return lock
