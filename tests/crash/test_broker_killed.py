"""kill -9 of a broker while clients push and consume: every acknowledged record is there once, in its order."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq.batch import PushFuture
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


class Amid:
    """A broker that is killed when it has done what it was asked, and its answer has not come."""

    def __init__(self, directory: Path, held: contextlib.ExitStack) -> None:
        self.directory, self._held = directory, held
        self._served = held.enter_context(broker(directory))
        self._between = held.enter_context(proxy(self._served.port))
        self.store = held.enter_context(jjq.connect(self._between.url, retry_s=60))
        self.here = held.enter_context(jjq.open(directory, maintenance=False))  # beside the broker

    def killed(
        self, act: Callable[[], object], done: Callable[[], bool], meanwhile: Callable[[], object] = lambda: None
    ) -> object:
        """What `act` gives or raises."""
        results: list[object] = []

        def run() -> None:
            try:
                results.append(act())
            except jjq.JjqError as error:
                results.append(error)

        self._between.hang(answers_only=True)
        thread = threading.Thread(target=run)
        thread.start()
        while not done():
            assert thread.is_alive(), results
        self._served.kill()
        meanwhile()
        self._served = self._held.enter_context(broker(self.directory))
        self._between.target = self._served.port
        self._between.cut()
        self._between.flow()
        thread.join(60)
        (result,) = results
        return result


@pytest.fixture
def amid(tmp_path: Path) -> Iterator[Amid]:
    with contextlib.ExitStack() as held:
        yield Amid(tmp_path / "store", held)
    assert_whole(tmp_path / "store")


FLIGHTS = pa.schema([("carrier", pa.string())])
PUSHES: dict[str, tuple[pa.Schema | None, Callable[[jjq.Topic], object]]] = {
    "push": (None, lambda topic: topic.push(b"v", partition=0).offset),
    "push with headers": (None, lambda topic: topic.push(b"v", headers={"a": b"1"}, partition=0).offset),
    "push a row": (FLIGHTS, lambda topic: topic.push({"carrier": "AA"}, partition=0).offset),
    "push_many": (None, lambda topic: topic.push_many([b"v"] * 300, partition=0).ranges[0].start),
    "push_table": (
        FLIGHTS,
        lambda topic: topic.push_table(pa.table({"carrier": ["AA"] * 3}), partition=0).ranges[0].start,
    ),
}


@pytest.mark.parametrize(("schema", "push"), PUSHES.values(), ids=PUSHES)
def test_a_push_that_was_done_and_not_answered_is_not_done_again(
    amid: Amid, schema: pa.Schema | None, push: Callable[[jjq.Topic], object]
) -> None:
    topic = amid.store.create_topic("t", partitions=2, schema=schema)
    first = push(topic)
    before = topic.offsets()[0].end
    here = amid.here.topic("t")
    assert amid.killed(lambda: push(topic), lambda: here.offsets()[0].end > before) == before
    assert here.offsets()[0].end == 2 * before
    assert (first, push(topic)) == (0, 2 * before)


def test_a_producer_goes_on_after_the_batch_that_was_done_and_not_answered(amid: Amid) -> None:
    amid.store.create_topic("t")
    here = amid.here.topic("t")
    with amid.store.producer(linger_ms=0) as producer:
        first = producer.push("t", b"0").result()
        second = amid.killed(lambda: producer.push("t", b"1").result(60), lambda: here.offsets()[0].end > 1)
        third = producer.push("t", b"2").result(60)
    assert [each.offset for each in (first, second, third)] == [0, 1, 2]  # type: ignore[attr-defined]
    assert here.read().read_all().column("value").to_pylist() == [b"0", b"1", b"2"]


def test_where_it_cannot_be_told_the_error_says_so_and_nothing_is_done_twice(amid: Amid) -> None:
    topic = amid.store.create_topic("t")
    topic.push(b"first")
    here = amid.here.topic("t")
    result = amid.killed(lambda: topic.push(b"v"), lambda: here.offsets()[0].end > 1, here.empty)
    assert isinstance(result, jjq.BrokerUnavailable)
    assert (result.retryable, "may be done or not" in result.message) == (False, True)
    assert (here.offsets()[0].start, here.offsets()[0].end) == (2, 2)


def test_a_change_that_may_be_done_is_not_done_again(amid: Amid) -> None:
    result = amid.killed(lambda: amid.store.create_topic("t"), lambda: bool(amid.here.topics()))
    assert isinstance(result, jjq.BrokerUnavailable)
    assert not result.retryable
    assert [each.name for each in amid.store.topics()] == ["t"]


def test_a_commit_of_a_writer_is_done_once(amid: Amid) -> None:
    topic = amid.store.create_topic("t")
    with amid.store.stage() as stage:
        stage.write(topic, pa.table({"value": [b"a", b"b"]}))
        files = stage.finish()
    result = amid.killed(lambda: amid.store.commit(files, "w", 1), lambda: bool(amid.here.writers()))
    assert isinstance(result, jjq.Commit)
    assert (result.rows, result.duplicate) == (2, True)
    assert amid.here.topic("t").offsets()[0].end == 2


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
    futures: list[list[PushFuture]] = [[], []]
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
        store = brokers.enter_context(jjq.connect(between.url, retry_s=300))  # many kills may meet a request
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
