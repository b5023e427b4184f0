"""What every request passes: rights, limits of size and time, counters and a log, and safe headers."""

import asyncio
import json
import logging
import re
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unskew.serve.http.logs import write_log
from unskew.serve.http.metrics import Metrics
from unskew.serve.http.schemas import LARGEST_BODY, ErrorAnswer, FieldError
from unskew.serve.http.tokens import Right, Tokens

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
OPEN_PATHS = ("/health/", "/static/", "/docs", "/report", "/favicon.ico")  # they show nothing about users
METHODS = ("GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS")
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri "
    "'none'; frame-ancestors 'none'; form-action 'self'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True)
class Limits:
    """How large a body may be, and how many seconds a request may take."""

    body: int = LARGEST_BODY
    seconds: float = 30.0


class Refusal(NamedTuple):
    """The status, the field and the reason of an answer that is not a success."""

    status: int
    field: str | None
    reason: str


class TooLarge(Exception):  # noqa: N818
    """A body goes on beyond what is allowed."""


class Gate:
    """Wraps an application.

    tokens: the tokens for reading and writing; without them, every client may do both.
    hosts: the names by which the service may be called, without the port; None is any name.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        tokens: Tokens | None = None,
        hosts: Iterable[str] | None = LOOPBACK,
        limits: Limits | None = None,
    ) -> None:
        self._app, self._metrics, self._tokens = app, metrics, tokens
        self._hosts = None if hosts is None else frozenset(hosts)
        self._limits = limits or Limits()
        self._too_large = Refusal(413, "body", f"expected at most {self._limits.body:,} bytes")
        self._late: set[asyncio.Task[None]] = set()  # that were answered for already

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        request_id = headers.get("x-request-id", "")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", request_id):
            request_id = uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        scope["state"]["may_record"] = self._allows(headers, "record")
        answer = _Answer(send, scope["path"], request_id)
        refusal = self._refuse(scope, headers)
        if refusal is not None:
            await answer.refuse(refusal)
        else:
            await self._pass_on(scope, receive, answer)
        seconds = time.perf_counter() - begin
        route, method = _route(scope), scope["method"] if scope["method"] in METHODS else "other"
        self._metrics.count_request(method, route, answer.status, seconds)
        write_log(
            "request",
            logging.WARNING if answer.status >= 500 else logging.INFO,
            method=method,
            route=route,
            status=answer.status,
            ms=round(seconds * 1000, 2),
            request_id=request_id,
        )

    def _refuse(self, scope: Scope, headers: dict[str, str]) -> Refusal | None:
        """The refusal of a request that may not come in."""
        host = headers.get("host", "")
        if self._hosts is not None and re.sub(r":\d+$", "", host).lower() not in self._hosts:
            return Refusal(421, "Host", "this service is not called by that name; call it by localhost")
        if scope["path"].startswith(("/v1/", "/mcp")):
            # Without CORS a browser keeps the answer from other sites, but the request would still be done.
            origin = headers.get("origin")
            is_same = origin is None or origin.partition("://")[2] == host
            if not is_same or headers.get("sec-fetch-site") == "cross-site":
                return Refusal(403, "Origin", "requests from pages of other sites are refused")
        length = headers.get("content-length", "")
        refusal = self._refuse_token(scope["method"], scope["path"], headers)
        if refusal is None and length.isdigit() and int(length) > self._limits.body:
            return self._too_large
        return refusal

    def _refuse_token(self, method: str, path: str, headers: dict[str, str]) -> Refusal | None:
        if path in ("/", "/openapi.json") or path.startswith(OPEN_PATHS):
            return None
        if not self._allows(headers, "read"):
            reason = "expected a header `Authorization: Bearer TOKEN` with a valid token"
            return Refusal(401, "Authorization", reason)
        if not self._allows(headers, _right(method, path)):
            return Refusal(403, "Authorization", "this token may only read")
        return None

    def _allows(self, headers: dict[str, str], right: Right) -> bool:
        """Whether a request may do something; without tokens, every client may do everything."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else ""
        return self._tokens is None or (bool(token) and self._tokens.allows(token, right))

    async def _pass_on(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        """Let a request through. One that takes too long is answered for; what it has begun comes to its end
        in its thread."""
        size, is_whole = 0, scope["method"] == "GET"

        async def limited() -> Message:
            nonlocal size, is_whole
            message = await receive()
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                is_whole = is_whole or not message.get("more_body", False)
                if size > self._limits.body:
                    await answer.refuse(self._too_large, last=True)
                    raise TooLarge
            return message

        task = asyncio.create_task(self._run(scope, limited, answer))
        done, _ = await asyncio.wait({task}, timeout=self._limits.seconds)
        if done or answer.begun:
            await task
            return
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        spent = f"more than {self._limits.seconds:g} seconds"
        if is_whole:
            await answer.refuse(Refusal(503, None, f"it took {spent}; try again later"), last=True)
        else:
            await answer.refuse(Refusal(408, "body", f"sending the request took {spent}"), last=True)

    async def _run(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        try:
            await self._app(scope, receive, answer)
        except TooLarge:  # which was answered already
            pass
        except Exception as error:
            write_log(
                *("a request failed", logging.ERROR, error),
                route=_route(scope),
                request_id=answer.request_id,
            )
            reason = "a fault of the service; its log has it under this request id"
            await answer.refuse(Refusal(500, None, reason))


class _Answer:
    """Sends an answer with safe headers, once."""

    def __init__(self, send: Send, path: str, request_id: str) -> None:
        self._send, self._path, self.request_id = send, path, request_id
        self.status, self.begun, self._over = 0, False, False

    async def __call__(self, message: Message) -> None:
        if self._over:
            return
        if message["type"] == "http.response.start":
            self.begun, self.status = True, int(message["status"])
            headers = HEADERS | {"x-request-id": self.request_id}
            if self._path.startswith(("/v1/", "/mcp", "/health/", "/metrics")):
                headers |= {"cache-control": "no-store"}
            own = {name.lower() for name, _ in message["headers"]}
            encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
            message["headers"] = [*message["headers"], *(pair for pair in encoded if pair[0] not in own)]
        await self._send(message)

    async def refuse(self, refusal: Refusal, last: bool = False) -> None:
        """Send what is wrong, unless an answer has begun."""
        if self.begun:
            return
        status = refusal.status
        body = json.dumps(error_document(refusal.field, refusal.reason, self.request_id)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
        headers += [(b"retry-after", b"5")] if status == 503 else []
        headers += [(b"connection", b"close")] if status in (408, 413) else []
        await self({"type": "http.response.start", "status": status, "headers": headers})
        await self({"type": "http.response.body", "body": body})
        self._over = last


def encodable(text: str) -> str:
    """A text without halves of surrogate pairs, which are no JSON."""
    return text.encode("utf-8", "replace").decode()


def error_document(field: str | None, reason: str, request_id: str | None) -> ErrorAnswer:
    """The body of every answer that is not a success."""
    error = FieldError(field=field and encodable(field), reason=encodable(reason))
    return {"error": error, "request_id": request_id}


def _right(method: str, path: str) -> Right:
    """Recommending is reading; whether the list is recorded is another question (`may_record`). The tools of
    /mcp only read."""
    reads = path.startswith("/v1/recommendations") or path == "/mcp"
    writes = method not in ("GET", "HEAD", "OPTIONS") and not reads
    return "write" if writes else "read"


def _route(scope: Scope) -> str:
    """The template of the route, which has no ids."""
    route = getattr(scope.get("route"), "path", None)
    if route is not None:
        return str(route)
    return "/static" if scope["path"].startswith("/static/") else "other"
