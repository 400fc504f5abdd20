"""`jjq push`: lines, and what holds for every format. Others are in `test_cli_push_json.py` and `test_cli_push_tables.py`, what
cannot be pushed in `test_cli_push_refused.py`."""

import os
import pty
import re
import select
import signal
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from jjq.cli import main
from jjq.headers import headers_array
from tests.integration.conftest import Cli
from tests.integration.pushed import records, values


def test_a_topic_that_is_missing_says_how_to_make_it(cli: Cli) -> None:
    cli.run("topic", "create", "logs")
    assert "did you mean 'logs'? `jjq topic create lgos` makes it" in cli.error("push", "lgos", code=1)
    assert "; there are logs; `jjq topic create other` makes it" in cli.error("push", "other", code=1)


def test_a_file_before_its_topic_is_told_to_come_after_it(cli: Cli) -> None:
    cli.run("topic", "create", "logs")
    (cli.directory / "in.csv").write_text("value\na\n")
    said = "in.csv is a file, and the topic comes before it: jjq push"
    assert f"; {said} logs in.csv" in cli.error("push", "in.csv", "logs")
    assert f"; {said} TOPIC in.csv" in cli.error("push", "in.csv")
    assert f"; ./{said} logs ./in.csv" in cli.error("push", "./in.csv", "logs", code=2)


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


def test_a_column_gives_the_records_their_time(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--column", "at:timestamp", "--timestamps", "producer")
    line = '{"at": "2013-01-01T12:00:00Z"}\n'
    cli.run("push", "t", "--format", "json", "--timestamp", "at", stdin=line)
    cli.run("push", "t", "--format", "json", "--timestamp", "at", "--atomic", stdin=line)
    assert [each["timestamp"] for each in cli.lines("tail", "t")] == ["2013-01-01T12:00:00.000000Z"] * 2
    assert "no column of" in cli.error("push", "t", "--format", "json", "--timestamp", "when", stdin=line, code=2)


# --- headers ---------------------------------------------------------------------------------------------------------

GIVEN = ("--header", "source=web", "-H", "source=a=b", "--header", "empty=")
HEADERS = [["source", "web"], ["source", "a=b"], ["empty", ""]]


@pytest.mark.parametrize("atomic", [(), ("--atomic",)], ids=["as it comes", "atomic"])
@pytest.mark.parametrize(
    ("format_", "data"),
    [("lines", "a\nb\n"), ("json", '{"k": 1}\n{"k": 2}\n'), ("json", ""), ("csv", "value,key\na,k\nb,\n")],
    ids=["lines", "json", "nothing", "csv"],
)
def test_headers_are_those_of_each_record(cli: Cli, format_: str, data: str, atomic: tuple[str, ...]) -> None:
    cli.run("topic", "create", "t", "--partitions", "2")
    pushed = cli.json("push", "t", "--format", format_, *GIVEN, *atomic, stdin=data)["records"]
    found = cli.lines("tail", "t", "--start", "earliest")
    assert [each["headers"] for each in found] == [HEADERS] * pushed
    assert pushed == (2 if data else 0)


def test_rows_of_columns_have_headers_all_at_once_or_none(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--column", "i:int32")
    push = ("push", "t", "--format", "json", *GIVEN)
    assert "get headers all at once: add --atomic" in cli.error(*push, stdin='{"i": 1}\n', code=2)
    cli.run(*push, "--writer", "w", "--batch", "1", stdin='{"i": 1}\n{"i": 2}\n')
    assert [each["headers"] for each in cli.lines("tail", "t")] == [HEADERS] * 2


@pytest.mark.parametrize("atomic", [(), ("--atomic",)], ids=["as it comes", "atomic"])
def test_headers_that_a_file_has_are_not_replaced(cli: Cli, atomic: tuple[str, ...]) -> None:
    cli.run("topic", "create", "t")
    table = pa.table({"value": [b"a"], "headers": headers_array([[("own", b"1")]])})
    parquet.write_table(table, cli.directory / "in.parquet")
    assert "has a column of headers" in cli.error("push", "t", "in.parquet", *GIVEN, *atomic, code=2)
    cli.run("push", "t", "in.parquet", *atomic)
    assert [each["headers"] for each in cli.lines("tail", "t")] == [[["own", "1"]]]


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
