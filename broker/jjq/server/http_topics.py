"""Topics over HTTP: listed, made, altered, emptied, paused, deleted."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from starlette.responses import Response

from jjq.errors import DamagedSegment, InvalidArgument, StoreError, TopicDeleted
from jjq.model import SegmentInfo, TopicOffsets
from jjq.server.http_operations import JSON, TOPIC_NAME, Table, named, query
from jjq.server.http_pushing import TOPIC
from jjq.server.http_records import instant, start_of
from jjq.server.http_requests import Json, Request
from jjq.server.http_stats import DAMAGED, told
from jjq.stats import Damaged, those_there
from jjq.store import Store
from jjq.topic import Topic
from jjq.typenames import data_type
from jjq.values import shown

table = Table("Topics")

_SETTINGS = {
    name: {"type": kinds}
    for name, kinds in {
        "sync": ["string"], "sync_interval_ms": ["integer"], "segment_bytes": ["integer", "string"],
        "segment_rows": ["integer", "null"], "segment_age": ["string", "null"],
        "retention": ["string", "null"], "retention_bytes": ["integer", "string", "null"],
        "retention_segments": ["integer", "null"], "retention_waits": ["boolean", "array"], "timestamps": ["string"],
        "compression": ["string", "null"], "max_record_bytes": ["integer", "string"], "max_batch_bytes": ["integer", "string"],
        "ephemeral": ["boolean"], "max_records": ["integer", "null"], "when_full": ["string"],
    }.items()
}  # fmt: skip
_COLUMNS = {
    "type": "object", "additionalProperties": {"type": "string"},
    "description": "By name a type, as the command line takes them: string, int32, timestamp, decimal(10,2), list<string> and others.",
}  # fmt: skip
NEW_TOPIC = named(
    "NewTopic",
    {
        "type": "object", "required": ["name"], "additionalProperties": False,
        "properties": {
            "name": {"type": "string", "pattern": TOPIC_NAME}, "partitions": {"type": "integer", "minimum": 1, "maximum": 1024},
            "schema": _COLUMNS, "exist_ok": {"type": "boolean"}, **_SETTINGS,
        },
    },
)  # fmt: skip
CHANGES = named(
    "TopicChanges",
    {
        "type": "object", "additionalProperties": False, "minProperties": 1,
        "properties": {
            "partitions": {"type": "integer", "minimum": 1, "maximum": 1024}, "add_columns": _COLUMNS, **_SETTINGS,
        },
    },
)  # fmt: skip
TOPIC_JSON = named(
    "Topic",
    {
        "type": "object", "required": ["name", "id", "partitions", "records", "bytes"],
        "properties": {
            "name": {"type": "string"}, "id": {"type": "string"}, "partitions": {"type": "array", "items": {"type": "object"}},
            "records": {"type": "integer"}, "bytes": {"type": "integer"}, "paused": {"type": "boolean"},
            "schema": {"type": ["object", "null"]}, "config": {"type": "object"},
        },
    },
)  # fmt: skip
_GONE: Mapping[int, Any] = {204: ("Done.", {})}


def columns_of(columns: dict[str, str]) -> pa.Schema:
    try:
        return pa.schema([pa.field(name, _type_of(name, text)) for name, text in columns.items()])
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the name of a column holds half of a surrogate pair: {shown(error.object)}") from error


def _type_of(name: str, text: str) -> pa.DataType:
    try:
        return data_type(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"column {shown(name)}: {error.message}") from error


@table.operation(
    "GET", "/api/topics", "topic.list", "All topics that the caller may do anything with.",
    answers={200: ("Topics.", {JSON: {"type": "object", "required": ["topics", "damaged"], "properties": {
        "topics": {"type": "array", "items": {"type": "object"}}, "damaged": DAMAGED}}})},
    scope="list",
)  # fmt: skip
async def list_topics(request: Request) -> dict[str, Any]:
    return await request.run(_listed, request)


def _listed(request: Request) -> dict[str, Any]:
    topics = [each for each in request.store.topics() if request.can_see(each.name)]
    held: dict[str, TopicOffsets] = {}
    with contextlib.suppress(DamagedSegment, StoreError):  # then they are looked at one by one
        held = request.store.offsets(matching={each.name for each in topics}.__contains__)

    def described(topic: Topic) -> dict[str, Any]:
        partitions = held[topic.name].partitions if topic.name in held else topic.offsets()
        return {
            "name": topic.name, "id": topic.id, "partitions": len(partitions),
            "records": sum(bounds.end - bounds.start for bounds in partitions),
        }  # fmt: skip

    damaged: Damaged = []
    return {"topics": those_there(topics, described, damaged), "damaged": told(request, damaged)}


@table.operation(
    "POST", "/api/topics", "topic.create", "Makes a topic.", body={JSON: NEW_TOPIC},
    answers={201: ("The topic.", {JSON: TOPIC_JSON})}, scope="body",
)  # fmt: skip
async def create_topic(request: Request) -> Response:
    given = await request.document()
    name = given.pop("name")
    request.allow("topic.create", name)
    columns = given.pop("schema", None)
    schema = None if columns is None else columns_of(columns)
    topic = await request.run(request.store.create_topic, name, schema=schema, **given)
    return Json(await request.run(described, topic), 201)


def described(topic: Topic) -> dict[str, Any]:
    found = topic.describe()
    return {**found, "created_at": instant(found["created_at"]), "paused": topic.paused}


@table.operation(
    "GET", "/api/topics/{topic}", "topic.describe", "What a topic is and holds.", parameters=[TOPIC],
    answers={200: ("The topic.", {JSON: TOPIC_JSON})},
)  # fmt: skip
async def describe_topic(request: Request) -> dict[str, Any]:
    return await request.run(lambda: described(request.store.topic(request.arguments["topic"])))


@table.operation(
    "GET", "/api/topics/{topic}/offsets", "topic.describe",
    "What each partition holds, `[start, end)`; with a start (or an end) also what that means now, by partition.",
    parameters=[
        TOPIC, query("at", "A start in any form: an offset, -100, `earliest`, `latest`, a time with a zone, `-10 minutes`."),
        query("as_end", "Whether `at` is where something ends.", type="boolean"),
    ],
    answers={200: ("Offsets.", {JSON: {"type": "object", "required": ["partitions"], "properties": {
        "partitions": {"type": "array", "items": {"type": "object"}}, "at": {"type": "object"}}}})},
)  # fmt: skip
async def read_offsets(request: Request) -> dict[str, Any]:
    given = request.arguments

    def offsets() -> dict[str, Any]:
        topic = request.store.topic(given["topic"])
        found: dict[str, Any] = {"partitions": [asdict(each) for each in topic.offsets()]}
        if given["at"] is not None:
            places = topic.resolve(start_of(given["at"]), end=bool(given["as_end"]))
            found["at"] = {str(partition): offset for partition, offset in sorted(places.items())}
        return found

    return await request.run(offsets)


@table.operation(
    "PATCH", "/api/topics/{topic}", "topic.alter", "Changes settings, adds partitions or columns.", parameters=[TOPIC],
    body={JSON: CHANGES}, answers={200: ("The topic.", {JSON: TOPIC_JSON})}, scope="body",
)  # fmt: skip
async def alter_topic(request: Request) -> dict[str, Any]:
    given = await request.document()
    request.allow("topic.alter", request.arguments["topic"])  # behind the body: without one nothing was begun
    columns = given.pop("add_columns", None)
    added = None if columns is None else columns_of(columns)
    topic = await request.run(request.store.alter_topic, request.arguments["topic"], add_columns=added, **given)
    request.parts.topics.pop(topic.name, None)
    return await request.run(described, topic)


@table.operation(
    "DELETE", "/api/topics/{topic}", "topic.delete", "Deletes a topic with its records, subscribers and channels.",
    parameters=[TOPIC], answers=_GONE,
)  # fmt: skip
async def delete_topic(request: Request) -> None:
    await request.run(request.store.delete_topic, request.arguments["topic"])


@table.operation(
    "POST", "/api/topics/{topic}/empty", "topic.empty", "Lets go of every record; offsets go on.", parameters=[TOPIC],
    answers=_GONE,
)  # fmt: skip
async def empty_topic(request: Request) -> None:
    await request.run(lambda: request.store.topic(request.arguments["topic"]).empty())


@table.operation(
    "POST", "/api/topics/{topic}/pause", "topic.pause", "The topic's channels deliver nothing until unpaused.",
    parameters=[TOPIC], answers=_GONE,
)  # fmt: skip
async def pause_topic(request: Request) -> None:
    await request.run(lambda: request.store.topic(request.arguments["topic"]).pause())


@table.operation(
    "POST", "/api/topics/{topic}/unpause", "topic.pause", "The topic's channels deliver again.", parameters=[TOPIC],
    answers=_GONE,
)  # fmt: skip
async def unpause_topic(request: Request) -> None:
    await request.run(lambda: request.store.topic(request.arguments["topic"]).unpause())


@table.operation(
    "GET", "/api/topics/{topic}/segments", "read", "The topic's segments, by partition and offset.", parameters=[TOPIC],
    answers={200: ("Segments.", {JSON: {"type": "object", "required": ["segments"], "properties": {
        "segments": {"type": "array", "items": {"type": "object"}}}}})},
)  # fmt: skip
async def list_segments(request: Request) -> dict[str, Any]:
    return {"segments": await request.run(_segments, request.store, request.arguments["topic"])}


def _segments(store: Store, name: str) -> list[dict[str, Any]]:
    topic = store.topic(name)
    hot = hot_segments(store)
    with contextlib.suppress(TopicDeleted):
        return [_segment(each, hot) for each in topic.segments()]
    return []


def _segment(each: SegmentInfo, hot: frozenset[str]) -> dict[str, Any]:
    found = each.to_dict()
    del found["path"]
    for name in ("min_timestamp", "max_timestamp", "appended_at"):
        found[name] = instant(found[name] or None)
    return found | {"hot": each.id in hot}


def hot_segments(store: Store) -> frozenset[str]:
    """The ids of segments that this process keeps in memory."""
    return frozenset(str(each["id"]) for each in store.hot.stats().get("segments", ()))
