"""What may stand where on the command line."""

import pytest

from tests.integration.conftest import Cli


@pytest.mark.parametrize("file", ["orders.csv", "-"])
def test_a_file_may_come_behind_an_option(cli: Cli, file: str) -> None:
    rows = b"customer,n\na,1\n"
    (cli.directory / "orders.csv").write_bytes(rows)
    cli.run("topic", "create", "orders", "--column", "customer:string", "--column", "n:int64")
    stdin = rows if file == "-" else b""
    cli.run("push", "orders", "--format", "csv", "--key", "customer", file, stdin=stdin)
    cli.run("push", "--format", "csv", "orders", "--key", "customer", file, stdin=stdin)
    assert [(each["key"], each["value"]["n"]) for each in cli.lines("tail", "orders")] == [("a", 1), ("a", 1)]
    assert "unrecognized arguments: more; write jjq push TOPIC FILE" in cli.error(
        "push", "orders", "orders.csv", "--key", "customer", "more", code=2
    )
    assert "unrecognized arguments: more less" in cli.error(
        "push", "orders", "--key", "customer", "more", "less", code=2
    )


def test_what_begins_with_a_dash_may_be_a_time_ago(cli: Cli) -> None:
    cli.run("topic", "create", "t")
    cli.run("push", "t", stdin="now")
    cli.run("subscriber", "create", "t", "s", "--start", "latest")
    assert "1 record to read" in cli.text("subscriber", "seek", "s", "-5m")
    assert "0 records to read" in cli.text("subscriber", "seek", "s", "latest")
    assert "1 record to read" in cli.text("subscriber", "seek", "s", "-1.5hours")
    assert "unknown unit 'q' in '-5q'" in cli.error("subscriber", "seek", "s", "-5q", code=2)


@pytest.mark.parametrize("value", ["-5m", "-5", "-5 m", "-1.5x"])
def test_a_value_that_begins_with_a_dash_and_a_digit_is_published_as_it_is(cli: Cli, value: str) -> None:
    cli.run("topic", "create", "t")
    cli.run("publish", "t", value)
    cli.run("publish", "t", "--", value)
    assert cli.text("tail", "t") == f"{value}\n{value}\n"
