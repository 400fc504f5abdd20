"""Topics that live as long as somebody holds them: bounded, never synced, shared between processes.

An ephemeral topic is an ordinary topic whose config says so. What differs: it is gone after a reboot, it keeps about
`max_records` and what to do when it is full is its policy, and it is deleted when its last holder leaves.

A *holder* is a file `holders/<id>` in the topic's directory that a live process keeps locked. Its content is how far
that holder has read, so that a full topic knows what nobody waits for any more.
"""

from __future__ import annotations

import contextlib
import json
import struct
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jjq import files
from jjq.clock import now_us
from jjq.config import TopicConfig
from jjq.errors import JjqError, RecordTooLarge, TopicDeleted, TopicFull, TopicNotFound
from jjq.interest import alive, reached
from jjq.values import counted

if TYPE_CHECKING:
    from jjq.store import Store
    from jjq.topic import Topic

DEFAULT_MAX_RECORDS = 10_000
_OFFSET = struct.Struct("<q")
_SEGMENTS = 10  # of a bounded topic: the oldest goes whole, so the bound is held to a tenth


class Holder:
    """One reader's hold of an ephemeral topic; at most one thread uses it at a time."""

    def __init__(self, store: Store, topic: Topic) -> None:
        self._store, self.topic = store, topic
        ends = {bounds.partition: bounds.end for bounds in topic.offsets()}
        directory = holders_dir(store, topic.id)
        with files.translated("hold", directory):
            files.make_dirs(directory, within=store.path)
            self._path = directory / uuid.uuid4().hex
            self._fd = files.create(self._path)
            files.lock(self._fd)
        self.at(ends)

    def at(self, positions: dict[int, int]) -> None:
        """Says how far this holder has read: the next offset of each partition."""
        with contextlib.suppress(OSError):  # only a full topic would be fuller than it need be
            for partition, offset in positions.items():
                files.pwrite(self._fd, _OFFSET.pack(offset), partition * _OFFSET.size)

    def release(self) -> None:
        """Lets go; the last one to do so takes the topic along."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            files.unlink(self._path)
        self.forget()
        reap(self._store, self.topic)

    def forget(self) -> None:
        """In a forked child: the hold is the parent's."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            files.close(fd)


def holders_dir(store: Store, topic_id: str) -> Path:
    return store.path / "topics" / topic_id / "holders"


def live_holders(store: Store, topic_id: str) -> Iterator[Path]:
    """The files of holders whose process lives; those of the dead are removed on the way."""
    directory = holders_dir(store, topic_id)
    try:
        entries = sorted(directory.iterdir())
    except FileNotFoundError:
        return
    for path in entries:
        if alive(path):
            yield path


def reap(store: Store, topic: Topic) -> bool:
    """Deletes an ephemeral topic that nobody holds or waits for any more; True if it did."""
    if not topic.config.ephemeral or any(True for _ in live_holders(store, topic.id)) or reached(store, topic.name):
        return False
    try:
        if store.topic(topic.name).id != topic.id:
            return False
        store.delete_topic(topic.name)
    except (TopicNotFound, TopicDeleted):
        return False
    return True


def reap_all(store: Store, idle_us: int) -> list[str]:
    """Deletes ephemeral topics without a holder that have been quiet for `idle_us`; returns their names."""
    gone = []
    for topic in store.topics():
        if not topic.config.ephemeral:
            continue
        with contextlib.suppress(JjqError, OSError):
            touched = max((path.stat().st_mtime_ns for path in topic.directory(0).iterdir()), default=0) // 1000
            if now_us() - max(touched, topic.created_at) >= idle_us and reap(store, topic):
                gone.append(topic.name)
    return gone


class Bound:
    """Keeps a bounded topic bounded: asked before each append, told after it. Shared by the threads of a process."""

    def __init__(self, store: Store, topic: Topic) -> None:
        self._store, self._topic = store, topic
        self._max = topic.config.max_records or DEFAULT_MAX_RECORDS
        self._policy = topic.config.when_full
        # By partition, as it was when it was last looked at, so only ever too low: what is waited for; what is left.
        self._floors: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._mutex = threading.Lock()

    def admits(self, partition: int, rows: int) -> bool:
        """False when the records are to be dropped (and counted); raises TopicFull where the policy is to refuse, and
        RecordTooLarge for more at once than it ever holds."""
        if self._policy == "drop_oldest":
            return True
        self._topic.catch_up()  # what is not appended does not meet the news
        end = self._topic.reader.offsets(partition).end
        if end + rows - self._floors.get(partition, 0) <= self._max:
            return True
        floor = self._floors[partition] = self._floor(partition, end)
        if end + rows - floor <= self._max:
            return True
        if self._policy == "refuse" and rows > self._max:
            raise RecordTooLarge(
                f"{rows} records never fit into topic {self._topic.name!r}, which holds at most {self._max} (max_records); push "
                f"fewer at once, or make a topic that holds more"
            )
        if self._policy == "refuse":
            raise TopicFull(
                f"topic {self._topic.name!r} is full: {end - floor:,} of at most {counted(self._max, 'record')} still to be read; "
                f"push again when its readers have caught up"
            )
        self._count(rows)
        return False

    def _floor(self, partition: int, end: int) -> int:
        """The lowest offset that a live holder has yet to read; without holders, the earliest there is."""
        lowest = None
        for path in live_holders(self._store, self._topic.id):
            whole = path.read_bytes()
            data = whole[partition * _OFFSET.size :][: _OFFSET.size]
            # One that says nothing has only just come; one that says nothing of this partition has read nothing of it.
            offset = _OFFSET.unpack(data)[0] if len(data) == _OFFSET.size else 0 if whole else end
            lowest = offset if lowest is None else min(lowest, offset)
        return self._topic.reader.offsets(partition).start if lowest is None else lowest

    def appended(self, partition: int, end: int) -> None:
        """Lets the oldest segments go when there are more records than the bound."""
        start = self._starts.get(partition, 0)
        if end - start <= self._max:
            return
        with self._mutex:
            row, segments = self._store.catalog.segments(self._topic.id, partition, 0, end)
            start = max([row.start_offset, *(s.end for s in segments if end - s.end >= self._max)])
            self._starts[partition] = start if end - start <= self._max else end - self._max
            if start > row.start_offset:
                gone = [
                    path
                    for each in segments
                    if each.end <= start
                    for path in self._store.segment_files(self._topic.id, partition, each.uuid)
                ]
                self._store.catalog.advance_start(self._topic.id, partition, start, gone, now_us())

    def _count(self, rows: int) -> None:
        path = self._store.path / "topics" / self._topic.id / "dropped"
        with contextlib.suppress(OSError):
            fd = files.open_lock(path)
            try:
                files.lock(fd)
                data = files.pread(fd, _OFFSET.size, 0)
                before = _OFFSET.unpack(data)[0] if len(data) == _OFFSET.size else 0
                files.pwrite(fd, _OFFSET.pack(before + rows), 0)
            finally:
                files.close(fd)


def dropped(store: Store, topic: Topic) -> int:
    """How many records a bounded topic has dropped: the oldest that had to go, or the newest that found no room."""
    try:
        data = (store.path / "topics" / topic.id / "dropped").read_bytes()
    except OSError:
        data = b""
    newest = _OFFSET.unpack(data)[0] if len(data) == _OFFSET.size else 0
    return newest + sum(bounds.start for bounds in topic.offsets())


def settle(config: TopicConfig, boot_id: str) -> TopicConfig:
    """An ephemeral topic's config made whole; any other as it is."""
    if not config.ephemeral:
        return config
    bound = config.max_records or DEFAULT_MAX_RECORDS
    rows = max(1, bound // _SEGMENTS)
    return config.changed({"sync": "none", "boot_id": boot_id, "max_records": bound, "segment_rows": rows})


def forget_other_boots(store: Store) -> None:
    """Deletes ephemeral topics that a reboot ended; called when a store is opened."""
    for name, config in store.catalog.driver.rows("ephemeral_topics"):
        if json.loads(config).get("boot_id") != store.boot_id:
            with contextlib.suppress(JjqError):
                store.delete_topic(name)
