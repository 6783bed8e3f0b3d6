"""What the page never does: call other hosts, run what strangers wrote, or offer guests what they may not do."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")
pytest.importorskip("zxingcpp")
pytest.importorskip("playwright")

from browsing import NAME, Served, Window
from meshes import eventually
from pictures import Pictures
from playwright.sync_api import expect

from skillmesh.core import Core
from skillmesh.data.datasets import task_of
from skillmesh.mesh.shelf import Shelf

pytestmark = pytest.mark.long

Open = Callable[..., Window]
Serve = Callable[..., Served]
VIEWS = ("Ask", "Teach", "Tasks", "Mesh")
HOSTILE_TASK = "<img src=x onerror=window.hacked=1>"
HOSTILE_CLASSES = ("<script>alert(1)</script>", "\"><svg onload=alert(2)> 'javascript:alert(3)")
HOSTILE_TEACHER = "<b onmouseover=alert(4)>eve</b>"
FOR_GUESTS = {
    "Skip to content",
    "skillmesh",
    "Ask",
    "Tasks",
    "Mesh",
    "Choose images",
    "Use the camera",
    "Clear answers",
    "Search tasks",
    "shapes",
    "All tasks",
}
"""Links and controls that a guest's page may have, besides those that remove a picture."""


@pytest.fixture(scope="module")
def alice(serve: Serve, adept: Core) -> Served:
    return serve("alice", copy_of=adept)


@pytest.fixture(scope="module")
def eve(serve: Serve, new_agent: Callable[..., Core], pictures: Pictures, mesh_number: int) -> tuple[Served, Core]:
    """Return an agent whose name, task and classes are scripts, and which shares that task."""
    forger = new_agent(HOSTILE_TEACHER)
    images = pictures.to_teach("shapes", "star", "heart")
    pairs = [(path, name) for name, files in zip(HOSTILE_CLASSES, images.values(), strict=True) for path in files]
    with task_of([path for path, _ in pairs], [name for _, name in pairs], name=HOSTILE_TASK) as task:
        forger.learn(task)
    eve = serve("eve", copy_of=forger, mesh=mesh_number)
    eventually(lambda: eve.knows(HOSTILE_TASK))
    return eve, forger


class TestAForeignHost:
    def test_is_never_called_and_nothing_breaks_the_security_policy(
        self, serve: Serve, adept: Core, open_window: Open, pictures: Pictures
    ):
        """A session through every view; each window of these tests is checked in the same way at its end."""
        window = open_window(serve("mallory", copy_of=adept))
        violations = (
            "addEventListener('securitypolicyviolation', e => (window.violations ??= []).push(e.blockedURI))"
        )
        window.page.add_init_script(violations)
        window.open()
        window.ask(*pictures.to_ask("shapes", "star"))
        window.button("Use the camera").click()
        window.button("Take a picture").click()
        expect(window.card("photo 1.jpg")).to_be_visible()
        window.teach("snow", pictures.to_teach("snowflakes", "needles", "hexagonal plate"))
        window.view("Tasks")
        window.link("snow").click()
        expect(window.link(re.compile("All tasks"))).to_be_visible()
        window.view("Mesh")
        expect(window.page.get_by_role("img", name=re.compile("QR code"))).to_be_visible()
        assert window.page.evaluate("window.violations ?? []") == []
        assert len(window.requests) > 40
        window.assert_clean()

    def test_could_not_be_called_by_a_script_either(self, alice: Served, open_window: Open):
        window = open_window(alice, but="Content Security Policy|violates|Refused")
        outcome = window.page.evaluate(
            "fetch('http://127.0.0.2:1/').then(() => 'sent', error => `refused: ${error.message}`)"
        )
        assert outcome.startswith("refused")
        assert any("Content Security Policy" in error for error in window.errors)


class TestNamesOfStrangers:
    def test_are_shown_as_text_by_the_agent_that_received_them(
        self, eve: tuple[Served, Core], serve: Serve, open_window: Open, pictures: Pictures, mesh_number: int
    ):
        window = open_window(serve("frank", mesh=mesh_number))
        window.view("Tasks")
        expect(window.link(HOSTILE_TASK)).to_be_visible()
        for name in HOSTILE_CLASSES:
            expect(window.page.get_by_role("listitem").filter(has_text=name)).to_be_visible()
        window.link(HOSTILE_TASK).click()
        expect(window.page.get_by_role("heading", level=1)).to_have_text(HOSTILE_TASK)
        (card,) = window.ask(pictures.to_ask("shapes", "star")[0])
        expect(card.get_by_text(HOSTILE_CLASSES[0], exact=True)).to_be_visible()
        expect(card.get_by_text(HOSTILE_TASK, exact=True)).to_be_visible()
        window.view("Mesh")
        expect(window.page.get_by_role("article").filter(has_text=HOSTILE_TEACHER)).to_be_visible()
        assert not window.page.evaluate("window.hacked")
        assert (
            window.page.evaluate("document.querySelectorAll('main script, main [onerror], main [onload]').length")
            == 0
        )

    def test_are_shown_as_text_where_they_are_taught_corrected_and_learned(
        self, eve: tuple[Served, Core], open_window: Open, pictures: Pictures
    ):
        window = open_window(eve[0])
        (card,) = window.ask(pictures.to_ask("shapes", "star")[0])
        window.button("No, this is …", card).click()
        expect(card.get_by_role("option", name=HOSTILE_CLASSES[1])).to_be_attached()
        window.button("Keep as lesson", card).click()
        expect(window.text(re.compile("1 correction waits for ‘<img")).first).to_be_visible()
        task = HOSTILE_TASK + "2"
        window.begin(task)
        for name, images in zip(
            HOSTILE_CLASSES, pictures.to_teach("shapes", "star", "heart").values(), strict=True
        ):
            window.add_class(name)
            window.add_images(name, images)
        window.learn()
        result = window.page.get_by_role("region", name="Result")
        expect(result.get_by_role("rowheader", name=HOSTILE_CLASSES[0])).to_be_visible()
        window.view("Teach")
        expect(window.link(task)).to_be_visible()
        assert not window.page.evaluate("window.hacked")

    def test_are_shown_as_text_in_quarantine(self, eve: tuple[Served, Core], serve: Serve, open_window: Open):
        grace = serve("grace")
        grace.end()
        agent, forger = Core(grace.home), eve[1]
        (module,) = forger.bank
        Shelf(agent.home, agent.ledger).hold(module.id, forger.bank.file_of(module), f"it says {HOSTILE_TASK}")
        window = open_window(grace.start())
        window.view("Mesh")
        held = window.page.get_by_role("region", name="Quarantine")
        expect(held.get_by_role("heading", name=HOSTILE_TASK)).to_be_visible()
        window.button(f"Release {HOSTILE_TASK}", held).click()
        dialog = window.page.get_by_role("dialog")
        expect(dialog.get_by_role("heading")).to_contain_text(HOSTILE_TASK)
        window.button("Release", dialog).click()
        expect(window.toast(HOSTILE_TASK)).to_be_visible()
        assert not window.page.evaluate("window.hacked")


class TestAGuest:
    def test_has_no_control_that_guests_may_not_use(self, alice: Served, open_window: Open, pictures: Pictures):
        window = open_window(alice, alice.guest_url)
        found = controls(window)
        (star,) = window.ask(pictures.to_ask("shapes", "star")[0])
        expect(star.get_by_text("star", exact=True)).to_be_visible()
        window.ask(pictures.to_ask("snowflakes", "needles")[0])
        found |= controls(window)
        window.view("Tasks")
        expect(window.link("shapes")).to_be_visible()
        found |= controls(window)
        window.link("shapes").click()
        expect(window.link(re.compile("All tasks"))).to_be_visible()
        found |= controls(window)
        window.view("Mesh")
        expect(window.page.get_by_role("region", name="State of the mesh")).to_be_visible()
        found |= controls(window)
        assert {name for name in found if not name.startswith("Remove ")} <= FOR_GUESTS
        assert window.refusals == []

    def test_cannot_open_the_view_teach_by_its_address(self, alice: Served, open_window: Open):
        window = open_window(alice, alice.guest_url)
        window.page.goto(f"{alice.url}/#/teach")
        expect(window.page.get_by_label("Choose images")).to_be_attached()
        expect(window.page.get_by_label("Name of the task")).to_have_count(0)
        assert window.refusals == []

    def test_does_not_see_the_first_visit(self, serve: Serve, open_window: Open):
        newcomer = serve("newcomer")
        window = open_window(newcomer, newcomer.guest_url)
        assert controls(window) <= FOR_GUESTS


def test_a_browser_that_lost_its_cookie_is_told_what_to_open(alice: Served, open_window: Open, pictures: Pictures):
    window = open_window(alice, but="401")
    star, heart = pictures.to_ask("shapes", "star", "heart")[::4]
    window.ask(star)
    window.page.context.clear_cookies()
    window.page.get_by_label("Choose images").set_input_files(heart)
    expect(window.page.get_by_role("heading", name="Open the address that skillmesh printed")).to_be_visible()
    window.page.reload()
    expect(window.text(re.compile("Open the address that skillmesh printed"))).to_be_visible()


def controls(window: Window) -> set[str]:
    """Return the names of all links and controls that can be seen."""
    found = window.page.locator("a, button, label:has(input), input, select, textarea, summary").all()
    return {str(control.evaluate(NAME)) for control in found if control.is_visible()}
