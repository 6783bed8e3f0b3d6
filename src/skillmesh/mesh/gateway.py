"""A gateway: the process that links sites, and agents behind a NAT. It holds no modules and needs no home."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType

import zenoh

from skillmesh.mesh.session import close_session, locators, open_router
from skillmesh.store.mesh_settings import DISCOVERY_PORT, TlsFiles


def run_gateway(
    listen: Sequence[str] = (),
    connect: Sequence[str] = (),
    tls: TlsFiles | None = None,
    ready: Callable[[tuple[str, ...]], None] = lambda _: None,
    discovery_port: int | None = DISCOVERY_PORT,
) -> None:
    """Route until SIGTERM or SIGINT comes; `ready` is told where agents can connect. For the main thread only."""
    stop = threading.Event()

    def ask_to_stop(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    session: zenoh.Session | None = None
    try:
        session = open_router(listen, connect, tls, discovery_port)
        ready(locators(session))
        while not stop.wait(1.0):  # a signal that the system gives to a thread of zenoh does not end a wait
            pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if session is not None:
            close_session(session)
