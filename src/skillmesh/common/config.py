"""An agent's settings, as `agent.json` in its home keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from skillmesh.common.choices import AnchorKind, Representation, Support
from skillmesh.common.files import PRIVATE, write_whole
from skillmesh.errors import AgentError

FILE = "agent.json"


class AgentConfig(BaseModel):
    """What an agent was set up with. It stays as it is: modules in the bank depend on it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=64)
    backbone: str = "lite0"
    weights: Path | None = None
    calibration: Path | None = None
    """Relative to the home; `None`: the one shipped for the backbone."""
    representation: Representation = "descriptor"
    compact: bool = False
    mapper: AnchorKind = "sketch"
    rank: int = Field(8, ge=1, le=256)
    clusters: int = Field(25, ge=1, le=4096)
    variance_floor: float = Field(1e-6, ge=1e-9, le=1e3)
    images_per_class: int = Field(5, ge=1, le=255)
    seed: int = Field(0, ge=0)
    support: Support = "plain"
    """By what names classes of several tasks support one another in answers; no module depends on it."""

    @model_validator(mode="after")
    def _only_descriptors_are_compact(self) -> AgentConfig:
        if self.compact and self.representation != "descriptor":
            raise ValueError("compact modules need the representation descriptor")
        return self

    @classmethod
    def of(cls, settings: dict[str, Any]) -> AgentConfig:
        """Check settings that a user chose."""
        try:
            return cls(**settings)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(map(str, first["loc"]))
            found = f"the setting {name} is {first['input']!r}; " if name else "the settings contradict: "
            raise AgentError(found + first["msg"].lower()) from error

    def save(self, home: Path) -> None:
        write_whole(home / FILE, (self.model_dump_json(indent=2) + "\n").encode(), mode=PRIVATE)

    @classmethod
    def load(cls, home: Path) -> AgentConfig:
        path = home / FILE
        if not path.is_file():
            raise AgentError(
                f"there is no agent at {home}; name another home, or make one there with `skillmesh init`"
            )
        try:
            return cls.model_validate_json(path.read_text())
        except (ValidationError, UnicodeDecodeError) as error:
            first = str(error).splitlines()
            raise AgentError(
                f"{path} is damaged: {' '.join(first[:3])}; mend the file, or make a new agent in another home"
            ) from error
