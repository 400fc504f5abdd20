"""kill -9 of a broker while clients push and consume: every acknowledged record is there once, in its order."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import jjq
from tests.brokers import Served, serving
from tests.proxy import proxy
from tests.stores import assert_whole


class Acknowledged:
    """Counts what was acknowledged, and lets others wait for more."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.count = 0

    def __call__(self, *_: object) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.count >= count, 60), self.count


@contextlib.contextmanager
def broker(directory: Path) -> Iterator[Served]:
    with serving(directory, "--no-http") as served:
        yield served


@pytest.mark.parametrize(
    ("kills", "sync"),
    [
        pytest.param(6, "none", marks=pytest.mark.slow),
        pytest.param(3, "always", marks=pytest.mark.slow),
        pytest.param(50, "none", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
def test_what_was_acknowledged_is_there_once_however_often_the_broker_is_killed(
    tmp_path: Path, kills: int, sync: str
) -> None:
    directory, acknowledged, stop = tmp_path / "store", Acknowledged(), threading.Event()
    futures: list[list[jjq.PushFuture]] = [[], []]
    polled: list[int] = []
    problems: list[BaseException] = []

    def produce(store: jjq.Store, number: int) -> None:
        try:
            with store.producer(linger_ms=1, batch_bytes=2000, window=500) as producer:
                i = 0
                while not stop.is_set():
                    future = producer.push("t", b"%d" % (2 * i + number), partition=number)
                    future.add_done_callback(acknowledged)
                    futures[number].append(future)
                    i += 1
        except BaseException as error:
            problems.append(error)

    def consume(store: jjq.Store) -> None:
        try:
            for record in store.subscriber("s"):
                if record.value == b"end":
                    return
                polled.append(int(record.value))
        except BaseException as error:
            problems.append(error)

    with contextlib.ExitStack() as brokers:
        served = brokers.enter_context(broker(directory))
        between = brokers.enter_context(proxy(served.port))
        store = brokers.enter_context(jjq.connect(between.url, retry_s=60))
        store.create_topic("t", partitions=2, sync=sync)
        store.create_subscriber("t", "s", start={0: "earliest", 1: "latest"})
        threads = [threading.Thread(target=produce, args=(store, number)) for number in range(2)]
        threads.append(threading.Thread(target=consume, args=(store,)))
        for thread in threads:
            thread.start()
        for _ in range(kills):
            acknowledged.wait_for(acknowledged.count + 300)
            served.kill()
            served = brokers.enter_context(broker(directory))
            between.target = served.port
        acknowledged.wait_for(acknowledged.count + 300)
        stop.set()
        for thread in threads[:2]:
            thread.join(60)
        store.topic("t").push(b"end", partition=0)
        threads[2].join(60)
        assert problems == []
        assert not any(thread.is_alive() for thread in threads)
        topic = store.topic("t")
        for number in range(2):
            found = topic.read(partitions=[number]).read_all().column("value").to_pylist()
            pushed = [b"%d" % (2 * i + number) for i in range(len(futures[number]))]
            pushed += [b"end"] if number == 0 else []
            assert found == pushed
            assert [each.result().offset for each in futures[number]] == list(range(len(futures[number])))
        # The subscriber ended with the first partition's last record, wherever it was in the second.
        assert [each for each in polled if each % 2 == 0] == list(range(0, 2 * len(futures[0]), 2))
        odd = [each for each in polled if each % 2]
        assert odd == list(range(1, 2 * len(odd), 2))
    assert_whole(directory)
