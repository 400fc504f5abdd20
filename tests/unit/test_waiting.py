"""Processes that push to one partition at once: the one that has the lock writes what the others wait with."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jjq
from jjq import files
from jjq.log import waiting
from jjq.log.partition import PartitionLog
from tests.pushers import Pusher, groups, somebody_has_the_lock, values
from tests.stores import paths

pytestmark = pytest.mark.skipif(not files.TURNS, reason="the system has no locks of the open file")

KEYS = (None, b"key", b"", b"k" * 40, None)


def test_one_message_and_one_sync_for_all_that_wait(
    path: Path, pushers: Callable[[int], list[Pusher]], monkeypatch: pytest.MonkeyPatch
) -> None:
    several = pushers(5)
    syncs: list[int] = []
    datasync = files.datasync
    with somebody_has_the_lock(path):
        for number, each in enumerate(several):
            each.push(b"value %d" % number, key=KEYS[number])
        monkeypatch.setattr(files, "datasync", lambda fd: syncs.append(fd) or datasync(fd))
    offsets = [each.join() for each in several]
    assert len(syncs) == 1
    assert groups(path)[-1] == 5
    assert sorted(offset for offset in offsets if offset is not None) == list(range(5, 10))
    with jjq.open(path, maintenance=False) as store:
        for number, offset in enumerate(offsets):
            record = store.topic("t").read(start=offset, end=(offset or 0) + 1, metadata=["_key"]).read_all()
            assert record["value"].to_pylist() == [b"value %d" % number]
            assert record["_key"].to_pylist() == [KEYS[number]]
    assert not any(each.asks() for each in several)


def test_an_answer_is_to_one_request(path: Path, pushers: Callable[[int], list[Pusher]]) -> None:
    several, offsets = pushers(3), []
    for turn in range(5):
        with somebody_has_the_lock(path):
            for number, each in enumerate(several):
                each.push(b"%d of %d" % (turn, number))
        offsets += [each.join() for each in several]
    assert sorted(offset for offset in offsets if offset is not None) == list(range(3, 18))
    assert sorted(values(path)) == sorted(b"%d of %d" % (turn, number) for turn in range(5) for number in range(3))


def test_who_writes_its_own_value_asks_no_more_when_others_get_the_lock(
    path: Path, pushers: Callable[[int], list[Pusher]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pushers(2)
    set_lock = files.set_lock

    def unlocked(fd: int, how: int) -> None:
        set_lock(fd, how)
        if fd == one.log._lock_fd and how == files.FREE and other.offset is None:
            other.offset = other.topic.push(b"other").offset

    with somebody_has_the_lock(path):
        one.push(b"one")
        monkeypatch.setattr(files, "set_lock", unlocked)
    assert [one.join(), other.offset] == [2, 3]
    assert values(path) == [b"one", b"other"]


def test_each_round_has_another_byte_than_the_last(path: Path, pushers: Callable[[int], list[Pusher]]) -> None:
    one, other = pushers(2)
    rounds = []
    for each in (one, other) * (waiting.SLOTS + 1):
        each.topic.push(b"v")
        with paths(path, "waiting")[0].open("rb") as file:
            rounds.append(file.read()[waiting.NUMBERS.size])
    assert rounds == [(rounds[0] + i) % waiting.SLOTS for i in range(len(rounds))]


def test_the_timestamp_that_a_push_returns_is_that_of_its_record(
    path: Path, pushers: Callable[[int], list[Pusher]]
) -> None:
    one, other = pushers(2)
    got: dict[int, int] = {}

    def push(log: PartitionLog, value: bytes) -> None:
        offset, ts = log.append_value(1, value)
        got[offset] = ts

    threads = [threading.Thread(target=push, args=(each.log, b"x")) for each in (one, other)]
    with somebody_has_the_lock(path):
        for each in threads:
            each.start()
        while not (one.asks() and other.asks()):
            os.sched_yield()
    for each in threads:
        each.join()
    with jjq.open(path, maintenance=False) as store:
        rows = store.topic("t").read(metadata=["_offset", "_timestamp"]).read_all()
    there = dict(zip(rows["_offset"].to_pylist(), rows["_timestamp"].cast("int64").to_pylist(), strict=True))
    assert {offset: there[offset] for offset in got} == got
    assert len(got) == 2


def test_one_that_chose_among_fewer_partitions_is_left_to_find_out(
    path: Path, pushers: Callable[[int], list[Pusher]]
) -> None:
    one, other = pushers(2)
    waits = other.log._waiting
    assert waits is not None
    assert waits.ask(b"among fewer", 1)
    with jjq.open(path, maintenance=False) as store:
        store.alter_topic("t", partitions=2)
    one.topic.push(b"one", partition=0)
    assert waits.answer() is None
    waits.leave()


@pytest.mark.parametrize("change", [{"sync": "none"}, {"sync": "interval"}])
def test_a_topic_that_does_not_wait_for_the_disk_writes_for_nobody(
    path: Path, pushers: Callable[[int], list[Pusher]], change: dict[str, Any]
) -> None:
    one, other = pushers(2)
    with somebody_has_the_lock(path):
        other.push(b"other")
    other.join()
    with jjq.open(path, maintenance=False) as store:
        store.alter_topic("t", **change)
    assert other.log._waiting is not None
    assert other.log._waiting.ask(b"asked", 0)
    one.topic.push(b"one")
    assert other.log._waiting.answer() is None
    other.log._waiting.leave()
    assert values(path) == [b"other", b"one"]


def test_a_push_that_finds_its_topic_altered_is_synced_within_the_interval(
    path: Path, pushers: Callable[[int], list[Pusher]], monkeypatch: pytest.MonkeyPatch
) -> None:
    [one] = pushers(1)
    with jjq.open(path, maintenance=False) as store:
        store.alter_topic("t", sync="interval", sync_interval_ms=250)
    told: list[float] = []
    monkeypatch.setattr(one.log, "_unsynced", lambda log, seconds: told.append(seconds))
    one.topic.push(b"one")
    assert told == [0.25]


@pytest.mark.parametrize(
    ("act", "added"),
    [
        (lambda topic: topic.push(b"k", key="k"), 1),
        (lambda topic: topic.push(b"h", headers={"h": b"1"}), 1),
        (lambda topic: topic.push_many([b"a", b"b", b"c"]), 3),
        (lambda topic: topic.push(b"x" * waiting.MOST_BYTES), 1),
        (lambda topic: topic.push(b"x" * (waiting.MOST_BYTES + 1)), 1),
        (lambda topic: topic.push(b"x" * waiting.MOST_BYTES, key="k"), 1),
    ],
)
def test_whoever_pushes_writes_what_others_wait_with(
    path: Path, pushers: Callable[[int], list[Pusher]], act: Callable[[jjq.Topic], object], added: int
) -> None:
    one, other = pushers(2)
    waits = other.log._waiting
    assert waits is not None
    assert waits.ask(b"other", 0)
    before = one.topic.offsets()[0].end
    act(one.topic)
    answer = waits.answer()
    assert answer is not None
    assert waits.counts(answer)
    assert answer.offset == before + added
    waits.leave()
    assert values(path)[-1] == b"other"


def test_an_answer_whose_file_was_rolled_meanwhile_is_found(path: Path, pushers: Callable[[int], list[Pusher]]) -> None:
    one, other = pushers(2)
    waits = other.log._waiting
    assert waits is not None
    assert waits.ask(b"other", 0)
    one.topic.push(b"one")
    with one.log.exclusive():
        assert one.log.roll_locked()
    one.topic.push(b"after")
    answer = waits.answer()
    assert answer is not None
    assert other.log._answered(waits) == answer  # in the file that it has open
    other.log.forget_active()
    assert other.log._answered(waits) == answer
    assert values(path) == [b"one", b"other", b"after"]
    waits.leave()


def test_where_all_slots_are_taken_one_waits_for_the_lock(path: Path, pushers: Callable[[int], list[Pusher]]) -> None:
    pushers(1)
    taken = files.open_rw(paths(path, "waiting")[0])
    for slot in range(1, waiting.SLOTS):
        files.turn(taken, files.TRY, files.bytes_lock(slot))
    one, other = pushers(2)
    assert [one.slot, other.slot] == [-1, -1]
    offsets = []
    pushing = [
        threading.Thread(target=lambda each=each: offsets.append(each.topic.push(b"v").offset)) for each in (one, other)
    ]
    with somebody_has_the_lock(path):
        for thread in pushing:
            thread.start()
    for thread in pushing:
        thread.join()
    assert sorted(offsets) == [3, 4]
    files.close(taken)


def test_a_child_does_not_take_its_parents_slot(path: Path, pushers: Callable[[int], list[Pusher]]) -> None:
    one, other = pushers(2)
    slot, child = one.slot, os.fork()
    if not child:
        done = 1
        with contextlib.suppress(BaseException):
            forgotten = one.log._waiting is None
            assert forgotten
            for _ in range(5):
                one.topic.push(b"child")
            assert one.log._waiting is None or one.slot != slot  # it may have met its parent
            done = 0
        os._exit(done)
    for _ in range(5):
        one.topic.push(b"parent")
    assert os.waitpid(child, 0)[1] == 0
    other.topic.push(b"other")
    assert sorted(values(path)) == [b"child"] * 5 + [b"other"] + [b"parent"] * 5
