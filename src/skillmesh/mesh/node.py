"""The node: an agent on the mesh. It announces the agent's tasks, and fetches and imports those of other agents.

All its state that matters is on disk: the bank, the ledger and the shelf of files being fetched. A node that is
killed at any point and started again continues from there.
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
"""Seconds between checks of the home: other commands may have changed the bank or the ledger."""
LOOK = 0.1
"""Seconds between checks of whether the node has caught up."""
QUIET = 1.5
"""Seconds without activity before `sync` ends: peers need a moment to request what was just announced."""
MEETING = 3.0
"""Seconds for which `sync` waits for a first peer."""
BREATH = 0.05
"""Least time between two steps, in seconds: in a flood of notices, answers and commands need the ledger too."""
FIRST_PACE = 1.0
"""Seconds between two exchanges after a change; without changes they double up to `sync_seconds`."""
MAX_HEARD = 1_000
"""Most teachers whose announcements are counted: under open trust, any number of keys may announce something."""


class Node:
    """An agent that shares on the mesh. Only one node can run on a home.

    Examples
    --------
    >>> with agent.share(network="machine", trust="open") as node:
    ...     node.sync(seconds=4)  # False: there is no other agent to sync with
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
        self._sync = Sync(line, agent.ledger, self.peers, self._hello, self._step_soon)
        self._exchanges = Exchanges(self._sync.exchange, self._exchanged)
        fetcher = Fetcher(line, self.peers, self._shelf.partial, self.blame, self._banned)
        chooser = Chooser(agent, settings, self._shelf)
        self.importing = Importing(
            agent, chooser, fetcher, Importer(agent, self._shelf, self.blame), self._step_soon
        )
        self._own = agent.identity.public_key
        self._view: LedgerView | None = None
        """The ledger at the last step."""
        self._trusted: Mapping[str, str] = {}
        self._published: set[str] = set()
        self._announced: set[str] = set()
        self._recent: dict[str, dict[str, float]] = {}
        """By teacher, the digests that it announced in the last hour, with their times."""
        self._to_greet: deque[str] = deque()
        self._next_sync, self._pace = 0.0, FIRST_PACE
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._when_over = contextlib.ExitStack()

    # Start and stop.

    def start(self) -> None:
        """Join the mesh; the tasks in the bank can answer from the start."""
        self.agent.ledger.refuse_unchangeable()
        self._when_over.callback(self._only_one().release)
        self._when_over.enter_context(self._settings_in_force())
        before = self.agent.ledger.view()
        self._trusted = before.trusted
        self._published = {notice.digest for notice in before.believed if notice.teacher_key == self._own}
        self.agent.ledger.reconsider_formats()
        self._exchanges.start(self._when_over)
        self._when_over.callback(self.membership.leave)
        self.importing.start(self._when_over)
        self._step()
        self.membership.begin()
        thread("node", self._run, self._when_over)

    def stop(self) -> None:
        """Leave the mesh. Partly fetched files are kept, and the next start resumes them."""
        self._stopping.set()
        self._wake.set()
        self._when_over.close()

    @contextlib.contextmanager
    def _settings_in_force(self) -> Iterator[None]:
        """Apply this node's settings to the agent; restore the previous ones at the end or if the start fails."""
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
        """Start an exchange with every peer, and request again the modules that no peer had."""
        self.importing.try_again()
        self.ask_everyone()

    def sync(self, seconds: float = 30.0, stop: threading.Event | None = None) -> bool:
        """Wait until this node has everything that reachable peers have, and they have stopped fetching from it.

        Return `False` if that took longer than `seconds`, no peer was reachable, or `stop` was set.
        """
        stop = stop or self._stopping
        self.sync_now()
        began = asked_again = time.monotonic()
        settled_since, sent = None, 0
        while not stop.wait(LOOK) and time.monotonic() - began < seconds:
            now, met = time.monotonic(), bool(self.peers.alive())
            if not met and now - began > max(MEETING, seconds / 4):
                return False
            sending, sent = self.library.bytes_sent != sent, self.library.bytes_sent
            settled_since = (settled_since or now) if met and self.settled and not sending else None
            if settled_since is not None and now - settled_since > QUIET:
                return True
            if now - asked_again > 1.0:  # peers that fetch from this node change their root: ask again
                self.ask_everyone()
                asked_again = now
        return False

    def ask_everyone(self) -> None:
        """Start an exchange with every peer."""
        for peer in self.peers.alive():
            self._exchange_soon(peer.agent)

    @property
    def settled(self) -> bool:
        """Whether this node has everything wanted that reachable peers have listed."""
        view = self.agent.ledger.view()
        peers = [peer for peer in self.peers.alive() if peer.agent not in view.bans and not peer.silent]
        level = all(peer.level or (peer.hello and peer.hello.root == view.root) for peer in peers)
        return level and view is self._view and self.importing.idle

    @property
    def trouble(self) -> str | None:
        return self.importing.trouble or self.membership.trouble

    def blame(self, agent: str, reason: str) -> None:
        """Ban an agent that signed something false or broke a limit: it is never asked for anything again."""
        log.warning("banned %s…: %s", agent[:12], reason)
        self.agent.ledger.ban(agent, reason)

    # The node's loop.

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(TICK)
            self._stopping.wait(BREATH)
            self._wake.clear()
            try:
                self._step()
            except (AgentError, OSError) as error:
                self.importing.in_trouble(error)
                self._stopping.wait(TICK)
            except Exception:
                log.exception("unexpected error in the node loop; continuing")
                self._stopping.wait(TICK)

    def _step(self) -> None:
        """Synchronise bank, ledger and mesh once; it may be interrupted at any point and repeated."""
        while self._to_greet:
            self._exchange_soon(self._to_greet.popleft())
        for peer in self.peers.whose_turn():
            self._exchange_soon(peer.agent)
        if self.agent.bank.refresh() or self.agent.outdated:
            self.importing.rebuild_soon()
        self._announce_own()
        self._merge_announcements()
        view = self.agent.ledger.view()
        if view is not self._view:
            self._publish(view)
            self._obey_withdrawals(view)
            self._shelf.tidy(view)
            self._reconsider_trust(view)
            self._pace = FIRST_PACE
        self.importing.fetch_wanted(view)
        self._view = view
        self._sync_when_due(view)

    def _announce_own(self) -> None:
        """Announce tasks learned since the last step, by the node or by another command."""
        for module in self.agent.bank:
            if module.card.teacher_key != self._own or module.id in self._announced:
                continue
            if self.agent.keeps(module):
                continue
            standing = self.agent.ledger.view().at(slot_of(module))
            if standing is None or standing.rank[:3] < (module.card.version, False, module.id):
                notice = announce(module.card, module.id, self.agent.bank.file_of(module), self.agent.identity)
                self.agent.ledger.merge([notice], self._own)
            self._announced.add(module.id)

    def _publish(self, view: LedgerView) -> None:
        """Send this agent's notices that are new since the node started to all peers."""
        for notice in view.believed:
            if notice.teacher_key == self._own and notice.digest not in self._published:
                self._published.add(notice.digest)
                with contextlib.suppress(NoReplyError):  # peers that connect later ask for it
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
        if not self.agent.ledger.open_trust:  # imported while trust was being revoked
            choices = self.agent.ledger.view().choices
            released = {module_id for module_id, chosen in choices.items() if chosen.choice == "released"}
            for key in self._trusted.keys() - view.trusted.keys():
                put_away(self.agent, self._shelf, key, keep=released)
        self._trusted = view.trusted
        self._sync.reconsider()
        self.sync_now()

    def _sync_when_due(self, view: LedgerView) -> None:
        """Start an exchange with one peer if it is time: soon after a change, then less and less often."""
        now = time.monotonic()
        if now < self._next_sync:
            return
        self._next_sync = now + self._pace * random.uniform(0.5, 1.5)
        self._pace = min(2 * self._pace, self.settings.sync_seconds)
        others = [peer for peer in self.peers.rested() if peer.agent not in view.bans]
        differing = [p for p in others if not p.level or p.hello is None or p.hello.root != view.root]
        useful = [peer for peer in others if peer.bytes_received]
        if others:
            # Not always a peer that differs: some differ forever, and the others have news too. Not just any peer
            # either: most of them may be fakes.
            self._exchange_soon(random.choice(random.choice([differing, useful, others]) or others).agent)

    def _step_soon(self) -> None:
        self._wake.set()

    # Exchanges: a slow peer does not delay those with others.

    def _exchange_soon(self, agent: str) -> None:
        if not self._stopping.is_set() and agent not in self._banned():
            self._exchanges.begin(agent)

    def _exchanged(self, agent: str, error: Exception | None) -> None:
        if self.peers.newly_greeted(agent):  # from now on it can be asked for pieces
            self.importing.try_again()
            self._step_soon()
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

    # What the node sends and receives on the wire.

    def _declare(self, wire: Wire) -> None:
        """Register on a new wire what this node answers and receives."""
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

    def _peer_changed(self, agent: str, present: bool) -> None:
        if not present:
            self.peers.gone(agent)
        elif self.peers.appeared(agent):
            self._to_greet.append(agent)  # for the node's own thread: this one is zenoh's
            self._pace, self._next_sync = FIRST_PACE, 0.0
            self._step_soon()

    def _merge_announcements(self) -> None:
        """Add announcements to the ledger; ban teachers that send more than `modules_per_hour`."""
        most = self.settings.modules_per_hour
        now = time.monotonic()
        for notice in self._sync.take_heard():
            recent = self._recent.setdefault(notice.teacher_key, {})
            recent.setdefault(notice.digest, now)
            if len(recent) > most:
                recent = {digest: at for digest, at in recent.items() if at > now - AN_HOUR}
                self._recent[notice.teacher_key] = recent
            flooded = len(recent) > most and notice.teacher_key != self._own
            if flooded and notice.teacher_key not in self._banned():
                self.blame(notice.teacher_key, f"announced more than {most:,} modules within an hour")
            if len(self._recent) > MAX_HEARD:
                del self._recent[next(iter(self._recent))]

    # Helpers.

    def _banned(self) -> set[str]:
        return set(self.agent.ledger.view().bans)

    def _only_one(self) -> FileLock:
        lock = FileLock(self.agent.home / LOCK, timeout=0, mode=PRIVATE)
        try:
            lock.acquire()
        except Timeout:
            raise MeshError(
                f"a node runs on {self.agent.home} already; stop it first, or use another home for this one"
            ) from None
        return lock
