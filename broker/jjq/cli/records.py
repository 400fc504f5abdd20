"""Records on the standard output: as lines, JSON or a table."""

from __future__ import annotations

import abc
import argparse
import json
import sys
from typing import Any

from jjq.cli import output
from jjq.model import Record

OUTPUTS = ("lines", "json", "table")
_CELL = 60


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", "-o", choices=OUTPUTS,
        help="lines: the value as it is, or a JSON object of its columns (default); json: a JSON object a record, with "
        "partition, offset, time, key and headers; table",
    )  # fmt: skip


def writer_for(arguments: argparse.Namespace) -> Writer:
    kind = arguments.output or ("json" if arguments.json else "lines")
    return {"lines": LineWriter, "json": JsonWriter, "table": TableWriter}[kind]()


class Writer(abc.ABC):
    """Takes records one by one; `flush` shows all of them."""

    @abc.abstractmethod
    def write(self, record: Record) -> None: ...

    def flush(self) -> None:
        sys.stdout.flush()


class LineWriter(Writer):
    """The value and the end of a line. Bytes go out as they came in."""

    def write(self, record: Record) -> None:
        value = record.value
        if isinstance(value, dict):
            value = _dump(value).encode()
        sys.stdout.buffer.write((b"" if value is None else value) + b"\n")

    def flush(self) -> None:
        sys.stdout.buffer.flush()


class JsonWriter(LineWriter):
    def write(self, record: Record) -> None:
        sys.stdout.buffer.write(_dump(to_json(record)).encode() + b"\n")


def to_json(record: Record) -> dict[str, Any]:
    headers = None if record.headers is None else [[name, value] for name, value in record.headers]
    return {
        "topic": record.topic, "partition": record.partition, "offset": record.offset,
        "timestamp": output.instant(record.timestamp), "key": record.key, "headers": headers, "value": record.value,
    }  # fmt: skip


def _dump(value: Any) -> str:
    return json.dumps(output.jsonable(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class TableWriter(Writer):
    """The first rows decide how wide the columns are; a later cell that is wider pushes the rest of its line aside."""

    def __init__(self) -> None:
        self._rows: list[list[str]] = []
        self._names: list[str] = []
        self._widths: list[int] = []

    def write(self, record: Record) -> None:
        value = record.value
        own = value if isinstance(value, dict) else {"value": value}
        if not self._names:
            self._names = ["partition", "offset", "timestamp", "key", *own]
        cells = [record.partition, record.offset, output.instant(record.timestamp), record.key, *own.values()]
        self._rows.append([_cell(each) for each in cells])
        if len(self._rows) >= 500:
            self.flush()

    def flush(self) -> None:
        if self._rows and not self._widths:
            self._widths = [max(len(name), *(len(row[i]) for row in self._rows)) for i, name in enumerate(self._names)]
            self._print([name.upper() for name in self._names])
        for row in self._rows:
            self._print(row)
        self._rows.clear()
        sys.stdout.flush()

    def _print(self, row: list[str]) -> None:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, self._widths, strict=True)).rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    shown = output.jsonable(value)
    text = output.plain(shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False))
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"
