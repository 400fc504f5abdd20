"""One request: who asks, with which arguments, from where; and the answer."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from starlette.responses import Response

from jjq.errors import RecordTooLarge
from jjq.jsonvalues import jsonable
from jjq.server.guard import ANY, NEEDS, Caller, Guard
from jjq.server.http_errors import RequestError
from jjq.server.http_operations import JSON, Operation, Schema, check, parse_json
from jjq.server.settings import ServerSettings
from jjq.store import Store
from jjq.topic import Topic
from jjq.topics import at_first_use
from jjq.values import unique

if TYPE_CHECKING:
    from jjq.server.counters import Requests
    from jjq.server.gathering import Gathering
    from jjq.server.health import Health
    from jjq.server.http_channels import Consumers
    from jjq.server.http_stats import Counters, Shared
    from jjq.server.sse import Hub

Result = TypeVar("Result")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

COOKIE = "jjq-token"
_BODY_PAUSE_S = 30.0  # for each piece of a body
_DOCUMENT_BYTES = 8 << 20  # of JSON that is no records: as objects it may have thirty times as many
_SMALL_BYTES = 64 << 10  # a body up to this size is parsed in the loop: a thread would take longer
_MOST_HOSTS = 100
_MOST_TOPICS = 10_000  # handles of topics that are kept,
_FRESH_S = 2.0  # and how long: others may alter a topic's limits
_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))


@dataclass
class Parts:
    """What all requests share."""

    store: Store
    settings: ServerSettings
    guard: Guard
    calls: Executor
    gathering: Gathering
    hub: Hub
    consumers: Consumers
    health: Health
    counters: Counters
    stopping: asyncio.Event
    searches: asyncio.Semaphore  # they take long, and are not to take all threads
    topics: dict[str, tuple[Topic, float]] = field(
        default_factory=dict
    )  # handles that pushes use again, and since when
    shared_stats: Shared | None = None
    flight: Requests | None = None  # what the other front counts, where there is one
    hosts: set[str] = field(default_factory=set)  # that requests without a token have named, and may

    def topic(self, name: str, push: Callable[[Topic], object]) -> Topic:
        """A handle of a topic to push to, made at first use where topics are."""
        return self.known(name) or self.keep(at_first_use(self.store, name, push))

    def known(self, name: str) -> Topic | None:
        """A handle that was made a moment ago."""
        topic, made_at = self.topics.get(name, (None, 0.0))
        return topic if time.monotonic() - made_at < _FRESH_S else None

    def keep(self, topic: Topic) -> Topic:
        if len(self.topics) >= _MOST_TOPICS:
            self.topics.clear()
        self.topics[topic.name] = topic, time.monotonic()
        return topic


class ClientGone(Exception):
    """There is nobody any more to answer."""


class Request:
    """A request that an operation was found for. `arguments` has its parameters by name."""

    def __init__(self, parts: Parts, operation: Operation, scope: Scope, receive: Receive, send: Send) -> None:
        self.parts, self.operation, self.scope = parts, operation, scope
        self.receive, self.send = receive, send
        self.headers: Mapping[str, str] = _headers(scope)
        self.arguments: dict[str, Any] = {}
        self.caller = Caller("nobody")

    @property
    def store(self) -> Store:
        return self.parts.store

    # --- who --------------------------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Finds the caller, and refuses what a browser was made to send by somebody else's page."""
        token = self.token()
        self._check_origin()
        if token is None and self.operation.action is not None:
            self._check_host()
        if self.operation.action is not None:
            self.caller = self.parts.guard.caller(token)

    def token(self) -> str | None:
        """As `Authorization: Bearer`, or from the cookie that the page has."""
        given = self.headers.get("authorization")
        if given is not None:
            scheme, _, token = given.partition(" ")
            if scheme.lower() != "bearer" or not token.strip():
                raise RequestError("Authorization must be `Bearer TOKEN`")
            return token.strip()
        cookies = self.headers.get("cookie")
        if cookies is None:
            return None
        try:
            found = SimpleCookie(cookies).get(COOKIE)
        except CookieError:
            return None
        return None if found is None or not found.value else found.value

    def _check_origin(self) -> None:
        if self.scope["method"] in _SAFE:
            return
        origin = self.headers.get("origin")
        allowed = self.parts.settings.origins
        if origin is not None:
            own = self.headers.get("host", "").lower()
            if origin not in allowed and (not own or _parts_of(origin).netloc.lower() != own):
                raise RequestError(
                    "a page of another site may not do this; the setting `origins` names those that may", "wrong_origin"
                )
        elif self.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise RequestError("a page of another site may not do this", "wrong_origin")

    def _check_host(self) -> None:
        """Without a token a request must name a host that nobody else can make a name for: else a page of any site could be
        told by its name server that this machine is that site."""
        host = self.headers.get("host", "")
        known = self.parts.hosts
        if host in known:
            return
        # A browser always names one; who does not is none.
        if host and not self._is_own(_parts_of(f"//{host}").hostname or "?"):
            raise RequestError(
                "this broker is not known by that name; use its address, a token, or name it in the setting `origins`",
                "wrong_host",
            )
        if len(known) < _MOST_HOSTS:
            known.add(host)

    def _is_own(self, name: str) -> bool:
        settings = self.parts.settings
        own = {settings.host.lower(), socket.gethostname().lower(), "localhost"}
        own |= {_parts_of(each).hostname or "localhost" for each in settings.origins}
        if name in own or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def allow(self, action: str, topic: str | None) -> None:
        """Raises Forbidden unless the caller may do that; what needs `admin` is written down."""
        need = NEEDS[action]
        self.caller.may(need, topic)
        if need == "admin":
            self.parts.guard.audit(self.caller, action, topic)

    def can_read(self, topic: str) -> bool:
        return self.caller.can("read", topic)

    def can_see(self, topic: str) -> bool:
        return self.caller.can(ANY, topic)

    # --- what -------------------------------------------------------------------------------------------------------

    @property
    def media_type(self) -> str:
        """Of the body, without parameters, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def accepts(self, kind: str) -> bool:
        """Whether the client names a media type among those it wants."""
        return any(each.partition(";")[0].strip().lower() == kind for each in self.headers.get("accept", "").split(","))

    async def body(self, most: int | None = None) -> bytes:
        """The whole body; raises RequestError when it is too large, or stops coming."""
        return b"".join([piece async for piece in self.pieces(most)])

    async def pieces(self, most: int | None = None) -> AsyncIterator[bytes]:
        """The body as it comes."""
        limit = self.parts.settings.max_request_bytes if most is None else most
        if self.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise RequestError("a body is taken as it is: send it without Content-Encoding", "unsupported_media_type")
        length = self.headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            raise _too_large(limit)
        size, more = 0, True
        while more:
            try:
                async with asyncio.timeout(_BODY_PAUSE_S):
                    message = await self.receive()
            except TimeoutError:
                raise RequestError("the body stopped coming", "request_timeout") from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            yield piece

    async def document(self, most: int | None = None) -> Any:
        """The body, of `most` bytes or of 8 MiB, as JSON, held against what the operation takes."""
        if self.media_type not in ("", JSON):
            raise RequestError(f"the body must be {JSON}, not {self.media_type}", "unsupported_media_type")
        data = await self.body(min(most or _DOCUMENT_BYTES, self.parts.settings.max_request_bytes))
        assert self.operation.body is not None
        schema = self.operation.body[JSON]
        return _checked(data, schema) if len(data) <= _SMALL_BYTES else await self.run(_checked, data, schema)

    async def answer(self, content: Any) -> Json:
        """A document that may be large, made in a thread: the loop is everybody's."""
        return await self.run(Json, content)

    async def run(self, call: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """A blocking call, in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.parts.calls, functools.partial(call, *arguments, **named))

    def check_record(self, size: int) -> None:
        """Raises RecordTooLarge for more than the broker takes."""
        limit = self.parts.settings.max_record_bytes
        if size > limit:
            raise RecordTooLarge(
                f"the record has {size:,} bytes, this broker takes up to {limit:,} (max_record_bytes); keep big objects "
                f"elsewhere and push where they are"
            )

    async def gone(self) -> None:
        """Returns when the client has gone away, or the broker stops."""
        stops = asyncio.ensure_future(self.parts.stopping.wait())
        leaves = asyncio.ensure_future(self.disconnected())
        try:
            await asyncio.wait((stops, leaves), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stops.cancel()
            leaves.cancel()

    async def disconnected(self) -> None:
        """Returns when the client has gone away. For one that has no body, or whose body was taken."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


def _checked(data: bytes, schema: Schema) -> Any:
    found = parse_json(data, unique) if data.strip() else {}  # as curl sends where there is nothing to say
    check(found, schema, "the body")
    return found


def _parts_of(url: str) -> SplitResult:
    """Of a URL; without a host where it is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _too_large(limit: int) -> RequestError:
    return RequestError(f"the body has more than the {limit:,} bytes that are taken at once", "request_too_large")


def _headers(scope: Scope) -> dict[str, str]:
    """By lower-case name; of those that come several times the last, but for cookies, which add up."""
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if name == "accept" and name in found:
            value = f"{found[name]},{value}"
        found[name] = f"{found[name]}; {value}" if name == "cookie" and name in found else value
    return found


class Json(Response):
    """A JSON document, with what records hold said as `jsonable` does."""

    media_type = JSON

    def __init__(self, content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(content, status_code, {"cache-control": "no-store", **(headers or {})})

    def render(self, content: Any) -> bytes:
        return dumped(content)


def dumped(content: Any) -> bytes:
    text = json.dumps(jsonable(content), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")
