"""A batch read of a hundredth of a topic, by time and by a filter, beside a read of the whole."""

from __future__ import annotations

import datetime as dt
import functools

import pyarrow as pa
from pyspark.sql import DataFrame

from tests.bench.run import Run, seconds
from tests.bench.spark_session import place, session
from tests.bench.table import Row, at_most

ROUNDS = 5
PARTS = 100
FIRST = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
EACH = dt.timedelta(hours=1)
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("number", pa.int64()), ("text", pa.string())])


def hour(number: int, rows: int) -> pa.Table:
    """The rows of one hour, about 100 B each, the numbers going on from the hour before."""
    numbers = pa.array(range(number * rows, (number + 1) * rows), pa.int64())
    begin = int((FIRST + number * EACH).timestamp() * 1e6)
    step = EACH // dt.timedelta(microseconds=1) // rows
    times = pa.array(range(begin, begin + rows * step, step), pa.timestamp("us", "UTC"))
    return pa.Table.from_arrays([times, numbers, texts(rows)], schema=SCHEMA)


@functools.cache
def texts(rows: int) -> pa.Array:
    return pa.array([f"{i:084d}" for i in range(rows)])


def part(run: Run) -> list[Row]:
    each = run.amount(400_000, 50)
    middle = PARTS // 2
    since, until = FIRST + middle * EACH, FIRST + (middle + 1) * EACH
    with place(run) as here:
        topic = here.store.create_topic("parts", schema=SCHEMA, timestamps="producer")
        for number in range(PARTS):
            topic.push_table(hour(number, each), timestamp="at", writer_id="fill", batch_id=number)
        session().conf.set(PUSHDOWN, "true")
        times = {"startingTimestamp": since.isoformat(), "endingTimestamp": until.isoformat()}
        wanted = f"number >= {middle * each} and number < {(middle + 1) * each}"

        def by_filter() -> DataFrame:
            return here.read("parts", pushDownPredicate=True).where(wanted)

        assert here.read("parts", **times).count() == by_filter().count() == each
        assert by_filter().selectExpr("min(number)", "max(number)").first() == (middle * each, (middle + 1) * each - 1)
        figures = run.interleave(
            {
                "time": lambda: seconds(lambda: drop(here.read("parts", **times))),
                "filter": lambda: seconds(lambda: drop(by_filter())),
                "whole": lambda: seconds(lambda: drop(here.read("parts"))),
            },
            ROUNDS,
        )
        session().conf.unset(PUSHDOWN)
    return [
        Row("Spark batch read, 1 % of the time", "the whole", "s", figures["time"], figures["whole"], at_most(1 / 20)),
        Row("Spark batch read, a filter of a column for 1 %", "the whole", "s", figures["filter"], figures["whole"],
            at_most(1 / 20)),
    ]  # fmt: skip


def drop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()
