"""Appending to one partition, for all threads of a process. The lock, the active file and recovery are in `rolling.py`; what
reads is in `reader.py`.

Order of locks: this object's leader lock, then the partition's `lock` file, then the catalog's.
"""

from __future__ import annotations

import copy
import operator
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jjq import files
from jjq.clock import now_us
from jjq.errors import JjqError, StoreError
from jjq.interrupts import surely
from jjq.log.active import ActiveFile, Told
from jjq.log.contracts import LogCatalog, LogSettings, TopicFacts
from jjq.log.format import ENTRY_SIZE, NO_MARK, Encoded
from jjq.log.requests import MorePartitions, Request, encode_all, one_request
from jjq.log.rolling import Partition
from jjq.log.waiting import END_ROUND, Answer, Asked, Waiting

_GROUP_BYTES = 32 << 20  # what one leader writes at once
_LOOKS = 30  # at what became of a value, before one waits for the lock
_ROUNDS = 3  # so many that one has seen end, the first of them begun before, wrote nothing for others
_LEAD = "lead"  # the one key of who leads
_size = operator.attrgetter("size")


def _why(request: Request, failed: Exception | None) -> BaseException:
    """What a request without an offset failed with. That says it alone: what an interrupt skips cannot be relied upon."""
    if request.error is not None:
        return request.error
    if failed is not None and request.wake is None:
        return failed
    if not isinstance(failed, JjqError):  # what a handler raises concerns the thread that it came in, and nobody else
        unknown = StoreError("the thread that wrote for this one was interrupted: the record may be there or not")
        unknown.retryable, unknown.__cause__ = False, failed
        return unknown
    own = copy.copy(failed)  # each thread raises it, and what is raised gets that thread's traceback
    own.__cause__ = failed
    return own


class PartitionLog(Partition):
    """Appends to one partition, for all threads of this process."""

    def __init__(self, directory: Path, topic_id: str, partition: int, catalog: LogCatalog, facts: TopicFacts,
                 boot_id: str, sidecar: Callable[[str], str], grace_us: int,
                 unsynced: Callable[[PartitionLog, float], None]) -> None:  # fmt: skip
        super().__init__(directory, topic_id, partition, catalog, facts, boot_id, sidecar, grace_us)
        self._unsynced = unsynced  # told after an append that is to be on disk within so many seconds
        self._queue: deque[Request] = deque()
        self._queue_lock = threading.Lock()
        # What the thread that leads, or has been told to, came with, under the one key. To set a key that is not there is one step
        # for all threads and costs a sixth of a lock. Who queues looks here after that, and who leaves looks at the queue after that,
        # so that one of the two sees the other.
        self._leads: dict[str, object] = {}

    # --- appending ---------------------------------------------------------------------------------------------------

    def append(self, request: Request) -> None:
        """Appends and returns when the request is as durable as the topic promises; threads that wait share a sync.

        Raises StoreError when the disk refuses, DamagedSegment, TopicDeleted, MorePartitions; then nothing of the request
        is visible.
        """
        # One thread leads and writes what has queued; the others sleep on a lock of their own, so that finishing a group
        # wakes exactly those it has served and one new leader.
        leads = self._leads
        try:
            if leads.setdefault(_LEAD, request) is request:
                with self._queue_lock:
                    self._queue.append(request)
            else:
                self._await_turn(request)
            if not request.done:
                self._lead_for(request)
            if request.error is not None or request.offset < 0:
                raise _why(request, None)
        finally:
            try:  # at once: each call from here on may be where an interrupt comes
                if request.offset < 0 or leads.get(_LEAD) is request:
                    self._leave(request, request.offset < 0)
            except BaseException:  # others wait
                surely(self._leave, request, request.offset < 0)
                raise

    def append_value(
        self, version: int, value: bytes, among: int = 0, key: bytes | None = None, mark: tuple[bytes, int] = NO_MARK
    ) -> tuple[int, int]:
        """`append` of one value, without headers, at the broker's time, to a topic without a schema.

        Returns its offset and timestamp. Most single pushes are such, and most meet no other thread: then they need no
        request, no queue, no batch and no lock but the leader's. Those that meet one do here what `append` does, with a
        call less: for many threads that costs more than the work in it.
        """
        leads = self._leads
        me: object = object()
        request: Request | None = None
        try:
            if leads.setdefault(_LEAD, me) is me:
                with self._leader:
                    return self._write_value(value, among, key, mark)
            me = request = one_request(version, value, among, key, mark)
            self._await_turn(request)
            if not request.done:
                self._lead_for(request)
            if request.error is not None or request.offset < 0:
                raise _why(request, None)
            return request.offset, request.timestamp
        finally:
            failed = request is not None and request.offset < 0
            try:  # as above
                if failed or leads.get(_LEAD) is me:
                    if not failed and not self._queue:
                        leads.clear()  # what `_leave` does, without its lock; who queues meanwhile is seen yet
                    if failed or self._queue:
                        self._leave(me, failed)
            except BaseException:
                surely(self._leave, me, failed)
                raise

    def _await_turn(self, request: Request) -> None:
        """Queues, and returns when another thread has done the request or this one is to lead."""
        request.wake = threading.Lock()
        request.wake.acquire()
        with self._queue_lock:
            self._queue.append(request)
        if self._leads.setdefault(_LEAD, request) is not request:
            request.wake.acquire()

    def _lead_for(self, request: Request) -> None:
        """Leads until the request is done: those that have queued before it may be a group by themselves. Raises what failed."""
        while not request.done and self._queue:
            failed = self._lead()
            if failed is not None:
                raise failed

    def _lead(self) -> Exception | None:
        """Writes what has queued, and tells each what came of it. Returns what failed: who leads may not be among them, where the
        handler of a signal has raised an Exception of its own before they were taken."""
        taken: list[Request] = []
        failed: Exception | None = None
        try:
            self._take_queue(taken)
            if taken:
                with self._leader:
                    self._write(taken)
        except Exception as error:  # noqa: BLE001 - every thread that waits must hear of it
            failed = error
        finally:
            try:
                self._tell(taken, failed)
            except BaseException:
                surely(self._tell, taken, failed)
                raise
        return failed

    # These two may be done again where an interrupt came amid them: whoever was left out would wait for ever. A wake-up too many
    # meets nobody, as a request waits once.

    @staticmethod
    def _tell(taken: list[Request], failed: Exception | None) -> None:
        for each in taken:
            each.error = each.error if each.offset >= 0 else _why(each, failed)
            each.done = True
            if each.wake is not None and each.wake.locked():
                each.wake.release()

    def _leave(self, me: Any, failed: bool) -> None:
        """Hands over the lead; who has failed leaves nothing in the queue that nobody asks for."""
        leads, queue = self._leads, self._queue
        with self._queue_lock:
            if failed and me in queue:  # it was interrupted, or its leader was as it took the queue
                queue.remove(me)
            if leads.get(_LEAD) is me:
                leads.clear()
            if queue:
                following = queue[0]  # unless one comes between, who hands on to it in turn
                if leads.setdefault(_LEAD, following) is following and following.wake and following.wake.locked():
                    following.wake.release()

    def _take_queue(self, taken: list[Request]) -> None:
        """The queue up to the group's limit, oldest first."""
        queue = self._queue
        with self._queue_lock:
            # Taken before they go from the queue: an interrupt must not leave one in neither.
            if sum(map(_size, queue)) <= _GROUP_BYTES:
                taken.extend(queue)
                queue.clear()
            size = 0
            while queue:
                oldest = queue[0]
                size += oldest.size
                if taken and size > _GROUP_BYTES:
                    break
                taken.append(oldest)
                queue.popleft()

    def _write_value(self, value: bytes, among: int, key: bytes | None, mark: tuple[bytes, int]) -> tuple[int, int]:
        """Writes one value, or has another process write it; what others wait with goes along."""
        settings = self._settings
        try:
            if settings is None:
                self._lock()
            elif settings.sync != "always":
                files.set_lock(self._lock_fd, files.EXCLUSIVE)  # as `_lock` does, with a call less
            elif (answer := self._lock_or_ask(value, among, key, mark)) is not None:
                return answer.offset, answer.ts
            now = now_us()
            active = self._ready_locked(now)
            settings = self._settings
            assert settings is not None
            if 0 < among < settings.partitions:
                raise MorePartitions
            version, sync = settings.schema_version, settings.sync == "always"
            if self._waiting is not None and (asked := self._asked_locked(settings)):
                mine = one_request(version, value, among, key, mark)
                groups, messages = encode_all([mine, *asked], self._facts, version)
                _, offset, ts = self._append_locked(active, [mine], groups, messages, asked, now, sync)
            else:
                assert settings.template is not None
                offset, ts = active.append_value_locked(
                    settings.template, self._topic_bytes, self.partition, value, now, sync, key, mark
                )
        except OSError as error:
            raise files.translate(error, "append to", self.directory) from error
        finally:
            if self._lock_fd >= 0:
                try:
                    files.set_lock(self._lock_fd, files.FREE)
                finally:
                    if self._waiting is not None:
                        try:
                            files.turn(self._waiting.fd, files.TRY, END_ROUND)
                        finally:
                            self._waiting.leave()
        if settings.sync == "interval":
            self._unsynced(self, settings.sync_interval_ms / 1000)
        return offset, ts

    def _lock_or_ask(self, value: bytes, among: int, key: bytes | None, mark: tuple[bytes, int]) -> Answer | None:
        """Takes the lock, or has the one that has it write a value. The caller unlocks."""
        fd, waiting = self._lock_fd, self._waiting
        if not files.try_turn(fd):
            if waiting is None or mark is not NO_MARK or not waiting.ask(value, among, key):
                files.lock_in_turn(fd)
                self._open_waiting()
                if self._waiting is not None:
                    self._waiting.seek_slot_locked()
            elif (answer := self._await(waiting)) is not None:
                return answer
        if self._waiting is not None:
            self._waiting.begin_round_locked()
        return None

    def _await(self, waiting: Waiting) -> Answer | None:
        """What became of what this process asks; None where it is to do that itself, and has the lock."""
        fd, seen = self._lock_fd, set()
        for _ in range(_LOOKS):
            seen.add(waiting.await_round())
            if (answer := self._answered(waiting)) is not None:
                return answer
            if len(seen) > _ROUNDS:
                files.lock_in_turn(fd)
                break
            if files.try_turn(fd):
                break
            os.sched_yield()  # who has the lock is yet to say so
        else:
            files.lock_in_turn(fd)
        if (answer := self._answered(waiting)) is None:
            waiting.withdraw()
        return answer

    def _answered(self, waiting: Waiting) -> Answer | None:
        """The answer to what this process asks, if it is true: where it has the lock, it never will be else. Raises StoreError where that
        cannot be seen."""
        active = self._active
        try:
            answer = waiting.answer()
            if answer is None:
                return None
            if active is not None and active.uuid == answer.uuid.hex():
                return answer if active.has(answer.entry, answer.position) else None
            return answer if waiting.counts(answer) else None
        except OSError as error:
            unknown = StoreError(
                f"another process may have written a record for this one to {self.directory}, and whether it has cannot be read: "
                f"{error.strerror or error}; look first whether the record is there",
                operation="append to", path=str(self.directory), errno=error.errno,
            )  # fmt: skip
            unknown.retryable = False
            raise unknown from error

    def _asked_locked(self, settings: LogSettings) -> list[Asked]:
        """What other processes wait with, and may be written as the topic is now."""
        if self._waiting is None or settings.sync != "always" or settings.template is None:
            return []
        partitions = settings.partitions
        return [each for each in self._waiting.asked_locked() if not 0 < each.among < partitions]

    def _reply_to(self, asked: list[Asked], active: ActiveFile, offset: int, stamp: int) -> Told:
        """Tells them which entry they are to look for, where they are the last of the last message from `offset` on."""

        def told(position: int, entries: list[bytes]) -> None:
            assert self._waiting is not None
            position += (len(entries) - 1) * ENTRY_SIZE
            self._waiting.reply_locked(asked, active.uuid, position, offset, stamp, entries[-1])

        return told

    def _write(self, requests: list[Request]) -> None:
        # Encoding needs only the schema, so it is done before the lock; the time is stamped under it.
        settings = self._settings or self._facts.settings()
        groups, messages = encode_all(requests, self._facts, settings.schema_version)
        try:
            self._lock()
            now = now_us()
            active = self._ready_locked(now)
            version = settings.schema_version
            assert self._settings is not None
            settings = self._settings
            partitions = settings.partitions
            late = [each for each in requests if 0 < each.among < partitions]
            for each in late:
                each.error = MorePartitions()
            if late:
                requests = [each for each in requests if each.error is None]
                if not requests:
                    return
            if late or settings.schema_version != version:
                groups, messages = encode_all(requests, self._facts, settings.schema_version)
            asked = self._asked_locked(settings)
            if asked:
                groups.append([*asked])
                messages += encode_all(asked, self._facts, settings.schema_version)[1]
            sync = settings.sync == "always"
            requests, offset, stamp = self._append_locked(active, requests, groups, messages, asked, now, sync)
        except OSError as error:
            raise files.translate(error, "append to", self.directory) from error
        finally:
            if self._lock_fd >= 0:
                try:
                    files.set_lock(self._lock_fd, files.FREE)
                finally:
                    if self._waiting is not None:
                        files.turn(self._waiting.fd, files.TRY, END_ROUND)
        if settings.sync == "interval":
            self._unsynced(self, settings.sync_interval_ms / 1000)
        for request in requests:
            request.timestamp = stamp if request.stamps is None else request.stamps[0]
            request.offset = offset  # last: who has one is there
            offset += request.rows

    def _append_locked(
        self, active: ActiveFile, requests: list[Request], groups: list[list[Request]], messages: list[Encoded],
        asked: list[Asked], now: int, sync: bool,
    ) -> tuple[list[Request], int, int]:  # fmt: skip
        """Appends the messages that the groups have become: this process's requests, then what others ask, which is told what becomes of it.
        Returns the requests that are there, the offset of the first, and the time."""
        stamp, offset = max(now, active.last_ts), active.end
        messages = [
            message.stamped(stamp) if group[0].stamps is None else message
            for message, group in zip(messages, groups, strict=True)
        ]
        told = self._reply_to(asked, active, offset + sum(each.rows for each in requests), stamp) if asked else None
        try:
            active.append_locked(self._topic_bytes, self.partition, messages, now, sync, told)
        except OSError as error:
            requests = self._counted_locked(active, requests, offset, error)
        return requests, offset, stamp

    def _counted_locked(self, active: ActiveFile, requests: list[Request], end: int, error: OSError) -> list[Request]:
        """After an append to `end` that failed: the requests that are there all the same, because the disk has taken the entries
        of the first messages and not those of the others, which get the error. Raises it where there are none."""
        active.refresh_locked()
        if active.end <= end:
            raise error
        failed = files.translate(error, "append to", self.directory)
        failed.__cause__ = error
        for request in requests:
            end += request.rows
            if end > active.end:
                request.error = _why(request, failed)
        return [each for each in requests if each.error is None]

    def after_fork(self) -> None:
        """In a forked child: nobody is left who waits for what has queued."""
        self._queue_lock = threading.Lock()
        self._queue.clear()
        self._leads.clear()
        super().after_fork()
