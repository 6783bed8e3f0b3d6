"""Requests made up from the API's own description: the server never fails, and says what is wrong.

SKILLMESH_API_CALLS=50000 pytest -m slow tests/page/test_schema.py
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")
pytest.importorskip("zxingcpp")
pytest.importorskip("schemathesis")

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from pages import BASE, PROBLEM, Visited, done, drafted, images_of, taught, visited

from skillmesh.core import Core

CALLS = int(os.environ.get("SKILLMESH_API_CALLS", "20000"))
"""Number of calls of the slow test."""
FEW = 300
"""Number of calls of the test that CI runs."""
ENDLESS = f"GET {BASE}/events"
"""Left out: its answer never ends. `test_page_api.py` and `test_safety.py` read it."""
EVERYTHING = list(HealthCheck)
"""Speed is not measured here, and most of what a description allows is refused."""


@pytest.fixture
def agent(new_agent: Callable[..., Core], tiny_tasks: Path, skill_files: dict[str, Path]) -> Iterator[Visited]:
    """Yield an agent with something of every kind, so that some of the calls can succeed."""
    with visited(new_agent("alice")) as alice:
        taught(alice.owner, "dice", images_of(tiny_tasks / "dice"))
        done(alice.owner.put("/modules", content=skill_files["latin"].read_bytes()), 201)
        drafted(alice.owner, "draft", images_of(tiny_tasks / "shapes"))
        yield alice


def described(agent: Visited) -> Any:
    return done(agent.owner.get(f"{agent.page.url}/openapi.json"))


class Caller:
    """Sends requests that fit an operation's description, and such that do not, and checks each answer."""

    def __init__(self, agent: Visited) -> None:
        self.agent = agent
        self.calls = 0
        self.statuses: dict[str, Counter[int]] = {}
        self.schema = schemathesis.openapi.from_dict(described(agent))
        found = [operation.ok() for operation in self.schema.get_all_operations()]
        assert ENDLESS in {operation.label for operation in found}
        # What deletes comes last, so that the others find something.
        self.operations = sorted(
            (operation for operation in found if operation.label != ENDLESS),
            key=lambda operation: operation.method.upper() == "DELETE" or "withdraw" in operation.path,
        )
        self.known = self._known()

    def send(self, count: int) -> None:
        """Send at least this many requests, to all operations in turn."""
        turn = 0
        while self.calls < count:
            each = 1 + (count - self.calls) // (2 * len(self.operations))
            for operation in self.operations:
                for mode in schemathesis.GenerationMode:
                    self._vary(operation, mode, min(each, 200), turn)
            turn += 1

    def _vary(self, operation: Any, mode: Any, count: int, turn: int) -> None:
        @seed(turn)
        @settings(max_examples=count, database=None, phases=[Phase.generate], suppress_health_check=EVERYTHING)
        @given(case=operation.as_strategy(generation_mode=mode), existing=st.booleans(), which=st.integers(0, 99))
        def call(case: Any, existing: bool, which: int) -> None:
            if existing:
                for name in case.path_parameters or {}:
                    known = self.known.get(name, [])
                    if known:
                        case.path_parameters[name] = known[which % len(known)]
            self._check(case)

        try:
            call()
        except Unsatisfiable:  # nothing contradicts the description of an operation without parameters
            assert mode is schemathesis.GenerationMode.NEGATIVE

    def _check(self, case: Any) -> None:
        headers = {"Authorization": f"Bearer {self.agent.page.tokens.owner}"}
        answer = case.call(base_url=self.agent.page.url, headers=headers, timeout=60, allow_redirects=False)
        self.calls += 1
        label = case.operation.label
        self.statuses.setdefault(label, Counter())[answer.status_code] += 1
        kind = answer.headers.get("content-type", [""])[0]
        sent = f"{label}: {case.as_curl_command()[:2000]}\n{answer.status_code} {kind} {answer.content[:500]!r}"
        assert answer.status_code < 500, sent
        if answer.status_code in (307, 405):  # an empty part of a path leads to another operation
            return
        if answer.status_code >= 400:
            assert kind == PROBLEM, sent
            assert answer.json()["detail"], sent
        documented = case.operation.definition.raw["responses"]
        assert str(answer.status_code) in documented, sent

    def _known(self) -> dict[str, list[str]]:
        """Return what exists on this agent, by the name of a path's part: made-up names are only unknown."""
        owner = self.agent.owner
        lessons = [lesson["id"] for lesson in done(owner.get("/lessons"))["lessons"]]
        name = done(owner.get(f"/lessons/{lessons[-1]}"))["classes"][0]["name"]
        images = done(owner.get(f"/lessons/{lessons[-1]}/images", params={"class": name}))["images"]
        return {
            "module_id": [task["id"] for task in done(owner.get("/tasks"))["tasks"]],
            "lesson_id": lessons[::-1],
            "image": [image["id"] for image in images],
            "key": [self.agent.core.identity.public_key],
        }


@pytest.mark.long
def test_every_documented_error_is_a_problem(agent: Visited):
    for path, methods in described(agent)["paths"].items():
        for method, operation in methods.items():
            errors = {code: each for code, each in operation["responses"].items() if code >= "4"}
            assert {"401", "403", "404", "422"} <= errors.keys(), (method, path)
            for each in errors.values():
                assert each["content"] == {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}


@pytest.mark.long
def test_made_up_requests_are_answered_as_documented(agent: Visited):
    caller = Caller(agent)
    caller.send(FEW)
    assert caller.calls >= FEW
    assert caller.statuses.keys() == {operation.label for operation in caller.operations}
    succeeded = {label for label, counts in caller.statuses.items() if any(code < 300 for code in counts)}
    assert len(succeeded) > len(caller.statuses) / 3


@pytest.mark.slow
def test_many_made_up_requests_are_answered_as_documented(agent: Visited):
    caller = Caller(agent)
    caller.send(CALLS)
    assert caller.calls >= CALLS
    done(agent.owner.get("/agent"))
