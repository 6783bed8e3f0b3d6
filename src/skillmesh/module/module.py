"""A task module in memory: a card and tensors that are checked, signed and can no longer change."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from skillmesh.errors import ModuleError
from skillmesh.module.card import Card
from skillmesh.module.format import MAX_FILE, Parts, SpecsFor, content_id, read, write
from skillmesh.module.identity import Identity
from skillmesh.numerics.tensors import Array, Tensors


@dataclass(frozen=True)
class Module:
    """One learned task. Two modules are equal when their ids are.

    `tensors` are views of the file's bytes that NumPy refuses to write to. `size` is the file's, in bytes.

    Examples
    --------
    >>> module = agent.tasks()[0]
    >>> module.card.task, module.size < 300_000
    ('dice', True)
    """

    card: Card = field(compare=False)
    tensors: Tensors = field(compare=False, repr=False)
    id: str
    content_id: str = field(compare=False)
    size: int = field(compare=False)

    @classmethod
    def from_bytes(cls, data: bytes, specs_for: SpecsFor) -> Module:
        """Check a file's bytes and make a module of them.

        `specs_for` is asked which tensors the card demands: the parts that use them (head, anchors) know.
        """
        return cls._of(read(data, specs_for), len(data))

    @classmethod
    def load(cls, path: str | os.PathLike[str], specs_for: SpecsFor) -> Module:
        """Read and check a `.skill` file."""
        return cls.from_bytes(read_file(path), specs_for)

    @classmethod
    def create(cls, card: Card, tensors: Mapping[str, Array], identity: Identity) -> tuple[Module, bytes]:
        """Sign a new module; what comes back is what any reader of the bytes will get."""
        data = write(card, tensors, identity)
        return cls._of(read(data), len(data)), data

    @classmethod
    def _of(cls, parts: Parts, size: int) -> Module:
        return cls(parts.card, parts.tensors, parts.id, content_id(parts.card, parts.tensors), size)


def in_order(modules: Iterable[Module]) -> list[Module]:
    """As every bank has them: agents that hold the same add up in the same order."""
    return sorted(modules, key=lambda m: (m.content_id, m.id))


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Read a `.skill` file's bytes; of one that is too large, no more than shows that it is."""
    file = Path(path)
    try:
        if file.exists() and not file.is_file():
            raise ModuleError(f"{str(file)!r} is not a file, expected a .skill file; check the path")
        with file.open("rb") as stream:
            return stream.read(MAX_FILE + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModuleError(f"cannot read {str(file)!r} ({reason}), expected a .skill file") from None
