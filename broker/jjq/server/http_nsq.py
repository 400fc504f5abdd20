"""NSQ's HTTP paths, for scripts and tools that know them. Its rules for names and for empty bodies hold here and nowhere else."""

from __future__ import annotations

import functools
import re
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any

from starlette.responses import Response

from jjq.errors import JjqError
from jjq.server.gathering import Item
from jjq.server.http_errors import RequestError
from jjq.server.http_operations import BYTES, JSON, TEXT, Parameter, Table, query
from jjq.server.http_pushing import pushing, values_as_bytes
from jjq.server.http_requests import Json, Request
from jjq.server.http_stats import told
from jjq.stats import Damaged
from jjq.topic import Topic

table = Table("NSQ")

_NAME = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?", re.ASCII)
_MOST_CHARACTERS = 64
_NSQ_NAME = r"^[a-zA-Z0-9][.a-zA-Z0-9_-]{0,63}$"  # for the description: what both NSQ and we take
_MOST_DEFER_MS = 3_600_000  # nsqd's max-req-timeout
_SAID = {
    "topic_not_found": "TOPIC_NOT_FOUND", "topic_deleted": "TOPIC_NOT_FOUND", "channel_not_found": "CHANNEL_NOT_FOUND",
    "record_too_large": "MSG_TOO_BIG", "request_too_large": "BODY_TOO_BIG",
}  # fmt: skip


def _needed(name: str) -> Parameter:
    return Parameter(
        name=name, about=f"The {name}'s name.", schema={"type": "string", "pattern": _NSQ_NAME}, required=True,
        missing=f"MISSING_ARG_{name.upper()}",
    )  # fmt: skip


_TOPIC, _CHANNEL = _needed("topic"), _needed("channel")
_OK = {200: ("OK", {TEXT: {"type": "string"}})}
_DONE: Mapping[int, Any] = {200: ("Done.", {})}


def _in_its_words(handler: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Any]]:
    """Errors whose message is NSQ's name for them, where it has one."""

    @functools.wraps(handler)
    async def handle(request: Request) -> Any:
        try:
            return await handler(request)
        except JjqError as error:
            said = _SAID.get(error.code)
            if said is None:
                raise
            raise RequestError(said, error.code) from error

    return handle


def _names(request: Request, *wanted: str) -> list[str]:
    names = []
    for each in wanted:
        name = request.arguments[each]
        if not 1 <= len(name) <= _MOST_CHARACTERS or _NAME.fullmatch(name) is None:
            raise RequestError(f"INVALID_{each.upper()}", "invalid_name")
        names.append(name)
    return names


def _ok() -> Response:
    return Response(b"OK", media_type="text/plain")


# --- publishing ----------------------------------------------------------------------------------------------------------


@table.operation(
    "POST", "/pub", "push", "Pushes the body; with `defer` channels do not deliver it for so many milliseconds.",
    parameters=[_TOPIC, query("defer", "Milliseconds.")],
    body={BYTES: {"type": "string", "format": "binary"}}, answers=_OK, lenient=True,
)  # fmt: skip
@_in_its_words
async def pub(request: Request) -> Response:
    (topic,) = _names(request, "topic")
    delay = _deferred(request.arguments["defer"])
    body = await request.body()
    if not body:
        raise RequestError("MSG_EMPTY")
    request.check_record(len(body))
    request.caller.spend(1, len(body))
    with values_as_bytes(topic):
        if delay is None:
            await request.parts.gathering.push(topic, Item(body, None, None, len(body)))
        else:
            await request.run(pushing, request.parts, topic, lambda found: found.push(body, delay=delay))
    return _ok()


def _deferred(text: str | None) -> float | None:
    if text is None:
        return None
    if not (text.isdecimal() and text.isascii() and len(text) < 12 and int(text) <= _MOST_DEFER_MS):
        raise RequestError("INVALID_DEFER")
    return int(text) / 1000


@table.operation(
    "POST", "/mpub", "push",
    "Pushes each line of the body, or with `binary=true` messages as NSQ frames them: their number, then each with its size "
    "before it, as 4 bytes, the highest first. All of them, or none.",
    parameters=[_TOPIC, query("binary", "`true` for frames.")],
    body={BYTES: {"type": "string", "format": "binary"}}, answers=_OK, lenient=True,
)  # fmt: skip
@_in_its_words
async def mpub(request: Request) -> Response:
    (topic,) = _names(request, "topic")
    with values_as_bytes(topic):
        await request.run(_push_messages, request, topic, await request.body())
    return _ok()


def _push_messages(request: Request, topic: str, body: bytes) -> None:
    """All of it in a thread: of a large body each step would hold up the loop."""
    binary = request.arguments["binary"]
    framed = binary is not None and binary.lower() not in ("", "0", "f", "false")
    messages = _frames(body) if framed else [each for each in body.split(b"\n") if each]
    if not messages:
        raise RequestError("MSG_EMPTY")
    request.check_record(max(map(len, messages)))
    request.caller.spend(len(messages), len(body))
    pushing(request.parts, topic, lambda found: found.push_many(messages))


def _frames(body: bytes) -> list[bytes]:
    found, position = [], 4
    if len(body) < 4:
        raise RequestError("BAD_MESSAGE")
    (count,) = struct.unpack_from(">i", body)
    if not 0 < count <= len(body) // 5:
        raise RequestError("BAD_MESSAGE")
    for _ in range(count):
        if position + 4 > len(body):
            raise RequestError("BAD_MESSAGE")
        (size,) = struct.unpack_from(">i", body, position)
        position += 4
        if size <= 0 or position + size > len(body):
            raise RequestError("BAD_MESSAGE")
        found.append(body[position : position + size])
        position += size
    return found


# --- topics and channels -------------------------------------------------------------------------------------------------


def _on_topic(name: str, action: str, about: str, call: Callable[[Request, str], object]) -> None:
    @_in_its_words
    async def act(request: Request) -> Response:
        (topic,) = _names(request, "topic")
        await request.run(call, request, topic)
        return Response(status_code=200)

    act.__name__ = f"nsq_topic_{name}"
    table.operation("POST", f"/topic/{name}", action, about, parameters=[_TOPIC], answers=_DONE, lenient=True)(act)


def _on_channel(name: str, action: str, about: str, call: Callable[[Request, str, str], object]) -> None:
    @_in_its_words
    async def act(request: Request) -> Response:
        topic, channel = _names(request, "topic", "channel")
        await request.run(call, request, topic, channel)
        return Response(status_code=200)

    act.__name__ = f"nsq_channel_{name}"
    table.operation(
        "POST", f"/channel/{name}", action, about, parameters=[_TOPIC, _CHANNEL], answers=_DONE, lenient=True
    )(act)


def _topic(request: Request, name: str) -> Topic:
    return request.store.topic(name)


_on_topic("create", "topic.create", "Makes a topic, if there is none.",
          lambda request, topic: request.store.create_topic(topic, exist_ok=True))  # fmt: skip
_on_topic("delete", "topic.delete", "Deletes a topic.", lambda request, topic: request.store.delete_topic(topic))
_on_topic("empty", "topic.empty", "Lets go of its records.", lambda request, topic: _topic(request, topic).empty())
_on_topic(
    "pause", "topic.pause", "Its channels deliver nothing.", lambda request, topic: _topic(request, topic).pause()
)
_on_topic("unpause", "topic.pause", "They deliver again.", lambda request, topic: _topic(request, topic).unpause())


def _create_channel(request: Request, topic: str, channel: str) -> None:
    request.store.topic(topic)  # NSQ makes no topic here
    request.store.channel(topic, channel, create=True)


_on_channel("create", "channel.create", "Makes a channel of a topic that is there, if there is none.", _create_channel)
_on_channel("delete", "channel.delete", "Deletes a channel.",
            lambda request, topic, channel: request.store.delete_channel(topic, channel))  # fmt: skip
_on_channel("empty", "channel.empty", "Skips what is there.",
            lambda request, topic, channel: request.store.channel(topic, channel).empty())  # fmt: skip
_on_channel("pause", "channel.pause", "It delivers nothing.",
            lambda request, topic, channel: request.store.channel(topic, channel).pause())  # fmt: skip
_on_channel("unpause", "channel.pause", "It delivers again.",
            lambda request, topic, channel: request.store.channel(topic, channel).unpause())  # fmt: skip


# --- watching ------------------------------------------------------------------------------------------------------------


@table.operation(
    "GET", "/ping", None, "OK, or why not: as /healthz, in NSQ's words.",
    answers={200: ("OK", {TEXT: {"type": "string"}}), 500: ("NOK - why", {TEXT: {"type": "string"}})}, lenient=True,
)  # fmt: skip
async def ping(request: Request) -> Response:
    verdict = await request.parts.health.check()
    return _ok() if verdict.ok else Response(f"NOK - {verdict.reason}".encode(), 500, media_type="text/plain")


@table.operation(
    "GET", "/info", "stats", "What this is.", answers={200: ("Facts.", {JSON: {"type": "object"}})}, scope="list",
    lenient=True,
)  # fmt: skip
async def info(request: Request) -> dict[str, Any]:
    server = request.scope.get("server") or ("", 0)
    return {
        "version": version("jjq"), "broadcast_address": socket.gethostname(), "hostname": socket.gethostname(),
        "http_port": server[1], "tcp_port": 0, "start_time": int(request.parts.counters.started_at),
    }  # fmt: skip


@table.operation(
    "GET", "/stats", "stats", "Topics and channels with their counts, as text or with `format=json`.",
    parameters=[
        query("format", "`json` or `text`."), query("topic", "Only this topic."), query("channel", "Only this channel."),
        query("include_clients", "`false` to leave consumers out."),
    ],
    answers={200: ("Counts.", {JSON: {"type": "object"}, TEXT: {"type": "string"}})}, scope="list", lenient=True,
)  # fmt: skip
@_in_its_words
async def nsq_stats(request: Request) -> Response:
    verdict = await request.parts.health.check()
    topics, damaged = await request.run(_stats, request)
    health = "OK" if verdict.ok else f"NOK - {verdict.reason}"
    started = int(request.parts.counters.started_at)
    if request.arguments["format"] == "json":
        return Json(
            {
                "version": version("jjq"), "health": health, "start_time": started, "topics": topics, "producers": [],
                "damaged": damaged,
            }
        )  # fmt: skip
    lines = _lines(health, topics) + [f"   damaged: {each['what']} {each['name']}: {each['error']}" for each in damaged]
    return Response("\n".join(lines) + "\n", media_type="text/plain")


def _stats(request: Request) -> tuple[list[dict[str, Any]], Damaged]:
    only, channel = request.arguments["topic"], request.arguments["channel"]
    if only:
        request.allow("stats", only)
    found = request.store.stats(only or None)
    with_clients = request.arguments["include_clients"] != "false"
    channels: dict[str, list[dict[str, Any]]] = {}
    for each in found["channels"]:
        if not channel or each["name"] == channel:
            channels.setdefault(each["topic"], []).append(_channel(each, with_clients))
    damaged = [each for each in told(request, found["damaged"]) if request.can_read(each["topic"])]
    topics = [
        {
            "topic_name": each["name"], "channels": channels.get(each["name"], []), "depth": each["records"],
            "backend_depth": each["records"], "message_count": each["pushed_records"],
            "message_bytes": each["pushed_bytes"], "paused": each["paused"],
        }
        for each in found["topics"] if request.can_read(each["name"])
    ]  # fmt: skip
    return topics, damaged


def _channel(each: Mapping[str, Any], with_clients: bool) -> dict[str, Any]:
    now = time.time()
    clients = [
        {
            "client_id": one["id"], "hostname": one["host"], "in_flight_count": one["in_flight"],
            "connect_ts": int(one["started_at"] / 1_000_000), "connected_s": int(now - one["started_at"] / 1_000_000),
        }
        for one in each["consumers"]
    ]  # fmt: skip
    return {
        "channel_name": each["name"], "depth": each["depth"], "backend_depth": each["depth"],
        "in_flight_count": each["in_flight"], "deferred_count": each["deferred"], "message_count": each["delivered"],
        "requeue_count": each["requeued"], "timeout_count": each["timed_out"], "client_count": len(clients),
        "clients": clients if with_clients else [], "paused": each["paused"],
    }  # fmt: skip


def _lines(health: str, topics: list[dict[str, Any]]) -> list[str]:
    lines = [f"jjq {version('jjq')}", f"Health: {health}", "", "Topics:"]
    for each in topics:
        mark = "*P " if each["paused"] else "   "
        lines.append(f"{mark}[{each['topic_name']}] depth: {each['depth']} msgs: {each['message_count']}")
        for channel in each["channels"]:
            mark = "*P " if channel["paused"] else "   "
            lines.append(
                f"   {mark}[{channel['channel_name']}] depth: {channel['depth']} inflt: {channel['in_flight_count']} "
                f"def: {channel['deferred_count']} re-q: {channel['requeue_count']} timeout: {channel['timeout_count']} "
                f"msgs: {channel['message_count']}"
            )
    return lines if topics else [*lines, "   (none)"]
