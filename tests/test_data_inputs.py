"""What a caller may hand over as an image, and what it is told when it is something else."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from skillmesh.data.images import UnreadableImageError
from skillmesh.data.inputs import AnyImage, as_image
from skillmesh.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "image.png"
    Image.fromarray(PIXELS).save(path)
    return path


def pixels_of(image: AnyImage, size: int = 24) -> np.ndarray[Any, Any]:
    return image.pixels(image.content(), size)


@pytest.mark.parametrize(
    "make",
    [
        lambda file: file,
        str,
        lambda file: file.read_bytes(),
        Image.open,
        lambda file: PIXELS,
        lambda file: np.dstack([PIXELS, np.full((24, 24), 255, dtype=np.uint8)]),
    ],
    ids=["Path", "str", "bytes", "Pillow", "RGB array", "RGBA array"],
)
def test_every_kind_gives_the_same_pixels(make: Any, file: Path):
    assert np.array_equal(pixels_of(as_image(make(file))), PIXELS)


def test_a_grey_array_is_grey():
    assert pixels_of(as_image(np.full((9, 11), 99, dtype=np.uint8)), 4).tolist() == [[[99] * 3] * 4] * 4


def test_names_tell_which_image_it_is(file: Path):
    assert as_image(file, 3).name == str(file)
    assert (
        as_image(b"...", 3).name
        == as_image(PIXELS, 3).name
        == as_image(Image.new("L", (1, 1)), 3).name
        == "image 3"
    )


class TestContent:
    """Equal content means an equal descriptor: the cache goes by it."""

    def test_of_a_file_is_its_bytes(self, file: Path):
        assert as_image(file).content() == as_image(file.read_bytes()).content() == file.read_bytes()

    def test_tells_shapes_apart(self):
        tall, wide = (np.zeros(shape, dtype=np.uint8) for shape in ((2, 8), (8, 2)))
        assert as_image(tall).content() != as_image(wide).content()

    def test_tells_palettes_apart(self):
        contents = set()
        for palette in ([255, 0, 0], [0, 0, 255]):
            image = Image.new("P", (4, 4), 0)
            image.putpalette(palette)
            contents.add(as_image(image).content())
        assert len(contents) == 2

    def test_is_the_same_each_time(self):
        assert as_image(PIXELS).content() == as_image(PIXELS.copy()).content()


def test_an_opened_photo_is_turned_upright_like_its_file(tmp_path: Path):
    path = tmp_path / "photo.png"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(PIXELS).save(path, exif=exif)
    assert np.array_equal(pixels_of(as_image(Image.open(path))), pixels_of(as_image(path)))
    assert not np.array_equal(pixels_of(as_image(path)), PIXELS)


class TestRefused:
    @pytest.mark.parametrize("path", ["nowhere.jpg", ""])
    def test_a_path_without_a_file(self, tmp_path: Path, path: str):
        with pytest.raises(UnreadableImageError, match=r"cannot be read: (No such file|Is a directory)"):
            as_image(tmp_path / path).content()

    def test_an_opened_file_that_is_truncated(self, file: Path):
        opened = Image.open(io.BytesIO(file.read_bytes()[:900]))
        with pytest.raises(UnreadableImageError, match="image 5 cannot be loaded"):
            as_image(opened, 5).content()

    @pytest.mark.parametrize(
        "array",
        [
            np.zeros((4, 4, 3), dtype=np.float32),
            np.zeros((4, 4, 3), dtype=np.int64),
            np.zeros((4, 4, 3), dtype=bool),
            np.zeros((3, 8, 8), dtype=np.uint8),
            np.zeros((4, 4, 1), dtype=np.uint8),
            np.zeros(4, dtype=np.uint8),
            np.zeros((1, 4, 4, 3), dtype=np.uint8),
            np.zeros((0, 4, 3), dtype=np.uint8),
        ],
        ids=lambda a: f"{a.dtype}{a.shape}",
    )
    def test_arrays_of_another_dtype_or_shape(self, array: np.ndarray[Any, Any]):
        with pytest.raises(DataError) as refusal:
            as_image(array, 2)
        assert f"image 2 is an array of {array.dtype} and shape {array.shape}" in str(refusal.value)

    @pytest.mark.parametrize("value", [None, 7, [PIXELS], {"path": "x"}, bytearray(b"x")])
    def test_other_things(self, value: Any):
        with pytest.raises(DataError, match=f"image 0 is a {type(value).__name__}; expected a path, bytes"):
            as_image(value)
