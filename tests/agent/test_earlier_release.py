"""Files of an earlier release still open, import and answer the same.

`tests/fixtures/release-0.1` was made by commit cd30a09, the last one before the packages were rearranged; make.txt
beside it is the program that made it. Its modules were learned with the calibration that was shipped then.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from earlier import CALIBRATION, RELEASE, answers_as_before, copy_home, files_in
from running import Ran, failed

from skillmesh.backbone.backbone import backbone_fingerprint, load_calibration
from skillmesh.backbone.calibration import Calibration
from skillmesh.common.config import AgentConfig
from skillmesh.core import Core
from skillmesh.errors import BackboneMismatchError, WriteError

pytestmark = pytest.mark.long

KEPT = {"agent.json", "calibration.safetensors"}
"""The files of a home that are written when it is opened for the first time."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return copy_home(tmp_path / "home")


@pytest.fixture
def old(home: Path, one_network: None) -> Core:
    return Core(home)


def test_a_home_of_an_earlier_release_answers_as_it_did(old: Core) -> None:
    assert {module.card.task for module in old.bank} == {"shapes", "dice"}
    assert old.bank.find("dice").card.note == "from the release before"
    answers_as_before(old)


def test_a_home_of_an_earlier_release_can_learn_more(old: Core, tiny_tasks: Path) -> None:
    old.learn(tiny_tasks / "latin")
    assert {module.card.task for module in old.tasks()} == {"shapes", "dice", "latin"}
    assert old.forget("shapes").card.task == "shapes"


def test_a_home_of_an_earlier_release_keeps_its_calibration_and_says_so_once(
    home: Path, one_network: None, caplog: pytest.LogCaptureFixture
) -> None:
    before = files_in(home)
    Core(home).close()
    assert [record.getMessage() for record in caplog.records] == [
        f"{home} keeps the calibration of an earlier release, with which its tasks were learned; to move it to "
        "the new one, run `skillmesh renew` with the folders of its tasks"
    ]
    after = files_in(home)
    assert {name for name in after if after[name] != before.get(name)} == KEPT
    assert (home / "calibration.safetensors").read_bytes() == CALIBRATION.read_bytes()
    assert {oct((home / name).stat().st_mode & 0o777) for name in KEPT} == {oct(0o600)}
    settings = {"calibration": Path("calibration.safetensors")}
    assert AgentConfig.load(home) == AgentConfig.load(RELEASE / "home").model_copy(update=settings)
    caplog.clear()
    again = Core(home)
    assert caplog.records == []
    assert files_in(home) == after
    assert again.calibration.fingerprint == Calibration.load(CALIBRATION).fingerprint
    answers_as_before(again)


def test_a_home_without_modules_uses_the_new_calibration(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.rmtree(home / "bank")
    agent = Core(home)
    assert agent.calibration.fingerprint == load_calibration("lite0").fingerprint
    assert not (home / "calibration.safetensors").exists()
    assert not [record for record in caplog.records if "calibration" in record.getMessage()]


def test_a_damaged_module_does_not_hide_which_calibration_the_others_need(home: Path, one_network: None) -> None:
    (home / "bank" / f"{'00' * 32}.skill").write_bytes(b"no module")
    answers_as_before(Core(home))


@pytest.mark.parametrize("reason", [errno.EACCES, errno.ENOSPC])
def test_a_home_of_an_earlier_release_that_cannot_be_changed_answers_as_it_did(
    home: Path,
    one_network: None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    reason: int,
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise WriteError(f"cannot write {path}: {os.strerror(reason)}", reason)

    monkeypatch.setattr("skillmesh.store.home.write_whole", refuse)
    monkeypatch.setattr("skillmesh.common.config.write_whole", refuse)
    before = files_in(home)
    answers_as_before(Core(home))
    assert files_in(home) == before
    assert caplog.records == []


def test_a_module_of_an_earlier_release_is_refused_with_the_new_calibration(
    new_agent: Callable[..., Core], command: Callable[..., Ran]
) -> None:
    agent = new_agent("bob")
    earlier, ours = map(backbone_fingerprint, (Calibration.load(CALIBRATION), load_calibration("lite0")))
    failed(
        command("import", RELEASE / "dice.skill", "--home", agent.home),
        f"the module 'dice' was made for backbone {earlier} (lite0), this agent's is {ours}; modules work only on "
        "the backbone that they were learned on; it has the calibration of an earlier release; its teacher can "
        "move to that of this release with the command `renew`; ask for it again then",
    )
    assert not list(agent.bank)


def test_a_module_of_this_release_is_refused_with_the_earlier_calibration(
    old: Core, skill_files: dict[str, Path]
) -> None:
    with pytest.raises(
        BackboneMismatchError, match=r"of this release, and .* move this agent with `skillmesh renew`"
    ):
        old.import_file(skill_files["latin"])
    answers_as_before(old)


def test_a_module_of_an_earlier_release_is_imported_and_answers_with_its_calibration(
    new_agent: Callable[..., Core],
) -> None:
    agent = new_agent("bob", calibration=CALIBRATION)
    assert agent.import_file(RELEASE / "dice.skill").card.teacher == "home"
    answers_as_before(agent, "dice")
