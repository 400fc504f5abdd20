"""The catalog lost: it is made again from the files, and every record, writer and setting is what it was."""

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq import files
from jjq.clock import now_us
from jjq.errors import DataLoss, WriterConflict
from jjq.maintenance import Maintenance
from jjq.repair import repair
from tests.crash.killing import copy_store, dies
from tests.crash.losing import contradict_catalog, damage_catalog, empty_catalog, link, lose_catalog
from tests.stores import assert_whole, flip, paths, roll, tables

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
DAY_US = 86_400_000_000


LOSSES = [lose_catalog, damage_catalog, empty_catalog, contradict_catalog]


def make(path: Path) -> dict[str, pa.Table]:
    """A store with a bit of everything."""
    with jjq.open(path) as store:
        plain = store.create_topic("plain", partitions=3, segment_rows=40)
        for i in range(150):
            plain.push(b"%d" % i, key=b"%d" % i, headers={"i": b"%d" % i} if i % 10 == 0 else None)
        store.maintain()
        for batch in range(12):
            link(store, "plain", writer_id="w", batch_id=batch)
            plain.push(b"between %d" % batch, partition=0)
        shaped = store.create_topic("shaped", schema=SCHEMA, timestamps="producer", compression="zstd", sync="none")
        for i in range(30):
            shaped.push({"n": i, "s": "x"}, timestamp=10_000_000 + (i * 7919) % 1000)
        store.alter_topic("shaped", add_columns=pa.schema([("x", pa.float64())]))
        shaped.refresh()
        shaped.push_many([{"n": 1, "x": 0.5}, {"n": 2}])
        emptied = store.create_topic("emptied")
        emptied.push_many([b"x"] * 5)
        emptied.empty()
        expiring = store.create_topic("expiring", retention=timedelta(days=1))
        for i in range(3):
            expiring.push(b"%d" % i)
            roll(store, "expiring")
        with Maintenance(store, now=now_us() + 2 * DAY_US) as work:
            work.expire(next(each for each in store.catalog.topics() if each.name == "expiring"))
        expiring.push(b"left")
        store.create_topic("gone").push(b"deleted")
        store.delete_topic("gone")
        store.create_topic("gone").push(b"made again")
        store.create_topic("never.used", partitions=2)
        with store.stage(owner=("w", 99)) as stage:
            stage.write("plain", pa.table({"value": [b"staged"]}))
            stage.finish()
        return tables(store)


def facts(store: jjq.Store) -> dict[str, Any]:
    return {
        topic.name: (
            topic.id, topic.partitions, topic.schema, topic.config, [(each.start, each.end) for each in topic.offsets()]
        )
        for topic in store.topics()
    }  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "store"
    make(path)
    return path


@pytest.mark.parametrize("maintained", [False, True])
@pytest.mark.parametrize("lose", LOSSES)
def test_everything_is_as_it_was(made: Path, lose: Callable[[Path], None], maintained: bool, place: Path) -> None:
    path = copy_store(made, place / "store")
    with jjq.open(path) as store:
        if maintained:
            store.maintain(grace_us=0)
        before, known = tables(store), facts(store)
        seeks = [store.topic("shaped").offset_for_timestamp(ts) for ts in range(10_000_000, 10_001_000, 50)]
        writers = [(each.id, each.last_batch) for each in store.writers()]
    lose(path)
    if lose is not contradict_catalog:
        with pytest.raises(jjq.StoreFormat, match="repair"), jjq.open(path) as store:
            store.topics()
    report = repair(path)
    assert report.rebuilt is not None
    assert (report.topics, report.writers, report.lost) == (6, 1, [])
    assert not assert_whole(path).unknown
    with jjq.open(path) as store:
        assert tables(store) == before
        assert facts(store) == known
        assert [(each.id, each.last_batch) for each in store.writers()] == writers
        assert [store.topic("shaped").offset_for_timestamp(ts) for ts in range(10_000_000, 10_001_000, 50)] == seeks
        # What the writer has committed is known, with its places, and what it has not is not.
        again = link(store, "plain", writer_id="w", batch_id=11)
        assert again.duplicate
        assert again.rows == 2
        assert not link(store, "plain", writer_id="w", batch_id=12).duplicate
        with pytest.raises(WriterConflict):
            link(store, "plain", writer_id="w", batch_id=12, query_id="another")
        for topic in store.topics():
            value = b"more" if topic.schema is None else {"n": -1}
            assert topic.push(value, partition=0).offset == topic.offsets()[0].end - 1
        after = tables(store)
        store.maintain(grace_us=0)
        assert tables(store) == after
    assert repair(path).rebuilt is None
    assert_whole(path)


def test_it_is_found_again_as_often_as_it_is_lost(made: Path, place: Path) -> None:
    path = copy_store(made, place / "store")
    with jjq.open(path) as store:
        before = tables(store)
    lineages = []
    for _ in range(3):
        lose_catalog(path)
        repair(path)
        with jjq.open(path) as store:
            assert tables(store) == before
            store.maintain(grace_us=0)
            lineages.append(store.topic("plain").offsets()[0].lineage)
    assert lineages == sorted(set(lineages))
    assert_whole(path)


def test_positions_beyond_what_was_found_are_noticed(place: Path) -> None:
    path = place / "store"
    with jjq.open(path) as store:
        topic = store.create_topic("t", sync="none")
        topic.push_many([b"a", b"b"])
        topic.push_many([b"c", b"d"])
        offsets = topic.offsets()[0]
        assert (offsets.end, offsets.lineage) == (4, 0)
    (data,), (index,) = paths(path, "*.arrows"), paths(path, "*.index")
    data.write_bytes(data.read_bytes()[:-64])  # the last message never reached the disk, nor did the index
    index.unlink()
    lose_catalog(path)
    repair(path)
    with jjq.open(path) as store:
        topic = store.topic("t")
        assert topic.offsets()[0].end == 2
        topic.push_many([b"x", b"y"])
        topic.plan(0, 0, 2, lineage=0)
        with pytest.raises(DataLoss):
            topic.plan(0, 2, 4, lineage=0)
    assert_whole(path)


# --- commits -----------------------------------------------------------------------------------------------------------


def commit_over_two(path: Path) -> None:
    with jjq.open(path) as store, store.stage() as stage:
        stage.write("a", pa.table({"value": [b"1", b"2"]}))
        stage.write("b", pa.table({"value": [b"3"]}), partition=1)
        store.commit(stage.finish(), "w", 7)


@pytest.mark.parametrize("continued", [False, True])
def test_a_commit_that_died_is_taken_whole_or_not_at_all(place: Path, continued: bool) -> None:
    template = place / "template"
    with jjq.open(template) as store:
        store.create_topic("a").push(b"before")
        store.create_topic("b", partitions=2)
    number, seen = 0, set()
    while True:
        number += 1
        path = copy_store(template, place / "killed")
        died = dies(lambda path=path: commit_over_two(path), number)  # type: ignore[misc]
        if continued:
            # Who comes next takes the offsets, so that a commit which left a manifest and no more never was.
            with jjq.open(path) as store:
                store.topic("a").push(b"next")
                roll(store, "a")
                expected = tables(store)
        lose_catalog(path)
        report = repair(path)
        assert report.lost == []
        with jjq.open(path) as store:
            values = {name: table["value"].to_pylist() for name, table in tables(store).items()}
            committed = b"1" in values["a"]
            assert (b"3" in values["b"]) == committed
            assert [each.last_batch for each in store.writers()] == [7] * committed
            if continued:
                assert tables(store) == expected
            seen.add(committed)
            with store.stage() as stage:
                stage.write("a", pa.table({"value": [b"1", b"2"]}))
                assert store.commit(stage.finish(), "w", 7, rows_may_differ=True).duplicate == committed
        assert_whole(path)
        shutil.rmtree(path)
        if not died:
            break
    assert seen == {True, False}


def test_the_same_staged_files_committed_at_a_second_try_count_once(place: Path) -> None:
    path = place / "store"
    with jjq.open(path) as store:
        store.create_topic("t").push(b"first")
        with store.stage() as stage:
            stage.write("t", pa.table({"value": [b"staged"]}))
            staged = stage.finish()
        link_row = store.catalog.link

        def die(*_: Any, **__: Any) -> None:
            raise RuntimeError("died here")

        store.catalog.link = die  # type: ignore[method-assign, assignment]
        with pytest.raises(RuntimeError):
            store.commit(staged, "w", 1)
        store.catalog.link = link_row  # type: ignore[method-assign]
        store.topic("t").push(b"second")
        store.commit(staged, "w", 1)
        before = tables(store)
    assert len(list((path / "links").iterdir())) == 2
    lose_catalog(path)
    assert repair(path).lost == []
    with jjq.open(path) as store:
        assert tables(store) == before
    assert_whole(path)


def test_a_commit_that_lost_a_file_keeps_the_others_when_it_is_known_to_have_been(place: Path) -> None:
    path = place / "store"
    with jjq.open(path) as store:
        store.create_topic("a").push(b"before")
        store.create_topic("b", partitions=2)
    commit_over_two(path)
    with jjq.open(path) as store:
        store.topic("a").push(b"after")
        victim = next(Path(each.path) for each in store.topic("a").segments() if each.state == "sealed")
    victim.unlink()
    lose_catalog(path)
    report = repair(path)
    assert [(each.topic, each.start, each.end) for each in report.lost] == [("a", 1, 3)]
    with jjq.open(path) as store:
        assert store.topic("b").read().read_all()["value"].to_pylist() == [b"3"]
        assert [each.last_batch for each in store.writers()] == [7]
    assert_whole(path)


def test_a_batch_that_was_tried_twice_counts_once(place: Path) -> None:
    """The first try left a manifest and whole files, the second went elsewhere, so that no offset tells them apart."""
    path = place / "store"
    with jjq.open(path) as store:
        store.create_topic("t", partitions=2)
        link_row = store.catalog.link

        def die(*_: Any, **__: Any) -> None:
            raise RuntimeError("died here")

        for partition in (0, 1):
            with store.stage(owner=("w", 1)) as stage:
                stage.write("t", pa.table({"value": [b"once"]}), partition=partition)
                staged = stage.finish()
            store.catalog.link = die if partition == 0 else link_row  # type: ignore[method-assign, assignment]
            try:
                store.commit(staged, "w", 1)
            except RuntimeError:
                assert partition == 0
        before = tables(store)
        assert before["t"].num_rows == 1
    lose_catalog(path)
    repair(path)
    with jjq.open(path) as store:
        assert tables(store) == before
    assert_whole(path)


def test_a_writer_that_was_reset_begins_anew(place: Path) -> None:
    path = place / "store"
    with jjq.open(path) as store:
        store.create_topic("t")
        for batch in range(3):
            link(store, "t", writer_id="w", batch_id=batch)
        store.reset_writer("w")
        link(store, "t", writer_id="w", batch_id=0)
    lose_catalog(path)
    repair(path)
    with jjq.open(path) as store:
        assert store.writers()[0].last_batch == 0
        assert link(store, "t", writer_id="w", batch_id=0).duplicate
        assert not link(store, "t", writer_id="w", batch_id=1).duplicate


# --- compaction --------------------------------------------------------------------------------------------------------


def compacted(path: Path) -> tuple[dict[str, pa.Table], Path, list[Path]]:
    """Rows, the output of a compaction, and its inputs, which are still there."""
    with jjq.open(path) as store:
        topic = store.create_topic("t")
        for i in range(3):
            topic.push_many([b"%d" % i] * 3)
            roll(store, "t")
        inputs = [Path(each.path) for each in topic.segments() if each.rows]
        store.maintain()
        return tables(store), paths(path, "*.arrow")[0], inputs


def test_a_compaction_takes_the_place_of_its_inputs(place: Path) -> None:
    before, output, inputs = compacted(place / "store")
    lose_catalog(place / "store")
    repair(place / "store")
    with jjq.open(place / "store") as store:
        assert tables(store) == before
        assert [each.id for each in store.topic("t").segments()] == [output.stem]
        store.maintain(grace_us=0)
    assert not any(each.exists() for each in inputs)
    assert_whole(place / "store")


def test_a_damaged_compaction_does_not_while_its_inputs_are_there(place: Path) -> None:
    before, output, inputs = compacted(place / "store")
    flip(output, 900)
    lose_catalog(place / "store")
    report = repair(place / "store")
    assert report.lost == []
    assert output.stem in {Path(each).stem for each in report.quarantined}
    with jjq.open(place / "store") as store:
        assert tables(store) == before
        assert [each.id for each in store.topic("t").segments()] == [each.stem for each in inputs]
    assert_whole(place / "store")


# --- what else may be gone ---------------------------------------------------------------------------------------------


def test_a_topic_file_that_is_gone_too_costs_the_name_and_not_the_records(place: Path) -> None:
    path = place / "store"
    with jjq.open(path) as store:
        store.create_topic("plain", partitions=2).push_many([b"a", b"b"], partition=1)
        store.create_topic("shaped", schema=SCHEMA).push({"n": 1, "s": "x"})
        roll(store, "shaped")
        before = tables(store)
        ids = {topic.name: f"recovered-{topic.id[:8]}" for topic in store.topics()}
    lose_catalog(path)
    for each in (path / "topics").glob("*/topic.json"):
        each.unlink()
    report = repair(path)
    assert len([note for note in report.notes if "recovered-" in note]) == 2
    with jjq.open(path) as store:
        assert tables(store) == {ids[name]: table for name, table in before.items()}
        assert store.topic(ids["plain"]).schema is None
    assert_whole(path)


def test_a_topic_file_that_is_gone_is_made_up_for_by_the_backup(place: Path) -> None:
    path = place / "store"
    with jjq.open(path) as store:
        store.create_topic("t", partitions=2, retention_bytes=12345).push(b"a", partition=1)
        store.maintain()
        store.topic("t").push(b"b", partition=1)
        before = tables(store)
    lose_catalog(path)
    (topic_file,) = (path / "topics").glob("*/topic.json")
    topic_file.write_text("{}")
    repair(path)
    with jjq.open(path) as store:
        assert tables(store) == before
        assert store.topic("t").config.retention_bytes == 12345
    assert_whole(path)


def test_a_column_that_the_topic_file_does_not_know_is_in_the_files(place: Path) -> None:
    path = place / "store"
    with jjq.open(path) as store:
        store.create_topic("t", schema=SCHEMA).push({"n": 1})
        (topic_file,) = (path / "topics").glob("*/topic.json")
        old = topic_file.read_bytes()
        store.alter_topic("t", add_columns=pa.schema([("x", pa.int32())]))
        store.topic("t").push({"n": 2, "x": 3})
        before = tables(store)
    topic_file.write_bytes(old)  # who altered it died before
    lose_catalog(path)
    repair(path)
    with jjq.open(path) as store:
        assert tables(store) == before
        assert store.topic("t").schema.names == ["n", "s", "x"]
    assert_whole(path)


@pytest.mark.parametrize(
    ("schema", "records", "name"),
    [(SCHEMA, [{"n": 1}, {"n": 2}], b"n"), (None, [b"a", b"b"], b"value")],
    ids=["columns", "plain values"],
)
def test_a_damaged_head_is_not_taken_for_a_new_schema(
    place: Path, schema: pa.Schema | None, records: list[Any], name: bytes
) -> None:
    path = place / "store"
    with jjq.open(path) as store:
        store.create_topic("t", schema=schema).push_many(records)
        roll(store, "t")
        before = tables(store)
    (data,) = (each for each in paths(path, "*.arrows") if each.stat().st_size > 1000)
    whole = data.read_bytes()
    named = bytes([len(name), 0, 0, 0])
    data.write_bytes(whole.replace(named + name, named + name.upper(), 1))
    assert data.read_bytes() != whole
    lose_catalog(path)
    report = repair(path)
    assert report.lost == []
    with jjq.open(path) as store:
        assert tables(store) == before
        assert store.topic("t").schema == schema
    assert_whole(path)


def test_an_identity_that_is_gone_is_made_again(made: Path, place: Path) -> None:
    path = copy_store(made, place / "store")
    with jjq.open(path) as store:
        before = tables(store)
    (path / "jjq.json").write_text("[]")
    assert "new id" in repair(path).notes[0]
    with jjq.open(path) as store:
        assert tables(store) == before


def test_a_store_of_a_later_version_is_left_alone(made: Path, place: Path) -> None:
    path = copy_store(made, place / "store")
    with jjq.open(path) as store, store.catalog.driver.write(durable=True) as tx:
        tx.connection.execute("PRAGMA user_version = 999")
    data = (path / "catalog.db").read_bytes()
    with pytest.raises(jjq.StoreFormat, match="later"):
        repair(path)
    assert (path / "catalog.db").read_bytes() == data
    body = json.loads((path / "jjq.json").read_text())
    (path / "jjq.json").write_text(json.dumps(body | {"format": 999}))
    with pytest.raises(jjq.StoreFormat, match="upgrade"):
        repair(path)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_it_may_die_at_any_step(made: Path, place: Path) -> None:
    damaged = copy_store(made, place / "damaged")
    with jjq.open(damaged) as store:
        before, known = tables(store), facts(store)
    damage_catalog(damaged)
    number = 0
    while True:
        number += 1
        path = copy_store(damaged, place / "killed")
        died = dies(lambda path=path: repair(path), number, 0.5 * (number % 2))  # type: ignore[misc]
        if not died:
            assert_whole(path)
        assert repair(path).lost == []
        assert not assert_whole(path).unknown
        with jjq.open(path) as store:
            assert tables(store) == before
            assert facts(store) == known
            assert [each.last_batch for each in store.writers()] == [11]
        assert list((path / "quarantine").rglob("catalog.db"))
        shutil.rmtree(path)
        if not died:
            break
    assert number > 10


def test_every_file_operation_is_one_that_the_tests_can_make_fail() -> None:
    """Repair goes through `jjq.files`, so that dying at each change means at each."""
    source = (Path(files.__file__).parent / "repair.py").read_text()
    for word in (".unlink(", ".rename(", "os.replace", "write_bytes", "write_text", "rmtree", ".mkdir("):
        assert source.replace("files.unlink(", "").count(word) == 0, word
