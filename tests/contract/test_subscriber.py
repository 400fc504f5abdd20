"""Subscribers: made, found, sought and deleted, whatever serves the store."""

from collections.abc import Callable
from datetime import UTC, datetime

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
    with pytest.raises(jjq.SubscriberExists, match="of topic 'letters' already; give this one another name"):
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
    with pytest.raises(jjq.SubscriberNotFound, match="make it with create_subscriber"):
        store.subscriber("billing")
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


@pytest.mark.parametrize("meant", [1_767_225_600, 1_767_225_600_000, 1_767_225_600_000_000, 1_767_225_600_000_000_000])
def test_a_number_that_may_be_meant_as_a_time_is_told_how_a_time_is_written(
    store: jjq.Store, topic: jjq.Topic, meant: int
) -> None:
    subscriber = store.create_subscriber("letters")
    with pytest.raises(jjq.OffsetOutOfRange, match="a time is written '2026-01-01T00:00:00Z'"):
        subscriber.seek(meant)
    with pytest.raises(jjq.OffsetOutOfRange, match="a time is written '2026-01-01T00:00:00Z'"):
        topic.read(start=meant)


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
