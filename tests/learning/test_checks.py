"""Checks of a task's images: each fault is reported, and images that would distort a measurement are left out."""

from __future__ import annotations

import io
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from skillmesh.backbone.backbone import Backbone
from skillmesh.common.choices import Adaptation
from skillmesh.common.text import some
from skillmesh.core import Core
from skillmesh.data.folder import open_task
from skillmesh.data.images import MIN_SIDE, UnreadableImageError, decode, pixel_hash
from skillmesh.data.inputs import as_image
from skillmesh.errors import DataError
from skillmesh.evaluation.evaluate import evaluate
from skillmesh.learning import examine
from skillmesh.learning.examine import UNBALANCED, ImagePlace, Part, TaskTwins, _plain, check_balance, check_names

NewAgent = Callable[..., Core]


@pytest.fixture
def dice(demo_tasks: Path, tmp_path: Path) -> Path:
    """A copy of dice to modify: eight training, three validation and four test images of each of six classes."""
    shutil.copytree(demo_tasks / "dice", tmp_path / "dice")
    return tmp_path / "dice"


def kinds(lesson: Any) -> list[str]:
    return [finding.kind for finding in lesson.all_findings]


def saved_again(path: Path, to: Path) -> None:
    """Save a picture as a larger JPEG: other bytes, other pixels, the same picture."""
    with Image.open(path) as image:
        larger = image.convert("RGB").resize((image.width * 3 // 2, image.height * 3 // 2))
        larger.save(to, quality=95)


class TestLearning:
    def test_good_images_are_all_used_without_findings(self, new_agent: NewAgent, dice: Path):
        module, lesson = new_agent().learn(dice)
        assert lesson.all_findings == ()
        assert sum(module.card.counts) == 48
        assert module.card.validation_images == 18

    def test_an_image_in_two_classes_is_used_for_neither(self, new_agent: NewAgent, dice: Path):
        shutil.copy(dice / "train/one/0.jpg", dice / "train/two/wrong.jpg")
        module, lesson = new_agent().learn(dice)
        (finding,) = lesson.all_findings
        assert finding.kind == "twins-across-classes"
        assert finding.files == ("train/one/0.jpg", "train/two/wrong.jpg")
        assert finding.text.startswith("2 images left out: they are in two classes, neither label is certain: ")
        assert dict(zip(module.card.classes, module.card.counts, strict=True))["one"] == 7

    @pytest.mark.parametrize("copy", [shutil.copy, saved_again])
    def test_a_validation_image_that_is_in_training_is_left_out(self, new_agent: NewAgent, dice: Path, copy):
        copy(dice / "train/one/0.jpg", dice / "val/one/again.jpg")
        module, lesson = new_agent().learn(dice)
        (finding,) = lesson.all_findings
        assert finding.kind == "twins-across-splits"
        assert finding.files == ("val/one/again.jpg",)
        assert "1 of 19 validation images left out: they are training images too" in finding.text
        assert "(= train/one/0.jpg)" in finding.text
        assert module.card.validation_images == len(lesson.validation) == 18

    def test_leaving_out_twins_gives_the_same_module_as_a_task_without_them(
        self, new_agent: NewAgent, dice: Path, demo_tasks: Path
    ):
        shutil.copy(dice / "train/one/0.jpg", dice / "val/one/again.jpg")
        spoiled, _ = new_agent().learn(dice)
        clean, _ = new_agent().learn(demo_tasks / "dice")
        assert spoiled.content_id == clean.content_id

    def test_twins_in_one_class_of_one_split_are_harmless(self, new_agent: NewAgent, dice: Path):
        shutil.copy(dice / "train/one/0.jpg", dice / "train/one/again.jpg")
        module, lesson = new_agent().learn(dice)
        assert lesson.all_findings == ()
        assert sum(module.card.counts) == 49

    def test_a_class_with_only_images_of_another_is_refused_with_the_reason(self, new_agent: NewAgent, dice: Path):
        for split in ("train", "val"):
            shutil.rmtree(dice / split / "two")
            shutil.copytree(dice / split / "one", dice / split / "two")
        with pytest.raises(DataError, match=r"no training image of 'one', 'two' .* is left \(.*two classes"):
            new_agent().learn(dice)

    def test_tiny_images_cannot_be_read(self, new_agent: NewAgent, dice: Path):
        for number in range(5):
            Image.new("RGB", (1, 1), (number, 0, 0)).save(dice / f"train/one/dot{number}.png")
        _, lesson = new_agent().learn(dice)
        (finding,) = lesson.all_findings
        assert finding.kind == "unreadable"
        assert finding.text.startswith(
            "5 images that cannot be read: train/one/dot0.png (the image has only 1 × 1 pixels"
        )
        assert finding.text.endswith("and 2 more")

    def test_continuing_a_task_checks_its_new_images(self, new_agent: NewAgent, dice: Path, demo_tasks: Path):
        agent = new_agent()
        agent.learn(demo_tasks / "dice")
        shutil.copy(dice / "train/one/0.jpg", dice / "val/one/again.jpg")
        _, lesson = agent.continue_task("dice", dice)
        assert kinds(lesson) == ["twins-across-splits"]


class TestMeasuring:
    @pytest.mark.parametrize(
        ("copy", "source"), [(shutil.copy, "train"), (saved_again, "train"), (shutil.copy, "val")]
    )
    def test_a_test_image_that_was_learned_from_is_left_out_and_counted(
        self, new_agent: NewAgent, dice: Path, copy, source: str
    ):
        copy(dice / source / "one/0.jpg", dice / "test/one/again.jpg")
        result = evaluate(new_agent(), [dice])
        (figures,) = result.tasks
        assert (figures.test_images, figures.left_out) == (24, 1)
        ((task, finding),) = result.checks
        assert (task, finding.files) == ("dice", ("test/one/again.jpg",))
        assert "1 of 25 test images left out" in finding.text
        assert result.summary()["checks"][0]["kind"] == "twins-across-splits"

    def test_a_test_image_in_two_classes_is_left_out(self, new_agent: NewAgent, dice: Path):
        shutil.copy(dice / "test/one/0.jpg", dice / "test/two/wrong.jpg")
        result = evaluate(new_agent(), [dice])
        assert (result.tasks[0].test_images, result.tasks[0].left_out) == (23, 2)

    def test_an_agent_that_does_not_learn_is_not_measured_on_its_training_files(self, taught: Core, dice: Path):
        shutil.copy(dice / "train/one/0.jpg", dice / "test/one/again.jpg")
        result = evaluate(taught, [dice], learn=False)
        assert (result.tasks[0].test_images, result.tasks[0].left_out) == (24, 1)

    def test_a_task_without_usable_test_images_is_an_error(self, new_agent: NewAgent, dice: Path):
        shutil.rmtree(dice / "test")
        shutil.copytree(dice / "train", dice / "test")
        with pytest.raises(
            DataError, match=r"no test image of 'dice' is left to measure on \(48 of 48 test images"
        ):
            evaluate(new_agent(), [dice])


class TestNames:
    def test_names_that_differ_only_in_case_or_spacing_are_reported(self, tmp_path: Path):
        for name in ("Cat", "cat", "red apple", "red_apple", "dog", "-", "_"):
            self._images(tmp_path / name)
        findings = check_names(open_task(tmp_path))
        assert [finding.files for finding in findings] == [("Cat", "cat"), ("red apple", "red_apple")]
        assert "'Cat' and 'cat' are 2 classes whose names differ only in case or spacing" in findings[0].text
        assert "put their images into one folder" in findings[0].text

    def test_two_unicode_spellings_of_an_accent_are_merged_and_reported(self, tmp_path: Path):
        composed, decomposed = (unicodedata.normalize(form, "pâté") for form in ("NFC", "NFD"))
        for name in (composed, decomposed, "bread"):
            self._images(tmp_path / name)
        task = open_task(tmp_path)
        assert task.classes == ("bread", composed)
        (finding,) = check_names(task)
        assert finding.kind == "merged-names"
        assert set(finding.files) == {composed, decomposed}

    def test_a_symbol_equivalent_to_a_letter_is_merged_with_it_and_reported(self, tmp_path: Path):
        kelvin = "\N{KELVIN SIGN}"
        for name in ("K", kelvin, "bread"):
            self._images(tmp_path / name)
        task = open_task(tmp_path)
        assert task.classes == ("K", "bread")
        (finding,) = check_names(task)
        assert set(finding.files) == {"K", kelvin}

    def test_different_spellings_in_two_splits_are_not_reported(self, tmp_path: Path):
        composed, decomposed = (unicodedata.normalize(form, "pâté") for form in ("NFC", "NFD"))
        for name in (f"train/{composed}", f"test/{decomposed}", "train/bread", "test/bread"):
            self._images(tmp_path / name)
        assert check_names(open_task(tmp_path)) == []

    def test_a_class_with_many_times_the_images_of_another_is_reported(self, tmp_path: Path):
        self._images(tmp_path / "train/few", 2)
        self._images(tmp_path / "train/many", 2 * UNBALANCED)
        (finding,) = check_balance(open_task(tmp_path, hold_out=()))
        assert "'many' has 20 training images, 'few' 2 (10 × as many)" in finding.text
        (tmp_path / "train/many/0.png").unlink()
        assert check_balance(open_task(tmp_path, hold_out=())) == []

    @staticmethod
    def _images(folder: Path, count: int = 4) -> None:
        folder.mkdir(parents=True)
        for number in range(count):
            pixels = np.random.default_rng(len(str(folder)) * 100 + number).integers(0, 256, (9, 9, 3), np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")


class TestNearTwins:
    def test_a_too_small_image_is_unreadable(self):
        for size, fits in (((MIN_SIDE, MIN_SIDE), True), ((MIN_SIDE - 1, 200), False), ((200, 1), False)):
            file = io.BytesIO()
            Image.new("RGB", size).save(file, "PNG")
            for read in (lambda data: decode(data, 32), pixel_hash):
                if fits:
                    read(file.getvalue())
                else:
                    with pytest.raises(UnreadableImageError, match=f"has only {size[0]} × {size[1]} pixels"):
                        read(file.getvalue())

    def test_the_block_size_does_not_change_the_twins_found(self, taught: Core, demo_tasks: Path, monkeypatch):
        task = open_task(demo_tasks / "latin")
        parts = [
            Part.of(name, split.files, split.labels, taught.backbone.describe(split.files))
            for name, split in task.splits.items()
        ]
        monkeypatch.setattr(examine, "NEAR", 1.0)
        monkeypatch.setattr(examine, "ALIKE", 0.9)
        whole = examine.find_twins(parts, task.classes, taught.backbone)
        assert whole.across_classes
        monkeypatch.setattr(examine, "BLOCK", 7)
        assert examine.find_twins(parts, task.classes, taught.backbone) == whole

    def test_copies_are_found_alike_whether_descriptors_were_cached_or_not(self, tmp_path: Path, demo_tasks: Path):
        task = open_task(demo_tasks / "latin")
        folder = tmp_path / "cache"
        found = []
        for _ in range(2):  # the second time nothing is decoded for a pass
            backbone = Backbone.load(cache_folder=folder)
            described = {
                name: backbone.describe(split.files, thumbnails=True) for name, split in task.splits.items()
            }
            kept = {each is not None for part in described.values() for each in part.thumbnails}
            parts = [
                Part.of(name, split.files, split.labels, described[name]) for name, split in task.splits.items()
            ]
            copies = []
            for number, file in enumerate(parts[0].images[:5]):
                saved_again(demo_tasks / "latin" / file.name, tmp_path / f"{number}.jpg")
                copies.append(as_image(tmp_path / f"{number}.jpg"))
            parts.append(Part.of("test", copies, parts[0].labels[:5], backbone.describe(copies, thumbnails=True)))
            found.append((kept, examine.find_twins(parts, task.classes, backbone)))
        assert [kept for kept, _ in found] == [{True}, {False}]
        assert found[0][1] == found[1][1]
        assert sum(map(len, found[0][1].across_splits.values())) >= 5

    def test_demo_tasks_have_no_near_twins(self, taught: Core, demo_tasks: Path):
        for folder in sorted(demo_tasks.iterdir()):
            task = open_task(folder)
            parts = [
                Part.of(name, split.files, split.labels, taught.backbone.describe(split.files))
                for name, split in task.splits.items()
            ]
            assert examine.examine(parts, task.classes, taught.backbone).findings == ()

    def test_equal_files_have_equal_keys(self, taught: Core, demo_tasks: Path):
        files = open_task(demo_tasks / "dice").splits["train"].files[:3]
        described = taught.backbone.describe([*files, files[0]])
        assert len(set(described.keys)) == 3
        assert described.keys[0] == described.keys[3]


@pytest.mark.torch
def test_adaptation_is_refused_if_no_validation_image_is_left(
    new_agent: Callable[..., Core], tiny_tasks, tmp_path
):
    task = tmp_path / "dice"
    shutil.copytree(tiny_tasks / "dice", task)
    shutil.rmtree(task / "val")
    shutil.copytree(task / "train", task / "val")
    with pytest.raises(DataError, match="the task has no validation images"):
        new_agent().learn(task, adaptation=Adaptation(mode="always"))


def test_plain_names_ignore_spaces_hyphens_underscores_and_case():
    assert {_plain(name) for name in ("Blue tit", "blue-tit", "blue_tit", "BLUETIT", "blue\u3000tit")} == {
        "bluetit"
    }
    assert _plain("_") == "_"


def test_twins_are_listed_with_a_file_from_another_split_or_class():
    twins = TaskTwins()
    twins.note([ImagePlace("train", "cat", "train/cat/1"), ImagePlace("train", "dog", "train/dog/1")])
    twins.note([ImagePlace("train", "cat", "train/cat/2"), ImagePlace("test", "cat", "test/cat/2")])
    twins.note([ImagePlace("val", "cat", "val/cat/3"), ImagePlace("val", "cat", "val/cat/4")])
    assert twins.originals == {
        "train/cat/1": "train/dog/1",
        "train/dog/1": "train/cat/1",
        "test/cat/2": "train/cat/2",
    }
    assert twins.across_classes == ["train/cat/1", "train/dog/1"]
    assert twins.across_splits == {"test in train": ["test/cat/2"]}
    assert twins.in_split == ["train/dog/1", "val/cat/4"]


def test_a_long_list_of_names_shows_the_first_and_counts_the_rest():
    assert some(["a", "b"], shown=2) == "a, b"
    assert some(["a", "b", "c"], shown=2) == "a, b and 1 more"
