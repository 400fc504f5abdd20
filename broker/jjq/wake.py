"""Waking whoever waits for records, in this process and in others, within a fraction of a millisecond.

The kernel tells (inotify): an append is a write to the index of the active file, and whoever changes what a partition
consists of rings its `lock` file. Writers do nothing for readers that are not there, and need not know of any. Where
the kernel does not tell (no inotify, no watches left, a store that others write from elsewhere) waiting falls back to
looking again after growing pauses.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from jjq.interrupts import surely

Found = TypeVar("Found")

_MODIFY = 0x00000002
_IGNORED = 0x00008000
_OVERFLOW = 0x00004000
_EVENT = struct.Struct("iIII")
_READ_BYTES = 4 << 10  # some two hundred events; where there are more, the next wait reads on

# Even where the kernel tells, a look now and then: a lost event then costs seconds and not for ever. A look takes 0.15 ms of
# CPU, so with one a second a hundred that wait would keep a core at 1.5 %.
_SAFETY_S = 5.0
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.02
_GROWTH = 1.3
_DAY_S = 86_400.0
_SHARE = 20  # a look may cost at most a twentieth of the pause after it


class _Watcher:
    """One inotify descriptor for all that wait in this process.

    One of the threads that wait reads it, for all; the others wait to be told by that one. Whoever ends its wait hands the
    reading over. So a thread that waits alone is woken by the kernel itself, and not by a thread that had to be woken first.
    """

    def __init__(self) -> None:
        import ctypes

        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._mutex = threading.Lock()
        self._listeners: dict[int, weakref.WeakSet[Listener]] = {}
        self._fd = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0:
            raise OSError("no inotify instance to be had")
        self._interrupts = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        for fd in (self._fd, self._interrupts):
            self._poll.register(fd, select.POLLIN)
        self._led: object = None  # the place of the thread that reads
        self._unread = False  # whether one has left what there is to be read by who listens next
        self._following: dict[object, Listener] = {}  # what threads that wait to be told listen with, by their place
        self._reads_always = False

    def add(self, path: Path, listener: Listener) -> int:
        """The number of the watch, -1 when the kernel has none left or the file is gone."""
        with self._mutex:
            number = int(self._libc.inotify_add_watch(self._fd, os.fsencode(path), _MODIFY))
            if number >= 0:
                self._listeners.setdefault(number, weakref.WeakSet()).add(listener)
            return number

    def remove(self, number: int, listener: Listener) -> None:
        with self._mutex:
            listeners = self._listeners.get(number)
            if listeners is not None:
                listeners.discard(listener)
                if not listeners:
                    del self._listeners[number]
                    self._libc.inotify_rm_watch(self._fd, number)

    def sleep(self, listener: Listener, armed: int, seconds: float) -> bool:
        """`Listener.sleep`, with this thread as the one that reads, or told by it.

        Who waits alone does not even read: it is most likely for it, and it looks first.
        """
        until = time.monotonic() + seconds
        while not listener.woken(armed) and (left := until - time.monotonic()) > 0:
            place = object()
            try:
                with self._mutex:
                    if self._led is None:
                        self._led = place
                    else:
                        self._following[place] = listener
                if self._led is place:
                    if self._read(listener, armed, left):
                        return True
                else:
                    listener.wait(lambda: listener.woken(armed) or self._led is None, left)
            finally:
                try:
                    self._leave(place)
                except BaseException:  # an interrupt amid it: or nobody would read any more
                    surely(self._leave, place)
                    raise
        return listener.woken(armed)

    def _leave(self, place: object) -> None:
        with self._mutex:
            if self._led is place:
                self._led = None
            self._following.pop(place, None)
            # Who came last waits longest: so of a hundred that look now and then, few hand over.
            following = None if self._led else next(reversed(self._following.values()), None)
        if following is not None:
            following.wait_no_more()

    def _read(self, listener: Listener, armed: int, seconds: float) -> bool:
        """Until there is something to tell, whoever it is for, or the listener is woken by its process; True if it was left
        unread."""
        if not listener.ring_when_woken(self._interrupt, armed):
            return False
        try:
            ready = self._poll.poll(seconds * 1000)
        finally:
            listener.ring_no_more(self._interrupt)
        left = False
        for fd, _ in ready:
            if fd == self._interrupts:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(fd)
            elif self._following or not listener.told:  # the last: it reads for coroutines
                self._tell()
            else:
                left = self._unread = True
        return left

    def read_on(self) -> None:
        """Tells of what was left unread."""
        if self._unread:
            self._unread = False
            self._tell()

    def _interrupt(self) -> None:
        os.eventfd_write(self._interrupts, 1)

    def _tell(self) -> None:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:  # somebody else has read it
            return
        woken: set[Listener] = set()
        at = 0
        with self._mutex:
            while at < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                if mask & _OVERFLOW:
                    for listeners in self._listeners.values():
                        woken.update(listeners)
                else:
                    woken.update(self._listeners.get(number, ()))
                if mask & _IGNORED:
                    self._listeners.pop(number, None)
        for listener in woken:
            listener.wake()

    def read_always(self) -> None:
        """Has a thread of its own read, for coroutines: they cannot."""
        with self._mutex:
            begun, self._reads_always = self._reads_always, True
        if not begun:
            threading.Thread(target=self._run, name="jjq-wake", daemon=True).start()

    def _run(self) -> None:
        nobody = Listener(lambda: None)
        while True:
            self.sleep(nobody, 0, _DAY_S)


_watcher: _Watcher | None = None
_watcher_mutex = threading.Lock()


def _get_watcher() -> _Watcher | None:
    global _watcher
    if not sys.platform.startswith("linux"):
        return None
    with _watcher_mutex:
        if _watcher is None:
            with contextlib.suppress(OSError):
                _watcher = _Watcher()
        return _watcher


class Listener:
    """What waiting callers sleep on. `paths` says which files to watch now; it is asked before each sleep."""

    def __init__(self, paths: Callable[[], list[Path] | None]) -> None:
        self._paths = paths
        self._mutex = threading.RLock()  # taken by itself: where a condition takes it, an interrupt may leave it taken
        self._condition = threading.Condition(self._mutex)
        self._wakes = 0
        self._watches: dict[Path, int] = {}
        self._watcher: _Watcher | None = None  # whose they are: in a forked child it is another one, which knows none
        self._closed = False
        self._bells: set[Callable[[], None]] = set()  # of those that sleep elsewhere than in `wait`
        self.told = False  # whether the kernel will tell of everything that matters

    def wake(self) -> None:
        """Ends every sleep that was armed before; from any thread."""
        with self._mutex:
            self._wakes += 1
            self._condition.notify_all()
            for bell in self._bells:
                bell()

    def arm(self) -> int:
        """Begins to listen. What is written from here on ends a sleep with the number returned, so the caller looks once
        more before it."""
        if _watcher is not None:
            _watcher.read_on()
        while True:
            armed = (
                self._wakes
            )  # before it is asked what to watch: what changes that is told by a file, and ends the sleep
            wanted = None if self._closed else self._paths()
            watcher = None if wanted is None else _get_watcher()
            with self._mutex:
                if watcher is None or wanted is None or self._closed:
                    self.told = False
                    return self._wakes
                if watcher is not self._watcher:
                    self._watches.clear()
                    self._watcher = watcher
                for path in [path for path in self._watches if path not in wanted]:
                    watcher.remove(self._watches.pop(path), self)
                more = False
                for path in wanted:
                    if path not in self._watches and (number := watcher.add(path, self)) >= 0:
                        self._watches[path] = number
                        more = True
                self.told = len(self._watches) == len(wanted)
            if not more:  # else it may have changed before these were watched
                return armed

    def sleep(self, armed: int, seconds: float) -> bool:
        """Until something was written since `armed` (True; it may be in other files), or the time is over."""
        watcher = _watcher if self.told else None
        if watcher is not None:
            return watcher.sleep(self, armed, seconds)
        self.wait(lambda: self.woken(armed), seconds)
        return self.woken(armed)

    def woken(self, armed: int) -> bool:
        return self._wakes != armed

    def wait(self, over: Callable[[], bool], seconds: float) -> None:
        """Until `over`, which is asked whenever this listener is woken or told to wait no more."""
        with self._mutex:
            self._condition.wait_for(over, seconds)

    def wait_no_more(self) -> None:
        with self._mutex:
            self._condition.notify_all()

    def ring_when_woken(self, bell: Callable[[], None], armed: int) -> bool:
        """Has `bell` called by each `wake` from here on; False, and it is not, if there was one since `armed`."""
        with self._mutex:
            if self.woken(armed):
                return False
            self._bells.add(bell)
            return True

    def ring_no_more(self, bell: Callable[[], None]) -> None:
        with self._mutex:
            self._bells.discard(bell)

    async def sleep_async(self, armed: int, seconds: float) -> None:
        """`sleep`, of a coroutine."""
        import asyncio  # which whoever runs one has imported, and others would wait for

        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def bell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody sleeps in it
                loop.call_soon_threadsafe(woken.set)

        if self.told and _watcher is not None:
            _watcher.read_always()
        if not self.ring_when_woken(bell, armed):
            return
        # Not asyncio.wait_for: before Python 3.12 it forgets a cancellation that comes together with what it waits for.
        alarm = loop.call_later(seconds, woken.set)
        try:
            await woken.wait()
        finally:
            alarm.cancel()
            self.ring_no_more(bell)

    def close(self) -> None:
        """Ends all sleeps, and listens no more."""
        with self._mutex:
            self._closed = True
            if self._watcher is not None and self._watcher is _watcher:
                for number in self._watches.values():
                    _watcher.remove(number, self)
            self._watches.clear()
        self.wake()


def wait_for(
    look: Callable[[], Found | None], timeout: float | None, listener: Listener,
    longest: Callable[[], float] = lambda: _SAFETY_S,
) -> Found | None:  # fmt: skip
    """Calls `look` until it finds something, `timeout` seconds have passed (None: ever), or it raises.

    `look` reads the state itself and not an event, and it is called between arming and sleeping, so no wake-up can be
    lost. `longest` is asked before each sleep for the seconds after which to look though nothing was told: for what no file
    tells of, such as a time that comes. With `until_found` the one place where jjq waits.
    """
    found = look()
    if found or timeout == 0:
        return found or None
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = _FIRST_PAUSE_S
    armed = listener.arm()
    while True:
        began = time.monotonic()
        found = look()
        if found:
            return found
        now = time.monotonic()
        left = None if deadline is None else deadline - now
        if left is not None and left <= 0:
            return None
        told = listener.told
        rest = min(longest(), _SAFETY_S if told else max(pause, _SHARE * (now - began)))
        woken = listener.sleep(armed, rest if left is None else min(rest, left))
        # Who was woken looks at once: there is most likely something, and arming takes as long as looking.
        if woken and (found := look()):
            return found
        armed = listener.arm()
        pause = min(pause * _GROWTH, _LONGEST_PAUSE_S)


async def until_found(
    look: Callable[[], object], listener: Listener, longest: Callable[[], float] = lambda: _SAFETY_S
) -> None:
    """`wait_for` without a limit, in a coroutine; `look` runs in a thread of the loop's executor.

    Cancelling it does not end a look that has begun. So `look` must leave what it found where the next one finds it.
    """
    import asyncio

    pause = _FIRST_PAUSE_S
    armed = listener.arm()
    while not await asyncio.to_thread(look):
        await listener.sleep_async(armed, min(longest(), _SAFETY_S if listener.told else pause))
        armed = listener.arm()
        pause = min(pause * _GROWTH, _LONGEST_PAUSE_S)


def _after_fork_in_child() -> None:
    """The parent's watcher thread is not here, and its descriptor is shared: begin anew."""
    global _watcher, _watcher_mutex
    _watcher_mutex = threading.Lock()
    _watcher = None


os.register_at_fork(after_in_child=_after_fork_in_child)
