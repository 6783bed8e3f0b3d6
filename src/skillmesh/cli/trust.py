"""The commands about trusted teachers, quarantined modules and certificates: trust, quarantine, certs."""

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

trust = typer.Typer(help="Choose the teachers that an agent trusts.", no_args_is_help=True, rich_markup_mode=None)
quarantine = typer.Typer(help="Review modules in quarantine.", no_args_is_help=True, rich_markup_mode=None)
certs = typer.Typer(help="Make certificates for mutual TLS.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(trust, name="trust")
app.add_typer(quarantine, name="quarantine")
app.add_typer(certs, name="certs")

TLS_FOLDER = "tls"
"""Folder for certificates in an agent's home."""

Key = Annotated[str, typer.Argument(metavar="KEY", help="A public key: 64 hex digits.")]
HeldTask = Annotated[str, typer.Argument(metavar="TASK", help="A task, task@teacher, or a module's id.")]


@trust.command("add")
def trust_add(
    context: typer.Context,
    key: Key,
    home: options.Home = None,
    name: Annotated[
        str | None, typer.Option("--name", show_default=False, help="A name to show the teacher by.")
    ] = None,
) -> None:
    """Trust a teacher: its modules are fetched and used. All output of this agent shows the name you give it."""
    from skillmesh.cli import show
    from skillmesh.mesh.shelf import trust as trust_teacher

    agent, shelf = _agent_and_shelf(home or context.obj)
    trust_teacher(agent, shelf, key, name or "")
    show.say(f"trusts {called(agent, key)} ({key[:12]}…)")
    if not agent.ledger.view().trusted[key]:
        show.say(f"  to give it another name: `skillmesh trust add {key} --name NAME`")


@trust.command("remove")
def trust_remove(
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="A name that you gave, or a key or its beginning.")],
    home: options.Home = None,
) -> None:
    """Stop trusting a teacher; its modules go to quarantine."""
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
        names = ", ".join(f"{n} {k}" for k, n in trusted.items()) or "none"
        raise AgentError(f"{len(matches)} trusted teachers match {key!r}; trusted teachers: {names}")
    moved = distrust(agent, shelf, matches[0])
    show.say(f"{trusted[matches[0]]} is no longer trusted; modules moved to quarantine: {len(moved)}")


@trust.command("list")
def trust_list(context: typer.Context, home: options.Home = None, json: options.Json = False) -> None:
    """List the teachers that this agent trusts."""
    from skillmesh.cli import show

    agent = open_agent(home or context.obj)
    trusted = {key: called(agent, key) for key in agent.ledger.view().trusted}
    if json:
        show.print_json({"trusted": [{"key": key, "name": name} for key, name in trusted.items()]})
        return
    for key, name in trusted.items():
        outlet.line(f"{key}  {name}")
    if not trusted:
        show.say("no teacher but itself; add others with `skillmesh trust add KEY --name NAME`")


@trust.command("show-mine")
def trust_show_mine(context: typer.Context, home: options.Home = None) -> None:
    """Print this agent's public key; others need it for `trust add`."""
    outlet.line(open_agent(home or context.obj).identity.public_key)


@quarantine.command("list")
def quarantine_list(context: typer.Context, home: options.Home = None, json: options.Json = False) -> None:
    """List the modules in quarantine, the reasons, and what you can do."""
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
        show.say(f"to delete it: `skillmesh quarantine drop {h.module.id[:12]}`", indent=2)
    if not held:
        outlet.line("no modules in quarantine")


@quarantine.command("release")
def quarantine_release(context: typer.Context, task: HeldTask, home: options.Home = None) -> None:
    """Use a module although it is in quarantine."""
    agent, shelf = _agent_and_shelf(home or context.obj, make=False)
    agent.ledger.refuse_unchangeable()
    module = shelf.release(shelf.find(task, agent.teachers), agent)
    outlet.line(f"released {module.card.task!r} by {agent.teachers.name(module.card)}")


@quarantine.command("drop")
def quarantine_drop(context: typer.Context, task: HeldTask, home: options.Home = None) -> None:
    """Delete a module in quarantine; it is not fetched again."""
    agent, shelf = _agent_and_shelf(home or context.obj, make=False)
    agent.ledger.refuse_unchangeable()
    held = shelf.find(task, agent.teachers)
    shelf.drop(held)
    outlet.line(f"dropped {held.module.card.task!r} by {agent.teachers.name(held.module.card)}")


@certs.command("init")
def certs_init(
    folder: Annotated[Path, typer.Argument(help="Where to keep the authority's certificate and key.")],
) -> None:
    """Make a certificate authority for a mesh."""
    from skillmesh.mesh.certs import create_ca

    create_ca(folder)
    outlet.line(f"made a certificate authority in {folder}; keep its key secret")


@certs.command("issue")
def certs_issue(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The folder that `certs init` made.")],
    home: options.Home = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", show_default=False, help="Folder. Default: tls in the agent's home."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", show_default=False, help="Another agent's public key."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", show_default=False, help="That agent's name.")] = None,
) -> None:
    """Issue a certificate for this agent and turn TLS on; or, with --key and --out, for another agent."""
    from skillmesh.common.config import MeshSettings
    from skillmesh.mesh.certs import issue
    from skillmesh.module.identity import refuse_bad_key

    if key is not None:
        refuse_bad_key(key)
        if out is None:
            raise AgentError(
                "--key needs --out DIR, a folder for the certificate; copy that folder to tls in the agent's home"
            )
        issue(folder, key, name or key[:12], out)
        outlet.line(f"wrote a certificate to {out}; turn TLS on at that agent with `skillmesh config tls=DIR`")
        return
    agent = open_agent(home or context.obj)
    if out is not None:
        files = issue(folder, agent.identity.public_key, agent.name, out)
        outlet.line(f"wrote {files.certificate}")
        return
    settings = MeshSettings.load(agent.home).with_(tls=tls_files(Path(TLS_FOLDER)))  # before a file is written
    files = issue(folder, agent.identity.public_key, agent.name, agent.home / TLS_FOLDER)
    settings.save(agent.home)
    outlet.line(f"wrote {files.certificate}; TLS is on for this agent")


def _agent_and_shelf(home: Path | None, make: bool = True) -> tuple[Core, Shelf]:
    from skillmesh.mesh.shelf import Shelf

    agent = open_agent(home, make)
    return agent, Shelf(agent.home, agent.ledger)
