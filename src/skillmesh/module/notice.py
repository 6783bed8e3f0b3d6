"""Notices: signed announcements, withdrawals and links; and the merged tasks that links make of several modules.

An *announcement* states that a version of a task exists and gives a hash for each leaf of its file: a peer that
fetches the file checks every piece on arrival and knows who sent a wrong one. A *withdrawal* states that a version
and all earlier ones should no longer be used. A *link* states that modules, of any teachers, are parts of one
task; a later link with no parts ends it.

Each teacher's task is a *slot*, and so is each maker's link: a link's slot has a slash in its name, which no task
name can have. If there are two notices for one slot, the one with the higher `rank` is valid. So agents that have
received the same notices, in any order, agree on which are valid.
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
"""Number of bytes of a file that one hash in its announcement covers."""
MAX_NOTICE = 200_000
"""Maximum size of a notice in bytes; the announcement of a module of the maximum size is smaller."""
MAX_PARTS = 16
"""Maximum number of parts of one link."""
LINK = "link/"
"""Prefix of the name of a link's slot."""


class Slot(NamedTuple):
    """One teacher's task, or one maker's link, in all its versions."""

    teacher_key: str
    task: str


class _Signed(BaseModel):
    """Base class of all notices: a slot, a version, and the teacher's signature over all fields."""

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
        """SHA-256 of everything but the signature. It is what is signed, and identifies the notice."""
        return hashlib.sha256(dumps(self._fields(signature=False)).encode()).hexdigest()

    @property
    def rank(self) -> tuple[int, bool, str, str]:
        """Sort key: later versions rank above earlier ones, a withdrawal above its announcement, then by id."""
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
    """States that a version of a task exists, and describes its file."""

    kind: ClassVar[str] = "announcement"

    id: Hex
    size: int = Field(ge=1, le=MAX_FILE)
    sha256: Hex
    leaves: str = Field(pattern=r"^([0-9a-f]{64})+$")
    """SHA-256 of each 32 KiB of the file, concatenated."""
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
        """Return whether the card is that of the announced module."""
        shared = ("task", "version", "teacher", "teacher_key", "tags", "backbone", "representation", "compact")
        same = all(getattr(self, name) == getattr(card, name) for name in shared)
        return same and (self.anchors, self.classes) == (card.anchors, len(card.classes))


class Withdrawal(_Signed):
    """States that a version of a task and all earlier ones should no longer be used."""

    kind: ClassVar[str] = "withdrawal"

    reason: Line | None = Field(None, min_length=1, max_length=200)


class Link(_Signed):
    """States that modules are parts of one task. It holds none of their numbers; agents add up the parts."""

    kind: ClassVar[str] = "link"

    parts: tuple[Hex, ...] = Field(max_length=MAX_PARTS)
    """Ids of the modules in ascending order; empty if the link is withdrawn."""
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
    """Return a signed announcement of the identity's own module; `data` are the bytes of its file."""
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
    """Return a signed withdrawal of the identity's own task, up to and including this version."""
    try:
        notice = Withdrawal(
            task=task, version=version, teacher=identity.name, teacher_key=identity.public_key, reason=reason
        )
    except ValidationError as error:
        raise NoticeError(f"the withdrawal is not valid: {_first(error)}; correct it and try again") from None
    return notice.signed(identity)


def link(name: str, version: int, parts: Iterable[str], identity: Identity, reason: str | None = None) -> Link:
    """Return a signed link of these modules, by their ids, to one task; with no parts it ends the link."""
    try:
        notice = Link(
            task=name,
            version=version,
            teacher=identity.name,
            teacher_key=identity.public_key,
            parts=tuple(sorted(set(parts))),
            reason=reason,
        )
    except ValidationError as error:
        raise NoticeError(f"the link is not valid: {_first(error)}; correct it and try again") from None
    return notice.signed(identity)


def leaf_hash(leaf: bytes) -> str:
    return hashlib.sha256(leaf).hexdigest()


def decode(data: bytes) -> Notice:
    """Parse and check an untrusted notice, its signature last; raise `NoticeError` if it is not valid."""
    if not isinstance(data, bytes):  # a damaged database may return anything
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
        raise NoticeError(f"the notice has kind {show(kind)}, expected {' or '.join(_KINDS)}")
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    try:
        notice: Notice = _KINDS[kind](**values)
    except (ValidationError, TypeError) as error:
        raise NoticeError(f"the {kind} is not valid: {_first(error)}") from None
    if notice.encode() != data:
        raise NoticeError(f"the {kind} is not in canonical form, expected sorted keys and no blanks")
    if not verify(notice.teacher_key, kind, notice.digest, notice.signature):
        raise NoticeError(
            f"the {kind} of {show(notice.task)} was not signed by {notice.teacher} "
            f"(key {notice.teacher_key[:12]}…); it was made by someone else or changed on the way"
        )
    return notice


def _first(error: ValidationError | TypeError) -> str:
    if isinstance(error, TypeError):
        return str(error)[:200]
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "fields"
    return f"{where}: found {show(first['input'])}, {first['msg'].lower()}"


# A task whose parts were taught by several teachers, as one module in memory. It has no file and is never sent.


@dataclass(frozen=True)
class MergedTask(Module):
    """The task that a link makes of its parts: used like any module, but its numbers are not rounded.

    Its card has the link's task name and names all teachers; `size` is the total size of the parts.
    """

    link: Link = field(compare=False)
    parts: tuple[Module, ...] = field(compare=False, repr=False)


def parts_of(module: Module) -> tuple[Module, ...]:
    """Return the modules that a task consists of: the parts of a merged task, else only the module itself."""
    return module.parts if isinstance(module, MergedTask) else (module,)
