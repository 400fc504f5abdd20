"""Batches as clients of both fronts send them: not believed, looked at."""

from __future__ import annotations

import pyarrow as pa

from jjq.errors import InvalidArgument, RecordTooLarge
from jjq.schema import MOST_COLUMNS, longest

_BESIDE = 3  # keys, headers and times, which come as columns too


def check_batch(batch: pa.RecordBatch, max_record_bytes: int, max_request_bytes: int) -> None:
    """Raises InvalidArgument unless what a client sent can be read without harm: its lengths, offsets and texts are its own
    word. And RecordTooLarge where it, or a value of it, has more bytes than the broker takes, which is asked last: to add
    them up follows the offsets."""
    if batch.num_columns > MOST_COLUMNS + _BESIDE:
        raise InvalidArgument(f"a batch has {batch.num_columns:,} columns; a topic has up to {MOST_COLUMNS:,}")
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidArgument(f"the batch is damaged: {error}; send it again") from error
    if batch.nbytes > max_request_bytes:
        raise RecordTooLarge(
            f"a batch has {batch.nbytes:,} bytes, the broker takes up to {max_request_bytes:,} (max_request_bytes) at once"
        )
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        values = column.dictionary if pa.types.is_dictionary(column.type) else column
        if values.nbytes > max_record_bytes and (size := longest(values)) > max_record_bytes:
            raise RecordTooLarge(
                f"a value of column {name!r} has {size:,} bytes, the broker takes up to {max_record_bytes:,} (max_record_bytes)"
            )
