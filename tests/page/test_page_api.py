"""The HTTP API, called as programs call it: real HTTP to a real server beside a real node."""

from __future__ import annotations

import base64
import io
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")
pytest.importorskip("zxingcpp")
pytest.importorskip("httpx")

from meshes import eventually, free_port
from pages import (
    Visited,
    done,
    drafted,
    ended,
    following,
    form,
    images_of,
    refused,
    started,
    task_named,
    taught,
    visited,
    zipped,
)

from skillmesh.core import Core
from skillmesh.data.inputs import as_images
from skillmesh.errors import SkillmeshError
from skillmesh.mesh.shelf import Shelf
from skillmesh.page.demo import TASKS as DRAWN
from skillmesh.page.lessons import Lessons
from skillmesh.store.home import VALIDATION

pytestmark = pytest.mark.long

NO_SUCH = "f" * 64
ANSWERED = ("label", "task", "teacher", "confidence", "unknown", "unsure", "known", "novelty")


@pytest.fixture(scope="module")
def agent(new_agent: Callable[..., Core], tiny_tasks: Path, skill_files: dict[str, Path]) -> Iterator[Visited]:
    """Yield Alice: dice and shapes are her own, shared tasks, latin is Tina's. Tests undo what they change."""
    core = new_agent("alice")
    for name in ("dice", "shapes"):
        core.learn(tiny_tasks / name)
    core.import_file(skill_files["latin"])
    with visited(core) as alice:
        yield alice


@pytest.fixture
def long_task(tmp_path: Path) -> dict[str, list[Path]]:
    """Return images that take seconds to learn: nobody has described them before."""
    chance = np.random.default_rng()
    found: dict[str, list[Path]] = {"grey": [], "noise": []}
    for name, paths in found.items():
        for index in range(60):
            pixels = chance.integers(0, 256, (256, 256, 3 if name == "noise" else 1), dtype=np.uint8)
            paths.append(tmp_path / f"{name}-{index}.png")
            Image.fromarray(np.broadcast_to(pixels, (256, 256, 3))).save(paths[-1])
    return found


@pytest.fixture
def newcomer(new_agent: Callable[..., Core]) -> Iterator[Visited]:
    """Yield an agent that knows nothing, with a page of its own."""
    with visited(new_agent("newcomer")) as alone:
        yield alone


def same(answer: dict[str, Any], core: Core, image: Path) -> bool:
    """Return whether the API's answer is the agent's own; images asked together differ in the last digits."""
    expected = core.answer(image).as_dict()
    guesses = [(g["label"], g["task"], g["teacher_key"]) for g in answer["guesses"]]
    return guesses == [(g["label"], g["task"], g["teacher_key"]) for g in expected["guesses"]] and all(
        answer[name] == pytest.approx(expected[name], abs=1e-3) for name in ANSWERED
    )


class TestTheAgent:
    def test_says_who_it_is_and_what_may_be_sent(self, agent: Visited):
        facts = done(agent.owner.get("/agent"))
        assert (facts["name"], facts["key"]) == ("alice", agent.core.identity.public_key)
        assert (facts["role"], facts["tasks"], facts["demo"]) == ("owner", 3, "none")
        assert facts["limits"].keys() == {"image_bytes", "body_bytes", "images_per_ask", "lesson_images"}
        assert {".jpg", ".png"} <= set(facts["suffixes"])
        assert done(agent.guest.get("/agent"))["role"] == "guest"

    def test_is_new_to_its_owner_until_a_lesson_is_begun(self, newcomer: Visited):
        assert done(newcomer.owner.get("/agent"))["first_visit"] is True
        assert done(newcomer.guest.get("/agent"))["first_visit"] is False
        drafted(newcomer.owner, "begun", {})
        assert done(newcomer.owner.get("/agent"))["first_visit"] is False

    def test_draws_the_demo_and_answers_its_images(self, newcomer: Visited):
        refused(newcomer.owner.get("/demo/images/dice-one-000"), 404, "/api/v1/demo/images")
        done(newcomer.owner.post("/demo"), 202)
        refused(newcomer.owner.post("/demo"), 409, "begun already")
        assert done(newcomer.owner.get("/agent"))["demo"] == "learning", "from the start, while it is drawn"
        eventually(lambda: done(newcomer.owner.get("/agent"))["demo"] == "ready", why="the demo is learned")
        lessons = done(newcomer.owner.get("/lessons"))["lessons"]
        assert {lesson["task"] for lesson in lessons} >= set(DRAWN)
        states = {(each["state"], each["sharing"]) for each in lessons if each["task"] in DRAWN}
        assert states == {("done", "never")}
        shown = done(newcomer.owner.get("/demo/images"))["images"]
        assert {image["task"] for image in shown} == set(DRAWN)
        picture = newcomer.owner.get(newcomer.page.url + shown[0]["url"])
        kind = {b"\x89P": "image/png", b"\xff\xd8": "image/jpeg"}[picture.content[:2]]
        assert picture.headers["content-type"] == kind
        asked = done(newcomer.owner.post("/ask", content=picture.content, headers={"Content-Type": kind}))
        assert asked["answers"][0]["task"] in (*DRAWN, None)


class TestAsking:
    def test_a_form_a_body_and_json_give_the_agents_own_answers(self, agent: Visited, mixed: list[Path]):
        images = mixed[:6]
        encoded = [base64.b64encode(path.read_bytes()).decode() for path in images]
        of_form = done(agent.owner.post("/ask", files=form(images)))["answers"]
        of_json = done(agent.owner.post("/ask", json={"images": encoded}))["answers"]
        assert [answer["image"] for answer in of_form] == [path.name for path in images]
        for image, one, other in zip(images, of_form, of_json, strict=True):
            kind = {"Content-Type": "application/octet-stream"}
            of_body = done(agent.owner.post("/ask", content=image.read_bytes(), headers=kind))["answers"]
            assert len(of_body) == 1
            for answer in (one, other, of_body[0]):
                assert same(answer, agent.core, image)

    def test_any_kind_of_image_may_be_the_body(self, agent: Visited, mixed: list[Path]):
        for kind in ("image/jpeg", "image/png", "IMAGE/webp; q=1"):
            sent = agent.guest.post("/ask", content=mixed[0].read_bytes(), headers={"Content-Type": kind})
            assert len(done(sent)["answers"]) == 1

    def test_an_answer_says_whose_task_it_is(self, agent: Visited, tiny_tasks: Path):
        images = [*some_of(tiny_tasks / "dice", "test"), *some_of(tiny_tasks / "latin", "test")]
        known = {task["id"]: task for task in done(agent.owner.get("/tasks"))["tasks"]}
        for answer in done(agent.owner.post("/ask", files=form(images)))["answers"]:
            task = known[answer["task_id"]]
            assert (task["task"], task["own"]) == (answer["guesses"][0]["task"], answer["own"])

    def test_an_unreadable_image_spoils_none_of_the_others(self, agent: Visited, mixed: list[Path]):
        parts = [form(mixed[:1])[0], ("images", ("no.jpg", b"this is no image")), form(mixed[1:2])[0]]
        first, bad, last = done(agent.owner.post("/ask", files=parts))["answers"]
        assert same(first, agent.core, mixed[0])
        assert same(last, agent.core, mixed[1])
        assert (bad["image"], bad["label"], bad["guesses"], bad["task_id"]) == ("no.jpg", None, [], None)
        assert bad["error"]

    def test_an_agent_without_tasks_says_so(self, newcomer: Visited, mixed: list[Path]):
        refused(newcomer.owner.post("/ask", files=form(mixed[:1])), 409, "knows no task")

    @pytest.mark.parametrize(
        ("request_", "status", "words"),
        [
            ({"content": b"<svg/>", "headers": {"Content-Type": "text/html"}}, 415, "text/html"),
            ({"files": [("image", ("a.jpg", b"a"))]}, 422, '"images"'),
            ({"data": {"images": "a"}, "files": [("other", ("a", b"a"))]}, 422, '"images"'),
            ({"json": {"images": []}}, 422, '{"images": ["BASE64", …]}'),
            ({"json": {"images": ["not base64!"]}}, 422, "base64"),
            ({"json": [1, 2]}, 422, "not the JSON"),
            ({"content": b"[" * 100_000, "headers": {"Content-Type": "application/json"}}, 422, "not the JSON"),
            ({"content": b"", "headers": {"Content-Type": "image/jpeg"}}, 422, "empty"),
            ({"json": {"images": ["YQ=="] * 65}}, 413, "at most 64"),
            ({"content": b"x", "headers": {"Content-Type": "multipart/form-data"}}, 400, ""),
            ({"content": b"x", "headers": {"Content-Type": "multipart/form-data; boundary=b"}}, 400, "multipart"),
            ({"content": bytes(49 * 2**20), "headers": {"Content-Type": "image/jpeg"}}, 413, "50,331,648"),
        ],
    )
    def test_a_body_that_is_no_image_is_refused_with_what_to_send(
        self, agent: Visited, request_: dict[str, Any], status: int, words: str
    ):
        for route in ("/ask", "/describe"):
            refused(agent.owner.post(route, **request_), status, words)

    def test_more_images_than_allowed_in_a_form_are_refused(self, agent: Visited, mixed: list[Path]):
        refused(agent.owner.post("/ask", files=form(mixed[:1]) * 65), 400)

    def test_describing_returns_what_heads_and_anchors_see(self, agent: Visited, mixed: list[Path]):
        core = agent.core
        found = done(agent.guest.post("/describe", files=form(mixed[:3])))
        expected = core.represent(core.backbone.describe(core_images(mixed[:3])).raw)
        assert found["width"] == expected.shape[1]
        assert found["descriptors"] == expected.tolist()
        refused(agent.guest.post("/describe", files=[("images", ("no.jpg", b"no"))]), 422, "no.jpg")


def core_images(paths: list[Path]) -> list[Any]:
    return list(as_images(list(paths))[0])


class TestTasks:
    def test_are_listed_with_their_facts(self, agent: Visited, tiny_taught: Core):
        tasks = {task["task"]: task for task in done(agent.guest.get("/tasks"))["tasks"]}
        assert tasks.keys() == {"dice", "shapes", "latin"}
        own, received = tasks["dice"], tasks["latin"]
        assert (own["own"], own["sharing"], own["teacher"]) == (True, "shared", "alice")
        assert (received["own"], received["sharing"]) == (False, None)
        assert received["teacher_key"] == tiny_taught.identity.public_key
        module = agent.core.bank.find("dice")
        assert [cls["name"] for cls in own["classes"]] == list(module.card.classes)
        assert (own["bytes"], own["version"], own["merged"]) == (module.size, 1, False)
        one = done(agent.owner.get(f"/tasks/{own['id']}"))
        assert one == own | {"report": None}

    def test_that_are_not_there_are_named_in_the_refusal(self, agent: Visited):
        for method, route in (
            ("GET", f"/tasks/{NO_SUCH}"),
            ("DELETE", f"/tasks/{NO_SUCH}"),
            ("GET", f"/modules/{NO_SUCH}"),
            ("DELETE", f"/merges/{NO_SUCH}"),
        ):
            refused(agent.owner.request(method, route), 404, NO_SUCH, "/api/v1/tasks")

    def test_travel_to_another_agent_as_files(self, agent: Visited, newcomer: Visited):
        task = task_named(agent.owner, "dice")
        file = agent.owner.get(f"/modules/{task['id']}")
        assert file.headers["content-disposition"] == "attachment; filename*=UTF-8''dice.skill"
        assert file.content == agent.core.bank.file_of(agent.core.bank.find("dice"))
        imported = done(newcomer.owner.put("/modules", content=file.content), 201)
        assert (imported["id"], imported["own"], imported["teacher_key"]) == (
            task["id"],
            False,
            agent.core.identity.public_key,
        )
        damaged = bytes([*file.content[:-1], file.content[-1] ^ 1])
        with pytest.raises(SkillmeshError) as error:
            newcomer.core.import_bytes(damaged)
        problem = refused(newcomer.owner.put("/modules", content=damaged), 422)
        assert (problem["title"], problem["detail"]) == (type(error.value).__name__, str(error.value))
        refused(newcomer.owner.put("/modules", content=b""), 422, "empty")

    def test_are_forgotten_without_a_trace(
        self, newcomer: Visited, skill_files: dict[str, Path], mixed: list[Path]
    ):
        ids = [
            done(newcomer.owner.put("/modules", content=skill_files[name].read_bytes()), 201)["id"]
            for name in ("dice", "latin")
        ]
        assert newcomer.owner.delete(f"/tasks/{ids[1]}").status_code == 204
        assert [task["id"] for task in done(newcomer.owner.get("/tasks"))["tasks"]] == ids[:1]
        answers = done(newcomer.owner.post("/ask", files=form(mixed[:8])))["answers"]
        assert {guess["task"] for answer in answers for guess in answer["guesses"]} == {"dice"}
        refused(newcomer.owner.delete(f"/tasks/{ids[1]}"), 404)

    def test_of_others_are_not_for_this_agent_to_withdraw_or_share(self, agent: Visited):
        latin = task_named(agent.owner, "latin")["id"]
        refused(agent.owner.post(f"/tasks/{latin}/withdraw", json={}), 409, "only its teacher")
        refused(agent.owner.put(f"/tasks/{latin}/sharing", json={"sharing": "shared"}), 409, "only its teacher")

    def test_are_withdrawn_by_their_teacher(self, newcomer: Visited, tiny_tasks: Path):
        lesson = taught(newcomer.owner, "dice", images_of(tiny_tasks / "dice"), sharing="shared")
        sent = newcomer.owner.post(f"/tasks/{lesson['task_id']}/withdraw", json={"reason": "wrong images"})
        assert done(sent) == {"task": "dice", "version": 1}
        assert done(newcomer.owner.get("/tasks"))["tasks"] == []
        assert not (newcomer.core.home / VALIDATION / f"{lesson['task_id']}.safetensors").exists()

    def test_need_no_reason_to_be_withdrawn(self, newcomer: Visited, tiny_tasks: Path):
        lesson = taught(newcomer.owner, "dice", images_of(tiny_tasks / "dice"), sharing="shared")
        assert done(newcomer.owner.post(f"/tasks/{lesson['task_id']}/withdraw"))["task"] == "dice"

    def test_of_several_teachers_are_merged_and_split_again(
        self, agent: Visited, skill_files: dict[str, Path], mixed: list[Path]
    ):
        mine = task_named(agent.owner, "dice")["id"]
        theirs = done(agent.owner.put("/modules", content=skill_files["dice"].read_bytes()), 201)["id"]
        merged = done(agent.owner.post("/merges", json={"tasks": [mine, theirs], "name": "all dice"}), 201)
        try:
            assert (merged["task"], merged["own"], merged["sharing"]) == ("all dice", False, None)
            assert set(merged["merged"]["parts"]) == {mine, theirs}
            listed = {task["id"] for task in done(agent.owner.get("/tasks"))["tasks"]}
            assert merged["id"] in listed
            assert not {mine, theirs} & listed
            refused(agent.owner.delete(f"/tasks/{merged['id']}"), 409, "split it first")
            refused(agent.owner.get(f"/modules/{merged['id']}"), 409, "export its parts")
            refused(agent.owner.post(f"/tasks/{merged['id']}/withdraw", json={}), 409)
            refused(agent.owner.delete(f"/merges/{mine}"), 409, "not a merged task")
            answers = done(agent.owner.post("/ask", files=form(mixed[:4])))["answers"]
            assert "dice" not in {guess["task"] for answer in answers for guess in answer["guesses"]}
        finally:
            assert agent.owner.delete(f"/merges/{merged['id']}").status_code == 204
            assert agent.owner.delete(f"/tasks/{theirs}").status_code == 204
        assert {task["task"] for task in done(agent.owner.get("/tasks"))["tasks"]} == {"dice", "shapes", "latin"}

    def test_that_do_not_fit_each_other_are_not_merged(self, agent: Visited):
        ids = [task_named(agent.owner, name)["id"] for name in ("dice", "shapes")]
        with pytest.raises(SkillmeshError) as error:
            agent.core.merge(["dice", "shapes"])
        assert refused(agent.owner.post("/merges", json={"tasks": ids}), 422)["detail"] == str(error.value)
        refused(agent.owner.post("/merges", json={"tasks": [ids[0], NO_SUCH]}), 404, NO_SUCH)
        refused(agent.owner.post("/merges", json={"tasks": ids[:1]}), 422, "tasks")


class TestLessons:
    def test_a_task_is_taught_from_its_first_image_to_its_report(self, newcomer: Visited, tiny_tasks: Path):
        owner = newcomer.owner
        images = images_of(tiny_tasks / "dice")
        draft = done(owner.post("/lessons", json={"task": "dice"}), 201)
        assert (draft["state"], draft["classes"], draft["extends"], draft["progress"]) == (
            "draft",
            [],
            False,
            None,
        )
        assert draft["hints"] == ["two classes with images are needed; there are none so far"]
        route = f"/lessons/{draft['id']}"
        first = next(iter(images))
        assert done(owner.post(f"{route}/classes", json={"name": "mistyped"}))["classes"] == [
            {"name": "mistyped", "images": 0, "known": False}
        ]
        renamed = done(owner.request("PATCH", f"{route}/classes", json={"name": "mistyped", "new_name": first}))
        assert [cls["name"] for cls in renamed["classes"]] == [first]
        refused(owner.post(f"{route}/start", json={"sharing": "never"}), 422, "two classes with images")
        for name, paths in images.items():
            sent = done(owner.post(f"{route}/images", params={"class": name}, files=form(paths)))
            assert [len(sent["added"]), sent["refused"]] == [len(paths), []]
            listed = done(owner.get(f"{route}/images", params={"class": name}))["images"]
            assert listed == sent["added"]
            small = owner.get(newcomer.page.url + listed[0]["url"])
            assert small.headers["content-type"] == "image/jpeg"
            assert small.content.startswith(b"\xff\xd8")
        with following(owner) as events:
            assert started(owner, draft["id"], note="six sides", tags=["game"], licence="CC0")["state"] in (
                "waiting",
                "learning",
                "done",
            )
            lesson = ended(owner, draft["id"])
            eventually(lambda: {"tasks", "lessons"} <= events.topics(), why="the events say what changed")
        progress = [event["progress"] for event in events.lessons() if event["id"] == draft["id"]]
        assert any(each["total"] and each["done"] == each["total"] for each in progress)
        assert (lesson["state"], lesson["error"], lesson["hints"], lesson["progress"]) == ("done", None, [], None)
        task = done(owner.get(f"/tasks/{lesson['task_id']}"))
        assert (task["note"], task["tags"], task["licence"]) == ("six sides", ["game"], "CC0")
        assert (task["sharing"], task["own"]) == ("later", True)
        report = task["report"]
        assert report == lesson["report"]
        assert report["accuracy"] == task["accuracy"]
        assert {each["class"] for each in report["classes"]} == set(images)
        assert (
            sum(map(sum, report["matrix"])) + sum(each["given_other_task"] for each in report["classes"])
            == (task["validation_images"])
        )
        for wrong in report["wrong"]:
            assert owner.get(newcomer.page.url + wrong["url"]).status_code == 200
        assert done(newcomer.guest.get(f"/tasks/{lesson['task_id']}"))["report"] is None
        refused(owner.post(f"{route}/start", json={}), 409, "was learned")

    def test_a_correction_extends_the_task_with_old_and_new_classes(self, newcomer: Visited, tiny_tasks: Path):
        owner, images = newcomer.owner, images_of(tiny_tasks / "dice")
        before = taught(owner, "dice", images)
        correction = done(owner.post("/lessons", json={"task": "dice", "extends": True}), 201)
        again = done(owner.post("/lessons", json={"task": "dice", "extends": True}), 200)
        assert again["id"] == correction["id"]
        route, known = f"/lessons/{correction['id']}", next(iter(images))
        test = images_of(tiny_tasks / "dice", "test")
        added = done(owner.post(f"{route}/images", params={"class": known}, files=form(test[known])))
        assert added["lesson"]["classes"] == [{"name": known, "images": 2, "known": True}]
        new = some_of(tiny_tasks / "shapes")
        owner.post(f"{route}/images", params={"class": "new shape"}, files=form(new))
        started(owner, correction["id"], sharing="later")
        lesson = ended(owner, correction["id"])
        assert lesson["state"] == "done", lesson
        task = task_named(owner, "dice")
        assert task["id"] == lesson["task_id"] != before["task_id"]
        assert (task["version"], task["sharing"]) == (2, "later")
        counts = {cls["name"]: cls["images"] for cls in task["classes"]}
        assert set(counts) == {*images, "new shape"}
        assert counts[known] > 4

    def test_only_an_own_task_can_be_extended(self, agent: Visited):
        for name in ("latin", "unheard of"):
            with pytest.raises(SkillmeshError) as error:
                agent.core.own_classes(name)
            sent = agent.owner.post("/lessons", json={"task": name, "extends": True})
            assert refused(sent, 404)["detail"] == str(error.value)

    def test_a_known_task_is_replaced_only_on_request(self, newcomer: Visited, tiny_tasks: Path):
        images = images_of(tiny_tasks / "dice")
        taught(newcomer.owner, "dice", images)
        second = drafted(newcomer.owner, "dice", images)
        refused(newcomer.owner.post(f"/lessons/{second}/start", json={"sharing": "later"}), 409, "dice")
        assert done(newcomer.owner.get(f"/lessons/{second}"))["state"] == "draft"
        started(newcomer.owner, second, replace=True)
        assert ended(newcomer.owner, second)["state"] == "done"
        assert task_named(newcomer.owner, "dice")["version"] == 2

    def test_a_cancelled_lesson_can_be_started_again(self, newcomer: Visited, long_task: dict[str, list[Path]]):
        owner = newcomer.owner
        lesson = drafted(owner, "latin", long_task)
        refused(owner.post(f"/lessons/{lesson}/cancel"), 409, "not being learned")
        started(owner, lesson)
        refused(owner.post(f"/lessons/{lesson}/classes", json={"name": "late"}), 409, "being learned")
        refused(owner.post(f"/lessons/{lesson}/start", json={}), 409, "being learned")
        refused(owner.delete(f"/lessons/{lesson}"), 409, "being learned")
        done(owner.post(f"/lessons/{lesson}/cancel"))
        assert ended(owner, lesson)["state"] == "cancelled"
        assert task_named(owner, "latin") is None
        started(owner, lesson)
        assert ended(owner, lesson)["state"] == "done"

    def test_a_lesson_that_waits_is_cancelled_at_once(
        self, newcomer: Visited, long_task: dict[str, list[Path]], tiny_tasks: Path
    ):
        owner = newcomer.owner
        long = drafted(owner, "latin", long_task)
        waits = drafted(owner, "dice", images_of(tiny_tasks / "dice"))
        started(owner, long)
        started(owner, waits)
        assert done(owner.post(f"/lessons/{waits}/cancel"))["state"] == "cancelled"
        started(owner, waits)
        assert ended(owner, long)["state"] == "done"
        assert ended(owner, waits)["state"] == "done"
        assert task_named(owner, "dice")["version"] == 1

    def test_two_starts_at_once_learn_it_once_and_the_next_one_is_learned_too(
        self, newcomer: Visited, tiny_tasks: Path
    ):
        owner = newcomer.owner
        lesson = drafted(owner, "dice", images_of(tiny_tasks / "dice"))
        together, statuses = threading.Barrier(8), []

        def start() -> None:
            together.wait()
            statuses.append(owner.post(f"/lessons/{lesson}/start", json={"replace": True}).status_code)

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(statuses) == [202] + 7 * [409]
        assert ended(owner, lesson)["state"] == "done"
        assert taught(owner, "shapes", images_of(tiny_tasks / "shapes"))["state"] == "done"
        assert task_named(owner, "dice")["version"] == 1

    def test_a_lesson_interrupted_by_a_restart_can_be_started_again(
        self, new_agent: Callable[..., Core], long_task: dict[str, list[Path]]
    ):
        core = new_agent("restarted")
        with visited(core) as first:
            lesson = drafted(first.owner, "latin", long_task)
            started(first.owner, lesson)
            eventually(
                lambda: done(first.owner.get(f"/lessons/{lesson}"))["state"] == "learning", why="it is learned"
            )
            kept = Lessons(core, lambda _: None)  # as if the process had been killed just now
            found = kept.find(lesson)
            assert (found.record.state, found.counts()) == ("interrupted", {"grey": 60, "noise": 60})
            kept.close()
        with visited(core) as second:
            found = done(second.owner.get(f"/lessons/{lesson}"))
            assert found["state"] == "interrupted"  # its owner did not cancel it
            assert "start it again" in found["error"]
            started(second.owner, lesson)
            assert ended(second.owner, lesson)["state"] == "done"

    def test_a_zip_of_a_task_is_added_without_its_test_images(self, newcomer: Visited, tiny_tasks: Path):
        files = {
            f"task/{split}/{path.parent.name}/{path.name}": path.read_bytes()
            for split in ("train", "val", "test")
            for paths in images_of(tiny_tasks / "dice", split).values()
            for path in paths
        }
        first = next(iter(images_of(tiny_tasks / "dice")))
        files[f"task/train/{first}/broken.jpg"] = b"no image"
        lesson = drafted(newcomer.owner, "dice", {})
        sent = done(newcomer.owner.post(f"/lessons/{lesson}/archive", content=zipped(files)))
        assert {cls["name"]: cls["images"] for cls in sent["lesson"]["classes"]} == counts(tiny_tasks / "dice")
        assert len(sent["added"]) == sent["lesson"]["images"]
        assert [refusal["name"].rpartition("/")[2] for refusal in sent["refused"]] == ["broken.jpg"]
        started(newcomer.owner, lesson)
        assert ended(newcomer.owner, lesson)["state"] == "done"

    def test_two_zips_may_arrive_at_the_same_time(self, newcomer: Visited, tiny_tasks: Path):
        lesson = drafted(newcomer.owner, "dice", {})
        for_each = [
            zipped({f"{name} {s}/{i}.png": path.read_bytes() for i, path in enumerate(paths) for s in "ab"})
            for name, paths in images_of(tiny_tasks / "dice").items()
        ]
        answers: list[Any] = []
        threads = [
            threading.Thread(
                target=lambda c=content: answers.append(
                    newcomer.owner.post(f"/lessons/{lesson}/archive", content=c)
                )
            )
            for content in for_each
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in answers] == [200, 200], [answer.text for answer in answers]
        assert done(newcomer.owner.get(f"/lessons/{lesson}"))["images"] == 16
        assert not list((newcomer.core.home / "lessons" / lesson).glob("*.zip"))

    def test_what_is_no_zip_is_refused_and_leaves_nothing(self, newcomer: Visited):
        lesson = drafted(newcomer.owner, "dice", {})
        for content in (b"no zip", zipped({"readme.txt": b"text"}), b""):
            refused(newcomer.owner.post(f"/lessons/{lesson}/archive", content=content), 422)
        assert done(newcomer.owner.get(f"/lessons/{lesson}"))["images"] == 0
        assert sorted(path.name for path in (newcomer.core.home / "lessons" / lesson).iterdir()) == ["lesson.json"]

    def test_images_that_cannot_be_read_are_named_with_the_reason(self, newcomer: Visited, mixed: list[Path]):
        lesson = drafted(newcomer.owner, "dice", {})
        parts = [*form(mixed[:1]), ("images", ("holiday.heic", b"not really"))]
        sent = done(newcomer.owner.post(f"/lessons/{lesson}/images", params={"class": "one"}, files=parts))
        assert (len(sent["added"]), sent["refused"][0]["name"]) == (1, "holiday.heic")
        assert sent["refused"][0]["reason"]

    def test_images_and_classes_are_removed_again(self, newcomer: Visited, tiny_tasks: Path):
        owner, images = newcomer.owner, images_of(tiny_tasks / "dice")
        lesson = drafted(owner, "dice", images)
        route, (first, second) = f"/lessons/{lesson}", images
        url = done(owner.get(f"{route}/images", params={"class": first}))["images"][0]["url"]
        assert owner.delete(newcomer.page.url + url).json()["images"] == 7
        refused(owner.get(newcomer.page.url + url), 404)
        left = done(owner.request("DELETE", f"{route}/classes", params={"name": second}))
        assert [(cls["name"], cls["images"]) for cls in left["classes"]] == [(first, 3)]
        assert len(list((newcomer.core.home / route[1:] / "images").iterdir())) == 3
        refused(owner.get(f"{route}/images", params={"class": second}), 404, second)
        refused(owner.request("PATCH", f"{route}/classes", json={"name": second, "new_name": "x"}), 404, second)
        done(owner.post(f"{route}/classes", json={"name": second}))
        refused(
            owner.request("PATCH", f"{route}/classes", json={"name": second, "new_name": first}), 409, "already"
        )
        assert owner.delete(route).status_code == 204
        assert not (newcomer.core.home / route[1:]).exists()
        refused(owner.get(route), 404, "/api/v1/lessons")

    def test_a_deleted_lesson_leaves_the_learned_task(self, newcomer: Visited, tiny_tasks: Path):
        lesson = taught(newcomer.owner, "dice", images_of(tiny_tasks / "dice"))
        assert newcomer.owner.delete(f"/lessons/{lesson['id']}").status_code == 204
        assert done(newcomer.owner.get(f"/tasks/{lesson['task_id']}"))["report"] is None

    @pytest.mark.parametrize("name", ["", " ", "a\nb", "a\0b", "x" * 201, "\u202egnp"])
    def test_names_that_no_folder_or_reader_should_meet_are_refused(self, newcomer: Visited, name: str):
        before = done(newcomer.owner.get("/lessons"))["lessons"]
        refused(newcomer.owner.post("/lessons", json={"task": name}), 422)
        refused(newcomer.owner.post("/lessons", json={"task": "good", "classes": ["good", name]}), 422)
        assert done(newcomer.owner.get("/lessons"))["lessons"] == before  # refused as a whole
        lesson = drafted(newcomer.owner, "good", {})
        refused(newcomer.owner.post(f"/lessons/{lesson}/classes", json={"name": name}), 422)

    @pytest.mark.parametrize("name", ["a/b", "a\\b", "x" * 101, "dice@alice~12345678", "f" * 64])
    def test_names_that_learning_would_refuse_are_refused_before_images_are_sent(
        self, newcomer: Visited, name: str
    ):
        with pytest.raises(SkillmeshError) as error:
            newcomer.core.refuse_to_learn(name)
        assert refused(newcomer.owner.post("/lessons", json={"task": name}), 422)["detail"] == str(error.value)

    def test_names_are_the_same_however_a_keyboard_writes_them(self, newcomer: Visited, tiny_tasks: Path):
        apart, whole = "cafe\u0301", "caf\u00e9"
        lesson = drafted(newcomer.owner, f" {apart} ", {apart: some_of(tiny_tasks / "dice")})
        route = f"/lessons/{lesson}"
        sent = newcomer.owner.post(
            f"{route}/images", params={"class": f"{whole} "}, files=form(some_of(tiny_tasks / "dice", "test"))
        )
        facts = done(sent)["lesson"]
        assert facts["task"] == whole
        assert [(cls["name"], cls["images"]) for cls in facts["classes"]] == [(whole, 6)]
        assert len(done(newcomer.owner.get(f"{route}/images", params={"class": apart}))["images"]) == 6

    def test_misspelt_options_are_named(self, newcomer: Visited):
        refused(newcomer.owner.post("/lessons", json={"task": "a", "extend": True}), 422, "extend")

    def test_many_requests_at_once_lose_nothing(self, newcomer: Visited, tiny_tasks: Path):
        owner = newcomer.owner
        lesson = drafted(owner, "dice", {})
        image = some_of(tiny_tasks / "dice")[:1]
        statuses: list[int] = []

        def work(number: int) -> None:
            for turn in range(4):
                sent = owner.post(
                    f"/lessons/{lesson}/images", params={"class": f"{number % 3}"}, files=form(image)
                )
                owner.post(f"/lessons/{lesson}/classes", json={"name": f"{number}-{turn}"})
                removed = owner.request(
                    "DELETE", f"/lessons/{lesson}/classes", params={"name": f"{number}-{turn}"}
                )
                statuses.extend((sent.status_code, removed.status_code, owner.get("/lessons").status_code))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200}
        assert done(owner.get(f"/lessons/{lesson}"))["images"] == 32


def some_of(task: Path, *splits: str) -> list[Path]:
    """Return the images of a task's first class."""
    return next(iter(images_of(task, *splits).values()))


def counts(task: Path) -> dict[str, int]:
    return {name: len(paths) for name, paths in images_of(task).items()}


class TestSharing:
    @pytest.mark.parametrize("choice", ["later", "never"])
    def test_a_task_reaches_others_only_once_it_is_shared(
        self, new_agent: Callable[..., Core], tiny_tasks: Path, choice: str
    ):
        port = free_port()
        with visited(new_agent("teacher"), port) as teacher, visited(new_agent("student"), port) as student:
            kept = taught(teacher.owner, "dice", images_of(tiny_tasks / "dice"), sharing=choice)
            taught(teacher.owner, "shapes", images_of(tiny_tasks / "shapes"), sharing="shared")
            eventually(lambda: task_named(student.owner, "shapes"), why="the shared task arrives")
            assert student.node.sync(20)
            assert task_named(student.owner, "dice") is None
            assert "dice" not in {slot.task for slot in student.core.ledger.view().known}
            route = f"/tasks/{kept['task_id']}/sharing"
            other = {"later": "never", "never": "later"}[choice]
            assert done(teacher.owner.put(route, json={"sharing": other}))["sharing"] == other
            assert done(teacher.owner.put(route, json={"sharing": "shared"}))["sharing"] == "shared"
            eventually(lambda: task_named(student.owner, "dice"), why="the task arrives once it is shared")
            refused(teacher.owner.put(route, json={"sharing": "never"}), 422, "shared already", "withdraw")
            refused(teacher.owner.put(route, json={"sharing": "maybe"}), 422, "sharing")

    def test_an_extended_task_stays_as_private_as_it_was(self, new_agent: Callable[..., Core], tiny_tasks: Path):
        images = images_of(tiny_tasks / "dice")
        with visited(new_agent("teacher")) as teacher:
            taught(teacher.owner, "dice", images, sharing="never")
            more = drafted(teacher.owner, "dice", images_of(tiny_tasks / "dice", "test"), extends=True)
            started(teacher.owner, more, sharing="later")
            assert ended(teacher.owner, more)["state"] == "done"
            assert task_named(teacher.owner, "dice")["sharing"] != "shared"
            assert not teacher.core.ledger.view().known

    def test_withdrawing_a_task_that_was_never_shared_tells_nobody_its_name(
        self, newcomer: Visited, tiny_tasks: Path
    ):
        lesson = taught(newcomer.owner, "dice", images_of(tiny_tasks / "dice"), sharing="never")
        sent = newcomer.owner.post(f"/tasks/{lesson['task_id']}/withdraw", json={})
        refused(sent, 422, "never shared", "forget")
        assert not newcomer.core.ledger.view().known
        assert task_named(newcomer.owner, "dice")


class TestTheMesh:
    def test_shows_the_other_agents(self, new_agent: Callable[..., Core], skill_files: dict[str, Path]):
        port, teacher = free_port(), new_agent("teacher")
        teacher.import_file(skill_files["dice"])
        with visited(teacher, port) as one, visited(new_agent("student"), port) as other:
            assert done(other.owner.post("/mesh/sync"), 202) == {"asked": True}
            peers = eventually(
                lambda: [peer for peer in done(other.owner.get("/peers"))["peers"] if peer["tasks"] is not None],
                why="they meet",
            )
            assert [(peer["agent"], peer["alive"]) for peer in peers] == [(one.core.identity.public_key, True)]
            status = done(other.guest.get("/mesh"))
            assert (status["name"], status["network"], status["trust"]) == ("student", "machine", "open")
            assert [peer["agent"] for peer in status["peers"]] == [one.core.identity.public_key]
            key = one.core.identity.public_key
            other.node.blame(key, "a test")
            assert done(other.owner.get("/peers"))["peers"][0]["banned"] == "a test"
            assert other.owner.delete(f"/bans/{key}").status_code == 204
            assert done(other.owner.get("/peers"))["peers"][0]["banned"] is None
            refused(other.owner.delete(f"/bans/{key}"), 404, "not banned")


class TestTrust:
    def test_of_a_teacher_whose_code_is_scanned_brings_its_tasks(
        self, new_agent: Callable[..., Core], tiny_tasks: Path, tmp_path: Path
    ):
        port = free_port()
        teacher_core = new_agent("Ünlü Teacher")
        teacher_core.learn(tiny_tasks / "dice")
        with (
            visited(teacher_core, port, trust="listed") as teacher,
            visited(new_agent("student"), port, trust="listed") as student,
        ):
            key = teacher.core.identity.public_key
            mine = done(teacher.owner.get("/trust"))["mine"]
            assert (mine["key"], mine["name"]) == (key, "Ünlü Teacher")
            scanned = done(
                student.owner.post(
                    "/trust/scan", content=photographed(mine["qr_url"]), headers={"Content-Type": "image/png"}
                )
            )
            assert scanned == {"key": key, "name": "Ünlü Teacher"}
            seen = eventually(lambda: done(student.owner.get("/trust"))["seen"], why="the announcement is seen")
            assert [(each["teacher_key"], each["tasks"]) for each in seen] == [(key, ["dice"])]
            assert task_named(student.owner, "dice") is None

            assert done(student.owner.put(f"/trust/{key}", json={"name": "my teacher"}))["key"] == key
            assert done(student.owner.get("/trust"))["trusted"] == [{"key": key, "name": "my teacher"}]
            task = eventually(lambda: task_named(student.owner, "dice"), why="the task arrives")
            assert task["teacher"] == "my teacher"

            assert done(student.owner.delete(f"/trust/{key}")) == {"moved": 1}
            assert task_named(student.owner, "dice") is None
            held = done(student.owner.get("/quarantine"))["held"]
            assert [(each["id"], each["task"], each["teacher_key"]) for each in held] == [
                (task["id"], "dice", key)
            ]
            assert held[0]["classes"] == [cls["name"] for cls in task["classes"]]
            refused(student.owner.delete(f"/trust/{key}"), 404, key)

            assert done(student.owner.post(f"/quarantine/{task['id']}/release"))["id"] == task["id"]
            assert task_named(student.owner, "dice")["id"] == task["id"]
            refused(student.owner.post(f"/quarantine/{task['id']}/release"), 404)

            student.owner.put(f"/trust/{key}")  # a name is not needed
            student.owner.delete(f"/trust/{key}")
            assert student.owner.delete(f"/quarantine/{task['id']}").status_code == 204
            assert done(student.owner.get("/quarantine"))["held"] == []
            assert Shelf(student.core.home, student.core.ledger).held() == []

    def test_of_an_odd_key_is_refused(self, agent: Visited):
        refused(agent.owner.put("/trust/abc", json={}), 422, "abc")
        refused(agent.owner.put(f"/trust/{agent.core.identity.public_key}", json={}), 422, "own key")
        refused(agent.owner.put(f"/trust/{NO_SUCH}", json={"name": "\x1b[31m"}), 422)
        assert done(agent.owner.get("/trust"))["trusted"] == []

    def test_a_picture_without_a_code_is_refused_with_advice(self, agent: Visited, mixed: list[Path]):
        kind = {"Content-Type": "image/png"}
        refused(agent.owner.post("/trust/scan", content=mixed[0].read_bytes(), headers=kind), 422, "no QR code")
        refused(agent.owner.post("/trust/scan", content=b"no picture", headers=kind), 422, "cannot be read")
        other = agent.owner.post("/trust/scan", content=picture_of_code("https://example.org"), headers=kind)
        refused(other, 422, "a QR code of something else")


def photographed(url: str) -> bytes:
    """Return a picture of the code in an SVG image, as a camera would see it: drawn from the SVG itself."""
    svg, scale = base64.b64decode(url.partition(",")[2]).decode(), 8
    side = int(re.search(r'<svg width="(\d+)"', svg)[1])  # type: ignore[index]
    image = Image.new("RGB", (side * scale, side * scale), "white")
    draw = ImageDraw.Draw(image)
    for numbers in re.findall(r"M(\d+) (\d+)h(\d+)v(\d+)h-\d+Z", svg):
        x, y, width, height = (scale * int(number) for number in numbers)
        draw.rectangle((x, y, x + width - 1, y + height - 1), fill="black")
    return as_png(image)


def picture_of_code(text: str) -> bytes:
    import zxingcpp

    code = zxingcpp.create_barcode(text, zxingcpp.BarcodeFormat.QRCode).to_image()
    return as_png(Image.fromarray(np.asarray(code)).resize((300, 300), Image.Resampling.NEAREST))


def as_png(image: Any) -> bytes:
    content = io.BytesIO()
    image.convert("RGB").save(content, "PNG")
    return content.getvalue()


class TestEvents:
    def test_say_which_parts_have_changed(
        self, newcomer: Visited, skill_files: dict[str, Path], tiny_taught: Core
    ):
        with following(newcomer.owner) as events:
            name, hello = events.events[0]
            assert (name, set(hello["topics"])) == (
                "hello",
                {"agent", "tasks", "lessons", "mesh", "trust", "quarantine"},
            )
            assert events.kind.startswith("text/event-stream")
            drafted(newcomer.owner, "dice", {})
            eventually(lambda: "lessons" in events.topics(), why="a lesson was begun")
            newcomer.owner.put("/modules", content=skill_files["dice"].read_bytes())
            eventually(lambda: "tasks" in events.topics(), why="a task was imported")
            done(newcomer.owner.put(f"/trust/{tiny_taught.identity.public_key}", json={"name": "someone"}))
            eventually(lambda: "trust" in events.topics(), why="a teacher is trusted")

    def test_tell_guests_nothing_of_what_they_may_not_read(
        self, newcomer: Visited, tiny_tasks: Path, tiny_taught: Core
    ):
        with following(newcomer.guest) as events:
            lesson = taught(newcomer.owner, "private dice", images_of(tiny_tasks / "dice"), sharing="never")
            done(newcomer.owner.put(f"/trust/{tiny_taught.identity.public_key}"))
            eventually(lambda: "tasks" in events.topics(), why="the task is there")
            assert lesson["state"] == "done"
        assert events.lessons() == []
        assert {name for name, _ in events.events} <= {"hello", "changed"}
        for _, data in events.events:
            assert set(data["topics"]) <= {"agent", "tasks", "mesh"}


class TestTheDocumentation:
    def test_is_a_page_and_a_document(self, agent: Visited):
        schema = done(agent.guest.get(f"{agent.page.url}/openapi.json"))
        page = agent.guest.get(f"{agent.page.url}/docs")
        assert page.headers["content-type"].startswith("text/html")
        for path in schema["paths"]:
            assert path in page.text
        assert "<script" not in page.text
        assert "style=" not in page.text

    def test_what_is_not_there_is_a_problem_too(self, agent: Visited):
        refused(agent.owner.get("/nothing"), 404, "/docs")
        refused(agent.owner.request("PATCH", "/agent"), 405, "method")
        refused(agent.owner.get(f"{agent.page.url}/static/nothing.js"), 404)
        refused(agent.owner.post("/lessons", content=b"{", headers={"Content-Type": "application/json"}), 422)
