"""Valid public keys: no point for which signatures can be forged, no second encoding of a key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillmesh.errors import AgentError, MeshError, NoticeError
from skillmesh.mesh.certs import create_ca, issue
from skillmesh.mesh.shelf import Shelf, trust
from skillmesh.module import Identity, verify
from skillmesh.module.identity import is_key
from skillmesh.module.notice import decode, withdraw

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
L = 2**252 + 27742317777372353535851937790883648493
ALICE = Identity.create("alice")
DIGEST = "ab" * 32


def add(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Add two points of the Edwards curve."""
    (x1, y1), (x2, y2) = one, other
    k = D * x1 * x2 * y1 * y2
    return (x1 * y2 + x2 * y1) * pow(1 + k, -1, P) % P, (y1 * y2 + x1 * x2) * pow(1 - k, -1, P) % P


def times(factor: int, point: tuple[int, int]) -> tuple[int, int]:
    result = (0, 1)
    for bit in bin(factor)[2:]:
        result = add(result, result)
        if bit == "1":
            result = add(result, point)
    return result


def point_at(y: int) -> tuple[int, int] | None:
    """Return the point with this y coordinate, if there is one."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    for root in (x := pow(square, (P + 3) // 8, P), x * pow(2, (P - 1) // 4, P) % P):
        if root * root % P == square:
            return root, y
    return None


def encoded(x: int, y: int) -> str:
    return (y | (x & 1) << 255).to_bytes(32, "little").hex()


def small_order() -> list[str]:
    """Find the eight points by arithmetic: L times any point has an order of 8 at most."""
    found = set()
    for y in range(2, 60):
        point = point_at(y)
        if point is not None:
            found.add(times(L, point))
            found.add(times(L, (-point[0] % P, y)))
    return sorted(encoded(*point) for point in found)


SMALL = small_order()


def test_there_are_eight_points_of_small_order():
    assert len(SMALL) == 8


@pytest.mark.parametrize("number", range(8))
def test_a_key_of_small_order_is_not_valid(number: int):
    assert not is_key(SMALL[number])


def test_a_signature_forged_for_a_key_of_small_order_is_refused():
    """With the neutral point as key and as the signature's first half, and 0 as the second, any message fits."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    neutral = encoded(0, 1)
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(neutral)).verify(bytes.fromhex(neutral) + bytes(32), b"any")
    assert not verify(neutral, "module", DIGEST, neutral + "00" * 32)


def test_other_encodings_of_a_key_are_refused():
    for number in range(19):
        y = P + number
        for sign in (0, 1 << 255):
            assert not is_key((y | sign).to_bytes(32, "little").hex())
    assert not is_key("AB" + ALICE.public_key[2:])


def test_bytes_that_are_no_point_of_the_curve_are_refused():
    off = next(y for y in range(2, 60) if point_at(y) is None)
    assert not is_key(off.to_bytes(32, "little").hex())


@given(st.binary(min_size=32, max_size=32))
def test_the_keys_of_all_agents_are_accepted(secret: bytes):
    assert is_key(Identity("x", secret).public_key)


def test_a_second_signature_derived_from_a_valid_one_is_refused():
    """S + L satisfies the same equation; only S below L counts."""
    signature = ALICE.sign("module", DIGEST)
    assert verify(ALICE.public_key, "module", DIGEST, signature)
    first, second = signature[:64], int.from_bytes(bytes.fromhex(signature[64:]), "little")
    other = (second + L).to_bytes(32, "little").hex()
    assert not verify(ALICE.public_key, "module", DIGEST, first + other)


def test_a_notice_of_a_key_of_small_order_is_refused():
    neutral = encoded(0, 1)
    notice = withdraw("dice", 1, ALICE).model_copy(
        update={"teacher_key": neutral, "signature": neutral + "00" * 32}
    )
    with pytest.raises(NoticeError, match="was not signed by"):
        decode(notice.encode())


@pytest.mark.parametrize("number", range(8))
def test_a_key_of_small_order_cannot_be_trusted_or_certified(
    number: int, new_agent: Callable[..., Any], command: Callable[..., Any], tmp_path: Path
):
    agent = new_agent("student")
    with pytest.raises(AgentError, match="is not a public key; expected 64 hex digits"):
        trust(agent, Shelf(agent.home, agent.ledger), SMALL[number], "eve")
    assert not agent.ledger.view().trusted
    if number:
        return
    ran = command("trust", "add", SMALL[number], "--home", agent.home)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    create_ca(tmp_path / "ca")
    with pytest.raises(MeshError, match="expected its public key"):
        issue(tmp_path / "ca", SMALL[number], "eve", tmp_path / "out")
