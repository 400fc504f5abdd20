"""A sealed file: an Arrow IPC file of batches of about 4 MiB, each with a CRC for every column.

Any Arrow reader opens it. jjq's reader trusts nothing in it before its checksum: head and footer by the catalog's
`meta_crc`, each batch's metadata and each column that is read by the batch's own field.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from jjq import compute as pc
from jjq import files
from jjq.errors import DamagedSegment
from jjq.log import bounds, flat
from jjq.log import format as fmt
from jjq.log.mapping import mapped
from jjq.log.stream import add_span, first_at_least
from jjq.model import Segment, StagedFile
from jjq.values import counted

MAGIC = b"ARROW1\0\0"
TAIL = b"ARROW1"
BATCH_BYTES = 1 << 20  # what readers give out at a time
SEALED_BATCH_BYTES = 4 << 20  # of a file: what is done once a batch costs a fast reader as much as its bytes do
COMPRESSED_ROWS = 4096  # a random read decompresses a whole batch


def sealed_path(directory: Path, uuid: str) -> Path:
    return directory / f"{uuid}.arrow"


def rebatch(batches: Iterable[pa.RecordBatch], target_bytes: int = BATCH_BYTES, most_rows: int = 1 << 20,
            ) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The same rows in batches of about `target_bytes`: large ones are cut (without copying), small ones joined. What comes
    before an error is given out before it is raised."""
    held: list[pa.RecordBatch] = []
    held_bytes = held_rows = 0
    try:
        for batch in batches:
            rows = batch.num_rows
            if not rows:
                continue
            size = batch.get_total_buffer_size()
            if held_bytes + size > target_bytes:  # it may be a part of what its buffers hold; to find out takes a while
                size = batch.nbytes
            if held and (held_bytes + size > target_bytes or held_rows + rows > most_rows):
                yield _joined(held)
                held, held_bytes, held_rows = [], 0, 0
            if size >= target_bytes or rows >= most_rows:
                pieces = max(1, round(size / target_bytes), -(-rows // most_rows))
                step = -(-rows // pieces)
                for start in range(0, rows, step):
                    yield batch.slice(start, step)
            else:
                held.append(batch)
                held_bytes += size
                held_rows += rows
    except Exception:
        if held:
            yield _joined(held)
        raise
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class SealedWriter:
    """Writes one sealed file under a name that nobody reads yet. Close with `finish` or `abandon`."""

    def __init__(self, directory: Path, uuid: str, schema: pa.Schema, compression: str | None = None) -> None:
        self.path = sealed_path(directory, uuid)
        self.uuid = uuid
        self.schema = schema
        self._places = fmt.first_buffers(schema)
        self._options = pa.ipc.IpcWriteOptions(compression=compression)
        self._placeholder = fmt.sealed_placeholder(len(schema))
        self._blocks: list[tuple[int, int, int]] = []
        self._bounds = bounds.Collected(schema)
        self.rows = 0
        self.min_ts, self.max_ts = 1 << 62, fmt.NO_TS
        head = MAGIC + fmt.stream_head(schema)
        self._fd = files.create(self.path)
        self._crc, self._meta_crc, self.length = fmt.crc32c(head), fmt.crc32c(head), len(head)
        try:
            files.pwrite(self._fd, head, 0)
        except BaseException:
            files.close(self._fd)
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        stamps = pc.min_max(batch.column(0).cast(pa.int64())).as_py()
        message = fmt.encode(batch, stamps["min"], stamps["max"], self._placeholder, self._options)
        fmt.place_sealed(message, self.rows, self._places)
        head = bytes(message.head)
        body = message.body[-1]
        files.pwrite_all(self._fd, [head, body], self.length)
        self._crc = fmt.crc32c(body, fmt.crc32c(head, self._crc))
        self._blocks.append((self.length, len(head), len(body)))
        self.length += len(head) + len(body)
        self.rows += batch.num_rows
        self.min_ts, self.max_ts = min(self.min_ts, stamps["min"]), max(self.max_ts, stamps["max"])
        self._bounds.add(batch)

    @property
    def crc(self) -> int:
        """CRC32C of the whole file so far."""
        return int(self._crc)

    @property
    def meta_crc(self) -> int:
        """CRC32C of head and footer."""
        return int(self._meta_crc)

    def finish(self) -> None:
        """Writes the footer and syncs the file; the directory is the caller's to sync, once for all its files."""
        footer = flat.END_OF_STREAM + make_footer(self.schema, self._blocks, self._bounds.metadata())
        footer += struct.pack("<i", len(footer) - len(flat.END_OF_STREAM)) + TAIL
        self._crc = fmt.crc32c(footer, self._crc)
        self._meta_crc = fmt.crc32c(footer, self._meta_crc)
        try:
            files.pwrite(self._fd, footer, self.length)
            self.length += len(footer)
            files.datasync(self._fd)
        finally:
            self._close()

    def abandon(self) -> None:
        self._close()
        files.unlink(self.path)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1  # first: what is closed again after an interrupt may be another file by then
        if fd >= 0:
            files.close(fd)

    def staged(self, topic_id: str, topic: str, partition: int, schema_version: int) -> StagedFile:
        return StagedFile(
            topic_id, topic, partition, self.uuid, self.rows, self.length, self._crc, self._meta_crc, schema_version,
            self.min_ts, self.max_ts,
        )  # fmt: skip


def make_footer(
    schema: pa.Schema, blocks: Sequence[tuple[int, int, int]], metadata: dict[bytes, bytes] | None = None
) -> bytes:
    """The footer of a file with these blocks (position, bytes of metadata, bytes of body).

    pyarrow builds the flatbuffer for as many empty batches; the blocks are then patched in.
    """
    sink = pa.BufferOutputStream()
    empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    with pa.ipc.new_file(sink, schema, metadata=metadata) as writer:
        for _ in blocks:
            writer.write_batch(empty)
    data = sink.getvalue().to_pybytes()
    length = struct.unpack_from("<i", data, len(data) - len(TAIL) - 4)[0]
    footer = bytearray(data[len(data) - len(TAIL) - 4 - length : len(data) - len(TAIL) - 4])
    position, count = flat.footer_blocks(footer)
    if count != len(blocks):
        raise flat.NotAMessage("pyarrow wrote another number of blocks")
    for i, block in enumerate(blocks):
        struct.pack_into("<qi4xq", footer, position + i * flat.BLOCK_SIZE, *block)
    return bytes(footer)


class _Head(NamedTuple):
    """What the metadata of a batch says, once it is known to be as written."""

    field: fmt.SealedField
    crc: int  # of the metadata
    ranges: list[tuple[int, int]]  # of each column's bytes in the body


class SealedReader:
    """Reads one sealed file through a mapping. May be shared among threads. Raises DamagedSegment before a wrong row."""

    def __init__(self, directory: Path, segment: Segment, schema: pa.Schema) -> None:
        self.path = sealed_path(directory, segment.uuid)
        self._name = os.fspath(self.path)
        self.segment = segment
        self.schema = schema
        with files.reading(self.path):
            self._data = mapped(self.path)
        if len(self._data) != segment.length:
            raise self._damaged(f"{counted(len(self._data), 'byte')} where the catalog says {segment.length:,}")
        try:
            self._blocks = self._read_blocks()
        except flat.NotAMessage as error:
            raise self._damaged(str(error)) from error
        self._heads: list[_Head | None] = [None] * len(self._blocks)
        self._touched: set[int] = set()
        self.mapped = 0  # bytes of the mapping that were read: what it takes in memory at most

    def _read_blocks(self) -> list[tuple[int, int, int]]:
        data = self._data
        end = len(data) - len(TAIL)
        if end < len(MAGIC) + 4:
            raise flat.NotAMessage("too short for an Arrow file")
        footer_length = struct.unpack("<i", bytes(data[end - 4 : end]))[0]
        footer_at = end - 4 - footer_length
        head_length = len(MAGIC) + len(fmt.stream_head(self.schema))
        tail_at = footer_at - len(flat.END_OF_STREAM)
        if footer_length <= 0 or tail_at < head_length:
            raise flat.NotAMessage("the footer's length is damaged")
        head, tail = bytes(data[:head_length]), bytes(data[tail_at:])
        if fmt.crc32c(tail, fmt.crc32c(head)) != self.segment.meta_crc:
            raise flat.NotAMessage("head and footer do not match their checksum")
        return flat.read_blocks(bytes(data[footer_at : end - 4]))

    def field(self, number: int) -> fmt.SealedField:
        return self._head(number).field

    def _head(self, number: int) -> _Head:
        found = self._look(number)
        if isinstance(found, flat.NotAMessage):
            raise self._damaged(str(found), number) from found
        return found

    def _look(self, number: int) -> _Head | flat.NotAMessage:
        """What `_head` gives or why it does not."""
        found = self._heads[number]
        if found is None:
            self._check_length()
            position, meta, body_length = self._blocks[number]
            head = bytes(self._data[position : position + meta])
            try:
                found = self._heads[number] = _Head(
                    fmt.check_sealed(head, len(self.schema)),
                    fmt.crc32c(head),
                    fmt.column_ranges(head, body_length, self._places),
                )
            except flat.NotAMessage as error:
                return error
        return found

    def _first_row(self, number: int) -> int:
        """Where a batch begins; one whose head is damaged, where the last one before it that is whole ends."""
        for each in range(number, -1, -1):
            head = self._look(each)
            if isinstance(head, _Head):
                return head.field.first_row + (head.field.rows if each < number else 0)
        return 0

    def _end_row(self, number: int) -> int:
        """Where a batch ends; one whose head is damaged, where the next one that is whole begins."""
        for each in range(number, len(self._blocks)):
            head = self._look(each)
            if isinstance(head, _Head):
                return head.field.first_row + (head.field.rows if each == number else 0)
        return self.segment.rows

    def __len__(self) -> int:
        return len(self._blocks)

    def _block_of(self, row: int) -> int:
        """The batch that holds a row of the file, by halving; a damaged one where it may be in that."""
        low, high = 0, len(self._blocks) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._first_row(middle) <= row:
                low = middle
            else:
                high = middle - 1
        return low

    def scan(
        self, start: int, end: int, columns: Sequence[int] | None = None,
        batch: Callable[[int, Sequence[int] | None], pa.RecordBatch] | None = None,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:  # fmt: skip
        """Batches that hold the offsets `[start, end)`, uncut; of `columns` (indices into the physical schema, ascending)
        only those are verified, decompressed and returned. `batch` takes the place of the method of that name."""
        base = self.segment.base
        if start >= end or not self._blocks:
            return
        for number in range(self._block_of(start - base), len(self._blocks)):
            field = self.field(number)
            if base + field.first_row >= end:
                return
            self._check_length()
            yield base + field.first_row, (batch or self.batch)(number, columns)

    def _check_length(self) -> None:
        """Raises DamagedSegment where the file was cut short while it was open: to touch what is mapped of the rest would end
        the process."""
        try:  # for every batch, so without what would make it shorter to write
            length = os.stat(self._name).st_size
        except FileNotFoundError:  # what is mapped of a file that was removed stays
            return
        except OSError as error:
            raise files.translate(error, "read", self.path) from error
        if length < len(self._data):
            raise self._damaged(f"{counted(length, 'byte')} where the catalog says {self.segment.length:,}")

    def is_compressed(self, number: int) -> bool:
        position, meta, _ = self._blocks[number]
        return flat.is_compressed(bytes(self._data[position : position + meta]))

    def batch(self, number: int, columns: Sequence[int] | None) -> pa.RecordBatch:
        """A batch by its number, verified; all its columns, or those of these indices, ascending."""
        field, head_crc, ranges = self._head(number)
        position, meta, body_length = self._blocks[number]
        if number not in self._touched:
            self._touched.add(number)
            self.mapped += meta + body_length
        message = self._data.slice(position, meta + body_length)
        body = self._data.slice(position + meta, body_length)
        try:
            head = bytes(message[:meta])
            if fmt.crc32c(head) != head_crc:  # the disk went bad since it was read first
                raise flat.NotAMessage("the batch's metadata does not match its checksum")
            for i in range(len(self.schema)) if columns is None else columns:
                start, end = ranges[i]
                if fmt.crc32c(body.slice(start, end - start)) != field.column_crcs[i]:
                    raise flat.NotAMessage(f"column {self.schema.field(i).name!r} does not match its checksum")
            batch = self._decode(message, head, columns)
        except (flat.NotAMessage, pa.ArrowInvalid, OSError) as error:
            raise self._damaged(str(error), number) from error
        if batch.num_rows != field.rows:
            raise self._damaged(f"{counted(batch.num_rows, 'row')} where the batch says {field.rows:,}", number)
        return batch

    def _decode(self, message: pa.Buffer, head: bytes, columns: Sequence[int] | None) -> pa.RecordBatch:
        if columns is None:
            return pa.ipc.read_record_batch(message, self.schema)
        if not flat.is_compressed(head):  # nothing is touched that is not asked for
            return pa.ipc.read_record_batch(message, self.schema).select(list(columns))
        options = pa.ipc.IpcReadOptions(included_fields=list(columns), use_threads=False)
        stream = pa.py_buffer(fmt.stream_head(self.schema) + message.to_pybytes())
        return pa.ipc.open_stream(stream, options=options).read_next_batch()

    def seek_time(self, ts: int) -> int | None:
        """The first offset of the file whose timestamp is at least `ts` microseconds, None if there is none."""
        for number in range(len(self._blocks)):
            field = self.field(number)
            if field.max_ts >= ts:
                self._check_length()
                batch = self.batch(number, [0])
                found = first_at_least(batch, ts)
                if found is not None:
                    return self.segment.base + field.first_row + found
        return None

    def spans(self, start: int, end: int, since: int, until: int) -> list[tuple[int, int]]:
        """What of the offsets `[start, end)` may have a timestamp in `[since, until)` microseconds, by whole batches."""

        def may_have(number: int) -> bool:
            field = self.field(number)
            return field.max_ts >= since and field.min_ts < until

        return self._spans(start, end, may_have)

    def spans_where(self, start: int, end: int, tests: Sequence[bounds.Test]) -> list[tuple[int, int]]:
        """What of the offsets `[start, end)` may have rows for which all tests, each of one column, can be true, by whole
        batches."""
        said = {name: self.bounds(name) for name in {test.column for test in tests}}

        def may_have(number: int) -> bool:
            return all((known := said[test.column][number]) is None or test.may_hold(known) for test in tests)

        return self._spans(start, end, may_have)

    def _spans(self, start: int, end: int, may_have: Callable[[int], bool]) -> list[tuple[int, int]]:
        base = self.segment.base
        found: list[tuple[int, int]] = []
        for number in range(self._block_of(start - base), len(self._blocks)) if start < end and self._blocks else ():
            field = self.field(number)
            first = base + field.first_row
            if first >= end:
                break
            if may_have(number):
                add_span(found, max(start, first), min(end, first + field.rows))
        return found

    def whole_bounds(self, name: str) -> bounds.Bounds | None:
        """Between which values a column lies in all the batches together, None where the file does not say."""
        rows = self.segment.rows
        if name not in self.schema.names:  # the file is older than the column, which reads as null
            return bounds.Bounds(None, None, rows, rows)
        return bounds.bounds_of_all(self._said, self.schema.field(name), rows)

    def said(
        self, start: int, end: int, names: Sequence[str], *, batches: bool
    ) -> Iterator[tuple[int, int, tuple[bounds.Bounds | None, ...]]]:
        """The bounds of these columns in the offsets `[start, end)`: of each batch, and where it begins and ends there, or
        of the whole file."""
        if not batches:
            yield start, end, tuple(self.whole_bounds(name) for name in names)
            return
        each = zip(*(self.bounds(name) for name in names), strict=True) if names else ()
        for number, found in enumerate(each):
            field = self.field(number)
            first, last = self.segment.base + field.first_row, self.segment.base + field.first_row + field.rows
            if first < end and last > start:
                yield max(start, first), min(end, last), found

    def bounds(self, name: str) -> list[bounds.Bounds | None]:
        """Between which values a column lies in each batch, None where the file does not say."""
        rows = [self.field(number).rows for number in range(len(self))]
        if name not in self.schema.names:  # as above
            return [bounds.Bounds(None, None, count, count) for count in rows]
        return bounds.bounds_of(self._said, self.schema.field(name), rows)

    @functools.cached_property
    def _places(self) -> Sequence[int]:
        return fmt.first_buffers(self.schema)

    @functools.cached_property
    def _said(self) -> pa.RecordBatch | None:
        self._check_length()
        with pa.ipc.open_file(self._data) as file:
            return bounds.read(file.metadata, len(self))

    def _damaged(self, why: str, number: int | None = None) -> DamagedSegment:
        """The error for a batch, or for the whole file."""
        position, first, end = 0, 0, self.segment.rows
        if number is not None:
            position, first, end = self._blocks[number][0], self._first_row(number), self._end_row(number)
        first, end = self.segment.base + first, self.segment.base + end
        return DamagedSegment(
            f"{self.path}: damaged at byte {position} (offsets {first} to {end - 1}): {why}. `jjq repair` keeps what is whole",
            path=str(self.path), position=position, lost=(first, end),
        )  # fmt: skip


def file_crc(path: Path) -> tuple[int, int]:
    """(bytes, CRC32C) of a file as it is now."""
    data = mapped(path)
    return len(data), fmt.crc32c(data)
