"""A stage that the broker writes: what is added goes there by DoPut, a commit takes it later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from jjq import wire
from jjq.client.connection import answer_to
from jjq.errors import BrokerUnavailable, InvalidArgument, JjqError
from jjq.log.format import tight
from jjq.model import StagedFile
from jjq.schema import to_table
from jjq.staging import Stage

if TYPE_CHECKING:
    from jjq.client.store import RemoteStore
    from jjq.topic import Topic

_MESSAGE_BYTES = 4 << 20  # of a large table a piece at a time


class RemoteStage(Stage):
    """See `jjq.staging.Stage`. A broker that was started anew has lost what was written: then `finish` raises."""

    def __init__(self, store: RemoteStore, default_partition: int = 0, owner: tuple[str, int] | None = None) -> None:
        self._remote = store
        self._default = default_partition
        self._owner = owner
        self._handle = next(store.handle_numbers)
        self._writes = 0
        self._begun = self._finished = self._broken = False

    def write(
        self, topic: Topic | str, data: Any, *, partition: int | None = None, key: str | None = None,
        keys: pa.Array | pa.ChunkedArray | None = None, headers: pa.Array | pa.ChunkedArray | None = None,
        timestamps: pa.Array | pa.ChunkedArray | None = None,
    ) -> None:  # fmt: skip
        self._check_whole()
        if self._finished:
            raise InvalidArgument("the stage is finished; begin another one")
        table = to_table(data)
        target = self._remote.topic(topic) if isinstance(topic, str) else topic
        for name, column in ((wire.KEYS, keys), (wire.HEADERS, headers), (wire.TIMESTAMPS, timestamps)):
            if column is not None:
                table = table.append_column(name, column)
        about = {
            "session": self._remote.connection.session, "handle": self._handle, "number": self._writes,
            "rows": len(table), "topic_id": target.id, "partition": partition, "key": key, "default_partition": self._default,
            "owner": self._owner,
        }  # fmt: skip
        descriptor = flight.FlightDescriptor.for_command(wire.encode({"stage": about}))
        connection = self._remote.connection
        most = min(_MESSAGE_BYTES, self._remote._append_bytes)
        pieces = [piece for batch in table.to_batches() for piece in _pieces(batch, most)]
        self._begun = True

        def send(writer: flight.FlightStreamWriter) -> None:
            for piece in pieces:
                writer.write_batch(tight(piece))

        again = False

        def act(client: flight.FlightClient, repeated: bool) -> None:
            nonlocal again
            again = repeated
            answer_to(client, descriptor, table.schema, connection.options(), send)

        try:
            connection.persist(act, safe=False)
            self._writes += 1  # in here: an interrupt before it leaves a write that has come and has the next number
        except BaseException as error:
            # Some of it may be there, and there is no way to take that back: the next write would be taken for the rest of this
            # one. Not of a single piece that the broker has refused the first time that it came.
            refused = isinstance(error, JjqError) and not isinstance(error, BrokerUnavailable)
            if len(pieces) > 1 or again or not refused:
                self._broken = True
                self.abandon()
            raise

    def finish(self) -> list[StagedFile]:
        self._check_whole()
        if self._writes:
            files = self._remote.connection.act("stage_finish", once=True, handle=self._handle, writes=self._writes)
        else:
            files = []
        self._finished = True
        return [StagedFile.from_json(each) for each in files]

    def abandon(self) -> None:
        self._finished = True
        if self._begun:
            self._remote.connection.tell("close_handle", handle=self._handle)


def _pieces(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of up to so many bytes, where that makes it smaller: a row, or a dictionary, may have more."""
    half = batch.num_rows // 2
    halves = batch.slice(0, half), batch.slice(half)
    if batch.nbytes <= most or not half or sum(each.nbytes for each in halves) > 1.5 * batch.nbytes:
        yield batch
    else:
        for each in halves:
            yield from _pieces(each, most)
