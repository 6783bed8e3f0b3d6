"""Messages between agents, as bytes: valid ones are read back unchanged, invalid ones are refused (`LieError`)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from notices import ALICE, BOB, announced

from skillmesh.mesh import wire
from skillmesh.mesh.wire import (
    MAX_DIGEST,
    MAX_NOTICES,
    MAX_PIECE,
    MIN_PIECE,
    NOTICES_AT_ONCE,
    SHORT,
    Hello,
    LieError,
    ask_piece,
    asked_piece,
    read_digest,
    read_notices,
    read_piece,
    short,
    write_digest,
    write_notices,
    write_piece,
)
from skillmesh.module.notice import LEAF, MAX_NOTICE, Notice, withdraw

HELLO = Hello(name="alice", root="ab" * 32, live=3, locators=("tcp/10.0.0.1:7447",), same=False)
KNOWN: list[Notice] = [
    *(announced(identity, f"task {i}") for identity in (ALICE, BOB) for i in range(4)),
    withdraw("old", 2, ALICE, "wrong"),
]
BY_SHORT = {short(notice): notice for notice in KNOWN}
FUZZ = settings(max_examples=300, deadline=None)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
REPLIES = (
    st.binary(max_size=400)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.fixed_dictionaries({}, optional=dict.fromkeys((*Hello.model_fields, "colour"), JSON)).map(
        lambda fields: json.dumps(json.loads(HELLO.model_dump_json()) | fields).encode()
    )
    | st.sampled_from([notice.encode() for notice in KNOWN]).flatmap(
        lambda good: st.builds(
            lambda cut, junk: good[:cut] + junk, st.integers(0, len(good)), st.binary(max_size=9)
        )
    )
)


class TestDigest:
    @given(st.sets(st.sampled_from(sorted(BY_SHORT))), st.integers(0, 10**9))
    def test_lists_known_notices(self, ids: set[bytes], live: int):
        hello = HELLO.model_copy(update={"live": live})
        found = read_digest(write_digest(hello, [BY_SHORT[i] for i in ids]))
        assert found == (hello, ids)

    def test_lists_nothing_for_a_peer_that_knows_the_same(self):
        hello = HELLO.model_copy(update={"same": True})
        assert read_digest(write_digest(hello, KNOWN)) == (hello, frozenset())

    @FUZZ
    @given(REPLIES)
    @example(b"[" * 100_000)
    def test_of_any_bytes_is_read_or_refused(self, body: bytes):
        try:
            found = read_digest(body)
        except LieError:
            return
        assert 0 <= found.hello.live <= 10**9

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(("name", value) for value in ("", "x" * 65, "a\nb", "\u202e", 7, None)),
            *(("root", value) for value in ("", "ab" * 33, "AB" * 32, "ab" * 32 + "\n")),
            *(("live", value) for value in (-1, 10**9 + 1, 1.0, True, "3")),
            *(
                ("locators", value)
                for value in (["x" * 201], ["tcp/1:1"] * 17, ["\x1b[2J"], ["tcp/1:1\n"], "tcp/1:1", [7], None)
            ),
            *(("same", value) for value in (1, "yes", None)),
            ("colour", "red"),
        ],
    )
    def test_with_a_field_out_of_bounds_is_refused(self, name: str, value: Any):
        head = json.dumps(json.loads(HELLO.model_dump_json()) | {name: value}).encode()
        with pytest.raises(LieError, match=f"its digest is malformed .{name}"):
            read_digest(head + b"\n")

    def test_with_a_partial_id_or_with_ids_despite_equal_roots_is_refused(self):
        body = write_digest(HELLO, KNOWN)
        same = HELLO.model_copy(update={"same": True}).model_dump_json().encode() + b"\n"
        for wrong in (body[:-1], body + b"x", same + bytes(SHORT)):
            with pytest.raises(LieError, match="inventory of"):
                read_digest(wrong)

    def test_that_lists_an_id_twice_is_refused(self):
        """Reading it would cost as much as reading a long one, and making it costs little."""
        body = write_digest(HELLO, KNOWN)
        with pytest.raises(LieError, match="lists 1 ids more than once"):
            read_digest(body + body[-SHORT:])

    def test_of_the_maximum_number_of_notices_fits(self):
        largest = HELLO.model_copy(update={"name": "日" * 64, "locators": ("é" * 200,) * 16})
        head = len(write_digest(largest, []))
        assert head + 100 * 1_000 * SHORT < MAX_DIGEST  # a hundred teachers with the maximum of notices


class TestNotices:
    @given(
        st.lists(st.sampled_from(sorted(BY_SHORT)), unique=True),
        st.sets(st.binary(min_size=SHORT, max_size=SHORT)),
    )
    def test_are_those_requested_and_known(self, known: list[bytes], unknown: set[bytes]):
        wanted = [*known, *(unknown - BY_SHORT.keys())]
        found = read_notices(write_notices(b"".join(wanted), BY_SHORT), wanted)
        assert found == [BY_SHORT[i] for i in known]

    @FUZZ
    @given(REPLIES | st.lists(REPLIES, max_size=3).map(b"\n".join))
    @example(b"\n")
    @example(b"\n" * 1000)
    @example(b'{"kind":"withdrawal","\\ud800":1}')
    def test_in_any_bytes_are_valid_or_refused(self, body: bytes):
        try:
            found = read_notices(body, list(BY_SHORT))
        except LieError:
            return
        assert all(notice in KNOWN for notice in found)

    def test_that_were_not_requested_are_refused(self):
        one, two = KNOWN[:2]
        with pytest.raises(LieError, match="1 notices, 1 of them not asked for"):
            read_notices(two.encode(), [short(one)])
        with pytest.raises(LieError, match="2 notices, 0 of them not asked for"):
            read_notices(one.encode() + b"\n" + one.encode(), [short(one)])

    def test_sent_repeatedly_are_verified_once(self, monkeypatch: pytest.MonkeyPatch):
        notice, checked = announced(ALICE, "of a crowd"), []
        monkeypatch.setattr(wire, "decode", lambda data: checked.append(data) or notice)
        for _ in range(5):
            assert read_notices(notice.encode(), [short(notice)]) == [notice]
        assert len(checked) == 1

    def test_that_are_forged_are_refused(self):
        forged = KNOWN[0].encode().replace(b"task 0", b"task 9")
        with pytest.raises(LieError, match=r"sent an invalid notice: .* was not signed by alice"):
            read_notices(forged, [short(KNOWN[0])])

    def test_that_do_not_fit_into_a_reply_come_in_the_next(self):
        size = 64_000_000
        leaves = "0" * 64 * -(-size // LEAF)
        large = [announced(ALICE, f"task {i}", size=size, leaves=leaves) for i in range(12)]
        by_short = {short(notice): notice for notice in large}
        wanted = list(by_short)
        replies = 0
        while wanted:
            body = write_notices(b"".join(wanted), by_short)
            assert len(body) <= MAX_NOTICES
            got = {short(notice) for notice in read_notices(body, wanted)}
            assert got, "asking again would go on for ever"
            wanted = [item for item in wanted if item not in got]
            replies += 1
        assert replies == 2
        assert len(large[0].encode()) < MAX_NOTICE

    def test_in_one_reply_are_limited_in_number(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(wire, "NOTICES_AT_ONCE", 3)
        wanted = b"".join(BY_SHORT)
        assert len(write_notices(wanted, BY_SHORT).split(b"\n")) == 3
        assert NOTICES_AT_ONCE * SHORT < 10_000

    def test_none_are_no_bytes(self):
        assert write_notices(b"", BY_SHORT) == write_notices(b"half an id", BY_SHORT) == b""
        assert read_notices(b"", []) == []


class TestPieces:
    @given(st.integers(0, 2**40), st.integers(1, MAX_PIECE))
    def test_are_requested_by_module_offset_and_length(self, offset: int, length: int):
        announcement = announced()
        assert asked_piece(ask_piece(announcement, offset, length)) == (announcement.digest, offset, length)

    @pytest.mark.parametrize("length", [0, MAX_PIECE + 1, 2**32 - 1])
    def test_of_length_zero_or_above_the_maximum_are_not_sent(self, length: int):
        assert asked_piece(ask_piece(announced(), 0, length)) is None

    @FUZZ
    @given(st.binary(max_size=60))
    def test_requested_by_any_bytes_are_parsed_or_ignored(self, body: bytes):
        asked = asked_piece(body)
        assert asked is None or (len(body) == 44 and len(asked[0]) == 64 and 0 < asked[2] <= MAX_PIECE)

    @given(st.binary(min_size=1, max_size=100))
    def test_are_read_back_unchanged(self, piece: bytes):
        assert read_piece(write_piece(piece), len(piece)) == piece
        assert read_piece(write_piece(None), len(piece)) is None

    @FUZZ
    @given(st.binary(max_size=20), st.integers(1, 20))
    def test_of_another_length_are_refused(self, body: bytes, length: int):
        try:
            piece = read_piece(body, length)
        except LieError:
            assert body != b"-"
            assert len(body) != length + 1 or body[:1] != b"+"
        else:
            assert body == (b"-" if piece is None else b"+" + piece)
            assert piece is None or len(piece) == length

    def test_are_whole_leaves(self):
        assert MIN_PIECE % LEAF == MAX_PIECE % LEAF == 0
