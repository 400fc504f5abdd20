"""Spark through a broker that is a process of its own: reads, writes, and each micro-batch once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import jjq
from tests.brokers import Served, serving
from tests.stores import assert_whole

pytestmark = pytest.mark.timeout(300)  # Spark starts a Python process for each step, and each connects


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "store", "--no-http") as broker:
        yield broker
        assert broker.stop() == 0
    assert_whole(tmp_path / "store")


@pytest.fixture
def store(served: Served) -> Iterator[jjq.Store]:
    with jjq.connect(served.flight) as connected:
        yield connected


def test_a_frame_goes_through_and_comes_back(spark: SparkSession, served: Served, store: jjq.Store) -> None:
    frame = spark.range(1000).select("id", f.concat(f.lit("k"), f.col("id") % 7).alias("name")).repartition(3)
    frame.write.format("jjq").options(broker=served.flight, topic="t", partitions=2, keyColumn="name").mode(
        "append"
    ).save()
    assert sorted(store.topic("t").read().read_all().column("id").to_pylist()) == list(range(1000))
    read = spark.read.format("jjq").options(broker=served.flight, topic="t", minPartitions=4).load()
    assert read.groupBy("name").count().count() == 7
    assert sorted(row.id for row in read.collect()) == list(range(1000))


def test_a_stream_writes_each_batch_once_though_the_driver_forgets_that_it_did(
    spark: SparkSession, served: Served, store: jjq.Store, tmp_path: Path
) -> None:
    store.create_topic("in").push_many([b"%05d" % i for i in range(25)])
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        options = {"broker": served.flight, "topic": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 10}
        frame = spark.readStream.format("jjq").options(**options).load().select("value")
        writing = frame.writeStream.format("jjq").options(broker=served.flight, topic="out")
        writing.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    run()
    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    run()
    found = store.topic("out").read(columns=["value"]).read_all().column("value").to_pylist()
    assert sorted(found) == [b"%05d" % i for i in range(25)]
    assert [writer.last_batch for writer in store.writers()] == [2]
