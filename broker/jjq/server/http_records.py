"""Records, positions and starts as HTTP writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from jjq.clock import EARLIEST_US, LATEST_US, iso, parse_instant
from jjq.errors import InvalidArgument, SchemaMismatch
from jjq.jsonvalues import fitted, unbased
from jjq.model import Position, Record
from jjq.server.http_errors import RequestError
from jjq.server.http_operations import named
from jjq.server.http_requests import dumped
from jjq.topic import Topic

RECORD = named(
    "Record",
    {
        "type": "object",
        "description": "Bytes are text, or {\"base64\": ...} where they are not UTF-8.",
        "required": ["topic", "partition", "offset", "timestamp", "key", "headers", "value"],
        "properties": {
            "topic": {"type": "string"}, "partition": {"type": "integer"}, "offset": {"type": "integer"},
            "timestamp": {"type": "string"}, "key": {"type": ["string", "object", "null"]},
            "headers": {"type": ["array", "null"]}, "value": {},
        },
    },
)  # fmt: skip

NEW_RECORD = named(
    "NewRecord",
    {
        "type": "object",
        "description": "`value` is text, {\"base64\": ...} or null, in a topic with a schema an object of its columns.",
        "required": ["value"],
        "additionalProperties": False,
        "properties": {
            "value": {"type": ["string", "object", "null"]},
            "key": {"type": ["string", "object", "null"]},
            "headers": {"type": ["object", "null"], "additionalProperties": {"type": ["string", "object", "null"]}},
            "timestamp": {"type": ["string", "integer", "null"]},
        },
    },
)  # fmt: skip

POSITION = named(
    "Position",
    {
        "type": "object",
        "required": ["partition", "offset", "timestamp"],
        "properties": {
            "partition": {"type": "integer"}, "offset": {"type": "integer"}, "timestamp": {"type": "string"},
        },
    },
)  # fmt: skip

_POSITIONS = re.compile(r"\d{1,4}:\d{1,19}(?:,\d{1,4}:\d{1,19})*")


def instant(us: int | None) -> str | None:
    if us is None:
        return None
    return iso(us) if EARLIEST_US <= us <= LATEST_US else f"{us} us"


def record_json(record: Record) -> dict[str, Any]:
    headers = None if record.headers is None else [[name, value] for name, value in record.headers]
    return {
        "topic": record.topic, "partition": record.partition, "offset": record.offset,
        "timestamp": instant(record.timestamp), "key": record.key, "headers": headers, "value": record.value,
    }  # fmt: skip


def position_json(position: Position) -> dict[str, Any]:
    return {"partition": position.partition, "offset": position.offset, "timestamp": instant(position.timestamp)}


# --- what is pushed ------------------------------------------------------------------------------------------------------


def plain_bytes(value: Any, what: str) -> bytes | None:
    """Text or `{"base64": ...}`."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"{what} has half of a surrogate pair, which UTF-8 cannot say") from error
    try:
        return unbased(value)
    except ValueError as error:
        raise RequestError(f"{what}: {error}") from error


def value_for(topic: Topic, value: Any, what: str) -> Any:
    """A JSON value as a push to a topic takes it."""
    if topic.schema is None or value is None:
        if isinstance(value, dict) and set(value) != {"base64"}:
            raise SchemaMismatch(
                f'{what}: topic {topic.name!r} has no schema, so a value is text or {{"base64": ...}}; send an object as the '
                f"text that it is in JSON, or make the topic with a schema"
            )
        return plain_bytes(value, what)
    if not isinstance(value, dict):
        raise SchemaMismatch(f"{what}: topic {topic.name!r} takes objects of {', '.join(topic.schema.names)}")
    row = {}
    for name, each in value.items():
        field = topic.schema.field(name) if name in topic.schema.names else None
        try:
            row[name] = each if field is None else fitted(each, field.type)
        except (pa.ArrowInvalid, ValueError, OverflowError) as error:
            raise SchemaMismatch(f"{what}: column {name!r} takes {topic.schema.field(name).type}: {error}") from error
    return row


def headers_for(headers: Mapping[str, Any] | None, what: str) -> dict[str, bytes | None] | None:
    if headers is None:
        return None
    return {name: plain_bytes(value, f"{what}, header {name!r}") for name, value in headers.items()}


def timestamp_for(value: Any, what: str) -> int | None:
    """Microseconds, as a number or in ISO-8601."""
    if value is None or isinstance(value, int):
        return value
    found = parse_instant(value)
    if found is None:
        raise RequestError(f"{what}: a timestamp is ISO-8601 with a zone, or microseconds since 1970")
    return found


# --- where to begin ------------------------------------------------------------------------------------------------------


def start_of(text: str) -> Any:
    """A start as `jjq.start` takes it: numbers are offsets, `0:17,1:4` are offsets by partition."""
    if _POSITIONS.fullmatch(text):
        pairs = [each.split(":") for each in text.split(",")]
        return _by_partition((partition, int(offset)) for partition, offset in pairs)
    if text.removeprefix("-").isdecimal() and text.isascii() and len(text) <= 20:
        return int(text)
    return text


def start_in(value: Any) -> Any:
    """The same from JSON, where it may be a number, a text, or an object by partition."""
    if isinstance(value, dict):
        if not all(name.isdecimal() and name.isascii() and len(name) <= 4 for name in value):
            raise InvalidArgument("a start by partition has the numbers of partitions as names")
        return _by_partition((name, start_in(each)) for name, each in value.items())
    return start_of(value) if isinstance(value, str) else value


def _by_partition(starts: Iterable[tuple[str, Any]]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for name, start in starts:
        partition = int(name)
        if partition in found:
            raise InvalidArgument(f"the start names partition {partition} twice")
        found[partition] = start
    return found


START = {"type": ["string", "integer", "object"]}


# --- records as events ---------------------------------------------------------------------------------------------------


class RecordEncoding:
    """Records as server-sent events: the record as JSON; the id says where the stream stands after it."""

    name = "records"
    own_ids = False

    def encode(self, records: Sequence[Record]) -> list[bytes]:
        return [b"data: %b\n\n" % dumped(record_json(each)) for each in records]

    def kinds(self, records: Sequence[Record]) -> list[str] | None:
        return None
