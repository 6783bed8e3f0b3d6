"""The command `page`: a node with a web page and an HTTP API."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from skillmesh.cli import app, open_agent, options, outlet
from skillmesh.cli.mesh import node_settings
from skillmesh.common.extras import PAGE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from skillmesh.core import Core
    from skillmesh.mesh.node import Node
    from skillmesh.page.server import Address


@app.command()
def page(
    context: typer.Context,
    home: options.Home = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open the browser.")] = False,
    port: options.PagePort = None,
    host: options.PageHost = "127.0.0.1",
    name: options.PageName = None,
    tls: options.PageTls = None,
    insecure: options.PageInsecure = False,
    network: options.Network = None,
    listen: options.Listen = None,
    connect: options.Connect = None,
    trust: options.TrustMode = None,
    device: options.Device = None,
    verbose: options.Verbose = False,
) -> None:
    """Teach, ask and share in a browser. Runs a node with a web page and an HTTP API until stopped."""
    from skillmesh.cli import show

    address = page_address(host, port, tls, insecure, name)
    from skillmesh.mesh.service import serve

    show.log_to_stderr(verbose)
    agent = open_agent(home or context.obj, device=device)
    settings = node_settings(agent, network, listen, connect, trust)
    serve(agent, settings, ready=lambda node: with_page(agent, node, address, not no_browser))
    outlet.line("stopped")


def page_address(
    host: str, port: int | None, tls: Path | None, insecure: bool, names: list[str] | None
) -> Address:
    """Return where the page is to be served; raise an error if it cannot or should not be."""
    PAGE.require("the page")
    from skillmesh.page.server import Address

    address = Address(host, port, tls, insecure, names or ())
    address.refuse_unsafe()
    return address


@contextmanager
def with_page(agent: Core, node: Node, address: Address, browser: bool) -> Iterator[None]:
    """Serve the page while the context lasts, say where, and open it in a browser if wanted."""
    import webbrowser

    from skillmesh.page.server import serving

    with serving(agent, node, address) as served:
        outlet.line(f"the page of agent {agent.name!r}: {served.owner_url}")
        outlet.line(f"  for guests, who may ask but not teach: {served.guest_url}")
        if browser:
            webbrowser.open(served.owner_url)
        yield
