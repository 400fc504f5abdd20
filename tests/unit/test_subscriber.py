"""Subscribers where records went missing, lineages rose, processes forked, and where nothing can be written."""

import logging
import multiprocessing
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jjq
from jjq import feed
from jjq.clock import now_us
from tests.crash.faults import Disk, Operation
from tests.stores import flip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def topic(store: jjq.Store) -> jjq.Topic:
    """One partition that holds 0 to 9."""
    topic = store.create_topic("t", sync="none")
    topic.push_many([b"%d" % i for i in range(10)])
    return topic


def expire(store: jjq.Store, topic: jjq.Topic, offset: int, partition: int = 0) -> None:
    """What retention does: the records before `offset` are gone."""
    log = store.logs[topic.id, partition]
    with log.exclusive():
        log.roll_locked()
    store.catalog.advance_start(topic.id, partition, offset, [], now_us())


def test_a_loss_that_waited_behind_other_records_is_looked_at_again_after_a_sleep(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=2, sync="none")
    subscriber = store.create_subscriber("t", "s")
    topic.push_many([b"lost", b"lost later"], partition=1)
    expire(store, topic, 1, partition=1)
    topic.push_many([b"x", b"y"], partition=0)
    assert [each.value for each in subscriber.poll(1)] == [b"x"]
    expire(store, topic, 2, partition=1)
    subscriber.sleep()
    with pytest.raises(jjq.DataLoss, match="earliest left is 2"):
        poll_all(subscriber, [])


def begin_lineage(store: jjq.Store, topic: jjq.Topic, start: int, partition: int = 0) -> None:
    """What recovery notes when a power cut may have moved the end back to `start`."""
    row = store.catalog.partition(topic.id, partition)
    store.catalog.roll(
        row, closed=None, active=row.active, active_schema=row.active_schema, boot_id=row.boot_id, lineage_start=start
    )


def poll_all(subscriber: jjq.Subscriber, into: list[jjq.Record]) -> None:
    while more := subscriber.poll(3000):
        into += more


# --- retention -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["pop", "peek", "poll"])
def test_records_gone_unread_are_an_error_that_says_what_is_left(store: jjq.Store, topic: jjq.Topic, use: str) -> None:
    subscriber = store.create_subscriber("t", start=2)
    expire(store, topic, 7)
    for _ in range(2):  # it stays so until somebody decides
        with pytest.raises(jjq.DataLoss, match="offset 2 was asked for, the earliest left is 7; 5 records") as caught:
            getattr(subscriber, use)()
        loss = caught.value
        assert (loss.topic, loss.partition, loss.asked, loss.earliest, loss.lost) == ("t", 0, 2, 7, 5)
    assert subscriber.positions() == {0: 2}
    assert (subscriber.lag()[0].records, subscriber.lag()[0].lost) == (3, 5)
    subscriber.seek("earliest")
    assert subscriber.pop().value == b"7"


def test_expired_offsets_cannot_be_started_at(store: jjq.Store, topic: jjq.Topic) -> None:
    expire(store, topic, 7)
    said = "earliest left is 7; 4 records are gone; start at 'earliest' for what is left"
    with pytest.raises(jjq.DataLoss, match=said) as caught:
        store.create_subscriber("t", "s", start=3)
    assert caught.value.earliest == 7
    with pytest.raises(jjq.DataLoss, match=said):
        store.channel("t", "c", create=True, start=3)
    assert store.subscribers() == []
    subscriber = store.create_subscriber("t", start="latest")
    with pytest.raises(jjq.DataLoss, match=said):
        subscriber.seek(3)
    assert subscriber.positions() == {0: 10}
    assert store.create_subscriber("t", start=3, on_data_loss="skip").positions() == {0: 7}


@pytest.mark.parametrize("use", ["pop", "poll"])
def test_with_skip_it_goes_on_and_says_so_once_a_gap(
    store: jjq.Store, topic: jjq.Topic, use: str, caplog: pytest.LogCaptureFixture
) -> None:
    subscriber = store.create_subscriber("t", "s", start=2, on_data_loss="skip")
    expire(store, topic, 7)
    with caplog.at_level(logging.WARNING, "jjq.subscriber"):
        for expected in (b"7", b"8", b"9"):
            record = subscriber.pop() if use == "pop" else subscriber.poll(1)[0]
            assert record is not None
            assert record.value == expected
    assert subscriber.skipped == 5
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("subscriber 's' goes on at offset 7: partition 0 of topic 't': offset 2 was asked for")
    subscriber.commit()
    assert subscriber.positions() == {0: 10}


def test_a_skip_is_durable_with_the_pop_and_not_with_the_poll(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("t", start=2, on_data_loss="skip")
    expire(store, topic, 7)
    subscriber.poll(1)
    assert subscriber.positions() == {0: 2}
    subscriber.peek()
    assert subscriber.positions() == {0: 7}


def test_what_was_read_ahead_is_given_though_it_expired_since(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("t")
    assert subscriber.pop().value == b"0"
    expire(store, topic, 7)
    assert [subscriber.pop().value for _ in range(9)] == [b"%d" % i for i in range(1, 10)]


def test_a_loss_behind_taken_records_does_not_take_them_away(store: jjq.Store) -> None:
    topic = store.create_topic("two", partitions=2, sync="none")
    for partition in range(2):
        topic.push_many([b"x"] * 2000, partition=partition)
    subscriber = store.create_subscriber("two")
    first = subscriber.poll(1000)
    expire(store, topic, 1900, partition=1)
    records = first + subscriber.poll(3000)  # partition 1 was read ahead only so far
    with pytest.raises(jjq.DataLoss) as caught:
        poll_all(subscriber, records)
    assert caught.value.partition == 1
    assert [r.offset for r in records if r.partition == 1] == list(range(caught.value.asked))
    subscriber.seek({1: "earliest"})
    poll_all(subscriber, records)
    assert [r.offset for r in records if r.partition == 0] == list(range(2000))
    assert [r.offset for r in records if r.partition == 1] == [*range(caught.value.asked), *range(1900, 2000)]


def test_emptying_takes_a_subscriber_past_what_retention_had_taken(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("t", start=2)
    expire(store, topic, 10)
    topic.empty()
    assert subscriber.positions() == {0: 10}
    assert subscriber.pop() is None
    topic.push(b"10")
    assert subscriber.pop().value == b"10"


def test_a_cursor_that_another_handle_moved_back_is_followed_before_a_loss_is_told(
    store: jjq.Store, topic: jjq.Topic
) -> None:
    subscriber, other = store.create_subscriber("t", "s"), store.subscriber("s")
    while other.pop() is not None:
        pass
    subscriber.seek(3)
    expire(store, topic, 10)
    topic.push(b"10")
    store.catalog.advance_start(topic.id, 0, 10, [], now_us())
    with pytest.raises(jjq.DataLoss, match="offset 3 was asked for"):
        other.pop()


# --- lineage ---------------------------------------------------------------------------------------------------------


def test_a_cursor_past_where_offsets_were_given_again_is_a_loss(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("t", start=8)
    begin_lineage(store, topic, 5)
    for use in (subscriber.pop, subscriber.peek, subscriber.poll):
        with pytest.raises(jjq.DataLoss, match="offsets from 5 on were given again, and 8 is past them") as caught:
            use()
        assert (caught.value.asked, caught.value.earliest, caught.value.lost) == (8, 5, 3)
    lag = subscriber.lag()[0]
    assert (lag.records, lag.lost) == (5, 3)
    subscriber.seek(8)
    assert subscriber.pop().value == b"8"


def test_with_skip_it_reads_again_from_where_they_were_given_again(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("t", start=8, on_data_loss="skip")
    other = store.create_subscriber("t", start=8, on_data_loss="skip")
    begin_lineage(store, topic, 5)
    assert [record.value for record in other.poll()] == [b"5", b"6", b"7", b"8", b"9"]
    other.commit()
    assert other.positions() == {0: 10}
    assert subscriber.pop().value == b"5"
    assert subscriber.positions() == {0: 6}
    assert (subscriber.skipped, other.skipped) == (3, 3)


def test_a_cursor_before_that_goes_on_in_the_new_lineage(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("t", start=3)
    assert subscriber.peek().value == b"3"
    begin_lineage(store, topic, 5)
    assert [subscriber.pop().value for _ in range(7)] == [b"%d" % i for i in range(3, 10)]
    assert store.catalog.cursors(subscriber.id) == {0: (10, 1)}


def test_records_read_ahead_in_an_old_lineage_are_not_popped(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("t")
    assert [subscriber.pop().value for _ in range(6)] == [b"%d" % i for i in range(6)]  # 6 to 9 are read ahead
    begin_lineage(store, topic, 5)
    with pytest.raises(jjq.DataLoss, match="from 5 on were given again, and 6 is past them"):
        subscriber.pop()


def test_a_position_past_the_end_is_a_loss_and_no_endless_wait(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("t", on_data_loss="skip")
    store.catalog.set_cursors(subscriber.id, {0: (99, 0)}, only_forward=False)
    strict = store.create_subscriber("t")
    store.catalog.set_cursors(strict.id, {0: (99, 0)}, only_forward=False)
    with pytest.raises(jjq.DataLoss, match="ends at 10, and 99 is past it"):
        strict.pop(timeout=None)
    assert subscriber.pop() is None
    topic.push(b"10")
    assert subscriber.pop().value == b"10"


# --- reading ahead ---------------------------------------------------------------------------------------------------


def test_large_records_are_read_ahead_by_bytes(store: jjq.Store) -> None:
    topic = store.create_topic("big", sync="none")
    topic.push_many([bytes(300_000)] * 40)
    subscriber = store.create_subscriber("big")
    for offset in range(40):
        assert subscriber.pop().offset == offset
        window = subscriber._popping._windows[0]
        held = sum(len(record.value) for record in window.ready) + (window.batch.nbytes if window.batch else 0)
        assert held <= 2 * feed._WINDOW_BYTES[1]


def test_sleep_lets_go_of_every_record(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("t")
    subscriber.pop(), subscriber.poll(1)
    subscriber.sleep()
    for each in (subscriber._popping, subscriber._polling):
        assert not each._windows[0].ready
        assert each._windows[0].batch is None
    subscriber.wakeup()
    assert [record.value for record in subscriber._popping._windows[0].ready] == [b"%d" % i for i in range(1, 10)]


def test_who_follows_gets_records_of_every_form_as_who_reads_them_later(store: jjq.Store) -> None:
    topic = store.create_topic("forms", sync="none", segment_rows=40)
    live = store.create_subscriber("forms")
    assert live.pop() is None
    chance = random.Random(5)
    pushes: list[Callable[[int], object]] = [
        lambda i: topic.push(b"%d" % i),
        lambda i: topic.push(b"%d" % i, key=b"k"),
        lambda i: topic.push(None, key=b""),
        lambda i: topic.push(b""),
        lambda i: topic.push(b"%d" % i, headers={"h": b"%d" % i}),
        lambda i: topic.push_many([b"%d" % i] * chance.randrange(1, 5), keys=None),
        lambda i: topic.push(bytes(100_000)),
    ]
    got: list[jjq.Record] = []
    for i in range(400):
        for _ in range(chance.randrange(1, 4)):
            chance.choice(pushes)(i)
        got += live.poll(chance.choice([1, 3, 100])) if i % 2 else []
    while more := live.poll(100):
        got += more
    later = store.create_subscriber("forms")
    expected: list[jjq.Record] = []
    poll_all(later, expected)
    assert got == expected
    assert [each.offset for each in got] == list(range(topic.offsets()[0].end))


def test_a_bit_that_flips_in_what_was_just_pushed_is_noticed_by_who_follows(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("t")
    subscriber.poll(100)
    topic.push(b"one")
    assert subscriber.poll()[0].value == b"one"
    before = Path(topic.segments()[0].path).stat().st_size
    topic.push(b"two")
    flip(Path(topic.segments()[0].path), before + 300)
    with pytest.raises(jjq.DamagedSegment, match="do not match their checksum"):
        subscriber.poll()


# --- stores that cannot be written ------------------------------------------------------------------------------------


class Unreadable(Disk):
    """A disk that gives neither what was pushed nor, opened anew, an index."""

    def step(self, operation: Operation) -> None:
        if (operation.kind, Path(operation.path).suffix) in (("read", ".arrows"), ("open", ".index")):
            raise self.failure(operation)


def test_a_disk_that_cannot_be_read_is_an_error_of_the_store_also_for_who_follows(
    store: jjq.Store, topic: jjq.Topic
) -> None:
    subscriber = store.create_subscriber(topic.name, start="latest")
    for _ in range(2):  # from the second on it follows record by record
        topic.push(b"v")
        assert subscriber.pop() is not None
    topic.push(b"v")
    with Unreadable():
        with pytest.raises(jjq.StoreError, match="cannot read"):
            subscriber.pop()
        with pytest.raises(jjq.StoreError, match="cannot read"):
            store.offsets()
    assert subscriber.pop() is not None


def test_a_read_only_store_can_be_peeked_and_polled_and_pop_says_why_not(store: jjq.Store, topic: jjq.Topic) -> None:
    store.create_subscriber("t", "s", start=4)
    store.close()
    before = {path: path.stat().st_mtime_ns for path in store.path.rglob("*") if not path.name.startswith("catalog")}
    with jjq.open(store.path, read_only=True) as shut, jjq.open(store.path, read_only=True) as second:
        subscriber = shut.subscriber("s")
        assert subscriber.peek().value == b"4"
        assert [record.value for record in subscriber.poll(2)] == [b"4", b"5"]
        assert [record.value for record in second.subscriber("s").poll(1)] == [b"4"]
        assert next(iter(subscriber)).value == b"6"
        assert subscriber.lag()[0].records == 6
        for use in (subscriber.pop, subscriber.commit, lambda: subscriber.seek(0)):
            with pytest.raises(jjq.StoreReadOnly, match="read-only"):
                use()
        for change in (lambda: shut.create_subscriber("t"), lambda: shut.delete_subscriber("s")):
            with pytest.raises(jjq.StoreReadOnly):
                change()
    after = {path: path.stat().st_mtime_ns for path in store.path.rglob("*") if not path.name.startswith("catalog")}
    assert after == before


# --- locks and forks -------------------------------------------------------------------------------------------------


def test_no_lock_file_outlives_its_subscriber(store: jjq.Store, topic: jjq.Topic) -> None:
    with store.create_subscriber("t", "s") as subscriber:
        subscriber.poll(1)
        assert (store.path / "subscribers" / f"{subscriber.id}.lock").exists()
    store.delete_subscriber("s")
    assert list((store.path / "subscribers").iterdir()) == []
    with store.create_subscriber("t", "s") as subscriber:
        subscriber.poll(1)
    store.delete_topic("t")
    assert f"subscribers/{subscriber.id}.lock" in store.catalog.garbage()


def test_an_abandoned_handle_frees_the_consumer_lock(store: jjq.Store, topic: jjq.Topic) -> None:
    store.create_subscriber("t", "s").poll(1)
    assert store.subscriber("s").poll(1)[0].value == b"0"


def _in_a_fork(work: object, *arguments: object) -> object:
    """The result of a function in a forked child of this process."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()

    def run() -> None:
        try:
            theirs.send(work(*arguments))  # type: ignore[operator]
        except BaseException as error:
            theirs.send(repr(error))

    child = context.Process(target=run)
    child.start()
    theirs.close()
    try:
        assert mine.poll(60), "the child does nothing"
        return mine.recv()
    finally:
        child.kill()
        child.join()
        mine.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_pops_on_and_the_parent_keeps_polling(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("t", "s")
    assert subscriber.poll(2)[0].value == b"0"
    assert subscriber.pop().value == b"0"
    assert _in_a_fork(lambda: subscriber.pop().value) == b"1"
    assert subscriber.pop().value == b"2"
    assert "SubscriberBusy" in str(_in_a_fork(subscriber.poll))
    assert "SubscriberBusy" in str(_in_a_fork(lambda: store.subscriber("s").poll()))
    # The child let go of its copy of the lock, and the parent's holds.
    with pytest.raises(jjq.SubscriberBusy):
        store.subscriber("s").poll()
    assert [record.value for record in subscriber.poll(2)] == [b"3", b"4"]
    subscriber.close()
    assert _in_a_fork(lambda: [record.value for record in store.subscriber("s").poll(2)]) == [b"3", b"4"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_another_thread_waits_leaves_the_child_free(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("t", "s", start="latest")
    waiter = threading.Thread(target=lambda: subscriber.pop(timeout=None))
    waiter.start()
    for _ in range(5):
        assert _in_a_fork(subscriber.peek) is None
    topic.push(b"x")
    waiter.join()
    assert subscriber.pop() is None


def test_a_deleted_topic_is_said_again_whatever_was_read_ahead(store: jjq.Store) -> None:
    topic = store.create_topic("gone")
    topic.push_many([b"x"] * 5000)
    subscriber = store.create_subscriber("gone", "s")
    assert len(subscriber.poll(max_records=10)) == 10
    store.delete_topic("gone")
    for _ in range(3):
        with pytest.raises(jjq.TopicDeleted):
            subscriber.poll()


# --- polling for another process ---------------------------------------------------------------------------------------


def test_a_handle_that_was_closed_since_it_polled_has_no_places_to_give(store: jjq.Store, topic: jjq.Topic) -> None:
    """As when a broker stops between a client's poll and its answer: records without their places would be lost ones."""
    subscriber = store.create_subscriber("t")
    assert subscriber.polled() == {}
    assert len(subscriber.poll(3)) == 3
    assert subscriber.polled() == {0: (3, 0)}
    subscriber.close()
    with pytest.raises(jjq.StoreClosed):
        subscriber.polled()
    with pytest.raises(jjq.StoreClosed):
        subscriber.commit_to({0: (3, 0)})
