"""Topics that are given more partitions while others push to them and read them through stores of their own."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq.feed import follow
from jjq.staging import partition_of
from jjq.subscriber import resolve_places
from tests.stores import assert_whole

Reopen = Callable[[], jjq.Store]
KEYS = [b"key-%d" % i for i in range(40)]
AMONG_2 = [partition_of(key, 2) for key in KEYS]
AMONG_5 = [partition_of(key, 5) for key in KEYS]


@pytest.fixture
def topic(store: jjq.Store) -> Iterator[jjq.Topic]:
    """Two partitions with two records each."""
    topic = store.create_topic("t", partitions=2, sync="none")
    for partition in range(2):
        topic.push_many([b"old %d %d" % (partition, i) for i in range(2)], partition=partition)
    yield topic
    assert_whole(store)


@pytest.fixture
def elsewhere(topic: jjq.Topic, reopen: Reopen) -> jjq.Store:
    """Another process's store, by whose handles nothing is known of what this one changes."""
    return reopen()


def grow(store: jjq.Store, partitions: int = 5) -> jjq.Topic:
    return store.alter_topic("t", partitions=partitions)


def values(records: list[jjq.Record]) -> set[bytes]:
    return {record.value for record in records}


OLD = {b"old 0 0", b"old 0 1", b"old 1 0", b"old 1 1"}


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
    failed: list[jjq.PushFuture] = []
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


# --- subscribers -----------------------------------------------------------------------------------------------------


def pop_all(subscriber: jjq.Subscriber) -> set[bytes]:
    return values(list(iter(subscriber.pop, None)))


def iterate(subscriber: jjq.Subscriber) -> set[bytes]:
    found = set()
    for record in subscriber:
        found.add(record.value)
        if record.value == b"last":
            break
    return found


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_whoever_pops_gets_all_of_the_new_ones(
    store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store, start: str
) -> None:
    subscriber = store.create_subscriber("t", "s", start=start)
    first = {record.value for record in [subscriber.pop()] if record}
    grown = grow(elsewhere)
    for partition in range(5):
        grown.push(b"new %d" % partition, partition=partition)
    new = {b"new %d" % partition for partition in range(5)}
    peeked = subscriber.peek()
    assert peeked is not None
    assert pop_all(subscriber) | first == new | (OLD if start == "earliest" else set())
    assert subscriber.positions() == {0: 3, 1: 3, 2: 1, 3: 1, 4: 1}
    assert [(each.partition, each.records) for each in subscriber.lag()] == [(p, 0) for p in range(5)]


@pytest.mark.parametrize("polled", [False, True])
def test_whoever_polls_gets_all_of_the_new_ones_and_commits_them(
    store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store, polled: bool
) -> None:
    subscriber = store.create_subscriber("t", "s")
    found = values(subscriber.poll(1 if polled else 4))
    grow(elsewhere).push(b"new", partition=4)
    while records := subscriber.poll():
        found |= values(records)
    assert found == OLD | {b"new"}
    assert subscriber.positions() == dict.fromkeys(range(5), 0)
    subscriber.commit()
    assert subscriber.positions() == {0: 2, 1: 2, 2: 0, 3: 0, 4: 1}
    elsewhere.topic("t").push(b"more", partition=3)
    assert values(subscriber.poll()) == {b"more"}


def test_new_partitions_do_not_wait_until_the_others_are_read(
    store: jjq.Store, elsewhere: jjq.Store, topic: jjq.Topic
) -> None:
    """One that is always behind takes them in when it comes to the end of a file."""
    topic.push_many([b"%d" % i for i in range(3000)], partition=0)
    popping, polling = store.create_subscriber("t", "popping"), store.create_subscriber("t", "polling")
    assert popping.pop()
    assert polling.poll(1)
    grow(elsewhere).push(b"new", partition=2)
    topic.push_many([b"%d" % i for i in range(3000)], partition=0)
    for take in (popping.pop, lambda: next(iter(polling.poll(1)), None)):
        position = next(i for i in itertools.count() if (record := take()) is None or record.value == b"new")
        assert position < 3100


def test_what_was_popped_of_a_new_partition_is_not_polled(
    store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store
) -> None:
    subscriber = store.create_subscriber("t", "s", start="latest")
    assert subscriber.poll() == []
    grow(elsewhere).push_many([b"a", b"b", b"c"], partition=3)
    assert subscriber.pop().value == b"a"  # type: ignore[union-attr]
    assert elsewhere.subscriber("s").pop().value == b"b"  # type: ignore[union-attr]
    assert values(subscriber.poll()) == {b"c"}


def test_iteration_goes_on_into_new_partitions(store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store) -> None:
    subscriber = store.create_subscriber("t", "s")
    steps = iter(subscriber)
    found = {next(steps).value for _ in range(4)}
    grow(elsewhere).push(b"new", partition=4)
    assert (found, next(steps).value) == (OLD, b"new")


def test_seeking_and_lag_know_new_partitions(store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store) -> None:
    subscriber = store.create_subscriber("t", "s", start="latest")
    assert (subscriber.pop(), subscriber.poll()) == (None, [])
    grow(elsewhere).push_many([b"a", b"b"], partition=2)
    assert [(each.partition, each.position, each.records) for each in subscriber.lag()] == [
        (0, 2, 0), (1, 2, 0), (2, 0, 2), (3, 0, 0), (4, 0, 0)
    ]  # fmt: skip
    subscriber.seek({2: 1})
    assert subscriber.positions() == {0: 2, 1: 2, 2: 1, 3: 0, 4: 0}
    assert values(subscriber.poll()) == {b"b"}
    assert subscriber.pop().value == b"b"  # type: ignore[union-attr]
    subscriber.seek("earliest")
    assert values(subscriber.poll()) == OLD | {b"a", b"b"}
    subscriber.seek("latest")
    assert subscriber.positions() == {0: 2, 1: 2, 2: 2, 3: 0, 4: 0}


@pytest.mark.parametrize("start", ["latest", {0: 1}, -1])
def test_a_subscriber_made_by_an_older_handle_has_them(
    store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store, start: object
) -> None:
    grow(store)
    subscriber = elsewhere.create_subscriber("t", "s", start=start)
    assert set(subscriber.positions()) == set(range(5))


def test_a_subscriber_and_a_channel_whose_start_was_looked_up_just_before_have_them(
    store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(topic: jjq.Topic, *given: Any) -> dict[int, tuple[int, int]]:
        places = resolve_places(topic, *given)
        grow(elsewhere, topic.partitions + 1)
        return places

    for module in ("subscribers", "channels"):
        monkeypatch.setattr(f"jjq.{module}.resolve_places", late)
    subscriber = store.create_subscriber("t", "s", start="latest")
    assert subscriber.positions() == {0: 2, 1: 2, 2: 0}
    channel = store.channel("t", "c", create=True, start="latest")
    elsewhere.topic("t").push(b"new", partition=3)
    assert values(subscriber.poll()) == receive_all(channel) == {b"new"}


# --- channels --------------------------------------------------------------------------------------------------------


def receive_all(channel: jjq.Channel, most: int = 10) -> set[bytes]:
    found = set()
    while deliveries := channel.receive(most):
        found |= {each.record.value for each in deliveries}
        channel.ack_many(deliveries)
    return found


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("joined", [False, True])
def test_a_channel_delivers_all_of_the_new_ones(
    store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store, start: str, joined: bool
) -> None:
    channel = store.channel("t", "c", create=True, start=start, ordered=True)
    found = receive_all(channel) if joined else set()
    grown = grow(elsewhere)
    for partition in range(5):
        grown.push(b"new %d" % partition, partition=partition)
    new = {b"new %d" % partition for partition in range(5)}
    assert channel.counts().depth == len(new) + (4 if start == "earliest" and not joined else 0)
    assert receive_all(channel) | found == new | (OLD if start == "earliest" else set())
    assert (channel.counts().depth, channel.counts().acked) == (0, 9 if start == "earliest" else 5)


def test_consumers_of_other_stores_share_the_new_ones(store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store) -> None:
    a, b = store.channel("t", "c", create=True, start="latest"), elsewhere.channel("t", "c")
    assert (a.receive(), b.receive()) == ([], [])
    grow(store).push_many([b"%d" % i for i in range(6)], partition=4)
    mine, others = a.receive(3), b.receive(3)
    assert sorted(each.record.offset for each in (*mine, *others)) == list(range(6))
    mine[0].requeue()
    a.ack_many(mine[1:])
    b.ack_many(others)
    assert [each.attempts for each in b.receive(10)] == [2]
    a.empty()
    assert a.counts().depth == 0


def test_a_channel_that_always_has_records_takes_new_partitions_in(
    store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store
) -> None:
    channel = store.channel("t", "c", create=True)
    topic.push_many([b"%d" % i for i in range(500)], partition=0)
    channel.ack_many(channel.receive(2))
    grow(elsewhere).push(b"new", partition=2)
    for _ in range(10):
        [delivery] = channel.receive()
        delivery.ack()
        if delivery.record.value == b"new":
            break
    assert delivery.record.value == b"new"


# --- reading, following, publish and subscribe -----------------------------------------------------------------------


def test_reading_by_an_older_handle_gives_all(store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store) -> None:
    handle = elsewhere.topic("t")
    grow(store).push(b"new", partition=4)
    assert set(handle.read().read_all()["value"].to_pylist()) == OLD | {b"new"}
    assert [each.partition for each in elsewhere.topic("t").segments()] == [0, 1, 4]
    assert set(handle.resolve("latest").items()) == {(0, 2), (1, 2), (2, 0), (3, 0), (4, 1)}
    assert handle.offset_for_timestamp(0)[4] == 0


def test_following_goes_on_into_new_partitions_unless_told_not_to(
    store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store
) -> None:
    places = {0: (2, 0), 1: (2, 0)}
    every, these = follow(store, topic, places), follow(store, store.topic("t"), places, new_partitions=False)
    grown = grow(elsewhere)
    grown.push(b"new", partition=4)
    assert values(next(every)) == {b"new"}
    grown.push(b"known", partition=1)
    assert values(next(these)) == {b"known"}
    assert values(next(every)) == {b"known"}


def test_subscriptions_get_messages_of_new_partitions(store: jjq.Store, topic: jjq.Topic, elsewhere: jjq.Store) -> None:
    with (
        store.pubsub(ignore_subscribe_messages=True) as named,
        store.pubsub(ignore_subscribe_messages=True) as matching,
    ):
        named.subscribe("t")
        matching.psubscribe("t*")
        assert (named.get_message(), matching.get_message()) == (None, None)
        grow(elsewhere).push(b"new", partition=3)
        for subscription in (named, matching):
            message = subscription.get_message()
            assert message is not None
            assert (message["data"], subscription.get_message()) == (b"new", None)


def test_a_bounded_topic_keeps_what_its_holder_has_not_read_of_new_partitions(store: jjq.Store, reopen: Reopen) -> None:
    topic = store.create_topic("bounded", ephemeral=True, max_records=3, when_full="refuse")
    with reopen().pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe("bounded")
        store.alter_topic("bounded", partitions=2)
        for i in range(3):
            topic.push(b"%d" % i, partition=1)
        with pytest.raises(jjq.TopicFull):
            topic.push(b"too many", partition=1)
        assert [subscription.get_message()["data"] for _ in range(3)] == [b"0", b"1", b"2"]  # type: ignore[index]
        topic.push(b"fits", partition=1)


# --- waiting ---------------------------------------------------------------------------------------------------------


class Waiter(threading.Thread):
    """A thread that waits for a record; `result` is its value."""

    def __init__(self, wait: Callable[[], bytes]) -> None:
        super().__init__(daemon=True)
        self._wait = wait
        self.result: bytes | None = None
        self.start()

    def run(self) -> None:
        self.result = self._wait()

    def outcome(self) -> bytes | None:
        self.join(60)
        assert not self.is_alive()
        return self.result


def _subscriber(store: jjq.Store) -> jjq.Subscriber:
    return store.create_subscriber("t", start="latest")


def _subscription(store: jjq.Store) -> jjq.PubSub:
    made = store.pubsub(ignore_subscribe_messages=True)
    made.subscribe("t")
    return made


# What begins at the end of the topic, and then waits for the next record.
WAITS: dict[str, tuple[Callable[[jjq.Store], object], Callable[..., bytes]]] = {
    "pop": (_subscriber, lambda it: it.pop(timeout=None).value),
    "peek": (_subscriber, lambda it: it.peek(timeout=None).value),
    "poll": (_subscriber, lambda it: it.poll(timeout=None)[0].value),
    "iteration": (_subscriber, lambda it: next(iter(it)).value),
    "receive": (
        lambda store: store.channel("t", "c", create=True, start="latest"),
        lambda it: it.receive(timeout=None)[0].record.value,
    ),
    "subscription": (_subscription, lambda it: it.get_message(timeout=None)["data"]),
    "follow": (
        lambda store: follow(
            store, store.topic("t"), {p: (e, 0) for p, e in store.topic("t").resolve("latest").items()}
        ),
        lambda it: next(it)[0].value,
    ),
}


@pytest.mark.parametrize(("begin", "wait"), WAITS.values(), ids=WAITS.keys())
def test_who_waits_is_woken_by_a_record_in_a_new_partition(
    store: jjq.Store,
    topic: jjq.Topic,
    elsewhere: jjq.Store,
    begin: Callable[[jjq.Store], object],
    wait: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the kernel, and not because it looks now and then."""
    monkeypatch.setattr("jjq.wake._SAFETY_S", 3600.0)
    monkeypatch.setattr("jjq.channel._REAP_S", 3600.0)
    waiting = begin(store)
    for count in range(3, 15):
        waiter = Waiter(functools.partial(wait, waiting))
        grown = grow(elsewhere, count)
        if count % 2:
            grown.push(b"%d" % count, partition=count - 1)
        else:  # by a handle that does not know
            topic.push(b"%d" % count, partition=count - 1)
        assert waiter.outcome() == b"%d" % count
        if isinstance(waiting, jjq.Subscriber):
            waiting.pop()  # what was peeked or polled is out of the way
            waiting.close()
            waiting = begin(store)
