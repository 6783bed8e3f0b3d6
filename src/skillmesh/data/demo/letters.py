"""Five alphabets in one style: these tasks differ only in their letters.

Letters that look the same in two of the alphabets (Latin P and Greek rho, Greek Γ and Cyrillic Г, Armenian Տ and
Latin S ...) are left out, so that each image belongs to one task.
"""

import numpy as np
from PIL import Image

from skillmesh.data.demo.canvas import Colour, Drawer, DrawnTask, Pen, blotches, hsv, mix

FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSerif-Bold")

ALPHABETS: dict[str, dict[str, str]] = {
    "latin": {letter: letter for letter in "DFGJQRVW"},
    "greek": {
        "delta": "Δ", "theta": "Θ", "lambda": "Λ", "xi": "Ξ", "sigma": "Σ", "psi": "Ψ", "omega": "Ω",
    },
    "cyrillic": {
        "be": "Б", "de": "Д", "zhe": "Ж", "i": "И", "tse": "Ц", "sha": "Ш", "yery": "Ы", "e": "Э", "yu": "Ю",
        "ya": "Я",
    },
    "armenian": {
        "ayb": "Ա", "ben": "Բ", "gim": "Գ", "zhe": "Ժ", "khe": "Խ", "tsa": "Ծ", "dza": "Ձ", "je": "Ջ", "ke": "Ք",
        "fe": "Ֆ",
    },
    "georgian": {
        "an": "ა", "ban": "ბ", "don": "დ", "kan": "კ", "las": "ლ", "zhar": "ჟ", "khar": "ქ", "shin": "შ",
        "jhan": "ჯ", "hae": "ჰ",
    },
}  # fmt: skip


def _colours(rng: np.random.Generator) -> tuple[list[Colour], Colour]:
    """Return colours of paper and ink, or sometimes of a dark board and chalk."""
    hue = rng.uniform()
    paper = [hsv(hue + rng.uniform(-0.06, 0.06), rng.uniform(0.05, 0.3), rng.uniform(0.86, 1)) for _ in "123"]
    ink = hsv(rng.uniform(), rng.uniform(0.5, 0.95), rng.uniform(0.15, 0.55))
    if rng.uniform() < 0.3:
        board = hsv(rng.uniform(), 0.5, 0.3)
        return [mix(board, colour, 0.1) for colour in paper], paper[0]
    return paper, ink


def _drawer(letters: dict[str, str]) -> Drawer:
    def draw(cls: str, rng: np.random.Generator, side: int) -> Image.Image:
        paper, ink = _colours(rng)
        image = blotches(rng, side, paper, 3)
        pen = Pen.posed(image, rng, turn=14, scale=(0.5, 0.78), squeeze=0.1)
        font = FONTS[rng.integers(len(FONTS))]
        if rng.uniform() < 0.5:
            offset = rng.uniform(0.05, 0.1)
            pen.at(offset, offset).text(letters[cls], mix(paper[0], ink, 0.25), font=font)
        pen.text(letters[cls], ink, font=font)
        return image

    return draw


TASKS = tuple(DrawnTask(name, tuple(letters), _drawer(letters)) for name, letters in ALPHABETS.items())
