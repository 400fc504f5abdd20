"""What goes wrong is said in the words of the command line, with what to type."""

import re

import pyarrow as pa
import pytest

from jjq.cli import wording
from jjq.cli.wording import for_command_line
from jjq.server.http_errors import for_http
from tests.integration.conftest import Cli

PYTHON = re.compile(r"\w+_\w+=|alter_topic|exist_ok|store\.\w+|jjq\.open|batch_id|True|None")


@pytest.fixture
def flights(cli: Cli) -> Cli:
    with cli.open() as store:
        store.create_topic("flights", schema=pa.schema([("n", pa.int32())]), max_batch_bytes=1024)
        store.create_topic("plain")
        store.create_subscriber("plain", "billing")
        store.channel("plain", "work", create=True)
    return cli


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "said"),
    [
        (("topic", "create", "plain"), "", 1, "add --exist-ok"),
        (("subscriber", "create", "plain", "billing"), "", 1, "; add --exist-ok to leave it as it is"),
        (("pop", "none"), "", 1, "there are billing"),
        (("list",), "", 2, "did you mean topic list, subscriber list, channel list, segment list, writer list or token list?"),
        (("create",), "", 2, "did you mean topic create, subscriber create, channel create or token create?"),
        (("channel", "create", "plain", "work"), "", 1, "add --exist-ok"),
        (("topic", "create", "plain", "--exist-ok", "--partitions", "2"), "", 2, "add some with `jjq topic alter --partitions`"),
        (("topic", "create", "plain", "--exist-ok", "--sync", "none"), "", 2, "change it with `jjq topic alter`"),
        (("topic", "create", "plain", "--exist-ok", "--column", "n:int32"), "", 1, "added with `jjq topic alter --add-column"),
        (("tial", "plain"), "", 2, "did you mean tail?"),
        (("topic", "lits"), "", 2, "did you mean list?"),
        (("push", "plain", "--fromat", "json"), "", 2, "did you mean --format?\nsee `jjq push --help`"),
        (("tail", "plain", "--colunms=n"), "", 2, "did you mean --columns?"),
        (("topic", "create", "new", "--sync", "alwys"), "", 2, "did you mean always?"),
        (("tail", "plain", "--nothing-like-it"), "", 2, "unrecognized arguments: --nothing-like-it\n"),
        (("tail", "plain", "--start", "0=5,0=6"), "", 2, "names partition 0 twice"),
        (("channel", "show", "flights", "none"), "", 1, "make it with `jjq channel create`"),
        (("push", "flights", "--format", "json"), '{"m": 1}', 1, "Add one with `jjq topic alter --add-column NAME:TYPE`"),
        (("push", "flights", "--format", "json"), '{"n": 1}\n' * 999, 1, "raise the limit with `jjq topic alter`"),
        (("push", "plain", "--writer", "w", "--batch", "-1"), "a", 2, "--batch must be"),
        (("push", "plain", "--writer", "w", "--batch", str(1 << 64)), "a", 2, "--batch can be at most"),
        (("--store", "nowhere", "verify"), "", 1, "make one with `jjq topic create`"),
        (("tail", "plain", "--start", "-10", "minutes"), "", 2, "is quoted: '-10 minutes'"),
        (("subscriber", "seek", "billing", "-1", "hour"), "", 2, "is quoted: '-10 hour'"),
        (("subscriber", "create", "plain", "--start", "-10", "minutes"), "", 2, "is quoted"),
        (("push", "flights", "--format", "json"), '[\n {"n": 1},\n {"n": 2}\n]', 1, "`jq -c '.[]'`"),
        (("push", "flights", "--format", "json"), '{\n "n": 1\n}', 1, "`jq -c .`"),
        (("push", "flights", "--format", "json"), '[{"n": 1}, {"n": 2}]', 1, "`jq -c '.[]'`"),
    ],
)  # fmt: skip
def test_an_error_says_what_to_type(flights: Cli, arguments: tuple[str, ...], stdin: str, code: int, said: str) -> None:
    message = flights.error(*arguments, stdin=stdin, code=code)
    assert said in message
    assert not PYTHON.search(message)
    with flights.open() as store:
        assert store.topic("flights").describe()["records"] == 0
        assert [each.name for each in store.subscribers()] == ["billing"]


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("push STORE plain", 2, "a store is named by --store STORE"),
        ("push plain STORE", 1, "a store is named by --store STORE"),
        ("push STORE plain in.csv", 2, "a store is named by --store STORE"),
        ("tail STORE", 2, "a store is named by --store STORE"),
        ("tail STORE plain", 2, "a store is named by --store STORE"),
        ("topic list STORE", 2, "a store is named by --store STORE"),
        ("push jjq://localhost:4750 plain", 2, "a broker is named by --broker jjq://localhost:4750"),
        ("push plain jjq+tls://localhost:4750", 1, "a broker is named by --broker jjq+tls://localhost:4750"),
        ("tail jjq://localhost:4750 plain", 2, "a broker is named by --broker jjq://localhost:4750"),
    ],
)
def test_a_store_or_a_broker_in_the_place_of_something_else_is_called_one(
    flights: Cli, line: str, code: int, said: str
) -> None:
    message = flights.error(*line.replace("STORE", str(flights.store)).split(), code=code)
    assert said.replace("STORE", str(flights.store)) in message


def test_a_topic_may_be_called_like_the_store(cli: Cli) -> None:
    cli.run("topic", "create", "store")
    cli.run("push", "store", stdin="value\n")
    assert cli.text("tail", "store") == "value\n"
    assert "a store is" not in cli.error("push", "store", "--partition", "9", stdin="a\n", code=2)


def test_where_there_is_no_subscriber_it_is_said_how_one_is_made(cli: Cli) -> None:
    with cli.open() as store:
        store.create_topic("plain")
    assert cli.error("pop", "billing").endswith("; make it with `jjq subscriber create TOPIC billing`\n")
    made = "; make a subscriber of it with `jjq subscriber create`\n"
    assert cli.error("pop", "plain").endswith(made)  # that one needs a name, too


def test_other_messages_stay_as_they_are() -> None:
    assert for_command_line("offset 17 is beyond the end") == "offset 17 is beyond the end"


# What is said of a store's place and of tokens, which nobody gives over HTTP; and a name that a body has as well.
ONLY_TYPED = {
    "give it topics to read, write or admin", "make one with jjq.open(path) or `jjq topic create`", "; name its directory",
    ", or open it with read_only=True", "batch_id ",
}  # fmt: skip


def test_what_is_said_in_other_words_at_the_command_line_is_so_over_http() -> None:
    said = [
        *(python for python, _ in wording._SAID), "; read(metadata=['_offset']) adds what is no column",
        "store.subscriber('s').seek({0: 2})", "; use it with store.subscriber('s')",
    ]  # fmt: skip
    assert {each for each in said if for_http(each) == each} == ONLY_TYPED
    for each in said:
        if each not in ONLY_TYPED:
            assert not re.search(
                r"\w=|alter_topic|store\.\w+|True|None",
                for_http(each).replace("start=", "").replace("on_data_loss=", ""),
            ), each
            assert not PYTHON.search(for_command_line(each)), each
    assert "`jjq" not in for_http("; if that is meant, `jjq writer reset w` forgets what this writer has committed")
