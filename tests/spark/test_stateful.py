"""Operators that keep state between micro-batches, from topic to topic: with restarts, and with the last batch again."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from pyspark_jjq.testing import Topics, topics
from tests.stores import assert_whole


@pytest.fixture
def given(spark: SparkSession, tmp_path: Path) -> Iterator[Topics]:
    with topics(spark, tmp_path) as made:
        yield made
        assert_whole(made.store)


def departures(*hours: int) -> list[dict[str, Any]]:
    return [{"flight": hour, "left": pd.Timestamp(2013, 1, 1, hour, tz="UTC")} for hour in hours]


def arrivals(*hours: int) -> list[dict[str, Any]]:
    return [{"flight": hour, "came": pd.Timestamp(2013, 1, 1, hour, 40, tz="UTC")} for hour in hours]


def joined(left: DataFrame, right: DataFrame) -> DataFrame:
    left = left.withWatermark("left", "2 hours")
    right = right.withWatermark("came", "2 hours").withColumnRenamed("flight", "number")
    within = "flight = number AND came BETWEEN left AND left + INTERVAL 1 HOUR"
    return left.join(right, on=expr(within)).select("flight", "left", "came")


def test_two_topics_are_joined_into_a_third(given: Topics) -> None:
    given.push("departures", departures(1, 2, 3), schema="flight int, left timestamp", partitions=2)
    given.push("arrivals", arrivals(2), schema="flight int, came timestamp")

    def run() -> None:
        given.run(joined(given.stream("departures"), given.stream("arrivals")), into="flights")

    run()
    assert [row.flight for row in given.frame("flights").collect()] == [2]
    given.push("arrivals", arrivals(3, 1))  # their departures are in the state
    given.push("departures", departures(4))
    run()
    given.repeat_last_batch("flights")
    run()
    given.push("arrivals", arrivals(4))
    run()
    expected = joined(given.frame("departures"), given.frame("arrivals"))
    assert_df_equality(given.frame("flights"), expected, ignore_row_order=True, ignore_nullable=True)
    assert given.frame("flights").count() == 4


def add_up(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """One row for each micro-batch with rows of the carrier: its delay so far."""
    total = (state.get[0] if state.exists else 0) + sum(int(frame.delay.sum()) for frame in frames)
    state.update((total,))
    yield pd.DataFrame({"carrier": [key[0]], "total": [total]})


def test_state_of_ones_own_goes_on_over_restarts_and_repeated_batches(spark: SparkSession, given: Topics) -> None:
    schema = "carrier string, delay int"

    def run() -> None:
        totals = (
            given.stream("flights")
            .groupBy("carrier")
            .applyInPandasWithState(
                add_up, "carrier string, total long", "total long", "append", GroupStateTimeout.NoTimeout
            )
        )
        given.run(totals, into="totals")

    given.push("flights", [{"carrier": "AA", "delay": 4}, {"carrier": "UA", "delay": 31}], schema=schema)
    run()
    given.repeat_last_batch("totals")
    run()
    given.push("flights", [{"carrier": "AA", "delay": 9}])
    run()
    expected = spark.createDataFrame([("AA", 4), ("UA", 31), ("AA", 13)], "carrier string, total long")
    assert_df_equality(given.frame("totals"), expected, ignore_row_order=True, ignore_nullable=True)


class AddUp(StatefulProcessor):
    """The same with Spark's newer operator: one row for each micro-batch with rows of the carrier, its delay so far."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N803
        total = (self.total.get()[0] if self.total.exists() else 0) + sum(row.delay for row in rows)
        self.total.update((total,))
        yield Row(carrier=key[0], total=total)

    def close(self) -> None:
        pass


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    name = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(name, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    yield
    spark.conf.unset(name)


@pytest.mark.soak
@pytest.mark.usefixtures("rocksdb")
@pytest.mark.skipif(
    importlib.util.find_spec("google.protobuf") is None,
    reason="transformWithState needs protobuf: pip install protobuf",
)
def test_transform_with_state_goes_on_over_restarts_and_repeated_batches(spark: SparkSession, given: Topics) -> None:
    schema = "carrier string, delay int"

    def run() -> None:
        totals = (
            given.stream("flights")
            .groupBy("carrier")
            .transformWithState(AddUp(), "carrier string, total long", outputMode="append", timeMode="none")
        )
        given.run(totals, into="totals")

    given.push("flights", [{"carrier": "AA", "delay": 4}, {"carrier": "UA", "delay": 31}], schema=schema)
    run()
    given.repeat_last_batch("totals")
    run()
    given.push("flights", [{"carrier": "AA", "delay": 9}])
    run()
    given.repeat_last_batch("totals")
    run()
    expected = spark.createDataFrame([("AA", 4), ("UA", 31), ("AA", 13)], "carrier string, total long")
    assert_df_equality(given.frame("totals"), expected, ignore_row_order=True, ignore_nullable=True)


def test_foreach_batch_joins_its_rows_with_a_topic_as_it_is_then_and_writes_two_frames(
    spark: SparkSession, given: Topics, tmp_path: Path
) -> None:
    """Each write under a name of its own counts once, also when the micro-batch fails between them and comes again."""
    given.push(
        "flights", [{"carrier": "AA", "delay": 4}, {"carrier": "UA", "delay": 31}], schema="carrier string, delay int"
    )
    given.push("names", [{"carrier": "AA", "name": "American"}], schema="carrier string, name string")
    broken = [True]

    def save(frame: DataFrame, batch: int) -> None:
        known = frame.join(given.frame("names"), "carrier", "left")
        for topic, part in (("known", known.where("name IS NOT NULL")), ("unknown", known.where("name IS NULL"))):
            writing = part.write.format("jjq").options(topic=topic, writerId=f"save-{topic}", batchId=batch)
            writing.mode("append").save(given.path)
            if broken and topic == "known" and batch == 1:
                broken.pop()
                raise RuntimeError("between the two writes")

    def run() -> None:
        writing = given.stream("flights").writeStream.foreachBatch(save)
        writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writing.start().awaitTermination()

    run()
    given.push("names", [{"carrier": "UA", "name": "United"}])
    given.push("flights", [{"carrier": "UA", "delay": 5}, {"carrier": "XX", "delay": 6}])
    with pytest.raises(Exception, match="between the two writes"):
        run()
    for _ in range(2):
        run()

    def delays(topic: str) -> list[int]:
        return sorted(row.delay for row in given.frame(topic).collect())

    assert (delays("known"), delays("unknown")) == ([4, 5], [6, 31])
