"""Batches of about the size that is wanted, whatever they came in."""

import os

import pyarrow as pa
import pytest

from jjq.log.sealed import rebatch

TARGET = 100_000


def of_rows(rows: int) -> pa.RecordBatch:
    """Rows of 1,000 bytes, in a batch of its own."""
    return pa.RecordBatch.from_pydict({"value": [os.urandom(1000)] * rows})


def rows_of(batches: list[pa.RecordBatch]) -> list[int]:
    return [batch.num_rows for batch in rebatch(batches, TARGET)]


def test_small_batches_are_joined_and_large_ones_cut() -> None:
    assert rows_of([of_rows(10)] * 25) == [90, 90, 70]
    assert rows_of([of_rows(300)]) == [100, 100, 100]
    assert rows_of([of_rows(0), of_rows(10), of_rows(300), of_rows(10)]) == [10, 100, 100, 100, 10]


@pytest.mark.parametrize("first", [0, 700])
def test_a_part_of_a_batch_counts_by_its_own_rows(first: int) -> None:
    whole = of_rows(1000)
    assert rows_of([whole.slice(first, 95)]) == [95]
    assert rows_of([whole.slice(first + 10 * i, 10) for i in range(9)]) == [90]
    assert rows_of([whole.slice(first, 200)]) == [100, 100]
