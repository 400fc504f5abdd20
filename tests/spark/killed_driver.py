"""Run as a program: a streaming query whose driver is killed inside the sink's commit of a micro-batch.

Arguments: the store, the checkpoint, and `before` or `after` (the catalog transaction). Everything of Spark is killed
as a power button would, by SIGKILL: the driver, its JVM and the Python worker that commits.
"""

import os
import signal
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_jjq import DefaultSource
from pyspark_jjq.writer import StreamWriter

FATAL_BATCH = 1


def main(store: str, checkpoint: str, moment: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    victims = (os.getpid(), spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]

    class Killing(StreamWriter):
        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
            if batchId != FATAL_BATCH:
                super().commit(messages, batchId)
                return
            if moment == "after":
                super().commit(messages, batchId)
            for victim in (*victims, os.getpid()):
                os.kill(victim, signal.SIGKILL)

    class KillingSource(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "killing"

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
            return Killing(self.options, schema, overwrite)

    spark.dataSource.register(KillingSource)
    frame = spark.readStream.format("jjq").options(topic="in", startingOffsets="earliest", maxOffsetsPerTrigger=10)
    query = (
        frame.load(store)
        .select("value")
        .writeStream.format("killing")
        .options(topic="out", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start(store)
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:4])
