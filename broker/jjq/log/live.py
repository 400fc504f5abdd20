"""The active files of a topic's partitions, kept open: what live consumers ask again and again without the catalog."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from jjq.errors import JjqError
from jjq.log.projection import output_schema, project
from jjq.log.sealed import rebatch
from jjq.log.stream import StreamReader
from jjq.model import Segment, Slice
from jjq.schema import SYSTEM_COLUMNS

_TAIL_BATCHES = 64  # messages that a live consumer takes in at once


class LiveFiles:
    """One reader a partition, of the file as it was last seen. Safe among threads."""

    def __init__(
        self, topic_id: str, topic: str, boot_id: str, open_stream: Callable[[int, str, int, Any], StreamReader]
    ) -> None:  # fmt: skip
        """`open_stream` gets partition, file, version of the schema, and the partition's row of the catalog."""
        self._topic_id, self._topic, self._boot_id = topic_id, topic, boot_id
        self._open_stream = open_stream
        self._mutex = threading.Lock()
        self._readers: dict[int, StreamReader] = {}

    @contextlib.contextmanager
    def reader(self, row: Any) -> Iterator[StreamReader]:
        """The reader of a partition's active file, by the catalog's row, for this thread alone."""
        with self._mutex:
            reader = self._readers.get(row.partition)
            # What was surveyed without the index counts until a process that may write has recovered the file.
            if reader is None or (reader.path.stem, reader.surveyed) != (row.active, row.boot_id != self._boot_id):
                if reader is not None:
                    del self._readers[row.partition]  # first: after an interrupt nobody must come upon a closed one
                    reader.close()
                reader = self._open_stream(row.partition, row.active, row.active_schema, row)
                self._readers[row.partition] = reader
            yield reader

    def mapped(self, partition: int, uuid: str) -> int | None:
        """Bytes that are mapped of a segment that is the active one, as far as was seen; None if it is not."""
        reader = self._readers.get(partition)
        return reader.mapped if reader is not None and reader.path.stem == uuid else None

    def segments(self, partition: int) -> list[Segment]:
        """The active segment, as far as was seen, as a list of one or none; its end is not looked at."""
        with self._mutex:
            reader = self._readers.get(partition)
            if reader is None:
                return []
            base = reader.base
        return [Segment(reader.path.stem, "arrows", base, base, 0, 0, 0, 0, 0, 0, 0, 0)]

    def tail(
        self, partition: int, offset: int, rows: int, user: pa.Schema, metadata: Sequence[str], target_bytes: int
    ) -> pa.RecordBatch | None:
        """Up to `rows` records from `offset` on, where they are in the active file as it was last seen; else None.

        What a live consumer asks again and again: one look at the end of an index that is open, no catalog. None says
        nothing about what there is; `offsets` and `plan` do.
        """
        with self._mutex:
            reader = self._readers.get(partition)
            # Another number of columns: the caller's schema is not the file's, which planning sorts out.
            if reader is None or offset < reader.base or len(reader.schema) != SYSTEM_COLUMNS + len(user):
                return None
            end, closed = reader.end()
            if closed or end <= offset:
                return None
            stop = min(end, offset + rows)
            found: list[tuple[int, pa.RecordBatch]] = []
            size = 0
            try:
                for each in itertools.islice(reader.scan(offset, stop), _TAIL_BATCHES):
                    found.append(each)  # an error leaves what came before it
                    size += each[1].get_total_buffer_size()
                    if size >= target_bytes:
                        break
            except JjqError:
                if not found:
                    raise  # else who asks for what comes next meets it again
            physical = reader.schema
        place = Slice(self._topic_id, self._topic, partition, offset, stop, 0, 0)
        output = output_schema(user, metadata)
        pieces = []
        for base, batch in found:
            first = max(base, offset)
            cut = batch.slice(first - base, min(base + batch.num_rows, stop) - first)
            pieces.append(project(cut, physical, first, place, user, metadata, output))
        return next(rebatch(pieces, target_bytes), None)

    def singles(self, partition: int, offset: int) -> tuple[list[tuple[int, bytes | None, bytes | None]], bool]:
        """What `tail` would give of plain values, as (timestamp, key, value), where they were pushed one by one and are the
        next after what was read last, and whether these are all there were; nothing where `tail` is to look."""
        with self._mutex:
            reader = self._readers.get(partition)
            return ([], False) if reader is None else reader.singles(offset)

    def close(self) -> None:
        with self._mutex:
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()

    def after_fork(self) -> None:
        self._mutex = threading.Lock()
        for reader in self._readers.values():
            reader.close()  # no locks on these descriptors: closing ours leaves the parent's alone
        self._readers = {}
