"""Values of records as JSON, and JSON as values that fit a column: one way for the command line and for HTTP."""

from __future__ import annotations

import base64
import datetime as dt
import math
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa


def jsonable(value: Any) -> Any:
    """What JSON has no word for: bytes as text, or `{"base64": ...}` when they are not UTF-8; times in ISO-8601; a length of
    time in microseconds; decimals and numbers that are not finite as text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, dict):
        return {str(key): jsonable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(each) for each in value]
    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(microseconds=1)
    if isinstance(value, Decimal):
        return str(value)
    return str(value)


def fitted(value: Any, kind: pa.DataType) -> Any:
    """A JSON value as pyarrow takes it for a type: times are text there, a map is an object or a list of pairs, and bytes are
    text or `{"base64": ...}`, as `jsonable` says them."""
    if value is None:
        return None
    if pa.types.is_binary(kind) and isinstance(value, dict):
        return unbased(value)
    if pa.types.is_map(kind) and (isinstance(value, dict) or (isinstance(value, list) and all(map(_is_pair, value)))):
        entries = value.items() if isinstance(value, dict) else value
        return [(fitted(key, kind.key_type), fitted(each, kind.item_type)) for key, each in entries]
    if pa.types.is_list(kind) and isinstance(value, list):
        return [fitted(each, kind.value_type) for each in value]
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {name: fitted(each, kind.field(name).type) if kind.get_field_index(name) >= 0 else each
                for name, each in value.items()}  # fmt: skip
    is_text, is_number = isinstance(value, str), isinstance(value, (int, Decimal)) and not isinstance(value, bool)
    if pa.types.is_date(kind) and not is_text:
        raise ValueError(f"{value} is no date")
    if is_text and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        try:
            return pa.scalar(value).cast(kind).as_py()
        except OverflowError as error:
            what = "day" if pa.types.is_date(kind) else "time"
            raise ValueError(f"{value} is no {what} of the years 1 to 9999") from error
    if pa.types.is_decimal(kind) and (is_text or is_number):
        return pa.scalar(str(value)).cast(kind).as_py()
    if pa.types.is_floating(kind) and is_text and value in ("nan", "inf", "-inf"):
        return float(value)
    if pa.types.is_floating(kind) and is_number:
        return _float(value, "f" if kind == pa.float32() else "d")
    return value


def unbased(value: dict[str, Any]) -> bytes:
    """The bytes of `{"base64": ...}`; raises ValueError for anything else."""
    if set(value) != {"base64"} or not isinstance(value["base64"], str):
        raise ValueError('bytes are text, or {"base64": "..."} where they are no UTF-8')
    try:
        return base64.b64decode(value["base64"], validate=True)
    except ValueError as error:
        raise ValueError(f"this is no base64: {error}") from error


def _float(value: int | Decimal, code: str) -> float:
    """The number as a float: a fraction is rounded, as fractions are; a whole number that would be is refused."""
    found: float = struct.unpack(code, struct.pack(code, value))[0]
    if math.isinf(found):
        raise ValueError(f"{value} is too large")
    if isinstance(value, int) and found != value:
        raise ValueError(f"{value} would be rounded")
    return found


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2
