"""Studies of the paper's appendices, each by its name. To add one: a function, and a line here.

A study that measures reads its tasks from `settings.folders`. What is heavy it imports inside its function.
"""

from __future__ import annotations

from skillmesh.challenge.studies.ewc import ewc_shipping
from skillmesh.challenge.studies.macs import macs
from skillmesh.challenge.studies.maha import maha_macs
from skillmesh.challenge.studies.replay import replay
from skillmesh.challenge.studies.study import Findings, Study, StudySettings
from skillmesh.errors import SkillmeshError

STUDIES: dict[str, Study] = {
    "ewc-shipping": Study(
        "What it costs to send EWC's weights and Fisher matrix from agent to agent.", ewc_shipping
    ),
    "replay": Study("What rehearsing old tasks costs, from few kept images to all.", replay),
    "maha-macs": Study("What maha's covariance costs a student, against the number of images.", maha_macs),
    "macs": Study(
        "One image's pass through lite0 and Xception, counted in four ways, beside published counts.", macs
    ),
}


def run_study(name: str, settings: StudySettings) -> Findings:
    if name not in STUDIES:
        raise SkillmeshError(f"there is no study {name!r}; expected one of {', '.join(STUDIES)}")
    return STUDIES[name].run(settings)


__all__ = ["STUDIES", "Findings", "Study", "StudySettings", "run_study"]
