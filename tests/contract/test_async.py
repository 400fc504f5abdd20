"""Consuming in coroutines: `async for` over subscribers, channels and subscriptions."""

import asyncio
import threading
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Any, TypeVar

import pytest

import jjq
from jjq.client import connection
from jjq.client.channel import RemoteChannel
from jjq.client.pubsub import RemotePubSub
from jjq.client.subscriber import RemoteSubscriber

Item = TypeVar("Item")
Reopen = Callable[[], jjq.Store]


@pytest.fixture
def topic(store: jjq.Store) -> jjq.Topic:
    topic = store.create_topic("letters", sync="none")
    topic.push_many([b"a", b"b", b"c"])
    return topic


async def first(source: AsyncIterable[Item], count: int) -> list[Item]:
    taken: list[Item] = []
    async for item in source:
        taken.append(item)
        if len(taken) == count:
            break
    return taken


async def meanwhile(waiting: Awaitable[Item], act: Callable[[], Any], ready: Callable[[], bool]) -> Item:
    """Begins to wait, acts once it does, and returns what came."""
    task = asyncio.ensure_future(waiting)
    while not ready():
        await asyncio.sleep(0)
    await asyncio.to_thread(act)
    return await asyncio.wait_for(task, 60)


def sleeps(*handles: Any) -> Callable[[], bool]:
    """Whether all of them wait: in this process, or in a request that the broker has not answered."""

    def asleep() -> bool:
        if isinstance(handles[0], RemoteSubscriber | RemoteChannel | RemotePubSub):
            return len(handles[0]._remote.connection._outstanding) >= len(handles)
        return all(each._listener._bells for each in handles)

    return asleep


def test_a_subscriber_gives_history_then_each_new_record_and_commits_up_to_the_one_at_hand(
    store: jjq.Store, topic: jjq.Topic
) -> None:
    async def run() -> list[bytes]:
        seen = []
        async for record in subscriber:
            seen.append(record.value)
            subscriber.commit()
            assert subscriber.positions() == {0: record.offset + 1}
            if record.value == b"c":
                topic.push(b"d")
            if record.value == b"d":
                break
        return seen

    subscriber = store.create_subscriber("letters", "s")
    assert asyncio.run(run()) == [b"a", b"b", b"c", b"d"]


def test_a_subscriber_that_waits_is_woken_by_a_push_from_elsewhere(
    store: jjq.Store, topic: jjq.Topic, reopen: Reopen
) -> None:
    subscriber = store.create_subscriber("letters", "s", start="latest")
    other = reopen().topic("letters")
    got = asyncio.run(meanwhile(first(subscriber, 1), lambda: other.push(b"new"), sleeps(subscriber)))
    assert [record.value for record in got] == [b"new"]


def test_partitions_are_merged_and_each_is_in_order(store: jjq.Store) -> None:
    topic = store.create_topic("many", partitions=3, sync="none")
    for number in range(900):
        topic.push(b"%d" % number, partition=number % 3)
    got = asyncio.run(first(store.create_subscriber("many", "s"), 900))
    for partition in range(3):
        offsets = [record.offset for record in got if record.partition == partition]
        assert offsets == list(range(300))


def test_many_subscribers_share_a_loop(store: jjq.Store, topic: jjq.Topic) -> None:
    async def run() -> list[list[jjq.Record]]:
        subscribers = [store.create_subscriber("letters", f"s{number}") for number in range(20)]
        tasks = [asyncio.ensure_future(first(each, 4)) for each in subscribers]
        while not sleeps(*subscribers)():
            await asyncio.sleep(0)
        topic.push(b"d")
        return await asyncio.wait_for(asyncio.gather(*tasks), 60)

    got = asyncio.run(run())
    assert [[record.value for record in each] for each in got] == [[b"a", b"b", b"c", b"d"]] * 20


def test_what_a_cancelled_wait_has_read_is_not_lost(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("letters", "s")
    looked = threading.Event()

    async def run() -> list[jjq.Record]:
        with subscriber._mutex:  # the look in the thread cannot end before the wait is cancelled
            task = asyncio.ensure_future(first(subscriber, 1))
            while subscriber._consumer is None:
                await asyncio.sleep(0)
            task.cancel()
            looked.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await first(subscriber, 3)

    assert [record.value for record in asyncio.run(run())] == [b"a", b"b", b"c"]
    assert looked.is_set()


def test_a_seek_beside_a_cancelled_wait_is_where_it_goes_on(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("letters", "s")

    async def run() -> list[int]:
        with subscriber._mutex:  # what the wait finds it cannot give before the seek is done
            answered = polled(subscriber)
            task = asyncio.ensure_future(first(subscriber, 1))
            while subscriber._consumer is None or not answered():
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            subscriber.seek(2)
        return [record.offset for record in await asyncio.wait_for(first(subscriber, 1), 60)]

    assert asyncio.run(run()) == [2]


def polled(subscriber: jjq.Subscriber) -> Callable[[], bool]:
    """Whether the broker, if there is one, has answered a request that is made after this."""
    if not isinstance(subscriber, RemoteSubscriber):
        return lambda: True
    connection = subscriber._remote.connection
    before = repr(connection._numbers)
    return lambda: repr(connection._numbers) != before and not connection._outstanding


def test_seeks_beside_waits_lose_nothing_and_repeat_nothing(store: jjq.Store, topic: jjq.Topic) -> None:
    topic.push_many([b"%d" % i for i in range(20)])
    subscriber = store.create_subscriber("letters", "s", start="latest")

    async def run() -> None:
        for turn in range(60):
            task = asyncio.ensure_future(first(subscriber, 1))
            for _ in range(turn % 7):
                await asyncio.sleep(0)
            seeking = asyncio.to_thread(subscriber.seek, turn % 20) if turn % 3 else None
            task.cancel()
            if seeking is None:
                subscriber.seek(turn % 20)
            else:
                await seeking
            await asyncio.wait({task}, timeout=60)
            got = [record.offset for record in await asyncio.wait_for(first(subscriber, 3), 60)]
            assert got == [turn % 20 + i for i in range(3)]

    asyncio.run(run())


@pytest.mark.parametrize("again", range(20))
def test_what_is_popped_beside_a_cancelled_wait_does_not_come_again(
    store: jjq.Store, topic: jjq.Topic, again: int
) -> None:
    subscriber = store.create_subscriber("letters", "s")

    async def run() -> list[int]:
        task = asyncio.ensure_future(first(subscriber, 1))
        for _ in range(again):
            await asyncio.sleep(0)
        task.cancel()
        popped = subscriber.pop(timeout=30)
        assert popped is not None
        await asyncio.wait({task}, timeout=60)
        return [popped.offset] + [record.offset for record in await first(subscriber, 2)]

    assert asyncio.run(run()) == [0, 1, 2]


@pytest.mark.embedded
@pytest.mark.parametrize("kind", ["subscriber", "channel", "subscription"])
def test_a_cancellation_that_comes_with_a_record_ends_the_task(store: jjq.Store, topic: jjq.Topic, kind: str) -> None:
    async def run() -> None:
        for _ in range(20):
            handle: Any
            if kind == "subscriber":
                handle = store.create_subscriber("letters", start="latest")
            elif kind == "channel":
                handle = store.channel("letters", "work", create=True, start="latest")
            else:
                handle = store.pubsub(ignore_subscribe_messages=True)
                handle.subscribe("letters")
            task = asyncio.ensure_future(first(handle, 1_000_000))
            while not handle._listener._bells:
                await asyncio.sleep(0)
            (bell,) = handle._listener._bells
            bell()  # as a record would
            await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=60)
            assert done
            assert task.cancelled()
            handle.close()

    asyncio.run(run())


def test_a_second_consumer_is_refused_while_one_iterates(store: jjq.Store, topic: jjq.Topic, reopen: Reopen) -> None:
    async def run() -> None:
        iterator = aiter(subscriber)
        await anext(iterator)
        with pytest.raises(jjq.SubscriberBusy):
            await anext(aiter(reopen().subscriber("s")))
        await iterator.aclose()  # type: ignore[attr-defined]

    subscriber = store.create_subscriber("letters", "s")
    asyncio.run(run())


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (lambda store, handle: handle.close(), jjq.StoreClosed),
        (lambda store, handle: store.delete_subscriber("s"), jjq.SubscriberNotFound),
        (lambda store, handle: store.delete_topic("letters"), jjq.TopicDeleted),
        (lambda store, handle: store.close(), jjq.StoreClosed),
    ],
)
def test_a_waiting_subscriber_raises_at_once_when_what_it_waits_for_goes(
    store: jjq.Store, topic: jjq.Topic, end: Callable[[jjq.Store, jjq.Subscriber], object], error: type[Exception]
) -> None:
    subscriber = store.create_subscriber("letters", "s", start="latest")
    with pytest.raises(error):
        asyncio.run(meanwhile(first(subscriber, 1), lambda: end(store, subscriber), sleeps(subscriber)))


def test_records_that_are_gone_raise_in_the_loop_too(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("letters", "s")
    for letter in (b"d", b"e"):
        store.alter_topic("letters", retention_segments=1)  # which ends the segment
        topic.push(letter)
    store.maintain()
    with pytest.raises(jjq.DataLoss, match="records are gone"):
        asyncio.run(first(subscriber, 1))


def test_a_channel_iterates_in_a_thread_and_in_a_loop(store: jjq.Store, topic: jjq.Topic) -> None:
    channel = store.channel("letters", "work", create=True)
    for delivery in channel:
        delivery.ack()
        if delivery.record.value == b"b":
            break

    async def run() -> None:
        async for delivery in channel:
            delivery.ack()
            if delivery.record.value == b"d":
                break

    asyncio.run(meanwhile(run(), lambda: topic.push(b"d"), sleeps(channel)))
    assert channel.counts().acked == 4


def test_what_a_cancelled_wait_on_a_channel_has_received_comes_next(store: jjq.Store, topic: jjq.Topic) -> None:
    channel = store.channel("letters", "work", create=True, max_in_flight=1)

    async def run() -> list[jjq.Delivery]:
        with channel._mutex:
            task = asyncio.ensure_future(first(channel, 1))
            for _ in range(20):
                await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await asyncio.wait_for(first(channel, 1), 60)

    # One in flight at most: were the first one lost with the cancelled wait, nothing could come.
    assert [each.record.value for each in asyncio.run(run())] == [b"a"]


def requests_of(handle: Any) -> int:
    """How many this client has made of the broker so far, this one counted; none of a store in this process."""
    remote = isinstance(handle, RemoteChannel | RemotePubSub)
    return next(handle._remote.connection._numbers) if remote else 0


def test_who_waits_after_a_cancelled_wait_waits_for_what_that_one_gets(
    store: jjq.Store, topic: jjq.Topic, reopen: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_WAIT_MAIN_S", 30.0)  # no request is to end before there is something
    channel, other = store.channel("letters", "work", create=True, max_in_flight=1), reopen()
    subscription = store.pubsub(ignore_subscribe_messages=True)
    subscription.subscribe("news")

    async def run(handle: Any, act: Callable[[], Any]) -> tuple[list[Any], int]:
        before = requests_of(handle)
        task = asyncio.ensure_future(first(handle, 1))
        while not sleeps(handle)():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        found = await meanwhile(first(handle, 1), act, sleeps(handle))
        return found, requests_of(handle) - before

    def push() -> None:
        other.topic("letters").push(b"d")

    for _ in range(3):
        channel.ack_many(channel.receive())
    remote = isinstance(channel, RemoteChannel)
    [delivery], asked = asyncio.run(run(channel, push))
    assert (delivery.record.value, asked) == (b"d", 2 if remote else 0)
    [message], asked = asyncio.run(run(subscription, lambda: other.publish("news", b"1")))
    assert (message["data"], asked) == (b"1", 2 if remote else 0)
    subscription.close()


def test_a_subscription_gives_messages_in_a_loop(store: jjq.Store, reopen: Reopen) -> None:
    other = reopen()

    async def run() -> list[dict[str, Any]]:
        with store.pubsub(ignore_subscribe_messages=True) as subscription:
            subscription.psubscribe("news.*")
            task = first(subscription, 2)

            def publish() -> None:
                other.publish("news.a", b"1")
                other.publish("news.b", b"2")

            return await meanwhile(task, publish, sleeps(subscription))

    assert sorted(message["data"] for message in asyncio.run(run())) == [b"1", b"2"]


def test_a_subscription_without_names_ends(store: jjq.Store) -> None:
    async def run() -> list[dict[str, Any]]:
        with store.pubsub() as subscription:
            subscription.subscribe("news")
            subscription.unsubscribe("news")
            return [message async for message in subscription]

    assert [message["type"] for message in asyncio.run(run())] == ["subscribe", "unsubscribe"]
