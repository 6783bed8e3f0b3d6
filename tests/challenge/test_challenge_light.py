"""What the challenge says without PyTorch, before it reads any task."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from running import Ran, failed

pytestmark = pytest.mark.light

INSTALL_TORCH = "needs PyTorch, which is not installed; install it with `pip install torch torchvision timm`"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--method", "er", "--agents", 1), f"the method 'er' {INSTALL_TORCH}"),
        (("run", "--method", "nearest-mean"), f"the method 'nearest-mean' {INSTALL_TORCH}"),
        (("tune", "--method", "ewc"), f"the method 'ewc' {INSTALL_TORCH}"),
        (("run", "--method", "sketch-auto"), f"training an adaptation {INSTALL_TORCH}"),
        (("run", "--method", "sketch", "--backbone", "xception"), f"the backbone 'xception' {INSTALL_TORCH}"),
        (("run", "--method", "gmmc"), "learning with the anchor 'gmmc' needs scikit-learn"),
    ],
)
def test_a_method_that_cannot_run_is_refused(
    words: tuple[object, ...],
    message: str,
    command: Callable[..., Ran],
    tiny_tasks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    for name in ("torch", "torchvision", "timm", "sklearn"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "out").mkdir()
    action, *options = words
    failed(command("challenge", action, tiny_tasks, *options, "--out", tmp_path / "out"), message)
    assert not list((tmp_path / "out").iterdir())
