"""Notices for tests: validly signed, of files that need not be modules."""

from __future__ import annotations

import hashlib
from typing import Any

from skillmesh.module import Identity
from skillmesh.module.notice import LEAF, Announcement, leaf_hash

ALICE, BOB, EVE = (Identity(name, bytes([number]) * 32) for number, name in enumerate(("alice", "bob", "eve")))


def announced(
    identity: Identity = ALICE, task: str = "dice", version: int = 1, data: bytes = b"file", **changed: Any
) -> Announcement:
    """Return an announcement of a file; `changed` replaces fields, which may make it invalid."""
    fields: dict[str, Any] = {
        "task": task,
        "version": version,
        "teacher": identity.name,
        "teacher_key": identity.public_key,
        "id": hashlib.sha256(data + b"the module").hexdigest(),
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "leaves": "".join(leaf_hash(data[start : start + LEAF]) for start in range(0, len(data), LEAF)),
        "classes": 2,
        "backbone": "b" * 64,
        "representation": "descriptor",
        "compact": False,
        "anchors": ("sketch",),
    }
    return Announcement(**(fields | changed)).signed(identity)
