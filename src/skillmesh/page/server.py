"""The server: the application with its guard, beside a node, until it is stopped."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from skillmesh.backbone.network import cpu_workers
from skillmesh.common.version import __version__
from skillmesh.core import Core
from skillmesh.errors import AgentError
from skillmesh.mesh.certs import CERTIFICATE, KEY
from skillmesh.mesh.node import Node
from skillmesh.page import problems
from skillmesh.page.api import Service, api
from skillmesh.page.guard import Guard, Tokens
from skillmesh.page.reference import reference_page

log = logging.getLogger(__name__)

PORT = 8737
"""The port that is taken if it is free and the user names none."""
AT_THE_END = 2
"""Seconds that open requests have to end when the server stops."""
BACKLOG = 2048
"""Number of connections that may wait to be accepted."""
IDLE = 30
"""Seconds after which an idle connection is closed."""


@dataclass(frozen=True)
class Address:
    """Where the page is served, and under which names."""

    host: str = "127.0.0.1"
    port: int | None = None
    """`None`: `PORT`, or another free one."""
    tls: Path | None = None
    """Folder with certificate and key."""
    insecure: bool = False
    """Whether the user accepts that others in the network can read and change what is sent."""
    names: Sequence[str] = field(default=())
    """Further names by which browsers may call this server."""

    def refuse_unsafe(self) -> None:
        """Raise an error for an address that others can reach without encryption, unless that is wanted."""
        if self.is_local or self.insecure or self.tls is not None:
            return
        raise AgentError(
            f"the address {self.host} can be reached from other machines, and without TLS anyone between can "
            "read the token and the images; give `--tls DIR` (a folder from `skillmesh certs issue`), or "
            "`--insecure` where you trust the whole network"
        )

    @property
    def is_local(self) -> bool:
        if self.host == "localhost":
            return True
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return False

    def bound(self) -> socket.socket:
        """Return a socket that listens there; without a port of the user's, on a free one."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        ports = [PORT, 0] if self.port is None else [self.port]
        for port in ports:
            # With TCP stated, as asyncio then turns Nagle's algorithm off: without, an answer waits 40 ms for the
            # acknowledgement of its headers.
            line = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                line.bind((self.host, port))
                line.listen(BACKLOG)  # before that, another socket can be bound to the same port
                return line
            except OSError as error:
                line.close()
                if port == ports[-1]:
                    raise AgentError(
                        f"the page cannot be served at {self.host}:{port}: {error.strerror}; choose another "
                        "with `--port` or `--host`"
                    ) from error
        raise AssertionError("there is a last port")

    def tls_options(self) -> dict[str, Any]:
        if self.tls is None:
            return {}
        certificate, key = self.tls / CERTIFICATE, self.tls / KEY
        if missing := [file.name for file in (certificate, key) if not file.is_file()]:
            raise AgentError(
                f"the folder {self.tls} has no {' and no '.join(missing)}; expected a folder that "
                "`skillmesh certs issue` wrote"
            )
        return {"ssl_certfile": certificate, "ssl_keyfile": key}


@dataclass(frozen=True)
class Page:
    """A page that is being served."""

    url: str
    """Its address, without a token."""
    tokens: Tokens

    @property
    def owner_url(self) -> str:
        return f"{self.url}/?token={self.tokens.owner}"

    @property
    def guest_url(self) -> str:
        return f"{self.url}/?token={self.tokens.guest}"


def application(service: Service, tokens: Tokens, names: Sequence[str] = (), secure: bool = False) -> ASGIApp:
    """Return the guarded application."""
    app = FastAPI(
        title="skillmesh",
        version=__version__,
        description="Ask, teach and share with a running agent. Errors are application/problem+json (RFC 9457).",
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.state.service = service
    problems.add_to(app)
    app.include_router(api)
    static = files("skillmesh.page") / "static"
    with as_file(static) as folder:
        app.mount("/static", StaticFiles(directory=folder))

        @app.get("/", include_in_schema=False)
        def page() -> Response:
            return FileResponse(folder / "index.html")

    @app.get("/docs", include_in_schema=False)
    def docs() -> Response:
        return HTMLResponse(reference_page(app.openapi()))

    cookie = f"skillmesh-{service.agent.identity.public_key[:12]}"  # browsers share cookies between ports
    return Guard(app, tokens, cookie, names, secure)


@contextlib.contextmanager
def serving(agent: Core, node: Node, address: Address) -> Iterator[Page]:
    """Serve the page in a thread of its own while the context lasts."""
    address.refuse_unsafe()
    options = address.tls_options()
    tokens = Tokens.of_home(agent.home)
    with contextlib.closing(address.bound()) as line:
        service = Service(agent, node, cpu_workers())
        names = [*address.names, *([] if address.is_local else [address.host, socket.gethostname()])]
        config = uvicorn.Config(
            application(service, tokens, names, bool(options)),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_keep_alive=IDLE,
            timeout_graceful_shutdown=AT_THE_END,
            **options,
        )
        try:
            config.load()
        except OSError as error:  # `ssl.SSLError` too
            service.close()
            raise AgentError(
                f"the page cannot be encrypted with the files in {address.tls}: {error.strerror or error}; "
                "expected a certificate and its key, as `skillmesh certs issue` writes them"
            ) from error
        server = _Server(config)
        # Not of lower priority, as the node's own threads are: someone waits for each answer.
        running = threading.Thread(target=lambda: server.run([line]), name="skillmesh-page", daemon=True)
        running.start()
        host = f"[{address.host}]" if ":" in address.host else address.host
        try:
            yield Page(f"{'https' if options else 'http'}://{host}:{line.getsockname()[1]}", tokens)
        finally:
            service.close()  # first, so that event streams end
            server.should_exit = True
            running.join(AT_THE_END + 5)


class _Server(uvicorn.Server):
    """A server in a thread; the program around it handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
