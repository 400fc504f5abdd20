"""Processes that push to one topic at once, each in its own way: nothing is lost or there twice, and their syncs are shared."""

import multiprocessing
import os
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
    return topic.push(name(number, call), key=b"%d" % call).offset


def headed(topic: jjq.Topic, number: int, call: int) -> int:
    return topic.push(name(number, call), headers={"h": b"1"}).offset


def many(topic: jjq.Topic, number: int, call: int) -> int:
    return topic.push_many([name(number, call, at) for at in range(3)])[0].offset


def large(topic: jjq.Topic, number: int, call: int) -> int:
    return topic.push(name(number, call).ljust(5000)).offset


WAYS: list[Callable[[jjq.Topic, int, int], int]] = [single, single, keyed, keyed, headed, many, large]


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
        rows = store.topic("t").read(metadata=["_key"]).read_all()
    values = [value.rstrip() for value in rows["value"].to_pylist()]
    keys = rows["_key"].to_pylist()
    of_many = WAYS.index(many)
    for number, offsets in enumerate(told):
        count = 3 if number == of_many else 1
        for call, offset in enumerate(offsets):
            assert values[offset : offset + count] == [name(number, call, at) for at in range(count)]
            assert keys[offset] == (b"%d" % call if WAYS[number] is keyed else None)
        assert offsets == sorted(offsets)
    assert len(set(values)) == len(values) == COUNT * (len(WAYS) + 2)
    entries = [entry for each in paths(path, "*.index") for entry in unpack_entries(each.read_bytes())]
    assert sum(entry.kind == BATCH for entry in entries) < COUNT * len(WAYS)
    assert_whole(path)


def pushes_on(path: Path, number: int, pipe: Connection, barrier: Any) -> None:
    """Until it is told to stop."""
    with jjq.open(path, maintenance=False) as store:
        topic = store.topic("t")
        barrier.wait()
        told: list[int] = []
        while not pipe.poll():
            told.append(single(topic, number, len(told)))
        pipe.send(told)


def takes_the_lock(path: Path, pipe: Connection, barrier: Any) -> None:
    """Pushes until it has met others, then has the partition's lock until it dies."""
    with jjq.open(path, maintenance=False) as store:
        topic = store.topic("t")
        log = store.logs[topic.id, 0]
        barrier.wait()
        while log._waiting is None:
            topic.push(b"to meet others")
        with log.exclusive():
            pipe.send(None)
            pipe.recv()


def test_those_who_wait_go_on_when_the_one_that_has_the_lock_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with jjq.open(path, maintenance=False) as store:
        store.create_topic("t", sync="always")
    barrier = CONTEXT.Barrier(4)
    processes, pipes = [], []
    for number, target in enumerate((pushes_on, pushes_on, pushes_on, takes_the_lock)):
        mine, theirs = CONTEXT.Pipe()
        arguments = (path, number, theirs, barrier) if target is pushes_on else (path, theirs, barrier)
        processes.append(CONTEXT.Process(target=target, args=arguments, daemon=True))
        processes[-1].start()
        pipes.append(mine)
    pipes[-1].recv()
    while waiting(path) < 3:
        os.sched_yield()
    processes[-1].kill()
    with jjq.open(path, maintenance=False) as store:
        topic = store.topic("t")
        before = topic.offsets()[0].end
        while topic.offsets()[0].end < before + 50:
            os.sched_yield()
        for pipe in pipes[:3]:
            pipe.send("stop")
        told = [pipe.recv() for pipe in pipes[:3]]
        for process in processes:
            process.join()
        values = topic.read().read_all()["value"].to_pylist()
    for number, offsets in enumerate(told):
        assert [values[offset] for offset in offsets] == [name(number, call) for call in range(len(offsets))]
    mine = [value for value in values if value != b"to meet others"]
    assert len(set(mine)) == len(mine) == sum(map(len, told))
    assert_whole(path)


def waiting(path: Path) -> int:
    """How many wait for the partition's lock, or for the end of a round."""
    inodes = [f":{paths(path, each)[0].stat().st_ino} " for each in ("lock", "waiting")]
    lines = Path("/proc/locks").read_text().splitlines()
    return sum("->" in line and any(inode in line for inode in inodes) for line in lines)
