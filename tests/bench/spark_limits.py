"""What Spark's Python data source API itself can do: sources that read nothing and a sink that keeps nothing.

A source here yields the same rows as a topic would, from memory, in batches of about 1 MB, so its speed is the API's
limit and not a store's; one yields them from files. Ratios in the benchmarks are against these, in the same run.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from crc32c import crc32c
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

KAFKA_ROW = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
BATCH_BYTES = 1 << 20


# So much is kept by each worker and given round and round: more than its caches hold, as the rows of a topic are.
KEPT_BYTES = 128 << 20


def kafka_batch(rows: int, value_bytes: int, topic: str = "measured") -> pa.RecordBatch:
    """Rows as a topic without a schema gives them."""
    arrays = [
        pa.nulls(rows, pa.binary()),
        pa.array(
            [i.to_bytes(8, "big") * (value_bytes // 8) + b"\0" * (value_bytes % 8) for i in range(rows)], pa.binary()
        ),
        pa.repeat(pa.scalar(topic), rows),
        pa.repeat(pa.scalar(0, pa.int32()), rows),
        pa.array(range(rows), pa.int64()),
        pa.repeat(pa.scalar(1_357_034_400_000_000, pa.timestamp("us", "UTC")), rows),
        pa.repeat(pa.scalar(1, pa.int32()), rows),
    ]
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def wide_batch(rows: int, columns: int) -> pa.RecordBatch:
    """Rows of so many columns of 8 bytes."""
    return pa.RecordBatch.from_arrays(
        [pa.array(range(rows), pa.int64()) for _ in range(columns)], names=[f"c{i}" for i in range(columns)]
    )


@functools.cache
def kept(rows: int, value_bytes: int, columns: int) -> list[pa.RecordBatch]:
    """Batches of so many rows, each in memory of its own, made once a worker."""
    first = kafka_batch(rows, value_bytes) if value_bytes else wide_batch(rows, columns)
    with pa.BufferOutputStream() as stream:
        with pa.ipc.new_stream(stream, first.schema) as writer:
            writer.write_batch(first)
        bytes_of_one = stream.getvalue().to_pybytes()
    return [
        pa.ipc.open_stream(bytes(bytearray(bytes_of_one))).read_next_batch()
        for _ in range(-(-KEPT_BYTES // (rows * (value_bytes or columns * 8))))
    ]


def cycled(batches: Sequence[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The batches round and round, `rows` rows together."""
    for batch in itertools.cycle(batches):
        if rows <= batch.num_rows:
            yield batch.slice(0, rows)
            return
        rows -= batch.num_rows
        yield batch


class _MemoryReader:
    """Yields rows from memory. A stream gives all in one micro-batch, or `perTrigger` of them in each."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.rows, self.tasks = int(options["rows"]), int(options.get("tasks", "2"))
        self.value_bytes, self.columns = int(options.get("valueBytes", "0")), int(options.get("columns", "0"))
        self.per_trigger = int(options.get("perTrigger", "0"))
        self.batch_bytes = int(options.get("batchBytes", BATCH_BYTES))
        self.arrow = to_arrow_schema(schema, timezone="UTC")

    def _split(self, rows: int) -> list[InputPartition]:
        tasks = min(self.tasks, rows)
        return [InputPartition(rows * (i + 1) // tasks - rows * i // tasks) for i in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        width = self.value_bytes or self.columns * 8
        rows = max(1, min(self.batch_bytes // width, partition.value))
        # Few rows are made anew: what a micro-batch of ten costs must not hold 128 MiB in batches of ten.
        if rows == partition.value:
            batches = [kafka_batch(rows, self.value_bytes) if self.value_bytes else wide_batch(rows, self.columns)]
        else:
            batches = kept(rows, self.value_bytes, self.columns)
        shaped = [pa.RecordBatch.from_arrays(batch.columns, schema=self.arrow) for batch in batches]
        return cycled(shaped, partition.value)


class MemoryReader(_MemoryReader, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return self._split(self.rows)


class MemoryStreamReader(_MemoryReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def initialOffset(self) -> dict[str, int]:
        return {"row": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.per_trigger) if self.per_trigger else ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"row": min(self.rows, start["row"] + (self.per_trigger or self.rows))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self._split(end["row"] - start["row"])


class FilesReader(DataSourceReader):
    """Yields the rows of Arrow files of one column of values, mapped, each byte of a value summed up: what is left of reading
    a topic's sealed files once nothing is looked for, planned or compared."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.path = options["path"]
        self.arrow = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        batches = [(str(path), i) for path in sorted(Path(self.path).rglob("*.arrow")) for i in range(_batches(path))]
        half = len(batches) // 2
        return [InputPartition(part) for part in (batches[:half], batches[half:]) if part]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for name, numbers in itertools.groupby(partition.value, key=lambda each: each[0]):
            with pa.memory_map(name) as mapped, pa.ipc.open_file(mapped) as file:
                for _, i in numbers:
                    value = file.get_batch(i).column("value")
                    for buffer in filter(None, value.buffers()):
                        crc32c(buffer)
                    arrays = [each.slice(0, len(value)) for each in _other_columns()]
                    arrays[1] = value
                    yield pa.RecordBatch.from_arrays(arrays, schema=self.arrow)


@functools.cache
def _other_columns() -> list[pa.Array]:
    """For more rows than a batch has."""
    return list(kafka_batch(64 << 10, 8).columns)


def _batches(path: Path) -> int:
    with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as file:
        return int(file.num_record_batches)


class FilesSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "files_limit"

    def schema(self) -> str:
        return KAFKA_ROW

    def reader(self, schema: StructType) -> FilesReader:
        return FilesReader(self.options, schema)


class MemorySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "memory_limit"

    def schema(self) -> str:
        columns = int(self.options.get("columns", "0"))
        return ", ".join(f"c{i} bigint" for i in range(columns)) if columns else KAFKA_ROW

    def reader(self, schema: StructType) -> MemoryReader:
        return MemoryReader(self.options, schema)

    def streamReader(self, schema: StructType) -> MemoryStreamReader:
        return MemoryStreamReader(self.options, schema)


class Dropped(WriterCommitMessage):
    pass


class NullWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Dropped:
        for _ in iterator:
            pass
        return Dropped()


class NullStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Dropped:
        for _ in iterator:
            pass
        return Dropped()

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        pass


class NullSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "null_limit"

    def writer(self, schema: StructType, overwrite: bool) -> NullWriter:
        return NullWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NullStreamWriter:
        return NullStreamWriter()
