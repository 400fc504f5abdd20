"""What a store holds, as plain values that two views of it can be compared by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import jjq

METADATA = ("_offset", "_key")
Rows = list[tuple[Any, ...]]  # (offset, key, column values ...)
Partition = tuple[int, Rows]  # first offset and the rows from there
State = dict[str, Any]


def open_alone(path: Path) -> jjq.Store:
    """A store without maintenance in the background, so that the same operations come in the same order."""
    return jjq.open(path, maintenance=False)


def rows_of(topic: jjq.Topic, partition: int) -> Partition:
    """The rows of a partition, whose offsets must be dense from its first on."""
    start = topic.offsets()[partition].start
    rows = tuples(topic.read(metadata=METADATA, partitions=[partition]).read_all())
    assert [row[0] for row in rows] == list(range(start, start + len(rows))), "offsets are not dense"
    return start, rows


def sliced_rows_of(store: jjq.Store, topic: jjq.Topic, partition: int) -> Partition:
    """The same as Spark gets it: planned first, read then."""
    bounds = topic.offsets()[partition]
    slices = topic.plan(partition, bounds.start, bounds.end)
    batches = list(store.read_slices(slices, metadata=METADATA))
    return bounds.start, tuples(pa.Table.from_batches(batches)) if batches else []


def tuples(table: pa.Table) -> Rows:
    columns = [table[name].to_pylist() for name in table.schema.names if name not in METADATA]
    return list(zip(table["_offset"].to_pylist(), table["_key"].to_pylist(), *columns, strict=True))


def contents(store: jjq.Store) -> State:
    """Topics with their columns, settings and rows, and how far each writer is, in which run of its query."""
    columns, batches = store.catalog.driver.table("writer_batches")
    writer, batch, run = (columns.index(name) for name in ("writer_id", "batch_id", "run"))
    runs = {(row[writer], row[batch]): row[run] for row in batches}
    state: State = {"writers": {each.id: (each.last_batch, runs[each.id, each.last_batch]) for each in store.writers()}}
    for topic in store.topics():
        state[topic.name] = {
            "columns": None if topic.schema is None else topic.schema.names,
            "sync": topic.config.sync,
            "retention": topic.config.retention_us,
            "rows": {partition: rows_of(topic, partition) for partition in range(topic.partitions)},
            "subscribers": {each.name: each.positions() for each in store.subscribers(topic.name)},
            "channels": {
                each.name: store.catalog.driver.rows("channel_places", channel_id=each.id)
                for each in store.channels(topic.name)
            },
        }
    return state
