"""Settings and schemas of a topic, as the parts below it ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from jjq.catalog.rows import TopicRow
from jjq.config import TopicConfig
from jjq.log.contracts import LogSettings
from jjq.log.template import RowsTemplate
from jjq.schema import physical

if TYPE_CHECKING:
    from jjq.parts import StoreParts


class Facts:
    """Settings and schemas of one topic id, for its logs and readers. Schemas of a version never change: kept."""

    def __init__(self, store: StoreParts, topic_id: str) -> None:
        self._store, self._topic_id = store, topic_id
        self._physical: dict[int, pa.Schema] = {}
        self._templates: dict[int, RowsTemplate | None] = {}

    def row(self) -> TopicRow:
        row = self._store.catalog.topic_by_id(self._topic_id)
        if row is None:
            raise self._store.catalog.deleted(self._topic_id)
        return row

    def settings(self) -> LogSettings:
        row = self.row()
        config = TopicConfig.from_dict(row.config)
        return LogSettings(
            row.schema_version, row.partitions, config.sync, config.sync_interval_ms, config.segment_bytes,
            config.segment_rows, config.roll_age_us, self.template(row.schema_version),
        )  # fmt: skip

    def physical(self, version: int) -> pa.Schema:
        found = self._physical.get(version)
        if found is None:
            schemas = self._store.catalog.schemas(self._topic_id)
            if version not in schemas:
                raise self._store.catalog.deleted(self._topic_id)
            found = self._physical[version] = physical(schemas[version])
        return found

    def template(self, version: int) -> RowsTemplate | None:
        if version not in self._templates:
            schema = self.physical(version)
            raw = schema == physical(None)
            self._templates[version] = RowsTemplate(schema) if raw else None
        return self._templates[version]
