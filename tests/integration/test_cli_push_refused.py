"""What `jjq push` cannot push, of every format."""

import gzip

import pyarrow as pa
import pytest

from tests.integration.conftest import Cli
from tests.integration.pushed import records, values

RAW_CASES: dict[str, tuple[list[str], bytes, int, str]] = {
    "no such topic": (["raww"], b"", 1, "did you mean 'raw'"),
    "no such file": (["raw", "nothing.csv"], b"", 1, "No such file"),
    "a value for a file": (["raw", '{"a": 1}'], b"", 1, "values come from the standard input"),
    "a long value for a file": (["raw", "x" * 5000], b"", 1, "cannot read xxx"),
    "a long value for a topic": (["x" * 5000], b"", 2, "cannot name a topic"),
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
    "a header without a value": (["raw", "--header", "source"], b"x\n", 2, "'source' is no header; write NAME=VALUE"),
    "a header without a name": (["raw", "-H", "=web"], b"x\n", 2, "'=web' is no header; write NAME=VALUE"),
    "headers that are too long": (["raw", "-H", f"a={'x' * 5000}"], b"x\n", 1, "the topic takes up to 4,096"),
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
