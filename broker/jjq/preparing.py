"""People's tables as a topic's columns, and the partition of each row: the same for what is appended and what is staged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jjq import compute as pc
from jjq.clock import now_us
from jjq.errors import InvalidArgument, SchemaMismatch
from jjq.headers import header_column, null_headers
from jjq.log.format import crc32c
from jjq.schema import RAW, SYSTEM_FIELDS, TIMESTAMP, cast, conform, decoded, to_table, without_index
from jjq.values import shown

if TYPE_CHECKING:
    from jjq.topic import Topic


def prepare(
    topic: Topic, data: Any, *, key: str | None = None, keys: Any = None, headers: Any = None, timestamps: Any = None,
) -> pa.Table:  # fmt: skip
    """A table of the topic's physical columns; `_timestamp` is null where the broker gives it.

    A topic without a schema takes the columns `value` and, if there, `key`, `headers` and `timestamp`.
    """
    table = to_table(data)
    if topic.schema is None:
        extra = [name for name in table.schema.names if name not in ("key", "value", "headers", "timestamp")]
        if extra or "value" not in table.schema.names:
            raise SchemaMismatch(
                f"topic {topic.name!r} has no schema: give it a column `value` and, if wanted, `key`, `headers` and "
                f"`timestamp`, not {', '.join(table.schema.names)}{without_index(extra, table.schema)}"
            )
        names = table.schema.names
        keys = table.column("key") if keys is None and key is None and "key" in names else keys
        headers = table.column("headers") if headers is None and "headers" in names else headers
        timestamps = table.column("timestamp") if timestamps is None and "timestamp" in names else timestamps
        user = table.select(["value"])
    else:
        user = conform(table, topic.schema)
    if key is not None:
        if key not in table.schema.names:
            raise InvalidArgument(f"key {shown(key)} is no column of the data; it has {', '.join(table.schema.names)}")
        keys = table.column(key)
    rows = len(table)
    user = conform(user, RAW) if topic.schema is None else user
    broker = topic.config.timestamps == "broker"
    if timestamps is not None and broker:
        raise InvalidArgument(
            f"topic {topic.name!r} gives its own timestamps; make it with timestamps='producer' to push them"
        )
    if timestamps is not None:
        if pa.types.is_integer(timestamps.type):
            stamps = cast(timestamps, pa.int64(), "timestamp").cast(TIMESTAMP)
        else:
            stamps = cast(timestamps, TIMESTAMP, "timestamp")
        if stamps.null_count:
            raise InvalidArgument("a timestamp is null; give every record one, or leave the column out")
    else:
        stamps = pa.repeat(pa.scalar(now_us(), pa.int64()), rows).cast(TIMESTAMP)
    columns = [
        stamps,
        pa.nulls(rows, pa.binary()) if keys is None else key_bytes(keys),
        null_headers(rows) if headers is None else header_column(headers),
        *user.columns,
    ]
    topic.check_records([each for each in columns[1:] if each.null_count < rows], topic.config.max_record_bytes)
    return pa.Table.from_arrays(columns, schema=pa.schema([*SYSTEM_FIELDS, *user.schema]))


def key_bytes(keys: Any) -> Any:
    """Keys as bytes: binary as it is, text as UTF-8, anything else as its text."""
    try:
        keys = decoded(keys)
        return (keys if is_bytes(keys.type) else keys.cast(pa.string())).cast(pa.binary())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(f"keys of type {keys.type} cannot become bytes: {error}") from error


def is_bytes(kind: pa.DataType) -> bool:
    is_ = pa.types
    return bool(
        is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_binary_view(kind) or is_.is_fixed_size_binary(kind)
    )


def split(topic: Topic, table: pa.Table, partition: int | None, default: int) -> list[tuple[int, pa.RecordBatch]]:
    """(partition, batch) in order; rows of one partition keep theirs."""
    if not len(table):
        return []
    if partition is not None:
        topic.check_partition(partition)
        return [(partition, batch) for batch in table.to_batches()]
    keys = table.column("_key")
    if topic.partitions == 1 or keys.null_count == len(keys):
        return [(default, batch) for batch in table.to_batches()]
    found: list[tuple[int, pa.RecordBatch]] = []
    for batch in table.to_batches():
        chosen = partition_of_each(batch.column(1), topic.partitions, default)
        found.extend((index, batch.filter(pc.equal(chosen, index))) for index in sorted(pc.unique(chosen).to_pylist()))
    return found


def partition_of(key: bytes, partitions: int) -> int:
    """The partition a key belongs to: CRC32C (RFC 3720) of its bytes modulo the number of partitions."""
    return int(crc32c(key)) % partitions


def partition_of_each(keys: pa.Array, partitions: int, default: int) -> pa.Array:
    """The partition of each key: CRC32C of its bytes modulo the number of partitions; a null key goes to `default`."""
    encoded = keys.dictionary_encode()
    places = pa.array([partition_of(key, partitions) for key in encoded.dictionary.to_pylist()], pa.int32())
    return places.take(encoded.indices).fill_null(default)
