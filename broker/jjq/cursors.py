"""A cursor among processes: who polls by it, where a start puts it, how far it is behind, and who is told that it moved."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow as pa

from jjq import files
from jjq.clock import now_us
from jjq.errors import DamagedSegment, DataLoss, SubscriberBusy
from jjq.feed import Place
from jjq.model import PartitionLag
from jjq.topic import Topic


class ConsumerLock:
    """The flock that says who polls; the kernel frees it when the process dies."""

    def __init__(self, path: Path, name: str) -> None:
        self._fd = -1
        with files.translated("lock", path):
            files.make_dirs(path.parent, within=path.parents[1])
            self._fd = files.open_lock(path)
            if not files.lock(self._fd, wait=False):
                self.close()
                raise SubscriberBusy(
                    f"another consumer polls subscriber {name!r}; one at a time can, pop is for many. It ends when that "
                    f"consumer closes or dies"
                )

    def close(self) -> None:
        """Closing, not unlocking: in a forked child the lock stays the parent's."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            files.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


def lock_path(store: Path, subscriber_id: str) -> Path:
    return store / "subscribers" / f"{subscriber_id}.lock"


def resolve_places(topic: Topic, start: Any, on_data_loss: str) -> dict[int, Place]:
    """Where a start is now, by partition, with the lineage; raises OffsetOutOfRange, and DataLoss for an expired offset."""
    bounds = {each.partition: each for each in topic.offsets()}
    places: dict[int, Place] = {}
    for partition, offset in topic.resolve(start, partitions=list(bounds)).items():
        earliest = bounds[partition].start
        if offset < earliest and on_data_loss != "skip":
            loss = topic.reader.lost(partition, offset, earliest, bounds[partition].end)
            raise DataLoss(f"{loss.message}; start at 'earliest' for what is left", **loss.details)
        places[partition] = (max(offset, earliest), bounds[partition].lineage)
    return places


def lag_of(topic: Topic, partition: int, place: Place) -> PartitionLag:
    """What lies between a place and the end of its partition."""
    reader = topic.reader
    bounds = reader.offsets(partition)
    position = place[0]
    overtaken = reader.check_lineage(partition, position, place[1])
    first = min(max(position if overtaken is None else overtaken, bounds.start), bounds.end)
    slices = reader.plan(partition, first, bounds.end, skip_lost=True)
    records = sum(each.end - each.start for each in slices)
    before = max(0, bounds.start - position) if overtaken is None else position - overtaken
    seconds: float | None = 0.0
    if slices:
        oldest = slices[0]
        if oldest.end - oldest.start > 1:
            oldest, _ = oldest.split(oldest.start + 1)
        try:
            batch = next(reader.read([oldest], pa.schema([]), ("_timestamp",), 1 << 20))
            seconds = max(0, now_us() - batch.column(0).cast(pa.int64())[0].as_py()) / 1_000_000
        except DamagedSegment:
            seconds = None
    return PartitionLag(
        partition=partition, position=position, start=bounds.start, end=bounds.end,
        records=records, bytes=sum(each.bytes for each in slices), seconds=seconds,
        # Retention may have taken some between the look at the bounds and the plan: those are gone, too.
        lost=before + bounds.end - first - records,
    )  # fmt: skip


def ring(topic: Topic) -> None:
    """Wakes who waits on a topic after a change of a cursor: that writes to no file that is watched."""
    files.ring(topic.directory(0) / "lock")
