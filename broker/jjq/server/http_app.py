"""The ASGI application: finds the operation, asks who calls, parses, calls, encodes, and says what went wrong."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from typing import Any

from starlette.responses import Response
from starlette.routing import Match, Route

from jjq.errors import JjqError, SubscriberNotFound, TooManyRequests, TopicNotFound
from jjq.server import (
    events,
    http_care,
    http_channels,
    http_nsq,
    http_objects,
    http_openapi,
    http_pages,
    http_pushing,
    http_reading,
    http_several,
    http_staging,
    http_stats,
    http_subscribers,
    http_topics,
    http_writers,
)
from jjq.server.http_errors import RequestError, body_of, status_of, unexpected
from jjq.server.http_operations import Operation, segment
from jjq.server.http_requests import ClientGone, Json, Parts, Receive, Request, Scope, Send

log = logging.getLogger("jjq.server.http")

# Those that are asked most stand first: routes are tried in this order.
TABLES = (
    events.table, http_pushing.table, http_reading.table, http_several.table, http_subscribers.table, http_channels.table, http_topics.table,
    http_objects.table, http_writers.table, http_staging.table, http_care.table, http_nsq.table, http_stats.table,
    http_pages.table, http_openapi.table,
)  # fmt: skip

# Nothing that is served is another site's to show or to run, and nothing is run that is not of this broker.
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"),
]

_PREFLIGHT = {
    "access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE",
    "access-control-allow-headers": "authorization, content-type, accept, last-event-id",
    "access-control-max-age": "600",
}


def all_operations() -> list[Operation]:
    return [operation for table in TABLES for operation in table]


class App:
    """What the server calls. One for each front; `parts` is what its requests share."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        operations = all_operations()
        self._routes = [(_route(each), each) for each in operations]
        # Most requests are for a path without a name in it, and found at once.
        self._plain = {(each.method, each.path): each for each in operations if "{" not in each.path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        began = time.perf_counter()
        answered: list[int] = []
        friend = self._friend(scope)

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                answered.append(message["status"])
                message["headers"] = [*message.get("headers", ()), *_HEADERS, *friend]
            await send(message)

        if friend and scope["method"] == "OPTIONS":
            await Response(status_code=204, headers=_PREFLIGHT)(scope, receive, sending)
            return

        counters, name = self._parts.counters, "none"
        try:
            operation, found_in_path = self._find(scope)
        except RequestError as error:
            counters.begin(name)
            try:
                await self._refusal(error, scope)(scope, receive, sending)
            finally:
                counters.end(name, str(answered[0] if answered else 499), 0.0)
            return
        name = operation.id
        counters.begin(name)
        try:
            request = Request(self._parts, operation, scope, receive, sending)
            response = await self._answer(request, found_in_path)
            await response(scope, receive, sending)
        except ClientGone:
            pass
        except asyncio.CancelledError:
            if answered or not self._parts.stopping.is_set():
                raise
            await self._refusal(_stopping(), scope)(scope, receive, sending)  # there was no time to end it
        except Exception as error:
            if answered:  # the answer has begun, so all that is left is to end the connection
                log.exception("%s failed while it was being answered", name)
                raise
            await self._refusal(error, scope)(scope, receive, sending)
        finally:
            counters.end(name, str(answered[0] if answered else 499), time.perf_counter() - began)

    def _friend(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """What an answer says to a browser that shows a page of another site, where that site may use this broker."""
        allowed = self._parts.settings.origins
        if not allowed:
            return []
        origin = next((value for name, value in scope["headers"] if name == b"origin"), b"")
        if origin.decode("latin-1") not in allowed:
            return []
        return [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]

    def _find(self, scope: Scope) -> tuple[Operation, dict[str, str]]:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        path = _raw_path(scope)
        plain = self._plain.get((method, path))
        if plain is not None:
            return plain, {}
        others: list[str] = []
        seen = {"type": "http", "path": path, "method": method, "root_path": ""}
        for route, operation in self._routes:
            match, found = route.matches(seen)
            if match is Match.FULL:
                return operation, {name: segment(text) for name, text in found["path_params"].items()}
            if match is Match.PARTIAL:
                others.append(operation.method)
        if others:
            allowed = ", ".join(sorted(set(others)))
            raise RequestError(f"this path takes {allowed}", "method_not_allowed", allow=allowed)
        raise RequestError("there is nothing at this path; /docs has all there is", "path_not_found")

    async def _answer(self, request: Request, found_in_path: dict[str, str]) -> Any:
        operation = request.operation
        request.admit()
        request.arguments = operation.arguments(found_in_path, request.scope["query_string"], request.headers)
        if self._parts.stopping.is_set() and operation.action is not None:
            raise _stopping()  # before it is written down as begun
        if operation.action is not None and not operation.by_handler:
            request.allow(operation.action, request.arguments.get("topic"))
        try:
            answer = await operation.handler(request)
        except Exception as error:
            request.caller.failed(error)
            if isinstance(error, (TopicNotFound, SubscriberNotFound)):
                raise request.caller.told(error) from None
            raise
        if answer is None:
            return Response(status_code=204)
        return Json(answer) if isinstance(answer, (dict, list)) else answer

    def _refusal(self, error: Exception, scope: Scope) -> Response:
        if isinstance(error, JjqError):
            status, body = status_of(error), body_of(error, self._parts.store.path)
            if status >= 500:
                log.warning("%s %s: %s", scope["method"], scope["path"], error)
        else:
            reference = uuid.uuid4().hex[:12]
            status, body = 500, unexpected(reference)
            log.error("%s %s failed (%s)", scope["method"], scope["path"], reference, exc_info=error)
        headers = {"cache-control": "no-store"}
        if status == 401:
            headers["www-authenticate"] = 'Bearer realm="jjq"'
        elif status == 405 and isinstance(error, JjqError):
            headers["allow"] = str(error.details["allow"])
        elif isinstance(error, TooManyRequests):
            headers["retry-after"] = str(max(1, round(error.retry_after)))
        elif status == 503:
            headers["retry-after"] = "1"
        if status in (408, 413):
            headers["connection"] = "close"  # the rest of the body is not read
        text = json.dumps(body, ensure_ascii=False, default=str)
        return Response(text.encode("utf-8", "backslashreplace"), status, headers, "application/json")


def _stopping() -> RequestError:
    return RequestError("the broker is stopping; try again in a moment", "stopping")


def _route(operation: Operation) -> Route:
    return Route(operation.path, _never, methods=[operation.method])


async def _never(request: object) -> Response:
    raise AssertionError("the application calls operations by itself")


def _raw_path(scope: Scope) -> str:
    """As it was sent, so that an encoded slash in a name is part of the name."""
    return bytes(scope["raw_path"]).decode("latin-1").partition("?")[0]
