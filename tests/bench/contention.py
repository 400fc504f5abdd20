"""Several processes at once: how long each waits for its turn."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from itertools import chain
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Protocol

import jjq
from jjq.catalog.sqlite import SqliteDriver
from tests.bench.push import VALUE, disk_bytes
from tests.bench.run import Run, percentile
from tests.bench.table import Row, at_most, below

_PAUSE_S = 0.005  # of who does something else between two writes, as all do

Prepare = Callable[[Path, int], dict[str, Callable[[], object]]]


class Act(Protocol):
    def __call__(self, side: str, duration: float = 0.0, times: int = 0, pause: float = 0.0) -> list[float]: ...


def _worker(pipe: Connection, barrier: Barrier, prepare: Prepare, place: Path, number: int) -> None:
    """Serves `(side, duration, times, pause)`: does it again and again from when all are ready, for so many seconds or, where it
    is given, so many times, with a pause between two; answers with the seconds of each."""
    sides = prepare(place, number)
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        side, duration, times, pause = order
        act = sides[side]
        taken: list[float] = []
        barrier.wait()
        started = time.perf_counter()
        until = started + duration
        while len(taken) < times if times else started < until:
            act()
            ended = time.perf_counter()
            taken.append(ended - started)
            if pause:
                time.sleep(pause)
                ended = time.perf_counter()
            started = ended
        pipe.send(taken)


@contextlib.contextmanager
def processes(count: int, prepare: Prepare, place: Path) -> Iterator[Act]:
    """So many processes that do the same sides; the function runs one in all, for a time or so many times in each, and
    returns the seconds that each act took."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count)
    pipes, workers = [], []
    for number in range(count):
        here, there = context.Pipe()
        worker = context.Process(target=_worker, args=(there, barrier, prepare, place, number), daemon=True)
        worker.start()
        there.close()
        pipes.append(here)
        workers.append(worker)
    for pipe in pipes:
        pipe.recv()

    def act(side: str, duration: float = 0.0, times: int = 0, pause: float = 0.0) -> list[float]:
        for pipe in pipes:
            pipe.send((side, duration, times, pause))
        return [each for pipe in pipes for each in pipe.recv()]

    try:
        yield act
    finally:
        for pipe in pipes:
            pipe.send(None)
        for worker in workers:
            worker.join()
        for pipe in pipes:
            pipe.close()


def _pushers(place: Path, number: int) -> dict[str, Callable[[], object]]:
    log = jjq.open(place / "store").topic("measured")
    data = os.urandom(int((place / "bytes").read_text()))
    bare = os.open(place / "bare", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT)

    def append() -> None:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(bare, data)
        os.fdatasync(bare)
        fcntl.flock(lock, fcntl.LOCK_UN)

    return {"jjq": lambda: log.push(VALUE), "bare": append}


def push_processes(run: Run) -> list[Row]:
    count, duration = run.amount(6, 2), 0.001 if run.quick else 1.0
    with run.place() as place:
        with jjq.open(place / "store") as store:
            log = store.create_topic("measured", sync="always")
            log.push(VALUE)
            before = disk_bytes(log)
            log.push(VALUE)
            (place / "bytes").write_text(str(disk_bytes(log) - before))
        with processes(count, _pushers, place) as act:
            figures = run.interleave(
                {"jjq": lambda: act("jjq", duration), "bare": lambda: act("bare", duration)}, rounds=15
            )
    ours, bare = figures["jjq"], figures["bare"]
    peer = "flock + write + fdatasync, 6 processes"
    return [
        Row("push of 100 B, always, 6 processes, p99", f"{peer}, p99", "s", [percentile(each, 99) for each in ours],
            [percentile(each, 99) for each in bare], at_most(1.3)),
        # One second of the disk decides the p99 of a round.
        Row("the same, p99 of all rounds", f"{peer}, p99 of all rounds", "s", [percentile([*chain(*ours)], 99)],
            [percentile([*chain(*bare)], 99)]),
        Row("the same, median", f"{peer}, median", "s", [percentile(each, 50) for each in ours],
            [percentile(each, 50) for each in bare]),
    ]  # fmt: skip


def _catalog_writers(place: Path, number: int) -> dict[str, Callable[[], object]]:
    driver = SqliteDriver(place / "catalog.db", place / "catalog.lock")
    peer = sqlite3.connect(place / "peer.db", isolation_level=None, timeout=60)
    peer.execute("PRAGMA synchronous = FULL")

    def ours() -> None:
        with driver.write(durable=True) as tx:
            tx.run("set_meta", key=f"writer {number}", value=str(time.monotonic_ns()))

    def busy() -> None:
        peer.execute("BEGIN IMMEDIATE")
        peer.execute(
            "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (f"writer {number}", str(time.monotonic_ns())),
        )
        peer.execute("COMMIT")

    return {"jjq": ours, "busy": busy}


def catalog(run: Run) -> list[Row]:
    # As often in each process: by time, those that starve would hardly count, and they are what it is about.
    count, times = run.amount(8, 2), run.amount(150, 2)
    with run.place() as place:
        for name in ("catalog", "peer"):
            driver = SqliteDriver(place / f"{name}.db", place / f"{name}.lock")
            driver.migrate()
            driver.close()
        with processes(count, _catalog_writers, place) as act:
            figures = run.interleave(
                {
                    "jjq": lambda: act("jjq", times=times), "busy": lambda: act("busy", times=times),
                    "jjq, now and then": lambda: act("jjq", times=times, pause=_PAUSE_S),
                    "busy, now and then": lambda: act("busy", times=times, pause=_PAUSE_S),
                },
                rounds=11,
            )  # fmt: skip
    peer = "SQLite's busy handler alone"
    measured = [
        (what, said, name, [percentile(each, percent) for each in figures[f"jjq{how}"]],
         [percentile(each, percent) for each in figures[f"busy{how}"]])
        for what, said, how in (
            ("catalog write, durable, 8 processes", peer, ""),
            (f"the same, {_PAUSE_S * 1000:.0f} ms after the last one", f"{peer}, so too", ", now and then"),
        )
        for name, percent in (("p99", 99), ("maximum", 100))
    ]  # fmt: skip
    return [
        Row(f"{what}, {name}", f"{said}, {name}", "s", ours, peers, below(1) if said == peer else None)
        for what, said, name, ours, peers in measured
    ]


BENCHMARKS = {"push-processes": push_processes, "catalog": catalog}
