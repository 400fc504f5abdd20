"""What the package offers for tests of other people's jobs."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chispa import assert_df_equality
from chispa.dataframe_comparer import DataFramesNotEqualError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from jjq.errors import InvalidArgument, SchemaMismatch
from pyspark_jjq.testing import Topics, topics
from tests.stores import assert_whole

FLIGHTS = "carrier string, delay int"


@pytest.fixture
def given(spark: SparkSession, tmp_path: Path) -> Iterator[Topics]:
    with topics(spark, tmp_path) as made:
        made.push("flights", [{"carrier": "AA", "delay": 4}, {"carrier": "UA", "delay": 31}], schema=FLIGHTS)
        yield made
        assert_whole(made.store)


def late(flights: DataFrame) -> DataFrame:
    return flights.where("delay > 15")


def test_a_job_is_run_over_what_was_pushed_and_goes_on_in_the_next_run(spark: SparkSession, given: Topics) -> None:
    given.run(late(given.stream("flights")), into="late")
    assert_df_equality(given.frame("late"), spark.createDataFrame([("UA", 31)], FLIGHTS))
    with pytest.raises(DataFramesNotEqualError):
        assert_df_equality(given.frame("late"), spark.createDataFrame([("UA", 32)], FLIGHTS))
    given.push("flights", [{"carrier": "B6", "delay": 20}])
    given.run(late(given.stream("flights")), into="late")
    assert_df_equality(given.frame("late"), spark.createDataFrame([("UA", 31), ("B6", 20)], FLIGHTS))


def test_a_repeated_batch_shows_a_job_that_is_not_exactly_once(given: Topics) -> None:
    def counted(frame: DataFrame, batch: int) -> None:
        write = frame.write.format("jjq").mode("append").options(topic="counted", writerId="copy", batchId=batch)
        write.save(given.path)

    def not_counted(frame: DataFrame, batch: int) -> None:
        frame.write.format("jjq").mode("append").option("topic", "not_counted").save(given.path)

    for job, rows in ((counted, 2), (not_counted, 4)):
        for _ in range(2):
            given.run(given.stream("flights").writeStream.foreachBatch(job), name=job.__name__)
            given.repeat_last_batch(job.__name__)
        assert given.frame(job.__name__).count() == rows


def test_a_push_that_does_not_fit_pushes_nothing_and_makes_no_topic(given: Topics) -> None:
    with pytest.raises(SchemaMismatch, match="topic 'flights' has carrier string, delay int32"):
        given.push("flights", [{"carrier": "DL"}], schema="carrier int")
    with pytest.raises(InvalidArgument, match="retention"):
        given.push("flights", [{"carrier": "DL"}], retention="1 day")
    with pytest.raises(InvalidArgument, match="give their schema="):
        given.push("unseen", [{"carrier": "DL"}])
    assert [each.name for each in given.store.topics()] == ["flights"]
    given.push("flights", [{"carrier": "DL"}], schema=FLIGHTS)
    assert given.frame("flights").count() == 3


def test_options_and_settings_are_handed_on(given: Topics) -> None:
    given.push("raw", [b"a", b"b"], partitions=2)
    assert given.store.topic("raw").partitions == 2
    assert given.frame("raw", startingOffsets='{"raw":{"0":1,"1":-2}}', columns="value").count() == 1
    query = given.run(given.stream("raw", maxOffsetsPerTrigger=1), into="copy", partitions=3)
    assert given.store.topic("copy").partitions == 3
    assert query.lastProgress is not None
    assert query.lastProgress["batchId"] == 1


def test_what_a_query_fails_with_is_raised(given: Topics) -> None:
    with pytest.raises(StreamingQueryException, match="DIVIDE_BY_ZERO"):
        given.run(given.stream("flights").selectExpr("delay / (delay - 4) AS none"), into="out")


def test_what_is_missing_is_said(given: Topics) -> None:
    with pytest.raises(InvalidArgument, match="say into which topic"):
        given.run(given.stream("flights"))
    with pytest.raises(InvalidArgument, match="partitions are for a query without a sink"):
        given.run(given.stream("flights").writeStream.format("noop"), name="n", partitions=2)
    with pytest.raises(InvalidArgument, match="no query named 'n' has finished"):
        given.repeat_last_batch("n")


def test_a_store_of_its_own_goes_with_the_block(spark: SparkSession) -> None:
    with topics(spark) as made:
        made.push("t", [b"a"])
        assert made.frame("t").count() == 1
        assert Path(made.path).exists()
    assert not (Path(made.path) / "jjq.json").exists()


def test_it_needs_no_test_package_to_be_imported() -> None:
    told = "import sys, pyspark_jjq.testing; print(sorted({'chispa', 'pytest', 'pandas'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
