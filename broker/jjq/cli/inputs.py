"""Files that `jjq push` takes, read in bounded pieces."""

from __future__ import annotations

import csv as csv_rows
import io
import json
import os
import re
import select
import stat
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jjq.cli.arguments import UsageError, place_hint
from jjq.errors import JjqError, RecordTooLarge, SchemaMismatch
from jjq.fitting import first_beyond
from jjq.jsonvalues import fitted
from jjq.schema import RAW, TIMESTAMP, rows_to_table
from jjq.topic import Topic
from jjq.values import unique

FORMATS = ("lines", "json", "csv", "parquet")
_BY_SUFFIX = {
    ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet",
    ".pq": "parquet",
}  # fmt: skip
_WANTED = "JSON lines are wanted, one object a line"
_NULL_LINE = re.compile(rb"\n[ \t\r]*null")
_LOCAL_TIME = re.compile(r"\. If these timestamps are in local time.*")
_CSV_BLOCK = 4 << 20  # a row has to fit
_SCHEMA_BYTES = 4 << 20  # of a text file, to tell its columns


# What pyarrow has as a stream and has not read to its end. A thread of its own reads ahead by calling Python: when Python ends
# meanwhile, that aborts the process.
reading_ahead: set[Source] = set()


class InputError(JjqError):
    """What is read cannot be understood; the message says where."""

    code = "input"


_PACKED = {
    b"\x1f\x8b": "zcat",
    b"\x28\xb5\x2f\xfd": "zstdcat",
    b"BZh": "bzcat",
    b"\xfd7zXZ\0": "xzcat",
    b"PK\x03\x04": "unzip -p",
}


def _packed_by(start: bytes) -> str | None:
    """What unpacks a file that begins so; None for one that is not compressed."""
    return next((command for magic, command in _PACKED.items() if start.startswith(magic)), None)


class Source:
    """The bytes of a file, or of the standard input. `read` counts them, `size` is None where nobody knows."""

    def __init__(self, path: Path | None) -> None:
        self.path = None if path is None or str(path) == "-" else path
        self.name = "standard input" if self.path is None else str(self.path)
        self.read = 0
        try:
            self.fd = sys.stdin.fileno() if self.path is None else os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            found = os.fstat(self.fd)
        except OSError as error:
            hint = "" if self.path is None else place_hint(self.path)
            if not hint and isinstance(error, FileNotFoundError) and self.path is not None and self.path.suffix == "":
                hint = "; this names a file, and values come from the standard input: echo VALUE | jjq push TOPIC"
            raise InputError(f"cannot read {self.name}: {error.strerror}{hint}") from error
        if stat.S_ISDIR(found.st_mode):
            raise InputError(f"cannot read {self.name}: it is a directory{place_hint(self.name)}")
        self.is_file = stat.S_ISREG(found.st_mode)
        if self.is_file and self.path is not None and (packed := _packed_by(os.pread(self.fd, 6, 0))) is not None:
            raise InputError(f"{self.name} is compressed: {packed} {self.name} | jjq push TOPIC --format ...")
        self.size = found.st_size if self.is_file else None

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.path is not None:
            os.close(self.fd)

    def take(self, most: int) -> bytes:
        """Up to `most` bytes: what is there now, at least one; empty at the end."""
        try:
            data = os.read(self.fd, most)
            if 0 < len(data) < most and not self.is_file:
                parts, total = [data], len(data)
                while total < most and select.select([self.fd], [], [], 0)[0]:
                    more = os.read(self.fd, most - total)
                    if not more:
                        break
                    parts.append(more)
                    total += len(more)
                data = b"".join(parts)
        except OSError as error:
            raise InputError(f"cannot read {self.name}: {error.strerror}") from error
        self.read += len(data)
        return data

    def stream(self) -> io.BufferedReader:
        """As a binary stream for readers that want one."""
        reading_ahead.add(self)
        return io.BufferedReader(_Counted(self), 1 << 20)


class _Counted(io.RawIOBase):
    def __init__(self, source: Source) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = os.readv(self._source.fd, [buffer])
        self._source.read += count
        return count


def format_of(path: Path | None, given: str | None) -> str:
    """The format as asked for, else by the name's end; lines where that says nothing."""
    if given is not None:
        return given
    return "lines" if path is None else _BY_SUFFIX.get(path.suffix.lower(), "lines")


def delimiter_of(path: Path | None, given: str | None) -> str:
    if given is not None:
        text = given.replace("\\t", "\t")
        if len(text) != 1:
            raise UsageError(f"a delimiter is one character, not {given!r}")
        return text
    return "\t" if path is not None and path.suffix.lower() == ".tsv" else ","


def line_blocks(source: Source, block_bytes: int, limit: int) -> Iterator[tuple[int, list[bytes]]]:
    """(number of the first line, lines without their ends), as they come. Raises RecordTooLarge for a line over `limit`."""
    number, rest, rest_bytes = 1, list[bytes](), 0
    while data := source.take(block_bytes):
        end = data.rfind(b"\n")
        if end >= 0:
            lines = b"".join([*rest, data[:end]]).split(b"\n")
            yield number, lines
            number += len(lines)
            rest, rest_bytes = [], 0
        rest.append(data[end + 1 :])
        rest_bytes += len(rest[-1])
        if rest_bytes > limit:
            raise RecordTooLarge(f"{source.name}, line {number}: over {limit:,} bytes and no end of the line yet")
    if rest_bytes:
        yield number, [b"".join(rest)]


def read_lines(source: Source, topic: Topic, block_bytes: int) -> Iterator[pa.Table]:
    """Each line a record."""
    name = "value"
    if topic.schema is not None:
        kind = topic.schema.field(0).type
        if len(topic.schema) > 1 or not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            raise UsageError(
                f"topic {topic.name!r} has columns, so lines are no records of it; use --format json, csv or parquet"
            )
        name = topic.schema.names[0]
    for number, lines in line_blocks(source, block_bytes, topic.config.max_record_bytes):
        values = pa.array(lines, pa.binary())
        if topic.schema is not None and pa.types.is_string(topic.schema.field(0).type):
            try:
                values = values.cast(pa.string())
            except pa.ArrowInvalid as error:
                raise InputError(f"{source.name}, near line {number}: {error}") from error
        yield pa.table({name: values})


def read_json(source: Source, topic: Topic, block_bytes: int, key: str | None) -> Iterator[pa.Table]:
    """Each line a JSON document: of a topic without a schema the record itself, else an object of its columns."""
    limit = 4 * topic.config.max_record_bytes
    for number, lines in line_blocks(source, block_bytes, limit):
        if topic.schema is None:
            yield _json_values(source, number, lines, key)
        else:
            yield _json_columns(source, number, lines, topic.schema)


def _json_values(source: Source, number: int, lines: list[bytes], key: str | None) -> pa.Table:
    keys: list[bytes | None] = []
    values: list[bytes] = []
    for at, line in enumerate(lines, number):
        if not line.strip():
            continue
        document = _parsed(source, at, line)
        values.append(line)
        if key is not None:
            keys.append(_key_of(document, key, f"{source.name}, line {at}"))
    table = {"value": pa.array(values, pa.binary())}
    if key is not None:
        table["key"] = pa.array(keys, pa.binary())
    return pa.table(table)


def _parsed(source: Source, number: int, line: bytes, fraction: Callable[[str], Any] = float) -> Any:
    try:
        return json.loads(line, parse_float=fraction, object_pairs_hook=unique)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        spread = "" if line.rstrip().endswith((b"}", b"]")) else _spread(number, line)  # else it is wrong in itself
        raise InputError(f"{source.name}, line {number} is not JSON: {error}{spread}") from error
    except ValueError as error:  # a name that is there twice, a number that is no number
        raise InputError(f"{source.name}, line {number}: {error}") from error


def _spread(number: int, line: bytes) -> str:
    """What to do about a document that is spread over several lines, as pretty printers write it."""
    if number > 1 or line.strip()[:1] not in (b"[", b"{"):
        return ""
    return ". Each line is a document: make it so with `jq -c '.[]'` for an array, `jq -c .` for objects, and push that"


def _key_of(document: Any, key: str, where: str) -> bytes | None:
    if not isinstance(document, dict) or key not in document:
        raise InputError(f"{where} has no field {key!r} to take the key from")
    value = document[key]
    if isinstance(value, (dict, list)):
        raise InputError(f"{where}: field {key!r} is no text or number, so it cannot be a key")
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def _json_columns(source: Source, number: int, lines: list[bytes], schema: pa.Schema) -> pa.Table:
    from pyarrow import json as arrow_json

    data = b"\n".join(lines)
    # Maps pyarrow does not read; of a null it makes a row of nulls, and of nothing but nulls it dies.
    if any(pa.types.is_map(field.type) for field in schema) or _NULL_LINE.search(b"\n" + data):
        return _json_slowly(source, number, lines, schema)
    options = arrow_json.ParseOptions(explicit_schema=_readable(schema), unexpected_field_behavior="error")
    try:
        if not data.strip():
            return schema.empty_table()
        table = arrow_json.read_json(
            pa.BufferReader(data), arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1), options
        )
        # A document that is not one line, a number that may have been rounded, or an odd time is looked at more closely.
        if len(table) == len(lines) - lines.count(b"") and not any(
            _test(_may_be_rounded, each) for each in table.columns
        ):
            found = table.cast(schema)
            if not any(_test(_is_beyond, each) for each in found.columns):
                return found
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass  # which line it was, and what is wrong with it, is told by reading them one by one
    return _json_slowly(source, number, lines, schema)


def _test(test: Callable[[Any], bool], column: Any) -> bool:
    """Whether it is true of the column, or of one within it."""
    kind = column.type
    if pa.types.is_list(kind):
        return _test(test, pc.list_flatten(column))
    if pa.types.is_struct(kind):
        return any(_test(test, pc.struct_field(column, i)) for i in range(kind.num_fields))
    return test(column)


def _may_be_rounded(column: Any) -> bool:
    """Whether whole numbers were read that are so large that not each has a float of its own."""
    if not pa.types.is_floating(column.type):
        return False
    most = pc.max(pc.abs(column)).as_py()
    return most is not None and most >= (1 << 24 if column.type == pa.float32() else 1 << 53)


def _is_beyond(column: Any) -> bool:
    return first_beyond(column) is not None


def _json_slowly(source: Source, number: int, lines: list[bytes], schema: pa.Schema) -> pa.Table:
    rows: list[tuple[int, dict[str, Any]]] = []
    for at, line in enumerate(lines, number):
        if not line.strip():
            continue
        document = _parsed(source, at, line, Decimal)
        where = f"{source.name}, line {at}"
        if not isinstance(document, dict):
            raise InputError(
                f"{where} is no object of the topic's columns ({', '.join(schema.names)}); {_WANTED}{_spread(at, line)}"
            )
        row = {}
        for name, value in document.items():
            try:
                row[name] = fitted(value, schema.field(name).type) if name in schema.names else value
            except (pa.ArrowInvalid, ValueError, OverflowError) as error:
                raise InputError(f"{where}: column {name!r} takes {schema.field(name).type}: {_said(error)}") from error
        rows.append((at, row))
    try:
        return rows_to_table([row for _, row in rows], schema)
    except SchemaMismatch:
        for at, row in rows:
            try:
                rows_to_table([row], schema)
            except SchemaMismatch as error:
                raise InputError(f"{source.name}, line {at}: {error.message}") from error
        raise


def _readable(schema: pa.Schema) -> pa.Schema:
    """The types that JSON can be read as without a change; what they really are they become after."""
    return pa.schema([pa.field(field.name, _readable_type(field.type)) for field in schema])


def _readable_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):  # read as a timestamp, its zone would not be looked at
        return pa.string()
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(_readable_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _readable_type(field.type)) for field in kind])
    return kind


def read_csv(
    source: Source, schema: pa.Schema | None, delimiter: str, nulls: list[str] | None, header: bool, block_bytes: int,
) -> Iterator[pa.Table]:  # fmt: skip
    """Rows of a CSV file, whose first line names the columns (unless `header` is false: then they are the topic's)."""
    from pyarrow import csv

    columns = RAW if schema is None else schema
    types = {field.name: field.type for field in columns}
    if schema is None:
        types["key"] = pa.binary()
    convert = csv.ConvertOptions(column_types=types)
    if nulls is not None:  # the empty field is one then, too, or columns that are no text could have none
        convert.null_values = list({*nulls, ""})
        convert.strings_can_be_null, convert.quoted_strings_can_be_null = True, False
    options = csv.ReadOptions(
        use_threads=False, block_size=max(1 << 16, min(block_bytes, _CSV_BLOCK)),
        column_names=None if header else columns.names,
    )  # fmt: skip
    names = columns.names
    try:
        stream = source.stream()
        if header:
            names = _csv_names(stream.peek(), delimiter)
            if other := _other_delimiter(names, columns.names, stream.peek()):
                raise InputError(
                    f"{source.name}: with {delimiter!r} between them its first line has the one column {names[0]!r}; add --delimiter {other}"
                )
        reader = csv.open_csv(stream, options, csv.ParseOptions(delimiter=delimiter, newlines_in_values=True), convert)
        row = 2 if header else 1  # as pyarrow counts them
        for batch in reader:
            _check_times(source, batch, row)
            yield pa.Table.from_batches([batch])
            row += len(batch)
        reading_ahead.discard(source)
    except pa.ArrowNotImplementedError as error:
        raise SchemaMismatch(f"{source.name}: {error}; use JSON lines or Parquet for that type") from error
    except pa.ArrowInvalid as error:
        said = re.sub(r"^In CSV column #(\d+)", lambda found: _csv_column(int(found[1]), names), _said(error))
        raise InputError(f"{source.name}: {said}") from error
    except OSError as error:
        raise InputError(f"cannot read {source.name}: {error.strerror}") from error


def _check_times(source: Source, batch: pa.RecordBatch, row: int) -> None:
    for field, column in zip(batch.schema, batch.columns, strict=True):
        at = first_beyond(column)
        if at is not None:
            what = "day" if pa.types.is_date(field.type) else "time"
            raise InputError(
                f"{source.name}: column {field.name!r}: Row #{row + at}: {column[at].cast(pa.string())} is no {what} of the years 1 to 9999"
            )


def _csv_names(start: bytes, delimiter: str) -> list[str]:
    """The names in the first line, for messages."""
    text = io.StringIO(start.decode("utf-8-sig", "replace"), newline="")
    try:
        return next(filter(None, csv_rows.reader(text, delimiter=delimiter)), [])
    except csv_rows.Error:
        return []


def _other_delimiter(names: list[str], columns: list[str], start: bytes) -> str | None:
    """What stands between the topic's columns in a first line that seems to be one name, as a shell takes it."""
    if len(names) != 1 or names[0] in columns:
        return None
    for written, other in (("';'", ";"), ("'\\t'", "\t"), ("'|'", "|"), ("','", ",")):
        found = _csv_names(start, other)
        if len(found) > 1 and set(columns).issuperset(found):
            return written
    return None


def _csv_column(index: int, names: list[str]) -> str:
    return f"column {names[index]!r}" if index < len(names) else f"CSV column {index + 1}"


def read_parquet(source: Source, block_bytes: int) -> Iterator[pa.Table]:
    from pyarrow import parquet

    if not source.is_file:
        raise UsageError("a Parquet file is read from its end, so it cannot come from a pipe; name the file")
    try:
        # Read as a stream of pages: by default whole row groups of any size would be in memory.
        file = parquet.ParquetFile(f"/dev/fd/{source.fd}" if source.path is None else source.path,
                                   pre_buffer=False, buffer_size=1 << 20)  # fmt: skip
        metadata = file.metadata
        stored = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        rows = max(1, min(1 << 20, int(block_bytes * metadata.num_rows / max(1, stored))))
        for batch in file.iter_batches(batch_size=rows, use_threads=False):
            yield pa.Table.from_batches([batch])
            source.read += int((source.size or 0) * batch.num_rows / max(1, metadata.num_rows))
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{source.name}: {_first_line(error)}") from error


def schema_of(path: Path) -> pa.Schema:
    """The columns of a Parquet, CSV or JSON lines file, as a topic can have them; raises InputError."""
    from pyarrow import csv, parquet

    kind = format_of(path, None)
    with Source(path) as source:
        try:
            if kind == "parquet":
                return parquet.read_schema(path)
            if kind == "csv":
                options = csv.ReadOptions(block_size=_SCHEMA_BYTES, use_threads=False)
                parse = csv.ParseOptions(delimiter=delimiter_of(path, None), newlines_in_values=True)
                return csv.open_csv(source.stream(), options, parse).schema
            if kind == "json":
                _, lines = next(line_blocks(source, _SCHEMA_BYTES, _SCHEMA_BYTES), (0, []))
                odd = next((at for at, line in enumerate(lines, 1) if line.strip()[:1] not in (b"", b"{")), None)
                if odd is not None:
                    raise InputError(f"{path}, line {odd} is no JSON object: {_WANTED}{_spread(odd, lines[odd - 1])}")
                return _json_schema(b"\n".join(lines))
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{path}: {_first_line(error)}") from error
    raise UsageError(f"{path}: columns are taken from .parquet, .csv, .tsv, .json and .jsonl files")


def _json_schema(data: bytes) -> pa.Schema:
    """pyarrow takes a time with a zone for one without; which it is, or whether there are both, its text tells."""
    from pyarrow import json as arrow_json

    def read(options: arrow_json.ParseOptions | None) -> pa.Table:
        return arrow_json.read_json(pa.BufferReader(data), arrow_json.ReadOptions(block_size=len(data) + 1), options)

    found = read(None).schema
    texts = read(arrow_json.ParseOptions(explicit_schema=_readable(found)))
    return pa.schema([(field.name, _json_type(texts.column(field.name), field.type)) for field in found])


def _json_type(texts: Any, found: pa.DataType) -> pa.DataType:
    for kind in (_with_zone(found), found):
        try:
            texts.cast(kind)
        except pa.ArrowInvalid:
            continue
        return kind
    return texts.type


def _with_zone(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return TIMESTAMP
    if pa.types.is_list(kind):
        return pa.list_(_with_zone(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _with_zone(field.type)) for field in kind])
    return kind


def _said(error: Exception) -> str:
    """Its first line; what pyarrow advises to do in its functions, as what to write."""
    return _LOCAL_TIME.sub("; write the zone, as in 2013-01-01T10:00:00Z", _first_line(error))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(". ") if str(error) else type(error).__name__
