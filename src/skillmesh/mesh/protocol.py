"""The three questions that agents put to each other, as bytes, and what is a possible answer to each.

    digest    my root hashes          → who I am and "the same", or the short ids of all notices that I know
    notices   short ids               → these notices
    piece     announcement, offset, length  → that part of the announced file, or "not here"

What is impossible raises `LieError`: replies are signed, so it is their sender's doing.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skillmesh.errors import ModuleError
from skillmesh.mesh.wire import LieError
from skillmesh.module.card import Hex, Line, TeacherName
from skillmesh.module.notice import MAX_NOTICE, Announcement, Notice, decode

DIGEST, NOTICES, PIECE = "digest", "notices", "piece"

SHORT = 16
"""Bytes of a notice's digest that name it in an inventory."""
MAX_DIGEST = 2_000_000
"""Bytes: 125,000 notices."""
MAX_NOTICES = 1_000_000
"""Bytes of notices in one reply; the rest is asked for again."""
NOTICES_AT_ONCE = 512
REMEMBERED = 4_096
"""Bytes of a notice up to which it is remembered as checked: some 3,000 are usual."""
MIN_PIECE, MAX_PIECE = 32_768, 524_288
_PIECE = struct.Struct(">32sQI")


class Hello(BaseModel):
    """What an agent says of itself in front of its digest."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: TeacherName
    root: Hex
    live: int = Field(ge=0, le=10**9)
    """Tasks that it can answer now."""
    locators: tuple[Annotated[Line, Field(max_length=200)], ...] = Field((), max_length=16)
    same: bool
    """Whether the asker knows the same; no inventory follows then."""


class Digest(NamedTuple):
    """An agent's reply to `digest`."""

    hello: Hello
    inventory: frozenset[bytes]


def short(notice: Notice) -> bytes:
    return bytes.fromhex(notice.digest)[:SHORT]


def write_digest(hello: Hello, notices: Iterable[Notice]) -> bytes:
    """As much as may be sent: whoever knows more sends another part each time, and is no liar for it."""
    head = hello.model_dump_json().encode() + b"\n"
    ids = [] if hello.same else sorted(short(notice) for notice in notices)
    most = (MAX_DIGEST - len(head)) // SHORT
    return head + b"".join(ids if len(ids) <= most else random.sample(ids, most))


def read_digest(body: bytes) -> Digest:
    head, _, inventory = body.partition(b"\n")
    try:
        hello = Hello.model_validate_json(head)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"])) or "it"
        raise LieError(f"its digest is malformed ({where}: {problem['msg']})") from None
    if len(inventory) % SHORT or (hello.same and inventory):
        raise LieError(f"its digest has an inventory of {len(inventory):,} bytes, expected ids of {SHORT}")
    ids = split_ids(inventory)
    distinct = frozenset(ids)
    if len(distinct) < len(ids):
        raise LieError(f"its digest lists {len(ids) - len(distinct):,} ids more than once")
    return Digest(hello, distinct)


def split_ids(joined: bytes) -> list[bytes]:
    return [joined[start : start + SHORT] for start in range(0, len(joined), SHORT)]


def write_notices(wanted: bytes, by_short: dict[bytes, Notice]) -> bytes:
    """As many of the wanted notices as there are, and as fit in one reply."""
    found: list[bytes] = []
    size = 0
    for item in split_ids(wanted[: NOTICES_AT_ONCE * SHORT]):
        notice = by_short.get(item)
        if notice is None:
            continue
        encoded = notice.encode()
        size += len(encoded) + 1
        if size > MAX_NOTICES - MAX_NOTICE and found:
            break
        found.append(encoded)
    return b"\n".join(found)


def read_notices(body: bytes, wanted: Sequence[bytes]) -> list[Notice]:
    """The notices in a reply: each sound, each one that was asked for."""
    notices = []
    for encoded in body.split(b"\n") if body else ():
        try:
            notice = _decoded(encoded) if len(encoded) <= REMEMBERED else decode(encoded)
        except ModuleError as error:
            raise LieError(f"sent a notice that is none: {error}") from None
        notices.append(notice)
    strange = {short(notice) for notice in notices} - set(wanted)
    if strange or len(notices) > len(wanted):
        raise LieError(f"sent {len(notices)} notices, {len(strange)} of them not asked for")
    return notices


@lru_cache(maxsize=2_048)
def _decoded(encoded: bytes) -> Notice:
    """The notice, checked; a crowd that sends the same ones over and over has each checked once."""
    return decode(encoded)


def ask_piece(announcement: Announcement, offset: int, length: int) -> bytes:
    return _PIECE.pack(bytes.fromhex(announcement.digest), offset, length)


def asked_piece(body: bytes) -> tuple[str, int, int] | None:
    """The announcement's digest, offset and length, or None where the question makes no sense."""
    if len(body) != _PIECE.size:
        return None
    digest, offset, length = _PIECE.unpack(body)
    return (digest.hex(), offset, length) if 0 < length <= MAX_PIECE else None


def write_piece(piece: bytes | None) -> bytes:
    return b"-" if piece is None else b"+" + piece


def read_piece(body: bytes, length: int) -> bytes | None:
    if body == b"-":
        return None
    if len(body) != length + 1 or body[:1] != b"+":
        raise LieError(f"sent a piece of {max(len(body) - 1, 0):,} bytes, {length:,} were asked for")
    return body[1:]
