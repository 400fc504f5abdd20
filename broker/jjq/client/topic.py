"""A topic behind a broker. What is pushed is checked and given its partition here, as in an embedded store."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from jjq import objects, wire
from jjq.catalog.rows import TopicRow
from jjq.client import objects as remote_objects
from jjq.client.connection import Connection, known_error
from jjq.clock import sought_us
from jjq.errors import InvalidArgument, StoreError
from jjq.hints import keywords_of
from jjq.layout import segment_from_json
from jjq.log.bounds import Bounds, Test
from jjq.log.projection import output_schema
from jjq.log.sealed import BATCH_BYTES
from jjq.model import PartitionOffsets, Position, Record, SegmentInfo, Slice
from jjq.records import METADATA, to_records
from jjq.schema import RAW
from jjq.topic import Headers, Timestamp, Topic
from jjq.values import MOST, counted, each_of
from jjq.wire import Ticket

if TYPE_CHECKING:
    from jjq.client.store import RemoteStore

_PLANNED_AT_ONCE = 100  # partitions: a long backlog of each may be thousands of slices


@keywords_of("push_file", "read")
class RemoteTopic(Topic):
    """A handle of one topic of a `RemoteStore`."""

    _store: RemoteStore

    def __init__(self, store: RemoteStore, row: TopicRow) -> None:
        self._store = store
        self._next_partition = itertools.count()
        self._mutex = threading.Lock()
        self._bound = None  # the broker holds it
        self._take(row)

    def refresh(self) -> None:
        self._take(self._store.topic_row(self.id))

    def catch_up(self) -> None:
        self.refresh()

    def directory(self, partition: int) -> Path:
        raise InvalidArgument(f"topic {self.name!r} is behind a broker: its files are not here")

    @property
    def reader(self) -> Any:
        return self._planner

    @property
    def _planner(self) -> RemoteReader:
        return RemoteReader(self._store, self.id, self.name)

    def push_file(
        self, source: objects.Source, value: Any = None, *, key: bytes | str | None = None, headers: Headers = None,
        timestamp: Timestamp = None, partition: int | None = None,
    ) -> Position:  # fmt: skip
        self._store.check_open(write=True)
        value, pairs = objects.record_of(self, source, value, headers)
        about = {
            "topic_id": self.id, "value": wire.outgoing(value), "key": key, "headers": pairs, "timestamp": timestamp,
            "partition": partition,
        }  # fmt: skip
        return remote_objects.push(self._store, source, about)

    # --- offsets -----------------------------------------------------------------------------------------------------

    def offsets(self) -> list[PartitionOffsets]:
        return [PartitionOffsets(*each) for each in self._ask("offsets")]

    def offset_for_timestamp(self, ts_us: int) -> dict[int, int | None]:
        sought_us(ts_us)
        return dict(self._ask("offset_for_timestamp", ts_us=ts_us))

    def resolve(
        self, position: Any, *, end: bool = False, partitions: Sequence[int] | None = None, closed: bool = False
    ) -> dict[int, int]:
        chosen = None if partitions is None else list(partitions)
        more = {"closed": True} if closed else {}  # which earlier brokers do not know
        return dict(self._ask("resolve", position=wire.pack_start(position), end=end, partitions=chosen, **more))

    def _ask(self, name: str, **args: Any) -> Any:
        return self._store.connection.ask(name, topic_id=self.id, **args)

    # --- reading -----------------------------------------------------------------------------------------------------

    def plan(self, partition: int, start: int, end: int, lineage: int | None = None, *, skip_lost: bool = False,
             ) -> list[Slice]:  # fmt: skip
        """Slices that together are the offsets `[start, end)` of a partition; of no file, since those are not here."""
        return self._planner.plan(partition, start, end, lineage=lineage, skip_lost=skip_lost)

    def read(
        self, start: Any = "earliest", end: Any = "latest", columns: Sequence[str] | None = None,
        metadata: Sequence[str] | None = None, partitions: Sequence[int] | None = None, on_data_loss: str = "error",
    ) -> pa.RecordBatchReader:  # fmt: skip
        if on_data_loss != "error":  # what is passed over is told here
            return super().read(start, end, columns, metadata, partitions, on_data_loss)
        given: dict[str, Any] = {
            "topic_id": self.id, "start": wire.pack_start(start), "end": wire.pack_start(end),
            "columns": None if columns is None else each_of(columns, str, "columns is a list of names"),
            "metadata": None if metadata is None else each_of(metadata, str, "metadata is a list of names"),
            "partitions": None if partitions is None else each_of(partitions, int, "partitions is a list of numbers"),
        }  # fmt: skip
        connection = self._store.connection
        descriptor = flight.FlightDescriptor.for_command(wire.encode(given))
        info = connection.persist(lambda client, _: client.get_flight_info(descriptor, connection.options(60.0)))
        schema, ticket = info.schema, Ticket.unpack(info.endpoints[0].ticket.ticket)
        return pa.RecordBatchReader.from_batches(schema, read_ticket(connection, ticket, schema))

    def records(self, slices: Sequence[Slice]) -> Iterator[Record]:
        user = RAW if self.schema is None else self.schema
        ticket = Ticket(self.id, wire.ranges_of(slices), user, METADATA, BATCH_BYTES)
        for batch in read_ticket(self._store.connection, ticket, output_schema(user, METADATA)):
            yield from to_records(self.name, batch, self.schema is None)

    # --- what there is -----------------------------------------------------------------------------------------------

    def segments(self, partition: int | None = None) -> list[SegmentInfo]:
        """Every segment, by partition and offset. `path` is relative to the broker's store."""
        return [SegmentInfo(**each) for each in self._ask("segments", partition=partition)]

    def describe(self) -> dict[str, Any]:
        self.refresh()
        found: dict[str, Any] = self._ask("describe")
        return found

    @property
    def paused(self) -> bool:
        return bool(self._ask("topic_is_paused"))


class RemoteReader:
    """What the parts of a store that plan reads ask of a topic's reader: see `jjq.log.reader.LogReader`."""

    def __init__(self, store: RemoteStore, topic_id: str, name: str) -> None:
        self._connection, self._topic_id, self._name = store.connection, topic_id, name
        self._files = store.near is not None  # whether to ask for files: those who read may see them

    def plan(
        self, partition: int, start: int, end: int, *, lineage: int | None = None, skip_lost: bool = False
    ) -> list[Slice]:
        return self._slices(
            self._ask(
                "plan", partition=partition, start=start, end=end, lineage=lineage, skip_lost=skip_lost, files=self._files
            )
        )  # fmt: skip

    def plan_all(self, ranges: Sequence[Sequence[int]]) -> list[list[Slice] | None]:
        found: list[list[Slice] | None] = []
        for at in range(0, len(ranges), _PLANNED_AT_ONCE):
            some = list(ranges[at : at + _PLANNED_AT_ONCE])
            told = self._ask("plan_all", ranges=some, files=self._files)
            found += [None if each is None else self._slices(each) for each in told]
        return found

    def _ask(self, name: str, **args: Any) -> Any:
        return self._connection.ask(name, topic_id=self._topic_id, **args)

    def _slices(self, packed: Sequence[Sequence[Any]]) -> list[Slice]:
        return [
            Slice(self._topic_id, self._name, *each[:5], *(segment_from_json(one) if one else None for one in each[5:]))
            for each in packed
        ]

    def read(
        self, slices: Sequence[Slice], user: pa.Schema, metadata: Sequence[str] = (), target_bytes: int = BATCH_BYTES
    ) -> Iterator[pa.RecordBatch]:
        ticket = Ticket(self._topic_id, wire.ranges_of(slices), user, tuple(metadata), target_bytes)
        return read_ticket(self._connection, ticket, output_schema(user, metadata))

    def seek_time(self, partition: int, ts: int) -> int | None:
        ((_, found),) = self._ask("offset_for_timestamp", ts_us=ts, partition=partition)
        offset: int | None = found
        return offset

    def check_lineage(self, partition: int, offset: int, lineage: int) -> int | None:
        found: int | None = self._ask("check_lineage", partition=partition, offset=offset, lineage=lineage)
        return found

    def within(self, slices: Sequence[Slice], since: int, until: int) -> list[Slice]:
        if not slices:
            return []
        first, last = (max(-MOST, min(each, MOST)) for each in (since, until))
        return self._slices(self._ask("within", ranges=_ranges(slices), since=first, until=last, files=self._files))

    def where(self, slices: Sequence[Slice], tests: Sequence[Test]) -> list[Slice]:
        columns = sorted({each.column for each in tests})
        if not slices or not columns:
            return list(slices)
        # First of whole files, as in most no row meets them.
        left = self._where(slices, tests, columns, batches=False)
        return self._where(left, tests, columns, batches=True) if left else []

    def _where(
        self, slices: Sequence[Slice], tests: Sequence[Test], columns: Sequence[str], *, batches: bool
    ) -> list[Slice]:
        without: dict[int, list[tuple[int, int]]] = {}
        said = self._ask("bounds", ranges=_ranges(slices), columns=columns, batches=batches)
        for partition, start, end, bounds in said:
            known = {name: each and Bounds(*each) for name, each in zip(columns, bounds, strict=True)}
            if not all((found := known[test.column]) is None or test.may_hold(found) for test in tests):
                without.setdefault(partition, []).append((start, end))
        return [left for each in slices for left in _left_of(each, without.get(each.partition, ()))]

    def close(self) -> None:
        """Nothing is open."""


def _ranges(slices: Sequence[Slice]) -> list[list[int]]:
    return [[each.partition, each.start, each.end, each.lineage] for each in wire.ranges_of(slices)]


def _left_of(whole_slice: Slice, without: Sequence[tuple[int, int]]) -> Iterator[Slice]:
    """What is left of a slice without some ranges, which are in their order."""
    at = whole_slice.start
    for first, last in [*without, (whole_slice.end, whole_slice.end)]:
        if at < min(first, whole_slice.end):
            yield whole_slice.part(at, min(first, whole_slice.end))
        at = max(at, last)


def read_ticket(connection: Connection, ticket: Ticket, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches of a ticket. When the connection breaks amid them, the rest is fetched by another one."""
    rows, total = 0, sum(each.end - each.start for each in ticket.ranges)
    while rows < total:
        left = ticket.after(rows)

        def begin(client: flight.FlightClient, _: bool, left: Ticket = left) -> tuple[Any, flight.FlightClient, Any]:
            stream = client.do_get(flight.Ticket(left.pack()), connection.options())
            return stream, client, _next(stream)  # the first batch: before it, nothing is known to work

        stream, client, batch = connection.persist(begin)
        while batch is not None:
            # As it was asked for: what a broker says may differ in the nullability of a field.
            yield batch if batch.schema == schema else batch.cast(schema)
            rows += batch.num_rows
            try:
                batch = _next(stream)
            except (flight.FlightError, pa.ArrowException, OSError) as error:
                known = known_error(error)
                if known is not None:
                    raise known from None
                connection.lose(client)
                break
        else:
            if rows < total:
                raise StoreError(f"of {counted(total, 'row')} the broker sent {rows:,}, and said that this was all")


def _next(stream: flight.FlightStreamReader) -> pa.RecordBatch | None:
    try:
        return stream.read_chunk().data
    except StopIteration:
        return None
