"""Where to start or end: what people write, as one of five values, and which offset of a partition that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from jjq.clock import instant_meant, parse_instant, to_us
from jjq.errors import InvalidArgument, OffsetOutOfRange
from jjq.model import PartitionOffsets
from jjq.values import shown


class Edge(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Last:
    """The last `count` records of each partition."""

    count: int


@dataclass(frozen=True, slots=True)
class At:
    """The first record with a timestamp of at least `us` microseconds."""

    us: int


Parsed = Edge | Last | At | int
_WORDS = {"earliest": Edge.EARLIEST, "beginning": Edge.EARLIEST, "latest": Edge.LATEST, "end": Edge.LATEST}
_HELP = (
    "use an offset (0, 1, ...), a negative number for the last records, 'earliest', 'latest', "
    "an ISO-8601 time with a zone ('2013-01-01T10:00:00Z') or '-10 minutes'"
)


def parse(value: object, what: str = "start") -> Parsed:
    """One start for one partition; raises InvalidArgument that says what can be written."""
    if isinstance(value, bool) or value is None:
        raise InvalidArgument(f"{what} cannot be {shown(value)}; {_HELP}")
    if isinstance(value, int):
        if value >= 1 << 63 or value < -(1 << 63):
            raise InvalidArgument(f"{what} {shown(value)} is no offset: it does not fit 64 bits")
        return value if value >= 0 else Last(-value)
    if isinstance(value, datetime):
        return At(to_us(value))
    if isinstance(value, str):
        word = _WORDS.get(value.strip().lower())
        if word is not None:
            return word
        instant = parse_instant(value)
        if instant is not None:
            return At(instant)
        raise InvalidArgument(f"{what} {shown(value)} is not understood; {_HELP}")
    raise InvalidArgument(f"{what} cannot be {type(value).__name__}; {_HELP}, or a datetime with a zone")


def parse_for(value: object, partitions: int, what: str = "start") -> dict[int, Parsed]:
    """A start for each partition: one for all, or a mapping that names some (the others begin at the earliest)."""
    if not isinstance(value, Mapping):
        one = parse(value, what)
        return dict.fromkeys(range(partitions), one)
    result: dict[int, Parsed] = {}
    for partition, each in value.items():
        if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < partitions:
            raise InvalidArgument(f"{what} names partition {shown(partition)}; the topic has 0 to {partitions - 1}")
        result[partition] = parse(each, f"{what} of partition {partition}")
    return result


def check_order(start: object, end: object, partitions: int, chosen: Iterable[int]) -> None:
    """Raises InvalidArgument where in all chosen partitions the end is before the start whatever the topic holds: then one of
    them is a mistake. In some it may be: who has read on asks for what there was at a time."""
    starts, ends = parse_for(start, partitions), parse_for(end, partitions, "end")
    reversed_ones = []
    for partition in chosen:
        first, last = starts.get(partition), ends.get(partition)
        offsets = isinstance(first, int) and isinstance(last, int) and last < first
        if not offsets and not (first is Edge.LATEST and last is Edge.EARLIEST):
            return
        reversed_ones.append((first, last))
    if reversed_ones:
        first, last = reversed_ones[0]
        raise InvalidArgument(f"the end, {_said(last)}, is before the start, {_said(first)}: nothing lies between them")


def _said(one: Parsed | None) -> str:
    return repr(one.value) if isinstance(one, Edge) else str(one)


def offset_of(
    start: Parsed, bounds: PartitionOffsets, topic: str, seek: Callable[[int], int | None], closed: bool
) -> int:  # fmt: skip
    """The offset in a partition that holds `bounds`; `seek` finds the first one of a time. `closed`: what is beyond the end
    means the end, which else raises OffsetOutOfRange."""
    if start is Edge.EARLIEST:
        return bounds.start
    if start is Edge.LATEST:
        return bounds.end
    if isinstance(start, Last):
        return max(bounds.start, bounds.end - start.count)
    if isinstance(start, At):
        found = seek(start.us)
        return bounds.end if found is None else found
    assert isinstance(start, int)
    if start > bounds.end and closed:
        return bounds.end
    if start > bounds.end:
        instant = instant_meant(start)
        hint = "" if instant is None else f"; a number is an offset, and a time is written {instant!r}"
        raise OffsetOutOfRange(
            f"offset {start} is beyond the end of partition {bounds.partition} of topic {topic!r}, which holds "
            f"[{bounds.start}, {bounds.end}){hint}"
        )
    return start
