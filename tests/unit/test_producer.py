"""Batched pushes: order, windows, failures that pass, failures that do not, and futures that always end."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq import files
from jjq.batch import PushFuture
from jjq.producer import Producer


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store") as opened:
        yield opened


def values(topic: jjq.Topic) -> list[object]:
    return topic.read().read_all().column("value").to_pylist()


def test_pushes_are_written_in_order_and_their_futures_know_where(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    with store.producer(linger_ms=1) as producer:
        futures = [producer.push("t", str(i)) for i in range(5000)]
        producer.flush(30)
        assert all(future.done() for future in futures)
    assert [future.result().offset for future in futures] == list(range(5000))
    assert values(topic) == [str(i).encode() for i in range(5000)]


def test_a_batch_is_one_message(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    with store.producer(linger_ms=60_000) as producer:
        for i in range(100):
            producer.push("t", str(i))
    segment = topic.segments()[0]
    index = Path(segment.path).with_suffix(".index")
    assert index.stat().st_size == 2 * 80  # the head's entry and one batch's


def test_keys_headers_and_times_arrive_as_pushed(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=4, timestamps="producer")
    with store.producer() as producer:
        plain = producer.push("t", b"a", key="k", timestamp=7)
        marked = producer.push("t", None, key="k", headers={"h": b"1"}, timestamp=9)
    assert (plain.result().timestamp, marked.result().timestamp) == (7, 9)
    rows = topic.read(metadata=["_key", "_headers"]).read_all().to_pylist()
    assert rows == [
        {"value": b"a", "_key": b"k", "_headers": None},
        {"value": None, "_key": b"k", "_headers": [{"key": "h", "value": b"1"}]},
    ]


def test_topics_with_a_schema_take_mappings_and_a_bad_one_fails_alone(store: jjq.Store) -> None:
    topic = store.create_topic("t", schema=pa.schema([("a", pa.int64())]))
    with store.producer() as producer:
        producer.push("t", {"a": 1})
        for bad in (b"a", {"b": 1}, {"a": "one"}):
            with pytest.raises(jjq.SchemaMismatch):
                producer.push("t", bad)
        producer.push("t", {"a": None})
    assert topic.read().read_all().column("a").to_pylist() == [1, None]


def test_an_on_error_that_raises_costs_nobody_anything(store: jjq.Store) -> None:
    store.create_topic("a")
    heard = []

    def bad(future: object) -> None:
        heard.append(future)
        raise RuntimeError("on_error raises")

    with store.producer(linger_ms=1, on_error=bad) as producer:
        producer.push("a", b"x").result()
        topic = store.topic("a")
        store.delete_topic("a")
        assert isinstance(producer.push("a", b"lost").exception(60), jjq.TopicDeleted)
        assert producer.push("b", b"kept").result(60).offset == 0
        # The name is another topic's from the next push on.
        assert producer.push("a", b"anew").result(60).offset == 0
    assert len(heard) == 1
    assert store.topic("a").id != topic.id
    assert (producer.acknowledged, producer.failed) == (3, 1)


def test_flush_waits_for_what_was_pushed_before_whatever_others_push(store: jjq.Store) -> None:
    stop = threading.Event()
    with store.producer(linger_ms=60_000, batch_bytes=1000, window=50) as producer:

        def others() -> None:
            while not stop.is_set():
                producer.push("b", b"y" * 1000)

        thread = threading.Thread(target=others)
        thread.start()
        try:
            for _ in range(50):
                future = producer.push("a", b"x")
                producer.flush(60)
                assert future.done()
        finally:
            stop.set()
            thread.join()


def test_a_record_that_cannot_go_in_is_refused_before_it_is_among_others(store: jjq.Store) -> None:
    store.create_topic("t", max_record_bytes=100, max_batch_bytes=1000)
    with store.producer(linger_ms=60_000) as producer:
        futures = [producer.push("t", b"%099d" % i) for i in range(30)]  # three times what one batch may have
        with pytest.raises(jjq.InvalidArgument, match="surrogate"):
            producer.push("t", b"", headers={"k\ud800": b"v"})
        with pytest.raises(jjq.InvalidArgument, match="surrogate"):
            producer.push("t", "\ud800")
        with pytest.raises(jjq.RecordTooLarge, match="headers"):
            producer.push("t", b"", headers={"k": b"v" * 100})
        futures.append(producer.push("t", b"", headers={"k": b"v" * 50}))
        producer.flush(60)
        assert [future.result().offset for future in futures] == list(range(31))


FORK_AT_ONCE = """
import os, signal, sys
import jjq
store = jjq.open(sys.argv[1])
producer = store.producer(linger_ms=200)
for _ in range(300):  # so many become columns
    producer.push("t", b"parent")
while "pandas" not in sys.modules:  # pyarrow imports it with the first list that it is given
    pass
child = os.fork()
if child == 0:
    signal.alarm(20)
    [producer.push("t", b"child") for _ in range(300)][-1].result(10)
    os._exit(0)
producer.close()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_while_the_first_record_is_written_leaves_a_child_that_can_push(store: jjq.Store) -> None:
    store.create_topic("t")
    subprocess.run([sys.executable, "-c", FORK_AT_ONCE, str(store.path)], check=True, timeout=60)
    assert sorted(store.topic("t").read().read_all()["value"].to_pylist()) == [b"child"] * 300 + [b"parent"] * 300


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_writes_its_own_and_the_parent_its_own(store: jjq.Store) -> None:
    store.create_topic("t")
    with store.producer(linger_ms=60_000) as producer:
        before = producer.push("t", b"parent's")
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                assert isinstance(before.exception(1), jjq.StoreError)
                future = producer.push("t", b"child's")
                producer.close()
                code = 0 if future.result(0).offset == 0 else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert before.result().offset == 1
    assert store.topic("t").read().read_all().column("value").to_pylist() == [b"child's", b"parent's"]


def test_what_can_be_known_at_once_raises_at_once(store: jjq.Store) -> None:
    store.create_topic("t", max_record_bytes=10)
    with store.producer() as producer:
        with pytest.raises(jjq.InvalidName):
            producer.push("../nope", b"")
        with pytest.raises(jjq.RecordTooLarge):
            producer.push("t", b"x" * 11)
        with pytest.raises(jjq.InvalidArgument):
            producer.push("t", b"", partition=1)
        with pytest.raises(jjq.InvalidArgument):
            producer.push("t", b"", timestamp=5)
    for bad in ({"linger_ms": -1}, {"batch_bytes": 0}, {"window": 0}, {"delivery_timeout_s": "x"}):
        with pytest.raises(jjq.InvalidArgument):
            store.producer(**bad)


def test_a_full_window_makes_the_pusher_wait(store: jjq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = store.create_topic("t")
    topic.push(b"first")
    gate = threading.Event()
    reached = threading.Event()
    real = files.datasync

    def slow(fd: int) -> None:
        reached.set()
        gate.wait(30)
        real(fd)

    monkeypatch.setattr(files, "datasync", slow)
    with store.producer(linger_ms=0, window=10) as producer:
        futures = [producer.push("t", b"v") for _ in range(10)]
        assert reached.wait(30)
        blocked = threading.Thread(target=lambda: futures.append(producer.push("t", b"last")))
        blocked.start()
        blocked.join(0.2)
        assert blocked.is_alive()
        gate.set()
        blocked.join(30)
        assert not blocked.is_alive()
    assert [future.result().offset for future in futures] == list(range(1, 12))


def test_an_interrupt_in_a_full_window_leaves_others_to_linger(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_topic("t").push(b"first")
    gate = threading.Event()
    real = files.datasync

    def slow(fd: int) -> None:
        gate.wait(30)
        real(fd)

    def interrupt() -> None:
        while not producer._full:
            gate.wait(0.001)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    monkeypatch.setattr(files, "datasync", slow)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have this process ignore it
    with store.producer(linger_ms=60_000, window=1) as producer:
        producer.push("t", b"v")
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            producer.push("t", b"waits")
        interrupting.join()
        gate.set()
        producer.flush(30)
        assert not producer._full
    signal.signal(signal.SIGINT, before)


def test_what_comes_while_another_batch_is_written_joins_the_next_up_to_a_bound(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.create_topic("t")
    topic.push(b"first")
    gate, reached = threading.Event(), threading.Event()
    real, synced = files.datasync, []

    def slow(fd: int) -> None:
        synced.append(fd)
        reached.set()
        gate.wait(30)
        real(fd)

    monkeypatch.setattr(files, "datasync", slow)
    with store.producer(linger_ms=60_000, batch_bytes=100) as producer:
        first = producer.push("t", b"%0100d" % 0)
        assert reached.wait(30)
        later = [producer.push("t", b"%0100d" % i) for i in range(1, 21)]  # of eight times 100 bytes at most
        gate.set()
        producer.flush(60)
    assert [future.result().offset for future in [first, *later]] == list(range(1, 22))
    assert values(topic)[1:] == [b"%0100d" % i for i in range(21)]
    assert len(synced) == 4


def test_a_failure_that_passes_is_tried_again_in_order_and_never_duplicates(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.create_topic("t")
    real, failures = files.datasync, iter([True, True, True])

    def failing(fd: int) -> None:
        if next(failures, False):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd)

    monkeypatch.setattr(files, "datasync", failing)
    with store.producer(linger_ms=1, batch_bytes=100) as producer:
        futures = [producer.push("t", f"{i:03}") for i in range(200)]
    assert all(future.exception() is None for future in futures)
    assert values(topic) == [f"{i:03}".encode() for i in range(200)]


def test_a_failure_that_does_not_pass_reaches_every_future(store: jjq.Store) -> None:
    store.create_topic("t")
    heard: list[PushFuture] = []
    producer = store.producer(linger_ms=60_000, on_error=heard.append)
    futures = [producer.push("t", b"v") for _ in range(3)]
    called: list[PushFuture] = []
    futures[0].add_done_callback(called.append)
    store.delete_topic("t")
    producer.close()
    assert [type(future.exception()) for future in futures] == [jjq.TopicDeleted] * 3
    with pytest.raises(jjq.TopicDeleted):
        futures[1].result()
    assert called == [futures[0]]
    assert len(heard) == producer.failed == 3


def test_a_closed_producer_takes_nothing_more(store: jjq.Store) -> None:
    store.create_topic("t")
    producer = store.producer()
    producer.close()
    producer.close()
    with pytest.raises(jjq.StoreClosed):
        producer.push("t", b"v")
    assert repr(producer) == "<Producer closed, 0 pending, 0 acknowledged, 0 failed>"


def test_waiting_for_a_future_can_end_without_it(store: jjq.Store) -> None:
    store.create_topic("t")
    with store.producer(linger_ms=60_000) as producer:
        future = producer.push("t", b"v")
        with pytest.raises(TimeoutError):
            future.result(0.01)
        assert not future.done()
    assert future.result().offset == 0


def test_many_threads_share_a_producer(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=3)
    with Producer(store, window=500) as producer:

        def work(name: int) -> None:
            for i in range(500):
                producer.push("t", f"{name}-{i}", key=str(name))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [value.decode().split("-") for value in values(topic)]  # type: ignore[attr-defined]
    for name in range(8):
        assert [int(i) for who, i in found if who == str(name)] == list(range(500))


def test_values_alone_and_records_with_more_share_a_batch_in_order(store: jjq.Store) -> None:
    topic = store.create_topic("mixed")
    with store.producer(linger_ms=60_000) as producer:
        for value, more in (
            (b"a", {}), (b"b", {"key": b"k"}), (b"c", {}), (None, {}), (b"d", {"headers": {"h": b"1"}}), (b"e", {}),
            ("text", {}), (b"", {"partition": 0}),
        ):  # fmt: skip
            producer.push("mixed", value, **more)
    found = store.create_subscriber("mixed").poll(100)
    assert [each.value for each in found] == [b"a", b"b", b"c", None, b"d", b"e", b"text", b""]
    assert [each.key for each in found] == [None, b"k", *[None] * 6]
    assert [each.headers for each in found] == [*[None] * 4, [("h", b"1")], *[None] * 3]
    assert len(topic.segments()) == 1
