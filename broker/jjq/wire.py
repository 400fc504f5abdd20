"""What a broker and its clients say to each other: messages, errors, tickets. Neither end imports the other.

A message is JSON, so that any Flight client can write one: `{"name": "events"}`. What JSON has no word for is an object with
one name that begins with `$`: `{"$b": [at, length]}` is bytes, which follow the JSON after a zero byte (JSON itself never
has one), `{"$t": [microseconds, aware]}` a time, `{"$m": [[key, value], ...]}` a mapping that a user gave. `docs/flight.md` has
the others, and what there is to ask; ListActions names every action with what it takes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from jjq import errors
from jjq.errors import InvalidArgument, JjqError
from jjq.model import Record, Slice, behind
from jjq.values import shown

PROTOCOL = 1
PORT = 4750
TOKEN_HEADER = "authorization"  # noqa: S105 - as HTTP has it: `Bearer <token>`
KEYS, HEADERS, TIMESTAMPS = "_jjq_keys", "_jjq_headers", "_jjq_timestamps"  # columns that are staged beside the data
MORE_PARTITIONS = "more_partitions"  # the one answer that is no JjqError: choose a partition again

# Whether a message, or its answer, is the short form of one value (see `OneValue`): JSON never begins so.
_ONE, _ONE_KEYED = 1, 2
_ONE_VALUE = struct.Struct("<BIIqq")
_KEY_LENGTH = struct.Struct("<I")
_ONE_ANSWER = struct.Struct("<Bqq")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
# An error travels in the trailers of a call, and gRPC takes 8 KiB of those.
_MOST_MESSAGE = 2000
_MOST_DETAILS = 2000


# --- messages --------------------------------------------------------------------------------------------------------


class _Special(Exception):
    """A message has something that JSON has no word for."""


def _special(_: object) -> Any:
    raise _Special


_plainly = json.JSONEncoder(
    default=_special, separators=(",", ":")
).encode  # made once: that takes longer than to use it


def encode(message: Any) -> bytes:
    """A message as bytes; raises InvalidArgument for what cannot be sent."""
    tail: list[bytes] = []
    at = 0

    def special(value: object) -> dict[str, Any]:
        nonlocal at
        if isinstance(value, (bytes, bytearray, memoryview, pa.Buffer)):
            tail.append(bytes(value))
            at += len(tail[-1])
            return {"$b": [at - len(tail[-1]), len(tail[-1])]}
        if isinstance(value, datetime):
            aware = value.tzinfo is not None
            return {"$t": [(value - (_EPOCH if aware else _EPOCH.replace(tzinfo=None))) // _US, aware]}
        if isinstance(value, timedelta):
            return {"$i": value // _US}
        if isinstance(value, date):
            return {"$d": value.toordinal()}
        if isinstance(value, Decimal):
            return {"$n": str(value)}
        raise InvalidArgument(f"{shown(value)} cannot be sent to a broker: it is {type(value).__name__}")

    try:
        try:
            text = _plainly(message).encode("ascii")
        except _Special:
            text = json.dumps(message, default=special, separators=(",", ":")).encode("ascii")
    except InvalidArgument:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"this cannot be sent to a broker: {error}") from error
    return b"".join((text, b"\0", *tail)) if tail else text


def decode(data: bytes | pa.Buffer) -> Any:
    """What `encode` was given; raises InvalidArgument for bytes that it did not write."""
    data = data.to_pybytes() if isinstance(data, pa.Buffer) else data
    end = data.find(b"\0")
    text, start = (data, len(data)) if end < 0 else (data[:end], end + 1)
    left = len(data) - start  # `encode` names each byte once: to take them often could come to any size

    def special(found: dict[str, Any]) -> Any:
        nonlocal left
        if len(found) != 1:
            return found
        ((name, value),) = found.items()
        match name:
            case "$b":
                at, length = value
                left -= length
                if min(at, length, left) < 0 or start + at + length > len(data):
                    raise ValueError("bytes that are not there")
                return data[start + at : start + at + length]
            case "$t":
                us, aware = value
                return (_EPOCH if aware else _EPOCH.replace(tzinfo=None)) + us * _US
            case "$i":
                return value * _US
            case "$d":
                return date.fromordinal(value)
            case "$n":
                return Decimal(value)
            case "$u":
                return tuple(value)
            case "$m":
                return dict(value)
        return found

    try:
        return json.loads(text, object_hook=special if b'"$' in text else None)
    except (TypeError, ValueError, OverflowError, ArithmeticError, RecursionError) as error:
        raise InvalidArgument(f"this is no message of a jjq client: {error}") from error


class OneValue(NamedTuple):
    """A push of one value without headers, which most single ones are, in the short form: for a message that is sent once a
    tenth of the time goes into JSON and columns that a batch takes. `number` is the request's, `done` as it is there."""

    partition: int
    among: int
    number: int
    done: int
    value: bytes
    key: bytes | None = None

    def pack(self) -> bytes:
        partition, among, number, done, value, key = self
        if key is None:
            return _ONE_VALUE.pack(_ONE, partition, among, number, done) + value
        return _ONE_VALUE.pack(_ONE_KEYED, partition, among, number, done) + _KEY_LENGTH.pack(len(key)) + key + value

    @classmethod
    def unpack(cls, data: bytes) -> OneValue | None:
        """None where it is no such message; raises InvalidArgument for one that `pack` did not write."""
        if not data or data[0] not in {_ONE, _ONE_KEYED}:
            return None
        begin, key_end, keyed = _ONE_VALUE.size, _ONE_VALUE.size, data[0] == _ONE_KEYED
        try:
            _, partition, among, number, done = _ONE_VALUE.unpack_from(data)
            if keyed:
                begin += _KEY_LENGTH.size
                key_end = begin + _KEY_LENGTH.unpack_from(data, _ONE_VALUE.size)[0]
        except struct.error as error:
            raise InvalidArgument(f"this is no message of a jjq client: {error}") from error
        if min(number, done) < 0:
            raise InvalidArgument("this is no message of a jjq client: a number below zero")
        if key_end > len(data):
            raise InvalidArgument("this is no message of a jjq client: its key ends behind it")
        return cls(partition, among, number, done, data[key_end:], data[begin:key_end] if keyed else None)


def pack_answer(start: int, timestamp: int) -> bytes:
    """Where the value of a `OneValue` went."""
    return _ONE_ANSWER.pack(_ONE, start, timestamp)


def unpack_answer(data: bytes) -> dict[str, Any]:
    """The answer to a batch or value."""
    if data[:1] == b"\1":
        _, start, timestamp = _ONE_ANSWER.unpack(data)
        return {"start": start, "timestamp": timestamp}
    found: dict[str, Any] = decode(data)
    return found


def outgoing(value: Any) -> Any:
    """A value of a user's, in which a mapping may have any names and a tuple is to stay one."""
    if isinstance(value, Mapping):
        return {"$m": [[key, outgoing(each)] for key, each in value.items()]}
    if isinstance(value, tuple):
        return {"$u": [outgoing(each) for each in value]}
    if isinstance(value, list):
        return [outgoing(each) for each in value]
    return value


def pack_records(records: Sequence[Record]) -> list[Any]:
    return [
        [
            each.topic, each.partition, each.offset, each.timestamp, each.key, each.headers,
            outgoing(each.value) if type(each.value) is dict else each.value,
        ]
        for each in records
    ]  # fmt: skip


def unpack_records(rows: Sequence[Any]) -> list[Record]:
    return [
        Record(
            topic, partition, offset, timestamp, key, None if headers is None else [(k, v) for k, v in headers], value
        )
        for topic, partition, offset, timestamp, key, headers, value in rows
    ]


def pack_schema(schema: pa.Schema | None) -> bytes | None:
    return None if schema is None else schema.serialize().to_pybytes()


def unpack_schema(data: object) -> pa.Schema | None:
    if data is None:
        return None
    if not isinstance(data, bytes):
        raise InvalidArgument("a schema is sent as the bytes of an Arrow schema message")
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError) as error:
        raise InvalidArgument(f"a schema that cannot be read: {error}") from error


def pack_start(start: Any) -> Any:
    """A start as a caller gave it: its mapping by partition, if it is one, may have keys that JSON has not."""
    if isinstance(start, Mapping):
        return {"$m": [[key if isinstance(key, int) else shown(key), each] for key, each in start.items()]}
    return start


# --- errors ----------------------------------------------------------------------------------------------------------


def _kinds(kind: type[JjqError] = JjqError) -> Iterator[type[JjqError]]:
    yield kind
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield from _kinds(each)


KINDS = {each.code: each for each in _kinds()}


def pack_error(error: JjqError, store: str) -> dict[str, Any]:
    """An error as a client may see it: `store`, the path of the store, is in none of its texts."""
    details: dict[str, Any] = {}
    for name, value in error.details.items():
        text = hidden(str(value), store) if isinstance(value, (str, bytes)) or hasattr(value, "__fspath__") else value
        with_it = {**details, name: text}
        try:
            if len(json.dumps(with_it, default=str)) <= _MOST_DETAILS:
                details = with_it
        except (TypeError, ValueError, RecursionError):
            continue
    message = shortened(hidden(error.message, store))
    return {"code": error.code, "message": message, "details": json.loads(json.dumps(details, default=str))}


def shortened(message: str) -> str:
    """What is told of a message: some have a value that was sent, of any length."""
    if len(message) <= _MOST_MESSAGE:
        return message
    return f"{message[:_MOST_MESSAGE]}... ({len(message):,} characters)"


def hidden(value: Any, store: str) -> Any:
    """A value as a client may see it: where the store is, is in none of its texts."""
    if isinstance(value, str):
        return value.replace(f"{store}/", "").replace(store, "the store")
    if isinstance(value, dict):
        return {key: hidden(each, store) for key, each in value.items()}
    return [hidden(each, store) for each in value] if isinstance(value, (list, tuple)) else value


def unpack_error(packed: Mapping[str, Any]) -> JjqError:
    """The error that `pack_error` was given, as an object of the same class."""
    kind = KINDS.get(str(packed.get("code")), JjqError)
    details = packed.get("details")
    return kind(str(packed.get("message")), **(details if isinstance(details, dict) else {}))


# --- tickets ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets `[start, end)` of a partition, in the lineage they were planned in. No file is named: who reads plans again."""

    partition: int
    start: int
    end: int
    lineage: int

    def part(self, start: int, end: int) -> Range:
        return Range(self.partition, start, end, self.lineage)


@dataclass(frozen=True, slots=True)
class Ticket:
    """What DoGet is asked for: ranges of one topic, in order, as columns `schema` and then `metadata`."""

    topic_id: str
    ranges: tuple[Range, ...]
    schema: pa.Schema
    metadata: tuple[str, ...]
    target_bytes: int

    def pack(self) -> bytes:
        return encode(
            {
                "topic_id": self.topic_id, "schema": pack_schema(self.schema), "metadata": self.metadata,
                "ranges": [[r.partition, r.start, r.end, r.lineage] for r in self.ranges],
                "target_bytes": self.target_bytes,
            }
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes) -> Ticket:
        """Raises InvalidArgument for what `pack` did not write."""
        found = decode(data)
        try:
            ranges = tuple(Range(*(_number(n) for n in each)) for each in found["ranges"])
            schema, target = unpack_schema(found["schema"]), _number(found["target_bytes"])
            topic_id, metadata = found["topic_id"], tuple(found["metadata"])
            if schema is None or not isinstance(topic_id, str) or not all(isinstance(m, str) for m in metadata):
                raise TypeError("a part is missing")
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(f"this is no ticket of a broker: {error}; get one with GetFlightInfo") from error
        return cls(topic_id, ranges, schema, metadata, target)

    def after(self, rows: int) -> Ticket:
        """The ticket of what is left when so many rows have come."""
        return replace(self, ranges=tuple(behind(self.ranges, rows)))


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError(f"{shown(value)} is no number of a ticket")
    return value


def ranges_of(slices: Sequence[Slice]) -> tuple[Range, ...]:
    """Slices as ranges; those that follow one another in a partition become one."""
    found: list[Range] = []
    for each in slices:
        last = found[-1] if found else None
        if last and (last.partition, last.end, last.lineage) == (each.partition, each.start, each.lineage):
            found[-1] = Range(last.partition, last.start, each.end, last.lineage)
        else:
            found.append(Range(each.partition, each.start, each.end, each.lineage))
    return tuple(found)
