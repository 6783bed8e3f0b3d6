"""One agent, from a folder of images to an answer: what it answers, refuses and shares."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kinds import FITTED
from PIL import Image

from skillmesh import Answer, SkillmeshError
from skillmesh.answering.answering import UNKNOWN_BELOW
from skillmesh.common.config import AgentConfig
from skillmesh.core import Core
from skillmesh.errors import (
    AgentError,
    BackboneMismatchError,
    CalibrationError,
    DataError,
    SettingsMismatchError,
    TaskExistsError,
    UnknownTaskError,
    WithdrawnError,
)
from skillmesh.module.notice import Slot, Withdrawal, announce
from skillmesh.store.home import create_home

NewAgent = Callable[..., Core]


class Counting:
    """A progress object that counts."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.done: list[int] = []

    def start(self, what: str, total: int) -> None:
        self.begun.append((what, total))
        self.done.append(0)

    def advance(self, steps: int) -> None:
        self.done[-1] += steps


@pytest.fixture
def two_images(demo_tasks: Path, tmp_path: Path) -> Path:
    """The smallest possible task: two classes of one image each, and no validation images."""
    for cls in ("circle", "triangle"):
        source = demo_tasks / "shapes/train" / cls / "0.jpg"
        (tmp_path / "least" / cls).mkdir(parents=True)
        shutil.copy(source, tmp_path / "least" / cls)
    return tmp_path / "least"


@pytest.fixture
def broken_task(tiny_tasks: Path, tmp_path: Path) -> Path:
    """Dice, with one training file and one validation file that are not images."""
    folder = tmp_path / "dice"
    shutil.copytree(tiny_tasks / "dice", folder)
    for split in ("train", "val"):
        cls = min((folder / split).iterdir())
        (cls / "broken.png").write_bytes(b"not an image")
    return folder


def share_right(answers: list[Answer], paths: list[Path]) -> float:
    truth = [(path.parts[-4], path.parts[-2]) for path in paths]
    return float(np.mean([(a.best.task, a.best.label) == t for a, t in zip(answers, truth, strict=True)]))


class TestAnswers:
    def test_of_a_mixed_batch_are_right_with_no_task_label(self, taught: Core, mixed: list[Path]):
        answers = taught.answer(mixed)
        assert [a.image for a in answers] == [str(path) for path in mixed]
        assert share_right(answers, mixed) > 0.85
        assert {a.best.task for a in answers} == {"shapes", "dice", "latin", "greek"}

    def test_say_label_task_teacher_and_confidence(self, taught: Core, demo_tasks: Path):
        answer = taught.answer(demo_tasks / "shapes/train/star/0.jpg")
        assert (answer.label, answer.task, answer.teacher) == ("star", "shapes", "alice")
        assert not answer.unknown
        assert not answer.unsure
        assert answer.novelty <= 1
        assert 1 >= answer.known > answer.confidence == answer.best.confidence > 0.5

    def test_have_guesses_in_order_that_are_probabilities(self, taught: Core, mixed: list[Path]):
        for answer in taught.answer(mixed):
            others = [guess.confidence for guess in answer.alternatives]
            assert answer.guesses == (answer.best, *answer.alternatives)
            assert len(others) == 4
            assert others == sorted(others, reverse=True)
            assert all(0 <= p <= 1 for p in (answer.confidence, *others))
            assert answer.confidence + sum(others) <= answer.known + 1e-5
            assert len({(g.task, g.label) for g in answer.guesses}) == 5

    def test_are_more_often_unknown_for_a_task_never_learned(self, taught: Core, mixed, strange):
        known, never = taught.answer(mixed), taught.answer(strange)
        assert np.mean([a.unknown for a in known]) < 0.06 < np.mean([a.unknown for a in never])
        assert np.mean([a.known for a in never]) < 0.75 < 0.9 < np.mean([a.known for a in known])
        for answer in (*known, *never):
            assert (answer.novelty > 1) == (answer.label is None) == (answer.unknown or answer.unsure)
            assert answer.unknown == (answer.novelty > 1 and answer.known < UNKNOWN_BELOW)
        # One in ten known images is as novel as the median of those of the other task, or fewer.
        assert np.quantile([a.novelty for a in known], 0.9) < np.median([a.novelty for a in never])

    def test_that_are_unknown_have_no_label_but_a_best_guess(self, taught: Core, strange: list[Path]):
        answer = next(a for a in taught.answer(strange) if a.unknown)
        assert (answer.label, answer.task, answer.teacher) == (None, None, None)
        assert answer.best.task in {"shapes", "dice", "latin", "greek"}
        assert answer.novelty > 1
        assert (answer.known < UNKNOWN_BELOW, answer.unsure) == (True, False)
        assert answer.as_dict()["label"] is None

    def test_that_are_unsure_have_no_label_but_a_best_guess_too(self, new_agent, taught: Core, mixed: list[Path]):
        home = shutil.copytree(taught.home, new_agent().home, dirs_exist_ok=True)
        AgentConfig.load(home).model_copy(update={"unanswered": 0.5}).save(home)
        careful = Core(home)
        answers, usual = careful.answer(mixed), taught.answer(mixed)
        # By the validation images, half of the images would stay unanswered.
        assert np.mean([a.label is None for a in usual]) < 0.15 < 0.3 < np.mean([a.label is None for a in answers])
        assert [(a.guesses, a.known) for a in answers] == [(a.guesses, a.known) for a in usual]
        answer = max(answers, key=lambda a: a.unsure * a.known)
        assert (answer.label, answer.task, answer.teacher) == (None, None, None)
        assert (answer.unsure, answer.unknown, answer.as_dict()["unsure"]) == (True, False, True)
        assert answer.known > 0.5
        assert answer.best.task == Path(answer.image).parents[2].name
        assert len(answer.as_dict()["guesses"]) == 5

    def test_are_the_same_for_paths_bytes_pillow_and_arrays(self, taught: Core, mixed: list[Path]):
        path = mixed[0]
        with Image.open(path) as image:
            image.load()
        inputs = [path, str(path), path.read_bytes(), image, np.asarray(image)]
        alone = [
            taught.answer(each) for each in inputs
        ]  # BLAS may round a row differently by its position in a batch
        assert len({replace(a, image="same") for a in alone}) == 1
        names = [a.image for a in taught.answer(inputs)]
        assert names == [str(path), str(path), "image 2", "image 3", "image 4"]

    @pytest.mark.torch
    def test_of_tensors_floats_and_batches_are_those_of_the_same_pixels(self, taught: Core, mixed: list[Path]):
        import torch

        with Image.open(mixed[0]) as image:
            pixels = np.asarray(image.convert("RGB"))
        expected = taught.answer(pixels).best
        tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        for same in (tensor, tensor / 255, (pixels / 255).astype(np.float64)):
            assert taught.answer(same).best == expected
        for batch in (pixels[None], tensor[None], torch.stack([tensor, tensor]) / 255):
            answers = taught.answer(batch)
            assert [a.label for a in answers] == [expected.label] * len(batch)
        with pytest.raises(SkillmeshError, match="expected"):
            taught.answer(5)
        with pytest.raises(SkillmeshError, match="expected"):
            next(taught.answer_each(5))

    def test_of_one_image_is_one_answer_and_of_none_an_empty_list(self, taught: Core, mixed: list[Path]):
        assert replace(taught.answer(mixed[0]), novelty=0).image == str(mixed[0])
        assert taught.answer([]) == []

    def test_of_one_unreadable_image_loses_no_other(self, taught: Core, mixed: list[Path]):
        batch = [mixed[0], b"no image", mixed[1], "/nowhere.jpg"]
        answers = taught.answer(batch)
        assert [a.image for a in answers] == [str(mixed[0]), "image 1", str(mixed[1]), "/nowhere.jpg"]
        assert [a.error is None for a in answers] == [True, False, True, False]
        assert answers[0].label is not None
        assert (answers[1].label, answers[1].unknown, answers[1].confidence) == (None, False, 0.0)
        with pytest.raises(DataError, match=r"image 0: not an image"):
            taught.answer(b"no image")
        with pytest.raises(DataError, match=r"image 1 has no answer"):
            _ = answers[1].best

    def test_require_a_learned_task(self, new_agent: NewAgent, mixed: list[Path]):
        with pytest.raises(UnknownTaskError, match=r"knows no task yet; teach it one with agent\.learn, or"):
            new_agent().answer(mixed[0])


class TestFewImages:
    @pytest.mark.parametrize("representation", ["features", "sqrt-features", "descriptor"])
    @pytest.mark.parametrize("mapper", FITTED)
    def test_two_images_make_a_task(self, new_agent: NewAgent, two_images: Path, mapper: str, representation: str):
        agent = new_agent(anchor=mapper, representation=representation)
        module, _ = agent.learn(two_images)
        assert module.card.counts == (1, 1)
        assert module.card.anchors == (mapper,)
        answers = agent.answer(sorted(two_images.glob("*/*")))
        assert [(a.label, a.unknown) for a in answers] == [("circle", False), ("triangle", False)]
        assert all(np.isfinite([g.confidence for g in a.guesses]).all() for a in answers)

    def test_two_images_make_a_compact_task(self, new_agent: NewAgent, two_images: Path):
        agent = new_agent(compact=True)
        module, _ = agent.learn(two_images)
        assert module.card.dim == 1024
        assert agent.answer(two_images / "circle/0.jpg").label == "circle"


def test_compact_modules_are_much_smaller_and_answer_alike(new_agent: NewAgent, taught, demo_tasks, mixed):
    agent = new_agent(compact=True)
    for name in ("shapes", "greek"):
        agent.learn(demo_tasks / name)
        assert agent.bank.find(name).size < taught.bank.find(name).size / 2
    batch = [path for path in mixed if path.parts[-4] in ("shapes", "greek")]
    assert share_right(agent.answer(batch), batch) > 0.8


class TestLearning:
    def test_twice_needs_replace_and_gives_the_next_version(self, new_agent: NewAgent, tiny_tasks: Path):
        agent = new_agent()
        first, _ = agent.learn(tiny_tasks / "dice", licence="CC0-1.0", note="drawn")
        assert (first.card.version, first.card.licence, first.card.note) == (1, "CC0-1.0", "drawn")
        with pytest.raises(TaskExistsError, match=r"'dice' is learned already; .* name, or .*replace=True"):
            agent.learn(tiny_tasks / "dice")
        second, _ = agent.learn(tiny_tasks / "dice", replace=True)
        assert second.card.version == 2
        assert agent.tasks() == [second]
        assert [p.stem for p in agent.bank.folder.glob("*.skill")] == [second.id]

    def test_can_be_under_another_name(self, new_agent: NewAgent, tiny_tasks: Path):
        agent = new_agent()
        for name in ("one", "two"):
            agent.learn(tiny_tasks / "dice", name=name)
        assert [m.card.task for m in agent.tasks()] == ["one", "two"]

    def test_skips_and_lists_what_it_cannot_read(self, new_agent: NewAgent, broken_task: Path):
        module, lesson = new_agent().learn(broken_task)
        assert sorted(u.name.split("/")[0] for u in lesson.unreadable) == ["train", "val"]
        assert all("broken.png" in u.name and u.reason for u in lesson.unreadable)
        assert module.card.counts == (3, 3)
        assert module.card.validation_images == 2

    def test_refuses_a_class_with_no_readable_image(self, new_agent: NewAgent, broken_task: Path):
        agent = new_agent()
        empty = max((broken_task / "train").iterdir())
        for image in empty.iterdir():
            image.write_bytes(b"broken too")
        with pytest.raises(DataError, match=f"no training image of '{empty.name}' in 'dice' can be read"):
            agent.learn(broken_task)
        assert list(agent.bank.folder.glob("*.skill")) == []
        assert agent.tasks() == []

    def test_reports_progress_to_the_end(self, new_agent: NewAgent, tiny_tasks: Path, mixed: list[Path]):
        agent, progress = new_agent(), Counting()
        agent.learn(tiny_tasks / "dice", progress=progress)
        list(agent.answer_each(mixed[:7], progress, 7))
        assert progress.begun == [("dice", 8), ("images", 7)]
        assert progress.done == [8, 7]

    @pytest.mark.sklearn
    def test_notes_the_settings_on_the_card(self, new_agent: NewAgent, two_images: Path):
        agent = new_agent("bob", anchor="gmmc", representation="sqrt-features", clusters=1)
        card = agent.learn(two_images)[0].card
        assert (card.teacher, card.teacher_key) == ("bob", agent.identity.public_key)
        assert (card.backbone, card.backbone_name) == (agent.bank.backbone, "lite0")
        assert (card.representation, card.anchors, card.compact) == ("sqrt-features", ("gmmc",), False)
        assert agent.bank.find("least").tensors["gmmc.mean"].shape == (1, 1280)


class TestForgetting:
    def test_an_unknown_task_lists_the_known_ones(self, tiny_taught: Core):
        with pytest.raises(UnknownTaskError, match=r"no task 'birds' .*: dice, greek, latin, shapes"):
            tiny_taught.forget("birds")

    def test_removes_file_and_answers(self, new_agent: NewAgent, skill_files: dict[str, Path], mixed):
        agent = new_agent()
        for file in skill_files.values():
            agent.import_file(file)
        gone = agent.forget("dice")
        assert gone.id not in {p.stem for p in agent.bank.folder.iterdir()}
        assert all(g.task != "dice" for a in agent.answer(mixed) for g in a.guesses)


def test_answers_are_outdated_until_the_mapper_is_rebuilt_from_the_bank(
    new_agent: NewAgent, skill_files: dict[str, Path]
):
    agent = new_agent("olaf")
    agent.import_file(skill_files["dice"])
    assert agent.outdated is False  # no question yet
    agent.mapper()
    assert agent.outdated is False
    agent.import_file(skill_files["latin"])
    assert agent.outdated is True
    agent.mapper()
    assert agent.outdated is False


class TestSharing:
    def test_a_module_is_exported_and_imported_byte_for_byte(
        self, new_agent: NewAgent, tiny_taught: Core, tmp_path: Path
    ):
        bob = new_agent("bob")
        tiny_taught.export("dice", tmp_path / "first.skill")
        module = bob.import_file(tmp_path / "first.skill")
        bob.export("dice", tmp_path / "second.skill")
        assert (tmp_path / "first.skill").read_bytes() == (tmp_path / "second.skill").read_bytes()
        assert module == tiny_taught.bank.find("dice")
        assert bob.import_file(tmp_path / "second.skill") == module  # importing it again changes nothing
        assert len(bob.bank) == 1

    def test_a_student_answers_as_its_teacher_does(self, new_agent: NewAgent, taught: Core, mixed, tmp_path):
        student = new_agent("student")
        for module in taught.tasks():
            taught.export(module.card.task, tmp_path)
            student.import_file(tmp_path / f"{module.card.task}.skill")
        assert {a.best.teacher for a in student.answer(mixed)} == {f"alice~{taught.identity.public_key[:8]}"}
        student.ledger.trust(taught.identity.public_key, "alice")
        assert student.answer(mixed) == taught.answer(mixed)

    def test_two_teachers_of_one_task_name_are_distinguished(
        self, new_agent: NewAgent, tiny_tasks, skill_files, mixed
    ):
        agent = new_agent("bob")
        agent.learn(tiny_tasks / "shapes", name="dice")
        agent.import_file(skill_files["dice"])
        with pytest.raises(UnknownTaskError, match=r"2 teachers taught 'dice'; say which: dice@.*, dice@"):
            agent.forget("dice")
        assert {m.card.teacher for m in agent.tasks()} == {"bob", "tina"}
        assert agent.bank.find(f"dice@{agent.identity.public_key}").card.teacher == "bob"
        for cls, teacher in (("four", "tina"), ("five", "tina"), ("circle", "bob")):
            answer = agent.answer(
                tiny_tasks / ("dice" if teacher == "tina" else "shapes") / "train" / cls / "0.jpg"
            )
            assert (answer.best.label, answer.best.task) == (cls, "dice")
            assert answer.best.teacher.partition("~")[0] == teacher
        assert agent.forget("dice@bob").card.teacher == "bob"
        assert agent.answer(mixed[0]).best.teacher.startswith("tina~")

    def test_needs_no_backbone(self, new_agent: NewAgent, skill_files, tmp_path, monkeypatch):
        monkeypatch.setattr("skillmesh.core.Backbone.from_settings", lambda *_, **__: pytest.fail("loaded"))
        agent = new_agent()
        agent.import_file(skill_files["dice"])
        agent.export("dice", tmp_path / "out.skill")
        assert [m.card.task for m in agent.tasks()] == ["dice"]

    def test_to_a_missing_folder_raises_an_error(self, tiny_taught: Core, tmp_path: Path):
        with pytest.raises(AgentError, match=r"cannot write .*no-folder.*name a file in a folder that exists"):
            tiny_taught.export("dice", tmp_path / "no-folder" / "dice.skill")
        assert list(tmp_path.iterdir()) == []

    def test_export_does_not_replace_a_device_or_pipe(self, tiny_taught: Core, tmp_path: Path):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(AgentError, match="is a device or a pipe; expected the name of a file"):
            tiny_taught.export("dice", tmp_path / "pipe")
        assert (tmp_path / "pipe").is_fifo()

    def test_across_backbones_is_refused_and_both_are_named(self, new_agent, skill_files, other_calibration):
        agent = new_agent(calibration=other_calibration)
        with pytest.raises(BackboneMismatchError) as caught:
            agent.import_file(skill_files["dice"])
        assert agent.bank.backbone in str(caught.value)
        assert new_agent().bank.backbone in str(caught.value)
        assert agent.tasks() == []

    @pytest.mark.parametrize(
        "settings", [{"representation": "sqrt-features"}, {"anchor": "maha"}, {"compact": True}], ids=str
    )
    def test_across_settings_is_refused(self, new_agent: NewAgent, skill_files, settings: dict[str, object]):
        agent = new_agent(**settings)
        with pytest.raises(SettingsMismatchError, match="the representation descriptor and anchors sketch"):
            agent.import_file(skill_files["dice"])
        assert agent.tasks() == []


class TestMesh:
    """What an agent stores for other agents, without a connection to any."""

    @pytest.fixture
    def dora(self, new_agent: NewAgent, tiny_tasks: Path) -> Core:
        """An agent that taught dice."""
        agent = new_agent("dora")
        agent.learn(tiny_tasks / "dice")
        return agent

    def slot(self, agent: Core, task: str = "dice") -> Slot:
        return Slot(agent.identity.public_key, task)

    def announce_again(self, agent: Core, task: str = "dice") -> None:
        """Announce a task again, as a running node does."""
        module = agent.bank.find(task)
        notice = announce(module.card, module.id, agent.bank.file_of(module), agent.identity)
        agent.ledger.merge([notice], agent.identity.public_key)

    def test_a_learned_task_is_announced_in_the_ledger(self, dora: Core):
        (notice,) = dora.ledger.view().known.values()
        assert (notice.task, notice.version, notice.teacher) == ("dice", 1, "dora")

    def test_validation_images_are_removed_with_the_task(self, dora: Core):
        assert len(list((dora.home / "validation").iterdir())) == 1
        dora.forget("dice")
        assert list((dora.home / "validation").iterdir()) == []

    def test_versions_continue_after_forgetting(self, dora: Core, tiny_tasks: Path):
        dora.forget("dice")
        assert dora.learn(tiny_tasks / "dice")[0].card.version == 2

    @pytest.mark.parametrize("announced", [True, False])
    def test_versions_continue_after_withdrawing(self, dora: Core, tiny_tasks: Path, announced: bool):
        if announced:
            self.announce_again(dora)
        dora.withdraw("dice")
        module, _ = dora.learn(tiny_tasks / "dice")
        assert module.card.version == 2
        assert dora.tasks() == [module]
        dora.withdraw("dice")
        assert dora.ledger.latest_version(self.slot(dora)) == 2

    def test_versions_continue_in_another_process(self, dora: Core, tiny_tasks: Path, one_network: None):
        dora.withdraw("dice")
        assert Core(dora.home).learn(tiny_tasks / "dice")[0].card.version == 2

    def test_a_withdrawn_task_leaves_the_bank_and_is_known_as_withdrawn(self, dora: Core):
        notice = dora.withdraw("dice", "mislabelled")
        assert (notice.task, notice.version, notice.reason) == ("dice", 1, "mislabelled")
        assert dora.tasks() == Core(dora.home).tasks() == []
        assert dora.ledger.view().known == {self.slot(dora): notice}

    def test_a_task_may_be_withdrawn_after_it_was_forgotten(self, dora: Core):
        self.announce_again(dora)
        dora.forget("dice")
        assert dora.withdraw("dice").version == 1
        assert isinstance(dora.ledger.view().known[self.slot(dora)], Withdrawal)

    def test_only_its_teacher_can_withdraw_a_task(self, dora: Core, skill_files: dict[str, Path]):
        dora.import_file(skill_files["latin"])
        for task in ("latin", "no such task"):
            with pytest.raises(
                UnknownTaskError, match=rf"has taught no task '{task}'.*; its own are: dice; .*forget"
            ):
                dora.withdraw(task)
        assert {m.card.task for m in dora.tasks()} == {"dice", "latin"}
        assert not any(isinstance(notice, Withdrawal) for notice in dora.ledger.view().known.values())

    def test_a_withdrawal_with_an_impossible_reason_changes_nothing(self, dora: Core):
        with pytest.raises(SkillmeshError, match="reason"):
            dora.withdraw("dice", "x" * 201)
        assert len(dora.tasks()) == 1
        assert not any(isinstance(notice, Withdrawal) for notice in dora.ledger.view().known.values())

    def test_a_withdrawn_module_is_not_imported(self, new_agent: NewAgent, dora: Core, tmp_path: Path):
        student = new_agent("student")
        dora.export("dice", tmp_path / "dice.skill")
        student.ledger.merge([dora.withdraw("dice")], "dora")  # accepted, although Dora is not trusted
        with pytest.raises(
            WithdrawnError, match=r"dora~\w+ has withdrawn version 1 of 'dice'; ask for a newer one"
        ):
            student.import_file(tmp_path / "dice.skill")
        assert student.tasks() == []

    def test_a_newer_version_than_the_withdrawn_one_is_imported(
        self, new_agent: NewAgent, dora: Core, tiny_tasks: Path, tmp_path: Path
    ):
        student = new_agent("student")
        student.ledger.merge([dora.withdraw("dice")], "dora")
        dora.learn(tiny_tasks / "dice")
        dora.export("dice", tmp_path)
        assert student.import_file(tmp_path / "dice.skill").card.version == 2

    def test_a_forgotten_task_is_marked_until_it_is_imported_or_learned_again(
        self, dora: Core, skill_files: dict[str, Path], tiny_tasks: Path
    ):
        latin = dora.import_file(skill_files["latin"])
        dora.forget("latin")
        dora.forget("dice")
        assert dora.ledger.view().forgotten == {self.slot(dora), Slot(latin.card.teacher_key, "latin")}
        dora.import_file(skill_files["latin"])
        dora.learn(tiny_tasks / "dice")
        assert Core(dora.home).ledger.view().forgotten == frozenset()

    def test_an_unknown_task_cannot_be_forgotten(self, dora: Core):
        with pytest.raises(UnknownTaskError):
            dora.forget("latin")
        assert dora.ledger.view().forgotten == frozenset()

    def test_tags_are_on_the_card_in_order_and_once(self, new_agent: NewAgent, tiny_tasks: Path):
        agent = new_agent()
        assert agent.learn(tiny_tasks / "dice", tags=["toys", "games", "toys"])[0].card.tags == ("games", "toys")
        assert agent.learn(tiny_tasks / "latin")[0].card.tags is None

    @pytest.mark.parametrize("tags", [["Toys"], ["a b"], [""], [str(i) for i in range(17)]])
    def test_bad_tags_are_refused_before_learning(
        self, new_agent: NewAgent, tiny_tasks: Path, monkeypatch, tags: list[str]
    ):
        monkeypatch.setattr("skillmesh.learning.lesson.study", lambda *_: pytest.fail("learning has begun"))
        with pytest.raises(AgentError, match=r"a tag is .*, expected .*; choose another"):
            new_agent().learn(tiny_tasks / "dice", tags=tags)


class TestHome:
    def test_open_creates_an_agent_with_defaults(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("SKILLMESH_HOME", str(tmp_path / "new"))
        agent = Core.open()
        assert agent.home == tmp_path / "new"
        config = agent.config
        assert (config.backbone, config.anchor, config.representation) == ("lite0", "sketch", "descriptor")
        assert Core.open().identity == agent.identity
        assert (agent.home / "key.pem").stat().st_mode & 0o077 == 0

    def test_opens_again_with_all_its_tasks(self, tiny_taught: Core, mixed: list[Path], one_network):
        again = Core(tiny_taught.home)
        assert again.tasks() == tiny_taught.tasks()
        assert again.answer(mixed[:3]) == tiny_taught.answer(mixed[:3])

    def test_is_not_created_twice(self, tiny_taught: Core):
        with pytest.raises(AgentError, match=r"there is an agent at .* already"):
            create_home(tiny_taught.home)

    def test_that_is_missing_or_damaged_raises_an_error_with_advice(self, tmp_path: Path):
        with pytest.raises(
            AgentError, match=r"no agent at .*; name another home, or create one.* `skillmesh init`"
        ):
            Core(tmp_path)
        create_home(tmp_path, name="x")
        for text in ("{", '{"name": "x", "colour": "red"}', '{"name": "x", "anchor": "magic"}'):
            (tmp_path / "agent.json").write_text(text)
            with pytest.raises(AgentError, match=r"agent.json is damaged: .*; correct the file"):
                Core(tmp_path)

    @pytest.mark.parametrize(
        "settings",
        [{"name": ""}, {"name": "x" * 65}, {"anchor": "magic"}, {"variance_floor": 1e9}, {"backbone": "none"}],
        ids=str,
    )
    def test_with_impossible_settings_is_not_created(self, tmp_path: Path, settings: dict[str, object]):
        with pytest.raises(SkillmeshError):
            create_home(tmp_path / "home", **settings)
        assert not (tmp_path / "home" / "agent.json").exists()
        create_home(tmp_path / "home", name="better")
        assert Core(tmp_path / "home").name == "better"

    def test_at_the_path_of_a_file_is_not_created(self, tmp_path: Path):
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(AgentError, match="cannot create an agent at"):
            create_home(tmp_path / "file")

    def test_keeps_its_calibration_wherever_it_moves(self, tmp_path, other_calibration, monkeypatch):
        monkeypatch.chdir(tmp_path)
        own = tmp_path / "mine.safetensors"
        shutil.copy(other_calibration, own)
        create_home(Path("here"), name="x", calibration=own)
        fingerprint = Core(Path("here")).bank.backbone
        own.unlink()
        (tmp_path / "here").rename(tmp_path / "there")
        monkeypatch.chdir("/")
        assert Core(tmp_path / "there").bank.backbone == fingerprint

    def test_with_an_invalid_calibration_is_not_created(self, tmp_path: Path):
        (tmp_path / "c.safetensors").write_bytes(b"no")
        with pytest.raises(CalibrationError, match="cannot be read as a calibration"):
            create_home(tmp_path / "home", calibration=tmp_path / "c.safetensors")
        assert not (tmp_path / "home").exists()
