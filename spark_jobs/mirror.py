"""Mirror a topic between Kafka and jjq, in either direction.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \\
        --properties-file conf/spark-defaults.conf spark_jobs/mirror.py from-kafka --bootstrap-servers localhost:9092 \\
        --topic orders --store data/jjq --output orders --checkpoint data/checkpoints/from-kafka

The connector's version is that of Spark. When this was written there was one for Spark 4.2, and none yet for 4.3.

Into jjq exactly once: each micro-batch is committed with its number. Of Kafka's transactions only what was committed
is read. Into Kafka at least once: Spark's sink there knows no transactions, so a micro-batch that is done again after
a failure is there twice. With --position each record carries its place in the jjq topic as a header, by which a
consumer can drop what it has seen. Keys, values and headers are kept both ways. Times are kept into jjq, where the
topic's times are the producer's, as those of a topic made by this job are; Kafka's sink gives records the time of
writing. Do not mirror a topic both ways at once: each direction would bring back what the other has written.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

# Run as a file, a job has its own directory on the path and not the one above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documentation uses

import jjq
from spark_jobs import running

HEADERS = "array<struct<key:string,value:binary>>"
POSITION = "jjq-position"
METADATA = ["_partition", "_offset", "_key", "_headers"]


def to_topic(records: DataFrame, keep_partitions: bool) -> DataFrame:
    """Rows of Kafka's source as the sink takes them. Without `partition` the key chooses one anew."""
    kept = ["key", "value", "headers", "timestamp", *(["partition"] if keep_partitions else [])]
    return records.select(*kept)


def to_kafka(records: DataFrame, keep_partitions: bool, position: bool) -> DataFrame:
    """Rows of a topic as Kafka's sink takes them: those of a topic with a schema as JSON, with METADATA beside them."""
    own = "_offset" in records.columns
    names = {name: f"_{name}" if own else name for name in ("key", "headers", "partition", "offset")}
    value = F.col("value")
    if own:
        value = F.to_json(F.struct(*[F.col(f"`{name}`") for name in records.columns if name not in METADATA]))
    headers = F.col(names["headers"])
    if position:
        headers = F.concat(F.coalesce(headers, F.array().cast(HEADERS)), _position(names["partition"], names["offset"]))
    columns = [F.col(names["key"]).alias("key"), value.alias("value"), headers.cast(HEADERS).alias("headers")]
    if keep_partitions:
        columns.append(F.col(names["partition"]).alias("partition"))
    return records.select(*columns)


def _position(partition: str, offset: str) -> Column:
    """One header, `jjq-position: PARTITION:OFFSET`."""
    place = F.concat_ws(":", partition, offset).cast("binary")
    return F.array(F.struct(F.lit(POSITION).alias("key"), place.alias("value")))


def require_kafka(spark: SparkSession) -> None:
    """Raises Refused, with what to type, where Spark was started without its Kafka connector."""
    try:
        spark.read.format("kafka").load()
    except AnalysisException as error:
        # Spark 4.2 has no name for it.
        if error.getCondition() == "KAFKA_DATA_SOURCE_NOT_ENABLED" or "Failed to find data source: kafka" in str(error):
            raise running.Refused(
                "Spark was started without its connector for Kafka, which does not come with it: add\n"
                f"    --packages org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}\n"
                "to spark-submit, in front of the job's name. Where there is none yet of that version, run this job with an\n"
                "earlier Spark: pip install 'pyspark[sql]==4.2.*' in an environment of its own, beside jjq"
            ) from None
    except (PySparkException, OSError):
        pass  # it is there, and says that no topic was named


def made_topic(options: argparse.Namespace) -> jjq.Topic:
    """The topic to write to, made with the producer's times where it is missing. Raises Refused where it does not do."""
    with jjq.open(options.store) as store:
        with contextlib.suppress(jjq.TopicExists):
            store.create_topic(options.output, partitions=options.partitions, timestamps="producer")
        topic = store.topic(options.output)
    if topic.schema is not None:
        raise running.Refused(
            f"topic {topic.name!r} has a schema, and Kafka's records are bytes: name another --output"
        )
    if topic.config.timestamps != "producer":
        print(f"mirror: topic {topic.name!r} has the broker's times, so Kafka's are not kept", file=sys.stderr)
    return topic


def from_kafka(options: argparse.Namespace, spark: SparkSession) -> None:
    settings = {"kafka.isolation.level": "read_committed", **dict(options.kafka)}
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", options.bootstrap_servers)
    reader = reader.options(**settings).option("subscribe", options.topic).option("includeHeaders", "true")
    reader = reader.option("startingOffsets", options.starting)
    if options.rows is not None:
        reader = reader.option("maxOffsetsPerTrigger", options.rows)
    rows = to_topic(reader.load(), options.keep_partitions)
    made_topic(options)
    writer = rows.writeStream.format("jjq").option("path", str(options.store)).option("topic", options.output)
    running.run_query(writer, options, "from-kafka")


def into_kafka(options: argparse.Namespace, spark: SparkSession) -> None:
    topic = running.find_topic(options.store, options.topic)
    metadata = METADATA if topic.schema is not None else []
    records = running.read_topic(
        spark,
        options.store,
        options.topic,
        rows_per_batch=options.rows,
        metadata=metadata,
        headers=not metadata,
        skip_lost=options.skip_lost,
    )
    rows = to_kafka(records, options.keep_partitions, options.position)
    writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", options.bootstrap_servers)
    writer = writer.options(**dict(options.kafka)).option("includeHeaders", "true").option("topic", options.output)
    running.run_query(writer, options, "to-kafka")


def parser() -> argparse.ArgumentParser:
    parser = running.described("mirror.py", __doc__)
    directions = parser.add_subparsers(required=True, metavar="from-kafka|to-kafka", dest="direction")
    for name, doc, job in (
        ("from-kafka", "A topic of Kafka into a topic of jjq, exactly once.", from_kafka),
        ("to-kafka", "A topic of jjq into a topic of Kafka, at least once.", into_kafka),
    ):
        one = directions.add_parser(name, help=doc, description=doc)
        running.add_store(one)
        running.add_query(one)
        one.set_defaults(job=job)
        one.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,...", help="Kafka's brokers")
        one.add_argument(
            "--kafka", type=running.pair, action="append", default=[], metavar="NAME=VALUE",
            help="an option of Spark's Kafka connector, such as kafka.security.protocol=SASL_SSL; may be repeated",
        )  # fmt: skip
        one.add_argument("--topic", required=True, help="the topic to read")
        one.add_argument("--output", required=True, metavar="TOPIC", help="the topic to write")
        one.add_argument("--keep-partitions", action="store_true", help="write each record to the partition it is in")
        if job is from_kafka:
            running.add_rows(one)
            one.add_argument(
                "--partitions", type=running.positive, default=1, help="of a topic that is made (default: 1)"
            )
            one.add_argument(
                "--starting",
                choices=["earliest", "latest"],
                default="earliest",
                help="a first run (default: %(default)s)",
            )
        else:
            running.add_reading(one)
            one.add_argument("--position", action="store_true", help=f"add the header {POSITION}: PARTITION:OFFSET")
    return parser


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> None:
    options = parser().parse_args(argv)
    with running.session("mirror", spark) as spark:
        require_kafka(spark)
        options.job(options, spark)


if __name__ == "__main__":
    sys.exit(running.run("mirror", main))
