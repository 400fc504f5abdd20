"""Processes that find no store and make it, all at once."""

import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import jjq
from tests.stores import assert_whole


def open_many(places: list[Path], barrier: Barrier) -> None:
    for place in places:
        barrier.wait()
        with jjq.open(place) as store:
            store.create_topic("t", exist_ok=True).push(b"x")


def test_a_store_is_made_once_however_many_begin_it_together(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(4, timeout=60)
    places = [tmp_path / str(number) for number in range(40)]
    processes = [context.Process(target=open_many, args=(places, barrier)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    for place in places:
        with jjq.open(place) as store:
            assert [topic.name for topic in store.topics()] == ["t"]
            assert store.topic("t").offsets()[0].end == 4
        assert_whole(place)
