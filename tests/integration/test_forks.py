"""A command in a fork ends and says what the installed one does; most tests of the command rely on it."""

import contextlib
import os
import re
import signal
import threading
from pathlib import Path

import pytest

from tests.integration.conftest import Cli


@pytest.mark.parametrize(
    ("arguments", "stdin", "code"),
    [
        (("push", "t", "--json"), b"one\n\xff\x00\nno end", 0),
        (("tail", "t", "--start", "earliest"), b"", 0),
        (("push", "t", "--format", "parquet"), b"", 2),  # from a pipe
        (("topic", "delete", "t"), b"", 2),  # asks, as nobody is at a terminal
        (("topic", "create"), b"", 2),
        (("tail", "tt", "--json"), b"", 1),
        (("pop", "s"), b"", 4),
    ],
)
def test_it_ends_and_says_the_same(cli: Cli, arguments: tuple[str, ...], stdin: bytes, code: int) -> None:
    found = []
    for fresh in (False, True):
        with cli.open() as store:
            for topic in store.topics():
                store.delete_topic(topic.name)
            store.create_topic("t").push(b"earlier")
            store.create_subscriber("t", "s", start="latest")
        done = cli.run(*arguments, stdin=stdin, code=code, fresh=fresh)
        found.append((re.sub(r"\d+\.\d+", "some", done.stdout), done.stderr))  # seconds
    assert found[0] == found[1]


def test_what_an_interpreter_does_at_its_start_is_refused(cli: Cli) -> None:
    cli.environment["PYTHONPATH"] = "elsewhere"
    with pytest.raises(AssertionError, match="an interpreter of its own"):
        cli.run("topic", "list")


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process}/stat")
    with contextlib.suppress(FileNotFoundError):  # no such files on this system, or it has just gone
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"  # nobody may have waited for one that is dead
    return True


class Enough(Exception):
    """Of waiting, as a test's timeout raises it."""


def test_a_command_that_is_waited_for_in_vain_is_killed_and_the_next_one_runs(cli: Cli) -> None:
    def enough(*_: object) -> None:
        raise Enough

    def interrupt() -> None:
        while not store.pubsub_numsub("news")["news"]:
            pause.wait(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    pause = threading.Event()
    before = signal.signal(signal.SIGUSR1, enough)
    try:
        with cli.open() as store:
            interrupting = threading.Thread(target=interrupt)
            interrupting.start()
            with pytest.raises(Enough):
                cli.run("subscribe", "news")
            interrupting.join()
            while is_alive(cli.forks.command):
                pause.wait(0.01)
            assert cli.json("topic", "list") == []
    finally:
        signal.signal(signal.SIGUSR1, before)
