"""Import timm where torchvision is a CUDA build and torch is not.

PyPI's torchvision registers `nms` in a compiled library that a CPU build of torch cannot load; its Python part
then fails on import. timm uses none of it. Declaring the two operators makes the import succeed; calling
them still fails, as it should.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

import torch

_OPERATORS = ("nms", "qnms")
_declared: list[torch.library.Library] = []  # a Library that is collected takes its operators with it


def import_timm() -> ModuleType:
    """Return timm, mending torchvision only where its plain import fails."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for operator in _OPERATORS:
            schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(schema)  # type: ignore[no-untyped-call]
        _declared.append(library)
    return import_module("timm")
