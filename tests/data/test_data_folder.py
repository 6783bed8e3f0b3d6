"""Tasks on disk in every usual layout, with every usual fault, and splits that never change."""

from __future__ import annotations

import random
import unicodedata
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from skillmesh.data import sources
from skillmesh.data.folder import TaskImages, find_tasks, folders_to_learn, open_task, survey_task
from skillmesh.data.images import UnreadableImageError
from skillmesh.errors import DataError, FolderOfTasksError

PLAIN = [f"{c}/{i}.jpg" for c in ("cat", "dog") for i in range(10)]
SPLIT = [f"{s}/{c}/{i}.jpg" for s in ("train", "val", "test") for c in ("cat", "dog") for i in range(3)]


def make_folder(path: Path, names: Iterable[str]) -> Path:
    for name in names:
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(name.encode())
    return path


def make_zip(path: Path, names: Iterable[str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in names:
            file.writestr(name, name.encode())
    return path


def names_of(task: TaskImages, split: str) -> list[str]:
    return [file.name for file in task.splits[split].files]


def labelled(task: TaskImages, split: str) -> set[tuple[str, str]]:
    """Return (class, last two parts of the name) of every image of a split."""
    part = task.splits[split]
    return {
        (task.classes[y], "/".join(f.name.split("/")[-2:])) for f, y in zip(part.files, part.labels, strict=True)
    }


class TestLayouts:
    @pytest.fixture(params=["folder", "zip", "wrapped folder", "wrapped zip", "twice wrapped zip"])
    def place(self, request: pytest.FixtureRequest, tmp_path: Path):
        """Return a function that arranges files in one of the usual layouts."""
        wrap = "pets v1/" * request.param.count("wrapped") + "again/" * ("twice" in request.param)

        def lay_out(names: list[str]) -> Path:
            make, ending = (make_zip, ".zip") if "zip" in request.param else (make_folder, "")
            return make(tmp_path / f"pets{ending}", [wrap + name for name in names])

        return lay_out

    def test_class_folders_become_train_images_with_their_label(self, place):
        task = open_task(place(PLAIN), hold_out=())
        assert (task.name, task.classes, task.notes) == ("pets", ("cat", "dog"), ())
        assert labelled(task, "train") == {(name.split("/")[0], name) for name in PLAIN}
        assert len(task.splits["train"]) == len(PLAIN)
        assert len(task.splits["val"]) == len(task.splits["test"]) == 0

    def test_split_folders_become_splits(self, place):
        task = open_task(place(SPLIT), hold_out=("val", "test"))
        assert (task.classes, task.notes) == (("cat", "dog"), ())
        for split in ("train", "val", "test"):
            expected = {n.partition("/")[2] for n in SPLIT if n.startswith(f"{split}/")}
            assert labelled(task, split) == {(name.split("/")[0], name) for name in expected}

    def test_files_can_be_read(self, place):
        task = open_task(place(PLAIN))
        assert all(file.content() == file.name.encode() for file in task.splits["train"].files)

    def test_hidden_files_are_noted_and_a_wrapping_folder_is_still_detected(self, place):
        task = open_task(place([*PLAIN, ".DS_Store", "cat/._1.jpg", "__MACOSX/cat/._1.jpg"]), hold_out=())
        assert task.classes == ("cat", "dog")
        assert len(task.splits["train"]) == len(PLAIN)
        assert task.notes == ("3 hidden file(s) ignored",)

    def test_other_files_are_noted_and_a_wrapping_folder_is_still_detected(self, place):
        task = open_task(place([*PLAIN, "README.md", "cat/labels.csv"]), hold_out=())
        assert len(task.splits["train"]) == len(PLAIN)
        (note,) = task.notes
        assert note.startswith("2 files skipped: 1 .csv, 1 .md (not images), such as ")
        assert "labels.csv" in note

    def test_loose_images_are_noted_and_a_wrapping_folder_is_still_detected(self, place):
        task = open_task(place([*PLAIN, "cover.jpg"]), hold_out=())
        assert task.classes == ("cat", "dog")
        assert task.notes == ("1 image(s) ignored that are not in a class folder",)

    def test_loose_images_beside_split_folders_are_noted(self, place):
        task = open_task(place([*SPLIT, "train/cover.jpg", "extra/cat/1.jpg"]))
        assert len(task.splits["train"]) == 6
        assert task.notes == ("2 image(s) ignored that are not in a class folder",)

    def test_a_single_train_folder_is_not_a_wrapping_folder(self, place):
        task = open_task(place([f"train/{name}" for name in PLAIN]), hold_out=())
        assert task.classes == ("cat", "dog")


def test_class_folders_beside_split_folders_are_noted(tmp_path: Path):
    task = open_task(make_folder(tmp_path, [*SPLIT, "extra/1.jpg"]), hold_out=())
    assert "extra" not in task.classes
    assert any("1 image(s) ignored" in note for note in task.notes)


@pytest.mark.parametrize("alias", ["val", "valid", "validation"])
def test_the_validation_folder_has_three_possible_names(tmp_path: Path, alias: str):
    names = [name.replace("val/", f"{alias}/") for name in SPLIT]
    task = open_task(make_folder(tmp_path, names), hold_out=("val",))
    assert len(task.splits["val"]) == len(task.splits["train"]) == 6


def test_images_in_folders_below_a_class_belong_to_it(tmp_path: Path):
    names = ["cat/indoors/1.jpg", "cat/2.jpg", "dog/a/b/3.jpg"]
    task = open_task(make_folder(tmp_path, names), hold_out=())
    assert task.splits["train"].labels.tolist() == [0, 0, 1]


def test_suffixes_are_recognised_in_any_case(tmp_path: Path):
    suffixes = ["JPG", "jpeg", "Png", "webp", "bmp", "GIF", "tif", "TIFF"]
    task = open_task(make_folder(tmp_path, [f"{c}/1.{s}" for s in suffixes for c in "ab"]), hold_out=())
    assert len(task.splits["train"]) == 2 * len(suffixes)


def test_an_empty_class_folder_is_noted(tmp_path: Path):
    make_folder(tmp_path, PLAIN)
    (tmp_path / "bird").mkdir()
    (tmp_path / ".git").mkdir()
    task = open_task(tmp_path)
    assert task.classes == ("cat", "dog")
    assert task.notes == ("folder(s) without images ignored: bird",)


@pytest.mark.parametrize("split", ["val", "test"])
def test_classes_missing_from_train_are_noted(tmp_path: Path, split: str):
    task = open_task(make_folder(tmp_path, [*SPLIT, f"{split}/yak/1.jpg", f"{split}/emu/1.jpg"]))
    assert task.classes == ("cat", "dog")
    assert len(task.splits[split]) == 6
    assert task.notes == (f"class(es) of {split} ignored that are not in train: emu, yak",)


def test_one_name_in_two_unicode_forms_is_one_class(tmp_path: Path):
    composed, decomposed = (unicodedata.normalize(form, "pâté") for form in ("NFC", "NFD"))
    names = [f"train/{composed}/1.jpg", f"train/{decomposed}/2.jpg", "train/eel/1.jpg", f"test/{decomposed}/3.jpg"]
    task = open_task(make_zip(tmp_path / "food.zip", names), hold_out=())
    assert task.classes == ("eel", composed)
    assert np.bincount(task.splits["train"].labels).tolist() == [1, 2]
    assert labelled(task, "test") == {(composed, f"{decomposed}/3.jpg")}
    assert task.notes == ()


def test_a_zip_written_with_backslashes_can_be_read(tmp_path: Path):
    make_zip(tmp_path / "pets.zip", [name.replace("/", "\\") for name in PLAIN])
    task = open_task(tmp_path / "pets.zip", hold_out=())
    assert task.classes == ("cat", "dog")
    assert task.splits["train"].files[0].content() == b"cat\\0.jpg"


class TestNames:
    def test_a_folder_keeps_its_dots_and_a_zip_loses_its_suffix(self, tmp_path: Path):
        assert open_task(make_folder(tmp_path / "pets.v2", PLAIN)).name == "pets.v2"
        assert open_task(make_zip(tmp_path / "pets.v3.zip", PLAIN)).name == "pets.v3"

    def test_the_current_folder_has_a_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(make_folder(tmp_path / "pets", PLAIN))
        assert open_task(".").name == "pets"

    def test_the_caller_may_name_it(self, tmp_path: Path):
        assert open_task(make_folder(tmp_path, PLAIN), name="Haustiere").name == "Haustiere"


class TestRefused:
    def test_a_task_of_one_class_is_refused(self, tmp_path: Path):
        with pytest.raises(DataError, match=r"one class only \('cat'\).*two or more"):
            open_task(make_folder(tmp_path, ["cat/1.jpg", "cat/2.jpg"]))

    @pytest.mark.parametrize("names", [[], ["1.jpg", "2.jpg"], ["cat/readme.txt"]])
    def test_a_folder_without_classes_is_refused(self, tmp_path: Path, names: list[str]):
        with pytest.raises(DataError, match=r"expected class/image\.jpg or train/class/image\.jpg"):
            open_task(make_folder(tmp_path, names))

    @pytest.mark.parametrize("split", ["val", "test"])
    def test_a_validation_or_test_folder_alone_is_refused(self, tmp_path: Path, split: str):
        with pytest.raises(DataError, match=f"one class only \\('{split}'\\)"):
            open_task(make_folder(tmp_path, [f"{split}/{name}" for name in PLAIN]))

    def test_a_missing_path_is_refused_with_its_name(self, tmp_path: Path):
        with pytest.raises(DataError, match=r"there is nothing at .*nowhere"):
            open_task(tmp_path / "nowhere")

    def test_a_file_that_is_no_zip_is_refused(self, tmp_path: Path):
        (tmp_path / "pets.zip").write_text("not a zip")
        with pytest.raises(DataError, match=r"pets\.zip cannot be read as a zip"):
            open_task(tmp_path / "pets.zip")

    def test_a_truncated_zip_is_refused(self, tmp_path: Path):
        path = make_zip(tmp_path / "pets.zip", PLAIN)
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(DataError, match="zip the task folder again"):
            open_task(path)

    def test_a_damaged_zip_member_is_an_unreadable_image(self, tmp_path: Path):
        path = tmp_path / "pets.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for name in PLAIN:
                file.writestr(name, random.Random(0).randbytes(50) * 40)
        content = bytearray(path.read_bytes())
        content[40:90] = b"\xff" * 50
        path.write_bytes(content)
        first = open_task(path, hold_out=()).splits["train"].files[0]
        with pytest.raises(UnreadableImageError, match=r"cat/0\.jpg cannot be read: this file in the zip"):
            first.content()

    @settings(max_examples=150, deadline=None)
    @given(place=st.floats(0, 1), junk=st.binary(min_size=1, max_size=8))
    def test_any_damage_to_a_zip_is_a_data_error_or_harmless(
        self, tmp_path_factory: pytest.TempPathFactory, place: float, junk: bytes
    ):
        path = make_zip(tmp_path_factory.getbasetemp() / "fuzzed.zip", PLAIN[8:12])
        content = bytearray(path.read_bytes())
        start = int(place * (len(content) - len(junk)))
        content[start : start + len(junk)] = junk
        path.write_bytes(content)
        try:
            for file in open_task(path, hold_out=()).splits["train"].files:
                file.content()
        except DataError:
            pass

    @pytest.mark.parametrize("make", [make_folder, make_zip])
    def test_a_giant_file_is_an_unreadable_image(self, tmp_path: Path, make, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(sources, "MAX_FILE_BYTES", 4)
        task = open_task(make(tmp_path / "pets", PLAIN))
        with pytest.raises(UnreadableImageError, match="has 9 bytes, expected at most 4 "):
            task.splits["train"].files[0].content()

    def test_a_file_deleted_since_is_an_unreadable_image(self, tmp_path: Path):
        task = open_task(make_folder(tmp_path, PLAIN), hold_out=())
        (tmp_path / "cat/0.jpg").unlink()
        with pytest.raises(UnreadableImageError, match=r"cat/0\.jpg cannot be read"):
            task.splits["train"].files[0].content()


class TestFolderOfTasks:
    TASKS = tuple(f"{t}/{c}/1.jpg" for t in ("birds", "pets") for c in ("a", "b"))

    @pytest.fixture(params=[make_folder, make_zip], ids=["folder", "zip"])
    def make(self, request: pytest.FixtureRequest, tmp_path: Path):
        return lambda names: request.param(tmp_path / "src", names)

    @pytest.mark.parametrize(
        "names",
        [
            TASKS,
            [f"wrapped/{name}" for name in TASKS],
            [*TASKS, "cover.jpg", "README.md", ".DS_Store", ".thumbs/1.jpg"],
            [*TASKS, "pets/c/deeper/1.jpg"],
            [name for name in TASKS if name != "pets/b/1.jpg"],
            [f"{t}/{s}/{c}/1.jpg" for t in ("birds", "pets") for s in ("train", "test") for c in "ab"],
        ],
        ids=["plain", "wrapped", "with others", "deeper", "one with a single class", "with splits"],
    )
    def test_is_refused_with_the_folders_found(self, make, names: list[str]):
        path = make(names)
        with pytest.raises(FolderOfTasksError, match=r"birds, pets.*one_task=True") as refusal:
            open_task(path)
        assert refusal.value.tasks == ("birds", "pets")
        assert str(path) in str(refusal.value)

    def test_is_one_task_on_request(self, make):
        task = open_task(make(self.TASKS), hold_out=(), one_task=True)
        assert (task.classes, len(task.splits["train"])) == (("birds", "pets"), 4)

    def test_a_survey_opens_it_and_lists_the_tasks_inside(self, make):
        assert survey_task(make(self.TASKS)).tasks_inside == ("birds", "pets")

    @pytest.mark.parametrize(
        "names",
        [
            [*TASKS, "misc/1.jpg"],
            [*PLAIN, "cat/indoors/1.jpg", "cat/outdoors/1.jpg"],
            ["cat/images/1.jpg", "dog/images/1.jpg"],
            ["cat/train/1.jpg", "cat/test/1.jpg", "dog/train/1.jpg", "dog/test/1.jpg"],
            SPLIT,
            [f"train/{name}" for name in TASKS],
            [f"wrapped/{name}" for name in SPLIT],
            ["val/a/1.jpg", "val/b/1.jpg", "test/a/1.jpg", "test/b/1.jpg"],
            PLAIN,
        ],
        ids=[
            *("mixture", "nested", "one folder in each", "splits in classes", "splits", "nested in train"),
            *("wrapped splits", "no train", "plain"),
        ],
    )
    def test_other_layouts_are_one_task(self, make, names: list[str]):
        task = open_task(make(names), hold_out=())
        assert len(task.classes) >= 2
        assert task.tasks_inside == ()

    def test_names_ten_of_its_folders_and_how_many_more_there_are(self, make):
        tasks = [f"{number:02}" for number in range(12)]
        path = make([f"{task}/{c}/1.jpg" for task in tasks for c in "ab"])
        with pytest.raises(FolderOfTasksError, match=r"found 00, .*, 09 and 2 more, and no image"):
            open_task(path)

    def test_zips_beside_its_folders_are_tasks_too(self, tmp_path: Path):
        make_folder(tmp_path, [*self.TASKS, "notes.txt", "birds/notes.zip"])
        make_zip(tmp_path / "more.zip", PLAIN)
        assert survey_task(tmp_path).tasks_inside == ("birds", "pets", "more.zip")

    def test_a_folder_of_zips_is_a_folder_of_tasks(self, tmp_path: Path):
        for name in ("birds", "pets"):
            make_zip(tmp_path / f"{name}.zip", PLAIN)
        with pytest.raises(FolderOfTasksError) as refusal:
            open_task(tmp_path)
        assert refusal.value.tasks == ("birds.zip", "pets.zip")

    @pytest.mark.parametrize("value", [5, None, (1, 2), b"src"])
    def test_a_value_that_is_no_path_is_refused(self, value: object):
        with pytest.raises(
            DataError, match=f"found an object of type {type(value).__name__} .*expected the path of a"
        ):
            open_task(value)  # type: ignore[arg-type]


class TestCutting:
    def test_each_class_is_split_in_the_same_proportions(self, tmp_path: Path):
        names = [f"{c}/{i:03}.jpg" for c, n in (("big", 100), ("small", 20)) for i in range(n)]
        task = open_task(make_folder(tmp_path, names), hold_out=("val", "test"))
        counts = {split: np.bincount(part.labels).tolist() for split, part in task.splits.items()}
        assert counts == {"train": [68, 14], "val": [15, 3], "test": [17, 3]}

    def test_learning_loses_no_images_to_a_test_split(self, tmp_path: Path):
        task = open_task(make_folder(tmp_path, PLAIN))
        assert {split: len(part) for split, part in task.splits.items()} == {"train": 16, "val": 4, "test": 0}

    def test_only_the_missing_split_is_held_out(self, tmp_path: Path):
        names = [n for n in SPLIT if not n.startswith("val")]
        task = open_task(make_folder(tmp_path, names), hold_out=("val", "test"))
        assert {split: len(part) for split, part in task.splits.items()} == {"train": 4, "val": 2, "test": 6}

    def test_validation_images_replace_missing_test_images_only_on_request(self, tmp_path: Path):
        make_folder(tmp_path, [name for name in SPLIT if not name.startswith("test")])
        for options, split in (({}, "val"), ({"val_as_test": True}, "test")):
            task = survey_task(tmp_path, hold_out=(), **options)
            sizes = {"train": 6, "val": 0, "test": 0} | {split: 6}
            assert {name: len(part) for name, part in task.splits.items()} == sizes

    def test_nothing_is_held_out_unless_requested(self, tmp_path: Path):
        task = open_task(make_folder(tmp_path, PLAIN), hold_out=())
        assert {split: len(part) for split, part in task.splits.items()} == {"train": 20, "val": 0, "test": 0}

    def test_the_seed_decides_which_images_are_held_out(self, tmp_path: Path):
        make_folder(tmp_path, PLAIN)
        first, again, other = (names_of(open_task(tmp_path, seed=s), "val") for s in (1, 1, 2))
        assert first == again
        assert first != other

    def test_the_order_of_files_does_not_matter(self, tmp_path: Path):
        expected = open_task(make_zip(tmp_path / "a.zip", PLAIN), hold_out=("val", "test"))
        shuffled = random.Random(7).sample(PLAIN, len(PLAIN))
        for path in (make_zip(tmp_path / "b.zip", shuffled), make_folder(tmp_path / "c", shuffled)):
            task = open_task(path, hold_out=("val", "test"))
            assert all(names_of(task, split) == names_of(expected, split) for split in task.splits)

    def test_one_image_per_class_stays_in_train(self, tmp_path: Path):
        task = open_task(make_folder(tmp_path, ["cat/1.jpg", "dog/1.jpg"]), hold_out=("val", "test"))
        assert names_of(task, "train") == ["cat/1.jpg", "dog/1.jpg"]
        assert len(task.splits["val"]) == len(task.splits["test"]) == 0

    @settings(max_examples=60, deadline=None)
    @given(sizes=st.lists(st.integers(1, 30), min_size=2, max_size=6), seed=st.integers(0, 2**32))
    def test_every_image_is_in_one_split_and_every_class_in_train(
        self, tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int
    ):
        names = [f"c{c}/{i}.png" for c, size in enumerate(sizes) for i in range(size)]
        path = make_zip(tmp_path_factory.getbasetemp() / "property.zip", names)
        task = open_task(path, hold_out=("val", "test"), seed=seed)
        assert sorted(n for split in task.splits for n in names_of(task, split)) == sorted(names)
        train = np.bincount(task.splits["train"].labels, minlength=len(sizes))
        val = np.bincount(task.splits["val"].labels, minlength=len(sizes))
        assert (train >= 1).all()
        assert all(v >= 1 for v, size in zip(val, sizes, strict=True) if size >= 3)
        for part in task.splits.values():
            assert [f"c{y}" for y in part.labels] == [f.name.split("/")[0] for f in part.files]


class TestFindTasks:
    @pytest.fixture
    def shelf(self, tmp_path: Path) -> Path:
        make_folder(tmp_path / "shelf/pets", PLAIN)
        make_folder(tmp_path / "shelf/birds", SPLIT)
        make_zip(tmp_path / "shelf/food.zip", PLAIN)
        return tmp_path / "shelf"

    def test_a_folder_of_tasks_is_replaced_by_its_folders_and_zips(self, shelf: Path):
        assert [p.name for p in find_tasks([shelf])] == ["birds", "food.zip", "pets"]

    def test_a_task_is_returned_as_it_is(self, shelf: Path):
        paths = [shelf / name for name in ("pets", "food.zip", "birds")]
        assert find_tasks(paths) == paths

    def test_hidden_and_other_children_are_ignored(self, shelf: Path):
        make_folder(shelf, [".trash/cat/1.jpg", ".old.zip", "notes/today.txt", "README.md", ".thumbs/pets.png"])
        assert [p.name for p in find_tasks([shelf])] == ["birds", "food.zip", "pets"]

    def test_two_tasks_of_one_name_are_refused(self, shelf: Path):
        make_zip(shelf / "pets.zip", PLAIN)
        with pytest.raises(DataError, match=r"two tasks are named 'pets': .*pets and .*pets\.zip; rename one"):
            find_tasks([shelf])

    def test_folders_that_differ_after_a_dot_are_two_tasks(self, tmp_path: Path):
        for name in ("pets.v1", "pets.v2"):
            make_folder(tmp_path / name, PLAIN)
        assert len(find_tasks([tmp_path])) == 2

    def test_a_missing_path_is_refused(self, shelf: Path):
        with pytest.raises(DataError, match=r"there is nothing at .*attic"):
            find_tasks([shelf, shelf / "attic"])

    def test_a_folder_without_tasks_is_refused(self, tmp_path: Path):
        with pytest.raises(DataError, match="no task was found in"):
            find_tasks([make_folder(tmp_path, ["a/b/c.txt"])])


def test_tasks_inside_a_wrapping_folder_are_learned(tmp_path: Path):
    for task in ("birds", "boats"):
        for label in ("a", "b"):
            folder = tmp_path / "src" / "wrap" / task / label
            folder.mkdir(parents=True)
            Image.new("RGB", (16, 16)).save(folder / "1.png")
    with pytest.raises(FolderOfTasksError) as refusal:
        open_task(tmp_path / "src")
    assert refusal.value.tasks == ("birds", "boats")
    assert [path.name for path in folders_to_learn(tmp_path / "src")] == ["birds", "boats"]
    for path in folders_to_learn(tmp_path / "src"):
        assert open_task(path).classes == ("a", "b")


def test_folders_of_images_beside_tasks_are_tried_too_and_loose_images_are_not(tmp_path: Path):
    make_folder(tmp_path, ["birds/a/1.jpg", "birds/b/1.jpg", "holidays/1.jpg", "cover.jpg"])
    assert folders_to_learn(tmp_path) == [tmp_path / "birds", tmp_path / "holidays"]


def test_a_broken_link_is_an_unreadable_image(tmp_path: Path):
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for number in range(3):
            Image.new("RGB", (16, 16), (number, 0, 0)).save(tmp_path / label / f"{number}.png")
    (tmp_path / "a" / "lost.jpg").symlink_to(tmp_path / "nowhere.jpg")
    task = open_task(tmp_path)
    (lost,) = [file for split in task.splits.values() for file in split.files if file.name == "a/lost.jpg"]
    with pytest.raises(UnreadableImageError, match="lost"):
        lost.content()


def test_image_files_may_have_at_most_48_mebibytes():
    sources.refuse_large(48 * 2**20)
    with pytest.raises(OSError, match="the file has 50,331,649 bytes, expected at most 50,331,648 for an image"):
        sources.refuse_large(48 * 2**20 + 1)


def test_a_zips_directory_can_be_read_at_once(tmp_path: Path):
    (tmp_path / "some.zip").write_bytes(b"content")
    for size in (None, -1, 7):
        with sources._Listing(tmp_path / "some.zip") as file:
            assert file.read(size) == b"content"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("size", [0, 1, 2**20, 2**20 + 100, 2**21 + 1])
def test_zip_members_are_read_completely(tmp_path: Path, method: int, size: int):
    with zipfile.ZipFile(tmp_path / "some.zip", "w", method) as file:
        file.writestr("a", b"x" * size)
    source = sources.ZipSource(tmp_path / "some.zip")
    assert source.size("a") == size
    assert source.read("a") == b"x" * size


def test_a_folder_reports_the_sizes_of_its_files(tmp_path: Path):
    source = sources.FolderSource(make_folder(tmp_path, ["a/1.jpg"]))
    assert source.size("a/1.jpg") == len(source.read("a/1.jpg")) == len("a/1.jpg")
    assert source.size("a/2.jpg") == 0
