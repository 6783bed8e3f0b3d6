"""Checks of data before a run: all faults of all tasks in one report."""

from skillmesh_challenge.data.check import BadDataError, check, refuse_bad_data
from skillmesh_challenge.data.problems import DataReport, DataTaskFacts, Problem

__all__ = ["BadDataError", "DataReport", "DataTaskFacts", "Problem", "check", "refuse_bad_data"]
