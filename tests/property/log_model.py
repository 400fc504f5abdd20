"""What a store should hold, as plain lists, beside the store itself: the model of the log's state machine."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import jjq
from jjq.log.format import ENTRY_SIZE, SYNCED, valid_prefix

US = 1_700_000_000_000_000
METADATA = ("_offset", "_timestamp", "_key")


@dataclass(frozen=True, slots=True)
class Row:
    """A record as it was pushed; `stamp` is None where the broker gives the time."""

    value: Any
    key: bytes | None = None
    stamp: int | None = None


@dataclass(slots=True)
class Part:
    """A partition: its first offset, and the rows from there on. `marks` are ends that a reader remembers."""

    start: int = 0
    rows: list[Row] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.rows)

    def lose(self, end: int) -> None:
        """The end moved back, so that offsets are given again."""
        del self.rows[end - self.start :]
        for mark in self.marks:
            mark.lost |= mark.end > end

    def forget(self, start: int) -> None:
        """Rows were let go on purpose."""
        del self.rows[: start - self.start]
        self.start = start


@dataclass(slots=True)
class Mark:
    """An end as a reader's checkpoint has it: an offset and the lineage it was seen in."""

    end: int
    lineage: int
    lost: bool = False


@dataclass(slots=True)
class Model:
    """A topic. `columns` is None for one of plain values."""

    name: str
    columns: list[str] | None
    producer: bool
    parts: list[Part]

    def expected(self, part: Part, columns: list[str] | None) -> list[tuple[Any, ...]]:
        """Rows as (offset, key, time or None, value or the given columns)."""
        return [
            (offset, row.key, row.stamp, self._shown(row.value, columns))
            for offset, row in enumerate(part.rows, part.start)
        ]

    @staticmethod
    def _shown(value: Any, columns: list[str] | None) -> Any:
        return value if columns is None else tuple(value.get(name) for name in columns)


def read(topic: jjq.Topic, model: Model, partition: int, start: int, end: int) -> list[tuple[Any, ...]]:
    """The same of what the store gives, with the times where the producer gave them."""
    table = topic.read(start={partition: start}, end={partition: end}, metadata=METADATA, partitions=[partition])
    return rows_of(table.read_all(), model, None if topic.schema is None else topic.schema.names)


def rows_of(table: pa.Table, model: Model, columns: list[str] | None) -> list[tuple[Any, ...]]:
    stamps = table["_timestamp"].cast(pa.int64()).to_pylist()
    if columns is None:
        values = table["value"].to_pylist()
    else:
        values = list(zip(*(table[name].to_pylist() for name in columns), strict=True))
    return list(
        zip(
            table["_offset"].to_pylist(), table["_key"].to_pylist(),
            stamps if model.producer else [None] * len(stamps), values, strict=True,
        )
    )  # fmt: skip


# --- what happens to files behind the store's back -------------------------------------------------------------------


def active_file(topic: jjq.Topic, partition: int) -> Path | None:
    return next((Path(each.path) for each in topic.segments(partition) if each.state == "active"), None)


def tear(path: Path, how: str) -> None:
    """What a writer leaves that is killed while it appends. (One that came later would have seen it, and ended the file.)"""
    index = path.with_suffix(".index")
    if index.stat().st_size % ENTRY_SIZE:
        return
    if how == "half an entry":
        with index.open("ab") as file:
            file.write(b"\x02" * (ENTRY_SIZE // 2))
        return
    head, *batches = valid_prefix(index.read_bytes())
    data = path.read_bytes()
    whole = next((data[e.position : e.end_position] for e in batches if e.length), b"\xff\xff\xff\xff\x10\0\0\0")
    with path.open("r+b") as file:
        file.seek((batches or [head])[-1].end_position)  # what is laid out behind it is written over
        file.write({"a message": whole, "half a message": whole[: len(whole) // 2], "zeros": bytes(64)}[how])


def cut_power(path: Path, chance: float) -> int:
    """Takes from the end of an active file and of its index what had not been synced, or a part of it; returns the end
    offset that had been."""
    index = path.with_suffix(".index")
    entries = valid_prefix(index.read_bytes())
    synced = [entry for entry in entries if entry.flags & SYNCED][-1]
    size = path.stat().st_size
    os.truncate(path, synced.end_position + int(chance * (size - synced.end_position)))
    # Entries are not synced when records are appended, whatever the mode: only the first one is sure to be there.
    left = index.stat().st_size - ENTRY_SIZE
    os.truncate(index, ENTRY_SIZE + int((1 - chance) * left))
    return synced.end
