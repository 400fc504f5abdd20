"""The connector's readers called as Spark calls them, but in the process of the tests, so without a JVM."""

import json
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

import jjq
from pyspark_jjq import DefaultSource, choice, stores
from pyspark_jjq.reader import BatchReader
from pyspark_jjq.stream import StreamReader

ALL = ReadAllAvailable()


def close_stores() -> None:
    """What the connector keeps open for this process; Spark's own workers end instead. Left open, a thousand files pile
    up in the process of the tests, and py4j, which calls select(), takes no callback any more."""
    while stores._opened:
        _, (_, opened) = stores._opened.popitem()
        opened.close()


def source(store: jjq.Store, **options: Any) -> DefaultSource:
    """A read of topic `t`, unless the options say what to read."""
    what = {} if options.keys() & set(choice.OPTIONS) else {"subscribe": "t"}
    return DefaultSource({"path": str(store.path)} | what | {k: str(v) for k, v in options.items()})


def batch(store: jjq.Store, **options: Any) -> BatchReader:
    made = source(store, **options)
    reader = made.reader(made.schema())
    assert isinstance(reader, BatchReader)
    return reader


def stream(store: jjq.Store, **options: Any) -> StreamReader:
    made = source(store, **options)
    reader = made.streamReader(made.schema())
    assert isinstance(reader, StreamReader)
    return reader


def rows(reader: BatchReader | StreamReader, partitions: Any) -> list[dict[str, Any]]:
    return [row for part in partitions for piece in reader.read(part) for row in piece.to_pylist()]


def values(reader: BatchReader | StreamReader, partitions: Any) -> list[bytes]:
    return [row["value"] for row in rows(reader, partitions)]


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    """As Spark does it: what comes back was text in between."""
    return json.loads(json.dumps(offset))


def number(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(first, first + count)]


def advance(reader: StreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The end of the next micro-batch and its rows."""
    end = through_json(reader.latestOffset(start, reader.getDefaultReadLimit()))
    return end, rows(reader, reader.partitions(start, end))


def drain(reader: StreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    """The micro-batches until nothing is new."""
    batches = []
    while True:
        end, found = advance(reader, start)
        if end == start:
            return end, batches
        batches.append(found)
        start = end


def three_partitions(store: jjq.Store, name: str = "t") -> None:
    topic = store.create_topic(name, partitions=3)
    for p in range(3):
        topic.push_many(number(2, 10 * p), partition=p)
