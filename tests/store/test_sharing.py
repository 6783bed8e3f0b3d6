"""Tasks that are not shared: what was chosen outlives new versions, a lost ledger and a damaged file."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillmesh.core import Core
from skillmesh.errors import AgentError, ArgumentError, UnknownTaskError
from skillmesh.mesh.repair import repair
from skillmesh.module.notice import Withdrawal
from skillmesh.store.sharing import FOLDER, Unshared


@pytest.fixture
def core(tmp_path: Path) -> Core:
    return Core.open(tmp_path / "home")


def announced(core: Core) -> set[str]:
    return {notice.task for notice in core.ledger.view().believed}


def test_a_task_is_shared_unless_it_is_learned_otherwise(core: Core, tiny_tasks: Path):
    core.learn(tiny_tasks / "dice")
    core.learn(tiny_tasks / "shapes", sharing="later")
    assert (core.sharing("dice"), core.sharing("shapes")) == ("shared", "later")
    assert announced(core) == {"dice"}


def test_new_versions_keep_the_choice_and_sharing_announces_the_newest(core: Core, tiny_tasks: Path):
    core.learn(tiny_tasks / "dice", sharing="never")
    core.learn(tiny_tasks / "dice", replace=True)
    core.continue_task("dice", tiny_tasks / "dice")
    assert (core.sharing("dice"), announced(core)) == ("never", set())
    core.choose_sharing("dice", "shared")
    (notice,) = core.ledger.view().believed
    assert notice.version == core.bank.find("dice").card.version == 3


def test_what_was_shared_cannot_be_made_private(core: Core, tiny_tasks: Path):
    core.learn(tiny_tasks / "dice")
    with pytest.raises(AgentError, match=r"was shared already.*withdraw"):
        core.choose_sharing("dice", "later")
    assert core.sharing("dice") == "shared"


def test_only_own_tasks_have_a_choice(core: Core, tiny_tasks: Path):
    with pytest.raises(UnknownTaskError, match=r"has taught no task 'dice'.*none"):
        core.sharing("dice")
    with pytest.raises(ArgumentError, match="sharing"):
        core.learn(tiny_tasks / "dice", sharing="sometimes")


def test_a_private_task_is_not_merged(core: Core, tmp_path: Path, tiny_tasks: Path):
    other = Core.open(tmp_path / "other")
    other.learn(tiny_tasks / "dice")
    core.learn(tiny_tasks / "dice", sharing="later")
    theirs = core.import_file(other.export("dice", tmp_path))
    mine = core.identity.public_key
    with pytest.raises(AgentError, match=r"'dice' is not shared.*share it first"):
        core.merge([f"dice@{mine}", f"dice@{theirs.card.teacher_key}"])


@pytest.mark.parametrize("damage", ["", "shared", "\0\0", "🤷"])
def test_a_damaged_file_makes_nothing_public(tmp_path: Path, damage: str):
    unshared = Unshared(tmp_path)
    unshared.choose("dice", "later")
    (file,) = (tmp_path / FOLDER).iterdir()
    file.write_text(damage)
    assert unshared.of("dice") == "never"
    assert file.stat().st_mode & 0o077 == 0


def test_the_command_shows_and_changes_the_choice(core: Core, tiny_tasks: Path, command):
    core.learn(tiny_tasks / "dice", sharing="later")
    assert command("sharing", "dice", "--home", core.home).out.strip() == "later"
    assert command("sharing", "dice", "shared", "--home", core.home).out.strip() == "shared"
    assert announced(Core(core.home)) == {"dice"}


def test_later_and_never_can_always_be_exchanged(core: Core, tiny_tasks: Path):
    core.learn(tiny_tasks / "dice")
    core.withdraw("dice")
    core.learn(tiny_tasks / "dice", sharing="never")
    core.choose_sharing("dice", "later")
    assert core.sharing("dice") == "later"
    assert all(isinstance(notice, Withdrawal) for notice in core.ledger.view().believed)


def test_a_repaired_ledger_announces_no_private_task(core: Core, tiny_tasks: Path):
    core.learn(tiny_tasks / "dice")
    core.learn(tiny_tasks / "shapes", sharing="later")
    core.close()
    core.ledger.path.write_bytes(b"not a ledger" * 1000)
    damaged = Core(core.home)
    result = repair(damaged)
    assert (result.announced, result.others) == (("dice",), 0)
    assert announced(Core(core.home)) == {"dice"}


def test_a_private_task_warm_starts_no_other(core: Core, tiny_tasks: Path):
    module, _ = core.learn(tiny_tasks / "dice", sharing="later")
    assert core._known("shapes") == ()  # a card names the tasks and classes that a warm start came from
    core.choose_sharing("dice", "shared")
    assert core._known("shapes") == (module,)


def test_a_task_composed_of_private_classes_is_private(core: Core, tiny_tasks: Path):
    core.learn(tiny_tasks / "dice", sharing="never")
    core.learn(tiny_tasks / "shapes")
    core.compose("both", ["dice:*", "shapes:*"])
    assert core.sharing("both") == "never"
    assert announced(core) == {"shapes"}
    with pytest.raises(AgentError, match="'both' is composed of classes of 'dice', not shared; share that first"):
        core.choose_sharing("both", "shared")
    core.choose_sharing("dice", "shared")
    core.choose_sharing("both", "shared")
    assert announced(core) == {"dice", "shapes", "both"}
