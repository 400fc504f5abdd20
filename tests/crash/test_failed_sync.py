"""A sync that fails and loses what it was for: the kernel drops the pages it could not write, and the next sync succeeds."""

import contextlib
import os
import shutil
import sys
from pathlib import Path

import pytest

import jjq
from jjq import files
from jjq.errors import DamagedSegment, DataLoss, JjqError, StoreError
from jjq.log.format import CLOSE, CLOSE_REASONS
from jjq.log.stream import last_entry
from tests.crash.checks import Partition, State, contents, open_alone, rows_of
from tests.crash.faults import CHANGES, Counting, Disk, Failing, Operation, Syncs, lose
from tests.crash.killing import elsewhere
from tests.crash.scenarios import SCENARIOS, SYNC_MODES, Scenario, make
from tests.stores import assert_whole


def attempt(scenario: Scenario, store: jjq.Store) -> JjqError | None:
    try:
        scenario.act(store)
    except JjqError as error:
        return error
    return None


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "until mended"])
@pytest.mark.parametrize("sync", SYNC_MODES)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_what_a_failed_sync_loses_is_never_believed(scenario: Scenario, sync: str, for_good: bool, place: Path) -> None:
    template = place / "template"
    with Syncs() as syncs:
        make(template, sync)
        with open_alone(template) as store:
            scenario.prepare(store)
            before = contents(store)
    kinds = CHANGES if for_good else ["sync"]
    shutil.copytree(template, place / "done")
    with open_alone(place / "done") as store:
        with Counting(kinds) as counting:
            scenario.act(store)
        after = contents(store)
    for number, operation in enumerate(counting.seen, 1):
        if operation.kind != "sync" or operation.path.suffix not in (".arrows", ".arrow"):
            continue
        path = place / str(number)
        shutil.copytree(template, path)
        with open_alone(path) as store, open_alone(path) as other:
            contents(other)
            with Failing(number, kinds, for_good=for_good, synced=syncs.synced) as failing:
                error = attempt(scenario, store)
            assert failing.failed is not None
            assert error is None or type(error) is StoreError
            check_mended(sync, before, after, store, other)
        shutil.rmtree(path)


def check_mended(sync: str, before: State, after: State, store: jjq.Store, other: jjq.Store) -> None:
    """No view shows a wrong row; the next push ends the damage; what was promised is there, the rest is named as lost."""
    for topic in store.topics():
        for partition in range(topic.partitions):
            had, will = (state.get(topic.name, {"rows": {}})["rows"].get(partition) for state in (before, after))
            allowed = [each for each in (had, will) if each is not None]
            lost = []
            if sync != "always" and had is not None:
                lost = [(had[0], had[1][:count]) for count in range(len(had[1]))]
            views = [view.topic(topic.name) for view in (other, store)]
            for view in views:
                check_intact(view, partition, [*allowed, *lost])
            topic.push(b"next" if topic.schema is None else {"n": -1}, partition=partition)
            start, rows = rows_of(topic, partition)
            assert (start, rows[:-1]) in [*allowed, *lost]
            for view in views:
                assert rows_of(view, partition) == (start, rows)
            if (start, rows[:-1]) not in allowed:
                assert had is not None
                topic.push_many([b"" if topic.schema is None else {"n": 0}] * len(had[1]), partition=partition)
                with pytest.raises(DataLoss):
                    topic.plan(partition, start, start + len(had[1]), lineage=0)


def check_intact(topic: jjq.Topic, partition: int, allowed: list[Partition]) -> None:
    """A partition reads as one of the `allowed`, or says that it is damaged."""
    try:
        found = rows_of(topic, partition)
    except DamagedSegment:
        return
    assert found in allowed


@pytest.mark.parametrize(("sync", "size"), [("always", 200_000), ("none", 2 << 20)])
def test_what_the_disk_refuses_as_it_begins_counts_as_a_failed_sync(sync: str, size: int, place: Path) -> None:
    """The sync behind it may say nothing of it: the error was told once."""
    with open_alone(place / "store") as store, open_alone(place / "store") as other:
        topic = store.create_topic("t", sync=sync)
        topic.push(b"before")
        store.logs[topic.id, 0].sync()
        if sync == "none":
            topic.push(b"unsynced")
        assert rows_of(other.topic("t"), 0)[1][0][-1] == b"before"
        with Failing(1, ["writeback"]) as failing, pytest.raises(StoreError, match="Input/output error"):
            topic.push_many([bytes(size // 2)] * 2)
        assert failing.failed is not None
        (index,) = topic.directory(0).glob("*.index")
        entry = last_entry(index)
        assert entry is not None
        assert (entry.kind, entry.rows, entry.end) == (CLOSE, CLOSE_REASONS.index("failed"), 1)
        assert other.topic("t").push(b"next").offset == 1
        for view in (store, other):
            assert [row[-1] for row in rows_of(view.topic("t"), 0)[1]] == [b"before", b"next"]
        assert [each.state for each in topic.segments()] == ["rolled", "active"]
        assert_whole(store)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked to begin")
def test_what_the_system_says_as_it_begins_is_raised() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.begin_writing(-1, 0, 1)
    ours, theirs = os.pipe()
    files.begin_writing(theirs, 0, 1)  # for which there is no such call
    os.close(ours)
    os.close(theirs)


class LosingAll(Disk):
    """Syncs of data fail and lose what they were for, and there is no room for an entry of the index but for `part` of one."""

    def __init__(self, synced: dict[str, bytes], part: int) -> None:
        super().__init__()
        self.synced, self.part = synced, part

    def step(self, operation: Operation) -> None:
        if operation.kind == "sync" and operation.path.suffix == ".arrows":
            lose(operation.path, self.synced[operation.path.name])
            raise self.failure(operation)

    def lets_through(self, operation: Operation) -> int:
        return self.part if operation.path.suffix == ".index" else len(operation.data)


@pytest.mark.parametrize("part", [0, 1, 79])
@pytest.mark.parametrize("sync", ["interval", "none"])
def test_other_processes_are_told_of_a_failed_sync_though_there_is_no_room_for_it(
    sync: str, part: int, place: Path
) -> None:
    with Syncs() as syncs, open_alone(place / "store") as store:
        topic = store.create_topic("t", sync=sync, sync_interval_ms=3_600_000)
        topic.push_many([b"synced"] * 3)
        store.logs[topic.id, 0].sync()
    with open_alone(place / "store") as store:
        topic = store.topic("t")
        topic.push_many([b"lost"] * 5)  # this process has the file open, and has not seen its sync fail

        def fails() -> None:
            with open_alone(place / "store") as child, LosingAll(syncs.synced, part):
                log = child.logs[topic.id, 0]
                with pytest.raises(StoreError):
                    log.sync()

        elsewhere(fails)
        assert topic.push(b"next").offset == 3
        store.logs[topic.id, 0].sync()
        for view in (store, place / "store"):
            with open_alone(view) if isinstance(view, Path) else contextlib.nullcontext(view) as each:
                assert [row[-1] for row in rows_of(each.topic("t"), 0)[1]] == [*[b"synced"] * 3, b"next"]
                with pytest.raises(DataLoss):
                    each.topic("t").plan(0, 3, 8, lineage=0)
        assert_whole(store)


@pytest.mark.parametrize("part", [0, 1, 79])
def test_the_mark_of_a_failed_sync_stays_until_there_is_room_to_close_the_file(part: int, place: Path) -> None:
    with Syncs() as syncs, open_alone(place / "store") as store:
        topic = store.create_topic("t", sync="interval", sync_interval_ms=3_600_000)
        topic.push_many([b"synced"] * 3)
        log = store.logs[topic.id, 0]
        log.sync()
        topic.push_many([b"lost"] * 5)

        def fails() -> None:
            with open_alone(place / "store") as child, LosingAll(syncs.synced, part):
                for _ in range(2):
                    with pytest.raises(StoreError):
                        child.logs[topic.id, 0].sync()

        for _ in range(2):
            elsewhere(fails)
        assert topic.push(b"next").offset == 3
        assert_whole(store)
