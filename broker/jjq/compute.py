"""`pyarrow.compute`, imported when it is first used: that takes a quarter of the time in which jjq is, and many processes, as those that
push and pop, never use it."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import pyarrow.compute

    found = getattr(pyarrow.compute, name)
    globals()[name] = found  # not asked for here again
    return found
