"""Collections of datasets that are known by name, each opened as a list of tasks in its own order."""

from skillmesh_challenge.datasets.collection import COLLECTIONS, Collection, DatasetRow, collection
from skillmesh_challenge.datasets.opening import (
    ArchiveMember,
    open_collection,
    open_tasks,
    survey_collection,
    task_paths,
)
from skillmesh_challenge.datasets.places import DatasetPlace, places
from skillmesh_challenge.datasets.thinning import Rule, subsample

__all__ = [
    "COLLECTIONS",
    "ArchiveMember",
    "Collection",
    "DatasetPlace",
    "DatasetRow",
    "Rule",
    "collection",
    "open_collection",
    "open_tasks",
    "places",
    "subsample",
    "survey_collection",
    "task_paths",
]
