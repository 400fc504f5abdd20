"""Writing DataFrames and streams to topics, exactly once.

Each task writes whole sealed files that nobody reads yet and sends their names to the driver; the driver gives all of
them their offsets in one catalog transaction, with (writer, batch) in it. So a task that runs twice, a driver that
dies before, in or after the commit, and a micro-batch that Spark replays leave every row there once.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from jjq.errors import Forbidden, InvalidArgument, JjqError, StoreNotFound, TopicNotFound
from jjq.model import check_name
from jjq.values import counted
from pyspark_jjq.columns import Destination, destination
from pyspark_jjq.options import SinkOptions, parse_sink, tell_ignored
from pyspark_jjq.stores import open_store, patiently
from pyspark_jjq.tables import to_write
from pyspark_jjq.telling import telling

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from jjq import Store
    from jjq.model import Commit, StagedFile

log = logging.getLogger("jjq.spark")

# What Spark's micro-batch execution sets for its tasks. The group of its jobs is the id of the run.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task tells the driver: its files, in order, and the query and the run of it that it belongs to (None in most
    batch writes)."""

    files: tuple[StagedFile, ...]
    query_id: str | None
    run_id: str | None = None


def stage(target: Destination, batches: Iterator[pa.RecordBatch], streaming: bool) -> Staged:
    """Writes the rows of one task to files; after an error none of them is left.

    The files say which batch they are for, so that maintenance can tell those of a lost attempt from those to come.
    """
    context = TaskContext.get()
    assert context is not None
    # A batch write inside foreachBatch sees the query's properties too. It must not count as its micro-batch; but under a
    # writerId, it is of that query.
    named = target.options.writer_id is not None
    query_id = context.getLocalProperty(QUERY_ID) if streaming or named else None
    batch = context.getLocalProperty(BATCH_ID) if streaming else target.options.batch_id
    writer = writer_of(target.options, query_id)
    owner = (writer, int(batch)) if writer is not None and batch is not None else None
    if streaming:
        store = topic_of_stream(target, int(batch or 0), writer, query_id)
    else:
        target.check_seen()
        store = open_store(target.options.path)
    with store.stage(default_partition=context.partitionId(), owner=owner) as staging:
        for batch in batches:
            if batch.num_rows:
                target.write(store, staging, batch)
        files = tuple(staging.finish())
    return Staged(files, query_id, None if query_id is None else _run_of(context.getLocalProperty(RUN_ID)))


def topic_of_stream(target: Destination, batch: int, writer: str | None = None, query_id: str | None = None) -> Store:
    """The store with a stream's topic in it, which the first micro-batch makes and no other. If it is missing later, so is what
    was written, and an empty one with one partition would hide that."""
    target.check_seen()
    if batch == 0 and target.new and not _has_committed(target.options.path, writer, query_id):
        return target.make()
    try:
        store = open_store(target.options.path)
        if target.new and target.options.topic is not None:
            store.topic(target.options.topic)
        return store
    except (StoreNotFound, TopicNotFound) as error:
        which = f"this is number {batch}" if batch else "that was committed"
        raise type(error)(
            f"{error.message}. A stream makes it with its first micro-batch, and {which}: what was written before "
            "was in one that is gone. To go on into an empty one, make it with its columns and partitions (`jjq topic create`) and "
            "start the query again; to write all rows again, start it with a new checkpoint"
        ) from None


def _has_committed(path: str, writer: str | None, query_id: str | None) -> bool:
    """Whether the first micro-batch runs again because Spark has not noted that it was committed."""
    try:
        return any((each.id, each.query_id) == (writer, query_id) for each in open_store(path).writers())
    except (StoreNotFound, Forbidden):  # who may write need not be allowed to read
        return False


def _run_of(group: str | None) -> str | None:
    """The id of the run, None where the job has given its jobs a group of its own, which may be the same in each run."""
    try:
        return None if group is None else str(uuid.UUID(group))
    except ValueError:
        return None


def writer_of(options: SinkOptions, query_id: str | None) -> str | None:
    """The name under which batches are counted: the one given, else one for the query, else none."""
    if options.writer_id is not None or query_id is None:
        return options.writer_id
    return f"spark:{query_id}"


def files_of(messages: Sequence[WriterCommitMessage | None]) -> list[StagedFile]:
    """The files of all tasks in the order of the tasks, so that a replay gives the same records the same offsets."""
    return [file for message in messages if isinstance(message, Staged) for file in message.files]


def query_of(messages: Sequence[WriterCommitMessage | None]) -> tuple[str | None, str | None]:
    """The query that a write belongs to, and its run, as the tasks say; None where it is of none."""
    return next(((m.query_id, m.run_id) for m in messages if isinstance(m, Staged) and m.query_id), (None, None))


def discard(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Removes what the tasks of a failed write have left; what cannot be removed now, maintenance removes later."""
    files = files_of(messages)
    if not files:
        return
    try:
        open_store(options.path).discard(files)
    except JjqError as error:
        # The write has failed already, and its reason is what the user must see.
        log.warning("%s of a failed write left for maintenance: %s", counted(len(files), "staged file"), error)


class BatchWriter(DataSourceArrowWriter):
    """`df.write`: all rows or none. Counted once only under a writerId and batchId: two writes in one foreachBatch
    see the same query and batch, so those would make the second one vanish."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:  # before the options: none would make it right
            raise InvalidArgument(
                'overwriting would take records away that subscribers have yet to read; use mode("append"), or INSERT INTO in '
                "SQL, and `jjq topic empty` first if the old records are to go"
            )
        options = parse_sink(to_write(given, schema))
        tell_ignored(options.ignored)
        if (options.writer_id is None) != (options.batch_id is None):
            raise InvalidArgument(
                "writerId and batchId go together in a batch write: (writerId, batchId) is counted once; "
                "give both, such as the batch id that foreachBatch passes, or neither"
            )
        self.options = options
        if options.writer_id is not None:
            check_name(options.writer_id, "writer")
        self.target = destination(options, schema, streaming=False)

    @telling()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage(self.target, iterator, streaming=False)

    @telling()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        store, files = open_store(self.options.path), files_of(messages)
        writer, batch = self.options.writer_id, self.options.batch_id
        if writer is None:
            store.commit(files)
            return
        query, run = query_of(messages)
        done = patiently(lambda: store.commit(files, writer_id=writer, batch_id=batch, query_id=query, run_id=run))
        _tell(done, writer, batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        discard(self.options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: each micro-batch once, by (query or writerId, batch id), those without rows included."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgument(
                'outputMode("complete") writes the whole result anew with each micro-batch, and a topic only grows; '
                'use outputMode("append") with a watermark, or foreachBatch with writerId and batchId'
            )
        options = parse_sink(to_write(given, schema))
        if options.batch_id is not None:
            raise InvalidArgument("batchId is for batch writes: in a stream Spark numbers the batches; remove it")
        self.options = options
        if options.writer_id is not None:
            check_name(options.writer_id, "writer")
        self.target = destination(options, schema, streaming=True)

    @telling()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage(self.target, iterator, streaming=True)

    @telling()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        tell_ignored(self.options.ignored)  # by the one process of a query that makes many a writer
        # The committing process is not told the query, so the tasks say it; there is always at least one task.
        query_id, _ = query_of(messages)
        if query_id is None:
            raise InvalidArgument(
                "Spark did not say which query this micro-batch belongs to, so it cannot be counted once; "
                "write with foreachBatch, writerId and batchId instead"
            )
        store, files = open_store(self.options.path), files_of(messages)
        writer = writer_of(self.options, query_id)
        # What Spark replays may have other rows, where the query computes others: what was committed first stays.
        done = patiently(
            lambda: store.commit(files, writer_id=writer, batch_id=batchId, query_id=query_id, rows_may_differ=True)
        )
        _tell(done, writer, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        discard(self.options, messages)


def _tell(done: Commit, writer: str | None, batch: int | None) -> None:
    if done.duplicate:
        log.warning("batch %s of writer %s was committed before; it was counted once", batch, writer)
