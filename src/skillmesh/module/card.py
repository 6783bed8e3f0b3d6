"""The card: the signed description of a module.

A card is checked by the same rules when it is created and when it is read. Each field's `description` states its
rule in words; error messages quote it as "expected".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from skillmesh.common.choices import MOST_VIEWS, AnchorKind, Representation, WarmForm
from skillmesh.errors import CardError, FormatVersionError, NotCanonicalError, SettingsMismatchError
from skillmesh.module.identity import dumps, is_name, loads, show


def plain(text: str) -> str:
    """Return text of one or more lines; raise `ValueError` unless it is printable and in Unicode NFC."""
    if not text.replace("\n", " ").replace("\t", " ").isprintable():
        raise ValueError(f"{show(text)} with unprintable characters")
    if not unicodedata.is_normalized("NFC", text):
        raise ValueError(f"{show(text)}, which is not in Unicode normal form NFC")
    return text


def line(text: str) -> str:
    """Return text of one line; raise `ValueError` for line breaks, tabs and whatever `plain` refuses."""
    if "\n" in text or "\t" in text:
        raise ValueError(f"{show(text)} with a line break or tab")
    return plain(text)


# The card's record of a warm start: which classes started from which modules' rows, and in which form.

MAX_ROWS = 10_000
DESCRIPTION = (
    "'form' ('prior', 'infinity' or 'two'), 'sources' (task, module id and pull of each, all used) and 'rows' "
    "(class, source, the class's name in the source and similarity, in the order of the classes)"
)

WarmSource = tuple[
    Annotated[str, Field(min_length=1, max_length=100)],
    Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")],
    Annotated[float, Field(ge=0, le=1e6)],
]
"""Task, module id, and the factor (pull) by which the module's rows were multiplied."""
WarmRow = tuple[
    Annotated[int, Field(ge=0, lt=MAX_ROWS)],
    Annotated[int, Field(ge=0, lt=MAX_ROWS)],
    Annotated[str, Field(min_length=1, max_length=200)],
    Annotated[float, Field(ge=0, le=1)],
]
"""Index of the class, index of the source, the class's name in the source, and similarity of the names, 0 to 1."""


class WarmRecord(BaseModel):
    """Origin of the rows that a head started from. A `prior` without rows is refused: nothing was taken over."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    form: WarmForm
    rows: Annotated[tuple[WarmRow, ...], Field(max_length=MAX_ROWS)]
    sources: Annotated[tuple[WarmSource, ...], Field(max_length=MAX_ROWS)]

    @model_validator(mode="after")
    def _agrees(self) -> WarmRecord:
        classes = [row[0] for row in self.rows]
        if classes != sorted(set(classes)):
            raise ValueError("rows whose classes are out of order or repeated")
        if {row[1] for row in self.rows} != set(range(len(self.sources))):
            raise ValueError(f"rows that do not use exactly the {len(self.sources)} sources listed")
        if self.form == "prior" and not self.rows:
            raise ValueError("a prior without rows")
        for text in (*(source[0] for source in self.sources), *(row[2] for row in self.rows)):
            line(text)
        return self

    def lines(self, classes: tuple[str, ...]) -> dict[str, str]:
        """Return a sentence for each warm-started class, by class name, to show to users."""
        return {
            classes[index]: f"{name!r} of {self.sources[source][0]!r} ({self.sources[source][1][:12]}…), names "
            f"{similarity:.2f} similar, multiplied by {self.sources[source][2]:.2g}"
            for index, source, name, similarity in self.rows
        }


def _read(value: Any) -> Any:
    """Convert a parsed JSON object to a `WarmRecord`; errors are worded like those of the card's other fields."""
    if not isinstance(value, dict):
        return value
    if not value.keys() <= WarmRecord.model_fields.keys():
        raise ValueError(f"{show(value)} with keys other than {', '.join(WarmRecord.model_fields)}")
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
    if len(value) > MAX_ROWS:  # pydantic would collect an error for each of a million items first
        raise ValueError(show(value))
    return tuple(map(_tuples, value)) if value and isinstance(value[0], list | tuple) else tuple(value)


CardWarmRecord = Annotated[WarmRecord, BeforeValidator(_read)]


FORMAT = 3
"""Newest format that can be read. A card has format 1 unless it uses a field that a later format added. Older
releases then report that they are too old, instead of rejecting the card as invalid."""
CAME_WITH = {2: ("composed", "warm_start"), 3: ("views",)}
"""Fields that each later format added."""
MAX_CLASSES = 10_000
MAX_DIM = 65_536
MAX_CHANNELS = 10_000_000
MAX_PATTERN = 2048
_MAX_INT = 2**31
_TAG = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
_ORIGIN = re.compile(r"[0-9a-f]{64}:.", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)

Count = Annotated[int, Field(ge=1, le=_MAX_INT)]


def now() -> str:
    """Return the current UTC time in the form of a card's `created` field."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _task(text: str) -> str:
    if text != text.strip() or text in (".", "..") or "/" in text or "\\" in text:
        raise ValueError(show(text))
    return line(text)


def _teacher(text: str) -> str:
    if not is_name(text):
        raise ValueError(show(text))
    return text


def _unique(items: tuple[str, ...]) -> tuple[str, ...]:
    seen: set[str] = set()
    for item in items:
        if item in seen:
            raise ValueError(f"{show(item)} twice")
        seen.add(item)
    return items


def _ordered(items: tuple[str, ...]) -> tuple[str, ...]:
    if list(items) != sorted(set(items)):
        raise ValueError(", ".join(items))
    return items


def _time(text: str) -> str:
    try:
        if not _TIME.fullmatch(text):
            raise ValueError
        datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(show(text)) from None
    return text


def _channels(numbers: tuple[int, ...]) -> tuple[int, ...]:
    if len(numbers) != 2 or not numbers[1] <= numbers[0] <= MAX_CHANNELS:
        raise ValueError(show(numbers))
    return numbers


def _toes(numbers: tuple[int, ...]) -> tuple[int, ...]:
    if len(numbers) != 3 or numbers[0] * numbers[1] ** 2 + numbers[2] > MAX_DIM:
        raise ValueError(show(numbers))
    return numbers


def _origin(text: str) -> str:
    if not _ORIGIN.match(text) or len(text) > 65 + 200:
        raise ValueError(show(text))
    return line(text)


def _tag(text: str) -> str:
    if not _TAG.fullmatch(text):
        raise ValueError(show(text))
    return text


Line = Annotated[str, AfterValidator(line)]
Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
TaskName = Annotated[str, AfterValidator(_task), Field(min_length=1, max_length=100)]
TeacherName = Annotated[str, AfterValidator(_teacher)]
Tags = Annotated[
    tuple[Annotated[str, AfterValidator(_tag)], ...], AfterValidator(_ordered), Field(min_length=1, max_length=16)
]
Version = Annotated[int, Field(ge=1, le=_MAX_INT)]


class Card(BaseModel):
    """The description of a module: task, classes, backbone, measurements and teacher.

    Examples
    --------
    >>> card = agent.tasks()[0].card
    >>> card.task, card.classes
    ('dice', ('five', 'four', 'one', 'six', 'three', 'two'))
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    format: int = Field(
        1, ge=1, le=FORMAT, description="1, or 2 if the card has composed or warm_start, or 3 if it has views"
    )
    task: TaskName = Field(description="1–100 printable NFC characters, no '/' or '\\', no blanks at the ends")
    classes: Annotated[
        tuple[Annotated[Line, Field(min_length=1, max_length=200)], ...], AfterValidator(_unique)
    ] = Field(
        min_length=2,
        max_length=MAX_CLASSES,
        description=f"2–{MAX_CLASSES:,} different class names of 1–200 printable NFC characters",
    )
    backbone: Hex = Field(description="the backbone's fingerprint, 64 hex digits")
    backbone_name: Line = Field(min_length=1, max_length=100, description="1–100 printable NFC characters")
    representation: Representation = Field(description="'features', 'sqrt-features' or 'descriptor'")
    dim: int = Field(ge=1, le=MAX_DIM, description=f"an integer from 1 to {MAX_DIM:,}")
    compact: bool = Field(description="true or false")
    anchors: Annotated[tuple[AnchorKind, ...], AfterValidator(_ordered)] = Field(
        min_length=1,
        description=f"one or more of {str(sorted(get_args(AnchorKind)))[1:-1]}, in this order, each once",
    )
    counts: tuple[Count, ...] = Field(description="one number of training images, at least 1, per class")
    validation_images: int = Field(ge=0, le=_MAX_INT, description="an integer, 0 or more")
    validation_accuracy: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1")
    temperature: float = Field(ge=0.01, le=100, description="a number from 0.01 to 100")
    version: Version = Field(description="an integer from 1 to 2^31")
    created: Annotated[str, AfterValidator(_time)] = Field(description="a UTC time like 2024-12-31T23:59:59Z")
    teacher: TeacherName = Field(description="1–64 printable NFC characters, no blanks at the ends")
    teacher_key: Hex = Field(description="the teacher's public key, 64 hex digits")
    biases: Annotated[tuple[Count, ...], AfterValidator(_channels)] | None = Field(
        None, description="the backbone's number of channels, and the number of them with a bias, at least 1"
    )
    toes: Annotated[tuple[Count, ...], AfterValidator(_toes)] | None = Field(
        None, description="channels, the side of their grids and the features that a Head2Toe head uses as input"
    )
    pattern: int | None = Field(
        None, ge=1, le=MAX_PATTERN, description=f"an integer from 1 to {MAX_PATTERN:,}, the width of the pattern"
    )
    composed: tuple[Annotated[str, AfterValidator(_origin)], ...] | None = Field(
        None,
        min_length=2,
        max_length=MAX_CLASSES,
        description="for each class the id of the module that it comes from, ':' and its name in that module",
    )
    views: float | None = Field(
        None,
        gt=0,
        le=MOST_VIEWS,
        description=f"the share of images learned from views, or the number of views of each, up to {MOST_VIEWS}",
    )
    trial: Line | None = Field(None, min_length=1, max_length=200, description="1–200 printable NFC characters")
    warm_start: CardWarmRecord | None = Field(None, description=DESCRIPTION)
    licence: Line | None = Field(None, min_length=1, max_length=200, description="1–200 printable NFC characters")
    tags: Tags | None = Field(
        None, description="1–16 tags in alphabetical order, each once, of 1–32 of a–z, 0–9, '.', '_' and '-'"
    )
    note: Annotated[str, AfterValidator(plain)] | None = Field(
        None, min_length=1, max_length=2000, description="1–2,000 printable NFC characters"
    )

    if not TYPE_CHECKING:  # type checkers keep pydantic's signature

        def __init__(self, /, **fields: Any) -> None:
            version = fields.setdefault("format", _format_of(fields))
            if type(version) is int and not 1 <= version <= FORMAT:
                raise FormatVersionError(
                    f"the module has format {show(version)}, expected 1 to {FORMAT}; update skillmesh, or ask the "
                    "teacher for a module in one of these formats"
                )
            unknown = fields.keys() - Card.model_fields.keys()
            if unknown:
                raise CardError(
                    f"card field {show(min(unknown))} is unknown, expected only {', '.join(Card.model_fields)}"
                )
            for name, value in fields.items():  # pydantic would collect an error for each of a million items first
                if isinstance(value, tuple) and len(value) > MAX_CLASSES:
                    raise _wrong(name, show(value))
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise _explain(error) from None

    @model_validator(mode="after")
    def _format_of_its_fields(self) -> Card:
        if self.format != (expected := _format_of(vars(self))):
            raise ValueError(f"format: found {self.format}, expected {expected} for the fields it has")
        return self

    @model_validator(mode="after")
    def _one_count_per_class(self) -> Card:
        if len(self.counts) != len(self.classes):
            raise ValueError(f"counts: found {len(self.counts)}, expected {len(self.classes)}, one per class")
        if self.composed is not None and len(self.composed) != len(self.classes):
            raise ValueError(f"composed: found {len(self.composed)}, expected {len(self.classes)}, one per class")
        return self

    @model_validator(mode="after")
    def _warm_classes_are_there(self) -> Card:
        if self.warm_start is not None and any(row[0] >= len(self.classes) for row in self.warm_start.rows):
            raise ValueError(f"warm_start: found a class index too large for the {len(self.classes)} classes")
        return self

    @property
    def adapted(self) -> bool:
        """Whether the task changes the backbone, so that its head needs another forward pass than the mapper."""
        return self.biases is not None or self.pattern is not None

    @property
    def origins(self) -> tuple[tuple[str, str], ...]:
        """Module id and original name of each class of a composed task; empty for any other task."""
        return tuple((origin[:64], origin[65:]) for origin in self.composed or ())

    @property
    def head_dim(self) -> int:
        """Number of inputs of the head."""
        if self.toes is None:
            return self.dim
        channels, grid, features = self.toes
        return channels * grid**2 + features

    def canonical(self) -> bytes:
        """Return this card's only valid byte form: sorted keys, no blanks, UTF-8, absent fields left out."""
        fields = self.model_dump(exclude_none=True)
        return dumps({name: fields[name] for name in sorted(fields)}).encode()

    @classmethod
    def parse(cls, text: str) -> Card:
        """Return the card in a canonical JSON text; raise `CardError`, or `NotCanonicalError` for another form."""
        fields = loads(text, "the card", CardError)
        if not isinstance(fields, dict):
            raise CardError(f"the card is {show(fields)}, expected a JSON object; this is not a skillmesh module")
        if "format" not in fields:
            raise CardError(f"card field 'format': found nothing, expected 1 to {FORMAT}; write the module again")
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
        card = cls(**values)
        if card.canonical().decode() != text:
            raise NotCanonicalError(
                "the card is not in canonical form, expected sorted keys, no blanks, no nulls and numbers as "
                "Python writes them; write the module again with skillmesh"
            )
        return card


def _format_of(fields: Mapping[str, Any]) -> int:
    used = [version for version, names in CAME_WITH.items() if any(fields.get(name) is not None for name in names)]
    return max(used, default=1)


def _explain(error: ValidationError) -> CardError:
    """Return pydantic's first error as a `CardError`: field, what was found, what was expected."""
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if not first["loc"]:
        return CardError(f"card field {cause}; correct it and write the module again")
    name, *rest = first["loc"]
    found = "nothing" if first["type"] == "missing" else str(cause) if cause else show(first["input"])
    return _wrong(str(name), found, f"[{rest[0]}]" if rest else "")


def _wrong(name: str, found: str, where: str = "") -> CardError:
    expected = Card.model_fields[name].description
    message = f"card field '{name}{where}': found {found}, expected {expected}; correct it and write again"
    return CardError(message, name, found, expected or "")


# Which rows can be used in another head: those of heads that have exactly the same inputs.

Space = tuple[str, str, bool, int]
"""Backbone fingerprint, representation, whether it is compact, and its number of dimensions."""


def refuse_unportable(card: Card) -> None:
    """Raise `SettingsMismatchError` if the task adapts the backbone: its rows fit no head on the plain one."""
    if card.toes is not None:
        inputs = f"{card.head_dim:,} numbers from inside the backbone that were chosen for this task (Head2Toe)"
    elif card.biases is not None:
        inputs = f"the output of the backbone with {card.biases[1]:,} biases of this task"
    elif card.pattern is not None:
        inputs = "images with this task's own pattern around them (reprogramming)"
    else:
        return
    raise SettingsMismatchError(
        f"the rows of {card.task!r} cannot be used in another head: its head uses {inputs}, expected the plain "
        f"{card.representation}; leave the task out, or ask its teacher to learn it again without adaptation"
    )


def refuse_strangers(cards: Sequence[Card]) -> None:
    """Raise `SettingsMismatchError` unless all cards have the same representation of the same backbone."""
    for card in cards:
        refuse_unportable(card)
    for card in cards[1:]:
        if space_of(card) != space_of(cards[0]):
            raise SettingsMismatchError(
                f"the rows of {card.task!r} are for {_words(card)}, those of {cards[0].task!r} for "
                f"{_words(cards[0])}, expected the same; choose tasks of one backbone and one representation"
            )


def refuse_elsewhere(card: Card, space: Space) -> None:
    """Raise `SettingsMismatchError` unless the card's rows were trained in this space."""
    refuse_unportable(card)
    if space_of(card) != space:
        representation, compact, dim = space[1:]
        raise SettingsMismatchError(
            f"the rows of {card.task!r} are for {_words(card)}, expected {dim:,} numbers of {representation}"
            f"{' (compact)' if compact else ''} of {space[0][:8]}; leave the task out"
        )


def space_of(card: Card) -> Space:
    return card.backbone, card.representation, card.compact, card.dim


def _words(card: Card) -> str:
    compact = " (compact)" if card.compact else ""
    return f"{card.dim:,} numbers of {card.representation}{compact} of {card.backbone_name} {card.backbone[:8]}"
