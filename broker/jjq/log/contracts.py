"""What the log asks of the parts of jjq above it: the catalog, and the facts of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from jjq.log.template import RowsTemplate
from jjq.model import Segment


class PartitionState(Protocol):
    """The catalog's row of a partition, as the log needs it."""

    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def active(self) -> str | None: ...
    @property
    def active_schema(self) -> int: ...
    @property
    def lineage(self) -> int: ...
    @property
    def boot_id(self) -> str: ...
    @property
    def prefix_max_ts(self) -> int: ...


class LogCatalog(Protocol):
    """What a log asks of the catalog. `roll` is durable on return; reads are of one state each. `check_named` raises
    StoreError where it, or the whole store, is not what others find any more."""

    def check_named(self) -> None: ...
    def partition(self, topic_id: str, partition: int) -> Any: ...
    def segments(self, topic_id: str, partition: int, start: int, end: int) -> tuple[Any, list[Segment]]: ...
    def first_segment_reaching(self, topic_id: str, partition: int, ts: int) -> Segment | None: ...
    def first_segment_with(self, topic_id: str, partition: int, ts: int) -> Segment | None: ...
    def lineages(self, topic_id: str, partition: int, after: int) -> list[tuple[int, int]]: ...
    def roll(
        self, before: Any, *, closed: Segment | None, active: str | None, active_schema: int, boot_id: str,
        lineage_start: int | None = None, garbage: Sequence[str] = (), due_at: int = 0,
    ) -> Any: ...  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What appending needs to know of a topic; read again whenever another active file is opened."""

    schema_version: int
    partitions: int
    sync: str
    sync_interval_ms: int
    segment_bytes: int
    segment_rows: int | None
    segment_age_us: int | None
    template: RowsTemplate | None  # of this version of the schema, where the topic has none


class TopicFacts(Protocol):
    """Settings and schemas of one topic. `settings` asks the catalog and raises TopicDeleted; schemas never change."""

    def settings(self) -> LogSettings: ...
    def physical(self, version: int) -> pa.Schema: ...
    def template(self, version: int) -> RowsTemplate | None: ...
