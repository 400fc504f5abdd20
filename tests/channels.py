"""What tests of channels share: a clock that stands still until it is told, and short ways to say what happened."""

from __future__ import annotations

from collections.abc import Iterable

import jjq

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
