"""What the parts of an open store ask it for: where files are, and the logs, readers and facts of its topics, each made once."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from jjq.background import Syncer
from jjq.catalog.base import Catalog
from jjq.catalog.rows import TopicRow
from jjq.clock import host
from jjq.config import GRACE_US
from jjq.facts import Facts
from jjq.hot import HotStore
from jjq.log.partition import PartitionLog
from jjq.log.reader import LogReader
from jjq.wake import Listener


class Logs(dict[tuple[str, int], PartitionLog]):
    """The logs of a store by topic id and partition, each made when it is first asked for: a look at a dict is all that it costs a
    single push, and not a call as well."""

    def __init__(self, make: Callable[[str, int], PartitionLog]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, place: tuple[str, int]) -> PartitionLog:
        return self._make(*place)


class StoreParts(ABC):
    """`jjq.store.Store` sets what it has."""

    path: Path
    boot_id: str
    read_only: bool
    catalog: Catalog
    hot: HotStore
    _closing = False  # whether its producers are being closed, so that nobody makes others
    _closed: bool
    _mutex: threading.RLock
    logs: Logs
    _readers: dict[str, LogReader]
    _facts: dict[str, Facts]
    _syncer: Syncer | None
    _listeners: weakref.WeakSet[Listener]

    @abstractmethod
    def check_open(self, write: bool = False) -> None:
        """Raises StoreClosed, and StoreReadOnly if something is to be written and cannot be."""

    def partition_dir(self, topic_id: str, partition: int) -> Path:
        return self.path / "topics" / topic_id / str(partition)

    def segment_files(self, topic_id: str, partition: int, segment: str) -> list[str]:
        """Every file a segment may have, relative to the store."""
        stem = f"topics/{topic_id}/{partition}/{segment}"
        return [f"{stem}{suffix}" for suffix in (".arrows", ".index", ".arrow", ".json")]

    def topic_row(self, topic_id: str) -> TopicRow:
        """The catalog's row of a topic; raises TopicDeleted."""
        return self.facts(topic_id).row()

    def facts(self, topic_id: str) -> Facts:
        """What the log asks of a topic."""
        with self._mutex:
            return self._facts.setdefault(topic_id, Facts(self, topic_id))

    def _make_log(self, topic_id: str, partition: int) -> PartitionLog:
        with self._mutex:
            self.check_open(write=True)
            prefix = f"topics/{topic_id}/{partition}/"
            return self.logs.setdefault(
                (topic_id, partition),
                PartitionLog(
                    self.partition_dir(topic_id, partition), topic_id, partition, self.catalog,
                    self.facts(topic_id), self.boot_id, lambda name: prefix + name, GRACE_US,
                    self._unsynced,
                ),
            )  # fmt: skip

    def reader(self, topic_id: str, name: str) -> LogReader:
        self.check_open()
        reader = self._readers.get(topic_id)
        if reader is None:
            with self._mutex:
                recover = None if self.read_only else lambda partition: self.logs[topic_id, partition].recover()
                reader = self._readers.setdefault(
                    topic_id,
                    LogReader(
                        self.path / "topics" / topic_id, topic_id, name, self.catalog, self.facts(topic_id),
                        self.boot_id, f"{host()} {self.boot_id}", recover, self.hot.plain,
                    ),
                )  # fmt: skip
        return reader

    def listener(self, paths: Callable[[], list[Path] | None]) -> Listener:
        """Something to wait on that also ends when the store is closed; see `jjq.wake`."""
        made = Listener(paths)
        self._listeners.add(made)
        return made

    def _unsynced(self, log: PartitionLog, within_s: float) -> None:
        """A partition has records that are to be on disk within a time: a thread of whoever appended sees to it."""
        if self._syncer is None:
            with self._mutex:
                if self._syncer is None:
                    try:
                        self._syncer = Syncer()
                    except RuntimeError:  # the process ends, and begins no thread any more: the kernel writes them
                        return
        self._syncer.watch(log, within_s)
