"""`jjq tail`, `pop`, `peek` and `subscriber`."""

import json
import signal
import subprocess
from datetime import timedelta

import pyarrow as pa
import pytest

from jjq.clock import now_us
from tests.integration.conftest import Cli
from tests.stores import flip, paths


@pytest.fixture
def flights(cli: Cli) -> Cli:
    """A topic `t` of two partitions that take turns: 0 to 19, one millisecond apart, and a subscriber `s` of it."""
    with cli.open() as store:
        schema = pa.schema([("n", pa.int32()), ("name", pa.string())])
        topic = store.create_topic("t", partitions=2, schema=schema, timestamps="producer")
        for n in range(20):
            at = 1_700_000_000_000_000 + n * 1000
            topic.push({"n": n, "name": f"record {n}"}, partition=n % 2, key=f"k{n}", timestamp=at)
        store.create_subscriber("t", "s")
    return cli


def numbers(cli: Cli, *arguments: str) -> list[int]:
    return [record["value"]["n"] for record in cli.lines("tail", "t", *arguments)]


# --- tail ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], range(10, 20)),
        (["-n", "3"], range(17, 20)),
        (["-n", "500"], range(20)),
        (["--start", "earliest"], range(20)),
        (["--start", "earliest", "-n", "4"], range(4)),
        (["--start", "8"], range(16, 20)),
        (["--start", "-2"], range(16, 20)),
        (["--start", "0=9,1=latest"], [18]),
        (["--start", "2023-11-14T22:13:20.015Z"], range(15, 20)),
        (["--start", "latest"], []),
        (["--start", "earliest", "--end", "2"], range(4)),
        (["--start", "1", "--end", "2023-11-14T22:13:20.005Z"], range(2, 5)),
        (["--end", "5", "-n", "2"], range(8, 10)),
        (["--partition", "1", "-n", "3"], [15, 17, 19]),
        (["--start", "5", "--end", "-9"], []),
    ],
)
def test_tail_shows_the_last_or_what_lies_between(flights: Cli, arguments: list[str], expected: range) -> None:
    assert numbers(flights, *arguments) == list(expected)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "topic t has no records to show; --follow waits for new ones"),
        (["--partition", "1"], "topic t has no records to show in partition 1; --follow waits for new ones"),
        (["--start", "earliest"], "topic t has no records to show there; `jjq topic describe t` says where they are"),
        (["--on-data-loss", "skip"], "topic t has no records to show; --follow waits for new ones"),
        (["--json"], ""),
        (["--output", "json"], ""),
    ],
    ids=" ".join,
)
def test_tail_says_that_there_is_nothing_to_show_and_to_a_program_nothing(
    cli: Cli, arguments: list[str], said: str
) -> None:
    cli.run("topic", "create", "t", "--partitions", "2")
    done = cli.run("tail", "t", *arguments, said=bool(said))
    assert (done.stdout, done.stderr) == ("", f"jjq: {said}\n" if said else "")


@pytest.mark.parametrize("start", [[], ["--start", "0"]])
def test_tail_shows_no_fewer_than_none(flights: Cli, start: list[str]) -> None:
    assert "-5 is too few; at least 0" in flights.run("tail", "t", "-n", "-5", *start, code=2).stderr


def test_records_come_as_lines_json_or_a_table(flights: Cli) -> None:
    assert flights.text("tail", "t", "-n", "1") == '{"n":19,"name":"record 19"}\n'
    assert flights.lines("tail", "t", "-n", "1") == [
        {
            "topic": "t", "partition": 1, "offset": 9, "timestamp": "2023-11-14T22:13:20.019000Z", "key": "k19",
            "headers": None, "value": {"n": 19, "name": "record 19"},
        }
    ]  # fmt: skip
    assert flights.text("tail", "t", "-n", "2", "--output", "table", "--columns", "name,n").splitlines() == [
        "PARTITION  OFFSET  TIMESTAMP                    KEY  NAME       N",
        "0          9       2023-11-14T22:13:20.018000Z  k18  record 18  18",
        "1          9       2023-11-14T22:13:20.019000Z  k19  record 19  19",
    ]
    assert flights.text("tail", "t", "-n", "1", "--columns", "n") == '{"n":19}\n'


def test_a_table_of_values_keeps_each_on_its_line(cli: Cli) -> None:
    cli.run("topic", "create", "t")
    with cli.open() as store:
        store.topic("t").push_many([b"\x1b[2J\nx", None, b"\xff", b"y" * 200])
    lines = cli.text("tail", "t", "-o", "table").splitlines()
    assert len(lines) == 5
    assert "\\x1b[2J\\nx" in lines[1]
    assert lines[2].endswith("-")
    assert "base64" in lines[3]
    assert lines[4].endswith("y…")
    assert [each["value"] for each in cli.lines("tail", "t")][:3] == ["\x1b[2J\nx", None, {"base64": "/w=="}]


def test_headers_are_shown(cli: Cli) -> None:
    with cli.open() as store:
        store.create_topic("t").push(b"v", headers=[("a", b"1"), ("a", None)])
    assert cli.lines("tail", "t")[0]["headers"] == [["a", "1"], ["a", None]]


def test_follow_shows_what_was_and_then_each_new_record(flights: Cli) -> None:
    with flights.start("tail", "t", "-n", "2", "--follow", "--columns", "n") as process:
        assert [json.loads(process.stdout.readline()) for _ in range(2)] == [{"n": 18}, {"n": 19}]
        with flights.open() as store:
            topic = store.topic("t")
            for n in range(20, 25):
                topic.push({"n": n}, partition=n % 2)
                assert json.loads(process.stdout.readline()) == {"n": n}
            store.alter_topic("t", add_columns=pa.schema([("gate", pa.string())]))
            topic.push({"n": 25, "gate": "B"})
            assert json.loads(process.stdout.readline()) == {"n": 25}
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, b"", b"")


def test_follow_takes_in_partitions_that_are_added(flights: Cli) -> None:
    with flights.start("tail", "t", "-n", "1", "--follow", "--json") as process, flights.open() as store:
        assert json.loads(process.stdout.readline())["value"]["n"] == 19
        topic = store.topic("t")
        n = 20
        for partitions in (3, 4, 7):
            grown = store.alter_topic("t", partitions=partitions)
            # The newest first: nothing but the growth itself tells of it. And then those that were followed before.
            for partition in reversed(range(partitions)):
                grown.push({"n": n}, partition=partition)
                record = json.loads(process.stdout.readline())
                assert (record["value"]["n"], record["partition"]) == (n, partition)
                n += 1
        # At once, without a line of it being read in between: each partition from its first record.
        store.alter_topic("t", partitions=12)
        for offset in range(50):
            topic.push_many([{"n": n + i} for i in range(5)], partition=7 + offset % 5)
            n += 5
        records = [json.loads(process.stdout.readline()) for _ in range(250)]
        assert sorted(record["value"]["n"] for record in records) == list(range(n - 250, n))
        for partition in range(7, 12):
            offsets = [record["offset"] for record in records if record["partition"] == partition]
            assert offsets == list(range(50))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, b"", b"")


def test_follow_of_one_partition_takes_no_others_in(flights: Cli) -> None:
    with flights.start("tail", "t", "--partition", "1", "-n", "1", "-f", "--json") as process, flights.open() as store:
        assert json.loads(process.stdout.readline())["partition"] == 1
        topic = store.alter_topic("t", partitions=3)
        topic.push({"n": 20}, partition=2)
        topic.push({"n": 21}, partition=1)
        assert json.loads(process.stdout.readline())["value"]["n"] == 21
        process.send_signal(signal.SIGINT)
        process.communicate()


def test_follow_ends_after_so_many_when_it_has_a_start(flights: Cli) -> None:
    with flights.start("tail", "t", "--start", "9", "-n", "3", "-f", "--json") as process:
        assert [json.loads(process.stdout.readline())["value"]["n"] for _ in range(2)] == [18, 19]
        with flights.open() as store:
            store.topic("t").push({"n": 20})
            store.topic("t").push({"n": 21})
        out, err = process.communicate()
    assert [json.loads(line)["value"]["n"] for line in out.splitlines()] == [20]
    assert (process.returncode, err) == (0, b"")


def test_follow_of_one_partition(flights: Cli) -> None:
    with flights.start("tail", "t", "--partition", "1", "--start", "9", "-n", "2", "-f") as process:
        assert json.loads(process.stdout.readline())["n"] == 19
        with flights.open() as store:
            store.topic("t").push({"n": 20}, partition=0)
            store.topic("t").push({"n": 21}, partition=1)
        assert json.loads(process.stdout.readline())["n"] == 21
        assert process.wait() == 0


def test_follow_ends_with_an_error_when_the_topic_is_deleted(flights: Cli) -> None:
    with flights.start("tail", "t", "-n", "1", "-f") as process:
        assert process.stdout.readline()
        flights.run("topic", "delete", "t", "--yes")
        out, err = process.communicate()
    assert (process.returncode, out) == (1, b"")
    assert b"was deleted" in err
    assert len(err.splitlines()) == 1


def test_a_reader_that_has_enough_is_no_error(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--sync", "none")
    cli.run("push", "t", stdin=b"".join(b"%099d\n" % i for i in range(20_000)))
    for arguments in (["--start", "earliest"], ["--start", "earliest", "--json"], ["--start", "0", "-o", "table"]):
        with (
            cli.start("tail", "t", *arguments) as tail,
            subprocess.Popen(["head", "-n", "2"], stdin=tail.stdout, stdout=subprocess.PIPE) as head,
        ):
            tail.stdout.close()
            assert len(head.communicate()[0].splitlines()) == 2
            assert tail.stderr.read() == b""
            assert tail.wait() == 141


def test_what_expired_is_an_error_that_says_where_it_begins(cli: Cli) -> None:
    with cli.open() as store:
        topic = store.create_topic("t", segment_rows=2)
        for i in range(7):
            topic.push(b"%d" % i)
        store.create_subscriber("t", "s")
        store.catalog.advance_start(topic.id, 0, 4, [], now_us())
    said = cli.error("tail", "t", "--start", "1")
    assert (
        "offset 1 was asked for, the earliest left is 4; 3 records are gone; add --start earliest, or --on-data" in said
    )
    assert cli.text("tail", "t", "--start", "earliest") == "4\n5\n6\n"
    assert "the earliest left is 4; 4 records are gone; `jjq subscriber seek s 0=4` goes on from there" in cli.error(
        "pop", "s"
    )
    (listed,) = cli.json("subscriber", "list")
    assert (listed["records"], listed["lost"]) == (3, 4)
    cli.run("subscriber", "seek", "s", "earliest")
    assert cli.text("pop", "s") == "4\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["tt"], 1, "did you mean 't'"),
        (["t", "--start", "99"], 2, "beyond the end"),
        (["t", "--start", "nonsense"], 2, "an ISO-8601 time with a zone ('2013-01-01T10:00:00Z') or '-10 minutes'\n"),
        (["t", "--start", "2013-01-01T00:00:00"], 2, "has no time zone"),
        (["t", "--start", "7=0"], 2, "partition 7"),
        (["t", "--end", "soon"], 2, "is not understood"),
        (["t", "--columns", "n,nope"], 2, "no column 'nope'"),
        (["t", "--columns", "nope,n,other"], 2, "no columns 'nope', 'other'"),
        (
            ["t", "--columns", "n,_offset"],
            2,
            "no column '_offset'; its columns are n, name; --output json shows what is no column",
        ),
        (["t", "--start", "5", "--end", "2"], 2, "the end, 2, is before the start, 5"),
        (["t", "--partition", "2"], 2, "partitions 0 to 1"),
        (["t", "-n", "0"], 2, "-n 0 is for --follow"),
        (["t", "-n", "0", "--follow", "--start", "0"], 2, "-n 0 is for --follow"),
        (["t", "--follow", "--end", "5"], 2, "--follow has no end"),
        (["t", "--output", "xml"], 2, "invalid choice"),
        ([], 2, "required: TOPIC"),
    ],
)
def test_what_tail_cannot_show(flights: Cli, arguments: list[str], code: int, says: str) -> None:
    assert says in flights.error("tail", *arguments, code=code)


def make_damaged(cli: Cli) -> None:
    """Topic `t` of six records, of which the fourth is damaged."""
    cli.run("topic", "create", "t")
    for n in range(6):
        cli.run("push", "t", stdin=f"value {n}")
    [file] = paths(cli.store, "*.arrows")
    flip(file, file.read_bytes().index(b"value 3"))


def test_tail_goes_on_behind_damage_and_says_what_it_skipped(cli: Cli) -> None:
    make_damaged(cli)
    done = cli.run("tail", "t", code=1)
    assert "damaged at byte" in done.stderr
    command = ["jjq", "tail", "t", "--on-data-loss", "skip"]
    done = cli.forks.run(command, cli.directory, cli.environment, b"")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [b"value %d" % n for n in (0, 1, 2, 4, 5)]
    assert b"skipped offsets 3 to 3 of partition 0 of topic 't'" in done.stderr


@pytest.mark.embedded  # as repair is
def test_tail_shows_what_lies_before_records_that_are_gone(cli: Cli) -> None:
    make_damaged(cli)
    cli.run("repair", code=3)
    done = cli.run("tail", "t", "--start", "earliest", code=1)
    assert done.stdout.splitlines() == [f"value {n}" for n in (0, 1, 2)]
    assert "1 record is gone; read up to 3 or from 4 on (--end, --start), or add --on-data-loss skip" in done.stderr
    assert cli.text("tail", "t", "--start", "earliest", "-n", "2") == "value 0\nvalue 1\n"
    assert cli.text("tail", "t", "--start", "earliest", "--end", "3") == "value 0\nvalue 1\nvalue 2\n"
    assert cli.text("tail", "t", "--start", "4") == "value 4\nvalue 5\n"


def test_tail_goes_on_without_an_active_file_that_is_missing(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--partitions", "2")
    for n in range(4):
        cli.run("push", "t", "--partition", str(n % 2), stdin=f"value {n}")
    [file] = [each for each in paths(cli.store, "*.arrows") if b"value 1" in each.read_bytes()]
    file.unlink()
    assert file.stem in cli.run("tail", "t", code=1).stderr
    for more in ([], ["--start", "earliest"], ["--start", "-1h", "--end", "latest"]):
        command = ["jjq", "tail", "t", "--on-data-loss", "skip", *more]
        done = cli.forks.run(command, cli.directory, cli.environment, b"")
        assert (done.returncode, done.stdout) == (0, b"value 0\nvalue 2\n")
        assert b"skipped offsets 0 and up of partition 1 of topic 't'" in done.stderr


def test_tail_from_a_time_ago_written_as_one_word(flights: Cli) -> None:
    assert flights.lines("tail", "t", "--start", "-1h") == []
    everything = flights.lines("tail", "t", "--start", "-300000h")
    assert everything == flights.lines("tail", "t", "--start", "earliest") != []


# --- pop and peek ----------------------------------------------------------------------------------------------------


def test_pop_takes_and_peek_does_not(flights: Cli) -> None:
    assert flights.lines("peek", "s") == flights.lines("peek", "s")
    first = flights.lines("peek", "s")
    assert flights.lines("pop", "s") == first
    assert flights.text("pop", "s") == '{"n":1,"name":"record 1"}\n'
    assert [each["value"]["n"] for each in flights.lines("pop", "s", "-n", "500")] == list(range(2, 20))
    for command in ("pop", "peek"):
        done = flights.run(command, "s", code=4)
        assert (done.stdout, done.stderr) == ("", "")
    assert flights.run("pop", "s", "--timeout", "0.01", code=4).stdout == ""


def test_pop_waits_for_a_record(flights: Cli) -> None:
    flights.run("subscriber", "seek", "s", "latest")
    with flights.start("pop", "s", "-n", "2", "--timeout", "none") as process:
        with flights.open() as store:
            for n in (20, 21):
                store.topic("t").push({"n": n})
                assert json.loads(process.stdout.readline())["n"] == n
        assert process.wait() == 0


def test_two_at_a_time_share_the_records(cli: Cli) -> None:
    with cli.open() as store:
        store.create_topic("t", sync="none").push_many([b"%d" % i for i in range(300)])
        store.create_subscriber("t", "s")
    processes = [cli.start("pop", "s", "-n", "200") for _ in range(2)]
    taken = sorted(int(line) for process in processes for line in process.communicate()[0].splitlines())
    assert taken == list(range(300))
    assert {process.returncode for process in processes} <= {0, 4}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["pop", "ss"], 1, "did you mean 's'"),
        (["peek", "ss"], 1, "did you mean 's'"),
        (["pop", "../s"], 2, "cannot name a subscriber"),
        (["pop", "s", "--timeout", "-1"], 2, "is no number of seconds"),
        (["peek", "s", "--timeout", "soon"], 2, "is no number of seconds"),
        (["pop", "s", "-n", "none"], 2, "is no whole number"),
        (["pop"], 2, "required: SUBSCRIBER"),
        (["subscriber", "create", "tt"], 1, "did you mean 't'"),
        (["subscriber", "create", "t", "s"], 1, "'s' of topic 't' already"),
        (["subscriber", "create", "t", "../s"], 2, "cannot name a subscriber"),
        (["subscriber", "create", "t", "x", "--start", "99"], 2, "beyond the end"),
        (["subscriber", "create", "t", "x", "--on-data-loss", "cry"], 2, "invalid choice"),
        (["subscriber", "list", "--topic", "tt"], 1, "did you mean 't'"),
        (["subscriber", "show", "ss"], 1, "did you mean 's'"),
        (["subscriber", "seek", "s", "99"], 2, "beyond the end"),
        (["subscriber", "seek", "s", "0=1,9=2"], 2, "partition 9"),
        (["subscriber", "seek", "s"], 2, "required: START"),
        (["subscriber", "delete", "ss", "--yes"], 1, "did you mean 's'"),
    ],
)
def test_what_a_subscriber_cannot_do(flights: Cli, arguments: list[str], code: int, says: str) -> None:
    assert says in flights.error(*arguments, code=code)
    assert [each["records"] for each in flights.json("subscriber", "list")] == [20]


# --- subscribers -----------------------------------------------------------------------------------------------------


def test_a_subscriber_is_made_shown_moved_and_deleted(flights: Cli) -> None:
    made = flights.json("subscriber", "create", "t", "billing", "--start", "-3", "--on-data-loss", "skip")
    assert (made["name"], made["topic"], made["on_data_loss"], made["records"]) == ("billing", "t", "skip", 6)
    assert [each["position"] for each in made["partitions"]] == [7, 7]
    assert made["seconds"] > timedelta(days=1).total_seconds()
    assert "subscriber billing of topic t" in flights.text("subscriber", "create", "t", "billing", "--exist-ok")
    assert [each["name"] for each in flights.json("subscriber", "list", "--topic", "t")] == ["billing", "s"]
    shown = flights.text("subscriber", "show", "billing")
    assert "behind        6 records" in shown
    assert len(shown.splitlines()) == 10
    assert "billing" in flights.text("subscriber", "list")
    assert "3 records to read" in flights.text("subscriber", "seek", "billing", "0=latest")
    assert flights.json("subscriber", "seek", "billing", "earliest")["records"] == 20
    assert flights.json("subscriber", "show", "billing")["records"] == 20
    assert flights.json("subscriber", "delete", "billing", "--yes")["name"] == "billing"
    assert [each["name"] for each in flights.json("subscriber", "list")] == ["s"]


def test_a_subscriber_without_a_name_says_which_it_got(flights: Cli) -> None:
    name = flights.text("subscriber", "create", "t").strip()
    assert flights.json("subscriber", "show", name)["records"] == 20


def test_a_subscriber_that_is_polled_cannot_be_moved(flights: Cli) -> None:
    with flights.open() as store, store.subscriber("s") as subscriber:
        subscriber.poll(1)
        assert "another consumer polls subscriber 's'" in flights.error("subscriber", "seek", "s", "0")


def test_a_time_that_python_cannot_say_is_shown_as_the_number_that_it_is(cli: Cli) -> None:
    day = pa.date32()
    with cli.open() as store:
        topic = store.create_topic("odd", schema=pa.schema([("d", day), ("at", pa.timestamp("us", "UTC"))]))
        topic.push_table(pa.table({"d": pa.array([0, 2**31 - 1], pa.int32()).cast(day)}))
        store.create_subscriber("odd", "s")
    shown = [{"d": "1970-01-01", "at": None}, {"d": 2**31 - 1, "at": None}]
    assert [each["value"] for each in cli.lines("tail", "odd")] == shown
    assert [each["value"] for each in cli.lines("pop", "s", "-n", "2")] == shown
    for number in (b"1796000000000000000", b"1796000000000000000.0"):
        said = cli.error("push", "odd", "--format", "json", stdin=b'{"at": 0}\n{"at": ' + number + b"}\n", code=1)
        assert f"line 2: column 'at' takes timestamp[us, tz=UTC]: {number.decode()} looks like nanoseconds" in said
