"""Appending through a broker: long DoPut streams, in which each batch is answered."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import Any

import pyarrow as pa
from pyarrow import flight

from jjq import wire
from jjq.client.connection import Connection, never_end
from jjq.headers import null_headers
from jjq.log.format import tight
from jjq.log.requests import Append, MorePartitions, as_batch, byte_strings
from jjq.schema import PLAIN

# An open stream keeps a thread of the broker. To open one takes about as long as to append.
_IDLE_S = 1.0
_NO_HEADERS = null_headers(1)

Key = tuple[str, int]  # of a topic its id, and the version of the schema


class _Stream:
    """One DoPut stream; for one thread at a time."""

    def __init__(
        self,
        client: flight.FlightClient,
        key: Key,
        schema: pa.Schema,
        options: flight.FlightCallOptions,
        command: bytes,
    ) -> None:
        self.client, self.key = client, key
        descriptor = flight.FlightDescriptor.for_command(command)
        self._writer, self._reader = client.do_put(descriptor, schema, options)
        self.used_at = 0.0

    def send(self, batch: pa.RecordBatch | None, about: bytes) -> dict[str, Any]:
        """Raises what went wrong, after which the stream is over."""
        try:
            if batch is None:
                self._writer.write_metadata(about)
            else:
                self._writer.write_with_metadata(batch, about)
            told = self._reader.read()
        except (flight.FlightError, pa.ArrowException, OSError):
            self._writer.close()  # which says what it was, where that is known
            raise
        except BaseException:  # an interrupt, see `answer_to`
            self.close()
            raise
        if told is None:
            self._writer.close()
            raise flight.FlightUnavailableError("the broker ended the stream")
        return wire.unpack_answer(told.to_pybytes())

    def close(self) -> None:
        with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
            self._writer.close()


class Streams:
    """The streams of a connection. A thread that appends takes one that is idle, or opens one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._mutex = threading.Lock()
        self._idle: list[_Stream] = []
        self._ends: dict[tuple[str, int], int] = {}  # of partitions, as they were at some time
        # What marks our messages, so that a broker which was started anew finds one that comes again.
        self._producer = bytes(random.SystemRandom().randint(1, 255) for _ in range(6))
        connection.idle.append(self.sweep)
        connection.forked.append(self._after_fork)

    def append(self, key: Key, batch: pa.RecordBatch, about: dict[str, Any]) -> dict[str, Any]:
        """Sends a batch; returns the broker's answer. Raises MorePartitions and what pushing raises."""
        partition = about["partition"]
        about["since"] = self._end(key[0], partition)
        with self._connection.numbered() as number:
            about |= {"broker": self._connection.broker, "id": number.id, "done": number.done}

            def act(client: flight.FlightClient, repeated: bool) -> dict[str, Any]:
                return self._send(client, key, batch.schema, batch, wire.encode({**about, "again": repeated}))

            return self._told(key[0], partition, self._connection.persist(act, safe=False))

    def append_value(self, key: Key, value: bytes, name: bytes | None, partition: int, among: int) -> dict[str, Any]:
        """`append` of one value, and its record's key `name`, in the short form when it is sent first."""
        since = self._end(key[0], partition)
        with self._connection.numbered() as number:
            broker = self._connection.broker

            def act(client: flight.FlightClient, repeated: bool) -> dict[str, Any]:
                if not repeated:
                    one = wire.OneValue(partition, among, number.id, number.done, value, name)
                    return self._send(client, key, PLAIN, None, one.pack())
                about = {
                    "partition": partition, "among": among, "since": since, "broker": broker, "id": number.id,
                    "done": number.done, "again": True,
                }  # fmt: skip
                batch = pa.RecordBatch.from_arrays(
                    [byte_strings([name]), _NO_HEADERS, byte_strings([value])], schema=PLAIN
                )
                return self._send(client, key, PLAIN, batch, wire.encode(about))

            return self._told(key[0], partition, self._connection.persist(act, safe=False))

    def _send(
        self, client: flight.FlightClient, key: Key, schema: pa.Schema, batch: pa.RecordBatch | None, about: bytes
    ) -> dict[str, Any]:
        stream = self._take(client, key)
        if stream is None:
            command = {"append": key[0], "session": self._connection.session, "producer": self._producer}
            stream = _Stream(client, key, schema, self._connection.options(), wire.encode(command))
        told = stream.send(batch, about)
        self._give(stream)
        return told

    def _told(self, topic_id: str, partition: int, told: dict[str, Any]) -> dict[str, Any]:
        error = told.get("error")
        if error is None:
            place = topic_id, partition
            self._ends[place] = max(self._ends[place], told["start"])
            return told
        if error["code"] == wire.MORE_PARTITIONS:
            raise MorePartitions
        raise wire.unpack_error(error)

    def _end(self, topic_id: str, partition: int) -> int:
        """An offset behind which a batch of ours that is yet to be sent will lie."""
        found = self._ends.get((topic_id, partition))
        if found is None:
            for each in self._connection.ask("offsets", topic_id=topic_id):
                self._ends.setdefault((topic_id, each[0]), each[2])
            found = self._ends.setdefault((topic_id, partition), 0)
        return found

    def _take(self, client: flight.FlightClient, key: Key) -> _Stream | None:
        with self._mutex:
            for i in range(len(self._idle) - 1, -1, -1):
                if self._idle[i].client is client and self._idle[i].key == key:
                    return self._idle.pop(i)
        return None

    def _give(self, stream: _Stream) -> None:
        stream.used_at = time.monotonic()
        with self._mutex:
            self._idle.append(stream)

    def sweep(self, idle_s: float = _IDLE_S) -> None:
        """Closes those that nobody has used for a while."""
        before = time.monotonic() - idle_s
        with self._mutex:
            old = [each for each in self._idle if each.used_at <= before]
            self._idle = [each for each in self._idle if each.used_at > before]
        for each in old:
            each.close()

    def close(self) -> None:
        self.sweep(idle_s=-1.0)

    def _after_fork(self) -> None:
        self._mutex = threading.Lock()
        idle, self._idle = self._idle, []
        never_end(idle)


class RemoteLog:
    """One partition, as topics append to it."""

    def __init__(self, streams: Streams, topic_id: str, partition: int) -> None:
        self._streams, self._topic_id, self._partition = streams, topic_id, partition

    def append(self, request: Append) -> None:
        """See `jjq.log.partition.PartitionLog.append`."""
        about: dict[str, Any] = {"partition": self._partition, "among": request.among}
        if request.stamps is not None:
            about["stamps"] = list(request.stamps)
        told = self._streams.append((self._topic_id, request.version), tight(as_batch(request)), about)
        request.offset = told["start"]
        request.timestamp = told["timestamp"] if request.stamps is None else request.stamps[0]

    def append_value(self, version: int, value: bytes, among: int = 0, key: bytes | None = None) -> tuple[int, int]:
        """See `jjq.log.partition.PartitionLog.append_value`."""
        told = self._streams.append_value((self._topic_id, version), value, key, self._partition, among)
        return told["start"], told["timestamp"]
