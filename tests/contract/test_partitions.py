"""Topics that are given more partitions while others push to them through stores of their own."""

# ruff: noqa: F811 - fixtures are imported by their names

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

import jjq
from jjq.batch import PushFuture
from jjq.preparing import partition_of
from tests.partitions import Reopen, elsewhere, grow, topic  # noqa: F401

KEYS = [b"key-%d" % i for i in range(40)]
AMONG_2 = [partition_of(key, 2) for key in KEYS]
AMONG_5 = [partition_of(key, 5) for key in KEYS]


# --- the topic -------------------------------------------------------------------------------------------------------


def test_the_topic_has_them_and_everybody_sees_them(store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store) -> None:
    handle = elsewhere.topic("t")
    grown = grow(store)
    assert (grown.id, grown.partitions, store.topic("t").partitions) == (topic.id, 5, 5)
    for each in (topic, handle):
        assert [(bounds.start, bounds.end, bounds.lineage) for bounds in each.offsets()] == [
            (0, 2, 0), (0, 2, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0)
        ]  # fmt: skip
        assert [part["partition"] for part in each.describe()["partitions"]] == [0, 1, 2, 3, 4]
        assert (each.refresh(), each.partitions) == (None, 5)
    [stats] = store.stats()["topics"]
    assert (stats["partitions"], stats["records"]) == (5, 4)


def test_no_partition_can_be_taken_away(store: jjq.Store, topic: jjq.Topic) -> None:
    with pytest.raises(
        jjq.InvalidArgument, match="has 2 partitions and cannot have fewer: the records of those beyond 1"
    ):
        grow(store, 1)
    assert grow(store, 2).partitions == 2
    for wrong in (0, -1, True, 2.0, "3", 1 << 40):
        with pytest.raises(jjq.InvalidArgument, match="partitions must be a whole number"):
            store.alter_topic("t", partitions=wrong)  # type: ignore[arg-type]
    assert [each.end for each in topic.offsets()] == [2, 2]


def test_it_can_be_altered_in_other_ways_at_once(store: jjq.Store) -> None:
    topic = store.create_topic("s", schema=pa.schema([("n", pa.int64())]))
    grown = store.alter_topic("s", partitions=2, add_columns=pa.schema([("x", pa.int64())]), retention="1 day")
    assert (grown.partitions, grown.schema_version, grown.config.retention_us) == (2, 2, 86_400_000_000)
    grown.push({"n": 1, "x": 2}, partition=1)
    assert topic.read(partitions=[1]).read_all().num_rows == 1
    topic.refresh()
    assert topic.read(partitions=[1]).read_all().to_pylist() == [{"n": 1, "x": 2}]


def test_two_that_grow_it_at_once_leave_the_greater_number(
    store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store
) -> None:
    refused: list[jjq.JjqError] = []

    def work(store: jjq.Store, numbers: range) -> None:
        for number in numbers:
            try:
                grow(store, number)
            except jjq.InvalidArgument as error:
                refused.append(error)

    threads = [
        threading.Thread(target=work, args=(store, range(3, 20))),
        threading.Thread(target=work, args=(elsewhere, range(4, 21))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("cannot have fewer" in str(error) for error in refused)
    assert (store.topic("t").partitions, len(topic.offsets())) == (20, 20)


def test_emptying_and_deleting_by_an_older_handle_take_all(
    store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store
) -> None:
    handle = elsewhere.topic("t")
    grow(store).push_many([b"x"] * 3, partition=4)
    handle.empty()
    assert [(each.start, each.end) for each in topic.offsets()] == [(2, 2), (2, 2), (0, 0), (0, 0), (3, 3)]
    elsewhere.delete_topic("t")
    with pytest.raises(jjq.TopicDeleted):
        topic.push(b"x", partition=4)


def test_retention_takes_from_new_partitions_too(store: jjq.Store, topic: jjq.Topic) -> None:
    store.alter_topic("t", partitions=3, segment_rows=2, retention_segments=1)
    topic.push_many([b"a", b"b"], partition=2)
    topic.push_many([b"c", b"d"], partition=2)
    assert store.maintain(grace_us=0).errors == []
    assert (topic.offsets()[2].start, topic.offsets()[2].end) == (2, 4)


# --- pushing ---------------------------------------------------------------------------------------------------------


def push_table(topic: jjq.Topic, **writer: object) -> list[int]:
    before = [each.end for each in topic.offsets()]
    topic.push_table(pa.table({"value": KEYS, "key": KEYS}), **writer)  # type: ignore[arg-type]
    places = {}
    for bounds in topic.offsets():
        start = before[bounds.partition] if bounds.partition < len(before) else 0
        found = topic.read({bounds.partition: start}, partitions=[bounds.partition]).read_all()
        places.update(dict.fromkeys(found["_key"].to_pylist(), bounds.partition))
    return [places[key] for key in KEYS]


def stage(topic: jjq.Topic) -> list[int]:
    with topic._store.stage() as stage:
        stage.write(topic, pa.table({"value": KEYS, "key": KEYS}))
        files = stage.finish()
    topic._store.commit(files)
    keys = {
        key: each.partition
        for each in topic.offsets()
        for key in topic.read(partitions=[each.partition]).read_all()["_key"].to_pylist()
    }
    return [keys[key] for key in KEYS]


def produce(topic: jjq.Topic) -> list[int]:
    with topic._store.producer(linger_ms=1000) as producer:
        futures = [producer.push("t", b"v", key=key) for key in KEYS]
        producer.flush()
        return [future.result().partition for future in futures]


PUSHES: dict[str, Callable[[jjq.Topic], list[int]]] = {
    "push": lambda topic: [topic.push(b"v", key=key).partition for key in KEYS],
    "push_many": lambda topic: [each.partition for each in topic.push_many(KEYS, keys=KEYS)],
    "atomic push_many": lambda topic: [each.partition for each in topic.push_many(KEYS, keys=KEYS, atomic=True)],
    "push_table": push_table,
    "push_table once": lambda topic: push_table(topic, writer_id="w", batch_id=1),
    "stage": stage,
    "producer": produce,
}


@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES.keys())
@pytest.mark.parametrize("used", [False, True])
def test_keys_choose_among_all_at_the_next_push_of_any_handle(
    store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store, push: Callable[[jjq.Topic], list[int]], used: bool
) -> None:
    handle = elsewhere.topic("t")
    if used:  # so that it has files of both partitions open
        handle.push_many(KEYS, keys=[b"other-%d" % i for i in range(40)])
    grow(store)
    assert push(handle) == AMONG_5
    assert set(AMONG_2) != set(AMONG_5)


def test_plain_values_take_turns_among_all(store: jjq.Store, reopen: Reopen) -> None:
    topic = reopen().create_topic("one")
    assert [topic.push(b"v").partition for _ in range(3)] == [0, 0, 0]
    store.alter_topic("one", partitions=3)
    assert {topic.push(b"v").partition for _ in range(3)} == {0, 1, 2}
    store.alter_topic("one", partitions=6)
    assert {topic.push(b"v").partition for _ in range(7)} == set(range(6))
    assert [each.partition for each in topic.push_many([b"a", b"b"])] in [[place] * 2 for place in range(6)]


def test_a_partition_can_be_named_as_soon_as_it_is_there(
    store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store
) -> None:
    handle = elsewhere.topic("t")
    with pytest.raises(jjq.InvalidArgument, match="has partitions 0 to 1, not 4"):
        handle.push(b"v", partition=4)
    grow(store)
    assert handle.push(b"v", partition=4).offset == 0
    assert handle.push_many([b"v"] * 2, partition=3).ranges[0].end == 2
    with pytest.raises(jjq.InvalidArgument, match="has partitions 0 to 4, not 5"):
        handle.push(b"v", partition=5)


def test_threads_that_push_meanwhile_lose_nothing_and_keep_the_order_of_keys(
    store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store
) -> None:
    """Each key's records are in order in the partitions it had, one after the other."""
    handle = elsewhere.topic("t")
    started, done = threading.Barrier(5), threading.Event()
    counts = [0] * 4

    def work(number: int) -> None:
        started.wait()
        while not done.is_set() or counts[number] < 20:
            value = b"%d" % counts[number]
            if number % 2:
                handle.push(value, key=b"k%d" % number)
            else:
                handle.push_many([value], keys=[b"k%d" % number])
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    sizes = [2]
    for count in (3, 5, 9):
        grow(store, count)
        sizes.append(count)
    done.set()
    for thread in threads:
        thread.join()
    for number in range(4):
        key, places = b"k%d" % number, []
        for count in sizes:
            place = partition_of(b"k%d" % number, count)
            if place not in places:
                places.append(place)
        found = {p: topic.read(partitions=[p]).read_all().to_pylist() for p in range(9)}
        numbers = {p: [int(row["value"]) for row in rows if row["_key"] == key] for p, rows in found.items()}
        assert all(each == sorted(each) for each in numbers.values())
        assert sorted(itertools.chain(*numbers.values())) == list(range(counts[number]))
        assert {p for p, each in numbers.items() if each} <= set(places)


def test_a_producer_divides_what_it_gathered_before(store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store) -> None:
    told: list[jjq.Position] = []
    with elsewhere.producer(linger_ms=60_000) as producer:
        futures = [producer.push("t", b"%d" % i, key=key) for i, key in enumerate(KEYS)]
        futures[0].add_done_callback(lambda future: told.append(future.result()))
        plain = [producer.push("t", b"plain", headers={"h": b"%d" % i}) for i in range(5)]
        grow(store)
        producer.flush()
        assert [each.result().partition for each in futures] == AMONG_5
        assert told == [futures[0].result()]
        assert {each.result().partition for each in plain} <= set(range(5))
        assert (producer.acknowledged, producer.failed) == (45, 0)
        later = [producer.push("t", b"later", key=key) for key in KEYS]
        producer.flush()
        assert [each.result().partition for each in later] == AMONG_5
    for i, future in enumerate(futures):
        partition, offset, stamp = future.result()
        [row] = topic.read({partition: offset}, {partition: offset + 1}, partitions=[partition]).read_all().to_pylist()
        assert (row["value"], row["_key"]) == (b"%d" % i, KEYS[i])
        assert round(row["_timestamp"].timestamp() * 1_000_000) == stamp
        assert later[i].result().offset > offset


def test_a_producer_leaves_records_where_their_partition_was_given(
    store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store
) -> None:
    with elsewhere.producer(linger_ms=60_000) as producer:
        pushes = [producer.push("t", b"%d" % i, key=KEYS[0], partition=(0, None)[i % 2]) for i in range(10)]
        grow(store)
        pushes += [producer.push("t", b"%d" % i, key=KEYS[0], partition=0) for i in range(10, 12)]
        producer.flush()
        places = [push.result() for push in pushes]
        assert {place.partition for place in places[::2]} == {places[11].partition} == {0}
        offsets = [place.offset for place in places if place.partition == 0]
        assert offsets == sorted(offsets)


def test_a_batch_of_a_producer_that_cannot_be_written_fails_for_its_own_records(
    store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store
) -> None:
    failed: list[PushFuture] = []
    with elsewhere.producer(linger_ms=60_000, on_error=failed.append) as producer:
        pushes = [producer.push("t", b"v", key=key) for key in KEYS]
        grow(store)
        store.delete_topic("t")
        producer.flush()
        for push in pushes:
            with pytest.raises(jjq.TopicDeleted):
                push.result()
    assert (producer.failed, len(failed)) == (40, 40)
    store.create_topic("t")


def test_what_was_staged_before_is_committed_where_it_was_staged_for(store: jjq.Store, topic: jjq.Topic) -> None:
    with store.stage(owner=("w", 1)) as stage:
        stage.write("t", pa.table({"value": KEYS, "key": KEYS}))
        files = stage.finish()
    grow(store)
    first = store.commit(files, writer_id="w", batch_id=1)
    assert {p: span[1] - span[0] for p, span in first.positions["t"].items()} == {
        p: AMONG_2.count(p) for p in range(2)
    }  # fmt: skip
    again = store.commit(files, writer_id="w", batch_id=1)
    assert (again.duplicate, again.positions) == (True, first.positions)
    assert topic.read().read_all().num_rows == 4 + len(KEYS)
