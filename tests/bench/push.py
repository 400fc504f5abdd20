"""One process pushing: single records, many at once, tables; each beside the least that the disk or a peer does."""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from crc32c import crc32c

import jjq
from tests.bench.run import Run, rate
from tests.bench.table import Row, at_least

VALUE = os.urandom(100)
KEY = b"customer 4711"
MANY = 1000
TABLE_ROWS = 64 << 10


@contextlib.contextmanager
def topic(directory: Path, sync: str) -> Iterator[jjq.Topic]:
    with jjq.open(directory / "store") as store:
        yield store.create_topic("measured", sync=sync)


def disk_bytes(topic: jjq.Topic) -> int:
    return sum(segment.bytes for segment in topic.segments())


class BareFile:
    """A growing file and nothing else: what the disk takes for the same bytes."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self._data, self._end = data, 0

    def append(self, times: int) -> None:
        for _ in range(times):
            self.write(self._data)

    def write(self, data: bytes | memoryview) -> None:
        written = 0
        while written < len(data):
            written += os.pwrite(self._fd, data[written:], self._end + written)
        os.fdatasync(self._fd)
        self._end += len(data)

    def close(self) -> None:
        os.close(self._fd)


INSERT = "INSERT INTO log (timestamp, key, value) VALUES (?, ?, ?)"


def sqlite(path: Path, synchronous: str) -> sqlite3.Connection:
    """A table of what a record is here: a position that is given, a timestamp, a key, a value."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("CREATE TABLE log (position INTEGER PRIMARY KEY, timestamp INTEGER, key BLOB, value BLOB)")
    return connection


def push_one(topic: jjq.Topic, times: int) -> None:
    for _ in range(times):
        topic.push(VALUE)


def push_always(run: Run) -> list[Row]:
    count = run.amount(100, 3)
    with run.place() as place, topic(place, "always") as log:
        push_one(log, 1)
        before = disk_bytes(log)
        push_one(log, 10)
        data = os.urandom((disk_bytes(log) - before) // 10)
        bare = BareFile(place / "bare", data)
        figures = run.interleave(
            {
                "jjq": lambda: rate(count, lambda: push_one(log, count)),
                "bare": lambda: rate(count, lambda: bare.append(count)),
            },
            rounds=31,
        )
        bare.close()
    peer = "write + fdatasync of the same bytes"
    return [
        Row("push of 100 B, always, one thread", peer, "/s", figures["jjq"], figures["bare"], at_least(0.8)),
    ]


class Gathered:
    """Threads of which one writes and syncs for all that wait, and nothing else: what it takes to hand the interpreter over to each."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._data = data
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        # Written over, as our files are.
        os.pwrite(self._file, bytes(len(data) * 64), 0)
        os.fsync(self._file)
        self._queue: list[list[Any]] = []
        self._lock = threading.Lock()
        self._led: list[Any] | None = None

    def append(self, times: int) -> None:
        for _ in range(times):
            wake = threading.Lock()
            wake.acquire()
            me = [wake, False]
            with self._lock:
                leads = self._led is None
                if leads:
                    self._led = me
                self._queue.append(me)
            if not leads:
                wake.acquire()
            if not me[1]:
                with self._lock:
                    taken, self._queue = self._queue, []
                os.pwrite(self._file, self._data * len(taken), 0)
                os.fdatasync(self._file)
                for each in taken:
                    each[1] = True
                    if each is not me:
                        each[0].release()
            if self._led is me:
                with self._lock:
                    self._led = self._queue[0] if self._queue else None
                    if self._led is not None:
                        self._led[0].release()

    def close(self) -> None:
        os.close(self._file)


@contextlib.contextmanager
def one_processor() -> Iterator[None]:
    """The thread inside, and those that it starts, run on one processor."""
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, processors)


def push_threads(run: Run) -> list[Row]:
    # So many each that starting the threads is a small part of it.
    threads, each, alone = run.amount(64, 4), run.amount(200, 2), run.amount(500, 3)

    def together(push: Callable[[int], None]) -> None:
        workers = [threading.Thread(target=push, args=(each,)) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def bound(push: Callable[[int], None]) -> None:
        with one_processor():
            together(push)

    with (
        run.place() as place,
        topic(place, "always") as log,
        contextlib.closing(Gathered(place / "bare", bytes(800))) as bare,
        contextlib.closing(BareFile(place / "disk", os.urandom(800))) as disk,
    ):
        figures = run.interleave(
            {
                "threads": lambda: rate(threads * each, lambda: together(functools.partial(push_one, log))),
                "one": lambda: rate(alone, lambda: push_one(log, alone)),
                "disk": lambda: rate(alone, lambda: disk.append(alone)),
                "bound": lambda: rate(threads * each, lambda: bound(functools.partial(push_one, log))),
                "bare": lambda: rate(threads * each, lambda: together(bare.append)),
            },
            rounds=15,
        )
    return [
        Row("push of 100 B, always, 64 threads", "one thread", "/s", figures["threads"], figures["one"], at_least(4)),
        Row("the same", "one thread's write + fdatasync of 800 B", "/s", figures["threads"], figures["disk"]),
        Row("the same, bound to one processor", "one thread", "/s", figures["bound"], figures["one"]),
        Row(
            "64 threads for which one writes and syncs 800 B each",
            "one thread's push",
            "/s",
            figures["bare"],
            figures["one"],
        ),
    ]


def push_none(run: Run) -> list[Row]:
    count = run.amount(4000, 5)
    with run.place() as place, topic(place, "none") as log:
        peer, alone = sqlite(place / "peer.db", "NORMAL"), sqlite(place / "alone.db", "NORMAL")
        peer.isolation_level = ""  # the module's default: the first statement begins a transaction

        def insert() -> None:
            for _ in range(count):
                peer.execute(INSERT, (time.time_ns() // 1000, None, VALUE))
                peer.commit()

        def push_keyed() -> None:
            for _ in range(count):
                log.push(VALUE, key=KEY)

        def insert_keyed() -> None:
            for _ in range(count):
                peer.execute(INSERT, (time.time_ns() // 1000, KEY, VALUE))
                peer.commit()

        def insert_alone() -> None:
            for _ in range(count):
                alone.execute(INSERT, (time.time_ns() // 1000, None, VALUE))

        figures = run.interleave(
            {
                "jjq": lambda: rate(count, lambda: push_one(log, count)),
                "commit": lambda: rate(count, insert),
                "keyed": lambda: rate(count, push_keyed),
                "commit keyed": lambda: rate(count, insert_keyed),
                "alone": lambda: rate(count, insert_alone),
            },
            rounds=31,
        )
        peer.close()
        alone.close()
    what, ours = "push of 100 B, none", figures["jjq"]
    return [
        Row(what, "SQLite, insert + commit, WAL, NORMAL", "/s", ours, figures["commit"], at_least(1.5)),
        Row(what, "SQLite, the insert its own transaction", "/s", ours, figures["alone"]),
        Row("push of 100 B with a key, none", "SQLite, insert + commit, WAL, NORMAL", "/s", figures["keyed"],
            figures["commit keyed"]),
    ]  # fmt: skip


def push_many(run: Run) -> list[Row]:
    batches = run.amount(20, 2)
    rows = batches * MANY
    values = [os.urandom(100) for _ in range(MANY)]
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(run.place())
        log = stack.enter_context(topic(place, "always"))
        full = sqlite(place / "peer.db", "FULL")
        stack.callback(full.close)
        log.push_many(values)
        before = disk_bytes(log)
        log.push_many(values)
        bare = BareFile(place / "bare", os.urandom(disk_bytes(log) - before))
        stack.callback(bare.close)
        arrow = BareFile(place / "arrow", b"")
        stack.callback(arrow.close)

        def ours() -> None:
            for _ in range(batches):
                log.push_many(values)

        def message() -> None:
            for _ in range(batches):
                batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["value"])
                data = memoryview(batch.serialize())
                crc32c(data)
                arrow.write(data)

        def insert() -> None:
            for _ in range(batches):
                now = time.time_ns() // 1000
                full.execute("BEGIN")
                full.executemany(INSERT, [(now, None, value) for value in values])
                full.execute("COMMIT")

        sides = {
            "jjq": lambda: rate(rows, ours),
            "sqlite": lambda: rate(rows, insert),
            "bare": lambda: rate(rows, lambda: bare.append(batches)),
            "arrow": lambda: rate(rows, message),
        }
        leveldb, why = None, ""
        try:
            import plyvel  # has wheels for some Pythons only

            leveldb = plyvel.DB(str(place / "leveldb"), create_if_missing=True)
            stack.callback(leveldb.close)
        except ImportError:
            why = "plyvel is not installed; it has wheels for Python below 3.13 on Linux x86-64"
        next_key = 0

        def put() -> None:
            nonlocal next_key
            assert leveldb is not None
            for _ in range(batches):
                with leveldb.write_batch(sync=True) as batch:
                    for key, value in enumerate(values, next_key):
                        batch.put(key.to_bytes(8, "big"), value)
                next_key += MANY

        if leveldb is not None:
            sides["leveldb"] = lambda: rate(rows, put)
        figures = run.interleave(sides, rounds=31)
    what = "push_many of 1,000 x 100 B, always"
    return [
        Row(what, "LevelDB, one write batch, sync", "/s", figures["jjq"] if leveldb else (), figures.get("leveldb", ()),
            at_least(1.2), skipped=why),
        Row(what, "SQLite, one transaction, WAL, FULL", "/s", figures["jjq"], figures["sqlite"], at_least(5)),
        Row(what, "write + fdatasync of the same bytes", "/s", figures["jjq"], figures["bare"]),
        Row("1,000 x 100 B made an Arrow message, summed up, written, synced", "SQLite, one transaction, WAL, FULL", "/s",
            figures["arrow"], figures["sqlite"]),
    ]  # fmt: skip


def push_table(run: Run) -> list[Row]:
    rows, times = run.amount(TABLE_ROWS, 100), run.amount(4, 1)
    data = os.urandom(100 * rows)
    values = pa.array([data[i : i + 100] for i in range(0, len(data), 100)], pa.binary())
    table = pa.table({"value": values})

    def ours(log: jjq.Topic) -> None:
        for _ in range(times):
            log.push_table(table)

    with run.place() as place, topic(place, "always") as log:
        log.push_table(table)
        bare = BareFile(place / "bare", os.urandom(disk_bytes(log)))
        figures = run.interleave(
            {
                "jjq": lambda: rate(times * rows, lambda: ours(log)),
                "bare": lambda: rate(times * rows, lambda: bare.append(times)),
            },
            rounds=21,
        )
        bare.close()
    return [
        Row("push_table of 64 Ki rows of 100 B, always", "write + fdatasync of the same bytes", "/s", figures["jjq"],
            figures["bare"], at_least(0.6)),
    ]  # fmt: skip


BENCHMARKS = {
    "push-always": push_always,
    "push-threads": push_threads,
    "push-none": push_none,
    "push-many": push_many,
    "push-table": push_table,
}
