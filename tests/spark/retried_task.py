"""Run as a program: streaming queries each of whose tasks fails at the end of its first attempt and is run again.

Arguments: the store, a directory for checkpoints, and for each query `SINK=TOPIC`. The shared session of the tests has
no task retries, hence a program.
"""

import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from tests.spark.sinks_without import SOURCES


def fail_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hands on every row, then fails: whatever the sink wrote by then is there twice."""
    context = TaskContext.get()
    assert context is not None
    yield from batches
    if context.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails when all its rows are written")


def main(store: str, checkpoints: str, *targets: str) -> None:
    spark = (
        SparkSession.builder.master("local[2,3]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    for each in SOURCES:
        spark.dataSource.register(each)
    frame = spark.readStream.format("jjq").options(topic="in", startingOffsets="earliest").load(store)
    failing = frame.select("value").mapInArrow(fail_at_first, "value binary")
    for target in targets:
        sink, topic = target.split("=")
        writing = failing.writeStream.format(sink).options(topic=topic, checkpointLocation=f"{checkpoints}/{topic}")
        writing.trigger(availableNow=True).start(store).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
