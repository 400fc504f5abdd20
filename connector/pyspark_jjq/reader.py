"""Reading topics with Spark: the driver plans slices of files, the tasks read them. Here are tasks and batch reads;
`stream` has what a query does between its micro-batches.

The planning side lives in one Python process a query, the tasks in others: a reader is pickled to them, so it holds
the options and the shape of the rows, and each process opens the store itself.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from jjq.config import TopicConfig
from jjq.errors import DataLoss, InvalidArgument, StoreNotFound, TopicDeleted
from jjq.log.sealed import SEALED_BATCH_BYTES
from jjq.model import behind
from pyspark_jjq import ranges
from pyspark_jjq.conditions import Condition, conditions, kept
from pyspark_jjq.filters import Narrowing, narrow
from pyspark_jjq.options import SourceOptions
from pyspark_jjq.planning import tasks
from pyspark_jjq.rows import TIMESTAMP_TYPES
from pyspark_jjq.stores import let_go, look, not_seen, open_store, patiently
from pyspark_jjq.telling import telling

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from jjq import Store
    from jjq.model import Slice
    from pyspark_jjq.offsets import Position, TopicPositions
    from pyspark_jjq.rows import Rows
    from pyspark_jjq.stores import TopicView


class SlicePartition(InputPartition):
    """What one task reads: slices that follow one another, of one partition or of several with little in them."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        super().__init__(tuple(slices))


def partitions_of(options: SourceOptions, slices: Sequence[Sequence[Slice]]) -> list[InputPartition]:
    """The tasks for what is to be read of each partition. The driver's cores stand for those of the executors."""
    made = tasks(slices, cores(), options.min_partitions or 1, options.max_records_per_partition)
    return [SlicePartition(each) for each in made]


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_slices(
    options: SourceOptions, rows: Rows, policy: ranges.LossPolicy, slices: Sequence[Slice]
) -> Iterator[pa.RecordBatch]:
    """The rows of one task. What retention removes while it reads is the policy's case, as it is when planning."""
    with telling():
        for topic, pieces in itertools.groupby(slices, key=lambda piece: piece.topic):
            try:
                yield from _read_topic(options, rows, policy, topic, list(pieces))
            except TopicDeleted:
                what = f"topic {topic!r} was deleted while it was read, and what was left of it is gone"
                policy.lost(what, topic=topic)


def _read_topic(
    options: SourceOptions, rows: Rows, policy: ranges.LossPolicy, topic: str, left: list[Slice]
) -> Iterator[pa.RecordBatch]:
    try:
        store = open_store(options.path)
    except StoreNotFound:
        raise not_seen(options.path) from None
    kind = _timestamp_type(store, left[0].topic_id) if rows.has_timestamp_type else 0
    while left:
        given = 0
        try:
            found = store.read_slices(
                left, columns=list(rows.columns), metadata=list(rows.metadata), target_bytes=SEALED_BATCH_BYTES
            )
            for batch in found:
                given += batch.num_rows
                yield rows.shape(batch, kind)
            return
        except DataLoss as loss:
            policy.lost(str(loss), topic=topic, partition=loss.partition, asked=loss.asked, earliest=loss.earliest)
            rest = behind(left, given)
            left = [kept for piece in rest for kept in _after(piece, loss)]
            if left == rest:
                raise  # nothing was skipped, so the same would happen for ever


def _timestamp_type(store: Store, topic_id: str) -> int:
    """Asked where it is needed: a topic may have come after the query, and its reader, were made."""
    return TIMESTAMP_TYPES[TopicConfig.from_dict(store.topic_row(topic_id).config).timestamps]


def _after(piece: Slice, loss: DataLoss) -> list[Slice]:
    """What is left of a slice after a loss."""
    if piece.partition != loss.partition or piece.start >= loss.earliest:
        return [piece]
    return [piece.split(loss.earliest)[1]] if piece.end > loss.earliest else []


class BatchReader(DataSourceReader):
    """One read of a range that is fixed when the query is planned."""

    def __init__(self, options: SourceOptions, rows: Rows) -> None:
        if options.subscriber is not None:
            raise InvalidArgument(
                "subscriber is for streams: it follows what a query has committed, and a batch read commits nothing; "
                "remove the option, or use readStream"
            )
        self.options = options
        self.rows = rows
        self.narrowing = Narrowing()
        self.conditions: tuple[Condition, ...] = ()

    @telling()
    def partitions(self) -> Sequence[InputPartition]:
        return patiently(self._partitions)

    def _partitions(self) -> list[InputPartition]:
        policy = ranges.LossPolicy(self.options.fail_on_data_loss)
        views = look(self.options.path, self.options.choice, all_there=True)
        try:
            slices = [
                each
                for topic, start, end in ranges.bounds(self.options, views)
                for each in self._slices(topic, start, end, policy)
            ]
        finally:
            let_go(views.values())
        return partitions_of(self.options, slices)

    def _slices(
        self, topic: TopicView, start: TopicPositions, end: TopicPositions, policy: ranges.LossPolicy
    ) -> list[list[Slice]]:
        """What is planned of each partition; what filters leave out is not looked at, so it is no loss either."""
        only = self.narrowing
        wanted: dict[int, tuple[Position, Position]] = {}
        for p, at in start.partitions.items():
            first = replace(at, offset=max(at.offset, only.first))
            last = replace(end.partitions[p], offset=min(end.partitions[p].offset, only.last))
            if only.has(topic.name, p) and first.offset < last.offset:
                wanted[p] = first, last
        found = list(ranges.plan_all(topic, wanted, policy).values())
        if only.by_time:
            found = [topic.reader.within(each, only.since, only.until) for each in found]
        tests = [each for each in self.conditions if each.column in self.rows.columns]
        # In rows like Kafka's the columns have other names, and nothing is said of a value that has no type.
        return [topic.reader.where(each, tests) for each in found] if tests and not self.rows.kafka else found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SlicePartition):
            return iter(())  # Spark makes one of its own where there is nothing to read
        policy = ranges.LossPolicy(self.options.fail_on_data_loss)
        batches = read_slices(self.options, self.rows, policy, partition.value)
        if not self.conditions:
            return batches
        left = (kept(batch, self.conditions) for batch in batches)
        return (batch for batch in left if batch.num_rows)


class FilteringReader(BatchReader):
    """A batch read to which Spark pushes filters.

    Only where the option asks for it. Spark 4.3 keeps one plan of a Python source for each DataFrame that was loaded: where
    one is used with several filters, in one query or after one another, all of them get the rows of the last.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.narrowing, rest = narrow(filters, self.rows.kafka)
        self.conditions = conditions(rest, self.rows.schema.fieldNames())
        return rest


def batch_reader(options: SourceOptions, rows: Rows) -> BatchReader:
    """Spark refuses a reader that takes filters where its conf for that is off, and names the conf."""
    return FilteringReader(options, rows) if options.push_down_predicate else BatchReader(options, rows)
