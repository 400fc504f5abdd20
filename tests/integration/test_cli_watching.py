"""`jjq stats` and `jjq top`, run as a person at a terminal or a script would."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading

import pytest

from jjq.cli import main
from tests.integration.conftest import COMMAND, Cli
from tests.stores import without_active_file


@pytest.fixture
def filled(cli: Cli) -> Cli:
    with cli.open() as store:
        store.create_topic("flights").push_many([b"x" * 100] * 50)
        store.create_topic("other").push(b"x")
        store.create_subscriber("flights", "billing", start=20)
        store.channel("flights", "work", create=True, start=45)
    return cli


def test_stats_are_for_people_and_for_programs(filled: Cli) -> None:
    text = filled.text("stats")
    for part in ("TOPIC", "flights", "other", "billing", "30", "work"):
        assert part in text
    found = filled.json("stats", "flights")
    assert [each["name"] for each in found["topics"]] == ["flights"]
    assert found["subscribers"][0]["records"] == 30
    assert found["channels"][0]["depth"] == 5
    assert "other" not in filled.text("stats", "flights")
    assert "did you mean 'flights'" in filled.error("stats", "flihgts")


def test_top_prints_once_with_rates_where_there_is_no_terminal(filled: Cli) -> None:
    assert "flights" in filled.text("top", "--once", "--interval", "0.05")
    found = filled.json("top", "flights", "--once", "--interval", "0.05")
    assert found["interval_s"] >= 0.05
    assert found["topics"][0]["records_per_s"] == 0
    for wrong in ("0", "fast", "-1", "nan"):
        filled.error("top", "--interval", wrong, code=2)


def test_top_goes_on_printing_until_it_is_interrupted(filled: Cli) -> None:
    top = filled.start("top", "--json", "--interval", "0.05")
    assert top.stdout is not None
    first = json.loads(top.stdout.readline())
    with filled.open() as store:
        store.topic("flights").push_many([b"x"] * 1000)
    pushed = first["topics"][0]["pushed_records"]
    while pushed < 1050:
        found = json.loads(top.stdout.readline())
        pushed = found["topics"][0]["pushed_records"]
    assert found["topics"][0]["records_per_s"] > 0
    top.send_signal(signal.SIGINT)
    top.communicate()
    assert top.returncode == 130


LISTS = (
    ("stats",), ("top", "--once", "--interval", "0.05"), ("topic", "list"), ("subscriber", "list"), ("channel", "list"),
)  # fmt: skip


def test_what_is_damaged_is_said_beside_all_others(filled: Cli) -> None:
    with filled.open() as store:
        of = store.topic("flights").id
        store.create_subscriber("other", "audit")
        store.channel("other", "pool", create=True)
        (segment,) = store.topic("other").segments()
    names = {"topic": "other", "subscriber": "audit", "channel": "pool"}
    with without_active_file(filled.store, of):
        for words in (*LISTS, ("segment", "show", segment.id)):
            done = filled.run(*words, code=3)
            assert all(line.startswith("jjq: ") for line in done.stderr.splitlines())
            assert "flights is left out" in done.stderr or "of topic flights is left out" in done.stderr
            assert done.stderr.count("\n") == done.stderr.count("run `jjq repair`")
            assert names.get(words[0], "other") in done.stdout
            assert "there are no" not in done.stderr
            document = filled.run(*words, "--json", code=3)
            told = [json.loads(line)["damaged"] for line in document.stderr.splitlines()]
            assert {each["topic"] for each in told} == {"flights"}
            found = json.loads(document.stdout)
            if words in LISTS[:2]:
                assert found["damaged"] == told
                assert [each["name"] for each in found["topics"]] == ["other"]
            elif words in LISTS:
                assert [each["name"] for each in found] == [names[words[0]]]
    assert filled.json("stats")["damaged"] == []


class Terminal:
    """A command with a terminal of its own."""

    def __init__(self, cli: Cli, *arguments: str, columns: int, lines: int) -> None:
        self._fd, theirs = pty.openpty()
        environment = cli.environment | {"COLUMNS": str(columns), "LINES": str(lines)}
        self.process = subprocess.Popen(
            [COMMAND, *arguments], cwd=cli.directory, env=environment, stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True, preexec_fn=lambda: _controlling(theirs),
        )  # fmt: skip
        os.close(theirs)

    def read_until(self, what: bytes) -> bytes:
        seen = b""
        while what not in seen:
            seen += os.read(self._fd, 4096)
        return seen

    def press(self, key: bytes) -> None:
        os.write(self._fd, key)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)


@pytest.mark.parametrize(("key", "code"), [(b"q", 0), (b"\x03", 130)])
def test_top_at_a_terminal_draws_over_itself_and_leaves_it_as_it_was(filled: Cli, key: bytes, code: int) -> None:
    with Terminal(filled, "top", "--interval", "0.05", columns=50, lines=13) as terminal:
        seen = terminal.read_until(b"billing")
        assert seen.startswith(b"\x1b[?1049h")
        seen += terminal.read_until(b"\x1b[J")
        terminal.press(key)
        assert b"\x1b[?25h" in terminal.read_until(b"\x1b[?1049l")
        assert terminal.process.wait() == code
    drawn = seen.split(b"\x1b[H")[1].replace(b"\x1b[K", b"").partition(b"\x1b[J")[0].split(b"\n")
    assert len(drawn) <= 13
    assert max(len(line.rstrip(b"\r")) for line in drawn) <= 50


def _controlling(terminal: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


class Looked(io.BytesIO):
    """Where a command writes: which threads it has begun as it does so first, upon which it is interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.before = set(threading.enumerate())  # of other tests' stores
        self.begun: set[str] | None = None

    def write(self, data: object) -> int:
        if self.begun is not None:
            return len(data)  # type: ignore[arg-type]
        self.begun = {each.name for each in threading.enumerate() if each not in self.before}
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("command", "maintains"),
    [
        (("top", "--json", "--interval", "0.05"), False), (("pop", "billing", "--timeout", "none"), False),
        (("peek", "billing", "--timeout", "none"), False),
        (("channel", "receive", "flights", "work", "--timeout", "none"), False), (("tail", "flights", "--follow"), True),
    ],
    ids=["top", "pop", "peek", "receive", "tail"],
)  # fmt: skip
def test_who_only_looks_or_waits_for_records_does_no_maintenance(
    filled: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], maintains: bool
) -> None:
    """As root it would leave files that the service cannot read."""
    looked = Looked()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(looked))
    monkeypatch.setenv("JJQ_STORE", str(filled.store))
    main(command)
    assert looked.begun is not None
    assert ("jjq-maintenance" in looked.begun) is maintains
