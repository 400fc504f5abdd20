"""What is whole in an active file after a reboot, by its messages alone: the index may lag behind, the data have holes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from jjq import files
from jjq.clock import now_us
from jjq.errors import DamagedSegment
from jjq.log import flat
from jjq.log import format as fmt
from jjq.log.active import ActiveFile
from jjq.log.contracts import PartitionState
from jjq.log.format import BATCH, NO_TS, OPEN, ActiveField, Entry
from jjq.log.mapping import mapped
from jjq.log.stream import StreamReader, missing_active, stream_paths


@dataclass(frozen=True, slots=True)
class Survey:
    """What is whole in an active file after a reboot. `clean`: index and data agree to the last message, and nothing is behind it."""

    entries: list[fmt.Entry]
    end: int
    index_end: int
    clean: bool
    closed: bool


def survey(directory: Path, row: PartitionState, schema: pa.Schema, topic: bytes, partition: int) -> Survey:
    """Reads a whole active file by its messages; raises DamagedSegment when durable records are not whole."""
    assert row.active is not None
    path, index_path = stream_paths(directory, row.active)
    with files.translated("recover", path):
        index_bytes = files.read(index_path) if index_path.exists() else b""
        if not path.exists():
            raise missing_active(path, row.end_offset)
        entries, why = scan_messages(path, schema, topic, partition)
    index = fmt.valid_prefix(index_bytes)
    head = fmt.stream_head(schema)
    if not entries:
        crc = fmt.crc32c(head)
        floor = row.prefix_max_ts
        entries = [fmt.Entry(fmt.OPEN, 0, 0, 0, row.end_offset, 0, 0, len(head), fmt.NO_TS, floor, fmt.NO_TS, 0, crc)]
    end, position = entries[-1].end, entries[-1].end_position
    closing = next((entry for entry in index if entry.kind == fmt.CLOSE), None)
    promised = max((entry.end for entry in index if entry.flags & fmt.SYNCED), default=row.end_offset)
    if closing is not None:
        promised = closing.base
        if end > closing.base:
            entries = [entry for entry in entries if entry.end <= closing.base]
            end, position = entries[-1].end, entries[-1].end_position
    later = promised_after(path, position) if why else None
    if entries[0].base != row.end_offset or end < promised or (later is not None and closing is None):
        lost = (end, max(promised, later.base if later else end))
        raise DamagedSegment(
            f"{path}: damaged at byte {position} ({why or 'records are missing'}): offsets {lost[0]} to {lost[1] - 1} were "
            f"on disk and cannot be read. `jjq repair` keeps what is whole",
            path=str(path), position=position, lost=lost,
        )  # fmt: skip
    index_end = max((entry.end for entry in index if entry.kind == fmt.BATCH), default=row.end_offset)
    if closing is not None:
        index_end = min(index_end, closing.base)
    clean = (
        len(index) * fmt.ENTRY_SIZE == len(index_bytes)
        and bool(index)
        and index[-1].end == end
        and (not why or closing is not None)
        and [(e.base, e.position, e.file_crc) for e in index if e.kind == fmt.BATCH]
        == [(e.base, e.position, e.file_crc) for e in entries if e.kind == fmt.BATCH]
    )
    return Survey(entries, end, index_end, clean, closing is not None)


def copy_whole(
    directory: Path, row: PartitionState, schema: pa.Schema, topic: bytes, partition: int, found: Survey
) -> ActiveFile:
    """A new file with what is whole in an active one, on disk; the caller holds the partition's lock."""
    assert row.active is not None
    copy = ActiveFile.create(directory, uuid.uuid4().hex, schema, row.end_offset, row.prefix_max_ts, now_us())
    try:
        with StreamReader(directory, row.active, schema, entries=found.entries) as reader:
            stamps = {entry.base: entry for entry in found.entries if entry.kind == fmt.BATCH}
            marks = {field.base: field for field in fields_of(reader, found.entries) if field.producer}
            for base, batch in reader.scan(row.end_offset, found.end):
                entry = stamps[base]
                message = fmt.encode(batch, entry.min_ts, entry.max_ts)
                mark = marks.get(base)
                if mark is not None:
                    message = message._replace(producer=mark.producer, sequence=mark.sequence)
                copy.append_locked(topic, partition, [message], entry.appended_at, sync=False)
        copy.sync_locked()
        if found.closed:
            copy.close_locked("recovered")
    except BaseException:
        copy.close_descriptors()
        raise
    return copy


def scan_messages(path: Path, schema: pa.Schema, topic: bytes, partition: int) -> tuple[list[Entry], str]:
    """The entries that a stream file's own messages give, up to the first that is not whole, and why it ends there: "" at the end
    of the file, or where zeros follow up to there, which were laid out ahead.

    Needs no index: this is how one is made again. The base is that of the first message.
    """
    head = fmt.stream_head(schema)
    data = mapped(path)
    if bytes(data[: len(head)]) != head:
        return [], "the head is not the schema's"
    crc = fmt.crc32c(head)
    entries: list[Entry] = []
    position, run_max = len(head), NO_TS
    while position < len(data):
        try:
            message, field = message_at(data, position)
        except flat.NotAMessage as error:
            rest = data.slice(position).to_pybytes()
            return entries, "" if rest.count(0) == len(rest) else str(error)
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
        crc = fmt.crc32c(message, crc)
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


def fields_of(reader: StreamReader, entries: Sequence[Entry]) -> Iterator[ActiveField]:
    """The fields of messages that were verified."""
    for entry in entries:
        if entry.kind == BATCH:
            yield message_at(reader.bytes_of(entry), 0)[1]


def lacks_entries(path: Path, position: int) -> bool:
    """Whether the index of an active file, whose last entry ends at `position`, has lost its end. One group of messages behind
    that is what a writer leaves that died. A second group, or one that knows the first to be on disk, is written only when the
    first has its entries."""
    data = mapped(path)
    groups: set[int] = set()
    at = position
    while at < len(data):
        try:
            message, field = message_at(data, at)
        except flat.NotAMessage:
            break
        groups.add(field.appended_at)
        if len(groups) > 1 or field.synced_to > position:
            return True
        at += len(message)
    return False


def cut_index(path: Path, end: int) -> DamagedSegment:
    """The error for an index that has lost its end, behind offset `end`."""
    position = path.stat().st_size
    return DamagedSegment(
        f"{path}: damaged at byte {position}: from offset {end} on there are records that it does not know. `jjq repair` keeps "
        f"what is whole",
        path=str(path), position=position, lost=(end, end),
    )  # fmt: skip


def promised_after(path: Path, position: int) -> ActiveField | None:
    """A whole message behind a damaged place that was written when the place was known to be on disk.

    Tells damage (records that were acknowledged as durable are gone) from what a power cut may leave of unsynced bytes.
    """
    data = mapped(path)
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
