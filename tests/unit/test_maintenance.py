"""Maintenance: every record, offset, time and the order stay; what is due goes, and nothing else."""

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq import files, layout
from jjq.clock import now_us
from jjq.config import GRACE_US, TopicConfig
from jjq.errors import DataLoss, StoreReadOnly
from jjq.log.sealed import SEALED_BATCH_BYTES, SealedReader
from jjq.maintenance import Maintenance, expired, maintain
from jjq.model import Segment
from jjq.removal import STAGED_US
from jjq.schema import physical
from tests.stores import assert_whole, flip, paths, roll, tables

DAY_US = 86_400_000_000
SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("s", pa.string())])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store", maintenance=False) as opened:  # each test says when there is a turn
        yield opened
        assert_whole(opened)


def states(topic: jjq.Topic, partition: int = 0) -> list[str]:
    return [each.state for each in topic.segments(partition)]


def later(store: jjq.Store, us: int, **options: Any) -> Any:
    """A turn of maintenance as it will be some time from now."""
    with Maintenance(store, now=now_us() + us, **options) as work:
        work.run()
    assert not work.report.errors
    return work.report


def rolled(store: jjq.Store, name: str, count: int, rows: int = 3) -> None:
    """Files of a few records each."""
    for number in range(count):
        store.topic(name).push_many([b"%d.%d" % (number, row) for row in range(rows)])
        roll(store, name)


def link(store: jjq.Store, name: str, rows: int = 2, **commit: Any) -> None:
    with store.stage() as stage:
        stage.write(name, pa.table({"value": [b"linked"] * rows}))
        store.commit(stage.finish(), **commit)


# --- compacting --------------------------------------------------------------------------------------------------------


def test_records_of_every_kind_are_the_same_after_compacting(store: jjq.Store) -> None:
    plain = store.create_topic("plain", partitions=2, segment_bytes=8192)
    plain.push(None, key=b"tombstone", partition=0)
    plain.push(b"", key=b"", headers={"a": b"1", "b": None}, partition=0)
    plain.push(b"\xff" * 5000, headers=[], partition=0)
    for i in range(60):
        plain.push(b"%d" % i, key=b"%d" % (i % 7))
    plain.push_many([b"x"] * 500, partition=1)
    link(store, "plain")
    shaped = store.create_topic("shaped", schema=SCHEMA, compression="zstd", segment_rows=10, timestamps="producer")
    for i in range(40):
        shaped.push({"n": i, "s": None if i % 3 else "text"}, timestamp=5_000_000 - 100_000 * (i * 7 % 40))
    store.alter_topic("shaped", add_columns=pa.schema([pa.field("x", pa.list_(pa.float64()))]))
    shaped.refresh()
    for i in range(25):
        shaped.push({"n": i, "x": [1.0, None] if i % 2 else None})
    before = tables(store)
    seeks = [shaped.offset_for_timestamp(ts) for ts in range(900_000, 5_300_000, 50_000)]
    report = store.maintain(grace_us=0)
    assert not report.errors
    assert report.compacted > report.compacted_into > 0
    assert tables(store) == before
    assert [shaped.offset_for_timestamp(ts) for ts in range(900_000, 5_300_000, 50_000)] == seeks
    assert set(states(plain) + states(plain, 1) + states(shaped)) <= {"sealed", "active"}
    assert {each.schema_version for each in shaped.segments()} == {1, 2}


def test_a_second_turn_finds_nothing_left_to_do(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    rolled(store, "t", 5)
    assert store.maintain(grace_us=0).compacted == 5
    before = [each.id for each in topic.segments()]
    again = store.maintain(grace_us=0)
    assert (again.compacted, again.removed, again.leftovers, again.topic_files, again.errors) == (0, 0, 0, 0, [])
    assert [each.id for each in topic.segments()] == before


def test_large_messages_are_cut_and_small_ones_joined_to_batches_of_some_mebibytes(store: jjq.Store) -> None:
    topic = store.create_topic("t", segment_bytes=32 << 20)
    topic.push_table(pa.table({"value": [os.urandom(1000)] * 20_000}))
    for i in range(300):
        topic.push(b"%d" % i)
    roll(store, "t")
    store.maintain()
    (segment,) = (each for each in store.catalog.segments(topic.id, 0, 0, 1 << 62)[1])
    reader = SealedReader(topic.directory(0), segment, physical(None))
    sizes = [batch.nbytes for _, batch in reader.scan(0, segment.end)]
    assert len(sizes) < 12
    assert max(sizes) <= 1.5 * SEALED_BATCH_BYTES


def test_compressed_batches_have_at_most_four_thousand_and_some_rows(store: jjq.Store) -> None:
    topic = store.create_topic("t", compression="lz4")
    topic.push_many([b"the same again and again"] * 10_000)
    roll(store, "t")
    before = tables(store)
    store.maintain()
    (segment,) = store.catalog.segments(topic.id, 0, 0, 1 << 62)[1]
    reader = SealedReader(topic.directory(0), segment, physical(None))
    assert max(batch.num_rows for _, batch in reader.scan(0, segment.end)) == 4096 or len(reader) > 2
    assert segment.length < 100_000
    assert tables(store) == before


def test_files_grow_to_the_size_of_a_segment_and_no_further(store: jjq.Store) -> None:
    topic = store.create_topic("t", segment_bytes=1 << 20)
    for _ in range(8):
        topic.push_many([os.urandom(1000) for _ in range(400)])
        roll(store, "t")
    store.alter_topic("t", segment_bytes=100_000)
    before = tables(store)
    store.maintain()
    lengths = [each.bytes for each in topic.segments() if each.state == "sealed"]
    assert max(lengths) < 250_000
    assert sum(length >= 100_000 for length in lengths) >= len(lengths) - 8
    assert tables(store) == before


def test_small_files_of_many_commits_are_merged_in_tiers(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    for batch in range(70):
        link(store, "t", writer_id="w", batch_id=batch)
        if batch % 8 == 7:
            store.maintain(grace_us=0)
    _, segments = store.catalog.segments(topic.id, 0, 0, 1 << 62)
    assert [each.level for each in segments] == [2, 0, 0, 0, 0, 0, 0]
    assert topic.offsets()[0].end == 140


def test_who_planned_before_reads_the_same_after_the_files_are_gone(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    rolled(store, "t", 10)
    expected = topic.read().read_all()
    slices = topic.plan(0, 0, 30)
    reading = iter(store.read_slices(topic.plan(0, 0, 30)))
    first = next(reading)
    store.maintain(grace_us=0)
    assert len(paths(store.path, "*.arrows")) <= 1
    assert pa.Table.from_batches(store.read_slices(slices)).equals(expected.select(["value"]))
    assert pa.Table.from_batches([first, *reading]).equals(expected.select(["value"]))


def test_files_outlive_their_rows_by_the_time_of_grace(store: jjq.Store) -> None:
    store.create_topic("t")
    rolled(store, "t", 3)
    store.maintain()
    assert len(paths(store.path, "*.arrows")) >= 3
    assert later(store, GRACE_US - DAY_US // 1000).removed == 0
    assert later(store, GRACE_US + 1_000_000).removed == 6


def test_files_that_are_emptied_while_they_are_compacted_are_not_put_back(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.create_topic("t")
    rolled(store, "t", 3)
    real = files.write_small

    def write(path: Path, data: bytes) -> None:
        real(path, data)
        if b"replaces" in data:
            monkeypatch.undo()
            topic.empty()

    monkeypatch.setattr(files, "write_small", write)
    report = store.maintain()
    assert (report.compacted, report.errors) == (0, [])
    assert not paths(store.path, "*.arrow")
    assert (topic.offsets()[0].start, topic.offsets()[0].end) == (9, 9)


def test_a_file_that_cannot_be_read_is_reported_and_the_rest_is_done(store: jjq.Store) -> None:
    bad = store.create_topic("bad")
    store.create_topic("good")
    rolled(store, "bad", 1)
    rolled(store, "good", 3)
    (segment,) = (each for each in bad.segments() if each.rows)
    flip(Path(segment.path), segment.bytes // 2)
    report = store.maintain()
    assert report.compacted == 3
    (error,) = report.errors
    assert segment.id in error
    assert not assert_failing(store, segment.id)
    flip(Path(segment.path), segment.bytes // 2)
    assert store.maintain().compacted == 1


def assert_failing(store: jjq.Store, named: str) -> list[str]:
    """The problems that verify sees and that do not name a file."""
    report = store.verify()
    assert not report.ok
    return [each.message for each in report.problems if named not in each.message]


def test_progress_goes_up_to_the_whole(store: jjq.Store) -> None:
    store.create_topic("t")
    rolled(store, "t", 6, rows=50)
    seen: list[tuple[int, int]] = []
    maintain(store, lambda done, total, what: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] > 0.95 * seen[-1][1] > 0


def test_one_maintains_at_a_time(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    rolled(store, "t", 2)
    with Maintenance(store) as first:
        assert not first.report.busy
        assert store.maintain().busy
        assert states(topic)[:2] == ["rolled", "rolled"]
    assert not store.maintain().busy


def test_a_store_that_cannot_be_written_is_not_maintained(store: jjq.Store) -> None:
    store.create_topic("t")
    with jjq.open(store.path, read_only=True) as reader, pytest.raises(StoreReadOnly):
        reader.maintain()


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_compaction_of_small_segments_that_shrink_comes_to_an_end(store: jjq.Store, compression: str) -> None:
    topic = store.create_topic("t", compression=compression, segment_bytes=64 << 10)
    for number in range(100):
        link(store, "t", rows=200, writer_id="w", batch_id=number)
    before = tables(store)
    report = store.maintain()
    assert report.compacted <= 100 * 4  # each record is written again a few times at most
    assert len(topic.segments()) < 50
    assert store.maintain().compacted == 0
    assert tables(store) == before


# --- retention ---------------------------------------------------------------------------------------------------------


def segment(number: int, length: int = 100, appended_at: int = 0) -> Segment:
    return Segment(f"{number:032x}", "arrow", number, number + 1, length, 0, 0, 1, 0, 0, 0, appended_at)


def test_time_takes_the_first_that_are_old_enough() -> None:
    config = TopicConfig(retention_us=50)
    segments = [segment(0, appended_at=10), segment(1, appended_at=90), segment(2, appended_at=20)]
    assert [each.base for each in expired(segments, 0, config, 100)] == [0]
    assert [each.base for each in expired(segments, 0, config, 141)] == [0, 1, 2]
    assert expired(segments, 0, config, 60) == []


def test_bytes_keep_at_least_what_was_asked_for() -> None:
    config = TopicConfig(retention_bytes=250)
    segments = [segment(i) for i in range(5)]
    assert [each.base for each in expired(segments, 0, config, 0)] == [0, 1]
    assert [each.base for each in expired(segments, 60, config, 0)] == [0, 1, 2]
    assert [each.base for each in expired(segments, 1000, config, 0)] == [0, 1, 2, 3, 4]
    assert expired([segment(0, 250)], 0, config, 0) == []


def test_old_segments_expire_and_offsets_go_on(store: jjq.Store) -> None:
    topic = store.create_topic("t", retention=timedelta(days=7))
    rolled(store, "t", 3)
    assert later(store, 6 * DAY_US).expired == 0
    report = later(store, 8 * DAY_US, grace_us=0)
    assert (report.expired, report.expired_records) == (1, 9)  # compacted into one by the turn before
    bounds = topic.offsets()[0]
    assert (bounds.start, bounds.end) == (9, 9)
    assert topic.push(b"next").offset == 9
    with pytest.raises(DataLoss) as caught:
        topic.plan(0, 0, 10)
    assert (caught.value.earliest, caught.value.lost) == (9, 9)
    assert not paths(store.path, "*.arrow")
    saved = json.loads((topic.directory(0).parent / "topic.json").read_text())
    assert saved["offsets"] == {"0": [9, 9]}


@pytest.mark.parametrize(("days", "rolls_after"), [(7 / 24, 1 / 24), (7, 1), (70, 1)], ids=["hours", "days", "weeks"])
def test_a_slow_topic_expires_too(store: jjq.Store, days: float, rolls_after: float) -> None:
    topic = store.create_topic("t", retention=timedelta(days=days))
    topic.push(b"long ago")
    assert later(store, int(rolls_after * DAY_US * 0.9)).rolled == 0
    assert later(store, int(rolls_after * DAY_US * 1.1)).rolled == 1
    assert later(store, int((days + 1) * DAY_US)).expired == 1
    assert topic.offsets()[0].start == 1


def test_retention_counts_when_a_record_was_appended_and_not_its_own_time(store: jjq.Store) -> None:
    topic = store.create_topic("t", retention=timedelta(days=7), timestamps="producer")
    topic.push(b"of 1970", timestamp=1)
    topic.push(b"of tomorrow", timestamp=now_us() + DAY_US)
    roll(store, "t")
    assert later(store, DAY_US).expired == 0
    assert later(store, 9 * DAY_US).expired == 1


def test_the_active_file_never_goes(store: jjq.Store) -> None:
    topic = store.create_topic("t", retention_bytes=1, segment_age=timedelta(days=1000))
    rolled(store, "t", 2)
    topic.push(b"the last")
    assert store.maintain().expired == 2
    assert topic.to_pandas()["value"].tolist() == [b"the last"]


def test_a_seek_by_time_is_right_after_the_file_that_reached_it_has_expired(store: jjq.Store) -> None:
    topic = store.create_topic("t", retention_bytes=1, timestamps="producer")
    topic.push(b"high", timestamp=9_000_000_000_000_000)
    roll(store, "t")
    topic.push(b"low", timestamp=1_000_000_000_000_000)
    topic.push(b"middle", timestamp=2_000_000_000_000_000)
    assert store.maintain(grace_us=0).expired == 1
    assert topic.offset_for_timestamp(1_500_000_000_000_000) == {0: 2}
    roll(store, "t")
    store.alter_topic("t", retention_bytes=1 << 40)
    store.maintain(grace_us=0)
    assert topic.offset_for_timestamp(1_500_000_000_000_000) == {0: 2}
    assert topic.offset_for_timestamp(3_000_000_000_000_000) == {0: None}


# --- removing ----------------------------------------------------------------------------------------------------------


def test_a_deleted_topic_goes_but_for_what_is_not_ours(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    rolled(store, "t", 2)
    kept = topic.directory(0) / "notes.txt"
    store.delete_topic("t")
    kept.write_text("somebody's")
    directory = topic.directory(0).parent
    assert store.maintain().removed == 0
    report = store.maintain(grace_us=0)
    assert report.kept == [str(kept.relative_to(store.path))]
    assert [path.name for path in topic.directory(0).iterdir()] == ["notes.txt"]
    assert json.loads((directory / "topic.json").read_text())["deleted"]
    kept.unlink()
    assert store.maintain(grace_us=0).kept == []
    assert not directory.exists()
    assert store.catalog.garbage() == []


def test_a_topic_deleted_by_a_process_that_died_at_once_is_marked_as_deleted(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.create_topic("t")

    def die(path: Path, data: bytes) -> None:
        raise OSError(5, "died here")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_small", die)
        with pytest.raises(jjq.StoreError):
            store.delete_topic("t")
    assert store.maintain().topic_files == 1
    assert json.loads((topic.directory(0).parent / "topic.json").read_text())["deleted"]


def test_a_topic_whose_maker_died_is_removed_when_nobody_can_be_making_it(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(store.catalog, "add_topic", lambda *_: (_ for _ in ()).throw(OSError(5, "died here")))
        with pytest.raises(OSError, match="died here"):
            store.create_topic("t", partitions=2)
    (directory,) = layout.topic_directories(store.path)
    assert store.verify().unknown == [f"topics/{directory.name}/topic.json"]
    assert store.maintain(grace_us=0).leftovers == 0
    for path in [directory, *directory.rglob("*")]:
        os.utime(path, (1, 1))
    assert store.maintain(grace_us=0).leftovers == 1
    assert not directory.exists()


def stage(store: jjq.Store, owner: tuple[str, int] | None = None) -> list[jjq.StagedFile]:
    with store.stage(owner=owner) as opened:
        opened.write("t", pa.table({"value": [b"staged"]}))
        return opened.finish()


def age(topic: jjq.Topic, staged: list[jjq.StagedFile], us: int) -> None:
    for file in staged:
        for path in topic.directory(0).glob(f"{file.uuid}*"):
            os.utime(path, ns=((now_us() - us) * 1000,) * 2)


def test_staged_files_go_when_their_writer_has_gone_on(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    abandoned, waiting, nobodys = stage(store, ("w", 3)), stage(store, ("w", 5)), stage(store)
    assert store.maintain(grace_us=0).staged_reaped == 0
    store.commit(stage(store, ("w", 4)), "w", 4)
    assert store.maintain(grace_us=0).staged_reaped == 1
    assert not list(topic.directory(0).glob(f"{abandoned[0].uuid}*"))
    store.commit([*waiting, *nobodys], "w", 5)
    assert topic.offsets()[0].end == 3


def test_staged_files_go_after_seven_days(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    old, new = stage(store), stage(store)
    age(topic, old, STAGED_US + 1_000_000)
    age(topic, new, STAGED_US - 60_000_000)
    assert store.maintain(grace_us=0).staged_reaped == 1
    with pytest.raises(jjq.StagedFileMissing):
        store.commit(old)
    store.commit(new)


def test_a_file_that_was_committed_is_never_taken_for_a_staged_one(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.create_topic("t")
    staged = stage(store, ("w", 1))
    with monkeypatch.context() as patch:
        patch.setattr(files, "unlink", lambda path: None)  # who commits it dies before its note is gone
        store.commit(staged, "w", 1)
    age(topic, staged, 2 * STAGED_US)
    note = topic.directory(0) / f"{staged[0].uuid}.json"
    assert note.exists()
    assert store.maintain(grace_us=0).staged_reaped == 0
    assert not note.exists()
    assert topic.to_pandas()["value"].tolist() == [b"staged"]


def test_what_a_compaction_left_that_died_is_removed(store: jjq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_topic("t")
    rolled(store, "t", 3)
    died = RuntimeError("died here")

    def die(*_: Any) -> None:
        raise died

    for name in ("datasync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(files, "unlink", lambda path: None)
            patch.setattr(files, name, die)
            with Maintenance(store) as work, pytest.raises(RuntimeError):
                work.compact(store.catalog.topics()[0], 0)
    assert len(paths(store.path, "*.arrow")) == 2
    assert not store.verify().unknown
    report = store.maintain(grace_us=0)
    assert (report.leftovers, report.compacted) == (2, 3)
    assert len(paths(store.path, "*.arrow")) == 1
    assert not paths(store.path, "*.new")


def test_files_made_to_be_appended_to_that_nobody_named_are_removed(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push(b"one")
    link(store, "t")
    link(store, "t")  # each closes the active file, and there was none
    topic.push(b"two")
    roll(store, "t")
    link(store, "t")  # closes one that is empty
    assert len(paths(store.path, "*.arrows")) == 3
    assert later(store, 0).leftovers == 0  # it may be being made
    assert later(store, 0, grace_us=0).leftovers == 1
    assert not store.verify().unknown


def test_manifests_go_when_nothing_of_them_would_be_needed(store: jjq.Store) -> None:
    store.create_topic("t")
    for batch in range(120):
        link(store, "t", rows=1, writer_id="w", batch_id=batch)
    link(store, "t", rows=1)
    links = store.path / "links"
    assert len(list(links.iterdir())) == 121
    assert store.maintain(grace_us=0).manifests == 21  # the last 100 batches can be asked for again
    store.reset_writer("w")
    assert store.maintain(grace_us=0).manifests == 100
    assert not list(links.iterdir())


def test_garbage_waits_until_the_topic_file_says_that_it_is_gone(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.create_topic("t", retention_bytes=1)
    rolled(store, "t", 2)
    topic.push(b"left")
    real = files.write_small

    def refuse(path: Path, data: bytes) -> None:
        if path.name == "topic.json":
            raise OSError(28, "No space left on device")
        real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_small", refuse)
        report = store.maintain(grace_us=0)
        assert report.expired == 2
        assert report.errors
        assert report.removed == 0
    report = store.maintain(grace_us=0)
    assert (report.removed, report.errors) == (4, [])


def test_the_catalog_is_backed_up_at_most_once_an_hour(store: jjq.Store) -> None:
    store.create_topic("t")
    assert store.maintain().backup
    assert not store.maintain().backup
    target = store.path / layout.BACKUP
    os.utime(target, ns=((now_us() - 3_700_000_000) * 1000,) * 2)
    store.create_topic("u")
    assert store.maintain().backup
    with contextlib.closing(sqlite3.connect(target)) as copy:
        assert copy.execute("SELECT name FROM topics ORDER BY name").fetchall() == [("t",), ("u",)]


def test_live_files_marked_as_garbage_stay(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    rolled(store, "t", 1)
    store.maintain(grace_us=0)
    (path,) = paths(store.path, "*.arrow")
    with store.catalog.driver.write(durable=True) as tx:
        tx.run("add_garbage", path=str(path.relative_to(store.path)), due_at=0)
        tx.run("add_garbage", path=f"topics/{topic.id}", due_at=0)
        tx.run("add_garbage", path="../elsewhere", due_at=0)
    report = store.maintain(grace_us=0)
    assert len(report.errors) == 2
    assert report.kept == ["../elsewhere"]
    assert path.exists()
    assert len(store.verify().problems) == 2
    store.catalog.drop_garbage([str(path.relative_to(store.path)), f"topics/{topic.id}", "../elsewhere"])
