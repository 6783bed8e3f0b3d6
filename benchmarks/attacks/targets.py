"""Readers of mutated files, and what counts as a failure.

Each kind feeds a file to the functions with which commands and nodes read it. There are three acceptable outcomes:
the file is refused with a `SkillmeshError`, it equals one of the valid files, or it is of a kind that its owner
may change (settings, images).

A *false acceptance* is a signed file (module, notice, reply, certificate) that is accepted although its bytes are
not those of a valid file. The mutator signs some of its files with its own key: these may be accepted if their
content is within the format's bounds, and then using them (in quarantine, in answers, in a ledger) must work.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import shutil
import sqlite3
import unicodedata
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from attacks.corpus import ADA, BOB, FORMATS, NETWORK, TEXTS, WIDTH, Corpus
from attacks.forgeries import Case, edit_module, edit_notice
from attacks.mutators import (
    SMALL_ORDER,
    edit_bytes,
    edit_image,
    edit_json,
    edit_pem,
    edit_safetensors,
    edit_sqlite,
    edit_zip,
    read_tensors,
    write_json,
)
from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.answering.answering import Mapper
from skillmesh.backbone.backbone import DescriptorCache, load_calibration
from skillmesh.backbone.calibration import SPACES
from skillmesh.common.config import AgentConfig, MeshSettings, TlsFiles
from skillmesh.core import Core
from skillmesh.data.folder import open_task
from skillmesh.data.formats import PILLOW_FORMATS
from skillmesh.data.gather import gather
from skillmesh.data.images import UnreadableImageError, pixel_hash
from skillmesh.data.inputs import AnyImage, EncodedImage, Unreadable, as_image
from skillmesh.errors import DataError
from skillmesh.learning.class_names.encoders import Remembered, Spelling
from skillmesh.mesh import certs
from skillmesh.mesh.shelf import Partial, Shelf
from skillmesh.mesh.wire import read_digest, read_notices, read_piece, short
from skillmesh.module import Identity, Module, in_order, verify
from skillmesh.module.notice import Announcement, Notice, Slot, decode
from skillmesh.store.home import VALIDATION, load_validation
from skillmesh.store.ledger import Ledger
from skillmesh.vetting.quarantine import Quarantine, background_of

MB = 1_000_000
UNCHANGED, SIGNED, READ = "accepted unchanged", "accepted as signed by the mutator", "read"
PIXELS = 32
EVERY = 8
"""One in this many modules signed by the mutator, and homes, is asked for answers, which takes 50 ms."""


class Wrong(Exception):
    """A file was accepted, or a result returned, that must not be."""


class Kind(ABC):
    """One kind of file."""

    share = 10
    """Relative number of files of this kind."""
    limit = 100 * MB
    """Maximum bytes that reading one file may use in addition to the process's own memory."""

    name = ""

    def __init__(self, corpus: Corpus, place: Path, name: str) -> None:
        """Store the valid files, and an empty folder for files."""
        self.corpus, self.place, self.name = corpus, place, name
        self.files = sorted(corpus.get(name, {}).values())

    @abstractmethod
    def make(self, rng: Random) -> Case:
        """Make one mutated file."""

    @abstractmethod
    def feed(self, case: Case) -> str:
        """Read the file as the product does and return how it was accepted; errors are not caught."""

    def seconds(self, case: Case) -> float:
        """Return how long reading the file may take."""
        return 1.0

    def _written(self, data: bytes, name: str) -> Path:
        path = self.place / name
        path.write_bytes(data)
        return path


class ModuleKind(Kind):
    """A `.skill` file, as `import` and the arrival at a node check it."""

    share = 300
    name = "module"

    def __init__(self, corpus: Corpus, place: Path, name: str) -> None:
        super().__init__(corpus, place, name)
        self.valid = set(self.files)
        home = place / "home"
        write_home(corpus, home)
        self.agent = Core(home)
        self.agent.rebuilds_itself = False
        self.live = list(self.agent.bank)
        own = load_validation(home / VALIDATION, [m for m in self.live if m.card.teacher_key == ADA.public_key])
        self.background = background_of(self.agent.calibration, "descriptor", compact=False)
        self.quarantine = Quarantine(self.agent.prior, "sketch", self.background, own)

    def make(self, rng: Random) -> Case:
        return edit_module(rng.choice(self.files), rng, self.files)

    def feed(self, case: Case) -> str:
        module = self.agent.bank.check(case.data)
        if case.data in self.valid:
            return UNCHANGED
        if not case.signed:
            raise Wrong(f"accepted a module that its teacher did not sign: {module.id}")
        refuse_absurd(case.data)
        if zlib.crc32(case.data) % EVERY == 0:
            self.use(module)
        return SIGNED

    def use(self, module: Module) -> None:
        """Vet the module, then answer with it as if the user had released or imported it."""
        self.quarantine.judge(self.live, [module])
        slot = module.card.teacher_key, module.card.task
        modules = in_order([*(m for m in self.live if (m.card.teacher_key, m.card.task) != slot), module])
        if module.card.adapted:  # its head needs a second pass of the backbone, which is not available here
            Mapper(modules, "sketch", self.agent.prior)
            return
        self.agent.use(modules, Mapper(modules, "sketch", self.agent.prior))
        refuse_odd_answers(self.agent, self.background[:3])


def refuse_odd_answers(agent: Core, x: Any) -> None:
    images = [EncodedImage(f"image {index}", b"") for index in range(len(x))]
    for answer in agent.answer_described(x, images):
        numbers = [guess.confidence for guess in answer.guesses]
        if not all(0 <= number <= 1.0001 for number in numbers) or not math.isfinite(answer.novelty):
            raise Wrong(f"an answer has confidences {numbers} and novelty {answer.novelty}")


def refuse_absurd(data: bytes) -> None:
    """Check an accepted module against the format's bounds again, with code independent of the reader's."""
    header, body = read_tensors(data)
    card = json.loads(header["__metadata__"]["skillmesh"])
    texts = [card["task"], card["teacher"], card["backbone_name"], *card["classes"], *(card.get("tags") or [])]
    texts += [card[name] for name in ("trial", "licence") if name in card]
    plain = all(t.isprintable() and unicodedata.is_normalized("NFC", t) and len(t) <= 200 for t in texts)
    classes, counts = card["classes"], card["counts"]
    fits = len(set(classes)) == len(classes) == len(counts) and 2 <= len(classes) <= 10_000
    numbers = all(type(n) is int and 1 <= n <= 2**31 for n in (*counts, card["version"]))
    numbers &= 0.01 <= card["temperature"] <= 100 and 0 <= card.get("validation_accuracy", 0) <= 1
    end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    if not (plain and fits and numbers and end == len(body) and not set(card["task"]) & set("/\\")):
        raise Wrong("accepted a module whose card or tensors are beyond the format's bounds")


class NoticeKind(Kind):
    """A signed notice, as a node receives it and stores it in the ledger."""

    share = 150
    name = "notice"

    def __init__(self, corpus: Corpus, place: Path, name: str) -> None:
        super().__init__(corpus, place, name)
        self.valid = set(self.files)
        self.ledger = Ledger(place / "notices.sqlite", ADA.public_key, open_trust=True, per_teacher=20)

    def make(self, rng: Random) -> Case:
        return edit_notice(rng.choice(self.files), rng, self.files)

    def feed(self, case: Case) -> str:
        notice = decode(case.data)
        if case.data in self.valid:
            return UNCHANGED
        if not case.signed or notice.encode() != case.data:
            raise Wrong(f"accepted a notice that its teacher did not sign: {notice.digest}")
        self.ledger.merge([notice], BOB.public_key)
        if (found := self.ledger.view().at(notice.slot)) is not None and found.rank < notice.rank:
            raise Wrong("the ledger kept a notice of lower rank")
        return SIGNED


class WireKind(Kind):
    """Replies of other agents: digests with a hello, lists of notices, pieces of files."""

    share = 100
    name = "wire"

    def __init__(self, corpus: Corpus, place: Path, name: str) -> None:
        super().__init__(corpus, place, name)
        self.notices = [decode(data) for data in sorted(corpus["notice"].values())]
        self.valid = set(corpus["notice"].values())
        self.announced = next(n for n in self.notices if isinstance(n, Announcement) and n.task == "dice")
        self.file = corpus["module"]["dice.skill"]

    def make(self, rng: Random) -> Case:
        name = rng.choice(sorted(self.corpus["wire"]))
        data = self.corpus["wire"][name]
        head, newline, rest = data.partition(b"\n")
        if name in ("digest", "same") and rng.random() < 0.5:
            return Case(write_json(edit_json(json.loads(head), rng), rng) + newline + rest, name=name)
        if name == "piece":
            data = b"+" + self.file
        return Case(edit_bytes(data, rng, self.files), name=name)

    def feed(self, case: Case) -> str:
        if case.name in ("digest", "same"):
            read_digest(case.data)
            return READ
        if case.name == "notices":
            notices = read_notices(case.data, [short(notice) for notice in self.notices])
            refuse_strange(notices, self.valid)
            return READ
        piece = read_piece(case.data, len(self.file))
        partial = Partial(self.place, self.announced)
        if piece is not None and partial.fill(0, piece):
            partial.remove()
            if piece != self.file:
                raise Wrong("stored a piece whose bytes are not the announced ones")
            return UNCHANGED
        return "piece refused"


def refuse_strange(notices: Iterable[Notice], valid: set[bytes]) -> None:
    if any(notice.encode() not in valid for notice in notices):
        raise Wrong("accepted a notice without a valid signature")


class SignatureKind(Kind):
    """A public key and a signature."""

    share = 80
    name = "signature"

    def __init__(self, corpus: Corpus, place: Path, name: str) -> None:
        super().__init__(corpus, place, name)
        self.digest = hashlib.sha256(b"x").hexdigest()
        self.valid = bytes.fromhex(BOB.public_key + BOB.sign("reply", self.digest))

    def make(self, rng: Random) -> Case:
        if rng.random() < 0.2:
            key, point, scalar = (
                rng.choice(SMALL_ORDER),
                rng.choice(SMALL_ORDER),
                rng.choice((bytes(32), b"\1" + bytes(31))),
            )
            return Case(key + point + scalar)
        return Case(edit_bytes(self.valid, rng, [bytes.fromhex(ADA.public_key), *SMALL_ORDER]))

    def feed(self, case: Case) -> str:
        if not verify(case.data[:32].hex(), "reply", self.digest, case.data[32:].hex()):
            return "no signature"
        if case.data != self.valid:
            raise Wrong(f"accepted a forged signature: {case.data.hex()}")
        return UNCHANGED


class CalibrationKind(Kind):
    """A calibration, as `init --calibration` and every start of an agent read it."""

    share = 40
    name = "calibration"

    def __init__(self, corpus: Corpus, place: Path, name: str) -> None:
        super().__init__(corpus, place, name)
        self.valid = load_calibration("tiny", self._written(self.files[0], "valid.safetensors"))
        self.module = Module.from_bytes(corpus["module"]["dice.skill"], _any_specs)

    def make(self, rng: Random) -> Case:
        return Case(edit_safetensors(self.files[0], rng, self.files))

    def feed(self, case: Case) -> str:
        found = load_calibration("tiny", self._written(case.data, "calibration.safetensors"))
        ours, theirs = self.valid.tensors, found.tensors
        same = ours.keys() == theirs.keys() and found.network == self.valid.network
        same = same and all(_bits(ours[name]) == _bits(theirs[name]) for name in ours)
        if same != (found.fingerprint == self.valid.fingerprint):
            raise Wrong("two calibrations that differ have one fingerprint, or one has two")
        for space in SPACES:
            prior = found.priors[space]
            parts = (prior.centre, *(p for s in (prior.within, prior.between) for p in (s.diagonal, s.factor)))
            if (
                not all(np.isfinite(part).all() for part in parts)
                or min(s.diagonal.min() for s in (prior.within, prior.between)) < 0
            ):
                raise Wrong(f"accepted a calibration with a prior of {space} that is none")
        if not (np.isfinite(found.mean).all() and (found.std > 0).all() and np.isfinite(found.background).all()):
            raise Wrong("accepted a calibration that standardises to NaN")
        if len(found.mean) == WIDTH:
            scores = SketchAnchor.pool([SketchAnchor.read(self.module.tensors)], found.priors["descriptor"])
            scores.score(background_of(found, "descriptor", compact=False))
        return UNCHANGED if case.data == self.files[0] else READ


def _any_specs(card: Any) -> Any:
    from skillmesh.store.bank import specs_for

    return specs_for(card)


def _bits(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    return str(array.dtype), array.shape, array.tobytes()


class KeyKind(Kind):
    """An agent's private key."""

    share = 30
    name = "key"

    def __init__(self, corpus: Corpus, place: Path, name: str) -> None:
        super().__init__(corpus, place, name)
        self.others = sorted(corpus["pem"].values())

    def make(self, rng: Random) -> Case:
        return Case(edit_pem(self.corpus["home"]["key.pem"], rng, self.others))

    def feed(self, case: Case) -> str:
        identity = Identity.load(self._written(case.data, "key.pem"))
        identity.sign("module", "0" * 64)
        return READ


class SettingsKind(Kind):
    """The two files of settings."""

    share = 60
    name = "settings"

    def make(self, rng: Random) -> Case:
        name = rng.choice(("agent.json", "mesh.json"))
        data = self.corpus["home"][name]
        if rng.random() < 0.7:
            data = write_json(edit_json(json.loads(data), rng), rng)
        else:
            data = edit_bytes(data, rng, [self.corpus["home"]["mesh.json"]])
        return Case(data, name=name)

    def feed(self, case: Case) -> str:
        self._written(case.data, case.name)
        loaded: AgentConfig | MeshSettings
        loaded = AgentConfig.load(self.place) if case.name == "agent.json" else MeshSettings.load(self.place)
        loaded.model_dump_json()
        return READ


class LedgerKind(Kind):
    """The ledger's database."""

    share = 20
    name = "ledger"

    def make(self, rng: Random) -> Case:
        return Case(edit_sqlite(self.corpus["home"]["ledger.sqlite"], rng))

    def feed(self, case: Case) -> str:
        folder = self.place / "ledger"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "ledger.sqlite").write_bytes(case.data)
        ledger = Ledger(folder / "ledger.sqlite", ADA.public_key)
        try:
            view = ledger.view()
            refuse_strange(view.heard, set(self.corpus["notice"].values()))
            ledger.addresses()
            ledger.latest_version(Slot(BOB.public_key, "letters"))
            ledger.merge([decode(self.corpus["notice"]["0.json"])], BOB.public_key)
            ledger.remember(Slot(BOB.public_key, "maps"))
        finally:
            ledger.close()
        return READ


class ValidationKind(Kind):
    """Descriptors of an agent's own validation images; probes replace damaged ones."""

    share = 30
    name = "validation"

    def __init__(self, corpus: Corpus, place: Path, name: str) -> None:
        super().__init__(corpus, place, name)
        self.file = next(name for name in corpus["home"] if name.startswith(VALIDATION))
        self.module = Module.from_bytes(corpus["module"]["dice.skill"], _any_specs)

    def make(self, rng: Random) -> Case:
        return Case(edit_safetensors(self.corpus["home"][self.file], rng, self.files))

    def feed(self, case: Case) -> str:
        self._written(case.data, Path(self.file).name)
        (kept,) = load_validation(self.place, [self.module])
        if not np.isfinite(kept.x).all() or kept.x.shape[1] != WIDTH:
            raise Wrong("validation images that are no descriptors")
        return "probes stand in" if kept.labels is None else READ


class CachesKind(Kind):
    """Databases of described images and of encoded class names; damaged ones must not stop the work."""

    share = 20
    name = "caches"

    def make(self, rng: Random) -> Case:
        name = rng.choice(sorted(self.corpus["caches"]))
        return Case(edit_sqlite(self.corpus["caches"][name], rng), name=name)

    def feed(self, case: Case) -> str:
        folder = self.place / "caches"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / case.name).write_bytes(case.data)
        if case.name == "names.sqlite":
            rows = Remembered("spelling", 1.0, "x", Spelling, folder / case.name).encode(TEXTS)
            if len(rows) != len(TEXTS):
                raise Wrong(f"{len(rows)} rows for {len(TEXTS)} class names")
            return READ
        try:
            cache = DescriptorCache(folder, NETWORK, width=WIDTH)
        except (OSError, sqlite3.Error):  # as `Backbone.load` does, which then continues without
            return "no cache"
        try:
            for index in range(20):
                raw = cache.get(bytes([index]) * 32)
                if raw is not None and (raw.dtype != np.float16 or raw.shape != (WIDTH,)):
                    raise Wrong("the cache holds something that is no descriptor")
            cache.put([(b"k" * 32, np.zeros(WIDTH, np.float16))])
        finally:
            cache.close()
        return READ


class CertsKind(Kind):
    """The files of mutual TLS."""

    share = 30
    name = "certs"

    def __init__(self, corpus: Corpus, place: Path, name: str) -> None:
        super().__init__(corpus, place, name)
        self.others = sorted([*corpus["pem"].values(), *corpus["certs"].values()])
        self.tls = TlsFiles(ca=place / "ca.pem", certificate=place / "agent.pem", key=place / "agent.key")

    def make(self, rng: Random) -> Case:
        name = rng.choice(sorted(self.corpus["certs"]))
        return Case(edit_pem(self.corpus["certs"][name], rng, self.others), name=name)

    def feed(self, case: Case) -> str:
        for name, data in (self.corpus["certs"] | {case.name: case.data}).items():
            self._written(data, name)
        certs.check(self.tls)
        if case.name == "agent.pem" and _der(case.data) != _der(self.corpus["certs"]["agent.pem"]):
            raise Wrong("accepted a certificate that the authority did not issue")
        return READ


def _der(pem: bytes) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


class HomeKind(Kind):
    """A whole home with one damaged file: the agent opens and answers, or reports what is wrong."""

    share = 15
    name = "home"

    def __init__(self, corpus: Corpus, place: Path, name: str) -> None:
        super().__init__(corpus, place, name)
        self.modules = sorted(corpus["module"].values())
        self.valid = set(self.modules)

    def make(self, rng: Random) -> Case:
        name = rng.choice(sorted(self.corpus["home"]))
        data = self.corpus["home"][name]
        if name.endswith(".skill"):
            case = edit_module(data, rng, self.modules)
            return Case(case.data, case.signed, name)
        if name.endswith(".sqlite"):
            return Case(edit_sqlite(data, rng), name=name)
        if name.endswith(".json"):
            return Case(write_json(edit_json(json.loads(data), rng), rng), name=name)
        return Case((edit_safetensors if name.endswith(".safetensors") else edit_pem)(data, rng), name=name)

    def feed(self, case: Case) -> str:
        home = self.place / "agent"
        shutil.rmtree(home, ignore_errors=True)
        write_home(self.corpus, home)
        (home / case.name).write_bytes(case.data)
        agent = Core(home)
        try:
            tasks = agent.tasks()
            held = [kept.module for kept in Shelf(home, agent.ledger).held()]
            signed = {case.data} if case.signed else set()
            files = {agent.bank.file_of(module) for module in tasks}
            if not files <= self.valid | signed or len(held) > 1:
                raise Wrong("a bank holds a module that its teacher did not sign")
            load_validation(home / VALIDATION, tasks)
            if zlib.crc32(case.data) % EVERY == 0:
                background = background_of(agent.calibration, agent.config.representation, agent.config.compact)
                refuse_odd_answers(agent, background[:2])
        finally:
            agent.ledger.close()
        return READ


def write_home(corpus: Corpus, home: Path) -> None:
    for name, data in corpus["home"].items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(data)


PILLOW_READS = [name for names in PILLOW_FORMATS.values() for name in names]


class ImageKind(Kind):
    """Images of one format, as `ask` and `learn` read them."""

    share = 30
    limit = 400 * MB

    def __init__(self, corpus: Corpus, place: Path, name: str) -> None:
        super().__init__(corpus, place, name)
        self.bombs = sorted(corpus.get(f"{name}-bomb", {}).values())
        self.others = [data for kind in FORMATS for data in corpus[kind].values()]

    def make(self, rng: Random) -> Case:
        name = rng.choice(("", "", "", "", "", "x", "x.png", "x.jpg", "x.bin"))
        if self.bombs and rng.random() < 1 / 2000:
            return Case(rng.choice(self.bombs), name=name)
        return Case(edit_image(self.name, rng.choice(self.files), rng, self.others), name=name)

    def feed(self, case: Case) -> str:
        if not case.name:
            return look_at(as_image(case.data))
        (found,) = gather([str(self._written(case.data, case.name))])
        if isinstance(found, Unreadable):
            raise DataError(found.reason)
        pixel_hash(case.data)
        return look_at(found)

    def seconds(self, case: Case) -> float:
        """Return the limit, 0.1 s more for each megapixel: photos of the maximum, 52, take one to two seconds."""
        from PIL import Image

        try:
            with Image.open(io.BytesIO(case.data), formats=PILLOW_READS) as image:
                return 1.0 + min(image.width * image.height, 52 * 10**6) / 10**7
        except Exception:
            return 1.0


def look_at(image: AnyImage) -> str:
    pixels = image.pixels(image.content(), PIXELS)
    if pixels.shape != (PIXELS, PIXELS, 3) or pixels.dtype != np.uint8:
        raise Wrong(f"an image came out as {pixels.dtype} of shape {pixels.shape}")
    return READ


class ForeignKind(ImageKind):
    """Images of unsupported formats, with the suffixes of supported ones."""

    share = 15
    name = "foreign"

    def make(self, rng: Random) -> Case:
        data = rng.choice(self.files)
        return Case(
            data if rng.random() < 0.1 else edit_bytes(data, rng, self.others), name=rng.choice(("", "x.png"))
        )

    def feed(self, case: Case) -> str:
        ended = super().feed(case)
        if case.data in self.files:
            raise Wrong("decoded an image of a format that we do not mean to read")
        return ended


class ZipKind(Kind):
    """A zip of a task, as `learn` and `ask` read it."""

    share = 40
    limit = 400 * MB
    name = "zip"

    def __init__(self, corpus: Corpus, place: Path, name: str) -> None:
        super().__init__(corpus, place, name)
        self.bombs = sorted(corpus["zip-bomb"].values())
        self.images = [data for kind in ("png", "jpeg", "gif") for data in corpus[kind].values()]

    def make(self, rng: Random) -> Case:
        if rng.random() < 1 / 1000:
            return Case(rng.choice(self.bombs))
        return Case(edit_zip(rng.choice(self.files), rng, self.images))

    def feed(self, case: Case) -> str:
        path = self._written(case.data, "task.zip")
        images = [image for image in gather([str(path)]) if not isinstance(image, Unreadable)]
        outcome = _look_at_some(images)
        task = open_task(path, one_task=True)
        return _look_at_some([file for split in task.splits.values() for file in split.files][:3]) or outcome


def _look_at_some(images: list[Any]) -> str:
    for image in images[:4]:
        try:
            look_at(image)
        except UnreadableImageError as error:
            if isinstance(error.__cause__, MemoryError):
                raise
    return READ


_PLAIN: tuple[type[Kind], ...] = (
    *(ModuleKind, NoticeKind, WireKind, SignatureKind, CalibrationKind, KeyKind, SettingsKind, LedgerKind),
    *(ValidationKind, CachesKind, CertsKind, HomeKind, ZipKind, ForeignKind),
)
KINDS: dict[str, type[Kind]] = {kind.name: kind for kind in _PLAIN} | dict.fromkeys(FORMATS, ImageKind)
"""All kinds by name; all supported image formats are of one kind."""


def set_up(name: str, corpus: Corpus, place: Path) -> Kind:
    """Prepare a kind, with its own folder below `place`."""
    folder = place / name
    folder.mkdir(parents=True, exist_ok=True)
    return KINDS[name](corpus, folder, name)
