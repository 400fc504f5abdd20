"""Bounds of batches and filters by columns: whatever the values, no row is left out that the filter keeps."""

import base64
import datetime as dt
import math
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

import jjq
from jjq.errors import DamagedSegment
from jjq.log.bounds import KEY, TEXT_BYTES, Bounds, Collected, above, bounds_of, bounds_of_all, hold, of_column, read
from jjq.log.check import check_sealed
from jjq.log.format import NO_TS
from jjq.log.sealed import SEALED_BATCH_BYTES, SealedWriter
from jjq.schema import TIMESTAMP, physical
from jjq.staging import staged_segment
from pyspark_jjq.conditions import Condition, conditions, kept
from pyspark_jjq.filters import narrow

UTC = dt.UTC
FLOATS = st.one_of(st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324]), st.floats(width=32))
LONG = st.builds(lambda head, n, tail: head + "\U0010ffff" * n + tail, st.text("aé\x00", max_size=3), st.integers(0, 20),
                 st.text("ab", max_size=2))  # fmt: skip
BYTES = st.one_of(
    st.binary(max_size=3), st.builds(lambda n, end: b"\xff" * n + end, st.integers(60, 70), st.binary(max_size=2))
)
TIMES = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))  # noqa: DTZ001 - a zone is given below
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "long": (pa.int64(), st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))),
    "byte": (pa.int8(), st.integers(-128, 127)),
    "boolean": (pa.bool_(), st.booleans()),
    "float": (pa.float32(), FLOATS),
    "double": (pa.float64(), FLOATS),
    "text": (pa.string(), st.one_of(st.text("ab", max_size=2), LONG)),
    "bytes": (pa.binary(), BYTES),
    "day": (pa.date32(), st.dates()),
    "instant": (pa.timestamp("us", "UTC"), TIMES.map(lambda each: each.replace(tzinfo=UTC))),
    "local": (pa.timestamp("us"), TIMES),
    "decimal": (pa.decimal128(6, 2), st.decimals(-999, 999, places=2)),
}
KINDS = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


def order(value: Any) -> Any:
    """A key by which values compare as in Spark: NaN is equal to itself and above all others, text is its bytes."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


def matches(each: Any, value: Any) -> bool:
    """Whether SQL keeps a row with this value, spelt out apart from the code that is tested."""
    if isinstance(each, IsNull):
        return value is None
    if isinstance(each, IsNotNull):
        return value is not None
    if isinstance(each, EqualNullSafe) and each.value is None:
        return value is None
    if value is None:
        return False
    if isinstance(each, In):
        return any(wanted is not None and order(wanted) == order(value) for wanted in each.value)
    if each.value is None:
        return False
    if isinstance(each, StringStartsWith):
        return str(value).startswith(each.value)
    at, wanted = order(value), order(each.value)
    found: bool = {
        EqualTo: at == wanted, EqualNullSafe: at == wanted, GreaterThan: at > wanted, GreaterThanOrEqual: at >= wanted,
        LessThan: at < wanted, LessThanOrEqual: at <= wanted,
    }[type(each)]  # fmt: skip
    return found


def filters(values: st.SearchStrategy[Any], *, text: bool) -> st.SearchStrategy[Any]:
    some = st.one_of(values, st.none())
    found = [
        st.builds(lambda kind, value: kind(("c",), value), st.sampled_from(KINDS), some),
        st.builds(lambda found: In(("c",), tuple(found)), st.lists(some, min_size=1, max_size=3)),
        st.sampled_from([IsNull(("c",)), IsNotNull(("c",))]),
    ]
    if text:
        found.append(st.builds(lambda value: StringStartsWith(("c",), value), values))
    return st.one_of(found)


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.Array, Any]:
    """A column, and a filter whose value may well be one of the column's."""
    name = draw(st.sampled_from(sorted(VALUES)))
    kind, values = VALUES[name]
    found = draw(st.lists(st.one_of(values, st.none()), min_size=1, max_size=5))
    present = [value for value in found if value is not None]
    near = st.one_of(values, st.sampled_from(present)) if present else values
    return pa.array(found, kind), draw(filters(near, text=name == "text"))


def said(column: pa.Array) -> Bounds | None:
    found = of_column(column)
    if found is None:
        return None
    low, high, nulls = found
    return Bounds(None if low is None else low.as_py(), None if high is None else high.as_py(), nulls, len(column))


@settings(max_examples=500)
@given(columns())
def test_no_batch_and_no_row_is_left_out_that_the_filter_keeps(given_: tuple[pa.Array, Any]) -> None:
    column, each = given_
    wanted = [value for value in column.to_pylist() if matches(each, value)]
    bounds = said(column)
    if bounds is not None:
        assert hold(bounds, column)
        if wanted:
            assert Condition("c", each).may_hold(bounds)
    batch = pa.RecordBatch.from_arrays([column], names=["c"])
    left = kept(batch, conditions([each], ["c"])).column(0).to_pylist()
    assert repr([value for value in left if matches(each, value)]) == repr(wanted)


@settings(max_examples=500)
@given(st.data(), st.sampled_from(sorted(VALUES)))
def test_no_file_is_left_out_whose_batches_have_a_row_that_the_filter_keeps(data: st.DataObject, name: str) -> None:
    kind, values = VALUES[name]
    drawn = data.draw(st.lists(st.lists(st.one_of(values, st.none()), min_size=1, max_size=3), min_size=1, max_size=4))
    found = [pa.array(batch, kind).to_pylist() for batch in drawn]  # a column of floats holds fewer numbers than Python
    present = [value for batch in found for value in batch if value is not None]
    near = st.one_of(values, st.sampled_from(present)) if present else values
    test = Condition("c", data.draw(filters(near, text=name == "text")))
    field = pa.field("c", kind)
    collected = Collected(physical(pa.schema([field])))
    for batch in found:
        collected.add(sealed_rows(pa.table({"c": pa.array(batch, kind)}), physical(pa.schema([field]))))
    said = read(collected.metadata(), len(found))
    whole = bounds_of_all(said, field, sum(map(len, found)))
    each = bounds_of(said, field, [len(batch) for batch in found])
    assert (whole is None) == (None in each)
    if whole is not None and not test.may_hold(whole):
        assert not any(one is None or test.may_hold(one) for one in each)
        assert not any(matches(test.filter, value) for batch in found for value in batch)


@given(st.binary(max_size=TEXT_BYTES + 3))
def test_a_bound_that_is_cut_is_not_below_its_value(value: bytes) -> None:
    found = above(value)
    assert found is None or (found >= value and len(found) <= TEXT_BYTES)


def test_filters_of_values_of_another_type_leave_everything() -> None:
    column = pa.array([1, 2, 3])
    bounds = said(column)
    assert bounds is not None
    for value in ("2", b"2", dt.date(2013, 1, 1), dt.datetime(2013, 1, 1)):  # noqa: DTZ001 - of no zone is meant
        found = Condition("c", LessThan(("c",), value))
        assert found.may_hold(bounds)
        assert found.rows(column) is None
    instants = pa.array([dt.datetime(2013, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    naive = Condition("c", GreaterThan(("c",), dt.datetime(2014, 1, 1)))  # noqa: DTZ001 - of no zone is meant
    found_bounds = said(instants)
    assert found_bounds is not None
    assert naive.may_hold(found_bounds)
    assert naive.rows(instants) is None


@pytest.mark.parametrize(
    ("kind", "values", "each", "may"),
    [
        (pa.int64(), [3, 5, None], EqualTo(("c",), 6), False),
        (pa.int64(), [3, 5, None], GreaterThan(("c",), 5), False),
        (pa.int64(), [3, 5], IsNull(("c",)), False),
        (pa.int64(), [None, None], IsNotNull(("c",)), False),
        (pa.int64(), [None], LessThan(("c",), 9), False),
        (pa.int64(), [3, 5], In(("c",), (1, 9, None)), False),
        (pa.float64(), [1.0, 2.0], GreaterThan(("c",), 2.0), False),
        (pa.float64(), [1.0, math.nan], GreaterThan(("c",), 2.0), True),
        (pa.float64(), [-0.0], LessThan(("c",), 0.0), False),
        (pa.string(), ["ab", "ac"], StringStartsWith(("c",), "b"), False),
        (pa.string(), ["b" * 60], GreaterThan(("c",), "c"), False),
        (pa.decimal128(6, 2), [Decimal("1.50")], GreaterThan(("c",), Decimal("1.5")), False),
        (pa.date32(), [dt.date(2013, 1, 1)], LessThan(("c",), dt.date(2013, 1, 1)), False),
    ],
)
def test_what_cannot_match_is_seen(kind: pa.DataType, values: list[Any], each: Any, may: bool) -> None:
    bounds = said(pa.array(values, kind))
    assert bounds is not None
    assert Condition("c", each).may_hold(bounds) is may


@pytest.mark.parametrize(
    ("values", "each", "left"),
    [
        ([1.0, math.nan, 3.0, None], GreaterThan(("c",), 2.0), [math.nan, 3.0]),
        ([0.0, -0.0, 1.0], EqualTo(("c",), -0.0), [0.0, -0.0]),
        ([0.0, -0.0, 1.0], In(("c",), (-0.0,)), [0.0, -0.0, 1.0]),
        ([1, 2, None], In(("c",), (2, None)), [2]),
        ([1, 2, None], EqualNullSafe(("c",), None), [None]),
        ([1, 2, None], IsNotNull(("c",)), [1, 2]),
        (["ab", "b", None], StringStartsWith(("c",), "a"), ["ab"]),
        ([b"x", b"y"], EqualTo(("c",), bytearray(b"y")), [b"y"]),
    ],
)
def test_rows_that_do_not_match_are_left_out(values: list[Any], each: Any, left: list[Any]) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(values)], names=["c"])
    assert repr(kept(batch, conditions([each], ["c"])).column(0).to_pylist()) == repr(left)


def test_a_decimal_that_spark_may_have_rounded_leaves_nothing_out() -> None:
    """As in Spark's worker, which makes the value with Python's 28 digits."""
    wide = Decimal(12345678901234567890123456789012345678)
    rounded = +wide
    assert rounded != wide
    batch = pa.RecordBatch.from_arrays([pa.array([wide], pa.decimal128(38, 0))], names=["c"])
    for each in (EqualTo(("c",), rounded), In(("c",), (Decimal(1), rounded)), LessThan(("c",), rounded)):
        assert conditions([each], ["c"]) == ()
        assert kept(batch, conditions([each], ["c"])) is batch
    assert len(conditions([EqualTo(("c",), Decimal("9" * 27))], ["c"])) == 1


@pytest.mark.parametrize(
    ("kind", "value", "usable"),
    [
        (pa.date32(), dt.date(1582, 10, 15), False),
        (pa.date32(), dt.date(1582, 10, 4), True),
        (TIMESTAMP, dt.datetime(1582, 10, 15, 1, tzinfo=UTC), False),
        (TIMESTAMP, dt.datetime(1582, 10, 16, 23, tzinfo=UTC), False),
        (TIMESTAMP, dt.datetime(1582, 10, 17, tzinfo=UTC), True),
        (pa.timestamp("us"), dt.datetime(1582, 10, 15), True),  # noqa: DTZ001 - of no zone, which Spark leaves as it is
    ],
)
def test_days_that_the_old_calendar_lacks_leave_nothing_out(kind: pa.DataType, value: Any, usable: bool) -> None:
    """Spark says the 15th of October 1582 for each of the ten days before it."""
    assert bool(conditions([GreaterThan(("c",), value)], ["c"])) is usable
    if kind == TIMESTAMP:
        left, rest = narrow([GreaterThan(("_timestamp",), value)], kafka=False)
        assert left.by_time is usable
        assert len(rest) == 1


def test_long_text_has_no_bounds() -> None:
    assert said(pa.array(["x" * (TEXT_BYTES + 1)])) is None
    assert said(pa.array([[1]])) is None


SCHEMA = pa.schema([("number", pa.int64()), ("name", pa.string()), ("list", pa.list_(pa.int64()))])


def numbers(first: int, count: int) -> pa.Table:
    rows = range(first, first + count)
    return pa.table({"number": rows, "name": [f"n{i}" for i in rows], "list": [[i] for i in rows]}, schema=SCHEMA)


@pytest.fixture
def topic(tmp_path: Path) -> Any:
    """Two sealed files, of 0 to 9 and 10 to 19, the second with a column more, and an active one."""
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t", schema=SCHEMA)
        topic.push_table(numbers(0, 10), writer_id="w", batch_id=0)
        topic = store.alter_topic("t", add_columns=pa.schema([("late", pa.float64())]))
        late = numbers(10, 10).append_column("late", pa.array([float(i) for i in range(10, 20)]))
        topic.push_table(late, writer_id="w", batch_id=1)
        topic.push({"number": 20})
        yield topic
        assert store.verify().ok


def ranges(topic: Any, *tests: Condition) -> list[tuple[int, int]]:
    log = topic.reader
    return [(each.start, each.end) for each in log.where(log.plan(0, 0, 21), tests)]


def test_sealed_files_that_cannot_match_are_left_out_and_the_active_one_stays(topic: Any) -> None:
    assert ranges(topic, Condition("number", EqualTo(("number",), 12))) == [(10, 20), (20, 21)]
    assert ranges(topic, Condition("name", StringStartsWith(("name",), "n1"))) == [(0, 10), (10, 20), (20, 21)]
    assert ranges(topic, Condition("name", GreaterThan(("name",), "n2"))) == [(0, 10), (20, 21)]
    assert ranges(topic, Condition("list", IsNull(("list",)))) == [(0, 10), (10, 20), (20, 21)]


def test_a_file_older_than_a_column_has_nulls_there(topic: Any) -> None:
    assert ranges(topic, Condition("late", GreaterThan(("late",), 0.0))) == [(10, 20), (20, 21)]
    assert ranges(topic, Condition("late", IsNull(("late",)))) == [(0, 10), (20, 21)]


def test_a_file_may_meet_each_test_and_none_of_its_batches_both(tmp_path: Path) -> None:
    """Of the whole file nothing is left out then, so its batches decide."""
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t", schema=pa.schema([("number", pa.int64()), ("text", pa.string())]))
        rows = 3 * SEALED_BATCH_BYTES // 100
        topic.push_table(pa.table({"number": range(rows), "text": ["x" * 90] * rows}), writer_id="w", batch_id=0)
        wanted = Condition("number", EqualTo(("number",), rows // 2))
        [(first, last)] = ranges_of(topic, rows, wanted)
        assert 0 < first <= rows // 2 < last < rows
        assert ranges_of(topic, rows, wanted, Condition("number", LessThan(("number",), first))) == []
        assert ranges_of(topic, rows, Condition("number", EqualTo(("number",), rows))) == []


def test_compaction_writes_bounds_too(tmp_path: Path) -> None:
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t", schema=SCHEMA, segment_rows=10)
        for first in (0, 10, 20):
            topic.push_table(numbers(first, 10))
        store.maintain()
        kinds = {each.kind for each in (s.segment for s in topic.reader.plan(0, 0, 20))}
        assert kinds == {"arrow"}
        assert (0, 10) not in ranges_of(topic, 20, Condition("number", GreaterThan(("number",), 30)))
        assert store.verify().ok


def test_what_a_file_says_is_asked_of_it_once(topic: Any) -> None:
    wanted = Condition("number", EqualTo(("number",), 12))
    assert ranges(topic, wanted) == [(10, 20), (20, 21)]
    left_out, path = topic.reader.plan(0, 0, 10), Path(topic.segments()[0].path)
    moved = path.rename(path.with_suffix(".moved"))
    topic.reader.close()  # and with it the files that it keeps open
    try:
        assert topic.reader.where(left_out, [wanted]) == []
        assert topic.reader.where(left_out, [Condition("number", EqualTo(("number",), 5))]) == left_out
    finally:
        moved.rename(path)


def ranges_of(topic: Any, end: int, *tests: Condition) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in topic.reader.where(topic.reader.plan(0, 0, end), tests)]


def test_bounds_are_in_the_footer_for_every_arrow_reader(topic: Any) -> None:
    first = topic.segments()[0]
    with pa.memory_map(first.path) as mapped, pa.ipc.open_file(mapped) as file:
        assert list(file.metadata) == [b"jjq-bounds"]
        assert file.read_all()["number"].to_pylist() == list(range(10))


def test_where_a_file_says_nothing_nothing_is_left_out(tmp_path: Path) -> None:
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t")
        topic.push_table(pa.table({"value": [b"x", b"y"]}), writer_id="w", batch_id=0)
        assert ranges_of(topic, 2, Condition("value", EqualTo(("value",), b"z"))) == [(0, 2)]


BOUND = pa.array([0], pa.int64())


@pytest.mark.parametrize(
    "said",
    [
        None,
        BOUND,
        pa.array([[1]]),
        pa.StructArray.from_arrays([BOUND], ["low"]),
        pa.StructArray.from_arrays([pa.array(["a"]), pa.array(["b"]), BOUND], ["low", "high", "nulls"]),
        pa.StructArray.from_arrays([BOUND, BOUND, pa.array(["0"])], ["low", "high", "nulls"]),
        pa.StructArray.from_arrays([pa.array([math.nan]), pa.array([math.nan]), BOUND], ["low", "high", "nulls"]),
        pa.StructArray.from_arrays(
            [pa.array([0], pa.timestamp("us", "No/Zone"))] * 2 + [BOUND], ["low", "high", "nulls"]
        ),
        pa.array([None], pa.struct([("low", pa.int64()), ("high", pa.int64()), ("nulls", pa.int64())])),
    ],
)
def test_bounds_of_another_form_say_nothing(
    tmp_path: Path, said: pa.Array | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("number", pa.int64() if said is None else said.type)])) as writer:
        if said is not None:
            writer.write_batch(pa.record_batch({"number": said}))
    footer = {KEY: base64.b64encode(sink.getvalue().to_pybytes())}
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t", schema=SCHEMA)
        with monkeypatch.context() as patch:
            patch.setattr(Collected, "metadata", lambda _: footer)
            topic.push_table(numbers(10, 3), writer_id="w", batch_id=0)
        assert ranges_of(topic, 3, Condition("number", EqualTo(("number",), 11))) == [(0, 3)]
        assert store.verify().ok


def test_verifying_a_file_notices_bounds_that_are_not_those_of_its_rows(tmp_path: Path) -> None:
    schema = physical(SCHEMA)
    for right in (True, False):
        batch, other = (sealed_rows(numbers(first, 3), schema) for first in (0, 1))
        writer = SealedWriter(tmp_path, uuid.uuid4().hex, schema)
        writer.write(batch)
        if not right:
            writer._bounds = Collected(schema)
            writer._bounds.add(other)
        writer.finish()
        segment = staged_segment(writer.staged("0" * 32, "t", 0, 1), 0, NO_TS, 1)
        if right:
            check_sealed(tmp_path, segment, schema)
        else:
            with pytest.raises(DamagedSegment, match="bounds of column 'number'"):
                check_sealed(tmp_path, segment, schema)


def sealed_rows(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    rows = len(table)
    stamps = pa.array([1] * rows, pa.int64()).cast(schema.field(0).type)
    system = [stamps, *(pa.nulls(rows, schema.field(i).type) for i in (1, 2))]
    return pa.RecordBatch.from_arrays([*system, *(each.combine_chunks() for each in table.columns)], schema=schema)
