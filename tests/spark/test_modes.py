"""Output modes, batches with nothing in them, and topics that get columns: what a sink that only grows makes of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pyspark_jjq.testing import Topics, topics
from tests.stores import assert_whole

FLIGHTS = "carrier string, delay int"
COUNTS = "carrier string, flights long, worst int"


@pytest.fixture
def given(spark: SparkSession, tmp_path: Path) -> Iterator[Topics]:
    with topics(spark, tmp_path) as made:
        yield made
        assert_whole(made.store)


def flights(*delays: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"carrier": carrier, "delay": delay} for carrier, delay in delays]


def append(frame: DataFrame, given: Topics, **options: Any) -> None:
    frame.write.format("jjq").mode("append").options(**options).save(given.path)


# --- update mode


def counts(stream: DataFrame) -> DataFrame:
    return stream.groupBy("carrier").agg(f.count("*").alias("flights"), f.max("delay").alias("worst"))


def current(given: Topics, topic: str = "counts") -> DataFrame:
    """The newest row of each carrier: with keyColumn a carrier's rows are in one partition, in the order of batches."""
    newest = given.frame(topic, metadata="_offset").groupBy("carrier")
    return newest.agg(f.max_by(f.struct("flights", "worst"), "_offset").alias("c")).select("carrier", "c.*")


class DriverDied(Exception):
    """What the job raises when its rows are written and Spark has not noted it."""


def test_an_aggregation_in_update_mode_is_a_topic_of_changes(spark: SparkSession, given: Topics) -> None:
    dies = False

    def write(changed: DataFrame, batch: int) -> None:
        append(changed, given, topic="counts", partitions=3, keyColumn="carrier", writerId="counts", batchId=batch)
        if dies:
            raise DriverDied

    def run() -> None:
        aggregated = counts(given.stream("flights", maxOffsetsPerTrigger=3))
        given.run(aggregated.writeStream.outputMode("update").foreachBatch(write), name="counts")

    given.push("flights", flights(("AA", 4), ("UA", 31), ("AA", 9), ("B6", 1), ("AA", 2)), schema=FLIGHTS)
    run()
    given.repeat_last_batch("counts")
    run()  # the last one again: counted once
    assert given.frame("counts").count() == 4  # AA and UA, then AA and B6
    given.push("flights", flights(("UA", 40), ("DL", 7)))
    dies = True
    with pytest.raises(StreamingQueryException, match="DriverDied"):
        run()
    dies = False
    run()
    expected = spark.createDataFrame([("AA", 3, 9), ("UA", 2, 40), ("B6", 1, 1), ("DL", 1, 7)], COUNTS)
    assert_df_equality(current(given), expected, ignore_row_order=True, ignore_nullable=True)
    plain = counts(given.frame("flights"))
    assert_df_equality(current(given), plain, ignore_row_order=True, ignore_nullable=True)
    assert given.frame("counts").count() == 6
    [writer] = given.store.writers()
    assert (writer.id, writer.last_batch) == ("counts", 2)


def test_update_mode_without_foreach_batch_is_refused(given: Topics) -> None:
    given.push("flights", flights(("AA", 4)), schema=FLIGHTS)
    with pytest.raises((AnalysisException, StreamingQueryException), match="does not support Update mode"):
        given.run(counts(given.stream("flights")).writeStream.outputMode("update").format("jjq"), into="counts")
    assert [topic.name for topic in given.store.topics()] == ["flights"]


@pytest.mark.parametrize("mode", ["errorifexists", "ignore", None])
def test_a_batch_write_must_say_append(spark: SparkSession, given: Topics, mode: str | None) -> None:
    writer = spark.range(1).write.format("jjq").option("topic", "t")
    with pytest.raises(AnalysisException, match=r'"jjq" cannot be written in the ".*" mode.*"Append"'):
        (writer if mode is None else writer.mode(mode)).save(given.path)
    assert given.store.topics() == []


# --- nothing to write


def test_a_batch_without_rows_makes_the_topic_and_counts(spark: SparkSession, given: Topics) -> None:
    nothing = spark.createDataFrame([], FLIGHTS)
    append(nothing, given, topic="t", writerId="loader", batchId=0)
    append(spark.range(8).repartition(8).where("id < 0").selectExpr("'a' AS carrier", "1 AS delay"), given, topic="t")
    assert given.store.topic("t").schema == pa.schema([("carrier", pa.string()), ("delay", pa.int32())])
    assert given.frame("t").count() == 0
    some = spark.createDataFrame([("AA", 1)], FLIGHTS)
    append(nothing, given, topic="t", writerId="loader", batchId=0)
    with pytest.raises(AnalysisException, match="batch 0 of writer 'loader' was committed before with no rows"):
        append(some, given, topic="t", writerId="loader", batchId=0)
    append(some, given, topic="t", writerId="loader", batchId=1)
    assert given.frame("t").count() == 1


def test_tasks_without_rows_write_no_files_and_lose_none_of_the_others(spark: SparkSession, given: Topics) -> None:
    one_of_eight = spark.range(0, 1000, 1, 8).where("id >= 500 and id < 600")
    append(one_of_eight, given, topic="t", partitions=8)
    assert sum(each.end > each.start for each in given.store.topic("t").offsets()) == 1
    assert sorted(row.id for row in given.frame("t").collect()) == list(range(500, 600))


def test_a_stream_over_empty_topics_and_partitions_runs_and_goes_on(given: Topics) -> None:
    given.push("flights", [], schema=FLIGHTS, partitions=3)
    given.run(given.stream("flights"), into="copy")
    assert given.frame("copy").count() == 0
    given.store.topic("flights").push({"carrier": "AA", "delay": 1}, partition=2)
    given.run(given.stream("flights"), into="copy")
    given.run(given.stream("flights"), into="copy")
    assert given.frame("copy").count() == 1


# --- columns that are added


def test_a_new_column_is_refused_unless_the_schema_may_be_merged(spark: SparkSession, given: Topics) -> None:
    given.push("t", flights(("AA", 4)), schema=FLIGHTS)
    more = spark.createDataFrame([("UA", 31, "JFK")], f"{FLIGHTS}, origin string")
    with pytest.raises(AnalysisException, match=r'has no column \'origin\'.*option\("mergeSchema", True\)'):
        append(more, given, topic="t")
    append(more, given, topic="t", mergeSchema=True)
    append(more.drop("delay"), given, topic="t", mergeSchema=True)
    expected = [("AA", 4, None), ("UA", 31, "JFK"), ("UA", None, "JFK")]
    assert_df_equality(given.frame("t"), spark.createDataFrame(expected, f"{FLIGHTS}, origin string"))


def test_nothing_is_added_where_another_column_does_not_fit(spark: SparkSession, given: Topics) -> None:
    given.push("t", flights(("AA", 4)), schema=FLIGHTS)
    given.push("raw", [b"a"])
    for sql, topic, says in (
        ("SELECT 'x' AS delay, 'JFK' AS origin", "t", "column 'delay' is string"),
        ("SELECT 1 AS delay, 'JFK' AS _origin", "t", "_origin"),
        ("SELECT 'v' AS value", "raw", "mergeSchema is for topics with a schema"),
    ):
        with pytest.raises(AnalysisException, match=says):
            append(spark.sql(sql), given, topic=topic, mergeSchema=True)
    assert given.frame("t").columns == ["carrier", "delay"]


def test_a_stream_whose_rows_have_got_a_column_goes_on_from_its_checkpoint(spark: SparkSession, given: Topics) -> None:
    given.push("flights", flights(("AA", 4)), schema=FLIGHTS)
    given.run(given.stream("flights"), into="copy", mergeSchema=True)
    given.store.alter_topic("flights", add_columns=pa.schema([("origin", pa.string())]))
    given.push("flights", [{"carrier": "UA", "delay": 31, "origin": "JFK"}])
    given.run(given.stream("flights"), into="copy", mergeSchema=True)
    given.repeat_last_batch("copy")
    given.run(given.stream("flights"), into="copy", mergeSchema=True)
    expected = spark.createDataFrame([("AA", 4, None), ("UA", 31, "JFK")], f"{FLIGHTS}, origin string")
    assert_df_equality(given.frame("copy"), expected)
