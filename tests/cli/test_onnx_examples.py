"""`skillmesh export --onnx`, and the examples that use such a file: a script and a page."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import npm_package, result_of
from PIL import Image
from running import PLAIN, Ran, failed

from skillmesh.answering.answer import Answer
from skillmesh.core import Core
from skillmesh.evaluation.evaluate import open_measured

pytest.importorskip("onnx")

EXAMPLES = Path(__file__).parents[2] / "examples"
Command = Callable[..., Ran]
# Without skillmesh: -I ignores PYTHONPATH, and the name is blocked.
ALONE = """
import runpy, sys
sys.modules["skillmesh"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0])
"""


@pytest.fixture(scope="module")
def agent(new_agent: Callable[..., Core], skill_files: dict[str, Path]) -> Core:
    """Return an agent that leaves much unanswered, so that it is not sure of some images."""
    agent = new_agent("careful", unanswered=0.5)
    for file in skill_files.values():
        agent.import_file(file)
    return agent


@pytest.fixture(scope="module")
def file(agent: Core, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return agent.export_onnx(tmp_path_factory.mktemp("exported"))


class TestCommand:
    def test_writes_the_whole_agent(self, command: Command, tiny_taught: Core, tmp_path: Path):
        ran = command("export", "--onnx", tmp_path / "agent.onnx", "--home", tiny_taught.home)
        assert ran.code == 0
        assert ran.out.startswith(f"wrote {tmp_path / 'agent.onnx'}, 1")
        assert ran.out.endswith(" MB: 4 tasks\n")
        assert (tmp_path / "agent.onnx").stat().st_size > 10**7

    def test_refuses_a_task_beside_it(self, command: Command, tiny_taught: Core, tmp_path: Path):
        ran = command("export", "dice", "--onnx", tmp_path / "a.onnx", "--home", tiny_taught.home)
        failed(ran, "--onnx writes the whole agent, and found the task 'dice'; leave the task out")

    @pytest.mark.parametrize("words", [(), ("dice",)])
    def test_without_it_needs_a_task_and_a_file(self, command: Command, tiny_taught: Core, words: tuple[str, ...]):
        failed(command("export", *words, "--home", tiny_taught.home), "expected `export TASK FILE`")

    def test_of_an_agent_without_tasks_says_what_to_do(self, command: Command, tmp_path: Path):
        assert command("init", "--home", tmp_path / "new").code == 0
        ran = command("export", "--onnx", tmp_path / "a.onnx", "--home", tmp_path / "new")
        failed(ran, "knows no task yet; teach it one with `skillmesh --home ")
        assert not (tmp_path / "a.onnx").exists()


@pytest.fixture(scope="module")
def photos(mixed: list[Path], strange: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return twenty photos, and among them odd ones: turned by their EXIF tag, transparent, large, wide, grey."""
    folder = tmp_path_factory.mktemp("photos")
    photos = [*mixed[:11], *strange[:3]]
    odd = [Image.open(path).convert("RGB") for path in mixed[11:16]]
    noise = np.random.default_rng(0).integers(0, 256, (300, 200, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "noise.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    odd[0].save(folder / "turned.jpg", exif=exif, quality=95)
    clear = odd[1].convert("RGBA")
    clear.putalpha(odd[1].convert("L").point(lambda value: 255 * (value > 99)))
    clear.save(folder / "clear.png")
    odd[2].resize((1600, 1200)).save(folder / "large.jpg", quality=92)
    odd[3].resize((500, 90)).save(folder / "wide.png")
    odd[4].convert("L").save(folder / "grey.png")
    return [*photos, *sorted(folder.iterdir())]


@pytest.fixture(scope="module")
def answers(agent: Core, photos: list[Path]) -> list[Answer]:
    answers = agent.answer(photos)
    assert {said(answer) for answer in answers} > {"unknown", "not sure"}
    return answers


def said(answer: Answer) -> str:
    """Return what is said of an image: its class, "unknown" or "not sure"."""
    return answer.label or ("unknown" if answer.unknown else "not sure")


def test_the_script_answers_like_the_agent_without_skillmesh(
    file: Path, photos: list[Path], answers: list[Answer]
):
    script = EXAMPLES / "ask_onnx.py"
    assert len(script.read_text().splitlines()) <= 20
    words = [sys.executable, "-I", "-c", ALONE, script, file, *photos]
    ran = subprocess.run(words, capture_output=True, text=True, check=True, env=PLAIN)
    assert len(photos) == len(ran.stdout.splitlines()) == 20
    for photo, line, answer in zip(photos, ran.stdout.splitlines(), answers, strict=True):
        name, label, task, confidence, novelty = line.split("\t")
        assert (name, label, task) == (str(photo), said(answer), answer.best.task)
        assert float(confidence) == pytest.approx(answer.confidence, abs=1e-4)
        assert float(novelty) == pytest.approx(answer.novelty, abs=1e-4)


OPEN = """
const frame = document.createElement("iframe");
frame.src = "ask_onnx.html";
document.body.append(frame);
const until = async test => { while (!test()) await new Promise(later => setTimeout(later, 20)); };
const part = name => frame.contentDocument?.getElementById(name);
"""
SHOWN = 'done(part("answer").textContent);'
CHOOSE = """
await until(() => part("photo") && !part("photo").disabled);
const results = [];
for (let number = 0; number < COUNT; number++) {
  const chosen = new DataTransfer();
  chosen.items.add(new File([await (await fetch(`photos/${number}`)).blob()], "photo"));
  part("answer").textContent = "";
  part("photo").files = chosen.files;
  part("photo").dispatchEvent(new Event("change"));
  await until(() => part("answer").textContent && !part("answer").textContent.startsWith("Looking"));
  results.push([part("answer").textContent, part("answer").dataset.answer]);
  delete part("answer").dataset.answer;
}
done(results);
"""


def put_page(folder: Path) -> None:
    """Put the page into a folder, and what it runs on."""
    packed = folder / "npm"
    packed.mkdir()
    shutil.move(npm_package("onnxruntime-web@1", packed) / "dist", folder / "onnxruntime-web")
    shutil.copy(EXAMPLES / "ask_onnx.html", folder)


def page_answers(file: Path, photos: list[Path], folder: Path) -> list[tuple[str, dict[str, Any] | None]]:
    """Return what the page shows for each photo in a browser, and the numbers behind it."""
    put_page(folder)
    shutil.copy(file, folder / "agent.onnx")
    (folder / "photos").mkdir()
    for number, photo in enumerate(photos):
        shutil.copy(photo, folder / "photos" / str(number))
    results = result_of(folder, OPEN + CHOOSE.replace("COUNT", str(len(photos))))
    assert len(results) == len(photos), results
    return [(text, json.loads(numbers) if numbers else None) for text, numbers in results]


def assert_same(shown: list[tuple[str, dict[str, Any] | None]], answers: list[Answer]) -> None:
    for (text, numbers), answer in zip(shown, answers, strict=True):
        assert numbers is not None
        given = said(answer) if answer.label is None else f"{answer.label} ({answer.task})"
        assert text.partition(", ")[0] == given
        assert (numbers["unknown"], numbers["unsure"]) == (answer.unknown, answer.unsure)
        assert numbers["confidence"] == pytest.approx(answer.confidence, abs=0.01)
        assert numbers["novelty"] == pytest.approx(answer.novelty, abs=0.01)


@pytest.mark.long
def test_the_page_answers_like_the_agent_in_a_browser(
    file: Path, photos: list[Path], answers: list[Answer], tmp_path: Path
):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no photo")
    first, *shown = page_answers(file, [broken, *photos], tmp_path)
    assert first[0].startswith("This photo cannot be read: ")
    assert first[1] is None
    assert_same(shown, answers)


@pytest.mark.long
def test_the_page_says_that_there_is_no_agent(tmp_path: Path):
    put_page(tmp_path)
    text = result_of(tmp_path, OPEN + 'await until(() => /^There/.test(part("answer")?.textContent));' + SHOWN)
    assert text.startswith("There is no agent to ask (agent.onnx: 404 ")
    assert text.endswith("Write one with: skillmesh export --onnx agent.onnx")


@pytest.mark.slow
def test_the_page_answers_like_the_agent_on_real_photos(
    new_agent: Callable[..., Core], real_tasks: Path, tmp_path: Path
):
    """Photos of two tasks that the agent has learned, and of two that it has not."""
    agent = new_agent("real")
    learned, unlearned = ("euro_coins", "clothing_small"), ("weather4", "coffee_leaf")
    for name in learned:
        agent.learn(real_tasks / f"{name}.zip")
    photos = []
    for name in (*learned, *unlearned):
        for image in open_measured(real_tasks / f"{name}.zip", learn=False).splits["test"].files[::5][:5]:
            photos.append(tmp_path / f"{len(photos)}{Path(image.name).suffix}")
            photos[-1].write_bytes(image.content())
    answers = agent.answer(photos)
    assert {answer.label is None for answer in answers} == {True, False}
    assert_same(page_answers(agent.export_onnx(tmp_path), photos, tmp_path), answers)
