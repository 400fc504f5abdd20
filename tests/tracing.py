"""Doing something while a trace looks on, which may raise Ctrl-C at any line of it."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def traced(act: Callable[[], object], trace: Callable[[FrameType, str, Any], Any]) -> bool:
    """Whether the trace interrupted it."""
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
