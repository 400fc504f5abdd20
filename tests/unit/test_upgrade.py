"""A store whose catalog an older version of jjq has made."""

from __future__ import annotations

import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq import founding
from jjq.catalog.sqlite import migrations
from tests.stores import assert_whole

LATEST = migrations()[-1][0]


def version_of(path: Path) -> int:
    with sqlite3.connect(path / "catalog.db") as connection:
        [(version,)] = connection.execute("PRAGMA user_version")
    connection.close()
    return int(version)


def made_by(version: int, path: Path) -> None:
    """A store with five records, its catalog as that version has it."""
    with jjq.open(path, maintenance=False) as store:
        topic = store.create_topic("t")
        topic.push_many([b"0", b"1", b"2"])
        topic.push_table(pa.table({"value": [b"3"]}), writer_id="w", batch_id=7)
        topic.push(b"4")
    newer, catalog = path / "newer.db", path / "catalog.db"
    catalog.rename(newer)
    connection = sqlite3.connect(catalog, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    for number, statements in migrations():
        if number <= version:
            connection.executescript(statements)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.execute("ATTACH ? AS newer", (os.fspath(newer),))
    tables = "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    for (table,) in connection.execute(tables).fetchall():
        columns = ", ".join(row[1] for row in connection.execute(f"PRAGMA main.table_info({table})"))
        connection.execute(f"INSERT OR REPLACE INTO main.{table} ({columns}) SELECT {columns} FROM newer.{table}")
    connection.close()
    newer.unlink()


def values(store: jjq.Store) -> list[bytes]:
    return store.topic("t").read(metadata=[]).read_all()["value"].to_pylist()


@pytest.mark.parametrize("version", range(1, LATEST))
def test_it_opens_with_all_that_it_has(tmp_path: Path, version: int) -> None:
    path = tmp_path / "store"
    made_by(version, path)
    assert version_of(path) == version
    with jjq.open(path, maintenance=False) as store:
        assert values(store) == [b"0", b"1", b"2", b"3", b"4"]
        assert store.topic("t").push_table(pa.table({"value": [b"3"]}), writer_id="w", batch_id=7).duplicate
        store.topic("t").push(b"5")
        store.channel("t", "c", create=True).receive(10)
        assert [each["name"] for each in store.stats()["topics"]] == ["t"]
    assert version_of(path) == LATEST
    assert_whole(path)


def test_it_is_not_upgraded_under_who_has_it_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of the older version would not notice that its tables have changed."""
    monkeypatch.setattr(founding, "_UPGRADE_S", 0.01)
    path = tmp_path / "store"
    made_by(LATEST - 1, path)
    before = (path / "catalog.db").read_bytes()
    with jjq.open(path, read_only=True) as old:
        for _ in range(2):
            with pytest.raises(jjq.StoreError, match=rf"open in .*{os.getpid()}|this process.*stop what uses it"):
                jjq.open(path)
        assert values(old) == [b"0", b"1", b"2", b"3", b"4"]
        assert (version_of(path), (path / "catalog.db").read_bytes()) == (LATEST - 1, before)
    with jjq.open(path, maintenance=False) as store, jjq.open(path, maintenance=False) as another:
        assert values(store) == values(another)
    assert version_of(path) == LATEST


def test_several_that_open_it_at_once_do_not_stand_in_each_others_way(tmp_path: Path) -> None:
    path = tmp_path / "store"
    made_by(LATEST - 1, path)
    barrier = threading.Barrier(8)

    def push(number: int) -> None:
        barrier.wait()
        while True:
            try:
                store = jjq.open(path, maintenance=False)
                break
            except jjq.StoreError as error:
                if "upgraded by another process; try again" not in str(error):  # for a moment
                    raise
        with store:
            store.topic("t").push(b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(push, range(8)))
    with jjq.open(path, maintenance=False) as store:
        assert sorted(values(store)[5:]) == [b"%d" % number for number in range(8)]
    assert_whole(path)
