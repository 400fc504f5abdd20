"""The connector's readers through a broker, called as Spark calls them, in the process of the tests."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq.server.flight import FlightFront
from jjq.server.guard import Guard
from jjq.server.settings import ServerSettings
from jjq.server.tokens import TokenFile
from pyspark_jjq import DefaultSource
from pyspark_jjq.options import BrokerUrl, parse_sink, parse_source
from pyspark_jjq.reader import BatchReader
from pyspark_jjq.stream import StreamReader
from tests.readers import ALL, close_stores, number, rows, through_json, values


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def broker(store: jjq.Store) -> Iterator[dict[str, str]]:
    """Options that name the store by its broker, with a token."""
    secret, _ = TokenFile(store.path / "tokens.json").create("spark", read=("*",), write=("*",))
    settings = ServerSettings(store=store.path, flight_port=0)
    front = FlightFront(store, settings, Guard(settings))
    yield {"broker": f"jjq://127.0.0.1:{front.start()}", "token": secret}
    close_stores()
    front.stop(30)


def batch(broker: dict[str, str], **options: Any) -> BatchReader:
    made = DefaultSource(broker | {"topic": "t"} | {k: str(v) for k, v in options.items()})
    reader = made.reader(made.schema())
    assert isinstance(reader, BatchReader)
    return reader


def test_a_batch_reads_what_there_is_in_as_many_tasks_as_are_wanted(store: jjq.Store, broker: dict[str, str]) -> None:
    topic = store.create_topic("t", partitions=2, segment_rows=50)
    for partition in range(2):
        topic.push_many(number(100, 100 * partition), partition=partition)
        topic.push_many(number(7, 500 + 10 * partition), partition=partition)
    store.maintain()
    reader = batch(broker, minPartitions=6)
    tasks = reader.partitions()
    assert len(tasks) >= 6
    found = values(reader, tasks)
    assert sorted(found) == sorted([*number(200), *number(7, 500), *number(7, 510)])
    shown = rows(reader, tasks)[0]
    assert (shown["topic"], shown["timestampType"]) == ("t", 1)


def test_a_topic_with_a_schema_is_read_by_columns_and_by_times(store: jjq.Store, broker: dict[str, str]) -> None:
    topic = store.create_topic("t", schema=pa.schema([("carrier", pa.string()), ("delay", pa.int32())]))
    topic.push({"carrier": "AA", "delay": 1})
    topic.push({"carrier": "UA", "delay": 2})
    since = topic.read(metadata=["_timestamp"]).read_all().column("_timestamp")[1].as_py()
    late = batch(broker, startingTimestamp=since.isoformat(), columns="delay")
    assert rows(late, late.partitions()) == [{"delay": 2}]
    assert since < dt.datetime.now(dt.UTC)


def test_a_stream_goes_on_from_its_offsets(store: jjq.Store, broker: dict[str, str]) -> None:
    topic = store.create_topic("t", partitions=2)
    topic.push_many(number(10), partition=1)
    made = DefaultSource(broker | {"topic": "t", "startingOffsets": "earliest", "subscriber": "follows"})
    reader = made.streamReader(made.schema())
    assert isinstance(reader, StreamReader)
    start = through_json(reader.initialOffset())
    end = through_json(reader.latestOffset(start, ALL))
    assert values(reader, reader.partitions(start, end)) == number(10)
    topic.push_many(number(5, 10), partition=0)
    more = through_json(reader.latestOffset(end, ALL))
    assert values(reader, reader.partitions(end, more)) == number(5, 10)
    reader.commit(end)
    assert store.subscriber("follows").positions() == {0: 0, 1: 10}
    store.delete_topic("t")
    store.create_topic("t")
    with pytest.raises(Exception, match="deleted"):
        reader.partitions(end, through_json(reader.latestOffset(more, ALL)))


def test_a_topic_that_is_not_there_is_named_with_the_nearest(store: jjq.Store, broker: dict[str, str]) -> None:
    store.create_topic("flights")
    with pytest.raises(Exception, match="did you mean 'flights'"):
        DefaultSource(broker | {"topic": "flihgts"}).schema()
    with pytest.raises(Exception, match="token"):
        DefaultSource({"broker": broker["broker"], "topic": "flights"}).schema()


def test_path_and_broker_are_one_or_the_other_and_a_token_shows_in_no_text() -> None:
    url = "jjq://host:4750"
    options = parse_source({"broker": url, "token": "secret", "topic": "t"})
    assert isinstance(options.path, BrokerUrl)
    assert (options.path, options.path.token) == (url, "secret")
    assert "secret" not in repr(options)
    assert parse_sink({"broker": url, "topic": "t"}).path == url
    for wrong, says in (
        ({"broker": url, "path": "/data"}, "both name a store"),
        ({"broker": "host:4750"}, "jjq://host:port"),
        ({"path": "/data", "token": "x"}, "token is for a broker"),
        ({}, "or .*broker"),
    ):
        with pytest.raises(jjq.InvalidArgument, match=says):
            parse_source(wrong | {"topic": "t"})
