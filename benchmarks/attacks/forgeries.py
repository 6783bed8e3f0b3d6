"""Mutations of signed data: modules, notices and replies. The mutator has its own key and signs with it.

A file with a valid signature of the mutator may be accepted, if its content is within the format's bounds.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from attacks.mutators import (
    GROUP_ORDER,
    SMALL_ORDER,
    Entry,
    edit_bytes,
    edit_entries,
    edit_json,
    edit_table,
    entries_of,
    read_tensors,
    table_of,
    write_json,
    write_tensors,
)
from skillmesh.module import Identity

MALLORY = Identity("mallory", b"m" * 32)
"""The mutator: its public key is known to all, and trusted by some."""


@dataclass(frozen=True)
class Case:
    """One mutated file."""

    data: bytes
    signed: bool = False
    """Whether the mutator itself signed exactly this content."""
    name: str = ""
    """Name of the file, if it matters."""


# Modules.


def edit_module(data: bytes, rng: Random, others: Sequence[bytes]) -> Case:
    """Change a module: its bytes, header, card, tensors or signature; sign some of them again."""
    if rng.random() < 0.25:
        return Case(edit_bytes(data, rng, others))
    header, body = read_tensors(data)
    metadata = header["__metadata__"]
    card, entries = json.loads(metadata["skillmesh"]), entries_of(header, body)
    match rng.randrange(12):
        case 0:
            return Case(write_tensors(write_json(edit_json(header, rng), rng), body))
        case 1:
            return Case(write_tensors(write_json(edit_table(header, rng), rng, canonical=True), body))
        case 2 | 3:
            metadata["skillmesh"] = write_json(edit_json(card, rng), rng).decode(errors="surrogatepass")
        case 4 | 5 | 6:
            return sign_module(edit_json(_by_mallory(card), rng), entries, rng)
        case 7 | 8:
            return sign_module(_by_mallory(card), edit_entries(entries, rng), rng)
        case 9:
            metadata["signature"] = _other_signature(metadata["signature"], rng, [_signature(o) for o in others])
        case 10:
            table, content = table_of(edit_entries(entries, rng))
            return Case(write_tensors(_canonical(table | {"__metadata__": metadata}), content))
        case 11:
            return rng.choice(
                (
                    _small_order(header, card, body, rng),
                    Case(data[: -len(body)] + rng.choice(others)[-len(body) :]),
                )
            )
    return Case(write_tensors(_canonical(header), body))


def sign_module(card: Any, entries: dict[str, Entry], rng: Random) -> Case:
    """Write a module with any content in canonical form, with a valid signature."""
    text = write_json(card, rng, canonical=rng.random() < 0.9)
    digest = hashlib.sha256()
    for piece in (b"skillmesh/v1/module-id", text):
        digest.update(len(piece).to_bytes(8, "little") + piece)
    for name in sorted(entries):
        kind, shape, content = entries[name]
        for piece in (name.encode(), kind.encode(), ",".join(map(str, shape)).encode(), content):
            digest.update(len(piece).to_bytes(8, "little") + piece)
    signature = MALLORY.sign("module", digest.hexdigest())
    table, body = table_of(entries)
    metadata = {"signature": signature, "skillmesh": text.decode(errors="surrogatepass")}
    data = write_tensors(_canonical(table | {"__metadata__": metadata}), body)
    return Case(data, signed=isinstance(card, dict) and card.get("teacher_key") == MALLORY.public_key)


def _by_mallory(card: dict[str, Any]) -> dict[str, Any]:
    return card | {"teacher": MALLORY.name, "teacher_key": MALLORY.public_key}


def _canonical(header: dict[str, Any]) -> bytes:
    text = json.dumps({name: header[name] for name in sorted(header)}, separators=(",", ":"), ensure_ascii=False)
    return text.encode(errors="surrogatepass")


def _signature(data: bytes) -> str:
    return str(read_tensors(data)[0]["__metadata__"]["signature"])


def _other_signature(signature: str, rng: Random, others: Sequence[str]) -> Any:
    """Return another signature, something that is none, or this one in a different encoding."""
    point, scalar = bytes.fromhex(signature)[:32], int.from_bytes(bytes.fromhex(signature)[32:], "little")
    forms: tuple[Any, ...] = (
        signature.upper(),
        signature + "0",
        " " + signature,
        signature[:-1],
        "0" * 128,
        None,
        5,
    )
    forms += ((point + ((scalar + GROUP_ORDER) % 2**256).to_bytes(32, "little")).hex(),)  # malleable
    return rng.choice((*forms, *others, edit_bytes(bytes.fromhex(signature), rng).hex()))


def _small_order(header: dict[str, Any], card: dict[str, Any], body: bytes, rng: Random) -> Case:
    """Use a key of small order, for which one signature fits every message."""
    header, point = copy.deepcopy(header), rng.choice(SMALL_ORDER)
    card = card | {"teacher_key": rng.choice(SMALL_ORDER).hex(), "version": rng.randrange(1, 1000)}
    header["__metadata__"]["skillmesh"] = _canonical(card).decode()
    header["__metadata__"]["signature"] = (point + bytes(32)).hex()
    return Case(write_tensors(_canonical(header), body))


# Notices.


def edit_notice(data: bytes, rng: Random, others: Sequence[bytes]) -> Case:
    """Change a notice; sign some of them again."""
    if rng.random() < 0.25:
        return Case(edit_bytes(data, rng, others))
    fields = json.loads(data)
    match rng.randrange(6):
        case 0:
            return Case(write_json(edit_json(fields, rng), rng))
        case 1 | 2 | 3:
            return sign_notice(edit_json(_by_mallory(fields), rng), rng)
        case 4:
            signatures = [json.loads(other)["signature"] for other in others]
            fields["signature"] = _other_signature(fields["signature"], rng, signatures)
        case 5:
            choice = rng.randrange(3)
            if choice == 0:
                fields["kind"] = rng.choice(("announcement", "withdrawal", "link", "module", "reply"))
            elif choice == 1:
                fields["teacher_key"] = rng.choice(SMALL_ORDER).hex()
                fields["signature"] = (rng.choice(SMALL_ORDER) + bytes(32)).hex()
            else:
                size = rng.choice((1, 32_768, 32_769, 64_000_000, 64_000_001))
                fields |= {"size": size, "leaves": "ab" * 32 * -(-size // 32_768)}
                return sign_notice(_by_mallory(fields), rng)
    return Case(write_json(fields, rng, canonical=True))


def sign_notice(fields: Any, rng: Random) -> Case:
    """Sign a notice with any content."""
    if not isinstance(fields, dict):
        return Case(write_json(fields, rng))
    rest = {name: value for name, value in fields.items() if name != "signature"}
    digest = hashlib.sha256(write_json(rest, rng, canonical=True)).hexdigest()
    kind = fields.get("kind")
    signed = isinstance(kind, str) and kind in ("announcement", "withdrawal", "link")
    signature = MALLORY.sign(kind if signed else "link", digest)
    data = write_json(rest | {"signature": signature}, rng, canonical=rng.random() < 0.9)
    return Case(data, signed=signed and fields.get("teacher_key") == MALLORY.public_key)
