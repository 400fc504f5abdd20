"""The few numbers of Arrow's flatbuffers that pyarrow writes but does not show.

Layouts: Message.fbs, File.fbs and Schema.fbs of the Apache Arrow columnar format, version 1.5. Only scalar slots are
read or patched; building flatbuffers is left to pyarrow.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

_I32 = struct.Struct("<i")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")

PREFIX = 8  # an encapsulated message begins with 0xFFFFFFFF and its metadata's length
CONTINUATION = b"\xff\xff\xff\xff"
END_OF_STREAM = CONTINUATION + b"\0\0\0\0"
BLOCK_SIZE = 24  # Block: offset int64, metaDataLength int32, padding, bodyLength int64
DICTIONARY_BATCH, RECORD_BATCH = 2, 3  # MessageHeader


class BatchLayout(NamedTuple):
    """Byte positions, from the start of the encapsulated message, of the numbers that vary between batches."""

    body_length: int
    rows: int
    nodes: int
    node_count: int
    buffers: int
    buffer_count: int


class NotAMessage(ValueError):
    """The bytes are no encapsulated record batch message."""


def _slot(data: Any, table: int, index: int) -> int:
    """Position of a table's field, 0 when it is absent (holds its default)."""
    vtable = table - _I32.unpack_from(data, table)[0]
    if 4 + 2 * index >= _U16.unpack_from(data, vtable)[0]:
        return 0
    offset = _U16.unpack_from(data, vtable + 4 + 2 * index)[0]
    return table + offset if offset else 0


def _follow(data: Any, position: int) -> int:
    return position + int(_U32.unpack_from(data, position)[0])


def metadata_length(prefix: Any) -> int:
    """Bytes of metadata after the 8-byte prefix; raises NotAMessage."""
    if bytes(prefix[:4]) != CONTINUATION:
        raise NotAMessage("no continuation marker")
    length = int(_I32.unpack_from(prefix, 4)[0])
    if length <= 0 or length % 8:
        raise NotAMessage(f"metadata of {length} bytes")
    return length


def batch_layout(head: Any) -> BatchLayout:
    """The layout of a record batch message's `head` (prefix and metadata); raises NotAMessage."""
    try:
        message = _follow(head, PREFIX)
        kind = _slot(head, message, 1)
        if not kind or head[kind] != RECORD_BATCH:
            raise NotAMessage("not a record batch")
        batch = _follow(head, _slot(head, message, 2))
        body_length, rows = _slot(head, message, 3), _slot(head, batch, 0)
        nodes, buffers = _follow(head, _slot(head, batch, 1)), _follow(head, _slot(head, batch, 2))
        return BatchLayout(
            body_length,
            rows,
            nodes + 4,
            _U32.unpack_from(head, nodes)[0],
            buffers + 4,
            _U32.unpack_from(head, buffers)[0],
        )
    except (struct.error, IndexError) as error:
        raise NotAMessage(str(error)) from error


def body_length(head: Any) -> int:
    """Bytes of body after the metadata of any message; raises NotAMessage."""
    try:
        slot = _slot(head, _follow(head, PREFIX), 3)
        length = int(_I64.unpack_from(head, slot)[0]) if slot else 0
    except (struct.error, IndexError) as error:
        raise NotAMessage(str(error)) from error
    if length < 0 or length % 8:
        raise NotAMessage(f"a body of {length} bytes")
    return length


def is_compressed(head: Any) -> bool:
    """Whether a record batch's buffers are compressed."""
    return _slot(head, _follow(head, _slot(head, _follow(head, PREFIX), 2)), 3) != 0


def unpacked_bytes(metadata: Any, body: Any) -> int:
    """Bytes of a message's body when its buffers are no longer compressed, as they say by themselves; raises NotAMessage.

    `metadata` is without the prefix, as pyarrow.ipc.Message has it.
    """
    try:
        message = _follow(metadata, 0)
        kind, batch = metadata[_slot(metadata, message, 1)], _follow(metadata, _slot(metadata, message, 2))
        if kind == DICTIONARY_BATCH:
            batch = _follow(metadata, _slot(metadata, batch, 1))
        elif kind != RECORD_BATCH:
            return 0
        if not _slot(metadata, batch, 3):
            return len(body)
        buffers = _follow(metadata, _slot(metadata, batch, 2))
        count = int(_U32.unpack_from(metadata, buffers)[0])
        places = struct.unpack_from(f"<{2 * count}q", metadata, buffers + 4)
        # Each begins with its length, or -1 where it is not compressed after all.
        return sum(
            max(length, _I64.unpack_from(body, offset)[0])
            for offset, length in zip(places[::2], places[1::2], strict=True)
            if length
        )
    except (struct.error, IndexError) as error:
        raise NotAMessage(str(error)) from error


def buffer_starts(head: Any, layout: BatchLayout) -> tuple[int, ...]:
    """Where in the body each buffer begins, in order."""
    try:
        return struct.unpack_from(f"<{2 * layout.buffer_count}q", head, layout.buffers)[::2]
    except struct.error as error:
        raise NotAMessage(str(error)) from error


def footer_blocks(footer: Any) -> tuple[int, int]:
    """(position, count) of the record batch blocks in a file's footer."""
    try:
        vector = _follow(footer, _slot(footer, _follow(footer, 0), 3))
        return vector + 4, int(_U32.unpack_from(footer, vector)[0])
    except (struct.error, IndexError) as error:
        raise NotAMessage(str(error)) from error


def read_blocks(footer: Any) -> list[tuple[int, int, int]]:
    """(position in the file, bytes of prefix and metadata, bytes of body) of each batch."""
    position, count = footer_blocks(footer)
    try:
        return [
            (offset, meta, body)
            for offset, meta, body in struct.iter_unpack(
                "<qi4xq", bytes(footer[position : position + count * BLOCK_SIZE])
            )
        ]
    except struct.error as error:
        raise NotAMessage(str(error)) from error
