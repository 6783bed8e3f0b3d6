"""What the page refuses: strangers, guests, pages of other sites, bodies that are too large, and hostile files.

Every request here is really sent; where memory is measured, the server is a process of its own.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import re
import shutil
import socket
import ssl
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")
pytest.importorskip("zxingcpp")
pytest.importorskip("httpx")

import httpx
from meshes import SKILLMESH, environment, eventually, free_port
from pages import BASE, PROBLEM, Visited, done, drafted, ended, form, images_of, refused, started, visited, zipped
from running import PLAIN, Ran, failed

from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.errors import AgentError
from skillmesh.mesh.certs import CA, CERTIFICATE, KEY, create_ca, issue
from skillmesh.page.guard import CONTENT_SECURITY_POLICY, HEADERS, Tokens
from skillmesh.page.server import Address
from skillmesh.page.watch import MOST_STREAMS
from skillmesh.store.home import TOKENS

SCRIPT = "<img src=x onerror=alert(1)>"
"""A script in a form that a task's name may have: it has no slash."""
MEGABYTE = 10**6
ENDLESS = f"{BASE}/events"


@pytest.fixture(scope="module")
def agent(new_agent: Callable[..., Core], skill_files: dict[str, Path]) -> Iterator[Visited]:
    """Yield an agent that knows two tasks. Tests undo what they change."""
    core = new_agent("alice")
    for name in ("dice", "latin"):
        core.import_file(skill_files[name])
    with visited(core) as alice:
        yield alice


@pytest.fixture(scope="module")
def routes(agent: Visited) -> list[tuple[str, str]]:
    """Return the method and the path of everything in the API's description."""
    paths = done(agent.owner.get(f"{agent.page.url}/openapi.json"))["paths"]
    found = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    assert len(found) > 40
    return [(method, re.sub(r"{[^}]+}", "f" * 64, path)) for method, path in found]


def raw(agent: Visited, request: bytes, seconds: float = 20) -> http.client.HTTPResponse:
    """Send these bytes, and return the answer with its body read."""
    with socket.create_connection(place(agent), seconds) as line:
        line.sendall(request)
        return answer_on(line, request.partition(b" ")[0].decode())


def answer_on(line: socket.socket, method: str = "GET") -> http.client.HTTPResponse:
    response = http.client.HTTPResponse(line, method=method)
    response.begin()
    response.text = response.read()  # type: ignore[attr-defined]
    return response


def place(agent: Visited) -> tuple[str, int]:
    url = httpx.URL(agent.page.url)
    assert url.port is not None
    return url.host, url.port


def head(agent: Visited, method: str, path: str, **headers: object) -> bytes:
    """Return the beginning of a request of the owner; `_` in a header's name stands for `-`."""
    usual = {"Host": "127.0.0.1", "Authorization": f"Bearer {agent.page.tokens.owner}"}
    named = usual | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{n}: {v}" for n, v in named.items() if v is not None)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def cookie_of(agent: Visited, token: str) -> str:
    """Return the cookie that a browser gets for a token."""
    entered = agent.stranger.get(f"{agent.page.url}/", params={"token": token})
    agent.stranger.cookies.clear()
    return entered.headers["set-cookie"].partition(";")[0]


@pytest.mark.long
class TestStrangers:
    def test_get_nothing_without_a_valid_token(self, agent: Visited, routes: list[tuple[str, str]]):
        tokens = agent.page.tokens
        wrong = [
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer"},
            {"Authorization": f"Bearer {tokens.owner}{tokens.guest}"},
            {"Authorization": f"Bearer {tokens.owner.swapcase()}"},
            {"Authorization": "Basic " + base64.b64encode(f"owner:{tokens.owner}".encode()).decode()},
            {"Authorization": tokens.owner},
            {"Cookie": f"skillmesh-{'0' * 12}={tokens.owner}"},
            {"Cookie": f"token={tokens.owner}"},
        ]
        for headers in wrong:
            for method, path in [*routes, ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/static/a/b.js")]:
                answer = agent.stranger.request(method, agent.page.url + path, headers=headers)
                refused(answer, 401, "token")
                assert answer.headers["www-authenticate"] == "Bearer"

    def test_cannot_put_the_token_into_any_other_address(self, agent: Visited, routes: list[tuple[str, str]]):
        token = agent.page.tokens.owner
        for method, path in [*routes, ("GET", "/docs"), ("POST", "/"), ("PUT", "/")]:
            answer = agent.stranger.request(method, agent.page.url + path, params={"token": token})
            assert answer.status_code == 401
            assert "set-cookie" not in answer.headers
        elsewhere = agent.stranger.get(
            f"{agent.page.url}/", headers={"X-Token": token, "Referer": f"/?token={token}"}
        )
        assert elsewhere.status_code == 401

    def test_are_told_by_the_page_how_to_enter(self, agent: Visited):
        for path, words in (
            ("/", "ends with a token"),
            ("/?token=wrong", "not valid any more"),
            ("/?token=", "valid"),
        ):
            answer = agent.stranger.get(agent.page.url + path)
            assert (answer.status_code, answer.headers["content-type"]) == (401, "text/plain; charset=utf-8")
            assert words in answer.text
            assert "set-cookie" not in answer.headers

    def test_learn_nothing_of_which_tasks_exist(self, agent: Visited):
        ids = [agent.core.bank.find("dice").id, "f" * 64]
        there, absent = (agent.stranger.get(f"/tasks/{module_id}") for module_id in ids)
        assert there.content == absent.content


@pytest.mark.long
class TestTheCookie:
    @pytest.mark.parametrize("role", ["owner", "guest"])
    def test_is_exchanged_for_the_token_and_no_script_can_read_it(self, agent: Visited, role: str):
        token = getattr(agent.page.tokens, role)
        entered = httpx.get(getattr(agent.page, f"{role}_url"), trust_env=False)
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        value, *attributes = entered.headers["set-cookie"].split("; ")
        assert value == f"skillmesh-{agent.core.identity.public_key[:12]}={token}"
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(attributes)
        assert not any(attribute.lower().startswith("domain") for attribute in attributes)
        assert token not in entered.text
        page = httpx.get(f"{agent.page.url}/", headers={"Cookie": value}, trust_env=False)
        assert page.headers["content-type"].startswith("text/html")
        facts = httpx.get(f"{agent.page.url}{BASE}/agent", headers={"Cookie": value}, trust_env=False)
        assert done(facts)["role"] == role

    def test_alone_changes_nothing_without_a_sign_that_the_page_sent_it(
        self, agent: Visited, routes: list[tuple[str, str]]
    ):
        cookie = {"Cookie": cookie_of(agent, agent.page.tokens.owner)}
        for method, path in routes:
            if method == "GET":
                continue
            answer = agent.stranger.request(method, agent.page.url + path, headers=cookie)
            refused(answer, 403, "another site")
        assert done(agent.stranger.get("/agent", headers=cookie))["role"] == "owner"
        own = cookie | {"Origin": agent.page.url}
        assert agent.stranger.post("/mesh/sync", headers=own).status_code == 202
        assert (
            agent.stranger.post("/mesh/sync", headers=cookie | {"Sec-Fetch-Site": "same-origin"}).status_code
            == 202
        )


@pytest.mark.long
class TestPagesOfOtherSites:
    @pytest.mark.parametrize(
        "host",
        [
            *("evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "localhost."),
            *("", "]", "[", "[::1", "[::1]evil", "[evil.example]", "[localhost]", "::1", "127.0.0.1:80:80"),
            *("user@127.0.0.1", "127.0.0.1#evil", "127.0.0.1/evil", "127.0.0.1, evil.example", "127.0.0.1:port"),
            *("0x7f.1", "127.1", "\xb2", "\xe9vil", "%6cocalhost", "localhost\xad", "localhost:"),
        ],
    )
    def test_that_call_this_machine_by_their_own_name_get_nothing(self, agent: Visited, host: str):
        for path in ("/", f"{BASE}/agent", f"/?token={agent.page.tokens.owner}", "/static/app.css"):
            answer = raw(agent, head(agent, "GET", path, Host=host))
            assert answer.status in (400, 403)
            assert answer.headers["set-cookie"] is None
            assert agent.core.identity.public_key.encode() not in answer.text  # type: ignore[attr-defined]
        wrong = raw(agent, head(agent, "GET", f"{BASE}/agent", Host=host))
        assert (wrong.status, wrong.headers["content-type"]) == (403, PROBLEM)

    def test_may_not_leave_out_the_name_or_give_two(self, agent: Visited):
        old = head(agent, "GET", f"{BASE}/agent", Host=None).replace(b"HTTP/1.1", b"HTTP/1.0")
        assert raw(agent, old).status == 403
        assert raw(agent, head(agent, "GET", f"{BASE}/agent", Host=None)).status in (400, 403)
        assert raw(agent, head(agent, "GET", f"{BASE}/agent", host="evil.example")).status in (400, 403)

    @pytest.mark.parametrize(
        "host", ["127.0.0.1", "127.0.0.1:1", "localhost", "LOCALHOST:99", "[::1]:80", "192.168.0.7"]
    )
    def test_cannot_have_these_names_of_ours(self, agent: Visited, host: str):
        assert raw(agent, head(agent, "GET", f"{BASE}/agent", Host=host)).status == 200

    def test_are_recognised_by_their_origin(self, agent: Visited):
        port = place(agent)[1]
        foreign = (
            *("http://evil.example", "null", "", f"https://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"),
            *(f"http://localhost:{port}", "http://127.0.0.1", f"http://127.0.0.1:{port}.evil.example", "file://"),
        )
        for credentials in (
            {"Cookie": cookie_of(agent, agent.page.tokens.owner)},
            {"Authorization": agent.owner.headers["authorization"]},
        ):
            for origin in foreign:
                for method, path in (
                    ("POST", "/mesh/sync"),
                    ("POST", "/ask"),
                    ("GET", "/tasks"),
                    ("GET", "/events"),
                ):
                    answer = agent.stranger.request(method, path, headers=credentials | {"Origin": origin})
                    refused(answer, 403, "another site")
                    assert "access-control-allow-origin" not in answer.headers
            for site in ("cross-site", "same-site", "odd"):
                headers = credentials | {"Sec-Fetch-Site": site}
                refused(agent.stranger.get("/tasks", headers=headers), 403)
                refused(agent.stranger.post("/mesh/sync", headers=headers | {"Origin": agent.page.url}), 403)

    def test_get_no_permission_to_try(self, agent: Visited):
        asking = {"Origin": "http://evil.example", "Access-Control-Request-Method": "PUT"}
        answer = agent.stranger.options("/modules", headers=asking)
        assert answer.status_code >= 400
        assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.long
class TestGuests:
    MAY_SEND = (f"{BASE}/ask", f"{BASE}/describe")
    MAY_NOT_READ = ("trust", "quarantine", "lessons", "modules", "demo/images")

    def test_may_not_change_anything(self, agent: Visited, routes: list[tuple[str, str]]):
        tried = [(method, path) for method, path in routes if method != "GET" and path not in self.MAY_SEND]
        assert len(tried) > 20
        for method, path in tried:
            for spelling in (path, f"{path}/", path.replace("/api/", "/api//"), f"{path}%2f"):
                answer = agent.guest.request(method, agent.page.url + spelling, json={})
                refused(answer, 403, "owner's address")
        refused(agent.guest.request("TRACE", "/tasks"), 403)

    def test_may_not_read_whom_the_agent_trusts_or_its_images(self, agent: Visited, routes: list[tuple[str, str]]):
        reads = {path for method, path in routes if method == "GET" and path != ENDLESS}
        forbidden = {path for path in reads if path.startswith(tuple(f"{BASE}/{it}" for it in self.MAY_NOT_READ))}
        assert len(forbidden) >= 8
        for path in forbidden:
            for spelling in (path, f"{path}/"):
                refused(agent.guest.get(agent.page.url + spelling), 403)
                refused(
                    agent.guest.head(agent.page.url + spelling) or agent.guest.get(path), 403
                ) if False else None
        for path in reads - forbidden:
            assert agent.guest.get(agent.page.url + path).status_code in (200, 404)

    def test_may_ask_and_describe(self, agent: Visited, mixed: list[Path]):
        for path in ("/ask", "/describe"):
            done(agent.guest.post(path, files=form(mixed[:1])))


@pytest.mark.long
class TestPaths:
    SECRETS = ("owner", "PRIVATE KEY", "root:", "import annotations")

    @pytest.mark.parametrize(
        "path",
        [
            *(
                f"/static/{up}{name}"
                for up in ("../", "..%2f", "%2e%2e/", "%2e%2e%2f", "..%5c", "..\\", "....//")
                for name in ("api.py", "../page/api.py")
            ),
            *("/static//etc/passwd", "/static/%2fetc%2fpasswd", "/static/..", "/static/.", "/static/", "/static"),
            "/static/app.css%00.js",
            *(
                f"{BASE}/lessons/{name}"
                for name in ("..%2fpage.json", "%2e%2e", "..", "demo", "%00", "a%0ab", "*")
            ),
            *(
                f"{BASE}/lessons/LESSON/images/{name}"
                for name in ("..%2flesson.json", "..%2f..%2f..%2fkey.pem", "%00")
            ),
            *(f"{BASE}/demo/images/{name}" for name in ("..%2fpage.json", "..", "%2fetc%2fpasswd")),
            *(f"{BASE}/modules/{name}" for name in ("..%2f..%2fpage.json", "%2fetc%2fpasswd", "..%2fkey.pem")),
            *("/../page.json", "//etc/passwd", "/%2e%2e/page.json", "/index.html/../../api.py"),
        ],
    )
    def test_lead_to_no_other_file(self, agent: Visited, path: str):
        lesson = drafted(agent.owner, "any", {})
        try:
            for method in ("GET", "DELETE") if "/api/" in path else ("GET", "HEAD"):
                answer = raw(agent, head(agent, method, path.replace("LESSON", lesson)))
                if answer.status in (301, 307, 308):
                    assert answer.headers["location"].startswith("http://127.0.0.1/")
                    continue
                assert 400 <= answer.status < 500
                for secret in (*self.SECRETS, agent.page.tokens.owner):
                    assert secret.encode() not in answer.text  # type: ignore[attr-defined]
            assert (agent.core.home / "lessons" / lesson / "lesson.json").exists()
        finally:
            agent.owner.delete(f"/lessons/{lesson}")

    def test_in_names_stay_names(self, agent: Visited, mixed: list[Path]):
        names = ("../../../evil", "/etc/evil", "..\\evil", "CON", "a/b", ".", "..", "-rf", "%2e%2e")
        for name in (name for name in names if re.search(r"[/\\]|^\.+$", name)):
            refused(agent.owner.post("/lessons", json={"task": name}), 422, "expected")
        before = {path for path in agent.core.home.rglob("*") if "lessons" not in path.parts}
        beside = set(agent.core.home.parent.iterdir())
        for name in names:
            task = re.sub(r"[/\\]|^\.+$", "", name) or "dots"
            lesson = drafted(agent.owner, task, {})
            parts = [
                ("images", (f"{name}/x.jpg", mixed[0].read_bytes())),
                ("images", (name, mixed[1].read_bytes())),
            ]
            sent = done(agent.owner.post(f"/lessons/{lesson}/images", params={"class": name}, files=parts))
            assert (sent["lesson"]["task"], sent["lesson"]["classes"][0]["name"]) == (task, name)
            folder = agent.core.home / "lessons" / lesson
            assert {
                re.fullmatch(r"\d+-\d+\.\w+", path.name) is not None for path in (folder / "images").iterdir()
            } == {True}
            assert agent.owner.delete(f"/lessons/{lesson}").status_code == 204
        assert {path for path in agent.core.home.rglob("*") if "lessons" not in path.parts} == before
        assert set(agent.core.home.parent.iterdir()) == beside

    def test_in_a_zip_lead_nowhere(self, agent: Visited, mixed: list[Path]):
        image = mixed[0].read_bytes()
        lesson = drafted(agent.owner, "zip", {})
        content = zipped(
            {
                "../../../led-astray/x.jpg": image,
                "/etc/led-astray/y.jpg": image,
                "a/../../z.jpg": image,
                "ok/1.jpg": image,
                "fine/2.jpg": image,
            }
        )
        answer = agent.owner.post(f"/lessons/{lesson}/archive", content=content)
        assert answer.status_code in (200, 422)
        assert not list(agent.core.home.parent.rglob("led-astray*"))
        agent.owner.delete(f"/lessons/{lesson}")


@pytest.mark.long
class TestScripts:
    def test_in_names_come_back_as_text_that_no_browser_runs(self, agent: Visited, tiny_tasks: Path):
        owner, images = agent.owner, list(images_of(tiny_tasks / "shapes").values())
        classes = {f"{SCRIPT}{index}": paths for index, paths in enumerate(images)}
        lesson = drafted(owner, SCRIPT, classes)
        started(owner, lesson, note=SCRIPT, sharing="never")
        found = ended(owner, lesson)
        assert (found["state"], found["task"]) == ("done", SCRIPT)
        try:
            paths = (
                "/tasks",
                f"/tasks/{found['task_id']}",
                "/lessons",
                f"/lessons/{lesson}",
                f"/lessons/{lesson}x{SCRIPT}",
            )
            for path in paths:
                answer = owner.get(path)
                assert answer.headers["content-type"] in ("application/json", PROBLEM)
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert SCRIPT in json.dumps(answer.json())
            file = owner.get(f"/modules/{found['task_id']}")
            assert file.headers["content-disposition"].startswith("attachment; filename*=UTF-8''%3Cimg%20src")
            assert SCRIPT not in str(file.headers)
            parts = [("images", (f"{SCRIPT}.jpg", images[0][0].read_bytes()))]
            assert done(owner.post("/ask", files=parts))["answers"][0]["image"].endswith("onerror=alert(1)>.jpg")
        finally:
            owner.delete(f"/lessons/{lesson}")
            owner.delete(f"/tasks/{found['task_id']}")

    def test_in_an_image_are_not_served(self, agent: Visited):
        lesson = drafted(agent.owner, "pictures", {})
        for name, content in (
            ("a.svg", b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>"),
            ("a.jpg", b"GIF89a<script>"),
        ):
            sent = done(
                agent.owner.post(
                    f"/lessons/{lesson}/images", params={"class": "a"}, files=[("images", (name, content))]
                )
            )
            assert (sent["added"], len(sent["refused"])) == ([], 1)
        agent.owner.delete(f"/lessons/{lesson}")

    def test_every_answer_tells_browsers_to_run_only_the_pages_own(self, agent: Visited):
        owner = agent.owner
        answers = [
            owner.get(agent.page.url + path)
            for path in (
                "/",
                "/docs",
                "/openapi.json",
                "/static/app.css",
                "/static/main.js",
                "/static/none.js",
                "/none",
            )
        ]
        answers += [
            owner.get("/agent"),
            owner.get("/tasks/none"),
            owner.post("/lessons", content=b"{"),
            agent.guest.get("/trust"),
        ]
        answers += [
            agent.stranger.get("/agent"),
            agent.stranger.get(f"{agent.page.url}/"),
            owner.request("PATCH", "/agent"),
        ]
        answers += [
            owner.get("/agent", headers={"Host": "evil.example"}),
            agent.stranger.get(agent.page.owner_url),
        ]
        assert {answer.status_code for answer in answers} == {200, 303, 401, 403, 404, 405, 422}
        for answer in answers:
            assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
            for name, value in HEADERS.items():
                assert answer.headers.get_list(name) == [value]
            assert "server" not in answer.headers
        for directive in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
            assert directive in CONTENT_SECURITY_POLICY
        assert "unsafe" not in CONTENT_SECURITY_POLICY
        assert owner.get("/tasks").headers["cache-control"] == "no-store"

    def test_the_page_has_no_script_or_style_inside(self, agent: Visited):
        text = agent.owner.get(f"{agent.page.url}/").text
        assert not re.search(r"<script(?![^>]*\bsrc=)", text)
        assert not re.search(r"\s(style|on\w+)=", text)
        assert not re.search(r"(src|href)=.?https?:", text)


def bomb_zip(megabytes: int) -> bytes:
    """Return a zip of an image of so many megabytes of zeros, and of one with billions of pixels."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("train/a/1.png", "w", force_zip64=True) as file:
            for _ in range(megabytes):
                file.write(bytes(MEGABYTE))
        archive.writestr("train/b/1.png", bomb_png(60_000))
    return content.getvalue()


def bomb_png(side: int) -> bytes:
    """Return a PNG of this many pixels a side, all black: a few kilobytes that decode to gigabytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = bytes(1 + side // 8)
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


class Process:
    """`skillmesh page` as a process of its own."""

    def __init__(self, home: Path, *options: str) -> None:
        self.home = home
        self.log = home.parent / f"{home.name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*SKILLMESH, "page", "--no-browser", "--home", str(home), *options],
                stdout=log,
                stderr=log,
                env=environment(),
            )
        urls = eventually(self._urls, why="the page says where it is")
        self.owner_url, self.guest_url = urls
        url = httpx.URL(self.owner_url)
        self.host, self.port = url.host, url.port
        self.owner = httpx.Client(
            base_url=str(url.copy_with(path=BASE, query=None)),
            headers={"Authorization": f"Bearer {url.params['token']}"},
            timeout=60,
            trust_env=False,
        )

    def _urls(self) -> list[str] | None:
        assert self.process.poll() is None, self.log.read_text()
        found = re.findall(r"https?://\S+token=\S+", self.log.read_text())
        return found if len(found) == 2 else None

    def memory(self) -> int:
        """Return the memory of the process in bytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", text)[1])  # type: ignore[index]

    def open_files(self) -> list[str]:
        """Return the files on disk that the process has open and that have no name any more."""
        folder = Path(f"/proc/{self.process.pid}/fd")
        names = []
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                names.append(str(path.readlink()))
        return [name for name in names if "(deleted)" in name and name.startswith(tempfile.gettempdir())]

    def stop(self) -> None:
        self.owner.close()
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture(scope="module")
def process(new_agent: Callable[..., Core], skill_files: dict[str, Path], mixed: list[Path]) -> Iterator[Process]:
    """Yield a page in a process of its own, which has answered once."""
    if not Path("/proc/self/status").exists():
        pytest.skip("memory of another process is read from /proc")
    core = new_agent("measured")
    for name in ("dice", "latin"):
        core.import_file(skill_files[name])
    MeshSettings.of({"network": "machine", "discovery_port": free_port()}).save(core.home)
    core.close()
    served = Process(core.home)
    try:
        done(served.owner.post("/ask", files=form(mixed[:8])))
        yield served
    finally:
        served.stop()


def streamed(process: Process, path: str, kind: str, megabytes: int, before: bytes = b"") -> tuple[Any, int, int]:
    """Send a body of zeros in chunks; return the answer, the megabytes sent, and the most memory it took."""
    most, sent = process.memory(), 0
    request = (
        f"POST {BASE}{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: {process.owner.headers['authorization']}\r\n"
        f"Content-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
    ).replace("POST", "PUT" if path == "/modules" else "POST")
    chunk = b"%x\r\n%b\r\n" % (MEGABYTE, bytes(MEGABYTE))
    with socket.create_connection((process.host, process.port), 30) as line:
        line.sendall(request.encode() + (b"%x\r\n%b\r\n" % (len(before), before) if before else b""))
        line.settimeout(0.01)
        early = b""
        with contextlib.suppress(ConnectionError):
            for _ in range(megabytes):
                line.settimeout(30)
                line.sendall(chunk)
                sent += 1
                most = max(most, process.memory())
                line.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    early = line.recv(1, socket.MSG_PEEK)
                if early:
                    break
            else:
                line.settimeout(30)
                line.sendall(b"0\r\n\r\n")
        line.settimeout(60)
        answer = answer_on(line)
    return answer, sent, most


@pytest.mark.long
class TestLargeBodies:
    def test_of_a_stated_gigabyte_are_refused_before_they_are_sent(
        self, agent: Visited, routes: list[tuple[str, str]]
    ):
        for method, path in routes:
            for kind in ("multipart/form-data; boundary=b", "application/octet-stream", "application/json"):
                began = time.monotonic()
                answer = raw(agent, head(agent, method, path, Content_Type=kind, Content_Length=10**9))
                assert (answer.status, answer.headers["content-type"]) == (413, PROBLEM)
                assert time.monotonic() - began < 10

    def test_with_an_odd_length_are_refused(self, agent: Visited):
        for length in ("-1", "1e3", "abc", "0x10", "9" * 400, "1 2", "\xb2"):
            assert 400 <= raw(agent, head(agent, "POST", f"{BASE}/ask", Content_Length=length)).status < 500
        both = head(agent, "POST", f"{BASE}/ask", Content_Length=3, Transfer_Encoding="chunked")
        assert 400 <= raw(agent, both + b"0\r\n\r\n").status < 500

    @pytest.mark.parametrize("path", ["/ask", "/describe", "/lessons", "/merges", "/demo"])
    def test_that_are_read_as_a_whole_may_have_a_few_megabytes(self, agent: Visited, path: str):
        kinds = ("application/json", "application/problem+json", "", "text/plain")
        for kind in kinds[: 3 if path in ("/ask", "/describe") else 4]:
            answer = raw(agent, head(agent, "POST", BASE + path, Content_Type=kind, Content_Length=17 * MEGABYTE))
            assert (answer.status, answer.headers["content-type"]) == (413, PROBLEM)

    @pytest.mark.parametrize(
        ("path", "kind", "limit"),
        [
            ("/ask", "image/jpeg", 51),
            ("/ask", "application/json", 17),
            ("/ask", "", 17),
            ("/describe", "application/octet-stream", 51),
            ("/modules", "application/octet-stream", 65),
            ("/trust/scan", "image/png", 51),
            ("/lessons", "application/json", 17),
            ("/lessons", "text/plain", 17),
            ("/lessons/LESSON/images?class=a", "image/jpeg", 51),
            ("/lessons/LESSON/archive", "application/zip", 257),
            ("/lessons/LESSON/images?class=a", "multipart/form-data; boundary=b", 257),
            ("/ask", "multipart/form-data; boundary=b", 257),
        ],
    )
    def test_in_chunks_end_at_the_limit_and_take_little_memory(
        self, process: Process, path: str, kind: str, limit: int
    ):
        lesson = drafted(process.owner, "large", {})
        before = b'--b\r\nContent-Disposition: form-data; name="images"; filename="a.jpg"\r\n\r\n'
        memory = process.memory()
        answer, sent, most = streamed(
            process,
            path.replace("LESSON", lesson),
            kind,
            300,
            before if "multipart" in kind else b"",
        )
        assert (answer.status, answer.headers["content-type"]) == (413, PROBLEM), answer.text
        assert sent <= limit + 30  # what was under way, in the buffers of both sides
        assert most - memory < 100 * MEGABYTE
        process.owner.delete(f"/lessons/{lesson}")
        assert eventually(lambda: not process.open_files(), why="the temporary files are gone")

    def test_of_files_leave_no_temporary_files(self, process: Process, mixed: list[Path]):
        content = mixed[0].read_bytes() + bytes(2 * MEGABYTE)  # more than stays in memory
        lesson = drafted(process.owner, "temporary", {})
        for _ in range(3):
            done(process.owner.post("/ask", files=[("images", ("a.jpg", content))] * 4))
            done(process.owner.post("/ask", content=content, headers={"Content-Type": "image/jpeg"}))
            parts = [("images", ("a.jpg", content)), ("images", ("b.jpg", bytes(3 * MEGABYTE)))]
            done(process.owner.post(f"/lessons/{lesson}/images", params={"class": "a"}, files=parts))
        eventually(lambda: not process.open_files(), why="the temporary files are gone")
        process.owner.delete(f"/lessons/{lesson}")
        left = [path for path in process.home.rglob("*") if path.suffix in (".partial", ".zip", ".jpg", ".img")]
        assert left == []

    def test_that_end_early_leave_no_trace_and_no_noise(self, process: Process):
        for path, kind in (
            ("/ask", "image/jpeg"),
            ("/lessons", "application/json"),
            ("/ask", "multipart/form-data; boundary=b"),
        ):
            with socket.create_connection((process.host, process.port), 30) as line:
                line.sendall(
                    f"POST {BASE}{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3000000\r\n"
                    f"Content-Type: {kind}\r\n"
                    f"Authorization: {process.owner.headers['authorization']}\r\n\r\n".encode()
                    + bytes(2 * MEGABYTE)
                )
                time.sleep(0.3)
        eventually(lambda: not process.open_files(), why="the temporary files are gone")
        time.sleep(0.5)
        assert "Traceback" not in process.log.read_text()


@pytest.mark.long
class TestBombs:
    def test_in_images_are_refused_with_the_size_found(self, process: Process, mixed: list[Path]):
        memory, bomb = process.memory(), bomb_png(60_000)
        assert len(bomb) < MEGABYTE
        parts = [("images", ("bomb.png", bomb)), *form(mixed[:1])]
        bad, good = done(process.owner.post("/ask", files=parts))["answers"]
        assert "60,000 × 60,000" in bad["error"]
        assert good.get("error") is None
        lesson = drafted(process.owner, "bomb", {})
        sent = done(process.owner.post(f"/lessons/{lesson}/images", params={"class": "a"}, files=parts))
        assert [len(sent["added"]), sent["refused"][0]["name"]] == [1, "bomb.png"]
        refused(
            process.owner.post("/trust/scan", content=bomb, headers={"Content-Type": "image/png"}), 422, "60,000"
        )
        refused(process.owner.post("/describe", files=parts), 422, "bomb.png", "60,000")
        process.owner.delete(f"/lessons/{lesson}")
        assert process.memory() - memory < 150 * MEGABYTE

    def test_in_archives_are_refused_and_take_little_memory(self, process: Process):
        bomb = bomb_zip(400)
        assert len(bomb) < 2 * MEGABYTE
        lesson = drafted(process.owner, "bomb", {})
        memory, most = process.memory(), [0]
        ending = threading.Event()

        def watch() -> None:
            while not ending.wait(0.02):
                most[0] = max(most[0], process.memory())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            answer = process.owner.post(f"/lessons/{lesson}/archive", content=bomb)
        finally:
            ending.set()
            watcher.join()
        if answer.status_code == 200:  # the images are refused one by one
            assert (answer.json()["added"], len(answer.json()["refused"])) == ([], 2)
        else:
            refused(answer, 422)
        assert most[0] - memory < 150 * MEGABYTE
        assert not list((process.home / "lessons" / lesson).glob("*.zip"))
        process.owner.delete(f"/lessons/{lesson}")

    def test_of_brackets_and_digits_in_json_are_refused(self, process: Process):
        for body in (b'{"images":' + b"[" * 10**6, b'{"images": ' + b"9" * 10**6 + b"}", b"[" * 10**6):
            for path in ("/ask", "/lessons"):
                sent = process.owner.post(path, content=body, headers={"Content-Type": "application/json"})
                refused(sent, 400 if path == "/lessons" and sent.status_code == 400 else 422)

    def test_of_a_thousand_form_fields_are_refused(self, process: Process):
        fields = {f"f{index}": "x" for index in range(1000)}
        assert refused(process.owner.post("/ask", data=fields, files=[("images", ("a", b"a"))]), 400)
        refused(process.owner.post("/ask", files=[("images", (None, "x" * 2 * MEGABYTE))]), 400)


@pytest.mark.long
class TestManyAtOnce:
    def test_slow_senders_do_not_hold_up_the_others(self, process: Process, mixed: list[Path]):
        lines = []
        for index in range(20):
            line = socket.create_connection((process.host, process.port), 30)
            kind = ("image/jpeg", "multipart/form-data; boundary=b", "application/json")[index % 3]
            line.sendall(
                f"POST {BASE}/ask HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n"
                f"Content-Type: {kind}\r\n"
                f"Authorization: {process.owner.headers['authorization']}\r\n\r\n".encode()
            )
            lines.append(line)
        try:
            for _ in range(4):
                for line in lines:
                    line.sendall(b"{")
                began = time.monotonic()
                done(process.owner.post("/ask", files=form(mixed[:1])))
                done(process.owner.get("/tasks"))
                assert time.monotonic() - began < 15
                time.sleep(1)
        finally:
            for line in lines:
                line.close()

    def test_event_streams_above_the_limit_are_refused_and_asking_still_works(
        self, process: Process, mixed: list[Path]
    ):
        lines = [self.opened(process) for _ in range(500)]
        try:
            answers = [http.client.HTTPResponse(line) for line in lines]
            for answer in answers:
                answer.begin()
            statuses = [answer.status for answer in answers]
            assert (statuses.count(200), statuses.count(429)) == (MOST_STREAMS, 500 - MOST_STREAMS)
            refusals = [answer for answer in answers if answer.status == 429]
            assert {answer.headers["content-type"] for answer in refusals} == {PROBLEM}
            assert json.loads(refusals[0].read())["status"] == 429
            done(process.owner.post("/ask", files=form(mixed[:2])))
        finally:
            left(lines)
        self.room_again(process)

    def test_readers_that_leave_at_once_leave_their_place(self, process: Process):
        for _ in range(2 * MOST_STREAMS):
            line = self.opened(process)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            line.close()  # with a reset
        self.room_again(process)

    def opened(self, process: Process) -> socket.socket:
        line = socket.create_connection((process.host, process.port), 30)
        line.sendall(
            f"GET {BASE}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: {process.owner.headers['authorization']}\r\n\r\n".encode()
        )
        return line

    def room_again(self, process: Process) -> None:
        """Wait until as many streams as ever can be opened."""

        def open_all() -> bool:
            lines = [self.opened(process) for _ in range(MOST_STREAMS)]
            try:
                answers = [http.client.HTTPResponse(line) for line in lines]
                for answer in answers:
                    answer.begin()
                return all(answer.status == 200 for answer in answers)
            finally:
                left(lines)

        eventually(open_all, why="there is room for all streams again", every=1)


def left(lines: list[socket.socket]) -> None:
    for line in lines:
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)  # closing is not enough while an answer still refers to it
        line.close()


class TestTheTokens:
    def test_are_private_and_survive_a_restart(self, tmp_path: Path):
        tokens = Tokens.of_home(tmp_path)
        assert stat.S_IMODE((tmp_path / TOKENS).stat().st_mode) == 0o600
        assert min(len(tokens.owner), len(tokens.guest)) >= 43
        assert tokens.owner != tokens.guest
        assert Tokens.of_home(tmp_path) == tokens
        (tmp_path / TOKENS).unlink()
        assert Tokens.of_home(tmp_path) != tokens

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[]",
            "null",
            '{"owner": "a"}',
            '{"owner": "", "guest": ""}',
            '{"owner": 1, "guest": 2}',
            "\xff\xfe",
        ],
    )
    def test_that_are_damaged_or_short_are_made_again(self, tmp_path: Path, text: str):
        (tmp_path / TOKENS).write_bytes(text.encode("latin-1"))
        tokens = Tokens.of_home(tmp_path)
        assert min(len(tokens.owner), len(tokens.guest)) >= 43
        assert Tokens.of_home(tmp_path) == tokens

    def test_that_are_the_same_for_owner_and_guest_are_made_again(self, tmp_path: Path):
        (tmp_path / TOKENS).write_text(json.dumps({"owner": "a" * 43, "guest": "a" * 43}))
        assert Tokens.of_home(tmp_path).owner != "a" * 43

    def test_of_no_text_give_no_role(self, tmp_path: Path):
        tokens = Tokens.of_home(tmp_path)
        assert [tokens.role_of(token) for token in ("", " ", "\xe9", tokens.owner[:-1], tokens.owner + " ")] == [
            None
        ] * 5
        assert [tokens.role_of(token) for token in (tokens.owner, tokens.guest)] == ["owner", "guest"]


class TestTheAddress:
    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org"])
    def test_that_others_reach_needs_encryption_or_a_decision(self, host: str, tmp_path: Path):
        with pytest.raises(AgentError, match="can be reached from other machines") as error:
            Address(host).refuse_unsafe()
        assert "`--tls DIR`" in str(error.value)
        assert "`--insecure`" in str(error.value)
        Address(host, insecure=True).refuse_unsafe()
        Address(host, tls=tmp_path).refuse_unsafe()

    @pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
    def test_of_this_machine_needs_neither(self, host: str):
        Address(host).refuse_unsafe()

    def test_is_refused_by_the_commands_before_anything_starts(self, command: Callable[..., Ran], tmp_path: Path):
        for words in (["page", "--no-browser"], ["serve", "--page"]):
            failed(
                command(*words, "--host", "0.0.0.0", "--home", tmp_path / "none"),
                "0.0.0.0",
                "`--tls DIR`",
                "`--insecure`",
            )
        assert not (tmp_path / "none").exists()

    def test_that_is_taken_is_named(self, tmp_path: Path):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(AgentError, match=rf"127\.0\.0\.1:{port}.*another with `--port`"):
                Address(port=port).bound()
        with contextlib.closing(Address().bound()) as one, contextlib.closing(Address().bound()) as other:
            assert one.getsockname() != other.getsockname()  # without a wish, another one is found

    def test_without_a_certificate_says_what_is_missing(self, tmp_path: Path):
        with pytest.raises(AgentError, match=f"no {CERTIFICATE} and no {KEY}.*certs issue"):
            Address("0.0.0.0", tls=tmp_path).tls_options()


@pytest.mark.long
class TestEncryption:
    @pytest.fixture
    def certified(self, new_agent: Callable[..., Core], tmp_path: Path) -> tuple[Core, Path]:
        core = new_agent("encrypted")
        create_ca(tmp_path / "authority")
        issue(tmp_path / "authority", core.identity.public_key, core.name, tmp_path / "tls")
        return core, tmp_path / "tls"

    def test_works_with_the_certificates_of_the_mesh(self, certified: tuple[Core, Path]):
        core, folder = certified
        with visited(core, address=Address("127.0.0.1", 0, tls=folder)) as agent:
            assert agent.page.url.startswith("https://")
            trusting = ssl.create_default_context(cafile=folder / CA)
            trusting.check_hostname = False  # the certificate names the agent, not its address
            with httpx.Client(verify=trusting, trust_env=False) as browser:
                entered = browser.get(agent.page.owner_url)
                assert "Secure" in entered.headers["set-cookie"].split("; ")
                facts = browser.get(f"{agent.page.url}{BASE}/agent")
                assert done(facts)["name"] == "encrypted"
                same = browser.post(f"{agent.page.url}{BASE}/mesh/sync", headers={"Origin": agent.page.url})
                assert same.status_code == 202
                plain = {"Origin": agent.page.url.replace("https", "http")}
                refused(browser.post(f"{agent.page.url}{BASE}/mesh/sync", headers=plain), 403)
            with pytest.raises(httpx.ConnectError, match="certificate"):
                httpx.get(agent.page.url, trust_env=False)
            with pytest.raises(httpx.HTTPError):
                httpx.get(agent.page.url.replace("https", "http"), trust_env=False)

    def test_with_a_key_of_another_certificate_is_refused(self, certified: tuple[Core, Path], tmp_path: Path):
        core, folder = certified
        issue(tmp_path / "authority", core.identity.public_key, core.name, tmp_path / "other")
        shutil.copy(tmp_path / "other" / KEY, folder / KEY)
        address = Address("127.0.0.1", 0, tls=folder)
        wrong = pytest.raises(AgentError, match=r"cannot be encrypted with the files in .*certs issue")
        with wrong, visited(core, address=address):
            pytest.fail("it is served")

    def test_lets_everyone_in_the_network_in_by_its_address_only(self, certified: tuple[Core, Path]):
        core, folder = certified
        names = ("agent.example",)
        with visited(core, address=Address("0.0.0.0", 0, tls=folder, names=names)) as agent:
            url = agent.page.url.replace("0.0.0.0", "127.0.0.1")
            trusting = ssl.create_default_context(cafile=folder / CA)
            trusting.check_hostname = False
            token = {"Authorization": f"Bearer {agent.page.tokens.owner}"}
            for host, status in (
                ("agent.example", 200),
                ("AGENT.example:443", 200),
                (socket.gethostname(), 200),
                ("evil.example", 403),
            ):
                answer = httpx.get(
                    f"{url}{BASE}/agent", headers=token | {"Host": host}, verify=trusting, trust_env=False
                )
                assert answer.status_code == status


class TestAnInstallationWithoutTheExtra:
    @pytest.mark.parametrize("package", ["fastapi", "uvicorn", "python_multipart", "zxingcpp"])
    @pytest.mark.parametrize("words", [["page"], ["serve", "--page"]])
    def test_says_what_to_install(
        self,
        package: str,
        words: list[str],
        command: Callable[..., Ran],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ):
        monkeypatch.setitem(sys.modules, package, None)
        ran = command(*words, "--home", tmp_path / "home")
        failed(ran, "the page needs", "`pip install fastapi uvicorn httptools python-multipart zxing-cpp`")
        assert not (tmp_path / "home").exists()

    def test_imports_nothing_of_it(self, tmp_path: Path):
        code = (
            "import sys, skillmesh\n"
            "from skillmesh.cli import main\n"
            "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
            "print('loaded:', *sorted("
            "{'fastapi', 'uvicorn', 'starlette', 'python_multipart', 'zxingcpp', 'skillmesh.page'}"
            " & set(sys.modules)))\n"
        )
        for words in (["--help"], ["page", "--help"], ["tasks"], ["status"], ["trust", "list"]):
            ran = subprocess.run(
                [sys.executable, "-c", code, "--home", str(tmp_path), *words],
                capture_output=True,
                text=True,
                env=PLAIN,
                check=True,
            )
            assert ran.stdout.splitlines()[-1] == "loaded:"
