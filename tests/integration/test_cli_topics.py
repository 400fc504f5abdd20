"""`jjq topic`, `segment`, `writer`, `verify`, `repair`, `maintain`, and how every command is called."""

import datetime as dt
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.integration.conftest import Cli

EVERY_TYPE = {
    "a": "string", "b": "binary", "c": "bool", "d": "int8", "e": "int16", "f": "int32", "g": "int64", "h": "float",
    "i": "double", "j": "date", "k": "timestamp", "l": "timestamp_ntz", "m": "duration", "n": "decimal(10,2)",
    "o": "list<int32>", "p": "map<string,int64>", "q": "struct<x:int32,y:list<string>>",
}  # fmt: skip


# --- how it is called ------------------------------------------------------------------------------------------------


@pytest.mark.embedded
def test_the_version_is_the_distributions(cli: Cli) -> None:
    assert cli.text("--version", fresh=True) == f"jjq {importlib.metadata.version('jjq')}\n"


@pytest.mark.embedded
def test_with_an_unknown_command_it_says_how_to_get_help_and_bare_it_shows_it(cli: Cli) -> None:
    for arguments in (("tpic",), ("topic", "creat", "t"), ("topic", "list", "--jsn")):
        assert "--help`" in cli.error(*arguments, code=2)
    bare = cli.run(code=2, fresh=True)
    assert (bare.stdout, "topics and records:" in bare.stderr) == ("", True)


@pytest.mark.parametrize(
    "arguments",
    [("topic", "list"), ("subscriber", "list"), ("channel", "list"), ("writer", "list"),
     ("subscriber", "list", "--topic", "t"), ("channel", "list", "--topic", "t")],
    ids=" ".join,
)  # fmt: skip
def test_a_list_of_nothing_says_so_where_errors_go(cli: Cli, arguments: tuple[str, ...]) -> None:
    with cli.open() as store:
        if "t" in arguments:
            store.create_topic("t")
    of = " of topic t" if "t" in arguments else ""
    assert _said(cli, *arguments) == ("", f"there are no {arguments[0]}s{of} yet")
    assert cli.json(*arguments) == []


@pytest.mark.embedded
def test_so_does_a_list_of_no_tokens(cli: Cli) -> None:
    with cli.open():
        pass
    assert _said(cli, "token", "list") == ("", "there are no tokens yet")
    assert cli.json("token", "list") == []


@pytest.mark.embedded
def test_a_token_that_was_rotated_shows_how_long_the_old_one_is_good(cli: Cli) -> None:
    cli.text("token", "create", "a", "--read", "*")
    cli.text("token", "create", "b", "--read", "*")
    cli.text("token", "rotate", "a")
    cli.text("token", "rotate", "b", "--keep", "none")
    head, *rows = cli.text("token", "list").splitlines()
    assert head.endswith("OLD ONE UNTIL")
    until = {each["name"]: each["previous_until"] for each in cli.json("token", "list")}
    assert until["b"] is None
    assert [row.split()[-1] for row in rows] == [until["a"], "-"]


def _said(cli: Cli, *arguments: str) -> tuple[str, str]:
    """What it prints, and how its line on the standard error begins."""
    done = cli.run(*arguments, said=True)
    return done.stdout, done.stderr.split(";")[0]


def test_with_json_errors_are_json_whatever_is_wrong(cli: Cli) -> None:
    for arguments in (("--json", "tpic"), ("topic", "create", "t", "--partitions", "x", "--json"), ("tail", "--json")):
        said = json.loads(cli.run(*arguments, code=2).stderr)["error"]
        assert said["code"] == "usage"
        assert "--help`" in said["message"]


def test_output_that_cannot_be_written_is_no_fault_of_jjq(cli: Cli) -> None:
    cli.run("topic", "create", "t")
    cli.run("push", "t", stdin="x\n" * 100_000)
    with Path("/dev/full").open("wb") as full:
        process = cli.start("tail", "t", "--start", "earliest", stdout=full)
        _, said = process.communicate()
    assert (process.returncode, said) == (1, b"jjq: cannot read or write: No space left on device\n")


def test_times_in_json_are_iso(cli: Cli) -> None:
    made = cli.json("topic", "create", "t")["created_at"]
    assert dt.datetime.fromisoformat(made).tzinfo is not None
    assert cli.json("topic", "describe", "t")["created_at"] == cli.json("topic", "list")[0]["created_at"] == made
    assert cli.json("stats")["at"] > made


@pytest.mark.embedded
def test_every_command_has_help(cli: Cli) -> None:
    assert "subscriber" in cli.text("--help", fresh=True)
    assert "examples:" in cli.text("topic", "create", "--help", fresh=True)


@pytest.mark.embedded
def test_the_store_is_an_option_before_or_after_the_command_or_the_environment_or_a_default(cli: Cli) -> None:
    cli.run("topic", "create", "in-environment")
    cli.run("topic", "create", "in-option", "--store", cli.directory / "other")
    assert [each["name"] for each in cli.json("--store", cli.directory / "other", "topic", "list")] == ["in-option"]
    assert [each["name"] for each in cli.json("topic", "list")] == ["in-environment"]
    del cli.environment["JJQ_STORE"]
    cli.run("topic", "create", "in-default")
    assert (cli.directory / "jjq-data" / "jjq.json").exists()
    assert [each["name"] for each in cli.json("topic", "list")] == ["in-default"]


@pytest.mark.embedded
def test_only_creating_a_topic_makes_a_store(cli: Cli) -> None:
    for arguments in (
        ("topic", "list"), ("topic", "describe", "t"), ("push", "t"), ("tail", "t"), ("pop", "s"), ("peek", "s"),
        ("subscriber", "list"), ("subscriber", "create", "t"), ("segment", "list", "t"), ("writer", "list"), ("verify",),
        ("maintain",), ("repair",),
    ):  # fmt: skip
        assert "there is no store at" in cli.error(*arguments)
    assert not cli.store.exists()


@pytest.mark.embedded
def test_a_directory_of_something_else_is_no_store(cli: Cli) -> None:
    (cli.store).mkdir()
    (cli.store / "thesis.tex").write_text("x")
    assert "something else" in cli.error("topic", "create", "t")


def test_errors_are_json_too_where_answers_are(cli: Cli) -> None:
    cli.run("topic", "create", "flights")
    done = cli.run("topic", "describe", "flihgts", "--json", code=1)
    assert done.stdout == ""
    where = cli.store if "JJQ_STORE" in cli.environment else "the store"  # of which a broker does not say where it is
    assert json.loads(done.stderr) == {
        "error": {
            "code": "topic_not_found",
            "message": f"there is no topic 'flihgts' in {where}; did you mean 'flights'?",
        }
    }


def test_starting_imports_neither_pandas_nor_spark(cli: Cli) -> None:
    cli.run("topic", "create", "t")
    code = (
        "import sys; from jjq.cli import main; main(sys.argv[1:]); "
        "sys.exit(' '.join(m for m in ('pandas', 'pyspark', 'duckdb', 'polars', 'pyarrow.parquet') if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "topic", "list"], env=cli.environment, capture_output=True, text=True
    )
    assert done.stderr == "\n"


# --- topics ----------------------------------------------------------------------------------------------------------


def test_a_topic_with_every_type_of_column(cli: Cli) -> None:
    columns = [part for name, kind in EVERY_TYPE.items() for part in ("--column", f"{name}:{kind}")]
    made = cli.json("topic", "create", "t", "--partitions", "3", *columns)
    assert list(made["schema"]) == list(EVERY_TYPE)
    with cli.open() as store:
        schema = store.topic("t").schema
        assert schema.field("n").type == pa.decimal128(10, 2)
        assert schema.field("p").type == pa.map_(pa.string(), pa.int64())
        assert schema.field("q").type == pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
        assert store.topic("t").partitions == 3


@pytest.mark.embedded
def test_a_column_that_is_none_is_refused_before_anything_happens(cli: Cli) -> None:
    assert "write name:type" in cli.error("topic", "create", "t", "--column", "a", code=2)
    assert not cli.store.exists()


def test_settings_are_taken_with_units_and_shown(cli: Cli) -> None:
    made = cli.json(
        "topic", "create", "t", "--sync", "interval", "--sync-interval-ms", "250", "--segment-bytes", "1.5MB",
        "--segment-rows", "1000", "--segment-age", "1 hour", "--retention", "7 days", "--retention-bytes", "2 GiB",
        "--timestamps", "producer", "--compression", "zstd", "--max-record-bytes", "64k", "--max-batch-bytes", "1M",
    )  # fmt: skip
    expected = {
        "sync": "interval", "sync_interval_ms": 250, "segment_bytes": 1_572_864, "segment_rows": 1000,
        "segment_age_us": 3_600_000_000, "retention_us": 604_800_000_000, "retention_bytes": 2 << 30,
        "timestamps": "producer", "compression": "zstd", "max_record_bytes": 65536, "max_batch_bytes": 1 << 20,
    }  # fmt: skip
    assert made["config"] | expected == made["config"]
    shown = cli.text("topic", "describe", "t")
    for part in ("interval 250 ms", "7 d or 2.0 GiB a partition", "zstd", "1.5 MiB or 1,000 records", "producer"):
        assert part in shown
    assert "7 d or 2.0 GiB" in cli.text("topic", "list")


def test_a_topic_is_described_with_its_subscribers_and_channels(cli: Cli) -> None:
    """Both go with it when it is deleted."""
    cli.text("topic", "create", "t")
    cli.text("subscriber", "create", "t", "audit")
    cli.text("channel", "create", "t", "work")
    cli.text("channel", "create", "t", "mail")
    found = cli.json("topic", "describe", "t")
    assert (found["subscribers"], found["channels"]) == (["audit"], ["mail", "work"])
    assert "\nchannels     mail, work\n" in cli.text("topic", "describe", "t")


def test_retention_by_segments_and_whom_it_waits_for(cli: Cli) -> None:
    made = cli.json("topic", "create", "t", "--retention-segments", "5", "--retention-waits", "billing, audit")
    assert (made["config"]["retention_segments"], made["config"]["retention_waits"]) == (5, ["billing", "audit"])
    for command in ("describe", "list"):
        kept = "5 segments a partition, and until read by billing, audit"
        assert kept in cli.text("topic", command, *(["t"] if command == "describe" else []))
    assert "5 segments a partition" in cli.text("topic", "list")
    for given, waits in (("all", True), ("none", False)):
        assert cli.json("topic", "alter", "t", "--retention-waits", given)["config"]["retention_waits"] is waits
    altered = cli.json("topic", "alter", "t", "--retention-segments", "none")
    assert altered["config"]["retention_segments"] is None
    cli.error("topic", "alter", "t", "--retention-waits", "no name!", code=2)


def test_altering_changes_settings_and_adds_columns(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--column", "a:int32", "--retention", "7 days", "--compression", "lz4")
    altered = cli.json(
        "topic", "alter", "t", "--retention", "none", "--compression", "none", "--add-column", "b:string"
    )
    assert (altered["config"]["retention_us"], altered["config"]["compression"]) == (None, None)
    assert altered["schema"] == {"a": "int32", "b": "string"}
    assert "cannot become" in cli.error("topic", "alter", "t", "--add-column", "a:string")
    assert "nothing to alter" in cli.error("topic", "alter", "t", code=2)


def test_altering_a_topic_to_what_it_is_says_that_nothing_was_changed(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--column", "a:int32", "--retention", "7 days", "--retention-waits", "all")
    same = "topic t is so already, nothing was changed: 1 partition, a int32; "
    for given in (
        ("--add-column", "a:int32"), ("--retention", "7 days"), ("--partitions", "1"), ("--compression", "none"),
        ("--retention-waits", "all"), ("--add-column", "a:int32", "--sync", "always"),
    ):  # fmt: skip
        assert cli.text("topic", "alter", "t", *given).startswith(same), given
    for given in (("--add-column", "a:int32", "--add-column", "b:string"), ("--retention", "none")):
        assert cli.text("topic", "alter", "t", *given).startswith("topic t altered: 1 partition, a int32, b string; ")
    assert "cannot become" in cli.error("topic", "alter", "t", "--add-column", "a:int64")


def test_partitions_are_added_and_never_taken_away(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--partitions", "2")
    cli.run("subscriber", "create", "t", "s", "--start", "latest")
    altered = cli.json("topic", "alter", "t", "--partitions", "4", "--retention", "1 day")
    assert (len(altered["partitions"]), altered["config"]["retention_us"]) == (4, 86_400_000_000)
    assert "topic t altered: 5 partitions, plain values; " in cli.text("topic", "alter", "t", "--partitions", "5")
    assert "; sync always, kept 7 d\n" in cli.text("topic", "alter", "t", "--retention", "7 days")
    assert "has 5 partitions and cannot have fewer" in cli.error("topic", "alter", "t", "--partitions", "3", code=2)
    cli.error("topic", "alter", "t", "--partitions", "0", code=2)
    cli.run("push", "t", "--partition", "3", stdin="new\n")
    assert cli.json("pop", "s")["value"] == "new"
    assert cli.run("verify").returncode == 0


def test_columns_come_from_a_file_and_can_be_overruled(cli: Cli) -> None:
    table = pa.table({"n": pa.array([1], pa.int16()), "s": ["x"], "u": pa.array([1], pa.uint8())})
    parquet.write_table(table, cli.directory / "f.parquet")
    (cli.directory / "f.csv").write_text("n,s,nothing\n1,x,\n")
    (cli.directory / "f.jsonl").write_text('{"n": 1, "s": {"a": [1.5]}}\n')
    assert "which Spark cannot read; use int16" in cli.error("topic", "create", "p", "--schema-from", "f.parquet")
    made = cli.json("topic", "create", "p", "--schema-from", "f.parquet", "--column", "u:int32", "--column", "z:date")
    assert made["schema"] == {"n": "int16", "s": "string", "u": "int32", "z": "date32[day]"}
    assert "add --column nothing:TYPE" in cli.error("topic", "create", "c", "--schema-from", "f.csv", code=2)
    made = cli.json("topic", "create", "c", "--schema-from", "f.csv", "--column", "nothing:double")
    assert made["schema"] == {"n": "int64", "s": "string", "nothing": "double"}
    made = cli.json("topic", "create", "j", "--schema-from", "f.jsonl")
    assert made["schema"] == {"n": "int64", "s": "struct<a: list<item: double>>"}
    times = (
        '{"at": "2013-01-01T10:00:00Z", "wall": "2013-01-01", "l": ["2013-01-01T10:00:00+01:00"], "r": {"at": null}}\n'
    )
    (cli.directory / "t.jsonl").write_text(times + '{"r": {"at": "2013-01-01T10:00:00Z"}, "at": null}\n')
    made = cli.json("topic", "create", "times", "--schema-from", "t.jsonl")
    zone = "timestamp[us, tz=UTC]"
    assert made["schema"] == {
        "at": zone,
        "wall": "timestamp[us]",
        "l": f"list<item: {zone}>",
        "r": f"struct<at: {zone}>",
    }
    assert cli.json("push", "times", "t.jsonl")["records"] == 2
    (cli.directory / "mixed.jsonl").write_text('{"at": "2013-01-01T10:00:00Z"}\n{"at": "2013-01-01T10:00:00"}\n')
    assert cli.json("topic", "create", "mixed", "--schema-from", "mixed.jsonl")["schema"] == {"at": "string"}
    for text, line in (('[{"n": 1},{"n": 2}]', 1), ('\n[\n{"n": 1}]', 2), ("null\n", 1), ('{"n": 1}\nnull\n', 2)):
        (cli.directory / "a.json").write_text(text)
        said = cli.error("topic", "create", "x", "--schema-from", "a.json")
        assert f"a.json, line {line} is no JSON object: JSON lines are wanted, one object a line" in said
    for name, code in (("missing.csv", 1), (".", 1), ("f.xls", 1)):
        cli.error("topic", "create", "x", "--schema-from", name, code=code)
    (cli.directory / "bad.parquet").write_text("not parquet")
    assert "bad.parquet" in cli.error("topic", "create", "x", "--schema-from", "bad.parquet")
    (cli.directory / "f.txt").write_text("x")
    assert "columns are taken from" in cli.error("topic", "create", "x", "--schema-from", "f.txt", code=2)


def test_a_topic_is_made_once_unless_that_is_fine(cli: Cli) -> None:
    cli.run("topic", "create", "t")
    assert "--exist-ok" in cli.error("topic", "create", "t")
    assert "is there already: 1 partition" in cli.text("topic", "create", "t", "--partitions", "1", "--exist-ok")


def test_what_destroys_asks_first(cli: Cli) -> None:
    cli.run("topic", "create", "t")
    cli.run("push", "t", stdin="a\nb\n")
    cli.run("subscriber", "create", "t", "s")
    cli.run("channel", "create", "t", "c")
    assert "2 records, which will be gone. Nothing was changed; add --yes" in cli.error("topic", "empty", "t", code=2)
    assert "2 records, 1 subscriber and 1 channel, which will be gone" in cli.error("topic", "delete", "t", code=2)
    assert "add --yes" in cli.error("subscriber", "delete", "s", code=2)
    assert cli.json("topic", "describe", "t")["records"] == 2
    assert cli.json("topic", "empty", "t", "--yes") == {"topic": "t", "records": 2}
    assert cli.json("topic", "describe", "t")["partitions"][0]["start"] == 2
    assert cli.run("pop", "s", code=4).stdout == ""
    assert cli.json("topic", "delete", "t", "-y") == {
        "topic": "t",
        "records": 0,
        "subscribers": ["s"],
        "channels": ["c"],
    }
    assert cli.json("topic", "list") == cli.json("subscriber", "list") == []


def test_a_damaged_topic_is_deleted_though_its_records_cannot_be_counted(cli: Cli) -> None:
    cli.run("topic", "create", "t")
    cli.run("push", "t", stdin="a\nb\n")
    next(cli.store.glob("topics/*/0/*.index")).unlink()
    assert "run `jjq repair`" in cli.error("topic", "empty", "t", "--yes")
    assert "has damaged records, which nobody can count, 0 subscribers and 0 channels" in cli.error(
        "topic", "delete", "t", code=2
    )
    assert cli.json("topic", "delete", "t", "--yes") == {
        "topic": "t",
        "records": None,
        "subscribers": [],
        "channels": [],
    }
    assert cli.json("topic", "list") == []


def test_a_bad_name_is_refused(cli: Cli) -> None:
    for name in ("", "../x"):
        assert "cannot name a topic" in cli.error("topic", "create", name, code=2)


# --- segments, writers -----------------------------------------------------------------------------------------------


@pytest.mark.embedded  # a broker maintains its store by itself, whenever it likes
def test_segments_are_listed_and_shown_with_their_neighbours(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--segment-rows", "2", "--partitions", "2")
    for value in "abcde":
        cli.run("push", "t", "--partition", "1", stdin=value)
    found = cli.json("segment", "list", "t")
    assert [(each["partition"], each["start"], each["end"], each["state"]) for each in found] == [
        (1, 0, 2, "rolled"), (1, 2, 4, "rolled"), (1, 4, 5, "active"),
    ]  # fmt: skip
    assert cli.json("segment", "list", "t", "--partition", "0") == []
    for each in found:
        times = [dt.datetime.fromisoformat(each[name]) for name in ("min_timestamp", "max_timestamp", "appended_at")]
        assert times == sorted(times)
        assert all(time.tzinfo is not None for time in times)
        assert (times[0] == times[1]) == (each["end"] - each["start"] == 1)
    assert len(cli.text("segment", "list", "t").splitlines()) == 4
    middle = cli.json("segment", "show", found[1]["id"])
    assert middle == found[1]
    assert (middle["previous"], middle["next"]) == (found[0]["id"], found[2]["id"])
    shown = cli.text("segment", "show", found[1]["id"][:12], "--topic", "t")
    for part in ("2 to 3", middle["path"], middle["checksum"], found[0]["id"]):
        assert part in shown
    assert "no segment begins with 'zz'" in cli.error("segment", "show", "zz")
    assert "write more of it" in cli.error("segment", "show", "", code=2)
    assert "partitions 0 to 1" in cli.error("segment", "list", "t", "--partition", "2", code=2)


def test_writers_are_listed_and_reset(cli: Cli) -> None:
    cli.run("topic", "create", "t")
    cli.run("push", "t", "--writer", "loader", "--batch", "7", stdin="a\n")
    (writer,) = cli.json("writer", "list")
    assert (writer["id"], writer["last_batch"]) == ("loader", 7)
    assert "loader" in cli.text("writer", "list")
    assert "add --yes" in cli.error("writer", "reset", "loader", code=2)
    assert "did you mean 'loader'" in cli.error("writer", "reset", "loaded", "--yes")
    assert "it had committed up to batch 7" in cli.text("writer", "reset", "loader", "--yes")
    assert cli.json("writer", "list") == []


# --- care ------------------------------------------------------------------------------------------------------------


@pytest.mark.embedded
def test_a_whole_store_verifies_and_a_damaged_one_does_not_until_it_is_repaired(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--segment-rows", "10")
    for start in range(0, 40, 10):
        cli.run("push", "t", stdin="".join(f"{i}\n" for i in range(start, start + 10)))
    assert cli.json("maintain")["errors"] == []
    report = cli.json("verify")
    assert (report["ok"], report["records"], report["problems"]) == (True, 40, [])
    assert "whole" in cli.text("verify", "--sample", "50%")
    assert "is no share" in cli.error("verify", "--sample", "101%", code=2)
    path = next(cli.store.glob("topics/*/0/*.arrow"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    done = cli.run("verify", "--json", code=3)
    assert json.loads(done.stdout)["ok"] is False
    assert "repair" in cli.run("verify", code=3).stdout
    assert str(path) in cli.run("tail", "t", "--start", "earliest", code=1).stderr
    repaired = cli.run("repair", "--json", code=3)
    lost = json.loads(repaired.stdout)["lost"]
    assert lost
    assert cli.json("verify")["ok"] is True
    assert cli.run("repair").returncode == 0


@pytest.mark.embedded  # a broker maintains its store by itself, whenever it likes
def test_maintenance_says_what_it_did(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--segment-rows", "1")
    for value in "abc":
        cli.run("push", "t", stdin=value)
    assert "compacted" in cli.text("maintain")
    assert cli.text("tail", "t") == "a\nb\nc\n"
    cli.run("topic", "alter", "t", "--retention-segments", "1", "--retention-waits", "all")
    cli.run("subscriber", "create", "t", "slow")
    for value in "de":
        cli.run("push", "t", stdin=value)
    assert "retention of t partition 0: 2 segments past the retention wait for subscriber slow" in cli.text("maintain")
