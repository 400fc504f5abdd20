"""Verify: nothing to say of a store that is whole, and the file and offsets of whatever is not."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq.errors import DamagedSegment
from jjq.facts import Facts
from jjq.log.check import check_active, check_segment
from jjq.log.format import ENTRY_SIZE
from jjq.repair import repair
from jjq.reports import RepairReport, VerifyReport
from jjq.verify import verify
from tests.stores import assert_whole, end_of, flip, open_below, paths, roll, tables

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("s", pa.string())])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store", maintenance=False) as opened:  # what is damaged here is to stay so
        yield opened


def fill(store: jjq.Store) -> None:
    """One topic with a sealed, a rolled and an active file; another with a schema and a linked file."""
    plain = store.create_topic("plain", partitions=2)
    for i in range(20):
        plain.push(b"first %d" % i, key=b"k" if i % 2 else None, partition=0)
    roll(store, "plain")
    store.maintain()
    plain.push_many([b"second %d" % i for i in range(20)], partition=0)
    plain.push(b"with headers", headers={"a": b"1"}, partition=0)
    roll(store, "plain")
    plain.push(b"third", partition=0)
    plain.push_many([b"third", None], partition=0)
    shaped = store.create_topic("shaped", schema=SCHEMA)
    shaped.push_table(pa.table({"n": [1, 2], "s": ["a", None]}), writer_id="w", batch_id=0)
    store.create_subscriber("plain", "s").pop()


def sql(store: jjq.Store, statement: str, *values: Any) -> None:
    with store.catalog.driver.write(durable=True) as tx:
        tx.connection.execute(statement, values)


def the_only_problem(store: jjq.Store | Path, code: str) -> Any:
    (problem,) = verify(store).problems
    assert problem.code == code, problem
    assert str(problem).startswith(f"{code}: {problem.message}")
    assert str(problem).count("`jjq ") == 1, str(problem)  # what to do, once
    return problem


def test_a_whole_store_is_counted_and_has_no_problems(store: jjq.Store) -> None:
    fill(store)
    report = assert_whole(store)
    assert (report.topics, report.partitions, report.segments) == (2, 3, 4)
    assert (report.records, report.lost) == (46, 0)
    assert report.bytes > 1000
    assert (report.notes, report.unknown) == ([], [])
    assert verify(store.path) == report
    assert report.to_dict()["ok"]
    assert "whole; 2 topics, 4 segments, 46 records, " in str(report)


def test_reports_write_numbers_as_people_do() -> None:
    whole = VerifyReport("s", topics=1, segments=1234, records=12_345_678, bytes=5 << 30)
    assert str(whole) == "s: whole; 1 topic, 1,234 segments, 12,345,678 records, 5.0 GiB"
    repaired = RepairReport("s", rebuilt="lost", topics=1, writers=2, segments=1, bytes=1536, saved=1_000)
    assert str(repaired).splitlines() == [
        "s: 1 segment looked at, 1.5 KiB",
        "the catalog was made again (lost): 1 topic, 2 writers, 0 subscribers",
        "1,000 records were copied out of damaged files",
    ]


def test_partitions_that_are_added_while_it_looks_are_no_problem(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_topic("growing")
    real, added = store.catalog.partitions, list[str]()

    def partitions(topic_id: str) -> Any:
        if not added and topic_id == store.topic("growing").id:
            added.append(topic_id)
            store.alter_topic("growing", partitions=3)
        return real(topic_id)

    monkeypatch.setattr(store.catalog, "partitions", partitions)
    assert store.verify().ok
    assert added


def test_an_empty_store_is_whole(store: jjq.Store) -> None:
    assert_whole(store)
    store.create_topic("t", partitions=3)
    assert assert_whole(store.path).partitions == 3


def test_a_store_that_cannot_be_written_is_verified_and_not_changed(store: jjq.Store) -> None:
    fill(store)
    before = {path: path.stat().st_mtime_ns for path in store.path.rglob("*") if not path.name.startswith("catalog.db")}
    with jjq.open(store.path, read_only=True) as reader:
        assert_whole(reader)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_directory_without_a_store_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(jjq.StoreNotFound):
        verify(tmp_path)


def test_progress_reaches_the_whole(store: jjq.Store) -> None:
    fill(store)
    seen: list[tuple[int, int, str]] = []
    store.verify(lambda *what: seen.append(what))
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert seen[-1][0] == seen[-1][1] > 0
    assert {what for _, _, what in seen} == {"plain", "shaped"}


# --- files -------------------------------------------------------------------------------------------------------------


def segment(store: jjq.Store, state: str) -> jjq.SegmentInfo:
    return next(each for each in store.topic("plain").segments(0) if each.state == state)


@pytest.mark.parametrize("state", ["sealed", "rolled", "active"])
def test_a_flipped_bit_anywhere_in_a_file_is_found_and_placed(store: jjq.Store, state: str) -> None:
    fill(store)
    info = segment(store, state)
    path = Path(info.path)
    for position in range(3, path.stat().st_size, 41):
        flip(path, position, position % 8)
        problem = the_only_problem(store, "damaged")
        assert problem.path == info.path
        assert (problem.topic, problem.partition) == ("plain", 0)
        assert info.start <= problem.start <= problem.end <= info.end
        flip(path, position, position % 8)
    assert_whole(store)


@pytest.mark.parametrize("suffix", [".arrow", ".arrows", ".index"])
def test_every_flipped_bit_of_a_segment_is_found(store: jjq.Store, suffix: str) -> None:
    topic = store.create_topic("t")
    topic.push(b"one")
    topic.push_many([b"two", None], keys=[b"k", None])
    roll(store, "t")
    if suffix == ".arrow":
        store.maintain()
    facts, directory = Facts(store, topic.id), topic.directory(0)
    (row,) = store.catalog.segments(topic.id, 0, 0, 3)[1]
    path = directory / f"{row.uuid}{suffix}"
    check_segment(directory, topic.id, 0, row, facts)
    for position in range(path.stat().st_size):
        flip(path, position, position % 8)
        with pytest.raises(DamagedSegment):
            check_segment(directory, topic.id, 0, row, facts)
        flip(path, position, position % 8)


def test_every_flipped_bit_of_an_active_file_is_found(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push(b"one")
    topic.push_many([b"two", None], keys=[b"k", None])
    facts, directory = Facts(store, topic.id), topic.directory(0)
    row = store.catalog.partition(topic.id, 0)
    for path in (*paths(store.path, "*.arrows"), *paths(store.path, "*.index")):
        for position in range(path.stat().st_size):
            flip(path, position, position % 8)
            with pytest.raises(DamagedSegment):
                check_active(directory, topic.id, row, facts, store.boot_id)
            flip(path, position, position % 8)
    assert check_active(directory, topic.id, row, facts, store.boot_id).offset == 3


@pytest.mark.parametrize("state", ["sealed", "rolled", "active"])
def test_a_file_that_was_cut_short_is_found(store: jjq.Store, state: str) -> None:
    fill(store)
    path = Path(segment(store, state).path)
    whole = path.read_bytes()
    store.close()
    for length in range(0, len(whole), 97):
        path.unlink()  # the mapping of an earlier look must not be cut
        path.write_bytes(whole[:length])
        assert the_only_problem(store.path, "damaged").path == str(path)


@pytest.mark.parametrize(("state", "suffix"), [("sealed", ".arrow"), ("rolled", ".arrows"), ("rolled", ".index"),
                                               ("active", ".arrows"), ("active", ".index")])  # fmt: skip
def test_a_missing_file_is_found(store: jjq.Store, state: str, suffix: str) -> None:
    fill(store)
    path = Path(segment(store, state).path).with_suffix(suffix)
    path.unlink()
    assert the_only_problem(store, "missing").path == str(path)


def test_a_message_in_another_place_is_found(store: jjq.Store) -> None:
    """Its checksum holds, and so does the index that was made for it; only the message knows where it belongs."""
    for name in ("a", "b"):
        store.create_topic(name).push(b"the same")
        roll(store, name)
    by_topic = {path.parent.parent.name: path for path in paths(store.path, "*.arrows") if path.stat().st_size > 600}
    a, b = (by_topic[store.topic(name).id] for name in ("a", "b"))
    for suffix in (".arrows", ".index"):
        data = a.with_suffix(suffix).read_bytes()
        b.with_suffix(suffix).write_bytes(data)
    found = store.catalog.segment(a.stem)
    assert found is not None
    like = found[2]
    sql(
        store,
        "UPDATE segments SET crc = ?, min_ts = ?, max_ts = ? WHERE uuid = ?",
        like.crc,
        like.min_ts,
        like.max_ts,
        b.stem,
    )
    assert "another place" in the_only_problem(store, "damaged").message


# --- rows --------------------------------------------------------------------------------------------------------------

TAMPERED = {
    "length": "UPDATE segments SET length = length - 8",
    "crc": "UPDATE segments SET crc = crc + 1",
    "rows": "UPDATE segments SET max_ts = max_ts + 1, prefix_max_ts = prefix_max_ts + 1",
    "minimum": "UPDATE segments SET min_ts = min_ts + 1000000",
}


@pytest.mark.parametrize("statement", TAMPERED.values(), ids=TAMPERED)
def test_a_row_that_does_not_fit_its_file_is_found(store: jjq.Store, statement: str) -> None:
    fill(store)
    for state in ("sealed", "rolled"):
        sql(store, f"{statement} WHERE uuid = ?", segment(store, state).id)
    problems = [each for each in store.verify().problems if each.code == "damaged"]
    assert len(problems) == 2


BROKEN_CHAINS: dict[str, tuple[str, str]] = {
    "a row is gone": ("gap", "DELETE FROM segments WHERE kind = 'arrow' AND base = 0"),
    "the last row is gone": ("gap", "DELETE FROM segments WHERE kind = 'arrows'"),
    "the start is behind": ("gap", "UPDATE partitions SET start_offset = -1 WHERE end_offset > 2"),
    "the start is before": ("overlap", "UPDATE partitions SET start_offset = 1 WHERE end_offset > 2"),
    "a lineage is unknown": ("row", "UPDATE partitions SET lineage = 3 WHERE end_offset > 2"),
    "a lineage is beyond the end": ("row", "INSERT INTO lineages SELECT DISTINCT topic_id, 0, 0, 99 FROM partitions"),
    "a highest timestamp goes back": ("row", "UPDATE segments SET prefix_max_ts = 5 WHERE kind = 'arrows'"),
    "a cursor is beyond the end": ("cursor", "UPDATE cursors SET next_offset = 1000 WHERE partition = 0"),
    "rows without a topic": ("row", "INSERT INTO lineages VALUES ('nobody', 0, 1, 0)"),
    "a partition is gone": ("row", "DELETE FROM partitions WHERE partition = 1"),
}  # fmt: skip


@pytest.mark.parametrize(("code", "statement"), BROKEN_CHAINS.values(), ids=BROKEN_CHAINS)
def test_a_catalog_that_contradicts_itself_is_found(store: jjq.Store, code: str, statement: str) -> None:
    fill(store)
    sql(store, statement)
    report = store.verify()
    assert code in {each.code for each in report.problems}, str(report)


def test_a_cursor_of_an_earlier_lineage_is_no_problem_of_the_store(store: jjq.Store) -> None:
    fill(store)
    sql(store, "UPDATE cursors SET next_offset = 1000 WHERE partition = 0")
    sql(store, "UPDATE partitions SET lineage = 1 WHERE partition = 0")
    sql(store, "INSERT INTO lineages SELECT topic_id, partition, 1, 0 FROM partitions WHERE partition = 0")
    assert_whole(store)


def damage_catalog(store: Path) -> None:
    (store / "catalog.db").write_bytes(b"not a database at all" * 500)


def cut_catalog(store: Path) -> None:
    path = store / "catalog.db"
    path.write_bytes(path.read_bytes()[:8192])


def empty_catalog(store: Path) -> None:
    (store / "catalog.db").write_bytes(b"")


@pytest.mark.parametrize(
    "damage", [damage_catalog, cut_catalog, empty_catalog, lambda store: (store / "catalog.db").unlink()]
)
def test_a_catalog_that_is_damaged_or_gone_is_found(store: jjq.Store, damage: Callable[[Path], None]) -> None:
    fill(store)
    store.close()
    damage(store.path)
    assert "repair" in the_only_problem(store.path, "catalog").advice
    with pytest.raises(jjq.StoreFormat, match="repair") as refused, jjq.open(store.path) as opened:
        tables(opened)
    assert not open_below(store.path), refused.value


def test_a_topic_file_that_is_damaged_is_found_and_written_again(store: jjq.Store) -> None:
    fill(store)
    (store.path / "topics" / store.topic("plain").id / "topic.json").write_text("{")
    assert the_only_problem(store, "topic_file").topic == "plain"
    store.maintain()
    assert_whole(store)


# --- what is no problem ------------------------------------------------------------------------------------------------


def test_files_that_nobody_names_are_listed(store: jjq.Store) -> None:
    fill(store)
    directory = store.topic("plain").directory(0)
    strangers = [
        directory / "core",
        directory / f"{'0' * 32}.arrow",
        store.path / "notes.txt",
        store.path / "topics" / "x",
    ]
    for path in strangers:
        path.write_text("x")
    (store.path / "quarantine" / "old").write_text("x")
    assert sorted(assert_whole(store).unknown) == sorted(str(path.relative_to(store.path)) for path in strangers)


def test_staged_files_and_those_that_wait_for_removal_are_known(store: jjq.Store) -> None:
    fill(store)
    with store.stage() as stage:
        stage.write("plain", pa.table({"value": [b"x"]}))
        staged = stage.finish()
    store.maintain()
    store.delete_topic("shaped")
    assert assert_whole(store).unknown == []
    store.discard(staged)


def test_a_torn_tail_is_a_note(store: jjq.Store) -> None:
    fill(store)
    path = Path(segment(store, "active").path)
    with path.open("r+b") as file:
        file.seek(end_of(path))
        file.write(b"half a message")
    (note,) = assert_whole(store).notes
    assert "behind its end" in note


def test_an_active_file_that_waits_for_recovery_is_a_note(store: jjq.Store) -> None:
    fill(store)
    index = Path(segment(store, "active").path).with_suffix(".index")
    with index.open("r+b") as file:
        file.truncate(2 * ENTRY_SIZE)  # the last message's entry did not reach the disk
    store.close()
    with jjq.open(store.path) as opened:
        sql(opened, "UPDATE partitions SET boot_id = 'another'")
        report = assert_whole(opened)
        assert "recovers at first use" in report.notes[0]
        assert report.records == 46
        opened.topic("plain").offsets()
        assert assert_whole(opened).notes == []


def test_a_sample_looks_at_some_files_and_at_all_rows(store: jjq.Store) -> None:
    fill(store)
    flip(Path(segment(store, "sealed").path), 100)
    assert verify(store, sample=0.0).ok
    assert not verify(store, sample=1.0).ok
    sql(store, "DELETE FROM segments WHERE kind = 'arrows'")
    assert not verify(store, sample=0.0).ok


def test_a_store_that_others_write_to_is_whole_at_each_look(store: jjq.Store) -> None:
    store.create_topic("t", partitions=2, segment_rows=20, retention_bytes=20_000, sync="none")
    done = threading.Event()
    errors: list[BaseException] = []

    def forever(act: Callable[[], object]) -> None:
        try:
            while not done.is_set():
                act()
        except BaseException as error:
            errors.append(error)

    def link() -> None:
        store.topic("t").push_table(pa.table({"value": [b"x"] * 5}), writer_id="w", batch_id=next(batches))

    batches = iter(range(1 << 30))
    acts = (lambda: store.topic("t").push(b"x"), lambda: store.maintain(grace_us=0), link)
    threads = [threading.Thread(target=forever, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    try:
        reports = [assert_whole(store.path) for _ in range(25)]
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not errors
    assert reports[-1].records > 0
    assert_whole(store)


@pytest.mark.parametrize("sync", ["always", "none"])
def test_an_index_that_lost_its_end_is_found(store: jjq.Store, sync: str) -> None:
    """Not what a writer leaves that died: that is one group of messages at most."""
    topic = store.create_topic("t", sync=sync)
    for i in range(6):
        topic.push(b"%d" % i)
    (index,) = paths(store.path, "*.index")
    entries = index.read_bytes()
    index.write_bytes(entries[: 4 * ENTRY_SIZE])
    store.close()
    problem = the_only_problem(store.path, "damaged")
    assert problem.path == str(index)
    index.write_bytes(entries[: 6 * ENTRY_SIZE])
    assert "behind its end" in assert_whole(store.path).notes[0]


@pytest.mark.parametrize("table", ["cursors", "channel_partitions"])
def test_who_has_no_position_in_a_partition_is_found_and_gets_one(table: str, store: jjq.Store) -> None:
    fill(store)
    store.channel("plain", "c", create=True)
    assert_whole(store)
    sql(store, f"DELETE FROM {table} WHERE partition = 1")
    assert "has no position in partition 1" in the_only_problem(store, "cursor").message
    store.close()
    assert "1 partition had no position of a subscriber or channel, which is read from 0" in repair(store.path).notes
    assert_whole(store.path)
    with jjq.open(store.path) as again:
        assert again.subscriber("s").positions() == {0: 1, 1: 0}


def test_a_subscriber_without_any_position_is_found(store: jjq.Store) -> None:
    fill(store)
    sql(store, "DELETE FROM cursors")
    assert {each.code for each in store.verify().problems} == {"cursor"}
    assert len(store.verify().problems) == 2
