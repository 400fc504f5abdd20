"""A subscriber against plain lists: what it gives, where its cursor is, and what it says of records that are gone."""

import contextlib
import tempfile
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import jjq
from jjq.clock import now_us

PARTITIONS, MOST = 2, 6  # at the beginning; and as many as rules add
LONGEST = 6  # bytes of a value
partitions = st.integers(0, MOST - 1)  # of those there are then: see `there_is`


class SubscriberMachine(RuleBasedStateMachine):
    """`cursor` is durable, `polled` is where the handle's polling is (None before its first poll). A partition that was added
    since is `unseen` until polling gives a record of it: polling begins there where the cursor is when it comes by.
    """

    def __init__(self) -> None:
        super().__init__()
        self.resources = contextlib.ExitStack()
        path = self.resources.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        self.store = self.resources.enter_context(jjq.open(path))
        self.other_store = self.resources.enter_context(jjq.open(path))
        self.topic = self.store.create_topic("t", partitions=PARTITIONS, sync="none")
        self.log: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.start = [0] * PARTITIONS
        self.cursor = [0] * PARTITIONS
        self.polled: list[int] | None = None
        self.unseen: set[int] = set()
        self.pinned: tuple[int, int] | None = None
        self.skipped = 0
        self.skip = False

    @initialize(skip=st.booleans())
    def create(self, skip: bool) -> None:
        self.skip = skip
        self.handle = self.store.create_subscriber("t", "s", on_data_loss="skip" if skip else "error")
        self.other = self.other_store.subscriber("s")

    def teardown(self) -> None:
        self.resources.close()

    # --- the topic ---------------------------------------------------------------------------------------------------

    def there_is(self, partition: int) -> int:
        return partition % len(self.log)

    @precondition(lambda self: len(self.log) < MOST)
    @rule(more=st.integers(1, 2), mine=st.booleans())
    def grow(self, more: int, mine: bool) -> None:
        """New partitions are read from their start, by those that were polling too."""
        added = range(len(self.log), min(len(self.log) + more, MOST))
        (self.store if mine else self.other_store).alter_topic("t", partitions=added.stop)
        for partition in added:
            self.log.append([])
            self.start.append(0)
            self.cursor.append(0)
            if self.polled is not None:
                self.polled.append(0)
                self.unseen.add(partition)

    @rule(partition=partitions, count=st.integers(1, 40))
    def push(self, partition: int, count: int) -> None:
        partition = self.there_is(partition)
        values = [b"%d:%d" % (partition, len(self.log[partition]) + i) for i in range(count)]
        self.topic.push_many(values, partition=partition)
        self.log[partition] += values

    @rule(partition=partitions, part=st.floats(0, 1))
    def expire(self, partition: int, part: float) -> None:
        """Retention moves the start. The handles forget what they read ahead, which they might still give."""
        partition = self.there_is(partition)
        start = self.start[partition] + int(part * (len(self.log[partition]) - self.start[partition]))
        log = self.store.logs[self.topic.id, partition]
        with log.exclusive():
            log.roll_locked()
        self.store.catalog.advance_start(self.topic.id, partition, start, [], now_us())
        self.start[partition] = start
        self.forget()

    @rule()
    def empty(self) -> None:
        self.topic.empty()
        self.start = [len(each) for each in self.log]
        self.cursor = [max(pair) for pair in zip(self.cursor, self.start, strict=True)]
        self.forget()

    def forget(self) -> None:
        self.handle.sleep()
        self.other.sleep()

    # --- the subscriber ----------------------------------------------------------------------------------------------

    def expect(self, places: list[int], record: jjq.Record) -> None:
        """The record is the next one of its partition, and of what it is said to be."""
        place = places[record.partition]
        if place < self.start[record.partition]:
            assert self.skip
            place = self.start[record.partition]
        assert record.offset == place
        assert record.value == self.log[record.partition][place]

    def nothing_left(self, places: list[int]) -> bool:
        return all(place >= len(log) for place, log in zip(places, self.log, strict=True))

    def check_loss(self, places: list[int], loss: jjq.DataLoss) -> None:
        assert not self.skip
        assert loss.asked == places[loss.partition] < self.start[loss.partition] == loss.earliest
        assert loss.lost == loss.earliest - loss.asked

    def skip_ahead(self) -> None:
        """Looking for a record moves the cursor past gaps that it meets; which it meets is the subscriber's to choose."""
        if self.skip:
            for partition, offset in self.handle.positions().items():
                assert offset in (self.cursor[partition], max(self.cursor[partition], self.start[partition]))
                self.cursor[partition] = offset

    @rule(mine=st.booleans())
    def pop(self, mine: bool) -> None:
        before = list(self.cursor)
        try:
            record = (self.handle if mine else self.other).pop()
        except jjq.DataLoss as loss:
            self.check_loss(before, loss)
            return
        if record is None:
            assert self.nothing_left([max(pair) for pair in zip(before, self.start, strict=True)])
            self.skip_ahead()
            return
        self.expect(before, record)
        if mine:
            if self.pinned is not None and self.pinned[1] == before[self.pinned[0]] >= self.start[self.pinned[0]]:
                assert (record.partition, record.offset) == self.pinned
            self.pinned = None
            if self.polled is not None and record.partition not in self.unseen:
                self.polled[record.partition] = max(self.polled[record.partition], record.offset + 1)
        self.cursor[record.partition] = record.offset + 1
        self.skip_ahead()

    @rule()
    def peek(self) -> None:
        before = list(self.cursor)
        try:
            record = self.handle.peek()
        except jjq.DataLoss as loss:
            self.check_loss(before, loss)
            return
        self.skip_ahead()
        if record is None:
            assert self.nothing_left(before) or self.skip
            return
        self.expect(before, record)
        self.pinned = (record.partition, record.offset)

    @rule(most=st.integers(1, 60), most_bytes=st.none() | st.integers(1, 100))
    def poll(self, most: int, most_bytes: int | None) -> None:
        places = self.polled if self.polled is not None else list(self.cursor)
        try:
            records = self.handle.poll(most, max_bytes=most_bytes)
        except jjq.DataLoss as loss:
            follows = [max(p, c) if p < s else p for p, c, s in zip(places, self.cursor, self.start, strict=True)]
            self.check_loss(follows, loss)
            self.polled = places
            return
        self.polled = places
        size = sum(len(record.value) for record in records)
        assert most_bytes is None or size <= most_bytes or len(records) == 1
        for record in records:
            partition = record.partition
            if partition in self.unseen:
                assert record.offset <= max(self.cursor[partition], self.start[partition])
                places[partition] = record.offset
                self.unseen.discard(partition)
            places[partition] = self.goes_on(partition, places[partition])
            self.expect(places, record)
            places[partition] = record.offset + 1
        left = sum(
            max(0, len(log) - max(self.start[p], self.cursor[p] if p in self.unseen else self.goes_on(p, places[p])))
            for p, log in enumerate(self.log)
            if p not in self.unseen or not records  # what it comes by after it has found something is for the next time
        )
        full = most_bytes is not None and size + LONGEST > most_bytes
        assert len(records) == most or full or left == 0 or (not self.skip and records)

    def goes_on(self, partition: int, place: int) -> int:
        """Where polling goes on: from where the cursor is, if that is further and the place has expired."""
        return max(place, self.cursor[partition]) if place < self.start[partition] else place

    @precondition(lambda self: self.polled is not None)
    @rule()
    def commit(self) -> None:
        self.handle.commit()
        assert self.polled is not None
        positions = self.handle.positions()
        for partition in range(len(self.log)):
            # Past gaps, too, if polling has met them.
            assert positions[partition] in (
                max(self.cursor[partition], self.polled[partition]),
                max(self.cursor[partition], self.polled[partition], self.start[partition] if self.skip else 0),
            )
            self.cursor[partition] = positions[partition]

    @rule(data=st.data(), partition=partitions, whole=st.booleans())
    def seek(self, data: st.DataObject, partition: int, whole: bool) -> None:
        partition = self.there_is(partition)
        low, high = self.start[partition], len(self.log[partition])
        start: Any = data.draw(st.sampled_from(["earliest", "latest"]) | st.integers(low, high) | st.integers(-60, -1))
        if whole and isinstance(start, int) and start >= 0:
            start = "earliest"
        self.handle.seek(start if whole else {partition: start})
        for each in range(len(self.log)) if whole else (partition,):
            low, high = self.start[each], len(self.log[each])
            place = {"earliest": low, "latest": high}.get(start)
            if place is None:
                place = start if start >= 0 else max(low, high + start)
            self.cursor[each] = place
            if self.polled is not None:
                self.polled[each] = place
                self.unseen.discard(each)
        self.pinned = None

    @rule()
    def begin_again(self) -> None:
        """The process dies: what was polled and not committed comes again."""
        self.handle.close()
        self.handle = self.store.subscriber("s")
        self.polled, self.pinned = None, None
        self.unseen = set()

    # --- always ------------------------------------------------------------------------------------------------------

    @invariant()
    def the_cursor_is_where_the_model_says(self) -> None:
        if hasattr(self, "handle"):
            assert self.handle.positions() == dict(enumerate(self.cursor))

    @invariant()
    def the_lag_counts_what_is_left(self) -> None:
        if hasattr(self, "handle"):
            for lag, log, start, cursor in zip(self.handle.lag(), self.log, self.start, self.cursor, strict=True):
                assert (lag.start, lag.end, lag.position) == (start, len(log), cursor)
                assert lag.records == len(log) - max(start, cursor)
                assert lag.lost == max(0, start - cursor)


TestSubscriber = SubscriberMachine.TestCase
TestSubscriber.pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
