"""Each start with each end, strict and lenient, with a schema and without one, as a batch and as a stream: what is read is
what a list of the records says."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import jjq
from jjq.errors import DataLoss, InvalidArgument
from tests.readers import batch, close_stores, rows, stream, through_json

PARTITIONS = (0, 1)
EARLIEST, END = 3, 10  # offsets 0 to 2 are gone
T0_MS = 1_357_034_400_000


def at_ms(offset: int) -> int:
    return T0_MS + offset * 1000


@dataclass(frozen=True)
class Case:
    """Options, and by partition the offset that they mean. `named`: as numbers, so that start and end are compared."""

    name: str
    options: dict[str, str]
    offsets: dict[int, int]
    named: bool = False


def by_partition(*values: int) -> str:
    return json.dumps({"t": {str(p): value for p, value in zip(PARTITIONS, values, strict=True)}})


def both(offset: int) -> dict[int, int]:
    return dict.fromkeys(PARTITIONS, offset)


STARTS = [
    Case("default", {}, {}),
    Case("earliest", {"startingOffsets": "earliest"}, both(EARLIEST)),
    Case("latest", {"startingOffsets": "latest"}, both(END)),
    Case("edge of a topic", {"startingOffsets": '{"t":"earliest"}'}, both(EARLIEST)),
    Case("offsets", {"startingOffsets": by_partition(5, 4)}, {0: 5, 1: 4}, named=True),
    Case("offsets that are gone", {"startingOffsets": by_partition(1, 4)}, {0: 1, 1: 4}, named=True),
    Case("edges of partitions", {"startingOffsets": by_partition(-2, -1)}, {0: EARLIEST, 1: END}, named=True),
    Case("time", {"startingTimestamp": str(at_ms(5))}, both(5)),
    Case("time between records", {"startingTimestamp": "2013-01-01T10:00:05.5Z"}, both(6)),
    Case("time before all", {"startingTimestamp": str(at_ms(0))}, both(EARLIEST)),
    Case("times", {"startingOffsetsByTimestamp": by_partition(at_ms(4), at_ms(8))}, {0: 4, 1: 8}),
    Case(
        "time after all",
        {"startingTimestamp": str(at_ms(99)), "startingOffsetsByTimestampStrategy": "latest"},
        both(END),
    ),
    Case(
        "time beats times and offsets",
        {
            "startingTimestamp": str(at_ms(6)),
            "startingOffsetsByTimestamp": by_partition(at_ms(4), at_ms(4)),
            "startingOffsets": "latest",
        },
        both(6),
    ),
]
ENDS = [
    Case("default", {}, both(END)),
    Case("latest", {"endingOffsets": "latest"}, both(END)),
    Case("offsets", {"endingOffsets": by_partition(6, -1)}, {0: 6, 1: END}, named=True),
    Case("an offset at the earliest", {"endingOffsets": by_partition(EARLIEST, 9)}, {0: EARLIEST, 1: 9}, named=True),
    Case("time", {"endingTimestamp": str(at_ms(7))}, both(7)),
    Case("times", {"endingOffsetsByTimestamp": by_partition(at_ms(5), at_ms(99))}, {0: 5, 1: END}),
]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, jjq.Store]]:
    """A store for topics with and one for topics without a schema, each with offsets 3 to 9 in two partitions."""
    opened = {name: jjq.open(tmp_path_factory.mktemp("matrix") / name) for name in ("schema", "none")}
    for name, store in opened.items():
        schema = pa.schema([("n", pa.int64())]) if name == "schema" else None
        topic = store.create_topic("t", partitions=len(PARTITIONS), schema=schema, timestamps="producer")
        for offset in range(END):
            if offset == EARLIEST:
                topic.empty()
            for p in PARTITIONS:
                topic.push(value(name, p, offset), partition=p, timestamp=at_ms(offset) * 1000)
    yield opened
    close_stores()
    for store in opened.values():
        store.close()


def value(kind: str, partition: int, offset: int) -> Any:
    return {"n": partition * 100 + offset} if kind == "schema" else b"%d" % (partition * 100 + offset)


def found(kind: str, read: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    """(partition, offset, number in the record)"""
    if kind == "schema":
        return sorted((row["_partition"], row["_offset"], row["n"]) for row in read)
    return sorted((row["partition"], row["offset"], int(row["value"])) for row in read)


def read_batch(store: jjq.Store, options: dict[str, str]) -> list[dict[str, Any]]:
    reader = batch(store, **options)
    return rows(reader, reader.partitions())


def read_available(store: jjq.Store, options: dict[str, str]) -> list[dict[str, Any]]:
    """As a query under AvailableNow does it, in micro-batches of at most three rows."""
    reader = stream(store, maxOffsetsPerTrigger=3, **options)
    reader.prepareForTriggerAvailableNow()
    start, read = through_json(reader.initialOffset()), []
    limit = reader.getDefaultReadLimit()
    assert not isinstance(limit, ReadAllAvailable)
    while (end := through_json(reader.latestOffset(start, limit))) != start:
        read += rows(reader, reader.partitions(start, end))
        start = end
    return read


@pytest.mark.parametrize("kind", ["schema", "none"])
@pytest.mark.parametrize("fail_on_data_loss", [True, False])
@pytest.mark.parametrize("end", ENDS, ids=lambda case: f"to {case.name}")
@pytest.mark.parametrize("start", STARTS, ids=lambda case: f"from {case.name}")
@pytest.mark.parametrize("mode", ["batch", "stream"])
def test_what_is_read_is_what_was_asked_for(
    stores: dict[str, jjq.Store], mode: str, start: Case, end: Case, fail_on_data_loss: bool, kind: str
) -> None:
    options = start.options | end.options | {"failOnDataLoss": str(fail_on_data_loss).lower()}
    if kind == "schema":
        options["metadata"] = "_partition,_offset"
    read = read_batch if mode == "batch" else read_available
    begin = start.offsets or both(EARLIEST if mode == "batch" else END)
    if mode == "batch" and start.named and end.named and any(begin[p] > end.offsets[p] for p in PARTITIONS):
        with pytest.raises(InvalidArgument, match="before it starts at"):
            read(stores[kind], options)
        return
    if fail_on_data_loss and any(begin[p] < EARLIEST and begin[p] < end.offsets[p] for p in PARTITIONS):
        with pytest.raises(DataLoss, match="offset 1 was asked for, the earliest left is 3"):
            read(stores[kind], options)
        return
    expected = [
        (p, offset, p * 100 + offset) for p in PARTITIONS for offset in range(max(begin[p], EARLIEST), end.offsets[p])
    ]
    assert found(kind, read(stores[kind], options)) == expected


def test_the_stores_are_left_as_they_were(stores: dict[str, jjq.Store], tmp_path: Path) -> None:
    for store in stores.values():
        assert [(each.start, each.end) for each in store.topic("t").offsets()] == [(EARLIEST, END)] * 2
        assert store.subscribers() == []
