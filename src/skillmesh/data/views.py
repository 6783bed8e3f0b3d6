"""Views: the same picture as another camera, program or hand would have given it.

An agent is taught with one camera and asked with another. A view changes how an image was taken, not what it
shows. Views are used to measure how much answers depend on that, and to learn answers that depend on it less.

Every view is seeded by the image and the view's name, so an image always has the same view.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from skillmesh.data.images import DECODING, MIN_SIDE, Pixels, decode_rgb, open_rgb
from skillmesh.data.inputs import AnyImage, ArrayImage, OpenImage
from skillmesh.data.items import RenamedImage
from skillmesh.errors import ArgumentError

if TYPE_CHECKING:
    from PIL import Image

    View = Callable[[Image.Image, np.random.Generator], Image.Image]
    """A function that returns a changed copy of an upright RGB image."""

FORMAT = "view 2"
"""Part of every view's hash; a change of what views look like needs another."""
BLUR = 1 / 150
"""Standard deviation of the blur, as a share of the image's shorter side."""
NOISE = 10.0
"""Standard deviation of the noise, in steps of 8-bit pixels."""
CAST = 0.15
"""Largest share by which a colour cast changes a channel."""
CHANGED_AT = 4
"""Times the network's input size to which a larger image is reduced before it is changed."""
COPIES = 3
"""Copies of a file's content in memory while its view is made."""
BYTES_CHANGED = 24
"""Bytes for each pixel while an image is changed; noise takes the most."""
CORNER = 0.08
"""Largest distance by which the perspective view moves a corner, as a share of the side."""


def _scaled(image: Image.Image, rng: np.random.Generator, factor: float) -> Image.Image:
    from PIL import Image

    size = tuple(max(MIN_SIDE, round(side * factor)) for side in image.size)
    return image.resize((size[0], size[1]), Image.Resampling.BICUBIC)


def _compressed(image: Image.Image, rng: np.random.Generator, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return open_rgb(file.getvalue())


def _cropped(image: Image.Image, rng: np.random.Generator, share: float) -> Image.Image:
    """Cut out a part of this share of each side, from a random place."""
    width, height = (max(MIN_SIDE, round(side * share)) for side in image.size)
    left, top = (
        int(rng.integers(0, max(0, old - new) + 1)) for old, new in zip(image.size, (width, height), strict=True)
    )
    return image.crop((left, top, min(left + width, image.width), min(top + height, image.height)))


def _brightened(image: Image.Image, rng: np.random.Generator, factor: float) -> Image.Image:
    from PIL import ImageEnhance

    return ImageEnhance.Brightness(image).enhance(factor)


def _rotated(image: Image.Image, rng: np.random.Generator, degrees: float) -> Image.Image:
    """Rotate to the left or right; the picture is mirrored at its borders, so that no empty corners appear."""
    from PIL import Image

    angle = degrees * rng.choice([-1.0, 1.0])
    reach = math.sin(math.radians(degrees)) / 2  # the share of the other side by which a corner moves
    across, down = (math.ceil(reach * side) + 1 for side in (image.height, image.width))
    padded = np.pad(np.asarray(image), ((down, down), (across, across), (0, 0)), mode="reflect")
    turned = Image.fromarray(padded).rotate(angle, Image.Resampling.BICUBIC)
    return turned.crop((across, down, across + image.width, down + image.height))


def _blurred(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    from PIL import ImageFilter

    return image.filter(ImageFilter.GaussianBlur(BLUR * min(image.size)))


def _noisy(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    from PIL import Image

    pixels = np.asarray(image)
    noisy = rng.standard_normal(pixels.shape, dtype=np.float32)
    noisy *= NOISE  # in place: each copy takes twelve bytes a pixel
    noisy += pixels
    np.clip(np.rint(noisy, out=noisy), 0, 255, out=noisy)
    return Image.fromarray(noisy.astype(np.uint8))


def _pale(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    from PIL import ImageEnhance

    return ImageEnhance.Color(image).enhance(0.5)


def _cast(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Multiply the colour channels by factors whose mean is 1, as light of another colour does."""
    from PIL import Image

    shift = rng.uniform(-1, 1, 3)
    shift -= shift.mean()
    factors = 1 + CAST * shift / max(np.abs(shift).max(), 1e-9)
    tables = [np.clip(np.rint(np.arange(256) * factor), 0, 255).astype(int).tolist() for factor in factors]
    return Image.merge("RGB", [band.point(table) for band, table in zip(image.split(), tables, strict=True)])


def _in_perspective(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Move the corners inwards by random amounts, as if the camera were held at an angle."""
    from PIL import Image

    width, height = image.size
    moved = rng.uniform(0, CORNER, 8) * np.tile([width, height], 4)
    signs = np.array([1, 1, 1, -1, -1, -1, -1, 1])  # top left, bottom left, bottom right, top right
    corners = np.array([0, 0, 0, height, width, height, width, 0]) + signs * moved
    return image.transform(image.size, Image.Transform.QUAD, corners.tolist(), Image.Resampling.BICUBIC)


def _mirrored(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    from PIL import Image

    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def _on_a_screen(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Add bars of one grey on two opposite sides, as in a screenshot of a gallery."""
    from PIL import Image

    share, grey = rng.uniform(0.06, 0.12), int(rng.choice([0, 32, 245, 255]))
    upright = bool(rng.integers(2))  # whether the bars lie above and below
    across, down = (0, round(share * image.height)) if upright else (round(share * image.width), 0)
    screen = Image.new("RGB", (image.width + 2 * across, image.height + 2 * down), (grey, grey, grey))
    screen.paste(image, (across, down))
    return screen


def _by_phone(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Combine what happens to a photo taken in a hurry and sent: three changes, perhaps a size, and JPEG."""
    changes: list[View] = [
        partial(_cropped, share=rng.uniform(0.8, 1)),
        partial(_rotated, degrees=rng.uniform(0, 8)),
        _in_perspective,
        partial(_brightened, factor=rng.uniform(0.7, 1.3)),
        _cast,
        _noisy,
        _blurred,
    ]
    for index in sorted(rng.choice(len(changes), 3, replace=False)):
        image = changes[index](image, rng)
    if rng.integers(2):
        image = _scaled(image, rng, rng.uniform(0.4, 0.9))
    return _compressed(image, rng, int(rng.integers(40, 85)))


VIEWS: Mapping[str, View] = {
    "half size": partial(_scaled, factor=0.5),
    "quarter size": partial(_scaled, factor=0.25),
    "JPEG 40": partial(_compressed, quality=40),
    "JPEG 20": partial(_compressed, quality=20),
    "crop 90 %": partial(_cropped, share=0.9),
    "crop 75 %": partial(_cropped, share=0.75),
    "brighter 20 %": partial(_brightened, factor=1.2),
    "brighter 40 %": partial(_brightened, factor=1.4),
    "darker 20 %": partial(_brightened, factor=0.8),
    "darker 40 %": partial(_brightened, factor=0.6),
    "rotated 10°": partial(_rotated, degrees=10),
    "blurred": _blurred,
    "noisy": _noisy,
    "pale": _pale,
    "colour cast": _cast,
    "perspective": _in_perspective,
    "mirrored": _mirrored,
    "screenshot": _on_a_screen,
    "phone": _by_phone,
}
"""All views by name."""


MEASURED: Mapping[str, float] = {
    "half size": 2.0,
    "JPEG 40": 1.0,
    "brighter 20 %": 1.0,
    "darker 20 %": 1.0,
    "rotated 10°": 6.0,
    "phone": 2.0,
}
"""Views that the nuisance is measured on, each with its weight in the nuisance.

The others are left for measuring what was never shown."""
LEARNED = ("half size", "JPEG 40", "rotated 10°", "phone")
"""Those that tasks are learned with. Brighter and darker images among them would be fewer hurried photos."""
HURRIED = "phone"
"""The view whose images the calibration tells from originals."""


@dataclass(frozen=True)
class ViewedImage:
    """An image as one of several views shows it; its content and the seed determine which one, and how."""

    image: AnyImage
    views: tuple[str, ...]
    """Names of the views that it is drawn from."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.views or (wrong := [name for name in self.views if name not in VIEWS]):
            raise ArgumentError(
                f"views: found {', '.join(map(repr, wrong)) if self.views else 'none'}; expected some of "
                f"{', '.join(VIEWS)}"
            )

    @property
    def name(self) -> str:
        return self.image.name

    def size(self) -> int:
        return COPIES * self.image.size()

    def picture(self, content: bytes) -> bytes:
        """Return the image's own content, a part of what `content` returned."""
        return content.partition(b"\n")[2]

    def content(self) -> bytes:
        """Return the image's content after a line that names the view, so that a view has a hash of its own."""
        content = self.image.content()
        rng = np.random.default_rng(int.from_bytes(hashlib.sha256(content).digest()[:8]) ^ self.seed)
        name = self.views[int(rng.integers(len(self.views)))]
        return json.dumps([FORMAT, name, self.seed]).encode() + b"\n" + content

    def pixels(self, content: bytes, size: int) -> Pixels:
        from PIL import Image

        head, _, inner = content.partition(b"\n")
        _, name, seed = json.loads(head)
        digest = hashlib.sha256(head)
        digest.update(inner)
        rng = np.random.default_rng(int.from_bytes(digest.digest()[:8]) ^ seed)
        rgb = _rgb(self.image, inner, CHANGED_AT * size)
        with DECODING.taken(BYTES_CHANGED * rgb.width * rgb.height):
            view = VIEWS[name](rgb, rng)
            return np.asarray(view.resize((size, size), Image.Resampling.BICUBIC))


def _rgb(image: AnyImage, content: bytes, most: int) -> Image.Image:
    """Return the upright RGB image, its shorter side at most `most` pixels: a view needs no more."""
    if isinstance(image, RenamedImage):
        return _rgb(image.image, content, most)
    if isinstance(image, OpenImage | ArrayImage):
        return image.rgb(most)
    return decode_rgb(content, most)
