"""Pushing without waiting for each record: records gather for a few milliseconds and are written as one message.

```python
with store.producer(linger_ms=5) as producer:
    future = producer.push("events", b"value", key=b"k")
    future.result()        # the Position, when it is as durable as the topic promises
```
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jjq.batch import Batch, PushFuture
from jjq.errors import (
    BrokerUnavailable,
    InvalidArgument,
    JjqError,
    RecordTooLarge,
    StoreClosed,
    TopicDeleted,
)
from jjq.headers import check_headers, headers_size
from jjq.hints import keywords_of
from jjq.log.requests import MorePartitions
from jjq.model import check_name
from jjq.schema import rows_to_table, to_bytes
from jjq.topics import at_first_use
from jjq.values import between, counted, living, shown, timeout_s, whole

if TYPE_CHECKING:
    from jjq.store import Store
    from jjq.topic import Headers, Timestamp, Topic

log = logging.getLogger("jjq.producer")

_FIRST_RETRY_S = 0.05
_LONGEST_RETRY_S = 2.0
_GROWN = 8  # a batch that is full and waits for another to be written takes up to so many times `batch_bytes`
_producers: weakref.WeakSet[Producer] = weakref.WeakSet()  # one that has something to write lives by its thread
_closed_at_exit = False  # whether this process, if multiprocessing began it, closes them when it ends


@keywords_of("__init__")
class Producer:
    """Gathers pushes into batches and writes them in the background; safe among threads. Close it, or use `with`: whoever
    does not leaves that to `Store.close`, or to the normal end of the process.

    A batch is written when its first record has waited `linger_ms` or it has `batch_bytes`; what comes while another is
    written still joins it. Records of one partition are written in the order they were pushed. At most `window` records are
    unacknowledged: a push beyond that waits, which is how a slow disk slows its producers. A failure that may pass (a full
    disk) is tried again, in order, for `delivery_timeout_s`; a failed append leaves nothing, so trying again never
    duplicates.
    """

    def __init__(
        self, store: Store, *, linger_ms: float = 5.0, batch_bytes: int = 1 << 20, window: int = 65_536,
        delivery_timeout_s: float = 30.0, on_error: Callable[[PushFuture], Any] | None = None,
    ) -> None:  # fmt: skip
        between(linger_ms, "linger_ms", 0, 60_000)
        whole(batch_bytes, "batch_bytes", 1, 1 << 30)
        whole(window, "window", 1, 100_000_000)
        between(delivery_timeout_s, "delivery_timeout_s", 0, 1e9)
        if on_error is not None and not callable(on_error):
            raise InvalidArgument(
                f"on_error is called with the future of each record that failed, not {shown(on_error)}"
            )
        self._store = store
        self._linger_s = linger_ms / 1000
        self._batch_bytes, self._window = batch_bytes, window
        self._delivery_timeout_s = delivery_timeout_s
        self._on_error = on_error
        self._topics: dict[str, Topic] = {}
        self._among: dict[str, int] = {}  # how many partitions of a topic were chosen among last
        self._open: dict[tuple[str, int], Batch] = {}
        self._ready: deque[Batch] = deque()
        self._writing: Batch | None = None
        self._pending = 0  # records pushed and not yet acknowledged
        self._closed = False
        self._until = math.inf  # when it stops to try again, once it is closed
        self._unreached: BrokerUnavailable | None = None  # why it stops to try at all, then
        self.acknowledged = 0
        self.failed = 0
        self._begin()
        _producers.add(self)
        if store._closing:  # behind that: who closes has either seen it there, or said so before
            raise StoreClosed("the store is being closed; open it again for another producer")

    def _begin(self) -> None:
        """What a producer begins with, and again in a forked child. The thread starts with the first record."""
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._flushing = 0
        self._full: list[threading.Lock] = []  # of pushes that wait for room
        self._never = threading.Event()
        self._thread: threading.Thread | None = None

    def push(
        self, topic: str, value: Any, *, key: bytes | str | None = None, headers: Headers = None,
        timestamp: Timestamp = None, partition: int | None = None,
    ) -> PushFuture:  # fmt: skip
        """Takes a record to be written soon; see `Topic.push` for what it may be. Waits only when the window is full.

        Bad arguments raise here; what goes wrong later is the future's, and counted in `failed`.
        """
        if (
            key is None
            and headers is None
            and timestamp is None
            and type(value) is bytes
            and type(topic) is str
            and (partition is None or type(partition) is int)
        ):
            # What most are: it joins a batch of its like, for which all has been checked.
            size = len(value)
            place, among = (0, 1) if partition is None else (partition, 0)
            with self._mutex:
                batch = self._open.get((topic, place))
                if (
                    batch is not None
                    and batch.plain
                    and batch.among == among
                    and size <= batch.topic._plain_bytes
                    and batch.size + size <= batch.limit
                    and self._pending < self._window
                    and not self._closed
                ):
                    values = batch.values
                    values.append(value)
                    self._pending += 1
                    batch.size = filled = batch.size + size
                    if filled >= self._batch_bytes:
                        self._fill_locked(batch)
                    return PushFuture(batch, len(values) - 1)
        target = self._topics.get(check_name(topic, "topic"))
        if target is None:
            target = self._topics[topic] = at_first_use(
                self._store,
                topic,
                lambda unmade: unmade.push(value, key=key, headers=headers, timestamp=timestamp, partition=partition),
            )
        plain_key = None if key is None else to_bytes(key, "a key")
        place, among = target.choose(partition, plain_key)
        data: Any
        if target.schema is None:
            data = value if type(value) is bytes or value is None else target.plain(value)
            size = len(data or b"") + len(plain_key or b"")
        else:
            data, size = value, rows_to_table([value], target.schema).nbytes  # a bad row fails here, not its batch
        if size > target.config.max_record_bytes:
            raise RecordTooLarge(
                f"the record has {size:,} bytes, the topic takes up to {target.config.max_record_bytes:,}"
            )
        pairs = None if headers is None else check_headers(headers)
        if pairs:
            long = headers_size(pairs)
            target.check_size(long, target.config.max_record_bytes, "the headers of a record")
            size += long
        stamps = target.stamps(None if timestamp is None else [timestamp], 1)
        while True:
            with self._mutex:
                if self._closed:
                    raise StoreClosed("the producer was closed; make another with store.producer()")
                if self._pending < self._window:
                    stamp = None if stamps is None else stamps[0]
                    return self._add_locked(target, place, among, data, size, plain_key, pairs, stamp)
                # Full: what lingers goes now. Not by the condition: an interrupt as it takes its lock again would let go another's.
                room = threading.Lock()
                room.acquire()
                self._full.append(room)
                self._changed.notify_all()
            room.acquire()

    def _add_locked(
        self, target: Topic, place: int, among: int, data: Any, size: int, key: bytes | None, headers: Any, stamp: int | None
    ) -> PushFuture:  # fmt: skip
        topic = target.name
        if among and self._among.setdefault(topic, among) != among:
            # A key's earlier record may wait in another partition's batch: that one is written first.
            self._among[topic] = among
            for each in [each for each in self._open if each[0] == topic]:
                self._end_locked(self._open[each])
        if self._thread is None:
            _close_at_exit()
            thread = threading.Thread(target=self._run, name="jjq-producer", daemon=True)
            thread.start()
            self._thread = thread  # not before: amid an interrupt it may not have started
        batch = self._open.get((topic, place))
        if batch is not None and (
            batch.among != among or batch.size + size > batch.limit or len(batch.values) == target.most_at_once
        ):
            self._end_locked(batch)
            batch = None
        if batch is None:
            batch = Batch(target, place, among)
            if not self._open:
                self._changed.notify_all()
        index = batch.add(data, key, headers, stamp)
        self._open[topic, place] = batch  # behind all that may be interrupted: it is told of, and has a record
        self._pending += 1
        batch.size += size
        if batch.size >= self._batch_bytes:
            self._fill_locked(batch)
        return PushFuture(batch, index)

    def _tell_locked(self) -> None:
        """Something has changed: whoever waits looks."""
        self._changed.notify_all()
        for room in self._full:
            if room.locked():
                room.release()
        self._full.clear()  # last: after an interrupt they are told again

    def _fill_locked(self, batch: Batch) -> None:
        """Has a batch that is full written next. Until the thread comes to it, it goes on to grow: the more there is in one
        write, the fewer of them, and syncs, it takes."""
        if not batch.ready:
            self._changed.notify_all()  # first, as an interrupt may come between
            batch.ready = True
            self._ready.append(batch)
        if batch.size >= _GROWN * self._batch_bytes:
            self._end_locked(batch)

    def _end_locked(self, batch: Batch) -> None:
        """Nothing joins a batch any more; it is written after those that are ready."""
        del self._open[batch.topic.name, batch.partition]
        if not batch.ready:
            batch.ready = True
            self._ready.append(batch)

    def flush(self, timeout: float | None = None) -> None:
        """Returns when everything pushed before is written or has failed; raises TimeoutError after `timeout` seconds."""
        seconds = timeout_s(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._mutex:
            # Batches and not a count: of other topics, later records may be written earlier.
            before = [*([] if self._writing is None else [self._writing]), *self._ready, *self._open.values()]
            self._flushing += 1
            self._changed.notify_all()
        try:
            for batch in before:
                batch.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise TimeoutError(f"{counted(self._pending, 'record is', 'records are')} not written yet") from None
        finally:
            with self._mutex:
                self._flushing -= 1

    def close(self) -> None:
        """Writes what was pushed, then ends; a second close is quiet. A failure that may pass is tried again for
        `delivery_timeout_s` from now at most."""
        self._end()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _end(self, *, close: bool = True) -> None:
        """Nothing lingers any more, nor is tried again for ever; with `close` nothing more is taken."""
        with self._mutex:
            if not self._closed:
                self._until = time.monotonic() + self._delivery_timeout_s
            self._flushing += 1
            self._closed = self._closed or close
            self._tell_locked()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<Producer {state}, {self._pending} pending, {self.acknowledged} acknowledged, {self.failed} failed>"

    # --- the thread that writes ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        with self._mutex:
            if self._thread is not threading.current_thread():
                return  # an interrupt came amid its start: the next push starts another
        while True:
            with self._mutex:
                self._writing = batch = self._next_locked()
            if batch is None:
                return
            self._deliver(batch)

    def _deliver(self, batch: Batch) -> None:
        batch.trim()
        try:
            error = self._write(batch)
        except MorePartitions:
            for part in batch.divide():
                self._deliver(part)
            batch.finish(None)
            return
        with self._mutex:
            rows = len(batch.values)
            self._pending -= rows
            if error is None:
                self.acknowledged += rows
            else:
                self.failed += rows
                if isinstance(error, TopicDeleted) and self._topics.get(batch.topic.name) is batch.topic:
                    del self._topics[batch.topic.name]  # the next push finds who has the name now, or makes it again
            self._tell_locked()
        batch.finish(error)
        if error is not None:
            were = "was" if rows == 1 else "were"
            log.warning("%s for topic %r %s not written: %s", counted(rows, "record"), batch.topic.name, were, error)
            if self._on_error is not None:
                for index in range(rows):
                    try:
                        self._on_error(PushFuture(batch, index))
                    except Exception:
                        log.exception("on_error of a producer failed")

    def _next_locked(self) -> Batch | None:
        """The next batch to write, when it is time; None when the producer is closed and all is written."""
        while True:
            left = None
            oldest = next((each for each in self._open.values() if not each.ready), None)
            if oldest is not None:
                left = oldest.began + self._linger_s - time.monotonic()
                # By age, or one that lingers would wait as long as others fill. What is ready of its partition is older.
                due = left <= 0 or self._flushing or self._full or self._closed
                if due and not (self._ready and self._ready[0].began <= oldest.began):
                    del self._open[oldest.topic.name, oldest.partition]
                    return oldest
            if self._ready:
                batch = self._ready.popleft()
                place = batch.topic.name, batch.partition
                if self._open.get(place) is batch:
                    del self._open[place]
                return batch
            if left is not None:
                self._changed.wait(left)
            elif self._closed:
                return None
            else:
                self._changed.wait()

    def _write(self, batch: Batch) -> BaseException | None:
        """What it failed with; raises MorePartitions when other partitions are to be chosen."""
        deadline = time.monotonic() + self._delivery_timeout_s
        pause = _FIRST_RETRY_S
        if self._unreached is not None:
            return self._unreached
        while True:
            try:
                written = batch.topic.push_chosen(
                    batch.partition,
                    batch.among,
                    batch.values,
                    keys=batch.keys,
                    headers=batch.headers,
                    timestamps=batch.stamps,
                )
                batch.offset, batch.timestamp = written.start, written.timestamp
                return None
            except MorePartitions:
                raise
            except JjqError as error:
                if not error.retryable or time.monotonic() + pause > min(deadline, self._until):
                    if self._until < math.inf and isinstance(error, BrokerUnavailable):
                        self._unreached = error  # or who closes would wait as long again for each batch
                    return error
                log.warning("topic %r: %s; trying again in %.2f s", batch.topic.name, error, pause)
            except Exception as error:  # noqa: BLE001 - every future must hear of it
                return error
            self._never.wait(pause)
            pause = min(2 * pause, _LONGEST_RETRY_S)

    def _after_fork(self) -> None:
        """In a forked child: what was pushed and is not written is the parent's to write."""
        batches = [*([] if self._writing is None else [self._writing]), *self._ready, *self._open.values()]
        self._open.clear()
        self._ready.clear()
        self._writing, self._pending = None, 0
        self._begin()
        for batch in batches:
            batch.leave_to_parent()


def close_all(store: Store | None = None) -> None:
    """Closes the producers of a store, or of the process. They end side by side: it takes as long as the slowest of them."""
    closing = [each for each in living(_producers) if store is None or each._store is store]
    for each in closing:
        each._end()
    for each in closing:
        each.close()


def flush_all() -> None:
    """Writes what all producers of the process were given, without a pause: it is about to end."""
    ending = living(_producers)
    for each in ending:
        each._end(close=False)
    for each in ending:
        each.flush()


def _write_at_exit(write: Callable[[], object]) -> None:
    try:
        write()
    except KeyboardInterrupt:
        atexit.unregister(_write_at_exit)  # nor does anybody wait again
        left = sum(each._pending for each in living(_producers))
        log.warning(
            "interrupted as the process ends: %s not written",
            counted(left, "record that was pushed is", "records that were pushed are"),
        )


# As early as can be: what is registered later is called before, and may push.
atexit.register(_write_at_exit, close_all)


def _close_at_exit() -> None:
    """Has this process write what was pushed when it ends; called as a thread begins that may have something to write then. Closing
    comes last of all: before that all is written once, while what was begun before, such as a broker or a directory, is still there."""
    global _closed_at_exit
    if _closed_at_exit:
        return
    atexit.register(_write_at_exit, flush_all)
    # multiprocessing's processes call nothing that atexit knows.
    if "multiprocessing" in sys.modules:
        from multiprocessing import parent_process, util

        if parent_process() is not None:
            util.Finalize(None, _write_at_exit, [close_all], exitpriority=0)
    _closed_at_exit = True


def _before_fork() -> None:
    """pyarrow imports pandas with the first list of values, under a lock that a child would find locked for ever: with a producer's
    thread amid that, a fork waits for it."""
    if any(each._thread is not None for each in living(_producers)):
        pa.array([0])


def _after_fork_in_child() -> None:
    global _closed_at_exit
    _closed_at_exit = False  # a child may end otherwise than its parent
    for each in living(_producers):
        each._after_fork()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
