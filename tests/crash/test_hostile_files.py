"""Small files and rows that are no damage by chance: what they say is refused, by name, and takes neither memory nor time."""

import json
import sqlite3
from pathlib import Path

import pytest

import jjq
from jjq import topicfile
from jjq.errors import StoreFormat
from jjq.repair import repair
from jjq.verify import verify
from tests.stores import assert_whole

DEEP = "[" * 100_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        store.create_topic("t").push(b"x")
    return tmp_path / "store"


def in_catalog(path: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(path / "catalog.db") as connection:
        connection.execute(statement, values)
    connection.close()


@pytest.mark.parametrize(
    "text", [DEEP, '{"format": 1}', '{"format": 1, "id": 5}', '{"format": 1e400, "id": "a"}', "[]"]
)
def test_a_store_whose_identity_is_none_is_refused_and_gets_another(path: Path, text: str) -> None:
    (path / "jjq.json").write_text(text)
    with pytest.raises(StoreFormat, match=r"jjq.json cannot be read"):
        jjq.open(path)
    repair(path)
    with jjq.open(path, maintenance=False) as store:
        assert_whole(store)


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("UPDATE topics SET config = ?", DEEP), ("UPDATE topics SET partitions = ?", 1_000_000_000),
        ("UPDATE topics SET partitions = ?", "many"), ("UPDATE topic_schemas SET schema = ?", "text"),
    ],
)  # fmt: skip
def test_a_row_of_a_topic_that_makes_no_sense_is_refused_and_made_again(
    path: Path, statement: str, value: object
) -> None:
    in_catalog(path, statement, value)
    with jjq.open(path, maintenance=False) as store:
        assert [each.code for each in store.verify().problems] == ["catalog"]
        with pytest.raises(StoreFormat, match=r"cannot be read .*; `jjq repair` makes it again"):
            store.topic("t")
    assert repair(path).rebuilt is not None
    with jjq.open(path, maintenance=False) as store:
        assert store.topic("t").read().read_all()["value"].to_pylist() == [b"x"]
        assert_whole(store)


@pytest.mark.parametrize("changed", [{"partitions": 1_000_000_000}, {"name": "../t"}, {"name": "\x1b[2J"}, None])
def test_a_topic_file_that_makes_no_sense_is_none(path: Path, changed: dict[str, object] | None) -> None:
    (directory,) = (path / "topics").iterdir()
    body = json.loads((directory / "topic.json").read_text())
    del body["crc32c"]
    (directory / "topic.json").write_text(DEEP if changed is None else json.dumps(body | changed))
    assert topicfile.read(path, directory.name) is None
    for name in ("catalog.db", "catalog.db-wal", "catalog.db-shm"):
        (path / name).unlink(missing_ok=True)
    repair(path)
    with jjq.open(path, maintenance=False) as store:
        (topic,) = store.topics()
        assert topic.read().read_all()["value"].to_pylist() == [b"x"]
        assert_whole(store)


def test_a_later_catalog_is_not_read_either(path: Path) -> None:
    in_catalog(path, "PRAGMA user_version = 999")
    with jjq.open(path, read_only=True) as store:
        with pytest.raises(StoreFormat, match="has catalog version 999, this jjq knows up to"):
            store.topic("t")
        with pytest.raises(StoreFormat, match="upgrade jjq"):
            verify(store)
