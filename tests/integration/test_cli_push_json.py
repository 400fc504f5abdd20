"""`jjq push` of JSON lines: what goes in comes out, and what would have to change is refused."""

import json
from decimal import Decimal

import pyarrow as pa
import pytest

from jjq.cli import inputs
from jjq.preparing import partition_of
from tests.integration.conftest import Cli
from tests.integration.pushed import COLUMNS, NOON, ROWS, records


def test_json_documents_are_kept_as_they_are_where_there_is_no_schema(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--partitions", "4")
    lines = ['{"user": "ann",  "n": 1.50}', "", '{"user": 7}', '{"user": null, "é": "\\u00e9"}', '  {"user": "ann"}']
    cli.run("push", "t", "--format", "json", "--key", "user", stdin="\n".join(lines))
    with cli.open() as store:
        rows = store.topic("t").read(metadata=["_key", "_partition"]).read_all().to_pylist()
    assert sorted((row["_key"] or b"", row["value"].decode()) for row in rows) == sorted(
        [(b"ann", lines[0]), (b"7", lines[2]), (b"", lines[3]), (b"ann", lines[4])]
    )
    for row in rows:
        if row["_key"] is not None:
            assert row["_partition"] == partition_of(row["_key"], 4)


def test_json_objects_fill_the_columns_of_every_type_and_come_out_again(cli: Cli) -> None:
    cli.run("topic", "create", "t", *COLUMNS)
    cli.run("topic", "create", "copy", *COLUMNS)
    with cli.open() as store:
        store.topic("t").push_many(ROWS)
    lines = cli.text("tail", "t")
    assert json.loads(lines.splitlines()[0])["at"] == "2013-01-01T12:00:00.123456Z"
    cli.run("push", "copy", "--format", "json", stdin=lines)
    assert records(cli, "copy") == records(cli, "t")


def test_json_without_maps_takes_the_fast_way_to_the_same_rows(cli: Cli) -> None:
    columns = [part for column in COLUMNS[1::2] if "map" not in column for part in ("--column", column)]
    cli.run("topic", "create", "t", *columns)
    cli.run("topic", "create", "copy", *columns)
    rows = [{name: value for name, value in row.items() if name != "map"} for row in ROWS]
    with cli.open() as store:
        store.topic("t").push_many(rows * 500)
    cli.run("push", "copy", "--format", "json", "--batch-bytes", "20k", stdin=cli.text("tail", "t", "--start", "0"))
    assert records(cli, "copy") == records(cli, "t") == rows * 500


KINDS = pa.schema(
    [
        ("i", pa.int32()), ("d", pa.float64()), ("f", pa.float32()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")),
        ("wall", pa.timestamp("us")), ("de", pa.decimal128(5, 2)), ("long", pa.decimal128(38, 20)),
        ("l", pa.list_(pa.int64())), ("r", pa.struct([("a", pa.int32())])),
    ]
)  # fmt: skip
NO_KIND = "is no object of the topic's columns"
REFUSED_JSON = [
    ("null", f"line 1 {NO_KIND}"), ('{"i": 1}\nnull\n{"i": 2}', f"line 2 {NO_KIND}"), ("\n \tnull", f"line 2 {NO_KIND}"),
    ("5\n", f"line 1 {NO_KIND}"), ('{"i": 1} null', "line 1 is not JSON"), ('{"i": 1} {"i": 2}', "line 1 is not JSON"),
    ('{"i":\n1}', "line 1 is not JSON"), ('{"i": 4.7}', "line 1: column 'i' takes int32: 4.7 is no whole number"),
    ('{"l": [1, 2.7]}', "2.7 is no whole number"), ('{"r": {"a": 2.5}}', "2.5 is no whole number"),
    ('{"r": {"a": 1, "c": 2}}', "line 1: column 'r' takes struct<a: int32>: there is no field 'c'"),
    ('{"d": 1.5}\n{"d": 9007199254740993}', "line 2: column 'd' takes double: 9007199254740993 would be rounded"),
    ('{"f": 16777217}', "16777217 would be rounded"), ('{"f": 1e300}', "too large"), ('{"d": 1e400}', "too large"),
    ('{"d": true}', "no numbers"), ('{"day": "2013-01-01T10:00:00"}', "line 1: column 'day'"), ('{"day": 5}', "5 is no date"),
    ('{"r": {"a": 1, "a": 1}}', "line 1: the name 'a' stands there twice"),
    ('{"at": "2013-01-01T10:00:00"}', "expected a zone offset; write the zone, as in 2013-01-01T10:00:00Z"), ('{"at": "2013-01-01"}', "zone"), ('{"at": 1.5}', "no whole number"),
    ('{"wall": "2013-01-01T10:00:00+02:00"}', "zone"), ('{"de": 1.23}\n{"de": 1.234}', "line 2: column 'de'"),
    ('{"de": 12345.67}', "line 1: column 'de' takes decimal128(5, 2)"), ('{"de": "12345.67"}', "line 1: column 'de'"),
]  # fmt: skip


@pytest.mark.parametrize("mapped", [False, True], ids=["plain", "with a map"])
def test_json_that_would_have_to_change_is_refused_with_its_line(cli: Cli, mapped: bool) -> None:
    """Where there is a map, lines are read one by one."""
    with cli.open() as store:
        topic = store.create_topic("t", schema=pa.schema([*KINDS, *[("m", pa.map_(pa.string(), pa.int64()))] * mapped]))
        for lines, says in [*REFUSED_JSON, *[('{"m": {"a": 1.5}}', "1.5 is no whole number")] * mapped]:
            (cli.directory / "in.jsonl").write_text(lines)
            with inputs.Source(cli.directory / "in.jsonl") as source, pytest.raises(inputs.InputError) as caught:
                list(inputs.read_json(source, topic, 1 << 20, None))
            assert says in caught.value.message, lines
    assert "line 1 is no object" in cli.error("push", "t", "--format", "json", stdin="null\n")


@pytest.mark.parametrize("mapped", [False, True], ids=["plain", "with a map"])
def test_json_numbers_and_times_arrive_exactly(cli: Cli, mapped: bool) -> None:
    given = {
        '{"i": 4.0}': ("i", 4), '{"d": 9007199254740992}': ("d", 2.0**53), '{"d": 1152921504606846976}': ("d", 2.0**60),
        '{"d": 1e300}': ("d", 1e300), '{"d": 0.1}': ("d", 0.1), '{"f": 33554432}': ("f", 2.0**25),
        '{"at": "2013-01-01T13:00:00.123456+01:00"}': ("at", NOON), '{"at": 1357041600123456}': ("at", NOON),
        '{"wall": "2013-01-01T12:00:00.123456"}': ("wall", NOON.replace(tzinfo=None)), '{"de": 1.2}': ("de", Decimal("1.20")),
        '{"long": 0.12345678901234567890}': ("long", Decimal("0.12345678901234567890")), '{"l": [1, 2.0]}': ("l", [1, 2]),
        '{"r": {}}': ("r", {"a": None}),
    }  # fmt: skip
    with cli.open() as store:
        store.create_topic("t", schema=pa.schema([*KINDS, *[("m", pa.map_(pa.string(), pa.int64()))] * mapped]))
    cli.run("push", "t", "--format", "json", stdin="\n".join(given))
    assert [row[name] for row, (name, _) in zip(records(cli, "t"), given.values(), strict=True)] == [
        value for _, value in given.values()
    ]
