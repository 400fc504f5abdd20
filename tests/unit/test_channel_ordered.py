"""Ordered channels: a key is with one consumer at a time, and its records come one after the other's end."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jjq
from tests.channels import Clock, die, not_before, values

Consumer = Callable[..., jjq.Channel]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def topic(store: jjq.Store) -> jjq.Topic:
    return store.create_topic("orders", sync="none")


@pytest.fixture
def consumer(store: jjq.Store, topic: jjq.Topic, clock: Clock) -> Consumer:
    return lambda **settings: store.channel("orders", "work", create=True, ordered=True, clock=clock, **settings)


def push(topic: jjq.Topic, *records: str) -> None:
    """`x1` is a record 1 with the key x; one without a letter has no key."""
    for each in records:
        topic.push(each, key=each[0] if each[0].isalpha() else None)


def test_the_next_record_of_a_key_comes_when_the_one_before_is_done(consumer: Consumer, topic: jjq.Topic) -> None:
    push(topic, "x1", "x2", "y1", "1", "x3", "2", "y2")
    a, b = consumer(), consumer()
    assert a.ordered
    first = a.receive(10)
    assert values(first) == [b"x1", b"y1", b"1", b"2"]
    assert b.receive(10) == []
    first[0].ack()
    assert values(b.receive(10)) == [b"x2"]
    a.ack_many(first)
    assert values(a.receive(10)) == [b"y2"]
    assert a.counts().depth == 1


def test_a_requeued_record_holds_its_key_back(consumer: Consumer, topic: jjq.Topic, clock: Clock) -> None:
    push(topic, "x1", "x2", "y1")
    a, b = consumer(), consumer()
    a.receive(10)[0].requeue(delay=5)
    assert b.receive(10) == []
    push(topic, "x3", "y2")
    assert b.receive(10) == []
    clock.advance(5)
    [again] = b.receive(10)
    assert (again.record.value, again.attempts) == (b"x1", 2)
    again.ack()
    assert values(a.receive(10)) == [b"x2"]


def test_a_timeout_keeps_the_order_within_a_key(consumer: Consumer, topic: jjq.Topic, clock: Clock) -> None:
    push(topic, "x1", "x2")
    a, b = consumer(ack_timeout=10), consumer()
    [mine] = a.receive(10)
    clock.advance(10)
    [again] = b.receive(10)
    assert again.record.value == b"x1"
    with pytest.raises(jjq.DeliveryExpired):
        mine.ack()
    assert a.receive(10) == []
    again.touch()
    again.ack()
    assert values(a.receive(10)) == [b"x2"]


def test_a_dead_consumer_and_a_closed_one_give_their_keys_back(consumer: Consumer, topic: jjq.Topic) -> None:
    push(topic, "x1", "x2", "y1", "y2")
    a, b, c = consumer(), consumer(), consumer()
    a.receive(1)
    b.receive(1)
    die(a)
    b.close()
    assert values(c.receive(10)) == [b"x1", b"y1"]


def test_a_record_that_died_lets_its_key_go_on(consumer: Consumer, topic: jjq.Topic, store: jjq.Store) -> None:
    push(topic, "x1", "x2")
    work = consumer(max_attempts=1)
    work.receive()[0].requeue()
    assert values(work.receive(10)) == [b"x2"]
    assert [each.value for each in store.create_subscriber("orders.work.dead").poll(10)] == [b"x1"]
    work.receive(10)
    assert work.revive() == 1
    assert work.receive(10) == []  # x2 is in hand


def test_a_deferred_record_does_not_hold_its_key_but_waits_for_it(
    consumer: Consumer, topic: jjq.Topic, clock: Clock
) -> None:
    topic.push("x1", key="x", headers=not_before(clock, 5))
    topic.push("x2", key="x", headers=not_before(clock, 5))
    push(topic, "x3", "x4")
    work = consumer()
    [mine] = work.receive(10)
    assert mine.record.value == b"x3"
    clock.advance(5)
    assert work.receive(10) == []
    mine.ack()
    order = []
    while got := work.receive(10):
        assert len(got) == 1
        order.append(got[0].record.value)
        got[0].ack()
    assert sorted(order) == [b"x1", b"x2", b"x4"]
    assert order.index(b"x1") < order.index(b"x2")


def test_records_that_were_due_at_different_times_still_come_in_order(
    consumer: Consumer, topic: jjq.Topic, clock: Clock
) -> None:
    push(topic, "x0", "x1", "x2")
    for delay in (5, 6):
        topic.push(f"later {delay}", key="x", headers=not_before(clock, delay))
    work = consumer()
    [mine] = work.receive(10)
    assert work.receive(10) == []
    clock.advance(10)
    seen = []
    for most in (1, 2, 1, 2, 1):
        seen.append(mine.record.value)
        mine.ack()
        clock.advance(1)
        got = work.receive(most)
        if got:
            [mine] = got
    assert sorted(seen) == [b"later 5", b"later 6", b"x0", b"x1", b"x2"]
    assert [each for each in seen if each.startswith(b"x")] == [b"x0", b"x1", b"x2"]


def test_a_busy_key_does_not_keep_others_from_being_found(consumer: Consumer, topic: jjq.Topic) -> None:
    topic.push_many([b"x%d" % n for n in range(5000)], keys=["x"] * 5000)
    push(topic, "y1")
    work = consumer()
    assert [values(work.receive(10)), values(work.receive(10))] == [[b"x0"], [b"y1"]]


def test_a_channel_looks_only_so_far_past_a_busy_key(
    consumer: Consumer, topic: jjq.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jjq.catalog.leases.MOST_PARKED", 10)
    topic.push_many([b"x%d" % n for n in range(30)], keys=["x"] * 30)
    push(topic, "y1")
    work = consumer()
    seen = []
    while got := work.receive(10):
        seen += values(got)
        work.ack_many(got)
    assert [each for each in seen if each != b"y1"] == [b"x%d" % n for n in range(30)]
    assert b"y1" in seen


def test_keys_come_in_order_from_many_consumers(consumer: Consumer, topic: jjq.Topic, clock: Clock) -> None:
    records = [f"{'abcdefg'[n * 7919 % 7]}{n}" for n in range(400)]
    push(topic, *records)
    workers = [consumer(max_attempts=None) for _ in range(4)]
    done: dict[str, list[str]] = {}
    hands: list[list[jjq.Delivery]] = [[] for _ in workers]
    for turn in range(4000):
        number = turn * 31 % len(workers)
        if hands[number]:
            delivery = hands[number].pop()
            value = delivery.record.value.decode()
            if turn % 5 == 0:
                delivery.requeue(delay=turn % 3)
            else:
                done.setdefault(value[0], []).append(value)
                delivery.ack()
        else:
            hands[number] = workers[number].receive(3)
            keys = [each.record.key for hand in hands for each in hand]
            assert len(keys) == len(set(keys))
        clock.advance(0.3)
    assert done == {key: [each for each in records if each[0] == key] for key in done}
    assert sum(map(len, done.values())) == 400
