"""Big objects over Flight: pushed by DoPut in pieces, read by DoGet. No more than a piece of one is in memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from typing import Any

import pyarrow as pa
from pyarrow import flight

from jjq import files, objects
from jjq.errors import InvalidArgument, RecordTooLarge
from jjq.headers import check_headers
from jjq.schema import RAW, binaries
from jjq.server.flight_calls import Call, action
from jjq.server.flight_sessions import refuse_unknown
from jjq.server.rights import check_may_read_object
from jjq.values import shown, size_of

_RECORD = ("value", "key", "headers", "timestamp", "partition")


def push(
    call: Call, about: Mapping[str, Any], messages: Iterator[pa.Buffer], decode: Callable[[pa.Buffer], Any]
) -> list[Any]:
    """Takes the pieces of an object, then pushes the record that refers to it; returns that one's position.

    `about`: `topic_id`, what the record has (`value`, `key`, `headers`, `timestamp`, `partition`), and `session`, `id`, `done`,
    `broker`, `again` as for an action. Each message is a zero byte and a piece; the last is an object: `sha256` and `bytes` of all.
    """
    topic = call.topic("push", about.get("topic_id"))
    record = {name: about.get(name) for name in _RECORD}
    store = call.store
    store.check_open(write=True)
    value, pairs = objects.record_of(topic, b"", record["value"], check_headers(record["headers"]))
    settings = call.served.settings
    if (size := size_of(list(record.values()))) > settings.max_record_bytes:
        raise RecordTooLarge(
            f"the record beside the object has {size:,} bytes, the broker takes up to {settings.max_record_bytes:,} (max_record_bytes)"
        )
    session = call.served.sessions.get(str(about.get("session")), call.caller.name)
    with session, objects.pushing(store), objects.Incoming(store) as incoming:
        for message in messages:
            if not message.size or message[0] != 0:
                _check_end(decode(message), incoming)
                break
            if incoming.size + message.size - 1 > settings.max_object_bytes:
                raise RecordTooLarge(
                    f"the object has more than {settings.max_object_bytes:,} bytes, which the broker takes (max_object_bytes)"
                )
            call.pushed_to(topic.id, 0, message.size)
            with files.translated("keep an object in", store.path):
                incoming.add(message.slice(1).to_pybytes())
        else:
            raise flight.FlightUnavailableError("the object broke off: its last message says its sha256 and bytes")
        call.pushed_to(topic.id, 1, 0)

        def act() -> list[Any]:
            position = objects.push_kept(
                topic, store, incoming, value, pairs, record["key"], record["timestamp"], record["partition"]
            )
            return list(position)

        found: list[Any] = call.served.sessions.once(session, about, act, refuse_unknown)
        return found


def _check_end(end: object, incoming: objects.Incoming) -> None:
    if end != {"sha256": incoming.digest, "bytes": incoming.size}:
        raise InvalidArgument(f"the object came otherwise than {shown(end)} says; push it again")


def read(call: Call, digest: object) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The pieces of an object, for who may read a topic of which a record refers to it."""
    found = objects.digest_of(f"sha256:{digest}")
    check_may_read_object(call.store, call.caller, found)
    stream = objects.open_object(call.store, f"sha256:{found}")

    def batches() -> Iterator[pa.RecordBatch]:
        with stream:
            while chunk := stream.read(objects.CHUNK_BYTES):
                check_may_read_object(call.store, call.caller, found)
                if call.served.stopping:
                    raise flight.FlightUnavailableError("the broker is stopping")
                yield pa.RecordBatch.from_arrays([binaries([chunk])], schema=RAW)

    found_batches = batches()
    # Of a generator that is never begun, because its client has gone, the `with` is not either.
    weakref.finalize(found_batches, stream.close)
    return RAW, found_batches


@action
def list_objects(call: Call) -> list[Any]:
    """Of each object hash, bytes, when it came, and how many records refer to it; for who may read every topic."""
    call.may("read", None)
    return [list(astuple(each)) for each in call.store.list_objects()]
