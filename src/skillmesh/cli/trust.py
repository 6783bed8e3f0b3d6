"""The commands about whom and what to believe: trust, quarantine, certs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skillmesh.cli import app, open_agent, options, outlet
from skillmesh.cli.mesh import tls_files
from skillmesh.cli.outlet import called, task_names
from skillmesh.errors import AgentError

if TYPE_CHECKING:
    from skillmesh.core import Core
    from skillmesh.mesh.shelf import Shelf

trust = typer.Typer(help="Whose modules this agent believes.", no_args_is_help=True, rich_markup_mode=None)
quarantine = typer.Typer(help="Modules that were held back, and why.", no_args_is_help=True, rich_markup_mode=None)
certs = typer.Typer(help="Certificates for mutual TLS.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(trust, name="trust")
app.add_typer(quarantine, name="quarantine")
app.add_typer(certs, name="certs")

TLS_FOLDER = "tls"
"""In an agent's home."""

Key = Annotated[str, typer.Argument(metavar="KEY", help="A public key: 64 hex digits.")]
HeldTask = Annotated[str, typer.Argument(metavar="TASK", help="A task, task@teacher, or a module's id.")]


@trust.command("add")
def trust_add(
    context: typer.Context,
    key: Key,
    home: options.Home = None,
    name: Annotated[
        str | None, typer.Option("--name", show_default=False, help="How this agent is to call the teacher.")
    ] = None,
) -> None:
    """Believe a teacher: its modules are fetched and used. The name that you give it is shown everywhere."""
    from skillmesh.cli import show
    from skillmesh.mesh.shelf import trust as believe

    agent, shelf = _agent_and_shelf(home or context.obj)
    believe(agent, shelf, key, name or "")
    show.say(f"trusts {called(agent, key)} ({key[:12]}…)")
    if not agent.ledger.view().trusted[key]:
        show.say(f"  to call it something else: `skillmesh trust add {key} --name NAME`")


@trust.command("remove")
def trust_remove(
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="A name that you gave, a key or its beginning.")],
    home: options.Home = None,
) -> None:
    """Stop believing a teacher: its modules go to quarantine."""
    from skillmesh.cli import show
    from skillmesh.mesh.shelf import distrust
    from skillmesh.module.teachers import SHOWN

    agent, shelf = _agent_and_shelf(home or context.obj, make=False)
    agent.ledger.refuse_unchangeable()
    trusted = {k: called(agent, k) for k in agent.ledger.view().trusted}
    matches = (
        [k for k in trusted if k == key]
        or [k for k, n in trusted.items() if n == key]
        or [k for k in trusted if len(key) >= SHOWN and k.startswith(key)]
    )
    if len(matches) != 1:
        names = ", ".join(f"{n} {k}" for k, n in trusted.items()) or "nobody"
        raise AgentError(f"{len(matches)} trusted teachers fit {key!r}; trusted are: {names}")
    moved = distrust(agent, shelf, matches[0])
    show.say(f"{trusted[matches[0]]} is not trusted any more; modules that went to quarantine: {len(moved)}")


@trust.command("list")
def trust_list(context: typer.Context, home: options.Home = None, json: options.Json = False) -> None:
    """List the teachers that this agent believes."""
    from skillmesh.cli import show

    agent = open_agent(home or context.obj)
    trusted = {key: called(agent, key) for key in agent.ledger.view().trusted}
    if json:
        show.print_json({"trusted": [{"key": key, "name": name} for key, name in trusted.items()]})
        return
    for key, name in trusted.items():
        outlet.line(f"{key}  {name}")
    if not trusted:
        show.say("nobody but itself; `skillmesh trust add KEY --name NAME` adds others")


@trust.command("show-mine")
def trust_show_mine(context: typer.Context, home: options.Home = None) -> None:
    """Print this agent's public key, for others to add."""
    outlet.line(open_agent(home or context.obj).identity.public_key)


@quarantine.command("list")
def quarantine_list(context: typer.Context, home: options.Home = None, json: options.Json = False) -> None:
    """List the modules that were held back, why, and what can be done."""
    from skillmesh.cli import show

    agent, shelf = _agent_and_shelf(home or context.obj)
    held = shelf.held()
    if json:
        show.print_json({"held": [h.as_dict(agent.teachers) for h in held]})
        return
    names = task_names(agent, (h.module.card.task for h in held))
    for h in held:
        day, _, _ = h.since.partition("T")
        outlet.line(f"{names.marked(h.module.card.task)} by {agent.teachers.name(h.module.card)}, since {day}")
        show.say(h.reason, indent=2)
        show.say(h.next_step, indent=2)
        show.say(f"to throw it away: `skillmesh quarantine drop {h.module.id[:12]}`", indent=2)
    if not held:
        outlet.line("nothing is held back")


@quarantine.command("release")
def quarantine_release(context: typer.Context, task: HeldTask, home: options.Home = None) -> None:
    """Let a module answer although it was held back."""
    agent, shelf = _agent_and_shelf(home or context.obj, make=False)
    agent.ledger.refuse_unchangeable()
    module = shelf.release(shelf.find(task, agent.teachers), agent)
    outlet.line(f"released {module.card.task!r} by {agent.teachers.name(module.card)}")


@quarantine.command("drop")
def quarantine_drop(context: typer.Context, task: HeldTask, home: options.Home = None) -> None:
    """Throw a module away; it is not fetched again."""
    agent, shelf = _agent_and_shelf(home or context.obj, make=False)
    agent.ledger.refuse_unchangeable()
    held = shelf.find(task, agent.teachers)
    shelf.drop(held)
    outlet.line(f"dropped {held.module.card.task!r} by {agent.teachers.name(held.module.card)}")


@certs.command("init")
def certs_init(
    folder: Annotated[Path, typer.Argument(help="Where the CA's certificate and key are kept.")],
) -> None:
    """Make a small certificate authority for a mesh."""
    from skillmesh.mesh.certs import create_ca

    create_ca(folder)
    outlet.line(f"made a certificate authority in {folder}; keep its key to yourself")


@certs.command("issue")
def certs_issue(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The folder that `certs init` made.")],
    home: options.Home = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", show_default=False, help="Write here; default the agent's home/tls."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", show_default=False, help="For the agent with this public key."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", show_default=False, help="That agent's name.")] = None,
) -> None:
    """Issue a certificate for this agent, or for another one by its key; it goes into the agent's settings."""
    from skillmesh.common.config import MeshSettings
    from skillmesh.mesh.certs import issue
    from skillmesh.module.identity import refuse_bad_key

    if key is not None:
        refuse_bad_key(key)
        if out is None:
            raise AgentError(
                "say where the certificate goes with --out DIR; then carry it to that agent's home/tls"
            )
        issue(folder, key, name or key[:12], out)
        outlet.line(f"wrote a certificate to {out}; `skillmesh config tls=DIR` turns TLS on where it is used")
        return
    agent = open_agent(home or context.obj)
    files = issue(folder, agent.identity.public_key, agent.name, out or agent.home / TLS_FOLDER)
    if out is None:
        MeshSettings.load(agent.home).with_(tls=tls_files(Path(TLS_FOLDER))).save(agent.home)
    outlet.line(f"wrote {files.certificate}{'' if out else '; TLS is on for this agent'}")


def _agent_and_shelf(home: Path | None, make: bool = True) -> tuple[Core, Shelf]:
    from skillmesh.mesh.shelf import Shelf

    agent = open_agent(home, make)
    return agent, Shelf(agent.home, agent.ledger)
