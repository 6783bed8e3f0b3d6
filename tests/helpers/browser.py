"""A page in Debian's chromium, driven by another page around it: no driver has to be installed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import pytest

SECONDS = 240
"""How long a page may take; starting it takes most of it on a busy machine."""
PAGE = "around.html"


def npm_package(name: str, folder: Path) -> Path:
    """Return the folder of a package that npm fetches, or skip the test."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    ran = subprocess.run(
        [npm, "pack", "--silent", name], cwd=folder, capture_output=True, text=True, timeout=SECONDS
    )
    if ran.returncode != 0:
        pytest.skip(f"npm cannot fetch {name}: {ran.stderr.strip()[-200:]}")
    with tarfile.open(folder / ran.stdout.split()[-1]) as packed:
        packed.extractall(folder, filter="data")
    return folder / "package"


def result_of(folder: Path, script: str) -> Any:
    """Return what a script, which runs in a page served from `folder`, passes to its function `done`."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    done = 'const done = result => fetch("/done", {method: "POST", body: JSON.stringify(result)});'
    failing = "addEventListener('unhandledrejection', event => done({error: String(event.reason)}));"
    (folder / PAGE).write_text(
        f'<!doctype html><meta charset="utf-8"><script type="module">\n{done}\n{failing}\n{script}\n</script>'
    )
    with _served(folder) as (address, results), _running(chromium, folder / "profile", f"{address}/{PAGE}"):
        try:
            return results.get(timeout=SECONDS)
        except Empty:
            pytest.fail(f"the page has not finished after {SECONDS} s")


@contextmanager
def _served(folder: Path) -> Iterator[tuple[str, Queue[Any]]]:
    results: Queue[Any] = Queue()

    class Handler(SimpleHTTPRequestHandler):
        def do_POST(self) -> None:
            results.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", results
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def _running(chromium: str, profile: Path, address: str) -> Iterator[None]:
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    words = [chromium, *options, f"--user-data-dir={profile}", address]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(words, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the browser and the processes of its pages
        process.wait()
