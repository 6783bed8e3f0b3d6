"""Notices: what teachers tell the mesh of their modules, signed; and tasks that links make of several modules.

An *announcement* says that a version of a task exists and what its file looks like, leaf by leaf: whoever fetches
it checks every piece on arrival and knows who sent a wrong one. A *withdrawal* says that a version, and every one
before it, is no longer to be used. A *link* says that modules, whoever taught them, are parts of one task; a later
one with no parts ends it.

A teacher's task is a *slot*, and so is a maker's link: its name has a slash in it, which no task's can have. Of
two notices for one slot the one of higher `rank` stands, so agents that have heard the same notices, in whatever
order, agree on what stands.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from skillmesh.common.choices import AnchorKind, Representation
from skillmesh.errors import NoticeError
from skillmesh.module.card import MAX_CLASSES, Card, Hex, Line, Tags, TaskName, TeacherName, Version
from skillmesh.module.format import MAX_FILE, Module
from skillmesh.module.identity import Identity, dumps, loads, show, verify

LEAF = 32_768
"""Bytes of a file that one hash in its announcement covers."""
MAX_NOTICE = 200_000
"""Bytes; the announcement of the largest module that may be has fewer."""
MAX_PARTS = 16
"""Of one link."""
LINK = "link/"
"""What a link's slot begins with."""


class Slot(NamedTuple):
    """One teacher's task, or one maker's link, in whatever version."""

    teacher_key: str
    task: str


class _Signed(BaseModel):
    """What all kinds of notice have: a slot, a version, and the teacher's signature over all fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
    kind: ClassVar[str]

    task: TaskName
    version: Version
    teacher: TeacherName
    teacher_key: Hex
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")] = ""

    @property
    def slot(self) -> Slot:
        return Slot(self.teacher_key, self.task)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over everything but the signature: what is signed, and what the notice is known by."""
        return hashlib.sha256(dumps(self._fields(signature=False)).encode()).hexdigest()

    @property
    def rank(self) -> tuple[int, bool, str, str]:
        """Later versions stand above earlier ones, a withdrawal above its announcement; ids decide the rest."""
        return self.version, isinstance(self, Withdrawal), getattr(self, "id", ""), self.digest

    def signed(self, identity: Identity) -> Self:
        return self.model_copy(update={"signature": identity.sign(self.kind, self.digest)})

    def encode(self) -> bytes:
        return dumps(self._fields(signature=True)).encode()

    def _fields(self, signature: bool) -> dict[str, Any]:
        exclude = None if signature else {"signature"}
        fields = self.model_dump(exclude_none=True, exclude=exclude) | {"kind": self.kind}
        return {name: fields[name] for name in sorted(fields)}


class Announcement(_Signed):
    """A version of a task, and the file that it is."""

    kind: ClassVar[str] = "announcement"

    id: Hex
    size: int = Field(ge=1, le=MAX_FILE)
    sha256: Hex
    leaves: str = Field(pattern=r"^([0-9a-f]{64})+$")
    """SHA-256 of each 32 KiB of the file, one after the other."""
    classes: int = Field(ge=2, le=MAX_CLASSES)
    tags: Tags | None = None
    backbone: Hex
    representation: Representation
    compact: bool
    anchors: tuple[AnchorKind, ...] = Field(min_length=1, max_length=len(get_args(AnchorKind)))

    @model_validator(mode="after")
    def _one_hash_per_leaf(self) -> Self:
        expected = -(-self.size // LEAF)
        if len(self.leaves) != 64 * expected:
            raise ValueError(f"{len(self.leaves) // 64} leaves, expected {expected} for {self.size} bytes")
        return self

    def leaf(self, index: int) -> str:
        return self.leaves[64 * index : 64 * index + 64]

    def describes(self, card: Card) -> bool:
        """Whether the card is that of the module which was announced."""
        ours = ("task", "version", "teacher", "teacher_key", "tags", "backbone", "representation", "compact")
        same = all(getattr(self, name) == getattr(card, name) for name in ours)
        return same and (self.anchors, self.classes) == (card.anchors, len(card.classes))


class Withdrawal(_Signed):
    """The end of a version of a task, and of all before it."""

    kind: ClassVar[str] = "withdrawal"

    reason: Line | None = Field(None, min_length=1, max_length=200)


class Link(_Signed):
    """Modules that are parts of one task. It holds none of their numbers: whoever has the parts adds them up."""

    kind: ClassVar[str] = "link"

    parts: tuple[Hex, ...] = Field(max_length=MAX_PARTS)
    """The modules' ids in ascending order; none: the link is withdrawn."""
    reason: Line | None = Field(None, min_length=1, max_length=200)

    @model_validator(mode="after")
    def _several_in_order(self) -> Self:
        if list(self.parts) != sorted(set(self.parts)) or len(self.parts) == 1:
            raise ValueError(
                f"{len(self.parts)} parts, expected none or two to {MAX_PARTS} ids in order, each once"
            )
        return self

    @property
    def slot(self) -> Slot:
        return Slot(self.teacher_key, LINK + self.task)

    @property
    def withdrawn(self) -> bool:
        return not self.parts

    @property
    def rank(self) -> tuple[int, bool, str, str]:
        return self.version, self.withdrawn, "", self.digest


Notice = Announcement | Withdrawal | Link
_KINDS: dict[Any, type[Announcement] | type[Withdrawal] | type[Link]] = {
    "announcement": Announcement,
    "withdrawal": Withdrawal,
    "link": Link,
}


def announce(card: Card, module_id: str, data: bytes, identity: Identity) -> Announcement:
    """Announce a module of one's own; `data` is its file."""
    return Announcement(
        **card.model_dump(
            include={"task", "version", "teacher", "teacher_key", "tags", "backbone", "representation", "compact"}
        ),
        id=module_id,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        leaves="".join(leaf_hash(data[start : start + LEAF]) for start in range(0, len(data), LEAF)),
        classes=len(card.classes),
        anchors=card.anchors,
    ).signed(identity)


def withdraw(task: str, version: int, identity: Identity, reason: str | None = None) -> Withdrawal:
    """Withdraw a task of one's own, up to and with this version."""
    try:
        made = Withdrawal(
            task=task, version=version, teacher=identity.name, teacher_key=identity.public_key, reason=reason
        )
    except ValidationError as error:
        raise NoticeError(f"the withdrawal is not sound: {_first(error)}; mend it and try again") from None
    return made.signed(identity)


def link(name: str, version: int, parts: Iterable[str], identity: Identity, reason: str | None = None) -> Link:
    """Say that these modules, by their ids, are parts of one task; no parts: that they no longer are."""
    try:
        made = Link(
            task=name,
            version=version,
            teacher=identity.name,
            teacher_key=identity.public_key,
            parts=tuple(sorted(set(parts))),
            reason=reason,
        )
    except ValidationError as error:
        raise NoticeError(f"the link is not sound: {_first(error)}; mend it and try again") from None
    return made.signed(identity)


def leaf_hash(leaf: bytes) -> str:
    return hashlib.sha256(leaf).hexdigest()


def decode(data: bytes) -> Notice:
    """Read and check a notice from a stranger, its signature last."""
    if not isinstance(data, bytes):  # a damaged database gives back anything
        raise NoticeError(f"the notice is {show(data)}, expected bytes")
    if len(data) > MAX_NOTICE:
        raise NoticeError(f"the notice has {len(data):,} bytes, expected ≤ {MAX_NOTICE:,}")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise NoticeError("the notice is not UTF-8, expected canonical JSON") from None
    fields = loads(text, "the notice", NoticeError)
    kind = fields.pop("kind", None) if isinstance(fields, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise NoticeError(f"the notice is of kind {show(kind)}, expected {' or '.join(_KINDS)}")
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    try:
        notice: Notice = _KINDS[kind](**values)
    except (ValidationError, TypeError) as error:
        raise NoticeError(f"the {kind} is not sound: {_first(error)}") from None
    if notice.encode() != data:
        raise NoticeError(f"the {kind} is not in canonical form, expected sorted keys and no blanks")
    if not verify(notice.teacher_key, kind, notice.digest, notice.signature):
        raise NoticeError(
            f"the {kind} of {show(notice.task)} was not signed by {notice.teacher} "
            f"(key {notice.teacher_key[:12]}…); whoever made it is not that teacher"
        )
    return notice


def _first(error: ValidationError | TypeError) -> str:
    if isinstance(error, TypeError):
        return str(error)[:200]
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "fields"
    return f"{where}: found {show(first['input'])}, {first['msg'].lower()}"


# A task whose parts several teachers taught, as one module in memory. It has no file and is never sent.


@dataclass(frozen=True)
class MergedTask(Module):
    """What a link makes of its parts: read like any module, but nothing in it is rounded.

    Its card names the task as the link does, and all teachers; `size` is that of the parts.
    """

    link: Link = field(compare=False)
    parts: tuple[Module, ...] = field(compare=False, repr=False)


def parts_of(module: Module) -> tuple[Module, ...]:
    """The modules that a task consists of: several, or itself."""
    return module.parts if isinstance(module, MergedTask) else (module,)
