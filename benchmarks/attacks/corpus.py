"""Valid files of all kinds, from which mutations start: small, written by the same code as users' files.

They are written once for each campaign and kept with its state: certificates and databases differ each time they
are written, and a case must be reproducible.
"""

from __future__ import annotations

import io
import shutil
import sqlite3
import tempfile
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from attacks.forgeries import MALLORY
from attacks.mutators import png_bomb, zip_bomb
from skillmesh.anchors.protocol import AnchorSettings
from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.backbone.backbone import DescriptorCache, backbone_fingerprint
from skillmesh.backbone.calibration import Calibration, LabelledRaw, calibrate
from skillmesh.common.config import MeshSettings
from skillmesh.learning.adaptation import Biases
from skillmesh.learning.class_names.encoders import Remembered, Spelling
from skillmesh.learning.head import fit_head, probe_tensors
from skillmesh.mesh.certs import create_ca, issue
from skillmesh.mesh.wire import Hello, write_digest, write_notices
from skillmesh.module import Card, Identity, Module
from skillmesh.module.notice import Notice, Slot, announce, link, withdraw
from skillmesh.store.home import CALIBRATION_FILE, KEY_FILE, create_home, save_validation
from skillmesh.store.ledger import Ledger

ADA, BOB = Identity("ada", b"a" * 32), Identity("bob", b"b" * 32)
"""The agent whose home is attacked, and an honest teacher that it trusts."""
NETWORK = "ab" * 32
WIDTH, FEATURES = 24, 8
SIDE = 40
"""Side of an image, in pixels."""
TEXTS = ("circle", "square", "a star")
CREATED = "2024-12-31T23:59:59Z"

Files = dict[str, bytes]
Corpus = dict[str, Files]
"""By kind, then by name."""


def load_corpus(folder: Path) -> Corpus:
    """Read the campaign's valid files, or write them if there are none yet."""
    if not folder.exists():
        partial_folder = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial_folder, ignore_errors=True)
        for kind, files in make_corpus().items():
            for name, data in files.items():
                path = partial_folder / kind / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        partial_folder.rename(folder)
    return {
        kind.name: {str(p.relative_to(kind)): p.read_bytes() for p in sorted(kind.rglob("*")) if p.is_file()}
        for kind in sorted(folder.iterdir())
    }


def make_corpus() -> Corpus:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calibration = _calibration()
        calibration.save(folder / CALIBRATION_FILE)
        modules = _modules(calibration)
        notices = _notices(modules)
        images = {kind: _images(kind) for kind in FORMATS}
        return {
            "module": {f"{module.card.task}.skill": data for module, data in modules},
            "notice": {f"{index}.json": notice.encode() for index, notice in enumerate(notices)},
            "wire": _wire(notices, modules[0][1]),
            "calibration": {CALIBRATION_FILE: (folder / CALIBRATION_FILE).read_bytes()},
            "home": _home(folder, modules, notices),
            "caches": _caches(folder),
            "certs": _certs(folder),
            "pem": _other_keys(),
            **images,
            "foreign": _foreign(),
            "png-bomb": {
                f"{bits}-bit.png": png_bomb(13_000, 13_000, bits, colour) for bits, colour in ((16, 0), (8, 6))
            },
            "zip": _zips(list(images["png"].values())),
            "zip-bomb": {f"says-{size}.zip": zip_bomb(600_000_000, size) for size in (1000, 600_000_000)},
        }


def _rows(seed: int, classes: int, each: int) -> tuple[Any, Any]:
    chance = np.random.default_rng(seed)
    centres = 1.5 + chance.standard_normal((classes, WIDTH))
    labels = np.repeat(np.arange(classes), each)
    return np.abs(centres[labels] + 0.4 * chance.standard_normal((len(labels), WIDTH))).astype(np.float16), labels


def _calibration() -> Calibration:
    tasks = [LabelledRaw(*_rows(seed, 4, 12)) for seed in range(4)]
    return calibrate(NETWORK, FEATURES, tasks, "numbers drawn for a campaign")


def _modules(calibration: Calibration) -> list[tuple[Module, bytes]]:
    from skillmesh.backbone.calibration import represent

    modules = []
    for seed, (task, classes, teacher) in enumerate(
        [("dice", 2, ADA), ("shapes", 3, ADA), ("letters", 5, BOB), ("maps", 2, BOB), ("signs", 2, MALLORY)], 50
    ):
        raw, labels = _rows(seed, classes, 12)
        x = represent(raw, FEATURES, "descriptor", calibration)
        train = np.arange(len(x)) % 4 > 0
        fit = fit_head(x[train], labels[train], x[~train], labels[~train], classes)
        anchor = SketchAnchor.fit(x[train], labels[train], classes, AnchorSettings(rank=3))
        tensors = fit.head.tensors() | anchor.tensors() | probe_tensors(x[~train][:4])
        facts: dict[str, Any] = {"licence": "CC0", "note": "two\nlines", "tags": ("a", "b")} if seed % 2 else {}
        if task == "maps":
            tensors |= Biases(np.linspace(-1, 1, 64, dtype=np.float32)).tensors()
            facts["biases"] = (64, len(tensors["bias.value"]))
        if task == "letters":
            origins = [f"{index:064x}:class {index}" for index in range(classes)]
            source = ("dice", "cd" * 32, 1.5)
            facts |= {"composed": tuple(origins)}
            facts |= {"warm_start": {"form": "prior", "rows": [(0, 0, "one", 0.5)], "sources": [source]}}
        card = Card(
            task=task,
            classes=tuple(f"{task} {index}" for index in range(classes)),
            backbone=backbone_fingerprint(calibration),
            backbone_name="tiny",
            representation="descriptor",
            dim=WIDTH,
            compact=False,
            anchors=("sketch",),
            counts=(9,) * classes,
            validation_images=int(np.sum(~train)),
            validation_accuracy=fit.accuracy,
            temperature=fit.temperature,
            version=1,
            created=CREATED,
            teacher=teacher.name,
            teacher_key=teacher.public_key,
            **facts,
        )
        modules.append(Module.create(card, tensors, teacher))
    return modules


def _notices(modules: list[tuple[Module, bytes]]) -> list[Notice]:
    by_key = {identity.public_key: identity for identity in (ADA, BOB, MALLORY)}
    notices: list[Notice] = [announce(m.card, m.id, data, by_key[m.card.teacher_key]) for m, data in modules]
    ids = [module.id for module, _ in modules]
    return [*notices, withdraw("old", 3, BOB, "it was wrong"), link("both", 2, ids[1:3], ADA)]


def _wire(notices: list[Notice], data: bytes) -> Files:
    hello = Hello(name="bob", root="0" * 64, live=3, locators=("tcp/192.0.2.7:7447",), same=False)
    wanted = [bytes.fromhex(notice.digest)[:16] for notice in notices]
    by_short = dict(zip(wanted, notices, strict=True))
    return {
        "digest": write_digest(hello, notices),
        "same": write_digest(hello.model_copy(update={"same": True}), ()),
        "notices": write_notices(b"".join(wanted), by_short),
        "piece": b"+" + data[:1000],
    }


def _home(folder: Path, modules: list[tuple[Module, bytes]], notices: list[Notice]) -> Files:
    """Return the files of an agent's home, with everything that its commands and its node read."""
    home = folder / "home"
    home.mkdir()
    ADA.save(home / KEY_FILE)
    create_home(home, name="ada", calibration=folder / CALIBRATION_FILE)
    MeshSettings.of({"network": "fixed", "connect": ["192.0.2.7:7447"], "interests": ["tag:a", "d*"]}).save(home)
    for place in ("bank", "quarantine"):
        (home / place).mkdir(exist_ok=True)
    for module, data in modules[:3]:
        (home / "bank" / f"{module.id}.skill").write_bytes(data)
    chance = np.random.default_rng(3)
    own = modules[0][0]
    save_validation(home / "validation", own.id, chance.standard_normal((9, WIDTH)).astype("f"), np.arange(9) % 2)
    held, held_data = modules[4]
    (home / "quarantine" / f"{held.id}.skill").write_bytes(held_data)
    ledger = Ledger(home / "ledger.sqlite", ADA.public_key)
    ledger.trust(BOB.public_key, "bob")
    ledger.merge(notices, BOB.public_key)
    ledger.forget(Slot(BOB.public_key, "maps"))
    ledger.choose(held.id, "held", "a reason")
    ledger.choose("ef" * 32, "refused", "another reason")
    ledger.ban(MALLORY.public_key, "it lied")
    ledger.note_addresses(BOB.public_key, ["tcp/192.0.2.7:7447"])
    ledger.close()
    _put_log_away(home / "ledger.sqlite")
    lasting = [p for p in sorted(home.rglob("*")) if p.is_file() and ".lock" not in p.name]
    return {str(p.relative_to(home)): p.read_bytes() for p in lasting}


def _put_log_away(path: Path) -> None:
    """Checkpoint a database, so that all of it is in one file."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def _caches(folder: Path) -> Files:
    cache = DescriptorCache(folder / "cache", NETWORK)
    cache.put([(bytes([index]) * 32, np.full(WIDTH, index, np.float16)) for index in range(20)])
    cache.close()
    names = Remembered("spelling", 1.0, "x", Spelling, folder / "cache" / "names.sqlite")
    names.encode(TEXTS)
    for path in (folder / "cache").glob("*.sqlite"):
        _put_log_away(path)
    return {path.name: path.read_bytes() for path in sorted((folder / "cache").glob("*.sqlite"))}


def _certs(folder: Path) -> Files:
    create_ca(folder / "ca")
    files = issue(folder / "ca", ADA.public_key, "ada", folder / "certs")
    return {path.name: path.read_bytes() for path in (files.ca, files.certificate, files.key)}


def _other_keys() -> Files:
    """Return keys of other types, as other programs write them."""
    from cryptography.hazmat.primitives import serialization as ser
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519

    keys: dict[str, Any] = {
        "rsa": rsa.generate_private_key(65537, 2048),
        "ec": ec.generate_private_key(ec.SECP384R1()),
        "x25519": x25519.X25519PrivateKey.generate(),
        "ed25519": ed25519.Ed25519PrivateKey.generate(),
    }
    plain = {
        name: key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.PKCS8, ser.NoEncryption())
        for name, key in keys.items()
    }
    secret = ser.BestAvailableEncryption(b"x")
    return plain | {"locked": keys["ec"].private_bytes(ser.Encoding.PEM, ser.PrivateFormat.PKCS8, secret)}


FORMATS = ("png", "jpeg", "gif", "webp", "tiff", "bmp", "avif", "heif", "ppm", "ico", "tga")


def _images(kind: str) -> Files:
    """Return one format's images in several modes and compressions."""
    chance = np.random.default_rng(7)
    blocks = chance.integers(0, 255, (SIDE // 8, SIDE // 8, 4), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
    rgba = Image.fromarray(blocks)
    rgb, grey, palette = rgba.convert("RGB"), rgba.convert("L"), rgba.convert("RGB").convert("P")
    deep = Image.fromarray(blocks[:, :, 0].astype(np.uint16) * 257)
    real = Image.fromarray(blocks[:, :, 0].astype(np.float32))
    turned = Image.Exif()
    turned[0x0112] = 6
    moving = {"save_all": True, "append_images": [rgb.rotate(90), rgb.rotate(180)]}
    forms: dict[str, list[tuple[Image.Image, dict[str, Any]]]] = {
        "png": [
            (rgb, {}),
            (rgba, {}),
            (palette, {"transparency": 3}),
            (deep, {}),
            (grey.convert("1"), {}),
            (rgb, {"exif": turned}),
        ],
        "jpeg": [
            (rgb, {}),
            (rgb, {"progressive": True, "exif": turned}),
            (rgb.convert("CMYK"), {}),
            (grey, {"quality": 5}),
            (rgb, {"format": "MPO", **moving}),
        ],
        "gif": [(palette, {}), (rgb, moving), (grey, {"interlace": 1})],
        "webp": [(rgb, {}), (rgba, {"lossless": True}), (rgb, moving), (rgba, {"exif": turned})],
        "tiff": [
            (rgb, {"compression": name}) for name in ("raw", "tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits")
        ]
        + [
            (deep, {}),
            (real, {}),
            (rgb, moving),
            (rgb, {"big_tiff": True}),
            (grey.convert("1"), {"compression": "group4"}),
        ],
        "bmp": [(rgb, {}), (palette, {}), (grey, {}), (grey.convert("1"), {}), (rgba, {})],
        "avif": [(rgb, {"speed": 10}), (rgba, {"speed": 10})],
        "heif": [(rgb, {})],
        "ppm": [(rgb, {}), (grey, {}), (grey.convert("1"), {}), (deep, {})],
        "ico": [(rgba, {}), (rgba, {"bitmap_format": "bmp"}), (rgb, {"sizes": [(16, 16), (32, 32)]})],
        "tga": [(rgb, {}), (rgba, {"compression": "tga_rle"}), (palette, {}), (grey, {})],
    }
    if kind == "heif":
        try:
            from pillow_heif import register_heif_opener
        except ImportError:
            return {"none.heif": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"}
        register_heif_opener()
    encoded: Files = {}
    for index, (image, options) in enumerate(forms[kind]):
        buffer = io.BytesIO()
        partial(image.save, buffer, **({"format": kind.upper()} | options))()
        encoded[f"{index}.{kind}"] = buffer.getvalue()
    return encoded


def _foreign() -> Files:
    """Return images of formats that must not be opened: some of them run programs, or read other files."""
    image = Image.linear_gradient("L").resize((SIDE, SIDE)).convert("RGB")
    files: Files = {"x.svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>", "x.pdf": b"%PDF-1.4\n"}
    for kind in ("EPS", "PCX", "SGI", "DDS", "IM", "JPEG2000", "ICNS", "XBM", "MSP"):
        buffer = io.BytesIO()
        (image.convert("1") if kind in ("XBM", "MSP") else image).save(buffer, kind)
        files[f"x.{kind.lower()}"] = buffer.getvalue()
    return files


def _zips(images: list[bytes]) -> Files:
    files: Files = {}
    for name, method, split in (
        ("stored", 0, ""),
        ("packed", 8, ""),
        ("split", 8, "train/"),
        ("lzma", 14, "task/"),
    ):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for label in ("a", "b"):
                for index, image in enumerate(images[:3]):
                    archive.writestr(zipfile.ZipInfo(f"{split}{label}/{index}.png"), image, compress_type=method)
        files[f"{name}.zip"] = buffer.getvalue()
    return files
