"""Filters that Spark pushes down: what they leave, compared with applying them row by row."""

import datetime as dt
import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from jjq.clock import from_us, to_us
from pyspark_jjq.filters import HIGHEST, LOWEST, Narrowing, narrow

EPOCH_US = 1_357_034_400_000_000
COMPARISONS: dict[type[Any], Any] = {
    EqualTo: operator.eq, GreaterThan: operator.gt, GreaterThanOrEqual: operator.ge, LessThan: operator.lt,
    LessThanOrEqual: operator.le, EqualNullSafe: operator.eq,
}  # fmt: skip


def row_passes(each: Any, row: dict[str, Any]) -> bool | None:
    """SQL's verdict, spelt out apart from the code that is tested."""
    if isinstance(each, Not):
        found = row_passes(each.child, row)
        return None if found is None else not found
    value = row[each.attribute[0]]
    if isinstance(each, In):
        if value in each.value:
            return True
        return None if None in each.value else False
    if isinstance(each, IsNull):
        return False
    if isinstance(each, IsNotNull):
        return True
    if each.value is None:
        return False if isinstance(each, EqualNullSafe) else None
    return bool(COMPARISONS[type(each)](value, each.value))


def comparisons(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.one_of(values, st.none())
    plain = st.builds(lambda kind, value: kind((column,), value), st.sampled_from(list(COMPARISONS)), some)
    several = st.builds(lambda found: In((column,), tuple(found)), st.lists(some, min_size=1, max_size=3))
    either = st.one_of(plain, several, st.just(IsNotNull((column,))), st.just(IsNull((column,))))
    return st.one_of(either, st.builds(Not, either))


filters = st.lists(
    st.one_of(
        comparisons("topic", st.sampled_from(["a", "b", "c"])),
        comparisons("partition", st.integers(-1, 3)),
        comparisons("offset", st.integers(-2, 12)),
        comparisons("timestamp", st.integers(-2, 12).map(lambda s: from_us(EPOCH_US + s))),
    ),
    max_size=4,
)
ROWS = [
    {"topic": topic, "partition": p, "offset": offset, "timestamp": from_us(EPOCH_US + stamp)}
    for topic in ("a", "b")
    for p in range(3)
    for offset in range(4)
    for stamp in (offset, 9 - offset)
]


def is_left(left: Narrowing, row: dict[str, Any]) -> bool:
    return (
        left.has(row["topic"], row["partition"])
        and left.first <= row["offset"] < left.last
        and left.since <= to_us(row["timestamp"]) < left.until
    )


@given(filters)
def test_what_is_left_and_filtered_by_the_rest_is_what_the_filters_say(given_filters: list[Any]) -> None:
    left, rest = narrow(given_filters, kafka=True)
    assert all(any(each is one for one in given_filters) for each in rest)  # Spark compares them by identity
    for row in ROWS:
        wanted = all(row_passes(each, row) is True for each in given_filters)
        found = is_left(left, row) and all(row_passes(each, row) is True for each in rest)
        assert found == wanted, row


@given(filters)
def test_only_times_and_what_is_no_range_is_left_to_spark(given_filters: list[Any]) -> None:
    _, rest = narrow(given_filters, kafka=True)
    for each in rest:
        plain = each.child if isinstance(each, Not) else each
        column = plain.attribute[0]
        assert column == "timestamp" or (column == "offset" and (isinstance(each, Not) or isinstance(plain, In)))


def test_ranges_of_offsets_and_times_are_exclusive_at_the_end() -> None:
    at = from_us(EPOCH_US)
    found, rest = narrow(
        [
            GreaterThan(("offset",), 4),
            LessThanOrEqual(("offset",), 9),
            GreaterThanOrEqual(("timestamp",), at),
            LessThan(("timestamp",), from_us(EPOCH_US + 60)),
        ],
        kafka=True,
    )
    assert found == Narrowing(first=5, last=10, since=EPOCH_US, until=EPOCH_US + 60)
    assert [type(each) for each in rest] == [GreaterThanOrEqual, LessThan]


def test_topics_are_compared_as_text() -> None:
    for each, wanted in (
        (StringStartsWith(("topic",), "flights-"), ["flights-a"]),
        (StringEndsWith(("topic",), "s"), ["flights"]),
        (StringContains(("topic",), "light"), ["flights", "flights-a"]),
        (Not(StringContains(("topic",), "light")), ["weather"]),
    ):
        found, rest = narrow([each], kafka=True)
        assert rest == []
        assert [name for name in ("flights", "flights-a", "weather") if found.has(name, 0)] == wanted


@pytest.mark.parametrize(
    "each",
    [
        EqualTo(("value",), b"x"),
        EqualTo(("headers", "key"), "x"),
        EqualTo(("offset", "x"), 1),
        EqualTo(("offset",), 1.0),
        EqualTo(("partition",), True),
        EqualTo(("topic",), 1),
        GreaterThan(("timestamp",), dt.datetime(2013, 1, 1)),  # noqa: DTZ001 - that it is naive is the point
        GreaterThan(("timestamp",), 5),
        StringContains(("key",), "x"),
        Filter(),
    ],
)
def test_what_is_not_ours_is_left_to_spark_whole(each: Filter) -> None:
    assert narrow([each], kafka=True) == (Narrowing(), [each])


def test_metadata_columns_of_a_topic_with_a_schema_begin_with_an_underscore() -> None:
    own, meta = EqualTo(("offset",), 3), EqualTo(("_offset",), 5)
    found, rest = narrow([own, meta, EqualTo(("_partition",), 1)], kafka=False)
    assert rest == [own]
    assert (found.first, found.last) == (5, 6)
    assert [found.has("t", p) for p in (0, 1)] == [False, True]
    assert narrow([meta], kafka=True) == (Narrowing(), [meta])


def test_nothing_is_narrowed_without_filters() -> None:
    found, rest = narrow([], kafka=True)
    assert (found, rest, found.by_time, found.has("t", 0)) == (Narrowing(), [], False, True)
    assert (found.first, found.last) == (LOWEST, HIGHEST)
