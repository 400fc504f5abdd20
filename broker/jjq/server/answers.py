"""How many records go into one answer, on both fronts: it is in memory as a whole, here and at the client."""

from __future__ import annotations

from collections.abc import Callable

from jjq import records
from jjq.errors import JjqError
from jjq.model import Record

ANSWER_BYTES = 8 << 20
_PLACE_BYTES = 64  # topic, offset and the like
MOST_RECORDS = ANSWER_BYTES // _PLACE_BYTES  # however small they are


def bytes_of(record: Record) -> int:
    """About how many bytes a record has in an answer."""
    return _PLACE_BYTES + records.bytes_of(record)


def popped(pop: Callable[[], Record | None], most: int) -> list[Record]:
    """Up to `most` records as `pop` gives them, as long as it gives some and there is room for more.

    What it raises when there are some already is left for the next request, which meets it first: who takes records has moved on
    past them, and would not get them again.
    """
    found: list[Record] = []
    size = 0
    while len(found) < most and size < ANSWER_BYTES:
        try:
            record = pop()
        except JjqError:
            if not found:
                raise
            break
        if record is None:
            break
        found.append(record)
        size += bytes_of(record)
    return found


def taken(take: Callable[[int, int], list[Record]], most: int) -> list[Record]:
    """Up to `most` records as `take` gives them, which gets how many there may be, and of how many bytes."""
    return take(min(most, MOST_RECORDS), ANSWER_BYTES)
