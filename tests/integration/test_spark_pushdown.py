"""Filters pushed into batch reads: the same rows after what is left to Spark, and little of the rest is touched."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In, IsNotNull, LessThan, Not

import jjq
from jjq.clock import from_us
from jjq.errors import DataLoss
from pyspark_jjq.reader import BatchReader, FilteringReader
from tests.readers import batch, number, rows

T0_US = 1_357_034_400_000_000
TIME = pa.timestamp("us", "UTC")


def filtering(store: jjq.Store, filters: list[Filter], **options: Any) -> tuple[FilteringReader, list[Filter]]:
    reader = batch(store, pushDownPredicate="true", **options)
    assert isinstance(reader, FilteringReader)
    return reader, list(reader.pushFilters(filters))


def planned(reader: BatchReader) -> tuple[int, int]:
    """(rows, bytes) that the tasks will read."""
    slices = [each for part in reader.partitions() for each in part.value]
    return sum(each.end - each.start for each in slices), sum(each.bytes for each in slices)


def between(first_us: int, last_us: int, column: str = "timestamp") -> list[Filter]:
    return [
        IsNotNull((column,)),
        GreaterThanOrEqual((column,), from_us(first_us)),
        LessThan((column,), from_us(last_us)),
    ]


def push_seconds(topic: Any, count: int, first: int = 0) -> None:
    topic.push_many(number(count, first), timestamps=[T0_US + i * 1_000_000 for i in range(first, first + count)])


def push_sealed(topic: Any, count: int, first: int = 0) -> None:
    table = pa.table(
        {
            "value": pa.array(number(count, first), pa.binary()),
            "timestamp": pa.array([T0_US + i * 1_000_000 for i in range(first, first + count)], TIME),
        }
    )
    topic.push_table(table, writer_id="w", batch_id=first)


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([GreaterThanOrEqual(("offset",), 5)], [(0, 5), (0, 6), (1, 5), (1, 6)]),
        ([EqualTo(("offset",), 5), EqualTo(("partition",), 1)], [(1, 5)]),
        ([Not(EqualTo(("partition",), 1)), LessThan(("offset",), 1)], [(0, 0)]),
        ([EqualTo(("topic",), "t"), EqualTo(("offset",), 0)], [(0, 0), (1, 0)]),
        ([EqualTo(("topic",), "u")], []),
        ([EqualTo(("offset",), 99)], []),
        ([In(("partition",), (1, 7)), EqualTo(("offset",), 3)], [(1, 3)]),
    ],
)
def test_offsets_and_places_are_filtered_exactly(
    store: jjq.Store, filters: list[Filter], wanted: list[tuple[int, int]]
) -> None:
    topic = store.create_topic("t", partitions=2)
    for p in (0, 1):
        topic.push_many(number(7), partition=p)
    reader, rest = filtering(store, filters)
    assert rest == []
    assert [(row["partition"], row["offset"]) for row in rows(reader, reader.partitions())] == wanted


def test_of_several_offsets_those_between_them_are_not_given(store: jjq.Store) -> None:
    store.create_topic("t").push_many(number(9))
    several: list[Filter] = [In(("offset",), (3, 5))]
    reader, rest = filtering(store, several)
    assert rest == several
    assert [row["offset"] for row in rows(reader, reader.partitions())] == [3, 5]


def push_by_segments(store: jjq.Store) -> None:
    topic = store.create_topic("t", timestamps="producer", segment_rows=100)
    for i in range(100):
        push_seconds(topic, 100, i * 100)


def push_by_messages(store: jjq.Store) -> None:
    topic = store.create_topic("t", timestamps="producer")
    for i in range(100):
        push_seconds(topic, 100, i * 100)


def push_singly(store: jjq.Store) -> None:
    topic = store.create_topic("t", timestamps="producer", sync="none")
    for i in range(10_000):
        topic.push(b"%d" % i, timestamp=T0_US + i * 1_000_000)


def push_compacted(store: jjq.Store) -> None:
    push_by_segments(store)
    store.maintain()
    kinds = [each.state for each in store.topic("t").segments()]
    assert "sealed" in kinds


@pytest.mark.parametrize("push", [push_by_segments, push_by_messages, push_singly])
def test_a_hundredth_of_the_time_touches_a_hundredth_of_the_data(
    store: jjq.Store, push: Callable[[jjq.Store], None]
) -> None:
    push(store)
    reader, rest = filtering(store, between(T0_US + 4_200 * 1_000_000, T0_US + 4_300 * 1_000_000))
    assert len(rest) == 2  # Spark compares row by row what is left
    assert planned(reader)[0] == 100
    assert [row["value"] for row in rows(reader, reader.partitions())] == number(100, 4200)
    whole = planned(batch(store))[1]
    assert planned(reader)[1] <= whole / 50


def test_compacted_segments_are_left_out_by_what_is_known_of_their_batches(store: jjq.Store) -> None:
    push_compacted(store)
    reader, _ = filtering(store, between(T0_US + 4_200 * 1_000_000, T0_US + 4_300 * 1_000_000))
    found = [row["value"] for row in rows(reader, reader.partitions())]
    assert set(number(100, 4200)) <= set(found)


def test_batches_inside_a_sealed_segment_are_left_out(store: jjq.Store) -> None:
    topic = store.create_topic("t", timestamps="producer")
    count = 120_000
    table = pa.table(
        {
            "value": pa.array([b"%0200d" % i for i in range(count)], pa.binary()),
            "timestamp": pa.array([T0_US + i * 1_000_000 for i in range(count)], TIME),
        }
    )
    topic.push_table(table, writer_id="w", batch_id=0)
    [segment] = topic.segments()
    assert segment.state == "sealed"
    reader, _ = filtering(store, between(T0_US + 20_000 * 1_000_000, T0_US + 20_001 * 1_000_000))
    assert b"%0200d" % 20_000 in [row["value"] for row in rows(reader, reader.partitions())]
    assert planned(reader)[0] < count / 4


def test_times_that_go_back_lose_no_row(store: jjq.Store) -> None:
    """The filter leaves out whole batches, by the lowest and the highest time of each."""
    topic = store.create_topic("t", timestamps="producer", segment_rows=30)
    seconds = [(i * 37) % 100 for i in range(100)]
    for start in range(0, 100, 10):
        chunk = seconds[start : start + 10]
        topic.push_many([b"%d" % s for s in chunk], timestamps=[T0_US + s * 1_000_000 for s in chunk])
    push_sealed(topic, 10, 45)
    for first, last in ((0, 10), (40, 60), (95, 200), (200, 300)):
        reader, _ = filtering(store, between(T0_US + first * 1_000_000, T0_US + last * 1_000_000))
        read = sorted(int(row["value"]) for row in rows(reader, reader.partitions()))
        left = [second for second in read if first <= second < last]
        assert left == sorted(
            [s for s in seconds if first <= s < last] + [s for s in range(45, 55) if first <= s < last]
        )


def test_records_of_one_message_keep_company(store: jjq.Store) -> None:
    topic = store.create_topic("t", timestamps="producer")
    push_seconds(topic, 50)
    reader, rest = filtering(store, between(T0_US, T0_US + 1_000_000))
    assert planned(reader)[0] == 50
    assert len(rest) == 2


def test_a_topic_with_a_schema_is_filtered_by_its_metadata(store: jjq.Store) -> None:
    topic = store.create_topic("t", schema=pa.schema([("offset", pa.int64())]))
    topic.push_table(pa.table({"offset": list(range(100, 110))}))
    reader, rest = filtering(store, [EqualTo(("_offset",), 4), EqualTo(("offset",), 104)], metadata="_offset")
    assert rest == [EqualTo(("offset",), 104)]
    assert rows(reader, reader.partitions()) == [{"offset": 104, "_offset": 4}]


def test_what_a_filter_leaves_out_is_no_loss(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push_many(number(10))
    topic.empty()
    topic.push_many(number(3, 10))
    options = {"startingOffsets": '{"t":{"0":4}}'}
    reader, _ = filtering(store, [GreaterThanOrEqual(("offset",), 11)], **options)
    assert [row["offset"] for row in rows(reader, reader.partitions())] == [11, 12]
    with pytest.raises(DataLoss):
        filtering(store, [GreaterThanOrEqual(("offset",), 9)], **options)[0].partitions()


def test_options_bound_what_filters_leave(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push_many(number(10))
    reader, _ = filtering(store, [GreaterThanOrEqual(("offset",), 2)], endingOffsets='{"t":{"0":5}}')
    assert [row["offset"] for row in rows(reader, reader.partitions())] == [2, 3, 4]


def test_a_reader_takes_filters_only_where_the_option_asks_for_it(store: jjq.Store) -> None:
    """Spark fails one that takes them where its conf is off, and where a DataFrame is used twice it would be wrong."""
    store.create_topic("t")
    assert type(batch(store)) is BatchReader
    assert type(batch(store, pushDownPredicate="false")) is BatchReader
