"""Exactly-once writers, stages and commits."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq.log.partition import PartitionLog
from tests.stores import assert_whole
from tests.tracing import traced

FLIGHTS = pa.schema([("carrier", pa.string()), ("delay", pa.int32())])


def values(topic: jjq.Topic) -> list[object]:
    return topic.read().read_all().column("value").to_pylist()


def test_a_run_or_a_query_without_a_writer_is_refused(store: jjq.Store) -> None:
    store.create_topic("t")
    with pytest.raises(jjq.InvalidArgument, match=r"run_id says .* give writer_id and batch_id"):
        store.commit([], run_id="one")
    with pytest.raises(jjq.InvalidArgument, match="query_id says"):
        store.commit([], query_id="q")


def test_a_batch_of_a_writer_happens_once(store: jjq.Store, caplog: pytest.LogCaptureFixture) -> None:
    topic = store.create_topic("t", schema=FLIGHTS, partitions=2)
    table = pa.table({"carrier": ["AA", "UA", "DL"], "delay": [1, 2, 3]})
    first = topic.push_table(table, key="carrier", writer_id="loader", batch_id=1)
    again = topic.push_table(table, key="carrier", writer_id="loader", batch_id=1)
    assert repr(first) == repr(again)
    assert (first.duplicate, again.duplicate) == (False, True)
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        "batch 1 of writer loader was pushed to topic t before, so nothing was pushed; other rows need another batch_id"
    ]
    topic.push_table(table, key="carrier", writer_id="loader", batch_id=2)
    assert topic.read().read_all().num_rows == 6
    assert [(w.id, w.last_batch) for w in store.writers()] == [("loader", 2)]
    with pytest.raises(jjq.WriterConflict, match="jjq writer reset loader"):
        topic.push_table(table, writer_id="loader", batch_id=0)
    assert store.reset_writer("loader")
    topic.push_table(table, writer_id="loader", batch_id=0)
    assert topic.read().read_all().num_rows == 9


def test_the_last_hundred_batches_of_a_writer_are_remembered_and_none_before(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    store.commit(staged(store, b"a"), "w", 20)
    for batch in range(21, 120):
        assert not store.commit([], "w", batch).duplicate
    assert store.commit(staged(store, b"a"), "w", 20).duplicate
    store.commit([], "w", 120)
    with pytest.raises(jjq.WriterConflict, match="up to batch 120 and does not know batch 20"):
        store.commit(staged(store, b"a"), "w", 20)
    assert store.commit([], "w", 21).duplicate
    assert values(topic) == [b"a"]


def test_a_writer_of_another_query_is_refused_not_dropped(store: jjq.Store) -> None:
    topic = store.create_topic("t")

    def staged() -> list[jjq.StagedFile]:
        with store.stage() as stage:
            stage.write(topic, pa.table({"value": [b"v"]}))
            return stage.finish()

    store.commit(staged(), writer_id="w", batch_id=3, query_id="one")
    with pytest.raises(jjq.WriterConflict):
        store.commit(staged(), writer_id="w", batch_id=3, query_id="two")
    store.commit(staged(), writer_id="w", batch_id=4, query_id="two")
    assert topic.offsets()[0].end == 2
    for bad in (
        {"writer_id": "w"},
        {"batch_id": 1},
        {"writer_id": "../w", "batch_id": 1},
        {"writer_id": "w", "batch_id": -1},
    ):
        with pytest.raises(jjq.InvalidArgument):
            store.commit([], **bad)  # type: ignore[arg-type]


def test_a_commit_over_topics_is_one_act_in_the_order_given(store: jjq.Store) -> None:
    a, b = store.create_topic("a"), store.create_topic("b", partitions=2)
    stages = []
    for i in range(3):
        with store.stage(default_partition=i) as stage:
            stage.write(a, pa.table({"value": [f"a{i}".encode()]}))
            stage.write("b", pa.table({"value": [f"b{i}".encode()]}))
            stages.append(stage.finish())
    a.push(b"live")
    result = store.commit([file for files in stages for file in files])
    assert values(a) == [b"live", b"a0", b"a1", b"a2"]
    assert result.positions == {"a": {0: (1, 4)}, "b": {0: (0, 2), 1: (0, 1)}}
    assert values(b) == [b"b0", b"b2", b"b1"]


def test_a_batch_that_was_committed_into_one_topic_is_refused_for_another(store: jjq.Store) -> None:
    first, second = store.create_topic("first"), store.create_topic("second")
    table = pa.table({"value": [b"a"]})
    first.push_table(table, writer_id="w", batch_id=1)
    with pytest.raises(jjq.WriterConflict, match="with 1 row into 'first', and this one has 1 row into 'second'"):
        second.push_table(table, writer_id="w", batch_id=1)
    second.push_table(table.slice(0, 0), writer_id="w", batch_id=2)
    with pytest.raises(jjq.WriterConflict, match="with no rows, and this"):
        first.push_table(table, writer_id="w", batch_id=2)
    first.push_table(table, writer_id="w", batch_id=1)  # a retry
    assert (len(first.read().read_all()), len(second.read().read_all())) == (1, 0)


def test_a_batch_that_comes_again_with_another_number_of_rows_is_another_batch(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=3)
    table = pa.table({"value": [b"a", b"b", b"c"], "key": [b"1", b"2", b"3"]})
    first, again = (topic.push_table(table, writer_id="w", batch_id=1) for _ in range(2))
    assert repr(again) == repr(first) == "Positions(1:[0, 1), 2:[0, 2))"
    for other in (table.slice(1), pa.concat_tables([table, table]), table.slice(0, 0)):
        with pytest.raises(jjq.WriterConflict, match="with 3 rows into 't'"):
            topic.push_table(other, writer_id="w", batch_id=1)
    with store.stage() as stage:
        stage.write(topic, table.slice(1))
        assert store.commit(stage.finish(), "w", 1, rows_may_differ=True).duplicate
    assert len(topic.read().read_all()) == 3


def test_a_stage_left_on_an_error_leaves_nothing(store: jjq.Store, directory: Path) -> None:
    topic = store.create_topic("t")

    def half() -> None:
        with store.stage() as stage:
            stage.write(topic, pa.table({"value": [b"x" * 1000] * 6000}))
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        half()
    assert topic.offsets()[0].end == 0
    assert [path.name for path in (directory / "topics" / topic.id / "0").iterdir() if path.name != "lock"] == []


def test_why_a_stage_was_left_is_told_though_its_store_is_closed_by_then(store: jjq.Store) -> None:
    store.create_topic("t")

    def left() -> None:
        with store.stage() as stage:
            stage.write("t", pa.table({"value": [b"x"]}))
            stage.finish()
            store.close()
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        left()


def test_wherever_a_write_of_a_stage_is_interrupted_the_next_one_is_there_whole_or_refused(store: jjq.Store) -> None:
    topic, write = store.create_topic("t"), type(store.stage()).write.__code__

    def at_line(number: int) -> Callable[[FrameType, str, Any], Any]:
        left = itertools.count(number, -1)

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if frame.f_code is write and event == "line" and next(left) == 1:
                raise KeyboardInterrupt
            return trace if frame.f_code is write else None

        return trace

    for number in itertools.count(1):
        end = topic.offsets()[0].end
        with store.stage() as stage:
            interrupted = traced(lambda: stage.write("t", pa.table({"value": [b"first"]})), at_line(number))
            with contextlib.suppress(jjq.InvalidArgument):
                stage.write("t", pa.table({"value": [b"second"]}))
                store.commit(stage.finish())
                assert topic.read(start=end).read_all()["value"].to_pylist() in ([b"second"], [b"first", b"second"]), (
                    number
                )
        if not interrupted:
            break
    assert number > 10


@pytest.mark.parametrize("rows", [2, 100_000], ids=["few rows", "many rows"])  # many are written before the end
def test_columns_may_be_added_while_rows_are_staged(store: jjq.Store, rows: int) -> None:
    before = store.create_topic("t", schema=pa.schema([("a", pa.int64())]))
    ones, twos, text = pa.repeat(1, rows), pa.repeat(2, rows), pa.repeat("x" * 50, rows)
    with store.stage() as stage:
        stage.write(before, pa.table({"a": ones}))
        store.alter_topic("t", add_columns=pa.schema([("b", pa.string())]))
        stage.write(before, pa.table({"a": twos, "b": text}))
        before.refresh()
        stage.write("t", pa.table({"a": ones}))
        files = stage.finish()
    assert store.commit(files).rows == 3 * rows
    found = store.topic("t").read().read_all()
    assert found["a"].combine_chunks().equals(pa.concat_arrays([ones, twos, ones]))
    assert (
        found["b"]
        .combine_chunks()
        .equals(pa.concat_arrays([pa.nulls(rows, pa.string()), text, pa.nulls(rows, pa.string())]))
    )


def test_a_staged_file_that_is_gone_or_changed_commits_nothing(store: jjq.Store, directory: Path) -> None:
    topic = store.create_topic("t")
    with store.stage() as stage:
        stage.write(topic, pa.table({"value": [b"v"] * 10}))
        (file,) = stage.finish()
    path = directory / "topics" / topic.id / "0" / f"{file.uuid}.arrow"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"x")
    with pytest.raises(jjq.StagedFileMissing, match="not what was written"):
        store.commit([file])
    path.unlink()
    with pytest.raises(jjq.StagedFileMissing, match="gone"):
        store.commit([file])
    assert topic.offsets()[0].end == 0
    path.write_bytes(whole)
    store.commit([file])
    assert topic.offsets()[0].end == 10


def staged(store: jjq.Store, *values: bytes) -> list[jjq.StagedFile]:
    with store.stage() as stage:
        stage.write("t", pa.table({"value": values}))
        return stage.finish()


@pytest.mark.embedded
def test_a_staged_file_that_is_removed_while_a_commit_waits_for_the_locks_commits_nothing(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by maintenance, which thinks that it is forgotten."""
    topic = store.create_topic("t")
    topic.push(b"before")
    files, real = staged(store, b"a"), PartitionLog.exclusive

    def late(log: PartitionLog) -> contextlib.AbstractContextManager[None]:
        store.discard(files)
        return real(log)

    monkeypatch.setattr(PartitionLog, "exclusive", late)
    with pytest.raises(jjq.StagedFileMissing, match="gone; write the batch again"):
        store.commit(files, "w", 1)
    monkeypatch.undo()
    assert not store.commit(staged(store, b"b"), "w", 1).duplicate
    assert values(topic) == [b"before", b"b"]
    assert_whole(store)


def test_a_batch_twice_in_one_run_is_refused_and_in_the_next_run_counted_once(
    store: jjq.Store, directory: Path
) -> None:  # fmt: skip
    topic = store.create_topic("t")
    store.commit(staged(store, b"a"), "w", 1, "query", run_id="one")
    with pytest.raises(
        jjq.WriterConflict, match="batch 1 of writer 'w' was committed before by the same run, with 1 row "
    ):
        store.commit(staged(store, b"b"), "w", 1, "query", run_id="one")
    # A restart brings the first write again, and after it the second one, which is no more right than it was.
    assert store.commit(staged(store, b"a"), "w", 1, "query", run_id="two").duplicate
    with pytest.raises(jjq.WriterConflict, match="by the same run"):
        store.commit(staged(store, b"b"), "w", 1, "query", run_id="two")
    assert store.commit(staged(store, b"a"), "w", 1, "query", run_id="three").duplicate
    assert values(topic) == [b"a"]
    store.commit(staged(store, b"c"), "w", 2, "query", run_id="three")
    assert values(topic) == [b"a", b"c"]
    assert not [
        path
        for path in (directory / "topics" / topic.id / "0").iterdir()
        if path.suffix == ".json" and b"staged" in path.read_bytes()
    ]


def test_the_same_files_and_batches_without_rows_may_come_again_in_a_run(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    files = staged(store, b"a")
    assert not store.commit(files, "w", 1, "query", run_id="one").duplicate
    assert store.commit(files, "w", 1, "query", run_id="one").duplicate  # its answer was lost on the way
    assert not store.commit([], "w", 2, "query", run_id="one").duplicate
    assert store.commit([], "w", 2, "query", run_id="one").duplicate
    assert values(topic) == [b"a"]


def test_without_a_run_a_batch_may_be_tried_as_often_as_one_likes(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    assert [store.commit(staged(store, b"a"), "w", 1).duplicate for _ in range(3)] == [False, True, True]
    assert store.commit(staged(store, b"a"), "w", 1, run_id="one").duplicate
    assert store.commit(staged(store, b"a"), "w", 1).duplicate
    assert values(topic) == [b"a"]


def test_a_batch_that_was_pushed_before_has_the_first_ones_time_as_long_as_its_records_are_there(
    store: jjq.Store,
) -> None:
    topic = store.create_topic("t", partitions=2)
    table = pa.table({"value": [b"a", b"b", b"c"], "key": [b"1", b"2", b"2"]})
    first = topic.push_table(table, writer_id="w", batch_id=1)
    stamps = topic.read(metadata=["_partition", "_timestamp"]).read_all()
    found = dict(zip(stamps["_partition"].to_pylist(), stamps["_timestamp"].cast(pa.int64()).to_pylist(), strict=True))
    assert {each.partition: each.timestamp for each in first.ranges} == found
    assert topic.push_table(table, writer_id="w", batch_id=1).ranges == first.ranges
    topic.empty()
    again = topic.push_table(table, writer_id="w", batch_id=1)
    assert [(each.start, each.end) for each in again.ranges] == [(each.start, each.end) for each in first.ranges]
    assert [each.timestamp for each in again.ranges] == [None] * len(first.ranges)


def test_times_that_a_producer_gives_are_those_of_the_first_record(store: jjq.Store) -> None:
    topic = store.create_topic("t", timestamps="producer")
    table = pa.table({"value": [b"a", b"b"], "timestamp": pa.array([7, 5])})
    ranges = [topic.push_table(table, writer_id="w", batch_id=1).ranges for _ in range(2)]
    assert [each.timestamp for (each,) in ranges] == [7, 7]


def test_a_file_that_records_are_in_is_not_discarded_as_a_staged_one(store: jjq.Store, directory: Path) -> None:
    """The active file has no row in the catalog either, and its id is told to whoever may read."""
    topic = store.create_topic("t")
    topic.push(b"acknowledged")
    (file,) = staged(store, b"staged")
    store.discard([dataclasses.replace(file, uuid=topic.segments()[-1].id)])
    topic.push(b"later")
    with jjq.open(directory, read_only=True) as other:  # which has no file of it open
        assert values(other.topic("t")) == [b"acknowledged", b"later"]
    store.discard([file])
    with pytest.raises(jjq.StagedFileMissing):
        store.commit([file])
