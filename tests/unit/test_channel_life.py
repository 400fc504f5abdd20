"""Channels: pausing, emptying, deleting, and the death of consumers."""

# ruff: noqa: F811 - fixtures are imported by their names

import os
import shutil
import time

import pytest

import jjq
from jjq import presence
from tests.channels import SECOND, Clock, Consumer, clock, consumer, die, not_before, store, topic, values  # noqa: F401

# --- pausing, emptying, deleting -------------------------------------------------------------------------------------


def test_a_paused_channel_delivers_nothing_and_settles_what_is_in_hand(
    consumer: Consumer, store: jjq.Store, topic: jjq.Topic, clock: Clock
) -> None:
    work = consumer()
    mine = work.receive(2)
    work.pause()
    assert work.paused
    assert work.receive(10) == []
    topic.push(b"e")
    work.ack_many(mine)
    with jjq.open(store.path) as again:
        other = again.channel("letters", "work", clock=clock)
        assert other.paused
        assert other.receive(10) == []
        other.unpause()
        assert values(other.receive(10)) == [b"c", b"d", b"e"]
    assert not work.paused


def test_pausing_a_topic_pauses_all_its_channels(store: jjq.Store, topic: jjq.Topic) -> None:
    a, b = (store.channel("letters", name, create=True) for name in "ab")
    topic.pause()
    assert topic.paused
    assert a.receive(10) == b.receive(10) == []
    topic.push(b"e")
    with jjq.open(store.path) as again:
        assert again.topic("letters").paused
        again.topic("letters").unpause()
    assert len(a.receive(10)) == len(b.receive(10)) == 5
    assert not topic.paused


def test_a_time_runs_out_in_a_paused_channel_too(consumer: Consumer, clock: Clock) -> None:
    slow = consumer(ack_timeout=10)
    slow.receive(4)
    slow.pause()
    clock.advance(10)
    assert slow.receive(10) == []
    assert slow.counts().in_flight == 0
    slow.unpause()
    assert [each.attempts for each in slow.receive(10)] == [2, 2, 2, 2]


def test_emptying_a_channel_skips_all_there_is(consumer: Consumer, topic: jjq.Topic, store: jjq.Store) -> None:
    topic.push(b"later", delay=1000)
    work = consumer()
    mine = work.receive(1)
    work.receive(1)[0].requeue(delay=5)
    work.receive(3)
    work.empty()
    assert (work.counts().depth, work.counts().in_flight, work.counts().deferred) == (0, 0, 0)
    topic.push(b"new")
    assert values(consumer().receive(10)) == [b"new"]
    with pytest.raises(jjq.DeliveryExpired, match="emptied"):
        mine[0].ack()
    assert len(store.channel("letters", "other", create=True).receive(10)) == 5


def test_emptying_the_topic_takes_its_channels_along(consumer: Consumer, topic: jjq.Topic) -> None:
    work = consumer()
    mine = work.receive(2)
    topic.empty()
    topic.push(b"new")
    assert values(work.receive(10)) == [b"new"]
    assert work.counts().lost == 0
    with pytest.raises(jjq.DeliveryExpired):
        work.ack_many(mine)


def test_a_deleted_channel_is_gone_for_every_handle(consumer: Consumer, store: jjq.Store) -> None:
    work, other = consumer(), consumer()
    mine = work.receive(2)
    store.delete_channel("letters", "work")
    for use in (
        work.receive, other.receive, mine[0].ack, mine[0].requeue, mine[0].touch, work.pause, work.unpause, work.empty,
        work.counts, lambda: work.paused, work.revive,
    ):  # fmt: skip
        with pytest.raises(jjq.ChannelNotFound, match="'work' of topic 'letters' was deleted"):
            use()
    assert store.channels() == []
    assert not (store.path / "channels" / str(work.id)).exists()
    with pytest.raises(jjq.ChannelNotFound):
        store.delete_channel("letters", "work")
    again = store.channel("letters", "work", create=True)
    assert again.id != work.id
    assert len(again.receive(10)) == 4
    work.close()


def test_deleting_the_topic_deletes_its_channels(consumer: Consumer, store: jjq.Store) -> None:
    work = consumer()
    mine = work.receive(2)
    store.delete_topic("letters")
    for use in (work.receive, mine[0].ack, mine[0].requeue, mine[0].touch, work.pause, work.empty, work.counts):
        with pytest.raises(jjq.TopicDeleted):
            use()
    assert store.channels() == []
    store.create_topic("letters")
    assert store.channel("letters", "work", create=True).receive() == []


def test_closing_gives_back_what_was_in_hand_at_once(consumer: Consumer) -> None:
    work, other = consumer(), consumer()
    mine = work.receive(3)
    mine[0].ack()
    work.close()
    work.close()
    assert repr(work) == "<Channel 'work' of topic 'letters' closed>"
    assert [(each.record.value, each.attempts) for each in other.receive(10)] == [(b"b", 2), (b"c", 2), (b"d", 1)]
    assert other.counts().returned == 2
    for use in (mine[1].ack, work.receive, work.counts):
        with pytest.raises(jjq.StoreClosed, match="closed"):
            use()


def test_closing_the_store_closes_its_consumers(consumer: Consumer, store: jjq.Store, clock: Clock) -> None:
    with jjq.open(store.path) as second:
        other = second.channel("letters", "work", clock=clock, create=True)
        assert len(other.receive(3)) == 3
    work = consumer()
    assert len(work.receive(10)) == 4
    assert [each.in_flight for each in work.consumers()] == [4]


# --- death -----------------------------------------------------------------------------------------------------------


def test_what_a_dead_consumer_had_in_hand_goes_to_others_before_its_time_is_over(consumer: Consumer) -> None:
    dead, other = consumer(), consumer()
    dead.receive(2)[0].ack()
    assert len(other.consumers()) == 1
    other.receive()
    die(dead)
    again = other.receive(10) + other.receive(10)
    assert [(each.record.value, each.attempts) for each in again] == [(b"d", 1), (b"b", 2)]
    assert other.counts().returned == 1
    assert [each.in_flight for each in other.consumers()] == [3]


def test_a_new_consumer_tidies_up_after_the_dead(consumer: Consumer, store: jjq.Store) -> None:
    for _ in range(3):
        lost = consumer()
        lost.receive()
        die(lost)
    work = consumer()
    assert len(work.receive(10)) == 4
    where = store.path / "channels" / str(work.id)
    assert sorted(path.suffix for path in where.iterdir()) == ["", ".lock"]
    assert len(work.consumers()) == 1
    for name, age in (
        ("0" * 32, 100),
        ("1" * 32, 0),
    ):  # of one that died between its lock and its row, and of one that may yet live
        lock = where / f"{name}.lock"
        lock.touch()
        os.utime(lock, (time.time() - age,) * 2)
    consumer().receive()
    assert not (where / f"{'0' * 32}.lock").exists()
    assert (where / f"{'1' * 32}.lock").exists()


def test_a_consumer_that_was_taken_for_dead_becomes_another_one(consumer: Consumer, store: jjq.Store) -> None:
    work, other = consumer(), consumer()
    mine = work.receive(2)
    assert values(other.receive(2)) == [b"c", b"d"]
    assert work._consumer is not None
    (store.path / "channels" / str(work.id) / f"{work._consumer.id}.lock").unlink()
    assert values(other.receive(2)) == [b"a", b"b"]
    with pytest.raises(jjq.DeliveryExpired):
        work.ack_many(mine)
    other.close()
    assert len(work.receive(10)) == 4


# --- loss ------------------------------------------------------------------------------------------------------------


def test_records_that_retention_took_are_passed_over_and_counted(store: jjq.Store, clock: Clock) -> None:
    topic = store.create_topic("letters", sync="none", segment_rows=2, retention_bytes=1)
    work = store.channel("letters", "work", create=True, ack_timeout=10, clock=clock)
    other = store.channel("letters", "other", create=True, clock=clock)
    for value in (b"a", b"b", b"c"):
        topic.push(value)
    mine = work.receive(3)
    for value in (b"d", b"e"):
        topic.push(value)
    store.maintain()
    assert topic.offsets()[0].start == 4
    clock.advance(10)
    assert values(work.receive(10)) == [b"e"]
    assert work.counts().lost == 4
    with pytest.raises(jjq.DeliveryExpired):
        work.ack_many(mine)
    assert values(other.receive(10)) == [b"e"]
    assert (other.counts().lost, other.counts().depth) == (4, 0)


def test_a_clock_that_is_set_back_holds_up_nothing_that_was_given_back(consumer: Consumer, clock: Clock) -> None:
    first, second, third = consumer(), consumer(), consumer()
    first.receive(1)
    second.receive(1)
    clock.advance(5 * 3600)
    first.close()
    clock.advance(-5 * 3600 - 1)
    assert values(third.receive(10)) == [b"a", b"c", b"d"]
    die(second)
    clock.advance(-3600)
    again = consumer()
    assert values(again.receive(10)) == [b"b"]


def test_who_joins_a_channel_that_is_deleted_meanwhile_sweeps_nothing(consumer: Consumer, store: jjq.Store) -> None:
    work = consumer()
    work.receive(1, timeout=0)
    shutil.rmtree(presence.directory(store.path, work.id))
    presence.sweep(store.path, work.id)
