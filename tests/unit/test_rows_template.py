"""The messages that are written without pyarrow, read back by it."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from jjq.headers import headers_array, null_headers
from jjq.log.flat import PREFIX
from jjq.log.format import ActiveField, Encoded, check_active, place
from jjq.log.template import RowsTemplate
from jjq.schema import physical

SCHEMA = physical(None)
TEMPLATE = RowsTemplate(SCHEMA)
FIELD = ActiveField(b"t" * 16, 3, 7, 1, 0, 5)
ITEMS = st.lists(st.none() | st.binary(max_size=9), min_size=1, max_size=20)
PAIRS = st.lists(st.tuples(st.text(max_size=5).filter(str.isprintable), st.none() | st.binary(max_size=9)), max_size=3)


def read(message: Encoded) -> pa.RecordBatch:
    head = place(message, FIELD._replace(rows=message.rows))
    body = pa.py_buffer(b"".join(message.body))
    assert check_active(head, body).rows == message.rows
    assert len(head) % 8 == PREFIX % 8 == len(body) % 8 == 0
    batch = pa.ipc.read_record_batch(pa.py_buffer(head + body.to_pybytes()), SCHEMA)
    batch.validate(full=True)
    return batch


def batch_of(keys: pa.Array, headers: pa.Array, values: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([keys, headers, values], schema=pa.schema(list(SCHEMA)[1:]))


@given(ITEMS, st.data())
def test_lists_are_read_back_by_pyarrow(values: list[bytes | None], data: st.DataObject) -> None:
    rows = len(values)
    keys = data.draw(st.lists(st.none() | st.binary(max_size=9), min_size=rows, max_size=rows))
    stamps = data.draw(st.lists(st.integers(-(1 << 60), 1 << 60), min_size=rows, max_size=rows))
    found = read(TEMPLATE.encode(stamps, keys, values))
    assert found.column(0).cast(pa.int64()).to_pylist() == stamps
    assert found.column(1).to_pylist() == keys
    assert found.column(2).to_pylist() == [None] * rows
    assert found.column(3).to_pylist() == values


@given(ITEMS, st.data())
def test_headers_are_read_back_by_pyarrow(values: list[bytes | None], data: st.DataObject) -> None:
    rows = len(values)
    keys = data.draw(st.lists(st.none() | st.binary(max_size=9), min_size=rows, max_size=rows))
    headers = data.draw(st.lists(st.none() | PAIRS, min_size=rows, max_size=rows))
    message = TEMPLATE.encode([0] * rows, keys, values, headers)
    found = read(message)
    assert found.column(1).to_pylist() == keys
    assert found.column(2).equals(headers_array(headers))
    assert found.column(3).to_pylist() == values
    assert message.layout != TEMPLATE.layout  # or they would be read without them


@given(ITEMS, st.data())
def test_a_batch_becomes_the_bytes_that_its_lists_become(values: list[bytes | None], data: st.DataObject) -> None:
    rows = len(values)
    keys = data.draw(st.lists(st.none() | st.binary(max_size=9), min_size=rows, max_size=rows))
    arrays = pa.array(keys, pa.binary()), null_headers(rows), pa.array(values, pa.binary())
    assert TEMPLATE.encode_batch(batch_of(*arrays)) == TEMPLATE.encode([0] * rows, keys, values)
    nothing = pa.nulls(rows, pa.binary())
    assert TEMPLATE.encode_batch(batch_of(nothing, arrays[1], arrays[2])) == TEMPLATE.encode(
        [0] * rows, [None] * rows, values
    )


@given(ITEMS, st.data())
def test_columns_become_the_bytes_that_their_lists_become(values: list[bytes | None], data: st.DataObject) -> None:
    rows = len(values)
    keys = data.draw(st.none() | st.lists(st.none() | st.binary(max_size=9), min_size=rows, max_size=rows))
    times = st.lists(st.integers(-(1 << 60), 1 << 60), min_size=rows, max_size=rows)
    stamps = data.draw(st.none() | times)
    names = None if keys is None else pa.array(keys, pa.binary())
    expected = TEMPLATE.encode(stamps or [0] * rows, keys or [None] * rows, values)
    found = TEMPLATE.encode_columns(stamps, names, pa.array(values, pa.binary()))
    assert (found.head, b"".join(found.body)) == (expected.head, b"".join(expected.body))
    assert (found.min_ts, found.max_ts, found.rows) == (expected.min_ts, expected.max_ts, expected.rows)


@given(ITEMS, st.integers(0, 5), st.integers(0, 5))
def test_part_of_a_batch_is_encoded_right_or_left_to_pyarrow(
    values: list[bytes | None], before: int, behind: int
) -> None:
    whole = pa.array([b"before"] * before + values + [b"behind"] * behind, pa.binary())
    part = whole.slice(before, len(values))
    other = pa.Array.from_buffers(pa.binary(), len(values), part.buffers(), offset=before)
    for column in (part, other):
        found = TEMPLATE.encode_batch(batch_of(pa.nulls(len(values), pa.binary()), null_headers(len(values)), column))
        if found is None:
            assert before
        else:
            assert read(found).column(3).to_pylist() == values


def test_offsets_that_do_not_begin_at_zero_are_left_to_pyarrow() -> None:
    ends = pa.py_buffer(b"".join(each.to_bytes(4, "little") for each in (2, 3, 5)))
    column = pa.Array.from_buffers(pa.binary(), 2, [None, ends, pa.py_buffer(b"..abb")])
    assert column.to_pylist() == [b"a", b"bb"]
    assert TEMPLATE.encode_batch(batch_of(pa.nulls(2, pa.binary()), null_headers(2), column)) is None


def test_headers_are_left_to_pyarrow() -> None:
    headers = pa.array([None, [{"key": "k", "value": b"v"}]], SCHEMA.field(2).type)
    values = pa.array([b"a", b"b"], pa.binary())
    assert TEMPLATE.encode_batch(batch_of(pa.nulls(2, pa.binary()), headers, values)) is None


def test_large_parts_are_not_copied_and_come_in_their_order() -> None:
    keys = pa.array([b"k" * 40_000, b"kk", None], pa.binary())
    values = pa.array([b"v", None, b"v" * 70_001], pa.binary())
    message = TEMPLATE.encode_batch(batch_of(keys, null_headers(3), values))
    assert message is not None
    assert [part.address for part in message.body if isinstance(part, pa.Buffer)] == [
        keys.buffers()[2].address, values.buffers()[2].address,
    ]  # fmt: skip
    found = read(message)
    assert found.column(1).equals(keys)
    assert found.column(3).equals(values)
