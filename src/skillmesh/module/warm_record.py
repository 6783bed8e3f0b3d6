"""What a card says of a warm start: which classes began with whose rows, and in which form."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from skillmesh.common.choices import WarmForm
from skillmesh.module.canonical import show
from skillmesh.module.words import line

MAX_ROWS = 10_000
DESCRIPTION = (
    "'form' ('prior', 'infinity' or 'two'), 'sources' (task, module id and pull of each, all used) and 'rows' "
    "(class, source, the class's name there and similarity, in the order of the classes)"
)

WarmSource = tuple[
    Annotated[str, Field(min_length=1, max_length=100)],
    Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")],
    Annotated[float, Field(ge=0, le=1e6)],
]
"""Task, id of the module, and by how much its rows were multiplied."""
WarmRow = tuple[
    Annotated[int, Field(ge=0, lt=MAX_ROWS)],
    Annotated[int, Field(ge=0, lt=MAX_ROWS)],
    Annotated[str, Field(min_length=1, max_length=200)],
    Annotated[float, Field(ge=0, le=1)],
]
"""Which class, which source, what the class is called there, and how similar the names are."""


class WarmRecord(BaseModel):
    """Where the rows came from that a head began with. A `prior` without rows is none: nothing was taken over."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    form: WarmForm
    rows: Annotated[tuple[WarmRow, ...], Field(max_length=MAX_ROWS)]
    sources: Annotated[tuple[WarmSource, ...], Field(max_length=MAX_ROWS)]

    @model_validator(mode="after")
    def _agrees(self) -> WarmRecord:
        classes = [row[0] for row in self.rows]
        if classes != sorted(set(classes)):
            raise ValueError("rows whose classes are not in order, each once")
        if {row[1] for row in self.rows} != set(range(len(self.sources))):
            raise ValueError(f"rows from other sources than the {len(self.sources)} there are")
        if self.form == "prior" and not self.rows:
            raise ValueError("a prior without rows")
        for text in (*(source[0] for source in self.sources), *(row[2] for row in self.rows)):
            line(text)
        return self

    def lines(self, classes: tuple[str, ...]) -> dict[str, str]:
        """In words, by class: for people."""
        return {
            classes[index]: f"{name!r} of {self.sources[source][0]!r} ({self.sources[source][1][:12]}…), names "
            f"{similarity:.2f} similar, taken × {self.sources[source][2]:.2g}"
            for index, source, name, similarity in self.rows
        }


def _read(value: Any) -> Any:
    """A card that is read has an object of lists here; complaints are told like the card's own."""
    if not isinstance(value, dict):
        return value
    if not value.keys() <= WarmRecord.model_fields.keys():
        raise ValueError(f"{show(value)} with other keys than {', '.join(WarmRecord.model_fields)}")
    try:
        return WarmRecord(**{name: _tuples(part) for name, part in value.items()})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        cause = first.get("ctx", {}).get("error")
        where = ".".join(map(str, first["loc"]))
        raise ValueError(str(cause) if cause else f"{show(first['input'])} at {where!r}") from None


def _tuples(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    if len(value) > MAX_ROWS:  # pydantic would first collect a million complaints
        raise ValueError(show(value))
    return tuple(map(_tuples, value)) if value and isinstance(value[0], list | tuple) else tuple(value)


CardWarmRecord = Annotated[WarmRecord, BeforeValidator(_read)]
