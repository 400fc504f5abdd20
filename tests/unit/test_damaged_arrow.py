"""Arrow data whose buffers are not what their types say: nothing of it gets into a topic, where it would end or stop each reader."""

from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq.errors import SchemaMismatch
from jjq.log.bounds import Bounds, hold
from tests.stores import assert_whole

SCHEMA = pa.schema(
    [("s", pa.string()), ("b", pa.binary()), ("l", pa.list_(pa.int32())), ("d", pa.decimal128(5, 2)), ("n", pa.int64())]
)


def of_file(column: pa.Array, true: bytes, false: bytes) -> pa.ChunkedArray:
    """A column of an Arrow file in which some bytes were replaced: pyarrow takes a file at its word."""
    sink = pa.BufferOutputStream()
    table = pa.table({"c": column})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    assert data.count(true) == 1
    return pa.ipc.open_file(data.replace(true, false)).read_all()["c"]


TEXTS, LISTS = ["abc", "defg", "hijkl"], [[1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11, 12]]
OFFSETS = pack("<4i", 0, 3, 7, 12)
NO_TEXT = of_file(pa.array(TEXTS), b"abcdefghijkl", b"ab\xffdefghijkl")
TOO_LONG = pa.Array.from_buffers(pa.decimal128(5, 2), 1, [None, pa.py_buffer((10**30).to_bytes(16, "little"))])
DAMAGED: dict[str, tuple[str, Any, str]] = {
    "offsets beyond the end": ("b", of_file(pa.array(map(str.encode, TEXTS)), OFFSETS, pack("<4i", 0, 3, 1 << 20, 12)), "offset"),
    "offsets that go back": ("s", of_file(pa.array(TEXTS), OFFSETS, pack("<4i", 0, 7, 3, 12)), "offset"),
    "lists beyond the end": ("l", of_file(pa.array(LISTS, pa.list_(pa.int32())), OFFSETS, pack("<4i", 0, 1 << 20, 7, 12)), "offset"),
    "text that is no UTF-8": ("s", NO_TEXT, "decode the text, or make it bytes"),
    "a decimal of too many digits": ("d", TOO_LONG, "does not fit in precision"),
    "an index beyond a dictionary": ("s", pa.DictionaryArray.from_arrays(pa.array([0, 9]), pa.array(["a"]), safe=False), "out of bounds"),
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store", maintenance=False) as opened:
        yield opened


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_arrow_data_is_refused_however_it_is_pushed(store: jjq.Store, kind: str) -> None:
    name, column, why = DAMAGED[kind]
    topic, table = store.create_topic("t", schema=SCHEMA), pa.table({name: column})
    with pytest.raises(SchemaMismatch, match=f"column '{name}' .* is damaged: .*{why}"):
        topic.push_table(table)
    with pytest.raises(SchemaMismatch, match=f"column '{name}' .* is damaged: .*{why}"):
        topic.push_table(table, writer_id="w", batch_id=1)
    with store.stage() as stage:
        with pytest.raises(SchemaMismatch, match=f"column '{name}' .* is damaged: .*{why}"):
            stage.write("t", table)
        stage.write("t", pa.table({"n": [1]}))  # nothing was added, and the stage goes on
        store.commit(stage.finish())
    assert topic.read(columns=["n"]).read_all()["n"].to_pylist() == [1]
    assert_whole(store)


def test_damaged_headers_and_keys_are_refused(store: jjq.Store) -> None:
    topic = store.create_topic("plain")
    pairs = pa.StructArray.from_arrays([NO_TEXT.chunk(0), pa.array([b"1", b"2", b"3"])], ["key", "value"])
    headers, values = pa.ListArray.from_arrays([0, 1, 2, 3], pairs), pa.array([b"x"] * 3)
    with pytest.raises(SchemaMismatch, match=r"column 'headers' .* is damaged"):
        topic.push_table(pa.table({"value": values, "headers": headers}))
    with store.stage() as stage, pytest.raises(SchemaMismatch, match=r"column 'headers' .* is damaged"):
        stage.write("plain", pa.table({"value": values}), headers=headers)
    with store.stage() as stage, pytest.raises(SchemaMismatch, match=r"column 'keys' .* is damaged"):
        stage.write("plain", pa.table({"value": values}), keys=NO_TEXT)
    assert topic.offsets()[0].end == 0


def test_a_struct_with_two_fields_of_one_name_is_refused(store: jjq.Store) -> None:
    row = pa.struct([("a", pa.int32())])
    topic = store.create_topic("t", schema=pa.schema([("r", row), ("rows", pa.list_(row))]))
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    for name, column in (("r", twice), ("rows", pa.ListArray.from_arrays([0, 1], twice))):
        with pytest.raises(SchemaMismatch, match=f"column '{name}' .* it has two fields 'a'; rename or drop one"):
            topic.push_table(pa.table({name: column}))
    assert topic.offsets()[0].end == 0


def test_a_decimal_with_more_places_than_digits_is_refused(store: jjq.Store) -> None:
    with pytest.raises(SchemaMismatch, match=r"decimal128\(3, 5\), which Spark cannot read; use string"):
        store.create_topic("t", schema=pa.schema([("d", pa.decimal128(3, 5))]))


def test_bounds_of_a_decimal_of_too_many_digits_are_not_compared() -> None:
    assert hold(Bounds(TOO_LONG[0].as_py(), TOO_LONG[0].as_py(), 0, 1), TOO_LONG)
    assert not hold(Bounds(TOO_LONG[0].as_py(), TOO_LONG[0].as_py(), 1, 1), TOO_LONG)
