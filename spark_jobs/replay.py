"""Replay a range of time of one topic into another, once.

    spark-submit --properties-file conf/spark-defaults.conf spark_jobs/replay.py --store data/jjq \\
        --topic departures --since 2013-01-01T00:00:00Z --where "origin = 'JFK'" --output departures-again

Reads the records whose time is at or after --since and before --until: the time at which they were pushed, or the
producer's where the topic keeps that. Each bound is ISO-8601 with a zone, or relative: "-10 minutes".

Of a topic without a schema key, value, headers and partition are kept, and the time where the topic that is written
keeps the producer's, as one made by this job does. Of a topic with a schema its columns are, and the key where --key
names the column it comes from; what is written has the time of writing and no headers.

All rows come in one commit or none does. With --name a replay is counted once: the same name again adds nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

# Run as a file, a job has its own directory on the path and not the one above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import DataFrame, SparkSession

import jjq
from jjq.values import counted
from spark_jobs import running


def require_alike(topic: jjq.Topic, like: jjq.Topic) -> None:
    """Raises Refused where rows of `like` do not fit the topic."""
    if (topic.schema is None) != (like.schema is None):
        have, lack = (topic, like) if like.schema is None else (like, topic)
        raise running.Refused(f"topic {have.name!r} has a schema and {lack.name!r} has none: name another --output")


def made_topic(store: Path, name: str, like: jjq.Topic, keep_times: bool) -> jjq.Topic:
    """The topic to write, made as `like` where it is missing. Raises Refused where rows of `like` do not fit."""
    times = {"timestamps": "producer"} if keep_times else {}
    with jjq.open(store) as opened:
        with contextlib.suppress(jjq.TopicExists):
            opened.create_topic(name, partitions=like.partitions, schema=like.schema, **times)
        topic = opened.topic(name)
    require_alike(topic, like)
    return topic


def records(spark: SparkSession, options: argparse.Namespace, headers: bool) -> DataFrame:
    reader = spark.read.format("jjq").option("topic", options.topic)
    if headers:
        reader = reader.option("includeHeaders", "true")
    if options.since is not None:
        reader = reader.option("startingTimestamp", options.since)
        # A range that begins after the last record is empty, and no mistake.
        reader = reader.option("startingOffsetsByTimestampStrategy", "latest")
    if options.until is not None:
        reader = reader.option("endingTimestamp", options.until)
    rows = reader.load(str(options.store))
    return rows.where(options.where) if options.where else rows


def parser() -> argparse.ArgumentParser:
    parser = running.described("replay.py", __doc__)
    running.add_store(parser)
    parser.add_argument("--topic", required=True, help="the topic to read")
    parser.add_argument(
        "--since", type=running.instant, metavar="TIME", help="the first time (default: the topic's beginning)"
    )
    parser.add_argument(
        "--until",
        type=running.instant,
        metavar="TIME",
        help="the first time that is not replayed (default: the topic's end)",
    )
    parser.add_argument("--where", metavar="CONDITION", help="in SQL: which of these records")
    parser.add_argument("--output", type=running.topic_name, required=True, metavar="TOPIC", help="made if missing")
    parser.add_argument("--key", metavar="COLUMN", help="of a topic with a schema: the column that is the key")
    parser.add_argument("--name", metavar="NAME", help="of this replay: done once, however often it is called")
    return parser


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> None:
    options = parser().parse_args(argv)
    if options.output == options.topic:
        raise running.Refused("--output is --topic: a replay into the same topic would add to its own history")
    source = running.find_topic(options.store, options.topic)
    plain = source.schema is None
    if options.key is not None:
        if plain:
            raise running.Refused(f"--key: topic {source.name!r} has no schema, and its keys are kept; leave it out")
        running.require_columns(source, key=options.key)
    with contextlib.suppress(jjq.TopicNotFound):
        require_alike(running.find_topic(options.store, options.output), source)
    with running.session("replay", spark) as spark:
        rows = records(spark, options, headers=plain)  # which Spark may refuse, before a topic is made for them
        target = made_topic(options.store, options.output, source, keep_times=plain)
        if plain:
            # A topic with other partitions gives each key its own anew.
            rows = rows.drop("topic", *(["partition"] if target.partitions != source.partitions else []))
        before = target_rows(options)
        writer = rows.write.format("jjq").mode("append").option("topic", options.output)
        if options.key is not None:
            writer = writer.option("keyColumn", options.key)
        if options.name is not None:
            writer = writer.option("writerId", options.name).option("batchId", 0)
        writer.save(str(options.store))
    print(f"replay: {counted(target_rows(options) - before, 'row')} more in {options.output}")


def target_rows(options: argparse.Namespace) -> int:
    """How many records the output has had, ever."""
    with jjq.open(options.store, read_only=True) as store:
        return sum(each.end for each in store.topic(options.output).offsets())


if __name__ == "__main__":
    sys.exit(running.run("replay", main))
