"""The command `repair`, which rebuilds a damaged ledger."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from skillmesh.cli import app, open_agent, options

if TYPE_CHECKING:
    from skillmesh.mesh.repair import Repair

TABLES = {
    "notices": ("notice of a task or withdrawal", "notices of tasks and withdrawals"),
    "links": ("notice of a merged task", "notices of merged tasks"),
    "trusted": ("trusted teacher", "trusted teachers"),
    "forgotten": ("forgotten task", "forgotten tasks"),
    "choices": ("decision about a module", "decisions about modules"),
    "bans": ("banned agent", "banned agents"),
    "addresses": ("address", "addresses"),
}
"""Name of a row of each table in messages: of one, and of several."""


@app.command()
def repair(context: typer.Context, home: options.Home = None, json: options.Json = False) -> None:
    """Replace a damaged ledger. Reports what could be kept and what is lost."""
    from skillmesh.cli import show
    from skillmesh.mesh.repair import repair as repair_ledger

    agent = open_agent(home or context.obj, make=False)
    done = repair_ledger(agent)
    damaged = [{"file": str(d.path), "reason": str(d.error)} for d in agent.bank.damaged]
    if json:
        facts = asdict(done) | {"aside": None if done.aside is None else str(done.aside)}
        show.print_json(facts | {"damaged": damaged})
    elif done.damage is None:
        show.say("the ledger is not damaged; nothing was changed")
    else:
        _show(done)
    for d in () if json else agent.bank.damaged:
        advice = "" if "; " in str(d.error) else "; import or learn it again"  # most errors say what to do
        show.warn(f"unusable module: {d.path}: {d.error}{advice}")


def _show(done: Repair) -> None:
    from skillmesh.cli import show
    from skillmesh.mesh.repair import LOSSES

    show.say(f"{done.damage}; a new ledger replaces it")
    if done.aside is not None:
        show.say(f"the damaged file is kept as {done.aside}", indent=2)
    own = f": {', '.join(done.announced)}" if done.announced else ""
    tasks = _counted(len(done.announced), ("own task", "own tasks"))
    show.say(f"restored from the bank: {tasks}{own}; {done.others} of other teachers", indent=2)
    read = [_counted(count, TABLES[table]) for table, count in (done.kept or {}).items() if count]
    show.say(f"kept from the old file: {', '.join(read) or 'nothing'}", indent=2)
    for table in done.lost:
        show.say(f"lost, fully or in part: {LOSSES[table]}", indent=2)
    if done.held:
        held = _counted(done.held, ("module", "modules"))
        show.say(f"still in quarantine, but the reasons are lost: {held}", indent=2)
    if "notices" in done.lost:
        show.say("run `skillmesh sync` before you learn a withdrawn task again; otherwise", indent=2)
        show.say("its version starts at 1 and other agents keep the old one", indent=2)


def _counted(count: int, names: tuple[str, str]) -> str:
    return f"{count:,} {names[count != 1]}"
