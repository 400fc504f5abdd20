"""Writers killed at random instants while others write, link, compact and read: every acknowledged record is there, once."""

import multiprocessing
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

import jjq
from tests.crash import workers
from tests.stores import assert_whole

CONTEXT = multiprocessing.get_context("forkserver")
KINDS = (*workers.WRITES, "maintain")
LONGEST_S = 0.003  # between what a process told last and its death: longer than any call takes on an idle machine


@dataclass
class Life:
    """One process from its start to its death, and what it told."""

    kind: str
    name: str
    first: int
    partition: int
    told: list[tuple[int, int]] = field(default_factory=list)


class Killer:
    """Starts processes on a store and kills them."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.chance = random.Random(seed)
        self.lives: list[Life] = []
        self._running: dict[str, tuple[BaseProcess, Connection, Life]] = {}

    def start(self, kind: str, partition: int) -> None:
        number = len(self.lives)
        life = Life(kind, f"{kind.split()[0]}-{number}", 0, partition)
        if kind == "link":
            # The same writer goes on: with the batch that the dead one had begun, which may be there already.
            before = [each for each in self.lives if each.kind == "link"]
            life.name = before[0].name if before else life.name
            life.first = max((batch for each in before for batch, _ in each.told), default=-1) + 1
            life.partition = before[0].partition if before else partition
        theirs, mine = CONTEXT.Pipe()
        arguments = () if kind == "maintain" else (kind, life.name, life.first, life.partition)
        target: Any = workers.maintain if kind == "maintain" else workers.write
        process = CONTEXT.Process(target=target, args=(self.path, mine, *arguments), daemon=True)
        process.start()
        mine.close()
        self._running[kind] = (process, theirs, life)
        self.lives.append(life)

    def kill(self, kind: str) -> None:
        theirs, life = self._running[kind][1:]
        # A turn of maintenance is long, and the next one has begun when it has told of one: its instant is anywhere in it.
        for _ in range(self.chance.randrange(2 if kind == "maintain" else 8)):
            life.told.append(theirs.recv())
        # Not a wait for something: the instant has to be any, so it is not one that the process knows of.
        until = time.perf_counter() + self.chance.random() * LONGEST_S
        while time.perf_counter() < until:
            pass
        self._end(kind)

    def _end(self, kind: str) -> None:
        process, theirs, life = self._running.pop(kind)
        process.kill()
        process.join()
        while True:
            try:
                life.told.append(theirs.recv())
            except (EOFError, OSError):
                break
        theirs.close()

    def close(self) -> None:
        for kind in list(self._running):
            self._end(kind)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    # What each child would import at first: what its parent runs, which is pytest, and what pyarrow looks for.
    CONTEXT.set_forkserver_preload(["pandas", "pytest", "tests.crash.workers", "jjq.maintenance"])
    with jjq.open(tmp_path / "store") as store:
        store.create_topic(workers.TOPIC, partitions=2, segment_rows=40)
    return tmp_path / "store"


@pytest.fixture
def reader(path: Path) -> Iterator[Connection]:
    theirs, mine = CONTEXT.Pipe()
    process = CONTEXT.Process(target=workers.read, args=(path, mine), daemon=True)
    process.start()
    mine.close()
    yield theirs
    process.kill()
    process.join()


def check_told(path: Path, lives: list[Life]) -> int:
    """Every record that was told is where it was told to be; calls are there whole, once, and in their order."""
    with jjq.open(path) as store:
        topic = store.topic(workers.TOPIC)
        tables = [topic.read(partitions=[p], metadata=["_key"]).read_all() for p in range(topic.partitions)]
        assert_whole(store)
    values, keys = ([table[name].to_pylist() for table in tables] for name in ("value", "_key"))
    of_names: list[dict[bytes, list[bytes]]] = [{} for _ in values]  # what each has written, in order
    for names, part in zip(of_names, values, strict=True):
        for value in part:
            names.setdefault(value.partition(b" ")[0], []).append(value)
    records = 0
    for life in lives:
        if life.kind == "maintain":
            continue
        many = 1 if life.kind in workers.SINGLE else workers.ROWS
        for number, offset in life.told:
            assert values[life.partition][offset : offset + many] == workers.rows(life.name, number, many)
            key = workers.single_key(number) if life.kind in workers.SINGLE else None
            assert keys[life.partition][offset] == key
            records += many
    for name in {life.name for life in lives if life.kind != "maintain"}:
        mine = [life for life in lives if life.name == name]
        many = 1 if mine[0].kind in workers.SINGLE else workers.ROWS
        found = of_names[mine[0].partition].get(name.encode(), [])
        last = max((number for life in mine for number, _ in life.told), default=-1)
        calls = len(found) // many
        # The call during which the process died may be there or not; a linked batch was then tried again.
        assert last + 1 <= calls <= last + 2
        assert found == [value for number in range(calls) for value in workers.rows(name, number, many)]
        assert name.encode() not in of_names[1 - mine[0].partition]
    return records


def kill_many(path: Path, reader: Connection, kills: int, seed: int) -> None:
    killer = Killer(path, seed)
    try:
        for kind in KINDS:
            killer.start(kind, killer.chance.randrange(2))
        for number in range(kills):
            kind = KINDS[number % len(KINDS)]
            killer.kill(kind)
            killer.start(kind, killer.chance.randrange(2))
    finally:
        killer.close()
    reader.send("stop")
    assert reader.recv() == [True, True], "a reader saw records that then were others"
    assert min(reader.recv()) > 0
    assert check_told(path, killer.lives) > kills


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_kills_lose_nothing_that_was_acknowledged(path: Path, reader: Connection) -> None:
    kill_many(path, reader, kills=200, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2, 7))
def test_thousands_of_kills_lose_nothing_that_was_acknowledged(path: Path, reader: Connection, seed: int) -> None:
    kill_many(path, reader, kills=1000, seed=seed)
