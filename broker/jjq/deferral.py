"""Deferred records: a header says before when channels do not deliver a record. Other readers see it at once.

The header `jjq-not-before` is ASCII decimal, microseconds since the epoch. Whoever writes batches may set it as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta

import pyarrow as pa

from jjq import compute as pc
from jjq.errors import InvalidArgument
from jjq.schema import binaries
from jjq.values import shown

NOT_BEFORE = "jjq-not-before"
_LONGEST_S = 100 * 365.25 * 86_400
_FOR_EVER = 1 << 61  # a header may say anything, a catalog holds 64 bits

_NOT_BEFORE = binaries([NOT_BEFORE.encode()], pa.string())

Pairs = list[tuple[str, bytes | None]]
Delay = float | timedelta | None


def delay_us(delay: object, what: str = "delay") -> int:
    """Microseconds of a delay in seconds (or a timedelta), from nothing to a hundred years."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= _LONGEST_S:
        raise InvalidArgument(f"{what} must be seconds from 0 to a hundred years, or a timedelta, not {shown(delay)}")
    return math.ceil(seconds * 1_000_000)


def defer(headers: Pairs | None, not_before: int) -> Pairs:
    """Headers with the one that defers; one that was there is replaced."""
    return [*(pair for pair in headers or () if pair[0] != NOT_BEFORE), (NOT_BEFORE, b"%d" % not_before)]


def defer_all(headers: Sequence[Pairs | None] | None, rows: int, not_before: int) -> list[Pairs | None]:
    return [defer(None if headers is None else headers[row], not_before) for row in range(rows)]


def deferred_rows(headers: pa.Array) -> dict[int, int]:
    """By row of a column of headers: before when it is not to be delivered. What is no number defers nothing."""
    if headers.null_count == len(headers):
        return {}
    entries = headers.flatten()
    chosen = pc.is_in(entries.field("key"), value_set=_NOT_BEFORE)
    if not pc.any(chosen).as_py():
        return {}
    rows = pc.list_parent_indices(headers).filter(chosen).to_pylist()
    values = entries.field("value").filter(chosen).to_pylist()
    return {
        row: min(int(value), _FOR_EVER)
        for row, value in zip(rows, values, strict=True)
        if value is not None and value.isdigit() and len(value) < 20
    }
