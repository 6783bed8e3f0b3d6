"""Hostile `.skill` files: each attack ends in its own named error, and none crashes.

Files here are mostly signed with the attacker's own key, so that they fail the intended check and not the
signature check.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from module_files import ADA, EVE, FIELDS, make_card, make_file, make_tensors, specs_for

from skillmesh.errors import (
    CardError,
    FileTooLargeError,
    FormatVersionError,
    HeaderTooLargeError,
    ModuleError,
    NotASkillFileError,
    NotCanonicalError,
    NotFiniteError,
    SignatureError,
    TensorError,
    TruncatedError,
)
from skillmesh.module import MAX_FILE, MAX_HEADER, Card, Module, module_id
from skillmesh.module.format import _header_bytes, read
from skillmesh.module.identity import show
from skillmesh.numerics.arrays import Spec

GOOD = make_file()
START = 8 + int.from_bytes(GOOD[:8], "little")
HEADER, BODY = GOOD[8:START].rstrip(b" "), GOOD[START:]


def accept(data: bytes) -> Module:
    return Module.from_bytes(data, specs_for)


def pack(header: bytes, body: bytes = BODY, pad: bool = True) -> bytes:
    header += b" " * (-len(header) % 8 if pad else 0)
    return len(header).to_bytes(8, "little") + header + body


def dump(header: object) -> bytes:
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()


def sign(tensors: dict[str, Any], **fields: Any) -> bytes:
    """Return a well-formed file with any tensors and card of the attacker, and a valid signature."""
    card = make_card(**fields)
    signature = ADA.sign("module", module_id(card, tensors))
    head = _header_bytes(card, tensors, signature)
    return head + b"".join(tensors[name].tobytes() for name in sorted(tensors))


def with_header(change: Callable[[dict[str, Any]], object], body: bytes = BODY) -> bytes:
    header = json.loads(HEADER)
    change(header)
    return pack(dump(header), body)


def with_card(**changes: Any) -> bytes:
    """Return a canonical card with these JSON values, valid or not; `...` removes a field."""

    def change(header: dict[str, Any]) -> None:
        card = {**json.loads(header["__metadata__"]["skillmesh"]), **changes}
        card = {name: card[name] for name in sorted(card) if card[name] is not ...}
        header["__metadata__"]["skillmesh"] = dump(card).decode()

    return with_header(change)


def with_entry(name: str, body: bytes = BODY, **changes: Any) -> bytes:
    return with_header(lambda header: header[name].update(changes), body)


def refuse(data: bytes, error: type[ModuleError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        accept(data)
    assert type(caught.value) is error
    assert len(str(caught.value)) < 500


def test_the_helpers_write_valid_files() -> None:
    assert pack(HEADER) == with_header(lambda _: None) == with_card() == sign(make_tensors()) == GOOD
    assert accept(GOOD).size == len(GOOD)


# --- something else


@pytest.mark.parametrize(
    ("data", "seems"),
    [
        (b"", "is empty"),
        *[(pickle.dumps({"weights": [1.0] * 9}, protocol), "a pickle") for protocol in (2, 3, 4, 5)],
        (pickle.dumps({"weights": 1}, 0), "text"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "a PNG image"),
        (b"\xff\xd8\xff\xe0" + bytes(50), "a JPEG image"),
        (b"# a text\n" * 9, "text"),
        (b"hi", "text"),
        (b'{"json": "too, without its length"}', "text"),
        ("ünï".encode() * 50, "text"),
        (bytes(100), "begins with b'.x00'"),
    ],
)
def test_a_file_of_another_kind(data: bytes, seems: str) -> None:
    refuse(data, NotASkillFileError, seems)


def test_zip() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", b"x" * 99)
    refuse(buffer.getvalue(), NotASkillFileError, "a zip archive")


def test_a_pickle_that_has_a_brace_where_a_header_begins() -> None:
    refuse(b"\x80\x02}q\x00(XX{" + bytes(50), NotASkillFileError, "a pickle")


def test_a_header_length_that_begins_like_a_pickle_is_not_taken_for_one() -> None:
    base = len(_header_bytes(make_card(note="x"), {}, "0" * 128)) - 8
    for length in (0x0380, 0x0480, 0x0580):
        data = sign({}, note="x" * (length - base))
        assert data[:8] == b"\x80" + bytes([length >> 8]) + bytes(6)
        assert read(data).card.note == "x" * (length - base)
        refuse(data[:5], TruncatedError, "ends after 5 bytes")


def test_plain_safetensors() -> None:
    refuse(safetensors.numpy.save(make_tensors()), NotASkillFileError, "no skillmesh card")
    refuse(safetensors.numpy.save(make_tensors(), {"format": "pt"}), NotASkillFileError, "no skillmesh card")


@pytest.mark.parametrize("metadata", [None, [], "text", {}, {"skillmesh": 5}, {"skillmesh": None}])
def test_metadata_of_another_kind(metadata: object) -> None:
    data = with_header(lambda header: header.update(__metadata__=metadata))
    refuse(data, NotASkillFileError, "no skillmesh card")


# --- cut off, too large


@pytest.mark.parametrize("length", [1, 7, 8, 9, 100, START - 1, START, START + 3, len(GOOD) - 1])
def test_truncated(length: int) -> None:
    refuse(GOOD[:length], TruncatedError, "expected")


def test_oversized_header() -> None:
    refuse((MAX_HEADER + 1).to_bytes(8, "little") + GOOD[8:], HeaderTooLargeError, "claims 4,000,001 bytes")
    refuse(b"\xff" * 8 + GOOD[8:], HeaderTooLargeError, "expected at most 4,000,000")


def test_header_length_beyond_the_file() -> None:
    refuse((len(GOOD) - 7).to_bytes(8, "little") + GOOD[8:], TruncatedError, "or more for its header")


def test_oversized_file(tmp_path: Path) -> None:
    refuse(GOOD + bytes(MAX_FILE - len(GOOD) + 1), FileTooLargeError, "more than 64,000,000 bytes")
    huge = tmp_path / "huge.skill"
    with huge.open("wb") as file:
        file.write(GOOD)
        file.truncate(10**13)  # sparse: it must not be read completely
    with pytest.raises(FileTooLargeError):
        Module.load(huge, specs_for)


def test_a_path_that_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/null")):
        with pytest.raises(ModuleError, match=r"is not a file, expected a \.skill file"):
            Module.load(path, specs_for)
    with pytest.raises(ModuleError, match=r"cannot read .*none\.skill' \(No such file or directory\)"):
        Module.load(tmp_path / "none.skill", specs_for)
    (tmp_path / "good.skill").write_bytes(GOOD)
    assert Module.load(tmp_path / "good.skill", specs_for) == accept(GOOD)


# --- damage and forgery


def test_bit_flip_in_tensor_data() -> None:
    for position in range(START, START + 8, 4):
        data = bytearray(GOOD)
        data[position] ^= 1
        refuse(bytes(data), SignatureError, "the content does not match the signature")


def test_bit_flip_in_header() -> None:
    refuse(GOOD.replace(b"Amsel", b"Amsem"), SignatureError, "the content does not match the signature")
    refuse(GOOD.replace(b'{"__meta', b'["__meta'), NotASkillFileError, "begins with")
    refuse(GOOD.replace(b'"head.scale":', b'"head.scale";'), NotASkillFileError, "not JSON")
    refuse(GOOD.replace(b'"head.scale"', b'"head.scalf"'), TensorError, "'head.scale' is missing")


def test_every_single_bit_flip_is_refused() -> None:
    for position in range(len(GOOD)):
        for bit in range(8):
            data = bytearray(GOOD)
            data[position] ^= 1 << bit
            with pytest.raises(ModuleError):
                accept(bytes(data))


def test_every_truncation_is_refused() -> None:
    for length in range(1, len(GOOD)):
        with pytest.raises(TruncatedError):
            accept(GOOD[:length])


def test_signed_by_another_key() -> None:
    forged = EVE.sign("module", accept(GOOD).id)
    data = with_header(lambda header: header["__metadata__"].update(signature=forged))
    refuse(data, SignatureError, "was not signed by Ada")


def test_teacher_key_swapped() -> None:
    refuse(with_card(teacher_key=EVE.public_key), SignatureError, "does not match the signature")


def test_signature_for_another_kind_of_thing() -> None:
    forged = ADA.sign("announcement", accept(GOOD).id)
    data = with_header(lambda header: header["__metadata__"].update(signature=forged))
    refuse(data, SignatureError, "does not match")


def test_signature_of_another_module() -> None:
    other = json.loads(sign(make_tensors(), version=2)[8:START])["__metadata__"]["signature"]
    data = with_header(lambda header: header["__metadata__"].update(signature=other))
    refuse(data, SignatureError, "does not match")


@pytest.mark.parametrize("signature", [None, 5, "", "00", "0" * 128, "é" * 128])
def test_invalid_signatures(signature: object) -> None:
    data = with_header(lambda header: header["__metadata__"].update(signature=signature))
    refuse(data, SignatureError, "signature")


def test_no_signature() -> None:
    data = with_header(lambda header: header["__metadata__"].pop("signature"))
    refuse(data, SignatureError, "the signature is nothing, expected 128 hex digits")


def test_a_signature_that_is_no_text() -> None:
    signature = json.loads(HEADER)["__metadata__"]["signature"].encode()
    refuse(pack(HEADER.replace(signature, b"\\ud800")), NotCanonicalError, "canonical form")


# --- tensors


def test_wrong_dtype() -> None:
    tensors = {**make_tensors(), "head.weight": make_tensors()["head.weight"].view(np.uint8)}
    refuse(sign(tensors), TensorError, r"'head.weight' is U8, expected I8")


@pytest.mark.parametrize("dtype", ["F64", "BF16", "i8", "", 5, None, ["I8"]])
def test_dtype_outside_the_format(dtype: object) -> None:
    refuse(with_entry("head.weight", dtype=dtype), TensorError, "expected one of I8, U8, F16, F32")


def test_wrong_shape() -> None:
    tensors = {**make_tensors(), "head.weight": make_tensors()["head.weight"].T}
    refuse(sign(tensors), TensorError, r"'head.weight' has shape \(3, 2\), expected \(2, 3\)")
    refuse(sign(make_tensors(), dim=4), TensorError, r"has shape \(2, 3\), expected \(2, 4\)")


@pytest.mark.parametrize("shape", [[-2, -3], [6, 0], [True, 6], [2.0, 3], "23", None, [[2, 3]], [1] * 9, {}])
def test_invalid_shapes(shape: object) -> None:
    refuse(with_entry("head.weight", shape=shape), TensorError, "has shape .*, expected ≤ 8 sizes")


def test_a_short_list_that_is_no_shape_is_shown_in_full() -> None:
    refuse(with_entry("head.weight", shape=[6, 0]), TensorError, r"has shape \[6, 0\], expected ≤ 8 sizes")
    refuse(
        with_entry("head.weight", data_offsets=[8, -6]), TensorError, r"has data_offsets \[8, -6\], expected two"
    )


def test_shape_that_takes_other_bytes() -> None:
    refuse(with_entry("head.weight", shape=[2, 4]), TensorError, "takes 6 bytes, expected 8")


def test_missing_tensor() -> None:
    tensors = make_tensors()
    del tensors["mean.phi"]
    refuse(sign(tensors), TensorError, "'mean.phi' is missing")


def test_extra_tensor() -> None:
    tensors = {**make_tensors(), "virus": np.zeros(2, np.int8)}
    refuse(sign(tensors), TensorError, "'virus' is unexpected")


def test_too_many_tensors() -> None:
    tensors = {f"t{i}": np.zeros(1, np.int8) for i in range(65)}
    refuse(sign(tensors), TensorError, "has 65 tensors, expected at most 64")


@pytest.mark.parametrize("name", ["", "Head", "../head", "head weight", "x" * 65, "a\n", "é"])
def test_odd_tensor_names(name: str) -> None:
    refuse(sign({**make_tensors(), name: np.zeros(1, np.int8)}), TensorError, "tensor name")


@pytest.mark.parametrize("entry", [None, 5, [], {}, {"dtype": "I8", "shape": [1]}])
def test_invalid_table_entries(entry: object) -> None:
    data = with_header(lambda header: header.update({"head.weight": entry}))
    refuse(data, TensorError, "expected an object with dtype, shape, data_offsets")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["head.scale", "mean.phi"])
def test_nan_and_infinity(name: str, value: float) -> None:
    tensors = make_tensors()
    tensors[name][1] = value
    refuse(sign(tensors), NotFiniteError, f"'{name}' holds 1 NaN or infinite numbers of 2")


def test_nan_in_a_tensor_without_bounds() -> None:
    with pytest.raises(NotFiniteError, match="'a'"):
        Module.from_bytes(sign({"a": np.array([np.nan], np.float16)}), lambda _: {"a": Spec("F16", (1,))})


def test_values_out_of_bounds() -> None:
    tensors = {**make_tensors(), "mean.phi": np.array([0.5, 1.5], np.float16)}
    refuse(sign(tensors), TensorError, "holds 1.5, expected at most 1")


# --- the card


def test_missing_class_names() -> None:
    refuse(with_card(classes=...), CardError, "'classes': found nothing, expected 2–10,000")
    refuse(with_card(classes=[]), CardError, "'classes': found a tuple of 0, expected")
    refuse(with_card(classes=["Amsel"]), CardError, "'classes': found a tuple of 1, expected")
    refuse(with_card(classes=["Amsel", ""]), CardError, r"'classes\[1\]': found '', expected")


def test_duplicate_class_names() -> None:
    refuse(with_card(classes=["Amsel", "Amsel"]), CardError, "'classes': found 'Amsel' twice")


def test_more_classes_than_counts() -> None:
    refuse(with_card(classes=["a", "b", "c"]), CardError, "counts: found 2, expected 3")


def test_more_or_fewer_origins_than_classes() -> None:
    origins = ["ab" * 32 + f":{name}" for name in ("Amsel", "tit", "crow")]
    for count, classes, counts in ((3, ["a", "b"], [1, 1]), (2, ["a", "b", "c"], [1, 1, 1])):
        data = with_card(format=2, composed=origins[:count], classes=classes, counts=counts)
        refuse(data, CardError, f"composed: found {count}, expected {len(classes)}, one per class")


def test_unknown_card_field() -> None:
    refuse(with_card(run="rm -rf /"), CardError, "'run' is unknown")
    refuse(with_card(self=1), CardError, "'self' is unknown")


def test_another_format_version() -> None:
    refuse(with_card(format=4), FormatVersionError, "format 4, expected 1 to 3")
    refuse(with_card(format=4, classes=..., colour="red"), FormatVersionError, "format 4, expected 1 to 3")
    refuse(with_card(format=...), CardError, "'format': found nothing")
    refuse(with_card(format="1"), CardError, "'format': found '1'")


@pytest.mark.parametrize("field", ["counts", "anchors", "classes"])
def test_a_million_entries_are_refused_at_once(field: str) -> None:
    began = time.process_time()
    refuse(with_card(**{field: [0] * 1_500_000}), CardError, f"'{field}': found a tuple of 1500000")
    assert time.process_time() - began < 9  # pydantic's list of complaints would take 12 s on a fast machine


def test_every_card_field_of_every_wrong_type() -> None:
    for field in FIELDS:
        for value in (None, 5, -1, 0.5, True, "x", "", [], {}, [None], [[["x"]]], {"a": 1}, "\ud7ff" * 9999):
            if Card.model_fields[field].annotation is bool and value is True:
                continue
            with pytest.raises(ModuleError):
                accept(with_card(**{field: value}))


def test_card_that_is_not_json() -> None:
    for text in ("", "{", "[]", "5", "[" * 100_000, '{"a":' * 100_000):
        data = with_header(lambda header, text=text: header["__metadata__"].update(skillmesh=text))
        refuse(data, CardError, "the card")


def test_card_with_blanks() -> None:
    def change(header: dict[str, Any]) -> None:
        header["__metadata__"]["skillmesh"] += " "

    refuse(with_header(change), NotCanonicalError, "the card is not in canonical form")


def test_lone_surrogates() -> None:
    refuse(pack(HEADER.replace(b"Amsel", b"\\ud800")), CardError, r"classes\[0\]")
    refuse(pack(HEADER.replace(b'\\"dim', b'\\"\\ud800dim')), CardError, "is unknown")
    refuse(pack(HEADER.replace(b'"head.scale"', b'"\\ud800"')), TensorError, "tensor name")


# --- the canonical form


def test_header_with_extra_spaces() -> None:
    refuse(pack(HEADER + b" " * 8), NotCanonicalError, "canonical form")
    refuse(pack(HEADER.replace(b":[", b": [")), NotCanonicalError, "canonical form")
    refuse(pack(HEADER.replace(b"{", b"{\n", 1)), NotCanonicalError, "canonical form")
    refuse(pack(HEADER[:-1] + b" }"), NotCanonicalError, "canonical form")


def test_header_with_less_padding() -> None:
    data = next(
        pack(dump(json.loads(make[8:])), b"", pad=False)
        for make in (sign({}, note="x" * n) for n in range(1, 9))
        if make.endswith(b" ")
    )
    with pytest.raises(NotCanonicalError, match="canonical form"):
        Module.from_bytes(data, lambda _: {})


def test_header_padded_with_something_else() -> None:
    padding = -len(HEADER) % 8 or 8
    refuse(pack(HEADER + b"\n" * padding), NotCanonicalError, "canonical form")
    refuse(pack(HEADER + b"\0" * padding), NotASkillFileError, "not JSON")


def test_reordered_keys() -> None:
    header = json.loads(HEADER)
    refuse(pack(dump(dict(reversed(header.items())))), NotCanonicalError, "canonical form")
    entry = dict(reversed(header["head.scale"].items()))
    refuse(pack(dump({**header, "head.scale": entry})), NotCanonicalError, "canonical form")


def test_reordered_card() -> None:
    def change(header: dict[str, Any]) -> None:
        card = json.loads(header["__metadata__"]["skillmesh"])
        header["__metadata__"]["skillmesh"] = dump(dict(reversed(card.items()))).decode()

    refuse(with_header(change), NotCanonicalError, "the card is not in canonical form")


def test_extra_metadata() -> None:
    data = with_header(lambda header: header["__metadata__"].update(extra="1"))
    refuse(data, NotCanonicalError, "canonical form")


def test_escaped_letters() -> None:
    refuse(pack(HEADER.replace(b"head.scale", b"head.scal\\u0065")), NotCanonicalError, "canonical form")


def _shifted(first: int, last: int) -> bytes:
    """Return a file with `mean.phi`, the last tensor, moved to these offsets."""
    return with_entry("mean.phi", data_offsets=[first, last], body=BODY + bytes(8))


def test_gap_between_tensors() -> None:
    refuse(_shifted(20, 24), NotCanonicalError, "'mean.phi' begins at byte 20, expected 16")


def test_overlapping_tensors() -> None:
    refuse(_shifted(14, 18), NotCanonicalError, "'mean.phi' begins at byte 14, expected 16")


def test_tensors_in_another_order() -> None:
    def change(header: dict[str, Any]) -> None:
        header["mean.order"]["data_offsets"] = [18, 20]
        header["mean.phi"]["data_offsets"] = [14, 18]

    refuse(with_header(change), NotCanonicalError, "'mean.order' begins at byte 18, expected 14")


def test_trailing_bytes() -> None:
    refuse(GOOD + b"\0", NotCanonicalError, "1 more bytes after its last tensor")
    refuse(GOOD + GOOD, NotCanonicalError, "after its last tensor")


def test_duplicated_keys() -> None:
    entry = b'"head.scale":' + dump(json.loads(HEADER)["head.scale"])
    refuse(pack(HEADER.replace(entry, entry + b"," + entry)), NotCanonicalError, "'head.scale' twice")
    refuse(pack(HEADER.replace(b'"dtype":', b'"dtype":"F64","dtype":', 1)), NotCanonicalError, "'dtype' twice")
    twice = HEADER.replace(b'\\"dim\\":3', b'\\"dim\\":2,\\"dim\\":3')
    refuse(pack(twice), NotCanonicalError, "the card has the key 'dim' twice")
    many = b"{" + b",".join(b'"%d":0' % i for i in range(100_000)) + b',"5":0}'
    refuse(pack(many), NotCanonicalError, "'5' twice")


def test_deep_nesting() -> None:
    for deep in (b'{"a":' * 200_000, b'{"a":' + b"[" * 500_000, b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}"):
        refuse(pack(deep), NotASkillFileError, "nested too deeply")


def test_nesting_that_json_still_reads() -> None:
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    refuse(with_card(dim=deep), CardError, "'dim': found a tuple of 1")
    refuse(with_card(counts=[deep, 1]), CardError, r"counts\[0\]")
    refuse(with_entry("head.weight", shape=deep), TensorError, "has shape")


@pytest.mark.parametrize(
    ("offsets", "error", "message"),
    [
        ([8, 2**63 - 1], NotCanonicalError, "an integer of 19 digits"),
        ([8, 10**17], TensorError, "takes 99,999,999,999,999,992 bytes"),
        ([10**17, 10**17 + 6], NotCanonicalError, "begins at byte 100,000,000,000,000,000"),
        ([8, 10**4000], NotCanonicalError, "an integer of 4001 digits"),
        ([-6, 0], TensorError, "expected two integers"),
        ([14, 8], TensorError, "takes -6 bytes"),
        ([8.0, 14.0], TensorError, "expected two integers"),
        ([8, 14, 20], TensorError, "expected two integers"),
        ([], TensorError, "expected two integers"),
        (None, TensorError, "expected two integers"),
        ("8,14", TensorError, "expected two integers"),
        ([False, 6], TensorError, "expected two integers"),
    ],
)
def test_odd_offsets(offsets: object, error: type[ModuleError], message: str) -> None:
    refuse(with_entry("head.weight", data_offsets=offsets), error, message)


def test_an_integer_of_a_million_digits() -> None:
    refuse(pack(b'{"a":' + b"9" * 1_000_000 + b"}"), NotCanonicalError, "an integer of 1000000 digits")


def test_sizes_whose_product_overflows() -> None:
    for shape in ([2**32, 2**32], [2**16] * 4, [10**17] * 8):
        refuse(with_entry("head.weight", shape=shape), TensorError, "takes 6 bytes, expected")
    size = 3 * 10**16
    data = with_entry("head.weight", shape=[2, size // 2], data_offsets=[8, 8 + size])
    refuse(data, TruncatedError, "or more for tensor 'head.weight'")


def test_numbers_that_json_does_not_have() -> None:
    for word in (b"NaN", b"Infinity", b"-Infinity", b"1e999"):
        refuse(pack(HEADER.replace(b"[2,3]", b"[2,%s]" % word)), NotASkillFileError, "the header holds")
        refuse(pack(HEADER.replace(b'\\"temperature\\":1.5', b'\\"temperature\\":' + word)), CardError, "holds")


def test_header_that_is_not_utf8() -> None:
    refuse(pack(HEADER.replace(b"Amsel", b"Ams\xffl")), NotASkillFileError, "not UTF-8")


# --- random changes

FUZZ = settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
POSITION = st.integers(0, len(GOOD) - 1)
INTERESTING = st.sampled_from(
    [b"0", b"1", b"-1", b"9" * 18, b"9" * 19, b"1e9", b"1.0", b"null", b'""', b"[]", b"{}"]
)


def never_accepts(data: bytes) -> None:
    if data == GOOD:
        accept(data)
        return
    with pytest.raises(ModuleError) as caught:
        accept(data)
    assert type(caught.value) is not ModuleError  # each way to be wrong has its own name
    assert str(caught.value)


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """Return a valid file after a few random edits of bytes and slices."""
    data = bytearray(GOOD)
    for _ in range(draw(st.integers(1, 4))):
        a, b, c = sorted(draw(POSITION) % (len(data) + 1) for _ in range(3))
        edit = draw(st.sampled_from(["flip", "insert", "delete", "copy", "swap", "cut"]))
        if edit == "flip" and a < len(data):
            data[a] ^= draw(st.integers(1, 255))
        elif edit == "insert":
            data[a:a] = draw(st.binary(min_size=1, max_size=9))
        elif edit == "delete":
            del data[a : min(b, a + 30)]
        elif edit == "copy":
            data[c:c] = data[a:b]
        elif edit == "swap":
            data[a:c] = data[b:c] + data[a:b]
        elif edit == "cut":
            del data[c:]
    return bytes(data)


@st.composite
def edited_headers(draw: st.DrawFn) -> bytes:
    """Return a valid file whose header has one number or word replaced, and its length corrected."""
    spots = [i for i, byte in enumerate(HEADER) if byte in b"0123456789"]
    start = draw(st.sampled_from(spots))
    end = start + draw(st.integers(0, 3))
    new = draw(INTERESTING | st.integers(-(2**70), 2**70).map(lambda n: str(n).encode()))
    return pack(HEADER[:start] + new + HEADER[end:])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(FUZZ, max_examples=2000)
@given(mutations())
def test_mutated_bytes(data: bytes) -> None:
    never_accepts(data)


@pytest.mark.long
@FUZZ
@given(edited_headers())
def test_mutated_header_numbers(data: bytes) -> None:
    never_accepts(data)


@pytest.mark.long
@FUZZ
@given(st.sampled_from(sorted(FIELDS)), JSON)
def test_mutated_card_fields(field: str, value: object) -> None:
    data = json.loads(HEADER)
    card = {**json.loads(data["__metadata__"]["skillmesh"]), field: value}
    data["__metadata__"]["skillmesh"] = json.dumps(card, separators=(",", ":"), sort_keys=True)
    never_accepts(pack(json.dumps(data, separators=(",", ":")).encode()))


@pytest.mark.long
@FUZZ
@given(st.sampled_from(["head.scale", "mean.phi"]), st.sampled_from(["dtype", "shape", "data_offsets"]), JSON)
def test_mutated_table(name: str, key: str, value: object) -> None:
    data = json.loads(HEADER)
    data[name][key] = value
    never_accepts(pack(json.dumps(data, separators=(",", ":"), ensure_ascii=True).encode()))


@settings(FUZZ, max_examples=300)
@given(st.binary(max_size=200), st.booleans())
def test_random_bytes(data: bytes, framed: bool) -> None:
    never_accepts(struct.pack("<Q", len(data) + 1) + b"{" + data if framed else data)


@pytest.mark.parametrize("length", [59, 60, 61, 1000])
def test_long_untrusted_text_is_quoted_in_part_with_an_ellipsis(length: int) -> None:
    quoted = show("x" * length)
    assert quoted == ("'" + "x" * min(length, 60) + "'" + ("…" if length > 60 else ""))
