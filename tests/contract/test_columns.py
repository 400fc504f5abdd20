"""How many columns a topic may have, and columns that come while rows are pushed."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import jjq
from jjq.schema import MOST_COLUMNS
from tests.stores import flip


def test_a_topic_has_so_many_columns_and_no_more(store: jjq.Store) -> None:
    def wide(count: int) -> pa.Schema:
        return pa.schema([(f"c{i}", pa.int64()) for i in range(count)])

    nested = pa.struct([(f"f{i}", pa.list_(pa.int64())) for i in range(MOST_COLUMNS // 2)])  # a list's items count, too
    encoded = pa.dictionary(pa.int8(), nested)
    for schema in (
        wide(MOST_COLUMNS + 1),
        wide(100_000),
        pa.schema([("nested", nested)]),
        pa.schema([("nested", encoded)]),
    ):
        with pytest.raises(jjq.SchemaMismatch, match="up to 4,096 columns"):
            store.create_topic("t", schema=schema)
    topic = store.create_topic("t", schema=wide(MOST_COLUMNS), sync="none")
    with pytest.raises(jjq.SchemaMismatch, match="up to 4,096 columns"):
        store.alter_topic("t", add_columns=pa.schema([("one_more", pa.int64())]))
    topic.push({"c0": 1, "c4095": 2})
    with pytest.raises(jjq.SchemaMismatch, match=r"no columns 'd0', .* and 99990 more"):
        topic.push({f"d{i}": i for i in range(100_000)})
    (row,) = topic.read(columns=["c0", "c4095"], metadata=[]).read_all().to_pylist()
    assert row == {"c0": 1, "c4095": 2}


def test_a_read_of_no_columns_has_all_rows(store: jjq.Store) -> None:
    topic = store.create_topic("t", schema=pa.schema([("a", pa.int64())]), partitions=2, sync="none")
    for partition, rows in ((0, 3), (1, 40), (1, 2)):
        topic.push_table(pa.table({"a": range(rows)}), partition=partition)
    plain = store.create_topic("plain", sync="none")
    plain.push_many([b"x", b"y"])
    store.maintain()
    topic.push_table(pa.table({"a": range(5)}), partition=0)
    assert topic.read(columns=[]).schema == pa.schema([])
    for on_data_loss in ("error", "skip"):
        assert topic.read(columns=[], on_data_loss=on_data_loss).read_all().num_rows == 50
    assert topic.read(-1, columns=[], partitions=[1]).read_all().num_rows == 1
    assert plain.read(columns=[], metadata=[]).read_all().num_rows == 2
    assert len(topic.to_pandas(columns=[])) == 50
    slices = [each for p, rows in enumerate((8, 42)) for each in topic.plan(p, 0, rows)]
    assert sum(batch.num_rows for batch in store.read_slices(slices, columns=[])) == 50


def test_only_the_columns_that_are_read_are_verified(store: jjq.Store, directory: Path) -> None:
    topic = store.create_topic("t", schema=pa.schema([("a", pa.int64()), ("b", pa.string())]))
    topic.push_table(pa.table({"a": [1, 2, 3], "b": ["first", "needle", "third"]}), writer_id="w", batch_id=1)
    (file,) = directory.glob("topics/*/*/*.arrow")
    flip(file, file.read_bytes().index(b"needle"))
    for columns in (["b"], ["a", "b"], None):
        with pytest.raises(jjq.DamagedSegment, match="column 'b' does not match its checksum"):
            topic.read(columns=columns).read_all()
    assert topic.read(columns=["a"], metadata=[]).read_all()["a"].to_pylist() == [1, 2, 3]


@pytest.mark.embedded
def test_a_column_has_so_many_levels_and_no_more(store: jjq.Store) -> None:
    def deep(levels: int) -> pa.DataType:
        return pa.int64() if levels == 1 else pa.list_(deep(levels - 1))

    for levels in (61, 500, 900):
        with pytest.raises(jjq.SchemaMismatch, match="more than 60 levels"):
            store.create_topic("t", schema=pa.schema([("c", deep(levels))]))
    topic = store.create_topic("t", schema=pa.schema([("c", deep(60))]))
    topic.push({"c": [[]]})
    assert topic.read(metadata=[]).read_all().to_pylist() == [{"c": [[]]}]


def test_a_number_is_no_name_of_a_column(store: jjq.Store) -> None:
    topic = store.create_topic("t", schema=pa.schema([("1", pa.int64())]))
    row: Any = {1: 5}
    with pytest.raises(jjq.SchemaMismatch, match="by their names, which are str, not 1"):
        topic.push(row)


@pytest.mark.parametrize("how", ["push_table", "stage"])
def test_the_named_index_of_a_pandas_frame_is_a_column(store: jjq.Store, how: str) -> None:
    topic = store.create_topic(
        "t", schema=pa.schema([("carrier", pa.string()), ("day", pa.int64()), ("n", pa.float64())])
    )

    def push(topic: jjq.Topic, frame: pd.DataFrame) -> None:
        if how == "push_table":
            topic.push_table(frame)
            return
        with store.stage() as stage:
            stage.write(topic, frame)
            store.commit(stage.finish())

    flights = pd.DataFrame({"carrier": ["UA", "B6", "UA"], "day": [1, 1, 2], "n": [1.0, 2.0, 5.0]})
    rows = flights.to_dict("records")
    push(topic, flights.groupby("carrier", sort=False)[["n"]].mean())
    push(topic, flights.set_index(["carrier", "day"]))
    push(topic, flights[["carrier"]].set_index("carrier"))  # a frame of nothing else has rows, too
    push(topic, flights.rename_axis("carrier"))  # a column already: that one is taken
    push(topic, flights[["n"]].set_index(pd.MultiIndex.from_product([[9], [1, 2, 3]], names=["day", None])))
    found = topic.read(metadata=[]).read_all().to_pylist()
    assert found[:2] == [{"carrier": "UA", "day": None, "n": 3.0}, {"carrier": "B6", "day": None, "n": 2.0}]
    assert found[2:5] == rows
    assert found[5:8] == [{"carrier": row["carrier"], "day": None, "n": None} for row in rows]
    assert found[8:11] == rows
    assert found[11:] == [{"carrier": None, "day": 9, "n": row["n"]} for row in rows]

    unknown = r"no column 'x'; .*Of the frame's index, reset_index\(\['x'\], drop=True\) leaves them out"
    with pytest.raises(jjq.SchemaMismatch, match=unknown):
        push(topic, flights.set_index(["carrier"]).set_index(pd.Index(["a", "b", "c"], name="x"), append=True))
    with pytest.raises(
        jjq.SchemaMismatch, match=r"has no schema: .*, not value, x\. Of the frame's index, reset_index"
    ):
        push(store.create_topic("plain"), pd.DataFrame({"value": [b"v"]}, index=pd.Index([1], name="x")))
    with pytest.raises(jjq.SchemaMismatch, match="cannot become Arrow columns: Duplicate column names found"):
        push(topic, pd.DataFrame([[1.0, 2.0]], columns=["n", "n"]))
    assert topic.offsets()[0].end == len(found)


def test_columns_and_partitions_that_come_at_once_while_rows_are_staged(
    store: jjq.Store, reopen: Callable[[], jjq.Store]
) -> None:
    topic = store.create_topic("t", schema=pa.schema([("a", pa.int64())]), sync="none")
    with store.stage() as stage:
        stage.write(topic, pa.table({"a": [1]}), partition=0)
        reopen().alter_topic("t", partitions=2, add_columns=pa.schema([("b", pa.int64())]))
        stage.write(topic, pa.table({"a": [2]}), partition=1)
        stage.write(topic, pa.table({"a": [3], "b": [3]}), partition=1)
        store.commit(stage.finish())
    found = reopen().topic("t").read(metadata=[]).read_all().to_pylist()
    assert found == [{"a": 1, "b": None}, {"a": 2, "b": None}, {"a": 3, "b": 3}]


def test_columns_that_a_later_row_of_an_atomic_push_is_the_first_to_have(
    store: jjq.Store, reopen: Callable[[], jjq.Store]
) -> None:
    topic = store.create_topic("t", schema=pa.schema([("a", pa.int64())]), partitions=2, sync="none")
    reopen().alter_topic("t", add_columns=pa.schema([("b", pa.int64())]))
    keys = sorted(map(str, range(8)), key=lambda key: topic.push({"a": 0}, key=key).partition)
    topic.push_many([{"a": 1}, {"a": 2, "b": 2}], keys=[keys[0], keys[-1]], atomic=True)
    found = [row for row in topic.read(metadata=[]).read_all().to_pylist() if row["a"]]
    assert found == [{"a": 1, "b": None}, {"a": 2, "b": 2}]


def test_a_record_counts_with_all_of_its_values_together_nested_ones_too(store: jjq.Store) -> None:
    schema = pa.schema([("texts", pa.list_(pa.string())), ("a", pa.string()), ("b", pa.string())])
    topic = store.create_topic("t", schema=schema, max_record_bytes=1024)
    small = [{"a": "x" * 1000}] * 3
    for row in ({"texts": ["x" * 100] * 11}, {"a": "x" * 600, "b": "y" * 600}, {"texts": ["x" * 600], "b": "y" * 600}):
        many = pa.Table.from_pylist([*small, row, *small], schema)
        with pytest.raises(jjq.RecordTooLarge, match="the record has 1,"):
            topic.push(row)
        with pytest.raises(jjq.RecordTooLarge, match="record 3 has 1,"):
            topic.push_many([*small, row])
        with pytest.raises(jjq.RecordTooLarge, match="record 3 has 1,"):
            topic.push_table(many)
        with pytest.raises(jjq.RecordTooLarge, match="record 3 has 1,"), store.stage() as stage:
            stage.write(topic, many)
    with pytest.raises(jjq.RecordTooLarge, match="record 1 has 1,100"):  # the key counts beside its column
        topic.push_table(pa.table({"a": ["x", "y" * 300], "b": ["k", "k" * 400]}), key="b")
    assert topic.offsets()[0].end == 0
    topic.push_many([{"a": "x" * 1000}, {"texts": ["x" * 100] * 9}])
    topic.push_table(pa.Table.from_pylist(small * 100, schema))
    assert topic.offsets()[0].end == 302


def test_without_pandas_a_frame_says_what_it_needs(store: jjq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = store.create_topic("t")
    topic.push(b"a")
    monkeypatch.setitem(sys.modules, "pandas", None)  # as Python has it for a module that is not to be found
    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
        topic.to_pandas()


def test_a_memoryview_that_was_released_is_refused(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    view = memoryview(b"abc")
    topic.push(view)
    view.release()
    for push in (
        lambda: topic.push(view),
        lambda: topic.push_many([b"x", view]),
        lambda: topic.push_many([view] * 300),
    ):
        with pytest.raises(jjq.InvalidArgument, match="was released"):
            push()
    assert topic.read().read_all()["value"].to_pylist() == [b"abc"]


@pytest.mark.parametrize("staged", [False, True])
def test_a_part_of_a_table_takes_the_room_of_its_own_rows(store: jjq.Store, staged: bool) -> None:
    """Of texts in lists Arrow writes those of the whole table, where a part has none."""
    texts = pa.list_(pa.string())
    schema = pa.schema(
        {"n": pa.int64(), "absent": texts, "null": texts, "map": pa.map_(pa.string(), pa.string()), "few": texts}
    )
    topic = store.create_topic("t", schema=schema)
    rows = 300_000
    few = pa.array([["x" * 1000] * 3] * 1000 + [None] * (rows - 1000), texts)
    table = pa.table(
        {"n": range(rows), "null": pa.nulls(rows, texts), "map": pa.nulls(rows, schema.field("map").type), "few": few}
    )
    if staged:
        topic.push_table(table, writer_id="w", batch_id=1)
    else:
        for start in range(0, rows, 50_000):
            topic.push_table(table.slice(start, 50_000))
    assert topic.describe()["bytes"] < 60 * rows  # eight for the number, some four for each other column
    assert topic.read(metadata=[]).read_all().select(table.column_names).equals(table.cast(topic.schema.remove(1)))
