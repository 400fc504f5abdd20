"""What an append writes: every row with the time, key and value it was given, whichever encoder wrote it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jjq

US = 1_700_000_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store") as opened:
        yield opened


def column(topic: jjq.Topic, name: str) -> list[Any]:
    values = topic.read(metadata=[name]).read_all()[name]
    return (values.cast(pa.int64()) if name == "_timestamp" else values).to_pylist()


@pytest.mark.parametrize("rows", [3, 300], ids=["by template", "by pyarrow"])
def test_producer_times_are_kept_though_the_first_and_the_last_are_the_epoch(store: jjq.Store, rows: int) -> None:
    topic = store.create_topic("t", timestamps="producer")
    stamps = [0, *range(US, US + rows - 2), 0]
    topic.push_many([b"%d" % i for i in range(rows)], timestamps=stamps)
    assert column(topic, "_timestamp") == stamps
    assert topic.offset_for_timestamp(US) == {0: 1}
