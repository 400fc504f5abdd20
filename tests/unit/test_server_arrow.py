"""What strangers send as Arrow: lengths that lie, and buffers that become large once they are unpacked."""

from __future__ import annotations

import struct
import tracemalloc
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq.headers import headers_array, longest_headers
from jjq.log.flat import unpacked_bytes
from jjq.schema import HEADERS, PLAIN
from jjq.server.batches import check_batch
from jjq.server.flight_append import append

ROWS = 12_345  # a number that is nothing else in a message


def stream(batch: pa.RecordBatch, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("claimed", [2**31 - 2, 2**62, -5])
@pytest.mark.parametrize("kind", [pa.binary(), pa.list_(pa.string()), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_a_batch_that_lies_about_its_rows_is_refused_before_its_offsets_are_followed(
    claimed: int, kind: pa.DataType
) -> None:
    """To ask how many bytes it has would read far behind its buffers, and end the process."""
    values = pa.array([["xyz"] if pa.types.is_list(kind) else "xyz"] * ROWS).cast(kind)
    told = stream(pa.record_batch([values], names=["value"]))
    lie = told.replace(struct.pack("<q", ROWS), struct.pack("<q", claimed))
    assert lie != told
    with pa.ipc.open_stream(lie) as reader:
        batch = reader.read_next_batch()
    with pytest.raises(jjq.InvalidArgument, match="damaged"):
        check_batch(batch, 1 << 20, 1 << 20)


def test_a_large_batch_is_refused_and_one_that_fits_is_not() -> None:
    batch = pa.record_batch([pa.array([b"x" * 100] * 10)], names=["value"])
    check_batch(batch, 100, batch.nbytes)
    with pytest.raises(jjq.RecordTooLarge):
        check_batch(batch, 100, batch.nbytes - 1)


@pytest.mark.parametrize("encoded", [False, True], ids=["plain", "dictionary"])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_a_value_that_is_too_large_is_refused_however_it_is_encoded(kind: pa.DataType, encoded: bool) -> None:
    for size, fits in ((100, True), (101, False)):
        column: pa.Array = pa.array(["x", None, "x" * size, "y"]).cast(kind)[1:]
        if encoded:
            column = pa.DictionaryArray.from_arrays(pa.array([2, 1], pa.int8()), column)
        batch = pa.record_batch([column], names=["c"])
        if fits:
            check_batch(batch, 100, 1 << 20)
        else:
            with pytest.raises(jjq.RecordTooLarge, match="a value of column 'c' has 101 bytes"):
                check_batch(batch, 100, 1 << 20)


@pytest.mark.parametrize(
    "value", [Decimal("1.25"), True, 1.5, date(2013, 1, 1), timedelta(1), "x", b"x", None], ids=repr
)
def test_a_dictionary_of_any_plain_type_is_taken(value: object) -> None:
    column: pa.Array = pa.DictionaryArray.from_arrays(pa.array([0] * 10, pa.int8()), pa.array([value]))
    check_batch(pa.record_batch([column], names=["c"]), 100, 1000)
    with pytest.raises(jjq.InvalidArgument, match="a dictionary of list"):
        check_batch(
            pa.record_batch([pa.DictionaryArray.from_arrays(column.indices, pa.array([[value]]))], names=["c"]),
            100,
            1000,
        )


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_what_a_message_unpacks_to_is_known_before_it_is_unpacked(compression: str | None) -> None:
    values = pa.array([bytes(1000), b"x" * 1000] * 500)
    for each in (values, values.dictionary_encode()):
        batch = pa.record_batch([each, pa.nulls(1000, pa.int64())], names=["value", "number"])
        told = [
            (message.type, unpacked_bytes(message.metadata.to_pybytes(), memoryview(message.body or b"")))
            for message in pa.ipc.MessageReader.open_stream(stream(batch, compression))
        ]
        assert told[0] == ("schema", 0)
        size = sum(bytes_ for _, bytes_ in told)
        assert batch.nbytes <= size + 64
        assert size <= batch.nbytes + 16 * 64  # what aligns buffers


@pytest.mark.parametrize("headers", [[[{"key": None, "value": b"x"}]], [[{"key": "a", "value": b""}, None]]])
def test_a_header_without_a_name_is_refused(tmp_path: Path, headers: list[Any]) -> None:
    column, value = pa.array(headers, HEADERS), pa.array([b"v"])
    batch = pa.record_batch([pa.nulls(1, pa.binary()), column, value], names=["_key", "_headers", "value"])
    with jjq.open(tmp_path, maintenance=False) as store:
        topic = store.create_topic("t")
        with pytest.raises(jjq.InvalidArgument, match="no name"):
            append(topic, 0, 0, batch, None, 1 << 20, None)
        with pytest.raises(jjq.InvalidArgument, match="no name"):
            topic.push_table(pa.table([value, column], names=["value", "headers"]))
        assert topic.offsets()[0].end == 0


def test_headers_are_as_long_as_their_names_and_values_of_one_row() -> None:
    rows = [None, [("four", b"12"), ("", None)], [], [("ü", b"1234"), ("a", b"")]]
    column = headers_array(rows)
    assert longest_headers(column) == 7
    assert longest_headers(column[:3]) == 6
    assert longest_headers(column[2:3]) == longest_headers(column[:1]) == 0


def test_what_lies_below_a_null_is_no_headers() -> None:
    pairs = pa.array([{"key": "not there", "value": b""}, {"key": "a", "value": b"12"}], HEADERS.value_type)
    ends, nulls = pa.array([0, 1, 2], pa.int32()), pa.array([True, False])
    column = pa.ListArray.from_arrays(ends, pairs, type=HEADERS, mask=nulls)
    assert longest_headers(column) == longest_headers(column[1:]) == 3
    assert longest_headers(column[:1]) == 0


def test_headers_that_are_many_are_no_objects(tmp_path: Path) -> None:
    """Empty ones have no bytes to be too many, and each would take two hundred as an object."""
    many = 100_000
    pairs = pa.StructArray.from_arrays(
        [pa.array([""] * many), pa.nulls(many, pa.binary())], fields=[*HEADERS.value_type]
    )
    headers = pa.ListArray.from_arrays(pa.array([0, many], pa.int32()), pairs, type=HEADERS)
    batch = pa.record_batch([pa.nulls(1, pa.binary()), headers, pa.array([b"v"])], schema=PLAIN)
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t")
        append(topic, 0, 0, batch, None, 1 << 20, None)
        tracemalloc.start()
        try:
            append(topic, 0, 0, batch, None, 1 << 20, None)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < many
        assert topic.read(metadata=["_headers"]).read_all()["_headers"].combine_chunks()[1:].equals(headers)
