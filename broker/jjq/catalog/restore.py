"""Putting rows back as repair found them to be. For one process that has the store for itself."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from jjq.catalog.base import Catalog
from jjq.catalog.rows import (
    PartitionRow,
    Positions,
    TopicRow,
    pack_positions,
    segment_values,
    unpack_positions,
)
from jjq.catalog.writers import KEPT_BATCHES
from jjq.clock import now_us
from jjq.model import Segment, WriterInfo

Lineages = Sequence[tuple[int, int]]  # (number, start offset)


@dataclasses.dataclass(frozen=True, slots=True)
class Restored:
    """A partition as it is put back."""

    row: PartitionRow
    segments: Sequence[Segment]
    lineages: Lineages


def restore_topic(
    catalog: Catalog, topic: TopicRow, schemas: Mapping[int, pa.Schema | None], partitions: Sequence[Restored]
) -> None:
    """Adds a topic with all that belongs to it."""
    with catalog.driver.write(durable=True) as tx:
        tx.run(
            "add_topic", id=topic.id, name=topic.name, partitions=topic.partitions, config=json.dumps(topic.config),
            schema_version=topic.schema_version, created_at=topic.created_at,
        )  # fmt: skip
        for version, schema in schemas.items():
            data = None if schema is None else schema.serialize().to_pybytes()
            tx.run("add_topic_schema", topic_id=topic.id, version=version, schema=data)
        for each in partitions:
            tx.run("add_partition", **dataclasses.asdict(each.row))
            for segment in each.segments:
                values = segment_values(segment)
                tx.run("add_segment", topic_id=topic.id, partition=each.row.partition, **values)
            for number, start in each.lineages:
                tx.run(
                    "add_lineage", topic_id=topic.id, partition=each.row.partition, number=number, start_offset=start
                )


def restore_writer(catalog: Catalog, writer: WriterInfo, batches: Mapping[int, Positions]) -> None:
    """Adds a writer with the batches it is known to have committed."""
    with catalog.driver.write(durable=True) as tx:
        tx.run(
            "set_writer", id=writer.id, query_id=writer.query_id, last_batch=writer.last_batch,
            updated_at=writer.updated_at,
        )  # fmt: skip
        for batch, positions in batches.items():
            if batch > writer.last_batch - KEPT_BATCHES:
                tx.run(
                    "add_writer_batch", writer_id=writer.id, batch_id=batch, positions=pack_positions(positions),
                    run=None,
                )  # fmt: skip


# What only the catalog knows, besides cursors: taken over from a backup as it was.
_CARRIED = (
    "channels", "channel_partitions", "channel_leases", "objects", "object_references", "pushed",
)  # fmt: skip


def carry_over(older: Catalog, catalog: Catalog) -> None:
    """Takes channels and objects over from a backup of the catalog, but for those of topics that are not there.

    Leases lose their consumers: what they held is delivered again.
    """
    for name in _CARRIED:
        columns, rows = older.driver.table(name)  # type: ignore[attr-defined]
        catalog.driver.fill_table(name, columns, rows)  # type: ignore[attr-defined]
    with catalog.driver.write(durable=True) as tx:
        for statement in ("drop_lost_channels", "drop_lost_channel_partitions", "drop_lost_channel_leases",
                          "free_channel_leases", "drop_lost_object_references", "drop_lost_pushed"):  # fmt: skip
            tx.run(statement)
        # Records that were pushed since the backup may refer to them, too.
        tx.run("doubt_object_references", now=now_us())
        for topic_id, *_ in tx.rows("topics"):  # one may have got partitions since the backup
            tx.run("fill_channel_partitions", topic_id=topic_id)


def restore_garbage(catalog: Catalog, paths: Sequence[str], due_at: int) -> None:
    with catalog.driver.write(durable=True) as tx:
        for path in paths:
            tx.run("add_garbage", path=path, due_at=due_at)


def writer_batches(catalog: Catalog, writer_id: str) -> dict[int, Positions]:
    """The batches of a writer with the positions they got."""
    return {row[0]: unpack_positions(row[1]) for row in catalog.driver.rows("writer_batches", writer_id=writer_id)}


def replace_segment(catalog: Catalog, topic_id: str, partition: int, old: Segment, new: Sequence[Segment]) -> None:
    """Puts what could be saved of a segment, and rows that stand for what could not, in its place."""
    with catalog.driver.write(durable=True) as tx:
        tx.run("drop_segment", topic_id=topic_id, partition=partition, base=old.base, uuid=old.uuid)
        for segment in new:
            tx.run("add_segment", topic_id=topic_id, partition=partition, **segment_values(segment))


def raise_prefix(catalog: Catalog, topic_id: str, partition: int, prefix_max_ts: int) -> None:
    """Makes sure that a partition's highest timestamp is at least that of its last segment."""
    row = catalog.partition(topic_id, partition)
    if row.prefix_max_ts < prefix_max_ts:
        with catalog.driver.write(durable=True) as tx:
            tx.run("update_partition", **dataclasses.asdict(dataclasses.replace(row, prefix_max_ts=prefix_max_ts)))


def replace_active(catalog: Catalog, row: PartitionRow, new: Sequence[Segment], boot_id: str) -> PartitionRow:
    """Ends an active file with what could be saved of it. A lineage begins where it now ends, as more may have been
    there: an offset beyond is not what it was."""
    end = new[-1].end if new else row.end_offset
    after = dataclasses.replace(
        row, active=None, end_offset=end, prefix_max_ts=new[-1].prefix_max_ts if new else row.prefix_max_ts,
        lineage=row.lineage + 1, boot_id=boot_id,
    )  # fmt: skip
    with catalog.driver.write(durable=True) as tx:
        for segment in new:
            tx.run("add_segment", topic_id=row.topic_id, partition=row.partition, **segment_values(segment))
        tx.run(
            "add_lineage", topic_id=row.topic_id, partition=row.partition, number=after.lineage, start_offset=end
        )  # fmt: skip
        tx.run("update_partition", **dataclasses.asdict(after))
    return after
