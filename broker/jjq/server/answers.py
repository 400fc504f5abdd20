"""How many records go into one answer, on both fronts: it is in memory as a whole, here and at the client."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jjq.errors import JjqError
from jjq.model import Record
from jjq.values import size_of

ANSWER_BYTES = 8 << 20
_FIRST = 8  # records; how large these are says how many more there is room for
_GROWTH = 4
_PLACE_BYTES = 64  # topic, offset and the like


def bytes_of(record: Record) -> int:
    """About how many bytes a record has in an answer."""
    value, key, headers = record.value, record.key, record.headers
    size = _PLACE_BYTES + (len(value) if type(value) is bytes else size_of(value))  # as most are
    if key is not None:
        size += len(key)
    return size if headers is None else size + size_of(headers)


def taken(take: Callable[[int], Sequence[Record]], most: int) -> list[Record]:
    """Up to `most` records as `take` gives them, which is called as long as it gives some and there is room for more.

    What it raises when there are some already is left for the next request, which meets it first: who takes records has moved on
    past them, and would not get them again.
    """
    found: list[Record] = []
    size, wanted = 0, _FIRST
    while len(found) < most and size < ANSWER_BYTES:
        try:
            more = take(min(wanted, most - len(found)))
        except JjqError:
            if not found:
                raise
            break
        if not more:
            break
        found += more
        size += sum(map(bytes_of, more))
        room = (ANSWER_BYTES - size) * len(found) // size
        wanted = max(1, min(_GROWTH * len(found), room))
    return found
