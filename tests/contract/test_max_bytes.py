"""How many bytes of records one poll gives, whatever serves the store."""

import random
from collections.abc import Callable

import pyarrow as pa
import pytest

import jjq

Reopen = Callable[[], jjq.Store]


def offsets(records: list[jjq.Record]) -> list[int]:
    return [record.offset for record in records]


def size(records: list[jjq.Record]) -> int:
    return sum(len(record.value) for record in records)


@pytest.fixture
def subscriber(store: jjq.Store) -> jjq.Subscriber:
    """Of ten records of 100 bytes."""
    store.create_topic("hundreds", sync="none").push_many([bytes(100)] * 10)
    return store.create_subscriber("hundreds", "s")


@pytest.mark.parametrize(
    ("most", "found"), [(1, 1), (99, 1), (100, 1), (199, 1), (200, 2), (250, 2), ("0.5KB", 5), ("64MB", 10), (None, 10)]
)
def test_as_many_come_as_fit_in_and_one_in_any_case(
    subscriber: jjq.Subscriber, most: int | str | None, found: int
) -> None:
    assert offsets(subscriber.poll(max_bytes=most)) == list(range(found))
    assert offsets(subscriber.poll()) == list(range(found, 10))


def test_the_smaller_of_both_bounds_counts(subscriber: jjq.Subscriber) -> None:
    assert offsets(subscriber.poll(2, max_bytes=300)) == [0, 1]
    assert offsets(subscriber.poll(4, max_bytes=300)) == [2, 3, 4]


def test_what_did_not_fit_in_is_not_committed_and_comes_next(subscriber: jjq.Subscriber, reopen: Reopen) -> None:
    assert offsets(subscriber.poll(max_bytes=350)) == [0, 1, 2]
    subscriber.commit()
    assert subscriber.positions() == {0: 3}
    assert offsets(subscriber.poll(max_bytes=350)) == [3, 4, 5]
    subscriber.close()
    assert offsets(reopen().subscriber("s").poll()) == list(range(3, 10))


def test_a_large_record_comes_alone_and_keeps_none_from_coming(store: jjq.Store) -> None:
    topic = store.create_topic("t", sync="none")
    topic.push_many([b"small", bytes(1000), b"small", b"small", bytes(5000), bytes(5000)])
    subscriber = store.create_subscriber("t")
    polls = []
    while records := subscriber.poll(max_bytes=1000):
        polls.append(offsets(records))
    assert polls == [[0], [1], [2, 3], [4], [5]]


def test_keys_and_headers_count(store: jjq.Store) -> None:
    topic = store.create_topic("t", sync="none")
    for _ in range(4):
        topic.push(bytes(10), key=bytes(20), headers={"n" * 30: bytes(40)})
    topic.push(None)
    subscriber = store.create_subscriber("t")
    assert offsets(subscriber.poll(max_bytes=199)) == [0]
    assert offsets(subscriber.poll(max_bytes=200)) == [1, 2]
    assert offsets(subscriber.poll(max_bytes=100)) == [3, 4]


def test_a_row_counts_texts_by_their_length_and_other_values_as_eight(store: jjq.Store) -> None:
    plain = store.create_topic(
        "plain", schema=pa.schema([("name", pa.string()), ("n", pa.int32()), ("yes", pa.bool_())])
    )
    plain.push_many([{"name": "x" * 84, "n": 1, "yes": True}] * 5)
    lists = store.create_topic("lists", schema=pa.schema([("flags", pa.list_(pa.bool_()))]))
    lists.push_many([{"flags": [True] * 100}] * 5)
    for topic, each in ((plain, 100), (lists, 800)):
        subscriber = store.create_subscriber(topic.name)
        assert offsets(subscriber.poll(max_bytes=2 * each)) == [0, 1]
        assert offsets(subscriber.poll(max_bytes=3 * each - 1)) == [2, 3]


def test_of_several_partitions_each_record_comes_once_and_in_order(store: jjq.Store, reopen: Reopen) -> None:
    topic = store.create_topic("t", partitions=3, sync="none")
    chance = random.Random(5)
    pushed: dict[int, list[int]] = {}
    for partition in range(3):
        pushed[partition] = [chance.choice([0, 10, 100, 900, 3000]) for _ in range(150)]
        topic.push_many([bytes(each) for each in pushed[partition]], partition=partition)
    subscriber = store.create_subscriber("t", "s")
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    turn = 0
    while records := subscriber.poll(40, max_bytes=1000):
        assert size(records) <= 1000 or len(records) == 1
        for record in records:
            assert record.offset == len(found[record.partition])
            found[record.partition].append(len(record.value))
        turn += 1
        if turn % 7 == 0:  # another handle goes on behind what was committed
            subscriber.commit()
            subscriber.close()
            subscriber = reopen().subscriber("s")
    assert found == pushed


def test_no_partition_is_starved_by_large_records_of_others(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=3, sync="none")
    topic.push_many([bytes(900)] * 20, partition=0)
    topic.push_many([bytes(100)] * 20, partition=1)
    topic.push_many([bytes(5000)] * 20, partition=2)
    subscriber = store.create_subscriber("t")
    came = [record.partition for _ in range(12) for record in subscriber.poll(max_bytes=1000)]
    assert min(map(came.count, range(3))) >= 3


def test_what_an_iteration_has_read_ahead_is_bound_too(subscriber: jjq.Subscriber) -> None:
    records = iter(subscriber)
    assert next(records).offset == 0
    assert offsets(subscriber.poll(max_bytes=250)) == [1, 2]
    assert next(records).offset == 3
    assert offsets(subscriber.poll(max_bytes=100)) == [4]


def test_a_poll_that_waits_is_bound_too(store: jjq.Store) -> None:
    topic = store.create_topic("t", sync="none")
    subscriber = store.create_subscriber("t")
    assert subscriber.poll(timeout=0.01, max_bytes=150) == []
    topic.push_many([bytes(100)] * 3)
    assert offsets(subscriber.poll(timeout=60, max_bytes=250)) == [0, 1]
    for _ in range(4):
        topic.push(bytes(100))
    assert offsets(subscriber.poll(timeout=60, max_bytes=250)) == [2, 3]
    assert offsets(subscriber.poll(timeout=60, max_bytes=250)) == [4, 5]


def test_by_default_up_to_64_mib_come(store: jjq.Store) -> None:
    topic = store.create_topic("t", sync="none")
    for _ in range(5):
        topic.push(bytes(15 << 20))
    subscriber = store.create_subscriber("t")
    polls = []
    while records := subscriber.poll():
        assert size(records) <= 64 << 20
        polls += [offsets(records)]
    assert [offset for each in polls for offset in each] == list(range(5))
    assert polls[0] in ([0, 1, 2, 3], [0])  # a broker's answer has 8 MiB, or one record


@pytest.mark.parametrize("most", [0, -1, 1.5, True, b"1KB", "0", "0.1", ["1"]])
def test_a_bound_that_is_no_size_is_refused(subscriber: jjq.Subscriber, most: object) -> None:
    with pytest.raises(
        jjq.InvalidArgument, match=r"max_bytes must be a size from 1 byte, such as 1048576 or '64MB', not "
    ):
        subscriber.poll(max_bytes=most)
    assert len(subscriber.poll()) == 10


@pytest.mark.parametrize("most", ["", "many", "-5MB", "1e6"])
def test_a_text_that_is_no_size_is_refused(subscriber: jjq.Subscriber, most: str) -> None:
    with pytest.raises(jjq.InvalidArgument, match=r"max_bytes: .* is no size; write 4096, 64KB or 1\.5GB"):
        subscriber.poll(max_bytes=most)
