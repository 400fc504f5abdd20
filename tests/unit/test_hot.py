"""The hot store: what is kept near subscribers, for whom, when it goes; and that it changes nothing but when things are read."""

import gc
import multiprocessing
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq import hot
from jjq.log.reader import LogReader
from tests.stores import flip, roll

ROWS = 3000  # of a segment
SEGMENTS = 4
VALUE_BYTES = 100


def value(offset: int) -> bytes:
    return b"%0*d" % (VALUE_BYTES, offset)


def fill(store: jjq.Store, compression: str | None = "zstd", segments: int = SEGMENTS, rows: int = ROWS) -> jjq.Topic:
    """A topic of sealed segments, each of one commit."""
    topic = store.create_topic("t", compression=compression, sync="none")
    for number in range(segments):
        values = [value(offset) for offset in range(number * rows, (number + 1) * rows)]
        topic.push_table(pa.table({"value": pa.array(values, pa.binary())}), writer_id="w", batch_id=number)
    return topic


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store", maintenance=False) as opened:
        yield opened


def held(store: jjq.Store) -> dict[int, list[str]]:
    """Who is in which segment, by the segment's first offset."""
    return {each["start"]: each["for"] for each in store.hot.stats()["segments"]}


def pop_to(subscriber: jjq.Subscriber, offset: int, *, settled: jjq.Store | None = None) -> None:
    """Pops up to an offset, exclusive; waiting after each pop for what it asked for."""
    while (record := subscriber.pop()).offset < offset - 1:
        assert record.value == value(record.offset)
        if settled is not None:
            assert settled.hot.settle(60)


# --- near a subscriber -----------------------------------------------------------------------------------------------


def test_nothing_is_loaded_before_a_subscriber_is_used_and_then_its_own_segment(store: jjq.Store) -> None:
    fill(store)
    for number in range(SEGMENTS):
        store.create_subscriber("t", f"s{number}", start=number * ROWS + 5)
    assert store.hot.stats()["segments"] == []
    store.subscriber("s2").peek()
    assert held(store) == {2 * ROWS: []}  # that handle is gone again
    second = store.subscriber("s2")
    assert second.peek().value == value(2 * ROWS + 5)
    assert held(store) == {2 * ROWS: ["s2"]}
    (segment,) = store.hot.stats()["segments"]
    assert (segment["topic"], segment["partition"], segment["state"]) == ("t", 0, "sealed")
    assert segment["end"] == 3 * ROWS
    assert segment["batches"] >= 1
    assert segment["bytes"] > 1024 * VALUE_BYTES


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_pops_find_what_comes_next_loaded_across_the_ends_of_segments(store: jjq.Store, compression: str) -> None:
    fill(store, compression)
    subscriber = store.create_subscriber("t")
    pop_to(subscriber, SEGMENTS * ROWS, settled=store)
    assert subscriber.pop() is None
    counts = store.hot.stats()
    assert counts["misses"] == 1  # the first
    assert counts["hits"] >= 2
    assert counts["prefetches"] >= 1


def test_polls_do_so_too(store: jjq.Store) -> None:
    fill(store)
    subscriber = store.create_subscriber("t")
    offsets = []
    while records := subscriber.poll(250):
        offsets += [record.offset for record in records]
        assert store.hot.settle(60)
    assert offsets == list(range(SEGMENTS * ROWS))
    assert store.hot.stats()["misses"] == 1


def test_a_peek_asks_for_nothing_and_the_pop_after_it_does(store: jjq.Store) -> None:
    fill(store)
    subscriber = store.create_subscriber("t", start=ROWS - 10)
    for _ in range(3):
        assert subscriber.peek().value == value(ROWS - 10)
    assert store.hot.settle(60)
    assert store.hot.stats()["prefetches"] == 0
    assert max(held(store)) <= ROWS  # what it had to read, and not what follows that
    before = held(store)
    subscriber.pop()
    assert store.hot.settle(60)
    assert store.hot.stats()["prefetches"] == 1
    assert held(store).keys() >= before.keys()


def test_what_was_loaded_ahead_counts_as_near(store: jjq.Store) -> None:
    fill(store, rows=1024)  # as much as is read first
    subscriber = store.create_subscriber("t", "s")
    assert subscriber.pop().offset == 0
    assert store.hot.settle(60)
    assert held(store).items() >= {0: ["s"], 1024: ["s"]}.items()


def test_the_next_segment_is_loaded_although_it_is_still_written(store: jjq.Store) -> None:
    topic = fill(store, segments=1)
    topic.push_many([value(ROWS + i) for i in range(10)])
    subscriber = store.create_subscriber("t", "s", start=ROWS - 2)
    pop_to(subscriber, ROWS + 10, settled=store)
    assert subscriber.pop() is None
    topic.push(value(ROWS + 10))
    assert subscriber.pop().offset == ROWS + 10
    (active,) = store.hot.stats()["segments"][-1:]
    assert (active["state"], active["start"], active["for"]) == ("active", ROWS, ["s"])
    assert held(store) == {0: [], ROWS: ["s"]}


def test_rolled_segments_stay_open_near_a_subscriber(store: jjq.Store) -> None:
    topic = store.create_topic("t", sync="none", segment_rows=50)
    for offset in range(120):
        topic.push(value(offset))
    subscriber = store.create_subscriber("t", "s")
    pop_to(subscriber, 120, settled=store)
    assert {each["state"] for each in store.hot.stats()["segments"]} >= {"rolled", "active"}


# --- leaving -----------------------------------------------------------------------------------------------------------


def test_what_the_last_one_has_left_stays_while_there_is_room(store: jjq.Store) -> None:
    fill(store)
    subscriber = store.create_subscriber("t", "s")
    pop_to(subscriber, 2 * ROWS + 1500, settled=store)
    assert held(store)[0] == []
    misses = store.hot.stats()["misses"]
    second = store.create_subscriber("t", "second")
    assert second.pop().value == value(0)
    assert store.hot.stats()["misses"] == misses
    assert held(store)[0] == ["second"]


def test_without_room_it_goes_and_is_read_again(tmp_path: Path) -> None:
    with jjq.open(tmp_path / "store", hot_bytes=ROWS * VALUE_BYTES, maintenance=False) as store:
        fill(store)
        subscriber = store.create_subscriber("t", "s")
        pop_to(subscriber, 3 * ROWS, settled=store)
        assert 0 not in held(store)
        assert store.hot.stats()["dropped"] >= 2
        assert store.create_subscriber("t").pop().value == value(0)


def test_one_that_leaves_does_not_take_the_segment_from_those_who_stay(store: jjq.Store) -> None:
    fill(store)
    first, second = store.create_subscriber("t", "a"), store.create_subscriber("t", "b")
    assert first.pop().offset == second.pop().offset == 0
    assert store.hot.settle(60)  # a load on its way would open the segment again behind the last one's back
    assert held(store)[0] == ["a", "b"]
    first.sleep()
    assert held(store)[0] == ["b"]
    misses = store.hot.stats()["misses"]
    second.sleep()
    second.wakeup()
    assert store.hot.stats()["misses"] == misses + 1  # b was the last, so it went with it


def test_one_may_enter_while_the_last_one_leaves(store: jjq.Store) -> None:
    topic = fill(store, segments=2)
    (first, _) = topic.segments()
    (place,) = topic.plan(0, 0, 1)
    assert place.segment is not None
    assert place.segment.uuid == first.id
    failures: list[str] = []

    def come_and_go(number: int) -> None:
        near = store.hot.near(f"h{number}")
        for _ in range(200):
            (batch,) = topic.reader.read([place], topic.select(None), (), 1 << 20, keeper=near)
            near.enter(topic.reader, 0, [place.segment])
            if batch.column(0)[0].as_py() != value(0) or near.label not in held(store).get(0, []):
                failures.append(near.label)
            near.leave()

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert held(store) == {}


def test_sleep_lets_go_and_wakeup_loads_what_is_next_too(store: jjq.Store) -> None:
    fill(store, rows=1024)
    subscriber = store.create_subscriber("t", "s")
    subscriber.pop()
    assert store.hot.settle(60)
    subscriber.sleep()
    assert store.hot.stats()["segments"] == []
    assert store.hot.stats()["bytes"] == 0
    subscriber.wakeup()
    assert store.hot.settle(60)
    assert held(store).items() >= {0: ["s"], 1024: ["s"]}.items()
    assert subscriber.pop().offset == 1


def test_a_handle_that_is_closed_or_forgotten_is_near_nothing(store: jjq.Store) -> None:
    fill(store)
    one, two = store.create_subscriber("t", "one"), store.create_subscriber("t", "two")
    one.pop(), two.pop()
    assert store.hot.settle(60)  # a load on its way looks for the one that it is for when it has come
    one.close()
    del two
    gc.collect()
    assert held(store)[0] == []


def test_seeking_moves_what_it_is_near(store: jjq.Store) -> None:
    fill(store)
    subscriber = store.create_subscriber("t", "s")
    subscriber.pop()
    subscriber.seek(3 * ROWS + 1)
    assert subscriber.pop().offset == 3 * ROWS + 1
    assert held(store)[3 * ROWS] == ["s"]
    assert held(store)[0] == []


# --- the budget --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_many_subscribers_far_apart_stay_within_the_budget(tmp_path: Path, compression: str) -> None:
    budget = 2 * ROWS * VALUE_BYTES
    with jjq.open(tmp_path / "store", hot_bytes=budget, maintenance=False) as store:
        fill(store, compression, segments=8)
        subscribers = [store.create_subscriber("t", start=number * ROWS) for number in range(8)]
        for step in range(5):
            for number, subscriber in enumerate(subscribers):
                records = subscriber.poll(500)
                assert [r.value for r in records] == [value(r.offset) for r in records]
                assert records[0].offset == number * ROWS + step * 500
                assert store.hot.settle(60)  # one load may be on its way
                assert store.hot.stats()["bytes"] <= budget


def test_files_are_bounded_too_whatever_the_bytes(store: jjq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot, "_MOST_FILES", 3)
    fill(store, segments=6)
    subscribers = [store.create_subscriber("t", start=number * ROWS) for number in range(6)]
    for subscriber in subscribers:
        subscriber.pop()
    assert store.hot.settle(60)
    assert sum(held.file is not None for held in store.hot._held.values()) <= 3
    assert len(held(store)) == 6  # where they are is known all the same


def test_the_active_segment_stays_however_small_the_budget(tmp_path: Path) -> None:
    with jjq.open(tmp_path / "store", hot_bytes=1, maintenance=False) as store:
        topic = fill(store, segments=2)
        topic.push_many([value(2 * ROWS + i) for i in range(3000)])
        follower = store.create_subscriber("t", "follower", start=2 * ROWS)
        assert follower.pop().offset == 2 * ROWS
        others = [store.create_subscriber("t", start=start) for start in (0, ROWS)]
        for other in others:
            other.poll(10)
        assert "follower" in held(store)[2 * ROWS]
        (active,) = [each for each in store.hot.stats()["segments"] if each["state"] == "active"]
        assert active["start"] == 2 * ROWS
        assert [record.offset for record in follower.poll(5)] == list(range(2 * ROWS + 1, 2 * ROWS + 6))


def test_with_none_it_keeps_nothing_and_loads_nothing_ahead(tmp_path: Path) -> None:
    with jjq.open(tmp_path / "store", hot_bytes=0, maintenance=False) as store:
        fill(store)
        subscriber = store.create_subscriber("t")
        assert [record.offset for record in subscriber.poll(SEGMENTS * ROWS)] == list(range(SEGMENTS * ROWS))
        counts = store.hot.stats()
        assert (counts["bytes"], counts["prefetches"]) == (0, 0)


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "1GB", None])
def test_a_budget_is_bytes(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(jjq.InvalidArgument, match="hot_bytes must be bytes from 0"):
        jjq.open(tmp_path / "store", hot_bytes=wrong)
    assert not (tmp_path / "store").exists()


# --- what is read does not change ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0, 200_000, hot.DEFAULT_BYTES])
def test_random_reading_gives_the_same_records_whatever_is_kept(tmp_path: Path, budget: int) -> None:
    chance = random.Random(budget)
    with jjq.open(tmp_path / "store", hot_bytes=budget, maintenance=False) as store:
        topic = fill(store)
        topic.push_many([value(SEGMENTS * ROWS + i) for i in range(100)])
        end = SEGMENTS * ROWS + 100
        subscribers = [store.create_subscriber("t") for _ in range(3)]
        places = [0, 0, 0]
        for _ in range(150):
            which = chance.randrange(3)
            if chance.random() < 0.3:
                places[which] = chance.randrange(end)
                subscribers[which].seek(places[which])
            if chance.random() < 0.1:
                subscribers[which].sleep()
            records = subscribers[which].poll(chance.choice([1, 50, 2000]))
            expected = range(places[which], min(end, places[which] + len(records)))
            assert [(r.offset, r.value) for r in records] == [(offset, value(offset)) for offset in expected]
            assert records or places[which] == end
            places[which] += len(records)


def test_a_whole_scan_of_a_topic_keeps_no_batches(store: jjq.Store) -> None:
    topic = fill(store)
    assert topic.read().read_all().num_rows == SEGMENTS * ROWS
    assert {each["batches"] for each in store.hot.stats()["segments"]} == {0}
    assert (store.hot.hits, store.hot.misses) == (0, 0)


def test_a_damaged_segment_ahead_is_told_by_who_reads_it(store: jjq.Store) -> None:
    topic = fill(store, rows=1024)
    path = Path(topic.segments()[1].path)
    subscriber = store.create_subscriber("t")
    for position in range(700, path.stat().st_size - 1000, 97):
        flip(path, position)
    assert subscriber.pop().offset == 0
    assert store.hot.settle(60)
    pop_to(subscriber, 1024)
    with pytest.raises(jjq.DamagedSegment, match=path.name):
        subscriber.pop()


def test_records_that_retention_took_are_lost_although_they_are_held(store: jjq.Store) -> None:
    topic = fill(store)
    subscriber = store.create_subscriber("t", start=10)
    subscriber.pop()
    store.catalog.advance_start(topic.id, 0, ROWS, [], 0)
    subscriber.seek("earliest")
    assert subscriber.pop().offset == ROWS
    store.catalog.set_cursors(subscriber.id, {0: (10, 0)}, only_forward=False)
    with pytest.raises(jjq.DataLoss):
        subscriber.pop()


def test_reading_goes_on_when_a_segment_is_compacted_away_and_its_room_is_freed(store: jjq.Store) -> None:
    topic = store.create_topic("t", sync="none")
    for first in (0, 1500):
        topic.push_many([value(offset) for offset in range(first, first + 1500)])
        roll(store, "t")
    subscriber = store.create_subscriber("t", "s")
    assert subscriber.pop().offset == 0
    assert store.hot.settle(60)
    old = {each["id"] for each in store.hot.stats()["segments"]}
    store.maintain(grace_us=0)
    pop_to(subscriber, 3000, settled=store)
    subscriber.seek("earliest")
    pop_to(subscriber, 1500, settled=store)
    assert not old & {each["id"] for each in store.hot.stats()["segments"]}


# --- life --------------------------------------------------------------------------------------------------------------


def test_closing_the_store_ends_the_thread_and_lets_go(store: jjq.Store) -> None:
    fill(store)
    store.create_subscriber("t").pop()
    store.close()
    assert [thread for thread in threading.enumerate() if thread.name == "jjq-hot"] == []
    assert store.hot.stats()["segments"] == []


def test_what_is_loaded_when_the_store_has_been_closed_is_kept_for_nobody(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading, pause, real = threading.Event(), threading.Event(), LogReader.load

    def late(*arguments: Any) -> Any:
        loading.set()
        while not store.hot._closed:
            pause.wait(0.001)
        return real(*arguments)

    monkeypatch.setattr(LogReader, "load", late)
    fill(store)
    subscriber = store.create_subscriber("t")
    subscriber.pop()
    assert loading.wait(60)
    store.hot.close()
    assert store.hot.stats()["segments"] == []


def test_an_idle_thread_ends_and_another_begins_when_it_is_needed(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot, "_IDLE_S", 0.001)
    fill(store)
    subscriber = store.create_subscriber("t")
    subscriber.pop()
    for thread in [thread for thread in threading.enumerate() if thread.name == "jjq-hot"]:
        thread.join(60)
    pop_to(subscriber, SEGMENTS * ROWS, settled=store)


def test_where_no_thread_can_begin_records_are_read_as_ever(store: jjq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Python 3.12 once the main thread has ended."""
    tried = []

    def cannot(thread: threading.Thread) -> None:
        tried.append(thread.name)
        raise RuntimeError("can't create new thread at interpreter shutdown")

    fill(store)
    subscriber = store.create_subscriber("t")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot)
        pop_to(subscriber, ROWS + 1)
        assert "jjq-hot" in tried
        store.close()


@pytest.mark.parametrize("begun", [False, True], ids=["before", "after"])
def test_an_interrupt_as_its_thread_begins_leaves_one(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if begun:
            start(thread)
        raise KeyboardInterrupt

    fill(store)
    subscriber = store.create_subscriber("t")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pop_to(subscriber, ROWS + 1)
    while subscriber.pop() is not None:
        pass
    assert sum(each.name == "jjq-hot" for each in threading.enumerate()) == 1


def test_a_store_that_is_used_by_nobody_any_more_can_be_collected(tmp_path: Path) -> None:
    store = jjq.open(tmp_path / "store", maintenance=False)
    fill(store)
    store.create_subscriber("t").pop()
    assert store.hot.settle(60)
    reader = store.topic("t").reader
    store.close()
    assert all(held.reader is not reader for held in store.hot._held.values())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_hot_store_of_its_own(store: jjq.Store) -> None:
    fill(store)
    subscriber = store.create_subscriber("t", "s")
    subscriber.pop()
    mine, theirs = multiprocessing.get_context("fork").Pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            theirs.send(store.hot.stats()["segments"])
            pop_to(subscriber, ROWS + 10, settled=store)
            theirs.send(store.hot.stats()["misses"])
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert mine.recv() == []
    assert mine.recv() == 1
    assert held(store)[0] == ["s"]
    assert subscriber.pop().offset == ROWS + 10
