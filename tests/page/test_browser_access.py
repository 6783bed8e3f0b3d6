"""The page for everyone: with the keyboard alone, with assistive technology, in light and dark."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")
pytest.importorskip("zxingcpp")
pytest.importorskip("playwright")

from browser import npm_package
from browsing import PHONE, Served, Window, answer_of
from pictures import Pictures
from playwright.sync_api import expect

from skillmesh.core import Core

pytestmark = pytest.mark.long

Open = Callable[..., Window]
Serve = Callable[..., Served]
LOOKS = [
    pytest.param({"color_scheme": "light"}, id="light"),
    pytest.param({"color_scheme": "dark"}, id="dark"),
    pytest.param({"color_scheme": "light", **PHONE}, id="phone-light"),
    pytest.param({"color_scheme": "dark", **PHONE}, id="phone-dark"),
]


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the source of axe-core, which finds what keeps people with disabilities out."""
    return (npm_package("axe-core", tmp_path_factory.mktemp("axe")) / "axe.min.js").read_text()


@pytest.fixture(scope="module")
def alice(serve: Serve, adept: Core, mesh_number: int) -> Served:
    return serve("alice", copy_of=adept, mesh=mesh_number)


@pytest.fixture(scope="module")
def bob(serve: Serve, mesh_number: int) -> Served:
    """Bob knows what Alice shares."""
    return serve("bob", mesh=mesh_number)


@pytest.fixture(scope="module")
def newcomer(serve: Serve) -> Served:
    """Return an agent that knows nothing and is alone."""
    return serve("newcomer")


class Checker:
    """Runs axe-core on what a window shows."""

    def __init__(self, window: Window, source: str) -> None:
        self._window = window
        self._source = source
        self.found: dict[str, list[str]] = {}

    def look(self, view: str) -> None:
        page = self._window.page
        if not page.evaluate("'axe' in window"):
            page.evaluate(self._source)  # by the debugger: the page's security policy refuses added scripts
        result: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert len(result["passes"]) > 10
        self.found[view] = [
            f"{problem['id']} ({problem['impact']}): {node['html'][:160]} {node['failureSummary'][:300]}"
            for problem in result["violations"]
            if problem["impact"] in ("serious", "critical")
            for node in problem["nodes"]
        ]

    def assert_nothing(self) -> None:
        assert {view: problems for view, problems in self.found.items() if problems} == {}


@pytest.mark.parametrize("look", LOOKS)
def test_axe_finds_nothing_serious_in_any_view(
    request: pytest.FixtureRequest,
    axe: str,
    look: dict[str, Any],
    alice: Served,
    bob: Served,
    newcomer: Served,
    open_window: Open,
    pictures: Pictures,
):
    window = open_window(alice, reduced_motion="reduce", **look)
    checker = Checker(window, axe)
    checker.look("ask, empty")
    known, unknown = pictures.to_ask("shapes", "star")[0], pictures.to_ask("snowflakes", "needles")[0]
    _, card = window.ask(unknown, known)
    window.button("No, this is …", card).click()
    checker.look("ask, with answers and a correction")
    window.button("Use the camera").click()
    window.button("Live").click()
    camera = window.page.get_by_role("region", name="Camera")
    expect(camera.get_by_text(re.compile("Unknown|Not sure|%")).first).to_be_visible()
    checker.look("ask, with the camera")
    window.button("Close camera").click()
    window.button("Teach me").click()
    checker.look("teach, with a waiting picture")

    task = f"shapes {request.node.callspec.id}"
    window.begin(task)
    checker.look("an empty lesson")
    for name, images in pictures.to_teach("shapes", "heart", "star").items():
        window.add_class(name)
        window.add_images(name, images)
    window.button("Use the camera").click()
    expect(window.button("Hold to record star")).to_be_visible()
    window.text("Tags, licence, note").click()
    checker.look("a lesson with pictures")
    window.button("Rename star").click()
    checker.look("a dialog")
    window.button("Cancel", window.page.get_by_role("dialog")).click()
    window.learn()
    checker.look("a report")
    window.view("Teach")
    checker.look("lessons")
    window.view("Tasks")
    for box in window.page.get_by_role("checkbox").all()[:2]:
        box.check()
    expect(window.card_of(task)).to_be_visible()
    checker.look("tasks")
    window.link(task).click()
    expect(window.link(re.compile("All tasks"))).to_be_visible()
    checker.look("one task")
    window.view("Mesh")
    expect(window.text(re.compile("^Connected to 1 other agent"))).to_be_visible()
    checker.look("mesh")
    first = open_window(newcomer, reduced_motion="reduce", **look)
    of_first = Checker(first, axe)
    of_first.look("first visit")

    other = open_window(bob, reduced_motion="reduce", **look)
    of_other = Checker(other, axe)
    other.view("Mesh")
    expect(other.text(re.compile("^Connected to 1 other agent"))).to_be_visible()
    of_other.look("mesh, with a teacher to trust")
    other.open(bob.guest_url)
    of_other.look("a guest's page")
    for each in (checker, of_first, of_other):
        each.assert_nothing()


class TestTheKeyboardAlone:
    def test_teaches_and_asks(self, serve: Serve, open_window: Open, pictures: Pictures):
        window = open_window(serve("karl"))
        window.tab_to("Teach something now")
        window.press("Enter")
        window.tab_to("Name of the task")
        window.type("shapes")
        window.press("Enter")
        expect(window.page.get_by_role("heading", name="Teach ‘shapes’")).to_be_visible()
        images = pictures.to_teach("shapes", "star", "heart")
        window.tab_to("New class")
        for name in images:  # the focus returns to the field after each
            window.type(name)
            window.press("Enter")
            expect(window.card(f"Class {name}")).to_be_visible()
        window.tab_to("Add images to star", back=True)
        window.choose_files(lambda: window.press("Enter"), *images["star"])
        window.expect_images("star", len(images["star"]))
        window.tab_to("Add images to heart")
        window.choose_files(lambda: window.press("Space"), *images["heart"])
        window.expect_images("heart", len(images["heart"]))
        window.tab_to("Start learning")
        window.press("Enter")
        window.expect_learned()

        window.tab_to("Ask about a picture")
        window.press("Enter")
        window.tab_to("Choose images")
        star = pictures.to_ask("shapes", "star")[0]
        window.choose_files(lambda: window.press("Enter"), star)
        expect(window.card(star.name).get_by_role("paragraph").first).to_have_text("star")

    def test_corrects_an_answer_and_removes_a_picture(
        self, serve: Serve, adept: Core, open_window: Open, pictures: Pictures
    ):
        window = open_window(serve("lena", copy_of=adept))
        star = pictures.to_ask("shapes", "star")[0]
        (card,) = window.ask(star)
        window.tab_to("No, this is …")
        window.press("Enter")
        expect(card.get_by_label("No, this is")).to_be_focused()
        window.press("End")
        expect(card.get_by_label("No, this is")).to_have_value("\0new")
        window.tab_to("Name of the new class")
        window.type("sheriff")
        window.press("Enter")
        expect(card.get_by_text("Kept as ‘sheriff’.")).to_be_visible()
        window.tab_to(f"Remove {star.name}")
        window.press("Space")
        expect(card).to_have_count(0)
        assert window.page.evaluate("document.activeElement !== document.body"), "the focus is lost"

    def test_opens_a_dialog_that_keeps_the_focus_and_gives_it_back(self, alice: Served, open_window: Open):
        window = open_window(alice)
        window.view("Tasks")
        expect(window.page.get_by_role("heading", level=1)).to_be_focused()
        window.tab_to("Forget shapes")
        window.press("Enter")
        dialog = window.page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        for _ in range(6):
            window.press("Tab")
            assert window.page.evaluate(
                """() => document.activeElement === document.body  // the browser's own controls
                    || document.querySelector("dialog").contains(document.activeElement)"""
            )
        window.press("Escape")
        expect(dialog).to_have_count(0)
        expect(window.button("Forget shapes")).to_be_focused()

    def test_jumps_over_the_navigation_and_hears_the_name_of_each_view(self, alice: Served, open_window: Open):
        window = open_window(alice)
        window.tab_to("Skip to content")
        window.press("Enter")
        expect(window.page.get_by_role("main")).to_be_focused()
        for name in ("Teach", "Tasks", "Mesh"):
            window.view(name)
            expect(window.page.get_by_role("heading", level=1)).to_be_focused()
            expect(window.page).to_have_title(f"{name} – skillmesh")


def test_an_answer_is_announced_to_screen_readers(alice: Served, open_window: Open, pictures: Pictures):
    window = open_window(alice)
    star, needle = pictures.to_ask("shapes", "star")[0], pictures.to_ask("snowflakes", "simple star")[0]
    (card,) = window.ask(star)
    announced = window.page.get_by_role("status")
    expect(announced.filter(has_text=re.compile(rf"^{answer_of(card)}, \d+%\.$"))).to_be_attached()
    window.ask(needle)
    expect(announced.filter(has_text=re.compile("^(Unknown|Not sure|[a-z ]+, )"))).to_be_attached()
