"""Of the columns in the files those that a reader asked for, and what each record's place is."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pyarrow as pa

from jjq.model import Slice
from jjq.schema import METADATA_TYPES, binaries, integers

_KEPT_ROWS = 1 << 15  # columns that say the same in every row are made once for batches of up to so many


def output_schema(user: pa.Schema, metadata: Sequence[str]) -> pa.Schema:
    return pa.schema([*user, *(pa.field(name, METADATA_TYPES[name]) for name in metadata)])


def columns_of(physical: pa.Schema, user: pa.Schema, metadata: Sequence[str]) -> list[int] | None:
    """Which columns of a file are needed, by their places, at least one; None for all of them."""
    wanted = {*user.names, *metadata}
    columns = [place for place, name in enumerate(physical.names) if name in wanted] or [0]
    return None if len(columns) == len(physical) else columns


def project(batch: pa.RecordBatch, physical: pa.Schema, base: int, place: Slice, user: pa.Schema,
            metadata: Sequence[str], output: pa.Schema) -> pa.RecordBatch:  # fmt: skip
    """Chosen columns of a physical batch whose first row is at offset `base`."""
    rows = batch.num_rows
    if not output.names:
        return batch.select([])  # which keeps how many rows there are: arrays, of which there are none, would say it
    places = {name: i for i, name in enumerate(batch.schema.names)}
    columns = [
        batch.column(places[field.name]) if field.name in places else pa.nulls(rows, field.type) for field in user
    ]
    for name in metadata:
        if name == "_offset":
            columns.append(pa.arange(base, base + rows))
        elif name == "_partition":
            columns.append(_repeated(place.partition, pa.int32(), rows))
        elif name == "_topic":
            columns.append(_repeated(place.topic, pa.string(), rows))
        else:
            columns.append(batch.column(places[name]))
    return pa.RecordBatch.from_arrays(columns, schema=output)


def _repeated(value: int | str, kind: pa.DataType, rows: int) -> pa.Array:
    if rows > _KEPT_ROWS:
        return _made(value, kind, rows)
    return _kept(value, kind, 1 << (rows - 1).bit_length() if rows else 0).slice(0, rows)


@functools.lru_cache(maxsize=32)
def _kept(value: int | str, kind: pa.DataType, rows: int) -> pa.Array:
    return _made(value, kind, rows)


def _made(value: int | str, kind: pa.DataType, rows: int) -> pa.Array:
    one = integers([value], kind) if isinstance(value, int) else binaries([value.encode()], kind)
    return pa.repeat(one[0], rows)
