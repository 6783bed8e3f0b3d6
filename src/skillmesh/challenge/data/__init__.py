"""Is this data fit for a run? All faults of all tasks in one report, before anything is learned."""

from skillmesh.challenge.data.check import BadDataError, check, refuse_bad_data
from skillmesh.challenge.data.report import Problem, Report, TaskFacts

__all__ = ["BadDataError", "Problem", "Report", "TaskFacts", "check", "refuse_bad_data"]
