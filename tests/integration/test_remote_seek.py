"""A seek through a broker, and a poll of another thread that comes between it and its answer."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import jjq
from tests.brokers import serving


class Noting:
    """A lock that notes who waits for it."""

    def __init__(self) -> None:
        self.lock, self.awaited = threading.Lock(), threading.Event()

    def __enter__(self) -> None:
        if not self.lock.acquire(blocking=False):
            self.awaited.set()
            self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_what_is_polled_between_a_seek_and_its_answer_is_not_polled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, sought = threading.Event(), threading.Event()
    with (
        serving(tmp_path / "store", "--no-http") as broker,
        jjq.connect(broker.flight) as store,
        ThreadPoolExecutor(1) as threads,
    ):
        store.create_topic("t").push_many([b"%d" % i for i in range(20)])
        subscriber: Any = store.create_subscriber("t", "s")
        subscriber._seeking = noting = Noting()
        connection = subscriber._remote.connection
        act = connection.act

        def acting(name: str, **about: Any) -> Any:
            if name == "poll" and not begun.is_set():
                begun.set()
                sought.wait(30)
            told = act(name, **about)
            if name == "seek":
                sought.set()
                while not (polled.done() or noting.awaited.is_set()):
                    noting.awaited.wait(0.01)
            return told

        monkeypatch.setattr(connection, "act", acting)
        polled = threads.submit(subscriber.poll, 1, 30)
        begun.wait(30)
        subscriber.seek(10)
        assert [each.offset for each in polled.result(30)] == [10]
        assert [each.offset for each in subscriber.poll(1)] == [11]
        subscriber.close()
