"""Which files are rewritten together: decided on values, before any file is touched."""

import math
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from jjq.compaction import FAN_IN, MOST_INPUTS, Run, plan
from jjq.log.format import NO_TS
from jjq.log.reader import LOST
from jjq.model import Segment

FULL = 1000


def segment(base: int, length: int = 10, kind: str = "arrow", rows: int = 1, **more: int) -> Segment:
    values = {"min_ts": base, "max_ts": base, "prefix_max_ts": base, "appended_at": base, "level": 0} | more
    return Segment(f"{base:032x}", kind, base, base + rows, length, 0, 0, values.pop("version", 1), **values)


def bases(runs: list[Run]) -> list[list[int]]:
    return [[each.base for each in run.inputs] for run in runs]


def test_nothing_is_done_where_nothing_is_to_do() -> None:
    assert plan([], FULL) == []
    assert plan([segment(0, FULL)], FULL) == []
    assert plan([segment(i) for i in range(FAN_IN - 1)], FULL) == []


def test_rolled_files_are_rewritten_however_few_and_large_they_are() -> None:
    (run,) = plan([segment(0, 5 * FULL, "arrows")], FULL)
    assert (run.level, run.prefix_max_ts) == (0, NO_TS)
    segments = [segment(0), segment(1, 900, "arrows"), segment(2, 900, "arrows"), segment(3)]
    assert bases(plan(segments, FULL)) == [[1, 2]]


def test_small_neighbours_wait_until_they_are_eight() -> None:
    (run,) = plan([segment(i) for i in range(FAN_IN)], FULL)
    assert len(run.inputs) == FAN_IN
    assert run.level == 1


def test_few_are_enough_when_they_make_a_file_of_full_size() -> None:
    assert bases(plan([segment(0, 300), segment(1, 300)], FULL)) == [[0, 1]]
    assert plan([segment(0, 200), segment(1, 200)], FULL) == []


def test_a_run_ends_at_full_size() -> None:
    assert bases(plan([segment(i, 300) for i in range(8)], FULL)) == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_files_of_different_levels_versions_and_kinds_stay_apart() -> None:
    small = [segment(i) for i in range(7)]
    for other in (segment(7, level=1), segment(7, version=2), segment(7, FULL), segment(7, kind=LOST)):
        assert plan([*small, other], FULL) == []
    assert len(plan([*small, segment(7)], FULL)) == 1


def test_what_is_to_be_skipped_is_no_part_of_a_run() -> None:
    segments = [segment(i, kind="arrows") for i in range(3)]
    assert bases(plan(segments, FULL, frozenset([segments[1].uuid]))) == [[0], [2]]


def test_one_transaction_takes_only_so_many_files() -> None:
    runs = plan([segment(i, 1, "arrows") for i in range(MOST_INPUTS + 3)], FULL)
    assert [len(run.inputs) for run in runs] == [MOST_INPUTS, 3]


def test_the_highest_timestamp_before_a_run_is_that_of_the_file_before_it() -> None:
    segments = [segment(0, FULL, prefix_max_ts=77), segment(1, kind="arrows", prefix_max_ts=77)]
    assert plan(segments, FULL)[0].prefix_max_ts == 77
    # Of what retention took nothing is known but what the first file left says.
    assert plan([segment(5, kind="arrows", prefix_max_ts=90)], FULL)[0].prefix_max_ts == 90
    assert plan([segment(5, kind="arrows")], FULL)[0].prefix_max_ts == NO_TS


def merged(segments: list[Segment], run: Run) -> list[Segment]:
    first = segments.index(run.inputs[0])
    last = run.inputs[-1]
    output = replace(
        run.inputs[0], kind="arrow", end=last.end, length=run.bytes, level=run.level, uuid=f"{last.end:x}-{run.level}"
    )
    return [*segments[:first], output, *segments[first + len(run.inputs) :]]


@given(st.lists(st.tuples(st.sampled_from(["arrow", "arrows"]), st.integers(1, 40)), max_size=400), st.integers(1, 30))
def test_no_record_is_written_again_more_often_than_the_number_of_files_grows_eightfold(
    files: list[tuple[str, int]], turns: int
) -> None:
    segments: list[Segment] = []
    written: Counter[int] = Counter()
    for number, (kind, length) in enumerate(files):
        segments.append(segment(number, length, kind))
        if number % turns and number != len(files) - 1:
            continue
        for _ in range(20):
            runs = plan(segments, FULL)
            if not runs:
                break
            for run in runs:
                written.update(offset for each in run.inputs for offset in range(each.base, each.end))
                segments = merged(segments, run)
        else:
            raise AssertionError("planning does not come to an end")
        assert [each.base for each in segments[1:]] == [each.end for each in segments[:-1]]
    # Once to seal it, once for each level, and once to make it part of a file of full size.
    levels = math.ceil(math.log(max(2, len(files)), FAN_IN))
    assert max(written.values(), default=0) <= levels + 2
