"""Planning and reading: the two functions through which everything reads, `LogReader.plan` and `LogReader.read`.

Where partitions end is in `ends.py`. A file that was compacted away between the plan and the read is found again by its range.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa

from jjq import files
from jjq.errors import DamagedSegment, DataLoss, InvalidArgument, StoreError
from jjq.log.bounds import Bounds, Test
from jjq.log.contracts import LogCatalog, TopicFacts
from jjq.log.ends import Ends
from jjq.log.format import NO_TS
from jjq.log.projection import columns_of, output_schema, project
from jjq.log.sealed import SealedReader, rebatch
from jjq.log.stream import StreamReader, last_entry, stream_paths
from jjq.model import Segment, SegmentInfo, Slice
from jjq.values import counted

LOST = "lost"  # kind of a segment row that stands for records that repair could not save
_KEPT_BOUNDS = 1 << 14  # of columns of files, some hundred bytes each

File = TypeVar("File", SealedReader, StreamReader)


class Keeper(Protocol):
    """Where a read gets open files and batches from. What it gives is what the file has, verified once or again; files
    it gave are not closed by who got them."""

    def file(self, reader: LogReader, partition: int, segment: Segment, open_file: Callable[[], File]) -> File: ...

    def batch(self, sealed: SealedReader, number: int, columns: Sequence[int] | None) -> pa.RecordBatch: ...

    def forget(self, reader: LogReader) -> None: ...


class LogReader(Ends):
    """Reads the partitions of one topic. Safe among threads."""

    def __init__(self, directory: Path, topic_id: str, topic: str, catalog: LogCatalog, facts: TopicFacts, boot_id: str,
                 place: str, recover: Callable[[int], None] | None, keeper: Keeper) -> None:  # fmt: skip
        super().__init__(directory, topic_id, topic, catalog, facts, boot_id, recover)
        self._place = place  # this host and boot, for slices
        self._keeper = keeper  # for reads that bring no other
        # What is said of a sealed file stays true, and whoever filters a topic does so again: then no file is opened for it.
        self._whole_bounds = functools.lru_cache(maxsize=_KEPT_BOUNDS)(self._read_whole_bounds)

    # --- time --------------------------------------------------------------------------------------------------------

    def seek_time(self, partition: int, ts: int, *, closed: bool = False) -> int | None:
        """The first offset with a timestamp of at least `ts` microseconds, None if there is none yet. `closed`: in closed files.

        Files are found by the highest timestamp so far, which only grows; timestamps themselves may go back.
        """
        row, end, _ = (None, 0, False) if closed else self._ends(partition)
        segment = self._catalog.first_segment_reaching(self.topic_id, partition, ts)
        if segment is not None and segment.max_ts < ts:
            # Retention took the file that reached it; the first of those left that has it itself is the answer.
            segment = self._catalog.first_segment_with(self.topic_id, partition, ts)
        while segment is not None:
            try:
                if segment.kind == LOST:
                    raise FileNotFoundError
                if segment.kind == "arrow":
                    return self._sealed_reader(partition, segment, self._keeper).seek_time(ts)
                with self._open_stream(partition, segment.uuid, segment.schema_version) as stream:
                    return stream.seek_time(ts)
            except FileNotFoundError:
                again = self._catalog.first_segment_with(self.topic_id, partition, ts)
                if again is not None and again.uuid == segment.uuid:
                    raise self._lacks(partition, segment, segment.base, segment.end) from None
                segment = again
        if row is None or row.active is None or end <= row.end_offset:
            return None
        with self.live.reader(row) as reader:
            return reader.seek_time(ts)

    # --- what there is -----------------------------------------------------------------------------------------------

    def segment_infos(self, partition: int) -> list[SegmentInfo]:
        """Every segment of a partition, oldest first, the active one last."""
        row, end, closed = self._ends(partition)
        _, segments = self._catalog.segments(self.topic_id, partition, 0, row.end_offset)
        states = [
            "rolled" if each.kind == "arrows" else "sealed" if each.kind == "arrow" else each.kind for each in segments
        ]
        if row.active is not None:
            with self.live.reader(row) as reader:
                last, lowest = reader.last(), reader.lowest_ts()
            if not (self._partition_dir(partition) / f"{row.active}.arrows").exists():
                self._check_moved_on(row)
                return self.segment_infos(partition)
            segments.append(
                Segment(
                    row.active, "arrows", row.end_offset, end, last.end_position,
                    last.file_crc, 0, row.active_schema, lowest, last.run_max_ts, 0, last.appended_at,
                )
            )  # fmt: skip
            states.append("rolled" if closed else "active")
        ids = [None, *(each.uuid for each in segments), None]
        return [
            SegmentInfo(
                topic=self.topic, partition=partition, id=each.uuid, state=state, start=each.base, end=each.end,
                rows=each.rows, bytes=each.length,
                min_timestamp=each.min_ts if each.min_ts != NO_TS and each.rows else None,
                max_timestamp=each.max_ts if each.max_ts != NO_TS and each.rows else None,
                appended_at=each.appended_at, checksum=f"crc32c:{each.crc:08x}", schema_version=each.schema_version,
                path=None if each.kind == LOST else str(self._partition_dir(partition) / f"{each.uuid}.{each.kind}"),
                previous=ids[i], next=ids[i + 2],
            )
            for i, (each, state) in enumerate(zip(segments, states, strict=True))
        ]  # fmt: skip

    def active_bytes(self, partition: int) -> int | None:
        """Bytes of the active file up to its end, None when there is none; raises DamagedSegment where it is missing."""
        row = self._catalog.partition(self.topic_id, partition)
        if row.active is None:
            return None
        path, index_path = stream_paths(self._partition_dir(partition), row.active)
        try:
            size = _length(path)
        except FileNotFoundError:
            self._check_moved_on(row)
            return None
        if row.boot_id == self._boot_id:
            last = last_entry(index_path)
        else:  # the index may lag behind
            with self.live.reader(row) as reader:
                last = reader.last()
        return size if last is None else min(size, last.end_position)

    # --- planning ----------------------------------------------------------------------------------------------------

    def plan(self, partition: int, start: int, end: int, *, lineage: int | None = None, skip_lost: bool = False,
             ) -> list[Slice]:  # fmt: skip
        """Slices that together are the offsets `[start, end)`, at most one a segment, in order.

        Raises DataLoss when some of them are gone (unless `skip_lost`: then the slices begin at the earliest left) and
        InvalidArgument when `end` is beyond what is there.
        """
        if start >= end:
            return []
        if lineage is not None and (overtaken := self.check_lineage(partition, end, lineage)) is not None:
            raise DataLoss(
                f"partition {partition} of topic {self.topic!r} lost its end in a power cut: offsets from {overtaken} on "
                f"were given again, and [{start}, {end}) was planned before",
                topic=self.topic, partition=partition, asked=start, earliest=overtaken, lost=end - max(start, overtaken),
            )  # fmt: skip
        while True:
            row, segments = self._catalog.segments(self.topic_id, partition, start, end)
            if start < row.start_offset:
                if not skip_lost:
                    raise self.lost(partition, start, row.start_offset, end)
                start = min(row.start_offset, end)
                if start >= end:
                    return []
                continue
            if end <= row.end_offset:
                break
            current, visible, _ = self._ends(partition)
            if current.end_offset != row.end_offset or current.active != row.active:
                continue
            if end > visible:
                raise InvalidArgument(
                    f"partition {partition} of topic {self.topic!r} ends at {visible}, so offsets up to {end} cannot be read"
                )
            assert row.active is not None
            path = self._partition_dir(partition) / f"{row.active}.arrows"
            try:
                length = _length(path)
            except FileNotFoundError:
                self._check_moved_on(row)
                continue
            segments.append(
                Segment(row.active, "arrows", row.end_offset, visible, length, 0, 0, row.active_schema, 0, 0, 0, 0)
            )
            break
        slices = []
        for segment in segments:
            first, last = max(start, segment.base), min(end, segment.end)
            if first >= last:
                continue
            if segment.kind == LOST:
                if not skip_lost:
                    raise self.lost(partition, first, self._left_from(partition, segment.end), end)
                continue
            size = int(segment.length * (last - first) / max(1, segment.rows))
            slices.append(
                Slice(self.topic_id, self.topic, partition, first, last, row.lineage, size, segment, self._place)
            )
        return slices

    def plan_all(self, ranges: Sequence[Sequence[int]]) -> list[list[Slice] | None]:
        """Of each `partition, start, lineage, end, lineage` the slices; None where something of it is gone, or was given again:
        `plan` and `check_lineage` say what."""
        return [self._plan_whole(*each) for each in ranges]

    def _plan_whole(self, partition: int, start: int, begun: int, end: int, lineage: int) -> list[Slice] | None:
        if start >= end or (begun < lineage and self.check_lineage(partition, start, begun) is not None):
            return None
        try:
            return self.plan(partition, start, end, lineage=lineage)
        except DataLoss:
            return None

    def within(self, slices: Sequence[Slice], since: int, until: int) -> list[Slice]:
        """The slices without what is known to have no timestamp in `[since, until)` microseconds: whole segments by their
        rows, whole batches by what is written of them. Other records stay in, too: a batch is not cut."""
        found: list[Slice] = []
        for each in slices:
            segment = each.segment
            if segment is None or segment.kind not in ("arrow", "arrows"):
                found.append(each)
                continue
            # Of the active file, which has no row yet, neither is known.
            if segment.appended_at and (segment.max_ts < since or segment.min_ts >= until):
                continue
            try:
                spans = self._spans(each, segment, since, until)
            except FileNotFoundError:  # compacted a moment ago: who reads it plans it again
                spans = [(each.start, each.end)]
            found += [each.part(first, last) for first, last in spans]
        return found

    def _spans(self, each: Slice, segment: Segment, since: int, until: int) -> list[tuple[int, int]]:
        if segment.kind == "arrow":
            sealed = self._sealed_reader(each.partition, segment, self._keeper)
            return sealed.spans(each.start, each.end, since, until)
        if self._recover is None and not segment.appended_at:
            return [(each.start, each.end)]  # a store that cannot be written: the index may be one of another boot
        with self._open_stream(each.partition, segment.uuid, segment.schema_version) as stream:
            return stream.spans(each.start, each.end, since, until)

    def where(self, slices: Sequence[Slice], tests: Sequence[Test]) -> list[Slice]:
        """The slices without batches of sealed files of which is known that no row meets all the tests."""
        found: list[Slice] = []
        names = {test.column for test in tests}
        for each in slices:
            spans = [(each.start, each.end)]
            if each.segment is not None and each.segment.kind == "arrow":
                # A file that was compacted a moment ago is planned again by who reads it.
                with contextlib.suppress(FileNotFoundError):
                    # First of the whole file, as in most no row meets them: then the batches are not even looked at.
                    whole = {name: self._whole_bounds(each.partition, each.segment, name) for name in names}
                    if all((known := whole[test.column]) is None or test.may_hold(known) for test in tests):
                        sealed = self._sealed_reader(each.partition, each.segment, self._keeper)
                        spans = sealed.spans_where(each.start, each.end, tests)
                    else:
                        spans = []
            found += [each.part(first, last) for first, last in spans]
        return found

    def _read_whole_bounds(self, partition: int, segment: Segment, name: str) -> Bounds | None:
        return self._sealed_reader(partition, segment, self._keeper).whole_bounds(name)

    def bounds(
        self, slices: Sequence[Slice], names: Sequence[str], *, batches: bool
    ) -> Iterator[tuple[int, int, int, tuple[Bounds | None, ...]]]:
        """Of each sealed file in the slices, or each of its batches, its partition, where it begins and ends, and the bounds
        of these columns: what `where` compares, for who compares it elsewhere."""
        for each in slices:
            if each.segment is not None and each.segment.kind == "arrow":
                with contextlib.suppress(FileNotFoundError):
                    sealed = self._sealed_reader(each.partition, each.segment, self._keeper)
                    yield from (
                        (each.partition, *said) for said in sealed.said(each.start, each.end, names, batches=batches)
                    )

    def _left_from(self, partition: int, offset: int) -> int:
        """The first offset from here on that is not lost: what repair could not save may take several rows."""
        _, segments = self._catalog.segments(self.topic_id, partition, offset, 1 << 62)
        for each in segments:
            if each.kind != LOST and each.end > offset:
                break
            offset = max(offset, each.end)
        return offset

    def lost(self, partition: int, asked: int, earliest: int, end: int) -> DataLoss:
        gone = min(earliest, end) - asked
        return DataLoss(
            f"partition {partition} of topic {self.topic!r}: offset {asked} was asked for, the earliest left is "
            f"{earliest}; {counted(gone, 'record is gone', 'records are gone')}",
            topic=self.topic, partition=partition, asked=asked, earliest=earliest, lost=gone,
        )  # fmt: skip

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, slices: Sequence[Slice], user: pa.Schema, metadata: Sequence[str], target_bytes: int,
             most_rows: int = 1 << 20, keeper: Keeper | None = None) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """The rows of the slices in order, in verified batches of about `target_bytes`: columns `user`, then `metadata`.

        `user` are topic columns in the order wanted; one that a file is too old for reads as null.
        """
        output = output_schema(user, metadata)

        def projected() -> Iterator[pa.RecordBatch]:
            for each in slices:
                for base, batch, physical in self._physical(each, user, metadata, keeper or self._keeper):
                    yield project(batch, physical, base, each, user, metadata, output)

        return rebatch(projected(), target_bytes, most_rows)

    def load(self, partition: int, start: int, rows: int, keeper: Keeper) -> list[Segment]:
        """Opens, verifies and decompresses up to `rows` records from an offset on, so that who reads them need not wait;
        returns their segments."""
        end = min(self.offsets(partition).end, start + rows)
        segments = []
        for each in self.plan(partition, start, end, skip_lost=True):
            assert each.segment is not None
            if each.segment.kind == "arrow":
                sealed = self._sealed_reader(partition, each.segment, keeper)
                for _ in sealed.scan(each.start, each.end, batch=functools.partial(keeper.batch, sealed)):
                    pass
            elif self.live.mapped(partition, each.segment.uuid) is None:
                self._rolled_reader(partition, each.segment, keeper)
            segments.append(each.segment)
        return segments

    def _check_here(self, each: Slice) -> None:
        """A file that is still appended to is whole only where it is written: elsewhere its pages may not have arrived."""
        there, here = each.planned_on.split(), self._place.split()
        if len(there) == 2 and all(mine != theirs for mine, theirs in zip(here, there, strict=True)):
            raise StoreError(
                f"offsets {each.start} to {each.end - 1} of partition {each.partition} of topic {self.topic!r} are in a file "
                f"that is only sure to be whole on {there[0]}, where the read was planned, and this is {here[0]}. Run the "
                f"executors there, or seal the file first (`jjq maintain`); serving a store to other machines needs a broker",
                path=str(self._partition_dir(each.partition)),
            )

    def _physical(self, each: Slice, user: pa.Schema, metadata: Sequence[str], keeper: Keeper,
                  ) -> Iterator[tuple[int, pa.RecordBatch, pa.Schema]]:  # fmt: skip
        """(first offset, batch cut to the slice, schema of its file), planning again where a file is gone."""
        at = each.start
        plan = [each] if each.segment is not None else self.plan(each.partition, at, each.end, lineage=each.lineage)
        while at < each.end:
            if not plan:
                plan = self.plan(each.partition, at, each.end, lineage=each.lineage)
            segment = plan[0].segment
            assert segment is not None
            stop = min(plan[0].end, each.end)
            if segment.kind == "arrows":
                self._check_here(each)
            try:
                for base, batch in self._open_and_scan(each.partition, segment, at, stop, user, metadata, keeper):
                    first, last = max(base, at), min(base + batch.num_rows, stop)
                    if first != at or first >= last:
                        raise self._lacks(each.partition, segment, at, stop)
                    if last - first < batch.num_rows:
                        batch = batch.slice(first - base, last - first)
                    yield first, batch, self._facts.physical(segment.schema_version)
                    at = last
            except FileNotFoundError:
                known = plan[0].segment
                plan = self.plan(each.partition, at, each.end, lineage=each.lineage)
                if plan and plan[0].segment == known:
                    raise self._lacks(each.partition, segment, segment.base, segment.end) from None
                continue
            if at < stop:
                if self.check_lineage(each.partition, stop, each.lineage) is None:
                    raise self._lacks(each.partition, segment, at, stop)
                plan = []  # taken back since it was planned, which a new plan says
                continue
            plan = plan[1:]

    def _lacks(self, partition: int, segment: Segment, first: int, end: int) -> DamagedSegment:
        path = self._partition_dir(partition) / f"{segment.uuid}.{segment.kind}"
        parts = [path, path.with_suffix(".index")] if segment.kind == "arrows" else [path]
        missing = next((part for part in parts if not part.exists()), None)
        if missing is not None:
            self._catalog.check_named()
        why = f"offsets {first} to {end - 1} are not in it" if missing is None else "the file is missing"
        return DamagedSegment(
            f"{missing or path}: {why}; run `jjq repair`, which keeps what is whole",
            path=str(missing or path), position=0, lost=(first, end),
        )  # fmt: skip

    def _open_and_scan(self, partition: int, segment: Segment, start: int, end: int, user: pa.Schema,
                       metadata: Sequence[str], keeper: Keeper) -> Iterator[tuple[int, pa.RecordBatch]]:  # fmt: skip
        if segment.kind == "arrow":
            columns = columns_of(self._facts.physical(segment.schema_version), user, metadata)
            sealed = self._sealed_reader(partition, segment, keeper)
            yield from sealed.scan(start, end, columns, functools.partial(keeper.batch, sealed))
            return
        row = None
        if self._recover is None:  # a read-only store: is this the active file of another boot?
            current = self._catalog.partition(self.topic_id, partition)
            row = current if current.active == segment.uuid else None
        if row is None and self.live.mapped(partition, segment.uuid) is None:
            yield from self._rolled_reader(partition, segment, keeper).scan(start, end)
            return
        with self._open_stream(partition, segment.uuid, segment.schema_version, row) as stream:
            yield from stream.scan(start, end)

    def _sealed_reader(self, partition: int, segment: Segment, keeper: Keeper) -> SealedReader:
        schema = self._facts.physical(segment.schema_version)
        directory = self._partition_dir(partition)
        return keeper.file(self, partition, segment, lambda: SealedReader(directory, segment, schema))

    def _rolled_reader(self, partition: int, segment: Segment, keeper: Keeper) -> StreamReader:
        return keeper.file(
            self, partition, segment, lambda: self._open_stream(partition, segment.uuid, segment.schema_version)
        )

    def close(self) -> None:
        self.live.close()
        self._keeper.forget(self)

    def after_fork(self) -> None:
        self.live.after_fork()


def _length(path: Path) -> int:
    """Raises FileNotFoundError, and StoreError."""
    with files.reading(path):
        return path.stat().st_size
