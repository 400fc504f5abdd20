"""How much of what waits goes into a micro-batch, and how a range of records is cut into tasks. Functions on values."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Protocol, Self, TypeVar

# A task reads about 0.3 GB/s, so one of this size takes a tenth of a second beside some 10 ms that any task costs, and
# a range worth splitting gives more tasks than a machine has cores. Spark's own files are cut at up to 128 MB.
TASK_BYTES = 32 << 20

Key = TypeVar("Key", bound=Hashable)


def share(limit: int, waiting: Mapping[Key, int], turn: int) -> dict[Key, int]:
    """How many of `waiting` rows (by partition, in a fixed order) go into a batch of at most `limit`.

    In proportion to what waits; exactly min(limit, all that waits) together. Every partition with rows gets one
    at least; where the limit is too small even for that, they take turns: `turn` must grow by what was given before
    (the sum of the start offsets does), and then each one comes within ceil(partitions / limit) batches.
    """
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    shares = dict.fromkeys(waiting, 0)
    hungry = [key for key, rows in waiting.items() if rows > 0]
    if limit <= len(hungry):
        order = list(waiting)
        first = turn % len(order)
        rotated = [key for key in order[first:] + order[:first] if waiting[key] > 0]
        for key in rotated[:limit]:
            shares[key] = 1
        return shares
    # One each first, the rest by largest remainder, in integers: floats lose rows beyond 2**53.
    spare, rest = limit - len(hungry), total - len(hungry)
    remainders: list[tuple[int, int, Key]] = []
    for position, key in enumerate(hungry):
        whole, remainder = divmod(spare * (waiting[key] - 1), rest)
        shares[key] = 1 + whole
        remainders.append((-remainder, position, key))
    left = limit - sum(shares.values())
    for _, _, key in sorted(remainders, key=lambda each: each[:2])[:left]:
        shares[key] += 1
    return shares


class Range(Protocol):
    """What the planner needs of a slice: the records `[start, end)`, their size in bytes, and a cut in two."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def split(self, at: int) -> tuple[Self, Self]: ...


AnyRange = TypeVar("AnyRange", bound=Range)


def tasks(slices: Iterable[AnyRange], task_bytes: int = TASK_BYTES) -> list[tuple[AnyRange, ...]]:
    """The slices of one partition, in order, cut into tasks of about equal size, none much over `task_bytes`."""
    whole = list(slices)
    size = sum(each.bytes for each in whole)
    count = max(1, -(-size // task_bytes))
    if count == 1:
        return [tuple(whole)] if whole else []
    target = -(-size // count)
    done: list[tuple[AnyRange, ...]] = []
    current: list[AnyRange] = []
    room = target
    for piece in whole:
        rest = piece
        while rest.bytes > room and rest.end - rest.start > 1:
            at = rest.start + max(1, min(rest.end - rest.start - 1, room * (rest.end - rest.start) // rest.bytes))
            # A sliver at the end of a file costs a task that file's opening and one more batch's check.
            if room * 8 < target and current:
                done.append(tuple(current))
                current, room = [], target
                continue
            head, rest = rest.split(at)
            done.append((*current, head))
            current, room = [], target
        current.append(rest)
        room -= rest.bytes
        if room <= 0:
            done.append(tuple(current))
            current, room = [], target
    if current:
        done.append(tuple(current))
    return done


def remaining(slices: Sequence[AnyRange], rows: int) -> list[AnyRange]:
    """The slices without their first `rows` records: where to go on after that many were read."""
    left: list[AnyRange] = []
    for piece in slices:
        length = piece.end - piece.start
        if rows >= length:
            rows -= length
        elif rows > 0:
            left.append(piece.split(piece.start + rows)[1])
            rows = 0
        else:
            left.append(piece)
    return left
