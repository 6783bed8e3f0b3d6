"""Agent identities: names, Ed25519 keys and signatures; and canonical JSON, which has exactly one byte form.

A signed message names its kind (`module`, `announcement`, `withdrawal`, `link`, …), so that a signature of one
kind can never be presented as a signature of another kind.
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

# Canonical JSON: the form of the card and the header of a `.skill` file.
#
# Python's `json` accepts more than is safe from an untrusted file: duplicate keys, NaN, integers of a million
# digits. `loads` refuses these. The caller checks for canonical spacing and order, by writing again what was read
# and comparing.

MAX_DIGITS = 18
"""Maximum number of digits of an integer. Every integer of a module fits in 64 bits; longer ones are an attack."""


def dumps(value: object) -> str:
    """Return `value` as JSON without blanks, without ASCII escapes, floats by `repr`, keys in the order given.

    >>> dumps({"b": 0.5, "a": ["é", 1]})
    '{"b":0.5,"a":["é",1]}'
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def loads(text: str, what: str, broken: type[ModuleError]) -> Any:
    """Parse JSON. Raise `broken` if it is invalid, `NotCanonicalError` for repeated keys or too long integers."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(items)
        if len(fields) != len(items):
            twice = Counter(name for name, _ in items).most_common(1)[0][0]
            raise NotCanonicalError(f"{what} has the key {show(twice)} twice, expected each key once")
        return fields

    def integer(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise NotCanonicalError(f"{what} has an integer of {len(digits)} digits, expected ≤ {MAX_DIGITS}")
        return int(digits)

    def constant(name: str) -> NoReturn:
        raise broken(f"{what} holds {name}, expected JSON with finite numbers only")

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
        raise broken(f"{what} is nested too deeply to be read, expected three levels of nesting") from None
    except ValueError as error:
        raise broken(f"{what} is not JSON ({error}); ask the teacher for the file again") from None


def show(value: object) -> str:
    """Return a short quotation, on one line, of any value from an untrusted file.

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
"""y coordinates of the eight points of small order, for which signatures can be forged without a private key."""
_HEX_128 = re.compile(r"[0-9a-f]{128}")


def is_name(text: str) -> bool:
    """Return whether `text` can be an agent's name: 1–64 printable NFC characters, no blanks at the ends."""
    return (
        0 < len(text) <= MAX_NAME
        and text.isprintable()
        and text == text.strip()
        and unicodedata.is_normalized("NFC", text)
    )


@lru_cache(maxsize=4096)
def is_key(text: str) -> bool:
    """Return whether `text` is a valid public key: 64 hex digits that are a curve point in canonical encoding.

    Points of small order are refused: a signature that is valid for almost any message can be forged for them.
    """
    if not _HEX_64.fullmatch(text):
        return False
    number = int.from_bytes(bytes.fromhex(text), "little")
    y = number & (2**255 - 1)
    if y >= _P or y in _SMALL_ORDER:
        return False
    over, under = y * y - 1, _D * y * y + 1  # x² = over / under, a square if over · under is one
    return pow(over * under, (_P - 1) // 2, _P) == 1


def refuse_bad_key(text: str) -> None:
    if not is_key(text):
        raise AgentError(
            f"{text[:80]!r} is not a public key; expected 64 hex digits as printed by `skillmesh trust show-mine`"
        )


def verify(public_key: str, kind: str, digest_hex: str, signature: str) -> bool:
    """Return whether the key signed this kind of message with this digest; False for malformed input too."""
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
    """An agent's name and its private key. The key never appears in a repr; only `save` writes it out."""

    name: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise AgentError(
                f"the agent's name is {self.name[:80]!r}, expected 1–{MAX_NAME} printable characters in Unicode "
                "NFC with no blanks at the ends; choose another name"
            )
        if len(self.secret) != 32:
            raise AgentError(f"the agent's key has {len(self.secret)} bytes, expected 32; use Identity.create")

    @classmethod
    def create(cls, name: str) -> Identity:
        """Create an identity with a new random key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(name, Ed25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Identity:
        """Read a file that `save` wrote; raise `AgentError` if it cannot be read or holds no Ed25519 key."""
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
        except Exception as error:  # cryptography raises ValueError, TypeError and its own errors
            raise AgentError(f"{str(path)!r} holds no readable PEM key ({type(error).__name__})") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise AgentError(f"{str(path)!r} holds a {type(key).__name__}, expected an Ed25519 private key")
        return cls(first.removeprefix(_NAME_LINE), key.private_bytes_raw())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write name and key to a new file that only its owner can read.

        PEM allows explanatory text before its block, so `openssl pkey -in FILE` reads the file too. An overwritten
        key is lost for ever, so an existing file is refused, even if another process creates it at the same time.
        """
        target = Path(path)
        exists = AgentError(f"{str(target)!r} exists already; move it away first, an overwritten key is lost")
        if target.exists():
            raise exists
        try:
            write_whole(target, self._pem(), mode=PRIVATE, new=True)
        except FileExistsError:
            raise exists from None
        except OSError as error:
            raise AgentError(f"cannot write the agent's key {str(target)!r} ({error.strerror})") from None

    def sign(self, kind: str, digest_hex: str) -> str:
        """Return the signature, 128 hex digits, of a digest (64 hex digits) of this kind of message."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.secret).sign(_message(kind, digest_hex)).hex()

    @cached_property
    def public_key(self) -> str:
        """The raw public key as 64 hex digits, by which other agents identify this one."""
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
