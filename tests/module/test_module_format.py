"""The `.skill` file in normal use: write, read, sign, identify."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from module_files import ADA, EVE, FIELDS, make_card, make_file, make_tensors, specs_for
from pydantic import ValidationError

from skillmesh.errors import (
    AgentError,
    CardError,
    FormatVersionError,
    HeaderTooLargeError,
    ModuleError,
    NotCanonicalError,
    NotFiniteError,
    TensorError,
)
from skillmesh.module import (
    Card,
    Identity,
    Module,
    check_tensors,
    content_id,
    module_id,
    now,
    read,
    verify,
    write,
)
from skillmesh.numerics.arrays import Array, Spec, Tensors
from skillmesh.store import bank

OTHER: dict[str, Any] = {
    "task": "Six birds",
    "classes": ("Amsel", "crow"),
    "backbone": "cd" * 32,
    "backbone_name": "xception",
    "representation": "features",
    "dim": 4,
    "compact": True,
    "anchors": ("sketch",),
    "counts": (5, 8),
    "validation_images": 5,
    "validation_accuracy": 0.5,
    "temperature": 1.25,
    "version": 2,
    "created": "2024-12-31T23:59:58Z",
    "teacher": "Ada 2",
    "teacher_key": EVE.public_key,
    "biases": (40, 12),
    "toes": (3, 2, 5),
    "pattern": 32,
    "composed": ("ab" * 32 + ":Amsel", "cd" * 32 + ":tit"),
    "views": 0.25,
    "trial": "biases: 90.0 % → 91.0 %; kept",
    "warm_start": {"form": "prior", "rows": ((0, 0, "cat", 0.95),), "sources": (("pets", "1" * 64, 0.5),)},
    "licence": None,
    "tags": ("birds",),
    "note": "other",
}

NEWER = {"composed": 2, "warm_start": 2, "views": 3}
"""The format that each later field came with."""
ANSWER_FIELDS = {"task", "classes", "backbone", "representation", "compact", "dim", "temperature"}


def test_a_written_module_is_read_back_unchanged() -> None:
    module, data = Module.create(make_card(), make_tensors(), ADA)
    again = Module.from_bytes(data, specs_for)
    assert again == module
    assert hash(again) == hash(module)
    assert again.card == module.card == make_card()
    assert again.size == len(data)
    assert again.content_id == module.content_id
    for name, values in make_tensors().items():
        assert again.tensors[name].dtype == values.dtype
        np.testing.assert_array_equal(again.tensors[name], values)
    assert write(again.card, again.tensors, ADA) == data


def test_modules_with_equal_ids_are_equal() -> None:
    module, _ = Module.create(make_card(), make_tensors(), ADA)
    same = replace(module, card=make_card(version=2), tensors={}, content_id="", size=0)
    assert same == module
    assert hash(same) == hash(module)
    assert replace(module, id="ab" * 32) != module


def test_a_card_cannot_be_changed() -> None:
    card = make_card()
    with pytest.raises(ValidationError, match="frozen"):
        card.task = "another"  # type: ignore[misc]


def test_an_input_pattern_is_a_square_of_colours() -> None:
    assert "pattern" not in bank.specs_for(make_card())
    assert bank.specs_for(make_card().model_copy(update={"pattern": 96}))["pattern"] == Spec("U8", (96, 96, 3))


def test_any_safetensors_reader_opens_it(tmp_path: Path) -> None:
    path = tmp_path / "birds.skill"
    path.write_bytes(make_file())
    for name, values in safetensors.numpy.load(path.read_bytes()).items():
        np.testing.assert_array_equal(values, make_tensors()[name])
    with safetensors.safe_open(path, "numpy") as file:
        metadata = file.metadata()
    assert metadata.keys() == {"skillmesh", "signature"}
    assert json.loads(metadata["skillmesh"])["task"] == "Fünf Vögel"
    assert Card.parse(metadata["skillmesh"]) == make_card()


def test_bytes_are_as_specified() -> None:
    data = make_file()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert list(header) == ["__metadata__", "head.scale", "head.weight", "mean.order", "mean.phi"]
    assert header["head.weight"] == {"data_offsets": [8, 14], "dtype": "I8", "shape": [2, 3]}
    assert data[8 + length : 16 + length] == np.array([0.5, 0.25], "<f4").tobytes()
    # The id is a promise to every file ever written: this test fails when the hash or the format changes.
    assert read(data).id == "b26b3f74edca9cc391145523a5f0a9953473a832b2dc143f1afe22e396774ef4"
    assert (
        content_id(make_card(), make_tensors())
        == "5715e1ba32859eeb716f75b94088e9ca224380370a8ac98ef20f4297df0a5a73"
    )


def test_order_of_tensors_and_memory_does_not_matter() -> None:
    tensors = make_tensors()
    turned = dict(reversed(tensors.items()))
    turned["head.weight"] = np.asfortranarray(tensors["head.weight"])
    assert module_id(make_card(), turned) == module_id(make_card(), tensors)
    assert write(make_card(), turned, ADA) == make_file()


@pytest.mark.parametrize("field", OTHER)
def test_id_depends_on_every_field_and_content_id_on_those_that_affect_answers(field: str) -> None:
    card, other = (
        make_card(),
        make_card(**{field: OTHER[field]} | ({"format": NEWER[field]} if field in NEWER else {})),
    )
    assert module_id(card, make_tensors()) != module_id(other, make_tensors())
    same = content_id(card, make_tensors()) == content_id(other, make_tensors())
    assert same == (field not in ANSWER_FIELDS)


def test_the_tested_fields_are_all_fields() -> None:
    assert OTHER.keys() | {"format"} == Card.model_fields.keys()


def _changed(name: str, values: Array) -> list[Tensors]:
    flat, rest = values.copy().reshape(-1), make_tensors()
    flat[-1] = 0 if flat[-1] else 1
    rest.pop(name)
    return [
        {**rest, name: flat.reshape(values.shape)},
        {**rest, name: values.reshape(1, *values.shape)},
        {**rest, name + "x": values},
        rest,
    ]


@pytest.mark.parametrize("name", make_tensors())
def test_ids_depend_on_every_tensor(name: str) -> None:
    card, tensors = make_card(), make_tensors()
    for changed in _changed(name, tensors[name]):
        assert module_id(card, changed) != module_id(card, tensors)
        assert content_id(card, changed) != content_id(card, tensors)


def test_id_depends_on_dtype() -> None:
    card, zeros = make_card(), np.zeros(2, np.int8)
    assert module_id(card, {"a": zeros}) != module_id(card, {"a": zeros.view(np.uint8)})


def test_arrays_can_never_be_written() -> None:
    module, _ = Module.create(make_card(), make_tensors(), ADA)
    for values in module.tensors.values():
        with pytest.raises(ValueError, match="read-only"):
            values[...] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            values.setflags(write=True)


def test_create_leaves_the_callers_arrays_alone() -> None:
    tensors = make_tensors()
    module, _ = Module.create(make_card(), tensors, ADA)
    tensors["head.weight"][0, 0] = 9
    assert module.tensors["head.weight"][0, 0] == 1


# --- writing what should not be written


def test_only_the_teacher_signs() -> None:
    with pytest.raises(CardError, match="expected the signer Eve"):
        write(make_card(), make_tensors(), EVE)
    with pytest.raises(CardError, match="expected the signer Ada"):
        write(make_card(teacher="Bob"), make_tensors(), ADA)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (np.zeros(2), TensorError),
        (np.zeros(2, ">f4"), TensorError),
        (np.zeros(2, np.int64), TensorError),
        (np.zeros((2, 0), np.int8), TensorError),
        (np.array([np.nan], np.float32), NotFiniteError),
    ],
)
def test_unreadable_tensors_are_not_written(values: Array, error: type[ModuleError]) -> None:
    with pytest.raises(error, match=r"head\.weight"):
        write(make_card(), {"head.weight": values}, ADA)


@pytest.mark.parametrize("name", ["Head", "a b", "a/b", "", "x" * 65, "__metadata__"])
def test_odd_tensor_names_are_not_written(name: str) -> None:
    with pytest.raises(ModuleError):
        write(make_card(), {name: np.zeros(2, np.int8)}, ADA)


def test_a_header_that_is_too_large_is_not_written() -> None:
    names = tuple(f"{i:04}" + "x" * 196 for i in range(10_000))
    long = tuple("𝔸" * 190 + f"{i:05}" for i in range(10_000))
    assert read(write(make_card(classes=names, counts=(1,) * 10_000), {}, ADA)).card.classes == names
    with pytest.raises(HeaderTooLargeError):
        write(make_card(classes=long, counts=(1,) * 10_000), {}, ADA)


def test_a_card_changed_behind_pydantics_back_is_not_written() -> None:
    with pytest.raises(CardError, match="'dim'"):
        write(make_card().model_copy(update={"dim": 0}), make_tensors(), ADA)


# --- the card

WRONG: list[tuple[str, Any]] = [
    ("task", ""),
    ("task", "x" * 101),
    ("task", " birds"),
    ("task", "a/b"),
    ("task", "a\\b"),
    ("task", ".."),
    ("task", "a\nb"),
    ("task", "e\u0301"),
    ("task", "a\u202eb"),
    ("task", 5),
    ("classes", ("one",)),
    ("classes", ()),
    ("classes", ("a", "a")),
    ("classes", ("a", "")),
    ("classes", ("a", "x" * 201)),
    ("classes", ("a", "\x00")),
    ("classes", ("a", "e\u0301")),
    ("classes", ("a", "\ud800")),
    ("classes", ("a", 3)),
    ("classes", "ab"),
    ("classes", tuple(map(str, range(10_001)))),
    ("backbone", "AB" * 32),
    ("backbone", "ab" * 31),
    ("backbone", "ab" * 32 + "\n"),
    ("backbone_name", ""),
    ("backbone_name", "a\nb"),
    ("backbone_name", "x" * 101),
    ("representation", "pixels"),
    ("dim", 0),
    ("dim", 65_537),
    ("dim", 3.0),
    ("dim", True),
    ("dim", 10**5000),
    ("compact", 1),
    ("anchors", ()),
    ("anchors", ("sketch", "gmmc")),
    ("anchors", ("sketch", "sketch")),
    ("anchors", ("other",)),
    ("counts", (5,)),
    ("counts", (5, 0)),
    ("counts", (5, 2**31 + 1)),
    ("validation_images", -1),
    ("validation_accuracy", 1.5),
    ("validation_accuracy", float("nan")),
    ("temperature", 0.0),
    ("temperature", float("nan")),
    ("temperature", float("inf")),
    ("temperature", 101.0),
    ("version", 0),
    ("version", 2**31 + 1),
    ("created", "2024-12-31 23:59:59"),
    ("created", "2024-13-31T23:59:59Z"),
    ("created", "2024-12-31T23:59:59+00:00"),
    ("teacher", ""),
    ("teacher", "x" * 65),
    ("teacher_key", "g" * 64),
    ("tags", ()),
    ("tags", ("b", "a")),
    ("tags", ("a", "a")),
    ("tags", ("Birds",)),
    ("tags", ("x" * 33,)),
    ("licence", ""),
    ("licence", "x" * 201),
    ("note", "x" * 2001),
    ("note", "\x1b[31m"),
]


@pytest.mark.parametrize(
    ("field", "most"),
    [("task", 100), ("backbone_name", 100), ("teacher", 64), ("licence", 200)],
)
def test_texts_of_the_maximum_length_are_accepted(field: str, most: int) -> None:
    assert getattr(make_card(**{field: "x" * most}), field) == "x" * most


@pytest.mark.parametrize(("field", "value"), WRONG, ids=lambda v: ascii(v)[:30] if v != 10**5000 else "huge")
def test_card_errors_name_field_found_and_expected(field: str, value: Any) -> None:
    with pytest.raises(CardError, match=rf"card field '?{field}.*: found .*expected ") as caught:
        make_card(**{field: value})
    message = str(caught.value)
    assert len(message) < 400
    assert "\n" not in message
    assert "pydantic" not in message
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("field", [name for name, f in Card.model_fields.items() if f.is_required()])
def test_card_without_a_field(field: str) -> None:
    fields = {name: value for name, value in FIELDS.items() if name != field}
    with pytest.raises(CardError, match=f"card field '{field}': found nothing, expected"):
        Card(**fields)


@pytest.mark.parametrize("name", ["colour", "self", "/", "\ud800", "model_config"])
def test_card_with_an_unknown_field(name: str) -> None:
    with pytest.raises(CardError, match="is unknown, expected only format, task"):
        make_card(**{name: 1})


@pytest.mark.parametrize("version", [0, 4, -1, 10**17])
def test_another_format_is_reported_before_any_other_error(version: int) -> None:
    with pytest.raises(FormatVersionError, match=f"format {version}, expected 1"):
        Card(format=version, nonsense=1)


@pytest.mark.parametrize("field", sorted(NEWER))
def test_a_card_has_the_oldest_format_with_its_fields(field: str) -> None:
    plain = {name: value for name, value in FIELDS.items() if name != "format"}
    assert Card(**plain).format == 1
    assert Card(**plain, **{field: OTHER[field]}).format == NEWER[field]
    with pytest.raises(CardError, match=f"format: found 1, expected {NEWER[field]}"):
        make_card(**{field: OTHER[field]})
    with pytest.raises(CardError, match="format: found 2, expected 1"):
        make_card(format=2)


@pytest.mark.parametrize("version", [True, "1", 1.0, None])
def test_a_format_that_is_no_integer(version: object) -> None:
    with pytest.raises(CardError, match="'format'"):
        make_card(format=version)


def test_a_card_can_never_be_changed() -> None:
    card = make_card()
    with pytest.raises(ValidationError, match="frozen"):
        card.dim = 4  # type: ignore[misc]
    assert card == make_card()


def test_the_heads_inputs_are_the_descriptor_or_all_head2toe_features() -> None:
    assert make_card().head_dim == 3
    assert make_card(toes=(3, 2, 5)).head_dim == 3 * 2 * 2 + 5


def test_a_warm_start_without_rows_cannot_have_the_form_prior() -> None:
    plain = {name: value for name, value in FIELDS.items() if name != "format"}
    for form in ("infinity", "two"):
        assert Card(**plain, warm_start={"form": form, "rows": (), "sources": ()}).format == 2
    with pytest.raises(CardError, match=r"warm_start.*a prior without rows"):
        Card(**plain, warm_start={"form": "prior", "rows": (), "sources": ()})


def test_the_first_of_several_errors_in_a_warm_start_is_reported() -> None:
    with pytest.raises(CardError, match=r"warm_start.*found 'three' at 'form'"):
        make_card(format=2, warm_start=OTHER["warm_start"] | {"form": "three", "rows": 5})


def test_card_is_canonical() -> None:
    text = make_card(licence=None).canonical().decode()
    assert text.startswith('{"anchors":["gmmc","sketch"],"backbone":"abab')
    assert '"task":"Fünf Vögel"' in text
    assert "licence" not in text
    assert Card.parse(text).canonical().decode() == text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"dim":3', '"dim": 3'),
        ('"dim":3', '"dim":3,"dim":3'),
        ("1.5", "1.50"),
        ("1.5", "15e-1"),
        ("0.75", "75e-2"),
        ("ü", "\\u00fc"),
        ('"note"', '"licence":null,"note"'),
        ('{"anchors":["gmmc","sketch"],', '{"zz":1,"anchors":["gmmc","sketch"],'),
    ],
)
def test_other_spellings_of_a_card_are_refused(old: str, new: str) -> None:
    text = make_card(licence=None).canonical().decode()
    assert old in text
    error = CardError if "zz" in new else NotCanonicalError
    with pytest.raises(error):
        Card.parse(text.replace(old, new))


@pytest.mark.parametrize("text", ["", "[]", "3", "null", "{", '"a"', "{}", "NaN", '{"format":NaN}', "[" * 9999])
def test_a_text_that_is_not_a_card(text: str) -> None:
    with pytest.raises(CardError):
        Card.parse(text)


def test_now_is_a_valid_time() -> None:
    assert make_card(created=now()).created.endswith("Z")


# --- identity


def test_a_signature_is_valid_for_its_kind_only() -> None:
    digest = "0f" * 32
    signature = ADA.sign("module", digest)
    assert verify(ADA.public_key, "module", digest, signature)
    for kind in ("announcement", "withdrawal", "link", "modul", "Module", "", "module\n"):
        assert not verify(ADA.public_key, kind, digest, signature)
    assert not verify(EVE.public_key, "module", digest, signature)
    assert not verify(ADA.public_key, "module", "0e" * 32, signature)


@pytest.mark.parametrize("signature", ["", "00", "zz" * 64, "00" * 64, "é" * 128])
def test_malformed_signatures_are_not_valid(signature: str) -> None:
    assert not verify(ADA.public_key, "module", "0f" * 32, signature)
    assert not verify("00", "module", "0f" * 32, ADA.sign("module", "0f" * 32))
    assert not verify(ADA.public_key, "module", "0f" * 32, ADA.sign("module", "0f" * 32).upper())


def test_only_digests_are_signed() -> None:
    for kind, digest in (("a\nb", "0f" * 32), ("module", "0f"), ("module", "0F" * 32)):
        with pytest.raises(ValueError, match="cannot sign"):
            ADA.sign(kind, digest)


def test_identity_is_kept_in_a_private_file(tmp_path: Path) -> None:
    path, identity = tmp_path / "key.pem", Identity.create("Zoë of the lab")
    identity.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["key.pem"]  # noqa: PTH208
    assert b"BEGIN PRIVATE KEY" in path.read_bytes()
    assert Identity.load(path) == identity
    assert Identity.load(path).public_key == identity.public_key
    with pytest.raises(AgentError, match="exists already"):
        EVE.save(path)
    assert Identity.load(path) == identity
    assert identity.secret.hex() not in repr(identity)
    assert "secret" not in repr(identity)


def test_two_agents_never_share_a_key() -> None:
    assert Identity.create("a").public_key != Identity.create("a").public_key


def test_a_key_that_appears_meanwhile_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key.pem"
    ADA.save(path)
    monkeypatch.setattr(Path, "exists", lambda _: False)
    with pytest.raises(AgentError, match="exists already"):
        EVE.save(path)
    assert Identity.load(path) == ADA


def test_a_disk_without_hard_links_keeps_keys_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    ADA.save(tmp_path / "key.pem")
    with pytest.raises(AgentError, match="exists already"):
        EVE.save(tmp_path / "key.pem")
    assert Identity.load(tmp_path / "key.pem") == ADA


@pytest.mark.parametrize("name", ["", " a", "a\nb", "x" * 65, "e\u0301"])
def test_odd_agent_names_are_refused(name: str) -> None:
    with pytest.raises(AgentError, match="expected 1–64 printable"):
        Identity.create(name)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"hello", b"skillmesh-name: a\n", b"skillmesh-name: a\n-----BEGIN X-----\n"]
)
def test_damaged_key_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    with pytest.raises(AgentError, match=r"key\.pem"):
        Identity.load(path)


def test_unreadable_key_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="cannot read"):
        Identity.load(tmp_path / "none.pem")
    with pytest.raises(AgentError, match="cannot write"):
        ADA.save(tmp_path / "none" / "key.pem")
    with pytest.raises(AgentError, match="expected 32"):
        Identity("short", b"123")


def test_a_key_of_another_kind(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as ser
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    pem = X25519PrivateKey.generate().private_bytes(ser.Encoding.PEM, ser.PrivateFormat.PKCS8, ser.NoEncryption())
    (tmp_path / "key.pem").write_bytes(b"skillmesh-name: a\n" + pem)
    with pytest.raises(AgentError, match="expected an Ed25519 private key"):
        Identity.load(tmp_path / "key.pem")


# --- specs


def test_a_letter_in_shapes_is_the_same_number_everywhere() -> None:
    specs = {"a": Spec("I8", ("k", "d")), "b": Spec("I8", ("k",)), "c": Spec("I8", ("d", "d"))}
    fits = {"a": np.zeros((2, 3), np.int8), "b": np.zeros(2, np.int8), "c": np.zeros((3, 3), np.int8)}
    check_tensors(fits, specs)
    with pytest.raises(TensorError, match=r"'b' has shape \(3\), expected \(k\), k = 2"):
        check_tensors({**fits, "b": np.zeros(3, np.int8)}, specs)
    with pytest.raises(TensorError, match=r"'c' has shape \(3, 2\)"):
        check_tensors({**fits, "c": np.zeros((3, 2), np.int8)}, specs)


@pytest.mark.parametrize(("size", "good"), [(0, False), (1, True), (4096, True), (4097, False)])
def test_a_letter_in_shapes_has_bounds(size: int, good: bool) -> None:
    tensors, specs = {"a": np.zeros(size, np.int8)}, {"a": Spec("I8", ("k",))}
    if good:
        check_tensors(tensors, specs)
    else:
        with pytest.raises(TensorError, match="k = 1–4096"):
            check_tensors(tensors, specs)


def test_values_have_bounds() -> None:
    specs = {"a": Spec("F32", ("k",), low=0, high=1)}
    check_tensors({"a": np.array([0, 1], np.float32)}, specs)
    with pytest.raises(TensorError, match="holds -1, expected at least 0"):
        check_tensors({"a": np.array([-1, 0], np.float32)}, specs)
    with pytest.raises(TensorError, match="holds 2, expected at most 1"):
        check_tensors({"a": np.array([0, 2], np.float32)}, specs)
    with pytest.raises(NotFiniteError, match="'a' holds 1 NaN"):
        check_tensors({"a": np.array([np.nan, 0.5], np.float32)}, specs)


def test_importing_modules_is_cheap() -> None:
    heavy = "{'torch', 'timm', 'sklearn', 'scipy', 'torchvision', 'cryptography'}"
    code = f"import sys, skillmesh.module; sys.exit(str({heavy} & sys.modules.keys() or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
