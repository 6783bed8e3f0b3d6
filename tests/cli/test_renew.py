"""`skillmesh renew` moves an agent of an earlier release to this release's calibration, or changes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from adapted import KINDS, adapted_files
from earlier import ANSWERS, CALIBRATION, RELEASE, answers_as_before, copy_home, files_in
from filelock import FileLock
from notices import BOB
from running import Ran, failed
from safetensors.numpy import save_file

from skillmesh.backbone.backbone import backbone_fingerprint, load_calibration
from skillmesh.backbone.spec import CARD, GRAPH, WEIGHTS
from skillmesh.backbone.weights import lite0_weights
from skillmesh.cli.renew import _Task
from skillmesh.common.choices import Adaptation
from skillmesh.common.config import AgentConfig, MeshSettings
from skillmesh.core import Core
from skillmesh.data.folder import open_task
from skillmesh.errors import DataError
from skillmesh.mesh.node import LOCK
from skillmesh.module import Identity, read_card
from skillmesh.module.notice import Slot

Command = Callable[..., Ran]
CURRENT = "this agent uses the calibration of this release already; nothing is to be done"


@pytest.fixture
def home(tmp_path: Path, one_network: None) -> Path:
    return copy_home(tmp_path / "home")


@pytest.fixture
def folders(demo_tasks: Path, tmp_path: Path) -> Path:
    """Return a folder with the two tasks of the home, with the classes that these have."""
    for name in ("shapes", "dice"):
        for split in ("train", "val", "test"):
            for folder in sorted((demo_tasks / name / split).iterdir())[:3]:
                shutil.copytree(folder, tmp_path / "tasks" / name / split / folder.name)
    return tmp_path / "tasks"


def is_unchanged(home: Path, before: dict[str, bytes]) -> bool:
    """Return whether a home is as it was, with nothing new beside it."""
    beside = [path.name for path in home.parent.iterdir() if path.name.startswith(f"{home.name}-")]
    return files_in(home) == before and not beside


# Refusals, before anything is learned.


@pytest.mark.parametrize("settings", [{}, {"calibration": CALIBRATION.parents[1] / "lite0.safetensors"}])
def test_an_agent_with_the_current_calibration_is_refused(new_agent, command: Command, settings):
    agent = new_agent(**settings)
    before = files_in(agent.home)
    failed(command("renew", "--home", agent.home), CURRENT)
    failed(command("renew", "no such folder", "--home", agent.home), CURRENT)
    assert is_unchanged(agent.home, before)
    assert command("renew", "--home", agent.home, "--json").json["error"] == CURRENT


def test_a_folder_without_an_agent_is_refused_and_stays_empty(command: Command, tmp_path: Path):
    failed(command("renew", "--home", tmp_path / "none"), "there is no agent at")
    assert not (tmp_path / "none").exists()


@pytest.fixture
def too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillmesh.core.Core.learn", lambda *_, **__: pytest.fail("too late"))


@pytest.fixture
def opened(home: Path) -> dict[str, bytes]:
    """Return the home's files once it has been opened and has kept its calibration."""
    Core(home).close()
    return files_in(home)


def test_missing_folders_are_named_and_nothing_changes(
    too_late: None, opened: dict[str, bytes], home: Path, folders: Path, command: Command
):
    hint = "name their folders too (a folder, or a link to it, has its task's name), or leave these tasks behind"
    both = "no folder holds the images of 'dice', 'shapes', which this agent has taught"
    failed(command("renew", "--home", home), both, hint)
    failed(command("renew", folders / "dice", "--home", home), "no folder holds the images of 'shapes', which")
    failed(command("renew", folders / "no", "--home", home), "there is nothing at")
    failed(
        command("renew", folders / "dice", "--drop", "shape", "--home", home),
        "--drop names 'shape'; expected tasks that this agent has taught: dice, shapes",
    )
    shutil.copytree(folders / "dice", folders / "more" / "dice")
    failed(command("renew", folders, folders / "more", "--home", home), "two tasks are named 'dice'")
    assert is_unchanged(home, opened)


def test_a_folder_that_lacks_classes_of_its_task_is_refused(
    too_late: None, opened: dict[str, bytes], home: Path, tiny_tasks: Path, command: Command
):
    ran = command("renew", tiny_tasks / "dice", tiny_tasks / "shapes", "--home", home)
    failed(
        ran, f"{tiny_tasks / 'shapes'} has no images of 'crescent', expected all 3 classes of the task 'shapes'"
    )
    assert is_unchanged(home, opened)


def test_damaged_modules_are_refused_so_that_none_is_lost(
    too_late: None, opened: dict[str, bytes], home: Path, command: Command
):
    agent = Core(home)
    file = home / "bank" / f"{agent.bank.find('dice').id}.skill"
    agent.close()
    content = file.read_bytes()
    file.write_bytes(content[:-5])
    ran = command("renew", "--drop", "shapes", "--home", home)
    failed(ran, f"{file.name} in {file.parent} cannot be read, so tasks would be lost; put the files back")
    file.write_bytes(content)
    assert is_unchanged(home, opened)


def test_a_home_in_use_by_a_node_is_refused(
    too_late: None, opened: dict[str, bytes], home: Path, folders: Path, command: Command
):
    with FileLock(home / LOCK):
        failed(command("renew", folders, "--home", home), f"a node runs on {home}; stop it first, then renew")
    assert is_unchanged(home, opened)


def test_what_is_in_the_way_is_not_replaced(
    too_late: None, opened: dict[str, bytes], home: Path, folders: Path, command: Command
):
    for name, words in (("before", "the home as it was goes there"), ("renewed", "remove it if a `skillmesh")):
        path = home.with_name(f"home-{name}")
        path.symlink_to("nowhere")
        failed(command("renew", folders, "--home", home), f"{path} is in the way", words)
        path.unlink()
    assert is_unchanged(home, opened)


def test_a_home_that_is_the_root_of_a_disk_is_refused(
    too_late: None, opened: dict[str, bytes], home: Path, folders: Path, command: Command, monkeypatch
):
    monkeypatch.setattr(Path, "is_mount", lambda path: path == home)
    failed(command("renew", folders, "--home", home), f"{home} cannot be renamed: it is the root of a disk; copy")
    assert is_unchanged(home, opened)


# Moving.


@pytest.mark.long
def test_a_home_of_an_earlier_release_is_moved(
    home: Path, folders: Path, new_agent, tiny_tasks: Path, command: Command, caplog, tmp_path: Path
):
    old = Core(home)
    old.ledger.trust(BOB.public_key, "bob")
    old.ledger.forget(Slot(BOB.public_key, "cards"))
    carl = new_agent("carl", calibration=CALIBRATION)
    carl.learn(tiny_tasks / "dice", licence="secret")
    old.import_file(carl.export("dice", tmp_path / "carl.skill"))
    old.learn(tiny_tasks / "latin")
    old.withdraw("latin", "it was wrong")
    old.close()
    MeshSettings.of({"interests": ["d*"]}).save(home)
    (home / "tls" / "deep").mkdir(parents=True)
    (home / "tls" / "deep" / "ca.pem").write_text("a certificate")
    before = files_in(home)
    ran = command("renew", folders, "--home", home)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert [line.partition(",")[0] for line in lines[:2]] == [
        f"learned {task!r} again: version 2" for task in ("shapes", "dice")
    ]
    assert all(" 3 classes, validation accuracy " in line and " before)" in line for line in lines[:2])
    assert lines[2:] == [
        "fetched again once their teachers have moved too: dice",
        f"the home as it was is {home}-before",
    ]

    caplog.clear()
    agent = Core(home)
    assert agent.config == old.config.model_copy(update={"calibration": None})
    assert agent.bank.backbone == backbone_fingerprint(load_calibration("lite0"))
    assert agent.identity.public_key == old.identity.public_key
    assert dict(agent.ledger.view().trusted) == {BOB.public_key: "bob"}
    assert agent.ledger.view().forgotten == {Slot(BOB.public_key, "cards")}
    assert {module.card.task: module.card.version for module in agent.bank} == {"dice": 2, "shapes": 2}
    dice = agent.bank.find("dice").card
    assert (dice.licence, dice.note, dice.tags) == (None, "from the release before", ("demo",))
    assert (dice.classes, dice.views) == (("five", "four", "one"), 0.34)
    assert MeshSettings.load(home).interests == ("d*",)
    assert (home / "tls/deep/ca.pem").read_text() == "a certificate"
    assert {path.name for path in home.iterdir()} == {
        *("agent.json", "bank", "key.pem", "ledger.sqlite", "mesh.json", "tls", "validation")
    } | {path.name for path in home.glob("ledger.sqlite-*")}
    assert [oct(path.stat().st_mode & 0o077) for path in home.rglob("*") if path.stat().st_mode & 0o077] == []
    found = [agent.answer(RELEASE / "images" / name) for name in ANSWERS]
    assert [(answer.best.task, answer.best.label) for answer in found] == [
        (answer["task"], answer["label"]) for answer in ANSWERS.values()
    ]
    assert agent.learn(tiny_tasks / "latin")[0].card.version == 2
    announced = {slot.task: notice.version for slot, notice in agent.ledger.view().known.items()}
    assert announced == {"dice": 2, "shapes": 2, "latin": 2}

    kept = Path(f"{home}-before")
    assert files_in(kept) == before
    as_it_was = Core(kept)
    assert as_it_was.forget("dice@carl").card.licence == "secret"
    answers_as_before(as_it_was)
    assert caplog.records == []
    failed(command("renew", folders, "--home", home), CURRENT)


@pytest.mark.long
def test_json_tells_what_was_learned_and_what_was_left_behind(home: Path, folders: Path, command: Command):
    old = Core(home)
    old.compose("mixed", ["dice:one", "shapes:arrow"])
    old.close()
    before = files_in(home)
    failed(
        command("renew", folders, "--home", home),
        "no folder holds the images of 'mixed', which this agent has taught",
        "or leave these tasks behind with --drop; 'mixed' can be composed again afterwards",
    )
    assert is_unchanged(home, before)
    ran = command("renew", folders / "dice", "--drop", "shapes", "--drop", "mixed", "--home", home, "--json")
    assert ran.json == {
        "learned": ["dice"],
        "left_behind": ["mixed", "shapes"],
        "to_fetch": [],
        "to_merge": [],
        "before": f"{home}-before",
    }
    agent = Core(home)
    assert [(module.card.task, module.card.version) for module in agent.bank] == [("dice", 2)]
    assert agent.learn(folders / "shapes")[0].card.version == 2


@pytest.mark.long
def test_an_agent_that_has_taught_nothing_needs_no_folder(new_agent, home: Path, command: Command, tmp_path: Path):
    agent = new_agent("bob", calibration=CALIBRATION)
    agent.import_file(RELEASE / "dice.skill")
    agent.close()
    ran = command("renew", "--home", agent.home, "--json")
    assert (ran.json["learned"], ran.json["to_fetch"]) == ([], ["dice"])
    assert list(Core(agent.home).bank) == []


@pytest.mark.long
def test_merged_tasks_are_named(new_agent, home: Path, folders: Path, command: Command, tmp_path: Path):
    carl = new_agent("carl", calibration=CALIBRATION)
    carl.learn(folders / "dice")
    old = Core(home)
    old.import_file(carl.export("dice", tmp_path / "carl.skill"))
    old.merge(["dice@home", "dice@carl"], "all dice")
    old.close()
    ran = command("renew", folders, "--home", home)
    assert "to be merged again once all parts are here: all dice" in ran.out
    assert Core(home).merged() == []


@pytest.mark.long
@pytest.mark.parametrize("given", ["--home", "SKILLMESH_HOME"])
def test_a_link_to_the_home_stays_a_link(
    home: Path, folders: Path, command: Command, tmp_path, monkeypatch, given
):
    link = tmp_path / "elsewhere" / "agent"
    link.parent.mkdir()
    link.symlink_to(home)
    words = ["renew", folders, "--json"]
    if given == "--home":
        words += ["--home", link]
    else:
        monkeypatch.setenv("SKILLMESH_HOME", str(link))
    ran = command(*words)
    assert ran.json["before"] == f"{home}-before"
    assert link.readlink() == home
    assert [path.name for path in link.parent.iterdir()] == ["agent"]
    assert AgentConfig.load(link).calibration is None
    answers_as_before(Core(Path(f"{home}-before")))


@pytest.mark.long
def test_files_that_are_not_the_agents_stay_where_they_are(
    home: Path, folders: Path, command: Command, monkeypatch
):
    folders.rename(home / "bank of photos")
    (home / "photo.jpg").write_bytes(b"a photo")
    home.chmod(0o755)
    monkeypatch.chdir(home)
    ran = command("renew", "bank of photos", "--home", ".")
    assert ran.code == 0, ran.err
    assert (home / "photo.jpg").read_bytes() == b"a photo"
    assert sorted(path.name for path in (home / "bank of photos").iterdir()) == ["dice", "shapes"]
    assert home.stat().st_mode & 0o777 == 0o755
    assert {module.card.version for module in Core(home).bank} == {2}
    assert not {"photo.jpg", "bank of photos"} & {path.name for path in Path(f"{home}-before").iterdir()}


@pytest.mark.long
def test_a_link_with_the_tasks_name_finds_its_folder(home: Path, folders: Path, command: Command):
    (folders / "dice").rename(folders.parent / "my photos")
    (folders.parent / "dice").symlink_to("my photos")
    ran = command("renew", folders / "shapes", folders.parent / "dice", "--home", home, "--json")
    assert ran.json["learned"] == ["shapes", "dice"]


def test_an_agent_of_an_exported_network_is_moved_to_the_calibration_beside_it(command: Command, tmp_path: Path):
    home, network, shipped = tmp_path / "agent", tmp_path / "network", CALIBRATION.parents[1]
    network.mkdir()
    graph, card = (shipped.parent / "networks" / "lite0" / name for name in (GRAPH, CARD))
    shutil.copy(graph, network)
    about = json.loads(card.read_text())
    about["spec"]["name"] = "ours"
    (network / CARD).write_text(json.dumps(about))
    names = (name for name, _shape in about["state"])
    save_file(dict(zip(names, lite0_weights().values(), strict=True)), network / WEIGHTS)
    shutil.copy(CALIBRATION, network / "calibration.safetensors")
    assert command("init", "--home", home, "--backbone", network).code == 0
    earlier = Core(home).bank.backbone
    shutil.copy(shipped / "lite0.safetensors", network / "calibration.safetensors")
    ran = command("renew", "--home", home)
    assert ran.code == 0, ran.err
    agent = Core(home)
    assert agent.bank.backbone == backbone_fingerprint(load_calibration("ours", None, network)) != earlier
    assert agent.config.weights == network
    failed(command("renew", "--home", home), CURRENT)


# Nothing changes if anything fails.


@pytest.mark.long
@pytest.mark.parametrize("error", [DataError("no image could be read"), KeyboardInterrupt(), OSError(28, "full")])
def test_a_failure_leaves_everything_as_it_was(
    opened: dict[str, bytes], home: Path, folders: Path, command: Command, monkeypatch, error: BaseException
):
    learn, calls = Core.learn, []

    def fail_at_the_second(*arguments: object, **options: object) -> object:
        calls.append(arguments)
        if len(calls) > 1:
            raise error
        return learn(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Core, "learn", fail_at_the_second)
        ran = command("renew", folders, "--home", home)
    assert len(calls) == 2
    assert ran.code != 0
    assert ran.out == ""
    assert is_unchanged(home, opened)
    answers_as_before(Core(home))
    assert command("renew", folders, "--home", home).code == 0


@pytest.mark.long
def test_if_the_new_home_cannot_be_put_in_place_the_old_one_returns(
    opened: dict[str, bytes], home: Path, folders: Path, command: Command, monkeypatch
):
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.name == "home-renewed":
            raise OSError(13, "Permission denied", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    ran = command("renew", folders, "--home", home, "--drop", "shapes")
    assert ran.code == 1
    assert "Permission denied" in ran.err
    assert is_unchanged(home, opened)


@pytest.mark.long
@pytest.mark.parametrize("change", ["trust", "learn", "settings", "certificate"])
def test_a_home_that_another_command_changes_meanwhile_is_not_replaced(
    home: Path, folders: Path, tiny_tasks: Path, command: Command, monkeypatch, change: str
):
    learn, other, certificate = Core.learn, Core(home), home / "tls" / "ca.pem"
    certificate.parent.mkdir()
    certificate.write_text("the certificate before")
    changes: dict[str, Callable[[], object]] = {
        "trust": lambda: other.ledger.trust(BOB.public_key, "bob"),
        "learn": lambda: other.learn(tiny_tasks / "latin"),
        "settings": lambda: MeshSettings.of({"interests": ["d*"]}).save(home),
        "certificate": lambda: certificate.write_text("another certificate"),
    }

    def meanwhile(self: Core, *arguments: object, **options: object) -> object:
        if self.home != home:
            changes[change]()
        return learn(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Core, "learn", meanwhile)
        ran = command("renew", folders / "dice", "--drop", "shapes", "--home", home)
    assert ran.code == 1
    assert f"{home} was changed by another command meanwhile, and stays as it is now" in ran.err
    agent = Core(home)
    assert {
        "trust": BOB.public_key in agent.ledger.view().trusted,
        "learn": "latin" in {module.card.task for module in agent.bank},
        "settings": MeshSettings.load(home).interests == ("d*",),
        "certificate": certificate.read_text() == "another certificate",
    } == {each: each == change for each in changes}
    assert not list(home.parent.glob("home-*"))


@pytest.mark.long
def test_a_task_that_is_learned_while_renew_opens_folders_is_not_lost(
    home: Path, folders: Path, tiny_tasks: Path, command: Command, monkeypatch
):
    other = Core(home)

    def meanwhile(*arguments: object, **options: object) -> object:
        if arguments == (folders / "dice",):
            other.learn(tiny_tasks / "latin")
        return open_task(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr("skillmesh.data.folder.open_task", meanwhile)
        ran = command("renew", folders / "dice", "--drop", "shapes", "--home", home)
    assert ran.code == 1
    assert f"{home} was changed by another command meanwhile, and stays as it is now" in ran.err
    assert Core(home).bank.find("latin")
    assert not list(home.parent.glob("home-*"))


def test_a_renew_that_was_killed_between_its_renames_can_be_finished_or_undone(
    home: Path, tiny_tasks: Path, command: Command
):
    key = Identity.load(home / "key.pem").public_key
    assert command("renew", "--drop", "dice", "--drop", "shapes", "--home", home).code == 0
    renewed, before = (home.with_name(f"home-{end}") for end in ("renewed", "before"))
    home.rename(renewed)  # as it was after the first rename
    for words in (("tasks",), ("learn", tiny_tasks / "dice"), ("renew",)):
        failed(
            command(*words, "--home", home),
            f"there is no agent at {home}, since `skillmesh",
            f"renew` was stopped while it moved folders; move {renewed} to {home} to finish it, or {before} to ",
        )
    assert not home.exists(), "a new agent would have another key"
    for moved, tasks in ((before, 2), (renewed, 0)):
        moved.rename(home)
        agent = Core(home)
        assert (agent.identity.public_key, len(agent.tasks())) == (key, tasks)
        agent.close()
        home.rename(moved)


# Tasks with an adaptation.


def test_an_adapted_task_is_adapted_again(tmp_path: Path, tiny_tasks: Path):
    images = open_task(tiny_tasks / "dice")
    for file in adapted_files(tmp_path):
        card = read_card(file)
        assert _Task(card, images).adaptation == Adaptation("auto", KINDS[card.task])
    assert _Task(read_card(RELEASE / "dice.skill"), images).adaptation.mode == "none"


@pytest.mark.long
@pytest.mark.torch
def test_the_adaptation_is_tried_on_the_images(new_agent, home: Path, tiny_tasks: Path, command: Command):
    agent = new_agent("ann", calibration=CALIBRATION)
    agent.learn(tiny_tasks / "dice", adaptation=Adaptation("always", "biases", epochs=1))
    agent.learn(tiny_tasks / "latin", views=2)
    agent.close()
    ran = command("renew", tiny_tasks / "dice", tiny_tasks / "latin", "--home", agent.home)
    assert ran.code == 0, ran.err
    cards = {module.card.task: module.card for module in Core(agent.home).bank}
    assert cards["dice"].trial.startswith("biases: ")
    assert (cards["latin"].trial, cards["latin"].views) == (None, 2)
    assert Identity.load(agent.home / "key.pem").name == "ann"
