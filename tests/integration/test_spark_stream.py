"""Streams of topics that come and go, and several limits at once: without a JVM, as Spark calls them."""

import functools
import json
import os
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

import jjq
from jjq.errors import DataLoss, InvalidArgument, TopicNotFound
from pyspark_jjq import stores
from pyspark_jjq.rows import KAFKA_TYPES
from tests.readers import (
    ALL,
    advance,
    batch,
    drain,
    number,
    rows,
    source,
    stream,
    three_partitions,
    through_json,
    values,
)

NUMBERS = pa.schema([("n", pa.int64())])


def places(read: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return sorted((row["topic"], row["offset"]) for row in read)


# --- a pattern


def test_a_pattern_reads_every_topic_that_it_matches_whole(store: jjq.Store) -> None:
    for name in ("flights-b", "flights-a", "flights", "old-flights-a"):
        store.create_topic(name).push(name.encode())
    reader = batch(store, subscribePattern="flights-.*")
    assert values(reader, reader.partitions()) == [b"flights-a", b"flights-b"]


def test_a_pattern_that_matches_nothing_yet_has_kafkas_rows(store: jjq.Store) -> None:
    made = source(store, subscribePattern="flights-.*")
    assert {field.name: field.dataType for field in made.schema().fields} == {
        name: kind for name, kind in KAFKA_TYPES.items() if name != "headers"
    }
    reader = batch(store, subscribePattern="flights-.*")
    assert reader.partitions() == []
    with pytest.raises(InvalidArgument, match=r"none yet that matches subscribePattern 'flights-\.\*'"):
        source(store, subscribePattern="flights-.*", metadata="_offset").schema()


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_topic_that_appears_is_read_from_its_earliest(store: jjq.Store, starting: str) -> None:
    store.create_topic("t1").push(b"before")
    reader = stream(store, subscribePattern="t.*", startingOffsets=starting)
    start = through_json(reader.initialOffset())
    end, _ = advance(reader, start)
    late = store.create_topic("t2", partitions=2)
    for p in (0, 1):
        late.push_many(number(2), partition=p)
    store.create_topic("u").push(b"not read")
    end, found = advance(reader, end)
    assert [(row["topic"], row["partition"], row["offset"]) for row in found] == [
        ("t2", p, offset) for p in (0, 1) for offset in (0, 1)
    ]
    assert advance(reader, end) == (end, [])


def test_a_stream_may_begin_before_any_topic_does(store: jjq.Store) -> None:
    reader = stream(store, subscribePattern="t.*")
    start = through_json(reader.initialOffset())
    assert start == {"v": 1, "topics": {}}
    assert advance(reader, start) == (start, [])
    topic = store.create_topic("t1", timestamps="producer")
    topic.push(b"x", timestamp=1_357_034_400_000_000)
    _, [row] = advance(reader, start)
    assert (row["value"], row["timestampType"]) == (b"x", 0)


def test_a_schema_that_is_given_holds_for_topics_to_come(store: jjq.Store) -> None:
    schema = StructType([StructField("n", LongType()), StructField("_offset", LongType())])
    reader = source(store, subscribePattern="t.*").streamReader(schema)
    start = through_json(reader.initialOffset())
    store.create_topic("t1", schema=NUMBERS).push({"n": 7})
    end, found = advance(reader, start)
    assert found == [{"n": 7, "_offset": 0}]
    store.create_topic("t2", schema=pa.schema([("n", pa.int32())]))
    with pytest.raises(InvalidArgument, match="column 'n' of topic 't2' is int, not bigint"):
        reader.latestOffset(end, ALL)


def test_a_topic_with_other_rows_stops_the_stream_before_it_is_passed(store: jjq.Store) -> None:
    store.create_topic("t1")
    plain = stream(store, subscribePattern="t.*")
    start = through_json(plain.initialOffset())
    store.create_topic("t2", schema=NUMBERS).push({"n": 1})
    with pytest.raises(InvalidArgument, match="topic 't2' has a schema, and this query reads rows without one; narrow"):
        plain.latestOffset(start, ALL)
    store.create_topic("n1", schema=NUMBERS)
    typed = stream(store, subscribePattern="n.*")
    start = through_json(typed.initialOffset())
    store.create_topic("n2")
    with pytest.raises(InvalidArgument, match="topic 'n2' has no schema"):
        typed.latestOffset(start, ALL)


def test_a_topic_made_again_with_other_rows_stops_the_stream(store: jjq.Store) -> None:
    store.create_topic("t", schema=NUMBERS)
    reader = stream(store, failOnDataLoss="false")
    start = through_json(reader.initialOffset())
    store.delete_topic("t")
    store.create_topic("t")
    with pytest.raises(InvalidArgument, match="topic 't' has no schema"):
        reader.latestOffset(start, ALL)


def test_topics_with_equal_schemas_are_one_stream(store: jjq.Store) -> None:
    store.create_topic("t1", schema=NUMBERS).push({"n": 1})
    reader = stream(store, subscribePattern="t.*", startingOffsets="earliest", metadata="_topic")
    end, found = advance(reader, through_json(reader.initialOffset()))
    assert found == [{"n": 1, "_topic": "t1"}]
    store.create_topic("t2", schema=NUMBERS).push({"n": 2})
    assert advance(reader, end)[1] == [{"n": 2, "_topic": "t2"}]


def test_a_deleted_topic_is_loss_and_said_once_for_ever(store: jjq.Store, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("t1", "t2"):
        store.create_topic(name).push(b"x")
    options = {"subscribePattern": "t.*", "startingOffsets": "earliest"}
    strict, lenient = stream(store, **options), stream(store, **options, failOnDataLoss="false")
    end, _ = advance(strict, through_json(strict.initialOffset()))
    store.delete_topic("t1")
    with pytest.raises(
        DataLoss, match=r"topic 't1' is gone: it was deleted\. To go on all the same, set .*failOnDataLoss to false"
    ):
        strict.latestOffset(end, ALL)
    end, found = advance(lenient, end)
    assert (found, len(caplog.records)) == ([], 1)
    # Restarted, and strict again: what was passed over is not reported a second time.
    again = stream(store, **options)
    assert advance(again, end) == (end, [])
    store.create_topic("t1").push(b"new")
    _, found = advance(again, end)
    assert [(row["topic"], row["value"]) for row in found] == [("t1", b"new")]
    assert len(caplog.records) == 1


def test_offsets_by_topic_must_name_all_that_a_pattern_matches(store: jjq.Store) -> None:
    for name in ("t1", "t2"):
        store.create_topic(name).push_many(number(5))
    whole = '{"t1":{"0":3},"t2":{"0":-1}}'
    reader = batch(store, subscribePattern="t.*", startingOffsets=whole)
    assert [(row["topic"], row["offset"]) for row in rows(reader, reader.partitions())] == [("t1", 3), ("t1", 4)]
    for text, says in (('{"t1":{"0":3}}', "missing: t2"), (whole[:-1] + ',"t3":{"0":0}}', "not there: t3")):
        query = stream(store, subscribePattern="t.*", startingOffsets=text)
        for call in (
            batch(store, subscribePattern="t.*", startingOffsets=text).partitions,
            functools.partial(advance, query, query.initialOffset()),
        ):
            with pytest.raises(InvalidArgument, match=f"starting offsets by topic must name every topic .* {says}"):
                call()
    with pytest.raises(InvalidArgument, match="ending offsets by topic must name every topic"):
        batch(store, subscribePattern="t.*", endingOffsetsByTimestamp='{"t1":{"0":1357034400000}}').partitions()


def test_available_now_leaves_topics_that_come_later_to_the_next_run(store: jjq.Store) -> None:
    store.create_topic("t1").push_many(number(3))
    reader = stream(store, subscribePattern="t.*", startingOffsets="earliest", maxOffsetsPerTrigger=2)
    reader.prepareForTriggerAvailableNow()
    start = through_json(reader.initialOffset())
    store.create_topic("t2").push(b"later")
    end, batches = drain(reader, start)
    assert [places(each) for each in batches] == [[("t1", 0), ("t1", 1)], [("t1", 2)]]
    following = stream(store, subscribePattern="t.*", startingOffsets="earliest")
    following.prepareForTriggerAvailableNow()
    assert [places(each) for each in drain(following, end)[1]] == [[("t2", 0)]]


def test_a_topic_made_again_while_available_now_runs_is_said_by_that_run(
    store: jjq.Store, caplog: pytest.LogCaptureFixture
) -> None:
    """And only by that one: it used to be silent, and the loss said by the next."""
    options = {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 2}
    store.create_topic("t").push_many(number(6))
    strict, lenient = stream(store, **options), stream(store, **options, failOnDataLoss="false")
    for reader in (strict, lenient):
        reader.prepareForTriggerAvailableNow()
    end, _ = advance(strict, through_json(strict.initialOffset()))
    store.delete_topic("t")
    store.create_topic("t").push_many(number(2))
    with pytest.raises(DataLoss, match="deleted and made again"):
        strict.latestOffset(end, ALL)
    end, batches = drain(lenient, end)
    assert [batch for batch in batches if batch] == []
    following = stream(store, **options)
    following.prepareForTriggerAvailableNow()
    assert [places(each) for each in drain(following, end)[1]] == [[("t", 0), ("t", 1)]]
    assert len(caplog.records) == 1


def test_many_topics_cost_one_look_and_no_open_files(store: jjq.Store) -> None:
    for i in range(100):
        store.create_topic(f"t{i:03}", sync="none").push(b"x")
    reader = stream(store, subscribePattern="t.*", startingOffsets="earliest")
    end, found = advance(reader, through_json(reader.initialOffset()))
    assert len(found) == 100
    store.topic("t042").push(b"y")
    statements: list[str] = []
    stores.open_store(str(store.path)).catalog.driver._open().set_trace_callback(statements.append)  # type: ignore[attr-defined]
    opened = len(os.listdir("/proc/self/fd"))
    end, found = advance(reader, end)
    assert places(found) == [("t042", 1)]
    assert advance(reader, end) == (end, [])
    assert len(statements) < 20, statements
    assert len(os.listdir("/proc/self/fd")) <= opened + 4


# --- partitions that are assigned


def test_only_the_assigned_partitions_are_read(store: jjq.Store) -> None:
    three_partitions(store)
    store.create_topic("u").push(b"u")
    reader = batch(store, assign='{"t":[2,0],"u":[0]}')
    assert sorted(values(reader, reader.partitions())) == [b"0", b"1", b"20", b"21", b"u"]
    following = stream(store, assign='{"t":[1]}')
    start = through_json(following.initialOffset())
    assert list(start["topics"]["t"]) == ["id", "1"]
    for p in range(3):
        store.topic("t").push(b"new", partition=p)
    end, found = advance(following, start)
    assert [(row["partition"], row["offset"]) for row in found] == [(1, 2)]
    assert advance(following, end) == (end, [])


def test_offsets_are_those_of_the_assigned_partitions_no_more_and_no_less(store: jjq.Store) -> None:
    three_partitions(store)
    reader = batch(store, assign='{"t":[0,2]}', startingOffsets='{"t":{"0":1,"2":-2}}', endingOffsets="latest")
    assert sorted(values(reader, reader.partitions())) == [b"1", b"20", b"21"]
    for text, says in (('{"t":{"0":1}}', "missing: 2"), ('{"t":{"0":1,"1":0,"2":0}}', "not there: 1")):
        with pytest.raises(InvalidArgument, match=f"starting offsets must name what is assigned of topic 't'.*{says}"):
            batch(store, assign='{"t":[0,2]}', startingOffsets=text).partitions()


def test_what_is_assigned_and_not_there_is_refused(store: jjq.Store) -> None:
    three_partitions(store)
    with pytest.raises(InvalidArgument, match="assign names partition 3 of topic 't', which has 0 to 2"):
        batch(store, assign='{"t":[0,3]}').partitions()
    with pytest.raises(TopicNotFound, match="'tt'"):
        source(store, assign='{"tt":[0]}').schema()


def test_another_assignment_at_a_restart_keeps_what_was_read_and_replays_what_was_not_done(store: jjq.Store) -> None:
    three_partitions(store)
    first = stream(store, assign='{"t":[0,1]}', startingOffsets="earliest")
    start = through_json(first.initialOffset())
    end, found = advance(first, start)
    second = stream(store, assign='{"t":[1,2]}')
    assert rows(second, second.partitions(start, end)) == found  # the micro-batch that was not committed
    onward, found = advance(second, end)
    assert [(row["partition"], row["offset"]) for row in found] == [(2, 0), (2, 1)]
    store.topic("t").push(b"later", partition=0)
    assert advance(second, onward) == (onward, [])
    back = stream(store, subscribe="t")
    assert [row["value"] for row in advance(back, onward)[1]] == [b"later"]


# --- loss


def test_records_that_are_gone_with_nothing_behind_them_are_no_secret(
    store: jjq.Store, caplog: pytest.LogCaptureFixture
) -> None:
    topic = store.create_topic("t")
    topic.push_many(number(5))
    strict, lenient = (stream(store, startingOffsets="earliest", failOnDataLoss=flag) for flag in ("true", "false"))
    start = through_json(strict.initialOffset())
    topic.empty()
    for reader in (strict, lenient):
        reader.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss, match="offset 0 was asked for, the earliest left is 5; 5 records are gone"):
        advance(strict, start)
    end, found = advance(lenient, start)
    assert (found, end["topics"]["t"]["0"], len(caplog.records)) == ([], [5, 0], 1)
    assert advance(lenient, end) == (end, [])


def test_a_topic_that_is_deleted_while_a_task_reads_is_the_policys_case(store: jjq.Store) -> None:
    store.create_topic("t").push_many(number(5))
    strict, lenient = (stream(store, startingOffsets="earliest", failOnDataLoss=flag) for flag in ("true", "false"))
    start = through_json(strict.initialOffset())
    planned = strict.partitions(start, strict.latestOffset(start, ALL))
    store.delete_topic("t")
    with pytest.raises(DataLoss, match="topic 't' was deleted while it was read"):
        values(strict, planned)
    assert values(lenient, planned) == []


# --- several limits


def test_bytes_bound_a_micro_batch_and_one_record_always_passes(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push_many([b"x" * 1000] * 40)
    size = sum(segment.bytes for segment in topic.segments())
    reader = stream(store, startingOffsets="earliest", maxBytesPerTrigger=size // 4)
    _, batches = drain(reader, through_json(reader.initialOffset()))
    assert sum(map(len, batches)) == 40
    assert 4 <= len(batches) <= 5
    assert max(map(len, batches)) <= 10
    reader = stream(store, startingOffsets='{"t":{"0":37}}', maxBytesPerTrigger=1)
    assert [len(each) for each in drain(reader, through_json(reader.initialOffset()))[1]] == [1, 1, 1]


def test_a_long_backlog_is_looked_at_only_as_far_as_its_bytes_go(store: jjq.Store) -> None:
    topic = store.create_topic("t", sync="none", segment_rows=1000)
    for _ in range(10):
        topic.push_many([b"x" * 100] * 1000)
    first = topic.segments()[0].bytes
    few = stream(store, startingOffsets="earliest", maxBytesPerTrigger=first // 2)
    many = stream(store, startingOffsets="earliest", maxBytesPerTrigger=first * 8)
    for reader, least, most in ((few, 450, 500), (many, 7900, 8000)):
        _, found = advance(reader, through_json(reader.initialOffset()))
        assert least <= len(found) <= most
        assert [row["offset"] for row in found] == list(range(len(found)))


def test_both_maxima_hold_together(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=2)
    for p in (0, 1):
        topic.push_many([b"x" * 1000] * 20, partition=p)
    for options, most in (
        ({"maxOffsetsPerTrigger": 7, "maxBytesPerTrigger": 1 << 20}, 7),
        ({"maxOffsetsPerTrigger": 30, "maxBytesPerTrigger": 5500}, 5),
    ):
        reader = stream(store, startingOffsets="earliest", **options)
        _, batches = drain(reader, through_json(reader.initialOffset()))
        assert max(map(len, batches)) == most
        assert sorted((row["partition"], row["offset"]) for each in batches for row in each) == [
            (p, offset) for p in (0, 1) for offset in range(20)
        ]


def test_records_that_are_lost_do_not_hold_a_limit_of_bytes_up(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push_many(number(5))
    reader = stream(store, startingOffsets="earliest", maxBytesPerTrigger=1, failOnDataLoss="false")
    start = through_json(reader.initialOffset())
    topic.empty()
    topic.push_many(number(2, 5))
    _, batches = drain(reader, start)
    assert [row["offset"] for each in batches for row in each] == [5, 6]


def test_too_few_rows_wait_for_more(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push(b"first")
    reader = stream(store, startingOffsets="earliest", minOffsetsPerTrigger=3, maxTriggerDelay="1h")
    start, found = advance(reader, through_json(reader.initialOffset()))
    assert len(found) == 1  # the first micro-batch does not wait
    for _ in range(2):
        topic.push(b"more")
        assert advance(reader, start) == (start, [])
    reported = reader.reportLatestOffset()
    assert reported is not None
    assert reported["topics"]["t"]["0"] == [3, 0]  # type: ignore[index]
    topic.push(b"enough")
    _, found = advance(reader, start)
    assert len(found) == 3


def test_the_delay_ends_the_wait(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push(b"first")
    reader = stream(store, startingOffsets="earliest", minOffsetsPerTrigger=10, maxTriggerDelay="0s")
    start, _ = advance(reader, through_json(reader.initialOffset()))
    topic.push(b"one")
    assert len(advance(reader, start)[1]) == 1


def test_available_now_ends_with_all_limits_and_once_ignores_them(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push_many(number(20))
    limits = {"minOffsetsPerTrigger": 5, "maxOffsetsPerTrigger": 6, "maxBytesPerTrigger": 1 << 20}
    reader = stream(store, startingOffsets="earliest", maxTriggerDelay="1h", **limits)
    reader.prepareForTriggerAvailableNow()
    start = through_json(reader.initialOffset())
    assert [len(each) for each in drain(reader, start)[1]] == [6, 6, 6, 2]
    once = stream(store, startingOffsets="earliest", **limits)
    end = once.latestOffset(start, ALL)
    assert len(rows(once, once.partitions(start, end))) == 20


def test_spark_is_told_of_a_limit_where_there_is_any(store: jjq.Store) -> None:
    store.create_topic("t")
    assert stream(store).getDefaultReadLimit() == ALL
    assert stream(store, maxOffsetsPerTrigger=5).getDefaultReadLimit() == ReadMaxRows(5)
    assert stream(store, minOffsetsPerTrigger=5).getDefaultReadLimit() == ReadMaxRows(2**63 - 1)


# --- partitions that are added


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_partitions_that_are_added_are_read_from_their_earliest(
    store: jjq.Store, restarted: bool, starting: str
) -> None:
    topic = store.create_topic("t", partitions=2)
    topic.push_many(number(3), partition=0)
    reader = stream(store, startingOffsets=starting)
    start = through_json(reader.initialOffset())
    end = through_json(reader.latestOffset(start, ALL))
    assert values(reader, reader.partitions(start, end)) == (number(3) if starting == "earliest" else [])
    with jjq.open(store.path) as elsewhere:
        grown = elsewhere.alter_topic("t", partitions=4)
        grown.push_many(number(2, 10), partition=2)
        if restarted:
            reader = stream(store, startingOffsets=starting)
        further = through_json(reader.latestOffset(end, ALL))
        assert further["topics"]["t"] == {"id": topic.id, "0": [3, 0], "1": [0, 0], "2": [2, 0], "3": [0, 0]}
        assert json.dumps(reader.latestOffset(further, ALL)) == json.dumps(further)
        planned = reader.partitions(end, further)
        assert values(reader, planned) == number(2, 10)
        grown.push_many(number(1, 20), partition=3)
        last = through_json(reader.latestOffset(further, ReadMaxRows(5)))
        assert values(reader, reader.partitions(further, last)) == number(1, 20)
    again = stream(store)  # a task or a micro-batch that is tried again
    assert values(again, planned) == values(again, again.partitions(end, further)) == number(2, 10)


def test_what_retention_took_of_an_added_partition_is_loss(store: jjq.Store) -> None:
    topic = store.create_topic("t", segment_rows=2, retention_segments=1)
    reader, lenient = stream(store), stream(store, failOnDataLoss="false")
    start = through_json(reader.latestOffset(reader.initialOffset(), ALL))
    store.alter_topic("t", partitions=2)
    for i in range(3):
        topic.push_many(number(2, 2 * i), partition=1)
    store.maintain()
    end = through_json(reader.latestOffset(start, ALL))
    with pytest.raises(DataLoss):
        reader.partitions(start, end)
    assert values(lenient, lenient.partitions(start, end)) == number(2, 4)


def test_partitions_added_meanwhile_are_for_the_next_available_now(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push_many(number(2))
    reader = stream(store, startingOffsets="earliest")
    start = through_json(reader.initialOffset())
    reader.prepareForTriggerAvailableNow()
    store.alter_topic("t", partitions=2).push(b"new", partition=1)
    end = through_json(reader.latestOffset(start, ALL))
    assert values(reader, reader.partitions(start, end)) == number(2)
    assert reader.latestOffset(end, ALL) == end
    later = stream(store, startingOffsets="earliest")
    later.prepareForTriggerAvailableNow()
    assert values(later, later.partitions(end, later.latestOffset(end, ALL))) == [b"new"]
