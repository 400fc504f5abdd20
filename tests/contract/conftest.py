"""The stores that the contract holds for: opened as a directory, and through a broker in front of it.

A test that looks inside a store which is opened as a directory is marked `embedded`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jjq
from jjq.server.flight import FlightFront
from jjq.server.guard import Guard
from jjq.server.settings import ServerSettings

BACKENDS = ("embedded", "broker")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        embedded = metafunc.definition.get_closest_marker("embedded") is not None
        metafunc.parametrize("backend", BACKENDS[:1] if embedded else BACKENDS)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the store is, whoever serves it."""
    return tmp_path / "store"


@pytest.fixture
def connect(backend: str, directory: Path) -> Iterator[Callable[..., jjq.Store]]:
    """Opens the store, or connects to the broker that has it open. Options are those of `jjq.open`."""
    if backend == "embedded":
        yield lambda **options: jjq.open(directory, **options)
        return
    settings = ServerSettings(store=directory, flight_port=0)
    started: list[tuple[FlightFront, jjq.Store]] = []

    def begin(**options: object) -> jjq.Store:
        if not started or options:
            store = jjq.open(directory, **options)
            started.append((FlightFront(store, settings, Guard(settings)), store))
            port = started[-1][0].start()
            ports.append(port)
        return jjq.connect(f"jjq://127.0.0.1:{ports[-1]}", retry_s=0)

    ports: list[int] = []
    yield begin
    for front, store in started:
        front.stop(30)
        store.close()


@pytest.fixture
def reopen(connect: Callable[..., jjq.Store]) -> Iterator[Callable[..., jjq.Store]]:
    """Opens the same store once more, as another caller would; all are closed at the end."""
    opened: list[jjq.Store] = []

    def again(**options: object) -> jjq.Store:
        opened.append(connect(**options))
        return opened[-1]

    yield again
    for each in opened:
        each.close()


@pytest.fixture
def store(reopen: Callable[..., jjq.Store]) -> jjq.Store:
    return reopen()


@pytest.fixture
def topic(store: jjq.Store) -> jjq.Topic:
    """One partition that holds a, b, c, d."""
    topic = store.create_topic("letters", sync="none")
    topic.push_many([b"a", b"b", b"c", b"d"])
    return topic
