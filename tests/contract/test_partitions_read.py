"""Topics that are given more partitions while others read them through stores of their own: nothing is missed."""

# ruff: noqa: F811 - fixtures are imported by their names

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

import jjq
from jjq.cursors import resolve_places
from tests.partitions import OLD, Reopen, elsewhere, grow, topic, values  # noqa: F401

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
    every, these = store.follow(topic, places), store.follow(store.topic("t"), places, new_partitions=False)
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
    "async iteration": (_subscriber, lambda it: asyncio.run(anext(aiter(it))).value),
    "receive": (
        lambda store: store.channel("t", "c", create=True, start="latest"),
        lambda it: it.receive(timeout=None)[0].record.value,
    ),
    "subscription": (_subscription, lambda it: it.get_message(timeout=None)["data"]),
    "follow": (
        lambda store: store.follow(
            store.topic("t"), {p: (e, 0) for p, e in store.topic("t").resolve("latest").items()}
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


def test_what_is_whole_of_many_partitions_is_planned_at_once(store: jjq.Store) -> None:
    topic = store.create_topic("many", partitions=120)
    for partition in range(120):
        topic.push(b"%d" % partition, partition=partition)
    topic.empty()
    for partition in range(120):
        topic.push_many([b"%d" % partition] * 2, partition=partition)
    asked = [(partition, int(partition != 7), 0, 3, 0) for partition in range(120)]
    found = topic.reader.plan_all(asked)
    assert found[7] is None  # begins before what is left
    for partition, slices in enumerate(found):
        assert slices == (None if partition == 7 else topic.reader.plan(partition, 1, 3))
    assert topic.reader.plan_all([]) == []
    with pytest.raises(jjq.InvalidArgument, match="ends at 3"):
        topic.reader.plan_all([(0, 1, 0, 4, 0)])


def test_a_partition_is_read_once(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=2)
    topic.push(b"x", partition=1)
    for partitions in ([1, 1], [0, 1, 0]):
        with pytest.raises(jjq.InvalidArgument, match="a partition is named twice"):
            topic.read(partitions=partitions)
