"""Several processes on one subscriber."""

import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

import jjq

PARTITIONS = 2
METHODS = [
    "spawn",
    pytest.param(
        "fork", marks=pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    ),
]


def produce(path: Path, producer: int, count: int) -> None:
    with jjq.open(path) as store:
        topic = store.topic("t")
        for i in range(count):
            topic.push(b"%d:%d" % (producer, i), partition=(producer + i) % PARTITIONS)


def pop_until(path: Path, done: Event, results: Connection) -> None:
    """Pops until the producers are done and nothing is left."""
    taken = []
    with jjq.open(path) as store:
        subscriber = store.subscriber("s")
        while True:
            over = done.is_set()
            record = subscriber.pop(timeout=0.01)
            if record is not None:
                taken.append((record.partition, record.offset, record.value))
            elif over:
                break
    results.send(taken)


@pytest.mark.parametrize("method", METHODS)
def test_processes_that_pop_while_others_push_share_the_records_and_lose_none(tmp_path: Path, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    with jjq.open(tmp_path / "store") as store:
        store.create_topic("t", partitions=PARTITIONS, sync="none")
        store.create_subscriber("t", "s")
        done = context.Event()
        pipes = [context.Pipe(duplex=False) for _ in range(3)]
        consumers = [context.Process(target=pop_until, args=(store.path, done, send)) for _, send in pipes]
        producers = [context.Process(target=produce, args=(store.path, i, 400)) for i in range(2)]
        for process in (*consumers, *producers):
            process.start()
        for process in producers:
            process.join()
        done.set()
        each = [receive.recv() for receive, _ in pipes]
        for process in consumers:
            process.join()
        assert {process.exitcode for process in (*consumers, *producers)} == {0}
        taken = [record for records in each for record in records]
        assert len(taken) == 800
        assert sorted(value for _, _, value in taken) == sorted(b"%d:%d" % (p, i) for p in range(2) for i in range(400))
        ends = {bounds.partition: bounds.end for bounds in store.topic("t").offsets()}
        assert sorted((p, o) for p, o, _ in taken) == [(p, o) for p in range(PARTITIONS) for o in range(ends[p])]
        for records in each:  # and whoever takes them sees each partition in order
            for partition in range(PARTITIONS):
                offsets = [o for p, o, _ in records if p == partition]
                assert offsets == sorted(offsets)
        assert store.subscriber("s").positions() == ends


def wait_for_one(path: Path, how: str, ready: Connection, result: Connection) -> None:
    with jjq.open(path) as store:
        subscriber = store.subscriber("s")
        ready.send("ready")
        try:
            record = subscriber.pop(timeout=None) if how == "pop" else next(iter(subscriber))
            result.send(record.value if record else None)
        except jjq.JjqError as error:
            result.send(error)


@pytest.mark.parametrize("how", ["pop", "iteration"])
@pytest.mark.parametrize("end", ["push", "delete topic", "delete subscriber"])
def test_a_wait_in_another_process_ends_when_there_is_something_to_say(tmp_path: Path, how: str, end: str) -> None:
    context = multiprocessing.get_context("spawn")
    with jjq.open(tmp_path / "store") as store:
        topic = store.create_topic("t", partitions=PARTITIONS)
        store.create_subscriber("t", "s")
        is_ready, ready = context.Pipe(duplex=False)
        gets, result = context.Pipe(duplex=False)
        waiter = context.Process(target=wait_for_one, args=(store.path, how, ready, result))
        waiter.start()
        is_ready.recv()
        if end == "push":
            topic.push(b"hello", partition=1)
            assert gets.recv() == b"hello"
        elif end == "delete topic":
            store.delete_topic("t")
            assert isinstance(gets.recv(), jjq.TopicDeleted)
        else:
            store.delete_subscriber("s")
            assert isinstance(gets.recv(), jjq.SubscriberNotFound)
        waiter.join()
        assert waiter.exitcode == 0
