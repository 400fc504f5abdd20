"""Repair of damaged files: what is whole stays, what is not is named and out of the way, and the store goes on."""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import jjq
from jjq.errors import DataLoss
from jjq.repair import repair
from jjq.reports import RepairReport
from jjq.verify import verify
from tests.crash.killing import copy_store, dies
from tests.stores import EVERYTHING, assert_whole, flip, paths, roll, tables


def make(path: Path) -> dict[str, pa.Table]:
    """Sealed files of several batches, rolled ones of several messages, an active one, in one partition of two."""
    with jjq.open(path) as store:
        topic = store.create_topic("t", partitions=2, compression="lz4")
        topic.push_many([b"%d" % i for i in range(9000)], partition=0)
        roll(store, "t")
        store.maintain(grace_us=0)
        for i in range(5):
            topic.push_many([b"rolled %d %d" % (i, j) for j in range(3)], keys=[b"k", None, b""], partition=0)
        topic.push(b"with headers", headers={"a": b"1"}, partition=0)
        roll(store, "t")
        for i in range(4):
            topic.push_many([b"active %d" % i, None], partition=0)
        topic.push(b"elsewhere", partition=1)
        store.create_topic("u", schema=pa.schema([("n", pa.int64())])).push({"n": 1})
        return tables(store)


HOLD = "import sys, jjq; store = jjq.open(sys.argv[1], maintenance=False); print(flush=True); sys.stdin.read()"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not tell who has a file open")
def test_who_keeps_repair_away_is_named(place: Path) -> None:
    path = place / "store"
    jjq.open(path).close()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        with pytest.raises(jjq.StoreError, match=rf"is open in \w\S* \({process.pid}\); close it everywhere, then"):
            repair(path)
        with (
            jjq.open(path, maintenance=False),
            pytest.raises(jjq.StoreError, match=r"is open in .*, .*") as caught,
        ):
            repair(path)
        assert f"({process.pid})" in str(caught.value)
        assert "(this process)" in str(caught.value)
        process.communicate(b"")
    repair(path)


def file_of(path: Path, state: str) -> jjq.SegmentInfo:
    with jjq.open(path) as store:
        return next(each for each in store.topic("t").segments(0) if each.state == state)


def left(store: jjq.Store) -> pa.Table:
    """What can be read of the topic, lost records skipped."""
    topic = store.topic("t")
    batches = []
    for bounds in topic.offsets():
        slices = topic.plan(bounds.partition, bounds.start, bounds.end, skip_lost=True)
        batches += list(store.read_slices(slices, metadata=EVERYTHING))
    return pa.Table.from_batches(batches)


def without(table: pa.Table, lost: list[Any]) -> pa.Table:
    for each in lost:
        inside = pc.and_(
            pc.equal(table["_partition"], each.partition),
            pc.and_(pc.greater_equal(table["_offset"], each.start), pc.less(table["_offset"], each.end)),
        )
        table = table.filter(pc.invert(inside))
    return table


def check_repaired(path: Path, before: dict[str, pa.Table], report: RepairReport, ends: tuple[int, int]) -> None:
    """Everything but the lost records is there, those are refused or skipped, and the next push gets the next offset."""
    report_again = repair(path)
    assert (report_again.lost, report_again.quarantined, report_again.saved) == ([], [], 0)
    seen = assert_whole(path)
    assert seen.unknown == []
    with jjq.open(path) as store:
        topic = store.topic("t")
        starts = {each.partition: each.start for each in topic.offsets()}
        # What is lost at the beginning is no part of the topic any more: the earliest record is there.
        assert seen.lost == sum(each.end - each.start for each in report.lost if each.start >= starts[each.partition])
        for each in topic.offsets():
            assert topic.plan(each.partition, each.start, min(each.start + 1, each.end)) or each.start == each.end
        assert left(store).equals(without(before["t"], report.lost))
        assert tuple(each.end for each in topic.offsets()) == ends
        for each in report.lost:
            with pytest.raises(DataLoss) as caught:
                topic.plan(each.partition, each.start, each.end)
            assert (caught.value.asked, caught.value.earliest) == (each.start, each.end)
        assert topic.push(b"next", partition=0).offset == ends[0]
        store.maintain(grace_us=0)
        assert left(store).num_rows == before["t"].num_rows - sum(each.end - each.start for each in report.lost) + 1
    for each in report.quarantined:
        assert (path / each).exists()
    assert_whole(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, pa.Table]]:
    path = tmp_path_factory.mktemp("made") / "store"
    return path, make(path)


ENDS = (9000 + 16 + 8, 1)
# What one flipped bit may cost at most: a batch of a sealed file, a message of another.
MOST_LOST = {"sealed": 4096, "rolled": 3, "active": 2}


@pytest.mark.parametrize("state", ["sealed", "rolled", "active"])
def test_one_flipped_bit_costs_at_most_one_batch(made: Any, state: str, place: Path) -> None:
    template, before = made
    info = file_of(template, state)
    name = Path(info.path).relative_to(template)
    size = (template / name).stat().st_size
    for position in range(5, size, max(1, size // 60)):
        path = copy_store(template, place / "store")
        flip(path / name, position, position % 8)
        report = repair(path)
        assert report.rebuilt is None
        assert sum(each.end - each.start for each in report.lost) <= MOST_LOST[state]
        assert all(info.start <= each.start < each.end <= info.end for each in report.lost)
        assert {Path(each).stem for each in report.quarantined} >= {name.stem}
        check_repaired(path, before, report, ENDS)
        shutil.rmtree(path)


@pytest.mark.parametrize("state", ["rolled", "active"])
def test_a_damaged_or_missing_index_costs_nothing(made: Any, state: str, place: Path) -> None:
    template, before = made
    name = Path(file_of(template, state).path).relative_to(template).with_suffix(".index")
    size = (template / name).stat().st_size
    for position in [*range(0, size, 23), None]:
        path = copy_store(template, place / "store")
        if position is None:
            (path / name).unlink()
        else:
            flip(path / name, position)
        report = repair(path)
        assert report.lost == []
        check_repaired(path, before, report, ENDS)
        shutil.rmtree(path)


@pytest.mark.parametrize("state", ["sealed", "rolled", "active"])
def test_a_hole_of_zeros_costs_what_was_in_it(made: Any, state: str, place: Path) -> None:
    template, before = made
    info = file_of(template, state)
    name = Path(info.path).relative_to(template)
    path = copy_store(template, place / "store")
    with (path / name).open("r+b") as file:
        file.seek(info.bytes // 3)
        file.write(bytes(info.bytes // 4))
    report = repair(path)
    assert 0 < sum(each.end - each.start for each in report.lost) < info.rows
    check_repaired(path, before, report, ENDS)


@pytest.mark.parametrize("state", ["sealed", "rolled", "active"])
def test_a_missing_file_costs_its_records_and_no_others(made: Any, state: str, place: Path) -> None:
    template, before = made
    info = file_of(template, state)
    path = copy_store(template, place / "store")
    (path / Path(info.path).relative_to(template)).unlink()
    report = repair(path)
    assert "is missing" in (report.rebuilt or "")
    assert [(each.start, each.end) for each in report.lost] == [(info.start, info.end)]
    check_repaired(path, before, report, ENDS)


def test_a_row_that_is_wrong_is_made_right(made: Any, place: Path) -> None:
    template, before = made
    path = copy_store(template, place / "store")
    with jjq.open(path) as store, store.catalog.driver.write(durable=True) as tx:
        tx.connection.execute("UPDATE segments SET crc = crc + 1, min_ts = min_ts + 9")
    report = repair(path)
    assert (report.lost, report.saved) == ([], 9016)
    check_repaired(path, before, report, ENDS)


def test_records_that_were_on_disk_and_are_not_whole_are_lost_and_their_offsets_not_given_again(
    made: Any, place: Path
) -> None:
    template, before = made
    info = file_of(template, "active")
    path = copy_store(template, place / "store")
    name = path / Path(info.path).relative_to(template)
    data = name.read_bytes()
    name.write_bytes(data[:-500] + bytes(500))  # the end of the last message
    with jjq.open(path) as store:
        positions = store.topic("t").offsets()
    report = repair(path)
    assert [(each.start, each.end) for each in report.lost] == [(info.end - 2, info.end)]
    with jjq.open(path) as store:
        assert store.topic("t").offsets()[0].lineage == positions[0].lineage + 1
    check_repaired(path, before, report, ENDS)


@pytest.fixture
def gap(place: Path) -> Path:
    """A store of 300 records, of which repair found the offsets from 100 to 199 lost."""
    path = place / "gap"
    with jjq.open(path) as store:
        topic = store.create_topic("t")
        for first in (0, 100, 200):
            topic.push_many([b"value %d" % (first + i) for i in range(100)])
        file = Path(topic.segments()[0].path)
    flip(file, file.read_bytes().index(b"value 150"))
    assert [(each.start, each.end) for each in repair(path).lost] == [(100, 200)]
    return path


def test_a_subscriber_gets_what_is_whole_before_a_gap_and_is_told_of_all_that_is_lost(gap: Path) -> None:
    with jjq.open(gap) as store:
        told = store.create_subscriber("t", "told")
        assert [told.pop().offset for _ in range(100)] == list(range(100))
        for start in (100, 130):
            told.seek(start)
            for look in (told.pop, told.peek, told.poll):
                with pytest.raises(DataLoss) as caught:
                    look()
                assert (caught.value.asked, caught.value.earliest, caught.value.lost) == (start, 200, 200 - start)
            told.close()
            told = store.subscriber("told")
        told.seek(199 - 100)
        assert told.pop().offset == 99
        told.seek(200)
        assert [record.offset for record in told.poll(max_records=1000)] == list(range(200, 300))
        skips = store.create_subscriber("t", "skips", on_data_loss="skip")
        assert [record.offset for record in iter(skips.pop, None)] == [*range(100), *range(200, 300)]
        assert skips.skipped == 100
        polls = store.create_subscriber("t", "polls", on_data_loss="skip")
        polled: list[int] = []
        while records := polls.poll(max_records=1000):
            polled += [record.offset for record in records]
        assert polled == [*range(100), *range(200, 300)]


def test_records_that_are_lost_are_not_counted_among_those_that_are_there(gap: Path) -> None:
    with jjq.open(gap) as store:
        topic = store.topic("t")
        (partition,) = topic.describe()["partitions"]
        assert (topic.describe()["records"], partition["records"], partition["lost"]) == (200, 200, 100)
        assert store.stats()["topics"][0]["records"] == 200


def test_the_lag_says_how_many_of_what_is_unread_are_lost(gap: Path) -> None:
    with jjq.open(gap) as store:
        subscriber = store.create_subscriber("t", "s", on_data_loss="skip")
        for position, records, lost in ((0, 200, 100), (100, 100, 100), (150, 100, 50), (200, 100, 0), (300, 0, 0)):
            subscriber.seek(position)
            (lag,) = subscriber.lag()
            assert (lag.records, lag.lost) == (records, lost), position


def test_retention_counts_segments_that_are_there_and_leaves_none_that_are_lost_in_front(place: Path) -> None:
    path = place / "kept"
    with jjq.open(path) as store:
        topic = store.create_topic("t", retention_segments=6)
        for _ in range(6):
            topic.push_many([bytes(900_000)])  # too large to be joined with its neighbours
            roll(store, "t")
        files = [Path(each.path) for each in topic.segments()]
    for number in (1, 3, 5):
        files[number].unlink()
    assert len(repair(path).lost) == 3
    with jjq.open(path) as store:
        topic = store.topic("t")
        for most, start in ((6, 0), (3, 0), (2, 2), (1, 4)):
            store.alter_topic("t", retention_segments=most)
            store.maintain(grace_us=0)
            assert topic.offsets()[0].start == start
            assert store.create_subscriber("t").pop().offset == start
        topic.push(b"next")
        store.maintain(grace_us=0)
        assert (topic.offsets()[0].start, topic.describe()["partitions"][0]["lost"]) == (6, 0)
        assert topic.read().read_all().num_rows == 1
    assert_whole(path)


def test_losses_side_by_side_are_one_gap(place: Path) -> None:
    path = place / "two"
    with jjq.open(path) as store:
        topic = store.create_topic("t")
        for first in range(0, 400, 100):
            topic.push_many([b"value %d" % (first + i) for i in range(100)])
            roll(store, "t")
        broken = [Path(each.path) for each in topic.segments()[1:3]]
    for file in broken:
        file.unlink()
    assert [(each.start, each.end) for each in repair(path).lost] == [(100, 200), (200, 300)]
    with jjq.open(path) as store:
        subscriber = store.create_subscriber("t", "s", start=150)
        for look in (
            subscriber.pop,
            lambda: store.topic("t").read(start=150),
            lambda: store.topic("t").plan(0, 150, 170),
        ):
            with pytest.raises(DataLoss) as caught:
                look()
            assert caught.value.earliest == 300
        with pytest.raises(DataLoss) as caught:
            subscriber.pop()
        assert caught.value.lost == 150


def test_nothing_is_done_to_a_store_that_is_whole(made: Any, place: Path) -> None:
    template, before = made
    path = copy_store(template, place / "store")
    files = {each: each.read_bytes() for each in path.rglob("*") if each.is_file() and "catalog.db" not in each.name}
    seen: list[tuple[int, int, str]] = []
    report = repair(path, lambda *what: seen.append(what))
    assert (report.rebuilt, report.lost, report.quarantined, report.notes) == (None, [], [], [])
    assert {each: each.read_bytes() for each in files} == files
    assert seen[-1][0] == seen[-1][1] > 0
    with jjq.open(path) as store:
        assert tables(store) == before


def test_a_store_that_is_open_is_not_repaired(made: Any, place: Path) -> None:
    template, _ = made
    path = copy_store(template, place / "store")
    with jjq.open(path), pytest.raises(jjq.StoreError, match="close it"):
        repair(path)
    with jjq.open(path, read_only=True), pytest.raises(jjq.StoreError, match="close it"):
        repair(path)
    repair(path)
    with pytest.raises(jjq.StoreNotFound):
        repair(place / "nowhere")


def test_unknown_files_are_taken_out_of_the_way_and_kept(made: Any, place: Path) -> None:
    template, before = made
    path = copy_store(template, place / "store")
    directory = paths(path, "lock")[0].parent
    strangers = {directory / "notes.txt": b"mine", directory / f"{'ab' * 16}.arrow": b"whose?", path / "core": b"dump"}
    for each, data in strangers.items():
        each.write_bytes(data)
    report = repair(path)
    assert sorted((path / each).read_bytes() for each in report.quarantined) == sorted(strangers.values())
    (why,) = (path / "quarantine").glob("*/why.json")
    assert set(json.loads(why.read_text())) == {str(each.relative_to(path)) for each in strangers}
    check_repaired(path, before, report, ENDS)


def test_a_cursor_beyond_the_end_is_put_at_the_end(made: Any, place: Path) -> None:
    template, _ = made
    path = copy_store(template, place / "store")
    with jjq.open(path) as store:
        store.create_subscriber("t", "s")
        with store.catalog.driver.write(durable=True) as tx:
            tx.connection.execute("UPDATE cursors SET next_offset = 99999 WHERE partition = 0")
    assert not verify(path).ok
    report = repair(path)
    assert "'s'" in report.notes[0]
    with jjq.open(path) as store:
        assert store.subscriber("s").positions() == {0: ENDS[0], 1: 0}
    assert_whole(path)


def test_a_channel_beyond_the_end_is_put_at_the_end(made: Any, place: Path) -> None:
    template, _ = made
    path = copy_store(template, place / "store")
    with jjq.open(path) as store:
        store.channel("t", "work", create=True, start="latest").close()
        with store.catalog.driver.write(durable=True) as tx:
            tx.connection.execute("UPDATE channel_partitions SET fetch_offset = 99999 WHERE partition = 0")
    (problem,) = verify(path).problems
    assert (problem.code, problem.start, problem.end) == ("cursor", ENDS[0], 99999)
    assert "channel 'work' of topic 't' stands at offset 99999" in problem.message
    assert "'work'" in repair(path).notes[0]
    with jjq.open(path) as store, store.channel("t", "work") as channel:
        assert channel.counts().depth == 0
        store.topic("t").push(b"next", partition=0)
        assert [each.record.value for each in channel.receive(timeout=None)] == [b"next"]
    assert_whole(path)


def damage_all(path: Path, template: Path) -> None:
    for state in ("sealed", "rolled", "active"):
        info = file_of(template, state)
        flip(path / Path(info.path).relative_to(template), info.bytes // 2)
    (path / "stranger").write_bytes(b"x")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "damage", [pytest.param(damage_all, marks=pytest.mark.soak), lambda path, _: (path / "catalog.db").unlink()]
)
def test_repair_may_die_at_any_step(made: Any, damage: Callable[[Path, Path], None], place: Path) -> None:
    template, _ = made
    damaged = copy_store(template, place / "damaged")
    damage(damaged, template)
    done = copy_store(damaged, place / "done")
    report = repair(done)
    with jjq.open(done) as store:
        after, ends = left(store), store.topic("t").offsets()
    number = 0
    while True:
        number += 1
        path = copy_store(damaged, place / "killed")
        died = dies(lambda path=path: repair(path), number, 0.5 * (number % 2))  # type: ignore[misc]
        # In between the store can be read or says what to do.
        with contextlib.suppress(jjq.DamagedSegment, jjq.StoreFormat), jjq.open(path, read_only=True) as store:
            for topic in store.topics():
                topic.offsets()
        again = repair(path)
        assert_whole(path)
        with jjq.open(path) as store:
            assert left(store).equals(after)
            assert [(each.start, each.end) for each in store.topic("t").offsets()] == [
                (each.start, each.end) for each in ends
            ]
            store.maintain(grace_us=0)
            assert left(store).equals(after)
            assert store.verify().unknown == []
        if damage is damage_all:
            kept = {each.name for each in (path / "quarantine").rglob("*")}
            assert kept >= {Path(each).name for each in report.quarantined}
            lost = [each for each in again.lost if each not in report.lost]
            assert not [each for each in lost if each.path.startswith(str(done))]
        shutil.rmtree(path)
        if not died:
            break
    assert number > 20
