"""Files into a topic, exactly once: a directory of CSV, JSON or Parquet files, each file read one time.

    spark-submit --properties-file conf/spark-defaults.conf spark_jobs/ingest.py --store data/jjq \\
        --files data/nyc2013/flights --null NA --output departures --key carrier --checkpoint data/checkpoints/ingest

The topic's columns are those of the topic, where it is there already, else those of --schema, else what Spark infers
from the files that are there. The checkpoint knows which files were read, so that the next run takes new ones only; a
file that is changed after it was read is not read again. Move files into the directory when they are complete.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# Run as a file, a job has its own directory on the path and not the one above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from jjq.errors import StoreNotFound, TopicNotFound
from spark_jobs import csvfiles, running

# A line that is not as the schema says: stop, make its values null, or leave it out. Spark's own default is null.
MALFORMED = {"fail": "FAILFAST", "null": "PERMISSIVE", "drop": "DROPMALFORMED"}


def file_options(options: argparse.Namespace) -> dict[str, str]:
    if options.format == "parquet":
        return {}
    chosen = {"mode": MALFORMED[options.malformed]}
    if options.format == "csv":
        # The names in a file's first line must be the columns, in their order; Spark would go by the order alone.
        chosen |= {"header": "true", "enforceSchema": "false", "sep": options.separator, "nullValue": options.null}
    return chosen


def schema_of(spark: SparkSession, options: argparse.Namespace) -> StructType:
    """The columns to read; a stream of files must know them before the first. Raises Refused where it cannot."""
    if has_topic(options.store, options.output):
        running.find_topic(options.store, options.output, with_schema=True)
        there = spark.read.format("jjq").option("topic", options.output).load(str(options.store)).schema
        require_fits(options, there)
        return there
    if options.schema:
        given = StructType.fromDDL(options.schema)
        require_header(options, given.names, "--schema")
        return given
    nothing = running.Refused(f"{options.files} has no rows, so nothing says what the columns are: give --schema")
    if not any(options.files.iterdir()):
        raise nothing
    reader = spark.read.format(options.format).options(**file_options(options)).option("inferSchema", "true")
    found = reader.load(str(options.files))
    if options.format != "parquet" and found.isEmpty():  # of a first line alone each column would be text, for ever
        raise nothing
    return found.schema


def require_header(options: argparse.Namespace, columns: list[str], of: str) -> None:
    if options.format == "csv":
        csvfiles.require_header(options.files, options.separator, options.checkpoint, columns, of)


def require_fits(options: argparse.Namespace, there: StructType) -> None:
    """Raises Refused where --schema has columns that the topic has not, or of another type: they would be read as the topic's."""
    have = {field.name.lower(): field.dataType for field in there}
    for field in StructType.fromDDL(options.schema) if options.schema else ():
        if have.get(field.name.lower()) != field.dataType:
            raise running.Refused(
                f"--schema: {field.name} {field.dataType.simpleString()} is no column of topic {options.output!r}, which has "
                f"{there.simpleString()[7:-1]}: leave --schema out, or name another topic"
            )


def has_topic(store: Path, name: str) -> bool:
    try:
        running.find_topic(store, name)
    except (StoreNotFound, TopicNotFound):  # the sink makes both, the store in a new or an empty directory
        return False
    return True


def parser() -> argparse.ArgumentParser:
    parser = running.described("ingest.py", __doc__)
    running.add_store(parser)
    running.add_query(parser)
    parser.add_argument("--files", type=running.absolute, required=True, metavar="DIR", help="directory of the files")
    parser.add_argument("--format", choices=["csv", "json", "parquet"], default="csv", help="default: %(default)s")
    parser.add_argument("--output", type=running.topic_name, required=True, metavar="TOPIC", help="made if missing")
    parser.add_argument("--partitions", type=running.positive, default=1, help="of a topic that is made (default: 1)")
    parser.add_argument("--key", metavar="COLUMN", help="the column whose values are the records' keys")
    parser.add_argument(
        "--schema",
        metavar="DDL",
        help="columns of a new topic, such as 'carrier STRING, delay INT'; one that is there must have them",
    )
    parser.add_argument("--null", default="", metavar="TEXT", help="what stands for no value in CSV (default: empty)")
    parser.add_argument("--separator", default=",", metavar="CHAR", help="between values in CSV (default: ,)")
    parser.add_argument(
        "--malformed", choices=list(MALFORMED), default="fail",
        help="a line of CSV or JSON that does not fit: fail, make what does not fit null, drop it (default: fail)",
    )  # fmt: skip
    parser.add_argument(
        "--files-per-batch", type=running.positive, default=1000, metavar="N",
        help="so many a micro-batch, older ones first; 1 keeps the order of the files (default: %(default)s)",
    )  # fmt: skip
    return parser


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> None:
    options = parser().parse_args(argv)
    if not options.files.is_dir():
        raise running.Refused(f"--files: {options.files} is not a directory")
    if has_topic(options.store, options.output):
        topic = running.find_topic(options.store, options.output, with_schema=True)
        require_header(options, topic.schema.names, f"topic {topic.name!r}")
    with running.session("ingest", spark) as spark:
        schema = schema_of(spark, options)
        if options.key is not None and options.key not in schema.names:
            raise running.Refused(f"--key: there is no column {options.key!r}; there are {', '.join(schema.names)}")
        files = (
            spark.readStream.format(options.format)
            .schema(schema)
            .options(**file_options(options))
            .option("maxFilesPerTrigger", options.files_per_batch)
            .load(str(options.files))
        )
        writer = files.writeStream.format("jjq").option("path", str(options.store)).option("topic", options.output)
        if not has_topic(options.store, options.output):  # one that is there is used as it is
            writer = writer.option("partitions", options.partitions)
        if options.key is not None:
            writer = writer.option("keyColumn", options.key)
        running.run_query(writer, options, "ingest")


if __name__ == "__main__":
    sys.exit(running.run("ingest", main))
