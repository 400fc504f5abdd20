"""Pushing over HTTP: single records, many, lines, Arrow; and publishing."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from jjq.errors import InvalidArgument, JjqError, RecordTooLarge, SchemaMismatch, TopicDeleted
from jjq.log import flat
from jjq.model import Position, Positions
from jjq.server.batches import check_batch, check_rows
from jjq.server.events import open_topic
from jjq.server.gathering import Item
from jjq.server.http_errors import RequestError
from jjq.server.http_operations import (
    ARROW,
    BYTES,
    JSON,
    LINES,
    TEXT,
    TOPIC_NAME,
    Table,
    check,
    parse_json,
    path,
    query,
)
from jjq.server.http_records import (
    NEW_RECORD,
    POSITION,
    headers_for,
    plain_bytes,
    position_json,
    timestamp_for,
    value_for,
)
from jjq.server.http_requests import Parts, Request
from jjq.server.rights import check_may_write_as
from jjq.server.settings import ServerSettings
from jjq.topic import Topic
from jjq.values import shown, size_of

table = Table("Records")
Result = TypeVar("Result")

TOPIC = path("topic", "The topic's name.", pattern=TOPIC_NAME)
_MANY = {
    "type": "object", "required": ["records"], "additionalProperties": False,
    "properties": {
        "records": {"type": "array", "items": NEW_RECORD, "minItems": 1},
        "atomic": {"type": "boolean", "description": "All of them at once, also over several partitions, or none."},
    },
}  # fmt: skip
_FORMS = 'must be {"value": ...}, where the row of a topic with a schema is the value, or for several {"records": [{"value": ...}, ...]}'
_PUSHED = {
    "type": "object", "required": ["records", "dropped", "positions", "ranges"],
    "properties": {
        "records": {"type": "integer"},
        "dropped": {"type": "integer", "description": "How many of them an ephemeral topic that is full has dropped."},
        "positions": {"type": "array", "items": POSITION, "description": "Of each record, where there are up to 1,000."},
        "ranges": {
            "type": "array", "items": {"type": "object"},
            "description": "By partition the offsets [start, end) of the records that were not dropped.",
        },
    },
}  # fmt: skip
_MOST_POSITIONS = 1000


def push_gathered(parts: Parts, name: str, items: Sequence[Item]) -> Sequence[Position]:
    """Writes records of one topic that have gathered: see `Gathering`."""
    values = [each.value for each in items]
    keys = [each.key for each in items] if any(each.key is not None for each in items) else None
    headers = [each.headers for each in items] if any(each.headers is not None for each in items) else None

    def push(topic: Topic) -> Positions:
        return topic.push_many(values, keys=keys, headers=headers)

    return pushing(parts, name, push)


def pushing(parts: Parts, name: str, push: Callable[[Topic], Result]) -> Result:
    """Calls `push` with a handle of the topic, a second time when the topic was deleted and there is another by its name."""
    topic = _target(parts, name, push)
    try:
        return push(topic)
    except TopicDeleted:
        parts.topics.pop(name, None)
        again = _target(parts, name, push)
        if again.id == topic.id:
            raise
        return push(again)


def _target(parts: Parts, name: str, push: Callable[[Topic], object]) -> Topic:
    """The topic of that name, made at first use, if that push can be; that of events is made as one."""
    if name == parts.settings.events_topic:
        with contextlib.suppress(InvalidArgument):  # a topic of another kind has that name: it is pushed to as it is
            return open_topic(parts)
    return parts.topic(name, push)


@table.operation(
    "POST", "/api/topics/{topic}/records", "push",
    "Pushes records; answered when they are as durable as the topic's `sync` says. As JSON one record or a list of them. "
    "Bytes or text are the value of one record as they are. Lines are one record each, of a topic with a schema a JSON "
    "object each. An Arrow stream has the topic's columns; with writer_id and batch_id it is taken once, however often it is "
    "sent. The topic is made at first use.",
    parameters=[
        TOPIC,
        query("key", "The record's key; of an Arrow stream the column that has the keys."),
        query("partition", "The partition, else the key chooses it.", type="integer", minimum=0, maximum=1023),
        query("delay", "Channels do not deliver before so many seconds have passed.", type="number", minimum=0,
              maximum=1e9),
        query("timestamp", "Of an Arrow stream: the column with the producer's time."),
        query("writer_id", "Of an Arrow stream: who writes, for exactly once."),
        query("batch_id", "Of an Arrow stream: the number of the writer's batch.", type="integer", minimum=0,
              maximum=(1 << 62)),
    ],
    body={
        JSON: {"anyOf": [NEW_RECORD, _MANY]}, BYTES: {"type": "string", "format": "binary"}, TEXT: {"type": "string"},
        LINES: {"type": "string"}, ARROW: {"type": "string", "format": "binary"},
    },
    answers={200: ("Where the records are.", {JSON: _PUSHED})},
)  # fmt: skip
async def push_records(request: Request) -> dict[str, Any]:
    kind, given = request.media_type, request.arguments
    only_arrow = [name for name in ("timestamp", "writer_id", "batch_id") if given[name] is not None]
    if kind != ARROW and only_arrow:
        raise RequestError(f"{only_arrow[0]} is for Arrow streams ({ARROW})")
    if kind == ARROW:
        if given["delay"] is not None:
            raise RequestError("an Arrow stream takes no delay")
        return await _push_arrow(request)
    if kind == JSON:
        return await _push_json(request)
    if kind == LINES:
        return _pushed(await request.run(_push_lines, request, await request.body()))
    return await _push_value(request)


async def _push_value(request: Request) -> dict[str, Any]:
    """The body is a record's value; it goes in together with what others push at the same time."""
    given, parts = request.arguments, request.parts
    body = await request.body()
    key = None if given["key"] is None else given["key"].encode()
    size = len(body) + len(key or b"")
    request.check_record(size)
    request.caller.spend(1, size)
    if given["partition"] is None and given["delay"] is None:
        pushed = parts.gathering.push(given["topic"], Item(body, key, None, size))
    else:
        push = functools.partial(_push_one, body, key, given["partition"], given["delay"])
        pushed = request.run(pushing, parts, given["topic"], push)
    with values_as_bytes(given["topic"]):
        return _pushed(Positions([], None), [await pushed])


@contextlib.contextmanager
def values_as_bytes(topic: str) -> Iterator[None]:
    """Around a push of bodies as they are: has the error say what a topic with a schema takes instead."""
    try:
        yield
    except SchemaMismatch as error:
        raise SchemaMismatch(
            f'{error.message}; push JSON, {{"value": {{COLUMN: ...}}}}, with the header Content-Type: {JSON} to '
            f"/api/topics/{topic}/records"
        ) from error


def _push_one(value: Any, key: bytes | None, partition: int | None, delay: float | None, topic: Topic) -> Position:
    return topic.push(value, key=key, partition=partition, delay=delay)


async def _push_json(request: Request) -> dict[str, Any]:
    if request.arguments["key"] is not None:
        raise RequestError("of records in JSON each has its own key")
    return _pushed(await request.run(_push_document, request, await request.body()))


def _push_document(request: Request, data: bytes) -> Positions:
    """All of it in a thread: of a large body each step would hold up the loop."""
    found = parse_json(data)
    many = isinstance(found, dict) and "records" in found
    if not many and (not isinstance(found, dict) or "value" not in found):  # a bare row, or a bare list of records
        raise RequestError(f"the body {_FORMS}, not {shown(found)}")
    check(found, _MANY if many else NEW_RECORD, "the body")
    records = found["records"] if many else [found]
    request.caller.spend(len(records), len(data))
    push = functools.partial(_push_documents, request, records, bool(many and found.get("atomic", False)))
    return pushing(request.parts, request.arguments["topic"], push)


def _push_documents(request: Request, records: Sequence[Any], atomic: bool, topic: Topic) -> Positions:
    topic.refresh()
    values, keys, headers, stamps = [], [], [], []
    for i, each in enumerate(records):
        what = f"record {i}"
        values.append(value_for(topic, each["value"], what))
        keys.append(plain_bytes(each.get("key"), f"the key of {what}"))
        headers.append(headers_for(each.get("headers"), what))
        stamps.append(timestamp_for(each.get("timestamp"), what))
        request.check_record(size_of(values[-1]) + size_of(keys[-1] or b"") + size_of(headers[-1] or b""))
    return topic.push_many(
        values, keys=keys if any(each is not None for each in keys) else None,
        headers=headers if any(each is not None for each in headers) else None,
        timestamps=stamps if any(each is not None for each in stamps) else None,
        partition=request.arguments["partition"], atomic=atomic, delay=request.arguments["delay"],
    )  # fmt: skip


def _push_lines(request: Request, data: bytes) -> Positions:
    lines = {number: each for number, each in enumerate(data.split(b"\n"), 1) if each.strip(b"\r \t")}
    if not lines:
        raise RequestError("there is no line in the body")
    request.check_record(max(map(len, lines.values())))
    request.caller.spend(len(lines), len(data))
    return pushing(request.parts, request.arguments["topic"], functools.partial(_push_each_line, request, lines))


def _push_each_line(request: Request, lines: Mapping[int, bytes], topic: Topic) -> Positions:
    """`lines` by their numbers in the body, from 1, empty ones left out."""
    topic.refresh()
    given = request.arguments
    values: list[Any] = [each.removesuffix(b"\r") for each in lines.values()]
    if topic.schema is not None:
        values = []
        for number, line in lines.items():
            try:
                values.append(value_for(topic, parse_json(line), f"line {number}"))
            except RequestError as error:
                raise RequestError(f"line {number}: {error.message}") from error
    keys = None if given["key"] is None else [given["key"]] * len(values)
    try:
        return topic.push_many(values, keys=keys, partition=given["partition"], delay=given["delay"])
    except (SchemaMismatch, RecordTooLarge) as error:
        numbers = [*lines]
        error.message = re.sub(r"^record (\d+)", lambda found: f"line {numbers[int(found[1])]}", error.message)
        raise


async def arrow_body(request: Request) -> pa.Table:
    """The rows of an Arrow stream, which are about to be pushed."""
    if request.media_type != ARROW:
        raise RequestError(f"the body must be {ARROW}, not {shown(request.media_type)}", "unsupported_media_type")
    data = await request.body()
    try:
        rows = await request.run(_arrow_table, data, request.parts.settings)
    except JjqError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RequestError(f"the body is no Arrow stream: {str(error).splitlines()[0]}") from error
    request.caller.spend(rows.num_rows, rows.nbytes)
    return rows


async def _push_arrow(request: Request) -> dict[str, Any]:
    given = request.arguments
    rows = await arrow_body(request)

    def push(topic: Topic) -> Positions:
        topic.refresh()
        check_may_write_as(request.store, request.caller, given["writer_id"])
        check_rows(topic, rows)
        return topic.push_table(
            rows, key=given["key"], partition=given["partition"], timestamp=given["timestamp"],
            writer_id=given["writer_id"], batch_id=given["batch_id"],
        )  # fmt: skip

    return _pushed(await request.run(pushing, request.parts, given["topic"], push))


def _arrow_table(data: bytes, settings: ServerSettings) -> pa.Table:
    """The rows of an Arrow stream, checked: what a stranger sends may point anywhere, and may be large once it is unpacked."""
    size, most = 0, settings.max_request_bytes
    for message in pa.ipc.MessageReader.open_stream(data):
        size += flat.unpacked_bytes(message.metadata.to_pybytes(), memoryview(message.body or b""))
        if size > most:
            raise RequestError(
                f"the body has more than the {most:,} bytes that are taken at once, unpacked", "request_too_large"
            )
    with pa.ipc.open_stream(data) as reader:
        found = reader.read_all()
    for batch in found.to_batches():
        check_batch(batch, settings.max_record_bytes, most)
    return found


def _pushed(positions: Positions, each: Sequence[Position] | None = None) -> dict[str, Any]:
    ranges = [(r.partition, r.start, r.end) for r in positions.ranges]
    if each is not None:
        ranges = [(p.partition, p.offset, p.offset + 1) for p in each]
    shown = positions if each is None else each
    return {
        "records": len(shown), "dropped": sum(end - start for _, start, end in ranges if start < 0),
        "positions": list(map(position_json, shown)) if len(shown) <= _MOST_POSITIONS else [],
        "ranges": [{"partition": p, "start": start, "end": end} for p, start, end in ranges if start >= 0],
    }  # fmt: skip


@table.operation(
    "POST", "/api/topics/{topic}/publish", "push",
    "Publishes the body to whoever is subscribed to the name or to a pattern that it matches, on this machine; the topic is "
    "made, ephemeral, if there is none.",
    parameters=[TOPIC],
    body={BYTES: {"type": "string", "format": "binary"}, TEXT: {"type": "string"}},
    answers={200: ("How many subscriptions it reached.", {JSON: {
        "type": "object", "required": ["receivers"], "properties": {"receivers": {"type": "integer"}}}})},
)  # fmt: skip
async def publish(request: Request) -> dict[str, Any]:
    body = await request.body()
    request.check_record(len(body))
    request.caller.spend(1, len(body))
    topic = request.arguments["topic"]
    with values_as_bytes(topic):
        return {"receivers": await request.run(request.store.publish, topic, body)}
