"""What this machine does: figures for `jjq bench`, each beside the least that the same work can cost.

Small and quick, so a figure is good to a factor of two. The peer of what is pushed is a bare file that gets the same bytes
by `write` and `fdatasync`.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from jjq.store import Store, open_store
from jjq.topic import Topic

_MANY = 1000
_ROUNDS = 3  # of each side, in turn, so that both meet what else the machine does; the median counts
_WAKES = 200


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` and `peer` are records a second (`/s`) or seconds (`s`); `peer_is` says what the peer does, None: there is none."""

    what: str
    unit: str
    value: float
    peer: float | None = None
    peer_is: str | None = None

    def to_dict(self) -> dict[str, Any]:
        ratio = None if not self.peer else self.value / self.peer
        return {**asdict(self), "ratio": ratio}


def measure(path: Path, *, value_bytes: int = 100, seconds: float = 1.0) -> Iterator[Figure]:
    """Figures as they are taken, in topics of its own that are deleted at the end. `seconds` is for each side of each."""
    with open_store(path, maintenance=False) as store, contextlib.ExitStack() as undo:
        names = iter(range(1 << 30))

        def topic(**settings: Any) -> Topic:
            made = store.create_topic(f"jjq-bench-{os.getpid()}-{next(names)}", **settings)
            undo.callback(store.delete_topic, made.name)
            return made

        bare = undo.enter_context(_BareFile(path / f"jjq-bench-{os.getpid()}.tmp"))
        value = os.urandom(value_bytes)
        yield from _publish(store, topic, bare, value, seconds)
        yield _wake(store, topic(sync="none"), value)
        yield from _resume(store, topic(sync="none"), value, seconds)


class _BareFile:
    """A growing file and nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._end = 0

    def append(self, data: bytes) -> None:
        os.pwrite(self._fd, data, self._end)
        os.fdatasync(self._fd)
        self._end += len(data)

    def __enter__(self) -> _BareFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        self._path.unlink()


def _rate(act: Callable[[], object], count: int, seconds: float) -> float:
    """How many a second, of an act that does `count`."""
    began = time.perf_counter()
    done = 0
    while (taken := time.perf_counter() - began) < seconds or not done:
        act()
        done += count
    return done / taken


def _beside(
    ours: Callable[[], object], theirs: Callable[[], object], count: int, seconds: float
) -> tuple[float, float]:
    pairs = [(_rate(ours, count, seconds / _ROUNDS), _rate(theirs, count, seconds / _ROUNDS)) for _ in range(_ROUNDS)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


def _publish(
    store: Store, topic: Callable[..., Topic], bare: _BareFile, value: bytes, seconds: float
) -> Iterator[Figure]:
    peer = "write + fdatasync of the same bytes"
    single = topic(sync="always")
    figures = _beside(lambda: single.push(value), lambda: bare.append(value), 1, seconds)
    yield Figure("publish, each synced", "/s", *figures, peer)

    values, data = [value] * _MANY, value * _MANY
    many = topic(sync="always")
    figures = _beside(lambda: many.push_many(values), lambda: bare.append(data), _MANY, seconds)
    yield Figure(f"publish, {_MANY:,} at once, synced", "/s", *figures, peer)

    gathered = topic(sync="always")
    with store.producer() as producer:

        def produce() -> None:
            for _ in range(10 * _MANY):
                producer.push(gathered.name, value)
            producer.flush()

        figures = _beside(produce, lambda: bare.append(data * 10), 10 * _MANY, seconds)
    yield Figure("publish, gathered by a producer, synced", "/s", *figures, peer)


def _wake(store: Store, topic: Topic, value: bytes) -> Figure:
    """From a push to the return of a `pop` that waits for it in another thread; the median."""
    taken: list[float] = []
    pushed_at = 0.0
    waiting = threading.Semaphore(0)

    def follow() -> None:
        with store.create_subscriber(topic.name, start="latest") as subscriber:
            for _ in range(_WAKES):
                waiting.release()
                subscriber.pop(timeout=None)
                taken.append(time.perf_counter() - pushed_at)

    thread = threading.Thread(target=follow)
    thread.start()
    for _ in range(_WAKES):
        waiting.acquire()
        time.sleep(0.001)  # so that it sleeps
        pushed_at = time.perf_counter()
        topic.push(value)
    thread.join()
    return Figure("subscribe, from a push to the waiting reader", "s", statistics.median(taken))


def _resume(store: Store, topic: Topic, value: bytes, seconds: float) -> Iterator[Figure]:
    rows = min(1_000_000, max(10_000, (64 << 20) // max(1, len(value))))
    topic.push_table(pa.table({"value": pa.array([value] * rows, pa.binary())}))
    with store.create_subscriber(topic.name) as subscriber:

        def read() -> None:
            subscriber.seek("earliest")
            while subscriber.poll(_MANY):
                pass

        yield Figure(f"resume, poll({_MANY}) to Python records", "/s", _rate(read, rows, seconds))
    yield Figure("resume, to Arrow", "/s", _rate(lambda: topic.read().read_all(), rows, seconds))
