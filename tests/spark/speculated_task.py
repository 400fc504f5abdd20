"""Run by spark-submit on a cluster of two hosts, with speculation: the first task of each query is slow, so Spark runs
it a second time beside the first.

Arguments: the store, a directory for checkpoints and marks, and what to write: SINK=TOPIC=WHO. WHO says which of the two
attempts ends while the other has handed on all its rows and waits: `first`, `second`, or `both`, which end together.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from tests.spark.sinks_without import SOURCES

PATIENCE_S = 200.0
PAUSE_S = 0.01
BATCH_ROWS = 500  # the sink has most rows of a task before its last batch comes


def slow_at_first(marks: Path, who: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Hands on every row; then each attempt of the first task waits for the other one as `who` says."""

    def hand_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() != 0:
            return
        mine = context.attemptNumber()
        (marks / str(mine)).touch()
        waits_for = marks / str(1 - mine)
        if who == ("first", "second")[1 - mine]:
            waits_for = marks / "never"  # Spark ends it when the other one is done
        deadline = time.monotonic() + PATIENCE_S
        while not waits_for.exists():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{waits_for} did not come")
            time.sleep(PAUSE_S)

    return hand_on


def main(store: str, scratch: str, *targets: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    for each in SOURCES:
        spark.dataSource.register(each)
    reading = spark.readStream.format("jjq").options(topic="in", startingOffsets="earliest", minPartitions=3)
    frame = reading.load(store).select("value")
    for target in targets:
        sink, topic, who = target.split("=")
        marks = Path(scratch) / f"{topic}-marks"
        marks.mkdir()
        rows = frame.mapInArrow(slow_at_first(marks, who), "value binary")
        writing = rows.writeStream.format(sink).options(topic=topic, checkpointLocation=f"{scratch}/{topic}")
        query = writing.trigger(availableNow=True).start(store)
        query.awaitTermination()
        print(topic, *sorted(mark.name for mark in marks.iterdir()))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
