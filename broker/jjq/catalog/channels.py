"""Where channels stand, in the catalog.

Of a partition, every offset below a channel's *fetch* position was leased once. What of it is not done is in *leases*:
a range of offsets with a bitmap of those that are done. A lease with a consumer is in that one's hands until it is due;
one without waits, and is not delivered before it is due. Ranges may overlap; what is not done in them never does. So a
batch of any size is one row until its records meet different fates.

Each method is one transaction. Those that cannot find the channel raise ChannelNotFound, or TopicDeleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jjq.catalog.leases import (
    NEVER,
    Grant,
    Lease,
    Leasing,
    Mark,
    Offer,
    Place,
    add,
    aside_row,
    insert,
    lease_of,
    part_of,
    runs,
    wake,
    write,
)
from jjq.catalog.rows import Driver, Statements, deleted
from jjq.errors import ChannelNotFound, TopicDeleted

_COUNTS = ("delivered", "acked", "requeued", "timed_out", "returned", "dead", "lost")


@dataclass(frozen=True, slots=True)
class ChannelRow:
    id: int
    topic_id: str
    topic: str
    name: str
    ack_timeout_us: int
    max_attempts: int | None
    ordered: bool
    dead_letter: str
    paused: bool
    created_at: int


@dataclass(frozen=True, slots=True)
class State:
    """`ready`: a lease is due; `next_due`: when the next one will be, NEVER when there is none."""

    paused: bool
    ready: bool
    next_due: int
    places: dict[int, Place]


@dataclass(frozen=True, slots=True)
class Load:
    """Records in hand, waiting for their time, and waiting for a consumer, of those that were leased once."""

    in_flight: int
    deferred: int
    waiting: int


def find_channel(driver: Driver, topic_id: str, name: str) -> ChannelRow | None:
    row = driver.row("channel", topic_id=topic_id, name=name)
    return None if row is None else _channel(row)


def all_channels(driver: Driver) -> list[ChannelRow]:
    """By topic and name."""
    return [_channel(row) for row in driver.rows("channels")]


def channel_places(driver: Driver, channel_id: int) -> dict[int, Place]:
    """By partition the offset of the next record to be delivered first, with its lineage."""
    return {row[0]: (row[1], row[2]) for row in driver.rows("channel_places", channel_id=channel_id)}


def add_channel(driver: Driver, row: ChannelRow, places: Mapping[int, Place]) -> int | None:
    """The new channel's id; None when the name is taken. Partitions that were added since its places were looked up begin
    at offset 0."""
    with driver.write(durable=True) as tx:
        if not tx.row("topic_by_id", id=row.topic_id):
            raise deleted(row.topic_id, row.topic)
        added = tx.row(
            "add_channel", topic_id=row.topic_id, name=row.name, ack_timeout_us=row.ack_timeout_us,
            max_attempts=row.max_attempts, ordered=int(row.ordered), dead_letter=row.dead_letter,
            created_at=row.created_at,
        )  # fmt: skip
        if added is None:
            return None
        for partition, (offset, lineage) in places.items():
            tx.run(
                "add_channel_place", channel_id=added[0], partition=partition, fetch_offset=offset, lineage=lineage
            )  # fmt: skip
        tx.run("fill_channel_partitions", topic_id=row.topic_id)
        return int(added[0])


def pause_topic(driver: Driver, topic_id: str, name: str, paused: bool) -> None:
    with driver.write(durable=True) as tx:
        if not tx.run("pause_topic", topic_id=topic_id, paused=int(paused)):
            raise deleted(topic_id, name)


def topic_is_paused(driver: Driver, topic_id: str, name: str) -> bool:
    row = driver.row("topic_paused", topic_id=topic_id)
    if row is None:
        raise deleted(topic_id, name)
    return bool(row[0])


class ChannelState:
    """The state of one channel. Times in microseconds since the epoch."""

    def __init__(self, driver: Driver, row: ChannelRow) -> None:
        self._driver = driver
        self._id, self._topic_id = row.id, row.topic_id
        self._names = (row.name, row.topic)

    def gone(self, reads: Statements | Driver) -> ChannelNotFound | TopicDeleted:
        name, topic = self._names
        if reads.row("topic_by_id", id=self._topic_id) is None:
            return TopicDeleted(
                f"topic {topic!r} was deleted, and its channel {name!r} with it", topic_id=self._topic_id, topic=topic
            )
        return ChannelNotFound(f"channel {name!r} of topic {topic!r} was deleted")

    # --- the channel itself ------------------------------------------------------------------------------------------

    def row(self) -> ChannelRow:
        row = self._driver.row("channel_by_id", channel_id=self._id)
        if row is None:
            raise self.gone(self._driver)
        return _channel(row)

    def alter(self, ack_timeout_us: int, max_attempts: int | None, dead_letter: str) -> None:
        with self._driver.write(durable=True) as tx:
            if not tx.run(
                "alter_channel", channel_id=self._id, ack_timeout_us=ack_timeout_us, max_attempts=max_attempts,
                dead_letter=dead_letter,
            ):  # fmt: skip
                raise self.gone(tx)

    def pause(self, paused: bool) -> None:
        with self._driver.write(durable=True) as tx:
            if not tx.run("pause_channel", channel_id=self._id, paused=int(paused)):
                raise self.gone(tx)

    def drop(self) -> None:
        with self._driver.write(durable=True) as tx:
            for name in ("drop_channel_leases", "drop_channel_consumers", "drop_channel_partitions"):
                tx.run(name, channel_id=self._id)
            if not tx.run("drop_channel", channel_id=self._id):
                raise self.gone(tx)

    def empty(self, ends: Mapping[int, Place]) -> None:
        """Goes on at `ends`, or where it is if that is later, and forgets all that is out or set aside."""
        with self._driver.write(durable=True) as tx:
            places = self._places(tx)
            if not places:
                raise self.gone(tx)
            tx.run("drop_channel_leases", channel_id=self._id)
            for partition, (end, lineage) in ends.items():
                offset, old = places[partition]
                tx.run(
                    "place_channel", channel_id=self._id, partition=partition, lost=0, expected=offset,
                    expected_lineage=old, fetch_offset=end if lineage > old else max(end, offset),
                    lineage=max(lineage, old),
                )  # fmt: skip

    def counts(self, now: int) -> tuple[dict[int, int], dict[str, int], Load]:
        """Fetch positions by partition, counts by name, and what is out or set aside."""
        with self._driver.snapshot() as tx:
            rows = tx.rows("channel_counts", channel_id=self._id)
            if not rows:
                raise self.gone(tx)
            load = tx.row("channel_load", channel_id=self._id, now=now, never=NEVER)
        assert load is not None
        sums = {name: sum(row[2 + i] for row in rows) for i, name in enumerate(_COUNTS)}
        return {row[0]: row[1] for row in rows}, sums, Load(*load)

    def state(self, now: int) -> State:
        with self._driver.snapshot() as tx:
            facts = self._facts(tx, "", now)
            ready = tx.row("any_due", channel_id=self._id, now=now) is not None
            due = tx.row("next_due", channel_id=self._id, now=now)
            places = self._places(tx)
        return State(bool(facts[0]), ready, NEVER if due is None or due[0] is None else due[0], places)

    def places(self) -> dict[int, Place]:
        """Positions by partition."""
        found = self._places(self._driver)
        if not found:
            raise self.gone(self._driver)
        return found

    def _facts(self, tx: Statements, consumer: str, now: int) -> tuple[Any, ...]:
        """(paused, maximum of attempts, ordered, whether the consumer is known, records in its hands)"""
        facts = tx.row("channel_facts", channel_id=self._id, consumer_id=consumer, now=now)
        if facts is None:
            raise self.gone(tx)
        return facts

    def _places(self, tx: Statements | Driver) -> dict[int, Place]:
        return {row[0]: (row[1], row[2]) for row in tx.rows("channel_places", channel_id=self._id)}

    # --- consumers ---------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: str, host: str, pid: int, now: int) -> None:
        with self._driver.write(durable=False) as tx:
            self._facts(tx, consumer, now)
            tx.run("add_channel_consumer", id=consumer, channel_id=self._id, host=host, pid=pid, started_at=now)

    def consumers(self, now: int) -> list[tuple[str, str, int, int, int]]:
        """(id, host, pid, started at, records in hand)"""
        rows = self._driver.rows("channel_consumers", channel_id=self._id, now=now)
        return [(row[0], row[1], row[2], row[3], row[4]) for row in rows]

    def holders(self, but: str) -> list[str]:
        """Consumers with records in hand, all but one."""
        return [row[0] for row in self._driver.rows("holders", channel_id=self._id, consumer_id=but)]

    def release(self, consumer: str, now: int, reason: str) -> int:
        """What a consumer had in hand waits for another one, which may have it at once; returns how many records."""
        with self._driver.write(durable=False) as tx:
            held = tx.rows("held_by_consumer", channel_id=self._id, consumer_id=consumer)
            # Due since ever: were it now, a clock that is set back would hold them up.
            tx.run("free_leases", channel_id=self._id, consumer_id=consumer, now=0, reason=reason)
            tx.run("drop_channel_consumer", consumer_id=consumer)
            self._count(tx, {partition: {"returned": count} for partition, count in held})
        return sum(count for _, count in held)

    # --- delivering --------------------------------------------------------------------------------------------------

    def lease(self, consumer: str, want: int, most: int, now: int, deadline: int, offers: Sequence[Offer]) -> Grant:
        """Gives a consumer up to `want` records, but no more than `most` in hand: what is due first, then what is offered.

        An offer counts where the channel's position lies in it.
        """
        with self._driver.write(durable=False) as tx:
            paused, attempts, ordered, known, in_flight = self._facts(tx, consumer, now)
            grant = Grant(places=self._places(tx), unknown_consumer=not known)
            room = min(want, most - in_flight)
            if known and not paused and room > 0:
                work = Leasing(tx, self._id, consumer, room, now, deadline, attempts, bool(ordered), grant)
                work.take_due()
                for offer in offers:
                    if work.room:
                        work.take_offered(offer)
                self._count(tx, work.counts, work.fetched)
            return grant

    def place(self, partition: int, expected: Place, place: Place, lost: int) -> bool:
        """Moves a position on past `lost` records that are gone; False when it was not where it was expected."""
        with self._driver.write(durable=False) as tx:
            return self._place(tx, partition, expected, place, lost)

    def place_back(self, partition: int, expected: Place, place: Place) -> int | None:
        """Moves a position back to where a partition ends now, and forgets the records beyond, which are gone.

        Returns how many of them were not done; None, and nothing done, when the position was not where it was expected.
        """
        with self._driver.write(durable=False) as tx:
            lost = 0
            if not self._place(tx, partition, expected, place, 0):
                return None
            for row in tx.rows("leases_beyond", channel_id=self._id, partition=partition, cut=place[0]):
                lease = lease_of(row)
                before = lease.pending
                lease.end = max(lease.start, place[0])
                lease.done &= (1 << (lease.end - lease.start)) - 1
                lease.pending = lease.undone.bit_count()
                lost += before - lease.pending
                write(tx, lease)
            tx.run("wake_all_keys", channel_id=self._id, now=0, never=NEVER)
            self._count(tx, {partition: {"lost": lost}})
            return lost

    def _place(self, tx: Statements, partition: int, expected: Place, place: Place, lost: int) -> bool:
        if tx.run(
            "place_channel", channel_id=self._id, partition=partition, fetch_offset=place[0], lineage=place[1],
            expected=expected[0], expected_lineage=expected[1], lost=lost,
        ):  # fmt: skip
            return True
        self._facts(tx, "", 0)
        return False

    # --- settling ----------------------------------------------------------------------------------------------------

    def ack(self, marks: Sequence[Mark], now: int) -> list[Mark]:
        """Makes records done; returns those that could not be, as they are not this consumer's any more."""
        return self._finish_all(marks, now, "acked")

    def lose(self, marks: Sequence[Mark], now: int) -> None:
        """Makes records done that cannot be read any more."""
        self._finish_all(marks, now, "lost")

    def _finish_all(self, marks: Sequence[Mark], now: int, count: str) -> list[Mark]:
        late: list[Mark] = []
        counts: dict[int, dict[str, int]] = {}
        with self._driver.write(durable=False) as tx:
            for mark in marks:
                finished = self._finish(tx, mark, now)
                add(counts, mark.partition, count, finished.bit_count())
                if finished != mark.bits:
                    late.append(Mark(mark.lease, mark.attempts, mark.partition, mark.base, mark.bits & ~finished))
            self._count(tx, counts)
            if late:
                self._facts(tx, "", now)
        return late

    def _finish(self, tx: Statements, mark: Mark, now: int) -> int:
        """The bits of the mark that are done now and were not before."""
        length = mark.bits.bit_length()
        if mark.bits == (1 << length) - 1:
            # All of a batch that nothing else has happened to, which is most of them.
            rows = tx.rows(
                "finish_lease", id=mark.lease, channel_id=self._id, attempts=mark.attempts, start_offset=mark.base,
                end_offset=mark.base + length, pending=length,
            )  # fmt: skip
            if rows:
                wake(tx, self._id, rows[0][0], now)
                return mark.bits
        lease = self._find(tx, mark)
        if lease is None:
            return 0
        bits, moved = mark.within(lease), lease.start - mark.base
        lease.done |= bits
        lease.pending -= bits.bit_count()
        write(tx, lease)
        if not lease.pending:
            wake(tx, self._id, lease.key, now)
        return bits << moved if moved >= 0 else bits >> -moved

    def _find(self, tx: Statements, mark: Mark) -> Lease | None:
        row = tx.row("lease", channel_id=self._id, id=mark.lease)
        if row is None or row[6] != mark.attempts:
            return None
        return lease_of(row)

    def requeue(self, marks: Sequence[Mark], due: int, reason: str, now: int) -> tuple[list[Lease], list[Mark]]:
        """Records wait again, not before `due`; returns their leases, and what was no longer this consumer's."""
        moved, late = self._move_all(marks, due, reason, now, count="requeued")
        return [lease for _, lease in moved], late

    def touch(self, marks: Sequence[Mark], deadline: int, now: int) -> tuple[list[tuple[Mark, Lease]], list[Mark]]:
        """Records stay in hand until `deadline`; returns their leases now, and what was no longer this consumer's."""
        return self._move_all(marks, deadline, None, now)

    def _move_all(
        self, marks: Sequence[Mark], due: int, reason: str | None, now: int, count: str | None = None
    ) -> tuple[list[tuple[Mark, Lease]], list[Mark]]:
        moved: list[tuple[Mark, Lease]] = []
        late: list[Mark] = []
        counts: dict[int, dict[str, int]] = {}
        with self._driver.write(durable=False) as tx:
            for mark in marks:
                done = 0
                for part, lease in self._move(tx, mark, due, reason, keep=count is None):
                    moved.append((part, lease))
                    done |= part.bits
                if count is not None:
                    add(counts, mark.partition, count, done.bit_count())
                if done != mark.bits:
                    late.append(Mark(mark.lease, mark.attempts, mark.partition, mark.base, mark.bits & ~done))
            self._count(tx, counts)
            if late:
                self._facts(tx, "", now)
        return moved, late

    def _move(
        self, tx: Statements, mark: Mark, due: int, reason: str | None, keep: bool
    ) -> Iterator[tuple[Mark, Lease]]:
        """Gives records another due time, with or without their consumer, in a lease of their own where others stay."""
        lease = self._find(tx, mark)
        if lease is None or (keep and lease.consumer is None):
            return
        bits = mark.within(lease)
        shift = lease.start - mark.base
        consumer = lease.consumer if keep else None
        if bits and bits == lease.undone:
            lease.consumer, lease.due, lease.reason = consumer, due, reason
            write(tx, lease)
            yield part_of(mark, bits, shift), lease
            return
        for first, last in runs(bits):
            run = ((1 << (last - first)) - 1) << first
            own = Lease(
                0, lease.partition, lease.start + first, lease.start + last, 0, last - first, lease.attempts, consumer,
                due, lease.key, reason,
            )  # fmt: skip
            insert(tx, self._id, own)
            lease.done |= run
            lease.pending -= last - first
            yield part_of(mark, run, shift), own
        if bits:
            write(tx, lease)

    # --- the dead ----------------------------------------------------------------------------------------------------

    def bury(self, tx: Statements, leases: Sequence[Lease], now: int) -> bool:
        """Within another transaction: the leases are done, as dead. False when one of them met another fate."""
        counts: dict[int, dict[str, int]] = {}
        for lease in leases:
            if not tx.run(
                "bury_lease", id=lease.id, channel_id=self._id, attempts=lease.attempts, pending=lease.pending
            ):
                return False
            wake(tx, self._id, lease.key, now)
            add(counts, lease.partition, "dead", lease.pending)
        self._count(tx, counts)
        return True

    def postpone(self, leases: Sequence[Lease], due: int) -> None:
        with self._driver.write(durable=False) as tx:
            for lease in leases:
                tx.run("postpone_lease", id=lease.id, channel_id=self._id, attempts=lease.attempts, due_at=due)

    def dead_position(self) -> tuple[str | None, int]:
        """(id of the dead-letter topic, its first offset that was not revived)"""
        row = self._driver.row("channel_dead", channel_id=self._id)
        if row is None:
            raise self.gone(self._driver)
        return row[0], row[1]

    def revive(
        self, expected: tuple[str | None, int], position: tuple[str, int], records: Sequence[tuple[int, int, int | None]],
        now: int,
    ) -> bool:  # fmt: skip
        """Records, (partition, offset, hash of the key), wait for a first attempt again. False when another was faster."""
        with self._driver.write(durable=True) as tx:
            if tx.row("channel_dead", channel_id=self._id) != expected:
                self._facts(tx, "", now)
                return False
            tx.run("set_channel_dead", channel_id=self._id, dead_topic_id=position[0], dead_next=position[1])
            tx.run_many(
                "put_aside",
                [aside_row(self._id, p, offset, offset + 1, now, key, "revived") for p, offset, key in records],
            )
            return True

    def _count(
        self, tx: Statements, counts: Mapping[int, Mapping[str, int]], fetched: Mapping[int, int] | None = None
    ) -> None:
        fetched = fetched or {}
        for partition in {*counts, *fetched}:
            each = counts.get(partition, {})
            if partition in fetched or any(each.values()):
                tx.run(
                    "count_channel", channel_id=self._id, partition=partition, fetch_offset=fetched.get(partition),
                    **{name: each.get(name, 0) for name in _COUNTS},
                )  # fmt: skip


def _channel(row: tuple[Any, ...]) -> ChannelRow:
    id_, topic_id, topic, name, ack_timeout_us, max_attempts, ordered, dead_letter, paused, created_at = row
    return ChannelRow(
        id_, topic_id, topic, name, ack_timeout_us, max_attempts, bool(ordered), dead_letter, bool(paused), created_at
    )
