"""Channels: consumers that share the records of a topic, each record acknowledged by itself.

Until it is acknowledged a record is delivered again: when its consumer does not answer in time, gives it back, closes or
dies. What is out is kept in the catalog as leases of ranges, see `jjq.catalog.channels`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from jjq import deadletter, presence
from jjq.catalog.channels import ChannelRow, ChannelState
from jjq.catalog.leases import NEVER, Lease, Mark
from jjq.clock import host, now_us
from jjq.deferral import delay_us
from jjq.errors import DeliveryExpired, InvalidArgument, StoreClosed, StoreReadOnly
from jjq.feed import watched
from jjq.model import ChannelCounts, ConsumerInfo, Record
from jjq.receiving import ENDS, FAILURES, Receiving
from jjq.values import each_of, living, shown, timeout_s, whole
from jjq.wake import until_found, wait_for

if TYPE_CHECKING:
    from jjq.store import Store
    from jjq.topic import Topic

MAX_IN_FLIGHT = 1000
_REAP_S = 1.0  # how often a consumer that is never idle looks for those that died
_log = logging.getLogger("jjq.channel")
_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def too_late(channel: str, asked: int, expired: int, places: Iterable[tuple[int, int]]) -> DeliveryExpired:
    """Of so many deliveries that a call was asked to settle so many had expired."""
    which = f"{expired} of {asked} deliveries" if asked > 1 else "the delivery"
    them, were = ("they", "were") if expired > 1 else ("it", "was")
    return DeliveryExpired(
        f"{which} of channel {channel!r} had expired: {them} timed out and {were} delivered again, to this consumer or another, "
        f"or given up; or the channel was emptied",
        expired=sorted(places),
    )


class Delivery:
    """A record in a consumer's hands: to be acknowledged, requeued, or touched for more time.

    `attempts` counts this delivery too. Settling it twice in the same way is quiet. Raises DeliveryExpired when it is no
    longer this consumer's, ChannelNotFound or TopicDeleted when what it came from is gone.
    """

    __slots__ = ("_channel", "_lease", "_settled", "attempts", "record")

    def __init__(self, channel: Channel, record: Record, lease: Lease) -> None:
        self._channel, self._lease = channel, lease
        self._settled: str | None = None
        self.record = record
        self.attempts = lease.attempts

    def __repr__(self) -> str:
        record, state = self.record, self._settled or "in hand"
        return f"<Delivery of {record.topic!r} {record.partition}:{record.offset}, attempt {self.attempts}, {state}>"

    @property
    def _place(self) -> tuple[int, int, int]:
        """Of two deliveries of a record, or of two records that were given one offset after a failed sync, each has its own."""
        return self._lease.id, self.attempts, self.record.offset

    def ack(self) -> None:
        """The record is done: it is not delivered again."""
        self._channel.ack_many((self,))

    def requeue(self, delay: float | timedelta = 0.0, reason: str | None = None) -> None:
        """Gives the record back, to be delivered again not before `delay` (seconds). `reason` shows in its dead letter."""
        self._channel.requeue_many((self,), delay, reason)

    def touch(self) -> None:
        """Begins the record's time anew: another ack timeout from now."""
        self._channel.touch_many((self,))


class Channel:
    """A handle of one channel, and one consumer of it; safe among threads, usable in forked children. Close it, or use
    it in a `with` block: what it had in hand goes to others at once.

    It has at most `max_in_flight` records in hand. `receive` waits up to `timeout` seconds: 0 looks once, None waits for
    ever; it raises at once when the channel or the topic is deleted (ChannelNotFound, TopicDeleted) or the store or this
    handle is closed (StoreClosed).
    """

    def __init__(
        self, store: Store, topic: Topic, row: ChannelRow, max_in_flight: int = MAX_IN_FLIGHT,
        clock: Callable[[], int] = now_us,
    ) -> None:  # fmt: skip
        self._store, self._topic, self._row = store, topic, row
        self._max_in_flight = whole(max_in_flight, "max_in_flight", 1)
        self._clock = clock
        self._state = ChannelState(store.catalog.driver, row)
        self._closed: bool = False
        self._consumer: presence.Presence | None = None
        self._where: tuple[str, int] | None = None  # host and pid of another process, for which this one consumes
        self._begin()
        _channels.add(self)

    def _begin(self) -> None:
        """What a handle begins with, and a forked child again."""
        self._mutex = threading.RLock()
        self._receiving = Receiving(self._topic, self._row, self._state)
        self._listener = self._store.listener(self._watched)
        if self._closed:
            self._listener.close()
        self._ahead: deque[Delivery] = deque()  # received for an iteration that was cancelled before it had them
        self._idle = False  # nothing was found last time
        self._next_due = NEVER
        self._reap_at = 0.0

    @property
    def id(self) -> int:
        return self._row.id

    @property
    def name(self) -> str:
        return self._row.name

    @property
    def topic(self) -> Topic:
        return self._topic

    @property
    def max_in_flight(self) -> int:
        return self._max_in_flight

    @property
    def ack_timeout(self) -> float:
        """Seconds in which a delivery is to be settled."""
        return self._row.ack_timeout_us / 1_000_000

    @property
    def max_attempts(self) -> int | None:
        return self._row.max_attempts

    @property
    def ordered(self) -> bool:
        """Whether records with the same key are delivered one after the other's end."""
        return self._row.ordered

    @property
    def dead_letter(self) -> str:
        """The name of the topic that gets what was given up; it is made when there is something."""
        return self._row.dead_letter

    @property
    def created_at(self) -> int:
        """Microseconds since the epoch."""
        return self._row.created_at

    def __repr__(self) -> str:
        state = "closed" if self._closed else "consuming" if self._consumer is not None else "open"
        return f"<Channel {self.name!r} of topic {self._topic.name!r} {state}>"

    # --- receiving ---------------------------------------------------------------------------------------------------

    def receive(self, max_records: int = 1, timeout: float | None = 0.0) -> list[Delivery]:
        """Up to `max_records` records for this consumer, as soon as there is one; an empty list when there is none in time.

        First those that are to be delivered again, then new ones, in the order of their offsets within a partition.
        """
        most, seconds = whole(max_records, "max_records", 1), timeout_s(timeout)
        self._check_receiving()
        return wait_for(lambda: self._look(most), seconds, self._listener, self._until_due) or []

    def __iter__(self) -> Iterator[Delivery]:
        """Each record as it comes, for ever, one in hand at a time; settle it in the loop's body. `receive` with a number is
        faster."""
        while True:
            yield from self.receive(timeout=None)

    def __aiter__(self) -> AsyncIterator[Delivery]:
        """As iteration, in a coroutine."""
        return self._deliveries_async()

    async def _deliveries_async(self) -> AsyncIterator[Delivery]:
        self._check_receiving()
        while True:
            while (delivery := self._take_ahead()) is None:
                await until_found(self._look_ahead, self._listener, self._until_due)
            yield delivery

    def _take_ahead(self) -> Delivery | None:
        with self._mutex:
            self._check_open()
            return self._ahead.popleft() if self._ahead else None

    def _check_receiving(self) -> None:
        self._check_open()
        if self._store.read_only:
            raise StoreReadOnly(
                f"the store at {self._store.path} is read-only, so nothing can be received; a subscriber can poll"
            )

    def _look_ahead(self) -> bool:
        with self._mutex:
            self._check_open()
            if not self._ahead:
                self._ahead.extend(self._look(1))
            return bool(self._ahead)

    def _until_due(self) -> float:
        """Seconds until something is due by the clock, of which nobody will tell, or until it is time to look for the dead."""
        return min(_REAP_S, max(0.001, (self._next_due - self._clock()) / 1_000_000))

    def _look(self, most: int) -> list[Delivery]:
        with self._mutex:
            self._check_open()
            if self._ahead:
                return [self._ahead.popleft() for _ in range(min(most, len(self._ahead)))]
            while True:
                self._check_open()
                consumer = self._consumer or self._join()
                now = self._clock()
                offers, error = self._receiving.offers(most)
                if self._idle or not offers:
                    # Reading is cheaper than leasing, and most looks of who waits find nothing.
                    state = self._state.state(now)
                    more = self._receiving.learn(state.places)
                    if state.paused:
                        return self._nothing(NEVER)
                    if more:
                        continue
                    if not offers and not state.ready:
                        if error is not None:
                            raise error
                        if self._reap(now):
                            continue
                        return self._nothing(state.next_due)
                grant = self._state.lease(
                    consumer.id, most, self._max_in_flight, now, now + self._row.ack_timeout_us, offers
                )
                self._receiving.learn(grant.places)
                if grant.unknown_consumer:  # others took it for dead
                    self._leave()
                    continue
                if grant.dead:
                    self._bury(grant.dead, now)
                found = [Delivery(self, record, lease) for record, lease in self._receiving.records(grant, now)]
                if found:
                    self._idle = False
                    if time.monotonic() >= self._reap_at:
                        self._reap(now)
                    return found
                if not grant.again and not grant.dead and not grant.redelivered:
                    return self._nothing(self._state.state(now).next_due)

    def _nothing(self, next_due: int) -> list[Delivery]:
        self._idle, self._next_due = True, next_due
        return []

    def _bury(self, leases: Sequence[Lease], now: int) -> None:
        try:
            deadletter.bury(self._store, self._topic, self._row, self._state, leases, now)
        except ENDS:
            pass  # the next call meets it
        except FAILURES:
            _log.exception("channel %r of topic %r cannot write its dead letters", self.name, self._topic.name)
            self._state.postpone(leases, now + self._row.ack_timeout_us)

    # --- settling ----------------------------------------------------------------------------------------------------

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """All of these records are done, in one transaction; DeliveryExpired names those that were no longer this one's."""
        chosen = self._unsettled(deliveries, "acknowledged")
        if chosen:
            late = self._state.ack(_marks(chosen), self._clock())
            self._settle(chosen, "acknowledged", late, ring=self._row.ordered)

    def requeue_many(
        self, deliveries: Iterable[Delivery], delay: float | timedelta = 0.0, reason: str | None = None
    ) -> None:
        """Gives records back, to be delivered again not before `delay` (seconds); after their last attempt they are dead."""
        wait = delay_us(delay)
        said: object = reason
        if said is not None and not isinstance(said, str):
            raise InvalidArgument(f"a reason is a str, not {shown(reason)}")
        chosen = self._unsettled(deliveries, "requeued")
        if chosen:
            now = self._clock()
            leases, late = self._state.requeue(_marks(chosen), now + wait, reason or "requeued", now)
            dead = [each for each in leases if self.max_attempts is not None and each.attempts >= self.max_attempts]
            if dead:
                self._bury(dead, now)
            self._settle(chosen, "requeued", late, ring=True)

    def touch_many(self, deliveries: Iterable[Delivery]) -> None:
        """Begins the time of these records anew: another ack timeout from now."""
        chosen = self._unsettled(deliveries, "touched")
        if chosen:
            now = self._clock()
            moved, late = self._state.touch(_marks(chosen), now + self._row.ack_timeout_us, now)
            leases = {place: lease for mark, lease in moved for place in _places(mark)}
            for each in chosen:
                each._lease = leases.get(each._place, each._lease)
            self._settle(chosen, None, late, ring=False)

    def _unsettled(self, deliveries: Iterable[Delivery], how: str) -> list[Delivery]:
        self._check_open()
        chosen: list[Delivery] = []
        for each in each_of(deliveries, Delivery, "give a list of deliveries, as receive returned them"):
            if each._channel is not self and (
                each._channel.id != self.id or each._channel._store.path != self._store.path
            ):
                raise InvalidArgument(f"{each!r} is not of channel {self.name!r} of topic {self._topic.name!r}")
            if each._settled is None:
                chosen.append(each)
            elif each._settled != how:
                raise InvalidArgument(f"{each!r} cannot be {how}")
        return chosen

    def _settle(self, deliveries: Sequence[Delivery], how: str | None, late: Sequence[Mark], *, ring: bool) -> None:
        expired = {place: mark.partition for mark in late for place in _places(mark)}
        for each in deliveries:
            each._settled = "expired" if expired and each._place in expired else how
        if self._idle:
            self._listener.wake()  # a thread of this process may be waiting for room
        if ring:
            presence.ring(self._store.path, self.id)
        if expired:
            places = {(partition, offset) for (_, _, offset), partition in expired.items()}
            raise too_late(self.name, len(deliveries), len(expired), places)

    # --- the channel itself ------------------------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        return self._state.row().paused

    def pause(self) -> None:
        """Nothing is delivered until `unpause`, whatever restarts; what is in hand can be settled."""
        self._check_writable()
        self._state.pause(True)

    def unpause(self) -> None:
        self._check_writable()
        self._state.pause(False)
        presence.ring(self._store.path, self.id)

    def empty(self) -> None:
        """Skips everything pushed up to now. What is in hand or deferred is forgotten: settling it raises DeliveryExpired."""
        self._check_writable()
        self._state.empty({each.partition: (each.end, each.lineage) for each in self._topic.offsets()})
        presence.ring(self._store.path, self.id)

    def revive(self) -> int:
        """Gives the dead letters that were not revived yet back to this channel, for new attempts; returns how many."""
        self._check_writable()
        count = deadletter.revive(self._store, self._topic, self._row, self._state, self._clock())
        presence.ring(self._store.path, self.id)
        return count

    def counts(self) -> ChannelCounts:
        self._check_open()
        positions, sums, load = self._state.counts(self._clock())
        ahead = sum(
            max(0, each.end - max(each.start, positions.get(each.partition, 0))) for each in self._topic.offsets()
        )
        return ChannelCounts(load.waiting + ahead, load.in_flight, load.deferred, **sums)

    def consumers(self) -> list[ConsumerInfo]:
        """Who consumes this channel now."""
        self._check_open()
        found = [ConsumerInfo(*each) for each in self._state.consumers(self._clock())]
        return [each for each in found if presence.is_alive(self._store.path, self.id, each.id)]

    # --- life --------------------------------------------------------------------------------------------------------

    def _watched(self) -> list[Path] | None:
        paths = watched(self._topic)
        return None if paths is None else [*paths, presence.bell(self._store.path, self.id)]

    def _join(self) -> presence.Presence:
        """Becomes a consumer: a row that names it, and a lock that lasts as long as this process."""
        now = self._clock()
        self._receiving.learn(self._state.state(now).places)
        self._store.catalog.check_named()  # before a file is made in another store
        consumer = presence.Presence(self._store.path, self.id)
        try:
            self._state.add_consumer(consumer.id, *(self._where or (host(), os.getpid())), now)
        except BaseException:
            consumer.close(remove=True)
            raise
        self._consumer = consumer
        self._release_dead([each[0] for each in self._state.consumers(now) if each[0] != consumer.id], now)
        presence.sweep(self._store.path, self.id)
        return consumer

    def _leave(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close(remove=True)

    def _reap(self, now: int) -> bool:
        """Takes from consumers that died what they had in hand; True if one had something."""
        self._reap_at = time.monotonic() + _REAP_S
        assert self._consumer is not None
        return self._release_dead(self._state.holders(self._consumer.id), now) > 0

    def _release_dead(self, consumers: Iterable[str], now: int) -> int:
        path, released = self._store.path, 0
        for each in consumers:
            if not presence.is_alive(path, self.id, each):
                released += self._state.release(each, now, "its consumer died")
                presence.forget(path, self.id, each)
        if released:
            presence.ring(path, self.id)
        return released

    def close(self) -> None:
        """Ends this consumer: what it had in hand goes to others at once. Quiet when repeated."""
        self._closed = True
        self._listener.close()  # before the mutex: whoever waits is to raise now
        with self._mutex:
            consumer = self._consumer
            self._receiving.forget()
            self._ahead.clear()
            if consumer is not None:
                try:
                    self._state.release(consumer.id, self._clock(), "its consumer closed")
                finally:
                    self._leave()
                presence.ring(self._store.path, self.id)

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"this handle of channel {self.name!r} was closed; get another with store.channel")
        self._store.check_open()

    def _check_writable(self) -> None:
        self._check_open()
        self._store.check_open(write=True)

    def _after_fork(self) -> None:
        """In a forked child: the consumer stays the parent's, and the child becomes another one when it receives."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close(remove=False)
        self._begin()


def _places(mark: Mark) -> Iterator[tuple[int, int, int]]:
    """As deliveries name them."""
    return ((mark.lease, mark.attempts, offset) for offset in mark.offsets())


def _marks(deliveries: Iterable[Delivery]) -> list[Mark]:
    marks: dict[tuple[int, int], Mark] = {}  # by attempt, too: of a record that timed out there may be an earlier one
    for each in deliveries:
        lease = each._lease
        mark = marks.get((lease.id, each.attempts))
        if mark is None:
            mark = marks[lease.id, each.attempts] = Mark(lease.id, each.attempts, lease.partition, lease.start, 0)
        mark.bits |= 1 << (each.record.offset - lease.start)
    return list(marks.values())


def handles(store: Store) -> Iterator[Channel]:
    """Every handle of this process on the store's channels."""
    return (each for each in living(_channels) if each._store is store)


def _after_fork_in_child() -> None:
    for channel in living(_channels):
        channel._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
