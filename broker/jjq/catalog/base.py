"""What the catalog is asked and told, whatever database is below.

Each method is one transaction. Those that move a partition's end are called with that partition's lock held.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from jjq.catalog.rows import (
    Driver,
    PartitionRow,
    Positions,
    Statements,
    SubscriberRow,
    TopicRow,
    deleted,
    schema_of_bytes,
    segment_row,
    segment_values,
    topic_row,
    unpack_positions,
)
from jjq.catalog.writers import add_batch, known_batch
from jjq.errors import InvalidArgument, TopicDeleted
from jjq.model import Segment, WriterInfo

_MOST_NAMES = 10_000


class Catalog:
    """The catalog of one store."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._names: dict[str, str] = {}  # of topics by id, for what is said when they are gone

    def problems(self) -> list[str]:
        """What the database's own check finds wrong with itself; empty when it is sound."""
        return self.driver.problems()

    def check_named(self) -> None:
        """Raises StoreError where others find no catalog, or another one, in the place of this one."""
        self.driver.check_named()

    def backup(self, target: Path) -> None:
        """Writes a copy of one state to a new file, also while others write."""
        self.driver.backup(target)

    def meta(self, key: str) -> str | None:
        row = self.driver.row("meta", key=key)
        return None if row is None else str(row[0])

    def set_meta(self, key: str, value: str, *, durable: bool = True) -> None:
        with self.driver.write(durable=durable) as tx:
            tx.run("set_meta", key=key, value=value)

    # --- topics ------------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicRow | None:
        row = self.driver.row("topic_by_name", name=name)
        return None if row is None else self._seen(topic_row(row))

    def topic_by_id(self, topic_id: str) -> TopicRow | None:
        row = self.driver.row("topic_by_id", id=topic_id)
        return None if row is None else self._seen(topic_row(row))

    def topics(self) -> list[TopicRow]:
        return [self._seen(topic_row(row)) for row in self.driver.rows("topics")]

    def _seen(self, row: TopicRow) -> TopicRow:
        self.remember(row.id, row.name)
        return row

    def remember(self, topic_id: str, name: str) -> None:
        """The name of a topic, as whoever asks for it by its id alone should be told when it is gone."""
        if len(self._names) >= _MOST_NAMES and topic_id not in self._names:
            self._names.clear()  # a store may see topics come and go for ever
        self._names[topic_id] = name

    def deleted(self, topic_id: str) -> TopicDeleted:
        """What to raise where a topic's rows are gone; it names the topic if this process has ever seen it."""
        return deleted(topic_id, self._names.get(topic_id))

    def partition_count(self, topic_id: str) -> int:
        """How many partitions a topic has now; raises TopicDeleted."""
        row = self.driver.row("partition_count", topic_id=topic_id)
        if row is None:
            raise self.deleted(topic_id)
        return int(row[0])

    def topic_ids(self) -> dict[str, str]:
        """The names of all topics, by id: to see whether some came or went."""
        return dict(self.driver.rows("topic_ids"))

    def topic_names(self) -> list[str]:
        return [row[0] for row in self.driver.rows("topic_names")]

    def schemas(self, topic_id: str) -> dict[int, pa.Schema | None]:
        rows = self.driver.rows("topic_schemas", topic_id=topic_id)
        return {version: schema_of_bytes(data) for version, data in rows}

    def add_topic(self, topic: TopicRow, boot_id: str, prefix_max_ts: int) -> bool:
        """False, and nothing done, when the name is taken."""
        with self.driver.write(durable=True) as tx:
            if tx.row("topic_by_name", name=topic.name):
                return False
            tx.run(
                "add_topic", id=topic.id, name=topic.name, partitions=topic.partitions, config=json.dumps(topic.config),
                schema_version=topic.schema_version, created_at=topic.created_at,
            )  # fmt: skip
            self._add_schema(tx, topic.id, topic.schema_version, topic.schema)
            self._add_partitions(tx, topic, range(topic.partitions), boot_id, prefix_max_ts)
            return True

    @staticmethod
    def _add_partitions(tx: Statements, topic: TopicRow, added: range, boot_id: str, prefix_max_ts: int) -> None:
        for partition in added:
            tx.run(
                "add_partition", topic_id=topic.id, partition=partition, start_offset=0, end_offset=0, active=None,
                active_schema=topic.schema_version, lineage=0, boot_id=boot_id, prefix_max_ts=prefix_max_ts,
            )  # fmt: skip

    @staticmethod
    def _add_schema(tx: Statements, topic_id: str, version: int, schema: pa.Schema | None) -> None:
        data = None if schema is None else schema.serialize().to_pybytes()
        tx.run("add_topic_schema", topic_id=topic_id, version=version, schema=data)

    # --- partitions --------------------------------------------------------------------------------------------------

    def partition(self, topic_id: str, partition: int) -> PartitionRow:
        """Raises TopicDeleted when the topic is gone."""
        row = self.driver.row("partition", topic_id=topic_id, partition=partition)
        if row is None:
            raise self.deleted(topic_id)
        return PartitionRow(*row)

    def partitions(self, topic_id: str) -> list[PartitionRow]:
        rows = self.driver.rows("partitions", topic_id=topic_id)
        if not rows:
            raise self.deleted(topic_id)
        return [PartitionRow(*row) for row in rows]

    def partitions_by_topic(self, name: str | None = None) -> list[tuple[str, PartitionRow]]:
        """Every partition with the name of its topic, by name and partition; of one topic, if it is named."""
        rows = (
            self.driver.rows("partitions_by_topic")
            if name is None
            else self.driver.rows("partitions_by_name", name=name)
        )
        found = [(str(row[0]), PartitionRow(*row[1:])) for row in rows]
        for topic, row in found:
            self.remember(row.topic_id, topic)
        return found

    def segments(self, topic_id: str, partition: int, start: int, end: int) -> tuple[PartitionRow, list[Segment]]:
        """The partition and its segments that hold offsets of `[start, end)`, of one state."""
        with self.driver.snapshot() as tx:
            row = tx.row("partition", topic_id=topic_id, partition=partition)
            if row is None:
                raise self.deleted(topic_id)
            found = tx.rows("segments_in", topic_id=topic_id, partition=partition, start_offset=start, end_offset=end)
        return PartitionRow(*row), [s for s in map(segment_row, found) if s.end > start]

    def segment(self, uuid: str) -> tuple[str, int, Segment] | None:
        """(topic id, partition, segment)"""
        row = self.driver.row("segment_by_uuid", uuid=uuid)
        return None if row is None else (row[0], row[1], segment_row(row[2:]))

    def first_segment_reaching(self, topic_id: str, partition: int, ts: int) -> Segment | None:
        """The first segment up to which the partition's highest timestamp is at least `ts` microseconds."""
        row = self.driver.row("first_segment_reaching", topic_id=topic_id, partition=partition, ts=ts)
        return None if row is None else segment_row(row)

    def first_segment_with(self, topic_id: str, partition: int, ts: int) -> Segment | None:
        """The first segment that itself has a timestamp of at least `ts` microseconds."""
        row = self.driver.row("first_segment_with", topic_id=topic_id, partition=partition, ts=ts)
        return None if row is None else segment_row(row)

    def segment_counts(self, topic_id: str) -> dict[int, tuple[int, int, int, int]]:
        """By partition: segments, their bytes, how many wait for compaction, and records that repair found lost."""
        return {
            row[0]: (row[1], row[2], row[3], row[4]) for row in self.driver.rows("segment_counts", topic_id=topic_id)
        }

    def pushed_bytes(self, topic_id: str) -> int:
        """Bytes of a topic's files that were ever closed or linked, also of those that are gone."""
        row = self.driver.row("pushed_bytes", topic_id=topic_id)
        return 0 if row is None else int(row[0])

    def segments_by_kind(self, topic_id: str) -> dict[str, tuple[int, int]]:
        """Closed segments, and their bytes, by kind: `arrows`, `arrow`, `lost`."""
        return {row[0]: (row[1], row[2]) for row in self.driver.rows("segments_by_kind", topic_id=topic_id)}

    def lineages(self, topic_id: str, partition: int, after: int) -> list[tuple[int, int]]:
        """(number, start offset) of the lineages later than `after`."""
        rows = self.driver.rows("lineages", topic_id=topic_id, partition=partition, after=after)
        return [(row[0], row[1]) for row in rows]

    def roll(
        self, before: PartitionRow, *, closed: Segment | None, active: str | None, active_schema: int, boot_id: str,
        lineage_start: int | None = None, garbage: Sequence[str] = (), due_at: int = 0,
    ) -> PartitionRow:  # fmt: skip
        """Takes a closed file's row in (None: it had no rows) and names the next active file (None: later).

        `lineage_start` begins a new lineage there. The row is the one read under the lock; another one means that the
        lock was not held, and raises.
        """
        with self.driver.write(durable=True) as tx:
            row = tx.row("partition", topic_id=before.topic_id, partition=before.partition)
            if row is None:
                raise self.deleted(before.topic_id)
            current = PartitionRow(*row)
            if current.active != before.active or current.end_offset != before.end_offset:
                raise RuntimeError(f"partition {before.partition} of {before.topic_id} changed without its lock")
            after = dataclasses.replace(current, active=active, active_schema=active_schema, boot_id=boot_id)
            if closed is not None:
                tx.run("add_segment", topic_id=before.topic_id, partition=before.partition, **segment_values(closed))
                tx.run("count_pushed", topic_id=before.topic_id, partition=before.partition, bytes=closed.length)
                after = dataclasses.replace(after, end_offset=closed.end, prefix_max_ts=closed.prefix_max_ts)
            if lineage_start is not None:
                after = dataclasses.replace(after, lineage=current.lineage + 1)
                tx.run(
                    "add_lineage", topic_id=before.topic_id, partition=before.partition, number=after.lineage,
                    start_offset=lineage_start,
                )  # fmt: skip
            tx.run("update_partition", **dataclasses.asdict(after))
            for path in garbage:
                tx.run("add_garbage", path=path, due_at=due_at)
            return after

    # --- linking staged files ----------------------------------------------------------------------------------------

    def find_batch(self, writer_id: str, batch_id: int, query_id: str | None) -> Positions | None:
        """The positions of a batch that the writer has committed; raises WriterConflict for one that cannot follow."""
        with self.driver.snapshot() as tx:
            return known_batch(tx, writer_id, batch_id, query_id)

    def writer_topics(self, writer_id: str) -> set[str]:
        """The names of the topics that the batches which are remembered of a writer went to."""
        rows = self.driver.rows("writer_batches", writer_id=writer_id)
        return {name for _, positions in rows for name in unpack_positions(positions)}

    def claim_batch(self, writer_id: str, batch_id: int, run_id: str) -> bool:
        """A known batch is this run's from now on; False when it is already, as this run has brought it before."""
        changed = self.driver.run(
            "claim_writer_batch", durable=True, writer_id=writer_id, batch_id=batch_id, run=run_id
        )
        return changed > 0

    def link(
        self, rows: Mapping[tuple[str, int], PartitionRow], segments: Mapping[tuple[str, int], Sequence[Segment]],
        *, writer: tuple[str, int, str | None] | None, positions: Positions, now: int, run_id: str | None = None,
        also: Callable[[Statements], None] | None = None,
    ) -> Positions | None:  # fmt: skip
        """Takes staged files (and the active files closed before them) in: all of them once, or none.

        `rows` are the partitions as read under their locks, with `segments` to add in order after them. Returns the
        first positions when the writer's batch is known, else None. The partitions' active files end here. `also` is done
        in the same transaction, which is rolled back when it raises.
        """
        with self.driver.write(durable=True) as tx:
            if writer is not None:
                writer_id, batch_id, query_id = writer
                known = known_batch(tx, writer_id, batch_id, query_id)
                if known is not None:
                    return known
                add_batch(tx, writer, positions, run_id, now)
            for (topic_id, partition), before in rows.items():
                row = tx.row("partition", topic_id=topic_id, partition=partition)
                if row is None:
                    raise self.deleted(topic_id)
                current = PartitionRow(*row)
                if current.active != before.active or current.end_offset != before.end_offset:
                    raise RuntimeError(f"partition {partition} of {topic_id} changed without its lock")
                added = segments[topic_id, partition]
                for segment in added:
                    _check_new(tx, topic_id, partition, segment)
                    tx.run("add_segment", topic_id=topic_id, partition=partition, **segment_values(segment))
                tx.run(
                    "count_pushed", topic_id=topic_id, partition=partition, bytes=sum(each.length for each in added)
                )  # fmt: skip
                last = added[-1] if added else None
                after = dataclasses.replace(
                    current,
                    active=None,
                    end_offset=last.end if last else current.end_offset,
                    prefix_max_ts=last.prefix_max_ts if last else current.prefix_max_ts,
                )
                tx.run("update_partition", **dataclasses.asdict(after))
            if also is not None:
                also(tx)
        return None

    def writers(self) -> list[WriterInfo]:
        return [WriterInfo(*row) for row in self.driver.rows("writers")]

    def drop_writer(self, writer_id: str) -> bool:
        with self.driver.write(durable=True) as tx:
            tx.run("drop_writer_batches", writer_id=writer_id)
            return tx.run("drop_writer", id=writer_id) > 0

    # --- changing what is there --------------------------------------------------------------------------------------

    def swap(
        self, topic_id: str, partition: int, inputs: Sequence[Segment], outputs: Sequence[Segment],
        garbage: Sequence[str], due_at: int,
    ) -> bool:  # fmt: skip
        """Puts compacted files in the place of their inputs; False, and nothing done, when one input is no longer live."""
        with contextlib.suppress(_InputGone), self.driver.write(durable=True) as tx:
            for old in inputs:
                if not tx.run("drop_segment", topic_id=topic_id, partition=partition, base=old.base, uuid=old.uuid):
                    raise _InputGone
            for new in outputs:
                tx.run("add_segment", topic_id=topic_id, partition=partition, **segment_values(new))
            for path in garbage:
                tx.run("add_garbage", path=path, due_at=due_at)
            return True
        return False

    def advance_start(
        self, topic_id: str, partition: int, start: int, garbage: Sequence[str], due_at: int,
        *, move_cursors: bool = False,
    ) -> None:  # fmt: skip
        """Lets go of all segments that end at or before `start`, the partition's new first offset."""
        self.advance_starts(topic_id, {partition: start}, garbage, due_at, move_cursors=move_cursors)

    def advance_starts(
        self, topic_id: str, starts: Mapping[int, int], garbage: Sequence[str], due_at: int,
        *, move_cursors: bool = False,
    ) -> None:  # fmt: skip
        """`advance_start` for several partitions: of all of them, or of none.

        `move_cursors` takes subscribers and channels along: records let go on purpose are no loss to those who had not
        read them.
        """
        with self.driver.write(durable=True) as tx:
            for partition, start in starts.items():
                row = tx.row("partition", topic_id=topic_id, partition=partition)
                if row is None:
                    raise self.deleted(topic_id)
                current = PartitionRow(*row)
                if start > current.start_offset:
                    tx.run("drop_segments_below", topic_id=topic_id, partition=partition, end_offset=start)
                    tx.run("update_partition", **dataclasses.asdict(dataclasses.replace(current, start_offset=start)))
                if move_cursors:  # also past what retention had taken before
                    for name in ("move_topic_cursors", "move_topic_channels"):
                        tx.run(
                            name, topic_id=topic_id, partition=partition, next_offset=start, lineage=current.lineage
                        )  # fmt: skip
                    tx.run("drop_topic_leases_below", topic_id=topic_id, partition=partition, next_offset=start)
            for path in garbage:
                tx.run("add_garbage", path=path, due_at=due_at)

    def drop_prefix(
        self, topic_id: str, partition: int, segments: Sequence[Segment], garbage: Sequence[str], due_at: int,
        *, unless: Callable[[Statements], bool] | None = None,
    ) -> bool:  # fmt: skip
        """Lets go of a partition's first segments; False, and nothing done, when they are no longer its first, or `unless`
        is true in the same transaction."""
        with contextlib.suppress(_InputGone), self.driver.write(durable=True) as tx:
            row = tx.row("partition", topic_id=topic_id, partition=partition)
            if row is None:
                raise self.deleted(topic_id)
            current = PartitionRow(*row)
            if current.start_offset != segments[0].base or (unless is not None and unless(tx)):
                raise _InputGone
            for each in segments:
                if not tx.run("drop_segment", topic_id=topic_id, partition=partition, base=each.base, uuid=each.uuid):
                    raise _InputGone
            after = dataclasses.replace(current, start_offset=segments[-1].end)
            tx.run("update_partition", **dataclasses.asdict(after))
            for path in garbage:
                tx.run("add_garbage", path=path, due_at=due_at)
            return True
        return False

    def alter_topic(self, after: TopicRow, boot_id: str, prefix_max_ts: int) -> None:
        """Makes a topic's row what it is to be: with another schema version, or with more partitions, which subscribers and
        channels begin at offset 0."""
        with self.driver.write(durable=True) as tx:
            row = tx.row("topic_by_id", id=after.id)
            if row is None:
                raise self.deleted(after.id)
            if after.schema_version != row[4]:
                self._add_schema(tx, after.id, after.schema_version, after.schema)
            tx.run(
                "update_topic", id=after.id, config=json.dumps(after.config), schema_version=after.schema_version,
                partitions=after.partitions,
            )  # fmt: skip
            if after.partitions > row[2]:
                self._add_partitions(tx, after, range(row[2], after.partitions), boot_id, prefix_max_ts)
                tx.run("fill_cursors", topic_id=after.id)
                tx.run("fill_channel_partitions", topic_id=after.id)

    def drop_topic(self, topic_id: str, garbage: Sequence[str], due_at: int) -> None:
        with self.driver.write(durable=True) as tx:
            for name in (
                "drop_topic_channel_leases", "drop_topic_channel_consumers", "drop_topic_channel_partitions",
                "drop_topic_channels", "drop_topic_cursors", "drop_topic_subscribers", "drop_topic_segments", "drop_lineages", "drop_pushed",
                "drop_partitions", "drop_topic_schemas", "drop_topic",
            ):  # fmt: skip
                tx.run(name, topic_id=topic_id)
            for path in garbage:
                tx.run("add_garbage", path=path, due_at=due_at)

    def garbage(self, now: int | None = None) -> list[str]:
        """Paths, relative to the store, that may be removed (by `now`, in microseconds; None: ever)."""
        rows = self.driver.rows("garbage") if now is None else self.driver.rows("garbage_due", now=now)
        return [row[0] for row in rows]

    def is_garbage(self, path: str) -> bool:
        """Whether a path, relative to the store, waits for its removal."""
        return self.driver.row("garbage_row", path=path) is not None

    def drop_garbage(self, paths: Sequence[str]) -> None:
        with self.driver.write(durable=False) as tx:
            for path in paths:
                tx.run("drop_garbage", path=path)

    def ids_without_topic(self) -> list[str]:
        """Ids that rows name and no topic has; none in a catalog that is whole."""
        return [row[0] for row in self.driver.rows("ids_without_topic")]

    # --- subscribers -------------------------------------------------------------------------------------------------

    def subscriber(self, name: str) -> SubscriberRow | None:
        row = self.driver.row("subscriber", name=name)
        return None if row is None else SubscriberRow(*row)

    def subscribers(self) -> list[SubscriberRow]:
        return [SubscriberRow(*row) for row in self.driver.rows("subscribers")]

    def add_subscriber(self, row: SubscriberRow, cursors: Mapping[int, tuple[int, int]]) -> bool:
        """False when the name is taken. `cursors` by partition: (next offset, lineage). Partitions that were added since
        those were looked up begin at offset 0."""
        with self.driver.write(durable=True) as tx:
            if tx.row("subscriber", name=row.name):
                return False
            if not tx.row("topic_by_id", id=row.topic_id):
                raise self.deleted(row.topic_id)
            tx.run(
                "add_subscriber", id=row.id, name=row.name, topic_id=row.topic_id, on_data_loss=row.on_data_loss,
                created_at=row.created_at,
            )  # fmt: skip
            for partition, (offset, lineage) in cursors.items():
                tx.run("set_cursor", subscriber_id=row.id, partition=partition, next_offset=offset, lineage=lineage)
            tx.run("fill_cursors", topic_id=row.topic_id)
            return True

    def drop_subscriber(self, subscriber_id: str) -> bool:
        with self.driver.write(durable=True) as tx:
            tx.run("drop_cursors", subscriber_id=subscriber_id)
            return tx.run("drop_subscriber", id=subscriber_id) > 0

    def cursors(self, subscriber_id: str) -> dict[int, tuple[int, int]]:
        rows = self.driver.rows("cursors", subscriber_id=subscriber_id)
        return {row[0]: (row[1], row[2]) for row in rows}

    def move_cursor(self, subscriber_id: str, partition: int, expected: int, offset: int, lineage: int) -> bool:
        """Compare and set; False when the cursor is no longer at `expected`, or the partition no longer of `lineage`."""
        changed = self.driver.run(
            "move_cursor", durable=False, subscriber_id=subscriber_id, partition=partition, expected=expected,
            next_offset=offset, lineage=lineage,
        )  # fmt: skip
        return changed > 0

    def set_cursors(self, subscriber_id: str, cursors: Mapping[int, tuple[int, int]], *, only_forward: bool) -> bool:
        """False, and nothing done, when the subscriber is gone. A later lineage counts as forward."""
        with self.driver.write(durable=False) as tx:
            if not tx.row("subscriber_by_id", id=subscriber_id):
                return False
            for partition, (offset, lineage) in cursors.items():
                tx.run(
                    "advance_cursor" if only_forward else "set_cursor",
                    subscriber_id=subscriber_id, partition=partition, next_offset=offset, lineage=lineage,
                )  # fmt: skip
            return True

    def close(self) -> None:
        self.driver.close()


class _InputGone(Exception):
    """Rolls a transaction back: what it wanted to replace is no longer there."""


def _check_new(tx: Statements, topic_id: str, partition: int, segment: Segment) -> None:
    """A file has its rows in a partition once, also after compaction has put another in its place."""
    path = f"topics/{topic_id}/{partition}/{segment.uuid}.{segment.kind}"
    if tx.row("segment_by_uuid", uuid=segment.uuid) or tx.row("garbage_row", path=path):
        raise InvalidArgument(
            f"the staged file {segment.uuid} has been committed before, so nothing was done; a commit that may be tried "
            f"again needs a writer_id and a batch_id",
            path=path,
        )
