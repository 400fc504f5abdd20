"""Sinks that lack one mechanism each: what the exactly-once tests show to go wrong without it.

Spark gets these classes by value, so no worker needs to find this module.
"""

import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_jjq import DefaultSource
from pyspark_jjq.stores import open_store
from pyspark_jjq.writer import BatchWriter, Staged, StreamWriter, files_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class WithoutWriterRow(StreamWriter):
    """Commits all files of a micro-batch at once, but does not note which micro-batch that was."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        open_store(self.options.path).commit(files_of(messages))


class WithoutStaging(StreamWriter):
    """Its tasks push what they get at once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        topic = open_store(self.options.path).topic(str(self.options.topic))
        for batch in iterator:
            topic.push_table(batch)
        context = TaskContext.get()
        assert context is not None
        return Staged((), context.getLocalProperty("sql.streaming.queryId"))


class WithMicroBatchIds(BatchWriter):
    """A batch write that counts itself as the micro-batch it runs in."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        assert context is not None
        staged = super().write(iterator)
        ids = (context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("streaming.sql.batchId"))
        return Staged(staged.files, " ".join(map(str, ids)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        [ids] = {m.query_id for m in messages if isinstance(m, Staged)}
        query, batch = str(ids).split()
        open_store(self.options.path).commit(
            files_of(messages), writer_id=f"spark:{query}", batch_id=int(batch), query_id=query
        )


def source(label: str, stream: Any = StreamWriter, batch: Any = BatchWriter) -> type[DefaultSource]:
    """A data source named `label` that writes with these."""

    class Source(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return label

        def writer(self, schema: StructType, overwrite: bool) -> Any:
            return batch(self.options, schema, overwrite)

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
            return stream(self.options, schema, overwrite)

    return Source


SOURCES = (
    source("without_writer_row", stream=WithoutWriterRow),
    source("without_staging", stream=WithoutStaging),
    source("with_micro_batch_ids", batch=WithMicroBatchIds),
)
