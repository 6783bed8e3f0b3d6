"""Joining the mesh: what zenoh is told for each kind of network, and what to say when it cannot be joined.

zenoh finds peers, keeps links alive and routes between sites. It tries for ever to reach the places that it was
given at opening, and finds again by multicast whom it lost; but a peer that it knows by gossip alone is not called
again after a partition, nor when this agent comes back. So agents remember where they met others (`locators`) and
call them again (`introduce`).
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import zenoh

from skillmesh.errors import MeshError
from skillmesh.mesh.certs import check
from skillmesh.mesh.settings import (
    DISCOVERY_PORT,
    PORT,
    MeshSettings,
    TlsFiles,
    endpoint,
    host_and_port,
    is_here,
)

log = logging.getLogger(__name__)

LEASE_MS = 8_000
"""A peer from which nothing was heard for so long is gone."""
KEEP_ALIVES = 3
"""Signs of life per lease on an idle link."""
GATEWAY_MS = 5_000
"""How long opening waits for a gateway."""
BATCH = 16_384
"""Bytes that zenoh sends at once; one that takes longer than a lease breaks the link, as 64 KB do at 64 kbit/s."""
MAX_MESSAGE = 8 * 1024 * 1024
LAN_GROUP = "224.0.0.224"
MACHINE_GROUP = "224.0.0.225"
"""Another group than the lan's: from an agent in both, machine agents would learn of others by gossip."""
LOOPBACK = "127.0.0.1"
THREADS = "(rx: (worker_threads: 32), tx: (worker_threads: 16))"
"""Closing the link to a peer that vanished blocks a thread of zenoh for 10 s (its issue 2718). With as few threads
as cores, the links to all other peers die with it."""


class GatewayAwayError(MeshError):
    """No gateway answers at present; trying again later may help."""


def open_session(settings: MeshSettings, home: Path) -> zenoh.Session:
    """Join the mesh as these settings say.

    It does not wait for others: whether there are any shows later. Only the network client needs its gateway at
    opening, and raises `GatewayAwayError` without it; once open, it finds the gateway again by itself. Close with
    `close_session`.
    """
    listen = _listen(settings)
    config = _common(listen, settings.connect, _tls_files(settings, home))
    config |= _discovery(settings)
    if settings.network == "client":
        config |= {"mode": "client", "connect/timeout_ms": GATEWAY_MS}
    try:
        return _open(config, listen)
    except MeshError as error:
        if settings.network == "client" and "Unable to connect" in str(error):
            raise GatewayAwayError(
                f"no gateway answers at {', '.join(settings.connect)}; start one, or correct the setting connect"
            ) from error
        raise


def open_router(
    listen: Sequence[str] = (),
    connect: Sequence[str] = (),
    tls: TlsFiles | None = None,
    discovery_port: int | None = DISCOVERY_PORT,
) -> zenoh.Session:
    """Open a gateway: it routes between agents that connect to it or find it on their lan, and other gateways.

    With `discovery_port` `None` it does not make itself known on the lan.
    """
    secure = tls is not None
    try:
        listening = [endpoint(text, secure=secure, any_port=True) for text in listen or (f"0.0.0.0:{PORT}",)]
        connecting = [endpoint(text, secure=secure) for text in connect]
    except ValueError as error:
        raise MeshError(str(error)) from error
    config = _common(listening, connecting, tls) | {"mode": "router"}
    if discovery_port is not None:
        config |= {
            "scouting/multicast/enabled": True,
            "scouting/multicast/address": f"{LAN_GROUP}:{discovery_port}",
        }
    return _open(config, listening)


def close_session(session: zenoh.Session, seconds: float = 3.0) -> None:
    """Leave the mesh, and wait so long at most: a link to a peer that vanished holds zenoh for 10 s."""
    closing = threading.Thread(target=_close, args=(session,), name="leave-mesh", daemon=True)
    closing.start()
    closing.join(seconds)


def locators(session: zenoh.Session) -> tuple[str, ...]:
    """Return where others can reach this session, for them to remember; nothing for a client of a gateway."""
    for reply in session.get(f"@/{session.zid()}/*", timeout=2.0):
        if reply.ok is not None:
            return tuple(json.loads(reply.ok.payload.to_bytes())["locators"])
    return ()


def addresses(interface: str | None = None) -> tuple[str, ...]:
    """Return this machine's addresses on the network at present, of one interface or of all.

    A session stays with those that it was opened with. An agent that was opened before the network was there, or
    that has moved to another one, finds nobody on the lan until it is opened again: do so when an address appears
    that was not there at opening.
    """
    known = [name for _, name in socket.if_nameindex()]
    if interface is not None and interface not in known:
        raise MeshError(f"there is no network interface {interface!r} here; expected one of {', '.join(known)}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if sys.platform == "linux":
            found = {_address_of(name, probe) for name in known if interface in (None, name)}
        else:
            found = {_address_towards(LAN_GROUP, probe)}
    return tuple(sorted(address for address in found if address is not None and address != LOOPBACK))


def introduce(
    session: zenoh.Session, settings: MeshSettings, home: Path, places: Iterable[str], seconds: float = 2.0
) -> int:
    """Link an open session with the agents at these places, and return how many of them it is linked with.

    zenoh cannot be told of a place once it runs, but it believes gossip: a second session that links both for a
    moment tells each of the other. It takes about 10 ms where the others are there, `seconds` where one is not:
    name one place of each agent.
    """
    here = locators(session)
    wanted = set(usable(places, settings)) - set(here)
    if not wanted or not here:
        return 0
    config = _common((), (*here, *wanted), _tls_files(settings, home))
    introducer = _open(config | {"scouting/gossip/autoconnect": []}, ())
    until = time.monotonic() + seconds
    try:
        while True:
            met = {str(zid) for zid in introducer.info.peers_zid()} - {str(session.zid())}
            linked = met & {str(zid) for zid in session.info.peers_zid()}
            if len(linked) >= len(wanted) or time.monotonic() > until:
                return len(linked)
            time.sleep(0.005)
    finally:
        close_session(introducer)


def usable(places: Iterable[str], settings: MeshSettings) -> list[str]:
    """Leave out what others said and cannot be an endpoint here, and what leads off a machine that stays alone."""
    found = []
    for text in places:
        try:
            place = endpoint(text, secure=settings.tls is not None)
        except ValueError:
            log.info("no agent can be reached at %r", text)
            continue
        if settings.network != "machine" or is_here(place):
            found.append(place)
    return found


def _address_of(interface: str, probe: socket.socket) -> str | None:
    """Return the address of an interface that is up and running, by the calls of netdevice(7)."""
    import fcntl

    request = struct.pack("256s", interface.encode())
    try:
        flags = struct.unpack_from("H", fcntl.ioctl(probe, 0x8913, request), 16)[0]
        return socket.inet_ntoa(fcntl.ioctl(probe, 0x8915, request)[20:24]) if flags & 0x40 else None
    except OSError:
        return None


def _address_towards(host: str, probe: socket.socket) -> str | None:
    """Return the address from which the system would send there; nothing is sent."""
    try:
        probe.connect((host, DISCOVERY_PORT))
        return str(probe.getsockname()[0])
    except OSError:
        return None


def _close(session: zenoh.Session) -> None:
    try:
        session.close()  # type: ignore[no-untyped-call]
    except zenoh.ZError as error:
        log.info("the mesh could not be left in an orderly way: %s", error)


def _common(listen: Iterable[str], connect: Iterable[str], tls: TlsFiles | None) -> dict[str, Any]:
    """What holds for agents and gateways: links that are retried for ever, bounded messages, no shared memory."""
    config = {
        "mode": "peer",
        "listen/endpoints": list(listen),
        "listen/exit_on_failure": True,
        "connect/endpoints": list(connect),
        "connect/timeout_ms": -1,
        "connect/exit_on_failure": False,
        "connect/retry": {"period_init_ms": 500, "period_max_ms": 4_000, "period_increase_factor": 2},
        "scouting/multicast/enabled": False,
        "adminspace/enabled": True,  # for `locators`; read only
        "transport/shared_memory/enabled": False,
        "transport/unicast/open_timeout": LEASE_MS,
        "transport/unicast/accept_timeout": LEASE_MS,
        "transport/link/tx/lease": LEASE_MS,
        "transport/link/tx/keep_alive": KEEP_ALIVES,
        "transport/link/tx/batch_size": BATCH,
        "transport/link/rx/max_message_size": MAX_MESSAGE,
        "transport/link/protocols": ["tls" if tls else "tcp"],
    }
    return config | ({} if tls is None else _mutual_tls(tls))


def _mutual_tls(files: TlsFiles) -> dict[str, Any]:
    """Both ends show a certificate of the mesh's CA. It names an agent, not an address: names are not compared."""
    check(files)
    return {
        "transport/link/tls/root_ca_certificate": str(files.ca),
        "transport/link/tls/listen_certificate": str(files.certificate),
        "transport/link/tls/listen_private_key": str(files.key),
        "transport/link/tls/connect_certificate": str(files.certificate),
        "transport/link/tls/connect_private_key": str(files.key),
        "transport/link/tls/enable_mtls": True,
        "transport/link/tls/verify_name_on_connect": False,
        "transport/link/tls/close_link_on_expiration": True,
    }


def _tls_files(settings: MeshSettings, home: Path) -> TlsFiles | None:
    return None if settings.tls is None else settings.tls.beside(home)


def _listen(settings: MeshSettings) -> tuple[str, ...]:
    if settings.listen or settings.network == "client":
        return settings.listen
    places = [f"0.0.0.0:{PORT}"] if settings.network == "fixed" else [f"{host}:0" for host in _hosts(settings)]
    return tuple(endpoint(place, secure=settings.tls is not None, any_port=True) for place in places)


def _discovery(settings: MeshSettings) -> dict[str, Any]:
    if settings.network in ("fixed", "client"):
        return {}
    here = settings.network == "machine"
    found = {
        "scouting/multicast/enabled": True,
        "scouting/multicast/address": f"{MACHINE_GROUP if here else LAN_GROUP}:{settings.discovery_port}",
        "scouting/multicast/interface": ",".join(_hosts(settings)),
    }
    # Two that find each other both call, and keep both links. Where no firewall can be in the way, one will do.
    one_calls = {"peer": {"to_router": "always", "to_peer": "greater-zid"}}
    ways = ("scouting/multicast/autoconnect_strategy", "scouting/gossip/autoconnect_strategy") if here else ()
    return found | dict.fromkeys(ways, one_calls)


def _hosts(settings: MeshSettings) -> tuple[str, ...]:
    """Return the addresses on which to look for others; zenoh's own list of them never changes in a process."""
    if settings.network == "machine":
        return (LOOPBACK,)
    return addresses(settings.interface) or (LOOPBACK,)


def _open(config: dict[str, Any], listen: Iterable[str]) -> zenoh.Session:
    os.environ.setdefault("ZENOH_RUNTIME", THREADS)  # read once, when the process opens its first session
    told = zenoh.Config()
    for key, value in config.items():
        told.insert_json5(key, json.dumps(value))
    try:
        return zenoh.open(told)
    except zenoh.ZError as error:
        raise MeshError(_why_not(listen) or f"cannot join the mesh: {error}") from error


def _why_not(listen: Iterable[str]) -> str | None:
    """Find the endpoint that cannot be listened on, and say so in fewer words than zenoh."""
    for locator in listen:
        host, port = host_and_port(locator)
        try:
            socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            return (
                f"cannot listen on {locator}: {reason}; choose another address or port with listen, or end the "
                "process that uses it"
            )
    return None
