"""Batches as clients of both fronts send them: not believed, looked at."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jjq.errors import InvalidArgument, RecordTooLarge
from jjq.schema import MOST_COLUMNS, NO_LIST_VIEWS, RAW, decoded_type, is_variable, longest
from jjq.topic import Topic

_BESIDE = 3  # keys, headers and times, which come as columns too
_ROW_BYTES = 16  # of these in a row that has none but the time
_MOST_BYTES = 1 << 30  # in memory for one batch, unless its topic takes larger ones


def check_batch(batch: pa.RecordBatch, max_record_bytes: int, max_request_bytes: int) -> None:
    """Raises InvalidArgument unless what a client sent can be read without harm: its lengths, offsets and texts are its own
    word. And RecordTooLarge where it, or a value of it, has more bytes than the broker takes, also as it will be once values
    that it has once and names often are written out. That is asked last: to add them up follows the offsets."""
    if batch.num_columns > MOST_COLUMNS + _BESIDE:
        raise InvalidArgument(f"a batch has {batch.num_columns:,} columns; a topic has up to {MOST_COLUMNS:,}")
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidArgument(f"the batch is damaged: {error}; send it again") from error
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        values = column.dictionary if pa.types.is_dictionary(column.type) else column
        if values.nbytes > max_record_bytes and (size := _longest(values)) > max_record_bytes:
            raise RecordTooLarge(
                f"a value of column {name!r} has {size:,} bytes, the broker takes up to {max_record_bytes:,} (max_record_bytes)"
            )
    size = max(batch.nbytes, batch.num_rows, sum(map(_plain_bytes, batch.columns)))
    if size > max_request_bytes:
        raise RecordTooLarge(
            f"a batch has {size:,} bytes, the broker takes up to {max_request_bytes:,} (max_request_bytes) at once"
        )


def check_rows(topic: Topic, batch: pa.RecordBatch | pa.Table) -> None:
    """Raises RecordTooLarge where the rows of a checked batch would be too large as the topic's columns: those that are missing are null in every
    row, and what is narrow becomes wide."""
    size = batch.num_rows * _ROW_BYTES
    for field in RAW if topic.schema is None else topic.schema:
        i = batch.schema.get_field_index(field.name)
        size += batch.num_rows * _width(field.type) if i < 0 else _cast_bytes(batch.column(i), field.type)
    topic.check_size(size, max(topic.config.max_batch_bytes, _MOST_BYTES), "the batch")


def _longest(column: Any) -> int:
    return int(pc.max(_view_lengths(column)).as_py() or 0) if _is_view(column.type) else longest(column)


def _plain_bytes(column: Any) -> int:
    """Bytes of a column with no value left out, or named in the place of being there; never fewer than its values are many."""
    kind, is_, count = column.type, pa.types, len(column)
    if is_.is_dictionary(kind):
        return count + _dictionary_bytes(column)
    if _is_view(kind):
        return count + int(pc.sum(_view_lengths(column)).as_py() or 0)
    if is_.is_list_view(kind) or is_.is_large_list_view(kind):
        raise InvalidArgument(NO_LIST_VIEWS)
    if isinstance(column, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):  # a map is a list too
        return max(int(column.nbytes), count + _plain_bytes(column.values))
    if is_.is_struct(kind):
        return count + sum(_plain_bytes(column.field(i)) for i in range(kind.num_fields))
    return max(count, int(column.nbytes))


def _dictionary_bytes(column: Any) -> int:
    values = column.dictionary
    kind = values.type
    if is_variable(kind) or pa.types.is_string_view(kind):
        lengths = pc.binary_length(values.cast(decoded_type(kind)))
        return int(pc.sum(lengths.take(column.indices).cast(pa.int64())).as_py() or 0)
    is_ = pa.types
    if not any(test(kind) for test in (is_.is_primitive, is_.is_decimal, is_.is_fixed_size_binary, is_.is_null)):
        raise InvalidArgument(f"a dictionary of {kind} is not taken; cast the column to {kind} before")
    return len(column) * _width(kind)


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _view_lengths(column: Any) -> Any:
    """What the views say: each begins with the length of its value in 32 bits, and has 128."""
    views, end = column.buffers()[1], column.offset + len(column)
    if views is None:
        return pa.array([], pa.int64())
    words = pa.Array.from_buffers(pa.int32(), 4 * end, [None, views])
    lengths = pc.list_element(pa.FixedSizeListArray.from_arrays(words, 4)[column.offset :], 0)
    return pc.if_else(column.is_valid(), lengths, 0).cast(pa.int64())


def _width(kind: pa.DataType) -> int:
    """Bytes of a null."""
    if pa.types.is_struct(kind):
        return 1 + sum(_width(field.type) for field in kind)
    try:
        return (int(kind.bit_width) + 7) // 8
    except ValueError:
        return 4  # the offset of a text or a list


def _cast_bytes(column: Any, kind: pa.DataType) -> int:
    """What a column takes at most as another type, but for its texts."""
    count, chunks, is_ = len(column), getattr(column, "chunks", None), pa.types
    if chunks is not None:
        return sum(_cast_bytes(each, kind) for each in chunks)
    if is_.is_struct(kind) and is_.is_struct(column.type):
        by_name = {column.type.field(i).name: i for i in range(column.type.num_fields)}
        fields = [(by_name.get(each.name), each.type) for each in kind]
        return sum(count * _width(one) if i is None else _cast_bytes(column.field(i), one) for i, one in fields)
    if is_.is_nested(kind) and not is_.is_struct(kind) and hasattr(column, "values"):
        return count * 4 + _cast_bytes(column.values, kind.field(0).type)
    return count * _width(kind)
