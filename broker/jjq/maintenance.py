"""The care a store needs while it is used: old files rolled, compacted, expired and removed, leftovers of dead processes
found. Any process may do it at any time; one at a time does.

No partition's lock is held while files are rewritten. Each step is complete in itself, so that a process may die between
any two of them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from jjq import compaction, ephemeral, files, layout, objects, topicfile
from jjq.catalog.rows import PartitionRow, Statements, TopicRow
from jjq.catalog.waits import floor
from jjq.clock import now_us
from jjq.config import GRACE_US, TopicConfig
from jjq.errors import JjqError, StoreClosed, StoreError, TopicDeleted, TopicNotFound
from jjq.facts import Facts
from jjq.known import in_use
from jjq.log.reader import LOST
from jjq.log.sealed import SealedReader
from jjq.log.stream import StreamReader
from jjq.model import Segment
from jjq.removal import Removal
from jjq.reports import MaintenanceReport, Progress, no_progress
from jjq.topics import say_unknown
from jjq.values import counted, whole

if TYPE_CHECKING:
    from jjq.store import Store

BACKUP_US = 3_600_000_000
_EVER = 1 << 62
_QUIET_US = 3_600_000_000

_held: set[int] = set()  # descriptors of maintenance locks: a forked child must not keep one


def maintain(store: Store, progress: Progress | None = None, *, grace_us: int | None = None) -> MaintenanceReport:
    """Does all that is due; see `MaintenanceReport`. Raises only StoreReadOnly and StoreClosed.

    `grace_us` is how long files outlive their rows (ten minutes); 0 removes them at once, and who reads them at that
    moment plans again.
    """
    store.check_open(write=True)
    if grace_us is not None:
        whole(grace_us, "grace_us")
    with Maintenance(store, progress, grace_us=grace_us) as work:
        if not work.report.busy:
            work.run()
        return work.report


class Maintenance:
    """One turn at a store's maintenance, in a `with` block that holds the lock; `report.busy` when others hold it."""

    def __init__(self, store: Store, progress: Progress | None = None, *, grace_us: int | None = None,
                 now: int | None = None, stop: threading.Event | None = None) -> None:  # fmt: skip
        self._store = store
        self._catalog = store.catalog
        self._progress = progress or no_progress
        self._grace_us = GRACE_US if grace_us is None else grace_us
        self._now = now
        self._stop = stop
        self._lock_fd = -1
        self._done = self._total = 0
        self._agreeing: set[str] = set()  # topics whose `topic.json` is up to date
        self._failed: set[str] = set()  # inputs of compaction that could not be read
        self.report = MaintenanceReport()
        self.removal = Removal(store, self.report, self._grace_us, self.now, self._topic_file_agrees)

    def __enter__(self) -> Maintenance:
        self._catalog.check_named()  # before anything is removed from another store, or the backup of its catalog replaced
        path = self._store.path / layout.MAINTENANCE_LOCK
        try:
            with files.translated("lock", path):
                self._lock_fd = files.open_lock(path)
                _held.add(self._lock_fd)
                self.report.busy = not files.lock(self._lock_fd, wait=False)
        except BaseException:  # an interrupt: a lock that is left would keep everybody from maintenance
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock_fd in _held:
            _held.discard(self._lock_fd)
            files.close(self._lock_fd)

    def now(self) -> int:
        return now_us() if self._now is None else self._now

    def run(self, *, thorough: bool = True, seen: dict[tuple[str, int], object] | None = None) -> None:
        """Everything, in the order in which one step makes work for the next.

        Not `thorough`: only what follows from changes of the catalog, without looking at directories. `seen` remembers
        partitions between turns, so that one without a new segment is not planned again.
        """
        topics = self._catalog.topics()
        for topic in topics:
            self._try(topic.name, self.roll, topic)
            self._try(topic.name, self.expire, topic)
        changed = [
            (topic, row.partition, row)
            for topic in topics
            for row in self._rows(topic)
            if seen is None or seen.get((topic.id, row.partition)) != row
        ]
        for topic, partition, _ in changed:
            self._try(topic.name, self._add_to_total, topic, partition)
        for topic, partition, row in changed:
            failures = len(self.report.errors)
            self._try(topic.name, self.compact, topic, partition)
            if seen is not None and len(self.report.errors) == failures and not self._stopping():
                seen[topic.id, partition] = row
        for topic in topics:
            self._try(topic.name, self.write_topic_file, topic)
        self._try("ephemeral topics", self.reap)
        self._try("objects", self.sweep)
        self._try("garbage", self.removal.garbage)
        self._try("the catalog's backup", self.back_up)
        if thorough and not self._stopping():
            for topic in topics:
                self._try(topic.name, self.removal.leftovers, topic)
            self._try("deleted topics", self.mark_deleted)
            self._try("topics that were never made", self.removal.unborn)
            self._try("manifests", self.removal.manifests)

    def _rows(self, topic: TopicRow) -> list[PartitionRow]:
        try:
            return self._catalog.partitions(topic.id)
        except TopicDeleted:
            return []

    def _stopping(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    def _try(self, what: str, step: Callable[..., object], *arguments: object) -> None:
        """What fails is reported and does not keep the rest from being done."""
        try:
            step(*arguments)
        except TopicDeleted:
            pass
        except StoreClosed:
            raise  # nothing of the rest can be done, and closing a store is no fault of it
        except (JjqError, OSError, pa.ArrowException) as error:
            self.report.errors.append(f"{what}: {error}")

    def reap(self) -> int:
        """Deletes ephemeral topics that nobody holds, quiet for an hour; returns how many."""
        count = len(ephemeral.reap_all(self._store, _QUIET_US))
        self.report.reaped += count
        return count

    def sweep(self) -> int:
        """Removes big objects whose last record is gone; returns how many."""
        count, freed = objects.sweep(self._store)
        self.report.objects += count
        self.report.removed_bytes += freed
        return count

    # --- rolling and expiring ----------------------------------------------------------------------------------------

    def roll(self, topic: TopicRow) -> int:
        """Ends files that are over their age though nobody appends, so that a slow topic expires too."""
        count = 0
        for partition in range(topic.partitions):
            count += self._store.logs[topic.id, partition].roll_if_old(self.now())
        self.report.rolled += count
        return count

    def expire(self, topic: TopicRow) -> int:
        """Lets go of whole segments beyond the topic's retention, oldest first; returns how many.

        By time: those appended longer ago. By bytes: what is left of a partition, the active file included, is at least
        `retention_bytes`, as in Kafka. By segments: so many are left, the active one included. The active file never goes,
        nor what somebody has yet to read whom the topic waits for.
        """
        config = TopicConfig.from_dict(topic.config)
        if config.retention_us is None and config.retention_bytes is None and config.retention_segments is None:
            return 0
        count = 0
        for partition in range(topic.partitions):
            row, segments = self._catalog.segments(topic.id, partition, 0, _EVER)
            active = self._active_bytes(topic, row)
            gone = self._unless_waited_for(topic, partition, expired(segments, active, config, self.now()), config)
            if not gone:
                continue

            def is_needed(tx: Statements, partition: int = partition, end: int = gone[-1].end) -> bool:
                lowest = floor(tx, topic.id, partition, config.retention_waits)
                return lowest is not None and lowest.offset < end

            garbage = self._files_of(topic.id, partition, gone)
            if self._catalog.drop_prefix(topic.id, partition, gone, garbage, self._due(), unless=is_needed):
                count += len(gone)
                self.report.expired_records += sum(each.rows for each in gone if each.kind != LOST)
                self.report.expired_bytes += sum(each.length for each in gone)
        self.report.expired += count
        if count:
            with contextlib.suppress(TopicNotFound):  # deleted a moment ago
                say_unknown(self._store, self._store.topic(topic.name))
            self.write_topic_file(topic)
        return count

    def _active_bytes(self, topic: TopicRow, row: PartitionRow) -> int | None:
        """None where the active file has no records: then it is no segment that counts."""
        if row.active is None:
            return None
        with contextlib.suppress(JjqError):  # of damage, those tell who read it
            reader = self._store.reader(topic.id, topic.name)
            return None if reader.offsets(row.partition).end == row.end_offset else reader.active_bytes(row.partition)
        return 0

    def _unless_waited_for(
        self, topic: TopicRow, partition: int, gone: list[Segment], config: TopicConfig
    ) -> list[Segment]:
        """The first of these segments that everybody has read whom the topic waits for."""
        lowest = floor(self._catalog.driver, topic.id, partition, config.retention_waits) if gone else None
        if lowest is None:
            return gone
        read = [each for each in gone if each.end <= lowest.offset]
        late = len(gone) - len(read)
        if late:
            self.report.waiting.append(
                f"{topic.name} partition {partition}: {counted(late, 'segment past the retention waits', 'segments past the retention wait')} for "
                f"{lowest.who}, which is at offset {lowest.offset}"
            )
        return read

    # --- compacting --------------------------------------------------------------------------------------------------

    def _plan(self, topic: TopicRow, partition: int, end: int = _EVER) -> list[compaction.Run]:
        config = TopicConfig.from_dict(topic.config)
        _, segments = self._catalog.segments(topic.id, partition, 0, end)
        return compaction.plan(segments, config.segment_bytes, frozenset(self._failed))

    def _add_to_total(self, topic: TopicRow, partition: int) -> None:
        self._total += sum(run.bytes for run in self._plan(topic, partition))

    def compact(self, topic: TopicRow, partition: int) -> int:
        """Rewrites rolled files and merges small ones until nothing is left to do; returns how many files it replaced.

        Of files that are there when it begins: others may come as fast as it works, and are for the next turn.
        """
        count = 0
        end = self._catalog.partition(topic.id, partition).end_offset
        while runs := self._plan(topic, partition, end):
            for run in runs:
                if self._stopping():
                    return count
                try:
                    count += self._rewrite(topic, partition, run)
                except TopicDeleted:
                    raise
                except (JjqError, OSError, pa.ArrowException) as error:
                    # One of them cannot be read; the next turn tries them again.
                    self._failed.update(each.uuid for each in run.inputs)
                    self.report.errors.append(f"{topic.name} partition {partition}: {error}")
        return count

    def _rewrite(self, topic: TopicRow, partition: int, run: compaction.Run) -> int:
        config = TopicConfig.from_dict(topic.config)
        directory = self._directory(topic.id, partition)
        facts = Facts(self._store, topic.id)
        version = run.inputs[0].schema_version
        schema = facts.physical(version)
        left = list(run.inputs)
        prefix, count = run.prefix_max_ts, 0
        while left:
            output = compaction.Output(
                directory, topic.id, partition, schema, version, config.compression, config.segment_bytes, left[0].base,
                prefix, run.level,
            )  # fmt: skip
            try:
                with files.translated("compact", directory):
                    taken = output.write(left, lambda segment: self._scan(directory, segment, facts))
                    output.describe([each.uuid for each in taken])
                swapped = self._catalog.swap(
                    topic.id, partition, taken, output.segments, self._files_of(topic.id, partition, taken), self._due()
                )
            except BaseException:
                # Whether a transaction that failed got through is not known, so the catalog is asked; where that fails
                # too, the next turn finds what is left.
                with contextlib.suppress(OSError, JjqError):
                    if not any(self._catalog.segment(each.uuid) for each in output.segments):
                        output.discard()
                raise
            if not swapped:  # emptied, expired or deleted meanwhile
                output.discard()
                return count
            count += len(taken)
            self.report.compacted += len(taken)
            self.report.compacted_into += len(output.segments)
            self.report.bytes_read += sum(each.length for each in taken)
            self.report.bytes_written += sum(each.length for each in output.segments)
            prefix = taken[-1].prefix_max_ts
            left = left[len(taken) :]
        return count

    def _scan(self, directory: Path, segment: Segment, facts: Facts) -> Iterator[tuple[int, pa.RecordBatch]]:
        schema = facts.physical(segment.schema_version)
        if segment.kind == "arrow":
            found: Iterable[tuple[int, pa.RecordBatch]] = SealedReader(directory, segment, schema).scan(
                segment.base, segment.end
            )
            yield from self._ticking(segment, found)
            return
        with StreamReader(directory, segment.uuid, schema, facts.template(segment.schema_version)) as reader:
            yield from self._ticking(segment, reader.scan(segment.base, segment.end))

    def _ticking(self, segment: Segment, batches: Iterable[tuple[int, pa.RecordBatch]],
                 ) -> Iterator[tuple[int, pa.RecordBatch]]:  # fmt: skip
        for base, batch in batches:
            yield base, batch
            self._done += segment.length * batch.num_rows // segment.rows
            self._progress(min(self._done, self._total), self._total, "compact")

    # --- what the catalog is made again from -------------------------------------------------------------------------

    def write_topic_file(self, topic: TopicRow) -> bool:
        """Brings a topic's `topic.json` up to date with the catalog; True if it was not."""
        if not topicfile.differs(self._store.path, self._catalog, topic):
            return False
        # Whoever changes a topic holds the locks of all its partitions, so one is enough to be alone.
        with self._store.logs[topic.id, 0].exclusive():
            row = self._catalog.topic_by_id(topic.id)
            if row is None:
                return False
            topicfile.write(self._store.path, self._catalog, row)
        self.report.topic_files += 1
        return True

    def _topic_file_agrees(self, topic_id: str) -> bool:
        if topic_id not in self._agreeing:
            topic = self._catalog.topic_by_id(topic_id)
            if topic is not None:
                try:
                    self.write_topic_file(topic)
                except StoreError as error:
                    self.report.errors.append(str(error))
                    return False
            self._agreeing.add(topic_id)
        return True

    def mark_deleted(self) -> None:
        """Makes sure that a topic deleted by a process that died at once stays deleted when the catalog is lost."""
        for path in self._catalog.garbage():
            if not layout.is_topic_path(path) or in_use(self._catalog, path):
                continue
            topic_file = self._store.path / path / layout.TOPIC_FILE
            body = layout.read_json(topic_file)
            if body is not None and not body.get("deleted"):
                layout.write_json(topic_file, body | {"deleted": True})
                self.report.topic_files += 1

    def back_up(self) -> bool:
        """Copies the catalog beside itself, at most once an hour: cursors cannot be made again from the files."""
        target = self._store.path / layout.BACKUP
        with contextlib.suppress(FileNotFoundError):
            if 0 <= now_us() - target.stat().st_mtime_ns // 1000 < BACKUP_US:
                return False
        unfinished = target.with_name(target.name + layout.UNFINISHED)
        with files.translated("back up the catalog to", target):
            files.unlink(unfinished)
            self._catalog.backup(unfinished)
            fd = files.open_rw(unfinished)
            try:
                files.datasync(fd)
            finally:
                files.close(fd)
            files.replace(unfinished, target)
            files.sync_dir(target.parent)
        self.report.backup = True
        return True

    # --- inside ------------------------------------------------------------------------------------------------------

    def _directory(self, topic_id: str, partition: int) -> Path:
        return self._store.partition_dir(topic_id, partition)

    def _due(self) -> int:
        return now_us() + max(0, self._grace_us)

    def _files_of(self, topic_id: str, partition: int, segments: Sequence[Segment]) -> list[str]:
        return [
            f"topics/{topic_id}/{partition}/{name}"
            for segment in segments
            for name in layout.names_of(segment.uuid, segment.kind)
        ]


def expired(segments: Sequence[Segment], active_bytes: int | None, config: TopicConfig, now: int) -> list[Segment]:
    """The oldest segments of a partition that its topic's retention no longer keeps; beside them there is an active one
    with records, unless its bytes are None."""
    count = 0
    if config.retention_us is not None:
        while count < len(segments) and segments[count].appended_at < now - config.retention_us:
            count += 1
    if config.retention_bytes is not None:
        left = (active_bytes or 0) + sum(each.length for each in segments[count:])
        while count < len(segments) and left - segments[count].length >= config.retention_bytes:
            left -= segments[count].length
            count += 1
    if config.retention_segments is not None:
        there = sum(each.kind != LOST for each in segments[count:]) + (active_bytes is not None)
        while count < len(segments) and there > config.retention_segments:
            there -= segments[count].kind != LOST
            count += 1
    # The earliest record is one that is there, as after `repair`.
    while count < len(segments) and segments[count].kind == LOST:
        count += 1
    return list(segments[:count])


def _after_fork_in_child() -> None:
    for fd in _held:
        with contextlib.suppress(OSError):
            files.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
