"""The commands of the mesh: serve, sync, status, peers, gateway, withdraw, remember, config."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillmesh.cli import app, open_agent, options, outlet
from skillmesh.cli.outlet import called, task_names
from skillmesh.errors import AgentError

if TYPE_CHECKING:
    from skillmesh.common.config import MeshSettings, TlsFiles
    from skillmesh.core import Core
    from skillmesh.mesh.node import Node

Reason = Annotated[str | None, typer.Option("--reason", show_default=False, help="Why, for those who used it.")]


@app.command()
def serve(
    context: typer.Context,
    home: options.Home = None,
    network: options.Network = None,
    listen: options.Listen = None,
    connect: options.Connect = None,
    trust: options.TrustMode = None,
    learn: Annotated[
        list[Path] | None,
        typer.Option(
            "--learn", metavar="FOLDER", show_default=False, help="Learn this while sharing; repeatable."
        ),
    ] = None,
    device: options.Device = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")] = False,
) -> None:
    """Share what this agent knows and receive what others know, until stopped."""
    from skillmesh.cli import show
    from skillmesh.mesh.service import serve as run

    show.log_to_stderr(verbose)
    agent = open_agent(home or context.obj, device=device)
    settings = _settings(agent, network, listen, connect, trust)

    def ready(node: Node) -> None:
        places = ", ".join(node.membership.locators) or "nothing (a client)"
        outlet.line(f"agent {agent.name!r} serves {len(agent.bank)} tasks on the network {settings.network}")
        outlet.line(f"  key        {agent.identity.public_key}")
        outlet.line(f"  listening  {places}")
        show.say(f"  trusts     {_trusts(agent)}")

    run(agent, settings, learn or (), ready)
    outlet.line("stopped")


@app.command()
def sync(
    context: typer.Context,
    home: options.Home = None,
    once: Annotated[bool, typer.Option("--once", help="Join, catch up, leave: what this command does.")] = True,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Give up after so long.")] = 60.0,
    network: options.Network = None,
    listen: options.Listen = None,
    connect: options.Connect = None,
    trust: options.TrustMode = None,
    json: options.Json = False,
) -> None:
    """Join the mesh, catch up with everyone in reach, leave. For laptops and cron."""
    from skillmesh.cli import show
    from skillmesh.mesh.calling import NotRunningError, call
    from skillmesh.mesh.service import catch_up

    show.log_to_stderr(False)
    agent = open_agent(home or context.obj)
    settings = _settings(agent, network, listen, connect, trust)
    before = len(agent.bank)
    try:
        stood = call(agent.home, "sync", timeout=seconds + 30, seconds=seconds)
    except NotRunningError:
        stood = catch_up(agent, settings, seconds)
    agent.bank.refresh()
    gained = len(agent.bank) - before
    if json:
        show.print_json(stood | {"tasks": len(agent.bank), "gained": gained})
    else:
        traffic = f"{show.kilobytes(stood['bytes_fetched'])} fetched, {show.kilobytes(stood['bytes_sent'])} sent"
        late = "" if stood["settled"] else "; not caught up yet"
        met = "met 1 agent" if stood["peers"] == 1 else f"met {stood['peers']} agents"
        outlet.line(f"{met}, {len(agent.bank)} tasks ({gained:+d}), {traffic}{late}")
    if not stood["settled"]:
        raise typer.Exit(1)


@app.command()
def status(context: typer.Context, home: options.Home = None, json: options.Json = False) -> None:
    """Say how this agent stands with the mesh."""
    from skillmesh.cli import show
    from skillmesh.mesh.status import status as status_of

    agent = open_agent(home or context.obj)
    found = status_of(agent)
    if json:
        show.print_json(found)
        return
    elsewhere = (each["task"] for kind in ("held", "declined", "seen") for each in found.get(kind, ()))
    name_of = task_names(agent, elsewhere).marked
    _show_state(found)
    for failed in found.get("not_learned", ()):
        show.warn(f"not learned: {failed['file']}: {failed['reason']}")
    if found.get("trouble"):
        show.warn(f"trouble: {found['trouble']}")
    held = {h["id"] for h in found["held"]}
    for h in found["held"]:
        show.say(f"held back: {name_of(h['task'])} by {h['teacher']}: {h['reason']}", indent=2)
    if held:
        show.say("what can be done: `skillmesh quarantine list`", indent=2)
    for declined in found.get("declined", ()):
        if declined["id"] not in held:
            show.say(
                f"not taken: {name_of(declined['task'])} by {declined['teacher']}: {declined['reason']}", indent=2
            )
    for refused in found["refused"]:
        show.say(f"refused: {refused['id'][:12]}…: {refused['reason']}", indent=2)
    for ban in found["bans"]:
        text = f"banned: {ban['agent'][:12]}…: {ban['reason']}; to forgive it: `skillmesh peers --unban "
        show.say(f"{text}{ban['agent'][:12]}`", indent=2)
    for damaged in found["damaged"]:
        show.warn(f"damaged: {damaged['file']}: {damaged['reason']}")
    _show_strangers([seen | {"task": name_of(seen["task"])} for seen in found["seen"]])


def _show_state(found: dict[str, Any]) -> None:
    """Say in a few lines what the agent knows and how it stands with others."""
    from skillmesh.cli import show

    settings = f"network {found['network']}, trust {found['trust']}"
    running = (
        f"shares ({settings})" if found["running"] else f"is not sharing ({settings}); `skillmesh serve` does"
    )
    show.say(f"agent {found['name']!r} {running}")
    elsewhere = f", {found['missing']} known of but not here" if found["missing"] else ""
    withdrawn = f", {found['withdrawn']} withdrawn" if found["withdrawn"] else ""
    show.say(f"{found['live']} tasks here, {show.kilobytes(found['bytes'])}{elsewhere}{withdrawn}", indent=2)
    if found["running"]:
        state = "nothing left to fetch" if found["settled"] else f"fetching {found['wanted']} tasks"
        traffic = f"{show.kilobytes(found['bytes_fetched'])} fetched, {show.kilobytes(found['bytes_sent'])} sent"
        others = "1 other agent" if found["peers"] == 1 else f"{found['peers']} other agents"
        show.say(f"{others} in reach, {state}; {traffic}", indent=2)


def _show_strangers(seen: list[dict[str, str]]) -> None:
    """Untrusted teachers, one line each, with what would make them trusted."""
    from skillmesh.cli import show

    tasks: dict[tuple[str, str], list[str]] = {}
    for notice in seen:
        tasks.setdefault((notice["teacher"], notice["teacher_key"]), []).append(notice["task"])
    for (teacher, key), names in tasks.items():
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        show.say(f"seen, not trusted: {', '.join(names[:5])}{more} by {teacher}; to trust it:", indent=2)
        show.say(f"`skillmesh trust add {key} --name NAME`", indent=4)


@app.command()
def peers(
    context: typer.Context,
    home: options.Home = None,
    unban: Annotated[
        str | None,
        typer.Option("--unban", metavar="KEY", show_default=False, help="Forgive a banned agent."),
    ] = None,
    json: options.Json = False,
) -> None:
    """List the other agents that the running node has met."""
    from skillmesh.cli import show
    from skillmesh.mesh.calling import call

    agent = open_agent(home or context.obj, make=False)
    if unban is not None:
        agent.ledger.refuse_unchangeable()
        banned = [key for key in agent.ledger.view().bans if key.startswith(unban)]
        if len(banned) != 1:
            raise AgentError(f"{len(banned)} banned agents have a key that begins with {unban!r}; name one")
        agent.ledger.unban(banned[0])
        outlet.line(f"{banned[0][:12]}… is not banned any more")
        return
    found = call(agent.home, "peers")
    if json:
        show.print_json({"peers": found})
        return
    rows = show.table(None, "name", "state", ">tasks", "knows", ">received", "trusted")
    for p in sorted(found, key=lambda p: (not p["alive"], p["name"], p["agent"])):
        state = "banned" if p["banned"] else "here" if p["alive"] else "gone"
        knows = "the same" if p["same"] else "other things"
        rows.add_row(
            p["name"],
            state,
            "?" if p["tasks"] is None else str(p["tasks"]),
            knows,
            show.kilobytes(p["bytes_received"]),
            "yes" if p["trusted"] else "no",
        )
    show.console.print(rows if found else "nobody yet")


@app.command()
def gateway(
    listen: options.Listen = None,
    connect: options.Connect = None,
    tls: Annotated[
        Path | None,
        typer.Option("--tls", metavar="DIR", show_default=False, help="What `certs issue --out DIR` wrote."),
    ] = None,
    discovery_port: Annotated[
        int | None,
        typer.Option(
            "--discovery-port",
            min=1,
            max=65535,
            show_default=False,
            help="Of the lan's agents, if they have another.",
        ),
    ] = None,
) -> None:
    """Join sites: route between agents here, agents that connect from behind a NAT, and other gateways."""
    from skillmesh.common.config import DISCOVERY_PORT
    from skillmesh.mesh.session import run_gateway

    def ready(places: Any) -> None:
        outlet.line(f"gateway listens on {', '.join(places)}")

    run_gateway(
        listen or (),
        connect or (),
        None if tls is None else tls_files(tls),
        ready,
        discovery_port or DISCOVERY_PORT,
    )
    outlet.line("stopped")


def tls_files(folder: Path) -> TlsFiles:
    """What `skillmesh certs issue` writes into a folder."""
    from skillmesh.common.config import TlsFiles
    from skillmesh.mesh.certs import CA, CERTIFICATE, KEY

    return TlsFiles(ca=folder / CA, certificate=folder / CERTIFICATE, key=folder / KEY)


@app.command()
def withdraw(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="A task that this agent has taught.")],
    home: options.Home = None,
    reason: Reason = None,
) -> None:
    """Take back a task that this agent has taught, everywhere, for late joiners too."""
    notice = open_agent(home or context.obj, make=False).withdraw(task, reason)
    outlet.line(f"withdrew {notice.task!r} up to version {notice.version}; others hear of it at the next sync")


@app.command()
def remember(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="A task that was forgotten here.")],
    home: options.Home = None,
) -> None:
    """Take a forgotten task from the mesh again."""
    agent = open_agent(home or context.obj, make=False)
    agent.ledger.refuse_unchangeable()
    forgotten = sorted(agent.ledger.view().forgotten)
    names = {slot: f"{slot.task}@{called(agent, slot.teacher_key)}" for slot in forgotten}
    slots = (
        [s for s in forgotten if task == f"{s.task}@{s.teacher_key}"]
        or [s for s in forgotten if task == names[s]]
        or [s for s in forgotten if task == s.task]
    )
    if len(slots) != 1:
        problem = f"several tasks {task!r} were" if slots else f"no task {task!r} was"
        raise AgentError(f"{problem} forgotten here; forgotten are: {', '.join(names.values()) or 'none'}")
    agent.ledger.remember(slots[0])
    outlet.line(f"{slots[0].task!r} comes back at the next sync")


@app.command()
def config(
    context: typer.Context,
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Settings to change; none: show all.")
    ] = None,
    home: options.Home = None,
    json: options.Json = False,
) -> None:
    """Show or change how this agent meets others: network, listen, connect, interests, limits."""
    from skillmesh.cli import show
    from skillmesh.common.config import MeshSettings

    folder = open_agent(home or context.obj).home
    settings = MeshSettings.load(folder)
    if changes:
        settings = settings.with_(**dict(_parsed(change, settings) for change in changes))
        settings.save(folder)
    found = settings.model_dump(mode="json")
    if json:
        show.print_json(found)
        return
    for name, value in found.items():
        shown = ",".join(map(str, value)) if isinstance(value, list) else value
        outlet.line(f"{name}={'' if shown is None else shown}")


def _parsed(change: str, settings: MeshSettings) -> tuple[str, Any]:
    name, sign, value = change.partition("=")
    fields = type(settings).model_fields
    if not sign or name not in fields:
        raise AgentError(f"{change!r} is no setting; expected NAME=VALUE with a name of {', '.join(fields)}")
    if name in ("listen", "connect", "interests"):
        return name, tuple(part.strip() for part in value.split(",") if part.strip())
    if name == "tls":
        return name, tls_files(Path(value)) if value else None
    return name, value or None


def _settings(
    agent: Core, network: str | None, listen: list[str] | None, connect: list[str] | None, trust: str | None
) -> MeshSettings:
    """The home's settings, with what was said on the command line."""
    from skillmesh.common.config import MeshSettings

    said = {"network": network, "listen": listen, "connect": connect, "trust": trust}
    return MeshSettings.load(agent.home).with_(**{name: value for name, value in said.items() if value})


def _trusts(agent: Core) -> str:
    if agent.ledger.open_trust:
        return "everyone (open)"
    trusted = agent.ledger.view().trusted
    names = [called(agent, key) for key in trusted]
    return ", ".join(names) or "itself only; `skillmesh trust add KEY --name NAME` adds others"
