"""Several processes and threads on one channel: who waits is woken, and hears of every end."""

import multiprocessing
import os
import socket
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import jjq
from tests.brokers import serving
from tests.channels import values
from tests.stores import assert_whole

FOR_EVER = None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store") as opened:
        opened.create_topic("t", partitions=2, sync="none")
        yield opened
        assert_whole(opened)


def consume(path: Path, pipe: Connection, settings: dict[str, Any]) -> None:
    """Does what it is told and tells what came of it."""
    with jjq.open(path) as store:
        channel = store.channel("t", "work", create=True, **settings)
        held: list[jjq.Delivery] = []
        pipe.send("ready")
        while (order := pipe.recv()) is not None:
            try:
                if order == "receive":
                    got = channel.receive(10, FOR_EVER)
                    held += got
                    pipe.send([(each.record.value, each.attempts) for each in got])
                else:
                    {"ack": channel.ack_many, "requeue": channel.requeue_many}[order](held)
                    held = []
                    pipe.send(order)
            except jjq.JjqError as error:
                pipe.send(error)


class Other:
    """A consumer in a process of its own."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=consume, args=(path, theirs, settings), daemon=True)
        self.process.start()
        theirs.close()
        assert self.pipe.recv() == "ready"

    def __call__(self, order: str) -> Any:
        self.pipe.send(order)
        return self.pipe.recv()

    def begin(self, order: str) -> None:
        self.pipe.send(order)

    def end(self) -> Any:
        return self.pipe.recv()

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


@pytest.fixture
def another(store: jjq.Store) -> Iterator[Callable[..., Other]]:
    made: list[Other] = []

    def make(**settings: Any) -> Other:
        made.append(Other(store.path, settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def until_waiting(store: jjq.Store, count: int = 1) -> None:
    """Until so many consumers have joined, the last thing they do before they wait."""
    channel = store.channel("t", "work")
    while len(channel.consumers()) < count:
        threading.Event().wait(0.001)


def test_a_push_wakes_a_waiting_consumer(store: jjq.Store, another: Callable[..., Other]) -> None:
    other = another()
    other.begin("receive")
    until_waiting(store)
    store.topic("t").push(b"a", partition=1)
    assert other.end() == [(b"a", 1)]
    assert other("ack") == "ack"


def test_a_deferred_record_wakes_a_waiting_consumer_in_time(store: jjq.Store, another: Callable[..., Other]) -> None:
    other = another()
    other.begin("receive")
    until_waiting(store)
    store.topic("t").push(b"a", delay=0.1)
    assert other.end() == [(b"a", 1)]


@pytest.mark.parametrize("how", ["requeue", "close", "die", "time out"])
def test_what_comes_back_wakes_a_waiting_consumer(store: jjq.Store, another: Callable[..., Other], how: str) -> None:
    first = another(ack_timeout=1.0 if how == "time out" else 600.0)
    store.topic("t").push(b"a")
    assert first("receive") == [(b"a", 1)]
    other = another()
    other.begin("receive")
    until_waiting(store, 2)
    if how == "requeue":
        first("requeue")
    elif how == "close":
        first.begin(None)  # type: ignore[arg-type]
    elif how == "die":
        first.process.kill()
    assert other.end() == [(b"a", 2)]


def test_a_key_that_is_free_wakes_who_waits_for_it(store: jjq.Store, another: Callable[..., Other]) -> None:
    first = another(ordered=True)
    store.topic("t").push_many([b"a", b"b"], keys=["k", "k"])
    assert first("receive") == [(b"a", 1)]
    other = another()
    other.begin("receive")
    until_waiting(store, 2)
    first("ack")
    assert other.end() == [(b"b", 1)]


@pytest.mark.parametrize("end", ["channel", "topic"])
def test_deleting_ends_waits_and_hands_in_every_process(
    store: jjq.Store, another: Callable[..., Other], end: str
) -> None:
    holder, waiter = another(), another()
    store.topic("t").push(b"a")
    assert holder("receive") == [(b"a", 1)]
    waiter.begin("receive")
    until_waiting(store, 2)
    if end == "topic":
        store.delete_topic("t")
    else:
        store.delete_channel("t", "work")
    kind = jjq.TopicDeleted if end == "topic" else jjq.ChannelNotFound
    assert isinstance(waiter.end(), kind)
    assert isinstance(holder("ack"), kind)
    assert isinstance(waiter("receive"), kind)


@pytest.mark.parametrize("what", ["channel", "topic"])
def test_unpausing_wakes_who_waits(store: jjq.Store, another: Callable[..., Other], what: str) -> None:
    other = another()
    target: Any = store.topic("t") if what == "topic" else store.channel("t", "work")
    target.pause()
    other.begin("receive")
    until_waiting(store)
    store.topic("t").push(b"a")
    assert not other.pipe.poll(0.2)
    target.unpause()
    assert other.end() == [(b"a", 1)]


def test_closing_a_handle_or_the_store_ends_its_waits_at_once(store: jjq.Store) -> None:
    for close_store in (False, True):
        with jjq.open(store.path) as own:
            channel = own.channel("t", "work", create=True)
            errors: list[BaseException] = []

            def wait(channel: jjq.Channel = channel, errors: list[BaseException] = errors) -> None:
                try:
                    channel.receive(1, FOR_EVER)
                except jjq.StoreClosed as error:
                    errors.append(error)

            threads = [threading.Thread(target=wait) for _ in range(3)]
            for thread in threads:
                thread.start()
            until_waiting(store)
            (own if close_store else channel).close()
            for thread in threads:
                thread.join()
            assert len(errors) == 3


def test_an_acknowledgement_makes_room_for_a_thread_that_waits(store: jjq.Store) -> None:
    store.topic("t").push_many([b"a", b"b"])
    channel = store.channel("t", "work", create=True, max_in_flight=1)
    [first] = channel.receive(1)
    got: list[jjq.Delivery] = []
    thread = threading.Thread(target=lambda: got.extend(channel.receive(1, FOR_EVER)))
    thread.start()
    while not channel._idle:
        threading.Event().wait(0.001)
    first.ack()
    thread.join()
    assert values(got) == [b"b"]


def test_a_timeout_is_kept_though_others_push_all_the_time(store: jjq.Store) -> None:
    channel = store.channel("t", "work", create=True)
    channel.pause()
    done = threading.Event()

    def push() -> None:
        topic = store.topic("t")
        while not done.is_set():
            topic.push(b"x")

    thread = threading.Thread(target=push)
    thread.start()
    assert channel.receive(1, timeout=0.3) == []
    done.set()
    thread.join()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_another_consumer_and_leaves_its_parents_in_place(store: jjq.Store) -> None:
    store.topic("t").push_many([b"a", b"b", b"c"], partition=0)
    channel = store.channel("t", "work", create=True)
    mine = channel.receive(1)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            got = channel.receive(1)
            os.write(writes, b"".join(values(got)))
            channel.ack_many(got)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert os.read(reads, 10) == b"b"
    os.close(reads)
    os.close(writes)
    # The child is dead, its consumer with it; the parent's is not.
    other = store.channel("t", "work")
    assert values(other.receive(10)) == [b"c"]
    channel.ack_many(mine)
    assert channel.counts().acked == 2
    assert len(channel.consumers()) == 2


def test_through_a_broker_a_consumer_is_where_its_client_runs(tmp_path: Path) -> None:
    with serving(tmp_path / "store", "--no-http") as broker, jjq.connect(broker.flight) as store:
        store.create_topic("t").push(b"a")
        channel = store.channel("t", "c", create=True)
        assert len(channel.receive(1, timeout=0)) == 1
        with jjq.open(tmp_path / "store", maintenance=False) as beside:
            for asked in (channel, beside.channel("t", "c")):
                (consumer,) = asked.consumers()
                assert (consumer.host, consumer.pid, consumer.in_flight) == (socket.gethostname(), os.getpid(), 1)
        assert os.getpid() != broker.process.pid
