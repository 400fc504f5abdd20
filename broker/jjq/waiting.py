"""Waiting for records that another thread or process will append."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

_FIRST_PAUSE_S = 0.0005  # an answer to what was just pushed comes within this, mostly
_LONGEST_PAUSE_S = 0.02
_GROWTH = 1.3
_SHARE = 20  # a look may cost at most a twentieth of the pause after it, so that waiting costs 5 % of a core at most


def wait_for(look: Callable[[], Found | None], timeout: float | None, stop: threading.Event) -> Found | None:
    """Calls `look` until it finds something, `timeout` seconds have passed (None: ever), or it raises.

    `look` reads the state itself and not an event, so a wake-up cannot be lost; `stop` only ends a pause early, and
    then `look` is called again, which raises if there is nothing more to wait for. The one place where jjq waits.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = _FIRST_PAUSE_S
    while True:
        began = time.monotonic()
        found = look()
        if found:
            return found
        now = time.monotonic()
        left = pause if deadline is None else deadline - now
        if left <= 0:
            return None
        stop.wait(min(left, max(pause, _SHARE * (now - began))))
        pause = min(pause * _GROWTH, _LONGEST_PAUSE_S)
