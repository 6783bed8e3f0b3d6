"""Who may call: tokens, cookies, Host and Origin, and limits, checked before a request reaches the API.

A page in a browser can send requests to any address, also to this one. What such a request cannot do is to know
the token, to send the cookie from another site (it is SameSite=Strict), or to change its Host and Origin headers.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skillmesh.common.files import PRIVATE, write_whole
from skillmesh.page import problems
from skillmesh.store.home import TOKENS

Role = Literal["owner", "guest"]

BODY_BYTES = 256_000_000
"""Largest body of a request: a zip of a whole task, or many photos."""
JSON_BYTES = 16_000_000
"""The same of JSON, which is parsed as a whole in memory."""
TAKES_ONE_FILE = re.compile(r"/api/v1/(modules|lessons/[^/]+/archive)")
"""Where the body is a file, whatever its type is said to be."""
TAKES_IMAGES = re.compile(r"/api/v1/(ask|describe|trust/scan|lessons/[^/]+/images)")
"""Where it is images, in a form or in JSON."""
GUESTS_MAY = re.compile(r"/api/v1/(ask|describe)")
"""What guests may call besides reading."""
NOT_FOR_GUESTS = re.compile(r"/api/v1/(trust|quarantine|lessons|modules|demo)(/.*)?")
"""What guests may not even read: whom the agent trusts, and images that it was taught with."""
UNGUARDED = re.compile(r"/static/[\w.-]+")
"""The page's own files hold no secrets, and the message for visitors without a token is one of them."""
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "connect-src 'self'",
        "media-src 'self' blob:",
        "manifest-src 'self'",
        "form-action 'none'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
}
_HOST = re.compile(r"(\[(?P<bracketed>[0-9a-fA-F:.]+)\]|(?P<name>[\w.-]+))(:\d{1,5})?", re.ASCII)
"""A Host header: a name or an address, an IPv6 address in brackets, and perhaps a port."""
A_YEAR = 365 * 24 * 3600


@dataclass(frozen=True)
class Tokens:
    """The owner's token and that of guests. They are kept in the home, so that an open page outlives a restart."""

    owner: str
    guest: str

    @classmethod
    def of_home(cls, home: Path) -> Tokens:
        """Read the tokens, or make new ones. To make old addresses invalid, delete the file."""
        path = home / TOKENS
        try:
            kept = json.loads(path.read_text())
            tokens = cls(kept["owner"], kept["guest"])
            if min(len(tokens.owner), len(tokens.guest)) >= 32 and tokens.owner != tokens.guest:
                return tokens
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            pass
        tokens = cls(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
        write_whole(path, json.dumps({"owner": tokens.owner, "guest": tokens.guest}).encode(), mode=PRIVATE)
        return tokens

    def role_of(self, token: str) -> Role | None:
        given = token.encode()
        if hmac.compare_digest(given, self.owner.encode()):
            return "owner"
        return "guest" if hmac.compare_digest(given, self.guest.encode()) else None


class Guard:
    """An ASGI layer around the application; `scope["state"]["role"]` tells the application who calls."""

    def __init__(self, app: ASGIApp, tokens: Tokens, cookie: str, names: Collection[str], secure: bool) -> None:
        self._app, self._tokens, self._cookie, self._secure = app, tokens, cookie, secure
        self._names = {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        send = _with_headers(send, scope["path"])
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        scope["state"]["role"] = self._role(headers)
        await self._app(scope, _limited(receive, _most(scope["path"], headers)), send)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer to a request that must not reach the application."""
        path, method = scope["path"], scope["method"]
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_our_host(hosts[0]):
            return problems.answer(
                HTTPStatus.FORBIDDEN,
                "WrongHost",
                "the address was not expected to have this name; use the address that skillmesh printed, or name "
                "this one with `--name NAME`",
            )
        if path == "/" and method in ("GET", "HEAD") and b"token=" in scope["query_string"]:
            return self._enter(scope["query_string"])
        if UNGUARDED.fullmatch(path) and method in ("GET", "HEAD"):
            return None
        role = self._role(headers)
        if role is None:
            if path == "/":
                return PlainTextResponse("Open the address that skillmesh printed: it ends with a token.", 401)
            return problems.answer(
                HTTPStatus.UNAUTHORIZED,
                "NoToken",
                "no valid token was sent; open the address that skillmesh printed, or send the header "
                "`Authorization: Bearer TOKEN`",
                {"WWW-Authenticate": "Bearer"},
            )
        if not self._is_same_origin(headers, method):
            return problems.answer(
                HTTPStatus.FORBIDDEN,
                "ForeignOrigin",
                "a page of another site sent this request; it is not answered",
            )
        reads = method in ("GET", "HEAD")
        if role == "guest" and (NOT_FOR_GUESTS.fullmatch(path) if reads else not GUESTS_MAY.fullmatch(path)):
            return problems.answer(
                HTTPStatus.FORBIDDEN, "Guest", "guests may ask, and see tasks; this needs the owner's address"
            )
        length = headers.get("content-length", "0")
        most = _most(path, headers)
        if not length.isdecimal() or int(length) > most:
            return problems.answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "TooLarge", _too_large(most))
        return None

    def _is_our_host(self, host: str) -> bool:
        """Return whether a Host header is an IP address or one of our names: foreign names are DNS rebinding."""
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match["bracketed"] or match["name"]).lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return match["bracketed"] is None and name in self._names
        return True

    def _is_same_origin(self, headers: Headers, method: str) -> bool:
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = headers.get("origin")
        if origin is not None:
            scheme = "https" if self._secure else "http"
            return origin == f"{scheme}://{headers.get('host')}"
        # Browsers send the origin of every request that changes something; programs send no cookie.
        return method in ("GET", "HEAD") or "authorization" in headers or "sec-fetch-site" in headers

    def _role(self, headers: Headers) -> Role | None:
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._tokens.role_of(token.strip())
        cookies = cookie_parser(headers.get("cookie", ""))
        return self._tokens.role_of(cookies.get(self._cookie, ""))

    def _enter(self, query: bytes) -> Response:
        """Exchange the token in the address for a cookie, so that it does not stay in the history."""
        token = parse_qs(query.decode("latin-1")).get("token", [""])[0]
        if self._tokens.role_of(token) is None:
            return PlainTextResponse(
                "This address is not valid any more: open the one that skillmesh printed last.", 401
            )
        response = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        response.set_cookie(
            self._cookie, token, max_age=A_YEAR, httponly=True, samesite="strict", secure=self._secure
        )
        return response


def _most(path: str, headers: Headers) -> int:
    """Return the largest body that a request may have: all but files are read as a whole into memory."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = kind.endswith("json") or not kind
    if TAKES_ONE_FILE.fullmatch(path) or (TAKES_IMAGES.fullmatch(path) and not is_json):
        return BODY_BYTES
    return JSON_BYTES


def _too_large(most: int) -> str:
    return f"the request's body is larger than {most:,} bytes; send less at once"


def _limited(receive: Receive, most: int) -> Receive:
    """Return a `receive` that refuses a body without a stated length once it is too large."""
    read = 0

    async def limited() -> Message:
        nonlocal read
        message = await receive()
        if message["type"] == "http.request":
            read += len(message.get("body", b""))
            if read > most:
                # Of this class, because FastAPI would call any other error a body that cannot be parsed.
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _too_large(most))
        return message

    return limited


def _with_headers(send: Send, path: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            if path.startswith("/api/") or path == "/":
                headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return sending
