"""Finding what is whole in a file that is damaged: messages and batches whose own checksums hold, wherever they are."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from jjq import files
from jjq.log import flat
from jjq.log import format as fmt
from jjq.log.format import CLOSE, ENTRY_SIZE, Entry
from jjq.log.recovery import message_at

_EVER = 1 << 62
# More metadata than any message of ours has: what claims more is no message, and is not read to find out.
_MOST_METADATA = 64 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that are whole: offsets `[base, base + rows)` in bytes `[position, position + length)`."""

    base: int
    rows: int
    position: int
    length: int
    appended_at: int

    @property
    def end(self) -> int:
        return self.base + self.rows


class Wreck:
    """A file that may be damaged anywhere, mapped."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            self._bytes: mmap.mmap | bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        self.data: pa.Buffer = pa.py_buffer(self._bytes)
        self._view = memoryview(self._bytes)

    def __len__(self) -> int:
        return len(self.data)

    def read(self, piece: Piece, schema: pa.Schema) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(self.data.slice(piece.position, piece.length), schema)

    def _next(self, position: int, stop: int) -> int:
        """Where the next message may begin, at or after `position`; all begin at a multiple of eight. -1 for nowhere."""
        at = self._bytes.find(flat.CONTINUATION, position, stop)
        while at >= 0 and at % 8:
            at = self._bytes.find(flat.CONTINUATION, at + 1, stop)
        return at

    def _could_begin(self, position: int) -> bool:
        prefix = bytes(self._view[position : position + flat.PREFIX])
        try:
            return len(prefix) == flat.PREFIX and flat.metadata_length(prefix) < _MOST_METADATA
        except flat.NotAMessage:
            return False

    def stream_pieces(
        self, schema: pa.Schema, topic: bytes, partition: int, low: int = 0, high: int = _EVER, stop: int | None = None
    ) -> list[Piece]:
        """The whole messages of a stream file within offsets `[low, high)` and the first `stop` bytes, in order."""
        stop = len(self.data) if stop is None else min(stop, len(self.data))
        pieces: list[Piece] = []
        at, position = low, self._next(0, stop)
        while 0 <= position < stop:
            length = 0
            if self._could_begin(position):
                try:
                    message, field = message_at(self.data, position)
                except flat.NotAMessage:
                    pass
                else:
                    fits = field.topic == topic and field.partition == partition and field.rows > 0
                    if (
                        fits
                        and at <= field.base
                        and field.base + field.rows <= high
                        and position + len(message) <= stop
                    ):
                        piece = Piece(field.base, field.rows, position, len(message), field.appended_at)
                        if self._decodes(piece, schema):
                            pieces.append(piece)
                            at = piece.end
                    length = len(message)
            position = self._next(position + (length or 8), stop)
        return pieces

    def sealed_pieces(self, schema: pa.Schema, base: int, rows: int, appended_at: int) -> list[Piece]:
        """The whole batches of a sealed file whose first record is `base`, in order."""
        pieces: list[Piece] = []
        at, position = base, self._next(0, len(self.data))
        while position >= 0:
            step = 8
            if self._could_begin(position):
                try:
                    head_length = flat.PREFIX + flat.metadata_length(self._view[position : position + flat.PREFIX])
                    head = bytes(self._view[position : position + head_length])
                    field = fmt.check_sealed(head, len(schema))
                except flat.NotAMessage:
                    pass
                else:
                    # The head is whole, so what follows it is a body, however damaged, and nothing in it a message.
                    step = head_length + flat.body_length(head)
                    piece = Piece(base + field.first_row, field.rows, position, step, appended_at)
                    fits = piece.rows > 0 and at <= piece.base and piece.end <= base + rows
                    if fits and self._columns_hold(head, field, position, schema) and self._decodes(piece, schema):
                        pieces.append(piece)
                        at = piece.end
            position = self._next(position + step, len(self.data))
        return pieces

    def _columns_hold(self, head: bytes, field: fmt.SealedField, position: int, schema: pa.Schema) -> bool:
        body_length = flat.body_length(head)
        if position + len(head) + body_length > len(self.data):
            return False
        body = self.data.slice(position + len(head), body_length)
        try:
            ranges = fmt.column_ranges(head, body_length, fmt.first_buffers(schema))
        except flat.NotAMessage:
            return False
        return all(
            fmt.crc32c(body.slice(start, end - start)) == crc
            for (start, end), crc in zip(ranges, field.column_crcs, strict=True)
        )

    def _decodes(self, piece: Piece, schema: pa.Schema) -> bool:
        try:
            return bool(self.read(piece, schema).num_rows == piece.rows)
        except (pa.ArrowException, OSError):
            return False

    def fits(self, schema: pa.Schema) -> bool:
        """Whether the first message that is whole has the buffers this physical schema needs."""
        wanted = fmt.first_buffers(schema)[-1]
        position = self._next(0, len(self.data))
        while position >= 0:
            if self._could_begin(position):
                try:
                    message, _ = message_at(self.data, position)
                    return flat.batch_layout(bytes(message)).buffer_count == wanted
                except flat.NotAMessage:
                    pass
            position = self._next(position + 8, len(self.data))
        return False

    def fits_sealed(self, schema: pa.Schema) -> bool:
        """Whether the file has a batch, not necessarily whole, of as many columns as this physical schema."""
        position = self._next(0, len(self.data))
        while position >= 0:
            if self._could_begin(position):
                try:
                    head_length = flat.PREFIX + flat.metadata_length(self._view[position : position + flat.PREFIX])
                    fmt.check_sealed(bytes(self._view[position : position + head_length]), len(schema))
                    return True
                except flat.NotAMessage:
                    pass
            position = self._next(position + 8, len(self.data))
        return False


def runs(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Pieces that follow each other without a gap, together."""
    held: list[Piece] = []
    for piece in pieces:
        if held and held[-1].end != piece.base:
            yield held
            held = []
        held.append(piece)
    if held:
        yield held


@dataclass(frozen=True, slots=True)
class Index:
    """What is left of an index: the entries that hold, of those before the first damaged one and of all."""

    prefix: list[Entry]
    entries: list[Entry]

    @property
    def closing(self) -> Entry | None:
        return next((entry for entry in self.entries if entry.kind == CLOSE), None)

    @property
    def whole(self) -> bool:
        return bool(self.entries) and len(self.prefix) == len(self.entries)

    @property
    def end(self) -> int:
        """The offset up to which records were there, as far as it tells; -1 when it tells nothing."""
        closing = self.closing
        if closing is not None:
            return closing.base
        return max((entry.end for entry in self.entries), default=-1)


def read_index(path: Path) -> Index:
    """Every entry stands for itself, so those behind a damaged one count too."""
    try:
        data = files.read(path)
    except FileNotFoundError:
        return Index([], [])
    prefix = fmt.valid_prefix(data)
    if len(prefix) * ENTRY_SIZE == len(data):
        return Index(prefix, prefix)
    found = list(prefix)
    for at in range(len(prefix) * ENTRY_SIZE, len(data) - ENTRY_SIZE + 1, ENTRY_SIZE):
        entry = data[at : at + ENTRY_SIZE]
        if fmt.entries_hold(entry):
            found.extend(fmt.unpack_entries(entry))
    return Index(prefix, found)
