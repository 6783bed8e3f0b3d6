"""Images in requests: as parts of a form, as the body itself, or in JSON. Large ones go to disk, not to memory."""

from __future__ import annotations

import base64
import binascii
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import IO

from starlette.datastructures import UploadFile
from starlette.requests import Request

from skillmesh.common.files import PRIVATE, writing
from skillmesh.data.images import Pixels, decode
from skillmesh.data.inputs import EncodedImage
from skillmesh.data.sources import MAX_FILE_BYTES
from skillmesh.errors import DataError
from skillmesh.page.problems import Refused, too_large

IN_MEMORY = 1_000_000
"""Bytes of an upload up to which it stays in memory."""
MOST_IMAGES = 64
"""Largest number of images in one request."""


@dataclass(frozen=True)
class Upload:
    """An uploaded file under the name that the sender gave it; it is read when it is decoded."""

    name: str
    file: IO[bytes] = field(repr=False)
    length: int

    def size(self) -> int:
        return self.length

    def content(self) -> bytes:
        self.file.seek(0)
        return self.file.read()

    def pixels(self, content: bytes, size: int) -> Pixels:
        return decode(content, size)

    def copy_to(self, target: IO[bytes]) -> None:
        self.file.seek(0)
        while part := self.file.read(IN_MEMORY):
            target.write(part)


@asynccontextmanager
async def images_of(request: Request, most: int = MOST_IMAGES) -> AsyncIterator[list[Upload | EncodedImage]]:
    """Yield the images of a request, in the order sent; their files are removed afterwards."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        async with request.form(max_files=most, max_fields=most) as form:
            files = [value for name, value in form.multi_items() if name == "images"]
            if not files or not all(isinstance(file, UploadFile) for file in files):
                raise DataError('the form has no files named "images"; expected one or more')
            yield [_of_part(file, index) for index, file in enumerate(files) if isinstance(file, UploadFile)]
    elif kind in ("application/json", ""):
        yield _of_json(await request.body(), most)
    elif kind.startswith("image/") or kind == "application/octet-stream":
        async with body_on_disk(request, MAX_FILE_BYTES) as upload:
            yield [upload]
    else:
        raise Refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"the content type is {kind!r}; expected multipart/form-data, image/…, application/octet-stream or "
            "application/json",
        )


@asynccontextmanager
async def body_on_disk(request: Request, most: int) -> AsyncIterator[Upload]:
    """Yield the body of a request as a file, of which only a little is in memory."""
    length = 0
    with tempfile.SpooledTemporaryFile(IN_MEMORY) as file:
        async for part in request.stream():
            length += len(part)
            if length > most:
                raise too_large(f"the body is larger than {most:,} bytes; send a smaller file")
            file.write(part)
        if not length:
            raise DataError("the body is empty; expected the content of a file")
        yield Upload("image 1", file, length)


def _of_part(part: UploadFile, index: int) -> Upload:
    size = part.size or 0
    if size > MAX_FILE_BYTES:
        raise too_large(
            f"image {index + 1} has {size:,} bytes; expected at most {MAX_FILE_BYTES:,}; send a smaller one"
        )
    return Upload(base_name(part.filename) or f"image {index + 1}", part.file, size)


def base_name(name: str | None) -> str:
    """Return the last part of a file's name as its sender gave it, which is only ever shown."""
    return (name or "").replace("\\", "/").rpartition("/")[2][:200]


def _of_json(body: bytes, most: int) -> list[Upload | EncodedImage]:
    expected = 'expected {"images": ["BASE64", …]}'
    try:
        images = json.loads(body)["images"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(f"the body is not the JSON that was expected; {expected}") from error
    if not isinstance(images, list) or not images or not all(isinstance(image, str) for image in images):
        raise DataError(f"the JSON has no list of images; {expected}")
    if len(images) > most:
        raise too_large(f"the request has {len(images):,} images; expected at most {most}; send less at once")
    try:
        return [
            EncodedImage(f"image {i}", base64.b64decode(each, validate=True)) for i, each in enumerate(images, 1)
        ]
    except (binascii.Error, ValueError) as error:
        raise DataError(f"an image is not valid base64 ({error}); {expected}") from error


def save(upload: Upload | EncodedImage, path: Path) -> None:
    with writing(path, mode=PRIVATE, sync=False, new=True) as target:
        if isinstance(upload, Upload):
            upload.copy_to(target)
        else:
            target.write(upload.content())
