"""Subscribers that follow a query, where somebody else has to do with them: without a JVM, as Spark calls the readers."""

import logging

import pytest

import jjq
from tests.readers import ALL, number, stream, through_json


def test_two_queries_with_one_subscriber_are_warned_once_each(
    store: jjq.Store, caplog: pytest.LogCaptureFixture
) -> None:
    topic = store.create_topic("t")
    queries = [stream(store, subscriber="q") for _ in range(2)]
    at = [through_json(query.initialOffset()) for query in queries]
    at = [through_json(query.latestOffset(start, ALL)) for query, start in zip(queries, at, strict=True)]
    for _ in range(3):
        topic.push_many(number(2))
        ahead = through_json(queries[0].latestOffset(at[0], ALL))
        at[0] = through_json(queries[0].latestOffset(ahead, ALL))
        assert at[0] == ahead
        behind = through_json(queries[1].latestOffset(at[1], ALL))
        at[1] = behind
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert caplog.text.count("somebody else has moved subscriber 'q', maybe another query") == 2


def test_a_subscriber_that_emptying_or_retention_moved_is_no_reason_to_warn(
    store: jjq.Store, caplog: pytest.LogCaptureFixture
) -> None:
    topic = store.create_topic("t", partitions=2)
    reader = stream(store, subscriber="q", failOnDataLoss="false")
    at = through_json(reader.initialOffset())
    for turn in range(3):
        topic.push_many(number(2), partition=turn % 2)
        at = through_json(reader.latestOffset(at, ALL))
        topic.empty()
        topic.push(b"x", partition=1)
    reader.latestOffset(at, ALL)
    assert caplog.records == []
