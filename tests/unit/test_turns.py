"""Taking a lock in turn: who waits comes before who has just let go."""

from __future__ import annotations

import fcntl
import inspect
import os
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from jjq import files

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
        files.unlock(other)

    for _ in range(200):
        files.lock_in_turn(mine)
        waiting = threading.Thread(target=once)
        waiting.start()
        wait_until_somebody_waits(path)
        files.unlock(mine)
        files.lock_in_turn(mine)
        order.append("who let go")
        files.unlock(mine)
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
    files.unlock(mine)
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
        files.unlock(mine)
        fcntl.fcntl(other, fcntl.F_OFD_SETLK, files._TAKE)  # raises if the turn is taken
        files.close(mine)
        files.close(other)
    assert interrupted >= 3


def test_without_such_locks_it_is_a_lock_all_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_TURN", None)
    mine, other = files.open_rw(path), files.open_rw(path)
    files.lock_in_turn(mine)
    assert not files.lock(other, wait=False)
    files.unlock(mine)
    assert files.lock(other, wait=False)
    files.close(mine)
    files.close(other)
