"""Photos with every suffix are read, or named with what is missing; linked folders are read once each."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, features

from skillmesh.data import formats
from skillmesh.data.folder import find_tasks, open_task
from skillmesh.data.formats import PILLOW_FORMATS, Skipped, image_kind, other_kind
from skillmesh.data.images import UnreadableImageError, decode
from skillmesh.data.sources import files_below
from skillmesh.errors import DataError

RED = Image.new("RGB", (16, 16), (200, 30, 60))


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    """Clear caches, so that every test checks again what is installed."""
    formats.missing_for.cache_clear()
    yield
    formats.missing_for.cache_clear()


def encoded(kind: str) -> bytes:
    buffer = io.BytesIO()
    RED.save(buffer, kind)
    return buffer.getvalue()


def heic() -> bytes:
    pillow_heif = pytest.importorskip("pillow_heif")
    buffer = io.BytesIO()
    pillow_heif.from_pillow(RED).save(buffer)
    return buffer.getvalue()


def make(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


@pytest.fixture
def without_heif(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate that the extra is not installed."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)


@pytest.fixture
def with_heif(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate that the extra is installed, as far as listing files is concerned."""
    monkeypatch.setattr(formats, "find_spec", lambda name: object())


class TestEndings:
    @pytest.mark.parametrize("ending", ["jfif", "JPE", "mpo", "avif", "heic", "HEIF", "hif"])
    def test_of_less_common_formats_are_images(self, tmp_path: Path, with_heif: None, ending: str):
        task = open_task(make(tmp_path, f"cat/1.{ending}", f"dog/1.{ending}"), hold_out=())
        assert (len(task.splits["train"]), task.notes) == (2, ())

    def test_heic_without_the_extra_is_counted_with_the_install_command(self, tmp_path: Path, without_heif: None):
        make(tmp_path, "cat/1.jpg", "dog/1.jpg", *(f"cat/{i}.HEIC" for i in range(9)))
        make(tmp_path, "a.txt", "b.txt", "dog/film.mov")
        (note,) = open_task(tmp_path, hold_out=()).notes
        assert note == (
            "12 files skipped: 9 .heic (pillow-heif reads them: pip install pillow-heif), "
            "2 .txt, 1 .mov (not images), such as cat/0.HEIC, a.txt, dog/film.mov"
        )

    def test_a_task_of_heic_alone_is_refused_with_the_install_command(self, tmp_path: Path, without_heif: None):
        make(tmp_path, *(f"{c}/{i}.heic" for c in ("cat", "dog") for i in range(3)))
        with pytest.raises(DataError) as refusal:
            open_task(tmp_path)
        assert str(refusal.value) == (
            f"no class folder in {tmp_path} holds an image that can be read here: 6 files skipped: 6 .heic "
            "(pillow-heif reads them: pip install pillow-heif), such as cat/0.heic"
        )

    def test_a_class_lost_to_heic_is_explained(self, tmp_path: Path, without_heif: None):
        make(tmp_path, "cat/1.jpg", "dog/1.heic")
        with pytest.raises(DataError, match=r"one class only \('cat'\).*1 file skipped: 1 \.heic \(pillow-heif"):
            open_task(tmp_path)

    def test_splits_do_not_become_classes_if_training_images_cannot_be_read(
        self, tmp_path: Path, without_heif: None
    ):
        make(
            tmp_path,
            *(f"train/{c}/1.heic" for c in "ab"),
            *(f"{s}/{c}/1.jpg" for s in ("val", "test") for c in "ab"),
        )
        with pytest.raises(DataError, match=r"no class folder in .* can be read here: 2 files skipped: 2 \.heic"):
            open_task(tmp_path)

    def test_a_folder_of_heic_counts_as_a_task(self, tmp_path: Path, without_heif: None):
        make(tmp_path, "pets/cat/1.heic", "pets/dog/1.heic")
        assert find_tasks([tmp_path]) == [tmp_path / "pets"]

    def test_skipped_files_are_named_if_only_one_task_can_be_read(self, tmp_path: Path, without_heif: None):
        make(tmp_path, "pets/cat/1.jpg", "pets/dog/1.jpg", "wild/fox/1.heic")
        with pytest.raises(DataError, match=r"one class only \('pets'\).*1 file skipped: 1 \.heic \(pillow-heif"):
            open_task(tmp_path)

    def test_avif_is_reported_if_pillow_is_too_old(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(features, "check", lambda name: False)
        make(tmp_path, "cat/1.avif", "dog/1.avif")
        with pytest.raises(DataError, match=r"2 \.avif \(Pillow 11\.3 or newer reads them: pip install --upgrade"):
            open_task(tmp_path)
        with pytest.raises(UnreadableImageError, match=r"AVIF image.*Pillow 11\.3 or newer"):
            decode(b"\0\0\0\x20ftypavif\0\0\0\0avifmif1", 8)

    def test_only_the_first_six_kinds_are_listed(self):
        text = str(Skipped.of(f"{i}.{chr(97 + i)}" for i in range(20)))
        assert text.startswith(
            "20 files skipped: 1 .a, 1 .b, 1 .c, 1 .d, 1 .e, 1 .f, 14 of other kinds (not images)"
        )

    def test_a_name_without_a_suffix_is_described(self):
        assert str(Skipped.of(["Makefile"])) == (
            "1 file skipped: 1 without an extension (not images), such as Makefile"
        )

    @pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF", "MPO"])
    def test_formats_are_recognised_by_their_first_bytes(self, kind: str):
        expected = "jpeg" if kind == "MPO" else kind.lower()
        assert image_kind(encoded(kind)[:64]) == expected


class TestHeic:
    def test_is_decoded(self):
        pixels = decode(heic(), 16)
        assert np.abs(pixels.astype(int) - [200, 30, 60]).max() < 12

    def test_is_read_under_any_suffix(self, tmp_path: Path):
        make(tmp_path, "dog/1.jpg", "cat/1.jpg")
        (tmp_path / "cat/1.jpg").write_bytes(heic())
        file = open_task(tmp_path, hold_out=()).splits["train"].files[0]
        assert file.pixels(file.content(), 8).shape == (8, 8, 3)

    @pytest.mark.parametrize("brand", [b"heic", b"mif1", b"msf1"])
    def test_without_a_reader_says_what_to_install(self, without_heif: None, brand: bytes):
        with pytest.raises(UnreadableImageError, match=r"HEIC image.*pip install pillow-heif"):
            decode(b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0mif1heic" + bytes(99), 8)

    def test_a_damaged_one_is_an_unreadable_image(self):
        with pytest.raises(UnreadableImageError):
            decode(heic()[:200], 8)

    def test_the_opener_is_registered_at_the_first_one_and_may_be_registered_twice(self, tmp_path: Path):
        (tmp_path / "photo.heic").write_bytes(heic())
        (tmp_path / "photo.png").write_bytes(encoded("PNG"))
        code = (
            "import sys, skillmesh\nfrom pathlib import Path\nfrom PIL import Image\n"
            "from skillmesh.data.folder import open_task\n"
            "from skillmesh.data.images import decode\n"
            "from skillmesh.data.formats import register_heif\n"
            "decode(Path(sys.argv[1], 'photo.png').read_bytes(), 8)\n"
            "print('pillow_heif' in sys.modules, 'HEIF' in Image.OPEN)\n"
            "decode(Path(sys.argv[1], 'photo.heic').read_bytes(), 8)\n"
            "register_heif.cache_clear()\nregister_heif()\n"
            "decode(Path(sys.argv[1], 'photo.heic').read_bytes(), 8)\nprint(Image.ID.count('HEIF'))\n"
        )
        call = [sys.executable, "-c", code, str(tmp_path)]
        ran = subprocess.run(call, capture_output=True, text=True, check=True)
        assert ran.stdout.split() == ["False", "False", "1"]


class TestLinks:
    @pytest.fixture
    def store(self, tmp_path: Path) -> Path:
        return make(tmp_path / "store", "cat/1.jpg", "cat/2.jpg", "dog/old/1.jpg", "dog/2.jpg")

    def test_class_folders_behind_links_are_read(self, tmp_path: Path, store: Path):
        task = tmp_path / "pets"
        task.mkdir()
        for name in ("cat", "dog"):
            (task / name).symlink_to(store / name)
        found = open_task(task, hold_out=())
        assert (found.classes, len(found.splits["train"]), found.notes) == (("cat", "dog"), 4, ())
        assert found.splits["train"].files[0].content() == b"x"
        assert find_tasks([tmp_path / "pets"]) == [task]

    @pytest.mark.parametrize("target", [".", "..", "../..", "../../.."])
    def test_a_link_to_a_parent_folder_is_not_followed(self, tmp_path: Path, target: str):
        make(tmp_path, "pets/cat/1.jpg", "pets/dog/1.jpg", "other/1.jpg")
        (tmp_path / "pets/cat/loop").symlink_to(target, target_is_directory=True)
        assert files_below(tmp_path / "pets") == ["cat/1.jpg", "dog/1.jpg"]

    def test_a_loop_behind_a_link_ends(self, tmp_path: Path, store: Path):
        (store / "cat/up").symlink_to(store)
        (tmp_path / "pets").mkdir()
        (tmp_path / "pets/cat").symlink_to(store / "cat")
        assert files_below(tmp_path / "pets") == ["cat/1.jpg", "cat/2.jpg"]

    def test_a_link_back_to_a_folder_around_the_task_is_not_followed(self, tmp_path: Path, store: Path):
        make(tmp_path / "mine", "pets/dog/1.jpg", "private/1.jpg")
        (store / "cat/home").symlink_to(tmp_path / "mine")
        (tmp_path / "mine/pets/cat").symlink_to(store / "cat")
        assert files_below(tmp_path / "mine/pets") == ["cat/1.jpg", "cat/2.jpg", "dog/1.jpg"]

    def test_two_folders_that_link_to_each_other_are_read_once(self, store: Path):
        (store / "cat/dogs").symlink_to("../dog")
        (store / "dog/cats").symlink_to("../cat")
        assert files_below(store) == ["cat/1.jpg", "cat/2.jpg", "dog/2.jpg", "dog/old/1.jpg"]

    def test_a_folders_own_name_takes_precedence_over_links(self, store: Path):
        (store / "ant").symlink_to("dog")
        assert open_task(store, hold_out=()).classes == ("cat", "dog")

    def test_broken_links_are_listed_as_files(self, store: Path):
        (store / "cat/gone.jpg").symlink_to("nowhere.jpg")
        (store / "cat/self.jpg").symlink_to("self.jpg")
        assert {"cat/gone.jpg", "cat/self.jpg"} < set(files_below(store))

    def test_pipes_are_not_listed(self, store: Path):
        os.mkfifo(store / "cat/pipe.jpg")
        assert len(files_below(store)) == 4

    def test_a_folder_without_permission_is_named(self, store: Path, monkeypatch: pytest.MonkeyPatch):
        def closed(folder: Path) -> None:
            raise PermissionError(13, "Permission denied", str(folder))

        monkeypatch.setattr(os, "scandir", closed)
        with pytest.raises(DataError, match=r"cannot read the folder .*store: Permission denied; allow that"):
            open_task(store)


class TestOtherKinds:
    @pytest.mark.parametrize(
        ("head", "expected"),
        [
            (b"", "an empty file"),
            (b"Dear diary,\ntoday", "text ('Dear diary, today')"),
            (b"%PDF-1.7\n%\xe2", "a PDF document"),
            (b"\0\0\0\x14ftypqt  \0\0\0\0qt  ", "a video"),
            (b"\0\1\2\3", "data of an unknown format"),
        ],
    )
    def test_are_described(self, head: bytes, expected: str):
        assert other_kind(head) == expected

    def test_a_zip_is_described(self):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as file:
            file.writestr("a", b"b")
        assert other_kind(buffer.getvalue()) == "a zip archive"

    @given(st.binary(max_size=600))
    @example(b"\0\0\1\0")
    def test_any_bytes_have_a_printable_description(self, head: bytes):
        assert other_kind(head).isprintable()
        assert image_kind(head) in {None, *PILLOW_FORMATS}


@pytest.mark.parametrize("bits", [1, 8, 16, 24, 32])
def test_a_targa_image_is_recognised_by_valid_header_fields(bits: int):
    head = bytearray(b"\0\0\x02" + bytes(9) + b"\x10\0\x10\0" + bytes([bits]) + b"\0")
    assert image_kind(bytes(head)) == "tga"
    head[16] = 7
    assert image_kind(bytes(head)) is None


@pytest.mark.parametrize("place", [12, 14], ids=["width", "height"])
def test_a_targa_header_without_width_or_height_is_not_recognised(place: int):
    head = bytearray(b"\0\0\x02" + bytes(9) + b"\x10\0\x10\0\x18\0")
    assert image_kind(bytes(head)) == "tga"
    head[place] = 0
    assert image_kind(bytes(head)) is None


@pytest.mark.parametrize("place", range(3))
def test_an_avif_image_is_recognised_by_any_of_its_brands(place: int):
    brands = [b"miaf", b"MA1B", b"tmap"]
    brands[place] = b"avif"
    assert image_kind(b"\0\0\0\x1cftypmif1\0\0\0\0" + b"".join(brands)) == "avif"


def test_at_most_forty_characters_of_text_are_shown():
    assert other_kind(b"x" * 40) == f"text ({'x' * 40!r})"
    assert other_kind(b"x" * 41) == f"text ({'x' * 40!r}…)"


def test_a_folder_that_is_a_link_to_its_parent_is_read(tmp_path: Path):
    make(tmp_path, "a/1.jpg")
    (tmp_path / "a" / "up").symlink_to(tmp_path / "a")
    assert files_below(tmp_path / "a" / "up") == ["1.jpg"]
