"""A catalog made again from the files and from its backup, or from an old copy: what came since is there too."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq import objects
from jjq.repair import repair
from tests.crash.losing import damage_catalog, empty_catalog, link, lose_catalog
from tests.stores import assert_whole, flip, paths, roll, tables


def test_cursors_come_from_the_backup(place: Path) -> None:
    path = place / "store"
    with jjq.open(path) as store:
        store.create_topic("t", partitions=2).push_many([b"%d" % i for i in range(10)], partition=1)
        subscriber = store.create_subscriber("t", "s")
        for _ in range(4):
            subscriber.pop()
        store.maintain()
        subscriber.pop()
    lose_catalog(path)
    os.utime(path / "catalog.backup.db", (1_700_000_000, 1_700_000_000))
    report = repair(path)
    assert report.subscribers == 1
    (note,) = report.notes
    assert "of 2023-11-14T22:13:20.000000Z" in note
    assert "may come again, and those made since are gone" in note
    assert f"note: {note}" in str(report)
    assert report.to_dict()["notes"] == [note]
    again = repair(path)
    assert (again.rebuilt, again.topics, again.writers, again.subscribers) == (None, 1, 0, 1)
    assert again.notes == []
    with jjq.open(path) as store:
        assert store.subscriber("s").pop().value == b"4"
    lose_catalog(path)
    (path / "catalog.backup.db").write_bytes(b"damaged too")
    report = repair(path)
    assert report.subscribers == 0
    assert "subscribers" in report.notes[0]
    assert_whole(path)


def test_objects_stay_that_records_since_the_backup_refer_to(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were on their way in then, and those that were pushed again."""
    path = place / "store"
    with jjq.open(path) as store:
        topic = store.create_topic("t", segment_rows=1)
        topic.push_file(b"again", "before")
        keep = objects.Incoming.keep

        def backed_up_amid(incoming: objects.Incoming, target: Path) -> None:
            store.maintain()
            keep(incoming, target)

        with monkeypatch.context() as patched:
            patched.setattr(objects.Incoming, "keep", backed_up_amid)
            topic.push_file(b"on its way", "since")
        topic.push_file(b"again", "since")
    lose_catalog(path)
    repair(path)
    with jjq.open(path) as store:
        topic = store.alter_topic("t", retention_segments=2)
        store.maintain()
        assert [each.start for each in topic.offsets()] == [1]
        for each in topic.records(topic.plan(0, 1, 3)):
            with store.open_object(each) as stream:
                assert stream.read() in (b"again", b"on its way")
        assert_whole(store)


def test_an_old_copy_of_the_catalog_put_back_costs_nothing(place: Path) -> None:
    path = place / "store"
    with jjq.open(path) as store:
        topic = store.create_topic("t")
        topic.push(b"early")
        store.create_subscriber("t", "s")
    old = (path / "catalog.db").read_bytes()
    with jjq.open(path) as store:
        for i in range(20):
            store.topic("t").push(b"%d" % i)
            roll(store, "t")
        link(store, "t", writer_id="w", batch_id=1)
        store.topic("t").push(b"late")
        store.maintain(grace_us=0)
        store.topic("t").push(b"last")
        before = tables(store)
    lose_catalog(path)
    (path / "catalog.db").write_bytes(old)
    report = repair(path)
    assert "missing" in (report.rebuilt or "")
    assert report.lost == []
    with jjq.open(path) as store:
        assert tables(store) == before
        assert store.subscriber("s").pop().value == b"early"
        assert store.writers()[0].last_batch == 1
    assert_whole(path)


def make_grown(path: Path) -> dict[str, pa.Table]:
    """A topic that got partitions since the catalog's backup, with records in them, and some who read it."""
    with jjq.open(path) as store:
        store.create_topic("t", partitions=2).push_many([b"old"] * 3, partition=1)
        store.create_subscriber("t", "s", start="latest")
        store.channel("t", "c", create=True, start="latest")
        store.maintain()
        topic = store.alter_topic("t", partitions=5)
        topic.push_many([b"a", b"b"], partition=3)
        return tables(store)


@pytest.mark.parametrize("lose", [lose_catalog, damage_catalog, empty_catalog])
@pytest.mark.parametrize("known", [True, False])
def test_partitions_that_were_added_since_the_backup_are_there(
    lose: Callable[[Path], None], known: bool, place: Path
) -> None:
    """Though `topic.json` may not say so yet, where the process that added them died at once."""
    path = place / "store"
    before = make_grown(path)
    (written,) = (path / "topics").glob("*/topic.json")
    if not known:
        body = json.loads(written.read_text())
        spans = {partition: body["offsets"][partition] for partition in ("0", "1")}
        written.write_text(json.dumps(body | {"partitions": 2, "offsets": spans}))
    lose(path)
    assert repair(path).lost == []
    with jjq.open(path) as store:
        count = 5 if known else 4
        assert (store.topic("t").partitions, tables(store)) == (count, before)
        assert store.subscriber("s").positions() == {0: 0, 1: 3} | dict.fromkeys(range(2, count), 0)
        assert [each.value for each in store.subscriber("s").poll()] == [b"a", b"b"]
        assert [each.record.value for each in store.channel("t", "c").receive(10)] == [b"a", b"b"]
        assert_whole(store)
    assert json.loads(written.read_text())["partitions"] == count


def test_a_file_that_was_repaired_before_is_not_missed(place: Path) -> None:
    path = place / "store"
    with jjq.open(path, maintenance=False) as store:
        topic = store.create_topic("t")
        topic.push_many([b"%d" % i for i in range(5)])
        store.maintain()  # the backup knows the active file
        topic.push(b"after")
        before = tables(store)
    [index] = paths(path, "*.index")
    flip(index, 100)
    assert repair(path).lost == []
    lose_catalog(path)
    report = repair(path)
    assert report.rebuilt
    assert [each for each in report.notes if "is gone" in each] == report.gone == report.lost == []
    with jjq.open(path, maintenance=False) as store:
        assert tables(store) == before


def test_an_old_copy_of_the_catalog_put_back_costs_no_partition(place: Path) -> None:
    path = place / "store"
    before = make_grown(path)
    old = (path / "catalog.backup.db").read_bytes()
    lose_catalog(path)
    (path / "catalog.db").write_bytes(old)
    assert "it knows 2 of the 5 partitions" in (repair(path).rebuilt or "")
    with jjq.open(path) as store:
        assert tables(store) == before
    assert not assert_whole(path).unknown
