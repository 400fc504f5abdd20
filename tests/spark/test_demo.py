"""The demo's job: what it computes, by hand on a few rows; and as a process that is killed, on two weeks of flights."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

from spark_jobs import delays, demo, nyc2013, reference
from spark_jobs.submit import Job, JobError

TEN = datetime(2013, 1, 1, 10, tzinfo=UTC)
UNTIL = datetime(2013, 1, 15, tzinfo=UTC)
ROWS_PER_BATCH = 3_100  # five micro-batches: the last has weather alone, and one without a row follows
JOB_SECONDS = 480


def test_flights_are_counted_by_the_hour_and_get_the_weather_of_their_airport(spark: SparkSession) -> None:
    flights = spark.createDataFrame(
        [
            (TEN, "EWR", 16),
            (TEN + timedelta(minutes=59), "EWR", 15),
            (TEN + timedelta(minutes=30), "EWR", None),
            (TEN + timedelta(minutes=60), "EWR", -4),
            (TEN, "LGA", None),
        ],
        "scheduled timestamp, origin string, dep_delay int",
    )
    weather = spark.createDataFrame(
        [(TEN, "EWR", 39.02, 12.65858, None, 0.0, 10.0), (TEN, "JFK", 39.02, 14.96014, None, 0.0, 10.0)],
        "time_hour timestamp, origin string, temp double, wind_speed double, wind_gust double, precip double, "
        "visib double",
    )
    expected = spark.createDataFrame(
        [
            (TEN, "EWR", 3, 1, 1, 31, 16, 15.5, 0.5, 39.02, 12.65858, None, 0.0, 10.0),
            (TEN, "LGA", 1, 1, 0, 0, None, None, None, None, None, None, None, None),
            (TEN + timedelta(hours=1), "EWR", 1, 0, 0, -4, -4, -4.0, 0.0, None, None, None, None, None),
        ],
        "hour timestamp, origin string, flights long, cancelled long, late long, delay_minutes long, max_delay int, "
        "mean_delay double, share_late double, temp double, wind_speed double, wind_gust double, precip double, "
        "visib double",
    )
    actual = delays.with_weather(delays.hourly_delays(flights, "2 hours"), weather, "2 hours")
    assert_df_equality(actual, expected, ignore_row_order=True, ignore_nullable=True)


@pytest.fixture
def place(tmp_path: Path) -> demo.Place:
    """Two weeks of flights and weather, pushed."""
    sources = nyc2013.find_sources()
    flights, weather = nyc2013.closed(
        nyc2013.read_flights(sources.flights, UNTIL), nyc2013.read_weather(sources.weather, UNTIL)
    )
    place = demo.Place.under(tmp_path / "run")
    demo.push(place, {"flights": flights, "weather": weather}, lambda *_: None)
    return place


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """Where the job's output goes; shown with a test that fails."""
    path = tmp_path / "job.log"
    yield path
    print(path.read_text())


@pytest.mark.slow
@pytest.mark.timeout(4 * JOB_SECONDS)
@pytest.mark.parametrize(
    "shares",
    # Flights must be left to read, also where a busy machine kills it a batch later: Spark forgets with a run how far each source was,
    # and where one has nothing more, the last windows stay open.
    [[0.25], pytest.param([0.0, 0.25], marks=pytest.mark.soak)],
    ids=["amid it", "at once and amid it"],
)
def test_a_job_killed_and_started_again_writes_what_pandas_computes(
    spark: SparkSession, place: demo.Place, log: Path, shares: list[float]
) -> None:
    sources = nyc2013.find_sources()
    rows = len(reference.hourly_delays(sources.flights, sources.weather, UNTIL))

    # Each time as soon as so many rows are there: before the checkpoint counts what the log has.
    for share in shares:
        least = max(1, int(rows * share))
        found, in_log, counted = demo.run_killed(place, ROWS_PER_BATCH, least, log)
        assert found >= least
        # The log is never behind the checkpoint, and at most one micro-batch ahead of it.
        assert 0 <= in_log - counted <= 1

    with Job(place.store, place.checkpoint, ROWS_PER_BATCH, log) as job:
        assert job.wait(JOB_SECONDS).batches >= 1

    # Through the library first, to the bit: its message names the rows that differ. Then as Spark reads it.
    written = demo.result(place)
    wanted = demo.expected(sources, UNTIL, written.schema)
    demo.require_same(written, wanted, "Spark's result against pandas'")
    actual = spark.read.format("jjq").option("path", str(place.store)).option("topic", "delays").load()
    assert_df_equality(actual, spark.createDataFrame(wanted), ignore_row_order=True, ignore_nullable=True)

    # All windows are written and nothing is new, so another run adds nothing, be it in another Spark.
    again = ["--store", str(place.store), "--checkpoint", str(place.checkpoint), "--rows", str(ROWS_PER_BATCH)]
    delays.main(again, spark)
    demo.require_same(demo.result(place), written, "after another run")
    demo.require_whole(place)


@pytest.mark.timeout(JOB_SECONDS)
def test_a_job_that_fails_says_so_and_leaves_no_process(tmp_path: Path, log: Path) -> None:
    with (
        Job(tmp_path / "no store", tmp_path / "checkpoint", ROWS_PER_BATCH, log) as job,
        pytest.raises(JobError, match="failed with exit code 1"),
    ):
        job.wait(JOB_SECONDS)
    assert "no store" in log.read_text()
