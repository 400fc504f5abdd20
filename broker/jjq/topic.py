"""A topic: pushing to it and reading it."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jjq import objects, pushing
from jjq.catalog.channels import topic_is_paused
from jjq.catalog.rows import TopicRow
from jjq.clock import now_us, sought_us, stamp_us
from jjq.config import TopicConfig
from jjq.deferral import Delay, defer_all, delay_us
from jjq.ephemeral import Bound
from jjq.errors import InvalidArgument, RecordTooLarge, SchemaMismatch
from jjq.facts import Facts
from jjq.headers import check_headers
from jjq.hints import keywords_of
from jjq.log.projection import output_schema
from jjq.log.reader import LogReader
from jjq.log.requests import Append, MorePartitions
from jjq.log.sealed import BATCH_BYTES
from jjq.model import (
    PartitionOffsets,
    Position,
    PositionRange,
    Positions,
    Record,
    SegmentInfo,
    Slice,
    make_position,
)
from jjq.preparing import partition_of
from jjq.records import METADATA, to_frame, to_records
from jjq.schema import METADATA_TYPES, RAW, first_larger, no_column, to_bytes
from jjq.skipping import check_on_data_loss, plan_past, plan_whole, read_past, resolve_past
from jjq.start import Edge, check_order, offset_of, parse_for
from jjq.values import each_of, flag, shown, whole

if TYPE_CHECKING:
    from jjq.store import Store

Headers = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]] | None
Timestamp = datetime | int | None
_RAW_METADATA = ("_partition", "_offset", "_timestamp", "_key")


@keywords_of("push_file", "push_many", "push_table", "read")
class Topic:
    """A handle of one topic; safe among threads. It keeps meaning this topic (`id`) when another is made by its name."""

    def __init__(self, store: Store, row: TopicRow, facts: Facts) -> None:
        self._store = store
        self._facts = facts
        self._next_partition = itertools.count()
        self._mutex = threading.Lock()
        self._take(row)
        self._bound = Bound(store, self) if self.config.ephemeral else None

    def _take(self, row: TopicRow) -> None:
        self._row = row
        self.config = TopicConfig.from_dict(row.config)
        bounded = self.config.ephemeral and self.config.when_full != "drop_oldest"
        self.most_at_once = self.config.max_records if bounded else None  # records that one push can have
        # The longest value that `push` may hand on as it is: there is no schema, no bound, and the broker gives the time.
        plain = row.schema is None and self.config.timestamps == "broker" and not self.config.ephemeral
        self._plain_bytes = min(self.config.max_record_bytes, self.config.max_batch_bytes) if plain else -1

    def refresh(self) -> None:
        """Reads settings and schema again, as others may have altered them; raises TopicDeleted."""
        self._take(self._facts.row())

    def catch_up(self) -> None:
        """Takes in partitions that others have added; raises TopicDeleted."""
        if self._store.catalog.partition_count(self.id) != self.partitions:
            self.refresh()

    @property
    def row(self) -> TopicRow:
        """The catalog's row as this handle knows it."""
        return self._row

    @property
    def id(self) -> str:
        return self._row.id

    @property
    def name(self) -> str:
        return self._row.name

    @property
    def created_at(self) -> int:
        """Microseconds since the epoch."""
        return self._row.created_at

    @property
    def partitions(self) -> int:
        """How many partitions this handle knows; there may be more when others have added some."""
        return self._row.partitions

    @property
    def schema(self) -> pa.Schema | None:
        """The topic's own columns, None for a topic of plain values."""
        return self._row.schema

    @property
    def schema_version(self) -> int:
        return self._row.schema_version

    def __repr__(self) -> str:
        columns = "no schema" if self.schema is None else f"{len(self.schema)} columns"
        return f"<Topic {self.name!r} {self.partitions} partition{'s' * (self.partitions > 1)}, {columns}>"

    def directory(self, partition: int) -> Path:
        return self._store.partition_dir(self.id, partition)

    def check_partition(self, partition: object) -> int:
        if isinstance(partition, int) and not isinstance(partition, bool) and partition >= 0:
            if partition >= self.partitions:
                self.catch_up()
            if partition < self.partitions:
                return partition
        raise InvalidArgument(f"topic {self.name!r} has partitions 0 to {self.partitions - 1}, not {shown(partition)}")

    def check_partitions(self, partitions: object) -> list[int]:
        chosen = [self.check_partition(each) for each in each_of(partitions, int, "partitions is a list of numbers")]
        if len(set(chosen)) != len(chosen):
            raise InvalidArgument("a partition is named twice")
        return chosen

    @staticmethod
    def check_size(size: int, limit: int, what: str) -> None:
        if size > limit:
            raise RecordTooLarge(
                f"{what} has {size:,} bytes, the topic takes up to {limit:,}; raise the limit with alter_topic, "
                f"or keep big objects in files and push where they are"
            )

    def check_records(self, columns: Sequence[Any], limit: int) -> None:
        """Raises RecordTooLarge when a row of Arrow columns takes more than `limit` bytes."""
        rows = pa.Table.from_arrays(list(columns), names=[str(i) for i in range(len(columns))])
        found = first_larger(rows, limit)
        if found is not None:
            self.check_size(found[1], limit, "the record" if rows.num_rows == 1 else f"record {found[0]}")

    # --- pushing -----------------------------------------------------------------------------------------------------

    def push(
        self, value: Any, *, key: bytes | str | None = None, headers: Headers = None, timestamp: Timestamp = None,
        partition: int | None = None, delay: Delay = None,
    ) -> Position:  # fmt: skip
        """Appends one record; returns its position when it is as durable as the topic's `sync` says.

        `value` is bytes, str or None (a tombstone), or a mapping of columns in a topic with a schema. A key chooses the
        partition (CRC32C modulo partitions) unless `partition` does; without either, partitions take turns.
        `timestamp` (an aware datetime, or microseconds) only where the topic's timestamps are the producer's. Channels do
        not deliver it before `delay` (seconds) is over; everybody else sees it at once.
        Raises InvalidArgument, SchemaMismatch, RecordTooLarge, TopicDeleted, StoreError; then nothing was appended, unless it says that the
        record may be there.
        """
        size, key_bytes = 0, None
        if key is not None:
            key_bytes = to_bytes(key, "a key")
            size = len(key_bytes)
        if type(value) is str and self._plain_bytes >= 0:
            value = self.plain(value)
        if (
            headers is None
            and timestamp is None
            and delay is None
            and type(value) is bytes
            and len(value) + size <= self._plain_bytes
        ):
            # What most single pushes are; it needs none of the checks of `pushing.request`.
            row = self._row
            place, among = (0, 1) if partition is None and row.partitions == 1 else self.choose(partition, key_bytes)
            try:
                offset, ts = self._store.logs[row.id, place].append_value(row.schema_version, value, among, key_bytes)
            except MorePartitions:
                self.refresh()
            else:
                return make_position((place, offset, ts))
        pairs = None if headers is None else [check_headers(headers)]
        if delay is not None:
            pairs = defer_all(pairs, 1, now_us() + delay_us(delay))
        stamps = None if timestamp is None else [timestamp]
        while True:
            place, among = self.choose(partition, key_bytes)
            appended = self.append_all({place: pushing.request(self, [value], [key_bytes], pairs, stamps)}, among)
            if appended is not None:
                return Position(place, appended[0].start, appended[0].timestamp)

    def push_chosen(
        self, place: int, among: int, values: Sequence[Any], *, keys: Sequence[bytes | None] | None,
        headers: list[Any] | None, timestamps: Sequence[Timestamp] | None,
    ) -> PositionRange:  # fmt: skip
        """Appends records to the partition that `choose` gave for them; raises MorePartitions when it would give another
        one by now, and then nothing was appended."""
        request = pushing.request(self, values, keys, headers, timestamps)
        appended = self.append_all({place: request}, among)
        if appended is None:
            raise MorePartitions
        return appended[0]

    def append_all(self, requests: Mapping[int, Append], among: int) -> list[PositionRange] | None:
        """Appends to each partition; None, and nothing done, when there are more of them by now than they were chosen
        among. What has begun goes on as it began: it came before the new ones."""
        ranges: list[PositionRange] = []
        for place, request in sorted(requests.items()):
            request.among = 0 if ranges else among
            try:
                self._append(place, request)
            except MorePartitions:
                self.refresh()
                return None
            ranges.append(PositionRange(place, request.offset, request.offset + request.rows, request.timestamp))
        return ranges

    def _append(self, place: int, request: Append) -> None:
        if self._bound is None:
            self._store.logs[self.id, place].append(request)
        elif self._bound.admits(place, request.rows):
            self._store.logs[self.id, place].append(request)
            self._bound.appended(place, request.offset + request.rows)

    def push_file(
        self, source: objects.Source, value: Any = None, *, key: bytes | str | None = None, headers: Headers = None,
        timestamp: Timestamp = None, partition: int | None = None,
    ) -> Position:  # fmt: skip
        """Pushes a record that refers to a big object; `source` is a path, bytes or an open binary file.

        The object is kept in the store once, by its content's hash, checked when it is read (`store.open_object(record)`),
        and goes with the last record that refers to it. `value` is the record's own: by default the file's name.
        """
        return objects.push_file(
            self, self._store, source, value, key=key, headers=headers, timestamp=timestamp, partition=partition
        )

    def push_many(
        self, values: Sequence[Any], *, keys: Sequence[bytes | str | None] | None = None,
        headers: Sequence[Headers] | None = None, timestamps: Sequence[Timestamp] | None = None,
        partition: int | None = None, atomic: bool = False, delay: Delay = None,
    ) -> Positions:  # fmt: skip
        """Appends many records, atomically in each partition (without keys, all go to one); returns their positions.

        Channels do not deliver them before `delay` (seconds) is over.
        `atomic=True` makes it one act over all partitions that the keys choose: all of it visible at once, or nothing.
        """
        return pushing.push_many(
            self, self._store, values, keys=keys, headers=headers, timestamps=timestamps, partition=partition,
            atomic=atomic, delay=delay,
        )  # fmt: skip

    def push_table(
        self, data: Any, *, key: str | None = None, partition: int | None = None, timestamp: str | None = None,
        writer_id: str | None = None, batch_id: int | None = None,
    ) -> Positions:  # fmt: skip
        """Appends the rows of an Arrow table, batch or reader, a pandas or Polars frame, or anything with the Arrow C
        stream; atomic in each partition, and over all of them for large data or with `writer_id` and `batch_id`.

        `key` names the column whose values are the keys and choose the partition; `timestamp` the one with the
        producer's time. With `writer_id` and `batch_id` it happens once, however often it is tried.
        """
        return pushing.push_table(
            self, self._store, data, key=key, partition=partition, timestamp=timestamp, writer_id=writer_id,
            batch_id=batch_id,
        )  # fmt: skip

    def choose(self, partition: int | None, key: bytes | None) -> tuple[int, int]:
        """The partition for a record, and among how many it was chosen: 0 where the caller has."""
        if partition is not None:
            return self.check_partition(partition), 0
        count = self.partitions
        if count == 1:
            return 0, 1
        return next(self._next_partition) % count if key is None else partition_of(key, count), count

    def plain(self, value: object) -> bytes | None:
        if isinstance(value, pa.Scalar):  # as are those of a column, which pyarrow takes where it is given many
            value = value.as_py()
            if value is None:
                return None
        if isinstance(value, Mapping):
            raise SchemaMismatch(
                f"topic {self.name!r} has no schema, so a record is bytes or str, not a mapping; encode it "
                f"(json.dumps), or make the topic with a schema"
            )
        return to_bytes(value, "a record of a topic without a schema")

    def retry_schema(self, build: Any) -> Any:
        """A column this handle does not know may have been added by somebody else a moment ago."""
        try:
            return build()
        except SchemaMismatch:
            version = self.schema_version
            self.refresh()
            if self.schema_version == version:
                raise
            return build()

    def stamps(
        self, timestamps: Sequence[Timestamp] | None, rows: int, check: Callable[[Any], int] = stamp_us
    ) -> list[int] | None:
        if self.config.timestamps == "broker":
            if timestamps is not None and any(each is not None for each in timestamps):
                raise InvalidArgument(
                    f"topic {self.name!r} gives its own timestamps; make it with timestamps='producer' to push them"
                )
            return None
        now = now_us()
        return [now if each is None else check(each) for each in (timestamps or [None] * rows)]

    # --- offsets -----------------------------------------------------------------------------------------------------

    @property
    def reader(self) -> LogReader:
        return self._store.reader(self.id, self.name)

    def offsets(self) -> list[PartitionOffsets]:
        """What each partition holds now: offsets `[start, end)`."""
        self.catch_up()
        reader = self.reader
        return [reader.offsets(partition) for partition in range(self.partitions)]

    def offset_for_timestamp(self, ts_us: int) -> dict[int, int | None]:
        """By partition the first offset whose timestamp is at least `ts_us` (microseconds), None if there is none."""
        sought_us(ts_us)
        self.catch_up()
        reader = self.reader
        return {partition: reader.seek_time(partition, ts_us) for partition in range(self.partitions)}

    def resolve(
        self, position: Any, *, end: bool = False, partitions: Sequence[int] | None = None, closed: bool = False
    ) -> dict[int, int]:
        """Offsets by partition for a start (or an `end`, exclusive): see `jjq.start`. Raises OffsetOutOfRange.

        A time with no record at or after it means the end. A mapping names some partitions; the others begin at their
        earliest offset, or end at their latest. With `partitions` only those are looked at. `closed`: of closed files alone, for
        who goes on without an active file that cannot be read; what is behind them means their end.
        """
        flag(end, "end")
        flag(closed, "closed")
        if partitions is None:
            self.catch_up()
        reader = self.reader
        chosen = range(self.partitions) if partitions is None else partitions
        parsed = parse_for(position, self.partitions, "end" if end else "start")
        found = {}
        for bounds in map(reader.closed_offsets if closed else reader.offsets, chosen):
            one = parsed.get(bounds.partition, Edge.LATEST if end else Edge.EARLIEST)
            seek = functools.partial(reader.seek_time, bounds.partition, closed=closed)
            found[bounds.partition] = offset_of(one, bounds, self.name, seek, closed)
        return found

    # --- reading -----------------------------------------------------------------------------------------------------

    def plan(self, partition: int, start: int, end: int, lineage: int | None = None, *, skip_lost: bool = False,
             ) -> list[Slice]:  # fmt: skip
        """Slices that together are the offsets `[start, end)` of a partition; see `LogReader.plan`."""
        for name, value in (("start", start), ("end", end), ("lineage", 0 if lineage is None else lineage)):
            whole(value, name)
        flag(skip_lost, "skip_lost")
        return self.reader.plan(self.check_partition(partition), start, end, lineage=lineage, skip_lost=skip_lost)

    def read(
        self, start: Any = "earliest", end: Any = "latest", columns: Sequence[str] | None = None,
        metadata: Sequence[str] | None = None, partitions: Sequence[int] | None = None, on_data_loss: str = "error",
    ) -> pa.RecordBatchReader:  # fmt: skip
        """The records from `start` to `end` (exclusive; `latest` is fixed now), partition after partition. Offsets in the wrong order
        are refused.

        Of `columns` only those are read from the files. `metadata`: which of `_topic`, `_partition`, `_offset`,
        `_timestamp`, `_key`, `_headers` to add; by default none for a topic with a schema, else
        `_partition, _offset, _timestamp, _key`. DuckDB, Polars and pandas take the reader as it is.

        Where records in between are gone it raises DataLoss before the first; at damage DamagedSegment, when what lies
        before was read. With on_data_loss="skip" it goes on behind them, and logs what it skipped (`jjq.topic`); of a partition
        whose active file is missing it reads what lies before.
        """
        user, added, each = self.plan_read(start, end, columns, metadata, partitions, on_data_loss)
        read = functools.partial(self.reader.read, user=user, metadata=added, target_bytes=BATCH_BYTES)
        batches = read(each) if on_data_loss == "error" else read_past(self, each, read)
        return pa.RecordBatchReader.from_batches(output_schema(user, added), batches)

    def plan_read(
        self, start: Any = "earliest", end: Any = "latest", columns: Sequence[str] | None = None,
        metadata: Sequence[str] | None = None, partitions: Sequence[int] | None = None, on_data_loss: str = "error",
    ) -> tuple[pa.Schema, tuple[str, ...], list[Slice]]:  # fmt: skip
        """What `read` would read: columns, metadata, slices."""
        fails = check_on_data_loss(on_data_loss) == "error"
        plan = plan_whole if fails else plan_past
        resolve = self.resolve if fails else functools.partial(resolve_past, self)
        self.catch_up()
        user = self.select(columns)
        added = self.check_metadata(_RAW_METADATA if metadata is None and self.schema is None else metadata or ())
        chosen: Sequence[int] = range(self.partitions)
        if partitions is not None:
            chosen = self.check_partitions(partitions)
        check_order(start, end, self.partitions, chosen)
        first, last = resolve(start, partitions=chosen), resolve(end, end=True, partitions=chosen)
        return user, added, [each for p in chosen for each in plan(self, p, first[p], max(first[p], last[p]))]

    def to_pandas(self, start: Any = "earliest", end: Any = "latest", **options: Any) -> Any:
        """`read` as a pandas DataFrame."""
        return to_frame(self.read(start, end, **options).read_all())

    def select(self, columns: Sequence[str] | None) -> pa.Schema:
        """The schema of the chosen columns of the topic, in the order given."""
        schema = RAW if self.schema is None else self.schema
        if columns is None:
            return schema
        columns = each_of(columns, str, "columns is a list of names")
        unknown = [name for name in columns if name not in schema.names]
        if unknown:
            beside = [name for name in unknown if name in METADATA_TYPES]
            how = f"; read(metadata={beside}) adds what is no column" if beside else ""
            raise InvalidArgument(
                f"topic {self.name!r} has {no_column(unknown, schema.names)}; its columns are {', '.join(schema.names)}{how}"
            )
        if len(set(columns)) != len(columns):
            raise InvalidArgument("a column is named twice")
        return pa.schema([schema.field(name) for name in columns])

    @staticmethod
    def check_metadata(names: Sequence[str]) -> tuple[str, ...]:
        names = each_of(names, str, "metadata is a list of names")
        unknown = [name for name in names if name not in tuple(METADATA_TYPES)]
        if unknown or len(set(names)) != len(names):
            raise InvalidArgument(
                f"metadata {shown(list(names))} must be some of {', '.join(METADATA_TYPES)}, each once"
            )
        return tuple(names)

    def records(self, slices: Sequence[Slice]) -> Iterator[Record]:
        """The rows of slices as single records, for people and consumers that take them one by one."""
        user = RAW if self.schema is None else self.schema
        for batch in self.reader.read(slices, user, METADATA, BATCH_BYTES):
            yield from to_records(self.name, batch, self.schema is None)

    # --- what there is -----------------------------------------------------------------------------------------------

    def segments(self, partition: int | None = None) -> list[SegmentInfo]:
        """Every segment, by partition and offset."""
        self.catch_up()
        chosen = range(self.partitions) if partition is None else [self.check_partition(partition)]
        found: list[SegmentInfo] = []
        for each in chosen:
            found.extend(self.reader.segment_infos(each))
        return found

    def describe(self) -> dict[str, Any]:
        """Id, settings, schema, and by partition: offsets, lineage, records and those that repair found lost, segments, bytes
        and segments not yet compacted."""
        self.refresh()
        counts = self._store.catalog.segment_counts(self.id)
        partitions = []
        for bounds in self.offsets():
            segments, size, rolled, lost = counts.get(bounds.partition, (0, 0, 0, 0))
            active = self.reader.active_bytes(bounds.partition)
            partitions.append(
                {
                    "partition": bounds.partition, "start": bounds.start, "end": bounds.end, "lineage": bounds.lineage,
                    "records": bounds.end - bounds.start - lost, "lost": lost, "segments": segments + (active is not None),
                    "bytes": size + (active or 0), "to_compact": rolled,
                }
            )  # fmt: skip
        return {
            "name": self.name, "id": self.id, "created_at": self._row.created_at, "schema_version": self.schema_version,
            "schema": None if self.schema is None else {field.name: str(field.type) for field in self.schema},
            "config": self.config.to_dict(), "partitions": partitions,
            "records": sum(each["records"] for each in partitions), "bytes": sum(each["bytes"] for each in partitions),
        }  # fmt: skip

    def empty(self) -> None:
        """Lets go of every record. Offsets go on where they were; subscribers skip to there."""
        self._store.empty_topic(self)

    @property
    def paused(self) -> bool:
        """Whether the topic's channels deliver nothing."""
        return topic_is_paused(self._store.catalog.driver, self.id, self.name)

    def pause(self) -> None:
        """Nothing is delivered by any of the topic's channels until `unpause`, whatever restarts. Pushing goes on."""
        self._store.pause_topic(self, True)

    def unpause(self) -> None:
        self._store.pause_topic(self, False)
