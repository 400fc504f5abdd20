"""Maintenance in the background: one process at a time, not too often, ended with the store."""

import errno
import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

import jjq
from jjq import background, files
from jjq.log.format import BATCH, SYNC, unpack_entries
from jjq.maintenance import Maintenance


@pytest.fixture
def store_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(background, "INTERVAL_S", 0.02)
    return tmp_path / "store"


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "jjq-maintenance"]


def until(condition: Callable[[], bool]) -> None:
    """Waits on the condition itself; the test's own timeout ends what never comes."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.01)


def test_rolled_files_are_compacted_while_the_store_is_used(store_path: Path) -> None:
    with jjq.open(store_path) as store:
        topic = store.create_topic("t", segment_rows=10)
        for i in range(25):
            topic.push(str(i))
        until(lambda: topic.segments()[0].state == "sealed")
        assert store.verify().ok
        assert topic.read().read_all().column("value").to_pylist() == [str(i).encode() for i in range(25)]
        until(lambda: background.last_turn(store) is not None)  # which is noted at the end of a turn
        last = background.last_turn(store)
        assert last is not None
        assert last["pid"] > 0
    assert threads() == []


def test_it_can_be_left_out(store_path: Path) -> None:
    with jjq.open(store_path, maintenance=False):
        assert threads() == []


def test_a_store_opens_where_no_thread_can_begin(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Python 3.12 once the main thread has ended."""

    def cannot(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot)
        with jjq.open(store_path) as store:
            store.create_topic("t").push(b"v")
    with jjq.open(store_path) as store:
        assert store.topic("t").read().read_all().column("value").to_pylist() == [b"v"]


def test_a_read_only_store_has_none(store_path: Path) -> None:
    jjq.open(store_path).close()
    with jjq.open(store_path, read_only=True):
        assert threads() == []


def test_a_turn_waits_for_its_time_whoever_did_the_last(tmp_path: Path) -> None:
    with jjq.open(tmp_path / "store", maintenance=False) as one, jjq.open(one.path, maintenance=False) as two:
        first, second = background.Caretaker(one), background.Caretaker(two)
        assert first.turn(one)
        assert not second.turn(two)
        first.stop()
        second.stop()


def test_a_forgotten_store_is_not_kept_alive(store_path: Path) -> None:
    store = jjq.open(store_path)
    gone = weakref.ref(store)
    (thread,) = threads()
    store.close()
    del store
    gc.collect()
    thread.join(30)
    assert gone() is None


def test_a_store_closed_in_the_middle_of_a_turn_is_no_fault_of_it(store_path: Path) -> None:
    store = jjq.open(store_path, maintenance=False)
    with Maintenance(store) as work:
        store.close()
        with pytest.raises(jjq.StoreClosed):
            work.run()
        assert work.report.errors == []


def test_a_clock_that_is_set_back_holds_no_turn_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = background.now_us()
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        caretaker = background.Caretaker(store)
        try:
            monkeypatch.setattr(background, "now_us", lambda: now + 5 * 3_600_000_000)
            assert caretaker.turn(store)
            monkeypatch.setattr(background, "now_us", lambda: now)
            assert caretaker.turn(store)
            last = background.last_turn(store)
            assert last is not None
            assert (last["at"], last["thorough_at"]) == (now, now)
            assert not caretaker.turn(store)
        finally:
            caretaker.stop()


def test_a_partition_is_synced_when_its_own_interval_is_over(tmp_path: Path) -> None:
    def last_entry(topic: jjq.Topic) -> int:
        (index,) = topic.directory(0).glob("*.index")
        return unpack_entries(index.read_bytes())[-1].kind

    pause = threading.Event()
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        slow = store.create_topic("slow", sync="interval", sync_interval_ms=3_600_000)
        fast = store.create_topic("fast", sync="interval", sync_interval_ms=1)
        slow.push(b"v")
        fast.push(b"v")
        while last_entry(fast) != SYNC:
            pause.wait(0.01)
        assert last_entry(slow) == BATCH


def test_a_sync_in_the_background_that_fails_is_said_and_others_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, failures = files.datasync, iter([True])

    def failing(fd: int) -> None:
        if threading.current_thread().name == "jjq-sync" and next(failures, False):
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    pause = threading.Event()
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t", sync="interval", sync_interval_ms=1)
        monkeypatch.setattr(files, "datasync", failing)
        topic.push(b"taken back")
        while "may be lost" not in caplog.text:
            pause.wait(0.01)
        assert str(topic.directory(0)) in caplog.text
        assert topic.push(b"v").offset == 0
        assert topic.offsets()[0].lineage == 1
        assert store.verify().ok
