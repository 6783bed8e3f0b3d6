"""Studies of the paper's appendices, by name. To add one, write a function and add an entry to `STUDIES`.

A study that measures reads its tasks from `settings.folders`, and imports heavy libraries inside its function.
"""

from __future__ import annotations

from skillmesh.errors import SkillmeshError
from skillmesh_challenge.studies.clusters import gmmc_clusters
from skillmesh_challenge.studies.difficulty import task_difficulty
from skillmesh_challenge.studies.ewc import ewc_shipping
from skillmesh_challenge.studies.images import images_per_class
from skillmesh_challenge.studies.macs import macs
from skillmesh_challenge.studies.maha import maha_macs
from skillmesh_challenge.studies.replay import replay
from skillmesh_challenge.studies.study import Findings, Study, StudySettings

STUDIES: dict[str, Study] = {
    "ewc-shipping": Study("Cost of sending EWC's weights and Fisher matrix from agent to agent.", ewc_shipping),
    "replay": Study("Cost of rehearsing old tasks, from few kept images per class to all.", replay),
    "maha-macs": Study("Cost of maha's covariance for a student, against the number of images.", maha_macs),
    "macs": Study(
        "MACs of one image through lite0 and Xception, counted in four ways, beside published counts.", macs
    ),
    "clusters": Study(
        "gmmc's number of clusters against task recognition and bytes; measures on TASKS.", gmmc_clusters
    ),
    "images-per-class": Study(
        "maha's images per class against task recognition, bytes and MACs; measures on TASKS.", images_per_class
    ),
    "difficulty": Study(
        "The error of a small net trained from scratch against a task's size; measures on TASKS.", task_difficulty
    ),
}


def run_study(name: str, settings: StudySettings) -> Findings:
    if name not in STUDIES:
        raise SkillmeshError(f"there is no study {name!r}; expected one of {', '.join(STUDIES)}")
    return STUDIES[name].run(settings)


__all__ = ["STUDIES", "Findings", "Study", "StudySettings", "run_study"]
