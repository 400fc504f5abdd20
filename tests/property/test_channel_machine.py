"""A channel against a model that keeps each record by itself: who gets what, how often, and what is left."""

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import jjq
from jjq.clock import now_us
from tests.channels import SECOND, Clock, die, not_before
from tests.stores import assert_whole

PARTITIONS, MOST = 2, 5  # at the beginning; and as many as rules add
CONSUMERS = 3
ROOM = 4  # records in a consumer's hands at most
ACK_TIMEOUT = 10
MAX_ATTEMPTS = 3
DEAD = "t.work.dead"
consumers = st.integers(0, CONSUMERS - 1)
Place = tuple[int, int]  # (partition, offset)


@dataclass
class Item:
    """`state`: `waits` (not before `due`), `out` (until `due`), or one of the ends `acked`, `dead`, `skipped`."""

    place: Place
    key: bytes | None
    deferred: bool
    due: int
    state: str = "waits"
    attempts: int = 0
    holder: int | None = None  # which life of a consumer has it in hand


@dataclass
class Life:
    """A handle from its first receive until it is closed or dies."""

    number: int
    alive: bool = True


class ChannelMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.resources = contextlib.ExitStack()
        path = self.resources.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        self.path = Path(path) / "store"
        self.clock = Clock()
        self.stores = [jjq.open(self.path) for _ in range(2)]
        self.topic = self.stores[0].create_topic("t", partitions=PARTITIONS, sync="none")
        self.items: dict[Place, Item] = {}
        self.start = [0] * PARTITIONS
        self.lives: list[Life] = []
        self.mine: dict[int, int] = {}  # consumer -> its life
        self.hands: list[tuple[int, jjq.Delivery]] = []
        self.letters = self.acked = 0
        self.revived_to = 0
        self.paused = self.topic_paused = False

    @initialize(ordered=st.booleans())
    def create(self, ordered: bool) -> None:
        self.ordered = ordered
        self.handles = [self.join(number) for number in range(CONSUMERS)]
        self.view = self.stores[0].channel("t", "work", clock=self.clock)

    def join(self, number: int) -> jjq.Channel:
        return self.stores[number % 2].channel(
            "t", "work", create=True, ack_timeout=ACK_TIMEOUT, max_attempts=MAX_ATTEMPTS, ordered=self.ordered,
            max_in_flight=ROOM, clock=self.clock,
        )  # fmt: skip

    def teardown(self) -> None:
        with self.resources:
            self.resources.callback(lambda: [store.close() for store in self.stores])
            if hasattr(self, "view") and not any(self.start):
                self.finish()
            assert_whole(self.path)

    def finish(self) -> None:
        """Whatever happened, everything comes to its end."""
        self.unpause()
        self.unpause_topic()
        for number in range(CONSUMERS):
            self.close(number)
        for _ in range(1000):
            self.clock.advance(ACK_TIMEOUT + 100)
            got = self.take(0, ROOM)
            for _, delivery in [each for each in self.hands if each[1] in got]:
                self.settle_one(delivery, "ack", 0)
            if not got:
                break
        assert {each.state for each in self.items.values()} <= {"acked", "dead", "skipped"}

    # --- the topic ---------------------------------------------------------------------------------------------------

    @rule(keys=st.lists(st.sampled_from([None, b"a", b"b", b"c"]), min_size=1, max_size=6), delay=st.integers(0, 30))
    def push(self, keys: list[bytes | None], delay: int) -> None:
        # Most records are not deferred.
        deferred = delay > 20
        headers = not_before(self.clock, delay) if deferred else None
        pushed = self.topic.push_many([b"v"] * len(keys), keys=keys, headers=[headers] * len(keys))
        due = self.clock.now + delay * SECOND if deferred else 0
        for key, position in zip(keys, pushed, strict=True):
            place = (position.partition, position.offset)
            self.items[place] = Item(place, key, deferred, due)

    @precondition(lambda self: len(self.start) < MOST)
    @rule(more=st.integers(1, 2), which=st.integers(0, 1))
    def grow(self, more: int, which: int) -> None:
        """By either store: the other one's handles find out by themselves."""
        partitions = min(len(self.start) + more, MOST)
        self.stores[which].alter_topic("t", partitions=partitions)
        self.start += [0] * (partitions - len(self.start))

    @rule(partition=st.integers(0, MOST - 1), count=st.integers(1, 3))
    def expire(self, partition: int, count: int) -> None:
        """Retention takes the first segments. The handles forget what they read ahead, which they might still give."""
        partition %= len(self.start)
        log = self.stores[0].logs[self.topic.id, partition]
        with log.exclusive():
            log.roll_locked()
        gone = [each for each in self.topic.segments(partition) if each.rows][:count]
        start = gone[-1].end if gone else self.start[partition]
        self.stores[0].catalog.advance_start(self.topic.id, partition, start, [], now_us())
        self.start[partition] = start
        for each in self.handles:
            each._receiving.forget()

    @rule(seconds=st.integers(1, 12))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    # --- what may be delivered ---------------------------------------------------------------------------------------

    def gone(self, item: Item) -> bool:
        return item.place[1] < self.start[item.place[0]]

    def is_due(self, item: Item) -> bool:
        """Whether it could go to anybody, were it not for its key."""
        if item.state == "out":
            return item.due <= self.clock.now or (item.holder is not None and not self.lives[item.holder].alive)
        return item.state == "waits" and item.due <= self.clock.now

    def holds_its_key(self, item: Item) -> bool:
        return item.state == "out" or (item.state == "waits" and item.attempts > 0)

    def deliverable(self) -> list[Item]:
        due = [each for each in self.items.values() if self.is_due(each) and not self.gone(each)]
        due = [each for each in due if each.attempts < MAX_ATTEMPTS]
        if not self.ordered:
            return due
        held = {
            each.key
            for each in self.items.values()
            if self.holds_its_key(each)
            and not (self.is_due(each) and (self.gone(each) or each.attempts == MAX_ATTEMPTS))
        }
        return [each for each in due if each.key is None or each.attempts > 0 or each.key not in held]

    def in_hand(self, life: int) -> int:
        return sum(
            each.state == "out" and each.holder == life and each.due > self.clock.now for each in self.items.values()
        )

    # --- consuming ---------------------------------------------------------------------------------------------------

    @rule(number=consumers, most=st.integers(1, 6))
    def receive(self, number: int, most: int) -> None:
        self.take(number, most)

    def take(self, number: int, most: int) -> list[jjq.Delivery]:
        if number not in self.mine:
            self.mine[number] = len(self.lives)
            self.lives.append(Life(number))
        life = self.mine[number]
        room = max(0, ROOM - self.in_hand(life))  # touching what had run out may make it more
        got = self.handles[number].receive(most)
        assert len(got) <= min(most, room)
        self.bury()
        if self.paused or self.topic_paused:
            assert not got
            return got
        expected = {each.place: each for each in self.deliverable()}
        if room:
            assert bool(got) == bool(expected), (got, expected)
        places = [(each.record.partition, each.record.offset) for each in got]
        assert len(set(places)) == len(places)
        for place, delivery in zip(places, got, strict=True):
            item = expected[place]
            assert (delivery.record.key, delivery.attempts) == (item.key, item.attempts + 1)
            self.check_order(item)
            item.state, item.holder, item.due = "out", life, self.clock.now + ACK_TIMEOUT * SECOND
            item.attempts += 1
            self.hands.append((life, delivery))
        if self.ordered:
            keys = [each.key for each in self.items.values() if each.state == "out" and not self.is_due(each)]
            assert len([key for key in keys if key]) == len({key for key in keys if key})
        return got

    def check_order(self, item: Item) -> None:
        """A first delivery comes after those of all earlier records, but for what was deferred or waits for its key."""
        if item.attempts or item.deferred:
            return
        for other in self.items.values():
            if other.place[0] != item.place[0] or other.place[1] >= item.place[1] or other.deferred or self.gone(other):
                continue
            if not self.ordered:
                assert other.attempts > 0 or other.state != "waits" or other.place in self.revived
            elif other.key == item.key and item.key is not None:
                assert other.state in ("acked", "dead", "skipped") or other.place in self.revived

    @property
    def revived(self) -> set[Place]:
        return self.__dict__.setdefault("_revived", set())

    def bury(self) -> None:
        """Takes in what has come to the dead-letter topic: only what had its last attempt may."""
        letters = self.dead_letters()
        for place in letters[self.letters :]:
            item = self.items[place]
            assert item.attempts == MAX_ATTEMPTS
            assert self.is_due(item), item
            item.state = "dead"
        self.letters = len(letters)

    def dead_letters(self) -> list[Place]:
        try:
            topic = self.stores[0].topic(DEAD)
        except jjq.TopicNotFound:
            return []
        found = []
        for record in topic.records(topic.plan(0, 0, topic.offsets()[0].end)):
            facts: dict[str, Any] = dict(record.headers or ())
            found.append((int(facts["jjq-dead-partition"]), int(facts["jjq-dead-offset"])))
        return found

    @precondition(lambda self: self.hands)
    @rule(data=st.data(), how=st.sampled_from(["ack", "ack", "requeue", "touch"]), delay=st.integers(0, 8))
    def settle(self, data: st.DataObject, how: str, delay: int) -> None:
        life, _ = data.draw(st.sampled_from(self.hands))
        own = [delivery for each, delivery in self.hands if each == life]
        chosen = data.draw(st.lists(st.sampled_from(own), min_size=1, max_size=4, unique_by=id))
        if len(chosen) == 1:
            self.settle_one(chosen[0], how, delay)
            return
        channel = chosen[0]._channel
        acts: dict[str, Any] = {
            "ack": channel.ack_many, "touch": channel.touch_many, "requeue": lambda some: channel.requeue_many(some, delay),
        }  # fmt: skip
        try:
            acts[how](chosen)
            expired: set[Place] = set()
        except jjq.DeliveryExpired as error:
            expired = set(error.expired)
        self.take_in(chosen, how, delay, expired)

    def settle_one(self, delivery: jjq.Delivery, how: str, delay: int) -> None:
        acts: dict[str, Any] = {
            "ack": delivery.ack, "touch": delivery.touch, "requeue": lambda: delivery.requeue(delay),
        }  # fmt: skip
        try:
            acts[how]()
            expired: set[Place] = set()
        except jjq.DeliveryExpired as error:
            expired = set(error.expired)
        self.take_in([delivery], how, delay, expired)

    def take_in(self, chosen: list[jjq.Delivery], how: str, delay: int, expired: set[Place]) -> None:
        settled = []
        late = [each for each in chosen if each._settled == "expired"]
        assert expired == {(each.record.partition, each.record.offset) for each in late}
        for delivery in chosen:
            item = self.items[delivery.record.partition, delivery.record.offset]
            life = next(each for each, other in self.hands if other is delivery)
            current = (item.attempts, item.holder) == (delivery.attempts, life) and item.state in ("out", "waits")
            ran_out = item.due <= self.clock.now or item.state == "waits"
            if delivery in late:
                # It went on; or it was about to, and somebody has looked.
                assert not current or (ran_out and (self.gone(item) or item.attempts == MAX_ATTEMPTS or how == "touch"))
            else:
                assert current, (item, delivery)
                settled.append(item)
            if delivery in late or how != "touch":
                self.hands = [each for each in self.hands if each[1] is not delivery]
        for item in settled:
            if how == "ack":
                item.state = "acked"
                self.acked += 1
            elif how == "touch":
                item.state, item.due = "out", self.clock.now + ACK_TIMEOUT * SECOND
            else:
                item.state, item.due, item.holder = "waits", self.clock.now + delay * SECOND, None
                if item.attempts == MAX_ATTEMPTS:
                    item.due = self.clock.now  # its delay does not matter any more
        self.bury()
        for item in settled:
            assert how != "requeue" or item.attempts < MAX_ATTEMPTS or item.state == "dead" or self.gone(item)

    @rule(number=consumers)
    def crash(self, number: int) -> None:
        die(self.handles[number])
        if number in self.mine:
            life = self.mine.pop(number)
            self.lives[life].alive = False
            self.hands = [each for each in self.hands if each[0] != life]

    @rule(number=consumers)
    def close(self, number: int) -> None:
        self.handles[number].close()
        self.end(number)
        self.handles[number] = self.join(number)

    def end(self, number: int) -> None:
        if number in self.mine:
            life = self.mine.pop(number)
            self.lives[life].alive = False
            self.hands = [each for each in self.hands if each[0] != life]
            for item in self.items.values():
                if item.state == "out" and item.holder == life:
                    item.state, item.due = "waits", min(item.due, self.clock.now)

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        self.stores[which].close()
        self.stores[which] = jjq.open(self.path)
        for number in range(CONSUMERS):
            if number % 2 == which:
                self.end(number)
                self.handles[number] = self.join(number)
        if which == 0:
            self.topic = self.stores[0].topic("t")
            self.view = self.stores[0].channel("t", "work", clock=self.clock)

    # --- the channel -------------------------------------------------------------------------------------------------

    @rule()
    def pause(self) -> None:
        self.view.pause()
        self.paused = True

    @rule()
    def unpause(self) -> None:
        self.view.unpause()
        self.paused = False

    @rule()
    def pause_topic(self) -> None:
        self.topic.pause()
        self.topic_paused = True

    @rule()
    def unpause_topic(self) -> None:
        self.topic.unpause()
        self.topic_paused = False

    @rule()
    def empty(self) -> None:
        self.view.empty()
        for item in self.items.values():
            if item.state in ("out", "waits"):
                item.state = "skipped"

    @rule()
    def revive(self) -> None:
        count = self.view.revive()
        letters = self.dead_letters()[self.revived_to :]
        self.revived_to += len(letters)
        alive = [place for place in letters if place[1] >= self.start[place[0]]]
        assert count == len(alive)
        for place in alive:
            item = self.items[place]
            item.state, item.attempts, item.due, item.holder = "waits", 0, self.clock.now, None
            self.revived.add(place)

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "view"):
            return
        counts = self.view.counts()
        assert (counts.acked, counts.dead) == (self.acked, self.letters)
        if not any(self.start):
            left = sum(each.state in ("out", "waits") for each in self.items.values())
            assert counts.depth + counts.in_flight + counts.deferred == left
            assert counts.lost == 0
        assert self.view.paused == self.paused


TestChannel = ChannelMachine.TestCase
