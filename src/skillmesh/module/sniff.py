"""What a file that is no module seems to be, so that the message can say so."""

from __future__ import annotations

import codecs

_MAGIC = {
    b"PK\x03\x04": "a zip archive (PyTorch and Keras files are zips too)",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"\x1f\x8b": "a gzip archive",
    b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "a NumPy file",
    b"\x7fELF": "a program",
}


def guess(data: bytes) -> str | None:
    """Name what the first bytes look like, or None.

    A header's length begins a module, and may begin like a pickle: ask only when it is clear that it is none.

    >>> guess(b"\\x80\\x04\\x95..."), guess(b"hello"), guess(bytes(9))
    ('a pickle (which may run code when opened, so skillmesh never does)', 'text', None)
    """
    for magic, name in _MAGIC.items():
        if data.startswith(magic):
            return name
    if data[:1] == b"\x80" and 2 <= int.from_bytes(data[1:2]) <= 5 and data[2:3] not in (b"", b"\0"):
        return "a pickle (which may run code when opened, so skillmesh never does)"
    try:
        start, _ = codecs.utf_8_decode(data[:64], "strict", False)  # False: the last letter may be cut in two
    except UnicodeDecodeError:
        return None
    if start and all(letter.isprintable() or letter in "\r\n\t" for letter in start):
        return "text"
    return None
