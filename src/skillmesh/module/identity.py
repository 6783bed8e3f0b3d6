"""Who taught it: an agent's Ed25519 key, and signatures of JSON with one byte form.

The signed message names its kind (`module`, `announcement`, `withdrawal`, `link`, …), so that a signature given
for one thing can never be presented as one for another.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NoReturn

from skillmesh.common.files import PRIVATE, write_whole
from skillmesh.errors import AgentError, ModuleError, NotCanonicalError

# JSON with one byte form: what the card and the header of a `.skill` file are written in.
#
# Python's `json` reads more than we want from a stranger: duplicate keys, NaN, integers of a million digits.
# `loads` refuses these; that the text also has the canonical spacing and order is for the caller to check, by
# writing again what was read.

MAX_DIGITS = 18
"""Every integer of a module fits in 64 bits; longer ones are an attack."""


def dumps(value: object) -> str:
    """Write JSON without blanks, UTF-8 as it is, floats by `repr`. The order of keys is the caller's.

    >>> dumps({"b": 0.5, "a": ["é", 1]})
    '{"b":0.5,"a":["é",1]}'
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def loads(text: str, what: str, broken: type[ModuleError]) -> Any:
    """Read JSON, or raise `broken` where it is none and `NotCanonicalError` where it says a thing twice."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            twice = Counter(name for name, _ in items).most_common(1)[0][0]
            raise NotCanonicalError(f"{what} has the key {show(twice)} twice, expected each key once")
        return found

    def integer(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise NotCanonicalError(f"{what} has an integer of {len(digits)} digits, expected ≤ {MAX_DIGITS}")
        return int(digits)

    def constant(name: str) -> NoReturn:
        raise broken(f"{what} holds {name}, expected JSON, whose numbers are finite")

    def floating(digits: str) -> float:
        value = float(digits)
        if value in (float("inf"), float("-inf")):
            raise broken(f"{what} holds {digits[:40]}, expected a number that fits a double")
        return value

    try:
        return json.loads(
            text, object_pairs_hook=pairs, parse_int=integer, parse_float=floating, parse_constant=constant
        )
    except ModuleError:
        raise
    except RecursionError:
        raise broken(f"{what} is nested too deeply to be read, expected three levels") from None
    except ValueError as error:
        raise broken(f"{what} is not JSON ({error}); ask the teacher for the file again") from None


def show(value: object) -> str:
    """Quote something from a stranger's file: short, on one line, whatever it holds.

    >>> show("cat"), show([1, 2]), show("x" * 99)[-3:]
    ("'cat'", 'a list of 2', "x'…")
    """
    if isinstance(value, str):
        return repr(value[:60]) + ("…" if len(value) > 60 else "")
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
        return f"an integer of more than {MAX_DIGITS} digits"
    return "nothing" if value is None else repr(value)[:60]


MAX_NAME = 64
_NAME_LINE = "skillmesh-name: "
_KIND = re.compile(r"[a-z][a-z-]{0,31}")
_HEX_64 = re.compile(r"[0-9a-f]{64}")
_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P
_EIGHTH = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = frozenset({0, 1, _P - 1, _EIGHTH, _P - _EIGHTH})
"""Second coordinates of the eight points that every signature can be made for, without a private key."""
_HEX_128 = re.compile(r"[0-9a-f]{128}")


def is_name(text: str) -> bool:
    """Whether this can be an agent's name: 1–64 printable characters in NFC, no blanks around them."""
    return (
        0 < len(text) <= MAX_NAME
        and text.isprintable()
        and text == text.strip()
        and unicodedata.is_normalized("NFC", text)
    )


@lru_cache(maxsize=4096)
def is_key(text: str) -> bool:
    """Whether this is the public key of somebody: 64 hex digits, a point of the curve in its one spelling.

    Points of small order are nobody's: a signature that holds for almost any message can be made up for them.
    """
    if not _HEX_64.fullmatch(text):
        return False
    number = int.from_bytes(bytes.fromhex(text), "little")
    y = number & (2**255 - 1)
    if y >= _P or y in _SMALL_ORDER:
        return False
    over, under = y * y - 1, _D * y * y + 1  # x² is their quotient, a square where their product is one
    return pow(over * under, (_P - 1) // 2, _P) == 1


def refuse_bad_key(text: str) -> None:
    if not is_key(text):
        raise AgentError(
            f"{text[:80]!r} is no public key; expected 64 hex digits, as `skillmesh trust show-mine` prints them"
        )


def verify(public_key: str, kind: str, digest_hex: str, signature: str) -> bool:
    """Whether `signature` is this key's, over this kind of thing with this digest. Malformed input is a no."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not (_HEX_128.fullmatch(signature) and is_key(public_key)):
        return False
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        key.verify(bytes.fromhex(signature), _message(kind, digest_hex))
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True)
class Identity:
    """An agent's name and its private key. The key never shows in a repr and never leaves but by `save`."""

    name: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise AgentError(
                f"the agent's name is {self.name[:80]!r}, expected 1–{MAX_NAME} printable characters in NFC "
                "with no blanks around them; choose another name"
            )
        if len(self.secret) != 32:
            raise AgentError(f"the agent's key has {len(self.secret)} bytes, expected 32; use Identity.create")

    @classmethod
    def create(cls, name: str) -> Identity:
        """Make a new key from the system's randomness."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(name, Ed25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Identity:
        """Read what `save` wrote."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            first, _, pem = Path(path).read_text("utf-8").partition("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise AgentError(f"cannot read the agent's key {str(path)!r} ({error}); check the path") from None
        if not first.startswith(_NAME_LINE):
            raise AgentError(
                f"{str(path)!r} begins with {first[:40]!r}, expected '{_NAME_LINE}NAME' and then a PEM key; "
                "restore the file from a copy or create a new identity"
            )
        try:
            key = load_pem_private_key(pem.encode(), password=None)
        except Exception as error:  # cryptography raises ValueError, TypeError and its own kinds here
            raise AgentError(f"{str(path)!r} holds no readable PEM key ({type(error).__name__})") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise AgentError(f"{str(path)!r} holds a {type(key).__name__}, expected an Ed25519 private key")
        return cls(first.removeprefix(_NAME_LINE), key.private_bytes_raw())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write name and key to a new file that only its owner reads.

        Explanatory text before a PEM block is part of the PEM convention: `openssl pkey -in FILE` reads it too.
        A key that is overwritten is lost for ever, so an existing file is refused, even in a race.
        """
        target = Path(path)
        taken = AgentError(f"{str(target)!r} exists already; move it away first, a key once lost is gone")
        if target.exists():
            raise taken
        try:
            write_whole(target, self._pem(), mode=PRIVATE, new=True)
        except FileExistsError:
            raise taken from None
        except OSError as error:
            raise AgentError(f"cannot write the agent's key {str(target)!r} ({error.strerror})") from None

    def sign(self, kind: str, digest_hex: str) -> str:
        """Sign a digest (64 hex digits) as this kind of thing; 128 hex digits."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.secret).sign(_message(kind, digest_hex)).hex()

    @cached_property
    def public_key(self) -> str:
        """The raw public key as 64 hex digits: how other agents know this one."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.secret).public_key().public_bytes_raw().hex()

    def _pem(self) -> bytes:
        from cryptography.hazmat.primitives import serialization as ser
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.from_private_bytes(self.secret)
        pem = key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.PKCS8, ser.NoEncryption())
        return f"{_NAME_LINE}{self.name}\n".encode() + pem


def _message(kind: str, digest_hex: str) -> bytes:
    if not (_KIND.fullmatch(kind) and _HEX_64.fullmatch(digest_hex)):
        raise ValueError(f"cannot sign kind {kind!r} of {digest_hex!r}: expected a-z and '-', and 64 hex digits")
    return b"skillmesh/v1/" + kind.encode() + b"\n" + digest_hex.encode()
