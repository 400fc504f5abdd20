"""From history to live: where a subscriber that reads what is there meets what is being pushed, again and again."""

import asyncio
import multiprocessing
import random
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jjq
from tests.stores import assert_whole

LIVE = 25  # records that are read after those that were there, at most


def push_without_end(path: Path, stop: Event, seed: int) -> None:
    """Numbers in order, in every way that there is to push, with pauses; small segments roll, are linked and compacted."""
    chance = random.Random(seed)
    number = 0
    with jjq.open(path) as store:
        topic = store.topic("t")
        while not stop.wait(chance.choice((0, 0, 0.0005, 0.002, 0.005))):
            count = chance.choice((1, 1, 1, 2, 7, 20))
            values = [b"%d" % each for each in range(number, number + count)]
            match chance.randrange(12):
                case 0:
                    topic.push_table(pa.table({"value": values}), writer_id="w", batch_id=number)
                case 1:
                    topic.push_many(values)
                case _:
                    for value in values:
                        topic.push(value)
            number += count
            if chance.random() < 0.002:
                store.maintain()


def take(subscriber: jjq.Subscriber, count: int, chance: random.Random) -> Iterator[jjq.Record]:
    """So many records, by one way of consuming or another."""
    way = chance.choice(("poll", "pop", "iterate", "async"))
    if way == "poll":
        while count > 0:
            records = subscriber.poll(min(count, chance.choice((1, 3, 50, 500))), timeout=60)
            yield from records
            count -= len(records)
    elif way == "pop":
        for _ in range(count):
            record = subscriber.pop(timeout=60)
            assert record is not None
            yield record
    elif way == "iterate":
        for record, _ in zip(subscriber, range(count), strict=False):
            yield record
    else:
        yield from asyncio.run(asyncio.wait_for(take_async(subscriber, count), 60))


async def take_async(subscriber: jjq.Subscriber, count: int) -> list[jjq.Record]:
    taken = []
    async for record in subscriber:
        taken.append(record)
        if len(taken) == count:
            break
    return taken


def join_often(path: Path, times: int, seed: int) -> None:
    context: Any = multiprocessing.get_context("spawn")
    stop = context.Event()
    chance = random.Random(seed)
    with jjq.open(path) as store:
        topic = store.create_topic("t", sync="none", segment_rows=40)
        producer = context.Process(target=push_without_end, args=(path, stop, seed))
        producer.start()
        try:
            for _ in range(times):
                end = topic.offsets()[0].end
                start = max(0, end - chance.choice((0, 1, 30, 200)))
                with store.create_subscriber("t", start=start) as subscriber:
                    count = end - start + chance.randint(1, LIVE)
                    taken = list(take(subscriber, count, chance))
                    store.delete_subscriber(subscriber.name)
                assert [record.offset for record in taken] == list(range(start, start + count))
                assert [int(record.value) for record in taken] == list(range(start, start + count))
        finally:
            stop.set()
            producer.join()
        assert producer.exitcode == 0
        assert_whole(store)


def test_nothing_is_missed_and_nothing_comes_twice_where_history_meets_the_live_end(tmp_path: Path) -> None:
    join_often(tmp_path / "store", times=100, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 5))
def test_a_thousand_times(tmp_path: Path, seed: int) -> None:
    join_often(tmp_path / "store", times=1000, seed=seed)
