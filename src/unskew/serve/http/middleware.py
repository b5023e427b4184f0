"""What every request passes: who may come in, how much and how long, what is counted, and safe headers."""

import asyncio
import json
import logging
import re
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unskew.serve.http.logs import write_log
from unskew.serve.http.metrics import Metrics
from unskew.serve.http.schemas import LARGEST_BODY
from unskew.serve.http.tokens import Right, Tokens

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
OPEN = ("/health/", "/static/", "/docs", "/report")  # they tell nothing about anybody
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


class TooLarge(Exception):  # noqa: N818
    """A body goes on beyond what is allowed."""


class Gate:
    """Wraps an application.

    tokens: who may come in; None is everybody.
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
        self._late: set[asyncio.Task[None]] = set()  # that were answered for already

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        asked = headers.get("x-request-id", "")
        request_id = asked if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", asked) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        answer = _Answer(send, scope["path"], request_id)
        refused = self._refused(scope, headers)
        if refused is not None:
            await answer.error(*refused)
        else:
            await self._passed(scope, receive, answer)
        seconds = time.perf_counter() - begun
        route = _route(scope)
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._metrics.count_request(method, route, answer.status, seconds)
        level = logging.WARNING if answer.status >= 500 else logging.INFO
        ms = round(seconds * 1000, 2)
        facts: dict[str, Any] = {"method": method, "route": route, "status": answer.status, "ms": ms}
        write_log("request", level, None, **facts, request_id=request_id)

    def _refused(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str | None, str] | None:
        """The status, the field and the reason, if a request may not come in."""
        path, method = scope["path"], scope["method"]
        if self._hosts is not None:
            host = re.sub(r":\d+$", "", headers.get("host", "")).lower()
            if host not in self._hosts:
                return 421, "Host", "this service is not called by that name; call it by localhost"
        if path.startswith("/v1/"):
            # Without CORS a browser keeps the answer from other sites, but the request would still be done.
            origin = headers.get("origin")
            same = origin is None or origin.partition("://")[2] == headers.get("host")
            if not same or headers.get("sec-fetch-site") == "cross-site":
                return 403, "Origin", "requests from pages of other sites are refused"
        if self._tokens is not None and path != "/" and not path.startswith(OPEN) and path != "/openapi.json":
            right = _right(method, path)
            scheme, _, token = headers.get("authorization", "").partition(" ")
            given = token.strip() if scheme.lower() == "bearer" else ""
            if not given or not (self._tokens.allows(given, "read")):
                return (
                    401,
                    "Authorization",
                    "expected a header `Authorization: Bearer TOKEN` with a valid token",
                )
            if not self._tokens.allows(given, right):
                return 403, "Authorization", "this token may only read"
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._limits.body:
            return 413, "body", f"expected at most {self._limits.body:,} bytes"
        return None

    async def _passed(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        """Let a request through. One that takes too long is answered for; what it has begun comes to its end
        in its thread."""
        read, whole = 0, False

        async def limited() -> Message:
            nonlocal read, whole
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                whole = not message.get("more_body", False)
                if read > self._limits.body:
                    await answer.error(
                        413, "body", f"expected at most {self._limits.body:,} bytes", last=True
                    )
                    raise TooLarge
            return message

        task = asyncio.create_task(self._guarded(scope, limited, answer))
        done, _ = await asyncio.wait({task}, timeout=self._limits.seconds)
        if done:
            await task
        elif not answer.begun:
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            said = f"more than {self._limits.seconds:g} seconds"
            if whole or scope["method"] == "GET":
                await answer.error(503, None, f"it took {said}; try again later", last=True)
            else:
                await answer.error(408, "body", f"sending the request took {said}", last=True)
        else:
            await task

    async def _guarded(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        try:
            await self._app(scope, receive, answer)
        except TooLarge:  # which was answered already
            pass
        except Exception as error:
            write_log(
                "a request failed", logging.ERROR, error, route=_route(scope), request_id=answer.request_id
            )
            await answer.error(500, None, "a fault of the service; its log has it under this request id")


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
            given = {name.lower() for name, _ in message["headers"]}
            more = HEADERS | {"x-request-id": self.request_id}
            if self._path.startswith(("/v1/", "/health/", "/metrics")):
                more |= {"cache-control": "no-store"}
            message["headers"] = [
                *message["headers"],
                *(
                    (name.encode(), value.encode())
                    for name, value in more.items()
                    if name.encode() not in given
                ),
            ]
        await self._send(message)

    async def error(self, status: int, field: str | None, reason: str, last: bool = False) -> None:
        """Send what is wrong, unless an answer has begun."""
        if self.begun:
            return
        body = json.dumps(error_document(field, reason, self.request_id)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
        headers += [(b"retry-after", b"5")] if status == 503 else []
        headers += [(b"connection", b"close")] if status in (408, 413) else []
        await self({"type": "http.response.start", "status": status, "headers": headers})
        await self({"type": "http.response.body", "body": body})
        self._over = last


def error_document(field: str | None, reason: str, request_id: str | None) -> dict[str, Any]:
    """The body of every answer that is not a success. Halves of surrogate pairs are no JSON."""
    said = {"field": field, "reason": reason}
    clean = {name: value and value.encode("utf-8", "replace").decode() for name, value in said.items()}
    return {"error": clean, "request_id": request_id}


def _right(method: str, path: str) -> Right:
    """Recommending is reading, also where the list is recorded."""
    writes = method not in ("GET", "HEAD", "OPTIONS") and not path.startswith("/v1/recommendations")
    return "write" if writes else "read"


def _route(scope: Scope) -> str:
    """The template of the route, which has no ids."""
    route = getattr(scope.get("route"), "path", None)
    if route is not None:
        return str(route)
    return "/static" if scope["path"].startswith("/static/") else "other"
