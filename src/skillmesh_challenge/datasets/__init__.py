"""Named collections of datasets, each opened as a list of tasks in a fixed order."""

from skillmesh_challenge.datasets.opening import (
    COLLECTIONS,
    ArchiveMember,
    Collection,
    DatasetPlace,
    DatasetRow,
    Rule,
    collection,
    open_collection,
    open_tasks,
    places,
    subsample,
    survey_collection,
    task_paths,
)

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
