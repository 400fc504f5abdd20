"""Rows of every type, as `jjq push` is given them; and what a topic has after it."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.integration.conftest import Cli

SCHEMA = pa.schema(
    [
        ("s", pa.string()), ("b", pa.binary()), ("t", pa.bool_()), ("i", pa.int32()), ("l", pa.int64()), ("d", pa.float64()),
        ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("wall", pa.timestamp("us")), ("took", pa.duration("us")),
        ("n", pa.decimal128(10, 2)), ("list", pa.list_(pa.date32())), ("map", pa.map_(pa.string(), pa.int64())),
        ("struct", pa.struct([("x", pa.int32()), ("when", pa.timestamp("us", "UTC"))])),
    ]
)  # fmt: skip
NOON = dt.datetime(2013, 1, 1, 12, 0, 0, 123456, dt.UTC)
ROWS: list[dict[str, Any]] = [
    {
        "s": 'text, with "quotes"\nand a line', "b": b"bytes", "t": True, "i": -5, "l": (1 << 53) + 1, "d": 1.5,
        "day": dt.date(2013, 1, 1), "at": NOON, "wall": NOON.replace(tzinfo=None), "took": dt.timedelta(seconds=90),
        "n": Decimal("1.20"), "list": [dt.date(2013, 1, 2), None], "map": [("a", 1), ("b", None)],
        "struct": {"x": 1, "when": NOON},
    },
    dict.fromkeys(SCHEMA.names),
    {**dict.fromkeys(SCHEMA.names), "s": "", "b": b"", "list": [], "map": [], "struct": {"x": None, "when": None}},
]  # fmt: skip
COLUMNS = [
    part
    for column in (
        "s:string", "b:binary", "t:bool", "i:int32", "l:int64", "d:double", "day:date", "at:timestamp",
        "wall:timestamp_ntz", "took:duration", "n:decimal(10,2)", "list:list<date>", "map:map<string,int64>",
        "struct:struct<x:int32,when:timestamp>",
    )
    for part in ("--column", column)
]  # fmt: skip
FLAT = [name for name in SCHEMA.names if name not in ("list", "map", "struct")]


def records(cli: Cli, topic: str) -> list[dict[str, Any]]:
    with cli.open() as store:
        rows: list[dict[str, Any]] = store.topic(topic).read().read_all().to_pylist()
        return rows


def values(cli: Cli, topic: str) -> list[bytes]:
    return [row["value"] for row in records(cli, topic)]
