"""Views: an image always has the same views; each changes it and keeps what it shows."""

from __future__ import annotations

import io
import tracemalloc

import hostile_cases as cases
import numpy as np
import pytest
from PIL import Image

from skillmesh.backbone.backbone import content_key
from skillmesh.data.images import UnreadableImageError, decode, decode_rgb
from skillmesh.data.inputs import as_image
from skillmesh.data.items import RenamedImage
from skillmesh.data.views import BYTES_CHANGED, VIEWS, ViewedImage
from skillmesh.errors import ArgumentError

SIZE = 64


def photo(width: int = 120, height: int = 90, seed: int = 0) -> Image.Image:
    """A smooth coloured picture with some detail, as a photo has."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (3, 4, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=float)
    return Image.fromarray(np.clip(smooth + rng.normal(0, 12, smooth.shape), 0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def seen(data: bytes, *views: str, seed: int = 0) -> np.ndarray:
    image = ViewedImage(as_image(data), views, seed)
    return image.pixels(image.content(), SIZE)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_changes_the_image_and_keeps_what_it_shows(view: str):
    data = encoded(photo())
    original, other = decode(data, SIZE), decode(encoded(photo(seed=1)), SIZE)
    changed = seen(data, view)
    upright = changed[:, ::-1] if view == "mirrored" else changed
    assert not np.array_equal(changed, original)
    distance = np.abs(upright.astype(float) - original).mean()
    assert distance < 0.7 * np.abs(other.astype(float) - original).mean()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("size", [(8, 8), (8, 300), (28, 28), (1200, 900)])
def test_a_view_of_any_size_is_made(view: str, size: tuple[int, int]):
    assert seen(encoded(photo(*size)), view).shape == (SIZE, SIZE, 3)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_takes_the_memory_that_is_counted_for_it(view: str):
    """`BYTES_CHANGED` limits how many images are changed at a time."""
    image = photo(400, 300)
    tracemalloc.start()
    VIEWS[view](image, np.random.default_rng(0))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most <= BYTES_CHANGED * image.width * image.height


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1"])
def test_images_of_every_mode_have_views(mode: str):
    kind = "TIFF" if mode == "CMYK" else "PNG"
    assert seen(encoded(photo().convert(mode), kind), "phone").shape == (SIZE, SIZE, 3)


def test_an_image_always_has_the_same_view():
    one, other = encoded(photo()), encoded(photo(seed=1))
    assert np.array_equal(seen(one, "phone"), seen(one, "phone"))
    assert not np.array_equal(seen(one, "phone"), seen(one, "phone", seed=1))
    corners = [ViewedImage(as_image(data), tuple(VIEWS)).content().split(b"\n")[0] for data in (one, other)]
    assert len({*corners, ViewedImage(as_image(one), tuple(VIEWS), 5).content().split(b"\n")[0]}) == 3


def test_a_view_has_a_key_of_its_own_for_the_cache():
    image = as_image(encoded(photo()))
    keys = {content_key(image.content())}
    keys |= {content_key(ViewedImage(image, (view,)).content()) for view in VIEWS}
    assert len(keys) == 1 + len(VIEWS)


def test_a_view_of_several_is_one_of_them():
    chosen = ("half size", "mirrored", "pale")
    data = [encoded(photo(seed=seed)) for seed in range(30)]
    names = {ViewedImage(as_image(each), chosen).content().split(b'"')[3].decode() for each in data}
    assert names == set(chosen)


def test_half_the_size_is_that_of_the_file():
    data = encoded(photo(60, 40))
    small = encoded(photo(60, 40).resize((30, 20), Image.Resampling.BICUBIC))
    assert np.array_equal(seen(data, "half size"), decode(small, SIZE))


def test_a_turned_photo_is_turned_upright_before_it_is_changed():
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 270°
    turned = encoded(photo().transpose(Image.Transpose.ROTATE_90), "JPEG", exif=exif, quality=95)
    upright = encoded(photo(), "JPEG", quality=95)
    assert np.abs(seen(turned, "pale").astype(float) - seen(upright, "pale")).mean() < 4


@pytest.mark.parametrize("view", ["half size", "pale", "mirrored"])
@pytest.mark.parametrize("kind", ["TIFF", "PPM", "BMP", "WEBP"])
def test_a_view_does_not_depend_on_the_format_of_the_file(view: str, kind: str):
    """TIFF and PPM files are decoded by a helper process."""
    options = {"lossless": True} if kind == "WEBP" else {}
    assert np.array_equal(seen(encoded(photo(), kind, **options), view), seen(encoded(photo()), view))


def test_large_images_keep_their_shape_until_the_view_is_made():
    """A baseline JPEG of 12 megapixels is decoded here, a progressive one by a helper process."""
    for progressive in (False, True):
        rgb = decode_rgb(encoded(photo(4000, 3000), "JPEG", progressive=progressive), 896)
        assert abs(rgb.width / rgb.height - 4 / 3) < 0.01
        assert rgb.height == 896
    assert decode_rgb(encoded(photo(6000, 300)), 100).size == (400, 100)
    assert decode_rgb(encoded(photo()), 896).size == photo().size


def test_a_view_leaves_the_callers_image_as_it_is():
    picture = photo(3000, 2000)
    image = ViewedImage(as_image(picture), ("half size",))
    before = image.content()
    image.pixels(before, SIZE)
    assert picture.size == (3000, 2000)
    assert image.content() == before


BAD = {
    "empty": b"",
    "text": b"no image",
    "cut off": encoded(photo(), "JPEG")[:300],
    "too small": encoded(photo(7, 7)),
    "too many pixels": cases.png(60_000, 60_000, 8, 2)[:2000],
}


@pytest.mark.parametrize("name", BAD)
def test_views_are_refused_for_what_images_are_refused_for(name: str):
    with pytest.raises(UnreadableImageError) as plain:
        decode(BAD[name], SIZE)
    with pytest.raises(UnreadableImageError) as viewed:
        decode_rgb(BAD[name], SIZE)
    assert str(plain.value) == str(viewed.value)


@pytest.mark.parametrize("view", ["half size", "pale", "mirrored"])
def test_images_in_memory_have_the_views_of_their_files(view: str):
    picture = photo()
    expected = seen(encoded(picture), view)
    for given in (picture, np.asarray(picture)):
        image = ViewedImage(RenamedImage("again", as_image(given)), (view,))
        assert np.array_equal(image.pixels(image.content(), SIZE), expected)


def test_a_broken_image_is_unreadable_and_an_unknown_view_refused():
    image = ViewedImage(as_image(encoded(photo())[:200]), ("pale",))
    with pytest.raises(UnreadableImageError):
        image.pixels(image.content(), SIZE)
    with pytest.raises(ArgumentError, match="views: found 'sepia'; expected some of half size, quarter size"):
        ViewedImage(as_image(b""), ("sepia",))
    with pytest.raises(ArgumentError, match="views: found none; expected some of"):
        ViewedImage(as_image(b""), ())
