"""An active or rolled file: an Arrow IPC stream and, beside it, an index of fixed-width entries.

The index says how far the stream counts; nothing else does. Readers verify each run of messages against the index
before a row of it gets out.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from jjq import files
from jjq.errors import DamagedSegment
from jjq.log import flat
from jjq.log import format as fmt
from jjq.log.format import BATCH, CLOSE, ENTRY_SIZE, NO_TS, OPEN, SYNC, SYNCED, ActiveField, Encoded, Entry
from jjq.model import Segment
from jjq.schema import null_headers

RUN_BYTES = 1 << 20  # messages are verified and handed on in runs of about this size
_ENTRIES_AT_ONCE = 4096
_REREADS = 3
_JOIN_BYTES = 64 << 10  # up to here one joined write is cheaper than a vector of parts
_MMAP_FROM = 256 << 10  # below this a read is cheaper than a mapping

Batches = Iterator[tuple[int, pa.RecordBatch]]  # (offset of the first row, physical columns)


def stream_paths(directory: Path, uuid: str) -> tuple[Path, Path]:
    return directory / f"{uuid}.arrows", directory / f"{uuid}.index"


class StreamReader:
    """Reads one stream file. Threads may share it, but for `close`. `schema` is the physical schema the file was written
    with.

    `entries` replaces the index where that cannot be trusted or written (a read-only store after a reboot).
    """

    def __init__(self, directory: Path, uuid: str, schema: pa.Schema, template: fmt.RowsTemplate | None = None,
                 entries: Sequence[Entry] | None = None) -> None:  # fmt: skip
        self.path, self.index_path = stream_paths(directory, uuid)
        self.schema = schema
        self._template = template
        self._given = list(entries) if entries is not None else None
        with files.reading(self.path):
            self._fd = files.open_ro(self.path)
        try:
            with files.reading(self.index_path):
                self._index_fd = files.open_ro(self.index_path) if entries is None else -1
        except BaseException:
            files.close(self._fd)
            raise
        self._map: pa.Buffer | None = None
        self._left_at = (-1, 0)  # an offset, and the number of the first entry at or after it

    @property
    def surveyed(self) -> bool:
        """Whether entries that were given take the place of the index."""
        return self._given is not None

    def close(self) -> None:
        for fd in (self._fd, self._index_fd):
            if fd >= 0:
                files.close(fd)
        self._fd = self._index_fd = -1
        self._map = None

    def __del__(self) -> None:
        """One that is shared is closed when the last of its users has let go of it."""
        with contextlib.suppress(AttributeError, OSError):
            self.close()

    @property
    def mapped(self) -> int:
        """Bytes that are mapped."""
        return 0 if self._map is None else int(self._map.size)

    def __enter__(self) -> StreamReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the index ---------------------------------------------------------------------------------------------------

    def count(self) -> int:
        """Whole entries the index has now."""
        return len(self._given) if self._given is not None else files.size(self._index_fd) // ENTRY_SIZE

    def entries(self, first: int, last: int) -> list[Entry]:
        """Entries `[first, last)`, verified."""
        if self._given is not None:
            return self._given[first:last]
        size = (last - first) * ENTRY_SIZE
        data = b""
        for _ in range(_REREADS):
            # Where an entry that was written in part is written again, a reader may catch it half done.
            try:
                data = files.pread(self._index_fd, size, first * ENTRY_SIZE)
            except OSError as error:
                raise files.translate(error, "read", self.index_path) from error
            if len(data) == size and fmt.entries_hold(data):
                return fmt.unpack_entries(data)
        position = (first + len(fmt.valid_prefix(data))) * ENTRY_SIZE
        raise DamagedSegment(
            f"{self.index_path}: the index is damaged at byte {position}; run `jjq repair`, which rebuilds it from the data",
            path=str(self.index_path), position=position, lost=None,
        )  # fmt: skip

    @functools.cached_property
    def base(self) -> int:
        """The offset of the file's first record."""
        return self.entries(0, 1)[0].base

    def last(self) -> Entry:
        count = self.count()
        if not count:
            raise DamagedSegment(
                f"{self.index_path}: the index is empty; run `jjq repair`",
                path=str(self.index_path),
                position=0,
                lost=None,
            )
        return self.entries(count - 1, count)[0]

    def end(self) -> tuple[int, bool]:
        """(visible end offset, whether the file is closed)"""
        last = self.last()
        return last.end, last.kind == CLOSE

    def _find(self, offset: int, count: int, key: Callable[[Entry], int]) -> int:
        """Number of the first entry after the head whose `key` is at least `offset`; keys never decrease."""
        return bisect.bisect_left(range(count), offset, lo=1, key=lambda i: key(self.entries(i, i + 1)[0]))

    # --- rows --------------------------------------------------------------------------------------------------------

    def scan(self, start: int, end: int) -> Batches:
        """Batches that hold the offsets `[start, end)`, whole runs verified; the caller cuts the first and the last."""
        count = self.count()
        # Who follows the file asks for what comes next, whose entry need not be searched.
        known, at = self._left_at
        if known != start:
            at = self._find(start + 1, count, lambda entry: entry.end)
        expected: int | None = None
        while at < count:
            # One entry more in front: its checksum is where this run's begins.
            entries = self.entries(at - 1, min(at + _ENTRIES_AT_ONCE, count))
            before, found = entries[0], entries[1:]
            limit = found[-1].base if found[-1].kind == CLOSE else end
            run = [e for e in found if e.kind == BATCH and e.base < min(end, limit)]
            if not run:
                return
            if expected is not None and run[0].base != expected:
                raise self._damaged(run[0], "the index skips offsets")
            yield from self._runs(before, run)
            expected = run[-1].end
            behind = next(i for i, entry in enumerate(reversed(found)) if entry is run[-1])
            self._left_at = (expected, at + len(found) - behind)
            if expected >= min(end, limit):
                return
            at += len(found)

    def _runs(self, before: Entry, entries: list[Entry]) -> Batches:
        first = 0
        while first < len(entries):
            start_at = entries[first].position
            last = first + 1
            while last < len(entries) and entries[last].end_position - start_at <= RUN_BYTES:
                last += 1
            run = entries[first:last]
            data = self._region(start_at, run[-1].end_position - start_at)
            if len(data) != run[-1].end_position - start_at or fmt.extend(before.file_crc, data) != run[-1].file_crc:
                raise self._damaged(run[0], "the bytes do not match their checksum", run[-1].end)
            yield from self._decode(run, data)
            before, first = run[-1], last

    def _decode(self, run: list[Entry], data: pa.Buffer) -> Batches:
        template, at = self._template, 0
        raw: bytes | None = None
        origin = run[0].position
        while at < len(run):
            entry = run[at]
            if template is not None and entry.layout == template.layout and entry.rows == 1:
                stop = at + 1
                while stop < len(run) and run[stop].layout == template.layout and run[stop].rows == 1:
                    stop += 1
                raw = data.to_pybytes() if raw is None else raw
                singles = run[at:stop]
                keys, values = template.rows_at(raw, [e.position - origin for e in singles])
                columns = [
                    pa.array([e.min_ts for e in singles], pa.int64()).cast(self.schema.field(0).type),
                    pa.array(keys, pa.binary()),
                    null_headers(len(singles)),
                    pa.array(values, pa.binary()),
                ]
                yield entry.base, pa.RecordBatch.from_arrays(columns, schema=self.schema)
                at = stop
                continue
            message = data.slice(entry.position - origin, entry.length)
            try:
                batch = pa.ipc.read_record_batch(message, self.schema)
            except (pa.ArrowInvalid, OSError) as error:
                raise self._damaged(entry, str(error)) from error
            if batch.num_rows != entry.rows:
                raise self._damaged(entry, f"{batch.num_rows} rows where the index says {entry.rows}")
            yield entry.base, batch
            at += 1

    def _region(self, position: int, length: int) -> pa.Buffer:
        if length < _MMAP_FROM:
            with files.reading(self.path):
                return pa.py_buffer(files.pread(self._fd, length, position))
        data = self._map
        if data is None or data.size < position + length:
            with files.reading(self.path), pa.memory_map(str(self.path)) as mapped:
                data = self._map = mapped.read_buffer()
        return data.slice(position, length)

    def _damaged(self, entry: Entry, why: str, end: int | None = None) -> DamagedSegment:
        lost = (entry.base, entry.end if end is None else end)
        return DamagedSegment(
            f"{self.path}: damaged at byte {entry.position} (offsets {lost[0]} to {lost[1] - 1}): {why}. Nothing of it was "
            f"read; `jjq repair` keeps what is whole",
            path=str(self.path), position=entry.position, lost=lost,
        )  # fmt: skip

    def seek_time(self, ts: int) -> int | None:
        """The first offset of the file whose timestamp is at least `ts` microseconds, None if there is none."""
        count = self.count()
        at = self._find(ts, count, lambda e: 1 << 62 if e.kind == CLOSE else e.run_max_ts)
        if at >= count:
            return None
        entry, last = self.entries(at, at + 1)[0], self.last()
        if entry.kind != BATCH or (last.kind == CLOSE and entry.base >= last.base):  # or was taken back
            return None
        for base, batch in self.scan(entry.base, entry.end):
            if (found := first_at_least(batch, ts)) is not None:
                return base + found
        return None

    def verify(self) -> Entry:
        """Reads the whole file; returns its last entry or raises DamagedSegment."""
        last = self.last()
        head = self.entries(0, 1)[0]
        if fmt.crc32c(self._region(0, head.length)) != head.file_crc:
            raise self._damaged(head, "the head does not match its checksum")
        rows = 0
        for _, batch in self.scan(head.base, last.end):
            rows += batch.num_rows
        if head.base + rows != last.end:
            raise self._damaged(last, f"{rows} rows where the index says {last.end - head.base}")
        return last


def first_at_least(batch: pa.RecordBatch, ts: int) -> int | None:
    """The first row with a timestamp of at least `ts` microseconds."""
    for row, value in enumerate(batch.column(0).cast(pa.int64()).to_pylist()):
        if value >= ts:
            return row
    return None


class ActiveFile:
    """The file being appended to, as one process sees it. Every method but `open` and `create` needs the partition's lock.

    Written end and visible end are apart: bytes count only when their index entry is there.
    """

    def __init__(self, directory: Path, uuid: str, fd: int, index_fd: int) -> None:
        self.directory, self.uuid = directory, uuid
        self.path, self.index_path = stream_paths(directory, uuid)
        self._fd, self._index_fd = fd, index_fd
        self._known = 0  # entries read so far
        self._index_size = 0  # bytes of the index when it was last looked at
        self.base = 0
        self.head_length = 0
        self.last: Entry = Entry(OPEN, 0, 0, 0, 0, 0, 0, 0, NO_TS, NO_TS, NO_TS, 0, 0)
        self.end = 0  # of `last`: the visible end offset
        self.length = 0  # and the end of its bytes
        self.min_ts = 1 << 62
        self.floor_ts = NO_TS  # the partition's highest timestamp before this file
        self.synced_offset = 0  # end of what is known to be on disk
        self.synced_position = 0
        self.opened_at = 0
        self.failed = False  # a sync failed here: what it was for must never count

    @classmethod
    def create(cls, directory: Path, uuid: str, schema: pa.Schema, base: int, floor_ts: int, now: int) -> ActiveFile:
        """A new file, synced with its name."""
        path, index_path = stream_paths(directory, uuid)
        head = fmt.stream_head(schema)
        entry = Entry(OPEN, SYNCED, 0, 0, base, 0, 0, len(head), NO_TS, floor_ts, NO_TS, now, fmt.crc32c(head))
        fd = files.create(path)
        index_fd = -1
        try:
            index_fd = files.create(index_path)
            files.pwrite(fd, head, 0)
            files.pwrite(index_fd, fmt.pack_entry(entry), 0)
            files.datasync(fd)
            files.datasync(index_fd)
            files.sync_dir(directory)
        except BaseException:
            for each in (fd, index_fd):
                if each >= 0:
                    files.close(each)
            for made in (path, index_path):  # ours alone: no row names it
                with contextlib.suppress(OSError):
                    files.unlink(made)
            raise
        active = cls(directory, uuid, fd, index_fd)
        active._take(entry)
        active._known = 1
        return active

    @classmethod
    def open(cls, directory: Path, uuid: str) -> ActiveFile:
        path, index_path = stream_paths(directory, uuid)
        fd = files.open_rw(path)
        try:
            index_fd = files.open_rw(index_path)
        except OSError:
            files.close(fd)
            raise
        return cls(directory, uuid, fd, index_fd)

    def close_descriptors(self) -> None:
        for fd in (self._fd, self._index_fd):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    files.close(fd)
        self._fd = self._index_fd = -1

    @property
    def closed(self) -> bool:
        return self.last.kind == CLOSE

    @property
    def rows(self) -> int:
        return self.end - self.base

    @property
    def last_ts(self) -> int:
        """The partition's highest timestamp so far."""
        return max(self.floor_ts, self.last.run_max_ts)

    def refresh_locked(self) -> None:
        """Takes in the entries that others have written."""
        self._index_size = files.size(self._index_fd)
        count = self._index_size // ENTRY_SIZE
        if count > self._known:
            data = files.pread(self._index_fd, (count - self._known) * ENTRY_SIZE, self._known * ENTRY_SIZE)
            if not fmt.entries_hold(data):
                position = (self._known + len(fmt.valid_prefix(data))) * ENTRY_SIZE
                raise DamagedSegment(
                    f"{self.index_path}: the index is damaged at byte {position}; run `jjq repair`",
                    path=str(self.index_path), position=position, lost=None,
                )  # fmt: skip
            for entry in fmt.unpack_entries(data):
                self._take(entry)
            self._known = count
        if not self._known:
            raise DamagedSegment(
                f"{self.index_path}: the index is empty; run `jjq repair`",
                path=str(self.index_path),
                position=0,
                lost=None,
            )

    def _take(self, entry: Entry) -> None:
        if entry.kind == OPEN:
            self.base, self.head_length, self.floor_ts = entry.base, entry.length, entry.max_ts
            self.opened_at = entry.appended_at
        elif entry.kind == BATCH:
            self.min_ts = min(self.min_ts, entry.min_ts)
        if entry.flags & SYNCED:
            self.synced_offset, self.synced_position = entry.end, entry.end_position
        self.last, self.end, self.length = entry, entry.end, entry.end_position

    def ready_locked(self) -> bool:
        """Whether the file takes records as this process knows it: nobody has added to it, closed it or left it torn."""
        return (
            files.size(self._index_fd) == self._known * ENTRY_SIZE
            and files.size(self._fd) == self.length
            and self.last.kind != CLOSE
            and not self.failed
        )

    def torn_locked(self) -> bool:
        """Whether there are bytes after the last entry: someone died, or failed, between the write and its entry."""
        return files.size(self._fd) != self.length or self._index_size % ENTRY_SIZE != 0

    def append_locked(self, topic: bytes, partition: int, messages: Sequence[Encoded], now: int, sync: bool) -> int:
        """Writes messages one after the other; returns the offset of the first. With `sync` they are on disk on return.

        On an error nothing of them is visible. After a failed write the file is torn, after a failed sync it is closed.
        """
        last = self.last
        first = offset = self.end
        start = position = self.length
        crc, run_max, low_ts = last.file_crc, last.run_max_ts, self.min_ts
        appended_at = max(now, last.appended_at)
        flags = SYNCED if sync else 0
        buffers: list[Any] = []
        packed: list[bytes] = []
        entry = last
        for message in messages:
            rows, low, high = message.rows, message.min_ts, message.max_ts
            head = fmt.place(message, ActiveField(topic, partition, offset, rows, self.synced_position, appended_at))
            crc = fmt.extend(crc, head)
            length = len(head)
            buffers.append(head)
            for part in message.body:
                crc = fmt.extend(crc, part)
                length += len(part)
                buffers.append(part)
            run_max = max(run_max, high)
            entry = Entry(
                BATCH, flags, 0, message.layout, offset, rows, position, length, low, high, run_max, appended_at, crc
            )
            packed.append(fmt.pack_entry(entry))
            low_ts = min(low_ts, low)
            offset += rows
            position += length
        if position - start <= _JOIN_BYTES:
            files.pwrite(self._fd, b"".join(buffers), start)
        else:
            files.pwrite_all(self._fd, buffers, start)
        self._count_locked(b"".join(packed), entry, low_ts, sync)
        return first

    def append_value_locked(
        self, template: fmt.RowsTemplate, topic: bytes, partition: int, value: bytes, now: int, sync: bool
    ) -> tuple[int, int]:
        """`append_locked` of one value without a key, at the broker's time, in half the time; its offset and timestamp."""
        last, offset = self.last, self.end
        ts = max(now, self.floor_ts, last.run_max_ts)
        appended_at = max(last.appended_at, now)
        data = template.message(ts, value, topic, partition, offset, self.synced_position, appended_at)
        files.pwrite(self._fd, data, self.length)
        crc = fmt.extend(last.file_crc, data)
        flags = SYNCED if sync else 0
        entry = Entry(BATCH, flags, 0, template.layout, offset, 1, self.length, len(data), ts, ts, ts, appended_at, crc)
        self._count_locked(fmt.pack_entry(entry), entry, min(self.min_ts, ts), sync)
        return offset, ts

    def _count_locked(self, packed: bytes, last: Entry, min_ts: int, sync: bool) -> None:
        """Makes what was written count by its entries, the last of which is given too; with `sync` on disk first."""
        if sync:
            self._sync_locked()
        files.pwrite(self._index_fd, packed, self._known * ENTRY_SIZE)
        self._known += len(packed) // ENTRY_SIZE
        self._index_size = self._known * ENTRY_SIZE
        self.last, self.min_ts = last, min_ts
        self.end, self.length = last.base + last.rows, last.position + last.length
        if sync:
            self.synced_offset, self.synced_position = self.end, self.length

    def sync_locked(self) -> None:
        """Puts on disk what is visible but not yet synced (durability `interval`), and says so in the index."""
        if self.last.flags & SYNCED or self.closed:
            return
        if self.failed:
            self.close_locked("failed")
            return
        self._sync_locked()
        # An entry of its own: the last one set again in place could be left half written, and readers rely on it.
        last = self.last
        self._add_entry(
            Entry(SYNC, SYNCED, 0, 0, last.end, 0, last.end_position, 0, NO_TS, NO_TS, last.run_max_ts,
                  last.appended_at, last.file_crc)
        )  # fmt: skip

    def _sync_locked(self) -> None:
        try:
            files.datasync(self._fd)
        except OSError:
            # The page cache now shows bytes that may never reach the disk. Nobody may add to them or believe them.
            self.failed = True
            with contextlib.suppress(OSError):
                self._write_close_locked("failed", self.synced_offset)
            raise

    def close_locked(self, reason: str) -> None:
        """Ends the file where its entries end, on disk. It never takes another record.

        Where a sync failed and the closing entry could not be written then, the file ends at what was on disk before: a
        second sync that succeeds says nothing of the pages that the first one dropped.
        """
        if self.closed:
            return
        if not self.failed and not self.last.flags & SYNCED:
            self._sync_locked()
        self._write_close_locked(reason, self.synced_offset if self.failed else self.last.end)
        files.datasync(self._index_fd)

    def _write_close_locked(self, reason: str, end: int) -> None:
        last = self.last
        position, crc, run_max = last.end_position, last.file_crc, last.run_max_ts
        if end < last.end:  # unsynced records that a failed sync takes back
            before = self._entry_ending_at(end)
            position, crc, run_max = before.end_position, before.file_crc, before.run_max_ts
        code = fmt.CLOSE_REASONS.index(reason)
        self._add_entry(
            Entry(CLOSE, SYNCED, 0, 0, end, code, position, 0, NO_TS, NO_TS, run_max, last.appended_at, crc)
        )

    def _add_entry(self, entry: Entry) -> None:
        files.pwrite(self._index_fd, fmt.pack_entry(entry), self._known * ENTRY_SIZE)
        self._take(entry)
        self._known += 1
        self._index_size = self._known * ENTRY_SIZE

    def _entry_ending_at(self, end: int) -> Entry:
        entries = fmt.unpack_entries(files.pread(self._index_fd, self._known * ENTRY_SIZE, 0))
        return next(entry for entry in reversed(entries) if entry.kind != CLOSE and entry.end <= end)

    def settle_locked(self) -> None:
        """Makes sure that a closed file is on disk before a row names it: who closed it may have died first."""
        files.datasync(self._fd)
        files.datasync(self._index_fd)

    def highest_visible_locked(self) -> int:
        """The highest end offset that readers may have seen: more than `end` after a failed sync took records back."""
        entries = fmt.unpack_entries(files.pread(self._index_fd, self._known * ENTRY_SIZE, 0))
        return max(entry.end for entry in entries)

    def segment(self, schema_version: int) -> Segment:
        """The row of this file once it is closed."""
        return Segment(
            self.uuid, "arrows", self.base, self.end, self.length, self.last.file_crc, 0, schema_version,
            self.min_ts, self.last.run_max_ts, self.last_ts, self.last.appended_at,
        )  # fmt: skip


def scan_messages(path: Path, schema: pa.Schema, topic: bytes, partition: int) -> tuple[list[Entry], str]:
    """The entries that a stream file's own messages give, up to the first that is not whole, and why it ends there.

    Needs no index: this is how one is made again. The base is that of the first message.
    """
    head = fmt.stream_head(schema)
    with pa.memory_map(str(path)) as mapped:
        data = mapped.read_buffer() if mapped.size() else pa.py_buffer(b"")
    if bytes(data[: len(head)]) != head:
        return [], "the head is not the schema's"
    crc = fmt.crc32c(head)
    entries: list[Entry] = []
    position, run_max = len(head), NO_TS
    while position < len(data):
        try:
            message, field = message_at(data, position)
        except flat.NotAMessage as error:
            return entries, str(error)
        if field.topic != topic or field.partition != partition or (entries and field.base != entries[-1].end):
            return entries, "a message of another place"
        if not entries:
            entries.append(
                Entry(OPEN, 0, 0, 0, field.base, 0, 0, len(head), NO_TS, NO_TS, NO_TS, field.appended_at, crc)
            )
        batch = pa.ipc.read_record_batch(message, schema)
        stamps = batch.column(0).cast(pa.int64())
        low, high = pa.compute.min_max(stamps).as_py().values()
        run_max = max(run_max, high)
        crc = fmt.extend(crc, message)
        entries.append(
            Entry(BATCH, 0, 0, 0, field.base, field.rows, position, len(message), low, high, run_max,
                  field.appended_at, crc)
        )  # fmt: skip
        position += len(message)
    return entries, ""


def message_at(data: pa.Buffer, position: int) -> tuple[pa.Buffer, ActiveField]:
    """The whole, verified message that begins there; raises flat.NotAMessage."""
    if position + flat.PREFIX > len(data):
        raise flat.NotAMessage("the file ends inside a message")
    head_length = flat.PREFIX + flat.metadata_length(bytes(data[position : position + flat.PREFIX]))
    if position + head_length > len(data):
        raise flat.NotAMessage("the file ends inside a message")
    head = bytes(data[position : position + head_length])
    length = head_length + flat.body_length(head)
    if position + length > len(data):
        raise flat.NotAMessage("the file ends inside a message")
    return data.slice(position, length), fmt.check_active(
        head, data.slice(position + head_length, length - head_length)
    )


def promised_after(path: Path, position: int) -> ActiveField | None:
    """A whole message behind a damaged place that was written when the place was known to be on disk.

    Tells damage (records that were acknowledged as durable are gone) from what a power cut may leave of unsynced bytes.
    """
    with pa.memory_map(str(path)) as mapped:
        data = mapped.read_buffer() if mapped.size() else pa.py_buffer(b"")
    raw = data.to_pybytes()
    at = raw.find(flat.CONTINUATION, position + 8)
    while at >= 0:
        try:
            _, field = message_at(data, at)
        except flat.NotAMessage:
            pass
        else:
            if field.synced_to > position:
                return field
        at = raw.find(flat.CONTINUATION, at + 1)
    return None
