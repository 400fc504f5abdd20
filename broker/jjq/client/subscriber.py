"""A subscriber behind a broker.

The handle has its like in the broker, which does the work. Where polling is, is kept here: a broker that was started anew is
told, and polls on from there.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from jjq import wire
from jjq.catalog.rows import SubscriberRow
from jjq.client.handle import RemoteHandle
from jjq.errors import StoreClosed
from jjq.feed import TAKE_BYTES
from jjq.model import PartitionLag, Record
from jjq.records import fitting
from jjq.subscriber import Subscriber
from jjq.values import bound_in_bytes, timeout_s, whole

if TYPE_CHECKING:
    from jjq.client.store import RemoteStore
    from jjq.topic import Topic

_AHEAD = 500  # records that an iteration asks for at once


class RemoteSubscriber(RemoteHandle, Subscriber):
    """See `jjq.subscriber.Subscriber`."""

    def __init__(self, store: RemoteStore, topic: Topic, row: SubscriberRow) -> None:
        super().__init__(store)
        self._topic, self._row = topic, row
        self.skipped = 0
        self._skipped_before = 0  # by handles of the broker that are gone
        self._mutex = threading.RLock()
        self._consumer: object | None = None  # during a poll or a step of an iterator
        self._fetching = threading.Lock()
        self._iterating: int | None = None
        self._ahead: deque[Record] = deque()  # polled by the broker, and not yet given out
        self._fetched: dict[int, tuple[int, int]] = {}  # where polling is there
        self._taken: dict[int, tuple[int, int]] = {}  # and here
        self._polls = False
        self._seeking = threading.Lock()  # a wait begins before a seek or after it
        self._popped: dict[int, int] = {}  # since the last poll began: up to these offsets it is to give nothing

    def __repr__(self) -> str:
        state = "closed" if self._closed else "polling" if self._polls else "open"
        return f"<Subscriber {self.name!r} of topic {self._topic.name!r} {state}>"

    def _about(self) -> dict[str, Any]:
        places = [[partition, *place] for partition, place in self._fetched.items()]
        return {"subscriber": [self._row.name, self._row.id, self._row.topic_id], "places": places}

    def _closed_message(self) -> str:
        return f"this handle of subscriber {self.name!r} was closed; get another with store.subscriber"

    # --- one record at a time, shared --------------------------------------------------------------------------------

    def pop(self, timeout: float | None = 0.0) -> Record | None:
        record = self._single("pop", timeout_s(timeout))
        if record is not None:
            with self._mutex:  # what was popped here is not to be polled here again
                self._popped[record.partition] = record.offset + 1
                self._ahead = deque(each for each in self._ahead if self._is_left_locked(each))
        return record

    def _is_left_locked(self, record: Record) -> bool:
        return record.offset >= self._popped.get(record.partition, 0)

    def peek(self, timeout: float | None = 0.0) -> Record | None:
        return self._single("peek", timeout_s(timeout))

    def _single(self, name: str, seconds: float | None) -> Record | None:
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            wait = self._remote.connection.wait_s(left)
            told = self._wait(self._handle, name, wait)
            if told is None:
                continue
            self._learn_skipped(told["skipped"])
            if told["records"]:
                return wire.unpack_records(told["records"])[0]
            if left is not None and left <= wait:
                return None

    def _wait(self, handle: int, name: str, wait: float, **args: Any) -> Any:
        """What the broker's handle of that number tells; None where a seek has left it behind meanwhile."""
        try:
            return self._act(name, wait, handle=handle, timeout=wait, **args)
        except StoreClosed:
            if handle == self._handle:
                raise
            return None

    def _learn_skipped(self, there: int) -> None:
        if there < self.skipped - self._skipped_before:  # another handle of the broker than before
            self._skipped_before = self.skipped
        self.skipped = self._skipped_before + there

    # --- many records, for one consumer ------------------------------------------------------------------------------

    def poll(
        self, max_records: int = 500, timeout: float | None = 0.0, *, max_bytes: int | str | None = TAKE_BYTES
    ) -> list[Record]:
        most, most_bytes = whole(max_records, "max_records", 1), bound_in_bytes(max_bytes, "max_bytes")
        seconds = timeout_s(timeout)
        with self._consuming():
            if not self._ahead:
                self._fetch(most, seconds, most_bytes)
            with self._mutex:  # what is ahead may have been fetched for another bound
                return [self._take_locked() for _ in range(fitting(self._ahead, most, most_bytes))]

    def _fetch(self, most: int, seconds: float | None, most_bytes: int = TAKE_BYTES) -> None:
        """Has records ahead, if there are any in time."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            wait = self._remote.connection.wait_s(left)
            if self._fetch_once(most, wait, most_bytes) or (left is not None and left <= wait):
                return

    def _fetch_once(self, most: int, wait: float, most_bytes: int = TAKE_BYTES) -> bool:
        with self._fetching:  # a wait that was cancelled may still be at it
            with self._seeking:
                handle = self._handle
            if not self._ahead:
                self._popped = {}  # the broker's handle knows of those; others may have moved the cursor back since
                told = self._wait(handle, "poll", wait, max_records=most, max_bytes=most_bytes)
                with self._seeking:
                    pass  # one beside this is to say first that it has been
                with self._mutex:
                    if told is None or handle != self._handle:
                        return False  # whether it was read before or after a seek, nobody can tell: it is read again
                    self._polls = True
                    self._learn_skipped(told["skipped"])
                    self._fetched = {partition: (offset, lineage) for partition, offset, lineage in told["places"]}
                    found = wire.unpack_records(told["records"])
                    self._ahead.extend(each for each in found if self._is_left_locked(each))
                    if not self._ahead:
                        self._taken = dict(self._fetched)
            return bool(self._ahead)

    def _take_locked(self) -> Record:
        record = self._ahead.popleft()
        if self._ahead:
            self._taken[record.partition] = (record.offset + 1, self._fetched[record.partition][1])
        else:
            self._taken = dict(self._fetched)
        return record

    def _next_record(self) -> Record:
        if not self._ahead:
            self._fetch(_AHEAD, None)
        with self._mutex:
            return self._take_locked()

    async def _next_record_async(self) -> Record:
        while not self._ahead:
            # What a wait that is cancelled has found stays ahead.
            wait = self._remote.connection.wait_s(None)
            await asyncio.wrap_future(self._remote.executor.submit(self._fetch_once, _AHEAD, wait))
        with self._mutex:
            self._check_open()
            return self._take_locked()

    def commit(self) -> None:
        with self._mutex:
            if not self._taken:
                self._check_open()
                if not self._polls and not self._popped:
                    self._warn_unused()
                return
            taken = [[partition, *place] for partition, place in self._taken.items()]
            self._act("commit_polled", taken=taken)

    def _take_lock(self) -> None:
        self._check_open()  # the lock is the broker's to take

    # --- moving ------------------------------------------------------------------------------------------------------

    def seek(self, start: Any) -> None:
        with self._seeking:
            beside = self._fetching.locked()
            told = self._act("seek", start=wire.pack_start(start))
            with self._mutex:
                moved = {partition: (offset, lineage) for partition, offset, lineage in told}
                old = self._handle
                if beside:
                    # What is being polled is of before or of after this, and the broker's handle is behind it: another one goes on.
                    self._handle = next(self._remote.handle_numbers)
                self._ahead = deque(each for each in self._ahead if each.partition not in moved)
                if self._fetched:
                    self._fetched.update(moved)
                    self._taken.update(moved)
            if beside:  # before the other polls: one at a time may
                self._remote.connection.act("close_handle", handle=old)

    def positions(self) -> dict[int, int]:
        return dict(self._act("positions"))

    def lag(self) -> list[PartitionLag]:
        return [PartitionLag(**each) for each in self._act("lag")]

    # --- resting --------------------------------------------------------------------------------------------------------

    def sleep(self) -> None:
        self._act("sleep")

    def wakeup(self) -> None:
        self._act("wakeup")
