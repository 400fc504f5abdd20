"""Big objects through a broker: sent and fetched in pieces."""

from __future__ import annotations

import functools
import hashlib
import tempfile
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from jjq import objects, wire
from jjq.client.connection import answer_to
from jjq.errors import BrokerUnavailable, DamagedSegment
from jjq.model import Position, Record
from jjq.schema import RAW

if TYPE_CHECKING:
    from jjq.client.store import RemoteStore

_IN_MEMORY_BYTES = 8 << 20  # a larger one that is read goes to a temporary file


def push(store: RemoteStore, source: objects.Source, about: dict[str, Any]) -> Position:
    """Sends an object, and has the record pushed that refers to it."""
    connection = store.connection
    piece_bytes = max(1, min(objects.CHUNK_BYTES, store._append_bytes - 1))
    with objects.opened(source) as stream, connection.numbered() as number:
        seekable = stream.seekable()
        begin = stream.tell() if seekable else 0
        numbered = {"session": connection.session, "broker": connection.broker, "id": number.id, "done": number.done}

        def act(client: flight.FlightClient, repeated: bool) -> Any:
            if repeated:
                if not seekable:
                    raise BrokerUnavailable(
                        "the connection broke while an object was sent, and its source cannot be read again; the record may be "
                        "there or not",
                        outcome="unknown",
                    )
                stream.seek(begin)
            command = wire.encode({"object": {**about, **numbered, "again": repeated}})
            send = functools.partial(_send, stream, piece_bytes)
            descriptor = flight.FlightDescriptor.for_command(command)
            return wire.decode(answer_to(client, descriptor, RAW, connection.options(), send))

        return Position(*connection.persist(act, safe=False))


def _send(stream: IO[bytes], most: int, writer: flight.FlightStreamWriter) -> None:
    check, size = hashlib.sha256(), 0
    while piece := objects.read_source(stream, most):
        check.update(piece)
        size += len(piece)
        writer.write_metadata(pa.py_buffer(b"\0" + piece))
    writer.write_metadata(pa.py_buffer(wire.encode({"sha256": check.hexdigest(), "bytes": size})))


def fetch(store: RemoteStore, record: Record | str | bytes) -> IO[bytes]:
    """The object as an open file, checked whole."""
    digest = objects.digest_of(record)
    ticket = flight.Ticket(wire.encode({"object": digest}))
    # Not in a `with`: it is the caller's to close.
    found = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115

    def act(client: flight.FlightClient, _: bool) -> str:
        found.seek(0)
        found.truncate()
        check = hashlib.sha256()
        for chunk in client.do_get(ticket, store.connection.options()):
            for value in chunk.data.column(0):
                check.update(value.as_buffer())
                found.write(value.as_buffer())
        return check.hexdigest()

    try:
        if store.connection.persist(act) != digest:
            raise DamagedSegment(
                f"object {digest} came otherwise than it was pushed", path=digest, position=0, lost=None
            )
    except BaseException:
        found.close()
        raise
    found.seek(0)
    return found


def list_all(store: RemoteStore) -> list[objects.ObjectInfo]:
    return [objects.ObjectInfo(*each) for each in store.connection.ask("list_objects")]
