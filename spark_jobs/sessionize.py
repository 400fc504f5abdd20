"""Sessions: the records of each key that follow one another without a long pause, as one record each.

    spark-submit --properties-file conf/spark-defaults.conf spark_jobs/sessionize.py --store data/jjq \\
        --topic departures --time time_hour --key tailnum --gap "12 hours" --watermark "2 days" --sum distance \\
        --output duties --checkpoint data/checkpoints/sessionize

A session of a key ends when for --gap nothing of that key has come. It is written once, when the topic has gone past
its end by --watermark, the time by which records may be late; a record that is later than that is dropped. So the
sessions at the end of a topic are open until later records, of whatever key, say that time has passed. Records
without a key or a time are in no session.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# Run as a file, a job has its own directory on the path and not the one above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documentation uses

from spark_jobs import running


def sessions(records: DataFrame, time: str, key: str, gap: str, watermark: str, sums: Sequence[str]) -> DataFrame:
    """One row a session: the key under its own name, first (the first record's time), until (the last one's time and
    the gap), records, and sum_COLUMN for each of `sums`."""
    # The condition names the time so that Spark does not pull it in front of the watermark: a record without a key
    # belongs to no session, and yet says that time has passed.
    has_key = F.col(key).isNotNull() | F.col(time).isNull()
    return (
        records.withWatermark(time, watermark)
        .where(has_key)
        .groupBy(F.session_window(time, gap).alias("session"), key)
        .agg(F.count("*").alias("records"), *[F.sum(name).alias(f"sum_{name}") for name in sums])
        .select(
            key,
            F.col("session.start").alias("first"),
            F.col("session.end").alias("until"),
            "records",
            *[f"sum_{name}" for name in sums],
        )
    )


def parser() -> argparse.ArgumentParser:
    parser = running.described("sessionize.py", __doc__)
    running.add_store(parser)
    running.add_query(parser)
    parser.add_argument("--topic", required=True, help="the topic to read; it has a schema")
    parser.add_argument(
        "--time", required=True, metavar="COLUMN", help="when a record happened: a column of timestamps"
    )
    parser.add_argument("--key", required=True, metavar="COLUMN", help="whose sessions")
    parser.add_argument("--gap", default="30 minutes", help="the pause that ends a session (default: %(default)s)")
    parser.add_argument("--watermark", default="1 hour", help="how late a record may come (default: %(default)s)")
    parser.add_argument(
        "--sum", action="append", default=[], metavar="COLUMN", dest="sums", help="a column to add up; may be repeated"
    )
    parser.add_argument("--output", type=running.topic_name, required=True, metavar="TOPIC", help="made if missing")
    running.add_reading(parser)
    return parser


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> None:
    options = parser().parse_args(argv)
    topic = running.find_topic(options.store, options.topic, with_schema=True)
    running.require_columns(topic, time=options.time, key=options.key)
    for name in options.sums:
        running.require_columns(topic, sum=name)
    if not pa.types.is_timestamp(topic.schema.field(options.time).type):
        kind = topic.schema.field(options.time).type
        raise running.Refused(f"--time: column {options.time!r} is {kind}, and must be a timestamp")
    columns = list(dict.fromkeys([options.time, options.key, *options.sums]))
    with running.session("sessionize", spark) as spark:
        records = running.read_topic(
            spark, options.store, options.topic, columns, options.rows, skip_lost=options.skip_lost
        )
        found = sessions(records, options.time, options.key, options.gap, options.watermark, options.sums)
        writer = found.writeStream.format("jjq").outputMode("append").option("path", str(options.store))
        running.run_query(
            writer.option("topic", options.output).option("keyColumn", options.key), options, "sessionize"
        )


if __name__ == "__main__":
    sys.exit(running.run("sessionize", main))
