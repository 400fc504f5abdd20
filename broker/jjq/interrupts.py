"""Ctrl-C, and what other handlers of signals raise, amid what others wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_TIMES = 100  # more of them than anybody sends; and what fails by itself is to end


def surely(act: Callable[..., object], *given: Any, times: int = _TIMES) -> None:
    """Does again what an interrupt came amid, though others come; the last of them goes on. Who presses Ctrl-C twice is served as
    well: of many threads each waits for its turn with Python, so that the second one finds the first still at work. One that comes
    just as this is called is beyond what can be written in Python."""
    try:
        act(*given)
    except BaseException:
        if times:
            surely(act, *given, times=times - 1)
        raise
