"""Requests to append, and the messages that they become: small ones that wait together share one."""

from __future__ import annotations

import operator
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa

from jjq.headers import headers_array, null_headers
from jjq.log import format as fmt
from jjq.log.contracts import TopicFacts
from jjq.log.template import listed
from jjq.schema import HEADERS, PLAIN, TIMESTAMP

TEMPLATE_ROWS = 256  # above this pyarrow's fixed cost no longer matters, nor that of a message
OVERHEAD_BYTES = 400  # of a message, beside its values


class MorePartitions(Exception):
    """The topic has more partitions by now than one was chosen among; nothing was appended."""


@dataclass(eq=False, slots=True)
class Append:
    """A request to append: rows of a topic without a schema, or one batch of physical columns without timestamps.

    Of more than TEMPLATE_ROWS rows `keys` and `values` may be columns of byte strings, and `keys` None where none has one.
    `stamps` in microseconds for producer time, None for the broker's. `among` is the number of partitions that this one
    was chosen among, 0 if that does not matter. `producer` (up to 6 bytes, none of them zero) and `sequence` mark the
    message, so that it is found if it is sent again: it is then a message of its own. Filled in when it is done: the
    first offset and the timestamp of the first row.
    """

    version: int
    keys: Sequence[bytes | None] | pa.Array | None = ()
    values: Sequence[bytes | None] | pa.Array = ()
    headers: Sequence[list[tuple[str, bytes | None]] | None] | None = None
    batch: pa.RecordBatch | None = None
    stamps: Sequence[int] | None = None
    size: int = 0
    among: int = 0
    producer: bytes = b""
    sequence: int = 0
    offset: int = -1
    timestamp: int = 0
    done: bool = False
    error: BaseException | None = None
    wake: threading.Lock | None = None
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = len(self.values) if self.batch is None else int(self.batch.num_rows)

    @property
    def like(self) -> object:
        """What those have in common that become one message."""
        alone = self.producer or self.rows > TEMPLATE_ROWS
        return self if alone else (self.batch is None, self.stamps is None, self.version)


class OneValue:
    """An `Append` of one value, with a key or without, at the broker's time: what most threads bring that wait for a sync.

    Each of them wakes up where the last one has left, often on another processor, so to make and to answer it takes many
    times what it would alone: hence only what differs from one to the next.
    """

    __slots__ = ("among", "done", "error", "key", "offset", "size", "timestamp", "value", "wake")
    rows = 1
    stamps = None
    like = "one value"

    def __init__(self, value: bytes, among: int, key: bytes | None = None) -> None:
        self.value = value
        self.key = key
        self.size = len(value) + len(key or b"") + OVERHEAD_BYTES
        self.among = among
        self.offset = -1
        self.timestamp = 0
        self.done = False
        self.error: BaseException | None = None
        self.wake: threading.Lock | None = None


def one_request(version: int, value: bytes, among: int, key: bytes | None, mark: tuple[bytes, int]) -> Request:
    """A `OneValue`, or what is one of who may send it again."""
    if mark is fmt.NO_MARK:
        return OneValue(value, among, key)
    producer, sequence = mark
    size = len(value) + len(key or b"") + OVERHEAD_BYTES
    return Append(version, (key,), (value,), size=size, among=among, producer=producer, sequence=sequence)


Request = Append | OneValue
_like = operator.attrgetter("like")


def encode_all(
    requests: Sequence[Request], facts: TopicFacts, version: int
) -> tuple[list[list[Request]], list[fmt.Encoded]]:
    """The requests in groups, and the message that each becomes."""
    groups = [list(requests)]
    if len(set(map(_like, requests))) > 1:
        groups = [list(group) for _, group in groupby(requests, _like)]
    return groups, [_encode(group, facts, version) for group in groups]


def _encode(group: list[Request], facts: TopicFacts, version: int) -> fmt.Encoded:
    ones = [each for each in group if isinstance(each, OneValue)]
    if ones:
        template = facts.template(version)
        assert template is not None
        return template.encode_values([each.key for each in ones], [each.value for each in ones])
    requests = [each for each in group if isinstance(each, Append)]
    message = _encode_rows(requests, facts, version)
    first = requests[0]
    return message._replace(producer=first.producer, sequence=first.sequence) if first.producer else message


def _encode_rows(requests: list[Append], facts: TopicFacts, version: int) -> fmt.Encoded:
    first, template = requests[0], facts.template(version)
    if isinstance(first.values, pa.Array):
        assert template is not None
        return template.encode_columns(first.stamps, first.keys, first.values)
    schema = facts.physical(version)
    rows = sum(each.rows for each in requests)
    # Broker time is written over later, so that a large batch needs no number a row here.
    broker = first.stamps is None
    stamps = [0] if broker else [ts for request in requests for ts in (request.stamps or ())]
    if first.batch is not None:
        batches = [fill(each.batch, schema) for each in requests if each.batch is not None]
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        if template is not None and broker:
            encoded = template.encode_batch(batch)
            if encoded is not None:
                return encoded
        whole = batch.add_column(0, schema.field(0), stamp_array(stamps, rows, broker))
    else:
        if len(requests) == 1:
            assert first.keys is not None  # as it is of columns alone
            keys, values, headers = first.keys, first.values, first.headers
        else:
            keys = [key for request in requests for key in request.keys or ()]
            values = [value for request in requests for value in request.values]
            headers = None
            if any(request.headers is not None for request in requests):
                headers = [h for r in requests for h in (r.headers if r.headers is not None else [None] * r.rows)]
        if template is not None and rows <= TEMPLATE_ROWS:
            return template.encode(stamps * rows if broker else stamps, keys, values, headers)
        columns = [
            stamp_array(stamps, rows, broker),
            pa.nulls(rows, pa.binary()) if keys.count(None) == rows else pa.array(keys, pa.binary()),
            null_headers(rows) if headers is None else headers_array(headers),
            pa.array(values, pa.binary()),
        ]
        whole = pa.RecordBatch.from_arrays(columns, schema=schema)
    return fmt.encode(whole, min(stamps), max(stamps))


def stamp_array(stamps: Sequence[int], rows: int, broker: bool) -> pa.Array:
    if broker:
        return pa.Array.from_buffers(TIMESTAMP, rows, [None, pa.py_buffer(bytes(8 * rows))])
    return pa.array(stamps, pa.int64()).cast(TIMESTAMP)


def fill(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch without timestamps with the columns of another version of its physical schema, null where it has none; those that the
    version does not know come back when the batch is encoded for the one that does."""
    if batch.num_columns == len(schema) - 1:
        return batch
    fields = list(schema)[1:]
    added = [pa.nulls(batch.num_rows, field.type) for field in fields[batch.num_columns :]]
    return pa.RecordBatch.from_arrays([*batch.columns[: len(fields)], *added], schema=pa.schema(fields))


def as_batch(request: Append) -> pa.RecordBatch:
    """What a request appends, as a batch: keys, headers, and the columns of its topic."""
    if request.batch is not None:
        return request.batch
    rows, headers = request.rows, request.headers
    keys = pa.nulls(rows, pa.binary()) if request.keys is None else byte_strings(request.keys)
    listed_headers = null_headers(rows) if headers is None else headers_array(headers).cast(HEADERS)
    return pa.RecordBatch.from_arrays([keys, listed_headers, byte_strings(request.values)], schema=PLAIN)


def byte_strings(items: Sequence[bytes | None] | pa.Array) -> pa.Array:
    """A column of these; few without pa.array, see `template.listed`."""
    if isinstance(items, pa.Array):
        return items
    if len(items) > TEMPLATE_ROWS:
        return pa.array(items, pa.binary())
    nulls, bits, ends, data = listed(items)
    buffers = [pa.py_buffer(bits) if nulls else None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(items), buffers, nulls)
