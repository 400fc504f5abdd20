"""Appending what came by Flight: columns, valid as Arrow says, that are still to fit the topic and its limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from jjq import pushing
from jjq.errors import InvalidArgument, RecordTooLarge
from jjq.headers import header_column, headers_size, longest_headers
from jjq.log.requests import OVERHEAD_BYTES, Append, MorePartitions
from jjq.schema import PLAIN, RAW, cast, conform, pushed
from jjq.topic import Topic
from jjq.values import whole

_SINGLES = 256  # of so many values a message is made by a template, several times as fast as by pyarrow
_PAIRS = 16 * _SINGLES  # so many headers take no time to speak of as objects, and a batch may have millions


def append(
    topic: Topic, place: int, among: int, batch: pa.RecordBatch, stamps: Sequence[int] | None, max_record_bytes: int,
    mark: tuple[bytes, int] | None,
) -> tuple[int, int]:  # fmt: skip
    """Appends `_key`, `_headers` and the topic's own columns to the partition that the client chose among so many (0: that
    does not matter), as a message with the client's mark; returns the offset and timestamp of the first.

    Raises MorePartitions when the client is to choose again, and what `Topic.push_many` raises.
    """
    topic.check_partition(place)
    missing = [name for name in ("_key", "_headers") if name not in batch.schema.names]
    if missing:
        raise InvalidArgument(f"the batch has no column {missing[0]}; it may be null in every row")
    if not batch.num_rows:
        raise InvalidArgument("the batch has no rows")
    request = _request(topic, batch, max_record_bytes)
    if stamps is not None:
        # Where they were Python's numbers the client has looked at them, and a table's go in as they are.
        request.stamps = topic.stamps(stamps, batch.num_rows, _stamp)
    return _append(topic, place, among, request, mark)


def append_value(
    topic: Topic,
    place: int,
    among: int,
    value: bytes,
    key: bytes | None,
    max_record_bytes: int,
    mark: tuple[bytes, int],
) -> tuple[int, int]:
    """`append` of one value without headers, to a topic without a schema."""
    topic.check_partition(place)
    if topic.schema is not None:
        raise InvalidArgument(f"topic {topic.name!r} has a schema: a record of it is sent as a batch")
    if len(value) + len(key or b"") <= min(topic._plain_bytes, max_record_bytes):
        return topic._store.logs[topic.id, place].append_value(topic.schema_version, value, among, key, mark)
    request = _plain(topic, [key], [value], None, max_record_bytes)
    return _append(topic, place, among, request, mark)


def _append(topic: Topic, place: int, among: int, request: Append, mark: tuple[bytes, int] | None) -> tuple[int, int]:
    if mark is not None:
        request.producer, request.sequence = mark
    appended = topic.append_all({place: request}, among)
    if appended is None:
        raise MorePartitions
    start, timestamp = appended[0].start, appended[0].timestamp
    assert timestamp is not None  # as it is only of a writer's batch that was there before
    return start, timestamp


def _plain(
    topic: Topic, keys: list[bytes | None], values: list[bytes | None], headers: list[Any] | None, max_record_bytes: int
) -> Append:  # fmt: skip
    """What most small batches are: the checks that are for columns would take longer than to append it."""
    for key, value in zip(keys, values, strict=True):
        size = len(value or b"") + len(key or b"")
        if size > max_record_bytes:
            raise RecordTooLarge(
                f"the record has {size:,} bytes, the broker takes up to {max_record_bytes:,} (max_record_bytes)"
            )
    if headers is not None:
        longest = max(headers_size(each or ()) for each in headers)
        topic.check_size(longest, max_record_bytes, "the headers of a record")
    return pushing.request(topic, values, keys, headers, None)


def _stamp(value: object) -> int:
    return whole(value, "a timestamp", -(1 << 63), (1 << 63) - 1)


def _request(topic: Topic, batch: pa.RecordBatch, max_record_bytes: int) -> Append:
    few = topic.schema is None and batch.num_rows <= _SINGLES and batch.schema.equals(PLAIN)
    if few and len(batch.column(1).values) <= _PAIRS:
        keys, headers, values = batch.columns
        pairs: list[Any] | None = None
        if headers.null_count < len(headers):
            listed = header_column(headers).to_pylist()
            pairs = [each and [(pair["key"], pair["value"]) for pair in each] for each in listed]
        return _plain(topic, keys.to_pylist(), values.to_pylist(), pairs, max_record_bytes)
    limit = min(topic.config.max_record_bytes, max_record_bytes)
    topic.check_size(batch.nbytes, topic.config.max_batch_bytes, "the batch")
    keys = cast(batch.column("_key"), pa.binary(), "_key")
    headers = header_column(batch.column("_headers"))
    own = pa.Table.from_batches([batch]).drop_columns(["_key", "_headers"])
    user: pa.Table = topic.retry_schema(lambda: conform(own, RAW if topic.schema is None else topic.schema))
    topic.check_records([keys, *user.columns], limit)
    if headers.null_count < len(headers):
        topic.check_size(longest_headers(headers), limit, "the headers of a record")
    body = pa.RecordBatch.from_arrays(
        [keys, headers, *(each.combine_chunks() for each in user.columns)],
        schema=pushed(user.schema),
    )
    return Append(
        topic.schema_version, batch=body, stamps=topic.stamps(None, body.num_rows), size=body.nbytes + OVERHEAD_BYTES
    )
