"""Values of a wrong type, where lists, tables and handles are asked for: each an error of jjq's own that says what is wanted."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import jjq
from jjq.cli import main
from jjq.server.run import Broker
from jjq.server.settings import load
from jjq.values import each_of
from tests.stores import assert_whole

TABLE = pa.table({"value": [b"x"]})
NUMBERS = pa.schema([("n", pa.int64())])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        store.create_topic("t").push_many([b"a", b"b"])
        store.create_subscriber("t", "s")
        store.channel("t", "c", create=True)
        yield store
        assert_whole(store)


def channel(store: jjq.Store) -> jjq.Channel:
    return store.channel("t", "c")


# What each takes is not among WRONG, nor is a list of it.
LISTS: dict[str, Callable[[jjq.Store, Any], Any]] = {
    "ack": lambda store, wrong: channel(store).ack_many(wrong),
    "requeue": lambda store, wrong: channel(store).requeue_many(wrong),
    "touch": lambda store, wrong: channel(store).touch_many(wrong),
    "commit": lambda store, wrong: store.commit(wrong),
    "discard": lambda store, wrong: store.discard(wrong),
    "slices": lambda store, wrong: store.read_slices(wrong),
    "columns": lambda store, wrong: store.topic("t").read(columns=wrong),
    "metadata": lambda store, wrong: store.topic("t").read(metadata=wrong),
    "partitions": lambda store, wrong: store.topic("t").read(partitions=wrong),
    "offsets": lambda store, wrong: store.offsets(wrong),
    "keys": lambda store, wrong: store.topic("t").push_many([b"x", b"y"], keys=wrong),
    "headers": lambda store, wrong: store.topic("t").push_many([b"x", b"y"], headers=wrong),
    "timestamps": lambda store, wrong: store.topic("t").push_many([b"x", b"y"], timestamps=wrong),
    "staged keys": lambda store, wrong: store.stage().write("t", TABLE, keys=wrong),
    "staged headers": lambda store, wrong: store.stage().write("t", TABLE, headers=wrong),
    "staged timestamps": lambda store, wrong: store.stage().write("t", TABLE, timestamps=wrong),
    "staged topic": lambda store, wrong: store.stage().write(wrong, TABLE),
    "staged owner": lambda store, wrong: store.stage(owner=wrong),
    "numbers of": lambda store, wrong: store.pubsub_numsub(wrong),
    "names like": lambda store, wrong: store.pubsub_channels(wrong),
    "unsubscribe": lambda store, wrong: store.pubsub().unsubscribe(wrong),
    "punsubscribe": lambda store, wrong: store.pubsub().punsubscribe(wrong),
    "reason": lambda store, wrong: channel(store).requeue_many([], 0.0, wrong),
}


@pytest.mark.parametrize("call", LISTS)
def test_a_wrong_type_is_refused_in_words(call: str, store: jjq.Store) -> None:
    record = store.subscriber("s").peek()
    for wrong in (5, 2.5, object(), {"a": 1}, [object()], [None], [[5]], record, [record], store.topic("t"), [store]):
        if call == "staged topic" and isinstance(wrong, jjq.Topic):
            continue
        with pytest.raises(jjq.InvalidArgument) as caught:
            LISTS[call](store, wrong)
        assert len(str(caught.value)) < 1000
    assert [each.end for each in store.topic("t").offsets()] == [2]
    assert not store.writers()


def test_a_producer_refuses_in_words_what_it_cannot_wait_for_call_or_find(store: jjq.Store) -> None:
    with store.producer(linger_ms=60_000) as producer:
        future = producer.push("t", b"v")
        for wrong in (float("nan"), -1, "1", True, [], object()):
            for wait in (future.result, future.exception, producer.flush):
                with pytest.raises(jjq.InvalidArgument, match="timeout"):
                    wait(wrong)  # type: ignore[operator]
        for wrong in ([], {}, None, 5, store.topic("t")):
            with pytest.raises(jjq.InvalidName):
                producer.push(wrong, b"v")  # type: ignore[arg-type]
        with pytest.raises(jjq.InvalidArgument, match="on_error"):
            store.producer(on_error="print")
        producer.flush(float("inf"))
        assert future.result(1e300).offset == 2


def test_a_record_in_the_place_of_its_delivery_is_named(store: jjq.Store) -> None:
    with channel(store) as consumer:
        (delivery,) = consumer.receive()
        with pytest.raises(
            jjq.InvalidArgument, match=r"list of deliveries, as receive returned them, and .* of type Record"
        ):
            consumer.ack_many([delivery.record])  # type: ignore[list-item]
        with pytest.raises(jjq.InvalidArgument, match="list of deliveries, as receive returned them, not one Delivery"):
            consumer.ack_many(delivery)  # type: ignore[arg-type]
        consumer.ack_many(iter([delivery]))
        assert consumer.counts().acked == 1


def test_one_text_is_no_list_of_texts(store: jjq.Store) -> None:
    for use in (store.offsets, lambda text: store.topic("t").push_many([b"x", b"y"], keys=text)):
        with pytest.raises(jjq.InvalidArgument, match=r"not (one )?str"):
            use("ab")
    assert each_of(("a", "b"), str, "names") == each_of({"a": 1, "b": 2}.keys(), str, "names") == ["a", "b"]


def test_of_many_records_the_one_that_does_not_fit_is_named(store: jjq.Store) -> None:
    topic = store.create_topic("n", schema=pa.schema([("n", pa.int32())]))
    for wrong, said in (({"n": "x"}, "record 3: column 'n' takes int32"), ("x", "record 3: a topic with a schema")):
        with pytest.raises(jjq.SchemaMismatch, match=said):
            topic.push_many([{"n": 1}, {"n": None}, {}, wrong, wrong])  # type: ignore[list-item]
    with pytest.raises(jjq.SchemaMismatch, match=r"^column 'n' takes int32"):
        topic.push({"n": "x"})
    assert topic.offsets()[0].end == 0


@pytest.mark.parametrize(
    ("kind", "better"),
    [
        (pa.time64("us"), "int64 or string"), (pa.time32("s"), "int64 or string"), (pa.decimal256(50, 2), "decimal128"),
        (pa.null(), "the type that it is to have later"), (pa.uint64(), "decimal128"), (pa.struct([]), "a struct with fields"),
        (pa.month_day_nano_interval(), "string"), (pa.list_(pa.float16()), "float32"),
    ],
    ids=str,
)  # fmt: skip
def test_a_type_that_cannot_be_is_told_one_that_can(store: jjq.Store, kind: pa.DataType, better: str) -> None:
    with pytest.raises(jjq.SchemaMismatch, match=f"which Spark cannot read; use {better}"):
        store.create_topic("n", schema=pa.schema([("n", kind)]))


@pytest.mark.parametrize("url", ["jjq://localhost:4750", "jjq+tls://host", "s3://bucket/store"])
def test_an_address_is_no_directory(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given in (url, Path(url)):
        with pytest.raises(jjq.InvalidArgument, match=r"jjq\.connect"):
            jjq.open(given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("file:///data/jjq", "write the path alone"),
        ("s3://bucket/store", "on a local disk"),
        ("https://host:4751", r"brokers, as jjq\+tls://host:port"),
    ],
)
def test_an_address_is_told_what_it_would_be_here(url: str, says: str) -> None:
    with pytest.raises(jjq.InvalidArgument, match=says):
        jjq.open(url)


@pytest.mark.parametrize("time", ["2020-01-01T00:00:00Z", datetime(2020, 1, 1, tzinfo=UTC)])
def test_a_time_for_a_number_of_microseconds_is_told_what_takes_it(store: jjq.Store, time: Any) -> None:
    topic = store.topic("t")
    with pytest.raises(jjq.InvalidArgument, match=r"microseconds since 1970, .* resolve takes a time"):
        topic.offset_for_timestamp(time)
    assert topic.resolve(time) == {0: 0}


@pytest.mark.parametrize("time", [1_767_225_600, 1_767_225_600_000])
def test_seconds_and_milliseconds_are_not_taken_for_microseconds_that_are_looked_for(
    store: jjq.Store, time: int
) -> None:
    with pytest.raises(jjq.InvalidArgument, match=r"not \d+, which looks like seconds or milliseconds; resolve takes"):
        store.topic("t").offset_for_timestamp(time)


@pytest.mark.parametrize("path", ["~", "~/store", "~somebody/store"])
def test_a_home_directory_is_not_made_where_the_program_runs(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in (path, Path(path)):
        for way in (jjq.open, jjq.Store):
            with pytest.raises(jjq.InvalidArgument, match=r"begins with ~.*: write the whole path$"):
                way(given)
    for command in (["topic", "create", "t"], ["verify"], ["repair"], ["serve", "--http-port", "0"], ["token", "list"]):
        assert main([*command, f"--store={path}"]) == 2
        assert "write the whole path" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    jjq.open(f"./{path}").close()
    jjq.Store(f"./{path}", create=False).close()
    assert main([f"--store=./{path}", "topic", "create", "t"]) == 0
    assert main([f"--store=./{path}", "token", "list"]) == 0
    with Broker(load({"store": f"./{path}", "http": "no", "flight_port": "0"}, {})):
        assert (tmp_path / path / "catalog.db").exists()


@pytest.mark.parametrize("path", ["", "  "])
def test_an_empty_path_is_no_directory(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a variable that is not set: the directory in which the program happens to run is not meant."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(jjq.InvalidArgument, match="a store is a directory's path, not '"):
        jjq.open(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (
            pa.table({"n": [1.0, float("nan")]}),
            r"nan is no whole number; make it null before \(Polars: fill_nan\(None\)\)",
        ),
        (pl.DataFrame({"n": [1.0, float("nan")]}), "nan is no whole number; make it null before"),
        (pd.DataFrame({"n": [1.0, 1.5]}), "type double does not fit int64: 1.500000 is no whole number$"),
        (pa.table({"n": [float("inf")]}), "inf is no whole number$"),
        *[
            (column, r"not \w+; pa.table\({'name': column}\) makes a table of a column")
            for column in (pd.Series([1], name="n"), pl.Series("n", [1]), pa.array([1]), pa.chunked_array([[1]]))
        ],
        (pl.LazyFrame({"n": [1]}), r"not LazyFrame; collect\(\) makes a frame"),
        ([{"n": 1}], "not list; push_many takes a list of rows"),
        ({"n": [1]}, "not dict; pa.table makes one of columns by name"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_table_that_does_not_fit_is_refused_with_what_to_do(store: jjq.Store, data: Any, says: str) -> None:
    topic = store.create_topic("s", schema=NUMBERS)
    with pytest.raises((jjq.SchemaMismatch, jjq.InvalidArgument), match=says):
        topic.push_table(data)
    assert topic.offsets()[0].end == 0


def test_a_frame_where_rows_are_taken_is_told_where_it_goes(store: jjq.Store) -> None:
    topic = store.create_topic("s", schema=NUMBERS)
    for frame in (pd.DataFrame({"n": [1]}), pl.DataFrame({"n": [1]}), pa.table({"n": [1]}), pl.LazyFrame({"n": [1]})):
        for push in (topic.push, topic.push_many):
            with pytest.raises(
                (jjq.SchemaMismatch, jjq.InvalidArgument), match=r"; push_table takes tables and frames$"
            ):
                push(frame)  # type: ignore[arg-type]
