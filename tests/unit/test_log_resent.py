"""Messages that a client marked are found when they come again, or it is said that this cannot be told."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

import jjq
from jjq.log.recovery import copy_whole, fields_of, survey
from jjq.log.requests import Append
from jjq.log.resent import Unknowable, find
from jjq.log.stream import StreamReader
from jjq.schema import physical
from tests.stores import assert_whole, roll

PRODUCER = b"\x01\x02\x03\x04\x05\x06"


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[jjq.Topic]:
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        yield store.create_topic("t", sync="none")
        assert_whole(store)


def append(topic: jjq.Topic, sequence: int, values: list[bytes], producer: bytes = PRODUCER) -> int:
    request = Append(1, [None] * len(values), values, size=100, producer=producer, sequence=sequence)
    topic._store.logs[topic.id, 0].append(request)
    return request.offset


def found(topic: jjq.Topic, sequence: int, since: int = 0, producer: bytes = PRODUCER) -> int | None:
    place = find(topic.reader, 0, producer, sequence, since)
    return None if place is None else place[0]


def test_a_marked_message_is_found_by_its_mark_and_no_other(topic: jjq.Topic) -> None:
    topic.push_many([b"x"] * 5)
    assert [append(topic, n, [b"v"] * n) for n in (1, 2, 3)] == [5, 6, 8]
    topic.push(b"y")
    assert [found(topic, n) for n in (1, 2, 3, 4)] == [5, 6, 8, None]
    assert [found(topic, n, since=7) for n in (1, 2, 3)] == [None, 6, 8]
    assert found(topic, 1, producer=b"\x01\x02\x03\x04\x05\x07") is None
    assert found(topic, 0) is None
    record = topic.read(start=5, end=6, metadata=["_timestamp"]).read_all()
    assert find(topic.reader, 0, PRODUCER, 1, 0) == (5, record.column("_timestamp")[0].value)


def test_a_single_value_is_marked_too(topic: jjq.Topic) -> None:
    log = topic._store.logs[topic.id, 0]
    assert log.append_value(1, b"a", mark=(PRODUCER, 5))[0] == 0
    topic.push(b"b")
    assert [found(topic, 5), found(topic, 0)] == [0, None]
    assert topic.read().read_all().column("value").to_pylist() == [b"a", b"b"]


def test_it_is_found_in_files_that_have_ended(topic: jjq.Topic) -> None:
    append(topic, 1, [b"a"])
    roll(topic._store, "t")
    append(topic, 2, [b"b"])
    roll(topic._store, "t")
    assert [found(topic, n) for n in (1, 2, 3)] == [0, 1, None]


def test_what_was_compacted_or_emptied_since_cannot_be_told(topic: jjq.Topic) -> None:
    append(topic, 1, [b"a"])
    roll(topic._store, "t")
    topic._store.maintain()
    assert topic.segments()[0].state == "sealed"
    with pytest.raises(Unknowable):
        found(topic, 1)
    append(topic, 2, [b"b"])
    assert found(topic, 2, since=1) == 1
    topic.empty()
    with pytest.raises(Unknowable):
        found(topic, 2, since=1)


def test_those_that_wait_together_keep_a_message_each(topic: jjq.Topic) -> None:
    log = topic._store.logs[topic.id, 0]
    requests = [Append(1, [None], [b"v"], size=100, producer=PRODUCER if n % 2 else b"", sequence=n) for n in range(6)]
    log._write(requests)
    assert [each.offset for each in requests] == list(range(6))
    assert [found(topic, n) for n in range(6)] == [None, 1, None, 3, None, 5]
    assert topic.read().read_all().num_rows == 6


def test_marks_stay_when_a_file_is_copied_after_a_power_cut(topic: jjq.Topic) -> None:
    append(topic, 7, [b"a", b"b"])
    topic.push(b"x")
    append(topic, 8, [b"c"])
    store = topic._store
    row = store.catalog.partition(topic.id, 0)
    directory, topic_bytes = topic.directory(0), bytes.fromhex(topic.id)
    seen = survey(directory, row, physical(None), topic_bytes, 0)
    copy = copy_whole(directory, row, physical(None), topic_bytes, 0, seen)
    copy.close_descriptors()
    original = (directory / f"{row.active}.arrows").read_bytes()
    assert len((directory / f"{copy.uuid}.arrows").read_bytes()) <= len(original)
    again = survey(directory, dataclasses.replace(row, active=copy.uuid), physical(None), topic_bytes, 0)
    with StreamReader(directory, copy.uuid, physical(None)) as stream:
        assert [(each.base, each.sequence) for each in fields_of(stream, again.entries)] == [(0, 7), (2, 0), (3, 8)]
    for suffix in ("arrows", "index"):
        (directory / f"{copy.uuid}.{suffix}").unlink()
