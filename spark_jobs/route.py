"""Enrich and route: the records of one topic, with what a dimension knows of them, to several topics at once.

    spark-submit --properties-file conf/spark-defaults.conf spark_jobs/route.py --store data/jjq \\
        --topic departures --dimension data/nyc2013/airlines.csv --on carrier --key tailnum \\
        --to late="dep_delay > 15" --to cancelled="dep_time IS NULL" --else punctual \\
        --checkpoint data/checkpoints/route

A record goes to every topic whose condition holds, as JSON of its columns and those of the dimension; to the topic of
--else where none holds, and nowhere without one. A micro-batch reaches all of its topics in one transaction, so no
reader finds a record in one of them and its companion not yet in the other. The dimension is a file with a header, or
a topic of which the newest record of each key counts. A file is read with each micro-batch, a topic at the start.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# Run as a file, a job has its own directory on the path and not the one above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documentation uses

from spark_jobs import running


def route(text: str) -> tuple[str, str]:
    topic, condition = running.pair(text)
    return running.topic_name(topic), condition


def routed(rows: DataFrame, routes: Sequence[tuple[str, str]], otherwise: str | None, key: str | None) -> DataFrame:
    """Rows for the sink: topic, key, value. `routes` are (topic, SQL condition) pairs; a null condition does not hold, and
    of a topic that is there twice one that holds is enough."""
    columns = rows.columns
    chosen = F.array(*[F.when(F.expr(condition), F.lit(topic)) for topic, condition in routes])
    matching = F.array_distinct(F.array_compact(chosen))
    if otherwise is not None:
        matching = F.when(F.size(matching) == 0, F.array(F.lit(otherwise))).otherwise(matching)
    return rows.select(
        F.explode(matching).alias("topic"),
        (F.col(key).cast("string") if key else F.lit(None).cast("string")).alias("key"),
        F.to_json(F.struct(*[F.col(f"`{name}`") for name in columns])).alias("value"),
    )


def dimension(spark: SparkSession, options: argparse.Namespace) -> DataFrame | None:
    """The table to join, each value of --on once: one that is there twice would make two records of one."""
    if options.dimension_topic is not None:
        reader = spark.read.format("jjq").option("topic", options.dimension_topic)
        records = reader.option("metadata", "_timestamp,_partition,_offset").load(str(options.store))
        require_shared(options.on, records)
        newest = F.max_by(F.struct("*"), F.struct("_timestamp", "_partition", "_offset")).alias("newest")
        return records.groupBy(options.on).agg(newest).select("newest.*").drop("_timestamp", "_partition", "_offset")
    if options.dimension is None:
        return None
    reader = spark.read.option("header", "true").option("inferSchema", "true")
    table = reader.format(options.dimension.suffix.lstrip(".") or "parquet").load(str(options.dimension))
    require_shared(options.on, table)
    repeated = table.groupBy(options.on).count().where("count > 1").first()
    if repeated is not None:
        raise running.Refused(f"--dimension: {options.on} = {repeated[0]!r} is there {repeated[1]} times")
    return table


def require_shared(column: str, table: DataFrame) -> None:
    if column not in table.columns:
        raise running.Refused(f"--on: the dimension has no column {column!r}; it has {', '.join(table.columns)}")


def joined(rows: DataFrame, table: DataFrame | None, on: str | None) -> DataFrame:
    """Every row once, with the dimension's other columns, null where it does not know the key."""
    if table is None:
        return rows
    both = sorted((set(rows.columns) & set(table.columns)) - {on})
    if both:
        raise running.Refused(f"topic and dimension both have {', '.join(both)}: rename it in one of them")
    return rows.join(F.broadcast(table), on, "left")


def parser() -> argparse.ArgumentParser:
    parser = running.described("route.py", __doc__)
    running.add_store(parser)
    running.add_query(parser)
    parser.add_argument("--topic", required=True, help="the topic to read; it has a schema")
    parser.add_argument(
        "--to", type=route, action="append", required=True, metavar="TOPIC=CONDITION", dest="routes",
        help="a topic, made if missing, and in SQL which records go there; repeat it for each topic",
    )  # fmt: skip
    parser.add_argument("--else", type=running.topic_name, dest="otherwise", metavar="TOPIC", help="for all others")
    tables = parser.add_mutually_exclusive_group()
    tables.add_argument(
        "--dimension",
        type=running.absolute,
        metavar="FILE",
        help="a table to join: .csv with a header, .json, .parquet",
    )
    tables.add_argument("--dimension-topic", metavar="TOPIC", help="a topic with a schema to join, its newest records")
    parser.add_argument("--on", metavar="COLUMN", help="the column that topic and dimension share")
    parser.add_argument("--key", metavar="COLUMN", help="the column whose text is the key of what is written")
    running.add_reading(parser)
    return parser


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> None:
    options = parser().parse_args(argv)
    has_table = options.dimension is not None or options.dimension_topic is not None
    if has_table != (options.on is not None):
        raise running.Refused("--on and one of --dimension and --dimension-topic go together")
    if options.dimension is not None and not options.dimension.exists():
        raise running.Refused(f"--dimension: {options.dimension} does not exist")
    topic = running.find_topic(options.store, options.topic, with_schema=True)
    if options.dimension_topic is not None:
        running.find_topic(options.store, options.dimension_topic, with_schema=True)
    running.require_columns(topic, on=options.on)
    for name in [*(name for name, _ in options.routes), *([] if options.otherwise is None else [options.otherwise])]:
        running.require_values(options.store, name)
    with running.session("route", spark) as spark:
        records = running.read_topic(
            spark, options.store, options.topic, rows_per_batch=options.rows, skip_lost=options.skip_lost
        )
        rows = joined(records, dimension(spark, options), options.on)
        if options.key is not None and options.key not in rows.columns:
            raise running.Refused(f"--key: there is no column {options.key!r}; there are {', '.join(rows.columns)}")
        writer = routed(rows, options.routes, options.otherwise, options.key).writeStream.format("jjq")
        running.run_query(writer.option("path", str(options.store)), options, "route")


if __name__ == "__main__":
    sys.exit(running.run("route", main))
