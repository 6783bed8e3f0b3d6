"""What can go wrong in the challenge in a way that the user can mend."""

from skillmesh.errors import SkillmeshError


class RunError(SkillmeshError):
    """A run of the challenge that cannot be made, resumed, or read."""
