"""Windows of Debian's chromium on the pages of real agents: `skillmesh page` processes, driven by Playwright."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from meshes import SKILLMESH, environment, eventually
from playwright.sync_api import Browser, BrowserContext, FileChooser, Locator, Page, expect, sync_playwright

from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.page.guard import Tokens
from skillmesh.store.home import create_home

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
)
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True, "device_scale_factor": 2}
MILLISECONDS = 60_000
"""How long a window waits for what should take a second or two: test machines are small and busy."""
NAME = """element => (
    element.getAttribute("aria-label") ?? (element.labels?.length ? element.labels[0] : element).textContent
).trim()"""
"""The accessible name of a control, as far as the page's own controls go."""
FOCUS = f"""() => {{
    const element = document.activeElement;
    const isSeen = part => part.getBoundingClientRect().width > 4;
    const isOutlined = part => isSeen(part) && getComputedStyle(part).outlineStyle !== "none";
    const isStop = element !== document.body && element.tabIndex >= 0;
    const parts = [element, ...(element.labels ?? []), element.closest("article, li") ?? element];
    return [isStop ? ({NAME})(element) : "", !isStop || parts.some(isOutlined)];
}}"""
"""The name of the control that has the focus, and whether that can be seen."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield a browser with a camera that shows a test picture, or skip the test."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=FLAGS, timeout=MILLISECONDS)
        expect.set_options(timeout=MILLISECONDS)
        yield browser
        browser.close()


@dataclass
class Served:
    """An agent whose page is served by a process of its own."""

    home: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def tokens(self) -> Tokens:
        return Tokens.of_home(self.home)

    @property
    def owner_url(self) -> str:
        return f"{self.url}/?token={self.tokens.owner}"

    @property
    def guest_url(self) -> str:
        return f"{self.url}/?token={self.tokens.guest}"

    def start(self) -> Served:
        words = [*SKILLMESH, "page", "--no-browser", "--port", str(self.port), "--home", str(self.home)]
        with (self.home / "page.log").open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env=environment())
        eventually(self._answers, why=f"the page of {self.home} is served")
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            pytest.fail(f"the page ended: {(self.home / 'page.log').read_text()[-2000:]}")
        try:
            return self.get("/agent") is not None
        except httpx.TransportError:
            return False

    def get(self, path: str) -> Any:
        """Return what the API says to the owner."""
        headers = {"Authorization": f"Bearer {self.tokens.owner}"}
        response = httpx.get(f"{self.url}/api/v1{path}", headers=headers, timeout=60, trust_env=False)
        return response.raise_for_status().json()

    def knows(self, task: str) -> bool:
        return any(known["task"] == task for known in self.get("/tasks")["tasks"])

    def end(self, number: int = signal.SIGTERM) -> None:
        """End the process: cleanly, or with SIGKILL."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)
            self.process = None


@contextmanager
def served(folder: Path, name: str, mesh: int, copy_of: Core | None = None) -> Iterator[Served]:
    """Serve the page of a new agent, or of a copy of one; agents of the same mesh find each other."""
    agent = Served(folder, _free_port())
    if copy_of is None:
        create_home(folder, name=name)
    else:
        shutil.copytree(copy_of.home, folder, dirs_exist_ok=True)
    settings = {"network": "machine", "discovery_port": mesh, "trust": "open", "sync_seconds": 1.0}
    MeshSettings.of(settings).save(folder)
    try:
        yield agent.start()
    finally:
        agent.end()


def _free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return int(line.getsockname()[1])


@dataclass
class Window:
    """A browser window on an agent's page, and everything that went wrong in it."""

    page: Page
    agent: Served
    requests: list[str] = field(default_factory=list)
    """Addresses of all requests."""
    refusals: list[str] = field(default_factory=list)
    """Requests that were answered with 401 or 403."""
    errors: list[str] = field(default_factory=list)
    """Errors in the console, among them violations of the content security policy."""
    dialogs: list[str] = field(default_factory=list)
    """What `alert` and its kind said; the page never calls them."""

    def __post_init__(self) -> None:
        page = self.page
        page.set_default_timeout(MILLISECONDS)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("response", lambda r: r.status in (401, 403) and self.refusals.append(f"{r.status} {r.url}"))
        page.on("console", lambda m: m.type == "error" and self.errors.append(f"{m.text} {m.location['url']}"))
        page.on("pageerror", lambda error: self.errors.append(error.stack or str(error)))
        page.on("dialog", self._on_dialog)
        page.on("filechooser", lambda _: None)  # else Playwright takes them over too late for a fast keyboard

    def _on_dialog(self, dialog: Any) -> None:
        if dialog.type != "beforeunload":
            self.dialogs.append(dialog.message)
        dialog.dismiss()

    def assert_clean(self, but: str | None = None) -> None:
        """Assert that nothing went wrong, but for errors that match a pattern, and that all stayed at home."""
        own = (f"{self.agent.url}/", "blob:", "data:")
        unexpected = [error for error in self.errors if but is None or not re.search(but, error)]
        wrong = {
            "requests to others": [url for url in self.requests if not url.startswith(own)],
            "dialogs": self.dialogs,
            "errors": unexpected,
        }
        assert not any(wrong.values()), wrong

    # What a person does.

    def open(self, url: str | None = None) -> Window:
        self.page.goto(url or self.agent.owner_url)
        expect(self.page.get_by_role("heading", level=1)).to_be_visible()
        return self

    def view(self, name: str) -> None:
        """Choose a view."""
        self.link(name, inside=self.page.get_by_role("navigation")).click()

    def button(self, name: str | re.Pattern[str], inside: Locator | None = None) -> Locator:
        return (inside or self.page).get_by_role("button", name=name, exact=isinstance(name, str))

    def link(self, name: str | re.Pattern[str], inside: Locator | None = None) -> Locator:
        return (inside or self.page).get_by_role("link", name=name, exact=isinstance(name, str))

    def text(self, words: str | re.Pattern[str]) -> Locator:
        return self.page.get_by_text(words, exact=isinstance(words, str))

    def card(self, name: str) -> Locator:
        """Return the part of this name: an answer, a class, a task."""
        return self.page.get_by_role("article", name=name, exact=True)

    def card_of(self, task: str) -> Locator:
        """Return the card of a task."""
        return self.page.get_by_role("article").filter(has=self.page.get_by_role("link", name=task, exact=True))

    def toast(self, words: str | re.Pattern[str]) -> Locator:
        return self.page.locator("#toasts").get_by_text(words)

    def begin(self, task: str) -> None:
        """Begin a lesson."""
        self.view("Teach")
        self.page.get_by_label("Name of the task").fill(task)
        self.button("Begin").click()
        expect(self.page.get_by_role("heading", name=f"Teach ‘{task}’")).to_be_visible()

    def add_class(self, name: str) -> Locator:
        self.page.get_by_label("New class", exact=True).fill(name)
        self.button("Add class").click()
        expect(self.card(f"Class {name}")).to_be_visible()
        return self.card(f"Class {name}")

    def add_images(self, name: str, images: Sequence[Path], all_in_all: int | None = None) -> None:
        """Choose images of a class, and wait until they have arrived."""
        self.page.get_by_label(f"Add images to {name}", exact=True).set_input_files(images)
        self.expect_images(name, all_in_all or len(images))

    def expect_images(self, name: str, number: int) -> None:
        words = "1 picture" if number == 1 else f"{number} pictures"
        expect(self.card(f"Class {name}").get_by_text(words, exact=True)).to_be_visible()

    def number_of_images(self, name: str) -> int:
        words = self.card(f"Class {name}").get_by_text(re.compile(r"^\d+ pictures?$")).inner_text()
        return int(words.split()[0])

    def until(self, what: Callable[[], Any], why: str = "") -> Any:
        """Wait until something is true, while the window lives on."""
        deadline = time.monotonic() + MILLISECONDS / 1000
        while not (value := what()):
            if time.monotonic() > deadline:
                pytest.fail(f"not within {MILLISECONDS / 1000:.0f} s: {why}")
            self.page.wait_for_timeout(100)
        return value

    def settled(self, count: Callable[[], int], above: int = 0) -> int:
        """Return a number once it is larger than `above` and has not changed for two seconds."""
        before = self.until(lambda: max(0, count() - above), "something arrives") + above
        while True:
            self.page.wait_for_timeout(2000)
            now = count()
            if now == before:
                return now
            before = now

    def assert_fits(self) -> None:
        """Assert that nothing is wider than the window."""
        wider = self.page.evaluate(
            """() => [...document.querySelectorAll("body *")].filter(element => {
                const box = element.getBoundingClientRect();
                const clipped = element.closest(".scroll, .unseen, [hidden]");
                return !clipped && box.width && (box.right > innerWidth + 1 || box.left < -1);
            }).map(element => element.outerHTML.slice(0, 200))"""
        )
        assert wider == []
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    def learn(self, sharing: str = "Decide later") -> None:
        """Start the open lesson, and wait for its report."""
        self.page.get_by_role("radio", name=re.compile(sharing)).check()
        self.button("Start learning").click()
        self.expect_learned()

    def expect_learned(self) -> None:
        expect(
            self.page.get_by_role("region", name="Result").get_by_text(re.compile("^Learned in"))
        ).to_be_visible()

    def teach(self, task: str, images: Mapping[str, Sequence[Path]], sharing: str = "Decide later") -> None:
        self.begin(task)
        for name, files in images.items():
            self.add_class(name)
            self.add_images(name, files)
        self.learn(sharing)

    def ask(self, *images: Path) -> list[Locator]:
        """Ask about images, and wait for the answers."""
        self.view("Ask")
        self.page.get_by_label("Choose images").set_input_files(images)
        cards = [self.card(path.name).first for path in images]
        for card in cards:
            expect(card.get_by_text("Looking…")).to_have_count(0)
        return cards

    def labels(self, *images: Path) -> list[str]:
        """Return the answers as the page shows them in large letters."""
        return [answer_of(card) for card in self.ask(*images)]

    def choose_files(self, click: Any, *files: Path) -> None:
        """Act so that the window asks for files, and choose some."""
        with self.page.expect_file_chooser() as asked:
            click()
        chooser: FileChooser = asked.value
        chooser.set_files(files)

    def drop(self, on: Locator, *files: Path) -> None:
        """Drop files as a file manager does."""
        content = [[path.name, list(path.read_bytes())] for path in files]
        transfer = self.page.evaluate_handle(
            """files => {
                const transfer = new DataTransfer();
                for (const [name, bytes] of files) transfer.items.add(new File([new Uint8Array(bytes)], name));
                return transfer;
            }""",
            content,
        )
        for event in ("dragenter", "dragover", "drop"):
            on.dispatch_event(event, {"dataTransfer": transfer})

    # With the keyboard.

    def tab_to(self, name: str, most: int = 80, back: bool = False) -> None:
        """Press Tab until the control of this name has the focus, which must be visible at every stop."""
        passed = []
        for _ in range(most):
            self.page.keyboard.press("Shift+Tab" if back else "Tab")
            here, visible = self.page.evaluate(FOCUS)
            assert visible, f"the focus on {here!r} cannot be seen"
            if here == name:
                return
            passed.append(here)
        pytest.fail(f"Tab does not reach {name!r}; it reaches {passed}")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def type(self, text: str) -> None:
        self.page.keyboard.type(text)


def answer_of(card: Locator) -> str:
    return card.get_by_role("paragraph").first.inner_text()


@contextmanager
def window(browser: Browser, agent: Served, **options: Any) -> Iterator[Window]:
    """Yield a window, not opened yet; with `but`, errors in its console that match are expected."""
    but = options.pop("but", None)
    context: BrowserContext = browser.new_context(locale="en-GB", **options)
    opened = Window(context.new_page(), agent)
    try:
        yield opened
        opened.assert_clean(but)
    finally:
        with suppress(Exception):  # a browser that crashed has no contexts; the failure of the test says more
            context.close()
