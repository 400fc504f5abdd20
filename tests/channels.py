"""What tests of channels share: a clock that stands still until it is told, and short ways to say what happened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import jjq
from tests.stores import assert_whole

SECOND = 1_000_000


class Clock:
    """Microseconds since the epoch, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_700_000_000 * SECOND

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)


def values(deliveries: Iterable[jjq.Delivery]) -> list[bytes]:
    return [each.record.value for each in deliveries]


def not_before(clock: Clock, seconds: float) -> dict[str, bytes]:
    """Headers that defer a record by a clock of a test's own."""
    return {"jjq-not-before": b"%d" % (clock.now + int(seconds * SECOND))}


def die(channel: jjq.Channel) -> None:
    """What is left of a consumer whose process was killed: its rows, and a lock that nobody holds."""
    consumer, channel._consumer = channel._consumer, None
    if consumer is not None:
        consumer.close(remove=False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store") as opened:
        yield opened
        assert_whole(opened)


@pytest.fixture
def topic(store: jjq.Store) -> jjq.Topic:
    """One partition that holds a, b, c, d."""
    topic = store.create_topic("letters", sync="none")
    topic.push_many([b"a", b"b", b"c", b"d"])
    return topic


@pytest.fixture
def clock() -> Clock:
    return Clock()


Consumer = Callable[..., jjq.Channel]


@pytest.fixture
def consumer(store: jjq.Store, topic: jjq.Topic, clock: Clock) -> Consumer:
    """One more consumer of the channel `work`."""

    def join(**settings: object) -> jjq.Channel:
        return store.channel("letters", "work", create=True, clock=clock, **settings)

    return join
