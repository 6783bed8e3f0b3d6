"""Being on the mesh and staying there: joining, joining again on another network, finding lost peers again.

zenoh keeps links and finds peers by multicast. What it does not do: wait for a gateway that is away at opening,
follow a laptop to another network, and call peers again that it knew by hearsay only. That is done here.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from skillmesh.mesh.background import A_LITTLE, from_background
from skillmesh.mesh.peers import Peers
from skillmesh.mesh.session import (
    GatewayAwayError,
    addresses,
    close_session,
    introduce,
    locators,
    open_session,
    usable,
)
from skillmesh.mesh.wire import NoReplyError, Wire
from skillmesh.module import Identity
from skillmesh.store.ledger import Ledger
from skillmesh.store.mesh_settings import MeshSettings

log = logging.getLogger(__name__)

LOOK = 2.0
"""Seconds between looks at whether something has to be done."""
CALLED_AT_ONCE = 16
CALL, LONGEST = 2.0, 60.0
"""Seconds before a lost peer is called for the first time, and between calls at most."""
MAX_ADDRESSES = 256
"""Agents whose addresses are kept: they come from others, who may say anything."""


class Membership:
    """One agent's place on the mesh.

    Parameters
    ----------
    declare
        Called with every new wire, to say what is served and heard there.
    """

    def __init__(
        self,
        settings: MeshSettings,
        home: Path,
        identity: Identity,
        ledger: Ledger,
        peers: Peers,
        declare: Callable[[Wire], None],
    ) -> None:
        self._settings, self._home, self._identity = settings, home, identity
        self._ledger, self._peers, self._declare = ledger, peers, declare
        self._wire: Wire | None = None
        self._opened_with: tuple[str, ...] = ()
        self._calls: dict[str, tuple[int, float]] = {}
        self._leaving = threading.Event()
        self._staying: threading.Thread | None = None
        self.locators: tuple[str, ...] = ()
        self.trouble: str | None = None

    def wire(self) -> Wire:
        """The line to the others; `NoReplyError` where there is none now."""
        if self._wire is None:
            raise NoReplyError("the mesh is not joined now")
        return self._wire

    def begin(self) -> None:
        """Join, and stay in a thread of its own. What is wrong with the settings is said at once."""
        self._opened_with = self._addresses()
        self._try_to_join()
        self._staying = threading.Thread(target=self._stay, name="skillmesh-membership", daemon=True)
        self._staying.start()

    def leave(self) -> None:
        self._leaving.set()
        if self._staying is not None:
            self._staying.join(timeout=10)
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def remember(self, agent: str) -> None:
        """Note where an agent listens that has just been talked to: the next time it may have to be called."""
        peer = self._peers.get(agent)
        if self._settings.network != "fixed" or peer is None or peer.hello is None:
            return
        known, said = self._ledger.addresses(), usable(peer.hello.locators, self._settings)
        news = set(known.get(agent, ())) != set(said)
        if news and (agent in known or len(known) < MAX_ADDRESSES):
            self._ledger.note_addresses(agent, said)

    def _stay(self) -> None:
        while not self._leaving.wait(LOOK):
            try:
                if self._wire is None:
                    self._try_to_join()
                elif self._moved():
                    log.info("the network has changed; joining the mesh there")
                    self._wire.close()
                    self._try_to_join()
                elif self._settings.network == "fixed":
                    self._call_lost_peers()
                if self._wire is not None:
                    self.trouble = None
            except Exception as error:
                self.trouble = str(error)
                log.warning("cannot join the mesh now: %s", error)

    def _try_to_join(self) -> None:
        """Join; a gateway that is away is waited for."""
        self._wire = None
        try:
            session = from_background(partial(open_session, self._settings, self._home), A_LITTLE)
        except GatewayAwayError as error:
            if self.trouble is None:
                log.warning("%s", error)
            self.trouble = str(error)
            return
        if self._leaving.is_set():
            close_session(session)
            return
        self.trouble = None
        self.locators = locators(session)
        wire = Wire(session, self._identity)
        self._wire = wire  # before others are seen: they are asked at once
        self._declare(wire)
        wire.appear()

    def _moved(self) -> bool:
        now = self._addresses()
        new = set(now) - set(self._opened_with)
        self._opened_with = now if new else self._opened_with
        return bool(new)

    def _addresses(self) -> tuple[str, ...]:
        return addresses(self._settings.interface) if self._settings.network == "lan" else ()

    def _call_lost_peers(self) -> None:
        """Call those that were here once and are not, each one more seldom the longer it stays away."""
        here = {peer.agent for peer in self._peers.alive()}
        here |= self._ledger.view().bans.keys()
        lost = {agent: places for agent, places in self._ledger.addresses().items() if agent not in here}
        self._calls = {agent: call for agent, call in self._calls.items() if agent in lost}
        now = time.monotonic()
        due = [agent for agent in lost if self._calls.setdefault(agent, (0, now + CALL))[1] <= now and lost[agent]]
        places = []
        for agent in random.sample(due, min(len(due), CALLED_AT_ONCE)):
            times = self._calls[agent][0] + 1
            self._calls[agent] = times, now + min(CALL * 2 ** min(times, 10), LONGEST) * random.uniform(0.5, 1.0)
            places.append(lost[agent][times % len(lost[agent])])
        if places:
            introduce(self.wire().session, self._settings, self._home, places)
