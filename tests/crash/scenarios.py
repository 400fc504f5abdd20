"""What the crash tests interrupt: each scenario prepares a store, then changes it by one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

import jjq
from jjq.errors import JjqError, TopicExists, TopicNotFound, WriterConflict
from tests.crash.checks import open_alone
from tests.stores import end_of

SYNC_MODES = ("always", "interval", "none")
SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("s", pa.string())])


@dataclass(frozen=True, slots=True)
class Scenario:
    """`act` changes what `prepare` left.

    `pushes`: when it raises, nothing of it may be visible. `pieces`: it is one act for each partition by itself.
    `already`: what the same call raises when it had been done after all. `twice`: doing it again does it again.
    """

    name: str
    act: Callable[[jjq.Store], object]
    prepare: Callable[[jjq.Store], object] = lambda store: None
    pushes: bool = False
    pieces: bool = False
    already: type[JjqError] | None = None
    twice: bool = False

    def __str__(self) -> str:
        return self.name


def make(path: Path, sync: str) -> None:
    """A store with a topic of plain values `t` and one with a schema `s`, two partitions each, rows in all of them."""
    with open_alone(path) as store:
        plain = store.create_topic("t", partitions=2, sync=sync, sync_interval_ms=3_600_000, segment_rows=6)
        shaped = store.create_topic("s", partitions=2, sync=sync, sync_interval_ms=3_600_000, schema=SCHEMA)
        store.create_topic("fresh", sync=sync, sync_interval_ms=3_600_000)
        for partition in range(2):
            for i in range(3):
                plain.push(b"old %d %d" % (partition, i), key=b"k", partition=partition)
            shaped.push_many([{"n": i, "s": "old"} for i in range(3)], partition=partition)


def _table(first: int, count: int) -> pa.Table:
    return pa.table({"n": pa.array(range(first, first + count)), "s": pa.array([f"row {i}" for i in range(count)])})


def _fill(store: jjq.Store) -> None:
    store.topic("t").push_many([b"fill %d" % i for i in range(3)], partition=0)


def _link(store: jjq.Store) -> None:
    store.topic("s").push_table(_table(100, 8), key="n", writer_id="loader", batch_id=1)


def _commit(store: jjq.Store) -> None:
    with store.stage() as stage:
        stage.write("t", pa.table({"value": [b"staged 1", b"staged 2"]}), partition=1)
        stage.write("s", _table(200, 6), key="n")
        store.commit(stage.finish(), writer_id="stream", batch_id=7, query_id="q")


def _tear(store: jjq.Store) -> None:
    """As a writer leaves it that died half-way through a write."""
    path = Path(next(each.path for each in store.topic("t").segments(0) if each.state == "active"))
    with path.open("r+b") as file:
        file.seek(end_of(path))
        file.write(b"\xff\xff\xff\xff torn")


def _subscribe(store: jjq.Store) -> None:
    store.create_subscriber("t", "s", start="latest")
    store.channel("t", "c", create=True)


def _subscribe_from_the_start(store: jjq.Store) -> None:
    """On a topic of one partition, as the error of one among several comes when of the others all was given."""
    store.topic("fresh").push_many([b"a", b"b", b"c"])
    store.create_subscriber("fresh", "s", start="earliest")


def _pop(store: jjq.Store) -> None:
    with store.subscriber("s") as subscriber:
        assert subscriber.pop().value == b"a"


def _poll_and_commit(store: jjq.Store) -> None:
    with store.subscriber("s") as subscriber:
        assert len(subscriber.poll(2)) == 2
        subscriber.commit()


def _commit_in(run: str) -> Callable[[jjq.Store], object]:
    """The same batch, as each run of a query brings its last one again."""

    def act(store: jjq.Store) -> object:
        with store.stage() as stage:
            stage.write("s", _table(300, 3), partition=1)
            return store.commit(stage.finish(), writer_id="stream", batch_id=7, query_id="q", run_id=run)

    return act


def _push_and_sync(store: jjq.Store) -> None:
    """What the background does for a topic with `interval`."""
    topic = store.topic("t")
    topic.push(b"new", partition=0)
    store.logs[topic.id, 0].sync()


SCENARIOS = (
    Scenario("first push", lambda store: store.topic("fresh").push(b"first"), pushes=True),
    Scenario("push", lambda store: store.topic("t").push(b"new", key=b"k", partition=0), pushes=True),
    Scenario(
        "push with headers",
        lambda store: store.topic("t").push(b"new", key=b"k", headers={"h": b"1"}, partition=0),
        pushes=True,
    ),
    Scenario("push that rolls", lambda store: store.topic("t").push(b"new", partition=0), _fill, pushes=True),
    Scenario("push behind a torn tail", lambda store: store.topic("t").push(b"new", partition=0), _tear, pushes=True),
    Scenario(
        "push_many",
        lambda store: store.topic("t").push_many([b"a", None, b""], keys=[b"1", None, b""], partition=1),
        pushes=True,
    ),
    Scenario(
        "push_many by key",
        lambda store: store.topic("t").push_many([b"%d" % i for i in range(8)], keys=[b"%d" % i for i in range(8)]),
        pieces=True,
    ),
    Scenario(
        "push_many over all partitions at once",
        lambda store: store.topic("t").push_many(
            [b"%d" % i for i in range(8)], keys=[b"%d" % i for i in range(8)], atomic=True
        ),
        twice=True,
    ),
    Scenario("push_table", lambda store: store.topic("s").push_table(_table(10, 5), partition=1), pushes=True),
    Scenario("push, then sync", _push_and_sync, twice=True),
    Scenario("link", _link),
    Scenario("commit over two topics", _commit),
    Scenario("commit in the next run", _commit_in("two"), _commit_in("one"), already=WriterConflict),
    Scenario("pop", _pop, _subscribe_from_the_start, twice=True),
    Scenario("poll and commit", _poll_and_commit, _subscribe_from_the_start, twice=True),
    Scenario("alter: a column", lambda store: store.alter_topic("s", add_columns=pa.schema([("x", pa.float64())]))),
    Scenario("alter: partitions", lambda store: store.alter_topic("t", partitions=4), _subscribe),
    Scenario("alter: settings", lambda store: store.alter_topic("t", retention=timedelta(days=7))),
    Scenario("empty", lambda store: store.topic("t").empty()),
    Scenario("delete", lambda store: store.delete_topic("t"), already=TopicNotFound),
    Scenario("create", lambda store: store.create_topic("new", partitions=2, schema=SCHEMA), already=TopicExists),
    Scenario("reset a writer", lambda store: store.reset_writer("loader"), _link),
)
