"""All faults of the data are reported before anything is learned; known datasets are opened in their order."""

from __future__ import annotations

import io
import itertools
import sqlite3
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from skillmesh.data.folder import ImageFile, Split, TaskImages, open_task
from skillmesh.data.sources import FolderSource
from skillmesh.errors import DataError
from skillmesh.evaluation.evaluate import evaluate
from skillmesh_challenge import datasets
from skillmesh_challenge.data import BadDataError, DataReport, check, refuse_bad_data

_NUMBERS = itertools.count()


def picture(number: int | None = None, form: str = "PNG") -> bytes:
    """Return an image file that is different for every number."""
    number = next(_NUMBERS) if number is None else number + 2**20
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[0, :4, 0] = [number >> shift & 255 for shift in (0, 8, 16, 24)]
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def put(path: Path, content: bytes | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture() if content is None else content)
    return path


def make_task(path: Path, splits: Iterable[str] = ("train", "val", "test"), classes: Iterable[str] = "ab") -> Path:
    """Write a task of two images per class and split."""
    for split, label, number in itertools.product(splits, classes, range(2)):
        put(path / split / label / f"{number}.png")
    return path


def kinds(report: DataReport) -> dict[str, list[str]]:
    """Return the faults and their tasks, by errors and warnings."""
    return {
        title: sorted(f"{p.kind} {p.task}".strip() for p in problems)
        for title, problems in (("errors", report.errors), ("warnings", report.warnings))
    }


NOTHING: dict[str, list[str]] = {"errors": [], "warnings": []}


class TestCheck:
    def test_good_data_has_no_faults_and_is_counted(self, tmp_path: Path):
        make_task(tmp_path / "pets", classes="abc")
        make_task(tmp_path / "cars")
        report = check([tmp_path])
        assert report.ok
        assert kinds(report) == NOTHING
        found = {task.name: (task.classes, task.images) for task in report.tasks}
        assert found == {
            "pets": (3, {"train": 6, "val": 6, "test": 6}),
            "cars": (2, {"train": 4, "val": 4, "test": 4}),
        }

    def test_class_folders_alone_are_split_as_in_a_run(self, tmp_path: Path):
        for label, number in itertools.product("ab", range(10)):
            put(tmp_path / label / f"{number}.png")
        (task,) = check([tmp_path], seed=3).tasks
        opened = open_task(tmp_path, hold_out=("val", "test"), seed=3)
        assert task.images == {split: len(part) for split, part in opened.splits.items()}
        assert task.images["test"] > 0

    def test_every_fault_of_every_task_is_in_one_report(self, tmp_path: Path):
        make_task(tmp_path / "shelf/one", classes="a")
        put(tmp_path / "shelf/one/train/a/broken.png", b"not an image")
        make_task(tmp_path / "shelf/untested", splits=("train", "val"))
        make_task(tmp_path / "shelf/pets")
        make_task(tmp_path / "other/pets")
        put(tmp_path / "shelf/text/train/a/0.jpg", b"hello")
        make_task(tmp_path / "shelf/text", splits=("train", "test"))
        (tmp_path / "shelf/torn.zip").write_bytes(b"PK no zip")
        report = check([tmp_path / "shelf", tmp_path / "other", tmp_path / "attic"])
        assert kinds(report)["errors"] == [
            "duplicate-name pets",
            "no-test-images untested",
            "nothing-there",
            "one-class one",
            "unreadable one",
            "unreadable text",
            "unreadable-task torn",
        ]

    @pytest.mark.parametrize(
        ("files", "words"),
        [
            (["train/a/1.png", "test/a/2.png"], r"one class only \('a'\); expected two or more class folders"),
            (
                ["train/a/1.png", "train/b/2.png"],
                "no test images: there is no test folder with images of its classes",
            ),
            (["a/1.png", "b/2.png"], "no test images: its classes have too few images"),
            (["val/a/1.png", "test/a/2.png"], "there is test, val but no train folder"),
            (["train/a/1.png", "train/b\x07/2.png", "test/a/3.png"], "a module's card cannot hold these names"),
        ],
    )
    def test_messages_say_what_was_found_and_what_is_expected(self, tmp_path: Path, files: list[str], words: str):
        for file in files:
            put(tmp_path / "task" / file)
        with pytest.raises(BadDataError, match=words) as caught:
            refuse_bad_data(check([tmp_path / "task"]))
        assert not caught.value.report.ok

    def test_a_file_that_is_no_image_is_refused_unless_skipping_is_allowed(self, tmp_path: Path):
        make_task(tmp_path / "pets")
        put(tmp_path / "pets/train/a/torn.jpg", picture(form="JPEG")[:-200])
        put(tmp_path / "pets/test/b/empty.png", b"")
        with pytest.raises(DataError, match=r"pets: 2 image\(s\) cannot be read: .*torn.jpg \(.*empty.png \("):
            refuse_bad_data(check([tmp_path]))
        report = refuse_bad_data(check([tmp_path], skip_unreadable=True))
        assert kinds(report)["warnings"] == ["unreadable pets"]
        assert report.warnings[0].files == ("train/a/torn.jpg", "test/b/empty.png")
        assert report.tasks[0].unreadable == 2

    @pytest.mark.parametrize(("split", "kind"), [("train", "class-unreadable"), ("test", "no-test-images")])
    def test_a_split_without_readable_images_cannot_be_skipped(self, tmp_path: Path, split: str, kind: str):
        make_task(tmp_path / "pets")
        for file in (tmp_path / "pets" / split).glob("*/*"):
            file.write_bytes(b"hello")
        report = check([tmp_path], skip_unreadable=True)
        assert kinds(report)["errors"] == [f"{kind} pets"]

    def test_other_files_beside_the_images_are_only_warnings(self, tmp_path: Path):
        make_task(tmp_path / "pets")
        put(tmp_path / "pets/train/a/labels.csv", b"1,2")
        put(tmp_path / "notes/today.txt", b"-")
        report = check([tmp_path])
        assert report.ok
        assert kinds(report)["warnings"] == ["left-out", "note pets"]

    @pytest.mark.parametrize("packed", [False, True])
    def test_a_task_without_a_train_folder_is_refused(self, tmp_path: Path, packed: bool):
        make_task(tmp_path / "pets")
        if packed:
            make_zip(tmp_path / "cars.zip", ["val/a/1.png", "test/a/1.png", "test/b/1.png"])
        else:
            make_task(tmp_path / "cars", splits=("val", "test"))
        assert "no-train-folder cars" in kinds(check([tmp_path]))["errors"]

    def test_a_task_with_folders_for_splits_is_not_tested_on_its_training_images(self, tmp_path: Path):
        for label, number in itertools.product("ab", range(20)):
            put(tmp_path / "pets/train" / label / f"{number}.png")
        (tmp_path / "pets/test/a").mkdir(parents=True)
        report = check([tmp_path])
        assert kinds(report)["errors"] == ["no-test-images pets"]
        assert report.tasks[0].images == {"train": 34, "val": 6, "test": 0}

    def test_a_class_without_test_images_is_named(self, tmp_path: Path):
        make_task(tmp_path / "pets", classes="abc")
        for file in (tmp_path / "pets/test/c").iterdir():
            file.unlink()
        (problem,) = check([tmp_path]).problems
        assert (problem.kind, problem.fatal, problem.files) == ("class-untested", False, ("c",))


class TestChecksOfATask:
    def test_warnings_of_learning_are_reported_before_a_run(self, tmp_path: Path):
        for split in ("train", "test"):
            for name, count in (("Cat", 2), ("cat", 40)):
                folder = tmp_path / "pets" / split / name
                folder.mkdir(parents=True)
                for number in range(count):
                    rng = np.random.default_rng(len(str(folder)) * 100 + number)
                    pixels = rng.integers(0, 256, (9, 9, 3), np.uint8)
                    Image.fromarray(pixels).save(folder / f"{number}.png")
        found = [problem.kind for problem in check([tmp_path]).warnings]
        assert {"same-name", "unbalanced"} <= set(found)


class TestTwins:
    def test_each_kind_is_distinguished(self, tmp_path: Path):
        make_task(tmp_path / "pets")
        make_task(tmp_path / "cars")
        for number, file in enumerate(
            [
                *("pets/train/a/again.png", "pets/train/a/more.png"),
                *("pets/train/b/leak.png", "pets/test/b/leak.png"),
                *("pets/val/a/both.png", "pets/val/b/both.png"),
                *("pets/train/a/shared.png", "cars/train/a/shared.png"),
            ]
        ):
            put(tmp_path / file, picture(number // 2))
        report = check([tmp_path])
        assert report.ok
        assert kinds(report)["warnings"] == [
            "twins-across-classes pets",
            "twins-across-splits pets",
            "twins-across-tasks",
            "twins-in-split pets",
        ]
        cars, pets = report.tasks
        assert pets.twins_in_splits == 2
        assert pets.twins_across_splits == {"test in train": 1}
        assert (pets.twins_in_other_tasks, cars.twins_in_other_tasks) == (1, 1)
        assert "1 image(s) of 'cars' are images of 'pets' too" in str(report.warnings[-1])

    def test_one_picture_in_two_formats_is_a_twin(self, tmp_path: Path):
        make_task(tmp_path / "pets")
        put(tmp_path / "pets/train/a/x.png", picture(1, "PNG"))
        put(tmp_path / "pets/test/a/x.bmp", picture(1, "BMP"))
        report = check([tmp_path])
        assert report.tasks[0].twins_across_splits == {"test in train": 1}
        (group,) = report.twins
        assert not group.same_bytes

    def test_broken_files_are_no_twins(self, tmp_path: Path):
        make_task(tmp_path / "pets")
        for split in ("train", "test"):
            put(tmp_path / f"pets/{split}/a/empty.png", b"")
        assert check([tmp_path], skip_unreadable=True).twins == []

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        placed=st.lists(
            st.tuples(st.sampled_from(["x", "y"]), st.sampled_from(["train", "val", "test"]), st.integers(0, 5)),
            max_size=14,
        )
    )
    def test_counts_are_those_of_a_plain_count(self, tmp_path: Path, placed: list[tuple[str, str, int]]):
        """For any distribution of pictures over tasks and splits, the report equals a slow count."""
        root = tmp_path / str(next(_NUMBERS))
        for name in ("x", "y"):
            make_task(root / name)
        for index, (name, split, number) in enumerate(placed):
            put(root / name / split / "a" / f"extra{index}.png", picture(number))
        for task in check([root]).tasks:
            mine = [(split, number) for name, split, number in placed if name == task.name]
            other = {number for name, _, number in placed if name != task.name}
            train = {number for split, number in mine if split == "train"}
            assert task.twins_in_splits == len(mine) - len(set(mine))
            leaked = sum(split == "test" and number in train for split, number in mine)
            assert task.twins_across_splits.get("test in train", 0) == leaked
            assert task.twins_in_other_tasks == sum(number in other for _, number in mine)


def made_up(classes: int, images: dict[str, int], big: int = 0) -> TaskImages:
    """Return a task of file names, as subsampling opens none. The first class has `big` more images per split."""
    source = FolderSource(Path("nowhere"))
    splits = {}
    for split, count in images.items():
        labels = [label for label in range(classes) for _ in range(count + (big if label == 0 else 0))]
        files = tuple(ImageFile(source, f"{split}/{label}/{i}.png") for i, label in enumerate(labels))
        splits[split] = Split(files, np.array(labels, dtype=np.int64))
    return TaskImages("made up", tuple(f"c{label:04}" for label in range(classes)), splits, ())


class TestSubsample:
    def test_the_appendix_thins_out_every_class(self):
        task = datasets.subsample(made_up(100, {"train": 541, "val": 61, "test": 59}, big=9))
        counts = {split: np.bincount(part.labels).tolist() for split, part in task.splits.items()}
        assert counts == {"train": [540] * 100, "val": [60] * 100, "test": [60] + [59] * 99}

    def test_the_list_rule_leaves_small_splits_as_they_are(self):
        task = datasets.subsample(made_up(100, {"train": 10, "val": 61, "test": 10}, big=900), rule="list")
        counts = {split: np.bincount(part.labels).tolist() for split, part in task.splits.items()}
        assert counts == {"train": [910] + [10] * 99, "val": [60] * 100, "test": [910] + [10] * 99}

    def test_500_classes_are_drawn_where_there_are_more(self):
        whole = made_up(2526, {"train": 2, "val": 1, "test": 1}, big=200)
        first, again, other = (datasets.subsample(whole, seed=seed) for seed in (1, 1, 2))
        assert len(first.classes) == 500
        assert list(first.classes) == sorted(set(first.classes))
        assert set(first.classes) < set(whole.classes)
        assert first.classes == again.classes != other.classes

    @settings(max_examples=50, deadline=None)
    @given(classes=st.integers(2, 600), big=st.integers(0, 300), seed=st.integers(0, 2**32))
    def test_images_keep_their_class_and_none_is_drawn_twice(self, classes: int, big: int, seed: int):
        whole = made_up(classes, {"train": 2, "val": 1, "test": 1}, big=big)
        task = datasets.subsample(whole, seed=seed)
        for split, part in task.splits.items():
            assert len({file.name for file in part.files}) == len(part)
            for file, label in zip(part.files, part.labels, strict=True):
                assert task.classes[label] == f"c{int(file.name.split('/')[1]):04}"
            limit = round({"train": 54000, "val": 6000, "test": 6000}[split] / min(classes, 500))
            assert np.bincount(part.labels, minlength=1).max(initial=0) <= limit

    def test_the_seed_decides_the_draw(self):
        whole = made_up(300, {"train": 200, "val": 1, "test": 1})
        names = [[f.name for f in datasets.subsample(whole, seed=s).splits["train"].files] for s in (1, 1, 2)]
        assert len(names[0]) == 300 * 180
        assert names[0] == names[1] != names[2]


def make_zip(path: Path, files: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as made:
        for file in files:
            made.writestr(file, b"-")


@pytest.fixture(scope="module")
def skill102(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return all 102 datasets: two images per class, 200 of the first class, in zips that open fast."""
    folder = tmp_path_factory.mktemp("skill102")
    for row in datasets.collection("skill102").rows:
        make_zip(
            folder / f"{row.name}.zip",
            (
                f"{split}/{label:04}/{number}.png"
                for split in ("train", "val", "test")
                for label in range(row.classes)
                for number in range(2 if label else 200)
            ),
        )
    return folder


@pytest.mark.long
class TestSkill102:
    def test_the_list_is_the_papers(self):
        rows = datasets.collection("skill102").rows
        assert len(rows) == len({row.name for row in rows}) == 102
        assert sum(min(row.classes, 500) for row in rows) == 5033
        assert (rows[0].name, rows[0].classes) == ("102_Category_Flower_Dataset", 102)
        assert sum((rows[0].train, rows[0].val, rows[0].test)) == 8185
        assert sum((rows[1].train, rows[1].val, rows[1].test)) == 15524
        assert rows[-1].name == "ilab_deepvp"
        assert (sum(row.train for row in rows), sum(row.test for row in rows)) == (2_041_219, 243_467)

    def test_all_datasets_are_opened_in_order_and_reduced_to_the_listed_sizes(self, skill102: Path):
        tasks = datasets.open_collection("skill102", skill102)
        rows = datasets.collection("skill102").rows
        assert [task.name for task in tasks] == [row.name for row in rows]
        for task, row in zip(tasks, rows, strict=True):
            classes = min(row.classes, 500)
            assert len(task.classes) == classes
            for split, total in (("train", 54000), ("val", 6000), ("test", 6000)):
                found = np.bincount(task.splits[split].labels, minlength=classes).tolist()
                first = min(200, round(total / classes)) if task.classes[0] == "0000" else 2
                assert found == [first] + [2] * (classes - 1), (task.name, split)

    def test_sizes_that_differ_from_the_list_are_noted(self, skill102: Path):
        flowers = datasets.open_collection("skill102", skill102)[0]
        (note,) = flowers.notes
        assert "402 images in train (the list says 6,455)" in note
        assert "261 images in test (the list says 865)" in note

    def test_missing_ones_are_named_with_where_to_get_them(self, tmp_path: Path):
        make_task(tmp_path / "Food-101")
        with pytest.raises(DataError) as caught:
            datasets.open_collection("skill102", tmp_path)
        words = str(caught.value)
        assert "101 of 102 datasets are missing (102_Category_Flower_Dataset, MIT_Indoor_Scenes," in words
        assert "found 1 (Food-101)" in words
        assert "https://github.com/gyhandy/Shared-Knowledge-Lifelong-Learning" in words
        assert "DIR/<dataset>/{train,val,test}/<class>/…" in words
        assert "Food-101: 2 classes were found, the list says 101" in words
        (task,) = datasets.open_collection("skill102", tmp_path, partial=True)
        assert any("2 classes were found" in note for note in task.notes)

    def test_a_dataset_that_cannot_be_opened_is_refused_even_in_part(self, tmp_path: Path):
        make_task(tmp_path / "Food-101")
        make_task(tmp_path / "GTSRB", classes="a")
        with pytest.raises(DataError, match="GTSRB has one class only"):
            datasets.open_collection("skill102", tmp_path, partial=True)

    def test_the_authors_catalogue_gives_classes_and_splits(self, tmp_path: Path):
        (tmp_path / "0_collection").mkdir()
        database = sqlite3.connect(tmp_path / "0_collection/all_images.sqlite")
        database.execute("CREATE TABLE images (dataset, relative_path, class_id, set_id, problem, file_hash)")
        for label, split, number in itertools.product((0, 2, 10), range(3), range(2)):
            file = f"pictures/{label}-{split}-{number}.png"
            put(tmp_path / "OrigamiSet1.0" / file)
            database.execute("INSERT INTO images VALUES ('OrigamiSet1.0', ?, ?, ?, 0, '')", (file, label, split))
        database.execute("INSERT INTO images VALUES ('OrigamiSet1.0', 'pictures/bad.png', 0, 0, 1, '')")
        database.commit()
        database.close()
        (task,) = datasets.open_collection("skill102", tmp_path, partial=True)
        assert task.classes == ("0", "2", "10")
        for number, split in enumerate(("train", "val", "test")):
            expected = [f"pictures/{label}-{number}-{i}.png" for label in (0, 2, 10) for i in range(2)]
            assert [file.name for file in task.splits[split].files] == expected
            assert task.splits[split].labels.tolist() == [0, 0, 1, 1, 2, 2]
        assert check([tmp_path], dataset="skill102", partial=True).ok

    def test_an_invalid_catalogue_is_refused(self, tmp_path: Path):
        put(tmp_path / "0_collection/all_images.sqlite", b"no database at all, but long enough to be looked at")
        (problem,) = check([f"skill102:{tmp_path}"]).errors
        assert "all_images.sqlite cannot be read" in problem.text


@pytest.fixture(scope="module")
def decathlon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the datasets as the .tar files unpack: four-digit class numbers, test images without labels."""
    folder = tmp_path_factory.mktemp("decathlon")
    for row in datasets.collection("decathlon").rows:
        labelled = [
            f"{split}/{label:04}/{i}.jpg"
            for split, count in (("train", 4), ("val", 2))
            for label in range(1, row.classes + 1)
            for i in range(count)
        ]
        make_zip(folder / f"{row.name}.zip", [*labelled, "test/000001.jpg", "test/000002.jpg"])
    return folder


class TestDecathlon:
    def test_val_is_used_for_testing_and_train_is_split(self, decathlon: Path):
        tasks = datasets.open_collection("decathlon", decathlon)
        rows = datasets.collection("decathlon").rows
        assert [task.name for task in tasks] == [row.name for row in rows]
        assert [tasks[0].name, tasks[-1].name] == ["imagenet12", "vgg-flowers"]
        for task, row in zip(tasks, rows, strict=True):
            sizes = {split: len(part) for split, part in task.splits.items()}
            assert sizes == {"train": 3 * row.classes, "val": row.classes, "test": 2 * row.classes}
            assert all(file.name.startswith("val/") for file in task.splits["test"].files)
            assert all(file.name.startswith("train/") for file in task.splits["val"].files)

    def test_labels_of_test_images_are_used_if_available(self, tmp_path: Path):
        make_task(tmp_path / "daimlerpedcls", classes=["0001", "0002"])
        (task,) = datasets.open_collection("decathlon", tmp_path, partial=True)
        assert all(file.name.startswith("test/") for file in task.splits["test"].files)
        assert all(file.name.startswith("val/") for file in task.splits["val"].files)

    def test_missing_ones_are_named_with_where_to_get_them(self, tmp_path: Path):
        make_task(tmp_path / "imagenet", classes=["0001", "0002"])
        with pytest.raises(
            DataError, match=r"9 of 10 datasets are missing \(cifar100, .*robots.ox.ac.uk/~vgg/dec"
        ):
            datasets.open_collection("decathlon", tmp_path)


class TestPlaces:
    def test_a_name_before_a_colon_is_a_dataset(self, tmp_path: Path):
        make_task(tmp_path / "sets/daimlerpedcls")
        make_task(tmp_path / "pets")
        words = [tmp_path / "pets", f"decathlon:{tmp_path / 'sets'}"]
        assert [task.name for task in datasets.open_tasks(words, partial=True)] == ["pets", "daimlerpedcls"]
        assert kinds(check(words, partial=True))["errors"] == []
        assert kinds(check(words))["errors"] == ["missing"]

    def test_one_name_at_two_places_is_refused(self, tmp_path: Path):
        make_task(tmp_path / "one/pets")
        make_task(tmp_path / "two/pets")
        with pytest.raises(DataError, match="several tasks are named pets"):
            datasets.open_tasks([tmp_path / "one", tmp_path / "two"])

    def test_an_unknown_name_is_refused(self, tmp_path: Path):
        with pytest.raises(DataError, match="there is no dataset 'skill103'; expected one of skill102, decathlon"):
            check([tmp_path], dataset="skill103")

    def test_two_names_for_one_folder_are_refused(self, tmp_path: Path):
        with pytest.raises(DataError, match="names another dataset than --dataset decathlon"):
            check([f"skill102:{tmp_path}"], dataset="decathlon")


class TestCommand:
    def test_valid_data_ends_with_status_0(self, command, tmp_path: Path):
        make_task(tmp_path / "pets")
        put(tmp_path / "pets/train/a/notes.txt", b"-")
        ran = command("challenge", "data", "check", tmp_path)
        assert ran.code == 0
        assert "warning: pets: 1 file skipped: 1 " in ran.out
        assert ran.out.endswith("1 task(s), 12 images: 0 error(s), 1 warning(s); a run can start\n")

    def test_invalid_data_ends_with_status_1_and_all_faults(self, command, tmp_path: Path):
        make_task(tmp_path / "one", classes="a")
        make_task(tmp_path / "untested", splits=("train",))
        ran = command("challenge", "data", "check", tmp_path)
        assert ran.code == 1
        assert "error: one: one class only ('a')" in ran.out
        assert "error: untested: no test images" in ran.out
        assert "2 error(s), 1 warning(s); no run can start" in ran.out

    def test_json_has_every_file(self, command, tmp_path: Path):
        make_task(tmp_path / "pets")
        for split, number in itertools.product(("train", "test"), range(5)):
            put(tmp_path / f"pets/{split}/a/same{number}.png", picture(number))
        ran = command("challenge", "data", "check", tmp_path, "--json")
        assert ran.code == 0
        assert ran.json["ok"] is True
        (warning,) = ran.json["warnings"]
        assert warning["files"] == [f"test/a/same{number}.png" for number in range(5)]
        assert len(ran.json["twins"]) == 5
        place = {"task": "pets", "split": "train", "class": "a", "file": "train/a/same0.png"}
        assert ran.json["twins"][0]["files"][0] == place

    def test_a_dataset_is_checked_by_name(self, command, tmp_path: Path):
        make_task(tmp_path / "Food-101")
        ran = command("challenge", "data", "check", tmp_path, "--dataset", "skill102")
        assert ran.code == 1
        assert "101 of 102 datasets are missing" in ran.out
        assert "error: Food-101: 2 classes were found, the list says 101" in ran.out
        assert command("challenge", "data", "check", f"skill102:{tmp_path}", "--partial").code == 0

    def test_the_lists_are_printed(self, command):
        assert "decathlon: Visual Domain Decathlon, 10 datasets" in command("challenge", "data", "list").out
        ran = command("challenge", "data", "list", "skill102")
        assert "102_Category_Flower_Dataset" in ran.out
        assert "gyhandy/Shared-Knowledge-Lifelong-Learning" in ran.out
        listed = command("challenge", "data", "list", "decathlon", "--json").json["datasets"]
        assert listed[4] == {"name": "dtd", "classes": 47, "train": 1880, "val": 1880, "test": 1880}


@pytest.mark.long
def test_a_thinned_out_task_is_learned_and_tested_like_any(new_agent, tiny_tasks: Path, monkeypatch):
    """Subsampled folders can be learned and tested like any others."""
    monkeypatch.setattr("skillmesh_challenge.datasets.opening.TOTALS", {"train": 4, "val": 2, "test": 2})
    task = datasets.subsample(open_task(tiny_tasks / "shapes", hold_out=("val", "test")))
    assert [len(task.splits[split]) for split in ("train", "val", "test")] == [4, 2, 2]
    agent = new_agent("thin")
    result = evaluate(agent, [task])
    assert agent.tasks()[0].card.counts == (2, 2)
    assert result.tasks[0].test_images == 2


@pytest.mark.slow
def test_the_real_tasks_are_fit_for_a_run(real_tasks: Path):
    report = refuse_bad_data(check([real_tasks]))
    assert len(report.tasks) >= 2
    assert report.errors == []
