"""A picture of test images with the agent's answers: right in green, wrong in red, unknown in grey."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from skillmesh.agent import Agent
from skillmesh.answer import Answer
from skillmesh.data.demo.fonts import font_folder

COLUMNS, TILE, CAPTION, GAP = 8, 144, 48, 12
RIGHT, WRONG, UNKNOWN, PAPER = "#1b7f3b", "#c0271f", "#5b6470", "#ffffff"


def draw_answers(agent: Agent, folders: Sequence[Path], target: Path, rows: int = 5, seed: int = 0) -> None:
    """Take test images of every task in turn, ask the agent, and write a contact sheet."""
    chosen = _choose(folders, rows * COLUMNS, seed)
    answers = agent.answer(list(chosen))
    width = COLUMNS * (TILE + GAP) + GAP
    height = rows * (TILE + CAPTION + GAP) + GAP
    sheet = Image.new("RGB", (width, height), PAPER)
    for index, (path, answer) in enumerate(zip(chosen, answers, strict=True)):
        corner = (
            GAP + index % COLUMNS * (TILE + GAP),
            GAP + index // COLUMNS * (TILE + CAPTION + GAP),
        )
        _draw_tile(sheet, corner, path, answer)
    sheet.save(target)


def _choose(folders: Sequence[Path], count: int, seed: int) -> list[Path]:
    """Draw test images task by task, so that every task is seen; a path tells an image's task and class."""
    rng = np.random.default_rng(seed)
    files = cycle([sorted(folder.glob("test/*/*")) for folder in folders])
    return [task[rng.integers(len(task))] for task in islice(files, count)]


def _draw_tile(sheet: Image.Image, corner: tuple[int, int], path: Path, answer: Answer) -> None:
    label, task = path.parent.name, path.parent.parent.parent.name
    right = (answer.label, answer.task) == (label, task)
    colour = UNKNOWN if answer.unknown else RIGHT if right else WRONG
    left, top = corner
    with Image.open(path) as image:
        sheet.paste(image.convert("RGB").resize((TILE, TILE)), corner)
    pen = ImageDraw.Draw(sheet)
    pen.rectangle((left - 2, top - 2, left + TILE + 1, top + TILE + 1), outline=colour, width=3)
    said = "unknown" if answer.unknown else str(answer.label)
    below = f"in truth: {label}" if not right and not answer.unknown else f"{task}"
    if not answer.unknown:
        below += f"  {100 * answer.confidence:.0f} %"
    pen.text((left, top + TILE + 4), _fitted(said, 19), fill=colour, font=_font("DejaVuSans-Bold", 13))
    pen.text((left, top + TILE + 22), _fitted(below, 26), fill=UNKNOWN, font=_font("DejaVuSans", 11))


def _fitted(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _font(name: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(font_folder() / f"{name}.ttf", size)
