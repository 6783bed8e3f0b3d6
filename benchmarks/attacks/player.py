"""A hostile player: random moves of the mesh's protocol, valid and invalid, against all reachable nodes.

    python benchmarks/attacks/player.py PLAN

The plan is a JSON file that `attacks.peers` writes. All randomness comes from the plan's seed, and every move is
recorded before it is made. The player knows the protocol well: its messages are signed where necessary, and wrong
in one place at a time. It holds a bounded number of faces, tokens and connections, so that growth in a node is the
node's own.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import zenoh

from skillmesh.common.config import MeshSettings
from skillmesh.errors import SkillmeshError
from skillmesh.mesh.session import close_session, open_session
from skillmesh.mesh.wire import (
    DIGEST,
    MAX_PIECE,
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
from skillmesh.mesh.wire import short as short_id
from skillmesh.module import Identity, Module
from skillmesh.module.notice import Announcement, Link, Notice, Withdrawal, announce, decode, link, withdraw
from skillmesh.store.bank import specs_for

VERBS = (DIGEST, NOTICES, PIECE)
PAUSE = 0.12
"""Seconds between two moves on average."""
MOST_FACES, MOST_TOKENS, MOST_LINES, MOST_HEARD = 24, 300, 40, 400
LATE = 3.0
"""Delay of late answers, in seconds."""

Move = Callable[["Player"], dict[str, Any]]
MOVES: dict[str, tuple[int, Move]] = {}
"""Weight and function of each move, by name; the function returns what it did."""


def move(weight: int) -> Callable[[Move], Move]:
    def register(function: Move) -> Move:
        MOVES[function.__name__] = weight, function
        return function

    return register


class Face:
    """An identity that is present, answers in some way, and may leave again."""

    def __init__(self, player: Player, identity: Identity, manners: dict[str, str]) -> None:
        self.identity, self.manners = identity, manners
        self._player = player
        self._chance = random.Random(player.chance.random())
        self._wire = Wire(player.session, identity)
        self._wire.serve({verb: partial(self._answer, verb) for verb in VERBS})
        self._wire.appear()
        self.notices: list[Notice] = []
        self.files: dict[str, bytes] = {}

    def _answer(self, verb: str, question: bytes) -> bytes | None:
        manner, chance = self.manners.get(verb, "right"), self._chance
        if manner == "silent":
            return None
        if manner == "late":
            time.sleep(LATE)
        right = self._right(verb, question)
        if manner in ("right", "late") or right is None:
            return right
        if manner == "short":
            return right[: chance.randrange(len(right) + 1)]
        if manner == "long":
            return right + chance.randbytes(chance.choice((1, SHORT, 1000, 3_000_000)))
        if manner == "turned":
            return turned(right, chance)
        return chance.randbytes(chance.choice((0, 1, 17, 4096)))

    def _right(self, verb: str, question: bytes) -> bytes | None:
        if verb == DIGEST:
            hello = {"name": self.identity.name, "root": "0" * 64, "live": len(self.files), "same": False}
            return write_digest(Hello.model_construct(**hello), self.notices)
        if verb == NOTICES:
            return write_notices(question, {short_id(notice): notice for notice in self.notices})
        asked = asked_piece(question)
        if asked is None:
            return None
        data = self.files.get(asked[0])
        return write_piece(None if data is None else data[asked[1] : asked[1] + asked[2]])

    def leave(self) -> None:
        """Undeclare everything; the session, which others use, stays open."""
        for declared in (self._wire._token, *self._wire._declared):
            if declared is not None:
                declared.undeclare()


class Player:
    """The state that moves use."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.chance = random.Random(plan["seed"])
        home = Path(plan["home"])
        self.settings = MeshSettings.load(home)
        self.home = home
        self.homes = [Path(home) for home in plan["homes"]]
        """Homes of the nodes, with their control sockets."""
        self.places: list[list[Any]] = plan["places"]
        """Addresses at which the nodes listen, as host and port."""
        self.session = open_session(self.settings, home)
        self.trusted = [Identity(f"trusted {i}", bytes.fromhex(key)) for i, key in enumerate(plan["trusted"])]
        """Identities that the nodes trust; one after the other is banned."""
        self.loot: list[tuple[Announcement, bytes]] = []
        for path in sorted(Path(plan["loot"]).glob("*.notice")):
            notice = decode(path.read_bytes())
            assert isinstance(notice, Announcement)
            self.loot.append((notice, path.with_suffix(".skill").read_bytes()))
        self.honest: list[str] = plan["honest"]
        self.faces: list[Face] = []
        self.tokens: deque[Any] = deque()
        self.lines: deque[socket.socket] = deque()
        self.posts: deque[Any] = deque()
        """Queryables declared in the place of others."""
        self.heard: deque[tuple[str, bytes]] = deque(maxlen=MOST_HEARD)
        """Messages of honest nodes, with their key expressions."""
        self.replies: deque[tuple[bytes, bytes]] = deque(maxlen=MOST_HEARD)
        self.version = plan["version"]
        self._listening = self.session.declare_subscriber(f"{ROOT}/ann/*", self._overhear)

    def _overhear(self, sample: zenoh.Sample) -> None:
        self.heard.append((str(sample.key_expr), sample.payload.to_bytes()))

    # Parts of moves.

    def key(self) -> str:
        """Return an agent's key: of a node, of a face, or a random one."""
        ours = [face.identity.public_key for face in self.faces]
        return self.chance.choice([*self.honest, *ours, self.chance.randbytes(32).hex()])

    def fresh(self) -> Identity:
        return Identity(f"face {self.chance.randrange(1000)}", self.chance.randbytes(32))

    def someone(self) -> Identity:
        """Return an identity to sign with: a trusted one, a face, or a new one."""
        return self.chance.choice([*self.trusted[:1], *(face.identity for face in self.faces), self.fresh()])

    def new_module(self, teacher: Identity) -> tuple[Announcement, bytes]:
        """Return a valid module of this teacher and its announcement: an honest module, signed as its own."""
        _, data = self.chance.choice(self.loot)
        honest = Module.from_bytes(data, specs_for)
        self.version += 1
        card = honest.card.model_copy(
            update={
                "task": f"copied {self.chance.randrange(4)}",
                "version": self.version,
                "teacher": teacher.name,
                "teacher_key": teacher.public_key,
            }
        )
        module, signed = Module.create(card, honest.tensors, teacher)
        return announce(module.card, module.id, signed, teacher), signed

    def notice(self, teacher: Identity) -> Notice:
        """Return a validly signed notice with any content."""
        old, _ = self.chance.choice(self.loot)
        task = self.chance.choice((old.task, "copied 0", "copied 1", f"new {self.chance.randrange(10**6)}"))
        version = self.chance.choice((1, 2, self.version + 1, 2**31 - 1))
        kind = self.chance.randrange(4)
        if kind == 0:
            return withdraw(task, version, teacher)
        if kind == 1:
            parts = self.chance.sample([n.id for n, _ in self.loot], min(2, len(self.loot)))
            return link(task, version, parts if len(parts) > 1 else [], teacher)
        fields = {"task": task, "version": version, "teacher": teacher.name, "teacher_key": teacher.public_key}
        if kind == 2:
            fields["id"] = self.chance.randbytes(32).hex()
        return type(old)(**old.model_dump() | fields).signed(teacher)

    def put(self, key: str, payload: bytes) -> None:
        self.session.put(key, payload)

    def trim(self) -> None:
        """Release the oldest held objects."""
        while len(self.faces) > MOST_FACES:
            self.faces.pop(0).leave()
        while len(self.tokens) > MOST_TOKENS:
            self.tokens.popleft().undeclare()
        while len(self.lines) > MOST_LINES:
            self.lines.popleft().close()
        while len(self.posts) > 3:
            self.posts.popleft().undeclare()


def turned(data: bytes, chance: random.Random) -> bytes:
    """Return the data with a few bits flipped, a part cut out, or a part duplicated."""
    if not data:
        return b"\x00"
    changed = bytearray(data)
    where, length = chance.randrange(len(data)), chance.choice((1, 1, 2, 16, 300))
    how = chance.randrange(3)
    if how == 0:
        for _ in range(chance.choice((1, 3, 20))):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    elif how == 1:
        del changed[where : where + length]
    else:
        changed[where:where] = data[where : where + length]
    return bytes(changed)


# Presence.


@move(5)
def new_face(player: Player) -> dict[str, Any]:
    """Appear with a key, a list of notices, and right or wrong answers to questions."""
    manners = {verb: player.chance.choice(("right", "right", "right", *MANNERS)) for verb in VERBS}
    identity = player.chance.choice(player.trusted) if player.chance.random() < 0.15 else player.fresh()
    if any(face.identity.public_key == identity.public_key for face in player.faces):
        identity = player.fresh()
    face = Face(player, identity, manners)
    for notice, data in player.loot if player.chance.random() < 0.6 else []:
        face.notices.append(notice)
        face.files[notice.digest] = data if player.chance.random() < 0.7 else turned(data, player.chance)
    for _ in range(player.chance.randrange(3)):
        announcement, data = player.new_module(identity)
        face.notices.append(announcement)
        face.files[announcement.digest] = data
    face.notices += [player.notice(player.someone()) for _ in range(player.chance.choice((0, 0, 3, 40)))]
    player.faces.append(face)
    return {"agent": identity.public_key, "manners": manners, "lists": len(face.notices)}


MANNERS = ("silent", "late", "short", "long", "turned", "junk")


@move(3)
def leave(player: Player) -> dict[str, Any]:
    if not player.faces:
        return {}
    face = player.faces.pop(player.chance.randrange(len(player.faces)))
    face.leave()
    return {"agent": face.identity.public_key}


@move(3)
def other_manners(player: Player) -> dict[str, Any]:
    """Change how a face answers."""
    if not player.faces:
        return {}
    face = player.chance.choice(player.faces)
    face.manners = {verb: player.chance.choice(("right", *MANNERS)) for verb in VERBS}
    return {"agent": face.identity.public_key, "manners": face.manners}


@move(3)
def tokens_appear(player: Player) -> dict[str, Any]:
    """Declare liveliness tokens of unknown agents, of present nodes, and of invalid names."""
    count = player.chance.choice((1, 5, 100))
    for _ in range(count):
        name = player.chance.choice(
            (player.key(), player.chance.randbytes(32).hex(), "zz", "A" * 64, "0" * 65, "ё")
        )
        player.tokens.append(player.session.liveliness().declare_token(f"{ROOT}/alive/{name}"))
    return {"count": count}


@move(2)
def tokens_vanish(player: Player) -> dict[str, Any]:
    count = min(len(player.tokens), player.chance.choice((1, 20, 300)))
    for _ in range(count):
        player.tokens.popleft().undeclare()
    return {"count": count}


@move(2)
def flicker(player: Player) -> dict[str, Any]:
    """Let a token appear and vanish quickly, possibly that of a node."""
    agent, times = player.key(), player.chance.choice((3, 30))
    for _ in range(times):
        player.session.liveliness().declare_token(f"{ROOT}/alive/{agent}").undeclare()
    return {"agent": agent, "times": times}


@move(2)
def ghosts_that_keep_questions(player: Player) -> dict[str, Any]:
    """Declare tokens without keys, and a queryable in the place of all that never answers."""
    verb, count = player.chance.choice(VERBS), player.chance.choice((10, 100))
    kept: list[Any] = []
    player.posts.append(player.session.declare_queryable(f"{ROOT}/node/*/{verb}", kept.append))
    for _ in range(count):
        name = player.chance.randbytes(32).hex()
        player.tokens.append(player.session.liveliness().declare_token(f"{ROOT}/alive/{name}"))
    return {"verb": verb, "count": count}


# Announcing.


@move(8)
def announce_anything(player: Player) -> dict[str, Any]:
    """Publish a valid notice, under its teacher's key or another's."""
    teacher = player.someone()
    notice = player.notice(teacher)
    sender = player.chance.choice((teacher.public_key, teacher.public_key, player.key()))
    player.put(f"{ROOT}/ann/{sender}", notice.encode())
    return {"kind": notice.kind, "teacher": teacher.public_key, "sender": sender, "version": notice.version}


@move(4)
def teach(player: Player) -> dict[str, Any]:
    """Let a trusted identity announce a module that it serves, or withdraw one."""
    teacher = player.chance.choice(player.trusted)
    face = next((f for f in player.faces if f.identity.public_key == teacher.public_key), None)
    if face is None:
        face = Face(player, teacher, {})
        player.faces.append(face)
    announcement, data = player.new_module(teacher)
    if player.chance.random() < 0.3:
        ended = withdraw(announcement.task, announcement.version, teacher)
        player.put(f"{ROOT}/ann/{teacher.public_key}", ended.encode())
        return {"withdrawn": announcement.task, "version": announcement.version}
    face.notices = [n for n in face.notices if n.slot != announcement.slot] + [announcement]
    face.files[announcement.digest] = data
    if len(face.files) > 40:
        del face.files[next(iter(face.files))]
    player.put(f"{ROOT}/ann/{teacher.public_key}", announcement.encode())
    return {"taught": announcement.task, "version": announcement.version, "manners": face.manners}


@move(4)
def forge(player: Player) -> dict[str, Any]:
    """Publish a notice in a node's name that it did not sign."""
    old, _ = player.chance.choice(player.loot)
    how = player.chance.choice(("version", "task", "withdrawal", "link"))
    author = player.fresh()
    forged: Notice
    if how == "withdrawal":
        forged = Withdrawal(task=old.task, version=2**20, teacher=old.teacher, teacher_key=old.teacher_key)
    elif how == "link":
        forged = Link(task="joined", version=1, teacher=old.teacher, teacher_key=old.teacher_key, parts=())
    else:
        field = {"version": old.version + 5} if how == "version" else {"task": "forged"}
        forged = type(old)(**old.model_dump() | field)
    forged = forged.signed(author) if player.chance.random() < 0.8 else forged
    player.put(f"{ROOT}/ann/{old.teacher_key}", forged.encode())
    return {"how": how, "in_the_name_of": old.teacher_key}


@move(5)
def malformed(player: Player) -> dict[str, Any]:
    """Publish bytes that are no notice, or almost one."""
    chance = player.chance
    sound = player.notice(player.someone()).encode()
    junk = {
        "turned": turned(sound, chance),
        "random": chance.randbytes(chance.choice((0, 1, 100, 10_000))),
        "deep": b"[" * chance.choice((100, 100_000)),
        "number": sound.replace(b'"version":', b'"version":' + b"9" * chance.choice((20, 5000))),
        "large": sound + b" " * chance.choice((200_000, 2_000_000)),
        "surrogate": sound.replace(b'"task":"', b'"task":"\\ud800'),
        "list": b"[" + sound + b"]",
        "latin": sound.replace(b"a", b"\xe4"),
    }
    how = chance.choice(sorted(junk))
    key = f"{ROOT}/{chance.choice(('ann', 'ann', 'alive', 'node', 'other'))}/{player.key()}"
    key += chance.choice(("", "", "/digest", "/piece", "/x/y"))
    if chance.random() < 0.1:
        player.session.delete(key)
    else:
        player.put(key, junk[how])
    return {"how": how, "key": key, "bytes": len(junk[how])}


@move(1)
def flood(player: Player) -> dict[str, Any]:
    """Publish many valid announcements, each of a new teacher, or all of one."""
    count, one = player.chance.choice((50, 300)), player.fresh()
    alone = player.chance.random() < 0.5
    for _ in range(count):
        notice = player.notice(one if alone else player.fresh())
        player.put(f"{ROOT}/ann/{notice.teacher_key}", notice.encode())
    return {"count": count, "of_one": alone}


@move(5)
def replay(player: Player) -> dict[str, Any]:
    """Repeat messages of honest nodes in another order, possibly changed."""
    count = min(len(player.heard), player.chance.choice((1, 10, 50)))
    for key, content in player.chance.sample(list(player.heard), count):
        player.put(key, content if player.chance.random() < 0.7 else turned(content, player.chance))
    return {"count": count}


# Asking.


@move(8)
def ask(player: Player) -> dict[str, Any]:
    """Send a question to one or all, of any size and with any parameters."""
    chance = player.chance
    agent, verb = chance.choice((player.key(), "*", "**")), chance.choice((*VERBS, "other", "*"))
    old, data = chance.choice(player.loot)
    nonce = chance.randbytes(8)
    bodies = {
        "root": nonce + chance.randbytes(chance.choice((32, 64))),
        "ids": nonce + b"".join(short_id(n) for n, _ in player.loot) * chance.choice((1, 30)),
        "piece": nonce
        + bytes.fromhex(old.digest)
        + chance.choice((0, 32_768, 1, 2**63, len(data))).to_bytes(8, "big")
        + chance.choice((0, 1, 32_768, MAX_PIECE, 2**32 - 1)).to_bytes(4, "big"),
        "short": chance.randbytes(chance.randrange(9)),
        "large": chance.randbytes(16_384) * chance.choice((1, 2, 60)),
        "none": None,
    }
    how = chance.choice(sorted(bodies))
    selector = f"{ROOT}/node/{agent}/{verb}" + chance.choice(
        ("", "", "?_time=[now(-1h)..]", "?a=1;b=%00", "?" + "x" * 900)
    )
    player.session.get(
        selector,
        partial(_keep_reply, player),
        payload=bodies[how],
        timeout=chance.choice((0.001, 0.5, 5.0)),
        target=chance.choice((zenoh.QueryTarget.ALL, zenoh.QueryTarget.BEST_MATCHING)),
        consolidation=zenoh.ConsolidationMode.NONE,
    )
    return {"selector": selector[:120], "how": how}


def _keep_reply(player: Player, reply: zenoh.Reply) -> None:
    if reply.ok is not None and reply.ok.attachment is not None:
        player.replies.append((reply.ok.attachment.to_bytes(), reply.ok.payload.to_bytes()))


@move(1)
def rush(player: Player) -> dict[str, Any]:
    """Send hundreds of valid questions at once."""
    agent, verb, count = player.chance.choice(player.honest), player.chance.choice(VERBS), 300
    old, _ = player.chance.choice(player.loot)
    bodies = {
        DIGEST: bytes(64),
        NOTICES: short_id(old),
        PIECE: bytes.fromhex(old.digest) + bytes(8) + (32_768).to_bytes(4, "big"),
    }
    for _ in range(count):
        body = player.chance.randbytes(8) + bodies[verb]
        player.session.get(f"{ROOT}/node/{agent}/{verb}", lambda _: None, payload=body, timeout=2.0)
    return {"agent": agent, "verb": verb, "count": count}


@move(1)
def ask_elsewhere(player: Player) -> dict[str, Any]:
    """Send questions to zenoh itself and to unused keys."""
    selector = player.chance.choice(("**", "@/**", f"{ROOT}/**", f"{ROOT}/alive/*", "x/y/z"))
    player.session.get(selector, lambda _: None, timeout=1.0)
    return {"selector": selector}


# Answering for others.


@move(4)
def answer_for_others(player: Player) -> dict[str, Any]:
    """Answer in the place of all for a while: silence, junk, old replies, errors, very many replies."""
    chance, how = (
        random.Random(player.chance.random()),
        player.chance.choice(("silent", "junk", "old", "error", "many")),
    )
    verb = player.chance.choice((*VERBS, "*"))
    held: deque[Any] = deque(maxlen=200)

    def reply(query: zenoh.Query) -> None:
        if how == "silent":
            held.append(query)
            return
        with query:
            key = str(query.key_expr)
            for _ in range(200 if how == "many" else 1):
                old = chance.choice(player.replies) if player.replies else (bytes(64), b"-")
                signature, body = old if how == "old" else (chance.randbytes(64), chance.randbytes(100))
                if how == "error":
                    query.reply_err(body)
                else:
                    query.reply(key, body, attachment=signature)

    player.posts.append(player.session.declare_queryable(f"{ROOT}/node/*/{verb}", reply))
    return {"how": how, "verb": verb}


@move(2)
def stop_answering_for_others(player: Player) -> dict[str, Any]:
    if player.posts:
        player.posts.popleft().undeclare()
    return {"left": len(player.posts)}


# Beneath the protocol.


@move(3)
def connect(player: Player) -> dict[str, Any]:
    """Connect to the nodes' ports and send nothing, or what no peer sends."""
    how, count = player.chance.choice(("silent", "junk", "http", "cut")), player.chance.choice((1, 5, 20))
    for _ in range(count):
        line = socket.create_connection(tuple(player.chance.choice(player.places)), timeout=2.0)
        if how == "junk":
            line.sendall(player.chance.randbytes(player.chance.choice((1, 2, 70, 20_000))))
        elif how == "http":
            line.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        elif how == "cut":
            line.sendall(b"\xff\xff" + bytes(player.chance.randrange(40)))
        player.lines.append(line)
    return {"how": how, "count": count}


@move(2)
def hang_up(player: Player) -> dict[str, Any]:
    count = player.chance.randrange(len(player.lines) + 1)
    for _ in range(count):
        player.lines.popleft().close()
    return {"count": count}


@move(1)
def another_session(player: Player) -> dict[str, Any]:
    """Open another session, publish something and close it."""
    session = open_session(player.settings, player.home)
    session.put(f"{ROOT}/ann/{player.key()}", b"hello")
    close_session(session, 1.0)
    return {}


@move(1)
def call_out(player: Player) -> dict[str, Any]:
    """Send junk to the discovery address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        for _ in range(20):
            junk = player.chance.randbytes(player.chance.choice((1, 30, 1400)))
            line.sendto(junk, ("224.0.0.225", player.settings.discovery_port))
    return {}


@move(4)
def control_junk(player: Player) -> dict[str, Any]:
    """Send to a node's own socket lines that are no request, that are nonsense, or that never end."""
    chance, home = player.chance, player.chance.choice(player.homes)
    lines = {
        "empty": b"\n",
        "no json": chance.randbytes(60).replace(b"\n", b"") + b"\n",
        "list": b"[1, 2]\n",
        "number": b"3\n",
        "no verb": b"{}\n",
        "strange verb": b'{"verb": "__class__"}\n',
        "verb of another kind": b'{"verb": ["ask"]}\n',
        "other arguments": b'{"verb": "status", "x": 1}\n',
        "no images": b'{"verb": "ask"}\n',
        "images of another kind": b'{"verb": "ask", "images": 7}\n',
        "images that are none": b'{"verb": "ask", "images": ["/nowhere.png", 3, null]}\n',
        "seconds of another kind": b'{"verb": "sync", "seconds": "long"}\n',
        "deep": b"[" * 50_000 + b"\n",
        "never ends": b'{"verb": "' + b"x" * 100_000,
        "silent": b"",
    }
    how = chance.choice(sorted(lines))
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(2.0)
    folder = os.open(home, os.O_RDONLY)
    try:
        line.connect(f"/proc/self/fd/{folder}/node.socket")
    finally:
        os.close(folder)
    line.sendall(lines[how])
    player.lines.append(line)  # closed some moves later, answered or not
    return {"how": how, "node": home.name}


def play(plan: dict[str, Any]) -> None:
    """Make moves until the plan's time is over, and record each one."""
    player = Player(plan)
    names = sorted(MOVES)
    weights = [MOVES[name][0] for name in names]
    until = time.monotonic() + plan["seconds"]
    began = time.monotonic()
    with Path(plan["moves"]).open("w") as log:
        number = 0
        while time.monotonic() < until:
            player.chance = random.Random(
                f"{plan['seed']}/{number}"
            )  # a move depends only on the seed and its number
            (name,) = player.chance.choices(names, weights)
            note: dict[str, Any] = {"number": number, "t": round(time.monotonic() - began, 2), "move": name}
            log.write(json.dumps(note) + "\n")
            log.flush()
            try:
                note["did"] = MOVES[name][1](player)
                player.trim()
            except (zenoh.ZError, OSError, SkillmeshError) as error:  # the nodes may refuse anything
                note["refused"] = f"{type(error).__name__}: {error}"[:300]
            log.write(json.dumps(note) + "\n")
            log.flush()
            number += 1
            time.sleep(player.chance.expovariate(1 / PAUSE))


def main() -> None:
    threading.excepthook = lambda _: None  # a face that left may still be asked something
    play(json.loads(Path(sys.argv[1]).read_text()))
    os._exit(0)  # zenoh's threads hold questions that will never be answered


if __name__ == "__main__":
    main()
