"""Where a micro-batch begins, also when it is done again after a restart: without a JVM, as Spark calls the readers.

Spark keeps the end of each micro-batch. Of the first one it asks for the beginning anew, in a new process.
"""

from typing import Any

import pytest

import jjq
from jjq.errors import DataLoss, InvalidArgument
from pyspark_jjq.stream import StreamReader
from tests.readers import ALL, number, rows, stream, through_json, values


def begun(reader: StreamReader) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """Beginning, end and rows of the first micro-batch."""
    start = through_json(reader.initialOffset())
    end = through_json(reader.latestOffset(start, ALL))
    return start, end, rows(reader, reader.partitions(start, end))


def again(reader: StreamReader, end: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the first micro-batch in a process that was started later."""
    return rows(reader, reader.partitions(through_json(reader.initialOffset()), end))


@pytest.mark.parametrize("pushed_since", [0, 2])
def test_a_first_micro_batch_from_the_latest_has_the_same_rows_again(store: jjq.Store, pushed_since: int) -> None:
    topic = store.create_topic("t", partitions=2)
    topic.push_many(number(4), partition=0)
    reader = stream(store)
    reader.initialOffset()
    for p in (0, 1):
        topic.push_many(number(3, 10 * p), partition=p)
    start, end, found = begun(reader)
    assert len(found) == 6
    topic.push_many(number(pushed_since, 100), partition=1)
    later = stream(store)
    assert through_json(later.initialOffset()) != start
    assert again(later, end) == found
    further = through_json(later.latestOffset(end, ALL))
    assert values(later, later.partitions(end, further)) == number(pushed_since, 100)


def test_that_no_record_is_as_late_any_more_is_in_the_way_of_new_queries_only(store: jjq.Store) -> None:
    """As of a time so many minutes ago, when the query is started again after more than those."""
    topic = store.create_topic("t", timestamps="producer")
    topic.push_many(number(3), timestamps=[1_357_034_400_000_000 + i for i in range(3)])
    _, end, found = begun(stream(store, startingTimestamp="2013-01-01T00:00:00Z"))
    assert len(found) == 3
    later = {"startingTimestamp": "2013-01-02T00:00:00Z"}
    reader = stream(store, **later)
    assert again(reader, end) == found
    topic.push(b"new", timestamp=1_357_034_500_000_000)
    assert values(reader, reader.partitions(end, reader.latestOffset(end, ALL))) == [b"new"]
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="no record of topic 't' is as late as the starting time"):
            begun(stream(store, **later))


def test_partitions_that_offsets_do_not_name_are_in_the_way_of_new_queries_only(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push_many(number(3))
    options = {"startingOffsets": '{"t":{"0":1}}'}
    _, end, found = begun(stream(store, **options))
    store.alter_topic("t", partitions=2).push(b"added", partition=1)
    reader = stream(store, **options)
    assert again(reader, end) == found
    assert values(reader, reader.partitions(end, reader.latestOffset(end, ALL))) == [b"added"]
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="starting offsets must name each partition of topic 't'"):
            begun(stream(store, **options))


def test_so_they_are_where_the_first_micro_batch_has_no_rows(store: jjq.Store) -> None:
    """As Spark makes one of each source of a join, or where nothing is new."""
    store.create_topic("t").push_many(number(3))
    options = {"startingOffsets": '{"t":{"0":3}}'}
    start, end, found = begun(stream(store, **options))
    assert (end, found) == (start, [])
    store.alter_topic("t", partitions=2).push(b"added", partition=1)
    reader = stream(store, **options)
    assert again(reader, end) == []
    assert values(reader, reader.partitions(end, reader.latestOffset(end, ALL))) == [b"added"]


def test_what_went_before_a_first_micro_batch_was_done_is_loss(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push_many(number(3))
    options = {"startingOffsets": "earliest"}
    _, end, _ = begun(stream(store, **options))
    topic.empty()
    topic.push(b"left")
    with pytest.raises(DataLoss, match="offset 0 was asked for, the earliest left is 3"):
        again(stream(store, **options), end)
    assert again(stream(store, **options, failOnDataLoss="false"), end) == []


def test_what_went_of_a_topic_that_appeared_before_that_was_read_is_loss(store: jjq.Store) -> None:
    options = {"subscribePattern": "t.*", "startingOffsets": "earliest"}
    store.create_topic("t1").push(b"x")
    reader = stream(store, **options)
    _, end, _ = begun(reader)
    appeared = store.create_topic("t2")
    appeared.push_many(number(3))
    further = through_json(reader.latestOffset(end, ALL))
    appeared.empty()
    with pytest.raises(DataLoss, match="offset 0 was asked for, the earliest left is 3"):
        stream(store, **options).partitions(end, further)


def test_only_a_micro_batch_with_something_new_says_where_it_begins(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    reader = stream(store, startingOffsets="earliest")
    start = through_json(reader.initialOffset())
    assert reader.latestOffset(start, ALL) == start
    topic.push(b"x")
    end = through_json(reader.latestOffset(start, ALL))
    assert end == {
        "v": 1,
        "topics": {"t": {"id": topic.id, "0": [1, 0]}},
        "since": {"t": {"id": topic.id, "0": [0, 0]}},
    }
    topic.push(b"x")
    assert through_json(reader.latestOffset(end, ALL)) == {"v": 1, "topics": {"t": {"id": topic.id, "0": [2, 0]}}}


def test_a_partition_that_is_assigned_later_begins_at_its_earliest(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=2, segment_rows=2, retention_segments=1)
    for p in (0, 1):
        topic.push_many(number(2), partition=p)
    _, end, _ = begun(stream(store, assign='{"t":[0]}', startingOffsets="earliest"))
    for i in (2, 4):
        topic.push_many(number(2, i), partition=1)
    store.maintain()
    assert topic.offsets()[1].start == 4
    both = stream(store, assign='{"t":[0,1]}')
    further = through_json(both.latestOffset(end, ALL))
    assert values(both, both.partitions(end, further)) == number(2, 4)


@pytest.mark.parametrize("what", [{"subscribe": "u"}, {"subscribePattern": "u.*"}, {"assign": '{"u":[0]}'}])
def test_a_checkpoint_of_other_topics_is_refused(
    store: jjq.Store, what: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """As where the sources of a join have changed places."""
    for name in ("t", "u"):
        store.create_topic(name).push(name.encode())
    start, end, found = begun(stream(store, startingOffsets="earliest"))
    strict, lenient = stream(store, **what), stream(store, **what, failOnDataLoss="false")
    for call in (lambda: strict.partitions(start, end), lambda: strict.latestOffset(end, ALL)):
        with pytest.raises(DataLoss, match=r"^the checkpoint is of t, and this source reads .*u.* in their order"):
            call()
    assert rows(lenient, lenient.partitions(start, end)) == found
    further = through_json(lenient.latestOffset(end, ALL))
    assert values(lenient, lenient.partitions(end, further)) == [b"u"]
    assert len(caplog.records) == 1
