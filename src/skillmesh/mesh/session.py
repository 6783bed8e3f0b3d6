"""Joining the mesh: the zenoh configuration for each kind of network, and error messages if joining fails.

zenoh finds peers, keeps links alive and routes between sites. It keeps trying to reach the endpoints given at
opening, and finds lost peers again by multicast; but it does not reconnect to a peer known by gossip only, neither
after a partition nor when this agent comes back. So agents remember the endpoints of others (`locators`) and
reconnect to them (`introduce`).
"""

from __future__ import annotations

import array
import ipaddress
import json
import logging
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import zenoh

from skillmesh.common.config import DISCOVERY_PORT, PORT, MeshSettings, TlsFiles, endpoint, host_and_port, is_here
from skillmesh.errors import MeshError
from skillmesh.mesh.certs import check

log = logging.getLogger(__name__)

LEASE_MS = 8_000
"""Milliseconds without any message after which a peer counts as gone."""
KEEP_ALIVES = 3
"""Number of keep-alive messages per lease on an idle link."""
GATEWAY_MS = 5_000
"""Milliseconds for which opening a session waits for a gateway."""
BATCH = 16_384
"""Bytes per batch of zenoh; a batch that takes longer than a lease breaks the link, as 64 KB do at 64 kbit/s."""
MAX_MESSAGE = 8 * 1024 * 1024
LAN_GROUP = "224.0.0.224"
MACHINE_GROUP = "224.0.0.225"
"""Not the LAN's group: through an agent in both, agents of network `machine` would learn of others by gossip."""
LOOPBACK = "127.0.0.1"
MOST_ADDRESSES = 256
"""Most addresses of this machine that are read."""
THREADS = "(net: (worker_threads: 8), rx: (worker_threads: 32), tx: (worker_threads: 16))"
"""zenoh's threads. Closing the link to a vanished peer blocks one of them for 10 s (zenoh issue 2718). With only
as many threads as cores, the links to all other peers die too; with one `net` thread the session may die as well,
if many peers come and go (zenoh issue 2581)."""

PORTS_TRIED = 10
"""Attempts to find a free port if another process takes it first."""
_LISTENING: dict[str, tuple[str, ...]] = {}
"""Endpoints of each open session, by session id. zenoh itself reports them only through its admin space."""


class GatewayAwayError(MeshError):
    """No gateway answers now; trying again later may help."""


def open_session(settings: MeshSettings, home: Path) -> zenoh.Session:
    """Join the mesh with these settings and return the session.

    It does not wait for peers: they appear later. Only network `client` needs its gateway at opening, and raises
    `GatewayAwayError` without it; once open, the session finds the gateway again by itself. Close it with
    `close_session`.
    """
    listen = _listen(settings)
    config = _common(settings.connect, _tls_files(settings, home))
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
    """Open a gateway: it routes between agents that connect to it or find it on their LAN, and other gateways.

    With `discovery_port` `None` it cannot be discovered on the LAN.
    """
    secure = tls is not None
    try:
        listening = [endpoint(text, secure=secure, any_port=True) for text in listen or (f"0.0.0.0:{PORT}",)]
        connecting = [endpoint(text, secure=secure) for text in connect]
    except ValueError as error:
        raise MeshError(str(error)) from error
    config = _common(connecting, tls) | {"mode": "router"}
    if discovery_port is not None:
        config |= {
            "scouting/multicast/enabled": True,
            "scouting/multicast/address": f"{LAN_GROUP}:{discovery_port}",
        }
    return _open(config, listening)


def close_session(session: zenoh.Session, seconds: float = 3.0) -> None:
    """Leave the mesh, waiting at most `seconds`: a link to a vanished peer blocks zenoh for 10 s."""
    _LISTENING.pop(str(session.zid()), None)
    closing = threading.Thread(target=_close, args=(session,), name="leave-mesh", daemon=True)
    closing.start()
    closing.join(seconds)


def locators(session: zenoh.Session) -> tuple[str, ...]:
    """Return the endpoints at which others can reach this session; none for a client of a gateway."""
    return _LISTENING.get(str(session.zid()), ())


def addresses(interface: str | None = None) -> tuple[str, ...]:
    """Return this machine's current network addresses, of one interface or of all.

    A session keeps using the addresses that it was opened with. If it was opened before the network was up, or the
    machine has moved to another network, it finds no peers on the LAN: open it again when an address appears that
    did not exist at opening.
    """
    known = [name for _, name in socket.if_nameindex()]
    if interface is not None and interface not in known:
        raise MeshError(f"this machine has no network interface {interface!r}; expected one of {', '.join(known)}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if sys.platform == "linux":
            usable_here = {address for name, address in _addresses_4(probe) if interface in (None, name)}
        else:
            usable_here = {_address_towards(LAN_GROUP, probe)}
    return tuple(sorted(address for address in usable_here if address is not None and address != LOOPBACK))


def introduce(
    session: zenoh.Session, settings: MeshSettings, home: Path, places: Iterable[str], seconds: float = 2.0
) -> int:
    """Link an open session to the agents at these endpoints, and return the number of agents it is now linked to.

    zenoh accepts no new endpoints once it runs, but it follows gossip: a second session that connects to both
    sides for a moment makes them known to each other. This takes about 10 ms if all agents are up, and `seconds`
    if one is not: pass one endpoint per agent.
    """
    here = locators(session)
    wanted = set(usable(places, settings)) - set(here)
    if not wanted or not here:
        return 0
    config = _common((*here, *wanted), _tls_files(settings, home))
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
    """Return the valid endpoints among those that others reported; on network `machine`, only local ones."""
    endpoints = []
    for text in places:
        try:
            place = endpoint(text, secure=settings.tls is not None)
        except ValueError:
            log.info("ignored %r: not a valid address of an agent", text)
            continue
        if settings.network != "machine" or is_here(place):
            endpoints.append(place)
    return endpoints


def _addresses_4(probe: socket.socket) -> list[tuple[str, str]]:
    """Return all IPv4 addresses of running interfaces, as (interface, address): see netdevice(7)."""
    import fcntl

    row = 40 if sys.maxsize > 2**32 else 32
    rows = array.array("B", bytes(row * MOST_ADDRESSES))
    listed = fcntl.ioctl(probe, 0x8912, struct.pack("iP", len(rows), rows.buffer_info()[0]))
    pairs = []
    for start in range(0, struct.unpack_from("i", listed)[0], row):
        name = rows[start : start + 16].tobytes().partition(b"\0")[0]
        try:
            flags = struct.unpack_from("H", fcntl.ioctl(probe, 0x8913, struct.pack("256s", name)), 16)[0]
        except OSError:  # the interface has disappeared since it was listed
            continue
        if flags & 0x40:
            pairs.append((name.decode().partition(":")[0], socket.inet_ntoa(rows[start + 20 : start + 24])))
    return pairs


def _address_towards(host: str, probe: socket.socket) -> str | None:
    """Return the local address from which the system would send to `host`; nothing is sent."""
    try:
        probe.connect((host, DISCOVERY_PORT))
        return str(probe.getsockname()[0])
    except OSError:
        return None


def _close(session: zenoh.Session) -> None:
    try:
        session.close()  # type: ignore[no-untyped-call]
    except zenoh.ZError as error:
        log.info("the session with the mesh could not be closed properly: %s", error)


def _common(connect: Iterable[str], tls: TlsFiles | None) -> dict[str, Any]:
    """Return what agents and gateways share: links retried forever, bounded messages, no shared memory."""
    config = {
        "mode": "peer",
        "listen/exit_on_failure": True,
        "connect/endpoints": list(connect),
        "connect/timeout_ms": -1,
        "connect/exit_on_failure": False,
        "connect/retry": {"period_init_ms": 500, "period_max_ms": 4_000, "period_increase_factor": 2},
        "scouting/multicast/enabled": False,
        "adminspace/enabled": False,  # with it, any stranger can block all links (PR 2619)
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
    """Return the settings for mutual TLS. Certificates name agents, not hosts, so host names are not checked."""
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
    local = settings.network == "machine"
    config = {
        "scouting/multicast/enabled": True,
        "scouting/multicast/address": f"{MACHINE_GROUP if local else LAN_GROUP}:{settings.discovery_port}",
        "scouting/multicast/interface": ",".join(_hosts(settings)),
    }
    # Two agents that find each other both connect, with a link each. One is enough where no firewall can block it.
    one_link = {"peer": {"to_router": "always", "to_peer": "greater-zid"}}
    ways = ("scouting/multicast/autoconnect_strategy", "scouting/gossip/autoconnect_strategy") if local else ()
    return config | dict.fromkeys(ways, one_link)


def _hosts(settings: MeshSettings) -> tuple[str, ...]:
    """Return the addresses on which to discover peers; zenoh's own list never changes within a process."""
    if settings.network == "machine":
        return (LOOPBACK,)
    return addresses(settings.interface) or (LOOPBACK,)


def _open(config: dict[str, Any], listen: Sequence[str], tries: int = PORTS_TRIED) -> zenoh.Session:
    os.environ.setdefault("ZENOH_RUNTIME", THREADS)  # read once, when the process opens its first session
    places: Sequence[str] = listen
    try:
        places = [_exactly(place) for place in listen]
        session = zenoh.open(_zenoh_config(config | {"listen/endpoints": places}))
    except (OSError, zenoh.ZError) as error:
        reason = _why_not(places)
        if reason and tries > 1 and _why_not(listen) is None:  # another process has just taken the free port
            return _open(config, listen, tries - 1)
        raise MeshError(reason or f"cannot join the mesh: {error}") from error
    _LISTENING[str(session.zid())] = tuple(reached for place in places for reached in _reached_at(place))
    return session


def _zenoh_config(config: dict[str, Any]) -> zenoh.Config:
    result = zenoh.Config()
    for key, value in config.items():
        result.insert_json5(key, json.dumps(value))
    return result


def _exactly(place: str) -> str:
    """Return the endpoint with its host name resolved, and port 0 replaced by a port that is free now.

    zenoh could do this too, but does not report its choice.
    """
    family, host, port = _resolved(place)
    if port == 0:
        with socket.create_server((host, 0), family=family) as free:
            port = free.getsockname()[1]
    return _place(place.partition("/")[0], host, port)


def _resolved(place: str) -> tuple[socket.AddressFamily, str, int]:
    """Return the family, address and port of an endpoint: the first address if there are several, as in zenoh."""
    name, port = host_and_port(place)
    family, *_, address = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0]
    return family, str(address[0]), port


def _place(scheme: str, host: str, port: int) -> str:
    return f"{scheme}/[{host}]:{port}" if ":" in host else f"{scheme}/{host}:{port}"


def _reached_at(place: str) -> list[str]:
    """Return the endpoints at which others reach a listener, which may listen on all addresses of this machine."""
    scheme, (host, port) = place.partition("/")[0], host_and_port(place)
    if not ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        return [place]
    hosts = [*(_addresses_6() if ":" in host else ()), *(addresses() or (LOOPBACK,))]
    return [_place(scheme, each, port) for each in hosts]


def _addresses_6() -> list[str]:
    """Return this machine's IPv6 addresses that are not link-local, if the system lists them."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return []
    listed = (ipaddress.IPv6Address(int(line.split()[0], 16)) for line in lines)
    return [str(address) for address in listed if not (address.is_loopback or address.is_link_local)]


def _why_not(listen: Iterable[str]) -> str | None:
    """Return an error message for the first endpoint that cannot be listened on, or None if all can."""
    for locator in listen:
        try:
            family, host, port = _resolved(locator)
            socket.create_server((host, port), family=family).close()
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            return (
                f"cannot listen on {locator}: {reason}; choose another address or port with the setting "
                "listen, or end the process that uses it"
            )
    return None


# A gateway: a process that links sites, and agents behind a NAT. It stores no modules and needs no home.


def run_gateway(
    listen: Sequence[str] = (),
    connect: Sequence[str] = (),
    tls: TlsFiles | None = None,
    ready: Callable[[tuple[str, ...]], None] = lambda _: None,
    discovery_port: int | None = DISCOVERY_PORT,
) -> None:
    """Route until SIGTERM or SIGINT; `ready` gets the endpoints to connect to. Call it in the main thread only."""
    stop = threading.Event()

    def ask_to_stop(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    session: zenoh.Session | None = None
    try:
        session = open_router(listen, connect, tls, discovery_port)
        ready(locators(session))
        while not stop.wait(1.0):  # a signal delivered to a zenoh thread does not end a wait
            pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if session is not None:
            close_session(session)
