"""`topic.json`: what the catalog says of a topic, again, beside its data, for the day the catalog is lost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from jjq import layout
from jjq.catalog.base import Catalog
from jjq.catalog.rows import TopicRow
from jjq.config import MAX_PARTITIONS
from jjq.errors import TopicDeleted
from jjq.model import check_name


@dataclass(frozen=True, slots=True)
class TopicFile:
    """What a `topic.json` says. `spans` is `(start, end)` by partition when it was written, `lineages` by partition
    (number, start offset)."""

    row: TopicRow
    deleted: bool
    schemas: dict[int, pa.Schema | None]
    spans: dict[int, tuple[int, int]]
    lineages: dict[int, list[tuple[int, int]]]


def path_of(store: Path, topic_id: str) -> Path:
    return store / "topics" / topic_id / layout.TOPIC_FILE


def write(store: Path, catalog: Catalog, row: TopicRow, *, deleted: bool = False) -> None:
    """Replaces the file atomically and durably. The caller holds a partition's lock, or nobody knows the topic yet."""
    layout.write_json(path_of(store, row.id), _body(catalog, row, deleted))


def differs(store: Path, catalog: Catalog, row: TopicRow) -> bool:
    """Whether the file misses something that the catalog says, but for ends, which grow all the time."""
    known, wanted = layout.read_json(path_of(store, row.id)), _body(catalog, row, False)
    return known is None or _without_ends(known) != _without_ends(wanted)


def _without_ends(body: dict[str, Any]) -> dict[str, Any]:
    offsets = body.get("offsets")
    starts = {key: span[:1] for key, span in offsets.items()} if isinstance(offsets, dict) else None
    return body | {"offsets": starts}


def _body(catalog: Catalog, row: TopicRow, deleted: bool) -> dict[str, Any]:
    try:
        partitions = [] if deleted else catalog.partitions(row.id)
        offsets = {str(p.partition): [p.start_offset, p.end_offset] for p in partitions}
    except TopicDeleted:  # it is about to be made
        partitions, offsets = [], {str(partition): [0, 0] for partition in range(row.partitions)}
    schemas = {row.schema_version: row.schema} | catalog.schemas(row.id)
    lineages = {p.partition: catalog.lineages(row.id, p.partition, -1) for p in partitions}
    return {
        "id": row.id,
        "name": row.name,
        "partitions": row.partitions,
        "config": row.config,
        "schema_version": row.schema_version,
        "created_at": row.created_at,
        "deleted": deleted,
        "offsets": offsets,
        "lineages": {str(p): [list(each) for each in found] for p, found in lineages.items() if found},
        "schemas": {
            str(version): None if schema is None else schema.serialize().to_pybytes().hex()
            for version, schema in sorted(schemas.items())
        },
    }


def read(store: Path, topic_id: str) -> TopicFile | None:
    """None when it is not there, or is not what was written."""
    body = layout.read_json(path_of(store, topic_id))
    try:
        if body is None or body["id"] != topic_id:
            return None
        check_name(body["name"], "topic")
        if not 1 <= body["partitions"] <= MAX_PARTITIONS:
            return None
        schemas = {int(version): _schema(text) for version, text in body["schemas"].items()}
        version = int(body["schema_version"])
        row = TopicRow(
            topic_id, str(body["name"]), int(body["partitions"]), dict(body["config"]), version,
            int(body["created_at"]), schemas[version],
        )  # fmt: skip
        spans = {int(partition): (int(span[0]), int(span[1])) for partition, span in body["offsets"].items()}
        lineages = {
            int(partition): [(int(number), int(start)) for number, start in found]
            for partition, found in body.get("lineages", {}).items()
        }
        return TopicFile(row, bool(body["deleted"]), schemas, spans, lineages)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, pa.ArrowException):
        return None


def _schema(text: str | None) -> pa.Schema | None:
    return None if text is None else pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text)))
