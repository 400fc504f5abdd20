"""What an append writes: every row with the time, key and value it was given, whichever encoder wrote it."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq.errors import DamagedSegment, StoreError, TopicDeleted
from jjq.log import active
from jjq.log.format import ENTRY_SIZE
from jjq.log.partition import PartitionLog
from jjq.log.requests import TEMPLATE_ROWS, Append, MorePartitions, OneValue, Request
from tests.crash.faults import Disk, Operation
from tests.stores import open_below

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


def test_a_push_to_a_topic_whose_files_are_gone_says_that_it_was_deleted(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    with jjq.open(store.path, maintenance=False) as other:
        other.delete_topic("t")
        other.maintain(grace_us=0)
        assert not topic.directory(0).exists()
    with pytest.raises(TopicDeleted):
        topic.push(b"late")


def test_a_topic_that_is_deleted_keeps_no_file_open_here(store: jjq.Store) -> None:
    before = open_below(store.path)
    topic = store.create_topic("t", partitions=2)
    topic.push(b"one")
    topic.push(b"two")
    store.delete_topic("t")
    assert open_below(store.path) == before
    with pytest.raises(TopicDeleted):
        topic.push(b"late")


def test_whatever_waits_together_is_there_in_its_order_and_each_is_told_its_offset(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    log = store.logs[topic.id, 0]
    many = [b"%d" % i for i in range(TEMPLATE_ROWS + 1)]
    marked = Append(1, (None,), (b"marked",))
    marked.producer, marked.sequence = b"p", 1  # as a broker does, once it has made it
    requests: list[Request] = [
        OneValue(b"a", 0),
        OneValue(b"b", 1),
        Append(1, (b"key",), (None,)),
        Append(1, (None, b""), (b"", b"c"), headers=[[("h", b"1")], None]),
        marked,
        Append(1, [None] * len(many), many),
        OneValue(b"", 0),
        Append(1, (None,), (b"d",)),
        Append(1, (None,), (b"e",)),
    ]
    with log._leader:
        log._write(requests)
    assert [each.offset for each in requests] == [0, 1, 2, 3, 5, 6, 263, 264, 265]
    assert [each.error for each in requests] == [None] * len(requests)
    rows = topic.read(metadata=["_offset", "_timestamp", "_key", "_headers"]).read_all()
    assert rows["_offset"].to_pylist() == list(range(266))
    assert rows["value"].to_pylist() == [b"a", b"b", None, b"", b"c", b"marked", *many, b"", b"d", b"e"]
    assert rows["_key"].to_pylist() == [None, None, b"key", None, b"", *[None] * 261]
    assert [i for i, each in enumerate(rows["_headers"].to_pylist()) if each] == [3]
    assert {each.timestamp for each in requests} == set(rows["_timestamp"].cast(pa.int64()).to_pylist())
    [segment] = topic.segments()
    # Those that are alike share a message: a, b; the key's; the headers' with it; one marked; one too large; the empty one; d, e.
    assert sum(1 for _ in pa.ipc.open_stream((store.path / segment.path).read_bytes()[: segment.bytes])) == 6


def test_of_requests_that_chose_among_fewer_partitions_only_those_are_refused(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=2)
    log = store.logs[topic.id, 0]
    requests = [OneValue(b"a", 2), OneValue(b"late", 1), OneValue(b"b", 0)]
    with log._leader:
        log._write(list(requests))
    assert [type(each.error) for each in requests] == [type(None), MorePartitions, type(None)]
    assert [each.offset for each in requests] == [0, -1, 1]
    assert topic.read(partitions=[0]).read_all()["value"].to_pylist() == [b"a", b"b"]


class FullAfterAnEntry(Disk):
    """Of the entries of several messages it takes the first one."""

    def lets_through(self, operation: Operation) -> int:
        return ENTRY_SIZE if operation.path.suffix == ".index" else len(operation.data)


@pytest.mark.parametrize("sync", ["always", "none"])
def test_of_a_group_whose_entries_the_disk_takes_in_part_each_push_is_told_what_became_of_it(
    store: jjq.Store, sync: str
) -> None:
    topic = store.create_topic("t", sync=sync)
    topic.push(b"before")
    log = store.logs[topic.id, 0]
    # Marked ones are a message each.
    first, second = (Append(1, (None,), (value,), producer=b"p", sequence=i) for i, value in enumerate((b"a", b"b"), 1))
    with FullAfterAnEntry(), log._leader:
        log._write([first, second])
    assert (first.error, first.offset) == (None, 1)
    assert isinstance(second.error, StoreError)
    assert topic.push(b"after").offset == 2
    assert topic.read().read_all()["value"].to_pylist() == [b"before", b"a", b"after"]
    assert store.verify().ok


def test_each_thread_of_a_group_that_fails_raises_an_error_of_its_own() -> None:
    leader, second, third = (OneValue(b"v", 0) for _ in range(3))
    second.wake, third.wake = threading.Lock(), threading.Lock()
    full = StoreError("the disk is full", errno=28)
    PartitionLog._tell([leader, second, third], full)
    assert leader.error is full
    assert second.error is not third.error
    for each in (second.error, third.error):
        assert isinstance(each, StoreError)
        assert each is not full
        assert (str(each), each.details, each.__cause__) == (str(full), full.details, full)


class Interrupting:
    """A trace that raises KeyboardInterrupt before the `number`-th line that the active file's methods come to."""

    def __init__(self, number: int) -> None:
        self.number, self.lines = number, 0

    def __call__(self, frame: FrameType, _event: str, _arg: object) -> Any:
        return self._line if frame.f_code.co_filename == active.__file__ else None

    def _line(self, _frame: FrameType, event: str, _arg: object) -> Any:
        self.lines += event == "line"
        if event == "line" and self.lines == self.number:
            raise KeyboardInterrupt
        return self._line


@pytest.mark.parametrize("sync", ["always", "interval"])
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_what_an_interrupted_push_has_shown_to_readers_stays(store: jjq.Store, many: bool, sync: str) -> None:
    topic = store.create_topic("t", sync=sync, sync_interval_ms=3_600_000)
    number, interrupted = 0, True
    with jjq.open(store.path, maintenance=False) as other:
        while interrupted:
            number += 1
            topic.push(b"before")
            before = sys.gettrace()
            sys.settrace(Interrupting(number))
            try:
                topic.push_many([b"interrupted"] * 3) if many else topic.push(b"interrupted")
                interrupted = False
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(before)
            [shown] = other.topic("t").offsets()
            assert topic.push(b"after").offset == shown.end
            assert other.topic("t").offsets()[0].lineage == 0
    assert number > 20


@pytest.mark.parametrize("sync", ["always", "none"])
def test_the_lowest_time_of_a_segment_is_known_whichever_process_has_appended_it(store: jjq.Store, sync: str) -> None:
    topic = store.create_topic("t", timestamps="producer", sync=sync)
    with jjq.open(store.path, maintenance=False) as other:
        theirs = other.topic("t")
        topic.push(b"a", timestamp=US + 5)
        for each in (3, 9, 1, 4):
            theirs.push(b"b", timestamp=US + each)
        topic.push(b"c", timestamp=US + 7)
        log = store.logs[topic.id, 0]
        with log.exclusive():
            assert log.roll_locked()
    (segment,) = [each for each in topic.segments() if each.state != "active"]
    assert (segment.start, segment.end, segment.min_timestamp, segment.max_timestamp) == (0, 6, US + 1, US + 9)


@pytest.mark.parametrize("sync", ["always", "interval", "none"])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_what_others_have_added_is_taken_in_however_much_it_is(store: jjq.Store, count: int, sync: str) -> None:
    topic = store.create_topic("t", sync=sync)
    with jjq.open(store.path, maintenance=False) as other:
        theirs = other.topic("t")
        for _ in range(2):
            topic.push(b"ours")
            for each in range(count):
                theirs.push(b"%d" % each)
        assert topic.push(b"last").offset == 2 * count + 2
    each_turn = [b"ours", *(b"%d" % each for each in range(count))]
    assert topic.read().read_all()["value"].to_pylist() == [*each_turn, *each_turn, b"last"]
    assert [each.state for each in topic.segments()] == ["active"]


@pytest.mark.parametrize("sync", ["always", "interval", "none"])
@pytest.mark.parametrize("entry", [0, 1, 2])
def test_damage_to_what_others_have_added_is_told_and_nothing_appended(store: jjq.Store, entry: int, sync: str) -> None:
    topic = store.create_topic("t", sync=sync)
    topic.push(b"ours")
    with jjq.open(store.path, maintenance=False) as other:
        for _ in range(3):
            other.topic("t").push(b"theirs")
    path = Path(topic.segments()[0].path)
    index = path.with_suffix(".index")
    data = bytearray(index.read_bytes())
    data[(2 + entry) * ENTRY_SIZE + 20] ^= 1
    index.write_bytes(data)
    before = path.read_bytes(), index.read_bytes()
    for _ in range(2):
        with pytest.raises(DamagedSegment, match="the index is damaged"):
            topic.push(b"next")
        assert (path.read_bytes(), index.read_bytes()) == before
