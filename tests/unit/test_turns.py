"""Taking a lock in turn: who waits comes before who has just let go."""

from __future__ import annotations

import fcntl
import inspect
import os
import re
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq import files
from jjq.catalog.sqlite import SqliteDriver
from jjq.cursors import ConsumerLock
from jjq.log.partition import PartitionLog
from jjq.maintenance import Maintenance
from tests.tracing import traced

PROBE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)

WAITS = (
    "import sys; from pathlib import Path; from jjq import files; files.lock_in_turn(files.open_rw(Path(sys.argv[1])))"
)


def somebody_waits(path: Path) -> bool:
    """Whether the turn is taken: somebody stands in front of the lock."""
    fd = files.open_rw(path)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, PROBE)
    except BlockingIOError:
        return True
    finally:
        files.close(fd)
    return False


@pytest.fixture
def path(tmp_path: Path) -> Path:
    files.close(files.open_lock(tmp_path / "lock"))
    return tmp_path / "lock"


def wait_until_somebody_waits(path: Path) -> None:
    while not somebody_waits(path):
        os.sched_yield()


@pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLKW"), reason="the system has no such locks, so there are no turns")
def test_who_waits_comes_before_who_has_just_let_go(path: Path) -> None:
    mine, other = files.open_rw(path), files.open_rw(path)
    order: list[str] = []

    def once() -> None:
        files.lock_in_turn(other)
        order.append("who waited")
        files.set_lock(other, files.FREE)

    for _ in range(200):
        files.lock_in_turn(mine)
        waiting = threading.Thread(target=once)
        waiting.start()
        wait_until_somebody_waits(path)
        files.set_lock(mine, files.FREE)
        files.lock_in_turn(mine)
        order.append("who let go")
        files.set_lock(mine, files.FREE)
        waiting.join()
    assert order == ["who waited", "who let go"] * 200
    files.close(mine)
    files.close(other)


@pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLKW"), reason="the system has no such locks, so there are no turns")
def test_a_turn_ends_with_the_process_that_had_it(path: Path) -> None:
    mine = files.open_rw(path)
    files.lock_in_turn(mine)
    child = subprocess.Popen([sys.executable, "-c", WAITS, str(path)])
    wait_until_somebody_waits(path)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    files.set_lock(mine, files.FREE)
    files.lock_in_turn(mine)
    assert not somebody_waits(path)
    files.close(mine)


@pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLKW"), reason="the system has no such locks, so there are no turns")
def test_an_interrupt_before_the_lock_leaves_no_turn(path: Path) -> None:
    """At each line up to that which locks, as Ctrl-C may come at any."""
    lines, first = inspect.getsourcelines(files.lock_in_turn)
    last = first + max(number for number, line in enumerate(lines) if "fcntl.flock(" in line)
    interrupted = 0
    for at in range(first + 1, last + 1):

        def interrupt(frame: FrameType, event: str, _: object, at: int = at) -> Any:
            if frame.f_code is files.lock_in_turn.__code__ and event == "line" and frame.f_lineno == at:
                sys.settrace(None)
                raise KeyboardInterrupt
            return interrupt

        mine, other = files.open_rw(path), files.open_rw(path)
        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            files.lock_in_turn(mine)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(before)
        files.set_lock(mine, files.FREE)
        fcntl.fcntl(other, fcntl.F_OFD_SETLK, files._FRONT)  # raises if the turn is taken
        files.close(mine)
        files.close(other)
    assert interrupted >= 3


def test_without_such_locks_it_is_a_lock_all_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "TURNS", False)
    mine, other = files.open_rw(path), files.open_rw(path)
    files.lock_in_turn(mine)
    assert not files.lock(other, wait=False)
    files.set_lock(mine, files.FREE)
    assert files.lock(other, wait=False)
    files.close(mine)
    files.close(other)


OPERATIONS: tuple[tuple[Any, Callable[[jjq.Topic], object], str], ...] = (
    (PartitionLog._write_value, lambda topic: topic.push(b"a"), "topics/{id}/0/lock"),
    (PartitionLog._lock_or_ask, lambda topic: topic.push(b"a"), "topics/{id}/0/lock"),
    (PartitionLog._write, lambda topic: topic.push("a", headers={"h": b"1"}), "topics/{id}/0/lock"),
    (PartitionLog.exclusive, lambda topic: topic.push_table(pa.table({"value": ["a"]}), writer_id="w", batch_id=1),
     "topics/{id}/0/lock"),
    (SqliteDriver._begin_alone, lambda topic: topic.pause(), "catalog.lock"),
    (SqliteDriver._begin_alone, lambda topic: topic._store.subscriber("s").pop(), "catalog.lock"),
    (Maintenance.__enter__, lambda topic: topic._store.maintain(), "maintenance.lock"),
    (ConsumerLock.__init__, lambda topic: topic._store.subscriber("s").poll(), "subscribers/{subscriber}.lock"),
)  # fmt: skip


@pytest.mark.parametrize(("function", "act", "where"), OPERATIONS, ids=lambda each: getattr(each, "__qualname__", ""))
def test_an_interrupt_right_after_a_lock_leaves_it_free(
    function: Any, act: Callable[[jjq.Topic], object], where: str, tmp_path: Path
) -> None:  # fmt: skip
    code = inspect.unwrap(function).__code__
    lines, first = inspect.getsourcelines(inspect.unwrap(function))
    locking = [
        first + number for number, line in enumerate(lines) if re.search(r"\.(lock|_lock|try_turn)\(|EXCLUSIVE", line)
    ]
    assert locking
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t", sync="none" if function is PartitionLog._write_value else "always")
        topic.push("first")
        store.create_subscriber("t", "s")
        assert interrupted(code, locking, lambda: act(topic))
        path = store.path / where.format(id=topic.id, subscriber=store.subscriber("s").id)
        other = files.open_rw(path)
        assert files.lock(other, wait=False)
        files.close(other)
        act(topic)


@pytest.mark.parametrize(
    ("function", "act"),
    [(SqliteDriver.write, lambda topic: topic.empty()), (SqliteDriver.snapshot, lambda topic: topic.read())],
    ids=["write", "snapshot"],
)
def test_an_interrupt_right_after_a_transaction_has_begun_ends_it(
    function: Any, act: Callable[[jjq.Topic], object], tmp_path: Path
) -> None:  # fmt: skip
    """Else no other process could write, and this one neither write nor see what others have written."""
    lines, first = inspect.getsourcelines(inspect.unwrap(function))
    beginning = [first + number for number, line in enumerate(lines) if 'execute("BEGIN' in line]
    with jjq.open(tmp_path / "store", maintenance=False) as store, jjq.open(tmp_path / "store") as other:
        topic = store.create_topic("t")
        topic.push("first")
        assert interrupted(inspect.unwrap(function).__code__, beginning, lambda: act(topic))
        other.create_topic("meanwhile")
        assert [each.name for each in store.topics()] == ["meanwhile", "t"]
        act(topic)
        topic.pause()


def interrupted(code: CodeType, lines: list[int], act: Callable[[], object], end: int | None = None) -> bool:
    """Whether Ctrl-C came at the line after one of these, before `end`."""
    last = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal last
        if frame.f_code is code and event == "line":
            # Back at a `with`, and in what tidies up, there is no moment for it.
            if last in lines and (end is None or last < frame.f_lineno < end):
                sys.settrace(None)
                raise KeyboardInterrupt
            last = frame.f_lineno
        return trace

    return traced(act, trace)


INTERRUPTED_PUSHES = (PartitionLog.append, PartitionLog.append_value, PartitionLog._lead, PartitionLog._take_queue)


@pytest.mark.parametrize("function", INTERRUPTED_PUSHES, ids=lambda each: each.__name__)
def test_an_interrupt_of_a_push_holds_up_no_other_thread(function: Any, tmp_path: Path) -> None:
    """At each line of those that decide who writes, but those that tidy up."""
    code = function.__code__
    lines, first = inspect.getsourcelines(function)
    headers = None if function is PartitionLog.append_value else {"h": b"1"}
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t", sync="none")
        tidying = [first + number for number, line in enumerate(lines) if re.match(r" *(except|finally)\b", line)]
        end = min(tidying, default=first + len(lines))
        count = 0
        for line in range(first, end):
            count += interrupted(code, [line], lambda: topic.push(b"a", headers=headers), end)
            pushing = threading.Thread(target=topic.push, args=("b",), daemon=True)
            pushing.start()
            pushing.join(30)
            assert not pushing.is_alive()
        assert count >= 3
