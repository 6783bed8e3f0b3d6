"""Trying: a joint must not harm what the agent knows for certain, its own validation images.

Parts passed quarantine each by itself; what a link makes of them is one more thing to answer from. Where a part is
the agent's own, its images are answered by its own tasks alone, and with the joint in the part's place. The bounds
are those of quarantine (`vetting/harm.py`), for each task and for each class. Two names that were exchanged would
drown among many that were not, and classes have few images: so of classes of which anchors say that other parts
have another idea, less is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skillmesh.backbone.calibration import Prior
from skillmesh.module import Module
from skillmesh.module.joint import MergedTask
from skillmesh.store.validation import OwnValidation
from skillmesh.vetting.agreement import disputed
from skillmesh.vetting.exam import Examiner, Result
from skillmesh.vetting.harm import OWN_IMAGES, TASK_LOSS, worse

DISPUTED_IMAGES, DISPUTED_SHARE = 2, 0.5
"""Of classes of which parts have different ideas so many right answers may be lost, or such a share of them."""


def harm_of(joint: MergedTask, own: Sequence[OwnValidation], prior: Prior) -> str | None:
    """Say how an agent that kept these images is worse for a joint, or nothing; own parts are among `own`."""
    nothing = np.empty((0, joint.card.dim), dtype=np.float32)
    examiner = Examiner(prior, "sketch", nothing, own)
    parts = {part.id: index for index, part in enumerate(joint.parts)}
    tasks = [kept.module for kept in own]
    others = [module for module in tasks if module.id not in parts]
    together = {m.id: disputed(joint.parts, parts[m.id], prior) for m in tasks if m.id in parts}
    before, after = (examiner.own_results(bank, together) for bank in (tasks, [*others, joint]))
    complaints = (
        _complaint(module, before[module.id], after[module.id]) for module in tasks if module.id in before
    )
    return next((complaint for complaint in complaints if complaint is not None), None)


def _complaint(module: Module, before: list[Result], after: list[Result]) -> str | None:
    """Compare one task's results: in all and by class, and last those of disputed classes."""
    what = f"{OWN_IMAGES} of {module.card.task!r}"
    *pairs, (old, new) = zip(before, after, strict=True)
    for earlier, later in pairs:
        if (complaint := worse(earlier, later, TASK_LOSS, what)) is not None:
            return complaint
    allowed = int(max(DISPUTED_IMAGES, DISPUTED_SHARE * old.right))
    if old.right - new.right > allowed:
        return (
            f"of {what} whose classes other parts have another idea of, {new.right} instead of {old.right} of "
            f"{old.images} are right with it, expected at most {allowed} fewer"
        )
    return None
