"""Reading for channels: what a consumer has read ahead of one partition, and records by their offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import pyarrow as pa

from jjq.catalog.leases import Lease, Offer, Place
from jjq.deferral import deferred_rows
from jjq.log.sealed import BATCH_BYTES
from jjq.model import Record, Slice
from jjq.records import METADATA, to_records
from jjq.schema import RAW, integers
from jjq.topic import Topic

_FIRST_ROWS = 1024
_MOST_ROWS = 64 << 10
_GAP = 256  # offsets nearer than this are read at once: a read costs as much as some hundred rows


class Lookahead:
    """Rows of one partition, read at once and given out piece by piece. For one caller at a time."""

    def __init__(self, topic: Topic, partition: int) -> None:
        self._topic = topic
        self.partition = partition
        self.start = self.end = 0  # the offsets that are here
        self._lineage = 0
        self._rows = _FIRST_ROWS  # to read at once
        self._batch: pa.RecordBatch | None = None
        self._deferred: dict[int, int] = {}

    def rows_from(self, place: Place) -> int:
        """How many rows from a place on are here."""
        return self.end - place[0] if self.start <= place[0] < self.end and self._lineage == place[1] else 0

    def forget(self) -> None:
        self._batch, self.start, self.end, self._deferred = None, 0, 0, {}

    def fill(self, place: Place, end: int) -> int:
        """Reads from a place on, before `end`; returns the first offset that is there, which is later when some are lost."""
        offset, lineage = place
        self.forget()
        stop = min(end, offset + self._rows)
        slices = self._topic.reader.plan(self.partition, offset, stop, skip_lost=True)
        if not slices:
            return stop
        if slices[0].start > offset:
            return slices[0].start
        batch = next(_read(self._topic, _contiguous(slices)))
        self._batch, self.start, self.end, self._lineage = batch, offset, offset + batch.num_rows, lineage
        self._deferred = {offset + row: due for row, due in deferred_rows(batch.column("_headers")).items()}
        self._rows = max(16, min(_MOST_ROWS, BATCH_BYTES // max(1, batch.nbytes // batch.num_rows)))
        return offset

    def offer(self) -> Offer:
        return Offer(self.partition, self.start, self.end, self._lineage, self._deferred, self._key)

    def _key(self, offset: int) -> int | None:
        assert self._batch is not None
        return key_hash(self._batch.column("_key")[offset - self.start].as_py())

    def records(self, lease: Lease) -> list[Record]:
        """The records of a lease that lies in what was read."""
        assert self._batch is not None
        if lease.done:
            rows = self._batch.take(integers([offset - self.start for offset in lease.offsets()], pa.int64()))
        else:
            rows = self._batch.slice(lease.start - self.start, lease.end - lease.start)
        return list(to_records(self._topic.name, rows, self._topic.schema is None))


def key_hash(key: bytes | None) -> int | None:
    """64 bits of a key: two keys that share them wait for each other, no more."""
    return None if key is None else int.from_bytes(blake2b(key, digest_size=8).digest(), "little", signed=True)


def rows_at(topic: Topic, partition: int, offsets: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """The rows at ascending offsets: the topic's columns, then METADATA. Those that are gone are left out."""
    reader = topic.reader
    limit = reader.offsets(partition).end
    for group in _groups([offset for offset in offsets if offset < limit]):
        wanted = set(group)
        for batch in _read(topic, reader.plan(partition, group[0], group[-1] + 1, skip_lost=True)):
            chosen = [row for row, offset in enumerate(batch.column("_offset").to_pylist()) if offset in wanted]
            if len(chosen) == batch.num_rows:
                yield batch
            elif chosen:
                yield batch.take(integers(chosen, pa.int64()))


def _groups(offsets: Sequence[int]) -> Iterator[list[int]]:
    group: list[int] = []
    for offset in offsets:
        if group and offset - group[-1] > _GAP:
            yield group
            group = []
        group.append(offset)
    if group:
        yield group


def _contiguous(slices: Sequence[Slice]) -> list[Slice]:
    found = [slices[0]]
    for each in slices[1:]:
        if each.start != found[-1].end:
            break
        found.append(each)
    return found


def _read(topic: Topic, slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
    if any(each.segment is not None and each.segment.schema_version > topic.schema_version for each in slices):
        topic.refresh()
    user = RAW if topic.schema is None else topic.schema
    return topic.reader.read(slices, user, METADATA, BATCH_BYTES)
