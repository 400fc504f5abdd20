"""Spark through a broker that is a process of its own: reads, writes, and each micro-batch once."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import jjq
from jjq.server.tokens import TokenFile
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
    seen = spark.read.format("jjq").options(broker=served.flight, topic="t", path=str(served.store)).load()
    assert sorted(row.id for row in seen.collect()) == list(range(1000))


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


def test_a_broker_that_is_killed_amid_a_query_leaves_each_record_there_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    wanted = [b"%05d" % i for i in range(600)]
    with jjq.open(tmp_path / "store") as store, contextlib.ExitStack() as brokers:
        out = store.create_topic("out")
        store.create_topic("in", partitions=2).push_many(wanted)
        broker = brokers.enter_context(serving(tmp_path / "store", "--no-http"))

        def start() -> StreamingQuery:
            options = {
                "broker": broker.flight,
                "topic": "in",
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": 60,
            }
            frame = spark.readStream.format("jjq").options(**options).load().select("value")
            writing = frame.writeStream.format("jjq").options(broker=broker.flight, topic="out")
            return writing.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()

        queries = [start()]

        def has_ended(seconds: float) -> bool:
            """What a task had staged in a broker that was killed is gone. With one attempt for each task that ends the query,
            sooner or later, and another one goes on."""
            try:
                return bool(queries[-1].awaitTermination(seconds))
            except StreamingQueryException:
                assert len(queries) < 3  # as many kills, and a query after each
                queries.append(start())
                return False

        for rows in (60, 240):  # a micro-batch is written, and the next one is on its way
            while out.offsets()[0].end < rows:
                assert not has_ended(0.05)
            broker.kill()
            broker = brokers.enter_context(serving(tmp_path / "store", "--no-http", "--flight-port", str(broker.port)))
        while not has_ended(1):
            pass
        assert sorted(out.read(columns=["value"]).read_all().column("value").to_pylist()) == wanted
    assert_whole(tmp_path / "store")


def test_who_may_not_is_told_so_in_the_first_line(spark: SparkSession, tmp_path: Path) -> None:
    with jjq.open(tmp_path / "store") as store:
        store.create_topic("t").push(b"v")
    secret, _ = TokenFile(tmp_path / "store" / "tokens.json").create("other", read=("u",))
    with serving(tmp_path / "store", "--no-http") as broker:
        read = spark.read.format("jjq").options(broker=broker.flight, topic="t", token=secret)
        with pytest.raises(AnalysisException) as caught:
            read.load()
    assert "Forbidden: token 'other' has no right for topic 't'" in str(caught.value).splitlines()[0]
