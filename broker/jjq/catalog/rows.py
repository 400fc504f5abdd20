"""The rows of the catalog, and what a database must do to keep them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from jjq.config import MAX_PARTITIONS
from jjq.errors import StoreFormat, TopicDeleted
from jjq.model import Segment, StagedFile


class Statements(Protocol):
    """Named queries inside one transaction."""

    def run(self, name: str, /, **values: Any) -> int: ...
    def run_many(self, name: str, values: Iterable[dict[str, Any]], /) -> None: ...
    def rows(self, name: str, /, **values: Any) -> list[tuple[Any, ...]]: ...
    def row(self, name: str, /, **values: Any) -> tuple[Any, ...] | None: ...


class Driver(Protocol):
    """A database. `rows` and `row` are reads that end at once; `write` is serialised among all processes."""

    def rows(self, name: str, /, **values: Any) -> list[tuple[Any, ...]]: ...
    def row(self, name: str, /, **values: Any) -> tuple[Any, ...] | None: ...
    def snapshot(self) -> AbstractContextManager[Statements]: ...
    def write(self, *, durable: bool) -> AbstractContextManager[Statements]: ...
    def run(self, name: str, /, *, durable: bool, **values: Any) -> int: ...
    def problems(self) -> list[str]: ...
    def check_named(self) -> None: ...
    def backup(self, target: Path) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TopicRow:
    id: str
    name: str
    partitions: int
    config: dict[str, Any]
    schema_version: int
    created_at: int
    schema: pa.Schema | None


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """`end_offset` is where the catalog's segments end: the base of the active file, whose own end its index tells."""

    topic_id: str
    partition: int
    start_offset: int
    end_offset: int
    active: str | None
    active_schema: int
    lineage: int
    boot_id: str
    prefix_max_ts: int


@dataclass(frozen=True, slots=True)
class SubscriberRow:
    id: str
    name: str
    topic_id: str
    on_data_loss: str
    created_at: int
    topic: str


Positions = dict[str, dict[int, tuple[int, int]]]


def topic_row(row: tuple[Any, ...]) -> TopicRow:
    try:
        config = json.loads(row[3])
        if not (isinstance(row[2], int) and 1 <= row[2] <= MAX_PARTITIONS):  # else as many would be asked for
            raise ValueError(f"it has {row[2]} partitions")
    except (TypeError, ValueError, RecursionError) as error:
        raise _unreadable("settings", error) from error
    return TopicRow(row[0], row[1], row[2], config, row[4], row[5], schema_of_bytes(row[6]))


def schema_of_bytes(data: bytes | None) -> pa.Schema | None:
    try:
        return None if data is None else pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, TypeError, OSError) as error:
        raise _unreadable("a schema", error) from error


def _unreadable(what: str, error: Exception) -> StoreFormat:
    """A database has no checksum over its pages: a flipped bit shows when the value makes no sense."""
    return StoreFormat(
        f"the catalog has {what} of a topic that cannot be read ({error}); `jjq repair` makes it again from the files",
        path="catalog.db",
    )


def segment_row(row: tuple[Any, ...]) -> Segment:
    uuid, kind, base, end, length, crc, meta_crc, version, min_ts, max_ts, prefix, appended, level = row
    return Segment(uuid, kind, base, end, length, crc, meta_crc, version, min_ts, max_ts, prefix, appended, level)


def segment_values(segment: Segment) -> dict[str, Any]:
    values = dataclasses.asdict(segment)
    values["end_offset"] = values.pop("end")
    return values


def deleted(topic_id: str, name: str | None) -> TopicDeleted:
    if name is None:
        return TopicDeleted(f"a topic (id {topic_id}) was deleted", topic_id=topic_id)
    return TopicDeleted(
        f"topic {name!r} was deleted; get it again with store.topic({name!r}), if it was made again",
        topic_id=topic_id, topic=name,
    )  # fmt: skip


def pack_positions(positions: Positions) -> str:
    return json.dumps({t: {str(p): span for p, span in each.items()} for t, each in positions.items()}, sort_keys=True)


def unpack_positions(text: str) -> Positions:
    return {t: {int(p): (s[0], s[1]) for p, s in each.items()} for t, each in json.loads(text).items()}


def staged_segment(file: StagedFile, base: int, prefix_max_ts: int, appended_at: int) -> Segment:
    """A staged file as the segment it becomes at offset `base`."""
    return Segment(
        file.uuid, "arrow", base, base + file.rows, file.length, file.crc, file.meta_crc, file.schema_version,
        file.min_ts, file.max_ts, max(prefix_max_ts, file.max_ts), appended_at,
    )  # fmt: skip
