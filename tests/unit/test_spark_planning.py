"""How a micro-batch is limited and how ranges become tasks."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from pyspark_jjq.planning import cut, cut_rows, share, tasks

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


def covered(pieces: Iterable[Piece]) -> list[int]:
    return [offset for piece in pieces for offset in range(piece.start, piece.end)]


@given(chains(), st.integers(1, 3000))
def test_parts_hold_every_record_once_and_in_order(chain: list[Piece], task_bytes: int) -> None:
    flat = [piece for part in cut(chain, task_bytes) for piece in part]
    assert all(piece.start < piece.end for piece in flat)
    assert covered(flat) == covered(chain)
    assert sum(piece.bytes for piece in flat) == sum(piece.bytes for piece in chain)


@given(chains(), st.integers(100, 3000))
def test_no_part_is_much_over_the_target(chain: list[Piece], task_bytes: int) -> None:
    largest_row = max((math.ceil(piece.bytes / (piece.end - piece.start)) for piece in chain), default=0)
    for part in cut(chain, task_bytes):
        assert sum(piece.bytes for piece in part) <= task_bytes + 2 * largest_row + 2


def test_large_slices_are_cut_evenly() -> None:
    assert cut([Piece(0, 10, 5), Piece(10, 20, 5)], 100) == [(Piece(0, 10, 5), Piece(10, 20, 5))]
    assert [part[0].bytes for part in cut([Piece(0, 1000, 1000)], 400)] == [334, 333, 333]


@given(chains(), st.integers(1, 700))
def test_parts_by_rows_hold_no_more_than_so_many_and_nothing_is_lost(chain: list[Piece], most: int) -> None:
    parts = cut_rows(chain, most)
    assert all(0 < len(covered(part)) <= most for part in parts)
    assert covered(piece for part in parts for piece in part) == covered(chain)
    assert len(parts) <= math.ceil(len(covered(chain)) / most)


@given(st.lists(chains(), max_size=6), st.integers(1, 8), st.integers(1, 40), st.none() | st.integers(1, 300))
def test_tasks_hold_every_record_of_every_partition_once_and_in_order(
    ranges: list[list[Piece]], cores: int, at_least: int, max_rows: int | None
) -> None:
    made = tasks(ranges, cores, at_least, max_rows)
    assert sorted(covered(piece for task in made for piece in task)) == sorted(covered(itertools.chain(*ranges)))
    assert all(len(covered(task)) <= (max_rows or 10**9) for task in made)


MB = 1 << 20


def sizes(ranges: list[list[Piece]], cores: int = 4, at_least: int = 1) -> list[float]:
    return [sum(piece.bytes for piece in task) / MB for task in tasks(ranges, cores, at_least)]


def test_partitions_with_little_in_them_share_a_task() -> None:
    assert sizes([[Piece(0, 10, 1000)] for _ in range(40)]) == [40_000 / MB]
    assert sizes([[Piece(0, 10, 3 * MB)] for _ in range(4)]) == [3, 3, 3, 3]
    assert sizes([[Piece(0, 10, MB)], [Piece(0, 10, 20 * MB)], [Piece(0, 10, MB)]]) == [20, 2]


def test_every_core_gets_a_task_where_there_is_enough_and_none_is_huge() -> None:
    assert sizes([[Piece(0, 1000, 20 * MB)]]) == [20]
    assert len(sizes([[Piece(0, 1000, 100 * MB)]])) == 4
    assert len(sizes([[Piece(0, 1000, 400 * MB)]])) == 4
    assert len(sizes([[Piece(0, 10_000, 10_240 * MB)]])) == 20
    assert len(sizes([[Piece(0, 10_000, 2100 * MB)]])) == 8  # not 5: three cores would wait for the last one


def test_there_are_at_least_as_many_tasks_as_asked_for() -> None:
    assert len(sizes([[Piece(0, 1000, 20 * MB)]], at_least=16)) == 16
    assert len(sizes([[Piece(0, 1000, 1000)]], at_least=16)) >= 16
    assert len(sizes([[Piece(0, 1000, 1000)] for _ in range(8)], at_least=8)) == 8
    assert len(sizes([[Piece(0, 3, 1000)]], at_least=16)) == 3
