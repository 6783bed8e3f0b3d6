"""The commands of the mesh: serve, sync, status, peers, gateway, withdraw, remember, config."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillmesh.cli import app, open_agent, options, outlet
from skillmesh.cli.outlet import called, task_names
from skillmesh.common.choices import Sharing
from skillmesh.errors import AgentError

if TYPE_CHECKING:
    from skillmesh.common.config import MeshSettings, TlsFiles
    from skillmesh.core import Core
    from skillmesh.mesh.node import Node

Reason = Annotated[str | None, typer.Option("--reason", show_default=False, help="The reason, for its users.")]


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
            "--learn", metavar="FOLDER", show_default=False, help="Learn this folder while sharing; repeatable."
        ),
    ] = None,
    page: Annotated[bool, typer.Option("--page", help="Serve the page too; see `skillmesh page`.")] = False,
    port: options.PagePort = None,
    host: options.PageHost = "127.0.0.1",
    name: options.PageName = None,
    tls: options.PageTls = None,
    insecure: options.PageInsecure = False,
    device: options.Device = None,
    verbose: options.Verbose = False,
) -> None:
    """Share and receive tasks until stopped."""
    from skillmesh.cli import show
    from skillmesh.mesh.service import serve as run

    if page:
        from skillmesh.cli.page import page_address, with_page

        address = page_address(host, port, tls, insecure, name)
    show.log_to_stderr(verbose)
    agent = open_agent(home or context.obj, device=device)
    settings = node_settings(agent, network, listen, connect, trust)

    def ready(node: Node) -> AbstractContextManager[None] | None:
        places = ", ".join(node.membership.locators) or "no address (this agent is a client)"
        outlet.line(f"agent {agent.name!r} serves {len(agent.bank)} tasks on the network {settings.network}")
        outlet.line(f"  key        {agent.identity.public_key}")
        outlet.line(f"  listening  {places}")
        show.say(f"  trusts     {_trusts(agent)}")
        return with_page(agent, node, address, browser=False) if page else None

    run(agent, settings, learn or (), ready)
    outlet.line("stopped")


@app.command()
def sync(
    context: typer.Context,
    home: options.Home = None,
    once: Annotated[bool, typer.Option("--once", help="Sync once and exit; this is always the case.")] = True,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Time limit in seconds.")] = 60.0,
    network: options.Network = None,
    listen: options.Listen = None,
    connect: options.Connect = None,
    trust: options.TrustMode = None,
    json: options.Json = False,
) -> None:
    """Share and receive tasks once, for laptops and cron. Joins the mesh, catches up with others and leaves."""
    from skillmesh.cli import show
    from skillmesh.mesh.calling import NotRunningError, call
    from skillmesh.mesh.service import catch_up

    show.log_to_stderr(False)
    agent = open_agent(home or context.obj)
    settings = node_settings(agent, network, listen, connect, trust)
    before = len(agent.bank)
    try:
        result = call(agent.home, "sync", timeout=seconds + 30, seconds=seconds)
    except NotRunningError:
        result = catch_up(agent, settings, seconds)
    agent.bank.refresh()
    gained = len(agent.bank) - before
    if json:
        show.print_json(result | {"tasks": len(agent.bank), "gained": gained})
    else:
        traffic = f"{show.kilobytes(result['bytes_fetched'])} fetched, {show.kilobytes(result['bytes_sent'])} sent"
        late = "" if result["settled"] else "; not caught up yet, run it again"
        met = "met 1 agent" if result["peers"] == 1 else f"met {result['peers']} agents"
        outlet.line(f"{met}, {len(agent.bank)} tasks ({gained:+d}), {traffic}{late}")
    if not result["settled"]:
        raise typer.Exit(1)


@app.command()
def status(context: typer.Context, home: options.Home = None, json: options.Json = False) -> None:
    """Show this agent's tasks, connections and problems."""
    from skillmesh.cli import show
    from skillmesh.mesh.status import status as status_of

    agent = open_agent(home or context.obj)
    facts = status_of(agent)
    if json:
        show.print_json(facts)
        return
    elsewhere = (each["task"] for kind in ("held", "declined", "seen") for each in facts.get(kind, ()))
    name_of = task_names(agent, elsewhere).marked
    _show_state(facts)
    for failed in facts.get("not_learned", ()):
        show.warn(f"not learned: {failed['file']}: {failed['reason']}")
    if facts.get("trouble"):
        show.warn(f"trouble: {facts['trouble']}")
    held = {h["id"] for h in facts["held"]}
    for h in facts["held"]:
        show.say(f"in quarantine: {name_of(h['task'])} by {h['teacher']}: {h['reason']}", indent=2)
    if held:
        show.say("what you can do: `skillmesh quarantine list`", indent=2)
    for declined in facts.get("declined", ()):
        if declined["id"] not in held:
            show.say(
                f"declined: {name_of(declined['task'])} by {declined['teacher']}: {declined['reason']}", indent=2
            )
    for refused in facts["refused"]:
        show.say(f"refused: {refused['id'][:12]}…: {refused['reason']}", indent=2)
    for ban in facts["bans"]:
        text = f"banned: {ban['agent'][:12]}…: {ban['reason']}; to lift the ban: `skillmesh peers --unban "
        show.say(f"{text}{ban['agent'][:12]}`", indent=2)
    for damaged in facts["damaged"]:
        show.warn(f"damaged: {damaged['file']}: {damaged['reason']}")
    _show_strangers([seen | {"task": name_of(seen["task"])} for seen in facts["seen"]])


def _show_state(facts: dict[str, Any]) -> None:
    """Print in a few lines what the agent knows and how it is connected to other agents."""
    from skillmesh.cli import show

    settings = f"network {facts['network']}, trust {facts['trust']}"
    running = (
        f"is sharing ({settings})" if facts["running"] else f"is not sharing ({settings}); run `skillmesh serve`"
    )
    show.say(f"agent {facts['name']!r} {running}")
    elsewhere = f", {facts['missing']} announced but not held" if facts["missing"] else ""
    withdrawn = f", {facts['withdrawn']} withdrawn" if facts["withdrawn"] else ""
    show.say(f"{facts['live']} tasks, {show.kilobytes(facts['bytes'])}{elsewhere}{withdrawn}", indent=2)
    if facts["running"]:
        state = "nothing left to fetch" if facts["settled"] else f"fetching {facts['wanted']} tasks"
        traffic = f"{show.kilobytes(facts['bytes_fetched'])} fetched, {show.kilobytes(facts['bytes_sent'])} sent"
        others = "1 other agent" if facts["peers"] == 1 else f"{facts['peers']} other agents"
        show.say(f"{others} in reach, {state}; {traffic}", indent=2)


def _show_strangers(seen: list[dict[str, str]]) -> None:
    """Print untrusted teachers, one line each, with the command that makes each trusted."""
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
        typer.Option("--unban", metavar="KEY", show_default=False, help="Lift the ban on this agent."),
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
            raise AgentError(f"{len(banned)} banned agents have a key that begins with {unban!r}; choose one")
        agent.ledger.unban(banned[0])
        outlet.line(f"{banned[0][:12]}… is no longer banned")
        return
    others = call(agent.home, "peers")
    if json:
        show.print_json({"peers": others})
        return
    rows = show.table(None, "name", "state", ">tasks", "knows", ">received", "trusted")
    for p in sorted(others, key=lambda p: (not p["alive"], p["name"], p["agent"])):
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
    show.console.print(rows if others else "no other agents met yet")


@app.command()
def gateway(
    listen: options.Listen = None,
    connect: options.Connect = None,
    tls: Annotated[
        Path | None,
        typer.Option("--tls", metavar="DIR", show_default=False, help="A folder from `certs issue --out DIR`."),
    ] = None,
    discovery_port: Annotated[
        int | None,
        typer.Option(
            "--discovery-port",
            min=1,
            max=65535,
            show_default=False,
            help="Discovery port of the local network's agents, if not the default.",
        ),
    ] = None,
) -> None:
    """Connect agents of several sites. Routes between local agents, agents behind a NAT, and other gateways."""
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
    """Return the paths of the files that `skillmesh certs issue` writes into a folder."""
    from skillmesh.common.config import TlsFiles
    from skillmesh.mesh.certs import CA, CERTIFICATE, KEY

    return TlsFiles(ca=folder / CA, certificate=folder / CERTIFICATE, key=folder / KEY)


@app.command()
def withdraw(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="A task that this agent has learned.")],
    home: options.Home = None,
    reason: Reason = None,
) -> None:
    """Withdraw a task that this agent has learned. Other agents remove it, and late joiners never get it."""
    notice = open_agent(home or context.obj, make=False).withdraw(task, reason)
    outlet.line(f"withdrew {notice.task!r} up to version {notice.version}; others learn of it at the next sync")


@app.command()
def sharing(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="A task that this agent has learned.")],
    choice: Annotated[
        Sharing | None, typer.Argument(show_default=False, help="The new choice. Default: show the present one.")
    ] = None,
    home: options.Home = None,
) -> None:
    """Show or choose whether other agents get a task. What was shared stays shared; `withdraw` takes it back."""
    agent = open_agent(home or context.obj, make=False)
    if choice is not None:
        agent.choose_sharing(task, choice)
    outlet.line(agent.sharing(task))


@app.command()
def remember(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="A task that this agent has forgotten.")],
    home: options.Home = None,
) -> None:
    """Allow a forgotten task again. It is fetched from the mesh at the next sync."""
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
        problem = "several forgotten tasks are" if slots else "no forgotten task is"
        raise AgentError(f"{problem} named {task!r}; forgotten tasks: {', '.join(names.values()) or 'none'}")
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
    """Show or change mesh settings. They are network, listen, connect, interests, limits and others."""
    from skillmesh.cli import show
    from skillmesh.common.config import MeshSettings

    folder = open_agent(home or context.obj).home
    settings = MeshSettings.load(folder)
    if changes:
        settings = settings.with_(**dict(_parsed(change, settings) for change in changes))
        settings.save(folder)
    values = settings.model_dump(mode="json")
    if json:
        show.print_json(values)
        return
    for name, value in values.items():
        shown = ",".join(map(str, value)) if isinstance(value, list) else value
        outlet.line(f"{name}={'' if shown is None else shown}")


def _parsed(change: str, settings: MeshSettings) -> tuple[str, Any]:
    name, sign, value = change.partition("=")
    fields = type(settings).model_fields
    if not sign or name not in fields:
        raise AgentError(
            f"{change!r} is not a setting; expected NAME=VALUE, NAME being one of {', '.join(fields)}"
        )
    if name in ("listen", "connect", "interests"):
        return name, tuple(part.strip() for part in value.split(",") if part.strip())
    if name == "tls":
        return name, tls_files(Path(value)) if value else None
    return name, value or None


def node_settings(
    agent: Core, network: str | None, listen: list[str] | None, connect: list[str] | None, trust: str | None
) -> MeshSettings:
    """Return the home's settings, overridden by the options on the command line."""
    from skillmesh.common.config import MeshSettings

    typed = {"network": network, "listen": listen, "connect": connect, "trust": trust}
    return MeshSettings.load(agent.home).with_(**{name: value for name, value in typed.items() if value})


def _trusts(agent: Core) -> str:
    if agent.ledger.open_trust:
        return "everyone (open)"
    trusted = agent.ledger.view().trusted
    names = [called(agent, key) for key in trusted]
    return ", ".join(names) or "itself only; add others with `skillmesh trust add KEY --name NAME`"
