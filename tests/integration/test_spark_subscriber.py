"""A subscriber that follows what a query of Spark has committed: without a JVM, as Spark calls it."""

import logging

import pyarrow as pa
import pytest

import jjq
from jjq.errors import InvalidArgument, SubscriberNotFound
from tests.readers import ALL, advance, batch, drain, number, source, stream, three_partitions, through_json

NUMBERS = pa.schema([("n", pa.int64())])


def lag(store: jjq.Store, name: str) -> dict[int, int]:
    return {each.partition: each.records for each in store.subscriber(name).lag()}


def test_a_subscriber_follows_what_the_query_has_committed(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=2)
    for p in (0, 1):
        topic.push_many(number(5), partition=p)
    reader = stream(store, startingOffsets="earliest", maxOffsetsPerTrigger=4, subscriber="query")
    start = through_json(reader.initialOffset())
    end, _ = advance(reader, start)
    assert lag(store, "query") == {0: 5, 1: 5}  # the micro-batch is planned, and not yet done
    onward = through_json(reader.latestOffset(end, reader.getDefaultReadLimit()))
    assert lag(store, "query") == {0: 3, 1: 3}
    reader.commit(onward)
    assert lag(store, "query") == {0: 1, 1: 1}
    assert store.subscriber("query").topic.name == "t"


def test_the_last_micro_batch_counts_without_another_one(store: jjq.Store) -> None:
    store.create_topic("t").push_many(number(5))
    reader = stream(store, startingOffsets="earliest", subscriber="query")
    reader.prepareForTriggerAvailableNow()
    drain(reader, through_json(reader.initialOffset()))
    assert lag(store, "query") == {0: 0}


def test_a_restarted_query_takes_its_subscriber_along_and_a_new_one_takes_it_back(store: jjq.Store) -> None:
    store.create_topic("t").push_many(number(5))
    first = stream(store, startingOffsets="earliest", subscriber="query")
    start = through_json(first.initialOffset())
    end, _ = advance(first, start)
    again = stream(store, subscriber="query")
    again.latestOffset(end, ALL)
    assert lag(store, "query") == {0: 0}
    anew = stream(store, startingOffsets="earliest", subscriber="query")
    anew.latestOffset(start, ALL)
    assert lag(store, "query") == {0: 5}
    assert [each.name for each in store.subscribers()] == ["query"]


def test_several_topics_have_a_subscriber_each(store: jjq.Store) -> None:
    for name in ("t1", "t2"):
        store.create_topic(name).push(b"x")
    named = stream(store, subscribe="t1,t2", startingOffsets="earliest", subscriber="q")
    drain(named, through_json(named.initialOffset()))
    assert [(each.name, each.topic.name) for each in store.subscribers()] == [("q:t1", "t1"), ("q:t2", "t2")]
    by_pattern = stream(store, subscribePattern="t.*", startingOffsets="earliest", subscriber="p")
    end, _ = drain(by_pattern, through_json(by_pattern.initialOffset()))
    store.create_topic("t3").push(b"x")
    drain(by_pattern, end)
    assert [each.name for each in store.subscribers() if each.name.startswith("p")] == ["p:t1", "p:t2", "p:t3"]
    assert all(lag(store, f"p:t{i}") == {0: 0} for i in (1, 2, 3))


def test_partitions_that_are_not_assigned_are_nothing_to_wait_for(store: jjq.Store) -> None:
    three_partitions(store)
    reader = stream(store, assign='{"t":[1]}', startingOffsets="earliest", subscriber="query")
    start = through_json(reader.initialOffset())
    reader.latestOffset(start, ALL)
    assert lag(store, "query") == {0: 0, 1: 2, 2: 0}


def test_a_subscriber_that_is_deleted_comes_back_and_one_in_use_is_left_alone(
    store: jjq.Store, caplog: pytest.LogCaptureFixture
) -> None:
    topic = store.create_topic("t")
    topic.push_many(number(2))
    reader = stream(store, startingOffsets="earliest", subscriber="query")
    end, _ = drain(reader, through_json(reader.initialOffset()))
    store.delete_subscriber("query")
    with pytest.raises(SubscriberNotFound):
        store.subscriber("query")
    topic.push(b"more")
    end, _ = drain(reader, end)
    assert lag(store, "query") == {0: 0}
    with store.subscriber("query") as consumer:
        consumer.poll()
        for _ in range(2):
            topic.push(b"more")
            end, _ = drain(reader, end)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "polled by a consumer" in caplog.text
    topic.push(b"more")
    drain(reader, end)
    assert lag(store, "query") == {0: 0}


def test_a_subscriber_goes_on_past_what_is_gone(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push_many(number(5))
    reader = stream(store, startingOffsets="earliest", subscriber="query", failOnDataLoss="false")
    start = through_json(reader.initialOffset())
    topic.empty()
    topic.push(b"x")
    end, _ = drain(reader, start)
    assert lag(store, "query") == {0: 0}
    store.delete_topic("t")
    drain(reader, end)
    assert store.subscribers() == []


def test_a_name_that_is_taken_by_another_topic_is_refused(store: jjq.Store) -> None:
    store.create_topic("u")
    store.create_subscriber("u", "query")
    store.create_topic("t")
    reader = stream(store, subscriber="query")
    with pytest.raises(InvalidArgument, match="subscriber 'query' is of another topic than 't'"):
        reader.latestOffset(reader.initialOffset(), ALL)


def test_a_batch_has_nothing_for_a_subscriber_to_follow(store: jjq.Store) -> None:
    store.create_topic("t")
    with pytest.raises(InvalidArgument, match="subscriber is for streams"):
        batch(store, subscriber="query")
    with pytest.raises(InvalidArgument, match="cannot name a subscriber"):
        source(store, subscriber="no way").schema()
