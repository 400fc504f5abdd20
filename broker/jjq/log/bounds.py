"""Between which values the columns of a sealed batch lie: so that a reader who wants others need not read it.

Written into the footer of a sealed file, one row for each batch, for the columns of a topic with a schema. Every bound
may be wider than the values, never narrower, and is null where nothing is said.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from jjq import compute as pc
from jjq.schema import SYSTEM_COLUMNS

KEY = b"jjq-bounds"  # in the footer's custom metadata
TEXT_BYTES = 64  # bounds of text and bytes are cut to so many; columns that are longer on average have none

_PLAIN = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_decimal128,
    pa.types.is_date32,
    pa.types.is_timestamp,
)


class Bounds(NamedTuple):
    """Of one column in one batch: no value is below `low` or above `high`, and `nulls` of `rows` are null.

    None where it is not known. Of text the bounds are bytes. Values are as pyarrow gives them, None where Python has none
    such; NaN is no bound, and above a column that has it nothing is known.
    """

    low: Any
    high: Any
    nulls: int
    rows: int


class Test(Protocol):
    """A condition on one column's values."""

    @property
    def column(self) -> str: ...

    def may_hold(self, bounds: Bounds) -> bool:
        """Whether a row whose column is within the bounds may meet the condition: False only where none does."""


def of_column(column: pa.Array) -> tuple[Any, Any, int] | None:
    """(low, high, nulls), the bounds as Arrow scalars or None; None for a column that has no bounds."""
    kind = column.type
    if pa.types.is_floating(kind):
        # Spark has NaN above all other numbers, and equal to itself; Arrow looks past it.
        low, high = (None, None) if pc.any(pc.is_nan(column)).as_py() else _least_and_most(column)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        found = _of_text(column)
        if found is None:
            return None
        low, high = found
    elif any(is_one(kind) for is_one in _PLAIN):
        low, high = _least_and_most(column)
    else:
        return None
    return low, high, column.null_count


def _least_and_most(column: pa.Array) -> tuple[Any, Any]:
    found = pc.min_max(column)
    return (found["min"], found["max"]) if found["min"].is_valid else (None, None)


def _of_text(column: pa.Array) -> tuple[Any, Any] | None:
    values = len(column) - column.null_count
    length = pc.sum(pc.binary_length(column)).as_py() or 0
    if length > values * TEXT_BYTES:
        return None
    low, high = _least_and_most(column.cast(pa.binary()))
    if low is None:
        return None, None
    least, most = low.as_py()[:TEXT_BYTES], above(high.as_py())
    return pa.scalar(least, pa.binary()), None if most is None else pa.scalar(most, pa.binary())


def above(value: bytes) -> bytes | None:
    """At most `TEXT_BYTES` bytes that are not below a value; None where there are none."""
    if len(value) <= TEXT_BYTES:
        return value
    cut = value[:TEXT_BYTES].rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else None


def _form(kind: pa.DataType) -> pa.DataType:
    """What a footer says of a column of this type: of text the bounds are bytes, cut anywhere."""
    bound = pa.binary() if pa.types.is_string(kind) else kind
    return pa.struct([("low", bound), ("high", bound), ("nulls", pa.int64())])


class Collected:
    """The bounds of a file's batches, as they are written."""

    def __init__(self, schema: pa.Schema) -> None:
        # The one column of a topic without a schema is compared by nobody: what is in it is the reader's to know.
        self._fields = list(schema)[SYSTEM_COLUMNS:]
        if [field.name for field in self._fields] == ["value"] and pa.types.is_binary(self._fields[0].type):
            self._fields = []
        self._found: list[list[tuple[Any, Any, int] | None]] = [[] for _ in self._fields]

    def add(self, batch: pa.RecordBatch) -> None:
        for found, column in zip(self._found, batch.columns[SYSTEM_COLUMNS:], strict=False):
            found.append(of_column(column))

    def metadata(self) -> dict[bytes, bytes] | None:
        """What the footer says: an Arrow stream with a struct of `low`, `high` and `nulls` for each column that has any."""
        columns, fields = [], []
        for field, found in zip(self._fields, self._found, strict=True):
            if any(each is not None for each in found):
                form = _form(field.type)
                each = [(None, None, None) if one is None else one for one in found]
                parts = [pa.array(part, form.field(i).type) for i, part in enumerate(zip(*each, strict=True))]
                columns.append(pa.StructArray.from_arrays(parts, fields=list(form)))
                fields.append(pa.field(field.name, columns[-1].type))
        if not columns:
            return None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema(fields)) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)))
        return {KEY: base64.b64encode(sink.getvalue().to_pybytes())}


def read(metadata: Mapping[bytes, bytes] | None, batches: int) -> pa.RecordBatch | None:
    """What a footer's metadata say of so many batches; None where there is nothing, or nothing that is understood."""
    text = None if metadata is None else metadata.get(KEY)
    if text is None:
        return None
    try:
        found = pa.ipc.open_stream(base64.b64decode(text, validate=True)).read_next_batch()
    except (ValueError, pa.ArrowException, StopIteration):  # the last: a stream without a batch
        return None
    return found if found.num_rows == batches else None


def bounds_of(found: pa.RecordBatch | None, field: pa.Field, rows: Sequence[int]) -> list[Bounds | None]:
    """A column's bounds in each batch, by the batches' rows; None for a batch of which nothing is known."""
    parts = _parts(found, field)
    if parts is None:
        return [None] * len(rows)
    lows, highs, nulls = parts
    return [
        None if not nulls[i].is_valid else Bounds(_value(lows[i]), _value(highs[i]), nulls[i].as_py(), count)
        for i, count in enumerate(rows)
    ]


def bounds_of_all(found: pa.RecordBatch | None, field: pa.Field, rows: int) -> Bounds | None:
    """A column's bounds in all batches together, which have so many rows; None where of one of them nothing is known."""
    parts = _parts(found, field)
    if parts is None or parts[2].null_count:
        return None
    lows, highs, nulls = parts
    # A bound that one batch lacks, the whole lacks, though it may only be that the batch has nothing but nulls.
    low, high = (None if each.null_count else _value(pc.min_max(each)[i]) for i, each in enumerate((lows, highs)))
    return Bounds(low, high, pc.sum(nulls, min_count=0).as_py(), rows)


def _parts(found: pa.RecordBatch | None, field: pa.Field) -> tuple[pa.Array, pa.Array, pa.Array] | None:
    """What is said of a column: least values, greatest and numbers of nulls, by batch. None where it has another form,
    as a later version may write it."""
    if found is None or field.name not in found.schema.names:
        return None
    column = found.column(found.schema.names.index(field.name))
    if column.type != _form(field.type):
        return None
    lows, highs, nulls = column.flatten()  # with the nulls of the whole
    return lows, highs, nulls


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):  # a time that Python cannot say
        return None


def hold(found: Bounds, column: pa.Array) -> bool:
    """Whether what is said of a column is true: everything is compared, nothing taken from how it was found."""
    if (found.nulls, found.rows) != (column.null_count, len(column)):
        return False
    text = pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    values = column.cast(pa.binary()) if text else column
    kind = values.type
    outside = [
        compare(values, limit)
        for compare, bound in ((pc.less, found.low), (pc.greater, found.high))
        if bound is not None and (limit := _scalar(bound, kind)) is not None
    ]
    if pa.types.is_floating(kind) and found.high is not None:
        outside.append(pc.is_nan(values))
    return not any(pc.any(each).as_py() for each in outside)


def _scalar(value: Any, kind: pa.DataType) -> Any:
    try:
        return pa.scalar(value, kind)
    except pa.ArrowInvalid:  # a decimal of more digits than its type has, as Arrow data that nobody looked at may hold
        return None
