"""Records that a producer gathers for one partition, and the future that each of them has."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jjq.errors import StoreError
from jjq.model import Position
from jjq.values import timeout_s

if TYPE_CHECKING:
    from jjq.topic import Topic

log = logging.getLogger("jjq.producer")


class PushFuture:
    """The position of one record, once it is written. Cheaper than `concurrent.futures.Future`: a batch shares one lock."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch, self._index = batch, index

    def done(self) -> bool:
        return self._batch.finished

    def result(self, timeout: float | None = None) -> Position:
        """The position; waits up to `timeout` seconds (None: ever). Raises TimeoutError, or what the push failed with."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        batch, index = self._batch.where(self._index)
        stamp = batch.timestamp if batch.stamps is None else batch.stamps[index]
        return Position(batch.partition, -1 if batch.offset < 0 else batch.offset + index, stamp)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._batch.wait(timeout)
        return self._batch.where(self._index)[0].error

    def add_done_callback(self, callback: Callable[[PushFuture], Any]) -> None:
        """Calls back with this future when it is done: from the thread that writes, or now."""
        self._batch.when_done(lambda: callback(self))


class Batch:
    """Records of one partition, chosen among as many (0: by the callers), that will be one message."""

    __slots__ = (
        "_callbacks", "_moved", "_waiters", "among", "began", "error", "finished", "headers", "keys", "limit", "offset", "partition",
        "plain", "ready", "size", "stamps", "timestamp", "topic", "values",
    )  # fmt: skip

    def __init__(self, topic: Topic, partition: int, among: int) -> None:
        self.topic, self.partition, self.among = topic, partition, among
        self.values: list[Any] = []
        self.keys: list[bytes | None] | None = None  # these three from the first record on that has one
        self.headers: list[Any] | None = None
        self.stamps: list[int] | None = None
        self.plain = True  # whether it has values only
        self.ready = False  # whether it is to be written as soon as can be; it takes records until then
        self.size = 0
        self.limit = topic.config.max_batch_bytes
        self.began = time.monotonic()
        self.offset = -1
        self.timestamp: int | None = 0
        self.error: BaseException | None = None
        self.finished = False
        self._waiters: list[threading.Lock] = []
        self._callbacks: deque[Callable[[], Any]] = deque()
        self._moved: list[tuple[Batch, int]] | None = None  # where each record is since the batch was divided

    def add(self, value: Any, key: bytes | None, headers: Any, stamp: int | None) -> int:
        """Adds a record, and returns which it is."""
        index = len(self.values)
        if key is not None or self.keys is not None:
            self.keys = self.keys if self.keys is not None else [None] * index
            self.keys[index:] = [key]  # here and below, in the place of what an interrupted one has left
        if headers is not None or self.headers is not None:
            self.headers = self.headers if self.headers is not None else [None] * index
            self.headers[index:] = [headers]
        if stamp is not None:
            self.stamps = self.stamps or []
            self.stamps[index:] = [stamp]
        self.plain = self.keys is None and self.headers is None and self.stamps is None
        self.values.append(value)  # last: with its value a record is there
        return index

    def trim(self) -> None:
        """Nothing is added any more."""
        for each in (self.keys, self.headers, self.stamps):
            if each is not None:
                del each[len(self.values) :]

    def divide(self) -> list[Batch]:
        """The same records by the partitions that are chosen for them now."""
        parts: dict[tuple[int, int], Batch] = {}
        self._moved = []
        for i, value in enumerate(self.values):
            key = None if self.keys is None else self.keys[i]
            place = self.topic.choose(None, key)
            part = parts.setdefault(place, Batch(self.topic, *place))
            headers = None if self.headers is None else self.headers[i]
            stamp = None if self.stamps is None else self.stamps[i]
            self._moved.append((part, part.add(value, key, headers, stamp)))
        return list(parts.values())

    def where(self, index: int) -> tuple[Batch, int]:
        """The batch that a record went with at last, and which it is there."""
        if self._moved is None:
            return self, index
        batch, index = self._moved[index]
        return batch.where(index)

    # One thread finishes, others wait and call back. None of them holds a lock, which an interrupt could leave locked.

    def wait(self, timeout: float | None) -> None:
        seconds = timeout_s(timeout)
        if not self.finished:
            self._wait(-1 if seconds is None else seconds)

    def _wait(self, seconds: float) -> None:
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)  # before it looks, as whoever finishes says so before it wakes
        if not self.finished and not waiter.acquire(timeout=seconds):
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)
            raise TimeoutError("the record is not written yet; it may still be")

    def when_done(self, callback: Callable[[], Any]) -> None:
        self._callbacks.append(callback)
        if self.finished:
            self._call_back()

    def leave_to_parent(self) -> None:
        self._waiters, self._callbacks = [], deque()
        self.finish(
            StoreError("the record was pushed before the fork: the parent process writes it, and knows where it is")
        )

    def finish(self, error: BaseException | None) -> None:
        self.error = error
        self.finished = True
        with contextlib.suppress(IndexError):  # none is left: one whose time is over goes by itself
            while True:
                self._waiters.pop().release()
        self._call_back()

    def _call_back(self) -> None:
        with contextlib.suppress(IndexError):  # none is left; another thread may call some of them
            while True:
                callback = self._callbacks.popleft()
                try:
                    callback()
                except Exception:
                    log.exception("a callback of a push failed")
