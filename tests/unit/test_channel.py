"""Channels: records shared among consumers, each acknowledged by itself."""

# ruff: noqa: F811 - fixtures are imported by their names

import errno
import threading
from collections import Counter
from datetime import timedelta

import pyarrow as pa
import pytest

import jjq
from jjq.clock import now_us
from tests.channels import SECOND, Clock, Consumer, clock, consumer, die, not_before, store, topic, values  # noqa: F401
from tests.stores import roll

# --- making and finding ----------------------------------------------------------------------------------------------


def test_a_channel_is_made_on_request_and_found_by_its_name(store: jjq.Store, topic: jjq.Topic) -> None:
    with pytest.raises(jjq.ChannelNotFound, match="no channel 'work'; make it with create=True"):
        store.channel("letters", "work")
    made = store.channel("letters", "work", create=True, max_attempts=3, ack_timeout=2.5)
    found = store.channel("letters", "work")
    assert (found.id, found.max_attempts, found.ack_timeout) == (made.id, 3, 2.5)
    assert (found.topic.name, found.dead_letter, found.ordered) == ("letters", "letters.work.dead", False)
    assert repr(found) == "<Channel 'work' of topic 'letters' open>"
    with pytest.raises(jjq.ChannelNotFound, match="did you mean 'work'"):
        store.channel("letters", "wrok")


def test_settings_hold_for_all_consumers_and_change_where_they_are_given(store: jjq.Store, topic: jjq.Topic) -> None:
    made = store.channel("letters", "work", create=True)
    assert (made.max_attempts, made.ack_timeout) == (5, 60.0)
    store.channel("letters", "work", create=True, max_attempts=None, ack_timeout="5 min", dead_letter="graveyard")
    found = store.channel("letters", "work", create=True)
    assert (found.max_attempts, found.ack_timeout, found.dead_letter) == (None, 300.0, "graveyard")
    with pytest.raises(jjq.InvalidArgument, match="made with ordered=False"):
        store.channel("letters", "work", ordered=True)


@pytest.mark.parametrize(
    "settings",
    [{"max_attempts": 0}, {"ack_timeout": 0}, {"ack_timeout": "soon"}, {"max_in_flight": 0}, {"dead_letter": "letters"},
     {"dead_letter": "no/name"}, {"start": 99}, {"max_attempts": True}],
)  # fmt: skip
def test_bad_settings_are_refused_before_anything_happens(
    store: jjq.Store, topic: jjq.Topic, settings: dict[str, object]
) -> None:
    with pytest.raises(jjq.InvalidArgument):
        store.channel("letters", "work", create=True, **settings)
    assert settings.keys() & {"max_in_flight"} or store.channels() == []


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a" * 250, "имя", "x#ephemeral"])
def test_a_bad_name_is_refused(store: jjq.Store, topic: jjq.Topic, name: str) -> None:
    with pytest.raises(jjq.InvalidName):
        store.channel("letters", name, create=True)


def test_channels_are_listed_by_topic_and_name(store: jjq.Store, topic: jjq.Topic) -> None:
    store.create_topic("other")
    for of, name in (("other", "a"), ("letters", "b"), ("letters", "a")):
        store.channel(of, name, create=True)
    assert [(each.topic.name, each.name) for each in store.channels()] == [
        ("letters", "a"), ("letters", "b"), ("other", "a"),
    ]  # fmt: skip
    assert [each.name for each in store.channels("other")] == ["a"]


@pytest.mark.parametrize(
    ("start", "expected"), [(None, b"abcd"), ("earliest", b"abcd"), ("latest", b""), (2, b"cd"), (-1, b"d")]
)
def test_a_channel_starts_where_it_was_told(store: jjq.Store, topic: jjq.Topic, start: object, expected: bytes) -> None:
    work = store.channel("letters", "work", create=True, start=start)
    assert b"".join(values(work.receive(10))) == expected
    topic.push(b"e")
    assert values(work.receive(10)) == [b"e"]


# --- sharing ---------------------------------------------------------------------------------------------------------


def test_each_channel_gets_every_record_and_its_consumers_share_them(consumer: Consumer, store: jjq.Store) -> None:
    first, second = consumer(), consumer()
    assert values(first.receive(2)) == [b"a", b"b"]
    assert values(second.receive(10)) == [b"c", b"d"]
    assert first.receive(10) == second.receive(10) == []
    assert values(store.channel("letters", "other", create=True).receive(10)) == [b"a", b"b", b"c", b"d"]


def test_a_delivery_has_the_record_and_its_attempts(consumer: Consumer, topic: jjq.Topic) -> None:
    topic.push(b"e", key=b"k", headers={"h": b"1"})
    work = consumer()
    work.receive(4)
    [delivery] = work.receive()
    record = delivery.record
    assert (record.topic, record.partition, record.offset, record.value) == ("letters", 0, 4, b"e")
    assert (record.key, record.headers, delivery.attempts) == (b"k", [("h", b"1")], 1)
    assert repr(delivery) == "<Delivery of 'letters' 0:4, attempt 1, in hand>"


def test_records_of_a_topic_with_a_schema_are_mappings(store: jjq.Store) -> None:
    flights = store.create_topic("flights", schema=pa.schema([("carrier", pa.string()), ("delay", pa.int32())]))
    flights.push({"carrier": "AA", "delay": 4})
    work = store.channel("flights", "work", create=True)
    assert [each.record.value for each in work.receive()] == [{"carrier": "AA", "delay": 4}]
    store.alter_topic("flights", add_columns=pa.schema([("gate", pa.string())]))
    store.topic("flights").push({"carrier": "UA", "delay": 5, "gate": "B2"})
    assert [each.record.value for each in work.receive()] == [{"carrier": "UA", "delay": 5, "gate": "B2"}]


def test_partitions_are_merged_and_each_stays_in_order(store: jjq.Store) -> None:
    topic = store.create_topic("many", partitions=3, sync="none")
    for partition in range(3):
        topic.push_many([b"%d" % n for n in range(50)], partition=partition)
    work = store.channel("many", "work", create=True)
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    while got := work.receive(7):
        for each in got:
            seen[each.record.partition].append(each.record.offset)
        work.ack_many(got)
    assert seen == {partition: list(range(50)) for partition in range(3)}
    assert work.counts().acked == 150


def test_a_consumer_has_at_most_so_many_in_hand(consumer: Consumer) -> None:
    work = consumer(max_in_flight=3)
    first = work.receive(2)
    assert values(work.receive(2)) == [b"c"]
    assert work.receive(2) == []
    first[0].ack()
    assert values(work.receive(2)) == [b"d"]


# --- acknowledging ---------------------------------------------------------------------------------------------------


def test_what_is_acknowledged_does_not_come_again(consumer: Consumer, clock: Clock) -> None:
    work = consumer()
    for delivery in work.receive(10)[::2]:
        delivery.ack()
    clock.advance(61)
    assert values(consumer().receive(10)) == [b"b", b"d"]


def test_many_are_acknowledged_at_once_though_from_several_batches(consumer: Consumer) -> None:
    work = consumer()
    got = [*work.receive(1), *work.receive(2), *work.receive(1)]
    work.ack_many(got[1:])
    assert (work.counts().acked, work.counts().in_flight) == (3, 1)
    work.ack_many(iter(got))
    assert work.counts().in_flight == 0
    work.ack_many([])


def test_a_delivery_is_settled_once(consumer: Consumer) -> None:
    work = consumer()
    first, second = work.receive(2)
    first.ack()
    first.ack()
    second.requeue()
    second.requeue()
    for wrong in (first.requeue, first.touch, second.ack, second.touch):
        with pytest.raises(jjq.InvalidArgument, match="cannot be"):
            wrong()
    assert work.counts().acked == 1


def test_a_delivery_belongs_to_its_channel(consumer: Consumer, store: jjq.Store) -> None:
    other = store.channel("letters", "other", create=True)
    with pytest.raises(jjq.InvalidArgument, match="not of channel 'other'"):
        other.ack_many(consumer().receive())


# --- coming again ----------------------------------------------------------------------------------------------------


def test_what_is_not_acknowledged_in_time_goes_to_whoever_asks(consumer: Consumer, clock: Clock) -> None:
    slow, other = consumer(ack_timeout=10), consumer()
    mine = slow.receive(4)
    mine[0].ack()
    clock.advance(9.999999)
    assert other.receive(10) == []
    clock.advance(0.000001)
    again = other.receive(10)
    assert values(again) == [b"b", b"c", b"d"]
    assert [each.attempts for each in again] == [2, 2, 2]
    assert other.counts().timed_out == 3


def test_an_acknowledgement_that_comes_too_late_says_so_and_does_the_rest(consumer: Consumer, clock: Clock) -> None:
    slow, other = consumer(ack_timeout=10), consumer()
    mine = slow.receive(4)
    clock.advance(10)
    assert values(other.receive(2)) == [b"a", b"b"]
    with pytest.raises(jjq.DeliveryExpired, match="2 of 4") as caught:
        slow.ack_many(mine)
    assert caught.value.expired == [(0, 0), (0, 1)]
    assert not caught.value.retryable
    # Nobody else had the other two, so what was done with them counts.
    assert (slow.counts().acked, slow.counts().in_flight) == (2, 2)
    for each in mine[:2]:
        with pytest.raises(jjq.InvalidArgument):
            each.ack()


def test_of_two_deliveries_of_a_record_the_later_one_counts(consumer: Consumer, clock: Clock) -> None:
    handle = consumer(ack_timeout=10)
    [before] = handle.receive(1)
    clock.advance(10)
    [after] = handle.receive(1)
    assert (values([before, after]), before.attempts, after.attempts) == ([b"a", b"a"], 1, 2)
    with pytest.raises(jjq.DeliveryExpired, match="1 of 2") as caught:
        handle.ack_many([before, after])
    assert caught.value.expired == [(0, 0)]
    assert (handle.counts().acked, handle.counts().in_flight) == (1, 0)
    assert "it timed out and was delivered again, to this consumer or another" in str(caught.value)
    after.ack()  # as it was
    with pytest.raises(jjq.InvalidArgument):
        before.ack()


def test_of_two_records_with_one_offset_the_one_that_is_there_counts(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed sync takes records back, and gives their offsets again."""
    topic = store.create_topic("t", sync="interval", sync_interval_ms=3_600_000)
    handle = store.channel("t", "c", create=True, start="earliest")
    topic.push(b"lost")
    [before] = handle.receive()

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "the disk is ill")

    with monkeypatch.context() as patched:
        patched.setattr("jjq.files.datasync", fail)
        with pytest.raises(jjq.StoreError):
            store.logs[topic.id, 0].sync()
    topic.push(b"there")
    [after] = handle.receive()
    assert (before.record.offset, after.record.offset, after.record.value) == (0, 0, b"there")
    with pytest.raises(jjq.DeliveryExpired, match="1 of 2"):
        handle.touch_many([before, after])
    after.ack()
    assert handle.counts().acked == 1


def test_what_lies_in_new_partitions_comes_though_records_of_another_one_are_gone(store: jjq.Store) -> None:
    topic = store.create_topic("t", sync="none")
    work = store.channel("t", "work", create=True)
    assert work.receive(1) == []
    with jjq.open(store.path, maintenance=False) as other:
        other.alter_topic("t", partitions=2)
        other.topic("t").push(b"gone", partition=0)
        roll(other, "t")
        other.catalog.advance_start(topic.id, 0, 1, [], now_us())
        other.topic("t").push(b"there", partition=1)
    assert values(work.receive(1)) == [b"there"]


def test_touching_one_record_gives_it_alone_more_time(consumer: Consumer, clock: Clock) -> None:
    slow, other = consumer(ack_timeout=10), consumer()
    mine = slow.receive(4)
    clock.advance(8)
    mine[1].touch()
    clock.advance(8)
    assert values(other.receive(10)) == [b"a", b"c", b"d"]
    mine[1].ack()
    clock.advance(100)
    assert b"b" not in values(slow.receive(10))


def test_touching_all_gives_all_more_time_as_often_as_wanted(consumer: Consumer, clock: Clock) -> None:
    slow, other = consumer(ack_timeout=10), consumer()
    mine = slow.receive(4)
    for _ in range(5):
        clock.advance(8)
        slow.touch_many(mine)
        assert other.receive(10) == []
    slow.ack_many(mine)
    assert other.counts().acked == 4


def test_touching_what_went_to_another_says_so(consumer: Consumer, clock: Clock) -> None:
    slow, other = consumer(ack_timeout=10), consumer()
    [mine] = slow.receive()
    clock.advance(10)
    other.receive()
    with pytest.raises(jjq.DeliveryExpired):
        mine.touch()


def test_a_requeued_record_comes_again_after_its_delay(consumer: Consumer, clock: Clock) -> None:
    work = consumer()
    first, second, third, _ = work.receive(4)
    second.requeue(delay=5)
    third.requeue(timedelta(seconds=3))
    first.requeue()
    assert [(each.record.value, each.attempts) for each in work.receive(10)] == [(b"a", 2)]
    assert (work.counts().deferred, work.counts().requeued) == (2, 3)
    clock.advance(3)
    assert values(work.receive(10)) == [b"c"]
    clock.advance(2)
    assert values(work.receive(10)) == [b"b"]


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "5", None, True, timedelta(seconds=-1)])
def test_a_delay_is_a_number_of_seconds(consumer: Consumer, topic: jjq.Topic, delay: object) -> None:
    [delivery] = consumer().receive()
    with pytest.raises(jjq.InvalidArgument, match="delay must be seconds"):
        delivery.requeue(delay)  # type: ignore[arg-type]
    if delay is not None:
        with pytest.raises(jjq.InvalidArgument, match="delay must be seconds"):
            topic.push(b"x", delay=delay)  # type: ignore[arg-type]


def test_a_part_of_what_is_due_leaves_the_rest_for_others(consumer: Consumer, clock: Clock) -> None:
    slow, a, b = consumer(ack_timeout=10), consumer(), consumer()
    mine = slow.receive(4)
    mine[1].ack()
    clock.advance(10)
    assert values(a.receive(2)) == [b"a", b"c"]
    assert values(b.receive(2)) == [b"d"]
    with pytest.raises(jjq.DeliveryExpired) as caught:
        slow.ack_many([mine[0], mine[2], mine[3]])
    assert caught.value.expired == [(0, 0), (0, 2), (0, 3)]


def test_every_record_comes_until_it_is_acknowledged(store: jjq.Store, clock: Clock) -> None:
    topic = store.create_topic("many", sync="none")
    topic.push_many([b"%d" % n for n in range(1000)])
    work = store.channel("many", "work", create=True, max_attempts=None, clock=clock)
    seen: Counter[int] = Counter()
    turn = 0
    while got := work.receive(37):
        turn += 1
        for each in got:
            seen[each.record.offset] += 1
        work.ack_many(each for each in got if (each.record.offset + turn) % 3)
        work.requeue_many(each for each in got if not (each.record.offset + turn) % 3)
    assert set(seen) == set(range(1000))
    assert (work.counts().acked, work.counts().depth, work.counts().in_flight) == (1000, 0, 0)
    assert work.counts().delivered == sum(seen.values())


# --- deferred --------------------------------------------------------------------------------------------------------


def test_a_deferred_record_waits_and_blocks_nobody(store: jjq.Store) -> None:
    clock = Clock()
    topic = store.create_topic("letters", sync="none")
    topic.push(b"a", headers=not_before(clock, 10))
    topic.push(b"b")
    topic.push_many([b"c", b"d"], headers=[not_before(clock, 5)] * 2)
    topic.push(b"e", headers=not_before(clock, -5))
    work = store.channel("letters", "work", create=True, clock=clock)
    assert values(work.receive(10)) == [b"b", b"e"]
    assert (work.counts().deferred, work.counts().depth) == (3, 0)
    clock.advance(4.999999)
    assert work.receive(10) == []
    clock.advance(0.000001)
    assert values(work.receive(10)) == [b"c", b"d"]
    clock.advance(5)
    assert [(each.record.value, each.attempts) for each in work.receive(10)] == [(b"a", 1)]


def test_a_push_with_a_delay_is_deferred_on_channels_only(store: jjq.Store) -> None:
    topic = store.create_topic("letters", sync="none")
    subscriber = store.create_subscriber("letters", "all")
    work = store.channel("letters", "work", create=True)
    topic.push_many([b"a", b"b"], delay=timedelta(seconds=1000))
    topic.push(b"c", delay=0)
    topic.push(b"d", delay=1000)
    assert [each.value for each in subscriber.poll(10)] == [b"a", b"b", b"c", b"d"]
    assert values(work.receive(10)) == [b"c"]
    topic.push(b"e", delay=0.05, headers={"h": b"1"})
    [late] = work.receive(10, timeout=30)
    assert late.record.value == b"e"
    assert late.record.headers is not None
    assert late.record.headers[0] == ("h", b"1")
    assert int(dict(late.record.headers)["jjq-not-before"] or 0) <= min(late.record.timestamp + SECOND, now_us())
    assert work.counts().deferred == 3


@pytest.mark.parametrize("value", [None, b"", b"soon", b"-5", b"1.5", "٣".encode(), b"9" * 40])
def test_a_header_that_is_no_time_defers_nothing(store: jjq.Store, value: bytes | None) -> None:
    topic = store.create_topic("letters", sync="none")
    topic.push(b"a", headers={"jjq-not-before": value})
    assert values(store.channel("letters", "work", create=True).receive()) == [b"a"]


def test_thousands_of_deferred_records_are_passed_in_one_call(store: jjq.Store) -> None:
    clock = Clock()
    topic = store.create_topic("letters", sync="none")
    for start in range(0, 10_000, 1000):
        topic.push_many(
            [b"%d" % n for n in range(start, start + 1000)],
            headers=[not_before(clock, 1 + n % 7) for n in range(start, start + 1000)],
        )
    topic.push(b"now")
    work = store.channel("letters", "work", create=True, clock=clock, max_in_flight=100_000)
    assert values(work.receive(10)) == [b"now"]
    clock.advance(7)
    seen = set()
    while got := work.receive(500):
        seen.update(each.record.offset for each in got)
        work.ack_many(got)
    assert seen == set(range(10_000))


# --- read-only, arguments --------------------------------------------------------------------------------------------


def test_a_read_only_store_shows_channels_and_delivers_nothing(
    consumer: Consumer, store: jjq.Store, clock: Clock
) -> None:
    work = consumer()
    work.receive(1)
    with jjq.open(store.path, read_only=True) as view:
        channel = view.channel("letters", "work", clock=clock)
        assert (channel.counts().in_flight, channel.counts().depth) == (1, 3)
        assert len(channel.consumers()) == 1
        for use in (channel.receive, channel.pause, channel.empty, channel.revive):
            with pytest.raises(jjq.StoreReadOnly):
                use()
        with pytest.raises(jjq.StoreReadOnly):
            view.channel("letters", "new", create=True)


@pytest.mark.parametrize("most", [0, -1, 1.5, "1", None, True])
def test_how_many_is_a_whole_number(consumer: Consumer, most: object) -> None:
    with pytest.raises(jjq.InvalidArgument, match="max_records"):
        consumer().receive(most)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
def test_how_long_is_a_number_of_seconds(consumer: Consumer, timeout: object) -> None:
    with pytest.raises(jjq.InvalidArgument, match="timeout"):
        consumer().receive(1, timeout)  # type: ignore[arg-type]


def test_threads_of_one_handle_share_its_records(store: jjq.Store) -> None:
    topic = store.create_topic("many", sync="none")
    topic.push_many([b"%d" % n for n in range(2000)])
    seen: Counter[int] = Counter()
    with store.channel("many", "work", create=True) as work:

        def consume() -> None:
            while got := work.receive(20):
                seen.update(each.record.offset for each in got)
                work.ack_many(got)

        threads = [threading.Thread(target=consume) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == dict.fromkeys(range(2000), 1)
        assert work.counts().acked == 2000
