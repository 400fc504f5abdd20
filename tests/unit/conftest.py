"""Fixtures of several unit tests."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jjq
from tests.pushers import Pusher
from tests.stores import assert_whole


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a topic `t` whose pushes wait for the disk."""
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        store.create_topic("t", sync="always")
    return tmp_path / "store"


@pytest.fixture
def pushers(path: Path) -> Iterator[Callable[..., list[Pusher]]]:
    """Makes so many processes that push to the topic `t` of the store; whether they have met others before is `meet`."""
    made: list[Pusher] = []

    def make(count: int, meet: bool = True) -> list[Pusher]:
        made.extend(Pusher(path, meet) for _ in range(count))
        return made[-count:]

    yield make
    for each in made:
        each.store.close()
    assert_whole(path)
