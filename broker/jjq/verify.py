"""Whether a store is whole: the catalog, every file against its row, and that no offset is missing or there twice.

Works on a store that cannot be written, and while others write: what vanishes meanwhile (compacted, expired) is looked
up again. Nothing is changed.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jjq import layout, objects, topicfile
from jjq.catalog.channels import all_channels, channel_places
from jjq.catalog.rows import PartitionRow, TopicRow
from jjq.errors import DamagedSegment, StoreError, StoreFormat, TopicDeleted
from jjq.facts import Facts
from jjq.known import Known, forgotten_topics, in_use
from jjq.log.check import ActiveEnd, check_active, check_segment
from jjq.log.reader import LOST
from jjq.log.stream import is_torn, stream_paths
from jjq.model import Segment
from jjq.reports import Problem, Progress, VerifyReport, no_progress
from jjq.store import Store
from jjq.values import between

_ROUNDS = 20  # how often what vanished is looked up again before a busy partition is left for another time
_EVER = 1 << 62


def verify(
    store: Store | str | os.PathLike[str], progress: Progress | None = None, *, sample: float | None = None
) -> VerifyReport:
    """Checks a whole store; what is wrong is in the report, not raised.

    `sample` (0 to 1) reads only that share of the closed files; rows are compared all the same. A path is opened for
    reading. Raises StoreNotFound, and StoreFormat for a directory that is no store.
    """
    if sample is not None:
        between(sample, "sample", 0, 1)
    if isinstance(store, Store):
        return Verifier(store, progress, sample).run()
    try:
        with Store(store, create=False, read_only=True) as opened:
            return Verifier(opened, progress, sample).run()
    except StoreFormat as error:
        if "path" not in error.details:  # no store, or one of a later version
            raise
        report = VerifyReport(str(store))
        report.problems.append(Problem("catalog", error.message, "Run `jjq repair`", path=str(error.details["path"])))
        return report


class Verifier:
    """One pass over a store."""

    def __init__(self, store: Store, progress: Progress | None, sample: float | None) -> None:
        self._store = store
        self._catalog = store.catalog
        self._progress = progress or no_progress
        self._sample = sample
        self._random = random.SystemRandom()
        self._done = self._total = 0
        self._what = ""
        self._ends: dict[tuple[str, int], PartitionEnd] = {}
        self.report = VerifyReport(str(store.path))

    def run(self) -> VerifyReport:
        try:
            if not self._sound_catalog():
                return self.report
            before = {topic.id: topic.partitions for topic in self._catalog.topics()}
            cursors = self._cursors()
            self._missing_cursors(before, cursors)
            topics = self._catalog.topics()
            self._total = sum(
                size for topic in topics for _, size, *_ in self._catalog.segment_counts(topic.id).values()
            )
            for topic in topics:
                with contextlib.suppress(TopicDeleted):
                    self._topic(topic)
            self._check_cursors(cursors)
            self._forgotten()
            self._objects()
            self._garbage()
            self._unknown()
        except (StoreFormat, StoreError) as error:
            if isinstance(error, StoreFormat) and "path" not in error.details:
                raise  # of a later version: nothing is known of it
            self._problem("catalog", error.message, "Run `jjq repair`", path=str(self._store.path / "catalog.db"))
        self._tick(self._total - self._done)
        return self.report

    # --- the catalog -------------------------------------------------------------------------------------------------

    def _objects(self) -> None:
        for path, message in objects.problems(self._store):
            self._problem("damaged", message, "Push the object again, or put the right file in its place", path=path)

    def _forgotten(self) -> None:
        for directory, name in forgotten_topics(self._store.path, self._catalog):
            self._problem(
                "catalog", f"the catalog does not know topic {name!r}, which has records in {directory}",
                "Run `jjq repair`, which makes the catalog again", name, path=str(directory),
            )  # fmt: skip

    def _sound_catalog(self) -> bool:
        path = self._store.path / "catalog.db"
        if (
            layout.catalog_is_lost(self._store.path) and (self._store.path / "jjq.json").exists()
        ):  # taken away under an open store
            self._problem("catalog", f"{path} is missing", "Run `jjq repair`, which builds it again", path=str(path))
            return False
        try:
            self._catalog.check_named()
        except StoreError as error:
            if "errno" not in error.details:
                raise
            said, _, advice = error.message.partition(
                "; "
            )  # the store is gone, and what is in its place is not to be repaired
            self._problem("catalog", said, (advice or "open it again").capitalize(), path=str(path))
            return False
        for found in self._catalog.problems():
            self._problem("catalog", f"{path}: {found}", "Run `jjq repair`, which builds it again", path=str(path))
        for topic_id in self._catalog.ids_without_topic():
            self._problem(
                "row",
                f"the catalog has rows of a topic {topic_id} it does not know",
                "Run `jjq repair`",
                path=str(path),
            )
        return self.report.ok

    # --- topics ------------------------------------------------------------------------------------------------------

    def _topic(self, topic: TopicRow) -> None:
        self._what = topic.name
        self.report.topics += 1
        facts = Facts(self._store, topic.id)
        rows = self._catalog.partitions(topic.id)
        if [row.partition for row in rows] != list(range(topic.partitions)) and not self._grew(topic, rows):
            self._problem(
                "row", f"topic {topic.name!r} lacks partitions in the catalog", "Run `jjq repair`", topic.name
            )
        self._topic_file(topic)
        for row in rows:
            self._partition_directory(topic, row)
            self._partition(topic, facts, row.partition)

    def _grew(self, topic: TopicRow, rows: Sequence[PartitionRow]) -> bool:
        """Whether partitions were added since the topic was looked at, and these are all that there were then."""
        now = self._catalog.topic_by_id(topic.id)
        whole = [row.partition for row in rows] == list(range(len(rows)))
        return now is not None and whole and topic.partitions <= len(rows) <= now.partitions

    def _topic_file(self, topic: TopicRow) -> None:
        path = topicfile.path_of(self._store.path, topic.id)
        found = topicfile.read(self._store.path, topic.id)
        if found is None:
            self._problem(
                "topic_file", f"{path} is missing or cannot be read", "Run `jjq maintain`, which writes it again",
                topic.name, path=str(path),
            )  # fmt: skip
        elif topicfile.differs(self._store.path, self._catalog, topic):
            self.report.notes.append(f"{path} is older than the catalog; `jjq maintain` brings it up to date")

    def _partition_directory(self, topic: TopicRow, row: PartitionRow) -> None:
        path = self._store.partition_dir(topic.id, row.partition)
        if not path.is_dir():  # made before the row, and removed after it
            self._catalog.partition(topic.id, row.partition)  # raises if the topic has gone meanwhile
            self._problem(
                "missing", f"the directory {path} is missing", "Put it back from a copy, or run `jjq repair`",
                topic.name, row.partition, str(path),
            )  # fmt: skip

    def _partition(self, topic: TopicRow, facts: Facts, partition: int) -> None:
        self.report.partitions += 1
        todo = [(0, _EVER)]
        for number in range(_ROUNDS):
            row, segments = self._catalog.segments(topic.id, partition, 0, _EVER)
            if number == 0:
                self._chain(topic, row, segments)
            again: list[tuple[int, int]] = []
            for segment in segments:
                wanted = any(segment.base < end and start < segment.end for start, end in todo)
                if wanted and not self._segment(topic, facts, partition, segment):
                    again.append((segment.base, segment.end))
            if todo[-1][1] == _EVER and not self._active(topic, facts, row):
                again.append((row.end_offset, _EVER))
            if not again:
                return
            todo = again
        self.report.notes.append(
            f"partition {partition} of topic {topic.name!r} changed too fast to be looked at whole; run it again"
        )

    def _chain(self, topic: TopicRow, row: PartitionRow, segments: Sequence[Segment]) -> None:
        for code, what, start, end in chain_problems(row, segments):
            self._problem(
                code, f"partition {row.partition} of topic {topic.name!r}: {what}", "Run `jjq repair`", topic.name,
                row.partition, start=start, end=end,
            )  # fmt: skip
        self._lineages(topic, row)

    def _lineages(self, topic: TopicRow, row: PartitionRow) -> None:
        numbers = [number for number, _ in self._catalog.lineages(topic.id, row.partition, -1)]
        if max(numbers, default=0) != row.lineage:
            self._problem(
                "row", f"partition {row.partition} of topic {topic.name!r} is in lineage {row.lineage}, which has no "
                f"beginning", "Run `jjq repair`", topic.name, row.partition,
            )  # fmt: skip

    # --- files -------------------------------------------------------------------------------------------------------

    def _segment(self, topic: TopicRow, facts: Facts, partition: int, segment: Segment) -> bool:
        """False when the segment is no longer there, so that what replaced it has to be looked at."""
        directory = self._store.partition_dir(topic.id, partition)
        if segment.kind == LOST:
            self.report.lost += segment.rows
            self._count(segment)
            return True
        before = self._done
        try:
            if self._sample is None or self._random.random() < self._sample:
                check_segment(directory, topic.id, partition, segment, facts, self._tick)
            else:
                (directory / f"{segment.uuid}.{segment.kind}").stat()
                self._tick(segment.length)
        except (DamagedSegment, OSError) as error:
            if self._catalog.segment(segment.uuid) is None:
                self._done = before
                return False
            self._bad_file(
                topic, partition, directory / f"{segment.uuid}.{segment.kind}", (segment.base, segment.end), error
            )
        self._count(segment)
        return True

    def _count(self, segment: Segment) -> None:
        self.report.segments += 1
        self.report.records += 0 if segment.kind == LOST else segment.rows
        self.report.bytes += segment.length

    def _bad_file(
        self, topic: TopicRow, partition: int, path: Path, span: tuple[int, int], error: DamagedSegment | OSError
    ) -> None:
        start, end = span
        if isinstance(error, DamagedSegment):
            found = error.details.get("lost")
            start, end = found if found is not None and found[1] > found[0] else (start, end)
            self._problem(
                "damaged", error.message, "Run `jjq repair`", topic.name, partition, error.path, start, end
            )  # fmt: skip
        elif isinstance(error, FileNotFoundError):
            to = f"to {end - 1}" if end > start else "and up"  # of an active file nobody knows
            self._problem(
                "missing", f"{error.filename or path} is missing: offsets {start} {to}", "Put it back from a copy, or "
                "run `jjq repair`", topic.name, partition, str(error.filename or path), start, end,
            )  # fmt: skip
        else:
            self._problem(
                "damaged", f"{path} cannot be read: {error.strerror or error}", "Check the disk, then run `jjq repair`",
                topic.name, partition, str(path), start, end,
            )  # fmt: skip

    def _active(self, topic: TopicRow, facts: Facts, row: PartitionRow) -> bool:
        """Checks the file being appended to; False when another one took its place meanwhile."""
        end = PartitionEnd(row.end_offset, row.lineage)
        if row.active is not None:
            directory = self._store.partition_dir(topic.id, row.partition)
            path = stream_paths(directory, row.active)[0]
            try:
                found = check_active(directory, topic.id, row, facts, self._store.boot_id, self._tick)
            except (DamagedSegment, OSError) as error:
                now = self._catalog.partition(topic.id, row.partition)
                if (now.active, now.boot_id) != (row.active, row.boot_id):
                    return False
                self._bad_file(topic, row.partition, path, (row.end_offset, row.end_offset), error)
                end = PartitionEnd(_EVER, row.lineage)  # nobody knows
            else:
                end = PartitionEnd(found.offset, row.lineage)
                self._note_active(path, found)
                self.report.bytes += found.position
                self.report.records += end.offset - row.end_offset
            self.report.segments += 1
        self._ends[topic.id, row.partition] = end
        for number, start in self._catalog.lineages(topic.id, row.partition, -1):
            if start > end.offset and number <= row.lineage:
                self._problem(
                    "row", f"lineage {number} of partition {row.partition} of topic {topic.name!r} begins behind its end",
                    "Run `jjq repair`", topic.name, row.partition, start=start,
                )  # fmt: skip
        return True

    def _note_active(self, path: Path, found: ActiveEnd) -> None:
        if found.unrecovered:
            self.report.notes.append(f"{path} was not closed before the machine went down; it recovers at first use")
        elif not found.closed:
            with contextlib.suppress(FileNotFoundError):
                if is_torn(path, found.position):
                    self.report.notes.append(
                        f"{path} has bytes behind its end: a write is under way, or its writer died"
                    )

    # --- cursors, garbage, unknown files -----------------------------------------------------------------------------

    def _cursors(self) -> list[tuple[str, str, int, int, int]]:
        """(whose, topic id, partition, offset, lineage), read before the ends, which only grow."""
        return [
            (f"subscriber {each.name!r}", each.topic_id, partition, offset, lineage)
            for each in self._catalog.subscribers()
            for partition, (offset, lineage) in self._catalog.cursors(each.id).items()
        ] + [
            (f"channel {each.name!r} of topic {each.topic!r}", each.topic_id, partition, offset, lineage)
            for each in all_channels(self._catalog.driver)
            for partition, (offset, lineage) in channel_places(self._catalog.driver, each.id).items()
        ]

    def _missing_cursors(self, counts: Mapping[str, int], cursors: Sequence[tuple[str, str, int, int, int]]) -> None:
        """A partition without a position would never be read. `counts` were read first, and both only grow together."""
        found: dict[tuple[str, str], set[int]] = {}
        for whose, topic_id, partition, _, _ in cursors:
            found.setdefault((whose, topic_id), set()).add(partition)
        for each in self._catalog.subscribers():
            # They come and go with their positions, so one without any is damage, unless it has gone meanwhile.
            if not self._catalog.cursors(each.id) and each in self._catalog.subscribers():
                found.setdefault((f"subscriber {each.name!r}", each.topic_id), set())
        for (whose, topic_id), partitions in found.items():
            for partition in sorted(set(range(counts.get(topic_id, 0))) - partitions):
                self._problem(
                    "cursor", f"{whose} has no position in partition {partition}", "Run `jjq repair`", partition=partition
                )  # fmt: skip

    def _check_cursors(self, cursors: Sequence[tuple[str, str, int, int, int]]) -> None:
        for whose, topic_id, partition, offset, lineage in cursors:
            end = self._ends.get((topic_id, partition))
            # One of an older lineage is told so when it is used.
            if end is not None and offset > end.offset and lineage >= end.lineage:
                self._problem(
                    "cursor", f"{whose} stands at offset {offset} of partition {partition}, which ends at "
                    f"{end.offset}", "Run `jjq repair`", partition=partition, start=end.offset, end=offset,
                )  # fmt: skip

    def _garbage(self) -> None:
        for path in self._catalog.garbage():
            if in_use(self._catalog, path):
                self._problem("row", f"{path} is in use and marked for removal", "Run `jjq repair`", path=path)

    def _unknown(self) -> None:
        self.report.unknown += [str(path.relative_to(self._store.path)) for path in Known(self._store).unknown()]

    # --- saying so ---------------------------------------------------------------------------------------------------

    def _problem(
        self, code: str, message: str, advice: str, topic: str | None = None, partition: int | None = None,
        path: str | None = None, start: int | None = None, end: int | None = None,
    ) -> None:  # fmt: skip
        self.report.problems.append(Problem(code, message, advice, topic, partition, path, start, end))

    def _tick(self, size: int) -> None:
        self._done += size
        self._progress(min(self._done, self._total), self._total, self._what)


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    offset: int
    lineage: int


def chain_problems(row: PartitionRow, segments: Sequence[Segment]) -> Iterator[tuple[str, str, int, int]]:
    """(code, what is wrong, start, end) where the rows do not follow each other from a partition's start to its end."""
    at, prefix = row.start_offset, None
    for segment in segments:
        if segment.base >= segment.end or segment.kind not in ("arrow", "arrows", LOST):
            yield "row", f"segment {segment.uuid} is no segment", segment.base, segment.end
        if segment.base > at:
            yield "gap", f"offsets {at} to {segment.base - 1} are in no segment", at, segment.base
        elif segment.base < at:
            yield "overlap", f"offsets {segment.base} to {at - 1} are there twice", segment.base, at
        # Retention may have taken the file that set the highest timestamp, and a lost one is not known to have.
        if segment.prefix_max_ts < max(segment.max_ts, segment.max_ts if prefix is None else prefix):
            yield "row", f"segment {segment.uuid} has a wrong highest timestamp", segment.base, segment.end
        at, prefix = segment.end, segment.prefix_max_ts
    if at != row.end_offset:
        low, high = sorted((at, row.end_offset))
        yield "gap", f"the segments end at {at}, the row at {row.end_offset}", low, high
    if prefix is not None and row.prefix_max_ts < prefix:
        yield "row", "the row has a wrong highest timestamp", row.start_offset, row.end_offset
