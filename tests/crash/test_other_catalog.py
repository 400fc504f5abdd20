"""A catalog that is whole and of another time, or of another store: its topics are not those of the files."""

import shutil
import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq.repair import repair
from tests.stores import assert_whole


def make(path: Path, name: str) -> None:
    with jjq.open(path, maintenance=False) as store:
        topic = store.create_topic(name, schema=pa.schema([("n", pa.int64())]), segment_rows=10, exist_ok=True)
        for n in range(15):
            topic.push({"n": n})
        topic.push_table(pa.table({"n": range(15, 20)}), writer_id=name, batch_id=1)


def replace_catalog(path: Path, other: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        (path / f"catalog.db{suffix}").unlink(missing_ok=True)
    shutil.copyfile(other, path / "catalog.db")


def of_an_empty_store(path: Path) -> None:
    other = path.with_name("empty")
    jjq.open(other, maintenance=False).close()
    replace_catalog(path, other / "catalog.db")


def of_another_program(path: Path) -> None:
    other = path.with_name("other.db")
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE things (a)")
    connection.close()
    replace_catalog(path, other)
    jjq.open(path, maintenance=False).close()  # who opens it makes it a catalog


def of_before(path: Path) -> None:
    copy = path.with_name("before.db")
    shutil.copyfile(path / "catalog.db", copy)
    make(path, "later")
    replace_catalog(path, copy)


@pytest.mark.parametrize("other", [of_an_empty_store, of_another_program, of_before])
def test_a_catalog_that_does_not_know_a_topic_is_made_again_and_no_record_is_put_away(
    tmp_path: Path, other: object
) -> None:
    path = tmp_path / "store"
    make(path, "t")
    assert callable(other)
    other(path)
    lost = "later" if other is of_before else "t"
    with jjq.open(path, maintenance=False) as store:
        store.maintain()  # keeps the files
        report = store.verify()
    assert [(each.code, each.topic) for each in report.problems] == [("catalog", lost)]
    assert "has records in" in report.problems[0].message
    found = repair(path)
    assert found.rebuilt is not None
    assert not found.lost
    assert not found.gone
    with jjq.open(path, maintenance=False) as store:
        for name in {"t", lost}:
            assert store.topic(name).read().read_all()["n"].to_pylist() == list(range(20))
        assert store.topic(lost).push_table(pa.table({"n": range(15, 20)}), writer_id=lost, batch_id=1).duplicate
        assert_whole(store)


def test_topics_that_were_deleted_or_never_made_are_no_reason_to_make_the_catalog_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    make(path, "t")
    make(path, "gone")
    with jjq.open(path, maintenance=False) as store:
        store.delete_topic("gone")
        assert_whole(store)
    assert repair(path).rebuilt is None
