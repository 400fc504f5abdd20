"""Where a topic's partitions begin and end, which for the active file only its index says, and its files opened.

No locks: who looks asks the catalog, then the index, and again where the file has ended meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jjq.errors import DamagedSegment
from jjq.log.contracts import LogCatalog, PartitionState, TopicFacts
from jjq.log.live import LiveFiles
from jjq.log.recovery import survey
from jjq.log.stream import StreamReader, missing_active, open_end
from jjq.model import PartitionOffsets, Segment


class Ends:
    """The partitions of one topic. Safe among threads."""

    def __init__(self, directory: Path, topic_id: str, topic: str, catalog: LogCatalog, facts: TopicFacts, boot_id: str,
                 recover: Callable[[int], None] | None) -> None:  # fmt: skip
        self.directory = directory
        self.topic_id, self.topic = topic_id, topic
        self._catalog, self._facts = catalog, facts
        self._boot_id = boot_id
        self._recover = recover  # None where the store cannot be written
        self.live = LiveFiles(topic_id, topic, boot_id, self._open_stream)

    def _partition_dir(self, partition: int) -> Path:
        return self.directory / str(partition)

    # --- offsets -----------------------------------------------------------------------------------------------------

    def offsets(self, partition: int) -> PartitionOffsets:
        row, end, _ = self._ends(partition)
        return PartitionOffsets(partition, row.start_offset, end, row.lineage)

    def closed_offsets(self, partition: int) -> PartitionOffsets:
        """What of them is in closed files: all that is known where the active one cannot be read."""
        row = self._catalog.partition(self.topic_id, partition)
        return PartitionOffsets(partition, row.start_offset, row.end_offset, row.lineage)

    def glance(self, row: PartitionState, partition: int) -> PartitionOffsets:
        """What `offsets` says, for who looks at many partitions: from the catalog's row as it was a moment ago, and no file
        stays open."""
        if row.active is None:
            return PartitionOffsets(partition, row.start_offset, row.end_offset, row.lineage)
        # Not put together by pathlib, which for thousands of partitions costs more than looking at them.
        index = f"{self.directory}/{partition}/{row.active}.index"
        end = open_end(index) if row.boot_id == self._boot_id else None
        if end is None:  # the file has ended meanwhile, or was not looked at since the machine was started
            return self.offsets(partition)
        return PartitionOffsets(partition, row.start_offset, end, row.lineage)

    def _ends(self, partition: int) -> tuple[Any, int, bool]:
        """The catalog's row, the partition's visible end, and whether the active file is closed."""
        while True:
            row = self._catalog.partition(self.topic_id, partition)
            if row.boot_id != self._boot_id and row.active is not None and self._recover is not None:
                self._recover(partition)
                continue
            if row.active is None:
                return row, row.end_offset, False
            try:
                with self.live.reader(row) as reader:
                    end, closed = reader.end()
            except FileNotFoundError:
                end, closed = -1, False
            if not closed and end >= 0:
                return row, end, False
            # The file ended while we looked: either the catalog already knows, or its end is the partition's.
            again = self._catalog.partition(self.topic_id, partition)
            if again.active == row.active and again.end_offset == row.end_offset:
                if end < 0:
                    raise self._missing(row)
                return row, end, True

    def _check_moved_on(self, row: Any) -> None:
        """Raises DamagedSegment where the active file is gone, though this process may have it open, and is the active one
        still."""
        again = self._catalog.partition(self.topic_id, row.partition)
        if (again.active, again.end_offset) == (row.active, row.end_offset):
            raise self._missing(row)

    def _missing(self, row: Any) -> DamagedSegment:
        self._catalog.check_named()
        return missing_active(self._partition_dir(row.partition) / f"{row.active}.arrows", row.end_offset)

    def _open_stream(self, partition: int, uuid: str, version: int, row: Any = None) -> StreamReader:
        schema = self._facts.physical(version)
        directory = self._partition_dir(partition)
        entries = None
        if row is not None and row.boot_id != self._boot_id:
            # A store that cannot be written, after a reboot: the messages decide, as they would in recovery.
            entries = survey(directory, row, schema, bytes.fromhex(self.topic_id), partition).entries
        return StreamReader(directory, uuid, schema, self._facts.template(version), entries)

    def open_stream(self, partition: int, segment: Segment) -> StreamReader:
        """The file of a segment of kind `arrows`; the caller closes it."""
        return self._open_stream(partition, segment.uuid, segment.schema_version)

    def watched(self, partition: int) -> list[Path] | None:
        """The files whose being written means that the partition may have more; None where that cannot be seen."""
        if self._recover is None:
            return None  # a read-only store may be written by another machine
        row = self._catalog.partition(self.topic_id, partition)
        directory = self._partition_dir(partition)
        lock = directory / "lock"
        if not lock.exists():
            lock.touch()
        return [lock] if row.active is None else [lock, directory / f"{row.active}.index"]

    def check_lineage(self, partition: int, offset: int, lineage: int) -> int | None:
        """Where the lineage that overtook this offset begins, None while the offset still means what it did."""
        row = self._catalog.partition(self.topic_id, partition)
        if row.lineage <= lineage:
            return None
        starts = [start for _, start in self._catalog.lineages(self.topic_id, partition, lineage)]
        lowest = min(starts, default=offset)
        return lowest if offset > lowest else None
