"""Letters from the DejaVu fonts that matplotlib carries; nothing else of matplotlib is used."""

from functools import lru_cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from skillmesh.errors import DataError

PIXELS = 150


@lru_cache(maxsize=1)
def font_folder() -> Path:
    """Where the fonts lie."""
    try:
        import matplotlib
    except ImportError as error:
        raise DataError(
            "the demo tasks draw their letters with the fonts of matplotlib, which is not installed; "
            "run: pip install 'skillmesh[demo]'"
        ) from error
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


@lru_cache(maxsize=16)
def font(name: str) -> ImageFont.FreeTypeFont:
    """One font, by its file name without the ending."""
    path = font_folder() / f"{name}.ttf"
    try:
        return ImageFont.truetype(path, PIXELS)
    except OSError as error:
        raise DataError(
            f"cannot read the font {path}: {error}; reinstall it with: pip install 'skillmesh[demo]'"
        ) from error


@lru_cache(maxsize=1024)
def glyph(name: str, words: str) -> Image.Image:
    """A stencil of the words with one clear pixel round them; shared, so copy it before changing it."""
    left, top, right, bottom = font(name).getbbox(words)
    stencil = Image.new("L", (int(right - left) + 2, int(bottom - top) + 2))
    ImageDraw.Draw(stencil).text((1 - left, 1 - top), words, fill=255, font=font(name))
    return stencil
