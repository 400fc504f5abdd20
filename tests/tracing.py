"""Doing something while a trace looks on, which may raise Ctrl-C at any line of it."""

import sys
from collections.abc import Callable
from types import CodeType, FrameType
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


def at_first(
    code: CodeType, line: int, error: type[BaseException] = KeyboardInterrupt
) -> Callable[[FrameType, str, Any], Any]:
    """Traces: Ctrl-C, or another exception, when that line is come to, once."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is code and event in {"call", "line"} and frame.f_lineno == line:
            sys.settrace(None)
            raise error
        return trace

    return trace
