"""Archive a topic to Parquet or Delta files, a directory for each date, only what is new since the last run.

    spark-submit --properties-file conf/spark-defaults.conf spark_jobs/archive.py --store data/jjq \\
        --topic departures --time time_hour --output data/archive/departures --checkpoint data/checkpoints/archive

Run it every hour or night: it takes what is there, and goes on from there the next time. The date is that of --time
in Spark's time zone, UTC with conf/spark-defaults.conf; without --time, of the record's own time. A topic with a
schema is written with its columns and _partition, _offset, _timestamp; one without as Spark reads it: key, value,
topic, partition, offset, timestamp, headers.

Each record is in the archive once, as Spark and Delta read it. Other programs that list Parquet files themselves see
a file that a failed task left, too; for those keep to one line a (_partition, _offset).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# Run as a file, a job has its own directory on the path and not the one above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documentation uses

import jjq
from spark_jobs import running

METADATA = ["_partition", "_offset", "_timestamp"]
DELTA = "io.delta.sql.DeltaSparkSessionExtension"


def dated(records: DataFrame, time: str, date: str) -> DataFrame:
    """The records with the date of a time; where there is no time, Spark's directory for null."""
    if date in records.columns:
        raise running.Refused(
            f"--date: the topic has a column {date!r} already; choose another name for the directories"
        )
    return records.withColumn(date, F.to_date(F.col(f"`{time}`")))


def time_column(topic: jjq.Topic, wanted: str | None) -> str:
    """The column whose date counts. Raises Refused where it has none."""
    if wanted is None:
        return "_timestamp" if topic.schema is not None else "timestamp"
    if topic.schema is None:
        raise running.Refused(
            f"--time: topic {topic.name!r} has no schema, so the record's own time counts; leave it out"
        )
    running.require_columns(topic, time=wanted)
    kind = topic.schema.field(wanted).type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise running.Refused(f"--time: column {wanted!r} is {kind}, and must be a timestamp or a date")
    return wanted


def require_delta(spark: SparkSession) -> None:
    """Raises Refused, with what to type, where Spark was started without Delta."""
    try:
        spark.read.format("delta").load()
    except (PySparkException, Py4JJavaError) as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            raise running.Refused(
                "Spark was started without Delta, which does not come with it: add to spark-submit\n"
                "    --packages io.delta:delta-spark_2.13:VERSION    (the one that is made for Spark "
                f"{spark.version})\n"
                f"    --conf spark.sql.extensions={DELTA}\n"
                "    --conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
            ) from None


def require_own(spark: SparkSession, output: str, checkpoint: str) -> None:
    """Raises Refused where files were archived that this checkpoint knows nothing of. Spark's sink goes by the number of
    the micro-batch alone: it would take the first ones of a new query for those that are there, and leave them out."""
    try:
        there, known = last_number(spark, f"{output}/_spark_metadata"), last_number(spark, f"{checkpoint}/offsets")
    except Py4JJavaError as error:  # such as a URI that Spark has no file system for
        raise running.Refused(f"--output, --checkpoint: {error.java_exception.getMessage()}") from None
    if there > known:
        raise running.Refused(
            f"--output: {output} was written up to micro-batch {there} by a query whose checkpoint is another than "
            f"{checkpoint}; name that checkpoint, or another --output"
        )


def last_number(spark: SparkSession, directory: str) -> int:
    """The highest micro-batch that one of Spark's logs has a file for, `7` or `9.compact`; -1 where there is none."""
    java = spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
    path = java.Path(directory)
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    names = [each.getPath().getName() for each in files.listStatus(path)] if files.exists(path) else []
    return max((int(number) for name in names if (number := name.removesuffix(".compact")).isdigit()), default=-1)


def parser() -> argparse.ArgumentParser:
    parser = running.described("archive.py", __doc__)
    running.add_store(parser)
    running.add_query(parser)
    parser.add_argument("--topic", required=True, help="the topic to read")
    parser.add_argument(
        "--output", type=running.place, required=True, metavar="DIR", help="directory of the archive, or its URI"
    )
    parser.add_argument("--format", choices=["parquet", "delta"], default="parquet", help="default: %(default)s")
    parser.add_argument("--time", metavar="COLUMN", help="whose date counts (default: the record's own time)")
    parser.add_argument(
        "--date", default="date", metavar="NAME", help="of the directories' column (default: %(default)s)"
    )
    running.add_reading(parser)
    return parser


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> None:
    options = parser().parse_args(argv)
    topic = running.find_topic(options.store, options.topic)
    time = time_column(topic, options.time)
    metadata = METADATA if topic.schema is not None else []
    with running.session("archive", spark) as spark:
        if options.format == "delta":
            require_delta(spark)
        else:
            require_own(spark, options.output, options.checkpoint)
        records = running.read_topic(
            spark,
            options.store,
            options.topic,
            rows_per_batch=options.rows,
            metadata=metadata,
            headers=not metadata,
            skip_lost=options.skip_lost,
        )
        # One task a date, so that a run leaves one file a date and not one for each of its tasks.
        rows = dated(records, time, options.date).repartition(options.date)
        writer = rows.writeStream.format(options.format).partitionBy(options.date).option("path", options.output)
        running.run_query(writer, options, "archive")


if __name__ == "__main__":
    sys.exit(running.run("archive", main))
