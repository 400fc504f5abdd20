"""Run as a program, with pyspark[connect] installed: a Spark Connect client and a server on this machine.

Argument: a store with a topic `flights`. Prints as JSON what the client saw.
"""

import json
import sys
import tempfile

from pyspark.sql import DataFrame, SparkSession


def main(store: str) -> None:
    spark = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    told: dict[str, object] = {"client": type(spark).__module__}
    flights = spark.read.format("jjq").option("topic", "flights").load(store)
    told["schema"] = flights.schema.simpleString()
    told["rows"] = [tuple(row) for row in flights.orderBy("delay").collect()]
    flights.where("delay > 15").write.format("jjq").mode("append").option("topic", "late").save(store)

    spark.sql(f"CREATE TABLE flights USING jjq OPTIONS (path '{store}', topic 'flights')")
    told["table"] = spark.sql("SELECT count(*) AS n FROM flights").collect()[0].n
    try:
        spark.read.format("jjq").option("topic", "flihgts").load(store).collect()
    except Exception as error:
        told["error"] = str(error)

    stream = spark.readStream.format("jjq").options(topic="flights", startingOffsets="earliest").load(store)

    def write(batch: DataFrame, number: int) -> None:
        counts = batch.groupBy("carrier").count()
        counts.write.format("jjq").mode("append").options(topic="counts", writerId="counts", batchId=number).save(store)

    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(2):
            for name, writing in (
                ("copy", stream.writeStream.format("jjq").options(path=store, topic="copy")),
                ("counts", stream.writeStream.foreachBatch(write)),
            ):
                checkpoint = f"{scratch}/{name}"
                query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
                query.awaitTermination()
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
