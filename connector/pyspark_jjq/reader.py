"""Reading topics with Spark: the driver plans slices of files, the tasks read them.

The planning side lives in one Python process a query, the tasks in others: a reader is pickled to them, so it holds
the options and the shape of the rows, and each process opens the store itself.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from jjq.errors import DataLoss, InvalidArgument
from pyspark_jjq import ranges
from pyspark_jjq.offsets import Offsets, Position, TopicPositions
from pyspark_jjq.options import LATEST, SourceOptions
from pyspark_jjq.planning import remaining, share, tasks
from pyspark_jjq.stores import find_topic, open_store, open_topics, patiently

if TYPE_CHECKING:
    import pyarrow as pa

    from jjq import Topic
    from jjq.model import Slice
    from pyspark_jjq.rows import Rows

# An idle query asks for the end about every 15 ms. It may spend a tenth of a core on that, and answers within 0.2 s.
IDLE_SHARE = 10
IDLE_PAUSE_MAX_S = 0.2


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
    for topic, pieces in itertools.groupby(slices, key=lambda piece: piece.topic):
        yield from _read_topic(options, rows, policy, topic, list(pieces))


def _read_topic(
    options: SourceOptions, rows: Rows, policy: ranges.LossPolicy, topic: str, left: list[Slice]
) -> Iterator[pa.RecordBatch]:
    store = open_store(options.path)
    while left:
        given = 0
        try:
            for batch in store.read_slices(left, columns=list(rows.columns), metadata=list(rows.metadata)):
                given += batch.num_rows
                yield rows.shape(batch, topic)
            return
        except DataLoss as loss:
            policy.lost(str(loss), topic=topic, partition=loss.partition, asked=loss.asked, earliest=loss.earliest)
            rest = remaining(left, given)
            left = [kept for piece in rest for kept in _after(piece, loss)]
            if left == rest:
                raise  # nothing was skipped, so the same would happen for ever


def _after(piece: Slice, loss: DataLoss) -> list[Slice]:
    """What is left of a slice after a loss."""
    if piece.partition != loss.partition or piece.start >= loss.earliest:
        return [piece]
    return [piece.split(loss.earliest)[1]] if piece.end > loss.earliest else []


class BatchReader(DataSourceReader):
    """One read of a range that is fixed when the query is planned."""

    def __init__(self, options: SourceOptions, rows: Rows) -> None:
        self.options = options
        self.rows = rows

    def partitions(self) -> Sequence[InputPartition]:
        return patiently(self._partitions)

    def _partitions(self) -> list[InputPartition]:
        policy = ranges.LossPolicy(self.options.fail_on_data_loss)
        topics = open_topics(self.options.path, self.options.topics)
        slices = [
            ranges.plan(topic, p, at, end.partitions[p], policy)
            for topic, start, end in ranges.bounds(self.options, topics)
            for p, at in start.partitions.items()
        ]
        return partitions_of(self.options, slices)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SlicePartition):
            return iter(())  # Spark makes one of its own where there is nothing to read
        policy = ranges.LossPolicy(self.options.fail_on_data_loss)
        return read_slices(self.options, self.rows, policy, partition.value)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of topics. Its state lives in Spark's checkpoint (see offsets); what is kept here is only a cache."""

    def __init__(self, options: SourceOptions, rows: Rows) -> None:
        self.options = options
        self.rows = rows
        self.policy = ranges.LossPolicy(options.fail_on_data_loss)
        self._initial: Offsets | None = None
        self._seen: Offsets | None = None  # the ends as of the last look
        self._target: Offsets | None = None  # where an AvailableNow query ends
        self._idle_until = 0.0

    # --- where the stream stands

    def initialOffset(self) -> dict[str, object]:
        if self._initial is None:  # Spark asks twice, and "latest" must not move in between
            self._initial = patiently(self._start)
        return self._initial.to_json()

    def _start(self) -> Offsets:
        bound = self.options.starting or LATEST
        return Offsets({t.name: ranges.resolve(t, bound, self.options, end=False) for t in self._topics()})

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = patiently(self._end)

    def _end(self) -> Offsets:
        bound = self.options.ending or LATEST
        return Offsets({t.name: ranges.resolve(t, bound, self.options, end=True) for t in self._topics()})

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def reportLatestOffset(self) -> dict[str, object] | None:
        """The ends that the last look saw, without limits: as with Kafka's source, progress asks nobody anew."""
        return None if self._seen is None else self._seen.to_json()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """The end of the next micro-batch: the very same as `start` where nothing is new."""
        self._pause_while_idle()
        began = time.monotonic()
        at = Offsets.from_json(start)
        end = patiently(lambda: self._advance(at, limit))
        if end == at:
            cost = time.monotonic() - began
            self._idle_until = time.monotonic() + min(cost * IDLE_SHARE, IDLE_PAUSE_MAX_S)
            return start
        self._idle_until = 0.0
        return end.to_json()

    def _pause_while_idle(self) -> None:
        # The wait comes before the look, so an answer is never older than the question: processAllAvailable relies
        # on seeing what was pushed before it was called.
        pause = self._idle_until - time.monotonic()
        if pause > 0:
            time.sleep(pause)

    def _advance(self, start: Offsets, limit: ReadLimit) -> Offsets:
        if self.options.ending is not None and self._target is None:
            raise InvalidArgument(
                "an ending in a stream needs .trigger(availableNow=True), under which the query stops there; "
                "add the trigger, or remove the ending option"
            )
        ids: dict[str, str] = {}
        seen: dict[str, TopicPositions] = {}
        reached: dict[str, dict[int, Position]] = {}
        waiting: dict[tuple[str, int], int] = {}
        bases: dict[tuple[str, int], Position] = {}
        for name in self.options.topics:
            topic = find_topic(open_store(self.options.path), name)
            known = start.topics.get(name)
            if topic is None:
                self.policy.lost(f"topic {name!r} is gone: it was deleted", topic=name)
                continue
            now = topic.offsets()
            earliest = ranges.positions(topic, now, end=False)
            if known is not None and known.id != topic.id:
                self._recreated(name, known.id, topic.id)
                known = None
            ids[name] = topic.id
            seen[name] = ranges.positions(topic, now, end=True)
            begin = reached[name] = {**earliest.partitions, **(known.partitions if known is not None else {})}
            for each in now:
                key, at = (name, each.partition), begin[each.partition]
                again = ranges.overtaken(topic, each.partition, at) if at.lineage < each.lineage else None
                if again is not None or at.offset > each.end:
                    onward = each.end if again is None else again
                    self._moved_back(name, each.partition, at, onward)
                    begin[each.partition] = at = Position(onward, each.lineage)
                last = self._capped(name, topic.id, each.partition, each.end)
                waiting[key] = max(0, last - max(at.offset, each.start))
                bases[key] = Position(max(at.offset, each.start), each.lineage)
        self._seen = Offsets(seen)
        shares = waiting
        if not isinstance(limit, ReadAllAvailable) and self.options.max_offsets_per_trigger is not None:
            turn = sum(at.offset for begin in reached.values() for at in begin.values())
            shares = share(self.options.max_offsets_per_trigger, waiting, turn)
        for (name, p), rows in shares.items():
            if rows > 0:
                reached[name][p] = Position(bases[name, p].offset + rows, bases[name, p].lineage)
        # What is not there now stays in: without it, it would be read again from the start when it comes back.
        return Offsets({**start.topics, **{name: TopicPositions(ids[name], at) for name, at in reached.items()}})

    def _capped(self, name: str, topic_id: str, partition: int, end: int) -> int:
        """The end of a partition, or less where an AvailableNow query has fixed it."""
        if self._target is None:
            return end
        fixed = self._target.topics.get(name)
        if fixed is None or fixed.id != topic_id:
            return 0
        return min(end, fixed.partitions[partition].offset) if partition in fixed.partitions else 0

    def _recreated(self, name: str, old: str, new: str) -> None:
        self.policy.lost(
            f"topic {name!r} was deleted and made again: this query read the one with id {old}, there is now {new}, "
            "and what was left to read of the old one is gone",
            topic=name,
            id=new,
        )

    def _moved_back(self, name: str, partition: int, at: Position, onward: int) -> None:
        self.policy.lost(
            f"this query has read partition {partition} of topic {name!r} up to offset {at.offset}, and its end was "
            f"moved back to {onward}: records were lost, in a power cut or because an older copy of the store was put "
            "in place",
            topic=name,
            partition=partition,
            asked=at.offset,
            earliest=onward,
            lost=at.offset - onward,
        )

    def _topics(self) -> list[Topic]:
        return open_topics(self.options.path, self.options.topics)

    # --- a micro-batch

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        if start == end:  # Spark asks so at a restart
            return []
        begin, until = Offsets.from_json(start), Offsets.from_json(end)
        return patiently(lambda: self._plan(begin, until))

    def _plan(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        slices: list[list[Slice]] = []
        for name, last in end.topics.items():
            first = start.topics.get(name)
            if first == last:
                continue
            topic = find_topic(open_store(self.options.path), name)
            if topic is None:
                self.policy.lost(f"topic {name!r} is gone: it was deleted", topic=name)
                continue
            if topic.id != last.id:
                self._recreated(name, last.id, topic.id)
                continue
            begin = first.partitions if first is not None and first.id == last.id else {}
            earliest = {each.partition: Position(each.start, each.lineage) for each in topic.offsets()}
            for p, at in sorted(last.partitions.items()):
                slices.append(ranges.plan(topic, p, begin.get(p, earliest[p]), at, self.policy))
        return partitions_of(self.options, slices)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_slices(self.options, self.rows, self.policy, partition.value)
