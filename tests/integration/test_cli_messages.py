"""`jjq publish`, `jjq subscribe`, `jjq check` and `jjq bench`, run as a person or a script would."""

import json
import signal
import threading
from pathlib import Path

import pytest

import jjq
from tests.integration.conftest import Cli


@pytest.fixture
def store(cli: Cli) -> None:
    cli.open().close()


def until_subscribed(store: jjq.Store, subscriptions: int = 1) -> None:
    """Waits on the condition itself; the test's own timeout ends what never comes."""
    pause = threading.Event()
    while store.pubsub_numpat() + sum(store.pubsub_numsub("news").values()) < subscriptions:
        pause.wait(0.01)


@pytest.mark.usefixtures("store")
def test_messages_go_from_one_process_to_others_by_name_and_pattern(cli: Cli) -> None:
    named = cli.start("subscribe", "news", "-n", "2")
    matching = cli.start("subscribe", "--pattern", "n*", "--json", "-n", "3")
    with cli.open() as opened:
        until_subscribed(opened, 2)
        assert cli.text("publish", "news", "hello") == "2\n"
        assert cli.json("publish", "night", "moon") == {"name": "night", "reached": 1}
        assert cli.text("publish", "news", stdin="a line\n") == "2\n"
    assert named.communicate()[0] == b"news  hello\nnews  a line\n"
    found = [json.loads(line) for line in matching.communicate()[0].splitlines()]
    assert found[0] == {"type": "pmessage", "pattern": "n*", "channel": "news", "data": "hello"}
    assert sorted(each["data"] for each in found) == ["a line", "hello", "moon"]
    assert (named.returncode, matching.returncode) == (0, 0)
    with cli.open() as opened:
        assert opened.topics() == []  # they went with their last subscription


@pytest.mark.usefixtures("store")
def test_each_line_of_the_input_is_a_message(cli: Cli) -> None:
    listening = cli.start("subscribe", "news", "-n", "3")
    with cli.open() as opened:
        until_subscribed(opened)
        assert cli.text("publish", "news", stdin=b"one\r\n\xff\x1b[2J\nthree") == "1\n1\n1\n"
    assert listening.communicate()[0] == b"news  one\nnews  \\xff\\x1b[2J\nnews  three\n"


@pytest.mark.usefixtures("store")
def test_without_a_message_in_time_it_ends_and_interrupted_it_leaves_nothing(cli: Cli) -> None:
    assert cli.run("subscribe", "news", "--timeout", "0.05", code=4).stdout == ""
    assert cli.text("publish", "news", "nobody hears") == "0\n"
    listening = cli.start("subscribe", "news")
    with cli.open() as opened:
        until_subscribed(opened)
        listening.send_signal(signal.SIGINT)
        listening.communicate()
        assert listening.returncode == 130
        assert opened.pubsub_numsub("news") == {"news": 0}
    assert [path.name for path in (cli.store / "pubsub").iterdir()] == []


@pytest.mark.usefixtures("store")
def test_what_cannot_be_followed_is_refused(cli: Cli) -> None:
    assert "--pattern '*' takes all" in cli.error("subscribe", code=2)
    cli.error("publish", "no name!", "x", code=2)
    cli.error("subscribe", "news", "--timeout", "soon", code=2)


@pytest.mark.embedded
@pytest.mark.slow
def test_check_says_ok_and_leaves_nothing(cli: Cli) -> None:
    found = cli.json("check", "--seconds", "2", "--producers", "1", "--consumers", "1", fresh=True)
    assert (found["ok"], found["problems"], found["producers"], found["consumers"]) == (True, [], 1, 1)
    assert found["read"] == found["records"] > 0
    assert list(cli.directory.iterdir()) == []  # a store of its own, beside where the store would be
    assert "there is no store" in cli.error("check", "--store", "elsewhere", fresh=True)
    cli.error("check", "--seconds", "0", code=2, fresh=True)


@pytest.mark.embedded
@pytest.mark.slow
def test_check_and_bench_can_be_run_in_a_store_that_is_there(cli: Cli) -> None:
    cli.open().close()
    assert cli.text("check", "--store", cli.store, "--seconds", "0.5", "--no-kills", fresh=True).startswith("ok: ")
    figures = cli.json("bench", "--store", cli.store, "--seconds", "0.05", "--size", "1KB", fresh=True)
    assert len(figures) >= 6
    for each in figures:
        assert each["value"] > 0
        assert (each["ratio"] is None) == (each["peer"] is None)
    with cli.open() as opened:
        assert opened.topics() == []
    assert not list(cli.store.glob("jjq-bench*"))


@pytest.mark.embedded
@pytest.mark.slow
def test_bench_is_a_table_for_people(cli: Cli) -> None:
    text = cli.text("bench", "--seconds", "0.05", fresh=True)
    for part in ("publish, each synced", "write + fdatasync of the same bytes", "resume, to Arrow", "/s", "RATIO"):
        assert part in text
    assert list(Path(cli.directory).iterdir()) == []
