"""What a subscriber promises, whatever serves the store."""

import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa
import pytest

import jjq

Reopen = Callable[[], jjq.Store]


def values(records: list[jjq.Record]) -> list[bytes]:
    return [record.value for record in records]


def drain(subscriber: jjq.Subscriber) -> list[bytes]:
    found = []
    while (record := subscriber.pop()) is not None:
        found.append(record.value)
    return found


@pytest.fixture
def topic(store: jjq.Store) -> jjq.Topic:
    """One partition that holds a, b, c, d."""
    topic = store.create_topic("letters", sync="none")
    topic.push_many([b"a", b"b", b"c", b"d"])
    return topic


# --- making and finding ----------------------------------------------------------------------------------------------


def test_a_subscriber_has_a_name_an_id_and_its_topic(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("letters", "billing")
    assert (subscriber.name, subscriber.topic.name, subscriber.topic.id) == ("billing", "letters", topic.id)
    again = store.subscriber("billing")
    assert again.id == subscriber.id
    assert repr(again) == "<Subscriber 'billing' of topic 'letters' open>"


def test_without_a_name_each_gets_one_of_its_own(store: jjq.Store, topic: jjq.Topic) -> None:
    first, second = store.create_subscriber("letters"), store.create_subscriber("letters")
    assert first.name != second.name
    assert store.subscriber(first.name).id == first.id


def test_subscribers_are_listed_by_name_and_by_topic(store: jjq.Store, topic: jjq.Topic) -> None:
    store.create_topic("other")
    for name, of in (("b", "letters"), ("a", "letters"), ("c", "other")):
        store.create_subscriber(of, name)
    assert [each.name for each in store.subscribers()] == ["a", "b", "c"]
    assert [each.name for each in store.subscribers("other")] == ["c"]


def test_a_name_is_taken_once_and_can_be_asked_for_again(store: jjq.Store, topic: jjq.Topic) -> None:
    made = store.create_subscriber("letters", "s")
    made.pop()
    with pytest.raises(jjq.SubscriberExists, match="'s' of topic 'letters' already"):
        store.create_subscriber("letters", "s")
    kept = store.create_subscriber("letters", "s", start="latest", exist_ok=True)
    assert (kept.id, kept.positions()) == (made.id, {0: 1})
    store.create_topic("other")
    with pytest.raises(jjq.SubscriberExists, match="of topic 'letters'"):
        store.create_subscriber("other", "s", exist_ok=True)


def test_one_that_loses_records_otherwise_is_not_what_was_asked_for(store: jjq.Store, topic: jjq.Topic) -> None:
    store.create_subscriber("letters", "s", on_data_loss="skip")
    assert store.create_subscriber("letters", "s", on_data_loss="skip", exist_ok=True).on_data_loss == "skip"
    assert store.create_subscriber("letters", "s", exist_ok=True).on_data_loss == "skip"
    with pytest.raises(jjq.InvalidArgument, match="'error' was asked for, and subscriber 's' has 'skip'; leave it out"):
        store.create_subscriber("letters", "s", on_data_loss="error", exist_ok=True)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a" * 300, "nul\0", "имя", "-x", " a", "x#ephemeral"])
def test_a_bad_name_is_refused_before_anything_happens(store: jjq.Store, topic: jjq.Topic, name: str) -> None:
    with pytest.raises(jjq.InvalidName):
        store.create_subscriber("letters", name)
    with pytest.raises(jjq.InvalidName):
        store.subscriber(name)
    assert store.subscribers() == []


def test_an_unknown_subscriber_or_topic_is_answered_with_the_nearest(store: jjq.Store, topic: jjq.Topic) -> None:
    store.create_subscriber("letters", "billing")
    with pytest.raises(jjq.SubscriberNotFound, match="did you mean 'billing'"):
        store.subscriber("biling")
    with pytest.raises(jjq.TopicNotFound, match="did you mean 'letters'"):
        store.create_subscriber("leters", "s")
    with pytest.raises(jjq.SubscriberNotFound, match="no subscriber 'zzz'"):
        store.delete_subscriber("zzz")


def test_a_deleted_subscriber_is_gone_for_every_handle(store: jjq.Store, topic: jjq.Topic, reopen: Reopen) -> None:
    mine = store.create_subscriber("letters", "s")
    other = reopen().subscriber("s")
    assert mine.peek() is not None
    assert values(other.poll(2)) == [b"a", b"b"]
    store.delete_subscriber("s")
    for use in (mine.pop, mine.peek, mine.lag, other.commit, other.positions, lambda: other.seek(0)):
        with pytest.raises(jjq.SubscriberNotFound, match="'s' was deleted"):
            use()
    assert store.create_subscriber("letters", "s").positions() == {0: 0}


def test_deleting_the_topic_deletes_its_subscribers(store: jjq.Store, topic: jjq.Topic, reopen: Reopen) -> None:
    mine = store.create_subscriber("letters", "s")
    mine.pop()
    reopen().delete_topic("letters")
    for use in (mine.pop, mine.peek, mine.poll, mine.lag, lambda: mine.seek(0)):
        with pytest.raises(jjq.TopicDeleted):
            use()
    assert store.subscribers() == []
    store.create_topic("letters")
    with pytest.raises(jjq.SubscriberNotFound):
        store.subscriber("s")


# --- where it starts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", b"a"), ("beginning", b"a"), ("latest", None), ("end", None), (0, b"a"), (2, b"c"), (4, None),
        (-1, b"d"), (-3, b"b"), (-99, b"a"), ({0: 3}, b"d"), ({0: "latest"}, None), ("-1 hour", b"a"),
        ("2001-01-01T00:00:00Z", b"a"), ("2999-01-01T00:00:00Z", None), (datetime(2001, 1, 1, tzinfo=UTC), b"a"),
    ],
)  # fmt: skip
def test_it_starts_where_it_is_told(store: jjq.Store, topic: jjq.Topic, start: object, expected: bytes | None) -> None:
    made = store.create_subscriber("letters", start=start)
    record = made.peek()
    assert (None if record is None else record.value) == expected


@pytest.mark.parametrize(
    ("start", "error"),
    [
        (5, jjq.OffsetOutOfRange), ("nonsense", jjq.InvalidArgument), ("2001-01-01T00:00:00", jjq.InvalidArgument),
        (None, jjq.InvalidArgument), (True, jjq.InvalidArgument), (1.5, jjq.InvalidArgument), (1 << 70, jjq.InvalidArgument),
        ({7: 0}, jjq.InvalidArgument),
    ],
)  # fmt: skip
def test_a_start_that_cannot_be_makes_no_subscriber(
    store: jjq.Store, topic: jjq.Topic, start: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        store.create_subscriber("letters", "s", start=start)
    assert store.subscribers() == []


def test_the_default_is_the_beginning_though_others_have_read_it(store: jjq.Store, topic: jjq.Topic) -> None:
    assert drain(store.create_subscriber("letters")) == [b"a", b"b", b"c", b"d"]
    assert drain(store.create_subscriber("letters")) == [b"a", b"b", b"c", b"d"]


def test_an_unknown_policy_is_refused(store: jjq.Store, topic: jjq.Topic) -> None:
    with pytest.raises(jjq.InvalidArgument, match="'error' or 'skip'"):
        store.create_subscriber("letters", on_data_loss="ignore")


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


def test_commit_before_any_poll_does_nothing(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("letters")
    subscriber.commit()
    assert subscriber.positions() == {0: 0}


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


# --- seek and lag ----------------------------------------------------------------------------------------------------


def test_seek_moves_back_and_forth_for_pop_and_poll_alike(store: jjq.Store, topic: jjq.Topic, reopen: Reopen) -> None:
    subscriber = store.create_subscriber("letters", "s")
    other = reopen().subscriber("s")
    assert drain(other) == [b"a", b"b", b"c", b"d"]
    subscriber.seek(1)
    assert other.pop().value == b"b"  # a handle that was at the end sees it
    assert values(subscriber.poll(1)) == [b"c"]
    subscriber.seek("latest")
    assert subscriber.poll() == []
    assert other.pop() is None
    subscriber.seek(-1)
    assert subscriber.peek().value == b"d"
    assert values(subscriber.poll()) == [b"d"]


def test_what_was_popped_is_polled_again_after_a_seek_by_another_handle(
    store: jjq.Store, topic: jjq.Topic, reopen: Reopen
) -> None:
    subscriber = store.create_subscriber("letters", "s")
    assert [subscriber.pop().value, subscriber.pop().value] == [b"a", b"b"]
    reopen().subscriber("s").seek("earliest")
    assert values(subscriber.poll()) == [b"a", b"b", b"c", b"d"]


def test_a_mapping_moves_only_the_partitions_it_names(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=2)
    for partition in range(2):
        topic.push_many([b"x"] * 5, partition=partition)
    subscriber = store.create_subscriber("t", start={0: 2, 1: 3})
    subscriber.seek({1: "latest"})
    assert subscriber.positions() == {0: 2, 1: 5}


def test_seeking_past_the_end_is_refused_and_moves_nothing(store: jjq.Store, topic: jjq.Topic) -> None:
    subscriber = store.create_subscriber("letters")
    with pytest.raises(jjq.OffsetOutOfRange, match="beyond the end"):
        subscriber.seek(5)
    assert subscriber.positions() == {0: 0}


def test_lag_says_what_is_left(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=2)
    topic.push_many([b"x" * 1000] * 10, partition=1)
    subscriber = store.create_subscriber("t", start={1: 4})
    none, some = subscriber.lag()
    assert (none.partition, none.position, none.start, none.end) == (0, 0, 0, 0)
    assert (none.records, none.bytes, none.seconds, none.lost) == (0, 0, 0.0, 0)
    assert (some.partition, some.position, some.start, some.end) == (1, 4, 0, 10)
    assert (some.records, some.lost) == (6, 0)
    assert 6000 <= some.bytes <= 12000
    assert some.seconds is not None
    assert some.seconds >= 0


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


# --- what is gone ----------------------------------------------------------------------------------------------------


def test_what_empty_let_go_is_no_loss(store: jjq.Store, topic: jjq.Topic, reopen: Reopen) -> None:
    popping, polling = store.create_subscriber("letters", "popping"), store.create_subscriber("letters", "polling")
    assert popping.pop().value == b"a"
    assert values(polling.poll(1)) == [b"a"]
    reopen().topic("letters").empty()
    topic.push(b"e")
    popping.sleep(), polling.sleep()  # what was read before may still be given
    assert popping.pop().value == b"e"
    assert values(polling.poll()) == [b"e"]
    polling.commit()
    assert popping.positions() == polling.positions() == {0: 5}
    assert (popping.skipped, polling.skipped) == (0, 0)


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
