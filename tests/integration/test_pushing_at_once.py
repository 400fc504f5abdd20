"""Processes that push to one topic at once, each in its own way: nothing is lost or there twice, and their syncs are shared."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jjq
from jjq.log.format import BATCH, unpack_entries
from tests.stores import assert_whole, paths

COUNT = 150  # pushes of each
CONTEXT = multiprocessing.get_context("spawn")


def name(number: int, call: int, at: int = 0) -> bytes:
    return b"%d %d %d" % (number, call, at)


def single(topic: jjq.Topic, number: int, call: int) -> int:
    return topic.push(name(number, call)).offset


def keyed(topic: jjq.Topic, number: int, call: int) -> int:
    return topic.push(name(number, call), key="k").offset


def many(topic: jjq.Topic, number: int, call: int) -> int:
    return topic.push_many([name(number, call, at) for at in range(3)])[0].offset


def large(topic: jjq.Topic, number: int, call: int) -> int:
    return topic.push(name(number, call).ljust(5000)).offset


WAYS: list[Callable[[jjq.Topic, int, int], int]] = [single, single, single, keyed, many, large]


def pushes(path: Path, number: int, pipe: Connection, barrier: Any) -> None:
    with jjq.open(path, maintenance=False) as store:
        topic = store.topic("t")
        barrier.wait()
        pipe.send([WAYS[number](topic, number, call) for call in range(COUNT)])


def test_each_record_is_where_its_push_said_and_syncs_are_shared(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with jjq.open(path, maintenance=False) as store:
        store.create_topic("t", sync="always", segment_rows=400)
    barrier = CONTEXT.Barrier(len(WAYS))
    processes, pipes = [], []
    for number in range(len(WAYS)):
        here, there = CONTEXT.Pipe()
        process = CONTEXT.Process(target=pushes, args=(path, number, there, barrier), daemon=True)
        process.start()
        processes.append(process)
        pipes.append(here)
    told = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    with jjq.open(path, maintenance=False) as store:
        values = [value.rstrip() for value in store.topic("t").read().read_all()["value"].to_pylist()]
    of_many = WAYS.index(many)
    for number, offsets in enumerate(told):
        rows = 3 if number == of_many else 1
        for call, offset in enumerate(offsets):
            assert values[offset : offset + rows] == [name(number, call, at) for at in range(rows)]
        assert offsets == sorted(offsets)
    assert len(set(values)) == len(values) == COUNT * (len(WAYS) + 2)
    entries = [entry for each in paths(path, "*.index") for entry in unpack_entries(each.read_bytes())]
    assert sum(entry.kind == BATCH for entry in entries) < COUNT * len(WAYS)
    assert_whole(path)


def stopped(path: Path, pipe: Connection) -> None:
    """Has the partition's lock until it is told, or dies."""
    with jjq.open(path, maintenance=False) as store, store.log(store.topic("t").id, 0).exclusive():
        pipe.send(None)
        pipe.recv()


def test_those_who_wait_go_on_when_the_one_that_has_the_lock_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with jjq.open(path, maintenance=False) as store:
        store.create_topic("t", sync="always").push(name(9, 9))
    here, there = CONTEXT.Pipe()
    holder = CONTEXT.Process(target=stopped, args=(path, there), daemon=True)
    holder.start()
    here.recv()
    barrier = CONTEXT.Barrier(3)
    processes, pipes = [], []
    for number in range(3):
        mine, theirs = CONTEXT.Pipe()
        processes.append(CONTEXT.Process(target=pushes, args=(path, number, theirs, barrier), daemon=True))
        processes[-1].start()
        pipes.append(mine)
    while waiting(path) < 1:
        os.sched_yield()
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    assert sorted(offset for pipe in pipes for offset in pipe.recv()) == list(range(1, 1 + 3 * COUNT))
    for process in processes:
        process.join()
    assert_whole(path)


def waiting(path: Path) -> int:
    """How many wait for the partition's lock."""
    inode = f":{paths(path, 'lock')[0].stat().st_ino} "
    return sum("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())
