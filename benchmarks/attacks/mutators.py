"""Mutations of valid files: bytes anywhere, and fields where the structure is known.

All randomness comes from the given generator, so that a case can be made again. Structure-aware mutations correct
what a reader checks first (lengths, checksums, signatures), to reach what it checks later.
"""

from __future__ import annotations

import base64
import binascii
import copy
import io
import json
import re
import sqlite3
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

INTEGERS = (0, 1, 2, 3, 7, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
LARGE_INTEGERS = (2**53, 2**63 - 1, 2**63, 2**64 - 1)
DEEP, DIGITS = "\ue000deep", "\ue000digits"
"""Placeholders for JSON that Python cannot write: a thousand brackets, an integer of five thousand digits."""
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 0.0, -0.0, 0.5, 1.0, 1e308, 5e-324, 2**31, 2**31 + 1, 2**63, 10**17, 10**40),
    *(float("nan"), float("inf"), -float("inf"), DIGITS, DEEP, [], {}, [[]], [None], {"a": 1}, [0] * 70),
    *("", " ", "x", "x" * 101, "x" * 201, "x" * 70_000, "a\nb", "a\tb", "\0", "\x1b[2J", "\u202e", "\ud800"),
    *("e\u0301", "\ufe0f", "\u3164", "\u034f", "\U000e0100", "..", "../x", "a/b", "a\\b", "a@b", "NaN", "1"),
    *("0" * 64, "f" * 64, "0" * 128, "descriptor", "sketch", "2024-12-31T23:59:59Z", "2024-02-30T00:00:00Z"),
)
SMALL_ORDER = tuple(
    bytes.fromhex(point)
    for point in (
        "01" + 31 * "00",
        "ec" + 30 * "ff" + "7f",
        32 * "00",
        31 * "00" + "80",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    )
)
"""Ed25519 points for which one signature fits every message."""
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493

PACKED = tuple(zlib.compress(bytes(size), 9) for size in (10, 10_000, 5_000_000))
"""Highly compressed data, for the texts in a PNG."""

Mutator = Callable[[bytes, Random], bytes]


# Bytes.


def edit_bytes(data: bytes, rng: Random, others: Sequence[bytes] = ()) -> bytes:
    """Change a few bytes, or move whole parts of the file."""
    edited = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        size = len(edited)
        start, end = sorted((rng.randrange(size + 1), rng.randrange(size + 1)))
        match rng.randrange(11):
            case 0 if size:
                edited[rng.randrange(size)] ^= 1 << rng.randrange(8)
            case 1 if size:
                edited[rng.randrange(size)] = rng.choice((0, 1, 9, 10, 32, 34, 48, 57, 92, 123, 127, 128, 255))
            case 2 | 3:
                edit_number(edited, rng.randrange(size + 1), rng)
            case 4:
                edited[start:start] = rng.randbytes(rng.choice((1, 2, 4, 8, 64)))
            case 5:
                del edited[start : min(end, start + rng.choice((1, 2, 8, 64)))]
            case 6:
                edited[start:start] = edited[start : min(end, start + 4096)]
            case 7:
                middle = (start + end) // 2
                edited[start:end] = edited[middle:end] + edited[start:middle]
            case 8:
                del edited[end:]
            case 9:
                edited[start : start + 16] = bytes([rng.choice((0, 255))]) * min(16, size - start)
            case 10 if others:
                other = rng.choice(others)
                edited[start:] = other[rng.randrange(len(other) + 1) :]
    return bytes(edited)


def edit_number(data: bytearray, place: int, rng: Random, width: int = 0) -> None:
    """Write a number that is likely to break readers, of any width and byte order, or one near the old value."""
    width = width or rng.choice((1, 2, 4, 8))
    order: Any = rng.choice(("little", "big"))
    if place + width > len(data):
        return
    old = int.from_bytes(data[place : place + width], order)
    new = old + rng.choice((-1, 1, 8, -8)) if rng.random() < 0.3 else rng.choice(INTEGERS + LARGE_INTEGERS)
    data[place : place + width] = (new % 256**width).to_bytes(width, order)


def changed_at(data: bytes, place: int, rng: Random, width: int) -> bytes:
    edited = bytearray(data)
    edit_number(edited, place, rng, width)
    return bytes(edited)


# JSON.


def edit_json(value: Any, rng: Random) -> Any:
    """Change one or two places of a JSON value."""
    root = [copy.deepcopy(value)]
    for _ in range(rng.choice((1, 1, 1, 2))):
        holder, key = rng.choice(_places(root))
        found = holder[key]
        match rng.randrange(9):
            case 0 | 1 | 2:
                holder[key] = copy.deepcopy(rng.choice(HOSTILE))
            case 3 if isinstance(found, int | float):
                holder[key] = rng.choice((found + 1, found - 1, -found, found * 2, float(found), str(found)))
            case 3 | 4 if isinstance(found, str):
                letter = rng.choice(("", " ", "A", "z", "0", "\0", "é", "e\u0301", "\u200b", "/", "@", "\u202e"))
                place = rng.randrange(len(found) + 1)
                holder[key] = found[:place] + letter + found[place + rng.randrange(2) :]
            case 5 if holder is not root:
                del holder[key]
            case 6:
                other, place = rng.choice(_places(root))
                holder[key] = copy.deepcopy(other[place])
            case 7 if isinstance(holder, dict):
                name = rng.choice(("", "x", "kind", "self", "format", "__metadata__", "note", "é", key + " "))
                holder[name] = copy.deepcopy(rng.choice((found, *HOSTILE)))
            case 8 if isinstance(found, list):
                holder[key] = rng.choice((found * 2, found[::-1], found[:1], found * 300, [*found, None]))
    return root[0]


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        for key in range(min(len(holder), 64)) if isinstance(holder, list) else list(holder):
            found.append((holder, key))
            if isinstance(holder[key], list | dict):
                waiting.append(holder[key])
    return found


def write_json(value: Any, rng: Random, canonical: bool = False) -> bytes:
    """Write JSON, mostly in the canonical form; otherwise with blanks, escapes, or duplicate or reordered keys."""
    form = 0 if canonical else rng.randrange(10)
    separators = (", ", ": ") if form == 1 else (",", ":")
    if isinstance(value, dict) and form != 2:
        value = {key: value[key] for key in sorted(value)}
    text = json.dumps(value, separators=separators, ensure_ascii=form == 3)
    text = text.replace(json.dumps(DIGITS), "9" * 5000).replace(json.dumps(DIGITS, ensure_ascii=False), "9" * 5000)
    deep = "[" * 3000 + "]" * 3000
    text = text.replace(json.dumps(DEEP), deep).replace(json.dumps(DEEP, ensure_ascii=False), deep)
    if form == 4 and (keys := [match.start() for match in re.finditer(r'"[a-z_]+":', text)]):
        start = rng.choice(keys)
        text = text[:start] + text[start : text.index(":", start)] + ":null," + text[start:]
    if form == 5:
        text = (
            rng.choice((" ", "\ufeff", "[")) + text if rng.random() < 0.5 else text + rng.choice((" ", "\n", "}"))
        )
    return text.encode(errors="surrogatepass")


# safetensors files: calibrations, validation images, and modules before their signatures.


Entry = tuple[str, list[int], bytes]
"""A tensor's dtype, shape and bytes."""
WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4}
WIDTHS |= {"F32": 4, "F64": 8, "I64": 8, "U64": 8}
SPECIAL = {"F16": "<e", "F32": "<f", "F64": "<d"}


def read_tensors(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Split a valid safetensors file into its header and data."""
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def write_tensors(header: bytes, body: bytes) -> bytes:
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + body


def entries_of(header: dict[str, Any], body: bytes) -> dict[str, Entry]:
    return {
        name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def table_of(entries: dict[str, Entry]) -> tuple[dict[str, Any], bytes]:
    """Lay tensors out one after the other, in the order of their names."""
    table: dict[str, Any] = {}
    end = 0
    for name in sorted(entries):
        kind, shape, content = entries[name]
        table[name] = {"data_offsets": [end, end + len(content)], "dtype": kind, "shape": shape}
        end += len(content)
    return table, b"".join(entries[name][2] for name in sorted(entries))


def edit_entries(entries: dict[str, Entry], rng: Random) -> dict[str, Entry]:
    """Change tensors so that the file stays well-formed: values, dtypes, shapes, names."""
    edited = dict(entries)
    for _ in range(rng.choice((1, 1, 2, 3))):
        name = rng.choice(sorted(edited)) if edited else ""
        kind, shape, content = edited.get(name, ("F32", [1], bytes(4)))
        match rng.randrange(8):
            case 0 | 1 | 2:
                edited[name] = kind, shape, edit_values(kind, content, rng)
            case 3:
                other = rng.choice([k for k in sorted(WIDTHS) if len(content) % WIDTHS[k] == 0])
                edited[name] = other, [len(content) // WIDTHS[other]] if rng.random() < 0.5 else shape, content
            case 4:
                edited[name] = kind, rng.choice(([], [1, *shape], shape[::-1], [*shape, 1], shape[:1])), content
            case 5:
                edited.pop(name, None)
            case 6:
                rows = rng.choice((0, 1, 2, 5))
                row = content[: len(content) // max(shape[0], 1)] if shape else content
                edited[name] = kind, [rows, *shape[1:]], row * rows
            case 7:
                edited[rng.choice(("x", "", name + ".scale", "__metadata", "a" * 65, "É"))] = kind, shape, content
    return edited


def edit_values(kind: str, content: bytes, rng: Random) -> bytes:
    """Put unusual numbers into a tensor's bytes: one or all of them."""
    if kind not in SPECIAL:
        return (
            bytes([rng.choice((0, 1, 127, 128, 255))]) * len(content)
            if rng.random() < 0.3
            else edit_some(content, rng)
        )
    value = rng.choice((0.0, -0.0, -1.0, 1e-7, 9.999, 10.0, 10.001, 6e4, 1e-38, 3e38, float("nan"), float("inf")))
    value = value if kind != "F16" or value != value or abs(value) <= 6e4 else 6e4
    packed = struct.pack(SPECIAL[kind], value)
    if rng.random() < 0.5:
        return packed * (len(content) // len(packed))
    place = rng.randrange(max(len(content) // len(packed), 1)) * len(packed)
    return content[:place] + packed + content[place + len(packed) :] if content else content


def edit_some(content: bytes, rng: Random) -> bytes:
    edited = bytearray(content)
    for _ in range(min(rng.choice((1, 4, 64)), len(edited))):
        edited[rng.randrange(len(edited))] = rng.randrange(256)
    return bytes(edited)


def edit_table(header: dict[str, Any], rng: Random) -> dict[str, Any]:
    """Change a header's offsets and types of tensors: overlapping, huge, swapped, of another dtype."""
    header = copy.deepcopy(header)
    names = sorted(name for name in header if name != "__metadata__")
    entry = header[rng.choice(names)]
    match rng.randrange(5):
        case 0:
            entry["data_offsets"] = copy.copy(header[rng.choice(names)]["data_offsets"])
        case 1:
            entry["data_offsets"] = [
                rng.choice(INTEGERS + LARGE_INTEGERS) for _ in range(rng.choice((1, 2, 2, 3)))
            ]
        case 2:
            entry["shape"] = [rng.choice(INTEGERS + LARGE_INTEGERS) for _ in range(rng.choice((0, 1, 2, 4, 9)))]
        case 3:
            entry["dtype"] = rng.choice((*WIDTHS, "F4", "", None, 5))
        case 4:
            entry["data_offsets"] = [offset + rng.choice((-8, -1, 1, 8)) for offset in entry["data_offsets"]]
    return header


def edit_safetensors(data: bytes, rng: Random, others: Sequence[bytes] = ()) -> bytes:
    """Change a plain safetensors file."""
    if rng.random() < 0.3:
        return edit_bytes(data, rng, others)
    header, body = read_tensors(data)
    match rng.randrange(4):
        case 0:
            return write_tensors(write_json(edit_json(header, rng), rng), body)
        case 1:
            return write_tensors(write_json(edit_table(header, rng), rng, canonical=True), body)
    table, body = table_of(edit_entries(entries_of(header, body), rng))
    if "__metadata__" in header:
        table["__metadata__"] = header["__metadata__"]
    return write_tensors(write_json(table, rng, canonical=True), body)


# PEM.


def edit_pem(data: bytes, rng: Random, others: Sequence[bytes] = ()) -> bytes:
    """Change text around a PEM block, or the DER inside it."""
    blocks = list(re.finditer(rb"-----BEGIN ([A-Z0-9 ]+)-----\s+([A-Za-z0-9+/=\s]+?)-----END \1-----\s*", data))
    if not blocks or rng.random() < 0.3:
        return edit_bytes(data, rng, others)
    block = rng.choice(blocks)
    label, der = block[1], base64.b64decode(block[2])
    match rng.randrange(5):
        case 0:
            label = rng.choice((b"PRIVATE KEY", b"CERTIFICATE", b"EC PRIVATE KEY", b"ENCRYPTED PRIVATE KEY", b"X"))
        case 1 if others:
            return data[: block.start()] + rng.choice(others) + data[block.end() :]
        case 2:
            return data + rng.choice((data, b"\n" * 9, b"-----BEGIN CERTIFICATE-----\n", *others))
        case _:
            der = edit_bytes(der, rng)
    text = base64.encodebytes(der)
    return (
        data[: block.start()]
        + b"-----BEGIN %s-----\n%s-----END %s-----\n" % (label, text, label)
        + data[block.end() :]
    )


# SQLite.


def edit_sqlite(data: bytes, rng: Random) -> bytes:
    """Change a database's header, its pages, or single values by SQL."""
    match rng.randrange(6):
        case 0:
            return edit_bytes(data, rng)
        case 1:
            place, width = rng.choice(
                ((16, 2), (18, 1), (19, 1), (20, 1), (21, 1), (24, 4), (28, 4), (32, 4), (40, 4))
            )
            return changed_at(data, place, rng, width)
        case 2:
            place, width = rng.choice(((44, 4), (48, 4), (52, 4), (56, 4), (60, 4), (64, 4), (92, 4), (96, 4)))
            return changed_at(data, place, rng, width)
    size = int.from_bytes(data[16:18], "big") or 4096
    pages = [data[start : start + size] for start in range(0, len(data), size)]
    number = rng.randrange(len(pages))
    match rng.randrange(5):
        case 0:
            start = 100 if number == 0 else 0
            pages[number] = changed_at(
                pages[number], start + rng.choice((0, 1, 3, 5, 7, 8, 10, 12)), rng, rng.choice((1, 2))
            )
        case 1:
            pages[number] = edit_some(pages[number], rng)
        case 2:
            other = rng.randrange(len(pages))
            pages[number], pages[other] = pages[other], pages[number]
        case 3:
            del pages[max(number, 1) :]
        case 4:
            return _edit_values_by_sql(data, rng)
    return b"".join(pages)


def _edit_values_by_sql(data: bytes, rng: Random) -> bytes:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(data[:18] + b"\1\1" + data[20:])  # in memory there is no write-ahead log
    tables = [
        name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1")
    ]
    table = rng.choice(tables)
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    value = rng.choice(
        (None, 0, -1, 2**62, 0.5, float("inf"), "", "x", "é" * 200, "\ud7ff", b"", b"x", b"\xff" * 99, b"{}")
    )
    column = rng.choice(columns)
    update = ("UPDATE", table, "SET", column, "= ?")
    others = (
        ("DROP TABLE", table),
        ("DELETE FROM", table),
        ("ALTER TABLE", table, "RENAME COLUMN", column, "TO x"),
    )
    try:
        if rng.random() < 0.6:
            connection.execute(" ".join(update), (value,))
        else:
            connection.execute(" ".join(rng.choice(others)))
    except sqlite3.Error:  # NOT NULL, or a duplicate key
        pass
    edited = connection.serialize()
    connection.close()
    return edited[:18] + data[18:20] + edited[20:]


# Images.


def edit_png(data: bytes, rng: Random) -> bytes:
    """Change chunks, and correct their checksums."""
    chunks = []
    place = 8
    while place + 8 <= len(data):
        length = int.from_bytes(data[place : place + 4], "big")
        chunks.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + length]))
        place += 12 + length
    number = rng.randrange(len(chunks))
    name, content = chunks[number]
    match rng.randrange(7):
        case 0 | 1:
            place, width = rng.choice(((0, 4), (4, 4), (8, 1), (9, 1), (10, 1), (11, 1), (12, 1)))
            chunks[0] = chunks[0][0], changed_at(chunks[0][1], place, rng, width)
        case 2:
            chunks[number] = name, edit_bytes(content, rng)
        case 3:
            chunks.insert(number, rng.choice(chunks))
        case 4:
            del chunks[number]
        case 5:
            packed = rng.choice(PACKED)
            new = rng.choice(((b"tRNS", bytes(rng.randrange(9))), (b"PLTE", bytes(3 * rng.randrange(300)))))
            text = rng.choice(
                ((b"zTXt", b"k\0\0" + packed), (b"iCCP", b"k\0\0" + packed), (b"eXIf", rng.randbytes(40)))
            )
            chunks.insert(rng.randrange(1, len(chunks) + 1), rng.choice((new, text, (b"acTL", bytes(8)))))
        case 6:
            pixels = edit_bytes(_unpacked(b"".join(c for n, c in chunks if n == b"IDAT")), rng)
            rest = [chunk for chunk in chunks if chunk[0] != b"IDAT"]
            chunks = [*rest[:-1], (b"IDAT", zlib.compress(pixels)), *rest[-1:]]
    return data[:8] + b"".join(png_chunk(*chunk) for chunk in chunks)


def _unpacked(data: bytes) -> bytes:
    try:
        return zlib.decompress(data)
    except zlib.error:
        return data


def png_chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", binascii.crc32(name + content))


def png_bomb(width: int, height: int, depth: int, colour: int) -> bytes:
    """Make a complete PNG of one colour: a kilobyte for each megabyte of pixels."""
    bits = depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    packed, _, adler = packed_zeros(height * (1 + (width * bits + 7) // 8))
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    content = b"\x78\x9c" + packed + struct.pack(">I", adler)
    chunks = png_chunk(b"IHDR", header) + png_chunk(b"IDAT", content) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def packed_zeros(size: int) -> tuple[bytes, int, int]:
    """Deflate `size` zeros without processing them one by one; with their CRC-32 and Adler-32."""
    whole = bytes(2**20)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(whole) + packer.flush(zlib.Z_FULL_FLUSH)
    rest = zlib.compressobj(9, zlib.DEFLATED, -15)
    last = rest.compress(bytes(size % 2**20)) + rest.flush()
    crc, adler = 0, 1
    for part in [whole] * (size // 2**20) + [bytes(size % 2**20)]:
        crc, adler = zlib.crc32(part, crc), zlib.adler32(part, adler)
    return block * (size // 2**20) + last, crc, adler


def edit_jpeg(data: bytes, rng: Random) -> bytes:
    """Change, drop or duplicate segments before the picture's data."""
    segments = []
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF and data[place + 1] != 0xDA:
        length = int.from_bytes(data[place + 2 : place + 4], "big")
        segments.append(data[place : place + 2 + length])
        place += 2 + length
    tail = data[place:]
    number = rng.randrange(len(segments))
    frames = [i for i, part in enumerate(segments) if part[1] in (0xC0, 0xC1, 0xC2)]
    match rng.randrange(7):
        case 0 | 1 if frames:
            place, width = rng.choice(((4, 1), (5, 2), (7, 2), (9, 1), (10, 1), (11, 1), (12, 1), (1, 1)))
            segments[frames[0]] = changed_at(segments[frames[0]], place, rng, width)
        case 2:
            part = segments[number]
            body = edit_bytes(part[4:], rng)[:65000]
            segments[number] = part[:2] + struct.pack(">H", len(body) + 2) + body
        case 3:
            segments.insert(number, rng.choice(segments))
        case 4:
            del segments[number]
        case 5:
            segments[number] = changed_at(segments[number], 2, rng, 2)
        case 6:
            tail = edit_bytes(tail, rng)
    return data[:2] + b"".join(segments) + tail


def edit_riff(data: bytes, rng: Random) -> bytes:
    """Change the chunks of a WebP file."""
    places = [12]
    while places[-1] + 8 <= len(data):
        length = int.from_bytes(data[places[-1] + 4 : places[-1] + 8], "little")
        places.append(places[-1] + 8 + length + length % 2)
    start = rng.choice(places[:-1] or [12])
    match rng.randrange(6):
        case 0:
            return changed_at(data, start + 4, rng, 4)
        case 1 | 2:
            return changed_at(data, start + 8 + rng.randrange(16), rng, rng.choice((1, 2, 3, 4)))
        case 3:
            name = rng.choice((b"VP8 ", b"VP8L", b"VP8X", b"ANIM", b"ANMF", b"ALPH", b"EXIF", b"ICCP"))
            return data[:start] + name + data[start + 4 :]
        case 4:
            end = min((place for place in places if place > start), default=len(data))
            return data[:start] + data[start:end] * rng.choice((0, 2)) + data[end:]
    return changed_at(data, 4, rng, 4)


def edit_tiff(data: bytes, rng: Random) -> bytes:
    """Change one field of a directory's entry: its tag, type, count or value; or the offset of directories."""
    order: Any = "little" if data[:2] == b"II" else "big"
    big = data[2:3] == b"+" or data[3:4] == b"+"
    first = int.from_bytes(data[8:16] if big else data[4:8], order)
    wide, counted = (20, 8) if big else (12, 2)
    count = int.from_bytes(data[first : first + counted], order)
    entry = first + counted + wide * rng.randrange(max(count, 1))
    fields = ((0, 2), (2, 2), (4, 8), (12, 8), (12, 4)) if big else ((0, 2), (2, 2), (4, 4), (8, 4), (8, 2))
    place, width = rng.choice(fields)
    match rng.randrange(8):
        case 0:
            return changed_at(data, 8 if big else 4, rng, 8 if big else 4)
        case 1:
            after = first + counted + wide * count
            return data[:after] + first.to_bytes(8 if big else 4, order) + data[after + (8 if big else 4) :]
        case 2:
            return changed_at(data, first, rng, counted)
    edited = bytearray(data)
    value = rng.choice(
        INTEGERS + tuple(range(1, 12)) + (256, 257, 258, 259, 262, 273, 277, 279, 317, 320, 339, 34712)
    )
    if entry + place + width <= len(edited):
        edited[entry + place : entry + place + width] = (value % 256**width).to_bytes(width, order)
    return bytes(edited)


def edit_head(data: bytes, rng: Random) -> bytes:
    """Change numbers among a file's first bytes: of GIF and BMP these are sizes, depths and palettes."""
    for _ in range(rng.choice((1, 1, 2))):
        data = changed_at(data, rng.randrange(min(len(data), 64)), rng, rng.choice((1, 2, 4)))
    return data


def edit_boxes(data: bytes, rng: Random) -> bytes:
    """Change the boxes of AVIF and HEIC files: their sizes, the picture's size, or leave one out."""
    names = [
        match.start()
        for match in re.finditer(rb"ftyp|meta|hdlr|pitm|iloc|iinf|infe|iprp|ipco|ispe|av1C|hvcC|mdat", data)
    ]
    place = rng.choice(names)
    match rng.randrange(6):
        case 0:
            return changed_at(data, place - 4, rng, 4)
        case 1 if b"ispe" in data:
            return changed_at(data, data.index(b"ispe") + rng.choice((8, 12)), rng, 4)
        case 2:
            length = int.from_bytes(data[place - 4 : place], "big")
            return data[: place - 4] + data[place - 4 + length :]
        case 3:
            return data[:place] + rng.choice((b"free", b"meta", b"irot", b"grid", b"avis")) + data[place + 4 :]
    return changed_at(data, place + 4 + rng.randrange(32), rng, rng.choice((1, 2, 4)))


def edit_words(data: bytes, rng: Random) -> bytes:
    """Edit a header of words, as in PPM: insert many words or separators somewhere."""
    word = rng.choice((b"#", b"# ", b"# x\n", b"\n", b" ", b"\t#\r", b"9", b"1 ", b"P6 ", b"-"))
    place = rng.randrange(16)
    return data[:place] + word * rng.choice((1, 2, 30, 60, 250)) + data[place + rng.choice((0, 0, 1, 3)) :]


STRUCTURE: dict[str, Mutator] = {
    "png": edit_png,
    "jpeg": edit_jpeg,
    "gif": edit_head,
    "webp": edit_riff,
    "tiff": edit_tiff,
    "bmp": edit_head,
    "avif": edit_boxes,
    "heif": edit_boxes,
    "ppm": edit_words,
    "ico": edit_head,
    "tga": edit_head,
}


def edit_image(kind: str, data: bytes, rng: Random, others: Sequence[bytes]) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2))):
        try:
            data = STRUCTURE[kind](data, rng) if rng.random() < 0.65 else edit_bytes(data, rng, others)
        except (IndexError, ValueError):  # the first change destroyed the structure
            data = edit_bytes(data, rng, others)
    return data


# Zips.


LOCAL, CENTRAL, END = b"PK\3\4", b"PK\1\2", b"PK\5\6"
FIELDS = {
    LOCAL: ((4, 2), (6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)),
    CENTRAL: (
        (4, 2),
        (6, 2),
        (8, 2),
        (10, 2),
        (16, 4),
        (20, 4),
        (24, 4),
        (28, 2),
        (30, 2),
        (32, 2),
        (34, 2),
        (42, 4),
    ),
    END: ((4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)),
}
"""Offsets and widths of numbers in a zip's records, by signature."""
NAMES = (
    "../../x.png",
    "/etc/x.png",
    "a\\b\\c.png",
    "C:\\x.png",
    "a/\0.png",
    "a/\x1b[2J.png",
    "a/" * 500 + "x.png",
)
NAMES += (
    "x" * 5000 + ".png",
    "e\u0301/1.png",
    "é/1.png",
    "train/a/1.png",
    "a//1.png",
    "a/./1.png",
    ".a/1.png",
    "a/",
    "",
)


def edit_zip(data: bytes, rng: Random, images: Sequence[bytes]) -> bytes:
    if rng.random() < 0.2:
        return edit_bytes(data, rng)
    if rng.random() < 0.25:
        return make_zip(rng, images)
    for _ in range(rng.choice((1, 1, 2, 3))):
        start = rng.choice(
            [match.start() for match in re.finditer(rb"PK(?:\x01\x02|\x03\x04|\x05\x06)", data)] or [0]
        )
        place, width = rng.choice(FIELDS.get(data[start : start + 4], ((0, 4),)))
        if width == 2 and rng.random() < 0.3:  # a compression method, or a flag
            value = rng.choice((0, 1, 8, 9, 12, 14, 20, 64, 93, 95, 99, 2048)).to_bytes(2, "little")
            data = data[: start + place] + value + data[start + place + 2 :]
        else:
            data = changed_at(data, start + place, rng, width)
    return data


def make_zip(rng: Random, images: Sequence[bytes]) -> bytes:
    """Make a zip with unusual names and compression methods."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for index in range(rng.randrange(1, 8)):
            name = rng.choice((*NAMES, f"a/{index}.png", f"b/{index}.png", f"train/b/{index}.jpg"))
            member = zipfile.ZipInfo(name)
            member.filename = name or "x"  # set directly: the constructor ends names at a null character
            member.compress_type = rng.choice((0, 8, 8, 12, 14))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # duplicate names
                archive.writestr(member, rng.choice(images))
    return buffer.getvalue()


def zip_bomb(size: int, declared: int) -> bytes:
    """Make a zip of two members; one unpacks to `size` bytes, whatever its header states."""
    packed, crc, _ = packed_zeros(size)
    records, listing = [], []
    place = 0
    for name, content, sizes in ((b"a/1.png", b"x", (1, 1)), (b"b/1.png", packed, (len(packed), declared))):
        method, check = (8, crc) if content is packed else (0, zlib.crc32(content))
        facts = struct.pack("<HHHHHIIIHH", 20, 0, method, 0, 33, check, *sizes, len(name), 0)
        records.append(LOCAL + facts + name + content)
        listing.append(CENTRAL + struct.pack("<H", 20) + facts + struct.pack("<HHHII", 0, 0, 0, 0, place) + name)
        place += len(records[-1])
    body, table = b"".join(records), b"".join(listing)
    return body + table + END + struct.pack("<HHHHIIH", 0, 0, 2, 2, len(table), len(body), 0)
