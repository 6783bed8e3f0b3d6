"""EWC over several agents: after every task, network and Fisher matrix go to the next agent (section 5).

Agent B cannot start before it has received what A learned, so tasks are learned in sequence however many agents
there are. Sending costs little compared with training; the real cost is that agents cannot learn in parallel.
"""

from __future__ import annotations

from typing import Any

from skillmesh_challenge.paper import inputs, sharing
from skillmesh_challenge.paper.cells import printed_ranges
from skillmesh_challenge.paper.parallel import single_agent
from skillmesh_challenge.studies.study import Findings, StudySettings

NETWORK = inputs.XCEPTION_PARAMETERS * inputs.FLOAT_BYTES
"""Size in bytes of the weights, and also of the diagonal of a Fisher matrix."""


def ewc_shipping(settings: StudySettings) -> Findings:
    printed = printed_ranges("single")
    hand_overs = settings.tasks - 1 if settings.agents > 1 else 0
    share = settings.tasks / inputs.TASKS
    ewc, online = (share * printed[row, "training MACs"].middle for row in ("EWC", "EWC-ONLINE"))
    rows = [
        _sequential(
            "EWC, weights and one Fisher matrix, as in the paper", 2 * NETWORK * hand_overs, ewc, settings
        ),
        _sequential(
            "EWC, weights and Fisher matrix of each task so far",
            2 * NETWORK * hand_overs * (hand_overs + 1) / 2,
            ewc,
            settings,
        ),
        _sequential("online EWC, weights and one Fisher matrix", 2 * NETWORK * hand_overs, online, settings),
        _parallel(share * single_agent("LLL, no BB, GMMC"), settings),
    ]
    notes = [
        f"{settings.tasks} tasks, {settings.agents} agents, {settings.alpha:,.0f} MACs per byte. Training MACs "
        "are those that the paper prints, in proportion to the number of tasks.",
        f"Each task is learned by a different agent than the task before. One hand-over is "
        f"{2 * NETWORK / 1e6:.1f} MB (22.9 million weights and as many Fisher values, 4 bytes each).",
    ]
    return Findings("EWC from agent to agent", rows, notes)


def _sequential(way: str, sent: float, training: float, settings: StudySettings) -> dict[str, Any]:
    """Return the row of a sequential method; at the end all agents receive the last weights at once."""
    received = sent + (NETWORK if settings.agents > 1 else 0)
    return _row(way, received, training, training, settings)


def _parallel(training: float, settings: StudySettings) -> dict[str, Any]:
    """Return the row of parallel learning; every agent receives the others' results over one line."""
    others = settings.tasks - settings.tasks / settings.agents
    received = (sharing.HEAD + sharing.CLUSTERS) * others
    way = "LLL without biases, GMMC (figures of one agent)"
    return _row(way, received, training, training / settings.agents, settings)


def _row(way: str, received: float, alone: float, training: float, settings: StudySettings) -> dict[str, Any]:
    sending = settings.alpha * received
    speedup = alone / (training + sending)
    return {
        "method": way,
        "bytes": received,
        "sending, MACs": sending,
        "training, MACs": training,
        "sending / training": sending / training,
        "speedup": speedup,
        "efficiency": speedup / settings.agents,
    }
