"""How an agent stands with the mesh, from what lies in its home; a node that runs adds what only it knows."""

from __future__ import annotations

from typing import Any

from skillmesh.agent import Agent
from skillmesh.mesh.control import NotRunningError, call
from skillmesh.mesh.settings import MeshSettings
from skillmesh.mesh.shelf import Shelf
from skillmesh.module.notice import Announcement, Withdrawal


def status(agent: Agent) -> dict[str, Any]:
    """Everything that `skillmesh status` shows, as JSON would have it."""
    settings = MeshSettings.load(agent.home)
    try:
        node: dict[str, Any] = call(agent.home, "status")
    except NotRunningError:
        node = {"running": False, "network": settings.network}
    agent.ledger.open_trust = node.get("trust", settings.trust) == "open"
    view = agent.ledger.view()
    known = view.known.values()
    announced = {notice.id for notice in known if isinstance(notice, Announcement)}
    live = {module.id for module in agent.bank}
    return node | {
        "name": agent.name,
        "key": agent.identity.public_key,
        "home": str(agent.home),
        "trust": "open" if agent.ledger.open_trust else "listed",
        "root": view.root,
        "known": len(announced),
        "withdrawn": sum(isinstance(notice, Withdrawal) for notice in known),
        "live": len(live),
        "missing": len(announced - live),
        "bytes": agent.bank.size,
        "held": [
            {"task": h.module.card.task, "teacher": h.module.card.teacher, "id": h.module.id, "reason": h.reason}
            for h in Shelf(agent.home, agent.ledger).held()
        ],
        "refused": [
            {"id": module_id, "reason": chosen.reason, "since": chosen.since}
            for module_id, chosen in view.choices.items()
            if chosen.choice == "refused"
        ],
        "forgotten": [{"task": slot.task, "teacher_key": slot.teacher_key} for slot in sorted(view.forgotten)],
        "seen": [
            {"task": notice.task, "teacher": notice.teacher, "teacher_key": notice.teacher_key}
            for notice in view.seen.values()
            if isinstance(notice, Announcement)
        ],
        "bans": [{"agent": banned, "reason": reason} for banned, reason in view.bans.items()],
        "damaged": [{"file": d.path.name, "error": str(d.error)} for d in agent.bank.damaged],
    }
