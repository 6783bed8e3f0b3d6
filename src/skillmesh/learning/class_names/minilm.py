"""all-MiniLM-L6-v2 in NumPy: a BERT of six layers whose outputs are averaged, and its WordPiece tokeniser.

Class names are a few words long. One name at a time needs no padding and no mask, gives the same bits whatever
else is encoded, and starts without loading torch. It equals sentence-transformers to 4e-7 (docs/synergy.md).
"""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skillmesh.errors import EncoderError

Array = NDArray[np.float32]
LONGEST_WORD = 100
MOST_TOKENS = 256
"""As sentence-transformers cuts; both ends' marks count."""


class Tokeniser:
    """BERT's: lower case without accents, punctuation apart, then the longest known pieces from the left."""

    def __init__(self, vocabulary: Path) -> None:
        lines = vocabulary.read_text(encoding="utf-8").splitlines()
        self._index = {piece: index for index, piece in enumerate(lines)}

    def tokens(self, text: str) -> list[int]:
        inner = [index for word in _words(text) for index in self._pieces(word)]
        return [self._index["[CLS]"], *inner[: MOST_TOKENS - 2], self._index["[SEP]"]]

    def _pieces(self, word: str) -> list[int]:
        found: list[int] = []
        start = 0
        while start < len(word) <= LONGEST_WORD:
            ends = range(len(word), start, -1)
            mark = "##" if start else ""
            end = next((e for e in ends if mark + word[start:e] in self._index), None)
            if end is None:
                break
            found.append(self._index[mark + word[start:end]])
            start = end
        return found if start == len(word) else [self._index["[UNK]"]]


def _words(text: str) -> list[str]:
    kept = (c if c in "\t\n\r" or unicodedata.category(c)[0] != "C" else "" for c in text)
    bare = unicodedata.normalize("NFD", "".join(kept).lower())
    return "".join(_apart(c) for c in bare if unicodedata.category(c) != "Mn" and c not in "\0\ufffd").split()


def _apart(character: str) -> str:
    """Punctuation (ASCII's signs too) and Chinese characters are words of their own."""
    category, code = unicodedata.category(character), ord(character)
    sign = category[0] == "P" or (code < 128 and category[0] == "S")
    chinese = 0x4E00 <= code <= 0x9FFF or 0x3400 <= code <= 0x4DBF or 0xF900 <= code <= 0xFAFF
    chinese = chinese or 0x20000 <= code <= 0x2CEAF or 0x2F800 <= code <= 0x2FA1F
    return f" {character} " if sign or chinese else character


class MiniLmNetwork:
    """Text in, the mean of the last layer's outputs out."""

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
        self._tiny = float(config["layer_norm_eps"])

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
        spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(self._tiny))
        normed: Array = centred / spread * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return normed


def _gelu(x: Array) -> Array:
    from scipy.special import erf

    bent: Array = x * np.float32(0.5) * (1 + erf(x / np.sqrt(np.float32(2))))
    return bent
