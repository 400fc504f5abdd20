"""Writing DataFrames and streams to topics through Spark: columns, keys, partitions, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import jjq
from tests.spark.test_source import FULL, TYPES, read


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store") as opened:
        yield opened


def write(frame: DataFrame, store: jjq.Store, mode: str = "append", **options: Any) -> None:
    frame.write.format("jjq").options(**options).mode(mode).save(str(store.path))


def records(store: jjq.Store, topic: str = "t", metadata: list[str] | None = None) -> list[dict[str, Any]]:
    return store.topic(topic).read(metadata=metadata or []).read_all().to_pylist()


# --- topics with a schema


def test_a_new_topic_takes_the_schema_of_the_frame(spark: SparkSession, store: jjq.Store) -> None:
    frame = spark.range(100).select("id", f.concat(f.lit("n"), "id").alias("name")).repartition(3)
    write(frame, store, topic="t", partitions=4)
    topic = store.topic("t")
    assert topic.partitions == 4
    assert topic.schema == pa.schema([("id", pa.int64()), ("name", pa.string())])
    assert sorted(row["id"] for row in records(store)) == list(range(100))
    assert {row["_partition"] for row in records(store, metadata=["_partition"])} == {0, 1, 2}
    write(frame, store, topic="t")
    assert len(records(store)) == 200


def test_every_type_comes_back_as_it_went(spark: SparkSession, store: jjq.Store) -> None:
    topic = store.create_topic("t", schema=TYPES)
    topic.push(FULL)
    topic.push(dict.fromkeys(FULL))
    write(read(spark, store), store, topic="copy")
    assert store.topic("copy").schema == TYPES
    assert records(store, "copy") == records(store, "t")


def test_times_are_instants_whatever_the_sessions_zone(spark: SparkSession, store: jjq.Store) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        write(
            spark.sql("select timestamp'2013-01-01 05:00:00' as at, timestamp_ntz'2013-01-01 05:00:00' as wall"),
            store,
            topic="t",
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    [row] = records(store)
    assert row["at"].isoformat() == "2013-01-01T10:00:00+00:00"
    assert row["wall"].isoformat() == "2013-01-01T05:00:00"


def test_the_key_column_is_the_key_and_chooses_the_partition(spark: SparkSession, store: jjq.Store) -> None:
    frame = spark.range(60).select(f.concat(f.lit("k"), f.col("id") % 6).alias("carrier"), "id").repartition(3)
    write(frame, store, topic="t", partitions=4, keyColumn="carrier")
    found = records(store, metadata=["_key", "_partition"])
    assert all(row["_key"] == row["carrier"].encode() for row in found)
    places = {row["carrier"]: row["_partition"] for row in found}
    assert len(places) == 6
    assert all(places[row["carrier"]] == row["_partition"] for row in found)
    pushed = store.topic("t").push({"carrier": "k3", "id": 1}, key=b"k3")
    assert pushed.partition == places["k3"]


def test_columns_go_by_name_are_widened_and_may_be_missing(spark: SparkSession, store: jjq.Store) -> None:
    store.create_topic("t", schema=pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())]))
    write(spark.sql("select 'x' as b, 1 as a"), store, topic="t")
    write(spark.sql("select cast(1.5 as float) as c"), store, topic="t")
    assert records(store) == [{"a": 1, "b": "x", "c": None}, {"a": None, "b": None, "c": 1.5}]


@pytest.mark.parametrize(
    ("sql", "options", "says"),
    [
        ("select 1L as a, 2 as x, 3 as y", {}, "topic 't' has no columns 'x', 'y'; its columns are a, b. Drop"),
        ("select 1L as a, 2 as b", {}, "column 'b' is int and topic 't' has it as string; cast it"),
        ("select 1.5D as a", {}, "column 'a' is double and topic 't' has it as int64; cast it"),
        ("select 1L as a", {"keyColumn": "c"}, "keyColumn names 'c'"),
        ("select 1L as a", {"topic": "new", "createTopic": "false"}, "TopicNotFound"),
        ("select 1L as _a", {"topic": "new"}, "columns of a topic do not begin with _"),
        ("select 1L as a, 2L as a", {"topic": "new"}, "columns have the same name"),
        ("select 1L as a", {"topic": "../x"}, "cannot name a topic"),
        ("select 1L as a", {"writerId": "w"}, "writerId and batchId go together"),
        ("select 1L as a", {"batchId": "1"}, "writerId and batchId go together"),
        ("select 1L as a", {"writerId": "no spaces", "batchId": "1"}, "cannot name a writer"),
        ("select 1L as a", {"partition": "3"}, "did you mean partitions?"),
        ("select 1L as a", {"partitions": "3"}, "partitions is 3, and topic 't' has 2; remove the option"),
        ("select 1L as a", {"partitions": "1"}, "partitions is 1, and topic 't' has 2; remove the option"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_task_runs(
    spark: SparkSession, store: jjq.Store, sql: str, options: dict[str, str], says: str
) -> None:
    store.create_topic("t", partitions=2, schema=pa.schema([("a", pa.int64()), ("b", pa.string())]))
    with pytest.raises(AnalysisException) as caught:
        write(spark.sql(sql), store, **({"topic": "t"} | options))
    assert says in str(caught.value)
    assert records(store) == []
    assert [topic.name for topic in store.topics()] == ["t"]


def test_a_type_that_a_topic_cannot_have_is_refused(spark: SparkSession, store: jjq.Store) -> None:
    with pytest.raises(AnalysisException, match=r"jjq\.errors"):
        write(spark.sql("select null as nothing"), store, topic="t")
    assert store.topics() == []


def test_what_cannot_be_null_inside_is_taken_where_it_could_be(spark: SparkSession, store: jjq.Store) -> None:
    sql = "select split('a,b', ',') as l, map('a', 1) as m, named_struct('x', array(1)) as s"
    for _ in range(2):  # into a topic that the write makes, and into one that is there
        write(spark.sql(sql), store, topic="t")
    assert records(store) == [{"l": ["a", "b"], "m": [("a", 1)], "s": {"x": [1]}}] * 2
    with pytest.raises(AnalysisException, match=r"column 'l' is array<int>"):
        write(spark.sql("select array(1) as l"), store, topic="t")
    with pytest.raises(AnalysisException, match="write to_json of it"):
        write(spark.sql("select parse_json('1') as v"), store, topic="u")
    assert [topic.name for topic in store.topics()] == ["t"]


# --- topics without a schema


def test_a_frame_of_kafkas_columns_makes_a_topic_without_a_schema(spark: SparkSession, store: jjq.Store) -> None:
    frame = spark.sql(
        "select 'v' as value, 'k' as key, array(struct('h' as key, cast('x' as binary) as value)) as headers, "
        "1 as partition"
    )
    write(frame, store, topic="t", partitions=2)
    assert store.topic("t").schema is None
    assert records(store, metadata=["_key", "_headers", "_partition"]) == [
        {"value": b"v", "_key": b"k", "_headers": [{"key": "h", "value": b"x"}], "_partition": 1}
    ]


def test_nulls_and_empty_values_are_kept_apart(spark: SparkSession, store: jjq.Store) -> None:
    frame = spark.createDataFrame([("", None), (None, ""), ("x", "y")], "value string, key string").coalesce(1)
    write(frame, store, topic="t")
    found = records(store, metadata=["_key"])
    assert found == [{"value": b"", "_key": None}, {"value": None, "_key": b""}, {"value": b"x", "_key": b"y"}]


def test_partitions_are_taken_from_rows_and_else_from_keys(spark: SparkSession, store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=3)
    frame = spark.createDataFrame(
        [("a", "k", 2), ("b", "k", None), ("c", "k", 0), ("d", "k", None)], "value string, key string, partition int"
    ).coalesce(1)
    write(frame, store, topic="t")
    by_key = topic.push(b"e", key=b"k").partition
    found = {row["value"]: row["_partition"] for row in records(store, metadata=["_partition"])}
    assert found == {b"a": 2, b"b": by_key, b"c": 0, b"d": by_key, b"e": by_key}


def test_a_topic_column_sends_rows_to_their_topics(spark: SparkSession, store: jjq.Store) -> None:
    frame = spark.range(10).select(
        f.col("id").cast("string").alias("value"), f.concat(f.lit("t"), f.col("id") % 2).alias("topic")
    )
    write(frame.coalesce(1), store)
    assert [row["value"] for row in records(store, "t0")] == [b"0", b"2", b"4", b"6", b"8"]
    assert [row["value"] for row in records(store, "t1")] == [b"1", b"3", b"5", b"7", b"9"]
    write(frame, store, topic="one")
    assert len(records(store, "one")) == 10


def test_a_null_topic_says_what_to_do(spark: SparkSession, store: jjq.Store) -> None:
    with pytest.raises(Exception, match=r"a row has a null topic: fill the column topic(.|\n)*"):
        write(spark.sql("select 'v' as value, cast(null as string) as topic"), store)
    assert store.topics() == []


def test_timestamps_are_taken_where_they_are_the_producers(spark: SparkSession, store: jjq.Store) -> None:
    store.create_topic("theirs", timestamps="producer")
    store.create_topic("ours")
    frame = spark.sql("select 'v' as value, timestamp'2013-01-01 10:00:00' as timestamp")
    for name in ("theirs", "ours"):
        write(frame, store, topic=name)
    [theirs], [ours] = (records(store, name, ["_timestamp"]) for name in ("theirs", "ours"))
    assert theirs["_timestamp"].isoformat() == "2013-01-01T10:00:00+00:00"
    assert ours["_timestamp"].year > 2013


def test_a_topic_is_copied_row_by_row_as_from_kafka(spark: SparkSession, store: jjq.Store) -> None:
    store.create_topic("t", partitions=2).push_many([b"a", b"b"], partition=1)
    write(read(spark, store), store, topic="copy", partitions=2)
    assert records(store, "copy", ["_partition"]) == [{"value": v, "_partition": 1} for v in (b"a", b"b")]


@pytest.mark.parametrize(
    ("sql", "options", "says"),
    [
        ("select 1 as value", {}, "column value is int and must be string or binary; cast it"),
        ("select 'a' as v", {}, "takes a column value (string or binary), and there are: v"),
        ("select 'a' as value, 1 as key", {}, "column key is int"),
        ("select 'a' as value, array('x') as headers", {}, "must be array<struct<key:string,value:binary>>"),
        ("select 'a' as value", {"keyColumn": "value"}, "its key is the column key; remove the option"),
        ("select 'a' as value", {"topic": None}, "the write names no topic"),
    ],
)
def test_columns_that_are_not_kafkas_are_refused(
    spark: SparkSession, store: jjq.Store, sql: str, options: dict[str, Any], says: str
) -> None:
    store.create_topic("t")
    given = {k: v for k, v in ({"topic": "t"} | options).items() if v is not None}
    with pytest.raises(AnalysisException) as caught:
        write(spark.sql(sql), store, **given)
    assert says in str(caught.value)


def test_a_partition_that_is_not_there_is_refused(spark: SparkSession, store: jjq.Store) -> None:
    store.create_topic("t", partitions=2)
    with pytest.raises(Exception, match="a row names partition 2, and topic 't' has 0 to 1"):
        write(spark.sql("select 'a' as value, 2 as partition"), store, topic="t")
    assert records(store) == []


# --- modes


def test_overwrite_is_refused_with_a_reason(spark: SparkSession, store: jjq.Store) -> None:
    store.create_topic("t").push(b"kept")
    with pytest.raises(AnalysisException, match="overwriting would take records away"):
        write(spark.sql("select 'a' as value"), store, "overwrite", topic="t")
    assert len(records(store)) == 1


def test_complete_mode_is_refused_with_a_reason(spark: SparkSession, store: jjq.Store, tmp_path: Path) -> None:
    store.create_topic("t").push(b"a")
    counts = spark.readStream.format("jjq").option("topic", "t").load(str(store.path)).groupBy("value").count()
    writing = counts.writeStream.format("jjq").option("topic", "counts").outputMode("complete")
    with pytest.raises(
        (AnalysisException, StreamingQueryException), match=r'outputMode\("complete"\) writes the whole'
    ):
        writing.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start(
            str(store.path)
        ).awaitTermination()


def test_a_batch_of_one_writer_counts_once(spark: SparkSession, store: jjq.Store) -> None:
    frame = spark.range(10).select(f.col("id").cast("string").alias("value"))
    for _ in range(2):
        write(frame, store, topic="t", writerId="loader", batchId=7)
    assert len(records(store)) == 10
    write(frame, store, topic="t", writerId="loader", batchId=8)
    assert len(records(store)) == 20
    with pytest.raises(Exception, match=r"jjq writer reset"):
        write(frame, store, topic="t", writerId="loader", batchId=3)
    assert len(records(store)) == 20
    with pytest.raises(Exception, match="with 10 rows into 't', and this one has 10 rows into 'other'"):
        write(frame, store, topic="other", writerId="loader", batchId=8)
    assert records(store, "other") == []


def test_a_stream_writes_a_topic_that_a_stream_reads(spark: SparkSession, store: jjq.Store, tmp_path: Path) -> None:
    store.create_topic("t").push_many([b"%d" % i for i in range(10)])
    frame = spark.readStream.format("jjq").options(topic="t", startingOffsets="earliest", maxOffsetsPerTrigger=4)
    doubled = frame.load(str(store.path)).selectExpr("cast(cast(value as string) as long) * 2 as twice", "offset as at")
    query = (
        doubled.writeStream.format("jjq")
        .options(topic="out", partitions=2, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(store.path))
    )
    query.awaitTermination()
    assert store.topic("out").partitions == 2
    assert sorted(records(store, "out"), key=lambda row: row["at"]) == [{"twice": 2 * i, "at": i} for i in range(10)]
    [writer] = store.writers()
    assert (writer.id, writer.query_id, writer.last_batch) == (f"spark:{query.id}", query.id, 2)


def test_a_stream_goes_on_when_its_topic_gets_more_partitions_than_it_asks_for(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    topic = store.create_topic("t")

    def run(partitions: int) -> None:
        topic.push(b"v")
        frame = spark.readStream.format("jjq").options(topic="t", startingOffsets="earliest").load(str(store.path))
        writing = frame.select("value").writeStream.format("jjq").trigger(availableNow=True)
        options = {"topic": "out", "partitions": partitions, "checkpointLocation": str(tmp_path / "checkpoint")}
        writing.options(**options).start(str(store.path)).awaitTermination()

    run(partitions=2)
    store.alter_topic("out", partitions=3)
    run(partitions=2)
    assert len(records(store, "out")) == 2
    with pytest.raises(StreamingQueryException, match=r"partitions is 4, and topic 'out' has 3; .* alter_topic"):
        run(partitions=4)


def test_a_checkpoint_in_the_store_is_refused_before_a_row_is_written(spark: SparkSession, store: jjq.Store) -> None:
    store.create_topic("t").push(b"1")
    frame = spark.readStream.format("jjq").options(topic="t").load(str(store.path)).select("value")
    writing = frame.writeStream.format("jjq").options(topic="out", checkpointLocation=str(store.path / "_checkpoint"))
    with pytest.raises(
        (AnalysisException, StreamingQueryException), match=r"is in the store .*; name a directory beside it"
    ):
        writing.trigger(availableNow=True).start(str(store.path)).awaitTermination()
    assert [each.name for each in store.topics()] == ["t"]


def test_a_stream_whose_topic_was_deleted_says_so_and_goes_on_in_one_that_is_made(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    topic = store.create_topic("t")

    def run() -> None:
        topic.push(b"%d" % topic.offsets()[0].end)
        frame = spark.readStream.format("jjq").options(topic="t", startingOffsets="earliest").load(str(store.path))
        writing = frame.select("value").writeStream.format("jjq").trigger(availableNow=True)
        writing.options(topic="out", partitions=2, checkpointLocation=str(tmp_path / "c")).start(
            str(store.path)
        ).awaitTermination()

    run()
    assert store.topic("out").partitions == 2
    store.delete_topic("out")
    with pytest.raises(StreamingQueryException) as caught:
        run()
    said = str(caught.value).splitlines()[0]
    assert "TopicNotFound: there is no topic 'out'" in said
    # One of plain values takes no other rows.
    assert "make it with its columns and partitions (`jjq topic create`)" in said
    assert [each.name for each in store.topics()] == ["t"]
    store.create_topic("out", partitions=4)
    run()
    assert [row["value"] for row in records(store, "out")] == [b"1", b"2"]
