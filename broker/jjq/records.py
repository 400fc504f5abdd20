"""Rows as single records, for people and consumers that take them one by one."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable
from typing import Any, cast

import pyarrow as pa

from jjq.model import Record
from jjq.values import size_of

# What records are made of beside the topic's own columns, which stand before these.
METADATA = ("_partition", "_offset", "_timestamp", "_key", "_headers")

# What a NamedTuple's own constructor does, from an iterable and without a Python frame: a fifth of the time of a dataclass.
_record: Callable[[Iterable[Any]], Record] = functools.partial(tuple.__new__, Record)


def bytes_of(record: Record) -> int:
    """What a bound in bytes counts of a record: its key, value and headers. Of a row of a topic with a schema that is about what
    it has: texts and bytes by their lengths, eight for any other value."""
    value, key, headers = record.value, record.key, record.headers
    size = len(value) if type(value) is bytes else 0 if value is None else size_of(value)  # as most are
    if key is not None:
        size += len(key)
    return size if headers is None else size + size_of(headers)


def fitting(records: Collection[Record], most: int, most_bytes: int) -> int:
    """How many of the first `most` have up to `most_bytes` together: at least one, if there is one."""
    count = 0
    for record in itertools.islice(records, most):
        most_bytes -= bytes_of(record)
        if most_bytes < 0 and count:
            break
        count += 1
    return count


def plain_records(topic: str, partition: int, start: int, stamps: Iterable[int], keys: Iterable[bytes | None],
                  values: Iterable[bytes | None]) -> list[Record]:  # fmt: skip
    """Records of plain values without headers, from an offset on."""
    nothing = itertools.repeat(None)
    return list(
        map(
            _record,
            zip(
                itertools.repeat(topic), itertools.repeat(partition), itertools.count(start), stamps, keys, nothing, values,
                strict=False,
            ),
        )
    )  # fmt: skip


def to_records(topic: str, batch: pa.RecordBatch, raw: bool) -> list[Record]:
    """A batch of the topic's columns and METADATA, as Records."""
    own = batch.num_columns - len(METADATA)
    partition, offset, stamps, key, headers = batch.columns[own:]
    values = batch.column(0).to_pylist() if raw else _rows(batch.select(list(range(own))))
    all_headers: Iterable[Any] = itertools.repeat(None)
    if headers.null_count != batch.num_rows:
        all_headers = [None if h is None else [(e["key"], e["value"]) for e in h] for h in headers.to_pylist()]
    rows = zip(
        itertools.repeat(topic), partition.to_pylist(), offset.to_pylist(), stamps.view(pa.int64()).to_pylist(),
        key.to_pylist(), all_headers, values, strict=False,
    )  # fmt: skip
    return list(map(_record, rows))


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        return cast(list[dict[str, Any]], batch.to_pylist())
    except OverflowError:  # one time that Python cannot say keeps no record from whoever reads it
        columns = [list(map(python_value, column)) for column in batch.columns]
        return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def python_value(scalar: pa.Scalar) -> Any:
    """As `as_py`, but for a date or a time outside the years 1 to 9999, which Python has no value for: that is given as the number
    that it is stored as, days or microseconds since the epoch."""
    try:
        return scalar.as_py()
    except OverflowError:
        kind = scalar.type
    if pa.types.is_struct(kind):
        return {name: python_value(each) for name, each in scalar.items()}
    if pa.types.is_map(kind):
        return [(python_value(each[0]), python_value(each[1])) for each in scalar.values]
    if pa.types.is_list(kind):
        return list(map(python_value, scalar))
    return scalar.value


def to_frame(table: pa.Table) -> Any:
    """A pandas DataFrame, in which a column that pandas cannot hold for such a value is one of Python's."""
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "a DataFrame needs pandas (pip install pandas); read() gives the rows as Arrow", name=error.name
        ) from error
    try:
        return table.to_pandas()
    except ValueError:
        return pd.DataFrame(
            {name: _series(column) for name, column in zip(table.column_names, table.columns, strict=True)}
        )


def _series(column: pa.ChunkedArray) -> Any:
    import pandas as pd

    try:
        return column.to_pandas()
    except ValueError:
        return pd.Series(list(map(python_value, column)), dtype=object)
