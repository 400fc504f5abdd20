"""The log's side of a channel: what lies ahead of its positions, and the records that a consumer was given."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import pyarrow as pa

from jjq.catalog.channels import ChannelRow, ChannelState
from jjq.catalog.leases import Grant, Lease, Mark, Offer, Place
from jjq.errors import ChannelNotFound, JjqError, StoreClosed, TopicDeleted
from jjq.lookahead import Lookahead, rows_at
from jjq.model import Record
from jjq.records import to_records
from jjq.topic import Topic
from jjq.values import counted

ENDS = (TopicDeleted, ChannelNotFound, StoreClosed)  # there is nothing more to be had
FAILURES = (JjqError, OSError, pa.ArrowException)  # of one partition, or one record: others may be well
_log = logging.getLogger("jjq.channel")


class Receiving:
    """Reads for one consumer. For one caller at a time.

    Records that are gone (retention took them, or a power cut) are passed over, counted and logged: a channel goes on.
    """

    def __init__(self, topic: Topic, channel: ChannelRow, state: ChannelState) -> None:
        self._topic, self._channel, self._state = topic, channel, state
        self._lookaheads: list[Lookahead] = []
        self._places: dict[int, Place] = {}  # as the catalog had them last
        self._turn = 0  # the partition that is looked at first; it moves on, so that none is starved

    def learn(self, places: Mapping[int, Place]) -> bool:
        """Where the channel is, by partition; True if there are some that were not there."""
        self._places.update(places)
        known = len(self._lookaheads)
        if len(self._places) == known:
            return False
        self._lookaheads += [Lookahead(self._topic, partition) for partition in sorted(self._places)[known:]]
        self._topic.catch_up()
        return True

    def forget(self) -> None:
        """Lets go of what was read ahead."""
        for ahead in self._lookaheads:
            ahead.forget()

    # --- what lies ahead ---------------------------------------------------------------------------------------------

    def offers(self, want: int) -> tuple[list[Offer], Exception | None]:
        """What comes next in as many partitions as are needed for `want` records; and what was wrong with another one."""
        found: list[Offer] = []
        error: Exception | None = None
        rows = 0
        count = len(self._lookaheads)
        step = 0
        while step < len(self._lookaheads):  # to read on may tell of partitions that are new; they come last
            ahead = self._lookaheads[(self._turn + step) % count if step < count else step]
            step += 1
            try:
                if ahead.rows_from(self._places[ahead.partition]) < want - rows and not self._read_on(ahead):
                    continue
            except ENDS:
                raise
            except FAILURES as failure:
                error = error or failure
                continue
            found.append(ahead.offer())
            rows += ahead.rows_from(self._places[ahead.partition])
            if rows >= want:
                break
        self._turn = (self._turn + 1) % count
        return found, error

    def _read_on(self, ahead: Lookahead) -> bool:
        """Reads from the channel's position in a partition; False when there is nothing yet."""
        partition, reader = ahead.partition, self._topic.reader
        while True:
            place = self._places[partition]
            offset, lineage = place
            bounds = reader.offsets(partition)
            if bounds.lineage > lineage:
                overtaken = reader.check_lineage(partition, offset, lineage)
                if overtaken is None:
                    self._move(partition, place, (offset, bounds.lineage), 0)
                else:
                    self._move_back(partition, place, (overtaken, bounds.lineage))
            elif offset > bounds.end:
                self._move_back(partition, place, (bounds.end, lineage))
            elif offset < bounds.start:
                self._move(partition, place, (bounds.start, lineage), bounds.start - offset)
            elif offset == bounds.end:
                return False
            elif ahead.rows_from(place) >= bounds.end - offset:
                return True
            else:
                first = ahead.fill(place, bounds.end)
                if first == offset:
                    return True
                self._move(partition, place, (first, lineage), first - offset)

    def _move(self, partition: int, place: Place, to: Place, lost: int) -> None:
        if self._state.place(partition, place, to, lost) and lost:
            self._warn(partition, lost)
        self.learn(self._state.places())

    def _move_back(self, partition: int, place: Place, to: Place) -> None:
        lost = self._state.place_back(partition, place, to)
        if lost is not None:
            _log.warning(
                "channel %r of topic %r goes back to offset %d of partition %d, where that ended after a power cut or a "
                "failed sync; %s not acknowledged",
                self._channel.name, self._topic.name, to[0], partition,
                counted(lost, "record beyond it was", "records beyond it were"),
            )  # fmt: skip
        self.learn(self._state.places())

    def _warn(self, partition: int, lost: int) -> None:
        _log.warning(
            "channel %r of topic %r: %s of partition %d %s not acknowledged and not there any more",
            self._channel.name, self._topic.name, counted(lost, "record"), partition, "was" if lost == 1 else "were",
        )  # fmt: skip

    # --- what was given ----------------------------------------------------------------------------------------------

    def records(self, grant: Grant, now: int) -> list[tuple[Record, Lease]]:
        """The records of a grant, with their leases: those delivered again first, the others by partition and offset.

        What cannot be read waits for an ack timeout, so that it is not in the way of others; that it cannot is raised when
        there is nothing else.
        """
        found: list[tuple[Record, Lease]] = []
        error: Exception | None = None
        for partition in sorted({each.partition for each in grant.redelivered}):
            leases = [each for each in grant.redelivered if each.partition == partition]
            try:
                found += self._again(partition, {at: lease for lease in leases for at in lease.offsets()}, now)
            except ENDS:
                raise
            except FAILURES as failure:
                error = error or failure
                found += self._again_one_by_one(partition, leases, now)
        fresh: list[tuple[Record, Lease]] = []
        for lease in grant.fresh:
            fresh += [(record, lease) for record in self._lookaheads[lease.partition].records(lease)]
        if len(grant.fresh) > 1:
            fresh.sort(key=lambda each: (each[0].partition, each[0].offset))
        if error is not None and not found and not fresh:
            raise error
        return found + fresh

    def _again_one_by_one(self, partition: int, leases: Sequence[Lease], now: int) -> list[tuple[Record, Lease]]:
        """The records that can be read; the others wait."""
        found: list[tuple[Record, Lease]] = []
        for lease in leases:
            mark = Mark(lease.id, lease.attempts, partition, lease.start, 0)
            why = ""
            for offset in lease.offsets():
                try:
                    found += self._again(partition, {offset: lease}, now)
                except ENDS:
                    raise
                except FAILURES as failure:
                    mark.bits |= 1 << (offset - lease.start)
                    why = why or f"cannot be read: {failure}"
            if mark.bits:
                self._state.requeue([mark], now + self._channel.ack_timeout_us, why, now)
        return found

    def _again(self, partition: int, holders: dict[int, Lease], now: int) -> list[tuple[Record, Lease]]:
        """The records at these offsets, which is taken apart; those that are gone are counted."""
        found = [
            (record, holders.pop(record.offset))
            for batch in rows_at(self._topic, partition, sorted(holders))
            for record in to_records(self._topic.name, batch, self._topic.schema is None)
        ]
        if holders:
            marks: dict[int, Mark] = {}
            for offset, lease in holders.items():
                mark = marks.setdefault(lease.id, Mark(lease.id, lease.attempts, partition, lease.start, 0))
                mark.bits |= 1 << (offset - lease.start)
            self._state.lose(list(marks.values()), now)
            self._warn(partition, len(holders))
        return found
