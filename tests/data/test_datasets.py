"""Tasks passed from Python: which kinds are read, how, and the errors for others."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, Subset

from skillmesh.backbone.building import import_timm
from skillmesh.data.datasets import task_of
from skillmesh.data.folder import ImageFile, TaskImages, open_task
from skillmesh.data.images import UnreadableImageError
from skillmesh.data.items import ItemImage, Spool, SpoolError, StoredImage
from skillmesh.errors import ArgumentError, DataError, SkillmeshError

if TYPE_CHECKING:
    from skillmesh.core import Core

NAMES = ["zebra", "ant", "mole"]
ARRAYS = np.random.default_rng(0).integers(0, 256, (30, 16, 20, 3), dtype=np.uint8)
LABELS = [index % 3 for index in range(30)]
WORDS = [NAMES[label] for label in LABELS]


def to_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Convert an image as torchvision's ToTensor does."""
    return torch.from_numpy(array).permute(2, 0, 1) / 255


def image_folder(path: Path, **options: Any) -> Any:
    import_timm()  # makes a CUDA build of torchvision work
    from torchvision.datasets import ImageFolder

    return ImageFolder(str(path), **options)


class Mapped:
    """A torch map-style dataset."""

    def __init__(self, items: Any, **attributes: Any) -> None:
        self.items = items
        self.reads: list[int] = []
        self.__dict__ |= attributes

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        self.reads.append(index)
        item = self.items[index]
        if isinstance(item, Exception):
            raise item
        return item


class Streamed(IterableDataset[Any]):
    """A torch iterable-style dataset; having a length does not make it map-style."""

    def __len__(self) -> int:
        return len(ARRAYS)

    def __iter__(self) -> Iterator[Any]:
        return zip(map(to_tensor, ARRAYS), torch.tensor(LABELS), strict=True)


def shown(task: TaskImages) -> dict[str, list[tuple[str, bytes]]]:
    """Return the class and the pixels of each image, by split."""
    return {
        name: [
            (task.classes[label], file.pixels(file.content(), 16).tobytes())
            for file, label in zip(split.files, split.labels, strict=True)
        ]
        for name, split in task.splits.items()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the same images as files: class/number.png."""
    root = tmp_path_factory.mktemp("folder") / "animals"
    for index, (array, word) in enumerate(zip(ARRAYS, WORDS, strict=True)):
        (root / word).mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(root / word / f"{index:02}.png")
    return root


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, list[tuple[str, bytes]]]:
    return shown(open_task(folder))


def pillow() -> list[Image.Image]:
    return [Image.fromarray(array) for array in ARRAYS]


def encoded(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def paths(folder: Path) -> list[Path]:
    return [folder / word / f"{index:02}.png" for index, word in enumerate(WORDS)]


WITH_LABELS: dict[str, Callable[[Path], Any]] = {
    "array": lambda _: ARRAYS,
    "floats": lambda _: ARRAYS / np.float32(255),
    "channels first": lambda _: ARRAYS.transpose(0, 3, 1, 2),
    "tensor": lambda _: torch.from_numpy(ARRAYS).permute(0, 3, 1, 2) / 255,
    "list of arrays": lambda _: list(ARRAYS),
    "list of tensors": lambda _: [to_tensor(array) for array in ARRAYS],
    "Pillow": lambda _: pillow(),
    "paths": paths,
    "strings": lambda folder: tuple(map(str, paths(folder))),
    "array of strings": lambda folder: np.array([str(path) for path in paths(folder)]),
    "bytes": lambda folder: [path.read_bytes() for path in paths(folder)],
    "generator": lambda _: iter(pillow()),
    "lazy sequence": lambda _: Mapped(pillow()),
}


@pytest.mark.parametrize("kind", WITH_LABELS)
def test_images_with_labels_equal_the_same_images_in_a_folder(kind: str, folder: Path, expected: Any):
    with task_of(WITH_LABELS[kind](folder), WORDS, name="animals") as task:
        assert task.name == "animals"
        assert task.classes == ("ant", "mole", "zebra")
        assert shown(task) == expected
        assert shown(task) == expected  # again


@pytest.mark.parametrize(
    "labels",
    [LABELS, tuple(LABELS), np.array(LABELS), torch.tensor(LABELS), torch.tensor(LABELS)[:, None], iter(LABELS)],
)
def test_integers_index_the_given_classes(labels: Any, expected: Any):
    with task_of(ARRAYS, labels, name="animals", classes=NAMES) as task:
        assert shown(task) == expected


DATASETS: dict[str, Callable[[], Any]] = {
    "map": lambda: Mapped(list(zip(pillow(), WORDS, strict=True))),
    "map of numbers": lambda: Mapped(list(zip(map(to_tensor, ARRAYS), LABELS, strict=True)), classes=NAMES),
    "map with targets": lambda: Mapped(list(zip(ARRAYS, LABELS, strict=True)), classes=NAMES, targets=LABELS),
    "map with labels": lambda: Mapped(list(zip(ARRAYS, WORDS, strict=True)), labels=WORDS),
    "map of rows": lambda: Mapped([{"img": a, "fine_label": w} for a, w in zip(ARRAYS, WORDS, strict=True)]),
    "list of pairs": lambda: list(zip(ARRAYS, WORDS, strict=True)),
    "generator": lambda: ((image, word) for image, word in zip(pillow(), WORDS, strict=True)),
    "generator of bytes": lambda: ((encoded(image), word) for image, word in zip(pillow(), WORDS, strict=True)),
    "columns": lambda: {"image": ARRAYS, "label": WORDS},
    "subset": lambda: Subset(
        Mapped([(ARRAYS[0], 1), *zip(ARRAYS, LABELS, strict=True)], classes=NAMES, targets=[1, *LABELS]),
        range(1, 31),
    ),
}


@pytest.mark.parametrize("kind", DATASETS)
def test_datasets_equal_the_same_images_in_a_folder(kind: str, expected: Any):
    with task_of(DATASETS[kind](), name="animals") as task:
        assert shown(task) == expected
        assert shown(task) == expected


def test_an_iterable_dataset_of_torch_needs_names_for_its_numbers(expected: Any):
    with task_of(Streamed(), name="animals", classes=NAMES) as task:
        assert shown(task) == expected
    with task_of(Streamed(), name="animals") as task:
        assert task.classes == ("0", "1", "2")


def test_the_seed_splits_as_it_does_for_folders(folder: Path, expected: Any):
    with task_of(ARRAYS, WORDS, name="animals", seed=3) as task:
        assert shown(task) == shown(open_task(folder, seed=3)) != expected


def test_an_image_folder_equals_its_folder(folder: Path):
    plain = open_task(folder)
    with task_of(image_folder(folder), name="animals") as task:
        assert (task.classes, task.notes) == (plain.classes, ())
        for split in plain.splits:
            ours, theirs = task.splits[split], plain.splits[split]
            assert [file.name for file in ours.files] == [file.name for file in theirs.files]
            assert [file.content() for file in ours.files] == [file.content() for file in theirs.files]
            assert ours.labels.tolist() == theirs.labels.tolist()


def test_an_image_folder_with_folders_inside_a_class_equals_its_folder(folder: Path, tmp_path: Path):
    """torchvision lists a class's own files first, a folder sorts whole paths."""
    for index in range(12):
        place = tmp_path / "ab"[index % 2] / ("0" if index % 4 < 2 else "")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(ARRAYS[index]).save(place / f"{index:02}z.png" if index % 3 else place / f"{index:02}.png")
    with task_of(image_folder(tmp_path), name="animals") as task:
        assert shown(task) == shown(open_task(tmp_path))


def test_an_image_folders_transform_is_left_out_with_a_note(folder: Path, expected: Any):
    with task_of(image_folder(folder, transform=lambda image: image.rotate(90)), name="animals") as task:
        assert shown(task) == expected
        assert task.notes == ("the files of ImageFolder were read as they are, without its transform",)


def test_transformed_labels_are_used(folder: Path):
    dataset = image_folder(folder, target_transform=lambda label: (label + 1) % 3)
    with task_of(dataset, name="animals") as task:
        moved = {"ant": "mole", "mole": "zebra", "zebra": "ant"}
        plain = shown(open_task(folder))
        own = {pixels: label for label, pixels in plain["train"] + plain["val"]}
        for label, pixels in shown(task)["train"]:
            assert label == moved[own[pixels]]


def test_targets_that_contradict_the_items_are_ignored_with_a_note(expected: Any):
    dataset = Mapped(list(zip(ARRAYS, LABELS, strict=True)), classes=NAMES, targets=LABELS[::-1])
    with task_of(dataset, name="animals") as task:
        assert shown(task) == expected
        assert task.notes == (
            "the dataset lists other labels than it returns with images; the returned ones were used",
        )


def test_classes_without_images_are_left_out_with_a_note():
    with task_of(ARRAYS, LABELS, name="animals", classes=[*NAMES, "yak"]) as task:
        assert task.classes == ("ant", "mole", "zebra")
        assert task.notes == ("class(es) without images ignored: yak",)


def test_the_module_equals_that_of_the_folder(folder: Path, new_agent: Callable[..., Core]):
    """Without views: these are drawn by an image's bytes, which are others once it is decoded."""
    plain, _ = new_agent().learn(folder, views=0)
    given_as = {
        "ImageFolder": image_folder(folder),
        "map": DATASETS["map"](),
        "map with targets": DATASETS["map with targets"](),
        "generator": DATASETS["generator"](),
    }
    for dataset in given_as.values():
        with task_of(dataset, name="animals") as task:
            module, lesson = new_agent().learn(task, views=0)
        assert not lesson.unreadable
        assert module.card.classes == plain.card.classes
        assert module.card.counts == plain.card.counts
        assert module.tensors.keys() == plain.tensors.keys()
        for name, tensor in plain.tensors.items():
            assert np.array_equal(module.tensors[name], tensor), name


# Lazy reading, and temporary storage.


def test_a_dataset_with_a_list_of_labels_is_read_lazily():
    dataset = Mapped([(array, label) for array, label in zip(ARRAYS, LABELS, strict=True)], targets=LABELS)
    with task_of(dataset, name="animals") as task:
        assert len(set(dataset.reads)) == 4
        files = [file for split in task.splits.values() for file in split.files]
        assert all(isinstance(file, ItemImage) for file in files)


def test_arrays_are_not_copied():
    with task_of(ARRAYS, LABELS, name="animals") as task:
        files = [file for split in task.splits.values() for file in split.files]
        assert all(isinstance(file, ItemImage) and file.items is ARRAYS for file in files)


def test_images_that_change_each_time_are_read_once():
    class Mirrored(Mapped):
        def __getitem__(self, index: int) -> Any:
            image, label = super().__getitem__(index)
            return (image[:, ::-1] if len(self.reads) % 2 else image), label

    dataset = Mirrored(list(zip(ARRAYS, LABELS, strict=True)), targets=LABELS)
    with task_of(dataset, name="animals") as task:
        assert shown(task) == shown(task)
        assert "change each time they are read" in task.notes[0]


def test_stored_images_are_deleted_afterwards():
    with task_of(DATASETS["generator"](), name="animals") as task:
        file = task.splits["train"].files[0]
        assert isinstance(file, StoredImage)
        assert file.size() == len(file.content())
    with pytest.raises(UnreadableImageError, match="deleted since"):
        file.content()


def test_stored_images_are_deleted_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = []

    def learn() -> None:
        with task_of(DATASETS["generator"](), name="animals") as task:
            kept.append(task.splits["train"].files[0])
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        learn()
    with pytest.raises(UnreadableImageError):
        kept[0].content()
    assert not list(tmp_path.iterdir())


def test_files_given_by_path_are_not_stored_again(folder: Path, expected: Any):
    with task_of(iter(zip(paths(folder), WORDS, strict=True)), name="animals") as task:
        assert task.splits["train"].files[0].name == str(folder / "ant" / task.splits["train"].files[0].name[-6:])
        assert shown(task) == expected


def test_a_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch):
    with closing(Spool()) as spool:
        monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: open("/dev/full", "wb", buffering=0))  # noqa: PTH123, SIM115
        with pytest.raises(SpoolError, match=r"image 7 cannot be stored in .*No space left.*TMPDIR"):
            spool.put(ARRAYS[0], 7)


def test_photos_with_an_orientation_are_turned_once():
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = io.BytesIO()
    Image.fromarray(ARRAYS[0]).save(photo, "PNG", exif=exif)
    photos = [Image.open(io.BytesIO(photo.getvalue())), Image.fromarray(ARRAYS[1])]
    files, labels = [photo.getvalue(), encoded(photos[1])], ["a", "b"]
    tasks = []
    for images in (files, photos, iter(photos)):
        with task_of(images, labels, name="t") as task:
            tasks.append(shown(task))
    assert tasks[0] == tasks[1] == tasks[2]


def test_a_dataset_is_read_by_one_thread_at_a_time():
    inside, most = [0], [0]

    class Fragile(Mapped):
        def __getitem__(self, index: int) -> Any:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            threading.Event().wait(0.002)
            inside[0] -= 1
            return super().__getitem__(index)

    dataset = Fragile(list(zip(ARRAYS, LABELS, strict=True)), targets=LABELS)
    with task_of(dataset, name="animals") as task:
        threads = [threading.Thread(target=file.content) for file in task.splits["train"].files]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == [1]


def test_equal_names_are_made_distinct(folder: Path, new_agent: Callable[..., Core]):
    """A path given twice may be for training and for validation: exactly one of the two must be left out."""
    with task_of([*paths(folder), *paths(folder)], [*WORDS, *WORDS], name="animals") as task:
        names = [file.name for split in task.splits.values() for file in split.files]
        assert len(set(names)) == 60
        _, lesson = new_agent().learn(task)
    assert lesson.images > 30
    assert sum(lesson.facts["counts"]) == len(task.splits["train"])


# Faults.


def test_one_broken_item_is_skipped_and_listed(new_agent: Callable[..., Core]):
    arrays: list[Any] = list(ARRAYS)
    arrays[3] = np.full((16, 20, 3), np.nan)
    arrays[4] = b"no image"
    with task_of(arrays, WORDS, name="animals") as task:
        _, lesson = new_agent().learn(task)
    assert sorted(bad.name for bad in lesson.unreadable) == ["image 3", "image 4"]
    items: list[Any] = [*zip(arrays, WORDS, strict=True)]
    items[5] = OSError("the disk is gone")
    with task_of(Mapped(items), name="animals") as task:
        assert task.notes == (
            "1 item(s) of the dataset skipped that cannot be read: item 5 (OSError: the disk is gone)",
        )
        _, lesson = new_agent().learn(task)
    assert sorted(bad.name for bad in lesson.unreadable) == ["image 3", "image 4"]
    with task_of(Mapped(items, targets=WORDS), name="animals") as task:
        _, lesson = new_agent().learn(task)
    assert sorted(bad.name for bad in lesson.unreadable) == ["image 3", "image 4", "image 5"]


NORMALISED = r"image 0 has floats from -.*expected 0 to 1.*leave Normalize out"


@pytest.mark.parametrize(
    "make",
    [
        lambda tensors: (tensors, LABELS),
        lambda tensors: (torch.stack(tensors), LABELS),
        lambda tensors: (Mapped(list(zip(tensors, LABELS, strict=True))), None),
        lambda tensors: (Mapped(list(zip(tensors, LABELS, strict=True)), targets=LABELS), None),
        lambda tensors: (zip(tensors, LABELS, strict=True), None),
    ],
)
def test_normalised_tensors_are_refused_at_once(make: Any):
    images, labels = make([(to_tensor(array) - 0.5) / 0.25 for array in ARRAYS])
    with pytest.raises(DataError, match=NORMALISED), task_of(images, labels, name="t"):
        pass


def failing() -> Iterator[Any]:
    yield ARRAYS[0], "a"
    raise RuntimeError("no more")


BAD: dict[str, tuple[Any, Any, Any, str]] = {
    "lengths": (ARRAYS, LABELS[1:], None, r"found 30 images and 29 labels; expected one label for each"),
    "more labels": (iter(ARRAYS), [*LABELS, 1], None, r"found only 30 images and more labels"),
    "more images": (iter(ARRAYS), LABELS[1:], None, r"found more images and only 29 labels"),
    "no labels": (ARRAYS, None, None, r"labels: found none for an array of images"),
    "a list without labels": (list(ARRAYS), None, None, r"item 0 of the dataset is a ndarray; expected \(image"),
    "labels missing": (ARRAYS, [None] * 30, None, r"label of image 0 is missing; expected the name.*leave out"),
    "floats": (ARRAYS, [0.5] * 30, None, r"label of image 0 is 0.5; expected the name.*int\(label\)"),
    "one-hot": (ARRAYS, np.eye(30), None, r"labels: found an array of shape \(30, 30\).*argmax"),
    "one-hot rows": (ARRAYS, list(np.eye(30)), None, r"label of image 0 is a ndarray.*position of the largest"),
    "empty name": (ARRAYS, [""] * 30, None, r"label of image 0 is ''; expected the name"),
    "outside": (ARRAYS, LABELS, ["a", "b"], r"label of image 2 is 2; expected 0 to 1, since 2 classes are named"),
    "negative": (ARRAYS, [-1] * 30, NAMES, r"label of image 0 is -1; expected 0 or more.*without a label"),
    "unknown name": (ARRAYS, ["cow"] * 30, NAMES, r"image 0 is 'cow'; expected one of the classes 'zebra'"),
    "mixed": (ARRAYS, [0, "a"] * 15, None, r"label of image 0 is a number, that of image 1 a name"),
    "one class": (ARRAYS, ["a"] * 30, None, r"'t' has one class only \('a'\)"),
    "empty": ([], [], None, r"'t' has no images"),
    "empty dataset": (Mapped([]), None, None, r"'t' has no images"),
    "nothing": (None, None, None, r"images: found NoneType; expected images with labels, or a dataset"),
    "labels of text": (ARRAYS, "abc", None, r"labels: found 'abc'; expected a list"),
    "a path": ("photos", LABELS, None, r"images: found 'photos', one str; expected several"),
    "a mapping with labels": ({"a": 1}, LABELS, None, r"images: found a dict"),
    "columns": ({"x": ARRAYS, "y": LABELS}, None, None, r"found the columns 'x', 'y'; expected one named 'image'"),
    "rows": (Mapped([{"image": 1, "y": 2}]), None, None, r"columns 'image', 'y'; expected one named 'label'"),
    "triples": (Mapped([(1, 2, 3)]), None, None, r"item 0 of the dataset is a tuple of 3; expected \(image"),
    "wrong types": (Mapped([(1, 2)]), None, None, r"image 0 is of type int; expected a path"),
    "loader": (DataLoader(DATASETS["map"]()), None, None, r"found a DataLoader.*loader.dataset"),
    "all broken": (Mapped([OSError("x")] * 3), None, None, r"no item of the dataset can be read: item 0 \(OSE"),
    "a generator that fails": (failing(), None, None, r"failed after 1 items: RuntimeError: no more"),
    "classes of text": (ARRAYS, LABELS, "abc", r"classes: found 'abc'; expected a list of names"),
    "a class of no text": (ARRAYS, LABELS, ["a", 1, "c"], r"classes: found 1 at position 1; expected a name"),
    "equal classes": (ARRAYS, LABELS, ["a", "a", "c"], r"classes: found 'a' more than once"),
    "own equal classes": (
        Mapped([(ARRAYS[0], 0)], classes=["a", "a"]), None, None, r"own classes: found 'a' more than once"
    ),
    "one image": (ARRAYS[0][:, :, 0], LABELS, None, r"array of uint8 and shape \(16, 20\); expected \(n, height"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_wrong_input_is_reported(fault: str):
    images, labels, classes, message = BAD[fault]
    with (
        pytest.raises((DataError, ArgumentError), match=message),
        task_of(images, labels, name="t", classes=classes),
    ):
        pass


def test_grey_images_need_no_fourth_axis_beside_labels():
    with task_of(ARRAYS[..., 0], LABELS, name="t") as grey, task_of(ARRAYS[..., :1], LABELS, name="t") as four:
        assert shown(grey) == shown(four)


@given(
    st.lists(
        st.one_of(
            st.text(max_size=3),
            st.integers(-2, 5),
            st.booleans(),
            st.floats(),
            st.none(),
            st.builds(np.int64, st.integers(0, 3)),
            st.builds(torch.tensor, st.integers(0, 3)),
            st.binary(max_size=2),
            st.lists(st.integers(), max_size=2),
        ),
        max_size=8,
    ),
    st.none() | st.lists(st.text(max_size=2), max_size=4),
)
@settings(max_examples=300)
def test_any_labels_are_accepted_completely_or_refused(labels: list[Any], classes: list[str] | None):
    for images in (ARRAYS[: len(labels)], iter(ARRAYS[: len(labels)])):
        try:
            with task_of(images, labels, name="t", classes=classes) as task:
                assert len(task.classes) > 1
                assert list(task.classes) == sorted(task.classes)
                assert sum(map(len, task.splits.values())) == len(labels)
                assert set(task.splits["train"].labels) == set(range(len(task.classes)))
        except SkillmeshError:
            pass


def test_importing_needs_neither_torch_nor_datasets():
    code = (
        "import sys, skillmesh.data.datasets\n"
        "assert not {'torch', 'torchvision', 'datasets', 'pandas', 'PIL'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Hugging Face.


@pytest.fixture(scope="module")
def hub() -> Any:
    return pytest.importorskip("datasets", reason="the extra `datasets` is not installed")


@pytest.fixture
def table(hub: Any, folder: Path) -> Any:
    features = hub.Features({"image": hub.Image(), "label": hub.ClassLabel(names=NAMES), "id": hub.Value("int64")})
    columns = {"image": list(map(str, paths(folder))), "label": LABELS, "id": range(30)}
    return hub.Dataset.from_dict(columns, features=features)


def test_a_table_gives_its_files_unchanged(table: Any, hub: Any, folder: Path, expected: Any):
    embedded = table.map(lambda row: row)  # stores the files' bytes
    photos = {path.read_bytes() for path in paths(folder)}
    for kind in (table, embedded, table.with_format("torch"), table.to_iterable_dataset(), table.shuffle(seed=1)):
        with task_of(kind, name="animals") as task:
            assert task.classes == ("ant", "mole", "zebra")
            files = [file for split in task.splits.values() for file in split.files]
            assert {file.content() for file in files} == photos
    with task_of(table, name="animals") as task:
        assert shown(task) == expected


def test_a_tables_transform_is_left_out_with_a_note(table: Any, expected: Any):
    with task_of(table.with_transform(lambda rows: {"image": [None], "label": [0]}), name="animals") as task:
        assert shown(task) == expected
        assert task.notes == ("the dataset's images were read as they are, without its transform",)


def test_columns_of_a_table_are_found_by_their_kind(table: Any, expected: Any):
    with task_of(table.rename_columns({"image": "x", "label": "y"}), name="animals") as task:
        assert shown(task) == expected
    with task_of(table["image"], table["label"], name="animals", classes=NAMES) as task:
        assert shown(task) == expected


def test_tables_that_cannot_be_a_task_are_refused(table: Any, hub: Any):
    with pytest.raises(ArgumentError, match=r"DatasetDict of several datasets \('train', 'test'\).*\['train'\]"):
        task_of(hub.DatasetDict(train=table, test=table), name="t").__enter__()
    with pytest.raises(DataError, match=r"found the columns 'label', 'id'; expected one named 'image'"):
        task_of(table.remove_columns("image"), name="t").__enter__()


def test_a_custom_dataset_that_looks_like_an_image_folder_is_read_by_index(folder: Path):
    """It may crop what it reads, so that its images differ from the files."""

    class Cropped:
        def __init__(self) -> None:
            self.root = str(folder)
            paths = sorted(path for path in folder.rglob("*") if path.suffix in (".png", ".jpg"))
            self.classes = sorted({path.parent.name for path in paths})
            self.samples = [(str(path), self.classes.index(path.parent.name)) for path in paths]
            self.targets = [label for _, label in self.samples]

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, index: int) -> tuple[Image.Image, int]:
            path, label = self.samples[index]
            return Image.open(path).convert("RGB").crop((0, 0, 9, 9)), label

    with task_of(Cropped(), name="cropped") as task:
        images = [image for split in task.splits.values() for image in split.files]
        assert images
        assert not any(isinstance(image, ImageFile) for image in images)
