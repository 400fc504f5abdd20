"""Leases of a channel: ranges of offsets that are out or set aside, and how records are given to a consumer.

Everything here happens inside a transaction that the caller has begun; see `jjq.catalog.channels`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jjq.catalog.rows import Statements

NEVER = 1 << 62  # when a record is due that waits for another one of its key
MOST_AT_ONCE = 4096  # offsets that one transaction looks at; also what bounds a bitmap
MOST_PARKED = 100_000  # records that may wait for another one of their key before a channel looks no further

Place = tuple[int, int]  # (next offset, lineage)


@dataclass(slots=True)
class Lease:
    """Offsets `[start, end)` but for those whose bit in `done` is set. `attempts` deliveries so far, this one included."""

    id: int
    partition: int
    start: int
    end: int
    done: int
    pending: int
    attempts: int
    consumer: str | None
    due: int
    key: int | None = None
    reason: str | None = None

    def offsets(self) -> list[int]:
        """Those that are not done."""
        if not self.done:
            return list(range(self.start, self.end))
        return [self.start + n for n in range(self.end - self.start) if not self.done >> n & 1]

    @property
    def undone(self) -> int:
        """The bitmap's complement."""
        return ~self.done & ((1 << (self.end - self.start)) - 1)


@dataclass(slots=True)
class Mark:
    """Some records of a lease as it was delivered: bit n of `bits` is the record at `base + n`."""

    lease: int
    attempts: int
    partition: int
    base: int
    bits: int

    def offsets(self) -> list[int]:
        return [self.base + n for n in range(self.bits.bit_length()) if self.bits >> n & 1]

    def within(self, lease: Lease) -> int:
        """The bits that are still to be done, as bits of the lease, which may begin later than it did."""
        moved = lease.start - self.base
        return (self.bits >> moved if moved >= 0 else self.bits << -moved) & lease.undone


@dataclass(frozen=True, slots=True)
class Offer:
    """What a consumer has read of a partition: `[start, end)`, which of it is deferred until when, and keys' hashes."""

    partition: int
    start: int
    end: int
    lineage: int
    deferred: Mapping[int, int]
    key: Callable[[int], int | None]


@dataclass(slots=True)
class Grant:
    """What a consumer got. `again`: something changed, so that asking again may give more.

    `fresh` leases lie in what was offered; `redelivered` ones anywhere. `dead` had their last attempt.
    """

    fresh: list[Lease] = field(default_factory=list)
    redelivered: list[Lease] = field(default_factory=list)
    dead: list[Lease] = field(default_factory=list)
    places: dict[int, Place] = field(default_factory=dict)
    unknown_consumer: bool = False
    again: bool = False


class Leasing:
    """One consumer's turn, inside a transaction."""

    def __init__(self, tx: Statements, channel_id: int, consumer: str, room: int, now: int, deadline: int,
                 max_attempts: int | None, ordered: bool, grant: Grant) -> None:  # fmt: skip
        self._tx = tx
        self._channel_id, self._consumer = channel_id, consumer
        self.room = room
        self._now, self._deadline = now, deadline
        self._max_attempts, self._ordered = max_attempts, ordered
        self._grant = grant
        self._keys: set[int] = set()  # that were given away in this turn
        self.counts: dict[int, dict[str, int]] = {}
        self.fetched: dict[int, int] = {}  # positions that moved

    # --- what is due -------------------------------------------------------------------------------------------------

    def take_due(self) -> None:
        taken: set[int] = set()
        for row in self._tx.rows("leases_due", channel_id=self._channel_id, now=self._now, most=self.room):
            lease = lease_of(row)
            if lease.id in taken:
                continue
            if lease.consumer is not None:
                add(self.counts, lease.partition, "timed_out", lease.pending)
                lease.consumer, lease.due, lease.reason = None, self._now, "timed out"
                write(self._tx, lease)
            if self._max_attempts is not None and lease.attempts >= self._max_attempts:
                self._grant.dead.append(lease)
            elif not self.room:
                break
            elif lease.key is None:
                self._take(lease)
            else:
                following = self._next_of_key(lease)
                if following is None or following.id != lease.id:
                    lease.due = NEVER
                    write(self._tx, lease)
                    self._grant.again = True
                if following is not None:
                    taken.add(following.id)
                    self._take(following)

    def _next_of_key(self, lease: Lease) -> Lease | None:
        """The record of a key whose turn it is, None while one is out. One that was delivered before holds its key; else
        it is the first that waits, however long each has been due."""
        assert lease.key is not None
        if lease.key in self._keys:
            return None
        if lease.attempts > 0:
            return lease
        if self._tx.row("key_is_held", channel_id=self._channel_id, key_hash=lease.key, id=lease.id):
            return None
        row = self._tx.row(
            "first_of_key", channel_id=self._channel_id, key_hash=lease.key, now=self._now, never=NEVER
        )  # fmt: skip
        return lease if row is None else lease_of(row)

    def _take(self, lease: Lease) -> None:
        if lease.pending > self.room:
            lease = self._split(lease)
        lease.attempts += 1
        lease.consumer, lease.due, lease.reason = self._consumer, self._deadline, None
        if lease.id:
            write(self._tx, lease)
        else:
            insert(self._tx, self._channel_id, lease)
        if lease.key is not None:
            self._keys.add(lease.key)
        self._given(lease)
        self._grant.redelivered.append(lease)

    def _split(self, lease: Lease) -> Lease:
        """The first records that there is room for, as a lease of their own; the rest stays in the old one."""
        cut = lease.offsets()[self.room - 1] + 1 - lease.start
        head = Lease(
            0, lease.partition, lease.start, lease.start + cut, lease.done & ((1 << cut) - 1), self.room, lease.attempts,
            None, lease.due,
        )  # fmt: skip
        lease.start, lease.done, lease.pending = lease.start + cut, lease.done >> cut, lease.pending - self.room
        write(self._tx, lease)
        return head

    def _given(self, lease: Lease) -> None:
        self.room -= lease.pending
        add(self.counts, lease.partition, "delivered", lease.pending)

    # --- what comes next ---------------------------------------------------------------------------------------------

    def take_offered(self, offer: Offer) -> None:
        fetch, lineage = self._grant.places[offer.partition]
        if lineage != offer.lineage or not offer.start <= fetch < offer.end:
            self._grant.again = True
            return
        limit = min(offer.end, fetch + MOST_AT_ONCE)
        if not self._ordered and not offer.deferred:
            end = min(limit, fetch + self.room)
            self._give_range(offer.partition, fetch, end, 0, end - fetch)
        else:
            end = self._walk(offer, fetch, limit)
        if end > fetch:
            self._grant.again = True
            self._grant.places[offer.partition] = (end, lineage)
            self.fetched[offer.partition] = end

    def _give_range(self, partition: int, start: int, end: int, done: int, pending: int) -> None:
        lease = Lease(0, partition, start, end, done, pending, 1, self._consumer, self._deadline)
        insert(self._tx, self._channel_id, lease)
        self._given(lease)
        self._grant.fresh.append(lease)

    def _walk(self, offer: Offer, fetch: int, limit: int) -> int:
        """Record by record: some are set aside, for their time or for their key; returns where it came to."""
        aside: list[tuple[int, int, int, int | None]] = []  # (start, end, due, key)
        singles: list[tuple[int, int]] = []
        busy: set[int] = set()
        may_park: int | None = None
        done = pending = 0
        at = fetch
        while at < limit and pending + len(singles) < self.room:
            due = offer.deferred.get(at, 0)
            key = offer.key(at) if self._ordered else None
            if due > self._now:
                if aside and aside[-1][1:] == (at, due, None) and key is None:
                    aside[-1] = (aside[-1][0], at + 1, due, None)
                else:
                    aside.append((at, at + 1, due, key))
            elif key is None:
                pending += 1
                at += 1
                continue
            elif key in busy or self._is_busy(key):
                may_park = self._may_park() if may_park is None else may_park
                if not may_park:
                    break
                may_park -= 1
                busy.add(key)
                aside.append((at, at + 1, NEVER, key))
            else:
                busy.add(key)
                singles.append((at, key))
            done |= 1 << (at - fetch)
            at += 1
        for offset, key in singles:
            lease = Lease(0, offer.partition, offset, offset + 1, 0, 1, 1, self._consumer, self._deadline, key)
            insert(self._tx, self._channel_id, lease)
            self._keys.add(key)
            self._given(lease)
            self._grant.fresh.append(lease)
        if pending:
            self._give_range(offer.partition, fetch, at, done, pending)
        if aside:
            self._tx.run_many(
                "put_aside",
                [
                    aside_row(
                        self._channel_id, offer.partition, start, end, due, key, "deferred" if due < NEVER else None
                    )
                    for start, end, due, key in aside
                ],
            )
        return at

    def _may_park(self) -> int:
        row = self._tx.row("count_parked", channel_id=self._channel_id, never=NEVER, most=MOST_PARKED)
        return MOST_PARKED - (row[0] if row else 0)

    def _is_busy(self, key: int) -> bool:
        if key in self._keys:
            return True
        row = self._tx.row("key_is_busy", channel_id=self._channel_id, key_hash=key, now=self._now, never=NEVER)
        return row is not None


def wake(tx: Statements, channel_id: int, key: int | None, now: int) -> None:
    """Lets the next record of a key go whose turn it is."""
    if key is not None:
        tx.run("wake_key", channel_id=channel_id, key_hash=key, now=now, never=NEVER)


def add(counts: dict[int, dict[str, int]], partition: int, name: str, count: int) -> None:
    each = counts.setdefault(partition, {})
    each[name] = each.get(name, 0) + count


def runs(bits: int) -> Iterator[tuple[int, int]]:
    """(first, end) of each run of set bits."""
    at = 0
    while bits >> at:
        at += ((bits >> at) & -(bits >> at)).bit_length() - 1
        end = at
        while bits >> end & 1:
            end += 1
        yield at, end
        at = end


def part_of(mark: Mark, bits: int, shift: int) -> Mark:
    """The part of a mark that `bits` of its lease are."""
    own = bits << shift if shift >= 0 else bits >> -shift
    return Mark(mark.lease, mark.attempts, mark.partition, mark.base, own)


def lease_of(row: tuple[Any, ...]) -> Lease:
    id_, partition, start, end, done, pending, attempts, consumer, due, key, reason = row
    bits = int.from_bytes(done or b"", "little")
    return Lease(id_, partition, start, end, bits, pending, attempts, consumer, due, key, reason)


def _done(lease: Lease) -> bytes | None:
    return lease.done.to_bytes((lease.done.bit_length() + 7) // 8, "little") if lease.done else None


def insert(tx: Statements, channel_id: int, lease: Lease) -> None:
    row = tx.row(
        "add_lease", channel_id=channel_id, partition=lease.partition, start_offset=lease.start, end_offset=lease.end,
        done=_done(lease), pending=lease.pending, attempts=lease.attempts, consumer_id=lease.consumer, due_at=lease.due,
        key_hash=lease.key, reason=lease.reason,
    )  # fmt: skip
    assert row is not None
    lease.id = row[0]


def write(tx: Statements, lease: Lease) -> None:
    """Brings the row up to date: without anything to do it goes, and it begins at the first that is to be done."""
    if not lease.pending:
        tx.run("drop_lease", id=lease.id)
        return
    ahead = (lease.undone & -lease.undone).bit_length() - 1
    lease.start, lease.done = lease.start + ahead, lease.done >> ahead
    tx.run(
        "set_lease", id=lease.id, start_offset=lease.start, end_offset=lease.end, done=_done(lease),
        pending=lease.pending, attempts=lease.attempts, consumer_id=lease.consumer, due_at=lease.due,
        reason=lease.reason,
    )  # fmt: skip


def aside_row(channel_id: int, partition: int, start: int, end: int, due: int, key: int | None, reason: str | None,
           ) -> dict[str, Any]:  # fmt: skip
    return {
        "channel_id": channel_id, "partition": partition, "start_offset": start, "end_offset": end, "pending": end - start,
        "due_at": due, "key_hash": key, "reason": reason,
    }  # fmt: skip
