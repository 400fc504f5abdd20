"""The file a partition appends to, as one process sees it.

Written end and visible end are apart: bytes count only when their index entry is there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from jjq import files
from jjq.errors import DamagedSegment
from jjq.log import format as fmt
from jjq.log.format import BATCH, CLOSE, ENTRY_SIZE, NO_TS, OPEN, SYNC, SYNCED, ActiveField, Encoded, Entry
from jjq.log.stream import NOTHING, empty_index, stream_paths
from jjq.log.template import RowsTemplate
from jjq.model import Segment

LARGE_BYTES = 1 << 20  # the disk begins with so much at once
_FAILED = b"\0"  # behind the entries of a file whose sync failed; an entry begins with its kind
_JOIN_BYTES = 64 << 10  # up to here one joined write is cheaper than a vector of parts
# Zeros that are laid out ahead where each push is synced: to write over them changes neither the file's length nor its blocks, so
# a sync has only the data to put on disk, and takes two thirds of the time (docs/decisions/0024).
_AHEAD_BYTES = 128 << 10
_AHEAD_PUSHES = 64
AHEAD_LEAST = 8  # for fewer pushes it is not worth it
_MOST_AT_ONCE = 64 * ENTRY_SIZE  # what others add while one waits for its turn is less

Told = Callable[[int, list[bytes]], None]  # of the byte of an index at which entries will be, and of these


def _ahead(start: int, length: int) -> bytes:
    """The zeros to lay out behind `length` bytes at `start`: at most as many as the bytes that are there before them. A full disk need
    not take them."""
    room = min(_AHEAD_BYTES, start, length * _AHEAD_PUSHES)
    return bytes(room) if room >= length * AHEAD_LEAST else b""


class ActiveFile:
    """See the module. Every method but `open` and `create` needs the partition's lock."""

    def __init__(self, directory: Path, uuid: str, fd: int, index_fd: int) -> None:
        self.directory, self.uuid = directory, uuid
        self.path, self.index_path = stream_paths(directory, uuid)
        self._fd, self._index_fd = fd, index_fd
        self._names = os.fspath(self.path), os.fspath(self.index_path)
        self._identities = files.identity(fd), files.identity(index_fd)
        self._links = files.link_of(fd), files.link_of(index_fd)
        self._places: tuple[str, ...] | None = None  # where the files were when they had their names
        self._known = 0  # entries read so far
        self._index_size = 0  # bytes of the index when it was last looked at
        self.base = 0
        self.head_length = 0
        # Of the last entry, each by itself: a named tuple of them would cost every single push more than a twentieth of its time.
        self.end = 0  # the visible end offset
        self.length = 0  # and the end of its bytes
        self._size = 0  # of the file, as far as is known: what it has behind `length` was laid out ahead, or is torn
        self.crc = 0  # of these bytes
        self.closed = False
        self.appended_at = 0
        self.run_max_ts = NO_TS
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
        packed = fmt.pack_entry(entry)
        fd = files.create(path)
        index_fd = -1
        try:
            index_fd = files.create(index_path)
            files.pwrite(fd, head, 0)
            files.pwrite(index_fd, packed, 0)
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
        active._take(packed)
        active._known = 1
        active._size = active.length
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
        open_ones = self._fd, self._index_fd
        self._fd = self._index_fd = -1  # first: what is closed again after an interrupt may be another file by then
        for fd in open_ones:
            if fd >= 0:
                with contextlib.suppress(OSError):
                    files.close(fd)

    @property
    def rows(self) -> int:
        return self.end - self.base

    @property
    def last_ts(self) -> int:
        """The partition's highest timestamp so far."""
        return max(self.floor_ts, self.run_max_ts)

    @property
    def synced(self) -> bool:
        """Whether all that is visible is known to be on disk."""
        return self.synced_position == self.length

    def refresh_locked(self) -> None:
        """Takes in the entries that others have written."""
        self._size = files.size(self._fd)
        self._index_size = files.size(self._index_fd)
        count = self._index_size // ENTRY_SIZE
        if count > self._known:
            data = files.pread(self._index_fd, (count - self._known) * ENTRY_SIZE, self._known * ENTRY_SIZE)
            if not data or not fmt.entries_hold(data):  # it is cut just now, or damaged
                position = (self._known + len(fmt.valid_prefix(data))) * ENTRY_SIZE
                raise DamagedSegment(
                    f"{self.index_path}: the index is damaged at byte {position}; run `jjq repair`",
                    path=str(self.index_path), position=position, lost=None,
                )  # fmt: skip
            self._take(data)
            self._known = count
        if not self._known:
            raise empty_index(self.index_path)
        if count < self._known:
            raise DamagedSegment(
                f"{self.index_path}: the index ends at byte {self._index_size} and was longer before; run `jjq repair`",
                path=str(self.index_path), position=self._index_size, lost=None,
            )  # fmt: skip
        rest = self._index_size % ENTRY_SIZE
        if rest and not self.closed and files.pread(self._index_fd, 1, count * ENTRY_SIZE) == _FAILED:
            self.failed = True

    def _take(self, data: bytes) -> None:
        """Takes in entries that follow those that are known."""
        # Numbers, not `Entry`: others wait meanwhile, and what this process has not touched since its last turn is cold.
        kind, flags, _, _, base, rows, position, length, _, _, run_max, appended_at, crc = fmt.ENTRY.unpack_from(
            data, len(data) - ENTRY_SIZE
        )
        end, end_position = base + rows if kind == BATCH else base, position + length
        kinds = data[::ENTRY_SIZE]
        if flags & SYNCED and kinds.count(BATCH) == len(kinds):
            self.synced_offset, self.synced_position = end, end_position
            self.min_ts = min(self.min_ts, *min(fmt.ENTRY_MIN_TS.iter_unpack(data)))
        else:
            self._take_each(fmt.unpack_entries(data))
        self.end, self.length, self.crc = end, end_position, crc
        self.closed = kind == CLOSE
        self.appended_at, self.run_max_ts = appended_at, run_max

    def _take_each(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.kind == OPEN:
                self.base, self.head_length, self.floor_ts = entry.base, entry.length, entry.max_ts
                self.opened_at = entry.appended_at
            elif entry.kind == BATCH:
                self.min_ts = min(self.min_ts, entry.min_ts)
            if entry.flags & SYNCED:
                self.synced_offset, self.synced_position = entry.end, entry.end_position

    def has(self, entry: bytes, position: int) -> bool:
        """Whether its index has the entry at this byte. Needs no lock."""
        return files.pread(self._index_fd, len(entry), position) == entry

    def ready_locked(self) -> bool:
        """Takes in what others have added, as `refresh_locked`, where it is nothing unusual; whether the file takes records then: nobody has
        closed it or left it torn. In few calls: each costs a process that has not run for some turns microseconds, and others wait."""
        known = self._known * ENTRY_SIZE
        size = files.seek(self._index_fd, 0, files.END)
        if size != known:
            data = files.look(self._index_fd, _MOST_AT_ONCE, known)
            if len(data) != size - known or not fmt.entries_hold(data):
                return False
            self._take(data)
            self._known = size // ENTRY_SIZE
        if self.closed or self.failed or not size:
            return False
        if self._size <= self.length:
            self._size = files.seek(self._fd, 0, files.END)
        # As `_ends_locked` says, with a call less.
        return self._size == self.length or files.look(self._fd, len(NOTHING), self.length) == NOTHING

    def _ends_locked(self) -> bool:
        """Whether nothing follows the last entry's message, or only what was laid out ahead: a message begins with other bytes than
        zeros, and what is left of one that was not written whole is its beginning."""
        if self._size == self.length:
            return files.size(self._fd) == self.length
        return files.pread(self._fd, len(NOTHING), self.length) == NOTHING

    def named(self, *, surely: bool) -> bool:
        """Whether both files are there for others: somebody may have removed or replaced them, or the whole store. `surely`: also
        where nothing has happened to the files themselves, but to a link on the way to them."""
        places = files.places(self._links)
        if surely or places != self._places or places is None:
            (name, index_name), (file, index) = self._names, self._identities
            if not (files.is_named(file, name) and files.is_named(index, index_name)):
                return False
            self._places = places
        return True

    def torn_locked(self) -> bool:
        """Whether there are bytes after the last entry: someone died, or failed, between the write and its entry."""
        return not self._ends_locked() or self._index_size % ENTRY_SIZE != 0

    def append_locked(self, topic: bytes, partition: int, messages: Sequence[Encoded], now: int, sync: bool,
                      told: Told | None = None) -> int:  # fmt: skip
        """Writes messages one after the other; returns the offset of the first. With `sync` they are on disk on return. `told` hears, before
        they count, which entries they will have, and at which byte of the index.

        On an error nothing of them is visible. After a failed write the file is torn, after a failed sync it is closed.
        """
        first = offset = self.end
        start = position = self.length
        appended_at = max(now, self.appended_at)
        heads: list[bytes] = []
        buffers: list[Any] = []
        for message in messages:
            field = ActiveField(topic, partition, offset, message.rows, self.synced_position, appended_at)
            heads.append(fmt.place(message, field))
            buffers += (heads[-1], *message.body)
            offset += message.rows
        length = written = sum(map(len, buffers))
        if length <= _JOIN_BYTES:
            if sync and start + length > self._size:
                buffers.append(_ahead(start, length))
            written = files.pwrite(self._fd, b"".join(buffers), start, length)
        else:
            files.pwrite_all(self._fd, buffers, start)
        self._size = max(self._size, start + written)
        if length > (_JOIN_BYTES if sync else LARGE_BYTES):
            # The disk is at work while the checksums are made; without `sync`, the one at the end would wait for all of the file.
            try:
                files.begin_writing(self._fd, start, length)
            except OSError:
                self._lost_locked()
                raise
        crc, run_max, low_ts, offset = self.crc, self.run_max_ts, self.min_ts, first
        packed: list[bytes] = []
        for head, message in zip(heads, messages, strict=True):
            rows, low, high = message.rows, message.min_ts, message.max_ts
            length = len(head) + sum(map(len, message.body))
            for part in (head, *message.body):
                crc = fmt.crc32c(part, crc)
            run_max, low_ts = max(run_max, high), min(low_ts, low)
            entry = (
                BATCH, SYNCED if sync else 0, 0, message.layout, offset, rows, position, length, low, high, run_max,
                appended_at, crc,
            )  # fmt: skip
            packed.append(fmt.pack_entry(entry))
            offset += rows
            position += length
        if sync:
            self._sync_locked()
        if told is not None:
            told(self._known * ENTRY_SIZE, packed)
        files.pwrite(self._index_fd, b"".join(packed), self._known * ENTRY_SIZE)
        self.end, self.length, self.crc = offset, position, crc
        self.appended_at, self.run_max_ts, self.min_ts = appended_at, run_max, low_ts
        if sync:
            self.synced_offset, self.synced_position = offset, position
        self._known += len(packed)  # last: after an interrupt the entries are read again, and not taken for a torn file
        return first

    def append_value_locked(
        self, template: RowsTemplate, topic: bytes, partition: int, value: bytes, now: int, sync: bool,
        key: bytes | None = None, mark: tuple[bytes, int] = fmt.NO_MARK,
    ) -> tuple[int, int]:  # fmt: skip
        """`append_locked` of one value, at the broker's time, in half the time; its offset and timestamp."""
        offset, position = self.end, self.length
        # Not `max`, which takes six times as long: this is done for every single push.
        ts = now if now > self.run_max_ts else self.run_max_ts  # noqa: FURB136
        ts = ts if ts > self.floor_ts else self.floor_ts  # noqa: FURB136
        appended_at = now if now > self.appended_at else self.appended_at  # noqa: FURB136
        data = template.message(ts, value, topic, partition, offset, self.synced_position, appended_at, key, mark)
        length, crc, flags = len(data), fmt.crc32c(data, self.crc), SYNCED if sync else 0
        if position + length > self._size:
            if sync:
                data += _ahead(position, length)
            self._size = position + files.pwrite(self._fd, data, position, length)
        else:
            files.pwrite(self._fd, data, position)
        entry = fmt.ENTRY.pack(
            BATCH, flags, 0, template.layout, offset, 1, position, length, ts, ts, ts, appended_at, crc
        )
        if sync:
            self._sync_locked()
        files.pwrite(self._index_fd, fmt.whole_entry(entry), self._known * ENTRY_SIZE)
        self.end, self.length, self.crc = offset + 1, position + length, crc
        self.appended_at = appended_at
        self.run_max_ts = ts
        if ts < self.min_ts:
            self.min_ts = ts
        if sync:
            self.synced_offset, self.synced_position = offset + 1, position + length
        self._known += 1  # last, as above
        return offset, ts

    def sync_locked(self) -> None:
        """Puts on disk what is visible but not yet synced (durability `interval`), and says so in the index."""
        if self.synced or self.closed:
            return
        if self.failed:
            self.close_locked("failed")
            return
        self._sync_locked()
        # An entry of its own: the last one set again in place could be left half written, and readers rely on it.
        self._add_entry(
            Entry(SYNC, SYNCED, 0, 0, self.end, 0, self.length, 0, NO_TS, NO_TS, self.run_max_ts, self.appended_at, self.crc)
        )  # fmt: skip

    def _sync_locked(self) -> None:
        try:
            files.datasync(self._fd)
        except OSError:
            self._lost_locked()
            raise

    def _lost_locked(self) -> None:
        """The page cache now shows bytes that may never reach the disk. Nobody may add to them or believe them."""
        self.failed = True
        with contextlib.suppress(OSError):
            self._write_close_locked("failed", self.synced_offset)

    def _mark_failed_locked(self) -> None:
        """Tells the other processes, where there was no room for the closing entry: the index ends in a byte that no entry begins
        with. What was written of the entry goes."""
        files.set_size(self._index_fd, self._known * ENTRY_SIZE)
        files.set_size(self._index_fd, self._known * ENTRY_SIZE + len(_FAILED))

    def close_locked(self, reason: str) -> None:
        """Ends the file where its entries end, on disk. It never takes another record.

        Where a sync failed and the closing entry could not be written then, the file ends at what was on disk before: a
        second sync that succeeds says nothing of the pages that the first one dropped.
        """
        if self.closed:
            return
        if not self.failed and not self.synced:
            self._sync_locked()
        self._write_close_locked(reason, self.synced_offset if self.failed else self.end)
        files.datasync(self._index_fd)

    def _write_close_locked(self, reason: str, end: int) -> None:
        try:
            self._add_entry(self._closing(reason, end))
        except OSError:
            if self.failed:  # maybe marked before: what was written of the entry lies over the mark
                with contextlib.suppress(OSError):
                    self._mark_failed_locked()
            raise

    def _closing(self, reason: str, end: int) -> Entry:
        position, crc, run_max = self.length, self.crc, self.run_max_ts
        if end < self.end:  # unsynced records that a failed sync takes back
            before = self._entry_ending_at(end)
            position, crc, run_max = before.end_position, before.file_crc, before.run_max_ts
        code = fmt.CLOSE_REASONS.index(reason)
        return Entry(CLOSE, SYNCED, 0, 0, end, code, position, 0, NO_TS, NO_TS, run_max, self.appended_at, crc)

    def _add_entry(self, entry: Entry) -> None:
        packed = fmt.pack_entry(entry)
        files.pwrite(self._index_fd, packed, self._known * ENTRY_SIZE)
        self._take(packed)
        self._known += 1

    def _entry_ending_at(self, end: int) -> Entry:
        entries = fmt.unpack_entries(files.pread(self._index_fd, self._known * ENTRY_SIZE, 0))
        return next(entry for entry in reversed(entries) if entry.kind != CLOSE and entry.end <= end)

    def settle_locked(self) -> None:
        """Makes sure that a closed file is on disk before a row names it: who closed it may have died first."""
        files.datasync(self._fd)
        files.datasync(self._index_fd)

    def highest_visible_locked(self) -> int:
        """The highest end offset that readers may have seen: more than `end` after a failed sync took records back."""
        # Ends never go down before the entry that closes the file, which is the last one.
        first = max(0, self._known - 2)
        data = files.pread(self._index_fd, (self._known - first) * ENTRY_SIZE, first * ENTRY_SIZE)
        return max(entry.end for entry in fmt.iter_entries(data))

    def segment(self, schema_version: int) -> Segment:
        """The row of this file once it is closed."""
        return Segment(
            self.uuid, "arrows", self.base, self.end, self.length, self.crc, 0, schema_version,
            self.min_ts, self.run_max_ts, self.last_ts, self.appended_at,
        )  # fmt: skip
