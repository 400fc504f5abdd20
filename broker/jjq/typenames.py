"""The types of columns as people write them, on the command line and over HTTP."""

from __future__ import annotations

import re

import pyarrow as pa

from jjq.errors import InvalidArgument
from jjq.schema import MOST_DEPTH
from jjq.values import shown

TYPES: dict[str, pa.DataType] = {
    "string": pa.string(), "str": pa.string(), "text": pa.string(), "binary": pa.binary(), "bytes": pa.binary(),
    "bool": pa.bool_(), "boolean": pa.bool_(), "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(),
    "int64": pa.int64(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "float32": pa.float32(),
    "double": pa.float64(), "float64": pa.float64(), "date": pa.date32(), "date32": pa.date32(), "duration": pa.duration("us"),
    "timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ntz": pa.timestamp("us"),
    "tinyint": pa.int8(), "smallint": pa.int16(), "integer": pa.int32(), "bigint": pa.int64(),
}  # fmt: skip
# What Arrow writes behind a name, without spaces.
_OF_ARROW = {
    "timestamp[us,tz=utc]": TYPES["timestamp"], "timestamp[us]": TYPES["timestamp_ntz"], "duration[us]": TYPES["duration"],
    "date32[day]": TYPES["date"],
}  # fmt: skip
_MOST_CHARACTERS = 1 << 16


def data_type(text: str) -> pa.DataType:
    """An Arrow type from its name: `int32`, `decimal(10,2)`, `list<string>`, `map<string,int64>`, `struct<a:int32>`. Also as
    Spark writes it (`bigint`, `array<string>`), and as Arrow does, and so jjq shows it (`timestamp[us, tz=UTC]`, `list<item: string>`)."""
    if len(text) > _MOST_CHARACTERS:
        raise InvalidArgument(f"a type has up to {_MOST_CHARACTERS:,} characters; keep what is wider as JSON")
    kind, rest = _type(text.replace(" ", "").lower() if "<" not in text else text.replace(" ", ""), 0)
    if rest:
        raise InvalidArgument(f"{shown(text)} is no type: {shown(rest)} is too much")
    return kind


def _type(text: str, depth: int) -> tuple[pa.DataType, str]:
    """A type at the beginning of the text, and what follows it."""
    if depth > MOST_DEPTH:
        raise InvalidArgument(f"a type has up to {MOST_DEPTH} levels of types within types; keep it as JSON")
    word = re.match(r"[a-z_0-9]*", text, re.IGNORECASE)
    name = word.group().lower() if word else ""
    rest = text[len(name) :]
    if match := re.match(r"\((\d{1,6}),(\d{1,6})\)", rest):
        digits, places = int(match.group(1)), int(match.group(2))
        if name not in ("decimal", "decimal128") or not 1 <= digits <= 38 or places > digits:
            raise InvalidArgument(f"{shown(text)} is no type; a decimal is decimal(10,2), of up to 38 digits")
        return pa.decimal128(digits, places), rest[match.end() :]
    if match := re.match(r"\[[a-z0-9,=]*\]", rest, re.IGNORECASE):
        whole = name + match.group().lower()
        if whole not in _OF_ARROW:
            raise InvalidArgument(
                f"there is no type {shown(text[: len(whole)])}; there are timestamp for instants, timestamp_ntz without a zone, both in "
                f"microseconds, and date"
            )
        return _OF_ARROW[whole], rest[match.end() :]
    if name in ("list", "array", "map", "struct") and rest.startswith("<"):
        return _nested("list" if name == "array" else name, text, rest[1:], depth + 1)
    if name not in TYPES:
        raise InvalidArgument(
            f"there is no type {shown(name or text)}; there are string, binary, bool, int8 to int64, float, double, date, timestamp, "
            f"timestamp_ntz, duration, decimal(p,s), list<t>, map<k,v> and struct<name:t>"
        )
    return TYPES[name], rest


def _nested(name: str, text: str, rest: str, depth: int) -> tuple[pa.DataType, str]:
    fields: list[pa.Field] = []
    while True:
        label = f"f{len(fields)}"
        if name == "struct":
            label, _, rest = rest.partition(":")
        elif name == "list" and (match := re.match(r"\w+:", rest)):
            rest = rest[match.end() :]
        kind, rest = _type(rest, depth)
        fields.append(pa.field(label, kind))
        separator, rest = rest[:1], rest[1:]
        if separator == ">":
            break
        if separator != ",":
            raise InvalidArgument(f"{shown(text)} is no type: a > is missing")
    types = [field.type for field in fields]
    if name == "struct":
        return pa.struct(fields), rest
    if len(types) != (2 if name == "map" else 1):
        raise InvalidArgument(
            f"{shown(text)} is no type: a {name} has {'two types' if name == 'map' else 'one type'} in it"
        )
    return (pa.map_(*types) if name == "map" else pa.list_(types[0])), rest
