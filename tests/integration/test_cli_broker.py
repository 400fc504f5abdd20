"""`--broker` on the command line: where it may stand, what needs the directory all the same, and what is said when it is gone."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import jjq
from jjq.cli import main
from jjq.server.settings import tokens_in
from jjq.server.tokens import TokenFile
from tests.brokers import serving
from tests.certificates import made_in
from tests.integration.conftest import Cli, environment
from tests.integration.forks import Forks

PLACES = ("broker",)


def test_a_broker_is_an_option_before_or_after_the_command_or_in_the_environment(cli: Cli) -> None:
    cli.run("topic", "create", "t")
    url = cli.environment.pop("JJQ_BROKER")
    for arguments in (("--broker", url, "topic", "list"), ("topic", "list", "--broker", url)):
        assert [each["name"] for each in cli.json(*arguments)] == ["t"]
    assert "there is no store" in cli.error("topic", "list")


def test_what_is_typed_comes_before_the_environment_and_two_places_are_none(cli: Cli) -> None:
    cli.run("topic", "create", "in-broker")
    other = cli.directory / "other"
    cli.run("topic", "create", "in-directory", "--store", other)
    assert [each["name"] for each in cli.json("topic", "list", "--store", other)] == ["in-directory"]
    assert "say one of them" in cli.error("topic", "list", "--store", other, "--broker", cli.where, code=2)
    for option in ("--store", "--broker"):
        assert f"argument {option}: it is empty; name a place" in cli.error("topic", "list", option, "", code=2)
    cli.environment["JJQ_STORE"] = str(other)
    assert "both in the environment" in cli.error("topic", "list", code=2)
    assert [each["name"] for each in cli.json("topic", "list", "--broker", cli.where)] == ["in-broker"]


@pytest.mark.parametrize(
    "arguments", [("repair",), ("check", "--seconds", "0.1"), ("bench", "--seconds", "0.1")], ids=lambda each: each[0]
)
def test_what_needs_the_directory_says_so(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert "this needs the store's directory" in cli.error(*arguments, code=2)


@pytest.mark.parametrize("arguments", [("serve",), ("token", "list")], ids=lambda each: each[0])
def test_what_is_about_the_broker_itself_says_so_when_it_is_asked_of_one(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert "this needs the store's directory" in cli.error(*arguments, "--broker", cli.where, code=2)


def test_a_store_is_verified_and_maintained_through_its_broker(cli: Cli) -> None:
    cli.run("topic", "create", "t", "--segment-rows", "10")
    for start in range(0, 40, 10):
        cli.run("push", "t", stdin="".join(f"{i}\n" for i in range(start, start + 10)))
    while (done := cli.json("maintain"))["busy"]:  # the broker is at it by itself
        pass
    assert done["errors"] == []
    report = cli.json("verify")
    assert (report["ok"], report["records"], report["problems"]) == (True, 40, [])
    path = next(cli.store.glob("topics/*/0/*.arrow"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    done = cli.run("verify", "--json", code=3)
    assert json.loads(done.stdout)["ok"] is False
    assert str(cli.store) not in done.stdout


def test_segments_are_shown_without_where_the_store_is(cli: Cli) -> None:
    cli.run("topic", "create", "t")
    cli.run("push", "t", stdin="x")
    (found,) = cli.json("segment", "list", "t")
    assert cli.json("segment", "show", found["id"]) == found
    assert found["path"].startswith("topics/")
    assert (cli.store / found["path"]).exists()


def test_a_broker_that_is_not_there_is_an_error_that_names_it(cli: Cli) -> None:
    with socket.socket() as held:  # a port that nobody else gets, and on which nobody listens
        held.bind(("127.0.0.1", 0))
        url = f"jjq://127.0.0.1:{held.getsockname()[1]}"
        assert url in cli.error("topic", "list", "--broker", url)
    assert "jjq://host:port" in cli.error("topic", "list", "--broker", "http://127.0.0.1", code=2)


def test_the_token_and_certificates_come_from_the_environment(tmp_path: Path, forks: Forks) -> None:
    store, certificates = tmp_path / "store", made_in(tmp_path / "certificates")
    jjq.open(store, maintenance=False).close()
    token, _ = TokenFile(tokens_in(store)).create("reader", read=("t",))
    options = (
        "--tls-cert", certificates.server, "--tls-key", certificates.server_key,
        "--tls-client-ca", certificates.authority, "--no-http",
    )  # fmt: skip
    with jjq.open(store) as opened:
        opened.create_topic("t").push(b"x")
    with serving(store, *options) as broker:
        cli = Cli(tmp_path, store, forks, environment() | {"JJQ_BROKER": broker.flight}, broker.flight)
        cli.environment |= {
            "JJQ_TLS_CA": str(certificates.authority), "JJQ_CLIENT_CERT": str(certificates.client),
            "JJQ_CLIENT_KEY": str(certificates.client_key),
        }  # fmt: skip
        assert "needs a token" in cli.error("topic", "list")
        cli.environment["JJQ_TOKEN"] = token
        assert [each["name"] for each in cli.json("topic", "list")] == ["t"]
        assert cli.text("tail", "t") == "x\n"
        assert "has no write right for topic 't'" in cli.error("push", "t", stdin="y\n")
        assert "has no admin right for topic 't'" in cli.error("topic", "delete", "t", "--yes")


def test_commands_that_wait_outlast_a_broker_that_is_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        store.create_topic("t").push(b"x")
        store.create_subscriber("t", "s")
        store.channel("t", "c", create=True).close()
    monkeypatch.setattr("jjq.cli.arguments._PATIENCE_S", 0.0)  # of those that do not wait
    commands = (
        ("pop", "s", "--timeout", "none"), ("peek", "s", "--timeout", "60"), ("subscribe", "news", "-n", "1"),
        ("channel", "receive", "t", "c", "--timeout", "none"),
    )  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
        monkeypatch.setenv("JJQ_BROKER", f"jjq://127.0.0.1:{port}")
        with ThreadPoolExecutor(len(commands)) as pool:
            running = [pool.submit(main, command) for command in commands]
            gone.accept()[0].close()  # somebody has tried
            gone.close()
            with (
                serving(tmp_path / "store", "--flight-port", str(port), "--no-http") as broker,
                jjq.connect(broker.flight) as store,
            ):
                while not store.publish("news", b"x") and not running[2].done():
                    pass
                while not running[0].done():  # it may have taken the record that the one that only looks waits for
                    store.topic("t").push(b"x")
                store.topic("t").push(b"x")
                assert [each.result() for each in running] == [0] * len(commands), capsys.readouterr().err
    told = capsys.readouterr()
    assert told.out.count("x\n") == len(commands)
    assert told.err.count(
        f"jjq: the broker at jjq://127.0.0.1:{port} cannot be reached; trying again for 30 s\n"
    ) == len(commands)
    assert told.err.count("jjq: it is there again\n") == len(commands)
