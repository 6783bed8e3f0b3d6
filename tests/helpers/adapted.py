"""Modules that PyTorch has adapted, and its answers with them; `tools/adapted_fixture.py` made both.

They were learned with the calibration of an earlier release.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from earlier import CALIBRATION

FOLDER = Path(__file__).parents[1] / "fixtures" / "adapted"
KINDS = {"dice": "biases", "shapes": "reprogramming", "flowers": "head2toe"}
"""Adaptation of each task."""
ANSWERS: dict[str, dict[str, float]] = json.loads((FOLDER / "answers.json").read_text())
"""Confidence in each class of its task, given that the task is known, by the name of the image."""
IMAGES = {name: FOLDER / "images" / name for name in ANSWERS}
SETTINGS = {"compact": True, "calibration": CALIBRATION}
"""Settings of an agent that can import them."""


def adapted_files(folder: Path) -> list[Path]:
    """Write the modules into a folder."""
    files = [folder / f"{kind}.skill" for kind in KINDS.values()]
    for file in files:
        file.write_bytes(gzip.decompress((FOLDER / f"{file.name}.gz").read_bytes()))
    return files
