"""Keys as QR codes: drawn for others to scan, and read from a picture of one."""

from __future__ import annotations

import base64
import re
from functools import lru_cache
from urllib.parse import quote, unquote

import numpy as np

from skillmesh.data.images import UnreadableImageError, decode_rgb
from skillmesh.data.inputs import AnyImage
from skillmesh.errors import DataError

SIDE = 1600
"""Most pixels on a side of a picture in which a code is looked for."""
_CODE = re.compile(r"skillmesh:(?P<key>[0-9a-f]{64})(\?name=(?P<name>\S{0,600}))?")


@lru_cache(maxsize=4)
def as_url(key: str, name: str) -> str:
    """Return a QR code of an agent's key as the address of an SVG image."""
    import zxingcpp

    barcode = zxingcpp.create_barcode(f"skillmesh:{key}?name={quote(name[:60])}", zxingcpp.BarcodeFormat.QRCode)
    return f"data:image/svg+xml;base64,{base64.b64encode(barcode.to_svg().encode()).decode()}"


def read(image: AnyImage) -> dict[str, str]:
    """Return the key and the name in a picture of a QR code."""
    import zxingcpp

    try:
        pixels = np.asarray(decode_rgb(image.content(), SIDE))
    except UnreadableImageError as error:
        raise DataError(f"the picture cannot be read: {error}") from error
    texts = [found.text.strip() for found in zxingcpp.read_barcodes(pixels)]
    for text in texts:
        if match := _CODE.fullmatch(text):
            return {"key": match["key"], "name": unquote(match["name"] or "")[:60]}
        if re.fullmatch("[0-9a-f]{64}", text):
            return {"key": text, "name": ""}
    found = "a QR code of something else" if texts else "no QR code"
    raise DataError(f"the picture shows {found}; expected the code of an agent's key; go nearer, or paste the key")
