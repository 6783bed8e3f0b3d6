"""What callers may pass as an image, and the errors for anything else."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from skillmesh.data import sources
from skillmesh.data.images import UnreadableImageError
from skillmesh.data.inputs import AnyImage, ArrayImage, EncodedImage, as_image, as_images
from skillmesh.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "image.png"
    Image.fromarray(PIXELS).save(path)
    return path


class OfTorch(NamedTuple):
    """A value that is made of torch's tensors when the test runs."""

    make: Callable[[Any], Any]


def of_torch(make: Callable[[Any], Any], *more: Any) -> Any:
    return pytest.param(OfTorch(make), *more, marks=pytest.mark.torch)


def made(value: Any) -> Any:
    if isinstance(value, OfTorch):
        import torch

        return value.make(torch)
    return value


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


def test_names_identify_the_image(file: Path):
    assert as_image(file, 3).name == str(file)
    assert (
        as_image(b"...", 3).name
        == as_image(PIXELS, 3).name
        == as_image(Image.new("L", (1, 1)), 3).name
        == "image 3"
    )


class TestContent:
    """The cache is keyed by content: equal content must mean an equal descriptor."""

    def test_of_a_file_is_its_bytes(self, file: Path):
        assert as_image(file).content() == as_image(file.read_bytes()).content() == file.read_bytes()

    def test_differs_between_shapes(self):
        tall, wide = (np.zeros(shape, dtype=np.uint8) for shape in ((2, 8), (8, 2)))
        assert as_image(tall).content() != as_image(wide).content()

    def test_differs_between_palettes(self):
        contents = set()
        for palette in ([255, 0, 0], [0, 0, 255]):
            image = Image.new("P", (4, 4), 0)
            image.putpalette(palette)
            contents.add(as_image(image).content())
        assert len(contents) == 2

    def test_is_the_same_each_time(self):
        assert as_image(PIXELS).content() == as_image(PIXELS.copy()).content()


class TestArraysOfRgb:
    """They are used as they are, and count as the same image as a Pillow image with their pixels."""

    @pytest.mark.parametrize("shape", [(32, 32, 3), (40, 60, 3), (2000, 1100, 3)])
    def test_content_pixels_and_file_are_those_of_the_image(self, shape: tuple[int, ...]):
        array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        ours, image = as_image(array), as_image(Image.fromarray(array))
        assert isinstance(ours, ArrayImage)
        assert ours.content() == image.content()
        np.testing.assert_array_equal(ours.pixels(b"", 32), image.pixels(b"", 32))
        assert ours.saved("PNG") == image.saved("PNG")

    def test_an_array_of_the_right_size_is_not_copied(self):
        array = np.zeros((32, 32, 3), dtype=np.uint8)
        assert np.shares_memory(as_image(array).pixels(b"", 32), array)

    @pytest.mark.parametrize("shape", [(4, 40, 3), (40, 4, 3)])
    def test_too_small_ones_are_refused(self, shape: tuple[int, ...]):
        with pytest.raises(UnreadableImageError, match="expected 8 or more on each side"):
            as_image(np.zeros(shape, dtype=np.uint8)).pixels(b"", 32)

    def test_too_large_ones_are_refused(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("SKILLMESH_MAX_MEGAPIXELS", "1")
        with pytest.raises(UnreadableImageError, match="million pixels, expected at most 1 million"):
            as_image(np.zeros((1001, 1000, 3), dtype=np.uint8)).content()

    def test_every_second_column_of_an_array_is_an_image_of_its_own(self):
        wide = np.random.default_rng(0).integers(0, 256, (16, 32, 3), dtype=np.uint8)
        part = wide[:, ::2]
        assert as_image(part).content() == as_image(part.copy()).content()


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
        with pytest.raises(UnreadableImageError, match=r"cannot be read: (No such file|it is a folder)"):
            as_image(tmp_path / path).content()

    def test_an_opened_file_that_is_truncated(self, file: Path):
        opened = Image.open(io.BytesIO(file.read_bytes()[:900]))
        with pytest.raises(UnreadableImageError, match="image 5 cannot be loaded"):
            as_image(opened, 5).content()

    @pytest.mark.parametrize(
        "array",
        [
            np.zeros((5, 5, 3), dtype=np.int64),
            np.zeros((5, 5, 3), dtype=np.uint16),
            np.zeros((5, 5, 3), dtype=np.complex64),
            np.zeros((5, 5), dtype=object),
            np.zeros((5, 5, 2), dtype=np.uint8),
            np.zeros((7, 5, 5), dtype=np.uint8),
            np.zeros(4, dtype=np.uint8),
            np.zeros((), dtype=np.uint8),
            np.zeros((1, 5, 5, 3), dtype=np.uint8),
            np.zeros((0, 4, 3), dtype=np.uint8),
        ],
        ids=lambda a: f"{a.dtype}{a.shape}",
    )
    def test_arrays_of_another_dtype_or_shape(self, array: np.ndarray[Any, Any]):
        with pytest.raises(DataError) as refusal:
            as_image(array, 2)
        assert f"image 2 is an array of {array.dtype} and shape {array.shape}" in str(refusal.value)

    @pytest.mark.parametrize("value", [None, 7, [PIXELS], {"path": "x"}, {"x"}, io.BytesIO(b"x"), np.ndarray])
    def test_other_things(self, value: Any):
        with pytest.raises(DataError, match=f"image 0 is of type {type(value).__name__}; expected a path, bytes"):
            as_image(value)

    def test_an_address(self):
        with pytest.raises(
            UnreadableImageError, match=r"^https://a//b\.jpg is an address.*download the image first"
        ):
            as_image("https://a//b.jpg").content()

    def test_an_endless_device(self):
        with pytest.raises(UnreadableImageError, match="/dev/zero cannot be read: it is a device, not a file"):
            as_image("/dev/zero").content()

    def test_a_giant_file(self, file: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(sources, "MAX_FILE_BYTES", 4)
        with pytest.raises(UnreadableImageError, match="expected at most 4"):
            as_image(file).content()

    def test_a_null_character_in_a_path(self):
        with pytest.raises(UnreadableImageError, match=r"cannot be read: .*embedded null"):
            as_image("a\0b.jpg").content()


def all_pixels(value: Any, size: int = 24) -> list[np.ndarray[Any, Any]]:
    return [pixels_of(image, size) for image in as_images(value)[0]]


class TestSeveral:
    CHW = PIXELS.transpose(2, 0, 1)
    FLOATS = (PIXELS / 255).astype(np.float32)

    @pytest.mark.parametrize(
        "value",
        [
            PIXELS,
            CHW,
            FLOATS,
            FLOATS.astype(np.float64),
            FLOATS.astype(">f4"),
            of_torch(lambda torch: torch.from_numpy(PIXELS)),
            of_torch(lambda torch: torch.from_numpy(PIXELS.transpose(2, 0, 1).copy()) / 255),
            memoryview(b"x"),
        ],
        ids=["HWC", "CHW", "float32", "float64", "big endian", "tensor", "float tensor CHW", "bytes"],
    )
    def test_one_image_is_a_single_one(self, value: Any):
        value = made(value)
        images, single = as_images(value)
        assert (single, len(images)) == (True, 1)
        if not isinstance(value, memoryview):
            assert np.array_equal(pixels_of(images[0]), PIXELS)

    @pytest.mark.parametrize(
        "batch",
        [
            np.stack([PIXELS, 255 - PIXELS]),
            np.stack([CHW, 255 - CHW]),
            of_torch(lambda torch: torch.from_numpy(np.stack([PIXELS, 255 - PIXELS])).permute(0, 3, 1, 2) / 255),
            [PIXELS, 255 - CHW],
            of_torch(lambda torch: (Image.fromarray(PIXELS), torch.from_numpy(255 - PIXELS))),
            (p for p in (PIXELS, 255 - PIXELS)),
        ],
        ids=["NHWC", "NCHW", "float tensor", "list", "tuple", "generator"],
    )
    def test_batches_and_lists_are_several(self, batch: Any):
        images, single = as_images(made(batch))
        assert not single
        assert [image.name for image in images] == ["image 0", "image 1"]
        for image, expected in zip(images, (PIXELS, 255 - PIXELS), strict=True):
            assert np.array_equal(pixels_of(image), expected)

    def test_half_floats_differ_by_one_at_most(self):
        (pixels,) = all_pixels((PIXELS / 255).astype(np.float16))
        assert np.abs(pixels.astype(int) - PIXELS).max() <= 1

    @pytest.mark.parametrize("shape", [(9, 11), (9, 11, 1), (1, 9, 11)])
    def test_masks_and_single_channels_are_grey(self, shape: tuple[int, ...]):
        for value, white in ((np.ones(shape, bool), 255), (np.full(shape, 99, np.uint8), 99)):
            (pixels,) = all_pixels(value, 4)
            assert (pixels == white).all()

    def test_alpha_is_composed_on_white(self):
        (first, second) = all_pixels(np.zeros((2, 9, 9, 4)), 4)
        assert (first == 255).all()
        assert (second == 255).all()

    @pytest.mark.parametrize(
        "nothing", [[], (), iter(()), np.zeros((0, 8, 8, 3), np.uint8), np.zeros((0, 3, 8, 8))]
    )
    def test_empty_input_is_no_images(self, nothing: Any):
        assert as_images(nothing) == ([], False)

    def test_paths_in_a_column_are_several(self):
        images, single = as_images(np.array(["a.jpg", "b.jpg"]))
        assert ([image.name for image in images], single) == (["a.jpg", "b.jpg"], False)
        assert type(images[0].name) is str

    def test_floats_are_rounded(self):
        assert (all_pixels(np.full((9, 9), 0.999))[0] == 255).all()

    def test_values_just_outside_the_range_are_clipped(self):
        assert (all_pixels(np.full((9, 9), 1.0004))[0] == 255).all()
        assert (all_pixels(np.full((9, 9), -0.0004))[0] == 0).all()

    @pytest.mark.parametrize("shape", [(3, 8, 3), (1, 8, 4), (3, 8, 1), (5, 3, 8, 3), (5, 1, 8, 1)])
    def test_ambiguous_shapes_are_refused(self, shape: tuple[int, ...]):
        with pytest.raises(DataError, match="channels may be on the first or last axis"):
            as_images(np.zeros(shape, np.uint8))

    def test_grey_batches_are_refused_whatever_their_size(self):
        with pytest.raises(DataError, match=r"a batch of grey images has four axes: \(n, height, width, 1\)"):
            as_images(np.zeros((10, 28, 28), np.uint8))

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (np.full((9, 9), 255.0), "floats from 255 to 255; expected 0 to 1, or uint8 from 0 to 255"),
            (np.full((9, 9, 3), -0.5), r"floats from -0\.5 to -0\.5; expected 0 to 1"),
            (np.full((9, 9), np.nan), "NaN or infinity"),
            (np.where(np.eye(9) > 0, np.nan, 0.5), "NaN or infinity"),
            (np.full((9, 9), np.inf), "NaN or infinity"),
            (np.full((9, 9), 4095, np.uint16), "uint16.*found 4095 to 4095.*divide by the value of white"),
            of_torch(
                lambda torch: torch.zeros(3, 9, 9, dtype=torch.bfloat16),
                r"Tensor that NumPy cannot read.*\.detach\(\)\.float",
            ),
            of_torch(
                lambda torch: torch.zeros(3, 9, 9, device="meta"), r"Tensor that NumPy cannot read.*\.cpu\(\)"
            ),
            of_torch(lambda torch: torch.zeros(3, 9, 9, requires_grad=True), r"Tensor that NumPy cannot read"),
            ([PIXELS, None], "image 1 is of type NoneType"),
            ([[0, 1], [1, 0]], "image 0 is of type list"),
            (np.zeros((4, 9, 9, 2)), r"the batch is an array of float64.*expected \(n, height, width"),
            (io.BytesIO(b"x"), "image 0 is of type BytesIO"),
        ],
    )
    def test_other_values_are_refused(self, value: Any, message: str):
        with pytest.raises(DataError, match=message):
            as_images(made(value))

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (np.zeros((1, 3, 9, 9)), "image 1 is an array.*give a batch by itself, not inside a list"),
            (np.full((9, 9), np.nan), "NaN or infinity"),
            (np.full((9, 9), 4095, np.uint16), "divide by the value of white"),
        ],
    )
    def test_one_bad_array_of_several_loses_no_other(self, value: Any, message: str):
        (first, second, third), single = as_images([PIXELS, value, PIXELS])
        assert not single
        assert first.content() == third.content()
        with pytest.raises(UnreadableImageError, match=message):
            second.content()

    @settings(max_examples=400, deadline=None)
    @given(
        hnp.arrays(
            dtype=st.one_of(hnp.scalar_dtypes(), hnp.array_dtypes(max_size=2), st.just(np.dtype(object))),
            shape=hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=5),
            fill=st.nothing(),
        )
        | hnp.arrays(
            dtype=st.sampled_from(["u1", "?", "f2", "f4", "f8"]),
            shape=st.sampled_from([(5, 7), (5, 7, 3), (3, 5, 7), (2, 5, 7, 4), (2, 1, 5, 7), (0, 5, 7, 3)]),
        )
    )
    @pytest.mark.long
    def test_any_array_gives_images_or_a_skillmesh_error(self, array: np.ndarray[Any, Any]):
        for value in (array, [array]):
            try:
                images, _ = as_images(value)
                for image in images:
                    if isinstance(image, EncodedImage):
                        continue  # elements of a column of text or bytes
                    assert pixels_of(image, 4).shape == (4, 4, 3)
            except DataError:
                pass

    @settings(max_examples=200, deadline=None)
    @given(st.recursive(st.none() | st.integers() | st.floats() | st.text() | st.binary(), st.lists, max_leaves=5))
    def test_any_value_gives_images_or_a_skillmesh_error(self, value: Any):
        with contextlib.suppress(DataError):
            assert len(as_images(value)[0]) == (len(value) if isinstance(value, list) else 1)
