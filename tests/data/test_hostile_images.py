"""Hostile image files and zips: bounded memory and time, one clear error, and other images are answered."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import hostile_cases as cases
import numpy as np
import pytest
from meshes import eventually
from PIL import Image

from skillmesh.core import Core
from skillmesh.data import helper, images, inputs, sources
from skillmesh.data.formats import jpeg_coefficients, jpeg_scans, ordinary
from skillmesh.data.gather import gather
from skillmesh.data.images import Room, UnreadableImageError, decode, pixel_hash
from skillmesh.data.inputs import Unreadable, as_image, read_pixels
from skillmesh.data.sources import ZipSource
from skillmesh.errors import DataError

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SIZE = 64


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def noise(width: int, height: int, channels: int = 3) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return Image.fromarray(pixels.squeeze())


# Pixels.


def test_the_limit_on_pixels_is_named_and_can_be_set(monkeypatch: pytest.MonkeyPatch):
    data = cases.png(1100, 1000, 8, 2)
    assert decode(data, SIZE).shape == (SIZE, SIZE, 3)
    monkeypatch.setenv("SKILLMESH_MAX_MEGAPIXELS", "1")
    with pytest.raises(UnreadableImageError, match="1,100 × 1,000 = 1 million pixels, expected at most 1"):
        decode(data, SIZE)
    with pytest.raises(UnreadableImageError, match="set SKILLMESH_MAX_MEGAPIXELS"):
        read_pixels(as_image(Image.new("L", (1100, 1000))), SIZE)


def test_an_invalid_limit_does_not_make_images_unreadable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "a.png").write_bytes(encoded(noise(40, 30), "PNG"))
    monkeypatch.setenv("SKILLMESH_MAX_MEGAPIXELS", "many")
    with pytest.raises(DataError, match="SKILLMESH_MAX_MEGAPIXELS is 'many'") as caught:
        decode((tmp_path / "a.png").read_bytes(), SIZE)
    assert not isinstance(caught.value, UnreadableImageError)


@pytest.mark.parametrize("text", ["", "many", "0", "-3", "1.5"])
def test_an_invalid_limit_is_reported(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SKILLMESH_MAX_MEGAPIXELS", text)
    if not text:
        assert images.max_pixels() == 40_000_000
        return
    with pytest.raises(DataError, match=f"SKILLMESH_MAX_MEGAPIXELS is '{text}'; expected a whole number"):
        images.max_pixels()


class TestOrdinaryImagesAreSeenAsBefore:
    """The pixels are the same to the bit, whether read at once, in strips, here or by the helper."""

    def whole(self, data: bytes) -> np.ndarray[Any, Any]:
        """Decode with plain Pillow."""
        with Image.open(io.BytesIO(data)) as image:
            image.draft("RGB", (2 * SIZE, 2 * SIZE))
            if "A" in image.getbands() or "transparency" in image.info:
                paper = Image.new("RGBA", image.size, "white")
                rgb = Image.alpha_composite(paper, image.convert("RGBA")).convert("RGB")
            else:
                rgb = image.convert("RGB")
            return np.asarray(rgb.resize((SIZE, SIZE), Image.Resampling.BICUBIC))

    FILES: ClassVar[dict[str, Callable[[], bytes]]] = {
        "jpeg": lambda: encoded(noise(900, 700), "JPEG"),
        "progressive": lambda: encoded(noise(900, 700), "JPEG", progressive=True),
        "cmyk": lambda: encoded(noise(900, 700).convert("CMYK"), "JPEG"),
        "png": lambda: encoded(noise(900, 700), "PNG"),
        "rgba": lambda: encoded(noise(900, 700, 4), "PNG"),
        "grey": lambda: encoded(noise(900, 700, 1), "PNG"),
        "palette": lambda: encoded(noise(900, 700).convert("P"), "PNG", transparency=3),
        "transparent colour": lambda: encoded(noise(900, 700), "PNG", transparency=(1, 2, 3)),
        "gif": lambda: encoded(noise(300, 200, 1), "GIF"),
        "webp": lambda: encoded(noise(900, 700, 4), "WEBP", lossless=True),
        "tiff": lambda: encoded(noise(900, 700, 4), "TIFF"),
        "bmp": lambda: encoded(noise(900, 700), "BMP"),
    }

    @pytest.mark.parametrize("name", FILES)
    def test_pixels_do_not_depend_on_how_the_file_is_read(self, name: str, monkeypatch: pytest.MonkeyPatch):
        data = self.FILES[name]()
        expected = self.whole(data)
        assert np.array_equal(decode(data, SIZE), expected)
        monkeypatch.setattr(images, "STRIP", 5000)
        assert np.array_equal(decode(data, SIZE), expected)
        monkeypatch.setattr(images, "HERE", 0)
        assert np.array_equal(decode(data, SIZE), expected)

    def test_16_bit_images_are_scaled_as_by_plain_arithmetic(self):
        values = np.random.default_rng(0).integers(0, 65536, (300, 200)).astype(np.uint16)
        grey = Image.fromarray((values * (255 / 65535)).astype(np.uint8)).convert("RGB")
        expected = np.asarray(grey.resize((SIZE, SIZE), Image.Resampling.BICUBIC))
        for kind in ("PNG", "TIFF"):
            assert np.array_equal(decode(encoded(Image.fromarray(values), kind), SIZE), expected)

    @pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
    def test_ordinary_formats_need_no_helper(self, kind: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(helper.HELPERS, "run", None)
        decode(encoded(noise(300, 200, 1), kind), SIZE)

    def test_large_converted_images_are_nearly_the_same(self, monkeypatch: pytest.MonkeyPatch):
        image = noise(30, 20, 4).resize((1500, 1000), Image.Resampling.BICUBIC)
        data = encoded(image, "PNG")
        exact = decode(data, SIZE).astype(int)
        monkeypatch.setattr(images, "REDUCED_FROM", 10**6)
        near = decode(data, SIZE).astype(int)
        assert 0 < np.abs(near - exact).mean() < 2


def test_large_photos_are_read():
    for width, height in ((8160, 6120), (12_000, 9_000)):
        assert decode(cases.jpeg(width, height), SIZE).std() > 10


def test_threads_together_stay_within_the_memory_limit():
    room, most, now = Room(100), 0, 0
    lock = threading.Lock()

    def work(size: int) -> None:
        nonlocal most, now
        with room.taken(size):
            with lock:
                now += min(size, 100)
                most = max(most, now)
            time.sleep(0.002)
            with lock:
                now -= min(size, 100)

    threads = [threading.Thread(target=work, args=(size,)) for size in (30, 60, 100, 500, 1) * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert 60 < most <= 100


def test_decoding_waits_for_memory_shared_by_all_threads(monkeypatch: pytest.MonkeyPatch):
    data = cases.png(1000, 1000, 8, 2)
    header = ordinary(data, "png", SIZE)
    assert header is not None
    assert header.memory >= 4 * 1000 * 1000
    monkeypatch.setattr(images, "DECODING", room := Room(header.memory))
    with room.taken(1):
        thread = threading.Thread(target=decode, args=(data, SIZE))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "name",
    [
        "png with 100 packed texts",
        "png with a million chunks",
        "png with EXIF as text",
        "png of 20000 frames",
        "jpeg of 95 scans",
        "jpeg with 45 MB of filling",
        "jpeg with 50000 segments",
        "gif with a million extensions",
        "webp of many parts",
        "bmp that never gets on",
        "tiff with overlapping tags",
    ],
)
def test_unusual_files_are_left_to_the_helper(name: str):
    _, data = cases.IMAGES[name]()
    kind = images._kind(data)
    assert ordinary(data, kind, 224) is None


def test_a_jpeg_of_very_many_scans_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(helper.HELPERS, "run", None)
    with pytest.raises(UnreadableImageError, match="a JPEG of 20,001 scans, expected at most 100; save it again"):
        decode(cases.progressive(800, 600, 20_000), SIZE)


def test_data_after_a_jpeg_is_not_counted_as_scans():
    """Phones append videos; a video of 40 MB has hundreds of places that look like the start of a scan."""
    film = b"\xff\xda" * 1000
    for options in ({}, {"progressive": True}):
        data = encoded(noise(300, 200), "JPEG", **options)
        assert jpeg_scans(data + film) == jpeg_scans(data) == (10 if options else 1)
        assert np.array_equal(decode(data + film, SIZE), decode(data, SIZE))


def test_scans_after_a_comment_that_looks_like_the_end_are_counted():
    data = encoded(noise(300, 200), "JPEG", progressive=True)
    second = data.index(b"\xff\xda", data.index(b"\xff\xda") + 2)
    between = data.rindex(b"\xff\xc4", 0, second)
    assert jpeg_scans(data[:between] + cases.segment(0xFE, b"\xff\xd9") + data[between:]) == 10
    assert jpeg_scans(data[: second + 3]) == 1
    assert jpeg_scans(data[:2] + 10_000 * cases.segment(0xFE, b"") + data[2:]) >= 10


def test_a_header_of_comments_is_rejected_quickly():
    """In a separate process: a pattern that backtracks would block all threads."""
    code = "from skillmesh.data.formats import image_kind\nassert image_kind(b'P4 ' + b'# ' * 250) is None"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_a_large_progressive_jpeg_is_refused_for_its_memory_not_as_broken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(helper, "SPARE", 0)
    monkeypatch.setenv("SKILLMESH_MAX_MEGAPIXELS", "1")
    monkeypatch.setattr(helper, "decode_here", _broken)
    monkeypatch.setattr(helper.signal, "setitimer", lambda *_: None)  # it would end this process
    large = encoded(noise(1200, 800), "JPEG", progressive=True, subsampling=0)
    assert jpeg_coefficients(large) == 2 * 3 * 1200 * 800
    _, reason = helper._answered("decode", "jpeg", SIZE, 1.0, large)
    assert b"needs more than 5 MB of memory; shrink the image, or set SKILLMESH_MAX_MEGAPIXELS" in reason
    _, reason = helper._answered("decode", "jpeg", SIZE, 1.0, encoded(noise(300, 200), "JPEG", progressive=True))
    assert b"broken data stream" in reason


def _broken(*_: object) -> None:
    raise UnreadableImageError("OSError: broken data stream when reading image file")


def test_a_header_that_understates_the_picture_is_refused(monkeypatch: pytest.MonkeyPatch):
    small = ordinary(cases.png(64, 64, 8, 2), "png", SIZE)
    monkeypatch.setattr(images, "ordinary", lambda *_: small)
    with pytest.raises(UnreadableImageError, match="states 4,096 pixels in one place and 409,600 in another"):
        decode(cases.png(640, 640, 8, 2), SIZE)


# The helper process.


class TestHelper:
    @pytest.fixture
    def own(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[helper.Helper]:
        one = helper.Helper()
        monkeypatch.setattr(helper, "HELPERS", one)
        yield one
        one.stop()

    def test_stops_slow_decoding_and_continues(self, own: helper.Helper):
        tiff = encoded(noise(64, 64), "TIFF")
        expected = decode(tiff, SIZE)
        first = own._process
        with pytest.raises(UnreadableImageError, match="longer than an image of its size should; try"):
            decode(cases.filled_jpeg(8), SIZE)
        assert np.array_equal(decode(tiff, SIZE), expected)
        assert own._process is first, "only the process that it had forked for the image was ended"

    def test_stops_a_process_that_hangs_without_using_the_processor(
        self, own: helper.Helper, monkeypatch: pytest.MonkeyPatch
    ):
        tiff = encoded(noise(64, 64), "TIFF")
        decode(tiff, SIZE)
        assert own._process is not None
        os.kill(own._process.pid, signal.SIGSTOP)
        with monkeypatch.context() as short:
            short.setattr(helper, "SECONDS", 1.0)
            with pytest.raises(UnreadableImageError, match="longer than an image of its size should"):
                decode(tiff, SIZE)
        assert decode(tiff, SIZE).shape == (SIZE, SIZE, 3)

    def test_after_a_timeout_images_get_less_time_until_one_can_be_read(self, own: helper.Helper):
        slow, tiff, junk = cases.filled_jpeg(8), encoded(noise(64, 64), "TIFF"), b"II*\0" + bytes(48)
        shares = []
        for data in (slow, slow, junk, slow, tiff, tiff):
            with contextlib.suppress(UnreadableImageError):
                decode(data, SIZE)
            shares.append(own._share)
        assert shares == [0.5, 0.5, 0.5, 0.5, 1.0, 1.0], "what cannot be read gives nothing back"

    def test_a_timeout_is_forgotten_after_a_while(self, own: helper.Helper, monkeypatch: pytest.MonkeyPatch):
        slow = cases.filled_jpeg(8)
        for less in ("", "less time than usual", ""):
            with pytest.raises(UnreadableImageError, match="longer than an image of its size") as caught:
                decode(slow, SIZE)
            assert ("less time than usual" in str(caught.value)) == bool(less)
            if less:
                monkeypatch.setattr(helper, "FORGIVEN", 0.0)

    def test_limits_time_even_if_the_signal_is_ignored(self, own: helper.Helper):
        before = signal.signal(signal.SIGPROF, signal.SIG_IGN)
        try:
            decode(encoded(noise(64, 64), "TIFF"), SIZE)
            first = own._process
            with pytest.raises(UnreadableImageError, match="longer than an image of its size should"):
                decode(cases.filled_jpeg(8), SIZE)
            assert own._process is first
        finally:
            signal.signal(signal.SIGPROF, before)

    def test_imports_nothing_from_the_current_folder(
        self, own: helper.Helper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        for name in ("json", "skillmesh", "PIL"):
            (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
        monkeypatch.chdir(tmp_path)
        assert decode(encoded(noise(64, 64), "TIFF"), SIZE).shape == (SIZE, SIZE, 3)
        assert not (tmp_path / "ran").exists()

    def test_an_interrupted_reply_is_not_used_for_the_next_image(
        self, own: helper.Helper, monkeypatch: pytest.MonkeyPatch
    ):
        dark, light = (encoded(Image.new("RGB", (64, 64), (shade,) * 3), "TIFF") for shade in (10, 200))

        def interrupted(line: Any, deadline: float) -> Any:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(helper, "_receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                decode(dark, SIZE)
        assert (decode(light, SIZE) == 200).all()

    def test_reports_insufficient_memory_and_continues(self, own: helper.Helper):
        with pytest.raises(UnreadableImageError, match=r"needs more than \d+ MB of memory"):
            decode(cases.tiff(6300, 6300, 8, 4), SIZE)
        assert decode(encoded(noise(64, 64), "TIFF"), SIZE).shape == (SIZE, SIZE, 3)

    def test_is_started_again_if_it_was_stopped(self, own: helper.Helper):
        tiff = encoded(noise(64, 64), "TIFF")
        expected = decode(tiff, SIZE)
        process = own._process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        process.wait(10)
        assert np.array_equal(decode(tiff, SIZE), expected)
        assert own._process is not process

    def test_is_started_again_if_it_ends_while_decoding(self, own: helper.Helper):
        decode(encoded(noise(64, 64), "TIFF"), SIZE)
        process = own._process
        assert process is not None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        eventually(lambda: not children.read_text(), every=0.01)  # the one that has just decoded
        with ThreadPoolExecutor(1) as pool:
            decoded = pool.submit(decode, cases.filled_jpeg(45), SIZE)
            eventually(children.read_text, every=0.01)
            os.killpg(process.pid, signal.SIGKILL)
            with pytest.raises(UnreadableImageError, match="longer than an image of its size should"):
                decoded.result(30)  # the error of its own file, not a crash
        assert own._process is not process

    def test_a_crashing_decoder_does_not_end_the_helper(self, own: helper.Helper):
        tiff = encoded(noise(64, 64), "TIFF")
        expected = decode(tiff, SIZE)
        process = own._process
        assert process is not None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        eventually(lambda: not children.read_text(), every=0.01)  # the one that has just decoded
        with ThreadPoolExecutor(1) as pool:
            decoded = pool.submit(decode, cases.filled_jpeg(45), SIZE)
            child = eventually(children.read_text, every=0.01)
            os.kill(int(child), signal.SIGSEGV)
            with pytest.raises(UnreadableImageError, match="its decoder crashed"):
                decoded.result(10)
        assert np.array_equal(decode(tiff, SIZE), expected)
        assert own._process is process

    def test_is_not_started_a_third_time_for_one_image(self, own: helper.Helper, monkeypatch: pytest.MonkeyPatch):
        started: list[int] = []

        def ended(*_: object) -> bytes:
            raise helper._EndedError

        monkeypatch.setattr(own, "_start", lambda: started.append(1))
        monkeypatch.setattr(own, "_exchange", ended)
        with pytest.raises(UnreadableImageError, match="ended twice; try again"):
            own.run("decode", "png", SIZE, b"")
        assert len(started) == 2

    def test_failure_to_start_is_reported_with_the_reason(
        self, own: helper.Helper, monkeypatch: pytest.MonkeyPatch
    ):
        def refused(*_: object, **__: object) -> None:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        monkeypatch.setattr(helper.subprocess, "Popen", refused)
        with pytest.raises(UnreadableImageError, match=r"cannot start: .*Resource temporarily unavailable"):
            own.run("decode", "tiff", SIZE, b"")
        assert not own.is_running

    def test_limits_its_memory_and_writes_no_core_dump(self, monkeypatch: pytest.MonkeyPatch):
        limits_set: dict[int, tuple[int, int]] = {}
        taken: list[int] = []

        def limit(which: int, most: tuple[int, int]) -> None:
            limits_set[which] = most
            if which == resource.RLIMIT_DATA:
                lines = Path("/proc/self/status").read_text().splitlines()
                taken.append(1024 * sum(int(n.split()[1]) for n in lines if n.startswith(("VmData:", "VmStk:"))))

        monkeypatch.setattr(resource, "setrlimit", limit)
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)
        avif: Any = import_module("PIL.AvifImagePlugin") if find_spec("PIL.AvifImagePlugin") else None
        if avif is not None:
            monkeypatch.setattr(avif, "DEFAULT_MAX_THREADS", 2)
        helper._prepare_pillow()
        helper._bound_memory("png")
        assert limits_set[resource.RLIMIT_CORE] == (0, 0)
        assert avif is None or avif.DEFAULT_MAX_THREADS == 1, "each has buffers of its own"
        if Path("/proc/self/statm").exists():
            soft, hard = limits_set[resource.RLIMIT_DATA]
            assert soft == hard == pytest.approx(taken[-1] + helper._allowance("png"), abs=2**23)

    def test_decodes_in_the_process_that_it_forks(self, monkeypatch: pytest.MonkeyPatch):
        class EndedError(BaseException):
            """Raised where the forked process would end."""

        def end(_: int) -> None:
            raise EndedError

        ours, theirs = socket.socketpair()
        for kind, content in ((helper._REQUEST, b'["decode", "png", 8, 1.0]'), (helper._CONTENT, b"image")):
            helper._send(ours, kind, content)
        with monkeypatch.context() as patch:
            patch.setattr(helper, "_prepare_pillow", lambda: None)
            patch.setattr(helper, "_bound_memory", lambda _: None)
            patch.setattr(helper, "_answered", lambda *given: (helper._DONE, b"pixels of " + given[-1]))
            patch.setattr(socket, "socket", lambda fileno: theirs)
            for name in ("signal", "alarm"):
                patch.setattr(signal, name, lambda *_: None)
            patch.setattr(os, "fork", lambda: 0)
            patch.setattr(os, "_exit", end)
            with pytest.raises(EndedError):
                helper.serve()
        with ours, theirs:
            assert helper._receive(ours, time.monotonic() + 10) == (helper._DONE, b"pixels of image")

    def test_a_deadline_in_the_past_raises_a_timeout(self):
        ours, theirs = socket.socketpair()
        with ours, theirs, pytest.raises(TimeoutError):
            helper._exactly(ours, 5, time.monotonic() - 1)

    def test_is_started_again_after_it_ended_normally(self, own: helper.Helper):
        tiff = encoded(noise(64, 64), "TIFF")
        decode(tiff, SIZE)
        first = own._process
        assert first is not None
        own._line.shutdown(1)  # as if this process had ended
        assert first.wait(10) == 0
        assert decode(tiff, SIZE).shape == (SIZE, SIZE, 3)
        assert own._process is not first

    def test_ends_with_its_parent_process(self, tmp_path: Path):
        (tmp_path / "a.tif").write_bytes(encoded(noise(64, 64), "TIFF"))
        code = (
            "import os, sys\nfrom pathlib import Path\nfrom skillmesh.data import helper\n"
            "from skillmesh.data.images import decode\ndecode(Path(sys.argv[1]).read_bytes(), 8)\n"
            "print(helper.HELPERS._all[-1]._process.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
        )
        ran = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.tif")], capture_output=True, text=True)
        status = Path(f"/proc/{int(ran.stdout)}/status")
        deadline = time.monotonic() + 10
        while status.exists() and "zombie" not in status.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not status.exists() or "zombie" in status.read_text()

    def test_two_run_at_once_but_only_one_for_a_format_that_needs_more_memory(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        both, under_way, most = helper.Helpers(), [], {}
        together = threading.Barrier(2)

        def work(_: helper.Helper, verb: str, kind: str, size: int, data: bytes) -> bytes:
            under_way.append(kind)
            most[kind] = max(most.get(kind, 0), len(under_way))
            if kind == "tiff":
                together.wait(30)  # breaks if the other cannot enter
            time.sleep(0.02)
            under_way.remove(kind)
            return data

        monkeypatch.setattr(helper.Helper, "run", work)
        for kind, expected in {"tiff": 2, "heif": 1}.items():
            with ThreadPoolExecutor(4) as threads:
                done = list(threads.map(lambda n, kind=kind: both.run("decode", kind, SIZE, bytes([n])), range(4)))
            assert done == [bytes([n]) for n in range(4)]
            assert most[kind] == expected

    def test_a_process_forked_while_one_is_in_use_has_helpers_of_its_own(self):
        code = (
            "import os, threading\nfrom skillmesh.data import helper\n"
            "wait = threading.Event()\nhelper.Helper.run = lambda *given: wait.wait(20) and given[-1]\n"
            "threading.Thread(target=helper.HELPERS.run, args=('decode', 'tiff', 8, b''), daemon=True).start()\n"
            "while len(helper.HELPERS._free) == 2:\n    pass\n"
            "if os.fork() == 0:\n"
            "    helper.Helper.run = lambda *given: given[-1]\n"
            "    os._exit(helper.HELPERS.run('decode', 'webp', 8, b'as it was') != b'as it was')\n"
            "os._exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

    def test_hashes_like_this_process(self, own: helper.Helper, monkeypatch: pytest.MonkeyPatch):
        data = encoded(noise(200, 100), "PNG")
        here = pixel_hash(data)
        monkeypatch.setattr(images, "HERE", 0)
        assert pixel_hash(data) == here


# Formats.


def test_a_png_that_is_postscript_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "a.png").write_bytes(cases.EPS)
    with pytest.raises(UnreadableImageError, match="not an image of a known format"):
        read_pixels(as_image(tmp_path / "a.png"), SIZE)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["EPS", "PCX", "SGI", "IM", "XBM", "JPEG2000", "MSP", "DDS"])
def test_unsupported_formats_are_not_opened(kind: str):
    image = Image.new("1" if kind in ("XBM", "MSP") else "RGB", (16, 16))
    with pytest.raises(UnreadableImageError, match="not an image of a known format"):
        decode(encoded(image, kind), SIZE)


def test_images_are_opened_in_one_place_and_with_their_format():
    """Every other `Image.open` would let a file choose its decoder."""
    calls = [
        (path.relative_to(ROOT).as_posix(), {word.arg for word in node.keywords})
        for folder in ("src", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        if "Image.open" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Image.open", "PIL.Image.open")
    ]
    places = {place for place, _ in calls if place.startswith("src")}
    assert places == {"src/skillmesh/data/images.py"}
    assert all("formats" in words for _, words in calls)


# Files that are not regular.

PLACES = (
    "link to /dev/zero",
    "link to /dev/stdin",
    "link to /proc/self/mem",
    "named pipe",
    "link to a named pipe",
    "socket",
    "sparse file of 200 GB",
    "folder named like an image",
)


@pytest.mark.parametrize("name", PLACES)
def test_only_regular_files_are_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    path = cases.PLACES[name](Path())  # a socket's path must be short
    with pytest.raises(UnreadableImageError, match=r"(device|pipe|socket|folder), not|empty|expected at most"):
        read_pixels(as_image(path), SIZE)


def test_a_file_replaced_by_a_pipe_while_being_opened_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    os.mkfifo(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"x")
    regular = (tmp_path / "b.png").stat()
    monkeypatch.setattr(Path, "stat", lambda *_, **__: regular)
    opened = len(list(Path("/dev/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(OSError, match="it is a named pipe, not a file"):
            sources.read_regular_file(tmp_path / "a.png")
    assert len(list(Path("/dev/fd").iterdir())) == opened


def test_other_images_are_answered_beside_unreadable_ones(tiny_taught: Core, tiny_tasks: Path, tmp_path: Path):
    good = next(tiny_tasks.glob("*/test/*/*"))
    bad = [cases.pipe(tmp_path), cases.link_to("/dev/zero")(tmp_path), cases.sparse(tmp_path)]
    answers = tiny_taught.answer([str(good), *map(str, bad), str(good)])
    assert [answer.error is None for answer in answers] == [True, False, False, False, True]


def test_threads_together_hold_a_limited_amount_of_file_content(monkeypatch: pytest.MonkeyPatch):
    room, held, most = Room(100), 0, []
    guard = threading.Lock()
    monkeypatch.setattr(inputs, "CONTENTS", room)

    class Large:
        def size(self) -> int:
            return 40

        def content(self) -> bytes:
            nonlocal held
            with guard:
                held += 40
                most.append(held)
            return b""

        def pixels(self, content: bytes, size: int) -> None:
            nonlocal held
            time.sleep(0.05)
            with guard:
                held -= 40

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: inputs.read_pixels(Large(), SIZE), range(16)))
    assert max(most) == 80


# Zips.


class TestZips:
    def read(self, path: Path) -> list[str]:
        """Read all images of a zip; return why they cannot be read."""
        reasons = []
        for item in gather([str(path)]):
            try:
                reasons += [item.reason] if isinstance(item, Unreadable) else [] if item.content() else ["empty"]
            except UnreadableImageError as error:
                reasons.append(str(error))
        return reasons

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("zip, bzip2, 40 MB stated as 0.1 MB", "its compression method is not supported"),
            ("zip, lzma, 50 MB stated as 0.1 MB", "its compression method is not supported"),
            ("zip, deflate, 2 GB stated as 0.1 MB", "more than the 100,000 bytes that it states"),
            ("zip, 40 MB behind the end of 1000 bytes", "there is extra data after its content"),
            ("zip, encrypted", "it is encrypted"),
            ("zip with a link", "a link inside a zip"),
            (
                "zip with a list of a million",
                "more than 16,777,216); unpack it and name the folder",
            ),
            ("zip of 5000 names for one file", "would unpack to 235,929,600,000, more than 100 times"),
        ],
    )
    def test_zip_bombs_are_refused(self, name: str, reason: str, tmp_path: Path):
        (told,) = self.read(cases.ZIPS[name](tmp_path))
        assert reason in told

    def test_odd_names_stay_names(self, tmp_path: Path):
        source = ZipSource(cases.odd_names(tmp_path))
        assert source.names() == ["../../up.png", "C:/drive.png", "a/back.png", "a/twice.png", "etc/absolute.png"]
        assert self.read(source.path) == []

    def test_a_zip_in_a_zip_is_not_unpacked(self, tmp_path: Path):
        assert self.read(cases.nested(tmp_path)) == []

    def test_a_damaged_member_is_reported(self, tmp_path: Path):
        path = cases.zipped("a.zip", *cases.stored("a/a.png", cases.small_png()))(tmp_path)
        path.write_bytes(path.read_bytes().replace(b"IDAT", b"IDAX"))
        (reason,) = self.read(path)
        assert "its content does not match the zip's checksum" in reason

    def test_a_zip_that_changed_since_it_was_listed_is_reported(self, tmp_path: Path):
        make = cases.zipped("a.zip", *cases.stored("a/a.png", cases.small_png()))
        source = ZipSource(make(tmp_path))
        source.path.write_bytes(source.path.read_bytes() + b"more")
        with pytest.raises(OSError, match="has changed since it was listed"):
            source.read("a/a.png")

    def test_more_zips_than_open_files_are_possible(self, tmp_path: Path):
        make = cases.zipped("0.zip", *cases.stored("a/a.png", cases.small_png()))
        data = make(tmp_path).read_bytes()
        for number in range(300):
            (tmp_path / f"{number}.zip").write_bytes(data)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, before[1]))  # noqa: PTH208
        try:
            items = list(gather([str(tmp_path / f"{number}.zip") for number in range(300)]))
            assert all(not isinstance(item, Unreadable) and item.content() for item in items)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    def test_too_many_images_in_zips_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("skillmesh.data.gather.MOST_IN_ZIPS", 3)
        path = cases.odd_names(tmp_path)
        with pytest.raises(DataError, match=r"the zips up to .* hold more than 3 images; ask about fewer"):
            list(gather([str(path)]))


def test_files_written_for_a_node_are_limited_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from skillmesh.cli import answers

    parts = [
        part for number in range(9) for part in cases.stored(f"a/{number}.png", struct.pack("<I", number) * 250)
    ]
    members = list(gather([str(cases.zipped("a.zip", *parts)(tmp_path))]))
    monkeypatch.setattr(answers, "MOST_WRITTEN", 2500)
    folder = tmp_path / "written"
    folder.mkdir()
    sizes, names = [], []
    for window in answers._windows(members, folder):  # type: ignore[arg-type]
        sizes.append(sum(file.stat().st_size for file in folder.iterdir()))
        names += [name for name, _ in window]
    assert sizes == [3000] * 3
    assert names == [member.name for member in members]
    assert list(folder.iterdir()) == []
