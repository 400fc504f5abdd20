"""Pushing many records of a topic at once: what people give becomes requests to append, or files that a commit takes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jjq.clock import now_us
from jjq.deferral import Delay, defer_all, delay_us
from jjq.errors import DamagedSegment, DataLoss, Forbidden, InvalidArgument, OffsetOutOfRange
from jjq.headers import check_headers, headers_array, headers_size, null_headers
from jjq.log.requests import OVERHEAD_BYTES, TEMPLATE_ROWS, Append, as_batch
from jjq.log.sealed import BATCH_BYTES
from jjq.model import Commit, PositionRange, Positions, StagedFile
from jjq.preparing import partition_of, prepare, split
from jjq.schema import (
    SYSTEM_FIELDS,
    check_arrays,
    decoded_size,
    is_frame,
    longest,
    pushed,
    rows_to_columns,
    to_bytes,
    to_table,
)
from jjq.values import flag, shown

if TYPE_CHECKING:
    from jjq.store import Store
    from jjq.topic import Headers, Timestamp, Topic

log = logging.getLogger(__name__)
_MOST_BYTES = (1 << 31) - (1 << 20)  # of a message: Arrow's offsets have 32 bits
_LOOKED_AT = 8  # rows of a push, for how large they are
_LARGE_BYTES = 4 << 10


def push_many(
    topic: Topic, store: Store, values: Sequence[Any], *, keys: Sequence[bytes | str | None] | None,
    headers: Sequence[Headers] | None, timestamps: Sequence[Timestamp] | None, partition: int | None, atomic: bool,
    delay: Delay,
) -> Positions:  # fmt: skip
    """See `Topic.push_many`."""
    flag(atomic, "atomic")
    if is_frame(values):
        raise InvalidArgument(
            f"push_many takes a list of values, not {type(values).__name__}; push_table takes tables and frames"
        )
    if isinstance(values, (str, bytes, bytearray, memoryview, Mapping)):
        raise InvalidArgument(f"push_many takes a list of values, not {type(values).__name__}; push takes one")
    try:
        values = list(values)
    except TypeError as error:
        raise InvalidArgument(
            f"push_many takes a list of values, not {type(values).__name__}; push takes one"
        ) from error
    for name, given in (("keys", keys), ("headers", headers), ("timestamps", timestamps)):
        if given is not None and (isinstance(given, (str, bytes, Mapping)) or not hasattr(given, "__len__")):
            raise InvalidArgument(f"{name} are a list with one for each value, not {type(given).__name__}")
        if given is not None and len(given) != len(values):
            raise InvalidArgument(f"{len(values)} values and {len(given)} {name}: give one for each, or none")
    if not values:
        return Positions([])
    key_list = None if keys is None else [None if key is None else to_bytes(key, "a key") for key in keys]
    pairs = None if headers is None else [check_headers(each) for each in headers]
    stamps = None if timestamps is None else list(timestamps)
    if delay is not None:
        pairs = defer_all(pairs, len(values), now_us() + delay_us(delay))
    if atomic:
        topic.catch_up()
    while True:
        default, among = topic.choose(partition, None)
        places = None
        if partition is not None or key_list is None or among == 1:
            requests = {default: request(topic, values, key_list, pairs, stamps)}
        else:
            places = [default if key is None else partition_of(key, among) for key in key_list]
            chosen: dict[int, list[int]] = {}
            for i, place in enumerate(places):
                chosen.setdefault(place, []).append(i)
            requests = {
                place: request(
                    topic,
                    [values[i] for i in rows],
                    [key_list[i] for i in rows],
                    None if pairs is None else [pairs[i] for i in rows],
                    None if stamps is None else [stamps[i] for i in rows],
                )
                for place, rows in chosen.items()
            }
            if atomic and len(requests) > 1:
                return _link_requests(topic, store, requests, places)
        ranges = topic.append_all(requests, among)
        if ranges is not None:
            return Positions(ranges, places)


def push_table(
    topic: Topic, store: Store, data: Any, *, key: str | None, partition: int | None, timestamp: str | None,
    writer_id: str | None, batch_id: int | None,
) -> Positions:  # fmt: skip
    """See `Topic.push_table`."""
    table = prepared(topic, data, key, timestamp)
    if writer_id is not None or batch_id is not None or table.nbytes > store._append_bytes:
        topic.catch_up()
        with store.stage(default_partition=topic.choose(partition, None)[0]) as stage:
            user = table.select(list(range(len(SYSTEM_FIELDS), table.num_columns)))
            given = table.column(0) if topic.config.timestamps == "producer" else None
            stage.write(
                topic, user, partition=partition, keys=table.column(1), headers=table.column(2), timestamps=given
            )
            staged = stage.finish()
            result = store.commit(staged, writer_id=writer_id, batch_id=batch_id)
        if result.duplicate:
            log.warning(
                "batch %s of writer %s was pushed to topic %s before, so nothing was pushed; other rows need another batch_id",
                batch_id, writer_id, topic.name,
            )  # fmt: skip
        return _linked(topic, result, staged, None)
    while True:
        default, among = topic.choose(partition, None)
        by_place: dict[int, list[pa.RecordBatch]] = {}
        for place, batch in split(topic, table, partition, default):
            by_place.setdefault(place, []).append(batch)
        requests: dict[int, Append] = {}
        for place, batches in by_place.items():
            batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            given = None if topic.config.timestamps == "broker" else batch.column(0).cast(pa.int64()).to_pylist()
            body = batch.select(list(range(1, batch.num_columns)))
            requests[place] = Append(topic.schema_version, batch=body, stamps=given, size=batch.nbytes)
        ranges = topic.append_all(requests, among)
        if ranges is not None:
            return Positions(ranges)


def prepared(topic: Topic, data: Any, key: str | None, timestamp: str | None) -> pa.Table:
    """A table of the topic's physical columns, checked."""
    stamps = None
    data = to_table(data)  # once, as a reader cannot be read again
    check_arrays(data.schema.names, data.columns)
    topic.check_size(decoded_size(data), topic.config.max_batch_bytes, "the batch")
    if timestamp is not None:
        if timestamp not in data.schema.names:
            raise InvalidArgument(f"timestamp {shown(timestamp)} is no column of the data")
        stamps = data.column(timestamp)
    table: pa.Table = topic.retry_schema(lambda: prepare(topic, data, key=key, timestamps=stamps))
    topic.check_size(table.nbytes, topic.config.max_batch_bytes, "the batch")
    return table


def _link_requests(
    topic: Topic, store: Store, requests: Mapping[int, Append], places: Sequence[int] | None
) -> Positions:
    with store.stage() as stage:
        for place, request in sorted(requests.items()):
            batch = as_batch(request)
            # By its own columns: one that was built later may have more.
            user = pa.Table.from_batches([batch.select(batch.schema.names[2:])])
            stamps = None if request.stamps is None else pa.array(request.stamps, pa.int64())
            stage.write(topic, user, partition=place, keys=batch.column(0), headers=batch.column(1), timestamps=stamps)
        staged = stage.finish()
        result = store.commit(staged)
    return _linked(topic, result, staged, places)


def _linked(topic: Topic, result: Commit, staged: Sequence[StagedFile], places: Sequence[int] | None) -> Positions:
    """Where the records of a commit went. Of a batch that was there before, the first time's."""
    stamps: dict[int, int | None] = {}  # of a partition's first file, where that has only one
    if not result.duplicate:
        for file in staged:
            stamps.setdefault(file.partition, file.min_ts if file.min_ts == file.max_ts else None)
    ranges = []
    for place, (start, end) in sorted(result.positions.get(topic.name, {}).items()):
        ranges.append(PositionRange(place, start, end, stamps.get(place) or _stamp_at(topic, place, start)))
    return Positions(ranges, places, result.duplicate)


def _stamp_at(topic: Topic, partition: int, offset: int) -> int | None:
    """The timestamp of a record, None where it can no longer be read."""
    try:
        slices = topic.reader.plan(partition, offset, offset + 1)
        (batch,) = topic.reader.read(slices, pa.schema([]), ("_timestamp",), BATCH_BYTES)
    except (DataLoss, DamagedSegment, OffsetOutOfRange, Forbidden):  # a broker's client may be one that only pushes
        return None
    return int(batch.column(0).cast(pa.int64())[0].as_py())


def _check_early(topic: Topic, values: Sequence[Any]) -> None:
    """Raises RecordTooLarge for what is over the limit by its texts and bytes alone, before it is copied. Only where some
    rows say that they are large: to look at each small one would take as long as to copy it."""
    least = _least_bytes if topic.schema is None else _least_bytes_of_rows
    some = values[:: len(values) // _LOOKED_AT + 1]
    if least(some) > _LARGE_BYTES * len(some):
        topic.check_size(least(values), _most_bytes(topic), "the batch")


def _least_bytes(values: Iterable[Any]) -> int:
    return sum([len(each) for each in values if type(each) is bytes or type(each) is str])


def _least_bytes_of_rows(rows: Iterable[Any]) -> int:
    return sum([_least_bytes(row.values()) for row in rows if type(row) is dict])


def _most_bytes(topic: Topic) -> int:
    return min(topic.config.max_batch_bytes, _MOST_BYTES)


def _plain_columns(
    values: Sequence[Any], keys: Sequence[bytes | None] | None, limit: int
) -> tuple[pa.Array, pa.Array | None, int] | None:
    """Many values of a topic without a schema and their keys, checked and built in one pass by pyarrow, and how many bytes they
    have. None where one of them may be wrong or too long, for who looks at each and says which."""
    try:
        column = pa.array(values, pa.binary())
        names = None if keys is None else pa.array(keys, pa.binary())
    except (pa.ArrowException, ValueError):
        return None
    built = [column] if names is None else [column, names]
    if any(isinstance(each, pa.ChunkedArray) for each in built):  # more than one message can hold
        return None
    size = sum([each.buffers()[2].size for each in built])
    if size > limit and sum(map(longest, built)) > limit:
        return None
    return column, names, size


def request(
    topic: Topic, values: Sequence[Any], keys: Sequence[bytes | None] | None, headers: list[Any] | None,
    timestamps: Sequence[Timestamp] | None,
) -> Append:  # fmt: skip
    stamps = topic.stamps(timestamps, len(values))
    limit = topic.config.max_record_bytes
    if len(values) > (TEMPLATE_ROWS if topic.schema is None else 1):
        _check_early(topic, values)
    if topic.schema is None:
        plain = _plain_columns(values, keys, limit) if headers is None and len(values) > TEMPLATE_ROWS else None
        if plain is not None:
            column, names, size = plain
            topic.check_size(size, _most_bytes(topic), "the batch")
            return Append(topic.schema_version, names, column, stamps=stamps, size=size + OVERHEAD_BYTES)
        keys = keys if keys is not None else [None] * len(values)
        # In passes over the whole list: a loop over the records would cost as much as writing them.
        kinds = set(map(type, values))
        if not kinds <= {bytes, NoneType}:
            values = [value if value is None else topic.plain(value) for value in values]
            kinds.add(NoneType)  # as which a null scalar has come back
        size = sum(map(len, filter(None, values) if NoneType in kinds else values))
        if any(keys):
            size += sum(map(len, filter(None, keys)))
        if size > limit:  # else none of them is too long either
            for i, (value, key) in enumerate(zip(values, keys, strict=True)):
                what = "the record" if len(values) == 1 else f"record {i}"
                topic.check_size(len(value or b"") + len(key or b""), limit, what)
        if headers is not None:
            long = [headers_size(each or ()) for each in headers]
            topic.check_size(max(long), limit, "the headers of a record")
            size += sum(long)
        topic.check_size(size, _most_bytes(topic), "the batch")
        return Append(topic.schema_version, keys, values, headers, stamps=stamps, size=size + OVERHEAD_BYTES)
    return _rows_request(topic, values, keys, headers, stamps, limit)


def _rows_request(
    topic: Topic, values: Sequence[Any], keys: Sequence[bytes | None] | None, headers: list[Any] | None,
    stamps: list[int] | None, limit: int,
) -> Append:  # fmt: skip
    """`request` of a topic with a schema."""

    def build() -> tuple[list[Any], pa.Schema]:
        schema = topic.schema
        return rows_to_columns(values, schema), schema

    columns, schema = topic.retry_schema(build)
    size = sum([each.get_total_buffer_size() for each in columns])  # at least `nbytes`, in a tenth of its time
    if size > (most := _most_bytes(topic)):
        topic.check_size(sum([each.nbytes for each in columns]), most, "the batch")
    batch = pa.RecordBatch.from_arrays(
        [
            pa.nulls(len(values), pa.binary()) if keys is None else pa.array(keys, pa.binary()),
            null_headers(len(values)) if headers is None else headers_array(headers),
            *columns,
        ],
        schema=pushed(schema),
    )
    size = batch.get_total_buffer_size()
    if size > limit:  # else no record can be larger
        topic.check_records([each for each in batch.columns if each.null_count < len(values)], limit)
    return Append(topic.schema_version, batch=batch, stamps=stamps, size=size + OVERHEAD_BYTES)
