"""Measure the page's HTTP API against the agent in a process of its own, and the page in a browser.

    python benchmarks/page.py [--work DIR] [--json docs/results/page.json]

A real node serves the page. (1) One photo of 12 megapixels, through HTTP and through `agent.predict`, in turn.
(2) Eight clients at once, against one batch in process. (3) Answers at rest, and while a lesson is learned and
fifty modules arrive from another node. (4) Until the page can be used in a browser, if Playwright and chromium are
there. No descriptor comes from a cache: each image is sent with other bytes at its end.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from mesh_answers import carrier
from nodes import fresh_copies, taught_homes
from reduced import drawn
from rich.console import Console
from rich.table import Table

from skillmesh.agent import Agent
from skillmesh.common.config import MeshSettings
from skillmesh.data.demo import write_demo_tasks
from skillmesh.evaluation.provenance import provenance
from skillmesh.mesh.calling import call
from skillmesh.mesh.process import NodeProcess, free_port, stop_all
from skillmesh.page.guard import Tokens

STATIC = Path(__file__).parents[1] / "src" / "skillmesh" / "page" / "static"
CLIENTS, ROUNDS, TEACHERS = 8, 30, 25
EACH = 25
"""Number of images that each of the clients asks about."""
REST = 20.0
"""Seconds for which answers at rest are timed."""
CHROMIUM = "/usr/bin/chromium"
TARGETS = {
    "one_photo": ("≤", 1.2),
    "clients": ("≥", 0.8),
    "p99": ("≤", 2.0),
    "usable_seconds": ("≤", 1.0),
    "assets_kb": ("≤", 200.0),
}


class Client:
    """One connection that is kept open; it asks about one image after the other."""

    def __init__(self, port: int, token: str) -> None:
        self._line = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "image/jpeg"}

    def ask(self, image: bytes) -> dict[str, Any]:
        answer: dict[str, Any] = self.send("POST", "/api/v1/ask", image)["answers"][0]
        return answer

    def send(self, method: str, path: str, body: bytes | None = None, kind: str | None = None) -> Any:
        headers = self._headers | ({"Content-Type": kind} if kind else {})
        self._line.request(method, path, body, headers)
        reply = self._line.getresponse()
        content = reply.read()
        if reply.status >= 400:
            raise SystemExit(f"{method} {path}: {reply.status} {content[:300]!r}")
        return json.loads(content or b"null")


def never_described(contents: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the images again and again, each time with other bytes after the end of the image."""
    for number in count():
        yield contents[number % len(contents)] + number.to_bytes(4, "little")


def as_jpeg(quality: int = 85) -> list[bytes]:
    """Return photos of 12 megapixels."""
    contents = []
    for photo in drawn(6):
        content = BytesIO()
        photo.save(content, "JPEG", quality=quality)
        contents.append(content.getvalue())
    return contents


def one_photo(client: Client, agent: Agent) -> dict[str, float]:
    """Return the milliseconds of an answer through HTTP and in process, taken in turns."""
    photos = never_described(as_jpeg())
    ways: tuple[Callable[[bytes], Any], ...] = (client.ask, agent.predict)
    for way in ways:
        way(next(photos))
    times = [[timed(way, next(photos)) for way in ways] for _ in range(ROUNDS)]
    over_http, in_process = (1000 * median(column) for column in zip(*times, strict=True))
    return {"http_ms": over_http, "in_process_ms": in_process, "ratio": over_http / in_process}


def together(clients: Sequence[Client], agent: Agent, images: Iterator[bytes]) -> dict[str, float]:
    """Return images per second of clients that ask at the same time, and of one batch in process."""
    found = []
    for _ in range(3):
        batch = [next(images) for _ in range(EACH * len(clients))]
        in_process = len(batch) / timed(agent.predict, batch)
        shares = [[next(images) for _ in range(EACH)] for _ in clients]
        asking = [
            threading.Thread(target=lambda c=c, s=s: [c.ask(image) for image in s])
            for c, s in zip(clients, shares, strict=True)
        ]
        began = time.perf_counter()
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        found.append((len(batch) / (time.perf_counter() - began), in_process))
    over_http, in_process = (median(column) for column in zip(*found, strict=True))
    return {
        "http_images_per_second": over_http,
        "in_process_images_per_second": in_process,
        "ratio": over_http / in_process,
    }


def busy(client: Client, images: Iterator[bytes], lesson: Path, giver: NodeProcess, home: Path) -> dict[str, Any]:
    """Return the 99th percentile of answers at rest, and while a lesson is learned and modules arrive."""
    at_rest = asked_while(client, images, time_is_over(REST))
    wanted = call(home, "status")["in_use"] + 2 * TEACHERS
    teacher = Client(client._line.port, client._headers["Authorization"].removeprefix("Bearer "))
    id_ = teacher.send(
        "POST", "/api/v1/lessons", json.dumps({"task": "while asked"}).encode(), "application/json"
    )["id"]
    zipped = shutil.make_archive(str(home.parent / "lesson"), "zip", lesson)
    teacher.send("POST", f"/api/v1/lessons/{id_}/archive", Path(zipped).read_bytes(), "application/octet-stream")
    teacher.send("POST", f"/api/v1/lessons/{id_}/start", b'{"sharing": "never"}', "application/json")
    giver.start("--trust", "open")

    def done() -> bool:
        state = teacher.send("GET", f"/api/v1/lessons/{id_}")["state"]
        if state not in ("waiting", "learning", "done"):
            raise SystemExit(f"the lesson is {state}")
        return state == "done" and bool(call(home, "status")["in_use"] > wanted)

    while_busy = asked_while(client, images, done)
    return {"at_rest": at_rest, "busy": while_busy, "ratio": while_busy["p99_ms"] / at_rest["p99_ms"]}


def asked_while(client: Client, images: Iterator[bytes], over: Callable[[], bool]) -> dict[str, Any]:
    """Ask about one image after the other until `over`, which is looked at about once a second."""
    times, looked = [], time.monotonic()
    began = looked
    while time.monotonic() - looked < 1 or not over():
        looked = time.monotonic() if time.monotonic() - looked >= 1 else looked
        times.append(1000 * timed(client.ask, next(images)))
        if time.monotonic() - began > 600:
            raise SystemExit("the work beside the answers takes more than ten minutes")
    middle, late = np.percentile(times, [50, 99])
    return {"answers": len(times), "median_ms": float(middle), "p99_ms": float(late), "slowest_ms": max(times)}


def time_is_over(seconds: float) -> Callable[[], bool]:
    ends = time.monotonic() + seconds
    return lambda: time.monotonic() > ends


def usable(url: str) -> float | None:
    """Return the seconds until the page can be used in a browser that is open already; None without one."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if not Path(CHROMIUM).exists():
        return None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        times = []
        for _ in range(5):
            page = browser.new_context().new_page()
            began = time.perf_counter()
            page.goto(url)
            page.get_by_role("button", name="Choose").first.wait_for(state="visible")
            times.append(time.perf_counter() - began)
            page.context.close()
        browser.close()
    return median(times)


def timed(work: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "skillmesh-bench")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    origin = provenance("python benchmarks/page.py", [], 0)
    homes = taught_homes(options.work, TEACHERS + 1)
    giver = NodeProcess(carrier(homes[:-1], options.work / "run" / "carrier"))
    home = fresh_copies(homes[-1:], options.work / "run" / "page")[0]
    beside = fresh_copies(homes[-1:], options.work / "run" / "beside")[0]
    discovery = free_port()
    for each in (home, giver.home):
        MeshSettings.of({"trust": "open", "discovery_port": discovery, "sync_seconds": 2.0}).save(each)
    lesson = write_demo_tasks(options.work / "lesson", names=["shapes"], train=60, val=10, test=1, seed=7)[0]
    images = never_described(
        [path.read_bytes() for path in sorted((options.work / "tasks").rglob("train/*/*.jpg"))]
    )
    os.environ["SKILLMESH_CACHE"] = str(options.work / "empty-cache")
    shutil.rmtree(options.work / "empty-cache", ignore_errors=True)
    node, port = NodeProcess(home), free_port()
    node.start("--page", "--port", str(port))
    tokens = Tokens.of_home(home)
    try:
        until(lambda: call(home, "status") is not None)
        clients = [Client(port, tokens.owner) for _ in range(CLIENTS)]
        until(lambda: clients[0].ask(next(images)) is not None)
        with Agent(beside) as agent:
            report: dict[str, Any] = {"one_photo": one_photo(clients[0], agent)}
            print("measured: one photo", file=sys.stderr)
            report["clients"] = together(clients, agent, images)
            print("measured: clients together", file=sys.stderr)
        report["usable_seconds"] = usable(f"http://127.0.0.1:{port}/?token={tokens.owner}")
        report["p99"] = busy(clients[0], images, lesson, giver, home)
    finally:
        stop_all([node, giver], grace=20)
    report["assets_kb"] = sum(file.stat().st_size for file in STATIC.iterdir()) / 1000
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report | {"provenance": origin}, indent=1) + "\n")


def until(check: Callable[[], bool], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while True:
        try:
            if check():
                return
        except (OSError, ValueError) as error:
            if time.monotonic() > ends:
                raise SystemExit(f"the node does not answer: {error}") from error
        time.sleep(0.2)


def show(report: dict[str, Any]) -> None:
    table = Table("what", "figures", "result", "target", "met", box=None)
    for name, (sign, limit) in TARGETS.items():
        found = report[name]
        value = found["ratio"] if isinstance(found, dict) else found
        figures = (
            ", ".join(f"{k} {v:.4g}" for k, v in found.items() if k != "ratio" and isinstance(v, float))
            if isinstance(found, dict)
            else ""
        )
        if isinstance(found, dict) and "at_rest" in found:
            figures = ", ".join(
                f"{when}: p99 {found[when]['p99_ms']:.1f} ms of {found[when]['answers']}"
                for when in ("at_rest", "busy")
            )
        met = value is not None and (value <= limit if sign == "≤" else value >= limit)
        table.add_row(
            name, figures, "–" if value is None else f"{value:.3g}", f"{sign} {limit:g}", "yes" if met else "no"
        )
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
