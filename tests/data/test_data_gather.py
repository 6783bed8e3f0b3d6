"""Arguments of `ask`: each becomes images or one clear failure, and nothing hangs."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from skillmesh.data import sources
from skillmesh.data.gather import gather
from skillmesh.data.images import UnreadableImageError
from skillmesh.data.inputs import Unreadable
from skillmesh.errors import DataError


def png(colour: str = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(folder: Path, *names: str, content: bytes | None = None) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png() if content is None else content)


def put_zip(path: Path, names: Iterable[str]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in names:
            file.writestr(name, png())


def images(*words: str) -> list[str]:
    """Return the names of the images; assert that each can be decoded."""
    found = list(gather(words))
    assert not [item for item in found if isinstance(item, Unreadable)]
    for item in found:
        assert not isinstance(item, Unreadable)
        assert item.pixels(item.content(), 4).shape == (4, 4, 3)
    return [item.name for item in found]


def failure(*words: str) -> Unreadable:
    (item,) = gather(words)
    assert isinstance(item, Unreadable)
    return item


class TestFiles:
    def test_keep_their_order_and_the_name_that_was_typed(self, here: Path):
        put(here, "b.png", "a/../a.png", "sub/c.PNG")
        assert images("b.png", "./a.png", "sub/../b.png", "sub/c.PNG") == [
            "b.png",
            "./a.png",
            "sub/../b.png",
            "sub/c.PNG",
        ]

    @pytest.mark.parametrize("name", ["photo", "photo.txt", "photo.jpg", "photo.heif2"])
    def test_an_image_is_recognised_under_any_name(self, here: Path, name: str):
        put(here, name)
        assert images(name) == [name]

    @pytest.mark.parametrize("kind", ["PPM", "ICO", "TGA"])
    def test_rarer_kinds_that_pillow_reads_are_images(self, here: Path, kind: str):
        Image.new("RGB", (16, 16)).save(here / "photo.bin", kind)
        assert images("photo.bin") == ["photo.bin"]

    def test_nothing_is_decoded_before_it_is_requested(self, here: Path):
        put(here, "broken.jpg", content=b"\xff\xd8\xffbroken")
        (item,) = gather(["broken.jpg"])
        assert not isinstance(item, Unreadable)
        with pytest.raises(UnreadableImageError):
            item.pixels(item.content(), 4)

    def test_arguments_are_processed_one_by_one(self, here: Path):
        put(here, "a.png")
        stream = gather(["a.png", "b.png"])
        next(stream)
        put(here, "b.png")
        assert not isinstance(next(stream), Unreadable)

    def test_failures_are_named_among_images(self, here: Path):
        put(here, "a.png", "b.png")
        kinds = [(item.name, isinstance(item, Unreadable)) for item in gather(["a.png", "gone.png", "b.png"])]
        assert kinds == [("a.png", False), ("gone.png", True), ("b.png", False)]


class TestFailures:
    def test_a_missing_file(self, here: Path):
        assert failure("gone.jpg") == Unreadable(
            "gone.jpg", "there is no file gone.jpg; expected an image file, a folder or a zip"
        )

    @pytest.mark.parametrize(
        "url",
        [
            "https://example.org//a.jpg?x=1",
            "http://a/b",
            "file:///tmp/a.jpg",
            "s3://bucket/a.jpg",
            "HTTPS://A/B.JPG",
        ],
    )
    def test_an_address_is_quoted_as_it_was_typed(self, url: str):
        bad = failure(url)
        assert bad.name == url
        assert bad.reason == (
            f"{url} is an address, and nothing is downloaded; download the image first and give its file"
        )

    def test_text(self, here: Path):
        put(here, "notes.txt", content=b"Buy milk\n")
        reason = failure("notes.txt").reason
        assert reason.startswith("not an image: found text ('Buy milk'); expected .avif, .bmp, ")
        assert ".jpg, " in reason

    def test_an_empty_file(self, here: Path):
        for name in ("a.jpg", "a.txt"):
            put(here, name, content=b"")
            assert failure(name).reason == "the file is empty"

    @pytest.mark.parametrize("name", ["photo.heic", "photo.jpg"])
    def test_heic_without_the_extra(self, here: Path, monkeypatch: pytest.MonkeyPatch, name: str):
        monkeypatch.setitem(sys.modules, "pillow_heif", None)
        put(here, name, content=b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
        assert "pip install pillow-heif" in failure(name).reason

    def test_a_pipe_a_device_and_an_empty_word(self, here: Path):
        os.mkfifo(here / "pipe.jpg")
        assert failure("pipe.jpg").reason.startswith("found a named pipe; expected an image file")
        assert failure("/dev/zero").reason.startswith("found a device; expected an image file")
        assert failure("").reason.startswith("the name is empty")

    @pytest.mark.parametrize("word", ["a\0b.jpg", "x" * 5000, "notes.txt/a.jpg"])
    def test_impossible_paths(self, here: Path, word: str):
        put(here, "notes.txt")
        assert "cannot be read" in failure(word).reason

    def test_a_link_that_leads_nowhere(self, here: Path):
        (here / "a.jpg").symlink_to("gone.jpg")
        assert failure("a.jpg").reason == "a.jpg is a link to a file that does not exist"

    def test_a_giant_file(self, here: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(sources, "MAX_FILE_BYTES", 4)
        put(here, "a.png")
        assert "expected at most 4 for an image" in failure("a.png").reason

    @settings(max_examples=200, deadline=None)
    @given(st.text(max_size=30))
    def test_any_argument_gives_images_or_failures(self, word: str):
        if word.startswith(("/", "-", "~", ".")) or set("*?[") & set(word):
            return  # would search this whole machine
        for item in gather([word]):
            assert item.name.startswith(word)


class TestFolders:
    def test_are_read_recursively_without_hidden_files(self, here: Path):
        put(here, "p/b.png", "p/sub/a.png", "p/.hidden.png", "p/.thumbs/1.png", "p/notes.txt")
        assert images("p") == ["p/b.png", "p/sub/a.png"]

    def test_without_images_report_their_content(self, here: Path):
        put(here, "p/a.txt", "p/b.txt", "p/c.mov")
        reason = failure("p").reason
        assert reason.startswith(
            "no image that can be read was found there: 3 files skipped: 2 .txt, 1 .mov (not im"
        )
        (here / "empty").mkdir()
        assert failure("empty").reason.startswith("no image that can be read was found there; expected .avif")

    def test_with_heic_files_report_that_once(self, here: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(sys.modules, "pillow_heif", None)
        put(here, "p/a.png", "p/b.heic", "p/c.heic", "p/notes.txt")
        found, bad = gather(["p"])
        assert found.name == "p/a.png"
        assert isinstance(bad, Unreadable)
        assert bad.reason == (
            "2 files skipped: 2 .heic (pillow-heif reads them: pip install pillow-heif), such as b.heic"
        )

    def test_named_like_an_image_are_folders(self, here: Path):
        put(here, "p.jpg/a.png")
        assert images("p.jpg") == ["p.jpg/a.png"]

    def test_loops_end(self, here: Path):
        put(here, "p/a.png")
        (here / "p/loop").symlink_to(".")
        assert images("p") == ["p/a.png"]


class TestPatterns:
    @pytest.fixture(autouse=True)
    def photos(self, here: Path) -> None:
        put(
            here,
            "p/1.png",
            "p/2.png",
            "p/a/3.png",
            "p/a/cats/4.png",
            "p/a/cats/b/5.png",
            "p/notes.txt",
            "p/.x/6.png",
        )
        (here / "p/a/loop").symlink_to("..")
        (here / "p/a/loop2").symlink_to("../..")

    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("p/*.png", ["p/1.png", "p/2.png"]),
            ("p/?.png", ["p/1.png", "p/2.png"]),
            ("p/[!1].png", ["p/2.png"]),
            ("p/a/*s", ["p/a/cats/4.png", "p/a/cats/b/5.png"]),
            ("p/**/*.png", ["p/1.png", "p/2.png", "p/a/3.png", "p/a/cats/4.png", "p/a/cats/b/5.png"]),
            ("p/**", ["p/1.png", "p/2.png", "p/a/3.png", "p/a/cats/4.png", "p/a/cats/b/5.png"]),
            ("**/cats", ["p/a/cats/4.png", "p/a/cats/b/5.png"]),
            ("p/**/cats/**/5.*", ["p/a/cats/b/5.png"]),
            ("p/*", ["p/1.png", "p/2.png", "p/a/3.png", "p/a/cats/4.png", "p/a/cats/b/5.png"]),
        ],
    )
    def test_are_expanded(self, pattern: str, expected: list[str]):
        assert images(pattern) == expected

    def test_without_a_match(self):
        for pattern in ("p/*.gif", "gone/**/*.jpg", "p/**/*.gif"):
            assert failure(pattern).reason == f"no file matches {pattern}; expected image files, folders or zips"

    def test_that_match_no_image_report_what_they_match(self):
        assert "1 .txt (not images), such as p/notes.txt" in failure("p/*.txt").reason

    def test_a_file_of_exactly_that_name_takes_precedence(self, here: Path):
        put(here, "p/[12].png")
        assert images("p/[12].png") == ["p/[12].png"]


class TestZips:
    def test_every_image_inside_is_named_after_the_zip(self, here: Path):
        put_zip(here / "p.zip", ["a.png", "sub/b.png", "__MACOSX/._a.png", "notes.txt"])
        assert images("p.zip") == ["p.zip/a.png", "p.zip/sub/b.png"]

    def test_a_broken_one_is_one_failure(self, here: Path):
        put(here, "p.zip", content=b"PK\x03\x04 broken")
        assert failure("p.zip").reason.startswith("p.zip cannot be read as a zip")

    def test_without_images_its_content_is_reported(self, here: Path):
        put_zip(here / "p.zip", ["a.txt"])
        assert "1 .txt (not images), such as a.txt" in failure("p.zip").reason

    def test_a_damaged_image_inside_is_the_only_one_that_fails(self, here: Path):
        put_zip(here / "p.zip", ["a.png", "b.png"])
        data = bytearray((here / "p.zip").read_bytes())
        data[40:60] = b"\xff" * 20
        (here / "p.zip").write_bytes(data)
        first, second = gather(["p.zip"])
        assert not isinstance(first, Unreadable)
        assert not isinstance(second, Unreadable)
        with pytest.raises(UnreadableImageError, match=r"p\.zip/a\.png cannot be read: this file in the zip"):
            first.content()
        assert second.content() == png()

    @settings(max_examples=60, deadline=None)
    @given(place=st.floats(0, 1), junk=st.binary(min_size=1, max_size=8))
    def test_any_damage_is_a_failure_or_harmless(
        self, tmp_path_factory: pytest.TempPathFactory, place: float, junk: bytes
    ):
        path = tmp_path_factory.getbasetemp() / "gathered.zip"
        put_zip(path, ["a.png", "b.png"])
        data = bytearray(path.read_bytes())
        start = int(place * (len(data) - len(junk)))
        data[start : start + len(junk)] = junk
        path.write_bytes(data)
        for item in gather([str(path)]):
            if not isinstance(item, Unreadable):
                with contextlib.suppress(DataError):
                    item.pixels(item.content(), 4)


class TestStandardInput:
    def pipe(self, data: bytes, *words: str) -> list[str]:
        code = (
            "import sys\nfrom skillmesh.data.gather import gather\n"
            "for item in gather(sys.argv[1:]):\n"
            "    print(item.name, getattr(item, 'reason', None) or len(item.content()))\n"
            "assert 'torch' not in sys.modules\n"
        )
        call = [sys.executable, "-c", code, *words]
        return subprocess.run(call, input=data, capture_output=True, check=True).stdout.decode().splitlines()

    def test_is_read_as_an_image_once(self):
        first, second = self.pipe(png(), "-", "-")
        assert first == f"- {len(png())}"
        assert second == "- standard input has been read already; give `-` only once"

    @pytest.mark.parametrize(
        ("data", "reason"),
        [(b"", "standard input is empty"), (b"hello", "not an image: found text ('hello'); expected")],
    )
    def test_that_is_no_image_is_a_failure(self, data: bytes, reason: str):
        (line,) = self.pipe(data, "-")
        assert line.startswith(f"- {reason}")

    def test_too_much_is_a_failure(self, monkeypatch: pytest.MonkeyPatch):
        class Endless(io.RawIOBase):
            def readable(self) -> bool:
                return True

            def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
                return len(buffer)

        monkeypatch.setattr(sources, "MAX_FILE_BYTES", 1000)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
        assert "expected at most 1,000 for an image" in failure("-").reason

    def test_a_terminal_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch):
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        monkeypatch.setattr(sys, "stdin", Terminal())
        assert failure("-").reason.startswith("nothing is piped into standard input")
