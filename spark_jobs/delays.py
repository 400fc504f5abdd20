"""Departure delays by airport and hour, with the weather of that hour: two jjq topics in, one out, exactly once.

    spark-submit --properties-file conf/spark-delays.conf spark_jobs/delays.py --store data/jjq --checkpoint data/delays

Reads `flights` and `weather` as streams, counts flights in one-hour windows under a watermark, joins each finished
window with the weather of the same airport and hour, and appends it to `delays`. A window is finished when both
topics have gone past its end by the watermark's delay; what arrives for it later than that is dropped. The job takes
what is there and ends. Started again with the same checkpoint it goes on where it was, however it was stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

# Run as a file, a job has its own directory on the path and not the one above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documentation uses

from spark_jobs.running import follow, read_topic, session

FLIGHT_COLUMNS = ["scheduled", "origin", "dep_delay"]
WEATHER_COLUMNS = ["time_hour", "origin", "temp", "wind_speed", "wind_gust", "precip", "visib"]
LATE_MINUTES = 15  # a flight counts as late when it leaves more than this after its time, as airlines' statistics do


def hourly_delays(flights: DataFrame, watermark: str) -> DataFrame:
    """One row an airport and hour of scheduled departure. Sums of integers only, so that any order of arrival and any
    split into batches gives the same bits; a flight without `dep_delay` never left."""
    late = F.col("dep_delay") > LATE_MINUTES
    return (
        flights.withWatermark("scheduled", watermark)
        .groupBy(F.window("scheduled", "1 hour"), "origin")
        .agg(
            F.count("*").alias("flights"),
            F.count_if(F.col("dep_delay").isNull()).alias("cancelled"),
            F.count_if(late).alias("late"),
            F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("delay_minutes"),
            F.max("dep_delay").alias("max_delay"),
        )
    )


def with_weather(delays: DataFrame, weather: DataFrame, watermark: str) -> DataFrame:
    """Adds the weather of the same hour, nulls where the station has none, and the means, computed last."""
    by_window = weather.withWatermark("time_hour", watermark).withColumn("window", F.window("time_hour", "1 hour"))
    departed = F.col("flights") - F.col("cancelled")
    return delays.join(by_window, ["window", "origin"], "left").select(
        F.col("window.start").alias("hour"),
        "origin",
        *["flights", "cancelled", "late", "delay_minutes", "max_delay"],
        F.try_divide("delay_minutes", departed).alias("mean_delay"),
        F.try_divide("late", departed).alias("share_late"),
        *WEATHER_COLUMNS[2:],
    )


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True, help="store directory with the topics")
    parser.add_argument("--checkpoint", required=True, help="directory of the query's checkpoint")
    parser.add_argument("--flights", default="flights", help="topic to read (default: %(default)s)")
    parser.add_argument("--weather", default="weather", help="topic to read (default: %(default)s)")
    parser.add_argument("--output", default="delays", help="topic to write, made if missing (default: %(default)s)")
    parser.add_argument("--watermark", default="2 hours", help="how late a record may come (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=30_000, help="flights a micro-batch (default: %(default)s)")
    parser.add_argument("--report", type=Path, help="write the run's figures to this file, as JSON")
    options = parser.parse_args(argv)

    with session("delays", spark) as spark:
        # There are 13 flights an hour of weather; in step, the join keeps no more than a batch of either waiting.
        flights = read_topic(spark, options.store, options.flights, FLIGHT_COLUMNS, options.rows)
        weather = read_topic(spark, options.store, options.weather, WEATHER_COLUMNS, max(1, options.rows // 13))
        delays = with_weather(hourly_delays(flights, options.watermark), weather, options.watermark)

        began = time.monotonic()
        query = (
            delays.writeStream.format("jjq")
            .option("path", options.store)
            .option("topic", options.output)
            .option("checkpointLocation", options.checkpoint)
            .outputMode("append")
            .queryName("delays")
            .trigger(availableNow=True)
            .start()
        )
        batches, rows = follow(query)
        figures = {"batches": batches, "rows": rows, "seconds": round(time.monotonic() - began, 3)}
        if options.report:
            options.report.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
