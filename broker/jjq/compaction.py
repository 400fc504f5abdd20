"""Rewriting closed files: which ones to take together, and writing what takes their place.

Rolled stream files become sealed files once. Small sealed neighbours of one *level* are merged, at least eight at a time
unless the result is of full size, into one of the next level; so a record is written again at most once for each time
that the number of files grows eightfold.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from jjq import files, layout
from jjq.errors import DamagedSegment
from jjq.log.format import NO_TS
from jjq.log.sealed import COMPRESSED_ROWS, SEALED_BATCH_BYTES, SealedWriter, rebatch
from jjq.model import Segment

FAN_IN = 8
MOST_INPUTS = 512  # files whose rows change in one transaction, which holds up all writers of the catalog

Scan = Callable[[Segment], Iterable[tuple[int, pa.RecordBatch]]]  # the verified batches of one segment


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbours to rewrite together, of one schema version. `prefix_max_ts` is the partition's highest timestamp before
    them; `level` is that of the result. A run of rolled files may be done in several steps."""

    inputs: tuple[Segment, ...]
    level: int
    prefix_max_ts: int

    @property
    def bytes(self) -> int:
        return sum(each.length for each in self.inputs)


def plan(segments: Sequence[Segment], segment_bytes: int, skip: frozenset[str] = frozenset()) -> list[Run]:
    """The runs to rewrite among a partition's segments, in order. Those in `skip` (by id) stay as they are."""
    runs: list[Run] = []
    held: list[Segment] = []
    held_bytes = 0
    before = NO_TS  # the highest timestamp before the first that is held
    previous: Segment | None = None

    def flush() -> None:
        nonlocal held, held_bytes
        if held and _is_worth_it(held, held_bytes, segment_bytes):
            rolled = held[0].kind == "arrows"
            runs.append(Run(tuple(held), 0 if rolled else held[0].level + 1, before))
        held, held_bytes = [], 0

    for segment in segments:
        takes = segment.uuid not in skip and (
            segment.kind == "arrows" or (segment.kind == "arrow" and segment.length < segment_bytes // 2)
        )
        if held and not (takes and _fits(held, held_bytes, segment, segment_bytes)):
            flush()
        if takes:
            if not held:
                before = _before(previous, segment)
            held.append(segment)
            held_bytes += segment.length
        previous = segment
    flush()
    return runs


def _fits(held: Sequence[Segment], held_bytes: int, segment: Segment, segment_bytes: int) -> bool:
    first = held[0]
    if (segment.kind, segment.schema_version) != (first.kind, first.schema_version) or len(held) >= MOST_INPUTS:
        return False
    if segment.kind == "arrows":  # what comes of them is smaller, nobody knows how much: `Output.write` ends the step
        return True
    return segment.level == first.level and held_bytes + segment.length <= segment_bytes


def _is_worth_it(held: Sequence[Segment], held_bytes: int, segment_bytes: int) -> bool:
    if held[0].kind == "arrows":
        return True
    return len(held) >= FAN_IN or (len(held) > 1 and held_bytes >= segment_bytes // 2)


def _before(previous: Segment | None, segment: Segment) -> int:
    """The highest timestamp before a segment. Before the first one left it shows only where it is the higher one, and
    then nothing depends on it."""
    if previous is not None:
        return previous.prefix_max_ts
    return segment.prefix_max_ts if segment.prefix_max_ts > segment.max_ts else NO_TS


class Output:
    """Sealed files that together take the place of others. Nobody reads them before a catalog transaction names them.

    Until then a note beside each says what it is, so that what a killed process left is found and removed.
    """

    def __init__(
        self, directory: Path, topic_id: str, partition: int, schema: pa.Schema, version: int, compression: str | None,
        segment_bytes: int, base: int, prefix_max_ts: int, level: int,
    ) -> None:  # fmt: skip
        self._directory, self._topic_id, self._partition = directory, topic_id, partition
        self._schema, self._version, self._compression = schema, version, compression
        self._most_bytes = segment_bytes
        self._base, self._prefix, self._level = base, prefix_max_ts, level
        self._writer: SealedWriter | None = None
        self._begun: list[str] = []
        self._inputs: list[Segment] = []
        self._rows = 0
        self._pending = 0  # bytes of batches that were read and are not written yet
        self.segments: list[Segment] = []

    def write(self, inputs: Iterable[Segment], scan: Scan) -> list[Segment]:
        """Writes inputs, one after the other: stream files until about half of the full size is made and an input has ended,
        sealed ones all. Returns the inputs it took. Raises DamagedSegment, FileNotFoundError, OSError; then call `discard`."""
        target = min(SEALED_BATCH_BYTES, self._most_bytes)
        rows = COMPRESSED_ROWS if self._compression else 1 << 20
        for batch in rebatch(self._read(inputs, scan), target, rows):
            self._add(batch)
        self._end()
        return self._inputs

    def _read(self, inputs: Iterable[Segment], scan: Scan) -> Iterator[pa.RecordBatch]:
        for segment in inputs:
            at = segment.base
            for base, batch in scan(segment):
                if base != at:
                    raise _incomplete(self._directory, segment, at)
                at += batch.num_rows
                self._pending += batch.nbytes
                yield batch
            if at != segment.end:
                raise _incomplete(self._directory, segment, at)
            self._inputs.append(segment)
            # Sealed inputs are as many as fit, and ending early would make as many small files again, without end.
            taken = (self._writer.length if self._writer else 0) + self._pending
            if segment.kind == "arrows" and taken >= self._most_bytes // 2:
                return

    def _add(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            name = uuid.uuid4().hex
            self._begun.append(name)
            layout.write_note(self._directory / f"{name}.json", self._topic_id, self._partition)
            self._writer = SealedWriter(self._directory, name, self._schema, self._compression)
        self._writer.write(batch)
        self._pending -= min(self._pending, batch.nbytes)
        if self._writer.length >= self._most_bytes:
            self._end()

    def _end(self) -> None:
        writer = self._writer
        if writer is None:
            return
        writer.finish()
        self._writer = None  # not before: what fails is still to be closed
        self._prefix = max(self._prefix, writer.max_ts)
        self.segments.append(
            Segment(
                writer.uuid, "arrow", self._base, self._base + writer.rows, writer.length, writer.crc, writer.meta_crc,
                self._version, writer.min_ts, writer.max_ts, self._prefix, 0, self._level,
            )
        )  # fmt: skip
        self._base += writer.rows

    def describe(self, replaces: Sequence[str], appended_at: Callable[[Segment], int] | None = None) -> None:
        """Writes the sidecars, after which files and names are on disk. `replaces` are the ids of the files whose place
        they take; `appended_at` is by default that of the input that a file's last record came from."""
        at = appended_at or self._appended_at
        self.segments = [replace(each, appended_at=at(each)) for each in self.segments]
        for segment in self.segments:
            path = self._directory / f"{segment.uuid}.json"
            layout.write_sidecar(path, self._topic_id, self._partition, segment, self.segments, replaces)

    def _appended_at(self, segment: Segment) -> int:
        return max(each.appended_at for each in self._inputs if each.base < segment.end)

    def discard(self) -> None:
        """Removes what was written, the data before the note that says what it is."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        for name in self._begun:
            files.unlink(self._directory / f"{name}.arrow")
            files.unlink(self._directory / f"{name}.json{layout.UNFINISHED}")
            files.unlink(self._directory / f"{name}.json")
        self.segments = []


def _incomplete(directory: Path, segment: Segment, at: int) -> DamagedSegment:
    path = directory / f"{segment.uuid}.{segment.kind}"
    return DamagedSegment(
        f"{path}: offset {at} is missing in a file of offsets {segment.base} to {segment.end - 1}; run `jjq repair`",
        path=str(path), position=0, lost=(at, segment.end),
    )  # fmt: skip
