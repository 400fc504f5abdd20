"""A stream of topics: where it stands, how far the next micro-batch goes, what its tasks read.

One of these lives in a Python process of its own for as long as its query runs.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from jjq.errors import InvalidArgument, JjqError, TopicDeleted
from pyspark_jjq import limits, ranges
from pyspark_jjq.edges import LATEST, Bound
from pyspark_jjq.following import Follower
from pyspark_jjq.idling import Idle
from pyspark_jjq.offsets import Offsets, Position, TopicPositions
from pyspark_jjq.options import SourceOptions
from pyspark_jjq.reader import partitions_of, read_slices
from pyspark_jjq.stores import TopicView, find_topic, let_go, look, look_at, open_store, patiently
from pyspark_jjq.telling import telling

if TYPE_CHECKING:
    import pyarrow as pa

    from jjq import Topic
    from jjq.model import PartitionOffsets, Slice
    from pyspark_jjq.rows import Rows

NOWHERE = Offsets({})

# How far a backlog is looked at first where bytes count, and four times as far each time that is not enough.
FIRST_STEP_ROWS = 4096


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of topics. Its state lives in Spark's checkpoint (see offsets); what is kept here is only a cache."""

    def __init__(self, options: SourceOptions, rows: Rows, topics: Sequence[Topic]) -> None:
        """`topics` are those there are now, whose records have these rows."""
        self.options = options
        self.rows = rows
        self.policy = ranges.LossPolicy(options.fail_on_data_loss)
        self._pace = limits.Pace(options)
        self._fitting = {topic.id for topic in topics}
        self._follower: Follower | None = None
        self._initial: Offsets | None = None
        self._refusal: JjqError | None = None  # why there is no initial offset
        self._seen: Offsets | None = None  # the ends as of the last look
        self._target: Offsets | None = None  # where an AvailableNow query ends
        self._idle = Idle(options.path)

    # --- where the stream stands

    def initialOffset(self) -> dict[str, object]:
        """Where a query begins that has no checkpoint.

        Spark also asks when it does the first micro-batch again after a restart. Then the answer means nothing (see offsets),
        and that there may be none now, as no record is late enough any more, must not be in the way: so that is said when
        the answer is used.
        """
        if self._initial is None:  # Spark asks twice, and "latest" must not move in between
            try:
                found = patiently(lambda: self._resolve(self.options.starting or LATEST, end=False))
            except JjqError as error:
                self._refusal = error
                return NOWHERE.to_json()
            # Where nothing is new this becomes the end of the first micro-batch, too, as it is.
            self._initial = replace(found, since=found.topics)
        return self._initial.to_json()

    def _known(self, start: dict[str, object]) -> Offsets:
        """The offsets that Spark has, from its checkpoint or from `initialOffset`; raises what that had to say."""
        at = Offsets.from_json(start)
        if self._refusal is not None and at == NOWHERE:
            raise self._refusal
        return at

    @telling()
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = patiently(lambda: self._resolve(self.options.ending or LATEST, end=True))

    def _resolve(self, bound: Bound, *, end: bool) -> Offsets:
        views = look(self.options.path, self.options.choice, all_there=True)
        ranges.check_topics(bound, views, self.options, end=end)
        return Offsets({name: ranges.resolve(view, bound, self.options, end=end) for name, view in views.items()})

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._pace.most_rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def reportLatestOffset(self) -> dict[str, object] | None:
        """The ends that the last look saw, without limits: as with Kafka's source, progress asks nobody anew."""
        return None if self._seen is None else self._seen.to_json()

    @telling()
    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """The end of the next micro-batch: the very same as `start` where nothing is new."""
        # The rest comes before the look, so an answer is never older than the question: processAllAvailable relies
        # on seeing what was pushed before it was called.
        self._idle.rest()
        began = time.monotonic()
        self._idle.listen()
        at = self._known(start)
        self._check_choice(at)
        # What lies before is done, the last micro-batch too, which Spark does not tell until the next one is planned.
        self._follow(at)
        end = patiently(lambda: self._advance(at, limit))
        if end == at:
            self._idle.begin(time.monotonic() - began, woken=self._seen == at)
            return start
        self._idle.end()
        return end.to_json()

    def _advance(self, start: Offsets, limit: ReadLimit) -> Offsets:
        if self.options.ending is not None and self._target is None:
            raise InvalidArgument(
                "an ending in a stream needs .trigger(availableNow=True), under which the query stops there; "
                "add the trigger, or remove the ending option"
            )
        views = look(self.options.path, self.options.choice)
        self._idle.watch(views.values())
        self._check_rows(views)
        self._seen = Offsets({name: ranges.positions(view, end=True) for name, view in views.items()})
        gone = self._gone(start, views)
        since: dict[str, TopicPositions] = {}
        reached: dict[str, dict[int, Position]] = {}
        waiting: dict[limits.Partition, int] = {}
        bases: dict[limits.Partition, Position] = {}
        for name, view in views.items():
            if not self._is_due(view):
                gone |= self._replaced(start, view)
                continue
            begin = reached[name] = self._begin(start, view)
            if (new := self._new(start, view, begin)).partitions:
                since[name] = new
            for p, each in view.offsets.items():
                at = begin[p] = self._still_there(view, each, begin[p])
                last = self._last(view, each)
                if at.offset < min(each.start, last):
                    # What is gone is passed even if nothing is left behind it, for who plans the micro-batch to say.
                    at = begin[p] = Position(min(each.start, last), each.lineage)
                bases[name, p] = Position(at.offset, each.lineage)
                waiting[name, p] = max(0, last - at.offset)
        shares: Mapping[limits.Partition, int] = waiting
        if not isinstance(limit, ReadAllAvailable):
            if self._target is None and self._pace.holds_back(sum(waiting.values())):
                return start
            if any(waiting.values()):
                before = sum(at.offset for begin in reached.values() for at in begin.values())
                shares = self._pace.admit(waiting, before, lambda rows: self._runs(views, bases, rows))
        for (name, p), rows in shares.items():
            if rows > 0:
                reached[name][p] = Position(bases[name, p].offset + rows, bases[name, p].lineage)
        # What is not there now stays in: without it, it would be read again from the start when it comes back.
        now = {name: TopicPositions(views[name].id, at) for name, at in reached.items()}
        return Offsets({**start.topics, **gone, **now}, since)

    def _check_choice(self, at: Offsets) -> None:
        """That a checkpoint has at least one of the topics that are read: sources of a query that have changed places would
        each begin anew, unseen."""
        if not at.topics or any(self.options.choice.wants(name) for name in at.topics):
            return
        names = sorted(at.topics)
        self.policy.lost(
            f"the checkpoint is of {', '.join(names[:5])}{' and others' if len(names) > 5 else ''}, and this source reads "
            f"{self.options.choice}: what was left to read of those is not read. Use one checkpoint a query, and leave its "
            "sources in their order",
            checkpoint=tuple(names),
        )

    def _check_rows(self, views: Mapping[str, TopicView]) -> None:
        """Topics that came, or were made again, since the query began must have its rows."""
        for name, view in views.items():
            if view.id not in self._fitting:
                topic = find_topic(open_store(self.options.path), name)
                if topic is not None and topic.id == view.id:
                    self.rows.check(topic)
                    self._fitting.add(view.id)

    def _gone(self, start: Offsets, views: Mapping[str, TopicView]) -> dict[str, TopicPositions]:
        """The topics that were read and are not there any more, after saying so once."""
        found = {}
        for name in self.options.choice.names or start.topics:
            known = start.topics.get(name)
            if name in views or not self.options.choice.wants(name) or (known is not None and known.gone):
                continue
            self.policy.lost(f"topic {name!r} is gone: it was deleted", topic=name)
            if known is not None:
                found[name] = replace(known, gone=True)
        return found

    def _is_due(self, view: TopicView) -> bool:
        """An AvailableNow query leaves what came after its end was fixed to the next run: else it might never end."""
        if self._target is None:
            return True
        fixed = self._target.topics.get(view.name)
        return fixed is not None and fixed.id == view.id

    def _replaced(self, start: Offsets, view: TopicView) -> dict[str, TopicPositions]:
        """A topic that was made again after an AvailableNow query began: what comes is for the next run, what is lost is
        said by this one."""
        known = start.topics.get(view.name)
        if known is None or known.gone or known.id == view.id:
            return {}
        self._recreated(view.name, known.id, view.id)
        return {view.name: replace(known, gone=True)}

    def _begin(self, start: Offsets, view: TopicView) -> dict[int, Position]:
        """Where the next micro-batch begins in each partition: the earliest, where nothing was read before.

        A partition that was added began at 0: what is gone of it was not read. One that is assigned now was there before.
        """
        earliest = ranges.positions(view, end=False).partitions
        known = start.topics.get(view.name)
        if known is None:
            return dict(earliest)
        if known.id != view.id:
            if not known.gone:
                self._recreated(view.name, known.id, view.id)
            return dict(earliest)
        if self.options.choice.assigned is None and (fewer := known.partitions.keys() - earliest.keys()):
            self._without(view.name, fewer)
            # If there are some of that number again, they are others.
            known = replace(known, partitions={p: at for p, at in known.partitions.items() if p not in fewer})
        added = earliest if self.options.choice.assigned else dict.fromkeys(earliest, Position(0, 0))
        return {**added, **known.partitions}

    def _new(self, start: Offsets, view: TopicView, begin: Mapping[int, Position]) -> TopicPositions:
        """Of where the next micro-batch begins what the checkpoint does not have."""
        known = start.topics.get(view.name)
        had = {} if known is None or known.id != view.id or start == self._initial else known.partitions
        return TopicPositions(view.id, {p: begin[p] for p in view.offsets if p not in had})

    def _still_there(self, view: TopicView, now: PartitionOffsets, at: Position) -> Position:
        """`at`, or where it goes on after the end of the partition was moved back."""
        again = ranges.overtaken(view, now.partition, at) if at.lineage < now.lineage else None
        if again is None and at.offset <= now.end:
            return at
        onward = now.end if again is None else again
        self._moved_back(view.name, now.partition, at, onward)
        return Position(onward, now.lineage)

    def _reached(self, view: TopicView, now: PartitionOffsets, at: Position) -> Position:
        """The planned end `at` of a micro-batch, or less where a partition that no power cut has moved back ends before it."""
        if at.offset <= now.end or at.lineage < now.lineage:
            return at
        self._moved_back(view.name, now.partition, at, now.end)
        return Position(now.end, now.lineage)

    def _last(self, view: TopicView, now: PartitionOffsets) -> int:
        """The end of a partition, or less where an AvailableNow query has fixed it."""
        if self._target is None:
            return now.end
        fixed = self._target.topics[view.name].partitions
        return min(now.end, fixed[now.partition].offset) if now.partition in fixed else 0

    def _runs(
        self, views: Mapping[str, TopicView], bases: Mapping[limits.Partition, Position], rows: limits.Rows
    ) -> limits.Runs:
        """How large what waits is: (rows, bytes) segment by segment, what is lost as rows of no size."""
        found = {
            (name, p): self._runs_of(views[name], p, bases[name, p].offset, bases[name, p].offset + count)
            for (name, p), count in rows.items()
        }
        let_go(views[name] for name, _ in rows)
        return found

    def _runs_of(self, view: TopicView, partition: int, at: int, end: int) -> list[tuple[int, int]]:
        """Only up to what may go into one micro-batch, so that a long backlog is not planned anew for each."""
        runs: list[tuple[int, int]] = []
        room, step = self.options.max_bytes_per_trigger or 0, FIRST_STEP_ROWS
        while at < end and room >= 0:
            stop = min(end, at + step)
            try:
                slices = view.reader.plan(partition, at, stop, skip_lost=True)
            except TopicDeleted:
                slices = []
            for each in slices:
                runs += [(each.start - at, 0)] if each.start > at else []
                runs.append((each.end - each.start, each.bytes))
                at, room = each.end, room - each.bytes
            runs += [(stop - at, 0)] if stop > at else []
            at, step = stop, step * 4
        return runs

    def _recreated(self, name: str, old: str, new: str) -> None:
        self.policy.lost(
            f"topic {name!r} was deleted and made again: this query read the one with id {old}, there is now {new}, "
            "and what was left to read of the old one is gone",
            topic=name,
            id=new,
        )

    def _without(self, name: str, partitions: Collection[int]) -> None:
        gone = ", ".join(map(str, sorted(partitions)))
        self.policy.lost(
            f"topic {name!r} has no partition {gone}, of which this query has read: an older copy of the store was put in "
            "place, from before it was added",
            topic=name,
            partitions=gone,
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

    # --- what is done

    def commit(self, end: dict[str, object]) -> None:
        self._follow(Offsets.from_json(end))

    def _follow(self, at: Offsets) -> None:
        if self.options.subscriber is None:
            return
        if self._follower is None:
            self._follower = Follower(self.options.path, self.options.subscriber, self.options.choice)
        follower = self._follower
        patiently(lambda: follower.follow(at))

    # --- a micro-batch

    @telling()
    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        if start == end:  # Spark asks so at a restart
            return []
        until = Offsets.from_json(end)
        begin = Offsets.from_json(start) if until.since else self._known(start)
        self._check_choice(until)
        return patiently(lambda: self._plan(begin, until))

    def _plan(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """What lies between, of whatever topics and partitions that is: a micro-batch that is tried again after a restart
        has the same rows even if the options choose others now."""
        changed = {
            name: last
            for name, last in end.topics.items()
            if (name in end.since or start.topics.get(name) != last) and not last.gone
        }
        views = look_at(self.options.path, list(changed))
        slices: list[list[Slice]] = []
        for name, last in changed.items():
            view = views.get(name)
            if view is None:
                self.policy.lost(f"topic {name!r} is gone: it was deleted", topic=name)
                continue
            if view.id != last.id:
                self._recreated(name, last.id, view.id)
                continue
            first = start.topics.get(name)
            begin = first.partitions if first is not None and first.id == last.id else {}
            begin = {**begin, **(end.since[name].partitions if name in end.since else {})}
            earliest = ranges.positions(view, end=False).partitions
            # Ends that earlier versions wrote do not say where partitions began that the start does not have.
            if fewer := last.partitions.keys() - earliest.keys():
                self._without(name, fewer)
            between = {
                p: (begin.get(p, Position(0, 0) if begin else earliest[p]), self._reached(view, view.offsets[p], at))
                for p, at in sorted(last.partitions.items())
                if p not in fewer
            }
            wanted = {p: (since, at) for p, (since, at) in between.items() if since != at}
            slices += ranges.plan_all(view, wanted, self.policy).values()
        let_go(views.values())
        return partitions_of(self.options, slices)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_slices(self.options, self.rows, self.policy, partition.value)
