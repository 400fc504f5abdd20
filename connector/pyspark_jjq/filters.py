"""Filters that Spark pushes down: what they leave of topics, partitions, offsets and times. Functions on values."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, DefaultContext
from typing import Any, cast

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
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from jjq.clock import to_us

# Wider than what an offset or a timestamp in microseconds can be.
LOWEST, HIGHEST = -(2**63), 2**63

_COLUMNS = ("topic", "partition", "offset", "timestamp")
_TYPES: dict[str, type] = {"topic": str, "partition": int, "offset": int, "timestamp": dt.datetime}
_TESTS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: operator.contains,
}
_GAP_ENDS = dt.date(1582, 10, 15)
_GAP = (_GAP_ENDS - dt.timedelta(days=1), _GAP_ENDS + dt.timedelta(days=1))  # in whatever zone


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What is left to read: partitions for which every filter in `places` is true, and there the offsets
    `[first, last)` and what may have a timestamp in `[since, until)` microseconds."""

    places: tuple[Filter, ...] = ()
    first: int = LOWEST
    last: int = HIGHEST
    since: int = LOWEST
    until: int = HIGHEST

    def has(self, topic: str, partition: int) -> bool:
        return all(holds(each, {"topic": topic, "partition": partition}[_column(each)]) for each in self.places)

    @property
    def by_time(self) -> bool:
        return (self.since, self.until) != (LOWEST, HIGHEST)


def narrow(filters: Sequence[Filter], kafka: bool) -> tuple[Narrowing, list[Filter]]:
    """What the filters leave, and those that Spark has to apply all the same.

    `kafka`: the columns have the names of Kafka's rows, else those of metadata columns, which begin with `_`.
    Times are among those to apply: batches of rows are left out by them, single rows are not.
    """
    left = Narrowing()
    rest = []
    for each in filters:
        plain = _plain(each, kafka)
        found = None if plain is None else _take(left, plain)
        if plain is None or found is None:
            rest.append(each)
            continue
        left = found
        if not _is_exact(plain):
            rest.append(each)
    return left, rest


def _is_exact(each: Filter) -> bool:
    """Whether every row that is left passes the filter. Several offsets are taken as all that lie between them."""
    column = _column(each)
    return isinstance(each, IsNotNull | IsNull) or not (
        column == "timestamp" or (column == "offset" and isinstance(each, In))
    )


def _take(left: Narrowing, each: Filter) -> Narrowing | None:
    """`left` with one filter more; None where it cannot be used."""
    column = _column(each)
    if isinstance(each, IsNotNull):
        return left  # none of these columns is ever null
    if isinstance(each, IsNull):
        return replace(left, last=LOWEST)
    if column in ("topic", "partition"):
        return replace(left, places=(*left.places, each))
    span = _span(each)
    if span is None:
        return None
    first, last = span
    if column == "offset":
        return replace(left, first=max(left.first, first), last=min(left.last, last))
    return replace(left, since=max(left.since, first), until=min(left.until, last))


def _span(each: Filter) -> tuple[int, int] | None:
    """The numbers `[first, last)` for which a comparison can be true; None for what is no comparison."""
    if isinstance(each, In):
        values = [_number(value) for value in each.value if value is not None]
        return (min(values), max(values) + 1) if values else (HIGHEST, LOWEST)
    if not isinstance(each, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return None
    if each.value is None:
        return HIGHEST, LOWEST
    value = _number(each.value)
    if isinstance(each, EqualTo | EqualNullSafe):
        return value, value + 1
    if isinstance(each, GreaterThan):
        return value + 1, HIGHEST
    if isinstance(each, GreaterThanOrEqual):
        return value, HIGHEST
    return (LOWEST, value) if isinstance(each, LessThan) else (LOWEST, value + 1)


def _number(value: int | dt.datetime) -> int:
    return to_us(value) if isinstance(value, dt.datetime) else value


def holds(each: Filter, value: object) -> bool:
    """Whether a filter is true of a value that is not null. As in SQL, a comparison with null is not, nor its opposite."""
    return _verdict(each, value) is True


def _verdict(each: Filter, value: object) -> bool | None:
    if isinstance(each, Not):
        found = _verdict(each.child, value)
        return None if found is None else not found
    if isinstance(each, EqualNullSafe):
        return bool(value == each.value)
    if isinstance(each, IsNull | IsNotNull):
        return isinstance(each, IsNotNull)
    if isinstance(each, In):
        return True if value in each.value else None if None in each.value else False
    wanted = getattr(each, "value", None)
    return None if wanted is None else bool(_TESTS[type(each)](value, wanted))


def is_as_written(value: object) -> bool:
    """Whether a filter that was pushed has the value that stands in the query, and not one near it.

    Spark computes a decimal with 28 digits, and rounds what has more. And it takes dates and times through Java's old
    calendar, which has no 5th to 14th of October 1582: they come as the 15th.
    """
    if isinstance(value, Decimal):
        return len(value.as_tuple().digits) < DefaultContext.prec
    if isinstance(value, dt.datetime):
        return value.tzinfo is None or not _GAP[0] <= value.date() <= _GAP[1]
    return value != _GAP_ENDS


def _column(each: Filter) -> str:
    return str((each.child if isinstance(each, Not) else each).attribute[0])  # type: ignore[attr-defined]


def _plain(each: Filter, kafka: bool) -> Filter | None:
    """The filter with the column's name as in Kafka's rows; None for another column, a value of another type, and kinds of
    filters that came with a later Spark."""
    if isinstance(each, Not):
        child = _plain(each.child, kafka)
        return None if child is None else Not(child)
    if type(each) not in {*_TESTS, EqualNullSafe, In, IsNull, IsNotNull}:
        return None
    path = each.attribute  # type: ignore[attr-defined]
    name = path[0] if kafka else path[0].removeprefix("_") if path[0].startswith("_") else ""
    if len(path) != 1 or name not in _COLUMNS:
        return None
    if hasattr(each, "value"):
        values = each.value if isinstance(each, In) else (each.value,)
        wanted = _TYPES[name]
        for value in values:
            fits = isinstance(value, wanted) and not isinstance(value, bool)
            if value is not None and (not fits or (isinstance(value, dt.datetime) and value.tzinfo is None)):
                return None
            if not is_as_written(value):
                return None
    named: Filter = replace(cast(Any, each), attribute=(name,))
    return named
