"""The least that Spark's Python API allows: a source whose records are a number in shared memory, and a sink that says
when it sees a record.

A push is that the number grows: the records are the numbers up to it.
"""

from __future__ import annotations

import mmap
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from tests.bench.spark_limits import Dropped

COUNTER = 8  # bytes


class QueueReader(DataSourceStreamReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.counter = options["counter"]
        self._mapped: mmap.mmap | None = None

    def _last(self) -> int:
        if self._mapped is None:
            with Path(self.counter).open("rb") as file:
                self._mapped = mmap.mmap(file.fileno(), COUNTER, prot=mmap.PROT_READ)
        return int.from_bytes(self._mapped[:COUNTER], "big")

    def __getstate__(self) -> dict[str, object]:
        return {"counter": self.counter, "_mapped": None}

    def initialOffset(self) -> dict[str, int]:
        return {"last": self._last()}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"last": self._last()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition((start["last"], end["last"]))] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        first, last = partition.value
        values = [number.to_bytes(COUNTER, "big") for number in range(first + 1, last + 1)]
        yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"])


class MemoryQueue(DataSource):
    @classmethod
    def name(cls) -> str:
        return "memory_queue"

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: StructType) -> QueueReader:
        return QueueReader(self.options)


class SeenWriter(DataSourceStreamArrowWriter):
    def __init__(self, address: str) -> None:
        self.address = address

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Dropped:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as said:
            for batch in iterator:
                now = time.monotonic_ns().to_bytes(8, "big")
                for value in batch.column(0).to_pylist():
                    said.sendto(value + now, self.address)
        return Dropped()

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        pass


class SeenSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "seen"

    def streamWriter(self, schema: StructType, overwrite: bool) -> SeenWriter:
        return SeenWriter(self.options["seen"])
