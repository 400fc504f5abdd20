"""Filters on columns that Spark pushes down: which batches cannot have a match, and which rows of a batch have none.

Spark applies each of them itself as well, so what is left may have more rows than those that match, never fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from pyspark_jjq.filters import is_as_written

if TYPE_CHECKING:
    import pyarrow as pa

    from jjq.log.bounds import Bounds

_KINDS = {
    EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, In, IsNull, IsNotNull,
    StringStartsWith,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Condition:
    """One filter on one column of the rows."""

    column: str
    filter: Filter

    def may_hold(self, bounds: Bounds) -> bool:
        """Whether a row of a batch may meet it, by what the batch says of the column."""
        try:
            return _may_hold(self.filter, bounds)
        except (TypeError, ValueError):  # values of other types than the column's, which are Spark's to compare
            return True

    def rows(self, column: pa.Array) -> pa.Array | None:
        """By row whether it may meet it, null where it is null; None where that cannot be said here."""
        import pyarrow as pa

        try:
            return _rows(self.filter, column)
        except (TypeError, ValueError, OverflowError, pa.ArrowException):
            return None


def conditions(filters: Sequence[Filter], names: Sequence[str]) -> tuple[Condition, ...]:
    """Those of the filters that can be used, which are about one of these columns."""
    return tuple(Condition(each.attribute[0], each) for each in filters if _is_usable(each, names))  # type: ignore[attr-defined]


def _is_usable(each: Any, names: Sequence[str]) -> bool:
    if type(each) not in _KINDS or len(each.attribute) != 1 or each.attribute[0] not in names:
        return False
    value: Any = getattr(each, "value", None)
    return all(is_as_written(one) for one in (value if isinstance(each, In) else (value,)))


def kept(batch: pa.RecordBatch, found: Sequence[Condition]) -> pa.RecordBatch:
    """The rows of a batch for which every condition may hold."""
    for each in found:
        mask = each.rows(batch.column(batch.schema.get_field_index(each.column)))
        if mask is not None:
            batch = batch.filter(mask)
    return batch


def _may_hold(each: Any, bounds: Bounds) -> bool:
    if isinstance(each, IsNull) or (isinstance(each, EqualNullSafe) and each.value is None):
        return bounds.nulls > 0
    if bounds.nulls == bounds.rows:
        return False
    if isinstance(each, IsNotNull):
        return True
    if isinstance(each, In):
        return any(_between(bounds, _comparable(value)) for value in each.value if value is not None)
    if each.value is None:
        return False
    value = _comparable(each.value)
    if isinstance(each, EqualTo | EqualNullSafe):
        return _between(bounds, value)
    if value != value:  # NaN, to which Spark compares in its own way
        return True
    low, high = bounds.low, bounds.high
    if isinstance(each, StringStartsWith):
        return bool((high is None or high >= value) and (low is None or low[: len(value)] <= value))
    if isinstance(each, GreaterThan):
        return bool(high is None or high > value)
    if isinstance(each, GreaterThanOrEqual):
        return bool(high is None or high >= value)
    return bool(low is None or (low < value if isinstance(each, LessThan) else low <= value))


def _between(bounds: Bounds, value: Any) -> bool:
    if value != value:
        return True
    return bool((bounds.low is None or bounds.low <= value) and (bounds.high is None or bounds.high >= value))


def _comparable(value: Any) -> Any:
    """A value as bounds have it: of text its bytes, whose order is also Spark's."""
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytearray) else value


def _rows(each: Any, column: pa.Array) -> pa.Array | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(each, IsNull) or (isinstance(each, EqualNullSafe) and each.value is None):
        return pc.is_null(column)
    if isinstance(each, IsNotNull):
        return pc.is_valid(column)
    floats = pa.types.is_floating(column.type)
    if isinstance(each, In):
        values = [_scalar(value, column.type) for value in each.value if value is not None]
        # Of floats Arrow compares the bits, to which 0.0 and -0.0 are two.
        return None if floats or None in values else pc.is_in(column, value_set=pa.array(values, column.type))
    if isinstance(each, StringStartsWith):
        return pc.starts_with(column, each.value)
    value = _scalar(each.value, column.type)
    if value is None:
        return None
    compare = {
        EqualTo: pc.equal, EqualNullSafe: pc.equal, GreaterThan: pc.greater, GreaterThanOrEqual: pc.greater_equal,
        LessThan: pc.less, LessThanOrEqual: pc.less_equal,
    }[type(each)]  # fmt: skip
    found = compare(column, value)
    return pc.or_(found, pc.is_nan(column)) if floats else found  # in Spark NaN is above all others


def _scalar(value: Any, kind: pa.DataType) -> Any:
    """A value as one of the column's type; None where it is not exactly that one."""
    import pyarrow as pa

    found = pa.scalar(bytes(value) if isinstance(value, bytearray) else value, kind)
    return found if found.is_valid and found.as_py() == value else None
