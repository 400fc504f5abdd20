"""Whether values fit a type as they are. What pyarrow would round, cut or take for something else is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from numbers import Real
from types import NoneType
from typing import Any

import pyarrow as pa

_TOO_LARGE = 2.0**128 - 2.0**103  # becomes infinite as a 32-bit float
_NUMBERS: Any = (Real, Decimal)


def check_values(values: Sequence[Any], kind: pa.DataType) -> None:
    """Raises ValueError for a value that pyarrow would change without a word; for others that do not fit it raises."""
    check = _CHECKS.get(kind.id)
    if check is not None:
        check(values, kind)


def _whole(values: Sequence[Any], kind: pa.DataType) -> None:
    if set(map(type, values)) <= {int, NoneType}:
        return
    for value in values:
        if isinstance(value, _NUMBERS) and int(value) != value:
            raise ValueError(f"{value} is no whole number")
        if isinstance(value, timedelta) and _nanoseconds(value):
            raise ValueError(f"{value} has nanoseconds")


def _moments(values: Sequence[Any], kind: pa.DataType) -> None:
    zoned, others = kind.tz is not None, []
    for value in values:
        if not isinstance(value, datetime):
            others.append(value)
        elif (value.tzinfo is None) is zoned:
            raise ValueError(f"{value} has {'no' if zoned else 'a'} time zone")
        elif type(value) is not datetime and _nanoseconds(value):
            raise ValueError(f"{value} has nanoseconds")
    if others:
        _whole(others, kind)


def _nanoseconds(value: Any) -> Any:
    """Those that pandas has and Python has not."""
    return getattr(value, "nanosecond", None) or getattr(value, "nanoseconds", None)


def _days(values: Sequence[Any], kind: pa.DataType) -> None:
    moment = next((value for value in values if isinstance(value, datetime)), None)
    if moment is not None:
        raise ValueError(f"{moment} has a time of day; take its date()")
    _whole(values, kind)


def _floats(values: Sequence[Any], kind: pa.DataType) -> None:
    if bool in map(type, values):
        raise ValueError("true and false are no numbers")
    if kind.bit_width == 32:
        for value in values:
            if isinstance(value, float) and _TOO_LARGE <= abs(value) < float("inf"):
                raise ValueError(f"{value} is too large")


def _lists(values: Sequence[Any], kind: pa.DataType) -> None:
    if not {str, bytes}.isdisjoint(map(type, values)):
        raise ValueError("a text is no list")
    if kind.value_type.id in _CHECKS:
        check_values([item for each in values if hasattr(each, "__len__") for item in each], kind.value_type)


def _maps(values: Sequence[Any], kind: pa.DataType) -> None:
    pairs = [pair for each in values if hasattr(each, "__len__")
             for pair in (each.items() if isinstance(each, Mapping) else each)]  # fmt: skip
    check_values([key for key, _ in pairs], kind.key_type)
    check_values([item for _, item in pairs], kind.item_type)


def _structs(values: Sequence[Any], kind: pa.DataType) -> None:
    names = [field.name for field in kind]
    known, rows = set(names), []
    for value in values:
        if isinstance(value, tuple):
            row: Mapping[str, Any] = dict(zip(names, value, strict=False))
        elif isinstance(value, (Mapping, list)):
            row = dict(value)
        else:
            continue
        if not known.issuperset(row):
            unknown = next(name for name in row if name not in known)
            raise ValueError(f"there is no field {unknown!r}; its fields are {', '.join(names)}")
        rows.append(row)
    for field in kind:
        check_values([row.get(field.name) for row in rows], field.type)


_CHECKS: dict[int, Callable[[Sequence[Any], pa.DataType], None]] = {
    **dict.fromkeys((pa.lib.Type_INT8, pa.lib.Type_INT16, pa.lib.Type_INT32, pa.lib.Type_INT64), _whole),
    pa.lib.Type_DURATION: _whole,
    pa.lib.Type_TIMESTAMP: _moments,
    pa.lib.Type_DATE32: _days,
    pa.lib.Type_FLOAT: _floats,
    pa.lib.Type_DOUBLE: _floats,
    pa.lib.Type_LIST: _lists,
    pa.lib.Type_MAP: _maps,
    pa.lib.Type_STRUCT: _structs,
}
