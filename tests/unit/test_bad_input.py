"""Input that is wrong, odd or at the edge: each gives the right result, or an error that says what to do."""

import contextlib
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import jjq
from jjq.errors import (
    InvalidArgument,
    InvalidName,
    OffsetOutOfRange,
    RecordTooLarge,
    SchemaMismatch,
    StagedFileMissing,
)
from tests.stores import assert_whole

US = 1_767_225_600_000_000  # 2026-01-01
SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), ("b", pa.binary())])
BAD_NAMES = [
    "", "../x", "..", ".", "/", "a/b", "a\\b", "x" * 250, "x" * 300, "a\0b", "\0", "tópico", "主题", "тема", "a\n", "\na",
    "a b", " a", "-a", "_a", ".a", "a#ephemeral#ephemeral", "#ephemeral", "a\u202eb", "ａ",
]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store", maintenance=False) as opened:
        yield opened


def values(topic: jjq.Topic, **options: Any) -> list[Any]:
    return topic.read(**options).read_all()["value"].to_pylist()


def everything_below(path: Path) -> set[str]:
    return {str(each.relative_to(path)) for each in path.rglob("*")}


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_a_bad_name_is_refused_before_any_path_is_touched(store: jjq.Store, name: str) -> None:
    topic = store.create_topic("t")
    before = everything_below(store.path.parent)
    for act in (
        lambda: store.create_topic(name),
        lambda: store.topic(name),
        lambda: store.delete_topic(name),
        lambda: store.alter_topic(name, sync="none"),
        lambda: topic.push_table(pa.table({"value": [b"x"]}), writer_id=name, batch_id=0),
        lambda: store.reset_writer(name),
        lambda: store.create_subscriber("t", name or "\n"),
    ):
        with pytest.raises(InvalidName, match="A-Z"):
            act()
    assert everything_below(store.path.parent) == before
    assert [each.name for each in store.topics()] == ["t"]
    assert topic.offsets()[0].end == 0


@pytest.mark.parametrize("name", [None, 3, b"bytes", ["t"]], ids=repr)
def test_a_name_that_is_no_text_is_refused(store: jjq.Store, name: Any) -> None:
    with pytest.raises(InvalidName, match="is a str"):
        store.create_topic(name)


def test_the_longest_name_and_every_character_that_is_allowed_work(store: jjq.Store) -> None:
    for name in ("x" * 249, "0", "A.b_c:d-E9", "a..", "Z:"):
        store.create_topic(name).push(b"here")
        assert values(store.topic(name)) == [b"here"]


# --- offsets and times -----------------------------------------------------------------------------------------------


def test_offsets_beyond_the_end_negative_and_too_large(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push_many([b"a", b"b", b"c"])
    assert values(topic, start=3) == []
    assert values(topic, start=-2) == [b"b", b"c"]
    assert values(topic, start=-1000) == values(topic, start=-(1 << 63)) == [b"a", b"b", b"c"]
    assert values(topic, start=-1, end=0) == []
    for beyond in (4, 1000, (1 << 63) - 1):
        with pytest.raises(OffsetOutOfRange, match=r"holds \[0, 3\)"):
            topic.read(start=beyond)
        with pytest.raises(OffsetOutOfRange):
            topic.read(end=beyond)
    for number in (1 << 63, 1 << 200, -(1 << 63) - 1):
        with pytest.raises(InvalidArgument, match="64 bits"):
            topic.read(start=number)
    for odd in (True, 1.5, None, b"1", "1", "yesterday", "", [1], {9: 0}, {"0": 0}, {True: 0}):
        with pytest.raises(InvalidArgument):
            topic.read(start=odd)
    for number in (-1, 1, True, None, "0"):
        with pytest.raises(InvalidArgument, match="partitions 0 to 0"):
            topic.plan(number, 0, 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="ends at 3"):
        topic.plan(0, 0, 4)


def test_times_before_the_first_and_after_the_last_record(store: jjq.Store) -> None:
    topic = store.create_topic("t", timestamps="producer")
    assert topic.offset_for_timestamp(US) == {0: None}
    topic.push_many([b"a", b"b"], timestamps=[US, datetime(2026, 1, 2, tzinfo=UTC)])
    assert topic.offset_for_timestamp(-(1 << 62)) == topic.offset_for_timestamp(0) == {0: 0}
    assert topic.offset_for_timestamp(US + 1) == {0: 1}
    assert topic.offset_for_timestamp(1 << 62) == {0: None}
    assert values(topic, start="1970-01-01T00:00:00Z") == [b"a", b"b"]
    assert values(topic, start="2026-01-02T01:00:00+01:00") == [b"b"]
    assert values(topic, start="9999-12-31T23:59:59Z") == []
    assert values(topic, end="2026-01-01T00:00:00.000001Z") == [b"a"]


@pytest.mark.parametrize("moment", ["2026-01-01", "2026-01-01T00:00:00", datetime(2026, 1, 1)], ids=str)  # noqa: DTZ001
def test_a_time_without_a_zone_is_refused(store: jjq.Store, moment: Any) -> None:
    topic = store.create_topic("t", timestamps="producer")
    with pytest.raises(InvalidArgument, match="time zone"):
        topic.read(start=moment)
    if isinstance(moment, datetime):
        with pytest.raises(InvalidArgument, match="time zone"):
            topic.push(b"x", timestamp=moment)


@pytest.mark.parametrize("stamp", [US // 1000, US // 1_000_000], ids=["milliseconds", "seconds"])
def test_a_pushed_time_in_the_wrong_unit_is_noticed(store: jjq.Store, stamp: int) -> None:
    topic = store.create_topic("t", timestamps="producer")
    with pytest.raises(InvalidArgument, match="microseconds"):
        topic.push(b"x", timestamp=stamp)
    assert topic.offsets()[0].end == 0


def test_times_that_do_not_fit_or_are_not_the_producers_to_give_are_refused(store: jjq.Store) -> None:
    producer, broker = store.create_topic("p", timestamps="producer"), store.create_topic("b")
    for stamp in (1 << 62, 1 << 70, -(1 << 63), True, 1.5, "now"):
        with pytest.raises(InvalidArgument):
            producer.push(b"x", timestamp=stamp)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="timestamps='producer'"):
        broker.push(b"x", timestamp=US)
    with pytest.raises(InvalidArgument, match="null"):
        producer.push_table(pa.table({"value": [b"x"], "timestamp": pa.array([None], pa.timestamp("us", "UTC"))}))


def test_a_clock_that_goes_back_takes_no_time_back(store: jjq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [US]
    monkeypatch.setattr("jjq.log.partition.now_us", lambda: clock[0])
    topic = store.create_topic("t", segment_rows=2)
    stamps = []
    for now in (US, US - 3_600_000_000, US + 5, 0, US + 4, US + 6):
        clock[0] = now
        stamps.append(topic.push(b"x").timestamp)
    assert stamps == [US, US, US + 5, US + 5, US + 5, US + 6]
    assert topic.read(metadata=["_timestamp"]).read_all()["_timestamp"].cast(pa.int64()).to_pylist() == stamps
    assert topic.offset_for_timestamp(US + 1) == {0: 2}


# --- records ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3, 300], ids=["one", "a few", "many"])
def test_null_and_empty_are_kept_apart(store: jjq.Store, rows: int) -> None:
    """Single pushes, templates and pyarrow write records in different ways."""
    topic = store.create_topic("t")
    given = [(None, None), (None, b""), (b"", None), (b"", b""), (b"k", b"v")] * rows
    if rows == 1:
        for key, value in given:
            topic.push(value, key=key)
    else:
        topic.push_many([v for _, v in given], keys=[k for k, _ in given])
    found = topic.read(metadata=["_key"]).read_all()
    assert list(zip(found["_key"].to_pylist(), found["value"].to_pylist(), strict=True)) == given


@pytest.mark.parametrize("rows", [1, 3, 300], ids=["one", "a few", "many"])
def test_scalars_of_a_column_are_values_however_many_they_are(store: jjq.Store, rows: int) -> None:
    topic = store.create_topic("t")
    for given in ([b"x", None], ["x", None]):
        column = pa.array(given * rows)
        if rows == 1:
            for value in column:
                topic.push(value)
            with store.producer() as producer:
                for value in column:
                    producer.push("t", value)
        else:
            topic.push_many(column)
            topic.push_many([b"x", *column, None])
    assert set(values(topic)) == {b"x", None}
    with pytest.raises(InvalidArgument, match="is bytes or str, not int"):
        topic.push_many([b"x"] * rows + [pa.scalar(5)])


def test_batches_without_rows_change_nothing(store: jjq.Store) -> None:
    plain, shaped = store.create_topic("t"), store.create_topic("s", schema=SCHEMA)
    assert len(plain.push_many([])) == 0
    assert len(plain.push_table(pa.table({"value": pa.array([], pa.binary())}))) == 0
    assert len(shaped.push_table(SCHEMA.empty_table())) == 0
    assert len(shaped.push_table(pd.DataFrame({"n": pd.Series([], dtype="int64")}))) == 0
    assert plain.offsets()[0].end == shaped.offsets()[0].end == 0
    # An exactly-once batch counts all the same: the next one must not be taken for it.
    shaped.push_table(SCHEMA.empty_table(), writer_id="w", batch_id=1)
    assert [(each.id, each.last_batch) for each in store.writers()] == [("w", 1)]
    assert shaped.offsets()[0].end == 0


def test_a_record_larger_than_a_segment_has_one_of_its_own(store: jjq.Store) -> None:
    topic = store.create_topic("t", segment_bytes=4096)
    given = [b"small", b"x" * 100_000, b"small", b"y" * 5000, b"small"]
    for value in given:
        topic.push(value)
    topic.push_table(pa.table({"value": [b"z" * 50_000]}), writer_id="w", batch_id=1)
    assert values(topic) == [*given, b"z" * 50_000]
    assert len(topic.segments()) > 3


def test_what_is_over_the_limits_is_refused_whole(store: jjq.Store) -> None:
    topic = store.create_topic("t", max_record_bytes=100, max_batch_bytes=1000)
    topic.push(b"x" * 100)
    for act in (
        lambda: topic.push(b"x" * 101),
        lambda: topic.push(b"x" * 60, key=b"k" * 60),
        lambda: topic.push_many([b"fits", b"x" * 101]),
        lambda: topic.push_many([b"x" * 90] * 12),
        lambda: topic.push_table(pa.table({"value": [b"x" * 101]})),
        lambda: topic.push_table(pa.table({"value": [b"x" * 90] * 12})),
    ):
        with pytest.raises(RecordTooLarge, match="bytes"):
            act()
    assert topic.offsets()[0].end == 1


def test_a_batch_over_two_gibibytes_is_refused_before_it_is_built(store: jjq.Store) -> None:
    """The same megabyte two thousand times and more: what is refused must not have been copied first."""
    topic = store.create_topic("t")
    megabyte = bytes(1 << 20)
    with pytest.raises(RecordTooLarge, match="the topic takes up to"):
        topic.push_many([megabyte] * 2100)
    column = pa.chunked_array([pa.array([megabyte])] * 2100)
    with pytest.raises(RecordTooLarge):
        topic.push_table(pa.table({"value": column}))
    shaped = store.create_topic("s", schema=SCHEMA)
    text = megabyte.decode()
    with pytest.raises(RecordTooLarge):
        shaped.push_table(pa.table({"s": pa.DictionaryArray.from_arrays(pa.array([0] * 2100, pa.int32()), [text])}))
    with pytest.raises(RecordTooLarge):
        shaped.push_many([{"s": text}] * 1100)
    store.alter_topic("t", max_batch_bytes=1 << 40)
    topic.refresh()
    with pytest.raises(RecordTooLarge):  # one message cannot be that large, whatever the topic takes
        topic.push_many([megabyte] * 2100)
    assert topic.offsets()[0].end == shaped.offsets()[0].end == 0


@contextlib.contextmanager
def bytes_of_arrow(most: int) -> Iterator[None]:
    """Arrow takes no more than so many bytes at once meanwhile."""
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        yield
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() <= most


def test_a_push_of_many_large_records_is_refused_before_it_is_copied(store: jjq.Store) -> None:
    plain = store.create_topic("t", max_batch_bytes=1 << 20)
    shaped = store.create_topic("s", schema=SCHEMA, max_batch_bytes=1 << 20)
    text = "x" * 8192
    with bytes_of_arrow(1 << 20):
        for push in (
            lambda: plain.push_many([text] * 1000),
            lambda: plain.push_many([text.encode(), None] * 500),
            lambda: shaped.push_many([{"n": 1, "s": text}] * 1000),
        ):
            with pytest.raises(RecordTooLarge, match=r"the batch has \d,.* the topic takes up to 1,048,576"):
                push()


def test_keys_headers_and_each_column_count_against_the_limit_of_a_record(store: jjq.Store) -> None:
    plain = store.create_topic("t", max_record_bytes=100)
    shaped = store.create_topic("s", schema=SCHEMA, max_record_bytes=100)
    for act in (
        lambda: plain.push(b"x", headers={"h": b"x" * 101}),
        lambda: plain.push_many([b"x", b"x"], headers=[None, {"h" * 101: b""}]),
        lambda: plain.push_table(pa.table({"value": [b"x"], "key": [b"k" * 101]})),
        lambda: shaped.push({"n": 1, "s": "x" * 101}),
        lambda: shaped.push_many([{"n": i} for i in range(50)] + [{"b": b"x" * 101}]),
        lambda: shaped.push_table(pa.table({"s": pa.array(["x" * 101]).dictionary_encode()})),
    ):
        with pytest.raises(RecordTooLarge):
            act()
    assert plain.offsets()[0].end == shaped.offsets()[0].end == 0


def test_a_reader_is_read_once_though_the_handle_did_not_know_its_columns(store: jjq.Store) -> None:
    stale = store.create_topic("s", schema=SCHEMA)
    store.alter_topic("s", add_columns=pa.schema([("x", pa.int64())]))
    table = pa.table({"n": [1, 2], "x": [3, 4]})
    assert len(stale.push_table(table.to_reader())) == 2
    assert len(stale.push_table(iter(table.to_batches()))) == 2
    assert stale.read(columns=["x"]).read_all()["x"].to_pylist() == [3, 4] * 2


@pytest.mark.parametrize("compacted", [False, True], ids=["as it is", "compacted"])
def test_a_staged_file_cannot_be_committed_twice(store: jjq.Store, compacted: bool) -> None:
    topic = store.create_topic("t")
    for number in range(8):
        with store.stage() as stage:
            stage.write(topic, pa.table({"value": [b"%d" % number]}))
            files = stage.finish()
        store.commit(files)
    if compacted:
        assert store.maintain().compacted == 8
    with pytest.raises(InvalidArgument, match="writer_id"):
        store.commit(files)
    store.maintain(grace_us=0)
    assert values(topic) == [b"%d" % number for number in range(8)]
    with pytest.raises((InvalidArgument, StagedFileMissing)):
        store.commit(files)
    topic.push(b"goes on")
    assert_whole(store)


# --- Arrow and frames ------------------------------------------------------------------------------------------------

COLUMNS: dict[str, dict[str, pa.Array]] = {
    "plain": {"s": pa.array(["a", None, ""])},
    "dictionary": {"s": pa.array(["a", None, ""]).dictionary_encode()},
    "large": {"s": pa.array(["a", None, ""], pa.large_string()), "b": pa.array([b"x", None, b""], pa.large_binary())},
    "view": {"s": pa.array(["a", None, ""], pa.string_view()), "b": pa.array([b"x", None, b""], pa.binary_view())},
    "narrow": {"n": pa.array([1, None, 3], pa.int8())},
    "unsigned": {"n": pa.array([1, None, 3], pa.uint64())},
    "fixed": {"b": pa.array([b"ab", None, b"cd"], pa.binary(2))},
    "sliced": {"s": pa.array(["-", "a", None, "", "-"])[1:4]},
    "null": {"n": pa.nulls(3), "s": pa.nulls(3)},
}


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "within a struct"])
def test_list_views_are_refused_for_their_casts_are_wrong(store: jjq.Store, wrapped: bool) -> None:
    views: pa.Array = pa.ListViewArray.from_arrays([0, 2, 5], [2, 3, 1], pa.array(range(6)))[1:]
    kind: pa.DataType = pa.list_(pa.int64())
    lists = pa.array(views.to_pylist(), kind)
    if wrapped:
        kind = pa.struct([("l", kind)])
        views, lists = (pa.StructArray.from_arrays([each], ["l"]) for each in (views, lists))
    topic = store.create_topic("views", schema=pa.schema([("c", kind)]))
    with pytest.raises(SchemaMismatch, match=r"list views are not taken; make lists of them"):
        topic.push_table(pa.table({"c": views}))
    topic.push_table(pa.table({"c": lists}))
    assert topic.read().read_all()["c"].to_pylist() == lists.to_pylist()


@pytest.mark.parametrize("linked", [False, True], ids=["appended", "linked"])
@pytest.mark.parametrize("kind", COLUMNS)
def test_arrow_of_every_encoding_arrives_as_the_topics_types(store: jjq.Store, kind: str, linked: bool) -> None:
    topic = store.create_topic("s", schema=SCHEMA)
    table = pa.table(COLUMNS[kind])
    topic.push_table(table, **({"writer_id": "w", "batch_id": 0} if linked else {}))
    found = topic.read().read_all()
    assert found.schema.types == SCHEMA.types
    for name in SCHEMA.names:
        assert found[name].to_pylist() == (table[name].to_pylist() if name in table.column_names else [None] * 3)


def test_values_that_would_change_are_refused(store: jjq.Store) -> None:
    topic = store.create_topic("s", schema=SCHEMA)
    for table in (
        pa.table({"n": pa.array([1 << 63], pa.uint64())}),
        pa.table({"n": [1.5]}),
        pa.table({"n": ["one"]}),
        pa.table({"s": pa.array([b"\xff"], pa.binary())}),
        pa.table({"unknown": [1]}),
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"]),
    ):
        with pytest.raises(SchemaMismatch):
            topic.push_table(table)
    for record in ({"n": "one"}, {"n": 1 << 63}, {"unknown": 1}, b"bytes", None, 5):
        with pytest.raises((SchemaMismatch, InvalidArgument)):
            topic.push(record)
    assert topic.offsets()[0].end == 0


KINDS = pa.schema(
    [
        ("i", pa.int32()), ("n", pa.int64()), ("f", pa.float32()), ("d", pa.float64()), ("t", pa.bool_()),
        ("s", pa.string()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("wall", pa.timestamp("us")),
        ("took", pa.duration("us")), ("de", pa.decimal128(5, 2)), ("list", pa.list_(pa.int64())),
        ("floats", pa.list_(pa.float32())), ("r", pa.struct([("a", pa.int32())])), ("m", pa.map_(pa.string(), pa.int32())),
    ]
)  # fmt: skip
NAIVE, AWARE = datetime(2013, 1, 1, 10), datetime(2013, 1, 1, 10, tzinfo=UTC)  # noqa: DTZ001
CHANGED: list[tuple[str, Any, str]] = [
    ("i", 4.7, "4.7 is no whole number"), ("i", np.float32(4.5), "4.5 is no whole number"),
    ("i", Decimal("4.5"), "4.5 is no whole number"), ("i", float("nan"), "nan is no whole number; null is None"),
    ("i", float("inf"), "inf is no whole number$"), ("i", Decimal("NaN"), "NaN is no whole number"), ("i", pd.NA, "; null is None$"),
    ("s", float("nan"), "takes string: got 'float'; null is None"), ("t", float("nan"), "; null is None$"), ("list", [float("nan")], "no whole"), ("f", 1e300, "too large"), ("f", (1 << 24) + 1, "column 'f'"),
    ("s", 5, "takes string: got 'int'"), ("d", (1 << 53) + 1, "column 'd'"), ("d", True, "no numbers"), ("day", NAIVE, "time of day"),
    ("day", pd.Timestamp(NAIVE), "time of day"), ("at", NAIVE, "no time zone"), ("at", 1.5, "no whole number"),
    ("at", pd.Timestamp(1, tz="UTC"), "nanoseconds"), ("wall", AWARE, "a time zone"),
    ("at", pd.NaT, "NaT is no time; null is None"), ("wall", pd.NaT, "NaT is no time"), ("day", pd.NaT, "NaT is no time"),
    ("day", "2013-01-01", "a text; a day is a date"),
    ("took", pd.Timedelta(1), "nanoseconds"), ("de", Decimal("1.234"), "column 'de'"), ("list", [1, 2.7], "2.7 is no"),
    ("list", np.array([1.5]), "1.5 is no"), ("list", "12", "no list"), ("floats", [1e300], "too large"),
    ("r", {"a": 2.5}, "2.5 is no"), ("r", {"a": 1, "c": 2}, "no field 'c'"), ("r", (2.5,), "2.5 is no"),
    ("r", [("a", 2.5)], "2.5 is no"), ("m", {"a": 1.5}, "1.5 is no"), ("m", [("a", 1.5)], "1.5 is no"),
]  # fmt: skip


@pytest.mark.parametrize(("column", "value", "says"), CHANGED, ids=str)
def test_a_value_that_would_have_to_change_is_refused(store: jjq.Store, column: str, value: Any, says: str) -> None:
    topic = store.create_topic("s", schema=KINDS)
    with pytest.raises(SchemaMismatch, match=says):
        topic.push({column: value})
    with pytest.raises(SchemaMismatch, match=says):
        topic.push_many([{column: None}, {}, {column: value}])
    assert topic.offsets()[0].end == 0


def test_a_value_of_another_type_that_is_the_same_is_taken(store: jjq.Store) -> None:
    topic = store.create_topic("s", schema=KINDS)
    given: dict[str, list[tuple[Any, Any]]] = {
        "i": [(4.0, 4), (np.int64(4), 4), (Decimal(4), 4)],
        "n": [(Decimal((1 << 60) + 1), (1 << 60) + 1)],
        "f": [(0.1, float(np.float32(0.1))), (float("inf"), float("inf")), (3, 3.0)],
        "d": [(5, 5.0), (1 << 53, 2.0**53)],
        "day": [(date(2013, 1, 1), date(2013, 1, 1))],
        "at": [(AWARE, AWARE), (pd.Timestamp(AWARE), AWARE), (US, datetime(2026, 1, 1, tzinfo=UTC))],
        "wall": [(NAIVE, NAIVE)],
        "took": [(timedelta(seconds=1), timedelta(seconds=1)), (5, timedelta(microseconds=5))],
        "de": [(Decimal("1.2"), Decimal("1.20")), (3, Decimal(3))],
        "list": [((1, 2.0), [1, 2]), (np.array([1, 2]), [1, 2]), ([], [])],
        "r": [({}, {"a": None}), ((1,), {"a": 1}), ([("a", 1)], {"a": 1})],
        "m": [({"a": 1}, [("a", 1)]), ([("a", 1.0)], [("a", 1)])],
    }
    for column, pairs in given.items():
        for value, stored in pairs:
            topic.push({column: value})
            assert topic.read(start=-1).read_all()[column].to_pylist() == [stored], (column, value)


OTHER_KINDS: list[tuple[str, pa.Array, str]] = [
    ("i", pa.array(["4"]), "of type string does not fit int32: cast it to int32"),
    ("i", pa.array([True]), "cast it"),
    ("i", pa.array(["4"]).dictionary_encode(), "cast it"),
    ("s", pa.array([4]), "of type int64 does not fit string: cast it to string"),
    ("s", pa.array([4]).dictionary_encode(), "cast it"),
    ("t", pa.array([1]), "cast it"),
    ("f", pa.array([1.5, None, 0.1]), "0.1 would be rounded"),
    ("f", pa.array([1e300]), "would be rounded"),
    ("d", pa.array([(1 << 53) + 1]), "column 'd'"),
    ("d", pa.array([Decimal("1.5")]), "cast it"),
    ("de", pa.array([1.234]), "cast it"),
    ("day", pa.array([NAIVE]), "cast it"),
    ("at", pa.array([5]), "cast it"),
    ("at", pa.array([NAIVE]), "time zone"),
    ("at", pa.array(["2013-01-01T10:00:00Z"]), "cast it"),
    ("at", pa.array([1], pa.timestamp("ns", "UTC")), "lose data"),
    ("took", pa.array([5]), "cast it"),
    ("list", pa.array([["1"]]), "cast it"),
    ("list", pa.array([[1.5]]), "column 'list'"),
    ("floats", pa.array([[1.5]]), "cast it"),
    ("r", pa.array([{"a": 1, "c": 2}]), "cast it"),
    ("r", pa.array([{"a": "1"}]), "cast it"),
    ("m", pa.array([[("a", "1")]], pa.map_(pa.string(), pa.string())), "cast it"),
]


@pytest.mark.parametrize(("column", "values_", "says"), OTHER_KINDS, ids=str)
def test_a_column_of_another_kind_is_not_cast(store: jjq.Store, column: str, values_: pa.Array, says: str) -> None:
    topic = store.create_topic("s", schema=KINDS)
    with pytest.raises(SchemaMismatch, match=says):
        topic.push_table(pa.table({column: values_}))
    assert topic.offsets()[0].end == 0


def test_columns_of_the_same_kind_are_cast_where_no_value_changes(store: jjq.Store) -> None:
    topic = store.create_topic("s", schema=KINDS)
    table = pa.table(
        {
            "i": [4.0, None], "n": pa.array([1, None], pa.uint8()), "f": [1.5, None], "d": pa.array([0.5, None], pa.float32()),
            "s": [b"x", None], "day": pa.array([0, None], pa.date64()), "at": pa.array([0, None], pa.timestamp("s", "CET")),
            "wall": pa.array([0, None], pa.timestamp("ns")), "took": pa.array([1, None], pa.duration("s")),
            "de": pa.array([Decimal("1.5"), None]), "list": pa.array([[1], None], pa.large_list(pa.int8())),
            "floats": pa.array([[1], None]), "r": [{"a": 1}, None],
            "m": pa.array([[("a", 1)], None], pa.map_(pa.large_string(), pa.int8())),
        }
    )  # fmt: skip
    topic.push_table(table)
    first, second = topic.read().read_all().to_pylist()
    assert second == dict.fromkeys(KINDS.names)
    assert first == {
        "i": 4, "n": 1, "f": 1.5, "d": 0.5, "t": None, "s": "x", "day": date(1970, 1, 1),
        "at": datetime(1970, 1, 1, tzinfo=UTC), "wall": datetime(1970, 1, 1), "took": timedelta(seconds=1),  # noqa: DTZ001
        "de": Decimal("1.50"), "list": [1], "floats": [1.0], "r": {"a": 1}, "m": [("a", 1)],
    }  # fmt: skip
    topic.push_table(pa.table({"f": [float("nan"), 2.5]}))
    assert str(topic.read(start=-2).read_all()["f"].to_pylist()) == "[nan, 2.5]"


def test_headers_in_a_table_are_lists_of_pairs_or_maps(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    pair = pa.struct([("value", pa.large_binary()), ("key", pa.large_string())])
    for headers in (
        pa.array([[{"key": "k", "value": b"v"}]], pa.large_list(pair)),
        pa.array([[{"key": "k", "value": "v"}]]),
        pa.array([[("k", b"v")]], pa.map_(pa.string(), pa.binary())),
    ):
        topic.push_table(pa.table({"value": [b"x"], "headers": headers}))
        assert topic.read(start=-1, metadata=["_headers"]).read_all()["_headers"].to_pylist() == [
            [{"key": "k", "value": b"v"}]
        ]
    with pytest.raises(SchemaMismatch):
        topic.push_table(pa.table({"value": [b"x"], "headers": [[{"key": "k", "value": b"v", "more": 1}]]}))


def test_times_in_a_table_are_moments_or_microseconds(store: jjq.Store) -> None:
    topic = store.create_topic("t", timestamps="producer")
    for stamp in (pa.array([US]), pa.array([US // 1_000_000], pa.timestamp("s", "UTC"))):
        topic.push_table(pa.table({"value": [b"x"], "timestamp": stamp}))
    assert topic.read(metadata=["_timestamp"]).read_all()["_timestamp"].cast(pa.int64()).to_pylist() == [US, US]
    with pytest.raises(SchemaMismatch):
        topic.push_table(pa.table({"value": [b"x"], "timestamp": [1.0]}))


def test_frames_of_pandas_and_polars_arrive_by_column(store: jjq.Store) -> None:
    topic = store.create_topic("s", schema=SCHEMA)
    topic.push_table(pd.DataFrame({"s": ["a", None], "n": pd.array([1, None], dtype="Int64")}, index=[7, 3]))
    topic.push_table(pl.DataFrame({"n": [2, None], "s": ["b", None]}))
    topic.push_table(pl.DataFrame({"s": pl.Series(["c", "c"], dtype=pl.Categorical)}), key="s")
    assert topic.read(columns=["n", "s"]).read_all().to_pylist() == [
        {"n": 1, "s": "a"}, {"n": None, "s": None}, {"n": 2, "s": "b"}, {"n": None, "s": None},
        {"n": None, "s": "c"}, {"n": None, "s": "c"},
    ]  # fmt: skip
