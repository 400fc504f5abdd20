"""The header that defers a record."""

from datetime import timedelta

import pyarrow as pa
import pytest

from jjq.deferral import NOT_BEFORE, defer, defer_all, deferred_rows, delay_us
from jjq.headers import headers_array, null_headers


def test_a_delay_is_in_seconds_and_rounds_up() -> None:
    assert [delay_us(each) for each in (0, 1, 0.5, 1e-9, timedelta(minutes=1))] == [
        0,
        1_000_000,
        500_000,
        1,
        60_000_000,
    ]


def test_headers_keep_their_order_and_defer_once() -> None:
    assert defer(None, 5) == [(NOT_BEFORE, b"5")]
    assert defer([("a", b"1"), (NOT_BEFORE, b"3"), ("b", None)], 7) == [("a", b"1"), ("b", None), (NOT_BEFORE, b"7")]
    assert defer_all([None, [("a", b"1")]], 2, 9) == [[(NOT_BEFORE, b"9")], [("a", b"1"), (NOT_BEFORE, b"9")]]
    assert defer_all(None, 2, 9) == [[(NOT_BEFORE, b"9")]] * 2


ROWS = [
    None, [("a", b"1")], [(NOT_BEFORE, b"10")], [], [("x", None), (NOT_BEFORE, b"20"), ("y", b"2")], [(NOT_BEFORE, None)],
    [(NOT_BEFORE, b"-1")], [(NOT_BEFORE, b"1"), (NOT_BEFORE, b"30")],
]  # fmt: skip


@pytest.mark.parametrize(("start", "end"), [(0, 8), (1, 8), (2, 5), (3, 8), (4, 5), (0, 2), (5, 7), (3, 3)])
def test_deferred_rows_of_any_part_of_a_column_are_found(start: int, end: int) -> None:
    expected = {row - start: due for row, due in ((2, 10), (4, 20), (7, 30)) if start <= row < end}
    assert deferred_rows(headers_array(ROWS).slice(start, end - start)) == expected


def test_a_column_without_headers_defers_nothing() -> None:
    assert deferred_rows(null_headers(100)) == {}
    assert deferred_rows(pa.concat_arrays([null_headers(2), headers_array([[(NOT_BEFORE, b"5")]])])) == {2: 5}
