"""The connector's readers through a broker, called as Spark calls them, in the process of the tests."""

import datetime as dt
import pickle
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan

import jjq
from jjq.clock import from_us
from jjq.server.flight import FlightFront
from jjq.server.guard import Guard
from jjq.server.settings import ServerSettings
from jjq.server.tokens import TokenFile
from pyspark_jjq import DefaultSource, idling
from pyspark_jjq.options import Access, BrokerUrl, parse_sink, parse_source
from pyspark_jjq.reader import BatchReader, FilteringReader
from pyspark_jjq.stream import StreamReader
from tests.certificates import made_in
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


def test_a_query_that_rests_is_woken_by_a_push_through_the_broker(
    store: jjq.Store, broker: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idling, "IDLE_SHARE", 1e9)
    monkeypatch.setattr(idling, "IDLE_PAUSE_MAX_S", 3600.0)
    topic = store.create_topic("t", partitions=2)
    made = DefaultSource(broker | {"topic": "t", "startingOffsets": "earliest"})
    reader = made.streamReader(made.schema())
    assert isinstance(reader, StreamReader)
    at = through_json(reader.initialOffset())
    assert reader.latestOffset(at, ALL) == at
    reader._idle.end()
    assert reader.latestOffset(at, ALL) == at  # now it is known what is to be awaited
    for partition in (0, 1, 0):
        threading.Thread(target=topic.push, args=(b"x",), kwargs={"partition": partition}).start()
        end = through_json(reader.latestOffset(at, ALL))
        assert [row["partition"] for row in rows(reader, reader.partitions(at, end))] == [partition]
        at = end
        assert reader.latestOffset(at, ALL) == at


# --- what filters leave ----------------------------------------------------------------------------------------------


def planned(reader: BatchReader) -> int:
    """How many rows the tasks will read."""
    return sum(each.end - each.start for part in reader.partitions() for each in part.value)


def test_filters_on_columns_and_times_leave_whole_batches_in_the_broker(
    store: jjq.Store, broker: dict[str, str]
) -> None:
    topic = store.create_topic("t", schema=pa.schema([("at", pa.int64()), ("name", pa.string())]), partitions=2)
    for number_of in range(8):
        first = number_of * 1000
        rows_of = {"at": range(first, first + 1000), "name": [f"n{i:05d}" for i in range(first, first + 1000)]}
        topic.push_table(pa.table(rows_of), partition=number_of % 2, writer_id="w", batch_id=number_of)

    def read(*filters: Any, **options: Any) -> tuple[int, list[int]]:
        reader = batch(broker, pushDownPredicate="true", **options)
        assert isinstance(reader, FilteringReader)
        assert list(reader.pushFilters(list(filters))) == list(filters)
        return planned(reader), sorted(row["at"] for row in rows(reader, reader.partitions()))

    assert read() == (8000, list(range(8000)))
    assert read(EqualTo(("at",), 3210)) == (1000, [3210])
    assert read(GreaterThanOrEqual(("name",), "n06990"), LessThan(("name",), "n07010")) == (
        2000,
        list(range(6990, 7010)),
    )
    assert read(EqualTo(("at",), 99999)) == (0, [])
    begun = topic.segments(0)[2].min_timestamp
    assert begun is not None
    left, found = read(GreaterThanOrEqual(("_timestamp",), from_us(begun)), columns="at", metadata="_timestamp")
    assert (left, set(range(4000, 8000)) - set(found)) == (4000, set())


# --- files that can be seen ------------------------------------------------------------------------------------------


@pytest.fixture
def copied(store: jjq.Store, broker: dict[str, str], tmp_path: Path) -> Path:
    """Another place where the files of the broker's store, one sealed and one not, can be seen."""
    topic = store.create_topic("t")
    topic.push_table(pa.table({"value": number(1000)}), writer_id="w", batch_id=0)
    topic.push_many(number(10, 1000))
    return shutil.copytree(store.path, tmp_path / "copied", ignore=shutil.ignore_patterns("*.db*", "*.lock"))


def sealed_in(directory: Path) -> Path:
    (found,) = directory.glob("topics/*/0/*.arrow")
    return found


def test_sealed_files_that_can_be_seen_are_read_and_the_rest_is_fetched(
    store: jjq.Store, broker: dict[str, str], copied: Path
) -> None:
    reader = batch(broker | {"path": str(copied)})
    tasks = reader.partitions()
    sealed = sealed_in(store.path)
    sealed.rename(store.path.with_name("away"))  # now the broker has it no more
    assert values(reader, tasks) == number(1010)
    narrow = batch(
        broker | {"path": str(copied)}, columns="offset,timestampType,value", startingOffsets='{"t":{"0":990}}'
    )
    assert [(row["offset"], row["timestampType"]) for row in rows(narrow, narrow.partitions())] == [
        (offset, 1) for offset in range(990, 1010)
    ]
    store.path.with_name("away").rename(sealed)  # which a store that is closed would miss


@pytest.mark.parametrize("amiss", ["gone", "cut", "damaged", "of another segment", "no store"])
def test_a_file_that_is_amiss_is_fetched_from_the_broker(broker: dict[str, str], copied: Path, amiss: str) -> None:
    path = sealed_in(copied)
    tasks = batch(broker | {"path": str(copied)}).partitions()
    whole = path.read_bytes()
    if amiss == "gone":
        path.unlink()
    elif amiss == "no store":
        (copied / "jjq.json").unlink()
    elif amiss == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif amiss == "damaged":
        path.write_bytes(whole.replace(b"999", b"998"))
    else:
        path.write_bytes(b"ARROW1" + bytes(len(whole) - 6))
    reader = batch(broker | {"path": str(copied)})
    assert values(reader, tasks) == number(1010)


def test_files_that_compaction_replaced_since_the_plan_are_no_loss(store: jjq.Store, broker: dict[str, str]) -> None:
    topic = store.create_topic("t", segment_rows=10)
    for first in range(0, 100, 10):
        topic.push_many(number(10, first))
    store.maintain()
    reader = batch(broker | {"path": str(store.path)})
    tasks = reader.partitions()
    topic.push_many(number(10, 100))
    store.maintain(grace_us=0)
    assert values(reader, tasks) == number(100)


def test_a_path_with_another_store_is_refused(broker: dict[str, str], tmp_path: Path) -> None:
    with jjq.open(tmp_path / "other"):
        pass
    with pytest.raises(jjq.InvalidArgument, match="holds another store"):
        DefaultSource(broker | {"topic": "t", "path": str(tmp_path / "other")}).schema()


# --- options ---------------------------------------------------------------------------------------------------------


def test_how_a_broker_is_connected_to_is_told_and_a_token_shows_in_no_text() -> None:
    url = "jjq+tls://host:4750"
    tls = {"tlsCa": "/ca.pem", "tlsCert": "/me.pem", "tlsKey": "/me.key"}
    options = parse_source(
        {"broker": url, "token": "secret", "topic": "t", "path": "file:/data", "retryFor": "2m", **tls}
    )
    assert isinstance(options.path, BrokerUrl)
    assert options.path == url
    assert options.path.access == Access("secret", "/ca.pem", "/me.pem", "/me.key", 120.0, "/data")
    assert pickle.loads(pickle.dumps(options)).path.access == options.path.access
    assert "secret" not in repr(options) + repr(options.path) + repr(options.path.access)
    assert parse_sink({"broker": url, "topic": "t"}).path == url
    for wrong, says in (
        ({"broker": "host:4750"}, "jjq://host:port"),
        ({"broker": "jjq://host", "tlsCa": "/ca.pem"}, r"tlsCa is for jjq\+tls://"),
        ({"broker": url, "tlsCert": "/me.pem"}, "go together"),
        ({"broker": url, "retryFor": "soon"}, "retryFor is a number with"),
        ({"path": "/data", "token": "x"}, "token is for a broker"),
        ({"path": "/data", "tlsCa": "x"}, "tlsCa is for a broker"),
        ({}, "or .*broker"),
    ):
        with pytest.raises(jjq.InvalidArgument, match=says):
            parse_source(wrong | {"topic": "t"})
    with pytest.raises(jjq.InvalidArgument, match="both name a store"):
        parse_sink({"broker": url, "path": "/data", "topic": "t"})


def test_what_no_option_says_of_a_broker_is_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JJQ_TOKEN", "JJQ_TLS_CA", "JJQ_CLIENT_CERT", "JJQ_CLIENT_KEY"):
        monkeypatch.setenv(name, f"the {name}")

    def access(**options: str) -> Access:
        path = parse_source({"topic": "t", **options}).path
        assert isinstance(path, BrokerUrl)
        return path.access

    assert access(broker="jjq+tls://host") == Access(
        "the JJQ_TOKEN", "the JJQ_TLS_CA", "the JJQ_CLIENT_CERT", "the JJQ_CLIENT_KEY"
    )
    assert access(broker="jjq://host", token="mine") == Access("mine")
    assert parse_source({"topic": "t", "path": "/data"}).path == "/data"


def test_a_broker_that_asks_for_a_certificate_is_shown_one(
    store: jjq.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_topic("t").push(b"v")
    pem = made_in(tmp_path / "pem")
    settings = ServerSettings(
        store=store.path, flight_port=0, tls_cert=pem.server, tls_key=pem.server_key, tls_client_ca=pem.authority
    )
    front = FlightFront(store, settings, Guard(settings))
    url = {"broker": f"jjq+tls://localhost:{front.start()}", "retryFor": "0"}
    mine = {"tlsCa": str(pem.authority), "tlsCert": str(pem.client), "tlsKey": str(pem.client_key)}
    try:
        reader = batch(url | mine)
        assert values(reader, reader.partitions()) == [b"v"]
        with pytest.raises(jjq.BrokerUnavailable):
            batch(url | {"tlsCa": mine["tlsCa"]})
        close_stores()
        for variable, path in (("TLS_CA", pem.authority), ("CLIENT_CERT", pem.client), ("CLIENT_KEY", pem.client_key)):
            monkeypatch.setenv(f"JJQ_{variable}", str(path))
        reader = batch(url)
        assert values(reader, reader.partitions()) == [b"v"]
    finally:
        close_stores()
        front.stop(30)
