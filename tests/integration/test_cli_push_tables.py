"""`jjq push` of CSV and Parquet files."""

import contextlib
import datetime as dt
import subprocess

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from jjq.preparing import partition_of
from tests.integration.conftest import Cli
from tests.integration.pushed import COLUMNS, FLAT, ROWS, SCHEMA, records


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
