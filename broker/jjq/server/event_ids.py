"""Ids of events: UUIDs of version 6 that are computed from where a record is, and sort as the records do.

    time, 60 bits      the record's timestamp, in 100 ns since 1582-10-15
    clock sequence, 14 the partition (10 bits), and the highest 4 of the offset
    node, 48           the other bits of the offset

Nothing is stored for them, and an id says by itself where to go on after it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_EPOCH_100NS = 0x01B21DD213814000  # from 1582-10-15 to 1970-01-01
_PARTITION_BITS, _OFFSET_BITS = 10, 52
_FORM = re.compile(r"([0-9a-f]{8})-?([0-9a-f]{4})-?6([0-9a-f]{3})-?([89ab][0-9a-f]{3})-?([0-9a-f]{12})", re.IGNORECASE)


class EventPlace(NamedTuple):
    """What an id says: the timestamp in units of 100 ns since 1970, the partition, the offset."""

    time_100ns: int
    partition: int
    offset: int


def event_id(timestamp: int, partition: int, offset: int) -> str:
    """The id of a record with a timestamp in microseconds since 1970. Text that sorts as (timestamp, partition, offset)."""
    time = timestamp * 10 + _EPOCH_100NS
    low = partition << _OFFSET_BITS | offset
    return (
        f"{time >> 28:08x}-{time >> 12 & 0xFFFF:04x}-6{time & 0xFFF:03x}-"
        f"{0x8000 | low >> 48:04x}-{low & 0xFFFFFFFFFFFF:012x}"
    )


def parse_event_id(text: str) -> EventPlace | None:
    """What an id says; None for anything that is no UUID of version 6."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        return None
    high, mid, low, clock, node = (int(each, 16) for each in match.groups())
    place = (clock & 0x3FFF) << 48 | node
    time = (high << 28 | mid << 12 | low) - _EPOCH_100NS
    return EventPlace(time, place >> _OFFSET_BITS, place & ((1 << _OFFSET_BITS) - 1))
