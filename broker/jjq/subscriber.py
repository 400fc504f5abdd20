"""Subscribers: durable cursors on a topic.

A cursor is one next offset a partition, kept in the catalog with the lineage it was taken in. `pop` and `peek` work at
the cursor; `poll` and iteration begin there, go on by themselves, and move it with `commit`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from jjq.catalog.rows import SubscriberRow
from jjq.cursors import ConsumerLock, lag_of, lock_path, resolve_places, ring
from jjq.errors import (
    DataLoss,
    StoreClosed,
    StoreReadOnly,
    SubscriberBusy,
    SubscriberNotFound,
    TopicDeleted,
)
from jjq.feed import TAKE_BYTES, Feed, Place, watched
from jjq.model import PartitionLag, Record
from jjq.values import bound_in_bytes, living, timeout_s, whole
from jjq.wake import until_found, wait_for

if TYPE_CHECKING:
    from jjq.store import Store
    from jjq.topic import Topic

Result = TypeVar("Result")
_log = logging.getLogger("jjq.subscriber")
_subscribers: weakref.WeakSet[Subscriber] = weakref.WeakSet()


class Subscriber:
    """A handle of one subscriber; safe among threads, usable in forked children. Close it, or use it in a `with` block.

    Any number of handles, in any number of processes, may `pop` from one subscriber: each record goes to one of them.
    `poll` and iteration are for one handle at a time, and one thread at a time. `timeout` is in seconds everywhere:
    0 looks once, None waits for ever. Whatever waits raises at once when the topic or the subscriber is deleted
    (TopicDeleted, SubscriberNotFound) or the store or this handle is closed (StoreClosed).

    Records that are gone before they were read are an error (DataLoss, which names what was asked, the earliest left and
    how many are lost; `seek` goes on from anywhere), or with on_data_loss="skip" are counted in `skipped`, logged once a
    gap, and passed over. `Topic.empty` takes cursors along, so what it let go is no loss. The error of one partition comes
    when of the others all was given that they held by then; who goes on gets what they hold since, and the error again.
    """

    def __init__(self, store: Store, topic: Topic, row: SubscriberRow) -> None:
        self._store, self._topic, self._row = store, topic, row
        self.skipped = 0  # records that were gone and passed over, by this handle
        self._closed = False
        self._lock: ConsumerLock | None = None
        self._iterating: int | None = None  # the thread that has an iterator open
        self._pinned: int | None = None  # the partition that peek showed, for the next pop
        self._popping: Feed | None = None
        self._polling: Feed | None = None
        self._polled: dict[int, Place] = {}  # where polling was when it was last committed
        self._renew_locks()
        _subscribers.add(self)

    def _renew_locks(self) -> None:
        self._mutex = threading.RLock()
        self._consumer: object | None = None  # during a poll or a step of an iterator
        self._listener = self._store.listener(functools.partial(watched, self._topic))
        if self._closed:
            self._listener.close()

    @property
    def id(self) -> str:
        return self._row.id

    @property
    def name(self) -> str:
        return self._row.name

    @property
    def topic(self) -> Topic:
        return self._topic

    @property
    def on_data_loss(self) -> str:
        return self._row.on_data_loss

    @property
    def created_at(self) -> int:
        """Microseconds since the epoch."""
        return self._row.created_at

    def __repr__(self) -> str:
        state = "closed" if self._closed else "polling" if self._lock is not None else "open"
        return f"<Subscriber {self.name!r} of topic {self._topic.name!r} {state}>"

    # --- one record at a time, shared --------------------------------------------------------------------------------

    def pop(self, timeout: float | None = 0.0) -> Record | None:
        """Takes the next record and moves the cursor past it, durably; None when there is none in time.

        The move is a compare-and-set: of all who pop from this subscriber one gets the record. At most once for who dies
        holding it. Raises StoreReadOnly where the cursor cannot be moved.
        """
        self._check_writable("pop", "peek and poll")
        return wait_for(self._pop_once, timeout_s(timeout), self._listener)

    def peek(self, timeout: float | None = 0.0) -> Record | None:
        """The record that the next pop gives, unless somebody else takes it first; moves nothing."""
        return wait_for(self._peek_once, timeout_s(timeout), self._listener)

    def _pop_once(self) -> Record | None:
        with self._mutex:
            feed = self._at_cursor()
            while (partition := self._next_of(feed)) is not None:
                offset, lineage = feed.place(partition)
                if self._store.catalog.move_cursor(self.id, partition, offset, offset + 1, lineage):
                    self._pinned = None
                    # What is popped here is not to be polled here again.
                    if self._polling is not None:
                        self._polling.skip_to(partition, (offset + 1, lineage))
                    return feed.take(partition)
                # Somebody else has taken it, moved the cursor, or the partition has another lineage.
                if not self._follow_cursor(feed):
                    feed.forget(partition)
            return None

    def _peek_once(self) -> Record | None:
        with self._mutex:
            feed = self._at_cursor()
            self._follow_cursor(feed)
            self._pinned = self._next_of(feed)
            return None if self._pinned is None else feed.head(self._pinned)

    def _at_cursor(self) -> Feed:
        self._check_open()
        if self._popping is None:
            self._popping = self._feed(self._cursors())
        return self._popping

    def _next_of(self, feed: Feed) -> int | None:
        """The partition to take from next, as it looks after others have moved the cursor, too."""
        while True:
            try:
                if self._pinned is not None and feed.has(self._pinned):
                    return self._pinned
                partition = feed.waiting()
                # Before saying that there is nothing: a cursor may have been moved back.
                if partition is not None or not self._follow_cursor(feed):
                    return partition
            except DataLoss as loss:
                self._pass_over(feed, loss, durable=True)

    def _follow_cursor(self, feed: Feed) -> bool:
        """True if the cursor is not where the feed is; now it is."""
        moved = [feed.move(partition, place) for partition, place in self._cursors().items()]
        return any(moved)

    def _cursors(self) -> dict[int, Place]:
        found = self._store.catalog.cursors(self.id)
        if not found:
            raise self._gone()
        return found

    def _gone(self) -> TopicDeleted | SubscriberNotFound:
        if self._store.catalog.topic_by_id(self._row.topic_id) is None:
            return TopicDeleted(
                f"topic {self._topic.name!r} was deleted, and its subscriber {self.name!r} with it",
                topic_id=self._row.topic_id,
                topic=self._topic.name,
            )
        return SubscriberNotFound(f"subscriber {self.name!r} was deleted")

    # --- many records, for one consumer ------------------------------------------------------------------------------

    def poll(
        self, max_records: int = 500, timeout: float | None = 0.0, *, max_bytes: int | str | None = TAKE_BYTES
    ) -> list[Record]:
        """Up to `max_records` next records, as soon as there is one; an empty list when there is none in time.

        Together they have up to `max_bytes` (`"16MB"`, or a number) in keys, values and headers, or it is one that has more; None:
        however many. Partitions are merged fairly, each in order. Nothing durable happens until `commit`: who dies before it gets them
        again. Raises SubscriberBusy while another consumer polls this subscriber.
        """
        most, most_bytes = whole(max_records, "max_records", 1), bound_in_bytes(max_bytes, "max_bytes")
        seconds = timeout_s(timeout)
        with self._consuming():
            return wait_for(lambda: self._poll_once(most, most_bytes), seconds, self._listener) or []

    def __iter__(self) -> Iterator[Record]:
        """The topic from the cursor on: its history, then each new record as it comes, for ever.

        Leaving a record for the next counts it as polled: `commit` in the loop's body includes the record at hand.
        """
        self._check_open()
        return self._records()

    def _records(self) -> Iterator[Record]:
        with self._consuming():
            self._iterating = threading.get_ident()
        try:
            while True:
                with self._consuming():
                    record = self._next_record()
                yield record
        finally:
            self._iterating = None

    def _next_record(self) -> Record:
        found = wait_for(lambda: self._poll_once(1), None, self._listener)
        assert found is not None
        return found[0]

    def __aiter__(self) -> AsyncIterator[Record]:
        """As iteration, in a coroutine: what is not in memory yet is read and waited for without holding up the loop."""
        self._check_open()
        return self._records_async()

    async def _records_async(self) -> AsyncIterator[Record]:
        with self._consuming():
            self._iterating = threading.get_ident()
        try:
            while True:
                with self._consuming():
                    record = await self._next_record_async()
                yield record
        finally:
            self._iterating = None

    async def _next_record_async(self) -> Record:
        while (record := self._poll_ready()) is None:
            await until_found(self._read_on, self._listener)
        return record

    def _poll_ready(self) -> Record | None:
        """A record that is in memory."""
        with self._mutex:
            self._check_open()
            feed = self._polling
            partition = None if feed is None else feed.ready()
            return None if feed is None or partition is None else feed.take(partition)

    def _read_on(self) -> bool:
        """Has records in memory, if there are any; takes none."""
        return self._polled_by(lambda feed: feed.waiting() is not None)

    def _poll_once(self, most: int, most_bytes: int = TAKE_BYTES) -> list[Record]:
        return self._polled_by(lambda feed: feed.take_many(most, most_bytes))

    def _polled_by(self, act: Callable[[Feed], Result]) -> Result:
        with self._mutex:
            self._check_open()
            feed = self._polling
            if feed is None:
                places = self._cursors()
                feed = self._polling = self._feed(places)
                self._polled = places
            while True:
                try:
                    found = act(feed)
                except DataLoss as loss:
                    self._pass_over(feed, loss, durable=False)
                    continue
                if not found:
                    self._cursors()  # raises when the subscriber is gone
                return found

    def _feed(self, places: Mapping[int, Place]) -> Feed:
        places_now = functools.partial(
            self._store.catalog.cursors, self.id
        )  # without this handle: it is to go by itself
        return Feed(self._topic, places, near=self._store.hot.near(self.name), places_now=places_now)

    def commit(self) -> None:
        """Moves the cursor past every record that this handle has polled. Never moves it back. What another handle of the same
        subscriber has polled is that one's to commit: a handle that was not used yet logs a warning."""
        self._check_open()
        if self._store.read_only:
            raise StoreReadOnly(f"the store at {self._store.path} is read-only: polling works, committing does not")
        with self._mutex:
            self._check_open()  # again: another thread may have closed it since
            if self._polling is not None:
                self._commit_locked(self._polling.places())
            elif not self._polled and self._popping is None:
                self._warn_unused()

    def _warn_unused(self) -> None:
        _log.warning(
            "subscriber %r: this handle has polled nothing, so commit moves nothing; commit by the handle that polled, not by "
            "another one of store.subscriber",
            self.name,
        )

    def _commit_locked(self, places: Mapping[int, Place]) -> None:
        moved = {partition: place for partition, place in places.items() if place != self._polled.get(partition)}
        if moved:
            if not self._store.catalog.set_cursors(self.id, moved, only_forward=True):
                raise self._gone()
            self._polled = {**self._polled, **moved}

    # --- for who polls on behalf of another process --------------------------------------------------------------------

    def polled(self) -> dict[int, Place]:
        """By partition where polling is; empty before the first poll."""
        with self._mutex:
            self._check_open()  # a handle that was closed since it polled would have nowhere to go on from
            return {} if self._polling is None else self._polling.places()

    def poll_from(self, places: Mapping[int, Place]) -> None:
        """Polls on from there, as a handle did that is gone."""
        with self._mutex:
            self._check_open()
            self._polled = self._cursors()
            self._polling = self._feed({**self._polled, **places})

    def commit_to(self, places: Mapping[int, Place]) -> None:
        """`commit` of a part of what was polled: up to these places, and no further than polling is."""
        with self._mutex:
            self._check_open()  # under the mutex: what a handle that is being closed has not committed, it is not to say it has
            if self._polling is not None:
                polled = self._polling.places()
                self._commit_locked({p: min(place, polled[p]) for p, place in places.items() if p in polled})
            else:
                self._cursors()  # raises when the subscriber is gone

    @contextlib.contextmanager
    def _consuming(self) -> Iterator[None]:
        """This thread as the one consumer of this subscriber, among handles and processes."""
        me = object()
        try:
            with self._mutex:
                if self._consumer is not None or self._iterating not in (None, threading.get_ident()):
                    raise SubscriberBusy(
                        f"another thread polls subscriber {self.name!r} through this handle; one at a time can, pop is for "
                        f"many"
                    )
                self._consumer = me
            self._take_lock()
            yield
        finally:
            if self._consumer is me:
                self._consumer = None

    def _take_lock(self) -> None:
        with self._mutex:
            self._check_open()
            # A store that cannot be written takes no lock: polling it moves nothing.
            if self._lock is None and not self._store.read_only:
                self._lock = self._consumer_lock()

    def _consumer_lock(self) -> ConsumerLock:
        self._store.catalog.check_named()  # before a file is made in another store
        return ConsumerLock(lock_path(self._store.path, self.id), self.name)

    # --- moving ------------------------------------------------------------------------------------------------------

    def seek(self, start: Any) -> None:
        """Moves the cursor, durably, to a start in any form (see `jjq.start`); a mapping moves the partitions it names.

        Raises SubscriberBusy while another consumer polls, OffsetOutOfRange, and DataLoss for an offset that has expired.
        """
        with self._mutex:  # from the lock on, or a poll that begins beside it would meet that
            self._check_open()
            self._check_writable("seek", "peek and poll")
            held = self._lock or self._consumer_lock()
            try:
                places = resolve_places(self._topic, start, self.on_data_loss)
                if isinstance(start, Mapping):
                    places = {partition: place for partition, place in places.items() if partition in start}
                if not self._store.catalog.set_cursors(self.id, places, only_forward=False):
                    raise self._gone()
                ring(self._topic)
                self._pinned = None
                if self._popping is not None:
                    self._follow_cursor(self._popping)
                if self._polling is not None:
                    for partition, place in places.items():
                        self._polling.move(partition, place)
                        self._polled[partition] = place
            finally:
                if held is not self._lock:
                    held.close()

    def positions(self) -> dict[int, int]:
        """By partition the offset that the cursor is at: the next to be popped."""
        self._check_open()
        return {partition: offset for partition, (offset, _) in self._cursors().items()}

    def lag(self) -> list[PartitionLag]:
        """What lies between the cursor and the end, by partition."""
        self._check_open()
        cursors = self._cursors()
        return [lag_of(self._topic, partition, place) for partition, place in sorted(cursors.items())]

    def _pass_over(self, feed: Feed, loss: DataLoss, *, durable: bool) -> None:
        """Moves a feed past records that are gone, if it may; raises the loss otherwise.

        When the cursor itself has moved (the topic was emptied, or somebody else consumed or sought), it is followed: what is
        polled is ahead of it, and follows it forward only.
        """
        partition = loss.partition
        cursor, place = self._cursors()[partition], feed.place(partition)
        if (cursor[1], cursor[0]) > (place[1], place[0]) or (durable and cursor != place):
            feed.move(partition, cursor)
            return
        if self.on_data_loss != "skip":
            if not feed.hold(partition, loss):
                on = f"store.subscriber({self.name!r}).seek({{{partition}: {loss.earliest}}}) goes on from there"
                raise DataLoss(f"{loss.message}; {on}", **loss.details) from None
            return
        target = (loss.earliest, self._topic.reader.offsets(partition).lineage)
        if (
            durable
            and not self._store.read_only
            and not self._store.catalog.move_cursor(self.id, partition, place[0], *target)
        ):
            self._follow_cursor(feed)  # somebody else was faster; where that leads is looked at next
            return
        feed.move(partition, target)
        self.skipped += loss.lost
        _log.warning("subscriber %r goes on at offset %d: %s", self.name, loss.earliest, loss)

    # --- life --------------------------------------------------------------------------------------------------------

    def sleep(self) -> None:
        """Lets go of what was read ahead, and of segments that no other is near. Positions stay; the next call, or
        `wakeup`, reads again."""
        with self._mutex:
            for feed in (self._popping, self._polling):
                if feed is not None:
                    feed.sleep()

    def wakeup(self) -> None:
        """Reads ahead now, so that the next pop or poll does not have to."""
        with self._mutex:
            self._at_cursor()
            for feed in (self._popping, self._polling):
                with contextlib.suppress(DataLoss):  # for pop to say
                    if feed is not None:
                        feed.wake()

    def close(self) -> None:
        """Ends this handle; another consumer may poll. What was polled and not committed comes again. Quiet when repeated."""
        self._closed = True
        self._listener.close()  # before the mutex: whoever waits is to raise now
        with self._mutex:
            lock, self._lock = self._lock, None
            self._popping = self._polling = None
            if lock is not None:
                lock.close()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"this handle of subscriber {self.name!r} was closed; get another with store.subscriber")
        self._store.check_open()

    def _check_writable(self, what: str, instead: str) -> None:
        if self._store.read_only:
            raise StoreReadOnly(
                f"the store at {self._store.path} is read-only, so the cursor of {self.name!r} cannot be moved and "
                f"{what} does not work; {instead} do"
            )

    def _after_fork(self) -> None:
        """In a forked child: the parent goes on polling, so the child has no lock and no positions of its own yet."""
        self._renew_locks()
        lock, self._lock = self._lock, None
        self._iterating = self._pinned = self._popping = self._polling = None
        if lock is not None:
            lock.close()


def handles(store: Store) -> list[Subscriber]:
    """Every handle of this process on the store's subscribers that is in use."""
    return [each for each in living(_subscribers) if each._store is store]


def _after_fork_in_child() -> None:
    for subscriber in living(_subscribers):
        subscriber._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
