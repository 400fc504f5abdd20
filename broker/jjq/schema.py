"""A topic's schema, and how what people push becomes its columns.

*Physical* columns are those in the files: `_timestamp`, `_key`, `_headers`, then the topic's own; a topic made without a
schema has the one column `value: binary`.
"""

from __future__ import annotations

# pyarrow imports it with the first list of values, and nobody can begin to when the main thread has ended.
import concurrent.futures.thread  # noqa: F401
import difflib
import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from jjq import compute as pc
from jjq.errors import InvalidArgument, SchemaMismatch
from jjq.fitting import check_values, field_twice, has_list_view, narrowed, same_kind
from jjq.values import shown

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SYSTEM_FIELDS = (pa.field("_timestamp", TIMESTAMP), pa.field("_key", pa.binary()), pa.field("_headers", HEADERS))
SYSTEM_COLUMNS = len(SYSTEM_FIELDS)
METADATA_TYPES: dict[str, pa.DataType] = {
    "_topic": pa.string(),
    "_partition": pa.int32(),
    "_offset": pa.int64(),
    "_timestamp": TIMESTAMP,
    "_key": pa.binary(),
    "_headers": HEADERS,
}
MOST_COLUMNS = 4096  # of a topic, fields of structs and the like included: some work is done for each, in each batch
MOST_DEPTH = 60  # Arrow's streams take 64
_TOLD = 10  # columns that are not there
_COMPARED = 5000  # names of columns with one another, at some 40 µs
_OF_INDEX = {b"jjq": b"index"}  # of a column that was the index of a pandas frame
_BINARY = pa.binary()
RAW = pa.schema([pa.field("value", _BINARY)])
NO_LIST_VIEWS = "list views are not taken; make lists of them"


def physical(user: pa.Schema | None) -> pa.Schema:
    return pa.schema([*SYSTEM_FIELDS, *(RAW if user is None else user)])


def pushed(user: pa.Schema) -> pa.Schema:
    """The columns of what is pushed: those of the files, but for the timestamp."""
    return pa.schema([*SYSTEM_FIELDS[1:], *user])


PLAIN = pushed(RAW)


def check_schema(schema: object, argument: str = "schema") -> pa.Schema:
    """The schema as the files will have it; raises SchemaMismatch for what Spark could not read. `argument` is what the caller
    gave it as.

    Types that only differ in their encoding become the plain one (large_string, string_view and dictionary become
    string; any time unit becomes microseconds, any zone UTC). Every column is nullable, metadata is dropped.
    """
    if not isinstance(schema, pa.Schema):
        raise InvalidArgument(
            f"{argument} must be a pyarrow.Schema, not {type(schema).__name__}; pa.schema({{'name': pa.string()}}) makes one"
        )
    if not len(schema):
        raise SchemaMismatch("a schema needs at least one column; leave it out for a topic of plain values")
    _check_columns(schema)
    seen: dict[str, str] = {}
    for name in schema.names:
        if not name or name.startswith("_"):
            raise SchemaMismatch(f"column {name!r}: names that begin with _ belong to jjq, and a name cannot be empty")
        # Spark resolves names without regard to case, so two that differ only there could not be told apart.
        if name.lower() in seen:
            raise SchemaMismatch(
                f"columns {seen[name.lower()]!r} and {name!r} have the same name for Spark; rename one"
            )
        seen[name.lower()] = name
    return pa.schema([pa.field(field.name, plain_type(field.type, field.name)) for field in schema])


def _check_columns(schema: Iterable[pa.Field]) -> None:
    """Before anything is done for each column."""
    waiting, count = [(field.type, 1) for field in schema], 0
    while waiting and count <= MOST_COLUMNS:
        kind, depth = waiting.pop()
        count += 1
        while pa.types.is_dictionary(kind):
            kind = kind.value_type
        if depth > MOST_DEPTH:
            raise SchemaMismatch(f"a column has more than {MOST_DEPTH} levels of fields within fields; keep it as JSON")
        waiting += [(kind.field(i).type, depth + 1) for i in range(min(kind.num_fields, MOST_COLUMNS + 1))]
    if count + len(waiting) > MOST_COLUMNS:
        raise SchemaMismatch(
            f"a topic has up to {MOST_COLUMNS:,} columns, fields within columns counted: put what is rarely asked for into one column, "
            f"as a map or JSON, or make several topics"
        )


# For types that Spark cannot read, by the beginnings of their names: one that holds their values.
_INSTEAD = {
    "uint8": "int16", "uint16": "int32", "uint32": "int64", "uint64": "decimal128(20, 0)", "halffloat": "float32",
    "time": "int64 or string",
    "decimal256": "decimal128 of up to 38 digits, or string", "null": "the type that it is to have later",
    "struct": "a struct with fields",
}  # fmt: skip


def plain_type(kind: pa.DataType, where: str) -> pa.DataType:
    """The type jjq stores for a column of type `kind`."""
    is_ = pa.types
    if is_.is_dictionary(kind):
        return plain_type(kind.value_type, where)
    if is_.is_large_string(kind) or is_.is_string(kind) or is_.is_string_view(kind):
        return pa.string()
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_binary_view(kind) or is_.is_fixed_size_binary(kind):
        return pa.binary()
    if is_.is_timestamp(kind):
        return TIMESTAMP if kind.tz else pa.timestamp("us")
    if is_.is_date(kind):
        return pa.date32()
    if is_.is_duration(kind):
        return pa.duration("us")
    if is_.is_boolean(kind) or is_.is_signed_integer(kind) or kind in (pa.float32(), pa.float64()):
        return kind
    if is_.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return kind
    if is_.is_map(kind):
        return pa.map_(plain_type(kind.key_type, where), plain_type(kind.item_type, where))
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type, where))
    if is_.is_struct(kind) and kind.num_fields:
        if len({field.name for field in kind}) < kind.num_fields:
            names = ", ".join(field.name for field in kind)
            raise SchemaMismatch(f"column {where!r} has fields of the same name: {names}; rename or drop all but one")
        return pa.struct([pa.field(f.name, plain_type(f.type, f"{where}.{f.name}")) for f in kind])
    better = next((other for name, other in _INSTEAD.items() if str(kind).startswith(name)), "string")
    raise SchemaMismatch(f"column {where!r} has type {kind}, which Spark cannot read; use {better}")


def add_columns(old: pa.Schema | None, new: object) -> pa.Schema:
    """The schema with columns added at the end; raises SchemaMismatch for anything that is not an addition."""
    if old is None:
        raise SchemaMismatch(
            "the topic has no schema, so columns cannot be added; make a topic with one and replay into it"
        )
    added = check_schema(new, "add_columns")
    fields = list(old)
    by_name = {field.name.lower(): field for field in old}
    for field in added:
        known = by_name.get(field.name.lower())
        if known is None:
            fields.append(field)
        elif known.name != field.name or known.type != field.type:
            raise SchemaMismatch(
                f"column {known.name!r} is {known.type} and cannot become {field.name!r} of {field.type}; "
                f"a schema grows by new columns only"
            )
    _check_columns(fields)
    return pa.schema(fields)


def to_table(data: object) -> pa.Table:
    """A pyarrow Table of anything with the Arrow C stream, of record batches, or of a pandas frame with the
    levels of its index that have names."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    try:
        if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns"):
            return _of_pandas(data)
        if hasattr(data, "__arrow_c_stream__"):
            return pa.table(data)
        if hasattr(data, "__arrow_c_array__"):
            return pa.Table.from_batches([pa.record_batch(data)])
    except (ValueError, pa.ArrowTypeError, AttributeError) as error:  # pyarrow's ArrowInvalid is a ValueError
        if not _is_column(data):
            raise SchemaMismatch(f"the frame cannot become Arrow columns: {error}") from error
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes, Mapping)):
        batches = list(data)
        if batches and all(isinstance(batch, pa.RecordBatch) for batch in batches):
            return pa.Table.from_batches(batches)
    instead = ""
    if isinstance(data, list):
        instead = "; push_many takes a list of rows"
    elif _is_column(data):
        instead = "; pa.table({'name': column}) makes a table of a column"
    elif isinstance(data, Mapping):
        instead = "; pa.table makes one of columns by name"
    elif type(data).__name__ == "LazyFrame":
        instead = "; collect() makes a frame"
    raise InvalidArgument(
        f"push_table takes Arrow tables or batches, pandas or Polars frames, or anything with the Arrow C stream, "
        f"not {type(data).__name__}{instead}"
    )


def check_arrays(names: Iterable[str], columns: Iterable[Any]) -> None:
    """Raises SchemaMismatch for a column that is not what its type says: Arrow files and the C stream are taken at their word, and
    what has offsets beyond its end, or no UTF-8 in a text, would end or stop whoever reads it."""
    for name, column in zip(names, columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            text = "; decode the text, or make it bytes, before" if "UTF8" in str(error) else ""
            raise SchemaMismatch(f"column {name!r} of type {column.type} is damaged: {error}{text}") from error


def _of_pandas(frame: Any) -> pa.Table:
    table = pa.Table.from_pandas(frame, preserve_index=False)
    columns, fields = table.columns, list(table.schema)
    for level, name in enumerate(frame.index.names):
        if name is not None and str(name) not in table.schema.names:
            try:
                columns.append(pa.Array.from_pandas(frame.index.get_level_values(level)))
            except (ValueError, pa.ArrowTypeError) as error:
                raise SchemaMismatch(
                    f"the frame's index {str(name)!r} cannot become a column: {error}; reset_index([{str(name)!r}], drop=True) leaves "
                    f"it out"
                ) from error
            fields.append(pa.field(str(name), columns[-1].type, metadata=_OF_INDEX))
    return table if len(fields) == table.num_columns else pa.Table.from_arrays(columns, schema=pa.schema(fields))


def without_index(unknown: Sequence[str], given: pa.Schema) -> str:
    """What to do about columns that are not the topic's, where they were a frame's index."""
    names = [name for name in unknown if given.field(name).metadata == _OF_INDEX]
    return f". Of the frame's index, reset_index({names}, drop=True) leaves them out" if names else ""


def _is_column(data: object) -> bool:
    return isinstance(data, (pa.Array, pa.ChunkedArray)) or type(data).__name__ == "Series"  # pandas' or Polars'


def is_frame(data: object) -> bool:
    """Whether a value is a table, for who has no use for one."""
    return hasattr(type(data), "columns") and not isinstance(data, Iterator)  # as results of databases are


def decoded(column: Any) -> Any:
    """A dictionary-encoded column as its values; Polars' are views, which pyarrow does not decode to."""
    if not pa.types.is_dictionary(column.type):
        return column
    kind = column.type.value_type
    if pa.types.is_string_view(kind):
        return column.cast(pa.dictionary(column.type.index_type, pa.string())).cast(pa.string())
    return column.cast(kind)


def decoded_size(table: pa.Table) -> int:
    """Bytes the table has once no column is dictionary-encoded; none is decoded for it."""
    size = 0
    for column in table.columns:
        size += column.nbytes
        if pa.types.is_dictionary(column.type):
            for chunk in column.chunks:
                if is_variable(plain := decoded_type(chunk.dictionary.type)):
                    lengths = pc.binary_length(chunk.dictionary.cast(plain))
                    size += pc.sum(lengths.take(chunk.indices).cast(pa.int64())).as_py() or 0
    return size


def decoded_type(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_string_view(kind) else kind


def is_variable(kind: pa.DataType) -> bool:
    """Whether `binary_length` tells how long each value is."""
    is_ = pa.types
    return bool(is_.is_binary(kind) or is_.is_string(kind) or is_.is_large_binary(kind) or is_.is_large_string(kind))


def longest(column: Any) -> int:
    """Bytes of the longest value of a column of texts or bytes, 0 for another type."""
    return int(pc.max(pc.binary_length(column)).as_py() or 0) if is_variable(column.type) else 0


def first_larger(rows: pa.Table, limit: int) -> tuple[int, int] | None:
    """The first row whose values take more than `limit` bytes together, and how many; None where none does."""
    if rows.nbytes <= limit:  # else none can
        return None
    if not any(pa.types.is_nested(field.type) for field in rows.schema) and sum(map(longest, rows.columns)) <= limit:
        return None
    return _first_larger(rows, limit, 0)


def _first_larger(rows: pa.Table, limit: int, first: int) -> tuple[int, int] | None:
    """By halving: pyarrow tells what a part takes, nested values too."""
    size, count = rows.nbytes, rows.num_rows
    if size <= limit:
        return None
    if count == 1:
        # Without what Arrow has beside a value: where it ends.
        size = sum(longest(each) if is_variable(each.type) else each.nbytes for each in rows.columns)
        return (first, size) if size > limit else None
    half = count // 2
    return _first_larger(rows.slice(0, half), limit, first) or _first_larger(rows.slice(half), limit, first + half)


def cast(column: Any, kind: pa.DataType, name: str) -> Any:
    """A column as `kind`, or SchemaMismatch that names it; a value is never changed or cut silently."""
    if column.type == kind:
        return column
    try:
        if has_list_view(column.type):
            # pyarrow 26 makes other values of one that is part of another, and of none an error.
            raise pa.ArrowInvalid(f"{NO_LIST_VIEWS}, as pa.array(column.to_pylist(), type) does")
        column = decoded(column)
        if (twice := field_twice(column.type)) is not None:
            raise pa.ArrowInvalid(f"it has two fields {twice!r}; rename or drop one")
        if not same_kind(column.type, kind):
            is_ = pa.types
            if is_.is_timestamp(column.type) and is_.is_timestamp(kind):
                change = "give it the one that it is of" if kind.tz else "take it off"
                raise pa.ArrowInvalid(
                    f"one has a time zone and the other has none; {change} before (pandas: dt.tz_localize)"
                )
            raise pa.ArrowInvalid(f"cast it to {kind} before, if that is meant")
        return narrowed(column, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SchemaMismatch(f"column {name!r} of type {column.type} does not fit {kind}: {error}") from error


def no_column(unknown: Sequence[str], known: Sequence[str]) -> str:
    """`no column 'a'`, `no columns 'a' (did you mean 'b'?), 'c'`: what is not among the columns there are."""
    told = []
    for name in unknown[:_TOLD]:
        near = difflib.get_close_matches(name, known, 1) if len(known) * len(unknown) <= _COMPARED else []
        told.append(f"{shown(name)} (did you mean {near[0]!r}?)" if near else shown(name))
    more = f" and {len(unknown) - _TOLD} more" if len(unknown) > _TOLD else ""
    return f"no column{'s' if len(unknown) > 1 else ''} {', '.join(told)}{more}"


def _lacking(unknown: Sequence[str], user: pa.Schema, otherwise: str = "", of: str = "") -> SchemaMismatch:
    return SchemaMismatch(
        f"{of}the topic has {no_column(unknown, user.names)}; its columns are {', '.join(user.names)}. "
        f"Add one with alter_topic(add_columns=...){otherwise}"
    )


def conform(table: pa.Table, user: pa.Schema) -> pa.Table:
    """The table's columns by name, in the topic's order and types; a missing one is null, an unknown one is refused."""
    names = table.schema.names
    given, known = set(names), set(user.names)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise _lacking(unknown, user, "" if len(given) < len(names) else without_index(unknown, table.schema))
    if len(given) != len(names):
        raise SchemaMismatch("two columns of the pushed data have the same name")
    columns = []
    for field in user:
        if field.name in given:
            columns.append(cast(table.column(field.name), field.type, field.name))
        else:
            columns.append(pa.chunked_array([pa.nulls(len(table), field.type)], field.type))
    return pa.Table.from_arrays(columns, schema=user)


def _taken_by(row: object) -> str:
    if isinstance(row, list):
        return "; push_many takes a list of them"
    return "; push_table takes tables and frames" if is_frame(row) else ""


def _of(i: int, rows: Sequence[Any]) -> str:
    """Which of several records an error is about."""
    return f"record {i}: " if len(rows) > 1 else ""


# What pyarrow and `check_values` raise for a value that a column cannot hold.
_NO_VALUE = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, TypeError, ValueError, OverflowError)


def rows_to_table(rows: Sequence[Mapping[str, Any]], user: pa.Schema) -> pa.Table:
    """Mappings as a table of the topic's columns; raises SchemaMismatch that names the row's column."""
    return pa.Table.from_arrays(rows_to_columns(rows, user), schema=user)


def rows_to_columns(rows: Sequence[Mapping[str, Any]], user: pa.Schema) -> list[Any]:
    """`rows_to_table` without the table, which would take as long to make as a row's columns. Of more than Arrow's offsets can say a
    column is chunked."""
    known = set(user.names)
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise SchemaMismatch(
                f"{_of(i, rows)}a topic with a schema takes mappings of its columns, not {type(row).__name__}{_taken_by(row)}"
            )
        if not known.issuperset(row):
            unknown = [name for name in row if name not in known]
            for name in unknown:
                if not isinstance(name, str):
                    raise SchemaMismatch(
                        f"{_of(i, rows)}a record has columns by their names, which are str, not {shown(name)}"
                    )
            raise _lacking(unknown, user, of=_of(i, rows))
    columns = []
    for field in user:
        values = [row.get(field.name) for row in rows]
        try:
            columns.append(_column(values, field.type))
        except _NO_VALUE as error:
            i = _which(values, field.type)
            null = "; null is None" if _is_missing(values[i]) else ""
            raise SchemaMismatch(
                f"{_of(i, rows)}column {field.name!r} takes {field.type}: {_plainly(error)}{null}"
            ) from error
    return columns


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    check_values(values, kind)
    return pa.array(values, kind)


def _plainly(error: Exception) -> str:
    """What pyarrow says, which calls texts bytes: `Expected bytes, got a 'int' object`."""
    return str(error).replace("Expected bytes, got a ", "got ").removesuffix(" object")


def _which(values: Sequence[Any], kind: pa.DataType) -> int:
    """The first of some values that is none of the type."""
    for i, value in enumerate(values[:-1]):
        try:
            _column([value], kind)
        except _NO_VALUE:
            return i
    return len(values) - 1


def _is_missing(value: object) -> bool:
    """Whether pandas has this where there is no value, as in the rows of `to_dict`; NaT its own check knows."""
    return type(value).__name__ == "NAType" or (isinstance(value, float) and value != value)


def utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{what} holds half of a surrogate pair, which UTF-8 cannot say: {text!r}") from error


def to_bytes(value: object, what: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return utf8(value, what)
    if isinstance(value, (bytearray, memoryview)):
        try:
            return bytes(value)
        except ValueError as error:
            raise InvalidArgument(f"{what} is a memoryview that was released") from error
    raise InvalidArgument(f"{what} is bytes or str, not {type(value).__name__}")


# pyarrow imports pandas, where it is installed, with the first Python values that are to become Arrow's: that takes longer than
# a `jjq pop`. What reads makes its arrays of buffers.


def integers(values: Iterable[int], kind: pa.DataType) -> pa.Array:
    """An array of numbers, or times, of 32 or 64 bits."""
    numbers = array("i" if kind.bit_width == 32 else "q", values)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def binaries(values: Sequence[bytes | None], kind: pa.DataType = _BINARY) -> pa.Array:
    """An array of bytes, or of text in UTF-8."""
    rows, missing = len(values), values.count(None)
    if missing == rows:
        return pa.nulls(rows, kind)
    held = [each or b"" for each in values]
    there = None
    if missing:
        bits = int("".join("0" if each is None else "1" for each in reversed(values)), 2)
        there = pa.py_buffer(bits.to_bytes((rows + 7) // 8, "little"))
    ends = array("i", (0, *itertools.accumulate(map(len, held))))
    return pa.Array.from_buffers(kind, rows, [there, pa.py_buffer(ends), pa.py_buffer(b"".join(held))], missing)
