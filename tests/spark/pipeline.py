"""The definitions of a Spark Declarative Pipeline that reads one topic and writes another."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
store = spark.conf.get("jjq.store")


@dp.temporary_view
def late() -> DataFrame:
    flights = spark.readStream.format("jjq").options(topic="flights", startingOffsets="earliest").load(store)
    return flights.where("delay > 15")


dp.create_sink("late_topic", "jjq", {"path": store, "topic": "late"})


@dp.append_flow(target="late_topic")
def into_late() -> DataFrame:
    return spark.readStream.table("late")
