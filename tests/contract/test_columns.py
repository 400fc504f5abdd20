"""How many columns a topic may have."""

import pyarrow as pa
import pytest

import jjq
from jjq.schema import MOST_COLUMNS


def test_a_topic_has_so_many_columns_and_no_more(store: jjq.Store) -> None:
    def wide(count: int) -> pa.Schema:
        return pa.schema([(f"c{i}", pa.int64()) for i in range(count)])

    nested = pa.struct([(f"f{i}", pa.list_(pa.int64())) for i in range(MOST_COLUMNS // 2)])  # a list's items count, too
    for schema in (wide(MOST_COLUMNS + 1), wide(100_000), pa.schema([("nested", nested)])):
        with pytest.raises(jjq.SchemaMismatch, match="up to 4,096 columns"):
            store.create_topic("t", schema=schema)
    topic = store.create_topic("t", schema=wide(MOST_COLUMNS), sync="none")
    with pytest.raises(jjq.SchemaMismatch, match="up to 4,096 columns"):
        store.alter_topic("t", add_columns=pa.schema([("one_more", pa.int64())]))
    topic.push({"c0": 1, "c4095": 2})
    with pytest.raises(jjq.SchemaMismatch, match="no column 'd0'"):
        topic.push({f"d{i}": i for i in range(100_000)})
    (row,) = topic.read(columns=["c0", "c4095"], metadata=[]).read_all().to_pylist()
    assert row == {"c0": 1, "c4095": 2}
