"""`jjq channel ...`, `jjq topic pause` and `unpause`."""

import signal

import pytest

from tests.integration.conftest import Cli


@pytest.fixture
def orders(cli: Cli) -> Cli:
    """A topic with three records."""
    cli.run("topic", "create", "orders")
    cli.run("push", "orders", stdin="a\nb\nc\n")
    return cli


def test_a_channel_is_made_once_with_its_settings(orders: Cli) -> None:
    assert orders.text("channel", "create", "orders", "work") == "channel work of topic orders created\n"
    assert "has a channel 'work' already" in orders.error("channel", "create", "orders", "work", code=1)
    assert "is there" in orders.text("channel", "create", "orders", "work", "--exist-ok", "--start", "latest")
    same = ("--exist-ok", "--max-attempts", "5", "--ack-timeout", "1 min", "--dead-letter", "orders.work.dead")
    assert "is there" in orders.text("channel", "create", "orders", "work", *same)
    for option, has in (
        (("--max-attempts", "9"), "max_attempts: 9 was asked for, and channel 'work' of topic 'orders' has 5; leave it out"),
        (("--max-attempts", "none"), "none was asked for"), (("--ack-timeout", "5 min"), "ack_timeout: 5 min was asked for, and channel 'work' of topic 'orders' has 1 min;"),
        (("--dead-letter", "lost"), "has 'orders.work.dead'"), (("--ordered",), "True was asked for"),
    ):  # fmt: skip
        assert has in orders.error("channel", "create", "orders", "work", "--exist-ok", *option, code=2)
    made = orders.json(
        "channel", "create", "orders", "other", "--max-attempts", "none", "--ack-timeout", "5 min", "--dead-letter", "lost",
        "--ordered", "--start", "latest",
    )  # fmt: skip
    assert (made["max_attempts"], made["ack_timeout"], made["dead_letter"], made["ordered"], made["depth"]) == (
        None, 300.0, "lost", True, 0,
    )  # fmt: skip
    assert orders.json("channel", "show", "orders", "work")["max_attempts"] == 5
    assert orders.json("channel", "alter", "orders", "work", "--max-attempts", "2")["max_attempts"] == 2
    assert "nothing to alter" in orders.error("channel", "alter", "orders", "work", code=2)
    for bad in ("0", "many"):
        orders.error("channel", "create", "orders", "bad", "--max-attempts", bad, code=2)
    orders.error("channel", "create", "orders", "bad", "--ack-timeout", "soon", code=2)
    orders.error("channel", "create", "nowhere", "work")
    assert "did you mean 'work'" in orders.error("channel", "show", "orders", "wrok")


def test_receive_prints_and_acknowledges(orders: Cli) -> None:
    orders.run("channel", "create", "orders", "work")
    assert orders.text("channel", "receive", "orders", "work") == "a\n"
    looked = orders.lines("channel", "receive", "orders", "work", "-n", "10", "--no-ack")
    assert [each["value"] for each in looked] == ["b", "c"]
    shown = orders.json("channel", "show", "orders", "work")
    assert (shown["depth"], shown["in_flight"], shown["acked"], shown["requeued"]) == (2, 0, 1, 2)
    assert orders.text("channel", "receive", "orders", "work", "-n", "10") == "b\nc\n"
    assert orders.run("channel", "receive", "orders", "work", code=4).stdout == ""
    assert orders.json("channel", "list")[0]["acked"] == 3
    assert "3" in orders.text("channel", "list", "--topic", "orders")
    assert "in hand" in orders.text("channel", "show", "orders", "work")


def test_receive_waits_for_a_record_and_ends_when_it_is_interrupted(orders: Cli) -> None:
    orders.run("channel", "create", "orders", "work", "--start", "latest")
    waiting = orders.start("channel", "receive", "orders", "work", "--timeout", "none")
    with orders.open() as store:
        store.topic("orders").push(b"d")
    assert waiting.communicate() == (b"d\n", b"")
    assert waiting.returncode == 0
    waiting = orders.start("channel", "receive", "orders", "work", "--timeout", "none")
    with orders.open() as store:
        while not store.channel("orders", "work").consumers():
            pass
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate() == (b"", b"")
    assert waiting.returncode == 130


def test_pausing_and_emptying(orders: Cli) -> None:
    orders.run("channel", "create", "orders", "work")
    for what, name in (("channel", ("orders", "work")), ("topic", ("orders",))):
        orders.run(what, "pause", *name)
        assert "paused" in orders.text("channel", "list")
        orders.run("channel", "receive", "orders", "work", code=4)
        orders.run(what, "unpause", *name)
    assert orders.json("topic", "pause", "orders") == {"name": "orders", "paused": True}
    orders.run("topic", "unpause", "orders")
    assert "Nothing was changed" in orders.error("channel", "empty", "orders", "work", code=2)
    assert orders.text("channel", "empty", "orders", "work", "--yes") == "channel work of topic orders emptied\n"
    orders.run("channel", "receive", "orders", "work", code=4)


def test_dead_letters_are_revived(orders: Cli) -> None:
    orders.run("channel", "create", "orders", "work", "--max-attempts", "1")
    orders.run("channel", "receive", "orders", "work", "-n", "2", "--no-ack")
    letters = orders.lines("tail", "orders.work.dead")
    assert [each["value"] for each in letters] == ["a", "b"]
    assert ["jjq-dead-reason", "requeued"] in letters[0]["headers"]
    assert orders.json("channel", "revive", "orders", "work")["revived"] == 2
    assert orders.text("channel", "receive", "orders", "work", "-n", "10") == "a\nb\nc\n"
    assert "0 dead letters" in orders.text("channel", "revive", "orders", "work")


def test_deleting(orders: Cli) -> None:
    orders.run("channel", "create", "orders", "work")
    assert "3 records" in orders.error("channel", "delete", "orders", "work", code=2)
    assert orders.json("channel", "delete", "orders", "work", "--yes")["depth"] == 3
    assert orders.json("channel", "list") == []
    assert "no channel 'work'" in orders.error("channel", "receive", "orders", "work")


def test_a_channel_that_is_paused_says_so_to_who_would_wait_for_ever(orders: Cli) -> None:
    orders.text("channel", "create", "orders", "work")
    orders.text("channel", "pause", "orders", "work")
    said = orders.error("channel", "receive", "orders", "work", code=4)
    assert "channel work is paused and delivers nothing; `jjq channel unpause" in said
    orders.text("channel", "unpause", "orders", "work")
    orders.text("topic", "pause", "orders")
    assert "`jjq topic unpause" in orders.error("channel", "receive", "orders", "work", code=4)
