"""Hostile image files and zips, quick to make without much memory: each small, and meant to be expensive to read.

`IMAGES` maps the name of a case to a function that returns a file's name and bytes. `PLACES` and `ZIPS` map names
to functions that make something in a folder and return its path.
"""

from __future__ import annotations

import io
import os
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

Case = Callable[[], tuple[str, bytes]]
MEGABYTE = 2**20


def zeros_deflated(size: int, raw: bool = False) -> bytes:
    """Return a deflate stream of `size` zero bytes, without making them: one block repeated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(MEGABYTE)) + packer.flush(zlib.Z_FULL_FLUSH)
    last = zlib.compressobj(9, zlib.DEFLATED, -15)
    end = last.compress(bytes(size % MEGABYTE)) + last.flush()
    body = block * (size // MEGABYTE) + end
    return body if raw else b"\x78\xda" + body + struct.pack(">I", (size % 65521) << 16 | 1)


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(
    width: int, height: int, depth: int, colours: int, before: bytes = b"", interlaced: bool = False, cut: int = 0
) -> bytes:
    """Return a black PNG; `colours` is its colour type."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colours]
    size = height * (1 + (width * channels * depth + 7) // 8) + (2 * (width + height) * 8 if interlaced else 0)
    header = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, int(interlaced))
    palette = chunk(b"PLTE", bytes(3)) + chunk(b"tRNS", b"\x80") if colours == 3 else b""
    pixels = zeros_deflated(size)
    pixels = pixels[: len(pixels) - cut]
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + palette + before
    return start + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def exif(orientation: int) -> bytes:
    return b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHII", 0x112, 3, 1, orientation) + bytes(4)


def tags(count: int, size: int) -> bytes:
    """Return a TIFF directory whose tags all claim the same `size` bytes."""
    entries = b"".join(struct.pack("<HHII", 1000 + number, 1, size, 8) for number in range(count))
    return b"II*\0\x08\0\0\0" + struct.pack("<H", count) + entries + bytes(4) + bytes(size)


def segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def jpeg(width: int, height: int, mode: str = "RGB", after_start: bytes = b"") -> bytes:
    """Return a baseline JPEG whose rows of blocks are one row repeated."""
    buffer = io.BytesIO()
    colours = np.random.default_rng(0).integers(0, 255, (1, 40, 3), dtype=np.uint8)
    row = Image.fromarray(colours).resize((width, 8)) if mode == "RGB" else Image.new(mode, (width, 8), 99)
    row.save(buffer, "JPEG", quality=50, subsampling=0, restart_marker_rows=1)
    data = buffer.getvalue()
    frame = data.index(b"\xff\xc0")
    scan = data.index(b"\xff\xda")
    scan += 2 + int.from_bytes(data[scan + 2 : scan + 4], "big")
    start = data[:2] + after_start + data[2 : frame + 5] + struct.pack(">H", height) + data[frame + 7 : scan]
    rows = -(-height // 8)
    body = data[scan:-2]
    turns = b"".join(body + bytes([0xFF, 0xD0 + number]) for number in range(8))
    whole = turns * (rows // 8) + b"".join(body + bytes([0xFF, 0xD0 + number]) for number in range(rows % 8))
    return start + whole[:-2] + b"\xff\xd9"


def progressive(width: int, height: int, scans: int, layers: int = 1) -> bytes:
    """Return a grey progressive JPEG of one value, whose scans each walk through all of its blocks."""
    one_code = bytes([1, *bytes(15)])
    frame = struct.pack(">BHHB", 8, height, width, layers)
    frame += b"".join(bytes([number, 0x11, 0]) for number in range(1, layers + 1))
    data = b"\xff\xd8" + segment(0xDB, b"\0" + b"\1" * 64) + segment(0xC2, frame)
    data += segment(0xC4, b"\0" + one_code + b"\0") + segment(0xC4, b"\x10" + one_code + b"\xe0")
    blocks = -(-width // 8) * -(-height // 8)
    every = b"".join(bytes([number, 0]) for number in range(1, layers + 1))
    data += segment(0xDA, bytes([layers]) + every + b"\0\0\0") + bytes(-(-blocks * layers // 8))
    runs = -(-blocks // 32767)
    bits = ("0" + "1" * 14) * runs
    bits += "1" * (-len(bits) % 8)
    body = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    for number in range(1, layers + 1):
        data += (segment(0xDA, bytes([1, number, 0, 1, 63, 0])) + body) * scans
    return data + b"\xff\xd9"


def filled_jpeg(megabytes: int) -> bytes:
    """Return a small JPEG with fill bytes before its first segment, which Pillow reads byte by byte."""
    return b"\xff\xd8" + b"\xff" * megabytes * MEGABYTE + jpeg(64, 64)[2:]


def webp(width: int, height: int) -> bytes:
    """Return a lossless WebP of one colour: its pixels need no bits, so it is small at any size."""
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16), (9, 200, 60)).save(buffer, "WEBP", lossless=True)
    data = bytearray(buffer.getvalue())
    place = data.index(b"VP8L") + 9
    (bits,) = struct.unpack_from("<I", data, place)
    struct.pack_into("<I", data, place, bits & 0xF0000000 | height - 1 << 14 | width - 1)
    return bytes(data)


def gif(width: int, height: int, before: bytes = b"", screen: int = 1) -> bytes:
    """Return a GIF with a small screen and a large frame, without pixel data."""
    start = b"GIF89a" + struct.pack("<HHBBB", screen, screen, 0x80, 0, 0) + bytes(6) + before
    return start + b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x4c\x01\0;"


def gif_blocks(kind: int, size: int) -> bytes:
    return b"!" + bytes([kind]) + (b"\xff" + bytes(255)) * (size // 256) + b"\0"


def tiff(width: int, height: int, bits: int, samples: int, floats: bool = False) -> bytes:
    """Return a black deflated TIFF in one strip."""
    pixels = zeros_deflated(width * height * samples * bits // 8)
    colours = 2 if samples > 2 else 1
    fields = [(256, 4, width), (257, 4, height), (258, 3, bits), (259, 3, 8), (262, 3, colours)]
    fields += [(273, 4, 8), (277, 3, samples), (278, 4, height), (279, 4, len(pixels))]
    fields += [(338, 3, 2)] if samples == 4 else []
    fields += [(339, 3, 3)] if floats else []
    sizes = struct.pack("<4H", *[bits] * 4)
    entries = b""
    for tag, kind, value in fields:
        if tag == 258 and samples > 2:
            entries += struct.pack("<HHII", tag, kind, samples, 8 + len(pixels))
        else:
            entries += struct.pack("<HHII", tag, kind, 1, value)
    place = 8 + len(pixels) + len(sizes)
    return (
        b"II*\0" + struct.pack("<I", place) + pixels + sizes + struct.pack("<H", len(fields)) + entries + bytes(4)
    )


def stated(kind: str, width: int, height: int) -> bytes:
    """Return a small AVIF or HEIC that states another size."""
    buffer = io.BytesIO()
    if kind == "HEIF":
        from pillow_heif import register_heif_opener

        register_heif_opener()
    Image.new("RGB", (64, 64), (9, 200, 60)).save(buffer, kind)
    data = bytearray(buffer.getvalue())
    struct.pack_into(">II", data, data.index(b"ispe") + 8, width, height)
    return bytes(data)


def bmp_without_end() -> bytes:
    """Return a run-length BMP without progress: twenty megabytes of jumps by zero."""
    body = b"\0\2\0\0" * (5 * MEGABYTE)
    header = struct.pack("<IiiHHIIiiII", 40, 4000, 4000, 1, 8, 1, len(body), 0, 0, 256, 0)
    return (
        b"BM"
        + struct.pack("<IHHI", 14 + 40 + 1024 + len(body), 0, 0, 14 + 40 + 1024)
        + header
        + bytes(1024)
        + body
    )


def many_frames() -> bytes:
    """Return an animated PNG of many frames, each stated as large as the picture."""
    control = struct.pack(">II", 100_000, 0)
    frame = struct.pack(">IIIIIHHBB", 0, 3000, 3000, 0, 0, 1, 10, 0, 0)
    data = png(3000, 3000, 8, 6, chunk(b"acTL", control) + chunk(b"fcTL", frame))
    pixels = b"".join(chunk(b"fcTL", frame) + chunk(b"fdAT", bytes(4)) for _ in range(20_000))
    return data[:-12] + pixels + data[-12:]


ZTXT = chunk(b"zTXt", b"a\0\0" + zeros_deflated(MEGABYTE - 1))
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\n(found) print\nshowpage\n%%EOF\n"

IMAGES: dict[str, Case] = {
    # Cases found by an attack.
    "png 13300² 16-bit grey": lambda: ("a.png", png(13_300, 13_300, 16, 0)),
    "png 13300² RGBA": lambda: ("a.png", png(13_300, 13_300, 8, 6)),
    "png 13300² RGB": lambda: ("a.png", png(13_300, 13_300, 8, 2)),
    "png that is EPS": lambda: ("a.png", EPS),
    # The maximum of decoded pixels, in every mode.
    "png 6300² 16-bit grey": lambda: ("a.png", png(6300, 6300, 16, 0)),
    "png 6300² RGBA": lambda: ("a.png", png(6300, 6300, 8, 6)),
    "png 6300² RGB": lambda: ("a.png", png(6300, 6300, 8, 2)),
    "png 6300² 16-bit RGBA": lambda: ("a.png", png(6300, 6300, 16, 6)),
    "png 6300² grey with alpha": lambda: ("a.png", png(6300, 6300, 8, 4)),
    "png 6300² palette": lambda: ("a.png", png(6300, 6300, 8, 3)),
    "png 6300² 1 bit": lambda: ("a.png", png(6300, 6300, 1, 0)),
    "png 6300² RGB interlaced": lambda: ("a.png", png(6300, 6300, 8, 2, interlaced=True)),
    "png 6300² RGBA turned": lambda: ("a.png", png(6300, 6300, 8, 6, chunk(b"eXIf", exif(6)))),
    "png 4890² RGBA turned": lambda: ("a.png", png(4890, 4890, 8, 6, chunk(b"eXIf", exif(6)))),
    "png 4960000 × 8": lambda: ("a.png", png(4_960_000, 8, 8, 6)),
    "png 1900² RGBA turned": lambda: ("a.png", png(1900, 1900, 8, 6, chunk(b"eXIf", exif(5)))),
    "jpeg 8160 × 6120": lambda: ("a.jpg", jpeg(8160, 6120)),
    "jpeg 12000 × 9000": lambda: ("a.jpg", jpeg(12_000, 9_000)),
    "jpeg 65000 × 440": lambda: ("a.jpg", jpeg(65_000, 440)),
    "jpeg 30000² grey": lambda: ("a.jpg", jpeg(30_000, 30_000, "L")),
    "jpeg 8160 × 6120 progressive": lambda: ("a.jpg", progressive(8160, 6120, 8)),
    "jpeg 8160 × 6120 progressive, 3 layers": lambda: ("a.jpg", progressive(8160, 6120, 4, 3)),
    "webp 3000 × 2000": lambda: ("a.webp", webp(3000, 2000)),
    "webp 4000 × 3000": lambda: ("a.webp", webp(4000, 3000)),
    "webp 6300²": lambda: ("a.webp", webp(6300, 6300)),
    "webp 16383²": lambda: ("a.webp", webp(16_383, 16_383)),
    "tiff 6300² 16-bit grey": lambda: ("a.tif", tiff(6300, 6300, 16, 1)),
    "tiff 6300² floats": lambda: ("a.tif", tiff(6300, 6300, 32, 1, floats=True)),
    "tiff 6300² RGBA": lambda: ("a.tif", tiff(6300, 6300, 8, 4)),
    "tiff 6300² 16-bit RGB": lambda: ("a.tif", tiff(6300, 6300, 16, 3)),
    "avif that states 60000²": lambda: ("a.avif", stated("AVIF", 60_000, 60_000)),
    "avif that states 6300²": lambda: ("a.avif", stated("AVIF", 6300, 6300)),
    "heic that states 60000²": lambda: ("a.heic", stated("HEIF", 60_000, 60_000)),
    "heic that states 6300²": lambda: ("a.heic", stated("HEIF", 6300, 6300)),
    "gif 65535²": lambda: ("a.gif", gif(65_535, 65_535)),
    "gif 6300² that ends at once": lambda: ("a.gif", gif(6300, 6300)),
    "ico with a png 6300²": lambda: (
        "a.png",
        b"\0\0\1\0\1\0" + struct.pack("<BBBBHHII", 0, 0, 0, 0, 1, 32, 10**6, 22) + png(6300, 6300, 8, 6),
    ),
    "ppm of comments": lambda: ("a.png", b"P4 " + b"# " * 60),
    "ppm 7000² of text": lambda: ("a.png", b"P3\n7000 7000\n255\n" + b"0 " * 8 * MEGABYTE),
    "tga 65535² run-length": lambda: (
        "a.png",
        struct.pack("<BBBHHBHHHHBB", 0, 0, 10, 0, 0, 0, 0, 0, 65_535, 65_535, 32, 0) + b"\xff\0\0\0\0" * 4000,
    ),
    # Expensive metadata.
    "png with 100 packed texts": lambda: ("a.png", png(64, 64, 8, 2, ZTXT * 100)),
    "png with 60 packed texts": lambda: ("a.png", png(6300, 6300, 8, 2, ZTXT * 60)),
    "png with a packed profile": lambda: (
        "a.png",
        png(64, 64, 8, 2, chunk(b"iCCP", b"a\0\0" + zeros_deflated(2**31))),
    ),
    "png with 45 MB of text": lambda: ("a.png", png(64, 64, 8, 2, chunk(b"tEXt", b"a\0" + bytes(45 * MEGABYTE)))),
    "png with 45 MB of EXIF": lambda: ("a.png", png(64, 64, 8, 2, chunk(b"eXIf", tags(60_000, 44 * MEGABYTE)))),
    "png with a million chunks": lambda: ("a.png", png(64, 64, 8, 2, chunk(b"aaAa", b"") * 10**6)),
    "png with EXIF as text": lambda: (
        "a.png",
        png(64, 64, 8, 2, chunk(b"tEXt", b"Raw profile type exif\0\nexif\n 999\n" + b"49" * 400_000)),
    ),
    "png of 20000 frames": lambda: ("a.png", many_frames()),
    "png cut off": lambda: ("a.png", png(6300, 6300, 8, 2, cut=40_000)),
    "jpeg of 20000 scans": lambda: ("a.jpg", progressive(8000, 6000, 20_000)),
    "jpeg of 490 scans": lambda: ("a.jpg", progressive(8000, 6000, 490)),
    "jpeg of 95 scans": lambda: ("a.jpg", progressive(8000, 6000, 95)),
    "jpeg with 45 MB of filling": lambda: ("a.jpg", filled_jpeg(45)),
    "jpeg with 50000 segments": lambda: ("a.jpg", jpeg(64, 64, after_start=segment(0xE1, b"x" * 900) * 50_000)),
    "jpeg with overlapping tags": lambda: (
        "a.jpg",
        jpeg(64, 64, after_start=segment(0xE1, b"Exif\0\0" + tags(2600, 32_000))),
    ),
    "jpeg with an index of overlapping tags": lambda: (
        "a.jpg",
        jpeg(64, 64, after_start=segment(0xE2, b"MPF\0" + tags(2600, 32_000))),
    ),
    "tiff with overlapping tags": lambda: ("a.tif", tags(60_000, 4 * MEGABYTE)),
    "gif with 45 MB of comment": lambda: ("a.gif", gif(64, 64, gif_blocks(254, 45 * MEGABYTE))),
    "gif with a million extensions": lambda: ("a.gif", gif(64, 64, gif_blocks(1, 0) * 10**6)),
    "webp of many parts": lambda: ("a.webp", webp(64, 64) + (b"ABCD" + bytes(4)) * 10**6),
    "bmp that never gets on": lambda: ("a.bmp", bmp_without_end()),
    "48 MB of nothing": lambda: ("a.png", bytes(48 * MEGABYTE)),
    "png with 45 MB behind it": lambda: ("a.png", png(64, 64, 8, 2) + bytes(45 * MEGABYTE)),
}


# Things that are no image files.


def link_to(target: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "link.png").symlink_to(target)
        return folder / "link.png"

    return make


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.png")
    return folder / "pipe.png"


def link_to_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    (folder / "link.png").symlink_to(folder / "pipe")
    return folder / "link.png"


def listening(folder: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(folder / "s.png"))
    return folder / "s.png"


def sparse(folder: Path) -> Path:
    with (folder / "sparse.png").open("wb") as file:
        file.truncate(200 * 10**9)
    return folder / "sparse.png"


def subfolder(folder: Path) -> Path:
    (folder / "folder.png").mkdir()
    return folder / "folder.png"


PLACES: dict[str, Callable[[Path], Path]] = {
    "link to /dev/zero": link_to("/dev/zero"),
    "link to /dev/stdin": link_to("/dev/stdin"),
    "link to /proc/self/mem": link_to("/proc/self/mem"),
    "link to /proc/kmsg": link_to("/proc/kmsg"),
    "named pipe": pipe,
    "link to a named pipe": link_to_pipe,
    "socket": listening,
    "sparse file of 200 GB": sparse,
    "folder named like an image": subfolder,
}


# Zips.


def zipped(name: str, *members: bytes) -> Callable[[Path], Path]:
    """Return a function that writes a zip of local parts and their directory, as returned by `member`."""

    def make(folder: Path) -> Path:
        with (folder / name).open("wb") as file:
            offsets = []
            for local in members[::2]:
                offsets.append(file.tell())
                file.write(local)
            start = file.tell()
            for offset, entry in zip(offsets, members[1::2], strict=True):
                file.write(entry.replace(b"OFFS", struct.pack("<I", offset), 1))
            size = file.tell() - start
            file.write(b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, len(offsets), len(offsets), size, start, 0))
        return folder / name

    return make


def member(
    name: str, packed: bytes, size: int, checksum: int, method: int = 8, flags: int = 0, attributes: int = 0
) -> tuple[bytes, bytes]:
    facts = struct.pack("<HHHHIIIHH", flags, method, 0, 33, checksum, len(packed), size, len(name.encode()), 0)
    local = b"PK\3\4" + struct.pack("<H", 20) + facts + name.encode() + packed
    entry = b"PK\1\2" + struct.pack("<HH", 20, 20) + facts
    entry += struct.pack("<HHHI", 0, 0, 0, attributes) + b"OFFS" + name.encode()
    return local, entry


def small_png() -> bytes:
    return png(64, 64, 8, 2)


def stored(name: str, data: bytes, flags: int = 0, attributes: int = 0) -> tuple[bytes, bytes]:
    return member(name, data, len(data), zlib.crc32(data), 0, flags, attributes)


def packed_by(method: int, size: int) -> Callable[[Path], Path]:
    """Return a function that writes a small zip of many zeros, compressed by another method than deflate."""

    def make(folder: Path) -> Path:
        with zipfile.ZipFile(folder / "a.zip", "w", method) as file, file.open("a/bomb.png", "w") as target:
            for _ in range(size // MEGABYTE):
                target.write(bytes(MEGABYTE))
            target.write(b"")
        return lying(folder / "a.zip", size)

    return make


def lying(path: Path, size: int) -> Path:
    """Make a zip state a tenth of a megabyte where it packs `size` bytes."""
    data = path.read_bytes().replace(struct.pack("<I", size), struct.pack("<I", 10**5))
    path.write_bytes(data)
    return path


def crowded(folder: Path) -> Path:
    """Make a zip whose directory has a million entries, all of one file."""
    local, entry = stored("a/image.png", small_png())
    entry = entry.replace(b"OFFS", bytes(4), 1)
    with (folder / "crowded.zip").open("wb") as file:
        file.write(local)
        for _ in range(100):
            file.write(entry * 10_000)
        size = 10**6 * len(entry)
        file.write(b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 10**6, 10**6, size, len(local)))
        file.write(b"PK\6\7" + struct.pack("<IQI", 0, len(local) + size, 1))
        file.write(b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0))
    return folder / "crowded.zip"


def overlapping(folder: Path) -> Path:
    """Make a zip of many names for one member that unpacks to 45 megabytes."""
    size = 45 * MEGABYTE
    local, entry = member("a/00000.png", zeros_deflated(size, raw=True), size, 0)
    entries = [entry.replace(b"OFFS", bytes(4), 1).replace(b"00000", b"%05d" % number) for number in range(5000)]
    listed = b"".join(entries)
    end = struct.pack("<HHHHIIH", 0, 0, 5000, 5000, len(listed), len(local), 0)
    (folder / "overlapping.zip").write_bytes(local + listed + b"PK\5\6" + end)
    return folder / "overlapping.zip"


def nested(folder: Path) -> Path:
    inner = packed_by(zipfile.ZIP_DEFLATED, 100 * MEGABYTE)(folder).read_bytes()
    return zipped("nested.zip", *stored("a/inner.zip", inner), *stored("a/image.png", small_png()))(folder)


def odd_names(folder: Path) -> Path:
    names = ["/etc/absolute.png", "../../up.png", "a/twice.png", "a/twice.png", "a\\back.png", "C:/drive.png"]
    parts = [part for name in names for part in stored(name, small_png())]
    return zipped("names.zip", *parts)(folder)


ZIPS: dict[str, Callable[[Path], Path]] = {
    "zip, bzip2, 40 MB stated as 0.1 MB": packed_by(zipfile.ZIP_BZIP2, 40 * MEGABYTE),
    "zip, lzma, 50 MB stated as 0.1 MB": packed_by(zipfile.ZIP_LZMA, 50 * MEGABYTE),
    "zip, deflate, 2 GB stated as 0.1 MB": lambda folder: zipped(
        "a.zip", *member("a/a.png", zeros_deflated(2**31, raw=True), 10**5, 0)
    )(folder),
    "zip, deflate, 45 MB": lambda folder: zipped(
        "a.zip", *member("a/a.png", zeros_deflated(45 * 10**6, raw=True), 45 * 10**6, 0)
    )(folder),
    "zip, 40 MB behind the end of 1000 bytes": lambda folder: zipped(
        "a.zip", *member("a/a.png", zeros_deflated(1000, raw=True) + bytes(40 * MEGABYTE), 1000, 0)
    )(folder),
    "zip, encrypted": lambda folder: zipped("a.zip", *stored("a/a.png", small_png(), flags=1))(folder),
    "zip with a link": lambda folder: zipped(
        "a.zip", *stored("a/a.png", b"/etc/passwd", attributes=0o120777 << 16)
    )(folder),
    "zip with a list of a million": crowded,
    "zip of 5000 names for one file": overlapping,
    "zip in a zip": nested,
    "zip with odd names": odd_names,
}


def hundred_files(folder: Path) -> Path:
    """Write a folder of a hundred hostile files, no two alike: every case, the heaviest images several times."""
    folder.mkdir(exist_ok=True)
    contents = {name: make() for name, make in IMAGES.items()}
    heavy = [name for name in contents if "6300²" in name or "1900²" in name or "4000 × 3000" in name]
    names = (list(contents) + heavy * 9)[:100]
    for number, name in enumerate(names):
        file, data = contents[name]
        different = data + bytes([number]) if number >= len(contents) else data
        (folder / f"{number:03}{Path(file).suffix}").write_bytes(different)
    return folder
