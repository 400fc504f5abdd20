"""How a micro-batch is limited and how ranges become tasks."""

import itertools
import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from pyspark_jjq.planning import remaining, share, tasks

LONG_MAX = 2**63 - 1
amounts = st.dictionaries(st.integers(0, 50), st.integers(0, LONG_MAX), min_size=1, max_size=20)


@given(st.integers(1, LONG_MAX), amounts, st.integers(0, LONG_MAX))
def test_exactly_the_limit_is_given_and_never_more_than_waits(limit: int, waiting: dict[int, int], turn: int) -> None:
    shares = share(limit, waiting, turn)
    assert shares.keys() == waiting.keys()
    assert all(0 <= shares[key] <= waiting[key] for key in waiting)
    assert sum(shares.values()) == min(limit, sum(waiting.values()))


@given(st.integers(1, LONG_MAX), amounts, st.integers(0, LONG_MAX))
def test_each_share_is_in_proportion_to_within_the_row_that_everyone_gets(
    limit: int, waiting: dict[int, int], turn: int
) -> None:
    shares = share(limit, waiting, turn)
    total, hungry = sum(waiting.values()), sum(rows > 0 for rows in waiting.values())
    if hungry < limit < total:
        assert all(shares[key] >= 1 for key, rows in waiting.items() if rows)
        for key, rows in waiting.items():
            assert abs(shares[key] * total - limit * rows) <= (hungry + 1) * total


def test_shares_are_exact_where_floats_are_not() -> None:
    assert share(LONG_MAX, {0: LONG_MAX, 1: LONG_MAX}, 0) == {0: (LONG_MAX + 1) // 2, 1: LONG_MAX // 2}
    assert share(10, {0: 900, 1: 90, 2: 10}, 0) == {0: 7, 1: 2, 2: 1}


@given(
    st.integers(1, 12),
    st.lists(st.integers(0, 3), min_size=2, max_size=12),
    st.data(),
)
def test_no_partition_starves_however_small_the_limit(limit: int, first: list[int], data: st.DataObject) -> None:
    """Partition `mine` always has a row waiting, the others come and go: it is served within n/limit batches."""
    partitions = len(first)
    mine = data.draw(st.integers(0, partitions - 1))
    waiting = dict(enumerate(first))
    starts = dict.fromkeys(waiting, 0)
    for _ in range(math.ceil(partitions / limit)):
        waiting[mine] = max(1, waiting[mine])
        shares = share(limit, waiting, sum(starts.values()))
        if shares[mine]:
            return
        for key, rows in shares.items():
            starts[key] += rows
            waiting[key] += data.draw(st.integers(0, 3)) - rows
    raise AssertionError(f"partition {mine} got nothing")


@dataclass(frozen=True)
class Piece:
    start: int
    end: int
    bytes: int

    def split(self, at: int) -> tuple["Piece", "Piece"]:
        assert self.start < at < self.end
        left = self.bytes * (at - self.start) // (self.end - self.start)
        return Piece(self.start, at, left), Piece(at, self.end, self.bytes - left)


@st.composite
def chains(draw: st.DrawFn) -> list[Piece]:
    """Slices as the engine plans them: contiguous, each with some rows and some bytes."""
    start, chain = draw(st.integers(0, 100)), []
    for rows, size in draw(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 5000)), max_size=12)):
        chain.append(Piece(start, start + rows, size))
        start += rows
    return chain


@given(chains(), st.integers(1, 3000))
def test_tasks_hold_every_record_once_and_in_order(chain: list[Piece], task_bytes: int) -> None:
    flat = [piece for task in tasks(chain, task_bytes) for piece in task]
    assert [piece for piece in flat if piece.start >= piece.end] == []
    covered = [(piece.start, piece.end) for piece in flat]
    assert all(left[1] == right[0] for left, right in itertools.pairwise(covered))
    if chain:
        assert (covered[0][0], covered[-1][1]) == (chain[0].start, chain[-1].end)
    else:
        assert flat == []
    assert sum(piece.bytes for piece in flat) == sum(piece.bytes for piece in chain)


@given(chains(), st.integers(100, 3000))
def test_no_task_is_much_over_the_target(chain: list[Piece], task_bytes: int) -> None:
    largest_row = max((math.ceil(piece.bytes / (piece.end - piece.start)) for piece in chain), default=0)
    for task in tasks(chain, task_bytes):
        assert sum(piece.bytes for piece in task) <= task_bytes + 2 * largest_row + 2


def test_small_slices_share_a_task_and_large_ones_are_cut_evenly() -> None:
    assert tasks([Piece(0, 10, 5), Piece(10, 20, 5)], 100) == [(Piece(0, 10, 5), Piece(10, 20, 5))]
    assert [task[0].bytes for task in tasks([Piece(0, 1000, 1000)], 400)] == [334, 334, 332]


@given(chains(), st.data())
def test_what_remains_after_some_rows_begins_where_they_ended(chain: list[Piece], data: st.DataObject) -> None:
    total = sum(piece.end - piece.start for piece in chain)
    rows = data.draw(st.integers(0, total))
    left = remaining(chain, rows)
    assert sum(piece.end - piece.start for piece in left) == total - rows
    if left:
        assert left[0].start == chain[0].start + rows
        assert left[-1].end == chain[-1].end
