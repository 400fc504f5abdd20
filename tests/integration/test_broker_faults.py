"""Clients of a broker behind a network that fails: whatever is acknowledged is there once, and what was being done goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq import staging
from jjq.log.sealed import SealedWriter
from jjq.server.flight import FlightFront
from jjq.server.guard import Guard
from jjq.server.settings import ServerSettings
from tests.proxy import Proxy, proxy
from tests.stores import assert_whole


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def network(directory: Path) -> Iterator[Proxy]:
    """A broker, and what is between it and its clients."""
    settings = ServerSettings(store=directory, flight_port=0)
    with jjq.open(directory) as store:
        front = FlightFront(store, settings, Guard(settings))
        with proxy(front.start()) as made:
            yield made
        front.stop(30)
    assert_whole(directory)


@pytest.fixture
def store(network: Proxy) -> Iterator[jjq.Store]:
    with jjq.connect(network.url) as connected:
        yield connected


class Until:
    """Counts, and calls back at every so many."""

    def __init__(self, every: int, act: Callable[[], object], times: int) -> None:
        self._every, self._act, self._times = every, act, times
        self._mutex = threading.Lock()
        self.count = 0

    def __call__(self, *_: object) -> None:
        with self._mutex:
            self.count += 1
            due = self.count % self._every == 0 and self.count // self._every <= self._times
        if due:
            threading.Thread(target=self._act).start()  # not in the thread that writes


def values(topic: jjq.Topic, partition: int | None = None) -> list[int]:
    partitions = None if partition is None else [partition]
    return [int(each) for each in topic.read(partitions=partitions).read_all().column("value").to_pylist()]


@pytest.mark.parametrize("schema", [False, True], ids=["plain", "headers"])
def test_what_a_producer_was_acknowledged_is_there_once_and_in_order_though_connections_are_cut(
    store: jjq.Store, network: Proxy, schema: bool
) -> None:
    topic = store.create_topic("t", partitions=2, sync="none")
    acknowledged = Until(100, network.cut, 15)
    with store.producer(linger_ms=1, batch_bytes=500) as producer:
        futures = []
        for i in range(2000):
            headers = {"n": b"%d" % i} if schema else None
            future = producer.push("t", b"%d" % i, partition=i % 2, headers=headers)
            future.add_done_callback(acknowledged)
            futures.append(future)
            if i % 50 == 49:
                future.result()  # so that there are many batches
    assert (producer.acknowledged, producer.failed) == (2000, 0)
    assert network.connections > 5
    for partition in range(2):
        assert values(topic, partition) == list(range(partition, 2000, 2))
    for i, future in enumerate(futures):
        assert (future.result().partition, future.result().offset) == (i % 2, i // 2)


def test_bytes_that_end_amid_a_message_make_nothing_twice(store: jjq.Store, network: Proxy) -> None:
    topic = store.create_topic("t", sync="none")
    for i in range(300):
        network.cut_after = 100 + 37 * i  # at another byte each time, of a request or of its answer
        assert topic.push(b"%d" % i).offset == i
    assert values(topic) == list(range(300))


def test_threads_that_push_while_connections_are_cut_lose_nothing(store: jjq.Store, network: Proxy) -> None:
    topic = store.create_topic("t", sync="none")
    pushed = Until(40, network.cut, 10)

    def work(number: int) -> None:
        for i in range(100):
            if i % 3:
                topic.push(b"%d" % (number * 100 + i))
            else:
                topic.push_many([b"%d" % (number * 100 + i)])
            pushed()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = values(topic)
    assert sorted(found) == list(range(400))
    for number in range(4):
        assert [each for each in found if each // 100 == number] == list(range(number * 100, number * 100 + 100))


def test_a_read_goes_on_after_the_last_row_that_came(store: jjq.Store, network: Proxy) -> None:
    topic = store.create_topic("t", partitions=2, sync="none")
    big = b"x" * 10_000
    for partition in range(2):
        topic.push_many([b"%d " % i + big for i in range(1000)], partition=partition)
    rows = 0
    found = []
    for batch in topic.read(metadata=["_partition", "_offset"]):
        found += zip(batch.column("_partition").to_pylist(), batch.column("_offset").to_pylist(), strict=True)
        rows += batch.num_rows
        if rows % 3:
            network.cut()
    assert found == [(partition, offset) for partition in range(2) for offset in range(1000)]
    assert network.connections > 2


@pytest.mark.parametrize("how", ["poll", "iteration", "pop"])
def test_a_subscriber_misses_nothing_and_gets_nothing_twice(store: jjq.Store, network: Proxy, how: str) -> None:
    topic = store.create_topic("t", partitions=2, sync="none")
    topic.push_many([b"%d" % i for i in range(1000)], keys=[b"%d" % i for i in range(1000)])
    subscriber = store.create_subscriber("t", "s")
    found: list[bytes] = []

    def take() -> Iterator[jjq.Record]:
        if how == "iteration":
            yield from subscriber
        while True:
            yield from subscriber.poll(7) if how == "poll" else filter(None, [subscriber.pop()])

    for record in take():
        found.append(record.value)
        if len(found) % 50 == 0:
            network.cut()
            if how != "pop":
                subscriber.commit()
        if len(found) == 1000:
            break
    assert sorted(map(int, found)) == list(range(1000))
    if how != "pop":
        subscriber.commit()
    assert [each.records for each in subscriber.lag()] == [0, 0]


def test_who_waits_when_the_connection_is_cut_gets_the_record_all_the_same(store: jjq.Store, network: Proxy) -> None:
    store.create_topic("t", sync="none")
    subscriber = store.create_subscriber("t", start="latest")
    waited: list[jjq.Record | None] = []
    thread = threading.Thread(target=lambda: waited.append(subscriber.pop(timeout=None)))
    thread.start()
    with jjq.connect(network.url) as other:
        network.cut()
        other.topic("t").push(b"v")
        thread.join(60)
    assert [each and each.value for each in waited] == [b"v"]


def test_a_channel_settles_what_it_had_in_hand_before_the_connection_was_cut(store: jjq.Store, network: Proxy) -> None:
    topic = store.create_topic("t", sync="none")
    topic.push_many([b"%d" % i for i in range(100)])
    channel = store.channel("t", "work", create=True)
    seen = []
    while len(seen) < 100:
        deliveries = channel.receive(9, timeout=None)
        network.cut()
        channel.ack_many(deliveries)
        seen += [int(each.record.value) for each in deliveries]
    assert sorted(seen) == list(range(100))
    counts = channel.counts()
    assert (counts.acked, counts.depth, counts.in_flight, counts.delivered) == (100, 0, 0, 100)


def test_a_subscription_goes_on(store: jjq.Store, network: Proxy) -> None:
    with store.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe("news")
        for i in range(20):
            assert store.publish("news", b"%d" % i) == 1
            network.cut()
            message = subscription.get_message(timeout=60)
            assert message is not None
            assert message["data"] == b"%d" % i


def test_a_stage_is_written_though_connections_are_cut(store: jjq.Store, network: Proxy) -> None:
    import pyarrow as pa

    topic = store.create_topic("t")
    with store.stage() as stage:
        for i in range(10):
            network.cut()
            stage.write(topic, pa.table({"value": [b"%d" % i]}))
        network.cut()
        files = stage.finish()
    network.cut()
    assert store.commit(files, "w", 1).rows == 10
    network.cut()
    assert store.commit(files, "w", 1).duplicate
    assert values(topic) == list(range(10))


def test_the_state_of_the_connection_is_told(network: Proxy) -> None:
    states: list[str] = []
    changed = threading.Condition()

    def told(state: str) -> None:
        with changed:
            states.append(state)
            changed.notify_all()

    with jjq.connect(network.url, on_state=told) as store:
        target, network.target = network.target, 1  # where nobody listens
        network.cut()
        asking = threading.Thread(target=store.topics)
        asking.start()
        with changed:
            assert changed.wait_for(lambda: states[-1] == "reconnecting", 60)
        network.target = target
        asking.join(60)
        with changed:
            assert changed.wait_for(lambda: states[-1] == "connected", 60)
    assert states == ["connected", "reconnecting", "connected", "closed"]


def test_a_peer_that_says_nothing_any_more_is_noticed(network: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jjq.client.connection._PING_S", 0.1)
    monkeypatch.setattr("jjq.client.connection._PING_ANSWER_S", 0.2)
    lost = threading.Event()
    with jjq.connect(network.url, on_state=lambda state: lost.set() if state == "reconnecting" else None) as store:
        network.hang()
        assert lost.wait(60)
        network.cut()
        network.flow()
        assert store.topics() == []


def test_a_broker_that_is_not_there_is_an_error_that_says_so() -> None:
    with proxy(1) as nobody:
        for retry_s in (0, 0.2):
            with pytest.raises(jjq.BrokerUnavailable, match="jjq serve") as caught:
                jjq.connect(nobody.url, retry_s=retry_s)
            assert caught.value.retryable


FORKED = """
import os, sys, jjq
store = jjq.connect(sys.argv[1])
store.create_topic("t").push(b"v")
child = os.fork()
if not child:
    for use in (store.topics, lambda: jjq.connect(sys.argv[1])):
        try:
            use()
        except (jjq.StoreClosed, jjq.InvalidArgument) as error:
            print(type(error).__name__, "spawn" in str(error), flush=True)
    store.close()
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), [each.name for each in store.topics()])
store.close()
"""


def test_a_forked_child_is_told_that_it_cannot_and_the_parent_goes_on(network: Proxy) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, network.url], capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == ["StoreClosed True", "InvalidArgument True", "3 ['t']"], done.stderr


def test_a_client_that_dies_lets_go_of_what_it_had(
    store: jjq.Store, network: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.create_topic("t", sync="none")
    topic.push_many([b"a", b"b"])
    subscriber = store.create_subscriber("t", "s")
    dying = jjq.connect(network.url)
    assert dying.subscriber("s").poll(1)
    assert dying.channel("t", "work", create=True).receive(2)
    dying.connection._closed.set()  # as its process was killed: it says nothing any more
    monkeypatch.setattr("jjq.server.flight_sessions.SILENCE_S", 1.0)
    channel = store.channel("t", "work")
    assert [each.attempts for each in channel.receive(2, timeout=60)] == [2, 2]
    assert len(subscriber.poll(timeout=0)) == 2
    dying.close()


@pytest.mark.parametrize("after", [5, 600_000, 2_900_000])
def test_an_object_is_pushed_and_read_whole_though_the_connection_is_cut(
    store: jjq.Store, network: Proxy, directory: Path, after: int
) -> None:  # fmt: skip
    topic = store.create_topic("t")
    data = bytes(range(256)) * 12_000
    network.cut_after = after
    assert topic.push_file(data, b"value").offset == 0
    assert network.connections > 1
    assert topic.offsets()[0].end == 1
    record = next(topic.records(topic.plan(0, 0, 1)))
    before = network.connections
    network.cut_after = after
    with store.open_object(record) as stream:
        assert stream.read() == data
    assert network.connections > before
    assert [(each.bytes, each.references) for each in store.list_objects()] == [(len(data), 1)]


def test_an_object_that_cannot_be_read_again_says_that_it_may_be_there(store: jjq.Store, network: Proxy) -> None:
    topic = store.create_topic("t")
    out, into = os.pipe()
    writing = threading.Thread(target=_fill, args=(into, 3_000_000))
    writing.start()
    network.cut_after = 1_000_000
    with open(out, "rb") as pipe:
        with pytest.raises(jjq.BrokerUnavailable, match="cannot be read again") as caught:
            topic.push_file(pipe)
        while pipe.read(1 << 16):
            pass
    writing.join()
    assert not caught.value.retryable
    assert topic.offsets()[0].end == 0


def _fill(fd: int, size: int) -> None:
    with open(fd, "wb") as pipe:
        pipe.write(bytes(size))


def test_who_goes_while_the_broker_is_at_a_write_of_its_stage_leaves_no_file(
    store: jjq.Store, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, begun, may_go_on = staging._PartitionStage._begin, threading.Event(), threading.Event()

    def waits(partition: staging._PartitionStage) -> SealedWriter:
        begun.set()
        may_go_on.wait(30)
        return begin(partition)

    monkeypatch.setattr(staging._PartitionStage, "_begin", waits)
    topic, stage = store.create_topic("t"), store.stage()
    rows = pa.table({"value": [b"x" * 1000] * 6000})
    writing = threading.Thread(target=stage.write, args=("t", rows))
    writing.start()
    assert begun.wait(30)
    leaving = threading.Thread(target=stage.abandon)
    leaving.start()
    leaving.join(0.5)  # longer than the broker needs to come to it
    may_go_on.set()
    for each in (leaving, writing):
        each.join(30)
    assert [path.name for path in (directory / "topics" / topic.id / "0").iterdir() if path.name != "lock"] == []
