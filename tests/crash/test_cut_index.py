"""An index that has lost its end, though nobody has rebooted: who appends must neither wait for ever nor lose what it no longer names."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jjq
from jjq.errors import DamagedSegment
from jjq.log.format import ENTRY_SIZE
from jjq.repair import repair
from tests.crash.checks import open_alone
from tests.stores import assert_whole, paths, roll

VALUES = [b"%d" % i for i in range(12)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with open_alone(tmp_path) as store:
        topic = store.create_topic("t")
        for value in VALUES:
            topic.push(value)
    return tmp_path


@pytest.fixture
def held(path: Path) -> Iterator[jjq.Topic]:
    """By a process that has the file open and knows what it holds."""
    with open_alone(path) as store:
        store.topic("t").push(b"known")
        yield store.topic("t")


def cut(path: Path, length: int, pattern: str = "*.index") -> None:
    (file,) = paths(path, pattern)
    os.truncate(file, length)


@pytest.mark.parametrize("entries", [0, 1, 5, len(VALUES)])
def test_who_has_it_open_and_appends_is_told(entries: int, held: jjq.Topic, path: Path) -> None:
    cut(path, entries * ENTRY_SIZE)
    for _ in range(2):
        with pytest.raises(DamagedSegment, match="jjq repair"):
            held.push(b"next")


@pytest.mark.parametrize(
    "append",
    [
        lambda store: store.topic("t").push(b"next"),
        lambda store: store.topic("t").push_many([b"next"], atomic=True),
        lambda store: store.alter_topic("t", sync="none"),
    ],
    ids=["push", "link", "alter"],
)
@pytest.mark.parametrize("entries", [1, 5, len(VALUES) - 1])
def test_who_opens_it_and_ends_it_loses_nothing(
    entries: int, append: Callable[[jjq.Store], object], path: Path
) -> None:
    cut(path, entries * ENTRY_SIZE)
    with open_alone(path) as store, pytest.raises(DamagedSegment, match="jjq repair"):
        append(store)
    repair(path)
    with open_alone(path) as store:
        topic = store.topic("t")
        topic.push(b"next")
        assert topic.read().read_all()["value"].to_pylist() == [*VALUES, b"next"]
        assert_whole(store)


@pytest.mark.parametrize(
    "drop", [lambda store: store.topic("t").empty(), lambda store: store.delete_topic("t")], ids=["empty", "delete"]
)
def test_who_wants_nothing_of_it_may_drop_it(drop: Callable[[jjq.Store], object], path: Path) -> None:
    cut(path, 5 * ENTRY_SIZE)
    with open_alone(path) as store:
        drop(store)
        assert_whole(store)


def test_nothing_is_appended_to_a_file_that_is_empty_as_its_index(path: Path) -> None:
    cut(path, 0)
    cut(path, 0, "*.arrows")
    with open_alone(path) as store, pytest.raises(DamagedSegment, match="the index is empty"):
        store.topic("t").push(b"next")


@pytest.mark.parametrize("rolled", [False, True], ids=["active", "rolled"])
@pytest.mark.parametrize("entries", [1, 2, len(VALUES)])
def test_a_catalog_made_again_knows_the_records_that_it_no_longer_names(entries: int, rolled: bool, path: Path) -> None:
    """An append does not sync it, so of a young file a power cut may leave one that names none."""
    if rolled:
        with open_alone(path) as store:
            roll(store, "t")
    [index] = [each for each in paths(path, "*.index") if each.stat().st_size > 2 * ENTRY_SIZE]
    os.truncate(index, entries * ENTRY_SIZE)
    for each in path.glob("catalog.db*"):
        each.unlink()
    repair(path)
    with open_alone(path) as store:
        assert store.topic("t").read().read_all()["value"].to_pylist() == VALUES
        store.topic("t").push(b"next")
        assert_whole(store)
