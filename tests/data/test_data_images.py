"""Image files of cameras and scanners, and damaged ones: the result is an upright RGB square or a clear error."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from skillmesh.data import images
from skillmesh.data.formats import Ordinary, ordinary, png_metadata, webp_size
from skillmesh.data.helper import HELPERS
from skillmesh.data.images import UnreadableImageError, decode, too_many_pixels

SIZE = 32
EXIF_ORIENTATION = 0x0112
EXIF = b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"
"""EXIF data without any tag. It must be longer than its header, which alone Pillow would not write."""
STORED_AS = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""How a camera that writes this orientation stores an upright scene."""


def scene(width: int = 96, height: int = 64) -> Image.Image:
    """Return an image of smooth colours that differ in every corner."""
    y, x = np.mgrid[0 : 1 : 1j * height, 0 : 1 : 1j * width]
    return Image.fromarray((255 * np.stack([x, y, 1 - x * y], axis=2)).astype(np.uint8))


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def difference(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    return float(np.abs(a.astype(int) - b.astype(int)).mean())


def colour(data: bytes) -> list[int]:
    return decode(data, SIZE)[SIZE // 2, SIZE // 2].tolist()


@pytest.fixture(scope="module")
def expected() -> NDArray[np.uint8]:
    return decode(encoded(scene(), "PNG"), SIZE)


def test_the_whole_image_is_scaled_to_the_square(expected: NDArray[np.uint8]):
    assert expected.shape == (SIZE, SIZE, 3)
    assert expected.dtype == np.uint8
    assert np.array_equal(expected, np.asarray(scene().resize((SIZE, SIZE), Image.Resampling.BICUBIC)))


@pytest.mark.parametrize(
    ("kind", "tolerance"), [("JPEG", 3), ("PNG", 0), ("WEBP", 3), ("BMP", 0), ("GIF", 12), ("TIFF", 0)]
)
def test_formats(kind: str, tolerance: float, expected: NDArray[np.uint8]):
    assert difference(decode(encoded(scene(), kind), SIZE), expected) <= tolerance


@pytest.mark.parametrize("orientation", STORED_AS)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_photos_are_turned_upright(kind: str, orientation: int, expected: NDArray[np.uint8]):
    transposition = STORED_AS[orientation]
    stored = scene() if transposition is None else scene().transpose(transposition)
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    assert difference(decode(encoded(stored, kind, exif=exif), SIZE), expected) < 4


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("exif", [b"garbage", b"MM\0*\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff"])
def test_damaged_exif_does_not_lose_the_photo(exif: bytes, expected: NDArray[np.uint8]):
    data = encoded(scene(), "JPEG", exif=b"Exif\0\0" + exif)
    assert difference(decode(data, SIZE), expected) < 4


class TestModes:
    def test_grey(self):
        assert colour(encoded(Image.new("L", (9, 9), 77), "PNG")) == [77, 77, 77]

    def test_one_bit(self):
        black_and_white = Image.new("1", (10, 10), 1)
        black_and_white.paste(0, (0, 0, 5, 10))
        pixels = decode(encoded(black_and_white, "PNG"), SIZE)
        assert pixels[:, 0].max() <= 10
        assert pixels[:, -1].min() >= 245

    def test_palette(self):
        assert colour(encoded(Image.new("RGB", (9, 9), (200, 30, 60)).convert("P", palette=1), "PNG")) == [
            200,
            30,
            60,
        ]

    def test_transparent_palette_entries_become_white(self):
        image = Image.new("P", (9, 9), 0)
        image.putpalette([255, 0, 0, 0, 0, 255])
        image.paste(1, (0, 0, 9, 4))
        pixels = decode(encoded(image, "PNG", transparency=0), 9)
        assert pixels[0, 0].tolist() == [0, 0, 255]
        assert pixels[-1, 0].tolist() == [255, 255, 255]

    def test_rgba_is_composed_on_white(self):
        assert colour(encoded(Image.new("RGBA", (9, 9), (10, 20, 30, 0)), "PNG")) == [255, 255, 255]
        assert colour(encoded(Image.new("RGBA", (9, 9), (10, 20, 30, 255)), "PNG")) == [10, 20, 30]
        assert colour(encoded(Image.new("RGBA", (9, 9), (0, 0, 0, 128)), "PNG")) == pytest.approx([127] * 3, abs=1)

    def test_grey_with_alpha_is_composed_on_white(self):
        assert colour(encoded(Image.new("LA", (9, 9), (0, 0)), "PNG")) == [255, 255, 255]
        assert colour(encoded(Image.new("LA", (9, 9), (40, 255)), "PNG")) == [40, 40, 40]

    @pytest.mark.parametrize(("mode", "key"), [("RGB", (1, 2, 3)), ("L", 5)])
    def test_a_transparent_colour_becomes_white(self, mode: str, key: Any):
        assert colour(encoded(Image.new(mode, (9, 9), key), "PNG", transparency=key)) == [255, 255, 255]

    @pytest.mark.parametrize("kind", ["PNG", "TIFF"])
    def test_16_bit_grey_keeps_its_scale(self, kind: str):
        assert colour(encoded(Image.fromarray(np.full((9, 9), 0x8080, dtype=np.uint16)), kind)) == [128] * 3
        assert colour(encoded(Image.fromarray(np.full((9, 9), 65535, dtype=np.uint16)), kind)) == [255] * 3
        assert colour(encoded(Image.fromarray(np.full((9, 9), 65534, dtype=np.uint16)), kind)) == [254] * 3

    @pytest.mark.parametrize("dtype", [np.float32, np.int32])
    def test_32_bit_grey_is_stretched_to_its_range(self, dtype: type):
        ramp = np.tile(np.linspace(-1000, 3000, SIZE), (SIZE, 1)).astype(dtype)
        pixels = decode(encoded(Image.fromarray(ramp), "TIFF"), SIZE)
        assert np.abs(pixels[0, :, 0] - np.linspace(0, 255, SIZE)).max() <= 1

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("hole", [np.nan, -np.inf])
    def test_non_finite_pixels_are_black_and_do_not_affect_the_range(self, hole: float):
        values = np.tile(np.linspace(0, 1, SIZE), (SIZE, 1)).astype(np.float32)
        values[0, 0] = hole
        pixels = decode(encoded(Image.fromarray(values), "TIFF"), SIZE)
        assert pixels[0, 0].tolist() == [0, 0, 0]
        assert np.abs(pixels[-1, :, 0] - np.linspace(0, 255, SIZE)).max() <= 1

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("value", [0.25, np.nan])
    def test_a_flat_float_image_is_black(self, value: float):
        assert colour(encoded(Image.fromarray(np.full((9, 9), value, dtype=np.float32)), "TIFF")) == [0, 0, 0]

    @pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
    def test_cmyk(self, kind: str):
        red, green, blue = colour(encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), kind))
        assert red > 200
        assert max(green, blue) < 60


@pytest.mark.parametrize(("width", "height"), [(1200, 900), (2000, 150)])
def test_the_fast_path_of_large_jpegs_gives_nearly_the_same(width: int, height: int):
    rng = np.random.default_rng(0)
    large = scene(width, height)
    large.paste(
        Image.fromarray(rng.integers(0, 256, (60, 90, 3), dtype=np.uint8)).resize((width // 2, height // 2))
    )
    data = encoded(large, "JPEG", quality=95)
    slow = np.asarray(Image.open(io.BytesIO(data)).resize((SIZE, SIZE), Image.Resampling.BICUBIC))
    assert difference(decode(data, SIZE), slow) < 2


class TestRefused:
    @pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF"])
    def test_a_truncated_image(self, kind: str):
        data = encoded(scene(), kind)
        with pytest.raises(UnreadableImageError):
            decode(data[: len(data) // 2], SIZE)

    @pytest.mark.parametrize("data", [b"GIF89a", b"<html>404 Not Found</html>", b"\xff\xd8\xff\xe0", bytes(999)])
    def test_a_file_that_is_no_image(self, data: bytes):
        with pytest.raises(UnreadableImageError, match=r"Error: \S|not an image of a known format"):
            decode(data, SIZE)

    def test_an_empty_file(self):
        with pytest.raises(UnreadableImageError, match="the file is empty"):
            decode(b"", SIZE)

    def test_a_small_file_that_claims_to_be_giant(self):
        def chunk(kind: bytes, body: bytes) -> bytes:
            return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

        header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
        bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99)))
        with pytest.raises(UnreadableImageError, match=r"3,600 million pixels, .* SKILLMESH_MAX_MEGAPIXELS"):
            decode(bomb, SIZE)


@pytest.mark.parametrize(
    ("start", "options"),
    [(26, {}), (21, {"lossless": True}), (24, {"exif": EXIF})],
    ids=["VP8", "VP8L", "VP8X"],
)
def test_a_webp_that_states_too_many_pixels_is_refused_without_starting_a_helper(
    monkeypatch: pytest.MonkeyPatch, start: int, options: dict[str, Any]
) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30)).save(buffer, "WEBP", **options)
    data = bytearray(buffer.getvalue())
    assert webp_size(bytes(data)) == (40, 30)
    assert start == {b"VP8 ": 26, b"VP8L": 21, b"VP8X": 24}[bytes(data[12:16])]
    many = b"\xff\x3f\xff\x0f" if start != 24 else b"\xff\xff\x00\xff\xff\x00"
    data[start : start + len(many)] = many
    monkeypatch.setattr(HELPERS, "run", lambda *_: pytest.fail("a helper was asked"))
    with pytest.raises(UnreadableImageError, match="million pixels, expected at most"):
        decode(bytes(data), 32)


KINDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "jpeg": ("jpeg", {}, 12),
    "png": ("png", {}, 12),
    "bmp": ("bmp", {}, 12),
    "gif": ("gif", {}, 12),
    "webp": ("webp", {}, 28),
    "webp without loss": ("webp", {"lossless": True}, 28),
    "webp with more": ("webp", {"exif": EXIF}, 28),
}


@pytest.mark.parametrize("name", KINDS)
def test_an_ordinary_header_gives_pixels_and_memory(name: str) -> None:
    kind, options, bytes_each = KINDS[name]
    data = encoded(scene(300, 20), kind.upper(), **options)
    found = ordinary(data, kind, 224)
    assert found is not None
    assert found.pixels == 300 * 20
    area = 301 * 21 if kind == "jpeg" else 300 * 20  # whole blocks of a JPEG are decoded
    assert found.memory == area * bytes_each


@pytest.mark.parametrize("colours", [2, 4, 100, 256])
def test_a_gif_of_any_palette_is_ordinary(colours: int) -> None:
    data = encoded(scene(30, 20).quantize(colours), "GIF")
    assert ordinary(data, "gif", 224) == Ordinary(600, 600 * 12)


def test_a_gif_with_a_comment_is_ordinary() -> None:
    data = encoded(scene(30, 20).quantize(4), "GIF", comment=b"drawn by hand")
    assert b"drawn by hand" in data
    assert ordinary(data, "gif", 224) == Ordinary(600, 600 * 12)


def test_chunks_of_a_png_without_pixels_count_as_metadata() -> None:
    text = PngInfo()
    text.add_text("Title", "a scene")
    plain, told = encoded(scene(), "PNG"), encoded(scene(), "PNG", pnginfo=text)
    assert len(plain) > 200
    assert png_metadata(plain) == 13  # its header
    assert png_metadata(told) == 13 + len("Title a scene")


def test_the_size_of_a_webp_is_read_from_its_header() -> None:
    for options in ({}, {"lossless": True}, {"exif": EXIF}):
        assert webp_size(encoded(scene(300, 700), "WEBP", **options)) == (300, 700)


@pytest.mark.parametrize(("side", "is_ordinary"), [(8_944, True), (8_945, False)])
def test_a_jpeg_of_more_than_eighty_million_pixels_is_not_ordinary(side: int, is_ordinary: bool) -> None:
    data = bytearray(encoded(scene(), "JPEG"))
    place = data.index(b"\xff\xc0") + 5
    data[place : place + 4] = struct.pack(">HH", side, side)
    assert (ordinary(bytes(data), "jpeg", 224) is not None) == is_ordinary


def test_an_image_of_exactly_the_maximum_of_pixels_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLMESH_MAX_MEGAPIXELS", "1")
    assert too_many_pixels(1000, 1000) is None
    assert too_many_pixels(1001, 1000) is not None
    with pytest.raises(UnreadableImageError, match="million pixels, expected at most 1 million"):
        images.hash_pixels(Image.new("L", (1001, 1000)))


def test_only_large_images_are_reduced_first_and_each_side_by_its_own_factor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noise = np.random.default_rng(0).integers(256, size=(400, 90), dtype=np.uint8)
    image = Image.fromarray(noise)

    def squeezed(factors: tuple[int, int]) -> NDArray[np.uint8]:
        rgb = images.to_rgb(image, factors)
        return np.asarray(rgb.resize((SIZE, SIZE), Image.Resampling.BICUBIC))

    np.testing.assert_array_equal(images.shrink(image, SIZE), squeezed((1, 1)))
    np.testing.assert_array_equal(
        images.shrink(image.convert("RGB"), SIZE),
        np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC)),
    )
    monkeypatch.setattr(images, "REDUCED_FROM", 1000)
    np.testing.assert_array_equal(images.shrink(image, SIZE), squeezed((1, 400 // (4 * SIZE))))


def test_rgb_images_are_not_copied() -> None:
    """A photo of 50 megapixels would be in memory twice."""
    image = scene()
    assert images.to_rgb(image) is image


class TestLargeJpegs:
    """Decoded at the smallest size that is at least twice the network's (benchmarks/reduced.py measures why)."""

    def decoded(self, data: bytes, step: int) -> NDArray[np.uint8]:
        """Decode with plain Pillow at 1/`step` of the size."""
        with Image.open(io.BytesIO(data)) as image:
            assert image.size[0] % step == 0
            image.draft(None, (image.width // step, image.height // step))
            return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC))

    @pytest.mark.parametrize(
        ("width", "height", "step"),
        [(256, 120, 1), (256, 128, 2), (256, 248, 2), (256, 256, 4), (504, 504, 4), (512, 512, 8), (4096, 512, 8)],
    )
    def test_the_size_depends_on_the_shorter_side(self, width: int, height: int, step: int) -> None:
        pixels = np.random.default_rng(0).integers(256, size=(height, width, 3), dtype=np.uint8)
        data = encoded(Image.fromarray(pixels), "JPEG", quality=90)
        assert (self.decoded(data, step) != self.decoded(data, 2 if step != 2 else 1)).any()  # would show
        np.testing.assert_array_equal(decode(data, SIZE), self.decoded(data, step))
        costs = ordinary(data, "jpeg", SIZE)
        assert costs is not None
        assert costs.memory == 12 * (width // step + 1) * (height // step + 1)

    @pytest.mark.parametrize("orientation", STORED_AS)
    @pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
    @pytest.mark.parametrize("progressive", [False, True])
    def test_a_reduced_image_looks_like_the_whole_one(
        self, orientation: int, mode: str, progressive: bool
    ) -> None:
        large = scene(640, 512)
        turn = STORED_AS[orientation]
        stored = large if turn is None else large.transpose(turn)
        exif = Image.Exif()
        exif[EXIF_ORIENTATION] = orientation
        options = {"exif": exif, "quality": 95, "progressive": progressive}
        expected = np.asarray(large.convert(mode).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC))
        found = decode(encoded(stored.convert(mode), "JPEG", **options), SIZE)
        assert np.abs(found.astype(int) - expected).max() <= 6
