"""What people write on the command line, as values; and values as people and programs read them."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jjq.cli import arguments, main, output
from jjq.cli.arguments import UsageError
from jjq.cli.care import _share
from jjq.cli.inputs import delimiter_of, format_of
from jjq.cli.progress import Progress
from jjq.errors import InvalidArgument
from jjq.typenames import TYPES, data_type
from jjq.values import size


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("0", 0), ("4096", 4096), ("64k", 65536), ("64KB", 65536), ("64 KiB", 65536), ("1.5MB", 1_572_864),
        ("2g", 2 << 30), ("1 TiB", 1 << 40), ("7b", 7),
    ],
)  # fmt: skip
def test_sizes(text: str, bytes_: int) -> None:
    assert size(text) == bytes_


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5.1", "10 apples", "1e6", "k"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is no size"):
        size(text)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("0", 0), ("17", 17), ("-5", -5), ("earliest", "earliest"), ("-10 minutes", "-10 minutes"),
        ("2013-01-01T00:00:00Z", "2013-01-01T00:00:00Z"), ("0=5,1=latest", {0: 5, 1: "latest"}), ("3=-2", {3: -2}),
        ("0=2013-01-01T00:00:00Z, 1=-1 hour", {0: "2013-01-01T00:00:00Z", 1: "-1 hour"}),
    ],
)  # fmt: skip
def test_starts(text: str, start: object) -> None:
    assert arguments.start(text) == start


@pytest.mark.parametrize("text", ["0=5,latest", "0=5,x=7", "0=1,"])
def test_what_is_no_start_by_partition(text: str) -> None:
    with pytest.raises(InvalidArgument, match="0=5,1=latest"):
        arguments.start(text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("string", pa.string()), ("INT32", pa.int32()), ("long", pa.int64()), ("bytes", pa.binary()),
        ("timestamp", pa.timestamp("us", tz="UTC")), ("timestamp_ntz", pa.timestamp("us")), ("date", pa.date32()), ("date32", pa.date32()),
        ("decimal(10, 2)", pa.decimal128(10, 2)), ("list<list<int8>>", pa.list_(pa.list_(pa.int8()))),
        ("map<string,decimal(5,1)>", pa.map_(pa.string(), pa.decimal128(5, 1))),
        ("struct<Name: string, tags: list<string>, at: struct<x:double>>",
         pa.struct([("Name", pa.string()), ("tags", pa.list_(pa.string())), ("at", pa.struct([("x", pa.float64())]))])),
        ("integer", pa.int32()), ("bigint", pa.int64()), ("tinyint", pa.int8()), ("array<smallint>", pa.list_(pa.int16())),
        ("TIMESTAMP[us, tz=utc]", pa.timestamp("us", tz="UTC")), ("list<element: timestamp[us]>", pa.list_(pa.timestamp("us"))),
    ],
)  # fmt: skip
def test_types(text: str, kind: pa.DataType) -> None:
    assert data_type(text) == kind
    assert arguments.column(f"c:{text}") == pa.field("c", kind)


@pytest.mark.parametrize(
    "text",
    ["", "int33", "list<>", "list<int32", "list<int32,int8>", "map<string>", "decimal(99,1)", "string(1,2)", "int32>",
     "struct<a>", "list<int32>x", "timestamp[ns]", "timestamp[us, tz=Europe/Paris]", "timestamp[us", "int32[us]", "list<a:b:int>", "decimal(2,3)", "decimal(1234567,1)", "list<" * 70 + "int" + ">" * 70, "x" * 70_000],
)  # fmt: skip
def test_what_is_no_type(text: str) -> None:
    with pytest.raises(InvalidArgument, match="type"):
        data_type(text)


STORED = st.recursive(
    st.sampled_from([*TYPES.values(), pa.decimal128(38, 3)]),
    lambda inner: (
        inner.map(pa.list_)
        | st.builds(pa.map_, inner, inner)
        | st.lists(st.tuples(st.from_regex("[A-Za-z]{1,3}", fullmatch=True), inner), min_size=1, max_size=3).map(
            pa.struct
        )
    ),
    max_leaves=6,
)


@given(STORED)
def test_a_type_that_is_shown_can_be_given(kind: pa.DataType) -> None:
    assert data_type(str(kind)) == kind


@pytest.mark.parametrize("text", ["a", "", ":int32", " :int32"])
def test_what_is_no_column(text: str) -> None:
    with pytest.raises(InvalidArgument, match="name:type"):
        arguments.column(text)


@pytest.mark.parametrize(("text", "value"), [("0", 0.0), ("2.5", 2.5), ("none", None), ("NONE", None)])
def test_timeouts(text: str, value: float | None) -> None:
    assert arguments.or_none(arguments.seconds)(text) == value


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "soon", ""])
def test_what_is_no_timeout(text: str) -> None:
    with pytest.raises(InvalidArgument, match="seconds"):
        arguments.seconds(text)


@pytest.mark.parametrize(("text", "value"), [("10%", 0.1), ("0.25", 0.25), ("100%", 1.0)])
def test_shares(text: str, value: float) -> None:
    assert _share(text) == value


@pytest.mark.parametrize("text", ["0", "-1", "101%", "1.5", "many", "nan"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is no share"):
        _share(text)


def test_the_end_of_a_files_name_tells_its_format(tmp_path: Any) -> None:
    names = {"a.csv": "csv", "a.TSV": "csv", "a.jsonl": "json", "a.parquet": "parquet", "a.log": "lines", "a": "lines"}
    assert {name: format_of(tmp_path / name, None) for name in names} == names
    assert format_of(tmp_path / "a.csv", "lines") == "lines"
    assert format_of(None, None) == "lines"
    assert (delimiter_of(tmp_path / "a.tsv", None), delimiter_of(None, "\\t"), delimiter_of(None, None)) == (
        "\t",
        "\t",
        ",",
    )
    with pytest.raises(UsageError, match="one character"):
        delimiter_of(None, "::")


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bytes_", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1 << 20, "1.0 MiB"), (5 << 40, "5.0 TiB"), (None, "-")]
)  # fmt: skip
def test_sizes_are_readable(bytes_: int | None, text: str) -> None:
    assert output.size(bytes_) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.25, "0.2 s"), (30, "30 s"), (150, "2 min"), (7300, "2 h"), (86_400 * 7, "7 d"), (None, "-")],
)  # fmt: skip
def test_lengths_of_time_are_readable(seconds: float | None, text: str) -> None:
    assert output.span(seconds) == text


def test_tables_are_aligned_and_do_nothing_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("NAME", "COUNT"), [("a", "1,234"), ("long\x1b[31m\nname", "7"), (None, "-")])
    assert capsys.readouterr().out.splitlines() == [
        "NAME                COUNT",
        "a                   1,234",
        "long\\x1b[31m\\nname      7",
        "-                       -",
    ]
    output.table(("NAME",), [])
    assert capsys.readouterr().out == ""


def test_values_that_json_has_no_word_for() -> None:
    value = {
        "bytes": b"text", "other bytes": b"\xff", "time": dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC),
        "local": dt.datetime.fromisoformat("2013-01-01T05:00:00.000001"), "date": dt.date(2013, 1, 1), "length": dt.timedelta(seconds=1.5),
        "decimal": Decimal("1.20"), "nan": float("nan"), "list": [b"a", None], "map": [("k", 1)],
    }  # fmt: skip
    assert output.jsonable(value) == {
        "bytes": "text", "other bytes": {"base64": "/w=="}, "time": "2013-01-01T05:00:00Z",
        "local": "2013-01-01T05:00:00.000001", "date": "2013-01-01", "length": 1_500_000, "decimal": "1.20", "nan": "nan",
        "list": ["a", None], "map": [["k", 1]],
    }  # fmt: skip


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.binary() | st.text() | st.integers(), st.lists))
def test_anything_becomes_json(value: Any) -> None:
    json.loads(json.dumps(output.jsonable(value), allow_nan=False))


def test_a_progress_line_says_how_far_how_fast_and_how_long() -> None:
    line = Progress("push t", 1000).line(250, 50, spent_s=2.0)
    assert line == "push t   25% [#####...............]  250 B, 125 B/s  50 rows, 25/s  6.0 s left"
    assert Progress("push t").line(2048, 10, spent_s=2.0) == "push t  2.0 KiB, 1.0 KiB/s  10 rows, 5/s"


@pytest.mark.parametrize("command", ["topic alter", "channel alter"])
def test_the_help_of_alter_names_no_defaults_as_what_is_not_given_stays(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    said = " ".join(capsys.readouterr().out.split("--json", 2)[-1].split())
    assert "(default" not in said


@pytest.mark.parametrize("command", ["serve", "check", "bench", "repair", "token create", "token list"])
def test_the_help_of_a_command_that_asks_no_broker_names_none(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    assert "--broker URL" not in capsys.readouterr().out
    needed = ["x", "--read", "*"] if command == "token create" else []
    assert main([*command.split(), *needed, "--broker", "jjq://x:1"]) == 2
    assert "this needs the store's directory" in capsys.readouterr().err
