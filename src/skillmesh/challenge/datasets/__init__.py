"""Collections of datasets that are known by name, each opened as a list of tasks in its own order."""

from skillmesh.challenge.datasets.collection import COLLECTIONS, Collection, Row, collection
from skillmesh.challenge.datasets.opening import Member, open_collection, open_tasks, survey_collection
from skillmesh.challenge.datasets.places import Place, places
from skillmesh.challenge.datasets.thinning import Rule, subsample

__all__ = [
    "COLLECTIONS",
    "Collection",
    "Member",
    "Place",
    "Row",
    "Rule",
    "collection",
    "open_collection",
    "open_tasks",
    "places",
    "subsample",
    "survey_collection",
]
