"""A partly fetched file: in any order of arrival, only announced bytes are kept, and none twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from notices import announced

from skillmesh.mesh.shelf import Partial
from skillmesh.module.notice import LEAF, Announcement

SIZES = st.integers(1, 6 * LEAF) | st.sampled_from([1, LEAF - 1, LEAF, LEAF + 1, 3 * LEAF])
PIECES = st.lists(st.integers(1, 4 * LEAF), min_size=1, max_size=30)
FEW = settings(max_examples=80, deadline=None)


def a_file(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def fetched(partial: Partial, data: bytes, most: int = 2 * LEAF) -> int:
    """Fill all gaps; return the number of bytes."""
    count = 0
    while gap := partial.claim(most):
        offset, length = gap
        assert partial.fill(offset, data[offset : offset + length])
        count += length
    return count


@pytest.fixture
def data() -> bytes:
    """Return the data of three leaves and a short one."""
    return a_file(3 * LEAF + 100)


@pytest.fixture
def announcement(data: bytes) -> Announcement:
    return announced(data=data)


@FEW
@given(SIZES, PIECES, st.randoms(use_true_random=False))
def test_pieces_of_any_size_in_any_order_make_the_file(size: int, pieces: list[int], chance: random.Random):
    data = a_file(size)
    with TemporaryDirectory() as folder:
        partial = Partial(Path(folder), announced(data=data))
        under_way: list[tuple[int, int]] = []
        claimed: set[int] = set()
        while not partial.complete:
            gap = partial.claim(chance.choice(pieces))
            if gap is not None:
                span = set(range(gap[0], sum(gap)))
                assert not span & claimed, "asked for twice"
                claimed |= span
                under_way.append(gap)
            if gap is None or chance.random() < 0.5:
                offset, length = under_way.pop(chance.randrange(len(under_way)))
                assert partial.fill(offset, data[offset : offset + length])
        assert claimed == set(range(size))
        assert partial.claim(LEAF) is None
        assert partial.read() == data


@FEW
@given(SIZES, st.data())
def test_a_wrong_byte_is_refused_and_nothing_of_the_piece_is_stored(size: int, drawn: st.DataObject):
    data = a_file(size)
    with TemporaryDirectory() as folder:
        partial = Partial(Path(folder), announced(data=data))
        offset, length = partial.claim(drawn.draw(st.integers(1, 4 * LEAF))) or (0, 0)
        bad = bytearray(data[offset : offset + length])
        bad[drawn.draw(st.integers(0, length - 1))] ^= drawn.draw(st.integers(1, 255))
        assert not partial.fill(offset, bytes(bad))
        assert not partial.path.exists()
        partial.unclaim(offset, length)
        assert fetched(partial, data) == size
        assert partial.read() == data


@FEW
@given(SIZES, st.data())
def test_after_any_damage_only_the_damaged_leaves_are_missing(size: int, drawn: st.DataObject):
    data = a_file(size)
    with TemporaryDirectory() as folder:
        announcement = announced(data=data)
        partial = Partial(Path(folder), announcement)
        fetched(partial, data)
        cut = drawn.draw(st.integers(0, size))
        tail = drawn.draw(st.binary(max_size=50))
        damaged = data[:cut] + tail
        partial.path.write_bytes(damaged)
        leaves = range(0, size, LEAF)
        missing = [
            start for start in leaves if data[start : start + LEAF] != damaged[: len(data)][start : start + LEAF]
        ]
        again = Partial(Path(folder), announcement)
        assert again.complete == (not missing)
        assert fetched(again, data) == sum(min(LEAF, size - start) for start in missing)
        assert again.read() == data


class TestClaims:
    def gaps(self, partial: Partial, most: int) -> Iterator[tuple[int, int]]:
        while gap := partial.claim(most):
            yield gap

    def test_are_whole_leaves_and_the_last_one_is_short(self, tmp_path: Path, announcement: Announcement):
        partial = Partial(tmp_path, announcement)
        assert list(self.gaps(partial, 1)) == [(0, LEAF), (LEAF, LEAF), (2 * LEAF, LEAF), (3 * LEAF, 100)]

    def test_are_as_large_as_allowed(self, tmp_path: Path, announcement: Announcement):
        assert list(self.gaps(Partial(tmp_path, announcement), 3 * LEAF - 1)) == [
            (0, 2 * LEAF),
            (2 * LEAF, LEAF + 100),
        ]

    def test_that_were_released_are_handed_out_again(self, tmp_path: Path, announcement: Announcement):
        partial = Partial(tmp_path, announcement)
        first, second = partial.claim(LEAF), partial.claim(2 * LEAF)
        assert second == (LEAF, 2 * LEAF)
        partial.unclaim(*second)
        assert first == (0, LEAF)
        assert list(self.gaps(partial, 4 * LEAF)) == [(LEAF, 2 * LEAF + 100)]

    def test_end_at_leaves_already_present(self, tmp_path: Path, announcement: Announcement, data: bytes):
        partial = Partial(tmp_path, announcement)
        gaps = list(self.gaps(partial, LEAF))
        partial.fill(LEAF, data[LEAF : 2 * LEAF])
        for gap in (gaps[0], gaps[2]):
            partial.unclaim(*gap)
        assert list(self.gaps(partial, 4 * LEAF)) == [(0, LEAF), (2 * LEAF, LEAF)]


def test_a_piece_that_is_too_long_too_short_or_in_the_wrong_place_is_refused(tmp_path: Path, announcement, data):
    partial = Partial(tmp_path, announcement)
    assert not partial.fill(3 * LEAF, data[3 * LEAF :] + b"x")
    assert not partial.fill(0, data[: LEAF - 1])
    assert not partial.fill(LEAF, data[:LEAF])
    assert not partial.fill(4 * LEAF, b"beyond the end")
    assert fetched(partial, data) == len(data)


def test_received_pieces_are_not_fetched_again(tmp_path: Path, announcement: Announcement, data: bytes):
    partial = Partial(tmp_path, announcement)
    partial.fill(LEAF, data[LEAF : 2 * LEAF])
    again = Partial(tmp_path, announcement)
    assert not again.complete
    assert fetched(again, data) == len(data) - LEAF


def test_a_file_deleted_meanwhile_is_fetched_from_the_start(tmp_path, announcement, data):
    partial = Partial(tmp_path, announcement)
    partial.fill(0, data[:LEAF])
    partial.path.unlink()
    partial.fill(LEAF, data[LEAF : 2 * LEAF])
    assert fetched(partial, data) == len(data) - LEAF
    assert partial.read() == data


def test_each_module_has_its_own_file_which_is_removed_at_the_end(tmp_path: Path):
    one, two = announced(data=b"one"), announced(data=b"two")
    partials = [Partial(tmp_path, one), Partial(tmp_path, two)]
    for partial, data in zip(partials, (b"one", b"two"), strict=True):
        partial.fill(0, data)
    assert [partial.read() for partial in partials] == [b"one", b"two"]
    for partial in partials:
        partial.remove()
        partial.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("most", "length"),
    [(1, LEAF), (LEAF, LEAF), (2 * LEAF - 1, LEAF), (2 * LEAF, 2 * LEAF), (99 * LEAF, 3 * LEAF + 100)],
)
def test_a_claim_covers_as_many_leaves_as_allowed(
    tmp_path: Path, announcement: Announcement, most: int, length: int
):
    """A round trip for each leaf would make a fast connection as slow as a slow one."""
    assert Partial(tmp_path, announcement).claim(most) == (0, length)


def test_a_claim_ends_where_another_begins(tmp_path: Path, announcement: Announcement):
    partial = Partial(tmp_path, announcement)
    assert partial.claim(LEAF) == (0, LEAF)
    assert partial.claim(LEAF) == (LEAF, LEAF)
    partial.unclaim(0, LEAF)
    assert partial.claim(4 * LEAF) == (0, LEAF)
    assert partial.claim(4 * LEAF) == (2 * LEAF, LEAF + 100)
