"""Errors of the challenge that the user can fix."""

from skillmesh.errors import SkillmeshError


class RunError(SkillmeshError):
    """Raised when a run of the challenge cannot be started, resumed or read."""
