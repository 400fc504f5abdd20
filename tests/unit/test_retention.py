"""Retention beside those who read: by time, bytes and segments, waiting for some or overtaking them."""

import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import jjq
from jjq.clock import now_us
from jjq.config import TopicConfig
from jjq.log.reader import LogReader
from jjq.maintenance import Maintenance, expired
from jjq.model import Segment
from tests.channels import Clock, values
from tests.stores import assert_whole, roll

DAY_US = 86_400_000_000
ROWS = 10  # of a segment


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store", maintenance=False) as opened:
        yield opened
        assert_whole(opened)


def fill(store: jjq.Store, segments: int = 5, partition: int = 0, name: str = "t") -> None:
    for number in range(segments):
        store.topic(name).push_many([b"%d" % (number * ROWS + row) for row in range(ROWS)], partition=partition)
        roll(store, name, partition)


def expire(store: jjq.Store, us: int = 0, name: str = "t") -> Any:
    """What retention does in a turn of maintenance, some time from now; nothing is compacted, so segments stay as they are."""
    with Maintenance(store, now=now_us() + us) as work:
        work.expire(store.catalog.topic(name))
    return work.report


def start(store: jjq.Store, partition: int = 0, name: str = "t") -> int:
    return store.topic(name).offsets()[partition].start


# --- how many segments -------------------------------------------------------------------------------------------------


def segment(number: int) -> Segment:
    return Segment(f"{number:032x}", "arrows", number, number + 1, 100, 0, 0, 1, 0, 0, 0, 0)


@pytest.mark.parametrize(("most", "active", "left"), [(3, None, 3), (3, 0, 2), (1, 50, 0), (9, 50, 5), (5, None, 5)])
def test_the_newest_segments_stay_and_the_active_one_counts(most: int, active: int | None, left: int) -> None:
    segments = [segment(number) for number in range(5)]
    gone = expired(segments, active, TopicConfig(retention_segments=most), 0)
    assert segments[len(gone) :] == segments[5 - left :]
    assert gone == segments[: 5 - left]


def test_the_first_limit_that_is_reached_counts() -> None:
    segments = [segment(number) for number in range(5)]
    config = TopicConfig(retention_segments=4, retention_bytes=200, retention_us=1000)
    assert len(expired(segments, None, config, 1)) == 3
    assert len(expired(segments, None, TopicConfig(retention_segments=4, retention_bytes=450), 1)) == 1
    assert len(expired(segments, None, TopicConfig(retention_segments=2, retention_us=1000), 5000)) == 5


def test_a_topic_keeps_so_many_segments_of_each_partition(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=2, retention_segments=3)
    fill(store, 5, 0)
    fill(store, 2, 1)
    topic.push(b"active", partition=0)
    report = expire(store)
    assert (report.expired, report.expired_records) == (3, 3 * ROWS)
    assert [start(store, partition) for partition in range(2)] == [3 * ROWS, 0]
    assert len(topic.segments(0)) == 3


def test_it_can_be_set_and_taken_away(store: jjq.Store) -> None:
    store.create_topic("t")
    fill(store)
    store.alter_topic("t", retention_segments=2)
    assert expire(store).expired == 3
    store.alter_topic("t", retention_segments=None)
    fill(store)
    assert expire(store).expired == 0


# --- who is waited for -------------------------------------------------------------------------------------------------


def test_by_default_it_overtakes_and_says_to_whom_it_happens_what_is_left(store: jjq.Store) -> None:
    store.create_topic("t", retention_segments=2)
    fill(store)
    subscriber = store.create_subscriber("t", "slow")
    assert expire(store).expired == 3
    with pytest.raises(jjq.DataLoss) as caught:
        subscriber.pop()
    assert (caught.value.asked, caught.value.earliest, caught.value.lost) == (0, 30, 30)
    skipping = store.create_subscriber("t", start=5, on_data_loss="skip")
    assert skipping.pop().offset == 30


def test_it_waits_for_those_it_was_told_and_goes_on_behind_them(store: jjq.Store) -> None:
    store.create_topic("t", retention_segments=1, retention_waits=["billing"])
    fill(store)
    billing, other = store.create_subscriber("t", "billing"), store.create_subscriber("t", "other")
    report = expire(store)
    assert report.expired == 0
    assert report.waiting == [
        "t partition 0: 4 segments past the retention wait for subscriber billing, which is at offset 0"
    ]
    for _ in range(25):
        billing.pop()
    report = expire(store)
    assert report.expired == 2  # up to offset 20: the segment it is in stays
    assert "2 segments past the retention wait for subscriber billing, which is at offset 25" in report.waiting[0]
    assert start(store) == 20
    assert billing.pop().offset == 25
    with pytest.raises(jjq.DataLoss):
        other.pop()
    while billing.pop() is not None:
        pass
    report = expire(store)
    assert (report.expired, report.waiting) == (2, [])


def test_polled_records_are_waited_for_until_they_are_committed(store: jjq.Store) -> None:
    store.create_topic("t", retention_segments=1, retention_waits=["s"])
    fill(store)
    subscriber = store.create_subscriber("t", "s")
    assert len(subscriber.poll(500)) == 5 * ROWS
    assert expire(store).expired == 0
    subscriber.commit()
    assert expire(store).expired == 4


def test_it_can_wait_for_everybody_and_who_is_deleted_is_not_waited_for(store: jjq.Store) -> None:
    store.create_topic("t", partitions=2, retention=timedelta(days=1), retention_waits=True)
    for partition in range(2):
        fill(store, 2, partition)
    for name in ("a", "b"):
        store.create_subscriber("t", name)
    store.subscriber("a").seek({0: "latest", 1: 5})
    store.subscriber("b").seek({0: 10})
    assert expire(store, 2 * DAY_US).expired == 1
    assert [start(store, partition) for partition in range(2)] == [10, 0]
    store.delete_subscriber("b")
    assert expire(store, 2 * DAY_US).expired == 1
    assert [start(store, partition) for partition in range(2)] == [20, 0]
    store.delete_subscriber("a")
    assert expire(store, 2 * DAY_US).expired == 2
    assert [start(store, partition) for partition in range(2)] == [20, 20]


def test_names_that_nobody_has_hold_nothing(store: jjq.Store) -> None:
    store.create_topic("t", retention_segments=1, retention_waits=["nobody", "elsewhere"])
    store.create_topic("u")
    store.create_subscriber("u", "elsewhere")
    fill(store)
    assert expire(store).expired == 4


def test_a_name_that_nobody_has_is_warned_of(store: jjq.Store, caplog: pytest.LogCaptureFixture) -> None:
    store.create_topic("t", retention_segments=1, retention_waits=["billing"])  # before there can be anybody
    assert not caplog.messages
    fill(store)
    expire(store)
    assert ["no subscriber or channel 'billing'" in each for each in caplog.messages] == [True]
    caplog.clear()
    store.create_subscriber("t", "billing")
    store.channel("t", "work", create=True)
    store.alter_topic("t", retention_waits=["billing", "work"])
    assert not caplog.messages
    store.alter_topic("t", retention_waits=["billing", "wrok"])
    assert ["no subscriber or channel 'wrok'" in each for each in caplog.messages] == [True]
    store.alter_topic("t", retention_segments=2)
    assert len(caplog.messages) == 1


def test_a_channel_is_waited_for_until_its_records_are_acknowledged(store: jjq.Store) -> None:
    clock = Clock()
    store.create_topic("t", retention_segments=1, retention_waits=["work"])
    fill(store)
    work = store.channel("t", "work", create=True, clock=clock)
    first, *rest = work.receive(35)
    work.ack_many(rest)
    report = expire(store)
    assert (report.expired, start(store)) == (0, 0)
    assert "wait for channel work, which is at offset 0" in report.waiting[0]
    first.requeue()
    assert expire(store).expired == 0
    (again,) = work.receive(1)
    assert values([again]) == [b"0"]
    again.ack()
    assert expire(store).expired == 3
    assert start(store) == 30
    assert values(work.receive(1)) == [b"35"]


def test_of_everybody_the_one_furthest_behind_counts_be_it_subscriber_or_channel(store: jjq.Store) -> None:
    store.create_topic("t", retention_segments=1, retention_waits=True)
    fill(store)
    store.create_subscriber("t", "s", start=35)
    work = store.channel("t", "work", create=True, start=15)
    expire(store)
    assert start(store) == 10
    work.ack_many(work.receive(35))
    expire(store)
    assert start(store) == 30


def test_one_who_comes_while_it_is_decided_is_waited_for(store: jjq.Store) -> None:
    topic = store.create_topic("t", retention_segments=1, retention_waits=True)
    fill(store)
    with Maintenance(store) as work:
        drop = store.catalog.drop_prefix

        def come_first(*arguments: Any, **options: Any) -> bool:
            store.create_subscriber("t", "late")
            return drop(*arguments, **options)

        store.catalog.drop_prefix = come_first  # type: ignore[method-assign]
        assert work.expire(store.catalog.topic("t")) == 0
    assert topic.offsets()[0].start == 0
    assert store.subscriber("late").pop().value == b"0"


@pytest.mark.parametrize("wrong", ["billing", 1, [1], ["no name!"], {"a": 1}, None])
def test_whom_to_wait_for_is_true_false_or_names(store: jjq.Store, wrong: Any) -> None:
    with pytest.raises(jjq.InvalidArgument):
        store.create_topic("t", retention_waits=wrong)
    assert store.topics() == []


def test_it_is_a_setting_like_others(store: jjq.Store) -> None:
    topic = store.create_topic("t", retention_waits=["a", "b"])
    assert topic.config.retention_waits == ("a", "b")
    assert store.topic("t").config.retention_waits == ("a", "b")
    assert store.alter_topic("t", retention_waits=True).config.retention_waits is True
    assert store.alter_topic("t", retention_waits=False).config.retention_waits is False
    assert TopicConfig().retention_waits is False


# --- live --------------------------------------------------------------------------------------------------------------


def go_on(subscriber: jjq.Subscriber, loss: jjq.DataLoss) -> int:
    """Seeks the earliest record left, which may be another one by now; returns its offset."""
    target = loss.earliest
    while True:
        with contextlib.suppress(jjq.DataLoss):
            subscriber.seek(target)
            return target
        target = subscriber.topic.offsets()[0].start


@pytest.mark.parametrize("waits", [True, False])
def test_a_live_subscriber_is_never_skipped_silently(store: jjq.Store, waits: bool) -> None:
    """It gets each record in order, or is told exactly what is gone; when it is waited for, nothing ever is."""
    total = 2000
    topic = store.create_topic("t", sync="none", segment_rows=ROWS, retention_segments=2, retention_waits=waits)
    subscriber = store.create_subscriber("t", "live")
    pushed = threading.Event()

    def push() -> None:
        for number in range(total // 5):
            topic.push_many([b"%d" % (number * 5 + row) for row in range(5)])
            if number % 10 == 0:
                expire(store)
        pushed.set()

    pusher = threading.Thread(target=push)
    pusher.start()
    expected = lost = 0
    while expected < total:
        loss, records = None, []
        try:
            records = subscriber.poll(7, timeout=1.0)
        except jjq.DataLoss as error:
            loss = error
        if loss is not None:
            assert loss.asked == expected
            assert loss.lost == loss.earliest - expected > 0
            behind, expected = expected, go_on(subscriber, loss)
            lost += expected - behind
        assert [(each.offset, each.value) for each in records] == [
            (offset, b"%d" % offset) for offset in range(expected, expected + len(records))
        ]
        expected += len(records)
        subscriber.commit()
    pusher.join()
    assert pushed.is_set()
    assert lost == 0 or not waits
    expire(store)
    assert len(topic.segments()) <= 2


def test_all_that_went_between_a_look_at_the_bounds_and_the_plan_is_told(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.create_topic("t", retention_segments=1)
    fill(store, 2)
    subscriber = store.create_subscriber("t", "s")
    real, looks = LogReader.plan, []

    def late(reader: LogReader, *place: Any, **more: Any) -> Any:
        """Plans when retention has gone beyond what was to be read."""
        if not looks:
            looks.append(place)
            fill(store, 3)
            expire(store)
        return real(reader, *place, **more)

    monkeypatch.setattr(LogReader, "plan", late)
    with pytest.raises(jjq.DataLoss) as caught:
        subscriber.poll(5)
    assert looks[0][2] < start(store) == caught.value.earliest
    assert (caught.value.asked, caught.value.lost) == (0, start(store))
    assert topic.offsets()[0].end == 5 * ROWS
