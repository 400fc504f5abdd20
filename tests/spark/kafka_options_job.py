"""A program that leaves Kafka's options on reads and writes of every kind: `kafka_options_job.py STORE CHECKPOINT`."""

import sys

from pyspark.sql import SparkSession

import jjq

store, checkpoint = sys.argv[1:]
with jjq.open(store) as opened:
    opened.create_topic("in").push_many([b"a", b"b", b"c"])

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()


def named(name: str) -> dict[str, str]:
    """Each use has an option of its own, whose name stands in the warning."""
    return {"path": store, f"kafka.{name}": "x"}


batch = spark.read.format("jjq").options(subscribe="in", **named("batch.read")).load()
assert batch.count() == batch.count() == 3
batch.select("value").write.format("jjq").mode("append").options(topic="copy", **named("batch.write")).save()
stream = spark.readStream.format("jjq").options(subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger="1")
query = (
    stream.options(**named("stream.read")).load().select("value").writeStream.format("jjq")
    .options(topic="streamed", checkpointLocation=checkpoint, **named("stream.write")).trigger(availableNow=True).start()
)  # fmt: skip
query.awaitTermination()
assert len(query.recentProgress) >= 3
spark.stop()
