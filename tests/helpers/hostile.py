"""An attacker on the mesh: a separate process with a real key, which runs one of the attacks below until it ends.

    python tests/helpers/hostile.py wrong-bytes --home HOME [--loot FOLDER] [--knows VICTIM]

Except for the attack itself it follows the protocol with skillmesh's own code, so that honest nodes can object to
nothing else. `loot` has announcements and files of others, which any agent can fetch; `knows` is a home that it
should never see, including the images with which modules are vetted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zenoh

from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.learning.head import Head
from skillmesh.mesh.session import close_session, open_session
from skillmesh.mesh.wire import (
    _END,
    DIGEST,
    MAX_DIGEST,
    NONCE,
    NOTICES,
    PIECE,
    ROOT,
    SHORT,
    Hello,
    Wire,
    asked_piece,
    write_digest,
    write_notices,
    write_piece,
)
from skillmesh.mesh.wire import _digest as signed_part
from skillmesh.mesh.wire import short as short_id
from skillmesh.module import Identity, Module
from skillmesh.module.notice import Announcement, Notice, Withdrawal, announce, decode, withdraw
from skillmesh.numerics.arrays import Tensors
from skillmesh.store.bank import specs_for
from skillmesh.store.home import VALIDATION, load_validation
from skillmesh.vetting.quarantine import Quarantine, background_of

ROOT_OF_NOTHING = "0" * 64
FOR_EVER = 10**9
CROWD = 40
GHOSTS = 200
FLOOD_FILE = "flood.json"
"""File in which a flood reports how much it has sent."""
MADE_FILE = "made.json"
"""File in which an attacker reports the modules that it made."""


class Attacker:
    """An agent on the mesh that answers correctly, except where an attack replaces its answers."""

    def __init__(self, home: Path, loot: Path | None = None, knows: Path | None = None) -> None:
        self.home, self.knows = home, knows
        self.identity = Identity.load(home / "key.pem")
        self.session = open_session(MeshSettings.load(home), home)
        self.wire = Wire(self.session, self.identity)
        self.notices: list[Notice] = []
        self.files: dict[str, bytes] = {}
        self.loot = list(_read_loot(loot)) if loot else []
        self.kept: list[Any] = []
        """Objects that must stay referenced to stay active."""

    def become(self, identity: Identity) -> None:
        """Act as another identity from now on; the previous one stays present and answers."""
        self.identity, self.wire = identity, Wire(self.session, identity)

    def have(self, notice: Notice, data: bytes | None = None) -> None:
        self.notices.append(notice)
        if data is not None and isinstance(notice, Announcement):
            self.files[notice.digest] = data

    def have_loot(self) -> None:
        """Hold the notices and files in the loot."""
        for notice, data in self.loot:
            self.have(notice, data)

    def report(self, name: str, value: Any) -> None:
        """Write a file for the test, which may read it at any moment: it is complete or absent."""
        partial = self.home / f"{name}.partial"
        partial.write_text(json.dumps(value))
        partial.replace(self.home / name)

    def hello(self, **claims: Any) -> Hello:
        fields: dict[str, Any] = {"name": self.identity.name, "root": ROOT_OF_NOTHING, "live": 0, "same": False}
        return Hello.model_construct(**fields | claims)

    # Honest answers.

    def digest(self, _: bytes) -> bytes:
        return write_digest(self.hello(), self.notices)

    def show(self, wanted: bytes) -> bytes:
        return write_notices(wanted, {short_id(notice): notice for notice in self.notices})

    def piece(self, question: bytes) -> bytes | None:
        asked = asked_piece(question)
        if asked is None:
            return None
        digest, offset, length = asked
        data = self.files.get(digest)
        return write_piece(None if data is None else data[offset : offset + length])

    def serve(self, **lies: Callable[[bytes], bytes | None]) -> None:
        """Appear and answer, with some answers replaced."""
        self.wire.serve({DIGEST: self.digest, NOTICES: self.show, PIECE: self.piece} | lies)
        self.wire.appear()

    def vanish(self) -> None:
        """Disappear, and stop answering."""
        for declared in (self.wire._token, *self.wire._declared):
            if declared is not None:
                declared.undeclare()
        for inbox in self.wire._inboxes:
            inbox.put(_END)

    def tell(self) -> None:
        """Announce its own notices."""
        for notice in self.notices:
            if notice.teacher_key == self.identity.public_key:
                self.wire.announce(notice.encode())


Attack = Callable[[Attacker], None]
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    ATTACKS[function.__name__.replace("_", "-")] = function
    return function


# False digests and notices.


@attack
def endless_digest(attacker: Attacker) -> None:
    """Send digests above the size limit, repeatedly."""
    attacker.serve(digest=lambda _: write_digest(attacker.hello(), []) + os.urandom(SHORT) * (MAX_DIGEST // SHORT))


@attack
def million_ids(attacker: Attacker) -> None:
    """List as many ids as a digest may have, different each time, of notices that do not exist."""
    most = MAX_DIGEST // SHORT - 100
    attacker.serve(digest=lambda _: write_digest(attacker.hello(), []) + os.urandom(SHORT * most))


@attack
def strange_name(attacker: Attacker) -> None:
    """Use a name that would control the terminal of a user of `skillmesh peers`."""
    attacker.serve(digest=lambda _: write_digest(attacker.hello(name="\x1b]0;gotcha\x07\u202e" + 900 * "x"), []))


@attack
def no_json(attacker: Attacker) -> None:
    attacker.serve(digest=lambda _: b"[" * 100_000)


@attack
def false_same(attacker: Attacker) -> None:
    """Claim to know the same notices with another root, so that no peer asks further."""
    attacker.serve(digest=lambda _: write_digest(attacker.hello(same=True), []))


@attack
def bad_signature(attacker: Attacker) -> None:
    """Pass on an announcement of a teacher without a valid signature."""
    notice, _ = attacker.loot[0]
    _show_only(attacker, changed(notice, task="forged", signature=64 * "00"))


@attack
def forged_teacher(attacker: Attacker) -> None:
    """Announce its own module in another teacher's name and key."""
    notice, data = attacker.loot[0]
    attacker.files[notice.digest] = data
    _show_only(attacker, changed(notice, task="forged").signed(attacker.identity))


@attack
def forged_withdrawal(attacker: Attacker) -> None:
    """Withdraw a module of another teacher."""
    notice, _ = attacker.loot[0]
    forged = Withdrawal(
        task=notice.task, version=2**31, teacher=notice.teacher, teacher_key=notice.teacher_key
    ).signed(attacker.identity)
    _show_only(attacker, forged)


@attack
def unasked_notices(attacker: Attacker) -> None:
    """Send other notices than were requested."""
    listed, unasked = (withdraw(task, 1, attacker.identity) for task in ("listed", "unasked"))
    attacker.have(listed)
    attacker.serve(notices=lambda _: unasked.encode())


def changed(notice: Notice, **fields: Any) -> Any:
    """Return a notice with other fields and, until it is signed again, the old signature."""
    return type(notice)(**notice.model_dump() | fields)


def _show_only(attacker: Attacker, notice: Notice) -> None:
    """List and send one notice, and announce it in both names."""
    attacker.have(notice)
    attacker.serve()
    for key in (notice.teacher_key, attacker.identity.public_key):
        attacker.session.put(f"{ROOT}/ann/{key}", notice.encode())


# False files.


@attack
def wrong_bytes(attacker: Attacker) -> None:
    """Serve modules of others with one bit of every piece flipped."""
    attacker.have_loot()

    def piece(question: bytes) -> bytes | None:
        right = attacker.piece(question)
        return right if right in (None, b"-") else right[:-1] + bytes([right[-1] ^ 1])

    attacker.serve(piece=piece)


@attack
def oversize_pieces(attacker: Attacker) -> None:
    """Send a hundred times as many bytes as requested."""
    attacker.have_loot()
    attacker.serve(piece=lambda question: b"+" + 100 * (attacker.piece(question) or b"+"))


@attack
def short_pieces(attacker: Attacker) -> None:
    attacker.have_loot()
    attacker.serve(piece=lambda question: (attacker.piece(question) or b"-")[:1000])


@attack
def contradiction(attacker: Attacker) -> None:
    """Announce its own module with the right leaves and the hash of another file."""
    notice, data = _own_module(attacker)
    attacker.have(changed(notice, sha256=64 * "0").signed(attacker.identity), data)
    attacker.serve()
    attacker.tell()


@attack
def other_leaves(attacker: Attacker) -> None:
    """Announce its own module with leaves that do not match the file."""
    notice, data = _own_module(attacker)
    leaves = notice.leaves[64:] + notice.leaves[:64]
    attacker.have(changed(notice, leaves=leaves).signed(attacker.identity), data)
    attacker.serve()
    attacker.tell()


@attack
def anothers_file(attacker: Attacker) -> None:
    """Announce as its own a module that, by its card, is another teacher's."""
    honest, data = attacker.loot[0]
    card = Module.from_bytes(data, specs_for).card
    mine = card.model_copy(
        update={"teacher": attacker.identity.name, "teacher_key": attacker.identity.public_key, "task": "stolen"}
    )
    attacker.have(announce(mine, honest.id, data, attacker.identity), data)
    attacker.serve()
    attacker.tell()


@attack
def other_backbone(attacker: Attacker) -> None:
    """Announce a module for another backbone correctly, and a second one as if it were for the common backbone."""
    ours = Module.from_bytes(attacker.loot[0][1], specs_for).card.backbone
    for task, claimed in (("frankly", "f" * 64), ("secretly", ours)):
        module, data = _signed(attacker, task=task, backbone="f" * 64)
        card = module.card.model_copy(update={"backbone": claimed})
        attacker.have(announce(card, module.id, data, attacker.identity), data)
    attacker.serve()
    attacker.tell()


@attack
def equivocation(attacker: Attacker) -> None:
    """Sign two modules with the same version, and list the other one to every second peer."""
    pair = []
    for note in ("for you", "for the others"):
        module, data = _signed(attacker, note=note, task="double")
        pair.append((announce(module.card, module.id, data, attacker.identity), data))
    for notice, data in pair:
        attacker.have(notice, data)
    attacker.report(MADE_FILE, [notice.id for notice, _ in pair])
    asked = iter(range(FOR_EVER))
    attacker.serve(digest=lambda _: write_digest(attacker.hello(), [attacker.notices[next(asked) % 2]]))


# Genuine but outdated data.


@attack
def replay(attacker: Attacker) -> None:
    """List and announce repeatedly what its teacher has replaced or withdrawn."""
    attacker.have_loot()
    attacker.serve()
    while True:
        for notice, _ in attacker.loot:
            attacker.session.put(f"{ROOT}/ann/{notice.teacher_key}", notice.encode())
        time.sleep(0.2)


@attack
def impostor(attacker: Attacker) -> None:
    """Answer in the place of all agents, earlier and more often than they do, with junk and old replies."""
    seen: list[tuple[bytes, bytes]] = [(os.urandom(64), b"-")]
    _overhear(attacker, seen)
    for verb in (DIGEST, NOTICES, PIECE):
        attacker.session.declare_queryable(f"{ROOT}/node/*/{verb}", partial(_answer_for, attacker, seen))
    attacker.serve()


def _overhear(attacker: Attacker, seen: list[tuple[bytes, bytes]]) -> None:
    """Store signed replies of others, to send them again."""
    victims = [str(r.ok.key_expr) for r in attacker.session.liveliness().get(f"{ROOT}/alive/*") if r.ok]
    for victim in victims:
        key = f"{ROOT}/node/{victim.rsplit('/', 1)[-1]}/{DIGEST}"
        replies = [reply.ok for reply in attacker.session.get(key, payload=os.urandom(40), timeout=2.0)]
        seen += [(ok.attachment.to_bytes(), ok.payload.to_bytes()) for ok in replies if ok and ok.attachment]


def _answer_for(attacker: Attacker, seen: list[tuple[bytes, bytes]], query: zenoh.Query, times: int = 8) -> None:
    key = str(query.key_expr)
    if attacker.identity.public_key in key:
        return
    with query:
        for signature, body in times * seen:
            query.reply(key, body, attachment=signature)


@attack
def obituaries(attacker: Attacker) -> None:
    """Make all agents seem to come and go."""
    attacker.serve()
    agents: set[str] = set()
    attacker.wire.watch(lambda agent, _: agents.add(agent))
    while True:
        tokens = [attacker.session.liveliness().declare_token(f"{ROOT}/alive/{agent}") for agent in list(agents)]
        time.sleep(0.05)
        for token in tokens:
            token.undeclare()
        time.sleep(0.05)


# Delays.


@attack
def silent(attacker: Attacker) -> None:
    """Offer everything and never send anything."""
    attacker.have_loot()
    attacker.serve(piece=_never)


@attack
def trickle(attacker: Attacker) -> None:
    """Send correct pieces, just fast enough for the timeout."""
    attacker.have_loot()

    def piece(question: bytes) -> bytes | None:
        time.sleep(4)
        return attacker.piece(question)

    attacker.serve(piece=piece)


@attack
def withhold(attacker: Attacker) -> None:
    """Be many peers that list notices but never send them."""
    attacker.have_loot()
    for _ in range(CROWD):
        attacker.become(Identity.create("one of many"))
        attacker.serve(notices=_never)


@attack
def ghosts(attacker: Attacker) -> None:
    """Be many peers that never answer; this needs no key."""
    held: list[Any] = []
    held.append(attacker.session.declare_queryable(f"{ROOT}/node/*/*", held.append))
    appear = attacker.session.liveliness().declare_token
    held += [appear(f"{ROOT}/alive/{os.urandom(32).hex()}") for _ in range(GHOSTS)]
    _never(b"")


@attack
def sybils(attacker: Attacker) -> None:
    """Be many peers with keys that list and send notices of others, and never answer requests for pieces."""
    attacker.have_loot()
    _crowd(attacker, GHOSTS, piece=lambda _: None)


@attack
def late_sybils(attacker: Attacker) -> None:
    """The same, but sending correct pieces at the last moment."""
    attacker.have_loot()

    def piece(question: bytes) -> bytes | None:
        time.sleep(2.8)
        return attacker.piece(question)

    _crowd(attacker, GHOSTS, piece=piece)


@attack
def lying_sybils(attacker: Attacker) -> None:
    """The same, but sending wrong bytes, too many or too few."""
    attacker.have_loot()
    asked = iter(range(FOR_EVER))

    def piece(question: bytes) -> bytes | None:
        right = attacker.piece(question) or b"-"
        return (right[:-1] + bytes([right[-1] ^ 1]), right + right, right[:9])[next(asked) % 3]

    _crowd(attacker, GHOSTS, piece=piece)


@attack
def empty_handed_sybils(attacker: Attacker) -> None:
    """The same, but replying that they do not have the piece."""
    attacker.have_loot()
    _crowd(attacker, GHOSTS, piece=lambda _: write_piece(None))


@attack
def sybil_teachers(attacker: Attacker) -> None:
    """Be many teachers that each announce ten modules and never send them."""
    notice, _ = _own_module(attacker)
    identities = [Identity.create("many") for _ in range(GHOSTS)]
    attacker.notices = [_renamed(notice, identity) for identity in identities for _ in range(10)]
    _crowd(attacker, identities, piece=lambda _: None)


def _crowd(attacker: Attacker, crowd: int | list[Identity], **lies: Callable[[bytes], bytes | None]) -> None:
    """Be many peers, each with its own key, with some answers replaced; None never answers."""
    answers = {DIGEST: attacker.digest, NOTICES: attacker.show, PIECE: attacker.piece} | lies
    identities = [Identity.create("many") for _ in range(crowd)] if isinstance(crowd, int) else crowd
    by_key = {identity.public_key: identity for identity in identities}
    held: list[Any] = []
    hands = ThreadPoolExecutor(GHOSTS)

    def answer(query: zenoh.Query, identity: Identity, verb: str) -> None:
        question = query.payload.to_bytes() if query.payload else b""
        body = answers[verb](question[NONCE:])
        if body is None:
            held.append(query)
            return
        with query:
            signature = identity.sign("reply", signed_part(identity.public_key, verb, question, body))
            query.reply(str(query.key_expr), body, attachment=bytes.fromhex(signature))

    def asked(query: zenoh.Query) -> None:
        agent, _, verb = str(query.key_expr).removeprefix(f"{ROOT}/node/").partition("/")
        if agent in by_key:
            hands.submit(answer, query, by_key[agent], verb)

    held.append(attacker.session.declare_queryable(f"{ROOT}/node/*/*", asked))
    appear = attacker.session.liveliness().declare_token
    held += [appear(f"{ROOT}/alive/{key}") for key in by_key]
    _never(b"")


def _never(_: bytes) -> bytes | None:
    time.sleep(FOR_EVER)
    return None


# Floods.


@attack
def flood(attacker: Attacker) -> None:
    """Announce as many modules as possible under one key."""
    notice, _ = _own_module(attacker)
    attacker.serve()
    _pour(attacker, (_renamed(notice, attacker.identity) for _ in iter(int, 1)))


@attack
def flood_of_teachers(attacker: Attacker) -> None:
    """Announce one module each under as many keys as possible."""
    notice, _ = _own_module(attacker)
    _pour(attacker, (_renamed(notice, Identity.create("many")) for _ in iter(int, 1)))


@attack
def reserve(attacker: Attacker) -> None:
    """Announce modules that would fill every disk, so that there is no space for others."""
    notice, _ = _own_module(attacker)
    size = 7_999_999
    leaves = -(-size // 32_768) * notice.leaves[:64]
    for _ in range(200):
        attacker.have(_renamed(changed(notice, size=size, leaves=leaves), attacker.identity))
    attacker.serve(piece=_never)
    attacker.tell()


@attack
def flood_of_withdrawals(attacker: Attacker) -> None:
    """Withdraw unknown modules of high versions under new keys."""
    _pour(attacker, (withdraw(os.urandom(8).hex(), 2**31 - 1, Identity.create("many")) for _ in iter(int, 1)))


@attack
def flood_of_hellos(attacker: Attacker) -> None:
    """Come and go under new keys, with a signed hello each time."""
    attacker.have_loot()
    for _ in iter(int, 1):
        attacker.become(Identity.create("many"))
        attacker.serve()
        time.sleep(0.05)
        attacker.vanish()


@attack
def flood_of_questions(attacker: Attacker) -> None:
    """Ask all agents for everything repeatedly, and ignore the answers."""
    victims = [str(r.ok.key_expr) for r in attacker.session.liveliness().get(f"{ROOT}/alive/*") if r.ok]
    while True:
        for victim in victims:
            for verb in (DIGEST, NOTICES, PIECE):
                key = f"{ROOT}/node/{victim.rsplit('/', 1)[-1]}/{verb}"
                attacker.session.get(key, _ignore, payload=os.urandom(random.choice([40, 60, 8_000])), timeout=1.0)
        time.sleep(0.002)


@attack
def inside_questions(attacker: Attacker) -> None:
    """Query zenoh's admin space while agents come and go: its answers hold the lock that newcomers need."""
    settings = MeshSettings.load(attacker.home)
    attacker.kept = [attacker.session.liveliness().declare_token(f"x/{number}") for number in range(200)]

    def ask() -> None:
        while True:
            list(attacker.session.get("@/**", timeout=0.2))

    for _ in range(4):
        threading.Thread(target=ask, daemon=True).start()
    while True:
        close_session(open_session(settings, attacker.home))


@attack
def noise(attacker: Attacker) -> None:
    """Publish random bytes on every key expression."""
    session, agent = attacker.session, attacker.identity.public_key
    keys = [f"{ROOT}/ann/{agent}", f"{ROOT}/node/{agent}/piece", f"{ROOT}/alive/{agent}", f"{ROOT}/x", "sk/v2/y"]
    keys += [f"{ROOT}/node/*/{verb}" for verb in (DIGEST, NOTICES, PIECE, "dance")]
    attacker.serve(digest=os.urandom, notices=os.urandom, piece=os.urandom)  # each fails without an answer
    while True:
        for key in keys:
            data = os.urandom(random.choice([0, 1, 100, 20_000, 500_000]))
            session.put(key, data)
            session.get(key, _ignore, payload=data[:20_000], timeout=1.0)
        time.sleep(0.02)


@attack
def giant_replies(attacker: Attacker) -> None:
    """Answer in the place of all with messages of maximum size, unsigned, and for itself signed."""
    giant = os.urandom(7_900_000)
    attacker.session.declare_queryable(
        f"{ROOT}/node/*/*", partial(_answer_for, attacker, [(os.urandom(64), giant)], times=1)
    )
    attacker.have_loot()
    attacker.serve(notices=lambda _: giant, piece=lambda _: giant)
    attacker.tell()


def _ignore(_: Any) -> None:
    pass


def _renamed(notice: Announcement, teacher: Identity) -> Announcement:
    """Return the same announcement for an unknown task."""
    key, task, module_id = teacher.public_key, os.urandom(8).hex(), os.urandom(32).hex()
    return changed(notice, task=task, id=module_id, teacher=teacher.name, teacher_key=key).signed(teacher)


def _pour(attacker: Attacker, notices: Iterator[Announcement]) -> None:
    for sent, notice in enumerate(notices):
        attacker.session.put(f"{ROOT}/ann/{notice.teacher_key}", notice.encode())
        if sent % 100 == 0:
            attacker.report(FLOOD_FILE, sent)


# Harmful modules that are signed and served correctly.


Forged = dict[str, Any]
"""What differs from an honest module: `tensors`, and fields of the card."""


def forgery(forge: Callable[[Module], Forged]) -> Callable[[Module], Forged]:
    """Make an attack from a function that alters modules: every stolen one is altered, signed and offered."""
    name = forge.__name__.replace("_", "-")

    def run(attacker: Attacker) -> None:
        for honest, data in attacker.loot:
            changes = {"task": f"{name} {honest.task}"} | forge(Module.from_bytes(data, specs_for))
            module, altered = _signed(attacker, data, **changes)
            attacker.have(announce(module.card, module.id, altered, attacker.identity), altered)
        attacker.serve()
        attacker.tell()

    ATTACKS[name] = run
    return forge


@forgery
def second_teacher(_: Module) -> Forged:
    """No attack: an honest module of another teacher."""
    return {}


@forgery
def swallow_anchor(honest: Module) -> Forged:
    """Put means on all sides of the classes of another task, under other names: nearer to all its images."""
    anchor = SketchAnchor.read(honest.tensors)
    steps = np.random.default_rng(0).standard_normal((8, len(anchor.scatter.factor))) @ anchor.scatter.factor
    return with_means(honest, np.concatenate([anchor.means, *(anchor.means + 0.7 * step for step in steps)]))


@forgery
def swallow_everything(honest: Module) -> Forged:
    """Put means at the centre of all images."""
    centre = SketchAnchor.read(honest.tensors).means.mean(axis=0)
    noise = np.random.default_rng(0).standard_normal((200, len(centre)))
    return with_means(honest, centre + noise)


@forgery
def swallow_head(honest: Module) -> Forged:
    """Use a head that confidently gives all images the same class."""
    head = Head.read(honest.tensors)
    return {"tensors": Head(head.weight, head.bias + 1e5 * (np.arange(len(head.bias)) == 0)).tensors()}


@forgery
def wrong_names(honest: Module) -> Forged:
    """Copy another task with permuted class names and nearer means."""
    head, anchor = Head.read(honest.tensors), SketchAnchor.read(honest.tensors)
    shifted = Head(np.roll(head.weight, 1, axis=0), np.roll(head.bias, 1))
    nearer = replace(anchor, means=anchor.means * np.float32(1.02))
    return {"tensors": shifted.tensors() | nearer.tensors()}


@forgery
def huge_scatter(honest: Module) -> Forged:
    return {"tensors": {"sketch.diagonal": np.full(honest.card.dim, 255, dtype=np.uint8)}}


@forgery
def huge_count(honest: Module) -> Forged:
    """Claim a thousand million images for an absurd scatter."""
    freedom = np.array([1e9], dtype=np.float32)
    scatter = np.full(honest.card.dim, 200, dtype=np.uint8)
    counts = (2**31,) * len(honest.card.classes)
    return {"tensors": {"sketch.freedom": freedom, "sketch.diagonal": scatter}, "counts": counts}


@forgery
def only_a_count(honest: Module) -> Forged:
    """Claim a thousand million images for an otherwise honest module."""
    counts = (2**31,) * len(honest.card.classes)
    return {"tensors": {"sketch.freedom": np.array([1e9], dtype=np.float32)}, "counts": counts}


@forgery
def far_probes(honest: Module) -> Forged:
    """Use probes unlike any image, so that no image would be unknown any more."""
    return {"tensors": {"probe.scale": np.full_like(honest.tensors["probe.scale"], 10)}}


def with_means(honest: Module, means: Any, head: Head | None = None) -> Forged:
    """Return other means, with classes named 0, 1, 2 …, and a head that answers the nearest."""
    anchor = replace(SketchAnchor.read(honest.tensors), means=means.astype(np.float32))
    head = head or Head(anchor.means / 50, np.zeros(len(means), dtype=np.float32))
    names = tuple(f"class {i}" for i in range(len(means)))
    return {"tensors": anchor.tensors() | head.tensors(), "classes": names, "counts": (9,) * len(names)}


# The same by an attacker that knows the victim's bank, its validation images, and all the rules.


@attack
def tuned(attacker: Attacker) -> None:
    """Surround as many classes of the victim with its own means as just pass."""
    _offer(attacker, "tuned", *_most_that_pass(attacker))


@attack
def overtuned(attacker: Attacker) -> None:
    """Surround one class more than passes."""
    most, order = _most_that_pass(attacker)
    _offer(attacker, "overtuned", most + 1, order)


def _most_that_pass(attacker: Attacker) -> tuple[int, int]:
    """Search for the largest number of classes that vetting accepts, in an order in which some pass."""
    victim = _victim(attacker)
    own = load_validation(victim.home / VALIDATION, victim.tasks())
    background = background_of(victim.calibration, victim.config.representation, victim.config.compact)
    quarantine = Quarantine(victim.prior, victim.config.anchor, background, own)

    def passes(classes: int, order: int) -> bool:
        trial, _ = _surrounding(attacker, "trial", classes, order)
        return bool(quarantine.judge(list(victim.bank), [trial]).accepted)

    order = next(order for order in range(100) if passes(1, order))
    passing, failing = 1, 1 + sum(len(module.card.classes) for module in victim.bank)
    while failing - passing > 1:
        middle = (passing + failing) // 2
        if passes(middle, order):
            passing = middle
        else:
            failing = middle
    return passing, order


def _surrounding(attacker: Attacker, name: str, classes: int, order: int) -> tuple[Module, bytes]:
    """Return an otherwise honest module with means on all sides of this many of the victim's classes."""
    stolen = attacker.loot[0][1]
    honest, chance = Module.from_bytes(stolen, specs_for), np.random.default_rng(order)
    around = []
    for anchor in (SketchAnchor.read(module.tensors) for module in _victim(attacker).bank):
        for mean in anchor.means:
            steps = chance.standard_normal((8, len(anchor.scatter.factor))) @ anchor.scatter.factor
            around.append(mean + 0.7 * steps)
    chosen = [around[i] for i in chance.permutation(len(around))[:classes]]
    means = np.concatenate([SketchAnchor.read(honest.tensors).means, *chosen])
    return _signed(attacker, stolen, task=name, **with_means(honest, means))


def _offer(attacker: Attacker, name: str, classes: int, order: int) -> None:
    module, data = _surrounding(attacker, name, classes, order)
    attacker.have(announce(module.card, module.id, data, attacker.identity), data)
    attacker.report(MADE_FILE, {"surrounded": classes})
    attacker.serve()
    attacker.tell()


def _victim(attacker: Attacker) -> Core:
    assert attacker.knows is not None
    return Core(attacker.knows)


def _own_module(attacker: Attacker) -> tuple[Announcement, bytes]:
    module, data = _signed(attacker, task="mine")
    return announce(module.card, module.id, data, attacker.identity), data


def _signed(
    attacker: Attacker, data: bytes | None = None, tensors: Tensors | None = None, **card: Any
) -> tuple[Module, bytes]:
    """Return an honest module, altered and signed by the attacker."""
    honest = Module.from_bytes(data or attacker.loot[0][1], specs_for)
    card |= {"teacher": attacker.identity.name, "teacher_key": attacker.identity.public_key}
    return Module.create(honest.card.model_copy(update=card), honest.tensors | (tensors or {}), attacker.identity)


# Loot.


def steal(home: Path, folder: Path) -> Path:
    """Copy the announcements and files of the teacher in this home into a folder."""
    agent = Core(home)
    folder.mkdir(parents=True, exist_ok=True)
    for module in agent.bank:
        if module.card.teacher_key == agent.identity.public_key:
            data = agent.bank.file_of(module)
            notice = announce(module.card, module.id, data, agent.identity)
            (folder / f"{module.id}.skill").write_bytes(data)
            (folder / f"{module.id}.notice").write_bytes(notice.encode())
    return folder


def _read_loot(folder: Path) -> Iterator[tuple[Announcement, bytes]]:
    for path in sorted(folder.glob("*.notice")):
        notice = decode(path.read_bytes())
        assert isinstance(notice, Announcement)
        yield notice, path.with_suffix(".skill").read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted(ATTACKS))
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--loot", type=Path)
    parser.add_argument("--knows", type=Path)
    options = parser.parse_args()
    ATTACKS[options.kind](Attacker(options.home, options.loot, options.knows))
    time.sleep(FOR_EVER)


if __name__ == "__main__":
    main()
