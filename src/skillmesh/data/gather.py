"""Find the images that command-line arguments name: files, folders, patterns, zips and standard input."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePath, PurePosixPath

from skillmesh.data import sources
from skillmesh.data.formats import (
    HEAD_BYTES,
    IMAGE_SUFFIXES,
    Skipped,
    image_kind,
    missing_for,
    other_kind,
    split_by_reading,
    suffix_of,
)
from skillmesh.data.images import Pixels, UnreadableImageError, decode
from skillmesh.data.inputs import AnyImage, EncodedImage, Unreadable, is_url, no_download
from skillmesh.errors import DataError

STDIN = "-"
MOST_IN_ZIPS = 250_000
"""Largest number of images in zips that one call lists."""
EXPECTED = ", ".join(sorted(IMAGE_SUFFIXES))


def gather(words: Sequence[str]) -> Iterator[AnyImage | Unreadable]:
    """Yield the images that command-line arguments (`words`) name, in order; an `Unreadable` for each failure.

    A word is an image file of any name, a folder or zip of images, a pattern such as `photos/**/*.jpg` that the
    shell has not expanded, or `-` for an image from standard input. Folders are listed, and a file without an
    image's extension is recognised by its first bytes; nothing is decoded.
    """
    in_zips = 0
    for index, word in enumerate(words):
        if word == STDIN:
            yield _from_stdin(again=STDIN in words[:index])
        elif is_url(word):
            yield Unreadable(word, no_download(word))
        else:
            for image in _from_path(word):
                in_zips += isinstance(image, ZippedImage)
                if in_zips > MOST_IN_ZIPS:
                    raise DataError(
                        f"the zips up to {word} hold more than {MOST_IN_ZIPS:,} images; ask about fewer at once"
                    )
                yield image


def _from_stdin(again: bool) -> AnyImage | Unreadable:
    if again:
        return Unreadable(STDIN, "standard input has been read already; give `-` only once")
    if sys.stdin is None or sys.stdin.isatty():
        return Unreadable(STDIN, "nothing is piped into standard input; expected an image: `… | skillmesh ask -`")
    data = sys.stdin.buffer.read(sources.MAX_FILE_BYTES + 1)
    if not data:
        return Unreadable(STDIN, "standard input is empty; expected an image")
    try:
        sources.refuse_large(len(data))
    except OSError as error:
        return Unreadable(STDIN, str(error))
    reason = _why_no_image(data[:HEAD_BYTES])
    return EncodedImage(STDIN, data) if reason is None else Unreadable(STDIN, reason)


def _from_path(word: str) -> Iterator[AnyImage | Unreadable]:
    try:
        status = Path(word).stat() if word else None
    except (OSError, ValueError) as error:  # ValueError: a null character
        if isinstance(error, FileNotFoundError | NotADirectoryError) and glob.has_magic(word):
            yield from _from_pattern(word)
        else:
            yield Unreadable(word, _why_not_there(word, error))
        return
    if status is None:
        yield Unreadable(word, "the name is empty; expected an image file, a folder or a zip")
    elif (kind := sources.irregular(status.st_mode)) == "a folder":
        yield from _from_folder(word)
    elif kind is not None:
        yield Unreadable(word, f"found {kind}; expected an image file, a folder or a zip")
    elif suffix_of(word) == ".zip":
        yield from _from_zip(word)
    else:
        yield _from_file(word, status.st_size)


def _why_not_there(word: str, error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        if os.path.islink(word):  # noqa: PTH114
            return f"{word} is a link to a file that does not exist"
        return f"there is no file {word}; expected an image file, a folder or a zip"
    return f"{word} cannot be read: {getattr(error, 'strerror', None) or error}"


def _from_file(word: str, size: int) -> AnyImage | Unreadable:
    """Return a file as an image, recognised by its extension or else by its first bytes."""
    suffix = suffix_of(word)
    if hint := missing_for(suffix):
        return Unreadable(word, f"{suffix} images cannot be read here; {hint}")
    try:
        sources.refuse_large(size)
        with sources.open_regular(Path(word)) as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        return Unreadable(word, f"cannot be read: {error.strerror or error}")
    reason = _why_no_image(head, trusted=suffix in IMAGE_SUFFIXES)
    return EncodedImage(word) if reason is None else Unreadable(word, reason)


def _why_no_image(head: bytes, trusted: bool = False) -> str | None:
    """Return why a file with these first bytes is not an image; None if it may be one that can be read here."""
    if not head:
        return "the file is empty"
    kind = image_kind(head)
    if kind is not None:
        hint = missing_for({"heif": ".heic", "avif": ".avif"}.get(kind, ""))
        return f"{kind.upper()} images cannot be read here; {hint}" if hint else None
    if trusted:
        return None
    return f"not an image: found {other_kind(head)}; expected {EXPECTED}"


def _from_folder(word: str) -> Iterator[AnyImage | Unreadable]:
    try:
        names = sources.files_below(Path(word))
    except DataError as error:
        yield Unreadable(word, str(error))
        return
    shown = [name for name in names if not _hidden(name)]
    for name in _images_among(shown, word):
        yield name if isinstance(name, Unreadable) else EncodedImage(os.path.join(word, name))  # noqa: PTH118


def _from_zip(word: str) -> Iterator[AnyImage | Unreadable]:
    try:
        source = sources.ZipSource(Path(word))
    except DataError as error:
        yield Unreadable(word, str(error))
        return
    shown = [name for name in source.names() if not _hidden(name)]
    for name in _images_among(shown, word):
        yield name if isinstance(name, Unreadable) else ZippedImage(f"{word}/{name}", source, name)


def _images_among(names: Sequence[str], word: str) -> Iterator[str | Unreadable]:
    """Yield the images in a listing, and what was skipped if there are none or if an installation would help."""
    images, others = split_by_reading(names)
    yield from images
    skipped = Skipped.of(others)
    if not images:
        others_found = f": {skipped}" if skipped else ""
        yield Unreadable(word, f"no image that can be read was found there{others_found}; expected {EXPECTED}")
    elif helped := skipped.readable_with_more:
        yield Unreadable(word, str(helped))


def _hidden(name: str) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(name).parts)


@dataclass(frozen=True)
class ZippedImage:
    """An image inside a zip, not unpacked yet."""

    name: str
    source: sources.ZipSource
    member: str

    def size(self) -> int:
        return self.source.size(self.member)

    def content(self) -> bytes:
        try:
            return self.source.read(self.member)
        except OSError as error:
            raise UnreadableImageError(f"{self.name} cannot be read: {error}") from error

    def pixels(self, content: bytes, size: int) -> Pixels:
        return decode(content, size)


def _from_pattern(word: str) -> Iterator[AnyImage | Unreadable]:
    """Expand a pattern. `**` is expanded by our own code, since `glob` would follow circular links."""
    try:
        paths = _below(word) if "**" in PurePath(word).parts else sorted(glob.glob(word))  # noqa: PTH207
    except DataError as error:
        yield Unreadable(word, str(error))
        return
    if not paths:
        yield Unreadable(word, f"no file matches {word}; expected image files, folders or zips")
        return
    folders = [path for path in paths if Path(path).is_dir()]
    zips = sorted({path for path in paths if suffix_of(path) == ".zip"} - set(folders))
    files = sorted(set(paths) - set(folders) - set(zips))
    if files or not (folders or zips):
        for path in _images_among(files, word):
            yield path if isinstance(path, Unreadable) else EncodedImage(path)
    for path in folders:
        yield from _from_folder(path)
    for path in zips:
        yield from _from_zip(path)


def _below(word: str) -> list[str]:
    """Return the files that match a pattern with `**`, or that are in a folder that matches it."""
    parts = PurePath(word).parts
    fixed = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    base = Path(*parts[:fixed])
    if not base.is_dir():
        return []
    several = zip(parts[fixed:], (*parts[fixed + 1 :], ""), strict=True)
    pattern = [part for part, following in several if not part == following == "**"]  # repeated `**` mean one
    names = (name for name in sources.files_below(base) if not _hidden(name))
    return [str(base / name) for name in names if _matches(PurePosixPath(name).parts, pattern)]


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether a path, or a folder above it, matches a pattern; `**` stands for any number of parts."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_matches(parts[skip:], pattern[1:]) for skip in range(len(parts)))
    return bool(parts) and fnmatch(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
