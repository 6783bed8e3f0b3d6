"""Errors of the HTTP API as problem+json (RFC 9457), with the messages that the commands print."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from skillmesh.data.images import UnreadableImageError
from skillmesh.errors import SkillmeshError, TaskExistsError, UnknownTaskError

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"


class Problem(BaseModel):
    """An error: what was found, what was expected and what to do."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class Refused(SkillmeshError):
    """A request that is refused with a status of its own."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


def not_found(message: str) -> Refused:
    return Refused(HTTPStatus.NOT_FOUND, message)


def conflict(message: str) -> Refused:
    return Refused(HTTPStatus.CONFLICT, message)


def too_large(message: str) -> Refused:
    return Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)


def answer(status: int, title: str, detail: str, headers: Any = None) -> JSONResponse:
    readable = detail.encode("utf-8", "replace").decode()  # a name in JSON may be no valid Unicode
    problem = Problem(title=title, status=int(status), detail=readable)
    return JSONResponse(problem.model_dump(), int(status), headers, media_type=MEDIA_TYPE)


def status_of(error: Exception) -> HTTPStatus:
    """Return the status for an error that the user can fix."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, UnknownTaskError):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, TaskExistsError):
        return HTTPStatus.CONFLICT
    return HTTPStatus.UNPROCESSABLE_ENTITY


def add_to(app: FastAPI) -> None:
    """Make an application answer every error as problem+json, and say so in its description."""
    generated = app.openapi

    def described() -> dict[str, Any]:
        schema = generated()
        for operation in (each for methods in schema["paths"].values() for each in methods.values()):
            for status, response in operation["responses"].items():
                if int(status) >= HTTPStatus.BAD_REQUEST:
                    response["content"] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        return schema

    app.openapi = described  # type: ignore[method-assign]

    @app.exception_handler(SkillmeshError)
    async def _ours(_: Request, error: SkillmeshError) -> JSONResponse:
        status = status_of(error)
        title = status.phrase if isinstance(error, Refused) else type(error).__name__
        return answer(status, title, str(error))

    @app.exception_handler(UnreadableImageError)
    async def _unreadable(_: Request, error: UnreadableImageError) -> JSONResponse:
        return answer(HTTPStatus.UNPROCESSABLE_ENTITY, "UnreadableImage", str(error))

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> JSONResponse:
        status = HTTPStatus(error.status_code)
        detail = error.detail if error.detail != status.phrase else _USUAL.get(status, status.description)
        return answer(status, status.phrase, detail or status.phrase, error.headers)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
        return answer(HTTPStatus.UNPROCESSABLE_ENTITY, "InvalidRequest", f"{place}: {first['msg']}; see /docs")

    @app.exception_handler(ClientDisconnect)
    async def _left(_: Request, __: ClientDisconnect) -> JSONResponse:
        return answer(HTTPStatus.BAD_REQUEST, "Disconnected", "the sender left before it had sent everything")

    @app.exception_handler(Exception)
    async def _unexpected(_: Request, error: Exception) -> JSONResponse:
        kind = type(error).__name__  # the server logs it
        return answer(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            "Unexpected",
            f"unexpected {kind}; the node's log says where; please report it",
        )

    @app.exception_handler(OSError)
    async def _system(_: Request, error: OSError) -> JSONResponse:
        log.warning("a request failed: %s", error)
        reason = error.strerror or type(error).__name__
        return answer(
            HTTPStatus.INSUFFICIENT_STORAGE,
            "SystemError",
            f"the agent's disk or system refused: {reason}; make room, or fix that, and try again",
        )


_USUAL = {
    HTTPStatus.NOT_FOUND: "there is nothing at this address; /docs lists the API's",
    HTTPStatus.METHOD_NOT_ALLOWED: "this address does not take that method; /docs lists those it takes",
}

RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": description, "model": Problem}
    for status, description in {
        400: "A request that cannot be read",
        401: "No token, or one that is not valid",
        403: "A guest, or a page of another site",
        404: "Nothing of that name",
        409: "It exists already, or is in another state",
        413: "Too large",
        415: "Another content type was expected",
        422: "Input that cannot be used, with what to do",
        429: "Too many at once; try again",
        500: "A mistake in this program",
        507: "The agent's disk is full",
    }.items()
}
"""The errors that the OpenAPI page documents for every address."""
