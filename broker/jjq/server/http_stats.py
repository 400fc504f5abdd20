"""What goes on, for people, pages and Prometheus; and whether all is well."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Iterable, Iterator
from typing import Any

from starlette.responses import Response

from jjq.errors import JjqError
from jjq.server.counters import Requests
from jjq.server.http_errors import without_paths
from jjq.server.http_operations import EVENTS, JSON, TEXT, Table, named, query
from jjq.server.http_records import instant
from jjq.server.http_requests import Json, Parts, Request, dumped
from jjq.server.sse import Stream, end_of
from jjq.stats import Damaged

table = Table("Watching")

_EVERY_S = 2.0
DAMAGED = {
    "type": "array", "description": "What is left out, as its files are damaged.",
    "items": named("Damage", {
        "type": "object", "required": ["topic", "what", "name", "error"],
        "properties": {
            "topic": {"type": "string"}, "what": {"type": "string", "enum": ["topic", "subscriber", "channel"]},
            "name": {"type": "string"}, "error": {"type": "string"},
        },
    }),
}  # fmt: skip
_STATS = {
    "type": "object", "required": ["topics", "subscribers", "channels", "damaged", "broker"],
    "properties": {"damaged": DAMAGED},
}  # fmt: skip
_HEALTH = {
    "type": "object", "required": ["status"],
    "properties": {"status": {"type": "string"}, "reason": {"type": "string"}},
}  # fmt: skip
_BAD = ("Not well: `reason` says why.", {JSON: _HEALTH})


class Counters(Requests):
    """What the front counts since it started. What is not of `Requests` is for its loop alone."""

    def __init__(self) -> None:
        super().__init__()
        self.started_at = time.time()
        self.slow_clients = 0
        self.refused_connections = 0


def stats_of(request: Request) -> dict[str, Any]:
    """The store's numbers, of what the caller may read."""
    return visible(request, request.store.stats(request.arguments["topic"]) | {"broker": broker_stats(request.parts)})


def told(request: Request, damaged: Damaged) -> Damaged:
    """What is damaged, as a client may see it."""
    return [each | {"error": without_paths(each["error"], request.store.path)} for each in damaged]


def visible(request: Request, found: dict[str, Any]) -> dict[str, Any]:
    store = {name: value for name, value in found["store"].items() if name != "path"}
    found = {**found, "store": store, "at": instant(found["at"]), "damaged": told(request, found["damaged"])}
    if request.caller.can("read", None):
        return found
    readable = {each["name"] for each in found["topics"] if request.can_read(each["name"])}
    return {
        "at": found["at"], "broker": found["broker"], "store": {},
        "topics": [each for each in found["topics"] if each["name"] in readable],
        "subscribers": [each for each in found["subscribers"] if each["topic"] in readable],
        "channels": [each for each in found["channels"] if each["topic"] in readable],
        "damaged": [each for each in found["damaged"] if request.can_read(each["topic"])],
    }  # fmt: skip


def broker_stats(parts: Parts) -> dict[str, Any]:
    counters = parts.counters
    return {
        "uptime_s": round(time.time() - counters.started_at, 1), "requests": sum(counters.told()[1].values()),
        "streams": len(parts.hub.streams), "waiting_bytes": sum(each.outbox.size for each in list(parts.hub.streams)),
        "slow_clients": counters.slow_clients, "refused_connections": counters.refused_connections,
        "channel_consumers": len(parts.consumers),
    }  # fmt: skip


@table.operation(
    "GET", "/api/stats", "stats", "What goes on, in numbers, of the topics that the caller may read, or of one of them.",
    parameters=[query("topic", "Only this topic.")],
    answers={200: ("Numbers.", {JSON: _STATS})}, scope="list",
)  # fmt: skip
async def read_stats(request: Request) -> dict[str, Any]:
    topic = request.arguments["topic"]
    if topic is not None:
        request.allow("stats", topic)
    return await request.run(stats_of, request)


class _StatsSource:
    """The same numbers, again and again."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    async def enter(self, stream: Stream) -> None:
        pass

    async def begin(self, stream: Stream) -> None:
        self._task = asyncio.ensure_future(self._tell(stream))

    def leave(self, stream: Stream) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _tell(self, stream: Stream) -> None:
        request = stream.request
        try:
            while stream.outbox.end is None:
                stream.put(await request.run(_event, request, await Shared.of(request.parts).stats()))
                await asyncio.sleep(_EVERY_S)
        except Exception as error:  # noqa: BLE001 - the client must hear of it
            stream.outbox.finish(end_of(request.parts)(error))


def _event(request: Request, found: dict[str, Any]) -> bytes:
    """In a thread, as of thousands of topics it takes long."""
    return b"event: stats\ndata: %b\n\n" % dumped(visible(request, found))


class Shared:
    """Numbers that many ask for at about the same time are counted once. Used from the loop: who waits for them has no thread."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._found: dict[str, Any] | None = None
        self._at = 0.0
        self._counting: asyncio.Future[dict[str, Any]] | None = None

    @classmethod
    def of(cls, parts: Parts) -> Shared:
        if parts.shared_stats is None:
            parts.shared_stats = cls(parts)
        return parts.shared_stats

    async def stats(self) -> dict[str, Any]:
        if self._found is not None and time.monotonic() - self._at <= _EVERY_S / 2:
            return self._found
        if self._counting is None:
            self._counting = asyncio.ensure_future(self._count())
        return await asyncio.shield(self._counting)  # one who goes away takes them from nobody

    async def _count(self) -> dict[str, Any]:
        parts = self._parts
        try:
            found = await asyncio.get_running_loop().run_in_executor(parts.calls, parts.store.stats)
            self._found, self._at = found | {"broker": broker_stats(parts)}, time.monotonic()
            return self._found
        finally:
            self._counting = None


@table.operation(
    "GET", "/api/stats/stream", "stats", "The numbers every two seconds, as server-sent events.",
    answers={200: ("Numbers, for ever.", {EVENTS: {"type": "string"}})}, scope="list",
)  # fmt: skip
async def follow_stats(request: Request) -> Stream:
    return Stream(request, _StatsSource(), functools.partial(request.caller.can, "read", None))


# --- health --------------------------------------------------------------------------------------------------------------


@table.operation(
    "GET", "/healthz", None, "Whether the disk takes what is written; anybody may ask.",
    answers={200: ("All is well.", {JSON: _HEALTH}), 503: _BAD}, lenient=True,
)  # fmt: skip
async def healthz(request: Request) -> Response:
    verdict = await request.parts.health.check()
    return _health(verdict.ok, verdict.reason)


@table.operation(
    "GET", "/readyz", None, "Whether requests are welcome: as /healthz, and the broker is not stopping.",
    answers={200: ("Ready.", {JSON: _HEALTH}), 503: _BAD}, lenient=True,
)  # fmt: skip
async def readyz(request: Request) -> Response:
    if request.parts.stopping.is_set():
        return _health(False, "the broker is stopping")
    verdict = await request.parts.health.check()
    return _health(verdict.ok, verdict.reason)


def _health(ok: bool, reason: str) -> Response:
    return Json({"status": "ok"} if ok else {"status": "bad", "reason": reason}, 200 if ok else 503)


# --- Prometheus ----------------------------------------------------------------------------------------------------------


@table.operation(
    "GET", "/metrics", "stats", "The numbers as Prometheus reads them.",
    answers={200: ("Numbers.", {TEXT: {"type": "string"}})}, lenient=True,
)  # fmt: skip
async def metrics(request: Request) -> Response:
    verdict = await request.parts.health.check()
    found = None
    with contextlib.suppress(JjqError):  # without numbers of the store those that say so are told all the same
        found = await Shared.of(request.parts).stats()
    healthy = verdict.ok and found is not None
    broker, counters = broker_stats(request.parts), request.parts.counters
    lines = _metrics(found, broker, counters, request.parts.flight, healthy)
    text = await request.run(lambda: "\n".join(lines) + "\n")  # as above
    return Response(text, media_type="text/plain; version=0.0.4", headers={"cache-control": "no-store"})


_TOPIC = {
    "records": ("gauge", "Records that are there."), "bytes": ("gauge", "Bytes on disk."),
    "pushed_records": ("counter", "Records ever pushed."), "pushed_bytes": ("counter", "Bytes ever pushed."),
}  # fmt: skip
_SUBSCRIBER = {
    "records": ("gauge", "Records yet to be read."), "bytes": ("gauge", "Bytes yet to be read, about."),
    "seconds": ("gauge", "Seconds since the oldest unread record was pushed."), "lost": ("gauge", "Records gone unread."),
}  # fmt: skip
_CHANNEL = {
    "depth": ("gauge", "Records that wait for a consumer."), "in_flight": ("gauge", "Records in consumers' hands."),
    "deferred": ("gauge", "Records that wait for their time."), "delivered": ("counter", "Deliveries."),
    "acked": ("counter", "Records acknowledged."), "requeued": ("counter", "Records given back."),
    "timed_out": ("counter", "Deliveries whose time was over."),
    "returned": ("counter", "Records given back by consumers that closed or died."), "dead": ("counter", "Records given up."),
    "lost": ("counter", "Records gone before they were acknowledged."), "consumers": ("gauge", "Consumers that are there."),
    "paused": ("gauge", "1 where it is paused, by itself or with its topic."),
}  # fmt: skip


def _metrics(
    found: dict[str, Any] | None, broker: dict[str, Any], counters: Counters, flight: Requests | None, healthy: bool
) -> Iterator[str]:
    yield from _family("jjq_healthy", "gauge", "Whether the disk takes what is written.", [({}, int(healthy))])
    if found is not None:
        yield from _of_store(found)
    yield from _family("jjq_http_streams", "gauge", "Clients being sent events.", [({}, broker["streams"])])
    yield from _family("jjq_http_waiting_bytes", "gauge", "Bytes that wait for them.", [({}, broker["waiting_bytes"])])
    yield from _family(
        "jjq_http_slow_clients", "counter", "Clients cut off for being slow.", [({}, counters.slow_clients)]
    )
    refused = counters.refused_connections
    yield from _family("jjq_http_refused_connections", "counter", "Connections over the limit.", [({}, refused)])
    yield from _of_requests("jjq_http", "status", counters)
    if flight is not None:
        yield from _of_requests("jjq_flight", "code", flight)


def _of_requests(prefix: str, answer: str, requests: Requests) -> Iterator[str]:
    running, answered, seconds = requests.told()
    counts = [({"operation": name, answer: text}, count) for (name, text), count in answered.items()]
    yield from _family(f"{prefix}_requests", "counter", "Requests answered.", counts)
    now = [({"operation": name}, count) for name, count in running.items()]
    yield from _family(f"{prefix}_running", "gauge", "Requests that are being answered, streams included.", now)
    spent = [({"operation": name}, each) for name, each in seconds.items()]
    yield from _family(f"{prefix}_request_seconds", "counter", "Seconds they took, streams included.", spent)


def _of_store(found: dict[str, Any]) -> Iterator[str]:
    free = found["store"]["disk_free_bytes"]
    yield from _family("jjq_disk_free_bytes", "gauge", "Free bytes on the store's disk.", [({}, free)])
    damaged = sorted({each["topic"] for each in found["damaged"]})
    about = "Topics with what cannot be counted, as files are damaged."
    yield from _family("jjq_damaged", "gauge", about, [({"topic": name}, 1) for name in damaged])
    yield from _families("jjq_topic", _TOPIC, found["topics"], {"topic": "name"})
    states = [
        ({"topic": topic["name"], "state": state}, count)
        for topic in found["topics"] for state, count in topic["segments"].items()
    ]  # fmt: skip
    yield from _family("jjq_topic_segments", "gauge", "Segments.", states)
    names = {"subscriber": "name", "topic": "topic"}
    yield from _families("jjq_subscriber_lag", _SUBSCRIBER, found["subscribers"], names)
    paused = {topic["name"] for topic in found["topics"] if topic["paused"]}
    channels = [
        each | {"consumers": len(each["consumers"]), "paused": int(each["paused"] or each["topic"] in paused)}
        for each in found["channels"]
    ]
    yield from _families("jjq_channel", _CHANNEL, channels, {"channel": "name", "topic": "topic"})
    turn = found["maintenance"]
    about = "Seconds since maintenance was last done in the background."
    age = None if turn is None else (found["at"] - turn["at"]) / 1e6
    yield from _family("jjq_maintenance_age_seconds", "gauge", about, [({}, age)])


def _families(
    prefix: str, wanted: dict[str, tuple[str, str]], rows: list[dict[str, Any]], labels: dict[str, str]
) -> Iterator[str]:
    for field, (kind, about) in wanted.items():
        samples = [({label: row[name] for label, name in labels.items()}, row[field]) for row in rows]
        yield from _family(f"{prefix}_{field}", kind, about, samples)


def _family(name: str, kind: str, about: str, samples: Iterable[tuple[dict[str, str], float | None]]) -> Iterator[str]:
    """Nothing for what is not known."""
    shown = f"{name}_total" if kind == "counter" else name
    yield f"# HELP {shown} {about}"
    yield f"# TYPE {shown} {kind}"
    for labels, value in samples:
        if value is not None:
            inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            yield f"{shown}{{{inside}}} {value}" if inside else f"{shown} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
