"""What the Spark benchmarks share: one session, topics of a known shape, and runs of a DataFrame or stream to its end."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import jjq
from tests.bench.run import Run, rate
from tests.bench.spark_limits import FilesSource, MemorySource, NullSink

# As in conf/spark-defaults.conf: without it half of a micro-batch's time is Spark forking chmod for its checkpoint.
CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


@functools.cache
def session() -> SparkSession:
    """Spark on two cores, with the API's limits registered as `memory_limit`, `files_limit` and `null_limit`."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.checkpointFileManagerClass", CHECKPOINT_FILES)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(MemorySource)
    spark.dataSource.register(FilesSource)
    spark.dataSource.register(NullSink)
    return spark


def memory(rows: int, **options: Any) -> DataFrame:
    return session().read.format("memory_limit").options(rows=rows, **options).load()


def files(directory: Path) -> DataFrame:
    return session().read.format("files_limit").load(str(directory))


def memory_stream(rows: int, **options: Any) -> DataFrame:
    return session().readStream.format("memory_limit").options(rows=rows, **options).load()


class Place:
    """A store in a directory of the run, and room for checkpoints beside it."""

    def __init__(self, directory: Path, store: jjq.Store) -> None:
        self.directory, self.store = directory, store

    def topic(self, name: str, rows: int, value_bytes: int) -> str:
        """A topic without a schema of so many rows in big sealed files."""
        topic = self.store.create_topic(name)
        step = max(1, (256 << 20) // value_bytes)
        for number, first in enumerate(range(0, rows, step)):
            numbers = range(first, min(first + step, rows))
            values = pa.array([i.to_bytes(8, "big") + bytes(value_bytes - 8) for i in numbers], pa.binary())
            topic.push_table(pa.table({"value": values}), writer_id=name, batch_id=number)
        return name

    def read(self, topic: str, **options: Any) -> DataFrame:
        return session().read.format("jjq").options(topic=topic, **options).load(str(self.store.path))

    def read_stream(self, topic: str, **options: Any) -> DataFrame:
        chosen = {"topic": topic, "startingOffsets": "earliest"} | options
        return session().readStream.format("jjq").options(**chosen).load(str(self.store.path))

    def run_stream(self, frame: DataFrame, sink: str = "noop", **options: Any) -> StreamingQuery:
        """Runs a stream over all that is there, with a checkpoint of its own."""
        checkpoint = tempfile.mkdtemp(prefix="checkpoint-", dir=self.directory)
        writing = frame.writeStream.format(sink).options(checkpointLocation=checkpoint, **options)
        query = writing.trigger(availableNow=True).start()
        query.awaitTermination()
        shutil.rmtree(checkpoint)
        return query


@contextlib.contextmanager
def place(run: Run) -> Iterator[Place]:
    with run.place() as directory, jjq.open(directory / "store") as store:
        yield Place(directory, store)


def read_rate(rows: int, frame: DataFrame) -> float:
    """Rows a second into Spark's no-op sink."""
    return rate(rows, lambda: frame.write.format("noop").mode("overwrite").save())
