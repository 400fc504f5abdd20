"""How much of what waits goes into a micro-batch, and how a range of records is cut into tasks. Functions on values."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol, Self, TypeVar

# What a task costs Spark before and after its rows is the time in which it reads some 20 MB (measured: 45 ms of a core
# in the Python worker and 20 in the JVM), so tasks are large, but every core gets one where there is enough to read.
TASK_BYTES_MIN = 32 << 20
TASK_BYTES_MAX = 512 << 20
# Partitions with less waiting than this share a task: a micro-batch of ten rows in each of 40 partitions is one task.
SHARED_BYTES = 4 << 20

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


def fit(limit: int, waiting: Mapping[Key, Sequence[tuple[int, int]]], turn: int) -> dict[Key, int]:
    """How many rows of each partition come to at most `limit` bytes. What waits of one are runs of (rows, bytes), in order.

    In proportion to the bytes that wait. The partition whose turn it is gets a row in any case: so one always passes,
    however large it is, and none is starved where `turn` grows by one from batch to batch.
    """
    every = {key: sum(rows for rows, _ in runs) for key, runs in waiting.items()}
    sizes = {key: _size_of(runs, every[key]) for key, runs in waiting.items()}
    order = list(waiting)
    order = [key for key in order[turn % len(order) :] + order[: turn % len(order)] if every[key]] if order else []
    if not order or sum(sizes.values()) <= limit:
        return every
    first = order[0]
    cost = _size_of(waiting[first], 1)
    rooms = share(max(limit - cost, 0), {**sizes, first: sizes[first] - cost}, turn)
    rooms[first] += cost
    shares = {key: _rows_in(runs, rooms[key]) for key, runs in waiting.items()}
    shares[first] = max(shares[first], 1)
    # Shares are cut to whole rows; where rows are large, what is left over is most of it.
    left = limit - sum(_size_of(runs, shares[key]) for key, runs in waiting.items())
    for key in order:
        if shares[key] < every[key]:
            cost = _size_of(waiting[key], shares[key] + 1) - _size_of(waiting[key], shares[key])
            if cost <= left:
                shares[key] += 1
                left -= cost
    return shares


def _size_of(runs: Sequence[tuple[int, int]], rows: int) -> int:
    """Bytes of the first so many rows, those of a run being of one size."""
    found = 0
    for count, size in runs:
        some = min(rows, count)
        found += -(-size * some // count) if count else 0
        rows -= some
    return found


def _rows_in(runs: Sequence[tuple[int, int]], room: int) -> int:
    """How many rows from the first on come to at most `room` bytes."""
    found = 0
    for rows, size in runs:
        if size > room:
            return found + rows * room // size
        found += rows
        room -= size
    return found


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


def tasks(
    ranges: Sequence[Sequence[AnyRange]], cores: int, at_least: int = 1, max_rows: int | None = None
) -> list[tuple[AnyRange, ...]]:
    """The work of one batch: for each partition its slices, in order, cut and packed into tasks.

    `at_least` is how many tasks there should be, if there are so many records; no task has more than `max_rows`.
    """
    work = [list(each) for each in ranges if each]
    total = sum(piece.bytes for each in work for piece in each)
    wanted = -(-total // at_least) if at_least > 1 else TASK_BYTES_MAX
    rounds = max(1, -(-total // (cores * TASK_BYTES_MAX)))  # all cores are busy until the end of the last one
    target = max(1, min(wanted, max(TASK_BYTES_MIN, -(-total // (cores * rounds)))))
    done: list[tuple[AnyRange, ...]] = []
    shared: list[AnyRange] = []
    room = limit = min(SHARED_BYTES, target if at_least > 1 else SHARED_BYTES)
    for each in work:
        size = sum(piece.bytes for piece in each)
        if size >= limit:
            done += cut(each, target)
            continue
        if size > room and shared:
            done.append(tuple(shared))
            shared, room = [], limit
        shared += each
        room -= size
    if shared:
        done.append(tuple(shared))
    if max_rows is not None:
        done = [part for task in done for part in cut_rows(task, max_rows)]
    return done


def cut(whole: Sequence[AnyRange], task_bytes: int) -> list[tuple[AnyRange, ...]]:
    """The slices of one partition, in order, in as many parts of about equal size as keep each near `task_bytes`."""
    rest_bytes = sum(each.bytes for each in whole)
    parts = max(1, -(-rest_bytes // task_bytes))
    done: list[tuple[AnyRange, ...]] = []
    current: list[AnyRange] = []
    room = -(-rest_bytes // parts)
    for piece in whole:
        rest = piece
        while len(done) < parts - 1 and rest.bytes >= max(1, room) and rest.end - rest.start > 1:
            at = rest.start + max(1, min(rest.end - rest.start - 1, room * (rest.end - rest.start) // rest.bytes))
            head, rest = rest.split(at)
            done.append((*current, head))
            rest_bytes -= sum(each.bytes for each in done[-1])
            current, room = [], -(-rest_bytes // (parts - len(done)))
        current.append(rest)
        room -= rest.bytes
        if room <= 0 and len(done) < parts - 1:
            done.append(tuple(current))
            rest_bytes -= sum(each.bytes for each in current)
            current, room = [], -(-rest_bytes // (parts - len(done)))
    if current:
        done.append(tuple(current))
    return done


def cut_rows(task: Sequence[AnyRange], most: int) -> list[tuple[AnyRange, ...]]:
    """A task in parts of at most so many records each, about equal."""
    total = sum(piece.end - piece.start for piece in task)
    count = max(1, -(-total // most))
    done: list[tuple[AnyRange, ...]] = []
    current: list[AnyRange] = []
    room = -(-total // count)
    for piece in task:
        rest = piece
        while rest.end - rest.start > room:
            head, rest = rest.split(rest.start + room)
            done.append((*current, head))
            current, room = [], -(-total // count)
        current.append(rest)
        room -= rest.end - rest.start
        if room == 0:
            done.append(tuple(current))
            current, room = [], -(-total // count)
    if current:
        done.append(tuple(current))
    return done
