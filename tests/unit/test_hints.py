"""What is meant by names that are not there, on the command line, in Spark's options and in Python."""

import argparse
import shlex
from pathlib import Path
from typing import Any

import pytest

import jjq
from jjq.cli import main
from jjq.cli.commands import build_parser
from jjq.errors import InvalidArgument
from jjq.hints import meant, which
from jjq.server.http_operations import parse_json
from jjq.server.http_records import start_in, start_of
from jjq.values import unique
from pyspark_jjq.options import parse_source


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("tail t --since 5", "did you mean --start?"),
        ("serve --prot 1", "did you mean --flight-port or --http-port?"),
        ("serve --http-prot 1", "did you mean --http-port?"),
        ("tail t --from-beginning", "did you mean --start?"),
        ("subscriber create t --offset 3", "did you mean --start?"),
        ("tail t --bootstrap-server x:1", "did you mean --broker?"),
        ("tail t --host x", "did you mean --broker?"),
        ("tail --topic t", "TOPIC has no option before it: jjq tail TOPIC"),
        ("push --topic t", "TOPIC has no option before it: jjq push TOPIC FILE"),
        ("pop --group g", "SUBSCRIBER has no option before it: jjq pop SUBSCRIBER"),
        ("tail t --group g", "a subscriber has a position that is kept: jjq pop SUBSCRIBER"),
        ("pop --topic t", "a subscriber is of one topic, said as it is made: jjq subscriber create TOPIC SUBSCRIBER"),
        ("peek s -t t", "a subscriber is of one topic"),
        ("subscriber seek s latest --topic=t", "a subscriber is of one topic"),
        ("topic create t --replication-factor 3", "a store lies on one machine and has no replicas: leave it out"),
        ("topic create t --partitions 3 -r 1", "has no replicas"),
        ("topic create t --num-partitions 3", "did you mean --partitions?"),
        ("topic alter t --partition-count 3", "did you mean --partitions?"),
        ("topic create t --config retention.ms=1", "each setting has an option of its own, as --retention '7 days'"),
        ("topic --list", "did you mean jjq topic list?"),
        ("topic --create --topic t", "did you mean jjq topic create?"),
        ("topics", "did you mean topic?"),
        ("produce t", "did you mean push?"),
        ("kafka-console-consumer --topic t", "did you mean tail?"),
        ("console-producer", "did you mean push?"),
        ("lag", "did you mean subscriber?"),
        ("push t -f csv", "did you mean --format?"),
        ("tail t -c 5", "did you mean --count?"),
        ("topic delete t --force", "did you mean --yes?"),
        ("tail t --colunms=n", "did you mean --columns?"),
        ("tial t", "there is no command 'tial'; did you mean tail?"),
        ("consume t", "did you mean tail?"),
        ("export t", "did you mean tail?"),
        ("import t", "did you mean push?"),
        ("topic ls", "there is no command 'ls'; did you mean list?"),
        ("subscriber describe s", "did you mean show?"),
        ("segment describe 5a", "did you mean show?"),
        ("writer describe w", "did you mean list?"),
        ("describe t", "did you mean topic describe?"),
        ("pause t", "did you mean topic pause or channel pause?"),
        ("ls", "did you mean topic list, subscriber list, "),
        ("rm t", "did you mean topic delete, subscriber delete or channel delete?"),
        ("segment frob", "there is no command 'frob'; there are list, "),
        ("tail t --start -10 minutes", "A time of two words is quoted: '-10 minutes'"),
        ("pop t s", "unrecognized arguments: s; write jjq pop SUBSCRIBER"),  # a unit, but for no number
        ("tail t another", "unrecognized arguments: another; write jjq tail TOPIC"),
    ],
)
def test_a_mistyped_or_foreign_option_leads_to_ours(line: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)) == 2
    said = capsys.readouterr().err
    assert hint in said
    assert len(said.splitlines()) == 2


@pytest.mark.parametrize("line", ["tail t --nothing-like-it", "push t -z", "tail t --name x"])
def test_what_is_near_nothing_gets_no_hint(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)) == 2
    said = capsys.readouterr().err
    assert "unrecognized arguments" in said
    assert "did you mean" not in said


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("startingOffset", "startingOffsets"), ("starting_offsets", "startingOffsets"), ("since", "startingTimestamp"),
        ("fromBeginning", "startingOffsets"), ("bootstrapServers", "broker"), ("topics", "topic"),
        ("maxRecordsPerTrigger", "maxOffsetsPerTrigger"), ("group", "subscriber"), ("directory", "path"),
    ],
)  # fmt: skip
def test_an_option_of_spark_leads_to_ours(option: str, hint: str) -> None:
    with pytest.raises(InvalidArgument, match=f"did you mean {hint}[?]"):
        parse_source({"path": "p", "topic": "t", option: "x"} if option != "topics" else {"path": "p", option: "x"})


def test_a_keyword_of_python_leads_to_ours(tmp_path: Path) -> None:
    wrong: Any = {"readonly": True}
    with pytest.raises(TypeError, match=r"jjq\.open takes no argument 'readonly'; did you mean read_only\?"):
        jjq.open(tmp_path, **wrong)
    with pytest.raises(TypeError, match=r"jjq\.connect takes no argument 'patience'; there are url, token"):
        jjq.connect("jjq://localhost:1", patience=wrong)
    assert list(tmp_path.iterdir()) == []


def test_the_spelling_comes_before_the_table_and_the_table_before_what_is_near() -> None:
    assert meant("Time-Out", ["timeout", "time_out_s"]) == ["timeout"]
    assert meant("since", ["--json", "--start"]) == ["--start"]
    assert meant("since", ["--json"]) == []
    assert meant("key", ["--key", "--columns"]) == ["--key"]
    assert meant("key", ["topic", "keyColumn"]) == ["keyColumn"]


# --- the help --------------------------------------------------------------------------------------------------------


def test_alone_the_command_lists_all_commands_in_groups_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "\n\ntopics and records:\n  topic " in printed.err
    assert "\n\nthe broker:\n  serve " in printed.err
    shown = [line.split()[0] for line in printed.err.splitlines() if line.startswith("  ")]
    groups = [each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction)]
    assert [each for each in shown if each in groups[0].choices] == list(groups[0].choices)


def test_so_does_a_group_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic"]) == 2
    assert "describe" in capsys.readouterr().err
    assert main(["topic", "--json"]) == 2


@pytest.mark.parametrize(("line", "shows"), [("help", "topics and records:"), ("help topic create", "--partitions N")])
def test_help_is_a_command_too(line: str, shows: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 0
    assert shows in capsys.readouterr().out


# --- a partition twice -----------------------------------------------------------------------------------------------


def test_a_start_that_names_a_partition_twice_is_an_error() -> None:
    for text in ("0:1,0:2", "0:1,1:2,00:3"):
        with pytest.raises(InvalidArgument, match="names partition 0 twice"):
            start_of(text)
    with pytest.raises(InvalidArgument, match="names partition 0 twice"):
        start_in({"0": 1, "00": 2})
    with pytest.raises(Exception, match="the name '0' stands there twice"):
        parse_json(b'{"start": {"0": 1, "0": 2}}', unique)
    assert start_of("0:1,1:2") == {0: 1, 1: 2} == start_in({"0": 1, "1": 2})


@pytest.mark.parametrize(
    ("starts", "said"),
    [('{"t":{"0":1,"00":2}}', "names partition 0 twice"), ('{"t":{"0":1,"0":2}}', "the name '0' stands there twice")],
)
def test_so_it_is_in_spark(starts: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse_source({"path": "p", "topic": "t", "startingOffsets": starts})


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        ([], ""),
        (["orders", "other"], "did you mean 'orders'?"),
        (["a", "b"], "there are a, b"),
        (["a", "b", "c", "d", "e", "f", "g"], "there are a, b, c, d, e and 2 more"),
        ([*map(str, range(9000)), "orders"], "did you mean 'orders'?"),
        ([*map(str, range(9000)), "Orders"], "there are 0, 1, 2, 3, 4 and 8996 more"),  # not all are compared
    ],
)
def test_what_there_is_is_told_to_who_asks_for_what_is_not(names: list[str], hint: str) -> None:
    assert which("order", names) == hint


def test_a_topic_in_the_place_of_a_subscriber_is_told_apart(tmp_path: Path) -> None:
    with jjq.open(tmp_path / "store") as store:
        store.create_topic("t")
        with pytest.raises(
            jjq.SubscriberNotFound, match="that is a topic; make a subscriber of it with create_subscriber"
        ):
            store.subscriber("t")


@pytest.mark.parametrize("read_only", [None, True])
def test_a_file_in_the_place_of_a_store_is_called_one(tmp_path: Path, read_only: bool | None) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(jjq.StoreNotFound, match="file is a file, and a store is a directory"):
        jjq.open(tmp_path / "file", create=False, read_only=read_only)
    assert main(["--store", str(tmp_path / "file"), "topic", "list"]) == 1
