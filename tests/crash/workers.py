"""Processes that write, read and maintain a store until they are told to stop, or are killed.

A writer tells its parent what it has done after each call has returned: what it told was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa

import jjq
from jjq.errors import DataLoss

TOPIC = "t"
ROWS = 4  # of each call that writes several
SINGLE = ("push", "push as well", "push, too")  # single records, by processes that share their syncs


def rows(name: str, number: int, many: int) -> list[bytes]:
    """The records of a writer's call: who wrote them, in which call, and which of it they are."""
    return [b"%s %d %d of %d" % (name.encode(), number, i, many) for i in range(many)]


def single_key(number: int) -> bytes | None:
    return None if number % 2 else b"%d" % number


def _push(topic: jjq.Topic, name: str, number: int, partition: int) -> int:
    return topic.push(rows(name, number, 1)[0], key=single_key(number), partition=partition).offset


def _push_many(topic: jjq.Topic, name: str, number: int, partition: int) -> int:
    return topic.push_many(rows(name, number, ROWS), partition=partition)[0].offset


def _push_table(topic: jjq.Topic, name: str, number: int, partition: int) -> int:
    table = pa.table({"value": rows(name, number, ROWS)})
    return topic.push_table(table, partition=partition)[0].offset


def _link(topic: jjq.Topic, name: str, number: int, partition: int) -> int:
    table = pa.table({"value": rows(name, number, ROWS)})
    return topic.push_table(table, partition=partition, writer_id=name, batch_id=number)[0].offset


WRITES: dict[str, Callable[[jjq.Topic, str, int, int], int]] = {
    **dict.fromkeys(SINGLE, _push), "push_many": _push_many, "push_table": _push_table, "link": _link,
}  # fmt: skip


def write(path: Path, mine: Connection, kind: str, name: str, first: int, partition: int) -> None:
    """Calls without end, and tells (number of the call, offset of its first record) after each."""
    with jjq.open(path) as store:
        topic = store.topic(TOPIC)
        for number in count(first):
            mine.send((number, WRITES[kind](topic, name, number, partition)))


def maintain(path: Path, mine: Connection) -> None:
    with jjq.open(path) as store:
        for number in count():
            report = store.maintain(grace_us=0)
            assert not report.errors, report.errors
            mine.send((number, -1))


def read(path: Path, mine: Connection) -> None:
    """Reads on and on to the end, then from the start again; tells what it saw both times, or what went wrong."""
    seen: list[list[bytes]] = []
    with jjq.open(path) as store:
        topic = store.topic(TOPIC)
        seen = [[] for _ in range(topic.partitions)]
        while not mine.poll():
            _read_on(topic, seen)
        again: list[list[bytes]] = [[] for _ in seen]
        _read_on(topic, again)
    mine.send([whole[: len(part)] == part for part, whole in zip(seen, again, strict=True)])
    mine.send([len(part) for part in seen])


def _read_on(topic: jjq.Topic, seen: list[list[bytes]]) -> None:
    start = {partition: len(values) for partition, values in enumerate(seen)}
    for batch in topic.read(start=start):
        for partition, offset, value in zip(
            batch["_partition"].to_pylist(), batch["_offset"].to_pylist(), batch["value"].to_pylist(), strict=True
        ):
            if offset != len(seen[partition]):
                raise DataLoss(f"offset {offset} follows {len(seen[partition]) - 1}")
            seen[partition].append(value)
