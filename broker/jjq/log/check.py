"""Whether a segment's files hold what its row says: everything is read, nothing is returned.

Raises DamagedSegment that names the first place that is wrong, FileNotFoundError when a file is gone. Memory stays
small whatever the size: files are mapped, and looked at in pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from jjq import compute as pc
from jjq import files
from jjq.errors import DamagedSegment
from jjq.log import flat
from jjq.log import format as fmt
from jjq.log.bounds import hold
from jjq.log.contracts import TopicFacts
from jjq.log.format import BATCH, CLOSE, NO_TS, OPEN, Entry
from jjq.log.mapping import mapped
from jjq.log.recovery import cut_index, lacks_entries, message_at, survey
from jjq.log.sealed import SealedReader
from jjq.log.stream import StreamReader, stream_paths
from jjq.log.template import RowsTemplate
from jjq.model import Segment
from jjq.schema import SYSTEM_COLUMNS
from jjq.values import counted

_PIECE = 8 << 20
_ENTRIES = 4096

Tick = Callable[[int], None]  # told how many more bytes were checked


def _ignore(_: int) -> None:
    pass


def check_sealed(directory: Path, segment: Segment, schema: pa.Schema, tick: Tick = _ignore) -> None:
    """A sealed file: length, CRC of the whole, every batch's CRCs and decoding, rows and timestamps as the row says."""
    reader = SealedReader(directory, segment, schema)

    def wrong(why: str) -> DamagedSegment:
        return _damaged(reader.path, 0, (segment.base, segment.end), why)

    if _crc(reader.path, segment.length, tick) != segment.crc:
        # A batch that is damaged says where; the whole-file checksum only that something is.
        found = [error for number in range(len(reader)) if (error := _wrong_batch(reader, number)) is not None]
        if found:
            more = f"; {len(found)} of its {len(reader)} batches are damaged" if len(found) > 1 else ""
            raise DamagedSegment(
                f"{found[0].message}{more}",
                path=str(reader.path), position=found[0].position, lost=(found[0].details["lost"][0], found[-1].details["lost"][1]),
            )  # fmt: skip
        raise wrong("the file does not match the checksum in the catalog")
    at, low, high = segment.base, 1 << 62, NO_TS
    said = {name: reader.bounds(name) for name in schema.names[SYSTEM_COLUMNS:]}
    for number, (base, batch) in enumerate(reader.scan(segment.base, segment.end)):
        bounds = _bounds(batch.column(0).cast(pa.int64()))
        field = reader.field(number)
        if base != at or (field.min_ts, field.max_ts) != bounds:
            raise wrong(f"batch {number} says of itself what its rows do not")
        for name, known in said.items():
            one = known[number]
            if one is not None and not hold(one, batch.column(batch.schema.names.index(name))):
                raise wrong(f"the bounds of column {name!r} of batch {number} are not those of its rows")
        at += batch.num_rows
        low, high = min(low, bounds[0]), max(high, bounds[1])
    _check_row(segment, at, low, high, wrong)


def _wrong_batch(reader: SealedReader, number: int) -> DamagedSegment | None:
    try:
        reader.batch(number, None)
    except DamagedSegment as error:
        return error
    return None


def check_rolled(
    directory: Path, segment: Segment, schema: pa.Schema, topic: bytes, partition: int,
    template: RowsTemplate | None = None, tick: Tick = _ignore,
) -> None:  # fmt: skip
    """A closed stream file and its index. Bytes behind its end belong to nobody and are not looked at."""
    with StreamReader(directory, segment.uuid, schema, template) as reader:

        def wrong(why: str) -> DamagedSegment:
            return _damaged(reader.path, 0, (segment.base, segment.end), why)

        last = reader.last()
        if last.kind != CLOSE:
            raise wrong("the index does not end the file, which the catalog counts as closed")
        if (last.end, last.position, last.file_crc) != (segment.end, segment.length, segment.crc):
            raise wrong("the index ends elsewhere than the catalog says")
        entries = check_stream(reader, reader.count(), segment.base, schema, topic, partition, tick)
        if _crc(reader.path, segment.length, _ignore) != segment.crc:
            raise wrong("the file does not match the checksum in the catalog")
        _check_row(segment, entries.end, entries.min_ts, entries.max_ts, wrong)


def check_segment(
    directory: Path, topic_id: str, partition: int, segment: Segment, facts: TopicFacts, tick: Tick = _ignore
) -> None:
    """A closed segment of either kind."""
    schema = facts.physical(segment.schema_version)
    if segment.kind == "arrow":
        check_sealed(directory, segment, schema, tick)
    else:
        template = facts.template(segment.schema_version)
        check_rolled(directory, segment, schema, bytes.fromhex(topic_id), partition, template, tick)


@dataclass(frozen=True, slots=True)
class ActiveEnd:
    """How far an active file reaches: offset, bytes, whether it is closed, and whether it waits for its recovery."""

    offset: int
    position: int
    closed: bool
    unrecovered: bool


def check_active(
    directory: Path, topic_id: str, row: Any, facts: TopicFacts, boot_id: str, tick: Tick = _ignore
) -> ActiveEnd:
    """The file that a partition's row names as the one being appended to."""
    schema, topic = facts.physical(row.active_schema), bytes.fromhex(topic_id)
    entries = None
    if row.boot_id != boot_id:
        # The index may lag behind after a reboot; who comes first to write sets that right.
        found = survey(directory, row, schema, topic, row.partition)
        entries = None if found.clean else found.entries
    with StreamReader(directory, row.active, schema, facts.template(row.active_schema), entries) as reader:
        count = reader.count()
        if not count:
            raise _damaged(reader.index_path, 0, (row.end_offset, row.end_offset), "the index is empty")
        checked = check_stream(reader, count, row.end_offset, schema, topic, row.partition, tick)
        if entries is None and checked.head.max_ts < row.prefix_max_ts:
            raise _damaged(
                reader.index_path, 0, (row.end_offset, row.end_offset), "it does not know of earlier timestamps"
            )
        last = reader.entries(count - 1, count)[0]
        lacks = last.kind != CLOSE and entries is None and lacks_entries(reader.path, checked.position)
        if lacks and reader.count() == count:  # otherwise they were appended since we looked
            raise cut_index(reader.index_path, checked.end)
    return ActiveEnd(checked.end, checked.position, last.kind == CLOSE, entries is not None)


class Checked:
    """What a stream file's entries sum up to."""

    def __init__(self, head: Entry) -> None:
        self.head = head
        self.end = head.base
        self.position = head.length
        self.min_ts, self.max_ts = 1 << 62, NO_TS
        self.appended_at = NO_TS


def check_stream(
    reader: StreamReader, count: int, base: int, schema: pa.Schema, topic: bytes, partition: int, tick: Tick = _ignore
) -> Checked:
    """The first `count` entries of a stream file against its messages: place, rows, timestamps, checksums, decoding."""
    head = reader.entries(0, 1)[0]
    data = mapped(reader.path)
    if head.kind != OPEN or head.base != base:
        raise _damaged(reader.index_path, 0, (base, base), f"the index begins at offset {head.base}, not {base}")
    if bytes(data[: head.length]) != fmt.stream_head(schema) or fmt.crc32c(data[: head.length]) != head.file_crc:
        raise _damaged(reader.path, 0, (base, base), "the head is not that of the topic's schema")
    sums = Checked(head)
    last = reader.entries(count - 1, count)[0]
    # A failed sync ends a file before its last entries: what they name was taken back, and may not be on disk.
    visible = last.base if last.kind == CLOSE else last.end
    for first in range(1, count, _ENTRIES):
        before = sums.position
        for entry in reader.entries(first, min(first + _ENTRIES, count)):
            if entry.kind == BATCH and entry.end <= visible:
                _check_entry(reader, entry, data, sums, topic, partition)
            elif entry.kind == OPEN or (entry.kind == CLOSE and entry != last):
                raise _damaged(reader.index_path, 0, (base, sums.end), "an entry follows the one that ends the file")
        tick(sums.position - before)
    if sums.end != visible:
        raise _damaged(reader.index_path, 0, (sums.end, visible), "the index ends elsewhere than its last entry says")
    at = base
    for first_offset, batch in reader.scan(base, visible):
        if first_offset != at:
            raise _damaged(reader.path, 0, (at, first_offset), "the index skips offsets")
        at += batch.num_rows
    if at != visible:
        raise _damaged(reader.path, 0, (at, visible), "rows are missing")
    return sums


def _check_entry(
    reader: StreamReader, entry: Entry, data: pa.Buffer, sums: Checked, topic: bytes, partition: int
) -> None:
    try:
        message, field = message_at(data, entry.position)
    except flat.NotAMessage as error:
        raise _damaged(reader.path, entry.position, (entry.base, entry.end), str(error)) from error
    head_length = flat.PREFIX + flat.metadata_length(bytes(message[: flat.PREFIX]))
    # The timestamps are the first bytes of the body, eight a row.
    if entry.rows == 1:
        low = high = struct.unpack_from("<q", message, head_length)[0]
    else:
        stamps = message.slice(head_length, min(8 * entry.rows, len(message) - head_length))
        low, high = _bounds(pa.Array.from_buffers(pa.int64(), len(stamps) // 8, [None, stamps]))
    sums.max_ts = max(sums.max_ts, high)
    sums.min_ts = min(sums.min_ts, low)
    said = (field.topic, field.partition, field.base, field.rows, field.appended_at)
    if said != (topic, partition, entry.base, entry.rows, entry.appended_at):
        raise _damaged(reader.path, entry.position, (entry.base, entry.end), "a message of another place")
    found = (sums.end, sums.position, len(message), low, high, sums.max_ts)
    if found != (entry.base, entry.position, entry.length, entry.min_ts, entry.max_ts, entry.run_max_ts):
        raise _damaged(
            reader.index_path, entry.position, (entry.base, entry.end), "the index and the messages do not agree"
        )
    if entry.appended_at < sums.appended_at:
        raise _damaged(reader.index_path, entry.position, (entry.base, entry.end), "an entry was appended before")
    sums.end, sums.position, sums.appended_at = entry.end, entry.end_position, entry.appended_at


def holds_nothing(directory: Path, uuid: str) -> bool:
    """Whether a stream file that nobody names has no record: it was made to be appended to, and never was."""
    path, index_path = stream_paths(directory, uuid)
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return True
    try:
        entries = fmt.valid_prefix(files.read(index_path)) if index_path.stat().st_size <= 2 * fmt.ENTRY_SIZE else None
    except FileNotFoundError:
        entries = []
    if entries is None or any(entry.kind == BATCH for entry in entries):
        return False
    if not entries:  # its maker died at once: at most the schema message is there
        prefix = bytes(mapped(path)[: flat.PREFIX])
        return len(prefix) < flat.PREFIX or size <= flat.PREFIX + struct.unpack_from("<i", prefix, 4)[0]
    return entries[-1].kind == CLOSE or size == entries[0].length


def _check_row(segment: Segment, end: int, low: int, high: int, wrong: Callable[[str], DamagedSegment]) -> None:
    if end != segment.end:
        raise wrong(f"{counted(end - segment.base, 'row')} where the catalog says {segment.rows:,}")
    # Records that were taken back may have lowered the row's minimum, which nothing relies on.
    if high != segment.max_ts or low < segment.min_ts:
        raise wrong("the timestamps are not those the catalog says")


def _bounds(stamps: pa.Array) -> tuple[int, int]:
    found = pc.min_max(stamps)
    return found["min"].as_py(), found["max"].as_py()


def _crc(path: Path, length: int, tick: Tick) -> int:
    """CRC32C of the first `length` bytes."""
    data = mapped(path)
    crc = int(fmt.crc32c(b""))
    for position in range(0, min(length, len(data)), _PIECE):
        piece = data.slice(position, min(_PIECE, length - position))
        crc = fmt.crc32c(piece, crc)
        tick(len(piece))
    return crc


def _damaged(path: Path, position: int, lost: tuple[int, int], why: str) -> DamagedSegment:
    return DamagedSegment(
        f"{path}: damaged at byte {position} (offsets {lost[0]} to {max(lost[0], lost[1] - 1)}): {why}. `jjq repair` keeps what "
        f"is whole",
        path=str(path), position=position, lost=lost,
    )  # fmt: skip
