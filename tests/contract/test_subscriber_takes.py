"""Taking records from a subscriber, one by one or many at once, and waiting for them, whatever serves the store."""

import threading
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest

import jjq

Reopen = Callable[[], jjq.Store]


def values(records: list[jjq.Record]) -> list[bytes]:
    return [record.value for record in records]


# --- pop and peek ----------------------------------------------------------------------------------------------------


def test_a_record_comes_whole(store: jjq.Store) -> None:
    topic = store.create_topic("t", timestamps="producer", partitions=2)
    topic.push(b"v", key=b"k", headers={"h": b"1", "n": None}, timestamp=1_700_000_000_000_000, partition=1)
    topic.push(None, key=b"", headers={}, timestamp=1_700_000_000_000_001, partition=1)
    subscriber = store.create_subscriber("t")
    assert subscriber.pop() == jjq.Record(
        "t", 1, 0, 1_700_000_000_000_000, b"k", [("h", b"1"), ("n", None)], b"v"
    )  # fmt: skip
    assert subscriber.pop() == jjq.Record("t", 1, 1, 1_700_000_000_000_001, b"", [], None)
    assert subscriber.pop() is None


def test_a_topic_with_a_schema_gives_its_columns(store: jjq.Store) -> None:
    topic = store.create_topic("t", schema=pa.schema([("carrier", pa.string()), ("delay", pa.int32())]))
    topic.push({"carrier": "AA", "delay": 4})
    subscriber = store.create_subscriber("t")
    assert subscriber.peek().value == {"carrier": "AA", "delay": 4}
    store.alter_topic("t", add_columns=pa.schema([("gate", pa.string())]))
    topic.push({"carrier": "UA", "gate": "B2"})
    assert subscriber.pop().value["carrier"] == "AA"
    assert subscriber.pop().value == {"carrier": "UA", "delay": None, "gate": "B2"}


def test_pop_moves_the_cursor_for_every_handle_and_peek_moves_nothing(
    store: jjq.Store, topic: jjq.Topic, reopen: Reopen
) -> None:
    mine = store.create_subscriber("letters", "s")
    other = reopen().subscriber("s")
    assert mine.peek().value == mine.peek().value == b"a"
    assert mine.positions() == {0: 0}
    assert mine.pop().value == b"a"
    assert other.peek().value == b"b"
    assert other.pop().value == b"b"
    assert mine.peek().value == b"c"
    assert mine.positions() == other.positions() == {0: 2}


def test_pop_and_peek_see_what_was_pushed_a_moment_ago(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("letters", start="latest")
    for value in (b"1", b"2", b"3"):
        assert subscriber.pop() is None
        topic.push(value)
        assert subscriber.peek().value == value
        assert subscriber.pop().value == value


def test_peek_pins_the_partition_for_the_next_pop(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=3)
    for partition in range(3):
        topic.push_many([b"x"] * 3, partition=partition)
    subscriber = store.create_subscriber("t")
    for _ in range(9):
        seen = subscriber.peek()
        topic.push(b"y")
        assert subscriber.peek() == seen
        assert subscriber.pop() == seen


def test_pop_takes_turns_among_partitions(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=3)
    for partition, count in enumerate((90, 5, 5)):
        topic.push_many([b"x"] * count, partition=partition)
    subscriber = store.create_subscriber("t")
    first = [subscriber.pop().partition for _ in range(15)]
    assert Counter(first) == {0: 5, 1: 5, 2: 5}
    assert Counter(subscriber.pop().partition for _ in range(85)) == {0: 85}


def test_order_is_kept_within_each_partition(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=4, sync="none")
    topic.push_many([b"%d" % i for i in range(1000)], keys=[b"%d" % (i % 13) for i in range(1000)])
    subscriber = store.create_subscriber("t")
    records = [subscriber.pop() for _ in range(1000)]
    assert subscriber.pop() is None
    for partition in range(4):
        offsets = [record.offset for record in records if record.partition == partition]
        assert offsets == list(range(len(offsets)))
    assert sorted(int(record.value) for record in records) == list(range(1000))


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), "1", True])
def test_a_bad_timeout_is_refused(store: jjq.Store, topic: jjq.Topic, timeout: object) -> None:
    subscriber = store.create_subscriber("letters")
    for use in (subscriber.pop, subscriber.peek, lambda timeout: subscriber.poll(1, timeout)):
        with pytest.raises(jjq.InvalidArgument, match="timeout must be seconds"):
            use(timeout)


def test_waiting_ends_with_nothing_after_its_time(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("letters", start="latest")
    assert subscriber.pop(timeout=0.01) is None
    assert subscriber.peek(timeout=0.01) is None
    assert subscriber.poll(timeout=0.01) == []


def test_threads_that_pop_from_one_handle_share_the_records(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=2, sync="none")
    for partition in range(2):
        topic.push_many([b"x"] * 500, partition=partition)
    subscriber = store.create_subscriber("t")
    taken: list[tuple[int, int]] = []

    def work() -> None:
        while (record := subscriber.pop()) is not None:
            taken.append((record.partition, record.offset))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [(partition, offset) for partition in range(2) for offset in range(500)]


# --- poll, commit, iteration -----------------------------------------------------------------------------------------


def test_poll_moves_nothing_until_commit(store: jjq.Store, topic: jjq.Topic, reopen: Reopen) -> None:
    mine = store.create_subscriber("letters", "s")
    assert values(mine.poll(3)) == [b"a", b"b", b"c"]
    assert mine.positions() == {0: 0}
    mine.close()
    other = reopen().subscriber("s")
    assert values(other.poll(2)) == [b"a", b"b"]
    other.commit()
    assert other.positions() == {0: 2}
    assert values(other.poll()) == [b"c", b"d"]
    assert other.poll() == []
    other.close()
    assert values(store.subscriber("s").poll()) == [b"c", b"d"]


def test_poll_shares_evenly_among_partitions_that_have_records(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=3, sync="none")
    for partition, count in enumerate((1000, 1000, 10)):
        topic.push_many([b"x"] * count, partition=partition)
    subscriber = store.create_subscriber("t")
    assert Counter(record.partition for record in subscriber.poll(300)) == {0: 145, 1: 145, 2: 10}
    assert Counter(record.partition for record in subscriber.poll(300)) == {0: 150, 1: 150}
    assert len(subscriber.poll(5000)) == 1410


def test_one_record_at_a_time_no_partition_starves(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=3)
    for partition in range(3):
        topic.push_many([b"x"] * 4, partition=partition)
    subscriber = store.create_subscriber("t")
    assert [subscriber.poll(1)[0].partition for _ in range(12)] == [0, 1, 2] * 4


def test_consumers_that_come_for_one_record_each_starve_no_partition(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=3)
    for partition in range(3):
        topic.push_many([b"x"] * 4, partition=partition)
    store.create_subscriber("t", "s")
    taken = []
    for _ in range(12):
        with store.subscriber("s") as subscriber:
            shown = subscriber.peek()
        with store.subscriber("s") as subscriber:
            assert subscriber.pop() == shown
        taken.append(shown.partition)
    assert taken == [0, 1, 2] * 4


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "3", None])
def test_a_bad_number_of_records_is_refused(store: jjq.Store, topic: jjq.Topic, count: object) -> None:
    with pytest.raises(jjq.InvalidArgument, match="max_records must be a whole number"):
        store.create_subscriber("letters").poll(count)


def test_commit_never_goes_back(store: jjq.Store, topic: jjq.Topic, reopen: Reopen) -> None:
    mine = store.create_subscriber("letters", "s")
    other = reopen().subscriber("s")
    assert values(mine.poll(1)) == [b"a"]
    assert [other.pop().value for _ in range(3)] == [b"a", b"b", b"c"]
    mine.commit()
    assert mine.positions() == {0: 3}


def test_commit_before_any_poll_does_nothing_and_says_so(
    store: jjq.Store, topic: jjq.Topic, caplog: pytest.LogCaptureFixture
) -> None:
    subscriber = store.create_subscriber("letters", "s")
    assert values(subscriber.poll(1)) == [b"a"]
    other = store.subscriber("s")
    other.commit()
    assert other.positions() == {0: 0}
    assert ["commit by the handle that polled" in each.getMessage() for each in caplog.records] == [True]
    subscriber.commit()
    subscriber.commit()
    subscriber.sleep()
    subscriber.commit()  # nothing new is no mistake
    assert other.pop().value == b"b"
    other.commit()  # nor is this of who pops
    assert len(caplog.records) == 1


def test_a_handle_does_not_poll_what_it_popped(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("letters")
    assert values(subscriber.poll(1)) == [b"a"]
    assert [subscriber.pop().value for _ in range(2)] == [b"a", b"b"]
    assert values(subscriber.poll()) == [b"c", b"d"]


def test_a_second_consumer_is_told_that_the_subscriber_is_busy(
    store: jjq.Store, topic: jjq.Topic, reopen: Reopen
) -> None:
    mine = store.create_subscriber("letters", "s")
    other = reopen().subscriber("s")
    assert values(mine.poll(1)) == [b"a"]
    for use in (other.poll, lambda: next(iter(other)), lambda: other.seek(0)):
        with pytest.raises(jjq.SubscriberBusy) as caught:
            use()
        assert caught.value.retryable
    assert other.pop().value == b"a"  # pop is for many
    mine.close()
    assert values(other.poll(1)) == [b"b"]


def test_a_second_thread_on_one_handle_is_busy_too(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("letters")
    iterator = iter(subscriber)
    assert next(iterator).value == b"a"
    caught: list[BaseException] = []

    def poll() -> None:
        try:
            subscriber.poll()
        except jjq.SubscriberBusy as error:
            caught.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    thread.join()
    assert len(caught) == 1
    assert next(iterator).value == b"b"
    iterator.close()
    thread = threading.Thread(target=poll)
    thread.start()
    thread.join()
    assert len(caught) == 1


def test_iteration_gives_history_then_each_new_record_and_commits_up_to_the_one_at_hand(
    store: jjq.Store, topic: jjq.Topic
) -> None:
    subscriber = store.create_subscriber("letters", "s")
    seen = []
    for record in subscriber:
        seen.append(record.value)
        subscriber.commit()
        assert subscriber.positions() == {0: record.offset + 1}
        if record.value == b"d":
            topic.push(b"e")
        if record.value == b"e":
            break
    assert seen == [b"a", b"b", b"c", b"d", b"e"]


# --- waiting ---------------------------------------------------------------------------------------------------------


class Waiter(threading.Thread):
    """A thread that waits for a record; `result` is what it got, or the error."""

    def __init__(self, wait: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._wait = wait
        self.result: object = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._wait()
        except jjq.JjqError as error:
            self.result = error

    def outcome(self) -> object:
        self.join(60)
        assert not self.is_alive()
        return self.result


WAITS: dict[str, Callable[[jjq.Subscriber], object]] = {
    "pop": lambda subscriber: subscriber.pop(timeout=None),
    "peek": lambda subscriber: subscriber.peek(timeout=None),
    "poll": lambda subscriber: subscriber.poll(timeout=None)[0],
    "iteration": lambda subscriber: next(iter(subscriber)),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_who_waits_gets_the_record_whenever_it_is_pushed(
    store: jjq.Store, topic: jjq.Topic, reopen: Reopen, wait: Callable[[jjq.Subscriber], object]
) -> None:
    elsewhere = reopen().topic("letters")
    for i in range(20):
        with store.create_subscriber("letters", start="latest") as subscriber:
            waiter = Waiter(lambda subscriber=subscriber: wait(subscriber))
            elsewhere.push(b"%d" % i)
            record = waiter.outcome()
            assert isinstance(record, jjq.Record), record
            assert record.value == b"%d" % i


# What ends it: by the waiter's store, another store, the waiter's handle.
End = Callable[[jjq.Store, jjq.Store, jjq.Subscriber], object]
ENDS: dict[str, tuple[End, type[jjq.JjqError]]] = {
    "topic deleted": (lambda _, other, __: other.delete_topic("letters"), jjq.TopicDeleted),
    "topic deleted and made again": (
        lambda _, other, __: (other.delete_topic("letters"), other.create_topic("letters")),
        jjq.TopicDeleted,
    ),
    "subscriber deleted": (lambda _, other, __: other.delete_subscriber("s"), jjq.SubscriberNotFound),
    "handle closed": (lambda _, __, subscriber: subscriber.close(), jjq.StoreClosed),
    "store closed": (lambda store, _, __: store.close(), jjq.StoreClosed),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
@pytest.mark.parametrize(("end", "error"), ENDS.values(), ids=ENDS.keys())
def test_a_wait_for_what_will_never_come_raises(
    store: jjq.Store,
    topic: jjq.Topic,
    reopen: Reopen,
    wait: Callable[[jjq.Subscriber], object],
    end: End,
    error: type[jjq.JjqError],
) -> None:
    subscriber = store.create_subscriber("letters", "s", start="latest")
    other = reopen()
    waiter = Waiter(lambda: wait(subscriber))
    end(store, other, subscriber)
    assert isinstance(waiter.outcome(), error)


def test_closing_is_quiet_twice_and_final(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("letters", "s")
    subscriber.close()
    subscriber.close()
    for use in (subscriber.pop, subscriber.peek, subscriber.poll, subscriber.commit, subscriber.lag, subscriber.wakeup):
        with pytest.raises(jjq.StoreClosed, match="'s' was closed"):
            use()
    with pytest.raises(jjq.StoreClosed):
        iter(subscriber)


def test_sleep_lets_go_and_what_follows_is_the_same(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("letters")
    assert subscriber.pop().value == b"a"
    assert values(subscriber.poll(1)) == [b"b"]
    subscriber.sleep()
    assert subscriber.pop().value == b"b"
    subscriber.sleep()
    subscriber.wakeup()
    assert subscriber.peek().value == b"c"
    assert values(subscriber.poll()) == [b"c", b"d"]


def test_leaving_the_with_block_ends_the_consumer(store: jjq.Store, topic: jjq.Topic, reopen: Reopen) -> None:
    with store.create_subscriber("letters", "s") as subscriber:
        assert values(subscriber.poll(1)) == [b"a"]
    assert values(reopen().subscriber("s").poll(1)) == [b"a"]
