"""A picture of test images with the agent's answers: right in green, wrong in red, unknown in grey."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from skillmesh.answering.answer import Answer
from skillmesh.cli.answers import not_given
from skillmesh.common.files import writing
from skillmesh.data.demo.canvas import font_folder
from skillmesh.data.inputs import EncodedImage, read_pixels

COLUMNS, TILE, CAPTION, GAP = 8, 144, 48, 12
RIGHT, WRONG, UNKNOWN, PAPER = "#1b7f3b", "#c0271f", "#5b6470", "#ffffff"


def draw_answers(answers: Mapping[Path, Answer], target: Path, rows: int = 5, seed: int = 0) -> None:
    """Write a contact sheet of images from every task in turn; the paths give each image's task and class."""
    chosen = _choose(answers, rows * COLUMNS, seed)
    width = COLUMNS * (TILE + GAP) + GAP
    height = rows * (TILE + CAPTION + GAP) + GAP
    sheet = Image.new("RGB", (width, height), PAPER)
    for index, path in enumerate(chosen):
        corner = (
            GAP + index % COLUMNS * (TILE + GAP),
            GAP + index // COLUMNS * (TILE + CAPTION + GAP),
        )
        _draw_tile(sheet, corner, path, answers[path])
    with writing(target, sync=False) as file:
        sheet.save(file, "PNG")


def _choose(paths: Iterable[Path], count: int, seed: int) -> list[Path]:
    """Choose images at random, one task after the other, so that every task appears."""
    rng = np.random.default_rng(seed)
    by_task: dict[Path, list[Path]] = {}
    for path in paths:
        by_task.setdefault(path.parents[2], []).append(path)
    return [task[rng.integers(len(task))] for task in islice(cycle(by_task.values()), count)]


def _draw_tile(sheet: Image.Image, corner: tuple[int, int], path: Path, answer: Answer) -> None:
    label, task = path.parent.name, path.parent.parent.parent.name
    right = (answer.label, answer.task) == (label, task)
    words = not_given(answer)
    colour = RIGHT if right else WRONG if words is None else UNKNOWN
    left, top = corner
    sheet.paste(Image.fromarray(read_pixels(EncodedImage(str(path)), TILE)), corner)
    pen = ImageDraw.Draw(sheet)
    pen.rectangle((left - 2, top - 2, left + TILE + 1, top + TILE + 1), outline=colour, width=3)
    caption = str(answer.label) if words is None else words
    below = f"in truth: {label}" if not right and words is None else f"{task}"
    if words is None:
        below += f"  {100 * answer.confidence:.0f} %"
    pen.text((left, top + TILE + 4), _fitted(caption, 19), fill=colour, font=_font("DejaVuSans-Bold", 13))
    pen.text((left, top + TILE + 22), _fitted(below, 26), fill=UNKNOWN, font=_font("DejaVuSans", 11))


def _fitted(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _font(name: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(font_folder() / f"{name}.ttf", size)
