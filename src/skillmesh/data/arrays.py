"""Arrays and tensors as images: every usual layout and number type; channels must be plainly first or last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skillmesh.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

LAYOUTS = "(height, width), (height, width, 1, 3 or 4) or (1 or 3, height, width)"
NUMBERS = "uint8 from 0 to 255, bool, or floats from 0 to 1"
LAST = (1, 3, 4)
"""Channels that an image may have at its end: grey, RGB, RGBA."""
FIRST = (1, 3)
"""Channels that it may have at its beginning, as tensors have them."""
_ROUNDING = 1e-3
"""How far beyond 0 and 1 floats may lie: what resizing and rounding do to them."""


def holds_values(value: Any) -> bool:
    """Whether it is an array of numbers, or a tensor of some library that NumPy can read.

    A column of paths, as pandas has them, is an array too; its values are looked at one by one instead.
    """
    if not hasattr(value, "__array__") or isinstance(value, str | bytes | type):
        return False
    dtype = getattr(value, "dtype", None)
    return not (isinstance(dtype, np.dtype) and dtype.kind in "OU" and getattr(value, "ndim", 0) == 1)


def batch_of(value: Any) -> NDArray[Any] | None:
    """Return the array of a batch, whose rows are images; None where the value should be one image."""
    array = _as_array(value, "the image")
    if array.ndim != 4:
        return None
    if not (array.shape[3] in LAST or array.shape[1] in FIRST) or 0 in array.shape[1:]:
        raise DataError(
            f"the batch is an array of {array.dtype} and shape {array.shape}; expected (n, height, width, 1, 3 or "
            "4) or (n, 1 or 3, height, width)"
        )
    return array


def image_of(value: Any, name: str) -> Image.Image:
    """Make a Pillow image of an array of one image; `name` is what messages call it."""
    from PIL import Image

    array = _as_array(value, name)
    pixels = _to_bytes(_channels_last(array, name), name)
    return Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels))


def _as_array(value: Any, name: str) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except Exception as error:  # each library has its own; of torch: bfloat16, CUDA, gradients
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{name} is a {type(value).__name__} that NumPy cannot read ({reason}); expected an array in the "
            "computer's main memory; convert a torch tensor by .detach().float().cpu()"
        ) from error


def _channels_last(array: NDArray[Any], name: str) -> NDArray[Any]:
    if array.ndim == 2 and array.size:
        return array
    if array.ndim == 3 and array.size:
        last, first = array.shape[2] in LAST, array.shape[0] in FIRST
        if last and first:
            raise _ambiguous(name, array)
        if last or first:
            return array if last else array.transpose(1, 2, 0)
    advice = {
        3: "; a batch of grey images has four axes: (n, height, width, 1)",
        4: "; give a batch by itself, not inside a list",
    }.get(array.ndim, "")
    raise DataError(
        f"{name} is an array of {array.dtype} and shape {array.shape}; expected {LAYOUTS} with {NUMBERS}{advice}"
    )


def _ambiguous(name: str, array: NDArray[Any]) -> DataError:
    return DataError(
        f"{name} is an array of shape {array.shape}, whose channels may be at its beginning or its end; expected "
        "a shape that can be read in one way; give Pillow images instead: Image.fromarray(array)"
    )


def _to_bytes(array: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Bring numbers to 0 … 255. Integers of more bits are refused: what is white in them, no one can tell."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.kind != "f":
        advice = _advice(array)
        raise DataError(f"{name} is an array of {array.dtype} and shape {array.shape}; expected {NUMBERS}{advice}")
    if not np.isfinite(array).all():
        raise DataError(f"{name} holds NaN or infinity; expected floats from 0 to 1; replace them, say by 0")
    low, high = float(array.min()), float(array.max())
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        raise DataError(
            f"{name} has floats from {low:.4g} to {high:.4g}; expected 0 to 1, or uint8 from 0 to 255; undo the "
            "normalisation (leave Normalize out of a dataset's transform), or divide by the value of white"
        )
    return np.rint(np.clip(array.astype(np.float32), 0, 1) * 255).astype(np.uint8)


def _advice(array: NDArray[Any]) -> str:
    if array.dtype.kind not in "iu":
        return ""
    return (
        f"; found {array.min()} to {array.max()}: convert by array.astype('uint8') if white is 255, else divide "
        "by the value of white"
    )
