"""Notices: every peer reads exactly the bytes that the teacher signed, and nothing else is accepted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from notices import ALICE, BOB, announced

from skillmesh.core import Core
from skillmesh.errors import ModuleError, NoticeError
from skillmesh.module.card import MAX_CLASSES
from skillmesh.module.format import MAX_FILE
from skillmesh.module.identity import dumps
from skillmesh.module.notice import (
    LEAF,
    MAX_NOTICE,
    Notice,
    Withdrawal,
    announce,
    decode,
    link,
    withdraw,
)

QUICK = settings(max_examples=300, deadline=None)
NAMES = st.text("abcdé日-_ 0", min_size=1, max_size=100).filter(lambda s: s == s.strip() and s not in (".", ".."))
TAGS = st.none() | st.sets(
    st.from_regex(r"[a-z0-9][a-z0-9._-]{0,31}", fullmatch=True), min_size=1, max_size=16
).map(lambda tags: tuple(sorted(tags)))
ANNOUNCEMENTS = st.builds(
    announced,
    st.sampled_from([ALICE, BOB]),
    NAMES,
    st.integers(1, 2**31),
    st.binary(min_size=1, max_size=40) | st.integers(LEAF - 1, 3 * LEAF + 1).map(bytes),
    tags=TAGS,
    classes=st.integers(2, MAX_CLASSES),
    compact=st.booleans(),
    representation=st.sampled_from(["features", "sqrt-features", "descriptor"]),
)
WITHDRAWALS = st.builds(withdraw, NAMES, st.integers(1, 2**31), st.sampled_from([ALICE, BOB]), st.none() | NAMES)
NOTICES = ANNOUNCEMENTS | WITHDRAWALS


def fields_of(notice: Notice) -> dict[str, Any]:
    return json.loads(notice.encode())


def signed_anyhow(notice: Notice, **changed: Any) -> bytes:
    """Return what a hostile teacher could send: any fields, in canonical form and with a valid signature."""
    given = fields_of(notice) | changed
    fields = {name: given[name] for name in sorted(given) if given[name] is not None and name != "signature"}
    digest = hashlib.sha256(dumps(fields).encode()).hexdigest()
    signature = ALICE.sign(notice.kind, digest)
    return dumps(dict(sorted((fields | {"signature": signature}).items()))).encode()


class TestWhatATeacherSays:
    def test_an_announcement_describes_its_module(self, tiny_taught: Core):
        module = tiny_taught.bank.find("dice")
        data = tiny_taught.bank.file_of(module)
        notice = announce(module.card, module.id, data, tiny_taught.identity)
        assert decode(notice.encode()) == notice
        assert (notice.id, notice.size, notice.classes) == (module.id, len(data), 2)
        leaves = [data[start : start + LEAF] for start in range(0, len(data), LEAF)]
        assert [notice.leaf(i) for i in range(len(leaves))] == [
            hashlib.sha256(leaf).hexdigest() for leaf in leaves
        ]
        assert notice.sha256 == hashlib.sha256(data).hexdigest()
        assert notice.describes(module.card)
        for change in ({"version": 2}, {"tags": ("new",)}, {"compact": True}, {"classes": ("a", "b", "c")}):
            assert not notice.describes(module.card.model_copy(update=change))

    def test_a_withdrawal_gives_its_reason(self):
        notice = withdraw("dice", 3, ALICE, "mislabelled")
        assert decode(notice.encode()) == notice
        assert (notice.slot, notice.version, notice.reason) == ((ALICE.public_key, "dice"), 3, "mislabelled")

    @pytest.mark.parametrize("reason", ["", "x" * 201, "two\nlines"])
    def test_a_reason_that_cannot_be_shown_is_refused_at_once(self, reason: str):
        with pytest.raises(NoticeError, match="the withdrawal is not valid: reason"):
            withdraw("dice", 1, ALICE, reason)

    def test_the_largest_module_can_be_announced(self):
        leaves = "0" * 64 * -(-MAX_FILE // LEAF)
        tags = tuple(f"{i:02}".ljust(32, "x") for i in range(16))
        largest = announced(
            task="日" * 100, version=2**31, size=MAX_FILE, leaves=leaves, classes=MAX_CLASSES, tags=tags
        )
        assert len(largest.encode()) < MAX_NOTICE
        assert decode(largest.encode()) == largest

    @QUICK
    @given(NOTICES)
    def test_is_decoded_unchanged(self, notice: Notice):
        heard = decode(notice.encode())
        assert heard == notice
        assert (heard.digest, heard.rank, heard.encode()) == (notice.digest, notice.rank, notice.encode())


class TestWhatIsRefused:
    @QUICK
    @given(NOTICES, st.data())
    def test_any_change_of_a_byte(self, notice: Notice, data: st.DataObject):
        encoded = bytearray(notice.encode())
        where = data.draw(st.integers(0, len(encoded) - 1))
        encoded[where] ^= data.draw(st.integers(1, 255))
        with pytest.raises(ModuleError):
            decode(bytes(encoded))

    @QUICK
    @given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
    @example(b"")
    @example(b"\xff")
    @example(b"[" * 100_000)
    @example(b'{"kind":"withdrawal","\\ud800":1}')
    @example(b'{"kind":"withdrawal","kind":"withdrawal"}')
    @example(b'{"kind":["withdrawal"]}')
    @example(b'{"kind":"module"}')
    @example(b'{"kind":"withdrawal","version":' + b"9" * 5000 + b"}")
    def test_bytes_that_are_not_a_notice(self, data: bytes):
        with pytest.raises(ModuleError):
            decode(data)

    def test_a_notice_that_is_too_large_is_not_parsed(self):
        with pytest.raises(NoticeError, match="200,001 bytes, expected ≤ 200,000"):
            decode(b"[" * (MAX_NOTICE + 1))

    @pytest.mark.parametrize(
        "change",
        [
            lambda text: text.replace(",", ", ", 1),
            lambda text: text + "\n",
            lambda text: text.replace("dice", "d\\u0069ce"),
            lambda text: text.replace('"version":1', '"version":1.0'),
            lambda text: dumps(dict(reversed(json.loads(text).items()))),
            lambda text: dumps(json.loads(text) | {"tags": None}),
            lambda text: dumps({k: v for k, v in json.loads(text).items() if k != "signature"}),
        ],
    )
    def test_another_encoding_of_the_same_notice(self, change: Callable[[str], str]):
        text = announced().encode().decode()
        assert change(text) != text
        with pytest.raises(ModuleError):
            decode(change(text).encode())

    BAD: tuple[tuple[str, Any], ...] = (
        *(("task", name) for name in ("", "x" * 101, "a/b", "a\\b", "..", " a", "a\nb", "e\u0301", 7)),
        *(("version", number) for number in (0, -1, 2**31 + 1, 1.5, True, "1")),
        *(("teacher", name) for name in ("", "x" * 65, "a\n")),
        *(("id", text) for text in ("", "A" * 64, "a" * 63, "a" * 64 + "\n")),
        *(("sha256", text) for text in ("", "g" * 64)),
        *(("backbone", text) for text in ("", "b" * 65)),
        *(("size", number) for number in (0, MAX_FILE + 1, LEAF + 1, True)),
        *(("leaves", text) for text in ("", "0" * 63, "0" * 128, "Z" * 64)),
        *(("classes", number) for number in (1, MAX_CLASSES + 1, "2")),
        *(
            ("tags", tags)
            for tags in ([], ["b", "a"], ["a", "a"], ["A"], ["x" * 33], [f"{i}" for i in range(17)], "a")
        ),
        *(("representation", text) for text in ("", "pixels")),
        *(("compact", value) for value in (0, "no")),
        *(("anchors", kinds) for kinds in ([], ["magic"], ["gmmc", "maha", "sketch", "sketch"])),
        *(("signature", text) for text in ("", "0" * 128, "0" * 127)),
        ("colour", "red"),
        ("_fields", 1),
    )

    @pytest.mark.parametrize(("name", "value"), BAD)
    def test_a_field_out_of_bounds_although_it_is_signed(self, name: str, value: Any):
        data = signed_anyhow(announced(), **{name: value})
        if name == "signature":
            data = dumps(fields_of(announced()) | {name: value}).encode()
        with pytest.raises(NoticeError):
            decode(data)

    def test_valid_fields_signed_in_the_same_way_are_accepted(self):
        assert decode(signed_anyhow(announced(), version=7, tags=["a", "b"])).version == 7

    def test_a_file_that_is_larger_than_any_module(self):
        too_large = MAX_FILE + 1
        data = signed_anyhow(announced(), size=too_large, leaves="0" * 64 * -(-too_large // LEAF))
        with pytest.raises(NoticeError, match="size: found 64000001"):
            decode(data)

    @pytest.mark.parametrize("name", sorted(fields_of(announced())))
    def test_a_field_that_is_missing(self, name: str):
        data = signed_anyhow(announced(), **{name: None})
        if name == "signature":
            data = dumps({k: v for k, v in fields_of(announced()).items() if k != name}).encode()
        with pytest.raises(NoticeError):
            decode(data)

    @pytest.mark.parametrize(
        "change",
        [
            {"task": "latin"},
            {"version": 2},
            {"id": "0" * 64},
            {"sha256": "0" * 64},
            {"leaves": "0" * 64},
            {"size": 5},
            {"tags": ["mine"]},
            {"teacher": "bob"},
            {"teacher_key": BOB.public_key},
        ],
    )
    def test_a_field_changed_by_someone_else(self, change: dict[str, Any]):
        forged = dumps(dict(sorted((fields_of(announced()) | change).items()))).encode()
        with pytest.raises(NoticeError, match="was not signed by"):
            decode(forged)

    @pytest.mark.parametrize("kind", ["withdrawal", "module", "reply", "link"])
    def test_a_signature_of_another_kind(self, kind: str):
        notice = announced()
        other = notice.model_copy(update={"signature": ALICE.sign(kind, notice.digest)})
        with pytest.raises(NoticeError, match="was not signed by"):
            decode(other.encode())

    @pytest.mark.parametrize("parts", ["a", "ba", "aa", "aab", "acb"])
    def test_a_link_with_one_part_or_with_unordered_or_repeated_parts(self, parts: str):
        made = link("dice", 1, ["a" * 64, "b" * 64], ALICE)
        with pytest.raises(NoticeError, match="ids in order, each once"):
            decode(signed_anyhow(made, parts=[letter * 64 for letter in parts]))
        assert decode(signed_anyhow(made, parts=[letter * 64 for letter in "abc"])).kind == "link"

    def test_a_withdrawal_made_of_an_announcement(self):
        """The kind is signed too, even if all fields are the same."""
        kept = {name: value for name, value in fields_of(announced()).items() if name in Withdrawal.model_fields}
        with pytest.raises(NoticeError, match="was not signed by"):
            decode(dumps(dict(sorted((kept | {"kind": "withdrawal"}).items()))).encode())


class TestRank:
    RIVALS = st.builds(announced, version=st.integers(1, 3), data=st.sampled_from([b"a", b"b"])) | st.builds(
        withdraw, st.just("dice"), st.integers(1, 3), st.just(ALICE), st.sampled_from([None, "a", "b"])
    )

    @QUICK
    @given(st.lists(RIVALS, min_size=3, max_size=3))
    def test_is_a_total_order(self, notices: list[Notice]):
        a, b, c = notices
        assert (a.rank < b.rank) + (a.rank == b.rank) + (a.rank > b.rank) == 1
        assert (a.rank == b.rank) == (a.digest == b.digest)
        assert not (a.rank < b.rank < c.rank) or a.rank < c.rank

    def test_of_a_withdrawal_is_above_its_version_and_below_the_next(self):
        ranks = [
            announced(version=1).rank,
            withdraw("dice", 1, ALICE).rank,
            announced(version=2).rank,
            withdraw("dice", 10, ALICE).rank,
        ]
        assert ranks == sorted(ranks)

    def test_of_two_modules_with_the_same_version_is_by_id_as_in_the_bank(self):
        notices = [announced(id=f"{number:064x}", data=bytes([number])) for number in range(9)]
        assert sorted(notices, key=lambda notice: notice.rank) == notices
