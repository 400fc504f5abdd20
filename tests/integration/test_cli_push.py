"""`jjq push`: what goes in comes out, whatever the format; and what cannot go in."""

import contextlib
import datetime as dt
import gzip
import json
import os
import pty
import re
import select
import signal
import subprocess
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from jjq.cli import inputs, main
from jjq.preparing import partition_of
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


def test_a_topic_that_is_missing_says_how_to_make_it(cli: Cli) -> None:
    cli.run("topic", "create", "logs")
    assert "did you mean 'logs'? `jjq topic create lgos` makes it" in cli.error("push", "lgos", code=1)
    assert "; there are logs; `jjq topic create other` makes it" in cli.error("push", "other", code=1)


def test_a_rate_is_said_of_a_thousand_records_and_not_of_a_few(cli: Cli) -> None:
    cli.run("topic", "create", "t")
    assert re.fullmatch(r"1 record pushed to t in [\d.]+ s \(2 B\)\n", cli.text("push", "t", stdin=b"a\n"))
    said = cli.text("push", "t", stdin=b"a\n" * 1000)
    assert re.fullmatch(r"1,000 records pushed to t in [\d.]+ s \([\d,]+/s, 2.0 KiB\)\n", said)


def test_what_a_full_topic_drops_is_counted(cli: Cli) -> None:
    with cli.open() as store, store.pubsub(ignore_subscribe_messages=True) as subscription:
        store.create_topic("t#ephemeral", max_records=2, when_full="drop_newest")
        subscription.subscribe("t#ephemeral")
        result = cli.json("push", "t#ephemeral", "--batch-bytes", "1", stdin=b"a\nb\nc\n")
        assert (result["records"], result["dropped"]) == (3, 1)
        assert result["partitions"] == {"0": {"records": 2, "first": 0, "last": 1}}
        said = cli.text("push", "t#ephemeral", stdin=b"d\n")
        assert said.startswith("1 record pushed to t#ephemeral, which is full and dropped 1, in ")


# --- lines -----------------------------------------------------------------------------------------------------------


def test_lines_go_in_and_come_out_to_the_byte(cli: Cli) -> None:
    cli.run("topic", "create", "t")
    data = b"plain\n\n  spaces \r\ntab\t\xff\xfe\x00not text\n" + b"x" * 100_000 + b"\nno end"
    (cli.directory / "in").write_bytes(data)
    result = cli.json("push", "t", cli.directory / "in")
    assert result["partitions"] == {"0": {"records": 6, "first": 0, "last": 5}}
    assert (result["topic"], result["records"], result["bytes"], result["duplicate"]) == ("t", 6, len(data), False)
    assert values(cli, "t") == data.split(b"\n")
    with cli.start("tail", "t", "--start", "earliest") as process:
        out, _ = process.communicate()
    assert out == data + b"\n"


def test_the_standard_input_is_pushed_as_it_comes(cli: Cli) -> None:
    cli.run("topic", "create", "t")
    with cli.open() as store, store.create_subscriber("t") as subscriber, cli.start("push", "t") as process:
        for value in (b"one", b"two"):
            process.stdin.write(value + b"\n")
            process.stdin.flush()
            assert subscriber.pop(timeout=60).value == value
        process.stdin.write(b"half a li")
        process.stdin.flush()
        process.stdin.write(b"ne")
        out, err = process.communicate()
        assert (process.returncode, err) == (0, b"")
        assert out.startswith(b"3 records pushed to t")
        assert subscriber.pop().value == b"half a line"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_push_says_what_went_in(cli: Cli, number: int) -> None:
    cli.run("topic", "create", "t")
    with cli.open() as store, store.create_subscriber("t") as subscriber, cli.start("push", "t") as process:
        for value in (b"one", b"two"):
            process.stdin.write(value + b"\n")
            process.stdin.flush()
            assert subscriber.pop(timeout=60).value == value
        process.send_signal(number)
        out, err = process.communicate()
    assert (process.returncode, out) == (128 + number, b"")
    # The second one may be seen before the command that pushed it hears of that.
    assert err in (b"jjq: stopped; 2 records went in\n", b"jjq: stopped; 1 record went in, perhaps 1 more\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_push_of_all_at_once_says_that_nothing_went_in(cli: Cli, number: int) -> None:
    cli.run("topic", "create", "t")
    pause = threading.Event()
    with cli.open() as store, cli.start("push", "t", "--atomic") as process:
        process.stdin.write((b"x" * 1000 + b"\n") * 16_000)  # what waits in memory is less
        process.stdin.flush()
        while not list(store.topic("t").directory(0).glob("*.json")):  # the note of what is staged
            pause.wait(0.01)
        process.send_signal(number)
        out, err = process.communicate()
        assert not list(store.topic("t").directory(0).glob("*.json"))
    assert (process.returncode, out, err) == (128 + number, b"", b"jjq: stopped; nothing went in\n")


def test_a_thread_that_calls_the_command_pushes_too(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    """Handlers of signals are the main thread's alone."""
    cli.run("topic", "create", "t")
    (cli.directory / "in").write_bytes(b"one\n")
    ended: list[int] = []
    given = ["--store", str(cli.store), "push", "t", str(cli.directory / "in")]
    thread = threading.Thread(target=lambda: ended.append(main(given)))
    thread.start()
    thread.join()
    assert ended == [0], capsys.readouterr().err


def test_nothing_at_all_is_pushed_quietly(cli: Cli) -> None:
    cli.run("topic", "create", "t")
    for format_ in ("lines", "json"):
        assert cli.json("push", "t", "--format", format_)["records"] == 0
    assert cli.json("push", "t", "-", "--atomic")["records"] == 0


def test_a_file_of_many_blocks_keeps_its_order_and_takes_turns_among_partitions(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--partitions", "2", "--sync", "none")
    (cli.directory / "in").write_bytes(b"".join(b"%d\n" % i for i in range(100_000)))
    result = cli.json("push", "t", "in", "--batch-bytes", "64k")
    assert result["records"] == sum(each["records"] for each in result["partitions"].values()) == 100_000
    with cli.open() as store:
        for partition in range(2):
            table = store.topic("t").read(partitions=[partition]).read_all()
            found = [int(value) for value in table.column("value").to_pylist()]
            assert found == sorted(found)
            assert len(found) == result["partitions"][str(partition)]["records"] > 40_000


def test_commands_that_push_one_record_each_fill_all_partitions(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--partitions", "3", "--sync", "none")
    for each in range(100):
        cli.run("push", "t", stdin=b"one")
        with cli.open() as store:
            ends = [part.end for part in store.topic("t").offsets()]
        assert sum(ends) == each + 1
        if all(ends):
            return
    raise AssertionError("a hundred records in fewer than three partitions")


# --- JSON ------------------------------------------------------------------------------------------------------------


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


# --- CSV and Parquet -------------------------------------------------------------------------------------------------


def flat_table() -> pa.Table:
    return pa.Table.from_pylist([{name: row[name] for name in FLAT} for row in ROWS], SCHEMA).select(FLAT)


def make_flat(cli: Cli, topic: str) -> None:
    columns = [part for column in COLUMNS[1::2] if column.partition(":")[0] in FLAT for part in ("--column", column)]
    cli.run("topic", "create", topic, *columns)


def test_csv_goes_in_by_the_names_of_its_columns(cli: Cli) -> None:
    make_flat(cli, "t")
    table = flat_table().set_column(FLAT.index("took"), "took", flat_table().column("took").cast(pa.int64()))
    csv.write_csv(table.select(list(reversed(FLAT))), cli.directory / "in.csv")
    cli.run("push", "t", "in.csv", "--null", "")
    assert records(cli, "t") == flat_table().to_pylist()


def test_text_is_empty_and_not_null_unless_null_is_said(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--column", "s:string", "--column", "i:int32")
    cli.run("push", "t", "--format", "csv", stdin="s,i\nNA,NA\n,\n")
    cli.run("push", "t", "--format", "csv", "--null", "NA", "--null", "-", stdin='s,i\nNA,-\n"NA",1\n')
    assert records(cli, "t") == [
        {"s": "NA", "i": None}, {"s": "", "i": None}, {"s": None, "i": None}, {"s": "NA", "i": 1},
    ]  # fmt: skip


def test_with_a_text_for_null_the_empty_field_is_null_too_and_the_empty_text_is_not(cli: Cli) -> None:
    """The example of `jjq push --help`, on a file with empty fields."""
    cli.run("topic", "create", "t", "--column", "s:string", "--column", "i:int32", "--column", "day:date")
    (cli.directory / "flights.csv").write_text('s,i,day\nNA,NA,NA\na,,\n"",1,2013-01-01\n"NA",2,\n,3,NA\n')
    cli.run("push", "t", "flights.csv", "--key", "s", "--null", "NA")
    assert [tuple(row.values())[-3:] for row in records(cli, "t")] == [
        (None, None, None), ("a", None, None), ("", 1, dt.date(2013, 1, 1)), ("NA", 2, None), (None, 3, None),
    ]  # fmt: skip


def test_csv_with_other_delimiters_and_without_a_header(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--column", "s:string", "--column", "i:int32")
    (cli.directory / "in.tsv").write_text("i\ts\n1\ta\n")
    cli.run("push", "t", "in.tsv")
    cli.run("push", "t", "--format", "csv", "--delimiter", ";", "--no-header", stdin='"b;c";2\n')
    assert records(cli, "t") == [{"s": "a", "i": 1}, {"s": "b;c", "i": 2}]


def test_csv_of_values_and_keys_fills_a_topic_without_a_schema(cli: Cli) -> None:
    cli.run("topic", "create", "t")
    cli.run("push", "t", "--format", "csv", stdin="value,key\n1,a\ntwo,b\n")
    assert [(row["value"], row["_key"]) for row in records(cli, "t")] == [(b"1", b"a"), (b"two", b"b")]


@pytest.mark.parametrize("way", ["file", "standard input"])
def test_parquet_goes_in_and_keys_choose_the_partition(cli: Cli, way: str) -> None:
    cli.run("topic", "create", "t", "--partitions", "3", *COLUMNS)
    table = pa.Table.from_pylist(ROWS, SCHEMA)
    parquet.write_table(table, cli.directory / "in.parquet", row_group_size=2)
    if way == "file":
        cli.run("push", "t", "in.parquet", "--key", "s")
    else:
        with (
            (cli.directory / "in.parquet").open("rb") as stream,
            cli.start("push", "t", "--format", "parquet", "--key", "s", stdin=stream) as process,
        ):
            assert process.wait() == 0
    with cli.open() as store:
        found = store.topic("t").read(metadata=["_key", "_partition"]).read_all().to_pylist()
    assert len(found) == len(ROWS)
    for row in found:
        key = row.pop("_key")
        partition = row.pop("_partition")
        assert row in ROWS
        assert key == (None if row["s"] is None else row["s"].encode())
        assert key is None or partition == partition_of(key, 3)


def test_a_large_parquet_file_is_read_in_pieces(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--column", "i:int64", "--sync", "none")
    parquet.write_table(pa.table({"i": range(300_000)}), cli.directory / "in.parquet")
    assert cli.json("push", "t", "in.parquet", "--batch-bytes", "100k")["records"] == 300_000
    assert [row["i"] for row in records(cli, "t")] == list(range(300_000))


def test_a_column_gives_the_records_their_time(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--column", "at:timestamp", "--timestamps", "producer")
    line = '{"at": "2013-01-01T12:00:00Z"}\n'
    cli.run("push", "t", "--format", "json", "--timestamp", "at", stdin=line)
    cli.run("push", "t", "--format", "json", "--timestamp", "at", "--atomic", stdin=line)
    assert [each["timestamp"] for each in cli.lines("tail", "t")] == ["2013-01-01T12:00:00.000000Z"] * 2
    assert "no column of" in cli.error("push", "t", "--format", "json", "--timestamp", "when", stdin=line, code=2)


# --- all or nothing, and once ----------------------------------------------------------------------------------------


def test_what_was_pushed_before_a_bad_line_is_told_and_atomic_pushes_all_or_nothing(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--column", "i:int32")
    lines = "".join(f'{{"i": {i}}}\n' for i in range(10_000)) + '{"i": "many"}\n'
    (cli.directory / "in.jsonl").write_text(lines)
    said = cli.error("push", "t", "in.jsonl", "--atomic")
    assert "in.jsonl, line 10001: column 'i' takes int32" in said
    assert records(cli, "t") == []
    said = cli.error("push", "t", "in.jsonl", "--batch-bytes", "16k")
    pushed = len(records(cli, "t"))
    assert 0 < pushed < 10_001
    assert f"before that, {pushed:,} records went in" in said


def test_a_batch_of_a_writer_is_pushed_once(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--partitions", "2")
    batch = ("push", "t", "--writer", "loader", "--batch", "3")
    first = cli.json(*batch, stdin="a\nb\n")
    again = cli.json(*batch, stdin="a\nb\n")
    assert (first["records"], first["duplicate"], again["records"], again["duplicate"]) == (2, False, 0, True)
    assert again["partitions"] == first["partitions"]
    assert "was pushed before" in cli.text(*batch, stdin="a\nb\n")
    assert "jjq writer reset" in cli.error("push", "t", "--writer", "loader", "--batch", "1", stdin="c\n")
    assert values(cli, "t") == [b"a", b"b"]


# --- what cannot go in -----------------------------------------------------------------------------------------------

RAW_CASES: dict[str, tuple[list[str], bytes, int, str]] = {
    "no such topic": (["raww"], b"", 1, "did you mean 'raw'"),
    "no such file": (["raw", "nothing.csv"], b"", 1, "No such file"),
    "a value for a file": (["raw", '{"a": 1}'], b"", 1, "values come from the standard input"),
    "a compressed file": (["raw", "packed.csv.gz"], b"", 1, "is compressed: zcat"),
    "a compressed file of columns": (["raw", "packed.csv.gz", "--format", "csv"], b"", 1, "is compressed: zcat"),
    "a directory": (["raw", "."], b"", 1, "it is a directory"),
    "no such format": (["raw", "--format", "xml"], b"", 2, "invalid choice"),
    "no such partition": (["raw", "--partition", "9"], b"x\n", 2, "partitions 0 to 0"),
    "a key of lines": (["raw", "--key", "k"], b"x\n", 2, "lines have no columns"),
    "not JSON": (["raw", "--format", "json"], b'{"a": 1}\n\n{"a": \n', 1, "standard input, line 3 is not JSON"),
    "JSON that is not UTF-8": (["raw", "--format", "json"], b'"\xff"\n', 1, "line 1 is not JSON"),
    "JSON with a name twice": (
        ["raw", "--format", "json"],
        b'{"a": 1}\n{"a": 1, "a": 2}\n',
        1,
        "line 2: the name 'a' stands",
    ),
    "a key that is missing": (
        ["raw", "--format", "json", "--key", "k"],
        b'{"k":1}\n{}\n',
        1,
        "line 2 has no field 'k'",
    ),
    "a key that is no text": (["raw", "--format", "json", "--key", "k"], b'{"k":[]}\n', 1, "cannot be a key"),
    "CSV with columns": (["raw", "--format", "csv"], b"a,b\n1,2\n", 1, "has no schema: give it a column `value`"),
    "an empty CSV": (["raw", "--format", "csv"], b"", 1, "Empty CSV file"),
    "Parquet from a pipe": (["raw", "--format", "parquet"], b"", 2, "cannot come from a pipe"),
    "a writer without a batch": (["raw", "--writer", "w"], b"x\n", 2, "go together"),
    "a bad writer": (["raw", "--writer", "../w", "--batch", "1"], b"x\n", 2, "cannot name a writer"),
    "a bad size": (["raw", "--batch-bytes", "lots"], b"x\n", 2, "is no size"),
    "a line that is too long": (["raw"], b"x" * 5000 + b"\n", 1, "5,000 bytes, the topic takes up to 4,096"),
    "a time that the broker gives": (["raw", "--timestamp", "at"], b"x\n", 2, "is no column"),
}
COLUMN_CASES: dict[str, tuple[list[str], bytes, int, str]] = {
    "lines": (["cols"], b"x\n", 2, "use --format json, csv or parquet"),
    "JSON that is no object": (["cols", "--format", "json"], b"[1]\n", 1, "line 1 is no object of the topic's columns"),
    "an unknown field": (["cols", "--format", "json"], b'{"i": 1, "jj": 2}\n', 1, "no column 'jj'"),
    "a number that is none": (["cols", "--format", "json"], b'{"i": NaN}\n', 1, "nan is no whole number; write null"),
    "a field twice": (
        ["cols", "--format", "json"],
        b'{"i": 1}\n{"i": null, "i": 2}\n',
        1,
        "line 2: the name 'i' stands there twice",
    ),
    "a field of another type": (["cols", "--format", "json"], b'{"i": 1}\n{"i": "x"}\n', 1, "line 2: column 'i'"),
    "a number that does not fit": (["cols", "--format", "json"], b'{"i": 3000000000}\n', 1, "line 1: column 'i'"),
    "a date that is none": (["cols", "--format", "json"], b'{"day": "someday"}\n', 1, "column 'day'"),
    "a key that is no column": (["cols", "--format", "json", "--key", "k"], b'{"i": 1}\n', 2, "no column of the data"),
    "a CSV value of another type": (["cols", "--format", "csv"], b"i\n1\nx\n", 1, "column 'i': Row #3"),
    "a CSV value under a quoted name": (
        ["cols", "--format", "csv", "--delimiter", ";"],
        b'\xef\xbb\xbf"day";"i"\n;1\n2;3\n',
        1,
        "column 'day': Row #3",
    ),
    "a CSV value without a header": (
        ["cols", "--format", "csv", "--no-header"],
        b"1,\n2,x\n",
        1,
        "column 'day': Row #2",
    ),
    "a CSV day of the year 0": (
        ["cols", "--format", "csv"],
        b"i,day\n1,2013-01-01\n2,0000-12-31\n",
        1,
        "column 'day': Row #3: 0000-12-31 is no day of the years 1 to 9999",
    ),
    "a day of the year 0": (
        ["cols", "--format", "json"],
        b'{"i": 1}\n{"day": "0000-12-31"}\n',
        1,
        "line 2: column 'day' takes date32[day]: 0000-12-31 is no day of the years 1 to 9999",
    ),
    "a CSV row that is short": (["cols", "--format", "csv"], b"i,day\n1\n", 1, "Row #2: Expected 2 columns, got 1"),
    "several of them": (["cols", "--format", "csv"], b"jj,i,kk\n1,2,3\n", 1, "no columns 'jj', 'kk'; its columns are "),
    "an unknown CSV column": (["cols", "--format", "csv"], b"i,jj\n1,2\n", 1, "no column 'jj'"),
    "an object of Python": (
        ["cols", "--format", "json"],
        b"{'i': 1}\n",
        1,
        "in double quotes: line 1 column 2 (char 1)\n",
    ),
    "a CSV with semicolons": (
        ["cols", "--format", "csv"],
        b"i;day\n1;\n",
        1,
        "one column 'i;day'; add --delimiter ';'",
    ),
    "a CSV with tabs": (["cols", "--format", "csv"], b"i\tday\n1\t\n", 1, r"add --delimiter '\t'"),
    "a CSV column twice": (["cols", "--format", "csv"], b"i,i\n1,2\n", 1, "same name"),
    "a bad delimiter": (["cols", "--format", "csv", "--delimiter", "::"], b"i\n1\n", 2, "one character"),
    "a file that is no Parquet": (["cols", "in.csv", "--format", "parquet"], b"", 1, "in.csv"),
}


@pytest.mark.parametrize(("arguments", "stdin", "code", "says"), RAW_CASES.values(), ids=RAW_CASES.keys())
def test_what_cannot_go_into_a_topic_of_plain_values(
    cli: Cli, arguments: list[str], stdin: bytes, code: int, says: str
) -> None:
    with cli.open() as store:
        store.create_topic("raw", max_record_bytes=4096)
    (cli.directory / "packed.csv.gz").write_bytes(gzip.compress(b"value\na\n"))
    assert says in cli.error("push", *arguments, stdin=stdin, code=code)
    assert values(cli, "raw") == []


@pytest.mark.parametrize(("arguments", "stdin", "code", "says"), COLUMN_CASES.values(), ids=COLUMN_CASES.keys())
def test_what_cannot_go_into_a_topic_with_columns(
    cli: Cli, arguments: list[str], stdin: bytes, code: int, says: str
) -> None:
    with cli.open() as store:
        store.create_topic("cols", schema=pa.schema([("i", pa.int32()), ("day", pa.date32())]))
    (cli.directory / "in.csv").write_text("i\n1\n")
    assert says in cli.error("push", *arguments, stdin=stdin, code=code)
    assert records(cli, "cols") == []


def test_a_line_without_end_is_refused_before_it_fills_the_memory(cli: Cli) -> None:
    with cli.open() as store:
        store.create_topic("t", max_record_bytes=1 << 20)
    said = cli.error("push", "t", stdin=b"short\n" + b"x" * (20 << 20))
    assert (
        "standard input, line 2: over 1,048,576 bytes and no end of the line yet; before that, 1 record went in" in said
    )


# --- a person at a terminal ------------------------------------------------------------------------------------------


def test_a_terminal_shows_how_far_it_is_and_a_pipe_does_not(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--sync", "none")
    path: Path = cli.directory / "in"
    path.write_bytes(b"x" * 99 + b"\n" * 1 + (b"y" * 99 + b"\n") * 300_000)
    terminal, theirs = pty.openpty()
    with cli.start("push", "t", path, "--batch-bytes", "256k", stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while select.select([terminal], [], [], 60)[0]:
            try:
                shown += os.read(terminal, 65536)
            except OSError:  # the other end is closed
                break
        out, _ = process.communicate()
    os.close(terminal)
    assert process.returncode == 0
    assert out.startswith(b"300,001 records pushed to t")
    last = shown.decode().split("\r")[-2]
    assert "push t" in last
    assert "rows" in last
    assert "%" in last
    assert shown.endswith(b"\r\x1b[K")


def test_a_csv_with_an_error_ends_the_command_while_more_of_it_comes(cli: Cli) -> None:
    with cli.open() as store:
        store.create_topic("cols", schema=pa.schema([("i", pa.int32()), ("day", pa.date32())]))
    process = cli.start("push", "cols", "--format", "csv", "--no-header", stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    assert process.stderr is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(b"1,\n2,x\n" * 2_000_000)  # pyarrow has read what it looks at, and reads on
        while process.poll() is None:
            process.stdin.write(b"1,\n")
            process.stdin.flush()
    said = process.stderr.read().decode()
    assert (process.wait(), said.count("\n")) == (1, 1), said
    assert "column 'day': Row #2" in said
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.stderr.close()
    assert records(cli, "cols") == []
