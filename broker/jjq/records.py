"""Rows as single records, for people and consumers that take them one by one."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from jjq.model import Record

# What records are made of beside the topic's own columns, which stand before these.
METADATA = ("_partition", "_offset", "_timestamp", "_key", "_headers")

# What a NamedTuple's own constructor does, from an iterable and without a Python frame: a fifth of the time of a dataclass.
_record: Callable[[Iterable[Any]], Record] = functools.partial(tuple.__new__, Record)


def to_records(topic: str, batch: pa.RecordBatch, raw: bool) -> list[Record]:
    """A batch of the topic's columns and METADATA, as Records."""
    own = batch.num_columns - len(METADATA)
    partition, offset, stamps, key, headers = batch.columns[own:]
    values = batch.column(0).to_pylist() if raw else batch.select(list(range(own))).to_pylist()
    all_headers: Iterable[Any] = itertools.repeat(None)
    if headers.null_count != batch.num_rows:
        all_headers = [None if h is None else [(e["key"], e["value"]) for e in h] for h in headers.to_pylist()]
    rows = zip(
        itertools.repeat(topic), partition.to_pylist(), offset.to_pylist(), stamps.view(pa.int64()).to_pylist(),
        key.to_pylist(), all_headers, values, strict=False,
    )  # fmt: skip
    return list(map(_record, rows))
