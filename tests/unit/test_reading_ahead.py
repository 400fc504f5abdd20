"""What a feed has in memory: what it gives at once, and what it read and made records of before."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq import feed, records
from jjq.log.stream import StreamReader

MB = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store", maintenance=False) as opened:
        yield opened


def ready(subscriber: jjq.Subscriber) -> int:
    """Bytes that were made records of and not given yet."""
    return sum(len(record.value) for window in subscriber._polling._windows.values() for record in window.ready)


def test_of_many_partitions_no_more_are_read_than_can_be_given(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=40, sync="none")
    for partition in range(40):
        topic.push_many([bytes(MB)] * 2, partition=partition)
    subscriber = store.create_subscriber("t")
    came: list[tuple[int, int]] = []
    while found := subscriber.poll(500, max_bytes=4 * MB):
        came += [(each.partition, each.offset) for each in found]
        assert len(found) <= 4
        assert ready(subscriber) <= 5 * MB
    assert sorted(came) == [(partition, offset) for partition in range(40) for offset in range(2)]
    for _ in range(2):  # as iteration takes them
        subscriber.seek("earliest")
        subscriber.sleep()
        assert len(subscriber.poll(1)) == 1
        assert ready(subscriber) <= feed.TAKE_BYTES


def test_of_large_records_that_did_not_fit_in_only_some_are_kept(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_LARGE_BYTES", 10 * MB)
    topic = store.create_topic("t", partitions=10, sync="none")
    for partition in range(10):
        for _ in range(3):
            topic.push(bytes(3 * MB), partition=partition)
    subscriber = store.create_subscriber("t")
    came: list[tuple[int, int]] = []
    for most_bytes in (1, 4 * MB, 4 * MB):
        for _ in range(10):
            [record] = subscriber.poll(500, max_bytes=most_bytes)
            came.append((record.partition, record.offset))
            assert ready(subscriber) <= 12 * MB
    assert sorted(came) == [(partition, offset) for partition in range(10) for offset in range(3)]
    assert subscriber.poll() == []


def test_waking_up_reads_what_the_next_poll_can_give(store: jjq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "TAKE_BYTES", 10 * MB)
    topic = store.create_topic("t", partitions=10, sync="none")
    for partition in range(10):
        topic.push(bytes(3 * MB), partition=partition)
    subscriber = store.create_subscriber("t")
    assert len(subscriber.poll(1)) == 1
    subscriber.wakeup()
    assert ready(subscriber) == 12 * MB
    assert len(subscriber.poll(max_bytes=None)) == 9


def test_large_rows_among_small_ones_become_records_by_bytes(store: jjq.Store) -> None:
    """By its average, what was pushed at once is read in pieces of many rows."""
    topic = store.create_topic("t", sync="none")
    topic.push_many([b"x"] * 2000 + [bytes(MB)] * 20 + [b"x"] * 2000)
    subscriber = store.create_subscriber("t")
    count = 0
    while found := subscriber.poll(5000, max_bytes=3 * MB):
        assert [each.offset for each in found] == list(range(count, count + len(found)))
        count += len(found)
        assert ready(subscriber) <= feed._DECODE_BYTES
    assert count == 4020


def test_passing_over_large_rows_that_were_read_ahead_takes_them_one_by_one(store: jjq.Store) -> None:
    topic = store.create_topic("t", sync="none")
    topic.push_many([b"x"] * 20000 + [bytes(MB)] * 20 + [b"x"])
    subscriber = store.create_subscriber("t")
    subscriber.poll(19999)
    subscriber.seek(20020)
    assert [each.offset for each in subscriber.poll()] == [20020]


@pytest.mark.parametrize("schema", [None, pa.schema([("a", pa.string()), ("n", pa.int64())])])
def test_small_records_are_not_counted_one_by_one(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch, schema: pa.Schema | None
) -> None:
    counted: list[jjq.Record] = []
    monkeypatch.setattr(feed, "bytes_of", lambda record: counted.append(record) or records.bytes_of(record))
    topic = store.create_topic("t", partitions=2, sync="none", schema=schema)
    for partition in range(2):
        topic.push_many([b"x" * 100 if schema is None else {"a": "x", "n": 1}] * 5000, partition=partition)
    subscriber = store.create_subscriber("t")
    topic.push(b"x" if schema is None else {"n": 2})
    while subscriber.poll(500):
        pass
    assert counted == []
    subscriber.seek("earliest")
    assert len(subscriber.poll(500, max_bytes=2500)) < 500
    assert len(counted) < 500


def test_who_follows_large_messages_reads_each_once(store: jjq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    scan = StreamReader.scan

    def counting(self: StreamReader, *places: int) -> Iterator[Any]:
        for each in scan(self, *places):
            read.append(each[0])
            yield each

    monkeypatch.setattr(StreamReader, "scan", counting)
    topic = store.create_topic("t", sync="none")
    for _ in range(30):
        topic.push(bytes(2 * MB))
    subscriber = store.create_subscriber("t")
    assert [subscriber.pop().offset for _ in range(30)] == list(range(30))
    assert read == list(range(30))
