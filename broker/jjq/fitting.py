"""Whether values fit a type as they are. What pyarrow would round, cut or take for something else is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from numbers import Real
from types import NoneType
from typing import Any

import pyarrow as pa

from jjq import compute as pc
from jjq.clock import EARLIEST_US, LATEST_US, no_time

_TOO_LARGE = 2.0**128 - 2.0**103  # becomes infinite as a 32-bit float
_TRUNCATED = re.compile(r"Float value (\S+) was truncated converting to int")
_NUMBERS: Any = (Real, Decimal)
_EPOCH_DAY, _LAST_DAY = date(1970, 1, 1).toordinal(), date.max.toordinal()
_LISTS = (pa.lib.Type_LIST, pa.lib.Type_LARGE_LIST, pa.lib.Type_FIXED_SIZE_LIST)


# --- columns ---------------------------------------------------------------------------------------------------------


def same_kind(have: pa.DataType, want: pa.DataType, *, nested: bool = False) -> bool:
    """Whether a cast changes no more than how wide or how encoded values are; for loss each value is to be checked."""
    is_ = pa.types
    if is_.is_dictionary(have):
        return same_kind(have.value_type, want, nested=nested)
    if is_.is_null(have) or have == want:
        return True
    if is_.is_struct(have) and is_.is_struct(want):
        return all(
            want.get_field_index(each.name) >= 0 and same_kind(each.type, want.field(each.name).type, nested=True)
            for each in have
        )
    if is_.is_map(have) and is_.is_map(want):
        keys = same_kind(have.key_type, want.key_type, nested=True)
        return keys and same_kind(have.item_type, want.item_type, nested=True)
    if (have.id in _LISTS or is_.is_map(have)) and want.id in _LISTS:  # headers may be maps
        return same_kind(have.field(0).type, want.value_type, nested=True)
    if is_.is_timestamp(have) and is_.is_timestamp(want):
        return bool(have.tz) == bool(want.tz)
    if is_.is_integer(have):
        return bool(is_.is_integer(want) or is_.is_floating(want) or is_.is_decimal(want))
    if is_.is_floating(have):
        # pyarrow checks no float that becomes a narrower one; those of a plain column are checked in `narrowed`.
        unchecked = nested and is_.is_float64(have) and is_.is_float32(want)
        return bool(is_.is_integer(want) or is_.is_floating(want)) and not unchecked
    if is_.is_decimal(have):
        return bool(is_.is_integer(want) or is_.is_decimal(want))
    return any(test(have) and test(want) for test in (_is_text, is_.is_date, is_.is_duration))


def has_list_view(kind: pa.DataType) -> bool:
    """Whether a type is a list view or holds one."""
    is_ = pa.types
    if is_.is_dictionary(kind):
        return has_list_view(kind.value_type)
    if is_.is_list_view(kind) or is_.is_large_list_view(kind):
        return True
    return any(has_list_view(kind.field(i).type) for i in range(kind.num_fields))


def field_twice(kind: pa.DataType) -> str | None:
    """A name that two fields of one struct in a type have: of these pyarrow takes one and leaves the other out."""
    if pa.types.is_dictionary(kind):
        return field_twice(kind.value_type)
    fields = [kind.field(i) for i in range(kind.num_fields)]
    names: list[str] = [field.name for field in fields] if pa.types.is_struct(kind) else []
    twice = next((name for name in names if names.count(name) > 1), None)
    inside = (field_twice(field.type) for field in fields)
    return next((name for name in (twice, *inside) if name is not None), None)


def _is_text(kind: pa.DataType) -> bool:
    is_ = pa.types
    return bool(
        is_.is_string(kind) or is_.is_large_string(kind) or is_.is_string_view(kind) or is_.is_binary(kind)
        or is_.is_large_binary(kind) or is_.is_binary_view(kind) or is_.is_fixed_size_binary(kind)
    )  # fmt: skip


def narrowed(column: Any, kind: pa.DataType) -> Any:
    """The column cast to a type of the same kind; raises ArrowInvalid for a value that would change."""
    try:
        result = column.cast(kind, safe=True)
    except pa.ArrowInvalid as error:
        found = _TRUNCATED.match(str(error))
        if found is None:
            raise
        null = "; make it null before (Polars: fill_nan(None))" if found[1] == "nan" else ""
        raise pa.ArrowInvalid(f"{found[1]} is no whole number{null}") from error
    if pa.types.is_float64(column.type) and pa.types.is_float32(kind):
        same = pc.or_(pc.equal(result.cast(column.type), column), pc.is_nan(column))
        if pc.all(same).as_py() is False:
            value = column.filter(pc.invert(same))[0]
            raise pa.ArrowInvalid(f"{value} would be rounded; cast the column if that may be")
    return result


def first_beyond(column: Any) -> int | None:
    """The first row of a column of times or days that is outside the years 1 to 9999; None where there is none."""
    if pa.types.is_timestamp(column.type):
        numbers, low, high = column.cast(pa.int64()), EARLIEST_US, LATEST_US
    elif pa.types.is_date(column.type):
        numbers, low, high = column.cast(pa.int32()), 1 - _EPOCH_DAY, _LAST_DAY - _EPOCH_DAY
    else:
        return None
    found = pc.index(pc.or_(pc.less(numbers, low), pc.greater(numbers, high)), True).as_py()
    return None if found < 0 else int(found)


# --- Python's values -------------------------------------------------------------------------------------------------


def check_values(values: Sequence[Any], kind: pa.DataType) -> None:
    """Raises ValueError for a value that pyarrow would change without a word, and TypeError for a text in the place of a time, of
    which pyarrow says what misleads; for others that do not fit it raises."""
    check = _CHECKS.get(kind.id)
    if check is not None:
        check(values, kind)


def _whole(values: Sequence[Any], kind: pa.DataType) -> None:
    if set(map(type, values)) <= {int, NoneType}:
        return
    for value in values:
        if isinstance(value, _NUMBERS) and not _is_whole(value):
            raise ValueError(f"{value} is no whole number")
        if isinstance(value, timedelta) and _nanoseconds(value):
            raise ValueError(f"{value} has nanoseconds")


def _is_whole(value: Any) -> bool:
    try:
        return bool(int(value) == value)
    except (ValueError, OverflowError):  # not a number, or infinite
        return False


def _moments(values: Sequence[Any], kind: pa.DataType) -> None:
    zoned, others = kind.tz is not None, []
    for value in values:
        if not isinstance(value, datetime):
            if isinstance(value, str):
                raise TypeError(f"{value!r} is a text; a time is a datetime, or microseconds since the epoch")
            others.append(value)
        elif (value.tzinfo is None) is zoned:
            zone = (
                "no time zone; give it the one that it is of"
                if zoned
                else "a time zone; times of this column have none"
            )
            raise _refused(value, f"has {zone}")
        elif type(value) is not datetime and _nanoseconds(value):
            raise _refused(value, "has nanoseconds")
    if others:
        _whole(others, kind)
        for value in others:
            if (type(value) is int or isinstance(value, _NUMBERS)) and (wrong := no_time(int(value))):
                raise ValueError(f"{value} {wrong}; numbers are microseconds since the epoch")


def _nanoseconds(value: Any) -> Any:
    """Those that pandas has and Python has not."""
    return getattr(value, "nanosecond", None) or getattr(value, "nanoseconds", None)


def _refused(value: datetime, why: str) -> ValueError:
    """Of pandas' NaT, which is a datetime and not itself, nothing else is wrong than that it is none."""
    return ValueError("NaT is no time; null is None" if value != value else f"{value} {why}")


def _days(values: Sequence[Any], kind: pa.DataType) -> None:
    if set(map(type, values)) <= {date, NoneType}:
        return
    for value in values:
        if isinstance(value, datetime):
            raise _refused(value, "has a time of day; take its date()")
        if isinstance(value, str):
            raise TypeError(f"{value!r} is a text; a day is a date, or days since the epoch")
    _whole(values, kind)
    for value in values:
        if (type(value) is int or isinstance(value, _NUMBERS)) and not 0 < int(value) + _EPOCH_DAY <= _LAST_DAY:
            raise ValueError(f"{value} is no day of the years 1 to 9999; numbers are days since the epoch")


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
