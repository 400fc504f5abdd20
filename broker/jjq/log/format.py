"""The bytes of a segment: messages that carry their own checksum, and the index entries beside them.

Arrow IPC has no checksum: a flipped bit or a hole of zeros may read as a clean, shorter stream. So every record batch
message carries a fixed-width *field* in its custom metadata (key `jjq`, base64, so that other Arrow readers accept the
file), and an active file has an index of fixed-width *entries*. `docs/format.md` draws both.

CRC32C (Castagnoli, RFC 3720) throughout.
"""

from __future__ import annotations

import functools
import struct
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import pyarrow as pa
from crc32c import crc32c as crc32c

from jjq.log import flat
from jjq.values import counted

FIELD_KEY = b"jjq"
NO_MARK = (b"", 0)  # of who may send a message again, its name and the message's number: see `jjq.log.resent`
FORMAT_VERSION = 1

# magic, version, partition, flags, topic, base, rows, synced_to, appended_at, producer, sequence; then the CRC, which is
# a base64 group of its own so that it can be written last
ACTIVE = struct.Struct("<3sBHH16sqIqq6sq")
ACTIVE_CRC = struct.Struct("<2xI")
ACTIVE_CHARS = (ACTIVE.size + ACTIVE_CRC.size) * 4 // 3
CRC_CHARS = 8
NO_CRC = b"A" * CRC_CHARS
_UNCOMPRESSED = pa.ipc.IpcWriteOptions()  # without options pyarrow asks the environment, four times a message
_PLACEHOLDER = b"~" * ACTIVE_CHARS
_LOOSE_BYTES = 16 << 10  # a smaller message has little that is not of its rows
# magic, version, crc, columns, rows, first row in the file, min and max timestamp; then a CRC for each column
_SEALED = struct.Struct("<3sBIIIqqq")
_SEALED_CRC_AT = 4
MAGIC_ACTIVE = b"jjq"
_MAGIC_SEALED = b"jjs"


class Encoded(NamedTuple):
    """A record batch message before it has its place: `head` is prefix and metadata, `body` the buffers after it.

    `field_at` is where in the head the field belongs, `layout` names the fixed layout that `RowsTemplate` wrote (0 for
    one that pyarrow chose). `producer` and `sequence` are of who may send it again, see `jjq.log.resent`.
    """

    head: bytearray
    body: tuple[Any, ...]
    rows: int
    min_ts: int
    max_ts: int
    field_at: int
    layout: int
    producer: bytes = b""
    sequence: int = 0

    def stamped(self, ts: int) -> Encoded:
        """The same rows, all at `ts` microseconds: the timestamps are the body's first part."""
        stamps = struct.pack("<q", ts) * self.rows
        # As `_replace` does, in a fifth of the time.
        return Encoded(
            self.head,
            (stamps, *self.body[1:]),
            self.rows,
            ts,
            ts,
            self.field_at,
            self.layout,
            self.producer,
            self.sequence,
        )


class ActiveField(NamedTuple):
    """What an active message says of itself. `synced_to` is the file position known to be on disk when it was written."""

    topic: bytes
    partition: int
    base: int
    rows: int
    synced_to: int
    appended_at: int
    producer: bytes = b""
    sequence: int = 0


def stream_head(schema: pa.Schema) -> bytes:
    """The schema message an IPC stream begins with."""
    return bytes(schema.serialize().to_pybytes())


def tight(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, such that its message has the bytes of its rows alone: of texts in lists Arrow writes those of the whole column that the
    batch was cut from, where it has none of them itself. So each batch of a large table would be as large as the table."""
    size = pa.ipc.get_record_batch_size(batch)
    if size < _LOOSE_BYTES or size <= 1.25 * batch.nbytes:
        return batch
    # To concatenate copies what is in use.
    columns = [pa.concat_arrays([column, column.slice(0, 0)]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def encode(
    batch: pa.RecordBatch, min_ts: int, max_ts: int, placeholder: bytes = _PLACEHOLDER,
    options: pa.ipc.IpcWriteOptions = _UNCOMPRESSED,
) -> Encoded:  # fmt: skip
    """A batch as an IPC message with room for its field."""
    schema, batch = batch.schema, tight(batch)
    start = schema.serialize().size
    # Sized beforehand: an output stream that grows would copy a large batch several times.
    room = pa.allocate_buffer(start + pa.ipc.get_record_batch_size(batch) + 4096 + 2 * len(placeholder))
    sink = pa.FixedSizeBufferWriter(room)
    writer = pa.ipc.new_stream(sink, schema, options=options)
    writer.write_batch(batch, custom_metadata={FIELD_KEY: placeholder})
    whole = room.slice(0, sink.tell())
    head_end = start + flat.PREFIX + flat.metadata_length(whole[start : start + flat.PREFIX])
    head = bytearray(whole[start:head_end])
    # The first column has no nulls and eight bytes a row, so its data are the first bytes of the body.
    stamps_end = head_end + (8 * batch.num_rows if options is _UNCOMPRESSED else 0)
    body = (whole[head_end:stamps_end], whole[stamps_end:])
    return Encoded(head, body, batch.num_rows, min_ts, max_ts, head.find(placeholder), 0)


def place(message: Encoded, field: ActiveField) -> bytes:
    """The message's head with the field written into it: it belongs to this offset of this partition."""
    head = message.head
    at = message.field_at
    end = at + ACTIVE_CHARS
    topic, partition, base, rows, synced_to, appended_at, _, _ = field
    packed = ACTIVE.pack(
        MAGIC_ACTIVE, FORMAT_VERSION, partition, 0, topic, base, rows, synced_to, appended_at, message.producer,
        message.sequence,
    )  # fmt: skip
    head[at:end] = b2a_base64(packed, newline=False) + NO_CRC
    crc = crc32c(bytes(head))
    for part in message.body:
        crc = crc32c(part, crc)
    head[end - CRC_CHARS : end] = b2a_base64(ACTIVE_CRC.pack(crc), newline=False)
    return bytes(head)


def _field_position(head: Any, magic: bytes) -> int:
    at = bytes(head).find(b2a_base64(magic, newline=False))
    if at < 0:
        raise flat.NotAMessage("the message carries no field")
    return at


def check_active(head: bytes, body: pa.Buffer) -> ActiveField:
    """The field of a message whose checksum holds; raises flat.NotAMessage for any other bytes."""
    at = _field_position(head, MAGIC_ACTIVE)
    end = at + ACTIVE_CHARS
    try:
        raw = a2b_base64(head[at:end], strict_mode=True)
        _, version, partition, _, topic, base, rows, synced_to, appended_at, producer, sequence = ACTIVE.unpack_from(
            raw
        )
        (crc,) = ACTIVE_CRC.unpack_from(raw, ACTIVE.size)
    except (ValueError, struct.error) as error:
        raise flat.NotAMessage("the message's field is damaged") from error
    # The CRC's own characters are not under it, so they must be the ones that this value is written as.
    if head[end - CRC_CHARS : end] != b2a_base64(ACTIVE_CRC.pack(crc), newline=False):
        raise flat.NotAMessage("the message's field is damaged")
    if crc32c(body, crc32c(head[: end - CRC_CHARS] + NO_CRC + head[end:])) != crc:
        raise flat.NotAMessage("the message's checksum does not match")
    if version != FORMAT_VERSION:
        raise flat.NotAMessage(f"a message of format version {version}")
    return ActiveField(topic, partition, base, rows, synced_to, appended_at, producer.rstrip(b"\0"), sequence)


# --- index entries -------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """One entry of an index. What the numbers mean by `kind`:

    OPEN   the head of the file: base = the file's base offset, length = bytes of the schema message
    BATCH  a message: offsets `[base, base + rows)`, bytes `[position, position + length)`
    CLOSE  the file's end: base = its end offset, position = its end in bytes, rows = the reason (CLOSE_REASONS)
    SYNC   what comes before it is on disk: base = the end offset then, position = the end in bytes

    `file_crc` is the CRC of the file from byte 0 to the end of this entry's bytes, so that any run of messages is
    verified by one pass. Timestamps and `appended_at` in microseconds; `run_max_ts` over the file so far.
    """

    kind: int
    flags: int
    reserved: int
    layout: int
    base: int
    rows: int
    position: int
    length: int
    min_ts: int
    max_ts: int
    run_max_ts: int
    appended_at: int
    file_crc: int

    @property
    def end(self) -> int:
        """The offset after this entry's records."""
        return self.base + self.rows if self.kind == BATCH else self.base

    @property
    def end_position(self) -> int:
        return self.position + self.length


OPEN, BATCH, CLOSE, SYNC = 1, 2, 3, 4
SYNCED = 1  # flag: everything up to this entry was on disk when the entry was written
CLOSE_REASONS = ("rolled", "linked", "altered", "emptied", "deleted", "failed", "torn", "recovered")

ENTRY = struct.Struct("<BBHIqqqqqqqqI")  # without its own CRC
ENTRY_SIZE = ENTRY.size + 4
_ENTRY_WITH_CRC = struct.Struct("<BBHIqqqqqqqqI4x")
ENTRY_MIN_TS = struct.Struct("<40xq32x")  # the one number of an entry

# The state of a CRC32C after any bytes followed by their own CRC. Entries begin from it, so that one pass over a run of
# entries ends in it again, or one of them is damaged.
RESIDUE = crc32c(struct.pack("<I", crc32c(b"jjq")), crc32c(b"jjq"))
NO_TS = -(1 << 63)


def pack_entry(entry: tuple[int, ...]) -> bytes:
    return whole_entry(ENTRY.pack(*entry))


def whole_entry(packed: bytes) -> bytes:
    """An entry that `ENTRY` has packed, with its CRC."""
    return packed + crc32c(packed, RESIDUE).to_bytes(4, "little")


def entries_hold(data: bytes) -> bool:
    """Whether every entry in a run of whole entries is as it was written."""
    return len(data) % ENTRY_SIZE == 0 and (not data or crc32c(data, RESIDUE) == RESIDUE)


# What a NamedTuple's own constructor does, without a Python frame: an index may have a hundred thousand entries.
make_entry: Callable[[tuple[int, ...]], Entry] = functools.partial(tuple.__new__, Entry)


def iter_entries(data: bytes) -> Iterator[Entry]:
    return map(make_entry, _ENTRY_WITH_CRC.iter_unpack(data))


def unpack_entries(data: bytes) -> list[Entry]:
    return list(iter_entries(data))


def valid_prefix(data: bytes) -> list[Entry]:
    """The entries before the first damaged or partial one."""
    whole = data[: len(data) - len(data) % ENTRY_SIZE]
    if entries_hold(whole):
        return unpack_entries(whole)
    good = 0
    while good < len(whole) and entries_hold(whole[good : good + ENTRY_SIZE]):
        good += ENTRY_SIZE
    return unpack_entries(whole[:good])


# --- sealed batches ------------------------------------------------------------------------------------------------


class SealedField(NamedTuple):
    """What a sealed batch says of itself: rows, its first row's place in the file, timestamps, a CRC for each column."""

    rows: int
    first_row: int
    min_ts: int
    max_ts: int
    column_crcs: tuple[int, ...]


def _sealed_chars(columns: int) -> int:
    return (_SEALED.size + 4 * columns + 2) // 3 * 4


def sealed_placeholder(columns: int) -> bytes:
    return b"~" * _sealed_chars(columns)


def _pack_sealed(crc: int, field: SealedField) -> bytes:
    crcs = field.column_crcs
    head = _SEALED.pack(
        _MAGIC_SEALED, FORMAT_VERSION, crc, len(crcs), field.rows, field.first_row, field.min_ts, field.max_ts
    )
    return b2a_base64(head + struct.pack(f"<{len(crcs)}I", *crcs), newline=False)


@functools.lru_cache(maxsize=1024)
def buffers_of(field_type: pa.DataType) -> int:
    """How many buffers a column of this type has in a message, children included."""
    if pa.types.is_null(field_type):
        return 0
    if pa.types.is_map(field_type):
        return 3 + buffers_of(field_type.key_type) + buffers_of(field_type.item_type)
    if pa.types.is_list(field_type):
        return 2 + buffers_of(field_type.value_type)
    if pa.types.is_struct(field_type):
        return 1 + sum(buffers_of(field_type.field(i).type) for i in range(field_type.num_fields))
    if pa.types.is_binary(field_type) or pa.types.is_string(field_type):
        return 3
    return 2


def first_buffers(schema: pa.Schema) -> tuple[int, ...]:
    """Which buffer of a message is the first of each column, and how many there are."""
    return tuple(accumulate((buffers_of(field.type) for field in schema), initial=0))


def column_ranges(head: Any, body_length: int, places: Sequence[int]) -> list[tuple[int, int]]:
    """The bytes `[start, end)` of the body that hold each column; together they are the whole body. `places`: the schema's
    `first_buffers`."""
    starts = (*flat.buffer_starts(head, flat.batch_layout(head)), body_length)
    if places[-1] >= len(starts):
        raise flat.NotAMessage("fewer buffers than the schema has")
    return [(starts[first], starts[following]) for first, following in pairwise(places)]


def place_sealed(message: Encoded, first_row: int, places: Sequence[int]) -> None:
    """Writes the field of a sealed batch: a CRC for each column's bytes, and one over the metadata itself."""
    body = message.body[-1]
    crcs = tuple(crc32c(body[start:end]) for start, end in column_ranges(message.head, len(body), places))
    field = SealedField(message.rows, first_row, message.min_ts, message.max_ts, crcs)
    at = message.field_at
    end = at + _sealed_chars(len(crcs))
    message.head[at:end] = _pack_sealed(0, field)
    message.head[at:end] = _pack_sealed(crc32c(bytes(message.head)), field)


def check_sealed(head: bytes, columns: int) -> SealedField:
    """The field of a sealed batch whose metadata is as written; raises flat.NotAMessage. Columns are checked apart."""
    at = _field_position(head, _MAGIC_SEALED)
    end = at + _sealed_chars(columns)
    try:
        raw = a2b_base64(head[at:end], strict_mode=True)
        _magic, version, crc, count, rows, first_row, min_ts, max_ts = _SEALED.unpack_from(raw)
        crcs = struct.unpack_from(f"<{columns}I", raw, _SEALED.size)
    except (ValueError, struct.error) as error:
        raise flat.NotAMessage("the batch's field is damaged") from error
    if count != columns or version != FORMAT_VERSION:
        raise flat.NotAMessage(f"a batch of {counted(count, 'column')}, format version {version}")
    # Its own checksum was zero when it was taken.
    blank = b2a_base64(raw[:_SEALED_CRC_AT] + bytes(4) + raw[_SEALED_CRC_AT + 4 :], newline=False)
    if crc32c(head[end:], crc32c(blank, crc32c(head[:at]))) != crc:
        raise flat.NotAMessage("the batch's metadata does not match its checksum")
    return SealedField(rows, first_row, min_ts, max_ts, crcs)
