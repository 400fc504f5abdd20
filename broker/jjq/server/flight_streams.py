"""The streams of the Flight front: reading by DoGet, pushing and staging by DoPut."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import flight

from jjq import wire
from jjq.errors import InvalidArgument, JjqError, RecordTooLarge, SchemaMismatch
from jjq.log.projection import output_schema
from jjq.log.requests import MorePartitions
from jjq.log.resent import Unknowable, find
from jjq.log.sealed import BATCH_BYTES
from jjq.model import Slice
from jjq.schema import RAW
from jjq.server import flight_objects
from jjq.server.batches import check_batch, check_rows
from jjq.server.flight_append import append, append_value
from jjq.server.flight_calls import MOST_RANGES, Call, listed, report, texts
from jjq.server.flight_sessions import refuse_unknown
from jjq.server.flight_staging import stage_of
from jjq.topic import Topic
from jjq.values import counted, shown, whole
from jjq.wire import Ticket

_MOST_TARGET = 16 << 20
_READ = ("start", "end", "columns", "metadata", "partitions")


# --- reading ---------------------------------------------------------------------------------------------------------


def plan_read(call: Call, descriptor: flight.FlightDescriptor) -> tuple[pa.Schema, Ticket]:
    """What a read gives, and the ticket for it. The descriptor is the path of one topic, or a command: `topic` or
    `topic_id`, and what `Topic.read` takes."""
    if descriptor.path:
        if len(descriptor.path) != 1:
            raise InvalidArgument("a path names one topic")
        args: Any = {"topic": descriptor.path[0].decode(errors="replace")}
    else:
        args = wire.decode(descriptor.command or b"")
    if not isinstance(args, Mapping):
        raise InvalidArgument("a command is an object: the topic, and what is to be read of it")
    given = dict(args)
    name, topic_id = given.pop("topic", None), given.pop("topic_id", None)
    topic = call.named("read", name) if topic_id is None else call.topic("read", topic_id)
    unknown = [each for each in given if each not in _READ]
    if unknown:
        raise InvalidArgument(f"a read has no {unknown[0]!r}; it has {', '.join(_READ)}")
    for what in ("columns", "metadata"):
        if given.get(what) is not None:
            texts(given[what], what)
    if given.get("partitions") is not None:
        listed(given["partitions"], "partitions")
    topic.refresh()  # also of its columns: they are fixed here
    user, added, slices = topic.plan_read(**given)
    ticket = Ticket(topic.id, wire.ranges_of(slices), user, added, BATCH_BYTES)
    return output_schema(user, added), ticket


def read(call: Call, ticket: Ticket) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The batches of a ticket, straight from the segment files. They come as fast as the client takes them."""
    topic = call.topic("read", ticket.topic_id)
    if len(ticket.ranges) > MOST_RANGES:
        raise InvalidArgument(f"a ticket has up to {MOST_RANGES:,} ranges")
    metadata = topic.check_metadata(ticket.metadata)
    topic.retry_schema(lambda: _check_columns(topic, ticket.schema))
    slices = [Slice(topic.id, topic.name, r.partition, r.start, r.end, r.lineage, 0) for r in ticket.ranges]
    target = min(max(ticket.target_bytes, 1), _MOST_TARGET)
    found = call.store.read_slices(slices, metadata=metadata, schema=ticket.schema, target_bytes=target)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in found:
            call.caller.may("read", topic.name)  # it may have been taken back since: this can take hours
            if call.served.stopping:
                raise flight.FlightUnavailableError("the broker is stopping")
            yield batch

    return output_schema(ticket.schema, metadata), batches()


def _check_columns(topic: Topic, wanted: pa.Schema) -> None:
    """Raises SchemaMismatch unless these are columns of the topic, each once: what no file has is made of nulls, as wide and as many as
    a ticket likes."""
    own = {field.name: field.type for field in (RAW if topic.schema is None else topic.schema)}
    odd = next((field for field in wanted if own.pop(field.name, None) != field.type), None)
    if odd is not None:
        raise SchemaMismatch(
            f"the ticket has a column {shown(odd.name)} of type {shown(str(odd.type))}, and topic {topic.name!r} none like it; get a "
            f"ticket with GetFlightInfo"
        )


# --- writing ---------------------------------------------------------------------------------------------------------


def put(
    call: Call, descriptor: flight.FlightDescriptor, reader: flight.MetadataRecordBatchReader,
    writer: flight.FlightMetadataWriter,
) -> None:  # fmt: skip
    """Takes batches. The descriptor is the path of one topic: each batch is pushed as a table, or a command: `append` (the id
    of a topic), `stage` (see `_stage`), or `object` (see `flight_objects.push`)."""
    if descriptor.path:
        if len(descriptor.path) != 1:
            raise InvalidArgument("a path names one topic")
        _push(call, call.named("push", descriptor.path[0].decode(errors="replace")), reader, writer)
        return
    command = wire.decode(descriptor.command or b"")
    given = command if isinstance(command, Mapping) else {}
    if "append" in given and given.keys() <= {"append", "session", "producer"}:
        call.topic("push", given["append"])
        _Appending(call, given).take(reader, writer)
    elif given.keys() == {"stage"} and isinstance(given["stage"], Mapping):
        _stage(call, given["stage"], reader, writer)
    elif given.keys() == {"object"} and isinstance(given["object"], Mapping):
        messages = (about for _, about in _chunks(call, reader) if about is not None)
        _tell(writer, wire.encode(flight_objects.push(call, given["object"], messages, wire.decode)))
    else:
        raise InvalidArgument("a command is `append`, `stage` or `object`, with what it takes")


def _chunks(
    call: Call, reader: flight.MetadataRecordBatchReader
) -> Iterator[tuple[pa.RecordBatch | None, pa.Buffer | None]]:
    """The batches of a stream as they come, each checked."""
    most = call.served.settings.max_request_bytes
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        batch, about = chunk.data, chunk.app_metadata
        size = 0 if about is None else about.size
        if size > most:
            raise RecordTooLarge(
                f"a message has {size:,} bytes, the broker takes up to {most:,} (max_request_bytes) at once"
            )
        if batch is not None:
            check_batch(batch, call.served.settings.max_record_bytes, most)
        yield batch, about


def _tell(writer: flight.FlightMetadataWriter, answer: bytes) -> None:
    try:
        writer.write(pa.py_buffer(answer))
    except OSError:
        raise flight.FlightCancelledError("the client is gone") from None


def _push(
    call: Call, topic: Topic, reader: flight.MetadataRecordBatchReader, writer: flight.FlightMetadataWriter
) -> None:
    """For clients that know nothing of jjq: of each batch an answer that says where it went."""
    for batch, _ in _chunks(call, reader):
        if batch is None:
            continue
        call.caller.may_push(topic.name, batch.num_rows, batch.nbytes)
        check_rows(topic, batch)
        done = topic.push_table(batch)
        ranges = [[each.partition, each.start, each.end, each.timestamp] for each in done.ranges]
        _tell(writer, wire.encode({"ranges": ranges}))


class _Appending:
    """A stream of batches and single values, each with one answer, in their order. One that is refused does not end it."""

    def __init__(self, call: Call, command: Mapping[str, Any]) -> None:
        """`session` and `producer` are of who may send again what it got no answer to."""
        self._call, self._topic_id = call, command["append"]
        self._session = command.get("session")
        self._producer = command.get("producer")
        if self._session is not None and not isinstance(self._session, str):
            raise InvalidArgument("session is a text of the client's own, as random as can be")
        if self._producer is not None and not _is_producer(self._producer):
            raise InvalidArgument("producer is six bytes, as random as can be, but for zeros")

    def take(self, reader: flight.MetadataRecordBatchReader, writer: flight.FlightMetadataWriter) -> None:
        for batch, about in _chunks(self._call, reader):
            began, code = time.perf_counter(), "internal"
            try:
                answer = self._answer(batch, b"" if about is None else about.to_pybytes())
                code = "ok"
            except MorePartitions:
                told = {"code": wire.MORE_PARTITIONS, "message": "the topic has more partitions by now"}
                answer = wire.encode({"error": told})
                code = wire.MORE_PARTITIONS
            except JjqError as error:
                code = error.code
                if self._call.served.stopping:
                    raise
                answer = wire.encode({"error": report(error, self._call.served)})
            finally:
                self._call.served.requests.count("append", code, time.perf_counter() - began)
            _tell(writer, answer)

    def _answer(self, batch: pa.RecordBatch | None, about: bytes) -> bytes:
        one = wire.OneValue.unpack(about) if batch is None else None
        if one is not None:
            return wire.pack_answer(*self._append_value(one))
        given = wire.decode(about) if about else None
        if batch is None or not isinstance(given, Mapping):
            raise InvalidArgument("each batch comes with what is to be done with it: partition, among, stamps")
        start, timestamp = self._append(batch, given)
        return wire.encode({"start": start, "timestamp": timestamp})

    def _append_value(self, one: wire.OneValue) -> tuple[int, int]:
        partition, among, number, done, value, key = one
        if self._session is None or self._producer is None:
            raise InvalidArgument("a single value is sent with a session and a producer")
        call, mark = self._call, (self._producer, number)
        most = call.served.settings.max_record_bytes

        def act() -> tuple[int, int]:
            topic = call.pushed_to(self._topic_id, 1, len(value) + len(key or b""))
            return append_value(topic, partition, among, value, key, most, mark)

        session = call.served.sessions.get(self._session, call.caller.name)
        with session:
            found: tuple[int, int] = session.once(number, done, act)
        return found

    def _append(self, batch: pa.RecordBatch, about: Mapping[str, Any]) -> tuple[int, int]:
        call = self._call
        place, among = whole(about.get("partition"), "partition"), whole(about.get("among", 0), "among")
        topic = call.served.topic_by_id(self._topic_id)
        most = call.served.settings.max_record_bytes
        stamps = _stamps(about.get("stamps"), batch.num_rows)
        number = None if about.get("id") is None else whole(about["id"], "id")
        mark = None if number is None or self._producer is None else (self._producer, number)

        def act() -> tuple[int, int]:
            # Here, and not before: what was done already is not refused when it comes again.
            call.pushed_to(self._topic_id, batch.num_rows, batch.nbytes)
            check_rows(topic, batch)
            return append(topic, place, among, batch, stamps, most, mark)

        def act_unless_done() -> tuple[int, int]:
            """For a batch that a broker before this one may have appended."""
            if mark is None:
                refuse_unknown()
            try:
                found = find(topic.reader, place, *mark, whole(about.get("since"), "since"))
            except Unknowable:
                refuse_unknown()
            return found or act()

        if number is None or self._session is None:
            return act()
        session = call.served.sessions.get(self._session, call.caller.name)
        with session:
            found: tuple[int, int] = call.served.sessions.once(session, about, act, act_unless_done)
        return found


def _is_producer(given: object) -> bool:
    return isinstance(given, bytes) and len(given) == 6 and b"\0" not in given


def _stamps(given: object, rows: int) -> Sequence[int] | None:
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != rows:
        raise InvalidArgument(f"stamps are {rows} numbers, one for each row, in microseconds")
    return given


def _stage(
    call: Call, args: Mapping[str, Any], reader: flight.MetadataRecordBatchReader, writer: flight.FlightMetadataWriter
) -> None:
    """One write of a stage: `session`, `handle`, `number` of the write, its `rows`, `topic_id`, and what `Stage.write` takes."""
    topic = call.topic("commit", args.get("topic_id"))
    call.session = call.served.sessions.get(str(args.get("session")), call.caller.name)
    number, expected = whole(args.get("number"), "number"), whole(args.get("rows"), "rows")
    with call.session:
        handle = stage_of(
            call, whole(args.get("handle"), "handle"), args.get("default_partition", 0), args.get("owner")
        )

        def write(batch: pa.RecordBatch) -> None:
            call.caller.spend(batch.num_rows, batch.nbytes)
            check_rows(topic, batch)
            table = pa.Table.from_batches([batch])
            beside = {
                name: table.column(name)
                for name in (wire.KEYS, wire.HEADERS, wire.TIMESTAMPS)
                if name in table.schema.names
            }
            handle.stage.write(
                topic, table.drop_columns(list(beside)), partition=args.get("partition"), key=args.get("key"),
                keys=beside.get(wire.KEYS), headers=beside.get(wire.HEADERS), timestamps=beside.get(wire.TIMESTAMPS),
            )  # fmt: skip

        rows = 0
        batches = (batch for batch, _ in _chunks(call, reader) if batch is not None)
        for index, batch in enumerate(batches):
            handle.once(number, index, functools.partial(write, batch))
            rows += batch.num_rows
        if rows != expected:
            # A connection that is lost looks from here like the end of what was sent.
            raise flight.FlightUnavailableError(f"of {counted(expected, 'row')} {rows:,} have come")
        handle.taken.add(number)
    _tell(writer, wire.encode({"rows": rows}))
