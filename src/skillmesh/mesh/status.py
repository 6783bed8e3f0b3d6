"""Status of an agent on the mesh, from the files in its home and, if a node runs, from the node."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.mesh.calling import NotRunningError, call
from skillmesh.mesh.shelf import Shelf
from skillmesh.module.notice import Announcement, Link, Withdrawal
from skillmesh.module.teachers import odd_notice

if TYPE_CHECKING:
    from skillmesh.mesh.node import Node


def node_status(node: Node) -> dict[str, Any]:
    """Return the part of the status that only a running node knows."""
    view, teachers, declined = node.agent.ledger.view(), node.agent.teachers, node.importing.wants.declined
    return {
        "running": True,
        "pid": os.getpid(),
        "seconds": round(time.monotonic() - node.began, 1),
        "network": node.settings.network,
        "trust": node.settings.trust,
        "listening": list(node.membership.locators),
        "root": view.root,
        "settled": node.settled,
        "trouble": node.trouble,
        "peers": len(node.peers.alive()),
        "fetching": sorted(a.task for a in node.importing.wants.wanted if a.digest in node.importing.under_way),
        "wanted": len(node.importing.wants.wanted),
        "in_use": node.agent.live,
        "slowest_import_seconds": round(node.importing.importer.slowest, 3),
        "bytes_sent": node.library.bytes_sent,
        "bytes_fetched": node.importing.fetcher.bytes_fetched,
        "pieces_asked": node.importing.fetcher.questions,
        "macs": node.importing.importer.costs.total,
        "declined": [
            {
                "task": a.task,
                "teacher": teachers.name(a),
                "id": a.id,
                "reason": declined[a.digest],
            }
            for a in view.known.values()
            if isinstance(a, Announcement) and a.digest in declined
        ],
    }


def peer_list(node: Node) -> list[dict[str, Any]]:
    """Return all peers that a node has met since it started, as JSON-compatible dicts."""
    view = node.agent.ledger.view()
    now = time.monotonic()
    return [
        {
            "agent": peer.agent,
            "name": node.agent.teachers.called(peer.agent, peer.hello.name if peer.hello else None),
            "odd_letters": node.agent.teachers.odd_letters(peer.agent, peer.hello.name if peer.hello else None),
            "alive": peer.alive,
            "same": peer.hello is not None and peer.hello.root == view.root,
            "tasks": peer.hello.live if peer.hello else None,
            "heard_seconds_ago": round(now - peer.last_contact, 1) if peer.last_contact else None,
            "bytes_received": peer.bytes_received,
            "failures": peer.failures,
            "trusted": node.agent.ledger.trusts(peer.agent),
            "banned": view.bans.get(peer.agent),
        }
        for peer in node.peers.all()
    ]


def status(agent: Core) -> dict[str, Any]:
    """Return everything that `skillmesh status` shows, as a JSON-compatible dict."""
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
        "held": [held.as_dict(agent.teachers) for held in Shelf(agent.home, agent.ledger).held()],
        "refused": [
            {"id": module_id, "reason": chosen.reason, "since": chosen.since}
            for module_id, chosen in view.choices.items()
            if chosen.choice == "refused"
        ],
        "forgotten": [{"task": slot.task, "teacher_key": slot.teacher_key} for slot in sorted(view.forgotten)],
        "seen": [
            {"task": notice.task, "teacher": agent.teachers.name(notice), "teacher_key": notice.teacher_key}
            for notice in view.seen.values()
            if isinstance(notice, Announcement)
        ],
        "links": _links(agent, [link for link in view.links.values() if not link.withdrawn]),
        "bans": [{"agent": banned, "reason": reason} for banned, reason in view.bans.items()],
        "ledger_damage": agent.ledger.damage,
        "damaged": [{"file": d.path.name, "reason": str(d.error)} for d in agent.bank.damaged],
    }


def _links(agent: Core, links: list[Link]) -> list[dict[str, Any]]:
    """Return the links, whether each is in effect in this bank and, if known, why not."""
    acting = {merged.link.digest for merged in agent.merged()}
    facts = []
    for link in links:
        fact = {
            "task": link.task,
            "maker": agent.teachers.name(link),
            "parts": len(link.parts),
            "acts": link.digest in acting,
        }
        reason = None if fact["acts"] else odd_notice(link) or agent.merger.why_not(link)
        facts.append(fact | ({} if reason is None else {"reason": reason}))
    return facts
