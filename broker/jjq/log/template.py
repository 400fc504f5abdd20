"""Messages of topics without a schema, written without pyarrow, whose fixed cost is ten times that of a row."""

from __future__ import annotations

import functools
import struct
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from jjq.log import flat
from jjq.log.format import (
    ACTIVE,
    ACTIVE_CHARS,
    ACTIVE_CRC,
    CRC_CHARS,
    FORMAT_VERSION,
    MAGIC_ACTIVE,
    NO_CRC,
    NO_MARK,
    Encoded,
    crc32c,
    encode,
)  # fmt: skip

_CRC_IN_PLACE = struct.Struct(f"{CRC_CHARS}s")
_JOIN_BYTES = 16 << 10  # a part of a body that is larger is not copied to join it with others
_PADDING = [bytes(length) for length in range(8)]
_END = struct.Struct("<i")
_KEY_LENGTHS = 1024  # of keys, by 8 bytes, are known at once
_LONG = struct.Struct("<q")

_Column = tuple[int, Any, Any, Any]  # of byte strings: how many are null, and the buffers
Headers = Sequence[Sequence[tuple[str, bytes | None]] | None]  # of each row


def _nothing(rows: int) -> _Column:
    """A column in which every row is null."""
    return rows, bytes((rows + 7) // 8), bytes(4 * (rows + 1)), b""


def listed(items: Sequence[bytes | None]) -> _Column:
    """The column of these. Without pa.array, which imports pandas where it is installed: the first push would wait half a second for that."""
    nulls = items.count(None)
    if nulls == len(items):
        return _nothing(nulls)
    present: Sequence[bytes] = [item or b"" for item in items] if nulls else items  # type: ignore[assignment]
    return nulls, _there(items, nulls), _ends(present), b"".join(present)


def _there(items: Sequence[object], nulls: int) -> bytes | bytearray:
    """A bit for each that is not null; none at all where none is."""
    if not nulls:
        return b""
    bits = bytearray((len(items) + 7) // 8)
    for i, item in enumerate(items):
        if item is not None:
            bits[i >> 3] |= 1 << (i & 7)
    return bits


def _ends(items: Sequence[Any]) -> bytes:
    return struct.pack(f"<{len(items) + 1}i", 0, *accumulate(map(len, items)))


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
    """Encodes rows of (timestamp, key, headers, value) without pyarrow, whose fixed cost is ten times that of a row.

    pyarrow writes one message of the schema; the numbers that vary (lengths, null counts, buffer positions) are
    patched into a copy of its metadata for each new one. Only for the physical schema of a topic without a schema.
    `layout` identifies the untouched rest of those without headers, so that `rows_at` reads back only what has this form.
    """

    # Buffers: timestamp 0-1, key 2-4, headers 5-13 (list 5-6, struct 7, name 8-10, value 11-13; empty from 7 on), value 14-16
    # Nodes: timestamp, key, headers list, struct, name, value, then the value column
    _KEY, _HEADERS_END, _VALUE, _COUNT = 2, 7, 14, 17
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
        self._crc_at = self._field_at + ACTIVE_CHARS - CRC_CHARS
        self._plain = self._front(None)
        self._keyed = functools.lru_cache(_KEY_LENGTHS)(self._front)

    def _front(self, words: int | None) -> tuple[Callable[..., bytes], tuple[bytes, ...], int]:
        """What packs all that comes before the value of a row that has a key or none, its parts that are known, and where in the body the
        value begins. Single pushes are such rows: only the field, time, key and three lengths vary, as long as the key fills up so
        many times 8 bytes."""
        like = self.encode([0], [None if words is None else bytes(8 * words)], [b"v"])
        head, body, layout = like.head, b"".join(like.body), self._layout
        starts = flat.buffer_starts(head, layout)
        key_at, value_at = starts[self._KEY + 2], starts[self._VALUE + 2]
        length_at = layout.buffers + 16 * (self._VALUE + 2) + 8
        key_length_at = layout.buffers + 16 * (self._KEY + 2) + 8
        known_from = [0, layout.body_length + 8, self._field_at + ACTIVE_CHARS, length_at + 8]
        known_to = [layout.body_length, self._field_at, length_at, self.head_length]
        if words is not None:
            known_from.insert(3, key_length_at + 8)
            known_to.insert(2, key_length_at)
        parts = [bytes(head[first:last]) for first, last in zip(known_from, known_to, strict=True)]
        parts[2] = NO_CRC + parts[2]
        a, b, *more = (f"{len(part)}s" for part in parts)
        row = f"{a}q{b}{ACTIVE_CHARS - CRC_CHARS}s{'q'.join(more)}q"
        ends_at = value_at - 8  # of the value's two ends
        if words is None:
            row += f"{ends_at - 8}x"
        else:
            parts.append(body[key_at + 8 * words : ends_at])
            row += f"ii{8 * words}s{len(parts[-1])}s"
        packer = struct.Struct(f"<{row}ii")
        if packer.size != self.head_length + value_at or (words is not None and key_at != 16):
            raise flat.NotAMessage("pyarrow lays out the metadata in an unknown way")
        return packer.pack, tuple(parts), value_at

    def encode(
        self, stamps: Sequence[int], keys: Sequence[bytes | None], values: Sequence[bytes | None],
        headers: Headers | None = None,
    ) -> Encoded:  # fmt: skip
        rows = len(stamps)
        packed = struct.pack(f"<{rows}q", *stamps)
        return self._encode(rows, packed, min(stamps), max(stamps), listed(keys), listed(values), headers)

    def encode_values(self, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> Encoded:
        """`encode` of rows at the time 0, which is to be written over."""
        rows = len(values)
        return self._encode(rows, bytes(8 * rows), 0, 0, listed(keys), listed(values))

    def encode_batch(self, batch: pa.RecordBatch) -> Encoded | None:
        """`encode` of many rows of (key, headers, value) at the time 0, which is to be written over. None where there are headers,
        or a column is part of another."""
        names, headers, values = batch.columns
        rows = batch.num_rows
        key, value = _laid_out(names), _laid_out(values)
        if key is None or value is None or headers.null_count < rows:
            return None
        return self._encode(rows, bytes(8 * rows), 0, 0, key, value)

    def encode_columns(self, stamps: Sequence[int] | None, keys: pa.Array | None, values: pa.Array) -> Encoded:
        """`encode` of columns that are no part of others: without keys all of them are null, and without stamps 0, to be written
        over."""
        rows = len(values)
        key, value = _nothing(rows) if keys is None else _laid_out(keys), _laid_out(values)
        assert key is not None
        assert value is not None
        if stamps is None:
            return self._encode(rows, bytes(8 * rows), 0, 0, key, value)
        packed = pa.array(stamps, pa.int64()).buffers()[1][: 8 * rows]
        return self._encode(rows, packed, min(stamps), max(stamps), key, value)

    def _encode(
        self, rows: int, stamps: Any, low: int, high: int, key: _Column, value: _Column, headers: Headers | None = None
    ) -> Encoded:
        count, nulls, absent = 0, rows, 0  # headers of all rows, rows without any, headers without a value
        lists: tuple[Any, ...] = bytes((rows + 7) // 8), bytes(4 * (rows + 1))
        if headers is not None:
            pairs = [pair for each in headers if each is not None for pair in each]
            texts = listed([name.encode() for name, _ in pairs])
            absent, *contents = listed([content for _, content in pairs])
            count, nulls = len(pairs), headers.count(None)
            # Then whether the pairs and their names are there, which all are.
            lists = _there(headers, nulls), _ends([each or () for each in headers]), b"", b"", *texts[2:], *contents
        buffers = [0, 0, 0, len(stamps)]
        body: list[Any] = [stamps]
        small: list[Any] = []
        at = len(stamps)
        for part in (*key[1:], *lists, *value[1:]):
            length = len(part)
            buffers += (at, length)
            if length > _JOIN_BYTES:
                body += (b"".join(small), part)
                small = [_PADDING[-length & 7]]
            elif length:
                small += (part, _PADDING[-length & 7])
            at += length + (-length & 7)
        if small:
            body.append(b"".join(small))
        if headers is None:
            behind = 2 * self._HEADERS_END
            buffers[behind:behind] = (buffers[behind], 0) * (self._VALUE - self._HEADERS_END)
        head = bytearray(self._head)
        layout = self._layout
        _LONG.pack_into(head, layout.body_length, at)
        _LONG.pack_into(head, layout.rows, rows)
        self._nodes.pack_into(
            head, layout.nodes, rows, 0, rows, key[0], rows, nulls, count, 0, count, 0, count, absent, rows, value[0]
        )
        self._buffers.pack_into(head, layout.buffers, *buffers)
        return Encoded(head, tuple(body), rows, low, high, self._field_at, self.layout if headers is None else 0)

    def message(
        self, ts: int, value: bytes, topic: bytes, partition: int, base: int, synced_to: int, appended_at: int,
        key: bytes | None = None, mark: tuple[bytes, int] = NO_MARK,
    ) -> bytearray:  # fmt: skip
        """`encode([ts], [key], [value])` with its field placed, head and body together, in a third of the time."""
        packed = ACTIVE.pack(
            MAGIC_ACTIVE, FORMAT_VERSION, partition, 0, topic, base, 1, synced_to, appended_at, mark[0], mark[1]
        )
        field = b2a_base64(packed, newline=False)
        length = len(value)
        padding = -length & 7
        if key is None:
            pack, (a, b, c, d), value_at = self._plain
            front = pack(a, value_at + length + padding, b, field, c, length, d, ts, 0, length)
        else:
            key_length = len(key)
            pack, (a, b, c, d, e, f), value_at = self._keyed(key_length + 7 >> 3)
            front = pack(
                a, value_at + length + padding, b, field, c, key_length, d, length, e, ts, 0, key_length, key, f, 0, length
            )  # fmt: skip
        message = bytearray().join((front, value, _PADDING[padding]))
        _CRC_IN_PLACE.pack_into(message, self._crc_at, b2a_base64(ACTIVE_CRC.pack(crc32c(message)), newline=False))
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
