"""Take pictures of every view of the page, light and dark, on a desktop and on a phone, with drawn tasks.

python tools/page_screenshots.py OUT   # needs the extra page, `pip install playwright` and Debian's chromium

docs/images/page-ask.png, page-teach.png and page-mesh.png are its ask-desktop-light.png and so on.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from browsing import PHONE, Window, chromium, served, window
from meshes import eventually, free_port
from pictures import Pictures
from PIL import Image
from playwright.sync_api import expect

from skillmesh.core import Core
from skillmesh.data.demo import demo_task_classes
from skillmesh.mesh.shelf import Shelf

SIZES: dict[str, dict[str, Any]] = {"desktop": {"viewport": {"width": 1120, "height": 700}}, "phone": PHONE}
GARDEN = {
    "flowers": ("rose", "tulip", "daisy", "sunflower", "poppy", "bluebell"),
    "shapes": ("star", "heart", "circle", "arrow"),
}
ATTIC = {"dice": ("one", "two", "three", "four", "five", "six")}
STUDIO = {"textures": (), "faces": (), "clocks": ("one o clock", "three o clock", "six o clock", "nine o clock")}
COLOURS = 192


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        work, mesh = Path(folder), free_port()
        browser = stack.enter_context(chromium())
        pictures = Pictures(work / "pictures", *GARDEN, *ATTIC, *STUDIO, "snowflakes")
        newcomer = stack.enter_context(served(work / "newcomer", "newcomer", free_port()))
        agents = {"garden": GARDEN, "attic": ATTIC, "studio": STUDIO}
        nodes = {name: stack.enter_context(served(work / name, name, mesh)) for name in agents}
        for name, tasks in agents.items():
            with window(browser, nodes[name]) as opened:
                opened.open()
                for task, classes in tasks.items():
                    chosen = classes or demo_task_classes(task)[:4]
                    opened.teach(task, pictures.to_teach(task, *chosen), sharing="Share now")
        garden = nodes["garden"]
        with window(browser, garden) as opened:
            opened.open().begin("snow")
            for name, files in pictures.to_teach("snowflakes", "needles", "simple star", "fern dendrite").items():
                opened.add_class(name)
                opened.add_images(name, files[: 7 if name == "needles" else 14])
            eventually(lambda: len(garden.get("/tasks")["tasks"]) == 6, why="everything is shared")
        hold_one(Core(newcomer.home), Core(nodes["attic"].home))
        for size, options in SIZES.items():
            for scheme in ("light", "dark"):
                look = {"color_scheme": scheme, "reduced_motion": "reduce", **options}
                end = f"{size}-{scheme}.png"
                with window(browser, newcomer, **look) as opened:
                    picture(opened.open(), out / f"welcome-{end}")
                    opened.view("Mesh")
                    picture(opened, out / f"quarantine-{end}")
                with window(browser, garden, **look) as opened:
                    session(opened.open(), pictures, out, end)
                with window(browser, garden, **look) as opened:
                    picture(opened.open(garden.guest_url), out / f"guest-{end}")


def hold_one(agent: Core, teacher: Core) -> None:
    """Put one module of another agent into quarantine."""
    module = next(iter(teacher.bank))
    shelf = Shelf(agent.home, agent.ledger)
    shelf.hold(module.id, teacher.bank.file_of(module), "it answers images of other tasks")


def session(opened: Window, pictures: Pictures, out: Path, end: str) -> None:
    picture(opened, out / f"ask-empty-{end}")
    opened.ask(pictures.to_ask("flowers", "tulip")[0])
    picture(opened, out / f"ask-one-{end}")
    opened.button("Clear answers").click()
    asked = [pictures.to_ask(task, name)[1] for task, name in (("flowers", "sunflower"), ("dice", "four"))]
    cards = opened.ask(*asked, pictures.to_ask("snowflakes", "needles")[0])
    picture(opened, out / f"ask-{end}")
    opened.button("No, this is …", cards[0]).click()
    picture(opened, out / f"correction-{end}")
    opened.button("Use the camera").click()
    opened.button("Live").click()
    opened.page.wait_for_timeout(2500)  # the fake camera starts with a black picture
    picture(opened, out / f"camera-{end}")
    opened.button("Close camera").click()
    opened.view("Teach")
    picture(opened, out / f"lessons-{end}")
    opened.link("snow").click()
    expect(opened.card("Class needles")).to_be_visible()
    opened.page.wait_for_timeout(500)
    picture(opened, out / f"teach-{end}")
    opened.view("Teach")
    opened.link("flowers").click()
    picture(opened, out / f"report-{end}")
    opened.view("Tasks")
    picture(opened, out / f"tasks-{end}")
    opened.link("dice").click()
    picture(opened, out / f"task-{end}")
    opened.view("Mesh")
    picture(opened, out / f"mesh-{end}")


def picture(opened: Window, path: Path) -> None:
    """Save the whole page, with few colours so that the file is small."""
    page = opened.page
    before = page.viewport_size
    assert before is not None
    height = page.evaluate("document.documentElement.scrollHeight")  # else its fixed parts would be in the middle
    page.set_viewport_size({"width": before["width"], "height": max(before["height"], height)})
    page.mouse.move(0, 0)
    page.wait_for_timeout(400)
    page.screenshot(path=path)
    page.set_viewport_size(before)
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(COLOURS, kmeans=2)  # else the few red pixels turn violet
    small.save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
