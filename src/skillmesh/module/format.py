"""A task module: how its `.skill` file is written, read and checked, and the `Module` that it becomes in memory.

`docs/appendix/skill-format.md` is the specification. The reader trusts nothing. It runs its checks in a fixed
order, cheap ones first and the signature last, and raises a different error for each kind of failure.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from skillmesh.errors import (
    CardError,
    FileTooLargeError,
    HeaderTooLargeError,
    ModuleError,
    NotASkillFileError,
    NotCanonicalError,
    NotFiniteError,
    SignatureError,
    TensorError,
    TruncatedError,
)
from skillmesh.module.card import Card
from skillmesh.module.identity import Identity, dumps, loads, show, verify
from skillmesh.numerics.arrays import DTYPES, Array, Spec, Tensors

_MAGIC = {
    b"PK\x03\x04": "a zip archive (PyTorch and Keras files are zips too)",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"\x1f\x8b": "a gzip archive",
    b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "a NumPy file",
    b"\x7fELF": "a program",
}


def guess(data: bytes) -> str | None:
    """Return what kind of file the first bytes look like, or None.

    A module starts with its header's length, which may look like a pickle's start: use this on other files only.

    >>> guess(b"\\x80\\x04\\x95..."), guess(b"hello"), guess(bytes(9))
    ('a pickle (which may run code when opened, so skillmesh never does)', 'text', None)
    """
    for magic, name in _MAGIC.items():
        if data.startswith(magic):
            return name
    if data[:1] == b"\x80" and 2 <= int.from_bytes(data[1:2]) <= 5 and data[2:3] not in (b"", b"\0"):
        return "a pickle (which may run code when opened, so skillmesh never does)"
    try:
        start, _ = codecs.utf_8_decode(data[:64], "strict", False)  # False: the last letter may be cut in two
    except UnicodeDecodeError:
        return None
    if start and all(letter.isprintable() or letter in "\r\n\t" for letter in start):
        return "text"
    return None


# Checks of the tensors against what the card requires, before any number from an untrusted file is used.

MAX_LETTER = 4096
"""Largest size that a letter in a `Spec` may stand for."""

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(name: str, values: Array) -> str:
    """Return the safetensors name of an array's dtype; raise `TensorError` if a module may not hold that dtype."""
    try:
        return _DTYPE_NAMES[values.dtype]
    except KeyError:
        found, expected = values.dtype, ", ".join(map(str, _DTYPE_NAMES))
        raise TensorError(f"tensor {name!r} is {found}, expected one of {expected}; convert it first") from None


def check_tensors(tensors: Tensors, specs: Mapping[str, Spec]) -> None:
    """Raise `TensorError` unless the tensors are exactly those of `specs`, each with its dtype, shape and bounds.

    >>> check_tensors({"a": np.zeros(3, np.int8)}, {"a": Spec("I8", ("k",))})
    """
    missing, unexpected = specs.keys() - tensors.keys(), tensors.keys() - specs.keys()
    if missing:
        raise TensorError(f"tensor {_names(missing)} is missing, expected {_names(specs)}; write the module again")
    if unexpected:
        raise TensorError(f"tensor {_names(unexpected)} is unexpected, expected only {_names(specs)}")
    letters: dict[str, int] = {}
    for name, spec in sorted(specs.items()):
        dtype = dtype_name(name, tensors[name])
        if dtype != spec.dtype:
            raise TensorError(f"tensor {name!r} is {dtype}, expected {spec.dtype}; write the module again")
        _check_shape(name, tensors[name].shape, spec, letters)
        _check_bounds(name, tensors[name], spec)


def check_finite(name: str, values: Array) -> None:
    """Raise `NotFiniteError` for NaN and infinite values: one of them would make every sum useless."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        bad = int(np.count_nonzero(~np.isfinite(values)))
        raise NotFiniteError(
            f"tensor {name!r} holds {bad} NaN or infinite numbers of {values.size}, expected finite numbers; "
            "learn the task again"
        )


def _check_shape(name: str, shape: tuple[int, ...], spec: Spec, letters: dict[str, int]) -> None:
    bound = dict(letters)
    fits = len(shape) == len(spec.shape)
    for size, wanted in zip(shape, spec.shape, strict=False):
        if isinstance(wanted, str):
            fits &= 1 <= size <= MAX_LETTER and letters.setdefault(wanted, size) == size
        else:
            fits &= size == wanted
    if not fits:
        known = {letter: bound.get(letter, f"1–{MAX_LETTER}") for letter in spec.shape if isinstance(letter, str)}
        meaning = "".join(f", {letter} = {value}" for letter, value in known.items())
        raise TensorError(
            f"tensor {name!r} has shape {_shape(shape)}, expected {_shape(spec.shape)}{meaning}; "
            "write the module again"
        )


def _check_bounds(name: str, values: Array, spec: Spec) -> None:
    if (spec.low is None and spec.high is None) or not values.size:
        return
    check_finite(name, values)  # any comparison with NaN is false, so NaN would pass the checks below
    low, high = float(values.min()), float(values.max())
    if spec.low is not None and low < spec.low:
        raise TensorError(f"tensor {name!r} holds {low:g}, expected at least {spec.low:g}; learn the task again")
    if spec.high is not None and high > spec.high:
        raise TensorError(f"tensor {name!r} holds {high:g}, expected at most {spec.high:g}; learn the task again")


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "none"


def _shape(sizes: tuple[int | str, ...]) -> str:
    return f"({', '.join(map(str, sizes))})"


MAX_FILE = 64_000_000
MAX_HEADER = 4_000_000
MAX_TENSORS = 64
MAX_AXES = 8

SpecsFor = Callable[[Card], Mapping[str, Spec]]

_METADATA = "__metadata__"
_NAME = re.compile(r"[a-z0-9.]{1,64}")
_CONTENT_FIELDS = {"task", "classes", "backbone", "representation", "compact", "dim", "temperature"}


class Parts(NamedTuple):
    """The checked content of a `.skill` file."""

    card: Card
    tensors: Tensors
    id: str


def module_id(card: Card, tensors: Mapping[str, Array]) -> str:
    """Return the id of a module: the SHA-256 of its card and every tensor."""
    return _digest("module", card.canonical(), tensors)


def content_id(card: Card, tensors: Mapping[str, Array]) -> str:
    """Return the SHA-256 of everything that determines answers, without teacher and date.

    Agents sum anchors in the order of this id, so that equal modules give bit-identical sums.
    """
    fields = card.model_dump(include=_CONTENT_FIELDS)
    return _digest("content", dumps({name: fields[name] for name in sorted(fields)}).encode(), tensors)


def write(card: Card, tensors: Mapping[str, Array], identity: Identity) -> bytes:
    """Return the bytes of a module's file, signed by its teacher. Raise if `read` would not accept them."""
    return write_and_read(card, tensors, identity)[0]


def write_and_read(
    card: Card, tensors: Mapping[str, Array], identity: Identity, specs_for: SpecsFor | None = None
) -> tuple[bytes, Parts]:
    """Return what `write` returns, and the content that any reader of these bytes gets."""
    if (card.teacher, card.teacher_key) != (identity.name, identity.public_key):
        raise CardError(
            f"card field 'teacher': found {card.teacher} ({card.teacher_key[:8]}…), expected the signer "
            f"{identity.name} ({identity.public_key[:8]}…); create the card with the identity that signs it"
        )
    arrays = {name: np.asarray(tensors[name]) for name in sorted(tensors)}
    signature = identity.sign("module", module_id(card, arrays))
    data = _header_bytes(card, arrays, signature) + b"".join(array.tobytes() for array in arrays.values())
    return data, read(data, specs_for)


def read(data: bytes, specs_for: SpecsFor | None = None) -> Parts:
    """Check a file's bytes and return its card, tensors and id.

    `specs_for` returns the tensors that a card requires. Without it, names, dtypes and shapes are only checked for
    consistency within the file, which is enough to sign a module but not to use one.
    """
    header, end = _read_header(data)
    card, signature = _read_metadata(header.pop(_METADATA, None))
    tensors = _read_tensors(header, data, end)
    if data[:end] != _header_bytes(card, tensors, signature):
        raise NotCanonicalError(
            "the header is not in canonical form, expected sorted keys, no blanks, only a card and a signature "
            "as metadata, and the least padding to a multiple of 8; write the module again with skillmesh"
        )
    if specs_for is not None:
        check_tensors(tensors, specs_for(card))
    for name, values in tensors.items():
        check_finite(name, values)
    digest = module_id(card, tensors)
    if not verify(card.teacher_key, "module", digest, signature):
        raise SignatureError(
            f"the content does not match the signature: content {digest[:12]}… was not signed by {card.teacher} "
            f"(key {card.teacher_key[:12]}…); the file was changed or damaged, fetch it again from the teacher"
        )
    return Parts(card, tensors, digest)


def read_card(path: str | os.PathLike[str]) -> Card:
    """Return the card of a file, whose signature and tensors are not checked."""
    header, _ = _read_header(read_file(path))
    return _read_metadata(header.get(_METADATA))[0]


def _read_header(data: bytes) -> tuple[dict[str, Any], int]:
    """Return the header's JSON, and the position of the first tensor's first byte."""
    if len(data) > MAX_FILE:
        raise FileTooLargeError(f"the file has more than {MAX_FILE:,} bytes, the maximum size of a module")
    if not data:
        raise NotASkillFileError("the file is empty, expected a .skill file; fetch it again")
    length = int.from_bytes(data[:8], "little")
    kind = guess(data)
    if kind and (data[8:9] != b"{" or length > MAX_HEADER):
        raise NotASkillFileError(f"the file seems to be {kind}, expected a .skill file; check the path")
    if len(data) <= 8:
        raise TruncatedError(f"the file ends after {len(data)} bytes, expected a header; fetch it again")
    if length > MAX_HEADER:
        raise HeaderTooLargeError(f"the header claims {length:,} bytes, expected at most {MAX_HEADER:,}")
    if data[8:9] != b"{":
        raise NotASkillFileError(f"the header begins with {data[8:9]!r}, expected b'{{' as in every .skill file")
    if length > len(data) - 8:
        raise TruncatedError(
            f"the file has {len(data):,} bytes, expected {8 + length:,} or more for its header; fetch it again"
        )
    try:
        text = data[8 : 8 + length].decode()
    except UnicodeDecodeError as error:
        raise NotASkillFileError(f"the header is not UTF-8 (at its byte {error.start}); fetch it again") from None
    header: dict[str, Any] = loads(text, "the header", NotASkillFileError)  # it starts with "{", so it is a dict
    return header, 8 + length


def _read_metadata(metadata: object) -> tuple[Card, str]:
    text = metadata.get("skillmesh") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(text, str):
        raise NotASkillFileError(
            "the file is a safetensors file but has no skillmesh card in its metadata, expected a .skill file"
        )
    card = Card.parse(text)
    signature = metadata.get("signature")
    if not isinstance(signature, str):
        raise SignatureError(f"the signature is {show(signature)}, expected 128 hex digits; ask for a signed file")
    return card, signature


def _read_tensors(table: dict[str, Any], data: bytes, position: int) -> Tensors:
    """Return the tensors by name, after checking that the table covers the file's bytes exactly and in order."""
    if len(table) > MAX_TENSORS:
        raise TensorError(f"the file has {len(table)} tensors, expected at most {MAX_TENSORS}")
    invalid = next((name for name in table if not _NAME.fullmatch(name)), None)
    if invalid is not None:
        raise TensorError(f"found tensor name {show(invalid)}, expected 1–64 of a–z, 0–9 and '.'; rename it")
    start, tensors = position, {}
    for name in sorted(table):
        dtype, shape, begin, end = _read_entry(name, table[name])
        if begin != position - start:
            raise NotCanonicalError(
                f"tensor {name!r} begins at byte {begin:,}, expected {position - start:,}: tensors are stored in "
                "the order of their names without gaps; write the module again with skillmesh"
            )
        if start + end > len(data):
            raise TruncatedError(
                f"the file has {len(data):,} bytes, expected {start + end:,} or more for tensor {name!r}; "
                "fetch it again"
            )
        # The slice is a copy, which aligns the numbers. An array over `bytes` can never be made writable.
        tensors[name] = np.frombuffer(data[position : start + end], dtype).reshape(shape)
        position = start + end
    if position != len(data):
        raise NotCanonicalError(
            f"the file has {len(data) - position:,} more bytes after its last tensor, expected none"
        )
    return tensors


def _read_entry(name: str, entry: object) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    """Return dtype, shape, begin and end of one entry of the tensor table, after checking that they agree."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise TensorError(f"tensor {name!r} is {show(entry)}, expected an object with dtype, shape, data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in DTYPES:
        raise TensorError(f"tensor {name!r} has dtype {show(kind)}, expected one of {', '.join(DTYPES)}")
    if not _integers(shape, low=1) or len(shape) > MAX_AXES:
        raise TensorError(f"tensor {name!r} has shape {_list(shape)}, expected ≤ {MAX_AXES} sizes ≥ 1")
    if not _integers(offsets) or len(offsets) != 2:
        raise TensorError(f"tensor {name!r} has data_offsets {_list(offsets)}, expected two integers ≥ 0")
    dtype = cast("np.dtype[Any]", DTYPES[kind])
    size = prod(shape) * dtype.itemsize
    begin, end = offsets
    if end - begin != size:
        raise TensorError(f"tensor {name!r} takes {end - begin:,} bytes, expected {size:,} for dtype and shape")
    return dtype, tuple(shape), begin, end


def _integers(items: object, low: int = 0) -> bool:
    """Return whether `items` is a list of integers of at least `low`; `True` and `1.0` are not integers."""
    return isinstance(items, list) and all(type(item) is int and item >= low for item in items)


def _list(items: object) -> str:
    """Return a short list in full, of which `show` would give only the length."""
    if isinstance(items, list) and len(items) <= MAX_AXES:
        return f"[{', '.join(map(show, items))}]"
    return show(items)


def _header_bytes(card: Card, tensors: Mapping[str, Array], signature: str) -> bytes:
    """Return the canonical header: length, metadata, tensors by name, blanks up to a multiple of 8."""
    header: dict[str, Any] = {_METADATA: {"signature": signature, "skillmesh": card.canonical().decode()}}
    end = 0
    for name in sorted(tensors):
        values, begin = tensors[name], end
        end += values.nbytes
        kind, shape = dtype_name(name, values), list(values.shape)
        header[name] = {"data_offsets": [begin, end], "dtype": kind, "shape": shape}
    text = dumps(header).encode(errors="surrogatepass")  # an untrusted signature may hold anything
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _digest(kind: str, text: bytes, tensors: Mapping[str, Array]) -> str:
    """Return the SHA-256 of length-prefixed pieces, so that different contents never hash the same bytes."""
    digest = hashlib.sha256()

    def add(pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            digest.update(len(piece).to_bytes(8, "little"))
            digest.update(piece)

    add([f"skillmesh/v1/{kind}-id".encode(), text])
    for name in sorted(tensors):
        values = tensors[name]
        shape = ",".join(map(str, values.shape))
        add([name.encode(), dtype_name(name, values).encode(), shape.encode(), values.tobytes()])
    return digest.hexdigest()


# A task module in memory: a card and tensors that are checked, signed and immutable.


@dataclass(frozen=True)
class Module:
    """One learned task. Two modules are equal if their ids are equal.

    `tensors` are read-only arrays over the file's bytes. `size` is the size of the file in bytes.

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
        """Check a file's bytes and return them as a module.

        `specs_for` returns the tensors that the card requires, as defined by their users (head, anchors).
        """
        return cls._of(read(data, specs_for), len(data))

    @classmethod
    def load(cls, path: str | os.PathLike[str], specs_for: SpecsFor) -> Module:
        """Read and check a `.skill` file."""
        return cls.from_bytes(read_file(path), specs_for)

    @classmethod
    def create(
        cls, card: Card, tensors: Mapping[str, Array], identity: Identity, specs_for: SpecsFor | None = None
    ) -> tuple[Module, bytes]:
        """Sign a new module; return it as any reader gets it, and the bytes of its file."""
        data, parts = write_and_read(card, tensors, identity, specs_for)
        return cls._of(parts, len(data)), data

    @classmethod
    def _of(cls, parts: Parts, size: int) -> Module:
        return cls(parts.card, parts.tensors, parts.id, content_id(parts.card, parts.tensors), size)


def in_order(modules: Iterable[Module]) -> list[Module]:
    """Return the modules in the order of every bank, so that agents with equal modules sum in the same order."""
    return sorted(modules, key=lambda m: (m.content_id, m.id))


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return a `.skill` file's bytes; if it is too large, only the first `MAX_FILE` + 1, which `read` refuses."""
    file = Path(path)
    try:
        if file.exists() and not file.is_file():
            raise ModuleError(f"{str(file)!r} is not a file, expected a .skill file; check the path")
        with file.open("rb") as stream:
            return stream.read(MAX_FILE + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModuleError(f"cannot read {str(file)!r} ({reason}), expected a .skill file") from None
