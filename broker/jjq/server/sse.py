"""Server-sent events: one feed for all clients of a topic, and what waits for each client in bounds.

A client reads history by itself, as fast as it takes it, until it has come to where the feed is; from there on it gets what
the feed reads, encoded once for all. Nothing here takes a thread while nothing comes.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from jjq.errors import JjqError
from jjq.server.feeds import Chunk, Encoding, Keep, TopicFeed, TopicNews
from jjq.server.http_errors import body_of
from jjq.server.http_requests import Parts, Receive, Request, Scope, Send
from jjq.topic import Topic
from jjq.values import counted

log = logging.getLogger("jjq.server.http")

_PIECE_BYTES = 128 << 10  # that go into one write
_PLACE_BYTES = 12  # of a partition in an id, about
_RETRY_MS = 1000
_STALLED_S = 60.0  # a client that takes nothing for as long is no client any more
_HEARTBEAT = b": heartbeat\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # said to proxies that gather answers
]


def field_lines(name: str, text: str) -> bytes:
    """A text as one or several lines of a field: no line end in it can end the field."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "".join(f"{name}: {line}\n" for line in lines).encode("utf-8", "backslashreplace")


def notice(event: str, content: dict[str, Any]) -> bytes:
    """An event that the broker itself has to say."""
    return f"event: {event}\n".encode() + field_lines("data", json.dumps(content, ensure_ascii=False)) + b"\n"


class Outbox:
    """What waits to be sent to one client, in bounds: see `put`."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._filled = asyncio.Event()
        self.end: dict[str, Any] | None = None  # why the stream ends, once it does

    @property
    def size(self) -> int:
        return self._size

    def put(self, data: bytes) -> bool:
        """False when there is no room, and nothing was put: then the client is too slow. One piece always has room."""
        if self._size and self._size + len(data) > self._most_bytes:
            return False
        if data:
            self._waiting.append(data)
            self._size += len(data)
            self._filled.set()
        return True

    def finish(self, reason: dict[str, Any]) -> None:
        """Ends the stream, after what waits has been sent."""
        if self.end is None:
            self.end = reason
            self._filled.set()

    def take(self) -> bytes:
        """What goes into the next write; empty when nothing waits."""
        pieces, size = [], 0
        while self._waiting and size < _PIECE_BYTES:
            pieces.append(self._waiting.popleft())
            size += len(pieces[-1])
        self._size -= size
        if not self._waiting and self.end is None:
            self._filled.clear()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def wait(self) -> None:
        """Until there is something to send, the end, or `poke`."""
        await self._filled.wait()

    def poke(self) -> None:
        """Ends a wait though there is nothing."""
        self._filled.set()


class Source(Protocol):
    """Where a stream's events come from."""

    async def enter(self, stream: Stream) -> None:
        """Before the answer begins: what this raises is an error like others."""

    async def begin(self, stream: Stream) -> None:
        """Sends what was before, and has what comes put into the stream's outbox."""

    def leave(self, stream: Stream) -> None:
        """No more is put; also where it has not begun."""


class Stream:
    """An answer that goes on until one side ends it: an ASGI application by itself."""

    def __init__(self, request: Request, source: Source, check: Callable[[], object], begins_at: str = "") -> None:
        """`check` raises Unauthorized or Forbidden when the caller may not read on: its token may have been revoked. It is asked
        with the heartbeats. `begins_at` is the id that goes on where this stream begins, for a client that is cut off before its
        first event."""
        self.request, self._source, self._check = request, source, check
        self._parts: Parts = request.parts
        self.outbox = Outbox(self._parts.settings.buffer_bytes)
        self.heartbeat = _HEARTBEAT
        self._sending: Send | None = None
        self._task: asyncio.Task[Any] | None = None
        self._begins_at = begins_at
        self._clock = asyncio.get_running_loop().time
        self._checked_at = self._sent_at = self._clock()  # whether the caller may read; anything
        self._writing_since: float | None = None
        self._beat_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._cut = False
        self._idle = False  # nothing waits, and nothing is being written
        self._again = False
        self._connection: Any = request.scope.get("extensions", {}).get("jjq.connection")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Before the answer begins, so that one subscription too many is an error like others.
        with self._parts.guard.subscription(self.request.caller):
            if scope["method"] == "HEAD":
                await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                await send({"type": "http.response.body", "body": b""})
                return
            await self._run(send)

    async def _run(self, send: Send) -> None:
        self._sending, self._task = send, asyncio.current_task()
        leaving = asyncio.ensure_future(self.request.gone())
        leaving.add_done_callback(self._left)
        try:
            await self._source.enter(self)
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            self._parts.hub.streams.add(self)
            self._tick()
            mark = f"id: {self._begins_at}\n" if self._begins_at else ""
            await self.send(f"retry: {_RETRY_MS}\n{mark}: jjq\n\n".encode())
            try:
                await self._source.begin(self)
                await self._follow()
            except JjqError as error:
                await self._say_end(body_of(error, self._parts.store.path))
        except asyncio.CancelledError:
            if not self._cut:
                raise
        finally:
            self._parts.hub.streams.discard(self)
            self._source.leave(self)
            leaving.cancel()
            if self._timer is not None:
                self._timer.cancel()

    async def _follow(self) -> None:
        while True:
            self._idle = not self.outbox.size
            await self.outbox.wait()
            self._idle = False
            data = self.outbox.take()
            if data:
                await self.send(data)
            elif self.outbox.end is not None:
                await self._say_end(self.outbox.end)
                return
            elif self._again:
                self._again = False
                await self._source.begin(self)
            elif self._beat_is_due:
                self._beat_is_due = False
                await self.send(self.heartbeat)

    def _tick(self) -> None:
        """Now and then: has a heartbeat sent when nothing else was, and cuts off who takes nothing. One timer for both, as
        one for each write would cost as much as the write."""
        now, every = self._clock(), self._parts.settings.heartbeat_s
        if self._writing_since is None:
            left = self._sent_at + every - now
            if left <= 0:
                self._beat_is_due, left = True, every
                self.outbox.poke()
        else:
            left = self._writing_since + _STALLED_S - now
            if left <= 0:
                self.cut("it took nothing for a minute")
                return
        self._timer = asyncio.get_running_loop().call_later(min(left, _STALLED_S), self._tick)

    def begin_again(self) -> None:
        """Has the source begin once more, when what waits has been sent; until then it is to put nothing."""
        self._again = True
        self.outbox.poke()

    async def _say_end(self, reason: dict[str, Any]) -> None:
        await self._write(notice("jjq-end", reason) if reason else b"", more=False)

    async def send(self, data: bytes) -> None:
        """Sends, however long the client takes to make room; one that takes nothing at all is cut off. Raises Unauthorized or
        Forbidden when the caller may not read on."""
        now = self._clock()
        if now - self._checked_at >= self._parts.settings.heartbeat_s:
            self._checked_at = now
            self._check()
        await self._write(data, more=True)

    async def _write(self, data: bytes, *, more: bool) -> None:
        assert self._sending is not None
        self._writing_since = self._clock()
        try:
            await self._sending({"type": "http.response.body", "body": data, "more_body": more})
        finally:
            self._sent_at, self._writing_since = self._clock(), None

    def put(self, data: bytes) -> None:
        """What came, for the client; cuts it off when too much waits already."""
        if self._cut or not data or self._write_now(data):
            return
        self._idle = False
        if not self.outbox.put(data):
            self.cut(f"more than {self._parts.settings.buffer_bytes:,} bytes waited for it (buffer_bytes)")

    def _write_now(self, data: bytes) -> bool:
        """Where nothing waits and the client takes it, without waking the task, which would take longer than the write."""
        now = self._clock()
        if not self._idle or now - self._checked_at >= self._parts.settings.heartbeat_s or self._connection is None:
            return False
        if not self._connection.write_now(data):
            return False
        self._sent_at = now
        return True

    def cut(self, why: str) -> None:
        """Ends the connection of a client that is too slow; it resumes from the last id it has."""
        if self._cut:
            return
        self._cut = True
        self._parts.counters.slow_clients += 1
        log.warning("a client of %s is cut off: %s", self.request.scope["path"], why)
        if self._connection is not None:
            self._connection.end_stream(
                notice("jjq-end", {"code": "too_slow", "message": f"this client is too slow: {why}", "retryable": True})
            )
        if self._task is not None:
            self._task.cancel()

    def _left(self, leaving: asyncio.Future[None]) -> None:
        """The client went away, or the broker stops."""
        if self._parts.stopping.is_set():
            self.outbox.finish(
                {"code": "stopping", "message": "the broker is stopping; connect again in a moment", "retryable": True}
            )
        else:
            self.outbox.finish({})


class TopicSource:
    """A topic from given positions on, for one stream; of its records those that `keep` keeps."""

    def __init__(self, topic: Topic, encoding: Encoding, positions: dict[int, int], keep: Keep | None = None) -> None:
        self._topic, self._encoding = topic, encoding
        self.positions, self.keep = positions, keep
        self._stream: Stream | None = None
        self._feed: TopicFeed | None = None

    async def enter(self, stream: Stream) -> None:
        self._stream = stream

    async def begin(self, stream: Stream) -> None:
        feed = self._feed = stream.request.parts.hub.feed(self._topic, self._encoding)
        await feed.start(self)
        while stream.outbox.end is None and not feed.join(self):
            chunk = await feed.history(self.positions, self.keep)
            if chunk is not None and (data := self.taken(chunk)):
                await stream.send(data)

    def put(self, chunk: Chunk) -> None:
        """What has come. Of what is more than a piece with its ids, the rest is read as what was before is, as fast as the client
        takes it."""
        assert self._stream is not None
        self._stream.put(self.taken(chunk))
        if self.positions[chunk.partition] < chunk.end:
            self.again()

    def again(self) -> None:
        assert self._stream is not None
        assert self._feed is not None
        self._feed.part(self)
        self._stream.begin_again()

    def finish(self, reason: dict[str, Any]) -> None:
        if self._stream is not None:
            self._stream.outbox.finish(reason)

    def leave(self, stream: Stream) -> None:
        if self._feed is not None:
            self._feed.leave(self)

    def _around(self) -> tuple[str, str]:
        """What stands before and behind the positions in an id."""
        return "", ""

    def taken(self, chunk: Chunk) -> bytes:
        """The bytes of a chunk for this stream, which is then past it; or of as much as is about a piece, with an id of all
        partitions in each event."""
        position = self.positions.get(chunk.partition, 0)
        if self._encoding.own_ids:
            data = chunk.joined(position, self.keep, None)
        else:
            around = self._around()
            chunk = chunk.part(position, sum(map(len, around)) + _PLACE_BYTES * len(self.positions))
            data = chunk.joined(position, self.keep, self.positions, around)
        lost = min(chunk.first, chunk.end) - position
        if lost > 0:
            data = f": {counted(lost, 'record is gone', 'records are gone')}\n\n".encode() + data
        self.positions[chunk.partition] = max(position, chunk.end)
        return data


class Hub:
    """All feeds and streams of a front."""

    def __init__(self, parts: Callable[[], Parts]) -> None:
        self._parts = parts
        self._feeds: dict[tuple[str, str], TopicFeed] = {}
        self.streams: set[Stream] = set()
        self._news: TopicNews | None = None

    @property
    def news(self) -> TopicNews:
        """Of topics that come and go."""
        if self._news is None:
            parts = self._parts()
            self._news = TopicNews(parts.store, parts.calls, end_of(parts))
        return self._news

    def feed(self, topic: Topic, encoding: Encoding) -> TopicFeed:
        """The feed of a topic in an encoding, shared by all who ask for it."""
        key = topic.id, encoding.name
        known = self._feeds.get(key)
        if known is None or known.ended:
            parts = self._parts()
            known = self._feeds[key] = TopicFeed(
                parts.store, topic, encoding, parts.calls, functools.partial(self._forget, key), end_of(parts)
            )
        return known

    def _forget(self, key: tuple[str, str]) -> None:
        known = self._feeds.get(key)
        if known is not None and known.ended:
            del self._feeds[key]


def end_of(parts: Parts) -> Callable[[BaseException], dict[str, Any]]:
    """What clients are told of an error that ends what they are sent."""

    def end(error: BaseException) -> dict[str, Any]:
        if isinstance(error, JjqError):
            return body_of(error, parts.store.path)
        log.error("what streams are sent failed", exc_info=error)
        return {"code": "internal", "message": "the broker met an error that it did not expect", "retryable": True}

    return end
