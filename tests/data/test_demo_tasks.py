"""The demo tasks: the same images everywhere, distinct classes, and no partly written folders."""

import hashlib
import os
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from skillmesh.data.demo import HIDDEN, LEARNED, canvas, catalogue, demo_task_classes, draw, write_demo_tasks
from skillmesh.data.demo.letters import ALPHABETS, FONTS
from skillmesh.errors import DataError

ALL = LEARNED + HIDDEN
PAIRS = [(name, cls) for name in ALL for cls in demo_task_classes(name)]


def digest(image: Image.Image) -> str:
    return hashlib.sha256(image.tobytes()).hexdigest()


def test_there_are_enough_tasks_and_classes() -> None:
    assert len(LEARNED) >= 10
    assert len(HIDDEN) >= 2
    assert len(set(ALL)) == len(ALL)
    assert all(6 <= len(demo_task_classes(name)) <= 12 for name in ALL)


def test_names_are_valid_folders_on_every_file_system() -> None:
    for name in ALL:
        folders = [name, *demo_task_classes(name)]
        assert all(re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9 -]*[A-Za-z0-9])?", folder) for folder in folders)
        assert len({cls.lower() for cls in folders[1:]}) == len(folders) - 1
        assert not {cls.lower() for cls in folders} & {"con", "aux", "nul", "prn"}


def test_every_class_draws_a_full_image_of_its_own() -> None:
    images = {pair: draw(*pair, seed=3, size=64) for pair in PAIRS}
    for pair, image in images.items():
        assert (image.mode, image.size) == ("RGB", (64, 64)), pair
        # Grain alone spreads by 7 at most: more means that something was drawn.
        assert np.asarray(image.convert("L").resize((32, 32), Image.Resampling.BOX)).std() > 5, pair
    assert len({digest(image) for image in images.values()}) == len(PAIRS)


def test_classes_of_a_task_differ_by_more_than_grain() -> None:
    for name in ALL:
        images = [np.asarray(draw(name, cls, seed=1, size=64), dtype=float) for cls in demo_task_classes(name)]
        assert min(np.abs(a - b).mean() for a, b in combinations(images, 2)) > 6, name


def test_seeds_give_different_images() -> None:
    for name in ALL:
        cls = demo_task_classes(name)[0]
        assert len({digest(draw(name, cls, seed, size=48)) for seed in range(4)}) == 4, name


def test_order_of_calls_does_not_matter() -> None:
    forwards = {pair: digest(draw(*pair, seed=7, size=48)) for pair in PAIRS}
    backwards = {pair: digest(draw(*pair, seed=7, size=48)) for pair in reversed(PAIRS)}
    assert forwards == backwards


def test_another_process_draws_the_same_and_needs_no_torch() -> None:
    code = (
        "import hashlib, sys; from skillmesh.data.demo import LEARNED, HIDDEN, demo_task_classes, draw; "
        "print(*[hashlib.sha256(draw(n, demo_task_classes(n)[-1], 5, 48).tobytes()).hexdigest() "
        "for n in LEARNED + HIDDEN]); assert 'torch' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )
    here = [digest(draw(name, demo_task_classes(name)[-1], 5, 48)) for name in ALL]
    assert done.stdout.split() == here


@pytest.mark.parametrize("font", FONTS)
def test_letters_are_in_the_fonts_and_unlike_each_other(font: str) -> None:
    letters = [letter for alphabet in ALPHABETS.values() for letter in alphabet.values()]
    assert len(set(letters)) == len(letters)
    missing = canvas.glyph(font, "\U0001fbff").tobytes()
    stencils = {}
    for letter in letters:
        stencil = canvas.glyph(font, letter)
        assert stencil.tobytes() != missing, f"{font} lacks {letter}"
        stencils[letter] = np.asarray(stencil.resize((32, 32))) > 127
    for (a, first), (b, second) in combinations(stencils.items(), 2):
        overlap = (first & second).sum() / (first | second).sum()
        assert overlap < 0.85, f"{a} and {b} look the same in {font}"


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(DataError, match=r"'unicorns'.*shapes.*maps"):
        demo_task_classes("unicorns")
    with pytest.raises(DataError, match="unicorns"):
        draw("unicorns", "pink", 0)
    with pytest.raises(DataError, match=r"'dice'.*'seven'.*one, two"):
        draw("dice", "seven", 0)


def test_missing_matplotlib_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    canvas.font_folder.cache_clear()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DataError, match="pip install matplotlib"):
        canvas.font_folder()


def test_written_splits_are_complete_and_disjoint(tmp_path: Path) -> None:
    (folder,) = write_demo_tasks(tmp_path / "new", train=3, val=1, test=2, names=["dice"])
    assert folder == tmp_path / "new" / "dice"
    counts = {"train": 3, "val": 1, "test": 2}
    hashes = []
    for split, count in counts.items():
        assert {path.name for path in (folder / split).iterdir()} == set(demo_task_classes("dice"))
        for cls in demo_task_classes("dice"):
            files = sorted((folder / split / cls).iterdir())
            assert [file.name for file in files] == [f"{n}.jpg" for n in range(count)]
            hashes += [digest(Image.open(file)) for file in files]
    assert len(set(hashes)) == len(hashes) == 6 * 6
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["dice"]


def test_another_seed_writes_other_images(tmp_path: Path) -> None:
    first, second = (
        write_demo_tasks(tmp_path / str(seed), train=1, val=0, test=0, seed=seed, names=["dice"])[0]
        for seed in (0, 1)
    )
    file = Path("train", "one", "0.jpg")
    assert (first / file).read_bytes() != (second / file).read_bytes()


def test_complete_folders_are_kept_and_damaged_ones_refused(tmp_path: Path) -> None:
    (folder,) = write_demo_tasks(tmp_path, train=1, val=1, test=1, names=["dice"])
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert write_demo_tasks(tmp_path, train=1, val=1, test=1, names=["dice"]) == [folder]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    (folder / "val" / "six" / "0.jpg").unlink()
    with pytest.raises(DataError, match="remove it or choose another folder"):
        write_demo_tasks(tmp_path, train=1, val=1, test=1, names=["dice"])


def test_interrupted_writing_leaves_no_partial_task_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_at_faces(name: str, cls: str, seed: int) -> Image.Image:
        if (name, cls) == ("faces", "angry"):
            raise KeyboardInterrupt
        return draw(name, cls, seed, size=32)

    monkeypatch.setattr(catalogue, "draw", stop_at_faces)
    with pytest.raises(KeyboardInterrupt):
        write_demo_tasks(tmp_path, train=1, val=1, test=1, names=["dice", "faces"])
    assert [path.name for path in tmp_path.iterdir()] == ["dice"]
    monkeypatch.undo()
    folders = write_demo_tasks(tmp_path, train=1, val=1, test=1, names=["dice", "faces"])
    assert [folder.name for folder in folders] == ["dice", "faces"]
    assert len(list(folders[1].rglob("*.jpg"))) == 3 * len(demo_task_classes("faces"))


def test_invalid_arguments_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="unicorns"):
        write_demo_tasks(tmp_path / "new", names=["dice", "unicorns"])
    with pytest.raises(DataError, match="negative"):
        write_demo_tasks(tmp_path / "new", train=-1)
    assert not (tmp_path / "new").exists()
