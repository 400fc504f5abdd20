"""The connector's readers on a real store, called as Spark calls them but in this process, so without a JVM."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

import jjq
from jjq.errors import DataLoss, InvalidArgument, OffsetOutOfRange, StoreNotFound, TopicNotFound
from tests.readers import ALL, batch, close_stores, number, rows, source, stream, through_json, values

ROOT = Path(__file__).parents[2]

# --- ranges of a batch


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, number(10)),
        ({"startingOffsets": '{"t":{"0":4}}'}, number(6, 4)),
        ({"startingOffsets": '{"t":{"0":4}}', "endingOffsets": '{"t":{"0":6}}'}, number(2, 4)),
        ({"startingOffsets": '{"t":{"0":-2}}', "endingOffsets": '{"t":{"0":-1}}'}, number(10)),
        ({"startingOffsets": "latest"}, []),
        ({"startingOffsets": '{"t":"earliest"}', "endingOffsets": "latest"}, number(10)),
        ({"startingOffsets": '{"t":{"0":10}}'}, []),
        ({"startingTimestamp": "1357034403000"}, number(7, 3)),
        ({"startingTimestamp": "2013-01-01T10:00:02.5Z"}, number(7, 3)),
        ({"startingTimestamp": "2013-01-01T11:00:03+01:00", "endingTimestamp": "1357034405000"}, number(2, 3)),
        ({"startingTimestamp": "0"}, number(10)),
        ({"endingTimestamp": "2030-01-01T00:00:00Z"}, number(10)),
        ({"endingTimestamp": "2000-01-01T00:00:00Z"}, []),
        ({"startingTimestamp": "2030-01-01T00:00:00Z", "startingOffsetsByTimestampStrategy": "latest"}, []),
        ({"startingOffsetsByTimestamp": '{"t":{"0":1357034409000}}'}, number(1, 9)),
        ({"startingTimestamp": "1357034405000", "endingTimestamp": "1357034403000"}, []),
    ],
)
def test_a_batch_reads_the_range_that_was_asked_for(
    store: jjq.Store, options: dict[str, str], expected: list[bytes]
) -> None:
    topic = store.create_topic("t", timestamps="producer")
    for i, value in enumerate(number(10)):
        topic.push(value, timestamp=1357034400_000_000 + i * 1_000_000)
    reader = batch(store, **options)
    assert values(reader, reader.partitions()) == expected


def test_a_relative_time_starts_that_long_ago(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push(b"now")
    reader = batch(store, startingTimestamp="-1 hour")
    assert values(reader, reader.partitions()) == [b"now"]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"startingOffsets": '{"t":{"0":11}}'}, OffsetOutOfRange, "starting offset 11 .* beyond its end 10"),
        ({"endingOffsets": '{"t":{"0":11}}'}, OffsetOutOfRange, "ending offset 11 .* beyond its end 10"),
        ({"startingOffsets": '{"t":{"1":0}}'}, InvalidArgument, "missing: 0; not there: 1"),
        ({"startingOffsets": '{"t":{}}'}, InvalidArgument, "missing: 0"),
        (
            {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":4}}'},
            InvalidArgument,
            "would end at 4, before it starts at 5",
        ),
        ({"startingTimestamp": "2999-01-01T00:00:00Z"}, InvalidArgument, "no record of topic 't' is as late"),
        ({"startingOffsetsByTimestamp": '{"t":{"3":0}}'}, InvalidArgument, "missing: 0; not there: 3"),
    ],
)
def test_a_range_that_is_not_there_is_refused(
    store: jjq.Store, options: dict[str, str], error: type[Exception], says: str
) -> None:
    store.create_topic("t").push_many(number(10))
    with pytest.raises(error, match=says):
        batch(store, **options).partitions()


def test_a_missing_topic_names_the_nearest(store: jjq.Store) -> None:
    store.create_topic("flights")
    with pytest.raises(TopicNotFound, match="flights"):
        source(store, subscribe="flihgts").schema()


def test_topics_that_differ_are_not_read_together(store: jjq.Store) -> None:
    store.create_topic("a")
    store.create_topic("b", schema=pa.schema([("x", pa.int64())]))
    store.create_topic("c", schema=pa.schema([("x", pa.int32())]))
    with pytest.raises(InvalidArgument, match="'b' has a schema and 'a' has none"):
        source(store, subscribe="a,b").schema()
    with pytest.raises(InvalidArgument, match="'b' and 'c' have different schemas"):
        source(store, subscribe="b,c").schema()


def test_columns_that_are_not_there_name_the_nearest(store: jjq.Store) -> None:
    store.create_topic("t", schema=pa.schema([("carrier", pa.string())]))
    with pytest.raises(InvalidArgument, match=r"'carier', and topic 't' has no such column; did you mean carrier\?"):
        source(store, columns="carier").schema()
    store.create_topic("plain")
    with pytest.raises(InvalidArgument, match="metadata is for topics with a schema"):
        source(store, subscribe="plain", metadata="_offset").schema()


@pytest.mark.parametrize("column", ["timestampType", "partition", "headers", "value", "key"])
def test_one_column_has_as_many_rows_as_there_are_records(store: jjq.Store, column: str) -> None:
    store.create_topic("t").push_many(number(3))
    reader = batch(store, columns=column)
    assert len(rows(reader, reader.partitions())) == 3


def test_a_read_without_columns_is_refused(store: jjq.Store) -> None:
    from pyspark.sql.types import StructType

    store.create_topic("t").push_many(number(3))
    with pytest.raises(InvalidArgument, match="has no columns"):
        source(store).reader(StructType([]))


def test_a_path_that_none_can_have_is_refused(store: jjq.Store) -> None:
    with pytest.raises(InvalidArgument, match="a store is a directory's path"):
        source(store, path="/data\0jjq").schema()


def test_a_schema_given_by_the_user_chooses_columns_and_must_have_their_types(store: jjq.Store) -> None:
    from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

    topic = store.create_topic("t", schema=pa.schema([("a", pa.int64()), ("b", pa.string())]))
    topic.push({"a": 1, "b": "x"})
    wanted = StructType([StructField("b", StringType()), StructField("_offset", LongType())])
    reader = source(store).reader(wanted)
    assert rows(reader, reader.partitions()) == [{"b": "x", "_offset": 0}]
    with pytest.raises(InvalidArgument, match="column 'a' of topic 't' is bigint, not int"):
        source(store).reader(StructType([StructField("a", IntegerType())]))
    with pytest.raises(InvalidArgument, match="has column 'z'"):
        source(store).reader(StructType([StructField("z", IntegerType())]))
    with pytest.raises(InvalidArgument, match="columns of the same name: b, _offset, b; drop all but one"):
        source(store).reader(StructType([*wanted.fields, wanted.fields[0]]))


def test_a_schema_and_the_options_for_columns_must_say_the_same(store: jjq.Store) -> None:
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    store.create_topic("t", schema=pa.schema([("a", pa.int64()), ("b", pa.string())])).push({"a": 1, "b": "x"})
    wanted = StructType([StructField("b", StringType()), StructField("_offset", LongType())])
    for options in ({"columns": "_offset,b"}, {"columns": "b", "metadata": "_offset"}, {"metadata": "_offset"}):
        reader = source(store, **options).reader(wanted)
        assert rows(reader, reader.partitions()) == [{"b": "x", "_offset": 0}]
    for options, asked in (
        ({"columns": "a"}, "a;"),
        ({"columns": "b"}, "b;"),
        ({"metadata": "_key"}, "b, _offset, _key;"),
        ({"includeHeaders": "true"}, "b, _offset, _headers;"),
    ):
        for read in (source(store, **options).reader, source(store, **options).streamReader):
            with pytest.raises(
                InvalidArgument, match=f"the read has b, _offset, and by the options .* it would be {asked}"
            ):
                read(wanted)


def test_a_schema_that_says_not_null_is_refused_as_spark_would_believe_it(store: jjq.Store) -> None:
    from pyspark.sql.types import ArrayType, BinaryType, LongType, StructField, StructType

    store.create_topic("t", schema=pa.schema([("a", pa.int64()), ("l", pa.list_(pa.int64()))])).push(
        {"a": None, "l": [None]}
    )
    store.create_topic("plain").push(b"v")
    inside = ArrayType(LongType(), containsNull=False)
    for topic, field, says in (
        ("t", StructField("a", LongType(), nullable=False), "NOT NULL of column 'a'"),
        ("t", StructField("l", inside), "what is in column 'l' that it is never null"),
        ("plain", StructField("key", BinaryType(), nullable=False), "NOT NULL of column 'key'"),
    ):
        for read in (source(store, topic=topic).reader, source(store, topic=topic).streamReader):
            with pytest.raises(InvalidArgument, match=f"{says}.*; declare it without, or leave the schema out"):
                read(StructType([field]))
    with pytest.raises(InvalidArgument, match="NOT NULL of column 'a'"):
        source(store, subscribePattern="later.*").streamReader(
            StructType([StructField("a", LongType(), nullable=False)])
        )


# --- tasks and batches


def test_a_big_range_is_cut_into_tasks_and_nothing_is_lost_between_them(store: jjq.Store) -> None:
    topic = store.create_topic("t", segment_bytes=200_000)
    for i in range(20):
        topic.push_many([b"%06d" % n * 20 for n in range(i * 500, i * 500 + 500)])
    whole = batch(store)
    assert len(whole.partitions()) == 1
    for options, count in (({"minPartitions": 7}, 7), ({"maxRecordsPerPartition": 900}, 12)):
        reader = batch(store, **options)
        partitions = reader.partitions()
        assert len(partitions) == count
        assert values(reader, partitions) == [b"%06d" % n * 20 for n in range(10_000)]


def test_partitions_and_topics_with_little_in_them_share_a_task(store: jjq.Store) -> None:
    for name in ("t", "u"):
        topic = store.create_topic(name, partitions=20, timestamps="producer" if name == "u" else "broker")
        for p in range(20):
            topic.push(b"%d" % p, partition=p)
    reader = batch(store, subscribe="t,u")
    [one] = reader.partitions()
    found = [(r["topic"], r["partition"], r["offset"], r["timestampType"]) for r in rows(reader, [one])]
    assert found == [(name, p, 0, kind) for name, kind in (("t", 1), ("u", 0)) for p in range(20)]


def test_batches_have_a_sensible_size_whatever_the_producers_batches_were(store: jjq.Store) -> None:
    topic = store.create_topic("t", sync="none")
    for i in range(3000):
        topic.push(b"%04d" % i + b"." * 100)
    reader = batch(store)
    sizes = [piece.num_rows for part in reader.partitions() for piece in reader.read(part)]
    assert sum(sizes) == 3000
    assert len(sizes) <= 2
    topic.push_many([b"x" * 1000] * 20_000)
    reader = batch(store, startingOffsets='{"t":{"0":3000}}')
    sizes = [piece.nbytes for part in reader.partitions() for piece in reader.read(part)]
    assert 2 << 20 < max(sizes) < 8 << 20


def test_a_time_finer_than_sparks_is_cut_and_other_spellings_of_a_type_are_the_same(store: jjq.Store) -> None:
    schema = pa.schema(
        [("at", pa.timestamp("ns", "UTC")), ("s", pa.timestamp("s", "UTC")), ("text", pa.large_string())]
    )
    topic = store.create_topic("t", schema=schema)
    topic.push_table(pa.table({"at": [1_000, 2_000, None], "s": [1, None, 3], "text": ["a", None, "c"]}, schema=schema))
    reader = batch(store)
    (piece,) = [piece for part in reader.partitions() for piece in reader.read(part)]
    assert piece.schema.types == [pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC"), pa.string()]
    assert piece.column(0).cast(pa.int64()).to_pylist() == [1, 2, None]
    assert piece.column(1).cast(pa.int64()).to_pylist() == [1_000_000, None, 3_000_000]
    assert piece.column(2).to_pylist() == ["a", None, "c"]


# --- streams


def test_a_stream_starts_at_the_latest_and_that_does_not_move_until_it_has_begun(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push(b"before")
    reader = stream(store)
    first = reader.initialOffset()
    topic.push(b"after")
    assert reader.initialOffset() == first
    end = reader.latestOffset(through_json(first), ALL)
    assert values(reader, reader.partitions(first, end)) == [b"after"]


def test_where_nothing_is_new_the_offset_is_the_same_text(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=12)
    topic.push_many(number(24))
    reader = stream(store, startingOffsets="earliest")
    start = through_json(reader.initialOffset())
    end = through_json(reader.latestOffset(start, ALL))
    assert json.dumps(reader.latestOffset(end, ALL)) == json.dumps(end)
    again = stream(store, startingOffsets="earliest")
    assert json.dumps(again.latestOffset(end, ALL)) == json.dumps(end)
    assert reader.partitions(end, end) == []


def test_micro_batches_of_a_limited_stream_hold_every_record_once_and_in_order(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=3)
    for p, count in enumerate((50, 7, 1)):
        topic.push_many(number(count), partition=p)
    reader = stream(store, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    assert reader.getDefaultReadLimit() == ReadMaxRows(10)
    start = through_json(reader.initialOffset())
    seen: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    sizes = []
    while (end := through_json(reader.latestOffset(start, ReadMaxRows(10)))) != start:
        found = rows(reader, reader.partitions(start, end))
        sizes.append(len(found))
        for row in found:
            seen[row["partition"]].append(row["value"])
        start = end
    assert sizes == [10, 10, 10, 10, 10, 8]
    assert seen == {0: number(50), 1: number(7), 2: number(1)}


def test_a_limit_is_not_applied_where_spark_asks_for_everything(store: jjq.Store) -> None:
    store.create_topic("t").push_many(number(50))
    reader = stream(store, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    start = reader.initialOffset()
    assert len(values(reader, reader.partitions(start, reader.latestOffset(start, ALL)))) == 50


def test_the_largest_limit_does_not_overflow(store: jjq.Store) -> None:
    store.create_topic("t").push_many(number(5))
    reader = stream(store, startingOffsets="earliest", maxOffsetsPerTrigger=2**63 - 1)
    start = reader.initialOffset()
    assert len(values(reader, reader.partitions(start, reader.latestOffset(start, ReadMaxRows(2**63 - 1))))) == 5


def test_available_now_ends_where_the_topic_ended_when_it_began(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push_many(number(5))
    reader = stream(store, startingOffsets="earliest", maxOffsetsPerTrigger=3)
    reader.prepareForTriggerAvailableNow()
    topic.push_many(number(5, 100))
    start, found = reader.initialOffset(), []
    while (end := reader.latestOffset(start, ReadMaxRows(3))) != start:
        found += values(reader, reader.partitions(start, end))
        start = end
    assert found == number(5)


def test_an_ending_bounds_available_now_and_is_refused_elsewhere(store: jjq.Store) -> None:
    store.create_topic("t").push_many(number(9))
    reader = stream(store, startingOffsets="earliest", endingOffsets='{"t":{"0":4}}')
    start = reader.initialOffset()
    with pytest.raises(InvalidArgument, match=r"needs \.trigger\(availableNow=True\)"):
        reader.latestOffset(start, ALL)
    reader.prepareForTriggerAvailableNow()
    assert values(reader, reader.partitions(start, reader.latestOffset(start, ALL))) == number(4)


def test_a_replayed_micro_batch_gives_the_same_rows_after_compaction(store: jjq.Store) -> None:
    topic = store.create_topic("t", segment_rows=10)
    for i in range(10):
        topic.push_many(number(10, i * 10))
    reader = stream(store, startingOffsets="earliest", maxOffsetsPerTrigger=35)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(35))
    planned = reader.partitions(start, end)
    first = rows(reader, planned)
    store.maintain()
    assert rows(reader, planned) == first
    assert rows(stream(store), stream(store).partitions(start, end)) == first


def test_offsets_of_a_batch_name_the_partitions_that_were_added(store: jjq.Store) -> None:
    store.create_topic("t").push_many(number(3))
    store.alter_topic("t", partitions=2).push(b"new", partition=1)
    reader = batch(store, startingOffsets='{"t":{"0":2,"1":0}}')
    assert sorted(values(reader, reader.partitions())) == [b"2", b"new"]
    with pytest.raises(InvalidArgument, match="0 to 1, and no other; missing: 1"):
        batch(store, startingOffsets='{"t":{"0":2}}').partitions()


def test_a_topic_that_joins_at_a_restart_is_read_from_its_earliest(store: jjq.Store) -> None:
    store.create_topic("t").push_many(number(3))
    reader = stream(store, startingOffsets="earliest")
    end = through_json(reader.latestOffset(reader.initialOffset(), ALL))
    store.create_topic("u").push_many(number(2))
    both = stream(store, subscribe="t,u", startingOffsets="latest")
    further = both.latestOffset(end, ALL)
    assert [row["topic"] for row in rows(both, both.partitions(end, further))] == ["u", "u"]


def test_a_topic_that_leaves_at_a_restart_keeps_its_place(store: jjq.Store) -> None:
    for name in ("t", "u"):
        store.create_topic(name).push_many(number(2))
    both = stream(store, subscribe="t,u", startingOffsets="earliest")
    end = through_json(both.latestOffset(both.initialOffset(), ALL))
    store.topic("u").push(b"later")
    one = stream(store, subscribe="t", startingOffsets="earliest")
    assert one.latestOffset(end, ALL) == end
    back = stream(store, subscribe="t,u", startingOffsets="earliest")
    assert values(back, back.partitions(end, back.latestOffset(end, ALL))) == [b"later"]


def test_reporting_the_latest_offset_ignores_limits(store: jjq.Store) -> None:
    store.create_topic("t").push_many(number(50))
    reader = stream(store, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    assert reader.reportLatestOffset() is None
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    reported = reader.reportLatestOffset()
    assert reported is not None
    assert reported["topics"]["t"]["0"] == [50, 0]  # type: ignore[index]


# --- loss


def lose_the_first(store: jjq.Store, kept: int) -> None:
    """Ten records, then all gone, then `kept` more: offsets go on at 10."""
    topic = store.create_topic("t")
    topic.push_many(number(10))
    topic.empty()
    topic.push_many(number(kept, 10))


def test_a_task_that_does_not_see_the_store_says_so(store: jjq.Store, tmp_path: Path) -> None:
    store.create_topic("t").push(b"x")
    reader = batch(store)
    parts = reader.partitions()
    close_stores()
    store.path.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreNotFound, match=r"does not see .* as the driver does.*\.option\(\"broker\", "):
        rows(reader, parts)
    assert not store.path.exists()


def test_a_batch_fails_on_lost_records_and_says_what_is_gone(store: jjq.Store) -> None:
    lose_the_first(store, 3)
    reader = batch(store, startingOffsets='{"t":{"0":4}}')
    with pytest.raises(DataLoss, match=r"10.*failOnDataLoss to false") as caught:
        reader.partitions()
    assert (caught.value.topic, caught.value.partition, caught.value.earliest) == ("t", 0, 10)


def test_a_lenient_batch_says_so_once_and_goes_on(store: jjq.Store, caplog: pytest.LogCaptureFixture) -> None:
    lose_the_first(store, 3)
    reader = batch(store, startingOffsets='{"t":{"0":4}}', failOnDataLoss="false")
    assert values(reader, reader.partitions()) == number(3, 10)
    assert [record.name for record in caplog.records] == ["jjq.spark"]


def test_a_stream_fails_on_lost_records_or_goes_on(store: jjq.Store, caplog: pytest.LogCaptureFixture) -> None:
    topic = store.create_topic("t")
    topic.push_many(number(10))
    strict, lenient = (stream(store, startingOffsets="earliest", failOnDataLoss=flag) for flag in ("true", "false"))
    start = through_json(strict.initialOffset())
    topic.empty()
    topic.push_many(number(3, 10))
    end = through_json(strict.latestOffset(start, ALL))
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        strict.partitions(start, end)
    assert not caplog.records
    end = through_json(lenient.latestOffset(start, ALL))
    assert values(lenient, lenient.partitions(start, end)) == number(3, 10)
    assert values(lenient, lenient.partitions(start, end)) == number(3, 10)
    assert len(caplog.records) == 1
    assert lenient.latestOffset(end, ALL) == end


def test_records_that_go_while_a_task_reads_are_the_policys_case_too(store: jjq.Store) -> None:
    topic = store.create_topic("t", segment_rows=10)
    for i in range(3):
        topic.push_many(number(10, i * 10))
    strict, lenient = (batch(store, failOnDataLoss=flag) for flag in ("true", "false"))
    planned = strict.partitions()
    files = [Path(segment.path) for segment in topic.segments()]
    topic.empty()
    for file in files:  # they would stay for a while, so that readers need not plan again
        file.unlink()
    with pytest.raises(DataLoss):
        values(strict, planned)
    assert values(lenient, planned) == []


def test_a_recreated_topic_is_noticed_between_micro_batches(store: jjq.Store) -> None:
    store.create_topic("t").push_many(number(5))
    strict, lenient = (stream(store, startingOffsets="earliest", failOnDataLoss=flag) for flag in ("true", "false"))
    start = strict.initialOffset()
    end = through_json(strict.latestOffset(start, ALL))
    store.delete_topic("t")
    store.create_topic("t").push_many(number(7, 100))
    with pytest.raises(DataLoss, match="deleted and made again"):
        strict.latestOffset(end, ALL)
    further = through_json(lenient.latestOffset(end, ALL))
    assert values(lenient, lenient.partitions(end, further)) == number(7, 100)
    assert lenient.latestOffset(further, ALL) == further


def test_a_micro_batch_of_a_topic_that_is_gone_is_loss(store: jjq.Store) -> None:
    store.create_topic("t").push_many(number(5))
    strict, lenient = (stream(store, startingOffsets="earliest", failOnDataLoss=flag) for flag in ("true", "false"))
    start = strict.initialOffset()
    end = strict.latestOffset(start, ALL)
    store.delete_topic("t")
    for call in (lambda: strict.partitions(start, end), lambda: strict.latestOffset(end, ALL)):
        with pytest.raises(DataLoss, match="it was deleted"):
            call()
    assert lenient.partitions(start, end) == []
    noted = through_json(lenient.latestOffset(end, ALL))
    assert noted["topics"]["t"] == {**end["topics"]["t"], "gone": True}
    for reader in (strict, lenient):  # it was said, and is not said again
        assert reader.latestOffset(noted, ALL) == noted
        assert reader.partitions(end, noted) == []
    store.create_topic("t").push_many(number(2))
    with pytest.raises(DataLoss, match="deleted and made again"):
        strict.partitions(start, end)
    assert lenient.partitions(start, end) == []


def test_an_end_that_moved_back_is_loss(store: jjq.Store) -> None:
    """As after a power cut, or when an older copy of the store was put in place."""
    store.create_topic("t").push_many(number(5))
    strict, lenient = (stream(store, startingOffsets="earliest", failOnDataLoss=flag) for flag in ("true", "false"))
    beyond = through_json(strict.initialOffset())
    beyond["topics"]["t"]["0"] = [9, 0]
    with pytest.raises(DataLoss, match="up to offset 9, and its end was moved back to 5"):
        strict.latestOffset(beyond, ALL)
    end = lenient.latestOffset(beyond, ALL)
    assert values(lenient, lenient.partitions(beyond, end)) == []
    store.topic("t").push(b"new")
    assert values(lenient, lenient.partitions(end, lenient.latestOffset(end, ALL))) == [b"new"]


def test_records_that_a_power_cut_took_are_loss_and_those_given_their_offsets_are_read_once(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.create_topic("t", sync="none")
    for value in number(9):
        topic.push(value)
        if value == b"4":
            [file] = store.path.rglob("*.arrows")
            kept = file.stat().st_size
    before = stream(store, startingOffsets="earliest")
    start = through_json(before.initialOffset())
    end = through_json(before.latestOffset(start, ALL))
    store.close()
    os.truncate(file, kept)
    monkeypatch.setattr("jjq.store.boot_id", lambda: "another boot")
    close_stores()
    with jjq.open(store.path) as after:
        after.topic("t").push_many(number(7, 100))
        strict, lenient = (stream(after, failOnDataLoss=flag) for flag in ("true", "false"))
        for call in (lambda: strict.latestOffset(end, ALL), lambda: strict.partitions(start, end)):
            with pytest.raises(DataLoss, match="power cut"):
                call()
        assert values(lenient, lenient.partitions(start, end)) == number(5)
        further = through_json(lenient.latestOffset(end, ALL))
        assert values(lenient, lenient.partitions(end, further)) == number(7, 100)
        assert lenient.latestOffset(further, ALL) == further


@pytest.mark.parametrize("name", ["../x", "x/../y", "a" * 300, "a\x00b", "полёты", " ", "-t"])
def test_a_name_that_no_topic_can_have_is_refused_before_any_path_is_touched(store: jjq.Store, name: str) -> None:
    with pytest.raises(InvalidArgument):
        source(store, subscribe=name).schema()


READS = """\
import sys
from types import SimpleNamespace
from tests.readers import advance, batch, stream, values

store = SimpleNamespace(path=sys.argv[1])
reader = batch(store)
print(values(reader, reader.partitions()))
reader = stream(store, startingOffsets="earliest")
print([row["value"] for row in advance(reader, reader.initialOffset())[1]])
"""


def test_a_store_in_a_directory_that_may_not_be_written_is_read(store: jjq.Store) -> None:
    """As tasks of another user, or on a read-only mount, find it: nobody has it open, and they can make no file in it."""
    topic = store.create_topic("t")
    topic.push_table(pa.table({"value": [b"sealed"]}), writer_id="w", batch_id=0)
    topic.push(b"active")
    store.close()
    files = sorted(store.path.rglob("*"))
    modes = {path: path.stat().st_mode for path in (store.path, *files)}
    through = ("setpriv", "--bounding-set", "-dac_override") if os.geteuid() == 0 else ()  # root may write everywhere
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    try:
        command = [*through, sys.executable, "-c", READS, store.path]
        said = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert said.splitlines() == ["[b'sealed', b'active']"] * 2
    assert sorted(store.path.rglob("*")) == files


def test_a_directory_that_was_made_anew_is_another_store(store: jjq.Store, tmp_path: Path) -> None:
    """Python workers outlive queries: the store they have open must be the one that is there."""
    store.create_topic("t").push(b"old")
    reader = batch(store)
    assert values(reader, reader.partitions()) == [b"old"]
    store.path.rename(tmp_path / "moved")
    with jjq.open(tmp_path / "store") as fresh:
        fresh.create_topic("t").push(b"new")
        reader = batch(fresh)
        assert values(reader, reader.partitions()) == [b"new"]
