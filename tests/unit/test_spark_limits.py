"""Several limits on a micro-batch at once: the maxima both hold, the minimum waits and not for ever."""

import itertools
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jjq.errors import InvalidArgument
from pyspark_jjq.limits import Pace, Partition, Rows, Runs
from pyspark_jjq.options import SourceOptions, parse_source
from pyspark_jjq.planning import fit

runs = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 10**9)), max_size=4)
waits = st.dictionaries(st.integers(0, 20), runs, min_size=1, max_size=8)


def size_of(waiting: Mapping[int, Sequence[tuple[int, int]]], taken: Mapping[int, int]) -> float:
    """Bytes of the first so many rows of each, each run's rows counting alike."""
    total = 0.0
    for key, rows in taken.items():
        for count, size in waiting[key]:
            some = min(rows, count)
            total += size * some / count
            rows -= some
    return total


@given(st.integers(1, 10**9), waits, st.integers(0, 100))
def test_bytes_hold_unless_a_single_row_is_larger(
    limit: int, waiting: dict[int, list[tuple[int, int]]], turn: int
) -> None:
    taken = fit(limit, waiting, turn)
    assert taken.keys() == waiting.keys()
    every = {key: sum(rows for rows, _ in each) for key, each in waiting.items()}
    assert all(0 <= taken[key] <= every[key] for key in waiting)
    assert sum(taken.values()) == 1 or size_of(waiting, taken) <= limit + 1 or sum(every.values()) == 0
    assert (sum(taken.values()) > 0) == (sum(every.values()) > 0)


def test_all_goes_where_all_fits() -> None:
    assert fit(100, {"a": [(10, 60)], "b": [(4, 40)], "c": []}, 3) == {"a": 10, "b": 4, "c": 0}


def test_bytes_are_shared_in_proportion_to_within_a_row() -> None:
    taken = fit(500, {"a": [(100, 1000)], "b": [(300, 3000)], "c": [(100, 1000)]}, 0)
    assert taken == {"a": 11, "b": 30, "c": 9}


def test_what_is_left_over_of_shares_smaller_than_a_row_is_used() -> None:
    waiting = {key: [(5, 550)] for key in "abcdefghij"}
    assert sum(fit(1000, waiting, 0).values()) == 9


def test_one_record_passes_however_large() -> None:
    assert fit(10, {"a": [(2, 2000)], "b": [(2, 2000)]}, 0) == {"a": 1, "b": 0}
    assert fit(10, {"a": [(2, 2000)], "b": [(2, 2000)]}, 1) == {"a": 0, "b": 1}


def test_rows_of_no_size_are_lost_ones_and_pass() -> None:
    assert fit(10, {"a": [(5, 0), (2, 20)], "b": [(1, 10)]}, 0) == {"a": 6, "b": 0}


@given(st.integers(1, 4000), st.lists(st.integers(1, 5000), min_size=2, max_size=8), st.integers(0, 50), st.data())
def test_no_partition_starves_however_large_its_rows(
    limit: int, row_sizes: list[int], turn: int, data: st.DataObject
) -> None:
    mine = data.draw(st.integers(0, len(row_sizes) - 1))
    for step in range(len(row_sizes)):
        waiting = {
            key: [(rows, rows * size)] if (rows := data.draw(st.integers(1, 40))) else []
            for key, size in enumerate(row_sizes)
        }
        if fit(limit, waiting, turn + step)[mine]:
            return
    pytest.fail("never served")


# --- together


def options(**more: str) -> SourceOptions:
    return parse_source({"path": "p", "topic": "t"} | more)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class RunsOf:
    """Rows of one size, or of one for each partition."""

    def __init__(self, size: int | dict[Partition, int]) -> None:
        self.size = size
        self.asked: list[Rows] = []

    def __call__(self, rows: Rows) -> Runs:
        self.asked.append(rows)
        return {key: [(count, count * self.size_in(key))] if count else [] for key, count in rows.items()}

    def size_in(self, key: Partition) -> int:
        return self.size if isinstance(self.size, int) else self.size[key]


def test_both_maxima_hold() -> None:
    waiting = {("t", 0): 100, ("t", 1): 300}
    rows_bind = Pace(options(maxOffsetsPerTrigger="40", maxBytesPerTrigger="1000000"))
    assert rows_bind.admit(waiting, 0, RunsOf(100)) == {("t", 0): 10, ("t", 1): 30}
    bytes_bind = Pace(options(maxOffsetsPerTrigger="40", maxBytesPerTrigger="2000"))
    assert bytes_bind.admit(waiting, 0, RunsOf(100)) == {("t", 0): 4, ("t", 1): 16}


def test_sizes_are_asked_only_where_bytes_count_and_only_of_what_the_rows_allow() -> None:
    runs = RunsOf(1)
    Pace(options(maxOffsetsPerTrigger="4")).admit({("t", 0): 9}, 0, runs)
    assert runs.asked == []
    Pace(options(maxOffsetsPerTrigger="4", maxBytesPerTrigger="9")).admit({("t", 0): 9}, 0, runs)
    assert runs.asked == [{("t", 0): 4}]


def test_what_spark_is_told_of_the_limits() -> None:
    assert Pace(options()).most_rows is None
    assert Pace(options(maxOffsetsPerTrigger="7", maxBytesPerTrigger="9")).most_rows == 7
    assert Pace(options(maxBytesPerTrigger="9")).most_rows == 2**63 - 1
    assert Pace(options(minOffsetsPerTrigger="9")).most_rows == 2**63 - 1


def test_the_minimum_waits_but_not_longer_than_the_delay() -> None:
    clock = Clock()
    pace = Pace(options(minOffsetsPerTrigger="10", maxTriggerDelay="30s"), clock)
    assert not pace.holds_back(1)  # the first micro-batch never waits
    pace.admit({("t", 0): 1}, 0, RunsOf(1))
    assert pace.holds_back(0)
    assert pace.holds_back(9)
    assert not pace.holds_back(10)
    clock.now += 29.9
    assert pace.holds_back(9)
    clock.now += 0.2
    assert not pace.holds_back(9)
    pace.admit({("t", 0): 9}, 1, RunsOf(1))
    assert pace.holds_back(9)


def test_no_partition_starves_under_both_maxima() -> None:
    """Large rows in some partitions, small ones in others, fewer rows allowed than there are partitions."""
    for most_rows, most_bytes in itertools.product((1, 2, 3, 5), (10, 150, 1000)):
        pace = Pace(options(maxOffsetsPerTrigger=str(most_rows), maxBytesPerTrigger=str(most_bytes)))
        sizes = {("t", p): 100 if p % 2 else 1 for p in range(4)}
        served = dict.fromkeys(sizes, 0)
        for _ in range(4):
            admitted = pace.admit(dict.fromkeys(sizes, 50), sum(served.values()), RunsOf(sizes))
            for key, count in admitted.items():
                served[key] += count
        assert all(served.values()), (most_rows, most_bytes, served)


def test_a_minimum_above_the_maximum_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="minOffsetsPerTrigger 11 is more than maxOffsetsPerTrigger 10"):
        options(minOffsetsPerTrigger="11", maxOffsetsPerTrigger="10")
    assert options(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="10").min_offsets_per_trigger == 10


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m", 900), ("30s", 30), ("2h", 7200), ("1d", 86400), ("500ms", 0.5), ("2min", 120), ("1500", 1.5), ("0s", 0)],
)
def test_the_delay_is_spelt_as_in_spark(text: str, seconds: float) -> None:
    assert options(maxTriggerDelay=text).max_trigger_delay_s == pytest.approx(seconds)
    assert options().max_trigger_delay_s == 900


@pytest.mark.parametrize("text", ["", "m", "-5m", "1.5h", "15 fortnights", "5m30s"])
def test_a_delay_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="maxTriggerDelay is a number with us, ms, s, m, h or d, such as 15m"):
        options(maxTriggerDelay=text)


@pytest.mark.parametrize("name", ["maxBytesPerTrigger", "minOffsetsPerTrigger"])
def test_limits_are_whole_numbers_from_1(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} is a whole number from 1 to 9223372036854775807, not '0'"):
        options(**{name: "0"})
