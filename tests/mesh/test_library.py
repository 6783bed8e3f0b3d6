"""Pieces that a node sends: of currently announced, undamaged files, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from notices import ALICE, announced

from skillmesh.core import Core
from skillmesh.mesh.fetch import Library
from skillmesh.mesh.shelf import Shelf
from skillmesh.mesh.wire import ask_piece, read_piece
from skillmesh.module.notice import LEAF, Announcement, announce, withdraw


@pytest.fixture
def agent(new_agent: Callable[..., Core], tiny_taught: Core) -> Core:
    """Return a student that trusts Tina and knows the announcement of her dice."""
    agent = new_agent("student")
    agent.ledger.trust(tiny_taught.identity.public_key, "tina")
    agent.ledger.merge([dice_of(tiny_taught)], "tina")
    return agent


@pytest.fixture
def dice(skill_files: dict[str, Path]) -> bytes:
    return skill_files["dice"].read_bytes()


def dice_of(teacher: Core) -> Announcement:
    module = teacher.bank.find("dice")
    return announce(module.card, module.id, teacher.bank.file_of(module), teacher.identity)


def lent(library: Library, announcement: Announcement, offset: int, length: int) -> bytes | None:
    reply = library.answer_piece(ask_piece(announcement, offset, length))
    assert reply is not None
    return read_piece(reply, length)


@pytest.mark.parametrize("where", ["bank", "quarantine"])
def test_a_file_comes_in_pieces_from_the_bank_and_from_quarantine(
    agent: Core, tiny_taught: Core, dice: bytes, where: str
) -> None:
    shelf = Shelf(agent.home, agent.ledger)
    if where == "bank":
        agent.import_bytes(dice)
    else:
        shelf.hold(agent.bank.check(dice).id, dice, "it lies")
    library, announcement = Library(agent, shelf), dice_of(tiny_taught)
    step = LEAF
    pieces = [
        lent(library, announcement, start, len(dice[start : start + step])) for start in range(0, len(dice), step)
    ]
    assert len(pieces) > 1
    assert b"".join(piece or b"" for piece in pieces) == dice
    assert library.bytes_sent == len(dice)


def test_missing_files_and_invalid_requests_get_no_piece(agent: Core, tiny_taught: Core, dice: bytes) -> None:
    library, announcement = Library(agent, Shelf(agent.home, agent.ledger)), dice_of(tiny_taught)
    assert lent(library, announcement, 0, LEAF) is None  # it is announced, but has not arrived
    module = agent.import_bytes(dice)
    assert lent(library, announcement, 0, LEAF) == dice[:LEAF]
    assert lent(library, announcement, 1, LEAF) is None
    assert lent(library, announcement, 1, 10) is None  # less than a leaf, and not at the start of one
    assert lent(library, announcement, 0, len(dice) + 1) is None
    assert lent(library, announced(ALICE), 0, 1) is None
    assert library.answer_piece(b"nonsense") is None
    agent.bank._path(module.id).unlink()
    assert lent(library, announcement, 0, LEAF) is None
    assert library.bytes_sent == LEAF


def test_a_file_damaged_on_disk_is_not_sent(agent: Core, tiny_taught: Core, dice: bytes) -> None:
    library, announcement = Library(agent, Shelf(agent.home, agent.ledger)), dice_of(tiny_taught)
    path = agent.bank._path(agent.import_bytes(dice).id)
    path.write_bytes(dice[:LEAF] + bytes([dice[LEAF] ^ 1]) + dice[LEAF + 1 :])
    assert lent(library, announcement, 0, LEAF) == dice[:LEAF]
    assert lent(library, announcement, LEAF, LEAF) is None
    assert lent(library, announcement, 0, 2 * LEAF) is None


def test_a_withdrawn_file_is_not_sent(agent: Core, tiny_taught: Core, dice: bytes) -> None:
    library, announcement = Library(agent, Shelf(agent.home, agent.ledger)), dice_of(tiny_taught)
    agent.import_bytes(dice)
    assert lent(library, announcement, 0, LEAF) == dice[:LEAF]
    agent.ledger.merge([withdraw("dice", 1, tiny_taught.identity)], "tina")
    assert lent(library, announcement, 0, LEAF) is None
