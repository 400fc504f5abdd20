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

FIELD_KEY = b"jjq"
NO_MARK = (b"", 0)  # of who may send a message again, its name and the message's number: see `jjq.log.resent`
FORMAT_VERSION = 1

# magic, version, partition, flags, topic, base, rows, synced_to, appended_at, producer, sequence; then the CRC, which is
# a base64 group of its own so that it can be written last
_ACTIVE = struct.Struct("<3sBHH16sqIqq6sq")
_ACTIVE_CRC = struct.Struct("<2xI")
_ACTIVE_CHARS = (_ACTIVE.size + _ACTIVE_CRC.size) * 4 // 3
_CRC_CHARS = 8
_NO_CRC = b"A" * _CRC_CHARS
_CRC_IN_PLACE = struct.Struct(f"{_CRC_CHARS}s")
_JOIN_BYTES = 16 << 10  # a part of a body that is larger is not copied to join it with others
_PADDING = [bytes(length) for length in range(8)]
_UNCOMPRESSED = pa.ipc.IpcWriteOptions()  # without options pyarrow asks the environment, four times a message
_PLACEHOLDER = b"~" * _ACTIVE_CHARS
# magic, version, crc, columns, rows, first row in the file, min and max timestamp; then a CRC for each column
_SEALED = struct.Struct("<3sBIIIqqq")
_SEALED_CRC_AT = 4
_MAGIC_ACTIVE = b"jjq"
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
        return self._replace(body=(stamps, *self.body[1:]), min_ts=ts, max_ts=ts)


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


def encode(
    batch: pa.RecordBatch, min_ts: int, max_ts: int, placeholder: bytes = _PLACEHOLDER,
    options: pa.ipc.IpcWriteOptions = _UNCOMPRESSED,
) -> Encoded:  # fmt: skip
    """A batch as an IPC message with room for its field."""
    schema = batch.schema
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
    end = at + _ACTIVE_CHARS
    topic, partition, base, rows, synced_to, appended_at, _, _ = field
    packed = _ACTIVE.pack(
        _MAGIC_ACTIVE, FORMAT_VERSION, partition, 0, topic, base, rows, synced_to, appended_at, message.producer,
        message.sequence,
    )  # fmt: skip
    head[at:end] = b2a_base64(packed, newline=False) + _NO_CRC
    crc = crc32c(bytes(head))
    for part in message.body:
        crc = crc32c(part, crc)
    head[end - _CRC_CHARS : end] = b2a_base64(_ACTIVE_CRC.pack(crc), newline=False)
    return bytes(head)


def _field_position(head: Any, magic: bytes) -> int:
    at = bytes(head).find(b2a_base64(magic, newline=False))
    if at < 0:
        raise flat.NotAMessage("the message carries no field")
    return at


def check_active(head: bytes, body: pa.Buffer) -> ActiveField:
    """The field of a message whose checksum holds; raises flat.NotAMessage for any other bytes."""
    at = _field_position(head, _MAGIC_ACTIVE)
    end = at + _ACTIVE_CHARS
    try:
        raw = a2b_base64(head[at:end], strict_mode=True)
        _, version, partition, _, topic, base, rows, synced_to, appended_at, producer, sequence = _ACTIVE.unpack_from(
            raw
        )
        (crc,) = _ACTIVE_CRC.unpack_from(raw, _ACTIVE.size)
    except (ValueError, struct.error) as error:
        raise flat.NotAMessage("the message's field is damaged") from error
    # The CRC's own characters are not under it, so they must be the ones that this value is written as.
    if head[end - _CRC_CHARS : end] != b2a_base64(_ACTIVE_CRC.pack(crc), newline=False):
        raise flat.NotAMessage("the message's field is damaged")
    if crc32c(body, crc32c(head[: end - _CRC_CHARS] + _NO_CRC + head[end:])) != crc:
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

# The state of a CRC32C after any bytes followed by their own CRC. Entries begin from it, so that one pass over a run of
# entries ends in it again, or one of them is damaged.
RESIDUE = crc32c(struct.pack("<I", crc32c(b"jjq")), crc32c(b"jjq"))
NO_TS = -(1 << 63)
_END = struct.Struct("<i")


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
        raise flat.NotAMessage(f"a batch of {count} columns, format version {version}")
    # Its own checksum was zero when it was taken.
    blank = b2a_base64(raw[:_SEALED_CRC_AT] + bytes(4) + raw[_SEALED_CRC_AT + 4 :], newline=False)
    if crc32c(head[end:], crc32c(blank, crc32c(head[:at]))) != crc:
        raise flat.NotAMessage("the batch's metadata does not match its checksum")
    return SealedField(rows, first_row, min_ts, max_ts, crcs)


# --- rows of a topic without a schema --------------------------------------------------------------------------------


_Column = tuple[int, Any, Any, Any]  # of byte strings: how many are null, and the buffers


def _nothing(rows: int) -> _Column:
    """A column in which every row is null."""
    return rows, bytes((rows + 7) // 8), bytes(4 * (rows + 1)), b""


def listed(items: Sequence[bytes | None]) -> _Column:
    """The column of these. Without pa.array, which imports pandas where it is installed: the first push would wait half a second for that."""
    nulls = items.count(None)
    if nulls == len(items):
        return _nothing(nulls)
    bits = bytearray()
    present: Sequence[bytes] = items  # type: ignore[assignment]
    if nulls:
        bits = bytearray((len(items) + 7) // 8)
        for i, item in enumerate(items):
            if item is not None:
                bits[i >> 3] |= 1 << (i & 7)
        present = [item or b"" for item in items]
    return nulls, bits, struct.pack(f"<{len(items) + 1}i", 0, *accumulate(map(len, present))), b"".join(present)


def _laid_out(column: pa.Array) -> _Column | None:
    """The buffers of a column of byte strings as a message has them; None where it is a part of another."""
    rows, nulls = len(column), column.null_count
    bits, ends, data = column.buffers()
    if column.offset or ends is None or nulls == rows:
        return _nothing(rows) if nulls == rows else None
    first, last = _END.unpack_from(ends)[0], _END.unpack_from(ends, 4 * rows)[0]
    if first:
        return None
    return nulls, bits[: (rows + 7) // 8] if nulls else b"", ends[: 4 * (rows + 1)], data[:last] if last else b""


class RowsTemplate:
    """Encodes rows of (timestamp, key, value) without pyarrow, whose fixed cost is ten times that of a row.

    pyarrow writes one message of the schema; the numbers that vary (lengths, null counts, buffer positions) are
    patched into a copy of its metadata for each new one. Only for the physical schema of a topic without a schema, and
    rows without headers. `layout` identifies the untouched rest, so that `rows_at` reads back only what has this form.
    """

    # Buffers: timestamp 0-1, key 2-4, headers 5-13 (list 5-6, struct 7, name 8-10, value 11-13), value 14-16
    # Nodes: timestamp, key, headers list, struct, name, value, then the value column
    _KEY, _VALUE, _COUNT = 2, 14, 17
    _NODES = 7

    def __init__(self, schema: pa.Schema) -> None:
        # Without pa.array, as in `listed`.
        byte = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"v")])
        stamp = pa.Array.from_buffers(schema.field(0).type, 1, [None, pa.py_buffer(bytes(8))])
        headers = pa.nulls(1, schema.field(2).type)
        message = encode(pa.RecordBatch.from_arrays([stamp, byte, headers, byte], schema=schema), 0, 0)
        head, self._field_at = message.head, message.field_at
        self._layout = layout = flat.batch_layout(head)
        if (layout.buffer_count, layout.node_count) != (self._COUNT, self._NODES):
            raise flat.NotAMessage("pyarrow lays out the columns in an unknown way")
        self._nodes = struct.Struct(f"<{2 * self._NODES}q")
        self._buffers = struct.Struct(f"<{2 * self._COUNT}q")
        varying = (
            (layout.body_length, 8), (layout.rows, 8), (layout.nodes, self._nodes.size), (layout.buffers, self._buffers.size),
        )  # fmt: skip
        for position, length in varying:
            head[position : position + length] = bytes(length)
        self._head = bytes(head)
        self.head_length = len(head)
        self.layout = crc32c(self._head) or 1
        # One unpack for all that a single row needs: null counts of key and value, and where their bytes are.
        key_node, value_node = layout.nodes + 16 + 8, layout.nodes + 16 * 6 + 8
        key_data, value_data = layout.buffers + 16 * (self._KEY + 2), layout.buffers + 16 * (self._VALUE + 2)
        pads = (value_data - key_data - 16, key_node - value_data - 16, value_node - key_node - 8)
        if min(pads) < 0:  # flatbuffers grow downwards: pyarrow writes the nodes first, so they come last
            raise flat.NotAMessage("pyarrow lays out the metadata in an unknown way")
        self._row_at = key_data
        self._row = struct.Struct(f"<qq{pads[0]}xqq{pads[1]}xq{pads[2]}xq")
        # A row with a value and no key is what most single pushes are. Of what comes before its value all is known but the
        # field and two lengths, so one struct writes it.
        plain = self.encode([0], [None], [b"v"])
        self._plain_at = flat.buffer_starts(plain.head, layout)[self._VALUE + 2]
        length_at = layout.buffers + 16 * (self._VALUE + 2) + 8
        starts = (0, layout.body_length + 8, self._field_at + _ACTIVE_CHARS, length_at + 8)
        ends = (layout.body_length, self._field_at, length_at, self.head_length)
        self._plain_parts = [bytes(plain.head[start:end]) for start, end in zip(starts, ends, strict=True)]
        self._plain_parts[2] = _NO_CRC + self._plain_parts[2]
        a, b, c, d = map(len, self._plain_parts)
        self._plain = struct.Struct(f"<{a}sq{b}s{_ACTIVE_CHARS - _CRC_CHARS}s{c}sq{d}sq{self._plain_at - 16}xii")
        if self._plain.size != self.head_length + self._plain_at:
            raise flat.NotAMessage("pyarrow lays out the metadata in an unknown way")
        self._crc_at = self._field_at + _ACTIVE_CHARS - _CRC_CHARS

    def encode(self, stamps: Sequence[int], keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> Encoded:
        rows = len(stamps)
        packed = struct.pack(f"<{rows}q", *stamps)
        return self._encode(rows, packed, min(stamps), max(stamps), listed(keys), listed(values))

    def encode_values(self, values: Sequence[bytes | None]) -> Encoded:
        """`encode` of rows of nothing but a value at the time 0, which is to be written over."""
        rows = len(values)
        return self._encode(rows, bytes(8 * rows), 0, 0, _nothing(rows), listed(values))

    def encode_batch(self, batch: pa.RecordBatch) -> Encoded | None:
        """`encode` of many rows of (key, headers, value) at the time 0, which is to be written over. None where there are headers,
        or a column is part of another."""
        names, headers, values = batch.columns
        rows = batch.num_rows
        key, value = _laid_out(names), _laid_out(values)
        if key is None or value is None or headers.null_count < rows:
            return None
        return self._encode(rows, bytes(8 * rows), 0, 0, key, value)

    def _encode(self, rows: int, stamps: bytes, low: int, high: int, key: _Column, value: _Column) -> Encoded:
        buffers = [0, 0, 0, len(stamps)]
        body: list[Any] = [stamps]
        small: list[Any] = []
        at = len(stamps)
        headers = (bytes((rows + 7) // 8), bytes(4 * (rows + 1)), *(b"",) * 7)
        for part in (*key[1:], *headers, *value[1:]):
            length = len(part)
            buffers += (at, length)
            if length > _JOIN_BYTES:
                body += (b"".join(small), part)
                small = [_PADDING[-length & 7]]
            elif length:
                small += (part, _PADDING[-length & 7])
            at += length + (-length & 7)
        body.append(b"".join(small))
        head = bytearray(self._head)
        layout = self._layout
        struct.pack_into("<q", head, layout.body_length, at)
        struct.pack_into("<q", head, layout.rows, rows)
        self._nodes.pack_into(head, layout.nodes, rows, 0, rows, key[0], rows, rows, *(0,) * 6, rows, value[0])
        self._buffers.pack_into(head, layout.buffers, *buffers)
        return Encoded(head, tuple(body), rows, low, high, self._field_at, self.layout)

    def message(
        self, ts: int, value: bytes, topic: bytes, partition: int, base: int, synced_to: int, appended_at: int,
        mark: tuple[bytes, int] = NO_MARK,
    ) -> bytearray:  # fmt: skip
        """`encode([ts], [None], [value])` with its field placed, head and body together, in a third of the time."""
        packed = _ACTIVE.pack(
            _MAGIC_ACTIVE, FORMAT_VERSION, partition, 0, topic, base, 1, synced_to, appended_at, mark[0], mark[1]
        )
        length = len(value)
        padding = -length & 7
        a, b, c, d = self._plain_parts
        front = self._plain.pack(
            a, self._plain_at + length + padding, b, b2a_base64(packed, newline=False), c, length, d, ts, 0, length
        )
        message = bytearray().join((front, value, _PADDING[padding]))
        _CRC_IN_PLACE.pack_into(message, self._crc_at, b2a_base64(_ACTIVE_CRC.pack(crc32c(message)), newline=False))
        return message

    def rows_at(self, data: bytes, positions: Sequence[int]) -> tuple[list[bytes | None], list[bytes | None]]:
        """Keys and values of one-row messages of this layout that begin at `positions` of verified bytes."""
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        add_key, add_value = keys.append, values.append
        unpack, row_at, head_length = self._row.unpack_from, self._row_at, self.head_length
        for position in positions:
            key_at, key_length, value_at, value_length, key_null, value_null = unpack(data, position + row_at)
            body = position + head_length
            add_key(None if key_null else data[body + key_at : body + key_at + key_length])
            add_value(None if value_null else data[body + value_at : body + value_at + value_length])
        return keys, values
