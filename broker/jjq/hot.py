"""The hot store: what a process keeps of the segments that its subscribers are near, so that reading on does not wait.

It keeps open files (mapped, their head and footer verified) and batches that were verified and decompressed. It decides
nothing about what is read: whoever reads asks the catalog and plans as without it, so it changes only when things are done.

What each reader of a subscriber is near are the segments of what it has read ahead. What somebody is near stays as long as
the budget allows; what nobody is near stays until the room is needed. When a pop or poll runs low, a thread loads what
comes next.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa

from jjq.errors import InvalidArgument, JjqError
from jjq.log.reader import File, LogReader
from jjq.log.sealed import SealedReader
from jjq.log.stream import StreamReader
from jjq.model import Segment
from jjq.values import counted, shown

DEFAULT_BYTES = 256 << 20
_MOST_FILES = 64  # open at once: each takes descriptors or a mapping
_MOST_ASKED = 64  # loads that wait; the oldest are forgotten
_IDLE_S = 10.0  # then the thread ends; the next load begins another


@dataclass(slots=True)
class _Held:
    """One segment. The active one has no file here: its log's reader has it, and keeps it."""

    reader: LogReader
    partition: int
    segment: Segment
    file: SealedReader | StreamReader | None = None
    # (bytes, batch) by number, the last used last
    batches: OrderedDict[int, tuple[int, pa.RecordBatch]] = field(default_factory=OrderedDict)
    batch_bytes: int = 0
    readers: weakref.WeakSet[Near] = field(default_factory=weakref.WeakSet)

    def size(self) -> int:
        """Bytes of memory: what was touched of the mapping, and what was decompressed."""
        return self.batch_bytes + (0 if self.file is None else self.file.mapped)

    def add(self, number: int, batch: pa.RecordBatch) -> None:
        if number not in self.batches:
            size = batch.nbytes
            self.batches[number] = size, batch
            self.batch_bytes += size

    def shrink(self, wanted: int) -> int:
        """Lets go of batches, those not used for longest first, until so many bytes are free; returns how many are."""
        before = self.batch_bytes
        while self.batches and before - self.batch_bytes < wanted:
            self.batch_bytes -= self.batches.popitem(last=False)[1][0]
        return before - self.batch_bytes

    def let_go(self) -> None:
        self.file, self.batch_bytes = None, 0
        self.batches.clear()

    def active_bytes(self) -> int | None:
        return self.reader.live.mapped(self.partition, self.segment.uuid)


class Access:
    """A way to read through the hot store: it takes what is there and, if it `keeps`, leaves what it had to load.

    For one caller at a time. `missed`: whether something had to be loaded.
    """

    def __init__(self, hot: HotStore, *, keeps: bool) -> None:
        self._hot, self._keeps = hot, keeps
        self.missed = False

    def file(self, reader: LogReader, partition: int, segment: Segment, open_file: Callable[[], File]) -> File:
        found, opened = self._hot.file(reader, partition, segment, open_file)
        self.missed |= opened
        return found

    def forget(self, reader: LogReader) -> None:
        self._hot.forget(reader)

    def batch(self, sealed: SealedReader, number: int, columns: Sequence[int] | None) -> pa.RecordBatch:
        """A batch of a sealed file; all its columns, or those of these numbers."""
        found = self._hot.batch(sealed, number)
        if found is not None:
            return found if columns is None else found.select(list(columns))
        batch = sealed.batch(number, columns)
        # A batch that is mapped takes nothing to get again, and is verified each time: its page may be read anew.
        if self._keeps and columns is None and sealed.is_compressed(number):
            self.missed = True
            self._hot.keep(sealed, number, batch)
        return batch


class Near(Access):
    """What one reader of a subscriber (`label`) is near. Nothing any more when it is forgotten."""

    def __init__(self, hot: HotStore, label: str) -> None:
        super().__init__(hot, keeps=True)
        self.label = label
        self.segments: dict[int, set[str]] = {}  # segments by partition
        self.asked: dict[int, int] = {}  # where the last load that was asked for begins, by partition

    def __repr__(self) -> str:
        return f"<Near {self.label!r} in {sorted(uuid for each in self.segments.values() for uuid in each)}>"

    def enter(self, reader: LogReader, partition: int, segments: Sequence[Segment]) -> None:
        """Of a partition, it is near these segments, in which it has read ahead, and no others."""
        self._hot.enter(self, reader, partition, segments)

    def ask(self, reader: LogReader, partition: int, start: int, rows: int) -> None:
        """What comes from an offset on is wanted soon: it is loaded in the background."""
        self._hot.ask(self, reader, partition, start, rows)

    def leave(self) -> None:
        """It is near nothing any more; what nobody else is near is dropped now."""
        self._hot.leave(self)


class HotStore:
    """See the module. Safe among threads. `budget_bytes` 0 keeps nothing but a few open files."""

    def __init__(self, budget_bytes: int = DEFAULT_BYTES) -> None:
        if type(budget_bytes) is not int or budget_bytes < 0:
            raise InvalidArgument(f"hot_bytes must be bytes from 0, not {shown(budget_bytes)}")
        self.budget_bytes = budget_bytes
        self.plain = Access(self, keeps=False)
        self._begin()

    def _begin(self) -> None:
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._held: OrderedDict[str, _Held] = OrderedDict()  # by segment, the last used last
        self._asked: OrderedDict[tuple[str, int, int], tuple[LogReader, int, weakref.ref[Near]]] = OrderedDict()
        self._thread: threading.Thread | None = None
        self._loading = False
        self._closed = False
        self.hits = self.misses = self.prefetches = self.dropped = 0

    def __repr__(self) -> str:
        with self._mutex:
            return (
                f"<HotStore {counted(len(self._held), 'segment')}, {self._bytes_locked()} of {self.budget_bytes} bytes>"
            )

    def near(self, label: str) -> Near:
        return Near(self, label)

    # --- what is there ---------------------------------------------------------------------------------------------------

    def file(
        self, reader: LogReader, partition: int, segment: Segment, open_file: Callable[[], File]
    ) -> tuple[File, bool]:
        """An open file of a segment, and whether it had to be opened."""
        with self._mutex:
            held = self._held.get(segment.uuid)
            if held is not None and held.file is not None:
                self._held.move_to_end(segment.uuid)
                return cast(File, held.file), False
        file = open_file()
        with self._mutex:
            if not self._closed:
                self._of_locked(reader, partition, segment).file = file
                self._trim_locked()
        return file, True

    def batch(self, sealed: SealedReader, number: int) -> pa.RecordBatch | None:
        with self._mutex:
            held = self._held.get(sealed.segment.uuid)
            if held is None or number not in held.batches:
                return None
            self._held.move_to_end(sealed.segment.uuid)
            held.batches.move_to_end(number)
            return held.batches[number][1]

    def keep(self, sealed: SealedReader, number: int, batch: pa.RecordBatch) -> None:
        with self._mutex:
            held = self._held.get(sealed.segment.uuid)
            if held is not None:
                held.add(number, batch)
                self._trim_locked()

    def _of_locked(self, reader: LogReader, partition: int, segment: Segment) -> _Held:
        held = self._held.get(segment.uuid)
        if held is None:
            held = self._held[segment.uuid] = _Held(reader, partition, segment)
        held.segment = segment
        self._held.move_to_end(segment.uuid)
        return held

    def _bytes_locked(self) -> int:
        return sum(held.size() for held in self._held.values())

    def _trim_locked(self) -> None:
        """Makes room: first what nobody is near goes, then of the rest what was not used for longest. Never the active one."""
        over = self._bytes_locked() - self.budget_bytes
        files = sum(held.file is not None for held in self._held.values()) - _MOST_FILES
        for in_use in (False, True):
            for uuid, held in list(self._held.items()):
                if over <= 0 and files <= 0:
                    return
                if bool(held.readers) is not in_use or (held.file is None and not held.batches):
                    continue
                if in_use and files <= 0:
                    over -= held.shrink(over)
                    if over <= 0:
                        return
                self.dropped += 1
                over -= held.size()
                files -= held.file is not None
                held.let_go()
                if not in_use:
                    del self._held[uuid]

    # --- who is where ----------------------------------------------------------------------------------------------------

    def enter(self, near: Near, reader: LogReader, partition: int, segments: Sequence[Segment]) -> None:
        """See `Near.enter`. Counts what was read since the last time as a hit or a miss."""
        with self._mutex:
            self.misses += near.missed
            self.hits += not near.missed
            near.missed = False
            near.asked.pop(partition, None)
            if self._enter_locked(near, reader, partition, segments):
                self._forget_removed_locked()
            self._trim_locked()  # what is mapped has grown since it was opened

    def _enter_locked(
        self, near: Near, reader: LogReader, partition: int, segments: Sequence[Segment], *, also: bool = False
    ) -> bool:
        """Whether it has left one. With `also` it leaves none."""
        before = near.segments.get(partition, set())
        after = {segment.uuid for segment in segments}
        for segment in segments:  # before any is left: it may be the same one, under another state
            self._of_locked(reader, partition, segment).readers.add(near)
        if also:
            near.segments[partition] = before | after
            return False
        near.segments[partition] = after
        for uuid in before - after:
            self._leave_locked(near, uuid)
        return bool(before - after)

    def _leave_locked(self, near: Near, uuid: str) -> None:
        held = self._held.get(uuid)
        if held is not None:
            held.readers.discard(near)
            if not held.readers and held.file is None:
                del self._held[uuid]

    def leave(self, near: Near) -> None:
        with self._mutex:
            for uuid in [uuid for each in near.segments.values() for uuid in each]:
                self._leave_locked(near, uuid)
                held = self._held.get(uuid)
                if held is not None and not held.readers:
                    del self._held[uuid]
                    self.dropped += 1
            near.segments.clear()
            near.asked.clear()

    # --- loading in the background ---------------------------------------------------------------------------------------

    def ask(self, near: Near, reader: LogReader, partition: int, start: int, rows: int) -> None:
        with self._mutex:
            if self._closed or not self.budget_bytes:
                return
            near.asked[partition] = start
            self._asked[reader.topic_id, partition, start] = reader, rows, weakref.ref(near)
            if len(self._asked) > _MOST_ASKED:
                self._asked.popitem(last=False)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="jjq-hot", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # as where the process ends and begins no thread any more: who reads loads it
                    self._asked.clear()
                    return
                self._thread = thread  # not before: amid an interrupt it may not have started
            self._changed.notify_all()

    def _run(self) -> None:
        with self._mutex:
            if self._thread is not threading.current_thread():
                return  # an interrupt came amid its start: who asks next starts another
        access = Access(self, keeps=True)
        while True:
            with self._mutex:
                if not self._changed.wait_for(lambda: self._asked or self._closed, _IDLE_S) or self._closed:
                    self._thread = None
                    self._changed.notify_all()
                    return
                (_, partition, start), (reader, rows, asking) = self._asked.popitem(last=False)
                self._loading = True
            segments: list[Segment] = []
            # What is wrong with it, who reads it will say.
            with contextlib.suppress(JjqError, OSError, pa.ArrowException):
                segments = reader.load(partition, start, rows, access)
            near = asking()
            with self._mutex:
                self.prefetches += access.missed
                access.missed = False
                if near is not None and near.asked.get(partition) == start and not self._closed:
                    self._enter_locked(near, reader, partition, segments, also=True)
                self._trim_locked()
                self._loading = False
                self._changed.notify_all()
            del reader, near

    def _forget_removed_locked(self) -> None:
        """A mapping keeps a file's room on the disk though it was compacted away or expired."""
        for uuid, held in list(self._held.items()):
            if held.readers:
                continue
            if held.active_bytes() is None if held.file is None else not held.file.path.exists():
                del self._held[uuid]

    def forget(self, reader: LogReader) -> None:
        """Drops all that is of a topic whose reader is closed."""
        with self._mutex:
            for uuid in [uuid for uuid, held in self._held.items() if held.reader is reader]:
                del self._held[uuid]

    def settle(self, timeout: float | None = None) -> bool:
        """Waits until all that was asked for is loaded; False if it is not within `timeout` seconds."""
        with self._mutex:
            return self._changed.wait_for(lambda: not self._asked and not self._loading, timeout)

    # --- the whole -------------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """How often reads of subscribers found what they needed, and what is held for whom; sizes in bytes."""
        with self._mutex:
            segments = [_shown(held) for held in self._held.values()]
            return {
                "budget_bytes": self.budget_bytes, "bytes": sum(each["bytes"] for each in segments),
                "hits": self.hits, "misses": self.misses, "prefetches": self.prefetches, "dropped": self.dropped,
                "segments": sorted(segments, key=lambda each: (each["topic"], each["partition"], each["start"])),
            }  # fmt: skip

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            self._held.clear()
            self._asked.clear()
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def after_fork(self) -> None:
        """In a forked child: the thread stayed with the parent, and its lock may be held by it for ever."""
        closed = self._closed
        self._begin()
        self._closed = closed


def _shown(held: _Held) -> dict[str, Any]:
    active = held.active_bytes()
    kinds = {"arrow": "sealed", "arrows": "rolled"}
    return {
        "topic": held.reader.topic, "partition": held.partition, "id": held.segment.uuid,
        "state": kinds.get(held.segment.kind, held.segment.kind) if active is None else "active",
        "start": held.segment.base, "end": held.segment.end if active is None else None, "bytes": held.size() + (active or 0),
        "batches": len(held.batches), "for": sorted(each.label for each in held.readers),
    }  # fmt: skip
