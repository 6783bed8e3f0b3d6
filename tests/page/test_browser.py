"""The page as people use it: Debian's chromium on real agents, each a `skillmesh page` process of its own."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")
pytest.importorskip("zxingcpp")
pytest.importorskip("playwright")

from browsing import PHONE, Served, Window, answer_of
from meshes import eventually
from pictures import Pictures
from playwright.sync_api import expect

from skillmesh.core import Core
from skillmesh.mesh.shelf import Shelf

pytestmark = pytest.mark.long

Open = Callable[..., Window]
Serve = Callable[..., Served]
UNREACHABLE = "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE"
"""What chromium writes to the console while an agent is away."""
NO_TASK_YET = "409"
"""What it writes if a question is answered with the status 409."""


def mostly(label: str, labels: list[str]) -> bool:
    """Return whether most answers are this one: a drawn picture may be unclear."""
    return labels.count(label) > len(labels) / 2


@pytest.fixture(scope="module")
def alice(serve: Serve) -> Served:
    """Alice knows nothing at first; tests teach her tasks of their own."""
    return serve("alice")


@pytest.fixture(scope="module")
def carol(serve: Serve, adept: Core) -> Served:
    """Carol knows two shapes."""
    return serve("carol", copy_of=adept)


class TestFirstVisit:
    def test_has_two_ways_in_and_the_drawn_tasks_answer_their_samples(self, serve: Serve, open_window: Open):
        window = open_window(serve("newcomer"))
        expect(window.page.get_by_role("heading", name="Hello")).to_be_visible()
        window.button("Teach something now").click()
        expect(window.page.get_by_label("Name of the task")).to_be_visible()
        window.view("Ask")

        window.button("Look at the demo tasks").click()
        learning = window.page.get_by_role("region", name="Learning the demo tasks")
        expect(learning.get_by_role("progressbar", name="Learning flowers")).to_be_visible()
        samples = window.page.get_by_role("region", name="Try one of these").get_by_role("button")
        expect(samples.first).to_be_visible(timeout=240_000)
        expect(learning).to_be_hidden()
        window.button(re.compile("Ask about sample .* of dice")).first.click()
        card = window.page.get_by_role("article").first
        expect(card.get_by_text(re.compile("taught here|Fits no task"))).to_be_visible()
        assert window.agent.get("/agent")["demo"] == "ready"


class TestTeaching:
    def test_two_classes_of_files_make_a_task_that_answers(
        self, alice: Served, open_window: Open, pictures: Pictures
    ):
        window = open_window(alice)
        window.teach("shapes", pictures.to_teach("shapes", "star", "heart"))
        result = window.page.get_by_role("region", name="Result")
        expect(result.get_by_role("heading", level=2)).to_contain_text("right")
        for name in ("star", "heart"):
            expect(result.get_by_role("rowheader", name=name)).to_be_visible()
        for name in ("star", "heart"):
            assert mostly(name, window.labels(*pictures.to_ask("shapes", name)))

    def test_an_unknown_image_is_taught_and_then_known(self, carol: Served, open_window: Open, pictures: Pictures):
        unknown = pictures.to_ask("snowflakes", "needles")[0]
        window = open_window(carol)
        (card,) = window.ask(unknown)
        expect(card.get_by_text("Unknown", exact=True)).to_be_visible()
        window.button("Teach me", card).click()
        waiting = window.page.get_by_role("region", name="Waiting pictures")
        expect(waiting.get_by_role("img", name=unknown.name)).to_be_visible()

        window.begin("snow")
        for name, images in pictures.to_teach("snowflakes", "needles", "hexagonal plate").items():
            window.add_class(name)
            window.add_images(name, images)
        window.button("Put it here, into needles").click()
        window.expect_images("needles", len(images) + 1)
        expect(waiting).to_be_hidden()
        window.learn()
        window.link("Ask about a picture").click()
        window.button("Clear answers").click()
        assert mostly("needles", window.labels(*pictures.to_ask("snowflakes", "needles")))

    def test_a_correction_extends_the_task_and_counts_from_then_on(
        self, serve: Serve, adept: Core, open_window: Open, pictures: Pictures
    ):
        window = open_window(serve("dave", copy_of=adept))
        star, *others = pictures.to_ask("shapes", "star")
        (card,) = window.ask(star)
        assert answer_of(card) == "star"
        window.button("No, this is …", card).click()
        card.get_by_label("No, this is").select_option(label="Another class…")
        card.get_by_label("Name of the new class").fill("sheriff")
        window.button("Keep as lesson", card).click()
        expect(card.get_by_text("Kept as ‘sheriff’.")).to_be_visible()
        window.button("Extend the task now").click()
        eventually(lambda: window.agent.get("/tasks")["tasks"][0]["version"] == 2, 120, "the task is extended")

        window.page.reload()
        assert window.labels(star) == ["sheriff"]
        assert "Unknown" not in window.labels(*others)
        window.view("Tasks")
        expect(window.card_of("shapes").get_by_role("listitem").filter(has_text="sheriff")).to_be_visible()

    def test_a_dropped_folder_and_a_zip_are_sorted_into_classes(
        self, alice: Served, open_window: Open, pictures: Pictures, tmp_path: Path
    ):
        for name, images in pictures.to_teach("snowflakes", "needles", "simple star").items():
            (tmp_path / "snow" / name).mkdir(parents=True)
            for path in images:
                shutil.copy(path, tmp_path / "snow" / name)
        packed = Path(shutil.make_archive(str(tmp_path / "winter"), "zip", tmp_path / "snow"))
        window = open_window(alice, but="404.*/images")  # small pictures of the deleted lesson may be on the way
        window.view("Teach")
        window.page.get_by_label("Choose a folder of classes").set_input_files(tmp_path / "snow")
        expect(window.page.get_by_role("heading", name="Teach ‘snow’")).to_be_visible()
        for name in ("needles", "simple star"):
            window.expect_images(name, len(images))
        window.button("Delete this lesson").click()
        window.button("Delete", window.page.get_by_role("dialog")).click()

        expect(window.page.get_by_label("Choose a .zip")).to_be_attached()
        window.drop(window.text("Pictures already sorted?"), packed)
        expect(window.page.get_by_role("heading", name="Teach ‘winter’")).to_be_visible()
        for name in ("needles", "simple star"):
            window.expect_images(name, len(images))


class TestTheCamera:
    def test_answers_a_still_picture_and_several_times_a_second(self, carol: Served, open_window: Open):
        window = open_window(carol)
        window.button("Use the camera").click()
        camera = window.page.get_by_role("region", name="Camera")
        window.button("Take a picture", camera).click()
        photo = window.card("photo 1.jpg").get_by_role("paragraph").first
        expect(photo).not_to_have_text("Looking…")
        expect(photo).to_have_text(re.compile("Unknown|Not sure|star|heart"))

        live = window.button("Live", camera)
        before = len(asked(window))
        live.click()
        expect(live).to_have_attribute("aria-pressed", "true")
        window.until(lambda: len(asked(window)) > before + 3, "four live frames are asked about")
        expect(camera.get_by_text(re.compile("Unknown|Not sure|%")).first).to_be_visible()
        live.click()
        window.page.wait_for_timeout(500)
        after = len(asked(window))
        window.page.wait_for_timeout(1500)
        assert len(asked(window)) == after
        window.button("Close camera", camera).click()
        expect(camera).to_be_hidden()

    def test_records_a_class_while_its_button_or_the_space_bar_is_held(
        self, alice: Served, open_window: Open, pictures: Pictures
    ):
        window = open_window(alice)
        window.begin("what the camera sees")
        window.add_class("screen")
        window.add_class("paper")
        window.add_images("paper", pictures.to_teach("shapes", "star")["star"])
        window.button("Use the camera").click()
        record = window.button("Hold to record screen")
        expect(record).to_be_visible()
        record.hover()
        window.page.mouse.down()
        window.page.wait_for_timeout(2000)
        window.page.mouse.up()
        by_pointer = window.settled(lambda: window.number_of_images("screen"))
        assert 3 <= by_pointer <= 20
        record.focus()
        window.page.keyboard.down(" ")
        window.page.wait_for_timeout(2000)
        window.page.keyboard.up(" ")
        by_both = window.settled(lambda: window.number_of_images("screen"), above=by_pointer)
        assert by_both >= by_pointer + 3
        window.learn()

        window.view("Ask")
        window.button("Use the camera").click()
        window.button("Take a picture").click()
        expect(window.card("photo 1.jpg").get_by_role("paragraph").first).to_have_text("screen")


class TestSharing:
    def test_an_exported_file_is_imported_by_choosing_and_by_dropping_it(
        self, carol: Served, serve: Serve, open_window: Open, pictures: Pictures, tmp_path: Path
    ):
        window = open_window(carol)
        window.view("Tasks")
        with window.page.expect_download() as exporting:
            window.link("Export shapes").click()
        exporting.value.save_as(tmp_path / exporting.value.suggested_filename)
        file = tmp_path / "shapes.skill"

        other = open_window(serve("erin"))
        other.view("Tasks")
        other.page.get_by_label("Import .skill").set_input_files(file)
        expect(other.toast("‘shapes’ is imported.")).to_be_visible()
        assert mostly("heart", other.labels(*pictures.to_ask("shapes", "heart")))

        other.view("Tasks")
        other.button("Forget shapes").click()
        other.button("Forget", other.page.get_by_role("dialog")).click()
        expect(other.link("Export shapes")).to_have_count(0)
        other.drop(other.page.get_by_role("heading", name="Tasks"), file)
        expect(other.link("Export shapes")).to_be_visible()

    def test_a_task_taught_in_one_window_answers_in_the_other_without_a_reload(
        self, serve: Serve, open_window: Open, pictures: Pictures, mesh_number: int
    ):
        near, far = (open_window(serve(name, mesh=mesh_number)) for name in ("near", "far"))
        for window in (near, far):
            window.view("Mesh")
            expect(window.text(re.compile("^Connected to 1 other agent"))).to_be_visible()
            window.page.evaluate("window.notReloaded = true")
        far.view("Tasks")
        expect(far.text(re.compile("^No task yet"))).to_be_visible()

        near.teach("shapes", pictures.to_teach("shapes", "star", "heart"), sharing="Share now")
        expect(far.page.get_by_role("link", name="shapes", exact=True)).to_be_visible()
        expect(far.text(re.compile("^Received from near"))).to_be_visible()
        assert mostly("heart", far.labels(*pictures.to_ask("shapes", "heart")))
        far.view("Mesh")
        expect(far.text("1 task: 0 taught here, 1 received")).to_be_visible()
        assert far.page.evaluate("window.notReloaded")

    def test_a_module_in_quarantine_answers_once_it_is_released(
        self, serve: Serve, adept: Core, open_window: Open, pictures: Pictures
    ):
        frank = serve("frank")
        (module,) = adept.bank
        frank.end()
        held_by = Core(frank.home)
        Shelf(held_by.home, held_by.ledger).hold(
            module.id, adept.bank.file_of(module), "it answers strange images"
        )
        window = open_window(frank.start())
        window.view("Mesh")
        held = window.page.get_by_role("region", name="Quarantine")
        expect(held.get_by_text("It answers strange images")).to_be_visible()
        window.button("Release shapes", held).click()
        window.button("Release", window.page.get_by_role("dialog")).click()
        expect(held.get_by_text("Nothing is held back.")).to_be_visible()
        assert mostly("star", window.labels(*pictures.to_ask("shapes", "star")))

    def test_modules_of_a_teacher_who_is_no_longer_trusted_are_held_back(
        self, serve: Serve, skill_files: dict[str, Path], open_window: Open
    ):
        window = open_window(serve("grace"))
        window.view("Tasks")
        window.page.get_by_label("Import .skill").set_input_files(skill_files["shapes"])
        expect(window.link("Export shapes")).to_be_visible()
        teacher = window.agent.get("/tasks")["tasks"][0]["teacher_key"]

        window.view("Mesh")
        trust = window.page.get_by_role("region", name="Trust", exact=True)
        expect(trust.get_by_role("img", name=re.compile("QR code"))).to_be_visible()
        trust.get_by_label("Key", exact=True).fill(teacher.upper())
        trust.get_by_label("Name", exact=True).fill("Tina")
        window.button("Trust this teacher", trust).click()
        window.button("Stop trusting Tina", trust).click()
        window.button("Stop trusting", window.page.get_by_role("dialog")).click()
        held = window.page.get_by_role("region", name="Quarantine")
        expect(window.button("Release shapes", held)).to_be_visible()
        window.view("Tasks")
        expect(window.link("Export shapes")).to_have_count(0)


class TestAnAgentThatWasKilled:
    def test_is_found_again_without_a_reload(
        self, serve: Serve, adept: Core, open_window: Open, pictures: Pictures
    ):
        henry = serve("henry", copy_of=adept)
        window = open_window(henry, but=UNREACHABLE)
        window.begin("begun before")
        window.page.get_by_label("New class", exact=True).fill("half typed")
        window.page.evaluate("window.notReloaded = true")
        henry.end(signal.SIGKILL)
        lost = window.page.get_by_role("status").filter(has_text="Connection lost")
        expect(lost).to_be_visible()
        window.button("Add class").click()
        expect(window.toast("The agent cannot be reached")).to_be_visible()

        henry.start()
        expect(lost).to_be_hidden()
        assert window.page.get_by_label("New class", exact=True).input_value() == "half typed"
        window.button("Add class").click()
        expect(window.card("Class half typed")).to_be_visible()
        assert mostly("star", window.labels(*pictures.to_ask("shapes", "star")))
        assert window.page.evaluate("window.notReloaded")

    def test_goes_on_with_an_interrupted_lesson(self, serve: Serve, open_window: Open, pictures: Pictures):
        ida = serve("ida")
        window = open_window(ida, but=UNREACHABLE)
        window.begin("shapes")
        for name, images in pictures.to_teach("shapes", "star", "heart").items():
            window.add_class(name)
            window.add_images(name, images)
        window.button("Start learning").click()
        expect(window.page.get_by_role("region", name="Learning")).to_be_visible()
        ida.end(signal.SIGKILL)
        ida.start()
        expect(window.text(re.compile("Learning was interrupted"))).to_be_visible()
        window.learn()


class TestAPhone:
    def test_teaches_and_asks(self, alice: Served, open_window: Open, pictures: Pictures):
        window = open_window(alice, **PHONE)
        window.teach("small shapes", pictures.to_teach("shapes", "star", "heart"))
        window.assert_fits()
        assert mostly("star", window.labels(*pictures.to_ask("shapes", "star")))
        window.assert_fits()

    def test_has_every_view_without_scrolling_sideways(self, carol: Served, open_window: Open):
        window = open_window(carol, **PHONE)
        for name in ("Ask", "Teach", "Tasks", "Mesh"):
            window.view(name)
            expect(window.page.get_by_role("heading", level=1)).to_be_in_viewport()
            window.assert_fits()


def test_an_agent_without_tasks_says_so_and_offers_to_learn(serve: Serve, open_window: Open, pictures: Pictures):
    window = open_window(serve("jack"), but=NO_TASK_YET)
    window.begin("not yet")  # no longer the first visit
    (card,) = window.ask(pictures.to_ask("shapes", "star")[0])
    expect(card.get_by_text("No answer")).to_be_visible()
    expect(window.button("Teach me", card)).to_be_visible()


def asked(window: Window) -> list[str]:
    return [url for url in window.requests if url.endswith("/api/v1/ask")]
