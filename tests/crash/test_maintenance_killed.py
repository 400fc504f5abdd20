"""Maintenance killed between any two of its steps: the store is whole, no record moved, and the next turn ends the work."""

import os
import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq.clock import now_us
from jjq.maintenance import Maintenance
from tests.crash.killing import copy_store, dies
from tests.stores import assert_whole, paths, roll, tables

DAY_US = 86_400_000_000


def make_rolled(store: jjq.Store) -> None:
    """Rolled files, small sealed neighbours, and an active file that is old enough to roll."""
    topic = store.create_topic("t", partitions=2, segment_bytes=20_000)
    for number in range(3):
        topic.push_many([b"%d" % (10 * number + i) for i in range(4)], partition=0)
        roll(store, "t")
    for batch in range(8):
        with store.stage() as stage:
            stage.write("t", pa.table({"value": [b"linked %d" % batch]}), partition=1)
            store.commit(stage.finish(), "w", batch)
    topic.push(b"still in the active file", partition=1)
    store.create_topic("u", compression="zstd", segment_bytes=4096).push_many([os.urandom(300)] * 60)
    roll(store, "u")


def make_expiring(store: jjq.Store) -> None:
    """Segments that are beyond the retention, staged files nobody wants, a deleted topic."""
    topic = store.create_topic("t", retention=timedelta(days=1))
    for number in range(3):
        topic.push_many([b"%d" % number] * 3)
        roll(store, "t")
    topic.push(b"the last", partition=0)
    store.create_topic("d", partitions=2).push(b"gone")
    store.delete_topic("d")
    for batch in (1, 2):
        with store.stage(owner=("w", batch)) as stage:
            stage.write("t", pa.table({"value": [b"never"]}))
            stage.finish()
    with store.stage() as stage:
        stage.write("t", pa.table({"value": [b"linked"]}))
        store.commit(stage.finish(), "w", 3)


def maintain(path: Path, after_us: int) -> list[str]:
    with jjq.open(path) as store, Maintenance(store, grace_us=0, now=now_us() + after_us) as work:
        work.run()
    return work.report.errors


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("make", "after_us"), [(make_rolled, 2 * DAY_US), (make_expiring, 3 * DAY_US)])
def test_maintenance_may_die_at_any_step(make: object, after_us: int, place: Path) -> None:
    assert callable(make)
    template = place / "template"
    with jjq.open(template) as store:
        make(store)
        before = tables(store)
    done = copy_store(template, place / "done")
    assert maintain(done, after_us) == []
    with jjq.open(done) as store:
        after = tables(store)
        assert_whole(store)
        left = sorted(each.state for topic in store.topics() for each in topic.segments())
    assert after == before or make is make_expiring
    number = 0
    while True:
        number += 1
        part = 0.5 * (number % 2)
        path = copy_store(template, place / "killed")
        died = dies(lambda path=path: maintain(path, after_us), number, part)  # type: ignore[misc]
        with jjq.open(path) as store:
            report = assert_whole(store)
            assert not report.unknown
            assert tables(store) in (before, after)
        assert maintain(path, after_us) == []
        with jjq.open(path) as store:
            assert tables(store) == after
            assert not assert_whole(store).unknown
            assert sorted(each.state for topic in store.topics() for each in topic.segments()) == left
            assert store.catalog.garbage() == []
            assert not paths(store.path, "*.new")
        shutil.rmtree(path)
        if not died:
            break
    assert number > 30
