"""The command `mcp`: an agent's tools for assistants, over the Model Context Protocol."""

from __future__ import annotations

import signal
import sys

import typer

from skillmesh.cli import app, open_agent, options, outlet
from skillmesh.common.extras import MCP


@app.command()
def mcp(context: typer.Context, home: options.Home = None, device: options.Device = None) -> None:
    """Let an assistant ask, teach and list tasks, over the Model Context Protocol. The assistant starts it."""
    from skillmesh.cli import show

    MCP.require("serving an assistant")
    from skillmesh.cli.assistants import server

    show.log_to_stderr(False)
    agent = open_agent(home or context.obj, device=device)
    if sys.stdin.isatty():
        outlet.line("waiting for an assistant on standard input; end with Ctrl-C", err=True)
    # The thread that reads standard input cannot be interrupted. Ending at once loses nothing: a task is stored as
    # a whole or not at all.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    server(agent, by_node=device is None).run("stdio")
