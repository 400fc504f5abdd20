"""A topic that is given more partitions while several processes push to it and read it."""

import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import jjq
from jjq.preparing import partition_of
from tests.integration.test_subscriber_processes import pop_until
from tests.stores import assert_whole

COUNT, KEYS = 400, 20
SIZES = (2, 3, 5, 8)


def produce(path: Path, producer: int, how: str, main: Connection) -> None:
    """Says when a part is pushed and goes on, but not further than a part ahead of the topic's growth."""
    with jjq.open(path) as store, store.producer(linger_ms=1) as gathering:
        topic = store.topic("t")
        for i in range(COUNT):
            key, value = b"%d:%d" % (producer, i % KEYS), b"%d:%d" % (producer, i)
            if how == "push":
                topic.push(value, key=key)
            elif how == "push_many":
                topic.push_many([value], keys=[key], atomic=i % 2 == 0)
            else:
                gathering.push("t", value, key=key)
            if i % (COUNT // 5) == 0:
                if i:
                    main.recv()
                if i < COUNT // 5 * 4:
                    main.send("go on")


def receive_until(path: Path, done: Event, results: Connection) -> None:
    """Receives and acknowledges until the producers are done and nothing is left."""
    taken = []
    with jjq.open(path) as store:
        channel = store.channel("t", "c")
        while True:
            over = done.is_set()
            deliveries = channel.receive(10, timeout=0.01)
            taken += [(each.record.partition, each.record.offset, each.record.value) for each in deliveries]
            channel.ack_many(deliveries)
            if over and not deliveries:
                break
    results.send(taken)


def test_nothing_is_lost_twice_or_out_of_order_while_a_topic_grows(tmp_path: Path) -> None:
    context: Any = multiprocessing.get_context("spawn")
    with jjq.open(tmp_path / "store") as store:
        store.create_topic("t", partitions=SIZES[0], sync="none")
        store.create_subscriber("t", "s")
        store.channel("t", "c", create=True)
        done = context.Event()
        results = [context.Pipe(duplex=False) for _ in range(4)]
        pipes = [context.Pipe() for _ in range(3)]
        consumers = [
            context.Process(target=act, args=(store.path, done, results[i][1]))
            for i, act in enumerate((pop_until, pop_until, receive_until, receive_until))
        ]
        producers = [
            context.Process(target=produce, args=(store.path, i, how, pipes[i][1]))
            for i, how in enumerate(("push", "push_many", "producer"))
        ]
        for process in (*consumers, *producers):
            process.start()
        for size in SIZES:
            for pipe, _ in pipes:
                pipe.recv()
            store.alter_topic("t", partitions=size)
            for pipe, _ in pipes:
                pipe.send(size)
        for process in producers:
            process.join()
        done.set()
        found = [gets.recv() for gets, _ in results]
        for process in consumers:
            process.join()
        assert {process.exitcode for process in (*consumers, *producers)} == {0}
        topic = store.topic("t")
        assert topic.partitions == SIZES[-1]
        pushed = sorted(b"%d:%d" % (producer, i) for producer in range(3) for i in range(COUNT))
        for mine, others in (found[:2], found[2:]):
            assert sorted(value for *_, value in mine + others) == pushed
            for records in (mine, others):
                for partition in range(topic.partitions):
                    offsets = [offset for place, offset, _ in records if place == partition]
                    assert offsets == sorted(offsets)
        check_keys(topic)
        assert_whole(store)


def check_keys(topic: jjq.Topic) -> None:
    """Each key's records went through its partitions, from growth to growth, in order."""
    rows = topic.read().read_all().to_pylist()
    for key in {row["_key"] for row in rows}:
        where: dict[int, list[int]] = {}
        for row in rows:
            if row["_key"] == key:
                where.setdefault(row["_partition"], []).append(int(row["value"].partition(b":")[2]))
        assert all(numbers == sorted(numbers) for numbers in where.values())
        sizes = list(SIZES)
        for _, partition in sorted((number, partition) for partition, each in where.items() for number in each):
            while partition_of(key, sizes[0]) != partition:
                del sizes[0]  # none is left where a record went to a partition that was not its key's any more
        assert partition == partition_of(key, SIZES[-1])
