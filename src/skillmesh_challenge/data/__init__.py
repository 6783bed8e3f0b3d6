"""Is this data fit for a run? All faults of all tasks in one report, before anything is learned."""

from skillmesh_challenge.data.check import BadDataError, check, refuse_bad_data
from skillmesh_challenge.data.problems import DataReport, DataTaskFacts, Problem

__all__ = ["BadDataError", "DataReport", "DataTaskFacts", "Problem", "check", "refuse_bad_data"]
