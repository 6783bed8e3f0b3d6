"""The HTTP API: what the page and other programs can ask a running node to do (docs/howto/page.md)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from io import BytesIO
from typing import Annotated, Any, Literal
from urllib.parse import quote

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response, StreamingResponse

from skillmesh.common.choices import Sharing
from skillmesh.common.text import Lookalikes
from skillmesh.common.version import __version__
from skillmesh.core import Core
from skillmesh.data.formats import IMAGE_SUFFIXES
from skillmesh.data.images import decode_rgb
from skillmesh.data.inputs import AnyImage
from skillmesh.data.sources import MAX_FILE_BYTES
from skillmesh.errors import DataError
from skillmesh.mesh.node import Node
from skillmesh.mesh.shelf import HeldModule, Shelf, distrust
from skillmesh.mesh.shelf import trust as trust_teacher
from skillmesh.mesh.status import node_status, peer_list
from skillmesh.module import Module
from skillmesh.module.notice import Announcement, MergedTask
from skillmesh.page import codes, facts
from skillmesh.page.demo import Demo
from skillmesh.page.guard import BODY_BYTES
from skillmesh.page.lessons import BUSY, MOST_IMAGES, Lesson, Lessons
from skillmesh.page.problems import RESPONSES, conflict, not_found
from skillmesh.page.uploads import MOST_IMAGES as IMAGES_AT_ONCE
from skillmesh.page.uploads import Upload, body_on_disk, images_of
from skillmesh.page.watch import FOR_GUESTS, TOPICS, Watch
from skillmesh.synergy.links import end_link

THUMBNAIL = 160
"""Most pixels on the longer side of a lesson's image as the page shows it."""
MOST_MODULE_BYTES = 64_000_000

IMAGES_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {"images": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                }
            },
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            "image/jpeg": {"schema": {"type": "string", "format": "binary"}},
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {"images": {"type": "array", "items": {"type": "string", "format": "byte"}}},
                }
            },
        },
    }
}
FORM_BODY = {
    "requestBody": {
        "content": {"multipart/form-data": IMAGES_BODY["requestBody"]["content"]["multipart/form-data"]}
    }
}
FILE_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
A_FILE: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}}}
A_JPEG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/jpeg": {}}}}


class Body(BaseModel):
    """A JSON body; unknown names are refused, so that a misspelt one does not go unnoticed."""

    model_config = ConfigDict(extra="forbid")


Name = Annotated[str, Field(min_length=1, max_length=200)]


class NewLesson(Body):
    task: Name
    extends: bool = False
    classes: list[Name] = Field(default=[], max_length=2_000)


class NewClass(Body):
    name: Name


class RenamedClass(Body):
    name: Name
    new_name: Name


class Start(Body):
    sharing: Sharing = "shared"
    licence: str | None = Field(default=None, max_length=200)
    note: str | None = Field(default=None, max_length=2_000)
    tags: list[Name] = Field(default=[], max_length=32)
    replace: bool = False


class SharingChoice(Body):
    sharing: Sharing


class Reason(Body):
    reason: str | None = Field(default=None, max_length=500)


class Merge(Body):
    tasks: list[str] = Field(min_length=2, max_length=64)
    name: Name | None = None


class GivenName(Body):
    name: str = Field(default="", max_length=200)


NO_REASON, NO_NAME = Reason(), GivenName()


class Service:
    """The agent, its node, and what the API adds to them."""

    def __init__(self, agent: Core, node: Node, workers: int) -> None:
        self.agent, self.node = agent, node
        self.watch = Watch(agent, node)
        self.lessons = Lessons(agent, self._lesson_changed)
        self.demo = Demo(agent, self.lessons)
        self.shelf = Shelf(agent.home, agent.ledger)
        self.computing = CapacityLimiter(workers)
        """Questions that are answered at the same time: more would wait for the processor, and hold memory."""
        self.changing = threading.Lock()
        """Held while the bank or the ledger is changed, so that two requests do not contradict each other."""

    def close(self) -> None:
        self.lessons.close()
        self.watch.close()

    def lesson_facts(self, lesson: Lesson) -> dict[str, Any]:
        own = self.agent.bank.held(lesson.record.task, self.agent.identity.public_key)
        return lesson.as_dict(own.card.classes if own is not None and lesson.record.extends else ())

    def _lesson_changed(self, lesson: Lesson | None) -> None:
        if lesson is not None and lesson.record.state in BUSY:
            self.watch.tell("lesson", self.lesson_facts(lesson))
        else:
            self.watch.tell("changed", {"topics": ["lessons", "agent"]})

    @contextmanager
    def change(self) -> Iterator[Core]:
        """Yield the agent to change it; the change counts in the next answer."""
        with self.changing:
            self.agent.bank.refresh()
            yield self.agent
            self.agent.count_own_change()


# These two are async so that they take no thread, of which a slow disk might leave none.


async def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def role_of(request: Request) -> Literal["owner", "guest"]:
    role: Literal["owner", "guest"] = request.scope["state"]["role"]
    return role


Served = Annotated[Service, Depends(service_of)]
Role = Annotated[Literal["owner", "guest"], Depends(role_of)]
ClassName = Annotated[str, Query(alias="class", min_length=1, max_length=200)]

api = APIRouter(prefix="/api/v1", responses=RESPONSES)


# The agent.


@api.get("/agent", response_model=facts.AgentShape, tags=["agent"])
def agent(service: Served, role: Role) -> Any:
    """Return the agent's name and key, and the limits of this API."""
    tasks = len(service.agent.bank)
    return {
        "name": service.agent.name,
        "key": service.agent.identity.public_key,
        "role": role,
        "version": __version__,
        "tasks": tasks,
        "first_visit": role == "owner" and not tasks and not service.lessons.all(),
        "limits": {
            "image_bytes": MAX_FILE_BYTES,
            "body_bytes": BODY_BYTES,
            "images_per_ask": IMAGES_AT_ONCE,
            "lesson_images": MOST_IMAGES,
        },
        "suffixes": sorted(IMAGE_SUFFIXES),
        "demo": service.demo.state if role == "owner" else False,
    }


@api.post("/demo", status_code=HTTPStatus.ACCEPTED, response_model=facts.LessonList, tags=["agent"])
def begin_demo(service: Served) -> Any:
    """Draw the demo tasks and learn them; each becomes a lesson."""
    service.demo.begin()
    return {"lessons": [service.lesson_facts(lesson) for lesson in service.lessons.all()]}


@api.get("/demo/images", tags=["agent"])
def demo_images(service: Served) -> dict[str, list[dict[str, str]]]:
    """Return some test images of the demo tasks, to ask about."""
    return {"images": service.demo.images()}


@api.get("/demo/images/{image}", response_class=Response, responses=A_JPEG, tags=["agent"])
def demo_image(service: Served, image: str) -> Response:
    """Return one of these images."""
    return Response(service.demo.image(image), media_type="image/jpeg")


# Ask.


@api.post("/ask", response_model=facts.Answers, openapi_extra=IMAGES_BODY, tags=["ask"])
async def ask(request: Request, service: Served) -> Any:
    """Answer images: a form with files named `images`, one image as the body, or base64 in JSON."""
    began = time.perf_counter()
    async with images_of(request) as images:
        answers = await to_thread.run_sync(_answered, service, images, limiter=service.computing)
    milliseconds = round(1000 * (time.perf_counter() - began), 1)
    return JSONResponse({"answers": answers, "milliseconds": milliseconds})  # as it is: checking takes as long


def _answered(service: Service, images: Sequence[AnyImage]) -> list[dict[str, Any]]:
    agent = service.agent
    if not len(agent.bank):
        raise conflict("this agent knows no task yet; teach it one, import one, or wait until one arrives")
    return [facts.answer_facts(answer, agent) for answer in agent.answer_each(images)]


@api.post("/describe", response_model=facts.Descriptors, openapi_extra=IMAGES_BODY, tags=["ask"])
async def describe(request: Request, service: Served) -> Any:
    """Return the descriptors of images, one row of numbers for each."""
    async with images_of(request) as images:
        rows = await to_thread.run_sync(_described, service.agent, images, limiter=service.computing)
    return {"width": len(rows[0]), "descriptors": rows}


def _described(agent: Core, images: Sequence[AnyImage]) -> list[list[float]]:
    described = agent.backbone.describe(images)
    if described.unreadable:
        first = described.unreadable[0]
        raise DataError(f"{first.name}: {first.reason}; it has no descriptor; leave it out or replace it")
    rows: list[list[float]] = agent.represent(described.raw).tolist()
    return rows


# Tasks and modules.


@api.get("/tasks", response_model=facts.Tasks, tags=["tasks"])
def tasks(service: Served) -> Any:
    """Return the tasks that answers come from."""
    return {"tasks": facts.all_tasks(service.agent)}


@api.get("/tasks/{module_id}", response_model=facts.TaskWithReport, tags=["tasks"])
def task(service: Served, role: Role, module_id: str) -> Any:
    """Return one task; with the report of how it was learned, if it was taught here."""
    report = service.lessons.report_of(module_id) if role == "owner" else None
    return _task(service, module_id) | {"report": report}


def _task(service: Service, module_id: str) -> dict[str, Any]:
    module = facts.find_task(service.agent, module_id)
    return facts.task_facts(module, service.agent, Lookalikes(m.card.task for m in service.agent.bank))


@api.delete("/tasks/{module_id}", status_code=HTTPStatus.NO_CONTENT, tags=["tasks"])
def forget(service: Served, module_id: str) -> None:
    """Forget a task. It leaves no trace in the answers, and is not fetched again."""
    with service.change() as agent:
        module = facts.find_task(agent, module_id)
        if isinstance(module, MergedTask):
            raise conflict(f"{module.card.task!r} is merged; split it first, or forget its parts")
        agent.forget(facts.selector_of(module))


@api.post("/tasks/{module_id}/withdraw", tags=["tasks"])
def withdraw(service: Served, module_id: str, body: Reason = NO_REASON) -> dict[str, Any]:
    """Withdraw one of the agent's own tasks: every agent that gets the notice stops using it."""
    with service.change() as agent:
        module = _own(agent, module_id)
        notice = agent.withdraw(module.card.task, body.reason)
    return {"task": notice.task, "version": notice.version}


@api.put("/tasks/{module_id}/sharing", response_model=facts.TaskShape, tags=["tasks"])
def choose_sharing(service: Served, module_id: str, body: SharingChoice) -> Any:
    """Share one of the agent's own tasks that was kept here, or decide to keep it."""
    with service.change() as agent:
        module = agent.choose_sharing(_own(agent, module_id).card.task, body.sharing)
    return _task(service, module.id)


def _own(agent: Core, module_id: str) -> Module:
    module = facts.find_task(agent, module_id)
    if isinstance(module, MergedTask) or module.card.teacher_key != agent.identity.public_key:
        raise conflict(f"{module.card.task!r} is not this agent's own task; only its teacher can do that")
    return module


@api.post("/merges", status_code=HTTPStatus.CREATED, response_model=facts.TaskShape, tags=["tasks"])
def merge(service: Served, body: Merge) -> Any:
    """Make one task of tasks of several teachers, and announce that to other agents."""
    with service.change() as agent:
        parts = [facts.selector_of(facts.find_task(agent, module_id)) for module_id in body.tasks]
        link = agent.merge(parts, body.name)
        merged = next((m for m in agent.merged() if m.link.digest == link.digest), None)
    if merged is None:
        raise conflict(f"the parts of {link.task!r} were changed meanwhile; merge those that are there now")
    return _task(service, merged.id)


@api.delete("/merges/{module_id}", status_code=HTTPStatus.NO_CONTENT, tags=["tasks"])
def unmerge(service: Served, module_id: str) -> None:
    """Split a merged task into its parts again."""
    with service.change() as agent:
        merged = facts.find_task(agent, module_id)
        if not isinstance(merged, MergedTask):
            raise conflict(f"{merged.card.task!r} is not a merged task; nothing was split")
        end_link(agent, merged.link)  # not by its name, which a link of another agent may have too


@api.get("/modules/{module_id}", response_class=Response, responses=A_FILE, tags=["tasks"])
def export(service: Served, module_id: str) -> Response:
    """Return a task's module as a file that any agent with the same backbone can import."""
    module = facts.find_task(service.agent, module_id)
    if isinstance(module, MergedTask):
        raise conflict(f"{module.card.task!r} is merged and has no file of its own; export its parts")
    name = quote(f"{module.card.task}.skill", safe="")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    return Response(service.agent.bank.file_of(module), media_type="application/octet-stream", headers=headers)


@api.put(
    "/modules",
    status_code=HTTPStatus.CREATED,
    response_model=facts.TaskShape,
    openapi_extra=FILE_BODY,
    tags=["tasks"],
)
async def import_module(request: Request, service: Served) -> Any:
    """Check a module file and add it to the bank; nothing is stored unless the whole file is valid."""
    async with body_on_disk(request, MOST_MODULE_BYTES) as upload:
        return await to_thread.run_sync(_imported, service, upload)


def _imported(service: Service, upload: Upload) -> dict[str, Any]:
    with service.change() as agent:
        module = agent.import_bytes(upload.content())
    return _task(service, module.id)


# Lessons.


@api.get("/lessons", response_model=facts.LessonList, tags=["lessons"])
def lessons(service: Served) -> Any:
    """Return the tasks that are being taught, or were, through this API."""
    return {"lessons": [service.lesson_facts(lesson) for lesson in service.lessons.all()]}


@api.post("/lessons", status_code=HTTPStatus.CREATED, response_model=facts.LessonShape, tags=["lessons"])
def begin_lesson(service: Served, body: NewLesson, response: Response) -> Any:
    """Begin to teach a task; with `extends`, return the open lesson of that task if there is one."""
    lesson, is_new = service.lessons.begin(body.task, body.classes, body.extends)
    if not is_new:
        response.status_code = HTTPStatus.OK
    return service.lesson_facts(lesson)


@api.get("/lessons/{lesson_id}", response_model=facts.LessonShape, tags=["lessons"])
def lesson(service: Served, lesson_id: str) -> Any:
    """Return a lesson: its classes, its state and, at the end, its report."""
    return service.lesson_facts(service.lessons.find(lesson_id))


@api.delete("/lessons/{lesson_id}", status_code=HTTPStatus.NO_CONTENT, tags=["lessons"])
def delete_lesson(service: Served, lesson_id: str) -> None:
    """Delete a lesson and its images; a task that was learned from it stays."""
    service.lessons.delete(service.lessons.find(lesson_id))


@api.post("/lessons/{lesson_id}/classes", response_model=facts.LessonShape, tags=["lessons"])
def add_class(service: Served, lesson_id: str, body: NewClass) -> Any:
    """Add a class to a lesson."""
    found = service.lessons.find(lesson_id)
    found.add_class(body.name)
    return service.lesson_facts(found)


@api.patch("/lessons/{lesson_id}/classes", response_model=facts.LessonShape, tags=["lessons"])
def rename_class(service: Served, lesson_id: str, body: RenamedClass) -> Any:
    """Give a class another name."""
    found = service.lessons.find(lesson_id)
    found.rename_class(body.name, body.new_name)
    return service.lesson_facts(found)


@api.delete("/lessons/{lesson_id}/classes", response_model=facts.LessonShape, tags=["lessons"])
def remove_class(service: Served, lesson_id: str, name: Annotated[str, Query(max_length=200)]) -> Any:
    """Remove a class and its images."""
    found = service.lessons.find(lesson_id)
    found.remove_class(name)
    return service.lesson_facts(found)


@api.post("/lessons/{lesson_id}/images", response_model=facts.Added, openapi_extra=FORM_BODY, tags=["lessons"])
async def add_images(request: Request, service: Served, lesson_id: str, name: ClassName) -> Any:
    """Add images to a class, which is added too if the lesson has none of that name."""
    found = service.lessons.find(lesson_id)
    async with images_of(request) as images:
        added, refused = await to_thread.run_sync(found.add_images, name, images)
    return _added(service, found, added, refused)


@api.post("/lessons/{lesson_id}/archive", response_model=facts.Added, openapi_extra=FILE_BODY, tags=["lessons"])
async def add_archive(request: Request, service: Served, lesson_id: str) -> Any:
    """Add the images of a zip with `class/…` or `train|val|test/class/…` inside; test images are left out."""
    found = service.lessons.find(lesson_id)
    async with body_on_disk(request, BODY_BYTES) as upload:
        added, refused = await to_thread.run_sync(found.add_archive, upload)
    return _added(service, found, added, refused)


def _added(
    service: Service, lesson: Lesson, added: Sequence[str], refused: Sequence[dict[str, str]]
) -> dict[str, Any]:
    return {
        "added": [_image(lesson, name) for name in added],
        "refused": refused,
        "lesson": service.lesson_facts(lesson),
    }


def _image(lesson: Lesson, name: str) -> dict[str, str]:
    return {"id": name, "name": name, "url": f"/api/v1/lessons/{lesson.id}/images/{name}"}


@api.get("/lessons/{lesson_id}/images", tags=["lessons"])
def lesson_images(service: Served, lesson_id: str, name: ClassName) -> dict[str, list[dict[str, str]]]:
    """Return the images of a class."""
    found = service.lessons.find(lesson_id)
    return {"images": [_image(found, image) for image in found.files_of(name)]}


@api.get("/lessons/{lesson_id}/images/{image}", response_class=Response, responses=A_JPEG, tags=["lessons"])
def lesson_image(service: Served, lesson_id: str, image: str) -> Response:
    """Return a small version of an image."""
    path = service.lessons.find(lesson_id).file(image)
    try:
        encoded = path.read_bytes()
    except FileNotFoundError as error:
        raise not_found(f"the lesson has no image {image!r} any more") from error
    small = decode_rgb(encoded, 2 * THUMBNAIL)
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    content = BytesIO()
    small.save(content, "JPEG", quality=80)
    return Response(
        content.getvalue(), media_type="image/jpeg", headers={"Cache-Control": "private, max-age=86400"}
    )


@api.delete("/lessons/{lesson_id}/images/{image}", response_model=facts.LessonShape, tags=["lessons"])
def remove_image(service: Served, lesson_id: str, image: str) -> Any:
    """Remove an image."""
    found = service.lessons.find(lesson_id)
    found.remove_image(image)
    return service.lesson_facts(found)


@api.post(
    "/lessons/{lesson_id}/start",
    status_code=HTTPStatus.ACCEPTED,
    response_model=facts.LessonShape,
    tags=["lessons"],
)
def start_lesson(service: Served, lesson_id: str, body: Start) -> Any:
    """Learn a lesson; the event stream reports its progress."""
    found = service.lessons.find(lesson_id)
    service.lessons.start(found, **body.model_dump() | {"tags": tuple(body.tags)})
    return service.lesson_facts(found)


@api.post("/lessons/{lesson_id}/cancel", response_model=facts.LessonShape, tags=["lessons"])
def cancel_lesson(service: Served, lesson_id: str) -> Any:
    """End a lesson that is being learned; it can be started again, and resumes where it was."""
    found = service.lessons.find(lesson_id)
    found.cancel()
    return service.lesson_facts(found)


# The mesh.


@api.get("/mesh", response_model=facts.MeshShape, tags=["mesh"])
def mesh(service: Served) -> Any:
    """Return the node's state and the agents that it has met."""
    agent = service.agent
    own = {"name": agent.name, "key": agent.identity.public_key}
    return node_status(service.node) | own | {"peers": peer_list(service.node)}


@api.get("/peers", response_model=facts.Peers, tags=["mesh"])
def peers(service: Served) -> Any:
    """Return the agents that the node has met."""
    return {"peers": peer_list(service.node)}


@api.post("/mesh/sync", status_code=HTTPStatus.ACCEPTED, tags=["mesh"])
def sync(service: Served) -> dict[str, bool]:
    """Ask every peer for news now."""
    service.node.sync_now()
    return {"asked": True}


@api.delete("/bans/{key}", status_code=HTTPStatus.NO_CONTENT, tags=["mesh"])
def unban(service: Served, key: str) -> None:
    """Lift the ban on an agent."""
    with service.change() as agent:
        if key not in agent.ledger.view().bans:
            raise not_found(f"the agent {key[:80]!r} is not banned")
        agent.ledger.unban(key)


@api.get("/trust", response_model=facts.TrustShape, tags=["trust"])
def trust(service: Served) -> Any:
    """Return this agent's key, the teachers that it trusts, and others whose announcements it has seen."""
    agent = service.agent
    view, key = agent.ledger.view(), agent.identity.public_key
    claims = {notice.teacher_key: notice.teacher for notice in view.heard}
    claims |= {module.card.teacher_key: module.card.teacher for module in agent.bank}
    seen: dict[str, dict[str, Any]] = {}
    for notice in view.seen.values():
        if isinstance(notice, Announcement):
            teacher = {"teacher": agent.teachers.name(notice), "teacher_key": notice.teacher_key, "tasks": []}
            seen.setdefault(notice.teacher_key, teacher)["tasks"].append(notice.task)
    return {
        "mine": {"name": agent.name, "key": key, "qr_url": codes.as_url(key, agent.name)},
        "trusted": [{"key": k, "name": agent.teachers.called(k, claims.get(k))} for k in view.trusted],
        "seen": list(seen.values()),
    }


@api.put("/trust/{key}", tags=["trust"])
def add_trust(service: Served, key: str, body: GivenName = NO_NAME) -> dict[str, str]:
    """Trust a teacher: its modules are fetched and used."""
    with service.change() as agent:
        trust_teacher(agent, service.shelf, key, body.name)
    return {"key": key, "name": body.name}


@api.delete("/trust/{key}", tags=["trust"])
def remove_trust(service: Served, key: str) -> dict[str, int]:
    """Stop trusting a teacher; its modules go to quarantine."""
    with service.change() as agent:
        if key not in agent.ledger.view().trusted:
            raise not_found(f"this agent does not trust {key[:80]!r}; GET /api/v1/trust lists whom it trusts")
        moved = distrust(agent, service.shelf, key)
    return {"moved": len(moved)}


@api.post("/trust/scan", openapi_extra=FILE_BODY, tags=["trust"])
async def scan(request: Request, service: Served) -> dict[str, str]:
    """Read the key in a picture of a QR code; it is not trusted yet."""
    async with images_of(request, most=1) as images:
        return await to_thread.run_sync(codes.read, images[0], limiter=service.computing)


@api.get("/quarantine", response_model=facts.Quarantine, tags=["trust"])
def quarantine(service: Served) -> Any:
    """Return the modules in quarantine, why, and what can be done."""
    return {"held": [facts.held_facts(held, service.agent) for held in service.shelf.held()]}


@api.post("/quarantine/{module_id}/release", response_model=facts.TaskShape, tags=["trust"])
def release(service: Served, module_id: str) -> Any:
    """Use a module although it is in quarantine."""
    with service.change() as agent:
        module = service.shelf.release(_held(service, module_id), agent)
    return _task(service, module.id)


@api.delete("/quarantine/{module_id}", status_code=HTTPStatus.NO_CONTENT, tags=["trust"])
def drop(service: Served, module_id: str) -> None:
    """Delete a module in quarantine; it is not fetched again."""
    with service.change():
        service.shelf.drop(_held(service, module_id))


def _held(service: Service, module_id: str) -> HeldModule:
    for held in service.shelf.held():
        if held.module.id == module_id:
            return held
    raise not_found(f"no module in quarantine has the id {module_id[:80]!r}; GET /api/v1/quarantine lists them")


@api.get(
    "/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
    tags=["events"],
)
async def events(service: Served, role: Role) -> StreamingResponse:
    """Follow what changes, as server-sent events: `hello`, `changed` with topics to fetch again, `lesson`."""
    return await service.watch.stream(TOPICS if role == "owner" else FOR_GUESTS)
