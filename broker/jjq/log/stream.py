"""An active or rolled file: an Arrow IPC stream and, beside it, an index of fixed-width entries.

The index says how far the stream counts; nothing else does. Readers verify each run of messages against the index
before a row of it gets out.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from jjq import files
from jjq.errors import DamagedSegment
from jjq.headers import null_headers
from jjq.log import format as fmt
from jjq.log.format import BATCH, CLOSE, ENTRY_SIZE, NO_TS, Entry
from jjq.log.mapping import mapped
from jjq.log.template import RowsTemplate
from jjq.schema import binaries, integers
from jjq.values import counted

RUN_BYTES = 1 << 20  # messages are verified and handed on in runs of about this size
_ENTRIES_AT_ONCE = 4096
_SINGLES = 64  # from about here on Arrow is as fast
_REREADS = 3
_MMAP_FROM = 256 << 10  # below this a read is cheaper than a mapping
NOTHING = bytes(8)  # where no message begins

Batches = Iterator[tuple[int, pa.RecordBatch]]  # (offset of the first row, physical columns)


def stream_paths(directory: Path, uuid: str) -> tuple[Path, Path]:
    return directory / f"{uuid}.arrows", directory / f"{uuid}.index"


def missing_active(path: Path, base: int) -> DamagedSegment:
    """The error for a partition whose active file, which begins at offset `base`, is not there."""
    return DamagedSegment(
        f"{path}: the active file is missing; run `jjq repair`", path=str(path), position=0, lost=(base, base)
    )


def missing_directory(path: Path) -> DamagedSegment:
    """The error for a partition without its directory."""
    return DamagedSegment(f"{path}: the directory is missing; run `jjq repair`", path=str(path), position=0, lost=None)


def empty_index(path: Path) -> DamagedSegment:
    """The error for an index without an entry: its file's first one is written before anybody knows of it."""
    return DamagedSegment(f"{path}: the index is empty; run `jjq repair`", path=str(path), position=0, lost=None)


def is_torn(path: Path, end: int) -> bool:
    """Whether a message was begun behind the byte `end` of a file; what was laid out ahead is none."""
    with files.reading(path):
        fd = files.open_ro(path)
        try:
            return files.pread(fd, len(NOTHING), end) not in (b"", NOTHING)
        finally:
            files.close(fd)


def last_entry(index: str | Path) -> Entry | None:
    """The last entry of an index, which does not stay open; None where it is gone, or to be looked at more closely."""
    try:
        with files.reading(index):
            fd = files.open_ro(index)
            try:
                count = files.size(fd) // ENTRY_SIZE
                data = files.pread(fd, ENTRY_SIZE, (count - 1) * ENTRY_SIZE) if count else b""
            finally:
                files.close(fd)
    except FileNotFoundError:
        return None
    return fmt.unpack_entries(data)[0] if len(data) == ENTRY_SIZE and fmt.entries_hold(data) else None


def open_end(index: str) -> int | None:
    """The visible end offset of an active file by its index; None where it is closed, gone, or to be looked at more closely."""
    last = last_entry(index)
    return None if last is None or last.kind == CLOSE else last.end


class StreamReader:
    """Reads one stream file. Threads may share it, but for `close`. `schema` is the physical schema the file was written
    with.

    `entries` replaces the index where that cannot be trusted or written (a read-only store after a reboot).
    """

    def __init__(self, directory: Path, uuid: str, schema: pa.Schema, template: RowsTemplate | None = None,
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
        open_ones = self._fd, self._index_fd
        self._fd = self._index_fd = -1  # first: what is closed again after an interrupt may be another file by then
        self._map = None
        for fd in open_ones:
            if fd >= 0:
                files.close(fd)

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
        if self._given is not None:
            return len(self._given)
        try:
            return files.size(self._index_fd) // ENTRY_SIZE
        except OSError as error:
            raise files.translate(error, "read", self.index_path) from error

    def entries(self, first: int, last: int) -> list[Entry]:
        """Entries `[first, last)`, verified."""
        found, damage = self._entries_before_damage(first, last)
        if damage is not None:
            raise damage
        return found

    def _entries_before_damage(self, first: int, last: int) -> tuple[list[Entry], DamagedSegment | None]:
        """Entries `[first, last)`, or those of them in front of one that is damaged."""
        if self._given is not None:
            return self._given[first:last], None
        data = b""
        for _ in range(_REREADS):
            # Where an entry that was written in part is written again, a reader may catch it half done.
            data = self._index_bytes(first, last)
            if len(data) == (last - first) * ENTRY_SIZE and fmt.entries_hold(data):
                return fmt.unpack_entries(data), None
        whole = fmt.valid_prefix(data)
        position = (first + len(whole)) * ENTRY_SIZE
        return whole, DamagedSegment(
            f"{self.index_path}: the index is damaged at byte {position}; run `jjq repair`, which rebuilds it from the data",
            path=str(self.index_path), position=position, lost=None,
        )  # fmt: skip

    def _index_bytes(self, first: int, last: int) -> bytes:
        try:
            return files.pread(self._index_fd, (last - first) * ENTRY_SIZE, first * ENTRY_SIZE)
        except OSError as error:
            raise files.translate(error, "read", self.index_path) from error

    @functools.cached_property
    def base(self) -> int:
        """The offset of the file's first record."""
        return self.entries(0, 1)[0].base

    def last(self) -> Entry:
        count = self.count()
        if not count:
            raise empty_index(self.index_path)
        return self.entries(count - 1, count)[0]

    def lowest_ts(self) -> int:
        """The lowest timestamp so far; NO_TS where there is none, or the index is damaged. Reads all of it."""
        lowest, count = [], self.count()
        for at in range(0, count, _ENTRIES_AT_ONCE):
            entries, damage = self._entries_before_damage(at, min(at + _ENTRIES_AT_ONCE, count))
            if damage is not None:
                return NO_TS
            if stamps := [entry.min_ts for entry in entries if entry.kind == BATCH]:
                lowest.append(min(stamps))
        return min(lowest, default=NO_TS)

    def end(self) -> tuple[int, bool]:
        """(visible end offset, whether the file is closed)"""
        last = self.last()
        return last.end, last.kind == CLOSE

    def _find(self, offset: int, count: int, key: Callable[[Entry], int]) -> int:
        """Number of the first entry after the head whose `key` is at least `offset`; keys never decrease.

        Where the search meets a damaged entry, the others are searched; whoever reads from there on needs the one before it.
        """

        def key_of(number: int) -> int:
            return key(self.entries(number, number + 1)[0])

        try:
            return bisect.bisect_left(range(count), offset, lo=1, key=key_of)
        except DamagedSegment:
            data = self._index_bytes(0, count)
            each = [data[at : at + ENTRY_SIZE] for at in range(0, len(data), ENTRY_SIZE)]
            whole = [number for number, entry in enumerate(each) if number and fmt.entries_hold(entry)]
            at = bisect.bisect_left(whole, offset, key=key_of)
            return whole[at] if at < len(whole) else count

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
            entries, damage = self._entries_before_damage(at - 1, min(at + _ENTRIES_AT_ONCE, count))
            if damage is not None and len(entries) < 2:
                raise damage
            before, found = entries[0], entries[1:]
            limit = found[-1].base if found[-1].kind == CLOSE else end
            run = [e for e in found if e.kind == BATCH and e.base < min(end, limit)]
            if not run:
                if damage is not None and found[-1].base < end:
                    raise damage
                return
            if expected is not None and run[0].base != expected:
                raise self._damaged(run[0], "the index skips offsets")
            yield from self._runs(before, run)
            expected = run[-1].end
            behind = next(i for i, entry in enumerate(reversed(found)) if entry is run[-1])
            self._left_at = (expected, at + len(found) - behind)
            if expected >= min(end, limit):
                return
            if damage is not None:
                raise damage
            at += len(found)

    def singles(self, start: int) -> tuple[list[tuple[int, bytes | None, bytes | None]], bool]:
        """(timestamp, key, value) of the records that follow what was read last, where that is up to `start` and each is a
        message of its own without headers, and whether these are all there were; nothing where `scan` is to look.

        For who follows the file record by record: through Arrow one takes ten times as long.
        """
        known, at = self._left_at
        count = self.count()
        if self._template is None or known != start or at >= count:
            return [], False
        entries, _ = self._entries_before_damage(at - 1, min(at + _SINGLES, count))
        before, found = entries[:1], entries[1:]
        if not found or found[-1].kind == CLOSE:  # it may take records back
            return [], False
        run: list[Entry] = []
        behind = 0
        for number, entry in enumerate(found, 1):
            if entry.kind == BATCH:
                if entry.rows != 1 or entry.layout != self._template.layout or entry.base != start + len(run):
                    break
                run.append(entry)
                behind = number
        if not run or run[-1].end_position - run[0].position > RUN_BYTES:
            return [], False
        origin = run[0].position
        with files.reading(self.path):
            data = files.pread(self._fd, run[-1].end_position - origin, origin)
        if len(data) != run[-1].end_position - origin or fmt.crc32c(data, before[0].file_crc) != run[-1].file_crc:
            return [], False
        self._left_at = (run[-1].end, at + behind)
        keys, values = self._template.rows_at(data, [each.position - origin for each in run])
        return list(zip([each.min_ts for each in run], keys, values, strict=True)), at + behind == count

    def _runs(self, before: Entry, entries: list[Entry]) -> Batches:
        first = 0
        while first < len(entries):
            start_at = entries[first].position
            last = first + 1
            while last < len(entries) and entries[last].end_position - start_at <= RUN_BYTES:
                last += 1
            run = entries[first:last]
            data = self._region(start_at, run[-1].end_position - start_at)
            if len(data) != run[-1].end_position - start_at or fmt.crc32c(data, before.file_crc) != run[-1].file_crc:
                whole = _whole(before.file_crc, run, data)
                yield from self._decode(run[:whole], data)
                raise self._damaged(run[whole], "the bytes do not match their checksum", _damage_end(run, whole, data))
            yield from self._decode(run, data)
            before, first = run[-1], last

    def _decode(self, run: list[Entry], data: pa.Buffer) -> Batches:
        if not run:
            return
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
                    integers([e.min_ts for e in singles], self.schema.field(0).type),
                    binaries(keys),
                    null_headers(len(singles)),
                    binaries(values),
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
                raise self._damaged(entry, f"{counted(batch.num_rows, 'row')} where the index says {entry.rows:,}")
            yield entry.base, batch
            at += 1

    def bytes_of(self, entry: Entry) -> pa.Buffer:
        """The bytes of one message, not verified."""
        return self._region(entry.position, entry.length)

    def batches_from(self, start: int) -> list[Entry]:
        """The entries of messages that hold offsets from `start` on, up to the end of the file as it is now."""
        count = self.count()
        at = self._find(start + 1, count, lambda entry: entry.end)
        found = self.entries(at, count) if at < count else []
        end = found[-1].base if found and found[-1].kind == CLOSE else None
        return [each for each in found if each.kind == BATCH and (end is None or each.base < end)]

    def _region(self, position: int, length: int) -> pa.Buffer:
        if length < _MMAP_FROM:
            with files.reading(self.path):
                return pa.py_buffer(files.pread(self._fd, length, position))
        data = self._map
        # To touch what is mapped of a file that was cut short since would end the process.
        if data is None or data.size < position + length or files.size(self._fd) < data.size:
            with files.reading(self.path):
                data = self._map = mapped(self.path)
        at = min(position, data.size)  # a file that was cut short gives what it has, as a read does
        return data.slice(at, min(length, data.size - at))

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

    def spans(self, start: int, end: int, since: int, until: int) -> list[tuple[int, int]]:
        """What of the offsets `[start, end)` may have a timestamp in `[since, until)` microseconds, by whole messages."""
        count = self.count()
        at = max(
            self._find(start + 1, count, lambda entry: entry.end),
            self._find(since, count, lambda e: 1 << 62 if e.kind == CLOSE else e.run_max_ts),
        )
        found: list[tuple[int, int]] = []
        while at < count:
            entries, damage = self._entries_before_damage(at, min(at + _ENTRIES_AT_ONCE, count))
            at += len(entries)
            if damage is not None:  # whoever reads from there on meets it
                return [(start, end)]
            for each in entries:
                if each.base >= end:
                    return found
                if each.kind == BATCH and each.max_ts >= since and each.min_ts < until:
                    add_span(found, max(start, each.base), min(end, each.end))
        return found


def add_span(spans: list[tuple[int, int]], first: int, last: int) -> None:
    """Adds `[first, last)` behind spans that lie before it, joined to the last one where they meet."""
    if spans and spans[-1][1] == first:
        spans[-1] = (spans[-1][0], last)
    elif first < last:
        spans.append((first, last))


def first_at_least(batch: pa.RecordBatch, ts: int) -> int | None:
    """The first row with a timestamp of at least `ts` microseconds."""
    for row, value in enumerate(batch.column(0).cast(pa.int64()).to_pylist()):
        if value >= ts:
            return row
    return None


def _damage_end(run: list[Entry], damaged: int, data: pa.Buffer) -> int:
    """The offset of the first whole message of a run behind a damaged one: each index entry has the checksum that the file
    had there."""
    origin = run[0].position
    for before, entry in itertools.pairwise(run[damaged:]):
        at = min(entry.position - origin, data.size)
        message = data.slice(at, min(entry.length, data.size - at))
        if fmt.crc32c(message, before.file_crc) == entry.file_crc:
            return entry.base
    return run[-1].end


def _whole(crc: int, run: list[Entry], data: pa.Buffer) -> int:
    """How many messages of a run come before the first damaged one; `crc` is that of the file up to the run."""
    origin = at = run[0].position
    for number, entry in enumerate(run[:-1]):
        if entry.end_position - origin > len(data):  # the file was cut short
            return number
        crc = fmt.crc32c(data.slice(at - origin, entry.end_position - at), crc)
        if crc != entry.file_crc:
            return number
        at = entry.end_position
    return len(run) - 1
