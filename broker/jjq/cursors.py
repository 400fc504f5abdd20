"""A cursor among processes: who polls by it, where a start puts it, and who is told that it moved."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from jjq import files
from jjq.errors import SubscriberBusy
from jjq.feed import Place
from jjq.topic import Topic


class ConsumerLock:
    """The flock that says who polls; the kernel frees it when the process dies."""

    def __init__(self, path: Path, name: str) -> None:
        self._fd = -1
        with files.translated("lock", path):
            files.make_dirs(path.parent)
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
            raise topic.reader.lost(partition, offset, earliest, bounds[partition].end)
        places[partition] = (max(offset, earliest), bounds[partition].lineage)
    return places


def ring(topic: Topic) -> None:
    """Wakes who waits on a topic after a change of a cursor: that writes to no file that is watched."""
    files.ring(topic.directory(0) / "lock")
