"""Waiting: woken by a write to a file, by a call, or by nothing; never busy, never asleep over what was written."""

import asyncio
import os
import queue
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from jjq import wake
from jjq.wake import Listener, wait_for


@pytest.fixture
def bell(tmp_path: Path) -> Path:
    path = tmp_path / "bell"
    path.touch()
    return path


def test_a_wait_looks_again_when_it_is_woken_and_returns_what_it_finds(bell: Path) -> None:
    listener = Listener(lambda: [bell])
    looks: list[int] = []

    def look() -> str | None:
        looks.append(1)
        listener.wake()  # as if something was written right after this look
        return "found" if len(looks) == 4 else None

    assert wait_for(look, None, listener) == "found"


def test_without_time_a_wait_looks_once() -> None:
    looks: list[int] = []
    assert wait_for(lambda: looks.append(1), 0, Listener(lambda: None)) is None
    assert len(looks) == 1


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process in which nothing else waits: no thread of another test reads, and none has left anything unread."""
    monkeypatch.setattr(wake, "_watcher", None)
    yield
    if wake._watcher is not None:
        for fd in (wake._watcher._fd, wake._watcher._interrupts):
            os.close(fd)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("watched", "most"), [(True, 4), (False, 34)])
def test_a_wait_is_no_busy_loop(bell: Path, watched: bool, most: int) -> None:
    # Unwatched: 14 pauses that grow to 20 ms, and 0.3 s of those.
    looks: list[int] = []
    assert wait_for(lambda: looks.append(1), 0.3, Listener(lambda: [bell] if watched else None)) is None
    assert len(looks) <= most


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")
def test_a_write_by_another_process_ends_a_sleep(bell: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "_SAFETY_S", 60.0)  # so that only the kernel's word can end it in time
    listener = Listener(lambda: [bell])
    armed = listener.arm()
    assert listener.told
    code = "import sys, os; fd = os.open(sys.argv[1], os.O_WRONLY); os.pwrite(fd, b'x', 0)"
    subprocess.run([sys.executable, "-c", code, str(bell)], check=True)
    listener.sleep(armed, 30)
    assert listener.arm() > armed
    listener.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")
def test_what_comes_to_be_watched_while_it_begins_to_listen_is_watched(bell: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch()
    answers = [[bell], [bell, other]]
    listener = Listener(lambda: answers.pop(0) if len(answers) > 1 else answers[0])
    armed = listener.arm()
    other.write_bytes(b"x")
    assert listener.sleep(armed, 60)
    listener.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")
def test_a_listener_that_listened_before_a_fork_listens_in_the_child(bell: Path) -> None:
    listener = Listener(lambda: [bell])
    listener.arm()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: pyarrow's allocator has one
        child = os.fork()
    if not child:
        try:
            armed = listener.arm()
            bell.write_bytes(b"x")
            os._exit(not listener.sleep(armed, 30))
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    listener.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")
def test_what_is_written_while_it_is_asked_what_to_watch_ends_the_sleep(bell: Path) -> None:
    """It may say that there is more to be watched, which the answer has not."""
    told = threading.Event()

    def paths() -> list[Path]:
        if told.is_set():
            heard = bystander.arm()
            bell.write_bytes(b"x")
            assert bystander.sleep(heard, 60)
        return [bell]

    listener, bystander = Listener(paths), Listener(lambda: [bell])
    listener.arm()
    told.set()
    assert listener.sleep(listener.arm(), 60)
    for each in (listener, bystander):
        each.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("first", ["one that is woken", "one whose time is over"])
def test_whoever_waits_on_is_woken_though_the_one_that_read_for_all_has_left(
    tmp_path: Path, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "_SAFETY_S", 60.0)  # so that only the kernel's word can end a wait in time
    bells = [tmp_path / str(i) for i in range(4)]
    for bell in bells:
        bell.touch()
    listeners = [Listener(lambda bell=bell: [bell]) for bell in bells]
    ended: queue.Queue[tuple[int, bool]] = queue.Queue()

    def wait(number: int, seconds: float) -> None:
        """Until its own bell was rung: of others' it may be woken, too."""
        found = wait_for(lambda: bells[number].stat().st_size, seconds, listeners[number])
        ended.put((number, bool(found)))

    watcher, pause = wake._get_watcher(), threading.Event()
    assert watcher is not None
    short = first == "one whose time is over"
    waiters = [threading.Thread(target=wait, args=(i, 0.05 if short and not i else 60)) for i in range(4)]
    for waiter in waiters:
        waiter.start()
    if short:
        assert ended.get(timeout=30) == (0, False)
    while not watcher._led or len(watcher._following) != (2 if short else 3):  # one reads, the others are to be told
        pause.wait(0.001)
    for number in range(1 if short else 0, 4):
        bells[number].write_bytes(b"x")
        assert ended.get(timeout=30) == (number, True)
    for waiter in waiters:
        waiter.join()
    for listener in listeners:
        listener.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")
def test_threads_and_coroutines_are_woken_side_by_side(tmp_path: Path) -> None:
    bells = [tmp_path / "thread", tmp_path / "coroutine"]
    for bell in bells:
        bell.touch()
    of_thread, of_coroutine = (Listener(lambda bell=bell: [bell]) for bell in bells)

    async def both() -> None:
        for _ in range(3):
            thread = asyncio.create_task(asyncio.to_thread(of_thread.sleep, of_thread.arm(), 60))
            coroutine = asyncio.create_task(of_coroutine.sleep_async(of_coroutine.arm(), 60))
            await asyncio.sleep(0)
            bells[1].write_bytes(b"x")
            await asyncio.wait_for(coroutine, 30)
            bells[0].write_bytes(b"x")
            assert await asyncio.wait_for(thread, 30)

    asyncio.run(both())
    for listener in (of_thread, of_coroutine):
        listener.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")
@pytest.mark.usefixtures("alone")
def test_what_who_waits_alone_has_not_read_is_told_when_it_listens_again(tmp_path: Path) -> None:
    bells = [tmp_path / "mine", tmp_path / "other"]
    for bell in bells:
        bell.touch()
    mine, other = (Listener(lambda bell=bell: [bell]) for bell in bells)
    armed, heard = mine.arm(), other.arm()
    for bell in bells:
        bell.write_bytes(b"x")
    assert mine.sleep(armed, 60)
    assert not other.woken(heard)  # nobody waits with it, so it can be told later
    armed = mine.arm()
    assert other.woken(heard)
    assert not mine.sleep(armed, 0.05)
    bells[0].write_bytes(b"y")
    assert mine.sleep(armed, 60)
    armed = other.arm()
    assert not other.sleep(armed, 0.05)
    for each in (mine, other):
        each.close()


def test_a_file_that_cannot_be_watched_is_looked_at_instead(tmp_path: Path) -> None:
    listener = Listener(lambda: [tmp_path / "not-there"])
    listener.arm()
    assert not listener.told


def test_closing_ends_every_sleep(bell: Path) -> None:
    listener = Listener(lambda: [bell])
    armed = listener.arm()
    sleepers = [threading.Thread(target=listener.sleep, args=(armed, 60)) for _ in range(3)]
    for sleeper in sleepers:
        sleeper.start()
    listener.close()
    for sleeper in sleepers:
        sleeper.join(30)
        assert not sleeper.is_alive()
    assert listener.arm() >= armed
    assert not listener.told
