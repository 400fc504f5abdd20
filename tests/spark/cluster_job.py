"""Run by spark-submit: a batch and a stream from topic to topic, on whatever cluster it is submitted to.

Arguments: the store, and a directory for the checkpoint. Prints as JSON what it saw: the rows, and the executors that read them.
"""

import json
import os
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Who works here: the directory of the executor, and where its Python has the connector from."""
    import pyspark_jjq

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"executor": [os.getcwd()], "file": [pyspark_jjq.__file__]})


def main(store: str, checkpoint: str) -> None:
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    reading = spark.read.format("jjq").options(topic="in", maxRecordsPerPartition=50)
    frame = reading.load(store)
    seen = frame.select("value").mapInArrow(where, "executor string, file string").distinct().collect()
    stream = spark.readStream.format("jjq").options(topic="in", startingOffsets="earliest", maxRecordsPerPartition=50)
    writing = stream.load(store).select("value").writeStream.format("jjq").options(topic="out")
    query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(store)
    query.awaitTermination()
    told = {
        "master": spark.sparkContext.master,
        "executors": len({row.executor for row in seen}),
        "connector": sorted({row.file for row in seen}),
    }
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:3])
