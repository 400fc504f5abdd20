"""Ctrl-C in a thread that pushes or waits for others, as it tells them and hands on: none of them is left waiting, in no process."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import linecache
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq import files, wake
from jjq.batch import Batch
from jjq.catalog import sqlite
from jjq.log.active import ActiveFile
from jjq.log.partition import PartitionLog
from jjq.log.sealed import SealedWriter
from jjq.log.stream import StreamReader
from jjq.producer import Producer
from jjq.staging import Stage, _PartitionStage
from jjq.wake import Listener, wait_for
from tests.stores import roll
from tests.tracing import at_first, traced

ENDINGS = (PartitionLog._tell, PartitionLog._leave)


def places(*functions: Any) -> list[tuple[CodeType, int]]:
    """Where each of these begins, and each of its lines."""
    return [
        (function.__code__, line)
        for function in functions
        for line in sorted({at for *_, at in function.__code__.co_lines() if at})
    ]


def named(value: object) -> str:
    return getattr(value, "co_name", None) or str(value)


def is_interrupted(act: Callable[[], object], code: CodeType, line: int) -> bool:
    """Does it with an interrupt at that line; whether it came there."""
    return traced(act, at_first(code, line))


@pytest.mark.parametrize(("code", "line"), places(*ENDINGS), ids=named)
def test_others_go_on_after_an_interrupt(
    code: CodeType, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t")
        topic.push(b"first")
        log, real = store.logs[topic.id, 0], files.datasync
        leading, following, pause = threading.Event(), threading.Event(), threading.Event()

        def until_queued(count: int) -> None:
            while len(log._queue) < count:
                pause.wait(0.001)

        def wait_for_others(fd: int) -> None:
            if not leading.is_set():
                leading.set()
                until_queued(2)
            elif not following.is_set():
                following.set()
                until_queued(1)
            real(fd)

        def push_after_main() -> None:
            until_queued(1)
            try:
                topic.push(b"other")
            except jjq.StoreError as error:
                assert "may be there" in str(error)  # noqa: PT017 - of another thread

        def push_last() -> None:
            following.wait(30)
            topic.push(b"follows")

        monkeypatch.setattr(files, "datasync", wait_for_others)
        others = [threading.Thread(target=topic.push, args=(b"leads",), daemon=True)]
        others += [threading.Thread(target=each, daemon=True) for each in (push_after_main, push_last)]
        others[0].start()
        assert leading.wait(30)
        for each in others[1:]:
            each.start()
        # It leads after the first one, for itself and the other, and hands on to the last.
        interrupted = is_interrupted(lambda: topic.push(b"main"), code, line)
        for each in others:
            each.join(30)
        assert not any(each.is_alive() for each in others)
        # Who was written for has nothing to remove.
        assert interrupted or "remove" in linecache.getline(code.co_filename, line)
        fd = files.open_rw(topic.directory(0) / "lock")
        assert files.lock(fd, wait=False)
        files.close(fd)
        assert topic.push(b"last").offset == 5
        assert sorted(topic.read().read_all()["value"].to_pylist()) == sorted(
            [b"first", b"leads", b"main", b"other", b"follows", b"last"]
        )


class Pressed:
    """A lock that this thread waits for until Ctrl-C comes, the first few times."""

    def __init__(self, lock: Any, times: int) -> None:
        self._lock, self.times, self._thread = lock, times, threading.current_thread()

    def __enter__(self) -> object:
        if self.times and threading.current_thread() is self._thread:
            self.times -= 1
            raise KeyboardInterrupt
        return self._lock.__enter__()

    def __exit__(self, *raised: object) -> None:
        self._lock.__exit__(*raised)


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("keys", [None, [b"k"]], ids=["value", "keyed"])
def test_others_go_on_though_ctrl_c_comes_several_times(
    keys: list[bytes] | None, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Amid the sync, and again as the thread that leads wants to hand over."""
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t")
        topic.push(b"first")
        log, real, pause = store.logs[topic.id, 0], files.datasync, threading.Event()
        leading, interrupted = threading.Event(), threading.Event()
        told: dict[bytes, object] = {}

        def push(value: bytes) -> None:
            try:
                told[value] = topic.push_many([value], keys=keys)[0].offset
            except (jjq.StoreError, KeyboardInterrupt) as error:
                told[value] = str(error)

        def until_queued(count: int) -> None:
            while len(log._queue) < count:
                pause.wait(0.001)

        def sync(fd: int) -> None:
            if not leading.is_set():
                leading.set()
                until_queued(2)
            elif threading.current_thread() is threading.main_thread() and not interrupted.is_set():
                interrupted.set()
                until_queued(1)
                log._queue_lock = Pressed(log._queue_lock, times)  # type: ignore[assignment]
                raise KeyboardInterrupt
            real(fd)

        def push_other() -> None:
            until_queued(1)
            push(b"other")
            assert interrupted.is_set()

        def push_last() -> None:
            interrupted.wait(30)
            push(b"last")

        monkeypatch.setattr(files, "datasync", sync)
        others = [threading.Thread(target=push, args=(b"leads",), daemon=True)]
        others += [threading.Thread(target=each, daemon=True) for each in (push_other, push_last)]
        others[0].start()
        assert leading.wait(30)
        for each in others[1:]:
            each.start()
        push(b"main")
        for each in others:
            each.join(30)
        assert not any(each.is_alive() for each in others)
        assert told[b"main"] == ""
        assert "may be there" in str(told[b"other"])
        values = topic.read().read_all()["value"].to_pylist()
        assert [values[int(str(told[each]))] for each in (b"leads", b"last")] == [b"leads", b"last"]


def noted_closing() -> tuple[Callable[[int], None], list[int]]:
    """What closes files, and the list of those that it found closed."""
    real, again = files.close, []

    def close(fd: int) -> None:
        try:
            real(fd)
        except OSError:
            again.append(fd)
            raise

    return close, again


@pytest.mark.parametrize(
    ("code", "line"), places(PartitionLog.forget_active, ActiveFile.close_descriptors, StreamReader.close), ids=named
)
def test_after_an_interrupt_nobody_uses_or_closes_again_a_file_that_was_closed(
    code: CodeType, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, again = noted_closing()
    with jjq.open(tmp_path, maintenance=False) as store, jjq.open(tmp_path, maintenance=False) as other:
        topic = store.create_topic("t")
        topic.push(b"first")
        assert topic.offsets()[0].end == 1
        roll(other, "t")
        monkeypatch.setattr(files, "close", close)
        # Both meet a file that has been closed.
        assert is_interrupted(lambda: (topic.push(b"second"), topic.offsets()), code, line)
        topic.push(b"third")
        assert topic.offsets()[0].end == topic.read().read_all().num_rows
        assert topic.read().read_all()["value"].to_pylist() in ([b"first", b"third"], [b"first", b"second", b"third"])
    assert not again


@pytest.mark.parametrize(
    ("code", "line"), places(SealedWriter.finish, SealedWriter.abandon, SealedWriter._close), ids=named
)
def test_an_interrupt_as_a_staged_file_is_closed_leaves_none_and_closes_none_again(
    code: CodeType, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, again = noted_closing()
    with jjq.open(tmp_path, maintenance=False) as store:
        topic = store.create_topic("t")
        monkeypatch.setattr(files, "close", close)
        use = Stage.abandon if code is SealedWriter.abandon.__code__ else Stage.finish
        with store.stage() as stage:
            stage.write("t", pa.table({"value": [bytes(1000)] * 5000}))  # as much as is written before the end
            assert is_interrupted(lambda: use(stage), code, line)
            stage.abandon()
        assert [path.name for path in topic.directory(0).iterdir() if path.name != "lock"] == []
    assert not again


@pytest.mark.parametrize(("code", "line"), places(_PartitionStage._end), ids=named)
def test_an_interrupt_as_a_full_file_is_listed_has_it_removed_once(
    code: CodeType, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the partition whose file it is, or with those that are listed."""
    real, removed = files.unlink, []

    def unlink(path: Path) -> None:
        removed.append(path.name)
        real(path)

    with jjq.open(tmp_path, maintenance=False) as store:
        topic = store.create_topic("t", segment_bytes=1 << 20)
        monkeypatch.setattr(files, "unlink", unlink)
        with store.stage() as stage:
            data = pa.table({"value": [bytes(1000)] * 5000})
            assert is_interrupted(lambda: stage.write("t", data), code, line)
        assert [path.name for path in topic.directory(0).iterdir() if path.name != "lock"] == []
    assert len(removed) == len(set(removed)) == 2, removed  # the file and its note


@pytest.mark.parametrize(("code", "line"), places(PartitionLog._named_locked), ids=named)
def test_after_an_interrupt_in_a_commit_pushes_go_on(code: CodeType, line: int, tmp_path: Path) -> None:
    with jjq.open(tmp_path, maintenance=False) as store, jjq.open(tmp_path, maintenance=False) as other:
        topic = store.create_topic("t")
        topic.push(b"first")
        roll(other, "t")
        second = pa.table({"value": [b"second"]})
        assert is_interrupted(lambda: topic.push_table(second, writer_id="w", batch_id=1), code, line)
        topic.push(b"third")
        assert topic.read().read_all()["value"].to_pylist() == [b"first", b"third"]


@pytest.mark.parametrize("begun", [False, True], ids=["first", "next"])
@pytest.mark.parametrize(
    ("code", "line"), places(Producer.push, Producer._add_locked, Batch.add, threading.Thread.start), ids=named
)
def test_after_an_interrupt_a_producer_writes_what_it_has_taken(
    code: CodeType, line: int, begun: bool, tmp_path: Path
) -> None:
    with jjq.open(tmp_path, maintenance=False) as store:
        topic = store.create_topic("t")
        with store.producer(linger_ms=60_000) as producer:
            if begun:
                producer.push("t", b"first", key=b"first", headers={"is": b"first"})
            is_interrupted(lambda: producer.push("t", b"second", key=b"second", headers={"is": b"second"}), code, line)
            producer.push("t", b"third", key=b"third", headers={"is": b"third"})
            producer.flush(30)
        rows = topic.read(metadata=["_key", "_headers"]).read_all().to_pylist()
    assert [row["value"] for row in rows if row["value"] != b"second"] == [b"first", b"third"][not begun :]
    assert all(row["_key"] == row["value"] == row["_headers"][0]["value"] for row in rows)


def test_wherever_a_push_that_waits_for_room_is_interrupted_others_go_on(tmp_path: Path) -> None:
    """As a condition takes its lock again, for one: it would let go one that another thread has."""

    def at_call(number: int) -> Callable[[FrameType, str, Any], Any]:
        left = itertools.count(number, -1)

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if frame.f_code.co_filename in (threading.__file__, producer_file) and next(left) == 0:
                raise KeyboardInterrupt

        return trace

    producer_file, others = Producer.push.__code__.co_filename, []
    with jjq.open(tmp_path, maintenance=False) as store:
        store.create_topic("t")
        numbers, interrupted = itertools.count(), True
        while interrupted:
            with store.producer(linger_ms=60_000, window=1) as producer:
                producer.push("t", b"first", key=b"k")
                interrupted = traced(lambda: producer.push("t", b"second", key=b"k"), at_call(number := next(numbers)))
                others.append(threading.Thread(target=producer.push, args=("t", b"third"), daemon=True))
                others[-1].start()
                others[-1].join(30)
                assert not others[-1].is_alive(), number
        values = store.topic("t").read().read_all()["value"].to_pylist()
    assert number > 3
    assert (values.count(b"first"), values.count(b"third")) == (number + 1, number + 1)


def push_in_background(store: jjq.Store) -> None:
    with store.producer(linger_ms=0) as producer:
        producer.push("t", b"value").result(30)


USES: dict[str, Callable[[jjq.Store], Callable[[], object]]] = {
    "producer": lambda store: functools.partial(push_in_background, store),
    "push": lambda store: functools.partial(store.topic("t").push, b"value"),
    "wait": lambda store: functools.partial(store.subscriber("s").pop, timeout=0.001),
}


@pytest.mark.parametrize("use", USES)
def test_an_interrupt_as_a_lock_is_taken_leaves_none_locked(use: str, tmp_path: Path) -> None:
    """A condition takes its lock in Python, where an interrupt may come behind it."""
    enter = threading.Condition.__enter__.__code__

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is enter and event == "return" and frame.f_back and "jjq" in frame.f_back.f_code.co_filename:
            raise KeyboardInterrupt
        return trace

    with jjq.open(tmp_path, maintenance=False) as store:
        store.create_topic("t", sync="interval", sync_interval_ms=3_600_000)
        store.create_subscriber("t", "s", start="latest")
        act = USES[use](store)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                act()
        finally:
            sys.settrace(before)
        again = threading.Thread(target=act, daemon=True)
        again.start()
        again.join(30)
        assert not again.is_alive()


WRITES: dict[str, Callable[[jjq.Store, int], object]] = {
    "catalog": lambda store, n: store.create_subscriber("t", f"s{n}"),
    "push": lambda store, n: store.topic("t").push(b"value"),
    "writer": lambda store, n: store.topic("t").push_table(pa.table({"value": [b"v"]}), writer_id="w", batch_id=n),
}


@pytest.mark.parametrize("write", WRITES)
def test_wherever_a_function_is_interrupted_as_it_begins_no_file_stays_locked(write: str, tmp_path: Path) -> None:
    def at_call(number: int) -> Callable[[FrameType, str, Any], Any]:
        left = itertools.count(number, -1)

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if "jjq" in frame.f_code.co_filename and next(left) == 0:
                raise KeyboardInterrupt

        return trace

    with jjq.open(tmp_path, maintenance=False) as store:
        topic = store.create_topic("t")
        topic.push(b"first")
        locks = [files.open_rw(path) for path in (tmp_path / "catalog.lock", topic.directory(0) / "lock")]
        numbers = itertools.count()
        while traced(lambda: WRITES[write](store, n), at_call(n := next(numbers))):
            for fd in locks:
                assert files.lock(fd, wait=False), n
                files.set_lock(fd, files.FREE)
        assert n > 10
        for fd in locks:
            files.close(fd)


def test_an_interrupt_as_the_catalog_is_opened_again_leaves_one_that_can_be_used(tmp_path: Path) -> None:
    def at_line(number: int) -> Callable[[FrameType, str, Any], Any]:
        left = itertools.count(number, -1)

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line" and next(left) == 0:
                raise KeyboardInterrupt
            return trace if frame.f_code.co_filename in (sqlite.__file__, contextlib.__file__) else None

        return trace

    with jjq.open(tmp_path, maintenance=False) as store:
        driver, numbers = store.catalog.driver, itertools.count()
        assert isinstance(driver, sqlite.SqliteDriver)
        driver.before_fork()
        with warnings.catch_warnings():
            # What was just opened when the interrupt came is closed with its traceback, which Python 3.13 remarks on.
            warnings.simplefilter("ignore", ResourceWarning)
            while traced(lambda: len(store.topics()), at_line(n := next(numbers))):
                assert store.topics() == []
                driver.before_fork()  # as at each fork
            gc.collect()
        assert n > 30


def test_an_interrupt_as_a_single_statement_ends_leaves_no_lock_with_its_traceback(tmp_path: Path) -> None:
    leaves = contextlib._GeneratorContextManager.__exit__.__code__

    def at_exit(number: int) -> Callable[[FrameType, str, Any], Any]:
        left = itertools.count(number, -1)

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if (
                frame.f_code is leaves
                and frame.f_back
                and "sqlite" in frame.f_back.f_code.co_filename
                and next(left) == 0
            ):
                raise KeyboardInterrupt

        return trace

    with jjq.open(tmp_path, maintenance=False) as store:
        lock, held = files.open_rw(tmp_path / "catalog.lock"), []
        values = {"writer_id": "w", "batch_id": 1, "run": "r"}

        def run() -> None:
            try:
                store.catalog.driver.run("claim_writer_batch", durable=True, **values)
            except KeyboardInterrupt as error:
                held.append(error)
                raise

        while traced(run, at_exit(len(held))):
            assert files.lock(lock, wait=False)
            files.set_lock(lock, files.FREE)
        assert held
        files.close(lock)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")
@pytest.mark.parametrize("led", [True, False], ids=["leads", "follows"])
def test_after_an_interrupt_somebody_reads_what_the_kernel_tells(
    led: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "_watcher", None)  # one that no thread of another test reads
    bell = tmp_path / "bell"
    bell.touch()
    listener = Listener(lambda: [bell])
    assert wait_for(lambda: None, 0.001, listener) is None
    watcher = wake._get_watcher()
    assert watcher is not None
    interrupted = 0
    for code, line in places(wake._Watcher._leave):
        other = None if led else object()
        watcher._led = other
        interrupted += is_interrupted(lambda: wait_for(lambda: None, 0.001, listener), code, line)
        assert watcher._led is other
        assert not watcher._following
        watcher._led = None
    assert interrupted >= 3
