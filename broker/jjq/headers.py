"""The headers of records: pairs of a name and bytes, as callers give them, and as a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from jjq import compute as pc
from jjq.errors import InvalidArgument
from jjq.schema import HEADERS, cast, to_bytes, utf8


def check_headers(headers: object) -> list[tuple[str, bytes | None]] | None:
    """Headers as (name, bytes) pairs in order; None stays None, an empty mapping is an empty list."""
    if headers is None:
        return None
    pairs = list(headers.items()) if isinstance(headers, Mapping) else headers
    if not isinstance(pairs, (list, tuple)):
        raise InvalidArgument("headers are a mapping or a list of (name, value) pairs")
    result: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise InvalidArgument(f"a header is a (name, value) pair with a str name, not {pair!r}")
        name, value = pair
        utf8(name, "the name of a header")
        result.append((name, None if value is None else to_bytes(value, f"header {name!r}")))
    return result


def headers_size(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """Bytes of names and values."""
    return sum(len(name.encode()) + len(value or b"") for name, value in headers)


def headers_array(headers: Sequence[list[tuple[str, bytes | None]] | None]) -> pa.Array:
    return pa.array([None if h is None else [{"key": k, "value": v} for k, v in h] for h in headers], HEADERS)


def _empty(kind: pa.DataType) -> pa.Array:
    """An array of no values."""
    children = [_empty(kind.field(i).type) for i in range(kind.num_fields)]
    buffers = [None] if children else [None, pa.py_buffer(bytes(4)), pa.py_buffer(b"")]
    return pa.Array.from_buffers(kind, 0, buffers, children=children)


_NO_HEADERS = _empty(HEADERS.value_type)


def null_headers(rows: int) -> pa.Array:
    """`rows` null headers whose child is empty: pa.nulls would write 8 bytes a row for the struct below."""
    bits = pa.py_buffer(bytes((rows + 7) // 8))
    ends = pa.py_buffer(bytes(4 * (rows + 1)))
    return pa.ListArray.from_buffers(HEADERS, rows, [bits, ends], rows, children=[_NO_HEADERS])


def header_column(column: Any) -> Any:
    """A column of headers as the files have it; raises SchemaMismatch, and InvalidArgument for one without a name."""
    found = cast(column, HEADERS, "headers")
    if found.null_count < len(found) and _header_parts(found)[0].null_count:
        raise InvalidArgument("a header has no name: leave it out, or name it")
    return found


def longest_headers(column: Any) -> int:
    """The most bytes that the headers of one row have. By columns: as objects many of them would take forty times as much."""
    names, values = map(pc.binary_length, _header_parts(column))
    rows = pc.list_parent_indices(column)
    if len(rows) > len(names):  # those below a null, which may be there and are no headers, are not among the names
        rows = rows.filter(column.is_valid().take(rows))
    sizes = pa.table({"row": rows, "size": pc.add(names, pc.fill_null(values, 0))})
    return int(pc.max(sizes.group_by("row").aggregate([("size", "sum")]).column("size_sum")).as_py() or 0)


def _header_parts(column: Any) -> tuple[Any, Any]:
    pairs = pc.list_flatten(column)
    return pc.struct_field(pairs, [0]), pc.struct_field(pairs, [1])
