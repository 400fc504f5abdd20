"""Every row once, whatever dies or runs twice; and that each mechanism is needed: without it rows repeat or vanish."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import jjq
from tests.spark.killed_worker import KilledSource
from tests.spark.sinks_without import SOURCES
from tests.stores import assert_whole, paths

ROOT = Path(__file__).resolve().parents[2]
ROWS = 25
BATCHES = 3  # of ten rows at most


@pytest.fixture(scope="module", autouse=True)
def _sinks_without(spark: SparkSession) -> None:
    for source in SOURCES:
        spark.dataSource.register(source)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store") as opened:
        opened.create_topic("in").push_many(value(ROWS))
        yield opened


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def value(count: int) -> list[bytes]:
    return [b"%05d" % i for i in range(count)]


def written(store: jjq.Store, topic: str = "out") -> list[bytes]:
    return sorted(store.topic(topic).read(columns=["value"]).read_all().column("value").to_pylist())


def incoming(spark: SparkSession, store: jjq.Store) -> DataFrame:
    frame = spark.readStream.format("jjq").options(topic="in", startingOffsets="earliest", maxOffsetsPerTrigger=10)
    return frame.load(str(store.path)).select("value")


def run(frame: DataFrame, store: jjq.Store, checkpoint: Path, sink: str = "jjq", **options: Any) -> None:
    writing = frame.writeStream.format(sink).options(topic="out", **options)
    writing.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(
        str(store.path)
    ).awaitTermination()


def forget_commit(checkpoint: Path, batch: int) -> None:
    """As if the driver had died after the sink's commit and before Spark noted it."""
    for name in (str(batch), f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def program(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(ROOT / "tests" / "spark" / name), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)


def test_a_replayed_micro_batch_counts_once(spark: SparkSession, store: jjq.Store, checkpoint: Path) -> None:
    run(incoming(spark, store), store, checkpoint)
    before = store.topic("out").offsets()
    forget_commit(checkpoint, BATCHES - 1)
    run(incoming(spark, store), store, checkpoint)
    assert written(store) == value(ROWS)
    assert store.topic("out").offsets() == before


def test_without_the_writers_row_a_replayed_micro_batch_counts_twice(
    spark: SparkSession, store: jjq.Store, checkpoint: Path
) -> None:
    for _ in range(2):
        run(incoming(spark, store), store, checkpoint, "without_writer_row")
        forget_commit(checkpoint, BATCHES - 1)
    assert written(store) == sorted(value(ROWS) + value(ROWS)[20:])


def test_several_replays_and_new_rows_after_them_count_once(
    spark: SparkSession, store: jjq.Store, checkpoint: Path
) -> None:
    for _ in range(3):
        run(incoming(spark, store), store, checkpoint)
        forget_commit(checkpoint, BATCHES - 1)
    store.topic("in").push_many([b"later"])
    run(incoming(spark, store), store, checkpoint)
    assert written(store) == [*value(ROWS), b"later"]


def test_a_micro_batch_without_rows_counts_too(spark: SparkSession, store: jjq.Store, checkpoint: Path) -> None:
    nothing_in_the_middle = incoming(spark, store).where("cast(value as string) not between '00010' and '00019'")
    run(nothing_in_the_middle, store, checkpoint)
    [writer] = store.writers()
    assert writer.last_batch == BATCHES - 1
    assert written(store) == value(10) + value(ROWS)[20:]
    forget_commit(checkpoint, BATCHES - 1)
    run(nothing_in_the_middle, store, checkpoint)
    assert written(store) == value(10) + value(ROWS)[20:]


# --- tasks


@pytest.fixture
def large(store: jjq.Store) -> int:
    """So many rows that Spark has handed two batches of ten thousand to the sink before the last row, and so large
    that the sink has begun a file by then."""
    topic = store.topic("in")
    topic.empty()
    topic.push_many([each + bytes(500) for each in value(25_000)])
    return 25_000


def test_a_task_that_fails_half_way_leaves_nothing_and_its_rows_come_once(
    spark: SparkSession, store: jjq.Store, checkpoint: Path, large: int, tmp_path: Path
) -> None:
    repaired = str(tmp_path / "repaired")

    def fail_at_the_end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not os.path.exists(repaired):
            raise RuntimeError("the disk of the other system is full")

    frame = spark.readStream.format("jjq").options(topic="in", startingOffsets="earliest").load(str(store.path))
    mapped = frame.select("value").mapInArrow(fail_at_the_end, "value binary")
    with pytest.raises(StreamingQueryException, match="the disk of the other system is full"):
        run(mapped, store, checkpoint)
    assert written(store) == []
    Path(repaired).touch()
    run(mapped, store, checkpoint)
    assert [each[:5] for each in written(store)] == value(large)
    store.topic("out").push(b"after")
    assert written(store)[-1] == b"after"


@pytest.mark.parametrize(("source", "sink"), [("killed", "jjq"), ("jjq", "killed")], ids=["it reads", "it writes"])
def test_a_worker_that_is_killed_amid_a_task_leaves_nothing_and_its_rows_come_once(
    spark: SparkSession, store: jjq.Store, checkpoint: Path, large: int, source: str, sink: str
) -> None:
    spark.dataSource.register(KilledSource)
    reading = spark.readStream.format(source).options(topic="in", startingOffsets="earliest")
    frame = reading.load(str(store.path)).select("value")
    with pytest.raises(StreamingQueryException, match="Python worker exited unexpectedly"):
        run(frame, store, checkpoint, sink)
    assert written(store) == []
    # What it had staged, with a note. When its writer has committed, maintenance takes it, which may be that of any process.
    assert sink != "killed" or paths(store.path, "*.json")
    run(frame, store, checkpoint, sink)
    assert [each[:5] for each in written(store)] == value(large)
    assert sink == "killed" or paths(store.path, "*.json") == []
    while store.maintain(grace_us=0).busy:
        pass
    assert paths(store.path, "*.json") == []
    assert_whole(store)


@pytest.mark.timeout(600)
def test_two_attempts_of_a_task_count_once_and_without_staging_twice(
    store: jjq.Store, checkpoint: Path, large: int
) -> None:
    store.create_topic("pushed")
    done = program("retried_task.py", str(store.path), str(checkpoint), "jjq=out", "without_staging=pushed")
    assert done.returncode == 0, done.stderr
    assert [each[:5] for each in written(store)] == value(large)
    assert large < len(written(store, "pushed")) < 2 * large


# --- the driver


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_driver_killed_before_the_transaction_writes_the_micro_batch_once(
    spark: SparkSession, store: jjq.Store, checkpoint: Path
) -> None:
    done = program("killed_driver.py", str(store.path), str(checkpoint), "before")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert written(store) == value(10)
    run(incoming(spark, store), store, checkpoint)
    assert written(store) == value(ROWS)


@pytest.mark.timeout(600)
def test_a_driver_killed_after_the_transaction_writes_the_micro_batch_once(
    spark: SparkSession, store: jjq.Store, checkpoint: Path, tmp_path: Path
) -> None:
    done = program("killed_driver.py", str(store.path), str(checkpoint), "after")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert written(store) == value(20)
    (tmp_path / "without").mkdir()
    # Not by this process: whoever closes a database's file lets go of the locks that its own connection has on it.
    copied = [str(tmp_path / "store"), str(tmp_path / "checkpoint")]
    subprocess.run(["cp", "-r", *copied, str(tmp_path / "without")], check=True)
    run(incoming(spark, store), store, checkpoint)
    assert written(store) == value(ROWS)
    # The same moment, with a sink that has not noted which micro-batch it has committed.
    with jjq.open(tmp_path / "without" / "store") as other:
        run(incoming(spark, other), other, tmp_path / "without" / "checkpoint", "without_writer_row")
        assert written(other) == sorted(value(ROWS) + value(20)[10:])


# --- new checkpoints and several writes


def test_a_writer_id_with_a_new_checkpoint_is_refused_until_it_is_reset(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    run(incoming(spark, store), store, tmp_path / "first", writerId="copy")
    with pytest.raises(StreamingQueryException, match="jjq writer reset"):
        run(incoming(spark, store), store, tmp_path / "second", writerId="copy")
    assert written(store) == value(ROWS)
    assert store.reset_writer("copy")
    run(incoming(spark, store), store, tmp_path / "third", writerId="copy")
    assert written(store) == sorted(value(ROWS) * 2)


def test_without_a_writer_id_a_new_checkpoint_writes_everything_again(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        run(incoming(spark, store), store, tmp_path / name)
    assert written(store) == sorted(value(ROWS) * 2)


def for_each_batch(spark: SparkSession, store: jjq.Store, checkpoint: Path, save: Any) -> None:
    query = incoming(spark, store).writeStream.foreachBatch(save)
    query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


@pytest.mark.parametrize(("sink", "times"), [("jjq", 2), ("with_micro_batch_ids", 1)])
def test_two_saves_in_one_foreach_batch_are_two_writes(
    spark: SparkSession, store: jjq.Store, checkpoint: Path, sink: str, times: int
) -> None:
    def save(frame: DataFrame, batch: int) -> None:
        for _ in range(2):
            frame.write.format(sink).option("topic", "out").mode("append").save(str(store.path))

    for_each_batch(spark, store, checkpoint, save)
    assert written(store) == sorted(value(ROWS) * times)


def test_two_saves_in_one_foreach_batch_under_one_writer_id_are_refused(
    spark: SparkSession, store: jjq.Store, checkpoint: Path
) -> None:
    def save(frame: DataFrame, batch: int) -> None:
        for condition in ("< 3", ">= 3"):
            part = frame.where(f"cast(cast(value as string) as int) % 10 {condition}").write.format("jjq")
            part.options(topic="out", writerId="copy", batchId=batch).mode("append").save(str(store.path))

    with pytest.raises(StreamingQueryException, match="committed before with 3 rows into 'out', and this one has 7"):
        for_each_batch(spark, store, checkpoint, save)


@pytest.mark.parametrize("group", [None, "nightly"], ids=["", "in a group of jobs"])
def test_a_second_save_of_as_many_rows_is_told_from_a_replay_by_its_run(
    spark: SparkSession, store: jjq.Store, checkpoint: Path, group: str | None
) -> None:
    twice = True

    def save(frame: DataFrame, batch: int) -> None:
        if group is not None:
            frame.sparkSession.sparkContext.setJobGroup(group, "the same in each run")
        for _ in range(1 + twice):
            writing = frame.write.format("jjq").options(topic="out", writerId="copy", batchId=batch).mode("append")
            writing.save(str(store.path))

    if group is None:
        for _ in range(2):  # a restart repeats the first of them, and then the second is refused again
            with pytest.raises(
                StreamingQueryException, match="batch 0 of writer 'copy' was committed before by the same run"
            ):
                for_each_batch(spark, store, checkpoint, save)
        twice = False
    for_each_batch(spark, store, checkpoint, save)
    assert written(store) == value(ROWS)
    forget_commit(checkpoint, BATCHES - 1)
    for_each_batch(spark, store, checkpoint, save)
    assert written(store) == value(ROWS)


def test_a_writer_id_in_foreach_batch_is_of_one_query(
    spark: SparkSession, store: jjq.Store, checkpoint: Path, tmp_path: Path
) -> None:
    def save(frame: DataFrame, batch: int) -> None:
        written = frame.write.format("jjq").options(topic="out", writerId="copy", batchId=batch)
        written.mode("append").save(str(store.path))

    for_each_batch(spark, store, checkpoint, save)
    [writer] = store.writers()
    assert writer.query_id is not None
    with pytest.raises(StreamingQueryException, match=r"copy.*has committed up to batch 2 for another query"):
        for_each_batch(spark, store, tmp_path / "new", save)
    assert written(store) == value(ROWS)


def test_saves_in_foreach_batch_with_a_writer_id_each_count_once(
    spark: SparkSession, store: jjq.Store, checkpoint: Path
) -> None:
    def save(frame: DataFrame, batch: int) -> None:
        for part, condition in (("even", "= 0"), ("odd", "= 1")):
            half = frame.where(f"cast(cast(value as string) as int) % 2 {condition}").write.format("jjq")
            half.options(topic="out", writerId=f"copy-{part}", batchId=batch).mode("append").save(str(store.path))

    for _ in range(2):
        for_each_batch(spark, store, checkpoint, save)
        forget_commit(checkpoint, BATCHES - 1)
    assert written(store) == value(ROWS)
