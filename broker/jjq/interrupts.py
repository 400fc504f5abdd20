"""Ctrl-C amid what others wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def surely(act: Callable[..., object], *given: Any) -> None:
    """Does again what an interrupt came amid, as often as others come; the last of them goes on. Who presses Ctrl-C twice is
    served as well: of many threads each waits for its turn with Python, so that the second one finds the first still at work."""
    try:
        act(*given)
    except Exception:
        raise
    except BaseException:
        surely(act, *given)
        raise
