"""Processes that push and processes that share a channel, killed at random: nothing is lost, and nothing comes again
without a reason."""

import itertools
import multiprocessing
import random
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import jjq
from tests.crash.channel_load import ACK_TIMEOUT_S, CHANNEL, TOPIC, consume, push
from tests.stores import assert_whole

KILLS = 10  # of each kind at least, however slow the machine is
Place = tuple[int, int]


class Told(NamedTuple):
    """A line of a journal: what happened when, to which record at which attempt, and who wrote it. `due`: until when it
    had been delivered, in microseconds of the system's clock."""

    what: str
    at: float
    place: Place
    attempt: int
    due: int
    value: str
    who: str


class Crowd:
    """So many processes of a kind; one that is killed is replaced."""

    def __init__(self, context: Any, target: Callable[..., None], store: Path, journals: Path, count: int) -> None:
        self._context, self._target, self._store, self._journals = context, target, store, journals
        self._stop = journals.parent / f"stop-{target.__name__}"
        self._made = 0
        self.killed: set[str] = set()
        self.alive: dict[str, Any] = {}
        for _ in range(count):
            self._start()

    def _start(self) -> None:
        name = f"{self._target.__name__}-{self._made}"
        self._made += 1
        process = self._context.Process(
            target=self._target, args=(self._store, self._journals / name, name, self._stop), name=name, daemon=True
        )
        process.start()
        self.alive[name] = process

    def kill_one(self, choice: random.Random) -> None:
        """One that has done something, if there is one."""
        busy = [name for name in sorted(self.alive) if _size(self._journals / name)]
        if not busy:
            return
        name = choice.choice(busy)
        process = self.alive.pop(name)
        process.kill()
        process.join()
        self.killed.add(name)
        self._start()

    def end(self) -> None:
        self._stop.touch()
        for process in self.alive.values():
            process.join()
        assert {process.exitcode for process in self.alive.values()} == {0}


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def run(place: Path, pushing: int, consuming: int, seconds: float) -> tuple[jjq.Store, list[Crowd], Path]:
    journals = place / "journals"
    journals.mkdir()
    store = jjq.open(place / "store")
    store.create_topic(TOPIC, partitions=2, sync="none", segment_rows=2000)
    store.channel(TOPIC, CHANNEL, create=True, ack_timeout=ACK_TIMEOUT_S, max_attempts=None)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jjq"])  # so that a new process is there at once
    pushers = Crowd(context, push, store.path, journals, pushing)
    consumers = Crowd(context, consume, store.path, journals, consuming)
    choice = random.Random(7)
    until = time.monotonic() + seconds
    while time.monotonic() < until or min(len(pushers.killed), len(consumers.killed)) < KILLS:
        crowd = choice.choice((pushers, consumers))
        # Whoever ends by itself has failed, which is the only reason to wait no longer.
        assert not wait([each.sentinel for each in crowd.alive.values()], timeout=choice.uniform(0.05, 0.4))
        crowd.kill_one(choice)
    pushers.end()
    watcher = store.channel(TOPIC, CHANNEL)
    while (counts := watcher.counts()).depth or counts.in_flight or counts.deferred:
        assert not wait([each.sentinel for each in consumers.alive.values()], timeout=0.05), counts
    consumers.end()
    return store, [pushers, consumers], journals


def read(journals: Path) -> tuple[list[str], list[Told]]:
    """The values whose push was acknowledged, and what consumers told, in order of attempts."""
    pushed: list[str] = []
    told: list[Told] = []
    for journal in journals.iterdir():
        for line in journal.read_text().split("\n")[:-1]:  # a killed process may leave its last line unfinished
            what, at, *rest = line.split(" ")
            if what == "pushed":
                pushed += rest
            elif what != "expired":
                partition, offset = rest[0].split(":")
                told.append(
                    Told(
                        what,
                        float(at),
                        (int(partition), int(offset)),
                        int(rest[1]),
                        int(rest[2]),
                        rest[3],
                        journal.name,
                    )
                )
    return pushed, sorted(told, key=lambda each: (each.attempt, each.at))


def check(store: jjq.Store, crowds: list[Crowd], journals: Path) -> None:
    pushed, told = read(journals)
    killed = crowds[1].killed
    got = [each for each in told if each.what == "got"]
    assert len(pushed) > 100
    # Every record that is in the topic came to somebody at least once, and all that were acknowledged are in the topic.
    topic = store.topic(TOPIC)
    there = {
        (record.partition, record.offset): record.value.decode()
        for bounds in topic.offsets()
        for record in topic.records(topic.plan(bounds.partition, bounds.start, bounds.end))
    }
    assert len(pushed) == len(set(pushed))
    assert set(pushed) <= set(there.values())
    assert len(set(there.values())) == len(there)
    assert {each.place: each.value for each in got} == there
    counts = store.channel(TOPIC, CHANNEL).counts()
    assert (counts.acked, counts.dead, counts.lost) == (len(there), 0, 0)
    # Nothing comes again without a reason, and nothing at all once it was acknowledged.
    history: dict[Place, list[Told]] = {}
    for each in told:
        history.setdefault(each.place, []).append(each)
    for place, events in history.items():
        deliveries = [each for each in events if each.what == "got"]
        attempts = [each.attempt for each in deliveries]
        assert attempts == sorted(set(attempts)), (place, events)
        for before, after in itertools.pairwise(deliveries):
            assert is_reason(before, after, events, killed), (before, after, events)
        acked = [each for each in events if each.what == "acked"]
        assert len(acked) <= 1, events
        assert not acked or acked[0].attempt == attempts[-1], events
    assert_whole(store)


def is_reason(before: Told, after: Told, events: list[Told], killed: set[str]) -> bool:
    """Whether a record may come again: its consumer was killed, gave it back, or was out of time. A delivery in between,
    of which nobody told, was to one that was killed before it could."""
    if before.who in killed or after.attempt > before.attempt + 1:
        return True
    if any(each.what == "requeuing" and each.attempt == before.attempt for each in events):
        return True
    leased_at = after.due - int(ACK_TIMEOUT_S * 1_000_000)
    return leased_at >= before.due


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_and_nothing_comes_again_without_a_reason(place: Path) -> None:
    store, crowds, journals = run(place, pushing=3, consuming=3, seconds=10)
    with store:
        check(store, crowds, journals)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_eight_that_push_and_eight_that_consume_for_a_minute(place: Path) -> None:
    store, crowds, journals = run(place, pushing=8, consuming=8, seconds=60)
    with store:
        check(store, crowds, journals)
