"""Numbers that are none, too large, or longer than Python writes: each an error of jjq's own, and nothing changed."""

import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pyarrow as pa
import pytest

import jjq
from jjq.values import MOST, counted, living, shown, timeout_s
from tests.stores import assert_whole


class Growing(WeakSet[Any]):
    """To which another thread adds one as it is first gone through."""

    added = False

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            if not self.added:
                self.added = True
                self.add(MORE)
            yield each


class One:
    """What can be referred to weakly."""


MORE = One()


def test_of_what_there_is_one_it_is_said_so() -> None:
    assert [counted(number, "record") for number in (0, 1, 1234)] == ["0 records", "1 record", "1,234 records"]
    assert [counted(number, "batch is", "batches are") for number in (1, 2)] == ["1 batch is", "2 batches are"]


def test_a_set_that_grows_as_it_is_listed_is_listed_whole() -> None:
    first, second = One(), One()
    assert set(living(Growing([first, second]))) == {first, second, MORE}


ODD = [1 << 63, -(1 << 63) - 1, 10**5000, -(10**5000), math.inf, math.nan, "1" * 5000, b"x", object(), "\ud800"]
TABLE = pa.table({"value": [b"x"]})

CALLS: dict[str, Callable[[jjq.Store, Any], Any]] = {
    **{
        setting: (lambda store, odd, setting=setting: store.create_topic("new", **{setting: odd}))  # type: ignore[misc]
        for setting in (
            "partitions", "sync", "sync_interval_ms", "segment_bytes", "segment_rows", "segment_age", "retention",
            "retention_bytes", "retention_segments", "retention_waits", "max_record_bytes", "max_batch_bytes", "timestamps",
        )
    },
    **{
        setting: (lambda store, odd, setting=setting: store.channel("t", "new", create=True, **{setting: odd}))  # type: ignore[misc]
        for setting in ("max_attempts", "ack_timeout", "start", "max_in_flight")
    },
    "alter": lambda store, odd: store.alter_topic("t", retention=odd),
    "read start": lambda store, odd: store.topic("t").read(start=odd),
    "read start of one": lambda store, odd: store.topic("t").read(start={0: odd}),
    "read of a partition": lambda store, odd: store.topic("t").read(partitions=[odd]),
    "read columns": lambda store, odd: store.topic("t").read(columns=[odd]),
    "read metadata": lambda store, odd: store.topic("t").read(metadata=[odd]),
    "offset for timestamp": lambda store, odd: store.topic("t").offset_for_timestamp(odd),
    "plan start": lambda store, odd: store.topic("t").plan(0, odd, 2),
    "plan end": lambda store, odd: store.topic("t").plan(0, 0, odd),
    "plan lineage": lambda store, odd: store.topic("t").plan(0, 0, 2, lineage=odd),
    "push partition": lambda store, odd: store.topic("t").push(b"", partition=odd),
    "push delay": lambda store, odd: store.topic("t").push(b"", delay=odd),
    "push timestamp": lambda store, odd: store.topic("stamped").push(b"", timestamp=odd),
    "table batch": lambda store, odd: store.topic("t").push_table(TABLE, writer_id="w", batch_id=odd),
    "table key": lambda store, odd: store.topic("t").push_table(TABLE, key=odd),
    "commit batch": lambda store, odd: store.commit([], "w", odd),
    "staged default": lambda store, odd: store.stage(default_partition=odd),
    "pop": lambda store, odd: store.subscriber("s").pop(timeout="1" if isinstance(odd, (int, float)) else odd),
    "poll": lambda store, odd: store.subscriber("s").poll(max_records=odd, timeout=0),
    "seek": lambda store, odd: store.subscriber("s").seek(odd),
    "receive": lambda store, odd: store.channel("t", "c").receive(max_records=odd, timeout=0),
    "linger": lambda store, odd: store.producer(linger_ms=odd),
    "batch bytes": lambda store, odd: store.producer(batch_bytes=odd),
    "window": lambda store, odd: store.producer(window=odd),
    "delivery timeout": lambda store, odd: store.producer(delivery_timeout_s=odd),
    "hot bytes": lambda store, odd: jjq.open(store.path, hot_bytes=-1 if type(odd) is int else odd),
    "sample": lambda store, odd: store.verify(sample=odd),
    "grace": lambda store, odd: store.maintain(grace_us=odd),
    "staged file": lambda store, odd: jjq.StagedFile.from_json(f'{{"rows": "{type(odd)}"}}'),
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        store.create_topic("t").push_many([b"a", b"b"])
        store.create_topic("stamped", timestamps="producer")
        store.create_subscriber("t", "s")
        store.channel("t", "c", create=True)
        yield store
        assert_whole(store)


@pytest.mark.parametrize("call", CALLS)
def test_odd_numbers_are_refused_in_words(call: str, store: jjq.Store) -> None:
    for odd in ODD:
        with pytest.raises(jjq.InvalidArgument) as caught:
            CALLS[call](store, odd)
        assert len(str(caught.value)) < 1000
    assert [topic.name for topic in store.topics()] == ["stamped", "t"]
    assert [each.end for each in store.topic("t").offsets()] == [2]
    assert not store.writers()


@pytest.mark.parametrize("text", ["", "[]", "null", "1", "{", '{"rows": 1}', '{"more": 1}'])
def test_a_text_that_is_no_staged_file_is_refused(text: str) -> None:
    with pytest.raises(jjq.InvalidArgument, match="no staged file"):
        jjq.StagedFile.from_json(text)


def test_a_staged_file_comes_back_from_its_text(store: jjq.Store) -> None:
    with store.stage() as stage:
        stage.write("t", TABLE)
        (file,) = stage.finish()
    assert jjq.StagedFile.from_json(file.to_json()) == file
    with pytest.raises(jjq.InvalidArgument, match="ids are none"):
        jjq.StagedFile.from_json(file.to_json().replace(file.uuid, "../../../etc/x"))
    store.discard([file])


def test_very_long_waits_are_for_ever(store: jjq.Store) -> None:
    assert [timeout_s(each) for each in (None, 0, 1.5, 1e9, 10**5000, math.inf)] == [None, 0.0, 1.5, 1e9, None, None]
    assert store.subscriber("s").pop(timeout=10**400) is not None


def test_values_are_shown_in_one_line_of_sensible_length() -> None:
    assert (shown(1), shown("a"), shown(10**5000)) == ("1", "'a'", "a number of thousands of digits")
    assert shown("x" * 1000).endswith("xxx... (1,002 characters)")


def test_the_longest_durations_can_be_used(store: jjq.Store) -> None:
    longest = timedelta(days=365 * 100_000)
    assert store.channel("t", "long", create=True, ack_timeout=longest).receive(max_records=2)
    assert (
        store.create_topic("kept", retention=longest).config.retention_us == longest // timedelta(microseconds=1) < MOST
    )
    assert not store.maintain().errors
